//! Replacement policies by themselves: what share of a trace's accesses each of them misses, at several sizes. No devices, no time: a block of
//! 4 KiB that is asked for is one access, and one of a block that is not kept is a miss.

use std::collections::BTreeSet;

use tidegate_engine::policy::{Kind, Policy};

use crate::experiment::load::trace::Trace;

/// Atoms of a block.
const BLOCK_ATOMS: u64 = 8;

/// The blocks that a trace asks for, one access each, in order.
pub fn accesses(trace: &Trace) -> Vec<u64> {
    let blocks = |start: u64, atoms: u64| start / BLOCK_ATOMS..(start + atoms).div_ceil(BLOCK_ATOMS);
    trace.records.iter().flat_map(|record| blocks(record.start, u64::from(record.atoms))).collect()
}

/// How many different blocks those are.
pub fn working_set(accesses: &[u64]) -> u64 {
    let mut blocks = accesses.to_vec();
    blocks.sort_unstable();
    blocks.dedup();
    blocks.len() as u64
}

/// Accesses that miss in a cache of `capacity` blocks.
pub fn misses(kind: Kind, capacity: usize, accesses: &[u64]) -> u64 {
    let mut policy = kind.build(capacity);
    accesses.iter().map(|&key| u64::from(!access(&mut *policy, capacity, key))).sum()
}

/// True: a hit.
fn access(policy: &mut dyn Policy, capacity: usize, key: u64) -> bool {
    if policy.contains(key) {
        policy.touch(key);
        return true;
    }
    if policy.len() >= capacity {
        policy.evict(key);
    }
    policy.insert(key);
    false
}

/// The least that any policy can miss that keeps everything it is asked for: what is asked for again last goes (Belady, "A study of replacement
/// algorithms for virtual-storage computer", IBM Systems Journal 1966).
pub fn least_misses(capacity: usize, accesses: &[u64]) -> u64 {
    let next = next_accesses(accesses);
    // Blocks that are kept, by when they are asked for again.
    let mut kept: BTreeSet<(usize, u64)> = BTreeSet::new();
    let mut misses = 0;
    for (at, &key) in accesses.iter().enumerate() {
        if !kept.remove(&(at, key)) {
            misses += 1;
            if kept.len() >= capacity {
                kept.pop_last();
            }
        }
        kept.insert((next[at], key));
    }
    misses
}

/// For each access, when the same block is asked for next; behind the end, if never.
fn next_accesses(accesses: &[u64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..accesses.len()).collect();
    order.sort_unstable_by_key(|&at| (accesses[at], at));
    let mut next = vec![accesses.len(); accesses.len()];
    for pair in order.windows(2).filter(|pair| accesses[pair[0]] == accesses[pair[1]]) {
        next[pair[0]] = pair[1];
    }
    next
}

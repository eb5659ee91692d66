//! Replacement policies by themselves: what share of a trace's accesses each of them misses, at several sizes. No devices, no time: a block that
//! is asked for is one access, and one of a block that is not kept is a miss. A block has 4 KiB; of a trace that knows only pages or keys it is one
//! of these, and has as many bytes as they have ([`block_bytes`]).
//!
//! * [`comparison`]: every policy on one trace at several sizes, and over several traces.
//! * [`curve`]: LRU at every size at once, from a sample.
//! * [`size`]: how large a cache is to be.

pub mod comparison;
pub mod curve;
pub mod size;

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;

use tidegate_engine::policy::{Kind, Policy};

use crate::chance::Chance;
use crate::experiment::load::trace::{self, Format, Record, Refused, Trace, Whole};

/// Atoms of a block.
pub const BLOCK_ATOMS: u64 = 8;
/// Bytes of a block, where the trace does not have blocks of its own.
pub const BLOCK_BYTES: u64 = 4096;
/// More accesses than this would not fit into memory (8 bytes each).
const ACCESSES_MAX: u64 = 1 << 28;

/// Bytes of a block of a trace; `page`: what its pages are said to have. `None`: nobody knows.
pub fn block_bytes(format: Format, page: Option<u64>) -> Option<u64> {
    if format.has_pages() { page.or(format.page_bytes()) } else { Some(BLOCK_BYTES) }
}

/// The accesses of a trace file. The error is one line: file, line (or record), what.
pub fn load(path: &Path, format: Format) -> Result<(Vec<u64>, Whole), Refused> {
    let trace = trace::read(path, format, BLOCK_ATOMS, None)?;
    let count: u64 = trace.records.iter().map(|record| blocks(record).count() as u64).sum();
    if count > ACCESSES_MAX {
        let what = format!("{}: asks for {count} blocks; at most {ACCESSES_MAX} are simulated: cut the trace", path.display());
        return Err(Refused::Wrong(what));
    }
    Ok((accesses(&trace), trace.whole))
}

/// The blocks that a trace asks for, one access each, in order.
pub fn accesses(trace: &Trace) -> Vec<u64> {
    trace.records.iter().flat_map(blocks).collect()
}

fn blocks(record: &Record) -> Range<u64> {
    record.start / BLOCK_ATOMS..(record.start + u64::from(record.atoms)).div_ceil(BLOCK_ATOMS)
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
    misses_deferred(kind, capacity, Rings { threads: 1, queue: 1, notes: 1 }, accesses)
}

/// Where hits are noted until the policy is told of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rings {
    /// Threads that hit, each with a ring of its own. Which of them an access is made by is drawn.
    pub threads: usize,
    /// Accesses of a thread that are under way at once, and noted with the time of the first.
    pub queue: usize,
    /// Notes that a ring has room for: when one is full all are read.
    pub notes: usize,
}

/// The same where other threads than the policy's hit, and it is told of that late. A miss is the policy's, and before it is told of one it
/// reads the rings, as an engine does whose turn begins: a policy that has not been told of the last hits throws out what was asked for just now,
/// and one that is told of them behind a miss takes what was asked for before it for something that came back. Hits of several threads
/// are told as the memory tier's keeper tells them, by their times: what stays unknown is the order of what is under way at once.
pub fn misses_deferred(kind: Kind, capacity: usize, rings: Rings, accesses: &[u64]) -> u64 {
    let Rings { threads, queue, notes } = rings;
    assert!(threads > 0 && queue > 0 && notes > 0, "hits are noted somewhere");
    let chance = Chance::new(0, "threads that hit");
    let threads = vec![Thread::default(); threads];
    let mut cache = Cache { policy: kind.build(capacity), capacity, threads, queue, notes, chance, now: 0 };
    accesses.iter().map(|&key| u64::from(!cache.access(key))).sum()
}

struct Cache {
    policy: Box<dyn Policy>,
    capacity: usize,
    threads: Vec<Thread>,
    queue: usize,
    notes: usize,
    chance: Chance,
    /// Accesses so far.
    now: u64,
}

#[derive(Clone, Default)]
struct Thread {
    /// Hits that the policy has not been told of, with their times.
    ring: Vec<(u64, u64)>,
    /// When the first access of its queue came, and how many more belong to that.
    queue: (u64, usize),
}

impl Cache {
    /// True: a hit.
    fn access(&mut self, key: u64) -> bool {
        self.now += 1;
        if self.policy.contains(key) {
            let thread = self.chance.below(self.threads.len() as u64) as usize;
            let Thread { ring, queue: (time, left) } = &mut self.threads[thread];
            if *left == 0 {
                (*time, *left) = (self.now, self.queue);
            }
            *left -= 1;
            ring.push((*time, key));
            if ring.len() >= self.notes {
                self.tell();
            }
            return true;
        }
        self.tell();
        if self.policy.len() >= self.capacity {
            self.policy.evict(Some(key));
        }
        self.policy.insert(key);
        false
    }

    fn tell(&mut self) {
        let mut hits: Vec<(u64, u64)> = self.threads.iter_mut().flat_map(|thread| thread.ring.drain(..)).collect();
        // Stable: what has one time is of one queue, and in its order.
        hits.sort_by_key(|&(time, _)| time);
        hits.into_iter().for_each(|(_, key)| self.policy.touch(key));
    }
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

//! Locks of blocks: whoever changes which page a block has, holds the block's lock. Readers never do.
//!
//! A lock is of all blocks of a leaf (and of other leaves that share it by their hash), so whole blocks are locked and a leaf has one writer.
//! Each carries the clock of versions for what fronts write to its blocks: a block's versions only grow, also when it has been evicted in between.

use crate::sync::{Mutex, MutexGuard, Padded, lock, prefetch};
use crate::tree::LEAF_BLOCKS;

/// Far more than there are threads.
const LOCKS: usize = if cfg!(loom) { 2 } else { 1024 };

pub struct Locks(Box<[Padded<Mutex<u32>>]>);

/// Locks of a range of blocks, given back when this is dropped.
pub struct Locked<'a> {
    /// With its place among all.
    first: (usize, MutexGuard<'a, u32>),
    /// Behind it, in ascending order, each once.
    others: Vec<(usize, MutexGuard<'a, u32>)>,
}

impl Locks {
    pub fn new() -> Locks {
        Locks((0..LOCKS).map(|_| Padded(Mutex::new(0))).collect())
    }

    /// Neighbouring leaves have different locks, and so do leaves at round distances.
    fn index(number: u64) -> usize {
        ((number ^ number >> 10 ^ number >> 20) % LOCKS as u64) as usize
    }

    /// Locks `blocks` blocks from `first` on; waits for whoever has one of them.
    pub fn lock(&self, first: u64, blocks: usize) -> Locked<'_> {
        let leaves = first / LEAF_BLOCKS..=(first + blocks as u64 - 1) / LEAF_BLOCKS;
        let held = |index: usize| (index, lock(&self.0[index].0));
        if leaves.start() == leaves.end() {
            return Locked { first: held(Locks::index(*leaves.start())), others: Vec::new() };
        }
        // One order for all, so nobody waits in a circle.
        let mut wanted: Vec<usize> = leaves.map(Locks::index).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let mut all = wanted.into_iter().map(held);
        Locked { first: all.next().expect("a range has a first leaf"), others: all.collect() }
    }

    /// Asks for the line of a block's lock.
    pub fn prefetch(&self, block: u64) {
        prefetch(&self.0[Locks::index(block / LEAF_BLOCKS)]);
    }

    /// Locks one block, unless somebody has it.
    pub fn try_lock(&self, block: u64) -> Option<Locked<'_>> {
        let index = Locks::index(block / LEAF_BLOCKS);
        Some(Locked { first: (index, self.0[index].0.try_lock().ok()?), others: Vec::new() })
    }
}

impl Locked<'_> {
    /// The version of the next write to a block that is locked.
    pub fn next_version(&mut self, block: u64) -> u32 {
        let index = Locks::index(block / LEAF_BLOCKS);
        let mut held = std::iter::once(&mut self.first).chain(&mut self.others);
        let (_, clock) = held.find(|(held, _)| *held == index).expect("a version is of a locked block");
        **clock = clock.wrapping_add(1);
        **clock
    }
}

/// Whether version `one` is newer than `other`: both of one block, and both in a ring, so no more than 2^31 apart.
pub fn is_newer(one: u32, other: u32) -> bool {
    (one.wrapping_sub(other) as i32) > 0
}

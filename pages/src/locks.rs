//! Locks of blocks: whoever changes which page a block has, holds the block's lock. Readers never do.
//!
//! A lock is of all blocks of a leaf (and of other leaves that share it by their hash), so whole blocks are locked and a leaf has one writer.
//! Each carries the clock of versions for its blocks: a block's versions only grow, also when it has been evicted in between.

use crate::sync::{Mutex, MutexGuard, Padded, lock, prefetch};
use crate::tree::LEAF_BLOCKS;

/// Far more than there are threads.
const LOCKS: usize = if cfg!(loom) { 2 } else { 1024 };
/// Locks that one holder takes at most: [`crate::WRITE_BLOCKS_MAX`] blocks lie in so many leaves.
pub const HELD_MAX: usize = (crate::WRITE_BLOCKS_MAX as u64).div_ceil(LEAF_BLOCKS) as usize + 1;

pub struct Locks(Box<[Padded<Mutex<u32>>]>);

/// Locks of a range of blocks, given back when this is dropped.
pub struct Locked<'a> {
    /// In ascending order, each once.
    held: [Option<(usize, MutexGuard<'a, u32>)>; HELD_MAX],
}

impl Locks {
    pub fn new() -> Locks {
        Locks((0..LOCKS).map(|_| Padded(Mutex::new(0))).collect())
    }

    /// Neighbouring leaves have different locks, and so do leaves at round distances.
    fn index(block: u64) -> usize {
        let number = block / LEAF_BLOCKS;
        ((number ^ number >> 10 ^ number >> 20) % LOCKS as u64) as usize
    }

    /// Locks `blocks` blocks from `first` on; waits for whoever has one of them.
    pub fn lock(&self, first: u64, blocks: usize) -> Locked<'_> {
        let last = first + blocks as u64 - 1;
        let mut wanted = [usize::MAX; HELD_MAX];
        (first / LEAF_BLOCKS..=last / LEAF_BLOCKS).zip(&mut wanted).for_each(|(number, index)| *index = Locks::index(number * LEAF_BLOCKS));
        // One order for all, so nobody waits in a circle.
        wanted.sort_unstable();
        let mut held = [const { None }; HELD_MAX];
        for place in 0..HELD_MAX {
            if wanted[place] != usize::MAX && (place == 0 || wanted[place] != wanted[place - 1]) {
                held[place] = Some((wanted[place], lock(&self.0[wanted[place]].0)));
            }
        }
        Locked { held }
    }

    /// Asks for the line of a block's lock.
    pub fn prefetch(&self, block: u64) {
        prefetch(&self.0[Locks::index(block)]);
    }

    /// Locks one block, unless somebody has it.
    pub fn try_lock(&self, block: u64) -> Option<Locked<'_>> {
        let index = Locks::index(block);
        let mut held = [const { None }; HELD_MAX];
        held[0] = Some((index, self.0[index].0.try_lock().ok()?));
        Some(Locked { held })
    }
}

impl Locked<'_> {
    /// The next version of a block that is locked.
    pub fn next_version(&mut self, block: u64) -> u32 {
        let index = Locks::index(block);
        let (_, clock) = self.held.iter_mut().flatten().find(|(held, _)| *held == index).expect("a version is of a locked block");
        **clock = clock.wrapping_add(1);
        **clock
    }
}

/// Whether version `one` is newer than `other`: both of one block, and both in memory, so no more than 2^31 apart.
pub fn is_newer(one: u32, other: u32) -> bool {
    (one.wrapping_sub(other) as i32) > 0
}

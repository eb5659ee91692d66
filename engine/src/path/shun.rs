//! Places that the origin does not take: a bad sector of it must not keep its neighbours from going home. What failed as a single block is
//! left out of the batches for a minute, stays dirty and readable, and is tried again then.

use std::collections::BTreeMap;

use crate::block::Block;
use crate::time::{Duration, Instant};

/// Before such a block is tried again.
const WAIT: Duration = Duration::from_secs(60);
/// Blocks remembered: an origin with more of them fails as a whole, and destaging backs off.
const BLOCKS_MAX: usize = 1024;

#[derive(Default)]
pub(super) struct Shunned {
    until: BTreeMap<Block, Instant>,
}

impl Shunned {
    /// The block has failed now. False: there are too many.
    pub fn insert(&mut self, block: Block, now: Instant) -> bool {
        self.until.retain(|_, until| *until > now);
        if self.until.len() >= BLOCKS_MAX {
            return false;
        }
        self.until.insert(block, now + WAIT);
        true
    }

    pub fn contains(&self, block: Block, now: Instant) -> bool {
        !self.until.is_empty() && self.until.get(&block).is_some_and(|until| *until > now)
    }

    /// When the next one is to be tried.
    pub fn next(&self, now: Instant) -> Option<Instant> {
        self.until.values().copied().filter(|until| *until > now).min()
    }

    /// Blocks that are left out.
    pub fn len(&self, now: Instant) -> u64 {
        self.until.values().filter(|until| **until > now).count() as u64
    }
}

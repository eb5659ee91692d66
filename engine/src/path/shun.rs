//! Places that the origin does not take: a bad sector of it must not keep its neighbours from going home. What failed as a single block is
//! left out of the batches for a second, longer each time, stays dirty and readable, and is tried again then.

use std::collections::BTreeMap;

use crate::block::Block;
use crate::time::{Duration, Instant};

/// Before such a block is tried again: the first time, and at most.
const WAIT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Blocks remembered: an origin with more of them fails as a whole, and destaging backs off.
const BLOCKS_MAX: usize = 1024;

#[derive(Default)]
pub(super) struct Shunned {
    /// Not before; and failures so far.
    until: BTreeMap<Block, (Instant, u32)>,
}

impl Shunned {
    /// The block has failed now. False: there are too many.
    pub fn insert(&mut self, block: Block, now: Instant) -> bool {
        // Those that have been left alone since are forgotten.
        self.until.retain(|_, (until, _)| *until + WAIT.1 > now);
        if self.until.len() >= BLOCKS_MAX && !self.until.contains_key(&block) {
            return false;
        }
        let (until, failures) = self.until.entry(block).or_insert((now, 0));
        *until = now + Duration((WAIT.0.0 << (*failures).min(16)).min(WAIT.1.0));
        *failures += 1;
        true
    }

    pub fn contains(&self, block: Block, now: Instant) -> bool {
        !self.until.is_empty() && self.until.get(&block).is_some_and(|(until, _)| *until > now)
    }

    /// Somebody waits for them: they may all be tried now. False: there are none that wait.
    pub fn try_now(&mut self, now: Instant) -> bool {
        let mut any = false;
        for (until, _) in self.until.values_mut().filter(|(until, _)| *until > now) {
            (*until, any) = (now, true);
        }
        any
    }

    /// Somebody waits for these.
    pub fn try_these_now(&mut self, block: Block, blocks: u64, now: Instant) {
        let these = self.until.range_mut(block..Block(block.0 + blocks));
        these.filter(|(_, (until, _))| *until > now).for_each(|(_, (until, _))| *until = now);
    }

    /// When the next one is to be tried.
    pub fn next(&self, now: Instant) -> Option<Instant> {
        self.until.values().map(|(until, _)| *until).filter(|until| *until > now).min()
    }

    /// Blocks that are left out.
    pub fn len(&self, now: Instant) -> u64 {
        self.until.values().filter(|(until, _)| *until > now).count() as u64
    }
}

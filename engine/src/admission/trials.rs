//! Trials: which blocks should be kept? Each [`Rule`] is tried all the time on a sample of the blocks, by keys alone, and the one that costs
//! least is followed.
//!
//!     read, written ──▶ of the sample? ──▶ a small cache for each rule ──▶ what it missed, and wrote
//!
//! A cache a hundredth as large that is asked for a hundredth of the blocks misses as often (Waldspurger, Saemundsson, Ahmad and Park, "Cache
//! modeling and optimization using miniature simulations", USENIX ATC 2017). A small one keeps what the large one would, block by block rather
//! than set by set: CLOCK, with ghosts.

use super::costs::MISS_COST;
use super::{Ghosts, Rule, ghosts};
use crate::block::Block;
use crate::policy::curve::hash;
use crate::policy::{Clock, Policy};

/// Blocks that a small cache has room for: a share of the large one, at least and at most so many.
const SHARE: u64 = 16;
const SMALLEST: u64 = 512;
const LARGEST: u64 = 4096;
/// A fill costs a small part of what a miss does: it wears the SSD out.
const FILL_COST: u64 = MISS_COST / 16;
/// Costs are counted by half after so many reads for each block that a small cache has room for.
const MEMORY: u64 = 32;
/// A lead is worth following from so many misses on, in shares of what a small cache has room for.
const LEAD: u64 = 32;

#[derive(Debug)]
pub struct Trials {
    /// Blocks whose hash is below are in the sample.
    below: u64,
    room: u64,
    /// One for each rule.
    caches: Vec<Small>,
    reads: u64,
}

/// One rule, and how it fares.
struct Small {
    rule: Rule,
    kept: Clock,
    ghosts: Ghosts,
    cost: u64,
}

impl std::fmt::Debug for Small {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}: {} kept, cost {}", self.rule, self.kept.len(), self.cost)
    }
}

impl Trials {
    /// For a cache of so many slots.
    pub fn new(slots: u64) -> Trials {
        let room = (slots / SHARE).clamp(SMALLEST, LARGEST).min(slots.max(1));
        // Hashes have 53 bits.
        let below = ((u128::from(room) << 53) / u128::from(slots.max(1))) as u64;
        let small = |rule| Small { rule, kept: Clock::new(room as usize), ghosts: ghosts(room), cost: 0 };
        Trials { below, room, caches: Rule::all().map(small).collect(), reads: 0 }
    }

    /// A client reads them, where a miss of one of them costs so much. Returns the rule to follow rather than `followed`, if there is a better one.
    #[inline]
    pub fn read(&mut self, block: Block, blocks: u64, is_sequential: bool, cost: u64, followed: Rule) -> Option<Rule> {
        let before = self.reads;
        for key in (block.0..block.0 + blocks).filter(|&key| hash(key) < self.below) {
            self.reads += 1;
            self.caches.iter_mut().for_each(|cache| cache.read(key, self.room, is_sequential, cost));
        }
        (self.reads > before).then(|| self.better_than(followed)).flatten()
    }

    /// A client writes them: they are in the cache, whatever it keeps of what is read.
    #[inline]
    pub fn write(&mut self, block: Block, blocks: u64) {
        for key in (block.0..block.0 + blocks).filter(|&key| hash(key) < self.below) {
            self.caches.iter_mut().for_each(|cache| cache.keep(key, self.room));
        }
    }

    #[cold]
    fn better_than(&mut self, followed: Rule) -> Option<Rule> {
        if self.reads >= MEMORY * self.room {
            self.reads = 0;
            self.caches.iter_mut().for_each(|cache| cache.cost /= 2);
        }
        let now = self.caches.iter().find(|cache| cache.rule == followed).expect("one of the rules is followed");
        let best = self.caches.iter().min_by_key(|cache| cache.cost).expect("there are rules");
        (now.cost - best.cost > self.room * MISS_COST / LEAD).then_some(best.rule)
    }

    /// Memory, in bytes.
    pub fn bytes(&self) -> u64 {
        self.caches.iter().map(|cache| cache.kept.bytes() + cache.ghosts.bytes()).sum()
    }
}

impl Small {
    #[cold]
    fn read(&mut self, key: u64, room: u64, is_sequential: bool, cost: u64) {
        if self.kept.contains(key) {
            return self.kept.touch(key);
        }
        self.cost += cost;
        let (may_keep, displaces) = (self.rule.sequences || !is_sequential, self.kept.len() as u64 >= room);
        if !displaces || may_keep && self.ghosts.note(key, 1) >= self.rule.touches {
            self.cost += FILL_COST;
            self.keep(key, room);
        }
    }

    #[cold]
    fn keep(&mut self, key: u64, room: u64) {
        if self.kept.contains(key) {
            return;
        }
        self.ghosts.remove(key);
        if self.kept.len() as u64 >= room {
            self.kept.evict(Some(key));
        }
        self.kept.insert(key);
    }
}

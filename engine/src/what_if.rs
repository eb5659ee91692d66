//! What another size of memory, or of the cache, would miss of this volume's reads: a curve for each tier, of a sample of the blocks.
//!
//!     every read ──▶ hash, below? ── no, mostly ──▶ nothing
//!                        └─ yes ──▶ curve of memory, curve of the cache
//!
//! What is kept there is what a tier keeps: what was read, and what was written (in memory only of small writes), but of what a long sequence
//! has brought only what the tier, as large as it is, had room for or keeps all the same. Only reads are counted. It knows neither what a policy
//! keeps better than LRU does, nor which misses admission does not keep, nor TRIM: so it is to be read beside what the tier did miss.
//!
//! Of reads that fronts answer from memory the engine hears late, and of those that their rings had no place for only the number: they are
//! counted like the ones beside them. Where nothing at all goes through the engine for long, that is most of them.

use crate::block::Block;
use crate::policy::curve::{Curve, hash};

/// A tier is told apart up to so many times its size.
const LARGER: u64 = 8;
/// A volume without memory is asked about one of this share of its cache.
const MEMORY_SHARE: u64 = 64;

/// By both tiers: what is no part of a long sequence.
pub const KEPT: [bool; 2] = [true; 2];

/// A tier of another size.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// Blocks that it has room for now.
    pub blocks: u64,
    /// Blocks that were read lately, about: what is long ago counts for less. Different ones among them, up to the largest size.
    pub accesses: u64,
    pub keys: u64,
    /// Share of the blocks that are looked at.
    pub rate: f64,
    /// How far a miss ratio may be off, in the same unit.
    pub error: f64,
    /// By size, ascending. None, while too few blocks were looked at to tell anything.
    pub points: Vec<Point>,
}

/// What LRU would miss with a tier of some size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    pub blocks: u64,
    /// Share of the blocks read, from 0 to 1.
    pub misses: f64,
    /// It is what a tier misses that is smaller or larger by no more than this share.
    pub size_error: f64,
}

/// Both tiers of a volume, and how well it is known.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecasts {
    pub block_bytes: u64,
    pub memory: Forecast,
    pub cache: Forecast,
    /// Blocks that fronts have read, and those of them that were not noted, since the start.
    pub of_fronts: u64,
    pub unnoted: u64,
}

/// A tier, as it would be.
struct Tier {
    curve: Curve,
    /// Room now, and the size that others are told as multiples of.
    blocks: u64,
    unit: u64,
}

impl Tier {
    fn new(blocks: u64, unit: u64) -> Tier {
        Tier { curve: Curve::up_to(LARGER * unit), blocks, unit }
    }

    fn forecast(&self) -> Forecast {
        let sizes = [self.unit / 8, self.unit / 4, self.unit / 2, self.unit, 2 * self.unit, 4 * self.unit, LARGER * self.unit];
        let least = if self.curve.is_known() { self.curve.blocks_min() } else { u64::MAX };
        let point = |blocks| Point { blocks, misses: self.curve.miss_ratio(blocks), size_error: self.curve.size_error(blocks) };
        Forecast {
            blocks: self.blocks,
            accesses: self.curve.accesses(),
            keys: self.curve.keys() as u64,
            rate: self.curve.rate(),
            error: self.curve.error(),
            points: sizes.into_iter().filter(|&size| size >= least).map(point).collect(),
        }
    }
}

/// The reads of a volume, as its tiers would see them.
pub struct WhatIf {
    memory: Tier,
    cache: Tier,
    /// Neither has a block in its sample whose hash is not below this.
    below: u64,
    /// What fronts have read of the sample, while the rest of it is being counted.
    heard: Vec<u64>,
}

impl WhatIf {
    /// Blocks that memory has room for, or 0, and that the cache has room for.
    pub fn new(memory: u64, cache: u64) -> WhatIf {
        let memory = Tier::new(memory, if memory > 0 { memory } else { (cache / MEMORY_SHARE).max(16) });
        let cache = Tier::new(cache, cache);
        WhatIf { below: memory.curve.below().max(cache.curve.below()), memory, cache, heard: Vec::new() }
    }

    /// A client's read of consecutive blocks; `keeps`: memory, and the cache, keep what it brings.
    #[inline]
    pub fn read(&mut self, block: Block, blocks: u64, keeps: [bool; 2]) {
        self.expect(blocks);
        for key in block.0..block.0 + blocks {
            if hash(key) < self.below {
                self.count(key, 1.0, keeps);
            }
        }
    }

    /// A client's write. `keeps`: memory keeps it, too.
    #[inline]
    pub fn write(&mut self, block: Block, blocks: u64, keeps: bool) {
        for key in block.0..block.0 + blocks {
            if hash(key) < self.below {
                self.keep(key, keeps);
            }
        }
    }

    /// A front has noted that it read this block.
    #[inline]
    pub fn hear(&mut self, key: u64) {
        if hash(key) < self.below {
            self.heard.push(key);
        }
    }

    /// So many were noted that were not counted yet, and so many not noted. False: none was.
    pub fn heard(&mut self, noted: u64, unnoted: u64) -> bool {
        if noted == 0 {
            return false;
        }
        self.expect(noted + unnoted);
        let times = (noted + unnoted) as f64 / noted as f64;
        for key in std::mem::take(&mut self.heard) {
            self.count(key, times, KEPT);
        }
        true
    }

    fn expect(&mut self, blocks: u64) {
        self.memory.curve.expect(blocks);
        self.cache.curve.expect(blocks);
    }

    #[cold]
    fn count(&mut self, key: u64, times: f64, keeps: [bool; 2]) {
        let hash = hash(key);
        for (curve, keeps) in [&mut self.memory.curve, &mut self.cache.curve].into_iter().zip(keeps) {
            if curve.samples(hash) {
                curve.count(key, times);
                if keeps || curve.knows(key) {
                    curve.keep(key, hash);
                }
            }
        }
    }

    #[cold]
    fn keep(&mut self, key: u64, keeps: bool) {
        let hash = hash(key);
        if keeps && self.memory.curve.samples(hash) {
            self.memory.curve.keep(key, hash);
        }
        if self.cache.curve.samples(hash) {
            self.cache.curve.keep(key, hash);
        }
    }

    /// Of memory and of the cache.
    pub fn forecasts(&self) -> [Forecast; 2] {
        [self.memory.forecast(), self.cache.forecast()]
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> u64 {
        self.memory.curve.bytes() + self.cache.curve.bytes() + (self.heard.capacity() * size_of::<u64>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thousandths(forecast: &Forecast, blocks: u64) -> u64 {
        let point = forecast.points.iter().find(|point| point.blocks == blocks).expect("one of its sizes");
        (point.misses * 1000.0).round() as u64
    }

    /// 100 blocks, again and again: a memory of 64 misses them all, one of twice that none but the first ones.
    #[test]
    fn a_loop_that_twice_the_memory_holds() {
        let mut what_if = WhatIf::new(64, 1024);
        (0..100).for_each(|_| (0..100).for_each(|key| what_if.read(Block(key), 1, KEPT)));
        let [memory, cache] = what_if.forecasts();
        assert_eq!((thousandths(&memory, 64), thousandths(&memory, 128), memory.accesses), (1_000, 10, 10_000));
        assert_eq!((thousandths(&cache, 128), thousandths(&cache, 1024)), (10, 10));
    }

    /// Of a large cache one block in a hundred and more is looked at: of a few blocks, none or two.
    #[test]
    fn a_few_blocks_of_a_sample_tell_nothing() {
        let mut what_if = WhatIf::new(64, 1 << 20);
        (0..10).for_each(|_| (0..100).for_each(|key| what_if.read(Block(key), 1, KEPT)));
        let [memory, cache] = what_if.forecasts();
        assert!(cache.rate < 0.01 && cache.points.is_empty() && cache.error <= 1.0 && memory.points.len() == 7, "{cache:?}");
        (0..100_000).for_each(|key| what_if.read(Block(key), 1, KEPT));
        let [_, cache] = what_if.forecasts();
        assert!(
            cache.points.len() == 7 && cache.points.iter().all(|point| point.size_error > 0.009 && point.size_error < 0.2),
            "{cache:?}"
        );
    }

    #[test]
    fn what_was_written_is_there_and_what_a_sequence_brings_is_not() {
        let mut what_if = WhatIf::new(64, 1024);
        what_if.write(Block(0), 8, true);
        what_if.write(Block(100), 8, false);
        what_if.read(Block(0), 8, KEPT);
        what_if.read(Block(100), 8, KEPT);
        what_if.read(Block(200), 8, [false; 2]);
        what_if.read(Block(200), 8, [false; 2]);
        let [memory, cache] = what_if.forecasts();
        assert_eq!((thousandths(&memory, 64), thousandths(&cache, 1024)), (750, 500));
        // Memory has room for the sequence.
        what_if.read(Block(300), 8, [true, false]);
        what_if.read(Block(300), 8, KEPT);
        let [memory, cache] = what_if.forecasts();
        assert_eq!((thousandths(&memory, 64), thousandths(&cache, 1024)), (667, 667));
    }

    #[test]
    fn what_fronts_did_not_note_counts_like_what_they_did() {
        let mut what_if = WhatIf::new(64, 1024);
        what_if.read(Block(1), 1, KEPT);
        assert!(!what_if.heard(0, 50), "of these nothing is known yet");
        what_if.hear(1);
        what_if.hear(1);
        assert!(what_if.heard(2, 97));
        assert_eq!((what_if.forecasts()[0].accesses, thousandths(&what_if.forecasts()[0], 64)), (100, 10));
    }
}

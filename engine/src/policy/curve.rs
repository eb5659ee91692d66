//! What another size of the cache would miss: the miss ratio of LRU at every size at once, from the stack distances of a sample of the keys
//! (Mattson and others, "Evaluation techniques for storage hierarchies", IBM Systems Journal 1970; Waldspurger, Park, Garthwaite and Ahmad,
//! "Efficient MRC construction with SHARDS", FAST 2015).
//!
//! A key is in the sample if its hash is small. The distance of an access, how many other keys were asked for since the last access of the same
//! one, is counted among the sampled keys and scaled up. At most [`SAMPLE_MAX`] keys are remembered: when there are more, those with the largest
//! hashes leave, and the rate sinks (the paper's fixed size). What the sample has too few or too many accesses for its rate is counted as
//! hits of the smallest cache (the paper's adjustment): it comes from keys that are asked for all the time.
//!
//! A curve of what goes on for ever ([`Curve::up_to`]) has a largest size instead, which nothing is told beyond. So the rate can stay: what was asked
//! for longest ago is forgotten, and a small cache before a large volume is seen as well as any. What was counted long ago counts for less and
//! less.
//!
//! Memory: some 90 bytes a remembered key, 1.5 MB at [`SAMPLE_MAX`], and 8 bytes for each of at most [`BUCKETS`] distances. An access that is not in
//! the sample costs a hash and a comparison.

use std::collections::{BTreeMap, BTreeSet};

use crate::number::NumberMap;

/// Keys that are remembered at most.
pub const SAMPLE_MAX: usize = 16_384;
/// The same of a curve with a largest size: of an eighth of that size there are 1,024.
pub const SAMPLE_UP_TO: u64 = 8_192;
/// Of a part of the keys, fewer than this tell nothing of all.
const KEYS_MIN: usize = 32;
/// Counts are halved when there are so many accesses for each key of the largest size, but not before there are some.
const MEMORY: u64 = 2;
const MEMORY_MIN: u64 = 65_536;
/// Distances are counted in so many steps, each by this share longer than the one before.
const BUCKETS: usize = 2_560;
const STEP: f64 = 1.01;

/// Misses of LRU at every size.
pub struct Curve {
    /// Keys whose hash is below this are in the sample.
    below: u64,
    /// When each sampled key was asked for last, on the clock of sampled accesses.
    last: NumberMap<u64, u32>,
    bound: Bound,
    times: Times,
    /// Sampled accesses by distance in blocks, each counted with the rate of its time.
    hits: Vec<f64>,
    /// Sampled accesses, likewise; all accesses.
    sampled: f64,
    accesses: u64,
    /// Everything is halved when there are so many.
    accesses_max: u64,
}

/// Which of the remembered keys leave when there are too many: the same keys in that order.
enum Bound {
    /// Those with the largest hashes. By hash.
    Rate(BTreeSet<(u64, u64)>),
    /// Those that were asked for longest ago, where there are more than so many. By time.
    Depth(usize, BTreeMap<u32, u64>),
}

impl Curve {
    /// Begins with this share of the keys, more than 0 and at most 1.
    ///
    /// # Panics
    /// If the share is none.
    pub fn new(rate: f64) -> Curve {
        assert!(rate > 0.0 && rate <= 1.0, "a share of {rate}");
        Curve {
            below: (rate * WHOLE) as u64,
            last: NumberMap::default(),
            bound: Bound::Rate(BTreeSet::new()),
            times: Times::new(MOMENTS * SAMPLE_MAX),
            hits: vec![0.0; BUCKETS],
            sampled: 0.0,
            accesses: 0,
            accesses_max: u64::MAX,
        }
    }

    /// Of caches up to so many blocks, and rather of what was asked for lately.
    pub fn up_to(blocks: u64) -> Curve {
        let keys = blocks.clamp(1, SAMPLE_UP_TO);
        let rate = keys as f64 / blocks.max(1) as f64;
        Curve {
            bound: Bound::Depth(keys as usize, BTreeMap::new()),
            times: Times::new(MOMENTS * keys as usize),
            accesses_max: (MEMORY * blocks).max(MEMORY_MIN),
            ..Curve::new(rate)
        }
    }

    /// Somebody asks for a key.
    pub fn touch(&mut self, key: u64) {
        self.expect(1);
        let hash = hash(key);
        if self.samples(hash) {
            self.count(key, 1.0);
            self.keep(key, hash);
        }
    }

    /// So many keys are asked for. Those of them that are in the sample are to be [counted](Curve::count).
    pub fn expect(&mut self, accesses: u64) {
        self.accesses += accesses;
        if self.accesses >= self.accesses_max {
            self.accesses /= 2;
            self.sampled /= 2.0;
            self.hits.iter_mut().for_each(|hits| *hits /= 2.0);
        }
    }

    /// Is a key with this [`hash`] in the sample?
    pub fn samples(&self, hash: u64) -> bool {
        hash < self.below
    }

    /// Hashes from here on are not in the sample, nor will be.
    pub fn below(&self) -> u64 {
        self.below
    }

    /// Is it remembered?
    pub fn knows(&self, key: u64) -> bool {
        self.last.contains_key(&key)
    }

    /// A key of the sample is asked for, so often (an access that stands for others is more than one).
    pub fn count(&mut self, key: u64, times: f64) {
        let scale = 1.0 / self.rate();
        self.sampled += scale * times;
        if let Some(&before) = self.last.get(&key) {
            let between = self.times.marked_after(before);
            self.hits[bucket((f64::from(between) + 1.0) * scale)] += scale * times;
        }
    }

    /// From now on it is the key that was asked for last.
    pub fn keep(&mut self, key: u64, hash: u64) {
        if self.times.is_full() {
            self.renumber();
        }
        let now = self.times.next();
        let before = self.last.insert(key, now);
        if let Some(before) = before {
            self.times.unmark(before);
        }
        self.times.mark(now);
        match &mut self.bound {
            Bound::Rate(keys) => {
                if before.is_none() {
                    keys.insert((hash, key));
                }
                while self.last.len() > SAMPLE_MAX {
                    self.shrink();
                }
            }
            Bound::Depth(most, keys) => {
                if let Some(before) = before {
                    keys.remove(&before);
                }
                keys.insert(now, key);
                if keys.len() > *most {
                    let (oldest, key) = keys.pop_first().expect("there are some");
                    self.last.remove(&key);
                    self.times.unmark(oldest);
                }
            }
        }
    }

    /// The keys with the largest hash leave the sample.
    fn shrink(&mut self) {
        let Bound::Rate(keys) = &mut self.bound else { unreachable!("the rate of a largest size stays") };
        self.below = keys.last().expect("there are some").0;
        while let Some(&(hash, key)) = keys.last()
            && hash >= self.below
        {
            keys.pop_last();
            let time = self.last.remove(&key).expect("it is remembered");
            self.times.unmark(time);
        }
    }

    /// The times of the remembered keys move together: only their order counts.
    fn renumber(&mut self) {
        let keys: BTreeMap<u32, u64> = match &self.bound {
            Bound::Rate(keys) => keys.iter().map(|&(_, key)| (self.last[&key], key)).collect(),
            Bound::Depth(_, keys) => keys.clone(),
        };
        self.times = Times::new(self.times.moments());
        let keys: BTreeMap<u32, u64> = keys.into_values().map(|key| (self.times.next(), key)).collect();
        for (&time, &key) in &keys {
            self.times.mark(time);
            self.last.insert(key, time);
        }
        if let Bound::Depth(_, by_time) = &mut self.bound {
            *by_time = keys;
        }
    }

    /// Share of the keys that are in the sample now.
    pub fn rate(&self) -> f64 {
        self.below as f64 / WHOLE
    }

    /// All accesses.
    pub fn accesses(&self) -> u64 {
        self.accesses
    }

    /// Keys that are remembered.
    pub fn remembered(&self) -> usize {
        self.last.len()
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> u64 {
        /// In the order, nodes that are two thirds full.
        const ORDERED: usize = 24;
        let keys = self.last.capacity() * size_of::<(u64, u32)>() + self.last.len() * ORDERED;
        (keys + self.times.sums.capacity() * size_of::<u32>() + self.hits.len() * size_of::<f64>()) as u64
    }

    /// Different keys that were asked for, about; with a largest size, of those that are within it.
    pub fn keys(&self) -> f64 {
        self.last.len() as f64 / self.rate()
    }

    /// Has the sample seen enough to tell something?
    pub fn is_known(&self) -> bool {
        self.is_whole() || self.seen() >= KEYS_MIN as f64
    }

    /// Keys that are remembered, or accesses in the sample where those are fewer: a key may be [kept](Curve::keep) that nobody asked for.
    fn seen(&self) -> f64 {
        (self.last.len() as f64).min(self.sampled * self.rate())
    }

    /// Is every key in the sample?
    fn is_whole(&self) -> bool {
        self.below as f64 >= WHOLE
    }

    /// Does a cache of so many blocks keep all that is remembered?
    fn keeps_all(&self, blocks: u64) -> bool {
        blocks as f64 >= self.keys().round()
    }

    /// What a cache of so many blocks would have missed, 0 to 1, about: within [`Curve::error`] of what one misses that is smaller or larger by no
    /// more than [`Curve::size_error`].
    pub fn miss_ratio(&self, blocks: u64) -> f64 {
        if self.accesses == 0 || blocks == 0 {
            return 1.0;
        }
        let near = if self.keeps_all(blocks) {
            self.hits.iter().sum::<f64>()
        } else {
            // Within a step the hits are spread evenly over its lengths.
            let last = bucket(blocks as f64);
            let (start, end) = (length(last), length(last + 1));
            let within = ((blocks as f64 + 1.0 - start) / (end - start)).clamp(0.0, 1.0);
            self.hits[..last].iter().sum::<f64>() + self.hits[last] * within
        };
        let hits = near + (self.accesses as f64 - self.sampled);
        (1.0 - hits / self.accesses as f64).clamp(0.0, 1.0)
    }

    /// Smaller caches than this the sample does not tell apart: a few of its keys stand for all of theirs.
    pub fn blocks_min(&self) -> u64 {
        if self.is_whole() { 1 } else { (KEYS_MIN as f64 / self.rate()).ceil() as u64 }
    }

    /// How far a size may be off, as a share of it: what is read at one size may be true of another one so near, which matters where the curve is
    /// steep (a loop that just fits). A step, and two standard deviations of how many keys of such a cache are in the sample. Of all keys
    /// small sizes are exact, as every distance has a step, and so are those that keep everything.
    pub fn size_error(&self, blocks: u64) -> f64 {
        let step = STEP - 1.0;
        match self.is_whole() {
            true if blocks < EXACT as u64 || self.keeps_all(blocks) => 0.0,
            true => step,
            false => (step + 2.0 / (blocks as f64 * self.rate()).sqrt()).min(1.0),
        }
    }

    /// How far a miss ratio of [`Curve::blocks_min`] or more may be off, in the same unit, from that of a size within [`Curve::size_error`]: two over
    /// the root of the remembered keys (or of the accesses to them, if those are fewer), which is four standard deviations if all keys were asked for
    /// equally often, and leaves half of that for some being asked for more; and half a point for the steps. A single key with a large part of all
    /// accesses is more than that allows for.
    pub fn error(&self) -> f64 {
        const STEPS: f64 = 0.005;
        if self.is_whole() { STEPS } else { (STEPS + 2.0 / self.seen().max(1.0).sqrt()).min(1.0) }
    }
}

/// Distances below this have a step each.
const EXACT: usize = 64;

fn bucket(distance: f64) -> usize {
    let distance = distance.max(1.0);
    if distance < EXACT as f64 {
        return distance as usize;
    }
    (EXACT + ((distance / EXACT as f64).ln() / STEP.ln()) as usize).min(BUCKETS - 1)
}

/// The shortest distance of a step.
fn length(bucket: usize) -> f64 {
    if bucket < EXACT { bucket as f64 } else { EXACT as f64 * STEP.powf((bucket - EXACT) as f64) }
}

/// Hashes are below this.
const WHOLE: f64 = (1u64 << 53) as f64;

/// By which keys are in a sample or not.
#[inline]
pub fn hash(key: u64) -> u64 {
    let mixed = (key ^ key >> 32).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let mixed = (mixed ^ mixed >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    (mixed ^ mixed >> 33) >> 11
}

/// Which moments of the clock are the last of some key, and how many of those came after one: sums over powers of two (Fenwick, "A new data
/// structure for cumulative frequency tables", Software: Practice and Experience 1994).
struct Times {
    sums: Vec<u32>,
    marked: u32,
    next: u32,
}

/// Moments for each key that is remembered, until the clock is set back.
const MOMENTS: usize = 4;

impl Times {
    fn new(moments: usize) -> Times {
        Times { sums: vec![0; moments + 1], marked: 0, next: 0 }
    }
    fn moments(&self) -> usize {
        self.sums.len() - 1
    }
    fn is_full(&self) -> bool {
        self.next as usize == self.moments()
    }
    fn next(&mut self) -> u32 {
        self.next += 1;
        self.next - 1
    }
    fn mark(&mut self, time: u32) {
        self.marked += 1;
        self.add(time, 1);
    }
    fn unmark(&mut self, time: u32) {
        self.marked -= 1;
        self.add(time, u32::MAX);
    }
    /// A wrapping sum: `u32::MAX` takes one away.
    fn add(&mut self, time: u32, what: u32) {
        let mut at = time as usize + 1;
        while at < self.sums.len() {
            self.sums[at] = self.sums[at].wrapping_add(what);
            at += at & at.wrapping_neg();
        }
    }
    fn marked_after(&self, time: u32) -> u32 {
        let (mut at, mut sum) = (time as usize + 1, 0u32);
        while at > 0 {
            sum = sum.wrapping_add(self.sums[at]);
            at -= at & at.wrapping_neg();
        }
        self.marked - sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Lru, Policy};

    fn exact(capacity: usize, keys: &[u64]) -> f64 {
        let mut lru = Lru::new(capacity);
        let mut misses = 0;
        for &key in keys {
            if lru.contains(key) {
                lru.touch(key);
                continue;
            }
            misses += 1;
            if lru.len() >= capacity {
                lru.evict(Some(key));
            }
            lru.insert(key);
        }
        f64::from(misses) / keys.len() as f64
    }

    /// Skewed: squares of even draws.
    fn keys(count: u64, of: u64) -> Vec<u64> {
        let draw = |i: u64| hash(i ^ 0x5bd1_e995) as f64 / WHOLE;
        (0..count).map(|i| (draw(i).powi(3) * of as f64) as u64).collect()
    }

    fn check(rate: f64, keys: &[u64], capacities: &[usize]) -> Curve {
        let mut curve = Curve::new(rate);
        keys.iter().for_each(|&key| curve.touch(key));
        for &capacity in capacities {
            let (found, off) = (curve.miss_ratio(capacity as u64), curve.size_error(capacity as u64));
            let [most, least] = [1.0 - off, 1.0 + off].map(|share| exact((capacity as f64 * share).round() as usize, keys));
            let band = least - curve.error()..=most + curve.error();
            assert!(band.contains(&found), "{capacity} blocks at {rate}: {found}, not in {band:?}");
        }
        curve
    }

    #[test]
    fn without_sampling_it_is_lru_at_every_size() {
        let keys = keys(100_000, 5_000);
        let curve = check(1.0, &keys, &[1, 2, 10, 63, 64, 65, 100, 500, 1_000, 2_000, 5_000, 100_000]);
        assert_eq!(curve.keys() as usize, curve.remembered());
        // Below the first step every size is exact.
        for capacity in [1, 5, 33, 63] {
            assert!((curve.miss_ratio(capacity) - exact(capacity as usize, &keys)).abs() < 1e-9, "{capacity}");
        }
        let loops: Vec<u64> = (0..20_000).map(|i| i % 50).collect();
        check(1.0, &loops, &[10, 49, 50, 51]);
    }

    /// A loop is missed whole or not at all, so a size at which it just fits is where steps show.
    #[test]
    fn what_keeps_every_key_misses_none_again() {
        for (length, rate) in [(63, 1.0), (64, 1.0), (65, 1.0), (1_011, 1.0), (9_999, 1.0), (50_000, 1.0), (20_000, 0.1)] {
            let keys: Vec<u64> = (0..3 * length).map(|i| i % length).collect();
            let curve = check(rate, &keys, &[length as usize / 10, length as usize / 2, length as usize * 2]);
            let all = curve.keys().round() as u64;
            assert!((curve.miss_ratio(all) - 1.0 / 3.0).abs() < 0.02, "{length} at {rate}: {} at {all}", curve.miss_ratio(all));
            let off = curve.size_error(all);
            assert!(
                ((all as f64 * (1.0 - off)).floor() as u64..=(all as f64 * (1.0 + off)).ceil() as u64).contains(&length),
                "{length}: {all}"
            );
            assert_eq!(off == 0.0, curve.rate() == 1.0, "all that there are is no sample");
        }
    }

    #[test]
    fn next_to_no_keys_tell_nothing() {
        let mut curve = Curve::new(0.01);
        (0..1_000).for_each(|key| curve.touch(key));
        assert!(!curve.is_known() && curve.remembered() < KEYS_MIN, "{}", curve.remembered());
        (0..10_000).for_each(|key| curve.touch(key));
        assert!(curve.is_known() && curve.error() < 0.5, "{}", curve.remembered());
        let mut few = Curve::new(1.0);
        few.touch(1);
        assert!(few.is_known() && Curve::new(0.01).error() <= 1.0);
        // What was written and not asked for tells nothing of what is asked for.
        let mut written = Curve::new(0.01);
        for key in 0..100_000 {
            if written.samples(hash(key)) {
                written.keep(key, hash(key));
            }
        }
        (0..300).for_each(|key| written.touch(key));
        assert!(written.remembered() > 20 * KEYS_MIN && !written.is_known() && written.error() > 0.5, "{}", written.error());
    }

    #[test]
    fn a_sample_is_within_its_error() {
        check(0.1, &keys(400_000, 60_000), &[100, 1_000, 5_000, 20_000, 60_000]);
    }

    #[test]
    fn memory_is_bounded_and_the_rate_sinks() {
        let keys = keys(600_000, 400_000);
        let curve = check(1.0, &keys, &[1_000, 10_000, 50_000, 200_000]);
        assert!(curve.remembered() <= SAMPLE_MAX && curve.rate() < 0.5, "{} at {}", curve.remembered(), curve.rate());
        let mut different = keys;
        different.sort_unstable();
        different.dedup();
        assert!((curve.keys() / different.len() as f64 - 1.0).abs() < 0.05, "{} of {}", curve.keys(), different.len());
    }

    /// Two loads, one after the other, of four times as many blocks as it is asked about, or as many as it can be.
    #[test]
    fn with_a_largest_size_it_tells_of_what_happens_now_and_stays_small() {
        let (small, large) = (keys(2_000_000, 40_000), keys(2_000_000, 400_000));
        let mut curve = Curve::up_to(100_000);
        let rate = curve.rate();
        small.iter().for_each(|&key| curve.touch(key + (1 << 40)));
        large.iter().for_each(|&key| curve.touch(key));
        assert!(curve.remembered() <= SAMPLE_UP_TO as usize && curve.rate() == rate && curve.bytes() < 1 << 20, "{}", curve.bytes());
        for capacity in [1_000, 5_000, 25_000, 100_000] {
            let (found, wanted) = (curve.miss_ratio(capacity), exact(capacity as usize, &large));
            assert!((found - wanted).abs() < curve.error(), "{capacity} blocks: {found}, not {wanted}");
        }
    }

    #[test]
    fn what_is_kept_without_being_asked_for_is_a_hit_later_and_no_access() {
        let mut curve = Curve::up_to(10);
        curve.keep(1, hash(1));
        curve.touch(1);
        curve.expect(1);
        curve.count(2, 1.0);
        assert_eq!((curve.accesses(), curve.miss_ratio(1), curve.knows(2)), (2, 0.5, false));
        (100..110).for_each(|key| curve.keep(key, hash(key)));
        assert!(!curve.knows(1) && curve.knows(100) && curve.remembered() == 10);
    }

    #[test]
    fn nothing_is_known_of_nothing() {
        let curve = Curve::new(0.01);
        assert_eq!((curve.miss_ratio(0), curve.miss_ratio(10), curve.accesses()), (1.0, 1.0, 0));
    }
}

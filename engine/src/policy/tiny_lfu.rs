//! W-TinyLFU: what leaves a small window stays only if it was asked for more often, of late, than what would have to go for it; how often, a
//! sketch of small counters says (Einziger, Friedman and Manes, "TinyLFU: a highly efficient cache admission policy", ACM Transactions on
//! Storage 2017). A window of a hundredth; of the rest, four fifths are protected: asked for again while they were on probation.

use super::Policy;
use super::lists::Lists;

const WINDOW: usize = 0;
const PROBATION: usize = 1;
const PROTECTED: usize = 2;

/// Of a hundred places, those of the window; of a hundred others, those that are protected.
const WINDOW_PERCENT: usize = 1;
const PROTECTED_PERCENT: usize = 80;

pub struct TinyLfu {
    keys: Lists<3>,
    often: Sketch,
    window_max: usize,
    protected_max: usize,
}

impl TinyLfu {
    pub fn new(capacity: usize) -> TinyLfu {
        let window_max = (capacity * WINDOW_PERCENT / 100).max(1);
        let protected_max = capacity.saturating_sub(window_max) * PROTECTED_PERCENT / 100;
        TinyLfu { keys: Lists::new(capacity), often: Sketch::new(capacity), window_max, protected_max }
    }

    /// The newest of the protected ones; if they are too many, the oldest is on probation again.
    fn protect(&mut self, key: u64) {
        let at = self.keys.find(key).expect("it is kept");
        self.keys.renew(PROTECTED, at);
        if self.keys.len(PROTECTED) > self.protected_max {
            let oldest = self.keys.oldest(PROTECTED).expect("there are some");
            self.keys.renew(PROBATION, oldest);
        }
    }
}

impl Policy for TinyLfu {
    fn contains(&self, key: u64) -> bool {
        self.keys.find(key).is_some()
    }
    fn touch(&mut self, key: u64) {
        let Some(at) = self.keys.find(key) else { return };
        self.often.note(key);
        match self.keys.list(at) {
            WINDOW => self.keys.renew(WINDOW, at),
            _ => self.protect(key),
        }
    }
    /// The oldest of the window, or the oldest of the others, whichever was asked for less often.
    fn evict(&mut self, _comes: Option<u64>) -> Option<u64> {
        let rest = self.keys.oldest(PROBATION).or(self.keys.oldest(PROTECTED));
        let candidate = self.keys.oldest(WINDOW).filter(|_| self.keys.len(WINDOW) >= self.window_max);
        let gone = match (candidate, rest) {
            (Some(candidate), Some(victim)) => {
                let is_more = self.often.count(self.keys.key(candidate)) > self.often.count(self.keys.key(victim));
                if is_more {
                    self.keys.renew(PROBATION, candidate);
                    victim
                } else {
                    candidate
                }
            }
            (Some(only), None) | (None, Some(only)) => only,
            (None, None) => self.keys.oldest(WINDOW)?,
        };
        Some(self.keys.remove(gone))
    }
    fn insert(&mut self, key: u64) {
        self.often.note(key);
        self.keys.add(WINDOW, key, ());
        // As long as there is room, nobody has to be better than anybody.
        if self.keys.len(WINDOW) > self.window_max
            && let Some(oldest) = self.keys.oldest(WINDOW)
        {
            self.keys.renew(PROBATION, oldest);
        }
    }
    fn remove(&mut self, key: u64) {
        if let Some(at) = self.keys.find(key) {
            self.keys.remove(at);
        }
    }
    fn len(&self) -> usize {
        (WINDOW..=PROTECTED).map(|list| self.keys.len(list)).sum()
    }
    fn bytes(&self) -> u64 {
        self.keys.bytes() + (self.often.words.len() * size_of::<u64>()) as u64
    }
}

/// Counters up to 15, four for each key; the least of them is how often it was asked for, or more where others share all four (count-min).
struct Sketch {
    /// Sixteen counters each.
    words: Vec<u64>,
    /// Notes since all counters were halved, and after how many they are: what was is forgotten.
    noted: usize,
    noted_max: usize,
}

const ROWS: u64 = 4;
const COUNT_MAX: u64 = 15;
/// Counters for each place, and notes for each place until they are halved.
const COUNTERS: usize = 64;
const SAMPLE: usize = 10;

impl Sketch {
    fn new(capacity: usize) -> Sketch {
        Sketch { words: vec![0; capacity.max(16) * COUNTERS / 16], noted: 0, noted_max: SAMPLE * capacity.max(1) }
    }

    /// Word and shift of a key's counter in this row.
    fn place(&self, key: u64, row: u64) -> (usize, u64) {
        let mixed = (key ^ row.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 29).wrapping_mul(0x94d0_49bb_1331_11eb);
        let mixed = mixed ^ mixed >> 32;
        let word = ((mixed >> u32::BITS) * self.words.len() as u64) >> u32::BITS;
        (word as usize, (mixed & 15) * 4)
    }

    fn count(&self, key: u64) -> u64 {
        let counter = |(word, shift): (usize, u64)| self.words[word] >> shift & COUNT_MAX;
        (0..ROWS).map(|row| counter(self.place(key, row))).min().expect("there are rows")
    }

    fn note(&mut self, key: u64) {
        let least = self.count(key);
        for row in 0..ROWS {
            let (word, shift) = self.place(key, row);
            if least < COUNT_MAX && self.words[word] >> shift & COUNT_MAX == least {
                self.words[word] += 1 << shift;
            }
        }
        self.noted += 1;
        if self.noted >= self.noted_max {
            self.noted /= 2;
            self.words.iter_mut().for_each(|word| *word = *word >> 1 & 0x7777_7777_7777_7777);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sketch_counts_never_less_and_forgets_by_halves() {
        let mut sketch = Sketch::new(1_000);
        for key in 0..600 {
            (0..=key % 7).for_each(|_| sketch.note(key));
        }
        assert!((0..600).all(|key| sketch.count(key) > key % 7));
        assert_eq!((0..600).filter(|key| sketch.count(*key) == key % 7 + 1).count(), 600);
        assert!((1_000..100_000).filter(|&key| sketch.count(key) > 0).count() < 8);
        (0..20).for_each(|_| sketch.note(7));
        assert_eq!(sketch.count(7), COUNT_MAX);
        (0..10_000).for_each(|i| sketch.note(10_000 + i));
        assert!(sketch.count(7) < COUNT_MAX);
    }
}

//! Ghosts: keys that are not in a cache, and how often they were asked for lately. Two bytes for each: a fingerprint, and some bits of a count.
//!
//! A key's hash says which row its ghost is in, and each row is a queue, the newest first. So each forgets its oldest one; all of them together
//! forget roughly the oldest, and exactly that where there is one row. A key may be taken for another one of its row: with rows of 8 and counts
//! of 3 bits once in a thousand times, half as often with rows of 32 that do not count.

use crate::number::spread;

/// Each with a count of so many bits.
#[derive(Clone, Debug)]
pub struct Ghosts<const COUNT_BITS: u32> {
    /// One row after the other. A ghost is its fingerprint, which is not 0, and its count below that; behind the last of a row there is 0.
    ghosts: Vec<u16>,
    row: usize,
}

impl<const COUNT_BITS: u32> Ghosts<COUNT_BITS> {
    const COUNT_MAX: u32 = (1 << COUNT_BITS) - 1;

    /// Of so many keys, or up to one more in each row, of at most `row` each.
    pub fn new(keys: u64, row: usize) -> Self {
        let keys = keys as usize;
        let rows = keys.div_ceil(row).max(1);
        let row = keys.div_ceil(rows).max(1);
        Ghosts { ghosts: vec![0; rows * row], row }
    }

    /// A key becomes the newest of its row. How often it was asked for, so many times more included, as far as the bits count.
    pub fn note(&mut self, key: u64, times: u32) -> u32 {
        let (row, fingerprint) = self.row_of(key);
        let found = row.iter().position(|ghost| ghost >> COUNT_BITS == fingerprint);
        let before = found.map_or(0, |at| u32::from(row[at]) & Self::COUNT_MAX);
        let count = (before + times).min(Self::COUNT_MAX);
        let last = row.len() - 1;
        row[..=found.unwrap_or(last)].rotate_right(1);
        row[0] = fingerprint << COUNT_BITS | count as u16;
        count
    }

    /// A key is in the cache now. Was it a ghost?
    pub fn remove(&mut self, key: u64) -> bool {
        let (row, fingerprint) = self.row_of(key);
        let found = row.iter().position(|ghost| ghost >> COUNT_BITS == fingerprint);
        if let Some(at) = found {
            row[at..].rotate_left(1);
            *row.last_mut().expect("a row has a place") = 0;
        }
        found.is_some()
    }

    fn row_of(&mut self, key: u64) -> (&mut [u16], u16) {
        let hash = spread(key);
        let rows = (self.ghosts.len() / self.row) as u128;
        let first = ((u128::from(hash) * rows) >> 64) as usize * self.row;
        // Of the low bits, on which the row does not depend.
        let fingerprint = hash as u16 >> COUNT_BITS;
        (&mut self.ghosts[first..first + self.row], fingerprint.max(1))
    }

    /// Memory, in bytes.
    pub fn bytes(&self) -> u64 {
        (self.ghosts.capacity() * size_of::<u16>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_counted_until_it_is_removed() {
        let mut ghosts: Ghosts<3> = Ghosts::new(1_000, 8);
        assert_eq!([1, 1, 3, 9].map(|times| ghosts.note(7, times)), [1, 2, 5, 7]);
        assert_eq!(ghosts.note(8, 1), 1);
        assert!(ghosts.remove(7) && !ghosts.remove(7) && !ghosts.remove(9));
        assert_eq!((ghosts.note(7, 1), ghosts.note(8, 1)), (1, 2));
    }

    #[test]
    fn one_row_remembers_the_last_ones_and_no_others() {
        let mut ghosts: Ghosts<0> = Ghosts::new(20, 32);
        (0..50).for_each(|key| _ = ghosts.note(key, 1));
        assert!(ghosts.remove(35));
        ghosts.note(50, 1);
        assert!((30..=50).filter(|&key| key != 35).all(|key| ghosts.remove(key)), "the place of 35 was free");
        assert!((0..=50).all(|key| !ghosts.remove(key)));
    }

    /// Of keys that come one after the other, so far apart: those of the last half of what is remembered, those that came half as many before that,
    /// and others.
    fn remembered<const COUNT_BITS: u32>(keys: u64, row: usize, stride: u64) -> [f64; 3] {
        let mut ghosts: Ghosts<COUNT_BITS> = Ghosts::new(keys, row);
        assert!(ghosts.bytes() <= 2 * (keys + keys / row as u64 + 1));
        let key = |number: u64| number * stride;
        (0..10 * keys).for_each(|number| _ = ghosts.note(key(number), 1));
        let half = keys / 2;
        let mut share = |numbers: std::ops::Range<u64>| {
            let count = (numbers.end - numbers.start) as f64;
            numbers.filter(|&number| ghosts.remove(key(number))).count() as f64 / count
        };
        let others = share(1 << 40..(1 << 40) + 20 * keys);
        [share(10 * keys - half..10 * keys), share(10 * keys - 4 * half..10 * keys - 3 * half), others]
    }

    #[test]
    fn the_newest_are_remembered_and_hardly_any_is_taken_for_another() {
        // What file systems and loops are likely to have, and what a product with the golden ratio would not spread.
        for stride in [1, 2, 8, 64, 3_948, 4_096, 46_368, 3_328_160] {
            for [last, before, others] in [remembered::<3>(8_000, 8, stride), remembered::<0>(10_000, 32, stride)] {
                let is_rare = (0.0001..0.0015).contains(&others);
                assert!(last > 0.95 && before < 0.05 && is_rare, "{stride}: {last}, {before}, {others}");
            }
        }
    }
}

//! What the slots of one set hold, as kept in memory: 8 bytes a slot, 10 on a volume of more than 2^32 blocks (16 TiB).
//! Millions of them are most of the engine's memory, and recovery writes each once.

use crate::cache::format::Entry;

/// Has a volume of so many blocks numbers that need the high half?
pub(super) fn is_wide(blocks: u64) -> bool {
    blocks > 1 << 32
}

/// Block and checksum of each slot, from the first one on.
#[derive(Default)]
pub(super) struct Slots {
    /// Checksum, and the low half of the block below it.
    low: Vec<u64>,
    /// The high half, on volumes that need it.
    high: Option<Box<High>>,
}

/// A place for each slot of the set.
struct High(Box<[u16]>);

impl Slots {
    pub fn len(&self) -> usize {
        self.low.len()
    }

    /// Empty, with room for `slots` slots.
    pub fn begin(&mut self, slots: usize, wide: bool) {
        self.low.clear();
        self.low.reserve_exact(slots);
        self.high = wide.then(|| Box::new(High(vec![0; slots].into())));
    }
    /// So many slots of which nothing is known.
    pub fn resize(&mut self, slots: usize, wide: bool) {
        self.begin(slots, wide);
        self.low.resize(slots, 0);
    }

    pub fn push(&mut self, entry: &Entry) {
        self.low.push(0);
        self.set(self.low.len() as u32 - 1, entry);
    }
    pub fn set(&mut self, slot: u32, entry: &Entry) {
        self.low[slot as usize] = low_of(entry);
        if let Some(high) = &mut self.high {
            high.0[slot as usize] = high_of(entry);
        }
    }
    /// The next ones, at once.
    pub fn extend(&mut self, entries: impl Iterator<Item = Entry> + Clone) {
        let next = self.low.len();
        if let Some(high) = &mut self.high {
            high.0[next..].iter_mut().zip(entries.clone()).for_each(|(high, entry)| *high = high_of(&entry));
        }
        self.low.extend(entries.map(|entry| low_of(&entry)));
    }

    #[inline]
    pub fn block(&self, slot: u32) -> u64 {
        let high = self.high.as_ref().map_or(0, |high| u64::from(high.0[slot as usize]));
        high << 32 | u64::from(self.low[slot as usize] as u32)
    }
    #[inline]
    pub fn crc(&self, slot: u32) -> u32 {
        (self.low[slot as usize] >> 32) as u32
    }
    pub fn set_crc(&mut self, slot: u32, crc: u32) {
        let low = &mut self.low[slot as usize];
        *low = u64::from(crc) << 32 | u64::from(*low as u32);
    }

    /// Bytes that there is room for.
    pub fn bytes(&self) -> usize {
        self.low.capacity() * size_of::<u64>() + self.high.as_ref().map_or(0, |high| size_of::<High>() + size_of_val(&high.0[..]))
    }
}

fn low_of(entry: &Entry) -> u64 {
    u64::from(entry.crc) << 32 | u64::from(entry.block.0 as u32)
}
fn high_of(entry: &Entry) -> u16 {
    (entry.block.0 >> 32) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::{Atoms, Block};
    use proptest::prelude::*;

    fn entry(block: u64, crc: u32) -> Entry {
        Entry { block: Block(block), valid: Atoms::first(8), crc }
    }

    proptest! {
        #[test]
        fn slots_say_what_they_were_told(told in prop::collection::vec((0u64..1 << 48, any::<u32>(), 0usize..64), 1..64), wide: bool) {
            let block = |block: u64| if wide { block } else { block % (1 << 32) };
            let mut slots = Slots::default();
            slots.begin(64, wide);
            let mut expected: Vec<(u64, u32)> = told.iter().map(|&(number, crc, _)| (block(number), crc)).collect();
            // Two thirds of them in two runs, the others one by one.
            let third = expected.len() / 3;
            let (first, rest) = expected.split_at(2 * third);
            first.chunks(third.max(1)).for_each(|run| slots.extend(run.iter().map(|&(block, crc)| entry(block, crc))));
            rest.iter().for_each(|&(block, crc)| slots.push(&entry(block, crc)));
            for &(number, crc, at) in &told {
                let at = at % expected.len();
                match crc % 3 {
                    0 => slots.set(at as u32, &entry(block(number), crc)),
                    1 => slots.set_crc(at as u32, crc),
                    _ => continue,
                }
                expected[at] = (if crc % 3 == 0 { block(number) } else { expected[at].0 }, crc);
            }
            let got: Vec<(u64, u32)> = (0..slots.len() as u32).map(|slot| (slots.block(slot), slots.crc(slot))).collect();
            prop_assert_eq!(got, expected);
            prop_assert_eq!(slots.bytes(), if wide { 64 * 10 + size_of::<High>() } else { 64 * 8 });
        }
    }
}

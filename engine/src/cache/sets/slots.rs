//! What the slots of one set hold, as kept in memory: 8 bytes a slot, 10 in a set that holds a block from 2^32 on (of 4 KiB: from 16 TiB).
//! Millions of them are most of the engine's memory, and recovery writes each once.

use crate::cache::format::Entry;

/// Block and checksum of each slot, from the first one on.
#[derive(Default)]
pub(super) struct Slots {
    /// Checksum, and the low half of the block below it.
    low: Vec<u64>,
    /// The high half. It is there as soon as a block needs it, whoever tells it and however the set came to be.
    high: Option<Box<High>>,
}

/// Of each slot up to the last one that needed it; behind that, zeros.
struct High(Vec<u16>);

impl High {
    fn get(&self, slot: u32) -> u16 {
        self.0.get(slot as usize).copied().unwrap_or(0)
    }

    fn set(&mut self, slot: usize, high: u16) {
        if slot >= self.0.len() {
            self.0.resize(slot + 1, 0);
        }
        self.0[slot] = high;
    }
}

impl Slots {
    pub fn len(&self) -> usize {
        self.low.len()
    }

    /// Empty, with room for `slots` slots.
    pub fn begin(&mut self, slots: usize) {
        self.low.clear();
        self.low.reserve_exact(slots);
        self.high = None;
    }
    /// So many slots of which nothing is known.
    pub fn resize(&mut self, slots: usize) {
        self.begin(slots);
        self.low.resize(slots, 0);
    }

    pub fn push(&mut self, entry: &Entry) {
        self.low.push(0);
        self.set(self.low.len() as u32 - 1, entry);
    }
    pub fn set(&mut self, slot: u32, entry: &Entry) {
        self.low[slot as usize] = low_of(entry);
        if self.high.is_some() || high_of(entry) > 0 {
            self.widen().set(slot as usize, high_of(entry));
        }
    }
    /// The next ones, at once.
    pub fn extend(&mut self, entries: impl Iterator<Item = Entry> + Clone) {
        let next = self.low.len();
        let mut bits = 0;
        self.low.extend(entries.clone().map(|entry| {
            bits |= entry.block.0;
            low_of(&entry)
        }));
        if self.high.is_some() || bits >> 32 > 0 {
            let high = self.widen();
            (next..).zip(entries).for_each(|(slot, entry)| high.set(slot, high_of(&entry)));
        }
    }

    /// The high half, with as much room as the low one has.
    fn widen(&mut self) -> &mut High {
        self.high.get_or_insert_with(|| Box::new(High(Vec::with_capacity(self.low.capacity()))))
    }

    #[inline]
    pub fn block(&self, slot: u32) -> u64 {
        let high = self.high.as_ref().map_or(0, |high| u64::from(high.get(slot)));
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
        self.low.capacity() * size_of::<u64>()
            + self.high.as_ref().map_or(0, |high| size_of::<High>() + high.0.capacity() * size_of::<u16>())
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

    /// As recovery finds a set that was open at a checkpoint.
    #[test]
    fn the_high_half_of_a_block_is_kept_though_nobody_has_made_room_for_it() {
        let far = 1 << 32 | 5;
        let mut slots = Slots::default();
        slots.push(&entry(5, 1));
        slots.push(&entry(far, 2));
        slots.extend([entry(6, 3), entry(far + 1, 4)].into_iter());
        slots.set(0, &entry(far + 2, 5));
        assert_eq!((0..4).map(|slot| slots.block(slot)).collect::<Vec<_>>(), [far + 2, far, 6, far + 1]);
        slots.set(1, &entry(7, 6));
        assert_eq!((slots.block(1), slots.crc(1)), (7, 6));
    }

    proptest! {
        #[test]
        fn slots_say_what_they_were_told(told in prop::collection::vec((0u64..1 << 48, any::<u32>(), 0usize..64), 1..64), wide: bool) {
            let block = |block: u64| if wide { block } else { block % (1 << 32) };
            let mut slots = Slots::default();
            slots.begin(64);
            let mut is_wide = false;
            let mut block = |number: u64| {
                let block = block(number);
                is_wide |= block >> 32 > 0;
                block
            };
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
            prop_assert_eq!(slots.bytes(), if is_wide { 64 * 10 + size_of::<High>() } else { 64 * 8 });
        }
    }
}

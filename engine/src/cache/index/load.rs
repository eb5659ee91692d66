//! Loading many live runs at once: recovery. They come in the order of the cache's sets, the index wants them in the order of blocks.
//!
//! ```text
//! push:  run → bucket (a stretch of the volume), 8 bytes each, pages that are appended to     while headers come in
//! load:  bucket by bucket: sorted digit by digit within a core's own cache, then every region gets its array in one piece
//! ```

use super::extent::{Extent, REGION_SETS, Shape};
use super::{Index, joined_or_pushed};
use crate::block::{Block, Slot};

/// Runs that are sorted together, where every slot holds a block of its own: with their copies they fit into a core's own cache.
const BUCKET: u64 = 24 << 10;
const BUCKETS_MAX: u64 = 1024;
/// Runs on a page of a bucket: 8 KiB. Freed, pages are what the arrays of the index are made of.
const PAGE: usize = 1024;
/// Fewer are sorted by comparison.
const FEW: usize = 256;
const DIGIT_BITS_MAX: u32 = 11;

/// A live run on its way into an index: consecutive blocks of one origin set in consecutive slots of one cache set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub block: Block,
    pub slot: Slot,
    pub blocks: u32,
    /// How many of them are dirty.
    pub dirty: u32,
}

impl Mapping {
    pub fn end(&self) -> u64 {
        self.block.0 + u64::from(self.blocks)
    }
    /// Its blocks one by one: block and slot.
    pub fn iter(self) -> impl Iterator<Item = (Block, Slot)> {
        (0..self.blocks).map(move |i| (Block(self.block.0 + u64::from(i)), Slot { slot: self.slot.slot + i, ..self.slot }))
    }
}

/// Where the parts of a packed run are, from the top: block in its bucket, mark, dirty blocks, blocks − 1, number of the slot.
#[derive(Clone, Copy, Debug)]
struct Packing {
    shape: Shape,
    /// Of a block's place in its bucket.
    block_bits: u32,
    slot_bits: u32,
    /// Of blocks − 1. Dirty blocks have one more.
    count_bits: u32,
}

impl Packing {
    fn block_shift(&self) -> u32 {
        u64::BITS - self.block_bits
    }

    fn pack(&self, run: &Mapping, marked: bool) -> u64 {
        let counts = (u64::from(marked) << (self.count_bits + 1) | u64::from(run.dirty)) << self.count_bits | u64::from(run.blocks - 1);
        let block = run.block.0 & ((1 << self.block_bits) - 1);
        block << self.block_shift() | counts << self.slot_bits | self.shape.number(run.slot)
    }

    /// The run, and its mark.
    fn unpack(&self, bucket: usize, packed: u64) -> (Mapping, bool) {
        let low = |bits: u32, number: u64| number & ((1 << bits) - 1);
        let counts = packed >> self.slot_bits;
        let run = Mapping {
            block: Block((bucket as u64) << self.block_bits | packed >> self.block_shift()),
            slot: self.shape.slot(low(self.slot_bits, packed)),
            blocks: low(self.count_bits, counts) as u32 + 1,
            dirty: low(self.count_bits + 1, counts >> self.count_bits) as u32,
        };
        (run, counts >> (2 * self.count_bits + 1) & 1 == 1)
    }
}

/// Live runs that are to be loaded.
pub struct Intake {
    packing: Packing,
    /// The last page of each bucket, and the full ones.
    open: Vec<Vec<u64>>,
    full: Vec<Vec<Vec<u64>>>,
}

impl Intake {
    /// For a volume of so many blocks and a cache of so many slots.
    pub fn new(set_slots: u32, blocks: u64, slots: u64) -> Self {
        let shape = Shape::new(set_slots);
        let bits = |count: u64| count.max(2).next_power_of_two().ilog2();
        let (all, slot_bits) = (bits(blocks), bits(slots));
        // At least one block to a bucket. Together there are 64 bits: of these a mark, and a dirty block or none.
        let buckets = bits(slots / BUCKET).min(BUCKETS_MAX.ilog2()).min(all - 1).max((all + slot_bits + 2).saturating_sub(u64::BITS));
        let block_bits = all - buckets;
        let spare = u64::BITS - 2 - block_bits - slot_bits;
        let packing = Packing { shape, block_bits, slot_bits, count_bits: (spare / 2).min(shape.set_bits) };
        Intake { packing, open: vec![Vec::new(); 1 << buckets], full: vec![Vec::new(); 1 << buckets] }
    }

    /// Blocks of the longest run that may be pushed.
    pub fn blocks_max(&self) -> u32 {
        1 << self.packing.count_bits
    }

    /// `marked` tells two sorts of runs apart when they are drained.
    pub fn push(&mut self, run: Mapping, marked: bool) {
        debug_assert!((1..=self.blocks_max()).contains(&run.blocks) && run.dirty <= run.blocks);
        let bucket = (run.block.0 >> self.packing.block_bits) as usize;
        let page = &mut self.open[bucket];
        if page.len() == page.capacity() {
            let full = std::mem::replace(page, Vec::with_capacity(PAGE));
            self.full[bucket].push(full);
        }
        page.push(self.packing.pack(&run, marked));
    }

    /// Hands out the runs of one bucket after the other, ascending.
    pub fn drain(self, mut each: impl FnMut(Sorted<'_>)) {
        let Intake { packing, open, full } = self;
        let (mut sorted, mut spare) = (Vec::new(), Vec::new());
        for (bucket, (last, full)) in open.into_iter().zip(full).enumerate() {
            sorted.clear();
            full.iter().for_each(|page| sorted.extend_from_slice(page));
            sorted.extend_from_slice(&last);
            drop((last, full));
            sort(&mut sorted, packing.block_bits, &mut spare);
            each(Sorted { runs: sorted.iter(), bucket, packing });
        }
    }
}

/// The runs of a bucket in ascending order of their blocks, and their marks.
pub struct Sorted<'a> {
    runs: std::slice::Iter<'a, u64>,
    bucket: usize,
    packing: Packing,
}

impl Iterator for Sorted<'_> {
    type Item = (Mapping, bool);

    fn next(&mut self) -> Option<Self::Item> {
        self.runs.next().map(|&packed| self.packing.unpack(self.bucket, packed))
    }
}

/// Sorts by the topmost `bits` bits: digit by digit from the lowest one, or by comparison where they are few.
fn sort(runs: &mut Vec<u64>, bits: u32, spare: &mut Vec<u64>) {
    if runs.len() < FEW {
        return runs.sort_unstable();
    }
    let digits = bits.div_ceil(DIGIT_BITS_MAX).max(1);
    let width = bits.div_ceil(digits);
    spare.resize(runs.len(), 0);
    for digit in 0..digits {
        let shift = u64::BITS - bits + digit * width;
        let digit = |run: u64| (run >> shift) as usize % (1 << width);
        let mut places = [0u32; 1 << DIGIT_BITS_MAX];
        runs.iter().for_each(|&run| places[digit(run)] += 1);
        let mut sum = 0;
        for place in &mut places[..1 << width] {
            sum += std::mem::replace(place, sum);
        }
        for &run in runs.iter() {
            let place = &mut places[digit(run)];
            spare[*place as usize] = run;
            *place += 1;
        }
        std::mem::swap(runs, spare);
    }
}

/// What a load notes while it goes on.
#[derive(Default)]
pub struct Loading {
    refused: Vec<Mapping>,
    /// Regions with dirty slots, ascending.
    dirty: Vec<(u64, [u16; REGION_SETS])>,
    /// Kept for its memory only.
    extents: Vec<Extent>,
}

impl Index {
    /// Maps runs in ascending order, none across the border of an origin set; a next piece of them lies behind. A run of which a block is
    /// mapped already is left out and noted.
    pub fn load(&mut self, sorted: &[Mapping], loading: &mut Loading) {
        let bits = self.shape.region_bits();
        for of_region in sorted.chunk_by(|a, b| a.block.0 >> bits == b.block.0 >> bits) {
            self.load_region(of_region[0].block.0 >> bits, of_region, loading);
        }
    }

    fn load_region(&mut self, number: u64, runs: &[Mapping], loading: &mut Loading) {
        let (shape, mask) = (self.shape, (1 << self.shape.region_bits()) - 1);
        let array = self.regions.entry(number).or_default();
        let mut dirty = [0; REGION_SETS];
        loading.extents.clear();
        let mut old = array.iter().copied().peekable();
        for run in runs {
            let fresh = Extent::new((run.block.0 & mask) as u32, run.blocks, shape.number(run.slot));
            let set = fresh.first() >> shape.set_bits;
            assert!(fresh.end() <= (set + 1) << shape.set_bits, "a run ends with its origin set");
            while let Some(before) = old.next_if(|old| old.first() < fresh.first()) {
                joined_or_pushed(&mut loading.extents, before, shape);
            }
            let is_free = loading.extents.last().is_none_or(|last| last.end() <= fresh.first());
            if is_free && old.peek().is_none_or(|next| fresh.end() <= next.first()) {
                joined_or_pushed(&mut loading.extents, fresh, shape);
                dirty[set as usize] += run.dirty as u16;
            } else {
                loading.refused.push(*run);
            }
        }
        old.for_each(|behind| joined_or_pushed(&mut loading.extents, behind, shape));
        self.capacity -= array.capacity() as u64;
        *array = loading.extents.as_slice().into();
        self.capacity += array.capacity() as u64;
        if dirty != [0; REGION_SETS] {
            loading.dirty.push((number, dirty));
        }
    }

    /// Ends a load. Returns what was left out.
    pub fn finish_load(&mut self, loading: Loading) -> Vec<Mapping> {
        if self.dirty.is_empty() {
            // At once and without a look-up for each: it is in order.
            self.dirty = loading.dirty.into_iter().collect();
        } else {
            for (region, more) in loading.dirty {
                let counts = self.dirty.entry(region).or_default();
                counts.iter_mut().zip(more).for_each(|(count, more)| *count += more);
            }
        }
        loading.refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_was_pushed_comes_out_sorted(
            blocks_bits in 1u32..=48, slots_bits in 3u32..=38, set_bits in 3u32..=11,
            runs in prop::collection::vec((any::<u64>(), any::<u64>(), 1u32..50, 0u32..50, any::<bool>()), 0..600),
        ) {
            let set_bits = set_bits.min(slots_bits);
            let (blocks, slots, set_slots) = (1 << blocks_bits, 1u64 << slots_bits, 1u32 << set_bits);
            let mut intake = Intake::new(set_slots, blocks, slots);
            let mut expected = Vec::new();
            for (block, slot, length, dirty, marked) in runs {
                let length = length.min(intake.blocks_max());
                let slot = intake.packing.shape.slot(slot % slots);
                let run = Mapping { block: Block(block % blocks), slot, blocks: length, dirty: dirty.min(length) };
                intake.push(run, marked);
                expected.push((run, marked));
            }
            let mut got = Vec::new();
            intake.drain(|runs| got.extend(runs));
            prop_assert!(got.is_sorted_by_key(|(run, _)| run.block));
            let order = |&(run, marked): &(Mapping, bool)| (run.block, run.slot, run.blocks, run.dirty, marked);
            got.sort_unstable_by_key(order);
            expected.sort_unstable_by_key(order);
            prop_assert_eq!(got, expected);
        }

        #[test]
        fn many_numbers_are_sorted_by_their_topmost_bits(numbers in prop::collection::vec(any::<u64>(), 0..2000), bits in 1u32..=48) {
            let mut sorted = numbers.clone();
            sort(&mut sorted, bits, &mut Vec::new());
            prop_assert!(sorted.is_sorted_by_key(|number| number >> (u64::BITS - bits)));
            let mut numbers = numbers;
            numbers.sort_unstable();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, numbers);
        }
    }
}

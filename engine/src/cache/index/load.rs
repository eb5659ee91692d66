//! Loading many live runs at once: recovery. They come in the order of the cache's sets, the index wants them in the order of blocks.
//!
//! ```text
//! push:  run → bucket (a stretch of the volume), 8 bytes each, pages that are appended to                   while headers come in
//! drain: bucket → parts that fit into a core's own cache, each sorted digit by digit
//! load:  every region gets its array in one piece
//! ```

use super::Index;
use super::extent::{Extent, REGION_SETS, Shape};
use crate::block::{Block, Slot};

/// Runs in a bucket, where every slot holds a block of its own; unless these are very many: the last pages of more buckets would not stay
/// in a core's first cache.
const BUCKET: u64 = 24 << 10;
const BUCKETS_MAX: u64 = 128;
/// So many steps has even the mapping of a small cache.
const BUCKETS_MIN: u64 = 8;
/// Runs on a page of a bucket: 8 KiB. Freed, pages are what the arrays of the index are made of.
const PAGE: usize = 1024;
/// Runs that are sorted together.
const PART: usize = 1024;
/// Fewer are sorted by comparison, or by more digits than that.
const FEW: usize = 64;
const DIGITS_MAX: u32 = 3;
const DIGIT_BITS_MAX: u32 = 9;

/// A live run on its way into an index: consecutive blocks of one origin set in consecutive slots of one cache set, and how many of
/// these are dirty. 16 bytes: a core's own cache holds those of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First block and, in the lowest 16 bits, how many are dirty.
    key: u64,
    set: u32,
    slot: u16,
    blocks: u16,
}

impl Mapping {
    #[inline]
    pub fn new(block: Block, blocks: u32, slot: Slot, dirty: u32) -> Self {
        debug_assert!(block.0 < 1 << 48 && blocks <= 1 << 11 && slot.slot < 1 << 11 && dirty <= blocks);
        Mapping { key: block.0 << 16 | u64::from(dirty), set: slot.set, slot: slot.slot as u16, blocks: blocks as u16 }
    }
    pub fn block(&self) -> Block {
        Block(self.key >> 16)
    }
    pub fn blocks(&self) -> u32 {
        u32::from(self.blocks)
    }
    /// The block behind its last one.
    pub fn end(&self) -> u64 {
        self.block().0 + u64::from(self.blocks)
    }
    pub fn slot(&self) -> Slot {
        Slot { set: self.set, slot: u32::from(self.slot) }
    }
    pub fn dirty(&self) -> u32 {
        self.key as u32 & 0xffff
    }
    /// Its blocks one by one: block and slot.
    pub fn iter(self) -> impl Iterator<Item = (Block, Slot)> {
        let (block, slot) = (self.block(), self.slot());
        (0..self.blocks()).map(move |i| (Block(block.0 + u64::from(i)), Slot { slot: slot.slot + i, ..slot }))
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

    #[inline]
    fn pack(&self, run: &Mapping, marked: bool) -> u64 {
        let marked = u64::from(marked) << (self.count_bits + 1);
        let counts = (marked | u64::from(run.dirty())) << self.count_bits | u64::from(run.blocks() - 1);
        // What is too much of the block falls off at the top.
        run.block().0 << self.block_shift() | counts << self.slot_bits | self.shape.number(run.slot())
    }

    /// The run, and its mark.
    #[inline]
    fn unpack(&self, bucket: usize, packed: u64) -> (Mapping, bool) {
        let low = |bits: u32, number: u64| number & ((1 << bits) - 1);
        let counts = packed >> self.slot_bits;
        let block = Block((bucket as u64) << self.block_bits | packed >> self.block_shift());
        let (blocks, dirty) = (low(self.count_bits, counts) + 1, low(self.count_bits + 1, counts >> self.count_bits));
        let run = Mapping::new(block, blocks as u32, self.shape.slot(low(self.slot_bits, packed)), dirty as u32);
        (run, counts >> (2 * self.count_bits + 1) & 1 == 1)
    }
}

/// Live runs that are to be loaded.
pub struct Intake {
    packing: Packing,
    /// The last page of each bucket, and the full ones.
    open: Vec<Vec<u64>>,
    full: Vec<Vec<Vec<u64>>>,
    /// The bucket that is handed out next; and memory for its runs.
    next: usize,
    runs: Vec<u64>,
    spare: Vec<u64>,
}

impl Intake {
    /// For a volume of so many blocks and a cache of so many slots.
    pub fn new(set_slots: u32, blocks: u64, slots: u64) -> Self {
        let shape = Shape::new(set_slots);
        let bits = |count: u64| count.max(2).next_power_of_two().ilog2();
        let (all, slot_bits) = (bits(blocks), bits(slots));
        // A bucket has whole regions, if it can. Together there are 64 bits: of these a mark, and a dirty block or none.
        let buckets = bits(slots / BUCKET)
            .min(BUCKETS_MAX.ilog2())
            .min(all.saturating_sub(shape.region_bits()))
            .max((all - 1).min(BUCKETS_MIN.ilog2()))
            .max((all + slot_bits + 2).saturating_sub(u64::BITS));
        let block_bits = all - buckets;
        let spare = u64::BITS - 2 - block_bits - slot_bits;
        let packing = Packing { shape, block_bits, slot_bits, count_bits: (spare / 2).min(shape.set_bits) };
        let (open, full) = (vec![Vec::new(); 1 << buckets], vec![Vec::new(); 1 << buckets]);
        Intake { packing, open, full, next: 0, runs: Vec::new(), spare: Vec::new() }
    }

    /// Blocks of the longest run that may be pushed.
    pub fn blocks_max(&self) -> u32 {
        1 << self.packing.count_bits
    }

    /// `marked` tells two sorts of runs apart when they are drained.
    #[inline]
    pub fn push(&mut self, run: Mapping, marked: bool) {
        debug_assert!((1..=self.blocks_max()).contains(&run.blocks()));
        let bucket = (run.block().0 >> self.packing.block_bits) as usize;
        if self.open[bucket].len() == self.open[bucket].capacity() {
            self.begin_page(bucket);
        }
        self.open[bucket].push(self.packing.pack(&run, marked));
    }

    #[cold]
    fn begin_page(&mut self, bucket: usize) {
        let full = std::mem::replace(&mut self.open[bucket], Vec::with_capacity(PAGE));
        self.full[bucket].push(full);
    }

    /// Hands out all runs in ascending order, in pieces.
    pub fn drain(mut self, mut each: impl FnMut(Sorted<'_>)) {
        while self.drain_bucket(&mut each) {}
    }

    /// Hands out the runs of the next bucket: a step of a load that is done in several. False: there is none.
    pub fn drain_bucket(&mut self, mut each: impl FnMut(Sorted<'_>)) -> bool {
        let (packing, bucket) = (self.packing, self.next);
        let Some(last) = self.open.get_mut(bucket) else { return false };
        self.next += 1;
        let (last, mut pages) = (std::mem::take(last), std::mem::take(&mut self.full[bucket]));
        pages.push(last);
        let (runs, spare) = (&mut self.runs, &mut self.spare);
        let count: usize = pages.iter().map(Vec::len).sum();
        runs.resize(count, 0);
        // Parts of whole regions, small enough for a core's first cache; each is sorted by what is left of the block.
        let regions_bits = packing.block_bits.saturating_sub(packing.shape.region_bits());
        let part_bits = (count / PART).max(1).ilog2().min(regions_bits).min(DIGIT_BITS_MAX);
        let ends = spread(pages.iter().flatten(), u64::BITS - part_bits, part_bits, runs);
        drop(pages);
        let mut start = 0;
        for end in &ends[..1 << part_bits] {
            let part = &mut runs[start..*end as usize];
            start = *end as usize;
            sort(part, packing.block_shift(), packing.block_bits - part_bits, spare);
            each(Sorted { runs: part.iter(), bucket, packing });
        }
        true
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

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.runs.next().map(|&packed| self.packing.unpack(self.bucket, packed))
    }
}

/// Sorts by `bits` bits from bit `low` on: digit by digit, or by comparison where they are few. (What lies below is in any order.)
fn sort(runs: &mut [u64], low: u32, bits: u32, spare: &mut Vec<u64>) {
    let digits = bits.div_ceil(DIGIT_BITS_MAX);
    if runs.len() < FEW || digits > DIGITS_MAX {
        return runs.sort_unstable();
    }
    let width = bits.div_ceil(digits.max(1));
    spare.resize(runs.len(), 0);
    let (mut from, mut to) = (runs, spare.as_mut_slice());
    for digit in 0..digits {
        let low = low + digit * width;
        spread(from.iter(), low, width.min(u64::BITS - low), to);
        (from, to) = (to, from);
    }
    if !digits.is_multiple_of(2) {
        to.copy_from_slice(from);
    }
}

/// Puts runs into the order of a digit, `bits` bits from bit `low` on; those of one digit stay in theirs. Returns where each ends.
fn spread<'a>(runs: impl Iterator<Item = &'a u64> + Clone, low: u32, bits: u32, out: &mut [u64]) -> [u32; 1 << DIGIT_BITS_MAX] {
    // No bits at all: one digit.
    let digit = |run: u64| run.unbounded_shr(low) as usize & ((1 << bits) - 1);
    let mut places = [0u32; 1 << DIGIT_BITS_MAX];
    runs.clone().for_each(|&run| places[digit(run)] += 1);
    let mut sum = 0;
    for place in &mut places[..1 << bits] {
        sum += std::mem::replace(place, sum);
    }
    runs.for_each(|&run| {
        let place = &mut places[digit(run)];
        out[*place as usize] = run;
        *place += 1;
    });
    places
}

/// What a load notes while it goes on.
#[derive(Default)]
pub struct Loading {
    refused: Vec<Mapping>,
    /// Regions with dirty slots, ascending.
    dirty: Vec<(u64, [u16; REGION_SETS])>,
    /// The extents of a region's new runs, and of all; dirty blocks of the new ones in each of its origin sets.
    fresh: Vec<Extent>,
    merged: Vec<Extent>,
    soiled: [u16; REGION_SETS],
}

impl Loading {
    /// What was left out since the last time.
    pub fn take_refused(&mut self) -> Vec<Mapping> {
        std::mem::take(&mut self.refused)
    }

    /// Makes extents of the runs of the region that come first. Returns how many these are, and whether none overlap.
    fn join(&mut self, runs: &[Mapping], region: u64, shape: Shape) -> (usize, bool) {
        self.fresh.clear();
        self.soiled = [0; REGION_SETS];
        let bits = shape.region_bits();
        let (mut last, set) = extent(&runs[0], shape);
        self.soiled[set] = runs[0].dirty() as u16;
        let (mut count, mut fits) = (1, true);
        for run in runs[1..].iter().take_while(|run| run.block().0 >> bits == region) {
            let (next, set) = extent(run, shape);
            self.soiled[set] += run.dirty() as u16;
            fits &= last.end() <= next.first();
            count += 1;
            match last.joined(next, shape) {
                Some(both) => last = both,
                None => self.fresh.push(std::mem::replace(&mut last, next)),
            }
        }
        self.fresh.push(last);
        (count, fits)
    }

    /// Merges these extents with those that the region has had. False: they overlap.
    fn merge(&mut self, old: &[Extent]) -> bool {
        if old.is_empty() {
            std::mem::swap(&mut self.fresh, &mut self.merged);
            return true;
        }
        merge(old, &self.fresh, &mut self.merged)
    }

    fn note_dirty(&mut self, region: u64, more: [u16; REGION_SETS]) {
        match self.dirty.last_mut() {
            Some((last, counts)) if *last == region => add(counts, more),
            _ if more == [0; REGION_SETS] => {}
            _ => self.dirty.push((region, more)),
        }
    }
}

fn add(counts: &mut [u16; REGION_SETS], more: [u16; REGION_SETS]) {
    counts.iter_mut().zip(more).for_each(|(count, more)| *count += more);
}

impl Index {
    /// Maps runs in ascending order, none across the border of an origin set; a next piece of them lies behind. A run of which a block is
    /// mapped already is left out and noted.
    pub fn load(&mut self, sorted: &[Mapping], loading: &mut Loading) {
        self.finger.forget();
        let bits = self.shape.region_bits();
        let mut rest = sorted;
        while let Some(first) = rest.first() {
            let region = first.block().0 >> bits;
            let old = self.regions.entry(region).or_default();
            let (count, fits) = loading.join(rest, region, self.shape);
            let of_region;
            (of_region, rest) = rest.split_at(count);
            let mut dirty = loading.soiled;
            if !(fits && loading.merge(old)) {
                dirty = [0; REGION_SETS];
                fit(of_region, old, self.shape, &mut dirty, loading);
            }
            self.capacity -= old.capacity() as u64;
            *old = loading.merged.as_slice().into();
            self.capacity += old.capacity() as u64;
            loading.note_dirty(region, dirty);
        }
    }

    /// Ends a load: what was dirty counts from now on.
    pub fn finish_load(&mut self, loading: Loading) {
        if self.dirty.is_empty() {
            // At once and without a look-up for each: it is in order.
            self.dirty = loading.dirty.into_iter().collect();
        } else {
            for (region, more) in loading.dirty {
                add(self.dirty.entry(region).or_default(), more);
            }
        }
    }
}

/// The extent of a run in its region, and the origin set it is in.
#[inline]
fn extent(run: &Mapping, shape: Shape) -> (Extent, usize) {
    let first = (run.block().0 & ((1 << shape.region_bits()) - 1)) as u32;
    let extent = Extent::new(first, run.blocks(), shape.number(run.slot()));
    let set = first >> shape.set_bits;
    assert!(extent.end() <= (set + 1) << shape.set_bits, "a run ends with its origin set");
    (extent, set as usize)
}

/// Merges two ascending rows. False: they overlap.
fn merge(a: &[Extent], b: &[Extent], merged: &mut Vec<Extent>) -> bool {
    let count = a.len() + b.len();
    // Every place is written below.
    merged.resize(count, Extent::default());
    let (mut i, mut k, mut front) = (0, 0, 0);
    let (mut i_end, mut k_end, mut back) = (a.len(), b.len(), count);
    // Which one comes next is as good as random: it is chosen without a branch. From both ends at once, so that one choice need not wait
    // for the other.
    while i + 1 < i_end && k + 1 < k_end {
        let is_first = a[i] <= b[k];
        merged[front] = if is_first { a[i] } else { b[k] };
        i += usize::from(is_first);
        k += usize::from(!is_first);
        front += 1;
        let is_last = a[i_end - 1] > b[k_end - 1];
        back -= 1;
        merged[back] = if is_last { a[i_end - 1] } else { b[k_end - 1] };
        i_end -= usize::from(is_last);
        k_end -= usize::from(!is_last);
    }
    for place in &mut merged[front..back] {
        let is_first = k == k_end || i < i_end && a[i] <= b[k];
        *place = if is_first { a[i] } else { b[k] };
        i += usize::from(is_first);
        k += usize::from(!is_first);
    }
    merged.iter().zip(&merged[count.min(1)..]).fold(true, |fits, (one, next)| fits & (one.end() <= next.first()))
}

/// Run by run: those of which a block is mapped are left out and noted.
fn fit(runs: &[Mapping], old: &[Extent], shape: Shape, dirty: &mut [u16; REGION_SETS], loading: &mut Loading) {
    let Loading { merged, refused, .. } = loading;
    merged.clear();
    let mut old = old.iter().copied().peekable();
    for run in runs {
        let (fresh, set) = extent(run, shape);
        while let Some(before) = old.next_if(|old| old.first() < fresh.first()) {
            merged.push(before);
        }
        let is_free = merged.last().is_none_or(|last| last.end() <= fresh.first());
        if is_free && old.peek().is_none_or(|next| fresh.end() <= next.first()) {
            merged.push(fresh);
            dirty[set] += run.dirty() as u16;
        } else {
            refused.push(*run);
        }
    }
    merged.extend(old);
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
                let run = Mapping::new(Block(block % blocks), length, slot, dirty.min(length));
                intake.push(run, marked);
                expected.push((run, marked));
            }
            let mut got = Vec::new();
            intake.drain(|runs| got.extend(runs));
            prop_assert!(got.is_sorted_by_key(|(run, _)| run.block()));
            let order = |&(run, marked): &(Mapping, bool)| (run.key, run.slot(), run.blocks, marked);
            got.sort_unstable_by_key(order);
            expected.sort_unstable_by_key(order);
            prop_assert_eq!(got, expected);
        }

        #[test]
        fn many_numbers_are_sorted_by_some_of_their_bits(
            numbers in prop::collection::vec(any::<u64>(), 0..800), bits in 0u32..=48, above in 0u32..=16,
        ) {
            // The bits above are the same in all: a part of a bucket.
            let numbers: Vec<u64> = numbers.into_iter().map(|number| number.unbounded_shr(above)).collect();
            let low = u64::BITS - above - bits;
            let mut sorted = numbers.clone();
            sort(&mut sorted, low, bits, &mut Vec::new());
            prop_assert!(sorted.is_sorted_by_key(|number| number.unbounded_shr(low)));
            let mut numbers = numbers;
            numbers.sort_unstable();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, numbers);
        }
    }
}

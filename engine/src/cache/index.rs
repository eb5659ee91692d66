//! Block → slot. Sixteen origin sets are a region; it has one sorted array of extents of 8 bytes (`extent`): O(1) to the array, a search
//! inside it that begins where the extent would be if all were spread evenly. Sequential data costs one extent per set, random data one per block.

mod extent;
mod load;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;

use crate::block::{Block, Slot};
use crate::number::NumberMap;
use extent::{Extent, REGION_BITS, REGION_SETS, Shape};
pub use load::{Intake, Loading, Mapping, Sorted};

/// A run of blocks and where it lies, `None` where it is not cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub block: Block,
    pub blocks: u64,
    pub slot: Option<Slot>,
}

#[derive(Default)]
pub struct Index {
    shape: Shape,
    /// Region → its extents in ascending order; none is empty.
    regions: NumberMap<u64, Vec<Extent>>,
    /// Regions with dirty slots, and how many in each origin set: the order of the sweep.
    dirty: BTreeMap<u64, [u16; REGION_SETS]>,
    /// Extents that all arrays have room for.
    capacity: u64,
    finger: Finger,
}

impl Index {
    /// Origin sets have as many blocks as cache sets have slots: a power of two.
    pub fn new(set_slots: u32) -> Self {
        Index { shape: Shape::new(set_slots), ..Index::default() }
    }

    /// `block..block + blocks` cut at the borders of origin sets.
    fn pieces(&self, block: Block, blocks: u64) -> impl Iterator<Item = Piece> + use<> {
        let (shape, end) = (self.shape, block.0 + blocks);
        let mut at = block.0;
        std::iter::from_fn(move || {
            (at < end).then(|| {
                let stop = end.min(((at >> shape.set_bits) + 1) << shape.set_bits);
                let region = at >> shape.region_bits();
                let base = region << shape.region_bits();
                let piece = Piece { region, base, start: (at - base) as u32, end: (stop - base) as u32 };
                at = stop;
                piece
            })
        })
    }

    /// Where `block` lies.
    pub fn get(&self, block: Block) -> Option<Slot> {
        let region = block.0 >> self.shape.region_bits();
        let extents = self.regions.get(&region)?;
        let at = (block.0 - (region << self.shape.region_bits())) as u32;
        let extent = extents.get(self.finger.first_beyond(extents, block, self.shape)).filter(|extent| extent.first() <= at)?;
        Some(self.shape.slot(extent.slot() + u64::from(at - extent.first())))
    }

    /// The runs of `block..block + blocks` in order, cached or not, without gaps.
    pub fn lookup(&self, block: Block, blocks: u64, runs: &mut Vec<Run>) {
        if blocks == 1 {
            return runs.push(Run { block, blocks, slot: self.get(block) });
        }
        for Piece { region, base, start, end } in self.pieces(block, blocks) {
            let mut at = start;
            let gap = |from: u32, to: u32, runs: &mut Vec<Run>| {
                if from < to {
                    let (block, blocks) = (Block(base + u64::from(from)), u64::from(to - from));
                    match runs.last_mut() {
                        Some(last) if last.slot.is_none() && last.block.0 + last.blocks == block.0 => last.blocks += blocks,
                        _ => runs.push(Run { block, blocks, slot: None }),
                    }
                }
            };
            if let Some(extents) = self.regions.get(&region) {
                let first = self.finger.first_beyond(extents, Block(base + u64::from(start)), self.shape);
                for extent in extents[first..].iter().take_while(|extent| extent.first() < end).map(|extent| extent.clip(start, end)) {
                    gap(at, extent.first(), runs);
                    runs.push(self.run(base, extent));
                    at = extent.end();
                }
            }
            gap(at, end, runs);
        }
    }

    fn run(&self, base: u64, extent: Extent) -> Run {
        let slot = Some(self.shape.slot(extent.slot()));
        Run { block: Block(base + u64::from(extent.first())), blocks: u64::from(extent.blocks()), slot }
    }

    /// Maps `blocks` blocks to consecutive slots from `slot` (None: to nothing); what they were mapped to is appended to `displaced`.
    pub fn replace(&mut self, block: Block, blocks: u64, slot: Option<Slot>, displaced: &mut Vec<Run>) {
        let shape = self.shape;
        let mut slot = slot.map(|slot| shape.number(slot));
        for piece in self.pieces(block, blocks) {
            let Piece { region, base, start, end } = piece;
            let fresh = slot.map(|slot| Extent::new(start, end - start, slot));
            slot = slot.map(|slot| slot + u64::from(end - start));
            if fresh.is_none() && !self.regions.contains_key(&region) {
                continue;
            }
            let extents = self.regions.entry(region).or_default();
            let low = self.finger.place_of(extents, Block(base + u64::from(start)), shape);
            self.finger.forget();
            let high = low + extents[low..].iter().take_while(|extent| extent.first() < end).count();
            let overlapped = &extents[low..high];
            displaced.extend(overlapped.iter().map(|extent| extent.clip(start, end)).map(|cut| Run {
                block: Block(base + u64::from(cut.first())),
                blocks: u64::from(cut.blocks()),
                slot: Some(shape.slot(cut.slot())),
            }));
            // At most three extents take the place of those that overlap: the rest on the left, the new one, the rest on the right.
            let left = overlapped.first().filter(|extent| extent.first() < start).map(|extent| extent.clip(extent.first(), start));
            let right = overlapped.last().filter(|extent| extent.end() > end).map(|extent| extent.clip(end, extent.end()));
            let before = extents.capacity();
            splice(extents, low..high, [left, fresh, right], shape);
            let (is_empty, after) = (extents.is_empty(), extents.capacity());
            self.capacity = self.capacity - before as u64 + after as u64;
            if is_empty {
                self.capacity -= after as u64;
                self.regions.remove(&region);
            }
        }
    }

    /// Notes that `count` more (or fewer) slots of the origin set of `block` are dirty.
    pub fn add_dirty(&mut self, block: Block, count: i64) {
        if count == 0 {
            return;
        }
        let set = block.0 >> self.shape.set_bits;
        let counts = self.dirty.entry(set >> REGION_BITS).or_default();
        let entry = &mut counts[set as usize % REGION_SETS];
        *entry = u16::try_from(i64::from(*entry) + count).expect("dirty slots of an origin set never fall below zero");
        if *counts == [0; REGION_SETS] {
            self.dirty.remove(&(set >> REGION_BITS));
        }
    }

    /// The slots of `block..block + blocks` are dirty; they were not, or had none.
    pub fn soil(&mut self, block: Block, blocks: u64) {
        if blocks == 1 {
            return self.add_dirty(block, 1);
        }
        for Piece { base, start, end, .. } in self.pieces(block, blocks) {
            self.add_dirty(Block(base + u64::from(start)), i64::from(end - start));
        }
    }

    /// The first origin set at or after `from` that has dirty slots, as its first block.
    pub fn next_dirty(&self, from: Block) -> Option<Block> {
        let from = from.0.div_ceil(self.shape.set_blocks());
        let regions = self.dirty.range(from >> REGION_BITS..);
        let sets = regions.flat_map(|(region, counts)| (region << REGION_BITS..).zip(counts));
        sets.filter(|&(set, &count)| count > 0 && set >= from).map(|(set, _)| Block(set << self.shape.set_bits)).next()
    }

    /// How many dirty slots each origin set has that has any.
    pub fn dirty_counts(&self) -> impl Iterator<Item = u64> {
        self.dirty.values().flatten().filter(|&&count| count > 0).map(|&count| u64::from(count))
    }

    pub fn set_blocks(&self) -> u64 {
        self.shape.set_blocks()
    }

    /// Bytes held, counted from lengths and capacities.
    pub fn bytes(&self) -> u64 {
        // A map keeps a byte beside each place; a tree keeps its nodes three quarters full.
        let regions = self.regions.capacity() * (size_of::<(u64, Vec<Extent>)>() + 1) * 8 / 7;
        let dirty = self.dirty.len() * size_of::<(u64, [u16; REGION_SETS])>() * 4 / 3;
        (regions + dirty) as u64 + self.capacity * size_of::<Extent>() as u64
    }
}

/// Part of an origin set: `start..end` are blocks of its region, which begins at block `base`.
struct Piece {
    region: u64,
    base: u64,
    start: u32,
    end: u32,
}

/// The block that was looked for last, and its place in the array: mostly it is looked for again, when what was read of it is kept, and when it is
/// mapped. Whatever changes an array has it forgotten.
#[derive(Default)]
struct Finger(Cell<Option<(Block, usize)>>);

impl Finger {
    /// [`first_beyond`] of where `block` is in its region, to be remembered.
    #[inline]
    fn first_beyond(&self, extents: &[Extent], block: Block, shape: Shape) -> usize {
        let place = self.place_of(extents, block, shape);
        self.0.set(Some((block, place)));
        place
    }

    /// The same, for who changes the array.
    #[inline]
    fn place_of(&self, extents: &[Extent], block: Block, shape: Shape) -> usize {
        let search = || first_beyond(extents, (block.0 & ((1 << shape.region_bits()) - 1)) as u32, shape);
        match self.0.get() {
            Some((last, place)) if last == block => {
                debug_assert_eq!(place, search(), "an array was changed, and the place of {block:?} not forgotten");
                place
            }
            _ => search(),
        }
    }

    fn forget(&self) {
        self.0.set(None);
    }
}

/// The first extent that ends behind `at`: the last one that begins there or before, if it does, else the next.
#[inline]
fn first_beyond(extents: &[Extent], at: u32, shape: Shape) -> usize {
    let behind = count_until(extents, at, shape);
    behind - usize::from(behind > 0 && extents[behind - 1].end() > at)
}

/// Extents of a line of a processor's cache.
const LINE: usize = 8;

/// How many extents begin at `at` or before. From its guess the search goes on in steps that double: mostly one or two lines come from
/// memory, where halving the whole array would touch one for nearly every step.
#[inline]
fn count_until(extents: &[Extent], at: u32, shape: Shape) -> usize {
    let begins = |i: usize| extents[i].first() <= at;
    let guess = ((u64::from(at) * extents.len() as u64) >> shape.region_bits()) as usize;
    // The answer is in low..=high.
    let (mut low, mut high, mut step) = (0, extents.len(), LINE);
    if guess < high && begins(guess) {
        low = guess + 1;
        while low + step < high {
            if !begins(low + step) {
                high = low + step;
                break;
            }
            (low, step) = (low + step + 1, 2 * step);
        }
    } else {
        high = high.min(guess);
        while step < high - low {
            if begins(high - step) {
                low = high - step + 1;
                break;
            }
            (high, step) = (high - step, 2 * step);
        }
    }
    low + extents[low..high].partition_point(|extent| extent.first() <= at)
}

/// Puts the rest on the left, the new extent and the rest on the right in the place of `range`. The new one is joined with its neighbours
/// where it goes on from them. Rests never do: they would have been one with it before.
fn splice(extents: &mut Vec<Extent>, range: Range<usize>, [left, mut fresh, right]: [Option<Extent>; 3], shape: Shape) {
    let Range { start: mut low, end: mut high } = range;
    if let Some(extent) = fresh {
        let mut joined = extent;
        if left.is_none()
            && low > 0
            && let Some(both) = extents[low - 1].joined(joined, shape)
        {
            (joined, low) = (both, low - 1);
        }
        if right.is_none()
            && high < extents.len()
            && let Some(both) = joined.joined(extents[high], shape)
        {
            (joined, high) = (both, high + 1);
        }
        fresh = Some(joined);
    }
    // Mostly one comes between two, or takes the place of one.
    match ([left, fresh, right], high - low) {
        ([None, Some(extent), None], 0) => {
            make_room(extents, 1);
            extents.insert(low, extent);
            return;
        }
        ([None, Some(extent), None], 1) => {
            extents[low] = extent;
            return;
        }
        (put, overlapped) => {
            let put = put.into_iter().flatten();
            make_room(extents, put.clone().count().saturating_sub(overlapped));
            drop(extents.splice(low..high, put));
        }
    }
    if extents.len() * 2 < extents.capacity() && extents.capacity() > 4 * ROOM {
        extents.shrink_to(extents.len() + ROOM);
    }
}

/// Extents that an array grows by, and a sixteenth of its length.
const ROOM: usize = 4;

/// An array grows by little: millions of blocks pay for what is empty.
fn make_room(extents: &mut Vec<Extent>, more: usize) {
    if extents.len() + more > extents.capacity() {
        extents.reserve_exact(more.max(ROOM + extents.len() / 16));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Spread evenly, crowded at one end, or few: the guess is only where the search begins.
        #[test]
        fn a_search_from_a_guess_finds_what_halving_finds(
            firsts in prop::collection::btree_set((0u32..1024, 0u32..4).prop_map(|(at, power)| (at as f32 / 1024.0).powi(1 << power) * 1024.0).prop_map(|at| at as u32), 0..400),
            from_the_end in any::<bool>(), at in 0u32..1024,
        ) {
            let turned = |first: u32| if from_the_end { 1023 - first } else { first };
            let mut extents: Vec<Extent> = firsts.into_iter().map(|first| Extent::new(turned(first), 1, 0)).collect();
            extents.sort_unstable();
            let expected = extents.partition_point(|extent| extent.first() <= at);
            prop_assert_eq!(count_until(&extents, at, Shape::new(64)), expected);
        }

        /// Loaded at once or mapped one after the other: the same index, and what is mapped already stays as it is.
        #[test]
        fn many_runs_at_once_are_as_one_after_the_other(
            before in prop::collection::vec((0u64..200, 1u64..20, 0u32..6, 0u32..24), 0..6),
            runs in prop::collection::vec((0u64..200, 1u32..20, 0u32..6, 0u32..24, 0u32..20), 0..40),
            piece in 1usize..40,
        ) {
            let (mut loaded, mut expected) = (Index::new(64), Index::new(64));
            for (block, blocks, set, slot) in before {
                for index in [&mut loaded, &mut expected] {
                    index.replace(Block(block), blocks, Some(Slot { set, slot }), &mut Vec::new());
                }
            }
            let within = |block: u64, blocks: u32| blocks.min(64 - (block % 64) as u32);
            let mut runs: Vec<Mapping> = runs
                .into_iter()
                .map(|(block, blocks, set, slot, dirty)| (block, within(block, blocks), Slot { set, slot }, dirty))
                .map(|(block, blocks, slot, dirty)| Mapping::new(Block(block), blocks, slot, dirty.min(blocks)))
                .collect();
            runs.sort_by_key(|run| (run.block(), run.blocks()));
            let mut loading = Loading::default();
            // What is looked for on both sides of a load is found where it is then.
            let mut found = Vec::new();
            for piece in runs.chunks(piece) {
                let looked = piece[piece.len() - 1].block();
                loaded.get(looked);
                loaded.load(piece, &mut loading);
                found.extend(loaded.get(looked).map(|slot| (looked, slot)));
            }
            let refused = loading.take_refused();
            loaded.finish_load(loading);
            let mut expected_refused = Vec::new();
            for run in runs {
                if run.iter().any(|(block, _)| expected.get(block).is_some()) {
                    expected_refused.push(run);
                    continue;
                }
                expected.replace(run.block(), u64::from(run.blocks()), Some(run.slot()), &mut Vec::new());
                expected.add_dirty(run.block(), i64::from(run.dirty()));
            }
            prop_assert_eq!(refused, expected_refused);
            for (looked, slot) in found {
                prop_assert_eq!(expected.get(looked), Some(slot));
            }
            prop_assert_eq!(&loaded.dirty, &expected.dirty);
            for block in 0..256 {
                prop_assert_eq!(loaded.get(Block(block)), expected.get(Block(block)));
            }
        }

        /// Against the naive thing: a map from block to slot.
        #[test]
        fn the_index_is_a_map(
            steps in prop::collection::vec((0u64..200, 1u64..40, 0u32..6, 0u32..24, prop::bool::ANY, 0u64..60, prop::bool::ANY), 1..60),
        ) {
            let mut index = Index::new(64);
            let mut naive: BTreeMap<u64, Slot> = BTreeMap::new();
            for (block, blocks, set, slot, remove, beyond, alone) in steps {
                // What was looked for last, it or something near it, is found where it is then.
                let looked = Block(block + beyond);
                let look = |index: &Index| {
                    let mut runs = Vec::new();
                    index.lookup(looked, if alone { 1 } else { 2 }, &mut runs);
                    runs[0].slot
                };
                look(&index);
                let target = (!remove).then_some(Slot { set, slot });
                let mut displaced = Vec::new();
                index.replace(Block(block), blocks, target, &mut displaced);
                let mut expected: Vec<(u64, Slot)> = Vec::new();
                for i in 0..blocks {
                    let old = match target {
                        Some(first) => naive.insert(block + i, Slot { set: first.set, slot: first.slot + i as u32 }),
                        None => naive.remove(&(block + i)),
                    };
                    expected.extend(old.map(|old| (block + i, old)));
                }
                let got: Vec<(u64, Slot)> = displaced
                    .iter()
                    .flat_map(|run| (0..run.blocks).map(|i| {
                        let slot = run.slot.unwrap();
                        (run.block.0 + i, Slot { set: slot.set, slot: slot.slot + i as u32 })
                    }))
                    .collect();
                prop_assert_eq!(got, expected);
                prop_assert_eq!(look(&index), naive.get(&looked.0).copied());
                let mut runs = Vec::new();
                (0..256).for_each(|block| index.lookup(Block(block), 1, &mut runs));
                prop_assert!(runs.iter().all(|run| run.blocks == 1 && run.slot == naive.get(&run.block.0).copied()));
                runs.clear();
                index.lookup(Block(0), 256, &mut runs);
                let mut at = 0;
                for run in runs {
                    prop_assert_eq!(run.block.0, at);
                    for i in 0..run.blocks {
                        let expected = naive.get(&(at + i)).copied();
                        prop_assert_eq!(run.slot.map(|slot| Slot { set: slot.set, slot: slot.slot + i as u32 }), expected);
                        prop_assert_eq!(index.get(Block(at + i)), expected);
                    }
                    at += run.blocks;
                }
                prop_assert_eq!(at, 256);
            }
        }
    }

    #[test]
    fn sequential_writes_share_one_extent() {
        let mut index = Index::new(256);
        for i in 0..256 {
            index.replace(Block(i), 1, Some(Slot { set: 3, slot: i as u32 }), &mut Vec::new());
        }
        assert_eq!(index.regions[&0].len(), 1);
    }

    /// Scattered blocks come, most of them go again, in any order: what is left costs about what it would have cost alone.
    #[test]
    fn the_index_shrinks_with_what_is_mapped() {
        let (mut index, mut alone) = (Index::new(256), Index::new(256));
        let slot = |block: u64| Some(Slot { set: (block / 256) as u32, slot: (block % 256) as u32 });
        // No two of them are neighbours, here or in the cache.
        let blocks = |step: usize| (0..200_000u64).step_by(step).map(|number| number.wrapping_mul(7_919) % 200_000 * 2);
        blocks(1).for_each(|block| index.replace(Block(block), 1, slot(block ^ 0x2a54), &mut Vec::new()));
        let full = index.bytes();
        let stays: std::collections::BTreeSet<u64> = blocks(10).collect();
        blocks(1).filter(|block| !stays.contains(block)).for_each(|block| index.replace(Block(block), 1, None, &mut Vec::new()));
        stays.iter().for_each(|&block| alone.replace(Block(block), 1, slot(block ^ 0x2a54), &mut Vec::new()));
        let (left, least) = (index.bytes(), alone.bytes());
        assert!(left < full / 4 && left < 2 * least, "{full} bytes, then {left}; {least} alone");
        stays.iter().for_each(|&block| index.replace(Block(block), 1, None, &mut Vec::new()));
        assert!(index.bytes() < full / 16, "{} bytes for nothing, of {full}", index.bytes());
    }
}

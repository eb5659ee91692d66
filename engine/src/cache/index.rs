//! Block → slot. An origin set has a small sorted array of extents `{first block in the set, count, cache set, slot}`:
//! O(1) to the array, a binary search inside it. Sequential data costs one extent per set, random data one per block.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use crate::block::{Block, Slot};

/// A multiplicative hash for keys that are already numbers: repeatable, and never iterated.
///
/// Four neighbours share a place and lie side by side: whoever walks through numbers in order finds most of them in the processor's cache.
#[derive(Clone, Copy, Default)]
pub struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }
    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0 ^ number >> 2).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // The place comes from the low bits; the top bits tell apart what lies together.
        self.0 = ((mixed ^ mixed >> 32) << 2 | number & 3) ^ number << 62;
    }
    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }
}

pub type NumberMap<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;

/// Consecutive blocks of one origin set in consecutive slots of one cache set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    first: u16,
    count: u16,
    slot: u16,
    set: u32,
}

impl Extent {
    fn end(self) -> u16 {
        self.first + self.count
    }
    /// The part of the extent in `start..end` (blocks of the origin set).
    fn clip(self, start: u16, end: u16) -> Extent {
        let first = self.first.max(start);
        Extent { first, count: self.end().min(end) - first, slot: self.slot + (first - self.first), set: self.set }
    }
    fn continues(self, next: Extent) -> bool {
        self.end() == next.first && self.set == next.set && self.slot + self.count == next.slot
    }
}

/// A run of blocks and where it lies, `None` where it is not cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub block: Block,
    pub blocks: u64,
    pub slot: Option<Slot>,
}

/// A live run on its way into an index: consecutive blocks of one origin set in consecutive slots of one cache set, and how many of
/// these are dirty. 16 bytes: recovery holds one for every block that lies alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First block and, in the lowest 16 bits, how many.
    key: u64,
    set: u32,
    slot: u16,
    dirty: u16,
}

impl Mapping {
    pub fn new(block: Block, blocks: u32, slot: Slot, dirty: u32) -> Self {
        assert!(block.0 < 1 << 48 && blocks <= 1 << 15 && dirty <= blocks);
        Mapping { key: block.0 << 16 | u64::from(blocks), set: slot.set, slot: slot.slot as u16, dirty: dirty as u16 }
    }
    /// Orders by the first block.
    pub fn key(&self) -> u64 {
        self.key
    }
    pub fn block(&self) -> Block {
        Block(self.key >> 16)
    }
    pub fn blocks(&self) -> u32 {
        self.key as u32 & 0xffff
    }
    pub fn slot(&self) -> Slot {
        Slot { set: self.set, slot: u32::from(self.slot) }
    }
    /// Its blocks one by one, as far as they are alike: block and slot.
    pub fn iter(self) -> impl Iterator<Item = (Block, Slot)> {
        let (block, slot) = (self.block(), self.slot());
        (0..self.blocks()).map(move |i| (Block(block.0 + u64::from(i)), Slot { slot: slot.slot + i, ..slot }))
    }
}

/// What a load notes while it goes on.
#[derive(Default)]
pub struct Loading {
    refused: Vec<Mapping>,
    /// Origin sets with dirty slots, ascending.
    dirty: Vec<(u64, u32)>,
}

#[derive(Default)]
pub struct Index {
    /// Blocks in an origin set: as many as a cache set has slots.
    set_blocks: u64,
    sets: NumberMap<u64, Vec<Extent>>,
    /// Origin sets with dirty slots, and how many: the order of the sweep.
    dirty: BTreeMap<u64, u32>,
}

impl Index {
    pub fn new(set_slots: u32) -> Self {
        Index { set_blocks: u64::from(set_slots), ..Index::default() }
    }

    /// `block..block + blocks` cut at the borders of origin sets: (origin set, start in it, end in it).
    fn pieces(&self, block: Block, blocks: u64) -> impl Iterator<Item = (u64, u16, u16)> + use<> {
        let (size, end) = (self.set_blocks, block.0 + blocks);
        let mut at = block.0;
        std::iter::from_fn(move || {
            (at < end).then(|| {
                let set = at / size;
                let stop = end.min((set + 1) * size);
                let piece = (set, (at % size) as u16, (stop - set * size) as u16);
                at = stop;
                piece
            })
        })
    }

    /// Where `block` lies.
    pub fn get(&self, block: Block) -> Option<Slot> {
        let extents = self.sets.get(&(block.0 / self.set_blocks))?;
        let at = (block.0 % self.set_blocks) as u16;
        let i = extents.partition_point(|extent| extent.end() <= at);
        let extent = extents.get(i).filter(|extent| extent.first <= at)?;
        Some(Slot { set: extent.set, slot: u32::from(extent.slot + (at - extent.first)) })
    }

    /// The runs of `block..block + blocks` in order, cached or not, without gaps.
    pub fn lookup(&self, block: Block, blocks: u64, runs: &mut Vec<Run>) {
        for (set, start, end) in self.pieces(block, blocks) {
            let base = set * self.set_blocks;
            let mut at = start;
            let gap = |from: u16, to: u16, runs: &mut Vec<Run>| {
                if from < to {
                    let (block, blocks) = (Block(base + u64::from(from)), u64::from(to - from));
                    match runs.last_mut() {
                        Some(last) if last.slot.is_none() && last.block.0 + last.blocks == block.0 => last.blocks += blocks,
                        _ => runs.push(Run { block, blocks, slot: None }),
                    }
                }
            };
            if let Some(extents) = self.sets.get(&set) {
                let first = extents.partition_point(|extent| extent.end() <= start);
                for extent in extents[first..].iter().take_while(|extent| extent.first < end).map(|extent| extent.clip(start, end)) {
                    gap(at, extent.first, runs);
                    let slot = Some(Slot { set: extent.set, slot: u32::from(extent.slot) });
                    runs.push(Run { block: Block(base + u64::from(extent.first)), blocks: u64::from(extent.count), slot });
                    at = extent.end();
                }
            }
            gap(at, end, runs);
        }
    }

    /// Maps `blocks` blocks to consecutive slots from `slot` (None: to nothing); what they were mapped to is appended to `displaced`.
    pub fn replace(&mut self, block: Block, blocks: u64, slot: Option<Slot>, displaced: &mut Vec<Run>) {
        let mut done = 0;
        for (set, start, end) in self.pieces(block, blocks) {
            let fresh =
                slot.map(|slot| Extent { first: start, count: end - start, slot: (u64::from(slot.slot) + done) as u16, set: slot.set });
            done += u64::from(end - start);
            if fresh.is_none() && !self.sets.contains_key(&set) {
                continue;
            }
            let base = set * self.set_blocks;
            let extents = self.sets.entry(set).or_default();
            let low = extents.partition_point(|extent| extent.end() <= start);
            let high = low + extents[low..].partition_point(|extent| extent.first < end);
            // At most three extents take the place of those that overlap: the rest on the left, the new one, the rest on the right.
            let mut put: [Option<Extent>; 3] = [None, fresh, None];
            for (i, extent) in extents[low..high].iter().enumerate() {
                let cut = extent.clip(start, end);
                displaced.push(Run {
                    block: Block(base + u64::from(cut.first)),
                    blocks: u64::from(cut.count),
                    slot: Some(Slot { set: cut.set, slot: u32::from(cut.slot) }),
                });
                if i == 0 && extent.first < start {
                    put[0] = Some(extent.clip(extent.first, start));
                }
                if low + i + 1 == high && extent.end() > end {
                    put[2] = Some(extent.clip(end, extent.end()));
                }
            }
            let (mut low, mut high) = (low, high);
            // Joined with its neighbours where it continues them.
            if let Some(fresh) = fresh {
                let mut joined = fresh;
                if put[0].is_none() && low > 0 && extents[low - 1].continues(joined) {
                    low -= 1;
                    let left = extents[low];
                    joined = Extent { count: left.count + joined.count, ..left };
                }
                if put[2].is_none() && high < extents.len() && joined.continues(extents[high]) {
                    joined.count += extents[high].count;
                    high += 1;
                }
                put[1] = Some(joined);
            }
            extents.splice(low..high, put.into_iter().flatten());
            if extents.is_empty() {
                self.sets.remove(&set);
            }
        }
    }

    /// Makes room for so many more origin sets, of a volume that has `all`.
    pub fn reserve(&mut self, origin_sets: usize, all: usize) {
        self.sets.reserve(origin_sets.min(all.saturating_sub(self.sets.len())));
    }

    /// How many origin sets runs in ascending order touch.
    pub fn origin_sets(&self, sorted: &[Mapping]) -> usize {
        sorted.chunk_by(|a, b| self.origin_set(a) == self.origin_set(b)).count()
    }

    fn origin_set(&self, run: &Mapping) -> u64 {
        run.block().0 >> self.set_blocks.trailing_zeros()
    }

    /// Maps runs in ascending order, none across the border of an origin set; a next piece of them lies behind. A run of which a block is
    /// mapped already is left out and noted.
    pub fn load(&mut self, sorted: &[Mapping], loading: &mut Loading) {
        assert!(self.set_blocks.is_power_of_two());
        let shift = self.set_blocks.trailing_zeros();
        // All are looked up first: the processor fetches many of them at once, where it would wait for each.
        let most = sorted.chunk_by(|a, b| a.block().0 >> shift == b.block().0 >> shift);
        let most = most.filter_map(|of_set| self.sets.get(&(of_set[0].block().0 >> shift))).map(Vec::len).max().unwrap_or(0);
        let mut extents = Vec::with_capacity(most);
        for of_set in sorted.chunk_by(|a, b| a.block().0 >> shift == b.block().0 >> shift) {
            let number = of_set[0].block().0 >> shift;
            let array = self.sets.entry(number).or_default();
            let mut dirty = 0;
            extents.clear();
            let mut old = array.iter().copied().peekable();
            for run in of_set {
                let first = (run.block().0 & (self.set_blocks - 1)) as u16;
                let fresh = Extent { first, count: run.blocks() as u16, slot: run.slot, set: run.set };
                assert!(u64::from(fresh.end()) <= self.set_blocks, "a run ends with its origin set");
                while let Some(before) = old.next_if(|old| old.first < fresh.first) {
                    append(&mut extents, before);
                }
                let is_free = extents.last().is_none_or(|last: &Extent| last.end() <= fresh.first);
                if is_free && old.peek().is_none_or(|next| fresh.end() <= next.first) {
                    append(&mut extents, fresh);
                    dirty += u32::from(run.dirty);
                } else {
                    loading.refused.push(*run);
                }
            }
            old.for_each(|behind| append(&mut extents, behind));
            *array = extents.as_slice().into();
            if dirty > 0 {
                loading.dirty.push((number, dirty));
            }
        }
    }

    /// Ends a load. Returns what was left out.
    pub fn finish_load(&mut self, loading: Loading) -> Vec<Mapping> {
        if self.dirty.is_empty() {
            // At once and without a look-up for each: it is in order.
            self.dirty = loading.dirty.into_iter().collect();
        } else {
            loading.dirty.into_iter().for_each(|(set, dirty)| *self.dirty.entry(set).or_insert(0) += dirty);
        }
        loading.refused
    }

    /// Notes that `count` more (or fewer) slots of the origin set of `block` are dirty.
    pub fn add_dirty(&mut self, block: Block, count: i64) {
        if count == 0 {
            return;
        }
        let set = block.0 / self.set_blocks;
        let entry = self.dirty.entry(set).or_insert(0);
        *entry = u32::try_from(i64::from(*entry) + count).expect("dirty slots of an origin set never fall below zero");
        if *entry == 0 {
            self.dirty.remove(&set);
        }
    }

    /// The first origin set at or after `from` that has dirty slots, as its first block.
    pub fn next_dirty(&self, from: Block) -> Option<Block> {
        let set = from.0.div_ceil(self.set_blocks);
        self.dirty.range(set..).next().map(|(set, _)| Block(set * self.set_blocks))
    }

    pub fn set_blocks(&self) -> u64 {
        self.set_blocks
    }

    /// Bytes held, counted from lengths and capacities.
    pub fn bytes(&self) -> u64 {
        let extents: usize = self.sets.capacity() * (size_of::<u64>() + size_of::<Vec<Extent>>() + 1);
        // The arrays themselves cannot be walked cheaply; their sum is kept by whoever asks rarely.
        extents as u64 + self.extent_bytes() + self.dirty.len() as u64 * 16
    }

    #[allow(clippy::disallowed_methods, reason = "a sum does not depend on the order")]
    fn extent_bytes(&self) -> u64 {
        self.sets.values().map(|extents| (extents.capacity() * size_of::<Extent>()) as u64).sum()
    }
}

/// Adds an extent behind the others, joined with the last one where it continues that.
fn append(extents: &mut Vec<Extent>, next: Extent) {
    match extents.last_mut() {
        Some(last) if last.continues(next) => last.count += next.count,
        Some(_) | None => extents.push(next),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Loaded at once or mapped one after the other: the same index, and what is mapped already stays as it is.
        #[test]
        fn many_runs_at_once_are_as_one_after_the_other(
            before in prop::collection::vec((0u64..200, 1u64..20, 0u32..6, 0u32..24), 0..6),
            runs in prop::collection::vec((0u64..200, 1u32..20, 0u32..6, 0u32..24, 0u32..20), 0..40),
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
            runs.sort_by_key(Mapping::key);
            let mut loading = Loading::default();
            loaded.load(&runs, &mut loading);
            let refused = loaded.finish_load(loading);
            let mut expected_refused = Vec::new();
            for run in runs {
                if run.iter().any(|(block, _)| expected.get(block).is_some()) {
                    expected_refused.push(run);
                    continue;
                }
                expected.replace(run.block(), u64::from(run.blocks()), Some(run.slot()), &mut Vec::new());
                expected.add_dirty(run.block(), i64::from(run.dirty));
            }
            prop_assert_eq!(refused, expected_refused);
            prop_assert_eq!(&loaded.dirty, &expected.dirty);
            for block in 0..256 {
                prop_assert_eq!(loaded.get(Block(block)), expected.get(Block(block)));
            }
        }

        /// Against the naive thing: a map from block to slot.
        #[test]
        fn the_index_is_a_map(steps in prop::collection::vec((0u64..200, 1u64..40, 0u32..6, 0u32..24, prop::bool::ANY), 1..60)) {
            let mut index = Index::new(64);
            let mut naive: BTreeMap<u64, Slot> = BTreeMap::new();
            for (block, blocks, set, slot, remove) in steps {
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
                let mut runs = Vec::new();
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
        assert_eq!(index.sets[&0].len(), 1);
    }
}

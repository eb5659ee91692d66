//! Mapping: the index is built at once, from the slots that live when everything was replayed. A look-up for each block while headers and
//! records come in would cost ten times as much: runs are sorted instead, and every origin set gets its array in one piece.
//!
//! Replay notes which blocks it has touched, and the slot it gave them. A described slot of such a block is old, unless it is that slot.

use crate::block::{Block, Slot};
use crate::cache::format::Bits;
use crate::cache::format::journal::Record;
use crate::cache::index::{Mapping, NumberMap};
use crate::cache::ranges::Ranges;
use crate::payload::Payload;
use crate::probe::Phase;

use super::Engine;

/// Runs that are sorted together: they fit into a core's own cache.
const BUCKET: u64 = 16 << 10;
const BUCKETS_MAX: u64 = 4096;

/// Blocks that the journal or a client has changed since the checkpoint: what a header says of them is old.
#[derive(Default)]
pub(in crate::path) struct Touched {
    /// With the slot that a replayed PUT gave them, while it lives.
    blocks: NumberMap<u64, Option<Slot>>,
    /// The same blocks, in the order of their first touch.
    order: Vec<u64>,
    ranges: Ranges,
}

impl Touched {
    pub fn reserve(&mut self, blocks: usize) {
        self.blocks.reserve(blocks);
        self.order.reserve(blocks);
    }

    /// The block is in this slot from now on, or in none. Returns the slot that an earlier PUT gave it, which is to die.
    pub fn insert(&mut self, block: Block, slot: Option<Slot>) -> Option<Slot> {
        let older = self.blocks.insert(block.0, slot);
        if older.is_none() {
            self.order.push(block.0);
        }
        older.flatten()
    }

    /// No slot of these blocks counts any more. Returns those that PUTs gave them.
    pub fn insert_range(&mut self, block: Block, blocks: u64) -> Vec<Slot> {
        self.ranges.zero(block, blocks, crate::cache::format::RangeKind::Zero, 0);
        let end = block.0 + blocks;
        let mut take = |block: u64| self.blocks.get_mut(&block).and_then(Option::take);
        // Whatever is shorter: the range, or all that was touched.
        if blocks < self.order.len() as u64 {
            (block.0..end).filter_map(take).collect()
        } else {
            self.order.iter().filter(|touched| (block.0..end).contains(touched)).filter_map(|&block| take(block)).collect()
        }
    }

    /// The slot that a PUT gave to the block is dead.
    pub fn forget(&mut self, block: Block, slot: Slot) {
        if let Some(now) = self.blocks.get_mut(&block.0)
            && *now == Some(slot)
        {
            *now = None;
        }
    }

    /// Does this slot still hold the newest contents of its block?
    pub fn is_current(&self, block: Block, slot: Slot) -> bool {
        match self.blocks.get(&block.0) {
            Some(&now) => now == Some(slot),
            None => !self.ranges.is_zeroed(block),
        }
    }

    fn cursor(&self) -> Cursor {
        let mut blocks = self.order.clone();
        blocks.sort_unstable();
        Cursor { blocks, at: 0, range: (0, 0) }
    }
}

/// Walks the touched blocks beside runs in ascending order.
struct Cursor {
    blocks: Vec<u64>,
    at: usize,
    /// The first touched range that does not end before the run: first block, and the one behind the last.
    range: (u64, u64),
}

impl Cursor {
    /// May a block of this run have been touched?
    fn hits(&mut self, touched: &Touched, run: &Mapping) -> bool {
        let (block, end) = (run.block().0, run.block().0 + u64::from(run.blocks()));
        while self.blocks.get(self.at).is_some_and(|&touched| touched < block) {
            self.at += 1;
        }
        if self.range.1 <= block {
            let next = touched.ranges.next(run.block());
            self.range = next.map_or((u64::MAX, u64::MAX), |(start, range)| (start.0, start.0 + range.blocks));
        }
        self.blocks.get(self.at).is_some_and(|&touched| touched < end) || self.range.0 < end
    }
}

impl<P: Payload> Engine<P> {
    /// Before service: everything that headers and the journal have described.
    pub(super) fn map_described(&mut self) {
        let described: Vec<u32> = self.sets.iter().filter(|(_, set)| set.loaded && set.live_count > 0).map(|(number, _)| number).collect();
        self.map_slots(&described);
    }

    /// Puts the live slots of these sets into the index; slots of blocks that have been touched since die.
    pub(super) fn map_slots(&mut self, sets: &[u32]) {
        let buckets = self.sorted_runs(sets);
        self.index.reserve(buckets.iter().map(|runs| self.index.origin_sets(runs)).sum());
        let mut cursor = self.recovery().touched.cursor();
        let mut refused = Vec::new();
        let mut current = Vec::new();
        for runs in buckets {
            current.clear();
            self.keep_current(&runs, &mut cursor, &mut current);
            self.index.load(&current, &mut refused);
        }
        self.refuse(&refused);
    }

    /// The live runs of these sets in ascending order of their blocks, in pieces.
    fn sorted_runs(&self, sets: &[u32]) -> Vec<Vec<Mapping>> {
        let live: u64 = sets.iter().map(|&set| u64::from(self.sets.get(set).live_count)).sum();
        let bits = (live / BUCKET).clamp(1, BUCKETS_MAX).ilog2();
        // All blocks are below this power of two.
        let shift = self.config.geometry.blocks().next_power_of_two().ilog2().saturating_sub(bits);
        let bucket = |run: &Mapping| (run.block().0 >> shift) as usize;
        let mut counts = vec![0; 1 << bits];
        sets.iter().for_each(|&set| self.sets.live_runs(set, |run| counts[bucket(&run)] += 1));
        let mut buckets: Vec<Vec<Mapping>> = counts.into_iter().map(Vec::with_capacity).collect();
        sets.iter().for_each(|&set| self.sets.live_runs(set, |run| buckets[bucket(&run)].push(run)));
        buckets.iter_mut().for_each(|runs| runs.sort_unstable_by_key(Mapping::key));
        buckets
    }

    /// Appends the runs of `runs` without the blocks that lie elsewhere by now; the slots of those die.
    fn keep_current(&mut self, runs: &[Mapping], cursor: &mut Cursor, current: &mut Vec<Mapping>) {
        let group = if self.phase == Phase::Serving { self.journal.group() } else { 0 };
        let touched = &self.recovery.as_ref().expect("recovery is under way").touched;
        for run in runs {
            if !cursor.hits(touched, run) {
                current.push(*run);
                continue;
            }
            for (block, slot) in run.iter() {
                if touched.is_current(block, slot) {
                    current.push(Mapping::new(block, 1, slot, u32::from(self.sets.is_dirty(slot))));
                } else {
                    self.sets.kill(slot, group);
                }
            }
        }
    }

    /// Two live slots for one block: before service, nobody can tell which one counts. A late header is of a clean set, and loses.
    fn refuse(&mut self, refused: &[Mapping]) {
        let Some(first) = refused.first() else { return };
        let late = self.phase == Phase::Serving;
        let (block, slot, other) = first
            .iter()
            .find_map(|(block, slot)| Some((block, slot, self.index.get(block)?)))
            .expect("a run is refused for a block that is mapped");
        self.report_damage(!late, format!("block {} lies in two live slots, {slot:?} and {other:?}", block.0));
        if !late {
            return;
        }
        for run in refused {
            let set = run.slot().set;
            let mut slots = Bits::new(self.config.geometry.set_slots);
            for (_, slot) in run.iter() {
                slots.set(slot.slot);
                self.sets.kill(slot, self.journal.group());
            }
            self.journal.push(&Record::Kill { set, life: self.sets.get(set).life as u32, slots });
            self.note_record();
        }
    }
}

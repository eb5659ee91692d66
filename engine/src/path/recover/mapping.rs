//! Mapping: the index is built at once, from the slots that live when everything was replayed. A look-up for each block while headers and
//! records come in would cost ten times as much: runs are noted instead while the SSD is read, in stretches of the volume (an intake), and
//! sorted when all are there. What changes in a set afterwards takes back its runs: they are noted once more. Beside service the index
//! grows bucket by bucket, so that no request waits long.
//!
//! Replay notes which blocks it has touched, and the slot it gave them. A described slot of such a block is old, unless it is that slot.

use crate::block::{Block, Slot};
use crate::cache::format::journal::Record;
use crate::cache::format::{Bits, Entry, Geometry, RangeKind};
use crate::cache::index::{Intake, Loading, Mapping};
use crate::cache::ranges::Ranges;
use crate::cache::sets::Sets;
use crate::fault_point::FaultPoint;
use crate::number::NumberMap;
use crate::payload::Payload;
use crate::probe::Phase;

use super::Engine;

/// Runs on their way into the index.
#[derive(Default)]
pub(in crate::path) struct Noted {
    intake: Option<Intake>,
    /// Sets whose runs are in it.
    sets: Vec<bool>,
}

/// A mapping under way: bucket by bucket.
pub(in crate::path) struct Mapper {
    intake: Intake,
    /// Sets that changed after their runs were noted; these runs count no more.
    has_changed: Vec<bool>,
    loading: Loading,
    /// Slots of which another place has taken the block.
    dead: Vec<Slot>,
    /// Kept for its memory only: the runs of a part that count.
    current: Vec<Mapping>,
    /// How far what was touched has been walked.
    at: usize,
}

/// Blocks of a stretch.
const STRETCH: u64 = 1 << 16;
/// So many blocks are looked up for ranges before the blocks are sorted into stretches.
const COST_MOST: u64 = 1 << 22;

/// Blocks that the journal or a client has changed since the checkpoint: what a header says of them is old.
#[derive(Default)]
pub(in crate::path) struct Touched {
    /// With the slot that a replayed PUT gave them, while it lives. 16 bytes each: a long log names millions.
    blocks: NumberMap<u64, Place>,
    ranges: Ranges,
    /// What ranges have cost so far, in blocks looked up; and from where that is much on, the blocks that have a slot, by stretches.
    cost: u64,
    stretches: Option<NumberMap<u64, Vec<u64>>>,
    /// What was touched before the latest mapping, in ascending order.
    mapped: Vec<(u64, Place)>,
}

/// A slot, or none, in 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place(u64);

impl Place {
    const NONE: Place = Place(u64::MAX);

    fn at(slot: Slot) -> Self {
        Place(u64::from(slot.set) << 16 | u64::from(slot.slot))
    }
    fn slot(self) -> Option<Slot> {
        (self != Place::NONE).then_some(Slot { set: (self.0 >> 16) as u32, slot: self.0 as u32 & 0xffff })
    }
}

impl Touched {
    pub fn reserve(&mut self, blocks: usize) {
        self.blocks.reserve(blocks);
    }

    /// Makes room for these entries, about to be inserted. All are looked up here, at once: the processor fetches many places together,
    /// where inserting one after the other would wait for each.
    pub fn expect(&mut self, entries: &[Entry]) {
        let fresh = entries.iter().filter(|entry| !self.blocks.contains_key(&entry.block.0)).count();
        self.reserve(fresh);
    }

    /// The block is in this slot from now on, or in none. Returns the slot that an earlier PUT gave it, which is to die.
    pub fn insert(&mut self, block: Block, slot: Option<Slot>) -> Option<Slot> {
        let older = self.blocks.insert(block.0, slot.map_or(Place::NONE, Place::at)).and_then(Place::slot);
        if let (Some(stretches), Some(_), None) = (&mut self.stretches, slot, older) {
            stretches.entry(block.0 / STRETCH).or_default().push(block.0);
        }
        older
    }

    /// No slot of these blocks counts any more. Returns those that PUTs gave them, in any order.
    #[allow(clippy::disallowed_methods, reason = "all of them die, whatever the order")]
    pub fn insert_range(&mut self, block: Block, blocks: u64) -> Vec<Slot> {
        self.ranges.zero(block, blocks, RangeKind::Zero, 0);
        let range = block.0..block.0 + blocks;
        let take = |place: &mut Place| std::mem::replace(place, Place::NONE).slot();
        if self.stretches.is_some() {
            return self.take_stretches(range);
        }
        // Whatever is shorter: the range, or all that was touched.
        self.cost += blocks.min(self.blocks.len() as u64);
        if self.cost > COST_MOST.max(4 * self.blocks.len() as u64) {
            self.sort_into_stretches();
        }
        if blocks < self.blocks.len() as u64 {
            range.filter_map(|block| self.blocks.get_mut(&block).and_then(take)).collect()
        } else {
            self.blocks.iter_mut().filter(|(block, _)| range.contains(block)).filter_map(|(_, place)| take(place)).collect()
        }
    }

    /// A log may hold thousands of long ranges behind millions of blocks (`fstrim` after much was written): from now on a range finds the blocks
    /// in it without asking for each.
    #[allow(clippy::disallowed_methods, reason = "all of them, whatever the order")]
    fn sort_into_stretches(&mut self) {
        let mut stretches: NumberMap<u64, Vec<u64>> = NumberMap::default();
        for (&block, _) in self.blocks.iter().filter(|(_, place)| place.slot().is_some()) {
            stretches.entry(block / STRETCH).or_default().push(block);
        }
        self.stretches = Some(stretches);
    }

    /// As [`Touched::insert_range`]. Of a stretch either the blocks in the range are asked for, or those that were touched, if they are fewer.
    fn take_stretches(&mut self, range: std::ops::Range<u64>) -> Vec<Slot> {
        let Touched { blocks, stretches: Some(stretches), .. } = self else { return Vec::new() };
        let mut slots = Vec::new();
        let mut take = |block: u64| slots.extend(blocks.get_mut(&block).and_then(|place| std::mem::replace(place, Place::NONE).slot()));
        for stretch in range.start / STRETCH..range.end.div_ceil(STRETCH) {
            let Some(touched) = stretches.get_mut(&stretch) else { continue };
            let part = range.start.max(stretch * STRETCH)..range.end.min((stretch + 1) * STRETCH);
            if part.end - part.start == STRETCH {
                touched.drain(..).for_each(&mut take);
            } else if part.end - part.start < touched.len() as u64 {
                part.for_each(&mut take);
            } else {
                touched.extract_if(.., |block| part.contains(block)).for_each(&mut take);
            }
        }
        slots
    }

    /// The slot that a PUT gave to the block is dead.
    pub fn forget(&mut self, block: Block, slot: Slot) {
        if let Some(place) = self.blocks.get_mut(&block.0)
            && *place == Place::at(slot)
        {
            *place = Place::NONE;
        }
    }

    /// Does this slot still hold the newest contents of its block?
    pub fn is_current(&self, block: Block, slot: Slot) -> bool {
        self.blocks.get(&block.0).map_or_else(|| !self.ranges.is_zeroed(block), |&place| place == Place::at(slot))
    }

    /// Sorts everything touched so far, to be walked beside what is mapped now. After it only late headers are mapped: a slot of theirs is
    /// old if its block was touched at all, so it does no harm that a block touched before and after is there twice.
    #[allow(clippy::disallowed_methods, reason = "sorted right after")]
    fn sort(&mut self, mut sorter: Intake) {
        (self.cost, self.stretches) = (0, None);
        for (block, place) in std::mem::take(&mut self.blocks) {
            let slot = place.slot().unwrap_or(Slot { set: 0, slot: 0 });
            sorter.push(Mapping::new(Block(block), 1, slot, 0), place == Place::NONE);
        }
        sorter.drain(|sorted| {
            let place = |run: &Mapping, is_none| if is_none { Place::NONE } else { Place::at(run.slot()) };
            self.mapped.extend(sorted.map(|(run, is_none)| (run.block().0, place(&run, is_none))));
        });
        // Two ascending rows.
        self.mapped.sort_by_key(|&(block, _)| block);
    }

    /// Walks on from this place of what was sorted.
    fn cursor(&self, at: usize) -> Cursor<'_> {
        Cursor { blocks: &self.mapped, at, ranges: &self.ranges, range: (0, 0), next: 0, later: &self.blocks }
    }
}

/// Walks what was touched beside runs in ascending order.
struct Cursor<'a> {
    blocks: &'a [(u64, Place)],
    /// The first one that is not below the block asked for last.
    at: usize,
    ranges: &'a Ranges,
    /// The first touched range that does not end before it: first block, and the one behind the last.
    range: (u64, u64),
    /// Of what was touched, the first block that is not below it.
    next: u64,
    /// What clients have touched since it was sorted: mostly nothing, never much.
    later: &'a NumberMap<u64, Place>,
}

impl Cursor<'_> {
    /// Was any block of this run touched? Asked in the order of their first blocks.
    #[inline]
    fn hits(&mut self, run: &Mapping) -> bool {
        self.next < run.end() && self.advance(run.block().0) < run.end() || self.is_later(run)
    }

    fn is_later(&self, run: &Mapping) -> bool {
        !self.later.is_empty() && run.iter().any(|(block, _)| self.later.contains_key(&block.0))
    }

    /// The first block that was touched, not below this one.
    fn advance(&mut self, block: u64) -> u64 {
        self.at += self.blocks[self.at..].iter().take_while(|&&(touched, _)| touched < block).count();
        if self.range.1 <= block {
            let next = self.ranges.next(Block(block));
            self.range = next.map_or((u64::MAX, u64::MAX), |(start, range)| (start.0, start.0 + range.blocks));
        }
        let touched = self.blocks.get(self.at).map_or(u64::MAX, |&(touched, _)| touched);
        self.next = touched.min(self.range.0.max(block));
        self.next
    }

    /// As [`Touched::is_current`], for a block of the run asked for last.
    fn is_current(&self, block: Block, slot: Slot) -> bool {
        if self.later.contains_key(&block.0) {
            return false;
        }
        match self.blocks[self.at..].iter().find(|&&(touched, _)| touched >= block.0) {
            Some(&(touched, now)) if touched == block.0 => now == Place::at(slot),
            Some(_) | None => !self.ranges.is_zeroed(block),
        }
    }
}

impl<P: Payload> Engine<P> {
    /// Before service: everything that headers and the journal have described.
    pub(super) fn map_described(&mut self) {
        let described: Vec<u32> = self.sets.iter().filter(|(_, set)| set.loaded && set.live_count > 0).map(|(number, _)| number).collect();
        let Some(mut mapper) = self.begin_mapping(&described) else { return };
        while self.map_bucket(&mut mapper) && self.phase != Phase::Refused {}
        self.end_mapping(mapper);
    }

    /// Notes the live runs of a set that has been described, to be mapped later.
    pub(super) fn note_live(&mut self, set: u32) {
        self.note_runs(set, false);
    }

    fn note_runs(&mut self, set: u32, again: bool) {
        let geometry = &self.config.geometry;
        let noted = &mut self.recovery.as_mut().expect("recovery is under way").noted;
        let intake = noted.intake.get_or_insert_with(|| intake_for(geometry));
        let most = intake.blocks_max();
        self.sets.note_live_runs(set, most, |run| intake.push(run, again));
        noted.sets.resize(geometry.sets as usize, false);
        noted.sets[set as usize] |= !again;
    }

    /// To put the live slots of these sets into the index, where slots of blocks that have been touched since die. None: there are none.
    pub(super) fn begin_mapping(&mut self, sets: &[u32]) -> Option<Mapper> {
        // What was noted of a set before it changed counts no more. What is noted again is marked.
        let early = std::mem::take(&mut self.recovery().noted.sets);
        let has_changed: Vec<bool> = early.iter().zip(self.sets.iter()).map(|(&early, (_, set))| early && !set.noted).collect();
        for &set in sets {
            if !self.sets.get(set).noted {
                self.note_runs(set, true);
            }
        }
        let intake = self.recovery().noted.intake.take()?;
        let sorter = intake_for(&self.config.geometry);
        self.recovery().touched.sort(sorter);
        Some(Mapper { intake, has_changed, loading: Loading::default(), dead: Vec::new(), current: Vec::new(), at: 0 })
    }

    /// Maps the next bucket. Between two of them clients may change what is mapped, and touch what is not.
    /// False: there is none left.
    pub(super) fn map_bucket(&mut self, mapper: &mut Mapper) -> bool {
        let Mapper { intake, has_changed, loading, dead, current, at } = mapper;
        let counts = |(run, again): (Mapping, bool)| (again || !has_changed[run.slot().set as usize]).then_some(run);
        let mut cursor = self.recovery.as_ref().expect("recovery is under way").touched.cursor(*at);
        let any = intake.drain_bucket(|runs| {
            keep_current(&self.sets, runs.filter_map(counts), &mut cursor, current, dead);
            self.index.load(current, loading);
        });
        *at = cursor.at;
        let refused = loading.take_refused();
        self.refuse(&refused);
        any
    }

    pub(super) fn end_mapping(&mut self, mapper: Mapper) {
        self.kill_replaced(mapper.dead);
        self.index.finish_load(mapper.loading);
    }

    /// Set by set: in the order of their blocks each would be fetched from memory once more.
    fn kill_replaced(&mut self, mut dead: Vec<Slot>) {
        // What has replaced them has been told already: they are not to wait for a group in which nothing may ever be said.
        let group = if self.phase == Phase::Serving { self.journal.newest_group() } else { 0 };
        dead.sort_unstable_by_key(|slot| (slot.set, slot.slot));
        for slot in dead {
            self.sets.kill(slot, 1, group);
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
        self.find(
            if late { FaultPoint::LateTwoSlots } else { FaultPoint::TwoSlots },
            !late,
            format!("block {} lies in two live slots, {slot:?} and {other:?}", block.0),
        );
        if !late {
            return;
        }
        for run in refused {
            let set = run.slot().set;
            let mut slots = Bits::new(self.config.geometry.set_slots);
            for (_, slot) in run.iter() {
                slots.set(slot.slot);
                self.sets.kill(slot, 1, self.journal.group());
            }
            self.journal.push(&Record::Kill { set, life: self.sets.get(set).life as u32, slots });
            self.note_record();
        }
    }
}

fn intake_for(geometry: &Geometry) -> Intake {
    let slots = geometry.slots();
    Intake::new(geometry.set_slots, geometry.blocks(), slots)
}

/// Leaves in `current` the runs without the blocks that lie elsewhere by now, in ascending order; adds the slots of those to `dead`.
fn keep_current(
    sets: &Sets,
    runs: impl Iterator<Item = Mapping>,
    cursor: &mut Cursor<'_>,
    current: &mut Vec<Mapping>,
    dead: &mut Vec<Slot>,
) {
    current.clear();
    let mut is_sorted = true;
    for run in runs {
        if !cursor.hits(&run) {
            current.push(run);
            continue;
        }
        // What is left of a long run may lie behind the beginning of the next one.
        is_sorted &= run.blocks() == 1;
        for (block, slot) in run.iter() {
            match (cursor.is_current(block, slot), run.blocks()) {
                (false, _) => dead.push(slot),
                (true, 1) => current.push(run),
                (true, _) => current.push(Mapping::new(block, 1, slot, u32::from(sets.is_dirty(slot)))),
            }
        }
    }
    if !is_sorted {
        current.sort_unstable_by_key(|run| run.block());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Put(u64, u32),
        Remove(u64),
        Forget(u64, u32),
        Range(u64, u64),
    }

    /// Blocks on both sides of the borders of stretches.
    fn block() -> impl Strategy<Value = u64> {
        (0..4u64, 0..24u64).prop_map(|(stretch, at)| (stretch * STRETCH + at).saturating_sub(12))
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (block(), 0..100u32).prop_map(|(block, slot)| Step::Put(block, slot)),
            1 => block().prop_map(Step::Remove),
            1 => (block(), 0..100u32).prop_map(|(block, slot)| Step::Forget(block, slot)),
            2 => (block(), prop_oneof![1..8u64, Just(STRETCH), 1..4 * STRETCH]).prop_map(|(block, blocks)| Step::Range(block, blocks)),
        ]
    }

    proptest! {
        #[test]
        fn ranges_find_the_same_whether_blocks_are_sorted_into_stretches_or_not(steps in prop::collection::vec(step(), 1..200), at in 0usize..200) {
            let [mut plain, mut sorted] = [Touched::default(), Touched::default()];
            for (number, step) in steps.into_iter().enumerate() {
                if number == at {
                    sorted.sort_into_stretches();
                }
                let [mut found, mut found_sorted] = [&mut plain, &mut sorted].map(|touched| match step {
                    Step::Put(block, slot) => touched.insert(Block(block), Some(Slot { set: 1, slot })).into_iter().collect(),
                    Step::Remove(block) => touched.insert(Block(block), None).into_iter().collect(),
                    Step::Forget(block, slot) => {
                        touched.forget(Block(block), Slot { set: 1, slot });
                        Vec::new()
                    }
                    Step::Range(block, blocks) => touched.insert_range(Block(block), blocks),
                });
                found.sort_unstable();
                found_sorted.sort_unstable();
                prop_assert_eq!(found, found_sorted);
            }
        }
    }

    /// Two million blocks, and 5,000 ranges of a million each: two and a half thousand million look-ups, one by one.
    #[test]
    fn thousands_of_long_ranges_behind_millions_of_blocks_are_found_at_once() {
        let mut touched = Touched::default();
        for block in 0..1 << 21 {
            touched.insert(Block(block * 16), Some(Slot { set: 0, slot: 0 }));
        }
        let found: usize = (0..5_000).map(|range| touched.insert_range(Block(range << 20), 1 << 20).len()).sum();
        assert_eq!(found, 1 << 21);
        assert!(touched.cost <= 2 * COST_MOST.max(1 << 23), "{} look-ups", touched.cost);
    }
}

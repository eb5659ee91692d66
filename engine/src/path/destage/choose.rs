//! Which dirty blocks the next batch takes home: a sweep in the order of addresses, as much as may be under way for as long as clients put up
//! with it; or whole sets, where one of paper 000's gates decides.

use std::collections::BTreeSet;

use crate::block::{Block, PAGE_BYTES, Slot, Span};
use crate::cache::format::RangeKind;
use crate::cache::ranges::Zeroed;
use crate::cache::stream::Source;
use crate::config::Canary;
use crate::gate::pace::{Pace, Work};
use crate::op::Hole;
use crate::payload::Payload;
use crate::probe::{DestageReason, GateState};
use crate::time::{Duration, Instant};

use super::super::Engine;
use super::{Batch, Going, Head, Piece, RANGES, Read, State, What, ZERO_ATOMS};

/// Atoms of one origin write: 1 MiB.
const PIECE_ATOMS: u64 = 2048;
/// Origin sets looked at for one batch: much may be dirty and not ready to go.
const VISITS: u32 = 1024;
/// Until so much of the room above the mark is gone, nothing goes home for room alone beside writers that wait for the SSD.
const PRESSING: f64 = 0.5;
/// A writer that waited for the SSD counts for so long.
const HEARD: Duration = Duration::from_millis(100);
/// Entries on a page of the journal, as room there is counted.
const PAGE_ENTRIES: u64 = 100;

/// How much a batch may still become.
struct Most {
    atoms: u64,
    length: Duration,
    /// What it is already.
    work: Work,
    /// The sets that its slots lie in, and how many of them are to be closed: what the log is told at its end.
    sets: BTreeSet<u32>,
    opened: u64,
}

impl Most {
    fn has_room(&self, pace: &Pace) -> bool {
        self.atoms > 0 && (self.work == Work::default() || pace.time_of(&self.work) < self.length)
    }
}

impl<P: Payload> Engine<P> {
    /// The next batch of the sweep: from the cursor to the end of the volume, then from its start.
    pub(super) fn choose(&mut self) -> Batch<P> {
        let (pieces, slots, leaving) = (Vec::new(), Vec::new(), Vec::new());
        let (next, active, left, ready) = (0, 0, 0, Vec::new());
        let head = |(_, set)| {
            let (found, next) = (self.sets.get(set), self.sets.next_slot(set));
            // What is not durable yet does not go home with this batch. It was pinned in the order of its slots.
            let next = self.window.unpinned(Slot { set, slot: 0 }, next);
            let since = self.window.pinned_at(Slot { set, slot: next }).unwrap_or(self.now);
            Head { set, life: found.life, next, since, dirty_since: found.dirty_since }
        };
        let heads = self.open_sets_of(Source::Client).map(head).collect();
        let mut batch = Batch {
            began: self.now,
            work: Work::default(),
            pieces,
            next,
            active,
            left,
            ready,
            slots,
            heads,
            leaving,
            flushing: false,
            flushed: false,
            void: false,
            only_refused: false,
            failed: false,
            not_given: false,
            refused: false,
            refused_zeros: Vec::new(),
            failed_together: None,
        };
        self.choose_ranges(&mut batch);
        if self.has_rescue_ahead() {
            // What memory has goes home first, from there: nearly all of what is dirty would be looked at in vain, again and again.
            return batch;
        }
        if let Some(sets) = self.gate.sets_at_once() {
            self.choose_sets(&mut batch, sets);
            return batch;
        }
        let urgency = self.urgency();
        let length = self.destage.courtesy.length(self.now, urgency);
        let start = self.destage.cursor;
        let (atoms, work) = (self.config.destage_atoms, self.work_of(&batch));
        let mut most = Most { atoms, length, work, sets: BTreeSet::new(), opened: 0 };
        self.choose_slots(&mut batch, start, None, &mut most);
        let has_wrapped = self.destage.cursor == Block(0);
        if has_wrapped && start.0 > 0 {
            self.choose_slots(&mut batch, Block(0), Some(start), &mut most);
        }
        batch
    }

    /// How much destaging presses, from 0 to 1.
    pub(super) fn urgency(&self) -> f64 {
        self.gate.urgency(self.dirty_sets_packed(), self.config.geometry.sets)
    }

    /// Until when the SSD is left to writers who wait for it: above the mark, while there is room and nothing is old.
    pub(in crate::path) fn leaves_ssd_until(&self, now: Instant) -> Option<Instant> {
        let until = self.destage.ssd_awaited? + HEARD;
        let is_for_room = self.gate.state() == GateState::Destage(DestageReason::HighMark);
        let is_old = self.dirty_since().is_some_and(|since| now.since(since) >= self.gate.max_age);
        (is_for_room && until > now && !is_old && self.urgency() < PRESSING).then_some(until)
    }

    fn choose_ranges(&mut self, batch: &mut Batch<P>) {
        let durable = self.journal.durable_group();
        for (block, blocks, range) in self.zero_pieces() {
            if batch.pieces.len() == RANGES {
                break;
            }
            let is_early = range.group > durable && !self.has_canary(Canary::DestageBeforeDurable);
            if is_early || self.destage.shunned.contains(block, self.now) {
                continue;
            }
            let last = self.config.geometry.block_span(Block(block.0 + blocks - 1));
            let start = block.0 * self.block_atoms();
            let hole = if range.kind == RangeKind::Trim { Hole::Allowed } else { Hole::Forbidden };
            let span = Span::new(start, last.end() - start);
            batch.pieces.push(Piece { span, what: What::Zero(block, blocks, hole), state: State::Waiting });
        }
    }

    /// The zeroed ranges, in pieces that go home in one operation each: the first block, and how many.
    pub(super) fn zero_pieces(&self) -> impl Iterator<Item = (Block, u64, Zeroed)> + '_ {
        let mut at = Block(0);
        std::iter::from_fn(move || {
            let (start, range) = self.ranges.next(at)?;
            let block = start.max(at);
            let blocks = (start.0 + range.blocks - block.0).min(self.zero_blocks());
            at = Block(block.0 + blocks);
            Some((block, blocks, range))
        })
    }

    /// Blocks of one such piece, at most.
    pub(super) fn zero_blocks(&self) -> u64 {
        ZERO_ATOMS / self.block_atoms()
    }

    fn choose_slots(&mut self, batch: &mut Batch<P>, from: Block, until: Option<Block>, most: &mut Most) {
        let set_blocks = self.index.set_blocks();
        let mut from = Block(from.0 / set_blocks * set_blocks);
        let mut runs = Vec::new();
        let mut visited = 0;
        while most.has_room(&self.destage.pace) && self.can_be_told(most) && visited < VISITS {
            visited += 1;
            let found = self.index.next_dirty(from).filter(|set| until.is_none_or(|until| set.0 < until.0));
            let Some(set) = found else {
                self.destage.cursor = Block(0);
                return;
            };
            from = Block(set.0 + set_blocks);
            self.destage.cursor = from;
            runs.clear();
            self.index.lookup(set, set_blocks.min(self.config.geometry.blocks() - set.0), &mut runs);
            let before = batch.slots.len();
            for run in &runs {
                let Some(first) = run.slot else { continue };
                for i in 0..run.blocks {
                    let (block, slot) = (Block(run.block.0 + i), Slot { slot: first.slot + i as u32, ..first });
                    if self.may_destage(block, slot) {
                        most.atoms = most.atoms.saturating_sub(self.add_slot(batch, block, slot));
                        most.sets.insert(slot.set);
                        most.opened += u64::from(self.sets.is_opened(slot));
                    }
                }
            }
            most.work.add_set((batch.slots.len() - before) as u64);
        }
    }

    /// The end of a batch is told to the log at once. So that there is always room for that, it is a group like any other, of a sixteenth of the
    /// ring at most (but for the origin set that was added last).
    fn can_be_told(&self, most: &Most) -> bool {
        self.entries_to_clean(most.sets.len() as u64, most.opened) < self.config.group_bytes() / PAGE_BYTES * PAGE_ENTRIES
    }

    /// The least recently used dirty sets, as many as the floor lacks and at most `most`: each leaves as a whole.
    fn choose_sets(&self, batch: &mut Batch<P>, most: u32) {
        let lacking = self.config.free_floor.saturating_sub(self.sets.free_or_dying());
        let is_ready = |&set: &u32| self.sets.get(set).dirty_count > 0 && self.sets.get(set).may_leave();
        let leaving = self.sets.by_age().filter(is_ready).take(lacking.min(most) as usize);
        batch.leaving = leaving.map(|set| (set, self.sets.get(set).life)).collect();
        let mut slots: Vec<(Block, Slot)> = Vec::new();
        for &(set, _) in &batch.leaving {
            let of_set = self.sets.get(set).live.iter().map(|slot| Slot { set, slot });
            slots.extend(of_set.map(|slot| (self.sets.entry(slot, |block| self.full(block)).block, slot)));
        }
        slots.sort_unstable();
        for (block, slot) in slots {
            if self.may_destage(block, slot) {
                self.add_slot(batch, block, slot);
            }
        }
    }

    fn may_destage(&self, block: Block, slot: Slot) -> bool {
        if !self.sets.is_dirty(slot) {
            return false;
        }
        let durable = !self.window.holds(slot) || self.has_canary(Canary::DestageBeforeDurable);
        let span = self.config.geometry.block_span(block);
        let newer = self.through.covers(block, 1) || self.origin.is_written(span);
        let is_shunned = self.destage.shunned.contains(block, self.now);
        durable && !self.ranges.is_zeroed(block) && !newer && !is_shunned && !self.is_left_alone(slot, block)
    }

    /// Adds the valid atoms of one slot to the batch, joining the piece before it where the origin is contiguous.
    fn add_slot(&self, batch: &mut Batch<P>, block: Block, slot: Slot) -> u64 {
        let base = block.0 * self.block_atoms();
        let most = PIECE_ATOMS.min(self.limits[1].op_atoms).max(self.block_atoms());
        let valid = self.valid_atoms(slot, block);
        batch.slots.push(Going { slot, life: self.sets.get(slot.set).life, block });
        for run in valid.runs() {
            let (skip, atoms) = (u64::from(run.start), u64::from(run.end - run.start));
            let span = Span::new(base + skip, atoms);
            let read = Read { first: slot, slots: 1, block, skip, atoms, tries: 0, contents: None, held: true };
            match batch.pieces.last_mut() {
                Some(Piece { span: before, what: What::Data { reads }, .. })
                    if before.end() == span.start && before.atoms + atoms <= most && !self.destage.careful =>
                {
                    before.atoms += atoms;
                    add_read(reads, read, self.block_atoms(), self.limits[0].op_atoms);
                }
                _ => batch.pieces.push(Piece { span, what: What::Data { reads: vec![read] }, state: State::Waiting }),
            }
        }
        u64::from(valid.count())
    }
}

/// Joins a read to the one before it if their slots and atoms are consecutive, and an operation may be of so many atoms: slots are read as wholes.
fn add_read<P>(reads: &mut Vec<Read<P>>, read: Read<P>, block_atoms: u64, most: u64) {
    if let Some(last) = reads.last_mut().filter(|last| u64::from(last.slots + 1) * block_atoms <= most) {
        let next = Slot { slot: last.first.slot + last.slots, ..last.first };
        if next == read.first && last.skip + last.atoms == u64::from(last.slots) * block_atoms && read.skip == 0 {
            last.slots += read.slots;
            last.atoms += read.atoms;
            return;
        }
    }
    reads.push(read);
}

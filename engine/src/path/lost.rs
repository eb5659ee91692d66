//! Lost: a dirty slot that the SSD does not give any more.
//!
//! ```text
//! unreadable for good ─┬ the range table has room → LOST: its atoms are errors until they are written, its set is freed
//!                      └ it has none → stranded: it stays dirty, and is tried again after a while, at a drain, or when there is room
//! ```
//! A stranded slot is owed to the origin as little as a lost one: a drain, a mode, a FLUSH and a stop do not wait for it. That is told once,
//! as of a lost one: to the FLUSHes that wait for it, or else to the next one.

use crate::block::{Atoms, Block, Slot, Span};
use crate::cache::format::journal::Record;
use crate::payload::Payload;
use crate::time::{Duration, Instant};

use super::Engine;

/// Before a stranded slot is tried again although nobody asks for it.
const AGAIN: Duration = Duration::from_secs(60);
/// Entries of the range table that losses leave free: a TRIM cuts a zeroed range in two.
const SPARE: usize = 2;

impl<P: Payload> Engine<P> {
    /// Entries of the range table on the SSD, as a state map would tell it now.
    pub(super) fn table_entries(&self) -> usize {
        self.ranges.entries() + self.lost.entries()
    }

    /// Has it not one entry left?
    pub(super) fn is_table_brimful(&self) -> bool {
        self.table_entries() >= self.config.geometry.range_entries as usize
    }

    /// Has the table on the SSD room to tell that this is lost, too?
    fn can_lose(&self, block: Block, atoms: Atoms) -> bool {
        let needed = usize::from(self.lost.costs(block, atoms));
        needed == 0 || self.table_entries() + needed + SPARE <= self.config.geometry.range_entries as usize
    }

    /// Atoms that cannot be had any more: from now on reading them is an error, until they are written.
    pub(super) fn lose(&mut self, block: Block, atoms: Atoms) {
        if atoms.is_empty() {
            return;
        }
        self.counters.lost_blocks += 1;
        self.journal.push(&Record::Lost { block, atoms });
        self.note_record();
        self.lost.lose(block, atoms);
    }

    /// A dirty slot that cannot be read costs its own atoms only; the set is freed like any other. False: not now, it stays as it is.
    pub(super) fn give_up(&mut self, slot: Slot, block: Block) -> bool {
        if self.index.get(block) != Some(slot) || !self.sets.is_dirty(slot) {
            return true;
        }
        if self.is_passing(block, 1) {
            // What goes past it to the origin will kill it.
            return false;
        }
        let valid = self.valid_atoms(slot, block);
        if !self.can_lose(block, valid) {
            self.strand(slot, block);
            return true;
        }
        if !self.journal_has_room(2) {
            return false;
        }
        if !self.sets.stranded.contains(slot) {
            self.counters.corrupt_dirty_slots += 1;
            self.home_lost(block);
        }
        self.lose(block, valid);
        self.kill_slot(slot);
        true
    }

    fn strand(&mut self, slot: Slot, block: Block) {
        if self.sets.stranded.insert(slot, self.now) {
            self.counters.corrupt_dirty_slots += 1;
            self.home_lost(block);
        }
    }

    /// Has this slot been found unreadable, and is not to be tried now?
    pub(super) fn is_left_alone(&self, slot: Slot, block: Block) -> bool {
        let Some(since) = self.sets.stranded.since(slot) else { return false };
        let is_asked_for = self.drain.is_some_and(|drain| since < drain.started);
        !is_asked_for && since + AGAIN > self.now && !self.can_lose(block, self.valid_atoms(slot, block))
    }

    /// Nothing is left that could go home, and what is stranded has been tried since `started`.
    pub(super) fn is_drained(&self, started: Instant) -> bool {
        if self.gives_nothing() {
            return self.ranges.zeroed_blocks() == 0 && !self.has_rescue_ahead();
        }
        let stranded = &self.sets.stranded;
        let is_room = |slot: Slot| {
            let block = self.sets.entry(slot, |block| self.full(block)).block;
            self.can_lose(block, self.valid_atoms(slot, block))
        };
        self.owed_blocks() == 0 && stranded.all_since(started) && !stranded.iter().any(is_room)
    }

    /// Dirty blocks that the SSD does not give.
    pub(super) fn unreadable_blocks(&self) -> u64 {
        if self.gives_nothing() { self.sets.dirty_slots } else { self.sets.stranded.len() }
    }

    /// Dirty blocks that are stranded.
    pub fn unreadable(&self) -> impl Iterator<Item = (Block, Slot)> + '_ {
        self.sets.stranded.iter().map(|slot| (self.sets.entry(slot, |block| self.full(block)).block, slot))
    }

    /// A write of parts of lost blocks: the table has no room to tell that the rest of them stays lost.
    pub(super) fn forgets_rest(&self, data: &[Span]) -> bool {
        if self.lost.is_empty() {
            return false;
        }
        let edges = data.iter().flat_map(|&span| self.end_blocks(span).map(move |block| (block, span)));
        let needed = edges.filter(|&(block, span)| self.lost.grows(block, self.mask_of(block, span))).count();
        needed > 0 && self.table_entries() + needed > self.config.geometry.range_entries as usize
    }
}

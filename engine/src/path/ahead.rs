//! Reading ahead: what a sequence of reads will ask the SSD for next is read before it is asked for, and kept in memory until then.
//!
//! ```text
//! a client's read, part of a sequence ── its operations ──▶ how far? (cache/ahead) ──▶ reads of slots, for nobody ──▶ verified, kept
//! a later read ── look-up ──▶ a slot that was read: its contents │ that is on its way: waits for it, a client's from now on │ else: reads it
//! ```
//! So is what a write that waits behind a lock will be merged with (`merge`).
//! The look-up says where a block is, as ever; only the way to the SSD is spared. What cannot be read ahead is nobody's error: whoever has
//! waited for it reads by itself. Under set placement slots are overwritten in place, and nothing is read ahead.

use crate::block::{ATOM_BYTES, Slot, Span};
use crate::cache::ahead::{Sharer, Taken};
use crate::cache::sequence::Sequence;
use crate::config::{Canary, Config, Placement};
use crate::op::{Action, Answer, Class, DeviceError, DeviceId, Zone};
use crate::payload::Payload;

use super::{Engine, Owner, joined};

/// What an SSD is asked for at a time: 1 MiB.
const PIECE_ATOMS: u64 = 2048;

impl<P: Payload> Engine<P> {
    /// A client's read of so many atoms has gone on with this sequence, and was begun.
    pub(super) fn read_ahead(&mut self, sequence: &Sequence, atoms: u64) {
        if !self.config.reads_ahead() || !sequence.runs() || self.has_cache_failed() || self.stopping {
            return;
        }
        let volume = Span::new(0, self.config.geometry.volume_atoms);
        let span = self.ahead.next(sequence, atoms, self.arrivals.bytes_in_flight / ATOM_BYTES).map(|span| span.intersection(volume));
        let Some(span) = span.filter(|span| !span.is_empty()) else { return };
        let (block, blocks) = self.blocks_of(span);
        let mut runs = self.scratch.take_runs();
        self.index.lookup(block, blocks, &mut runs);
        for run in &runs {
            let Some(slot) = run.slot else { continue };
            if let Some(done) = self.begin_ahead(slot, run.blocks as u32, Class::Fill) {
                self.ahead.fell_short(sequence, (run.block.0 + u64::from(done)) * self.block_atoms());
                break;
            }
        }
        self.scratch.runs = runs;
    }

    /// Reads what is whole of these slots, and neither in memory nor on its way; for nobody, or for a client. If there was no room for all: how
    /// many it came to.
    pub(super) fn begin_ahead(&mut self, first: Slot, slots: u32, class: Class) -> Option<u32> {
        let most = self.blocks_in(PIECE_ATOMS.min(self.limits[0].op_atoms)).max(1) as u32;
        let life = self.life_of(first);
        let mut at = first;
        let end = first.slot + slots;
        while at.slot < end {
            let (is_known, alike) = self.ahead.alike(at, end - at.slot, life);
            let count = if is_known { 0 } else { self.plain_slots(at, alike.min(most)) };
            if count == 0 {
                at.slot += if is_known { alike } else { 1 };
                continue;
            }
            if !self.ahead.has_room(at, count) {
                return Some(at.slot - first.slot);
            }
            self.sets.pin(at, count);
            let action = Action::Read(Zone::Data, self.slots_span(at, count));
            let op = self.start(DeviceId::Cache, class, action, Owner::Ahead { first: at });
            self.ahead.begin(at, count, life, op);
            if class == Class::Fill {
                self.counters.ahead_blocks += u64::from(count);
            }
            at.slot += count;
        }
        None
    }

    /// Which of the contents that a slot has had over time is meant.
    pub(super) fn life_of(&self, slot: Slot) -> u64 {
        if self.has_canary(Canary::AheadOfAnotherLife) { 0 } else { self.sets.get(slot.set).life }
    }

    /// Of `slots` slots from `first`, how many follow one another that hold whole blocks and have landed on the SSD.
    fn plain_slots(&self, first: Slot, slots: u32) -> u32 {
        if self.window.holds(first) {
            return 0;
        }
        let landed = self.window.unpinned(first, slots);
        let is_whole = |i: &u32| self.sets.partial(Slot { slot: first.slot + i, ..first }).is_none();
        (0..landed).take_while(is_whole).count() as u32
    }

    /// Asks for slots that a client's request needs, all in one piece or in none. Nothing: it reads them by itself.
    pub(super) fn take_ahead(&mut self, sharer: Sharer, first: Slot, slots: u32) -> Option<Option<P>> {
        if self.ahead.is_empty() {
            return None;
        }
        let taken = match self.ahead.take(first, slots, self.life_of(first), sharer) {
            Taken::Unknown => return None,
            Taken::Ready(payload) => Some(payload),
            Taken::OnItsWay(op) => {
                // Somebody waits for it now.
                self.end_burst();
                self.queues[DeviceId::Cache as usize].raise(self.now, op, Class::Client);
                None
            }
        };
        if matches!(sharer, Sharer::Part { .. }) {
            self.counters.ahead_hit_blocks += u64::from(slots);
        }
        Some(taken)
    }

    pub(super) fn ahead_done(&mut self, first: Slot, result: Result<Answer<P>, DeviceError>) {
        let slots = self.ahead.slots(first);
        let read = result.ok().map(joined).filter(|payload| !self.has_cache_failed() && self.holds_what_was_written(first, payload));
        for sharer in self.ahead.end(first, read.clone()) {
            let read = read.as_ref().map(|payload| (first, payload));
            match sharer {
                Sharer::Part { request, part } => self.part_ahead(request, part, read),
                Sharer::Edge { request, edge } => self.edge_ahead(request, edge, read),
            }
        }
        self.sets.unpin(first, slots);
    }
}

impl Config {
    /// Are sequences in the cache read ahead of?
    pub(super) fn reads_ahead(&self) -> bool {
        self.read_ahead > 0 && self.placement == Placement::Log
    }
}

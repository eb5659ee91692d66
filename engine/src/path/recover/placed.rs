//! Placed sets in recovery: replay of what is special to them, and the contents of opened slots, which nothing but themselves tells.
//!
//! Opened slots are read before service, and written again with the same bytes like the tail: what a read shows once must not be gone
//! after the next power cut. A slot that cannot be read is found bad by its first reader.

use crate::block::Slot;
use crate::cache::format::{Bits, Entry, SetState};
use crate::cache::placed::place_of;
use crate::fault_point::FaultPoint;
use crate::op::{Action, Answer, Class, DeviceError, DeviceId, Zone};
use crate::payload::Payload;

use super::{Engine, Owner, Step, joined};

impl<P: Payload> Engine<P> {
    // --- replay ---

    /// The live slots of a placed set, as they were at the checkpoint.
    pub(super) fn replay_placed_restate(&mut self, slot: Slot, entries: &[Entry]) -> Result<(), String> {
        for (at, entry) in self.places(slot, entries)? {
            let is_known = self.sets.placed.get(slot.set).is_some_and(|placed| placed.used.get(at.slot));
            // Replay may have begun at an earlier checkpoint.
            if !is_known {
                let full = self.full(entry.block);
                self.sets.describe(at, &[entry], false, |_| full);
            }
        }
        let placed = self.sets.placed.get(slot.set).expect("a placed set");
        let is_told = placed.used.contains(&self.sets.get(slot.set).live);
        self.sets.get_mut(slot.set).loaded = is_told;
        Ok(())
    }

    /// A first PUT, or one that closes a slot.
    pub(super) fn replay_placed_put(&mut self, slot: Slot, dirty: bool, entries: &[Entry]) -> Result<(), String> {
        for (at, entry) in self.places(slot, entries)? {
            let full = self.full(entry.block);
            self.sets.describe(at, &[entry], false, |_| full);
            match (self.sets.is_live(at), dirty) {
                (false, _) => self.sets.make_live(at, 1, dirty),
                (true, true) => _ = self.sets.soil(at, 1),
                (true, false) => _ = self.sets.clean(at, 1),
            }
            self.sets.placed.get_mut(at.set).expect("a placed set").opened.clear(at.slot);
            match self.recovery().touched.insert(entry.block, Some(at)) {
                Some(older) if older != at => _ = self.sets.kill(older, 1, 0),
                Some(_) | None => {}
            }
            self.lost.find(entry.block, entry.valid);
        }
        Ok(())
    }

    pub(super) fn replay_opened(&mut self, set: u32, life: u32, slots: &Bits) -> Result<(), String> {
        self.expect_life(set, life)?;
        if self.sets.get(set).state != SetState::Placed {
            self.meet(FaultPoint::OpenedOutOfOrder);
            return Err(format!("OPENED slots of set {set}, which is not a placed one"));
        }
        if !self.sets.get(set).live.contains(slots) {
            self.meet(FaultPoint::OpenedOfNothing);
            return Err(format!("OPENED slots of set {set} that hold nothing"));
        }
        for slot in slots.iter() {
            self.sets.soil(Slot { set, slot }, 1);
        }
        let placed = self.sets.placed.get_mut(set).expect("a placed set");
        placed.opened = placed.opened.union(slots);
        Ok(())
    }

    /// Each entry with its slot: the one of its place.
    fn places(&mut self, slot: Slot, entries: &[Entry]) -> Result<Vec<(Slot, Entry)>, String> {
        let slots: Vec<(Slot, Entry)> =
            entries.iter().enumerate().map(|(i, entry)| (Slot { slot: slot.slot + i as u32, ..slot }, *entry)).collect();
        let origin = self.sets.placed.get(slot.set).and_then(|placed| placed.origin);
        for (at, entry) in &slots {
            let place = place_of(entry.block.0, self.config.geometry.set_slots);
            if place.1 != at.slot || origin.is_some_and(|origin| origin != place.0) {
                self.faults.meet(FaultPoint::PlacedOutOfPlace);
                return Err(format!("block {} in slot {} of set {}, which is not its place", entry.block.0, at.slot, at.set));
            }
        }
        Ok(slots)
    }

    // --- contents ---

    /// Starts reading the opened slots, run by run; each is written again when it has been read.
    pub(super) fn rewrite_opened(&mut self) {
        let most = (self.limits[0].op_atoms / self.block_atoms()) as usize;
        let mut runs = Vec::new();
        for (number, set) in self.sets.iter().filter(|(_, set)| set.state == SetState::Placed) {
            let placed = self.sets.placed.get(number).expect("a placed set");
            let opened: Vec<u32> = set.live.intersection(&placed.opened).iter().collect();
            for run in opened.chunk_by(|a, b| a + 1 == *b).flat_map(|run| run.chunks(most)) {
                runs.push((Slot { set: number, slot: run[0] }, run.len() as u32));
            }
        }
        for (first, slots) in runs {
            self.read_opened(first, slots);
        }
    }

    fn read_opened(&mut self, first: Slot, slots: u32) {
        self.recovery_read(Zone::Data, self.slots_span(first, slots), Step::Opened { first, slots });
    }

    pub(super) fn opened_read(&mut self, first: Slot, slots: u32, result: Result<Answer<P>, DeviceError>) {
        let payload: P = match result {
            Ok(answer) => joined(answer),
            Err(_) if slots > 1 => {
                self.meet(FaultPoint::OpenedUnread);
                let each = (first.slot..first.slot + slots).map(|slot| Slot { slot, ..first });
                return each.for_each(|slot| self.read_opened(slot, 1));
            }
            Err(_) if self.read_again(Zone::Data, self.slots_span(first, slots), Step::Opened { first, slots }) => return,
            Err(error) => {
                let offset = self.config.geometry.slot(first).offset();
                return self.find(
                    FaultPoint::OpenedSlotUnread,
                    false,
                    format!("slot at byte {offset}, the only copy of its block, cannot be read ({error:?})"),
                );
            }
        };
        let size = self.block_atoms();
        for i in 0..slots {
            let crc = payload.slice(u64::from(i) * size, size).checksum(self.checksum);
            self.sets.overwrite(Slot { slot: first.slot + i, ..first }, crc);
        }
        let action = Action::Write(Zone::Data, self.slots_span(first, slots), [payload].into());
        self.recovery().begin_operation();
        // Still counted as a read: as many contents are in memory as reads may be under way.
        self.recovery().reading += 1;
        self.start(DeviceId::Cache, Class::Log, action, Owner::Recovery(Step::OpenedWrite));
    }

    // --- service ---

    /// Placed sets that hold nothing are sealed; the others go on.
    pub(super) fn adopt_placed_sets(&mut self) {
        let empty: Vec<u32> =
            self.sets.iter().filter(|(_, set)| set.state == SetState::Placed && set.live_count == 0).map(|(set, _)| set).collect();
        self.sets.placed.emptied = empty;
    }
}

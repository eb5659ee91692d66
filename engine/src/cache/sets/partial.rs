//! Valid atoms of the slots that hold only a part of their block. They are few: their masks lie beside the sets, and each set knows how many
//! of its slots have one, so that mostly none is looked for.

use super::Sets;
use crate::block::{Atoms, Slot};
use crate::cache::format::Entry;

impl Sets {
    /// The valid atoms if they are not the whole block.
    pub fn partial(&self, slot: Slot) -> Option<Atoms> {
        if self.get(slot.set).partial_slots == 0 { None } else { self.partial.get(&self.number(slot)).copied() }
    }

    /// Is any slot valid in part only?
    pub fn has_partials(&self) -> bool {
        !self.partial.is_empty()
    }

    /// Notes which atoms of a slot are valid, if not all of the block are.
    pub(super) fn note_mask(&mut self, slot: Slot, entry: &Entry, full: Atoms) {
        let (number, is_partial) = (self.number(slot), entry.valid != full);
        let set = &mut self.sets[slot.set as usize];
        if set.partial_slots > 0 && self.partial.remove(&number).is_some() {
            set.partial_slots -= 1;
        }
        if is_partial {
            set.partial_slots += 1;
            self.partial.insert(number, entry.valid);
        }
    }

    /// The set is free, or begins anew.
    pub(super) fn forget_partials(&mut self, number: u32) {
        if std::mem::take(&mut self.get_mut(number).partial_slots) > 0 {
            let first = self.number(Slot { set: number, slot: 0 });
            for slot in first..first + u64::from(self.geometry.set_slots) {
                self.partial.remove(&slot);
            }
        }
    }
}

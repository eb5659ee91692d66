//! Pins: operations in flight that read or write a set. It is not reused while there is one (`life`). In a placed set, whose slots may be
//! overwritten, a pin of a reader is known slot by slot as well.

use super::{SetState, Sets};
use crate::block::Slot;
use crate::cache::placed::numbers;

impl Sets {
    /// Something reads these slots: the set is not reused, and none of them overwritten.
    pub fn pin(&mut self, first: Slot, slots: u32) {
        let set = &mut self.sets[first.set as usize];
        set.pins += 1;
        if set.state == SetState::Placed {
            self.placed.begin_read(numbers(first, slots, self.geometry.set_slots));
        }
    }
    pub fn unpin(&mut self, first: Slot, slots: u32) {
        self.get_mut(first.set).pins -= 1;
        self.placed.end_read(numbers(first, slots, self.geometry.set_slots));
    }
    /// Something reads this slot of a placed set.
    pub fn is_read(&self, slot: Slot) -> bool {
        self.placed.is_read(self.number(slot))
    }
}

//! Consecutive slots of one set become live, dirty, clean, dead. What a request writes lies in one run, and each is one step for all of it.

use super::{SetState, Sets};
use crate::block::Slot;

impl Sets {
    pub fn is_live(&self, slot: Slot) -> bool {
        self.get(slot.set).live.get(slot.slot)
    }
    /// It may be overwritten in place.
    pub fn is_opened(&self, slot: Slot) -> bool {
        self.placed.get(slot.set).is_some_and(|set| set.opened.get(slot.slot))
    }
    pub fn is_dirty(&self, slot: Slot) -> bool {
        self.get(slot.set).dirty.get(slot.slot)
    }

    pub fn make_live(&mut self, first: Slot, count: u32, dirty: bool) {
        let set = &mut self.sets[first.set as usize];
        assert!(set.live.count_range(first.slot, count) == 0, "a slot becomes live once in a life");
        set.noted = false;
        set.live.set_range(first.slot, count);
        set.live_count += count;
        if set.live_count == self.geometry.set_slots {
            set.live.settle(self.geometry.set_slots, true);
        }
        set.heat.lives(first.slot, count);
        self.live_slots += u64::from(count);
        if set.state == SetState::Placed {
            self.placed.lives(u64::from(count));
        }
        if dirty {
            self.soil(first, count);
        }
    }

    /// The slots hold something newer than the origin. Returns how many were clean.
    pub fn soil(&mut self, first: Slot, count: u32) -> u32 {
        let set = &mut self.sets[first.set as usize];
        let before = set.dirty_count;
        let were_clean = count - set.dirty.count_range(first.slot, count);
        if were_clean > 0 {
            set.noted = false;
            set.dirty.set_range(first.slot, count);
            set.dirty_count += were_clean;
            if set.dirty_count == self.geometry.set_slots {
                set.dirty.settle(self.geometry.set_slots, true);
            }
            self.dirty_slots += u64::from(were_clean);
            self.dirt.note(first.set, set, before);
        }
        were_clean
    }

    /// The origin holds what the slots hold. Returns how many were dirty.
    pub fn clean(&mut self, first: Slot, count: u32) -> u32 {
        let set = &mut self.sets[first.set as usize];
        let before = set.dirty_count;
        let were_dirty = set.dirty.count_range(first.slot, count);
        if were_dirty > 0 {
            set.noted = false;
            set.dirty.clear_range(first.slot, count);
            set.dirty_count -= were_dirty;
            if set.dirty_count == 0 {
                set.dirty.settle(self.geometry.set_slots, false);
            }
            self.dirty_slots -= u64::from(were_dirty);
            self.dirt.note(first.set, set, before);
            (first.slot..first.slot + count).for_each(|slot| self.stranded.forget(Slot { slot, ..first }));
        }
        were_dirty
    }

    /// The slots name their blocks no more. Returns how many were dirty.
    pub fn kill(&mut self, first: Slot, count: u32, group: u64) -> u32 {
        let were_dirty = self.clean(first, count);
        let set = &mut self.sets[first.set as usize];
        assert!(set.live.count_range(first.slot, count) == count, "only a live slot is killed");
        set.noted = false;
        set.live.clear_range(first.slot, count);
        set.live_count -= count;
        if set.live_count == 0 {
            set.live.settle(self.geometry.set_slots, false);
            self.read.forget_set(first.set);
        } else {
            self.read.forget_slots(first, count);
        }
        set.heat.died(first.slot, count);
        set.kill_group = set.kill_group.max(group);
        self.live_slots -= u64::from(count);
        let is_empty = set.live_count == 0;
        match set.state {
            SetState::Sealed if is_empty => self.die(first.set),
            SetState::Placed => {
                self.placed.died(u64::from(count));
                self.placed.get_mut(first.set).expect("a placed set").opened.clear_range(first.slot, count);
                (first.slot..first.slot + count).for_each(|slot| self.placed.touch(Slot { slot, ..first }));
                if is_empty {
                    self.placed.emptied.push(first.set);
                }
            }
            SetState::Sealed => self.weigh(first.set),
            SetState::Open | SetState::Free => {}
        }
        were_dirty
    }
}

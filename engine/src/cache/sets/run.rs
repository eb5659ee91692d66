//! Consecutive slots of one set: described, live, dirty, clean, dead. What a request writes lies in one run, and each is one step for all of it.

use super::{SetState, Sets};
use crate::block::{Atoms, Block, Slot};
use crate::cache::format::Entry;

impl Sets {
    /// Describes slots from `first` on: the next ones, or any of a placed set; they are not live yet. `full` is the mask of a whole block;
    /// `whole`: it is that of every entry.
    pub fn describe(&mut self, first: Slot, entries: &[Entry], whole: bool, full: impl Fn(Block) -> Atoms) {
        let slots = (first.slot..).map(|slot| Slot { slot, ..first }).zip(entries);
        if self.get(first.set).state == SetState::Placed {
            return slots.for_each(|(slot, entry)| self.describe_placed(slot, *entry, full(entry.block)));
        }
        assert!(self.next_slot(first.set) == first.slot, "slots are taken in their order");
        assert!(entries.len() <= self.slots_left(first.set) as usize, "a set holds no more slots than it has");
        let known = &mut self.get_mut(first.set).slots;
        match entries {
            [entry] => known.push(entry),
            entries => known.extend(entries.iter().copied()),
        }
        if !whole {
            slots.for_each(|(slot, entry)| self.note_mask(slot, entry, full(entry.block)));
        }
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
            self.note_dirt(first.set, before);
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
            self.note_dirt(first.set, before);
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
            self.read.remove(&u64::from(first.set));
        } else if let Some(read) = self.read.get_mut(&u64::from(first.set)) {
            read.clear_range(first.slot, count);
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

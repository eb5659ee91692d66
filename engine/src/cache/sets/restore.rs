//! What recovery does to sets: they are as a state map says, then as the journal does (`life`, `run`), and then the lists are made from what they
//! are.

use super::{HeaderState, Link, Order, SetState, Sets};
use crate::block::{Block, Slot};
use crate::cache::format::{Bits, MapSet};
use crate::cache::index::Mapping;

impl Sets {
    /// Puts a set into the state that the state map describes.
    pub fn restore(&mut self, number: u32, map: MapSet) {
        let (live, dirty, usual) = (map.live.count(), map.dirty.count(), self.usual_pace());
        let slots = self.geometry.set_slots;
        let set = self.get_mut(number);
        set.life = map.life;
        set.state = map.state;
        set.sealed = map.sealed;
        set.live = map.live;
        set.dirty = map.dirty;
        set.live_count = live;
        set.heat.restore(live, usual);
        set.dirty_count = dirty;
        for (bits, count) in [(&mut set.live, live), (&mut set.dirty, dirty)] {
            if count == 0 || count == slots {
                bits.settle(slots, count > 0);
            }
        }
        set.loaded = live == 0;
        set.header = if map.state == SetState::Sealed { HeaderState::Durable } else { HeaderState::None };
        self.live_slots += u64::from(live);
        self.dirty_slots += u64::from(dirty);
        self.dirt.note(number, &mut self.sets[number as usize], 0);
        if map.state == SetState::Placed {
            self.get_mut(number).slots.resize(slots as usize);
            self.placed.insert(number, slots);
            self.placed.lives(u64::from(live));
        }
    }

    /// Clears all live bits of a set without touching the index (its slots are known to be dead).
    pub fn kill_unknown(&mut self, number: u32) {
        let set = &mut self.sets[number as usize];
        set.noted = false;
        if set.state == SetState::Placed {
            self.placed.died(u64::from(set.live_count));
        }
        self.live_slots -= u64::from(set.live_count);
        self.dirty_slots -= u64::from(set.dirty_count);
        let before = set.dirty_count;
        let slots = self.geometry.set_slots;
        (set.live, set.dirty) = (Bits::new(slots), Bits::new(slots));
        (set.live_count, set.dirty_count) = (0, 0);
        set.heat.all_died();
        self.dirt.note(number, set, before);
        self.read.forget_set(number);
    }

    /// The live slots of a set as runs of consecutive blocks in consecutive slots, at most `most` in each, none across the border of an
    /// origin set. They count as noted until a slot changes.
    pub fn note_live_runs(&mut self, number: u32, most: u32, mut each: impl FnMut(Mapping)) {
        let set = &mut self.sets[number as usize];
        set.noted = true;
        let border = u64::from(self.geometry.set_slots - 1);
        // The run so far: first block, first slot, blocks, dirty ones.
        let (mut first, mut start, mut blocks, mut all_dirty) = (0, 0, 0, 0);
        for slot in set.live.iter() {
            let block = set.slots.block(slot);
            let dirty = u32::from(set.dirty.get(slot));
            let goes_on = block == first + u64::from(blocks) && slot == start + blocks;
            if goes_on && blocks < most && block & border != 0 && blocks > 0 {
                (blocks, all_dirty) = (blocks + 1, all_dirty + dirty);
                continue;
            }
            if blocks > 0 {
                each(Mapping::new(Block(first), blocks, Slot { set: number, slot: start }, all_dirty));
            }
            (first, start, blocks, all_dirty) = (block, slot, 1, dirty);
        }
        if blocks > 0 {
            each(Mapping::new(Block(first), blocks, Slot { set: number, slot: start }, all_dirty));
        }
    }

    /// Rebuilds the lists after replay: free sets, dying sets, LRU in order of sealing.
    pub fn rebuild_lists(&mut self) {
        self.free.clear();
        self.dying.clear();
        let mut used: Vec<u32> = Vec::new();
        for number in 0..self.geometry.sets {
            let set = self.get_mut(number);
            set.link = Link::NONE;
            match set.state {
                SetState::Free => self.set_free(number),
                SetState::Sealed if set.live_count == 0 => self.dying.push(number),
                SetState::Open | SetState::Sealed | SetState::Placed => used.push(number),
            }
        }
        self.order = Order::EMPTY;
        used.sort_by_key(|&number| (self.get(number).state == SetState::Open, self.get(number).sealed, number));
        for number in used {
            self.touch(number);
        }
        (0..self.geometry.sets).for_each(|number| self.weigh(number));
    }
}

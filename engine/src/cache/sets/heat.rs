//! How often the blocks of one set are written, slot by slot, and when they were, for the set as a whole (`cache::heat`). The clock is that of
//! client writes.

use super::Sets;
use crate::block::Slot;
use crate::cache::heat::{Pace, Paces};

pub(super) struct Heat {
    paces: Paces,
    /// The sum of the rates of its live slots.
    rate: u64,
    /// The sum of the moments at which the blocks of its slots were written; and of how many slots.
    written: u64,
    written_slots: u32,
}

impl Heat {
    /// Of a set without live slots.
    pub fn new(usual: Pace) -> Heat {
        Heat { paces: Paces::new(usual), rate: 0, written: 0, written_slots: 0 }
    }

    /// At which its live slots die, together.
    pub fn rate(&self) -> u64 {
        self.rate
    }
    /// When its blocks were written, about.
    fn written_at(&self) -> u64 {
        self.written / u64::from(self.written_slots.max(1))
    }

    pub fn lives(&mut self, first: u32, count: u32) {
        self.rate += self.paces.rate(first, count);
    }
    pub fn died(&mut self, first: u32, count: u32) {
        self.rate -= self.paces.rate(first, count);
    }
    pub fn all_died(&mut self) {
        self.rate = 0;
    }
    /// So many live slots are found, and nothing is known of them.
    pub fn restore(&mut self, live: u32, usual: Pace) {
        self.rate = u64::from(live) * usual.rate();
    }
    /// The set is free: what was kept for each slot is not needed.
    pub fn forget_paces(&mut self, usual: Pace) {
        self.paces = Paces::new(usual);
    }

    pub fn bytes(&self) -> usize {
        self.paces.bytes()
    }
}

impl Sets {
    /// Of a block of which nothing is known: as if all slots were written evenly.
    pub fn usual_pace(&self) -> Pace {
        Pace::of(self.slots())
    }
    /// How often the block of a slot is written, and for how many client writes it was not, at the grain of its set.
    pub fn pace(&self, slot: Slot) -> (Pace, u64) {
        let heat = &self.get(slot.set).heat;
        (heat.paces.get(slot.slot), self.clock.saturating_sub(heat.written_at()))
    }
    /// Of `count` slots from `first` on, how many have the pace of the first one, up to the first that has not.
    pub fn alike(&self, first: Slot, count: u32) -> u32 {
        self.get(first.set).heat.paces.alike(first.slot, count)
    }

    /// Blocks written by clients.
    pub fn clock(&self) -> u64 {
        self.clock
    }
    /// Clients have written so many more blocks.
    pub fn advance(&mut self, blocks: u64) {
        self.clock += blocks;
    }

    /// Notes how often the blocks of described slots are written, before they live.
    pub fn note_pace(&mut self, first: Slot, count: u32, pace: Pace) {
        let slots = self.geometry.set_slots;
        let set = &mut self.sets[first.set as usize];
        assert!(set.live.count_range(first.slot, count) == 0, "the pace of a live slot is counted already");
        set.heat.paces.set(first.slot, count, pace, slots);
    }
    /// The blocks of so many more described slots were written `age` client writes ago.
    pub fn note_written(&mut self, number: u32, blocks: u64, age: u64) {
        let written = self.clock.saturating_sub(age);
        let heat = &mut self.get_mut(number).heat;
        heat.written += blocks * written;
        heat.written_slots += blocks as u32;
    }
}

//! Stranded slots: dirty, unreadable, and the range table has no room to say that what they hold is lost. They stay dirty, so that nothing
//! older is ever read in their place; nobody waits for them to go home.

use std::collections::BTreeMap;

use crate::block::Slot;
use crate::time::Instant;

#[derive(Default)]
pub struct Stranded {
    /// And when each was last found unreadable.
    slots: BTreeMap<Slot, Instant>,
}

impl Stranded {
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }
    pub fn len(&self) -> u64 {
        self.slots.len() as u64
    }
    /// Since when it has not been tried. `None`: it is not stranded.
    pub fn since(&self, slot: Slot) -> Option<Instant> {
        if self.slots.is_empty() { None } else { self.slots.get(&slot).copied() }
    }
    pub fn contains(&self, slot: Slot) -> bool {
        self.since(slot).is_some()
    }
    /// Has each been found unreadable at that moment or later?
    pub fn all_since(&self, at: Instant) -> bool {
        self.slots.values().all(|&since| since >= at)
    }
    /// How many are in this set.
    pub fn of_set(&self, set: u32) -> u32 {
        self.slots.range(Slot { set, slot: 0 }..=Slot { set, slot: u32::MAX }).count() as u32
    }
    pub fn iter(&self) -> impl Iterator<Item = Slot> + '_ {
        self.slots.keys().copied()
    }

    /// It was found unreadable now. True: that is news.
    pub fn insert(&mut self, slot: Slot, now: Instant) -> bool {
        self.slots.insert(slot, now).is_none()
    }
    /// It is clean or dead, or holds something else.
    pub fn forget(&mut self, slot: Slot) {
        if !self.slots.is_empty() {
            self.slots.remove(&slot);
        }
    }
}

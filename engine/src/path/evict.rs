//! Evict: below the floor, the oldest set without dirty slots gives its place back. What nobody has read in it is dropped, by its metadata
//! alone; what somebody has is worth its place:
//!
//! ```text
//! the oldest clean set ── half of it was read: spared, once more as if just written (CLOCK, but for a set at a time, and nothing is copied)
//!                      ├─ some of it: the rest is dropped, and that moves on to where what is worth keeping is (`clean`)
//!                      └─ nothing: dropped
//! ```
//! While little of the log is alive, sets are emptied instead (`clean`). A dirty set at the old end stops it (the gate destages first), unless a
//! write waits or the reserve is touched: then the clean set goes, wherever it stands, in which least was read, and what was is
//! remembered: it is kept again as soon as it is missed.

use crate::block::Slot;
use crate::cache::format::Bits;
use crate::payload::Payload;
use crate::wear::Cause;

use super::Engine;

/// Sets that are spared in a row, and among which the least read one is looked for.
const LOOKS: u32 = 64;

impl<P: Payload> Engine<P> {
    pub(super) fn pump_evict(&mut self) -> bool {
        let mut dropped = false;
        if self.cache_failed {
            return false;
        }
        let floor = self.config.free_floor.max(self.sets_needed());
        while self.sets.free_count() + self.sets.dying_count() < floor && self.sets.may_have_clean() {
            if !self.journal_has_room(1) {
                self.checkpoint.urgent = true;
                break;
            }
            let free = self.sets.free_count() + self.sets.dying_count();
            let urgent = self.is_starved() || free <= self.config.reserve;
            if !urgent && (self.is_compacting() || free + self.sets_being_emptied() >= floor) {
                break;
            }
            let found = if urgent { self.least_read() } else { self.oldest_worth_nothing() };
            let Some(set) = found else { break };
            if !self.leave(set, urgent) {
                break;
            }
            dropped = true;
        }
        dropped
    }

    /// Drops what is not worth keeping of a clean set; `urgent`: all of it. False: what is has nowhere to go yet.
    fn leave(&mut self, set: u32, urgent: bool) -> bool {
        let (live, read) = (self.sets.get(set).live.clone(), self.sets.read(set).clone());
        let carries = !urgent && self.is_worth_carrying(set) && self.may_carry(set);
        if carries && !self.has_room_to_carry(read.count()) {
            return false;
        }
        if carries {
            self.kill_slots(set, live.without(&read));
            self.carry(set);
            return true;
        }
        self.remember(set, &read);
        self.kill_slots(set, live);
        self.seal_emptied();
        self.counters.dropped_sets += 1;
        true
    }

    /// Was something of it read, but so little that moving it makes room?
    fn is_worth_carrying(&self, set: u32) -> bool {
        let read = self.sets.read(set).count();
        read > 0 && !self.is_worth_sparing(set)
    }

    fn is_worth_sparing(&self, set: u32) -> bool {
        self.sets.read(set).count() * 2 >= self.sets.get(set).live_count
    }

    fn may_carry(&mut self, set: u32) -> bool {
        let may = self.config.cleans() && self.recovery.is_none() && !self.stopping && self.may_empty(set);
        may && self.is_within_budget(Cause::Relocation)
    }

    /// They are missed soon, and then kept at once.
    fn remember(&mut self, set: u32, slots: &Bits) {
        for slot in slots.iter() {
            let block = self.sets.entry(Slot { set, slot }, |block| self.full(block)).block;
            self.admission.remember(block);
        }
    }

    /// The clean set whose turn it is. Those half of which was read are spared on the way.
    fn oldest_worth_nothing(&mut self) -> Option<u32> {
        for _ in 0..LOOKS {
            let set = self.clean_sets(false).next()?;
            if !self.is_worth_sparing(set) {
                return Some(set);
            }
            self.sets.spare(set);
            self.counters.spared_sets += 1;
        }
        self.clean_sets(false).next()
    }

    fn least_read(&self) -> Option<u32> {
        self.clean_sets(true).take(LOOKS as usize).min_by_key(|&set| self.sets.read(set).count())
    }

    /// Sets without dirty slots that may be dropped, from the oldest on. `urgent`: whatever stands before them.
    fn clean_sets(&self, urgent: bool) -> impl Iterator<Item = u32> + '_ {
        let is_clean = |set: u32| {
            let set = self.sets.get(set);
            set.may_leave() && set.live_count > 0 && set.dirty_count == 0 && set.loaded
        };
        let stops = move |set: u32| {
            let set = self.sets.get(set);
            // A placed set without live slots is to be sealed when the journal has room.
            !urgent && set.may_leave() && set.live_count > 0 && (set.dirty_count > 0 || !set.loaded)
        };
        self.sets.by_age().take_while(move |&set| !stops(set)).filter(move |&set| is_clean(set) && !self.is_being_emptied(set))
    }

    /// Is there a set that could be dropped?
    pub(super) fn has_droppable(&self) -> bool {
        self.clean_sets(true).next().is_some()
    }
}

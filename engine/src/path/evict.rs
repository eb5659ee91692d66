//! Evict: below the floor, the oldest set gives its place back. What is dirty in it, and what somebody has read, is worth its place:
//!
//! ```text
//! the oldest set ── half of it is worth it, most of that dirty: it waits for the gate, which destages
//!                ├─ half of it is, most of that read: spared, once more as if just written (CLOCK, a set at a time; nothing is copied)
//!                ├─ less: the rest is dropped, and what is worth it moves on to where such blocks are (`clean`)
//!                └─ nothing: dropped, by its metadata alone
//! ```
//! While little of the log is alive, sets are emptied instead (`clean`). Where a write waits, the reserve is touched or a stop needs room, nobody is
//! spared and nothing stops it: of the oldest sets those go in which nothing is worth its place, then those that can be emptied, and if there is
//! none, the clean set, wherever it stands, in which least was read. What was read in that is remembered: it is kept again at its first miss.

use crate::block::Slot;
use crate::cache::format::Bits;
use crate::payload::Payload;
use crate::wear::Cause;

use super::Engine;

/// Sets that are looked at for the one that goes.
const LOOKS: usize = 64;

impl<P: Payload> Engine<P> {
    /// True: something was dropped.
    pub(super) fn pump_evict(&mut self) -> bool {
        let mut dropped = false;
        if self.has_cache_failed() {
            return false;
        }
        let needed = self.sets_needed_to_stop();
        let floor = self.config.free_floor.max(self.sets_needed()).max(needed);
        loop {
            let free = self.sets.free_or_dying();
            if free >= floor {
                break;
            }
            if !self.journal_has_room(1) {
                self.checkpoint.urgent = true;
                break;
            }
            let urgent = self.is_starved() || free <= self.config.reserve || free < needed;
            if !urgent && (self.is_compacting() || free + self.sets_being_emptied() >= floor) {
                break;
            }
            let left = if urgent { self.leave_one_of_the_oldest() } else { self.leave_the_oldest() };
            if !left {
                break;
            }
            dropped = true;
        }
        dropped
    }

    /// The set whose turn it is goes; those that are spared are passed over. False: it is mostly dirty, or what is worth its place has nowhere
    /// to go yet.
    fn leave_the_oldest(&mut self) -> bool {
        for _ in 0..LOOKS {
            let oldest = self.sets_by_turn().find(|&set| self.may_go(set));
            let Some(set) = oldest.filter(|&set| self.sets.get(set).loaded) else { return false };
            if !self.is_half_worth_it(set) {
                return self.leave(set);
            }
            if self.sets.get(set).dirty_count * 2 >= self.sets.get(set).live_count {
                return false;
            }
            self.sets.spare(set);
            self.counters.spared_sets += 1;
        }
        false
    }

    fn leave_one_of_the_oldest(&mut self) -> bool {
        let oldest: Vec<u32> =
            self.sets_by_turn().filter(|&set| self.may_go(set)).take(LOOKS).filter(|&set| self.sets.get(set).loaded).collect();
        if let Some(&set) = oldest.iter().find(|&&set| self.sets.kept_count(set) == 0) {
            self.drop_set(set);
            return true;
        }
        if oldest.into_iter().any(|set| !self.is_half_worth_it(set) && self.leave(set)) {
            return true;
        }
        // What is being emptied is free sooner than anybody would read again what was hot.
        if self.cleaner.makes_room() {
            return false;
        }
        let found = self.clean_sets().take(LOOKS).min_by_key(|&set| self.sets.kept_count(set));
        if let Some(set) = found {
            self.drop_set(set);
        }
        found.is_some()
    }

    /// What is dirty in it had to stay, and it is not time to try again: it hides none of those behind it.
    fn may_go(&self, set: u32) -> bool {
        self.sets.get(set).dirty_count == 0 || !self.leaves_alone(set)
    }

    fn is_half_worth_it(&self, set: u32) -> bool {
        self.sets.kept_count(set) * 2 >= self.sets.get(set).live_count
    }

    /// Drops what is not worth its place in a set, and moves on the rest. False: that has nowhere to go yet.
    fn leave(&mut self, set: u32) -> bool {
        let (kept, may_carry) = (self.sets.kept(set), self.may_carry(set));
        if kept.is_empty() || !may_carry && self.sets.get(set).dirty_count == 0 {
            self.drop_set(set);
            return true;
        }
        if !may_carry || !self.has_room_to_carry(kept.count()) {
            return false;
        }
        let rest = self.sets.get(set).live.without(&kept);
        self.counters.clean_dropped_blocks += u64::from(rest.count());
        self.kill_slots(set, rest);
        self.carry(set);
        true
    }

    fn may_carry(&mut self, set: u32) -> bool {
        let is_free = self.sets.get(set).dirty_count == 0 || self.sets.get(set).pins == 0;
        let may = self.config.cleans() && self.recovery.is_none() && !self.stopping && is_free && self.may_empty(set);
        may && self.is_within_budget(Cause::Relocation)
    }

    /// Drops a clean set.
    fn drop_set(&mut self, set: u32) {
        let (live, read) = (self.sets.get(set).live.clone(), self.sets.kept(set));
        self.remember(set, &read);
        self.kill_slots(set, live);
        self.seal_emptied();
        self.counters.dropped_sets += 1;
    }

    /// They are missed soon, and then kept at once.
    fn remember(&mut self, set: u32, slots: &Bits) {
        for slot in slots.iter() {
            let block = self.sets.entry(Slot { set, slot }, |block| self.full(block)).block;
            self.admission.remember(block);
        }
    }

    /// Sets that may leave, from the oldest on. A placed one without live slots is to be sealed when the journal has room.
    fn sets_by_turn(&self) -> impl Iterator<Item = u32> + '_ {
        let may_leave = |set: u32| self.sets.get(set).may_leave() && self.sets.get(set).live_count > 0 && !self.is_being_emptied(set);
        self.sets.by_age().filter(move |&set| may_leave(set))
    }

    /// Those of them that may be dropped as they are.
    fn clean_sets(&self) -> impl Iterator<Item = u32> + '_ {
        let some = self.sets.may_have_clean(self.open.iter().flatten().copied()).then(|| self.sets_by_turn());
        some.into_iter().flatten().filter(|&set| self.sets.get(set).dirty_count == 0 && self.sets.get(set).loaded)
    }

    /// Is there a set that could be dropped?
    pub(super) fn has_clean_set(&self) -> bool {
        self.clean_sets().next().is_some()
    }
}

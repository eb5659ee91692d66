//! Evict: below the floor, the least recently used set without dirty slots is dropped, by its metadata alone.
//!
//! While little of the log is alive, sets are emptied instead (`clean`). A dirty set at the old end stops it (the gate destages first), unless a write waits or the reserve is touched:
//! then the oldest clean set goes, wherever it stands.

use crate::cache::format::SetState;
use crate::cache::stream::Stream;
use crate::payload::Payload;

use super::Engine;

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
            let urgent = self.is_starved() || self.sets.free_count() + self.sets.dying_count() <= self.config.reserve;
            if !urgent && self.is_compacting() {
                break;
            }
            let Some(set) = self.victim(urgent) else { break };
            if self.sets.get(set).stream == Stream::Fill.number() {
                self.admission.dropped(self.sets.get(set).used);
            }
            let live = self.sets.get(set).live.clone();
            self.kill_slots(set, live);
            self.seal_emptied();
            self.counters.dropped_sets += 1;
            dropped = true;
        }
        dropped
    }

    pub(super) fn victim(&self, urgent: bool) -> Option<u32> {
        for number in self.sets.by_age() {
            let set = self.sets.get(number);
            match set.state {
                // To be sealed when the journal has room.
                SetState::Placed if set.live_count == 0 => {}
                SetState::Sealed | SetState::Placed if set.dirty_count == 0 && set.loaded => return Some(number),
                SetState::Sealed | SetState::Placed | SetState::Open if urgent => {}
                SetState::Open => {}
                SetState::Sealed | SetState::Placed => return None,
                SetState::Free => unreachable!("a free set has no place in the LRU order"),
            }
        }
        None
    }
}

//! Release: a set that nothing names any more is told to the SSD as not needed (a discard), if that is wanted, and only then free.
//!
//! ```text
//! dying: no live slot, every kill durable, nothing in flight, no checkpoint needs its header
//!   → Discarding (held, two at once) → discarded → free
//!   └ sets are short, or the SSD does not discard → free as it is
//! ```
//! **A discard is a write of garbage.** As long as one kill is not durable, a crash brings the slot back, and its contents must be there. So the
//! condition is that of reuse, to the letter; and until the discard has ended the set is not reused, or it might land on the next tenant.

use std::collections::BTreeSet;

use crate::block::Slot;
use crate::cache::format::SetState;
use crate::cache::sets::{HeaderState, Sets};
use crate::config::Canary;
use crate::op::{Action, Class, DeviceError, DeviceId, Zone};
use crate::payload::Payload;
use crate::probe::WaitReason;

use super::checkpoint::Checkpoint;
use super::{Ended, Engine, Owner};

/// Discards under way at once: an SSD may take long for one, and nobody waits for it.
const AT_ONCE: u32 = 2;
/// So many in a row that fail: this SSD does not discard.
const FAILURES: u32 = 3;

#[derive(Default)]
pub(super) struct Discards {
    running: u32,
    /// Sets that wait to be free, and have been discarded.
    done: BTreeSet<u32>,
    failures: u32,
}

impl Discards {
    pub fn is_busy(&self) -> bool {
        self.running > 0
    }
}

impl<P: Payload> Engine<P> {
    /// Frees what nothing names any more.
    pub(super) fn reclaim(&mut self) -> bool {
        self.seal_emptied();
        if self.sets.dying().is_empty() { false } else { self.release_dying() }
    }

    #[inline(never)]
    fn release_dying(&mut self) -> bool {
        let durable = if self.has_canary(Canary::ReuseTooEarly) { u64::MAX } else { self.journal.durable_group() };
        let waits = self.discards_first();
        if waits {
            self.discard_dying(durable);
        }
        let before = (self.sets.dying_count() as usize, self.discards.done.len());
        let (checkpoint, done) = (&self.checkpoint, &self.discards.done);
        let most = self.turn.sets;
        let freed = self.sets.release(most, |sets, set| is_unnamed(sets, checkpoint, set, durable) && (!waits || done.contains(&set)));
        self.turn.sets -= freed;
        // (Where that were all, the next turn finds nothing.)
        self.turn.goes_on |= freed == most;
        let has_freed = freed > 0;
        if has_freed {
            self.cleaner.forget_free(&self.sets);
        }
        if self.config.discard && has_freed {
            self.discards.done.retain(|&set| self.sets.get(set).state != SetState::Free);
            let (freed, had_turn) = (before.0 - self.sets.dying_count() as usize, before.1 - self.discards.done.len());
            self.counters.undiscarded_sets += (freed - had_turn) as u64;
        }
        has_freed
    }

    /// Does a set wait for its discard before it is free? Not when one is needed now.
    fn discards_first(&self) -> bool {
        let discards = self.config.discard && self.limits[0].discards && self.discards.failures < FAILURES;
        let is_short = self.sets.free_count() <= self.config.reserve.max(self.sets_needed()) || self.first_waits_for(WaitReason::Set);
        discards && !is_short && !self.stopping && !self.has_cache_failed() && self.recovery.is_none()
    }

    fn discard_dying(&mut self, durable: u64) {
        let durable = if self.has_canary(Canary::DiscardTooEarly) { u64::MAX } else { durable };
        let (sets, checkpoint, done) = (&self.sets, &self.checkpoint, &self.discards.done);
        let may_go = |&set: &u32| is_unnamed(sets, checkpoint, set, durable) && !done.contains(&set);
        let room = AT_ONCE.saturating_sub(self.discards.running) as usize;
        let chosen: Vec<u32> = sets.dying().iter().copied().filter(may_go).take(room).collect();
        for set in chosen {
            self.discards.running += 1;
            self.sets.get_mut(set).pins += 1;
            let span = self.slots_span(Slot { set, slot: 0 }, self.config.geometry.set_slots);
            self.start(DeviceId::Cache, Class::Discard, Action::Discard(Zone::Data, span), Owner::Discard { set });
        }
    }

    /// Whether it was discarded or not: it has had its turn.
    pub(super) fn discard_done(&mut self, set: u32, result: Ended) {
        self.discards.running -= 1;
        self.sets.get_mut(set).pins -= 1;
        match result {
            Ok(()) => {
                self.discards.failures = 0;
                self.counters.discarded_sets += 1;
                self.discards.done.insert(set);
            }
            Err(DeviceError::Medium | DeviceError::NoSpace | DeviceError::Gone) => {
                self.discards.failures += 1;
                self.counters.discard_failures += 1;
                self.discards.done.insert(set);
            }
        }
    }
}

/// Nothing durable, in flight or under way names the set or its header.
fn is_unnamed<P>(sets: &Sets, checkpoint: &Checkpoint<P>, set: u32, durable: u64) -> bool {
    // A checkpoint under way may name slots that have died since: it needs the header of that life.
    sets.is_reusable(set, durable) && (sets.get(set).header == HeaderState::Durable || !checkpoint.has_captured(set))
}

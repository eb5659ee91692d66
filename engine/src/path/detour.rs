//! Detour: small writes of `allocation = "small-writes"` go home, as through writes, while the log is full and `cache/detour` has found that quicker.
//! Destaging, which would have to share the drive with them, waits while they keep it busy; then it makes room, and they are converted again.
//!
//! With the rules of `split`: whole blocks only, in write-back mode, and what the origin does not take is for the log.

use crate::cache::detour::{Detour, Log};
use crate::cache::split::Part;
use crate::config::{Allocation, Config, GateKind, WhenFull};
use crate::payload::Payload;
use crate::probe::WaitReason;
use crate::time::{Duration, Instant};

use super::Engine;

pub(super) struct Detouring {
    /// `None`: all small writes are converted.
    detour: Option<Detour>,
}

impl Detouring {
    pub fn new(config: &Config) -> Self {
        let is_asked = config.allocation == Allocation::SmallWrites && config.when_full == WhenFull::Wait && config.gate == GateKind::Ours;
        Detouring { detour: config.detour.filter(|_| is_asked).map(Detour::new) }
    }

    pub fn is_straight(&self) -> bool {
        self.detour.as_ref().is_some_and(Detour::is_straight)
    }

    /// Clients keep home busy.
    pub fn is_busy(&self, now: Instant) -> bool {
        self.deadline().is_some_and(|until| until > now)
    }

    /// When that may be over.
    pub fn deadline(&self) -> Option<Instant> {
        self.detour.as_ref().and_then(Detour::busy_until)
    }

    /// A write was answered that was small enough to be converted.
    pub fn answered(&mut self, now: Instant, part: Part) {
        match (&mut self.detour, part) {
            (Some(detour), Part::Straight(since)) => detour.answered_from_home(now, since),
            (Some(detour), _) => detour.answered_by_log(),
            (None, _) => {}
        }
    }

    /// A FLUSH was answered.
    pub fn flushed(&mut self, now: Instant, arrived: Instant) {
        self.detour.iter_mut().for_each(|detour| detour.flushed(now, arrived));
    }

    pub fn failed(&mut self, now: Instant) {
        self.detour.iter_mut().for_each(|detour| detour.fail(now));
    }
}

impl<P: Payload> Engine<P> {
    /// Is the log full, or does it have room? True: who waits for that may go home now.
    pub(super) fn note_detour(&mut self) -> bool {
        let Some(mut detour) = self.detouring.detour.take() else { return false };
        let waits = self.first_waits_for(WaitReason::Set) && !self.is_space_coming();
        let log = Log { waits, dirty_sets: self.dirty_sets_packed(), gone_home: self.counters.destaged_blocks };
        let may_go = detour.note(self.now, log, || self.room_takes());
        self.detouring.detour = Some(detour);
        may_go
    }

    /// How long it takes to make room for one block in the log. What was overwritten there did not have to go home.
    fn room_takes(&self) -> Duration {
        let dirty = self.sets.dirty_slots.max(1);
        let each = self.destage_time_of_slots().0 as f64 / dirty as f64;
        let taken = (self.counters.written_atoms / self.block_atoms()).saturating_sub(self.counters.through_blocks);
        let owed = dirty + self.counters.destaged_blocks;
        Duration((each * (owed as f64 / taken.max(owed) as f64)) as u64)
    }

    /// Does this small write go home without the log?
    pub(super) fn goes_straight(&self, number: usize) -> bool {
        self.detouring.is_straight() && self.may_go_home(self.requests.get(number).request.span)
    }
}

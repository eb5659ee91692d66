//! Detour: small writes of `allocation = "small-writes"` go home, as through writes, while the log is full and `cache/detour` has found that quicker.
//! Destaging, which would have to share the drive with them, waits until they pause; then it makes room, and they are converted again.
//!
//! With the rules of `split`: whole blocks only, in write-back mode, and what the origin does not take is for the log.

use crate::cache::detour::Detour;
use crate::cache::split::Part;
use crate::config::{Allocation, Config, GateKind, WhenFull};
use crate::payload::Payload;
use crate::probe::WaitReason;
use crate::time::{Duration, Instant};

use super::Engine;

pub(super) struct Detouring {
    detour: Option<Detour>,
    /// When a write last went straight home, and how long destaging stays back for it.
    last: Option<Instant>,
    rest: Duration,
}

impl Detouring {
    pub fn new(config: &Config) -> Self {
        let is_asked = config.allocation == Allocation::SmallWrites && config.when_full == WhenFull::Wait && config.gate == GateKind::Ours;
        Detouring { detour: config.detour.filter(|_| is_asked).map(Detour::new), last: None, rest: config.wait }
    }

    pub fn is_straight(&self) -> bool {
        self.detour.as_ref().is_some_and(Detour::is_straight)
    }

    /// Writes go straight home, or did a moment ago.
    pub fn is_busy(&self, now: Instant) -> bool {
        self.is_straight() && self.last.is_some_and(|last| now.since(last) < self.rest)
    }

    /// When it is not busy any more.
    pub fn deadline(&self) -> Option<Instant> {
        self.last.filter(|_| self.is_straight()).map(|last| last + self.rest)
    }

    /// A small write was answered.
    pub fn answered(&mut self, now: Instant, arrived: Instant, part: Part) {
        if let Some(detour) = &mut self.detour {
            detour.answered(now, arrived, part == Part::Straight);
        }
    }

    pub fn went_home(&mut self, now: Instant) {
        self.last = Some(now);
    }

    pub fn failed(&mut self) {
        self.detour.iter_mut().for_each(Detour::fail);
    }
}

impl<P: Payload> Engine<P> {
    /// Is the log full, or does it have room?
    pub(super) fn note_detour(&mut self) {
        let Some(mut detour) = self.detouring.detour.take() else { return };
        let waits = self.first_waits_for(WaitReason::Set) && !self.is_space_coming();
        detour.note(self.now, waits, self.sets.dirty_sets(), || self.room_takes());
        self.detouring.detour = Some(detour);
    }

    /// How long it takes to make room for one block in the log. What was overwritten there did not have to go home.
    fn room_takes(&self) -> Duration {
        let dirty = self.dirty_blocks().max(1);
        let all = self.destage_left(self.now).0 as f64 / dirty as f64;
        let taken = (self.counters.written_atoms / self.block_atoms()).saturating_sub(self.counters.through_blocks);
        let owed = dirty + self.counters.destaged_blocks;
        Duration((all * (owed as f64 / taken.max(owed) as f64)) as u64)
    }

    /// Does this small write go home without the log?
    pub(super) fn goes_straight(&self, number: usize) -> bool {
        self.detouring.is_straight() && self.may_go_home(self.requests.get(number).request.span)
    }
}

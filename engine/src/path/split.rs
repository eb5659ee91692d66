//! Split: a long sequential write shares the two devices. `cache/split` says which part of it is for the origin; here is who may, and what
//! becomes of a write that the origin does not take: it goes to the log, as if nothing had been.
//!
//! Only in write-back mode, only whole blocks, and only where the cache has nothing of them: what is written over again and again belongs
//! into the log. While no set is free all of a long sequence goes through: it gets on as fast as with the origin alone, and destaging, which
//! would make the disk seek between two places, waits until it is over or somebody needs room.

use crate::block::{Block, Span};
use crate::cache::split::{Part, Split};
use crate::config::Config;
use crate::payload::Payload;
use crate::probe::Phase;
use crate::request::{Command, Request};
use crate::time::{Duration, Instant};

use super::{Engine, Stage};

/// Of all dirty sets, in per cent of the cache: from here on a split may cost a little.
const PRESSED: u64 = 30;

pub(super) struct Splitting {
    split: Option<Split>,
    /// When a part of a sequence last went to the origin, and how long destaging stays back for it.
    last: Option<Instant>,
    rest: Duration,
}

impl Splitting {
    pub fn new(config: &Config) -> Self {
        Splitting { split: config.split.filter(|_| config.splits()).map(Split::new), last: None, rest: config.wait }
    }
    pub fn answered(&mut self, part: Part, atoms: u64, latency: Duration) {
        if let Some(split) = self.split.as_mut().filter(|_| part != Part::Other) {
            split.answered(part, atoms, latency);
        }
    }
    /// A client's FLUSH came.
    pub fn flushed(&mut self) {
        if let Some(split) = &mut self.split {
            split.flushed();
        }
    }
    /// The origin is at its part: a flush of it now would cost more than a moment later.
    pub fn is_at_home_leg(&self) -> bool {
        self.split.as_ref().is_some_and(Split::is_at_home_leg)
    }
    /// The origin has had its part, and a FLUSH may come soon.
    pub fn wants_origin_flush(&self) -> bool {
        self.split.as_ref().is_some_and(Split::wants_origin_flush)
    }
    /// A long sequence goes past the log, or did a moment ago.
    pub fn is_busy(&self, now: Instant) -> bool {
        self.last.is_some_and(|last| now.since(last) < self.rest)
    }
    /// The origin is being flushed.
    pub fn origin_flushes(&mut self) {
        if let Some(split) = &mut self.split {
            split.origin_flushes();
        }
    }
    /// When it is not busy any more.
    pub fn deadline(&self) -> Option<Instant> {
        self.last.map(|last| last + self.rest)
    }
}

impl<P: Payload> Engine<P> {
    /// Which part of a long sequential write this is, in the order of arrival.
    pub(super) fn part_of_sequence(&mut self, request: &Request<P>) -> Part {
        let Command::Write { fua, .. } = request.command else { return Part::Other };
        // What has to be durable at once is for the log.
        let may_go_home = !fua && self.may_go_home(request.span);
        let pressed = u64::from(self.sets.dirty_sets()) * 100 >= u64::from(self.sets.count()) * PRESSED;
        let Some(split) = &mut self.splitting.split else { return Part::Other };
        split.assign(self.now, request.span, pressed, may_go_home)
    }

    /// May a write go home although there is room in the log?
    pub(super) fn may_go_home(&self, span: Span) -> bool {
        let size = self.block_atoms();
        let is_whole = span.start.is_multiple_of(size) && span.end().is_multiple_of(size);
        let is_sound = self.phase == Phase::Serving && self.recovery.is_none() && !self.has_cache_failed();
        // A disk that stands still is not woken for it.
        let turns = self.rotation.motor.as_ref().is_none_or(|motor| !motor.is_down());
        is_whole && is_sound && turns && self.modes.is_back() && !self.through.back_off.has_failed()
    }

    /// Does this part of a sequence go past the log? `full`: there is no room for it there, and none is about to be.
    pub(super) fn is_split_off(&self, number: usize, full: impl Fn() -> bool) -> bool {
        let active = self.requests.get(number);
        if matches!(active.part, Part::Other | Part::Commit | Part::Straight(_)) || !self.may_go_home(active.request.span) {
            return false;
        }
        let (block, blocks) = self.blocks_of(active.request.span);
        let is_home = active.part == Part::Home && self.has_room_to_pass(blocks) && !self.has_any(block, blocks);
        is_home || full()
    }

    /// Has the cache anything of these blocks?
    pub(super) fn has_any(&self, block: Block, blocks: u64) -> bool {
        self.has_dirty(block, blocks) || self.has_clean(block, blocks)
    }

    /// A part of a sequence, a commit, or what would have been converted, starts on its way to the origin.
    pub(super) fn note_split(&mut self, number: usize) {
        let (now, is_straight) = (self.now, self.requests.get(number).converts && self.goes_straight(number));
        let active = self.requests.get_mut(number);
        match active.part {
            Part::Log => active.part = Part::Overflow,
            Part::Other if is_straight => active.part = Part::Straight(now),
            _ => {}
        }
        let (part, span) = (active.part, active.request.span);
        let blocks = self.blocks_of(span).1;
        match part {
            Part::Other => {}
            Part::Commit => {
                self.counters.commit_blocks += blocks;
                self.committing.went_home(number);
            }
            Part::Straight(_) => self.counters.straight_blocks += blocks,
            Part::Log | Part::Home | Part::Overflow => {
                self.counters.split_blocks += blocks;
                self.splitting.last = Some(self.now);
            }
        }
    }

    /// A write that the origin was to share, and does not take, is for the log. False: it is no such write.
    pub(super) fn goes_back_to_log(&mut self, number: usize) -> bool {
        if self.requests.get(number).part == Part::Other || self.is_degraded() {
            return false;
        }
        let active = self.requests.get_mut(number);
        let part = std::mem::take(&mut active.part);
        active.stage = Stage::Waiting;
        let span = active.request.span;
        self.counters.written_atoms -= span.atoms;
        self.unlock(number);
        self.intake.push_front(number);
        match (part, &mut self.splitting.split) {
            (Part::Commit, _) => self.committing.give_up(),
            (Part::Straight(_), _) => self.detouring.failed(self.now),
            (_, Some(split)) => split.failed(),
            (_, None) => {}
        }
        true
    }
}

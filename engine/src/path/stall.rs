//! Stall: what waits for room that only the origin can make does not wait for ever (`Config::stall_timeout`).
//!
//! An origin that is slow is waited for: every write and flush of it that succeeds is a sign of life. Only when there has been none for that
//! long, and a request has waited that long, it fails: with `NoSpace` if the origin said so, else with `Io`. Nothing dirty is dropped.

use crate::op::DeviceError;
use crate::payload::Payload;
use crate::probe::WaitReason;
use crate::request::RequestError;
use crate::time::Instant;

use super::{Ended, Engine};

/// What the origin last showed.
#[derive(Default)]
pub(super) struct Life {
    /// A write, zeroing or flush of it succeeded.
    last: Instant,
    /// What it failed with since.
    error: Option<DeviceError>,
}

impl<P: Payload> Engine<P> {
    /// The end of an operation that wrote or flushed the origin.
    pub(super) fn note_life(&mut self, result: &Ended) {
        match result {
            Ok(()) => self.life = Life { last: self.now, error: None },
            Err(error) => self.life.error = Some(*error),
        }
    }

    /// What the origin has failed with since it last took something.
    pub(super) fn origin_error(&self) -> Option<DeviceError> {
        self.life.error
    }

    /// When the origin last took something.
    pub(super) fn last_life(&self) -> Instant {
        self.life.last
    }

    /// When the oldest request that waits for the origin to make room has waited for too long.
    #[inline]
    pub(super) fn stall_deadline(&self) -> Option<Instant> {
        // Mostly nobody waits for anything, and this is asked in every turn.
        if self.does_nobody_wait() { None } else { self.oldest_deadline() }
    }

    /// Of those that may wait for the origin: whatever for.
    fn does_nobody_wait(&self) -> bool {
        let past_log = || self.passing().next().or_else(|| self.settling().next());
        self.intake.is_empty() && past_log().is_none() && self.waiting_for_home().next().is_none() && self.held_by_origin().next().is_none()
    }

    #[inline(never)]
    fn oldest_deadline(&self) -> Option<Instant> {
        let since = self.waiting_for_origin().map(|number| self.requests.get(number).arrived).min()?;
        Some(since.max(self.life.last) + self.config.stall_timeout)
    }

    /// Requests that wait for what only the origin can do. Of those that wait for their turn, the first says what for; but behind one that waits
    /// for the range table others have their turn, if they do not wait for that as well.
    fn waiting_for_origin(&self) -> impl Iterator<Item = usize> + '_ {
        let blocked = self.intake.front().filter(|&&number| self.is_blocked_by_origin(self.requests.get(number).waits));
        let (first, is_table) = (blocked.copied(), self.first_waits_for(WaitReason::RangeTable));
        let waits = move |&&number: &&usize| !is_table || Some(number) == first || self.lacks_range(number).is_some();
        let intake = first.is_some().then_some(&self.intake).into_iter().flatten().filter(waits);
        intake.copied().chain(self.passing()).chain(self.settling()).chain(self.waiting_for_home()).chain(self.held_by_origin())
    }

    fn is_blocked_by_origin(&self, reason: WaitReason) -> bool {
        match reason {
            WaitReason::Set | WaitReason::RangeTable | WaitReason::Home => true,
            // Of what went through: the window of the log empties by itself.
            WaitReason::Window => self.is_crowded(),
            WaitReason::Recovery
            | WaitReason::Turn
            | WaitReason::Lock
            | WaitReason::Journal
            | WaitReason::OriginSpan
            | WaitReason::Slot
            | WaitReason::Ram
            | WaitReason::Read
            | WaitReason::Data
            | WaitReason::Origin
            | WaitReason::Flush
            | WaitReason::Fence => false,
        }
    }

    /// True: a request has failed, and others may go on.
    pub(super) fn pump_stalled(&mut self) -> bool {
        if self.stall_deadline().is_none_or(|deadline| deadline > self.now) { false } else { self.fail_stalled() }
    }

    #[cold]
    fn fail_stalled(&mut self) -> bool {
        let error = if self.life.error == Some(DeviceError::NoSpace) { RequestError::NoSpace } else { RequestError::Io };
        let has_waited = |arrived: Instant| self.now.since(arrived) >= self.config.stall_timeout;
        let stalled: Vec<usize> = self.waiting_for_origin().filter(|&number| has_waited(self.requests.get(number).arrived)).collect();
        for &number in &stalled {
            self.intake.retain(|&waiting| waiting != number);
            self.forget_passing(number);
            self.forget_waiting_for_home(number);
            self.forget_held(number);
            self.counters.stalled_requests += 1;
            self.turn_away(number, error);
        }
        !stalled.is_empty()
    }
}

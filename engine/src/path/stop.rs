//! Stop: what was acknowledged becomes durable, the superblocks say so, and nothing is taken any more.
//!
//! ```text
//! Stopping (nothing new is taken; what is not placed is refused) → what fronts have written and what went through is in the log
//!         │    (where the origin is promised, a while is waited for what is on its way there: `mode`)
//!         │    → all of it durable, nothing under way → marks of the origin (`fence`) → superblocks (`checkpoint`) → Stopped
//!         ├ before service: Stopped at once, and what was held is refused
//!         └ the SSD has failed → the origin has everything (`degraded`) → Stopped
//! ```

use crate::payload::Payload;
use crate::probe::{Health, Phase};
use crate::request::RequestError;

use super::Engine;

impl<P: Payload> Engine<P> {
    /// Has it begun to stop, or come to its end? Then nothing is taken any more.
    pub fn is_stopping(&self) -> bool {
        self.stopping
    }

    /// Somebody asks for it.
    #[cold]
    pub(super) fn ask_stop(&mut self) {
        // A detach that has not brought everything home is none: the rest only the cache has.
        self.detaching &= self.stopping;
        self.stop();
    }

    /// Takes nothing new from now on.
    pub(super) fn stop(&mut self) {
        self.stopping = true;
        self.drain = None;
        if self.phase != Phase::Serving {
            self.phase = Phase::Stopped;
            self.recovery = None;
            while let Some(number) = self.arrivals.held.pop_front() {
                self.answer(number, Err(RequestError::Shutdown));
            }
            return;
        }
        if self.is_degraded() {
            // What the origin has not taken is not asked for again for up to a minute, and that may be all there is.
            self.try_refused();
        }
        let group = self.close_group();
        self.flushes.want(group);
    }

    /// Goes on with it, as far as that is possible now.
    pub(super) fn finish_stop(&mut self) {
        if !self.stopping || self.phase != Phase::Serving {
            return;
        }
        loop {
            // What was not placed yet was not acknowledged and need not be done; but what fronts have written was.
            while let Some(number) = self.intake.pop_front() {
                self.turn_away(number, RequestError::Shutdown);
            }
            if !self.pump_front_writes() {
                break;
            }
        }
        let is_home = self.is_home_for_stop();
        if !self.front_writes.is_empty() && self.health() != Health::Unfenced {
            return;
        }
        if self.has_cache_failed() {
            return self.stop_degraded();
        }
        if !is_home || !self.is_through_settled() {
            return;
        }
        if self.scrubber.is_repairing() || self.has_untold() {
            return;
        }
        if !self.journal.is_group_empty() {
            let group = self.close_group();
            self.flushes.want(group);
            return self.pump_pages();
        }
        let durable = self.journal.durable_group() + 1 == self.journal.group();
        let is_still = durable && self.writes.is_empty() && !self.has_writing_requests() && self.recovery.is_none();
        if is_still && !self.scrubber.is_busy() && !self.cleaner.is_busy() && !self.discards.is_busy() && self.take_marks() {
            self.seal_stop();
        }
    }
}

//! Detach: the origin alone becomes the whole truth, and the cache says so.
//!
//! ```text
//! Detaching (writes are refused, reads served; what is dirty goes home, the origin is flushed) → stop → superblocks: clean, detached
//!        ├ cancelled, or told to stop before that: as before
//!        ├ the SSD fails: the volume goes on without it, and takes writes again
//!        └ all that is left cannot be read, or is lost (`lost`): as before, too; of these blocks the origin alone would show older contents
//! ```
//! A detached cache is refused from then on: whoever uses the origin meanwhile must not meet older contents again.

use crate::payload::Payload;
use crate::probe::Drain;
use crate::request::Command;

use super::Engine;

impl<P: Payload> Engine<P> {
    /// The drain under way.
    pub fn drain(&self) -> Option<Drain> {
        self.drain
    }

    /// Is the cache on its way out? Then nothing that changes anything is taken.
    pub fn is_detaching(&self) -> bool {
        self.detaching
    }

    #[cold]
    pub(super) fn detach(&mut self) {
        if self.stopping {
            return;
        }
        self.detaching = true;
        self.begin_drain();
    }

    #[cold]
    pub(super) fn cancel_detach(&mut self) {
        if !self.stopping {
            self.detaching = false;
            self.drain = None;
        }
    }

    #[cold]
    pub(super) fn begin_drain(&mut self) {
        let left = self.dirty_blocks();
        self.drain = Some(Drain { started: self.now, blocks_at_start: left, blocks_left: left });
        if self.is_degraded() {
            self.ask_again();
        }
    }

    /// How far the drain is; it has ended if all is home that can go there.
    #[cold]
    pub(super) fn note_drain(&mut self) {
        let dirty = self.dirty_blocks();
        let Some(drain) = &mut self.drain else { return };
        drain.blocks_left = dirty;
        let started = drain.started;
        if self.destage.is_idle() && self.is_drained(started) {
            self.drain = None;
        }
    }

    /// Is this a request that a cache on its way out refuses?
    pub(super) fn is_refused_by_detach(&self, command: &Command<P>) -> bool {
        match command {
            Command::Write { .. } | Command::Trim { .. } | Command::Zero { .. } => self.detaching,
            Command::Read | Command::Cache | Command::Flush | Command::Status { .. } => false,
        }
    }

    /// Stops when nothing is left that the origin does not hold durably.
    pub(super) fn pump_detach(&mut self) {
        if !self.detaching || self.stopping {
            return;
        }
        let is_still = self.through.pages.is_empty() && self.is_through_idle() && !self.has_writing_requests() && self.intake.is_empty();
        let owes = self.owed_blocks() > 0 && !(self.gives_nothing() && self.is_drained(self.now));
        if owes || !self.destage.is_idle() {
            // What was still on its way when it began became dirty after the drain had ended.
            if self.drain.is_none() {
                self.begin_drain();
            }
        } else if self.dirty_blocks() > 0 || !self.lost.is_empty() {
            // The origin alone would show older contents of them. Whoever asked sees in the snapshot that it has ended, and why.
            self.detaching = self.drain.is_some();
        } else if is_still && self.recovery.is_none() {
            self.stop();
        }
    }
}

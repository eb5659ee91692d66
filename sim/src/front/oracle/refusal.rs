//! Errors: which request may be answered with one, and for what a device has failed.

use super::{Broken, Oracle, Verdict};
use crate::front::prefix::Moment;
use tidegate_engine::block::Span;
use tidegate_engine::request::RequestError;
use tidegate_engine::time::Instant;

/// What a request promises beside its effect: a FLUSH everything, FUA what it changes itself.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Promise {
    Flush,
    Fua(Span),
}

impl Oracle {
    /// May a write, or a FLUSH or FUA that makes a `promise`, fail with this `error`, if it arrived at that moment and time?
    pub(super) fn may_refuse(&mut self, error: RequestError, (arrived, since): (Moment, Instant), promise: Option<Promise>) -> Verdict {
        let is_flush = promise == Some(Promise::Flush);
        let waits_too_long = |since: Instant| self.clock.since(since) >= self.patience;
        let has_failed = match promise {
            Some(Promise::Fua(own)) => self.failed_for_all > arrived || self.is_refused(own, arrived),
            Some(Promise::Flush) | None => self.failed > arrived,
        };
        match error {
            RequestError::Io if self.writes_may_fail || self.unfenced || has_failed => Ok(()),
            RequestError::Io if waits_too_long(since) && waits_too_long(self.alive) => Ok(()),
            // What a device has failed before is told to the next FLUSH, once.
            RequestError::Io if is_flush && self.promises_origin && (self.untold || self.told_at == Some(self.clock)) => {
                self.untold = false;
                self.told_at = Some(self.clock);
                Ok(())
            }
            RequestError::Io if is_flush && !self.hurt.is_empty() => {
                self.told_of_loss = true;
                Ok(())
            }
            RequestError::Io => Err(Broken("a write or flush failed although no device failed anything that it needs".into())),
            RequestError::NoSpace if !self.may_be_full => Err(Broken("no space, although space was never short for ever".into())),
            RequestError::NotFast => Err(Broken("not fast, although nobody asked for that".into())),
            RequestError::Shutdown if !self.closing => Err(Broken("refused as if the engine were stopping, which nobody asked for".into())),
            RequestError::NoSpace | RequestError::Shutdown => Ok(()),
        }
    }

    /// A FLUSH has succeeded that arrived then. Without a cache it has promised all there is, and would have told what failed before. (With one, what
    /// a FLUSH promises may change while something is on its way home.)
    pub(super) fn flush_told(&mut self, arrived: Moment) {
        self.untold &= !self.alone || self.failed > arrived;
    }

    /// A device has failed just now what any write, FLUSH or FUA may need.
    pub fn device_failed(&mut self) {
        self.failed_for_flush();
        self.failed_for_all = self.failed;
    }

    /// The same, but for FUA: that needs its own blocks alone.
    pub fn failed_for_flush(&mut self) {
        (self.failed, self.untold) = (self.now + 1, true);
    }

    /// The origin has not taken `span` just now, or nobody can send it there any more: whoever needs a block of it may fail.
    pub fn refused(&mut self, span: Span) {
        self.failed_for_flush();
        self.refused.resize(self.atoms.len(), 0);
        let start = span.start / self.block_atoms * self.block_atoms;
        let end = span.end().next_multiple_of(self.block_atoms).min(self.volume_atoms());
        self.refused[start as usize..end as usize].fill(self.failed);
    }

    fn is_refused(&self, span: Span, arrived: Moment) -> bool {
        (span.start..span.end()).any(|atom| self.refused.get(atom as usize).is_some_and(|&when| when > arrived))
    }

    /// Has a FLUSH failed since the last call that only a lost block can have failed?
    pub fn take_told_of_loss(&mut self) -> bool {
        std::mem::take(&mut self.told_of_loss)
    }
}

//! When to try again what has failed: after a wait that doubles with every failure in a row.

use crate::time::{Duration, Instant};

pub(super) struct BackOff {
    first: Duration,
    last: Duration,
    failures_in_a_row: u32,
    /// It is tried again at this moment. `None`: nothing has failed, or it is being tried.
    pub at: Option<Instant>,
}

impl BackOff {
    /// Waits from `first` to `last`.
    pub fn new(first: Duration, last: Duration) -> Self {
        BackOff { first, last, failures_in_a_row: 0, at: None }
    }

    /// Whatever happened, not before that moment.
    pub fn wait_until(&mut self, at: Instant) {
        self.at = Some(at);
    }

    /// Always the same wait.
    pub fn steady(wait: Duration) -> Self {
        BackOff::new(wait, wait)
    }

    pub fn failed(&mut self, now: Instant) {
        let wait = Duration((self.first.0 << self.failures_in_a_row.min(16)).min(self.last.0));
        self.failures_in_a_row += 1;
        self.at = Some(now + wait);
    }

    pub fn succeeded(&mut self) {
        self.failures_in_a_row = 0;
    }

    /// The last try failed.
    pub fn has_failed(&self) -> bool {
        self.failures_in_a_row > 0
    }

    pub fn failures_in_a_row(&self) -> u32 {
        self.failures_in_a_row
    }

    pub fn is_waiting(&self, now: Instant) -> bool {
        self.at.is_some_and(|at| at > now)
    }

    /// Begins a wait if there is none. True: the one there was is over.
    pub fn is_over(&mut self, now: Instant) -> bool {
        match self.at {
            None => {
                self.failed(now);
                false
            }
            Some(at) if at > now => false,
            Some(_) => {
                self.at = None;
                true
            }
        }
    }
}

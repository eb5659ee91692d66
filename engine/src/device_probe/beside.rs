//! What reads suffer from writes: the same reads, at the same depth, without writes and beside them.

use super::evidence::quantile;
use super::{Measured, Sample};
use crate::time::Duration;

/// Latencies of reads without writes and beside them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Beside {
    pub alone: Option<Latencies>,
    pub beside: Option<Latencies>,
    /// Of these writes.
    pub writes: Option<Latencies>,
}

/// Of one kind of access.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latencies {
    pub count: usize,
    pub median: Duration,
    pub p99: Duration,
}

impl Latencies {
    fn of(samples: &[Sample]) -> Option<Latencies> {
        let times: Vec<Duration> = samples.iter().map(|sample| sample.latency()).collect();
        (!times.is_empty()).then(|| Latencies { count: times.len(), median: quantile(&times, 0.5), p99: quantile(&times, 0.99) })
    }
}

impl Beside {
    pub(super) fn is_open(&self) -> bool {
        self.beside.is_none()
    }

    pub(super) fn has_alone(&self) -> bool {
        self.alone.is_some()
    }

    pub(super) fn record(&mut self, measured: &Measured) {
        if self.alone.is_none() {
            self.alone = Latencies::of(&measured.reads);
        } else {
            (self.beside, self.writes) = (Latencies::of(&measured.reads), Latencies::of(&measured.writes));
        }
    }
}

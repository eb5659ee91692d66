//! A trial: accesses that are carried out and timed, and nothing else meanwhile.

use crate::block::Span;
use crate::time::{Duration, Instant};

/// Something to be done to the device, with nothing else under way. It ends when all its reads have ended; of a trial without reads, all its
/// writes. As long as it goes on, its writes begin again from the first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trial {
    /// Nothing is done for so long before it.
    pub rest: Duration,
    pub reads: Stream,
    pub writes: Stream,
}

/// Accesses in order, of which `depth` are under way at any time, the first ones together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stream {
    pub depth: usize,
    pub places: Vec<Span>,
}

/// How long a trial took.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Of each read, in the order of the trial.
    pub reads: Vec<Sample>,
    /// Of each write, in the order in which they began.
    pub writes: Vec<Sample>,
}

/// When an access began and ended, since the start of its trial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    pub began: Duration,
    pub ended: Duration,
}

impl Sample {
    pub(super) fn latency(self) -> Duration {
        Duration(self.ended.0 - self.began.0)
    }
}

/// What is to be begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pub is_write: bool,
    /// Among all reads, or all writes, of its trial.
    pub number: usize,
    pub span: Span,
}

/// A trial under way: it says what to begin, and keeps the times.
pub struct Running {
    trial: Trial,
    started: Instant,
    measured: Measured,
    /// Reads, writes.
    under_way: [usize; 2],
}

impl Running {
    /// Begins at `now`: the rest is over.
    pub fn new(now: Instant, trial: Trial) -> Running {
        Running { trial, started: now, measured: Measured::default(), under_way: [0; 2] }
    }

    /// What is to be begun at once. None: nothing before something has ended.
    pub fn begin(&mut self, now: Instant) -> Option<Access> {
        let Running { trial, measured, under_way, .. } = self;
        let (reads, writes) = (&trial.reads, &trial.writes);
        let began = Sample { began: now.since(self.started), ended: Duration::ZERO };
        if under_way[0] < reads.depth && measured.reads.len() < reads.places.len() {
            measured.reads.push(began);
            under_way[0] += 1;
            let number = measured.reads.len() - 1;
            return Some(Access { is_write: false, number, span: reads.places[number] });
        }
        let goes_on = if reads.places.is_empty() { measured.writes.len() < writes.places.len() } else { under_way[0] > 0 };
        if goes_on && under_way[1] < writes.depth {
            measured.writes.push(began);
            under_way[1] += 1;
            let number = measured.writes.len() - 1;
            return Some(Access { is_write: true, number, span: writes.places[number % writes.places.len()] });
        }
        None
    }

    /// An access has ended.
    pub fn end(&mut self, now: Instant, access: &Access) {
        let samples = if access.is_write { &mut self.measured.writes } else { &mut self.measured.reads };
        samples[access.number].ended = now.since(self.started);
        self.under_way[usize::from(access.is_write)] -= 1;
    }

    /// Nothing is under way, and nothing is to be begun.
    pub fn is_over(&self) -> bool {
        let is_begun = |stream: &Stream, samples: &Vec<Sample>| samples.len() >= stream.places.len();
        let Running { trial, measured, under_way, .. } = self;
        let all =
            if trial.reads.places.is_empty() { is_begun(&trial.writes, &measured.writes) } else { is_begun(&trial.reads, &measured.reads) };
        all && *under_way == [0; 2]
    }

    pub fn measured(self) -> Measured {
        assert!(self.is_over(), "a trial that is measured is over");
        self.measured
    }
}

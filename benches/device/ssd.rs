//! The SSD: a file through the daemon's own ring, that gives at most so many bytes a second, read and written together. What the device gets
//! is counted here.

use std::collections::VecDeque;

use tidegate_daemon::back::dock::Happening;
use tidegate_daemon::back::io::Io;
use tidegate_daemon::back::run::Run;
use tidegate_engine::block::ATOM_BYTES;
use tidegate_engine::op::{Action, DeviceId, Limits, Op, Zone};
use tidegate_engine::time::{Duration, Instant};

/// What a device that was idle for a while may give at once: one large operation.
const BURST_BYTES: u64 = 1 << 20;

/// Both disks of a volume; the origin is as fast as it is.
pub struct Ssd {
    io: Io,
    clock: std::time::Instant,
    /// Bytes a second.
    rate: Option<u64>,
    /// When everything that was started will have been transferred, at that rate.
    free_at: Instant,
    /// Operations whose transfer cannot begin yet.
    waiting: VecDeque<Op<Run>>,
    happenings: Vec<Happening>,
    /// Bytes of each write of data since [`Ssd::forget`].
    pub data_writes: Vec<u64>,
    /// Bytes read since then.
    pub read_bytes: u64,
}

impl Ssd {
    pub fn new(io: Io, rate: Option<u64>) -> Ssd {
        let clock = std::time::Instant::now();
        let (waiting, happenings, data_writes) = (VecDeque::new(), Vec::new(), Vec::new());
        Ssd { io, clock, rate, free_at: Instant::ZERO, waiting, happenings, data_writes, read_bytes: 0 }
    }

    pub fn now(&self) -> Instant {
        Instant(self.clock.elapsed().as_nanos() as u64)
    }

    pub fn limits(&self) -> [Limits; 2] {
        self.io.limits()
    }

    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.io.in_flight() == 0
    }

    /// Another rate, from a moment at which nothing is in flight.
    pub fn set_rate(&mut self, rate: Option<u64>) {
        assert!(self.is_idle());
        self.rate = rate;
    }

    /// Counts from zero again.
    pub fn forget(&mut self) {
        self.data_writes.clear();
        self.read_bytes = 0;
    }

    pub fn start(&mut self, now: Instant, op: Op<Run>) {
        if op.device == DeviceId::Cache {
            match &op.action {
                Action::Write(Zone::Data, span, _) => self.data_writes.push(span.bytes()),
                Action::Read(_, span) => self.read_bytes += span.bytes(),
                _ => {}
            }
        }
        self.waiting.push_back(op);
        self.begin(now);
    }

    /// Hands on what the rate lets through, in its order.
    fn begin(&mut self, now: Instant) {
        while let Some(op) = self.waiting.front() {
            if let (Some(rate), DeviceId::Cache) = (self.rate, op.device) {
                let transfer = |bytes: u64| Duration(bytes * 1_000_000_000 / rate);
                // A token bucket, told in time: it is full when it was left alone for as long as a burst takes.
                let full = Instant(now.0.saturating_sub(transfer(BURST_BYTES).0));
                let begins = self.free_at.max(full);
                if begins > now {
                    return;
                }
                self.free_at = begins + transfer(moved_bytes(&op.action));
            }
            let op = self.waiting.pop_front().expect("looked at above");
            self.io.start(now, op);
        }
    }

    /// Sleeps until something happened or `deadline`, and says what.
    pub fn wait(&mut self, deadline: Option<Instant>) -> impl Iterator<Item = Happening> {
        let now = self.now();
        let next = (!self.waiting.is_empty()).then_some(self.free_at);
        let deadline = [deadline, next].into_iter().flatten().min();
        self.io.wait(now, deadline, &mut self.happenings).expect("the ring works");
        self.begin(self.now());
        self.happenings.drain(..)
    }
}

/// What goes over the wire.
fn moved_bytes(action: &Action<Run>) -> u64 {
    match action {
        Action::Read(_, span) | Action::Write(_, span, _) => span.atoms * ATOM_BYTES,
        Action::Zero(..) | Action::Discard(..) | Action::Allocation(..) | Action::Flush => 0,
    }
}

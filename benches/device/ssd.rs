//! The SSD: a file through the daemon's own ring, that gives at most so many bytes a second. What the device gets is counted here.

use std::collections::VecDeque;

use tidegate_daemon::back::dock::Happening;
use tidegate_daemon::back::io::Io;
use tidegate_daemon::back::run::Run;
use tidegate_engine::block::ATOM_BYTES;
use tidegate_engine::op::{Action, DeviceId, Limits, Op, Zone};
use tidegate_engine::time::{Duration, Instant};

use crate::load::Limit;

/// What a device that was idle for a while may give at once: one large operation.
const BURST_BYTES: u64 = 1 << 20;

/// Both disks of a volume; the origin is as fast as it is.
pub struct Ssd {
    io: Io,
    clock: std::time::Instant,
    limit: Limit,
    /// What shares a limit: everything, or what is written and what is read.
    ways: [Way; 2],
    happenings: Vec<Happening>,
    /// Bytes of each write of data since [`Ssd::forget`].
    pub data_writes: Vec<u64>,
    /// Bytes read since then.
    pub read_bytes: u64,
}

#[derive(Default)]
struct Way {
    /// When everything that was started will have been transferred, at that rate.
    free_at: Instant,
    /// Operations whose transfer cannot begin yet.
    waiting: VecDeque<Op<Run>>,
}

impl Ssd {
    pub fn new(io: Io) -> Ssd {
        let clock = std::time::Instant::now();
        Ssd { io, clock, limit: Limit::None, ways: Default::default(), happenings: Vec::new(), data_writes: Vec::new(), read_bytes: 0 }
    }

    pub fn now(&self) -> Instant {
        Instant(self.clock.elapsed().as_nanos() as u64)
    }

    pub fn limits(&self) -> [Limits; 2] {
        self.io.limits()
    }

    pub fn is_idle(&self) -> bool {
        self.ways.iter().all(|way| way.waiting.is_empty()) && self.io.in_flight() == 0
    }

    /// Another limit, from a moment at which nothing is in flight.
    pub fn set_limit(&mut self, limit: Limit) {
        assert!(self.is_idle());
        self.limit = limit;
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
        let way = match (self.limit, &op.action) {
            (Limit::EachWay(_), Action::Read(..)) => 1,
            _ => 0,
        };
        self.ways[way].waiting.push_back(op);
        self.begin(now);
    }

    /// Hands on what the limit lets through, each way in its order.
    fn begin(&mut self, now: Instant) {
        for way in &mut self.ways {
            while let Some(op) = way.waiting.front() {
                if let (Some(rate), DeviceId::Cache) = (self.limit.rate(), op.device) {
                    let transfer = |bytes: u64| Duration(bytes * 1_000_000_000 / rate);
                    // A token bucket, told in time: it is full when it was left alone for as long as a burst takes.
                    let full = Instant(now.0.saturating_sub(transfer(BURST_BYTES).0));
                    let begins = way.free_at.max(full);
                    if begins > now {
                        break;
                    }
                    way.free_at = begins + transfer(moved_bytes(&op.action));
                }
                let op = way.waiting.pop_front().expect("looked at above");
                self.io.start(now, op);
            }
        }
    }

    /// Sleeps until something happened or `deadline`, and says what.
    pub fn wait(&mut self, deadline: Option<Instant>) -> impl Iterator<Item = Happening> {
        let now = self.now();
        let next = self.ways.iter().filter(|way| !way.waiting.is_empty()).map(|way| way.free_at);
        let deadline = next.chain(deadline).min();
        self.io.wait(now, deadline, &mut self.happenings).expect("the ring works");
        self.begin(self.now());
        self.happenings.drain(..)
    }
}

/// What goes over the wire.
fn moved_bytes(action: &Action<Run>) -> u64 {
    match action {
        Action::Read(_, span) | Action::Write(_, span, _) => span.atoms * ATOM_BYTES,
        Action::Zero(..) | Action::Discard(..) | Action::Allocation(..) | Action::Flush | Action::Spin(_) => 0,
    }
}

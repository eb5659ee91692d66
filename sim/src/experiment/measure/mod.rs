//! What is measured in a run: answers, their latencies and their throughput over time; what devices did, drew and for what; where the
//! gate stood. Whole numbers throughout; whoever reports divides once.

pub mod buckets;
pub mod latency;

use super::load::Ask;
use crate::back::model::{Account, Counters, Model, PowerState};
use buckets::{Buckets, Marks};
use latency::Latencies;
use tidegate_engine::probe::GateState;
use tidegate_engine::time::{Duration, Instant};

/// Columns of the state of a device, in their order.
pub const POWER_STATES: [PowerState; 5] =
    [PowerState::Active, PowerState::Idle, PowerState::SpinningDown, PowerState::Standby, PowerState::SpinningUp];
/// Columns of the state of the gate.
pub const GATE_STATES: [&str; 3] = ["normal", "wait", "destage"];

/// What clients saw.
#[derive(Clone, Debug)]
pub struct Measure {
    pub started: Instant,
    /// The last answer.
    pub ended: Instant,
    /// Of reads, writes and flushes.
    pub latencies: [Latencies; 3],
    /// Operations on files, of an application.
    pub operations: Option<u64>,
    /// Bytes of reads and writes that were answered.
    pub bytes: u64,
    /// Bytes answered over time.
    pub throughput: Buckets<1>,
    /// When how much had been transferred.
    pub marks: Marks,
}

impl Measure {
    pub fn new(now: Instant) -> Self {
        Measure {
            started: now,
            ended: now,
            latencies: Default::default(),
            operations: None,
            bytes: 0,
            throughput: Buckets::new(now),
            marks: Marks::default(),
        }
    }

    /// An answer at `now` to a request of `bytes` that was due at `due`.
    pub fn answered(&mut self, now: Instant, due: Instant, ask: Ask, bytes: u64) {
        self.ended = now;
        self.latencies[ask as usize].record(now.since(due));
        self.bytes += bytes;
        self.throughput.add(now, 0, bytes);
        self.marks.add(now.since(self.started), bytes);
    }

    /// The end of something of `bytes` that nobody waited for.
    pub fn ended_in_background(&mut self, now: Instant, bytes: u64) {
        self.ended = now;
        self.bytes += bytes;
        self.throughput.add(now, 0, bytes);
        self.marks.add(now.since(self.started), bytes);
    }

    /// An application has ended.
    pub fn ran(&mut self, now: Instant, operations: Option<u64>) {
        if operations.is_some() {
            (self.operations, self.ended) = (operations, now.max(self.ended));
        }
    }

    pub fn duration(&self) -> Duration {
        self.ended.since(self.started)
    }

    /// Reads and writes.
    pub fn requests(&self) -> u64 {
        self.latencies[0].count() + self.latencies[1].count()
    }

    /// All latencies of one kind of request, or of reads and writes.
    pub fn latencies_of(&self, ask: Option<Ask>) -> Latencies {
        match ask {
            Some(ask) => self.latencies[ask as usize].clone(),
            None => self.latencies[0].clone().with(&self.latencies[1]),
        }
    }
}

/// A device while it is watched: its states over time, and the timeout after which it is told to spin down.
#[derive(Clone, Debug)]
pub struct Watch {
    name: String,
    states: Buckets<5>,
    starts: Buckets<6>,
    started: [u64; 6],
    state: PowerState,
    since: Instant,
    spin_down: Option<Duration>,
    /// Ready and with nothing to do, since when; none once it was told to spin down.
    idle_since: Option<Instant>,
    account: Account,
    counters: Counters,
}

/// What a device did in a run.
#[derive(Clone, Debug)]
pub struct DeviceReport {
    pub name: String,
    pub account: Account,
    /// Commands: reads, writes, flushes.
    pub commands: [u64; 3],
    pub spin_ups: u64,
    /// Nanoseconds in each of [`POWER_STATES`].
    pub states: Buckets<5>,
    /// Spin-ups, by what the device was to do.
    pub starts: Buckets<6>,
}

impl Watch {
    pub fn new(name: &str, model: &Model, spin_down: Option<Duration>, now: Instant) -> Self {
        Watch {
            name: name.to_string(),
            states: Buckets::new(now),
            starts: Buckets::new(now),
            started: model.counters().spin_ups,
            state: model.state(),
            since: now,
            spin_down,
            idle_since: (model.state() == PowerState::Idle).then_some(now),
            account: model.energy(now),
            counters: model.counters(),
        }
    }

    /// From now on it is measured: what was before does not count.
    pub fn restart(&mut self, model: &Model, now: Instant) {
        *self = Watch { idle_since: self.idle_since, ..Watch::new(&self.name, model, self.spin_down, now) };
    }

    /// When the model must be told to spin down.
    pub fn next(&self) -> Option<Instant> {
        Some(self.idle_since? + self.spin_down?)
    }

    /// Looks at the model after everything of this moment has happened to it.
    pub fn look(&mut self, model: &mut Model, now: Instant) {
        if self.next().is_some_and(|when| when <= now) && model.state() == PowerState::Idle {
            model.spin_down(now);
            self.idle_since = None;
        }
        let state = model.state();
        if state == self.state {
            return;
        }
        self.states.add_span(self.since, now, self.state as usize);
        self.starts.add_news(now, &mut self.started, model.counters().spin_ups);
        (self.state, self.since) = (state, now);
        self.idle_since = (state == PowerState::Idle).then_some(now);
    }

    /// What it did until `end`, which is now.
    pub fn report(mut self, model: &Model, end: Instant) -> DeviceReport {
        self.states.add_span(self.since, end, self.state as usize);
        let (then, now) = (self.counters, model.counters());
        DeviceReport {
            name: self.name,
            account: model.energy(end).since(&self.account),
            commands: [now.reads - then.reads, now.writes - then.writes, now.flushes - then.flushes],
            spin_ups: now.spin_ups.iter().sum::<u64>() - then.spin_ups.iter().sum::<u64>(),
            states: self.states,
            starts: self.starts,
        }
    }
}

/// The column of a state of the gate.
pub fn gate_column(state: GateState) -> usize {
    match state {
        GateState::Normal => 0,
        GateState::Wait => 1,
        GateState::Destage(_) => 2,
    }
}

/// Where the gate stood, and how many sets were free.
#[derive(Clone, Debug)]
pub struct GateReport {
    pub sets: u32,
    /// Nanoseconds in each of [`GATE_STATES`].
    pub states: Buckets<3>,
    /// Free sets and sets with dirty slots, times nanoseconds.
    pub sets_over_time: Buckets<2>,
    /// Starts of the origin's motor, in the order of the engine's causes.
    pub starts: Buckets<6>,
    pub hit_blocks: u64,
    pub miss_blocks: u64,
}

/// Everything measured in one run.
#[derive(Clone, Debug)]
pub struct Measured {
    pub measure: Measure,
    pub devices: Vec<DeviceReport>,
    /// Of a cached configuration.
    pub gate: Option<GateReport>,
    /// Of an instant one.
    pub writes: Option<WriteReport>,
}

/// What clients and the engine have written, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct WriteReport {
    pub client: u64,
    /// To the SSD.
    pub data: u64,
    pub metadata: u64,
}

impl Measured {
    /// The account of one device, or of all.
    pub fn account(&self, device: Option<&str>) -> Account {
        let chosen = self.devices.iter().filter(|report| device.is_none_or(|name| name == report.name));
        chosen.fold(Account::default(), |sum, report| sum.plus(&report.account))
    }
}

const _: () = {
    let mut index = 0;
    while index < POWER_STATES.len() {
        assert!(POWER_STATES[index] as usize == index, "columns are in the order of the states");
        index += 1;
    }
};

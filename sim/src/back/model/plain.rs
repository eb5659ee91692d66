//! The plain model: a fixed time for each operation, some for each atom, and jitter; any number of operations at once, which end in
//! any order. The swarm's usual device: it reaches orders that no real drive would. It has a motor, for whoever tells it to stand still.

use super::{Command, Counters, PowerState, What};
use crate::chance::Chance;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use tidegate_engine::block::ATOM_BYTES;
use tidegate_engine::op::Spin;
use tidegate_engine::time::{Duration, Instant};

/// How long operations take; up to `jitter` percent are added at random.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speed {
    pub read: Duration,
    pub write: Duration,
    pub flush: Duration,
    pub atom: Duration,
    pub jitter: u32,
    /// To turn again.
    pub spin_up: Duration,
}

impl Speed {
    pub const SSD: Speed = Speed {
        read: Duration::from_micros(80),
        write: Duration::from_micros(25),
        flush: Duration::from_micros(400),
        atom: Duration(500),
        jitter: 60,
        spin_up: Duration::ZERO,
    };
    pub const DISK: Speed = Speed {
        read: Duration::from_millis(6),
        write: Duration::from_millis(6),
        flush: Duration::from_millis(12),
        atom: Duration::from_micros(4),
        jitter: 80,
        spin_up: Duration::from_millis(700),
    };
}

#[derive(Clone, Debug)]
pub struct Plain {
    speed: Speed,
    chance: Chance,
    /// Ends to come: when, in which order they were noted, and of what.
    ends: BinaryHeap<Reverse<(Instant, u64, u64)>>,
    noted: u64,
    /// It stands still; or turns since, or will then.
    asleep: bool,
    awake: Instant,
    counters: Counters,
}

impl Plain {
    pub fn new(speed: Speed, chance: Chance) -> Self {
        Plain { speed, chance, ends: BinaryHeap::new(), noted: 0, asleep: false, awake: Instant::ZERO, counters: Counters::default() }
    }

    pub fn submit(&mut self, now: Instant, command: Command) {
        let fixed = match command.what {
            What::Read => self.speed.read,
            What::Write | What::Discard => self.speed.write,
            What::Flush => self.speed.flush,
            What::Spin(word) => return self.hear(now, word, command.id),
        };
        self.counters.count(&command);
        self.disturb(now);
        let quick = fixed.0 + self.speed.atom.0 * command.atoms;
        let end = now.max(self.awake) + Duration(quick + self.chance.below(quick * u64::from(self.speed.jitter) / 100 + 1));
        self.note(end, command.id);
    }

    fn note(&mut self, end: Instant, id: u64) {
        self.noted += 1;
        self.ends.push(Reverse((end, self.noted, id)));
    }

    /// A word to the motor.
    fn hear(&mut self, now: Instant, word: Spin, id: u64) {
        match word {
            Spin::Stop => self.asleep = true,
            Spin::Wake => self.disturb(now),
            Spin::Look => {}
        }
        let end = if word == Spin::Wake { now.max(self.awake) } else { now };
        self.note(end, id);
    }

    /// Whoever uses it wakes it.
    pub fn disturb(&mut self, now: Instant) {
        if std::mem::take(&mut self.asleep) {
            self.counters.spin_ups[0] += 1;
            self.awake = now + self.speed.spin_up;
        }
    }

    /// It stops by itself, if it has nothing to do.
    pub fn doze(&mut self) {
        self.asleep |= self.ends.is_empty();
    }

    pub fn next(&self) -> Option<Instant> {
        self.ends.peek().map(|Reverse((end, _, _))| *end)
    }

    pub fn advance(&mut self, now: Instant, ended: &mut Vec<u64>) {
        while self.next().is_some_and(|end| end <= now) {
            let Reverse((_, _, id)) = self.ends.pop().expect("it was just seen");
            ended.push(id);
        }
    }

    pub fn power_cut(&mut self) {
        self.ends.clear();
        self.asleep = false;
    }

    pub fn state(&self) -> PowerState {
        match (self.asleep, self.ends.is_empty()) {
            (true, _) => PowerState::Standby,
            (false, true) => PowerState::Idle,
            (false, false) => PowerState::Active,
        }
    }

    pub fn counters(&self) -> Counters {
        self.counters.clone()
    }
}

impl Counters {
    /// A command arrives.
    pub(super) fn count(&mut self, command: &Command) {
        let bytes = command.atoms * ATOM_BYTES;
        match command.what {
            What::Read => {
                self.reads += 1;
                self.bytes_read += bytes;
            }
            What::Write => {
                self.writes += 1;
                self.bytes_written += bytes;
            }
            What::Flush => self.flushes += 1,
            What::Discard => self.discards += 1,
            What::Spin(_) => {}
        }
    }
}

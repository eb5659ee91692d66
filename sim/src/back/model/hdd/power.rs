//! An HDD's motor and what everything draws.

use super::super::Cause;
use super::super::energy::Charge;
use super::{Account, Hdd, Job, PowerState};
use tidegate_engine::time::{Duration, Instant};

/// The figures of power, in milliwatts.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Power {
    /// Spinning, with nothing to do.
    pub idle_mw: u64,
    /// Waiting for a sector, reading and writing it.
    pub transfer_mw: u64,
    pub seek_mw: u64,
    pub standby_mw: u64,
    pub spin_down_ms: u64,
    /// On the average of spinning down.
    pub spin_down_mw: u64,
    pub spin_up_ms: u64,
    /// On the average of spinning up.
    pub spin_up_mw: u64,
}

impl Power {
    /// The gap from which on standing still saves energy, in milliseconds: what going down and up costs beyond standby and idling, divided
    /// by what standby saves. (Spinning up is time that idling would not have taken.)
    pub fn break_even_ms(&self) -> u64 {
        let down = (self.spin_down_mw - self.standby_mw) * self.spin_down_ms;
        let up = (self.spin_up_mw - self.idle_mw) * self.spin_up_ms;
        (down + up) / (self.idle_mw - self.standby_mw)
    }
}

/// The motor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spin {
    Ready,
    /// Coming to rest; it cannot turn round before it has.
    Down(Instant),
    Standby,
    Up(Instant),
}

impl Spin {
    pub fn until(self) -> Option<Instant> {
        match self {
            Spin::Ready | Spin::Standby => None,
            Spin::Down(until) | Spin::Up(until) => Some(until),
        }
    }

    /// Time has passed until `now`.
    pub fn pass(&mut self, now: Instant) {
        match *self {
            Spin::Down(until) if until <= now => *self = Spin::Standby,
            Spin::Up(until) if until <= now => *self = Spin::Ready,
            Spin::Ready | Spin::Standby | Spin::Down(_) | Spin::Up(_) => {}
        }
    }
}

impl Hdd {
    /// Somebody else wakes it.
    pub fn disturb(&mut self, now: Instant) {
        if self.spin == Spin::Standby {
            self.wake(now, Cause::HostRead);
            self.measure(now);
        }
    }

    pub(super) fn wake(&mut self, now: Instant, cause: Cause) {
        self.counters.spin_ups[cause as usize] += 1;
        self.spin = Spin::Up(now + Duration::from_millis(self.spec.power.spin_up_ms));
    }

    /// Spins down as soon as there is nothing to do. A command that comes before that keeps it turning.
    pub fn spin_down(&mut self, now: Instant) {
        self.tired = self.spin == Spin::Ready;
        self.go_on(now);
    }

    pub fn state(&self) -> PowerState {
        match self.spin {
            Spin::Down(_) => PowerState::SpinningDown,
            Spin::Standby => PowerState::Standby,
            Spin::Up(_) => PowerState::SpinningUp,
            Spin::Ready if self.job.is_some() || self.accepting.is_some() => PowerState::Active,
            Spin::Ready => PowerState::Idle,
        }
    }

    /// What is drawn at `now`, in microwatts, and for what.
    fn draw(&self, now: Instant) -> (u64, Charge) {
        let power = &self.spec.power;
        let (milliwatts, charge) = match (self.spin, &self.job, self.writes.front()) {
            (Spin::Down(_), _, _) => (power.spin_down_mw, Charge::Spin),
            (Spin::Up(_), _, _) => (power.spin_up_mw, Charge::Spin),
            (Spin::Standby, _, _) => (power.standby_mw, Charge::Idle),
            (Spin::Ready, Some(job), _) if now < job.arrives => (power.seek_mw, Charge::Work(job.cause)),
            (Spin::Ready, Some(job), _) => (power.transfer_mw, Charge::Work(job.cause)),
            (Spin::Ready, None, Some(write)) if self.accepting.is_some() => (power.transfer_mw, Charge::Work(write.cause)),
            (Spin::Ready, None, _) => (power.idle_mw, Charge::Idle),
        };
        (milliwatts * 1_000, charge)
    }

    /// Notes that the arm of `job` arrived before `now`, if it did.
    pub(super) fn post_arrival(&mut self, job: &Job, now: Instant) {
        if job.arrives <= now {
            self.meter.set(job.arrives, self.spec.power.transfer_mw * 1_000, Charge::Work(job.cause));
        }
    }

    pub(super) fn settle_meter(&mut self, now: Instant) {
        if let Some(job) = self.job {
            self.post_arrival(&job, now);
        }
    }

    /// From now on the meter counts what is drawn now.
    pub(super) fn measure(&mut self, now: Instant) {
        self.settle_meter(now);
        let (microwatts, charge) = self.draw(now);
        self.meter.set(now, microwatts, charge);
    }

    pub fn energy(&self, now: Instant) -> Account {
        match self.job.filter(|job| job.arrives <= now) {
            Some(job) => {
                let mut meter = self.meter.clone();
                meter.set(job.arrives, self.spec.power.transfer_mw * 1_000, Charge::Work(job.cause));
                meter.read(now)
            }
            None => self.meter.read(now),
        }
    }
}

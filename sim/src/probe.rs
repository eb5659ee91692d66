//! The probe on a model of a device, of which the truth is known: what does it find on a drive like this one, and would noise deceive it?

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use tidegate_engine::block::ATOM_BYTES;
use tidegate_engine::device_probe::{Access, Findings, Measured, Options, Probe, Running, Trial};
use tidegate_engine::time::{Duration, Instant};

use crate::back::model::{Cause, Command, Model, Spec, What};
use crate::chance::Chance;

/// How much later than its end an access is heard of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Noise {
    /// On average, of the time that the access took: 10 is a tenth.
    pub percent: u64,
    /// So many of 10,000 are held up for long, by something else.
    pub held_up: u64,
}

/// How long those are.
const HELD_UP: Duration = Duration::from_millis(1);

/// A model of flash keeps where each page lies: so much is enough.
const CAPACITY_MB_MAX: u64 = 8_000;
/// As many operations as the real back has under way.
const DEPTH_MAX: usize = 128;

/// What the probe finds on the device, when it hears of ends with such a noise. Of a large one, a smaller one with as many parts is taken.
pub fn probe(spec: &Spec, noise: Noise, overwrite: bool, time: Duration, seed: u64) -> Findings {
    let spec = match spec {
        Spec::Ssd(ssd) => spec.clone().with_capacity_mb(ssd.capacity_mb.min(CAPACITY_MB_MAX)),
        Spec::Hdd(_) => spec.clone(),
    };
    let options = Options { atoms: spec.capacity() / ATOM_BYTES, overwrite, time, depth_max: DEPTH_MAX, seed };
    let mut bench = Bench { model: spec.build(seed), now: Instant::ZERO, noise, chance: Chance::new(seed, "probe"), next_id: 0 };
    let mut probe = Probe::new(bench.now, options);
    while let Some(trial) = probe.next_trial(bench.now) {
        probe.record(&bench.carry_out(trial));
    }
    probe.findings()
}

/// A device, and whoever sits before it.
struct Bench {
    model: Model,
    now: Instant,
    noise: Noise,
    chance: Chance,
    next_id: u64,
}

impl Bench {
    fn carry_out(&mut self, trial: Trial) -> Measured {
        self.pass(self.now + trial.rest);
        let mut running = Running::new(self.now, trial);
        let mut at_device: BTreeMap<u64, (Instant, Access)> = BTreeMap::new();
        // Ended, and not heard of.
        let mut on_the_way: BinaryHeap<Reverse<(Instant, u64)>> = BinaryHeap::new();
        let mut ended = Vec::new();
        loop {
            while let Some(access) = running.begin(self.now) {
                at_device.insert(self.next_id, (self.now, access));
                self.submit(&access);
            }
            if running.is_over() {
                return running.measured();
            }
            let heard = on_the_way.peek().map(|Reverse((when, _))| *when);
            let next = [self.model.next(), heard].into_iter().flatten().min().expect("something is under way");
            self.now = self.now.max(next);
            self.model.advance(self.now, &mut ended);
            for id in ended.drain(..) {
                let late = self.lateness(self.now.since(at_device[&id].0));
                on_the_way.push(Reverse((self.now + late, id)));
            }
            while let Some(&Reverse((when, id))) = on_the_way.peek()
                && when <= self.now
            {
                on_the_way.pop();
                let (_, access) = at_device.remove(&id).expect("an access ends once");
                running.end(self.now, &access);
            }
        }
    }

    fn submit(&mut self, access: &Access) {
        let (what, cause) = if access.is_write { (What::Write, Cause::HostWrite) } else { (What::Read, Cause::HostRead) };
        let command = Command { id: self.next_id, what, start: access.span.start, atoms: access.span.atoms, cause };
        self.next_id += 1;
        self.model.submit(self.now, command);
    }

    /// Lets the time pass in which nobody asks for anything.
    fn pass(&mut self, until: Instant) {
        while let Some(next) = self.model.next().filter(|next| *next <= until) {
            self.model.advance(next, &mut Vec::new());
        }
        self.now = until;
    }

    /// Evenly up to twice the average; and now and then a long time.
    fn lateness(&mut self, time: Duration) -> Duration {
        let usual = self.chance.below(time.0 * 2 * self.noise.percent / 100 + 1);
        let is_held_up = self.chance.below(10_000) < self.noise.held_up;
        Duration(usual + if is_held_up { HELD_UP.0 } else { 0 })
    }
}

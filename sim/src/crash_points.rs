//! Crash points: a crash after *every* device write and flush of a workload. Nothing is run twice for it: devices are snapshots that
//! share what they have in common, so each crash costs one recovery and one reading of the volume.

use crate::back::device::{self, Device};
use crate::back::volatile::Survive;
use crate::chance::Chance;
use crate::front::oracle::Broken;
use crate::plan::Plan;
use crate::run::{Ended, data};
use crate::stamp::Stamps;
use crate::world::Simulation;
use tidegate_engine::block::Span;
use tidegate_engine::op::{Action, Class, DeviceId, Op};
use tidegate_engine::probe::Phase;
use tidegate_engine::request::{Command, Reply, Request, RequestId};
use tidegate_engine::time::Instant;
use tidegate_engine::{Engine, Event, World, turn};

/// What a power cut leaves at each crash point: each of these once.
const SUBSETS: [Survive; 4] = [Survive::None, Survive::All, Survive::Random, Survive::Torn];
/// One recovery in so many is itself crashed at every one of its steps.
const DEEP_EVERY: u64 = 100;
/// Atoms of a read of the whole volume.
pub(crate) const READ_ATOMS: u64 = 512;

/// Runs the workload of `plan` and crashes it wherever something was made persistent, after `warm` requests that only age the cache.
pub fn crash_points(plan: Plan, warm: u64) -> Ended {
    let mut points = Points::new(plan.seed);
    let (requests, canary_plan) = (plan.requests, plan.clone());
    let mut simulation = Simulation::new(Plan { requests: plan.requests + warm, ..canary_plan });
    let mut broken = None;
    while broken.is_none() && !simulation.scene.load.is_done() {
        let more = simulation.step();
        broken = simulation.scene.broken.take();
        if broken.is_none() && simulation.persisted() && simulation.scene.load.left() < requests {
            broken = points.try_all(&simulation).err();
        }
        if !more {
            break;
        }
    }
    let trace = crate::chance::mix(simulation.scene.trace.hash() ^ points.trace);
    let requests = simulation.plan.requests - simulation.scene.load.left();
    Ended { requests, recoveries: points.recoveries, trace, faults: simulation.faults(), broken }
}

/// Crashes of one run.
pub(crate) struct Points {
    chance: Chance,
    loss: Chance,
    pub recoveries: u64,
    trace: u64,
}

impl Points {
    pub fn new(seed: u64) -> Self {
        Points { loss: Chance::new(seed, "loss"), chance: Chance::new(seed, "crash points"), recoveries: 0, trace: 0 }
    }

    /// Crashes now, with each of the subsets.
    pub fn try_all(&mut self, simulation: &Simulation) -> Result<(), Broken> {
        if simulation.may_lose_cache() {
            self.try_without_cache(simulation)?;
        }
        for survive in SUBSETS {
            let scene = &simulation.scene;
            let cache = scene.cache.after_power_cut(simulation.now(), &survive, &mut self.chance);
            let origin = scene.origin.after_power_cut(simulation.now(), &survive, &mut self.chance);
            self.try_one(simulation, cache, origin).map_err(|broken| {
                Broken(format!("power cut at {:?}, {survive:?} of the unflushed left: {}", simulation.now(), broken.0))
            })?;
        }
        Ok(())
    }

    /// The cache is gone, and the power of the origin: it alone must hold everything that was flushed.
    fn try_without_cache(&mut self, simulation: &Simulation) -> Result<(), Broken> {
        for survive in [Survive::None, Survive::Random] {
            let origin = simulation.scene.origin.after_power_cut(simulation.now(), &survive, &mut self.loss);
            simulation.scene.oracle.judge_alone(&[], |atom| origin.visible().stamp(atom)).map_err(|broken| {
                Broken(format!("cache lost at {:?}, {survive:?} of the unflushed left on the origin: {}", simulation.now(), broken.0))
            })?;
        }
        Ok(())
    }

    fn try_one(&mut self, simulation: &Simulation, cache: Device, origin: Device) -> Result<(), Broken> {
        let oracle = &simulation.scene.oracle;
        let deep = self.chance.one_in(DEEP_EVERY);
        let mut again = Vec::new();
        let mut rescue = Rescue::new(simulation, cache, origin);
        rescue.recover(|rescue| {
            if deep {
                let survive = self.chance.pick(&[0, 1, 2, 2, 3, 3]);
                again.push(rescue.cut(&SUBSETS[survive as usize], &mut self.chance));
            }
        })?;
        let first = rescue.read_all(READ_ATOMS)?;
        self.note(&first);
        oracle.judge(|atom| first[atom as usize])?;
        for (cache, origin) in again {
            let mut rescue = Rescue::new(simulation, cache, origin);
            rescue.recover(|_| {}).map_err(|broken| Broken(format!("crashed while recovering: {}", broken.0)))?;
            let image = rescue.read_all(READ_ATOMS)?;
            self.note(&image);
            oracle.judge(|atom| image[atom as usize]).map_err(|broken| Broken(format!("crashed while recovering: {}", broken.0)))?;
        }
        // What was read once is read again after the next crash.
        if deep || self.chance.one_in(DEEP_EVERY / 10) {
            let survive = self.chance.pick(&[0, 0, 2, 3]);
            let (cache, origin) = rescue.cut(&SUBSETS[survive as usize], &mut self.chance);
            let mut rescue = Rescue::new(simulation, cache, origin);
            rescue.recover(|_| {}).map_err(|broken| Broken(format!("crashed after recovering: {}", broken.0)))?;
            let second = rescue.read_all(READ_ATOMS)?;
            self.note(&second);
            if let Some(atom) = (0..first.len()).find(|&atom| first[atom] != second[atom]) {
                return Err(Broken(format!("atom {atom} flickers: read as {:?}, after the next crash as {:?}", first[atom], second[atom])));
            }
        }
        Ok(())
    }

    fn note(&mut self, image: &[Option<u64>]) {
        self.recoveries += 1;
        self.trace =
            image.iter().fold(self.trace, |hash, stamp| (hash.rotate_left(5) ^ stamp.unwrap_or(1)).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }
}

/// An engine that recovers what a crash left, and one reader.
pub(crate) struct Rescue {
    pub engine: Engine<Stamps>,
    pub bench: Bench,
    volume_atoms: u64,
}

/// Two devices and a clock.
pub(crate) struct Bench {
    pub cache: Device,
    pub origin: Device,
    pub now: Instant,
    ended: Vec<device::Ended>,
    replies: Vec<Reply<Stamps>>,
    /// What was read of the cache for clients, and what was written there (true), in order.
    pub used: Vec<(Span, bool)>,
}

impl World<Stamps> for Bench {
    fn start(&mut self, now: Instant, op: Op<Stamps>) {
        match op.device {
            DeviceId::Cache => {
                match op.action {
                    Action::Read(_, span) if op.class == Class::Client => self.used.push((span, false)),
                    Action::Write(_, span, _) | Action::Zero(_, span, _) | Action::Discard(_, span) => self.used.push((span, true)),
                    Action::Read(..) | Action::Allocation(..) | Action::Flush | Action::Spin(_) => {}
                }
                self.cache.start(now, op);
            }
            DeviceId::Origin => self.origin.start(now, op),
        }
    }

    fn reply(&mut self, _: Instant, reply: Reply<Stamps>) {
        self.replies.push(reply);
    }

    fn fence(&mut self, _: Instant, _: &mut dyn Iterator<Item = Span>) {
        unreachable!("no device fails at a crash point");
    }
}

impl Rescue {
    pub fn new(simulation: &Simulation, cache: Device, origin: Device) -> Rescue {
        let plan = &simulation.plan;
        let engine = Engine::new(plan.config.clone(), plan.limits);
        let bench = Bench { cache, origin, now: simulation.now(), ended: Vec::new(), replies: Vec::new(), used: Vec::new() };
        Rescue { engine, bench, volume_atoms: plan.config.geometry.volume_atoms }
    }

    fn cut(&self, survive: &Survive, chance: &mut Chance) -> (Device, Device) {
        let Bench { cache, origin, now, .. } = &self.bench;
        (cache.after_power_cut(*now, survive, chance), origin.after_power_cut(*now, survive, chance))
    }

    /// Hands `events` over, then lets the next thing happen.
    pub fn turn(&mut self, mut events: Vec<Event<Stamps>>) -> Result<(), Broken> {
        let bench = &mut self.bench;
        turn(&mut self.engine, bench, bench.now, &mut events);
        let next = [bench.cache.next(), bench.origin.next(), self.engine.deadline()].into_iter().flatten().min();
        bench.now = next.map_or(bench.now, |next| next.max(bench.now));
        bench.cache.advance(bench.now, &mut bench.ended);
        bench.origin.advance(bench.now, &mut bench.ended);
        for ended in bench.ended.drain(..) {
            let event = match ended {
                device::Ended::Done(done) => Event::Completed(done),
                device::Ended::Late(op) => Event::Late(op),
            };
            self.engine.handle(bench.now, event);
        }
        Ok(())
    }

    /// Runs until the engine serves; `each` sees every step.
    pub fn recover(&mut self, mut each: impl FnMut(&Rescue)) -> Result<(), Broken> {
        for _ in 0..100_000 {
            match self.engine.phase() {
                Phase::Serving => return Ok(()),
                Phase::Refused | Phase::Stopped => {
                    let damage: Vec<String> = self.engine.damage().iter().map(|damage| damage.what.clone()).collect();
                    return Err(Broken(format!("recovery refused: {}", damage.join("; "))));
                }
                Phase::Recovering => self.turn(Vec::new())?,
            }
            each(self);
        }
        Err(Broken("recovery does not end".to_string()))
    }

    /// Everything the volume holds, so many atoms at once; nothing for those that cannot be read.
    pub fn read_all(&mut self, each: u64) -> Result<Vec<Option<u64>>, Broken> {
        let spans: Vec<Span> =
            (0..self.volume_atoms).step_by(each as usize).map(|start| Span::new(start, each.min(self.volume_atoms - start))).collect();
        let mut requests = spans.iter().enumerate().map(|(id, &span)| Request { id: RequestId(id as u64), span, command: Command::Read });
        let mut waiting = requests.next();
        let mut image = vec![None; self.volume_atoms as usize];
        let mut replied = 0;
        for _ in 0..100_000 {
            let mut events = Vec::new();
            let mut room = self.engine.room();
            while let Some(request) = waiting.take_if(|request| room.requests > 0 && request.span.bytes() <= room.bytes) {
                room.requests -= 1;
                room.bytes -= request.span.bytes();
                events.push(Event::Arrived(request));
                waiting = requests.next();
            }
            self.turn(events)?;
            for reply in std::mem::take(&mut self.bench.replies) {
                replied += 1;
                if let Ok(outcome) = &reply.result {
                    let start = spans[reply.id.0 as usize].start as usize;
                    for (atom, stamp) in data(outcome).into_iter().enumerate() {
                        image[start + atom] = Some(stamp);
                    }
                }
            }
            if replied == spans.len() {
                return Ok(image);
            }
        }
        Err(Broken("the volume cannot be read after a recovery".to_string()))
    }
}

//! Crash points: a crash after *every* device write and flush of a workload. Nothing is run twice for it: devices are snapshots that
//! share what they have in common, so each crash costs one recovery and one reading of the volume.
//!
//! A share of the workloads and of the recoveries meet faults of the devices ([`Trouble`]), and metadata that was damaged besides
//! ([`Scars`]). A start that is refused for those is tried again, without any, and must serve.

use crate::back::device::Harm;
use crate::back::device::{self, Device};
use crate::back::fault::Rates;
use crate::back::volatile::Survive;
use crate::chance::Chance;
use crate::front::oracle::{Broken, Oracle};
use crate::plan::Plan;
use crate::run::{Ended, data, explain_refusal};
use crate::scars::Scars;
use crate::stamp::Stamps;
use crate::world::Simulation;
use tidegate_engine::block::Span;
use tidegate_engine::op::{Action, Class, DeviceId, Op};
use tidegate_engine::probe::{Health, Phase};
use tidegate_engine::request::{Command, Reply, Request, RequestId};
use tidegate_engine::time::{Duration, Instant};
use tidegate_engine::{Change, Engine, Event, World, turn};

/// What a power cut leaves at each crash point: each of these once.
const SUBSETS: [Survive; 4] = [Survive::None, Survive::All, Survive::Random, Survive::Torn];
/// One recovery in so many is itself crashed at every one of its steps.
const DEEP_EVERY: u64 = 100;
/// One in so many is of a daemon that was killed, and its devices keep their power; one in so many finds metadata damaged; and one in so many
/// meets devices that fail.
const KILL_EVERY: u64 = 12;
const SCAR_EVERY: u64 = 8;
const TROUBLE_EVERY: u64 = 8;
/// Atoms of a read of the whole volume.
pub(crate) const READ_ATOMS: u64 = 512;

/// Runs the workload of `plan` and crashes it wherever something was made persistent, after `warm` requests that only age the cache.
pub fn crash_points(plan: Plan, warm: u64) -> Ended {
    let mut points = Points { troubles: true, ..Points::new(plan.seed) };
    let (requests, canary_plan) = (plan.requests, plan.clone());
    let mut simulation = Simulation::new(Plan { requests: plan.requests + warm, ..canary_plan });
    let mut broken = None;
    while broken.is_none() && !simulation.scene.load.is_done() {
        let more = simulation.step();
        if *simulation.engine.phase() == Phase::Refused && simulation.met_faults() || simulation.engine.health() != Health::Whole {
            // The devices have failed it: there is no more to crash.
            break;
        }
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
    /// Of its own: what troubles the recoveries.
    trouble: Chance,
    /// Some of them are troubled.
    troubles: bool,
    pub recoveries: u64,
    trace: u64,
}

/// What a recovery meets besides a crash, until it serves: devices that fail, and an origin that is away for a while.
#[derive(Clone, Debug)]
struct Trouble {
    rates: [Rates; 2],
    /// The origin leaves after so many turns, for so long.
    leaves: Option<(u64, Duration)>,
}

impl Trouble {
    fn draw(plan: &Plan, chance: &mut Chance) -> Trouble {
        let mut rate = |highest: u64| if chance.one_in(2) { chance.spread(1_000, highest) as u32 } else { 0 };
        let cache = Rates {
            metadata_error: rate(250_000),
            read_error: plan.rates[0].read_error,
            write_error: rate(400_000),
            flush_error: rate(400_000),
            stuck: rate(50_000),
            settled_only: true,
            ..Rates::default()
        };
        let origin = Rates { read_error: rate(400_000), flush_error: rate(400_000), stuck: rate(50_000), ..Rates::default() };
        let leaves = chance.one_in(2).then(|| (1 + chance.below(40), Duration::from_micros(chance.spread(10, 90_000_000))));
        Trouble { rates: [cache, origin], leaves }
    }
}

impl Points {
    pub fn new(seed: u64) -> Self {
        let chance = |stream| Chance::new(seed, stream);
        Points {
            loss: chance("loss"),
            chance: chance("crash points"),
            trouble: chance("trouble"),
            troubles: false,
            recoveries: 0,
            trace: 0,
        }
    }

    /// Crashes now, with each of the subsets.
    pub fn try_all(&mut self, simulation: &Simulation) -> Result<(), Broken> {
        if simulation.may_lose_cache() {
            self.try_without_cache(simulation)?;
        }
        for survive in SUBSETS {
            let scene = &simulation.scene;
            let is_killed = self.troubles && self.trouble.one_in(KILL_EVERY);
            let (mut cache, mut origin) = if is_killed {
                (scene.cache.after_kill(&survive, &mut self.chance), scene.origin.after_kill(&survive, &mut self.chance))
            } else {
                let now = simulation.now();
                (
                    scene.cache.after_power_cut(now, &survive, &mut self.chance),
                    scene.origin.after_power_cut(now, &survive, &mut self.chance),
                )
            };
            if self.troubles {
                // What was refused before the crash, or could not be read, is no excuse.
                origin.heal();
            }
            let is_scarred = self.troubles && self.trouble.one_in(SCAR_EVERY) && self.scar(simulation, &mut cache);
            self.try_one(simulation, cache, origin).map_err(|broken| {
                let what = if is_killed { "killed" } else { "power cut" };
                let scarred = if is_scarred { ", metadata damaged" } else { "" };
                Broken(format!("{what} at {:?}, {survive:?} of the unflushed left{scarred}: {}", simulation.now(), broken.0))
            })?;
        }
        Ok(())
    }

    /// Damages what a recovery can do without. False: nothing was found.
    fn scar(&mut self, simulation: &Simulation, cache: &mut Device) -> bool {
        let (geometry, chance) = (&simulation.plan.config.geometry, &mut self.trouble);
        let found = if chance.one_in(4) {
            Scars::choose_in_ring(geometry, cache, chance).map(|atom| (atom, false))
        } else {
            Scars::new(chance).choose(geometry, cache, chance).map(|atom| (atom, chance.one_in(2)))
        };
        match found {
            None => {}
            Some((atom, true)) => cache.rot(atom),
            Some((atom, false)) => cache.spoil(atom),
        }
        found.is_some()
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
        let trouble = (self.troubles && self.trouble.one_in(TROUBLE_EVERY)).then(|| Trouble::draw(&simulation.plan, &mut self.trouble));
        let told = |broken: Broken| match &trouble {
            None => broken,
            Some(trouble) => Broken(format!("{trouble:?}: {}", broken.0)),
        };
        let mut again = Vec::new();
        let mut rescue = Rescue::new(simulation, cache, origin);
        if let Some(trouble) = &trouble {
            rescue.meet(trouble.clone(), &mut self.trouble);
        }
        rescue
            .recover_at_last(simulation, |rescue| {
                if deep {
                    let survive = self.chance.pick(&[0, 1, 2, 2, 3, 3]);
                    again.push(rescue.cut(&SUBSETS[survive as usize], &mut self.chance));
                }
            })
            .map_err(told)?;
        let first = rescue.read_what_can_be().map_err(told)?;
        self.note(&first);
        let harm = rescue.judge(oracle, &first).map_err(told)?;
        for (cache, origin) in again {
            let mut rescue = Rescue::new(simulation, cache, origin);
            rescue.recover(|_| {}).map_err(|broken| Broken(format!("crashed while recovering: {}", broken.0)))?;
            let image = rescue.read_what_can_be()?;
            self.note(&image);
            rescue.judge(oracle, &image).map_err(|broken| told(Broken(format!("crashed while recovering: {}", broken.0))))?;
        }
        // What was read once is read again after the next crash.
        if deep || self.chance.one_in(DEEP_EVERY / 10) || trouble.is_some() && self.trouble.one_in(2) {
            let survive = self.chance.pick(&[0, 0, 2, 3]);
            let (cache, origin) = rescue.cut(&SUBSETS[survive as usize], &mut self.chance);
            let mut rescue = Rescue::new(simulation, cache, origin);
            rescue.recover(|_| {}).map_err(|broken| told(Broken(format!("crashed after recovering: {}", broken.0))))?;
            let second = rescue.read_what_can_be()?;
            self.note(&second);
            let harm = rescue.judge(oracle, &second).map_err(told)? || harm;
            // Whoever fails to read something may read it later, or the other way round.
            let is_other = |&atom: &usize| first[atom] != second[atom] && !(harm && first[atom].is_none() != second[atom].is_none());
            if let Some(atom) = (0..first.len()).find(is_other) {
                let (first, second) = (first[atom], second[atom]);
                return Err(told(Broken(format!("atom {atom} flickers: read as {first:?}, after the next crash as {second:?}"))));
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
    block_atoms: u64,
    trouble: Option<Trouble>,
    turns: u64,
    /// When the origin comes back.
    back: Option<Instant>,
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
        unreachable!("no device fails for as long as that at a crash point");
    }
}

impl Rescue {
    /// Devices that do not fail.
    pub fn new(simulation: &Simulation, mut cache: Device, mut origin: Device) -> Rescue {
        let plan = &simulation.plan;
        let engine = Engine::new(plan.config.clone(), plan.limits);
        (cache.rates, origin.rates) = (Rates::default(), Rates::default());
        let bench = Bench { cache, origin, now: simulation.now(), ended: Vec::new(), replies: Vec::new(), used: Vec::new() };
        let geometry = &plan.config.geometry;
        let (volume_atoms, block_atoms) = (geometry.volume_atoms, u64::from(geometry.block_atoms));
        Rescue { engine, bench, volume_atoms, block_atoms, trouble: None, turns: 0, back: None }
    }

    /// Devices that fail until the engine serves.
    fn meet(&mut self, trouble: Trouble, chance: &mut Chance) {
        for (device, rates) in [&mut self.bench.cache, &mut self.bench.origin].into_iter().zip(trouble.rates) {
            device.fail_by(rates, Chance::new(chance.word(), "trouble"));
        }
        self.trouble = Some(trouble);
    }

    fn cut(&self, survive: &Survive, chance: &mut Chance) -> (Device, Device) {
        let Bench { cache, origin, now, .. } = &self.bench;
        (cache.after_power_cut(*now, survive, chance), origin.after_power_cut(*now, survive, chance))
    }

    /// Hands `events` over, then lets the next thing happen.
    pub fn turn(&mut self, mut events: Vec<Event<Stamps>>) -> Result<(), Broken> {
        self.move_origin(&mut events);
        let bench = &mut self.bench;
        turn(&mut self.engine, bench, bench.now, &mut events);
        let next = [bench.cache.next(), bench.origin.next(), self.engine.deadline(), self.back].into_iter().flatten().min();
        bench.now = next.map_or(bench.now, |next| next.max(bench.now));
        bench.cache.advance(bench.now, &mut bench.ended);
        bench.origin.advance(bench.now, &mut bench.ended);
        self.tell_ended();
        if self.trouble.is_some() && *self.engine.phase() == Phase::Serving {
            self.calm();
        }
        Ok(())
    }

    fn tell_ended(&mut self) {
        for ended in self.bench.ended.drain(..) {
            let event = match ended {
                device::Ended::Done(done) => Event::Completed(done),
                device::Ended::Late(op) => Event::Late(op),
            };
            self.engine.handle(self.bench.now, event);
        }
    }

    /// The origin leaves while the engine recovers, and comes back.
    fn move_origin(&mut self, events: &mut Vec<Event<Stamps>>) {
        let now = self.bench.now;
        self.turns += 1;
        if let Some(Trouble { leaves: Some((turns, time)), .. }) = self.trouble
            && self.turns == turns
            && *self.engine.phase() == Phase::Recovering
        {
            self.bench.origin.go_away();
            self.back = Some(now + time);
            events.push(Event::Device(DeviceId::Origin, Change::Gone));
        }
        if self.back.take_if(|back| *back <= now).is_some() {
            // What is on its way fails first.
            self.bench.origin.hurry(now);
            self.bench.origin.advance(now, &mut self.bench.ended);
            self.tell_ended();
            self.bench.origin.come_back(self.turns.is_multiple_of(2));
            events.push(Event::Device(DeviceId::Origin, Change::Back));
        }
    }

    /// Runs until the engine serves; `each` sees every step.
    pub fn recover(&mut self, mut each: impl FnMut(&Rescue)) -> Result<(), Broken> {
        for _ in 0..100_000 {
            match self.engine.phase() {
                Phase::Serving if self.back.is_none() => return Ok(()),
                Phase::Refused | Phase::Stopped => {
                    let damage: Vec<String> = self.engine.damage().iter().map(|damage| damage.what.clone()).collect();
                    return Err(Broken(format!("recovery refused: {}", damage.join("; "))));
                }
                Phase::Serving | Phase::Recovering => self.turn(Vec::new())?,
            }
            each(self);
        }
        Err(Broken("recovery does not end".to_string()))
    }

    /// From now on only reads of the cache fail.
    fn calm(&mut self) {
        let Rates { metadata_error, read_error, settled_only, .. } = self.bench.cache.rates;
        self.bench.cache.rates = Rates { metadata_error, read_error, settled_only, ..Rates::default() };
        self.bench.origin.heal();
    }

    /// The same before devices that may fail: where the start is refused for that, the next one, before devices that do not, serves.
    fn recover_at_last(&mut self, simulation: &Simulation, each: impl FnMut(&Rescue)) -> Result<(), Broken> {
        let faults = |bench: &Bench| bench.cache.faults + bench.origin.faults;
        let before = faults(&self.bench);
        let recovered = self.recover(each);
        let is_hindered = self.trouble.is_some() && faults(&self.bench) > before;
        if *self.engine.phase() != Phase::Refused || !is_hindered {
            return recovered;
        }
        explain_refusal(self.engine.faults())?;
        let mut chance = Chance::new(self.turns, "killed");
        let Bench { cache, origin, .. } = &self.bench;
        let [cache, origin] = [cache, origin].map(|device| device.after_kill(&Survive::Random, &mut chance));
        let now = self.bench.now;
        *self = Rescue::new(simulation, cache, origin);
        self.bench.now = now;
        self.recover(|_| {}).map_err(|broken| Broken(format!("after a start before devices that failed: {}", broken.0)))
    }

    /// What the volume holds, held against the oracle. True: something of it may be lost to faults, of this life or of one before it (what cannot
    /// be read any more, cannot after a crash either: seed 4743900).
    fn judge(&self, oracle: &Oracle, image: &[Option<u64>]) -> Result<bool, Broken> {
        let mut hurt: Option<Oracle> = None;
        for harm in self.bench.cache.harm() {
            if let Harm::Slots(stamps) = harm {
                hurt.get_or_insert_with(|| oracle.clone()).hurt(stamps);
            }
        }
        hurt.as_ref().unwrap_or(oracle).judge(|atom| image[atom as usize])?;
        Ok(hurt.is_some())
    }

    /// Everything the volume holds; where it cannot be read together, block by block; where one is lost in part, atom by atom (seed 8430240).
    fn read_what_can_be(&mut self) -> Result<Vec<Option<u64>>, Broken> {
        let mut image = Vec::new();
        for each in [READ_ATOMS, self.block_atoms, 1] {
            image = self.read_all(each)?;
            if image.iter().all(Option::is_some) {
                break;
            }
        }
        Ok(image)
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
            while let Some(request) = waiting.take_if(|request| room.for_reads().is_some_and(|most| request.span.bytes() <= most)) {
                room.take(request.kind(), request.span.bytes());
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

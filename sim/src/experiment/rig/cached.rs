//! An engine over a cache and an origin, in virtual time: as the swarm's world, but with devices that take the time that real ones
//! take, without faults, and made to be fast.

use super::drives::Drives;
use super::plug::Plug;
use super::shadow::Shadow;
use super::{Front, Stillness};
use crate::back::contents::Contents;
use crate::back::device::{Device as Disk, Ended};
use crate::back::model::{Model, Port};
use crate::chance::Chance;
use crate::experiment::load::{Access, Ask, Load};
use crate::experiment::measure::buckets::Buckets;
use crate::experiment::measure::{GateReport, Measure, Measured, Watch, gate_column};
use crate::experiment::plan::{Device, Run};
use crate::stamp::Stamps;
use std::collections::BTreeMap;
use tidegate_engine::block::Span;
use tidegate_engine::cache::format::{Step, Superblock, create_steps};
use tidegate_engine::op::{DeviceId, Limits, Op};
use tidegate_engine::payload::Payload;
use tidegate_engine::probe::{Glance, Phase, Snapshot};
use tidegate_engine::request::{Command, Outcome, Reply, Request, RequestId};
use tidegate_engine::time::Instant;
use tidegate_engine::{Config, Engine, Event, World, turn};

/// The two devices, and the replies of a turn.
struct Scene {
    disks: [Disk; 2],
    drives: Drives,
    plug: Plug,
    replies: Vec<Reply<Stamps>>,
}

impl World<Stamps> for Scene {
    fn start(&mut self, now: Instant, op: Op<Stamps>) {
        let Some(op) = self.plug.take(now, op) else { return };
        self.begin(now, op);
    }

    fn reply(&mut self, _now: Instant, reply: Reply<Stamps>) {
        self.replies.push(reply);
    }

    fn fence(&mut self, _now: Instant, _at_risk: &mut dyn Iterator<Item = Span>) {
        unreachable!("no device of an experiment fails");
    }
}

impl Scene {
    fn begin(&mut self, now: Instant, op: Op<Stamps>) {
        let index = match op.device {
            DeviceId::Cache => 0,
            DeviceId::Origin => 1,
        };
        self.disks[index].start(now, op);
        self.drives.take(now, index, &mut self.disks[index]);
    }
}

struct Cached<'a> {
    engine: Engine<Stamps>,
    scene: Scene,
    /// Of the drives.
    watches: Vec<Watch>,
    front: Front<'a>,
    flight: BTreeMap<RequestId, Access>,
    shadow: Shadow,
    measure: Measure,
    gate: Gate,
    requests: u64,
    now: Instant,
    events: Vec<Event<Stamps>>,
    ended: Vec<Ended>,
}

/// Where the gate stood when it was last looked at.
struct Gate {
    states: Buckets<3>,
    sets: Buckets<2>,
    starts: Buckets<6>,
    looked: Instant,
    seen: Glance,
}

pub(super) fn run(
    run: &Run,
    devices: [&Device; 2],
    shared: Option<u64>,
    config: &Config,
    limits: [Limits; 2],
    seed: u64,
    told: &mut dyn FnMut(u64),
) -> Result<Measured, String> {
    let mut cached = Cached::new(run, devices, shared, config, limits, seed, told);
    cached.pass_until(Instant(u64::MAX), |cached| *cached.engine.phase() != Phase::Recovering)?;
    if *cached.engine.phase() != Phase::Serving {
        return Err(format!("the engine refuses a fresh cache: {:?}", cached.engine.damage()));
    }
    for load in &run.before {
        cached.play(load, seed, config.geometry.volume_atoms)?;
        let until = cached.now + run.rest;
        cached.pass_until(until, |_| false)?;
    }
    let before = cached.restart();
    cached.play(&run.load, seed, config.geometry.volume_atoms)?;
    cached.measure.ran(cached.now, cached.front.operations());
    Ok(cached.report(&before))
}

impl<'a> Cached<'a> {
    fn new(
        run: &Run,
        devices: [&Device; 2],
        shared: Option<u64>,
        config: &Config,
        limits: [Limits; 2],
        seed: u64,
        told: &'a mut dyn FnMut(u64),
    ) -> Self {
        let (geometry, now) = (&config.geometry, Instant::ZERO);
        let (drives, [cache, origin]) = match shared {
            Some(start) => (Drives::one(devices[0].spec.build(seed), start), [0, 1].map(|_| Model::Port(Port::default()))),
            None => (Drives::Apart, devices.map(|device| device.spec.build(seed))),
        };
        let spin_down = [None, run.configuration.spin_down];
        let formatted = formatted(config);
        let blank = Contents::blank(0, geometry.volume_atoms);
        let disks = [
            Disk::new(DeviceId::Cache, geometry, formatted, limits[0], cache, Chance::new(seed, "cache")),
            Disk::new(DeviceId::Origin, geometry, blank, limits[1], origin, Chance::new(seed, "origin")),
        ];
        let watch = |(index, model): (usize, &Model)| Watch::new(&devices[index].name, model, spin_down[index], now);
        let watches = drives.models(&disks).into_iter().enumerate().map(watch).collect();
        let engine = Engine::new(config.clone(), limits);
        Cached {
            gate: Gate::new(now, engine.glance()),
            engine,
            scene: Scene { disks, drives, plug: Plug::new(run.configuration.plug, seed), replies: Vec::new() },
            watches,
            front: Front::new(told),
            flight: BTreeMap::new(),
            shadow: Shadow::default(),
            measure: Measure::new(now),
            requests: 0,
            now,
            events: Vec::new(),
            ended: Vec::new(),
        }
    }

    /// What was until now is not measured.
    fn restart(&mut self) -> Snapshot {
        let snapshot = self.engine.inspect(self.now);
        for (watch, model) in self.watches.iter_mut().zip(self.scene.drives.models(&self.scene.disks)) {
            watch.restart(model, self.now);
        }
        self.measure = Measure::new(self.now);
        self.gate = Gate::new(self.now, self.engine.glance());
        snapshot
    }

    /// A whole load, to its last answer.
    fn play(&mut self, load: &Load, seed: u64, volume_atoms: u64) -> Result<(), String> {
        self.front.start(load, seed, volume_atoms, self.now);
        self.pass_until(Instant(u64::MAX), |cached| cached.flight.is_empty() && cached.front.is_done())
    }

    /// Lets things happen until `until`, or until `enough`.
    fn pass_until(&mut self, until: Instant, enough: impl Fn(&Self) -> bool) -> Result<(), String> {
        let mut stillness = Stillness::default();
        loop {
            self.turn()?;
            if enough(self) {
                return Ok(());
            }
            stillness.check(self.now)?;
            let next = self.next_time();
            if next.is_none() && until == Instant(u64::MAX) {
                return Err(format!("nothing happens any more, and {} requests wait", self.flight.len() + self.front.waiting.len()));
            }
            let when = next.unwrap_or(until).min(until).max(self.now);
            self.advance(when);
            if when >= until {
                return self.turn();
            }
        }
    }

    fn next_time(&mut self) -> Option<Instant> {
        let Scene { disks: [cache, origin], drives, plug, .. } = &self.scene;
        let due = [self.front.next_time(), self.engine.deadline(), cache.next(), origin.next(), drives.next(), plug.next()];
        due.into_iter().chain(self.watches.iter().map(Watch::next)).flatten().min()
    }

    /// Time passes until `when`; what the devices end then will be told to the engine.
    fn advance(&mut self, when: Instant) {
        self.gate.look(self.engine.glance(), self.now);
        self.now = when;
        while let Some(op) = self.scene.plug.release(when) {
            self.scene.begin(when, op);
        }
        let Scene { disks, drives, .. } = &mut self.scene;
        drives.advance(when, disks, &mut self.ended);
        self.events.extend(self.ended.drain(..).map(|ended| match ended {
            Ended::Done(done) => Event::Completed(done),
            Ended::Late(op) => Event::Late(op),
        }));
    }

    /// The engine hears what has happened and what is asked, and says what it wants.
    fn turn(&mut self) -> Result<(), String> {
        self.front.arrive(self.now);
        self.admit();
        turn(&mut self.engine, &mut self.scene, self.now, &mut self.events);
        for reply in std::mem::take(&mut self.scene.replies) {
            self.answer(reply)?;
        }
        let Scene { disks, drives, .. } = &mut self.scene;
        for (watch, model) in self.watches.iter_mut().zip(drives.models_mut(disks)) {
            watch.look(model, self.now);
        }
        Ok(())
    }

    /// Requests that wait arrive, as many as the engine has room for.
    fn admit(&mut self) {
        let mut room = self.engine.room();
        while let Some(access) = self.front.admit(&mut room) {
            self.requests += 1;
            let id = RequestId(self.requests);
            let command = match access.ask {
                Ask::Read => {
                    self.shadow.read(id.0, access.span);
                    Command::Read
                }
                Ask::Write => Command::Write { data: self.shadow.write(id.0, access.span), fua: false },
                Ask::Flush => Command::Flush,
            };
            self.events.push(Event::Arrived(Request { id, span: access.span, command }));
            self.flight.insert(id, access);
        }
    }

    fn answer(&mut self, reply: Reply<Stamps>) -> Result<(), String> {
        let access = self.flight.remove(&reply.id).ok_or("an answer to nobody")?;
        let outcome = reply.result.map_err(|error| format!("{:?} of {:?} fails: {error:?}", access.ask, access.span))?;
        match (access.ask, outcome) {
            (Ask::Read, Outcome::Data(parts)) => self.shadow.check(reply.id.0, parts.iter().flat_map(Stamps::stamps))?,
            (Ask::Write, Outcome::Done) => self.shadow.written(reply.id.0),
            (Ask::Flush, Outcome::Done) => {}
            (ask, outcome) => return Err(format!("{ask:?} is answered with {outcome:?}")),
        }
        self.measure.answered(self.now, access.due, access.ask, access.span.bytes());
        self.front.answered(self.now, &access);
        Ok(())
    }

    fn report(mut self, before: &Snapshot) -> Measured {
        let end = self.measure.ended;
        let after = self.engine.inspect(end);
        self.gate.finish(end);
        let gate = GateReport {
            sets: after.sets,
            states: self.gate.states,
            sets_over_time: self.gate.sets,
            starts: self.gate.starts,
            hit_blocks: after.counters.hit_blocks - before.counters.hit_blocks,
            miss_blocks: after.counters.miss_blocks - before.counters.miss_blocks,
        };
        let models = self.scene.drives.models(&self.scene.disks);
        let devices = self.watches.into_iter().zip(models).map(|(watch, model)| watch.report(model, end)).collect();
        Measured { measure: self.measure, devices, gate: Some(gate), writes: None }
    }
}

impl Gate {
    fn new(now: Instant, seen: Glance) -> Self {
        Gate { states: Buckets::new(now), sets: Buckets::new(now), starts: Buckets::new(now), looked: now, seen }
    }

    /// What has changed is noted when it does.
    fn look(&mut self, seen: Glance, now: Instant) {
        if seen != self.seen {
            self.finish(now);
            self.starts.add_news(now, &mut self.seen.starts, seen.starts);
            self.seen = seen;
        }
    }

    /// What was seen last held until now.
    fn finish(&mut self, now: Instant) {
        self.states.add_span(self.looked, now, gate_column(self.seen.gate));
        self.sets.add_gauge(self.looked, now, 0, u64::from(self.seen.free_sets));
        self.sets.add_gauge(self.looked, now, 1, u64::from(self.seen.dirty_sets));
        self.looked = now;
    }
}

/// A cache as `tidegate create` leaves it.
fn formatted(config: &Config) -> Contents {
    let geometry = &config.geometry;
    let mut contents = Contents::blank(geometry.data_start(), geometry.cache_atoms());
    for step in create_steps(&Superblock::new(config.format, *geometry, [7; 16], config.origin)) {
        match step {
            Step::Write(_, span, bytes) => contents.write(span.start, &Stamps::from_bytes(&bytes)),
            Step::Flush => {}
        }
    }
    contents
}

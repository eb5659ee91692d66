//! An engine whose devices take no time and keep no contents: what it writes is counted, millions of requests in seconds. Time passes by a
//! fixed step from request to request.

use super::Front;
use crate::experiment::load::{Access, Ask, Load};
use crate::experiment::measure::{Measure, Measured, WriteReport};
use crate::experiment::plan::Run;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidegate_engine::block::{ATOM_BYTES, Span};
use tidegate_engine::cache::format::{Step, Superblock, create_steps};
use tidegate_engine::op::{Action, Answer, Done, Limits, Op, Zone};
use tidegate_engine::payload::{Checksum, Payload};
use tidegate_engine::probe::{Phase, Snapshot};
use tidegate_engine::request::{Command, Reply, Request, RequestId};
use tidegate_engine::time::{Duration, Instant};
use tidegate_engine::{Config, Engine, Event, World, turn};

/// Between two requests.
const STEP: Duration = Duration::from_micros(10);
/// Turns without a request or an answer: something is stuck.
const TURNS_MAX: u32 = 100_000;

/// Contents of which only the length counts, unless they are metadata.
#[derive(Clone, Debug)]
pub(super) enum Weightless {
    Nothing(u64),
    Bytes(Arc<[u8]>),
}

impl Payload for Weightless {
    fn atoms(&self) -> u64 {
        match self {
            Weightless::Nothing(atoms) => *atoms,
            Weightless::Bytes(bytes) => bytes.len() as u64 / ATOM_BYTES,
        }
    }
    fn zero(atoms: u64) -> Self {
        Weightless::Nothing(atoms)
    }
    fn slice(&self, start: u64, atoms: u64) -> Self {
        match self {
            Weightless::Nothing(_) => Weightless::Nothing(atoms),
            Weightless::Bytes(bytes) => {
                Weightless::Bytes(bytes[(start * ATOM_BYTES) as usize..((start + atoms) * ATOM_BYTES) as usize].into())
            }
        }
    }
    fn concat(parts: &[Self]) -> Self {
        match parts {
            [one] => one.clone(),
            parts => Weightless::Nothing(parts.iter().map(Payload::atoms).sum()),
        }
    }
    fn checksum(&self, _: Checksum) -> u32 {
        0
    }
    fn from_bytes(bytes: &[u8]) -> Self {
        Weightless::Nothing(bytes.len() as u64 / ATOM_BYTES)
    }
    fn append_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes());
    }
    fn bytes(&self) -> Cow<'_, [u8]> {
        match self {
            Weightless::Nothing(atoms) => vec![0; (atoms * ATOM_BYTES) as usize].into(),
            Weightless::Bytes(bytes) => bytes[..].into(),
        }
    }
}

/// Both devices, and the replies of a turn.
struct Scene {
    /// What a format has written.
    formatted: BTreeMap<u64, Arc<[u8]>>,
    ended: Vec<Event<Weightless>>,
    replies: Vec<Reply<Weightless>>,
}

impl World<Weightless> for Scene {
    fn start(&mut self, _now: Instant, op: Op<Weightless>) {
        let answer = match op.action {
            Action::Read(zone, span) => {
                let known = self.formatted.get(&span.start).filter(|_| zone == Zone::Superblock);
                let contents = known.map_or(Weightless::Nothing(span.atoms), |bytes| Weightless::Bytes(bytes.clone()));
                Answer::Data([contents].into())
            }
            Action::Write(..) | Action::Zero(..) | Action::Discard(..) | Action::Flush => Answer::Done,
            Action::Allocation(..) | Action::Spin(_) => unreachable!("no load asks for it"),
        };
        self.ended.push(Event::Completed(Done { id: op.id, result: Ok(answer) }));
    }

    fn reply(&mut self, _now: Instant, reply: Reply<Weightless>) {
        self.replies.push(reply);
    }

    fn fence(&mut self, _now: Instant, _at_risk: &mut dyn Iterator<Item = Span>) {
        unreachable!("no device of an experiment fails");
    }
}

struct Instantly<'a> {
    engine: Engine<Weightless>,
    scene: Scene,
    front: Front<'a>,
    flight: BTreeMap<RequestId, Access>,
    measure: Measure,
    requests: u64,
    now: Instant,
    events: Vec<Event<Weightless>>,
}

pub(super) fn run(run: &Run, config: &Config, limits: [Limits; 2], seed: u64, told: &mut dyn FnMut(u64)) -> Result<Measured, String> {
    let scene = Scene { formatted: formatted(config), ended: Vec::new(), replies: Vec::new() };
    let mut rig = Instantly {
        engine: Engine::new(config.clone(), limits),
        scene,
        front: Front::new(told),
        flight: BTreeMap::new(),
        measure: Measure::new(Instant::ZERO),
        requests: 0,
        now: Instant::ZERO,
        events: Vec::new(),
    };
    rig.settle()?;
    if *rig.engine.phase() != Phase::Serving {
        return Err(format!("the engine refuses a fresh cache: {:?}", rig.engine.damage()));
    }
    for load in &run.before {
        rig.play(load, seed, config.geometry.volume_atoms)?;
    }
    rig.measure = Measure::new(rig.now);
    let before = rig.engine.inspect(rig.now);
    rig.play(&run.load, seed, config.geometry.volume_atoms)?;
    let after = rig.engine.inspect(rig.now);
    Ok(Measured { writes: Some(report(&before, &after)), measure: rig.measure, devices: Vec::new(), gate: None })
}

/// What was written between two moments.
fn report(before: &Snapshot, after: &Snapshot) -> WriteReport {
    let atoms = |snapshot: &Snapshot| {
        let counters = &snapshot.counters;
        [counters.written_atoms, counters.cache_atoms.data(), counters.cache_atoms.metadata()]
    };
    let [client, data, metadata] = std::array::from_fn(|i| (atoms(after)[i] - atoms(before)[i]) * ATOM_BYTES);
    WriteReport { client, data, metadata }
}

impl Instantly<'_> {
    /// A whole load, to its last answer.
    fn play(&mut self, load: &Load, seed: u64, volume_atoms: u64) -> Result<(), String> {
        self.front.start(load, seed, volume_atoms, self.now);
        let mut turns = 0;
        loop {
            self.front.arrive(self.now);
            let asked = self.ask();
            self.settle()?;
            if self.flight.is_empty() && self.front.is_done() {
                return Ok(());
            }
            turns = if asked { 0 } else { turns + 1 };
            if turns > TURNS_MAX {
                return Err(format!("{TURNS_MAX} turns, and {} requests wait", self.flight.len()));
            }
            let due = self.front.next_time().unwrap_or(Instant::ZERO);
            // Nothing to ask: whatever the engine waits for happens.
            let later = if asked { None } else { self.engine.deadline() };
            self.now = (self.now + STEP).max(due).max(later.unwrap_or(Instant::ZERO));
        }
    }

    /// Requests that wait arrive, as many as the engine has room for.
    fn ask(&mut self) -> bool {
        let mut room = self.engine.room();
        let before = self.requests;
        while let Some(access) = self.front.admit(&mut room) {
            self.requests += 1;
            let id = RequestId(self.requests);
            let command = match access.ask {
                Ask::Read => Command::Read,
                Ask::Write => Command::Write { data: Weightless::Nothing(access.span.atoms), fua: false },
                Ask::Flush => Command::Flush,
            };
            self.events.push(Event::Arrived(Request { id, span: access.span, command }));
            self.flight.insert(id, access);
        }
        self.requests > before
    }

    /// Turns until nothing happens at this moment any more.
    fn settle(&mut self) -> Result<(), String> {
        for _ in 0..TURNS_MAX {
            turn(&mut self.engine, &mut self.scene, self.now, &mut self.events);
            for reply in self.scene.replies.drain(..) {
                let access = self.flight.remove(&reply.id).ok_or("an answer to nobody")?;
                reply.result.map_err(|error| format!("{:?} of {:?} fails: {error:?}", access.ask, access.span))?;
                self.measure.answered(self.now, access.due, access.ask, access.span.bytes());
                self.front.answered(self.now, &access);
            }
            self.events.append(&mut self.scene.ended);
            if self.events.is_empty() {
                return Ok(());
            }
        }
        Err(format!("{TURNS_MAX} turns at {} ns, and nothing ends", self.now.0))
    }
}

/// The superblocks as `tidegate create` leaves them; the rest is zeros.
fn formatted(config: &Config) -> BTreeMap<u64, Arc<[u8]>> {
    let steps = create_steps(&Superblock::new(config.format, config.geometry, [7; 16], config.origin));
    steps
        .into_iter()
        .filter_map(|step| match step {
            Step::Write(Zone::Superblock, span, bytes) => Some((span.start, Arc::from(bytes))),
            Step::Write(..) | Step::Flush => None,
        })
        .collect()
}

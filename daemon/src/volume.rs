//! One volume: its engine, its disks, its sockets and its one thread. Everything that happens comes out of one wait.
//!
//! ```text
//!   wait ─▶ completions, ready sockets, signals, timeout ─▶ turn(engine) ─▶ resume, send, interests ─▶ wait
//! ```
//! Recovering → Serving → (first signal) stopping: all acknowledged writes become durable → lingering: replies leave → ended.
//! A second signal ends it anywhere; what was flushed is on the SSD already.

use std::collections::VecDeque;
use std::path::PathBuf;

use serde_json::json;
use tidegate_engine::block::ATOM_BYTES;
use tidegate_engine::cache::format::Superblock;
use tidegate_engine::config::{Allocation, Fill, WhenFull};
use tidegate_engine::op::{Answer, Done, Op};
use tidegate_engine::payload::Payload;
use tidegate_engine::probe::{Phase, Snapshot};
use tidegate_engine::request::{Reply, Room};
use tidegate_engine::time::{Duration, Instant};
use tidegate_engine::{Config, Control, Engine, Event, World, turn};

use crate::back::attach::{Attached, attach};
use crate::back::confine;
use crate::back::ring::{Happening, Ring, WatchKey};
use crate::back::run::Run;
use crate::back::signals::Signals;
use crate::control::{Command, ControlPort, Verb, status_json};
use crate::front::nbd::{self, Address, Front};
use crate::port::{Interest, Port};

pub use crate::Failure;
use crate::state::{self, State as HostState};

/// What to serve and how.
#[derive(Clone, Debug)]
pub struct Options {
    pub origin: PathBuf,
    pub cache: PathBuf,
    /// Where NBD clients connect.
    pub nbd: Vec<Address>,
    /// The control socket.
    pub control: PathBuf,
    /// What the host knows of the cache ([`state`](crate::state)).
    pub state: PathBuf,
    /// Another cache than last time is taken, and what only that one held is lost.
    pub accept_loss: bool,
    /// Sockets handed over by a service manager; if there are any, they stand in for `nbd`.
    pub handed_over: u32,
    /// One client on standard input; the volume stops when it has gone.
    pub stdio: bool,
    /// What TCP clients must use.
    pub tls: Option<nbd::Certificates>,
    /// The export's name; clients that name none get it too.
    pub name: String,
    /// Text for people.
    pub description: String,
    /// Clients may not change anything. What is dirty goes home all the same.
    pub read_only: bool,
    /// Privileges and system calls that a daemon does not need are given up ([`confine`](crate::back::confine)).
    pub confined: bool,
    pub knobs: Knobs,
}

/// The engine's settings; what is left out keeps its default ([`Config::new`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Knobs {
    /// Per cent of the sets.
    pub free_floor: Option<u32>,
    /// Per cent of the sets.
    pub reserve: Option<u32>,
    /// Per cent of the sets.
    pub dirty_high: Option<u32>,
    pub wait: Option<Duration>,
    pub max_dirty_age: Option<Duration>,
    pub destage_depth: Option<usize>,
    /// Bytes between two flushes of the origin.
    pub destage_batch: Option<u64>,
    /// Bytes.
    pub window: Option<u64>,
    pub flush_age: Option<Duration>,
    pub fill: Option<bool>,
    pub allocation: Option<Allocation>,
    pub when_full: Option<WhenFull>,
    pub requests: Option<usize>,
    /// Bytes.
    pub bytes: Option<u64>,
    pub fence_samples: Option<u32>,
}

impl Knobs {
    /// The configuration of a volume whose cache has this superblock.
    pub fn config(&self, superblock: &Superblock) -> Config {
        let default = Config::new(superblock.geometry, superblock.format);
        let sets = u64::from(superblock.geometry.sets);
        let share = |per_cent: Option<u32>, least: u64, default: u32| {
            per_cent.map_or(default, |per_cent| (sets * u64::from(per_cent.min(100)) / 100).max(least).min(sets) as u32)
        };
        Config {
            origin: superblock.origin,
            free_floor: share(self.free_floor, 3, default.free_floor),
            reserve: share(self.reserve, 2, default.reserve),
            dirty_high: share(self.dirty_high, 1, default.dirty_high),
            wait: self.wait.unwrap_or(default.wait),
            max_dirty_age: self.max_dirty_age.unwrap_or(default.max_dirty_age),
            destage_depth: self.destage_depth.unwrap_or(default.destage_depth),
            destage_atoms: self.destage_batch.map_or(default.destage_atoms, |bytes| bytes / ATOM_BYTES),
            window_bytes: self.window.unwrap_or(default.window_bytes),
            flush_age: self.flush_age.unwrap_or(default.flush_age),
            fill: self.fill.map_or(default.fill, |keep| if keep { Fill::Behind } else { Fill::Off }),
            allocation: self.allocation.unwrap_or(default.allocation),
            when_full: self.when_full.unwrap_or(default.when_full),
            requests_max: self.requests.unwrap_or(default.requests_max),
            bytes_max: self.bytes.unwrap_or(default.bytes_max),
            fence_samples: self.fence_samples.unwrap_or(default.fence_samples),
            ..default
        }
    }
}

/// The volume serves: what the operator is told.
#[derive(Clone, Debug)]
pub struct Ready {
    /// What NBD clients take to connect, one for each address.
    pub uris: Vec<String>,
    pub bytes: u64,
    /// Worth knowing, one line each.
    pub notes: Vec<String>,
    /// After recovery: its counters tell what was found.
    pub snapshot: Snapshot,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// After one signal: every acknowledged write is durable.
    Stopped,
    /// After a second signal (its number): only what was flushed is.
    Interrupted(i32),
}

impl Ended {
    /// Exit code: 0, or 128 and the signal, as shells count.
    pub fn code(self) -> u8 {
        match self {
            Ended::Stopped => 0,
            Ended::Interrupted(signal) => 128 + signal as u8,
        }
    }
}

/// Atoms read from the disks that one turn looks at. To verify 1 MiB takes about 0.1 ms: disks that answer many large reads at once
/// would otherwise keep the first reply from leaving, and themselves without work, until the last one is verified.
const TURN_ATOMS: u64 = (1 << 20) / ATOM_BYTES;

/// Clients get so long to take the last replies.
const LINGER: Duration = Duration::from_secs(1);

const FRONT: u32 = 0;
const CONTROL: u32 = 1;
const SIGNALS: u32 = 2;

/// Serves a volume on this thread until a signal stops it. Call it before any other thread is started: they inherit the signal mask.
///
/// # Errors
/// One line for the operator and the exit code. Nothing was written to what is not a cache of ours.
pub fn serve(options: &Options, on_ready: impl FnOnce(&Ready) -> Result<(), Failure>) -> Result<Ended, Failure> {
    if options.confined {
        confine::give_up_privileges()
            .map_err(|error| Failure::new(Failure::SYSTEM, format!("privileges cannot be given up: {error}; see --unconfined")))?;
    }
    let signals = Signals::take().map_err(|error| Failure::new(Failure::SYSTEM, format!("signals cannot be received: {error}")))?;
    let Attached { cache, origin, superblock, mut notes } = attach(&options.cache, &options.origin)?;
    notes.extend(state::compare(&options.state, &superblock, options.accept_loss)?);
    let ring = Ring::new(cache, origin)?;
    let bytes = superblock.geometry.volume_atoms * ATOM_BYTES;
    let block_bytes = superblock.geometry.block_atoms * ATOM_BYTES as u32;
    let mut front = nbd::Options::new(bytes, block_bytes);
    front.addresses.clone_from(&options.nbd);
    front.handed_over = options.handed_over;
    front.stdio = options.stdio;
    front.tls.clone_from(&options.tls);
    front.export.name.clone_from(&options.name);
    front.export.description.clone_from(&options.description);
    front.export.read_only = options.read_only;
    let socket = |message| Failure::new(Failure::NOT_CREATED, message);
    let front = Front::new(front).map_err(socket)?;
    let control = ControlPort::bind(&options.control).map_err(socket)?;
    if options.confined {
        confine::give_up_system_calls()
            .map_err(|error| Failure::new(Failure::SYSTEM, format!("system calls cannot be given up: {error}; see --unconfined")))?;
    }
    let engine = Engine::new(options.knobs.config(&superblock), ring.limits());
    let volume = Volume {
        engine,
        world: Back { ring, front },
        control,
        signals,
        clock: Clock::start(),
        state: State::Starting,
        one_client: options.stdio,
        name: options.name.clone(),
        landed: VecDeque::new(),
        cache: options.cache.display().to_string(),
        host: Host { path: options.state.clone(), superblock },
        events: Vec::new(),
        happenings: Vec::new(),
        interests: Vec::new(),
    };
    volume.run(|volume, now| {
        let snapshot = volume.engine.inspect(now);
        on_ready(&Ready { uris: volume.world.front.uris(), bytes, notes, snapshot })
    })
}

/// Nanoseconds since the volume was started.
struct Clock {
    start: std::time::Instant,
}

impl Clock {
    fn start() -> Clock {
        Clock { start: std::time::Instant::now() }
    }

    fn now(&self) -> Instant {
        Instant(self.start.elapsed().as_nanos() as u64)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Starting,
    Serving,
    /// The engine was told to stop.
    Stopping,
    /// Everything is durable; replies leave until then.
    Lingering(Instant),
}

/// What the engine acts on.
struct Back {
    ring: Ring,
    front: Front,
}

impl World<Run> for Back {
    fn start(&mut self, now: Instant, op: Op<Run>) {
        self.ring.start(now, op);
    }

    fn reply(&mut self, _now: Instant, reply: Reply<Run>) {
        self.front.reply(reply);
    }
}

/// Where the host keeps what it knows of which cache.
struct Host {
    path: PathBuf,
    superblock: Superblock,
}

struct Volume {
    engine: Engine<Run>,
    world: Back,
    control: ControlPort,
    signals: Signals,
    clock: Clock,
    state: State,
    /// It ends with its only client.
    one_client: bool,
    /// As commands name it.
    name: String,
    /// Operations that have ended and that the engine has not heard of yet, in their order.
    landed: VecDeque<Done<Run>>,
    /// The cache's path, for messages.
    cache: String,
    host: Host,
    /// Kept from turn to turn for their memory only.
    events: Vec<Event<Run>>,
    happenings: Vec<Happening>,
    interests: Vec<Interest>,
}

impl Volume {
    fn run(mut self, on_ready: impl FnOnce(&mut Volume, Instant) -> Result<(), Failure>) -> Result<Ended, Failure> {
        let mut on_ready = Some(on_ready);
        self.world.ring.watch(WatchKey { port: SIGNALS, token: 0 }, self.signals.fd(), true, false);
        loop {
            let now = self.clock.now();
            self.obey(now);
            turn(&mut self.engine, &mut self.world, now, &mut self.events);
            match self.engine.phase() {
                Phase::Recovering => {}
                Phase::Serving => {
                    if self.state == State::Starting
                        && let Some(on_ready) = on_ready.take()
                    {
                        self.tell_host(now, false)?;
                        self.state = State::Serving;
                        on_ready(&mut self, now)?;
                    }
                    if self.one_client && self.state == State::Serving && self.world.front.connections() == 0 {
                        self.stop();
                    }
                }
                Phase::Refused => return Err(self.refused()),
                Phase::Stopped => {
                    if self.has_ended(now) {
                        // It is stopped in order, whether that can be written down or not.
                        let _ = self.tell_host(now, true);
                        return Ok(Ended::Stopped);
                    }
                }
            }
            let mut room = self.engine.room();
            self.world.front.resume(&mut room, &mut self.events);
            self.speak();
            self.sleep(now)?;
            if let Some(signal) = self.dispatch(&mut room) {
                return Ok(Ended::Interrupted(signal));
            }
        }
    }

    /// Does what was asked on the control socket.
    fn obey(&mut self, now: Instant) {
        for (asker, Command { verb, volume }) in self.control.commands() {
            if volume.is_some_and(|volume| volume != self.name) {
                self.control.answer(asker, &json!({ "error": "there is no volume of this name" }));
                continue;
            }
            match verb {
                Verb::Status => {}
                Verb::Drain => self.engine.handle(now, Event::Control(Control::Drain)),
                Verb::CancelDrain => self.engine.handle(now, Event::Control(Control::CancelDrain)),
            }
            self.control.answer(asker, &status_json(&self.engine.inspect(now)));
        }
    }

    /// Writes down which start of which cache this is, before anything is answered; and what is dirty, when it has stopped.
    fn tell_host(&self, now: Instant, has_stopped: bool) -> Result<(), Failure> {
        let snapshot = self.engine.inspect(now);
        let dirty = has_stopped.then_some(snapshot.dirty_slots + snapshot.zero_ranges);
        HostState::of(&self.host.superblock, snapshot.epoch, dirty).write(&self.host.path)
    }

    /// Recovery found what must not be repaired: one line.
    fn refused(&self) -> Failure {
        let fatal: Vec<&str> = self.engine.damage().iter().filter(|damage| damage.fatal).map(|damage| damage.what.as_str()).collect();
        let first = fatal.first().copied().unwrap_or("its metadata does not add up");
        let more = if fatal.len() > 1 { format!(" (and {} more)", fatal.len() - 1) } else { String::new() };
        let message = format!("cache {}: {first}{more}; nothing was changed; see `tidegate check --cache {}`", self.cache, self.cache);
        Failure::new(Failure::DAMAGED, message)
    }

    /// Everything is durable. Have the last replies left, or their time?
    fn has_ended(&mut self, now: Instant) -> bool {
        match self.state {
            State::Lingering(until) => (self.world.front.connections() == 0 && self.world.ring.in_flight() == 0) || now >= until,
            State::Starting | State::Serving | State::Stopping => {
                self.world.front.shutdown();
                self.state = State::Lingering(now + LINGER);
                false
            }
        }
    }

    /// Sends what is queued and learns which descriptors to watch.
    fn speak(&mut self) {
        self.world.front.send();
        self.world.front.interests(&mut self.interests);
        self.watch(FRONT);
        self.control.send();
        self.control.interests(&mut self.interests);
        self.watch(CONTROL);
    }

    fn watch(&mut self, port: u32) {
        for Interest { token, fd, readable, writable } in self.interests.drain(..) {
            self.world.ring.watch(WatchKey { port, token }, fd, readable, writable);
        }
    }

    fn sleep(&mut self, now: Instant) -> Result<(), Failure> {
        let lingering = match self.state {
            State::Lingering(until) => Some(until),
            State::Starting | State::Serving | State::Stopping => None,
        };
        let busy = (!self.events.is_empty() || !self.landed.is_empty()).then_some(now);
        let deadlines = [busy, lingering, self.engine.deadline(), self.world.front.deadline(), self.control.deadline()];
        let deadline = deadlines.into_iter().flatten().min();
        self.world
            .ring
            .wait(now, deadline, &mut self.happenings)
            .map_err(|error| Failure::new(Failure::SYSTEM, format!("io_uring failed: {error}; what was flushed is safe, start again")))
    }

    /// Turns what happened into events. `room` is what the engine still takes. A signal that ends everything is returned.
    fn dispatch(&mut self, room: &mut Room) -> Option<i32> {
        let now = self.clock.now();
        self.world.ring.look_for_late(now, &mut self.happenings);
        let mut signalled = false;
        for happening in self.happenings.drain(..) {
            match happening {
                Happening::Done(done) => self.landed.push_back(done),
                Happening::Late(id) => self.events.push(Event::Late(id)),
                Happening::Ready { key: WatchKey { port: FRONT, token }, readable, writable } => {
                    self.world.front.ready(token, readable, writable, room, &mut self.events);
                }
                Happening::Ready { key: WatchKey { port: CONTROL, token }, readable, writable } => {
                    self.control.ready(token, readable, writable, room, &mut self.events);
                }
                Happening::Ready { .. } => signalled = true,
            }
        }
        self.land();
        for port in [&mut self.world.front as &mut dyn Port, &mut self.control] {
            if port.deadline().is_some_and(|deadline| deadline <= now) {
                port.tick(now);
            }
        }
        if signalled { self.signal() } else { None }
    }

    /// Tells the engine of what has landed, as much as is good for one turn.
    fn land(&mut self) {
        let mut atoms = 0;
        while atoms < TURN_ATOMS
            && let Some(done) = self.landed.pop_front()
        {
            if let Ok(Answer::Data(parts)) = &done.result {
                atoms += parts.iter().map(Payload::atoms).sum::<u64>();
            }
            self.events.push(Event::Completed(done));
        }
    }

    fn stop(&mut self) {
        self.state = State::Stopping;
        self.world.front.stop_listening();
        self.events.push(Event::Control(Control::Stop));
    }

    /// The first signal stops in order; of a second one, its number.
    fn signal(&mut self) -> Option<i32> {
        while let Some(signal) = self.signals.next() {
            match self.state {
                State::Starting | State::Serving => self.stop(),
                State::Stopping | State::Lingering(_) => return Some(signal),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_engine::block::BLOCK_ATOMS_MAX;
    use tidegate_engine::cache::format::{FormatId, Geometry};

    fn superblock() -> Superblock {
        let geometry = Geometry::for_cache(1 << 21, 1 << 24, 8, 256).expect("a cache of 1 GiB");
        assert!(geometry.block_atoms <= BLOCK_ATOMS_MAX);
        Superblock::new(FormatId([3; 16]), geometry, [1; 16], [2; 16])
    }

    #[test]
    fn knobs_left_out_keep_the_defaults_and_shares_are_of_the_sets() {
        let superblock = superblock();
        let sets = superblock.geometry.sets;
        let default = Knobs::default().config(&superblock);
        assert_eq!((default.free_floor, default.origin), (Config::new(superblock.geometry, superblock.format).free_floor, [2; 16]));
        let knobs = Knobs { free_floor: Some(50), dirty_high: Some(100), reserve: Some(0), window: Some(8 << 20), ..Knobs::default() };
        let config = knobs.config(&superblock);
        assert_eq!((config.free_floor, config.dirty_high, config.reserve), (sets / 2, sets, 2));
        assert_eq!((config.window_bytes, config.wait), (8 << 20, default.wait));
    }

    #[test]
    fn exit_codes_are_those_that_shells_expect() {
        assert_eq!((Ended::Stopped.code(), Ended::Interrupted(libc::SIGINT).code()), (0, 130));
    }
}

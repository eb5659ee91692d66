//! One volume: its engine, its disks, its clients and its one thread. Everything that happens comes out of one wait.
//!
//! ```text
//!   wait ─▶ completions, ready sockets, messages, timeout ─▶ turn(engine) ─▶ resume, send, interests ─▶ wait
//! ```
//! Recovering → found sound: nothing is written before the lobby says so → Serving → (told to stop) stopping: all acknowledged writes
//! become durable → lingering: replies leave → ended. Clients, commands and words come from the lobby, through the desk.

use std::collections::VecDeque;
use std::path::PathBuf;

use tidegate_engine::block::{ATOM_BYTES, Span};
use tidegate_engine::cache::format::Superblock;
use tidegate_engine::config::{Allocation, CommitHome, Convert, Fill, ReadAround, WhenFull};
use tidegate_engine::op::{Action, Answer, DeviceId, Done, Op};
use tidegate_engine::payload::Payload;
use tidegate_engine::policy;
use tidegate_engine::probe::{Health, ModeView, Phase};
use tidegate_engine::queue::QueueKind;
use tidegate_engine::request::{Reply, Room};
use tidegate_engine::spin::quiet::OfDay;
use tidegate_engine::time::{Duration, Instant};
use tidegate_engine::{Config, Control, Engine, Event, Mode, World, turn};

use crate::advice::Reach;
use crate::alarm::{alarm, removed};
use crate::back::attach::{Attached, attach, await_release};
use crate::back::dock::{Happening, WatchKey};
use crate::back::io::{Carrier, Io};
use crate::back::of_day::second_of_day;
use crate::back::run::Run;
use crate::back::spin::{Motor, Taken};
use crate::back::vigil;
use crate::control::{Verb, curve_json, status_json};
use crate::desk::{Desk, Rest, Tell};
use crate::dirty::{self, Dirty};
use crate::front::nbd::{Allowed, Export, Front};
use crate::front::{Clients, Crew, Tally};
use crate::port::Interest;
use crate::recorder::Recorder;
use crate::sleeper::{self, Sleeper};

pub use crate::Failure;
use crate::state::{self, State as HostState};
use crate::wear::{Rating, wear_json};

/// What to serve and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// As clients and commands name it; compared as bytes, never a path.
    pub name: String,
    /// Text for people.
    pub description: String,
    /// Clients may not change anything. What is dirty goes home all the same.
    pub read_only: bool,
    /// Who may use it over TLS; empty: whoever may connect.
    pub clients: Vec<Allowed>,
    /// How commands that messages advise reach it.
    pub reach: Reach,
    pub said: Said,
    pub origin: PathBuf,
    pub cache: PathBuf,
    /// What the host knows of the cache ([`state`]).
    pub state: PathBuf,
    /// Another cache than last time is taken, and what only that one held is lost.
    pub accept_loss: bool,
    pub knobs: Knobs,
    /// The origin's disk is told to stand still while nobody needs it.
    pub spin: Option<sleeper::Options>,
    /// A new file that gets what clients ask.
    pub record: Option<PathBuf>,
}

/// Where the configuration says what only a start finds wrong: `path:line:column: `, or nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said {
    pub ram: String,
    pub motor: String,
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
    /// Bytes of memory for pages.
    pub ram: Option<u64>,
    pub memory_policy: Option<policy::Kind>,
    /// Bytes.
    pub window: Option<u64>,
    pub dirty_ram: Option<u64>,
    pub dirty_ram_least: Option<u64>,
    pub flush_age: Option<Duration>,
    pub fill: Option<bool>,
    pub allocation: Option<Allocation>,
    pub convert: Option<Convert>,
    /// Sectors.
    pub convert_max: Option<u64>,
    pub when_full: Option<WhenFull>,
    pub split: Option<bool>,
    pub commit_home: Option<bool>,
    pub read_around: Option<bool>,
    /// Bytes.
    pub read_ahead: Option<u64>,
    pub requests: Option<usize>,
    /// Bytes.
    pub bytes: Option<u64>,
    pub fence_samples: Option<u32>,
    pub mode: Option<Mode>,
    pub stall_timeout: Option<Duration>,
    /// How long to look before sleeping.
    pub poll: Option<Duration>,
    /// Threads for clients, at most [`crate::front::HANDS_MAX`]; 0: the volume's own serves them.
    pub front_threads: Option<usize>,
    /// Bytes per second; 0: not at all.
    pub scrub_rate: Option<u64>,
    /// Bytes that the maker of the SSD lets it be written in its life.
    pub rated_tbw: Option<u64>,
    /// Bytes a day; 0: no limit.
    pub daily_write_budget: Option<u64>,
    pub discard: Option<bool>,
    /// Of the cache and of the origin.
    pub queues: [Option<QueueKind>; 2],
    /// Of the cache's SSD.
    pub lanes: Option<u32>,
}

/// Everything on the SSD is verified within six hours of rest, and, at a quarter of that rate, within a day of work.
fn scrub_rate(cache_bytes: u64) -> u64 {
    const PASS_SECONDS: u64 = 6 * 3600;
    (cache_bytes / PASS_SECONDS).max(256 << 10)
}

impl Knobs {
    /// The configuration of a volume whose cache has this superblock.
    pub fn config(&self, superblock: &Superblock) -> Config {
        let default = Config::new(superblock.geometry, superblock.format);
        let sets = u64::from(superblock.geometry.sets);
        let share = |per_cent: Option<u32>, least: u64, default: u32| {
            per_cent.map_or(default, |per_cent| (sets * u64::from(per_cent.min(100)) / 100).max(least).min(sets) as u32)
        };
        let window_bytes = self.window.unwrap_or(default.window_bytes);
        Config {
            origin: superblock.origin,
            free_floor: share(self.free_floor, 3, default.free_floor),
            reserve: share(self.reserve, 2, default.reserve),
            dirty_high: share(self.dirty_high, 1, default.dirty_high),
            wait: self.wait.unwrap_or(default.wait),
            max_dirty_age: self.max_dirty_age.unwrap_or(self.allocation.unwrap_or(default.allocation).usual_dirty_age()),
            destage_depth: self.destage_depth.unwrap_or(default.destage_depth),
            destage_atoms: self.destage_batch.map_or(default.destage_atoms, |bytes| bytes / ATOM_BYTES),
            ram: self.ram.unwrap_or_else(crate::ram::default),
            memory_policy: self.memory_policy.unwrap_or(default.memory_policy),
            fronts: self.front_threads.unwrap_or_default(),
            window_bytes,
            through_bytes: self.window.unwrap_or(default.through_bytes),
            dirty_ram: self.dirty_ram.unwrap_or(window_bytes / 4),
            dirty_ram_least: self.dirty_ram_least,
            flush_age: self.flush_age.unwrap_or(default.flush_age),
            fill: self.fill.map_or(default.fill, |keep| if keep { Fill::Behind } else { Fill::Off }),
            allocation: self.allocation.unwrap_or(default.allocation),
            convert: self.convert.unwrap_or(default.convert),
            convert_max: self.convert_max,
            when_full: self.when_full.unwrap_or(default.when_full),
            split: default.split.filter(|_| self.split != Some(false)),
            commit_home: if self.commit_home == Some(false) { CommitHome::Never } else { default.commit_home },
            read_around: if self.read_around == Some(false) { ReadAround::Never } else { default.read_around },
            read_ahead: self.read_ahead.unwrap_or(default.read_ahead),
            requests_max: self.requests.unwrap_or(default.requests_max),
            bytes_max: self.bytes.unwrap_or(default.bytes_max),
            fence_samples: self.fence_samples.unwrap_or(default.fence_samples),
            mode: self.mode,
            stall_timeout: self.stall_timeout.unwrap_or(default.stall_timeout),
            scrub_rate: self.scrub_rate.unwrap_or(scrub_rate(superblock.geometry.cache_atoms() * ATOM_BYTES)),
            discard: self.discard.unwrap_or(default.discard),
            queues: [0, 1].map(|device| self.queues[device].unwrap_or(default.queues[device])),
            lanes: self.lanes.unwrap_or(default.lanes),
            daily_write_bytes: self.daily_write_budget.unwrap_or(default.daily_write_bytes),
            ..default
        }
    }

    fn rating(&self) -> Rating {
        Rating { life: self.rated_tbw, daily: self.daily_write_budget }
    }
}

/// Atoms read from the disks that one turn looks at. To verify 1 MiB takes about 0.1 ms: disks that answer many large reads at once
/// would otherwise keep the first reply from leaving, and themselves without work, until the last one is verified.
pub const TURN_ATOMS: u64 = (1 << 20) / ATOM_BYTES;

/// How often what is dirty is noted for the case that the cache is lost.
const NOTE_EVERY: Duration = Duration::from_secs(60);
/// What could not be written down is tried again after so long.
const TELL_AGAIN: Duration = Duration::from_secs(5);

/// Clients get so long to take the last replies.
const LINGER: Duration = Duration::from_secs(1);

const FRONT: u32 = 0;
const DESK: u32 = 1;
const MOTOR: u32 = 2;

/// A volume whose cache and origin are there, ours, fit for each other, and locked. Nothing was written yet.
pub struct Opened {
    options: Options,
    attached: Attached,
    sleeper: Option<Sleeper>,
}

impl Opened {
    /// # Errors
    /// One line for the operator and the exit code.
    pub(crate) fn new(options: &Options, motors: &mut Taken) -> Result<Opened, Failure> {
        let mut attached = attach(&options.cache, &options.origin)?;
        if options.knobs.discard == Some(true) && !attached.cache.limits().discards {
            attached.notes.push(format!("cache {}: the device takes no discards; `discard` does nothing", options.cache.display()));
        }
        let at = |place: &str, failure: Failure| Failure { message: format!("{place}{failure}"), ..failure };
        crate::ram::check(options.knobs.ram).map_err(|failure| at(&options.said.ram, failure))?;
        attached.notes.extend(state::compare(&options.state, &attached.superblock, options.accept_loss)?);
        let sleeper = match &options.spin {
            None => None,
            Some(spin) => match Motor::find(&spin.which, &options.origin).map_err(|failure| at(&options.said.motor, failure))? {
                Ok(motor) => match motors.take(&motor, &options.name) {
                    Ok(()) => Some(Sleeper::new(motor, spin)),
                    Err(why) => {
                        attached.notes.push(format!("{why}: this volume tells it nothing"));
                        None
                    }
                },
                Err(why) => {
                    attached.notes.push(format!("{why}: nothing is told to stand still"));
                    None
                }
            },
        };
        Ok(Opened { options: options.clone(), attached, sleeper })
    }

    /// Worth knowing, one line each.
    pub fn notes(&self) -> &[String] {
        &self.attached.notes
    }

    /// As clients will see it.
    pub fn export(&self) -> Export {
        let geometry = &self.attached.superblock.geometry;
        let Options { name, description, read_only, clients, .. } = self.options.clone();
        let bytes = geometry.volume_atoms * ATOM_BYTES;
        Export { name, description, bytes, read_only, clients, block_bytes: geometry.block_atoms * ATOM_BYTES as u32 }
    }

    /// Serves it on this thread until it is told to stop.
    ///
    /// # Errors
    /// One line for the operator and the exit code.
    pub(crate) fn serve(self, carrier: Carrier, mut desk: Desk) -> Result<Rest, Failure> {
        let export = self.export();
        let Opened { options, attached: Attached { cache, origin, superblock, .. }, sleeper } = self;
        let mut io = Io::new(cache, origin, carrier)?;
        let poll = options.knobs.poll.unwrap_or_else(vigil::default);
        io.poll(poll);
        let clock = Clock::start();
        let mut crew = match options.knobs.front_threads.unwrap_or_default() {
            // What fronts answer themselves nobody else sees.
            _ if options.record.is_some() => None,
            0 => None,
            threads => Some(Crew::new(threads, &export, poll, clock).map_err(no_threads)?),
        };
        let volume_atoms = superblock.geometry.volume_atoms;
        let recorder = options.record.as_ref().map(|path| Recorder::start(path, volume_atoms, clock.now())).transpose()?;
        desk.tell(Tell::Opened);
        if !desk.is_started() {
            return Ok(Rest::default());
        }
        let config = options.knobs.config(&superblock);
        let fronts = if crew.is_some() { config.fronts } else { 0 };
        let engine = Engine::new(Config { fronts, spin: sleeper.as_ref().map(Sleeper::config), ..config }, io.limits());
        if let (Some(crew), Some(pages)) = (&mut crew, engine.pages()) {
            crew.remember(pages);
        }
        let front: Box<dyn Clients> = match crew {
            Some(crew) => Box::new(crew),
            None => Box::new(Front::volume(export)),
        };
        let volume = Volume {
            engine,
            world: Back { io, front, sleeper, held: Some(Vec::new()), wants_fence: false },
            desk,
            clock,
            recorder,
            state: State::Starting,
            is_front_resting: false,
            landed: VecDeque::new(),
            cache: options.cache.display().to_string(),
            rating: options.knobs.rating(),
            host: Host { path: options.state, superblock, told: None, again: Instant::ZERO, noted: Instant::ZERO, has_served: false },
            events: Vec::new(),
            happenings: Vec::new(),
            interests: Vec::new(),
        };
        volume.run()
    }
}

fn no_threads(error: std::io::Error) -> Failure {
    Failure::new(Failure::SYSTEM, format!("`front_threads`: no thread for clients: {error}"))
}

/// Nanoseconds since the start.
#[derive(Clone, Copy)]
pub struct Clock {
    start: std::time::Instant,
}

impl Clock {
    pub fn start() -> Clock {
        Clock { start: std::time::Instant::now() }
    }

    pub fn now(&self) -> Instant {
        Instant(self.start.elapsed().as_nanos() as u64)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Starting,
    /// Recovery has found nothing against serving, and waits before its first write.
    Sound,
    Serving,
    /// The engine was told to stop.
    Stopping,
    /// Everything is durable; replies leave until then.
    Lingering(Instant),
}

impl Options {
    /// Nobody serves it any more: waits a moment until its disks can be had by others.
    pub fn await_release(&self) {
        await_release(&[(&self.cache, DeviceId::Cache), (&self.origin, DeviceId::Origin)]);
    }
}

/// What the engine acts on.
struct Back {
    io: Io,
    front: Box<dyn Clients>,
    /// The origin's motor, if it is told anything.
    sleeper: Option<Sleeper>,
    /// What recovery wants to write, until that is allowed.
    held: Option<Vec<Op<Run>>>,
    /// The SSD has failed: the host is to know, before the engine's next turn.
    wants_fence: bool,
}

impl Back {
    /// From now on the disks are written.
    fn release(&mut self, now: Instant) {
        for op in self.held.take().unwrap_or_default() {
            self.start(now, op);
        }
    }
}

impl World<Run> for Back {
    fn start(&mut self, now: Instant, op: Op<Run>) {
        match (&mut self.held, &op.action) {
            (None, Action::Spin(word)) => self.sleeper.as_ref().expect("the engine was told of a motor").motor().tell(op.id, *word),
            (None, _) | (Some(_), Action::Read(..) | Action::Allocation(..)) => self.io.start(now, op),
            (Some(held), _) => held.push(op),
        }
    }

    fn reply(&mut self, _now: Instant, reply: Reply<Run>) {
        self.front.reply(reply);
    }

    fn fence(&mut self, _now: Instant, _at_risk: &mut dyn Iterator<Item = Span>) {
        self.wants_fence = true;
    }
}

/// Where the host keeps what it knows of which cache.
struct Host {
    path: PathBuf,
    superblock: Superblock,
    /// The mode that was written down last.
    told: Option<Mode>,
    /// It could not be written down: not again before.
    again: Instant,
    /// When what is dirty was noted last.
    noted: Instant,
    /// It was written down which start this is.
    has_served: bool,
}

struct Volume {
    engine: Engine<Run>,
    world: Back,
    desk: Desk,
    clock: Clock,
    recorder: Option<Recorder>,
    state: State,
    /// The front rests, since the cache is being taken from its origin, or has failed.
    is_front_resting: bool,
    /// Operations that have ended and that the engine has not heard of yet, in their order.
    landed: VecDeque<Done<Run>>,
    /// The cache's path, for messages.
    cache: String,
    rating: Rating,
    host: Host,
    /// Kept from turn to turn for their memory only.
    events: Vec<Event<Run>>,
    happenings: Vec<Happening>,
    interests: Vec<Interest>,
}

impl Volume {
    fn run(mut self) -> Result<Rest, Failure> {
        self.world.io.watch(WatchKey { port: DESK, token: 0 }, self.desk.fd(), true, false);
        if let Some(sleeper) = &self.world.sleeper {
            self.world.io.watch(WatchKey { port: MOTOR, token: 0 }, sleeper.motor().fd(), true, false);
        }
        loop {
            let now = self.clock.now();
            self.obey(now);
            if self.state == State::Stopping && self.world.held.is_some() {
                // Nothing was written, and nobody was answered.
                return Ok(Rest::default());
            }
            if let Some(recorder) = &mut self.recorder {
                recorder.note(now, &self.events);
            }
            turn(&mut self.engine, &mut self.world, now, &mut self.events);
            self.rest_front_without_cache();
            self.tell_of_fence(now);
            if let (Some(sleeper), Some(motor)) = (&mut self.world.sleeper, self.engine.motor()) {
                sleeper.news(motor).into_iter().for_each(|line| crate::tell!("tidegate: {line}"));
            }
            match self.engine.phase() {
                Phase::Recovering => {
                    if self.state == State::Starting && self.world.held.as_ref().is_some_and(|held| !held.is_empty()) {
                        self.state = State::Sound;
                        self.desk.tell(Tell::Sound);
                    }
                }
                Phase::Serving => {
                    if matches!(self.state, State::Starting | State::Sound) {
                        self.tell_host(now, None)?;
                        self.host.has_served = true;
                        // What was noted before this start is not complete any more.
                        self.note_dirty(false);
                        self.state = State::Serving;
                        self.desk.tell(Tell::Serving(Box::new(self.engine.inspect(now))));
                    }
                    self.tell_changes(now);
                    self.wake_front(now);
                }
                Phase::Refused => return Err(refusal(&self.engine, &self.cache)),
                Phase::Stopped => {
                    if self.has_ended(now) {
                        // It is stopped in order, whether that can be written down or not.
                        let snapshot = self.engine.inspect(now);
                        // Of a start that has not served the host knows nothing, and what it knew is still so.
                        if self.host.has_served {
                            let _ = self.tell_host(now, Some(snapshot.newer()));
                            self.note_dirty(true);
                        }
                        return Ok(Rest { lost_blocks: snapshot.lost_blocks + snapshot.unreadable_blocks });
                    }
                }
            }
            let mut room = self.engine.room();
            self.world.front.resume(&mut room, &mut self.events);
            self.speak();
            self.desk.count_clients(self.world.front.connections());
            self.sleep(now)?;
            self.dispatch(&mut room);
        }
    }

    /// Does what was asked at the desk.
    fn obey(&mut self, now: Instant) {
        for guest in self.desk.guests() {
            self.world.front.admit(guest);
        }
        for (number, verb) in self.desk.commands() {
            let mut refused = None;
            match verb {
                Verb::Status | Verb::Curve => {}
                Verb::Drain => self.engine.handle(now, Event::Control(Control::Drain)),
                Verb::CancelDrain => self.engine.handle(now, Event::Control(Control::CancelDrain)),
                Verb::Stop => self.stop(),
                Verb::Mode(mode) => refused = self.switch(now, mode).err(),
                Verb::Detach { flush } => refused = self.detach(now, flush).err(),
                Verb::CancelDetach => self.engine.handle(now, Event::Control(Control::CancelDetach)),
            }
            let answer = match refused {
                Some(what) => serde_json::json!({ "error": what }),
                None if verb == Verb::Curve => curve_json(&self.engine.what_if(), &self.engine.inspect(now)),
                None => {
                    let mut snapshot = self.engine.inspect(now);
                    let Tally { reads, read_atoms, writes } = self.world.front.tally();
                    let counters = &mut snapshot.counters;
                    (counters.reads, counters.read_atoms, counters.writes) =
                        (counters.reads + reads, counters.read_atoms + read_atoms, counters.writes + writes);
                    let mut status = status_json(&snapshot);
                    status["wear"] = wear_json(&snapshot.wear, &self.rating, &snapshot.counters);
                    if let (Some(sleeper), Some(report)) = (&self.world.sleeper, &snapshot.spin) {
                        status["spin"] = sleeper.json(report, now);
                    }
                    status["io"] = self.world.io.carrier().name().into();
                    status["alarm"] = alarm(&self.world.io, &snapshot).into();
                    status
                }
            };
            self.desk.answer(number, answer);
        }
        if self.desk.may_write() {
            self.world.release(now);
        }
        if self.desk.is_told_to_stop() {
            self.stop();
        }
    }

    /// Writes down which start of which cache this is and what it promises, before anything is answered; and what is dirty, when it
    /// has stopped.
    fn tell_host(&mut self, now: Instant, dirty: Option<u64>) -> Result<(), Failure> {
        let snapshot = self.engine.inspect(now);
        let has_failed = snapshot.health != Health::Whole;
        let dirty = if has_failed { Some(snapshot.newer()) } else { dirty };
        let state = HostState::of(&self.host.superblock, snapshot.epoch, dirty, &snapshot.mode);
        let state = HostState { degraded: has_failed, ..state };
        self.host.told = Some(state.mode);
        state.write(&self.host.path)
    }

    /// Writes down a mode that is kept from now on, and every minute what is dirty. A mode that promises less was written down before, so a host
    /// that cannot write costs nobody the volume.
    fn tell_changes(&mut self, now: Instant) {
        let mode = self.engine.mode();
        if !mode.is_switching
            && self.host.told != Some(mode.recorded)
            && now >= self.host.again
            && let Err(failure) = self.tell_host(now, None)
        {
            crate::tell!("tidegate: {} is not written down as the mode, and will be tried again: {failure}", mode.recorded);
            self.host.told = None;
            self.host.again = now + TELL_AGAIN;
        }
        if now.since(self.host.noted) >= NOTE_EVERY {
            self.host.noted = now;
            self.note_dirty(false);
        }
    }

    /// The SSD has failed: the host writes down that it misses writes from now on and what only it has, and the engine hears whether that is
    /// durable. Nothing else goes on meanwhile: these are small files, once in the life of an SSD.
    fn tell_of_fence(&mut self, now: Instant) {
        if !std::mem::take(&mut self.world.wants_fence) {
            return;
        }
        self.note_dirty(true);
        let told = self.tell_host(now, None);
        let cache = &self.cache;
        match &told {
            Ok(()) => crate::tell!("tidegate: cache {cache} has failed; the volume goes on without it, every write goes to the origin"),
            Err(failure) => crate::tell!("tidegate: cache {cache} has failed, and no write is taken: {failure}"),
        }
        self.events.push(Event::Fenced { durable: told.is_ok() });
    }

    fn note_dirty(&self, is_complete: bool) {
        let ranges = self.engine.dirty_ranges(dirty::RANGES_MAX);
        Dirty::now(&state::format_of(&self.host.superblock), is_complete, ranges).write(&self.host.path);
    }

    /// Another mode. That a FLUSH may promise less is written down before the engine hears of it.
    fn switch(&mut self, now: Instant, mode: Mode) -> Result<(), String> {
        if self.state != State::Serving {
            return Err("the volume does not serve now; try again when it does".to_owned());
        }
        if self.engine.health() != Health::Whole {
            return Err("the cache has failed: every write goes to the origin, whatever the mode".to_owned());
        }
        if !mode.is_home() && self.host.told != Some(mode) {
            let epoch = self.engine.inspect(now).epoch;
            let back = ModeView { wanted: mode, recorded: mode, is_switching: false };
            HostState::of(&self.host.superblock, epoch, None, &back).write(&self.host.path).map_err(|failure| failure.message)?;
            self.host.told = Some(mode);
        }
        self.engine.handle(now, Event::Control(Control::Mode(mode)));
        Ok(())
    }

    /// Takes the cache from its origin, if nobody uses the volume.
    fn detach(&mut self, now: Instant, flush: bool) -> Result<(), String> {
        if self.state != State::Serving {
            return Err("the volume does not serve now; try again when it does".to_owned());
        }
        let clients = self.world.front.connections();
        if clients > 0 {
            let clients = if clients == 1 { "a client uses".to_owned() } else { format!("{clients} clients use") };
            return Err(format!("{clients} the volume: disconnect first"));
        }
        if let Some(what) = removed(self.world.io.disk(DeviceId::Origin)) {
            return Err(what);
        }
        let snapshot = self.engine.inspect(now);
        let dirty = snapshot.newer();
        if dirty > 0 && !flush {
            return Err(format!(
                "{dirty} blocks are newer in the cache than on the origin; ask with \"flush\": true to send them home first"
            ));
        }
        // What fronts were allowed to write is over with their last client.
        self.world.front.rest();
        self.is_front_resting = true;
        self.engine.handle(now, Event::Control(Control::Detach));
        Ok(())
    }

    /// The cache has failed. What fronts were allowed to write before that would be acknowledged before the host has it in writing, or by nobody who
    /// could make it durable.
    fn rest_front_without_cache(&mut self) {
        if self.engine.health() != Health::Whole && !self.is_front_resting {
            self.world.front.rest();
            self.is_front_resting = true;
        }
    }

    /// The detach that it rests for is over, and the volume still serves: somebody has cancelled it, or the engine has ended it.
    fn wake_front(&mut self, now: Instant) {
        let is_whole = self.engine.health() == Health::Whole;
        let may_be_over = self.is_front_resting && is_whole && self.state == State::Serving && self.engine.drain().is_none();
        if may_be_over && !self.engine.inspect(now).is_detaching {
            self.world.front.wake();
            self.is_front_resting = false;
        }
    }

    /// Everything is durable. Have the last replies left, or their time?
    fn has_ended(&mut self, now: Instant) -> bool {
        match self.state {
            State::Lingering(until) => (self.world.front.connections() == 0 && self.world.io.in_flight() == 0) || now >= until,
            State::Starting | State::Sound | State::Serving | State::Stopping => {
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
        for Interest { token, fd, readable, writable } in self.interests.drain(..) {
            self.world.io.watch(WatchKey { port: FRONT, token }, fd, readable, writable);
        }
    }

    fn sleep(&mut self, now: Instant) -> Result<(), Failure> {
        let lingering = match self.state {
            State::Lingering(until) => Some(until),
            State::Starting | State::Sound | State::Serving | State::Stopping => None,
        };
        let busy = (!self.events.is_empty() || !self.landed.is_empty()).then_some(now);
        let recorder = self.recorder.as_ref().and_then(Recorder::deadline);
        let deadlines = [busy, lingering, recorder, self.engine.deadline(), self.world.front.deadline()];
        let deadline = deadlines.into_iter().flatten().min();
        self.world.io.wait(now, deadline, &mut self.happenings).map_err(|error| {
            Failure::new(Failure::SYSTEM, format!("waiting for the disks failed: {error}; what was flushed is safe, start again"))
        })
    }

    /// Turns what happened into events. `room` is what the engine still takes.
    fn dispatch(&mut self, room: &mut Room) {
        let now = self.clock.now();
        self.world.io.look_for_late(now, &mut self.happenings);
        let mut requests = 0;
        for happening in self.happenings.drain(..) {
            match happening {
                Happening::Done(done) => self.landed.push_back(done),
                Happening::Late(id) => self.events.push(Event::Late(id)),
                Happening::Ready { key: WatchKey { port: FRONT, token }, readable, writable } => {
                    let before = self.events.len();
                    self.world.front.ready(token, readable, writable, room, &mut self.events);
                    requests += self.events.len() - before;
                }
                Happening::Ready { key: WatchKey { port: MOTOR, .. }, .. } => {
                    let sleeper = self.world.sleeper.as_mut().expect("it is watched");
                    self.landed.extend(sleeper.motor_mut().answers());
                    self.engine.tell_time_of_day(now, OfDay(second_of_day()));
                }
                Happening::Ready { .. } => self.desk.open(),
            }
        }
        self.world.io.heard(requests);
        self.land();
        if self.world.front.deadline().is_some_and(|deadline| deadline <= now) {
            self.world.front.tick(now);
        }
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

    /// Once.
    fn stop(&mut self) {
        if matches!(self.state, State::Starting | State::Sound | State::Serving) {
            self.state = State::Stopping;
            self.world.front.rest();
            self.events.push(Event::Control(Control::Stop));
        }
    }
}

/// Recovery found what must not be repaired: one line.
pub(crate) fn refusal(engine: &Engine<Run>, cache: &str) -> Failure {
    let fatal: Vec<&str> = engine.damage().iter().filter(|damage| damage.fatal).map(|damage| damage.what.as_str()).collect();
    let first = fatal.first().copied().unwrap_or("its metadata does not add up");
    let more = if fatal.len() > 1 { format!(" (and {} more)", fatal.len() - 1) } else { String::new() };
    let message = format!("cache {cache}: {first}{more}; nothing was changed; see `tidegate check --cache {cache}`");
    Failure::new(Failure::DAMAGED, message)
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
        let small = Knobs { allocation: Some(Allocation::SmallWrites), ..knobs };
        assert_eq!(
            (config.max_dirty_age, small.config(&superblock).max_dirty_age),
            (Duration::from_secs(600), Duration::from_secs(86_400))
        );
        let said = Knobs { max_dirty_age: Some(Duration::from_secs(60)), ..small };
        assert_eq!(said.config(&superblock).max_dirty_age, Duration::from_secs(60));
        let without = Knobs { split: Some(false), commit_home: Some(false), ..knobs }.config(&superblock);
        assert!(config.split.is_some() && without.split.is_none());
        assert_eq!((config.commit_home, without.commit_home), (CommitHome::Judged, CommitHome::Never));
    }
}

//! One volume: its engine, its disks, its clients and its one thread. Everything that happens comes out of one wait.
//!
//! ```text
//!   wait ─▶ completions, ready sockets, messages, timeout ─▶ turn(engine) ─▶ resume, send, interests ─▶ wait
//! ```
//! Recovering → found sound: nothing is written before the lobby says so → Serving → (told to stop) stopping: all acknowledged writes
//! become durable → lingering: replies leave → ended. Clients, commands and words come from the lobby, through the desk.

mod options;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use tidegate_engine::block::{ATOM_BYTES, Span};
use tidegate_engine::cache::format::Superblock;
use tidegate_engine::op::{Action, Answer, DeviceId, Done, Op};
use tidegate_engine::payload::Payload;
use tidegate_engine::probe::{Health, ModeView, Phase, Snapshot};
use tidegate_engine::request::{Reply, Room};
use tidegate_engine::spin::quiet::OfDay;
use tidegate_engine::time::{Duration, Instant};
use tidegate_engine::{Config, Control, Engine, Event, Mode, World, turn};

use crate::alarm::{alarm, removed};
use crate::back::attach::Attached;
use crate::back::dock::{Happening, WatchKey};
use crate::back::io::{Carrier, Io};
use crate::back::lessor::PageLessor;
use crate::back::of_day::second_of_day;
use crate::back::run::Run;
use crate::back::spin::{Motor, Taken};
use crate::back::vigil;
use crate::control::{Verb, curve_json, status_json};
use crate::desk::{Desk, Rest, Tell};
use crate::dirty::{self, Dirty};
use crate::front::nbd::{Export, Front};
use crate::front::{Clients, Crew, Tally};
use crate::port::Interest;
use crate::recorder::Recorder;
use crate::sleeper::Sleeper;

pub use crate::Failure;
use crate::state::{self, State as HostState};
use crate::wear::{Rating, wear_json};
pub use options::{Knobs, Options, Said};

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
    state: state::Place,
    sleeper: Option<Sleeper>,
}

impl Opened {
    /// # Errors
    /// One line for the operator and the exit code.
    pub(crate) fn new(options: &Options, motors: &mut Taken) -> Result<Opened, Failure> {
        let mut attached = options.attach()?;
        if options.knobs.discard == Some(true) && !attached.cache.limits().discards {
            attached.notes.push(format!("cache {}: the device takes no discards; `discard` does nothing", options.cache.display()));
        }
        let at = |place: &str, failure: Failure| Failure { message: format!("{place}{failure}"), ..failure };
        let block_bytes = u64::from(attached.superblock.geometry.block_atoms) * ATOM_BYTES;
        crate::ram::check(options.knobs.ram, block_bytes).map_err(|failure| at(&options.said.ram, failure))?;
        let mut state = state::Place::open(&options.state)?;
        state.serves(&attached.cache, &attached.origin)?;
        state.tidy();
        attached.notes.extend(state::recognise(&state, &attached, options.accept_loss)?);
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
        Ok(Opened { options: options.clone(), attached, state, sleeper })
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
        let Opened { options, attached: Attached { cache, origin, superblock, .. }, state, sleeper } = self;
        let cache_id = cache.file_id();
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
        let alone = if crew.is_none() { Some(Front::volume(export).map_err(no_descriptor)?) } else { None };
        let volume_atoms = superblock.geometry.volume_atoms;
        let recorder = options.record.as_ref().map(|path| Recorder::start(path, volume_atoms, clock.now())).transpose()?;
        desk.tell(Tell::Opened);
        if !desk.is_started() {
            return Ok(Rest::default());
        }
        let config = options.knobs.config(&superblock);
        let fronts = if crew.is_some() { config.fronts } else { 0 };
        let ram = config.ram;
        let mut engine = Engine::new(Config { fronts, spin: sleeper.as_ref().map(Sleeper::config), ..config }, io.limits());
        if ram > 0 && engine.pages().is_none() {
            let (name, mebibytes) = (&options.name, ram >> 20);
            crate::tell!(
                "tidegate: the system does not give {mebibytes} MiB of memory: volume {name} is served without; ask for less with `ram`"
            );
        }
        if let (Some(crew), Some(pages)) = (&mut crew, engine.pages()) {
            crew.remember(pages);
        }
        if let (None, Some(lessor)) = (&crew, engine.pages().and_then(PageLessor::new)) {
            engine.set_lessor(Box::new(lessor));
        }
        let front: Box<dyn Clients> = match (crew, alone) {
            (Some(crew), _) => Box::new(crew),
            (None, alone) => Box::new(alone.expect("made where there is no crew")),
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
            paths: serde_json::json!({
                "origin": options.origin.to_str(),
                "cache": options.cache.to_str(),
                "state": options.state.to_str(),
                "cache_id": cache_id,
            }),
            rating: options.knobs.rating(),
            host: Host { place: state, superblock, told: None, again: Instant::ZERO, noted: Instant::ZERO, has_served: false },
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

fn no_descriptor(error: std::io::Error) -> Failure {
    Failure::new(Failure::SYSTEM, format!("no descriptor to watch clients with: {error}; raise the limit (ulimit -n)"))
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
            // Nothing is written by a word, and who reads the origin needs its answer: it says nothing of whether that is sound.
            (_, Action::Spin(word)) => self.sleeper.as_ref().expect("the engine was told of a motor").motor().tell(op.id, *word),
            (None, _) | (Some(_), Action::Read(..) | Action::Allocation(..)) => self.io.start(now, op),
            (Some(held), Action::Write(..) | Action::Zero(..) | Action::Discard(..) | Action::Flush) => held.push(op),
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
    place: state::Place,
    superblock: Superblock,
    /// The mode that was written down last, and whether it has exceptions.
    told: Option<(Mode, bool)>,
    /// It could not be written down: not again before.
    again: Instant,
    /// When what is dirty was noted last.
    noted: Instant,
    /// It was written down which start this is.
    has_served: bool,
}

struct Volume {
    /// Goes before the engine: replies that are left may be pages of its memory.
    world: Back,
    engine: Engine<Run>,
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
    /// Of its devices and of what the host knows, for commands, and by what to know the cache again; a name that is no text is none.
    paths: serde_json::Value,
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
            self.obey(now)?;
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
                    self.wake_front();
                }
                Phase::Refused => {
                    self.tell_what_is_unsaved(now);
                    return Err(refusal(&self.engine, &self.cache));
                }
                Phase::Stopped => {
                    if self.has_ended(now) {
                        // It is stopped in order, whether that can be written down or not.
                        let snapshot = self.engine.inspect(now);
                        // Of a start that has not served the host knows nothing, and what it knew is still so.
                        if self.host.has_served {
                            if let Err(failure) = self.tell_host(now, Some(snapshot.newer())) {
                                crate::tell!("tidegate: that it is stopped in order, only its cache knows: {failure}");
                            }
                            self.note_dirty(true);
                        }
                        return Ok(Rest { lost_blocks: lost_blocks(&snapshot) });
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
    fn obey(&mut self, now: Instant) -> Result<(), Failure> {
        for guest in self.desk.guests() {
            self.world.front.admit(guest);
        }
        // To look costs a walk over all sets: who asks in one turn shares it.
        let mut seen: Option<Snapshot> = None;
        for (number, verb) in self.desk.commands() {
            let mut refused = None;
            if !matches!(verb, Verb::Status | Verb::Curve) {
                seen = None;
            }
            match verb {
                Verb::Status | Verb::Curve => {}
                Verb::Drain => refused = self.drain(now).err(),
                Verb::CancelDrain => self.engine.handle(now, Event::Control(Control::CancelDrain)),
                Verb::Stop => self.stop(),
                Verb::Mode(mode) => refused = self.switch(now, mode).err(),
                Verb::Detach { flush } => refused = self.detach(now, flush).err(),
                Verb::CancelDetach => self.engine.handle(now, Event::Control(Control::CancelDetach)),
            }
            let answer = match refused {
                Some(what) => serde_json::json!({ "error": what }),
                None if verb == Verb::Curve => curve_json(&self.engine.what_if(), seen.get_or_insert_with(|| self.engine.inspect(now))),
                None => {
                    let mut snapshot = seen.get_or_insert_with(|| self.engine.inspect(now)).clone();
                    let Tally { reads, read_atoms, writes } = self.world.front.tally();
                    let counters = &mut snapshot.counters;
                    (counters.reads, counters.read_atoms, counters.writes) =
                        (counters.reads + reads, counters.read_atoms + read_atoms, counters.writes + writes);
                    let mut status = status_json(&snapshot);
                    status["wear"] = wear_json(&snapshot, &self.rating);
                    if self.state == State::Sound && self.world.held.is_some() {
                        // The daemon's other volumes are not.
                        status["recovery"]["step"] = "sound".into();
                    }
                    if let (Some(sleeper), Some(report)) = (&self.world.sleeper, &snapshot.spin) {
                        status["spin"] = sleeper.json(report, now);
                    }
                    status["paths"] = self.paths.clone();
                    status["io"] = self.world.io.carrier().name().into();
                    status["alarm"] = alarm(&self.world.io, &snapshot).into();
                    status
                }
            };
            self.desk.answer(number, answer);
        }
        if self.desk.may_write() && self.world.held.is_some() {
            HostState::begin(&self.host.place, &self.host.superblock)?;
            self.world.release(now);
        }
        if self.desk.is_told_to_stop() {
            self.stop();
        }
        Ok(())
    }

    /// Writes down which start of which cache this is and what it promises, before anything is answered; and what is dirty, when it
    /// has stopped.
    fn tell_host(&mut self, now: Instant, dirty: Option<u64>) -> Result<(), Failure> {
        let snapshot = self.engine.inspect(now);
        let mut state = HostState::of(&self.host.superblock, snapshot.epoch, dirty, &snapshot.mode);
        if snapshot.health != Health::Whole {
            (state.degraded, state.dirty) = (true, Some(snapshot.newer() + self.engine.unsaved_blocks()));
        }
        self.host.told = Some((state.mode, state.exceptions));
        state.write(&self.host.place)
    }

    /// Writes down a mode that is kept from now on, and every minute what is dirty. A mode that promises less was written down before, so a host
    /// that cannot write costs nobody the volume.
    fn tell_changes(&mut self, now: Instant) {
        let mode = self.engine.mode();
        if !mode.is_switching
            && self.host.told != Some((mode.recorded, mode.has_exceptions))
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

    /// The volume ends without its cache, and the origin has not taken all that only memory had: that is lost as well as what only the cache had. (Where
    /// the host did not know that the cache has failed, nothing was acknowledged without it: it has all that was flushed, and is taken again.)
    fn tell_what_is_unsaved(&mut self, now: Instant) {
        if self.engine.health() == Health::Degraded {
            self.note_dirty(true);
            if let Err(failure) = self.tell_host(now, None) {
                crate::tell!("tidegate: what is lost besides what only the cache had is not written down: {failure}");
            }
        }
    }

    fn note_dirty(&self, is_complete: bool) {
        let ranges = self.engine.dirty_ranges(dirty::RANGES_MAX);
        Dirty::now(&state::format_of(&self.host.superblock), is_complete, ranges).write(&self.host.place);
    }

    fn refuse_unless_serving(&self) -> Result<(), String> {
        match self.state {
            State::Serving => Ok(()),
            State::Starting | State::Sound | State::Stopping | State::Lingering(_) => {
                Err("the volume does not serve now; try again when it does".to_owned())
            }
        }
    }

    /// Everything goes home. What is dirty nobody knows before it serves.
    fn drain(&mut self, now: Instant) -> Result<(), String> {
        self.refuse_unless_serving()?;
        self.engine.handle(now, Event::Control(Control::Drain));
        Ok(())
    }

    /// Another mode. That a FLUSH may promise less is written down before the engine hears of it.
    fn switch(&mut self, now: Instant, mode: Mode) -> Result<(), String> {
        self.refuse_unless_serving()?;
        if self.engine.health() != Health::Whole {
            return Err("the cache has failed: every write goes to the origin, whatever the mode".to_owned());
        }
        if !mode.is_home() && self.host.told.is_none_or(|(told, _)| told != mode) {
            let epoch = self.engine.inspect(now).epoch;
            let back = ModeView { wanted: mode, recorded: mode, is_switching: false, ..self.engine.mode() };
            HostState::of(&self.host.superblock, epoch, None, &back).write(&self.host.place).map_err(|failure| failure.message)?;
            self.host.told = Some((mode, back.has_exceptions));
        }
        self.engine.handle(now, Event::Control(Control::Mode(mode)));
        Ok(())
    }

    /// Takes the cache from its origin, if nobody uses the volume.
    fn detach(&mut self, now: Instant, flush: bool) -> Result<(), String> {
        self.refuse_unless_serving()?;
        if self.engine.health() != Health::Whole {
            return Err(
                "the cache has failed: everything that can be had is on the origin, or on its way there; `tidegate stop` ends the \
                        volume, and `tidegate create --force` gives it another cache"
                    .to_owned(),
            );
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
    fn wake_front(&mut self) {
        let is_whole = self.engine.health() == Health::Whole;
        let may_be_over = self.is_front_resting && is_whole && self.state == State::Serving && self.engine.drain().is_none();
        if may_be_over && !self.engine.is_detaching() {
            self.world.front.wake();
            self.is_front_resting = false;
        }
    }

    /// Everything is durable. Have the last replies left, or their time?
    fn has_ended(&mut self, now: Instant) -> bool {
        match self.state {
            State::Lingering(until) => self.may_end(now) || now >= until,
            State::Starting | State::Sound | State::Serving | State::Stopping => {
                self.world.front.shutdown();
                self.state = State::Lingering(now + LINGER);
                false
            }
        }
    }

    /// Nothing is left to wait for: no client, no operation, and nobody who asks how it ended has to hear that something is lost.
    fn may_end(&self, now: Instant) -> bool {
        self.world.front.connections() == 0 && self.world.io.in_flight() == 0 && lost_blocks(&self.engine.inspect(now)) == 0
    }

    /// Sends what is queued and learns which descriptors to watch.
    fn speak(&mut self) {
        self.world.front.send();
        self.engine.sent();
        self.world.front.interests(&mut self.interests);
        for Interest { token, fd, readable, writable } in self.interests.drain(..) {
            self.world.io.watch(WatchKey { port: FRONT, token }, fd, readable, writable);
        }
    }

    fn sleep(&mut self, now: Instant) -> Result<(), Failure> {
        let lingering = match self.state {
            State::Lingering(_) if self.may_end(now) => Some(now),
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

/// Blocks of which nobody has the contents any more.
fn lost_blocks(snapshot: &Snapshot) -> u64 {
    snapshot.lost_blocks + snapshot.unreadable_blocks
}

/// Recovery found what must not be repaired, or a volume that had lost its cache could not be stopped in order: one line.
pub(crate) fn refusal(engine: &Engine<Run>, cache: &str) -> Failure {
    let fatal: Vec<&str> = engine.damage().iter().filter(|damage| damage.fatal).map(|damage| damage.what.as_str()).collect();
    let first = fatal.first().copied().unwrap_or("its metadata does not add up");
    let more = if fatal.len() > 1 { format!(" (and {} more)", fatal.len() - 1) } else { String::new() };
    if engine.health() != Health::Whole {
        return Failure::new(Failure::IO, format!("cache {cache}: {first}{more}"));
    }
    let message = format!("cache {cache}: {first}{more}; nothing was changed; see `tidegate check --cache {cache}`");
    Failure::new(Failure::DAMAGED, message)
}

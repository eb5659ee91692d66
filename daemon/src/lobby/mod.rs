//! The lobby: everything that a daemon has once, whatever the number of its volumes, and the one thread for it: listeners and handshakes,
//! the control socket, signals. A client that has shaken hands is handed to the thread of its volume, and a command likewise.
//!
//! ```text
//!           clients ─▶ front (lobby) ── guests ────▶ ┐          ┌ volume: front, engine, ring, disks
//! control socket ─▶ inquiries ─────── commands ───▶  ├─ desk ─▶ ├ volume
//!          signals ──────────────────── stop ──────▶ ┘          └ volume
//!                    ◀──────── serving, answers, ended ────────────┘
//! ```
//! Starting (every volume is opened, then every one looked through by its recovery, and only then is anything written; clients wait)
//! → Serving → (a signal) Stopping → all have ended. What keeps one volume from starting keeps all of them, and nothing was changed. Once
//! they serve, one that ends leaves the others alone. A second signal ends it anywhere; what was flushed is on the SSDs already.

mod inquiries;
mod member;
#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;

use tidegate_engine::probe::Snapshot;
use tidegate_engine::request::Room;
use tidegate_engine::time::{Duration, Instant};

use crate::Failure;
use crate::back::attach::refuse_shared;
use crate::back::confine;
use crate::back::io::Carrier;
use crate::back::mail::{Mailbox, mailbox};
use crate::back::poll::{Poll, Ready as ReadyFd};
use crate::back::signals::Signals;
use crate::back::spin::Taken;
use crate::control::{Command, ControlPort, INQUIRIES_MAX};
use crate::desk::{News, Rest, Tell, Word};
use crate::front::nbd::{self, Address, Certificates, Exports, Front, Guest};
use crate::port::{Interest, Port};
use crate::volume::{self, Clock, Opened};
use inquiries::Inquiries;
use member::{Member, Phase, WORDS_MAX};

/// What to serve, and where.
#[derive(Clone, Debug)]
pub struct Options {
    /// At least one; their names differ.
    pub volumes: Vec<volume::Options>,
    /// The place of the volume that clients get who name none.
    pub default: Option<usize>,
    /// Where NBD clients connect.
    pub nbd: Vec<Address>,
    /// The control socket.
    pub control: PathBuf,
    /// Sockets handed over by a service manager; if there are any, they stand in for `nbd`.
    pub handed_over: u32,
    /// One client on standard input; the daemon stops when it has gone.
    pub stdio: bool,
    /// What TCP clients must use.
    pub tls: Option<Certificates>,
    /// Who carries operations to the disks.
    pub io: Carrier,
    /// Privileges and system calls that a daemon does not need are given up ([`confine`]).
    pub confined: bool,
}

/// Whoever started the daemon.
pub trait Operator {
    /// Every volume serves. A failure stops them again.
    fn ready(&mut self, ready: &Ready) -> Result<(), Failure>;
    /// One of several volumes has failed; the others go on.
    fn lost(&mut self, volume: &str, failure: &Failure);
}

/// Everything serves: what the operator is told.
#[derive(Clone, Debug)]
pub struct Ready {
    /// Where NBD clients connect: for each address, one for each volume.
    pub places: Vec<nbd::Place>,
    /// Worth knowing of all of them, one line each.
    pub notes: Vec<String>,
    pub volumes: Vec<ReadyVolume>,
}

#[derive(Clone, Debug)]
pub struct ReadyVolume {
    pub name: String,
    pub bytes: u64,
    /// Worth knowing, one line each.
    pub notes: Vec<String>,
    /// After recovery: its counters tell what was found.
    pub snapshot: Snapshot,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// After one signal: every acknowledged write is durable, but for so many blocks of all volumes that cannot be had.
    Stopped { lost_blocks: u64 },
    /// After a second signal (its number): only what was flushed is.
    Interrupted(i32),
}

impl Ended {
    /// Exit code: 0, or 128 and the signal, as shells count.
    pub fn code(self) -> u8 {
        match self {
            Ended::Stopped { .. } => 0,
            Ended::Interrupted(signal) => 128 + signal as u8,
        }
    }
}

/// Clients at once, over all volumes, if the process may have as many descriptors.
const CLIENTS_MAX: usize = 4096;
/// Of these, clients from one IP address.
const CLIENTS_OF_PEER_MAX: usize = 256;
/// Descriptors that are kept for everything else: the control socket and its clients, files for a moment.
const DESCRIPTORS_BESIDE: usize = 40;
/// The same for each volume: its disks, its ring (or what its disks' threads ring with), its mailbox, its motor, its recording.
const DESCRIPTORS_OF_VOLUME: usize = 14;
/// And for each of its front threads: an epoll and two bells.
const DESCRIPTORS_OF_FRONT_THREAD: usize = 3;

/// A second signal so soon after the first is the same one.
const TWICE: Duration = Duration::from_millis(200);

const FRONT: u32 = 0;
const CONTROL: u32 = 1;
const SIGNALS: u32 = 2;
const NEWS: u32 = 3;

/// Serves volumes until a signal stops them. Call it before any other thread is started: they inherit the signal mask.
///
/// # Errors
/// One line for the operator and the exit code: why nothing was served, or which volume failed meanwhile.
pub fn serve(options: &Options, operator: &mut dyn Operator) -> Result<Ended, Failure> {
    assert!(!options.volumes.is_empty(), "there is something to serve");
    let motors = options.volumes.iter().any(|volume| volume.spin.is_some());
    if options.confined {
        confine::give_up_privileges(motors).map_err(|error| unconfined("privileges", &error))?;
    }
    let signals = Signals::take().map_err(|error| system("signals cannot be received", &error))?;
    let opened = open(options)?;
    if options.confined {
        confine::give_up_raw_commands().map_err(|error| unconfined("privileges", &error))?;
    }
    let exports = Exports::new(opened.iter().map(Opened::export).collect(), options.default).map_err(refused)?;
    // Whatever fails from here on: mailboxes that are dropped end the threads, which have written nothing yet.
    let (carrier, note) = options.io.choose();
    let (members, news) = spawn(options, carrier, opened)?;
    let not_created = |message| Failure::new(Failure::NOT_CREATED, message);
    let front = nbd::Options {
        addresses: options.nbd.clone(),
        exports,
        tls: options.tls.clone(),
        handed_over: options.handed_over,
        stdio: options.stdio,
        connections_max: clients_max(&options.volumes),
        connections_per_peer: CLIENTS_OF_PEER_MAX,
    };
    let front = Front::lobby(front).map_err(not_created)?;
    let control = ControlPort::bind(&options.control).map_err(not_created)?;
    if options.confined {
        confine::give_up_system_calls(motors).map_err(|error| unconfined("system calls", &error))?;
    }
    let mut lobby = Lobby::new(front, control, signals, members, news, options.stdio)?;
    lobby.notes.extend(note.into_iter().chain(lobby.front.notes()));
    lobby.run(operator)
}

/// Clients that there are descriptors for.
fn clients_max(volumes: &[volume::Options]) -> usize {
    let of_volume =
        |volume: &volume::Options| DESCRIPTORS_OF_VOLUME + volume.knobs.front_threads.unwrap_or_default() * DESCRIPTORS_OF_FRONT_THREAD;
    let kept = DESCRIPTORS_BESIDE + volumes.iter().map(of_volume).sum::<usize>();
    nbd::descriptors().saturating_sub(kept).clamp(1, CLIENTS_MAX)
}

/// Opens and locks every volume.
fn open(options: &Options) -> Result<Vec<Opened>, Failure> {
    let devices: Vec<_> = options.volumes.iter().map(|volume| [&*volume.cache, &*volume.origin]).collect();
    refuse_shared(&devices)?;
    let mut motors = Taken::default();
    let open = |volume: &volume::Options| {
        Opened::new(volume, &mut motors).map_err(|failure| blame(options.volumes.len(), &volume.name, failure.reaching(&volume.reach)))
    };
    options.volumes.iter().map(open).collect()
}

/// Gives each volume its thread, and waits until each has what it needs.
fn spawn(options: &Options, carrier: Carrier, opened: Vec<Opened>) -> Result<(Vec<Member>, Mailbox<News>), Failure> {
    let (sender, mut news) = mailbox(opened.len() * (INQUIRIES_MAX + WORDS_MAX)).map_err(|error| system("no eventfd", &error))?;
    let spawn = |(place, opened): (usize, Opened)| {
        let reach = options.volumes[place].reach.clone();
        let (export, notes) = (opened.export(), opened.notes().iter().map(|note| reach.complete(note)).collect());
        let serve = move |desk| opened.serve(carrier, desk).map_err(|failure| failure.reaching(&reach));
        Member::spawn(place, export, notes, &sender, options.stdio, serve)
    };
    let members = opened.into_iter().enumerate().map(spawn).collect::<Result<Vec<Member>, Failure>>()?;
    for _ in &members {
        match news.wait().expect("we have a sender ourselves") {
            News { tell: Tell::Ended(Err(failure)), volume } => return Err(blame(members.len(), &members[volume].name, failure)),
            News { tell: Tell::Opened, .. } => {}
            News { volume, .. } => unreachable!("volume {volume} was not told to start"),
        }
    }
    Ok((members, news))
}

/// Of several volumes, a failure says which it is of.
fn blame(volumes: usize, name: &str, failure: Failure) -> Failure {
    if volumes == 1 { failure } else { failure.of(name) }
}

fn unconfined(what: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(Failure::SYSTEM, format!("{what} cannot be given up: {error}; see --unconfined"))
}

fn system(what: &str, error: &io::Error) -> Failure {
    Failure::new(Failure::SYSTEM, format!("{what}: {error}"))
}

fn refused(message: String) -> Failure {
    Failure::new(Failure::REFUSED, message)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Starting,
    Serving,
    Stopping,
}

struct Lobby {
    poll: Poll,
    front: Front,
    control: ControlPort,
    signals: Signals,
    news: Mailbox<News>,
    inquiries: Inquiries,
    members: Vec<Member>,
    clock: Clock,
    state: State,
    /// The operator knows that everything serves: from then on what clients are told is kept.
    has_served: bool,
    /// When the first signal came.
    heard: Option<Instant>,
    /// It ends with its only client.
    one_client: bool,
    /// What kept it from starting.
    failure: Option<Failure>,
    /// Clients that wait for the start.
    guests: Vec<Guest>,
    /// For the operator.
    notes: Vec<String>,
}

impl Lobby {
    fn new(
        front: Front,
        control: ControlPort,
        signals: Signals,
        members: Vec<Member>,
        news: Mailbox<News>,
        one_client: bool,
    ) -> Result<Lobby, Failure> {
        Ok(Lobby {
            poll: Poll::new().map_err(|error| system("no epoll", &error))?,
            front,
            control,
            signals,
            news,
            inquiries: Inquiries::new(members.iter().map(|member| member.name.clone()).collect()),
            members,
            clock: Clock::start(),
            state: State::Starting,
            has_served: false,
            heard: None,
            one_client,
            failure: None,
            guests: Vec::new(),
            notes: Vec::new(),
        })
    }

    fn run(mut self, operator: &mut dyn Operator) -> Result<Ended, Failure> {
        for (port, fd) in [(SIGNALS, self.signals.fd()), (NEWS, self.news.fd())] {
            self.poll.watch(port, 0, fd, true, false).map_err(|error| system("epoll", &error))?;
        }
        self.tell_all(|| Word::Start);
        let (mut interests, mut ready) = (Vec::new(), Vec::new());
        loop {
            self.inquire();
            if self.members.iter().all(Member::has_ended) {
                // Whoever asked for it hears of it.
                self.control.send();
                return self.outcome();
            }
            self.speak(&mut interests);
            if self.one_client && self.state == State::Serving && self.front.seated() == 0 {
                self.stop();
            }
            let now = self.clock.now();
            let deadline = [self.front.deadline(), self.control.deadline()].into_iter().flatten().min();
            self.poll.wait(now, deadline, &mut ready).map_err(|error| system("epoll", &error))?;
            for ready in ready.drain(..) {
                if let Some(signal) = self.dispatch(ready, operator) {
                    // What kept it from serving is told all the same.
                    return self.failure.map_or(Ok(Ended::Interrupted(signal)), Err);
                }
            }
            let now = self.clock.now();
            if self.front.deadline().is_some_and(|deadline| deadline <= now) {
                self.front.tick(now);
            }
            self.control.tick(now);
        }
    }

    /// Sends what is queued, learns which descriptors to watch, and hands over who has arrived.
    fn speak(&mut self, interests: &mut Vec<Interest>) {
        self.front.resume(&mut nothing(), &mut Vec::new());
        self.front.send();
        self.control.send();
        for port in [FRONT, CONTROL] {
            match port {
                FRONT => self.front.interests(interests),
                _ => self.control.interests(interests),
            }
            for Interest { token, fd, readable, writable } in interests.drain(..) {
                if self.poll.watch(port, token, fd, readable, writable).is_err() {
                    match port {
                        FRONT => self.front.unwatched(token),
                        _ => self.control.unwatched(token),
                    }
                }
            }
        }
        self.guests.extend(self.front.guests());
        if self.state != State::Starting {
            self.hand_over();
        }
    }

    /// A guest whose volume has ended goes away with it. So do all where nothing has come to serve: what a volume would still acknowledge them may be
    /// undone with its first run.
    fn hand_over(&mut self) {
        for guest in self.guests.drain(..).filter(|_| self.has_served) {
            self.members[guest.export()].words.send(Word::Guest(guest));
        }
    }

    /// Passes on what was asked on the control socket.
    fn inquire(&mut self) {
        for (asker, Command { verb, volume }) in self.control.commands() {
            match self.inquiries.begin(asker, volume.as_deref(), verb.is_of_one()) {
                Err(error) => self.control.answer(asker, &error),
                Ok((number, places)) => {
                    for place in places {
                        if self.members[place].has_ended() || !self.members[place].words.send(Word::Command(number, verb)) {
                            self.inquiries.answer(number, place, self.farewell(place));
                        }
                    }
                }
            }
        }
        for (asker, answer) in self.inquiries.answered() {
            self.control.answer(asker, &answer);
        }
    }

    /// The state of a volume that has none any more.
    fn farewell(&self, place: usize) -> serde_json::Value {
        match &self.members[place].phase {
            Phase::Ended(Err(failure)) => serde_json::json!({ "phase": "failed", "failure": failure.message }),
            Phase::Ended(Ok(rest)) => serde_json::json!({ "phase": "stopped", "lost_blocks": rest.lost_blocks }),
            Phase::Starting | Phase::Sound | Phase::Serving(_) => serde_json::json!({ "phase": "stopped" }),
        }
    }

    /// What a ready descriptor means. A signal that ends everything is returned.
    fn dispatch(&mut self, ready: ReadyFd, operator: &mut dyn Operator) -> Option<i32> {
        let ReadyFd { port, token, readable, writable } = ready;
        match port {
            FRONT => self.front.ready(token, readable, writable, &mut nothing(), &mut Vec::new()),
            CONTROL => self.control.ready(token, readable, writable, &mut nothing(), &mut Vec::new()),
            SIGNALS => return self.signal(),
            _ => {
                let news: Vec<News> = self.news.take().collect();
                news.into_iter().for_each(|news| self.hear(news, operator));
            }
        }
        None
    }

    fn hear(&mut self, News { volume, tell }: News, operator: &mut dyn Operator) {
        match tell {
            Tell::Opened | Tell::Alone => {}
            Tell::Answer(number, answer) => self.inquiries.answer(number, volume, answer),
            Tell::Sound => {
                self.members[volume].phase = Phase::Sound;
                self.release();
            }
            Tell::Serving(snapshot) => {
                self.members[volume].phase = Phase::Serving(snapshot);
                self.open(operator);
            }
            Tell::Ended(ended) => self.bury(volume, ended, operator),
        }
    }

    /// Lets the volumes write when nothing speaks against serving any of them.
    fn release(&self) {
        if self.state == State::Starting && !self.members.iter().any(|member| matches!(member.phase, Phase::Starting)) {
            self.tell_all(|| Word::Write);
        }
    }

    /// Tells the operator, once, that everything serves. Where all were stopped before they did, there is nothing to be told.
    fn open(&mut self, operator: &mut dyn Operator) {
        let is_on_its_way = |member: &Member| matches!(member.phase, Phase::Starting | Phase::Sound);
        if self.state != State::Starting || self.members.iter().any(is_on_its_way) || self.members.iter().all(Member::has_ended) {
            return;
        }
        let ready = |member: &mut Member| {
            let Phase::Serving(snapshot) = &member.phase else { return None };
            let (name, notes) = (member.name.clone(), std::mem::take(&mut member.notes));
            Some(ReadyVolume { name, bytes: member.bytes, notes, snapshot: Snapshot::clone(snapshot) })
        };
        let notes = std::mem::take(&mut self.notes);
        let ready = Ready { places: self.front.places(), notes, volumes: self.members.iter_mut().filter_map(ready).collect() };
        match operator.ready(&ready) {
            Ok(()) => (self.state, self.has_served) = (State::Serving, true),
            Err(failure) => self.fail(failure),
        }
    }

    /// Nothing is served: what runs stops again.
    fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
        self.stop();
    }

    /// A volume has ended.
    fn bury(&mut self, place: usize, ended: Result<Rest, Failure>, operator: &mut dyn Operator) {
        let volumes = self.members.len();
        let member = &mut self.members[place];
        member.join();
        let ended = ended.map_err(|failure| blame(volumes, &member.name, failure));
        member.phase = Phase::Ended(ended.clone());
        self.front.close_export(place);
        for number in self.inquiries.waiting_for(place) {
            self.inquiries.answer(number, place, self.farewell(place));
        }
        match (ended, self.state) {
            (Err(failure), State::Starting) => self.fail(failure),
            (Err(failure), State::Serving | State::Stopping) if !self.members.iter().all(Member::has_ended) => {
                operator.lost(&self.members[place].name, &failure);
            }
            (Err(_), State::Serving | State::Stopping) => {}
            (Ok(_), _) => {
                self.release();
                self.open(operator);
            }
        }
    }

    /// The first signal stops in order; of a second one, its number.
    fn signal(&mut self) -> Option<i32> {
        while let Some(signal) = self.signals.next() {
            let now = self.clock.now();
            match self.heard {
                None => {
                    self.heard = Some(now);
                    // It may be stopping for another reason already: nobody has asked twice by that.
                    if self.state != State::Stopping {
                        self.stop();
                    }
                }
                // Whoever tells a process and its group says it twice at once.
                Some(first) if now < first + TWICE => {}
                Some(_) => return Some(signal),
            }
        }
        None
    }

    /// No new clients; every volume at once makes durable what it has acknowledged.
    fn stop(&mut self) {
        self.state = State::Stopping;
        self.front.shutdown();
        self.hand_over();
        self.tell_all(|| Word::Stop);
    }

    /// One that has ended hears nothing.
    fn tell_all(&self, word: fn() -> Word) {
        for member in &self.members {
            member.words.send(word());
        }
    }

    /// All have ended: how.
    fn outcome(self) -> Result<Ended, Failure> {
        let mut lost_blocks = 0;
        let mut failed = self.failure;
        for member in self.members {
            match member.phase {
                Phase::Ended(Err(failure)) => _ = failed.get_or_insert(failure),
                Phase::Ended(Ok(rest)) => lost_blocks += rest.lost_blocks,
                Phase::Starting | Phase::Sound | Phase::Serving(_) => {}
            }
        }
        failed.map_or(Ok(Ended::Stopped { lost_blocks }), Err)
    }
}

/// The lobby has no engine: nothing that it reads is a request.
fn nothing() -> Room {
    Room::none()
}

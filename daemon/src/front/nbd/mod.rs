//! The NBD front: listeners, connections, and whose request is whose. There are two kinds of it, each in one thread: the **lobby** has
//! the listeners, shakes hands and says which client has arrived for which export; a **volume's** front lets these clients in and takes
//! their requests.
//!
//! ```text
//! address, export     what is offered, and where
//! allow               to whom
//! seats               how many clients, over all threads
//! protocol            the numbers
//! handshake           bytes in, bytes out          ┐ pure
//! transmission        bytes in, requests out       │
//! job                 commands of several requests │
//! ahead               changes that wait            │
//! output, loan        replies waiting to be sent   │
//! turns               who gets the engine's room   ┘
//! departures          connections that were closed
//! socket, tls         bytes of one client
//! kept                received, and not yet understood
//! connection          one client; requests: what it has in the engine
//! mod (here)          all of them: the port
//! ```
//!
//! All connections share one receive buffer: what is left in it after a read is kept by its connection, mostly nothing.

pub mod address;
mod ahead;
pub mod allow;
mod connection;
pub(super) mod departures;
pub mod export;
pub mod handshake;
pub(super) mod job;
mod kept;
mod loan;
pub mod output;
mod protocol;
mod requests;
mod seats;
mod socket;
mod tls;
pub mod transmission;
pub(super) mod turns;

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::{Arc, Weak};

use rustls::ServerConfig;
use tidegate_engine::Event;
use tidegate_engine::block::Span;
use tidegate_engine::request::{Reply, RequestId, Room};
use tidegate_engine::time::{Duration, Instant};

use crate::back::run::Run;
use crate::port::{Interest, Port};

pub use address::{Address, Place};
use ahead::Ahead;
pub use allow::Allowed;
pub use connection::BYTES_MAX;
use connection::{Connection, Intake, Service};
use departures::Departures;
pub use export::{BLOCK_BYTES_MIN, Export, Exports, PAYLOAD_BYTES_MAX, is_string};
use job::{Answered, Job, Jobs, Keep};
use loan::Loans;
pub use requests::REQUESTS_MAX;
use seats::{Seat, Seats};
pub use socket::descriptors;
use socket::{Listener, Stream};
pub use tls::Certificates;
use turns::Turns;

/// The shared receive buffer: some 60 writes of 4 KiB, or thousands of reads, in one system call.
const SCRATCH_BYTES: usize = 256 << 10;
/// Connections taken from one listener before others have their turn.
const ACCEPTS: usize = 64;
/// Slots of connections have 16 bits in tokens and request ids.
const CONNECTIONS_MAX: usize = 1 << 16;
/// Time is counted in ticks of this length.
const TICK: Duration = Duration::from_secs(1);
/// Tokens of listeners; those of connections are below.
const LISTENER: u64 = 1 << 48;

/// What to serve, and where.
#[derive(Clone, Debug)]
pub struct Options {
    pub addresses: Vec<Address>,
    pub exports: Exports,
    /// With these, every TCP client must use TLS; Unix sockets never do. Without, TCP is for loopback only.
    pub tls: Option<Certificates>,
    /// Listening sockets that were handed over (descriptors from 3 on); if there are any, they stand in for `addresses`.
    pub handed_over: u32,
    /// One client, on standard input; nothing is listened at.
    pub stdio: bool,
    /// Connections at once. For a further one, the oldest that is still shaking hands is closed; if there is none, the new one is.
    /// Default 4,096.
    pub connections_max: usize,
    /// Of these, connections from one IP address. Default 256.
    pub connections_per_peer: usize,
}

impl Options {
    /// The defaults; nothing to listen at yet.
    pub fn new(exports: Exports) -> Options {
        Options {
            addresses: Vec::new(),
            exports,
            tls: None,
            handed_over: 0,
            stdio: false,
            connections_max: 4096,
            connections_per_peer: 256,
        }
    }
}

/// The port of NBD clients.
pub struct Front {
    /// Of a volume: its own one.
    exports: Exports,
    listeners: Vec<Listening>,
    entries: Vec<Entry>,
    /// Entries without a client.
    free: Vec<u16>,
    seats: Seats,
    scratch: Vec<u8>,
    /// Connections to which something happened since the interests were last asked for.
    active: Vec<u64>,
    /// Connections that left input alone because there was no room, in the order in which they go on: who got something is the last.
    waiting: VecDeque<u64>,
    /// The first of them that lacks so much of the engine's room for a payload. It would never get that if those behind it took what comes free, so
    /// they take none; but in some seconds they do ([`Turns`]): it may be a disk that does not answer that keeps the rest. A job that lacks room
    /// comes before all of them ([`Jobs::is_cramped`]), or after the first ([`Turns::jobs_wait`]).
    cramped: Option<(u64, u64)>,
    /// Whether those behind it do take some.
    turns: Turns,
    /// The same of the room for what only reads: then what only reads takes none.
    cramped_reads: Option<(u64, u64)>,
    read_turns: Turns,
    /// Of clients that have said that they go, and have changes that wait elsewhere.
    wills: Vec<Arc<()>>,
    jobs: Jobs,
    loans: Loans,
    /// Changes of those that wait, behind which others' later ones wait, too.
    ahead: Ahead,
    /// The connections of its volume; `None`: it is the lobby.
    departures: Option<Arc<Departures>>,
    /// Nothing more is read there, which is to be said once that is passed on; and whether it has changes that are not answered.
    departed: Vec<(RawFd, bool)>,
    /// Clients that shook hands when they were last looked at, the first one first.
    half_open: VecDeque<u64>,
    /// Kept open until the loop has been told that they are gone, and then until it asks again, at once: others may have copies (of standard input,
    /// of what a service manager handed over), and epoll goes on watching those unless it is told before.
    gone: Vec<(u64, Closing)>,
    told: Vec<Closing>,
    /// The same for those that have arrived.
    arrived: Vec<Guest>,
    /// Arrived, and watched here no more.
    guests: Vec<Guest>,
    stopping: bool,
    last_tick: Instant,
    /// Somebody may be in the middle of something, or has credit for what it moved just now: the next tick is wanted.
    watching: bool,
    /// Something came back to the purse while somebody waited: the next turn is wanted.
    retry: bool,
}

struct Listening {
    listener: Listener,
    /// What its clients must use.
    tls: Option<Arc<ServerConfig>>,
    /// Who may connect whom the operator may not have meant: a line for him.
    note: Option<String>,
    /// The loop knows it.
    said: bool,
    /// Out of descriptors or memory: left alone until the next tick.
    resting: bool,
}

/// A place for a client. Tokens and request ids carry the generation, so those of an earlier client are known as such.
#[derive(Default)]
struct Entry {
    generation: u32,
    client: Option<Client>,
}

struct Client {
    connection: Connection,
    /// The interest that the loop knows.
    said: (bool, bool),
    active: bool,
    /// In `waiting`.
    queued: bool,
}

/// A client whose handshake is over, with everything that it has sent and that it is still to be told. Dropping it closes the connection.
pub struct Guest {
    connection: Box<Connection>,
    export: usize,
}

impl Guest {
    /// The place of the export that it came for.
    pub fn export(&self) -> usize {
        self.export
    }

    /// One who has said nothing yet.
    #[cfg(test)]
    pub fn test(stream: std::os::unix::net::UnixStream) -> Guest {
        let seat = Seats::new(1, 1).take(None).expect("a seat");
        Guest { connection: Box::new(Connection::new(Stream::Unix(stream), None, seat)), export: 0 }
    }
}

/// A descriptor that the loop still watches; dropping closes it.
enum Closing {
    Connection(Stream),
    Listener(Listener),
    /// Of a guest, who has it.
    Moved(RawFd),
}

impl Closing {
    fn fd(&self) -> RawFd {
        match self {
            Closing::Connection(stream) => stream.fd(),
            Closing::Listener(listener) => listener.fd(),
            Closing::Moved(fd) => *fd,
        }
    }
}

impl Front {
    /// The lobby: listens at every address.
    ///
    /// # Errors
    /// One line for the operator. What was already listening is closed again.
    pub fn lobby(options: Options) -> Result<Front, String> {
        let tls = options.tls.as_ref().map(Certificates::load).transpose()?;
        let handed_over = Listener::handed_over(options.handed_over)?;
        let addresses = if options.stdio || !handed_over.is_empty() { &[][..] } else { &options.addresses };
        let mut known = handed_over.iter().map(Listener::address).chain(addresses);
        if let (None, Some(address)) = (&tls, known.find(|address| address.needs_tls())) {
            return Err(address.refusal());
        }
        let bound = addresses.iter().map(Listener::bind).collect::<Result<Vec<_>, String>>()?;
        let listeners = handed_over.into_iter().chain(bound);
        let only = if options.stdio { Some(Stream::from_stdin()?) } else { None };
        if tls.is_none() && only.as_ref().is_some_and(Stream::is_remote) {
            return Err("--stdio: the client comes from another machine, which needs TLS; name a certificate and its key".to_owned());
        }
        let listening = |listener: Listener| {
            let tls = tls.clone().filter(|_| matches!(listener.address(), Address::Tcp(_)));
            let note = allow::whoever_connects(&listener, options.tls.as_ref());
            Listening { listener, tls, note, said: false, resting: false }
        };
        let seats = Seats::new(options.connections_max.min(CONNECTIONS_MAX), options.connections_per_peer);
        let mut front = Front { listeners: listeners.map(listening).collect(), seats, ..Front::of(options.exports) };
        if let Some(stream) = only {
            let tls = tls.filter(|_| matches!(stream, Stream::Tcp(_)));
            let seat = front.seats.take(stream.peer()).expect("the first client");
            front.add(Connection::new(stream, tls, seat));
        }
        Ok(front)
    }

    /// The front of one volume: nobody is there before [`Front::admit`].
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn volume(export: Export) -> io::Result<Front> {
        let departures = Some(Arc::new(Departures::new(None)?));
        Ok(Front { departures, ..Front::of(Exports::one(export)) })
    }

    /// One of several of a volume, whose jobs are begun where all of them meet.
    pub fn one_of_several(export: Export, departures: Arc<Departures>) -> Front {
        Front { jobs: Jobs::elsewhere(), departures: Some(departures), ..Front::of(Exports::one(export)) }
    }

    fn of(exports: Exports) -> Front {
        Front {
            exports,
            listeners: Vec::new(),
            entries: Vec::new(),
            free: Vec::new(),
            seats: Seats::new(0, 0),
            scratch: vec![0; SCRATCH_BYTES],
            active: Vec::new(),
            waiting: VecDeque::new(),
            cramped: None,
            turns: Turns::default(),
            cramped_reads: None,
            read_turns: Turns::default(),
            wills: Vec::new(),
            jobs: Jobs::default(),
            loans: Loans::default(),
            ahead: Ahead::default(),
            departures: None,
            departed: Vec::new(),
            half_open: VecDeque::new(),
            gone: Vec::new(),
            told: Vec::new(),
            arrived: Vec::new(),
            guests: Vec::new(),
            stopping: false,
            last_tick: Instant::ZERO,
            watching: false,
            retry: false,
        }
    }

    /// Who has arrived, each for the volume of its export. The loop knows already that their sockets are not watched here any more.
    pub fn guests(&mut self) -> Vec<Guest> {
        std::mem::take(&mut self.guests)
    }

    /// Lets a client in that has arrived in the lobby for this volume.
    pub fn admit(&mut self, guest: Guest) {
        let token = self.add(*guest.connection);
        if self.stopping {
            let service = Service { exports: &self.exports, stopping: true };
            // It may be gone already.
            client(&mut self.entries, token).into_iter().for_each(|client| client.connection.stop(service, &mut self.loans));
            self.settle(token);
        }
    }

    /// All clients of the lobby and of the volumes.
    pub fn seated(&self) -> usize {
        self.seats.taken()
    }

    /// The volume of this export has stopped: nobody gets it any more.
    pub fn close_export(&mut self, place: usize) {
        self.exports.close(place);
    }

    /// Where it really listens (port 0 has become a port).
    pub fn addresses(&self) -> Vec<Address> {
        self.listeners.iter().map(|listening| listening.listener.address().clone()).collect()
    }

    /// Where clients connect: for each address, one for each export.
    pub fn places(&self) -> Vec<Place> {
        let of = |listening: &Listening| {
            let (address, tls) = (listening.listener.address().clone(), listening.tls.is_some());
            let place = move |export: &Export| Place { address: address.clone(), export: export.name.clone(), tls };
            self.exports.open().map(place).collect::<Vec<_>>()
        };
        self.listeners.iter().flat_map(of).collect()
    }

    /// What they take to do so.
    pub fn uris(&self) -> Vec<String> {
        self.places().iter().map(Place::uri).collect()
    }

    /// Who may connect whom the operator may not have meant: a line for him for each address.
    pub fn notes(&self) -> impl Iterator<Item = String> + '_ {
        self.listeners.iter().filter_map(|listening| listening.note.clone())
    }

    /// Clients connected now.
    pub fn connections(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// No request is in the engine, and no byte waits to be sent.
    pub fn is_idle(&self) -> bool {
        self.entries.iter().flat_map(|entry| &entry.client).all(|client| client.connection.is_idle())
    }

    /// Takes no new clients; those there are stay.
    pub fn stop_listening(&mut self) {
        for (index, listening) in self.listeners.drain(..).enumerate() {
            if listening.said {
                self.gone.push((LISTENER | index as u64, Closing::Listener(listening.listener)));
            }
        }
    }

    /// Takes no new clients and no new requests (ESHUTDOWN). What was admitted is answered, then each connection is closed.
    pub fn shutdown(&mut self) {
        self.stop_listening();
        self.stopping = true;
        let service = Service { exports: &self.exports, stopping: true };
        for client in self.entries.iter_mut().flat_map(|entry| &mut entry.client) {
            client.connection.stop(service, &mut self.loans);
        }
        self.settle_all();
    }

    /// The client whose change that is, as long as it is to be done.
    pub fn will(&mut self, id: RequestId) -> Weak<()> {
        client(&mut self.entries, id.0 >> 8).map_or_else(Weak::new, |client| client.connection.will())
    }

    /// Commands of several requests that have come, for somebody else to run. Their last reply goes to [`Front::reply`].
    pub fn take_jobs(&mut self) -> Vec<(RequestId, Job)> {
        self.jobs.take()
    }

    /// The engine's answer. Of a client that is gone: dropped.
    pub fn reply(&mut self, reply: Reply<Run>) {
        let Answered::Client(reply) = self.jobs.handle(reply) else { return };
        let token = reply.id.0 >> 8;
        let Some(client) = client(&mut self.entries, token) else { return self.jobs.bury(reply.id) };
        client.connection.reply(reply.id.0 as u8, reply.result);
        if !client.active {
            client.active = true;
            self.active.push(token);
        }
    }

    fn accept(&mut self, index: usize) {
        for _ in 0..ACCEPTS {
            let Some(listening) = self.listeners.get(index) else { return };
            match listening.listener.accept() {
                Ok(stream) => match self.seat(stream.peer()) {
                    Some(seat) => {
                        let tls = self.listeners[index].tls.clone();
                        self.add(Connection::new(stream, tls, seat));
                    }
                    None => stream.hang_up(),
                },
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock) => return,
                Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => {}
                Err(_) => {
                    // Out of descriptors or memory: the client stays in the kernel's queue.
                    self.listeners[index].resting = true;
                    self.watching = true;
                    return;
                }
            }
        }
    }

    /// A seat for one more client from there. When all are taken, one that shakes hands gives way: whoever opens connections and says
    /// nothing must not keep others out.
    fn seat(&mut self, peer: Option<IpAddr>) -> Option<Seat> {
        while self.seats.are_taken() && !self.seats.are_taken_by(peer) {
            let token = self.half_open.pop_front()?;
            if client(&mut self.entries, token).is_some_and(|client| client.connection.is_half_open()) {
                self.remove(token);
            }
        }
        self.seats.take(peer)
    }

    /// Gives a place to a client, new or arrived.
    fn add(&mut self, mut connection: Connection) -> u64 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry::default());
            (self.entries.len() - 1) as u16
        });
        let entry = &mut self.entries[usize::from(slot)];
        let token = u64::from(entry.generation) << 16 | u64::from(slot);
        if connection.has_arrived().is_some() {
            connection.enter(token << 8);
            if let Some(departures) = &self.departures {
                match departures.enter(token, connection.stream()) {
                    Err(_) => connection.kill(&mut self.loans),
                    // Of several threads each has read its sockets before anybody comes.
                    Ok(()) if departures.are_shared() => {}
                    Ok(()) => connection.look_behind(departures),
                }
            }
        }
        if connection.is_half_open() {
            self.half_open.push_back(token);
        }
        entry.client = Some(Client { connection, said: (false, false), active: false, queued: false });
        if self.half_open.len() > 2 * self.entries.len() {
            let entries = &mut self.entries;
            self.half_open.retain(|token| client(entries, *token).is_some_and(|client| client.connection.is_half_open()));
        }
        self.settle(token);
        token
    }

    /// After anything happened to a connection: buries the dead, queues who waits, notes that its interest may have changed.
    fn settle(&mut self, token: u64) {
        let Some(client) = client(&mut self.entries, token) else { return };
        client.connection.settle(&mut self.loans);
        if self.departures.is_some() && client.connection.departs() {
            self.departed.push((client.connection.stream().fd(), client.connection.owes()));
        }
        if client.connection.is_dead() {
            return self.remove(token);
        }
        self.retry |= client.connection.line_up(&self.exports, &mut self.ahead);
        if let Some(export) = client.connection.has_arrived() {
            return self.leave(token, export);
        }
        if client.connection.is_waiting() && !client.queued {
            client.queued = true;
            self.waiting.push_back(token);
            let bytes = client.connection.wants_bytes();
            if bytes > 0 && self.cramped.is_none() {
                self.cramped = Some((token, bytes));
                self.watching = true;
            }
            let bytes = client.connection.wants_reads();
            if bytes > 0 && self.cramped_reads.is_none() {
                self.cramped_reads = Some((token, bytes));
                self.watching = true;
            }
        }
        if !client.active {
            client.active = true;
            self.active.push(token);
        }
        let connection = &client.connection;
        self.watching |=
            connection.is_timed() || connection.has_earned() || connection.wants_loan().is_some() || connection.may_be_taking();
    }

    /// Starts what can be started of the commands that take several requests.
    fn start_jobs(&mut self, room: &mut Room, events: &mut Vec<Event<Run>>) {
        if self.jobs.is_idle() {
            return;
        }
        let clients = self.entries.iter().flat_map(|entry| &entry.client);
        let changes = |place: Span| clients.clone().flat_map(|client| client.connection.changes()).any(|(_, span)| span.overlaps(place));
        let keep = match (self.turns.is_passed(), self.cramped) {
            (true, _) => Keep::Nothing,
            (false, None) if self.keeps_reads() => Keep::ForAll,
            (false, None) => Keep::ForJobs,
            (false, Some(_)) if self.turns.jobs_wait() => Keep::ForOthers,
            (false, Some(_)) => Keep::ForAll,
        };
        self.jobs.start(changes, keep, room, events);
        self.watching |= self.jobs.is_cramped();
    }

    /// Does anybody lack the engine's room for a payload?
    fn is_cramped(&self) -> bool {
        self.cramped.is_some() || self.jobs.is_cramped()
    }

    /// Are others to take nothing of what comes free?
    fn keeps_room(&self) -> bool {
        self.is_cramped() && !self.turns.is_passed()
    }

    /// The same of the room for what only reads.
    fn keeps_reads(&self) -> bool {
        self.cramped_reads.is_some() && !self.read_turns.is_passed()
    }

    /// Starts and takes what there is room for.
    fn go_on(&mut self, room: &mut Room, events: &mut Vec<Event<Run>>) {
        self.retry = false;
        self.start_jobs(room, events);
        let jobs_wait = self.cramped.is_some() && self.turns.jobs_wait();
        (self.cramped, self.cramped_reads) = (None, None);
        let (mut served, mut behind) = (Vec::new(), Vec::new());
        for _ in 0..self.waiting.len() {
            let service = Service { exports: &self.exports, stopping: self.stopping };
            let token = self.waiting.pop_front().expect("counted");
            let before = (events.len(), self.jobs.count());
            let keeps_room = self.keeps_room() && !(jobs_wait && self.cramped.is_none());
            let keeps_reads = self.keeps_reads();
            let Some(client) = client(&mut self.entries, token) else { continue };
            client.queued = false;
            let kept = Kept::of(room, keeps_room, keeps_reads);
            let departures = self.departures.as_deref();
            let mut intake = Intake { room, events, jobs: &mut self.jobs, loans: &mut self.loans, ahead: &self.ahead, departures };
            client.connection.catch_up(service, &mut intake);
            if client.connection.is_unread() {
                client.connection.receive(true, &mut self.scratch, service, &mut intake);
            }
            while client.connection.has_more() {
                client.connection.receive(false, &mut self.scratch, service, &mut intake);
            }
            behind.extend(client.connection.is_behind().then_some(token));
            kept.give_back(room);
            self.settle(token);
            if (events.len(), self.jobs.count()) != before && self.waiting.back() == Some(&token) {
                self.waiting.pop_back();
                served.push(token);
            }
        }
        self.waiting.extend(served);
        if room.requests > 0 {
            behind.into_iter().for_each(|token| self.read_closed(token, room, events));
        }
        self.turns.settle(self.is_cramped());
        self.read_turns.settle(self.cramped_reads.is_some());
        // Those that only now found their place: nothing else would wake us for them.
        self.start_jobs(room, events);
    }

    /// Reads a client's socket once. True: what has come waits for what lies on closed ones, if it `may`.
    fn read(&mut self, token: u64, may: bool, room: &mut Room, events: &mut Vec<Event<Run>>) -> bool {
        let kept = Kept::of(room, self.keeps_room(), self.keeps_reads());
        let service = Service { exports: &self.exports, stopping: self.stopping };
        let departures = self.departures.as_deref().filter(|_| may);
        let mut intake = Intake { room, events, jobs: &mut self.jobs, loans: &mut self.loans, ahead: &self.ahead, departures };
        let client = client(&mut self.entries, token);
        let is_behind = client.is_some_and(|Client { connection, .. }| {
            connection.receive(true, &mut self.scratch, service, &mut intake);
            while connection.has_more() {
                connection.receive(false, &mut self.scratch, service, &mut intake);
            }
            connection.is_behind()
        });
        kept.give_back(room);
        is_behind
    }

    /// The kernel has no memory to watch what this token stands for. A client would wait for ever: it is hung up. A listener rests for a while.
    pub fn unwatched(&mut self, token: u64) {
        if token >= LISTENER {
            let listening = &mut self.listeners[(token - LISTENER) as usize];
            (listening.said, listening.resting, self.watching) = (false, true, true);
        } else if let Some(client) = client(&mut self.entries, token) {
            client.connection.kill(&mut self.loans);
            self.settle(token);
            // It is to be said that it has gone.
            self.retry = true;
        }
    }

    fn settle_all(&mut self) {
        for slot in 0..self.entries.len() {
            self.settle(u64::from(self.entries[slot].generation) << 16 | slot as u64);
        }
    }

    /// Frees a client's place.
    fn take(&mut self, token: u64) -> Option<Client> {
        let slot = token as u16;
        let entry = &mut self.entries[usize::from(slot)];
        let client = entry.client.take()?;
        for cramped in [&mut self.cramped, &mut self.cramped_reads] {
            // Others may have what it waited for.
            self.retry |= cramped.take_if(|(cramped, _)| *cramped == token).is_some();
        }
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(slot);
        Some(client)
    }

    /// It has arrived: the volume of its export goes on with it.
    fn leave(&mut self, token: u64, export: usize) {
        let Some(mut client) = self.take(token) else { return };
        client.connection.leave(&mut self.loans);
        if client.said != (false, false) {
            self.gone.push((token, Closing::Moved(client.connection.stream().fd())));
        }
        self.arrived.push(Guest { connection: Box::new(client.connection), export });
    }

    fn remove(&mut self, token: u64) {
        let Some(mut client) = self.take(token) else { return };
        client.connection.kill(&mut self.loans);
        self.retry |= client.connection.line_up(&self.exports, &mut self.ahead);
        self.wills.retain(|will| Arc::weak_count(will) > 0);
        self.wills.extend(client.connection.legacy());
        let was_cramped = self.jobs.is_cramped();
        let is_over = !client.connection.has_said_goodbye();
        self.jobs.abandon(|id| id.0 >> 8 == token, is_over, client.connection.changes());
        // Others may have what his job waited for.
        self.retry |= was_cramped && !self.jobs.is_cramped();
        let stream = client.connection.into_stream();
        stream.hang_up();
        // It stays open until that was said, too.
        if client.said != (false, false) || self.departures.is_some() {
            self.gone.push((token, Closing::Connection(stream)));
        }
    }
}

/// Bytes of room that whoever comes now does not get.
struct Kept {
    bytes: u64,
    read_bytes: u64,
}

impl Kept {
    fn of(room: &mut Room, all: bool, reads: bool) -> Kept {
        let keep = |keeps: bool, bytes: &mut u64| if keeps { std::mem::take(bytes) } else { 0 };
        Kept { bytes: keep(all, &mut room.bytes), read_bytes: keep(reads, &mut room.read_bytes) }
    }

    fn give_back(self, room: &mut Room) {
        room.bytes += self.bytes;
        room.read_bytes += self.read_bytes;
    }
}

/// The client that a token stands for, if it is still there.
fn client(entries: &mut [Entry], token: u64) -> Option<&mut Client> {
    let entry = entries.get_mut(usize::from(token as u16))?;
    if u64::from(entry.generation) == token >> 16 { entry.client.as_mut() } else { None }
}

impl Port for Front {
    fn interests(&mut self, out: &mut Vec<Interest>) {
        // What was queued outside of a turn (a stop, a tick) goes out now: it decides whether the socket is waited for.
        self.send();
        self.say_departed();
        self.told.clear();
        for (token, closing) in self.gone.drain(..) {
            out.push(Interest { token, fd: closing.fd(), readable: false, writable: false });
            self.told.push(closing);
        }
        self.guests.append(&mut self.arrived);
        for (index, listening) in self.listeners.iter_mut().enumerate() {
            if listening.said == listening.resting {
                listening.said = !listening.resting;
                out.push(Interest {
                    token: LISTENER | index as u64,
                    fd: listening.listener.fd(),
                    readable: listening.said,
                    writable: false,
                });
            }
        }
        for token in self.active.drain(..) {
            let Some(client) = client(&mut self.entries, token) else { continue };
            client.active = false;
            client.connection.looked_at();
            let now = client.connection.interest();
            if now != client.said {
                client.said = now;
                out.push(Interest { token, fd: client.connection.stream().fd(), readable: now.0, writable: now.1 });
            }
        }
    }

    fn ready(&mut self, token: u64, readable: bool, writable: bool, room: &mut Room, events: &mut Vec<Event<Run>>) {
        if token >= LISTENER {
            return self.accept((token - LISTENER) as usize);
        }
        let Some(client) = client(&mut self.entries, token) else { return };
        if writable {
            client.connection.unblock();
            client.connection.send();
        }
        if readable && self.read(token, true, room, events) {
            self.read_closed(token, room, events);
        }
        self.settle(token);
    }

    fn resume(&mut self, room: &mut Room, events: &mut Vec<Event<Run>>) {
        self.go_on(room, events);
        let (jobs, other) = (self.jobs.lacking(), self.cramped.map_or(0, |(_, bytes)| bytes));
        self.turns.look(room.bytes, jobs, other);
        let reads = self.cramped_reads.map_or(0, |(_, bytes)| bytes);
        self.read_turns.look(room.for_reads().unwrap_or(0), 0, reads);
    }

    fn send(&mut self) {
        // Index by index: settling may bury, and never adds to `active` what is in it.
        for index in 0..self.active.len() {
            let token = self.active[index];
            let Some(client) = client(&mut self.entries, token) else { continue };
            client.connection.send();
            self.settle(token);
        }
        self.retry |= self.loans.take_returned() && !self.waiting.is_empty();
    }

    fn deadline(&self) -> Option<Instant> {
        if self.retry || !self.told.is_empty() {
            return Some(Instant::ZERO);
        }
        self.watching.then(|| self.last_tick + TICK)
    }

    fn tick(&mut self, now: Instant) {
        if now < self.last_tick + TICK {
            return;
        }
        let is_first = now >= self.last_tick + TICK + TICK;
        self.last_tick = now;
        self.watching = false;
        self.listeners.iter_mut().for_each(|listening| listening.resting = false);
        let wanted = self.entries.iter().flat_map(|entry| &entry.client).any(|client| client.connection.wants_loan().is_some());
        self.entries.iter_mut().flat_map(|entry| &mut entry.client).for_each(|client| client.connection.tick(wanted));
        self.loans.tick();
        self.settle_all();
        // Handshakes that rested go on; they need no room.
        self.go_on(&mut Room::none(), &mut Vec::new());
        self.turns.tick(is_first);
        self.read_turns.tick(is_first);
        let may_be_taking = self.entries.iter().flat_map(|entry| &entry.client).any(|client| client.connection.may_be_taking());
        self.retry |= self.turns.is_passed() || self.read_turns.is_passed() || may_be_taking;
    }
}

//! The NBD front in a small world: memory instead of an engine, `poll` instead of io_uring, everything in the test's own thread.
//! Outside programs run as processes while the test serves them. Time stands still unless a test moves it.

pub mod fronts;
pub mod pki;
pub mod secure;

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command as Process, Output};

use tidegate_daemon::back::run::{Run, RunMut};
use tidegate_daemon::front::nbd::{Address, Certificates, Options};
use tidegate_daemon::port::{Interest, Port};
use tidegate_engine::Event;
use tidegate_engine::block::{ATOM_BYTES, Span};
use tidegate_engine::payload::{Lessor, Payload};
use tidegate_engine::request::{Command, Extent, Kind, Outcome, Reply, Request, RequestError, Room, Stretch, Tier};
use tidegate_engine::time::{Duration, Instant};

use tidegate_daemon::back::lessor::PageLessor;
use tidegate_pages::{Atoms, Config, Keeper, Pages};

use fronts::Fronts;

pub const BLOCK: u64 = 4096;
/// Longer than anything here takes: a test that waits so long has failed.
const PATIENCE_MS: i32 = 60_000;
const IDLE_TURNS_MAX: usize = 100;
/// So many find what a turn leaves for the next one.
const SETTLING_TURNS: usize = 20;

pub struct World {
    pub front: Fronts,
    pub memory: Memory,
    /// Reads are answered with its pages.
    pub pages: Option<(PageLessor, Keeper)>,
    /// Reads that were.
    pub leased: usize,
    /// Turns after which some of them were still on their way.
    pub late_turns: usize,
    /// What the front may send into the "engine".
    pub room: Room,
    /// Requests are kept instead of answered.
    pub hold: bool,
    /// Those to cache are.
    pub hold_caching: bool,
    /// Those that only read are.
    pub hold_reads: bool,
    /// What changes something is not answered, since the origin has to take it.
    pub hold_changes: bool,
    pub held: Vec<Request<Run>>,
    /// Requests in one turn, at most so far.
    pub batch_max: usize,
    /// The kernel has no memory to watch one more descriptor.
    pub lacks_watches: bool,
    polled: BTreeMap<u64, Interest>,
    /// How long a client waits for a socket, or for front threads.
    patience_ms: i32,
    /// Nothing is to be done until a socket is ready, an answer is due, time passes, or there is other room than this.
    asleep: Option<Room>,
    now: Instant,
    dir: tempfile::TempDir,
}

/// A volume in memory.
pub struct Memory {
    pub bytes: Vec<u8>,
    /// Blocks that were written and not trimmed or zeroed since.
    written: Vec<bool>,
    /// Atoms here cannot be read.
    pub broken: Option<Span>,
    pub flushes: usize,
    pub fuas: usize,
    /// What was asked to be cached.
    pub cached: Vec<Span>,
    /// Nothing can be zeroed fast.
    pub slow: bool,
    /// Reads are given pieces of slabs of so many bytes, which nobody else keeps.
    pub slab_bytes: Option<u64>,
}

impl World {
    /// A volume of `bytes` bytes on a Unix socket of its own.
    pub fn new(bytes: u64) -> World {
        World::with(bytes, |_| {})
    }

    pub fn with(bytes: u64, change: impl FnOnce(&mut Options)) -> World {
        World::inside(tempfile::tempdir().expect("a directory"), bytes, 0, change)
    }

    /// Its clients are served by threads of their own, by the real clock.
    pub fn with_threads(bytes: u64, threads: usize) -> World {
        let dir = tempfile::tempdir().expect("a directory");
        World { patience_ms: PATIENCE_MS, ..World::inside(dir, bytes, threads, |_| {}) }
    }

    /// With certificates in the folder `pki`: a Unix socket, and TCP with TLS. `mutual`: clients need a certificate too.
    pub fn with_tls(bytes: u64, mutual: bool) -> World {
        let dir = tempfile::tempdir().expect("a directory");
        let pki = dir.path().join("pki");
        pki::write(&pki);
        World::inside(dir, bytes, 0, |options| {
            options.addresses.push("127.0.0.1:0".parse().expect("an address"));
            options.tls = Some(Certificates {
                certificate: pki.join("server-cert.pem"),
                key: pki.join("server-key.pem"),
                client_ca: mutual.then(|| pki.join("ca-cert.pem")),
            });
        })
    }

    fn inside(dir: tempfile::TempDir, bytes: u64, threads: usize, change: impl FnOnce(&mut Options)) -> World {
        let mut options = Options::new(fronts::exports(bytes, BLOCK as u32));
        options.addresses.push(Address::Unix(dir.path().join("nbd.sock")));
        change(&mut options);
        let memory = Memory {
            bytes: vec![0; bytes as usize],
            written: vec![false; bytes.div_ceil(BLOCK) as usize],
            broken: None,
            flushes: 0,
            fuas: 0,
            cached: Vec::new(),
            slow: false,
            slab_bytes: None,
        };
        World {
            front: Fronts::new(options, threads),
            memory,
            pages: None,
            leased: 0,
            late_turns: 0,
            room: Room::whole(1024, 256 << 20),
            hold: false,
            hold_caching: false,
            hold_reads: false,
            hold_changes: false,
            held: Vec::new(),
            batch_max: 0,
            lacks_watches: false,
            polled: BTreeMap::new(),
            patience_ms: 0,
            asleep: None,
            now: Instant::ZERO,
            dir,
        }
    }

    /// From now on what is in memory is sent from pages of these contents.
    pub fn with_pages(&mut self) {
        let (pages, mut keeper) = Pages::new(Config::of_memory(2 * self.memory.bytes.len(), 1)).expect("memory");
        for (block, contents) in self.memory.bytes.chunks(BLOCK as usize).enumerate() {
            keeper.fill(tidegate_pages::Block(block as u64), contents, Atoms(0xff)).expect("a page");
        }
        self.pages = Some((PageLessor::new(&pages).expect("there is one"), keeper));
    }

    pub fn uri(&self) -> String {
        self.front.uris().remove(0)
    }

    /// Sockets that are waited for, listeners included.
    pub fn watched(&self) -> usize {
        self.polled.len()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// One turn, in the order of the real loop: answers, resume, send, interests; then it sleeps until a socket or `also` is
    /// ready, unless there is something to do at once. Once asleep it does nothing until something wakes it: a front that
    /// forgot to ask for that hangs here as it would there. True: `also` is ready.
    pub fn turn(&mut self, also: Option<RawFd>, timeout_ms: i32) -> bool {
        let (mut events, mut room) = (Vec::new(), self.room);
        let is_due = self.front.deadline().is_some_and(|deadline| deadline <= self.now);
        let answers = !self.hold && self.held.iter().any(|request| !self.keeps(request));
        let woken = self.asleep != Some(room) || is_due || answers;
        if woken {
            if !self.hold {
                self.release();
                room = self.room;
            }
            self.front.resume(&mut room, &mut events);
            self.front.send();
            if let Some((lessor, _)) = &mut self.pages {
                self.late_turns += usize::from(lessor.lease(&[]).is_none());
                lessor.end();
            }
            self.watch();
        }
        // An answer may be all that somebody waits for here, and nothing comes of it in the front.
        let timeout_ms = if events.is_empty() && !answers { timeout_ms } else { 0 };
        let (ready, also_ready) = self.poll(also, timeout_ms, &mut room, &mut events);
        self.asleep = (ready == 0 && events.is_empty()).then_some(room);
        self.batch_max = self.batch_max.max(events.len());
        for event in events {
            let Event::Arrived(request) = event else { panic!("a front only delivers requests: {event:?}") };
            self.room.take(request.kind(), cost(&request));
            self.held.push(request);
        }
        assert_eq!(room, self.room, "the front subtracts what it takes");
        also_ready
    }

    fn watch(&mut self) {
        let mut changes = Vec::new();
        self.front.interests(&mut changes);
        for interest in changes {
            match (interest.readable, interest.writable) {
                (false, false) => {
                    // SAFETY: it only asks whether there is such a descriptor.
                    let is_open = unsafe { libc::fcntl(interest.fd, libc::F_GETFD) } != -1;
                    assert!(is_open, "epoll goes on watching a copy of a descriptor that is withdrawn when it is closed");
                    self.polled.remove(&interest.token)
                }
                _ if self.lacks_watches && !self.polled.contains_key(&interest.token) => {
                    self.front.unwatched(interest.token);
                    None
                }
                _ => self.polled.insert(interest.token, interest),
            };
        }
    }

    /// How many of our sockets are ready, and whether `also` is.
    fn poll(&mut self, also: Option<RawFd>, timeout_ms: i32, room: &mut Room, events: &mut Vec<Event<Run>>) -> (usize, bool) {
        let watch = |fd: RawFd, readable: bool, writable: bool| libc::pollfd {
            fd,
            events: if readable { libc::POLLIN } else { 0 } | if writable { libc::POLLOUT } else { 0 },
            revents: 0,
        };
        let tokens: Vec<u64> = self.polled.keys().copied().collect();
        let mut fds: Vec<libc::pollfd> = self.polled.values().map(|now| watch(now.fd, now.readable, now.writable)).collect();
        fds.extend(also.map(|fd| watch(fd, true, false)));
        // SAFETY: `fds` is a valid array of the length that is passed.
        let ready = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout_ms) };
        assert!(ready >= 0, "{}", std::io::Error::last_os_error());
        assert!(ready > 0 || timeout_ms < PATIENCE_MS, "nothing happened for a long time");
        let also_ready = also.is_some() && fds.last().is_some_and(|fd| fd.revents != 0);
        for (token, fd) in tokens.iter().zip(&fds).filter(|(_, fd)| fd.revents != 0) {
            let failed = fd.revents & (libc::POLLERR | libc::POLLHUP) != 0;
            self.front.ready(*token, failed || fd.revents & libc::POLLIN != 0, failed || fd.revents & libc::POLLOUT != 0, room, events);
        }
        (ready as usize - usize::from(also_ready), also_ready)
    }

    /// Not answered, whatever else is.
    fn keeps(&self, request: &Request<Run>) -> bool {
        let is_held = match request.kind() {
            Kind::Read => self.hold_reads,
            Kind::Change => self.hold_changes,
            Kind::Flush => false,
        };
        is_held || (self.hold_caching && matches!(request.command, Command::Cache))
    }

    /// Does everything that is held, in its order, and answers it, the last first.
    pub fn release(&mut self) {
        let held = std::mem::take(&mut self.held);
        let (kept, answered): (Vec<_>, Vec<_>) = held.into_iter().partition(|request| self.keeps(request));
        self.held = kept;
        let spans: Vec<Span> =
            answered.iter().filter(|request| matches!(request.command, Command::Read)).map(|request| request.span).collect();
        let leased = self.pages.as_mut().filter(|_| !spans.is_empty()).and_then(|(lessor, _)| lessor.lease(&spans));
        let mut leased = leased.into_iter().flatten();
        let mut replies = Vec::new();
        for request in answered {
            self.room.requests += 1;
            self.room.bytes += cost(&request);
            self.room.other_requests += usize::from(request.kind() != Kind::Flush);
            if request.reads() {
                self.room.read_requests += 1;
                self.room.read_bytes += cost(&request);
            }
            let page = if matches!(request.command, Command::Read) { leased.next().flatten() } else { None };
            self.leased += usize::from(page.is_some());
            let result = page.map_or_else(|| self.memory.handle(request.span, request.command), |pages| Ok(Outcome::Data(pages)));
            replies.push(Reply { id: request.id, result });
        }
        replies.into_iter().rev().for_each(|reply| self.front.reply(reply));
    }

    /// Turns until nothing more happens by itself. Front threads have then done all that they were sent: after a turn in which nothing came they
    /// sleep as they slept before it, and whoever is sent something wakes at once.
    pub fn settle(&mut self) {
        let (mut turns, mut before, begin) = (0, None, std::time::Instant::now());
        loop {
            turns += 1;
            self.turn(None, 0);
            let sleeps = (self.front.has_threads() && self.asleep == Some(self.room)).then(front_threads).flatten();
            if turns >= SETTLING_TURNS && (!self.front.has_threads() || (sleeps.is_some() && sleeps == before)) {
                return;
            }
            assert!(begin.elapsed().as_millis() < PATIENCE_MS as u128, "something went on happening for a long time");
            before = sleeps;
        }
    }

    /// What the front threads were sent they have read, while nobody here takes what they ask for.
    pub fn let_threads_sleep(&self) {
        let begin = std::time::Instant::now();
        while front_threads().is_none() {
            assert!(begin.elapsed().as_millis() < PATIENCE_MS as u128, "a front thread did not sleep for a long time");
            std::thread::yield_now();
        }
    }

    /// Turns until it is so.
    pub fn until(&mut self, is_so: impl Fn(&World) -> bool) {
        while !is_so(self) {
            self.turn(None, PATIENCE_MS);
        }
    }

    /// Something happened outside of the front.
    pub fn wake(&mut self) {
        self.asleep = None;
    }

    /// So many seconds pass without a byte.
    pub fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now = self.now + Duration::from_secs(1);
            if self.front.deadline().is_some_and(|deadline| deadline <= self.now) {
                self.front.tick(self.now);
            }
            self.front.send();
        }
        self.wake();
        self.settle();
    }

    /// Runs an outside program while serving it; `package` is what to install where it is missing.
    pub fn run(&mut self, package: &str, program: &str, arguments: &[&str]) -> Output {
        let (bell, ring) = UnixStream::pair().expect("a pair of sockets");
        let mut process = Process::new(program);
        process.args(arguments).current_dir(self.dir.path());
        let thread = std::thread::spawn(move || {
            let output = process.output();
            drop(ring);
            output
        });
        while !self.turn(Some(bell.as_raw_fd()), PATIENCE_MS) {}
        let output = thread.join().expect("the thread only waits");
        output.unwrap_or_else(|error| panic!("{program}: {error}; install the package {package}"))
    }

    /// As `succeed`, for qemu-io: it counts what fails as output, not always as failure, and says so on standard error.
    pub fn qemu_io(&mut self, arguments: &[&str]) {
        let output = self.run("qemu-utils", "qemu-io", arguments);
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && !said.contains("ailed") && !said.contains("rror"), "{arguments:?}: {}\n{said}", output.status);
    }

    /// As `run`; the program must succeed. Returns what it printed.
    pub fn succeed(&mut self, package: &str, program: &str, arguments: &[&str]) -> String {
        let output = self.run(package, program, arguments);
        let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{program} {arguments:?}: {}\n{out}{error}", output.status);
        out.into_owned()
    }
}

/// How often each front thread of this process has gone to sleep, by its id, if all of them sleep.
fn front_threads() -> Option<BTreeMap<u64, u64>> {
    let mut sleeps = BTreeMap::new();
    for thread in std::fs::read_dir("/proc/self/task").expect("Linux") {
        let thread = thread.expect("a thread").path();
        // One that ends meanwhile is not there any more.
        let Ok(status) = std::fs::read_to_string(thread.join("status")) else { continue };
        let of = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).expect("a line of proc(5)").trim();
        if !of("Name:").starts_with("front ") {
            continue;
        }
        if !of("State:").starts_with('S') {
            return None;
        }
        let id = |text: &str| text.parse().expect("a number");
        sleeps.insert(id(of("Pid:")), id(of("voluntary_ctxt_switches:")));
    }
    Some(sleeps)
}

fn cost(request: &Request<Run>) -> u64 {
    match request.command {
        Command::Read | Command::Cache | Command::Write { .. } => request.span.bytes(),
        Command::Trim { .. } | Command::Zero { .. } | Command::Flush | Command::Status { .. } => 0,
    }
}

impl Memory {
    fn handle(&mut self, span: Span, command: Command<Run>) -> Result<Outcome<Run>, RequestError> {
        let bytes = span.offset() as usize..(span.end() * ATOM_BYTES) as usize;
        if self.broken.is_some_and(|broken| broken.overlaps(span)) {
            return Err(RequestError::Io);
        }
        match command {
            Command::Read => return Ok(Outcome::Data(self.read(bytes).into())),
            Command::Status { tiers, .. } => {
                let tiers = if tiers { self.tiers(span) } else { vec![] };
                return Ok(Outcome::Status { allocation: self.status(span), tiers });
            }
            Command::Cache => self.cached.push(span),
            Command::Zero { fast: true, .. } if self.slow => return Err(RequestError::NotFast),
            Command::Flush => self.flushes += 1,
            Command::Write { data, fua } => {
                self.bytes[bytes].copy_from_slice(data.as_slice());
                self.written[(span.offset() / BLOCK) as usize..(span.end() * ATOM_BYTES).div_ceil(BLOCK) as usize].fill(true);
                self.fuas += usize::from(fua);
            }
            Command::Trim { fua } | Command::Zero { fua, .. } => {
                self.bytes[bytes].fill(0);
                let whole = span.offset().div_ceil(BLOCK)..span.end() * ATOM_BYTES / BLOCK;
                (whole.start..whole.end).for_each(|block| self.written[block as usize] = false);
                self.fuas += usize::from(fua);
            }
        }
        Ok(Outcome::Done)
    }

    /// In two runs where it can be, as an engine does that finds a read in several places.
    fn read(&self, bytes: std::ops::Range<usize>) -> Vec<Run> {
        if let Some(slab_bytes) = self.slab_bytes {
            let mut slab = RunMut::new(slab_bytes / ATOM_BYTES);
            slab.as_mut_slice().fill(0xee);
            slab.as_mut_slice()[..bytes.len()].copy_from_slice(&self.bytes[bytes.clone()]);
            return vec![slab.freeze().slice(0, bytes.len() as u64 / ATOM_BYTES)];
        }
        let middle = bytes.start + (bytes.len() / 2).next_multiple_of(ATOM_BYTES as usize);
        let parts = [bytes.start..middle, middle..bytes.end];
        let run = |part: std::ops::Range<usize>| {
            let mut run = RunMut::new((part.len() as u64) / ATOM_BYTES);
            run.as_mut_slice().copy_from_slice(&self.bytes[part]);
            run.freeze()
        };
        parts.into_iter().filter(|part| !part.is_empty()).map(run).collect()
    }

    /// What was written is in memory, and what was asked to be cached is clean.
    fn tiers(&self, span: Span) -> Vec<Stretch> {
        let tier = |atom: u64| match self.written[(atom * ATOM_BYTES / BLOCK) as usize] {
            true => Tier::Memory,
            false if self.cached.iter().any(|cached| cached.contains(Span::new(atom, 1))) => Tier::Clean,
            false => Tier::Origin,
        };
        (span.start..span.end()).map(|atom| Stretch { atoms: 1, tier: tier(atom) }).collect()
    }

    fn status(&self, span: Span) -> Vec<Extent> {
        let atom = |atom: u64| {
            let hole = !self.written[(atom * ATOM_BYTES / BLOCK) as usize];
            Extent { atoms: 1, hole, zero: hole }
        };
        (span.start..span.end()).map(atom).collect()
    }
}

/// A client of raw bytes in the test's thread: whenever it would wait, the world turns.
pub struct Raw {
    pub stream: UnixStream,
}

impl Raw {
    pub fn connect(world: &mut World) -> Raw {
        let Address::Unix(path) = world.front.addresses().remove(0) else { panic!("a Unix socket comes first") };
        let stream = UnixStream::connect(path).expect("the front listens");
        stream.set_nonblocking(true).expect("a socket");
        Raw { stream }
    }

    /// Connects and shakes hands for simple replies.
    pub fn ready(world: &mut World) -> Raw {
        let mut raw = Raw::connect(world);
        raw.send(world, &3u32.to_be_bytes());
        raw.send(world, &option(1, b""));
        raw.receive(world, 18 + 10);
        raw
    }

    pub fn send(&mut self, world: &mut World, mut bytes: &[u8]) {
        let mut idle = 0;
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(count) => (bytes, idle) = (&bytes[count..], 0),
                Err(error) => {
                    Raw::patient(&error, idle);
                    world.turn(None, 0);
                    idle += 1;
                }
            }
        }
    }

    /// Everything is in one thread: what does not happen in a few turns never does.
    fn patient(error: &std::io::Error, idle: usize) {
        assert!(error.kind() == ErrorKind::WouldBlock, "{error}");
        assert!(idle < IDLE_TURNS_MAX, "nothing happens any more");
    }

    /// Sends what the socket takes while the world turns and then settles; returns how much that was.
    pub fn push(&mut self, world: &mut World, bytes: &[u8]) -> usize {
        let mut at = 0;
        loop {
            match self.stream.write(&bytes[at..]) {
                Ok(0) => return at,
                Ok(count) => at += count,
                Err(_) => {
                    world.settle();
                    match self.stream.write(&bytes[at..]) {
                        Ok(count) if count > 0 => at += count,
                        _ => return at,
                    }
                }
            }
        }
    }

    pub fn receive(&mut self, world: &mut World, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        let (mut at, mut idle) = (0, 0);
        while at < count {
            match self.stream.read(&mut bytes[at..]) {
                Ok(0) => panic!("the connection ended after {at} of {count} bytes"),
                Ok(got) => (at, idle) = (at + got, 0),
                Err(error) => {
                    Raw::patient(&error, idle);
                    world.turn(Some(self.stream.as_raw_fd()), world.patience_ms);
                    idle += 1;
                }
            }
        }
        bytes
    }

    /// What is there now, without a turn.
    pub fn now(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let _ = self.stream.read_to_end(&mut bytes);
        bytes
    }

    /// Has the server closed, with nothing unread before that?
    pub fn is_closed(&mut self) -> bool {
        match self.stream.read(&mut [0]) {
            Ok(0) => true,
            Ok(_) => panic!("there was more to read"),
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }
}

pub fn option(option: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT", &option.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
}

/// The header of a request.
pub fn request(command: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let head = [&0x2560_9513u32.to_be_bytes()[..], &0u16.to_be_bytes(), &command.to_be_bytes()].concat();
    [&head[..], &cookie.to_be_bytes(), &offset.to_be_bytes(), &length.to_be_bytes()].concat()
}

pub fn write(cookie: u64, offset: u64, payload: &[u8]) -> Vec<u8> {
    [request(1, cookie, offset, payload.len() as u32), payload.to_vec()].concat()
}

/// A simple reply.
pub fn simple(error: u32, cookie: u64) -> Vec<u8> {
    [&0x6744_6698u32.to_be_bytes()[..], &error.to_be_bytes(), &cookie.to_be_bytes()].concat()
}

//! The control socket: one JSON object a line in, one a line out, over a Unix socket that only its owner may open.
//! Asked with `{"verb": NAME}`, where NAME is one of [`NAMES`], and `"volume": NAME` where one of several is meant; `mode` takes `"mode": MODE`
//! besides, `detach` takes `"flush": true`. Every answer is an object, and a refusal has the key `error`.
//!
//! A port of the lobby's loop: it never waits, and what a hostile client can make it hold is bounded
//! ([`CLIENTS_MAX`] times [`LINE_BYTES_MAX`] in and [`ANSWERS_MAX`] answers out).

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_engine::op::Class;
use tidegate_engine::probe::{DestageReason, GateState, Health, Histogram, Phase, QueueTimes, Snapshot, Waits};
use tidegate_engine::request::Room;
use tidegate_engine::time::{self as engine_time, Instant};
use tidegate_engine::what_if::{Forecast, Forecasts, Point};
use tidegate_engine::{Event, Mode};

use crate::Failure;
use crate::back::run::Run;
use crate::front::nbd::address::UNIX_PATH_BYTES_MAX;
use crate::port::{Interest, Port};
use crate::socket_file::SocketFile;

/// After this a listener that rests tries again.
const TICK: engine_time::Duration = engine_time::Duration::from_secs(1);
/// The longest line a client may send, in bytes.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// Clients at once; for one more, one that waits for no answer is closed, or else the new one.
pub const CLIENTS_MAX: usize = 16;
/// Commands of one client not answered yet; one more ends the conversation.
pub const ANSWERS_MAX: usize = 16;
/// Commands of all clients not answered yet.
pub const INQUIRIES_MAX: usize = CLIENTS_MAX * ANSWERS_MAX;
/// Exit code when no daemon answers, or it refuses.
pub const NO_ANSWER: u8 = 1;
/// How long [`ask`] waits for its answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest answer that [`ask`] takes, in bytes.
const ANSWER_BYTES_MAX: u64 = 16 << 20;
const LISTENER: u64 = 0;

/// What can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// The state of the moment: [`status_json`].
    Status,
    /// What memory and cache would miss if they were smaller, or larger: [`curve_json`].
    Curve,
    /// Destage everything that is dirty, now.
    Drain,
    CancelDrain,
    /// Make everything that was acknowledged durable, and end; other volumes go on.
    Stop,
    /// Promise this from now on.
    Mode(Mode),
    /// Send everything home, say on the cache that it was taken from its origin, and end. Without `flush` only where nothing is dirty.
    Detach {
        flush: bool,
    },
    CancelDetach,
}

/// The verbs as they are spelled on the socket.
pub const NAMES: [&str; 8] = ["status", "curve", "drain", "cancel-drain", "stop", "mode", "detach", "cancel-detach"];

impl Verb {
    /// As it is asked on the socket.
    fn question(self) -> Value {
        match self {
            Verb::Status => json!({ "verb": "status" }),
            Verb::Curve => json!({ "verb": "curve" }),
            Verb::Drain => json!({ "verb": "drain" }),
            Verb::CancelDrain => json!({ "verb": "cancel-drain" }),
            Verb::Stop => json!({ "verb": "stop" }),
            Verb::Mode(mode) => json!({ "verb": "mode", "mode": mode.name() }),
            Verb::Detach { flush } => json!({ "verb": "detach", "flush": flush }),
            Verb::CancelDetach => json!({ "verb": "cancel-detach" }),
        }
    }
}

/// One line of a client, understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    pub verb: Verb,
    /// The volume that is meant; nothing means every one.
    pub volume: Option<String>,
}

/// Which client asked, and which of its lines it was: goes back with the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    token: u64,
    line: u64,
}

#[cfg(test)]
impl Asker {
    /// One of many.
    pub fn test(token: u64) -> Asker {
        Asker { token, line: 0 }
    }
}

/// The listening socket and its clients.
pub struct ControlPort {
    listener: UnixListener,
    _file: SocketFile,
    /// There was no descriptor for one more client: none is heard until the next tick.
    rests: bool,
    last_tick: Instant,
    clients: BTreeMap<u64, Client>,
    next_token: u64,
    commands: Vec<(Asker, Command)>,
    interests: Vec<Interest>,
    /// Gone, but the loop has not been told yet: their descriptors must not be used again before it knows.
    gone: Vec<UnixStream>,
}

struct Client {
    stream: UnixStream,
    /// Received and not yet a whole line.
    received: Vec<u8>,
    /// Answers in the order of the lines, from line number `first` on; `None` is still to come.
    answers: VecDeque<Option<String>>,
    first: u64,
    /// Answered and not yet sent.
    unsent: Vec<u8>,
    /// Nothing more is read; closed as soon as everything is answered and sent.
    ended: bool,
    /// What the loop was told last: readable, writable.
    listening: (bool, bool),
}

impl ControlPort {
    /// Listens on `path`, with mode 0600 from its first moment. A socket left there by a killed process is taken over; one that
    /// somebody answers, or another kind of file, is an error of one line.
    pub fn bind(path: &Path) -> Result<Self, String> {
        let listener = listen(path)?;
        let of_path = |error| format!("{}: {error}", path.display());
        let _file = SocketFile::new(path).map_err(of_path)?;
        listener.set_nonblocking(true).map_err(of_path)?;
        let interest = Interest { token: LISTENER, fd: listener.as_raw_fd(), readable: true, writable: false };
        Ok(ControlPort {
            listener,
            _file,
            rests: false,
            last_tick: Instant::ZERO,
            clients: BTreeMap::new(),
            next_token: LISTENER + 1,
            commands: Vec::new(),
            interests: vec![interest],
            gone: Vec::new(),
        })
    }

    /// What was asked since the last call, in order. Each is to be answered.
    pub fn commands(&mut self) -> Vec<(Asker, Command)> {
        std::mem::take(&mut self.commands)
    }

    /// Queues an answer; [`Port::send`] sends it. An asker that has gone is ignored.
    pub fn answer(&mut self, asker: Asker, answer: &Value) {
        if let Some(client) = self.clients.get_mut(&asker.token) {
            let place = asker.line - client.first;
            client.answers[place as usize] = Some(answer.to_string());
        }
    }

    fn accept(&mut self) {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => continue,
                // Out of descriptors or memory: the client stays in the kernel's queue for a while.
                Err(_) => return self.listen(false),
            };
            if stream.set_nonblocking(true).is_err() || (self.clients.len() >= CLIENTS_MAX && !self.make_place()) {
                continue; // dropped: closed
            }
            let token = self.next_token;
            self.next_token += 1;
            self.interests.push(Interest { token, fd: stream.as_raw_fd(), readable: true, writable: false });
            self.clients.insert(token, Client::new(stream));
        }
    }

    /// Whether new clients are heard.
    fn listen(&mut self, listens: bool) {
        self.rests = !listens;
        self.interests.push(Interest { token: LISTENER, fd: self.listener.as_raw_fd(), readable: listens, writable: false });
    }

    /// Takes what a client has sent.
    fn hear(&mut self, token: u64) {
        let client = self.clients.get_mut(&token).expect("of a client that is held");
        if client.receive() { self.take_lines(token) } else { self.close(token) }
    }

    /// Closes one that waits for no answer: one that has gone, or else the one that came first. False: everybody waits for one.
    fn make_place(&mut self) -> bool {
        let tokens: Vec<u64> = self.clients.keys().copied().collect();
        tokens.into_iter().for_each(|token| self.hear(token));
        let waits = |client: &Client| !client.answers.is_empty() || !client.unsent.is_empty();
        let others = self.clients.iter().filter(|(_, client)| !waits(client));
        let least = others.min_by_key(|(token, client)| (!client.ended, **token)).map(|(token, _)| *token);
        least.into_iter().for_each(|token| self.close(token));
        self.clients.len() < CLIENTS_MAX
    }

    fn close(&mut self, token: u64) {
        if let Some(client) = self.clients.remove(&token) {
            self.interests.push(Interest { token, fd: client.stream.as_raw_fd(), readable: false, writable: false });
            self.gone.push(client.stream);
        }
    }

    /// Takes the whole lines that a client has sent.
    fn take_lines(&mut self, token: u64) {
        let client = self.clients.get_mut(&token).expect("of a client that is held");
        while let Some(end) = client.received.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = client.received.drain(..=end).collect();
            let number = client.first + client.answers.len() as u64;
            if client.answers.len() == ANSWERS_MAX {
                return client.refuse_all(format!("more than {ANSWERS_MAX} commands at once"));
            }
            client.answers.push_back(match command(&line) {
                Ok(command) => {
                    self.commands.push((Asker { token, line: number }, command));
                    None
                }
                Err(error) => Some(json!({ "error": error }).to_string()),
            });
        }
        if client.received.len() >= LINE_BYTES_MAX {
            client.refuse_all(format!("a line of more than {LINE_BYTES_MAX} bytes"));
        }
    }
}

impl Port for ControlPort {
    fn interests(&mut self, out: &mut Vec<Interest>) {
        for (token, client) in &mut self.clients {
            // A client that does not read its answers is not read either.
            let wanted = (!client.ended && client.unsent.is_empty(), !client.unsent.is_empty());
            if wanted != client.listening {
                client.listening = wanted;
                let (readable, writable) = wanted;
                self.interests.push(Interest { token: *token, fd: client.stream.as_raw_fd(), readable, writable });
            }
        }
        out.append(&mut self.interests);
        self.gone.clear();
    }

    fn ready(&mut self, token: u64, readable: bool, writable: bool, _room: &mut Room, _events: &mut Vec<Event<Run>>) {
        if token == LISTENER {
            return self.accept();
        }
        let Some(client) = self.clients.get_mut(&token) else { return };
        if writable && !client.transmit() {
            self.close(token);
        } else if readable {
            self.hear(token);
        }
    }

    fn resume(&mut self, _room: &mut Room, _events: &mut Vec<Event<Run>>) {}

    fn send(&mut self) {
        let done = |client: &mut Client| !client.transmit() || (client.ended && client.answers.is_empty() && client.unsent.is_empty());
        let gone: Vec<u64> = self.clients.iter_mut().filter_map(|(token, client)| done(client).then_some(*token)).collect();
        gone.into_iter().for_each(|token| self.close(token));
    }

    fn deadline(&self) -> Option<Instant> {
        self.rests.then(|| self.last_tick + TICK)
    }

    fn tick(&mut self, now: Instant) {
        if self.deadline().is_some_and(|deadline| deadline <= now) {
            self.last_tick = now;
            self.listen(true);
        }
    }
}

impl Client {
    fn new(stream: UnixStream) -> Self {
        Client {
            stream,
            received: Vec::new(),
            answers: VecDeque::new(),
            first: 0,
            unsent: Vec::new(),
            ended: false,
            listening: (true, false),
        }
    }

    /// One last answer, behind those still to come; nothing more is read.
    fn refuse_all(&mut self, error: String) {
        self.answers.push_back(Some(json!({ "error": error }).to_string()));
        self.received.clear();
        self.ended = true;
    }

    /// Reads what has arrived, up to the limit of a line. False: the client has gone.
    fn receive(&mut self) -> bool {
        let mut piece = [0; 4096];
        while self.received.len() < LINE_BYTES_MAX && !self.ended {
            let wanted = piece.len().min(LINE_BYTES_MAX - self.received.len());
            match self.stream.read(&mut piece[..wanted]) {
                Ok(0) => self.ended = true, // it has said everything, and still gets its answers
                Ok(count) => self.received.extend_from_slice(&piece[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
        true
    }

    /// Sends what is queued, as far as the socket takes it. False: the client has gone.
    fn transmit(&mut self) -> bool {
        while let Some(Some(answer)) = self.answers.front() {
            self.unsent.extend_from_slice(answer.as_bytes());
            self.unsent.push(b'\n');
            self.answers.pop_front();
            self.first += 1;
        }
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
        true
    }
}

/// What a line asks for, and of whom.
fn command(line: &[u8]) -> Result<Command, String> {
    let asked: Value = serde_json::from_slice(line).map_err(|error| format!("not a JSON object: {error}"))?;
    let volume = match asked.get("volume") {
        None | Some(Value::Null) => None,
        Some(Value::String(name)) => Some(name.clone()),
        Some(_) => return Err("\"volume\" is no name".to_owned()),
    };
    Ok(Command { verb: verb(&asked)?, volume })
}

fn verb(asked: &Value) -> Result<Verb, String> {
    let known = NAMES.join(", ");
    let name = asked.get("verb").and_then(Value::as_str).ok_or(format!("no \"verb\" in it: one of {known}"))?;
    match name {
        "status" => Ok(Verb::Status),
        "curve" => Ok(Verb::Curve),
        "drain" => Ok(Verb::Drain),
        "cancel-drain" => Ok(Verb::CancelDrain),
        "stop" => Ok(Verb::Stop),
        "mode" => {
            let mode = asked.get("mode").and_then(Value::as_str).ok_or("no \"mode\" in it: write-back, write-through or read-only")?;
            Mode::from_str(&shortened(mode)).map(Verb::Mode)
        }
        "detach" => Ok(Verb::Detach { flush: asked.get("flush").and_then(Value::as_bool).unwrap_or(false) }),
        "cancel-detach" => Ok(Verb::CancelDetach),
        _ => Err(format!("unknown verb {:?}: one of {known}", shortened(name))),
    }
}

/// What a hostile client calls a word is not repeated at length.
fn shortened(word: &str) -> String {
    word.chars().take(40).collect()
}

/// Can this process have a control socket there?
///
/// # Errors
/// One line: the path is too long.
pub fn check(path: &Path) -> Result<(), String> {
    let bytes = path.as_os_str().len();
    let most = UNIX_PATH_BYTES_MAX - (draft(path).1.as_os_str().len() - bytes);
    if bytes <= most { Ok(()) } else { Err(format!("control socket: {} has {bytes} bytes; its path has at most {most}", path.display())) }
}

/// Where a socket is made before it gets its name: a folder beside that, and the socket in it.
fn draft(path: &Path) -> (PathBuf, PathBuf) {
    let mut folder = path.as_os_str().to_owned();
    folder.push(format!(".{}", std::process::id()));
    let folder = PathBuf::from(folder);
    let inner = folder.join("s");
    (folder, inner)
}

/// A socket at `path` that nobody else may open, not even for a moment: it is made in a folder of our own and moved.
fn listen(path: &Path) -> Result<UnixListener, String> {
    let failed = |error: io::Error| format!("control socket {}: {error}; name another place as `control`", path.display());
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(format!("{} exists and is no socket; move it away or choose another control socket", path.display()));
        }
        Ok(_) if UnixStream::connect(path).is_ok() => {
            return Err(format!("control socket {} is served by another tidegate; stop it first", path.display()));
        }
        _ => {} // nothing there, or left behind by a killed process: replaced below
    }
    let (folder, inner) = draft(path);
    std::fs::DirBuilder::new().mode(0o700).create(&folder).map_err(failed)?;
    let listener = UnixListener::bind(&inner)
        .and_then(|listener| {
            std::fs::set_permissions(&inner, std::fs::Permissions::from_mode(0o600))?;
            std::fs::rename(&inner, path)?;
            Ok(listener)
        })
        .map_err(failed);
    let _ = std::fs::remove_file(&inner);
    let _ = std::fs::remove_dir(&folder);
    listener
}

/// Asks the daemon behind `path` one thing, of one volume or of all.
///
/// # Errors
/// One line for the operator: nobody is there, one may not ask, or the daemon refuses.
pub fn ask(path: &Path, verb: Verb, volume: Option<&str>) -> Result<Value, Failure> {
    let place = path.display();
    let unanswered = |what: String| Failure::new(NO_ANSWER, what);
    let mut stream = UnixStream::connect(path).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => {
            Failure::new(Failure::PERMISSION, format!("{place}: {error}; ask as the user whose daemon it is"))
        }
        _ => unanswered(format!("no daemon answers at {place}: {error}; start it with `tidegate up`, or name its folder with --dir")),
    })?;
    let failed = |error: io::Error| unanswered(format!("{place}: the daemon does not answer: {error}"));
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
    let mut command = verb.question();
    command["volume"] = json!(volume);
    stream.write_all(format!("{command}\n").as_bytes()).map_err(failed)?;
    let mut line = String::new();
    BufReader::new(stream.take(ANSWER_BYTES_MAX)).read_line(&mut line).map_err(failed)?;
    if line.is_empty() {
        let what = format!("{place}: the daemon closed the connection (it is stopping, or has {CLIENTS_MAX} clients already)");
        return Err(unanswered(what));
    }
    let answer: Value = serde_json::from_str(&line).map_err(|error| unanswered(format!("{place}: not an answer: {error}")))?;
    match answer.get("error").and_then(Value::as_str) {
        Some(error) => Err(unanswered(format!("{place}: {error}"))),
        None => Ok(answer),
    }
}

/// A snapshot as a program reads it: sizes in bytes or blocks as their names say, times in seconds or nanoseconds likewise.
/// Counters are since the daemon's start.
pub fn status_json(snapshot: &Snapshot) -> Value {
    let (c, mode) = (&snapshot.counters, snapshot.mode);
    let ledger: serde_json::Map<String, Value> = snapshot.ledger.iter().map(|(part, bytes)| ((*part).to_owned(), json!(bytes))).collect();
    json!({
        "phase": phase_name(&snapshot.phase),
        "gate": gate_name(snapshot.gate),
        "destage_reason": reason_name(snapshot.gate),
        "sets": { "total": snapshot.sets, "free": snapshot.free_sets, "dirty": snapshot.dirty_sets },
        "live_blocks": snapshot.live_slots,
        "dirty_blocks": snapshot.dirty_slots,
        "zero_ranges": snapshot.zero_ranges,
        "lost_blocks": snapshot.lost_blocks,
        "oldest_dirty_seconds": snapshot.oldest_dirty.map(|age| age.as_secs_f64()),
        "requests_in_flight": snapshot.requests_in_flight,
        "cache_health": health_name(snapshot.health),
        "degraded_seconds": snapshot.degraded_since.map(|since| snapshot.now.since(since).as_secs_f64()),
        "scrub": {
            "sets_done": snapshot.scrub.sets_done, "passes": c.scrub_passes,
            "last_pass_seconds": snapshot.scrub.last_pass.map(|at| snapshot.now.since(at).as_secs_f64()),
            "blocks": c.scrubbed_blocks, "dropped_blocks": c.scrub_dropped_blocks, "damaged_blocks": c.scrub_damaged_blocks,
            "repaired_pages": c.scrub_repaired_pages,
        },
        "drain": snapshot.drain.map(|drain| json!({
            "blocks_at_start": drain.blocks_at_start, "blocks_left": drain.blocks_left,
            "seconds_left": snapshot.drain_left.map(|left| left.as_secs_f64()),
        })),
        "mode": { "wanted": mode.wanted.name(), "recorded": mode.recorded.name(), "switching": mode.is_switching },
        "detaching": snapshot.is_detaching,
        "memory": {
            "pages": snapshot.memory.pages, "pages_max": snapshot.memory.pages_max, "evicted": snapshot.memory.evicted,
            "lent": snapshot.memory.lent, "lent_moves": snapshot.memory.lent_moves,
            "policy": snapshot.memory.policy.name(), "follows": snapshot.memory.follows.map(|(kind, _)| kind.name()),
            "switches": snapshot.memory.follows.map(|(_, switches)| switches),
            "hit_blocks": c.memory_hit_blocks, "miss_blocks": c.memory_miss_blocks, "written_blocks": c.front_written_blocks,
        },
        "hits": { "blocks": c.hit_blocks, "read_ahead_blocks": c.ahead_blocks, "read_ahead_hit_blocks": c.ahead_hit_blocks },
        "misses": { "blocks": c.miss_blocks },
        "requests": {
            "reads": c.reads, "writes": c.writes, "flushes": c.flushes, "trims": c.trims,
            "read_bytes": c.read_atoms * 512, "written_bytes": c.written_atoms * 512,
        },
        "through": { "blocks": c.through_blocks, "split_blocks": c.split_blocks, "commit_blocks": c.commit_blocks, "straight_blocks": c.straight_blocks, "logged_blocks": c.through_logged_blocks, "origin_flushes": c.through_flushes },
        "fills": {
            "kept_blocks": c.filled_blocks, "void_blocks": c.fill_void_blocks, "no_room_blocks": c.fill_no_room_blocks,
            "budget_blocks": c.fill_budget_blocks, "sequential_blocks": c.fill_sequential_blocks,
            "first_touch_blocks": c.fill_first_touch_blocks, "sieved_blocks": c.fill_sieved_blocks,
            "around_reads": c.around_reads, "misses_to_keep": snapshot.admission.touches, "keeps_sequences": snapshot.admission.sequences,
        },
        "destage": {
            "blocks": c.destaged_blocks, "batches": c.destage_batches, "failures": c.destage_failures,
            "zeroed_blocks": c.zeroed_blocks, "lost_blocks": c.lost_blocks, "dropped_sets": c.dropped_sets,
            "spared_sets": c.spared_sets,
            "batch_most_ns": snapshot.batch_most.0, "quiet_read_p99_ns": snapshot.quiet_p99.map(|p99| p99.0),
        },
        "cleaning": { "sets": c.cleaned_sets, "moved_blocks": c.moved_blocks, "dropped_blocks": c.clean_dropped_blocks },
        "discards": { "sets": c.discarded_sets, "left_out_sets": c.undiscarded_sets, "failures": c.discard_failures },
        "waits": waits_json(&c.waits),
        "errors": {
            "corrupt_clean_slots": c.corrupt_clean_slots, "corrupt_dirty_slots": c.corrupt_dirty_slots,
            "cache_flush_failures": c.cache_flush_failures, "cache_write_failures": c.cache_write_failures, "late_ops": c.late_ops,
            "stalled_requests": c.stalled_requests, "refused_blocks": snapshot.refused_blocks,
            "unreadable_blocks": snapshot.unreadable_blocks,
        },
        "cache": {
            "flushes": c.cache_flushes, "checkpoints": c.checkpoints, "journal_pages": c.journal_pages,
            "data_bytes": c.cache_atoms.data() * 512, "metadata_bytes": c.cache_atoms.metadata() * 512,
        },
        "recovered": {
            "clean_slots": c.recovered_clean_slots, "dirty_slots": c.recovered_dirty_slots,
            "groups": c.recovered_groups, "cut_groups": c.recovered_cut_groups,
        },
        "latency_ns": {
            "read": latency_json(&snapshot.read_latency),
            "write": latency_json(&snapshot.write_latency),
            "flush": latency_json(&snapshot.flush_latency),
        },
        "queues": { "cache": queue_json(&snapshot.queues[0]), "origin": queue_json(&snapshot.queues[1]) },
        "ledger_bytes": ledger,
        "damage": snapshot.damage.iter().map(|damage| json!({ "fatal": damage.fatal, "what": damage.what })).collect::<Vec<_>>(),
    })
}

/// What memory and cache would miss of what is read if they had other sizes: miss ratios from 0 to 1. Each is, within the tier's `error`, that of a
/// size which is off by no more than the share `size_error`; while too little was read to tell, there is none. Beside them what memory has missed
/// since the start (of all blocks read), and the cache (of those that memory did not have).
pub fn curve_json(forecasts: &Forecasts, snapshot: &Snapshot) -> Value {
    let tier = |forecast: &Forecast| {
        let bytes = |blocks: u64| blocks * forecasts.block_bytes;
        let point = |point: &Point| {
            let Point { blocks, misses, size_error } = *point;
            json!({ "blocks": blocks, "bytes": bytes(blocks), "miss_ratio": misses, "size_error": size_error })
        };
        json!({
            "blocks": forecast.blocks, "bytes": bytes(forecast.blocks), "accesses": forecast.accesses, "keys": forecast.keys,
            "rate": forecast.rate, "error": forecast.error, "points": forecast.points.iter().map(point).collect::<Vec<_>>(),
        })
    };
    let c = &snapshot.counters;
    let (mut memory, mut cache) = (tier(&forecasts.memory), tier(&forecasts.cache));
    // Without memory every read is asked of the cache, and none counted there.
    let asked = (c.memory_hit_blocks + c.memory_miss_blocks).max(c.hit_blocks + c.miss_blocks);
    let missed = |misses: u64| if asked == 0 { Value::Null } else { json!(misses as f64 / asked as f64) };
    memory["missed"] = if forecasts.memory.blocks == 0 { Value::Null } else { missed(c.memory_miss_blocks) };
    cache["missed"] = missed(c.miss_blocks);
    json!({
        "phase": phase_name(&snapshot.phase), "memory": memory, "cache": cache,
        "front_blocks": forecasts.of_fronts, "unnoted_blocks": forecasts.unnoted,
    })
}

fn waits_json(waits: &Waits) -> Value {
    waits.iter().map(|(reason, count)| (reason.name().to_owned(), json!(count))).collect::<serde_json::Map<_, _>>().into()
}

/// By class: how long operations waited for the device, and how long it had them.
fn queue_json(times: &[(Class, QueueTimes)]) -> Value {
    let of_class = |(class, times): &(Class, QueueTimes)| {
        (class.name().to_owned(), json!({ "queue_ns": latency_json(&times.queue), "service_ns": latency_json(&times.service) }))
    };
    times.iter().map(of_class).collect::<serde_json::Map<_, _>>().into()
}

fn latency_json(latencies: &Histogram) -> Value {
    json!({
        "count": latencies.count(),
        "p50": latencies.percentile(0.50).0,
        "p99": latencies.percentile(0.99).0,
        "p999": latencies.percentile(0.999).0,
    })
}

fn phase_name(phase: &Phase) -> &'static str {
    match phase {
        Phase::Recovering => "recovering",
        Phase::Serving => "serving",
        Phase::Refused => "refused",
        Phase::Stopped => "stopped",
    }
}

fn health_name(health: Health) -> &'static str {
    match health {
        Health::Whole => "whole",
        Health::Fencing => "fencing",
        Health::Unfenced => "unfenced",
        Health::Degraded => "degraded",
    }
}

fn gate_name(gate: GateState) -> &'static str {
    match gate {
        GateState::Normal => "normal",
        GateState::Wait => "wait",
        GateState::Destage(_) => "destage",
    }
}

fn reason_name(gate: GateState) -> Option<&'static str> {
    match gate {
        GateState::Normal | GateState::Wait => None,
        GateState::Destage(DestageReason::Idle) => Some("idle"),
        GateState::Destage(DestageReason::HighMark) => Some("high-mark"),
        GateState::Destage(DestageReason::Age) => Some("age"),
        GateState::Destage(DestageReason::NoFreeSet) => Some("no-free-set"),
        GateState::Destage(DestageReason::Drain) => Some("drain"),
        GateState::Destage(DestageReason::Mode) => Some("mode"),
        GateState::Destage(DestageReason::BelowFloor) => Some("below-floor"),
        GateState::Destage(DestageReason::Sweep) => Some("sweep"),
    }
}

#[cfg(test)]
mod tests;

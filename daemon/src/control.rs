//! The control socket: one JSON object a line in, one a line out, over a Unix socket that only its owner may open.
//! Asked with `{"verb": NAME}`, where NAME is one of [`NAMES`], and `"volume": NAME` where one of several is meant; `mode` takes `"mode": MODE`
//! besides, `detach` takes `"flush": true`. Every answer is an object, and a refusal has the key `error`.
//!
//! A port of the lobby's loop: it never waits, and what a hostile client can make it hold is bounded
//! ([`CLIENTS_MAX`] times [`LINE_BYTES_MAX`] in and [`ANSWERS_MAX`] answers out).

mod status;

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_engine::request::Room;
use tidegate_engine::time::{self as engine_time, Instant};
use tidegate_engine::{Event, Mode};

pub use status::{curve_json, status_json};

use crate::Failure;
use crate::back::poll::Poll;
use crate::back::run::Run;
use crate::front::nbd::address::UNIX_PATH_BYTES_MAX;
use crate::port::{Interest, Port};
use crate::socket_file::SocketFile;

/// After this a listener that rests tries again.
const TICK: engine_time::Duration = engine_time::Duration::from_secs(1);
/// The longest line a client may send, in bytes.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// Clients at once; for one more, those that have gone are closed, or one that waits for no answer, or else the new one.
pub const CLIENTS_MAX: usize = 16;
/// Commands of one client not answered yet; one more ends the conversation.
pub const ANSWERS_MAX: usize = 16;
/// Commands not answered yet of one volume, of all clients and of those that have gone.
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
    /// It changes what a volume promises, or ends that: never of several because nobody has said of which.
    pub fn is_of_one(self) -> bool {
        matches!(self, Verb::Mode(_) | Verb::Detach { .. } | Verb::CancelDetach)
    }

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
    /// The volume that is meant; nothing means every one, or the only one ([`Verb::is_of_one`]).
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
    /// One that is being sent: what is left of it.
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

    /// The kernel has no memory to watch what this token stands for: a client is hung up, the listener rests for a while.
    pub fn unwatched(&mut self, token: u64) {
        if token == LISTENER { self.rests = true } else { self.close(token) }
    }

    /// Takes what a client has sent.
    fn hear(&mut self, token: u64) {
        let client = self.clients.get_mut(&token).expect("of a client that is held");
        if client.receive() { self.take_lines(token) } else { self.close(token) }
    }

    /// Closes those that hear no answer any more, or else one that waits for none: one that has said everything, or else the one that came
    /// first. False: everybody waits for one.
    fn make_place(&mut self) -> bool {
        // A client that does not read its answers is not read here either.
        let tokens: Vec<u64> = self.clients.iter().filter(|(_, client)| client.unsent.is_empty()).map(|(token, _)| *token).collect();
        tokens.into_iter().for_each(|token| self.hear(token));
        // A volume that answers nothing must not fill the places with those who have given up.
        self.hung_up().unwrap_or_default().into_iter().for_each(|token| self.close(token));
        if self.clients.len() < CLIENTS_MAX {
            return true;
        }
        let waits = |client: &Client| !client.answers.is_empty() || !client.unsent.is_empty();
        let others = self.clients.iter().filter(|(_, client)| !waits(client));
        let least = others.min_by_key(|(token, client)| (!client.ended, **token)).map(|(token, _)| *token);
        least.into_iter().for_each(|token| self.close(token));
        self.clients.len() < CLIENTS_MAX
    }

    /// Those that have closed both ways: they have said everything, and hear nothing.
    fn hung_up(&self) -> io::Result<Vec<u64>> {
        let mut poll = Poll::new()?;
        for (token, client) in &self.clients {
            poll.watch(0, *token, client.stream.as_raw_fd(), true, false)?;
        }
        let mut ready = Vec::new();
        poll.wait(Instant::ZERO, Some(Instant::ZERO), &mut ready)?;
        // Nobody has asked whether they can be written to: that is told of those that are broken alone.
        Ok(ready.into_iter().filter(|ready| ready.writable).map(|ready| ready.token).collect())
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

    /// Sends what is queued, as far as the socket takes it: until then answers stay where they are counted. False: the client has gone.
    fn transmit(&mut self) -> bool {
        loop {
            if self.unsent.is_empty() {
                let Some(answer) = self.answers.front_mut().and_then(Option::take) else { return true };
                self.answers.pop_front();
                self.first += 1;
                self.unsent = answer.into_bytes();
                self.unsent.push(b'\n');
            }
            match self.stream.write(&self.unsent) {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
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
    let clear = || {
        let _ = std::fs::remove_file(&inner);
        let _ = std::fs::remove_dir(&folder);
    };
    // A killed process of the same number has left it: in a container that is every one.
    clear();
    std::fs::DirBuilder::new().mode(0o700).create(&folder).map_err(failed)?;
    let listener = UnixListener::bind(&inner)
        .and_then(|listener| {
            std::fs::set_permissions(&inner, std::fs::Permissions::from_mode(0o600))?;
            std::fs::rename(&inner, path)?;
            Ok(listener)
        })
        .map_err(failed);
    clear();
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

#[cfg(test)]
mod tests;

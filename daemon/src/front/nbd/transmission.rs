//! The transmission phase of one connection: bytes in, requests and replies out; no socket and no clock.
//!
//! ```text
//! Header ─┬─ a request without payload ───────────────▶ Request
//!         ├─ a small payload, all of it there ─────────▶ Request        one copy into a run
//!         ├─ a large payload ──▶ Payload ── filled ────▶ Request        received into the run itself
//!         ├─ a refused command ─▶ Drain its payload ───▶ error reply
//!         └─ DISC ▶ Finish      wrong magic ▶ Close
//! ```
//!
//! A READ is always answered with one chunk of data, so DF asks for nothing more.

use tidegate_engine::block::{ATOM_BYTES, Span};
use tidegate_engine::request::{Command, Extent, Outcome, RequestError};

use super::export::{Export, PAYLOAD_BYTES_MAX, Session};
use super::output::Output;
use super::protocol::{CHUNK_MAGIC, REQUEST_MAGIC, SIMPLE_REPLY_MAGIC, allocation, chunk, command, command_flag as flag, error};
use crate::back::run::{Run, RunMut};

pub const HEADER_BYTES: usize = 28;
/// Payloads from this size on are received directly into their run.
pub const DIRECT_BYTES: usize = 64 << 10;
/// A payload beyond the limit is read and dropped up to here; a longer one ends the connection.
const DRAIN_BYTES_MAX: u32 = 64 << 20;
/// Extents in one reply to BLOCK_STATUS (S10). The client asks again for the rest.
const EXTENTS_MAX: usize = 1 << 20;

/// What a request needs to be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    pub cookie: u64,
    /// Bytes.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
    pub shape: Shape,
}

/// How its reply looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Success or an error, nothing else; a WRITE holds memory until then.
    Plain {
        write: bool,
    },
    Read,
    Status {
        /// REQ_ONE: a single extent.
        one: bool,
    },
}

impl Pending {
    /// Payload bytes that the request keeps in memory, as the engine's `Room` counts them.
    pub fn bytes(&self) -> u64 {
        match self.shape {
            Shape::Read | Shape::Plain { write: true } => u64::from(self.length),
            Shape::Status { .. } | Shape::Plain { write: false } => 0,
        }
    }
}

/// Payload bytes that may still be taken.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    /// By this connection.
    pub connection: u64,
    /// By the engine.
    pub room: u64,
}

/// What one step came to.
#[derive(Debug)]
pub enum Step {
    /// Needs more bytes.
    Wait,
    /// Go on.
    Next,
    /// More than the allowance: go on when that has grown.
    Full,
    /// For the engine.
    Request(Pending, Span, Command<Run>),
    /// The client said goodbye: answer what is outstanding, then close.
    Finish,
    /// Not this protocol, or not bearable: close at once.
    Close,
}

/// A command that is answered with an error, and a text for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal(pub u32, pub &'static str);

#[derive(Debug)]
pub struct Transmission {
    session: Session,
    state: State,
}

#[derive(Debug)]
enum State {
    Header,
    Payload(Payload),
    /// Dropping the payload of a refused WRITE.
    Drain {
        left: u32,
        pending: Pending,
        refusal: Refusal,
    },
}

/// A WRITE whose payload is being received.
#[derive(Debug)]
struct Payload {
    pending: Pending,
    span: Span,
    fua: bool,
    run: RunMut,
    /// Bytes received.
    filled: usize,
}

struct Header {
    flags: u16,
    command: u16,
    cookie: u64,
    offset: u64,
    length: u32,
}

/// What a valid command asks of the engine.
enum Task {
    /// Zero bytes: there is nothing to do.
    Nothing,
    Read,
    Write {
        fua: bool,
    },
    Trim {
        fua: bool,
    },
    Zero {
        no_hole: bool,
        fua: bool,
    },
    Flush,
    Status,
}

impl Transmission {
    pub fn new(session: Session) -> Transmission {
        Transmission { session, state: State::Header }
    }

    /// Can [`Transmission::step`] go on without more input?
    pub fn is_filled(&self) -> bool {
        matches!(&self.state, State::Payload(payload) if payload.filled == payload.run.as_slice().len())
    }

    /// Is a request partly here?
    pub fn is_inside(&self) -> bool {
        !matches!(self.state, State::Header) && !self.is_filled()
    }

    /// Where the next bytes of a large payload belong.
    pub fn hole(&mut self) -> Option<&mut [u8]> {
        match &mut self.state {
            State::Payload(payload) => Some(&mut payload.run.as_mut_slice()[payload.filled..]).filter(|hole| !hole.is_empty()),
            State::Header | State::Drain { .. } => None,
        }
    }

    /// The first `bytes` bytes of the hole were received.
    pub fn fill(&mut self, bytes: usize) {
        if let State::Payload(payload) = &mut self.state {
            payload.filled += bytes;
            assert!(payload.filled <= payload.run.as_slice().len(), "more received than there was place for");
        }
    }

    /// Handles at most one request from the front of `input`; returns how many bytes it took. With `stopping`, every request is
    /// answered ESHUTDOWN.
    pub fn step(&mut self, export: &Export, stopping: bool, allowance: Allowance, input: &[u8], out: &mut Output) -> (usize, Step) {
        match &mut self.state {
            State::Header => self.header(export, stopping, allowance, input, out),
            State::Payload(payload) => {
                let rest = &mut payload.run.as_mut_slice()[payload.filled..];
                let took = rest.len().min(input.len());
                rest[..took].copy_from_slice(&input[..took]);
                payload.filled += took;
                (took, self.payload(stopping, allowance, out))
            }
            State::Drain { left, pending, refusal } => {
                let took = input.len().min(*left as usize);
                *left -= took as u32;
                if *left > 0 {
                    return (took, Step::Wait);
                }
                refuse(pending, self.session, *refusal, out);
                self.state = State::Header;
                (took, Step::Next)
            }
        }
    }

    fn header(&mut self, export: &Export, stopping: bool, allowance: Allowance, input: &[u8], out: &mut Output) -> (usize, Step) {
        let Some(bytes) = input.first_chunk::<HEADER_BYTES>() else { return (0, Step::Wait) };
        let Some(header) = Header::parse(bytes) else { return (HEADER_BYTES, Step::Close) };
        if header.command == command::DISC {
            return (HEADER_BYTES, Step::Finish);
        }
        let pending = Pending { cookie: header.cookie, offset: header.offset, length: header.length, shape: header.shape() };
        let task = if stopping { Err(STOPPING) } else { header.judge(export, self.session) };
        let span = Span::new(header.offset / ATOM_BYTES, u64::from(header.length) / ATOM_BYTES);
        let command = match task {
            Ok(Task::Nothing) => {
                succeed(&pending, self.session, out);
                return (HEADER_BYTES, Step::Next);
            }
            Err(refusal) => return (HEADER_BYTES, self.refuse(&header, pending, refusal, out)),
            Ok(_) if pending.bytes() > allowance.connection => return (0, Step::Full),
            Ok(Task::Write { fua }) => return self.write(pending, span, fua, allowance, input),
            Ok(_) if pending.bytes() > allowance.room => return (0, Step::Full),
            Ok(Task::Read) => Command::Read,
            Ok(Task::Trim { fua }) => Command::Trim { fua },
            Ok(Task::Zero { no_hole, fua }) => Command::Zero { no_hole, fua },
            Ok(Task::Status) => Command::Status,
            Ok(Task::Flush) => return (HEADER_BYTES, Step::Request(pending, Span::new(0, 0), Command::Flush)),
        };
        (HEADER_BYTES, Step::Request(pending, span, command))
    }

    fn write(&mut self, pending: Pending, span: Span, fua: bool, allowance: Allowance, input: &[u8]) -> (usize, Step) {
        let length = pending.length as usize;
        let input = &input[HEADER_BYTES..];
        if length >= DIRECT_BYTES {
            self.state = State::Payload(Payload { pending, span, fua, run: RunMut::new(span.atoms), filled: 0 });
            return (HEADER_BYTES, Step::Next);
        }
        let Some(bytes) = input.get(..length) else { return (0, Step::Wait) };
        if pending.bytes() > allowance.room {
            return (0, Step::Full);
        }
        let mut run = RunMut::new(span.atoms);
        run.as_mut_slice().copy_from_slice(bytes);
        (HEADER_BYTES + length, Step::Request(pending, span, Command::Write { data: run.freeze(), fua }))
    }

    /// A large payload got more bytes; perhaps it is whole now.
    fn payload(&mut self, stopping: bool, allowance: Allowance, out: &mut Output) -> Step {
        if !self.is_filled() {
            return Step::Wait;
        }
        let State::Payload(payload) = std::mem::replace(&mut self.state, State::Header) else { unreachable!("a payload is filled") };
        if stopping {
            refuse(&payload.pending, self.session, STOPPING, out);
            return Step::Next;
        }
        if payload.pending.bytes() > allowance.room {
            self.state = State::Payload(payload);
            return Step::Full;
        }
        Step::Request(payload.pending, payload.span, Command::Write { data: payload.run.freeze(), fua: payload.fua })
    }

    fn refuse(&mut self, header: &Header, pending: Pending, refusal: Refusal, out: &mut Output) -> Step {
        let left = header.payload_bytes();
        if left > DRAIN_BYTES_MAX {
            return Step::Close;
        }
        match left {
            0 => refuse(&pending, self.session, refusal, out),
            _ => self.state = State::Drain { left, pending, refusal },
        }
        Step::Next
    }
}

const STOPPING: Refusal = Refusal(error::SHUTDOWN, "the server is stopping");
const UNKNOWN_COMMAND: Refusal = Refusal(error::INVALID, "this command is not known here");
const UNKNOWN_FLAG: Refusal = Refusal(error::INVALID, "a flag does not belong to this command");
const READ_ONLY: Refusal = Refusal(error::PERM, "the export is read-only");
const UNALIGNED: Refusal = Refusal(error::INVALID, "offset and length must be multiples of 512");
const OUTSIDE: Refusal = Refusal(error::INVALID, "beyond the end of the export");
const NO_SPACE: Refusal = Refusal(error::NO_SPACE, "beyond the end of the export");
const TOO_LONG: Refusal = Refusal(error::INVALID, "more than 32 MiB at once");
const NO_CONTEXT: Refusal = Refusal(error::INVALID, "no meta context was selected");
const NO_LENGTH: Refusal = Refusal(error::INVALID, "a status of nothing");

impl Header {
    /// `None`: not a request.
    fn parse(bytes: &[u8; HEADER_BYTES]) -> Option<Header> {
        let field = |at: usize, count: usize| bytes[at..at + count].iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
        (field(0, 4) == u64::from(REQUEST_MAGIC)).then(|| Header {
            flags: field(4, 2) as u16,
            command: field(6, 2) as u16,
            cookie: field(8, 8),
            offset: field(16, 8),
            length: field(24, 4) as u32,
        })
    }

    /// Bytes that follow the header: only a WRITE has any, whatever an unknown command may mean.
    fn payload_bytes(&self) -> u32 {
        if self.command == command::WRITE { self.length } else { 0 }
    }

    fn shape(&self) -> Shape {
        match self.command {
            command::READ => Shape::Read,
            command::BLOCK_STATUS => Shape::Status { one: self.flags & flag::REQ_ONE != 0 },
            other => Shape::Plain { write: other == command::WRITE },
        }
    }

    /// May it be done, and what is it? FUA is taken on every command (X4); offset and length of a FLUSH mean nothing.
    fn judge(&self, export: &Export, session: Session) -> Result<Task, Refusal> {
        let fua = self.flags & flag::FUA != 0;
        let (task, flags, changes) = match self.command {
            command::READ => (Task::Read, if session.structured { flag::DF } else { 0 }, false),
            command::WRITE => (Task::Write { fua }, 0, true),
            command::FLUSH => (Task::Flush, 0, false),
            command::TRIM => (Task::Trim { fua }, 0, true),
            command::WRITE_ZEROES => (Task::Zero { no_hole: self.flags & flag::NO_HOLE != 0, fua }, flag::NO_HOLE, true),
            command::BLOCK_STATUS => (Task::Status, flag::REQ_ONE, false),
            _ => return Err(UNKNOWN_COMMAND),
        };
        if self.flags & !(flags | flag::FUA) != 0 {
            return Err(UNKNOWN_FLAG);
        }
        if changes && export.read_only {
            return Err(READ_ONLY);
        }
        match task {
            Task::Flush => return Ok(Task::Flush),
            Task::Status if !session.allocation => return Err(NO_CONTEXT),
            // No success reply could say nothing: an extent is never empty (S10).
            Task::Status if self.length == 0 => return Err(NO_LENGTH),
            _ if self.length == 0 => return Ok(Task::Nothing),
            Task::Read | Task::Write { .. } if self.length > PAYLOAD_BYTES_MAX => return Err(TOO_LONG),
            _ => {}
        }
        self.check_range(export)?;
        Ok(task)
    }

    fn check_range(&self, export: &Export) -> Result<(), Refusal> {
        let length = u64::from(self.length);
        if !self.offset.is_multiple_of(ATOM_BYTES) || !length.is_multiple_of(ATOM_BYTES) {
            return Err(UNALIGNED);
        }
        if self.offset.checked_add(length).is_some_and(|end| end <= export.bytes) {
            return Ok(());
        }
        Err(if matches!(self.command, command::WRITE | command::WRITE_ZEROES) { NO_SPACE } else { OUTSIDE })
    }
}

/// Appends the reply to a request that the engine has answered.
///
/// # Panics
/// If the answer does not fit the request: that is a bug of the engine.
pub fn reply(pending: &Pending, session: Session, result: Result<Outcome<Run>, RequestError>, out: &mut Output) {
    match (pending.shape, result) {
        (Shape::Plain { .. }, Ok(Outcome::Done)) => succeed(pending, session, out),
        (Shape::Read, Ok(Outcome::Data(runs))) => data(pending, session, runs, out),
        (Shape::Status { one }, Ok(Outcome::Status(extents))) => status(pending, one, &extents, out),
        (_, Err(RequestError::Io)) => refuse(pending, session, Refusal(error::IO, "a device failed"), out),
        (_, Err(RequestError::NoSpace)) => refuse(pending, session, Refusal(error::NO_SPACE, "no space left"), out),
        (_, Err(RequestError::Shutdown)) => refuse(pending, session, STOPPING, out),
        (shape, Ok(outcome)) => panic!("{outcome:?} is no answer to {shape:?}"),
    }
}

fn data(pending: &Pending, session: Session, runs: Vec<Run>, out: &mut Output) {
    let bytes: usize = runs.iter().map(Run::bytes).sum();
    assert_eq!(bytes, pending.length as usize, "a read of {} bytes was answered with {bytes}", pending.length);
    if session.structured {
        out.write(|out| {
            chunk_header(out, pending.cookie, chunk::DONE, chunk::OFFSET_DATA, 8 + pending.length);
            out.extend(pending.offset.to_be_bytes());
        });
    } else {
        out.write(|out| simple(out, pending.cookie, 0));
    }
    runs.into_iter().for_each(|run| out.push(run));
    out.end_reply();
}

fn status(pending: &Pending, one: bool, extents: &[Extent], out: &mut Output) {
    let atoms: u64 = extents.iter().map(|extent| extent.atoms).sum();
    assert_eq!(atoms * ATOM_BYTES, u64::from(pending.length), "a status of {} bytes was answered with {atoms} atoms", pending.length);
    let mut merged: Vec<(u32, u32)> = Vec::new();
    for extent in extents.iter().filter(|extent| extent.atoms > 0) {
        let flags = if extent.hole { allocation::HOLE } else { 0 } | if extent.zero { allocation::ZERO } else { 0 };
        let bytes = u32::try_from(extent.atoms * ATOM_BYTES).expect("no longer than the request");
        let full = merged.len() == EXTENTS_MAX;
        match merged.last_mut() {
            Some((length, before)) if *before == flags => *length += bytes,
            _ if full => break,
            _ => merged.push((bytes, flags)),
        }
    }
    merged.truncate(if one { 1 } else { EXTENTS_MAX });
    out.write(|out| {
        chunk_header(out, pending.cookie, chunk::DONE, chunk::BLOCK_STATUS, 4 + 8 * merged.len() as u32);
        out.extend(allocation::ID.to_be_bytes());
        merged.iter().for_each(|(length, flags)| out.extend([length.to_be_bytes(), flags.to_be_bytes()].as_flattened()));
    });
    out.end_reply();
}

/// Success without data. A READ (of nothing) is answered in chunks once they were negotiated, everything else simply (S1).
fn succeed(pending: &Pending, session: Session, out: &mut Output) {
    let chunked = session.structured && pending.shape == Shape::Read;
    out.write(|out| match chunked {
        true => chunk_header(out, pending.cookie, chunk::DONE, chunk::NONE, 0),
        false => simple(out, pending.cookie, 0),
    });
    out.end_reply();
}

fn refuse(pending: &Pending, session: Session, Refusal(error, text): Refusal, out: &mut Output) {
    out.write(|out| {
        if !session.structured {
            return simple(out, pending.cookie, error);
        }
        chunk_header(out, pending.cookie, chunk::DONE, chunk::ERROR, 6 + text.len() as u32);
        out.extend(error.to_be_bytes());
        out.extend((text.len() as u16).to_be_bytes());
        out.extend(text.as_bytes());
    });
    out.end_reply();
}

fn simple(out: &mut Vec<u8>, cookie: u64, error: u32) {
    let mut header = [0; 16];
    header[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    header[4..8].copy_from_slice(&error.to_be_bytes());
    header[8..].copy_from_slice(&cookie.to_be_bytes());
    out.extend_from_slice(&header);
}

fn chunk_header(out: &mut Vec<u8>, cookie: u64, flags: u16, kind: u16, length: u32) {
    let mut header = [0; 20];
    header[..4].copy_from_slice(&CHUNK_MAGIC.to_be_bytes());
    header[4..6].copy_from_slice(&flags.to_be_bytes());
    header[6..8].copy_from_slice(&kind.to_be_bytes());
    header[8..16].copy_from_slice(&cookie.to_be_bytes());
    header[16..].copy_from_slice(&length.to_be_bytes());
    out.extend_from_slice(&header);
}

#[cfg(test)]
mod tests;

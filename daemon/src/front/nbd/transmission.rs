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
//! The engine thinks in atoms. Reads of clients that were not told so are rounded out and their replies cut; what changes part of an
//! atom is a [`Job`]. A READ is always answered with one chunk of data, so DF asks for nothing more.

mod reply;

use std::ops::Range;

use tidegate_engine::block::{ATOM_BYTES, Span};
use tidegate_engine::request::Command;

use super::ahead::Before;
use super::export::{Export, Headers, PAYLOAD_BYTES_MAX, Session};
use super::job::{Job, PIECE_ATOMS};
use super::loan::Purpose;
use super::output::Output;
use super::protocol::{EXTENDED_REQUEST_MAGIC, REQUEST_MAGIC, command, command_flag as flag, error};
use crate::back::run::{ALIGNMENT, Run, RunMut};

pub use reply::reply;
use reply::{refuse, succeed};

/// Of the longer of both forms.
pub const HEADER_BYTES_MAX: usize = EXTENDED_HEADER_BYTES;
const HEADER_BYTES: usize = 28;
const EXTENDED_HEADER_BYTES: usize = 32;
/// Payloads from this size on are received directly into their run.
pub const DIRECT_BYTES: usize = 64 << 10;
/// A payload beyond the limit is read and dropped up to here; a longer one ends the connection.
const DRAIN_BYTES_MAX: u64 = 64 << 20;
/// Extents in one chunk of a reply to BLOCK_STATUS (S10): 1 MiB of the longer ones. The client asks again for the rest.
const EXTENTS_MAX: usize = 1 << 16;
/// Requests that wait behind others, of one connection, that are looked at to know what they change.
const LOOKED_AT_MAX: usize = 32;
/// What one BLOCK_STATUS looks at, at most; the client asks again for the rest. 4 GiB is what simple headers can ask for.
const STATUS_BYTES_MAX: u64 = 4 << 30;
/// The same where tiers are asked for, slot by slot: 32,768 blocks are about a millisecond.
const TIER_BYTES_MAX: u64 = 128 << 20;

/// What a request needs to be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    pub cookie: u64,
    /// Bytes, as the client said.
    pub offset: u64,
    /// Bytes that the reply is about.
    pub length: u64,
    pub shape: Shape,
    /// Payload bytes that it keeps in memory, as the engine's `Room` counts them.
    pub held: u64,
    /// What it changes in one request to the engine; empty for everything else.
    pub change: Span,
}

impl Pending {
    /// Does it only read, in one request to the engine?
    pub fn reads(&self) -> bool {
        self.shape != Shape::Plain
    }

    /// Bytes of memory that its reply takes, at most (more or less).
    pub fn answer(&self) -> u64 {
        match self.shape {
            Shape::Plain => 0,
            Shape::Read => self.held.next_multiple_of(ALIGNMENT as u64),
            // Two contexts, 16 bytes an extent, and an extent for every block.
            Shape::Status { one: false } => (self.length / ALIGNMENT as u64 + 1).min(EXTENTS_MAX as u64) * 32,
            Shape::Status { one: true } => 32,
        }
    }
}

/// How its reply looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Success or an error, nothing else.
    Plain,
    Read,
    Status {
        /// REQ_ONE: a single extent.
        one: bool,
    },
}

/// What may still be taken.
#[derive(Clone, Copy, Debug)]
pub struct Allowance<'a> {
    /// Payload bytes, by this connection.
    pub connection: u64,
    /// Bytes that the client keeps in memory until it goes on: an answer.
    pub loan: u64,
    /// The same: a large payload.
    pub payload: u64,
    /// Payload bytes, by the engine.
    pub room: u64,
    /// By the engine, one more that is no FLUSH.
    pub place: bool,
    /// The same of all that only reads; `None`: no more of these.
    pub reads: Option<u64>,
    /// What others have to themselves: not to be changed now.
    pub busy: &'a [Span],
    /// What others asked to change before, and waits: nor that.
    pub ahead: Option<Before<'a>>,
    /// One more job that changes something.
    pub job: bool,
    /// One more that caches.
    pub caching_job: bool,
}

impl Allowance<'_> {
    fn takes(&self, pending: &Pending, span: Span) -> bool {
        let is_free = || !self.busy.iter().any(|busy| busy.overlaps(span)) && !self.ahead.is_some_and(|ahead| ahead.overlaps(span));
        // Part of an atom: a change of it is a job.
        let is_whole = pending.offset.is_multiple_of(ATOM_BYTES) && pending.length.is_multiple_of(ATOM_BYTES);
        let fits = pending.held <= self.room && (!pending.reads() || self.reads.is_some_and(|bytes| pending.held <= bytes));
        self.place && fits && (pending.reads() || ((self.job || is_whole) && is_free()))
    }

    /// What to do with what is not taken.
    fn refusal(&self, pending: &Pending) -> Step {
        match self.reads {
            _ if !self.place => Step::Busy,
            None if pending.reads() => Step::Busy,
            Some(bytes) if pending.reads() && pending.held > bytes => Step::CrampedReads(pending.held),
            _ if pending.held > self.room => Step::Cramped(pending.held),
            _ => Step::Busy,
        }
    }
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
    /// The same: others have that to themselves, or all places of jobs.
    Busy,
    /// The same, for want of so much of the engine's room, for its payload.
    Cramped(u64),
    /// The same, for want of so much of what the engine has for what only reads.
    CrampedReads(u64),
    /// The same, for want of a loan, for this.
    Unlent(Purpose),
    /// For the engine.
    Request(Pending, Span, Command<Run>),
    /// For the engine, in several requests.
    Job(Pending, Job),
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
    /// Dropping the payload of a refused command.
    Drain {
        left: u64,
        pending: Pending,
        refusal: Refusal,
    },
}

/// A large WRITE that is being received.
#[derive(Debug)]
struct Payload {
    pending: Pending,
    fua: bool,
    run: RunMut,
    filled: usize,
    end: usize,
}

struct Header {
    bytes: usize,
    flags: u16,
    command: u16,
    cookie: u64,
    offset: u64,
    length: u64,
    /// Bytes that follow it.
    payload: u64,
}

/// What a valid command asks of the engine.
enum Task {
    /// Zero bytes: there is nothing to do.
    Nothing,
    Read,
    Cache,
    Write {
        fua: bool,
    },
    Trim {
        fua: bool,
    },
    Zero {
        no_hole: bool,
        fua: bool,
        fast: bool,
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
        matches!(&self.state, State::Payload(payload) if payload.filled == payload.end)
    }

    /// Is a request partly here?
    pub fn is_inside(&self) -> bool {
        !matches!(self.state, State::Header) && !self.is_filled()
    }

    /// Bytes of memory that the payload being received takes.
    pub fn receiving(&self) -> u64 {
        match &self.state {
            State::Payload(payload) => payload.pending.held,
            State::Header | State::Drain { .. } => 0,
        }
    }

    /// Bytes of it that are here.
    pub fn arrived(&self) -> u64 {
        match &self.state {
            State::Payload(payload) => payload.filled as u64,
            State::Header | State::Drain { .. } => 0,
        }
    }

    /// What the requests change that are here as wholes: the one that is being received, and those in `input` behind it, the first [`LOOKED_AT_MAX`].
    pub fn changes<'a>(&'a self, export: &'a Export, input: &'a [u8]) -> impl Iterator<Item = Span> + 'a {
        let first = match &self.state {
            State::Payload(payload) if self.is_filled() => Some(atoms_around(payload.pending.offset, payload.pending.length)),
            State::Header | State::Payload(_) | State::Drain { .. } => None,
        };
        let mut rest = if self.is_inside() { &[] } else { input };
        let others = std::iter::from_fn(move || {
            let Parsed::Header(header) = Header::parse(self.session.headers, rest) else { return None };
            rest = rest.get(header.bytes..)?.get(usize::try_from(header.payload).ok()?..)?;
            let changes = matches!(header.judge(export, self.session), Ok(Task::Write { .. } | Task::Trim { .. } | Task::Zero { .. }));
            // Behind DISC there is nothing.
            (header.command != command::DISC).then(|| changes.then(|| header.atoms()))
        });
        first.into_iter().chain(others.take(LOOKED_AT_MAX).flatten())
    }

    /// Where the next bytes of a large payload belong.
    pub fn hole(&mut self) -> Option<&mut [u8]> {
        match &mut self.state {
            State::Payload(payload) => Some(&mut payload.run.as_mut_slice()[payload.filled..payload.end]).filter(|hole| !hole.is_empty()),
            State::Header | State::Drain { .. } => None,
        }
    }

    /// The first `bytes` bytes of the hole were received.
    pub fn fill(&mut self, bytes: usize) {
        if let State::Payload(payload) = &mut self.state {
            payload.filled += bytes;
            assert!(payload.filled <= payload.end, "more received than there was place for");
        }
    }

    /// Handles at most one request from the front of `input`; returns how many bytes it took. With `stopping`, every request is
    /// answered ESHUTDOWN.
    pub fn step(&mut self, export: &Export, stopping: bool, allowance: Allowance<'_>, input: &[u8], out: &mut Output) -> (usize, Step) {
        match &mut self.state {
            State::Header => self.header(export, stopping, allowance, input, out),
            State::Payload(payload) => {
                let rest = &mut payload.run.as_mut_slice()[payload.filled..payload.end];
                let took = rest.len().min(input.len());
                rest[..took].copy_from_slice(&input[..took]);
                payload.filled += took;
                (took, self.payload(stopping, allowance, out))
            }
            State::Drain { left, pending, refusal } => {
                let took = (input.len() as u64).min(*left);
                *left -= took;
                if *left > 0 {
                    return (took as usize, Step::Wait);
                }
                refuse(pending, self.session, *refusal, out);
                self.state = State::Header;
                (took as usize, Step::Next)
            }
        }
    }

    fn header(&mut self, export: &Export, stopping: bool, allowance: Allowance<'_>, input: &[u8], out: &mut Output) -> (usize, Step) {
        let header = match Header::parse(self.session.headers, input) {
            Parsed::Short => return (0, Step::Wait),
            Parsed::Foreign => return (input.len(), Step::Close),
            Parsed::Header(header) => header,
        };
        if header.command == command::DISC {
            return (header.bytes, Step::Finish);
        }
        let task = if stopping { Err(STOPPING) } else { header.judge(export, self.session) };
        let mut pending = header.pending();
        let task = match task {
            Ok(Task::Nothing) => {
                succeed(&pending, self.session, out);
                return (header.bytes, Step::Next);
            }
            Err(refusal) => return (header.bytes, self.refuse(&header, pending, refusal, out)),
            Ok(task) => task,
        };
        let span = header.atoms();
        match task {
            Task::Read | Task::Write { .. } => pending.held = span.bytes(),
            Task::Cache => pending.held = span.bytes().min(PIECE_ATOMS * ATOM_BYTES),
            Task::Status => pending.length = pending.length.min(self.status_bytes()),
            Task::Nothing | Task::Trim { .. } | Task::Zero { .. } | Task::Flush => {}
        }
        if pending.held > allowance.connection {
            return (0, Step::Full);
        }
        let is_received_slowly = header.command == command::WRITE && header.length >= DIRECT_BYTES as u64;
        if is_received_slowly && pending.held > allowance.payload {
            return (0, Step::Unlent(Purpose::Payload));
        }
        if pending.answer() > allowance.loan {
            return (0, Step::Unlent(Purpose::Answer));
        }
        if let Task::Write { fua } = task {
            return self.write(&header, pending, span, fua, allowance, input);
        }
        let takes = match task {
            Task::Flush => true,
            Task::Cache => allowance.caching_job,
            _ => allowance.takes(&pending, span),
        };
        if !takes {
            return (0, if matches!(task, Task::Cache) { Step::Full } else { allowance.refusal(&pending) });
        }
        (header.bytes, self.without_payload(&header, export, pending, span, task, out))
    }

    /// What needs no payload and may go to the engine now.
    fn without_payload(&self, header: &Header, export: &Export, mut pending: Pending, span: Span, task: Task, out: &mut Output) -> Step {
        match task {
            Task::Read => Step::Request(pending, span, Command::Read),
            Task::Flush => Step::Request(pending, Span::new(0, 0), Command::Flush),
            Task::Status => {
                let span = atoms_around(pending.offset, pending.length);
                let one = pending.shape == (Shape::Status { one: true });
                Step::Request(pending, span, Command::Status { tiers: self.session.contexts.tier, one })
            }
            Task::Cache => {
                // Only whole blocks are kept.
                let block = u64::from(export.block_bytes);
                let start = header.offset / block * block;
                let end = (header.offset + header.length).next_multiple_of(block).min(export.bytes);
                Step::Job(pending, Job::cache(Span::new(start / ATOM_BYTES, (end - start) / ATOM_BYTES)))
            }
            Task::Trim { fua } => {
                let inside = header.whole_atoms();
                if inside.is_empty() {
                    succeed(&pending, self.session, out);
                    return Step::Next;
                }
                pending.change = inside;
                Step::Request(pending, inside, Command::Trim { fua })
            }
            Task::Zero { no_hole, fua, fast } => {
                if header.whole_atoms() != span {
                    return Step::Job(pending, Job::zero(header.offset, header.length, no_hole, fua, fast));
                }
                pending.change = span;
                Step::Request(pending, span, Command::Zero { no_hole, fua, fast })
            }
            Task::Nothing | Task::Write { .. } => unreachable!("answered, or received first"),
        }
    }

    /// Bytes that one BLOCK_STATUS looks at.
    fn status_bytes(&self) -> u64 {
        if self.session.contexts.tier { TIER_BYTES_MAX } else { STATUS_BYTES_MAX }
    }

    fn write(&mut self, header: &Header, pending: Pending, span: Span, fua: bool, allowance: Allowance<'_>, input: &[u8]) -> (usize, Step) {
        let (length, filled) = (pending.length as usize, (pending.offset % ATOM_BYTES) as usize);
        let input = &input[header.bytes..];
        if length >= DIRECT_BYTES {
            let run = RunMut::new(span.atoms);
            self.state = State::Payload(Payload { pending, fua, run, filled, end: filled + length });
            return (header.bytes, Step::Next);
        }
        let Some(bytes) = input.get(..length) else { return (0, Step::Wait) };
        if !allowance.takes(&pending, span) {
            return (0, allowance.refusal(&pending));
        }
        let mut run = RunMut::new(span.atoms);
        run.as_mut_slice()[filled..filled + length].copy_from_slice(bytes);
        (header.bytes + length, written(pending, run, fua))
    }

    /// A large payload got more bytes; perhaps it is whole now.
    fn payload(&mut self, stopping: bool, allowance: Allowance<'_>, out: &mut Output) -> Step {
        if !self.is_filled() {
            return Step::Wait;
        }
        let State::Payload(payload) = std::mem::replace(&mut self.state, State::Header) else { unreachable!("a payload is filled") };
        if stopping {
            refuse(&payload.pending, self.session, STOPPING, out);
            return Step::Next;
        }
        if !allowance.takes(&payload.pending, atoms_around(payload.pending.offset, payload.pending.length)) {
            let refusal = allowance.refusal(&payload.pending);
            self.state = State::Payload(payload);
            return refusal;
        }
        written(payload.pending, payload.run, payload.fua)
    }

    fn refuse(&mut self, header: &Header, pending: Pending, refusal: Refusal, out: &mut Output) -> Step {
        if header.payload > DRAIN_BYTES_MAX {
            return Step::Close;
        }
        match header.payload {
            0 => refuse(&pending, self.session, refusal, out),
            left => self.state = State::Drain { left, pending, refusal },
        }
        Step::Next
    }
}

/// A WRITE whose payload is here: whole atoms are one request, parts of atoms a job.
fn written(mut pending: Pending, run: RunMut, fua: bool) -> Step {
    let span = atoms_around(pending.offset, pending.length);
    let start = (pending.offset - span.offset()) as usize;
    let end = start + pending.length as usize;
    if (start, end as u64) != (0, span.bytes()) {
        return Step::Job(pending, Job::write(span, run, start, end, fua));
    }
    pending.change = span;
    Step::Request(pending, span, Command::Write { data: run.freeze(), fua })
}

/// The atoms that these bytes touch.
fn atoms_around(offset: u64, length: u64) -> Span {
    let start = offset / ATOM_BYTES;
    Span::new(start, (offset + length).div_ceil(ATOM_BYTES) - start)
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

/// What the front of the input is.
enum Parsed {
    /// Not enough of it is here.
    Short,
    /// Not a request.
    Foreign,
    Header(Header),
}

impl Header {
    fn parse(headers: Headers, input: &[u8]) -> Parsed {
        let (bytes, magic) = match headers {
            Headers::Simple | Headers::Structured => (HEADER_BYTES, REQUEST_MAGIC),
            Headers::Extended => (EXTENDED_HEADER_BYTES, EXTENDED_REQUEST_MAGIC),
        };
        let Some(input) = input.get(..bytes) else { return Parsed::Short };
        let field = |range: Range<usize>| input[range].iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
        if field(0..4) != u64::from(magic) {
            return Parsed::Foreign;
        }
        let (flags, command, length) = (field(4..6) as u16, field(6..8) as u16, field(24..bytes));
        // Only a WRITE has a payload, whatever an unknown command may mean. Extended headers say themselves that their length is one's;
        // but qemu (10.0) forgets to say it of a WRITE.
        let has_payload = command == command::WRITE || (headers == Headers::Extended && flags & flag::PAYLOAD_LEN != 0);
        let payload = if has_payload { length } else { 0 };
        Parsed::Header(Header { bytes, flags, command, cookie: field(8..16), offset: field(16..24), length, payload })
    }

    fn pending(&self) -> Pending {
        let shape = match self.command {
            command::READ => Shape::Read,
            command::BLOCK_STATUS => Shape::Status { one: self.flags & flag::REQ_ONE != 0 },
            _ => Shape::Plain,
        };
        Pending { cookie: self.cookie, offset: self.offset, length: self.length, shape, held: 0, change: Span::default() }
    }

    /// The atoms that a valid request touches; none for a FLUSH, whose range means nothing.
    fn atoms(&self) -> Span {
        if self.command == command::FLUSH { Span::default() } else { atoms_around(self.offset, self.length) }
    }

    /// The atoms that lie inside a valid request as wholes.
    fn whole_atoms(&self) -> Span {
        let start = self.offset.div_ceil(ATOM_BYTES);
        Span::new(start, ((self.offset + self.length) / ATOM_BYTES).saturating_sub(start))
    }

    /// May it be done, and what is it? FUA is taken on every command (X4); offset and length of a FLUSH mean nothing.
    fn judge(&self, export: &Export, session: Session) -> Result<Task, Refusal> {
        let has = |flag: u16| self.flags & flag != 0;
        let fua = has(flag::FUA);
        let (task, flags, changes) = match self.command {
            command::READ => (Task::Read, if session.headers == Headers::Simple { 0 } else { flag::DF }, false),
            command::WRITE => (Task::Write { fua }, if session.headers == Headers::Extended { flag::PAYLOAD_LEN } else { 0 }, true),
            command::FLUSH => (Task::Flush, 0, false),
            command::TRIM => (Task::Trim { fua }, 0, true),
            command::CACHE => (Task::Cache, 0, false),
            command::WRITE_ZEROES => {
                let task = Task::Zero { no_hole: has(flag::NO_HOLE), fua, fast: has(flag::FAST_ZERO) };
                (task, flag::NO_HOLE | flag::FAST_ZERO, true)
            }
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
            Task::Status if session.contexts == super::export::Contexts::NONE => return Err(NO_CONTEXT),
            // No success reply could say nothing: an extent is never empty (S10).
            Task::Status if self.length == 0 => return Err(NO_LENGTH),
            _ if self.length == 0 => return Ok(Task::Nothing),
            Task::Read | Task::Write { .. } if self.length > u64::from(PAYLOAD_BYTES_MAX) => return Err(TOO_LONG),
            _ => {}
        }
        self.check_range(export, session)?;
        Ok(task)
    }

    fn check_range(&self, export: &Export, session: Session) -> Result<(), Refusal> {
        let is_whole = self.offset.is_multiple_of(ATOM_BYTES) && self.length.is_multiple_of(ATOM_BYTES);
        if session.sized && !is_whole {
            return Err(UNALIGNED);
        }
        if self.offset.checked_add(self.length).is_some_and(|end| end <= export.bytes) {
            return Ok(());
        }
        Err(if matches!(self.command, command::WRITE | command::WRITE_ZEROES) { NO_SPACE } else { OUTSIDE })
    }
}

#[cfg(test)]
mod tests;

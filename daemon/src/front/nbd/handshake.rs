//! The handshake of one connection: bytes in, bytes out; no socket and no clock. Fixed newstyle.
//!
//! An option is handled when all of its data is there; data beyond [`OPTION_BYTES_MAX`] is skipped as it comes and never kept.
//! Whatever can be answered is answered with an error; the connection ends only where the protocol leaves no other way.
//!
//! Where TLS is required, nothing is told and nothing is remembered before it: STARTTLS begins the haggling anew (T6).

use super::export::{BLOCK_BYTES_MIN, Contexts, Headers, Offered, PAYLOAD_BYTES_MAX, Session, is_string};
use super::protocol::{
    EXPORT_NAME_ZEROES, GREETING_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, allocation, answer, handshake_flag, info, option, tier,
};

/// Data of one option; what is longer is answered ERR_TOO_BIG.
pub const OPTION_BYTES_MAX: usize = 64 << 10;
const OPTION_HEADER_BYTES: usize = 16;
/// The most that the handshake needs to see at once.
pub const INPUT_BYTES_MAX: usize = OPTION_HEADER_BYTES + OPTION_BYTES_MAX;
/// Options between two calls of [`Handshake::refill`] (one second): more of them wait.
const OPTIONS_PER_REFILL: u32 = 64;

/// What one step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Needs more bytes.
    Wait,
    /// Go on.
    Next,
    /// Too many options within a second: go on after the next refill.
    Rest,
    /// The client may begin with TLS as soon as the answer has left. Whatever else it has sent is forgotten.
    StartTls,
    /// The handshake is over.
    Transmit(Session),
    /// Send what is there, then close.
    Close,
}

#[derive(Debug)]
pub struct Handshake {
    state: State,
    session: Session,
    /// The export whose contexts were selected last.
    contexts_of: usize,
    no_zeroes: bool,
    tls: Tls,
    options_left: u32,
}

/// One mode for the whole of a connection (T1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tls {
    /// NOTLS
    Off,
    /// FORCEDTLS, and it has not begun.
    Required,
    /// FORCEDTLS, and all of this comes through it.
    Secured,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Waiting for the client's flags.
    Flags,
    Option,
    /// Dropping the rest of an option's data, then answering.
    Skip {
        option: u32,
        left: u32,
    },
}

/// An option that cannot be granted: the error and a text for people.
struct Refusal(u32, &'static str);

const INVALID_LENGTHS: Refusal = Refusal(answer::ERR_INVALID, "the lengths in the option's data do not fit together");
const INVALID_STRING: Refusal = Refusal(answer::ERR_INVALID, "a string is longer than 4096 bytes, holds NUL or is not UTF-8");
const NO_DATA_WANTED: Refusal = Refusal(answer::ERR_INVALID, "this option has no data");
const UNKNOWN_OPTION: Refusal = Refusal(answer::ERR_UNSUP, "this option is not known here");
const TOO_BIG: Refusal = Refusal(answer::ERR_TOO_BIG, "the option's data is longer than 64 KiB");
const STOPPING: Refusal = Refusal(answer::ERR_SHUTDOWN, "the server is stopping");
const TLS_REQUIRED: Refusal = Refusal(answer::ERR_TLS_REQD, "TLS is required here");
const TLS_TWICE: Refusal = Refusal(answer::ERR_INVALID, "TLS has begun already");
const NO_TLS: Refusal = Refusal(answer::ERR_UNSUP, "TLS is not offered here");
const EXTENDED_ALREADY: Refusal = Refusal(answer::ERR_EXT_HEADER_REQD, "extended headers were negotiated already");
const EXTENDED_TWICE: Refusal = Refusal(answer::ERR_INVALID, "extended headers were negotiated already");
const EXPORT_STOPPED: Refusal = Refusal(answer::ERR_SHUTDOWN, "this volume has stopped");
const UNKNOWN_EXPORT: Refusal = Refusal(answer::ERR_UNKNOWN, "there is no export of this name");

impl Handshake {
    /// Starts with the server's greeting, appended to `out`.
    pub fn new(tls: Tls, out: &mut Vec<u8>) -> Handshake {
        out.extend(GREETING_MAGIC.to_be_bytes());
        out.extend(OPTION_MAGIC.to_be_bytes());
        out.extend((handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES).to_be_bytes());
        Handshake {
            state: State::Flags,
            session: Session::default(),
            contexts_of: 0,
            no_zeroes: false,
            tls,
            options_left: OPTIONS_PER_REFILL,
        }
    }

    /// The same client behind TLS: its flags stay, everything it has negotiated is forgotten.
    pub fn secured(self) -> Handshake {
        Handshake { state: State::Option, session: Session::default(), tls: Tls::Secured, ..self }
    }

    /// Another second has passed: the client may send options again.
    pub fn refill(&mut self) {
        self.options_left = OPTIONS_PER_REFILL;
    }

    /// Handles at most one option from the front of `input`; returns how many bytes it took.
    pub fn step(&mut self, offered: Offered<'_>, stopping: bool, input: &[u8], out: &mut Vec<u8>) -> (usize, Step) {
        match self.state {
            State::Flags => self.flags(input),
            State::Option => self.option(offered, stopping, input, out),
            State::Skip { option, left } => {
                let took = input.len().min(left as usize);
                let left = left - took as u32;
                if left > 0 {
                    self.state = State::Skip { option, left };
                    return (took, Step::Wait);
                }
                self.state = State::Option;
                (took, self.skipped(stopping, option, out))
            }
        }
    }

    fn flags(&mut self, input: &[u8]) -> (usize, Step) {
        let Some(flags) = input.first_chunk::<4>() else { return (0, Step::Wait) };
        let flags = u32::from_be_bytes(*flags);
        let known = u32::from(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
        // TLS is only there for who speaks the fixed newstyle.
        let cannot_start_tls = self.tls == Tls::Required && flags & u32::from(handshake_flag::FIXED_NEWSTYLE) == 0;
        if flags & !known != 0 || cannot_start_tls {
            return (4, Step::Close);
        }
        self.no_zeroes = flags & u32::from(handshake_flag::NO_ZEROES) != 0;
        self.state = State::Option;
        (4, Step::Next)
    }

    fn option(&mut self, offered: Offered<'_>, stopping: bool, input: &[u8], out: &mut Vec<u8>) -> (usize, Step) {
        let mut rest = Fields(input);
        let (Some(magic), Some(option), Some(length)) = (rest.u64(), rest.u32(), rest.u32()) else { return (0, Step::Wait) };
        if magic != OPTION_MAGIC {
            return (OPTION_HEADER_BYTES, Step::Close);
        }
        if self.options_left == 0 {
            return (0, Step::Rest);
        }
        if length as usize > OPTION_BYTES_MAX {
            self.options_left -= 1;
            self.state = State::Skip { option, left: length };
            return (OPTION_HEADER_BYTES, if option == option::EXPORT_NAME { Step::Close } else { Step::Next });
        }
        let Some(data) = rest.bytes(length as usize) else { return (0, Step::Wait) };
        self.options_left -= 1;
        (OPTION_HEADER_BYTES + data.len(), self.handle(offered, stopping, option, data, out))
    }

    fn handle(&mut self, offered: Offered<'_>, stopping: bool, option: u32, data: &[u8], out: &mut Vec<u8>) -> Step {
        let result = match option {
            option::ABORT => {
                reply(out, option, answer::ACK, &[]);
                return Step::Close;
            }
            option::EXPORT_NAME => return self.export_name(offered, stopping, data, out),
            _ if stopping => Err(STOPPING),
            option::STARTTLS if !data.is_empty() => Err(NO_DATA_WANTED),
            option::STARTTLS => match self.tls {
                Tls::Off => Err(NO_TLS),
                Tls::Secured => Err(TLS_TWICE),
                Tls::Required => {
                    reply(out, option, answer::ACK, &[]);
                    return Step::StartTls;
                }
            },
            _ if self.tls == Tls::Required => Err(TLS_REQUIRED),
            option::LIST => list(offered, data, out),
            option::INFO | option::GO => self.information(offered, option, data, out),
            option::STRUCTURED_REPLY if !data.is_empty() => Err(NO_DATA_WANTED),
            option::STRUCTURED_REPLY if self.session.headers == Headers::Extended => Err(EXTENDED_ALREADY),
            option::STRUCTURED_REPLY => {
                self.session.headers = Headers::Structured;
                Ok(())
            }
            option::EXTENDED_HEADERS if !data.is_empty() => Err(NO_DATA_WANTED),
            option::EXTENDED_HEADERS if self.session.headers == Headers::Extended => Err(EXTENDED_TWICE),
            option::EXTENDED_HEADERS => {
                self.session.headers = Headers::Extended;
                Ok(())
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.meta_context(offered, option, data, out),
            _ => Err(UNKNOWN_OPTION),
        };
        match result {
            Ok(()) => reply(out, option, answer::ACK, &[]),
            Err(refusal) => {
                refuse(out, option, refusal);
                return Step::Next;
            }
        }
        if option == option::GO { self.transmit() } else { Step::Next }
    }

    /// What was selected counts for the export that it was selected for (S9).
    fn transmit(&mut self) -> Step {
        if self.contexts_of != self.session.export {
            self.session.contexts = Contexts::NONE;
        }
        Step::Transmit(self.session)
    }

    /// The only option without an error reply: what it may not have ends the connection (H6).
    fn export_name(&mut self, offered: Offered<'_>, stopping: bool, name: &[u8], out: &mut Vec<u8>) -> Step {
        let Ok(place) = find(offered, name) else { return Step::Close };
        if stopping || self.tls == Tls::Required || self.session.headers == Headers::Extended {
            return Step::Close;
        }
        let export = offered.get(place);
        self.session.export = place;
        out.extend(export.bytes.to_be_bytes());
        out.extend(export.flags(self.session).to_be_bytes());
        if !self.no_zeroes {
            out.extend([0; EXPORT_NAME_ZEROES]);
        }
        self.transmit()
    }

    /// INFO and GO. Who asks for the block sizes when it goes is held to them; who does not is not told, and is served to the byte.
    fn information(&mut self, offered: Offered<'_>, option: u32, data: &[u8], out: &mut Vec<u8>) -> Result<(), Refusal> {
        let mut data = Fields(data);
        let name = data.counted().ok_or(INVALID_LENGTHS)?;
        let count = data.u16().ok_or(INVALID_LENGTHS)?;
        if data.0.len() != 2 * usize::from(count) {
            return Err(INVALID_LENGTHS);
        }
        let wanted = |kind: u16| data.0.chunks_exact(2).any(|pair| pair == kind.to_be_bytes());
        let place = find(offered, name)?;
        let export = offered.get(place);
        let is_sized = wanted(info::BLOCK_SIZE);
        if option == option::GO {
            (self.session.sized, self.session.export) = (is_sized, place);
        }

        let kind = info::EXPORT.to_be_bytes();
        reply(out, option, answer::INFO, &[&kind, &export.bytes.to_be_bytes(), &export.flags(self.session).to_be_bytes()]);
        if wanted(info::NAME) {
            reply(out, option, answer::INFO, &[&info::NAME.to_be_bytes(), export.name.as_bytes()]);
        }
        if wanted(info::DESCRIPTION) && !export.description.is_empty() {
            reply(out, option, answer::INFO, &[&info::DESCRIPTION.to_be_bytes(), export.description.as_bytes()]);
        }
        if is_sized {
            let sizes = [BLOCK_BYTES_MIN, export.block_bytes, PAYLOAD_BYTES_MAX].map(u32::to_be_bytes);
            reply(out, option, answer::INFO, &[&info::BLOCK_SIZE.to_be_bytes(), sizes.as_flattened()]);
        }
        Ok(())
    }

    /// LIST_META_CONTEXT and SET_META_CONTEXT. A SET replaces the earlier selection even when it fails (S9).
    fn meta_context(&mut self, offered: Offered<'_>, option: u32, data: &[u8], out: &mut Vec<u8>) -> Result<(), Refusal> {
        let set = option == option::SET_META_CONTEXT;
        if set {
            self.session.contexts = Contexts::NONE;
        }
        if self.session.headers == Headers::Simple {
            return Err(Refusal(answer::ERR_INVALID, "meta contexts need structured replies first"));
        }
        let mut data = Fields(data);
        let name = data.counted().ok_or(INVALID_LENGTHS)?;
        let count = data.u32().ok_or(INVALID_LENGTHS)?;
        let mut found = Contexts { allocation: !set && count == 0, tier: !set && count == 0 };
        for _ in 0..count {
            let query = data.counted().ok_or(INVALID_LENGTHS)?;
            if !is_string(query) {
                return Err(INVALID_STRING);
            }
            let asks = |name: &str, namespace: &str| query == name.as_bytes() || (!set && query == namespace.as_bytes());
            found.allocation |= asks(allocation::NAME, allocation::NAMESPACE);
            found.tier |= asks(tier::NAME, tier::NAMESPACE);
        }
        if !data.0.is_empty() {
            return Err(INVALID_LENGTHS);
        }
        let place = find(offered, name)?;
        for (found, id, name) in [(found.allocation, allocation::ID, allocation::NAME), (found.tier, tier::ID, tier::NAME)] {
            if found {
                reply(out, option, answer::META_CONTEXT, &[&id.to_be_bytes(), name.as_bytes()]);
            }
        }
        if set {
            (self.session.contexts, self.contexts_of) = (found, place);
        }
        Ok(())
    }

    /// The end of an option whose data was too long to keep.
    fn skipped(&self, stopping: bool, option: u32, out: &mut Vec<u8>) -> Step {
        match option {
            option::ABORT => {
                reply(out, option, answer::ACK, &[]);
                return Step::Close;
            }
            _ if stopping => refuse(out, option, STOPPING),
            option::STARTTLS => refuse(out, option, NO_DATA_WANTED),
            _ if self.tls == Tls::Required => refuse(out, option, TLS_REQUIRED),
            _ if is_known(option) => refuse(out, option, TOO_BIG),
            _ => refuse(out, option, UNKNOWN_OPTION),
        }
        Step::Next
    }
}

fn list(offered: Offered<'_>, data: &[u8], out: &mut Vec<u8>) -> Result<(), Refusal> {
    if !data.is_empty() {
        return Err(NO_DATA_WANTED);
    }
    for export in offered.open() {
        let length = (export.name.len() as u32).to_be_bytes();
        reply(out, option::LIST, answer::SERVER, &[&length, export.name.as_bytes(), export.description.as_bytes()]);
    }
    Ok(())
}

/// The place of an export that can be had.
fn find(offered: Offered<'_>, name: &[u8]) -> Result<usize, Refusal> {
    if !is_string(name) {
        return Err(INVALID_STRING);
    }
    match offered.find(name) {
        None => Err(UNKNOWN_EXPORT),
        Some(place) if offered.is_closed(place) => Err(EXPORT_STOPPED),
        Some(place) => Ok(place),
    }
}

fn is_known(option: u32) -> bool {
    use option::*;
    let haggling = matches!(option, EXPORT_NAME | ABORT | LIST | STARTTLS | INFO | GO);
    haggling || matches!(option, STRUCTURED_REPLY | EXTENDED_HEADERS | LIST_META_CONTEXT | SET_META_CONTEXT)
}

fn refuse(out: &mut Vec<u8>, option: u32, Refusal(error, text): Refusal) {
    reply(out, option, error, &[text.as_bytes()]);
}

fn reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[&[u8]]) {
    let length: usize = data.iter().map(|part| part.len()).sum();
    out.extend(OPTION_REPLY_MAGIC.to_be_bytes());
    for word in [option, kind, length as u32] {
        out.extend(word.to_be_bytes());
    }
    data.iter().for_each(|part| out.extend_from_slice(part));
}

/// Big-endian fields from the front of a slice; `None` when it is too short.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }
    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }
    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }
    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }
    /// A 32-bit length and so many bytes.
    fn counted(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()?;
        self.bytes(length as usize)
    }
}

#[cfg(test)]
mod tests;

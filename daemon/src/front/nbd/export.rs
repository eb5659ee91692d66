//! What the NBD front offers: exports by name, their limits, and what a connection has agreed about the one it uses.

use super::allow::{Allowed, Who, allows};
use super::protocol::{STRING_BYTES_MAX, transmission_flag as flag};

/// Requests of clients that asked for the block sizes are whole atoms: what is not a multiple of this is refused. Others are served to
/// the byte.
pub const BLOCK_BYTES_MIN: u32 = 512;
/// The largest payload of one READ or WRITE: the protocol's own default. TRIM and WRITE_ZEROES may be longer.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

/// A volume as clients see it.
#[derive(Clone, Debug)]
pub struct Export {
    pub name: String,
    /// Text for people; may be empty.
    pub description: String,
    /// Size in bytes: whole atoms.
    pub bytes: u64,
    pub read_only: bool,
    /// Who may use it over TLS; empty: whoever may connect.
    pub clients: Vec<Allowed>,
    /// The preferred request, in bytes: the volume's block.
    pub block_bytes: u32,
}

/// What a connection negotiated; valid from the end of its handshake to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Session {
    pub headers: Headers,
    pub contexts: Contexts,
    /// The client asked for the block sizes before transmission, and is held to them.
    pub sized: bool,
    /// The place of its export among those that its front offers.
    pub export: usize,
}

/// The form of requests and replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Headers {
    #[default]
    Simple,
    /// READ and BLOCK_STATUS are answered in chunks, and errors carry text.
    Structured,
    /// Lengths have 64 bits, and everything is answered in chunks.
    Extended,
}

/// The meta contexts that were selected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contexts {
    /// `base:allocation`
    pub allocation: bool,
    /// `tidegate:tier`
    pub tier: bool,
}

impl Contexts {
    pub const NONE: Contexts = Contexts { allocation: false, tier: false };
}

impl Export {
    /// # Errors
    /// One line for the operator: what cannot be exported, and why.
    pub fn check(&self) -> Result<(), String> {
        if !is_string(self.name.as_bytes()) || !is_string(self.description.as_bytes()) {
            return Err(format!("NBD export: name and description are at most {STRING_BYTES_MAX} bytes without NUL"));
        }
        if self.bytes == 0 || !self.bytes.is_multiple_of(u64::from(BLOCK_BYTES_MIN)) || i64::try_from(self.bytes).is_err() {
            return Err(format!("NBD export: a size of {} bytes is not a positive multiple of {BLOCK_BYTES_MIN} below 2^63", self.bytes));
        }
        if !self.block_bytes.is_power_of_two() || !(BLOCK_BYTES_MIN..=PAYLOAD_BYTES_MAX).contains(&self.block_bytes) {
            return Err(format!("NBD export: blocks of {} bytes; a power of two from {BLOCK_BYTES_MIN} on is needed", self.block_bytes));
        }
        Ok(())
    }

    /// Transmission flags. CAN_MULTI_CONN is honest: the engine's flush covers every write of the volume that was replied to, on
    /// whichever connection. DF may only be offered to who negotiated structured replies.
    pub fn flags(&self, session: Session) -> u16 {
        let mut flags = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::CAN_MULTI_CONN | flag::SEND_CACHE;
        flags |= if self.read_only { flag::READ_ONLY } else { flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO };
        flags | if session.headers == Headers::Simple { 0 } else { flag::SEND_DF }
    }
}

/// Everything that can be asked for. A name is bytes and is compared as such: `home` and `Home` are two exports.
#[derive(Clone, Debug)]
pub struct Exports {
    offers: Vec<Offer>,
    /// What the empty name stands for.
    default: Option<usize>,
}

#[derive(Clone, Debug)]
struct Offer {
    export: Export,
    /// Its volume has stopped: nobody gets it any more.
    is_closed: bool,
}

impl Exports {
    /// `default`: the place of the export that the empty name stands for.
    ///
    /// # Errors
    /// One line for the operator: what cannot be exported, and why.
    pub fn new(list: Vec<Export>, default: Option<usize>) -> Result<Exports, String> {
        list.iter().try_for_each(Export::check)?;
        for (place, export) in list.iter().enumerate() {
            if list[..place].iter().any(|earlier| earlier.name == export.name) {
                return Err(format!("NBD export: two of them are named {:?}; give each a name of its own", export.name));
            }
        }
        assert!(default.is_none_or(|default| default < list.len()), "the default is one of them");
        Ok(Exports { offers: list.into_iter().map(|export| Offer { export, is_closed: false }).collect(), default })
    }

    /// Only this one, under its name and the empty one.
    pub fn one(export: Export) -> Exports {
        Exports { offers: vec![Offer { export, is_closed: false }], default: Some(0) }
    }

    /// # Panics
    /// If there is no such place.
    pub fn get(&self, place: usize) -> &Export {
        &self.offers[place].export
    }

    pub fn get_mut(&mut self, place: usize) -> &mut Export {
        &mut self.offers[place].export
    }

    /// The place of the export of this name.
    pub fn find(&self, name: &[u8]) -> Option<usize> {
        let named = self.offers.iter().position(|offer| offer.export.name.as_bytes() == name);
        named.or(self.default.filter(|_| name.is_empty()))
    }

    pub fn is_closed(&self, place: usize) -> bool {
        self.offers[place].is_closed
    }

    /// From now on nobody gets it.
    pub fn close(&mut self, place: usize) {
        self.offers[place].is_closed = true;
    }

    /// Those that can be had, in their order.
    pub fn open(&self) -> impl Iterator<Item = &Export> {
        self.offers.iter().filter(|offer| !offer.is_closed).map(|offer| &offer.export)
    }

    /// What one client may know of.
    pub fn offered<'a>(&'a self, who: Who<'a>) -> Offered<'a> {
        Offered { exports: self, who }
    }
}

/// The exports as one client sees them: those that it may not use do not exist.
#[derive(Clone, Copy, Debug)]
pub struct Offered<'a> {
    exports: &'a Exports,
    who: Who<'a>,
}

impl<'a> Offered<'a> {
    /// The place of the export of this name.
    pub fn find(&self, name: &[u8]) -> Option<usize> {
        self.exports.find(name).filter(|&place| allows(&self.get(place).clients, self.who))
    }

    /// # Panics
    /// If there is no such place.
    pub fn get(&self, place: usize) -> &'a Export {
        self.exports.get(place)
    }

    pub fn is_closed(&self, place: usize) -> bool {
        self.exports.is_closed(place)
    }

    /// Those that can be had, in their order.
    pub fn open(self) -> impl Iterator<Item = &'a Export> {
        self.exports.open().filter(move |export| allows(&export.clients, self.who))
    }
}

/// A string in the sense of the protocol (H3).
pub fn is_string(bytes: &[u8]) -> bool {
    bytes.len() <= STRING_BYTES_MAX && !bytes.contains(&0) && std::str::from_utf8(bytes).is_ok()
}

//! What the NBD front offers: one export, its limits, and what a connection has agreed about it.

use super::protocol::{STRING_BYTES_MAX, transmission_flag as flag};

/// Requests of clients that asked for the block sizes are whole atoms: what is not a multiple of this is refused. Others are served to
/// the byte.
pub const BLOCK_BYTES_MIN: u32 = 512;
/// The largest payload of one READ or WRITE: the protocol's own default. TRIM and WRITE_ZEROES may be longer.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

/// The volume as clients see it.
#[derive(Clone, Debug)]
pub struct Export {
    /// Clients may also ask for the empty name: the default export.
    pub name: String,
    /// Text for people; may be empty.
    pub description: String,
    /// Size in bytes: whole atoms.
    pub bytes: u64,
    pub read_only: bool,
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

    /// Is this the export, or the empty name that stands for it?
    pub fn is_named(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }

    /// Transmission flags. CAN_MULTI_CONN is honest: the engine's flush covers every write of the volume that was replied to, on
    /// whichever connection. DF may only be offered to who negotiated structured replies.
    pub fn flags(&self, session: Session) -> u16 {
        let mut flags = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::CAN_MULTI_CONN | flag::SEND_CACHE;
        flags |= if self.read_only { flag::READ_ONLY } else { flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO };
        flags | if session.headers == Headers::Simple { 0 } else { flag::SEND_DF }
    }
}

/// A string in the sense of the protocol (H3).
pub fn is_string(bytes: &[u8]) -> bool {
    bytes.len() <= STRING_BYTES_MAX && !bytes.contains(&0) && std::str::from_utf8(bytes).is_ok()
}

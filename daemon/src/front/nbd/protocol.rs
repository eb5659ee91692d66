//! The NBD protocol's numbers under the names its document gives them. Every integer travels big-endian.

/// What a server says first: `NBDMAGIC`, then [`OPTION_MAGIC`].
pub const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`: starts every option of a client.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;
/// The extension EXTENDED_HEADERS: lengths of 64 bits, and one form for every reply.
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
pub const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

/// Strings (names, messages, queries) are at most this long, UTF-8 and without NUL.
pub const STRING_BYTES_MAX: usize = 4096;
/// Zeros after the answer to EXPORT_NAME, unless the client asked for none.
pub const EXPORT_NAME_ZEROES: usize = 124;

/// Handshake flags; the client's flags use the same bits.
pub mod handshake_flag {
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    pub const NO_ZEROES: u16 = 1 << 1;
}

pub mod option {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const STARTTLS: u32 = 5;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Replies to options.
pub mod answer {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    pub const ERR_UNSUP: u32 = ERROR | 1;
    pub const ERR_INVALID: u32 = ERROR | 3;
    pub const ERR_TLS_REQD: u32 = ERROR | 5;
    pub const ERR_UNKNOWN: u32 = ERROR | 6;
    pub const ERR_SHUTDOWN: u32 = ERROR | 7;
    pub const ERR_TOO_BIG: u32 = ERROR | 9;
    pub const ERR_EXT_HEADER_REQD: u32 = ERROR | 10;
    /// Set in every reply that is an error.
    pub const ERROR: u32 = 1 << 31;
}

/// Kinds of information in the replies to INFO and GO.
pub mod info {
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

pub mod transmission_flag {
    pub const HAS_FLAGS: u16 = 1 << 0;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    pub const SEND_CACHE: u16 = 1 << 10;
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

pub mod command {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const CACHE: u16 = 5;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;
}

pub mod command_flag {
    pub const FUA: u16 = 1 << 0;
    pub const NO_HOLE: u16 = 1 << 1;
    pub const DF: u16 = 1 << 2;
    pub const REQ_ONE: u16 = 1 << 3;
    pub const FAST_ZERO: u16 = 1 << 4;
    /// With extended headers only: the length is that of a payload.
    pub const PAYLOAD_LEN: u16 = 1 << 5;
}

/// Kinds of chunks of a structured reply.
pub mod chunk {
    /// A flag, not a kind: the last chunk of its reply.
    pub const DONE: u16 = 1 << 0;
    pub const NONE: u16 = 0;
    pub const OFFSET_DATA: u16 = 1;
    pub const BLOCK_STATUS: u16 = 5;
    pub const BLOCK_STATUS_EXT: u16 = 6;
    pub const ERROR: u16 = (1 << 15) | 1;
}

/// The error values of replies.
pub mod error {
    pub const PERM: u32 = 1;
    pub const IO: u32 = 5;
    pub const INVALID: u32 = 22;
    pub const NO_SPACE: u32 = 28;
    pub const NOT_SUPPORTED: u32 = 95;
    pub const SHUTDOWN: u32 = 108;
}

/// `base:allocation` and its extent flags.
pub mod allocation {
    pub const NAME: &str = "base:allocation";
    /// The namespace alone: in a LIST query, every context in it.
    pub const NAMESPACE: &str = "base:";
    /// The number that stands for the context in replies.
    pub const ID: u32 = 1;
    pub const HOLE: u32 = 1 << 0;
    pub const ZERO: u32 = 1 << 1;
}

/// `tidegate:tier`: where the newest contents are. Its values are numbers, not flags.
pub mod tier {
    pub const NAME: &str = "tidegate:tier";
    pub const NAMESPACE: &str = "tidegate:";
    pub const ID: u32 = 2;
    pub const ORIGIN: u32 = 0;
    /// On the SSD, and the origin holds the same.
    pub const CLEAN: u32 = 1;
    /// On the SSD, and newer than the origin.
    pub const DIRTY: u32 = 2;
    /// In memory, until a flush covers it.
    pub const MEMORY: u32 = 3;
}

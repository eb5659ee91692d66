//! What is measured: one row of the table each.

pub const BLOCK_BYTES: u64 = 4 << 10;
pub const MIB: u64 = 1 << 20;
/// A thousand random writes.
pub const FLUSH_BYTES: u64 = 1_000 * BLOCK_BYTES;
/// Of the device when it is limited.
pub const RATE: u64 = 500_000_000;
/// Requests of 1 MiB in flight, of the bare file as of the stack.
pub const SEQUENTIAL_DEPTH: u64 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Read,
    /// With a FLUSH after every [`FLUSH_BYTES`].
    Write,
}

/// What the device gives at most, in bytes a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    None,
    /// Reads and writes together, as SATA.
    Shared(u64),
    /// Reads as much as writes, as NVMe and SAS.
    EachWay(u64),
}

impl Limit {
    pub fn rate(self) -> Option<u64> {
        match self {
            Limit::None => None,
            Limit::Shared(rate) | Limit::EachWay(rate) => Some(rate),
        }
    }
}

/// What is in the cache before the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Log {
    /// Nothing: formatted before every slice.
    Fresh,
    /// All blocks of the volume, which make 80 % of the log, overwritten at random: a cleaner makes room for every write.
    Aged,
    /// What is read.
    Written,
}

#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub what: &'static str,
    pub way: Way,
    pub log: Log,
    /// Of one request; less than 1 MiB: at random.
    pub bytes: u64,
    /// Requests in flight.
    pub depth: u64,
    /// For the bare file too.
    pub limit: Limit,
    /// Bytes of one slice.
    pub slice_bytes: u64,
    pub rounds: usize,
    /// Of the bare file's bandwidth; of random writes times what the log writes for each byte.
    pub floor: f64,
}

impl Load {
    pub fn is_random(&self) -> bool {
        self.bytes < MIB
    }
}

/// Where nothing is limited: of 256 MiB, which take 50 ms, what comes before the second request and after the last was about a twentieth.
const LONG: u64 = 768 * MIB;

const RANDOM: Load = Load {
    what: "",
    way: Way::Write,
    log: Log::Fresh,
    bytes: BLOCK_BYTES,
    depth: 32,
    limit: Limit::Shared(RATE),
    slice_bytes: 192 * MIB,
    rounds: 12,
    floor: 0.85,
};
const SEQUENTIAL: Load =
    Load { bytes: MIB, depth: SEQUENTIAL_DEPTH, limit: Limit::None, slice_bytes: 256 * MIB, rounds: 16, floor: 0.95, ..RANDOM };

pub const LOADS: [Load; 8] = [
    Load { what: "4 KiB random writes, depth 32", ..RANDOM },
    Load { what: "4 KiB random writes, depth 256", depth: 256, ..RANDOM },
    Load { what: "the same, log 80 % full, depth 32", log: Log::Aged, slice_bytes: 96 * MIB, rounds: 8, ..RANDOM },
    Load { what: "the same, reads limited apart", log: Log::Aged, limit: Limit::EachWay(RATE), slice_bytes: 96 * MIB, rounds: 8, ..RANDOM },
    Load { what: "1 MiB sequential writes, limited", limit: Limit::Shared(RATE), ..SEQUENTIAL },
    Load { what: "1 MiB sequential reads, limited", way: Way::Read, log: Log::Written, limit: Limit::Shared(RATE), ..SEQUENTIAL },
    Load { what: "1 MiB sequential writes", slice_bytes: LONG, ..SEQUENTIAL },
    Load { what: "1 MiB sequential reads", way: Way::Read, log: Log::Written, slice_bytes: LONG, ..SEQUENTIAL },
];

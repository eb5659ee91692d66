//! What is measured: one row of the table each.

pub const BLOCK_BYTES: u64 = 4096;
pub const MIB: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Read,
    /// Ends in a FLUSH, whose time counts.
    Write,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Random,
    /// Each slice from where the one before ended.
    Sequential,
}

/// Requests of one kind.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub what: &'static str,
    pub way: Way,
    pub order: Order,
    /// Of one request.
    pub bytes: u64,
    /// Requests in flight.
    pub depth: u64,
}

pub const SEQUENTIAL_READS: Load =
    Load { what: "1 MiB sequential reads, depth 8", way: Way::Read, order: Order::Sequential, bytes: MIB, depth: 8 };
pub const SEQUENTIAL_WRITES: Load =
    Load { what: "1 MiB sequential writes, depth 8", way: Way::Write, order: Order::Sequential, bytes: MIB, depth: 8 };

pub const LOADS: [Load; 6] = [
    Load { what: "4 KiB random reads, depth 1", way: Way::Read, order: Order::Random, bytes: BLOCK_BYTES, depth: 1 },
    Load { what: "4 KiB random reads, depth 32", way: Way::Read, order: Order::Random, bytes: BLOCK_BYTES, depth: 32 },
    Load { what: "4 KiB random writes, depth 1", way: Way::Write, order: Order::Random, bytes: BLOCK_BYTES, depth: 1 },
    Load { what: "4 KiB random writes, depth 32", way: Way::Write, order: Order::Random, bytes: BLOCK_BYTES, depth: 32 },
    SEQUENTIAL_READS,
    SEQUENTIAL_WRITES,
];

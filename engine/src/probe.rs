//! Everything worth reporting: counters that only grow, a histogram of latencies, and the state of the moment.

use crate::admission::Rule;
use crate::block::Span;
use crate::mode::Mode;
use crate::op::{Class, DeviceError};
use crate::policy;
use crate::spin;
use crate::time::{Duration, Instant};
use crate::wear::{ByCause, Wear};

/// Counts since the engine started. Every bypass, stall and destage has a counted reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub reads: u64,
    pub writes: u64,
    pub flushes: u64,
    pub trims: u64,
    /// Blocks of reads served by the cache (SSD or pinned memory).
    pub hit_blocks: u64,
    /// Blocks of reads that needed the origin.
    pub miss_blocks: u64,
    pub read_atoms: u64,
    pub written_atoms: u64,
    /// Blocks kept by a fill; dropped because their ticket died; dropped for want of room.
    pub filled_blocks: u64,
    /// Partly valid blocks that were made whole with what a read had fetched.
    pub completed_blocks: u64,
    pub fill_void_blocks: u64,
    /// Blocks of reads that memory answered, and of those that it had not all of.
    pub memory_hit_blocks: u64,
    pub memory_miss_blocks: u64,
    /// Blocks that fronts have made pages of themselves, before the engine heard of them.
    pub front_written_blocks: u64,
    pub fill_no_room_blocks: u64,
    /// Not kept because the daily write budget was spent; or, where something else would have had to go for them: parts of long sequences;
    /// missed for the first time; missed again, but not often enough.
    pub fill_budget_blocks: u64,
    pub fill_sequential_blocks: u64,
    pub fill_first_touch_blocks: u64,
    pub fill_sieved_blocks: u64,
    /// Neighbourhoods of misses that were read from the origin before anybody asked for them.
    pub around_reads: u64,
    /// Blocks that were read from the SSD ahead of a sequence; that clients' reads have found there, or on their way.
    pub ahead_blocks: u64,
    pub ahead_hit_blocks: u64,
    /// Blocks written past the log to the origin; of these, parts of long sequential writes that share the two devices, and small writes with a
    /// FLUSH after them, and such as would have been converted; put into the log after all by a FLUSH; flushes of the origin for them.
    pub through_blocks: u64,
    pub split_blocks: u64,
    pub commit_blocks: u64,
    pub straight_blocks: u64,
    pub through_logged_blocks: u64,
    pub through_flushes: u64,
    /// Blocks overwritten in place under set placement.
    pub overwritten_blocks: u64,
    pub destaged_blocks: u64,
    pub destage_batches: u64,
    pub destage_failures: u64,
    pub zeroed_blocks: u64,
    pub lost_blocks: u64,
    /// Clean sets that were dropped to make room, whole; that stayed once more, because half of what they hold was read.
    pub dropped_sets: u64,
    pub spared_sets: u64,
    /// Sets that were emptied by the cleaner; blocks that it moved to other sets, and clean ones that it dropped.
    pub cleaned_sets: u64,
    pub moved_blocks: u64,
    pub clean_dropped_blocks: u64,
    /// Times that the cleaner had to wait for the daily budget.
    pub clean_budget_waits: u64,
    /// Sets discarded on the SSD before they were free; freed without, because one was needed or the SSD does not discard; discards that failed.
    pub discarded_sets: u64,
    pub undiscarded_sets: u64,
    pub discard_failures: u64,
    pub waits: Waits,
    /// Slots whose contents did not match their checksum, or could not be read.
    pub corrupt_clean_slots: u64,
    pub corrupt_dirty_slots: u64,
    pub cache_flushes: u64,
    pub cache_flush_failures: u64,
    pub cache_write_failures: u64,
    pub checkpoints: u64,
    pub journal_pages: u64,
    /// Atoms written to the SSD.
    pub cache_atoms: ByCause,
    pub late_ops: u64,
    /// Writes and FLUSHes that failed because the origin made no room for `Config::stall_timeout`.
    pub stalled_requests: u64,
    /// Blocks that the scrubber has verified; of these, clean ones that were dropped, and dirty ones that are damaged: written anew from memory, or
    /// left, and counted again in each pass; pieces of metadata that were written again; passes over everything.
    pub scrubbed_blocks: u64,
    pub scrub_dropped_blocks: u64,
    pub scrub_rescued_blocks: u64,
    pub scrub_damaged_blocks: u64,
    pub scrub_repaired_pages: u64,
    pub scrub_passes: u64,
    /// Filled by recovery.
    pub recovered_clean_slots: u64,
    pub recovered_dirty_slots: u64,
    pub recovered_groups: u64,
    pub recovered_cut_groups: u64,
    /// Blocks of the origin that were compared with what they held.
    pub fence_checked_blocks: u64,
}

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// The engine recovers.
    Recovery,
    /// Those before it.
    Turn,
    /// Blocks that another write holds while it is merged.
    Lock,
    /// A free set.
    Set,
    /// Room for unflushed data in memory.
    Window,
    /// Room for acknowledged data that is not on the SSD yet (`dirty_ram`).
    Ram,
    Journal,
    RangeTable,
    /// The end of a write to the same place of the origin.
    OriginSpan,
    /// Older writes, to reach the origin: in write-through no more may wait than a FLUSH is to wait for.
    Home,
    /// A slot that may be overwritten in place.
    Slot,
    /// Its data, being read.
    Read,
    /// Its data, being written.
    Data,
    /// The origin's answer.
    Origin,
    /// Its group, to be durable.
    Flush,
    /// The host, to write down that the SSD has failed.
    Fence,
}

impl WaitReason {
    /// Those that are counted: the others every request of its kind waits for.
    pub const COUNTED: [WaitReason; 10] = [
        WaitReason::Lock,
        WaitReason::Set,
        WaitReason::Window,
        WaitReason::Ram,
        WaitReason::Journal,
        WaitReason::RangeTable,
        WaitReason::OriginSpan,
        WaitReason::Home,
        WaitReason::Slot,
        WaitReason::Fence,
    ];

    /// For people and programs outside.
    pub fn name(self) -> &'static str {
        match self {
            WaitReason::Recovery => "recovery",
            WaitReason::Turn => "turn",
            WaitReason::Lock => "lock",
            WaitReason::Set => "set",
            WaitReason::Window => "window",
            WaitReason::Ram => "ram",
            WaitReason::Journal => "journal",
            WaitReason::RangeTable => "range_table",
            WaitReason::OriginSpan => "origin_span",
            WaitReason::Home => "home",
            WaitReason::Slot => "slot",
            WaitReason::Read => "read",
            WaitReason::Data => "data",
            WaitReason::Origin => "origin",
            WaitReason::Flush => "flush",
            WaitReason::Fence => "fence",
        }
    }
}

impl std::fmt::Display for WaitReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Requests that had to wait, by reason: those of [`WaitReason::COUNTED`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waits([u64; WaitReason::COUNTED.len()]);

impl Waits {
    pub(crate) fn count(&mut self, reason: WaitReason) {
        let place = WaitReason::COUNTED.iter().position(|&counted| counted == reason).expect("a reason that is counted");
        self.0[place] += 1;
    }
    /// Each counted reason, and how many waited for it.
    pub fn iter(&self) -> impl Iterator<Item = (WaitReason, u64)> + '_ {
        WaitReason::COUNTED.into_iter().zip(self.0.iter().copied())
    }
}

/// From a request's arrival to its answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latencies {
    pub read: Histogram,
    pub write: Histogram,
    pub flush: Histogram,
}

/// Latencies in nanoseconds: 8 buckets to each power of two, so a percentile is right within 12.5 %.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    buckets: Box<[u64]>,
    count: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { buckets: vec![0; 64 * 8].into_boxed_slice(), count: 0 }
    }
}

impl Histogram {
    fn bucket(ns: u64) -> usize {
        let ns = ns.max(8);
        let power = 63 - ns.leading_zeros();
        (power as usize) * 8 + ((ns >> (power - 3)) & 7) as usize
    }
    pub fn record(&mut self, latency: Duration) {
        self.buckets[Self::bucket(latency.0)] += 1;
        self.count += 1;
    }
    pub fn count(&self) -> u64 {
        self.count
    }
    /// The upper bound of the bucket that holds the `fraction` (0 to 1) percentile; zero when nothing was recorded.
    pub fn percentile(&self, fraction: f64) -> Duration {
        let rank = (self.count as f64 * fraction).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank {
                let (power, part) = (bucket / 8, bucket as u64 % 8);
                return Duration(if power < 3 { 8 } else { (8 + part + 1) << (power - 3) });
            }
        }
        Duration::ZERO
    }
}

/// How long the operations of one class waited for a device, and how long it then had them. What was merged counts once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueTimes {
    pub queue: Histogram,
    pub service: Histogram,
}

/// Where the engine stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Reading the metadata; requests are held.
    Recovering,
    Serving,
    /// Recovery found what it must not repair (or `check` ended): nothing was written, nothing is served.
    Refused,
    /// After `Control::Stop`: everything acknowledged is durable, nothing is taken any more.
    Stopped,
}

/// How the cache is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    Whole,
    /// It has failed; the host writes down that it misses writes from now on.
    Fencing,
    /// The host could not: nothing is acknowledged.
    Unfenced,
    /// The volume goes on without it.
    Degraded,
}

/// The work of the scrubber.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scrub {
    /// Sets of the pass under way that have been verified; none if there is no scrubbing.
    pub sets_done: Option<u32>,
    /// When the last pass over everything ended.
    pub last_pass: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateState {
    /// Free sets at or above the floor.
    Normal,
    /// Below the floor, waiting for idleness.
    Wait,
    /// Destaging, and why.
    Destage(DestageReason),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DestageReason {
    /// Free sets are below the floor, and the gate does not wait (paper 000, OLD).
    BelowFloor,
    Idle,
    HighMark,
    Age,
    NoFreeSet,
    Drain,
    /// A FLUSH promises the origin, or is going to.
    Mode,
    /// The disk turns anyway, and may stand still when everything is home that was dirty when it was woken.
    Sweep,
}

/// Something that recovery found damaged. `fatal` damage keeps the volume offline; the rest was repaired from a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    pub fatal: bool,
    /// One line: what and where (byte offset on the SSD).
    pub what: String,
}

/// How far a recovery is that does not serve yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovering {
    pub step: RecoveryStep,
    /// Operations of this step that have ended, of so many that are known of; or blocks of the origin that were compared.
    pub done: usize,
    pub of: usize,
}

/// What a recovery is about, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryStep {
    Superblocks,
    /// State map and journal.
    Metadata,
    /// Data of groups that may not be durable.
    Tail,
    /// Of sets with dirty blocks.
    Headers,
    /// Is it as it was?
    Origin,
    /// Last writes and superblocks: nothing is written before.
    Writing,
}

impl RecoveryStep {
    pub fn name(self) -> &'static str {
        match self {
            RecoveryStep::Superblocks => "superblocks",
            RecoveryStep::Metadata => "metadata",
            RecoveryStep::Tail => "tail",
            RecoveryStep::Headers => "headers",
            RecoveryStep::Origin => "origin",
            RecoveryStep::Writing => "writing",
        }
    }
}

/// A block on the SSD, as the log describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// On the SSD.
    pub slot: Span,
    /// In the volume: at the end of one that is no whole number of blocks, shorter.
    pub block: Span,
    /// Of all that the slot holds.
    pub checksum: u32,
    /// Newer than the origin.
    pub is_dirty: bool,
}

/// What changes from turn to turn and costs nothing to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Glance {
    pub gate: GateState,
    pub free_sets: u32,
    pub dirty_sets: u32,
    /// Of the origin's motor, by cause.
    pub starts: [u64; spin::Cause::ALL.len()],
}

/// The state of the moment, for `status`, tests and the oracle.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The moment.
    pub now: Instant,
    pub phase: Phase,
    /// While it recovers.
    pub recovery: Option<Recovering>,
    /// It has begun to serve: what the cache has is known.
    pub has_served: bool,
    /// Grows with every start, and once more with an orderly stop.
    pub epoch: u64,
    pub gate: GateState,
    pub sets: u32,
    pub free_sets: u32,
    pub dirty_sets: u32,
    pub live_slots: u64,
    pub dirty_slots: u64,
    /// Ranges that read as zeros and have not gone home.
    pub zero_ranges: u64,
    /// Blocks of which atoms cannot be had any more: reading those is an error until they are written.
    pub lost_blocks: u64,
    /// Entries of the range table on the SSD that all of these take.
    pub range_entries: u64,
    /// Age of the oldest dirty block; at the grain of a set. What the origin refuses grows old anew.
    pub oldest_dirty: Option<Duration>,
    pub requests_in_flight: usize,
    pub drain: Option<Drain>,
    /// What the drain under way still takes, about.
    pub drain_left: Option<Duration>,
    pub mode: ModeView,
    /// The cache is being taken from its origin.
    pub is_detaching: bool,
    /// Dirty blocks, and pieces of dirty ranges, that the origin did not take when they were last to go home.
    pub refused_blocks: u64,
    /// Dirty blocks that the SSD does not give, where the range table has no room to note them as lost: they stay dirty, reading them is an
    /// error until they are written, and neither a drain nor a FLUSH waits for them.
    pub unreadable_blocks: u64,
    /// What the origin has answered to writes and flushes since it last took one.
    pub origin_error: Option<DeviceError>,
    pub health: Health,
    /// Since when the volume has gone on without the SSD, or tries to.
    pub degraded_since: Option<Instant>,
    pub scrub: Scrub,
    pub wear: Wear,
    pub memory: MemoryUse,
    /// What is kept now where something else has to go for it.
    pub admission: Rule,
    /// A batch of destaging takes about so long at most while nothing presses.
    pub batch_most: Duration,
    /// The 99th percentile of clients' small reads of the origin that met no batch, once there were some.
    pub quiet_p99: Option<Duration>,
    /// The motor of the origin, if it is told to stand still.
    pub spin: Option<spin::Report>,
    pub counters: Counters,
    pub latencies: Latencies,
    /// Of the cache and of the origin, each class that there was.
    pub queues: [Vec<(Class, QueueTimes)>; 2],
    /// Bytes held by each part of the engine, counted from its own lengths and capacities (the ledger).
    pub ledger: Vec<(&'static str, u64)>,
    pub damage: Vec<Damage>,
    /// Every request in flight and what it waits for, oldest first.
    pub requests: Vec<(crate::request::RequestId, Instant, WaitReason)>,
}

impl Snapshot {
    /// Blocks and ranges that the origin alone would show older contents of.
    pub fn newer(&self) -> u64 {
        self.dirty_slots + self.zero_ranges + self.lost_blocks
    }
}

/// Pages of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// In use, and in use at most. None at most: there is no memory.
    pub pages: u64,
    pub pages_max: u64,
    /// Of the most, pages that dirty memory has lent; how often that has changed since the start.
    pub lent: u64,
    pub lent_moves: u64,
    /// Pages that had to go for others, since the start.
    pub evicted: u64,
    /// By what they are chosen. Of the chooser, whom it follows, and how often that has changed since the start.
    pub policy: policy::Kind,
    pub follows: Option<(policy::Kind, u64)>,
}

/// What a FLUSH promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeView {
    /// What was asked for.
    pub wanted: Mode,
    /// What the superblocks say. Of a mode that promises the origin: nothing that was flushed is on the SSD alone.
    pub recorded: Mode,
    /// It is on its way from the one to the other.
    pub is_switching: bool,
    /// It holds but for some blocks, which were found lost or cannot be read: the origin has older contents of those, or nothing.
    pub has_exceptions: bool,
}

/// Progress of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drain {
    pub started: Instant,
    /// Dirty blocks (and zeroed ranges, counted in blocks) when it started, and left now.
    pub blocks_at_start: u64,
    pub blocks_left: u64,
}

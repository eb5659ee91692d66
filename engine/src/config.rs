//! Every knob of the engine, with its default and the assumption it was tuned for.

use crate::block::{ATOM_BYTES, PAGE_BYTES};
use crate::cache::detour;
use crate::cache::format::{FormatId, Geometry};
use crate::cache::heat::CLASSES_MAX;
use crate::cache::placed::journal_pages_needed;
use crate::cache::sets::Benefit;
use crate::cache::split::Legs;
use crate::mode::Mode;
use crate::policy;
use crate::queue::QueueKind;
use crate::spin;
use crate::time::Duration;

/// Pages of fewer blocks than these in [`Config::ram`] are none.
pub const RAM_BLOCKS_LEAST: u64 = 16;

/// What one volume's engine is told at its start. Nothing here is read from a file: the binary does that.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where everything lies on the SSD, and the size of the volume.
    pub geometry: Geometry,
    /// The identity drawn when the SSD was formatted: another one is refused.
    pub format: FormatId,
    /// The identity of the origin recorded at format: another one is refused. Zero where unknown.
    pub origin: [u8; 16],
    /// Free sets below which the gate leaves Normal. Default 10 % of the sets (papers' plans: 1000 sets).
    pub free_floor: u32,
    /// Sets that only client writes may take; fills leave them alone. Default 2 %, at least 2.
    pub reserve: u32,
    /// Sets that what is dirty would fill above which destaging does not wait for idleness. Default 70 %.
    pub dirty_high: u32,
    /// Idle time after which destaging may start, and room is made in full by the cleaner. Default 2 s (the papers give none; "of the order of a second").
    pub wait: Duration,
    /// Age above which a dirty block is destaged without waiting for idleness. Default: [`Allocation::usual_dirty_age`].
    pub max_dirty_age: Duration,
    /// Origin operations of a destage batch in flight at once. Default 32: an HDD's queue.
    pub destage_depth: usize,
    /// Atoms of one destage batch, that is between two flushes of the origin. Default 16 MiB.
    pub destage_atoms: u64,
    /// Bytes written to the SSD and not yet flushed, all pinned in memory. Default: a sixteenth of the cache, from 4 MiB to 128 MiB; half of it
    /// begins a flush, and each flush costs a stream of writes as much as a few requests.
    pub window_bytes: u64,
    /// Bytes written past the log to the origin and not flushed there, all pinned in memory. Default 64 MiB: a disk is to be flushed seldom
    /// while it takes a long sequence, and loses a rotation each time.
    pub through_bytes: u64,
    /// Bytes of acknowledged writes that may be in memory alone, on their way to the SSD. 0, the default here: a write is acknowledged when it
    /// has landed. At most the window has effect. Not under set placement, nor for what goes through.
    pub dirty_ram: u64,
    /// As much of it is never lent to pages of `ram`, however seldom writes fill the rest. Default all of it: nothing is lent.
    pub dirty_ram_least: Option<u64>,
    /// The engine's own flush comes when the oldest unflushed write is this old, and takes the fills that wait for others. Default 1 s.
    pub flush_age: Duration,
    /// Requests admitted at once. Default 1,024 (eight connections of 128).
    pub requests_max: usize,
    /// Payload bytes of admitted requests. Default 256 MiB.
    pub bytes_max: u64,
    /// What a FLUSH promises. Default: what the superblock says, which is write-back after a format.
    pub mode: Option<Mode>,
    /// When what was read from the origin is kept. Default behind the reply.
    pub fill: Fill,
    /// What is kept of writes. Default read-write.
    pub allocation: Allocation,
    /// Which writes count as small. Default by size.
    pub convert: Convert,
    /// Atoms of the largest write that counts as small. Default: what `convert` is best with.
    pub convert_max: Option<u64>,
    /// Bytes of memory for pages of what clients read and write. 0, the default here: none.
    pub ram: u64,
    /// Which of those pages goes for another one. Default S3-FIFO: 8 bytes for each, and on no trace much worse than LRU.
    pub memory_policy: policy::Kind,
    /// Threads beside the engine's that read pages themselves ([`crate::Engine::pages`]). Default 0.
    pub fronts: usize,
    /// Which slot a block goes to. Default log.
    pub placement: Placement,
    /// When dirty blocks go home. Default ours.
    pub gate: GateKind,
    /// Whether sets with dead slots are emptied, and which first. Default by the rates at which blocks are written.
    pub cleaning: Cleaning,
    /// Free sets below which the cleaner works. Default half more than the reserve: it is at work before destaging has to be.
    pub clean_floor: u32,
    /// Headers of sealed sets that are held back until so many are due, or a checkpoint needs them: those of neighbours are one write, and a FLUSH
    /// in between has less to wait for. Default 16, fewer in a cache of less than 512 sets: one for each 32.
    pub headers_together: u32,
    /// When clients have sent so many times as much as a large write (256 KiB, or a set), without a pause, a FLUSH or a read of the SSD, their small
    /// writes are gathered for a moment although the SSD is idle, with `dirty_ram`. Default 4; 0: always.
    pub long_burst: u32,
    /// Classes of blocks that are told apart by how often they are written: each has open sets of its own. At most
    /// [`crate::cache::heat::CLASSES_MAX`]. Default that, fewer in a cache of less than 1,536 sets: one for each 256.
    pub classes: u32,
    /// Blocks of memory and of the SSD that TRIMs and zeroes forget in one turn: others have theirs in between. Longer ones may take
    /// several, and a crash may come between. At least 1. Default 2,048.
    pub zeroed_together: u64,
    /// Sets that are freed in one turn, likewise. At least 1. Default 256.
    pub freed_together: u32,
    /// What a write does when no set is free. Default: it waits.
    pub when_full: WhenFull,
    /// Part of a long sequential write goes to the origin from the start, and all of it while no set is free; in write-back mode, of what the
    /// cache has nothing of. None: never. Default: legs of 10 MiB, of sequences that have
    /// covered a thirty-second of the cache.
    pub split: Option<Legs>,
    /// Small writes of [`Allocation::SmallWrites`] go to the origin while the log is full and that proves quicker: answers that are counted.
    /// None: never.
    pub detour: Option<detour::Counts>,
    /// Does a small write that a FLUSH follows go to the origin, and the FLUSH flush that? In write-back mode, of what the cache has nothing of.
    /// Default where that is sooner durable.
    pub commit_home: CommitHome,
    /// Is what lies around a missed block read and kept as well, behind the reply? Default where that pays.
    pub read_around: ReadAround,
    /// Bytes of memory for what is read from the SSD ahead of sequential reads. 0: nothing is. Default 16 MiB.
    pub read_ahead: u64,
    /// Cached clean blocks whose place on the origin is read again at the start, and marks of the origin that are taken at an orderly
    /// stop, if it is not 0: was it changed behind the cache's back? Default 1,024.
    pub fence_samples: u32,
    /// A write that waits for room because the origin shows no sign of life fails when it has waited for so long, and so does a FLUSH that
    /// needs the origin. Default 60 s: longer than a disk takes to spin up or a path to fail over, shorter than the two minutes after which
    /// kernels call a task hung. (NBD clients of Linux and QEMU set no time limit of their own.)
    pub stall_timeout: Duration,
    /// Bytes per second that the scrubber reads while no client waits. 0, the default here: it does not run.
    pub scrub_rate: u64,
    /// Bytes a day that may be written to the SSD before what can be done without is left: fills, and blocks moved without need. 0, the
    /// default: no limit.
    pub daily_write_bytes: u64,
    /// Tell the SSD of every set that is freed that its contents are not needed, before it is free. Default false: what an SSD makes of it, and
    /// how long it takes, differs from one to the next.
    pub discard: bool,
    /// The origin is a disk that may stand still while nobody needs it. None, the default: it is not told anything.
    pub spin: Option<spin::Config>,
    /// What the cache's operations and the origin's are scheduled by. Default by their urgency: the other schedulers are Linux's and paper
    /// 003's, made for devices and hosts as they were.
    pub queues: [QueueKind; 2],
    /// Parts of the SSD that work side by side and have an equal stretch of its addresses each. Default 1: nothing is known of them, as of most
    /// SSDs, which spread by themselves what is written.
    pub lanes: u32,
    /// Recover, report and stop before the first write (`tidegate check`). Default false.
    pub check: bool,
    /// A deliberate bug, for tests that must find it. Always `None` in production: no configuration file can name it.
    pub canary: Option<Canary>,
}

/// When what lies around a miss is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadAround {
    Never,
    /// Where it pays ([`crate::cache::neighbours`]).
    #[default]
    Judged,
    /// Whatever it costs, and the little that lies next: for tests.
    Always,
}

/// When a small write that a FLUSH follows goes to the origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommitHome {
    Never,
    /// Where it is durable there sooner than in the log ([`crate::cache::commit`]).
    #[default]
    Judged,
    /// Two small writes of three, whatever it costs: for tests.
    Always,
}

/// What the cache allocates slots for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Allocation {
    /// Reads and writes (paper 000's R/W cache).
    #[default]
    ReadWrite,
    /// Read misses only: writes go through to the origin, and what the cache holds of their blocks dies.
    ReadOnly,
    /// Small writes only, as [`Convert`] tells them (paper 002): the others go through, and what is read is not kept.
    SmallWrites,
}

impl Allocation {
    /// How long something may be dirty where nobody has said it. What small writes are kept back from is the drive that they would slow down, and
    /// mostly the cache's own: a day, as long as a disk may sleep; else an owner's patience.
    pub fn usual_dirty_age(self) -> Duration {
        match self {
            Allocation::SmallWrites => Duration::from_secs(24 * 3_600),
            Allocation::ReadWrite | Allocation::ReadOnly => Duration::from_secs(600),
        }
    }
}

/// How small writes are told from others (`cache::convert`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Convert {
    /// By their size (paper 002).
    #[default]
    Size,
    /// By their distance from what is being written in sequence.
    Randomness,
}

impl Convert {
    /// Atoms of the largest write that is taken. By size 4 KiB, the paper's. By randomness 256 KiB: half an erase block of the paper's drives;
    /// what is larger replaces most of a block, wherever it lies.
    pub const fn atoms_max(self) -> u64 {
        match self {
            Convert::Size => 8,
            Convert::Randomness => 512,
        }
    }
}

/// Which slot a block goes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// The next slot of the open set: every write is sequential within a set.
    #[default]
    Log,
    /// Slot *i* of the cache set that its origin set is mapped to, overwritten in place (paper 000; for its experiments). Contents that were
    /// not flushed may survive a crash atom by atom, and in any order. The journal ring must be large: `Config::journal_pages_needed`.
    Set,
}

/// When what was read from the origin is written to the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fill {
    /// Never.
    Off,
    /// Behind the reply, from the same buffer.
    #[default]
    Behind,
    /// The reply waits for it (paper 000). The origin is read in pieces of 256 KiB, so that reading and filling overlap.
    BeforeReply,
}

/// When dirty blocks go home (`gate`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GateKind {
    /// When the volume is idle, or for a reason that cannot wait; in one sweep over the volume.
    #[default]
    Ours,
    /// Paper 000, NEW: when the volume is idle and free sets are below the floor; four sets at once.
    New,
    /// Paper 000, OLD: as soon as free sets are below the floor; one set at a time.
    Old,
}

/// Which sets with dead slots are emptied first (`path/clean`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cleaning {
    /// None: a set is free when all its slots have died or are clean.
    Off,
    /// That with the fewest live slots. For experiments.
    Greedy,
    /// That whose cost declines least while it waits ([`Benefit::Declining`]).
    #[default]
    Declining,
}

impl Cleaning {
    /// By what sets are compared.
    pub fn benefit(self) -> Benefit {
        match self {
            Cleaning::Greedy => Benefit::Greedy,
            Cleaning::Off | Cleaning::Declining => Benefit::Declining,
        }
    }
}

/// What becomes of a write for which no set is free and none can be dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// It waits until destaging has freed one.
    #[default]
    Wait,
    /// It goes through to the origin (paper 000).
    Through,
}

/// Deliberate bugs (tests only): a net that catches nothing proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// A FLUSH does not wait for the data that its records name.
    RecordBeforeData,
    /// A set is reused although the kills of its slots are not durable.
    ReuseTooEarly,
    /// A FLUSH is answered without a flush of the SSD.
    FlushDoesNotWait,
    /// Dirty slots are destaged before they are durable.
    DestageBeforeDurable,
    /// The first answer after a recovery does not wait for the new cut.
    CutNotWritten,
    /// A fill is kept although its block was written meanwhile.
    FillWithoutTicket,
    /// A through write kills the clean copies of its blocks only when the origin has been written.
    KillAfterOriginWrite,
    /// A slot is overwritten in place before it is durable that it may be.
    OverwriteUnopened,
    /// A FLUSH in write-through does not wait for the origin's own flush.
    HomeBeforeOriginFlush,
    /// A slot is moved although its block was written meanwhile.
    MoveOverNewer,
    /// Writes without the SSD are acknowledged before the host has written down that it misses them.
    UnfencedDegraded,
    /// A set is discarded on the SSD although the kills of its slots are not durable.
    DiscardTooEarly,
    /// A page stays in memory although its block has changed.
    StalePage,
    /// What fronts have written is taken over only after what arrived with it.
    LateFrontWrites,
    /// What was read ahead is given out although its set has been used again since.
    AheadOfAnotherLife,
    /// What one write puts into the log is of two groups.
    WriteInTwoGroups,
    /// The origin is stopped although it may not be started again within the hour.
    StopsUncounted,
    /// Behind a batch that has failed the next one begins after an hour only.
    RestsTooLong,
    /// Contents are told from others by their CRC-32C alone.
    CrcAlone,
}

impl Canary {
    pub const ALL: [Canary; 19] = [
        Canary::RecordBeforeData,
        Canary::ReuseTooEarly,
        Canary::FlushDoesNotWait,
        Canary::DestageBeforeDurable,
        Canary::CutNotWritten,
        Canary::FillWithoutTicket,
        Canary::KillAfterOriginWrite,
        Canary::OverwriteUnopened,
        Canary::HomeBeforeOriginFlush,
        Canary::MoveOverNewer,
        Canary::UnfencedDegraded,
        Canary::DiscardTooEarly,
        Canary::StalePage,
        Canary::LateFrontWrites,
        Canary::AheadOfAnotherLife,
        Canary::WriteInTwoGroups,
        Canary::StopsUncounted,
        Canary::RestsTooLong,
        Canary::CrcAlone,
    ];
}

impl Config {
    /// The defaults for a geometry.
    pub fn new(geometry: Geometry, format: FormatId) -> Self {
        let sets = geometry.sets;
        let cache = geometry.cache_atoms() * ATOM_BYTES;
        Config {
            free_floor: (sets / 10).max(3),
            reserve: (sets / 50).max(2),
            dirty_high: sets * 7 / 10,
            wait: Duration::from_secs(2),
            max_dirty_age: Allocation::default().usual_dirty_age(),
            destage_depth: 32,
            destage_atoms: 16 << 11,
            window_bytes: (cache / 16).clamp(4 << 20, 128 << 20),
            through_bytes: 64 << 20,
            dirty_ram: 0,
            dirty_ram_least: None,
            ram: 0,
            memory_policy: policy::Kind::default(),
            fronts: 0,
            flush_age: Duration::from_secs(1),
            requests_max: 1024,
            bytes_max: 256 << 20,
            fill: Fill::Behind,
            mode: None,
            allocation: Allocation::ReadWrite,
            convert: Convert::Size,
            convert_max: None,
            placement: Placement::Log,
            gate: GateKind::Ours,
            cleaning: Cleaning::Declining,
            clean_floor: (sets / 50).max(2) * 3 / 2,
            headers_together: (sets / 32).clamp(1, 16),
            long_burst: 4,
            classes: (sets / 256).clamp(1, CLASSES_MAX),
            zeroed_together: 2_048,
            freed_together: 256,
            when_full: WhenFull::Wait,
            detour: Some(detour::Counts::default()),
            split: Some(Legs::of_cache(u64::from(sets) * u64::from(geometry.set_slots) * u64::from(geometry.block_atoms))),
            commit_home: CommitHome::Judged,
            read_around: ReadAround::Judged,
            read_ahead: 16 << 20,
            fence_samples: 1024,
            stall_timeout: Duration::from_secs(60),
            scrub_rate: 0,
            daily_write_bytes: 0,
            discard: false,
            spin: None,
            queues: [QueueKind::Urgency; 2],
            lanes: 1,
            check: false,
            canary: None,
            origin: [0; 16],
            geometry,
            format,
        }
    }

    /// Streams that have an open set each.
    pub fn streams(&self) -> u32 {
        self.classes + 1 + if self.cleans() { self.classes } else { 0 }
    }

    /// Are sets emptied that hold too little? Under set placement they are not.
    pub fn cleans(&self) -> bool {
        self.cleaning != Cleaning::Off && self.placement == Placement::Log
    }

    /// May a write go past the log to the origin, whatever the mode?
    pub fn writes_through(&self) -> bool {
        self.allocation != Allocation::ReadWrite || self.when_full == WhenFull::Through || self.splits() || self.commits_home()
    }

    /// May part of a sequential write go to the origin from the start? Under set placement it does not, nor where only some writes are kept.
    pub fn splits(&self) -> bool {
        self.split.is_some() && self.placement == Placement::Log && self.allocation == Allocation::ReadWrite
    }

    /// May a small write that a FLUSH follows go to the origin? Not under set placement, nor where only some writes are kept.
    pub fn commits_home(&self) -> bool {
        self.commit_home != CommitHome::Never && self.placement == Placement::Log && self.allocation == Allocation::ReadWrite
    }

    /// Atoms of the largest write that counts as small.
    pub fn convert_atoms(&self) -> u64 {
        self.convert_max.unwrap_or(self.convert.atoms_max())
    }

    /// When what was read from the origin is kept: where only small writes are taken, never.
    pub fn fill(&self) -> Fill {
        if self.allocation == Allocation::SmallWrites { Fill::Off } else { self.fill }
    }

    /// Pages of the journal ring below which this configuration cannot run.
    pub fn journal_pages_needed(&self) -> u64 {
        match self.placement {
            Placement::Log => 0,
            Placement::Set => journal_pages_needed(&self.geometry),
        }
    }

    /// Bytes of one journal group at most: a sixteenth of the ring.
    pub fn group_bytes(&self) -> u64 {
        u64::from(self.geometry.journal_pages) * PAGE_BYTES / 16
    }
}

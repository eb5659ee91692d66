//! Fence, at an orderly stop: marks of the origin go into the superblock, so that the next start sees whether somebody changed it
//! meanwhile (`recover/fence` compares them).
//!
//! ```text
//! nothing of ours is on its way to the origin → flush of the origin → marked blocks are read → their checksums → superblock
//! ```
//! A stop does not wait long for it: what the origin has not given within two seconds is not marked. Nor does it wake a disk that stands still,
//! which takes longer.

use crate::block::{ATOM_BYTES, Block};
use crate::cache::format::superblock::{MARKS_MAX, Mark};
use crate::fault_point::FaultPoint;
use crate::op::{Action, Answer, Class, DeviceError, DeviceId, OpId, Zone};
use crate::payload::Payload;
use crate::spin::Motor;
use crate::time::{Duration, Instant};

use super::{Ended, Engine, Owner, joined};

/// How long a stop waits for the origin.
const PATIENCE: Duration = Duration::from_secs(2);

/// Bytes of a disk at which something is written by whoever mounts, checks or partitions it: boot sectors and tables (0, 512), super-
/// blocks of ext (1 KiB), swap and RAID (4 KiB), others (32 KiB), btrfs (64 KiB), and the same in a first partition at 1 MiB.
const TELLING: [u64; 12] = [
    0,
    512,
    1 << 10,
    4 << 10,
    32 << 10,
    64 << 10,
    1 << 20,
    (1 << 20) + 512,
    (1 << 20) + (1 << 10),
    (1 << 20) + (4 << 10),
    (1 << 20) + (32 << 10),
    (1 << 20) + (64 << 10),
];

/// The marks that are being taken.
#[derive(Default)]
pub(super) struct Marks {
    stage: Stage,
    /// Until when the stop waits.
    pub until: Option<Instant>,
    left: usize,
    taken: Vec<Mark>,
    /// A flush of the origin has failed since the start.
    pub doubtful: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    None,
    Flushing,
    Reading,
    Done,
}

impl<P: Payload> Engine<P> {
    /// Takes the marks of an orderly stop. False: it is still at it.
    pub(super) fn take_marks(&mut self) -> bool {
        if self.config.fence_samples == 0 || self.marks.stage == Stage::Done {
            return true;
        }
        if self.marks.stage == Stage::None && self.rotation.motor.as_ref().is_some_and(Motor::is_down) {
            self.marks.stage = Stage::Done;
            return true;
        }
        let until = *self.marks.until.get_or_insert(self.now + PATIENCE);
        if self.now >= until {
            self.meet(FaultPoint::MarksOutOfTime);
            self.marks.stage = Stage::Done;
            return true;
        }
        let is_still = self.destage.is_idle() && self.is_through_idle() && !self.origin.is_written_anywhere();
        if self.marks.stage == Stage::None && is_still {
            self.marks.stage = Stage::Flushing;
            self.start(DeviceId::Origin, Class::Client, Action::Flush, Owner::MarkFlush);
        }
        false
    }

    pub(super) fn mark_flush_done(&mut self, result: Ended) {
        if self.marks.stage != Stage::Flushing {
            return;
        }
        if self.has_cache_failed() {
            // No superblock will say it.
            self.marks.stage = Stage::Done;
            return;
        }
        self.marks.stage = Stage::Reading;
        if result.is_err() {
            self.meet(FaultPoint::MarkFlushFailed);
        }
        // After a flush that failed, what the origin shows is not what it will show after a power cut.
        let blocks = if result.is_ok() && !self.marks.doubtful { self.marked_blocks() } else { Vec::new() };
        self.marks.left = blocks.len();
        for block in blocks {
            let span = self.config.geometry.block_span(block);
            let op = self.start(DeviceId::Origin, Class::Client, Action::Read(Zone::Origin, span), Owner::Mark { block: block.0 });
            // The SSD may fail meanwhile: what was pinned goes home then.
            self.origin.begin_read(op, span, self.now);
        }
        self.end_marks();
    }

    pub(super) fn mark_done(&mut self, op: OpId, block: u64, result: Result<Answer<P>, DeviceError>) {
        self.origin.end_read(op, self.now, self.turning_since());
        if self.marks.stage != Stage::Reading {
            return;
        }
        if let Ok(answer) = result {
            let crc = joined(answer).checksum(self.checksum);
            self.marks.taken.push(Mark { block: Block(block), crc });
        } else {
            self.meet(FaultPoint::MarkUnread);
        }
        self.marks.left -= 1;
        self.end_marks();
    }

    fn end_marks(&mut self) {
        if self.marks.left == 0 {
            self.marks.stage = Stage::Done;
        }
    }

    /// What was marked, for the superblock: as much as the origin has given in time.
    pub(super) fn marks_taken(&mut self) -> Vec<Mark> {
        let mut taken = std::mem::take(&mut self.marks.taken);
        taken.sort_unstable_by_key(|mark| mark.block);
        taken
    }

    /// The telling places of the volume, its end, where a second partition table lies, and as many others as there is room for.
    fn marked_blocks(&self) -> Vec<Block> {
        let geometry = &self.config.geometry;
        let all = geometry.blocks();
        let last = geometry.volume_atoms - 1;
        let ends = [last, last.saturating_sub(32)].map(|atom| atom / self.block_atoms());
        let telling = TELLING.map(|byte| byte / ATOM_BYTES / self.block_atoms());
        let step = (all / (MARKS_MAX - TELLING.len() - ends.len()) as u64).max(1);
        let mut blocks: Vec<u64> = telling.into_iter().chain(ends).collect();
        blocks.extend((0..all).step_by(step as usize));
        blocks.retain(|&block| block < all);
        blocks.sort_unstable();
        blocks.dedup();
        blocks.truncate(MARKS_MAX);
        blocks.into_iter().map(Block).collect()
    }
}

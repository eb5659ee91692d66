//! How much work destaging has before it, and how long that takes, about.

use crate::gate::pace::Work;
use crate::payload::Payload;
use crate::time::{Duration, Instant};

use super::{Batch, Engine, What, ZERO_ATOMS};

impl<P: Payload> Engine<P> {
    /// What a batch is.
    pub(super) fn work_of(&self, batch: &Batch<P>) -> Work {
        let (mut work, set_blocks) = (Work::default(), self.index.set_blocks());
        for of_set in batch.slots.chunk_by(|a, b| a.block.0 / set_blocks == b.block.0 / set_blocks) {
            work.add_set(of_set.len() as u64);
        }
        work.add_zeros(batch.pieces.iter().filter(|piece| matches!(piece.what, What::Zero(..))).count() as u64);
        work
    }

    fn work_of_slots(&self) -> Work {
        let mut all = Work::default();
        self.index.dirty_counts().for_each(|dirty| all.add_set(dirty));
        all
    }

    /// How long it takes, about, until all dirty slots are home, if that goes on as of late.
    pub(in crate::path) fn destage_time_of_slots(&self) -> Duration {
        self.destage.pace.time_of(&self.work_of_slots())
    }

    /// How long it takes, about, until everything that is dirty now is home, if that goes on as of late.
    pub(in crate::path) fn destage_left(&self, now: Instant) -> Duration {
        let mut all = self.work_of_slots();
        all.add_zeros(self.ranges.entries() as u64 + self.ranges.zeroed_blocks() * self.block_atoms() / ZERO_ATOMS);
        let mut pace = self.destage.pace;
        let Some(batch) = &self.destage.batch else { return pace.time_of(&all) };
        let gone = now.since(batch.began);
        if gone > pace.time_of(&batch.work) {
            // So long at least: what is like it will take longer, too.
            pace.learn(&batch.work, gone);
        }
        // Of the batch everything is dirty until it ends.
        let of_batch = gone.min(pace.time_of(&batch.work));
        Duration(pace.time_of(&all).0.saturating_sub(of_batch.0))
    }
}

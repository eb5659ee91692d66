//! Kill: a slot dies when its block gets another one or is zeroed, when its set is evicted, when what went past it is on the origin, or when nobody
//! can read it. The index and its set hear of it at once; that it stays dead after a crash, a record of the open group says.

use crate::block::{Block, Slot};
use crate::cache::format::Bits;
use crate::cache::format::journal::Record;
use crate::cache::index::Run;
use crate::payload::Payload;

use super::Engine;

/// Of so many runs at most each is noted by itself as in limbo; of more, the range that they lie in.
const NOTED_RUNS: usize = 16;

impl<P: Payload> Engine<P> {
    /// Kills slots of one set with one record. An SSD that takes no writes gets none: they are forgotten until the next start.
    pub(super) fn kill_slots(&mut self, set: u32, slots: Bits) {
        let life = self.sets.get(set).life as u32;
        let of_slot = |slot: Slot| (self.sets.entry(slot, |block| self.full(block)).block, self.sets.is_dirty(slot));
        let doomed: Vec<(Block, bool)> = slots.iter().map(|slot| of_slot(Slot { set, slot })).collect();
        if !self.has_cache_failed() {
            self.journal.push(&Record::Kill { set, life, slots });
            self.note_record();
        }
        for (block, is_dirty) in doomed {
            self.tickets.void(block, 1);
            if is_dirty {
                // What else there is of it is older, or nothing.
                self.forget_in_memory(block, 1);
            }
            self.kill_blocks(block, 1);
        }
    }

    /// Kills one slot. Its block is mapped to it.
    pub(super) fn kill_slot(&mut self, slot: Slot) {
        let mut slots = Bits::new(self.config.geometry.set_slots);
        slots.set(slot.slot);
        self.kill_slots(slot.set, slots);
    }

    /// Unmaps `blocks` blocks and kills their slots in the open group; returns how many slots died.
    /// The caller's record (PUT, ZERO, KILL) is what kills them at replay.
    pub(super) fn kill_blocks(&mut self, block: Block, blocks: u64) -> u64 {
        let mut displaced = self.scratch.take_runs();
        self.index.replace(block, blocks, None, &mut displaced);
        let killed = self.kill_runs(&displaced);
        self.scratch.runs = displaced;
        killed
    }

    /// As [`Engine::kill_blocks`], of a range in which there may be many.
    pub(super) fn kill_range(&mut self, block: Block, blocks: u64) -> u64 {
        let mut displaced = self.scratch.take_runs();
        self.index.replace(block, blocks, None, &mut displaced);
        if displaced.len() > NOTED_RUNS {
            self.note_limbo(block, blocks);
        }
        let killed = self.kill_runs(&displaced);
        self.scratch.runs = displaced;
        killed
    }

    pub(super) fn kill_runs(&mut self, runs: &[Run]) -> u64 {
        for run in runs {
            // A run lies in one origin set.
            let dirty = self.kill_run(run);
            self.index.add_dirty(run.block, -i64::from(dirty));
        }
        runs.iter().map(|run| run.blocks).sum()
    }

    /// Kills the slots of a run, and returns how many of them were dirty, which the index is still to be told.
    pub(super) fn kill_run(&mut self, run: &Run) -> u32 {
        let first = run.slot.expect("displaced blocks had slots");
        if self.writes_through() {
            for i in 0..run.blocks {
                if !self.sets.is_dirty(Slot { slot: first.slot + i as u32, ..first }) {
                    self.note_limbo(Block(run.block.0 + i), 1);
                }
            }
        }
        self.sets.kill(first, run.blocks as u32, self.journal.group())
    }
}

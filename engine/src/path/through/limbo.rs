//! The slots below what goes through. A clean one dies, or becomes dirty, and that is durable before the origin is written: a crash would bring
//! it back, older than the origin. Until then its block is in *limbo*.

use crate::block::{Block, Slot};
use crate::cache::format::Bits;
use crate::cache::index::Run;
use crate::payload::Payload;

use super::super::Engine;

/// Blocks that are looked up together.
const LOOKED_AT: u64 = 1 << 12;
/// Entries that there is room for when none is needed.
const LIMBO_KEPT: usize = 256;

impl<P: Payload> Engine<P> {
    /// A clean slot of these blocks dies or becomes dirty in the open group.
    pub(in crate::path) fn note_limbo(&mut self, block: Block, blocks: u64) {
        if !self.writes_through() {
            return;
        }
        self.leave_limbo();
        let group = self.journal.group();
        match self.through.limbo.back_mut() {
            // Most often it is the next one, or lies in a stretch that was noted as a whole.
            Some((last, first, count)) if *last == group && (first.0..=first.0 + *count).contains(&block.0) => {
                *count = (*count).max(block.0 + blocks - first.0);
            }
            Some(_) | None => self.through.limbo.push_back((group, block, blocks)),
        }
    }

    /// Writes may go through from now on: nothing was noted before, so any clean slot may be in limbo until the open group is durable.
    pub(in crate::path) fn begin_limbo(&mut self) {
        let group = self.close_group();
        if group > self.journal.durable_group() {
            self.flushes.want(group);
            self.through.limbo.push_back((group, Block(0), self.config.geometry.blocks()));
        }
    }

    /// Forgets the slots of which that is durable.
    fn leave_limbo(&mut self) {
        let durable = self.journal.durable_group();
        while self.through.limbo.front().is_some_and(|&(group, ..)| group <= durable) {
            self.through.limbo.pop_front();
        }
        if self.through.limbo.is_empty() {
            self.through.limbo.shrink_to(LIMBO_KEPT);
        }
    }

    /// Would a crash now bring back a clean slot of these blocks?
    pub(super) fn is_in_limbo(&mut self, block: Block, blocks: u64) -> bool {
        self.leave_limbo();
        !self.through.unburied.is_empty()
            || self.through.limbo.iter().any(|&(_, first, count)| first.0 < block.0 + blocks && block.0 < first.0 + count)
    }

    /// The same, without looking what has become durable first: what has is left out.
    pub(in crate::path) fn dies_late(&self, block: Block, blocks: u64) -> bool {
        let durable = self.journal.durable_group();
        let is_there = |first: Block, count: u64| first.0 < block.0 + blocks && block.0 < first.0 + count;
        !self.through.unburied.is_empty()
            || self.through.limbo.iter().any(|&(group, first, count)| group > durable && is_there(first, count))
    }

    /// Kills the live slots of these blocks that are clean (or dirty).
    pub(super) fn kill_live(&mut self, block: Block, blocks: u64, dirty: bool) {
        let mut runs = Vec::new();
        self.index.lookup(block, blocks, &mut runs);
        for run in runs {
            let Some(first) = run.slot else { continue };
            let mut slots = Bits::new(self.config.geometry.set_slots);
            for i in first.slot..first.slot + run.blocks as u32 {
                if self.sets.is_dirty(Slot { slot: i, ..first }) == dirty {
                    slots.set(i);
                }
            }
            if !slots.is_empty() {
                self.kill_slots(first.set, slots);
            }
        }
    }

    pub(in crate::path) fn has_clean(&self, block: Block, blocks: u64) -> bool {
        self.has_slot(block, blocks, false)
    }

    pub(in crate::path) fn has_dirty(&self, block: Block, blocks: u64) -> bool {
        self.has_slot(block, blocks, true)
    }

    /// Has one of these blocks a live slot that is dirty (or clean)?
    fn has_slot(&self, block: Block, blocks: u64, dirty: bool) -> bool {
        let is_such = |run: &Run| {
            let first = run.slot?;
            (0..run.blocks).find(|&i| self.sets.is_dirty(Slot { slot: first.slot + i as u32, ..first }) == dirty)
        };
        // Up to the first one, in memory that does not depend on how many there are. A range may be as long as the volume.
        let (mut at, end, set_blocks) = (block.0, block.0 + blocks, self.index.set_blocks());
        let mut runs = Vec::new();
        while at < end {
            if dirty {
                let next = self.index.next_dirty(Block(at - at % set_blocks)).filter(|next| next.0 < end);
                let Some(next) = next else { return false };
                at = at.max(next.0);
            }
            let count = (end - at).min(if dirty { set_blocks - at % set_blocks } else { LOOKED_AT });
            runs.clear();
            self.index.lookup(Block(at), count, &mut runs);
            if runs.iter().any(|run| is_such(run).is_some()) {
                return true;
            }
            at += count;
        }
        false
    }
}

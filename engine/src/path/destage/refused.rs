//! Refused: blocks and zeros that the origin does not take. They stay dirty and readable, are left out of the batches for a while, longer each
//! time (`shun`), and are tried again when somebody waits for them, or with what is old.

use crate::block::Block;
use crate::payload::Payload;

use super::super::Engine;
use super::What;

impl<P: Payload> Engine<P> {
    /// The origin does not take a piece. Several blocks: each by itself in the next batch. One, or zeros: not again for a while, and who waits for
    /// that is told.
    pub(super) fn refused(&mut self, number: usize) {
        self.batch().refused = true;
        let span = self.piece(number).span;
        let (block, blocks) = self.blocks_of(span);
        let is_zero = matches!(self.piece(number).what, What::Zero(..));
        let refused_zero = is_zero.then_some((span, self.now));
        self.batch().refused_zeros.extend(refused_zero);
        if blocks > 1 && !is_zero {
            return self.take_care(number);
        }
        if !self.destage.shunned.insert(block, self.now) {
            self.batch().failed = true;
        }
        self.fail_home_of(span);
    }

    /// A piece of several blocks has failed. The next batch begins with the first of those: at the end of the sweep nobody takes care any more.
    pub(super) fn take_care(&mut self, piece: usize) {
        self.destage.careful = true;
        let batch = self.batch();
        let first = batch.failed_together.map_or(piece, |first| first.min(piece));
        batch.failed_together = Some(first);
        let span = self.piece(first).span;
        let (block, set_blocks) = (self.blocks_of(span).0, self.index.set_blocks());
        self.destage.cursor = Block(block.0 / set_blocks * set_blocks);
    }

    /// A FLUSH waits for everything that the origin has not taken: it is tried now.
    pub(in crate::path) fn try_refused(&mut self) {
        self.through.try_refused();
        if self.destage.shunned.try_now(self.now) || self.destage.refused {
            self.destage.back_off.at = None;
        }
    }

    /// Somebody waits for these blocks alone: what the origin has not taken of others keeps them from nothing.
    pub(in crate::path) fn try_beside_refused(&mut self, own: Option<(Block, u64)>) {
        let Some((block, blocks)) = own else { return };
        let keeps_others = self.destage.shunned.next(self.now).is_some() || self.destage.refused;
        // Zeros go home before what lies over them, and are known here by their first block.
        let zeros = self.ranges.overlapping(block, blocks).next();
        let first = zeros.map_or(block, |(first, _)| first.min(block));
        self.destage.shunned.try_these_now(first, block.0 + blocks - first.0, self.now);
        if keeps_others {
            self.destage.back_off.at = None;
        }
    }

    /// A write waits until less is dirty: what is not refused goes home, as soon as it is durable.
    pub(in crate::path) fn want_less_dirty(&mut self) {
        let group = self.close_group();
        self.flushes.want(group);
        if self.refused_blocks() > 0 || self.destage.refused {
            self.destage.back_off.at = None;
        }
    }

    /// Blocks that the origin did not take, and that are not tried again yet.
    pub(in crate::path) fn refused_blocks(&self) -> u64 {
        self.destage.shunned.len(self.now)
    }

    /// Dirty blocks that the origin did not take when they were last to go home, and dirty ranges, of which the first block counts.
    pub(in crate::path) fn blocks_not_taken(&self) -> u64 {
        let is_dirty = |&block: &Block| self.ranges.is_zeroed(block) || self.index.get(block).is_some_and(|slot| self.sets.is_dirty(slot));
        self.destage.shunned.failed().filter(is_dirty).count() as u64
    }
}

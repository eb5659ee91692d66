//! Refused: blocks and zeros that the origin does not take. They stay dirty and readable, and are left out of the batches for a while, longer each
//! time (`shun`). Once nothing older is left of what the origin does take, they count as if they had become dirty then: they hold the gate open for
//! nothing else, let the disk stop, and are tried again with what is old next, or when somebody waits for them. An origin that takes nothing at all
//! may have failed as a whole: it is asked for a minute before.

use crate::block::{Block, Slot};
use crate::payload::Payload;
use crate::time::Instant;

use super::super::Engine;
use super::super::shun::MANY;
use super::What;

/// What has been refused since then, and so often in a row, is left.
#[derive(Clone, Copy)]
struct Tried {
    since: Instant,
    times: u32,
}

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

    /// The origin has taken these blocks, and was flushed: nothing is known against them any more.
    pub(in crate::path) fn was_taken(&mut self, block: Block, blocks: u64) {
        self.destage.shunned.forget(block, blocks);
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
        if self.paused_blocks() > 0 || self.destage.refused {
            self.destage.back_off.at = None;
        }
    }

    /// Blocks that the origin did not take, and that are not tried again yet.
    pub(in crate::path) fn paused_blocks(&self) -> u64 {
        self.destage.shunned.len(self.now)
    }

    /// Dirty blocks that the origin did not take when they were last to go home, and pieces of dirty ranges.
    pub(in crate::path) fn refused_blocks(&self) -> u64 {
        let is_dirty =
            |&block: &Block| self.zeros_over(block) == Some(block) || self.index.get(block).is_some_and(|slot| self.sets.is_dirty(slot));
        self.destage.shunned.failed().filter(is_dirty).count() as u64
    }

    /// A batch has ended of which the origin has taken something, or nothing. What became dirty so early that it holds the gate open, and has been
    /// refused since that was opened, counts as dirty since now: at once where the origin takes others, or else after many tries. Not while
    /// somebody waits for what became dirty until then: that is known by those times.
    pub(super) fn leave_refused(&mut self, takes_others: bool) {
        let Some(until) = self.gate.takes_until(self.sweep()) else { return };
        if self.modes.is_waiting() || self.destage.shunned.failed().next().is_none() {
            return;
        }
        let tried = Tried { since: until, times: if takes_others { 1 } else { MANY } };
        while let Some((since, set)) = self.sets.oldest_dirty()
            && since <= until
            && since < self.now
            && self.sets.get(set).dirty.iter().all(|slot| self.is_left(Slot { set, slot }, tried))
        {
            self.sets.renew_dirt(set, since, self.now);
        }
        if self.ranges.since().is_some_and(|since| since <= until) && self.are_zeros_left(tried) {
            self.ranges.renew(self.now);
        }
    }

    /// Has this dirty slot been refused, or what has to go before it?
    fn is_left(&self, slot: Slot, tried: Tried) -> bool {
        let block = self.sets.entry(slot, |block| self.full(block)).block;
        let zeros = || self.zeros_over(block).is_some_and(|first| self.was_refused(first, tried));
        self.was_refused(block, tried) || zeros() || self.is_left_alone(slot, block)
    }

    fn was_refused(&self, block: Block, tried: Tried) -> bool {
        self.destage.shunned.has_failed(block, tried.since, tried.times, self.now)
    }

    /// The first block of the zeros that go home before this one, as the next batch would take them.
    fn zeros_over(&self, block: Block) -> Option<Block> {
        let (start, _) = self.ranges.overlapping(block, 1).next()?;
        Some(Block(start.0 + (block.0 - start.0) / self.zero_blocks() * self.zero_blocks()))
    }

    fn are_zeros_left(&self, tried: Tried) -> bool {
        !self.ranges.is_empty() && self.zero_pieces().all(|(first, ..)| self.was_refused(first, tried))
    }
}

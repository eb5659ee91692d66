//! Fill: what a read fetched from the origin is kept, behind the reply and from the same buffer; dropped when there is no room.
//!
//! A ticket is issued at the look-up, and any write, discard, destage or eviction of one of its blocks ends it for that block: of the others
//! what was read is still what the origin holds. (After a write to the log it still is: it is not kept, but completes what was written of a block.)
//! Only whole blocks are kept; and where something else has to go for them, only what `admission` finds worth it. What a client asks to be
//! prefetched always is.

use std::ops::Range;

use crate::admission::Verdict;
use crate::block::{Block, Span};
use crate::cache::index::Run;
use crate::cache::stream::Source;
use crate::config::{Canary, Fill, Placement};
use crate::payload::Payload;
use crate::runs::Runs;
use crate::wear::Cause;

use super::Engine;
use super::read::Why;
use super::write::Piece;

struct Ticket {
    request: usize,
    blocks: Range<u64>,
    changed: Changed,
}

/// Which blocks of a read have changed since they were looked up: each noted once, however often it changes.
#[derive(Default)]
pub(super) struct Changed {
    /// All of them.
    pub any: Runs,
    /// Those of which the origin may hold something else by now.
    pub below: Runs,
}

#[derive(Default)]
pub(super) struct Tickets {
    tickets: Vec<Ticket>,
}

impl Tickets {
    pub fn issue(&mut self, request: usize, block: Block, blocks: u64) {
        debug_assert!(self.tickets.iter().all(|ticket| ticket.request != request), "a read has one ticket");
        self.tickets.push(Ticket { request, blocks: block.0..block.0 + blocks, changed: Changed::default() });
    }
    /// The blocks changed: what is being read of them must not be kept.
    pub fn void(&mut self, block: Block, blocks: u64) {
        self.change(block, blocks, |changed, run| {
            changed.any.insert(run.clone());
            changed.below.insert(run);
        });
    }
    /// The same, in the log alone: what the origin holds of them is what it held.
    pub fn supersede(&mut self, block: Block, blocks: u64) {
        self.change(block, blocks, |changed, run| changed.any.insert(run));
    }
    fn change(&mut self, block: Block, blocks: u64, note: impl Fn(&mut Changed, Range<u64>)) {
        for Ticket { blocks: asked, changed, .. } in &mut self.tickets {
            let run = block.0.max(asked.start)..(block.0 + blocks).min(asked.end);
            if !run.is_empty() {
                note(changed, run);
            }
        }
    }
    /// Is what a request has read of these blocks still what the origin holds?
    pub fn holds(&self, request: usize, block: Block, blocks: u64) -> bool {
        !self.tickets[self.of(request)].changed.any.overlaps(&(block.0..block.0 + blocks))
    }
    /// Forgets the ticket of a request. Returns the blocks that have changed.
    pub fn withdraw(&mut self, request: usize) -> Changed {
        let at = self.of(request);
        self.tickets.swap_remove(at).changed
    }
    fn of(&self, request: usize) -> usize {
        self.tickets.iter().position(|ticket| ticket.request == request).expect("a read has its ticket until it ends")
    }
}

impl<P: Payload> Engine<P> {
    pub(super) fn fill(&mut self, why: Why, changed: &Changed, fetched: impl Iterator<Item = (Span, P)>) {
        let without = Changed::default();
        let changed = if self.has_canary(Canary::FillWithoutTicket) { &without } else { changed };
        if self.config.fill() == Fill::Off || self.has_cache_failed() || self.stopping {
            return;
        }
        for (span, payload) in fetched {
            let (block, blocks) = self.whole_blocks(span);
            let mut left = blocks;
            for run in changed.any.gaps(block.0..block.0 + blocks) {
                left -= run.end - run.start;
                self.fill_run((Block(run.start), run.end - run.start), why, span, &payload);
            }
            for run in changed.any.as_slice() {
                let run = run.start.max(block.0)..run.end.min(block.0 + blocks);
                for run in changed.below.gaps(run) {
                    self.complete_partials((Block(run.start), run.end - run.start), span, &payload);
                }
            }
            self.counters.fill_void_blocks += left;
        }
    }

    fn fill_run(&mut self, (block, blocks): (Block, u64), why: Why, span: Span, payload: &P) {
        self.complete_partials((block, blocks), span, payload);
        if why == Why::Prefetch || why == Why::Around || !self.displaces() {
            self.keep(block, blocks, span, payload, None);
        } else {
            self.keep_worthy((block, blocks), why, span, payload);
        }
    }

    /// Would a fill take a place that another block has? Not while a quarter of all slots holds nothing, in whatever sets.
    pub(super) fn displaces(&self) -> bool {
        let is_full = self.sets.free_count() <= self.config.free_floor && self.sets.live_slots * 4 >= self.config.geometry.slots() * 3;
        is_full && self.config.placement == Placement::Log
    }

    /// Keeps those of the blocks that are worth it, and counts why the others are not.
    fn keep_worthy(&mut self, (block, blocks): (Block, u64), why: Why, span: Span, payload: &P) {
        let is_sequential = why == Why::Sequential;
        let verdicts: Vec<Verdict> = (block.0..block.0 + blocks).map(|block| self.admission.judge(Block(block), is_sequential)).collect();
        let mut at = block;
        for alike in verdicts.chunk_by(|a, b| a == b) {
            let count = alike.len() as u64;
            match alike[0] {
                Verdict::Kept => {
                    self.keep(at, count, span, payload, None);
                }
                Verdict::Sequential => self.counters.fill_sequential_blocks += count,
                Verdict::FirstTouch => self.counters.fill_first_touch_blocks += count,
                Verdict::Sieved => self.counters.fill_sieved_blocks += count,
            }
            at = Block(at.0 + count);
        }
    }

    /// Keeps a part of a read that waits for it. Returns how many writes it has to wait for.
    #[cold]
    pub(super) fn fill_before_reply(&mut self, number: usize, span: Span, payload: &P) -> u32 {
        let (block, blocks) = self.whole_blocks(span);
        if blocks == 0 || self.has_cache_failed() || self.stopping || !self.tickets.holds(number, block, blocks) {
            return 0;
        }
        self.keep(block, blocks, span, payload, Some(number))
    }

    pub(super) fn has_room_for_fill(&self, block: Block, blocks: u64) -> bool {
        let window = (self.window.atoms() + blocks * self.block_atoms()) * crate::block::ATOM_BYTES;
        let slots = match self.config.placement {
            Placement::Log => blocks,
            // A set for each origin set that has none.
            Placement::Set => self.sets_for_fill(block, blocks) * u64::from(self.config.geometry.set_slots),
        };
        !self.is_held_up()
            && self.slots_available(Source::Fill) >= slots
            // Half of it begins a flush, and while that lasts fills go on; the rest is for clients.
            && window <= self.config.window_bytes / 4 * 3
            && self.journal_has_room(self.journal_entries(blocks))
    }

    /// Puts into the cache what it has not got, if there is room. `waiting`: the request that waits for it. Returns the writes started.
    fn keep(&mut self, block: Block, blocks: u64, span: Span, payload: &P, waiting: Option<usize>) -> u32 {
        if !self.is_within_budget(Cause::Fill) {
            self.counters.fill_budget_blocks += blocks;
            return 0;
        }
        if !self.has_room_for_fill(block, blocks) {
            self.counters.fill_no_room_blocks += blocks;
            return 0;
        }
        let mut writes = 0;
        self.begin_group_for(self.journal_entries(blocks));
        let mut runs = self.scratch.take_runs();
        if self.has_canary(Canary::FillWithoutTicket) {
            runs.push(Run { block, blocks, slot: None });
        } else {
            self.index.lookup(block, blocks, &mut runs);
        }
        let is_unsure = |run: &Run| self.through.unsure.overlaps(self.blocks_span(run.block, run.blocks));
        // (Nor what a write waits to be rid of, which may not pass a clean copy: it would come back as soon as that is dead.)
        runs.retain(|run| run.slot.is_none() && !self.is_passing(run.block, run.blocks) && !is_unsure(run));
        for &run in &runs {
            let skip = run.block.0 * self.block_atoms() - span.start;
            let payload = payload.slice(skip, run.blocks * self.block_atoms());
            self.counters.filled_blocks += run.blocks;
            let piece = Piece { block: run.block, blocks: run.blocks, payload, valid: None };
            writes += match self.config.placement {
                Placement::Log => self.put(Source::Fill, false, [piece], waiting.as_slice(), 0),
                Placement::Set => {
                    let places = self.places_of(&[piece]);
                    self.put_placed(Source::Fill, false, places, waiting.as_slice())
                }
            };
        }
        self.scratch.runs = runs;
        writes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_ends_for_the_blocks_that_have_changed_and_for_no_other() {
        let mut tickets = Tickets::default();
        tickets.issue(1, Block(10), 10);
        tickets.issue(2, Block(15), 10);
        tickets.void(Block(13), 2);
        tickets.void(Block(19), 1);
        tickets.void(Block(8), 3);
        assert!(!tickets.holds(1, Block(10), 1) && tickets.holds(1, Block(15), 4) && !tickets.holds(1, Block(15), 5));
        assert!(tickets.holds(2, Block(15), 4) && !tickets.holds(2, Block(15), 5));
        tickets.supersede(Block(16), 1);
        let [first, second] = [1, 2].map(|request| tickets.withdraw(request));
        assert!(first.any.gaps(10..20).eq([11..13, 15..16, 17..19]) && first.below.gaps(10..20).eq([11..13, 15..19]));
        assert!(second.any.gaps(15..25).eq([15..16, 17..19, 20..25]) && second.below.gaps(15..25).eq([15..19, 20..25]));
        assert!(tickets.tickets.is_empty(), "they are forgotten");
    }

    /// A read may hang for hours, and what it reads be written over and over.
    #[test]
    fn a_ticket_does_not_grow_with_the_writes_of_its_blocks() {
        let mut tickets = Tickets::default();
        tickets.issue(1, Block(10), 10);
        (0..1_000).for_each(|at| tickets.void(Block(at * 7 % 30), 1 + at % 3));
        let changed = tickets.withdraw(1);
        assert_eq!((changed.any.as_slice().len(), changed.below.as_slice().len(), changed.any.gaps(10..20).count()), (1, 1, 0));
    }
}

//! Memory: a read whose blocks all have pages is answered from them; what was read or written otherwise is kept.
//!
//! ```text
//!   read ─▶ all in memory? ─▶ reply            a read ends ─▶ pages of what nobody has changed meanwhile
//!   write, TRIM, zeroes ─▶ their pages go, at the moment from which a read would see something else; those of small writes take their place
//! ```
//! A page is dropped or replaced whenever its block changes for whatever reason, and nothing is kept of a block that has changed since it was looked
//! up (its ticket is void, see `fill`). So a page is what a read would give.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_pages::Pages;

use crate::Event;
use crate::block::{ATOM_BYTES, Block, Slot, Span};
use crate::config::Canary;
use crate::memory::{Memory, TOGETHER};
use crate::payload::{Lessor, Payload, Pieces};
use crate::probe::Phase;
use crate::request::{Command, Outcome, Reply, Request};
use crate::runs::Runs;
use crate::time::{Duration, Instant};

use super::Engine;
use super::read::Why;
use super::write::Piece;

/// What is written in one request beyond this is rather a stream than something that is read again soon: 64 KiB.
const WRITE_ATOMS: u64 = (64 << 10) / ATOM_BYTES;

/// A shorter read that comes alone is copied as quickly as it is leased: 32 KiB.
const ALONE_ATOMS: u64 = (32 << 10) / ATOM_BYTES;

/// Neighbours that go home from memory together: 64 KiB.
const RESCUED_ATOMS: u64 = (64 << 10) / ATOM_BYTES;
/// Pages that are looked at for it before clients have their turn again: 1 ms.
const LOOKED_MOST: u32 = 4096;

impl<P: Payload> Engine<P> {
    /// The memory tier, for fronts that read from it themselves, as many as the configuration says. What they have answered counts as hits.
    pub fn pages(&self) -> Option<&Arc<Pages>> {
        self.memory.as_ref().map(Memory::pages)
    }

    /// From now on reads that come at once, or a long one, are answered with pages as they are, if nothing else has come with them: that may want
    /// pages. Whoever sets it says when what was answered has been [sent](Engine::sent).
    pub fn set_lessor(&mut self, lessor: Box<dyn Lessor<P>>) {
        self.lessor = Some(lessor);
    }

    /// Has it a lessor?
    pub(crate) fn leases(&self) -> bool {
        self.lessor.is_some()
    }

    /// What was answered has been sent.
    pub fn sent(&mut self) {
        if let Some(lessor) = &mut self.lessor {
            lessor.end();
        }
    }

    /// What fronts have read from memory meanwhile: for whoever decides what stays, and for the curves. Each turn does so, also one in which
    /// nothing has happened: a front wakes its engine for it.
    pub(crate) fn hear_fronts(&mut self) {
        if self.config.fronts > 0
            && let Some(memory) = &mut self.memory
        {
            memory.hear(&mut self.what_if);
        }
    }

    /// A write is one of the next to be placed.
    pub(super) fn begin_write(&mut self, number: usize) {
        let span = self.requests.get(number).request.span;
        let (block, blocks) = self.blocks_of(span);
        self.what_if.write(block, blocks, span.atoms <= WRITE_ATOMS);
        self.note_write(number, blocks);
        self.intake.push_back(number);
    }

    /// Answers, of several reads that have come at once, or of a long one alone, those that are all in memory: with what is leased, or copied.
    /// They were under way with everything else that has happened, and read what was there before it. (A function of its own: most turns have no use
    /// for it.)
    #[inline(never)]
    pub(crate) fn read_together(&mut self, now: Instant, events: &mut Vec<Event<P>>) {
        let may_answer = self.phase == Phase::Serving && !self.stopping && self.front_writes.is_empty();
        let Some(memory) = self.memory.as_mut().filter(|_| may_answer) else { return };
        let read = |event: &Event<P>| match event {
            Event::Arrived(Request { id, span, command: Command::Read }) => Some((*id, *span)),
            _ => None,
        };
        let spans: SmallVec<[Span; TOGETHER]> = events.iter().filter_map(read).map(|(_, span)| span).collect();
        let is_worth_it = match &spans[..] {
            [] => false,
            [alone] => events.len() == 1 && alone.atoms >= ALONE_ATOMS && self.lessor.is_some(),
            _ => true,
        };
        if !is_worth_it {
            return;
        }
        self.now = self.now.max(now);
        let size = u64::from(self.config.geometry.block_atoms);
        let blocks = spans.iter().map(|span| span.start / size..span.end().div_ceil(size));
        let lessor = self.lessor.as_mut().filter(|_| spans.len() == events.len());
        let contents: Vec<Option<Pieces<P>>> = match lessor.and_then(|lessor| lessor.lease(&spans)) {
            Some(leased) => {
                memory.touch_all(blocks.zip(&leased).filter(|(_, contents)| contents.is_some()).flat_map(|(read, _)| read));
                leased
            }
            // It goes its own way.
            None if spans.len() == 1 => return,
            None => {
                let copy = |read: usize, pages: &[&[u8]]| [P::from_pages(pages, spans[read].start % size, spans[read].atoms)].into();
                memory.read_all(blocks, copy)
            }
        };
        let mut contents = contents.into_iter();
        events.retain(|event| {
            let Some((id, span)) = read(event) else { return true };
            let Some(contents) = contents.next().flatten() else { return true };
            self.arrivals.last = self.now;
            self.counters.reads += 1;
            self.note_read(span);
            self.counters.memory_hit_blocks += self.blocks_of(span).1;
            self.latencies.read.record(Duration::ZERO);
            self.replies.push(Reply { id, result: Ok(Outcome::Data(contents)) });
            false
        });
    }

    /// Answers a read from memory. False: not all of it is there.
    pub(super) fn read_from_memory(&mut self, number: usize) -> bool {
        let span = self.requests.get(number).request.span;
        let (block, blocks) = self.blocks_of(span);
        let skip = span.start - block.0 * self.block_atoms();
        let Some(memory) = &mut self.memory else { return false };
        let Some(contents) = memory.read(block, blocks, |pages| P::from_pages(pages, skip, span.atoms)) else {
            self.counters.memory_miss_blocks += blocks;
            self.note_missed(block, blocks);
            return false;
        };
        self.counters.memory_hit_blocks += blocks;
        self.answer(number, Ok(Outcome::Data([contents].into())));
        true
    }

    /// Keeps what a read has brought of blocks that have not changed meanwhile: of which span, and whether that is what the origin holds. It may
    /// have been asked for more of a block than the cache lacks (`widened`), so that is only kept of blocks of which the cache has nothing.
    pub(super) fn keep_in_memory<'p>(&mut self, why: Why, void: &Runs, parts: impl Iterator<Item = (Span, &'p P, bool)>)
    where
        P: 'p,
    {
        let Some(is_full) = self.memory.as_ref().map(|memory| memory.is_full()) else { return };
        // A stream would only push out what is asked for again.
        if why == Why::Prefetch || why == Why::Sequential && is_full {
            return;
        }
        let size = self.block_atoms();
        for (span, payload, is_origins) in parts {
            let (block, blocks) = self.whole_blocks(span);
            let whole = self.blocks_span(block, blocks).intersection(span);
            if blocks == 0 || self.through.unsure.overlaps(whole) {
                continue;
            }
            for block in void.gaps(block.0..block.0 + blocks).flatten().map(Block) {
                if !is_origins || self.index.get(block).is_none() {
                    self.put_in_memory(block, 1, block.0 * size - span.start, payload, Memory::keep);
                }
            }
        }
    }

    /// A client's write takes its place: if it is small it is kept in place of what it replaces, which is forgotten otherwise.
    pub(super) fn takes_place(&mut self, piece: &Piece<P>) {
        self.tickets.supersede(piece.block, piece.blocks);
        let is_small = piece.valid.is_none() && piece.payload.atoms() <= WRITE_ATOMS;
        let whole = if is_small { self.put_in_memory(piece.block, piece.blocks, 0, &piece.payload, Memory::replace) } else { 0 };
        self.forget_in_memory(Block(piece.block.0 + whole), piece.blocks - whole);
    }

    /// `payload` holds the blocks from its atom `skip` on. Returns how many are whole there: the last block of the volume may be short.
    fn put_in_memory(&mut self, block: Block, blocks: u64, skip: u64, payload: &P, put: fn(&mut Memory, Block, &[u8])) -> u64 {
        let Some(memory) = &mut self.memory else { return 0 };
        let size = u64::from(self.config.geometry.block_atoms);
        let all = payload.slice(skip, (blocks * size).min(payload.atoms() - skip));
        let bytes = all.page_bytes();
        let pages = bytes.chunks_exact(size as usize * P::PAGE_ATOM_BYTES);
        let whole = pages.len() as u64;
        for (block, contents) in (block.0..).map(Block).zip(pages) {
            // What a front has written meanwhile is newer.
            if !self.front_writes.covers(block, 1) {
                put(memory, block, contents);
            }
        }
        whole
    }

    /// What a slot holds that the SSD does not give, if the same is in memory.
    pub(super) fn remembered(&mut self, slot: Slot, block: Block) -> Option<P> {
        let size = self.block_atoms();
        let payload = self.memory.as_mut()?.read(block, 1, |pages| P::from_pages(pages, 0, size))?;
        self.holds_what_was_written(slot, &payload).then_some(payload)
    }

    /// Has memory something that is to go home from there, since the SSD has failed?
    pub(super) fn is_rescuing(&self) -> bool {
        self.degraded.rescue.is_some()
    }

    /// The same, but for what lies above zeros that are not home.
    pub(super) fn has_rescue_ahead(&self) -> bool {
        self.degraded.rescue.as_ref().is_some_and(|rescue| rescue.at.0 < self.config.geometry.blocks())
    }

    /// There is room for more of it, and there are pages that nobody has looked at.
    pub(super) fn looks_for_rescue(&self) -> bool {
        self.degraded.rescue.as_ref().is_some_and(|rescue| rescue.looks)
    }

    /// The origin has been flushed: however much others have written meanwhile, some of what memory has follows, if it has taken all before it.
    pub(super) fn grant_rescue(&mut self) {
        if let Some(rescue) = &mut self.degraded.rescue
            && self.through.pages.are_tried()
        {
            rescue.granted = (self.config.through_bytes / 4 / ATOM_BYTES).max(1);
        }
    }

    /// Copies the next of what is dirty on the SSD that has failed, and in memory by chance: as long as that leaves others half of what may be
    /// pinned, or a quarter after each flush of the origin. True: nothing is left of it, and pages may go again.
    pub(super) fn rescue_from_memory(&mut self) -> bool {
        let Some(rescue) = &self.degraded.rescue else { return false };
        let (mut at, end) = (rescue.at, Block(self.config.geometry.blocks()));
        let mut looked = 0;
        while at < end && looked < LOOKED_MOST && self.has_room_to_rescue() {
            looked += 1;
            at = self.rescue_next(at, end);
        }
        let looks = at < end && self.has_room_to_rescue();
        let rescue = self.degraded.rescue.as_mut().expect("found just now");
        (rescue.at, rescue.looks) = (at, looks);
        let is_over = rescue.left.is_empty();
        if is_over {
            self.degraded.rescue = None;
            self.memory.as_mut().expect("it has been looked through").hold(false);
        } else if at < end && !looks {
            self.want_room_through();
        }
        is_over
    }

    fn has_room_to_rescue(&self) -> bool {
        let half = (self.config.through_bytes / 2 / ATOM_BYTES).max(1);
        self.through.pages.loose_atoms() < half || self.degraded.rescue.as_ref().is_some_and(|rescue| rescue.granted > 0)
    }

    /// Looks at the next page from `at` on, and copies it with its neighbours if they are to go home and may. Where to go on.
    fn rescue_next(&mut self, at: Block, end: Block) -> Block {
        let Some(left) = self.rescue_left().overlapping(at.0..end.0).next() else { return end };
        let Some(found) = self.next_to_rescue(Block(left.start)).filter(|found| found.0 < left.end) else {
            self.rescue_left().remove(&left);
            return Block(left.end);
        };
        if let Some(behind) = self.zeros_end(found, 1)
            && self.is_in_rescue(found)
        {
            // It waits for the zeros where it is, and all that lies over them with it.
            self.rescue_left().remove(&(left.start..found.0));
            return behind;
        }
        let before = self.through.pages.atoms();
        let behind = self.rescue_run(found, Block(left.end));
        let copied = self.through.pages.atoms() - before;
        let rescue = self.degraded.rescue.as_mut().expect("it is under way");
        rescue.granted = rescue.granted.saturating_sub(copied);
        rescue.left.remove(&(left.start..behind.0));
        behind
    }

    fn rescue_left(&mut self) -> &mut Runs {
        &mut self.degraded.rescue.as_mut().expect("it is under way").left
    }

    /// The next block from `block` on that has a page and may be dirty.
    fn next_to_rescue(&mut self, block: Block) -> Option<Block> {
        let set_blocks = self.index.set_blocks();
        let dirty = self.index.next_dirty(Block(block.0 / set_blocks * set_blocks))?;
        self.memory.as_mut()?.next(block.max(dirty))
    }

    /// A write is to go over these blocks: what is to go home of them is copied now, whatever room there is. It may fail.
    pub(super) fn rescue(&mut self, block: Block, blocks: u64) {
        let (mut at, end) = (block, Block(block.0 + blocks));
        while self.is_left_to_rescue(at, end.0 - at.0) {
            let Some(found) = self.next_to_rescue(at).filter(|&found| found < end) else { return };
            at = self.rescue_run(found, end);
        }
    }

    /// Is some of these blocks still to be looked at?
    fn is_left_to_rescue(&self, block: Block, blocks: u64) -> bool {
        self.degraded.rescue.as_ref().is_some_and(|rescue| rescue.left.overlaps(&(block.0..block.0 + blocks)))
    }

    /// Is a write too long for what is to go home below it to be copied at once? Then it waits until that has gone.
    pub(super) fn awaits_rescue(&self, block: Block, blocks: u64) -> bool {
        self.is_long_to_rescue(blocks) && self.is_left_to_rescue(block, blocks)
    }

    pub(super) fn is_long_to_rescue(&self, blocks: u64) -> bool {
        blocks * self.block_atoms() * ATOM_BYTES > self.config.through_bytes / 2
    }

    /// `first`, which has a page, and neighbours before `end` become a page of what goes through, if they are to go home: all of it lies over zeros,
    /// or nothing. The block behind them.
    fn rescue_run(&mut self, first: Block, end: Block) -> Block {
        let most = (RESCUED_ATOMS / self.block_atoms()).max(1).min(end.0 - first.0);
        let zeros = self.ranges.overlapping(first, most).next();
        let alike = zeros.map_or(most, |(zeros, range)| if first < zeros { zeros.0 } else { zeros.0 + range.blocks } - first.0);
        let most = most.min(alike);
        let neighbours = (first.0..first.0 + most).map(Block).take_while(|&block| self.is_in_rescue(block));
        let blocks = neighbours.count() as u64;
        if blocks == 0 {
            return Block(first.0 + 1);
        }
        let (size, memory) = (self.block_atoms(), self.memory.as_mut().expect("it has just answered"));
        let payload = memory.read(first, blocks, |pages| P::from_pages(pages, 0, blocks * size)).expect("it has these blocks");
        self.adopt(first, blocks, payload, None);
        let requests = &self.requests;
        self.through.take_marks_back_of(|number| matches!(requests.get(number).request.command, Command::Flush));
        Block(first.0 + blocks)
    }

    /// What memory has of a block that is still to go home from there.
    pub(super) fn in_rescue(&mut self, block: Block) -> Option<P> {
        let size = self.block_atoms();
        self.is_in_rescue(block).then(|| self.memory.as_mut()?.read(block, 1, |pages| P::from_pages(pages, 0, size)))?
    }

    pub(super) fn blocks_in_rescue(&self, (block, blocks): (Block, u64)) -> u64 {
        (block.0..block.0 + blocks).filter(|&block| self.is_in_rescue(Block(block))).count() as u64
    }

    /// Is this dirty on the SSD that has failed, and still to be copied from memory?
    pub(super) fn is_in_rescue(&self, block: Block) -> bool {
        let has_page = || self.memory.as_ref().is_some_and(|memory| memory.keeps(block));
        let is_dirty = || self.index.get(block).is_some_and(|slot| self.sets.is_dirty(slot));
        self.is_left_to_rescue(block, 1) && has_page() && is_dirty() && !self.through.covers(block, 1)
    }

    /// From now on a read of these blocks gives something else, or may: what is being read of them must not be kept.
    pub(super) fn changed(&mut self, block: Block, blocks: u64) {
        self.tickets.void(block, blocks);
        self.forget_in_memory(block, blocks);
    }

    pub(super) fn forget_in_memory(&mut self, block: Block, blocks: u64) {
        self.forget_behind(block, blocks);
        self.forget_pages(block, blocks);
    }

    /// Returns how many there were.
    pub(super) fn forget_pages(&mut self, block: Block, blocks: u64) -> u64 {
        match &mut self.memory {
            // What a front has written meanwhile is newer.
            Some(memory) if self.config.canary != Some(Canary::StalePage) => {
                self.front_writes.beside(block, blocks).map(|(block, blocks)| memory.forget_pages(block, blocks)).sum()
            }
            _ => 0,
        }
    }

    /// What memory remembers of pages that have gone. However long the range is, that takes no longer than all of it.
    pub(super) fn forget_behind(&mut self, block: Block, blocks: u64) {
        if let Some(memory) = &mut self.memory {
            memory.forget_behind(block, blocks);
        }
    }
}

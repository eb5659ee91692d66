//! Through write: a write that goes past the log to the origin, because no set is free, or because writes are not cached at all, or only
//! small ones.
//!
//! ```text
//! Waiting (kill clean slots, until that is durable; nobody else at the origin there) → Writing (origin) → reply; a page stays pinned
//!      page: Written → origin flush → kill the dirty slots below it → gone          the origin forgot → Unwritten → Writing → Written
//! ```
//! In one line: *clean: kill durable → origin write; dirty: origin write → origin flush → kill.* A crash at any place then leaves the old
//! contents or the new ones. FLUSH does not wait for the origin: it logs the pages; only where the log has no room, the origin is flushed.
//!
//! A page that the origin does not take (a bad sector) is set aside, so that others go on, and tried again after a while, or when a FLUSH
//! comes: that one fails if it is refused still, a few times.
//!
//! A block under a zeroed range, or with lost atoms, is not written through: it waits for room in the log. Partly written blocks carry
//! the valid atoms of what is below them in the cache, so that its slot may die.

mod limbo;
mod settle;
mod writing;

use std::collections::VecDeque;

use crate::block::{Atoms, Block, Span};
use crate::cache::through::{Page, Pages};
use crate::cache::unsure::Unsure;
use crate::config::{Allocation, WhenFull};
use crate::op::DeviceError;
use crate::payload::{self, Payload};
use crate::probe::WaitReason;
use crate::request::Command;
use crate::slab::Slab;
use crate::time::{Duration, Instant};

use super::back_off::BackOff;
use super::merge::Lock;
use super::write::Piece;
use super::{Engine, Stage};

/// Between two tries of an origin that fails.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// Before what an origin does not take is tried again, unless a FLUSH comes for it; after so many times in a row that FLUSH fails.
const RETRY_REFUSED: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(60));
const TRIES: u32 = 3;
/// No more than this part of what may be pinned is set aside because the origin does not take it: one like that fails as a whole.
const REFUSED_PART: u64 = 4;
/// Pages that may wait for others on the origin before those behind them wait as well.
const BUSY_MOST: u32 = 64;
/// Operations of one write that are under way at once: the rest of it follows as they end, so that what others ask of the origin meanwhile does not
/// wait for all of it.
const OPERATIONS_MOST: usize = 64;
/// Pages that are written once more at the same time, and this part of what may be pinned.
const REWRITTEN_MOST: usize = 64;
const REWRITTEN_PART: u64 = 4;

pub(super) struct Through<P> {
    pub pages: Pages<P>,
    /// Requests that may not start yet.
    waiting: Vec<usize>,
    writes: Slab<Write<P>>,
    /// Blocks whose clean slots died or became dirty, with the group of the record, until that is durable: after a crash they would live
    /// again, and be clean.
    limbo: VecDeque<(u64, Block, u64)>,
    /// Sets that nobody could describe, and of which no record says yet that they are dead: until then every block is in limbo.
    pub unburied: Vec<u32>,
    flush: Option<Flush>,
    /// A flush of the origin handed out at this mark has succeeded: what it covers may be let go.
    flushed: u64,
    /// Requests that are promised the durability of the pages up to a mark, and wait for a flush of the origin. No mark: not all pages are
    /// written, and the mark will be that of the first flush handed out when they are.
    settling: Vec<(usize, Option<u64>)>,
    /// Until when they wait rather than have everything put into the log.
    patience: Option<Instant>,
    /// Where a failed write may have left anything on the origin.
    pub unsure: Unsure,
    /// A write waits for the pages to be let go.
    crowded: bool,
    /// Behind the page that has failed last: others have their turn first.
    tried_until: Block,
    /// When the oldest page was written.
    since: Option<Instant>,
    /// Counts how often the origin may have forgotten what was not flushed.
    forgotten: u64,
    pub back_off: BackOff,
    /// Before pages that the origin does not take are tried again.
    pub refused: BackOff,
}

/// One or several operations that write the pieces of a request, or a page once more.
struct Write<P> {
    request: Option<usize>,
    blocks: u64,
    operations: u32,
    /// What has not begun.
    rest: VecDeque<(Span, payload::Pieces<P>)>,
    /// Why it has failed, and when that was known first.
    error: Option<(DeviceError, Instant)>,
    /// `Through::forgotten` when it was started.
    forgotten: u64,
}

/// A flush of the origin.
struct Flush {
    mark: u64,
    forgotten: u64,
}

/// A request on its way through.
pub(super) struct Passing<P> {
    pieces: Vec<Piece<P>>,
}

impl<P: Payload> Through<P> {
    pub fn new(block_atoms: u32) -> Self {
        Through {
            pages: Pages::new(block_atoms),
            waiting: Vec::new(),
            writes: Slab::default(),
            limbo: VecDeque::new(),
            unburied: Vec::new(),
            flush: None,
            flushed: 0,
            settling: Vec::new(),
            patience: None,
            unsure: Unsure::default(),
            crowded: false,
            tried_until: Block(0),
            since: None,
            forgotten: 0,
            back_off: BackOff::new(RETRY.0, RETRY.1),
            refused: BackOff::new(RETRY_REFUSED.0, RETRY_REFUSED.1),
        }
    }

    /// Memory for what is in limbo.
    pub fn limbo_bytes(&self) -> u64 {
        (self.limbo.capacity() * size_of::<(u64, Block, u64)>()) as u64
    }

    /// No write waits, and nothing is pinned or promised.
    fn is_idle(&self) -> bool {
        self.pages.is_empty() && self.pages.replaced_blocks() == 0 && self.waiting.is_empty() && self.settling.is_empty()
    }

    /// Nor is a flush wanted for what failed.
    fn has_nothing(&self) -> bool {
        self.is_idle() && !self.unsure.awaits_flush()
    }

    /// No write is left whose success would tell that the origin takes them again: after a while somebody may try.
    fn forgive(&mut self, now: Instant) {
        let is_old = self.back_off.at.is_none_or(|at| at + RETRY.1 <= now);
        if self.back_off.has_failed() && is_old && self.is_idle() && self.writes.is_empty() {
            self.back_off.succeeded();
        }
    }

    /// A page that has not come this way, and that the origin is to have.
    pub fn adopt(&mut self, block: Block, page: Page<P>, now: Instant) {
        self.pages.insert(block, page);
        self.since.get_or_insert(now);
    }

    /// What was written and not flushed may be gone: it is written again.
    pub fn forget(&mut self) {
        self.forgotten += 1;
        self.pages.forget(self.flushed);
        self.take_marks_back();
    }

    /// Pages have come, or have to be written again, that whoever waits for a flush of the origin waits for, too.
    pub fn take_marks_back(&mut self) {
        self.settling.iter_mut().for_each(|(_, until)| *until = None);
    }

    /// The same for some of those only.
    pub fn take_marks_back_of(&mut self, is_meant: impl Fn(usize) -> bool) {
        self.settling.iter_mut().filter(|(number, _)| is_meant(*number)).for_each(|(_, until)| *until = None);
    }

    /// What the origin did not take is written once more.
    pub fn try_refused(&mut self) {
        self.refused.at = None;
        self.pages.try_refused();
    }

    /// Somebody waits for a flush of the origin.
    pub fn is_settling(&self) -> bool {
        !self.settling.is_empty()
    }

    /// A flush of the origin is under way that makes all of it durable.
    fn is_about_to_settle(&self) -> bool {
        let covers = |flush: &Flush| flush.mark == self.pages.mark() && flush.forgotten == self.forgotten;
        self.flush.as_ref().is_some_and(covers) && self.pages.are_written()
    }

    /// A page has some of these blocks: it is newer than anything in the cache.
    pub fn covers(&self, block: Block, blocks: u64) -> bool {
        self.pages.overlapping(block, blocks).next().is_some()
    }
}

impl<P: Payload> Engine<P> {
    /// Does this write go past the log?
    pub(super) fn goes_through(&self, number: usize, data: &[Span], data_blocks: u64) -> bool {
        let request = &self.requests.get(number).request;
        // Until every header is loaded, clean slots may come up that nobody has killed.
        if self.is_degraded() {
            return !matches!(request.command, Command::Trim { .. });
        }
        if !self.writes_through() || !matches!(request.command, Command::Write { .. }) || self.recovery.is_some() {
            return false;
        }
        let (block, blocks) = self.blocks_of(request.span);
        if self.ranges.overlapping(block, blocks).next().is_some() || self.touches_lost(block, blocks) {
            return false;
        }
        let full = || !self.has_slots(number, data, data_blocks) && self.sets.dying_count() == 0 && !self.has_clean_set();
        match (self.allocation(), self.config.when_full) {
            (Allocation::ReadOnly, _) => true,
            (Allocation::SmallWrites, _) if !self.requests.get(number).converts => true,
            (Allocation::ReadWrite, _) if self.commits_home(number) => true,
            (Allocation::ReadWrite, WhenFull::Wait) => self.is_split_off(number, full),
            (Allocation::ReadWrite | Allocation::SmallWrites, WhenFull::Through) => full(),
            (Allocation::SmallWrites, WhenFull::Wait) => self.goes_straight(number),
        }
    }

    fn touches_lost(&self, block: Block, blocks: u64) -> bool {
        self.lost.has_any_of(block, blocks)
    }

    /// What keeps a write of so many blocks from going through now.
    pub(super) fn lacks_room_through(&mut self, block: Block, blocks: u64) -> Option<WaitReason> {
        if self.waits_for_zeros(block, blocks) {
            return Some(WaitReason::RangeTable);
        }
        if !self.has_room_to_pass(blocks) || self.awaits_rescue(block, blocks) {
            self.through.crowded = true;
            return Some(WaitReason::Window);
        }
        if !self.journal_has_room(blocks) {
            self.checkpoint.urgent = true;
            return Some(WaitReason::Journal);
        }
        None
    }

    /// Somebody waits for the pages, if there are any, to be let go: as soon as the origin has taken what it takes, it is flushed.
    pub(super) fn want_room_through(&mut self) {
        self.through.crowded |= !self.through.pages.is_empty() && self.through.pages.are_tried();
    }

    /// May so many blocks more be pinned until the origin is flushed? What lies over zeros is no more than was in the window, or waited for, when
    /// the SSD failed, and no flush lets it go.
    pub(super) fn has_room_to_pass(&self, blocks: u64) -> bool {
        let (loose, atoms) = (self.through.pages.loose_atoms(), blocks * self.block_atoms());
        (loose + atoms) * crate::block::ATOM_BYTES <= self.config.through_bytes || loose == 0
    }

    /// The newest contents of a block that went through and is not flushed, and which atoms of it are valid.
    pub(super) fn passed_contents(&self, block: Block) -> Option<(P, Atoms)> {
        let (first, page) = self.through.pages.overlapping(block, 1).next()?;
        let size = self.block_atoms();
        Some((page.payload.slice((block.0 - first.0) * size, size), page.valid.unwrap_or(self.full(block))))
    }

    /// The pieces of a request go through. Its blocks stay locked until it is answered.
    pub(super) fn begin_through(&mut self, number: usize, pieces: Vec<Piece<P>>) {
        let span = self.requests.get(number).request.span;
        let (block, blocks) = self.blocks_of(span);
        if !self.locks.iter().any(|lock| lock.request == number) {
            self.locks.push(Lock { request: number, block, blocks });
        }
        self.counters.through_blocks += blocks;
        self.counters.written_atoms += span.atoms;
        self.note_split(number);
        self.requests.get_mut(number).stage = Stage::Through(Passing { pieces });
        self.through.waiting.push(number);
    }

    /// Something newer of some of these blocks is on its way to the origin, or there and not flushed.
    pub(super) fn is_passing(&self, block: Block, blocks: u64) -> bool {
        let goes_through = |lock: &Lock| matches!(self.requests.get(lock.request).stage, Stage::Through(_));
        let mut locks = self.locks.iter().filter(|lock| lock.block.0 < block.0 + blocks && block.0 < lock.block.0 + lock.blocks);
        self.through.covers(block, blocks) || locks.any(goes_through)
    }

    /// Blocks that have gone past the log and are not flushed, or are on their way.
    pub(super) fn blocks_past_log(&self) -> u64 {
        let waiting = self.through.waiting.iter().map(|&number| self.blocks_of(self.requests.get(number).request.span).1);
        let written = self.through.writes.iter().filter(|(_, write)| write.request.is_some()).map(|(_, write)| write.blocks);
        self.through.pages.blocks() + waiting.sum::<u64>() + written.sum::<u64>()
    }

    /// Requests that wait for the origin to take their writes.
    pub(super) fn passing(&self) -> impl Iterator<Item = usize> + '_ {
        self.through.waiting.iter().copied()
    }
    /// Requests whose promise the origin has to keep.
    pub(super) fn settling(&self) -> impl Iterator<Item = usize> + '_ {
        self.through.settling.iter().map(|&(number, _)| number)
    }
    /// A write waits for the pages to be let go.
    pub(super) fn is_crowded(&self) -> bool {
        self.through.crowded
    }
    /// The request waits no more.
    pub(super) fn forget_passing(&mut self, number: usize) {
        self.through.waiting.retain(|&waiting| waiting != number);
        self.through.settling.retain(|&(waiting, _)| waiting != number);
    }

    /// Nothing is on its way to the origin, or waits to be.
    pub(super) fn is_through_idle(&self) -> bool {
        self.through.writes.is_empty() && self.through.waiting.is_empty() && self.through.flush.is_none()
    }
}

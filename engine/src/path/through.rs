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
//! A block under a zeroed range, or with lost atoms, is not written through: it waits for room in the log. Partly written blocks carry
//! the valid atoms of what is below them in the cache, so that its slot may die.

use std::collections::VecDeque;

use crate::block::{Atoms, Block, Slot, Span};
use crate::cache::format::Bits;
use crate::cache::index::Run;
use crate::cache::stream::Source;
use crate::cache::through::{Page, Pages, State};
use crate::config::{Allocation, Canary, WhenFull};
use crate::op::{Action, Class, DeviceError, DeviceId, Zone};
use crate::payload::Payload;
use crate::probe::{Health, WaitReason};
use crate::request::{Command, Outcome, RequestError};
use crate::slab::Slab;
use crate::time::{Duration, Instant};

use super::back_off::BackOff;
use super::merge::Lock;
use super::origin::Writer;
use super::write::Piece;
use super::{Ended, Engine, Owner, Stage};

/// How long a FLUSH waits, for each MiB that went through, for a flush of the origin that is under way: as long as an SSD takes to write it.
const LOG_PACE: Duration = Duration::from_millis(5);
/// Between two tries of an origin that fails.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

pub(super) struct Through<P> {
    pub pages: Pages<P>,
    /// Requests that may not start yet.
    waiting: Vec<usize>,
    writes: Slab<Write>,
    /// Blocks whose clean slots died or became dirty, with the group of the record, until that is durable: after a crash they would live
    /// again, and be clean.
    limbo: VecDeque<(u64, Block, u64)>,
    flush: Option<Flush>,
    /// A flush of the origin handed out at this mark has succeeded: what it covers may be let go.
    flushed: u64,
    /// Requests that are promised the durability of the pages up to a mark, and wait for a flush of the origin. No mark: not all pages are
    /// written, and the mark will be that of the first flush handed out when they are.
    settling: Vec<(usize, Option<u64>)>,
    /// Until when they wait rather than have everything put into the log.
    patience: Option<Instant>,
    /// Where a failed write may have left anything on the origin, until a flush that was handed out later: the origin may forget that, and
    /// nothing of it may be kept as clean.
    unsure: Vec<Span>,
    /// So many of them, the first ones, no flush makes sure of any more: one has failed, and may have dropped them.
    doomed: usize,
    /// A write waits for the pages to be let go.
    crowded: bool,
    /// When the oldest page was written.
    since: Option<Instant>,
    /// Counts how often the origin may have forgotten what was not flushed.
    forgotten: u64,
    pub back_off: BackOff,
}

/// One or several operations that write the pieces of a request, or a page once more.
struct Write {
    request: Option<usize>,
    operations: u32,
    error: Option<DeviceError>,
    /// `Through::forgotten` when it was started.
    forgotten: u64,
}

/// A flush of the origin.
struct Flush {
    mark: u64,
    forgotten: u64,
    /// How many spans it makes sure of.
    sure: usize,
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
            flush: None,
            flushed: 0,
            settling: Vec::new(),
            patience: None,
            unsure: Vec::new(),
            doomed: 0,
            crowded: false,
            since: None,
            forgotten: 0,
            back_off: BackOff::new(RETRY.0, RETRY.1),
        }
    }

    /// No write waits, and nothing is pinned or promised.
    fn has_nothing(&self) -> bool {
        let pins = !self.pages.is_empty() || self.pages.replaced_blocks() > 0;
        !pins && self.waiting.is_empty() && self.settling.is_empty() && !self.awaits_sureness()
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
        self.settling.iter_mut().for_each(|(_, until)| *until = None);
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

    /// A flush of the origin would make sure of something.
    fn awaits_sureness(&self) -> bool {
        self.unsure.len() > self.doomed
    }

    /// A flush of the origin has failed.
    pub fn flush_failed(&mut self) {
        self.doomed = self.unsure.len();
    }

    /// A failed write may have left something here that the origin may forget.
    pub fn is_unsure(&self, span: Span) -> bool {
        self.unsure.iter().any(|unsure| unsure.overlaps(span))
    }

    /// A page has some of these blocks: it is newer than anything in the cache.
    pub fn covers(&self, block: Block, blocks: u64) -> bool {
        self.pages.overlapping(block, blocks).next().is_some()
    }
}

impl<P: Payload> Engine<P> {
    // --- choosing ---

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
            (Allocation::SmallWrites, WhenFull::Wait) => false,
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
        if !self.has_room_to_pass(blocks) {
            self.through.crowded = true;
            return Some(WaitReason::Window);
        }
        if !self.journal_has_room(blocks) {
            self.checkpoint.urgent = true;
            return Some(WaitReason::Journal);
        }
        None
    }

    /// May so many blocks more be pinned until the origin is flushed?
    pub(super) fn has_room_to_pass(&self, blocks: u64) -> bool {
        let atoms = self.through.pages.atoms() + blocks * self.block_atoms();
        atoms * crate::block::ATOM_BYTES <= self.config.through_bytes || self.through.pages.is_empty()
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

    // --- limbo ---

    /// A clean slot of these blocks dies or becomes dirty in the open group.
    pub(super) fn note_limbo(&mut self, block: Block, blocks: u64) {
        if self.writes_through() {
            self.leave_limbo();
            self.through.limbo.push_back((self.journal.group(), block, blocks));
        }
    }

    /// Writes may go through from now on: nothing was noted before, so any clean slot may be in limbo until the open group is durable.
    pub(super) fn begin_limbo(&mut self) {
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
    }

    /// Would a crash now bring back a clean slot of these blocks?
    fn is_in_limbo(&mut self, block: Block, blocks: u64) -> bool {
        self.leave_limbo();
        self.through.limbo.iter().any(|&(_, first, count)| first.0 < block.0 + blocks && block.0 < first.0 + count)
    }

    /// The same, without looking what has become durable first: what has is left out.
    pub(super) fn dies_late(&self, block: Block, blocks: u64) -> bool {
        let durable = self.journal.durable_group();
        let is_there = |first: Block, count: u64| first.0 < block.0 + blocks && block.0 < first.0 + count;
        self.through.limbo.iter().any(|&(group, first, count)| group > durable && is_there(first, count))
    }

    /// Kills the live slots of these blocks that are clean (or dirty).
    fn kill_live(&mut self, block: Block, blocks: u64, dirty: bool) {
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

    pub(super) fn has_clean(&self, block: Block, blocks: u64) -> bool {
        self.has_slot(block, blocks, false)
    }

    pub(super) fn has_dirty(&self, block: Block, blocks: u64) -> bool {
        self.has_slot(block, blocks, true)
    }

    /// Has one of these blocks a live slot that is dirty (or clean)?
    fn has_slot(&self, block: Block, blocks: u64, dirty: bool) -> bool {
        let mut runs = Vec::new();
        self.index.lookup(block, blocks, &mut runs);
        let is_such = |run: &Run| {
            let first = run.slot?;
            (0..run.blocks).find(|&i| self.sets.is_dirty(Slot { slot: first.slot + i as u32, ..first }) == dirty)
        };
        runs.iter().any(|run| is_such(run).is_some())
    }

    // --- writing ---

    /// True: something was answered or let go that others may wait for.
    pub(super) fn pump_through(&mut self) -> bool {
        if self.through.has_nothing() {
            return false;
        }
        let mut moved = false;
        for number in std::mem::take(&mut self.through.waiting) {
            if self.health() == Health::Unfenced || self.stopping {
                // Never acknowledged.
                let error = if self.stopping { RequestError::Shutdown } else { RequestError::Io };
                self.unlock(number);
                self.answer(number, Err(error));
                moved = true;
            } else if self.through.back_off.has_failed() && self.goes_back_to_log(number) {
                moved = true;
            } else if self.health() == Health::Fencing || !self.may_try() || !self.start_through(number) {
                self.through.waiting.push(number);
            }
        }
        self.rewrite_forgotten();
        self.settle_impatient();
        self.pump_through_flush();
        moved | self.release_pages()
    }

    /// May a write to the origin start? After a failure one at a time tries whether it is back.
    fn may_try(&self) -> bool {
        !self.through.back_off.is_waiting(self.now) && (!self.through.back_off.has_failed() || self.through.writes.is_empty())
    }

    fn start_through(&mut self, number: usize) -> bool {
        let (block, blocks) = self.blocks_of(self.requests.get(number).request.span);
        if !self.has_canary(Canary::KillAfterOriginWrite) {
            if self.has_clean(block, blocks) {
                if !self.journal_has_room(blocks) {
                    self.checkpoint.urgent = true;
                    return false;
                }
                self.begin_group_for(blocks);
                self.tickets.void(block, blocks);
                self.kill_live(block, blocks, false);
            }
            if self.is_in_limbo(block, blocks) {
                let group = self.close_group();
                self.flushes.want(group);
                return false;
            }
        }
        if self.is_origin_busy(block, blocks) {
            return false;
        }
        let Stage::Through(passing) = &self.requests.get(number).stage else { panic!("it waits to go through") };
        let mut parts = Vec::new();
        for piece in &passing.pieces {
            self.origin_parts_of(piece.block, piece.blocks, &piece.payload, piece.valid, &mut parts);
        }
        self.write_origin(Some(number), (block, blocks), parts);
        true
    }

    /// Somebody reads or writes these blocks on the origin, or is about to.
    pub(super) fn is_origin_busy(&self, block: Block, blocks: u64) -> bool {
        let size = self.block_atoms();
        let whole = Span::new(block.0 * size, blocks * size);
        self.origin.is_read(whole) || self.origin.is_written(whole) || self.destage.touches(whole)
    }

    /// What of some blocks goes to the origin: runs of valid atoms, joined to the last run where they follow it.
    fn origin_parts_of(&self, block: Block, blocks: u64, payload: &P, valid: Option<Atoms>, parts: &mut Vec<(Span, Vec<P>)>) {
        let base = block.0 * self.block_atoms();
        let end = (base + blocks * self.block_atoms()).min(self.config.geometry.volume_atoms);
        let runs: Vec<(u64, u64)> = match valid {
            None => vec![(0, end - base)],
            Some(valid) => valid.runs().map(|run| (u64::from(run.start), u64::from(run.end))).collect(),
        };
        let most = self.limits[1].op_atoms;
        for (mut from, to) in runs {
            while from < to {
                let room = match parts.last() {
                    Some((span, _)) if span.end() == base + from => most - span.atoms,
                    _ => 0,
                };
                let atoms = (to - from).min(if room > 0 { room } else { most });
                let part = payload.slice(from, atoms);
                match parts.last_mut() {
                    Some((span, payloads)) if room > 0 => {
                        span.atoms += atoms;
                        payloads.push(part);
                    }
                    _ => parts.push((Span::new(base + from, atoms), vec![part])),
                }
                from += atoms;
            }
        }
    }

    fn write_origin(&mut self, request: Option<usize>, (block, blocks): (Block, u64), parts: Vec<(Span, Vec<P>)>) -> usize {
        let forgotten = self.through.forgotten;
        let write = self.through.writes.insert(Write { request, operations: parts.len() as u32, error: None, forgotten });
        let size = self.block_atoms();
        self.origin.begin_write(Writer::Through(write), Span::new(block.0 * size, blocks * size));
        match request {
            Some(_) => self.changed(block, blocks),
            None => self.tickets.void(block, blocks),
        }
        let class = if request.is_some() { Class::Client } else { Class::Log };
        for (span, payloads) in parts {
            self.start(DeviceId::Origin, class, Action::Write(Zone::Origin, span, payloads), Owner::Through { write });
        }
        write
    }

    /// Whose write it is; none: a page's.
    pub(super) fn through_request(&self, write: usize) -> Option<usize> {
        self.through.writes.get(write).request
    }

    pub(super) fn through_done(&mut self, number: usize, result: Ended) {
        let write = self.through.writes.get_mut(number);
        write.operations -= 1;
        write.error = result.err().or(write.error);
        if write.operations > 0 {
            return;
        }
        let write = self.through.writes.remove(number);
        self.origin.end_writes(Writer::Through(number));
        let holds = write.error.is_none() && write.forgotten == self.through.forgotten;
        let state = if holds { self.through.pages.next_written() } else { State::Unwritten };
        match write.request {
            None => self.page_written(number, state, write.error),
            Some(request) => self.passed(request, state, write.error),
        }
        self.unpark_reads();
    }

    /// A page was written once more.
    fn page_written(&mut self, write: usize, state: State, error: Option<DeviceError>) {
        self.through.pages.end_write(write, state);
        match error {
            None => self.through.back_off.succeeded(),
            Some(_) => self.through.back_off.failed(self.now),
        }
    }

    /// The origin has said something about the write of a request.
    fn passed(&mut self, number: usize, state: State, error: Option<DeviceError>) {
        match error {
            Some(error) if self.goes_back_to_log(number) => {
                let (block, blocks) = self.blocks_of(self.requests.get(number).request.span);
                self.through.pages.spoil(block, blocks);
                self.note_unsure(block, blocks);
                if error == DeviceError::Gone {
                    self.through.forget();
                }
                return self.through.back_off.failed(self.now);
            }
            // It waits for the origin to come back, like everything that only the origin can do.
            Some(DeviceError::Gone) => {
                let (block, blocks) = self.blocks_of(self.requests.get(number).request.span);
                self.through.pages.spoil(block, blocks);
                self.note_unsure(block, blocks);
                self.through.forget();
                self.through.waiting.push(number);
                return self.through.back_off.failed(self.now);
            }
            Some(error) => {
                // Any part of it may have landed. What the cache has of these blocks is dirty and shadows it; older pages do, and are
                // written again.
                let (block, blocks) = self.blocks_of(self.requests.get(number).request.span);
                self.through.pages.spoil(block, blocks);
                self.note_unsure(block, blocks);
                self.unlock(number);
                let error = if error == DeviceError::NoSpace { RequestError::NoSpace } else { RequestError::Io };
                return self.answer(number, Err(error));
            }
            None => self.through.back_off.succeeded(),
        }
        let Stage::Through(passing) = std::mem::replace(&mut self.requests.get_mut(number).stage, Stage::Waiting) else {
            panic!("it was on its way through")
        };
        for piece in passing.pieces {
            self.takes_place(&piece);
            let Piece { block, blocks, payload, valid } = piece;
            self.through.pages.insert(block, Page { blocks, payload, valid, state });
            if self.has_canary(Canary::KillAfterOriginWrite) {
                self.kill_live(block, blocks, false);
            }
        }
        self.through.since.get_or_insert(self.now);
        self.unlock(number);
        let command = &self.requests.get(number).request.command;
        let fua = matches!(command, Command::Write { fua: true, .. } | Command::Zero { fua: true, .. } | Command::Trim { fua: true });
        if fua { self.settle(number) } else { self.answer(number, Ok(Outcome::Done)) }
    }

    /// A write to these blocks has failed, and any part of it is on the origin. What a read has kept in memory while it was under way is what
    /// they held before.
    pub(super) fn note_unsure(&mut self, block: Block, blocks: u64) {
        self.changed(block, blocks);
        const MOST: usize = 256;
        let span = Span::new(block.0 * self.block_atoms(), blocks * self.block_atoms());
        if self.through.unsure.len() >= MOST {
            self.through.unsure = vec![Span::new(0, self.config.geometry.blocks() * self.block_atoms())];
            // A flush under way counts by the former length.
            self.through.forgotten += 1;
            self.through.doomed = self.through.doomed.min(1);
        }
        self.through.unsure.push(span);
        self.through.since.get_or_insert(self.now);
    }

    fn unlock(&mut self, number: usize) {
        self.locks.retain(|lock| lock.request != number);
    }

    /// The first page that the origin may have forgotten. Zeros below it go first.
    fn next_to_rewrite(&self) -> Option<Block> {
        self.through.pages.unwritten().find(|&(block, blocks)| !self.waits_for_zeros(block, blocks)).map(|(block, _)| block)
    }

    /// Writes again what the origin may have forgotten.
    fn rewrite_forgotten(&mut self) {
        while self.may_try()
            && let Some(block) = self.next_to_rewrite()
        {
            let Page { blocks, payload, valid, .. } = self.through.pages.get(block).expect("found just now").clone();
            if self.is_origin_busy(block, blocks) {
                return;
            }
            let mut parts = Vec::new();
            self.origin_parts_of(block, blocks, &payload, valid, &mut parts);
            let write = self.write_origin(None, (block, blocks), parts);
            self.through.pages.turn(block, State::Writing(write));
        }
    }

    // --- promises ---

    /// Makes everything that went through durable before the request is answered: in the log, or by a flush of the origin.
    pub(super) fn settle(&mut self, number: usize) {
        if self.is_degraded() {
            // Whatever the mode: there is the origin only.
            if self.is_flush(number) && self.takes_loss() {
                return self.answer(number, Err(RequestError::Io));
            }
            let is_settled = self.through.pages.is_empty() && !self.owes_zeros();
            return if is_settled { self.settle_group(number) } else { self.settle_by_flush(number) };
        }
        if self.modes.is_home() {
            return self.await_home(number);
        }
        if self.through.pages.is_empty() {
            return self.settle_group(number);
        }
        if self.through.is_about_to_settle() && self.through.settling.is_empty() {
            self.through.patience = Some(self.now + self.log_pace());
            return self.settle_by_flush(number);
        }
        if self.through.settling.is_empty()
            && let Some(patience) = self.commit_patience()
        {
            self.through.patience = Some(self.now + patience.max(self.log_pace()));
            return self.settle_by_flush(number);
        }
        if self.through.patience.is_some() || !self.log_pages() {
            return self.settle_by_flush(number);
        }
        self.settle_group(number);
    }

    /// How long it takes to put the pages into the log.
    fn log_pace(&self) -> Duration {
        Duration(LOG_PACE.0 * (self.through.pages.atoms() / 2048 + 1))
    }

    /// The flush of the origin takes longer than it would have taken to put the pages into the log: that is done now.
    fn settle_impatient(&mut self) {
        if self.through.settling.is_empty() {
            self.through.patience = None;
        }
        if self.through.patience.is_some_and(|until| until <= self.now) {
            self.through.patience = None;
            self.committing.give_up();
            if self.log_pages() {
                for (number, _) in std::mem::take(&mut self.through.settling) {
                    self.settle_group(number);
                }
            }
        }
    }

    /// The same where the origin is promised: nothing is put into the log, the origin is flushed.
    pub(super) fn settle_pages(&mut self, number: usize) {
        if self.through.pages.is_empty() { self.settle_group(number) } else { self.settle_by_flush(number) }
    }

    /// Everything is in the log, or on the origin.
    fn settle_group(&mut self, number: usize) {
        if !self.is_degraded() && self.promise_without_cache(number) {
            // The log has failed meanwhile.
            return;
        }
        let group = self.close_group();
        if group <= self.journal.durable_group() {
            self.keep_promise(number);
        } else {
            self.promise(number, group);
        }
    }

    /// It waits until the origin is flushed.
    fn settle_by_flush(&mut self, number: usize) {
        let active = self.requests.get_mut(number);
        active.stage = Stage::Promised;
        active.waits = WaitReason::Origin;
        let until = self.through.pages.are_written().then_some(self.through.pages.mark());
        self.through.settling.push((number, until));
    }

    /// Puts all pages into the log. False: it has no room.
    fn log_pages(&mut self) -> bool {
        let blocks = self.through.pages.blocks();
        if self.cache_failed || self.slots_available(Source::Client) < blocks || !self.journal_has_room(blocks + 2) {
            return false;
        }
        let pages: Vec<(Block, Page<P>)> = self.through.pages.iter().map(|(block, page)| (block, page.clone())).collect();
        for (block, Page { blocks, payload, valid, .. }) in pages {
            self.begin_group_for(blocks + 2);
            self.through.pages.remove(block, blocks);
            self.counters.through_logged_blocks += blocks;
            self.put(Source::Client, true, [Piece { block, blocks, payload, valid }], &[], 0);
        }
        if !self.through.awaits_sureness() {
            self.through.since = None;
        }
        // Some of it may have been acknowledged after the FLUSH came for which this is done.
        self.flushes.unpromised.acknowledge(self.journal.group(), self.journal.durable_group());
        true
    }

    /// Flushes the origin when somebody waits for it, much is pinned, or a page is old.
    fn pump_through_flush(&mut self) {
        let through = &self.through;
        if through.flush.is_some()
            || through.back_off.is_waiting(self.now)
            || (through.pages.is_empty() || through.flushed >= through.pages.mark()) && !through.awaits_sureness()
        {
            return;
        }
        let much =
            through.pages.atoms() * crate::block::ATOM_BYTES >= self.config.through_bytes / 4 * 3 && !self.splitting.is_at_home_leg();
        let old = through.since.is_some_and(|since| self.now.since(since) >= self.config.flush_age);
        let leg_over = self.splitting.wants_origin_flush() && through.writes.is_empty() && through.waiting.is_empty();
        let asked = !through.settling.is_empty() || self.modes.is_waiting() || self.detaching || leg_over;
        // What is being written would have to be flushed for again, unless room is needed.
        let is_due = much || through.crowded || (old || self.stopping || asked) && through.pages.are_written();
        if is_due {
            let (mark, forgotten, sure) = (through.pages.mark(), through.forgotten, through.unsure.len());
            self.through.flush = Some(Flush { mark, forgotten, sure });
            if self.through.pages.are_written() {
                self.through.settling.iter_mut().for_each(|(_, until)| *until = until.or(Some(mark)));
            }
            self.counters.through_flushes += 1;
            self.splitting.origin_flushes();
            self.start(DeviceId::Origin, Class::Log, Action::Flush, Owner::ThroughFlush);
        }
    }

    /// When the oldest page is so old that the origin is flushed for it, or somebody has waited long enough for such a flush.
    pub(super) fn page_deadline(&self) -> Option<Instant> {
        let has_some = !self.through.pages.is_empty() || self.through.awaits_sureness();
        let old = self.through.since.filter(|_| has_some).map(|since| since + self.config.flush_age);
        // What is due already has had its turn.
        [old, self.through.patience].into_iter().flatten().filter(|&at| at > self.now).min()
    }

    pub(super) fn through_flush_done(&mut self, result: Ended) {
        let flush = self.through.flush.take().expect("one flush is in flight");
        match result {
            Ok(()) if flush.forgotten == self.through.forgotten => {
                self.through.back_off.succeeded();
                self.through.flushed = flush.mark;
                let doomed = self.through.doomed.min(flush.sure);
                self.through.unsure.drain(doomed..flush.sure);
            }
            Ok(()) => {}
            Err(error) => {
                self.origin_flush_failed(error);
                self.through.back_off.failed(self.now);
                if self.through.patience.is_some() {
                    // Whoever waits only because it was under way needs it no more.
                    self.through.patience = Some(self.now);
                } else if error != DeviceError::Gone {
                    for (number, _) in std::mem::take(&mut self.through.settling) {
                        self.answer(number, Err(RequestError::Io));
                    }
                }
            }
        }
    }

    /// Lets go what a flush of the origin has made durable: the slots below it die.
    fn release_pages(&mut self) -> bool {
        let mark = self.through.flushed;
        let covered = self.through.pages.covered(mark);
        let blocks = covered.iter().map(|(_, blocks)| blocks).sum::<u64>() + self.through.pages.replaced_blocks();
        // Without the SSD their end is not written down.
        if blocks > 0 && !self.cache_failed && !self.journal_has_room(blocks) {
            self.checkpoint.urgent = true;
            return false;
        }
        // First: a page's own end forgets what it has replaced.
        for (block, blocks) in self.through.pages.take_replaced(mark) {
            self.begin_group_for(blocks);
            self.kill_live(block, blocks, true);
        }
        let any = !covered.is_empty();
        for (block, blocks) in covered {
            self.begin_group_for(blocks);
            self.find_lost(block, blocks);
            self.through.pages.remove(block, blocks);
            self.kill_live(block, blocks, true);
            self.tickets.void(block, blocks);
        }
        if any {
            self.through.crowded = false;
            let has_none = self.through.pages.is_empty() && !self.through.awaits_sureness();
            self.through.since = if has_none { None } else { Some(self.now) };
        }
        // Without a page left everything is on the origin or in the log.
        let (none_left, owes_zeros) = (self.through.pages.is_empty(), self.owes_zeros());
        let (settled, settling): (Vec<_>, Vec<_>) = std::mem::take(&mut self.through.settling)
            .into_iter()
            .partition(|&(_, until)| (none_left || until.is_some_and(|until| until <= mark)) && !owes_zeros);
        self.through.settling = settling;
        for &(number, _) in &settled {
            self.settle_group(number);
        }
        any || !settled.is_empty()
    }

    /// Something newer of this block is on its way to the origin, or there and not flushed.
    pub(super) fn is_passing(&self, block: Block) -> bool {
        let goes_through = |lock: &Lock| matches!(self.requests.get(lock.request).stage, Stage::Through(_));
        let mut locks = self.locks.iter().filter(|lock| (lock.block.0..lock.block.0 + lock.blocks).contains(&block.0));
        self.through.covers(block, 1) || locks.any(goes_through)
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

    /// Stopping: true when nothing is left that only the origin holds, and that it might forget.
    pub(super) fn is_through_settled(&mut self) -> bool {
        self.through.pages.is_empty() || self.log_pages()
    }
}

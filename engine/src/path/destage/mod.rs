//! Destage: durable dirty slots and zeroed ranges go home, in one sweep over the volume, batch by batch.
//!
//! ```text
//! choose (durable, dirty, in order of address) → pieces: Waiting → Reading (SSD, verified) → Ready → Writing (origin) → Ended
//!        └ all ended → origin flush → CLEAN and UNZERO for what is still there → next batch
//! ```
//! Nothing undurable reaches the origin, a range goes before the slots above it, and a slot is clean only after a flush of the origin that
//! was handed out after its write. What a client overwrites meanwhile, or the cleaner moves, is not cleaned. Whatever fails stays dirty and is
//! tried again later.

mod choose;
mod given;
mod refused;
mod work;

use std::collections::BTreeMap;

use crate::block::{Block, Slot, Span};
use crate::cache::format::journal::Record;
use crate::cache::format::{Bits, RangeKind, SetState};
use crate::cache::ranges::Zeroed;
use crate::gate::View;
use crate::gate::courtesy::Courtesy;
use crate::gate::pace::{Pace, Work};
use crate::op::{Action, Answer, Class, DeviceError, DeviceId, Hole, Zone};
use crate::payload::Payload;
use crate::probe::{GateState, WaitReason};
use crate::time::{Duration, Instant};

use super::back_off::BackOff;
use super::origin::Writer;
use super::shun::Shunned;
use super::{Ended, Engine, Owner, joined};

/// Atoms of one zeroing of the origin: 32 MiB.
const ZERO_ATOMS: u64 = 65_536;
/// Pieces of zeroed ranges in one batch.
const RANGES: usize = 64;
/// Reads of a single bad slot before its atoms count as lost.
const READ_TRIES: u32 = 3;
/// A dirty slot that the SSD fails to read for so long is given up.
const PATIENCE: Duration = Duration::from_secs(60);
/// Blocks that the origin does not take, remembered: an origin with more of them fails as a whole, and destaging backs off.
const REFUSED: usize = 1024;

pub(super) struct Destage<P> {
    batch: Option<Batch<P>>,
    /// Where the sweep goes on: at the start of an origin set, or what is chosen behind the end of the volume overlaps what was chosen before.
    cursor: Block,
    /// One block a piece: a read of several failed, and the bad one must be found.
    careful: bool,
    /// Dirty slots that could not be read: in which life of their set, and since when.
    unreadable: BTreeMap<Slot, (u64, Instant)>,
    /// Blocks that the origin does not take.
    shunned: Shunned<Block>,
    /// The last batch that was not taken as a whole was refused by an origin that is there.
    refused: bool,
    pub back_off: BackOff,
    /// When a write last waited for the SSD to take those before it.
    pub ssd_awaited: Option<Instant>,
    /// How long batches have taken.
    pace: Pace,
    /// How long they may take.
    pub courtesy: Courtesy,
}

impl<P> Default for Destage<P> {
    fn default() -> Self {
        let back_off = BackOff::new(Duration::from_secs(1), Duration::from_secs(60));
        let (unreadable, shunned, pace, courtesy) = (BTreeMap::new(), Shunned::new(REFUSED), Pace::default(), Courtesy::default());
        Destage {
            batch: None,
            cursor: Block(0),
            careful: false,
            unreadable,
            shunned,
            refused: false,
            back_off,
            ssd_awaited: None,
            pace,
            courtesy,
        }
    }
}

impl<P> Destage<P> {
    pub fn is_idle(&self) -> bool {
        self.batch.is_none()
    }
    /// Everything of the batch has been sent, and the origin is being flushed.
    pub fn is_flushing(&self) -> bool {
        self.batch.as_ref().is_some_and(|batch| batch.flushing)
    }
    /// The batch that runs may write there, or has.
    pub fn touches(&self, span: Span) -> bool {
        self.batch.as_ref().is_some_and(|batch| batch.pieces.iter().any(|piece| piece.span.overlaps(span)))
    }
}

struct Batch<P> {
    began: Instant,
    /// What it is, before anything of it is home.
    work: Work,
    pieces: Vec<Piece<P>>,
    /// The first piece that has not been started: all behind it wait.
    next: usize,
    /// Pieces under way; pieces that have not ended, those included.
    active: usize,
    left: usize,
    /// Pieces that have become ready; some may be on their way since.
    ready: Vec<usize>,
    /// What the batch cleans if its pieces end well: in the order of addresses while it is chosen, then set by set, as it is told to the log.
    slots: Vec<Going>,
    /// The open sets of clients, as they were when it was chosen.
    heads: Vec<Head>,
    /// Sets that are freed when they are clean, and their lives.
    leaving: Vec<(u32, u64)>,
    flushing: bool,
    /// The flush that covers every piece has succeeded.
    flushed: bool,
    /// The origin went away or came back: nothing of this batch is known to be there.
    void: bool,
    failed: bool,
    /// A part of it is on a cache alone that has failed, and does not give it.
    not_given: bool,
    /// A device that is there has refused a part of it.
    refused: bool,
    /// Nothing else was wrong with it, and what was refused is left alone, or tried by itself.
    only_refused: bool,
    /// Zeros that the origin has refused, or to flush, and when.
    refused_zeros: Vec<(Span, Instant)>,
    /// The first piece of several blocks that failed as a whole.
    failed_together: Option<usize>,
}

/// A slot and the block it holds in this life of its set.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Going {
    slot: Slot,
    life: u64,
    block: Block,
}

/// How far a set was written: what is dirty in it further on is younger.
#[derive(Clone, Copy)]
struct Head {
    set: u32,
    life: u64,
    next: u32,
    /// When the first one further on was put.
    since: Instant,
    dirty_since: Instant,
}

/// One write to the origin.
struct Piece<P> {
    span: Span,
    what: What<P>,
    state: State,
}

enum What<P> {
    Data { reads: Vec<Read<P>> },
    Zero(Block, u64, Hole),
}

/// Consecutive slots read in one operation; `skip..skip + atoms` of them belong to the piece.
struct Read<P> {
    first: Slot,
    slots: u32,
    block: Block,
    skip: u64,
    atoms: u64,
    tries: u32,
    contents: Option<P>,
    /// The slots are pinned.
    held: bool,
}

impl<P> Batch<P> {
    fn set(&mut self, piece: usize, state: State) {
        let old = std::mem::replace(&mut self.pieces[piece].state, state);
        self.active = self.active + usize::from(state.is_active()) - usize::from(old.is_active());
        self.left = self.left + usize::from(!state.is_over()) - usize::from(!old.is_over());
        if state == State::Ready {
            self.ready.push(piece);
        }
    }

    fn reads(&self) -> impl Iterator<Item = &Read<P>> {
        self.pieces.iter().flat_map(|piece| match &piece.what {
            What::Data { reads } => &reads[..],
            What::Zero(..) => &[],
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Reading,
    /// Waits until nobody reads its span of the origin any more.
    Ready,
    Writing,
    Ended,
    Failed,
}

impl State {
    fn is_active(self) -> bool {
        matches!(self, State::Reading | State::Ready | State::Writing)
    }
    fn is_over(self) -> bool {
        matches!(self, State::Ended | State::Failed)
    }
}

impl<P: Payload> Engine<P> {
    pub(super) fn view(&self) -> View {
        let free = self.free_soon();
        let is_dirty = |set: u32| self.sets.get(set).dirty_count > 0;
        let is_oldest_dirty = || self.sets.by_age().find(|&set| self.sets.get(set).live_count > 0).is_some_and(is_dirty);
        View {
            now: self.now,
            last_request: self.arrivals.last,
            free,
            dirty_sets: self.dirty_sets_packed(),
            dirty: self.owed_blocks() > 0 || self.drain.is_some() && self.dirty_blocks() > 0,
            oldest_set_dirty: free < self.gate.floor && is_oldest_dirty(),
            dirty_since: self.dirty_since(),
            starved: self.is_starved() && !self.is_space_coming() || self.first_waits_for(WaitReason::RangeTable),
            drain: self.drain.is_some() || self.is_degraded() || self.sets_needed_to_stop() > 0,
            home: self.is_due_home(),
            passing: self.splitting.is_busy(self.now) || self.detouring.is_busy(self.now),
            asleep: self.asleep(),
            sweep: self.sweep(),
        }
    }

    pub(super) fn dirty_blocks(&self) -> u64 {
        self.sets.dirty_slots + self.ranges.zeroed_blocks()
    }

    /// Of them those that may go home: what is stranded does not.
    pub(super) fn owed_blocks(&self) -> u64 {
        self.sets.owed_slots() + self.ranges.zeroed_blocks()
    }

    pub(super) fn dirty_since(&self) -> Option<Instant> {
        match (self.sets.dirty_since(), self.ranges.since()) {
            (Some(slots), Some(ranges)) => Some(slots.min(ranges)),
            (slots, ranges) => slots.or(ranges),
        }
    }

    /// True: slots were cleaned, sets may be dropped now.
    pub(super) fn pump_destage(&mut self) -> bool {
        if self.stopping && !self.goes_home_at_stop() && !self.owes_zeros() && self.sets_needed_to_stop() == 0 {
            // What has begun ends, so that nobody waits behind it.
            return self.destage.batch.is_some() && self.advance_batch(false);
        }
        if self.drain.is_some() {
            self.note_drain();
        }
        if self.note_detour() {
            // Who waits is looked at again first.
            return true;
        }
        let state = self.gate.decide(self.view());
        let may_run = matches!(state, GateState::Destage(_));
        if may_run || self.destage.batch.is_some() { self.go_home(may_run) } else { false }
    }

    /// Goes on with the batch that runs, or begins one if the gate lets it. (A function of its own, because mostly neither is to be done.)
    #[inline(never)]
    fn go_home(&mut self, may_run: bool) -> bool {
        if self.destage.batch.is_some() {
            // A set that has begun to leave leaves (paper 000, figure 7).
            let leaving = self.destage.batch.as_ref().is_some_and(|batch| !batch.leaving.is_empty());
            return self.advance_batch(may_run || leaving);
        }
        let may_begin = !self.has_cache_failed() || self.is_degraded();
        if !self.destage.back_off.is_waiting(self.now) && may_begin {
            if self.is_woken_to_destage() {
                // It begins when the disk turns.
            } else if self.urgency() < 1.0 && self.destage.courtesy.rest(self.now).is_some() {
                // Clients are heard.
            } else if self.leaves_ssd_until(self.now).is_some() {
                // Reading what is dirty would cost them more than the room is worth; and what they overwrite meanwhile need not go home.
            } else if self.journal_has_room(64) {
                self.destage.back_off.at = None;
                self.start_batch();
            } else {
                self.checkpoint.urgent = true;
            }
        }
        false
    }

    fn start_batch(&mut self) {
        let mut batch = self.choose();
        if batch.pieces.is_empty() {
            // Dirty, but not durable yet, or not to be tried again yet.
            let group = self.close_group();
            self.flushes.want(group);
            if group <= self.journal.durable_group() {
                self.gate.left_behind(self.now);
                if let Some(next) = self.destage.shunned.next(self.now) {
                    self.destage.back_off.wait_until(next);
                }
            }
            return;
        }
        self.counters.destage_batches += 1;
        self.destage.courtesy.begin();
        for read in batch.reads() {
            self.sets.pin(read.first, read.slots);
        }
        (batch.left, batch.work) = (batch.pieces.len(), self.work_of(&batch));
        batch.slots.sort_unstable();
        self.destage.batch = Some(batch);
        self.advance_batch(true);
    }

    // --- running ---

    /// Starts what may start. `may_start`: the gate still lets new pieces begin.
    fn advance_batch(&mut self, may_start: bool) -> bool {
        let batch = self.destage.batch.as_ref().expect("a batch runs");
        if batch.flushing {
            return false;
        }
        if batch.flushed {
            return self.end_batch();
        }
        // An origin that went away takes nothing more of this batch.
        let may_start = may_start && !batch.void;
        let batch = self.batch();
        for number in std::mem::take(&mut batch.ready) {
            if self.piece(number).state == State::Ready {
                self.write_piece(number);
                let again = self.piece(number).state == State::Ready;
                self.batch().ready.extend(again.then_some(number));
            }
        }
        let depth = self.config.destage_depth;
        while let batch = self.batch()
            && batch.next < batch.pieces.len()
            && (!may_start || batch.active < depth)
        {
            let number = batch.next;
            batch.next += 1;
            if may_start {
                self.start_piece(number);
            } else {
                batch.set(number, State::Failed);
            }
        }
        self.flush_origin()
    }

    fn batch(&mut self) -> &mut Batch<P> {
        self.destage.batch.as_mut().expect("a batch runs")
    }
    fn piece(&mut self, number: usize) -> &mut Piece<P> {
        &mut self.batch().pieces[number]
    }

    fn start_piece(&mut self, number: usize) {
        let What::Data { reads } = &self.piece(number).what else {
            self.batch().set(number, State::Ready);
            return self.write_piece(number);
        };
        let wanted: Vec<(Slot, u32)> = reads.iter().map(|read| (read.first, read.slots)).collect();
        self.batch().set(number, State::Reading);
        for (read, (first, slots)) in wanted.into_iter().enumerate() {
            self.read_piece(number, read, first, slots);
        }
    }

    fn read_piece(&mut self, piece: usize, read: usize, first: Slot, slots: u32) {
        if let Some((payload, count)) = self.window.get(first, slots)
            && count == slots
        {
            // Only with a deliberate bug: what is pinned is not durable.
            return self.piece_read(piece, read, payload);
        }
        let action = Action::Read(Zone::Data, self.slots_span(first, slots));
        self.start(DeviceId::Cache, Class::Destage, action, Owner::DestageRead { piece, read });
    }

    pub(super) fn destage_read_done(&mut self, piece: usize, read: usize, result: Result<Answer<P>, DeviceError>) {
        match result {
            Ok(answer) => self.piece_read(piece, read, joined(answer)),
            Err(error) => self.piece_unreadable(piece, read, Some(error)),
        }
    }

    fn read_of(&mut self, piece: usize, read: usize) -> &mut Read<P> {
        match &mut self.piece(piece).what {
            What::Data { reads } => &mut reads[read],
            What::Zero(..) => panic!("zeroes are not read"),
        }
    }

    fn piece_read(&mut self, piece: usize, read: usize, payload: P) {
        let (first, slots) = (self.read_of(piece, read).first, self.read_of(piece, read).slots);
        if !self.holds_what_was_written(first, &payload) {
            return self.piece_unreadable(piece, read, None);
        }
        if !self.destage.unreadable.is_empty() {
            let is_read = |slot: &Slot| slot.set == first.set && (first.slot..first.slot + slots).contains(&slot.slot);
            self.destage.unreadable.retain(|slot, _| !is_read(slot));
        }
        // What lies in memory needs its slots no more: their set may be emptied while the origin takes its time. A placed one is kept:
        // what is written in place meanwhile would count as gone home.
        let is_kept = self.sets.get(first.set).state == SetState::Placed;
        let part = self.read_of(piece, read);
        part.contents = Some(payload.slice(part.skip, part.atoms));
        if !is_kept && std::mem::replace(&mut part.held, false) {
            self.sets.unpin(first, slots);
        }
        let What::Data { reads } = &self.piece(piece).what else { unreachable!("it was read") };
        if reads.iter().all(|read| read.contents.is_some()) && self.piece(piece).state == State::Reading {
            self.batch().set(piece, State::Ready);
            self.write_piece(piece);
        }
    }

    /// A read failed (`error`) or did not match its checksum. Several slots: each by itself in the next batch. One: what memory has of it, or
    /// again; contents that do not match are lost after a few tries, a device that fails to read only after a minute of them: it may come back.
    fn piece_unreadable(&mut self, piece: usize, read: usize, error: Option<DeviceError>) {
        let part = self.read_of(piece, read);
        part.tries += 1;
        let (first, slots, block, tries) = (part.first, part.slots, part.block, part.tries);
        if slots == 1
            && let Some(payload) = self.remembered(first, block)
        {
            return self.piece_read(piece, read, payload);
        }
        if slots == 1 && tries < READ_TRIES && error != Some(DeviceError::Gone) {
            return self.read_piece(piece, read, first, slots);
        }
        if slots == 1 && self.is_degraded() {
            self.not_given(block);
        } else if slots == 1 {
            let (now, life) = (self.now, self.sets.get(first.set).life);
            let failing = self.destage.unreadable.entry(first).or_insert((life, now));
            if failing.0 != life {
                *failing = (life, now);
            }
            let since = failing.1;
            // What is stranded has had its minute; a drain gives it another one.
            let is_stranded = self.sets.stranded.contains(first);
            let is_hopeless = error.is_none() || is_stranded && self.drain.is_none();
            let patience = if is_hopeless { Duration::ZERO } else { PATIENCE };
            if self.now.since(since) >= patience && error != Some(DeviceError::Gone) {
                self.destage.unreadable.remove(&first);
                let is_decided = self.give_up(first, block);
                self.batch().failed |= !is_decided;
            } else {
                let is_told = error != Some(DeviceError::Gone) && !is_stranded;
                let batch = self.batch();
                batch.failed = true;
                batch.refused |= is_told;
                if is_told {
                    self.fail_home_of(self.blocks_span(block, 1));
                }
            }
        } else {
            self.take_care(piece);
        }
        self.batch().set(piece, State::Failed);
    }

    fn write_piece(&mut self, number: usize) {
        let piece = &self.destage.batch.as_ref().expect("a batch runs").pieces[number];
        let span = piece.span;
        if self.origin.is_written(span) {
            return;
        }
        if self.origin.is_read(span) {
            // Those that come meanwhile wait for the end of the batch.
            return self.origin.await_reads_home(span);
        }
        let (action, owner, voided) = match &piece.what {
            What::Data { reads } => {
                let payloads = reads.iter().map(|read| read.contents.clone().expect("a ready piece was read")).collect();
                (Action::Write(Zone::Origin, span, payloads), Owner::DestageWrite { piece: number }, None)
            }
            What::Zero(block, blocks, hole) => {
                (Action::Zero(Zone::Origin, span, *hole), Owner::DestageZero { piece: number }, Some((*block, *blocks)))
            }
        };
        self.origin.begin_write(Writer::Destage, span);
        let (block, blocks) = voided.unwrap_or(self.blocks_of(span));
        self.tickets.void(block, blocks);
        self.batch().set(number, State::Writing);
        self.start(DeviceId::Origin, Class::Destage, action, owner);
    }

    pub(super) fn destage_write_done(&mut self, number: usize, result: Ended) {
        self.batch().set(number, if result.is_ok() { State::Ended } else { State::Failed });
        match result {
            // Gone: the batch counts for nothing (`origin_forgot`).
            Ok(()) | Err(DeviceError::Gone) => {}
            Err(DeviceError::Medium | DeviceError::NoSpace) => self.refused(number),
        }
        let What::Data { reads } = &mut self.piece(number).what else { return };
        reads.iter_mut().for_each(|read| read.contents = None);
    }

    // --- ending ---

    /// When every piece has ended, the origin is flushed. True: there was nothing to flush, the batch is over.
    fn flush_origin(&mut self) -> bool {
        let batch = self.destage.batch.as_mut().expect("a batch runs");
        if batch.left > 0 {
            return false;
        }
        // A piece whose read failed may still have other reads in flight.
        if self.operations.under_way.iter().any(|(_, op)| matches!(op.owner, Owner::DestageRead { .. })) {
            return false;
        }
        if batch.void || batch.pieces.iter().all(|piece| piece.state == State::Failed) {
            batch.only_refused = batch.refused && !batch.void && !batch.failed;
            batch.void = true;
            batch.failed |= batch.refused;
            return self.end_batch();
        }
        batch.flushing = true;
        self.start(DeviceId::Origin, Class::Destage, Action::Flush, Owner::OriginFlush);
        false
    }

    pub(super) fn origin_flush_done(&mut self, result: Ended) {
        let batch = self.destage.batch.as_mut().expect("a batch runs");
        batch.flushing = false;
        batch.flushed = true;
        if let Err(error) = result {
            if error != DeviceError::Gone {
                batch.refused = true;
                let zeros = batch.pieces.iter().filter(|piece| matches!(piece.what, What::Zero(..)));
                batch.refused_zeros = zeros.map(|piece| (piece.span, self.now)).collect();
                let spans: Vec<Span> = batch.pieces.iter().map(|piece| piece.span).collect();
                spans.into_iter().for_each(|span| self.fail_home_of(span));
            }
            self.origin_flush_failed(error);
        }
    }

    /// A flush of the origin has failed, whoever wanted it: it may have dropped anything that was written and not flushed. What is shown of
    /// that no later flush saves. (An origin that was gone drops it at once, or not at all.)
    pub(super) fn origin_flush_failed(&mut self, error: DeviceError) {
        if error != DeviceError::Gone {
            self.marks.doubtful = true;
            self.through.unsure.flush_failed();
        }
        self.origin_changed();
    }

    /// The origin is gone, whoever has found out, or another incarnation came back: what was written there and not flushed may be forgotten.
    #[cold]
    pub(super) fn origin_forgot(&mut self) {
        self.through.forget();
        if let Some(batch) = &mut self.destage.batch {
            (batch.void, batch.failed) = (true, true);
        }
    }

    /// It went away or came back, as we are told: it may be worth another try at once.
    #[cold]
    pub(super) fn origin_changed(&mut self) {
        self.origin_forgot();
        if self.destage.batch.is_none() {
            self.destage.back_off.at = None;
        }
    }

    /// Cleans what reached the origin for certain, and lets everything go. False: the journal has no room yet.
    fn end_batch(&mut self) -> bool {
        let slots = self.destage.batch.as_ref().map_or(&[][..], |batch| &batch.slots);
        let sets = slots.chunk_by(|a, b| a.slot.set == b.slot.set).count() as u64;
        let opened = slots.iter().filter(|going| self.sets.is_opened(going.slot)).count() as u64;
        if !self.journal_has_room(self.entries_to_clean(sets, opened) + RANGES as u64) {
            self.checkpoint.urgent = true;
            return false;
        }
        let mut batch = self.destage.batch.take().expect("a batch runs");
        self.destage.courtesy.end(self.now);
        if batch.void {
            self.counters.destage_failures += 1;
        } else {
            batch.failed |= !self.unzero(&batch);
            self.clean(&batch);
            self.renew_heads(&batch);
            let ended = batch.pieces.iter().filter(|piece| piece.state == State::Ended);
            ended.for_each(|piece| self.through.unsure.rewritten(piece.span));
            self.let_leave(&batch.leaving);
            self.came_home();
        }
        for read in batch.reads().filter(|read| read.held) {
            self.sets.unpin(read.first, read.slots);
        }
        self.origin.end_writes(Writer::Destage);
        self.unpark_reads();
        self.destage.refused = batch.refused;
        self.note_given(&batch);
        if batch.refused {
            self.fail_home();
        }
        if batch.only_refused {
            self.gate.left_behind(self.now);
        }
        if (!batch.void || batch.only_refused) && batch.failed_together.is_none() {
            self.leave_refused(!batch.void);
        }
        if !batch.refused_zeros.is_empty() && self.is_degraded() {
            self.fail_settling_of(&batch.refused_zeros);
        }
        if !batch.void && batch.pieces.iter().all(|piece| piece.state == State::Ended) {
            self.destage.pace.learn(&batch.work, self.now.since(batch.began));
        }
        if batch.failed {
            self.destage.back_off.failed(self.now);
            let is_awaited = || self.waiting_for_home().any(|number| !self.is_flush(number)) || self.first_waits_for(WaitReason::Home);
            if batch.only_refused && is_awaited() {
                // Who came meanwhile waits for others than those.
                self.destage.back_off.at = None;
            }
        } else {
            self.destage.back_off.succeeded();
            let sets = &self.sets;
            self.destage
                .unreadable
                .retain(|&slot, (life, _)| sets.get(slot.set).life == *life && sets.is_live(slot) && sets.is_dirty(slot));
            // (Nor has it been tried with care where there was no place beside zeros.)
            self.destage.careful &= batch.slots.is_empty() || batch.pieces.iter().any(|piece| piece.state == State::Failed);
        }
        true
    }

    /// Room in the journal to say that slots of so many sets are clean, of them so many that are closed. A CLEAN takes its head and up to a bitmap
    /// of the set, a slot that is closed an entry; room is counted in entries of 40 bytes.
    fn entries_to_clean(&self, sets: u64, opened: u64) -> u64 {
        sets * (24 + u64::from(self.config.geometry.set_slots) / 8).div_ceil(40) + opened
    }

    /// Who waits for what was dirty in an open set does not wait for what others write to it.
    fn renew_heads(&mut self, batch: &Batch<P>) {
        for &Head { set, life, next, since, dirty_since } in &batch.heads {
            let found = self.sets.get(set);
            if found.life == life && found.dirty.iter().next().is_some_and(|first| first >= next) {
                self.sets.renew_dirt(set, dirty_since, since);
            }
        }
    }

    /// Frees the sets that a batch was to empty, unless something in them is dirty again.
    fn let_leave(&mut self, leaving: &[(u32, u64)]) {
        for &(set, life) in leaving {
            let is_same = self.sets.get(set).life == life;
            // What was read in it is weighed when it is dropped (`evict`).
            let may_leave = is_same && self.sets.get(set).may_leave() && !self.sets.is_used(set);
            let live = self.sets.get(set).live.clone();
            if may_leave && !live.is_empty() && self.sets.get(set).dirty_count == 0 && self.journal_has_room(1) {
                self.kill_slots(set, live);
                self.seal_emptied();
                self.counters.dropped_sets += 1;
            }
        }
    }

    /// False: the table has no room to tell what is left on both sides of a piece. It stays, until the one before it is home.
    fn unzero(&mut self, batch: &Batch<P>) -> bool {
        let mut all = true;
        for piece in &batch.pieces {
            let What::Zero(block, blocks, hole) = piece.what else { continue };
            if piece.state != State::Ended {
                continue;
            }
            self.was_taken(block, blocks);
            // Zeros that are to stay allocated came while a hole was made there: they go once more.
            let is_to_stay = |(_, now): (Block, Zeroed)| hole == Hole::Allowed && now.kind == RangeKind::Zero;
            if self.ranges.overlapping(block, blocks).any(is_to_stay) {
                continue;
            }
            if self.ranges.splits(block, blocks) && self.is_table_brimful() && !self.is_degraded() {
                all = false;
                continue;
            }
            self.counters.zeroed_blocks += blocks;
            self.journal.push(&Record::Unzero { block, blocks });
            self.note_record();
            self.ranges.remove(block, blocks);
            self.zeros_went(block, blocks);
        }
        all
    }

    /// CLEAN for every slot that is still live and all of whose pieces have ended well.
    fn clean(&mut self, batch: &Batch<P>) {
        let mut failed: Vec<Slot> = Vec::new();
        for piece in batch.pieces.iter().filter(|piece| piece.state != State::Ended) {
            let What::Data { reads } = &piece.what else { continue };
            failed.extend(reads.iter().flat_map(|read| (0..read.slots).map(|i| Slot { slot: read.first.slot + i, ..read.first })));
        }
        failed.sort_unstable();
        let mut done: Vec<Going> = batch.slots.clone();
        done.retain(|going| failed.binary_search(&going.slot).is_err());
        done.iter().for_each(|going| self.was_taken(going.block, 1));
        done.retain(|&Going { slot, life, .. }| {
            self.sets.get(slot.set).life == life && self.sets.is_live(slot) && self.sets.is_dirty(slot)
        });
        self.note_drained(done.len() as u64);
        for of_set in done.chunk_by(|a, b| a.slot.set == b.slot.set) {
            let set = of_set[0].slot.set;
            let mut slots = Bits::new(self.config.geometry.set_slots);
            for &Going { slot, block, .. } in of_set {
                if !self.sets.is_opened(slot) {
                    slots.set(slot.slot);
                }
                self.sets.clean(slot, 1);
                self.index.add_dirty(block, -1);
            }
            self.counters.destaged_blocks += of_set.len() as u64;
            if !slots.is_empty() {
                let life = self.sets.get(set).life as u32;
                self.journal.push(&Record::Clean { set, life, slots });
                self.note_record();
            }
            let opened: Vec<Slot> = of_set.iter().map(|going| going.slot).filter(|&slot| self.sets.is_opened(slot)).collect();
            self.close_slots(&opened);
        }
    }
}

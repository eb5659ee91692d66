//! Write: take slots in the log, send the data, acknowledge when it has landed.
//!
//! ```text
//! Waiting (its turn, a lock, the window, the journal, a free set) → Merging (old slot of an edge block) → Writing → reply
//!                                                                                                   FUA: → Promised → reply
//! ```
//! Partly written blocks are merged first (`merge`); what goes to neighbouring slots is sent as one, and may be acknowledged before that
//! (`gather`); a data write that fails takes another slot (`retry`).

use smallvec::{SmallVec, smallvec};

use crate::block::{Atoms, Block, Slot, Span};
use crate::cache::format::Entry;
use crate::cache::format::journal::pages_to_tell;
use crate::cache::heat::Pace;
use crate::cache::index::Run;
use crate::cache::placed::restate_pages_of_all;
use crate::cache::stream::{Source, Stream};
use crate::config::{Canary, Placement};
use crate::op::{Action, Class, DeviceId, Zone};
use crate::payload::Payload;
use crate::probe::{Health, WaitReason};
use crate::request::{Command, Outcome, RequestError};
use crate::time::Duration;

use super::discard::zero_pieces;
use super::merge::{Lock, Merge};
use super::{Ended, Engine, Owner, Stage};

/// Waiting requests that are looked at for one that may pass, or completes one that is being merged.
pub(super) const PASSED: usize = 64;
/// From then on nothing else takes the memory that the oldest waiting write waits for: longer than the SSD mostly takes to flush, so that what is
/// kept or moved beside a stream of writes is seldom held back.
const HELD_UP: Duration = Duration::from_millis(100);

pub(super) struct Writing<P> {
    /// Its partly written blocks, with what was there before.
    pub merge: Merge<P>,
    /// Data writes that have not landed.
    pub unwritten: u32,
    /// The group of its PUTs.
    pub group: u64,
}

impl<P> Writing<P> {
    pub fn new(merge: Merge<P>) -> Self {
        Writing { merge, unwritten: 0, group: 0 }
    }
}

/// Pieces that have their slots, consecutive ones. Mostly one piece: no memory of its own then.
pub(super) type Slotted<P> = SmallVec<[(Slot, u32, P); 1]>;

/// One write to consecutive slots, in flight.
pub(super) struct DataWrite<P> {
    /// Pieces in consecutive slots, each pinned by itself.
    pub pieces: Slotted<P>,
    /// Who waits for it; each counts it once for each time that it is named.
    pub requests: SmallVec<[usize; 1]>,
    pub group: u64,
    pub tries: u32,
}

impl<P> DataWrite<P> {
    pub fn slots(&self) -> u32 {
        self.end().slot - self.pieces[0].0.slot
    }
    /// Behind its last slot.
    fn end(&self) -> Slot {
        let (last, slots, _) = &self.pieces[self.pieces.len() - 1];
        Slot { slot: last.slot + slots, ..*last }
    }
    /// Would a write of the same group to these slots go on where this one ends?
    pub fn goes_on_at(&self, first: Slot, group: u64) -> bool {
        self.group == group && self.end() == first
    }
}

/// Why a write cannot be placed now.
enum Placing {
    Placed,
    Merging,
    Blocked(WaitReason),
}

/// What one request writes: mostly one piece.
pub(super) type Pieces<P> = SmallVec<[Piece<P>; 1]>;

/// Contents to be placed: consecutive blocks, whole or merged.
pub(super) struct Piece<P> {
    pub block: Block,
    pub blocks: u64,
    pub payload: P,
    /// `None`: whole blocks.
    pub valid: Option<Atoms>,
}

impl<P: Payload> Engine<P> {
    /// Places waiting writes in their order, until one has to wait. True: one has passed it and may have made room, or what fronts have
    /// written may have waited for one that is placed.
    pub(super) fn pump_intake(&mut self) -> bool {
        if self.intake.is_empty() { false } else { self.take_in() }
    }

    #[inline(never)]
    fn take_in(&mut self) -> bool {
        let (mut placed, mut passed) = (false, false);
        while let Some(&number) = self.intake.front() {
            match self.place(number) {
                Placing::Placed => placed = true,
                Placing::Merging => {}
                Placing::Blocked(reason) => {
                    self.blocked(number, reason);
                    if reason == WaitReason::Lock && self.complete_edges() {
                        continue;
                    }
                    passed = self.pass_blocked(reason);
                    break;
                }
            }
            self.intake.pop_front();
        }
        passed || placed && !self.front_writes.is_empty()
    }

    /// Requests pass the blocked ones before them unless they touch what those touch: without data always, since that needs no room, and may make
    /// some; with data, if the first one waits for no room that they could take either, but for others to let its blocks go, for the range
    /// table, or for another turn. True: one has been placed.
    fn pass_blocked(&mut self, reason: WaitReason) -> bool {
        let is_locked = reason == WaitReason::Lock;
        let needs_no_room = |reason| matches!(reason, WaitReason::Lock | WaitReason::RangeTable | WaitReason::Turn);
        let mut lets_data_pass = needs_no_room(reason);
        let mut ahead: Vec<Span> = Vec::new();
        let mut at = 0;
        let mut passed = false;
        while at < self.intake.len().min(PASSED) {
            let number = self.intake[at];
            let span = self.requests.get(number).request.span;
            let may_pass = at > 0 && lets_data_pass || !self.has_data(number);
            let waits = !may_pass || ahead.iter().any(|other| self.share_a_block(*other, span));
            match if waits { Placing::Blocked(reason) } else { self.place(number) } {
                Placing::Blocked(why) => {
                    // Who waits for room does so before those that come behind him.
                    lets_data_pass &= waits || !self.has_data(number) || needs_no_room(why);
                    if is_locked {
                        self.foresee_merge(number, &ahead);
                    }
                    ahead.push(span);
                    at += 1;
                }
                placing => {
                    self.intake.remove(at);
                    passed |= matches!(placing, Placing::Placed);
                }
            }
        }
        passed
    }

    pub(super) fn share_a_block(&self, a: Span, b: Span) -> bool {
        let ((first, count), (other, others)) = (self.blocks_of(a), self.blocks_of(b));
        first.0 < other.0 + others && other.0 < first.0 + count
    }

    fn has_data(&self, number: usize) -> bool {
        !self.data_spans(number).is_empty()
    }

    /// Counts a request once for each reason it waits for, but for its next turn.
    fn blocked(&mut self, number: usize, reason: WaitReason) {
        if reason == WaitReason::Turn {
            self.requests.get_mut(number).waits = reason;
            return;
        }
        // (One that goes past the log waits for the origin there.)
        if reason == WaitReason::Ram || reason == WaitReason::Window && !self.is_crowded() {
            self.destage.ssd_awaited = Some(self.now);
        }
        let now = self.now;
        let active = self.requests.get_mut(number);
        active.first_since.get_or_insert(now);
        if std::mem::replace(&mut active.waits, reason) != reason {
            self.counters.waits.count(reason);
            if reason == WaitReason::Home {
                self.want_less_dirty();
            }
        }
    }

    /// The oldest waiting write waits for a free set, or one that failed for another place: the gate must find one.
    pub(super) fn is_starved(&self) -> bool {
        self.first_waits_for(WaitReason::Set) || !self.retries.is_empty()
    }

    /// Is this what the oldest waiting write waits for?
    pub(super) fn first_waits_for(&self, reason: WaitReason) -> bool {
        self.intake.front().is_some_and(|&number| self.requests.get(number).waits == reason)
    }

    /// Does the oldest waiting write wait for contents to leave memory, for long now? It may need all of the memory there is for them: what nobody
    /// waits for would take it again and again. (What went past the log leaves by itself.)
    pub(super) fn is_held_up(&self) -> bool {
        let waits = self.first_waits_for(WaitReason::Ram) || self.first_waits_for(WaitReason::Window) && !self.is_crowded();
        let first_since = || self.intake.front().and_then(|&number| self.requests.get(number).first_since);
        waits && first_since().is_some_and(|since| self.now.since(since) >= HELD_UP)
    }

    /// Free sets that the oldest waiting write needs.
    pub(super) fn sets_needed(&self) -> u32 {
        let Some(&number) = self.intake.front().filter(|_| self.is_starved()) else { return 0 };
        let data = self.data_spans(number);
        let blocks: u64 = data.iter().map(|&part| self.blocks_of(part).1).sum();
        self.sets_needed_for(number, &data, blocks) as u32 + 2 + self.front_sets_kept()
    }

    fn place(&mut self, number: usize) -> Placing {
        match self.health() {
            Health::Whole | Health::Degraded => {}
            Health::Fencing => return Placing::Blocked(WaitReason::Fence),
            Health::Unfenced => {
                self.turn_away(number, RequestError::Io);
                return Placing::Placed;
            }
        }
        let span = self.requests.get(number).request.span;
        let (block, blocks) = self.blocks_of(span);
        let data = self.data_spans(number);
        let data_blocks: u64 = data.iter().map(|&part| self.blocks_of(part).1).sum();
        let through = self.goes_through(number, &data, data_blocks);
        if data_blocks > self.most_blocks(through) {
            self.turn_away(number, RequestError::NoSpace);
            return Placing::Placed;
        }
        let overlaps = |lock: &Lock| lock.request != number && lock.block.0 < block.0 + blocks && block.0 < lock.block.0 + lock.blocks;
        if self.locks.iter().any(overlaps) {
            return Placing::Blocked(WaitReason::Lock);
        }
        let lacks = if through { self.lacks_room_through(block, blocks) } else { self.lacks_room(number, &data, data_blocks) };
        let lacks_home = lacks.is_none() && through && self.modes.is_draining() && !self.is_degraded() && self.lacks_home(data_blocks);
        if lacks_home {
            self.want_room_through();
        }
        let lacks = lacks.or(lacks_home.then_some(WaitReason::Home));
        let lacks = lacks.or((!through && self.is_rest_owed(number, block, blocks)).then_some(WaitReason::Home));
        if self.is_too_slow(number, lacks) {
            self.turn_away(number, RequestError::NotFast);
            return Placing::Placed;
        }
        if self.is_squeezed_out(number, lacks) {
            self.turn_away(number, RequestError::NoSpace);
            return Placing::Placed;
        }
        if let Some(reason) = lacks {
            return Placing::Blocked(reason);
        }
        if !through && self.forgets_rest(&data) {
            self.turn_away(number, RequestError::Io);
            return Placing::Placed;
        }
        if through {
            self.rescue(block, blocks);
        }
        let merged = self.locks.iter().any(|lock| lock.request == number);
        if !merged && self.begin_merge(number) {
            self.locks.push(Lock { request: number, block, blocks });
            return Placing::Merging;
        }
        if through {
            let pieces = self.pieces_of(number, &data);
            self.begin_through(number, pieces.into_vec());
        } else if self.place_range(number, data_blocks) {
            return Placing::Blocked(WaitReason::Turn);
        } else {
            self.place_now(number, &data, data_blocks);
        }
        Placing::Placed
    }

    /// Zeroes that were to be fast or not at all would wait for what only destaging brings, or be written as data.
    fn is_too_slow(&self, number: usize, lacks: Option<WaitReason>) -> bool {
        let active = self.requests.get(number);
        let is_fast = matches!(active.request.command, Command::Zero { fast: true, .. }) && active.zeroed == 0;
        is_fast && (matches!(lacks, Some(WaitReason::Set | WaitReason::RangeTable | WaitReason::Home)) || self.takes_slots(number))
    }

    /// The largest write that can ever find room: all sets but the open ones and those that keep things moving.
    fn blocks_max(&self) -> u64 {
        let kept = self.config.streams() + self.sets_kept(Source::Client) + 1;
        let slots = u64::from(self.config.geometry.sets.saturating_sub(kept)) * u64::from(self.config.geometry.set_slots);
        slots.min(self.journal_blocks_max())
    }

    /// The largest write that can ever begin. Without the SSD the origin takes any.
    fn most_blocks(&self, through: bool) -> u64 {
        match through {
            true if self.is_degraded() => u64::MAX,
            // The end of each clean block below it may have to be told.
            true => self.journal_entries_max(),
            false => self.blocks_max(),
        }
    }

    /// The largest write whose records fit beside what must stay in the ring.
    fn journal_blocks_max(&self) -> u64 {
        self.journal_entries_max() / self.journal_entries_per_block()
    }

    fn journal_entries_max(&self) -> u64 {
        let told = match self.config.placement {
            // By the two checkpoints that are kept. For the next one there is the reserve.
            // Sealed sets without a header, which they tell as well, are not reckoned with: such sets come and go, and what finds no room beside them
            // need not be refused at once. It waits for their end, a minute at least (`is_squeezed_out`).
            Placement::Log => 2 * pages_to_tell(&self.config.geometry, self.config.streams()),
            // The same, and by the next one.
            Placement::Set => 3 * restate_pages_of_all(&self.config.geometry),
        };
        let kept = told + u64::from(self.open_sets_reserve());
        u64::from(self.config.geometry.journal_pages).saturating_sub(kept + 8) * 100
    }

    /// The parts of a request that are written as data: all of a write, the partial blocks at the edges of zeroes, nothing of a TRIM.
    pub(super) fn data_spans(&self, number: usize) -> SmallVec<[Span; 2]> {
        let request = &self.requests.get(number).request;
        match request.command {
            Command::Write { .. } => smallvec![request.span],
            Command::Zero { .. } if self.takes_slots(number) => smallvec![request.span],
            Command::Zero { .. } => self.ragged_edges(request.span),
            Command::Trim { .. } => SmallVec::new(),
            Command::Read | Command::Cache | Command::Flush | Command::Status { .. } => unreachable!("not a write"),
        }
    }

    /// What `place_now` would lack.
    fn lacks_room(&mut self, number: usize, data: &[Span], data_blocks: u64) -> Option<WaitReason> {
        let window = self.window.atoms() + data_blocks * self.block_atoms();
        if window * crate::block::ATOM_BYTES > self.config.window_bytes && !self.window.is_empty() && data_blocks > 0 {
            self.want_flush();
            return Some(WaitReason::Window);
        }
        if !self.journal_has_room(self.journal_entries(data_blocks)) {
            self.checkpoint.urgent = true;
            return Some(WaitReason::Journal);
        }
        if let Some(reason) = self.lacks_slots(number, data, data_blocks) {
            return Some(reason);
        }
        if self.lacks_ram(data_blocks) {
            return Some(WaitReason::Ram);
        }
        if self.lacks_home(data_blocks) {
            return Some(WaitReason::Home);
        }
        self.lacks_range(number)
    }

    /// Slots that contents from there may take now: what is left of open sets, and free sets above what others need.
    pub(super) fn slots_available(&self, source: Source) -> u64 {
        let open: u32 = self.open_sets_of(source).map(|(_, set)| self.sets.slots_left(set)).sum();
        let free = self.sets.free_count().saturating_sub(self.sets_kept_now(source));
        u64::from(open) + u64::from(free) * u64::from(self.config.geometry.set_slots)
    }

    /// Free sets that are left for others: one for writes that failed elsewhere, one for the cleaner, which frees more. Fills leave the
    /// reserve alone.
    pub(super) fn sets_kept(&self, source: Source) -> u32 {
        let for_clients = 1 + u32::from(self.config.cleans());
        match source {
            Source::Moved => 1,
            Source::Client => for_clients,
            Source::Fill => self.config.reserve.max(2),
        }
    }

    /// What is left for others now: while sets are being emptied, clients leave them the room to be emptied side by side. Otherwise they would
    /// take every set as soon as it is free, and the next ones could only be emptied one after the other.
    pub(super) fn sets_kept_now(&self, source: Source) -> u32 {
        let kept = self.sets_kept(source) + self.front_sets_kept();
        if source == Source::Client && self.is_space_coming() { kept.max(self.room_for_moves()) } else { kept }
    }

    pub(super) fn open_sets_of(&self, source: Source) -> impl Iterator<Item = (Stream, u32)> {
        Stream::all(source, self.config.classes).filter_map(|stream| Some((stream, self.open[usize::from(stream.number())]?)))
    }

    /// The stream for a block: that of its class, or where sets are short the nearest one that has an open set.
    fn stream_of(&self, source: Source, block: Block) -> Stream {
        let class = self.class_of(source, block);
        let wanted = Stream::of(source, class);
        if self.open[usize::from(wanted.number())].is_some() || self.sets.free_count() > self.sets_kept_now(source) {
            return wanted;
        }
        let far = |stream: Stream| match stream {
            Stream::Client(other) | Stream::Moved(other) => class.abs_diff(other),
            Stream::Fill => 0,
        };
        self.open_sets_of(source).map(|(stream, _)| stream).min_by_key(|&stream| far(stream)).unwrap_or(wanted)
    }

    /// The stream of a block has no open set and may not have one, but will soon: sets are about to be free.
    pub(super) fn waits_for_stream_of(&self, block: Block) -> bool {
        let is_short =
            self.config.classes > 1 && self.sets.free_count() <= self.sets_kept_now(Source::Client) && self.sets.has_unheld_dying();
        is_short && self.open[usize::from(Stream::Client(self.class_of(Source::Client, block)).number())].is_none()
    }

    /// The class of a block that is written, or moved, now.
    pub(super) fn class_of(&self, source: Source, block: Block) -> u32 {
        let classes = self.config.classes;
        if classes < 2 || source == Source::Fill {
            return 0;
        }
        let pace = self.index.get(block).map_or(self.sets.usual_pace(), |slot| self.next_pace(source, slot).0);
        pace.class(classes, self.sets.live_slots)
    }

    /// How often the block of a slot will be written from what is known now that it is, or that it moves; and for how many client writes it
    /// was not written then.
    fn next_pace(&self, source: Source, slot: Slot) -> (Pace, u64) {
        let (pace, age) = self.sets.pace(slot);
        match source {
            Source::Client => (pace.after(age, self.sets.clock()), 0),
            Source::Moved => (pace.at_least(age), age),
            Source::Fill => (self.sets.usual_pace(), 0),
        }
    }

    // --- placing ---

    /// From now on others may have the blocks of this request.
    pub(super) fn unlock(&mut self, number: usize) {
        self.locks.retain(|lock| lock.request != number);
    }

    /// It ends without being placed: it may have been merged, and have its blocks for itself.
    pub(super) fn turn_away(&mut self, number: usize, error: RequestError) {
        self.unlock(number);
        self.answer(number, Err(error));
    }

    fn place_now(&mut self, number: usize, data: &[Span], data_blocks: u64) {
        self.begin_group_for(self.journal_entries(data_blocks));
        self.unlock(number);
        let pieces = self.pieces_of(number, data);
        self.counters.written_atoms += data.iter().map(|span| span.atoms).sum::<u64>();
        for piece in &pieces {
            self.through.pages.remove(piece.block, piece.blocks);
        }
        let places = match self.config.placement {
            Placement::Log => Vec::new(),
            Placement::Set => self.places_of(&pieces),
        };
        self.note_ignored(number);
        for piece in &pieces {
            self.takes_place(piece);
        }
        let stage = std::mem::replace(&mut self.requests.get_mut(number).stage, Stage::Waiting);
        let Stage::Writing(mut writing) = stage else { panic!("edges are merged before a write is placed") };
        let early = self.acknowledges_early(number) && self.has_ram(data_blocks);
        let waits: &[usize] = if early { &[] } else { &[number] };
        let begun = match self.config.placement {
            Placement::Log => self.put(Source::Client, true, pieces, waits, 0),
            Placement::Set => self.put_placed(Source::Client, true, places, waits),
        };
        writing.unwritten = if early { 0 } else { begun };
        // A TRIM of no whole block leaves nothing to be made durable; of one that found no room for its last part, the others are.
        let is_begun = self.requests.get(number).zeroed > 0;
        writing.group = match self.journal.is_group_empty() {
            false => self.journal.group(),
            true if is_begun => self.journal.group() - 1,
            true => 0,
        };
        let landed = writing.unwritten == 0;
        let active = self.requests.get_mut(number);
        active.waits = WaitReason::Data;
        active.stage = Stage::Writing(writing);
        if landed {
            self.landed(number);
        }
    }

    /// What a merged request writes as data.
    fn pieces_of(&mut self, number: usize, data: &[Span]) -> Pieces<P> {
        let mut merge = std::mem::take(self.merging(number));
        let mut pieces = Pieces::new();
        for &span in data {
            self.cut_pieces(number, span, &mut merge, &mut pieces);
        }
        pieces
    }

    /// Cuts one span into whole blocks and merged edges, in order.
    fn cut_pieces(&self, number: usize, span: Span, merge: &mut Merge<P>, pieces: &mut Pieces<P>) {
        let request = &self.requests.get(number).request;
        let (first, blocks) = self.blocks_of(span);
        let size = self.block_atoms();
        let mut whole = first.0..first.0 + blocks;
        let mut edge = |block: u64| merge.take(Block(block), self.full(Block(block)));
        if let Some(piece) = edge(whole.start) {
            pieces.push(piece);
            whole.start += 1;
        }
        let last = if whole.is_empty() { None } else { edge(whole.end - 1) };
        whole.end -= u64::from(last.is_some());
        let Command::Write { data, .. } = &request.command else {
            zero_pieces(whole, size, pieces);
            pieces.extend(last);
            return;
        };
        if !whole.is_empty() {
            let part = Span::new(whole.start * size, (whole.end - whole.start) * size).intersection(span);
            let mut payload = data.slice(part.start - request.span.start, part.atoms);
            // The short last block of the volume fills its slot with zeros.
            let missing = (whole.end - whole.start) * size - part.atoms;
            if missing > 0 {
                payload = P::concat(&[payload, P::zero(missing)]);
            }
            pieces.push(Piece { block: Block(whole.start), blocks: whole.end - whole.start, payload, valid: None });
        }
        pieces.extend(last);
    }

    /// Entries of the journal, at most, that a write of so many blocks takes now, and a checkpoint after it more than one before it.
    pub(super) fn journal_entries(&self, data_blocks: u64) -> u64 {
        match self.config.placement {
            Placement::Log => data_blocks + 2,
            Placement::Set => self.journal_entries_per_block() * data_blocks + 8,
        }
    }

    /// An entry has 40 bytes. Under set placement every other block may be overwritten, with a record and a bitmap of its own.
    fn journal_entries_per_block(&self) -> u64 {
        match self.config.placement {
            Placement::Log => 1,
            Placement::Set => (1 + (16 + u64::from(self.config.geometry.set_slots) / 8).div_ceil(40)).max(3),
        }
    }

    /// Closes the open group if it could not take `entries` more: what belongs together is in one group.
    pub(super) fn begin_group_for(&mut self, entries: u64) {
        let limit = (self.config.group_bytes() / crate::block::PAGE_BYTES).max(2);
        let pages = entries.div_ceil(100) + 1;
        if u64::from(self.journal.group_pages()) + pages > limit && !self.journal.is_group_empty() {
            let group = self.close_group();
            self.flushes.want(group);
        }
    }

    /// Gives the pieces their slots, records and writes. The caller has made sure that there is room. Returns the writes begun. What one
    /// request writes stays together, in the stream of its first block; what moves is told apart.
    pub(super) fn put(
        &mut self,
        source: Source,
        dirty: bool,
        pieces: impl IntoIterator<Item = Piece<P>>,
        requests: &[usize],
        tries: u32,
    ) -> u32 {
        let mut writes = 0;
        let mut pending = Slotted::new();
        // Slots of one device write.
        let most = self.blocks_in(self.limits[0].op_atoms);
        let mut class_block = None;
        for piece in pieces {
            self.tickets.supersede(piece.block, piece.blocks);
            self.touch_blocks(piece.block, piece.blocks);
            let class_block = if source == Source::Moved { piece.block } else { *class_block.get_or_insert(piece.block) };
            let mut done = 0;
            while done < piece.blocks {
                let stream = self.stream_of(source, class_block);
                let set = self.open_set(stream);
                let pending_slots: u64 = pending.iter().map(|&(_, slots, _)| u64::from(slots)).sum();
                if pending_slots == most || pending.last().is_some_and(|&(slot, ..)| slot.set != set) {
                    self.send(source, &mut pending, requests, tries);
                    writes += 1;
                    continue;
                }
                let ends_group = source == Source::Client && writes == 0 && piece.blocks - done > 1 && self.tears_groups();
                let count = (piece.blocks - done).min(u64::from(self.sets.slots_left(set))).min(most - pending_slots);
                let count = if ends_group { 1 } else { count };
                let part = self.part_of(&piece, done, count);
                let first = Slot { set, slot: self.sets.next_slot(set) };
                self.put_run(source, first, &part, dirty);
                pending.push((first, count as u32, part.payload));
                done += count;
                let is_full = self.sets.slots_left(set) == 0;
                if is_full || ends_group {
                    self.send(source, &mut pending, requests, tries);
                    writes += 1;
                }
                if ends_group {
                    self.close_group();
                }
                if is_full {
                    self.seal_set(stream, set);
                }
            }
        }
        if !pending.is_empty() {
            self.send(source, &mut pending, requests, tries);
            writes += 1;
        }
        writes
    }

    /// Only where the ring has room for the pages that this costs.
    fn tears_groups(&self) -> bool {
        self.has_canary(Canary::WriteInTwoGroups) && self.journal.free_pages() > self.config.geometry.journal_pages / 2
    }

    /// Maps consecutive blocks to consecutive slots of a set, with their records: its next ones, or those of their places.
    pub(super) fn put_run(&mut self, source: Source, first: Slot, part: &Piece<P>, dirty: bool) {
        let (block, count) = (part.block, part.blocks);
        let set = first.set;
        let (life, group) = (self.sets.get(set).life, self.journal.group());
        let mut entries = std::mem::take(&mut self.scratch.entries);
        entries.clear();
        let entry = |block, crc| Entry { block, valid: part.valid.unwrap_or_else(|| self.full(block)), crc };
        let mut blocks = (block.0..block.0 + count).map(Block);
        part.payload.checksums(self.checksum, self.block_atoms(), |crc| entries.extend(blocks.next().map(|block| entry(block, crc))));
        assert!(entries.len() as u64 == count, "every block has its contents");
        let geometry = self.config.geometry;
        self.sets.describe(first, &entries, part.valid.is_none(), |block| geometry.full(block));
        self.journal.put(first, life, dirty, false, &entries);
        self.note_record();
        let mut displaced = self.scratch.take_runs();
        self.index.replace(block, count, Some(first), &mut displaced);
        self.note_paces(source, first, part, &displaced);
        let moves_dirt = source == Source::Moved && dirty;
        let sources = displaced.iter().filter(|_| moves_dirt).filter_map(|run| run.slot);
        let since = sources.map(|slot| self.sets.get(slot.set).dirty_since).min();
        // All of it in one origin set, and mostly as dirty as before: then the index need not be told.
        let before = match displaced[..] {
            [ref run] if run.blocks == count => Some(self.kill_run(run)),
            _ => {
                self.kill_runs(&displaced);
                None
            }
        };
        self.scratch.runs = displaced;
        self.sets.make_live(first, count as u32, dirty);
        match before {
            Some(before) => self.index.add_dirty(block, if dirty { count as i64 } else { 0 } - i64::from(before)),
            None if dirty => self.index.soil(block, count),
            None => {}
        }
        if !self.lost.is_empty() {
            entries.iter().for_each(|entry| self.lost.find(entry.block, entry.valid));
        }
        self.scratch.entries = entries;
        // What moves is as old as it was, and nobody has used it.
        match (source, since) {
            (Source::Moved, Some(since)) => self.sets.inherit_dirt(set, since),
            (Source::Moved, None) => {}
            (Source::Client | Source::Fill, _) => self.sets.touch(set),
        }
        self.window.pin(first, count as u32, group, part.payload.clone(), self.now);
    }

    /// Blocks take new slots: how often they are written goes with them.
    fn note_paces(&mut self, source: Source, first: Slot, part: &Piece<P>, displaced: &[Run]) {
        if self.config.placement == Placement::Set {
            return;
        }
        let (mut known, mut ages) = (0, 0);
        for run in displaced {
            let old = run.slot.expect("displaced blocks had slots");
            let mut done = 0;
            while done < run.blocks {
                let old = Slot { slot: old.slot + done as u32, ..old };
                let alike = self.sets.alike(old, (run.blocks - done) as u32);
                let (pace, age) = self.next_pace(source, old);
                let slot = Slot { slot: first.slot + (run.block.0 + done - part.block.0) as u32, ..first };
                self.sets.note_pace(slot, alike, pace);
                let alike = u64::from(alike);
                (done, known, ages) = (done + alike, known + alike, ages + alike * age);
            }
        }
        if source == Source::Client {
            self.sets.advance(part.blocks);
            self.admission.written(part.block, part.blocks);
        }
        self.sets.note_written(first.set, part.blocks, ages / u64::max(known, 1));
    }

    /// Begins one write of consecutive slots.
    pub(super) fn send(&mut self, source: Source, pending: &mut Slotted<P>, requests: &[usize], tries: u32) {
        let write = DataWrite { pieces: std::mem::take(pending), requests: requests.into(), group: self.journal.group(), tries };
        let class = match source {
            Source::Client => Class::Client,
            Source::Fill => Class::Fill,
            Source::Moved => Class::Clean,
        };
        if tries == 0 && self.config.placement == Placement::Log {
            self.gather(write, class);
        } else {
            self.send_pieces(write, class);
        }
    }

    pub(super) fn send_pieces(&mut self, write: DataWrite<P>, class: Class) {
        let number = self.begin_data(write);
        self.send_data(number, class);
    }

    /// Its group and its set wait for it from now on.
    pub(super) fn begin_data(&mut self, write: DataWrite<P>) -> usize {
        if !self.has_canary(Canary::RecordBeforeData) {
            self.journal.begin_write(write.group);
        }
        self.sets.get_mut(write.pieces[0].0.set).pins += 1;
        self.writes.insert(write)
    }

    pub(super) fn send_data(&mut self, number: usize, class: Class) {
        let write = self.writes.get(number);
        let payloads = write.pieces.iter().map(|piece| piece.2.clone()).collect();
        let action = Action::Write(Zone::Data, self.slots_span(write.pieces[0].0, write.slots()), payloads);
        self.start(DeviceId::Cache, class, action, Owner::Data { write: number });
    }

    // --- the end ---

    pub(super) fn data_done(&mut self, write: usize, result: Ended) {
        let first = self.writes.get(write).pieces[0].0;
        self.sets.get_mut(first.set).pins -= 1;
        if result.is_err() {
            self.counters.cache_write_failures += 1;
            self.retries.push(write, self.now);
            return;
        }
        self.retries.succeeded();
        let write = self.writes.remove(write);
        for &(first, _, _) in &write.pieces {
            let pinned = self.window.written(first);
            assert!(pinned || self.has_canary(Canary::RecordBeforeData), "what is being written is pinned");
        }
        self.end_data(&write);
    }

    /// The group waits for this data write no more.
    pub(super) fn end_group_data(&mut self, group: u64) {
        if !self.has_canary(Canary::RecordBeforeData) {
            self.journal.end_write(group);
        }
    }

    pub(super) fn end_data(&mut self, write: &DataWrite<P>) {
        self.end_group_data(write.group);
        for &number in &write.requests {
            match &mut self.requests.get_mut(number).stage {
                Stage::Writing(writing) => {
                    writing.unwritten -= 1;
                    if writing.unwritten == 0 {
                        self.landed(number);
                    }
                }
                Stage::Reading(_) => self.filled(number),
                Stage::Waiting | Stage::Through(_) | Stage::Querying(_) | Stage::Promised => panic!("a data write belongs to a write"),
            }
        }
    }

    /// All data of a write is on the SSD.
    fn landed(&mut self, number: usize) {
        let active = self.requests.get(number);
        let Stage::Writing(writing) = &active.stage else { panic!("only a placed write lands") };
        let group = writing.group;
        let fua = match active.request.command {
            Command::Write { fua, .. } | Command::Trim { fua } | Command::Zero { fua, .. } => fua,
            Command::Read | Command::Cache | Command::Flush | Command::Status { .. } => unreachable!("not a write"),
        };
        let is_without_cache = self.is_degraded() && active.zeroed > 0;
        if fua && is_without_cache {
            // Of what it had been zeroed before the SSD failed, only memory knows.
            self.settle(number);
        } else if fua && self.modes.is_home() && group > 0 {
            self.await_home(number);
        } else if fua && group > self.journal.durable_group() {
            self.promise(number, group);
        } else if fua {
            self.answer(number, Ok(Outcome::Done));
        } else {
            self.acknowledge(number, group);
        }
    }
}

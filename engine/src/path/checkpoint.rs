//! Checkpoint: the state map of the moment goes to the SSD, so that the journal before it can be reused.
//!
//! ```text
//! Restating (open sets told again, map copied at L) → until those are durable and headers sealed before L are → Mapping → MapFlush
//!   → Superblock (invalid or older copy) → flush → Superblock (the other) → flush → the ring is free up to the L before this one
//! ```
//! Two checkpoints are kept, in two areas, so one damaged map is survivable. It never waits for the origin.

use crate::block::{PAGE_ATOMS, PAGE_BYTES, Slot, Span};
use crate::cache::format::map::{encode_ranges, encode_sets, ranges_per_page};
use crate::cache::format::{FormatId, MapRef, MapSet, Range, SetState, Superblock};
use crate::cache::sets::{HeaderState, Set};
use crate::fault_point::FaultPoint;
use crate::mode::Mode;
use crate::op::{Action, Class, DeviceId, Zone};
use crate::payload::Payload;
use crate::probe::WaitReason;
use crate::time::{Duration, Instant};

use super::back_off::BackOff;
use super::{Ended, Engine, Owner};

pub(super) struct Checkpoint<P> {
    /// Somebody waits for room in the journal.
    pub urgent: bool,
    /// A piece of metadata was found damaged.
    wanted: bool,
    pub back_off: BackOff,
    /// Nothing has failed that it waits for: only somebody who waits for room that the next one will hardly make.
    is_paced: bool,
    /// The one under way fails to write the same things since.
    failing_since: Option<Instant>,
    /// The ring has no room for the restates since.
    cramped_since: Option<Instant>,
    /// Sealed sets that the newest one has told again, because they have no header.
    untold: usize,
    /// The oldest write, known by when it arrived, which finds no room in the ring beside such sets: since when, and how many checkpoints there had
    /// been.
    squeezed: Option<(Instant, Instant, u64)>,
    running: Option<Running<P>>,
    /// What the newest superblock says.
    superblock: Option<Superblock>,
    /// The update that each copy holds; 0: it is not valid.
    copies: [u64; 2],
    /// The highest number of an update that was begun: one that was given up may have been written all the same.
    used: u64,
    /// The number of a map that was found damaged.
    spoiled: Option<u64>,
}

impl<P> Default for Checkpoint<P> {
    fn default() -> Self {
        let back_off = BackOff::steady(Duration::from_secs(1));
        Checkpoint {
            urgent: false,
            wanted: false,
            back_off,
            is_paced: false,
            failing_since: None,
            cramped_since: None,
            untold: 0,
            squeezed: None,
            running: None,
            superblock: None,
            copies: [0; 2],
            used: 0,
            spoiled: None,
        }
    }
}

impl<P> Checkpoint<P> {
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// A checkpoint under way waits for the header of this set.
    pub fn has_captured(&self, set: u32) -> bool {
        self.running.as_ref().is_some_and(|running| running.headers.iter().any(|&(captured, _)| captured == set))
    }
}

struct Running<P> {
    map: MapRef,
    /// The group of the restates.
    group: u64,
    /// Sets sealed before L whose headers were not durable, with their life.
    headers: Vec<(u32, u64)>,
    pages: Vec<(Span, P)>,
    next: Superblock,
    /// The last act of a clean stop: superblocks only.
    stop: bool,
    stage: Stage,
}

/// How long writing the map or a superblock may fail before the SSD counts as failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// After so many more checkpoints there is nothing in the ring that was written before them, but what they have told again.
const TURNS: u64 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Restating,
    Mapping { left: usize, failed: bool },
    MapFlush(u64),
    Superblock { copy: u32, second: bool, failed: bool },
    SuperblockFlush { copy: u32, second: bool, flush: u64 },
}

impl<P: Payload> Engine<P> {
    /// Pages of the ring that must stay free for the next checkpoint: the restates of open sets, and 8.
    pub(super) fn journal_reserve(&self) -> u32 {
        self.open_sets_reserve() + self.sets.placed.restate_pages(&self.config.geometry) as u32
    }
    /// The part of it for the open set of each stream.
    pub(super) fn open_sets_reserve(&self) -> u32 {
        self.config.streams() * self.config.geometry.set_slots.div_ceil(128).max(1) + 8
    }
    /// The open group can take `entries` more entries.
    pub(super) fn journal_has_room(&self, entries: u64) -> bool {
        let pages = entries.div_ceil(100) + 4 + self.front_journal_pages();
        u64::from(self.journal.free_pages()) > pages + u64::from(self.journal_reserve() + self.doubt_reserve())
    }

    /// While it is not known whether the newest map is whole, as many for one more checkpoint, if there are so many: the one that is written over
    /// that map frees no room. A stop waits for no checkpoint.
    fn doubt_reserve(&self) -> u32 {
        if self.stopping || !self.doubts_newest_map() {
            return 0;
        }
        let pages = self.restate_pages(0);
        if self.journal.free_pages() >= 2 * pages { pages } else { 0 }
    }

    /// What recovery found and wrote: the state from which checkpoints go on.
    pub(super) fn adopt_superblock(&mut self, superblock: Superblock, copies: [u64; 2]) {
        self.checkpoint.used = copies.into_iter().fold(superblock.sequence, u64::max);
        self.checkpoint.superblock = Some(superblock);
        self.checkpoint.copies = copies;
    }

    /// Of an update that begins now.
    fn next_sequence(&mut self) -> u64 {
        self.checkpoint.used += 1;
        self.checkpoint.used
    }

    /// What the newest superblock says of the mode; before there is one, the least that may be promised.
    pub(super) fn recorded_mode(&self) -> Mode {
        self.checkpoint.superblock.as_ref().map_or(Mode::WriteBack, |superblock| superblock.mode)
    }

    /// The superblocks say so, and none is under way that says otherwise.
    pub(super) fn is_mode_recorded(&self, mode: Mode) -> bool {
        self.recorded_mode() == mode && self.checkpoint.running.as_ref().is_none_or(|running| running.next.mode == mode)
    }

    /// The update that each copy of the superblock holds; 0: it is not valid.
    pub(super) fn superblock_copies(&self) -> [u64; 2] {
        self.checkpoint.copies
    }

    /// The copy to be written first: the invalid one, else the older.
    pub(super) fn first_copy(copies: [u64; 2]) -> u32 {
        u32::from(copies[1] < copies[0])
    }

    /// True: a checkpoint has ended, and the journal has room again.
    pub(super) fn pump_checkpoint(&mut self) -> bool {
        if self.has_cache_failed() || self.scrubber.reads_metadata() {
            return false;
        }
        let before = self.counters.checkpoints;
        // The scrubber is about to know what may be written over. Who waits for room in the ring waits not for that, but for one more reading.
        let is_early = self.scrubber.doubts_metadata() && (!self.checkpoint.urgent || self.awaits_newest_map());
        if self.checkpoint.running.is_none() && !is_early && self.wants_checkpoint() && self.can_restate() {
            self.begin_checkpoint();
        }
        while self.checkpoint.running.is_some() && !self.has_cache_failed() && self.advance_checkpoint() {}
        self.counters.checkpoints > before
    }

    fn wants_checkpoint(&self) -> bool {
        let superblock = self.checkpoint.superblock.as_ref().expect("a serving engine has read its superblock");
        let used = self.journal.used_since(superblock.checkpoint.seq);
        let third = self.config.geometry.journal_pages / 3;
        // The ring is freed up to the checkpoint before the newest: somebody who waits may need two.
        let frees = || used > 0 || superblock.previous.seq < superblock.checkpoint.seq || self.doubt_reserve() > 0;
        let due = used >= third || ((self.checkpoint.urgent || self.journal.free_pages() < third) && frees());
        if !due && !self.checkpoint.wanted && self.mode_to_record().is_none() {
            return false;
        }
        // A stop waits for one only where the ring has no room for the end of what went through, or to tell what nothing else tells.
        let is_ending = self.stopping && (!self.checkpoint.urgent || self.through.pages.is_empty()) && !self.has_untold();
        // Where others use up the room meanwhile, it comes at once.
        let is_low = || self.journal.free_pages() < 2 * self.restate_pages(self.checkpoint.untold);
        let waits = self.checkpoint.back_off.is_waiting(self.now) && !(self.checkpoint.is_paced && is_low());
        // Headers that are tried again may fail once more: it would be given up, and what it had told would stay in the ring.
        let may_be_told = || !(self.checkpoint.is_paced && self.is_trying_headers());
        !is_ending && self.recovery.is_none() && !self.has_cache_failed() && !waits && may_be_told()
    }

    /// Pages of the ring that a checkpoint needs for what it tells again if so many sealed sets have no header.
    fn restate_pages(&self, untold: usize) -> u32 {
        let set_pages = self.config.geometry.set_slots.div_ceil(128).max(1);
        // Half of what the reserve has besides is for the groups that end here.
        self.journal_reserve() - 4 + untold as u32 * set_pages
    }

    /// Has the ring room for what a checkpoint tells again? Its reserve is for open sets. Sets whose headers cannot be written come on top:
    /// without room for them their headers are tried again, for a while.
    fn can_restate(&mut self) -> bool {
        if self.journal.free_pages() >= self.restate_pages(self.sets_without_header().count()) {
            self.checkpoint.cramped_since = None;
            return true;
        }
        self.meet(FaultPoint::CheckpointCramped);
        self.try_headers_again();
        if self.now.since(*self.checkpoint.cramped_since.get_or_insert(self.now)) >= PATIENCE {
            self.fail_cache();
        }
        false
    }

    /// Once more for sets whose headers could not be written, before the next checkpoint.
    fn try_headers_again(&mut self) {
        self.checkpoint.back_off.failed(self.now);
        self.checkpoint.is_paced = false;
        let untold: Vec<u32> = self.sets_without_header().collect();
        for set in untold {
            self.write_headers(set, 1);
        }
    }

    /// This write lacks something, or nothing. Is it to be refused, because it finds no room in the ring? Beside sets without a header, which each
    /// checkpoint tells again, two checkpoints may leave less room than `blocks_max` reckons with, however many of them follow. Such a set goes when
    /// its header is written, which is tried again meanwhile, or when nothing of it lives. The oldest write waits for that, a minute and some
    /// checkpoints, if it is for nothing else but the window, which is asked before the ring.
    pub(super) fn is_squeezed_out(&mut self, number: usize, lacks: Option<WaitReason>) -> bool {
        if self.intake.front() != Some(&number) {
            return false;
        }
        if lacks != Some(WaitReason::Journal) {
            self.checkpoint.squeezed = self.checkpoint.squeezed.filter(|_| lacks == Some(WaitReason::Window));
            return false;
        }
        let (arrived, checkpoints) = (self.requests.get(number).arrived, self.counters.checkpoints);
        match self.checkpoint.squeezed {
            _ if self.checkpoint.untold == 0 => self.checkpoint.squeezed = None,
            Some((oldest, since, before)) if oldest == arrived => {
                let is_over = self.now.since(since) >= PATIENCE && checkpoints >= before + TURNS;
                if is_over {
                    // Who comes next may have arrived with it.
                    self.checkpoint.squeezed = None;
                }
                return is_over;
            }
            _ => self.checkpoint.squeezed = Some((arrived, self.now, checkpoints)),
        }
        false
    }

    /// Is the newest map damaged, or has it not been good so far, and is a new one written over it, while the one before it is whole in the other
    /// area, or may be? That frees no room in the ring: there must be some for one more checkpoint behind it, which does.
    fn replaces_newest(&self) -> bool {
        self.doubts_newest_map() && self.journal.free_pages() >= 2 * self.restate_pages(self.sets_without_header().count())
    }

    fn doubts_newest_map(&self) -> bool {
        let doubts = |newest: MapRef| self.checkpoint.spoiled == Some(newest.number) || self.scrubber.doubts_newest(newest);
        let superblock = self.checkpoint.superblock.as_ref();
        superblock.is_some_and(|current| current.previous.area != current.checkpoint.area && doubts(current.checkpoint))
    }

    fn begin_checkpoint(&mut self) {
        (self.checkpoint.urgent, self.checkpoint.wanted, self.checkpoint.is_paced) = (false, false, false);
        self.checkpoint.back_off.at = None;
        let group = self.close_group();
        self.flushes.want(group);
        let current = self.checkpoint.superblock.clone().expect("a serving engine has read its superblock");
        // Another area than the one that is good, and a number that no page there carries.
        let (area, previous) = if self.replaces_newest() {
            (current.checkpoint.area, current.previous)
        } else {
            (1 - current.checkpoint.area.min(1), current.checkpoint)
        };
        let number = self.next_sequence();
        let map = MapRef { number, area, seq: self.journal.next_seq() };
        let pages = self.map_pages(map);
        let headers = self
            .sets
            .iter()
            .filter(|(_, set)| {
                set.live_count > 0 && matches!(set.header, HeaderState::Due | HeaderState::Writing { .. } | HeaderState::Written)
            })
            .map(|(number, set)| (number, set.life))
            .collect();
        self.restate();
        let group = self.close_group();
        self.flushes.want(group);
        let mode = self.mode_to_record().unwrap_or(current.mode);
        let written = self.written_in_life();
        let next = Superblock { sequence: number, checkpoint: map, previous, mode, written, ..current };
        self.checkpoint.running = Some(Running { map, group, headers, pages, next, stop: false, stage: Stage::Restating });
    }

    /// The last act of a clean stop: a new epoch whose cut says that the whole log is durable. Called until it is done.
    pub(super) fn seal_stop(&mut self) {
        if self.checkpoint.running.is_some() {
            return;
        }
        assert!(!self.detaching || self.is_clean(), "a cache is detached when the origin holds everything");
        assert!(self.front_writes.is_empty(), "what fronts have written is in the log that is sealed");
        assert!(self.do_fronts_rest(), "fronts rest before a stop or a detach");
        let current = self.checkpoint.superblock.clone().expect("a serving engine has read its superblock");
        let (sequence, epoch, cut) = (self.next_sequence(), current.epoch + 1, self.journal.next_seq());
        let (marks, written) = (self.marks_taken(), self.written_in_life());
        let next = Superblock { sequence, epoch, cut, clean: true, detached: self.detaching, marks, written, ..current };
        let (map, group) = (next.checkpoint, self.journal.durable_group());
        let stage = Stage::Restating;
        self.checkpoint.running = Some(Running { map, group, headers: Vec::new(), pages: Vec::new(), next, stop: true, stage });
        self.write_superblock(None);
    }

    /// Tells again what only the journal before L knows: the slots of open sets, and of sealed ones whose headers cannot be written.
    fn restate(&mut self) {
        self.checkpoint.untold = self.sets_without_header().count();
        let told: Vec<u32> = self.sets.iter().filter(|(_, set)| set.is_open() || has_only_journal(set)).map(|(number, _)| number).collect();
        for set in told {
            if self.sets.get(set).state == SetState::Placed {
                self.restate_placed(set);
                continue;
            }
            self.restate_set(set);
        }
        self.forget_untold();
    }

    /// Tells again what the slots of a set hold.
    pub(super) fn restate_set(&mut self, set: u32) {
        let entries: Vec<_> =
            (0..self.sets.next_slot(set)).map(|slot| self.sets.entry(Slot { set, slot }, |block| self.full(block))).collect();
        if !entries.is_empty() {
            self.journal.put(Slot { set, slot: 0 }, self.sets.get(set).life, false, true, &entries);
            self.note_record();
        }
    }

    /// The state map as it is now, in pages.
    fn map_pages(&self, map: MapRef) -> Vec<(Span, P)> {
        let (geometry, format): (_, FormatId) = (self.config.geometry, self.config.format);
        let sets: Vec<MapSet> = self
            .sets
            .iter()
            .map(|(_, set)| MapSet {
                life: set.life,
                state: set.state,
                sealed: set.sealed,
                live: set.live.clone(),
                dirty: set.dirty.clone(),
            })
            .collect();
        let mut pages = Vec::new();
        for (page, sets) in sets.chunks(geometry.map_sets_per_page() as usize).enumerate() {
            let bytes = encode_sets(&geometry, format, map.area, page as u32, map.number, sets);
            pages.push((geometry.map_page(map.area, page as u32), P::from_bytes(&bytes)));
        }
        let ranges: Vec<Range> = self.ranges.to_entries().chain(self.lost.to_entries()).collect();
        let per_page = ranges_per_page(&geometry) as usize;
        let mut of_page = ranges.chunks(per_page);
        for page in 0..geometry.range_pages().min(ranges.len().div_ceil(per_page).max(1) as u32) {
            let entries = of_page.next().unwrap_or(&[]);
            let page = geometry.map_pages() + page;
            let bytes = encode_ranges(&geometry, format, map.area, page, map.number, ranges.len() as u32, entries);
            pages.push((geometry.map_page(map.area, page), P::from_bytes(&bytes)));
        }
        pages
    }

    /// Sealed sets of which only the journal tells the slots.
    fn sets_without_header(&self) -> impl Iterator<Item = u32> + '_ {
        self.sets.iter().filter(|(_, set)| has_only_journal(set)).map(|(number, _)| number)
    }

    fn running(&mut self) -> &mut Running<P> {
        self.checkpoint.running.as_mut().expect("a checkpoint runs")
    }

    /// One step if it can be done now.
    fn advance_checkpoint(&mut self) -> bool {
        match self.running().stage {
            Stage::Restating => self.leave_restating(),
            Stage::Mapping { left, failed } => {
                if left > 0 || !failed {
                    return false;
                }
                self.pause_checkpoint()
            }
            Stage::MapFlush(flush) => self.flushes.has_succeeded(flush) && self.write_superblock(None),
            Stage::Superblock { failed, .. } => failed && self.pause_checkpoint(),
            Stage::SuperblockFlush { copy, second, flush } => self.flushes.has_succeeded(flush) && self.superblock_durable(copy, second),
        }
    }

    /// A write of the checkpoint failed: once more from its map, a little later.
    fn pause_checkpoint(&mut self) -> bool {
        if self.running().stop {
            return self.pause_stop();
        }
        if self.stopping {
            // The stop does not wait for it.
            self.meet(FaultPoint::CheckpointAbandoned);
            self.checkpoint.running = None;
            return false;
        }
        if self.now.since(*self.checkpoint.failing_since.get_or_insert(self.now)) >= PATIENCE {
            // A place that can never be written: without checkpoints the ring fills up. The origin takes everything.
            self.fail_cache();
            return false;
        }
        self.checkpoint.back_off.is_over(self.now) && self.write_map()
    }

    /// The last superblock of a stop cannot be written. Everything is durable all the same, and the next start will verify the tail; but that the
    /// cache is detached nothing else says: for a while it is tried again.
    fn pause_stop(&mut self) -> bool {
        let Stage::Superblock { copy, second, .. } = self.running().stage else { unreachable!("nothing else is written for a stop") };
        if self.detaching && self.now.since(*self.checkpoint.failing_since.get_or_insert(self.now)) < PATIENCE {
            return self.checkpoint.back_off.is_over(self.now) && self.write_superblock(second.then_some(copy));
        }
        self.meet(FaultPoint::StopWriteFailed);
        // One copy is enough: it is the newest.
        self.detaching &= second;
        self.end_stop()
    }

    fn leave_restating(&mut self) -> bool {
        let running = self.checkpoint.running.as_ref().expect("a checkpoint runs");
        let mut written = false;
        let mut unwritable = false;
        let mut waiting = false;
        for &(set, life) in &running.headers {
            let set = self.sets.get(set);
            if set.life != life {
                // Reused, which it could be only with a durable header.
                continue;
            }
            match set.header {
                HeaderState::Due | HeaderState::Writing { .. } => waiting = true,
                HeaderState::Written => written = true,
                HeaderState::Unwritable => unwritable = true,
                HeaderState::None | HeaderState::Durable => {}
            }
        }
        if unwritable {
            // Its entries have to be told again, at a later L.
            self.meet(FaultPoint::CheckpointWithoutHeader);
            self.checkpoint.running = None;
            self.checkpoint.urgent = true;
            self.checkpoint.back_off.failed(self.now);
            return false;
        }
        if written && !waiting && !self.header_writes.written.is_empty() {
            self.flushes.want_after_now();
        }
        if waiting || written || self.journal.durable_group() < running.group {
            return false;
        }
        self.write_map()
    }

    fn write_map(&mut self) -> bool {
        let most = (self.limits[0].op_atoms / PAGE_ATOMS).max(1) as usize;
        let pages = std::mem::take(&mut self.running().pages);
        let mut left = 0;
        let mut rest = &pages[..];
        while let Some((first, _)) = rest.first() {
            let together =
                rest.iter().enumerate().take(most).take_while(|(i, (span, _))| span.start == first.start + *i as u64 * PAGE_ATOMS);
            let count = together.count();
            let span = Span::new(first.start, count as u64 * PAGE_ATOMS);
            let payloads = rest[..count].iter().map(|(_, payload)| payload.clone()).collect();
            self.start(DeviceId::Cache, Class::Log, Action::Write(Zone::Map, span, payloads), Owner::Map);
            left += 1;
            rest = &rest[count..];
        }
        self.running().pages = pages;
        self.running().stage = Stage::Mapping { left, failed: false };
        true
    }

    pub(super) fn map_done(&mut self, result: Ended) {
        self.counters.cache_write_failures += u64::from(result.is_err());
        let Stage::Mapping { left, failed } = self.running().stage else { panic!("a map is being written") };
        let (left, failed) = (left - 1, failed || result.is_err());
        if failed {
            self.meet(FaultPoint::MapWriteFailed);
        }
        self.running().stage =
            if left == 0 && !failed { Stage::MapFlush(self.flushes.want_after_now()) } else { Stage::Mapping { left, failed } };
    }

    /// Writes one copy: the first one if `copy` is not given.
    fn write_superblock(&mut self, copy: Option<u32>) -> bool {
        // The invalid one, or what the scrubber takes for it so far.
        let copies = self.checkpoint.copies;
        let first = || self.scrubber.worse_superblock(copies).unwrap_or(Self::first_copy(copies));
        let (second, copy) = (copy.is_some(), copy.unwrap_or_else(first));
        self.checkpoint.copies[copy as usize] = 0;
        let payload = P::from_bytes(&self.running().next.encode(copy));
        let span = self.config.geometry.superblock(copy);
        self.start(DeviceId::Cache, Class::Log, Action::Write(Zone::Superblock, span, [payload].into()), Owner::Superblock { copy });
        self.running().stage = Stage::Superblock { copy, second, failed: false };
        true
    }

    pub(super) fn superblock_done(&mut self, copy: u32, result: Ended) {
        self.counters.cache_write_failures += u64::from(result.is_err());
        let Stage::Superblock { second, .. } = self.running().stage else { panic!("a superblock is being written") };
        self.running().stage = match result {
            Ok(()) => Stage::SuperblockFlush { copy, second, flush: self.flushes.want_after_now() },
            Err(_) => {
                self.meet(FaultPoint::SuperblockWriteFailed);
                Stage::Superblock { copy, second, failed: true }
            }
        };
    }

    fn superblock_durable(&mut self, copy: u32, second: bool) -> bool {
        let next = self.running().next.clone();
        self.checkpoint.copies[copy as usize] = next.sequence;
        if !second {
            return self.write_superblock(Some(1 - copy));
        }
        if self.running().stop {
            self.checkpoint.superblock = Some(next);
            return self.end_stop();
        }
        self.counters.checkpoints += 1;
        self.checkpoint.failing_since = None;
        self.journal.free_before(next.previous.seq);
        assert!(next.checkpoint == self.running().map);
        self.checkpoint.superblock = Some(next);
        self.checkpoint.running = None;
        let is_squeezed = |(_, _, before)| self.counters.checkpoints >= before + TURNS && self.first_waits_for(WaitReason::Journal);
        if self.checkpoint.untold > 0 && self.checkpoint.squeezed.is_some_and(is_squeezed) {
            // The next one a second later: they would follow one another without an end.
            self.try_headers_again();
            self.checkpoint.is_paced = true;
        }
        false
    }

    fn end_stop(&mut self) -> bool {
        self.checkpoint.running = None;
        self.phase = crate::probe::Phase::Stopped;
        false
    }

    /// A flush failed: what it covered may be gone, so the write before it is done again.
    pub(super) fn checkpoint_flush_failed(&mut self) {
        let Some(running) = &mut self.checkpoint.running else { return };
        match running.stage {
            Stage::Restating => {}
            Stage::Mapping { left, .. } => running.stage = Stage::Mapping { left, failed: true },
            Stage::MapFlush(_) => {
                running.stage = Stage::Mapping { left: 0, failed: true };
                self.meet(FaultPoint::CheckpointFlushFailed);
            }
            Stage::Superblock { .. } => {}
            Stage::SuperblockFlush { copy, second, .. } => {
                self.meet(FaultPoint::SuperblockFlushFailed);
                self.write_superblock(second.then_some(copy));
            }
        }
    }

    /// The last act of a stop is under way: nothing is put into the log behind the cut that it names.
    pub(super) fn is_sealing_stop(&self) -> bool {
        !self.has_cache_failed() && self.checkpoint.running.as_ref().is_some_and(|running| running.stop)
    }

    pub(super) fn is_checkpoint_running(&self) -> bool {
        self.checkpoint.running.is_some()
    }

    /// The maps that the newest superblock names: the newest, and the one before it. Where a start had to take that one, both lie in one area, and
    /// there is no other.
    pub(super) fn named_maps(&self) -> [MapRef; 2] {
        let superblock = self.checkpoint.superblock.as_ref().expect("a serving engine has read its superblock");
        [superblock.checkpoint, superblock.previous]
    }

    /// The newest map was not given to the scrubber, once.
    pub(super) fn awaits_newest_map(&self) -> bool {
        let newest = self.checkpoint.superblock.as_ref().map(|superblock| superblock.checkpoint);
        newest.is_some_and(|newest| self.scrubber.awaits_newest(newest))
    }

    /// The newest map is damaged, and the one before it is whole: it is written anew in its own place.
    pub(super) fn replace_map(&mut self, map: MapRef) {
        self.checkpoint.spoiled = Some(map.number);
    }

    /// One of this start is there: recovery has ended.
    pub(super) fn has_superblock(&self) -> bool {
        self.checkpoint.superblock.is_some()
    }

    /// The start that the superblocks know; once they know of its end, the next one.
    pub(super) fn epoch(&self) -> u64 {
        let sealed = self.checkpoint.superblock.as_ref().map_or(0, |superblock| superblock.epoch);
        sealed.max(self.journal.epoch())
    }

    /// Metadata is damaged, maybe this copy of the superblock: it is written anew as soon as may be.
    pub(super) fn want_checkpoint(&mut self, copy: Option<u32>) {
        self.checkpoint.wanted = true;
        if let Some(copy) = copy {
            self.checkpoint.copies[copy as usize] = 0;
        }
    }

    /// There is nothing any more that it could be of use to.
    pub(super) fn forget_checkpoint(&mut self) {
        self.checkpoint.running = None;
        self.checkpoint.back_off.at = None;
    }

    pub(super) fn checkpoint_bytes(&self) -> u64 {
        self.checkpoint.running.as_ref().map_or(0, |running| running.pages.len() as u64 * PAGE_BYTES)
    }
}

/// A sealed set whose header cannot be written: only the journal tells its slots.
fn has_only_journal(set: &Set) -> bool {
    set.state == SetState::Sealed && set.header == HeaderState::Unwritable && set.live_count > 0
}

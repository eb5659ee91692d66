//! Scrub: everything on the SSD is read and verified in the background, so that what rots is found while there is still another copy.
//!
//! ```text
//! Slots (of a set, some at a time) → Headers (both copies) → next set … → Superblocks → Maps → Journal → a pass has ended
//!   clean, bad → dropped: the origin has it     a copy bad → written again from memory       bad → a checkpoint writes it anew, elsewhere
//!   dirty, bad → written anew if memory has the same; else counted, and reads of it are errors
//!                                               both bad, neither can be → told by the journal
//! ```
//! One operation at a time and at a rate (`Config::scrub_rate`); while clients wait, at a quarter of it. The origin is never asked. What is not given
//! is read again before it counts as bad. In doubt about metadata it pauses a second at most, whatever the rate: checkpoints wait.
//! What a checkpoint may write is read only while none runs, and none begins meanwhile. Of the two maps, and of the two superblocks, one is written
//! over first: which of them is whole is known before that. A checkpoint that cannot wait takes what is known so far; only of a newest map that
//! was not given it waits for the second reading, which comes at once.

use std::collections::VecDeque;

use crate::block::{ATOM_BYTES, PAGE_ATOMS, PAGE_BYTES, Slot, Span};
use crate::cache::format::journal::decode_head;
use crate::cache::format::map::{decode_ranges, decode_sets, ranges_per_page};
use crate::cache::format::{MapRef, SetState, Superblock};
use crate::cache::sets::HeaderState;
use crate::cache::stream::Source;
use crate::op::{Action, Answer, Class, DeviceError, DeviceId, Zone};
use crate::payload::Payload;
use crate::probe::Scrub;
use crate::time::{Duration, Instant};

use super::write::Piece;
use super::{Engine, Owner, joined};

/// Atoms of one read: 256 KiB.
const STEP_ATOMS: u64 = 512;
/// While clients wait, steps come so many times more seldom.
const POLITENESS: u64 = 4;
/// What is not given, and a part of a map that is not good, is read once more after so long: it may have been a moment's failure.
const DOUBT: Duration = Duration::from_secs(1);
/// An SSD that gives nothing else either is asked again and again for so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where the pass stands.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Slots(Slot),
    Headers(u32),
    Superblocks(Superblocks),
    Maps(Maps),
    Journal { from: u64 },
}

/// The copies of the superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Superblocks {
    /// The updates that they hold.
    of: [u64; 2],
    /// Which of them is read now.
    which: usize,
    /// What it was at its first reading, if that was not good.
    doubt: Option<Found>,
    found: [Found; 2],
}

impl Superblocks {
    /// What is known of each; what was not read yet counts as good.
    fn seen(&self) -> [Found; 2] {
        let mut seen = self.found;
        if let Some(doubt) = self.doubt {
            seen[self.which] = doubt;
        }
        seen
    }
}

/// In this order they are written anew: what cannot be read may still be good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Found {
    Good,
    Unread,
    Damaged,
}

/// The newest map, and then the one before it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Maps {
    of: [MapRef; 2],
    /// Which of them is read now, the next page, and how many it has.
    which: usize,
    page: u32,
    pages: u32,
    /// What was read here was not good, once.
    doubtful: bool,
    /// And it was given: what cannot be read may still be good.
    is_bad: bool,
    damaged: [bool; 2],
}

/// Since when a slot is not given, and how many reads had been given then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unread {
    since: Instant,
    given: u64,
}

/// What is being read or written.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Slots { first: Slot, slots: u32, before: Option<Unread> },
    Header { set: u32, copy: bool },
    HeaderRepair { set: u32, copy: bool },
    Superblock { copy: u32 },
    Map { of: MapRef, page: u32, pages: u32 },
    Journal { place: u32, seq: u64, pages: u32 },
}

impl Step {
    /// A checkpoint may write there, or let go what is being read.
    fn is_of_checkpoints(self) -> bool {
        match self {
            Step::Superblock { .. } | Step::Map { .. } | Step::Journal { .. } => true,
            Step::Slots { .. } | Step::Header { .. } | Step::HeaderRepair { .. } => false,
        }
    }
}

pub(super) struct Scrubber {
    place: Place,
    /// Slots of a read that failed, to be read one by one.
    singles: VecDeque<Slot>,
    /// Those of them that were not given, to be read again.
    unread: VecDeque<(Slot, Unread)>,
    /// Reads of slots that have been given, ever.
    given: u64,
    /// Copies of a header that are bad.
    repairs: VecDeque<(u32, bool)>,
    /// A copy that was written again, and the flush that it waits for before the other one is touched.
    repaired: Option<((u32, bool), u64)>,
    /// Copies of the header that was read last which are bad, and cannot be written either.
    unrepaired: u8,
    /// Operations under way.
    running: Vec<Step>,
    /// When the next step is due.
    due: Instant,
    last_pass: Option<Instant>,
}

impl Default for Scrubber {
    fn default() -> Self {
        Scrubber {
            place: Place::Slots(Slot { set: 0, slot: 0 }),
            singles: VecDeque::new(),
            unread: VecDeque::new(),
            given: 0,
            repairs: VecDeque::new(),
            repaired: None,
            unrepaired: 0,
            running: Vec::new(),
            due: Instant::ZERO,
            last_pass: None,
        }
    }
}

impl Scrubber {
    pub fn is_busy(&self) -> bool {
        !self.running.is_empty()
    }
    /// Something is being written again, or about to be.
    pub fn is_repairing(&self) -> bool {
        !self.repairs.is_empty() || self.repaired.is_some()
    }
    /// A flush has failed: what was written again before it may be gone.
    pub fn doubt_repair(&mut self) {
        self.repairs.extend(self.repaired.take().map(|(header, _)| header));
    }
    /// The same of what was on its way then, if it is a repair.
    pub fn repeats(&mut self, step: Step) -> bool {
        let Step::HeaderRepair { set, copy } = step else { return false };
        self.end_step(step);
        self.repairs.push_back((set, copy));
        true
    }
    fn end_step(&mut self, step: Step) {
        let ended = self.running.iter().position(|running| std::mem::discriminant(running) == std::mem::discriminant(&step));
        self.running.remove(ended.expect("this step is under way"));
    }
    /// Checkpoints have to wait.
    pub fn reads_metadata(&self) -> bool {
        self.running.iter().any(|step| step.is_of_checkpoints())
    }
    /// It is about to know which of the maps, or of the superblocks, is whole.
    pub fn doubts_metadata(&self) -> bool {
        match &self.place {
            Place::Superblocks(copies) => copies.seen() != [Found::Good; 2],
            Place::Maps(maps) => maps.doubtful || maps.damaged.contains(&true),
            Place::Slots(_) | Place::Headers(_) | Place::Journal { .. } => false,
        }
    }
    /// The copy of the superblock that was worse than the other one so far, if these are the updates that they hold.
    pub fn worse_superblock(&self, of: [u64; 2]) -> Option<u32> {
        let Place::Superblocks(copies) = &self.place else { return None };
        let [first, second] = copies.seen();
        (copies.of == of && first != second).then_some(u32::from(second > first))
    }
    /// Has the newest map, this one, not been good so far, while the one before it may be?
    pub fn doubts_newest(&self, newest: MapRef) -> bool {
        let is_bad = |maps: &Maps| (maps.damaged[0] || maps.which == 0 && maps.doubtful) && !maps.damaged[1];
        matches!(&self.place, Place::Maps(maps) if maps.of[0] == newest && is_bad(maps))
    }
    /// Was the newest map, this one, not given, once? Either of the two may be the only one that is whole, until it is read again.
    pub fn awaits_newest(&self, newest: MapRef) -> bool {
        matches!(&self.place, Place::Maps(maps) if maps.of[0] == newest && maps.which == 0 && maps.doubtful && !maps.is_bad)
    }
}

impl<P: Payload> Engine<P> {
    pub(super) fn scrub_report(&self) -> Scrub {
        let sets_done = match self.scrubber.place {
            Place::Slots(Slot { set, .. }) | Place::Headers(set) => set,
            Place::Superblocks(_) | Place::Maps(_) | Place::Journal { .. } => self.config.geometry.sets,
        };
        let runs = self.config.scrub_rate > 0 && !self.has_cache_failed();
        Scrub { sets_done: runs.then_some(sets_done), last_pass: self.scrubber.last_pass }
    }

    fn may_scrub(&self) -> bool {
        // A stop waits for what is written again, and for nothing else.
        let is_wanted = !self.stopping || self.scrubber.is_repairing() || self.is_scrub_awaited();
        let is_whole = self.recovery.is_none() && !self.has_cache_failed() && is_wanted;
        self.config.scrub_rate > 0 && is_whole && !self.scrubber.is_busy()
    }

    /// A checkpoint cannot wait, and may be written over neither map before the newest is read once more: that is done at once.
    fn is_scrub_awaited(&self) -> bool {
        self.checkpoint.urgent && self.awaits_newest_map()
    }

    pub(super) fn scrub_deadline(&self) -> Option<Instant> {
        let due = || match self.requests.is_empty() {
            _ if self.stopping || self.is_scrub_awaited() => self.now,
            // Checkpoints wait.
            _ if self.scrubber.doubts_metadata() => self.scrubber.due,
            true => self.scrubber.due,
            false => self.scrubber.due + self.politeness(),
        };
        self.may_scrub().then(due)
    }

    fn politeness(&self) -> Duration {
        Duration(self.step_time(STEP_ATOMS).0 * (POLITENESS - 1))
    }

    fn step_time(&self, atoms: u64) -> Duration {
        Duration((u128::from(atoms * ATOM_BYTES) * 1_000_000_000 / u128::from(self.config.scrub_rate)) as u64)
    }

    /// Goes on if it is time to, up to the next operation or something that has to be waited for.
    pub(super) fn pump_scrub(&mut self) {
        while self.scrub_deadline().is_some_and(|due| due <= self.now) {
            let stand = |scrubber: &Scrubber| (scrubber.place.clone(), scrubber.singles.len() + scrubber.unread.len());
            let before = stand(&self.scrubber);
            self.scrub_on();
            if before == stand(&self.scrubber) {
                return;
            }
        }
    }

    fn scrub_on(&mut self) {
        if let Some(((set, _), flush)) = self.scrubber.repaired {
            if !self.flushes.has_succeeded(flush) {
                return;
            }
            self.scrubber.repaired = None;
            self.sets.get_mut(set).pins -= 1;
            if self.stopping && self.scrubber.repairs.is_empty() {
                return;
            }
        }
        if let Some((set, copy)) = self.scrubber.repairs.pop_front() {
            return self.repair_header(set, copy);
        }
        if let Some(slot) = self.scrubber.singles.pop_front() {
            return self.scrub_slots(slot, 1, None);
        }
        if let Some((slot, before)) = self.scrubber.unread.pop_front() {
            return self.scrub_slots(slot, 1, Some(before));
        }
        match self.scrubber.place.clone() {
            Place::Slots(slot) => self.scrub_set(slot),
            Place::Headers(set) => self.scrub_headers(set),
            Place::Superblocks(copies) => self.scrub_superblocks(&copies),
            Place::Maps(maps) => self.scrub_maps(maps),
            Place::Journal { from } => self.scrub_journal(from),
        }
    }

    fn read_to_scrub(&mut self, zone: Zone, span: Span, step: Step) {
        self.scrubber.running.push(step);
        let pause = self.step_time(span.atoms);
        self.scrubber.due = self.now + if self.scrubber.doubts_metadata() { pause.min(DOUBT) } else { pause };
        self.start(DeviceId::Cache, Class::Scrub, Action::Read(zone, span), Owner::Scrub(step));
    }

    // --- data ---

    /// The next live slots from `from` on that are on the SSD for certain.
    fn scrub_set(&mut self, from: Slot) {
        let most = (STEP_ATOMS.min(self.limits[0].op_atoms) / self.block_atoms()).max(1) as u32;
        let mut from = from;
        while from.set < self.config.geometry.sets {
            let set = self.sets.get(from.set);
            let may_read = |slot: u32| set.live.get(slot) && !self.window.holds(Slot { slot, ..from });
            let all = if set.loaded { self.config.geometry.set_slots } else { 0 };
            if let Some(first) = (from.slot..all).find(|&slot| may_read(slot)) {
                let slots = (first..all.min(first + most)).take_while(|&slot| may_read(slot)).count() as u32;
                self.scrubber.place = Place::Slots(Slot { slot: first + slots, ..from });
                return self.scrub_slots(Slot { slot: first, ..from }, slots, None);
            }
            if set.state == SetState::Sealed && set.header == HeaderState::Durable && set.live_count > 0 {
                self.scrubber.place = Place::Headers(from.set);
                return;
            }
            from = Slot { set: from.set + 1, slot: 0 };
        }
        let found = [Found::Good; 2];
        self.scrubber.place = Place::Superblocks(Superblocks { of: self.superblock_copies(), which: 0, doubt: None, found });
    }

    fn scrub_slots(&mut self, first: Slot, slots: u32, before: Option<Unread>) {
        let is_there = |slot: u32| self.sets.get(first.set).live.get(slot) && !self.window.holds(Slot { slot, ..first });
        if !(first.slot..first.slot + slots).all(is_there) {
            // A single one that has died since.
            return;
        }
        self.sets.pin(first, slots);
        self.read_to_scrub(Zone::Data, self.slots_span(first, slots), Step::Slots { first, slots, before });
    }

    fn slots_scrubbed(&mut self, (first, slots): (Slot, u32), before: Option<Unread>, result: Result<Answer<P>, DeviceError>) {
        self.sets.unpin(first, slots);
        let size = self.block_atoms();
        let all = (0..slots).map(|i| Slot { slot: first.slot + i, ..first });
        match result.map(joined::<P>) {
            Ok(payload) => {
                self.scrubber.given += 1;
                self.counters.scrubbed_blocks += u64::from(slots);
                for (i, slot) in all.enumerate() {
                    if payload.slice(i as u64 * size, size).checksum(self.checksum) != self.sets.crc(slot) {
                        self.scrub_found(slot);
                    }
                }
            }
            Err(_) if slots > 1 => self.scrubber.singles.extend(all),
            Err(_) => self.single_not_given(first, before),
        }
    }

    /// A slot cannot be read. It is damaged if it is not given again, although another has been since; or nothing is, for long.
    fn single_not_given(&mut self, slot: Slot, before: Option<Unread>) {
        let is_over = |Unread { since, given }| self.scrubber.given > given || self.now.since(since) >= PATIENCE;
        if before.is_some_and(is_over) {
            return self.scrub_found(slot);
        }
        let now = Unread { since: self.now, given: self.scrubber.given };
        self.scrubber.unread.push_back((slot, before.unwrap_or(now)));
        self.scrubber.due = self.scrubber.due.max(self.now + DOUBT);
    }

    /// A slot is damaged.
    fn scrub_found(&mut self, slot: Slot) {
        if !self.sets.is_live(slot) || self.window.holds(slot) || self.has_cache_failed() {
            return;
        }
        if self.sets.is_dirty(slot) {
            let is_rescued = self.put_anew(slot);
            self.counters.scrub_rescued_blocks += u64::from(is_rescued);
            self.counters.scrub_damaged_blocks += u64::from(!is_rescued);
        } else if self.journal_has_room(1) {
            self.counters.scrub_dropped_blocks += 1;
            self.kill_slot(slot);
        }
    }

    /// What a dirty slot held, if memory has the same: in another slot, as dirty and as old, unless something newer of it is on its way. False: it
    /// was not, for one reason or another.
    fn put_anew(&mut self, slot: Slot) -> bool {
        let block = self.sets.entry(slot, |block| self.full(block)).block;
        if self.index.get(block) != Some(slot) || !self.may_exchange(slot) || !self.is_newest(block, true) {
            return false;
        }
        let Some(payload) = self.remembered(slot, block) else { return false };
        if self.slots_available(Source::Moved) == 0 || !self.has_room_to_move(1) {
            return false;
        }
        let valid = self.sets.partial(slot);
        self.begin_group_for(self.journal_entries(1));
        self.put(Source::Moved, true, [Piece { block, blocks: 1, payload, valid }], &[], 0);
        true
    }

    // --- headers ---

    /// Both copies. The set is held meanwhile: a header that is written again must not land on another life.
    fn scrub_headers(&mut self, set: u32) {
        self.scrubber.place = Place::Slots(Slot { set: set + 1, slot: 0 });
        let info = self.sets.get(set);
        if info.state != SetState::Sealed || info.header != HeaderState::Durable {
            return;
        }
        let geometry = self.config.geometry;
        self.scrubber.unrepaired = 0;
        self.sets.get_mut(set).pins += 2;
        self.read_to_scrub(Zone::Header, geometry.header(set), Step::Header { set, copy: false });
        self.read_to_scrub(Zone::HeaderCopy, geometry.header_copy(set), Step::Header { set, copy: true });
    }

    fn header_scrubbed(&mut self, set: u32, copy: bool, result: Result<Answer<P>, DeviceError>) {
        let mut bytes = Vec::new();
        let read = result.map(|answer| joined::<P>(answer).append_to(&mut bytes)).is_ok();
        let is_good = self.decode_header(set, copy, read.then_some(&bytes[..])).is_ok();
        let info = self.sets.get(set);
        if is_good || info.state != SetState::Sealed || info.live_count == 0 {
            self.sets.get_mut(set).pins -= 1;
        } else {
            self.scrubber.repairs.push_back((set, copy));
        }
    }

    fn repair_header(&mut self, set: u32, copy: bool) {
        let geometry = self.config.geometry;
        let (zone, span) = if copy { (Zone::HeaderCopy, geometry.header_copy(set)) } else { (Zone::Header, geometry.header(set)) };
        let payload = P::from_bytes(&self.header_of(set).encode(&geometry, self.config.format, copy));
        let step = Step::HeaderRepair { set, copy };
        self.scrubber.running.push(step);
        self.start(DeviceId::Cache, Class::Scrub, Action::Write(zone, span, [payload].into()), Owner::Scrub(step));
    }

    fn header_repaired(&mut self, set: u32, copy: bool, result: Result<Answer<P>, DeviceError>) {
        match result {
            Ok(_) => {
                self.counters.scrub_repaired_pages += 1;
                self.scrubber.repaired = Some(((set, copy), self.flushes.want_after_now()));
            }
            // The next pass finds it again; but of a set that has none at all nothing on the SSD would tell.
            Err(_) => {
                self.sets.get_mut(set).pins -= 1;
                self.counters.cache_write_failures += 1;
                self.scrubber.unrepaired += 1;
                if self.scrubber.unrepaired == 2 {
                    self.give_up_header(set);
                }
            }
        }
    }

    // --- what checkpoints write ---

    fn scrub_superblocks(&mut self, copies: &Superblocks) {
        if self.is_checkpoint_running() {
            return;
        }
        let is_over = copies.of != self.superblock_copies();
        if !is_over && copies.which < 2 {
            let copy = copies.which as u32;
            return self.read_to_scrub(Zone::Superblock, self.config.geometry.superblock(copy), Step::Superblock { copy });
        }
        if !is_over {
            self.superblocks_scrubbed(copies);
        }
        let of = self.named_maps();
        let pages = self.map_pages_to_scrub(of[0]);
        self.scrubber.place = Place::Maps(Maps { of, which: 0, page: 0, pages, doubtful: false, is_bad: false, damaged: [false; 2] });
    }

    fn superblock_scrubbed(&mut self, copy: u32, result: Result<Answer<P>, DeviceError>) {
        let format = self.config.format;
        let Place::Superblocks(copies) = &mut self.scrubber.place else { panic!("a superblock is being read") };
        // (0: nobody knows which update it holds.)
        let of = copies.of[copies.which];
        let is_current = |superblock: Superblock| superblock.format == format && (of == 0 || superblock.sequence == of);
        let found = result.map_or(Found::Unread, |answer| {
            let mut bytes = Vec::new();
            joined::<P>(answer).append_to(&mut bytes);
            if Superblock::decode(&bytes, copy).is_ok_and(is_current) { Found::Good } else { Found::Damaged }
        });
        copies.doubt = (found != Found::Good && copies.doubt.is_none()).then_some(found);
        if copies.doubt.is_some() {
            self.scrubber.due = self.now + DOUBT;
        } else {
            copies.found[copies.which] = found;
            copies.which += 1;
        }
    }

    /// Both are known: the worse one is written first.
    fn superblocks_scrubbed(&mut self, copies: &Superblocks) {
        let worst = copies.found.into_iter().max().expect("there are two");
        for copy in (0..2).filter(|&copy| copies.found[copy as usize] != Found::Good) {
            self.repair_by_checkpoint((copies.found[copy as usize] == worst).then_some(copy));
        }
    }

    /// At first: the range table may have more than one.
    fn map_pages_to_scrub(&self, of: MapRef) -> u32 {
        if of.number == 0 { 0 } else { self.config.geometry.map_pages() + 1 }
    }

    fn scrub_maps(&mut self, mut maps: Maps) {
        if maps.of != self.named_maps() {
            // They are of no use any more.
            self.scrubber.place = Place::Journal { from: 0 };
            return;
        }
        if self.is_checkpoint_running() {
            return;
        }
        let [newest, previous] = maps.of;
        if maps.page >= maps.pages || maps.damaged[maps.which] {
            if maps.which == 0 && previous.area != newest.area {
                (maps.which, maps.page, maps.pages) = (1, 0, self.map_pages_to_scrub(previous));
                self.scrubber.place = Place::Maps(maps);
            } else {
                self.scrubber.place = Place::Journal { from: 0 };
                self.maps_scrubbed(&maps);
            }
            return;
        }
        let (of, page) = (maps.of[maps.which], maps.page);
        let pages = (maps.pages - page).min((STEP_ATOMS / PAGE_ATOMS) as u32);
        maps.page += pages;
        self.scrubber.place = Place::Maps(maps);
        let span = Span::new(self.config.geometry.map_page(of.area, page).start, u64::from(pages) * PAGE_ATOMS);
        self.read_to_scrub(Zone::Map, span, Step::Map { of, page, pages });
    }

    fn map_scrubbed(&mut self, of: MapRef, page: u32, pages: u32, result: Result<Answer<P>, DeviceError>) {
        let (geometry, format) = (self.config.geometry, self.config.format);
        let Place::Maps(maps) = &mut self.scrubber.place else { panic!("a map is being read") };
        let mut bytes = Vec::new();
        let is_read = result.map(|answer| joined::<P>(answer).append_to(&mut bytes)).is_ok();
        let mut is_good = is_read;
        for (page, bytes) in (page..page + pages).zip(bytes.chunks_exact(PAGE_BYTES as usize)) {
            is_good &= if page < geometry.map_pages() {
                decode_sets(bytes, &geometry, format, of.area, page, of.number).is_ok()
            } else {
                let ranges = decode_ranges(bytes, &geometry, format, of.area, page, of.number);
                if let Ok((total, _)) = &ranges {
                    maps.pages = geometry.map_pages() + total.div_ceil(ranges_per_page(&geometry)).max(1);
                }
                ranges.is_ok()
            };
        }
        maps.damaged[maps.which] = !is_good && maps.doubtful;
        maps.doubtful = !is_good && !maps.doubtful;
        maps.is_bad = is_read && !is_good;
        if maps.doubtful {
            maps.page = page;
            self.scrubber.due = self.now + DOUBT;
        }
    }

    /// The newest map alone is damaged: it is replaced in its own place, and the other stays. Else a checkpoint is written over the other one.
    fn maps_scrubbed(&mut self, maps: &Maps) {
        let [newest, previous] = maps.damaged;
        if newest && !previous {
            self.replace_map(maps.of[0]);
        }
        if newest || previous {
            self.repair_by_checkpoint(None);
        }
    }

    /// The pages of the ring that are durable and still needed, some at a time.
    fn scrub_journal(&mut self, from: u64) {
        if self.is_checkpoint_running() {
            return;
        }
        let most = (STEP_ATOMS / PAGE_ATOMS) as u32;
        match self.journal.durable_run(from, most) {
            Some((place, seq, pages)) => {
                self.scrubber.place = Place::Journal { from: seq + u64::from(pages) };
                let span = Span::new(self.config.geometry.journal_page(place).start, u64::from(pages) * PAGE_ATOMS);
                self.read_to_scrub(Zone::Journal, span, Step::Journal { place, seq, pages });
            }
            None => {
                self.counters.scrub_passes += 1;
                self.scrubber.last_pass = Some(self.now);
                self.scrubber.place = Place::Slots(Slot { set: 0, slot: 0 });
                // Of an empty cache one pass a second is enough.
                self.scrubber.due = self.scrubber.due.max(self.now + Duration::from_secs(1));
            }
        }
    }

    fn journal_scrubbed(&mut self, place: u32, seq: u64, pages: u32, result: Result<Answer<P>, DeviceError>) {
        let mut bytes = Vec::new();
        let read = result.map(|answer| joined::<P>(answer).append_to(&mut bytes)).is_ok();
        let is_page = |(i, bytes): (usize, &[u8])| {
            let page = decode_head(bytes, &self.config.geometry, self.config.format, place + i as u32);
            page.is_ok_and(|page| page.head.seq == seq + i as u64)
        };
        let good = bytes.chunks_exact(PAGE_BYTES as usize).enumerate().filter(|page| is_page(*page)).count();
        if !read || good < pages as usize {
            self.repair_by_checkpoint(None);
        }
    }

    /// The state as memory has it goes to the SSD anew; what was damaged is needed no more, after one more checkpoint at the latest.
    fn repair_by_checkpoint(&mut self, copy: Option<u32>) {
        self.counters.scrub_repaired_pages += 1;
        self.want_checkpoint(copy);
    }

    // --- the end of a step ---

    pub(super) fn scrub_done(&mut self, step: Step, result: Result<Answer<P>, DeviceError>) {
        self.scrubber.end_step(step);
        match step {
            Step::Slots { first, slots, before } => self.slots_scrubbed((first, slots), before, result),
            Step::Header { set, copy } => self.header_scrubbed(set, copy, result),
            Step::HeaderRepair { set, copy } => self.header_repaired(set, copy, result),
            Step::Superblock { copy } => self.superblock_scrubbed(copy, result),
            Step::Map { of, page, pages } => self.map_scrubbed(of, page, pages, result),
            Step::Journal { place, seq, pages } => self.journal_scrubbed(place, seq, pages, result),
        }
    }
}

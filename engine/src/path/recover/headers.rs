//! Headers: which block each slot of a sealed set holds. Those of sets with dirty slots are read before service, clean ones behind it.
//!
//! A header counts only with the life and the SEAL position that the state map names; else its copy; else the set is refused if it is
//! dirty when the log is replayed, dropped if it is clean, which is written down: it may be readable after the next crash. Before that, what could not be read in either
//! place is asked for again, for a while: an SSD that gives nothing for a moment costs no set. But no checkpoint runs before the last late header,
//! nor does a stop end: where somebody waits for either, a clean set is given up at once. A late header never beats what the journal or a client
//! has changed since.

use crate::block::{Atoms, Block, PAGE_ATOMS, PAGE_BYTES, Span};
use crate::cache::format::header::Sound;
use crate::cache::format::journal::Record;
use crate::cache::format::{Bits, Entry, SetState};
use crate::fault_point::FaultPoint;
use crate::op::{Answer, DeviceError, Zone};
use crate::payload::Payload;
use crate::probe::Phase;

use super::{CHUNK_ATOMS, Engine, NAMED_MAX, Stage, Step, joined};

#[derive(Default)]
pub(super) struct Headers {
    /// Sets whose header is needed and not loaded yet.
    needed: Vec<bool>,
    /// Sets per read.
    per_chunk: u32,
    /// Sets that a late header has described.
    late: Vec<u32>,
    /// Sets that the state map calls dirty and nobody can describe, and why: what was written since says whether that matters.
    lost: Vec<(u32, String)>,
    /// Headers and copies that were of no use in this stage.
    useless: usize,
}

impl Headers {
    pub fn is_needed(&self, set: u32) -> bool {
        self.needed.get(set as usize).copied().unwrap_or(false)
    }
}

impl<P: Payload> Engine<P> {
    /// With the tail read: decides the cut, restores the sets as the map has them, and reads the headers that service needs.
    pub(super) fn read_headers(&mut self) {
        self.report_unread("last written slot");
        let accepted = self.accepted_groups();
        let all = self.recovery().chain.groups.len();
        if accepted < all {
            self.meet(if self.is_restate(accepted) { FaultPoint::RestateCut } else { FaultPoint::TailCut });
        }
        self.counters.recovered_groups = accepted as u64;
        self.counters.recovered_cut_groups = (all - accepted) as u64;
        self.cut_chain(accepted);
        let sets = std::mem::take(&mut self.recovery().sets);
        let mut needed: Vec<bool> = sets.iter().map(|set| set.state == SetState::Sealed && !set.live.is_empty()).collect();
        for (number, set) in sets.into_iter().enumerate() {
            self.sets.restore(number as u32, set);
        }
        for record in self.records(0..accepted) {
            // Told again by the journal, or dead by the time of a new life.
            match record {
                Record::Put { slot, restate: true, .. } => needed[slot.set as usize] = false,
                Record::Open { set, .. } => needed[*set as usize] = false,
                _ => {}
            }
        }
        let header_atoms = u64::from(self.config.geometry.header_pages()) * PAGE_ATOMS;
        let per_chunk = (CHUNK_ATOMS / header_atoms).max(1) as u32;
        self.recovery().headers = Headers { needed, per_chunk, ..Headers::default() };
        self.recovery().enter(Stage::Headers);
        let check = self.config.check;
        self.read_header_chunks(|engine, set| check || engine.sets.get(set).dirty_count > 0);
        self.read_fence_headers();
    }

    /// Sets whose last live slot died in the replay need no header: they may be reused at once.
    pub(super) fn forget_dead_headers(&mut self) {
        for set in 0..self.config.geometry.sets {
            if self.recovery().headers.is_needed(set) && self.sets.get(set).live_count == 0 {
                self.recovery().headers.needed[set as usize] = false;
                self.sets.get_mut(set).loaded = true;
            }
        }
    }

    /// What service does not need: the headers of clean sets.
    pub(super) fn read_late_headers(&mut self) {
        self.read_header_chunks(|_, _| true);
    }

    /// Reads every chunk with a needed header that `wanted` picks.
    fn read_header_chunks(&mut self, wanted: impl Fn(&Self, u32) -> bool) {
        for chunk in 0..self.config.geometry.sets.div_ceil(self.recovery().headers.per_chunk) {
            let sets = self.sets_of_chunk(chunk);
            let headers = &self.recovery.as_ref().expect("recovery is under way").headers;
            if !sets.clone().any(|set| headers.needed[set as usize] && wanted(self, set)) {
                continue;
            }
            let (first, last) = (self.config.geometry.header(sets.start), self.config.geometry.header(sets.end - 1));
            self.recovery_read(Zone::Header, Span::new(first.start, last.end() - first.start), Step::Headers { chunk });
        }
    }

    fn sets_of_chunk(&self, chunk: u32) -> std::ops::Range<u32> {
        let per_chunk = self.recovery.as_ref().expect("recovery is under way").headers.per_chunk;
        chunk * per_chunk..((chunk + 1) * per_chunk).min(self.config.geometry.sets)
    }

    pub(super) fn headers_read(&mut self, chunk: u32, result: Result<Answer<P>, DeviceError>) {
        let sets = self.sets_of_chunk(chunk);
        let Ok(answer) = result else {
            // One by one, so that one bad sector costs one header.
            self.meet(FaultPoint::HeadersUnread);
            for set in sets.filter(|&set| self.is_header_needed(set)).collect::<Vec<_>>() {
                self.recovery_read(Zone::Header, self.config.geometry.header(set), Step::Header { set, copy_is_bad: false });
            }
            return;
        };
        let payload: P = joined(answer);
        let bytes = payload.bytes();
        let header_bytes = self.config.geometry.header_pages() as usize * PAGE_BYTES as usize;
        for (set, header) in sets.zip(bytes.chunks_exact(header_bytes)) {
            self.use_header(set, header, false);
        }
    }

    /// One that cannot be read is asked for again only if its copy is of no help either.
    pub(super) fn header_read(&mut self, set: u32, copy_is_bad: bool, result: Result<Answer<P>, DeviceError>) {
        match result {
            Ok(answer) => {
                let payload: P = joined(answer);
                self.use_header(set, &payload.bytes(), copy_is_bad);
            }
            // The fence may have had it read meanwhile.
            Err(_) if !self.is_header_needed(set) => {}
            Err(_) if copy_is_bad => self.wait_for_header(set, Step::Header { set, copy_is_bad }),
            Err(_) => self.read_header_copy(set, false),
        }
    }

    /// Loads the header of a set if it is still needed; where it is of no use, its copy is read.
    fn use_header(&mut self, set: u32, bytes: &[u8], copy_is_bad: bool) {
        if !self.is_header_needed(set) {
            return;
        }
        match self.decode_header(set, false, Some(bytes)) {
            Ok(header) => self.load_header(set, &header),
            Err(why) if copy_is_bad => self.lose_header(set, self.about_header(set, false, &why)),
            Err(why) => {
                self.tell_header(FaultPoint::HeaderDamaged, self.about_header(set, false, &why));
                self.read_header_copy(set, true);
            }
        }
    }

    fn read_header_copy(&mut self, set: u32, header_is_bad: bool) {
        let span = self.config.geometry.header_copy(set);
        self.recovery_read(Zone::HeaderCopy, span, Step::HeaderCopy { set, header_is_bad });
    }

    pub(in crate::path) fn decode_header<'a>(&mut self, set: u32, copy: bool, bytes: Option<&'a [u8]>) -> Result<Sound<'a>, String> {
        let bytes = bytes.ok_or("cannot be read")?;
        let (geometry, format) = (&self.config.geometry, self.config.format);
        let header = Sound::check(bytes, geometry, format, set, copy).map_err(|why| why.to_string())?;
        let (life, sealed) = (header.life, header.sealed);
        let info = self.sets.get(set);
        if life != info.life || sealed != info.sealed {
            let (expected, page) = (info.life, info.sealed.seq);
            self.faults.meet(FaultPoint::HeaderOfAnotherLife);
            return Err(format!("of life {life}, sealed by page {}, where life {expected} and page {page} were expected", sealed.seq));
        }
        let slots = header.entries().len() as u32;
        let is_burned = |(slot, entry): (u32, Entry)| entry.valid.is_empty() && info.live.get(slot);
        let is_any_burned = || !header.is_whole && (0..).zip(header.entries()).any(is_burned);
        if info.live.last().is_none_or(|last| last < slots) && !is_any_burned() {
            Ok(header)
        } else {
            self.faults.meet(FaultPoint::HeaderIncomplete);
            Err("does not describe every live slot".to_string())
        }
    }

    pub(super) fn header_copy_read(&mut self, set: u32, header_is_bad: bool, result: Result<Answer<P>, DeviceError>) {
        // The fence may have had the header itself read meanwhile.
        if !self.is_header_needed(set) {
            return;
        }
        let Ok(answer) = result else {
            // If the header may be there by now, it is asked first, and then the copy once more.
            let copy = Step::HeaderCopy { set, header_is_bad };
            return self.wait_for_header(set, if header_is_bad { copy } else { Step::Header { set, copy_is_bad: false } });
        };
        let payload: P = joined(answer);
        match self.decode_header(set, true, Some(&payload.bytes())) {
            Ok(header) => {
                if !header_is_bad {
                    self.tell_header(FaultPoint::HeaderDamaged, self.about_header(set, false, "cannot be read"));
                }
                self.load_header(set, &header);
            }
            Err(why) if header_is_bad => self.lose_header(set, self.about_header(set, true, &why)),
            Err(why) => {
                self.tell_header(FaultPoint::HeaderDamaged, self.about_header(set, true, &why));
                self.wait_for_header(set, Step::Header { set, copy_is_bad: true });
            }
        }
    }

    /// Neither header nor copy is of use now, and one of them at least could not be read: it may be there a little later. Service does not wait
    /// for a clean set: its header is read behind it.
    fn wait_for_header(&mut self, set: u32, step: Step) {
        if self.phase == Phase::Recovering && self.sets.get(set).dirty_count == 0 && !self.config.check {
            return;
        }
        let (header, copy) = (self.config.geometry.header(set), self.config.geometry.header_copy(set));
        let is_copy = matches!(step, Step::HeaderCopy { .. });
        let (zone, span) = if is_copy { (Zone::HeaderCopy, copy) } else { (Zone::Header, header) };
        if self.are_late_headers_urgent() || !self.read_again_for(header.start, zone, span, step) {
            self.lose_unread(set, step);
        }
    }

    fn lose_unread(&mut self, set: u32, step: Step) {
        let is_copy = matches!(step, Step::HeaderCopy { .. });
        let why = match step {
            Step::Header { copy_is_bad: false, .. } => {
                format!("cannot be read, nor its copy at byte {}", self.config.geometry.header_copy(set).offset())
            }
            _ => "cannot be read".to_string(),
        };
        self.lose_header(set, self.about_header(set, is_copy, &why));
    }

    /// Somebody waits for what comes only behind the last late header: room in the journal, or the end.
    fn are_late_headers_urgent(&self) -> bool {
        self.phase == Phase::Serving && (self.stopping || self.checkpoint.urgent)
    }

    /// Then those that could not be read are waited for no more: their sets are clean.
    pub(in crate::path) fn hurry_late_headers(&mut self) {
        if self.recovery.is_none() || !self.are_late_headers_urgent() || self.recovery().again.is_empty() {
            return;
        }
        let recovery = self.recovery();
        recovery.again_pause.at = None;
        let again = std::mem::take(&mut recovery.again);
        recovery.left -= again.len();
        for (_, _, step) in again {
            match step {
                Step::Header { set, .. } | Step::HeaderCopy { set, .. } if self.is_header_needed(set) => self.lose_unread(set, step),
                _ => {}
            }
        }
        self.late_headers_done();
    }

    fn about_header(&self, set: u32, copy: bool, why: &str) -> String {
        let geometry = &self.config.geometry;
        let (name, span) = if copy { ("copy of the header", geometry.header_copy(set)) } else { ("header", geometry.header(set)) };
        format!("{name} of set {set} at byte {}: {why}", span.offset())
    }

    /// Nobody can describe the set.
    fn lose_header(&mut self, set: u32, what: String) {
        if self.sets.get(set).dirty_count > 0 {
            return self.recovery().headers.lost.push((set, what));
        }
        self.tell_header(FaultPoint::CleanHeaderLost, what);
        self.drop_unknown(set);
    }

    /// With the log replayed: a set that nobody can describe is damage if something in it is still dirty.
    pub(super) fn judge_lost_headers(&mut self) {
        for (set, what) in std::mem::take(&mut self.recovery().headers.lost) {
            if !self.is_header_needed(set) {
                // Told again by the log, or read beside its neighbours since.
                continue;
            }
            let info = self.sets.get(set);
            match (info.dirty_count, info.live_count) {
                (0, 0) => {}
                (0, _) => self.lose_header(set, what),
                _ => self.find(FaultPoint::DirtyHeaderLost, true, what),
            }
        }
    }

    /// A header or a copy that is of no use. Of many in one stage the first ones are named.
    fn tell_header(&mut self, point: FaultPoint, what: String) {
        self.meet(point);
        let headers = &mut self.recovery().headers;
        headers.useless += 1;
        if headers.useless <= NAMED_MAX {
            self.report_damage(false, what);
        }
    }

    /// The end of a stage that reads headers: how many more there were.
    pub(super) fn tell_other_headers(&mut self) {
        let others = std::mem::take(&mut self.recovery().headers.useless).saturating_sub(NAMED_MAX);
        if others > 0 {
            self.report_damage(false, format!("{others} more headers, or copies of them, cannot be used"));
        }
    }

    /// A clean set that nobody can describe: the origin holds everything it held.
    fn drop_unknown(&mut self, set: u32) {
        self.recovery().headers.needed[set as usize] = false;
        self.sets.kill_unknown(set);
        self.sets.get_mut(set).loaded = true;
        self.sets.mourn(set);
        if self.phase == Phase::Serving {
            self.sets.die(set);
        }
        self.through.unburied.push(set);
    }

    /// Writes down that the sets are dead which nobody could describe: somebody may after a crash, and their slots would be clean again.
    pub(in crate::path) fn bury_unknown(&mut self) {
        if self.has_cache_failed() {
            return;
        }
        let entries = (24 + u64::from(self.config.geometry.set_slots) / 8).div_ceil(40);
        while let Some(&set) = self.through.unburied.last() {
            if !self.journal_has_room(entries) {
                self.checkpoint.urgent = true;
                return;
            }
            self.begin_group_for(entries);
            let mut slots = Bits::new(self.config.geometry.set_slots);
            (0..self.config.geometry.set_slots).for_each(|slot| slots.set(slot));
            let life = self.sets.get(set).life as u32;
            self.journal.push(&Record::Kill { set, life, slots });
            self.note_record();
            self.sets.bury(set, self.journal.group());
            self.through.unburied.pop();
            if self.through.unburied.is_empty() {
                self.begin_limbo();
            }
        }
    }

    /// Describes the slots of a set. What lives of them is mapped with all others: before service, or after the last late header.
    pub(super) fn load_header(&mut self, set: u32, header: &Sound<'_>) {
        self.recovery().headers.needed[set as usize] = false;
        let geometry = &self.config.geometry;
        let last = Block(geometry.blocks() - 1);
        let (whole, short) = (Atoms::first(geometry.block_atoms), self.full(last));
        let full = |block| if block == last { short } else { whole };
        self.sets.describe_all(set, header.entries(), header.is_whole, full);
        self.note_live(set);
        if self.phase == Phase::Serving {
            self.recovery().headers.late.push(set);
        } else {
            self.sets.get_mut(set).loaded = true;
        }
    }

    // --- late headers ---

    /// A client changed these blocks: a late header that names them is old.
    pub(in crate::path) fn touch_blocks(&mut self, block: Block, blocks: u64) {
        if let Some(recovery) = &mut self.recovery {
            for block in block.0..block.0 + blocks {
                recovery.touched.insert(Block(block), None);
            }
        }
    }
    pub(in crate::path) fn touch_range(&mut self, block: Block, blocks: u64) {
        if let Some(recovery) = &mut self.recovery {
            recovery.touched.insert_range(block, blocks);
        }
    }

    /// When the last late header has come, what they describe is mapped.
    pub(super) fn late_headers_done(&mut self) {
        if self.recovery().left > 0 {
            return;
        }
        self.tell_other_headers();
        let late = std::mem::take(&mut self.recovery().headers.late);
        self.recovery().mapper = self.begin_mapping(&late);
        self.recovery().headers.late = late;
        if !self.is_mapping() {
            self.end_recovery();
        }
    }

    /// Late headers are being mapped: the engine wants to go on with it whenever nothing else happens.
    pub(in crate::path) fn is_mapping(&self) -> bool {
        self.recovery.as_ref().is_some_and(|recovery| recovery.mapper.is_some())
    }

    /// A part of what late headers describe.
    pub(in crate::path) fn map_late(&mut self) {
        let Some(mut mapper) = self.recovery.as_mut().and_then(|recovery| recovery.mapper.take()) else { return };
        if self.map_bucket(&mut mapper) {
            self.recovery().mapper = Some(mapper);
        } else {
            self.end_mapping(mapper);
            self.end_recovery();
        }
    }

    /// Everything is mapped: sets may be dropped and checkpoints run from now on.
    fn end_recovery(&mut self) {
        let late = std::mem::take(&mut self.recovery().headers.late);
        late.iter().for_each(|&set| self.sets.get_mut(set).loaded = true);
        self.recovery = None;
        if self.writes_through() {
            // Slots have died here, of blocks that were written before anybody knew of them. After a crash they would be clean again.
            self.begin_limbo();
        }
    }
}

//! Headers: which block each slot of a sealed set holds. Those of sets with dirty slots are read before service, clean ones behind it.
//!
//! A header counts only with the life and the SEAL position that the state map names; else its copy; else the set is refused if it is
//! dirty, dropped if it is clean. A late header never beats what the journal or a client has changed since.

use crate::block::{Block, PAGE_ATOMS, PAGE_BYTES, Slot, Span};
use crate::cache::format::header::decode_into;
use crate::cache::format::journal::Record;
use crate::cache::format::{Bits, Entry, SetState};
use crate::op::{Answer, DeviceError, Zone};
use crate::payload::Payload;
use crate::probe::Phase;

use super::{CHUNK_ATOMS, Engine, Stage, Step, bytes_of, joined};

#[derive(Default)]
pub(super) struct Headers {
    /// Sets whose header is needed and not loaded yet.
    needed: Vec<bool>,
    /// Sets per read.
    per_chunk: u32,
}

impl Headers {
    pub fn is_needed(&self, set: u32) -> bool {
        self.needed.get(set as usize).copied().unwrap_or(false)
    }
}

impl<P: Payload> Engine<P> {
    /// With the tail read: decides the cut, restores the sets as the map has them, and reads the headers that service needs.
    pub(super) fn read_headers(&mut self) {
        let accepted = self.accepted_groups();
        let all = self.recovery().chain.groups.len();
        self.counters.recovered_groups = accepted as u64;
        self.counters.recovered_cut_groups = (all - accepted) as u64;
        self.cut_chain(accepted);
        let sets = std::mem::take(&mut self.recovery().sets);
        for (number, set) in sets.iter().enumerate() {
            self.sets.restore(number as u32, set);
        }
        let mut needed: Vec<bool> = sets.iter().map(|set| set.state == SetState::Sealed && !set.live.is_empty()).collect();
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
        self.recovery().headers = Headers { needed, per_chunk };
        self.recovery().stage = Stage::Headers;
        let check = self.config.check;
        self.read_header_chunks(false, |engine, set| check || engine.sets.get(set).dirty_count > 0);
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
        self.read_header_chunks(true, |_, _| true);
    }

    /// Reads every chunk with a needed header that `wanted` picks.
    fn read_header_chunks(&mut self, late: bool, wanted: impl Fn(&Self, u32) -> bool) {
        let (sets, per_chunk) = (self.config.geometry.sets, self.recovery().headers.per_chunk);
        for chunk in 0..sets.div_ceil(per_chunk) {
            let of_chunk = chunk * per_chunk..((chunk + 1) * per_chunk).min(sets);
            let headers = &self.recovery.as_ref().expect("recovery is under way").headers;
            if !of_chunk.clone().any(|set| headers.needed[set as usize] && wanted(self, set)) {
                continue;
            }
            let (first, last) = (self.config.geometry.header(of_chunk.start), self.config.geometry.header(of_chunk.end - 1));
            let step = if late { Step::LateHeaders { chunk: chunk as usize } } else { Step::Headers { chunk: chunk as usize } };
            self.recovery_read(Zone::Header, Span::new(first.start, last.end() - first.start), step);
            self.recovery().left += 1;
        }
    }

    pub(super) fn headers_read(&mut self, chunk: usize, result: Result<Answer<P>, DeviceError>) {
        let (sets, per_chunk) = (self.config.geometry.sets, self.recovery().headers.per_chunk);
        let first = chunk as u32 * per_chunk;
        let bytes = result.ok().map(|answer| bytes_of(&joined(answer)));
        let header_bytes = self.config.geometry.header_pages() as usize * PAGE_BYTES as usize;
        let mut entries = Vec::new();
        for set in first..(first + per_chunk).min(sets) {
            if !self.recovery().headers.needed[set as usize] {
                continue;
            }
            let at = (set - first) as usize * header_bytes;
            let header = bytes.as_ref().map(|bytes| &bytes[at..at + header_bytes]);
            match self.decode_header(set, false, header, &mut entries) {
                Ok(()) => self.load_header(set, &entries),
                Err(why) => {
                    let offset = self.config.geometry.header(set).offset();
                    self.report_damage(false, format!("header of set {set} at byte {offset}: {why}"));
                    let span = self.config.geometry.header_copy(set);
                    self.recovery_read(Zone::HeaderCopy, span, Step::HeaderCopy { set });
                    self.recovery().left += 1;
                }
            }
            if self.phase == Phase::Refused {
                return;
            }
        }
    }

    fn decode_header(&self, set: u32, copy: bool, bytes: Option<&[u8]>, entries: &mut Vec<Entry>) -> Result<(), String> {
        let bytes = bytes.ok_or("cannot be read")?;
        let (geometry, format) = (&self.config.geometry, self.config.format);
        let (life, _, sealed) = decode_into(bytes, geometry, format, set, copy, entries).map_err(|why| why.to_string())?;
        let info = self.sets.get(set);
        if life != info.life || sealed != info.sealed {
            return Err(format!(
                "of life {life}, sealed by page {}, where life {} and page {} were expected",
                sealed.seq, info.life, info.sealed.seq
            ));
        }
        let described = info.live.iter().all(|slot| entries.get(slot as usize).is_some_and(|entry| !entry.valid.is_empty()));
        if described { Ok(()) } else { Err("does not describe every live slot".to_string()) }
    }

    pub(super) fn header_copy_read(&mut self, set: u32, result: Result<Answer<P>, DeviceError>) {
        let bytes = result.ok().map(|answer| bytes_of(&joined(answer)));
        let mut entries = Vec::new();
        match self.decode_header(set, true, bytes.as_deref(), &mut entries) {
            Ok(()) => self.load_header(set, &entries),
            Err(why) => {
                let offset = self.config.geometry.header_copy(set).offset();
                let dirty = self.sets.get(set).dirty_count > 0;
                self.report_damage(dirty, format!("copy of the header of set {set} at byte {offset}: {why}"));
                if !dirty {
                    self.drop_unknown(set);
                }
            }
        }
    }

    /// A clean set that nobody can describe: the origin holds everything it held.
    fn drop_unknown(&mut self, set: u32) {
        self.recovery().headers.needed[set as usize] = false;
        self.sets.kill_unknown(set);
        self.sets.get_mut(set).loaded = true;
        if self.phase == Phase::Serving {
            self.sets.mourn(set, self.journal.group());
            let life = self.sets.get(set).life as u32;
            let mut slots = Bits::new(self.config.geometry.set_slots);
            (0..self.config.geometry.set_slots).for_each(|slot| slots.set(slot));
            self.journal.push(&Record::Kill { set, life, slots });
            self.note_record();
        }
    }

    /// Describes the slots of a set and maps its live ones.
    fn load_header(&mut self, set: u32, entries: &[Entry]) {
        let late = self.phase == Phase::Serving;
        self.recovery().headers.needed[set as usize] = false;
        for entry in entries {
            let full = self.full(entry.block);
            self.sets.describe(set, *entry, full);
        }
        let live = self.sets.get(set).live.clone();
        let mut displaced = Vec::new();
        for slot in live.iter() {
            let block = entries[slot as usize].block;
            let slot = Slot { set, slot };
            if late && self.is_touched(block) {
                // By a record that may not be durable yet.
                self.sets.kill(slot, self.journal.group());
                continue;
            }
            self.index.replace(block, 1, Some(slot), &mut displaced);
            self.index.add_dirty(block, i64::from(self.sets.is_dirty(slot)));
        }
        self.sets.get_mut(set).loaded = true;
        if let Some(other) = displaced.first() {
            let what = format!("block {} lies in two live slots, of set {set} and of {:?}", other.block.0, other.slot);
            self.report_damage(!late, what);
        }
    }

    // --- late headers ---

    /// The journal or a client changed these blocks: a late header that names them is old.
    pub(in crate::path) fn touch_blocks(&mut self, block: Block, blocks: u64) {
        if let Some(recovery) = &mut self.recovery {
            for block in block.0..block.0 + blocks {
                recovery.touched.insert(block, ());
            }
        }
    }
    pub(in crate::path) fn touch_range(&mut self, block: Block, blocks: u64) {
        if let Some(recovery) = &mut self.recovery {
            recovery.touched_ranges.zero(block, blocks, crate::cache::format::RangeKind::Zero, 0);
        }
    }
    fn is_touched(&self, block: Block) -> bool {
        let recovery = self.recovery.as_ref().expect("recovery is under way");
        recovery.touched.contains_key(&block.0) || recovery.touched_ranges.is_zeroed(block)
    }

    /// When the last late header has come, recovery is over: checkpoints may run from now on.
    pub(super) fn late_headers_done(&mut self) {
        if self.recovery().left == 0 {
            self.recovery = None;
        }
    }
}

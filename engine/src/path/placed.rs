//! Set placement (paper 000): slot *i* of the cache set that the block's origin set is mapped to, overwritten in place.
//!
//! ```text
//! origin set without a cache set → a free one → first write of a slot: PUT, as in the log
//! slot lives → OPENED durable → overwritten in place, again and again → destaged, origin flushed → PUT again, clean: closed
//! ```
//! What OPENED says holds before the first byte is overwritten: the slot is dirty, and its checksum on the SSD counts no more. A crash then
//! leaves old and new atoms side by side; recovery reads opened slots, and writes them again before it answers.
//!
//! A slot that cannot be overwritten just now (it is being read, not durable yet, or gets more valid atoms) is left to the log: the block
//! moves to an open set, and back with a later write. Placed sets are sealed when they are empty, so they need no header: until then
//! every checkpoint tells them again.

use crate::block::{Atoms, Block, Slot, Span};
use crate::cache::format::journal::{PLACED, Record};
use crate::cache::format::{Bits, Entry, SetState};
use crate::cache::placed::place_of;
use crate::cache::stream::Source;
use crate::config::{Canary, Placement};
use crate::payload::Payload;
use crate::probe::WaitReason;

use super::Engine;
use super::write::{Piece, Slotted};

/// What becomes of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Its origin set has no cache set yet.
    NewSet,
    /// The slot holds nothing that counts.
    Fresh(Slot),
    /// The slot is overwritten.
    Over(Slot),
    /// It will be, once that is durable.
    Unopened(Slot),
    /// The log takes it.
    Log,
}

/// What a write needs.
#[derive(Default)]
struct Needs {
    /// Cache sets for origin sets that have none.
    sets: u64,
    /// Blocks for the log.
    logged: u64,
    unopened: Vec<Slot>,
}

impl<P: Payload> Engine<P> {
    // --- choosing ---

    /// `valid`: the atoms of the block that count when it is written.
    fn place_of(&self, block: Block, valid: Atoms) -> Place {
        let (origin, slot) = place_of(block.0, self.config.geometry.set_slots);
        let Some(set) = self.sets.placed.of_origin(origin) else { return Place::NewSet };
        let slot = Slot { set, slot };
        let placed = self.sets.placed.get(set).expect("it is mapped");
        let durable = self.journal.durable_group();
        let is_still = !self.window.holds(slot) && !self.sets.is_read(slot);
        if !self.sets.is_live(slot) {
            let is_dead = is_still && self.sets.get(set).kill_group <= durable;
            return if !placed.used.get(slot.slot) || is_dead { Place::Fresh(slot) } else { Place::Log };
        }
        let is_opened = placed.opened.get(slot.slot) && placed.opened_group <= durable;
        if !is_still || valid != self.valid_atoms(slot, block) {
            Place::Log
        } else if is_opened || self.has_canary(Canary::OverwriteUnopened) {
            Place::Over(slot)
        } else {
            Place::Unopened(slot)
        }
    }

    /// What the data of a request needs.
    fn needs_of(&self, number: usize, data: &[Span]) -> Needs {
        let mut needs = Needs::default();
        let mut new_set = None;
        for &span in data {
            let (first, blocks) = self.blocks_of(span);
            for block in (first.0..first.0 + blocks).map(Block) {
                match self.place_of(block, self.valid_after(number, block, span)) {
                    Place::NewSet => {
                        let (origin, _) = place_of(block.0, self.config.geometry.set_slots);
                        needs.sets += u64::from(new_set.replace(origin) != Some(origin));
                    }
                    Place::Unopened(slot) => needs.unopened.push(slot),
                    Place::Log => needs.logged += 1,
                    Place::Fresh(_) | Place::Over(_) => {}
                }
            }
        }
        needs
    }

    /// Is there room for what a client writes?
    pub(super) fn has_slots(&self, number: usize, data: &[Span], data_blocks: u64) -> bool {
        match self.config.placement {
            Placement::Log => self.slots_available(Source::Client) >= data_blocks,
            Placement::Set => self.has_sets(&self.needs_of(number, data)),
        }
    }

    fn has_sets(&self, needs: &Needs) -> bool {
        let slots = u64::from(self.config.geometry.set_slots);
        let free = self.slots_available(Source::Client);
        // What is left of the open set serves the log only.
        let sets = u64::from(self.sets.free_count().saturating_sub(self.sets_kept(Source::Client)));
        needs.sets <= sets && needs.logged + needs.sets * slots <= free
    }

    /// Free sets that a fill of these blocks takes.
    pub(super) fn sets_for_fill(&self, block: Block, blocks: u64) -> u64 {
        let slots = u64::from(self.config.geometry.set_slots);
        let origins = block.0 / slots..(block.0 + blocks).div_ceil(slots);
        origins.filter(|&origin| self.sets.placed.of_origin(origin).is_none()).count() as u64
    }

    /// Free sets that a waiting request needs.
    pub(super) fn sets_needed_for(&self, number: usize, data: &[Span], data_blocks: u64) -> u64 {
        let slots = u64::from(self.config.geometry.set_slots);
        match self.config.placement {
            Placement::Log => data_blocks.div_ceil(slots),
            Placement::Set => {
                let needs = self.needs_of(number, data);
                needs.sets + needs.logged.div_ceil(slots)
            }
        }
    }

    /// What keeps the data of a request from its slots.
    pub(super) fn lacks_slots(&mut self, number: usize, data: &[Span], data_blocks: u64) -> Option<WaitReason> {
        if self.config.placement == Placement::Log {
            let waits = data.first().is_some_and(|span| self.waits_for_stream_of(self.blocks_of(*span).0));
            return (self.slots_available(Source::Client) < data_blocks || waits).then_some(WaitReason::Set);
        }
        let needs = self.needs_of(number, data);
        if !self.has_sets(&needs) {
            if needs.logged > 0 {
                // What is not durable yet may go back to its place when it is.
                let group = self.close_group();
                self.flushes.want(group);
            }
            return Some(WaitReason::Set);
        }
        if !needs.unopened.is_empty() {
            self.open_slots(&needs.unopened);
            return Some(WaitReason::Slot);
        }
        None
    }

    // --- opening and closing ---

    /// Lets these live slots be overwritten once that is durable, and with them every dirty slot of their sets.
    fn open_slots(&mut self, slots: &[Slot]) {
        for of_set in slots.chunk_by(|a, b| a.set == b.set) {
            let set = of_set[0].set;
            let placed = self.sets.placed.get(set).expect("a placed set");
            // The page with OPENED says that every PUT before it is durable: nobody will verify those by their checksums.
            if placed.put_group > self.journal.durable_group() {
                continue;
            }
            let mut opened = self.sets.get(set).dirty.clone();
            of_set.iter().for_each(|slot| opened.set(slot.slot));
            let opened = opened.without(&placed.opened);
            if opened.is_empty() {
                continue;
            }
            let group = self.push_opened(set, opened.clone());
            for slot in opened.iter().map(|slot| Slot { set, slot }) {
                if self.sets.soil(slot, 1) > 0 {
                    self.sets.placed.get_mut(set).expect("a placed set").untouched.set(slot.slot);
                    let block = self.sets.entry(slot, |block| self.full(block)).block;
                    self.index.add_dirty(block, 1);
                    self.tickets.void(block, 1);
                    // After a crash now it would be clean again: no write goes through beside it until this is durable.
                    self.note_limbo(block, 1);
                }
            }
            let placed = self.sets.placed.get_mut(set).expect("a placed set");
            placed.opened = placed.opened.union(&opened);
            placed.opened_group = group;
        }
        let group = self.close_group();
        self.flushes.want(group);
    }

    /// Returns the group of the record.
    fn push_opened(&mut self, set: u32, slots: Bits) -> u64 {
        let life = self.sets.get(set).life as u32;
        self.journal.push(&Record::Opened { set, life, slots });
        self.note_record();
        self.journal.group()
    }

    /// The origin holds what these slots of one set hold, and has flushed it: they are clean, by checksums again.
    pub(super) fn close_slots(&mut self, slots: &[Slot]) {
        for run in slots.chunk_by(|a, b| a.slot + 1 == b.slot) {
            self.put_entries(run, false, false);
            let placed = self.sets.placed.get_mut(run[0].set).expect("a placed set");
            placed.put_group = self.journal.group();
            for slot in run {
                placed.opened.clear(slot.slot);
                placed.untouched.clear(slot.slot);
            }
        }
    }

    /// The SSD has failed: nobody overwrites a slot any more, and what was clean before it was opened is clean again.
    pub(super) fn close_untouched(&mut self) {
        for set in 0..self.sets.count() {
            for slot in self.sets.placed.take_untouched(set) {
                let block = self.sets.entry(slot, |block| self.full(block)).block;
                if self.sets.clean(slot, 1) > 0 {
                    self.index.add_dirty(block, -1);
                }
            }
        }
    }

    /// A PUT of consecutive slots as they are described.
    fn put_entries(&mut self, run: &[Slot], dirty: bool, restate: bool) {
        let entries: Vec<Entry> = run.iter().map(|&slot| self.sets.entry(slot, |block| self.full(block))).collect();
        let life = self.sets.get(run[0].set).life;
        self.journal.put(run[0], life, dirty, restate, &entries);
        self.note_record();
    }

    /// Tells a placed set again for a checkpoint.
    pub(super) fn restate_placed(&mut self, set: u32) {
        let live: Vec<Slot> = self.sets.get(set).live.iter().map(|slot| Slot { set, slot }).collect();
        for run in live.chunk_by(|a, b| a.slot + 1 == b.slot) {
            self.put_entries(run, false, true);
        }
        let opened = self.sets.placed.get(set).expect("a placed set").opened.clone();
        if !opened.is_empty() {
            self.push_opened(set, opened);
        }
    }

    // --- writing ---

    /// The places of all pieces as they are now, before one of them is written: a block that goes to the log kills its slot, and the places
    /// of the set that are dead may not be used until that is durable.
    pub(super) fn places_of(&self, pieces: &[Piece<P>]) -> Vec<(Place, Piece<P>)> {
        let mut places = Vec::new();
        for piece in pieces {
            let mut done = 0;
            while done < piece.blocks {
                let (place, blocks) = self.place_run(piece, done);
                places.push((place, self.part_of(piece, done, blocks)));
                done += blocks;
            }
        }
        places
    }

    /// As [`Engine::put`], each block in its place. Of a fill only what finds one is kept.
    pub(super) fn put_placed(&mut self, source: Source, dirty: bool, places: Vec<(Place, Piece<P>)>, requests: &[usize]) -> u32 {
        let mut writes = 0;
        let mut pending = Slotted::new();
        let mut logged = Vec::new();
        for (place, part) in places {
            self.tickets.void(part.block, part.blocks);
            self.touch_blocks(part.block, part.blocks);
            let first = match place {
                Place::Fresh(slot) => slot,
                Place::Over(slot) if source == Source::Client => slot,
                Place::NewSet => self.open_placed(part.block),
                Place::Over(_) | Place::Unopened(_) | Place::Log => {
                    logged.push(part);
                    continue;
                }
            };
            let follows = pending.last().is_none_or(|&(slot, slots, _)| slot.set == first.set && slot.slot + slots == first.slot);
            let slots: u64 = pending.iter().map(|&(_, slots, _)| u64::from(slots)).sum();
            if !follows || (slots + part.blocks) * self.block_atoms() > self.limits[0].op_atoms {
                self.send(source, &mut pending, requests, 0);
                writes += 1;
            }
            match place {
                Place::Over(_) => self.overwrite_run(first, &part),
                _ => self.put_fresh(source, first, &part, dirty),
            }
            pending.push((first, part.blocks as u32, part.payload));
        }
        if !pending.is_empty() {
            self.send(source, &mut pending, requests, 0);
            writes += 1;
        }
        if source == Source::Client && !logged.is_empty() {
            writes += self.put(source, dirty, logged, requests, 0);
        }
        writes
    }

    /// The place of a block of a piece, and how many blocks from it on are alike: in one origin set, at most one operation long.
    fn place_run(&self, piece: &Piece<P>, done: u64) -> (Place, u64) {
        let place = |i: u64| {
            let block = Block(piece.block.0 + i);
            self.place_of(block, piece.valid.unwrap_or(self.full(block)))
        };
        let first = place(done);
        let slots = u64::from(self.config.geometry.set_slots);
        let border = slots - (piece.block.0 + done) % slots;
        let most = (piece.blocks - done).min(border).min(self.limits[0].op_atoms / self.block_atoms());
        let alike = |i: &u64| std::mem::discriminant(&place(done + i)) == std::mem::discriminant(&first);
        (first, 1 + (1..most).take_while(alike).count() as u64)
    }

    pub(super) fn part_of(&self, piece: &Piece<P>, skip: u64, blocks: u64) -> Piece<P> {
        let payload = piece.payload.slice(skip * self.block_atoms(), blocks * self.block_atoms());
        Piece { block: Block(piece.block.0 + skip), blocks, payload, valid: piece.valid }
    }

    /// Maps the origin set of a block to a free set, if it has none yet. Returns the slot of the block.
    fn open_placed(&mut self, block: Block) -> Slot {
        let (origin, slot) = place_of(block.0, self.config.geometry.set_slots);
        if let Some(set) = self.sets.placed.of_origin(origin) {
            return Slot { set, slot };
        }
        let group = self.journal.group();
        let set = self.sets.open_placed(origin, group).expect("room was checked before");
        let life = self.sets.get(set).life;
        self.journal.push(&Record::Open { set, life, stream: PLACED });
        self.note_record();
        Slot { set, slot }
    }

    fn put_fresh(&mut self, source: Source, first: Slot, part: &Piece<P>, dirty: bool) {
        self.put_run(source, first, part, dirty);
        let group = self.journal.group();
        self.sets.placed.get_mut(first.set).expect("a placed set").put_group = group;
    }

    /// The record says nothing new: it is there so that a FLUSH has something to wait for.
    fn overwrite_run(&mut self, first: Slot, part: &Piece<P>) {
        let mut slots = Bits::new(self.config.geometry.set_slots);
        for i in 0..part.blocks as u32 {
            let slot = Slot { slot: first.slot + i, ..first };
            let crc = part.payload.slice(u64::from(i) * self.block_atoms(), self.block_atoms()).checksum(self.checksum);
            self.sets.overwrite(slot, crc);
            slots.set(slot.slot);
        }
        let group = self.push_opened(first.set, slots);
        self.counters.overwritten_blocks += part.blocks;
        self.sets.touch(first.set);
        self.window.pin(first, part.blocks as u32, group, part.payload.clone(), self.now);
    }

    // --- the end of a placed set ---

    /// Seals the placed sets that nothing lives in any more.
    pub(super) fn seal_emptied(&mut self) {
        while let Some(&set) = self.sets.placed.emptied.last() {
            let is_empty = self.sets.get(set).state == SetState::Placed && self.sets.get(set).live_count == 0;
            if is_empty && !self.has_cache_failed() {
                if !self.journal_has_room(1) {
                    self.checkpoint.urgent = true;
                    return;
                }
                self.push_seal(set);
            }
            self.sets.placed.emptied.pop();
        }
    }
}

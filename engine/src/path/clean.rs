//! Clean: a set that holds too little is emptied. What lives in it moves on to sets of its pace. Clean blocks go along if anybody has
//! read one of the set since it was opened or spared, and are dropped otherwise: the origin has them. Where room is made (`evict`), only those go along
//! that were read.
//!
//! ```text
//! choose (most space for least copying) → Reading (in portions, verified) → Ready → moved, where room is → the set is empty, and free
//!                                                                                                          when that is durable
//! ```
//! A move is a write like any other: a PUT in the open group, which kills the slot that is left. It is emitted only if the index still
//! names that slot, and never over a newer page that is on its way to the origin; dirty stays dirty, as old as it was, and clean stays clean.
//!
//! A set of which something has to stay is left alone: for a second if that is in use just now, and longer each time if the SSD does not give it, or
//! gives something else (`shun`).
//!
//! There is always room to go on: clients leave one free set more than moves need, a set that is emptied gives back more than it took, and
//! no more sets are emptied at once than there is room for. The origin has no part in it.

use std::collections::VecDeque;

use crate::block::{Atoms, Block, Slot};
use crate::cache::format::{Bits, SetState};
use crate::cache::sets::Sets;
use crate::cache::stream::Source;
use crate::config::Canary;
use crate::op::{Action, Answer, Class, DeviceError, DeviceId, Zone};
use crate::payload::Payload;
use crate::probe::WaitReason;
use crate::slab::Slab;
use crate::time::Instant;
use crate::wear::Cause;

use super::shun::Shunned;
use super::write::Piece;
use super::{Engine, Owner, joined};

/// Atoms that are read at once: a client's read waits behind no more than that. 128 KiB.
const PORTION_ATOMS: u64 = 256;
/// Dead slots that are read along rather than skipped.
const GAP: u32 = 8;
/// Sets looked at for one that can be cleaned now: some are being read, or not durable yet.
const LOOKS: usize = 64;
/// Sets that are emptied at once.
const AT_ONCE: u32 = 8;
/// Per cent of all slots that live: below that, sets are emptied rather than dropped or sent home. Two copies for a set of room, at most.
const SPARSE: u64 = 65;
/// Sets that could not be emptied, and are remembered.
const PAUSED: usize = 256;

pub(super) struct Cleaner<P> {
    portions: Slab<Portion>,
    /// Those that have been read, with what they hold.
    ready: VecDeque<(Portion, P)>,
    /// Sets being emptied, in the order in which that began.
    emptying: Vec<Emptying>,
    /// Sets that could not be emptied.
    paused: Shunned<u32>,
    /// Something waits for one that is left alone.
    waits: bool,
    /// All that was to move has been read, and there is no room for any of it: somebody else has taken what was left free for it.
    lacks_room: bool,
    /// The daily budget keeps it from working.
    left: bool,
}

/// What is left to do of a set: portions, and their live slots.
struct Emptying {
    set: u32,
    portions: u32,
    slots: u64,
    /// Of what has been dealt with.
    stays: Stays,
}

/// Why something has to stay where it is. Of a set the worst counts, which is the last one here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stays {
    /// It has not.
    Nothing,
    /// It is in use just now, or there is no room in the journal to drop it.
    InUse,
    /// The SSD does not give it, or it is damaged and there is nothing else of it.
    Bad,
}

/// Some slots of a set, read at once.
#[derive(Clone, Debug)]
struct Portion {
    first: Slot,
    slots: u32,
    /// The live ones when it was cut.
    live: Bits,
}

impl<P> Default for Cleaner<P> {
    fn default() -> Self {
        Cleaner {
            portions: Slab::default(),
            ready: VecDeque::new(),
            emptying: Vec::new(),
            paused: Shunned::new(PAUSED),
            waits: false,
            lacks_room: false,
            left: false,
        }
    }
}

impl<P> Cleaner<P> {
    /// Slots that moves under way will take, at most.
    fn slots(&self) -> u64 {
        self.emptying.iter().map(|emptying| emptying.slots).sum()
    }
    pub fn is_busy(&self) -> bool {
        !self.emptying.is_empty()
    }
    pub fn makes_room(&self) -> bool {
        self.is_busy() && !self.lacks_room
    }
    /// Sets have become free: nothing is known against what they will hold.
    pub fn forget_free(&mut self, sets: &Sets) {
        self.paused.retain(|set| sets.get(set).state != SetState::Free);
    }
}

impl<P: Payload> Engine<P> {
    /// True: something has moved, or was dropped; or others have to make the room.
    pub(super) fn pump_clean(&mut self) -> bool {
        let mut moved = false;
        let has_lacked = std::mem::replace(&mut self.cleaner.lacks_room, false);
        while !self.cleaner.ready.is_empty() && self.move_next() {
            moved = true;
        }
        self.cleaner.waits = false;
        while self.wants_cleaning() {
            let Some(dropped) = self.empty_one() else { break };
            moved |= dropped;
        }
        moved || self.cleaner.lacks_room && !has_lacked
    }

    /// Begins to empty the set that is worth it most. None: there is none now. True: something was dropped.
    #[inline(never)]
    fn empty_one(&mut self) -> Option<bool> {
        let set = self.choose_victim()?;
        Some(self.empty(set))
    }

    /// Moves the first portion for which there is room. False: there is none.
    #[inline(never)]
    fn move_next(&mut self) -> bool {
        let Some(at) = self.next_ready() else { return false };
        let (portion, payload) = self.cleaner.ready.remove(at).expect("it is there");
        self.move_portion(portion, Some(payload));
        true
    }

    /// The first portion for which there is room, that of all sets before its own aside: they must not wait for one another.
    fn next_ready(&mut self) -> Option<usize> {
        if self.lets_go() {
            return (!self.cleaner.ready.is_empty()).then_some(0);
        }
        if self.cleaner.ready.is_empty() || self.waits_for_stream() {
            return None;
        }
        let available = self.slots_available(Source::Moved);
        let kept_for_others = |set: u32| -> u64 {
            let before = self.cleaner.emptying.iter().take_while(|emptying| emptying.set != set);
            before.map(|emptying| emptying.slots).sum()
        };
        let needs = |portion: &Portion| u64::from(portion.live.count()) + kept_for_others(portion.first.set);
        let found = self.cleaner.ready.iter().position(|(portion, _)| needs(portion) <= available);
        self.cleaner.lacks_room = found.is_none() && self.cleaner.portions.is_empty();
        let at = found?;
        let live = u64::from(self.cleaner.ready[at].0.live.count());
        self.has_room_to_move(live).then_some(at)
    }

    /// Nothing is moved any more: what has been read is let go.
    fn lets_go(&self) -> bool {
        self.stopping || self.has_cache_failed()
    }

    /// Will sets be free without the origin: is one being emptied, or only waiting for a flush?
    pub(super) fn is_space_coming(&self) -> bool {
        self.config.cleans() && (self.cleaner.makes_room() || self.sets.dying_count() > 0)
    }

    /// Free sets in which sets are emptied.
    pub(super) fn room_for_moves(&self) -> u32 {
        AT_ONCE.min(self.config.clean_floor / 3)
    }

    // --- choosing ---

    fn wants_cleaning(&mut self) -> bool {
        let emptying = self.cleaner.emptying.len() as u32;
        if !self.config.cleans() || emptying >= AT_ONCE || self.recovery.is_some() || self.lets_go() {
            return false;
        }
        let coming = self.sets.free_or_dying() + emptying;
        let is_low = coming < self.config.clean_floor || coming < self.sparse_floor() && self.is_sparse();
        let is_needed = emptying == 0 && (self.first_waits_for(WaitReason::Set) || self.retries_lack_room());
        is_needed || is_low && !self.may_leave(coming)
    }

    /// Is so much dead that emptying sets is the cheapest way to free ones, for the SSD, the origin and whoever reads?
    fn is_sparse(&self) -> bool {
        let slots = self.config.geometry.slots();
        self.config.cleans() && self.may_move_dirty() && self.sets.live_slots * 100 < slots * SPARSE
    }

    /// Free sets below which sets are emptied while that is the cheapest way.
    fn sparse_floor(&self) -> u32 {
        if self.now >= self.arrivals.last + self.config.wait { self.config.free_floor } else { self.busy_floor() }
    }

    /// The same in the midst of requests, half as far above the cleaner's floor: what clients write until then kills more of what would be copied.
    fn busy_floor(&self) -> u32 {
        self.config.clean_floor.max((self.config.free_floor + self.config.clean_floor) / 2)
    }

    /// When there is more to empty than now, because a set may be looked at again or nobody has asked for anything.
    pub(super) fn clean_deadline(&self) -> Option<Instant> {
        let paused = if self.cleaner.waits { self.cleaner.paused.next(self.looked) } else { None };
        let is_below = self.sets.free_or_dying() < self.config.free_floor;
        let quiet = (is_below && self.is_sparse()).then(|| self.arrivals.last + self.config.wait);
        paused.into_iter().chain(quiet).min()
    }

    /// Will sets be free without anything being dropped or sent home, as soon as that is needed?
    pub(super) fn is_compacting(&self) -> bool {
        self.is_sparse() && (self.is_space_coming() || self.is_packed_in_time())
    }

    /// Is enough dead for the floor, and sets are being emptied, or it is not time yet?
    fn is_packed_in_time(&self) -> bool {
        let geometry = self.config.geometry;
        let packed = self.sets.live_slots.div_ceil(u64::from(geometry.set_slots)) as u32;
        let free = self.sets.free_or_dying();
        let may_work = !self.cleaner.waits && !self.cleaner.left;
        let is_on_time = self.cleaner.makes_room() || may_work && free >= self.busy_floor();
        is_on_time && geometry.sets - packed >= self.config.free_floor
    }

    /// Sets that are free, or will be without anybody else's doing.
    pub(super) fn free_soon(&self) -> u32 {
        let free = self.sets.free_or_dying();
        if !self.is_sparse() {
            return free;
        }
        let emptying = self.cleaner.emptying.len() as u32;
        if self.is_packed_in_time() { (free + emptying).max(self.config.free_floor) } else { free + emptying }
    }

    /// Sets that what is dirty fills: all that hold some of it, or so many as it can be packed into.
    pub(super) fn dirty_sets_packed(&self) -> u32 {
        if self.config.cleans() && self.may_move_dirty() {
            return self.sets.dirty_slots.div_ceil(u64::from(self.config.geometry.set_slots)) as u32;
        }
        self.sets.dirty_sets()
    }

    /// With a daily budget that is spent, nothing is moved before clients are about to need the room.
    fn may_leave(&mut self, coming: u32) -> bool {
        let is_urgent = coming < self.config.reserve.max(self.sets_kept(Source::Client) + 2);
        let is_left = !is_urgent && !self.is_within_budget(Cause::Relocation);
        let is_news = !std::mem::replace(&mut self.cleaner.left, is_left) && is_left;
        self.counters.clean_budget_waits += u64::from(is_news);
        is_left
    }

    /// The set whose cleaning gains most, of those that can be cleaned now and for which there is room.
    fn choose_victim(&mut self) -> Option<u32> {
        let room = self.slots_available(Source::Moved).saturating_sub(self.cleaner.slots());
        let slots = self.config.geometry.set_slots;
        // A few slots for a whole set of copies only if the origin is of no help.
        let least = if self.is_starved() && self.destage.back_off.has_failed() { 1 } else { (slots / 32).max(1) };
        // The best one that is too large now is worth waiting for: what is being emptied makes room for it.
        let waits = self.is_space_coming();
        let fits = |set: u32| u64::from(self.sets.get(set).live_count) <= room;
        let found = self.sets.victims().filter(|&set| !self.leaves_alone(set)).take(LOOKS).find(|&set| {
            let info = self.sets.get(set);
            let is_worth_it = slots - info.live_count >= least && (waits || fits(set));
            is_worth_it && info.loaded && info.pins == 0 && self.may_empty(set)
        });
        let found = found.filter(|&set| fits(set));
        if found.is_none() && !waits && self.is_starved() && !self.window.is_empty() {
            // What was written last may be worth emptying, as soon as it is durable.
            let group = self.close_group();
            self.flushes.want(group);
        }
        self.cleaner.waits |= found.is_none();
        found
    }

    /// Is a set on its way to being empty?
    pub(super) fn is_being_emptied(&self, set: u32) -> bool {
        self.cleaner.emptying.iter().any(|emptying| emptying.set == set)
    }

    pub(super) fn sets_being_emptied(&self) -> u32 {
        self.cleaner.emptying.len() as u32
    }

    /// May one more set be emptied, of which so many slots move on?
    pub(super) fn has_room_to_carry(&self, slots: u32) -> bool {
        let room = self.slots_available(Source::Moved).saturating_sub(self.cleaner.slots());
        self.sets_being_emptied() < AT_ONCE && u64::from(slots) <= room
    }

    pub(super) fn may_empty(&self, set: u32) -> bool {
        let info = self.sets.get(set);
        let dirty_stays = info.dirty_count == 0 || self.may_move_dirty();
        let slots = self.config.geometry.set_slots;
        let is_durable = || self.window.unpinned(Slot { set, slot: 0 }, slots) == slots;
        dirty_stays && !self.leaves_alone(set) && is_durable()
    }

    /// Something of it had to stay, and it is not time to try again.
    pub(super) fn leaves_alone(&self, set: u32) -> bool {
        self.cleaner.paused.contains(set, self.now)
    }

    /// Where a FLUSH promises the origin, little is dirty, and on its way there.
    pub(super) fn may_move_dirty(&self) -> bool {
        self.modes.is_back()
    }

    /// Drops what is not worth carrying, and begins to read the rest. True: something was dropped.
    fn empty(&mut self, set: u32) -> bool {
        let mut dropped = false;
        if !self.sets.is_used(set) && self.journal_has_room(1) {
            let clean: Vec<u32> = self.sets.get(set).live.iter().filter(|&slot| !self.sets.get(set).dirty.get(slot)).collect();
            if !clean.is_empty() {
                let mut slots = Bits::new(self.config.geometry.set_slots);
                clean.iter().for_each(|&slot| slots.set(slot));
                self.counters.clean_dropped_blocks += clean.len() as u64;
                self.kill_slots(set, slots);
                dropped = true;
            }
        }
        self.counters.cleaned_sets += 1;
        self.carry(set);
        dropped
    }

    /// Begins to read what lives in a set, so that it moves on.
    pub(super) fn carry(&mut self, set: u32) {
        let portions = self.portions_of(set);
        if !portions.is_empty() {
            let slots = portions.iter().map(|portion| u64::from(portion.live.count())).sum();
            self.cleaner.emptying.push(Emptying { set, portions: portions.len() as u32, slots, stays: Stays::Nothing });
        }
        for portion in portions {
            self.sets.pin(portion.first, portion.slots);
            let action = Action::Read(Zone::Data, self.slots_span(portion.first, portion.slots));
            let portion = self.cleaner.portions.insert(portion);
            self.start(DeviceId::Cache, Class::Clean, action, Owner::Clean { portion });
        }
    }

    fn portions_of(&self, set: u32) -> Vec<Portion> {
        let most = (PORTION_ATOMS.min(self.limits[0].op_atoms) / self.block_atoms()).max(1) as u32;
        let mut portions: Vec<Portion> = Vec::new();
        for slot in self.sets.get(set).live.iter() {
            match portions.last_mut() {
                Some(last) if slot - (last.first.slot + last.slots) <= GAP && slot - last.first.slot < most => {
                    last.slots = slot + 1 - last.first.slot;
                }
                _ => portions.push(Portion { first: Slot { set, slot }, slots: 1, live: Bits::new(self.config.geometry.set_slots) }),
            }
            portions.last_mut().expect("there is one now").live.set(slot);
        }
        portions
    }

    // --- moving ---

    pub(super) fn portion_read(&mut self, portion: usize, result: Result<Answer<P>, DeviceError>) {
        let portion = self.cleaner.portions.remove(portion);
        match result.map(joined::<P>) {
            Ok(payload) => self.cleaner.ready.push_back((portion, payload)),
            Err(_) => self.move_portion(portion, None),
        }
    }

    pub(super) fn has_room_to_move(&mut self, blocks: u64) -> bool {
        // (If it is starved as well, it may be a set that it waits for in truth.)
        if self.is_held_up() && !self.is_starved() {
            return false;
        }
        let window = (self.window.atoms() + blocks * self.block_atoms()) * crate::block::ATOM_BYTES;
        if window > self.config.window_bytes && !self.window.is_empty() {
            let group = self.close_group();
            self.flushes.want(group);
            return false;
        }
        if !self.journal_has_room(self.journal_entries(blocks)) {
            self.checkpoint.urgent = true;
            return false;
        }
        true
    }

    /// A class without an open set gets one as soon as a flush has freed some: what is mixed now would be told apart again at a cost. (Not those
    /// that are held: it may be by a portion that waits here.)
    fn waits_for_stream(&mut self) -> bool {
        let open = self.open_sets_of(Source::Moved).count() as u32;
        let is_short = open < self.config.classes && self.sets.free_count() <= self.sets_kept(Source::Moved);
        let waits = is_short && self.sets.has_unheld_dying();
        if waits && self.has_undurable_dying() {
            let group = self.close_group();
            self.flushes.want(group);
        }
        waits
    }

    /// Moves what still lives of a portion, and lets its set go. `None`: it could not be read.
    fn move_portion(&mut self, portion: Portion, payload: Option<P>) {
        let stays = match payload {
            None => Stays::Bad,
            Some(_) if self.lets_go() => Stays::Nothing,
            Some(payload) => {
                let (moves, stays) = self.moves_of(&portion, &payload);
                self.move_blocks(portion.first, moves, &payload);
                stays
            }
        };
        self.sets.unpin(portion.first, portion.slots);
        self.end_portion(&portion, stays);
    }

    /// What was to move of it has moved. Behind the last portion of a set it is known whether that is empty: however many of them fail, that is one
    /// failure.
    fn end_portion(&mut self, portion: &Portion, stays: Stays) {
        let set = portion.first.set;
        let at = self.cleaner.emptying.iter().position(|emptying| emptying.set == set).expect("its set is being emptied");
        let of_set = &mut self.cleaner.emptying[at];
        of_set.portions -= 1;
        of_set.slots -= u64::from(portion.live.count());
        of_set.stays = of_set.stays.max(stays);
        if of_set.portions > 0 {
            return;
        }
        let (stays, now) = (self.cleaner.emptying.remove(at).stays, self.now);
        // (Where too many are remembered, it may be tried again at once.)
        match stays {
            Stays::Nothing => {}
            Stays::InUse => _ = self.cleaner.paused.postpone(set, now),
            Stays::Bad => _ = self.cleaner.paused.insert(set, now),
        }
    }

    /// What of the slots read is to move; and why something has to stay.
    fn moves_of(&mut self, portion: &Portion, payload: &P) -> (Vec<Move>, Stays) {
        let (size, first) = (self.block_atoms(), portion.first);
        let (mut moves, mut stays) = (Vec::new(), Stays::Nothing);
        for slot in portion.live.iter().map(|slot| Slot { slot, ..first }) {
            let is_stale = !self.sets.is_live(slot);
            if is_stale && !self.has_canary(Canary::MoveOverNewer) {
                continue;
            }
            let entry = self.sets.entry(slot, |block| self.full(block));
            let contents = payload.slice(u64::from(slot.slot - first.slot) * size, size);
            let dirty = is_stale || self.sets.is_dirty(slot);
            if contents.checksum(self.checksum) != entry.crc {
                stays = stays.max(if is_stale { Stays::Nothing } else { self.drop_corrupt(slot, dirty) });
            } else if !self.may_move(entry.block, dirty) {
                stays = stays.max(Stays::InUse);
            } else {
                let class = self.class_of(Source::Moved, entry.block);
                let valid = self.sets.partial(slot);
                moves.push(Move { dirty, class, block: entry.block, slot, valid });
            }
        }
        moves.sort_unstable_by_key(|one| (!one.dirty, one.class, one.block));
        (moves, stays)
    }

    /// A clean slot that is damaged is dropped: the origin has it. A dirty one stays, for the destage to try again or give up.
    fn drop_corrupt(&mut self, slot: Slot, dirty: bool) -> Stays {
        if dirty {
            return Stays::Bad;
        }
        if !self.journal_has_room(1) {
            return Stays::InUse;
        }
        self.counters.corrupt_clean_slots += 1;
        self.kill_slot(slot);
        Stays::Nothing
    }

    /// Nobody is about to replace the block: what is moved now would come after that, and be older. A block that goes home right now may
    /// move if it is dirty, and stays dirty.
    pub(super) fn may_move(&self, block: Block, dirty: bool) -> bool {
        let is_locked = self.locks.iter().any(|lock| lock.covers(block));
        let span = self.config.geometry.block_span(block);
        let is_written = if dirty { self.origin.is_written_through(span) } else { self.origin.is_written(span) };
        !is_locked && !self.through.covers(block, 1) && !is_written
    }

    /// `payload` is what the slots from `first` on hold.
    fn move_blocks(&mut self, first: Slot, moves: Vec<Move>, payload: &P) {
        if moves.is_empty() {
            return;
        }
        self.begin_group_for(self.journal_entries(moves.len() as u64));
        self.counters.moved_blocks += moves.len() as u64;
        for alike in moves.chunk_by(|a, b| a.dirty == b.dirty) {
            let runs = alike.chunk_by(|a, b| a.goes_on_in(b));
            let pieces: Vec<Piece<P>> = runs.map(|run| self.piece_of_run(first, run, payload)).collect();
            self.put(Source::Moved, alike[0].dirty, pieces, &[], 0);
        }
    }

    fn piece_of_run(&self, first: Slot, run: &[Move], payload: &P) -> Piece<P> {
        let (size, blocks) = (self.block_atoms(), run.len() as u64);
        let payload = payload.slice(u64::from(run[0].slot.slot - first.slot) * size, blocks * size);
        Piece { block: run[0].block, blocks, payload, valid: run[0].valid }
    }
}

/// One block that moves.
struct Move {
    dirty: bool,
    class: u32,
    block: Block,
    slot: Slot,
    /// `None`: all its atoms.
    valid: Option<Atoms>,
}

impl Move {
    /// The next block follows in the next slot, and both are whole.
    fn goes_on_in(&self, next: &Move) -> bool {
        let follows = self.block.0 + 1 == next.block.0 && self.slot.slot + 1 == next.slot.slot;
        follows && self.class == next.class && self.valid.is_none() && next.valid.is_none()
    }
}

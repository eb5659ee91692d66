//! The cache sets: life, state, live and dirty slots, who holds them, and the LRU order.
//!
//! A set goes Free → Open (OPEN record, life + 1) → Sealed (SEAL record, headers) → Free again when no slot is live, every kill of its
//! slots is durable, and no read, write or header operation touches it any more. No other path leads to Free.
//! Under set placement a set is Placed in place of Open, and is sealed when it is empty (`placed`). What becomes of slots is in `run`.

mod age;
mod content;
mod dirt;
mod free;
mod gain;
mod header;
mod heat;
mod life;
mod partial;
mod pins;
mod read;
mod run;
#[cfg(test)]
mod tests;

use age::{Link, Order};
use dirt::Dirt;
use free::Free;
use gain::Gain;
pub use header::HeaderState;
use heat::Heat;
use read::Read;

use super::format::{Bits, Geometry, MapSet, Position, SetState};
use super::heat::Pace;
use super::index::Mapping;
use super::placed::Placed;
use super::slots::{self, Slots};
use super::stranded::Stranded;
use super::victims::Benefit;
use crate::block::{Atoms, Block, Slot};
use crate::number::NumberMap;
use crate::op::Lanes;
use crate::time::Instant;

pub struct Set {
    pub life: u64,
    pub state: SetState,
    /// Position of the page that holds the SEAL of this life.
    pub sealed: Position,
    pub live: Bits,
    pub dirty: Bits,
    pub live_count: u32,
    pub dirty_count: u32,
    slots: Slots,
    /// Slots of which only a part is valid. Mostly none.
    partial_slots: u32,
    heat: Heat,
    pub stream: u8,
    /// Reads and writes in flight, destages and merges included: while above zero the set is not reused.
    pub pins: u32,
    /// The group of the newest kill of one of its slots.
    pub kill_group: u64,
    /// The group that holds OPEN.
    pub open_group: u64,
    pub dirty_since: Instant,
    pub header: HeaderState,
    /// How often writing it has failed in this life.
    pub header_failures: u8,
    /// False while recovery has not read its header yet: its live slots are not in the index.
    pub loaded: bool,
    /// Its live runs were noted in recovery, and no slot has changed since.
    pub noted: bool,
    link: Link,
}

impl Set {
    /// It takes contents, and the journal alone describes it.
    pub fn is_open(&self) -> bool {
        matches!(self.state, SetState::Open | SetState::Placed)
    }
    /// It is left as a whole when it is to be freed; an open set of a stream is not.
    pub fn may_leave(&self) -> bool {
        matches!(self.state, SetState::Sealed | SetState::Placed)
    }
}

const _: () = assert!(size_of::<Set>() <= 184, "there is one for each MiB of the cache");

pub struct Sets {
    geometry: Geometry,
    /// Block numbers need more than 32 bits.
    wide: bool,
    sets: Vec<Set>,
    /// Of slots of which only a part is valid, by their number: which.
    partial: NumberMap<u64, Atoms>,
    read: Read,
    pub placed: Placed,
    pub stranded: Stranded,
    free: Free,
    /// Sealed sets without a live slot that wait for kills, reads or headers.
    dying: Vec<u32>,
    order: Order,
    dirt: Dirt,
    gain: Gain,
    /// Blocks written by clients, in this life of the engine and as if all slots had been written once before.
    clock: u64,
    pub live_slots: u64,
    pub dirty_slots: u64,
}

impl Sets {
    /// On an SSD with such lanes.
    pub fn new(geometry: Geometry, benefit: Benefit, lanes: Lanes) -> Self {
        let slots = geometry.slots();
        let fresh = |_| Set {
            life: 0,
            state: SetState::Free,
            sealed: Position::default(),
            live: Bits::new(geometry.set_slots),
            dirty: Bits::new(geometry.set_slots),
            live_count: 0,
            dirty_count: 0,
            slots: Slots::default(),
            partial_slots: 0,
            heat: Heat::new(Pace::of(slots)),
            stream: 0,
            pins: 0,
            kill_group: 0,
            open_group: 0,
            dirty_since: Instant::ZERO,
            header: HeaderState::None,
            header_failures: 0,
            loaded: true,
            noted: false,
            link: Link::NONE,
        };
        Sets {
            geometry,
            wide: slots::is_wide(geometry.blocks()),
            sets: (0..geometry.sets).map(fresh).collect(),
            partial: NumberMap::default(),
            read: Read::default(),
            placed: Placed::default(),
            stranded: Stranded::default(),
            free: Free::new(lanes, geometry.sets),
            dying: Vec::new(),
            order: Order::EMPTY,
            dirt: Dirt::default(),
            gain: Gain::new(geometry.sets, benefit),
            clock: slots,
            live_slots: 0,
            dirty_slots: 0,
        }
    }

    pub fn get(&self, set: u32) -> &Set {
        &self.sets[set as usize]
    }
    pub fn get_mut(&mut self, set: u32) -> &mut Set {
        &mut self.sets[set as usize]
    }
    pub fn count(&self) -> u32 {
        self.geometry.sets
    }
    pub fn slots(&self) -> u64 {
        self.geometry.slots()
    }
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Set)> {
        self.sets.iter().enumerate().map(|(number, set)| (number as u32, set))
    }
    /// A number for a slot, ascending in space.
    pub fn number(&self, slot: Slot) -> u64 {
        u64::from(slot.set) * u64::from(self.geometry.set_slots) + u64::from(slot.slot)
    }

    // --- recovery ---

    /// The live slots of a set as runs of consecutive blocks in consecutive slots, at most `most` in each, none across the border of an
    /// origin set. They count as noted until a slot changes.
    pub fn note_live_runs(&mut self, number: u32, most: u32, mut each: impl FnMut(Mapping)) {
        let set = &mut self.sets[number as usize];
        set.noted = true;
        let border = u64::from(self.geometry.set_slots - 1);
        // The run so far: first block, first slot, blocks, dirty ones.
        let (mut first, mut start, mut blocks, mut all_dirty) = (0, 0, 0, 0);
        for slot in set.live.iter() {
            let block = set.slots.block(slot);
            let dirty = u32::from(set.dirty.get(slot));
            let goes_on = block == first + u64::from(blocks) && slot == start + blocks;
            if goes_on && blocks < most && block & border != 0 && blocks > 0 {
                (blocks, all_dirty) = (blocks + 1, all_dirty + dirty);
                continue;
            }
            if blocks > 0 {
                each(Mapping::new(Block(first), blocks, Slot { set: number, slot: start }, all_dirty));
            }
            (first, start, blocks, all_dirty) = (block, slot, 1, dirty);
        }
        if blocks > 0 {
            each(Mapping::new(Block(first), blocks, Slot { set: number, slot: start }, all_dirty));
        }
    }

    /// Puts a set into the state that the state map describes.
    pub fn restore(&mut self, number: u32, map: MapSet) {
        let (live, dirty, usual) = (map.live.count(), map.dirty.count(), self.usual_pace());
        let slots = self.geometry.set_slots;
        let set = self.get_mut(number);
        set.life = map.life;
        set.state = map.state;
        set.sealed = map.sealed;
        set.live = map.live;
        set.dirty = map.dirty;
        set.live_count = live;
        set.heat.restore(live, usual);
        set.dirty_count = dirty;
        for (bits, count) in [(&mut set.live, live), (&mut set.dirty, dirty)] {
            if count == 0 || count == slots {
                bits.settle(slots, count > 0);
            }
        }
        set.loaded = live == 0;
        set.header = if map.state == SetState::Sealed { HeaderState::Durable } else { HeaderState::None };
        self.live_slots += u64::from(live);
        self.dirty_slots += u64::from(dirty);
        self.dirt.note(number, &mut self.sets[number as usize], 0);
        if map.state == SetState::Placed {
            let wide = self.wide;
            self.get_mut(number).slots.resize(slots as usize, wide);
            self.placed.insert(number, slots);
            self.placed.lives(u64::from(live));
        }
    }

    /// Clears all live bits of a set without touching the index (its slots are known to be dead).
    pub fn kill_unknown(&mut self, number: u32) {
        let set = &mut self.sets[number as usize];
        set.noted = false;
        if set.state == SetState::Placed {
            self.placed.died(u64::from(set.live_count));
        }
        self.live_slots -= u64::from(set.live_count);
        self.dirty_slots -= u64::from(set.dirty_count);
        let before = set.dirty_count;
        let slots = self.geometry.set_slots;
        (set.live, set.dirty) = (Bits::new(slots), Bits::new(slots));
        (set.live_count, set.dirty_count) = (0, 0);
        set.heat.all_died();
        self.dirt.note(number, set, before);
        self.read.forget_set(number);
    }

    /// Rebuilds the lists after replay: free sets, dying sets, LRU in order of sealing.
    pub fn rebuild_lists(&mut self) {
        self.free.clear();
        self.dying.clear();
        let mut used: Vec<u32> = Vec::new();
        for number in 0..self.geometry.sets {
            let set = self.get_mut(number);
            set.link = Link::NONE;
            match set.state {
                SetState::Free => self.set_free(number),
                SetState::Sealed if set.live_count == 0 => self.dying.push(number),
                SetState::Open | SetState::Sealed | SetState::Placed => used.push(number),
            }
        }
        self.order = Order::EMPTY;
        used.sort_by_key(|&number| (self.get(number).state == SetState::Open, self.get(number).sealed, number));
        for number in used {
            self.touch(number);
        }
        (0..self.geometry.sets).for_each(|number| self.weigh(number));
    }

    /// Bytes held: state of the sets; descriptions (checksum and block of each slot).
    pub fn bytes(&self) -> (u64, u64) {
        let own = |set: &Set| size_of::<Set>() + set.live.bytes() + set.dirty.bytes() + set.heat.bytes();
        let state =
            self.sets.iter().map(own).sum::<usize>() + self.free.bytes() + self.gain.bytes() + self.read.bytes(self.geometry.set_slots);
        let slots: usize = self.sets.iter().map(|set| set.slots.bytes()).sum();
        (state as u64, slots as u64 + self.partial.capacity() as u64 * 32)
    }
}

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
mod restore;
mod run;
mod slots;
mod stranded;
#[cfg(test)]
mod tests;
mod victims;

use age::{Link, Order};
use dirt::Dirt;
use free::Free;
use gain::Gain;
pub use header::HeaderState;
use heat::Heat;
use read::Read;
use slots::Slots;
use stranded::Stranded;
pub use victims::Benefit;

use super::format::{Bits, Geometry, Position, SetState};
use super::heat::Pace;
use super::placed::Placed;
use crate::block::{Atoms, Slot};
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

    /// Bytes held: state of the sets; descriptions (checksum and block of each slot).
    pub fn bytes(&self) -> (u64, u64) {
        let own = |set: &Set| size_of::<Set>() + set.live.bytes() + set.dirty.bytes() + set.heat.bytes();
        let state =
            self.sets.iter().map(own).sum::<usize>() + self.free.bytes() + self.gain.bytes() + self.read.bytes(self.geometry.set_slots);
        let slots: usize = self.sets.iter().map(|set| set.slots.bytes()).sum();
        (state as u64, slots as u64 + self.partial.capacity() as u64 * 32)
    }
}

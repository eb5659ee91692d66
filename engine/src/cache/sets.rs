//! The cache sets: how far each is in its life, what its slots hold and whether that is live or dirty, and in which order sets go.
//!
//! A set goes Free → Open (OPEN record, life + 1) → Sealed (SEAL record, headers) → Free again when no slot is live, every kill of its
//! slots is durable, and no read, write or header operation touches it any more. No other path leads to Free.
//! Under set placement a set is Placed in place of Open, and is sealed when it is empty (`placed`).
//!
//! Each matter is a file, with what it keeps of one set and beside all of them. What becomes of slots is in `run`, and tells the others.

// The life of a set, and what it waits for.
mod free;
mod header;
mod life;
mod pins;
mod restore;

// Its slots: what they hold, and what becomes of them.
mod content;
mod dirt;
mod partial;
mod run;
mod slots;
mod stranded;

// Which set goes next: what is read in it, how long it was left alone, what its cleaning gains.
mod age;
mod gain;
mod heat;
mod read;
mod victims;

#[cfg(test)]
mod tests;

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
    // How far it is in its life, and who holds it.
    pub life: u64,
    pub state: SetState,
    pub stream: u8,
    /// The group that holds OPEN.
    pub open_group: u64,
    /// Position of the page that holds the SEAL of this life.
    pub sealed: Position,
    /// The group of the newest kill of one of its slots.
    pub kill_group: u64,
    /// Reads and writes in flight, destages and merges included: while above zero the set is not reused.
    pub pins: u32,

    // Its header on the SSD.
    pub header: HeaderState,
    /// How often writing it has failed in this life.
    pub header_failures: u8,

    // What its slots hold.
    slots: Slots,
    /// Slots of which only a part is valid. Mostly none.
    partial_slots: u32,
    /// False while recovery has not read its header yet: its live slots are not in the index.
    pub loaded: bool,
    /// Its live runs were noted in recovery, and no slot has changed since.
    pub noted: bool,

    // What has become of them.
    pub live: Bits,
    pub live_count: u32,
    pub dirty: Bits,
    pub dirty_count: u32,
    pub dirty_since: Instant,

    // When it goes.
    heat: Heat,
    link: Link,
}

const _: () = assert!(size_of::<Set>() <= 184, "there is one for each MiB of the cache");

impl Set {
    /// Free, and never used.
    fn new(slots: u32, usual: Pace) -> Set {
        Set {
            life: 0,
            state: SetState::Free,
            stream: 0,
            open_group: 0,
            sealed: Position::default(),
            kill_group: 0,
            pins: 0,
            header: HeaderState::None,
            header_failures: 0,
            slots: Slots::default(),
            partial_slots: 0,
            loaded: true,
            noted: false,
            live: Bits::new(slots),
            live_count: 0,
            dirty: Bits::new(slots),
            dirty_count: 0,
            dirty_since: Instant::ZERO,
            heat: Heat::new(usual),
            link: Link::NONE,
        }
    }

    /// It takes contents, and the journal alone describes it.
    pub fn is_open(&self) -> bool {
        matches!(self.state, SetState::Open | SetState::Placed)
    }
    /// It is left as a whole when it is to be freed; an open set of a stream is not.
    pub fn may_leave(&self) -> bool {
        matches!(self.state, SetState::Sealed | SetState::Placed)
    }
}

pub struct Sets {
    geometry: Geometry,
    sets: Vec<Set>,
    pub live_slots: u64,
    pub dirty_slots: u64,

    // Their lives.
    free: Free,
    /// Sealed sets without a live slot that wait for kills, reads or headers.
    dying: Vec<u32>,
    pub placed: Placed,

    // What few slots need beside what each has.
    /// Of those of which only a part is valid, by their number: which.
    partial: NumberMap<u64, Atoms>,
    pub stranded: Stranded,

    // Which set goes next, home or for good.
    dirt: Dirt,
    read: Read,
    order: Order,
    gain: Gain,
    /// Blocks written by clients, in this life of the engine and as if all slots had been written once before.
    clock: u64,
}

impl Sets {
    /// On an SSD with such lanes.
    pub fn new(geometry: Geometry, benefit: Benefit, lanes: Lanes) -> Self {
        let slots = geometry.slots();
        Sets {
            geometry,
            sets: (0..geometry.sets).map(|_| Set::new(geometry.set_slots, Pace::of(slots))).collect(),
            live_slots: 0,
            dirty_slots: 0,
            free: Free::new(lanes, geometry.sets),
            dying: Vec::new(),
            placed: Placed::default(),
            partial: NumberMap::default(),
            stranded: Stranded::default(),
            dirt: Dirt::default(),
            read: Read::default(),
            order: Order::EMPTY,
            gain: Gain::new(geometry.sets, benefit),
            clock: slots,
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

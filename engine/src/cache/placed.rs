//! Set placement (paper 000): a cache set mapped to one origin set. Its slot i holds block i of that or nothing, and may be overwritten
//! in place once it is *opened*: from then on only its contents say what it holds, no checksum on the SSD does.

use super::format::header::entry_bytes;
use super::format::{Bits, Geometry};
use crate::block::{PAGE_BYTES, Slot};
use crate::number::NumberMap;

/// What a placed set needs beside what every set has.
#[derive(Clone, Debug)]
pub struct PlacedSet {
    /// The origin set; unknown until a slot is described.
    pub origin: Option<u64>,
    /// Slots that held something in this life.
    pub used: Bits,
    /// Live slots that may be overwritten.
    pub opened: Bits,
    /// Those of them that were clean when they were opened, and that nobody has overwritten since: the origin has what they hold.
    pub untouched: Bits,
    /// The group that opened the latest of them.
    pub opened_group: u64,
    /// The group of the latest PUT of a slot.
    pub put_group: u64,
}

/// The placed sets.
#[derive(Default)]
pub struct Placed {
    sets: NumberMap<u32, PlacedSet>,
    of_origin: NumberMap<u64, u32>,
    /// Operations that read a slot of a placed set, by the number of the slot.
    readers: NumberMap<u64, u32>,
    /// Sets whose last live slot has died: to be sealed, unless one lives again.
    pub emptied: Vec<u32>,
    /// Live slots of all placed sets.
    live: u64,
}

impl Placed {
    pub fn get(&self, set: u32) -> Option<&PlacedSet> {
        self.sets.get(&set)
    }
    pub fn get_mut(&mut self, set: u32) -> Option<&mut PlacedSet> {
        self.sets.get_mut(&set)
    }
    /// The cache set that an origin set is mapped to.
    pub fn of_origin(&self, origin: u64) -> Option<u32> {
        self.of_origin.get(&origin).copied()
    }

    /// A set begins its life, or is found, under set placement.
    pub fn insert(&mut self, set: u32, slots: u32) {
        let bits = || Bits::new(slots);
        let fresh = PlacedSet { origin: None, used: bits(), opened: bits(), untouched: bits(), opened_group: 0, put_group: 0 };
        self.sets.insert(set, fresh);
    }
    /// The slot holds something else, or nothing.
    pub(super) fn touch(&mut self, slot: Slot) {
        if let Some(set) = self.sets.get_mut(&slot.set) {
            set.untouched.clear(slot.slot);
        }
    }
    /// The untouched slots of a set, which are not called so any more.
    pub fn take_untouched(&mut self, set: u32) -> Vec<Slot> {
        let Some(placed) = self.sets.get_mut(&set) else { return Vec::new() };
        let slots: Vec<Slot> = placed.untouched.iter().map(|slot| Slot { set, slot }).collect();
        slots.iter().for_each(|slot| placed.untouched.clear(slot.slot));
        slots
    }
    pub fn map(&mut self, set: u32, origin: u64) {
        self.sets.get_mut(&set).expect("a placed set is mapped").origin = Some(origin);
        self.of_origin.insert(origin, set);
    }
    /// The set is sealed: it takes nothing any more.
    pub fn remove(&mut self, set: u32) {
        let Some(gone) = self.sets.remove(&set) else { return };
        if let Some(origin) = gone.origin
            && self.of_origin.get(&origin) == Some(&set)
        {
            self.of_origin.remove(&origin);
        }
    }

    pub(super) fn lives(&mut self, slots: u64) {
        self.live += slots;
    }
    /// Slots have died.
    pub(super) fn died(&mut self, slots: u64) {
        self.live -= slots;
    }

    // --- readers ---

    pub(super) fn begin_read(&mut self, numbers: std::ops::Range<u64>) {
        numbers.for_each(|number| *self.readers.entry(number).or_insert(0) += 1);
    }
    pub(super) fn end_read(&mut self, numbers: std::ops::Range<u64>) {
        if self.readers.is_empty() {
            return;
        }
        for number in numbers {
            // Not of a placed set.
            let Some(readers) = self.readers.get_mut(&number) else { return };
            *readers -= 1;
            if *readers == 0 {
                self.readers.remove(&number);
            }
        }
    }
    pub(super) fn is_read(&self, number: u64) -> bool {
        self.readers.contains_key(&number)
    }

    // --- bounds ---

    /// Pages of records, at most, that tell all placed sets again.
    #[inline]
    pub fn restate_pages(&self, geometry: &Geometry) -> u64 {
        // In the log none is placed.
        if self.sets.is_empty() {
            return 0;
        }
        restate_pages(geometry, self.sets.len() as u64, self.live)
    }
}

/// Bytes of a record before its payload.
const HEAD: u64 = 16;

/// Pages that tell so many live slots of so many sets again. Every other slot of a set may be a run of its own.
fn restate_pages(geometry: &Geometry, sets: u64, live: u64) -> u64 {
    let slots = u64::from(geometry.set_slots);
    let runs = live.min(sets * slots.div_ceil(2));
    let opened = HEAD + slots.div_ceil(64) * 8;
    let bytes = runs * HEAD + live * entry_bytes(geometry.block_atoms) as u64 + sets * opened;
    // What does not fit at the end of a page is left free: a bitmap at most.
    bytes.div_ceil(PAGE_BYTES - 64 - opened)
}

/// Pages of the journal ring that set placement needs: two checkpoints tell everything again, a third is to follow, and as much is
/// told anew between them.
pub fn journal_pages_needed(geometry: &Geometry) -> u64 {
    4 * restate_pages_of_all(geometry) + 48
}

/// Pages that tell every set again, all of them full.
pub fn restate_pages_of_all(geometry: &Geometry) -> u64 {
    let sets = u64::from(geometry.sets);
    restate_pages(geometry, sets, sets * u64::from(geometry.set_slots))
}

/// A slot by its place on the volume: origin set, slot in it.
pub fn place_of(block: u64, set_slots: u32) -> (u64, u32) {
    (block / u64::from(set_slots), (block % u64::from(set_slots)) as u32)
}

/// The numbers of consecutive slots.
pub(super) fn numbers(first: Slot, slots: u32, set_slots: u32) -> std::ops::Range<u64> {
    let number = u64::from(first.set) * u64::from(set_slots) + u64::from(first.slot);
    number..number + u64::from(slots)
}

//! What the slots of a set hold. Slots are described in their order, each once in a life of its set; those of a placed set as they come, and
//! anew when they hold something else.

use super::Sets;
use crate::block::{Atoms, Block, Slot};
use crate::cache::format::{Entry, SetState};
use crate::cache::placed::place_of;

impl Sets {
    /// The slot that the next block goes to.
    pub fn next_slot(&self, number: u32) -> u32 {
        self.get(number).slots.len() as u32
    }
    pub fn slots_left(&self, number: u32) -> u32 {
        self.geometry.set_slots - self.next_slot(number)
    }

    /// What a described slot holds. `full` is the mask of a whole block (the last block of a volume may be short).
    pub fn entry(&self, slot: Slot, full: impl Fn(Block) -> Atoms) -> Entry {
        let slots = &self.get(slot.set).slots;
        let block = Block(slots.block(slot.slot));
        Entry { block, valid: self.partial(slot).unwrap_or_else(|| full(block)), crc: slots.crc(slot.slot) }
    }
    pub fn crc(&self, slot: Slot) -> u32 {
        self.get(slot.set).slots.crc(slot.slot)
    }

    /// Describes slots from `first` on: the next ones, or any of a placed set; they are not live yet. `full` is the mask of a whole block;
    /// `whole`: it is that of every entry.
    pub fn describe(&mut self, first: Slot, entries: &[Entry], whole: bool, full: impl Fn(Block) -> Atoms) {
        let slots = (first.slot..).map(|slot| Slot { slot, ..first }).zip(entries);
        if self.get(first.set).state == SetState::Placed {
            return slots.for_each(|(slot, entry)| self.describe_placed(slot, *entry, full(entry.block)));
        }
        assert!(self.next_slot(first.set) == first.slot, "slots are taken in their order");
        assert!(entries.len() <= self.slots_left(first.set) as usize, "a set holds no more slots than it has");
        let known = &mut self.get_mut(first.set).slots;
        match entries {
            [entry] => known.push(entry),
            entries => known.extend(entries.iter().copied()),
        }
        if !whole {
            slots.for_each(|(slot, entry)| self.note_mask(slot, entry, full(entry.block)));
        }
    }

    /// Describes a slot of a placed set, maybe anew.
    fn describe_placed(&mut self, slot: Slot, entry: Entry, full: Atoms) {
        let set = self.get_mut(slot.set);
        set.noted = false;
        set.slots.set(slot.slot, &entry);
        self.note_mask(slot, &entry, full);
        let (origin, _) = place_of(entry.block.0, self.geometry.set_slots);
        self.placed.get_mut(slot.set).expect("a placed set").used.set(slot.slot);
        self.placed.touch(slot);
        self.placed.map(slot.set, origin);
    }

    /// Describes all slots of a set at once, from the first one on: what its header says. `full` is the mask of a whole block; `whole`
    /// says that it is that of every entry.
    pub fn describe_all(
        &mut self,
        number: u32,
        entries: impl ExactSizeIterator<Item = Entry> + Clone,
        whole: bool,
        full: impl Fn(Block) -> Atoms,
    ) {
        assert!(self.next_slot(number) == 0 && entries.len() <= self.geometry.set_slots as usize);
        let slots = &mut self.sets[number as usize].slots;
        slots.begin(entries.len());
        slots.extend(entries.clone());
        if !whole {
            for (slot, entry) in (0..).zip(entries) {
                self.note_mask(Slot { set: number, slot }, &entry, full(entry.block));
            }
        }
    }

    /// The slot holds other contents of the same atoms.
    pub fn overwrite(&mut self, slot: Slot, crc: u32) {
        self.get_mut(slot.set).slots.set_crc(slot.slot, crc);
        self.placed.touch(slot);
        self.stranded.forget(slot);
    }
}

//! The window: contents written to the SSD and not yet covered by a flush, pinned in memory.
//! Reads of them are served from here; a failed flush writes them again from here. A slot is durable when it is not in the window.

use std::collections::{BTreeMap, VecDeque};

use crate::block::Slot;
use crate::payload::Payload;

/// Contents of consecutive slots.
#[derive(Clone, Debug)]
pub struct Pin<P> {
    pub first: Slot,
    pub slots: u32,
    /// The group of their PUT.
    pub group: u64,
    pub payload: P,
    /// Their write has ended.
    pub written: bool,
}

/// A slot as one number: sets in their order, slots in theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key(u64);

impl Key {
    fn of(slot: Slot) -> Self {
        Key(u64::from(slot.set) << 32 | u64::from(slot.slot))
    }
}

pub struct Window<P> {
    block_atoms: u64,
    pins: BTreeMap<Key, Pin<P>>,
    /// Keys of the pins in the order of their groups.
    order: VecDeque<(u64, Key)>,
    atoms: u64,
}

impl<P: Payload> Window<P> {
    pub fn new(block_atoms: u32) -> Self {
        Window { block_atoms: u64::from(block_atoms), pins: BTreeMap::new(), order: VecDeque::new(), atoms: 0 }
    }
    pub fn atoms(&self) -> u64 {
        self.atoms
    }
    pub fn is_empty(&self) -> bool {
        self.pins.is_empty()
    }

    pub fn pin(&mut self, first: Slot, slots: u32, group: u64, payload: P) {
        assert!(payload.atoms() == u64::from(slots) * self.block_atoms);
        assert!(self.order.back().is_none_or(|&(last, _)| last <= group), "groups are pinned in their order");
        self.atoms += payload.atoms();
        let key = Key::of(first);
        self.order.push_back((group, key));
        let old = self.pins.insert(key, Pin { first, slots, group, payload, written: false });
        assert!(old.is_none(), "a slot is written once in a life");
    }

    /// The write of a pin has ended. False: it is not pinned.
    pub fn written(&mut self, first: Slot) -> bool {
        self.pins.get_mut(&Key::of(first)).map(|pin| pin.written = true).is_some()
    }
    /// It is being written again.
    pub fn unwritten(&mut self, first: Slot) {
        self.pins.get_mut(&Key::of(first)).expect("what is written again is pinned").written = false;
    }

    fn find(&self, slot: Slot) -> Option<&Pin<P>> {
        let (_, pin) = self.pins.range(..=Key::of(slot)).next_back()?;
        (pin.first.set == slot.set && slot.slot < pin.first.slot + pin.slots).then_some(pin)
    }
    /// The contents of a slot and of those behind it in the same pin, at most `slots`.
    pub fn get(&self, slot: Slot, slots: u32) -> Option<(P, u32)> {
        let pin = self.find(slot)?;
        let skip = slot.slot - pin.first.slot;
        let count = slots.min(pin.slots - skip);
        Some((pin.payload.slice(u64::from(skip) * self.block_atoms, u64::from(count) * self.block_atoms), count))
    }
    /// The slot is not durable yet.
    pub fn holds(&self, slot: Slot) -> bool {
        self.find(slot).is_some()
    }
    /// Of `slots` slots from `slot`, how many come before the first pinned one.
    pub fn unpinned(&self, slot: Slot, slots: u32) -> u32 {
        if self.holds(slot) {
            return 0;
        }
        let next = self.pins.range(Key::of(slot)..Key::of(Slot { slot: slot.slot + slots, ..slot })).next();
        next.map_or(slots, |(_, pin)| pin.first.slot - slot.slot)
    }

    /// Lets go what groups up to `durable` pinned.
    pub fn release(&mut self, durable: u64) {
        while let Some(&(group, key)) = self.order.front()
            && group <= durable
        {
            self.order.pop_front();
            let pin = self.pins.remove(&key).expect("ordered pins exist");
            self.atoms -= pin.payload.atoms();
        }
    }

    /// Everything pinned whose write has ended, to be written again.
    pub fn written_pins(&self) -> impl Iterator<Item = &Pin<P>> {
        self.pins.values().filter(|pin| pin.written)
    }
}

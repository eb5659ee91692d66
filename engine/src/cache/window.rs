//! The window: contents on their way to the SSD, or there and not yet covered by a flush, pinned in memory.
//! Reads of them are served from here; a failed flush writes them again from here. A slot is durable when it is not in the window.
//!
//! Sets are few and their slots are taken in order: each set has a row of its pins, which grows at its end and is let go from its front.
//! (Slots that are overwritten in place come in any order, and are found all the same.)

use std::collections::VecDeque;

use crate::block::Slot;
use crate::number::NumberMap;
use crate::payload::{Payload, bytes_held};
use crate::time::Instant;

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
    /// When they were put there.
    pub at: Instant,
}

pub struct Window<P> {
    block_atoms: u64,
    /// Set → its pins in the order of their slots; none is empty.
    rows: NumberMap<u32, VecDeque<Pin<P>>>,
    /// The first slots of the pins in the order of their groups.
    order: VecDeque<(u64, Slot)>,
    atoms: u64,
    /// Of them, those whose write has not ended.
    unwritten: u64,
}

impl<P: Payload> Window<P> {
    pub fn new(block_atoms: u32) -> Self {
        Window { block_atoms: u64::from(block_atoms), rows: NumberMap::default(), order: VecDeque::new(), atoms: 0, unwritten: 0 }
    }
    pub fn atoms(&self) -> u64 {
        self.atoms
    }
    /// Bytes of memory that it takes.
    pub fn bytes(&self) -> u64 {
        bytes_held(self.pins().map(|pin| &pin.payload))
    }
    /// What is in memory alone.
    pub fn unwritten_atoms(&self) -> u64 {
        self.unwritten
    }
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Since when this slot is pinned.
    pub fn pinned_at(&self, slot: Slot) -> Option<Instant> {
        self.find(slot).map(|pin| pin.at)
    }

    pub fn pin(&mut self, first: Slot, slots: u32, group: u64, payload: P, at: Instant) {
        assert!(payload.atoms() == u64::from(slots) * self.block_atoms);
        assert!(self.order.back().is_none_or(|&(last, _)| last <= group), "groups are pinned in their order");
        self.atoms += payload.atoms();
        self.unwritten += payload.atoms();
        self.order.push_back((group, first));
        let row = self.rows.entry(first.set).or_default();
        let pin = Pin { first, slots, group, payload, written: false, at };
        if row.back().is_none_or(|last| last.first.slot + last.slots <= first.slot) {
            return row.push_back(pin);
        }
        let at = behind(row, first.slot);
        assert!(at == 0 || row[at - 1].first != first, "a slot is written once in a life");
        row.insert(at, pin);
    }

    fn pin_mut(&mut self, first: Slot) -> Option<&mut Pin<P>> {
        let row = self.rows.get_mut(&first.set)?;
        let at = behind(row, first.slot).checked_sub(1)?;
        row.get_mut(at).filter(|pin| pin.first == first)
    }
    /// The write of a pin has ended. False: it is not pinned.
    pub fn written(&mut self, first: Slot) -> bool {
        self.set_written(first, true)
    }
    /// It is being written again.
    pub fn unwritten(&mut self, first: Slot) {
        assert!(self.set_written(first, false), "what is written again is pinned");
    }
    fn set_written(&mut self, first: Slot, written: bool) -> bool {
        let Some(pin) = self.pin_mut(first) else { return false };
        let (before, atoms) = (std::mem::replace(&mut pin.written, written), pin.payload.atoms());
        match (before, written) {
            (false, true) => self.unwritten -= atoms,
            (true, false) => self.unwritten += atoms,
            (true, true) | (false, false) => {}
        }
        true
    }

    #[inline]
    fn find(&self, slot: Slot) -> Option<&Pin<P>> {
        let row = self.rows.get(&slot.set)?;
        let pin = &row[behind(row, slot.slot).checked_sub(1)?];
        (slot.slot < pin.first.slot + pin.slots).then_some(pin)
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
    #[inline]
    pub fn unpinned(&self, slot: Slot, slots: u32) -> u32 {
        if self.holds(slot) {
            return 0;
        }
        let next = self.rows.get(&slot.set).and_then(|row| row.get(behind(row, slot.slot)));
        next.map_or(slots, |pin| slots.min(pin.first.slot - slot.slot))
    }

    /// Lets go what groups up to `durable` pinned.
    pub fn release(&mut self, durable: u64) {
        while let Some(&(group, first)) = self.order.front()
            && group <= durable
        {
            self.order.pop_front();
            let row = self.rows.get_mut(&first.set).expect("ordered pins exist");
            let at = if row[0].first == first { 0 } else { behind(row, first.slot) - 1 };
            let pin = row.remove(at).filter(|pin| pin.first == first).expect("ordered pins exist");
            if row.is_empty() {
                self.rows.remove(&first.set);
            }
            self.atoms -= pin.payload.atoms();
            self.unwritten -= if pin.written { 0 } else { pin.payload.atoms() };
        }
    }

    /// Everything pinned, in the order in which it was.
    pub fn pins(&self) -> impl Iterator<Item = &Pin<P>> {
        self.order.iter().filter_map(|&(_, first)| self.find(first))
    }

    /// Everything pinned whose write has ended, to be written again.
    pub fn written_pins(&self) -> impl Iterator<Item = &Pin<P>> {
        self.order.iter().filter_map(|&(_, first)| self.find(first)).filter(|pin| pin.written)
    }
}

/// How many pins of a row begin at `slot` or before. Where each has one slot it is as many as there are slots from the first one on; never more.
#[inline]
fn behind<P>(row: &VecDeque<Pin<P>>, slot: u32) -> usize {
    let most = row.len().min((slot + 1).saturating_sub(row[0].first.slot) as usize);
    if most == 0 || row[most - 1].first.slot <= slot { most } else { row.partition_point(|pin| pin.first.slot <= slot) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::Checksum;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Says which pin it is of, and how much of it was cut off in front.
    #[derive(Clone, Debug, PartialEq)]
    struct Part {
        pin: u64,
        skip: u64,
        atoms: u64,
    }

    impl Payload for Part {
        fn atoms(&self) -> u64 {
            self.atoms
        }
        fn slice(&self, start: u64, atoms: u64) -> Self {
            Part { skip: self.skip + start, atoms, ..*self }
        }
        fn zero(_: u64) -> Self {
            unreachable!("a window makes no contents")
        }
        fn concat(_: &[Self]) -> Self {
            unreachable!("a window joins nothing")
        }
        fn checksum(&self, _: Checksum) -> u32 {
            unreachable!("a window verifies nothing")
        }
        fn from_bytes(_: &[u8]) -> Self {
            unreachable!("a window holds no metadata")
        }
        fn append_to(&self, _: &mut Vec<u8>) {
            unreachable!("a window holds no metadata")
        }
    }

    proptest! {
        /// Against the naive thing: a map from slot to pin.
        #[test]
        fn the_window_is_a_map(steps in prop::collection::vec((0u32..3, 0u32..16, 1u32..5, any::<bool>(), 0u64..8), 1..60)) {
            let mut window = Window::new(8);
            let mut slots: BTreeMap<(u32, u32), (u64, u32)> = BTreeMap::new();
            for (group, (set, slot, count, flushes, age)) in (1u64..).zip(steps) {
                let first = Slot { set, slot };
                let of_pin = slot..slot + count;
                if of_pin.clone().all(|slot| !slots.contains_key(&(set, slot))) {
                    window.pin(first, count, group, Part { pin: group, skip: 0, atoms: u64::from(count) * 8 }, Instant::ZERO);
                    slots.extend(of_pin.map(|slot| ((set, slot), (group, slot - first.slot))));
                    prop_assert!(window.written(first));
                }
                if flushes {
                    window.release(group.saturating_sub(age));
                    slots.retain(|_, &mut (of, _)| of > group.saturating_sub(age));
                }
                prop_assert_eq!(window.atoms(), slots.len() as u64 * 8);
                prop_assert_eq!(window.is_empty(), slots.is_empty());
                let unwritten: u64 = window.pins().filter(|pin| !pin.written).map(|pin| pin.payload.atoms).sum();
                prop_assert_eq!(window.unwritten_atoms(), unwritten);
                prop_assert_eq!(window.written_pins().count(), slots.values().filter(|&&(_, skip)| skip == 0).count());
                for (set, slot) in (0..3).flat_map(|set| (0..20).map(move |slot| (set, slot))) {
                    let expected = slots.get(&(set, slot)).map(|&(pin, skip)| (pin, u64::from(skip) * 8));
                    let got = window.get(Slot { set, slot }, 1).map(|(part, _)| (part.pin, part.skip));
                    prop_assert_eq!(got, expected);
                    let unpinned = (slot..slot + 4).take_while(|&slot| !slots.contains_key(&(set, slot))).count();
                    prop_assert_eq!(window.unpinned(Slot { set, slot }, 4), unpinned as u32);
                }
            }
        }
    }
}

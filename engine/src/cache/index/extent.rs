//! Eight bytes that say where a run of blocks lies. Millions of them are the index, so every bit has its place:
//!
//! ```text
//! 63           49 48        38 37                         0
//! | first block  | blocks − 1 | number of its slot         |   blocks are counted from the start of a region,
//! | 15           | 11         | 38                         |   slots through the whole cache
//! ```
//! An extent stays within one origin set and within one cache set. Extents order as their first blocks do.

use crate::block::Slot;

/// Origin sets in a region, as a power of two: 16 share one array. With fewer the arrays themselves would weigh more than what they say
/// of scattered blocks; with more an insertion would move too much.
pub(super) const REGION_BITS: u32 = 4;
pub(super) const REGION_SETS: usize = 1 << REGION_BITS;

const SLOT_BITS: u32 = 38;
const BLOCKS_BITS: u32 = 11;
const FIRST_SHIFT: u32 = SLOT_BITS + BLOCKS_BITS;

/// A set has 2,048 slots at most.
const SET_BITS_MAX: u32 = BLOCKS_BITS;
const _: () = assert!(FIRST_SHIFT + SET_BITS_MAX + REGION_BITS == u64::BITS);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Extent(u64);

impl Extent {
    /// `blocks` is at least one.
    #[inline]
    pub fn new(first: u32, blocks: u32, slot: u64) -> Self {
        debug_assert!(first < 1 << (u64::BITS - FIRST_SHIFT) && blocks - 1 < 1 << BLOCKS_BITS && slot < 1 << SLOT_BITS);
        Extent(u64::from(first) << FIRST_SHIFT | u64::from(blocks - 1) << SLOT_BITS | slot)
    }
    #[inline]
    pub fn first(self) -> u32 {
        (self.0 >> FIRST_SHIFT) as u32
    }
    #[inline]
    pub fn blocks(self) -> u32 {
        (self.0 >> SLOT_BITS) as u32 % (1 << BLOCKS_BITS) + 1
    }
    #[inline]
    pub fn end(self) -> u32 {
        self.first() + self.blocks()
    }
    /// Number of the first slot.
    #[inline]
    pub fn slot(self) -> u64 {
        self.0 % (1 << SLOT_BITS)
    }
    /// The part of the extent in `start..end`.
    pub fn clip(self, start: u32, end: u32) -> Extent {
        let first = self.first().max(start);
        Extent::new(first, self.end().min(end) - first, self.slot() + u64::from(first - self.first()))
    }
    /// Both as one, where `next` goes on in the next slot, and neither an origin set nor a cache set ends between them.
    #[inline]
    pub fn joined(self, next: Extent, shape: Shape) -> Option<Extent> {
        let goes_on = self.end() == next.first() && self.slot() + u64::from(self.blocks()) == next.slot();
        let border = shape.set_blocks() - 1;
        let within = u64::from(next.first()) & border != 0 && next.slot() & border != 0;
        (goes_on && within).then(|| Extent::new(self.first(), self.blocks() + next.blocks(), self.slot()))
    }
}

/// How blocks and slots are numbered: sets have a power of two of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shape {
    /// Blocks of an origin set, and slots of a cache set, as a power of two.
    pub set_bits: u32,
}

impl Shape {
    pub fn new(set_slots: u32) -> Self {
        assert!(set_slots.is_power_of_two(), "sets have a power of two of slots");
        assert!(set_slots.ilog2() <= SET_BITS_MAX, "sets have 2,048 slots at most");
        Shape { set_bits: set_slots.ilog2() }
    }
    #[inline]
    pub fn set_blocks(self) -> u64 {
        1 << self.set_bits
    }
    /// Bits of a block's place in its region.
    #[inline]
    pub fn region_bits(self) -> u32 {
        self.set_bits + REGION_BITS
    }
    #[inline]
    pub fn number(self, slot: Slot) -> u64 {
        let number = u64::from(slot.set) << self.set_bits | u64::from(slot.slot);
        assert!(number < 1 << SLOT_BITS, "a cache has less than 2^38 slots");
        number
    }
    #[inline]
    pub fn slot(self, number: u64) -> Slot {
        Slot { set: (number >> self.set_bits) as u32, slot: (number & (self.set_blocks() - 1)) as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_extent_says_what_it_was_told(first in 0u32..1 << 15, blocks in 1u32..=1 << 11, slot in 0u64..1 << 38) {
            let extent = Extent::new(first, blocks, slot);
            prop_assert_eq!((extent.first(), extent.blocks(), extent.slot()), (first, blocks, slot));
        }

        #[test]
        fn extents_order_by_their_first_blocks(a in 0u32..1 << 15, b in 0u32..1 << 15, blocks in 1u32..=1 << 11, slot in 0u64..1 << 38) {
            prop_assume!(a < b);
            prop_assert!(Extent::new(a, blocks, slot) < Extent::new(b, 1, 0));
        }
    }

    #[test]
    fn the_halves_of_an_extent_join_again() {
        let shape = Shape::new(64);
        let whole = Extent::new(70, 20, 128 + 3);
        assert_eq!(whole.clip(70, 75).joined(whole.clip(75, 90), shape), Some(whole));
        assert_eq!(whole.clip(70, 75).joined(whole.clip(76, 90), shape), None);
    }

    #[test]
    fn extents_do_not_join_across_the_borders_of_sets() {
        let shape = Shape::new(64);
        assert_eq!(Extent::new(60, 4, 0).joined(Extent::new(64, 4, 4), shape), None);
        assert_eq!(Extent::new(0, 4, 60).joined(Extent::new(4, 4, 64), shape), None);
    }
}

//! A bitmap over the slots of one set: bit i of word i / 64 is slot i. Bits beyond the last slot are zero.

/// Slots of one set. The length is that of the set, rounded up to 64. All or none of them, as after a long write, take no memory of their own
/// ([`Bits::settle`]).
#[derive(Clone, Debug)]
pub enum Bits {
    Uniform { slots: u32, set: bool },
    Mixed(Box<[u64]>),
}

impl Bits {
    /// No slot, of a set with `slots` slots.
    pub fn new(slots: u32) -> Self {
        Bits::Uniform { slots, set: false }
    }

    pub fn from_words(words: &[u64]) -> Self {
        Bits::Mixed(words.into())
    }

    /// Length in words of a bitmap over `slots` slots.
    pub const fn words_for(slots: u32) -> usize {
        slots.div_ceil(64) as usize
    }

    /// Length in words.
    pub fn word_count(&self) -> usize {
        match self {
            Bits::Uniform { slots, .. } => Bits::words_for(*slots),
            Bits::Mixed(words) => words.len(),
        }
    }

    fn word(&self, index: usize) -> u64 {
        match self {
            Bits::Uniform { set: false, .. } => 0,
            Bits::Uniform { slots, set: true } => u64::MAX >> (64 * (index as u32 + 1)).saturating_sub(*slots),
            Bits::Mixed(words) => words[index],
        }
    }

    pub fn words(&self) -> impl DoubleEndedIterator<Item = u64> + ExactSizeIterator + '_ {
        (0..self.word_count()).map(|index| self.word(index))
    }

    pub fn get(&self, slot: u32) -> bool {
        match self {
            Bits::Uniform { set, .. } => *set,
            Bits::Mixed(words) => words[slot as usize / 64] >> (slot % 64) & 1 == 1,
        }
    }

    pub fn set(&mut self, slot: u32) {
        if !self.get(slot) {
            self.words_mut()[slot as usize / 64] |= 1 << (slot % 64);
        }
    }

    pub fn clear(&mut self, slot: u32) {
        if self.get(slot) {
            self.words_mut()[slot as usize / 64] &= !(1 << (slot % 64));
        }
    }

    /// Adds `count` slots from `first` on.
    pub fn set_range(&mut self, first: u32, count: u32) {
        match self {
            Bits::Uniform { set: true, .. } => {}
            Bits::Uniform { slots, set } if *slots == count => *set = true,
            _ if count == 1 => self.words_mut()[first as usize / 64] |= 1 << (first % 64),
            _ => masks(first, count).for_each(|(index, mask)| self.words_mut()[index] |= mask),
        }
    }

    pub fn clear_range(&mut self, first: u32, count: u32) {
        match self {
            Bits::Uniform { set: false, .. } => {}
            Bits::Uniform { slots, set } if *slots == count => *set = false,
            _ if count == 1 => self.words_mut()[first as usize / 64] &= !(1 << (first % 64)),
            _ => masks(first, count).for_each(|(index, mask)| self.words_mut()[index] &= !mask),
        }
    }

    /// How many of `count` slots from `first` on are in it.
    pub fn count_range(&self, first: u32, count: u32) -> u32 {
        match self {
            Bits::Uniform { set, .. } => count * u32::from(*set),
            Bits::Mixed(_) if count == 1 => u32::from(self.get(first)),
            Bits::Mixed(words) => masks(first, count).map(|(index, mask)| (words[index] & mask).count_ones()).sum(),
        }
    }

    fn words_mut(&mut self) -> &mut [u64] {
        if let Bits::Uniform { .. } = self {
            *self = Bits::Mixed(self.words().collect());
        }
        match self {
            Bits::Mixed(words) => words,
            Bits::Uniform { .. } => unreachable!("mixed from here on"),
        }
    }

    /// Gives its memory back: all `slots` slots of the set are in it, or none is.
    pub fn settle(&mut self, slots: u32, set: bool) {
        debug_assert!(self.count() == if set { slots } else { 0 });
        *self = Bits::Uniform { slots, set };
    }

    pub fn count(&self) -> u32 {
        self.words().map(u64::count_ones).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.words().all(|word| word == 0)
    }

    /// The slots, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words().enumerate().flat_map(|(index, word)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                let bit = (rest != 0).then(|| rest.trailing_zeros())?;
                rest &= rest - 1;
                Some(index as u32 * 64 + bit)
            })
        })
    }

    /// The highest slot.
    pub fn last(&self) -> Option<u32> {
        let (index, word) = self.words().enumerate().rfind(|&(_, word)| word != 0)?;
        Some(index as u32 * 64 + word.ilog2())
    }

    /// Is every slot of `other` in this one?
    pub fn contains(&self, other: &Bits) -> bool {
        assert_eq!(self.word_count(), other.word_count(), "bitmaps of different sets");
        self.words().zip(other.words()).all(|(one, two)| two & !one == 0)
    }

    pub fn union(&self, other: &Bits) -> Bits {
        self.combine(other, |one, two| one | two)
    }

    /// Slots of the union.
    pub fn union_count(&self, other: &Bits) -> u32 {
        self.words().zip(other.words()).map(|(one, two)| (one | two).count_ones()).sum()
    }

    pub fn intersection(&self, other: &Bits) -> Bits {
        self.combine(other, |one, two| one & two)
    }

    pub fn without(&self, other: &Bits) -> Bits {
        self.combine(other, |one, two| one & !two)
    }

    fn combine(&self, other: &Bits, word: impl Fn(u64, u64) -> u64) -> Bits {
        assert_eq!(self.word_count(), other.word_count(), "bitmaps of different sets");
        Bits::Mixed(self.words().zip(other.words()).map(|(one, two)| word(one, two)).collect())
    }

    /// Takes over at most the words that there are.
    pub(super) fn fill_words(&mut self, words: impl Iterator<Item = u64>) {
        self.words_mut().iter_mut().zip(words).for_each(|(word, value)| *word = value);
    }

    /// Is it of the length of a set of `slots` slots, without a bit beyond the last one?
    pub(super) fn fits(&self, slots: u32) -> bool {
        let in_last = slots % 64;
        self.word_count() == Bits::words_for(slots) && (in_last == 0 || self.word(self.word_count() - 1) >> in_last == 0)
    }

    /// Bytes of its own on the heap.
    pub fn bytes(&self) -> usize {
        match self {
            Bits::Uniform { .. } => 0,
            Bits::Mixed(words) => size_of_val(&words[..]),
        }
    }
}

/// The words that hold `count` slots from `first` on, and which of their bits.
fn masks(first: u32, count: u32) -> impl Iterator<Item = (usize, u64)> {
    let end = first + count;
    (first / 64..end.div_ceil(64)).map(move |index| {
        let (low, high) = (first.max(index * 64), end.min(index * 64 + 64));
        (index as usize, u64::MAX >> (64 - (high - low)) << (low - index * 64))
    })
}

impl PartialEq for Bits {
    fn eq(&self, other: &Bits) -> bool {
        self.words().eq(other.words())
    }
}

impl Eq for Bits {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn bits(slots: u32, members: &BTreeSet<u32>) -> Bits {
        let mut bits = Bits::new(slots);
        members.iter().for_each(|&slot| bits.set(slot));
        bits
    }

    proptest! {
        #[test]
        fn bits_behave_like_a_set_of_numbers(
            one in proptest::collection::btree_set(0..200u32, 0..80),
            two in proptest::collection::btree_set(0..200u32, 0..80),
        ) {
            let (a, b) = (bits(200, &one), bits(200, &two));
            prop_assert_eq!(a.count() as usize, one.len());
            prop_assert_eq!(a.is_empty(), one.is_empty());
            prop_assert!((0..200).all(|slot| a.get(slot) == one.contains(&slot)));
            prop_assert_eq!(a.iter().collect::<BTreeSet<_>>(), one.clone());
            prop_assert_eq!(a.union(&b), bits(200, &(&one | &two)));
            prop_assert_eq!(a.union_count(&b) as usize, (&one | &two).len());
            prop_assert_eq!(a.intersection(&b), bits(200, &(&one & &two)));
            prop_assert_eq!(a.without(&b), bits(200, &(&one - &two)));
            prop_assert_eq!(a.contains(&b), two.is_subset(&one));
            let mut cleared = a.clone();
            one.iter().for_each(|&slot| cleared.clear(slot));
            prop_assert_eq!(&cleared, &Bits::new(200));
            prop_assert_eq!(Bits::from_words(&a.words().collect::<Vec<_>>()), a);
            cleared.settle(200, false);
            prop_assert_eq!(cleared, Bits::new(200));
        }

        #[test]
        fn a_range_is_all_of_its_slots(steps in prop::collection::vec((0u32..150, 1u32..150, any::<bool>()), 1..12), slots in 150u32..200) {
            let (mut bits, mut expected) = (Bits::new(slots), BTreeSet::new());
            // The last one is of all slots.
            for (first, count, set) in steps.into_iter().map(|(first, count, set)| (first, count.min(slots - first), set)).chain([(0, slots, true)]) {
                prop_assert_eq!(bits.count_range(first, count) as usize, expected.range(first..first + count).count());
                match set {
                    true => bits.set_range(first, count),
                    false => bits.clear_range(first, count),
                }
                for slot in first..first + count {
                    if set { expected.insert(slot) } else { expected.remove(&slot) };
                }
                prop_assert!(bits.iter().eq(expected.iter().copied()));
            }
            bits.settle(slots, true);
            bits.clear_range(0, slots);
            prop_assert!(bits.is_empty() && bits.bytes() == 0);
        }

        #[test]
        fn all_slots_are_the_same_with_and_without_memory(slots in 1u32..300, cleared in 0u32..300) {
            let cleared = cleared % slots;
            let each = bits(slots, &(0..slots).collect());
            let mut all = each.clone();
            all.settle(slots, true);
            prop_assert!(all.bytes() == 0 && all.fits(slots) && all.last() == Some(slots - 1));
            prop_assert_eq!(&all, &each);
            prop_assert!((0..slots).all(|slot| all.get(slot)));
            all.clear(cleared);
            prop_assert_eq!(all, bits(slots, &(0..slots).filter(|&slot| slot != cleared).collect()));
        }
    }

    #[test]
    fn a_bit_beyond_the_last_slot_does_not_fit() {
        assert!(bits(64, &BTreeSet::from([63])).fits(64));
        assert!(bits(64, &BTreeSet::from([7])).fits(8));
        assert!(!bits(64, &BTreeSet::from([8])).fits(8));
        assert!(!Bits::new(128).fits(64));
    }
}

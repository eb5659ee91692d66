//! Leaves: what is known of 64 neighbouring blocks. Where few of them are in memory, a leaf of 4 or of 16 entries does.
//!
//! Entries change in place, under the lock of the blocks, while readers look. In a small leaf a key is written once: a place that is empty
//! again waits for its own key. So whoever has found a key has found the right entry. When there is no place left, or few are used, another
//! leaf replaces it.

use super::node::{FANOUT, FEW, Few, Kind, Node, SEVERAL, Several};
use crate::memory::Frame;
use crate::sync::{AtomicU8, AtomicU32, Ordering, prefetch};

/// A block's page: its frame, and whether some of its atoms are not valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry(u32);

/// Frames are numbered below this.
pub const FRAMES_MAX: usize = (1 << 31) - 1;
const HAS_HOLES: u32 = 1 << 31;

impl Entry {
    pub const NONE: Entry = Entry(0);

    pub fn new(frame: Frame, has_holes: bool) -> Entry {
        Entry((frame.0 + 1) | if has_holes { HAS_HOLES } else { 0 })
    }

    #[inline(always)]
    pub fn frame(self) -> Option<Frame> {
        (self.0 & !HAS_HOLES).checked_sub(1).map(Frame)
    }

    #[inline(always)]
    pub fn has_holes(self) -> bool {
        self.0 & HAS_HOLES != 0
    }
}

/// A leaf with a place for each of its blocks.
#[repr(align(8))]
pub struct Full {
    number: u64,
    entries: [AtomicU32; FANOUT],
}

/// A leaf with `N` places.
#[repr(align(8))]
pub struct Small<const N: usize> {
    number: u64,
    keys: [AtomicU8; N],
    entries: [AtomicU32; N],
}

/// In place of a key: not used yet.
const NO_KEY: u8 = u8::MAX;

#[derive(Clone, Copy)]
pub enum Leaf<'p> {
    Few(&'p Few),
    Several(&'p Several),
    Full(&'p Full),
}

/// The smallest leaf that holds `entries`, none of which is [`Entry::NONE`].
pub fn smallest(number: u64, entries: &[(usize, Entry)]) -> Node {
    if entries.len() <= FEW {
        Node::from_box(Few::boxed(number, entries), Kind::Few)
    } else if entries.len() <= SEVERAL {
        Node::from_box(Several::boxed(number, entries), Kind::Several)
    } else {
        Node::from_box(Full::boxed(number, entries), Kind::Full)
    }
}

impl Full {
    fn boxed(number: u64, entries: &[(usize, Entry)]) -> Box<Full> {
        let leaf = Full { number, entries: std::array::from_fn(|_| AtomicU32::new(0)) };
        entries.iter().for_each(|&(place, entry)| leaf.entries[place].store(entry.0, Ordering::Relaxed));
        Box::new(leaf)
    }
}

impl<const N: usize> Small<N> {
    fn boxed(number: u64, entries: &[(usize, Entry)]) -> Box<Small<N>> {
        let key = |place: usize| entries.get(place).map_or(NO_KEY, |&(key, _)| key as u8);
        let entry = |place: usize| entries.get(place).map_or(Entry::NONE, |&(_, entry)| entry);
        Box::new(Small {
            number,
            keys: std::array::from_fn(|place| AtomicU8::new(key(place))),
            entries: std::array::from_fn(|place| AtomicU32::new(entry(place).0)),
        })
    }

    /// Acquire: the entry of a key that is seen is seen as well.
    #[inline(always)]
    fn place(&self, key: usize) -> Option<usize> {
        self.keys.iter().position(|other| other.load(Ordering::Acquire) == key as u8)
    }

    fn set(&self, key: usize, entry: Entry) -> bool {
        if let Some(place) = self.place(key) {
            self.entries[place].store(entry.0, Ordering::Release);
            return true;
        }
        let Some(place) = self.place(NO_KEY.into()) else { return false };
        self.entries[place].store(entry.0, Ordering::Release);
        self.keys[place].store(key as u8, Ordering::Release);
        true
    }
}

impl<'p> Leaf<'p> {
    #[inline(always)]
    pub fn number(self) -> u64 {
        match self {
            Leaf::Few(leaf) => leaf.number,
            Leaf::Several(leaf) => leaf.number,
            Leaf::Full(leaf) => leaf.number,
        }
    }

    #[inline(always)]
    pub fn get(self, key: usize) -> Entry {
        // Acquire: a page that is found is found filled.
        Entry(match self {
            Leaf::Few(leaf) => leaf.place(key).map_or(0, |place| leaf.entries[place].load(Ordering::Acquire)),
            Leaf::Several(leaf) => leaf.place(key).map_or(0, |place| leaf.entries[place].load(Ordering::Acquire)),
            Leaf::Full(leaf) => leaf.entries[key].load(Ordering::Acquire),
        })
    }

    /// Asks for the line that [`Leaf::get`] will want.
    #[inline(always)]
    pub fn prefetch(self, key: usize) {
        match self {
            Leaf::Few(leaf) => prefetch(leaf),
            Leaf::Several(leaf) => prefetch(leaf),
            Leaf::Full(leaf) => prefetch(&leaf.entries[key]),
        }
    }

    /// False: no place for another key. The caller has the lock of the blocks.
    pub fn set(self, key: usize, entry: Entry) -> bool {
        match self {
            Leaf::Few(leaf) => leaf.set(key, entry),
            Leaf::Several(leaf) => leaf.set(key, entry),
            Leaf::Full(leaf) => {
                leaf.entries[key].store(entry.0, Ordering::Release);
                true
            }
        }
    }

    /// Keys and entries of the pages that are here.
    pub fn iter(self) -> impl Iterator<Item = (usize, Entry)> + 'p {
        (0..FANOUT).map(move |key| (key, self.get(key))).filter(|&(_, entry)| entry != Entry::NONE)
    }

    pub fn count(self) -> usize {
        let used = |entries: &[AtomicU32]| entries.iter().filter(|entry| entry.load(Ordering::Relaxed) != 0).count();
        match self {
            Leaf::Few(leaf) => used(&leaf.entries),
            Leaf::Several(leaf) => used(&leaf.entries),
            Leaf::Full(leaf) => used(&leaf.entries),
        }
    }

    /// Whether `count` entries are so few that a smaller leaf holds them and as many again, or none is needed.
    pub fn is_sparse(self, count: usize) -> bool {
        match self {
            Leaf::Few(_) => count == 0,
            Leaf::Several(_) => count <= FEW / 2,
            Leaf::Full(_) => count <= SEVERAL / 2,
        }
    }
}

//! Which atoms of a page are valid: a write to part of a block that is not in memory fetches nothing.

use std::ops::{BitOr, Range};

/// A set of a page's atoms, at most 128 of them: bit `i` is atom `i`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Atoms(pub u128);

impl Atoms {
    pub const NONE: Atoms = Atoms(0);

    /// The atoms of `range`.
    pub fn of(range: Range<usize>) -> Atoms {
        assert!(range.start <= range.end && range.end <= 128, "atoms {range:?}");
        match range.len() {
            0 => Atoms::NONE,
            count => Atoms((u128::MAX >> (128 - count)) << range.start),
        }
    }

    pub fn contains(self, other: Atoms) -> bool {
        self.0 & other.0 == other.0
    }

    pub fn without(self, other: Atoms) -> Atoms {
        Atoms(self.0 & !other.0)
    }

    /// Its atoms in ascending order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..128).filter(move |&atom| self.0 >> atom & 1 == 1)
    }
}

impl BitOr for Atoms {
    type Output = Atoms;
    fn bitor(self, other: Atoms) -> Atoms {
        Atoms(self.0 | other.0)
    }
}

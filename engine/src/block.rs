//! Addresses and extents of space. The atom (512 bytes) is the unit of validity and of every device address;
//! the block (4 KiB by default) is the unit of allocation; the set (1 MiB by default) is the unit of mapping.

/// Bytes of an atom.
pub const ATOM_BYTES: u64 = 512;
/// Bytes of a metadata page on the SSD.
pub const PAGE_BYTES: u64 = 4096;
/// Atoms of a metadata page.
pub const PAGE_ATOMS: u64 = PAGE_BYTES / ATOM_BYTES;
/// The largest block, in atoms (64 KiB): an [`Atoms`] mask has one bit for each.
pub const BLOCK_ATOMS_MAX: u32 = 128;

/// A block's number on the volume (and on the origin: they share addresses).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block(pub u64);

/// A contiguous run of atoms on one device (or on the volume).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// First atom.
    pub start: u64,
    /// Length in atoms.
    pub atoms: u64,
}

impl Span {
    pub const fn new(start: u64, atoms: u64) -> Self {
        Span { start, atoms }
    }
    pub const fn end(self) -> u64 {
        self.start + self.atoms
    }
    pub const fn is_empty(self) -> bool {
        self.atoms == 0
    }
    pub const fn bytes(self) -> u64 {
        self.atoms * ATOM_BYTES
    }
    /// Byte offset of the first atom.
    pub const fn offset(self) -> u64 {
        self.start * ATOM_BYTES
    }
    pub fn overlaps(self, other: Span) -> bool {
        self.start < other.end() && other.start < self.end()
    }
    pub fn contains(self, other: Span) -> bool {
        self.start <= other.start && other.end() <= self.end()
    }
    pub fn intersection(self, other: Span) -> Span {
        let start = self.start.max(other.start);
        Span::new(start, self.end().min(other.end()).saturating_sub(start))
    }
}

/// A place in the cache: cache set and slot in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    pub set: u32,
    pub slot: u32,
}

/// Which atoms of one block are valid: bit i is atom i.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Atoms(pub u128);

impl Atoms {
    pub const NONE: Atoms = Atoms(0);
    /// The first `count` atoms (a whole block of `count` atoms).
    pub const fn first(count: u32) -> Self {
        if count >= 128 { Atoms(u128::MAX) } else { Atoms((1u128 << count) - 1) }
    }
    /// Atoms `start..end` of a block.
    pub fn range(start: u32, end: u32) -> Self {
        assert!(start <= end && end <= BLOCK_ATOMS_MAX);
        Atoms(Atoms::first(end).0 & !Atoms::first(start).0)
    }
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
    pub fn contains(self, other: Atoms) -> bool {
        self.0 & other.0 == other.0
    }
    pub fn union(self, other: Atoms) -> Self {
        Atoms(self.0 | other.0)
    }
    pub fn intersection(self, other: Atoms) -> Self {
        Atoms(self.0 & other.0)
    }
    pub fn without(self, other: Atoms) -> Self {
        Atoms(self.0 & !other.0)
    }
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }
    /// The runs of set bits as `start..end`, ascending.
    pub fn runs(self) -> impl Iterator<Item = std::ops::Range<u32>> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            if rest == 0 {
                return None;
            }
            let start = rest.trailing_zeros();
            let length = (!(rest >> start)).trailing_zeros().min(128 - start);
            rest &= !Atoms::range(start, start + length).0;
            Some(start..start + length)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_a_mask_cover_it() {
        for mask in [0u128, 1, 0b1011_0110, u128::MAX, 1 << 127, (1 << 127) | 1, 0xff00_ff00] {
            let again = Atoms(mask).runs().fold(Atoms::NONE, |all, run| all.union(Atoms::range(run.start, run.end)));
            assert_eq!(again, Atoms(mask));
        }
    }
}

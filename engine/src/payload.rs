//! What travels: contents of whole atoms. The engine cuts, joins, checks and forwards it, and never looks inside.
//! In production a `Run` of an aligned slab; in the simulator a stamp per atom, from which the oracle reads meaning.

use std::borrow::Cow;
use std::ops::Range;

use smallvec::SmallVec;

use crate::block::{ATOM_BYTES, Span};

/// By what contents are told from others, in 32 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// Their CRC-32C. It does not tell contents that end with their own CRC-32C from others that do: extent blocks of ext4 that belong to one file.
    Crc,
    /// The CRC-32C of the contents and, behind them, of the sum of their words: little-endian, of 8 bytes, modulo 2^64. What is the same to the one
    /// is not to the other, which carries, but for one case in 2^32, or for the same words in another order.
    #[default]
    CrcAndSum,
}

impl Checksum {
    /// Of contents with this CRC-32C, and this sum of their words.
    #[inline]
    pub fn of(self, crc: u32, sum: impl FnOnce() -> u64) -> u32 {
        match self {
            Checksum::Crc => crc,
            Checksum::CrcAndSum => crc32c::crc32c_append(crc, &sum().to_le_bytes()),
        }
    }
}

/// Payloads one after the other: mostly one, which takes no memory of its own.
pub type Pieces<P> = SmallVec<[P; 1]>;

/// Contents of a whole number of atoms; cheap to clone and to cut (a shared reference and a range).
/// Immutable: to change is to build another one. Never empty.
pub trait Payload: Clone {
    /// Bytes that a page of memory takes for each atom.
    const PAGE_ATOM_BYTES: usize = ATOM_BYTES as usize;
    /// Length in atoms.
    fn atoms(&self) -> u64;
    /// `atoms` zeroed atoms.
    fn zero(atoms: u64) -> Self;
    /// Which atoms of the zeros it is that everybody shares, if it is of those. None: what it holds is its own.
    fn shared_zeros(&self) -> Option<Range<u64>> {
        None
    }
    /// The atoms `start..start + atoms` of this payload, one at least; no copy.
    fn slice(&self, start: u64, atoms: u64) -> Self;
    /// One payload of all the parts in order. Copies, unless there is one part.
    fn concat(parts: &[Self]) -> Self;
    /// Of the contents (in the simulator: of the bytes that the stamps stand for).
    fn checksum(&self, by: Checksum) -> u32;
    /// The checksums of its pieces of `atoms` atoms each, in order.
    fn checksums(&self, by: Checksum, atoms: u64, mut each: impl FnMut(u32)) {
        if self.atoms() == atoms {
            return each(self.checksum(by));
        }
        assert!(self.atoms().is_multiple_of(atoms), "whole pieces");
        (0..self.atoms() / atoms).for_each(|piece| each(self.slice(piece * atoms, atoms).checksum(by)));
    }
    /// Metadata: the length of `bytes` is a whole number of atoms.
    fn from_bytes(bytes: &[u8]) -> Self;
    /// Metadata: the contents as bytes, appended to `out`.
    fn append_to(&self, out: &mut Vec<u8>);
    /// The contents as pages of memory keep them: [`Payload::PAGE_ATOM_BYTES`] for each atom.
    fn page_bytes(&self) -> Cow<'_, [u8]> {
        self.bytes()
    }
    /// The atoms `skip..skip + atoms` of what these pages hold one after the other. Copies.
    fn from_pages(pages: &[&[u8]], skip: u64, atoms: u64) -> Self {
        let bytes = pages.concat();
        Self::from_bytes(&bytes[(skip * ATOM_BYTES) as usize..][..(atoms * ATOM_BYTES) as usize])
    }
    /// Metadata: the contents as bytes, where they are if they are bytes.
    fn bytes(&self) -> Cow<'_, [u8]> {
        let mut bytes = Vec::with_capacity((self.atoms() * ATOM_BYTES) as usize);
        self.append_to(&mut bytes);
        bytes.into()
    }
}

/// Answers reads with pages of memory as they are. Where nobody does, they are copied.
pub trait Lessor<P> {
    /// What reads that have come at once are answered with, each if all of it is in memory. Its pages stay what they are as long as it is there:
    /// whoever gets it sends it at once, or copies it. `None`: it is too much for that, or some of before is not gone yet.
    fn lease(&mut self, spans: &[Span]) -> Option<Vec<Option<Pieces<P>>>>;
    /// What was leased has been sent: pages may go, if all of it has.
    fn end(&mut self);
}

/// Bytes of memory that these payloads hold: of zeros that they share, as many as there are once.
pub fn bytes_held<'p, P: Payload + 'p>(payloads: impl Iterator<Item = &'p P>) -> u64 {
    let (mut own, mut zeros) = (0, 0);
    for payload in payloads {
        match payload.shared_zeros() {
            Some(atoms) => zeros = zeros.max(atoms.end),
            None => own += payload.atoms(),
        }
    }
    (own + zeros) * ATOM_BYTES
}

//! The simulator's payload: a stamp of 64 bits in place of the 512 bytes of an atom, so that gigabytes cost nothing, bit rot
//! is a changed stamp, and the oracle reads in any atom which write it came from. Metadata travels as real bytes.
//!
//! The two forms are one contents: every stamp has a byte image, that image reads as the same stamp, and the checksum of
//! contents does not depend on the form they are in. Bytes that are no image read as a hash with [`HASHED`] set, which no
//! client's stamp ever has. A zeroed atom is stamp 0 and 512 zero bytes.

mod image;

use std::borrow::Cow;
use std::ops::Range;
use std::rc::Rc;
use tidegate_engine::block::ATOM_BYTES;
use tidegate_engine::payload::{Checksum, Payload};

const ATOM: usize = ATOM_BYTES as usize;
/// Set in the stamp of bytes that are no stamp's image.
pub const HASHED: u64 = 1 << 63;
/// Low bits of a stamp: the atom of the volume it was written to (volumes of up to 2 TiB).
const ATOM_BITS: u32 = 32;

/// The stamp that write number `write` (from 1; 0 is what the origin held at first) puts on `atom` of the volume.
pub fn stamp(write: u64, atom: u64) -> u64 {
    assert!(atom + 1 < 1 << ATOM_BITS && write < 1 << (63 - ATOM_BITS));
    write << ATOM_BITS | (atom + 1)
}

/// What a stamp says: write and atom; none of zeros and of anything that no client wrote.
pub fn meaning(stamp: u64) -> Option<(u64, u64)> {
    let atom = stamp & ((1 << ATOM_BITS) - 1);
    (stamp & HASHED == 0 && atom != 0).then(|| (stamp >> ATOM_BITS, atom - 1))
}

/// Contents of a whole number of atoms, as stamps or as bytes.
#[derive(Clone)]
pub struct Stamps {
    form: Form,
    /// First atom in the form, and how many.
    start: u32,
    atoms: u32,
}

/// Short: assertions print operations.
impl std::fmt::Debug for Stamps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} atoms from {:x?}", self.atoms, self.stamps().next())
    }
}

#[derive(Clone)]
enum Form {
    Zero,
    Stamps(Rc<[u64]>),
    Bytes(Rc<[u8]>),
}

impl Stamps {
    pub fn from_stamps(stamps: &[u64]) -> Self {
        Stamps { form: Form::Stamps(stamps.into()), start: 0, atoms: stamps.len() as u32 }
    }

    /// The contents that write number `write` puts on `atoms` atoms from `start`.
    pub fn written(write: u64, start: u64, atoms: u64) -> Self {
        Stamps { form: Form::Stamps((start..start + atoms).map(|atom| stamp(write, atom)).collect()), start: 0, atoms: atoms as u32 }
    }

    /// A whole number of atoms of shared bytes; no copy.
    pub fn from_shared_bytes(bytes: Rc<[u8]>) -> Self {
        assert!(bytes.len().is_multiple_of(ATOM), "bytes are whole atoms");
        Stamps { start: 0, atoms: (bytes.len() / ATOM) as u32, form: Form::Bytes(bytes) }
    }

    /// The shared bytes and the offset in them, if this is the byte form.
    pub fn shared_bytes(&self) -> Option<(&Rc<[u8]>, usize)> {
        match &self.form {
            Form::Bytes(bytes) => Some((bytes, self.start as usize * ATOM)),
            Form::Zero | Form::Stamps(_) => None,
        }
    }

    /// The stamp of atom `index`.
    pub fn stamp(&self, index: u64) -> u64 {
        assert!(index < u64::from(self.atoms));
        let index = self.start as usize + index as usize;
        match &self.form {
            Form::Zero => 0,
            Form::Stamps(stamps) => stamps[index],
            Form::Bytes(bytes) => image::read(&bytes[index * ATOM..][..ATOM]),
        }
    }

    /// Every stamp, in order.
    pub fn stamps(&self) -> impl Iterator<Item = u64> + '_ {
        (0..u64::from(self.atoms)).map(|index| self.stamp(index))
    }

    /// Writes the stamps of all atoms to `out`, which is as long.
    pub fn copy_stamps(&self, out: &mut [u64]) {
        assert_eq!(out.len(), self.atoms as usize);
        match &self.form {
            Form::Zero => out.fill(0),
            Form::Stamps(stamps) => out.copy_from_slice(&stamps[self.start as usize..][..self.atoms as usize]),
            Form::Bytes(_) => out.iter_mut().zip(self.stamps()).for_each(|(to, stamp)| *to = stamp),
        }
    }

    /// A number that tells these contents from others for a trace: all of data, of metadata only the word with each page's checksum.
    pub fn digest(&self) -> u64 {
        match &self.form {
            Form::Stamps(stamps) => stamps[self.start as usize..][..self.atoms as usize].iter().fold(1, |hash, &stamp| fold(hash, stamp)),
            Form::Zero => u64::from(self.atoms),
            Form::Bytes(bytes) => {
                let pages = bytes[self.start as usize * ATOM..][..self.atoms as usize * ATOM].chunks(ATOM * 8);
                pages.fold(2, |hash, page| fold(hash, u64::from_le_bytes(page[24..32].try_into().expect("eight bytes"))))
            }
        }
    }

    fn is_zero_form(&self) -> bool {
        matches!(self.form, Form::Zero)
    }
}

fn fold(hash: u64, word: u64) -> u64 {
    let mixed = (hash ^ word).wrapping_mul(0x9fb2_1c65_1e98_df25);
    mixed ^ (mixed >> 29)
}

impl Payload for Stamps {
    /// In memory there are stamps too.
    const PAGE_ATOM_BYTES: usize = 8;

    fn atoms(&self) -> u64 {
        u64::from(self.atoms)
    }

    fn zero(atoms: u64) -> Self {
        assert!(atoms > 0, "a payload is never empty");
        Stamps { form: Form::Zero, start: 0, atoms: u32::try_from(atoms).expect("a payload below 2 TiB") }
    }

    fn shared_zeros(&self) -> Option<Range<u64>> {
        let start = u64::from(self.start);
        self.is_zero_form().then(|| start..start + self.atoms())
    }

    fn slice(&self, start: u64, atoms: u64) -> Self {
        assert!(atoms > 0, "a payload is never empty");
        assert!(start + atoms <= u64::from(self.atoms), "a slice lies inside");
        Stamps { form: self.form.clone(), start: self.start + start as u32, atoms: atoms as u32 }
    }

    fn concat(parts: &[Self]) -> Self {
        if let [part] = parts {
            return part.clone();
        }
        let atoms = parts.iter().map(Payload::atoms).sum();
        if parts.iter().all(Stamps::is_zero_form) {
            return Stamps::zero(atoms);
        }
        // Bytes hold any stamp; a stamp does not hold any bytes.
        if parts.iter().any(|part| matches!(part.form, Form::Bytes(_))) {
            let mut bytes = Vec::with_capacity(atoms as usize * ATOM);
            parts.iter().for_each(|part| part.append_to(&mut bytes));
            return Stamps::from_shared_bytes(bytes.into());
        }
        let mut stamps = vec![0; atoms as usize];
        let mut at = 0;
        for part in parts {
            part.copy_stamps(&mut stamps[at..at + part.atoms as usize]);
            at += part.atoms as usize;
        }
        Stamps::from_stamps(&stamps)
    }

    /// Of the bytes that the stamps stand for, whatever form they are in.
    fn checksum(&self, by: Checksum) -> u32 {
        match &self.form {
            Form::Stamps(stamps) => image::checksum(stamps[self.start as usize..][..self.atoms as usize].iter().copied(), by),
            Form::Zero | Form::Bytes(_) => image::checksum(self.stamps(), by),
        }
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        Stamps::from_shared_bytes(bytes.into())
    }

    fn append_to(&self, out: &mut Vec<u8>) {
        match &self.form {
            Form::Zero => out.resize(out.len() + self.atoms as usize * ATOM, 0),
            Form::Stamps(_) => self.stamps().for_each(|stamp| image::append(stamp, out)),
            Form::Bytes(bytes) => out.extend_from_slice(&bytes[self.start as usize * ATOM..][..self.atoms as usize * ATOM]),
        }
    }

    fn page_bytes(&self) -> Cow<'_, [u8]> {
        self.stamps().flat_map(u64::to_le_bytes).collect()
    }

    fn from_pages(pages: &[&[u8]], skip: u64, atoms: u64) -> Self {
        let words = pages.iter().flat_map(|page| page.chunks_exact(8)).skip(skip as usize).take(atoms as usize);
        let stamps: Vec<u64> = words.map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes"))).collect();
        assert_eq!(stamps.len() as u64, atoms, "the pages hold what is asked for");
        Stamps::from_stamps(&stamps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn as_bytes(payload: &Stamps) -> Stamps {
        let mut bytes = Vec::new();
        payload.append_to(&mut bytes);
        Stamps::from_bytes(&bytes)
    }

    #[test]
    fn both_forms_of_the_same_contents_agree() {
        for stamps in [vec![0], vec![0, 0, 0], vec![stamp(3, 5), 0, stamp(1, 0), HASHED | 9, u64::MAX]] {
            let payload = Stamps::from_stamps(&stamps);
            let bytes = as_bytes(&payload);
            assert_eq!(bytes.stamps().collect::<Vec<_>>(), stamps);
            assert_eq!(bytes.checksum(Checksum::Crc), payload.checksum(Checksum::Crc));
            assert_eq!(as_bytes(&bytes).checksum(Checksum::Crc), payload.checksum(Checksum::Crc));
        }
        assert_eq!(Stamps::zero(3).checksum(Checksum::Crc), Stamps::from_stamps(&[0, 0, 0]).checksum(Checksum::Crc));
        assert_ne!(Stamps::zero(3).checksum(Checksum::Crc), Stamps::zero(2).checksum(Checksum::Crc));
    }

    #[test]
    fn bytes_that_are_no_image_are_nobodys_stamp() {
        let metadata = Stamps::from_bytes(&[7; 512]);
        assert_eq!(meaning(metadata.stamp(0)), None);
        assert_ne!(metadata.stamp(0) & HASHED, 0);
        assert_eq!(meaning(0), None);
        assert_eq!(meaning(stamp(12, 34)), Some((12, 34)));
        assert_eq!(meaning(stamp(0, 0)), Some((0, 0)));
    }

    #[test]
    fn slices_and_joints_keep_the_contents() {
        let payload = Stamps::written(9, 100, 8);
        let cut = [payload.slice(0, 3), payload.slice(3, 4), payload.slice(7, 1)];
        assert_eq!(Stamps::concat(&cut).checksum(Checksum::Crc), payload.checksum(Checksum::Crc));
        let mixed = [cut[0].clone(), as_bytes(&cut[1]), cut[2].clone()];
        assert_eq!(Stamps::concat(&mixed).checksum(Checksum::Crc), payload.checksum(Checksum::Crc));
        let holes = Stamps::concat(&[Stamps::zero(2), cut[0].clone()]);
        assert_eq!(holes.stamps().collect::<Vec<_>>(), [0, 0, stamp(9, 100), stamp(9, 101), stamp(9, 102)]);
    }

    #[test]
    fn a_changed_stamp_changes_the_checksum() {
        let clean = Stamps::written(1, 0, 8);
        for atom in 0..8 {
            for bit in 0..64 {
                let mut stamps: Vec<u64> = clean.stamps().collect();
                stamps[atom] ^= 1 << bit;
                assert_ne!(Stamps::from_stamps(&stamps).checksum(Checksum::CrcAndSum), clean.checksum(Checksum::CrcAndSum));
            }
        }
    }
}

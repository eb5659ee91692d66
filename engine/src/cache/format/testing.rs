//! What the tests of the format share: geometries, arbitrary contents, and the checks that every kind of page must pass.

use super::{Bits, Entry, FormatId, Geometry, Position, Unsealed};
use crate::block::{Atoms, Block};
use proptest::prelude::*;
use std::fmt::Debug;

pub const FORMAT: FormatId = FormatId([0xf1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);

/// 100 GiB in front of 4 TiB, with the default sizes.
pub fn large() -> Geometry {
    Geometry::for_cache(100 << 21, 4 << 31, 8, 256).unwrap()
}

/// A small one of these sizes, with a short last block.
pub fn small(block_atoms: u32, set_slots: u32) -> Geometry {
    Geometry { block_atoms, set_slots, sets: 70, journal_pages: 16, volume_atoms: 100_003, range_entries: 300 }
}

/// Small ones of every size of block and set.
pub fn geometries() -> impl Strategy<Value = Geometry> {
    (0..=7u32, 3..=11u32).prop_map(|(block, slots)| small(1 << block, 1 << slots))
}

/// Some atoms of a block; of the last one, which is short, as often as of all others.
pub fn atoms(geometry: &Geometry) -> impl Strategy<Value = (Block, Atoms)> + use<> {
    let geometry = *geometry;
    let block = prop_oneof![0..geometry.blocks(), Just(geometry.blocks() - 1)];
    (block, any::<u128>()).prop_map(move |(block, mask)| {
        let whole = Atoms::first(geometry.block_span(Block(block)).atoms as u32);
        (Block(block), if mask & whole.0 == 0 { whole } else { Atoms(mask & whole.0) })
    })
}

/// Entries with at least one valid atom.
pub fn entry(geometry: &Geometry) -> impl Strategy<Value = Entry> + use<> {
    (atoms(geometry), any::<u32>()).prop_map(|((block, valid), crc)| Entry { block, valid, crc })
}

pub fn bits(geometry: &Geometry) -> impl Strategy<Value = Bits> + Clone + use<> {
    let slots = geometry.set_slots;
    proptest::collection::vec(0..slots, 0..100).prop_map(move |members| {
        let mut bits = Bits::new(slots);
        members.into_iter().for_each(|slot| bits.set(slot));
        bits
    })
}

pub fn position() -> impl Strategy<Value = Position> {
    (any::<u64>(), any::<u64>()).prop_map(|(epoch, seq)| Position { epoch, seq })
}

/// Offsets behind the seal and bytes to be put there: damage that somebody sealed again. Most of it near the heads, where the counts are.
pub fn scribbles() -> impl Strategy<Value = Vec<(usize, u8)>> {
    let byte = prop_oneof![Just(0), Just(1), Just(0xff), any::<u8>()];
    let place = prop_oneof![28..128usize, 28..4096usize];
    proptest::collection::vec((place, byte), 0..12)
}

/// Every single bit counts, and so does the length: no page with a flipped bit, and no part of one, is taken.
pub fn refuses_every_flip<T>(page: &[u8], decode: impl Fn(&[u8]) -> Result<T, Unsealed>) {
    assert!(decode(page).is_ok());
    let mut damaged = page.to_vec();
    for bit in 0..page.len() * 8 {
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(decode(&damaged).is_err(), "bit {bit} does not count");
        damaged[bit / 8] ^= 1 << (bit % 8);
    }
    for length in (0..page.len()).chain([page.len() + 1]) {
        damaged.resize(length, 0);
        damaged[..length.min(page.len())].copy_from_slice(&page[..length.min(page.len())]);
        assert_eq!(decode(&damaged).err(), Some(Unsealed::Field("length")));
    }
}

/// A page torn at 512 bytes, with an older page of the same place behind it, is refused.
pub fn refuses_every_tear<T>(older: &[u8], newer: &[u8], decode: impl Fn(&[u8]) -> Result<T, Unsealed>) {
    assert!(decode(older).is_ok() && decode(newer).is_ok());
    for sectors in 1..(1u32 << (newer.len() / 512).min(10)) - 1 {
        let mut torn = older.to_vec();
        for (sector, place) in torn.chunks_exact_mut(512).enumerate() {
            if sectors >> (sector % 10) & 1 == 1 {
                place.copy_from_slice(&newer[sector * 512..][..512]);
            }
        }
        assert!(torn == older || torn == newer || decode(&torn).is_err(), "sectors {sectors:b} of the newer page");
    }
}

/// The page with other bytes at an offset and a CRC that matches: intact, and impossible.
pub fn forged(page: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut page = page.to_vec();
    page[at..at + bytes.len()].copy_from_slice(bytes);
    let crc = crc32c::crc32c_append(crc32c::crc32c(&page[28..]), &page[..24]);
    page[24..28].copy_from_slice(&crc.to_le_bytes());
    page
}

/// Each forgery (offset, bytes there) is refused for the field named with it, and for nothing else.
pub fn refuses_forgeries<T: Debug>(page: &[u8], decode: impl Fn(&[u8]) -> Result<T, Unsealed>, forgeries: &[(usize, &[u8], &'static str)]) {
    assert!(decode(page).is_ok());
    for (at, bytes, field) in forgeries {
        assert_eq!(decode(&forged(page, *at, bytes)).err(), Some(Unsealed::Field(field)), "{bytes:?} at {at}");
    }
    const NO_MEANING: &str = "bytes without a meaning";
    assert_eq!(decode(&forged(page, 6, &[1])).err(), Some(Unsealed::Field(NO_MEANING)));
    assert_eq!(decode(&forged(page, page.len() - 1, &[1])).err(), Some(Unsealed::Field(NO_MEANING)), "behind the last record");
    assert_eq!(decode(&forged(page, 4, &[3])).err(), Some(Unsealed::Version(3)));
    assert_eq!(decode(&forged(page, 23, &[1])).err(), Some(Unsealed::Address));
}

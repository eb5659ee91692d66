//! The bytes that a stamp stands for, and their checksum.
//!
//! ```text
//! 0..8  "\x89STAMP\r\n"    496..504  the stamp    508..512  CRC-32C of what is before it, or zeros    and zeros between
//! ```
//!
//! Atoms that end with their own CRC-32C are alike to every CRC-32C: those of odd writes do, and whoever tells contents by their CRC alone mistakes
//! one for the other. The checksum of stamps is that of their bytes, but nobody writes these down.

use std::sync::OnceLock;

use crc32c::crc32c_append;
use tidegate_engine::payload::Checksum;

use super::{ATOM, ATOM_BITS, HASHED, fold};

const OPENING: &[u8; 8] = b"\x89STAMP\r\n";
/// Where the stamp is.
const AT: usize = ATOM - 16;

/// What the CRC of an atom begins with and goes on with.
struct Crcs {
    /// Of what is before the stamp.
    before: u32,
    /// The same where the register is 0 at first.
    before_from_zero: u32,
    /// What becomes of the register over an atom of zeros, by each of its bytes.
    over: [[u32; 256]; 4],
}

impl Crcs {
    fn get() -> &'static Crcs {
        static CRCS: OnceLock<Crcs> = OnceLock::new();
        CRCS.get_or_init(|| {
            let mut before = [0; AT];
            before[..OPENING.len()].copy_from_slice(OPENING);
            let over = |byte: usize, value: usize| register((value as u32) << (8 * byte), &[0; ATOM]);
            Crcs {
                before: crc32c::crc32c(&before),
                before_from_zero: crc32c_append(!0, &before),
                over: std::array::from_fn(|byte| std::array::from_fn(|value| over(byte, value))),
            }
        })
    }

    fn over_zeros(&self, register: u32) -> u32 {
        let bytes = register.to_le_bytes();
        self.over.iter().zip(bytes).fold(0, |all, (table, byte)| all ^ table[usize::from(byte)])
    }

    /// The last two words of an image that is not zeros.
    fn ending(&self, stamp: u64) -> [u64; 2] {
        let is_odd = stamp >> ATOM_BITS & 1 == 1;
        let crc = || crc32c_append(crc32c_append(self.before, &stamp.to_le_bytes()), &[0; 4]);
        [stamp, if is_odd { u64::from(crc()) << 32 } else { 0 }]
    }
}

/// The register of a CRC over these bytes; what is called their CRC has its bits inverted, before and after.
fn register(before: u32, bytes: &[u8]) -> u32 {
    !crc32c_append(!before, bytes)
}

fn joined(words: [u64; 2]) -> [u8; 16] {
    (u128::from(words[1]) << 64 | u128::from(words[0])).to_le_bytes()
}

/// Of the bytes of all these stamps.
pub fn checksum(stamps: impl Iterator<Item = u64>, by: Checksum) -> u32 {
    let crcs = Crcs::get();
    let (mut register, mut sum) = (!0, 0u64);
    for stamp in stamps {
        register = crcs.over_zeros(register);
        if stamp != 0 {
            let ending = crcs.ending(stamp);
            register ^= !crc32c_append(crcs.before_from_zero, &joined(ending));
            sum = [u64::from_le_bytes(*OPENING), ending[0], ending[1]].into_iter().fold(sum, u64::wrapping_add);
        }
    }
    by.of(!register, || sum)
}

/// Appends an atom.
pub fn append(stamp: u64, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + ATOM, 0);
    if stamp != 0 {
        out[start..start + OPENING.len()].copy_from_slice(OPENING);
        out[start + AT..].copy_from_slice(&joined(Crcs::get().ending(stamp)));
    }
}

/// The stamp of an atom. Bytes that are no image are nobody's.
pub fn read(atom: &[u8]) -> u64 {
    let word = |at: usize| u64::from_le_bytes(atom[at..at + 8].try_into().expect("eight bytes"));
    let opening = u64::from_le_bytes(*OPENING);
    let (stamp, is_blank) = (word(AT), atom[8..AT].iter().all(|&byte| byte == 0));
    match word(0) {
        first if is_blank && first == opening && stamp != 0 && atom[AT..] == joined(Crcs::get().ending(stamp)) => stamp,
        0 if is_blank && atom[AT..] == [0; 16] => 0,
        _ => (0..ATOM / 8).fold(0x5eed, |hash, index| fold(hash, word(index * 8))) | HASHED,
    }
}

#[cfg(test)]
mod tests {
    use super::super::stamp;
    use super::*;

    fn bytes(stamps: &[u64]) -> Vec<u8> {
        let mut bytes = Vec::new();
        stamps.iter().for_each(|&stamp| append(stamp, &mut bytes));
        bytes
    }

    /// As the daemon's contents have it.
    fn of_bytes(bytes: &[u8], by: Checksum) -> u32 {
        let words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
        by.of(crc32c::crc32c(bytes), || words.fold(0, u64::wrapping_add))
    }

    #[test]
    fn the_checksum_of_stamps_is_that_of_their_bytes() {
        let stamps = [0, stamp(1, 0), stamp(2, 0), 0, stamp(3, 77), u64::MAX, HASHED | 9, stamp(8, 5), 0];
        for start in 0..stamps.len() {
            for end in start + 1..=stamps.len() {
                for by in [Checksum::Crc, Checksum::CrcAndSum] {
                    let stamps = &stamps[start..end];
                    assert_eq!(checksum(stamps.iter().copied(), by), of_bytes(&bytes(stamps), by), "{stamps:x?} {by:?}");
                }
            }
        }
    }

    #[test]
    fn contents_of_odd_writes_are_alike_to_a_crc_alone() {
        let of = |write: u64, by| checksum((0..8).map(|atom| stamp(write, 40 + atom)), by);
        assert_eq!(of(1, Checksum::Crc), of(3, Checksum::Crc));
        assert_ne!(of(2, Checksum::Crc), of(4, Checksum::Crc));
        assert_ne!(of(1, Checksum::CrcAndSum), of(3, Checksum::CrcAndSum));
    }

    #[test]
    fn an_image_with_a_flipped_bit_is_nobodys() {
        for stamp in [stamp(1, 5), stamp(2, 5)] {
            let image = bytes(&[stamp]);
            assert_eq!(read(&image), stamp);
            for bit in (0..image.len() * 8).filter(|bit| !(AT * 8..(AT + 8) * 8).contains(bit)) {
                let mut flipped = image.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(read(&flipped) & HASHED, 0, "bit {bit}");
            }
        }
    }
}

//! Sectors that say what they are: whoever reads one knows where it belongs, and which command wrote it.

use super::chance::Chance;

pub const SECTOR: usize = 512;

/// A version of a sector: the number of the command that wrote it. Zero is what was there before anything.
pub type Version = u64;

/// 512 bytes that say which sector and which command they are of, and that they are whole.
pub fn stamp(number: u64, version: Version, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&version.to_le_bytes());
    out.extend_from_slice(&Chance::new(number ^ version << 32).bytes(SECTOR - 20));
    let crc = crc32c::crc32c(&out[start..]);
    out.extend_from_slice(&crc.to_le_bytes());
}

/// The version that a sector is stamped with; nothing if it is no whole stamp of this sector.
pub fn stamp_of(number: u64, bytes: &[u8]) -> Option<Version> {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let crc = u32::from_le_bytes(bytes[SECTOR - 4..].try_into().unwrap());
    (crc32c::crc32c(&bytes[..SECTOR - 4]) == crc && word(0) == number).then(|| word(8))
}

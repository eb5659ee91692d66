//! Sectors that say what they are: whoever reads one knows where it belongs, and which command wrote it.

use super::chance::Chance;

pub const SECTOR: usize = 512;

/// A version of a sector: the number of the command that wrote it. Zero is what was there before anything.
pub type Version = u64;

/// 512 bytes that say which sector and which command they are of, and all the others follow from that. They end with their CRC-32C, so that all of
/// them have the same one: what stands in the place of others is not told by that alone.
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
    let mut whole = Vec::with_capacity(SECTOR);
    stamp(number, word(8), &mut whole);
    (bytes == whole).then(|| word(8))
}

#[test]
fn stamps_have_all_the_same_crc_and_are_told_apart() {
    let mut seen = std::collections::BTreeSet::new();
    for number in 0..1_000 {
        let mut sector = Vec::new();
        stamp(number, 1, &mut sector);
        seen.insert(crc32c::crc32c(&sector));
        assert_eq!((stamp_of(number, &sector), stamp_of(number + 1, &sector)), (Some(1), None));
        sector[SECTOR - 1] ^= 1;
        assert_eq!(stamp_of(number, &sector), None);
    }
    assert_eq!(seen.len(), 1);
}

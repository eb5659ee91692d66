//! The seal that opens every metadata page, and the fields behind it.
//!
//! ```text
//! 0 magic 4 | 4 version 2 | 6 zero 2 | 8 format id, first half 8 | 16 address in atoms 8 | 24 CRC-32C 4 | 28 the page's own fields …
//! ```
//! The CRC covers bytes 28 to the end, then bytes 0 to 24. In this order the CRC of the contents alone falls off on the way: the
//! journal chains its pages by it, and it stays the same when a page is sealed again for another place.

use std::ops::RangeInclusive;

use super::{FormatId, PAGE_VERSION, Unsealed};
use crate::block::PAGE_BYTES;

/// Bytes of a seal.
pub(super) const SEAL_BYTES: usize = 28;
/// Bytes of the head of a page, seal included. What follows are records.
pub(super) const HEAD_BYTES: usize = 64;
pub(super) const PAGE: usize = PAGE_BYTES as usize;

const VERSION_AT: usize = 4;
const FORMAT_AT: usize = 8;
const ADDRESS_AT: usize = 16;
const CRC_AT: usize = 24;

/// What kind of page; the same in every version.
pub(super) type Magic = [u8; 4];

/// Seals `page` for the atom `address`, once its contents are in place. Returns the CRC-32C of the contents alone.
pub(super) fn seal(page: &mut [u8], magic: Magic, format: FormatId, address: u64) -> u32 {
    seal_as(PAGE_VERSION, page, magic, format, address)
}

/// The same of a page that is not alike in all versions.
pub(super) fn seal_as(version: u16, page: &mut [u8], magic: Magic, format: FormatId, address: u64) -> u32 {
    page[..4].copy_from_slice(&magic);
    put_u16(page, VERSION_AT, version);
    put_u16(page, 6, 0);
    page[FORMAT_AT..ADDRESS_AT].copy_from_slice(&format.0[..8]);
    put_u64(page, ADDRESS_AT, address);
    let contents = crc32c::crc32c(&page[SEAL_BYTES..]);
    let crc = crc32c::crc32c_append(contents, &page[..CRC_AT]);
    put_u32(page, CRC_AT, crc);
    contents
}

/// Is this an intact page of that kind, format and place? Returns the CRC-32C of its contents alone.
///
/// A page of another format is none of ours, intact or not; after that the CRC comes first, so that a flipped bit is never reported
/// as another version.
pub(super) fn unseal(page: &[u8], length: usize, magic: Magic, format: FormatId, address: u64) -> Result<u32, Unsealed> {
    unseal_as(PAGE_VERSION..=PAGE_VERSION, page, length, magic, format, address).map(|(_, contents)| contents)
}

/// The same of a page that is not alike in all versions: of one of these. Returns that as well.
pub(super) fn unseal_as(
    versions: RangeInclusive<u16>,
    page: &[u8],
    length: usize,
    magic: Magic,
    format: FormatId,
    address: u64,
) -> Result<(u16, u32), Unsealed> {
    if page.len() != length {
        return Err(Unsealed::Field("length"));
    }
    if page[..4] == [0; 4] {
        return Err(Unsealed::Blank);
    }
    if page[..4] != magic {
        return Err(Unsealed::Magic);
    }
    if page[FORMAT_AT..ADDRESS_AT] != format.0[..8] {
        return Err(Unsealed::Format);
    }
    let contents = crc32c::crc32c(&page[SEAL_BYTES..]);
    if crc32c::crc32c_append(contents, &page[..CRC_AT]) != get_u32(page, CRC_AT) {
        return Err(Unsealed::Checksum);
    }
    let version = get_u16(page, VERSION_AT);
    if !versions.contains(&version) {
        return Err(Unsealed::Version(version));
    }
    if get_u64(page, ADDRESS_AT) != address {
        return Err(Unsealed::Address);
    }
    zeros(&page[6..8])?;
    Ok((version, contents))
}

/// Bytes without a meaning are zero: a version that gives them one is another version.
pub(super) fn zeros(bytes: &[u8]) -> Result<(), Unsealed> {
    check(bytes.iter().fold(0, |all, &byte| all | byte) == 0, "bytes without a meaning")
}

pub(super) fn check(possible: bool, field: &'static str) -> Result<(), Unsealed> {
    if possible { Ok(()) } else { Err(Unsealed::Field(field)) }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("a slice of N bytes")
}

pub(super) fn get_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(bytes, at))
}

pub(super) fn get_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

/// 48 bits: a block.
pub(super) fn get_u48(bytes: &[u8], at: usize) -> u64 {
    u64::from(get_u32(bytes, at)) | u64::from(get_u16(bytes, at + 4)) << 32
}

pub(super) fn get_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

pub(super) fn get_id(bytes: &[u8], at: usize) -> [u8; 16] {
    array(bytes, at)
}

pub(super) fn put_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

pub(super) fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

pub(super) fn put_u48(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 6].copy_from_slice(&value.to_le_bytes()[..6]);
}

pub(super) fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

//! The seal of a metadata page as docs/format.md tells it, written a second time: what the engine takes for intact is what the document
//! calls so. A page that is sealed again after a change is what a bug, or malice, would leave.

use tidegate_engine::cache::format::FormatId;

/// Bytes of a seal.
pub const SEAL_BYTES: usize = 28;

/// Seals `page` for the atom `address`, as of the version that it says if it is a superblock; of version 1, if it says none, or is another page.
pub fn seal(page: &mut [u8], magic: &[u8; 4], format: FormatId, address: u64) {
    page[..4].copy_from_slice(magic);
    let version = if magic == b"TIDS" { page[4].max(1) } else { 1 };
    page[4..8].copy_from_slice(&[version, 0, 0, 0]);
    page[8..16].copy_from_slice(&format.0[..8]);
    page[16..24].copy_from_slice(&address.to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&page[SEAL_BYTES..]), &page[..24]);
    page[24..28].copy_from_slice(&crc.to_le_bytes());
}

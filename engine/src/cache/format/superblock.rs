//! The superblock: what this SSD is, and where recovery starts. Two copies, updated one after the other with a flush between:
//! first the copy that is invalid, else the older one. So one of them is whole at any moment, even when a second crash follows the first.
//!
//! ```text
//!  0 seal 28            | 28 zero 4             | 32 format id 16     | 48 volume 16          | 64 origin 16
//! 80 sequence 8         | 88 epoch 8            | 96 cut 8
//! 104 checkpoint: number 8, seq 8               | 120 area 4 (checkpoint), 4 (previous)       | 128 previous: number 8, seq 8
//! 144 volume atoms 8    | 152 block atoms 4     | 156 set slots 4     | 160 sets 4            | 164 journal pages 4
//! 168 range entries 4   | 172 flags 4           | 176 marks 4           | 180 marks: each block 6, zero 2, checksum 4 … | zero
//! 3968 atoms that clients wrote 8               | 3976 atoms written to the SSD, by cause: 9 times 8   | zero
//! ```

use super::seal::{self, Magic, PAGE, check, get_id, get_u16, get_u32, get_u48, get_u64, put_u32, put_u48, put_u64};
use super::{FormatId, Geometry, NUMBER_END, READ_END, Unsealed, VERSION};
use crate::block::{ATOM_BYTES, Block};
use crate::mode::Mode;
use crate::payload::Checksum;
use crate::wear::{ByCause, Cause, Written};

const MAGIC: Magic = *b"TIDS";
const CLEAN: u32 = 1;
const DETACHED: u32 = 2;
/// Where the mode begins, two bits.
const MODE: u32 = 2;
/// Contents had checksums without a sum in it.
const VERSION_OF_CRCS: u16 = 1;
/// Where the marks begin.
const MARKS: usize = 180;
const MARK_BYTES: usize = 12;
/// Where the totals of what was written begin, and where they end.
const WRITTEN: usize = 3_968;
const WRITTEN_END: usize = WRITTEN + 8 + 8 * Cause::ALL.len();
/// Marks of the origin at most.
pub const MARKS_MAX: usize = 64;
/// Where the second copy lies, in atoms: 512 KiB, so that one bad erase block or one stray write does not take both.
pub(super) const SUPERBLOCK_B: u64 = (512 << 10) / ATOM_BYTES;

/// Which state map, and from where the journal is replayed onto it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapRef {
    /// The checkpoint's number. 0: no map was written yet, everything is free.
    pub number: u64,
    /// Which of the two map areas.
    pub area: u32,
    /// The first page of the journal to replay.
    pub seq: u64,
}

/// What a block of the origin held at an orderly stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    pub block: Block,
    pub crc: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    pub format: FormatId,
    pub geometry: Geometry,
    /// Identity of the volume.
    pub volume: [u8; 16],
    /// Identity of the origin; zero where unknown.
    pub origin: [u8; 16],
    /// Grows with every update: of two valid copies the higher one counts.
    pub sequence: u64,
    /// Grows with every recovery.
    pub epoch: u64,
    /// The first sequence number of the epoch: journal pages of earlier epochs from here on are void.
    pub cut: u64,
    pub checkpoint: MapRef,
    /// The checkpoint before, in case the map of the newer one is damaged.
    pub previous: MapRef,
    /// Stopped in order.
    pub clean: bool,
    /// Taken from its origin on purpose: it must not come back by itself.
    pub detached: bool,
    /// What a FLUSH promises. Of another one than write-back: nothing that was flushed is on this SSD alone.
    pub mode: Mode,
    /// By what contents of slots, and of the origin, are told from others: for as long as the format lasts.
    pub checksum: Checksum,
    /// Blocks of the origin as they were when it stopped in order, ascending; none while it runs. At most [`MARKS_MAX`].
    pub marks: Vec<Mark>,
    /// In the life of the cache, up to this update.
    pub written: Written,
}

impl Superblock {
    /// Of a freshly formatted SSD: epoch 1, nothing in the maps, the journal starts with page 1.
    pub fn new(format: FormatId, geometry: Geometry, volume: [u8; 16], origin: [u8; 16]) -> Self {
        let empty = MapRef { number: 0, area: 0, seq: 1 };
        Superblock {
            format,
            geometry,
            volume,
            origin,
            sequence: 1,
            epoch: 1,
            cut: 1,
            checkpoint: empty,
            previous: empty,
            clean: false,
            detached: false,
            mode: Mode::WriteBack,
            checksum: Checksum::default(),
            marks: Vec::new(),
            written: Written::default(),
        }
    }

    /// Every start begins an epoch.
    pub fn has_served(&self) -> bool {
        self.epoch > 1
    }

    /// The page for copy 0 or 1.
    pub fn encode(&self, copy: u32) -> Vec<u8> {
        assert!(self.geometry.validate().is_ok(), "an impossible geometry");
        assert!(self.checkpoint.area < 2 && self.previous.area < 2, "there are two maps");
        assert_eq!(self.check_numbers(NUMBER_END), Ok(()), "numbers are counted from 1");
        let mut bytes = vec![0; PAGE];
        bytes[32..48].copy_from_slice(&self.format.0);
        bytes[48..64].copy_from_slice(&self.volume);
        bytes[64..80].copy_from_slice(&self.origin);
        put_u64(&mut bytes, 80, self.sequence);
        put_u64(&mut bytes, 88, self.epoch);
        put_u64(&mut bytes, 96, self.cut);
        put_u64(&mut bytes, 104, self.checkpoint.number);
        put_u64(&mut bytes, 112, self.checkpoint.seq);
        put_u32(&mut bytes, 120, self.checkpoint.area);
        put_u32(&mut bytes, 124, self.previous.area);
        put_u64(&mut bytes, 128, self.previous.number);
        put_u64(&mut bytes, 136, self.previous.seq);
        put_u64(&mut bytes, 144, self.geometry.volume_atoms);
        put_u32(&mut bytes, 152, self.geometry.block_atoms);
        put_u32(&mut bytes, 156, self.geometry.set_slots);
        put_u32(&mut bytes, 160, self.geometry.sets);
        put_u32(&mut bytes, 164, self.geometry.journal_pages);
        put_u32(&mut bytes, 168, self.geometry.range_entries);
        put_u32(&mut bytes, 172, (u32::from(self.clean) * CLEAN) | (u32::from(self.detached) * DETACHED) | (self.mode as u32) << MODE);
        assert!(self.marks.len() <= MARKS_MAX, "more marks than there are places");
        put_u32(&mut bytes, 176, self.marks.len() as u32);
        for (mark, place) in self.marks.iter().zip(bytes[MARKS..].chunks_exact_mut(MARK_BYTES)) {
            put_u48(place, 0, mark.block.0);
            put_u32(place, 8, mark.crc);
        }
        for (total, place) in self.totals().into_iter().zip(bytes[WRITTEN..WRITTEN_END].chunks_exact_mut(8)) {
            put_u64(place, 0, total);
        }
        let version = match self.checksum {
            Checksum::Crc => VERSION_OF_CRCS,
            Checksum::CrcAndSum => VERSION,
        };
        seal::seal_as(version, &mut bytes, MAGIC, self.format, address(copy));
        bytes
    }

    /// What was written, in the order of the fields.
    fn totals(&self) -> impl IntoIterator<Item = u64> {
        // Nothing that could be written in the life of an SSD comes near it.
        std::iter::once(self.written.clients).chain(self.written.cache.0).map(|total| total.min(NUMBER_END - 1))
    }

    /// Epochs and pages are counted from 1.
    fn check_numbers(&self, end: u64) -> Result<(), Unsealed> {
        let maps = [self.checkpoint, self.previous];
        check(self.sequence < end, "sequence")?;
        check((1..end).contains(&self.epoch), "epoch")?;
        check((1..end).contains(&self.cut), "cut")?;
        check(maps.iter().all(|map| map.number < end), "checkpoint number")?;
        check(maps.iter().all(|map| (1..end).contains(&map.seq)), "checkpoint seq")
    }

    /// Copy 0 or 1 from its 4 KiB. Whether the format id is the expected one, and whether the SSD is large enough for the geometry,
    /// is for the caller to compare.
    pub fn decode(bytes: &[u8], copy: u32) -> Result<Superblock, Unsealed> {
        check(bytes.len() == PAGE, "length")?;
        // It cannot be of another format than its seal says; the rest of the id lies behind the seal.
        let mut sealed = FormatId::default();
        sealed.0[..8].copy_from_slice(&bytes[8..16]);
        let (version, _) = seal::unseal_as(VERSION_OF_CRCS..=VERSION, bytes, PAGE, MAGIC, sealed, address(copy))?;
        let format = FormatId(get_id(bytes, 32));
        check(format.0[..8] == sealed.0[..8], "format id")?;
        let geometry = Geometry {
            volume_atoms: get_u64(bytes, 144),
            block_atoms: get_u32(bytes, 152),
            set_slots: get_u32(bytes, 156),
            sets: get_u32(bytes, 160),
            journal_pages: get_u32(bytes, 164),
            range_entries: get_u32(bytes, 168),
        };
        check(geometry.validate().is_ok(), "geometry")?;
        let flags = get_u32(bytes, 172);
        let mode = Mode::ALL.into_iter().find(|&mode| mode as u32 == flags >> MODE);
        seal::zeros(&bytes[28..32])?;
        let superblock = Superblock {
            format,
            geometry,
            volume: get_id(bytes, 48),
            origin: get_id(bytes, 64),
            sequence: get_u64(bytes, 80),
            epoch: get_u64(bytes, 88),
            cut: get_u64(bytes, 96),
            checkpoint: MapRef { number: get_u64(bytes, 104), seq: get_u64(bytes, 112), area: get_u32(bytes, 120) },
            previous: MapRef { number: get_u64(bytes, 128), seq: get_u64(bytes, 136), area: get_u32(bytes, 124) },
            clean: flags & CLEAN != 0,
            detached: flags & DETACHED != 0,
            mode: mode.ok_or(Unsealed::Field("flags"))?,
            checksum: if version == VERSION_OF_CRCS { Checksum::Crc } else { Checksum::CrcAndSum },
            marks: decode_marks(bytes, &geometry)?,
            written: decode_written(bytes)?,
        };
        check(superblock.checkpoint.area < 2 && superblock.previous.area < 2, "map area")?;
        superblock.check_numbers(READ_END)?;
        Ok(superblock)
    }
}

fn decode_marks(bytes: &[u8], geometry: &Geometry) -> Result<Vec<Mark>, Unsealed> {
    let count = get_u32(bytes, 176) as usize;
    check(count <= MARKS_MAX, "count of marks")?;
    let (places, rest) = bytes[MARKS..WRITTEN].split_at(count * MARK_BYTES);
    seal::zeros(rest)?;
    let mut marks: Vec<Mark> = Vec::with_capacity(count);
    for place in places.chunks_exact(MARK_BYTES) {
        let mark = Mark { block: Block(get_u48(place, 0)), crc: get_u32(place, 8) };
        let ascends = marks.last().is_none_or(|before| before.block < mark.block);
        check(ascends && mark.block.0 < geometry.blocks() && get_u16(place, 6) == 0, "mark")?;
        marks.push(mark);
    }
    Ok(marks)
}

fn decode_written(bytes: &[u8]) -> Result<Written, Unsealed> {
    seal::zeros(&bytes[WRITTEN_END..])?;
    let total = |place: usize| get_u64(bytes, WRITTEN + 8 * place);
    let written = Written { clients: total(0), cache: ByCause(std::array::from_fn(|cause| total(1 + cause))) };
    check(written.clients < NUMBER_END && written.cache.0.iter().all(|&atoms| atoms < NUMBER_END), "total")?;
    Ok(written)
}

/// The first atom of a copy: where it lies does not depend on the geometry that it tells.
pub(super) fn address(copy: u32) -> u64 {
    assert!(copy < 2, "there are two superblocks");
    u64::from(copy) * SUPERBLOCK_B
}

/// What [`foreign`] says of what it does not know.
pub const UNKNOWN: &str = "unknown data";

/// What a disk that is not ours holds, from its first 128 KiB (or less). `None`: blank, all zeros.
///
/// Ask [`Superblock::decode`] about both copies first: this does not look at the second one.
pub fn foreign(first: &[u8]) -> Option<&'static str> {
    let has = |at: usize, magic: &[u8]| first.get(at..at + magic.len()) == Some(magic);
    if first.iter().all(|&byte| byte == 0) {
        return None;
    }
    if let Some((_, _, name)) = SIGNATURES.iter().find(|(at, magic, _)| has(*at, magic)) {
        return Some(name);
    }
    if let Some(name) = ext(first) {
        return Some(name);
    }
    if (0..4).any(|sector| has(sector * 512, b"LABELONE") && has(sector * 512 + 24, b"LVM2 001")) {
        return Some("an LVM physical volume");
    }
    // A pool's label: name-value pairs from 16 KiB, where the pool's identity is among the first names.
    if first.get(16 << 10..20 << 10).is_some_and(|label| label.windows(9).any(|window| window == b"pool_guid")) {
        return Some("a member of a ZFS pool");
    }
    if has(510, &[0x55, 0xaa]) {
        return Some("a partition table or a boot sector");
    }
    Some(UNKNOWN)
}

/// Offset in bytes, magic, and what it means. Before the boot sector's: what carries both is the more particular one.
const SIGNATURES: &[(usize, &[u8], &str)] = &[
    (0, &MAGIC, "a tidegate cache"),
    (0, b"LUKS\xba\xbe", "a LUKS encrypted volume"),
    (0, b"XFSB", "an XFS file system"),
    (0, b"QFI\xfb", "a qcow2 image"),
    (3, b"NTFS    ", "an NTFS file system"),
    (3, b"EXFAT   ", "an exFAT file system"),
    (54, b"FAT", "a FAT file system"),
    (82, b"FAT32", "a FAT file system"),
    (512, b"EFI PART", "a GPT partition table"),
    (4096, b"EFI PART", "a GPT partition table"),
    (1024, &0xf2f5_2010_u32.to_le_bytes(), "an F2FS file system"),
    (0x1_0040, b"_BHRfS_M", "a btrfs file system"),
    (0, &MD_MAGIC, "a member of a RAID array"),
    (4096, &MD_MAGIC, "a member of a RAID array"),
    (4096 + 24, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81", "a bcache device"),
    (4096 + 24, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef", "a bcachefs file system"),
    (4096 - 10, b"SWAPSPACE2", "swap space"),
    (16384 - 10, b"SWAPSPACE2", "swap space"),
    (65536 - 10, b"SWAPSPACE2", "swap space"),
    (32769, b"CD001", "an ISO 9660 file system"),
];

const MD_MAGIC: [u8; 4] = 0xa92b_4efc_u32.to_le_bytes();

/// The ext family shares one superblock at 1 KiB; the features tell the age.
fn ext(first: &[u8]) -> Option<&'static str> {
    const HAS_JOURNAL: u32 = 0x4;
    /// Extents, 64 bit, flexible groups.
    const EXT4: u32 = 0x40 | 0x80 | 0x200;
    let superblock = first.get(1024..2048)?;
    if superblock[56..58] != [0x53, 0xef] {
        return None;
    }
    Some(match (get_u32(superblock, 92) & HAS_JOURNAL != 0, get_u32(superblock, 96) & EXT4 != 0) {
        (_, true) => "an ext4 file system",
        (true, false) => "an ext3 file system",
        (false, false) => "an ext2 file system",
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, FORMAT, geometries, small};
    use super::*;
    use crate::block::PAGE_BYTES;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn map_ref() -> impl Strategy<Value = MapRef> {
        (0..READ_END, 0..2u32, 1..READ_END).prop_map(|(number, area, seq)| MapRef { number, area, seq })
    }

    fn superblock() -> impl Strategy<Value = Superblock> {
        let ids = (any::<[u8; 16]>(), any::<[u8; 16]>(), any::<[u8; 16]>());
        let numbers = (0..READ_END, 1..READ_END, 1..READ_END);
        let marks = proptest::collection::btree_map(any::<u64>(), any::<u32>(), 0..MARKS_MAX);
        let totals = (0..NUMBER_END, proptest::array::uniform9(0..NUMBER_END));
        (ids, geometries(), numbers, map_ref(), map_ref(), any::<[bool; 3]>(), 0..Mode::ALL.len(), (marks, totals)).prop_map(
            |(
                (format, volume, origin),
                geometry,
                (sequence, epoch, cut),
                checkpoint,
                previous,
                [clean, detached, sums],
                mode,
                (marks, totals),
            )| {
                Superblock {
                    format: FormatId(format),
                    geometry,
                    volume,
                    origin,
                    sequence,
                    epoch,
                    cut,
                    checkpoint,
                    previous,
                    clean,
                    detached,
                    mode: Mode::ALL[mode],
                    checksum: if sums { Checksum::CrcAndSum } else { Checksum::Crc },
                    marks: some_marks(&geometry, marks),
                    written: Written { clients: totals.0, cache: ByCause(totals.1) },
                }
            },
        )
    }

    fn some_marks(geometry: &Geometry, drawn: BTreeMap<u64, u32>) -> Vec<Mark> {
        let marks: BTreeMap<u64, u32> = drawn.into_iter().map(|(block, crc)| (block % geometry.blocks(), crc)).collect();
        marks.into_iter().map(|(block, crc)| Mark { block: Block(block), crc }).collect()
    }

    proptest! {
        #[test]
        fn a_superblock_reads_as_it_was_written(superblock in superblock(), copy in 0..2u32) {
            let bytes = superblock.encode(copy);
            prop_assert_eq!(Superblock::decode(&bytes, copy), Ok(superblock));
            prop_assert_eq!(Superblock::decode(&bytes, 1 - copy), Err(Unsealed::Address));
            prop_assert_eq!(foreign(&bytes), Some("a tidegate cache"));
        }

        /// What is not refused can be written again, byte for byte: no two readings of one superblock.
        #[test]
        fn a_scribbled_and_sealed_superblock_is_refused_or_means_one_thing(superblock in superblock(), scribbles in testing::scribbles()) {
            let mut bytes = superblock.encode(0);
            scribbles.iter().for_each(|&(at, byte)| bytes[at] = byte);
            seal::seal_as(u16::from(bytes[4]), &mut bytes, MAGIC, superblock.format, 0);
            if let Ok(read) = Superblock::decode(&bytes, 0) {
                prop_assert_eq!(read.encode(0), bytes);
            }
        }

        #[test]
        fn any_bytes_are_refused_and_foreign(bytes in proptest::collection::vec(any::<u8>(), 1..5000)) {
            prop_assert!(Superblock::decode(&bytes, 0).is_err());
            prop_assert!(foreign(&bytes).is_some() || bytes.iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn every_flipped_bit_of_a_superblock_is_refused() {
        let bytes = Superblock::new(FORMAT, small(8, 64), [1; 16], [2; 16]).encode(1);
        testing::refuses_every_flip(&bytes, |bytes| Superblock::decode(bytes, 1));
    }

    #[test]
    fn a_superblock_torn_at_any_512_bytes_is_refused() {
        let older = Superblock::new(FORMAT, small(8, 64), [1; 16], [2; 16]);
        let newer = Superblock { sequence: 2, ..older.clone() };
        testing::refuses_every_tear(&older.encode(0), &newer.encode(0), |bytes| Superblock::decode(bytes, 0));
    }

    #[test]
    fn an_impossible_field_of_a_superblock_is_refused() {
        testing::refuses_forgeries(
            &Superblock::new(FORMAT, small(8, 64), [1; 16], [2; 16]).encode(0),
            |bytes| Superblock::decode(bytes, 0),
            &[
                (28, &[1], "bytes without a meaning"),
                (32, &[0], "format id"),
                (87, &[0x40], "sequence"),
                (88, &[0], "epoch"),
                (95, &[0x40], "epoch"),
                (96, &[0], "cut"),
                (103, &[0xff], "cut"),
                (111, &[0x40], "checkpoint number"),
                (112, &[0], "checkpoint seq"),
                (143, &[0x40], "checkpoint seq"),
                (120, &[2], "map area"),
                (124, &[2], "map area"),
                (144, &[0; 8], "geometry"),
                (144, &[0xff; 8], "geometry"),
                (152, &[3], "geometry"),
                (156, &[0xff; 4], "geometry"),
                (160, &[0; 4], "geometry"),
                (164, &[0xff; 4], "geometry"),
                (168, &[0xff; 4], "geometry"),
                (172, &[0xc], "flags"),
                (172, &[0x10], "flags"),
                (176, &[65], "count of marks"),
                (180, &[1], "bytes without a meaning"),
                (3_967, &[1], "bytes without a meaning"),
                (3_975, &[0x40], "total"),
                (4_047, &[0x40], "total"),
                (4_048, &[1], "bytes without a meaning"),
            ],
        );
        // Two marks: of blocks in ascending order, on the volume, with nothing between block and checksum.
        let marks = vec![Mark { block: Block(3), crc: 1 }, Mark { block: Block(5), crc: 2 }];
        testing::refuses_forgeries(
            &Superblock { marks, ..Superblock::new(FORMAT, small(8, 64), [1; 16], [2; 16]) }.encode(0),
            |bytes| Superblock::decode(bytes, 0),
            &[(180, &[5], "mark"), (180, &[6], "mark"), (186, &[1], "mark"), (195, &[1], "mark")],
        );
    }

    #[test]
    fn another_version_is_told_from_a_flipped_bit() {
        let mut bytes = Superblock::new(FORMAT, small(8, 64), [1; 16], [2; 16]).encode(0);
        bytes[4] = VERSION as u8 + 1;
        assert_eq!(Superblock::decode(&bytes, 0), Err(Unsealed::Checksum));
        let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[28..]), &bytes[..24]);
        put_u32(&mut bytes, 24, crc);
        assert_eq!(Superblock::decode(&bytes, 0), Err(Unsealed::Version(VERSION + 1)));
    }

    #[test]
    fn a_blank_disk_holds_no_superblock_and_nothing_foreign() {
        assert_eq!(Superblock::decode(&[0; PAGE], 0), Err(Unsealed::Blank));
        assert_eq!(foreign(&[0; 128 << 10]), None);
        assert_eq!(foreign(&[]), None);
        assert_eq!(foreign(&[0, 0, 7]), Some("unknown data"));
    }

    #[test]
    fn what_another_disk_holds_is_named() {
        let disk = |parts: &[(usize, &[u8])]| {
            let mut disk = vec![0; 128 << 10];
            parts.iter().for_each(|(at, magic)| disk[*at..at + magic.len()].copy_from_slice(magic));
            disk
        };
        for (at, magic, name) in SIGNATURES {
            assert_eq!(foreign(&disk(&[(*at, magic)])), Some(*name));
        }
        let ext = (1024 + 56, &[0x53, 0xef][..]);
        assert_eq!(foreign(&disk(&[ext])), Some("an ext2 file system"));
        assert_eq!(foreign(&disk(&[ext, (1024 + 92, &[4])])), Some("an ext3 file system"));
        assert_eq!(foreign(&disk(&[ext, (1024 + 92, &[4]), (1024 + 96, &[0x42])])), Some("an ext4 file system"));
        assert_eq!(foreign(&disk(&[(512, b"LABELONE"), (536, b"LVM2 001")])), Some("an LVM physical volume"));
        assert_eq!(foreign(&disk(&[(16500, b"pool_guid")])), Some("a member of a ZFS pool"));
        let boot = (510, &[0x55, 0xaa][..]);
        assert_eq!(foreign(&disk(&[boot])), Some("a partition table or a boot sector"));
        assert_eq!(foreign(&disk(&[boot, (512, b"EFI PART")])), Some("a GPT partition table"));
        assert_eq!(foreign(&disk(&[boot, (82, b"FAT32   ")])), Some("a FAT file system"));
    }

    // The figures of docs/format.md.
    #[test]
    fn offsets_are_as_documented() {
        let geometry = small(8, 64);
        let superblock = Superblock {
            sequence: 0x11,
            epoch: 0x22,
            cut: 0x33,
            checkpoint: MapRef { number: 0x44, seq: 0x55, area: 0 },
            previous: MapRef { number: 0x66, seq: 0x77, area: 1 },
            clean: true,
            detached: true,
            mode: Mode::ReadOnly,
            written: Written { clients: 0x88, cache: ByCause([1, 2, 3, 4, 5, 6, 7, 8, 9]) },
            ..Superblock::new(FORMAT, geometry, [0xaa; 16], [0xbb; 16])
        };
        let bytes = superblock.encode(1);
        assert_eq!(bytes.len() as u64, PAGE_BYTES);
        assert_eq!(&bytes[..4], b"TIDS");
        assert_eq!(get_u64(&bytes, 16), 1024);
        assert_eq!((get_id(&bytes, 32), get_id(&bytes, 48), get_id(&bytes, 64)), (FORMAT.0, [0xaa; 16], [0xbb; 16]));
        assert_eq!(
            [80, 88, 96, 104, 112, 128, 136, 144].map(|at| get_u64(&bytes, at)),
            [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 100_003]
        );
        assert_eq!([120, 124, 152, 156, 160, 164, 168, 172].map(|at| get_u32(&bytes, at)), [0, 1, 8, 64, 70, 16, 300, 0xb]);
        assert_eq!((bytes[4], Superblock { checksum: Checksum::Crc, ..superblock }.encode(1)[4]), (2, 1));
        assert_eq!([3_968, 3_976, 4_040].map(|at| get_u64(&bytes, at)), [0x88, 1, 9]);
    }
}

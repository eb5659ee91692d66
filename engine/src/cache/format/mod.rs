//! What lies on the SSD, byte for byte (docs/format.md): bytes to structures and back.
//!
//! Pure functions without I/O. Everything is little-endian and under a CRC-32C. Bytes from the SSD are hostile: every count and every
//! address is checked before it is used, and what cannot be is an [`Unsealed`], never a panic. What the engine hands in to be written
//! is asserted to be possible: writing a page that recovery would refuse is a bug.

mod bits;
pub mod geometry;
pub mod header;
pub mod journal;
pub mod map;
mod seal;
pub mod superblock;
#[cfg(test)]
pub(super) mod testing;

pub use bits::Bits;
pub use geometry::Geometry;
pub use header::Header;
pub use journal::{Page, PageBuilder, PageHead, Record};
pub use map::{MapSet, Range, RangeKind, SetState};
pub use superblock::{MapRef, Mark, Superblock};

use crate::block::{Atoms, Block, Span};
use crate::op::Zone;
use std::fmt;

/// The version of a format, as its superblocks say it: what is formatted now, and those that are read and written. Another one is refused.
pub const VERSION: u16 = 2;
pub const KNOWN_VERSIONS: &str = "1 and 2";
/// Pages of other kinds have been the same in all of them, and say so.
const PAGE_VERSION: u16 = 1;
/// Lives, epochs and all numbers that count up are smaller: none gets there in the life of an SSD. A state map keeps the state of a set in the two bits
/// above its life.
pub const NUMBER_END: u64 = 1 << 62;
/// Those that are believed are smaller still: whatever is added to them, in the life of an SSD, they can be written again.
pub const READ_END: u64 = NUMBER_END - (1 << 48);

/// Drawn at random when the SSD is formatted. Every page names it, so nothing of a former life is taken for valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FormatId(pub [u8; 16]);

/// Why bytes are not the page that was looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsealed {
    /// Nothing was ever written here: the magic is zero.
    Blank,
    /// Another kind of page, or no page at all.
    Magic,
    /// Intact, but written by another version of the format.
    Version(u16),
    /// A page of another format id: the SSD was formatted since.
    Format,
    /// Intact, but written for another place (a misdirected write).
    Address,
    /// Damaged or torn.
    Checksum,
    /// Intact, but this field cannot be.
    Field(&'static str),
}

impl fmt::Display for Unsealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unsealed::Blank => write!(f, "nothing was written there"),
            Unsealed::Magic => write!(f, "no page of this kind"),
            Unsealed::Version(version) => write!(f, "a page of format version {version}, where this program knows {KNOWN_VERSIONS}"),
            Unsealed::Format => write!(f, "a page of an earlier format of this SSD"),
            Unsealed::Address => write!(f, "a page that belongs to another place"),
            Unsealed::Checksum => write!(f, "the checksum does not match"),
            Unsealed::Field(field) => write!(f, "an impossible value ({field})"),
        }
    }
}

/// One slot of a set as headers and PUT records describe it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Whose contents the slot holds.
    pub block: Block,
    /// Which atoms of the slot count; none beyond the end of the volume.
    pub valid: Atoms,
    /// [Checksum](crate::payload::Checksum) of the whole slot as it was written: the atoms that do not count are under it too.
    pub crc: u32,
}

/// A place in the log: which journal page. Ordered by epoch, then by sequence number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    pub epoch: u64,
    pub seq: u64,
}

/// One step of formatting an SSD; each is complete before the next one starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Write(Zone, Span, Vec<u8>),
    Flush,
}

/// Everything that formatting an SSD takes, in this order.
///
/// Everything before the maps is zeroed first, both superblocks with it: half a format is no format, and no tool takes the SSD
/// for what it was before. The rest needs no wiping: the new format id disowns it.
pub fn create_steps(superblock: &Superblock) -> Vec<Step> {
    const CHUNK_ATOMS: u64 = 256;
    let geometry = &superblock.geometry;
    let area = geometry.zone(Zone::Superblock);
    let mut steps = Vec::new();
    for start in (area.start..area.end()).step_by(CHUNK_ATOMS as usize) {
        let span = Span::new(start, CHUNK_ATOMS.min(area.end() - start));
        steps.push(Step::Write(Zone::Superblock, span, vec![0; span.bytes() as usize]));
    }
    steps.push(Step::Flush);
    for copy in 0..2 {
        steps.push(Step::Write(Zone::Superblock, geometry.superblock(copy), superblock.encode(copy)));
        steps.push(Step::Flush);
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Slot;
    use crate::payload::Checksum;

    #[test]
    fn formatting_zeroes_both_superblocks_before_it_writes_one() {
        let superblock = Superblock::new(testing::FORMAT, testing::small(8, 64), [1; 16], [2; 16]);
        let steps = create_steps(&superblock);
        let mut disk = vec![0xffu8; 1 << 20];
        let mut valid = Vec::new();
        for step in &steps {
            match step {
                Step::Write(zone, span, bytes) => {
                    assert!(superblock.geometry.zone(*zone).contains(*span));
                    disk[span.offset() as usize..][..bytes.len()].copy_from_slice(bytes);
                    assert_eq!(bytes.len() as u64, span.bytes());
                }
                Step::Flush => {
                    let at = |copy| superblock.geometry.superblock(copy).offset() as usize;
                    valid.push([0, 1].map(|copy| Superblock::decode(&disk[at(copy)..][..4096], copy)));
                }
            }
        }
        let (blank, ours) = (Err(Unsealed::Blank), Ok(superblock));
        assert_eq!(valid, [[blank.clone(), blank.clone()], [ours.clone(), blank], [ours.clone(), ours]]);
        assert!(disk[4096..512 << 10].iter().all(|&byte| byte == 0), "traces of what was there before");
    }

    /// The sizes and places of the fields as docs/format.md tells them: each structure is one table, whose caption says how long it is.
    #[test]
    fn the_tables_of_the_document_have_no_gap_and_no_overlap() {
        let document = include_str!("../../../../docs/format.md");
        let mut structures = 0;
        for section in document.split("\n### ").skip(1) {
            let (title, body) = section.split_once('\n').unwrap();
            let Some(length) = title.split_once(", ").and_then(|(_, length)| length.strip_suffix(" bytes")) else { continue };
            let rows = body.lines().skip_while(|line| !line.starts_with("| offset")).skip(2).take_while(|line| line.starts_with("| "));
            let end = rows.fold(0, |end, row| {
                let cells: Vec<&str> = row.split('|').map(str::trim).collect();
                assert_eq!(cells[1].parse(), Ok(end), "{title}: {row}");
                end + cells[2].parse::<u32>().unwrap_or_else(|_| panic!("{title}: {row}"))
            });
            assert_eq!(length.parse(), Ok(end), "{title}");
            structures += 1;
        }
        assert_eq!(structures, 9);
    }

    /// Pages as they were first written in their version: whoever changes one of these numbers makes another version.
    #[test]
    fn a_version_stays_what_it_is() {
        let geometry = testing::small(8, 64);
        let sealed = Position { epoch: 2, seq: 3 };
        let entry = Entry { block: Block(4), valid: Atoms(5), crc: 6 };
        let set = MapSet { life: 7, state: SetState::Sealed, sealed, live: Bits::from_words(&[8]), dirty: Bits::new(64) };
        let lost = Range::Lost { block: Block(9), atoms: Atoms(10) };
        let mut builder = PageBuilder::new(&geometry);
        builder.put(Slot { set: 1, slot: 2 }, 3, true, false, &[entry]);
        let head = PageHead { epoch: 4, seq: 5, durable: 3, previous: 6, group_offset: 0, records: 0, first: true, last: true };
        let superblock = Superblock::new(testing::FORMAT, geometry, [1; 16], [2; 16]);
        let pages = [
            // Of version 1, and of version 2.
            Superblock { checksum: Checksum::Crc, ..superblock.clone() }.encode(1),
            superblock.encode(1),
            Header { set: 1, life: 7, stream: 1, sealed, entries: vec![entry] }.encode(&geometry, testing::FORMAT, true),
            map::encode_sets(&geometry, testing::FORMAT, 1, 0, 11, &vec![set; 70]),
            map::encode_ranges(&geometry, testing::FORMAT, 1, 1, 11, 1, &[lost]),
            builder.seal(testing::FORMAT, 12, head).0,
        ];
        let golden = pages.map(|page| seal::get_u32(&page, 24));
        assert_eq!(golden, [0x1375_05ef, 0x4ab1_1d28, 0xe4e3_6665, 0xb45e_30f9, 0xe443_0d7f, 0xc489_c91f], "{golden:#x?}");
    }

    #[test]
    fn positions_are_ordered_by_epoch_first() {
        assert!(Position { epoch: 1, seq: 9 } < Position { epoch: 2, seq: 3 });
        assert!(Position { epoch: 2, seq: 3 } < Position { epoch: 2, seq: 4 });
    }

    #[test]
    fn every_refusal_reads_as_one_line() {
        for why in [
            Unsealed::Blank,
            Unsealed::Magic,
            Unsealed::Version(3),
            Unsealed::Format,
            Unsealed::Address,
            Unsealed::Checksum,
            Unsealed::Field("set"),
        ] {
            assert!(!why.to_string().is_empty() && !why.to_string().contains('\n'));
        }
    }
}

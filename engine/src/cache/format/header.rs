//! The header of a set: which block is in which slot. Written once in a life of the set, when it is sealed, in two places: what changes
//! later is a record in the journal, so no header can be torn while it is the only copy of what it says.
//!
//! ```text
//! 0 seal 28 | 28 set 4 | 32 life 8 | 40 epoch, 48 seq of SEAL's page 8 + 8 | 56 slots 2 | 58 stream 1 | 59 zero 5 | 64 entries …
//! entry, blocks up to 8 atoms: 0 block 6 | 6 valid 1 | 7 zero 1 | 8 checksum 4
//! entry, blocks above 8 atoms: 0 block 6 | 6 zero 2 | 8 checksum 4 | 12 valid 2 to 16
//! ```

use super::seal::{self, HEAD_BYTES, Magic, PAGE, check, get_u16, get_u32, get_u48, get_u64, put_u16, put_u32, put_u48, put_u64};
use super::{Entry, FormatId, Geometry, NUMBER_END, Position, READ_END, Unsealed};
use crate::block::{Atoms, Block};

const MAGIC: Magic = *b"TIDH";

/// What the header of a set says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub set: u32,
    /// Grows by one whenever the set is opened.
    pub life: u64,
    /// Which kind of contents was placed here together.
    pub stream: u8,
    /// Of the journal page that holds this life's SEAL. A header that a state map or a SEAL does not name with the same life and the
    /// same position is of another past.
    pub sealed: Position,
    /// One for each slot from 0, at most the set's slots. A burned slot (taken, never usable) has no valid atom.
    pub entries: Vec<Entry>,
}

impl Header {
    /// The pages for one of the two places.
    pub fn encode(&self, geometry: &Geometry, format: FormatId, copy: bool) -> Vec<u8> {
        let mut bytes = self.unsealed(geometry);
        seal::seal(&mut bytes, MAGIC, format, address(geometry, self.set, copy));
        bytes
    }

    /// Those for both. Only their seals differ.
    pub fn encode_both(&self, geometry: &Geometry, format: FormatId) -> [Vec<u8>; 2] {
        let bytes = self.unsealed(geometry);
        let mut both = [bytes.clone(), bytes];
        for (bytes, copy) in both.iter_mut().zip([false, true]) {
            seal::seal(bytes, MAGIC, format, address(geometry, self.set, copy));
        }
        both
    }

    fn unsealed(&self, geometry: &Geometry) -> Vec<u8> {
        assert!(self.entries.len() <= geometry.set_slots as usize, "more entries than slots");
        assert!(self.life < NUMBER_END, "a life beyond the last one");
        let codec = EntryCodec::new(geometry);
        let mut bytes = vec![0; geometry.header_pages() as usize * PAGE];
        put_u32(&mut bytes, 28, self.set);
        put_u64(&mut bytes, 32, self.life);
        put_u64(&mut bytes, 40, self.sealed.epoch);
        put_u64(&mut bytes, 48, self.sealed.seq);
        put_u16(&mut bytes, 56, self.entries.len() as u16);
        bytes[58] = self.stream;
        for (entry, place) in self.entries.iter().zip(bytes[HEAD_BYTES..].chunks_exact_mut(codec.bytes)) {
            codec.encode(entry, place);
        }
        bytes
    }

    /// The header of `set` from one of its two places.
    pub fn decode(bytes: &[u8], geometry: &Geometry, format: FormatId, set: u32, copy: bool) -> Result<Header, Unsealed> {
        let sound = Sound::check(bytes, geometry, format, set, copy)?;
        Ok(Header { set, life: sound.life, stream: bytes[58], sealed: sound.sealed, entries: sound.entries().collect() })
    }
}

/// A header of which every field was checked. Its entries stay where they are: recovery reads millions of them, each once.
pub struct Sound<'a> {
    pub life: u64,
    pub sealed: Position,
    /// Every entry is of a whole block (and not of the last one of the volume, which may be short).
    pub is_whole: bool,
    records: &'a [u8],
    codec: EntryCodec,
}

impl<'a> Sound<'a> {
    pub fn check(bytes: &'a [u8], geometry: &Geometry, format: FormatId, set: u32, copy: bool) -> Result<Sound<'a>, Unsealed> {
        seal::unseal(bytes, geometry.header_pages() as usize * PAGE, MAGIC, format, address(geometry, set, copy))?;
        check(get_u32(bytes, 28) == set, "set")?;
        let life = get_u64(bytes, 32);
        check(life < READ_END, "life")?;
        let sealed = Position { epoch: get_u64(bytes, 40), seq: get_u64(bytes, 48) };
        let slots = usize::from(get_u16(bytes, 56));
        check(slots <= geometry.set_slots as usize, "slots")?;
        seal::zeros(&bytes[59..HEAD_BYTES])?;

        let codec = EntryCodec::new(geometry);
        let (records, rest) = bytes[HEAD_BYTES..].split_at(slots * codec.bytes);
        let is_whole = codec.check_all(records)?;
        seal::zeros(rest)?;
        Ok(Sound { life, sealed, is_whole, records, codec })
    }

    /// One for each slot from 0.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = Entry> + Clone + use<'a> {
        let codec = self.codec;
        self.records.chunks_exact(codec.bytes).map(move |record| codec.read(record))
    }
}

fn address(geometry: &Geometry, set: u32, copy: bool) -> u64 {
    if copy { geometry.header_copy(set).start } else { geometry.header(set).start }
}

/// Bytes of an entry: 12, and the mask behind it where a byte cannot hold it.
pub(in crate::cache) const fn entry_bytes(block_atoms: u32) -> usize {
    if block_atoms <= 8 { 12 } else { 12 + block_atoms as usize / 8 }
}

/// Entries of headers and PUT records to bytes and back.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntryCodec {
    /// Of one entry.
    pub bytes: usize,
    /// A whole block.
    full: Atoms,
    /// The last block, which the volume may cut short.
    last: (Block, Atoms),
}

impl EntryCodec {
    pub fn new(geometry: &Geometry) -> Self {
        let last = Block(geometry.blocks() - 1);
        EntryCodec {
            bytes: entry_bytes(geometry.block_atoms),
            full: Atoms::first(geometry.block_atoms),
            last: (last, Atoms::first(geometry.block_span(last).atoms as u32)),
        }
    }

    /// Is this a block of the volume, and are these atoms of it?
    pub fn fits(&self, block: Block, atoms: Atoms) -> bool {
        block < self.last.0 && self.full.contains(atoms) || block == self.last.0 && self.last.1.contains(atoms)
    }

    /// Into exactly `bytes` bytes.
    pub fn encode(&self, entry: &Entry, place: &mut [u8]) {
        assert!(self.fits(entry.block, entry.valid), "{entry:?} is beyond the volume or the block");
        put_u48(place, 0, entry.block.0);
        put_u32(place, 8, entry.crc);
        if self.bytes == 12 {
            place[6] = entry.valid.0 as u8;
            place[7] = 0;
        } else {
            put_u16(place, 6, 0);
            place[12..].copy_from_slice(&entry.valid.0.to_le_bytes()[..self.bytes - 12]);
        }
    }

    /// Appends what whole entries say.
    pub fn decode_all(&self, records: &[u8], entries: &mut Vec<Entry>) -> Result<(), Unsealed> {
        self.check_all(records)?;
        entries.extend(records.chunks_exact(self.bytes).map(|record| self.read(record)));
        Ok(())
    }

    /// Checks entries. True: each is of a whole block, and none of the last one.
    fn check_all(&self, records: &[u8]) -> Result<bool, Unsealed> {
        // What is whole cannot be wrong; all the rest is rare, and looked at one by one.
        let is_whole = self.bytes == 12 && self.are_whole(records.as_chunks::<12>().0);
        if !is_whole {
            records.chunks_exact(self.bytes).try_for_each(|record| self.decode(record).map(drop))?;
        }
        Ok(is_whole)
    }

    fn are_whole(&self, records: &[[u8; 12]]) -> bool {
        // Valid atoms and the zero byte behind them, which stand above the block.
        let (full, last) = (self.full.0 as u64, self.last.0.0);
        records.iter().fold(true, |whole, record| {
            let head = get_u64(record, 0);
            whole & (head >> 48 == full) & (head & ((1 << 48) - 1) < last)
        })
    }

    /// From exactly `bytes` bytes.
    pub fn decode(&self, record: &[u8]) -> Result<Entry, Unsealed> {
        seal::zeros(if self.bytes == 12 { &record[7..8] } else { &record[6..8] })?;
        let entry = self.read(record);
        check(self.fits(entry.block, entry.valid), "block or valid atoms")?;
        Ok(entry)
    }

    /// As [`EntryCodec::decode`], of what was checked.
    #[inline]
    fn read(&self, record: &[u8]) -> Entry {
        let valid = if self.bytes == 12 {
            u128::from(record[6])
        } else {
            let mut mask = [0; 16];
            mask[..self.bytes - 12].copy_from_slice(&record[12..]);
            u128::from_le_bytes(mask)
        };
        Entry { block: Block(get_u48(record, 0)), valid: Atoms(valid), crc: get_u32(record, 8) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, FORMAT, geometries, large, small};
    use super::*;
    use proptest::prelude::*;

    fn header(geometry: &Geometry) -> impl Strategy<Value = Header> + use<> {
        let burned = Entry { block: Block(0), valid: Atoms::NONE, crc: 0 };
        let entry = prop_oneof![9 => testing::entry(geometry), 1 => Just(burned)];
        let entries = proptest::collection::vec(entry, 0..=geometry.set_slots as usize);
        (0..geometry.sets, 0..READ_END, any::<u8>(), testing::position(), entries).prop_map(|(set, life, stream, sealed, entries)| Header {
            set,
            life,
            stream,
            sealed,
            entries,
        })
    }

    /// A full one.
    fn full(geometry: &Geometry, life: u64) -> Header {
        let valid = Atoms::first(geometry.block_atoms);
        let entry = |slot: u32| Entry { block: Block(u64::from(slot) * 3), valid, crc: slot ^ life as u32 };
        let entries = (0..geometry.set_slots).map(entry).collect();
        Header { set: 5, life, stream: 2, sealed: Position { epoch: 3, seq: life + 1000 }, entries }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_header_reads_as_it_was_written(
            (geometry, header) in geometries().prop_flat_map(|geometry| (Just(geometry), header(&geometry))), copy in any::<bool>()
        ) {
            let bytes = header.encode(&geometry, FORMAT, copy);
            prop_assert_eq!(&header.encode_both(&geometry, FORMAT)[usize::from(copy)], &bytes);
            prop_assert_eq!(bytes.len() as u64, geometry.header(0).bytes());
            prop_assert_eq!(Header::decode(&bytes, &geometry, FORMAT, header.set, copy), Ok(header.clone()));
            let elsewhere = Header::decode(&bytes, &geometry, FORMAT, header.set, !copy);
            prop_assert_eq!(elsewhere, Err(Unsealed::Address));
            let other_set = Header::decode(&bytes, &geometry, FORMAT, (header.set + 1) % geometry.sets, copy);
            prop_assert_eq!(other_set, Err(Unsealed::Address));
            let other_format = Header::decode(&bytes, &geometry, FormatId([1; 16]), header.set, copy);
            prop_assert_eq!(other_format, Err(Unsealed::Format));
        }

        /// What is not refused can be written again, byte for byte: no two readings of one header.
        #[test]
        fn a_scribbled_and_sealed_header_is_refused_or_means_one_thing(
            (geometry, header) in geometries().prop_flat_map(|geometry| (Just(geometry), header(&geometry))), scribbles in testing::scribbles()
        ) {
            let mut bytes = header.encode(&geometry, FORMAT, false);
            scribbles.iter().for_each(|&(at, byte)| bytes[at] = byte);
            seal::seal(&mut bytes, MAGIC, FORMAT, address(&geometry, header.set, false));
            if let Ok(read) = Header::decode(&bytes, &geometry, FORMAT, header.set, false) {
                prop_assert_eq!(read.encode(&geometry, FORMAT, false), bytes);
            }
        }

        #[test]
        fn any_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..9000)) {
            prop_assert!(Header::decode(&bytes, &small(8, 512), FORMAT, 0, false).is_err());
        }
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_refused() {
        for geometry in [small(8, 256), small(1, 512), small(128, 64)] {
            let bytes = full(&geometry, 7).encode(&geometry, FORMAT, true);
            testing::refuses_every_flip(&bytes, |bytes| Header::decode(bytes, &geometry, FORMAT, 5, true));
        }
    }

    #[test]
    fn a_header_torn_at_any_512_bytes_is_refused() {
        for geometry in [small(8, 256), small(8, 2048)] {
            let pages = [7, 8].map(|life| full(&geometry, life).encode(&geometry, FORMAT, false));
            testing::refuses_every_tear(&pages[0], &pages[1], |bytes| Header::decode(bytes, &geometry, FORMAT, 5, false));
        }
    }

    #[test]
    fn an_impossible_field_of_a_header_is_refused() {
        let geometry = small(8, 64);
        let last = Entry { block: Block(geometry.blocks() - 1), valid: Atoms(0b111), crc: 0 };
        let header = Header { entries: vec![last; 3], ..full(&geometry, 7) };
        let decode = |bytes: &[u8]| Header::decode(bytes, &geometry, FORMAT, 5, false);
        testing::refuses_forgeries(
            &header.encode(&geometry, FORMAT, false),
            decode,
            &[
                (28, &[6], "set"),
                (39, &[0x40], "life"),
                (56, &[65], "slots"),
                (56, &[0xff, 0xff], "slots"),
                (56, &[2], "bytes without a meaning"),
                (59, &[1], "bytes without a meaning"),
                (69, &[1], "block or valid atoms"),
                (70, &[0b1000], "block or valid atoms"),
                (71, &[1], "bytes without a meaning"),
            ],
        );
        // The mask has bytes of its own above 8 atoms.
        let geometry = small(16, 64);
        let bytes = full(&geometry, 7).encode(&geometry, FORMAT, false);
        let forged = testing::forged(&bytes, 70, &[1]);
        let refused = Header::decode(&forged, &geometry, FORMAT, 5, false);
        assert_eq!(refused, Err(Unsealed::Field("bytes without a meaning")));
    }

    #[test]
    fn a_header_says_whether_every_block_is_whole() {
        for geometry in [small(8, 64), small(4, 64), large()] {
            let is_whole = |entries: &[Entry]| {
                let header = Header { entries: entries.to_vec(), ..full(&geometry, 7) };
                let bytes = header.encode(&geometry, FORMAT, false);
                Sound::check(&bytes, &geometry, FORMAT, 5, false).map(|sound| sound.is_whole)
            };
            let whole = full(&geometry, 7).entries;
            assert_eq!(is_whole(&whole), Ok(true));
            assert_eq!(is_whole(&[]), Ok(true));
            let partial = Entry { valid: Atoms(1), ..whole[0] };
            assert_eq!(is_whole(&[whole[0], partial]), Ok(false));
            let last = Entry { block: Block(geometry.blocks() - 1), valid: Atoms(1), crc: 0 };
            assert_eq!(is_whole(&[whole[0], last]), Ok(false));
        }
    }

    // The figures of docs/format.md.
    #[test]
    fn sizes_and_offsets_are_as_documented() {
        let sizes = [1, 2, 4, 8, 16, 32, 64, 128].map(entry_bytes);
        assert_eq!(sizes, [12, 12, 12, 12, 14, 16, 20, 28]);
        let pages = [64, 256, 512, 2048].map(|slots| small(8, slots).header_pages());
        assert_eq!(pages, [1, 1, 2, 7]);

        let geometry = small(8, 64);
        let entry = Entry { block: Block(0x0102), valid: Atoms(0xa5), crc: 0xdead_beef };
        let sealed = Position { epoch: 0x3333, seq: 0x4444 };
        let bytes = Header { set: 0x11, life: 0x2222, stream: 0x55, sealed, entries: vec![entry; 2] }.encode(&geometry, FORMAT, false);
        assert_eq!(&bytes[..4], b"TIDH");
        assert_eq!(bytes[4..8], [1, 0, 0, 0]);
        assert_eq!(bytes[8..16], FORMAT.0[..8]);
        assert_eq!(get_u64(&bytes, 16), geometry.header(0x11).start);
        let mut covered = bytes[28..].to_vec();
        covered.extend_from_slice(&bytes[..24]);
        assert_eq!(get_u32(&bytes, 24), crc32c::crc32c(&covered));
        assert_eq!((get_u32(&bytes, 28), get_u64(&bytes, 32)), (0x11, 0x2222));
        assert_eq!((get_u64(&bytes, 40), get_u64(&bytes, 48)), (0x3333, 0x4444));
        assert_eq!((get_u16(&bytes, 56), bytes[58]), (2, 0x55));
        assert_eq!(bytes[64..76], [2, 1, 0, 0, 0, 0, 0xa5, 0, 0xef, 0xbe, 0xad, 0xde]);
        assert_eq!(bytes[64..76], bytes[76..88]);

        let geometry = small(64, 64);
        let entries = vec![Entry { block: Block(0x0102), valid: Atoms(0x0807_0605_0403_02a5), crc: 0xdead_beef }];
        let bytes = Header { set: 0, life: 1, stream: 0, sealed, entries }.encode(&geometry, FORMAT, false);
        assert_eq!(bytes[64..84], [2, 1, 0, 0, 0, 0, 0, 0, 0xef, 0xbe, 0xad, 0xde, 0xa5, 2, 3, 4, 5, 6, 7, 8]);
    }
}

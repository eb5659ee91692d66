//! Pages of the SSD, sealed: any contents behind a seal that holds. What is not refused means one thing, and can be written again.

use tidegate_engine::cache::format::journal::{self, Page, Record};
use tidegate_engine::cache::format::map::{decode_ranges, decode_sets, encode_ranges, encode_sets};
use tidegate_engine::cache::format::{FormatId, Geometry, Header, PageBuilder, Superblock};

use crate::input::Input;
use crate::seal::{SEAL_BYTES, seal};

const FORMAT: FormatId = FormatId([0x5a; 16]);
const PAGE: usize = 4096;

/// Small sizes of every kind, with a short last block.
fn geometry(input: &mut Input) -> Geometry {
    let (block, slots) = (input.below(8), 3 + input.below(9));
    Geometry { block_atoms: 1 << block, set_slots: 1 << slots, sets: 70, journal_pages: 16, volume_atoms: 100_003, range_entries: 300 }
}

/// The rest of the input behind a seal.
fn page(input: Input, bytes: usize, magic: &[u8; 4], address: u64) -> Vec<u8> {
    let mut page = vec![0; bytes];
    let contents = &input.0[..input.0.len().min(bytes - SEAL_BYTES)];
    page[SEAL_BYTES..SEAL_BYTES + contents.len()].copy_from_slice(contents);
    seal(&mut page, magic, FORMAT, address);
    page
}

pub fn superblock(data: &[u8]) {
    let mut input = Input(data);
    let drawn = input.below(4) as u32;
    let (copy, version) = (drawn % 2, 1 + drawn / 2);
    let mut page = page(input, PAGE, b"TIDS", u64::from(copy) * 1_024);
    // The whole id stands behind the seal too: guessing it would teach nobody anything.
    page[32..48].copy_from_slice(&FORMAT.0);
    page[4] = version as u8;
    seal(&mut page, b"TIDS", FORMAT, u64::from(copy) * 1_024);
    if let Ok(superblock) = Superblock::decode(&page, copy) {
        assert_eq!(superblock.encode(copy), page, "two readings of one superblock");
        assert!(superblock.geometry.data_start() < superblock.geometry.cache_atoms());
    }
}

pub fn header(data: &[u8]) {
    let mut input = Input(data);
    let (geometry, copy, set) = (geometry(&mut input), input.below(2) == 1, input.below(70) as u32);
    let address = if copy { geometry.header_copy(set) } else { geometry.header(set) }.start;
    let mut bytes = page(input, geometry.header_pages() as usize * PAGE, b"TIDH", address);
    bytes[SEAL_BYTES..SEAL_BYTES + 4].copy_from_slice(&set.to_le_bytes());
    seal(&mut bytes, b"TIDH", FORMAT, address);
    if let Ok(header) = Header::decode(&bytes, &geometry, FORMAT, set, copy) {
        assert_eq!(header.encode(&geometry, FORMAT, copy), bytes, "two readings of one header");
    }
}

pub fn map(data: &[u8]) {
    const NUMBER: u64 = 9;
    let mut input = Input(data);
    let (geometry, area) = (geometry(&mut input), input.below(2) as u32);
    let number = input.below(u64::from(geometry.map_pages() + geometry.range_pages())) as u32;
    let address = geometry.map_page(area, number).start;
    let of_sets = number < geometry.map_pages();
    let magic = if of_sets { b"TIDM" } else { b"TIDR" };
    let mut bytes = page(input, PAGE, magic, address);
    bytes[28..32].copy_from_slice(&number.to_le_bytes());
    bytes[32..40].copy_from_slice(&NUMBER.to_le_bytes());
    seal(&mut bytes, magic, FORMAT, address);
    if of_sets {
        if let Ok(sets) = decode_sets(&bytes, &geometry, FORMAT, area, number, NUMBER) {
            assert_eq!(encode_sets(&geometry, FORMAT, area, number, NUMBER, &sets), bytes, "two readings of one page of sets");
        }
    } else if let Ok((total, ranges)) = decode_ranges(&bytes, &geometry, FORMAT, area, number, NUMBER) {
        assert!(total <= geometry.range_entries, "more ranges than the table holds");
        assert_eq!(encode_ranges(&geometry, FORMAT, area, number, NUMBER, total, &ranges), bytes, "two readings of one page of ranges");
    }
}

pub fn journal(data: &[u8]) {
    let mut input = Input(data);
    let (geometry, place) = (geometry(&mut input), input.below(16) as u32);
    let bytes = page(input, PAGE, b"TIDJ", geometry.journal_page(place).start);
    let Ok(page) = journal::decode(&bytes, &geometry, FORMAT, place) else { return };
    let mut builder = PageBuilder::new(&geometry);
    for record in &page.records {
        assert!(builder.push(record), "what was on a page fits on a page");
    }
    let again = builder.seal(FORMAT, place, page.head).0;
    let again = journal::decode(&again, &geometry, FORMAT, place).expect("a page that was just written");
    assert_eq!(slot_by_slot(&again), slot_by_slot(&page), "two readings of one page of the journal");
}

/// PUTs slot by slot: writing joins those that follow one another.
fn slot_by_slot(page: &Page) -> Vec<Record> {
    let mut records = Vec::new();
    for record in &page.records {
        let Record::Put { slot, life, dirty, restate, entries } = record else {
            records.push(record.clone());
            continue;
        };
        for (at, entry) in entries.iter().enumerate() {
            let slot = tidegate_engine::block::Slot { slot: slot.slot + at as u32, ..*slot };
            records.push(Record::Put { slot, life: *life, dirty: *dirty, restate: *restate, entries: vec![*entry] });
        }
    }
    records
}

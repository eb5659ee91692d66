//! Forged metadata: what the format takes for intact, and what cannot be all the same. Damage changes a checksum; a bug, or malice, does
//! not, and a start must refuse it in words.

use crate::back::device::Device;
use crate::stamp::Stamps;
use tidegate_engine::block::{PAGE_ATOMS, PAGE_BYTES};
use tidegate_engine::cache::format::journal::{self, Page, Record};
use tidegate_engine::cache::format::map::{decode_sets, encode_sets};
use tidegate_engine::cache::format::{FormatId, Geometry, Header, MapRef, MapSet, PageBuilder, Superblock};
use tidegate_engine::op::Zone;
use tidegate_engine::payload::Payload;

/// The metadata of a cache that nobody has open.
pub struct Forge<'a> {
    pub cache: &'a mut Device,
    pub geometry: Geometry,
    pub format: FormatId,
}

impl Forge<'_> {
    fn bytes(&self, start: u64, pages: u64) -> Vec<u8> {
        (0..pages).flat_map(|page| self.cache.visible().page_bytes(start + page * PAGE_ATOMS)).collect()
    }

    fn put(&mut self, zone: Zone, start: u64, bytes: &[u8]) {
        self.cache.scribble(zone, start, Stamps::from_bytes(bytes));
    }

    // --- superblocks ---

    /// The newest superblock.
    pub fn superblock(&self) -> Superblock {
        let copies = (0..2).filter_map(|copy| Superblock::decode(&self.bytes(self.geometry.superblock(copy).start, 1), copy).ok());
        copies.max_by_key(|superblock| superblock.sequence).expect("a superblock")
    }

    /// Both copies say this.
    pub fn set_superblock(&mut self, superblock: &Superblock) {
        (0..2).for_each(|copy| self.set_superblock_copy(superblock, copy));
    }

    pub fn set_superblock_copy(&mut self, superblock: &Superblock, copy: u32) {
        self.put(Zone::Superblock, self.geometry.superblock(copy).start, &superblock.encode(copy));
    }

    // --- state map ---

    /// What a checkpoint says of the sets.
    pub fn sets(&self, map: MapRef) -> Vec<MapSet> {
        let page = |page| self.bytes(self.geometry.map_page(map.area, page).start, 1);
        let sets = |number| decode_sets(&page(number), &self.geometry, self.format, map.area, number, map.number);
        (0..self.geometry.map_pages()).flat_map(|number| sets(number).expect("an intact map")).collect()
    }

    pub fn set_sets(&mut self, map: MapRef, sets: &[MapSet]) {
        for (number, sets) in (0..).zip(sets.chunks(self.geometry.map_sets_per_page() as usize)) {
            let bytes = encode_sets(&self.geometry, self.format, map.area, number, map.number, sets);
            self.put(Zone::Map, self.geometry.map_page(map.area, number).start, &bytes);
        }
    }

    // --- headers ---

    /// One of the two headers of a set.
    pub fn header(&self, set: u32, copy: bool) -> Option<Header> {
        let span = if copy { self.geometry.header_copy(set) } else { self.geometry.header(set) };
        Header::decode(&self.bytes(span.start, span.atoms / PAGE_ATOMS), &self.geometry, self.format, set, copy).ok()
    }

    pub fn set_header(&mut self, header: &Header, copy: bool) {
        let (zone, span) = match copy {
            false => (Zone::Header, self.geometry.header(header.set)),
            true => (Zone::HeaderCopy, self.geometry.header_copy(header.set)),
        };
        self.put(zone, span.start, &header.encode(&self.geometry, self.format, copy));
    }

    // --- journal ---

    /// Every intact page with its place, in the order of their numbers.
    pub fn journal(&self) -> Vec<(u32, Page)> {
        let page = |place| journal::decode(&self.bytes(self.geometry.journal_page(place).start, 1), &self.geometry, self.format, place);
        let mut pages: Vec<(u32, Page)> = (0..self.geometry.journal_pages).filter_map(|place| Some((place, page(place).ok()?))).collect();
        pages.sort_by_key(|(_, page)| (page.head.seq, page.head.epoch));
        pages
    }

    /// Writes these pages, each naming the one before it.
    pub fn set_journal(&mut self, pages: &[(u32, Page)]) {
        let mut before: Option<(u64, u32)> = None;
        for (place, page) in pages {
            let mut head = page.head;
            if let Some((seq, crc)) = before
                && seq + 1 == head.seq
            {
                head.previous = crc;
            }
            let crc = self.set_page(*place, &Page { head, ..page.clone() });
            before = Some((head.seq, crc));
        }
    }

    /// Writes one page as it is; returns what the next one has to name.
    pub fn set_page(&mut self, place: u32, page: &Page) -> u32 {
        let mut builder = PageBuilder::new(&self.geometry);
        for record in &page.records {
            assert!(builder.push(record), "a forged page holds what it says");
        }
        let (bytes, crc) = builder.seal(self.format, place, page.head);
        self.put(Zone::Journal, self.geometry.journal_page(place).start, &bytes);
        crc
    }

    /// Changes the bytes of a page of the journal, and seals it again.
    pub fn reseal_page(&mut self, place: u32, change: impl FnOnce(&mut [u8])) {
        let start = self.geometry.journal_page(place).start;
        let mut bytes = self.bytes(start, 1);
        assert_eq!(bytes.len() as u64, PAGE_BYTES);
        change(&mut bytes);
        let bytes = journal::reseal(&bytes, &self.geometry, self.format, place).0;
        self.put(Zone::Journal, start, &bytes);
    }

    /// Changes the first record to be replayed that `change` takes; true: one was.
    pub fn change_record(&mut self, mut change: impl FnMut(&mut Record) -> bool) -> bool {
        let from = self.superblock().checkpoint.seq;
        let mut pages = self.journal();
        let mut replayed = pages.iter_mut().filter(|(_, page)| page.head.seq >= from);
        let changed = replayed.any(|(_, page)| page.records.iter_mut().any(&mut change));
        self.set_journal(&pages);
        changed
    }
}

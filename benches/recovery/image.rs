//! The metadata of a cache of 100 GiB as a long-running daemon leaves it behind in a crash: two state maps, the headers of all sealed
//! sets, and a journal ring that is full of pages, the newest of them a log to be replayed. Data is a hole: recovery hardly reads any.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde::Serialize;
use tidegate_daemon::back::run::Run;
use tidegate_engine::block::{Atoms, Block, PAGE_ATOMS, PAGE_BYTES, Slot, Span};
use tidegate_engine::cache::format::map::{encode_ranges, encode_sets};
use tidegate_engine::cache::format::{Bits, Entry, FormatId, Geometry, Header, MapRef, MapSet, Position, Record, SetState, Superblock};
use tidegate_engine::cache::journal::{Journal, PageRun};
use tidegate_engine::payload::Payload;

const FORMAT: FormatId = FormatId(*b"recovery bench 1");
const SLOTS: u32 = 256;
const SETS: u32 = 102_400;
/// Origin sets of the volume (1 TiB): a power of two, so that an odd factor walks through all of them.
const ORIGIN_SETS: u64 = 1 << 20;
/// Sets that stay free.
const FREE: u32 = 256;
const USED: u32 = SETS - FREE;
/// Dirty and clean sets take turns in stripes of this length, as a log in a ring of sets leaves them.
const STRIPE: u32 = 4096;
/// Sets written between two FLUSHes: a group of the journal.
const GROUP_SETS: u32 = 4;
/// Blocks of the last group, which nothing proves durable: their data is read and verified, and lies in a hole.
const TAIL_BLOCKS: u32 = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// A set holds an origin set: one extent.
    Sequential,
    /// A set holds blocks from all over the volume; an origin set has about 25 in the cache.
    Random,
}

/// What to write.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub what: &'static str,
    pub contents: Contents,
    /// Sets that only the journal tells of: opened, written and sealed since the last checkpoint.
    pub told: u32,
}

/// What was written, and recovery must find.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Written {
    /// Descriptions of slots in headers, and in PUTs to be replayed.
    pub entries: u64,
    pub clean: u64,
    pub dirty: u64,
}

pub fn geometry() -> Geometry {
    Geometry {
        block_atoms: 8,
        set_slots: SLOTS,
        sets: SETS,
        journal_pages: 16_384,
        volume_atoms: ORIGIN_SETS * u64::from(SLOTS) * 8,
        range_entries: 65_536,
    }
}

/// Everything that recovery reads of a sound SSD, in the order of the file. (It reads the header copies only of damaged headers.)
pub fn metadata() -> [Span; 3] {
    let geometry = geometry();
    let (first, second) = (geometry.map_area(0), geometry.map_area(1));
    [Span::new(first.start, second.end() - first.start), geometry.headers(), geometry.journal()]
}

/// Writes the image into the folder as `cache.img`, with an empty `origin.img` beside it.
pub fn write(folder: &Path, plan: &Plan) -> std::io::Result<Written> {
    let geometry = geometry();
    File::create(folder.join("origin.img"))?.set_len(geometry.volume_atoms * 512)?;
    let image = Image { plan, geometry, file: File::create(folder.join("cache.img"))? };
    image.file.set_len(geometry.cache_atoms() * 512)?;
    image.write_headers()?;
    let log = image.write_journal()?;
    image.write_maps()?;
    image.write_superblocks(log)?;
    image.file.sync_all()?;
    Ok(image.count())
}

/// A block number that no two `n` below 2^28 share and that says nothing about `n`.
fn scatter(n: u64) -> u64 {
    const MASK: u64 = (1 << 28) - 1;
    const { assert!(ORIGIN_SETS * SLOTS as u64 == MASK + 1) };
    let mut x = n.wrapping_mul(0x9e3_779b) & MASK;
    for factor in [0x85e_bca7, 0xc2b_2ae5] {
        x ^= x >> 14;
        x = x.wrapping_mul(factor) & MASK;
    }
    x ^ x >> 14
}

struct Image<'a> {
    plan: &'a Plan,
    geometry: Geometry,
    file: File,
}

/// The checkpoints in the log: where replay starts, and where the checkpoint before does.
struct Log {
    start: u64,
    previous: u64,
}

impl Image<'_> {
    /// Sets below this are described by the maps and their headers, those from here to `USED` by the journal.
    fn mapped(&self) -> u32 {
        USED - self.plan.told
    }

    /// Blocks written since the checkpoint in place of older ones: the older slot, if this is such a block.
    fn overwritten(&self, set: u32, slot: u32) -> Option<Slot> {
        let told = u64::from(set.checked_sub(self.mapped())?);
        // Odd factors: no older block is overwritten twice. The powers of two are below what is mapped.
        match self.plan.contents {
            Contents::Sequential if told % 2 == 1 => Some(Slot { set: (told * 25_717 % (1 << 16)) as u32, slot }),
            Contents::Random if slot % 2 == 1 => {
                let older = (told * u64::from(SLOTS / 2) + u64::from(slot / 2)) * 10_368_889 % (1 << 24);
                Some(Slot { set: (older / u64::from(SLOTS)) as u32, slot: (older % u64::from(SLOTS)) as u32 })
            }
            Contents::Sequential | Contents::Random => None,
        }
    }

    fn block(&self, set: u32, slot: u32) -> Block {
        let Slot { set, slot } = self.overwritten(set, slot).unwrap_or(Slot { set, slot });
        match self.plan.contents {
            Contents::Sequential => Block(u64::from(set) * 7919 % ORIGIN_SETS * u64::from(SLOTS) + u64::from(slot)),
            Contents::Random => Block(scatter(u64::from(set) * u64::from(SLOTS) + u64::from(slot))),
        }
    }

    fn is_tail(&self, set: u32) -> bool {
        set == USED - 1
    }

    fn entries(&self, set: u32) -> Vec<Entry> {
        let hole = crc32c::crc32c(&[0; 4096 + 8]); // With the sum of its words behind it.
        let (slots, crc) = if self.is_tail(set) { (TAIL_BLOCKS, Some(hole)) } else { (SLOTS, None) };
        let entry = |slot| {
            let block = self.block(set, slot);
            Entry { block, valid: Atoms::first(8), crc: crc.unwrap_or((block.0 as u32).wrapping_mul(0x9e37_79b1)) }
        };
        (0..slots).map(entry).collect()
    }

    /// What the maps say of a slot below `mapped`: is it live, and dirty?
    fn state(&self, set: u32, slot: u32) -> (bool, bool) {
        let live = self.plan.contents == Contents::Sequential || slot != 17;
        (live, live && (set / STRIPE).is_multiple_of(2) && slot % 4 != 3)
    }

    fn sealed(set: u32) -> Position {
        Position { epoch: 1, seq: 1 + u64::from(set) }
    }

    fn write_headers(&self) -> std::io::Result<()> {
        for first in (0..self.mapped()).step_by(256) {
            let mut bytes = Vec::with_capacity(1 << 20);
            for set in first..(first + 256).min(self.mapped()) {
                let header = Header { set, life: 3, stream: 0, sealed: Self::sealed(set), entries: self.entries(set) };
                bytes.extend(header.encode(&self.geometry, FORMAT, false));
            }
            self.file.write_all_at(&bytes, self.geometry.header(first).offset())?;
        }
        Ok(())
    }

    fn write_maps(&self) -> std::io::Result<()> {
        let geometry = &self.geometry;
        let sets: Vec<MapSet> = (0..SETS).map(|set| self.map_set(set)).collect();
        for (area, number) in [(1, 1), (0, 2)] {
            let mut bytes = Vec::new();
            for (page, sets) in sets.chunks(geometry.map_sets_per_page() as usize).enumerate() {
                bytes.extend(encode_sets(geometry, FORMAT, area, page as u32, number, sets));
            }
            bytes.extend(encode_ranges(geometry, FORMAT, area, geometry.map_pages(), number, 0, &[]));
            self.file.write_all_at(&bytes, geometry.map_area(area).offset())?;
        }
        Ok(())
    }

    fn map_set(&self, set: u32) -> MapSet {
        let (mut live, mut dirty) = (Bits::new(SLOTS), Bits::new(SLOTS));
        if set >= self.mapped() {
            return MapSet { life: 3, state: SetState::Free, sealed: Position::default(), live, dirty };
        }
        for slot in 0..SLOTS {
            let (is_live, is_dirty) = self.state(set, slot);
            is_live.then(|| live.set(slot));
            is_dirty.then(|| dirty.set(slot));
        }
        MapSet { life: 3, state: SetState::Sealed, sealed: Self::sealed(set), live, dirty }
    }

    /// Fills the whole ring: pages that nobody needs any more, a third since the checkpoint before, and the log behind the newest one.
    fn write_journal(&self) -> std::io::Result<Log> {
        let pages = u64::from(self.geometry.journal_pages);
        let mut ring =
            Ring { journal: Journal::new(self.geometry, FORMAT, 1, 1, 0, Vec::new()), bytes: vec![0; (pages * PAGE_BYTES) as usize] };
        let groups = self.plan.told.div_ceil(GROUP_SETS) + 2;
        let log_pages = u64::from(groups * (GROUP_SETS * SLOTS).div_ceil(300));
        let (mut old, mut previous) = (0, 1);
        while ring.journal.next_seq() < pages - log_pages {
            if ring.journal.next_seq() < pages - log_pages - pages / 3 {
                previous = ring.journal.next_seq();
            }
            (0..GROUP_SETS).for_each(|i| self.tell(&mut ring, (old + i) % self.mapped(), true));
            old += GROUP_SETS;
            ring.end_group(true);
        }
        let start = ring.journal.next_seq();
        let told: Vec<u32> = (self.mapped()..USED - 1).collect();
        for sets in told.chunks(GROUP_SETS as usize) {
            sets.iter().for_each(|&set| self.tell(&mut ring, set, true));
            ring.end_group(true);
        }
        self.tell(&mut ring, USED - 1, false);
        ring.end_group(false);
        self.file.write_all_at(&ring.bytes, self.geometry.journal().offset())?;
        Ok(Log { start, previous })
    }

    fn tell(&self, ring: &mut Ring, set: u32, seals: bool) {
        ring.journal.push(&Record::Open { set, life: 4, stream: 0 });
        ring.journal.put(Slot { set, slot: 0 }, 4, true, false, &self.entries(set));
        if seals {
            ring.journal.push(&Record::Seal { set, life: 4 });
        }
    }

    fn write_superblocks(&self, log: Log) -> std::io::Result<()> {
        let superblock = Superblock {
            sequence: 5,
            checkpoint: MapRef { number: 2, area: 0, seq: log.start },
            previous: MapRef { number: 1, area: 1, seq: log.previous },
            ..Superblock::new(FORMAT, self.geometry, [1; 16], [0; 16])
        };
        (0..2).try_for_each(|copy| self.file.write_all_at(&superblock.encode(copy), self.geometry.superblock(copy).offset()))
    }

    fn count(&self) -> Written {
        let mut written = Written::default();
        for set in 0..self.mapped() {
            written.entries += u64::from(SLOTS);
            for (live, dirty) in (0..SLOTS).map(|slot| self.state(set, slot)) {
                written.dirty += u64::from(dirty);
                written.clean += u64::from(live && !dirty);
            }
        }
        for set in self.mapped()..USED {
            let slots = if self.is_tail(set) { TAIL_BLOCKS } else { SLOTS };
            written.entries += u64::from(slots);
            written.dirty += u64::from(slots);
            for older in (0..slots).filter_map(|slot| self.overwritten(set, slot)) {
                let (live, dirty) = self.state(older.set, older.slot);
                written.dirty -= u64::from(dirty);
                written.clean -= u64::from(live && !dirty);
            }
        }
        written
    }
}

/// A journal whose pages land in memory.
struct Ring {
    journal: Journal,
    bytes: Vec<u8>,
}

impl Ring {
    fn end_group(&mut self, durable: bool) {
        let group = self.journal.close();
        while let Some(PageRun { first_seq, pages, place, payloads }) = self.journal.next_run::<Run>(256) {
            let at = u64::from(place) * PAGE_BYTES;
            for (i, payload) in payloads.iter().enumerate() {
                assert_eq!(payload.atoms(), PAGE_ATOMS);
                self.bytes[at as usize + i * PAGE_BYTES as usize..][..PAGE_BYTES as usize].copy_from_slice(payload.as_slice());
            }
            (first_seq..first_seq + u64::from(pages)).for_each(|seq| self.journal.page_written(seq));
        }
        if durable {
            self.journal.made_durable(group);
        }
    }
}

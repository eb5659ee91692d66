//! Where everything lies on the SSD. All addresses and lengths are in atoms.
//!
//! ```text
//! 0        512 KiB   1 MiB                                                                  aligned to the set
//! | A | …  | B | …   | map 0 | map 1 | headers | header copies | journal ring | …           | set 0 | set 1 | …
//! ```
//! A map is pages for the sets, then pages for the range table.

use super::header::entry_bytes;
use super::map::{ranges_per_page, sets_per_page};
use super::seal::{HEAD_BYTES, PAGE};
use super::superblock::{self, SUPERBLOCK_B};
use crate::block::{ATOM_BYTES, Atoms, BLOCK_ATOMS_MAX, Block, PAGE_ATOMS, PAGE_BYTES, Slot, Span};
use crate::op::Zone;

/// Where the maps start: 1 MiB.
const MAPS: u64 = (1 << 20) / ATOM_BYTES;
/// Blocks have 48 bits on the SSD.
const BLOCKS_MAX: u64 = 1 << 48;
/// Fewer sets than this are no cache but a nuisance: open sets, reserve and free floor would be all of it.
const SETS_MIN: u32 = 16;
const RANGE_ENTRIES: u32 = 65_536;

const _: () = assert!(MAPS >= SUPERBLOCK_B + PAGE_ATOMS, "the maps must not cover a superblock");

/// Sizes of everything on the SSD; the places follow from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Atoms of a block: a power of two, 1 to 128.
    pub block_atoms: u32,
    /// Slots of a set: a power of two, 8 to 2048 (64 or more outside of tests).
    pub set_slots: u32,
    pub sets: u32,
    /// Pages of the journal ring.
    pub journal_pages: u32,
    /// Size of the volume in atoms.
    pub volume_atoms: u64,
    /// Capacity of the range table (zeroed, trimmed and lost ranges).
    pub range_entries: u32,
}

impl Geometry {
    /// The largest number of sets that fits into `cache_atoms`; the journal is clamp(cache / 1600, 16 MiB, 256 MiB).
    ///
    /// The error is one line for the operator: sizes that cannot be, or how much a cache needs at least.
    pub fn for_cache(cache_atoms: u64, volume_atoms: u64, block_atoms: u32, set_slots: u32) -> Result<Geometry, String> {
        let journal_bytes = (cache_atoms.saturating_mul(ATOM_BYTES) / 1600).clamp(16 << 20, 256 << 20);
        let with_sets = |sets| Geometry {
            block_atoms,
            set_slots,
            sets,
            journal_pages: (journal_bytes / PAGE_BYTES) as u32,
            volume_atoms,
            range_entries: RANGE_ENTRIES,
        };
        let smallest = with_sets(SETS_MIN);
        smallest.validate()?;
        if smallest.cache_atoms() > cache_atoms {
            let (has, needs) = ((cache_atoms * ATOM_BYTES) >> 20, (smallest.cache_atoms() * ATOM_BYTES).div_ceil(1 << 20));
            return Err(format!("a cache of {has} MiB is too small: {SETS_MIN} sets and their metadata need {needs} MiB"));
        }
        // The end grows with the sets: the last number that fits is found by halving.
        let (mut fits, mut too_many) = (SETS_MIN, (cache_atoms / smallest.set_atoms() + 1).min(u64::from(u32::MAX)) as u32);
        while too_many - fits > 1 {
            let middle = fits + (too_many - fits) / 2;
            if with_sets(middle).cache_atoms() <= cache_atoms { fits = middle } else { too_many = middle }
        }
        Ok(with_sets(fits))
    }

    /// Can these sizes be? The error is one line for the operator. Whether the SSD is large enough is for the caller to compare
    /// ([`Geometry::cache_atoms`]).
    pub fn validate(&self) -> Result<(), String> {
        let power_in = |value: u32, low: u32, high: u32| value.is_power_of_two() && (low..=high).contains(&value);
        if !power_in(self.block_atoms, 1, BLOCK_ATOMS_MAX) {
            let bytes = u64::from(self.block_atoms) * ATOM_BYTES;
            return Err(format!("a block of {bytes} bytes: it must be a power of two from 512 to 65536"));
        }
        if !power_in(self.set_slots, 8, 2048) {
            return Err(format!("a set of {} slots: it must be a power of two from 8 to 2048", self.set_slots));
        }
        if self.sets == 0 {
            return Err("a cache without a set".to_string());
        }
        if !(16..=1 << 20).contains(&self.journal_pages) {
            return Err(format!("a journal of {} pages: it must be from 16 to 1048576", self.journal_pages));
        }
        if !(1..=1 << 20).contains(&self.range_entries) {
            return Err(format!("a range table of {} entries: it must be from 1 to 1048576", self.range_entries));
        }
        if self.volume_atoms == 0 {
            return Err("a volume of 0 bytes".to_string());
        }
        if self.blocks() > BLOCKS_MAX {
            return Err(format!("a volume of {} blocks: it must be at most {BLOCKS_MAX}", self.blocks()));
        }
        Ok(())
    }

    /// The superblock: copy 0 lies at 0, copy 1 at 512 KiB.
    pub fn superblock(&self, copy: u32) -> Span {
        Span::new(superblock::address(copy), PAGE_ATOMS)
    }

    /// Pages of a map that describe sets.
    pub fn map_pages(&self) -> u32 {
        self.sets.div_ceil(self.map_sets_per_page())
    }

    /// Sets on each page of a map (on the last one perhaps fewer).
    pub fn map_sets_per_page(&self) -> u32 {
        sets_per_page(self.set_slots)
    }

    /// Pages of a map that hold the range table. They follow the pages of the sets, in page numbers as in place.
    pub fn range_pages(&self) -> u32 {
        self.range_entries.div_ceil(ranges_per_page(self))
    }

    /// Map 0 or 1, range table included.
    pub fn map_area(&self, area: u32) -> Span {
        assert!(area < 2, "there are two maps");
        let atoms = (u64::from(self.map_pages()) + u64::from(self.range_pages())) * PAGE_ATOMS;
        Span::new(MAPS + u64::from(area) * atoms, atoms)
    }

    /// A page of a map: the sets' are 0 to `map_pages`, the range table's follow.
    pub fn map_page(&self, area: u32, page: u32) -> Span {
        assert!(page < self.map_pages() + self.range_pages(), "page {page} is beyond the map");
        Span::new(self.map_area(area).start + u64::from(page) * PAGE_ATOMS, PAGE_ATOMS)
    }

    /// Pages of one header.
    pub fn header_pages(&self) -> u32 {
        (HEAD_BYTES + self.set_slots as usize * entry_bytes(self.block_atoms)).div_ceil(PAGE) as u32
    }

    /// Atoms of one header. Those of neighbouring sets lie side by side.
    pub fn header_atoms(&self) -> u64 {
        u64::from(self.header_pages()) * PAGE_ATOMS
    }

    pub fn headers(&self) -> Span {
        Span::new(self.map_area(1).end(), u64::from(self.sets) * self.header_atoms())
    }

    pub fn header_copies(&self) -> Span {
        Span::new(self.headers().end(), u64::from(self.sets) * self.header_atoms())
    }

    pub fn header(&self, set: u32) -> Span {
        self.header_in(self.headers(), set)
    }

    pub fn header_copy(&self, set: u32) -> Span {
        self.header_in(self.header_copies(), set)
    }

    fn header_in(&self, area: Span, set: u32) -> Span {
        assert!(set < self.sets, "set {set} is beyond the cache");
        Span::new(area.start + u64::from(set) * self.header_atoms(), self.header_atoms())
    }

    pub fn journal(&self) -> Span {
        Span::new(self.header_copies().end(), u64::from(self.journal_pages) * PAGE_ATOMS)
    }

    /// A page of the journal ring by its place in the ring.
    pub fn journal_page(&self, place: u32) -> Span {
        assert!(place < self.journal_pages, "place {place} is beyond the ring");
        Span::new(self.journal().start + u64::from(place) * PAGE_ATOMS, PAGE_ATOMS)
    }

    /// The first atom of set 0; a multiple of the size of a set.
    pub fn data_start(&self) -> u64 {
        self.journal().end().next_multiple_of(self.set_atoms())
    }

    /// Slots of all sets.
    pub fn slots(&self) -> u64 {
        u64::from(self.sets) * u64::from(self.set_slots)
    }

    /// Atoms of a set's data.
    pub fn set_atoms(&self) -> u64 {
        u64::from(self.set_slots) * u64::from(self.block_atoms)
    }

    /// The data of a set.
    pub fn set(&self, set: u32) -> Span {
        assert!(set < self.sets, "set {set} is beyond the cache");
        Span::new(self.data_start() + u64::from(set) * self.set_atoms(), self.set_atoms())
    }

    /// The data of a slot: a whole block, also for a last block that the volume cuts short.
    pub fn slot(&self, slot: Slot) -> Span {
        Span::new(self.data_start() + self.atoms_before(slot), u64::from(self.block_atoms))
    }

    /// From the first slot of all to this one.
    #[inline]
    pub fn atoms_before(&self, slot: Slot) -> u64 {
        assert!(slot.set < self.sets && slot.slot < self.set_slots, "{slot:?} is beyond the cache");
        (u64::from(slot.set) * u64::from(self.set_slots) + u64::from(slot.slot)) * u64::from(self.block_atoms)
    }

    /// Atoms of the SSD that are used: the end of the last set.
    pub fn cache_atoms(&self) -> u64 {
        self.data_start() + u64::from(self.sets) * self.set_atoms()
    }

    /// Atoms of a block, as a power of two: nearly every step of a request asks for the block of an atom, and a division takes as long as
    /// twenty other instructions.
    #[inline]
    pub fn block_bits(&self) -> u32 {
        self.block_atoms.trailing_zeros()
    }

    /// Blocks of the volume; the last one may be short.
    pub fn blocks(&self) -> u64 {
        self.volume_atoms.div_ceil(u64::from(self.block_atoms))
    }

    /// Where a block lies on the volume (and on the origin); the last one ends with the volume.
    #[inline]
    pub fn block_span(&self, block: Block) -> Span {
        let start = block.0 * u64::from(self.block_atoms);
        assert!(start < self.volume_atoms, "block {} is beyond the volume", block.0);
        Span::new(start, u64::from(self.block_atoms).min(self.volume_atoms - start))
    }

    /// All atoms of a block: fewer in a short last one.
    pub fn full(&self, block: Block) -> Atoms {
        Atoms::first(self.block_span(block).atoms as u32)
    }

    /// The bounds of a zone: on the SSD, or of the volume on the origin.
    pub fn zone(&self, zone: Zone) -> Span {
        match zone {
            Zone::Superblock => Span::new(0, SUPERBLOCK_B + PAGE_ATOMS),
            Zone::Map => Span::new(MAPS, self.map_area(1).end() - MAPS),
            Zone::Header => self.headers(),
            Zone::HeaderCopy => self.header_copies(),
            Zone::Journal => self.journal(),
            Zone::Data => Span::new(self.data_start(), u64::from(self.sets) * self.set_atoms()),
            Zone::Origin => Span::new(0, self.volume_atoms),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{geometries, large, small};
    use super::*;
    use proptest::prelude::*;

    const ZONES: [Zone; 6] = [Zone::Superblock, Zone::Map, Zone::Header, Zone::HeaderCopy, Zone::Journal, Zone::Data];

    /// The zones follow one another without overlap, in whole pages, and everything lies in its zone.
    fn check_layout(geometry: &Geometry) {
        geometry.validate().unwrap();
        let zones = ZONES.map(|zone| geometry.zone(zone));
        assert!(zones.windows(2).all(|pair| pair[0].end() <= pair[1].start));
        assert!(zones.iter().all(|zone| zone.start % PAGE_ATOMS == 0 && zone.end() % PAGE_ATOMS == 0));
        assert_eq!(geometry.zone(Zone::Data).start % geometry.set_atoms(), 0);
        assert_eq!(geometry.zone(Zone::Data).end(), geometry.cache_atoms());
        assert_eq!(geometry.zone(Zone::Origin), Span::new(0, geometry.volume_atoms));

        let row = |zone: Zone, spans: &mut dyn Iterator<Item = Span>| {
            let end = spans.fold(geometry.zone(zone).start, |end, span| {
                assert_eq!(span.start, end, "a gap or an overlap in {zone:?}");
                span.end()
            });
            assert_eq!(end, geometry.zone(zone).end(), "{zone:?} is longer or shorter than its parts");
        };
        let pages = geometry.map_pages() + geometry.range_pages();
        row(Zone::Map, &mut (0..2).flat_map(|area| (0..pages).map(move |page| geometry.map_page(area, page))));
        row(Zone::Header, &mut (0..geometry.sets).map(|set| geometry.header(set)));
        row(Zone::HeaderCopy, &mut (0..geometry.sets).map(|set| geometry.header_copy(set)));
        row(Zone::Journal, &mut (0..geometry.journal_pages).map(|place| geometry.journal_page(place)));
        row(Zone::Data, &mut (0..geometry.sets).map(|set| geometry.set(set)));
        let slots = 0..geometry.set_slots;
        row(Zone::Data, &mut (0..geometry.sets).flat_map(|set| slots.clone().map(move |slot| geometry.slot(Slot { set, slot }))));
        assert!(geometry.zone(Zone::Superblock).contains(geometry.superblock(1)));
        assert_eq!(geometry.map_area(1).start, geometry.map_area(0).end());
    }

    proptest! {
        #[test]
        fn everything_has_a_place_of_its_own(geometry in geometries()) {
            check_layout(&geometry);
        }

        #[test]
        fn a_cache_is_used_as_far_as_whole_sets_go(mib in 0..200_000u64, odd in 0..2048u64, block in 0..=7u32, slots in 6..=11u32) {
            let atoms = (mib << 11) + odd;
            match Geometry::for_cache(atoms, 1 << 30, 1 << block, 1 << slots) {
                Ok(geometry) => {
                    prop_assert!(geometry.validate().is_ok() && geometry.cache_atoms() <= atoms);
                    let larger = Geometry { sets: geometry.sets + 1, ..geometry };
                    prop_assert!(larger.cache_atoms() > atoms, "one more set would fit");
                }
                Err(why) => {
                    let needs: u64 = why.split(' ').rev().nth(1).unwrap().parse().unwrap();
                    prop_assert!(needs > mib, "{}", why);
                    prop_assert!(Geometry::for_cache(needs << 11, 1 << 30, 1 << block, 1 << slots).is_ok(), "{}", why);
                }
            }
        }

        #[test]
        fn blocks_cover_the_volume(block in 0..=7u32, volume_atoms in 1..10_000u64) {
            let geometry = Geometry { volume_atoms, ..small(1 << block, 64) };
            let spans = (0..geometry.blocks()).map(|block| geometry.block_span(Block(block)));
            let end = spans.fold(0, |end, span| {
                assert!(span.start == end && !span.is_empty());
                span.end()
            });
            prop_assert_eq!(end, volume_atoms);
        }

        #[test]
        fn no_sizes_make_it_panic(cache in any::<u64>(), volume in any::<u64>(), block in any::<u32>(), slots in any::<u32>()) {
            let _ = Geometry::for_cache(cache, volume, block, slots);
            let any = Geometry { block_atoms: block, set_slots: slots, sets: u32::MAX, journal_pages: 16, volume_atoms: volume, range_entries: 1 };
            if any.validate().is_ok() {
                prop_assert!(any.cache_atoms() > any.data_start());
            }
        }
    }

    #[test]
    fn the_largest_sizes_have_addresses() {
        for (block_atoms, set_slots) in [(128, 2048), (1, 8)] {
            let volume_atoms = BLOCKS_MAX * u64::from(block_atoms);
            let sizes = Geometry { block_atoms, set_slots, sets: u32::MAX, journal_pages: 1 << 20, volume_atoms, range_entries: 1 << 20 };
            sizes.validate().unwrap();
            assert_eq!(sizes.slot(Slot { set: u32::MAX - 1, slot: set_slots - 1 }).end(), sizes.cache_atoms());
            assert!(sizes.cache_atoms() < u64::MAX / ATOM_BYTES, "byte offsets have 64 bits");
        }
    }

    #[test]
    fn sizes_that_cannot_be_are_refused_in_one_line() {
        let good = small(8, 64);
        for bad in [
            Geometry { block_atoms: 0, ..good },
            Geometry { block_atoms: 3, ..good },
            Geometry { block_atoms: 256, ..good },
            Geometry { set_slots: 4, ..good },
            Geometry { set_slots: 100, ..good },
            Geometry { set_slots: 4096, ..good },
            Geometry { sets: 0, ..good },
            Geometry { journal_pages: 15, ..good },
            Geometry { journal_pages: u32::MAX, ..good },
            Geometry { range_entries: 0, ..good },
            Geometry { range_entries: u32::MAX, ..good },
            Geometry { volume_atoms: 0, ..good },
            Geometry { volume_atoms: u64::MAX, ..good },
        ] {
            let why = bad.validate().expect_err("impossible");
            assert!(!why.is_empty() && !why.contains('\n'));
        }
    }

    // The example of docs/format.md.
    #[test]
    fn the_layout_of_100_gib_is_as_documented() {
        let geometry = large();
        assert_eq!((geometry.sets, geometry.journal_pages), (101_522, 16_384));
        assert_eq!((geometry.map_sets_per_page(), geometry.map_pages(), geometry.range_pages()), (45, 2257, 261));
        assert_eq!(geometry.header_pages(), 1);
        let starts = ZONES.map(|zone| geometry.zone(zone).offset());
        assert_eq!(starts, [0, 1_048_576, 21_676_032, 437_510_144, 853_344_256, 920_649_728]);
    }
}

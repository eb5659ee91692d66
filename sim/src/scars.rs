//! Metadata that is damaged at a crash: one of two copies of it, where both are good, or a place of the ring that nothing needs. It rots, or
//! cannot be read any more before it is written.

use crate::back::contents::Contents;
use crate::back::device::Device;
use crate::chance::Chance;
use tidegate_engine::block::{PAGE_ATOMS, Span};
use tidegate_engine::cache::format::journal;
use tidegate_engine::cache::format::map::{decode_ranges, decode_sets, ranges_per_page};
use tidegate_engine::cache::format::{Geometry, MapRef, Superblock};
use tidegate_engine::op::Zone;

/// What may still be damaged on one cache.
#[derive(Clone, Copy, Debug)]
pub struct Scars {
    /// The copy of the headers that is damaged, always the same one: the other is the last.
    headers: Zone,
    /// The newest checkpoint whose map was damaged.
    checkpoint: u64,
}

impl Scars {
    pub fn new(chance: &mut Chance) -> Scars {
        Scars { headers: chance.pick(&[Zone::Header, Zone::HeaderCopy]), checkpoint: 0 }
    }

    /// An atom that may be damaged now, if there is one.
    pub fn choose(&mut self, geometry: &Geometry, cache: &Device, chance: &mut Chance) -> Option<u64> {
        let copies: Vec<Superblock> =
            (0..2).filter_map(|copy| Superblock::decode(&cache.visible().page_bytes(geometry.superblock(copy).start), copy).ok()).collect();
        let is_settled = [Zone::Superblock, Zone::Map, Zone::Header, Zone::HeaderCopy].iter().all(|&zone| !cache.unsettled(zone));
        let [first, second] = &copies[..] else { return None };
        let pages = [0, 1].map(|copy| geometry.superblock(copy));
        let are_read = pages.iter().all(|&page| !cache.is_bad(Zone::Superblock, page));
        if !is_settled || !are_read || first.sequence.abs_diff(second.sequence) > 1 || first.geometry != second.geometry {
            return None;
        }
        let newest = if first.sequence > second.sequence { first } else { second };
        let area = match chance.below(3) {
            0 => pages[chance.below(2) as usize],
            1 if newest.checkpoint.number > self.checkpoint + 1 && is_map_whole(cache, newest, newest.previous) => {
                self.checkpoint = newest.checkpoint.number;
                geometry.map_area(newest.checkpoint.area)
            }
            _ => geometry.zone(self.headers),
        };
        let page = area.start + chance.below(area.atoms / PAGE_ATOMS) * PAGE_ATOMS;
        Some(page + chance.below(PAGE_ATOMS))
    }

    /// A place of the ring that holds nothing that a recovery needs, if the first one looked at is such a place.
    pub fn choose_in_ring(geometry: &Geometry, cache: &Device, chance: &mut Chance) -> Option<u64> {
        let superblock = |copy| Superblock::decode(&cache.visible().page_bytes(geometry.superblock(copy).start), copy).ok();
        let oldest = (0..2).filter_map(superblock).map(|superblock| superblock.previous.seq.min(superblock.checkpoint.seq)).min()?;
        let format = superblock(0).or_else(|| superblock(1))?.format;
        let place = chance.below(u64::from(geometry.journal_pages)) as u32;
        let page = geometry.journal_page(place);
        let is_needed = match journal::decode_head(&cache.visible().page_bytes(page.start), geometry, format, place) {
            Ok(held) => held.head.seq + 1 >= oldest,
            Err(_) => false,
        };
        (!is_needed).then(|| page.start + chance.below(PAGE_ATOMS))
    }
}

/// Can this state map be read? (The area of the former one is written anew before a superblock names the next.)
fn is_map_whole(cache: &Device, superblock: &Superblock, map: MapRef) -> bool {
    let Superblock { geometry, format, .. } = superblock;
    let contents: &Contents = cache.visible();
    let page = |number| {
        let span: Span = geometry.map_page(map.area, number);
        (!cache.is_bad(Zone::Map, span)).then(|| contents.page_bytes(span.start))
    };
    let is_set_page = |number| page(number).is_some_and(|page| decode_sets(&page, geometry, *format, map.area, number, map.number).is_ok());
    if !(0..geometry.map_pages()).all(is_set_page) {
        return false;
    }
    let mut number = geometry.map_pages();
    loop {
        let ranges = page(number).map(|page| decode_ranges(&page, geometry, *format, map.area, number, map.number));
        let Some(Ok((total, _))) = ranges else { return false };
        number += 1;
        if (number - geometry.map_pages()) * ranges_per_page(geometry) >= total {
            return true;
        }
    }
}

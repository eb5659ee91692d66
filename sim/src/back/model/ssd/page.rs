//! A page-mapped flash translation layer: where every 4 KiB page of the host lies, and how space is won back. No time passes here: the
//! dies ask for the next step and take as long as it takes (`ssd/die.rs`).
//!
//! ```text
//!   host's pages ─▶ unit (one program: all planes of a die) ─▶ open block of the next die ─▶ closed ─▶ victim ─▶ erased ─▶ free
//!                                                              ▲ moved pages have an open block of their own │
//!                                                              └─────────────────────────────────────────────┘
//! ```
//! Cleaning is greedy: the closed block with the fewest valid pages. It begins when a die's free blocks are few, and comes before the
//! host's programs when they are very few. Memory is used only for what was written; clones share it.

use super::super::spec::{Flash, FtlSpec, Layout};
use crate::chance::Chance;
use std::collections::VecDeque;
use std::rc::Rc;

/// Bytes of a page of the map.
pub const PAGE_BYTES: u64 = 4096;
const NONE: u32 = u32::MAX;
/// Blocks of a die that never count as space: two are open, one is kept for moving, and one is garbage enough to be worth cleaning.
const RESERVE: u64 = 4;
/// Pages of one piece of the map.
const PIECE: usize = 128;

#[derive(Clone, Debug, Default)]
struct Block {
    valid: u32,
    /// Slots written since it was erased.
    written: u32,
    /// Full, and not being emptied.
    closed: bool,
    erases: u32,
    /// Of each slot written: the host's page.
    pages: Rc<Vec<u32>>,
}

#[derive(Clone, Debug, Default)]
struct Die {
    free: VecDeque<u32>,
    /// Open blocks: for the host's pages, for moved ones.
    open: [Option<u32>; 2],
    /// Valid pages, and those on their way here.
    valid: u64,
    coming: u64,
    /// Slots of closed blocks that hold nothing valid.
    garbage: u64,
    cleaning: Cleaning,
}

/// Victims being emptied. What is left of one joins the pages of the next, so that no unit is padded while there is more to move.
#[derive(Clone, Debug, Default)]
struct Cleaning {
    /// The block that is being read, and the next slot.
    victim: Option<(u32, u32)>,
    /// Blocks that were read and are not erased.
    read: VecDeque<u32>,
    /// Read, and not yet written elsewhere: page and the place it came from.
    held: Vec<(u32, u32)>,
}

impl Cleaning {
    fn is_over(&self) -> bool {
        self.victim.is_none() && self.read.is_empty() && self.held.is_empty()
    }
}

/// A step of cleaning: what the die has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Read { pages: u64 },
    Program { pages: u64 },
    Erase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stream {
    Host,
    Moved,
}

#[derive(Clone, Debug)]
pub struct PageMap {
    map: Vec<Option<Rc<[u32; PIECE]>>>,
    pages: u64,
    blocks: Vec<Block>,
    dies: Vec<Die>,
    blocks_per_die: u32,
    /// Pages of a block and of a unit.
    slots: u32,
    unit: u32,
    low: usize,
    /// Each has a stretch of the pages, and every so many-th die.
    lanes: usize,
    /// Of each lane: whose turn it is of its dies.
    turns: Vec<usize>,
}

impl PageMap {
    /// A blank map over `bytes`, of which `buffer_bytes` may be on their way besides.
    pub fn new(bytes: u64, buffer_bytes: u64, flash: &Flash, ftl: &FtlSpec) -> Self {
        let dies = flash.channels * flash.dies;
        let unit = flash.planes * flash.page_kib * 1024 / PAGE_BYTES;
        let slots = unit * flash.block_pages;
        let pages = bytes / PAGE_BYTES;
        let raw = pages * (100 + ftl.spare_percent) / 100 + buffer_bytes / PAGE_BYTES + dies * unit;
        let blocks_per_die = raw.div_ceil(dies * slots) + RESERVE;
        let lanes = match ftl.layout {
            Layout::Striped => 1,
            Layout::Contiguous => flash.channels as usize,
        };
        let die = Die { free: (0..blocks_per_die as u32).collect(), ..Die::default() };
        PageMap {
            map: vec![None; pages.div_ceil(PIECE as u64) as usize],
            pages,
            blocks: vec![Block::default(); (blocks_per_die * dies) as usize],
            dies: vec![die; dies as usize],
            blocks_per_die: blocks_per_die as u32,
            slots: slots as u32,
            unit: unit as u32,
            low: (blocks_per_die * ftl.gc_low_percent / 100).max(2) as usize,
            lanes,
            turns: vec![0; lanes],
        }
    }

    pub fn lanes(&self) -> usize {
        self.lanes
    }

    /// The lane of a page.
    pub fn lane(&self, page: u32) -> usize {
        // The last page may be a part of one.
        ((u64::from(page) * self.lanes as u64 / self.pages) as usize).min(self.lanes - 1)
    }

    /// Pages of one program.
    pub fn unit(&self) -> usize {
        self.unit as usize
    }

    fn get(&self, page: u32) -> u32 {
        self.map[page as usize / PIECE].as_ref().map_or(NONE, |piece| piece[page as usize % PIECE])
    }

    fn set(&mut self, page: u32, place: u32) {
        let piece = self.map[page as usize / PIECE].get_or_insert_with(|| Rc::new([NONE; PIECE]));
        Rc::make_mut(piece)[page as usize % PIECE] = place;
    }

    /// The die and the unit that hold a page; none: it was never written.
    pub fn locate(&self, page: u32) -> Option<(usize, u32)> {
        let place = self.get(page);
        (place != NONE).then(|| (((place / self.slots) / self.blocks_per_die) as usize, place / self.unit))
    }

    /// The die for the next unit of `pages` of a lane: in turn, passing over those that are full.
    pub fn next_die(&mut self, lane: usize, pages: usize) -> usize {
        let limit = (u64::from(self.blocks_per_die) - RESERVE) * u64::from(self.slots);
        let dies = self.dies.len() / self.lanes;
        for _ in 0..dies {
            let die = self.turns[lane] * self.lanes + lane;
            self.turns[lane] = (self.turns[lane] + 1) % dies;
            if self.dies[die].valid + self.dies[die].coming + pages as u64 <= limit {
                self.dies[die].coming += pages as u64;
                return die;
            }
        }
        unreachable!("the spare space is more than the host's pages");
    }

    /// What was coming is lost (the power went).
    pub fn forget_coming(&mut self) {
        self.dies.iter_mut().for_each(|die| die.coming = 0);
    }

    /// Writes a unit of the host's to a die that was chosen for it. False: there is no room before more is cleaned.
    pub fn place(&mut self, die: usize, pages: &[u32]) -> bool {
        if !self.room(die, Stream::Host) {
            return false;
        }
        self.dies[die].coming -= pages.len() as u64;
        self.write(die, Stream::Host, pages);
        true
    }

    /// Is a block open for the stream? Opens one if it may: the last free one is for moving.
    fn room(&mut self, die: usize, stream: Stream) -> bool {
        let Die { free, open, .. } = &mut self.dies[die];
        if open[stream as usize].is_none() && (free.len() > 1 || stream == Stream::Moved) {
            open[stream as usize] = free.pop_front();
        }
        open[stream as usize].is_some()
    }

    fn write(&mut self, die: usize, stream: Stream, pages: &[u32]) {
        let number = self.dies[die].open[stream as usize].expect("a block is open");
        let first = (die as u32 * self.blocks_per_die + number) * self.slots;
        let mut slot = self.blocks[(first / self.slots) as usize].written;
        for &page in pages {
            self.forget(page);
            self.set(page, first + slot);
            slot += 1;
        }
        let block = &mut self.blocks[(first / self.slots) as usize];
        let list = Rc::make_mut(&mut block.pages);
        list.extend_from_slice(pages);
        // What a unit lacks is padding.
        block.written = slot.next_multiple_of(self.unit);
        list.resize(block.written as usize, NONE);
        block.valid += pages.len() as u32;
        self.dies[die].valid += pages.len() as u64;
        if block.written == self.slots {
            block.closed = true;
            self.dies[die].garbage += u64::from(self.slots - block.valid);
            self.dies[die].open[stream as usize] = None;
        }
    }

    /// Nothing valid is known of a page any more.
    fn forget(&mut self, page: u32) {
        let place = self.get(page);
        if place != NONE {
            let number = place / self.slots;
            let (block, die) = (&mut self.blocks[number as usize], &mut self.dies[(number / self.blocks_per_die) as usize]);
            block.valid -= 1;
            die.valid -= 1;
            die.garbage += u64::from(block.closed);
        }
    }

    /// Forgets the pages of a range.
    pub fn trim(&mut self, pages: std::ops::Range<u32>) {
        let mut page = pages.start;
        while page < pages.end {
            if self.map[page as usize / PIECE].is_none() {
                page = (page / PIECE as u32 + 1) * PIECE as u32;
                continue;
            }
            if self.get(page) != NONE {
                self.forget(page);
                self.set(page, NONE);
            }
            page += 1;
        }
    }

    /// Are free blocks of a die few (it cleans beside the host), or so few that cleaning comes first?
    pub fn is_low(&self, die: usize) -> bool {
        self.dies[die].free.len() <= self.low
    }

    pub fn is_urgent(&self, die: usize) -> bool {
        self.dies[die].free.len() <= (self.low / 4).max(1)
    }

    /// Is there enough garbage on a die that cleaning it wins a block? (What padding adds at the end is less than what is asked for at the
    /// beginning beyond a block: so cleaning comes to an end.)
    fn is_worth(&self, die: usize, begin: bool) -> bool {
        self.dies[die].garbage >= u64::from(self.slots + if begin { self.unit } else { 0 })
    }

    /// The next step of cleaning a die, taken at once in the map. None: nothing to win.
    pub fn clean(&mut self, die: usize) -> Option<Step> {
        let mut cleaning = std::mem::take(&mut self.dies[die].cleaning);
        let step = self.clean_on(die, &mut cleaning);
        self.dies[die].cleaning = cleaning;
        step
    }

    fn clean_on(&mut self, die: usize, cleaning: &mut Cleaning) -> Option<Step> {
        let first_block = die as u32 * self.blocks_per_die;
        loop {
            // What was overwritten meanwhile need not move.
            cleaning.held.retain(|(page, place)| self.get(*page) == *place);
            if cleaning.held.len() >= self.unit as usize {
                return Some(self.move_held(die, cleaning));
            }
            let is_left = |victim: u32| cleaning.held.iter().any(|(_, place)| place / self.slots == first_block + victim);
            if let Some(victim) = cleaning.read.front().copied().filter(|&victim| !is_left(victim)) {
                cleaning.read.pop_front();
                let block = &mut self.blocks[(first_block + victim) as usize];
                assert_eq!(block.valid, 0, "an erased block holds nothing");
                *block = Block { erases: block.erases + 1, ..Block::default() };
                self.dies[die].free.push_back(victim);
                return Some(Step::Erase);
            }
            match cleaning.victim {
                Some((victim, slot)) if slot == self.slots => {
                    cleaning.victim = None;
                    cleaning.read.push_back(victim);
                }
                Some((victim, slot)) => {
                    cleaning.victim = Some((victim, slot + self.unit));
                    let pages = self.read_unit(first_block + victim, slot, cleaning);
                    if pages > 0 {
                        return Some(Step::Read { pages });
                    }
                }
                None if self.is_low(die) && self.is_worth(die, cleaning.is_over()) => {
                    cleaning.victim = self.victim(die).map(|victim| (victim, 0));
                }
                None if cleaning.held.is_empty() => return None,
                None => return Some(self.move_held(die, cleaning)),
            }
        }
    }

    /// Reads what is valid in a unit; returns how many pages.
    fn read_unit(&self, block: u32, first: u32, cleaning: &mut Cleaning) -> u64 {
        let before = cleaning.held.len();
        for slot in first..first + self.unit {
            let (page, place) = (self.blocks[block as usize].pages[slot as usize], block * self.slots + slot);
            if page != NONE && self.get(page) == place {
                cleaning.held.push((page, place));
            }
        }
        (cleaning.held.len() - before) as u64
    }

    /// Writes one unit, or what there is, of the pages that were read.
    fn move_held(&mut self, die: usize, cleaning: &mut Cleaning) -> Step {
        let count = cleaning.held.len().min(self.unit as usize);
        let pages: Vec<u32> = cleaning.held.drain(..count).map(|(page, _)| page).collect();
        assert!(self.room(die, Stream::Moved), "the last free block is for moving");
        self.write(die, Stream::Moved, &pages);
        Step::Program { pages: count as u64 }
    }

    /// Takes the closed block of a die with the fewest valid pages.
    fn victim(&mut self, die: usize) -> Option<u32> {
        let first = die as u32 * self.blocks_per_die;
        let victim = (0..self.blocks_per_die)
            .filter(|&number| self.blocks[(first + number) as usize].closed)
            .min_by_key(|&number| self.blocks[(first + number) as usize].valid)?;
        let block = &mut self.blocks[(first + victim) as usize];
        block.closed = false;
        self.dies[die].garbage -= u64::from(self.slots - block.valid);
        Some(victim)
    }

    /// Fills `percent` of the pages in order, then overwrites `times` as many of them at random, all in no time: an aged device. Returns
    /// pages that were moved for each page written in the second half of the overwriting (the steady state), in thousandths.
    pub fn precondition(&mut self, percent: u64, times: u64, chance: &mut Chance) -> u64 {
        let used = self.pages * percent / 100;
        let unit = u64::from(self.unit);
        for first in (0..used).step_by(unit as usize) {
            let pages: Vec<u32> = (first..used.min(first + unit)).map(|page| page as u32).collect();
            let parts: Vec<Vec<u32>> = pages.chunk_by(|one, next| self.lane(*one) == self.lane(*next)).map(<[u32]>::to_vec).collect();
            for part in parts {
                self.write_now(&part);
            }
        }
        let (mut moved, units) = (0, used * times / unit);
        for number in 0..units {
            let stretch = self.stretch_of(number % self.lanes as u64, used);
            if stretch.is_empty() {
                continue;
            }
            let mut pages: Vec<u32> = (0..unit).map(|_| (stretch.start + chance.below(stretch.end - stretch.start)) as u32).collect();
            pages.sort_unstable();
            pages.dedup();
            let moves = self.write_now(&pages);
            moved += if number >= units / 2 { moves } else { 0 };
        }
        moved * 1_000 / (units / 2 * unit).max(1)
    }

    /// The pages of a lane, as far as they are used.
    fn stretch_of(&self, lane: u64, used: u64) -> std::ops::Range<u64> {
        let start = |lane: u64| (lane * self.pages).div_ceil(self.lanes as u64).min(used);
        start(lane)..start(lane + 1)
    }

    /// Writes a unit of one lane in no time; returns how many pages were moved for it.
    fn write_now(&mut self, pages: &[u32]) -> u64 {
        let die = self.next_die(self.lane(pages[0]), pages.len());
        let mut moved = 0;
        while self.is_urgent(die) || !self.place(die, pages) {
            match self.clean(die) {
                Some(Step::Program { pages }) => moved += pages,
                Some(Step::Read { .. } | Step::Erase) => {}
                None => {
                    assert!(self.place(die, pages), "there is always something to clean");
                    break;
                }
            }
        }
        moved
    }

    /// Erases of the least and of the most worn block.
    pub fn wear(&self) -> (u32, u32) {
        let erases = || self.blocks.iter().map(|block| block.erases);
        (erases().min().unwrap_or(0), erases().max().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flash() -> Flash {
        Flash {
            channels: 2,
            dies: 2,
            planes: 1,
            page_kib: 8,
            block_pages: 32,
            read_us: 50,
            program_us: 900,
            erase_us: 3_500,
            channel_mb_s: 100,
        }
    }

    fn check(map: &PageMap) {
        let mut valid = vec![0; map.blocks.len()];
        for page in 0..map.pages as u32 {
            let place = map.get(page);
            if place != NONE {
                let (block, slot) = (place / map.slots, place % map.slots);
                assert_eq!(map.blocks[block as usize].pages[slot as usize], page);
                valid[block as usize] += 1;
            }
        }
        assert!(map.blocks.iter().zip(&valid).all(|(block, valid)| block.valid == *valid));
        for (die, blocks) in map.dies.iter().zip(map.blocks.chunks(map.blocks_per_die as usize)) {
            let garbage: u32 = blocks.iter().filter(|block| block.closed).map(|block| map.slots - block.valid).sum();
            assert_eq!(die.garbage, u64::from(garbage));
        }
    }

    #[test]
    fn every_page_is_where_the_map_says_whatever_is_moved() {
        let mut map = PageMap::new(64 << 20, 0, &flash(), &FtlSpec { spare_percent: 10, gc_low_percent: 5, ..FtlSpec::default() });
        map.precondition(90, 3, &mut Chance::new(1, "age"));
        check(&map);
        assert!(map.locate(0).is_some() && map.locate((map.pages - 1) as u32).is_none());
        map.trim(0..5_000);
        check(&map);
        assert_eq!(map.locate(4_999), None);
        assert!(map.wear().1 > 0);
    }

    #[test]
    fn a_contiguous_layout_keeps_each_stretch_on_its_channel() {
        let ftl = FtlSpec { spare_percent: 10, gc_low_percent: 5, layout: Layout::Contiguous, ..FtlSpec::default() };
        let mut map = PageMap::new(64 << 20, 0, &flash(), &ftl);
        map.precondition(95, 3, &mut Chance::new(1, "age"));
        check(&map);
        assert!(map.wear().1 > 0);
        for page in (0..map.pages as u32).filter(|&page| map.locate(page).is_some()) {
            assert_eq!(map.locate(page).unwrap().0 % 2, usize::from(u64::from(page) >= map.pages / 2), "page {page}");
        }
    }

    #[test]
    fn a_full_device_that_is_overwritten_at_random_goes_on_and_comes_to_rest() {
        for spare_percent in [1, 7, 50] {
            let mut map = PageMap::new(8 << 20, 0, &flash(), &FtlSpec { spare_percent, gc_low_percent: 2, ..FtlSpec::default() });
            map.precondition(100, 20, &mut Chance::new(spare_percent, "age"));
            check(&map);
            // Left alone it comes to rest.
            for die in 0..map.dies.len() {
                let steps = std::iter::from_fn(|| map.clean(die)).take(100_000).count();
                assert!(steps < 100_000, "it cleans for ever");
            }
            check(&map);
        }
    }

    /// Pages moved for each page written, as greedy cleaning of random overwrites is known to need: 1/(1−u) is the bound without it.
    #[test]
    fn write_amplification_grows_with_utilisation() {
        for (percent, low, high) in [(50, 1.1, 1.4), (70, 1.6, 2.1), (85, 2.9, 4.0), (93, 5.8, 9.0)] {
            let fine = Flash { page_kib: 4, block_pages: 128, channels: 1, dies: 1, ..flash() };
            let mut map = PageMap::new(512 << 20, 0, &fine, &FtlSpec { spare_percent: 0, gc_low_percent: 1, ..FtlSpec::default() });
            let moved = map.precondition(percent, 4, &mut Chance::new(percent, "age"));
            let amplification = 1.0 + moved as f64 / 1_000.0;
            assert!((low..high).contains(&amplification), "{percent} % used: {amplification}");
        }
    }
}

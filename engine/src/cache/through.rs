//! What was written to the origin past the log and is not flushed there: pinned in memory, seen by reads, written again if the origin
//! forgets. One page for consecutive blocks; a newer write of a block takes its place.

mod replaced;

use std::collections::{BTreeMap, BTreeSet};

use crate::block::{Atoms, Block};
use crate::payload::{Payload, bytes_held};

use replaced::Replaced;

/// Contents of consecutive blocks.
#[derive(Clone, Debug)]
pub struct Page<P> {
    pub blocks: u64,
    pub payload: P,
    /// Valid atoms of a single block; `None`: all of every block. What is not valid is on the origin.
    pub valid: Option<Atoms>,
    pub state: State,
}

/// In this order: what has to be written, what is being written, what is there; what the origin does not take, or is not asked to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// The origin may have forgotten it.
    Unwritten,
    /// This write to the origin is under way.
    Writing(usize),
    /// As this many-th: a flush of the origin that was handed out later covers it.
    Written(u64),
    /// It is not tried again yet.
    Refused,
    /// It is to be written, and lies over zeros that are not home: not before those.
    Held,
}

/// The pages of a volume, by their first block.
pub struct Pages<P> {
    block_atoms: u64,
    pages: BTreeMap<u64, Page<P>>,
    /// The same by their states: whatever happens, few of them are asked for, and there may be thousands.
    by_state: BTreeSet<(State, u64)>,
    replaced: Replaced,
    atoms: u64,
    /// Those of them that are held.
    held_atoms: u64,
    written: u64,
}

impl<P: Payload> Pages<P> {
    pub fn new(block_atoms: u32) -> Self {
        Pages {
            block_atoms: u64::from(block_atoms),
            pages: BTreeMap::new(),
            by_state: BTreeSet::new(),
            replaced: Replaced::default(),
            atoms: 0,
            held_atoms: 0,
            written: 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }
    /// Atoms pinned.
    pub fn atoms(&self) -> u64 {
        self.atoms
    }
    /// The same without what lies over zeros: that waits for those, and for no flush.
    pub fn loose_atoms(&self) -> u64 {
        self.atoms - self.held_atoms
    }
    /// Bytes of memory that they take.
    pub fn bytes(&self) -> u64 {
        bytes_held(self.pages.values().map(|page| &page.payload))
    }
    pub fn blocks(&self) -> u64 {
        self.atoms / self.block_atoms
    }
    /// Writes of pages that have ended: what a flush handed out now covers.
    pub fn mark(&self) -> u64 {
        self.written
    }

    /// The newest contents of these blocks, instead of whatever was known of them.
    pub fn insert(&mut self, block: Block, page: Page<P>) {
        assert!(page.payload.atoms() == page.blocks * self.block_atoms, "a page holds whole blocks");
        assert!(page.valid.is_none() || page.blocks == 1, "a mask is of one block");
        let end = block.0 + page.blocks;
        for (Block(first), older) in overlapping(&self.pages, block, page.blocks) {
            if let State::Written(number) = older.state {
                let (from, to) = (block.0.max(first), end.min(first + older.blocks));
                self.replaced.note(number, from, to);
            }
        }
        self.cut(block, page.blocks);
        self.add(block.0, page);
    }

    fn add(&mut self, first: u64, page: Page<P>) {
        self.atoms += page.payload.atoms();
        self.note(first, page.state, page.payload.atoms());
        self.pages.insert(first, page);
    }

    fn note(&mut self, first: u64, state: State, atoms: u64) {
        self.by_state.insert((state, first));
        self.held_atoms += if state == State::Held { atoms } else { 0 };
    }

    fn unnote(&mut self, first: u64, state: State, atoms: u64) {
        self.by_state.remove(&(state, first));
        self.held_atoms -= if state == State::Held { atoms } else { 0 };
    }

    /// Something newer than the pages has these blocks, in the cache; or nothing has to be known of them any more.
    pub fn remove(&mut self, block: Block, blocks: u64) {
        self.cut(block, blocks);
        self.replaced.remove(block.0, block.0 + blocks);
    }

    /// Replaced pages that a flush covers which was handed out at `mark`; they are forgotten.
    pub fn take_replaced(&mut self, mark: u64) -> Vec<(Block, u64)> {
        self.replaced.take_covered(mark)
    }
    /// Blocks of replaced pages, each once.
    pub fn replaced_blocks(&self) -> u64 {
        self.replaced.blocks()
    }

    fn cut(&mut self, block: Block, blocks: u64) {
        let end = block.0 + blocks;
        for first in self.overlapping(block, blocks).map(|(first, _)| first.0).collect::<Vec<_>>() {
            let page = self.pages.remove(&first).expect("found just now");
            self.unnote(first, page.state, page.payload.atoms());
            self.atoms -= page.payload.atoms();
            if first < block.0 {
                self.keep(first, &page, 0, block.0 - first);
            }
            if end < first + page.blocks {
                self.keep(first, &page, end - first, first + page.blocks - end);
            }
        }
    }

    /// Keeps a part of a page that was taken out.
    fn keep(&mut self, first: u64, page: &Page<P>, skip: u64, blocks: u64) {
        let payload = page.payload.slice(skip * self.block_atoms, blocks * self.block_atoms);
        // It may be that only the rest lies over zeros.
        let state = if page.state == State::Held { State::Unwritten } else { page.state };
        self.add(first + skip, Page { blocks, payload, state, ..page.clone() });
    }

    /// The pages that hold any of these blocks, in order.
    pub fn overlapping(&self, block: Block, blocks: u64) -> impl Iterator<Item = (Block, &Page<P>)> {
        overlapping(&self.pages, block, blocks)
    }

    pub fn iter(&self) -> impl Iterator<Item = (Block, &Page<P>)> {
        self.pages.iter().map(|(first, page)| (Block(*first), page))
    }

    /// The first page from `block` on that has to be written again: its first block and how many.
    pub fn next_unwritten(&self, block: Block) -> Option<(Block, u64)> {
        let (_, first) = self.by_state.range((State::Unwritten, block.0)..=(State::Unwritten, u64::MAX)).next()?;
        Some((Block(*first), self.pages[first].blocks))
    }
    pub fn get(&self, block: Block) -> Option<&Page<P>> {
        self.pages.get(&block.0)
    }
    /// The origin has said of every page that it is written.
    pub fn are_written(&self) -> bool {
        self.are_tried() && self.by_state.last().is_none_or(|(state, _)| matches!(state, State::Written(_)))
    }
    /// The origin has said of every page that is not held that it is written, or that it does not take it.
    pub fn are_tried(&self) -> bool {
        self.by_state.first().is_none_or(|(state, _)| !matches!(state, State::Unwritten | State::Writing(_)))
    }
    /// The same of those that hold any of these blocks: `Some(true)`: all are written; `None`: not each of them has been tried.
    pub fn is_written(&self, block: Block, blocks: u64) -> Option<bool> {
        self.overlapping(block, blocks).try_fold(true, |all, (_, page)| match page.state {
            State::Unwritten | State::Writing(_) | State::Held => None,
            State::Written(_) => Some(all),
            State::Refused => Some(false),
        })
    }
    /// Blocks that it does not take. (A page of several is tried again in parts.)
    pub fn refused(&self) -> impl Iterator<Item = Block> + '_ {
        self.in_states(State::Refused, State::Refused).map(Block)
    }

    /// First blocks of the pages in these states, both included: state by state, each in order.
    fn in_states(&self, least: State, most: State) -> impl Iterator<Item = u64> + '_ {
        self.by_state.range((least, 0)..=(most, u64::MAX)).map(|&(_, first)| first)
    }
    /// The page that begins with this block is in this state now.
    pub fn turn(&mut self, block: Block, state: State) {
        let page = self.pages.get_mut(&block.0).expect("there is a page");
        let (older, atoms) = (std::mem::replace(&mut page.state, state), page.payload.atoms());
        self.unnote(block.0, older, atoms);
        self.note(block.0, state, atoms);
    }
    fn turn_all(&mut self, least: State, most: State, state: State) {
        for first in self.in_states(least, most).collect::<Vec<_>>() {
            self.turn(Block(first), state);
        }
    }

    /// The state of what has just been written.
    pub fn next_written(&mut self) -> State {
        self.written += 1;
        State::Written(self.written)
    }
    /// Behind the last page that this write is of, if something newer has not taken its place.
    pub fn written_until(&self, write: usize) -> Option<Block> {
        self.in_states(State::Writing(write), State::Writing(write)).last().map(|first| Block(first + self.pages[&first].blocks))
    }
    /// A write of pages has ended: they are in `state` now.
    pub fn end_write(&mut self, write: usize, state: State) {
        self.turn_all(State::Writing(write), State::Writing(write), state);
    }
    /// The origin does not take what this write had of pages. One of several blocks is tried again in two halves: most of it may be taken. True:
    /// a single block is refused.
    pub fn refuse(&mut self, write: usize) -> bool {
        let mut any = false;
        for first in self.in_states(State::Writing(write), State::Writing(write)).collect::<Vec<_>>() {
            let blocks = self.pages[&first].blocks;
            if blocks == 1 {
                self.turn(Block(first), State::Refused);
                any = true;
                continue;
            }
            self.turn(Block(first), State::Unwritten);
            let page = self.pages[&first].clone();
            self.cut(Block(first), blocks);
            self.keep(first, &page, 0, blocks / 2);
            self.keep(first, &page, blocks / 2, blocks - blocks / 2);
        }
        any
    }
    /// Zeros of these blocks are home: what was held over them is to be written, unless it lies over others as well.
    pub fn zeros_went(&mut self, block: Block, blocks: u64) {
        let held = self.overlapping(block, blocks).filter(|(_, page)| page.state == State::Held).map(|(first, _)| first);
        held.collect::<Vec<_>>().into_iter().for_each(|first| self.turn(first, State::Unwritten));
    }
    /// What was refused has to be written again.
    pub fn try_refused(&mut self) {
        self.turn_all(State::Refused, State::Refused, State::Unwritten);
    }
    /// The origin may have forgotten everything but what a flush covers that was handed out at `flushed`. What has replaced a page that it may
    /// have forgotten is written again itself, and only then is there anything for what lies below to die for.
    pub fn forget(&mut self, flushed: u64) {
        self.replaced.forget_behind(flushed);
        self.turn_all(State::Written(flushed + 1), State::Written(u64::MAX), State::Unwritten);
    }
    /// The origin may hold something else of these blocks than their pages: those are written again. A flush that covers what was there
    /// before may have been promised all the same, and what is below has to die with it.
    pub fn spoil(&mut self, block: Block, blocks: u64) {
        let mut spoilt = Vec::new();
        for (first, page) in overlapping(&self.pages, block, blocks) {
            if let State::Written(number) = page.state {
                self.replaced.note(number, first.0, first.0 + page.blocks);
                spoilt.push(first);
            }
        }
        spoilt.into_iter().for_each(|first| self.turn(first, State::Unwritten));
    }

    /// The pages that a flush covers which was handed out at `mark`, in order: first block and how many.
    pub fn covered(&self, mark: u64) -> Vec<(Block, u64)> {
        let mut firsts: Vec<u64> = self.in_states(State::Written(0), State::Written(mark)).collect();
        firsts.sort_unstable();
        firsts.into_iter().map(|first| (Block(first), self.pages[&first].blocks)).collect()
    }
}

/// The pages that hold any of these blocks, in order. No two pages hold the same.
fn overlapping<P>(pages: &BTreeMap<u64, Page<P>>, block: Block, blocks: u64) -> impl Iterator<Item = (Block, &Page<P>)> {
    let before = pages.range(..=block.0).next_back().filter(|(first, page)| **first + page.blocks > block.0);
    let from = before.map_or(block.0, |(first, _)| *first);
    pages.range(from..block.0 + blocks).map(|(first, page)| (Block(*first), page))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::Checksum;

    /// Contents that tell which atoms they were made for.
    #[derive(Clone, Debug)]
    struct Marks {
        first: u64,
        atoms: u64,
    }

    impl Payload for Marks {
        fn atoms(&self) -> u64 {
            self.atoms
        }
        fn zero(atoms: u64) -> Self {
            Marks { first: u64::MAX, atoms }
        }
        fn slice(&self, start: u64, atoms: u64) -> Self {
            Marks { first: self.first + start, atoms }
        }
        fn concat(_: &[Self]) -> Self {
            unreachable!("pages are only cut")
        }
        fn checksum(&self, _: Checksum) -> u32 {
            0
        }
        fn from_bytes(_: &[u8]) -> Self {
            unreachable!("no metadata here")
        }
        fn append_to(&self, _: &mut Vec<u8>) {}
    }

    fn page(from: u64, blocks: u64, state: State) -> Page<Marks> {
        Page { blocks, payload: Marks { first: from * 8, atoms: blocks * 8 }, valid: None, state }
    }

    fn shown(pages: &Pages<Marks>) -> Vec<(u64, u64, u64)> {
        pages.iter().map(|(block, page)| (block.0, page.blocks, page.payload.first)).collect()
    }

    #[test]
    fn a_newer_page_takes_the_place_of_what_it_covers() {
        let mut pages = Pages::new(8);
        pages.insert(Block(10), page(100, 10, State::Written(1)));
        pages.insert(Block(13), page(200, 4, State::Written(2)));
        assert_eq!(shown(&pages), [(10, 3, 800), (13, 4, 1600), (17, 3, 856)]);
        assert_eq!(pages.blocks(), 10);
        pages.remove(Block(0), 14);
        assert_eq!(shown(&pages), [(14, 3, 1608), (17, 3, 856)]);
        assert_eq!(pages.overlapping(Block(16), 1).count(), 1);
        assert_eq!(pages.overlapping(Block(20), 5).count(), 0);
    }

    #[test]
    fn a_replaced_page_is_remembered_until_a_flush_covers_it_or_the_cache_has_something_newer() {
        let mut pages = Pages::new(8);
        pages.insert(Block(10), page(0, 10, State::Written(1)));
        pages.insert(Block(12), page(0, 4, State::Written(2)));
        pages.insert(Block(12), page(0, 1, State::Unwritten));
        pages.remove(Block(13), 1);
        assert_eq!(pages.replaced_blocks(), 3, "each block once");
        assert_eq!(pages.take_replaced(1), [(Block(12), 1), (Block(14), 2)]);
        assert_eq!(pages.take_replaced(1), []);
        pages.insert(Block(16), page(0, 1, State::Written(3)));
        assert_eq!(pages.take_replaced(2), [(Block(16), 1)]);
    }

    #[test]
    fn a_flush_covers_what_was_written_before_it_and_not_forgotten() {
        let mut pages = Pages::new(8);
        for block in 0..3 {
            let state = pages.next_written();
            pages.insert(Block(block * 2), page(block, 1, state));
        }
        let covered = |pages: &Pages<Marks>, mark| pages.covered(mark).into_iter().map(|(block, _)| block.0).collect::<Vec<_>>();
        assert_eq!(covered(&pages, 2), [0, 2]);
        pages.forget(1);
        assert_eq!((covered(&pages, 3), pages.next_unwritten(Block(0))), (vec![0], Some((Block(2), 1))));
        pages.turn(Block(2), State::Writing(7));
        assert!(!pages.are_written());
        let state = pages.next_written();
        pages.end_write(7, state);
        assert_eq!(covered(&pages, pages.mark()), [0, 2]);
        assert!(!pages.are_written());
    }

    #[test]
    fn what_is_held_waits_for_zeros_alone_and_keeps_nothing_else_from_being_flushed() {
        let mut pages = Pages::new(8);
        pages.insert(Block(0), page(0, 4, State::Unwritten));
        pages.insert(Block(10), page(100, 8, State::Unwritten));
        let state = pages.next_written();
        pages.turn(Block(0), state);
        assert!(!pages.are_tried());
        pages.turn(Block(10), State::Held);
        assert_eq!((pages.are_tried(), pages.are_written(), pages.next_unwritten(Block(0))), (true, false, None));
        assert_eq!((pages.atoms(), pages.loose_atoms(), pages.is_written(Block(10), 1)), (96, 32, None));
        pages.zeros_went(Block(0), 10);
        assert_eq!((pages.next_unwritten(Block(0)), pages.covered(1)), (None, vec![(Block(0), 4)]));
        // Of what is cut it is not known any more whether it lies over zeros.
        pages.insert(Block(12), page(200, 2, State::Written(2)));
        assert_eq!((pages.next_unwritten(Block(0)), pages.loose_atoms()), (Some((Block(10), 2)), 96));
        for first in [10, 14] {
            pages.turn(Block(first), State::Held);
        }
        pages.zeros_went(Block(17), 5);
        assert_eq!((pages.next_unwritten(Block(0)), pages.loose_atoms()), (Some((Block(14), 4)), 80));
        pages.remove(Block(0), 100);
        assert_eq!((pages.atoms(), pages.loose_atoms(), pages.are_written()), (0, 0, true));
    }

    #[test]
    fn of_a_page_that_is_refused_all_but_one_block_is_taken_and_that_one_is_set_aside() {
        let mut pages = Pages::new(8);
        pages.insert(Block(10), page(100, 8, State::Unwritten));
        let mut tries = 0;
        let next = |pages: &Pages<Marks>| pages.next_unwritten(Block(0));
        while let Some((block, blocks)) = next(&pages) {
            tries += 1;
            pages.turn(block, State::Writing(tries));
            if (block.0..block.0 + blocks).contains(&13) {
                assert_eq!(pages.refuse(tries), blocks == 1);
            } else {
                let state = pages.next_written();
                pages.end_write(tries, state);
            }
        }
        assert_eq!((tries, shown(&pages)), (7, vec![(10, 2, 800), (12, 1, 816), (13, 1, 824), (14, 4, 832)]));
        assert_eq!((pages.are_tried(), pages.are_written(), pages.refused().count()), (true, false, 1));
        pages.try_refused();
        assert_eq!((pages.next_unwritten(Block(0)), pages.are_tried()), (Some((Block(13), 1)), false));
    }
}

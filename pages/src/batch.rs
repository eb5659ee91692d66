//! A queue of reads at once: look up, prefetch, copy. While one page is copied the lines of the next ones are on their way, so the price is
//! that of memory's bandwidth and not of its latency.

use std::ops::Range;

use crate::copy::{copy, copy_alone, expect_alone, expect_next};
use crate::front::{Front, Page, Pinned};
use crate::{Atoms, Block};

/// Reads under one pin: pages that are overwritten meanwhile are not free before its end.
const TOGETHER: usize = 32;

/// A read of part of a block.
#[derive(Debug)]
pub struct Read<'b> {
    pub block: Block,
    /// Where in the block it begins, in atoms.
    pub atom: usize,
    /// Where the contents go: whole atoms, to the end of the block at most.
    pub into: &'b mut [u8],
    /// Whether they have been put there.
    pub is_hit: bool,
}

impl<'b> Read<'b> {
    /// Of a block from its start.
    pub fn new(block: Block, into: &'b mut [u8]) -> Read<'b> {
        Read { block, atom: 0, into, is_hit: false }
    }
}

impl Front {
    /// Serves what it can from memory, in order. What it cannot is a miss, for the engine.
    ///
    /// # Panics
    /// If a read is not of whole atoms, or ends behind its block.
    pub fn read(&mut self, reads: &mut [Read]) {
        if let [one] = reads {
            return self.read_one(one);
        }
        for reads in reads.chunks_mut(TOGETHER) {
            let mut blocks = [Block(0); TOGETHER];
            reads.iter().zip(&mut blocks).for_each(|(read, block)| *block = read.block);
            let (mut hits, blocks) = ([Block(0); TOGETHER], &blocks[..reads.len()]);
            let count = self.pin().serve(reads, blocks, &mut hits);
            self.count(count as u64, (reads.len() - count) as u64);
            self.touch_all(&hits[..count]);
        }
    }

    /// There is nothing to do meanwhile but to note it: so that is done while the first lines come.
    #[inline(always)]
    fn read_one(&mut self, read: &mut Read) {
        let Front { pages, index, notes, .. } = self;
        let (desk, pinned) = (&pages.desks[*index], Pinned::new(pages, *index));
        let Some(contents) = pinned.find(read.block).and_then(|page| pinned.contents(page, read)) else {
            return desk.counters.0.add(0, 1);
        };
        expect_alone(contents);
        desk.counters.0.add(1, 0);
        notes.touch_all(desk, &[read.block]);
        copy_alone(contents, read.into);
        read.is_hit = true;
    }
}

impl Pinned<'_> {
    /// Reads runs of blocks, many at once: `with` is told which run it is, and given its pages, if all of them are there and whole. The first page
    /// of each was asked for by `expect` then ([`expect_next`], or [`expect_first`](crate::expect_first)), when the one before it had its turn.
    pub fn read_runs<'p, T>(
        &'p self,
        runs: impl Iterator<Item = Range<u64>> + Clone,
        expect: impl Fn(&[u8]),
        mut with: impl FnMut(usize, &[Page<'p>]) -> T,
    ) -> Vec<Option<T>> {
        let mut blocks = Vec::with_capacity(runs.clone().map(|run| (run.end - run.start) as usize).sum());
        blocks.extend(runs.clone().flatten().map(Block));
        let found: Vec<Option<Page>> = self.find_all(&blocks).collect();
        let expect = |pages: &[Option<Page>]| pages.first().copied().flatten().iter().for_each(|page| expect(page.bytes()));
        expect(&found);
        let (mut rest, mut pages) = (&found[..], Vec::new());
        let read = |(number, run): (usize, Range<u64>)| {
            let (here, behind) = rest.split_at((run.end - run.start) as usize);
            rest = behind;
            expect(behind);
            pages.clear();
            pages.extend(here.iter().map_while(|page| page.filter(|page| page.is_whole())));
            (pages.len() == here.len()).then(|| with(number, &pages))
        };
        runs.enumerate().map(read).collect()
    }

    /// At most [`TOGETHER`] reads, of these blocks; returns how many are `hits`.
    #[inline(always)]
    fn serve(&self, reads: &mut [Read], blocks: &[Block], hits: &mut [Block; TOGETHER]) -> usize {
        let mut pages = self.find_all(blocks);
        let (mut page, mut count) = (pages.next().flatten(), 0);
        page.inspect(|&first| expect_next(self.wanted(first, &reads[0])));
        for place in 0..reads.len() {
            let next_page = pages.next().flatten();
            let next = reads.get(place + 1).and_then(|read| Some(self.wanted(next_page?, read))).unwrap_or_default();
            let read = &mut reads[place];
            match page.and_then(|page| self.contents(page, read)) {
                Some(contents) => {
                    copy(contents, read.into, next);
                    read.is_hit = true;
                    hits[count] = read.block;
                    count += 1;
                }
                None => expect_next(next),
            }
            page = next_page;
        }
        count
    }

    /// What was asked for, if all of it is there.
    #[inline(always)]
    fn contents<'p>(&self, page: Page<'p>, read: &Read) -> Option<&'p [u8]> {
        let atom_bytes = self.atom_bytes();
        assert!(read.into.len().is_multiple_of(atom_bytes), "a read is of whole atoms");
        let wanted = self.wanted(page, read);
        let is_there = || page.mask().contains(Atoms::of(read.atom..read.atom + read.into.len() / atom_bytes));
        (page.is_whole() || is_there()).then_some(wanted)
    }

    /// What a read wants of its page.
    #[inline(always)]
    fn wanted<'p>(&self, page: Page<'p>, read: &Read) -> &'p [u8] {
        let start = read.atom * self.atom_bytes();
        &page.bytes()[start..start + read.into.len()]
    }
}

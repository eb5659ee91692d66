//! A queue of reads at once: look up, prefetch, copy. While one page is copied the lines of the next ones are on their way, so the price is
//! that of memory's bandwidth and not of its latency.

use std::ops::Range;

use crate::front::{Front, Page, Pinned};
use crate::tree::TOGETHER;
use crate::{Atoms, Block};

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

/// Copies before its own at which a page is asked for the first time.
const LATER: usize = 3;

impl Front {
    /// Serves what it can from memory, in order. What it cannot is a miss, for the engine.
    ///
    /// # Panics
    /// If a read is not of whole atoms, or ends behind its block.
    pub fn read(&mut self, reads: &mut [Read]) {
        for reads in reads.chunks_mut(TOGETHER) {
            let mut blocks = [Block(0); TOGETHER];
            reads.iter().zip(&mut blocks).for_each(|(read, block)| *block = read.block);
            let hits = match reads {
                [one] => {
                    let pinned = self.pin();
                    usize::from(pinned.copy(pinned.find(one.block), one))
                }
                _ => self.pin().serve(reads, &mut blocks),
            };
            self.count(hits as u64, (reads.len() - hits) as u64);
            self.touch_all(&blocks[..hits]);
        }
    }
}

impl Pinned<'_> {
    /// Reads runs of blocks, many at once: `with` is told which run it is, and given its pages, if all of them are there and whole. While it
    /// copies them the first page of the next run is on its way.
    pub fn read_runs<'p, T>(
        &'p self,
        runs: impl Iterator<Item = Range<u64>> + Clone,
        mut with: impl FnMut(usize, &[Page<'p>]) -> T,
    ) -> Vec<Option<T>> {
        let blocks: Vec<Block> = runs.clone().flatten().map(Block).collect();
        let mut found = vec![None; blocks.len()];
        self.find_all(&blocks, &mut found);
        let (mut rest, mut pages) = (&found[..], Vec::new());
        let read = |(number, run): (usize, Range<u64>)| {
            let (here, behind) = rest.split_at((run.end - run.start) as usize);
            rest = behind;
            behind.first().copied().flatten().inspect(|next| next.prefetch(0));
            pages.clear();
            pages.extend(here.iter().map_while(|page| page.filter(|page| page.is_whole())));
            (pages.len() == here.len()).then(|| with(number, &pages))
        };
        runs.enumerate().map(read).collect()
    }

    /// At most [`TOGETHER`] reads, of these blocks; returns how many hit, and those come first among the blocks then.
    #[inline(always)]
    fn serve(&self, reads: &mut [Read], blocks: &mut [Block; TOGETHER]) -> usize {
        let mut found = [None; TOGETHER];
        self.find_all(&blocks[..reads.len()], &mut found[..reads.len()]);
        let mut hits = 0;
        for place in 0..reads.len() {
            let ahead = |by: usize| Some((found.get(place + by).copied().flatten()?, reads.get(place + by)?.atom * self.atom_bytes()));
            if let Some((next, offset)) = ahead(1) {
                next.prefetch(offset);
            }
            if let Some((later, offset)) = ahead(LATER) {
                later.prefetch_for_later(offset);
            }
            blocks[hits] = blocks[place];
            hits += usize::from(self.copy(found[place], &mut reads[place]));
        }
        hits
    }

    /// Copies what was asked for, if all of it is there.
    #[inline(always)]
    fn copy(&self, page: Option<Page>, read: &mut Read) -> bool {
        let Some(page) = page else { return false };
        let atom_bytes = self.atom_bytes();
        let start = read.atom * atom_bytes;
        assert!(read.into.len().is_multiple_of(atom_bytes), "a read is of whole atoms");
        let contents = &page.bytes()[start..start + read.into.len()];
        if !page.is_whole() && !page.mask().contains(Atoms::of(read.atom..read.atom + read.into.len() / atom_bytes)) {
            return false;
        }
        read.into.copy_from_slice(contents);
        read.is_hit = true;
        true
    }
}

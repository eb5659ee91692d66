//! Memory: pages of what clients read and wrote, in front of the SSD. Which blocks stay is a [`Policy`]'s decision; `path/memory` says what
//! may be kept of them. A page holds a whole block, and only what a read of the block would give as well: it is never the only place of
//! anything.

mod marked;

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_pages::{Atoms, Block as Key, Config, Dirty, Hold, Keeper, Page, Pages, Refused, expect_next};

use crate::block::Block;
use crate::config::RAM_BLOCKS_LEAST;
use crate::dirty_share::DirtyShare;
use crate::policy::{Fifo, Kind, Policy, S3Fifo};
use crate::probe::MemoryUse;
use crate::what_if::WhatIf;

use marked::Marked;

/// Reads of a block that mostly come at once, at most: what is noted of so many takes no memory of its own.
pub const TOGETHER: usize = 32;

/// The pages of one volume, and which of them stay.
pub struct Memory {
    keeper: Keeper,
    policy: Box<dyn Policy>,
    kind: Kind,
    /// Pages that are in use at most, but for those that are lent. The others are on their way: unlinked, and maybe still read.
    most: usize,
    lent: usize,
    /// What is lent as soon as pages may go.
    lending: usize,
    /// No page goes: what they hold may be nowhere else.
    held: bool,
    /// Blocks whose pages went for others last, at most so many: what a little more memory would still have.
    behind: Fifo,
    behind_max: usize,
    page_bytes: usize,
    evicted: u64,
    /// Reads that fronts had not noted, when they were heard last.
    unnoted: u64,
    /// What is heard of them, until the policy is told. Empty between calls; kept for its memory.
    heard: Vec<u64>,
}

/// Blocks that the policy is told of at once.
const HEARD: usize = 256;

impl Memory {
    /// A pool of at most `bytes`, for blocks of so many atoms, of which a page keeps `atom_bytes` each; `fronts` threads use it as well, and may
    /// have up to `dirty` pages written in it, as soon as that is allowed. Which page goes, a policy of this `kind` says. The pages of `lending`
    /// are beside it. None: `bytes` are not enough for a few pages, or not to be had.
    pub fn new(
        bytes: u64,
        block_atoms: u64,
        atom_bytes: usize,
        fronts: usize,
        dirty: usize,
        kind: Kind,
        lending: &DirtyShare,
    ) -> Option<Memory> {
        /// What a front notes of its hits, and of their times, until the engine's next turn; when half of it is used the engine is to be woken.
        const TOUCHES: usize = 8192;
        let page_bytes = block_atoms as usize * atom_bytes;
        let pages = (bytes / (block_atoms * crate::block::ATOM_BYTES)).min(u64::from(u32::MAX / 4));
        if pages < RAM_BLOCKS_LEAST {
            return None;
        }
        let pages = pages as usize;
        let touches = if fronts == 0 { 0 } else { TOUCHES };
        let page_atoms = block_atoms as usize;
        let config = Config {
            pages: pages + lending.lendable() as usize,
            page_atoms,
            atom_bytes,
            fronts: fronts.max(1),
            leases: fronts.max(1),
            touches,
            dirty_ring: dirty.max(1).next_power_of_two(),
            dirty_pages: 0,
            whole_blocks: true,
        };
        let (_, keeper) = Pages::new(config).ok()?;
        let on_their_way = (pages / 8).clamp(1, 128);
        // What fronts have at hand, or have written and nobody has looked at yet.
        let of_fronts = if fronts == 0 { 0 } else { pages / 8 + dirty };
        let most = pages - on_their_way - of_fronts;
        let policy = match kind {
            Kind::S3Fifo => Box::new(S3Fifo::of(Marked::new(keeper.marks()), most)),
            _ => kind.build(most),
        };
        let (behind, behind_max) = (Fifo::new(lending.step() as usize), lending.step() as usize);
        Some(Memory {
            keeper,
            policy,
            kind,
            most,
            lent: 0,
            lending: 0,
            held: false,
            behind,
            behind_max,
            page_bytes,
            evicted: 0,
            unnoted: 0,
            heard: Vec::new(),
        })
    }

    /// For fronts.
    pub fn pages(&self) -> &Arc<Pages> {
        self.keeper.pages()
    }

    /// Pages that are in use at most, whatever is lent.
    pub fn pages_max(&self) -> u64 {
        self.most as u64
    }

    /// So many pages more from now on, instead of those that were lent before.
    pub fn lend(&mut self, pages: u64) {
        self.lending = pages as usize;
        self.fit();
    }

    /// From now on no page goes for another one, or for what is lent; or they do again.
    pub fn hold(&mut self, held: bool) {
        self.held = held;
        self.fit();
    }

    /// Lends what is to be lent, and lets pages go that are too many then.
    fn fit(&mut self) {
        self.lent = if self.held { self.lent.max(self.lending) } else { self.lending };
        while self.policy.len() > self.room() {
            self.evict(None);
        }
    }

    /// Is there a page of this block? (One that a front has written and nobody has drained is not known of.)
    pub fn keeps(&self, block: Block) -> bool {
        self.policy.contains(block.0)
    }

    fn room(&self) -> usize {
        self.most + self.lent
    }

    /// Would all of these blocks be here, had the last ones that went not gone?
    pub fn had(&self, block: Block, blocks: u64) -> bool {
        (block.0..block.0 + blocks).all(|block| self.policy.contains(block) || self.behind.contains(block))
    }

    /// Takes note of what fronts have read since the last time.
    pub fn hear(&mut self, what_if: &mut WhatIf) {
        let (policy, heard, mut noted) = (&mut self.policy, &mut self.heard, 0);
        self.keeper.touches(|Key(block)| {
            what_if.hear(block);
            noted += 1;
            heard.push(block);
            if heard.len() == HEARD {
                policy.touch_all(heard);
                heard.clear();
            }
        });
        policy.touch_all(heard);
        heard.clear();
        let unnoted = self.pages().counts().unnoted;
        if what_if.heard(noted, unnoted - self.unnoted) {
            self.unnoted = unnoted;
        }
    }

    /// Has a front written anything that was not [drained](Memory::drain)?
    pub fn is_owed(&self) -> bool {
        self.keeper.is_owed()
    }

    /// What fronts have written, of each block the newest page, by ascending block.
    pub fn drain(&mut self) -> Vec<(Block, Hold)> {
        let group = self.keeper.drain().dirty;
        let drained: Vec<_> = group.into_iter().map(|Dirty { block: Key(block), page }| (Block(block), page)).collect();
        for (block, _) in &drained {
            match self.policy.contains(block.0) {
                true => self.policy.touch(block.0),
                // Whoever drains has what it holds.
                false if self.held && self.is_full() => self.remove(block.0),
                false => self.policy.insert(block.0),
            }
        }
        // Only now: what has just come may go at once.
        while self.policy.len() > self.room() {
            self.evict(None);
        }
        drained
    }

    /// Pages that fronts have written or may write, until somebody says otherwise.
    pub fn allowed(&self) -> usize {
        self.keeper.allowed()
    }

    pub fn allow(&mut self, pages: usize) {
        self.keeper.allow(pages);
    }

    /// What was drained is in the log; in its place nothing is allowed for now.
    pub fn settle(&mut self, page: Hold) {
        self.keeper.settle(page);
    }

    /// Blocks that fronts have read from it, and written there.
    pub fn of_fronts(&self) -> (u64, u64) {
        let counts = self.pages().counts();
        (counts.hits, counts.writes)
    }

    /// How much of it is in use.
    pub fn usage(&self, lent_moves: u64) -> MemoryUse {
        MemoryUse {
            pages: self.policy.len() as u64,
            pages_max: self.room() as u64,
            lent: self.lent as u64,
            lent_moves,
            evicted: self.evicted,
            policy: self.kind,
            follows: self.policy.follows(),
        }
    }

    /// Bytes that it takes, contents included.
    pub fn bytes(&self) -> u64 {
        (self.policy.len() * self.page_bytes) as u64 + self.keeper.pages().overhead_bytes()
    }

    /// Bytes that it takes to know which page goes, and which have gone.
    pub fn policy_bytes(&self) -> u64 {
        self.policy.bytes() + self.behind.bytes()
    }

    /// Would another page take the place of one?
    pub fn is_full(&self) -> bool {
        self.policy.len() >= self.room()
    }

    /// Gives `each` the contents of consecutive blocks, if all of them are here.
    pub fn read<T>(&mut self, block: Block, blocks: u64, with: impl FnOnce(&[&[u8]]) -> T) -> Option<T> {
        let result = {
            let pinned = self.keeper.pin();
            let mut found: Vec<&[u8]> = Vec::with_capacity(blocks as usize);
            for block in block.0..block.0 + blocks {
                found.push(pinned.find(Key(block)).map(Page::bytes)?);
            }
            with(&found)
        };
        (block.0..block.0 + blocks).for_each(|block| self.policy.touch(block));
        Some(result)
    }

    /// The same for many reads at once, in their order: each a run of blocks. `with` is told which of them the pages are for.
    pub fn read_all<T>(
        &mut self,
        reads: impl Iterator<Item = Range<u64>> + Clone,
        mut with: impl FnMut(usize, &[&[u8]]) -> T,
    ) -> Vec<Option<T>> {
        let results = {
            let pinned = self.keeper.pin();
            let mut contents = Vec::new();
            pinned.read_runs(reads.clone(), expect_next, |read, pages| {
                contents.clear();
                contents.extend(pages.iter().map(|page| page.bytes()));
                with(read, &contents)
            })
        };
        self.touch_all(reads.zip(&results).filter(|(_, result)| result.is_some()).flat_map(|(read, _)| read));
        results
    }

    /// These blocks have been read, by somebody else.
    pub fn touch_all(&mut self, blocks: impl Iterator<Item = u64>) {
        self.policy.touch_all(&blocks.collect::<SmallVec<[u64; TOGETHER]>>());
    }

    /// Keeps what was read of a block.
    pub fn keep(&mut self, block: Block, contents: &[u8]) {
        let keeps = self.keeps(block);
        if self.held && (self.is_full() || keeps) {
            // What it holds already is the same: whoever changes a block has it forgotten, or replaced.
            return;
        }
        if keeps {
            return self.put_instead(block, contents);
        }
        self.forget(block, 1);
        if self.is_full() {
            self.evict(Some(block));
        }
        let all = self.all();
        match self.keeper.fill(Key(block.0), contents, all) {
            Ok(()) => self.policy.insert(block.0),
            // There is no page, or a front is writing there, or has: that is newer.
            Err(Refused::NoPage | Refused::Busy | Refused::Changed | Refused::Undrained) => {}
            Err(Refused::Held) => unreachable!("to put a page needs nobody's leave"),
        }
    }

    /// Keeps what a block holds from now on. If it has a page, it was asked for: that page was not in vain.
    pub fn replace(&mut self, block: Block, contents: &[u8]) {
        if !self.keeps(block) {
            // What a front has written there and nobody has drained goes with it, or stays.
            self.forget(block, 1);
            return self.keep(block, contents);
        }
        self.forget_behind(block, 1);
        self.put_instead(block, contents);
    }

    /// Instead of what is kept. Without a page for it, or where a front has written something newer that nobody has drained, nothing is.
    fn put_instead(&mut self, block: Block, contents: &[u8]) {
        let all = self.all();
        match self.keeper.replace(Key(block.0), contents, all) {
            Ok(()) => self.policy.touch(block.0),
            Err(_) => self.forget(block, 1),
        }
    }

    fn all(&self) -> Atoms {
        Atoms::of(0..self.keeper.pages().config().page_atoms)
    }

    /// Some block's page goes for one of the block that comes, if one does.
    fn evict(&mut self, comes: Option<Block>) {
        let gone = self.policy.evict(comes.map(|Block(block)| block)).expect("something is kept");
        self.remove(gone);
        self.evicted += 1;
        if self.behind_max > 0 {
            self.behind.remove(gone);
            self.behind.insert(gone);
            if self.behind.len() > self.behind_max {
                self.behind.evict(None);
            }
        }
    }

    /// It is known of none of these blocks whether it would still be here. (Mostly nothing is known at all, and nothing is to be done.)
    pub fn forget_behind(&mut self, block: Block, blocks: u64) {
        let (forgotten, known) = (block.0..block.0 + blocks, self.behind.len());
        if blocks <= known as u64 {
            return forgotten.for_each(|block| self.behind.remove(block));
        }
        for _ in 0..known {
            let oldest = self.behind.evict(None).expect("so many are known");
            if !forgotten.contains(&oldest) {
                self.behind.insert(oldest);
            }
        }
    }

    /// The first block from `block` on that has a page.
    pub fn next(&mut self, block: Block) -> Option<Block> {
        self.keeper.pin().next(Key(block.0)).map(|Key(found)| Block(found))
    }

    /// These blocks hold something else from now on, or nobody knows what.
    pub fn forget(&mut self, block: Block, blocks: u64) {
        self.forget_behind(block, blocks);
        self.forget_pages(block, blocks);
    }

    /// The same of their pages alone. Returns how many there were.
    pub fn forget_pages(&mut self, block: Block, blocks: u64) -> u64 {
        let end = block.0 + blocks;
        let (mut from, mut pages) = (block, 0);
        while let Some(Block(found)) = self.next(from).filter(|found| found.0 < end) {
            self.policy.remove(found);
            self.remove(found);
            (from, pages) = (Block(found + 1), pages + 1);
        }
        pages
    }

    fn remove(&mut self, block: u64) {
        match self.keeper.forget(Key(block)) {
            // What a front has written there is kept when it is drained.
            Ok(()) | Err(Refused::Undrained) => {}
            Err(refused) => unreachable!("nothing else is in the way: {refused}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_pages::Read;

    /// Eight pages, in steps of one.
    fn lending() -> DirtyShare {
        DirtyShare::new(8 * 4096, 0, 4096)
    }

    /// So many pages of 64 bytes: as blocks of 4 KiB are counted.
    fn memory(pages: u64) -> Memory {
        Memory::new(pages * 4096, 8, 8, 0, 0, Kind::default(), &lending()).expect("a few pages")
    }

    fn read(memory: &mut Memory, block: u64, blocks: u64) -> Option<Vec<u8>> {
        memory.read(Block(block), blocks, |pages| pages.iter().map(|page| page[0]).collect())
    }

    #[test]
    fn what_is_kept_is_read_all_of_it_or_none() {
        let mut memory = memory(32);
        memory.keep(Block(5), &[5; 64]);
        memory.keep(Block(6), &[6; 64]);
        assert_eq!((read(&mut memory, 5, 2), read(&mut memory, 5, 3), read(&mut memory, 4, 1)), (Some(vec![5, 6]), None, None));
        memory.keep(Block(6), &[7; 64]);
        assert_eq!((read(&mut memory, 6, 1), memory.policy.len()), (Some(vec![7]), 2));
    }

    #[test]
    fn many_reads_at_once_get_what_each_of_them_gets_alone() {
        let mut memory = memory(64);
        (0..40).filter(|block| block % 5 > 0).for_each(|block| memory.keep(Block(block), &[block as u8; 64]));
        let reads: Vec<(Block, u64)> = (0..200u64).map(|i| (Block(i * 13 % 45), 1 + i % 3)).collect();
        let alone: Vec<Option<Vec<u8>>> = reads.iter().map(|&(Block(block), blocks)| read(&mut memory, block, blocks)).collect();
        assert!(alone.iter().any(Option::is_none) && alone.iter().flatten().any(|read| read.len() == 3));
        for together in [1, 2, 31, 32, 33, 200] {
            let mut read = Vec::new();
            for reads in reads.chunks(together) {
                let contents = |place: usize, pages: &[&[u8]]| {
                    assert_eq!(pages.len() as u64, reads[place].1);
                    pages.iter().map(|page| page[0]).collect::<Vec<u8>>()
                };
                read.extend(memory.read_all(reads.iter().map(|&(block, blocks)| block.0..block.0 + blocks), contents));
            }
            assert_eq!(read, alone);
        }
    }

    #[test]
    fn what_is_read_together_counts_as_read() {
        let mut memory = memory(64);
        (0..8).for_each(|block| memory.keep(Block(block), &[1; 64]));
        for round in 0..100u64 {
            let read = memory.read_all((0..8).map(|block| block..block + 1), |_, _| ());
            assert!(read.iter().all(Option::is_some), "it stays");
            (0..8).for_each(|other| memory.keep(Block(100 + round * 8 + other), &[1; 64]));
        }
    }

    /// More of them than the policy is told at once.
    #[test]
    fn what_a_front_has_read_counts_as_read_when_it_is_heard() {
        let mut memory = Memory::new(1_024 * 4096, 8, 8, 1, 0, Kind::default(), &lending()).expect("a few pages");
        let (mut front, mut what_if) = (Pages::front(memory.pages()).expect("a front"), WhatIf::new(1_024, 1_024));
        (0..300).for_each(|block| memory.keep(Block(block), &[1; 64]));
        for round in 1..100 {
            let mut contents = vec![[0; 64]; 300];
            let mut reads: Vec<_> = contents.iter_mut().zip(0..).map(|(into, block)| Read::new(Key(block), into)).collect();
            front.read(&mut reads);
            assert!(reads.iter().all(|read| read.is_hit), "it stays");
            memory.hear(&mut what_if);
            (0..300).for_each(|other| memory.keep(Block(round * 300 + other), &[1; 64]));
        }
    }

    #[test]
    fn a_range_is_forgotten_however_long_it_is() {
        let mut memory = memory(64);
        for block in [0, 63, 64, 70_000, 1 << 40] {
            memory.keep(Block(block), &[1; 64]);
        }
        memory.forget(Block(63), 1 << 20);
        assert_eq!(memory.policy.len(), 2);
        assert!(read(&mut memory, 0, 1).is_some() && read(&mut memory, 1 << 40, 1).is_some());
        memory.forget(Block(0), 1 << 50);
        assert_eq!(memory.policy.len(), 0);
    }

    #[test]
    fn a_full_memory_goes_on_and_keeps_what_is_asked_for() {
        let mut memory = memory(64);
        for round in 0..200u64 {
            for block in 0..4 {
                if read(&mut memory, block, 1).is_none() {
                    memory.keep(Block(block), &[9; 64]);
                }
            }
            (0..8).for_each(|other| memory.keep(Block(100 + round * 8 + other), &[1; 64]));
            assert!(memory.policy.len() <= memory.most);
        }
        assert!(memory.evicted > 1_000 && (0..4).all(|block| read(&mut memory, block, 1) == Some(vec![9])));
    }

    #[test]
    fn a_page_that_is_replaced_counts_as_asked_for() {
        let mut memory = memory(64);
        for round in 0..40u64 {
            assert!(round == 0 || (0..4).all(|block| memory.keeps(Block(block))), "round {round}");
            (0..4).for_each(|block| memory.replace(Block(block), &[round as u8; 64]));
            (0..16).for_each(|other| memory.keep(Block(100 + round * 16 + other), &[1; 64]));
        }
        assert_eq!(read(&mut memory, 0, 4), Some(vec![39; 4]));
    }

    #[test]
    fn what_is_lent_is_more_and_is_given_back() {
        let mut memory = memory(64);
        let most = memory.most;
        for (lent, first) in [(0, 0), (8, 1_000), (3, 2_000), (0, 3_000)] {
            memory.lend(lent);
            (first..first + 200).for_each(|block| memory.keep(Block(block), &[1; 64]));
            assert_eq!(memory.policy.len(), most + lent as usize);
        }
        memory.lend(8);
        (0..8).for_each(|block| memory.keep(Block(block), &[1; 64]));
        memory.lend(0);
        assert_eq!(memory.policy.len(), most, "at once");
    }

    #[test]
    fn what_is_held_stays_whatever_comes_or_is_lent() {
        let mut memory = memory(64);
        memory.lend(8);
        let most = memory.room() as u64;
        (0..most).for_each(|block| memory.keep(Block(block), &[1; 64]));
        memory.hold(true);
        (1_000..1_200).for_each(|block| memory.keep(Block(block), &[2; 64]));
        memory.keep(Block(2), &[2; 64]);
        memory.replace(Block(4), &[4; 64]);
        memory.forget(Block(3), 1);
        memory.keep(Block(3), &[3; 64]);
        memory.lend(0);
        assert!((0..most).all(|block| memory.keeps(Block(block))) && memory.policy.len() as u64 == most);
        assert_eq!((read(&mut memory, 2, 3), read(&mut memory, 1_000, 1)), (Some(vec![1, 3, 4]), None));
        memory.hold(false);
        assert_eq!(memory.policy.len() as u64, most - 8, "what was lent goes back now");
        memory.keep(Block(1_000), &[2; 64]);
        assert!(memory.keeps(Block(1_000)));
    }

    #[test]
    fn a_block_that_has_just_gone_is_behind_until_it_changes() {
        let mut memory = memory(32);
        let most = memory.most as u64;
        (0..=most).for_each(|block| memory.keep(Block(block), &[1; 64]));
        let gone = (0..=most).find(|&block| !memory.policy.contains(block)).expect("one has gone");
        assert!(memory.had(Block(gone), 1) && memory.had(Block(0), most + 1) && !memory.had(Block(0), most + 2));
        memory.forget(Block(gone), 1);
        assert!(!memory.had(Block(gone), 1));
    }

    #[test]
    fn what_is_behind_is_forgotten_where_it_changes_and_nowhere_else() {
        let mut memory = memory(32);
        memory.behind_max = 3;
        let most = memory.most as u64;
        (0..most + 3).for_each(|block| memory.keep(Block(block), &[1; 64]));
        let gone: Vec<u64> = (0..most + 3).filter(|&block| !memory.policy.contains(block)).collect();
        assert_eq!(gone.len(), 3);
        let known = |memory: &Memory| gone.iter().filter(|&&block| memory.had(Block(block), 1)).count();
        memory.forget(Block(1 << 20), 1 << 20);
        assert_eq!(known(&memory), 3);
        memory.forget(Block(gone[1]), 1);
        assert_eq!(known(&memory), 2);
        memory.forget(Block(gone[2]), 1 << 20);
        assert_eq!((known(&memory), memory.had(Block(gone[0]), 1)), (1, true));
    }

    /// All that a page takes beside its contents, what it takes to know which page goes included.
    fn bytes_beside_a_page(block: impl Fn(u64) -> u64) -> f64 {
        const PAGES: u64 = 1 << 16;
        let mut memory = Memory::new(PAGES * 4096, 8, 1, 0, 0, Kind::default(), &lending()).expect("memory");
        // Some go, so that ghosts are remembered.
        (0..3 * PAGES).for_each(|number| memory.keep(Block(block(number)), &[1; 8]));
        let kept = memory.policy.len() as u64;
        assert!(memory.evicted > PAGES);
        (memory.bytes() - 8 * kept + memory.policy_bytes()) as f64 / kept as f64
    }

    #[test]
    fn a_page_takes_few_bytes_beside_its_contents() {
        let mut draw = crate::draw::Draw::new(1);
        let uniform: Vec<u64> = (0..3 << 16).map(|_| draw.below(1 << 22)).collect();
        let [dense, half_full, uniform] = [
            bytes_beside_a_page(|number| number),
            bytes_beside_a_page(|number| 2 * number),
            bytes_beside_a_page(|number| uniform[number as usize]),
        ];
        // As the documents have it. P5 of the yardsticks: 20 where leaves are half full, 64 where one block in 64 is in memory, all over the volume.
        assert!(dense <= 15.4 && half_full <= 19.7 && uniform <= 41.4, "{dense}, {half_full}, {uniform}");
    }

    #[test]
    fn too_little_is_none() {
        let new = |bytes| Memory::new(bytes, 8, 512, 0, 0, Kind::default(), &lending());
        assert!(new(0).is_none() && new(60_000).is_none());
    }
}

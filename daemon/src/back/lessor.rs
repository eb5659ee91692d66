//! Pages of the memory tier on their way to clients, from where they are: what a read is answered with is the pages themselves, and not a copy.
//!
//! All that is found at once lies in one slab, which is the whole pool. As long as any run of it is there the epoch of the look stands still, and no
//! page is used again. That is meant for what is sent in the same turn: what a client does not take is copied (`front/nbd/output`), since pages that
//! are overwritten or evicted meanwhile are missing elsewhere; and until the last of them has gone nothing more is leased.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use tidegate_engine::block::Span;
use tidegate_engine::payload::{Lessor, Pieces};
use tidegate_pages::{Lease, Page, Pages, expect_first};

use super::run::{Leased, Run};

/// More in one look is copied: two sends of one client, and more than what most sockets take.
const LOOK_BYTES: u64 = 512 << 10;
/// 4 KiB.
const PAGE_ATOMS_MIN: u64 = 8;

/// One thread's.
pub struct PageLessor {
    slab: Leased,
    lease: ManuallyDrop<Lease>,
    block_atoms: u64,
}

impl PageLessor {
    /// `None`: as many are out as the tier has, or it is not worth it to speak of single pages as small as these, or there are too many.
    pub fn new(pages: &Arc<Pages>) -> Option<PageLessor> {
        let block_atoms = pages.config().page_atoms as u64;
        let lease = Pages::lease(pages).filter(|_| block_atoms >= PAGE_ATOMS_MIN)?;
        let (start, bytes) = lease.memory();
        Some(PageLessor { slab: Leased::new(start, bytes)?, lease: ManuallyDrop::new(lease), block_atoms })
    }
}

impl Lessor<Run> for PageLessor {
    fn lease(&mut self, spans: &[Span]) -> Option<Vec<Option<Pieces<Run>>>> {
        let (slab, size) = (&self.slab, self.block_atoms);
        // Of parts of pages more would be kept than they count as, should they not be taken.
        let is_whole = |span: &Span| span.start.is_multiple_of(size) && span.atoms.is_multiple_of(size);
        let bytes: u64 = spans.iter().map(|span| span.bytes()).sum();
        if bytes > LOOK_BYTES || !spans.iter().all(is_whole) || !slab.is_free() {
            return None;
        }
        let runs = spans.iter().map(|span| span.start / size..span.end() / size);
        // SAFETY: a page of the pool, and found by the look below: it stays what it is until the next look, and until the lease ends. Neither happens
        // before the slab is free.
        let answer = |_: usize, pages: &[Page]| pages.iter().map(|page| unsafe { slab.run(page.bytes()) }).collect();
        Some(self.lease.look().read_runs(runs, expect_first, answer))
    }

    fn end(&mut self) {
        if self.slab.is_free() {
            self.lease.let_go();
        }
    }
}

impl Drop for PageLessor {
    fn drop(&mut self) {
        // While a run is left the lease stays out, and the pool where it is.
        if self.slab.is_free() {
            // SAFETY: nobody uses it after this.
            unsafe { ManuallyDrop::drop(&mut self.lease) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_engine::block::ATOM_BYTES;
    use tidegate_engine::payload::Payload;
    use tidegate_pages::{Atoms, Block, Config, Keeper, Refused};

    const BLOCK: usize = 4096;

    /// Blocks 0 to 3, each byte of an atom is its number, and 17 pages more.
    fn tier() -> (PageLessor, Keeper) {
        let (pages, mut keeper) = Pages::new(Config::of_memory(21 * BLOCK, 1)).expect("memory");
        (0..4).for_each(|block| put(&mut keeper, block, 8 * block as u8));
        (PageLessor::new(&pages).expect("there is one"), keeper)
    }

    fn put(keeper: &mut Keeper, block: u64, first: u8) {
        try_put(keeper, block, first).expect("a page");
    }

    fn try_put(keeper: &mut Keeper, block: u64, first: u8) -> Result<(), Refused> {
        let contents: Vec<u8> = (0..8).flat_map(|atom| [first + atom; ATOM_BYTES as usize]).collect();
        keeper.remove(Block(block)).expect("nobody is in the way");
        keeper.fill(Block(block), &contents, Atoms(0xff)).map(drop)
    }

    /// The first byte of each atom.
    fn atoms(pieces: &[Run]) -> Vec<u8> {
        pieces.iter().flat_map(|piece| piece.as_slice().chunks(ATOM_BYTES as usize).map(|atom| atom[0]).collect::<Vec<_>>()).collect()
    }

    fn one(lessor: &mut PageLessor, span: Span) -> Pieces<Run> {
        lessor.lease(&[span]).expect("nothing is out").remove(0).expect("it is in memory")
    }

    #[test]
    fn reads_of_whole_blocks_are_answered_with_pages() {
        let (mut lessor, _keeper) = tier();
        let spans = [Span::new(0, 8), Span::new(8, 24), Span::new(24, 16), Span::new(40, 8)];
        let answers = lessor.lease(&spans).expect("nothing is out");
        let expected = [Some((0..8).collect()), Some((8..32).collect()), None, None];
        assert_eq!(answers.iter().map(|answer| answer.as_deref().map(atoms)).collect::<Vec<_>>(), expected);
        let (start, bytes) = lessor.lease.memory();
        let pool = start.addr().get()..start.addr().get() + bytes;
        assert!(answers.iter().flatten().flatten().all(|piece| pool.contains(&piece.as_slice().as_ptr().addr())), "no copies");
        assert!(answers[1].as_ref().is_some_and(|pieces| pieces.len() == 3 && pieces.iter().all(|piece| piece.is_leased())));
    }

    #[test]
    fn what_is_out_stays_as_it_is_whatever_is_written_and_comes_back_once() {
        let (mut lessor, mut keeper) = tier();
        let whole = one(&mut lessor, Span::new(8, 16));
        let part = whole[1].slice(2, 3);
        let refuses = |lessor: &mut PageLessor, keeper: &mut Keeper, first: u8| {
            assert!(lessor.lease(&[Span::new(8, 8)]).is_none(), "some of it is out");
            lessor.end();
            assert_eq!(try_put(keeper, 1, first), Err(Refused::NoPage), "no page comes free");
        };
        // All that there are beside the four.
        (0..17).for_each(|round| put(&mut keeper, 1, 100 + round));
        refuses(&mut lessor, &mut keeper, 150);
        assert_eq!(atoms(&whole), (8..24).collect::<Vec<u8>>());
        std::thread::spawn(move || drop(whole)).join().expect("it ends anywhere");
        refuses(&mut lessor, &mut keeper, 160);
        assert_eq!(atoms(std::slice::from_ref(&part)), [18, 19, 20]);
        drop(part);
        assert_eq!(try_put(&mut keeper, 1, 170), Err(Refused::NoPage), "it has not ended");
        lessor.end();
        (0..40).for_each(|round| put(&mut keeper, 1, 180 + round));
        assert_eq!(atoms(&one(&mut lessor, Span::new(8, 8))), (219..227).collect::<Vec<u8>>());
    }

    #[test]
    fn what_is_much_or_not_whole_blocks_is_left_to_be_copied() {
        let (mut lessor, _keeper) = tier();
        let half = Span::new(0, LOOK_BYTES / ATOM_BYTES / 2);
        assert!(lessor.lease(&[half, half]).is_some());
        assert!(lessor.lease(&[half, Span::new(0, 8), half]).is_none());
        assert!(lessor.lease(&[Span::new(0, 8), Span::new(8, 7)]).is_none() && lessor.lease(&[Span::new(7, 8)]).is_none());
        assert!(lessor.lease(&[Span::new(0, 8), Span::new(8, 8)]).is_some());
    }

    #[test]
    fn small_pages_are_not_leased_and_each_place_once() {
        let config = Config::of_memory(21 * BLOCK, 1);
        let (pages, _keeper) = Pages::new(Config { page_atoms: 4, ..config }).expect("memory");
        assert!(PageLessor::new(&pages).is_none());
        let (pages, _keeper) = Pages::new(config).expect("memory");
        let one = PageLessor::new(&pages);
        assert!(one.is_some() && PageLessor::new(&pages).is_none());
    }

    #[test]
    fn what_is_out_outlives_all_others() {
        let (mut lessor, keeper) = tier();
        let pages = Arc::downgrade(lessor.lease.pages());
        let (answer, other) = (one(&mut lessor, Span::new(8, 8)), one(&mut tier().0, Span::new(0, 8)));
        drop((lessor, keeper));
        assert_eq!((atoms(&answer), atoms(&other)), ((8..16).collect(), (0..8).collect()));
        assert!(pages.upgrade().is_some(), "the pool stays");
        let (lessor, keeper) = tier();
        let pages = Arc::downgrade(lessor.lease.pages());
        drop((lessor, keeper));
        assert!(pages.upgrade().is_none(), "and goes where nothing is out");
    }
}

//! Admission: which of the blocks that a read fetched from the origin are kept. While a fill displaces nothing, all of them (`path/fill` knows
//! when). Once something else has to go for them: nothing of a long sequence, which a disk gives quickly and which is seldom asked for
//! again soon; and of the rest what was missed often enough within the *ghost window*: as many other misses as the cache has slots.
//!
//! How often it must have been missed depends on who reads: of most volumes most blocks are read once or twice, and keeping those costs writes
//! and hits (SieveStore; Pritchett, Thottethodi, ISCA 2010); of others a block that was read once is read again soon, and each miss more that is
//! asked of it is one. So it is tried (`trials`): from once to four times, twice until more is known.

mod ghosts;
mod trials;

use crate::block::{ATOM_BYTES, Block, Span};
use crate::cache::sequence::{Sequence, Sequences};
use ghosts::Ghosts;
use trials::Trials;

/// Sequential readers that are told apart.
const SEQUENCES: usize = 32;
/// A sequence is long that has covered so much (paper 000's successors bypass from some MiB on; a disk has read 4 MiB in the time of a few seeks).
const LONG: u64 = (4 << 20) / ATOM_BYTES;
/// Misses that a block must have had, the one that fetched it included.
const TOUCHES: std::ops::RangeInclusive<u32> = 1..=4;
/// Before anything is known.
const TOUCHES_FIRST: u32 = 2;

/// Why a block is kept, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Kept,
    /// It is part of a long sequence.
    Sequential,
    /// It was not missed before, as far as is known.
    FirstTouch,
    /// It was, but not often enough.
    Sieved,
}

/// The decision.
#[derive(Debug)]
pub struct Admission {
    sequences: Sequences,
    ghosts: Ghosts,
    trials: Trials,
    touches: u32,
}

impl Admission {
    /// For a cache of so many slots.
    pub fn new(slots: u64) -> Self {
        let (sequences, ghosts) = (Sequences::new(SEQUENCES), Ghosts::new(slots));
        Admission { sequences, ghosts, trials: Trials::new(slots), touches: TOUCHES_FIRST }
    }

    /// A client's read, in their order, hit or miss: which sequence it goes on with.
    pub fn note(&mut self, span: Span) -> Option<Sequence> {
        self.sequences.note(span)
    }

    /// Is it so long that nothing of it is kept for which something else would have to go?
    pub fn is_long(sequence: &Sequence) -> bool {
        sequence.length() >= LONG
    }

    /// The cache is asked for these blocks by a client, hit or miss.
    pub fn read(&mut self, block: Block, blocks: u64, is_sequential: bool) {
        if let Some(better) = self.trials.read(block, blocks, !is_sequential, self.touches) {
            self.touches = better;
        }
    }

    /// A client has written these blocks into the cache.
    pub fn written(&mut self, block: Block, blocks: u64) {
        self.trials.write(block, blocks);
    }

    /// Is a missed block worth a place that another one has?
    pub fn judge(&mut self, block: Block, is_sequential: bool) -> Verdict {
        if is_sequential {
            return Verdict::Sequential;
        }
        match self.ghosts.note(block, 1) {
            count if count >= self.touches => {
                self.ghosts.forget(block);
                Verdict::Kept
            }
            1 => Verdict::FirstTouch,
            _ => Verdict::Sieved,
        }
    }

    /// A block has to go that was read not long ago: the next miss of it is the last one that it needs.
    pub fn remember(&mut self, block: Block) {
        self.ghosts.note(block, *TOUCHES.end() - 1);
    }

    /// Misses that a block needs now to be kept.
    pub fn touches(&self) -> u32 {
        self.touches
    }

    /// Memory, in bytes.
    pub fn bytes(&self) -> u64 {
        self.ghosts.bytes() + self.trials.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission() -> Admission {
        Admission::new(10_000)
    }

    #[test]
    fn what_is_missed_twice_is_kept() {
        let mut admission = admission();
        assert_eq!(admission.judge(Block(7), false), Verdict::FirstTouch);
        assert_eq!(admission.judge(Block(8), false), Verdict::FirstTouch);
        assert_eq!(admission.judge(Block(7), false), Verdict::Kept);
        assert_eq!(admission.judge(Block(7), false), Verdict::FirstTouch, "it has left the cache, and is as any other");
    }

    #[test]
    fn a_long_sequence_is_passed_by_and_leaves_no_ghosts() {
        let mut admission = admission();
        let reads: Vec<bool> =
            (0..100).map(|i| admission.note(Span::new(i * 256, 256)).is_some_and(|sequence| Admission::is_long(&sequence))).collect();
        assert!(!reads[30] && reads[40..].iter().all(|&long| long));
        assert_eq!(admission.judge(Block(1), true), Verdict::Sequential);
        assert_eq!(admission.judge(Block(1), false), Verdict::FirstTouch);
    }

    #[test]
    fn what_was_read_and_had_to_go_is_kept_at_the_first_miss() {
        let mut admission = admission();
        admission.remember(Block(7));
        assert_eq!(admission.judge(Block(7), false), Verdict::Kept);
    }

    /// Reads of blocks, each of which is asked about only if it is not kept; the number of misses asked for at last.
    fn after(reads: impl Iterator<Item = u64>) -> u32 {
        let mut admission = Admission::new(20_000);
        reads.for_each(|block| admission.read(Block(block), 1, false));
        admission.touches()
    }

    /// Always the last ones of what grows: each block twice, some thousand reads apart.
    fn again_soon() -> impl Iterator<Item = u64> {
        (0..400_000).map(|i| if i % 2 == 0 { i } else { (i - 1u64).saturating_sub(10_000) })
    }

    #[test]
    fn where_what_was_read_is_read_again_soon_once_is_enough() {
        assert_eq!(after(again_soon()), 1);
    }

    #[test]
    fn where_much_is_read_that_is_never_read_again_it_is_not() {
        // 15,000 blocks again and again, and between two of them always another one.
        let of = |i: u64| if i.is_multiple_of(2) { i / 2 * 7_919 % 15_000 } else { 1_000_000 + i };
        assert!(after(again_soon().chain((0..800_000).map(of))) > 1);
    }

    #[test]
    fn chance_changes_nothing() {
        assert_eq!(after((0..400_000u64).map(|i| i * 2_654_435_761 % 10_000_000_019)), TOUCHES_FIRST);
    }
}

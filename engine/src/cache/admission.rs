//! Admission: which of the blocks that a read fetched from the origin are kept. While a fill displaces nothing, all of them (`path/fill` knows
//! when). Once something else has to go for them: nothing of a long sequence, which a disk gives quickly and which is seldom asked for
//! again soon; and of the rest what was missed before, within the *ghost window*: as many other misses as a table of half the cache's blocks
//! remembers.
//!
//! How often it must have been missed is a sieve after SieveStore (Pritchett, Thottethodi, ISCA 2010: most blocks are read once or twice, and
//! keeping those costs writes and hits): twice, and up to four times while most of the sets that are dropped were never read.

use crate::block::{ATOM_BYTES, Block, Span};

use super::sequence::Sequences;

/// Sequential readers that are told apart.
const SEQUENCES: usize = 32;
/// A sequence is long that has covered so much (paper 000's successors bypass from some MiB on; a disk has read 4 MiB in the time of a few seeks).
const LONG: u64 = (4 << 20) / ATOM_BYTES;
/// Ghosts that are looked at for one block.
const WAYS: usize = 8;
/// Misses that a block must have had, the one that fetched it included.
const TOUCHES: std::ops::RangeInclusive<u32> = 2..=4;
/// Sets dropped between two looks at the sieve.
const DROPS: u32 = 64;

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

/// Blocks that were missed and not kept: a fingerprint of 28 bits and a count of 4 each, the newest first in every row of [`WAYS`]. Of two
/// blocks in a row one in 2^28 is taken for the other.
#[derive(Clone, Debug)]
struct Ghosts {
    rows: Vec<[u32; WAYS]>,
}

impl Ghosts {
    fn new(ghosts: u64) -> Self {
        Ghosts { rows: vec![[0; WAYS]; (ghosts / WAYS as u64).max(8) as usize] }
    }

    /// Notes a miss; how many there were, with this one.
    fn miss(&mut self, block: Block) -> u32 {
        let (row, tag) = self.place(block);
        let at = row.iter().position(|ghost| ghost >> 4 == tag).unwrap_or(WAYS - 1);
        let count = if row[at] >> 4 == tag { (row[at] & 15) + 1 } else { 1 };
        row[..=at].rotate_right(1);
        row[0] = tag << 4 | count.min(15);
        count
    }

    fn forget(&mut self, block: Block) {
        let (row, tag) = self.place(block);
        if let Some(at) = row.iter().position(|ghost| ghost >> 4 == tag) {
            row[at..].rotate_left(1);
            row[WAYS - 1] = 0;
        }
    }

    fn place(&mut self, block: Block) -> (&mut [u32; WAYS], u32) {
        let hash = (block.0 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let row = ((u128::from(hash) * self.rows.len() as u128) >> 64) as usize;
        // Bits that the row does not depend on much; never the empty place.
        let tag = ((hash.wrapping_mul(0xd6e8_feb8_6659_fd93) >> 36) as u32).max(1);
        (&mut self.rows[row], tag)
    }
}

/// The decision.
#[derive(Clone, Debug)]
pub struct Admission {
    sequences: Sequences,
    ghosts: Ghosts,
    touches: u32,
    /// Sets dropped since the last look; of these, never read.
    dropped: u32,
    unread: u32,
}

impl Admission {
    /// For a cache of so many slots.
    pub fn new(slots: u64) -> Self {
        Admission { sequences: Sequences::new(SEQUENCES), ghosts: Ghosts::new(slots / 2), touches: *TOUCHES.start(), dropped: 0, unread: 0 }
    }

    /// A client's read, in their order, hit or miss: is it part of a long sequence?
    pub fn note(&mut self, span: Span) -> bool {
        self.sequences.note(span).is_some_and(|sequence| sequence.length() >= LONG)
    }

    /// Is a missed block worth a place that another one has?
    pub fn judge(&mut self, block: Block, is_sequential: bool) -> Verdict {
        if is_sequential {
            return Verdict::Sequential;
        }
        match self.ghosts.miss(block) {
            count if count >= self.touches => {
                self.ghosts.forget(block);
                Verdict::Kept
            }
            1 => Verdict::FirstTouch,
            _ => Verdict::Sieved,
        }
    }

    /// A clean set was dropped. `used`: it was read.
    pub fn dropped(&mut self, used: bool) {
        self.dropped += 1;
        self.unread += u32::from(!used);
        if self.dropped == DROPS {
            let touches = match self.unread * 4 / DROPS {
                3.. => self.touches + 1,
                2 => self.touches,
                _ => self.touches - 1,
            };
            self.touches = touches.clamp(*TOUCHES.start(), *TOUCHES.end());
            (self.dropped, self.unread) = (0, 0);
        }
    }

    /// Misses that a block needs now to be kept.
    pub fn touches(&self) -> u32 {
        self.touches
    }

    /// Memory of the ghosts, in bytes.
    pub fn bytes(&self) -> u64 {
        (self.ghosts.rows.capacity() * WAYS * size_of::<u32>()) as u64
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
        let reads: Vec<bool> = (0..100).map(|i| admission.note(Span::new(i * 256, 256))).collect();
        assert!(!reads[30] && reads[40..].iter().all(|&long| long));
        assert_eq!(admission.judge(Block(1), true), Verdict::Sequential);
        assert_eq!(admission.judge(Block(1), false), Verdict::FirstTouch);
    }

    #[test]
    fn the_window_is_half_the_cache() {
        let mut admission = admission();
        let again = |admission: &mut Admission, others: u64| {
            for block in (0..200).map(|block| 1_000_000 + block).chain((0..others).map(|block| others * 1_000 + block)) {
                admission.judge(Block(block), false);
            }
            (0..200).filter(|block| admission.judge(Block(1_000_000 + block), false) == Verdict::Kept).count()
        };
        assert!(again(&mut admission, 1_500) > 190, "a third of the window");
        assert!(again(&mut admission, 20_000) < 20, "four windows");
    }

    #[test]
    fn the_sieve_narrows_while_what_was_kept_is_not_read_and_widens_again() {
        let mut admission = admission();
        (0..3 * DROPS).for_each(|_| admission.dropped(false));
        assert_eq!(admission.touches(), 4);
        let verdicts: Vec<Verdict> = (0..4).map(|_| admission.judge(Block(5), false)).collect();
        assert_eq!(verdicts, [Verdict::FirstTouch, Verdict::Sieved, Verdict::Sieved, Verdict::Kept]);
        (0..5 * DROPS).for_each(|_| admission.dropped(true));
        assert_eq!(admission.touches(), 2);
    }
}

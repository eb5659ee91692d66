//! Admission: which of the blocks that a read fetched from the origin are kept. While a fill displaces nothing, all of them (`path/fill` knows
//! when). Once something else has to go for them: what was missed often enough within the *ghost window*: as many other misses as the
//! cache has slots; and of long sequences, which a disk gives quickly if nobody else asks it for anything, nothing or the same.
//!
//! Which [`Rule`] is right depends on who reads, and of what. Of most volumes most blocks are read once or twice, and keeping those costs writes
//! and hits (SieveStore; Pritchett, Thottethodi, ISCA 2010); of others a block that was read once is read again soon, and each miss more that is
//! asked of it is one. A long sequence may be a backup, which never comes back, or a log that several readers follow one behind the other. So all
//! rules are tried at once (`trials`) on a sample of the blocks, and the one is followed under which the origin would be busy the least.

mod costs;
mod trials;

use crate::block::{ATOM_BYTES, Block, Span};
use crate::cache::sequence::{Sequence, Sequences};
use crate::time::Duration;
use costs::Costs;
use trials::Trials;

/// Sequential readers that are told apart.
const SEQUENCES: usize = 32;
/// A sequence is long that has covered so much (paper 000's successors bypass from some MiB on; a disk has read 4 MiB in the time of a few seeks).
const LONG: u64 = (4 << 20) / ATOM_BYTES;
/// Blocks that were missed, and how often: up to seven times.
type Ghosts = crate::ghosts::Ghosts<3>;
/// Ghosts of a row, and at least so many in all.
const ROW: usize = 8;
const GHOSTS_LEAST: u64 = 64;
/// Misses that any rule asks for.
const TOUCHES: std::ops::RangeInclusive<u32> = 1..=4;

/// Which missed blocks are kept, if something else has to go for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Misses that a block must have had, the one that fetched it included.
    pub touches: u32,
    /// Those of long sequences, too?
    pub sequences: bool,
}

impl Rule {
    /// Before anything is known.
    const FIRST: Rule = Rule { touches: 2, sequences: false };

    fn all() -> impl Iterator<Item = Rule> {
        [false, true].into_iter().flat_map(|sequences| TOUCHES.map(move |touches| Rule { touches, sequences }))
    }
}

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
    costs: Costs,
    rule: Rule,
}

fn ghosts(blocks: u64) -> Ghosts {
    Ghosts::new(blocks.max(GHOSTS_LEAST), ROW)
}

impl Admission {
    /// For a cache of so many slots.
    pub fn new(slots: u64) -> Self {
        let (sequences, ghosts) = (Sequences::new(SEQUENCES), ghosts(slots));
        Admission { sequences, ghosts, trials: Trials::new(slots), costs: Costs::default(), rule: Rule::FIRST }
    }

    /// A client's read, in their order, hit or miss: which sequence it goes on with.
    pub fn note(&mut self, span: Span) -> Option<Sequence> {
        self.sequences.note(span)
    }

    /// Is it so long that what is read of it does not count as scattered?
    pub fn is_long(sequence: &Sequence) -> bool {
        sequence.length() >= LONG
    }

    /// The cache is asked for these blocks by a client, hit or miss.
    pub fn read(&mut self, block: Block, blocks: u64, is_sequential: bool) {
        if let Some(better) = self.trials.read(block, blocks, is_sequential, self.costs.of(is_sequential), self.rule) {
            self.rule = better;
        }
    }

    /// The origin was busy for so long with a client's read of so many blocks.
    pub fn fetched(&mut self, blocks: u64, is_sequential: bool, busy: Duration) {
        self.costs.learn(blocks, is_sequential, busy);
    }

    /// A client has written these blocks into the cache.
    pub fn written(&mut self, block: Block, blocks: u64) {
        self.trials.write(block, blocks);
    }

    /// Is a missed block worth a place that another one has?
    pub fn judge(&mut self, block: Block, is_sequential: bool) -> Verdict {
        if !self.may_keep(is_sequential) {
            return Verdict::Sequential;
        }
        match self.ghosts.note(block.0, 1) {
            count if count >= self.rule.touches => {
                self.ghosts.remove(block.0);
                Verdict::Kept
            }
            1 => Verdict::FirstTouch,
            _ => Verdict::Sieved,
        }
    }

    /// A block has to go that was read not long ago: the next miss of it is the last one that it needs.
    pub fn remember(&mut self, block: Block) {
        self.ghosts.note(block.0, *TOUCHES.end() - 1);
    }

    /// Is anything kept of what is, or is not, part of a long sequence?
    pub fn may_keep(&self, is_sequential: bool) -> bool {
        self.rule.sequences || !is_sequential
    }

    /// The rule that is followed now.
    pub fn rule(&self) -> Rule {
        self.rule
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

    /// Scattered reads of blocks, and the number of misses asked for at last.
    fn after(reads: impl Iterator<Item = u64>) -> u32 {
        let mut admission = Admission::new(20_000);
        reads.for_each(|block| admission.read(Block(block), 1, false));
        assert!(!admission.rule().sequences, "there was none");
        admission.rule().touches
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
        assert_eq!(after((0..400_000u64).map(|i| i * 2_654_435_761 % 10_000_000_019)), Rule::FIRST.touches);
    }

    /// Two readers of one long sequence, the second 4,000 blocks behind the first, beside scattered reads of what is read again and again; a read of
    /// one block keeps the origin busy for so long.
    fn followed_sequence(scattered: Duration, sequential: Duration) -> Rule {
        let mut admission = Admission::new(20_000);
        for i in 0..200_000u64 {
            admission.fetched(1, false, scattered);
            admission.fetched(1, true, sequential);
            admission.read(Block(1_000_000 + i), 1, true);
            admission.read(Block(1_000_000 + i.saturating_sub(4_000)), 1, true);
            admission.read(Block(i * 7_919 % 6_000), 1, false);
        }
        admission.rule()
    }

    #[test]
    fn a_sequence_that_is_read_again_soon_is_kept_where_it_costs_the_origin_what_scattered_reads_do() {
        let (slow, quick) = (Duration::from_millis(8), Duration::from_micros(30));
        assert!(followed_sequence(slow, slow).sequences, "others move the head away");
        assert!(!followed_sequence(slow, quick).sequences, "what it spares is worth less than the writes to the SSD");
    }

    #[test]
    fn a_sequence_that_never_comes_back_is_not() {
        let mut admission = Admission::new(20_000);
        for i in 0..400_000u64 {
            admission.read(Block(1_000_000 + i), 1, true);
            admission.read(Block(i * 7_919 % 15_000), 1, false);
        }
        assert!(!admission.rule().sequences);
    }

    /// As ARCHITECTURE.md has it: beside 2 bytes of ghosts for each slot, whatever the size of the cache.
    #[test]
    fn trials_take_about_a_mebibyte() {
        const SLOTS: u64 = 1 << 20;
        let mut admission = Admission::new(SLOTS);
        (0..2 * SLOTS).for_each(|block| admission.read(Block(block), 1, false));
        let trials = admission.bytes() - 2 * SLOTS;
        assert!((1 << 19..5 << 18).contains(&trials), "{trials} bytes");
    }
}

//! Blocks of written pages that count no more: another page has taken their place, or a failed write has spoilt them. When a flush covers one, what
//! is below it in the cache has to die, although the newer page is not covered yet: the older contents may have been promised.

use std::collections::{BTreeMap, BTreeSet};

use crate::block::Block;

/// Of each block the oldest page that was replaced there: no flush covers a later one before it. So it holds no more blocks than pages do, however
/// often they take each other's place.
#[derive(Default)]
pub struct Replaced {
    /// Stretches by their first block, apart from each other: where one ends, and which page it was of.
    stretches: BTreeMap<u64, (u64, u64)>,
    /// The same by the number of the page: what a flush covers is asked for at each turn.
    by_number: BTreeSet<(u64, u64)>,
    blocks: u64,
}

impl Replaced {
    /// Each block once.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The page written as `number` counts no more for blocks `from..to`.
    pub fn note(&mut self, number: u64, from: u64, to: u64) {
        let mut at = from;
        for (first, end) in self.overlapping(from, to) {
            self.add(number, at, first);
            at = end;
        }
        self.add(number, at, to);
    }

    /// Nothing has to be known of blocks `from..to` any more.
    pub fn remove(&mut self, from: u64, to: u64) {
        for (first, _) in self.overlapping(from, to) {
            let (end, number) = self.take(first);
            self.add(number, first, from);
            self.add(number, to, end);
        }
    }

    /// Takes those that a flush covers which was handed out at `mark`.
    pub fn take_covered(&mut self, mark: u64) -> Vec<(Block, u64)> {
        let covered = self.by_number.range(..=(mark, u64::MAX)).map(|&(_, first)| first).collect::<Vec<_>>();
        covered.into_iter().map(|first| (Block(first), self.take(first).0 - first)).collect()
    }

    /// Forgets those that no flush handed out at `flushed` covers.
    pub fn forget_behind(&mut self, flushed: u64) {
        let behind = self.by_number.range((flushed + 1, 0)..).map(|&(_, first)| first).collect::<Vec<_>>();
        behind.into_iter().for_each(|first| _ = self.take(first));
    }

    /// The stretches that hold any of blocks `from..to`, in order: their first blocks and where they end.
    fn overlapping(&self, from: u64, to: u64) -> Vec<(u64, u64)> {
        let before = self.stretches.range(..from).next_back().filter(|(_, (end, _))| *end > from);
        before.into_iter().chain(self.stretches.range(from..to)).map(|(first, (end, _))| (*first, *end)).collect()
    }

    fn add(&mut self, number: u64, from: u64, to: u64) {
        if from < to {
            self.stretches.insert(from, (to, number));
            self.by_number.insert((number, from));
            self.blocks += to - from;
        }
    }

    fn take(&mut self, first: u64) -> (u64, u64) {
        let (end, number) = self.stretches.remove(&first).expect("found just now");
        self.by_number.remove(&(number, first));
        self.blocks -= end - first;
        (end, number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::Draw;

    #[test]
    fn of_each_block_the_oldest_page_that_was_replaced_there_is_known() {
        let mut chance = Draw::new(11);
        let (mut replaced, mut known) = (Replaced::default(), BTreeMap::new());
        for number in 100..4_000 {
            let from = chance.below(200);
            let to = from + 1 + chance.below(40);
            match chance.below(20) {
                0 => {
                    let taken = replaced.take_covered(number - 20);
                    let taken = taken.into_iter().flat_map(|(block, blocks)| block.0..block.0 + blocks).collect::<BTreeSet<_>>();
                    assert_eq!(taken, known.extract_if(.., |_, of| *of <= number - 20).map(|(block, _)| block).collect());
                }
                1 => {
                    replaced.forget_behind(number - 3);
                    known.retain(|_, of| *of <= number - 3);
                }
                2..6 => {
                    replaced.remove(from, to);
                    known.retain(|block, _| !(from..to).contains(block));
                }
                _ => {
                    replaced.note(number, from, to);
                    (from..to).for_each(|block| _ = known.entry(block).or_insert(number));
                }
            }
            assert_eq!(replaced.blocks(), known.len() as u64);
        }
    }
}

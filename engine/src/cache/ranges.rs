//! Zeroed ranges: blocks that read as zeros although the origin may still hold something else. With what is lost (`lost`) they are the range
//! table on the SSD.
//! Slots above a range shadow it and are never destaged before it.

use std::collections::BTreeMap;

use super::format::{Range, RangeKind};
use crate::block::Block;
use crate::time::Instant;

/// A run of blocks that reads as zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zeroed {
    pub blocks: u64,
    pub kind: RangeKind,
    /// The group that made it; it may be destaged once that one is durable.
    pub group: u64,
}

#[derive(Default)]
pub struct Ranges {
    zeroed: BTreeMap<u64, Zeroed>,
    /// Blocks in all zeroed ranges.
    blocks: u64,
    /// When the table last stopped being empty, or what counts instead.
    since: Option<Instant>,
}

impl Ranges {
    /// Ranges: as many entries of the table on the SSD.
    pub fn entries(&self) -> usize {
        self.zeroed.len()
    }
    pub fn zeroed_blocks(&self) -> u64 {
        self.blocks
    }
    pub fn is_empty(&self) -> bool {
        self.zeroed.is_empty()
    }
    /// Is there a zeroed range of this group or an older one?
    pub fn has_of_group_until(&self, group: u64) -> bool {
        self.zeroed.values().any(|range| range.group <= group)
    }
    /// Since when there has been a zeroed range, as told to [`Ranges::note_time`].
    pub fn since(&self) -> Option<Instant> {
        self.since.filter(|_| !self.zeroed.is_empty())
    }
    /// A range was added now.
    pub fn note_time(&mut self, now: Instant) {
        if self.since().is_none() {
            self.since = Some(now);
        }
    }

    /// All ranges count as if they had been zeroed then.
    pub fn renew(&mut self, since: Instant) {
        self.since = Some(since);
    }

    /// Adds a range; it swallows what it overlaps and joins neighbours of its kind and group.
    pub fn zero(&mut self, block: Block, blocks: u64, kind: RangeKind, group: u64) {
        self.remove(block, blocks);
        let (mut start, mut end) = (block.0, block.0 + blocks);
        if let Some((&left, range)) = self.zeroed.range(..start).next_back()
            && left + range.blocks == start
            && (range.kind, range.group) == (kind, group)
        {
            start = left;
        }
        if let Some(range) = self.zeroed.get(&end).copied()
            && (range.kind, range.group) == (kind, group)
        {
            self.zeroed.remove(&end);
            end += range.blocks;
        }
        self.zeroed.insert(start, Zeroed { blocks: end - start, kind, group });
        self.blocks += blocks;
    }

    /// Forgets the zeroed ranges inside `block..block + blocks` (the origin holds the zeros now).
    pub fn remove(&mut self, block: Block, blocks: u64) {
        let end = block.0 + blocks;
        let mut at = block.0;
        if let Some((&left, range)) = self.zeroed.range(..at).next_back()
            && left + range.blocks > at
        {
            at = left;
        }
        while at < end
            && let Some((&start, &range)) = self.zeroed.range(at..end).next()
        {
            self.zeroed.remove(&start);
            let stop = start + range.blocks;
            if start < block.0 {
                self.zeroed.insert(start, Zeroed { blocks: block.0 - start, ..range });
            }
            if stop > end {
                self.zeroed.insert(end, Zeroed { blocks: stop - end, ..range });
            }
            self.blocks -= stop.min(end) - start.max(block.0);
            at = stop;
        }
    }

    /// Would removing these blocks leave two ranges of one?
    pub fn splits(&self, block: Block, blocks: u64) -> bool {
        let end = block.0 + blocks;
        self.overlapping(block, blocks).any(|(start, range)| start < block && start.0 + range.blocks > end)
    }

    /// The zeroed ranges that overlap `block..block + blocks`, whole, in order.
    pub fn overlapping(&self, block: Block, blocks: u64) -> impl Iterator<Item = (Block, Zeroed)> + '_ {
        let first = match self.zeroed.range(..block.0).next_back() {
            Some((&left, range)) if left + range.blocks > block.0 => left,
            _ => block.0,
        };
        self.zeroed.range(first..block.0 + blocks).map(|(&start, &range)| (Block(start), range))
    }
    pub fn is_zeroed(&self, block: Block) -> bool {
        self.overlapping(block, 1).next().is_some()
    }
    /// The first zeroed range that ends behind `from`.
    pub fn next(&self, from: Block) -> Option<(Block, Zeroed)> {
        self.overlapping(from, u64::MAX - from.0).next()
    }

    /// As the state map stores them.
    pub fn to_entries(&self) -> impl Iterator<Item = Range> + '_ {
        self.zeroed.iter().map(|(&block, range)| Range::Zeroed { block: Block(block), blocks: range.blocks, kind: range.kind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_are_a_set_of_blocks(steps in prop::collection::vec((0u64..100, 1u64..30, prop::bool::ANY, 0u64..3), 1..50)) {
            let mut ranges = Ranges::default();
            let mut naive: BTreeMap<u64, u64> = BTreeMap::new();
            for (block, blocks, remove, group) in steps {
                if remove {
                    let (before, splits) = (ranges.entries(), ranges.splits(Block(block), blocks));
                    ranges.remove(Block(block), blocks);
                    prop_assert!(ranges.entries() <= before + usize::from(splits));
                    prop_assert_eq!(ranges.entries() > before, splits);
                } else {
                    ranges.zero(Block(block), blocks, RangeKind::Zero, group);
                }
                for b in block..block + blocks {
                    if remove { naive.remove(&b); } else { naive.insert(b, group); }
                }
                prop_assert_eq!(ranges.zeroed_blocks(), naive.len() as u64);
                for b in 0..140 {
                    let got = ranges.overlapping(Block(b), 1).next().map(|(_, range)| range.group);
                    prop_assert_eq!(got, naive.get(&b).copied());
                }
            }
        }
    }
}

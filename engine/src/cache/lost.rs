//! Atoms that cannot be had any more: reading them is an error until they are written. A block that is lost as a whole is a bit among its
//! 63 neighbours', and one entry of the range table on the SSD tells them all; a block that is lost in part is an entry of its own.
//!
//! A bitmap and no run: what a client writes into a run from now on would cut it into more entries than there may be room for. Here only
//! a write to a part of a block can need one ([`Lost::grows`]).

use std::collections::BTreeMap;

use super::format::map::LOST_BLOCKS;
use super::format::{Geometry, Range};
use crate::block::{Atoms, Block};

pub struct Lost {
    geometry: Geometry,
    /// Blocks lost as wholes, by the first of each 64. Never zero.
    whole: BTreeMap<u64, u64>,
    /// The others, by block. Never empty, never all atoms.
    partly: BTreeMap<u64, Atoms>,
}

/// The first block of its 64, and its bit among them.
fn place(block: Block) -> (u64, u64) {
    let first = block.0 / LOST_BLOCKS * LOST_BLOCKS;
    (first, 1 << (block.0 - first))
}

impl Lost {
    pub fn new(geometry: Geometry) -> Self {
        Lost { geometry, whole: BTreeMap::new(), partly: BTreeMap::new() }
    }

    pub fn is_empty(&self) -> bool {
        self.whole.is_empty() && self.partly.is_empty()
    }
    /// Entries of the table on the SSD.
    pub fn entries(&self) -> usize {
        self.whole.len() + self.partly.len()
    }
    /// Blocks with lost atoms.
    pub fn blocks(&self) -> u64 {
        self.whole.values().map(|bits| u64::from(bits.count_ones())).sum::<u64>() + self.partly.len() as u64
    }

    fn is_whole(&self, block: Block) -> bool {
        let (first, bit) = place(block);
        self.whole.get(&first).is_some_and(|bits| bits & bit != 0)
    }
    /// The lost atoms of a block.
    pub fn of(&self, block: Block) -> Atoms {
        if self.is_whole(block) { self.geometry.full(block) } else { self.partly.get(&block.0).copied().unwrap_or_default() }
    }
    /// Has one of these blocks lost atoms?
    pub fn has_any_of(&self, block: Block, blocks: u64) -> bool {
        let end = block.0 + blocks;
        let below = |bits: u64| if bits < LOST_BLOCKS { (1u64 << bits) - 1 } else { u64::MAX };
        let inside = |(first, bits): (&u64, &u64)| bits & below(end - first) & !below(block.0.saturating_sub(*first)) != 0;
        self.whole.range(place(block).0..end).any(inside) || self.partly.range(block.0..end).next().is_some()
    }
    /// The blocks with lost atoms: first those that are lost as wholes.
    pub fn iter(&self) -> impl Iterator<Item = (Block, Atoms)> + '_ {
        let bits = |bits: u64| (0..LOST_BLOCKS).filter(move |bit| bits >> bit & 1 != 0);
        let whole = self.whole.iter().flat_map(move |(&first, &of)| bits(of).map(move |bit| Block(first + bit)));
        whole.map(|block| (block, self.geometry.full(block))).chain(self.partly.iter().map(|(&block, &atoms)| (Block(block), atoms)))
    }

    /// These atoms are lost, too.
    pub fn lose(&mut self, block: Block, atoms: Atoms) {
        let lost = self.of(block).union(atoms);
        self.set(block, lost);
    }
    /// These atoms are lost no more.
    pub fn find(&mut self, block: Block, atoms: Atoms) {
        let lost = self.of(block);
        if !lost.intersection(atoms).is_empty() {
            self.set(block, lost.without(atoms));
        }
    }
    /// Would losing these atoms take an entry more?
    pub fn costs(&self, block: Block, atoms: Atoms) -> bool {
        let lost = self.of(block);
        let is_whole = lost.union(atoms) == self.geometry.full(block);
        lost.is_empty() && !(is_whole && self.whole.contains_key(&place(block).0))
    }
    /// Would finding these atoms of a block take one entry more?
    pub fn grows(&self, block: Block, atoms: Atoms) -> bool {
        let (first, bit) = place(block);
        let shares = self.whole.get(&first).is_some_and(|&bits| bits & bit != 0 && bits != bit);
        shares && !atoms.is_empty() && !atoms.contains(self.geometry.full(block))
    }
    /// Nothing of these blocks is lost any more.
    pub fn remove(&mut self, block: Block, blocks: u64) {
        let end = block.0 + blocks;
        let from = place(block).0;
        let doomed: Vec<u64> = self.whole.range(from..end).map(|(&first, _)| first).collect();
        for first in doomed {
            let bits = self.whole.get_mut(&first).expect("it was found there");
            *bits &= !mask(block.0.saturating_sub(first), (end - first).min(LOST_BLOCKS));
            if *bits == 0 {
                self.whole.remove(&first);
            }
        }
        let doomed: Vec<u64> = self.partly.range(block.0..end).map(|(&block, _)| block).collect();
        for block in doomed {
            self.partly.remove(&block);
        }
    }

    fn set(&mut self, block: Block, lost: Atoms) {
        let (first, bit) = place(block);
        self.partly.remove(&block.0);
        if lost == self.geometry.full(block) {
            *self.whole.entry(first).or_default() |= bit;
            return;
        }
        if let Some(bits) = self.whole.get_mut(&first) {
            *bits &= !bit;
            if *bits == 0 {
                self.whole.remove(&first);
            }
        }
        if !lost.is_empty() {
            self.partly.insert(block.0, lost);
        }
    }

    /// As the state map stores it. One block without lost neighbours is told as programs before the bitmap told it.
    pub fn to_entries(&self) -> impl Iterator<Item = Range> + '_ {
        let whole = self.whole.iter().map(|(&first, &blocks)| {
            let block = Block(first + u64::from(blocks.trailing_zeros()));
            if blocks.is_power_of_two() {
                Range::Lost { block, atoms: self.geometry.full(block) }
            } else {
                Range::LostBlocks { first: Block(first), blocks }
            }
        });
        whole.chain(self.partly.iter().map(|(&block, &atoms)| Range::Lost { block: Block(block), atoms }))
    }
    /// What the state map told.
    pub fn lose_blocks(&mut self, first: Block, blocks: u64) {
        for block in (first.0..).zip(0..LOST_BLOCKS).filter(|(_, bit)| blocks >> bit & 1 != 0).map(|(block, _)| Block(block)) {
            self.lose(block, self.geometry.full(block));
        }
    }
}

/// Bits `start..end` of 64.
fn mask(start: u64, end: u64) -> u64 {
    let below = |bit: u64| if bit >= 64 { u64::MAX } else { (1 << bit) - 1 };
    below(end) & !below(start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::format::testing::small;
    use proptest::prelude::*;

    /// 300 blocks of 8 atoms; the last one has 3.
    fn lost() -> Lost {
        Lost::new(Geometry { volume_atoms: 299 * 8 + 3, ..small(8, 64) })
    }

    #[derive(Clone, Debug)]
    enum Step {
        Lose(u64, u128),
        Find(u64, u128),
        Remove(u64, u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let atoms = prop_oneof![Just(0xffu128), 1u128..256];
        let block = prop_oneof![0u64..300, Just(299), 60u64..70];
        prop_oneof![
            3 => (block.clone(), atoms.clone()).prop_map(|(block, atoms)| Step::Lose(block, atoms)),
            2 => (block.clone(), atoms).prop_map(|(block, atoms)| Step::Find(block, atoms)),
            1 => (block, 1u64..200).prop_map(|(block, blocks)| Step::Remove(block, blocks.min(300 - block))),
        ]
    }

    proptest! {
        /// Against a mask for every block; and what the map would say makes the same again.
        #[test]
        fn what_is_lost_is_known_by_the_atom(steps in prop::collection::vec(step(), 1..200), from in 0usize..300, blocks in 1usize..200) {
            let mut lost = lost();
            let mut naive = vec![Atoms::NONE; 300];
            for step in steps {
                let before = lost.entries();
                match step {
                    Step::Lose(block, atoms) => {
                        let atoms = Atoms(atoms).intersection(lost.geometry.full(Block(block)));
                        let costs = lost.costs(Block(block), atoms);
                        lost.lose(Block(block), atoms);
                        naive[block as usize] = naive[block as usize].union(atoms);
                        prop_assert!(lost.entries() <= before + usize::from(costs));
                    }
                    Step::Find(block, atoms) => {
                        let atoms = Atoms(atoms).intersection(lost.geometry.full(Block(block)));
                        let grows = lost.grows(Block(block), atoms);
                        lost.find(Block(block), atoms);
                        naive[block as usize] = naive[block as usize].without(atoms);
                        prop_assert!(lost.entries() <= before + usize::from(grows));
                    }
                    Step::Remove(block, blocks) => {
                        lost.remove(Block(block), blocks);
                        naive[block as usize..(block + blocks) as usize].fill(Atoms::NONE);
                        prop_assert!(lost.entries() <= before);
                    }
                }
                let among = |range: std::ops::Range<usize>| naive[range].iter().any(|atoms| !atoms.is_empty());
                prop_assert_eq!((lost.has_any_of(Block(60), 10), lost.has_any_of(Block(299), 1)), (among(60..70), among(299..300)));
                let to = (from + blocks).min(300);
                prop_assert_eq!(lost.has_any_of(Block(from as u64), (to - from) as u64), among(from..to));
                prop_assert_eq!(lost.blocks(), naive.iter().filter(|atoms| !atoms.is_empty()).count() as u64);
            }
            let mut again = self::lost();
            for entry in lost.to_entries() {
                match entry {
                    Range::Lost { block, atoms } => again.lose(block, atoms),
                    Range::LostBlocks { first, blocks } => again.lose_blocks(first, blocks),
                    Range::Zeroed { .. } => panic!("nothing is zeroed"),
                }
            }
            prop_assert_eq!(again.entries(), lost.entries());
            for (block, atoms) in naive.iter().enumerate().map(|(block, atoms)| (Block(block as u64), *atoms)) {
                prop_assert_eq!((lost.of(block), again.of(block)), (atoms, atoms));
            }
            let mut told: Vec<_> = lost.iter().map(|(block, atoms)| (block.0, atoms.0)).collect();
            told.sort_unstable();
            let all = (0..).zip(naive).filter(|(_, atoms)| !atoms.is_empty()).map(|(block, atoms)| (block, atoms.0));
            prop_assert_eq!(told, all.collect::<Vec<(u64, u128)>>());
        }
    }

    #[test]
    fn neighbours_are_one_entry_and_a_block_alone_is_told_as_ever() {
        let mut lost = lost();
        lost.lose(Block(64), Atoms(0xff));
        assert_eq!(lost.to_entries().collect::<Vec<_>>(), [Range::Lost { block: Block(64), atoms: Atoms(0xff) }]);
        (64..128).for_each(|block| lost.lose(Block(block), Atoms(0xff)));
        assert_eq!(lost.to_entries().collect::<Vec<_>>(), [Range::LostBlocks { first: Block(64), blocks: u64::MAX }]);
        // However they are written again one by one, it is one entry.
        (64..127).step_by(2).for_each(|block| lost.find(Block(block), Atoms(0xff)));
        assert_eq!((lost.entries(), lost.blocks()), (1, 32));
    }
}

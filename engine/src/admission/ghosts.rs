//! Ghosts: blocks that are not in the cache, and how often they were missed lately. As many as it is made for, the newest first in every row
//! of [`WAYS`]; a block that is asked about may be taken for another one of its row, once in some thousand times.

use crate::block::Block;

/// Ghosts that are looked at for one block.
const WAYS: usize = 8;
/// Bits of a ghost that count; the others tell it from those in its row, and are never all 0.
const COUNT_BITS: u32 = 3;
const COUNT_MAX: u32 = (1 << COUNT_BITS) - 1;

#[derive(Clone, Debug)]
pub struct Ghosts {
    rows: Vec<[u16; WAYS]>,
}

impl Ghosts {
    /// Of so many blocks. 2 bytes each.
    pub fn new(blocks: u64) -> Self {
        Ghosts { rows: vec![[0; WAYS]; blocks.div_ceil(WAYS as u64).max(8) as usize] }
    }

    /// Notes so many misses of a block; how many there were, with these.
    pub fn note(&mut self, block: Block, misses: u32) -> u32 {
        let (row, tag) = self.place(block);
        let found = row.iter().position(|ghost| ghost >> COUNT_BITS == tag);
        let before = found.map_or(0, |at| u32::from(row[at]) & COUNT_MAX);
        let count = (before + misses).min(COUNT_MAX);
        row[..=found.unwrap_or(WAYS - 1)].rotate_right(1);
        row[0] = tag << COUNT_BITS | count as u16;
        count
    }

    /// It is in the cache now.
    pub fn forget(&mut self, block: Block) {
        let (row, tag) = self.place(block);
        if let Some(at) = row.iter().position(|ghost| ghost >> COUNT_BITS == tag) {
            row[at..].rotate_left(1);
            row[WAYS - 1] = 0;
        }
    }

    fn place(&mut self, block: Block) -> (&mut [u16; WAYS], u16) {
        let hash = (block.0 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let row = ((u128::from(hash) * self.rows.len() as u128) >> 64) as usize;
        // Bits that the row does not depend on much.
        let tag = (hash.wrapping_mul(0xd6e8_feb8_6659_fd93) >> (48 + COUNT_BITS)) as u16;
        (&mut self.rows[row], tag.max(1))
    }

    /// Memory, in bytes.
    pub fn bytes(&self) -> u64 {
        (self.rows.capacity() * WAYS * size_of::<u16>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misses_are_counted_until_they_are_forgotten() {
        let mut ghosts = Ghosts::new(1_000);
        assert_eq!([1, 1, 3, 9].map(|misses| ghosts.note(Block(7), misses)), [1, 2, 5, COUNT_MAX]);
        assert_eq!(ghosts.note(Block(8), 1), 1);
        ghosts.forget(Block(7));
        ghosts.forget(Block(9));
        assert_eq!((ghosts.note(Block(7), 1), ghosts.note(Block(8), 1)), (1, 2));
    }

    #[test]
    fn the_newest_are_remembered() {
        let mut ghosts = Ghosts::new(8_000);
        let known = |ghosts: &mut Ghosts, blocks: std::ops::Range<u64>| blocks.filter(|&block| ghosts.note(Block(block), 1) > 1).count();
        assert!(known(&mut ghosts, 0..100_000) < 200, "hardly any is taken for another");
        assert!(known(&mut ghosts.clone(), 97_000..100_000) > 2_900, "fewer than half as many came after them");
        assert!(known(&mut ghosts, 50_000..53_000) < 50, "they are long gone");
    }
}

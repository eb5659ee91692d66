//! Neighbours: is it worth reading what lies around a miss, before anybody asks for it?
//!
//! Where reads are dense, the next one asks for something near the last one, and a device that has found the place gives what is around it for
//! little more. Where they are sparse, the rest of the neighbourhood is read and kept for nobody. What it would have saved is learnt from *ghosts*:
//! in one region of eight nothing is ever read ahead, and it is noted which misses there another one shortly before would have spared, had it
//! brought its neighbourhood along. What it costs is learnt from the device: the time that it is busy for a miss, and for a neighbourhood.

use std::ops::Range;

use crate::block::{ATOM_BYTES, Block};
use crate::time::{Duration, Instant};

/// Sizes of the neighbourhoods that are tried, in atoms: 64 KiB and 1 MiB.
const REACHES: [u64; 2] = [(64 << 10) / ATOM_BYTES, REGION];
/// Atoms of a region, which is read ahead in or is not.
const REGION: u64 = (1 << 20) / ATOM_BYTES;
/// One region in so many is only looked at.
const CONTROL: u64 = 8;
/// What a neighbourhood is taken to cost while nobody has read one, in misses.
const GUESSED: [u64; 2] = [2, 4];
/// What is spared must be worth so many times what it costs: the next client has to wait for the device, and the SSD is written.
const MARGIN: u64 = 2;
/// In front of a disk that may stand still, where a miss spared can be a start spared, it may cost so many times more.
const SLEEPERS: u64 = 16;
/// Neighbourhoods begun before anything is concluded from what they would have spared.
const PROOF: u32 = 4;
/// And after which older ones count half.
const MEMORY: u32 = 64;
/// Neighbourhoods remembered, for each reach.
const GHOSTS: std::ops::RangeInclusive<u64> = 16..=1_024;
/// Atoms of a read that counts as a miss like any other: what is larger costs more by itself.
const SMALL: u64 = (64 << 10) / ATOM_BYTES;
/// What the device was busy for so long with tells nothing of it: it stood still, or hung.
const ODD: Duration = Duration::from_millis(250);

/// A neighbourhood of the control regions, and which of its 64 parts have been missed.
#[derive(Clone, Copy, Debug)]
struct Ghost {
    zone: u64,
    parts: u64,
}

/// What neighbourhoods of one size would have spared, and what they cost.
#[derive(Clone, Debug)]
struct Reach {
    blocks: u64,
    ghosts: Vec<Ghost>,
    begun: u32,
    spared: u32,
    /// Nanoseconds, once one has been read.
    cost: Option<u64>,
}

impl Reach {
    fn new(blocks: u64, slots: u64) -> Self {
        // As many as would be in the cache together.
        let ghosts = (slots / blocks).clamp(*GHOSTS.start(), *GHOSTS.end());
        Reach { blocks, ghosts: vec![Ghost { zone: u64::MAX, parts: 0 }; ghosts as usize], begun: 0, spared: 0, cost: None }
    }

    fn miss(&mut self, block: Block, blocks: u64) {
        let zone = block.0 / self.blocks;
        let part = |block: u64| block % self.blocks * 64 / self.blocks.max(64);
        let last = (block.0 + blocks - 1).min(zone * self.blocks + self.blocks - 1);
        let parts = (part(block.0)..=part(last)).fold(0, |parts, part| parts | 1 << part);
        let place = (u128::from(mix(zone)) * self.ghosts.len() as u128) >> 64;
        let ghost = &mut self.ghosts[place as usize];
        if ghost.zone == zone {
            self.spared += u32::from(parts & !ghost.parts != 0);
            ghost.parts |= parts;
            return;
        }
        *ghost = Ghost { zone, parts };
        self.begun += 1;
        if self.begun > MEMORY {
            (self.begun, self.spared) = (self.begun / 2, self.spared / 2);
        }
    }

    /// What the last neighbourhoods would have spared beyond what they must, in nanoseconds for each miss; None: they would not.
    fn gain(&self, guessed: u64, miss: u64, price: u64) -> Option<u64> {
        let cost = self.cost.unwrap_or(guessed * miss) * price / SLEEPERS;
        let (spared, spent) = (u64::from(self.spared) * miss, u64::from(self.begun) * cost * MARGIN);
        (self.begun >= PROOF && spared > spent).then(|| (spared - spent) / u64::from(self.begun + self.spared))
    }
}

/// The decision.
#[derive(Clone, Debug)]
pub struct Neighbours {
    reaches: [Reach; REACHES.len()],
    block_atoms: u64,
    /// Nanoseconds that the device is busy for a miss.
    miss: Option<u64>,
    /// When the device last ended a read.
    ended: Instant,
}

/// When a neighbourhood is thought of.
#[derive(Clone, Copy, Debug)]
pub struct Circumstances {
    /// Something else has to leave the cache for it.
    pub displaces: bool,
    /// The disk may stand still, once nobody needs it.
    pub sleeps: bool,
}

impl Neighbours {
    /// For a cache of so many slots, for blocks of so many atoms.
    pub fn new(slots: u64, block_atoms: u64) -> Self {
        let reaches = REACHES.map(|atoms| Reach::new((atoms / block_atoms).max(1), slots));
        Neighbours { reaches, block_atoms, miss: None, ended: Instant::ZERO }
    }

    fn is_control(&self, block: Block) -> bool {
        (mix(block.0 * self.block_atoms / REGION) >> 32).is_multiple_of(CONTROL)
    }

    /// A client's read has missed these blocks.
    pub fn missed(&mut self, block: Block, blocks: u64) {
        if self.is_control(block) {
            self.reaches.iter_mut().filter(|reach| blocks < reach.blocks).for_each(|reach| reach.miss(block, blocks));
        }
    }

    /// The neighbourhood of a missed block that is worth reading, if one is.
    pub fn worth(&self, block: Block, blocks: u64, circumstances: Circumstances) -> Option<Range<u64>> {
        let miss = self.miss?;
        if self.is_control(block) {
            return None;
        }
        let price = if circumstances.sleeps { 1 } else { SLEEPERS };
        // What takes the place of others has to be worth it block by block: a quarter of them asked for.
        let is_dense = |reach: &Reach| u64::from(reach.spared) * 4 >= u64::from(reach.begun) * reach.blocks.min(64);
        let gains = self.reaches.iter().zip(GUESSED).filter(|(reach, _)| blocks < reach.blocks && (!circumstances.displaces || is_dense(reach)));
        let gains = gains.filter_map(|(reach, guessed)| Some((reach.gain(guessed, miss, price)?, reach.blocks)));
        let (_, reach) = gains.max()?;
        let zone = block.0 / reach * reach;
        Some(zone..zone + reach)
    }

    /// The smallest neighbourhood of a block.
    pub fn next(&self, block: Block) -> Range<u64> {
        let reach = self.reaches[0].blocks;
        let zone = block.0 / reach * reach;
        zone..zone + reach
    }

    /// The device has read so many atoms, for a client or around a miss.
    pub fn read(&mut self, atoms: u64, is_around: bool, started: Instant, now: Instant) {
        // Of reads side by side each costs what it adds.
        let busy = now.since(started.max(self.ended));
        self.ended = now;
        if busy >= ODD {
            return;
        }
        let learn = |cost: &mut Option<u64>| *cost = Some(cost.map_or(busy.0, |cost| cost - cost / 8 + busy.0 / 8));
        if !is_around && atoms <= SMALL {
            learn(&mut self.miss);
        } else if is_around
            && let Some(place) = REACHES.iter().position(|&reach| atoms > reach / 2 && atoms <= reach)
        {
            learn(&mut self.reaches[place].cost);
        }
    }

    /// Memory of the ghosts, in bytes.
    pub fn bytes(&self) -> u64 {
        self.reaches.iter().map(|reach| (reach.ghosts.capacity() * size_of::<Ghost>()) as u64).sum()
    }
}

fn mix(number: u64) -> u64 {
    (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AWAKE: Circumstances = Circumstances { displaces: false, sleeps: false };
    /// Blocks of a region.
    const BLOCKS: u64 = REGION / 8;
    const MISS: Duration = Duration::from_millis(8);

    /// A device that is busy so long for a miss; reads of `blocks` blocks, `stride` apart, over and over other ground.
    fn taught(miss: Duration, stride: u64) -> Neighbours {
        let mut neighbours = Neighbours::new(1 << 20, 8);
        neighbours.read(8, false, Instant::ZERO, Instant(miss.0));
        (0..BLOCKS * 400).step_by(stride as usize).for_each(|block| neighbours.missed(Block(block), 1));
        neighbours
    }

    /// A region that is read ahead in, and one that is not.
    fn regions() -> (Block, Block) {
        let neighbours = Neighbours::new(1 << 20, 8);
        let of = |control| (0..).map(|region| Block(region * BLOCKS + 20)).find(|&block| neighbours.is_control(block) == control).unwrap();
        (of(false), of(true))
    }

    #[test]
    fn dense_reads_bring_their_neighbourhood_and_sparse_ones_do_not() {
        let (read, control) = regions();
        let dense = taught(MISS, 8);
        assert_eq!(dense.worth(read, 1, AWAKE), Some(read.0 / BLOCKS * BLOCKS..(read.0 / BLOCKS + 1) * BLOCKS));
        assert_eq!(dense.worth(control, 1, AWAKE), None, "one region of eight is only looked at");
        assert_eq!(taught(MISS, BLOCKS).worth(read, 1, AWAKE), None);
        assert_eq!(taught(MISS, 32).worth(read, 1, AWAKE), None, "seven are spared by what four misses cost, twice: not worth it");
        assert!(taught(MISS, 25).worth(read, 1, AWAKE).is_some());
    }

    #[test]
    fn nothing_is_concluded_from_little_and_nothing_without_a_device_that_has_been_measured() {
        let (read, _) = regions();
        let mut neighbours = Neighbours::new(1 << 20, 8);
        (0..BLOCKS * 400).for_each(|block| neighbours.missed(Block(block), 1));
        assert_eq!(neighbours.worth(read, 1, AWAKE), None);
        let mut few = Neighbours::new(1 << 20, 8);
        few.read(8, false, Instant::ZERO, Instant(MISS.0));
        let control: Vec<u64> = (0..).filter(|&region| few.is_control(Block(region * BLOCKS))).take(PROOF as usize - 1).collect();
        control.into_iter().for_each(|region| (0..BLOCKS).for_each(|i| few.missed(Block(region * BLOCKS + i), 1)));
        assert!(few.worth(read, 1, AWAKE).is_none_or(|found| found.end - found.start < BLOCKS));
    }

    #[test]
    fn what_a_neighbourhood_takes_decides_how_far_it_reaches() {
        let (read, _) = regions();
        let mut neighbours = taught(MISS, 1);
        let reach = |neighbours: &Neighbours| neighbours.worth(read, 1, AWAKE).map(|found| found.end - found.start);
        assert_eq!(reach(&neighbours), Some(BLOCKS));
        // A device that reads 1 MiB as slowly as the misses that it spares.
        (0..100).for_each(|i| neighbours.read(REGION, true, Instant(i * 1_000_000_000), Instant(i * 1_000_000_000 + 240_000_000)));
        neighbours.reaches[1].spared = 29 * neighbours.reaches[1].begun;
        assert_eq!(reach(&neighbours), Some(16));
        (0..100).for_each(|i| neighbours.read(128, true, Instant((i + 200) * 1_000_000_000), Instant((i + 200) * 1_000_000_000 + 70_000_000)));
        assert_eq!(reach(&neighbours), None);
        assert!(neighbours.worth(read, 1, Circumstances { sleeps: true, ..AWAKE }).is_some(), "a start costs more than that");
    }

    #[test]
    fn a_full_cache_asks_for_denser_reads() {
        let (read, _) = regions();
        let full = Circumstances { displaces: true, ..AWAKE };
        assert_eq!(taught(MISS, 25).worth(read, 1, full), None);
        assert!(taught(MISS, 8).worth(read, 1, full).is_some());
    }

    #[test]
    fn the_same_block_missed_again_spares_nothing() {
        let (read, _) = regions();
        let mut neighbours = Neighbours::new(1 << 20, 8);
        neighbours.read(8, false, Instant::ZERO, Instant(MISS.0));
        for _ in 0..100 {
            (0..400).for_each(|region| neighbours.missed(Block(region * BLOCKS), 1));
        }
        assert_eq!(neighbours.worth(read, 1, AWAKE), None);
    }

    #[test]
    fn what_hung_is_not_taken_for_the_devices_speed() {
        let mut neighbours = taught(MISS, 8);
        neighbours.read(8, false, Instant(1_000_000_000), Instant(11_000_000_000));
        assert_eq!(neighbours.miss, Some(MISS.0));
    }
}

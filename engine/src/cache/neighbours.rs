//! Neighbours: is it worth reading what lies around a miss, before anybody asks for it?
//!
//! Where reads are dense, the next one asks for something near the last one, and a device that has found the place gives what is around it for
//! little more. Where they are sparse, the rest of the neighbourhood is read and kept for nobody. What it would have saved is learnt from *ghosts*:
//! in one region of eight nothing is ever read ahead, and it is noted which misses there another one shortly before would have spared, had it
//! brought its neighbourhood along, and for how long each of those kept the device busy: a miss just behind the last one may cost it next to
//! nothing. That is weighed against the time that the device is busy with a neighbourhood.

use std::ops::Range;

use crate::block::{ATOM_BYTES, Block};
use crate::time::Duration;

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
/// A neighbourhood keeps the device busy for as long as so many misses take, at most: the next client may have to wait behind it.
const HELD_UP: u64 = 4;
/// Neighbourhoods begun before anything is concluded from what they would have spared.
const PROOF: u32 = 4;
/// And after which older ones count half.
const MEMORY: u32 = 64;
/// Neighbourhoods remembered, for each reach.
const GHOSTS: std::ops::RangeInclusive<u64> = 16..=1_024;
/// Atoms of a read that counts as a miss like any other: what is larger costs more by itself.
const SMALL: u64 = (64 << 10) / ATOM_BYTES;

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
    /// Nanoseconds that the device was busy with a miss that would have been spared, once there was one.
    worth: Option<u64>,
    /// And with a neighbourhood, once one has been read.
    cost: Option<u64>,
}

impl Reach {
    fn new(blocks: u64, slots: u64) -> Self {
        // As many as would be in the cache together.
        let ghosts = (slots / blocks).clamp(*GHOSTS.start(), *GHOSTS.end());
        let ghosts = vec![Ghost { zone: u64::MAX, parts: 0 }; ghosts as usize];
        Reach { blocks, ghosts, begun: 0, spared: 0, worth: None, cost: None }
    }

    /// The place of the ghost for a missed run, and what it would then be.
    fn ghost_of(&self, block: Block, blocks: u64) -> (usize, Ghost) {
        let zone = block.0 / self.blocks;
        let part = |block: u64| block % self.blocks * 64 / self.blocks.max(64);
        let last = (block.0 + blocks - 1).min(zone * self.blocks + self.blocks - 1);
        let parts = (part(block.0)..=part(last)).fold(0, |parts, part| parts | 1 << part);
        let place = (u128::from(mix(zone)) * self.ghosts.len() as u128) >> 64;
        (place as usize, Ghost { zone, parts })
    }

    /// Would one of the last neighbourhoods have spared this miss?
    fn is_spared(&self, block: Block, blocks: u64) -> bool {
        let (place, missed) = self.ghost_of(block, blocks);
        let ghost = self.ghosts[place];
        ghost.zone == missed.zone && missed.parts & !ghost.parts != 0
    }

    fn miss(&mut self, block: Block, blocks: u64) {
        self.spared += u32::from(self.is_spared(block, blocks));
        let (place, missed) = self.ghost_of(block, blocks);
        let ghost = &mut self.ghosts[place];
        if ghost.zone == missed.zone {
            ghost.parts |= missed.parts;
            return;
        }
        *ghost = missed;
        self.begun += 1;
        if self.begun > MEMORY {
            (self.begun, self.spared) = (self.begun / 2, self.spared / 2);
            // What was slow once, and has not been tried since, is tried again some day.
            self.cost = self.cost.map(|cost| cost - cost / 64);
        }
    }

    /// What the last neighbourhoods would have spared beyond what they must, in nanoseconds for each miss; None: they would not.
    fn gain(&self, guessed: u64, miss: u64, price: u64) -> Option<u64> {
        let cost = self.cost.unwrap_or(guessed * miss) * price / SLEEPERS;
        let (spared, spent) = (u64::from(self.spared) * self.worth?, u64::from(self.begun) * cost * MARGIN);
        (self.begun >= PROOF && spared > spent).then(|| (spared - spent) / u64::from(self.begun + self.spared))
    }
}

/// The decision.
#[derive(Clone, Debug)]
pub struct Neighbours {
    reaches: [Reach; REACHES.len()],
    block_atoms: u64,
    /// Nanoseconds that the device is busy with a miss, wherever.
    miss: Option<u64>,
    /// And that a client waits for one.
    wait: Option<u64>,
}

/// When a neighbourhood is thought of.
#[derive(Clone, Copy, Debug)]
pub struct Circumstances {
    /// Something else has to leave the cache for it, or what is asked for next will have to.
    pub displaces: bool,
    /// The disk may stand still, once nobody needs it.
    pub sleeps: bool,
}

impl Neighbours {
    /// For a cache of so many slots, for blocks of so many atoms.
    pub fn new(slots: u64, block_atoms: u64) -> Self {
        let reaches = REACHES.map(|atoms| Reach::new((atoms / block_atoms).max(1), slots));
        Neighbours { reaches, block_atoms, miss: None, wait: None }
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
        let is_short = |reach: &Reach| reach.cost.is_none_or(|cost| self.wait.is_some_and(|wait| cost <= HELD_UP * wait));
        let is_good = |reach: &Reach| blocks < reach.blocks && is_short(reach) && (!circumstances.displaces || is_dense(reach));
        let good = self.reaches.iter().zip(GUESSED).filter(|(reach, _)| is_good(reach));
        let gains = good.filter_map(|(reach, guessed)| Some((reach.gain(guessed, miss, price)?, reach.blocks)));
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

    /// The device has read so many atoms from here on, for a client or around a miss: how long that was waited for, and how long the device was
    /// busy with it alone, if that is known. Of a miss this is told before [`missed`](Self::missed).
    pub fn read(&mut self, start: u64, atoms: u64, is_around: bool, waited: Duration, busy: Option<Duration>) {
        let Some(busy) = busy else { return };
        let learn = |mean: &mut Option<u64>, time: Duration| *mean = Some(mean.map_or(time.0, |mean| mean - mean / 8 + time.0 / 8));
        if !is_around && atoms <= SMALL {
            learn(&mut self.miss, busy);
            learn(&mut self.wait, waited);
            let (block, blocks) = (Block(start / self.block_atoms), atoms.div_ceil(self.block_atoms));
            if self.is_control(block) {
                let reaches = self.reaches.iter_mut().filter(|reach| reach.is_spared(block, blocks));
                reaches.for_each(|reach| learn(&mut reach.worth, busy));
            }
        } else if is_around && let Some(place) = REACHES.iter().position(|&reach| atoms > reach / 2 && atoms <= reach) {
            learn(&mut self.reaches[place].cost, busy);
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

    /// A read of one block that keeps the device busy so long.
    fn miss(neighbours: &mut Neighbours, block: u64, busy: Duration) {
        neighbours.read(block * 8, 8, false, busy, Some(busy));
        neighbours.missed(Block(block), 1);
    }

    /// Reads of one block, `stride` apart, over and over other ground.
    fn taught(busy: Duration, stride: u64) -> Neighbours {
        let mut neighbours = Neighbours::new(1 << 20, 8);
        (0..BLOCKS * 400).step_by(stride as usize).for_each(|block| miss(&mut neighbours, block, busy));
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
        let control: Vec<u64> = (0..).filter(|&region| few.is_control(Block(region * BLOCKS))).take(PROOF as usize - 1).collect();
        control.into_iter().for_each(|region| (0..BLOCKS).for_each(|i| miss(&mut few, region * BLOCKS + i, MISS)));
        assert!(few.worth(read, 1, AWAKE).is_none_or(|found| found.end - found.start < BLOCKS));
    }

    #[test]
    fn what_a_neighbourhood_takes_decides_how_far_it_reaches() {
        let (read, _) = regions();
        let mut neighbours = taught(MISS, 1);
        let reach = |neighbours: &Neighbours| neighbours.worth(read, 1, AWAKE).map(|found| found.end - found.start);
        assert_eq!(reach(&neighbours), Some(BLOCKS));
        let around = |neighbours: &mut Neighbours, atoms: u64, busy: Duration| {
            (0..100).for_each(|_| neighbours.read(0, atoms, true, busy, Some(busy)));
        };
        // Longer than anybody should wait, whatever it spares.
        around(&mut neighbours, REGION, Duration::from_millis(40));
        assert_eq!(reach(&neighbours), Some(16));
        // As slow as what it spares.
        around(&mut neighbours, REGION, Duration::from_millis(30));
        neighbours.reaches[1].spared = 7 * neighbours.reaches[1].begun;
        neighbours.reaches[0].spared = 4 * neighbours.reaches[0].begun;
        around(&mut neighbours, 128, Duration::from_millis(30));
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
        for _ in 0..100 {
            (0..400).for_each(|region| miss(&mut neighbours, region * BLOCKS, MISS));
        }
        assert_eq!(neighbours.worth(read, 1, AWAKE), None);
    }

    #[test]
    fn where_the_next_one_costs_the_device_nothing_it_is_not_read_ahead_for_long() {
        let (read, _) = regions();
        // It finds the first of each region in 8 ms, and has read the others already.
        let mut neighbours = Neighbours::new(1 << 20, 8);
        (0..BLOCKS * 400).for_each(|block| {
            let busy = if block.is_multiple_of(BLOCKS) { MISS } else { Duration::from_micros(30) };
            miss(&mut neighbours, block, busy);
        });
        assert!(neighbours.worth(read, 1, AWAKE).is_some(), "nobody knows what it costs");
        neighbours.read(0, 128, true, MISS, Some(Duration::from_micros(500)));
        neighbours.read(0, REGION, true, MISS, Some(MISS));
        assert_eq!(neighbours.worth(read, 1, AWAKE), None);
    }

    #[test]
    fn what_hung_is_not_taken_for_the_devices_speed() {
        let mut neighbours = taught(MISS, 8);
        neighbours.read(0, 8, false, Duration::from_secs(10), None);
        assert_eq!(neighbours.miss, Some(MISS.0));
    }
}

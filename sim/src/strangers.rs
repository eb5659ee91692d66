//! Strangers: an origin that was changed behind its cache, swapped or cloned, and an older copy of a cache, by the thousand. A start
//! refuses them, or what it serves is right; what escapes is counted, beside what the documented probability allows
//! (docs/durability.md, *The fence*).

use crate::back::device::Device;
use crate::chance::{Chance, mix};
use crate::crash_points::{READ_ATOMS, Rescue};
use crate::forge::Forge;
use crate::scenario::{Scenario, plan};
use crate::stamp::{Stamps, stamp};
use crate::world::Crash;
use crate::{back::volatile::Survive, world::stamps_of};
use std::collections::BTreeSet;
use tidegate_engine::block::{Block, Span};
use tidegate_engine::cache::format::FormatId;
use tidegate_engine::op::Zone;
use tidegate_engine::probe::Phase;
use tidegate_engine::request::Tier;

/// What became of the origin, or of the cache, while nobody looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stranger {
    /// Some blocks of the origin were written, anywhere.
    Written,
    /// A file system on it was mounted or checked: its superblock, and some blocks.
    Checked,
    /// Another origin of the same size.
    Swapped,
    /// A copy of the origin that has gone its own way since, from a block to everything.
    Cloned,
    /// An older copy of the cache, where the host has no record of it (`tidegate.state`).
    Older,
}

impl Stranger {
    pub const ALL: [Stranger; 5] = [Stranger::Written, Stranger::Checked, Stranger::Swapped, Stranger::Cloned, Stranger::Older];
}

/// How a start went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Met {
    /// Nothing was served or written.
    Refused,
    /// It was served, and every block was right: what had changed was not in the cache.
    Right,
    /// A block of the cache was served that the origin did not hold any more.
    Stale,
}

/// One case.
#[derive(Clone, Debug)]
pub struct Case {
    pub seed: u64,
    pub stranger: Stranger,
    /// Stopped in order, with marks; or killed.
    pub is_stopped: bool,
    /// Clean blocks in the cache; of these the ones that differ; samples.
    pub clean: u64,
    pub changed: u64,
    pub samples: u64,
    pub met: Met,
}

impl Case {
    /// How likely samples alone miss every change: of `clean` blocks `samples` are looked at, each once. Not more than (1 − k/c)ⁿ.
    pub fn escape_probability(&self) -> f64 {
        let (clean, changed) = (self.clean as f64, self.changed as f64);
        let looks = (0..self.samples.min(self.clean)).map(|look| look as f64);
        looks.map(|look| ((clean - changed - look) / (clean - look)).max(0.0)).product()
    }

    /// The bound that the document states.
    pub fn stated_probability(&self) -> f64 {
        (1.0 - self.changed as f64 / self.clean.max(1) as f64).powf(self.samples as f64)
    }
}

/// The case of a seed.
///
/// # Panics
/// If a start that is refused has written, or one that serves does not end.
pub fn meet(seed: u64) -> Case {
    let chance = &mut Chance::new(seed, "strangers");
    let stranger = chance.pick(&Stranger::ALL);
    let is_stopped = chance.one_in(2);
    let samples = chance.pick(&[1, 1, 2, 4, 8, 64]);
    let mut plan = plan();
    plan.seed = seed;
    plan.config.fence_samples = samples;
    // Which blocks are looked at depends on it.
    plan.config.format = FormatId(std::array::from_fn(|i| mix(seed ^ i as u64) as u8));
    let mut scenario = Scenario::of(plan);
    fill(&mut scenario, chance);
    let Left { cache, clean, is_stopped } = match stranger {
        Stranger::Older => older(&mut scenario, chance),
        Stranger::Written | Stranger::Checked | Stranger::Swapped | Stranger::Cloned => leave(&mut scenario, is_stopped),
    };
    let mut origin = scenario.simulation.scene.origin.clone();
    change(&scenario, stranger, &mut origin, chance);
    let changed = clean.iter().filter(|(block, was)| contents(&origin, &scenario, *block) != *was).count() as u64;
    let met = start(&scenario, cache, origin);
    Case { seed, stranger, is_stopped, clean: clean.len() as u64, changed, samples: u64::from(samples), met }
}

/// Blocks that a cache holds clean, with what they hold.
type Clean = Vec<(u64, Vec<u64>)>;

/// Reads that are kept, and writes that went home: nothing is dirty.
fn fill(scenario: &mut Scenario, chance: &mut Chance) {
    for _ in 0..chance.between(1, 12) {
        let first = chance.below(60);
        let span = scenario.blocks(first, chance.between(1, 4));
        if chance.one_in(3) {
            scenario.write_span(span);
        } else {
            scenario.read(span).expect("it is on the origin");
        }
    }
    scenario.run_until_quiet();
    scenario.flush();
    scenario.drain();
    scenario.flush();
    scenario.run_until_quiet();
}

/// A cache that was left.
struct Left {
    cache: Device,
    clean: Clean,
    /// In order; otherwise it was killed.
    is_stopped: bool,
}

fn leave(scenario: &mut Scenario, is_stopped: bool) -> Left {
    let clean = clean_blocks(scenario);
    end(scenario, is_stopped);
    Left { cache: scenario.simulation.scene.cache.clone(), clean, is_stopped }
}

fn end(scenario: &mut Scenario, is_stopped: bool) {
    if is_stopped {
        scenario.stop();
    }
    scenario.crash(Crash::Power { cache: Survive::None, origin: Survive::None });
}

/// A copy of the cache; then the volume lives on.
fn older(scenario: &mut Scenario, chance: &mut Chance) -> Left {
    let copy = leave(scenario, chance.one_in(2));
    scenario.recover();
    for _ in 0..chance.between(1, 6) {
        let first = chance.below(60);
        scenario.write_span(scenario.blocks(first, chance.between(1, 4)));
    }
    scenario.flush();
    scenario.drain();
    end(scenario, true);
    copy
}

/// The blocks that the cache holds clean, with what they hold.
fn clean_blocks(scenario: &mut Scenario) -> Clean {
    let volume = Span::new(0, scenario.geometry().volume_atoms);
    let mut at = 0;
    let mut blocks = BTreeSet::new();
    for (atoms, tier) in scenario.tiers(volume) {
        assert!(tier != Tier::Dirty, "everything went home");
        if tier == Tier::Clean {
            blocks.extend((at..at + atoms).map(|atom| atom / u64::from(scenario.geometry().block_atoms)));
        }
        at += atoms;
    }
    let origin = scenario.simulation.scene.origin.clone();
    blocks.into_iter().map(|block| (block, contents(&origin, scenario, block))).collect()
}

fn contents(origin: &Device, scenario: &Scenario, block: u64) -> Vec<u64> {
    stamps_of(&origin.visible().read(scenario.geometry().block_span(Block(block))))
}

/// Somebody else has the origin.
fn change(scenario: &Scenario, stranger: Stranger, origin: &mut Device, chance: &mut Chance) {
    let blocks = scenario.geometry().blocks();
    let mut write = |block: u64| {
        let span = scenario.geometry().block_span(Block(block));
        let stamps: Vec<u64> = (span.start..span.end()).map(|atom| stamp(1 << 20, atom)).collect();
        origin.scribble(Zone::Origin, span.start, Stamps::from_stamps(&stamps));
    };
    match stranger {
        // From one block to all of them.
        Stranger::Written | Stranger::Cloned => {
            let percent = chance.spread(1, 100);
            let count = (blocks * percent / 100).max(1);
            (0..count).for_each(|_| write(chance.below(blocks)));
        }
        Stranger::Checked => {
            // An ext4 superblock at 1 KiB, bitmaps, an inode.
            write(0);
            (0..chance.below(4)).for_each(|_| write(chance.below(blocks)));
        }
        Stranger::Swapped => (0..blocks).for_each(write),
        Stranger::Older => {}
    }
}

/// A start on these devices; if it serves, everything is read.
fn start(scenario: &Scenario, cache: Device, origin: Device) -> Met {
    let holds: Vec<u64> = (0..scenario.geometry().volume_atoms).map(|atom| origin.visible().stamp(atom)).collect();
    let untouched = (cache.ended, origin.ended);
    let mut rescue = Rescue::new(&scenario.simulation, cache, origin);
    let recovered = rescue.recover(|_| {});
    if *rescue.engine.phase() == Phase::Refused {
        assert_eq!((rescue.bench.cache.ended, rescue.bench.origin.ended), untouched, "a start that is refused writes nothing");
        return Met::Refused;
    }
    recovered.unwrap_or_else(|broken| panic!("{}", broken.0));
    let read = rescue.read_all(READ_ATOMS).unwrap_or_else(|broken| panic!("{}", broken.0));
    let is_right = read.iter().zip(&holds).all(|(read, holds)| *read == Some(*holds));
    if is_right { Met::Right } else { Met::Stale }
}

/// The epochs of a cache and of an older copy of it, in this order: what the host's record tells them apart by.
pub fn epochs_of_an_older_copy(seed: u64) -> (u64, u64) {
    let chance = &mut Chance::new(seed, "an older copy");
    let mut plan = plan();
    plan.seed = seed;
    let mut scenario = Scenario::of(plan);
    fill(&mut scenario, chance);
    let epoch = |scenario: &mut Scenario| {
        let (geometry, format) = (scenario.geometry(), scenario.simulation.plan.config.format);
        Forge { cache: &mut scenario.simulation.scene.cache, geometry, format }.superblock().epoch
    };
    end(&mut scenario, chance.one_in(2));
    let copy = epoch(&mut scenario);
    for _ in 0..chance.between(1, 3) {
        scenario.recover();
        end(&mut scenario, chance.one_in(2));
    }
    (epoch(&mut scenario), copy)
}

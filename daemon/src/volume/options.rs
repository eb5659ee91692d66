//! What a volume is to be served like: its devices, who may use it, and every knob.

use std::path::PathBuf;
use std::sync::Weak;

use tidegate_engine::block::ATOM_BYTES;
use tidegate_engine::cache::format::Superblock;
use tidegate_engine::config::{Allocation, CommitHome, Convert, Fill, ReadAround, WhenFull};
use tidegate_engine::op::DeviceId;
use tidegate_engine::queue::QueueKind;
use tidegate_engine::time::Duration;
use tidegate_engine::{Config, Mode, policy};

use crate::Failure;
use crate::advice::Reach;
use crate::back::attach::{Attached, Held, attach, await_release};
use crate::front::nbd::Allowed;
use crate::sleeper;
use crate::wear::Rating;

/// What to serve and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// As clients and commands name it; compared as bytes, never a path.
    pub name: String,
    /// Text for people.
    pub description: String,
    /// Clients may not change anything. What is dirty goes home all the same.
    pub read_only: bool,
    /// Who may use it over TLS; empty: whoever may connect.
    pub clients: Vec<Allowed>,
    /// How commands that messages advise reach it.
    pub reach: Reach,
    pub said: Said,
    pub origin: PathBuf,
    pub cache: PathBuf,
    /// What the host knows of the cache ([`state`]).
    pub state: PathBuf,
    /// Another cache than last time is taken, and what only that one held is lost.
    pub accept_loss: bool,
    pub knobs: Knobs,
    /// The origin's disk is told to stand still while nobody needs it.
    pub spin: Option<sleeper::Options>,
    /// A new file that gets what clients ask.
    pub record: Option<PathBuf>,
    /// Its disks, where somebody holds them already and goes on holding them: they are not opened again.
    pub held: Weak<Held>,
}

impl Options {
    /// Its disks, opened and locked.
    ///
    /// # Errors
    /// As [`attach`].
    pub fn attach(&self) -> Result<Attached, Failure> {
        self.held.upgrade().map_or_else(|| attach(&self.cache, &self.origin), |held| held.attach())
    }

    /// Nobody serves it any more: waits a moment until its disks can be had by others.
    pub fn await_release(&self) {
        await_release(&[(&self.cache, DeviceId::Cache), (&self.origin, DeviceId::Origin)]);
    }
}

/// Where the configuration says what only a start finds wrong: `path:line:column: `, or nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said {
    pub ram: String,
    pub motor: String,
}

/// The engine's settings; what is left out keeps its default ([`Config::new`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Knobs {
    /// Per cent of the sets.
    pub free_floor: Option<u32>,
    /// Per cent of the sets.
    pub reserve: Option<u32>,
    /// Per cent of the sets.
    pub dirty_high: Option<u32>,
    pub wait: Option<Duration>,
    pub max_dirty_age: Option<Duration>,
    pub destage_depth: Option<usize>,
    /// Bytes between two flushes of the origin.
    pub destage_batch: Option<u64>,
    /// Bytes of memory for pages.
    pub ram: Option<u64>,
    pub memory_policy: Option<policy::Kind>,
    /// Bytes.
    pub window: Option<u64>,
    pub dirty_ram: Option<u64>,
    pub dirty_ram_least: Option<u64>,
    pub flush_age: Option<Duration>,
    pub fill: Option<bool>,
    pub allocation: Option<Allocation>,
    pub convert: Option<Convert>,
    /// Sectors.
    pub convert_max: Option<u64>,
    pub when_full: Option<WhenFull>,
    pub split: Option<bool>,
    pub commit_home: Option<bool>,
    pub read_around: Option<bool>,
    /// Bytes.
    pub read_ahead: Option<u64>,
    pub requests: Option<usize>,
    /// Bytes.
    pub bytes: Option<u64>,
    pub fence_samples: Option<u32>,
    pub mode: Option<Mode>,
    pub stall_timeout: Option<Duration>,
    /// How long to look before sleeping.
    pub poll: Option<Duration>,
    /// Threads for clients, at most [`crate::front::HANDS_MAX`]; 0: the volume's own serves them.
    pub front_threads: Option<usize>,
    /// Bytes per second; 0: not at all.
    pub scrub_rate: Option<u64>,
    /// Bytes that the maker of the SSD lets it be written in its life.
    pub rated_tbw: Option<u64>,
    /// Bytes a day; 0: no limit.
    pub daily_write_budget: Option<u64>,
    pub discard: Option<bool>,
    /// Of the cache and of the origin.
    pub queues: [Option<QueueKind>; 2],
    /// Of the cache's SSD.
    pub lanes: Option<u32>,
}

/// Everything on the SSD is verified within six hours of rest, and, at a quarter of that rate, within a day of work.
fn scrub_rate(cache_bytes: u64) -> u64 {
    const PASS_SECONDS: u64 = 6 * 3600;
    (cache_bytes / PASS_SECONDS).max(256 << 10)
}

impl Knobs {
    /// The configuration of a volume whose cache has this superblock.
    pub fn config(&self, superblock: &Superblock) -> Config {
        let default = Config::new(superblock.geometry, superblock.format);
        let sets = u64::from(superblock.geometry.sets);
        let share = |per_cent: Option<u32>, least: u64, default: u32| {
            per_cent.map_or(default, |per_cent| (sets * u64::from(per_cent.min(100)) / 100).max(least).min(sets) as u32)
        };
        let window_bytes = self.window.unwrap_or(default.window_bytes);
        Config {
            origin: superblock.origin,
            free_floor: share(self.free_floor, 3, default.free_floor),
            reserve: share(self.reserve, 2, default.reserve),
            dirty_high: share(self.dirty_high, 1, default.dirty_high),
            wait: self.wait.unwrap_or(default.wait),
            max_dirty_age: self.max_dirty_age.unwrap_or(self.allocation.unwrap_or(default.allocation).usual_dirty_age()),
            destage_depth: self.destage_depth.unwrap_or(default.destage_depth),
            destage_atoms: self.destage_batch.map_or(default.destage_atoms, |bytes| bytes / ATOM_BYTES),
            ram: self.ram.unwrap_or_else(crate::ram::default),
            memory_policy: self.memory_policy.unwrap_or(default.memory_policy),
            fronts: self.front_threads.unwrap_or_default(),
            window_bytes,
            through_bytes: self.window.unwrap_or(default.through_bytes),
            dirty_ram: self.dirty_ram.unwrap_or(window_bytes / 4),
            dirty_ram_least: self.dirty_ram_least,
            flush_age: self.flush_age.unwrap_or(default.flush_age),
            fill: self.fill.map_or(default.fill, |keep| if keep { Fill::Behind } else { Fill::Off }),
            allocation: self.allocation.unwrap_or(default.allocation),
            convert: self.convert.unwrap_or(default.convert),
            convert_max: self.convert_max,
            when_full: self.when_full.unwrap_or(default.when_full),
            split: default.split.filter(|_| self.split != Some(false)),
            commit_home: if self.commit_home == Some(false) { CommitHome::Never } else { default.commit_home },
            read_around: if self.read_around == Some(false) { ReadAround::Never } else { default.read_around },
            read_ahead: self.read_ahead.unwrap_or(default.read_ahead),
            requests_max: self.requests.unwrap_or(default.requests_max),
            bytes_max: self.bytes.unwrap_or(default.bytes_max),
            fence_samples: self.fence_samples.unwrap_or(default.fence_samples),
            mode: self.mode,
            stall_timeout: self.stall_timeout.unwrap_or(default.stall_timeout),
            scrub_rate: self.scrub_rate.unwrap_or(scrub_rate(superblock.geometry.cache_atoms() * ATOM_BYTES)),
            discard: self.discard.unwrap_or(default.discard),
            queues: [0, 1].map(|device| self.queues[device].unwrap_or(default.queues[device])),
            lanes: self.lanes.unwrap_or(default.lanes),
            daily_write_bytes: self.daily_write_budget.unwrap_or(default.daily_write_bytes),
            ..default
        }
    }

    pub(super) fn rating(&self) -> Rating {
        Rating { life: self.rated_tbw, daily: self.daily_write_budget }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_engine::block::BLOCK_ATOMS_MAX;
    use tidegate_engine::cache::format::{FormatId, Geometry};

    fn superblock() -> Superblock {
        let geometry = Geometry::for_cache(1 << 21, 1 << 24, 8, 256).expect("a cache of 1 GiB");
        assert!(geometry.block_atoms <= BLOCK_ATOMS_MAX);
        Superblock::new(FormatId([3; 16]), geometry, [1; 16], [2; 16])
    }

    #[test]
    fn knobs_left_out_keep_the_defaults_and_shares_are_of_the_sets() {
        let superblock = superblock();
        let sets = superblock.geometry.sets;
        let default = Knobs::default().config(&superblock);
        assert_eq!((default.free_floor, default.origin), (Config::new(superblock.geometry, superblock.format).free_floor, [2; 16]));
        let knobs = Knobs { free_floor: Some(50), dirty_high: Some(100), reserve: Some(0), window: Some(8 << 20), ..Knobs::default() };
        let config = knobs.config(&superblock);
        assert_eq!((config.free_floor, config.dirty_high, config.reserve), (sets / 2, sets, 2));
        assert_eq!((config.window_bytes, config.wait), (8 << 20, default.wait));
        let small = Knobs { allocation: Some(Allocation::SmallWrites), ..knobs };
        assert_eq!(
            (config.max_dirty_age, small.config(&superblock).max_dirty_age),
            (Duration::from_secs(600), Duration::from_secs(86_400))
        );
        let said = Knobs { max_dirty_age: Some(Duration::from_secs(60)), ..small };
        assert_eq!(said.config(&superblock).max_dirty_age, Duration::from_secs(60));
        let without = Knobs { split: Some(false), commit_home: Some(false), ..knobs }.config(&superblock);
        assert!(config.split.is_some() && without.split.is_none());
        assert_eq!((config.commit_home, without.commit_home), (CommitHome::Judged, CommitHome::Never));
    }
}

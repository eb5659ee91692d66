//! How long may be waited for what, as a plan is: for a FLUSH, for anything at all, and for an origin to go away again.

use super::{Plan, Rates};
use crate::chance::Chance;
use crate::front::patience::Bounds;
use tidegate_engine::block::PAGE_ATOMS;
use tidegate_engine::time::Duration;

/// A FLUSH of the cache alone takes no longer: far more than a full window of single sectors at a depth of one.
const FLUSH_BOUND: Duration = Duration::from_secs(5);
/// The longest pause before something is tried again is a minute (docs/durability.md: D7, D8); what waits behind it may have one of its own, and the
/// silence of a motor takes three.
const PAUSES: Duration = Duration::from_secs(4 * 60);
/// Whatever there is to do, an engine may take so long: for a burst of what comes first, or a disk that it leaves alone for a moment.
const LEAST: Duration = Duration::from_secs(10);

impl Plan {
    /// How long a FLUSH may take, where it needs the cache alone and that is quick: not as long as an origin that is slow, stuck or away.
    pub fn flush_bound(&self) -> Option<Duration> {
        let Rates { write_error, flush_error, stuck, .. } = self.rates[0];
        let is_quick = self.drives[0].is_none() && write_error + flush_error + stuck == 0 && self.cache_fails_after == 0;
        (self.bounds_flushes && is_quick && self.is_log_alone() && !self.promises_origin()).then_some(FLUSH_BOUND)
    }

    /// Atoms of the longest range of zeros that is always done at once.
    pub fn parts_beyond(&self) -> u64 {
        self.config.zeroed_together * u64::from(self.config.geometry.block_atoms)
    }

    /// How long anything may take: all that there can be to do, piece by piece; and while something is wrong, what that costs.
    pub fn patience(&self) -> Bounds {
        let geometry = &self.config.geometry;
        let block_atoms = u64::from(geometry.block_atoms);
        let slots = u64::from(geometry.sets) * u64::from(geometry.set_slots);
        let asked = u64::from(self.mix.workers) * (self.mix.blocks_max + 2);
        let batch = self.config.destage_atoms / block_atoms + 64;
        let dirty = slots.min(geometry.blocks()) + u64::from(geometry.range_entries).min(geometry.blocks());
        let metadata = (geometry.data_start() + 2 * u64::from(geometry.sets) * PAGE_ATOMS) / PAGE_ATOMS;
        let time = |pieces: [u64; 2]| (0..2).map(|device| self.time_of(device, pieces[device], pieces[device] * block_atoms)).sum::<u64>();
        // What went past the log counts as home when the origin is flushed, in its own time.
        let least = LEAST.0 + 3 * self.speeds[1].spin_up.0 + 2 * self.config.flush_age.0;
        Bounds {
            reads: Duration(least + 2 * time([asked + batch, asked + batch])),
            work: Duration(least + 2 * time([slots + asked + metadata, dirty + asked])),
            pauses: Duration(PAUSES.0 + self.config.stall_timeout.0),
        }
    }

    /// What a device takes for so many pieces of so many atoms, one after the other, with a flush for every few of them.
    fn time_of(&self, device: usize, pieces: u64, atoms: u64) -> u64 {
        match &self.drives[device] {
            Some(drive) => drive.patience().0 * (2 * pieces + drive.flush_writes()),
            None => {
                let speed = &self.speeds[device];
                let quick = (speed.read.0 + speed.write.0 + speed.flush.0 / 4) * pieces + speed.flush.0 + speed.atom.0 * atoms;
                quick + quick * u64::from(speed.jitter) / 100
            }
        }
    }

    /// Nobody tells when the origin goes away and comes back but operations that fail: so it is with the daemon. (A motor would stand still, and
    /// the model's turn.)
    pub fn origin_is_silent(&self) -> bool {
        self.config.spin.is_none() && Chance::new(self.seed, "an origin that is silent").one_in(2)
    }

    /// How long the origin stays before it goes away again: some of what is under way must come to an end, or nothing ever does.
    pub fn origin_stays(&self, chance: &mut Chance) -> Duration {
        let pieces = self.config.destage_atoms / u64::from(self.config.geometry.block_atoms) + 64;
        let batch = match &self.drives[1] {
            Some(drive) => drive.patience().0 * (2 * pieces + drive.flush_writes()),
            None => (self.speeds[1].write.0 + self.speeds[1].read.0) * pieces + self.speeds[1].flush.0,
        };
        Duration(batch * 2 + chance.spread(20_000, self.origin_leaves_every * 20_000) * 1_000)
    }
}

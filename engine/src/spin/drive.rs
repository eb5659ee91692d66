//! What a drive costs: the figures of its motor, and what follows from them.

use crate::time::Duration;

/// Energy in microjoules; milliwatts times nanoseconds are picojoules.
pub type Microjoules = i64;

/// The figures of a drive. Power in milliwatts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drive {
    /// Turning, with nothing to do.
    pub idle_mw: u64,
    pub standby_mw: u64,
    /// To come to rest, and what is drawn meanwhile on the average.
    pub spin_down: Duration,
    pub spin_down_mw: u64,
    pub spin_up: Duration,
    pub spin_up_mw: u64,
    /// Starts and stops that its maker promises.
    pub rated_cycles: u32,
}

impl Drive {
    /// A 3.5" disk of 7200 rpm. Idle and standby: Western Digital WD10EALX, data sheet; spin-up: paper 001 (6 to 8 s); its power is what
    /// makes the break-even the paper's 18.6 s; cycles: what such data sheets promise. The rest is assumed.
    pub const DESKTOP: Drive = Drive {
        idle_mw: 6_100,
        standby_mw: 700,
        spin_down: Duration::from_secs(2),
        spin_down_mw: 3_000,
        spin_up: Duration::from_secs(7),
        spin_up_mw: 19_800,
        rated_cycles: 50_000,
    };

    /// What standing still saves in a second, in milliwatts.
    fn saving_mw(&self) -> u64 {
        self.idle_mw.saturating_sub(self.standby_mw).max(1)
    }

    /// What it costs to go down and up, beyond standing still and then turning for as long. Nothing, where the figures say that it saves.
    pub fn cycle(&self) -> Microjoules {
        let cycle = energy(self.spin_down_mw, self.spin_down) - energy(self.standby_mw, self.spin_down)
            + energy(self.spin_up_mw, self.spin_up)
            - energy(self.idle_mw, self.spin_up);
        cycle.max(0)
    }

    /// The standby that pays for a cycle, from the command to the wake-up (paper 001: 18.6 s).
    pub fn break_even(&self) -> Duration {
        self.pays(self.cycle())
    }

    /// The standby that pays for `cost`.
    pub fn pays(&self, cost: Microjoules) -> Duration {
        Duration((u128::from(cost.max(0) as u64) * 1_000_000 / u128::from(self.saving_mw())) as u64)
    }

    /// What a standby of that length has saved, or lost.
    pub fn saved(&self, standby: Duration) -> Microjoules {
        energy(self.saving_mw(), standby) - self.cycle()
    }
}

/// What is used at `milliwatts` in so long.
pub fn energy(milliwatts: u64, time: Duration) -> Microjoules {
    (u128::from(milliwatts) * u128::from(time.0) / 1_000_000) as Microjoules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_disk_breaks_even_after_18_6_seconds() {
        let drive = Drive::DESKTOP;
        assert_eq!(drive.cycle(), 100_500_000);
        assert_eq!(drive.break_even().0 / 100_000_000, 186);
        assert!(drive.saved(drive.break_even()).abs() < 10);
        assert_eq!(drive.saved(Duration::from_secs(100)), 540_000_000 - 100_500_000);
    }

    #[test]
    fn figures_by_which_a_start_saves_make_it_free() {
        let drive = Drive { spin_up_mw: 4_500, ..Drive::DESKTOP };
        assert_eq!((drive.cycle(), drive.break_even()), (0, Duration::ZERO));
        assert!(drive.saved(Duration::ZERO) >= 0);
    }

    #[test]
    fn a_drive_that_saves_nothing_never_breaks_even_soon() {
        let drive = Drive { standby_mw: 7_000, ..Drive::DESKTOP };
        assert!(drive.break_even() > Duration::from_secs(3_600));
    }
}

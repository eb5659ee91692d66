//! An origin that may stand still: when it is told to, what becomes of that, and what it does unasked.

use super::Plan;
use crate::chance::Chance;
use tidegate_engine::spin::quiet::{Hours, OfDay};
use tidegate_engine::spin::{self, Drive, Quiet, predictor::Kind as Predictor};
use tidegate_engine::time::Duration;

/// An origin that stands still in a quarter of the runs: soon, so that it does in short runs too. A stream of its own.
pub(super) fn draw(seed: u64) -> Option<spin::Config> {
    let chance = &mut Chance::new(seed, "spin");
    let spin_up = Duration::from_micros(chance.spread(1_000, 2_000_000));
    let drive = Drive { spin_up, spin_down: Duration(spin_up.0 / 4), ..Drive::DESKTOP };
    let predictor = chance.pick(&[Predictor::BreakEven, Predictor::BreakEven, Predictor::Share, Predictor::History, Predictor::Fixed]);
    let mut config = spin::Config { predictor, guard: chance.one_in(2), sweep: !chance.one_in(4), ..spin::Config::new(drive) };
    config.per_hour = chance.spread(1, 100_000) as u32;
    config.cycles_before = drive.rated_cycles - chance.spread(1, u64::from(drive.rated_cycles)) as u32;
    config.max_dirty_age = Duration::from_millis(chance.spread(100, 600_000));
    chance.one_in(4).then_some(config)
}

impl Plan {
    /// What becomes of a disk that is told to stand still. A stream of its own.
    pub(super) fn draw_motor(&mut self) {
        let Some(spin) = &self.config.spin else { return };
        let chance = &mut Chance::new(self.seed, "motor");
        // As its figures say, or late.
        self.speeds[1].spin_up = Duration(spin.drive.spin_up.0 * chance.pick(&[1, 1, 1, 20]));
        self.rates[1].spin_error = if chance.one_in(2) { chance.spread(1_000, 900_000) as u32 } else { 0 };
        self.strangers = chance.one_in(3);
        self.draw_habits();
    }

    /// What a drive does unasked, what is known of who uses it, and the hours in which it is to rest. A stream of its own.
    fn draw_habits(&mut self) {
        let Some(spin) = &mut self.config.spin else { return };
        let chance = &mut Chance::new(self.seed, "habits of a drive");
        (self.counts_uses, self.dozes) = (chance.one_in(2), chance.one_in(3));
        self.rates[1].spin_silence = if chance.one_in(4) { chance.spread(1_000, 300_000) as u32 } else { 0 };
        if chance.one_in(3) {
            let from = chance.spread(1, 600) as u32;
            let hours = Hours { from: OfDay(from), until: OfDay(from + chance.spread(1, 7_200) as u32) };
            spin.quiet = Quiet { hours: vec![hours], at_zero: Some(OfDay(0)) };
        }
    }
}

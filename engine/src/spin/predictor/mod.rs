//! When an idle drive is stopped: predictors. A predictor is told how long each gap was (from the end of one demand to the next), and says at
//! the beginning of a gap after how much of it the drive is to be stopped. It decides only; what is allowed, `spin` knows.

mod fixed;
mod history;
mod share;

use super::drive::{Drive, Microjoules, energy};
use crate::time::{Duration, Instant};

pub use fixed::Fixed;
pub use history::History;
pub use share::Share;

/// Shorter gaps are those between the requests of one task: nobody looks at them, and no drive is stopped in them.
pub const SHORTEST: Duration = Duration::from_millis(250);

/// What else a stop has to mind than what it costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Not before the drive has been idle for so long.
    pub not_before: Duration,
    /// What the start is worth that the rest uses up, if nothing is known of later gaps: it will be missing in one of them.
    pub start: Microjoules,
    /// The starts that are left last if one is used every so long. Who knows the gaps may find a start worth less than that.
    pub every: Duration,
}

pub trait Predictor: Send {
    /// A gap begins. After how long the drive is to be stopped; none: not in this gap.
    fn timeout(&mut self, began: Instant) -> Option<Duration>;
    /// The same under terms, for the gap that has begun; asked again when they change. One that does not reckon knows only what to wait for.
    fn timeout_under(&mut self, began: Instant, terms: &Terms) -> Option<Duration> {
        self.timeout(began).map(|timeout| timeout.max(terms.not_before))
    }
    /// A gap has ended.
    fn learn(&mut self, gap: Duration);
    /// Stopping costs something else than was thought.
    fn reprice(&mut self, price: Price);
}

/// Which predictor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Paper 001's daemon: every second it looks whether the drive was used, and stops it when it was not for ten times.
    Fixed,
    /// After the break-even: never more than twice what the best could have used (Karlin and others, 1990).
    BreakEven,
    /// Twenty-five timeouts that vote (Helmbold and others, *Mobile Networks and Applications* 5, 2000).
    Share,
    /// What would have been best for the gaps of late, seen in several ways.
    #[default]
    History,
}

impl Kind {
    pub const ALL: [Kind; 4] = [Kind::Fixed, Kind::BreakEven, Kind::Share, Kind::History];

    /// As in a configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Fixed => "fixed",
            Kind::BreakEven => "break-even",
            Kind::Share => "share",
            Kind::History => "history",
        }
    }

    pub fn build(self, price: Price) -> Box<dyn Predictor> {
        match self {
            Kind::Fixed => Box::new(Fixed),
            Kind::BreakEven => Box::new(BreakEven(price.drive)),
            Kind::Share => Box::new(Share::new(price)),
            Kind::History => Box::new(History::new(price)),
        }
    }
}

/// What stopping costs, and what it saves.
#[derive(Clone, Copy, Debug)]
pub struct Price {
    pub drive: Drive,
    /// What it is worth not to wait for the drive, in milliwatts of the wait.
    pub wait_mw: u64,
}

impl Price {
    /// Of one stop and start.
    pub fn of_stop(&self) -> Microjoules {
        self.drive.cycle() + energy(self.wait_mw, self.drive.spin_up)
    }

    /// What a timeout costs more in a gap than to leave the drive on; less than nothing if it saves.
    pub fn extra(&self, gap: Duration, timeout: Option<Duration>) -> Microjoules {
        match timeout.filter(|&timeout| timeout < gap) {
            Some(timeout) => self.of_stop() - self.saving(Duration(gap.0 - timeout.0)),
            None => 0,
        }
    }

    /// What a drive uses less that stands still for so long.
    pub fn saving(&self, standby: Duration) -> Microjoules {
        energy(self.drive.idle_mw.saturating_sub(self.drive.standby_mw), standby)
    }
}

/// Always after the break-even.
struct BreakEven(Drive);

impl Predictor for BreakEven {
    fn timeout(&mut self, _began: Instant) -> Option<Duration> {
        Some(self.0.break_even())
    }
    fn timeout_under(&mut self, _began: Instant, terms: &Terms) -> Option<Duration> {
        Some(self.0.pays(self.0.cycle() + terms.start).max(terms.not_before))
    }
    fn learn(&mut self, _gap: Duration) {}
    fn reprice(&mut self, price: Price) {
        self.0 = price.drive;
    }
}

//! Virtual or real, time is a number of nanoseconds that the world passes in. The engine never asks for it.

/// A span of time in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration(pub u64);

impl Duration {
    pub const ZERO: Duration = Duration(0);
    pub const fn from_micros(micros: u64) -> Self {
        Duration(micros * 1_000)
    }
    pub const fn from_millis(millis: u64) -> Self {
        Duration(millis * 1_000_000)
    }
    pub const fn from_secs(secs: u64) -> Self {
        Duration(secs * 1_000_000_000)
    }
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

/// A moment: nanoseconds since an origin that the world chose (start of the daemon, start of the simulation).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(pub u64);

impl Instant {
    pub const ZERO: Instant = Instant(0);
    /// Time since `earlier`; zero if `earlier` lies ahead (a clock that was set back).
    pub fn since(self, earlier: Instant) -> Duration {
        Duration(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, duration: Duration) -> Instant {
        Instant(self.0.saturating_add(duration.0))
    }
}

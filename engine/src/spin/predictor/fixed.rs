//! Paper 001's daemon (figure 6): a poll every second; after ten polls in a row that saw no access the drive is told to stand by. So the drive
//! has been idle for ten to eleven seconds.

use super::{Predictor, Price};
use crate::time::{Duration, Instant};

const POLL: Duration = Duration::from_secs(1);
const POLLS: u64 = 10;

#[derive(Clone, Debug, Default)]
pub struct Fixed;

impl Predictor for Fixed {
    fn timeout(&mut self, began: Instant) -> Option<Duration> {
        // The first poll from now on still sees the access that has just ended.
        let seen = began.0.div_ceil(POLL.0) * POLL.0;
        Some(Duration(seen + POLLS * POLL.0 - began.0))
    }
    fn learn(&mut self, _gap: Duration) {}
    fn reprice(&mut self, _price: Price) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_polls_every_second_and_stops_at_the_tenth_idle_poll() {
        let timeout = |ms: u64| Fixed.timeout(Instant(ms * 1_000_000)).unwrap().0 / 1_000_000;
        assert_eq!([3_000, 3_001, 3_999].map(timeout), [10_000, 10_999, 10_001]);
    }
}

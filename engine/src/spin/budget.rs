//! How often a drive may be started: so many times in any hour, and so many in its life. A drive that stands still will be started once more,
//! so it is the stop that needs room in the budget.

use crate::time::{Duration, Instant};
use std::collections::VecDeque;

const HOUR: Duration = Duration::from_secs(3_600);

#[derive(Clone, Debug)]
pub struct Budget {
    per_hour: usize,
    /// What is left of the life.
    left: u64,
    /// The last starts, as many as an hour may have.
    starts: VecDeque<Instant>,
}

impl Budget {
    pub fn new(per_hour: u32, left: u64) -> Self {
        Budget { per_hour: per_hour as usize, left, starts: VecDeque::new() }
    }

    /// The drive starts, whoever wanted that.
    pub fn note_start(&mut self, now: Instant) {
        self.left = self.left.saturating_sub(1);
        if self.starts.len() >= self.per_hour {
            self.starts.pop_front();
        }
        if self.per_hour > 0 {
            self.starts.push_back(now);
        }
    }

    /// May the drive be stopped? Until it starts again, nothing else starts it.
    pub fn may_stop(&self, now: Instant) -> bool {
        self.next(now) == Some(now)
    }

    /// From when on it may be. None: never more.
    pub fn next(&self, now: Instant) -> Option<Instant> {
        if self.left == 0 || self.per_hour == 0 {
            return None;
        }
        let oldest = self.starts.front().filter(|_| self.starts.len() == self.per_hour);
        Some(oldest.map_or(now, |&start| (start + HOUR).max(now)))
    }

    /// Starts that are left of its life.
    pub fn left(&self) -> u64 {
        self.left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn a_life_ends() {
        let mut budget = Budget::new(100, 2);
        assert!(budget.may_stop(at(0)));
        budget.note_start(at(1));
        budget.note_start(at(5));
        assert_eq!((budget.next(at(1_000_000)), budget.left()), (None, 0));
    }

    #[test]
    fn the_oldest_start_of_the_hour_says_when_the_next_stop_may_be() {
        let mut budget = Budget::new(2, 1_000);
        budget.note_start(at(10));
        budget.note_start(at(20));
        assert_eq!(budget.next(at(30)), Some(at(3_610)));
        assert!(budget.may_stop(at(3_610)) && !budget.may_stop(at(3_609)));
    }

    proptest! {
        /// Whenever somebody wants the drive to stop, and however soon it has to start again.
        #[test]
        fn no_hour_has_more_starts_than_the_budget(
            per_hour in 0u32..6,
            life in 0u64..60,
            wishes in prop::collection::vec((1u64..2_000, 0u64..5_000), 1..200),
        ) {
            let mut budget = Budget::new(per_hour, life);
            let (mut now, mut starts) = (0, Vec::new());
            for (pause, standby) in wishes {
                now += pause;
                if budget.may_stop(at(now)) {
                    now += standby;
                    budget.note_start(at(now));
                    starts.push(now);
                }
            }
            prop_assert!(starts.len() as u64 <= life);
            for (index, &start) in starts.iter().enumerate() {
                let within = starts[index..].iter().take_while(|&&other| other < start + 3_600).count();
                prop_assert!(within <= per_hour as usize, "{} starts in the hour from {} on", within, start);
            }
        }
    }
}

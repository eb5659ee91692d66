//! How often a drive may be started: so many times in any hour, and so many in its life. A drive that stands still will be started once more,
//! so it is the stop that needs room in the budget.
//!
//! The hour's starts are rationed: the more of them are used, the longer a rest must be to be worth one. They would be spent on the first gaps
//! that pay at all otherwise, and the drive would turn through the long ones after these. It is the threshold of the online knapsack problem
//! (D. Chakrabarty, Y. Zhou and R. Lukose, "Online knapsack problems", 2008), for values that nobody knows ahead but that lie between a least
//! and a most: the break-even, and an hour. No start is kept for rests so long that those left are enough for all of them until others are
//! back. Where the gaps of late show that the starts that are left will last, or that no better gap comes, a start is worth less
//! (`predictor/history`).
//!
//! ```text
//!   a rest is worth a start from  least/e · (e · most/least)^used  on,    used: the share of the hour's starts that is used
//!   or from the pace of those left; 12 an hour, break-even 18.6 s, seconds:
//!   used     ≤ 1    2    3    4    5    6    7    8    9    10    11
//!   worth   18.6   19   33   55   93  157  265  446  752  1267  2136
//! ```

use crate::time::{Duration, Instant};
use std::collections::VecDeque;
use std::f64::consts::E;

const HOUR: Duration = Duration::from_secs(3_600);
/// Binary digits of a share that count: less than a millionth is left out.
const DIGITS: u32 = 20;

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

    /// Starts in the hour up to now.
    pub fn used(&self, now: Instant) -> usize {
        self.starts.iter().filter(|&&start| start + HOUR > now).count()
    }

    /// When the oldest of these is older than an hour.
    pub fn next_return(&self, now: Instant) -> Option<Instant> {
        self.starts.iter().map(|&start| start + HOUR).find(|&at| at > now)
    }

    /// How much longer than the break-even a rest has to be that may use up a start now.
    pub fn ration(&self, now: Instant, break_even: Duration) -> Duration {
        let (least, starts) = (break_even.as_secs_f64(), self.per_hour.max(1) as f64);
        if HOUR.as_secs_f64() <= least * starts {
            // So many gaps that pay do not fit into an hour.
            return Duration::ZERO;
        }
        let share = self.used(now) as f64 / starts;
        let worth = (least / E * power(E * HOUR.as_secs_f64() / least, share)).min(self.pace(now).as_secs_f64());
        Duration(((worth - least).max(0.0) * 1e9) as u64)
    }

    /// Of the starts that are left one may be used every so long, until others are back.
    pub fn pace(&self, now: Instant) -> Duration {
        // One more than are left would be used when the next comes back; two more, when two do.
        let returns = self.starts.iter().map(|&start| start + HOUR).filter(|&at| at > now);
        let left = self.per_hour.saturating_sub(self.used(now)).max(1) as u64;
        let paces = (left..).zip(returns).map(|(left, at)| Duration(at.since(now).0 / left));
        paces.max().unwrap_or(Duration::ZERO).max(Duration(HOUR.0 / self.per_hour.max(1) as u64))
    }

    /// Starts that are left of its life.
    pub fn left(&self) -> u64 {
        self.left
    }
}

/// `base` to the power of a share of one. Square roots and products are the same on every machine.
fn power(base: f64, share: f64) -> f64 {
    let (mut root, mut rest, mut product) = (base, share, 1.0);
    for _ in 0..DIGITS {
        (root, rest) = (root.sqrt(), 2.0 * rest);
        if rest >= 1.0 {
            (product, rest) = (product * root, rest - 1.0);
        }
    }
    product
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

    /// Of twelve an hour, after so many, with the paper's break-even: milliseconds.
    fn rations(per_hour: u32, used: &[u64]) -> Vec<u64> {
        let ration = |&used: &u64| {
            let mut budget = Budget::new(per_hour, 1_000);
            (0..used).for_each(|second| budget.note_start(at(second)));
            budget.ration(at(used), Duration::from_millis(18_600)).0 / 1_000_000
        };
        used.iter().map(ration).collect()
    }

    #[test]
    fn the_last_starts_of_an_hour_are_dearer_than_the_first() {
        // 18.6 s / e · (e · 3,600 s / 18.6 s)^(used / 12) - 18.6 s.
        assert_eq!(rations(12, &[0, 1, 2, 3, 6, 9, 11]), [0, 0, 841, 14_170, 138_349, 733_077, 2_117_117]);
        assert_eq!(rations(4, &[0, 1, 2, 3]), [0, 14_170, 138_349, 733_077]);
    }

    #[test]
    fn nothing_is_kept_for_rests_that_are_fewer_than_the_starts_left() {
        // Fifty are left from 50 s until the first is back at 3,600 s: one for each 71 s.
        assert_eq!(rations(100, &[50]), [3_550_000 / 50 - 18_600]);
    }

    #[test]
    fn what_cannot_run_short_has_no_price() {
        assert_eq!(rations(194, &[0, 100, 193]), [0; 3]);
        assert_eq!(rations(1_000, &[999]), [0]);
        assert_eq!(rations(0, &[0]), [0], "nor has what is never to be had");
    }

    #[test]
    fn a_start_that_is_older_than_an_hour_is_back() {
        let mut budget = Budget::new(12, 1_000);
        (0..6).for_each(|number| budget.note_start(at(100 * number)));
        assert_eq!((budget.used(at(3_599)), budget.next_return(at(3_599))), (6, Some(at(3_600))));
        assert_eq!((budget.used(at(3_600)), budget.next_return(at(3_600))), (5, Some(at(3_700))));
        assert_eq!((budget.used(at(4_100)), budget.next_return(at(4_100))), (0, None));
        let ration = |seconds| budget.ration(at(seconds), Duration::from_millis(18_600));
        assert!(ration(3_599) > ration(3_600) && ration(4_100) == Duration::ZERO);
    }

    #[test]
    fn starts_that_were_used_early_make_the_others_last_longer() {
        let mut budget = Budget::new(4, 1_000);
        let pace = |budget: &Budget, seconds| budget.pace(at(seconds)).0 / 1_000_000_000;
        assert_eq!(pace(&budget, 0), 900);
        budget.note_start(at(100));
        assert_eq!(pace(&budget, 100), 1_200, "three for an hour");
        budget.note_start(at(200));
        assert_eq!(pace(&budget, 200), 1_750, "two until 3,700 s");
        assert_eq!(pace(&budget, 3_600), 900, "as many as ever: two soon come back");
        assert_eq!(pace(&budget, 10_000), 900);
    }

    #[test]
    fn powers_are_those_of_the_books() {
        for (base, share) in [(43.8, 0.5), (43.8, 11.0 / 12.0), (2.0, 0.0), (1.0, 0.3), (131.0, 0.75)] {
            assert!((power(base, share) / f64::powf(base, share) - 1.0).abs() < 1e-4, "{base} {share}");
        }
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

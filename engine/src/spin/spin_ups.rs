//! How long a drive takes to come to speed, learnt from its starts: data sheets often do not say, and drives become slower in the cold and
//! with age.
//!
//! The median of the last starts, since one of them may mean anything: somebody else had woken the drive already, or the whole machine slept
//! meanwhile.

use std::collections::VecDeque;

use crate::time::Duration;

/// The median is that of so many.
const LAST: usize = 5;
/// With fewer than that, one odd start could be the median.
const EVIDENCE: usize = 3;
/// What a motor can take: less, and it turned already; more than the longest that a configuration may say, and something else was waited for.
const SHORTEST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(120);

#[derive(Clone, Debug, Default)]
pub struct SpinUps {
    /// The last that can be, the newest last.
    took: VecDeque<Duration>,
}

/// What is known of a drive's spin-ups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learnt {
    pub spin_up: Duration,
    /// The starts that it is the median of.
    pub starts: usize,
}

impl SpinUps {
    /// The drive was told to turn, and did at the first word: so long after it.
    pub fn add(&mut self, took: Duration) {
        if !(SHORTEST..=LONGEST).contains(&took) {
            return;
        }
        if self.took.len() == LAST {
            self.took.pop_front();
        }
        self.took.push_back(took);
    }

    /// Nothing, until enough starts were seen.
    pub fn learnt(&self) -> Option<Learnt> {
        let starts = self.took.len();
        if starts < EVIDENCE {
            return None;
        }
        let mut sorted: Vec<Duration> = self.took.iter().copied().collect();
        sorted.sort_unstable();
        Some(Learnt { spin_up: sorted[starts / 2], starts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is learnt from these times, in milliseconds, and from how many of them.
    fn check(took: &[u64], expect: Option<(u64, usize)>) {
        let mut spin_ups = SpinUps::default();
        took.iter().for_each(|&ms| spin_ups.add(Duration::from_millis(ms)));
        assert_eq!(spin_ups.learnt().map(|learnt| (learnt.spin_up.0 / 1_000_000, learnt.starts)), expect);
    }

    #[test]
    fn two_starts_tell_nothing_yet() {
        check(&[], None);
        check(&[7_000, 7_000], None);
        check(&[7_000, 7_000, 7_200], Some((7_000, 3)));
    }

    #[test]
    fn one_odd_start_changes_nothing() {
        check(&[7_000, 60_000, 7_100], Some((7_100, 3)));
        check(&[7_000, 7_100, 7_200, 600, 7_300], Some((7_100, 5)));
    }

    #[test]
    fn what_no_motor_takes_does_not_count() {
        check(&[12_000, 3, 120_001, 12_100, 499], None);
        check(&[12_000, 3, 120_001, 12_100, 499, 12_200], Some((12_100, 3)));
        check(&[500, 500, 500], Some((500, 3)));
        check(&[120_000, 120_000, 120_000], Some((120_000, 3)));
    }

    #[test]
    fn a_drive_that_became_slower_is_known_after_three_starts() {
        check(&[7_000, 7_000, 7_000, 7_000, 7_000, 9_000, 9_000], Some((7_000, 5)));
        check(&[7_000, 7_000, 7_000, 7_000, 7_000, 9_000, 9_000, 9_000], Some((9_000, 5)));
    }
}

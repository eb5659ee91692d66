//! Quiet hours: times of the day in which the drive stands still as soon as it may, and is not woken for what can wait until they end.

use crate::time::{Duration, Instant};

const DAY: u64 = 86_400;

/// A time of the day, in seconds since midnight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OfDay(pub u32);

/// From one time of the day to another; over midnight, if the second is the earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hours {
    pub from: OfDay,
    pub until: OfDay,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quiet {
    pub hours: Vec<Hours>,
    /// What time of the day it was at [`Instant::ZERO`].
    pub at_zero: Option<OfDay>,
}

impl Quiet {
    /// It is that time of the day now. A second more or less is how it is read.
    pub fn tell(&mut self, now: Instant, time: OfDay) {
        const UNSURE: u64 = 2;
        let time = u64::from(time.0) % DAY;
        if self.of_day(now).is_none_or(|known| ((known + DAY - time) % DAY).min((time + DAY - known) % DAY) > UNSURE) {
            self.at_zero = Some(OfDay(((time + DAY - now.0 / 1_000_000_000 % DAY) % DAY) as u32));
        }
    }

    fn of_day(&self, now: Instant) -> Option<u64> {
        Some((u64::from(self.at_zero?.0) + now.0 / 1_000_000_000) % DAY)
    }

    pub fn is_now(&self, now: Instant) -> bool {
        self.of_day(now).is_some_and(|time| self.hours.iter().any(|hours| hours.contains(time)))
    }

    /// When the answer of [`Quiet::is_now`] next changes, at the earliest.
    pub fn next(&self, now: Instant) -> Option<Instant> {
        let time = self.of_day(now)?;
        let edges = self.hours.iter().flat_map(|hours| [hours.from, hours.until]);
        let seconds = edges.map(|edge| (u64::from(edge.0) + DAY - time - 1) % DAY + 1).min()?;
        let second = Instant(now.0 / 1_000_000_000 * 1_000_000_000);
        Some(second + Duration::from_secs(seconds))
    }
}

impl Hours {
    fn contains(&self, time: u64) -> bool {
        let (from, until) = (u64::from(self.from.0), u64::from(self.until.0));
        if from <= until { (from..until).contains(&time) } else { time >= from || time < until }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u32 = 3_600;

    fn at(hours: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(hours * u64::from(HOUR))
    }

    #[test]
    fn the_night_is_quiet_over_midnight() {
        let night = Hours { from: OfDay(23 * HOUR), until: OfDay(7 * HOUR) };
        let noon = Hours { from: OfDay(12 * HOUR), until: OfDay(13 * HOUR) };
        let quiet = Quiet { hours: vec![night, noon], at_zero: Some(OfDay(20 * HOUR)) };
        // It is 20:00, 22:00, 23:00, 06:00, 07:00, 12:00, 13:00.
        assert_eq!([0, 2, 3, 10, 11, 16, 17].map(|hours| quiet.is_now(at(hours))), [false, false, true, true, false, true, false]);
        assert_eq!([0, 3, 11].map(|hours| quiet.next(at(hours)).unwrap()), [at(3), at(11), at(16)]);
    }

    #[test]
    fn a_clock_that_was_set_and_a_machine_that_slept_move_the_hours() {
        let night = Hours { from: OfDay(23 * HOUR), until: OfDay(7 * HOUR) };
        let mut quiet = Quiet { hours: vec![night], at_zero: Some(OfDay(20 * HOUR)) };
        // Told at 22:00 by its own clock, that has stood still for nine hours.
        quiet.tell(at(2), OfDay(7 * HOUR - 60));
        assert!(quiet.is_now(at(2)));
        assert_eq!(quiet.next(at(2)), Some(at(2) + Duration::from_secs(60)));
        for unsure in [1, 2] {
            let known = quiet.clone();
            quiet.tell(at(2), OfDay(7 * HOUR - 60 + unsure));
            quiet.tell(at(2), OfDay(7 * HOUR - 60 - unsure));
            assert_eq!(quiet, known);
        }
        quiet.tell(at(50), OfDay(0));
        assert_eq!(quiet.at_zero, Some(OfDay(22 * HOUR)), "fifty hours ago");
        let known = quiet.clone();
        quiet.tell(at(50), OfDay(86_399));
        assert_eq!(quiet, known, "a second, over midnight");
        let mut unknown = Quiet { at_zero: None, ..quiet };
        unknown.tell(at(1), OfDay(0));
        assert_eq!(unknown.at_zero, Some(OfDay(23 * HOUR)));
    }

    #[test]
    fn without_hours_or_a_clock_it_is_never_quiet() {
        let always = vec![Hours { from: OfDay(0), until: OfDay(86_400) }];
        assert!(!Quiet { hours: always.clone(), at_zero: None }.is_now(at(1)));
        assert!(Quiet { hours: always, at_zero: Some(OfDay(0)) }.is_now(at(1)));
        assert_eq!(Quiet::default().next(at(1)), None);
    }
}

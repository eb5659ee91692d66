//! Wear: what was written to the SSD and why, how fast that goes on, and what a daily budget leaves of it. Counted where operations start,
//! so what fails and is written again counts twice: flash wears by what it is sent. What the SSD writes besides, inside, nobody tells us.

use crate::time::{Duration, Instant};

const DAY: Duration = Duration::from_secs(24 * 3_600);
const HOUR: Duration = Duration::from_secs(3_600);

/// Why something is written to the SSD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// What clients wrote, in whole slots.
    Client,
    /// What was read from the origin and is kept.
    Fill,
    /// What lived in a set that was cleaned.
    Relocation,
    /// Data once more: its first place failed, or a flush did, or recovery makes sure of the tail.
    Rewrite,
    Journal,
    Header,
    /// The state map of a checkpoint.
    Map,
    Superblock,
    /// Metadata that the scrubber found damaged.
    Scrub,
}

impl Cause {
    /// In the order of the superblock's fields (docs/format.md): it never changes.
    pub const ALL: [Cause; 9] = [
        Cause::Client,
        Cause::Fill,
        Cause::Relocation,
        Cause::Rewrite,
        Cause::Journal,
        Cause::Header,
        Cause::Map,
        Cause::Superblock,
        Cause::Scrub,
    ];

    /// For people and programs outside.
    pub fn name(self) -> &'static str {
        match self {
            Cause::Client => "clients",
            Cause::Fill => "fills",
            Cause::Relocation => "relocation",
            Cause::Rewrite => "rewrites",
            Cause::Journal => "journal",
            Cause::Header => "headers",
            Cause::Map => "map",
            Cause::Superblock => "superblocks",
            Cause::Scrub => "scrub",
        }
    }

    /// Contents of blocks, as opposed to what describes them.
    pub fn is_data(self) -> bool {
        match self {
            Cause::Client | Cause::Fill | Cause::Relocation | Cause::Rewrite => true,
            Cause::Journal | Cause::Header | Cause::Map | Cause::Superblock | Cause::Scrub => false,
        }
    }
}

/// Atoms written to the SSD, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByCause(pub [u64; Cause::ALL.len()]);

impl ByCause {
    pub(crate) fn count(&mut self, cause: Cause, atoms: u64) {
        self.0[cause as usize] += atoms;
    }
    pub fn of(&self, cause: Cause) -> u64 {
        self.0[cause as usize]
    }
    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum, &atoms| sum.saturating_add(atoms))
    }
    /// Contents of blocks.
    pub fn data(&self) -> u64 {
        Cause::ALL.into_iter().filter(|cause| cause.is_data()).map(|cause| self.of(cause)).sum()
    }
    /// Everything else.
    pub fn metadata(&self) -> u64 {
        Cause::ALL.into_iter().filter(|cause| !cause.is_data()).map(|cause| self.of(cause)).sum()
    }
}

/// What clients wrote to the volume, whichever way it went, and what was written to the SSD meanwhile. In atoms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    pub clients: u64,
    pub cache: ByCause,
}

impl Written {
    /// Written to the SSD for each atom that clients wrote, metadata included; nothing before they wrote one.
    pub fn amplification(&self) -> Option<f64> {
        (self.clients > 0).then(|| self.cache.total() as f64 / self.clients as f64)
    }
    /// Both together.
    pub fn plus(&self, other: &Written) -> Written {
        let pairs = |i: usize| self.cache.0[i].saturating_add(other.cache.0[i]);
        Written { clients: self.clients.saturating_add(other.clients), cache: ByCause(std::array::from_fn(pairs)) }
    }
}

/// For `status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wear {
    pub since_start: Written,
    /// Since the cache was formatted. A crash takes from it what was written since the last checkpoint.
    pub lifetime: Written,
    /// Atoms written to the SSD lately, and in how long a time: a day at most.
    pub lately: (u64, Duration),
    /// Bytes that the daily budget leaves now, if there is one. Below zero: what clients write goes on.
    pub budget_left: Option<i64>,
}

/// What was written in the last day, hour by hour.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lately {
    hours: [u64; 24],
    /// When the first hour that is counted began, and the number of the present one since then.
    began: Option<Instant>,
    hour: u64,
}

impl Lately {
    pub fn note(&mut self, now: Instant, atoms: u64) {
        self.turn(now);
        self.hours[(self.hour % 24) as usize] += atoms;
    }

    /// Forgets the hours that a day has passed over.
    fn turn(&mut self, now: Instant) {
        let began = *self.began.get_or_insert(now);
        let hour = now.since(began).0 / HOUR.0;
        for passed in (self.hour + 1..=hour).take(24) {
            self.hours[(passed % 24) as usize] = 0;
        }
        self.hour = self.hour.max(hour);
    }

    /// Atoms, and in how long a time.
    pub fn sum(&self, now: Instant) -> (u64, Duration) {
        let mut turned = self.clone();
        turned.turn(now);
        let since = now.since(turned.began.expect("it was turned"));
        // The oldest hour that is counted has just begun to be passed over.
        (turned.hours.iter().sum(), Duration(since.0.min(23 * HOUR.0 + since.0 % HOUR.0)))
    }
}

/// A budget of bytes a day: a bucket that holds a day's worth, full at the start, and fills up again within a day. Everything that is written
/// takes from it. It may be overdrawn, by a day's worth: what was written the day before yesterday is no reason to keep nothing today.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    daily: i64,
    left: i64,
    at: Instant,
}

impl Budget {
    pub fn new(daily_bytes: u64) -> Self {
        let daily = i64::try_from(daily_bytes).unwrap_or(i64::MAX).clamp(1, i64::MAX / 2);
        Budget { daily, left: daily, at: Instant::ZERO }
    }

    pub fn spend(&mut self, now: Instant, bytes: u64) {
        self.refill(now);
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX / 2);
        self.left = (self.left - bytes).max(-self.daily);
    }

    fn refill(&mut self, now: Instant) {
        let gained = u128::from(now.since(self.at).0) * self.daily as u128 / u128::from(DAY.0);
        if gained >= 2 * self.daily as u128 {
            (self.left, self.at) = (self.daily, now);
            return;
        }
        // The time that whole bytes took: the rest of it counts the next time.
        self.at = self.at + Duration((gained * u128::from(DAY.0) / self.daily as u128) as u64);
        self.left = self.left.saturating_add(gained as i64).min(self.daily);
    }

    /// Bytes left.
    pub fn left(&self, now: Instant) -> i64 {
        let mut refilled = self.clone();
        refilled.refill(now);
        refilled.left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(hours: u64) -> Instant {
        Instant(hours * HOUR.0)
    }

    #[test]
    fn causes_are_data_or_metadata_and_add_up() {
        let mut written = Written { clients: 10, ..Written::default() };
        assert_eq!(Written::default().amplification(), None);
        Cause::ALL.into_iter().zip(1..).for_each(|(cause, atoms)| written.cache.count(cause, atoms));
        assert_eq!((written.cache.data(), written.cache.metadata(), written.cache.total()), (10, 35, 45));
        assert_eq!(written.amplification(), Some(4.5));
        let both = written.plus(&written);
        assert_eq!((both.clients, both.cache.of(Cause::Scrub)), (20, 18));
        let names: std::collections::BTreeSet<&str> = Cause::ALL.iter().map(|cause| cause.name()).collect();
        assert_eq!(names.len(), Cause::ALL.len());
        assert!(Cause::ALL.iter().enumerate().all(|(place, &cause)| cause as usize == place));
    }

    #[test]
    fn what_was_written_a_day_ago_is_not_lately() {
        let mut lately = Lately::default();
        assert_eq!(lately.sum(at(5)), (0, Duration::ZERO));
        lately.note(at(5), 100);
        lately.note(at(6), 10);
        assert_eq!(lately.sum(at(7)), (110, Duration(2 * HOUR.0)));
        assert_eq!(lately.sum(Instant(at(29).0 - 1)), (110, Duration(24 * HOUR.0 - 1)), "the first hour has not passed yet");
        assert_eq!(lately.sum(at(29)), (10, Duration(23 * HOUR.0)));
        lately.note(at(1_000), 7);
        assert_eq!(lately.sum(at(1_000)).0, 7);
    }

    #[test]
    fn a_budget_fills_up_within_a_day_and_is_overdrawn_by_a_day_at_most() {
        let mut budget = Budget::new(2_400);
        budget.spend(at(0), 2_400);
        assert_eq!([0, 1, 12, 24, 1_000].map(|hours| budget.left(at(hours))), [0, 100, 1_200, 2_400, 2_400]);
        budget.spend(at(1), 1_000_000);
        assert_eq!([1, 25, 49, 50].map(|hours| budget.left(at(hours))), [-2_400, 0, 2_400, 2_400]);
        let mut huge = Budget::new(u64::MAX);
        huge.spend(at(1), u64::MAX);
        assert!(huge.left(at(1)) >= -(i64::MAX / 2) && huge.left(at(1_000_000)) == i64::MAX / 2);
        assert_eq!(Budget::new(u64::MAX).left(at(47)), i64::MAX / 2, "more than a day on, and less than two");
    }

    /// However often it is asked in between.
    #[test]
    fn no_part_of_a_byte_is_lost() {
        let mut budget = Budget::new(86_400);
        budget.spend(Instant::ZERO, 86_400);
        for step in 1..=36_000 {
            // A tenth of a second each: a tenth of a byte.
            budget.spend(Instant(step * 100_000_000), 0);
        }
        assert_eq!(budget.left(at(1)), 3_600);
    }
}

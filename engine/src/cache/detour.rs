//! Small writes that are converted take a detour: into the log, and some day home. Where that pays once the log is full, and where not. A drive
//! that random writes slow down takes them many times as fast in the order of a sweep; one that they do not slow down only has to take everything
//! twice, and a log that is full is no quicker than what goes home out of it. A decision, from how long writes take at home, by trial, and what
//! it takes to make room for them in the log.
//!
//! ```text
//!        a write waits for room         home was quicker
//!   Open ─────────────────────▶ Trial ───────────────────▶ Straight
//!    ▲ ▲                        ▲   │ was slower                │ has become slower, or fails
//!    │ │         enough answers │   ▼                           ▼
//!    │ └─── half has gone home ──── Around ◀────────────────────┤
//!    └──────────────────────────────── some of it has gone home ┘
//! ```

use crate::time::{Duration, Instant};

/// Answers that are counted: of a trial, the first half of which is for what is on its way out of the log to end; and of writes by the log after
/// a trial that failed, or straight home, until it is looked at again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    pub trial: u64,
    pub around: u64,
}

impl Default for Counts {
    /// A trial is a twentieth of a second of 20,000 writes each.
    fn default() -> Self {
        Counts { trial: 1024, around: 4096 }
    }
}

/// A trial ends after so many answers if they took so many times as long as by the log.
const HOPELESS: (u64, u64) = (16, 4);
/// After each trial that failed, so many times as many answers pass before the next one; at most so many times.
const PAUSE: u64 = 8;
const PAUSE_MOST: u64 = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By the log, which has room.
    Open,
    /// Home, to see how long that takes; since then. `settled`: half of it is over.
    Trial { since: Instant, settled: bool },
    /// By the log, which is kept full, until so many more are answered.
    Around(u64),
    /// Home.
    Straight,
}

/// Answers, and how long they took: the time while a write was under way.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    answers: u64,
    nanoseconds: u64,
    last: Option<Instant>,
}

impl Tally {
    fn add(&mut self, now: Instant, arrived: Instant) {
        let since = self.last.map_or(arrived, |last| last.max(arrived));
        self.answers += 1;
        self.nanoseconds += now.since(since).0;
        self.last = Some(now);
    }
    /// Of one write.
    fn pace(self) -> u64 {
        self.nanoseconds / self.answers.max(1)
    }
}

pub struct Detour {
    counts: Counts,
    way: Way,
    tally: Tally,
    /// What room for one write in the log takes, in nanoseconds.
    room: u64,
    pause: u64,
    /// Dirty sets when a write waited.
    full: u32,
}

impl Detour {
    pub fn new(counts: Counts) -> Detour {
        Detour { counts, way: Way::Open, tally: Tally::default(), room: 0, pause: 1, full: 0 }
    }

    fn go(&mut self, way: Way) {
        (self.way, self.tally) = (way, Tally::default());
    }

    /// Does a write wait for room in the log, and how many of its sets are dirty? `room` tells how long it takes to make room for one write.
    pub fn note(&mut self, now: Instant, waits: bool, dirty_sets: u32, room: impl FnOnce() -> Duration) {
        match self.way {
            Way::Open | Way::Around(0) if waits => {
                (self.room, self.full) = (room().0, dirty_sets);
                self.go(Way::Trial { since: now, settled: false });
            }
            // It comes and goes in batches while the log is full.
            Way::Around(_) | Way::Trial { .. } if dirty_sets <= self.full / 2 => self.go(Way::Open),
            // Nothing goes home beside these: they have paused.
            Way::Straight if dirty_sets < self.full - self.full / 10 => self.go(Way::Open),
            Way::Open | Way::Around(_) | Way::Trial { .. } | Way::Straight => {}
        }
    }

    /// Does a small write go home without the log?
    pub fn is_straight(&self) -> bool {
        matches!(self.way, Way::Trial { .. } | Way::Straight)
    }

    /// A small write that came at `arrived` was answered, `straight` from home.
    pub fn answered(&mut self, now: Instant, arrived: Instant, straight: bool) {
        match &mut self.way {
            Way::Around(left) if !straight => *left = left.saturating_sub(1),
            // Who came before has waited for the log.
            &mut Way::Trial { since, settled } if straight && arrived >= since => {
                self.tally.add(now, arrived);
                self.judge_trial(since, settled);
            }
            Way::Straight if straight => {
                self.tally.add(now, arrived);
                if self.tally.answers < self.counts.around {
                    return;
                }
                if self.tally.pace() > self.room {
                    self.go(Way::Around(self.counts.around));
                } else {
                    self.tally = Tally::default();
                }
            }
            Way::Open | Way::Around(_) | Way::Trial { .. } | Way::Straight => {}
        }
    }

    fn judge_trial(&mut self, since: Instant, settled: bool) {
        let (answers, pace) = (self.tally.answers, self.tally.pace());
        let is_half = answers >= self.counts.trial.div_ceil(2);
        if answers >= HOPELESS.0 && pace > HOPELESS.1.saturating_mul(self.room) || settled && is_half && pace >= self.room {
            self.fail();
        } else if settled && is_half {
            self.pause = 1;
            self.go(Way::Straight);
        } else if is_half {
            self.go(Way::Trial { since, settled: true });
        }
    }

    /// The origin did not take a write, or not quickly.
    pub fn fail(&mut self) {
        self.go(Way::Around(self.counts.around * self.pause));
        self.pause = (self.pause * PAUSE).min(PAUSE_MOST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETS: u32 = 256;

    struct Client {
        detour: Detour,
        now: Instant,
    }

    impl Client {
        fn new() -> Client {
            Client { detour: Detour::new(Counts::default()), now: Instant(1) }
        }

        /// The log is full, where a write gets room in so many microseconds.
        fn waits(&mut self, room: u64) {
            self.detour.note(self.now, true, SETS, || Duration::from_micros(room));
        }

        /// One write after the other, which takes so many microseconds at home or waits in the full log; how many went home.
        fn write(&mut self, count: u64, room: u64, home: u64) -> u64 {
            let went = (0..count).filter(|_| {
                let (arrived, straight) = (self.now, self.detour.is_straight());
                if !straight {
                    self.waits(room);
                }
                self.now = arrived + Duration::from_micros(if straight { home } else { room });
                self.detour.answered(self.now, arrived, straight);
                straight
            });
            went.count() as u64
        }
    }

    #[test]
    fn where_home_is_quicker_than_a_log_that_is_full_writes_go_home_until_it_has_room() {
        let mut client = Client::new();
        assert!(!client.detour.is_straight(), "the log has room");
        assert_eq!(client.write(100_000, 10, 5), 99_999);
        client.detour.note(client.now, false, SETS - SETS / 10, || unreachable!());
        assert!(client.detour.is_straight());
        client.detour.note(client.now, false, SETS - SETS / 10 - 1, || unreachable!());
        assert!(!client.detour.is_straight());
    }

    #[test]
    fn where_home_is_slow_trials_are_short_and_become_rare() {
        let mut client = Client::new();
        let tried = client.write(10_000_000, 300, 9_000);
        assert!((16..=16 * 8).contains(&tried), "{tried}");
        // Somewhat slower: a whole trial.
        let tried = client.write(10_000_000, 300, 350);
        assert!((1024..=1024 * 8).contains(&tried), "{tried}");
    }

    #[test]
    fn a_home_that_becomes_slow_is_left_again() {
        let mut client = Client::new();
        client.write(50_000, 10, 5);
        assert!(client.detour.is_straight());
        let went = client.write(20_000, 10, 30);
        assert!((1..3 * 4096).contains(&went), "{went}");
        assert!(!client.detour.is_straight());
    }

    #[test]
    fn who_pauses_is_not_slow() {
        let mut client = Client::new();
        client.write(50_000, 10, 5);
        for _ in 0..10_000 {
            client.now = client.now + Duration::from_millis(1);
            client.write(1, 10, 5);
        }
        assert!(client.detour.is_straight());
    }

    #[test]
    fn of_writes_side_by_side_the_time_counts_once() {
        let mut client = Client::new();
        client.waits(10);
        // 32 at once take 100 us.
        for _ in 0..32 {
            let arrived = client.now;
            client.now = arrived + Duration::from_micros(100);
            (0..32).for_each(|_| client.detour.answered(client.now, arrived, true));
        }
        assert_eq!(client.detour.way, Way::Straight);
    }

    #[test]
    fn who_waited_for_the_log_is_not_counted_in_a_trial() {
        let mut client = Client::new();
        client.detour = Detour::new(Counts { trial: 2, around: 1 });
        client.now = Instant(1_000_000);
        client.waits(10);
        client.detour.answered(Instant(2_000_000), Instant(999_999), true);
        assert!(client.detour.is_straight());
        client.detour.answered(Instant(2_001_000), Instant(2_000_000), true);
        client.detour.answered(Instant(2_002_000), Instant(2_001_000), true);
        assert_eq!(client.detour.way, Way::Straight);
    }
}

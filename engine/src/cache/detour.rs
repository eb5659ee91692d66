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
//!    └──────────────── some of it has gone home, or a minute ───┘
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

/// Home is left after so many answers if they took so many times as long as by the log.
const HOPELESS: (u64, u64) = (16, 4);
/// After each time that home proved slow, so many times as many answers pass before the next trial; at most so many times.
const PAUSE: u64 = 8;
const PAUSE_MOST: u64 = 512;
/// What making room takes is looked at again after so long: while writes go home, nobody sees it.
const STRAIGHT_MOST: Duration = Duration::from_secs(60);
/// So long is looked back, or nothing comes any more, to say whether clients keep home busy.
const WATCH: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By the log, which has room.
    Open,
    /// Home, to see how long that takes. `settled`: half of it is over.
    Trial { settled: bool },
    /// By the log, which is kept full, until so many more are answered.
    Around(u64),
    /// Home, since then.
    Straight(Instant),
}

/// Answers, and how long they took: the time while a write was under way, or a FLUSH.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    answers: u64,
    nanoseconds: u64,
    last: Instant,
    /// A FLUSH has something to wait for.
    owes: bool,
}

impl Tally {
    fn since(now: Instant) -> Tally {
        Tally { last: now, ..Tally::default() }
    }
    /// Something was under way from `since` to `now`. Returns how much of that is new, in nanoseconds.
    fn add(&mut self, since: Instant, now: Instant) -> u64 {
        let fresh = now.since(self.last.max(since)).0;
        self.nanoseconds += fresh;
        self.last = now;
        fresh
    }
    /// Of one write.
    fn pace(self) -> u64 {
        self.nanoseconds / self.answers.max(1)
    }
}

/// How busy clients have kept home of late.
#[derive(Clone, Copy, Debug, Default)]
struct Watch {
    since: Instant,
    last: Instant,
    nanoseconds: u64,
    was_busy: bool,
}

impl Watch {
    fn begin(&mut self, now: Instant) {
        *self = Watch { since: now, last: now, nanoseconds: 0, was_busy: true };
    }
    fn add(&mut self, now: Instant, nanoseconds: u64) {
        self.nanoseconds += nanoseconds;
        self.last = now;
        let passed = now.since(self.since);
        if passed >= WATCH {
            let was_busy = self.nanoseconds >= passed.0 / 2;
            *self = Watch { since: now, last: now, nanoseconds: 0, was_busy };
        }
    }
    fn until(&self) -> Option<Instant> {
        self.was_busy.then_some(self.last + WATCH)
    }
}

/// What the log is like.
#[derive(Clone, Copy, Debug)]
pub struct Log {
    /// A write waits for room in it.
    pub waits: bool,
    /// Its sets' worth of dirty blocks.
    pub dirty_sets: u32,
    /// Blocks that have gone home of it, ever.
    pub gone_home: u64,
}

pub struct Detour {
    counts: Counts,
    way: Way,
    tally: Tally,
    watch: Watch,
    /// What room for one write in the log takes, in nanoseconds; and what had gone home when that was found.
    room: u64,
    gone_home: u64,
    pause: u64,
    /// Dirty sets when a write waited.
    full: u32,
}

impl Detour {
    pub fn new(counts: Counts) -> Detour {
        let (tally, watch) = (Tally::default(), Watch::default());
        Detour { counts, way: Way::Open, tally, watch, room: 0, gone_home: 0, pause: 1, full: 0 }
    }

    fn go(&mut self, now: Instant, way: Way) {
        (self.way, self.tally) = (way, Tally::since(now));
    }

    /// `room` tells how long it takes to make room for one write, as far as was learned from what has gone home. True: small writes, also those that
    /// wait, may go home from now on.
    pub fn note(&mut self, now: Instant, log: Log, room: impl FnOnce() -> Duration) -> bool {
        match self.way {
            // What was learned before the last trial has been judged.
            Way::Open | Way::Around(0) if log.waits && log.gone_home > self.gone_home => {
                (self.room, self.gone_home, self.full) = (room().0, log.gone_home, log.dirty_sets);
                self.go(now, Way::Trial { settled: false });
                self.watch.begin(now);
                return true;
            }
            // It comes and goes in batches while the log is full.
            Way::Around(_) | Way::Trial { .. } if log.dirty_sets <= self.full / 2 => self.go(now, Way::Open),
            // They have paused, and some of it has gone home.
            Way::Straight(_) if !self.is_busy(now) && log.dirty_sets < self.full - self.full / 10 => self.go(now, Way::Open),
            Way::Straight(since) if now.since(since) >= STRAIGHT_MOST => self.go(now, Way::Open),
            Way::Open | Way::Around(_) | Way::Trial { .. } | Way::Straight(_) => {}
        }
        false
    }

    /// Does a small write go home without the log?
    pub fn is_straight(&self) -> bool {
        matches!(self.way, Way::Trial { .. } | Way::Straight(_))
    }

    fn is_busy(&self, now: Instant) -> bool {
        self.busy_until().is_some_and(|until| until > now)
    }

    /// Until when do clients keep home so busy that nothing else should go there, if no more come?
    pub fn busy_until(&self) -> Option<Instant> {
        self.watch.until().filter(|_| self.is_straight())
    }

    /// A small write was answered that went by the log.
    pub fn answered_by_log(&mut self) {
        if let Way::Around(left) = &mut self.way {
            *left = left.saturating_sub(1);
        }
    }

    /// A FLUSH was answered, which has to wait for what went home.
    pub fn flushed(&mut self, now: Instant, since: Instant) {
        if self.is_straight() && std::mem::take(&mut self.tally.owes) {
            let fresh = self.tally.add(since, now);
            self.watch.add(now, fresh);
        }
    }

    /// A small write that went home at `since` was answered.
    pub fn answered_from_home(&mut self, now: Instant, since: Instant) {
        if !self.is_straight() {
            return;
        }
        let fresh = self.tally.add(since, now);
        self.watch.add(now, fresh);
        self.tally.answers += 1;
        self.tally.owes = true;
        let (answers, pace) = (self.tally.answers, self.tally.pace());
        let is_slow = answers >= HOPELESS.0 && pace > HOPELESS.1.saturating_mul(self.room);
        match self.way {
            Way::Trial { .. } | Way::Straight(_) if is_slow => self.fail(now),
            Way::Trial { .. } if answers < self.counts.trial.div_ceil(2) => {}
            Way::Trial { settled: false } => self.go(now, Way::Trial { settled: true }),
            Way::Trial { settled: true } if pace < self.room => self.go(now, Way::Straight(now)),
            Way::Straight(_) if answers < self.counts.around => {}
            Way::Straight(_) if pace <= self.room => (self.pause, self.tally) = (1, Tally::since(now)),
            Way::Trial { settled: true } | Way::Straight(_) => self.fail(now),
            Way::Open | Way::Around(_) => unreachable!("it is not straight"),
        }
    }

    /// The origin did not take a write, or not quickly.
    pub fn fail(&mut self, now: Instant) {
        if self.is_straight() {
            self.go(now, Way::Around(self.counts.around * self.pause));
            self.pause = (self.pause * PAUSE).min(PAUSE_MOST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETS: u32 = 256;

    struct Client {
        detour: Detour,
        now: Instant,
        gone_home: u64,
    }

    impl Client {
        fn new() -> Client {
            Client { detour: Detour::new(Counts::default()), now: Instant(1), gone_home: 0 }
        }

        /// The log is full, where a write gets room in so many microseconds.
        fn waits(&mut self, room: u64) {
            self.gone_home += 1;
            let log = Log { waits: true, dirty_sets: SETS, gone_home: self.gone_home };
            self.detour.note(self.now, log, || Duration::from_micros(room));
        }

        /// So many of its sets are dirty now.
        fn drops_to(&mut self, dirty_sets: u32) {
            let log = Log { waits: false, dirty_sets, gone_home: self.gone_home };
            self.detour.note(self.now, log, || unreachable!());
        }

        /// One write after the other, which takes so many microseconds at home or waits in the full log; how many went home.
        fn write(&mut self, count: u64, room: u64, home: u64) -> u64 {
            let went = (0..count).filter(|_| {
                let (since, straight) = (self.now, self.detour.is_straight());
                if !straight {
                    self.waits(room);
                }
                self.now = since + Duration::from_micros(if straight { home } else { room });
                if straight {
                    self.detour.answered_from_home(self.now, since)
                } else {
                    self.detour.answered_by_log()
                }
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
        client.drops_to(SETS / 4);
        assert!(client.detour.is_straight(), "clients go on");
        client.now = client.now + WATCH;
        client.drops_to(SETS - SETS / 10);
        assert!(client.detour.is_straight());
        client.drops_to(SETS - SETS / 10 - 1);
        assert!(!client.detour.is_straight());
    }

    #[test]
    fn nothing_is_tried_before_something_has_gone_home_that_tells_what_room_takes() {
        let mut detour = Detour::new(Counts::default());
        let log = Log { waits: true, dirty_sets: SETS, gone_home: 0 };
        assert!(!detour.note(Instant(1), log, || unreachable!()));
        assert!(detour.note(Instant(1), Log { gone_home: 1, ..log }, || Duration::from_micros(1)));
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
    fn a_home_that_becomes_slow_is_left_again_and_at_once_if_it_is_very_slow() {
        for (home, most) in [(30, 3 * 4096), (1_000, 1_000)] {
            let mut client = Client::new();
            client.write(50_000, 10, 5);
            assert!(client.detour.is_straight());
            let went = client.write(20_000, 10, home);
            assert!((1..most).contains(&went), "{went}");
            assert!(!client.detour.is_straight());
        }
    }

    /// A disk that takes a trial into its buffer.
    #[test]
    fn who_is_quick_for_a_trial_only_is_tried_ever_more_rarely() {
        let mut client = Client::new();
        let slow = (0..1_000).fold(0, |slow, _| {
            client.write(1_500, 100, 1);
            slow + if client.detour.is_straight() { client.write(1_000, 100, 5_000) } else { 0 }
        });
        assert!(slow < 1_000, "{slow}");
    }

    #[test]
    fn what_room_takes_is_learned_anew_after_a_minute() {
        let mut client = Client::new();
        client.write(50_000, 10, 5);
        client.now = client.now + STRAIGHT_MOST;
        client.drops_to(SETS);
        assert!(!client.detour.is_straight());
    }

    #[test]
    fn a_flush_counts_as_time_at_home() {
        let mut client = Client::new();
        client.waits(100);
        for _ in 0..16 {
            let since = client.now;
            client.now = since + Duration::from_micros(10);
            client.detour.answered_from_home(client.now, since);
            let since = client.now;
            client.now = since + Duration::from_millis(10);
            client.detour.flushed(client.now, since);
        }
        assert!(!client.detour.is_straight());
    }

    #[test]
    fn who_pauses_is_not_slow_and_keeps_nobody_from_going_home() {
        let mut client = Client::new();
        client.write(50_000, 10, 5);
        assert!(client.detour.busy_until().is_some_and(|until| until > client.now), "one after the other");
        for _ in 0..10_000 {
            client.now = client.now + Duration::from_millis(1);
            client.write(1, 10, 5);
        }
        assert!(client.detour.is_straight());
        assert_eq!(client.detour.busy_until(), None);
    }

    #[test]
    fn of_writes_side_by_side_the_time_counts_once() {
        let mut client = Client::new();
        client.waits(10);
        // 32 at once take 100 us.
        for _ in 0..32 {
            let since = client.now;
            client.now = since + Duration::from_micros(100);
            (0..32).for_each(|_| client.detour.answered_from_home(client.now, since));
        }
        assert!(matches!(client.detour.way, Way::Straight(_)));
    }

    #[test]
    fn many_failures_at_once_are_one() {
        let mut client = Client::new();
        client.write(50_000, 10, 5);
        (0..32).for_each(|_| client.detour.fail(client.now));
        assert_eq!(client.detour.way, Way::Around(4096));
    }
}

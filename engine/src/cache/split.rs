//! Which part of a sequential write goes to the origin from the start: while the SSD takes the one part the disk takes the other, and the
//! cache fills more slowly. A decision, from addresses and from how long requests took.
//!
//! ```text
//!            a sequence runs; the trial was fast enough              log leg ──▶ home leg
//!   Alone ──▶ Trial ─────────────────────────────────▶ legs:            ▲            │
//!     ▲         │ too slow                               │              └────────────┘
//!     └─────────┴──────── slower than alone ◀────────────┘
//! ```
//! A *leg* is a run of requests that follow one another on the volume, long enough that the disk loses no rotation between two of them.
//! Where a disk has a buffer, it writes one leg down while the SSD takes the next. How long the legs in the log are is found: a disk that
//! cannot keep up answers late, and gets its next leg later.
//!
//! By Little's law a client with a fixed number of requests in flight gets data through in the inverse ratio of its mean latency, so that is
//! what is compared: with the origin's part, and in the log alone. In comfort, both together have to be faster. Once much of the cache is
//! dirty, a little slower will do: what goes to the origin now need not wait for room later.

use crate::block::{ATOM_BYTES, Span};
use crate::time::{Duration, Instant};

use super::sequence::{Sequence, Sequences};

/// Sequential writers that are told apart.
const SEQUENCES: usize = 32;
/// A leg in the log is at first as long as takes the log the time that the origin takes for a home leg, and at least so much of one: the ratio
/// of the papers' drives, 19 MiB beside 10 (bounds are a quarter of a home leg, and 64 of them).
const LOG_LEG: (u64, u64) = (19, 10);
/// If that is so many home legs, in comfort and when much is dirty, the origin's part is not worth having.
const LEGS_MOST: (u64, u64) = (3, 6);
/// A client that sends nothing for so long is not kept waiting by the log.
const REST: Duration = Duration::from_millis(100);
/// How much slower a request of a trial, or the whole, may be than in the log alone: in comfort, and when much is dirty. Per cent.
const TRIAL: (u64, u64) = (100, 130);
const WHOLE: (u64, u64) = (98, 115);
/// Home legs after which the whole was too slow, one after the other, before the origin is left alone again.
const TRIES: u32 = 4;
/// A home leg this much slower than the best one (per cent) says that the origin does not keep up.
const LATE: u64 = 130;
/// Legs in the log become shorter by one part in so many, until the origin was late, and then.
const QUICK: u64 = 16;
const SLOW: u64 = 64;
/// After a trial that failed, so many home legs of data pass before the next one, at first; each failure doubles that.
const PAUSE: u64 = 100;
const PAUSE_MOST: u64 = 10_000;
/// Atoms of a trial, if its first answers do not end it.
const TRIAL_ATOMS: u64 = (2 << 20) / ATOM_BYTES;
/// A FLUSH belongs to a writer's habit if the next one comes before so many home legs of data.
const HABIT: u64 = 400;

/// Where a write goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// It belongs to no long sequence.
    #[default]
    Other,
    /// Of a long sequence, to the log.
    Log,
    /// Of a long sequence, to the origin, if it can.
    Home,
    /// Of a long sequence, to the origin, because the log has no room.
    Overflow,
    /// A small write that a FLUSH is to follow, to the origin, if it can (`super::commit`).
    Commit,
    /// A small write that would have been converted, on its way to the origin since then (`super::detour`).
    Straight(Instant),
}

/// The sizes, in atoms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Legs {
    /// A sequence is long that has covered so much. 0, for tests: every write counts, and has its legs without a trial.
    pub proof: u64,
    /// A leg at the origin.
    pub home: u64,
}

impl Default for Legs {
    /// A leg of 10 MiB is some ten rotations of a disk. What has covered less than 4 MiB is no long sequence anywhere; see [`Legs::of_cache`].
    fn default() -> Self {
        Legs { proof: (4 << 20) / ATOM_BYTES, home: (10 << 20) / ATOM_BYTES }
    }
}

impl Legs {
    /// The default for a cache of so many atoms: a sequence is long that has covered a thirty-second of it. What is shorter is rather kept.
    pub fn of_cache(atoms: u64) -> Self {
        let legs = Legs::default();
        Legs { proof: legs.proof.max(atoms / 32), ..legs }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Everything to the log, for so many atoms more.
    Alone {
        left: u64,
    },
    /// Some requests to the origin: how long do they take?
    Trial {
        left: u64,
    },
    LogLeg {
        left: u64,
    },
    HomeLeg {
        left: u64,
    },
}

/// Latencies, weighted so that what they say of throughput holds for requests of different sizes.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    ns: u64,
    atoms: u64,
}

impl Tally {
    fn add(&mut self, atoms: u64, latency: Duration) {
        self.ns += latency.0;
        self.atoms += atoms;
    }
    /// What was long ago counts less.
    fn fade(&mut self) {
        self.ns /= 2;
        self.atoms /= 2;
    }
    /// So much here, in what takes as long there.
    fn times(&self, atoms: u64, there: &Tally) -> u64 {
        let product = u128::from(atoms) * u128::from(self.ns) * u128::from(there.atoms);
        (product / (u128::from(self.atoms) * u128::from(there.ns)).max(1)) as u64
    }
    /// Is this at most so many per cent of the other? Nothing is neither.
    fn is_within(&self, percent: u64, of: &Tally) -> bool {
        let product = |a: u64, b: u64| u128::from(a) * u128::from(b);
        self.atoms > 0 && of.atoms > 0 && product(self.ns, of.atoms) * 100 <= product(of.ns, self.atoms) * u128::from(percent)
    }
}

/// The decision. It is asked once for each write, in their order.
#[derive(Clone, Debug)]
pub struct Split {
    legs: Legs,
    sequences: Sequences,
    stage: Stage,
    /// The sequence that has the home leg: others between its requests would cost the disk the seeks that legs are to save.
    holder: u64,
    /// Atoms that others have written meanwhile.
    others: u64,
    /// Atoms of a leg in the log, and the part of it by which the next one is shorter: small, once the origin has been late.
    log_leg: u64,
    shorter: u64,
    /// Home legs after which the whole was too slow, without a break.
    slow: u32,
    /// Home legs of data before the next trial, should one fail.
    pause: u64,
    /// Much was dirty when the last trial was made.
    was_pressed: bool,
    /// Time between requests while all goes to the log, and when the last one came.
    pace: Tally,
    last: Option<Instant>,
    /// Latencies in the log alone; of all requests of the last legs; of those at the origin in the last home leg.
    alone: Tally,
    whole: Tally,
    home: Tally,
    /// The fastest of those.
    best: Tally,
    /// Atoms of long sequences since the last FLUSH, and between the two before it.
    since_flush: u64,
    flush_gap: Option<u64>,
    /// A home leg has ended, and the origin was not flushed since.
    is_leg_volatile: bool,
}

impl Split {
    pub fn new(legs: Legs) -> Self {
        Split {
            legs,
            sequences: Sequences::new(SEQUENCES),
            stage: Stage::Alone { left: 0 },
            holder: 0,
            others: 0,
            log_leg: legs.home * LOG_LEG.0 / LOG_LEG.1,
            shorter: QUICK,
            slow: 0,
            pause: PAUSE,
            was_pressed: false,
            pace: Tally::default(),
            last: None,
            alone: Tally::default(),
            whole: Tally::default(),
            home: Tally::default(),
            best: Tally::default(),
            since_flush: 0,
            flush_gap: None,
            is_leg_volatile: false,
        }
    }

    /// Where does this write go? `pressed`: much is dirty. `may_go_home`: the origin takes writes now.
    pub fn assign(&mut self, now: Instant, span: Span, pressed: bool, may_go_home: bool) -> Part {
        if self.legs.proof == 0 {
            return if may_go_home { self.alternate(span.atoms) } else { Part::Other };
        }
        let Some(sequence) = self.sequences.note(span).filter(|sequence| sequence.length() >= self.legs.proof) else { return Part::Other };
        if !may_go_home {
            return Part::Log;
        }
        self.since_flush += span.atoms;
        let gap = self.last.replace(now).map(|last| now.since(last)).filter(|&gap| gap < REST);
        if let (Stage::Alone { .. }, Some(gap)) = (self.stage, gap) {
            self.pace.add(span.atoms, gap);
        }
        self.step(&sequence, pressed);
        match &mut self.stage {
            Stage::Alone { left } | Stage::LogLeg { left } => {
                *left = left.saturating_sub(span.atoms);
                Part::Log
            }
            Stage::Trial { left } | Stage::HomeLeg { left } if self.holder == sequence.number => {
                *left = left.saturating_sub(span.atoms);
                self.others = 0;
                Part::Home
            }
            Stage::Trial { .. } | Stage::HomeLeg { .. } => {
                self.others += span.atoms;
                // The holder has gone.
                if self.others > self.log_leg {
                    (self.holder, self.others) = (sequence.number, 0);
                }
                Part::Log
            }
        }
    }

    /// One leg after the other, whatever they take.
    fn alternate(&mut self, atoms: u64) -> Part {
        self.since_flush += atoms;
        let left = self.legs.home;
        match &mut self.stage {
            Stage::Alone { .. } | Stage::Trial { .. } | Stage::LogLeg { left: 0 } => self.stage = Stage::HomeLeg { left },
            Stage::HomeLeg { left: 0 } => {
                self.is_leg_volatile = true;
                self.stage = Stage::LogLeg { left };
            }
            Stage::LogLeg { left } | Stage::HomeLeg { left } => *left = left.saturating_sub(atoms),
        }
        if self.is_at_home_leg() { Part::Home } else { Part::Log }
    }

    /// A stage that is over gives way to the next.
    fn step(&mut self, sequence: &Sequence, pressed: bool) {
        let by_press = |(comfort, press): (u64, u64)| if pressed { press } else { comfort };
        match self.stage {
            Stage::Alone { left } => {
                let is_worth = self.flush_gap.is_none_or(|gap| gap >= self.legs.home + self.log_leg);
                let is_due = left == 0 || pressed && !self.was_pressed;
                if is_due && is_worth && self.alone.atoms >= self.legs.home / 5 {
                    self.home = Tally::default();
                    (self.holder, self.was_pressed) = (sequence.number, pressed);
                    self.stage = Stage::Trial { left: TRIAL_ATOMS.min(self.legs.home) };
                }
            }
            Stage::Trial { left } => {
                let leg = self.home.times(self.legs.home, &self.pace);
                let is_fast = self.home.is_within(by_press(TRIAL), &self.alone) && leg <= self.legs.home * by_press(LEGS_MOST);
                if self.home.atoms == 0 {
                    // No answer has come yet: the log goes on meanwhile.
                    self.holder = if left == 0 { 0 } else { self.holder };
                } else if !is_fast {
                    self.stage = self.give_up();
                } else if left == 0 {
                    self.whole = Tally::default();
                    self.log_leg = leg.max(self.legs.home * LOG_LEG.0 / LOG_LEG.1);
                    self.stage = self.next_leg(sequence);
                }
            }
            Stage::LogLeg { left: 0 } => self.stage = self.next_leg(sequence),
            Stage::HomeLeg { left: 0 } => {
                self.is_leg_volatile = true;
                self.adapt();
                let is_fast = self.whole.atoms == 0 || self.whole.is_within(by_press(WHOLE), &self.alone);
                self.whole.fade();
                self.slow = if is_fast { 0 } else { self.slow + 1 };
                self.stage = if self.slow < TRIES { Stage::LogLeg { left: self.fitted(self.log_leg) } } else { self.give_up() };
            }
            Stage::LogLeg { .. } | Stage::HomeLeg { .. } => {}
        }
    }

    /// A home leg, unless a FLUSH is to be expected before the origin will have been flushed for it.
    fn next_leg(&mut self, sequence: &Sequence) -> Stage {
        let left = self.fitted(self.legs.home);
        let until = self.since_flush + left + self.fitted(self.log_leg) / 2;
        if self.flush_gap.is_some_and(|gap| until > gap) {
            return Stage::LogLeg { left };
        }
        (self.holder, self.home) = (sequence.number, Tally::default());
        Stage::HomeLeg { left }
    }

    /// A leg as long as lets a whole number of them fit between two FLUSHes.
    fn fitted(&self, leg: u64) -> u64 {
        let both = self.legs.home + self.log_leg;
        self.flush_gap.map_or(leg, |gap| leg * gap / (both * ((gap + both / 2) / both).max(1)))
    }

    /// The origin is left alone for a while, longer each time.
    fn give_up(&mut self) -> Stage {
        let left = self.pause * self.legs.home;
        self.pause = (self.pause * 2).min(PAUSE_MOST);
        self.slow = 0;
        self.alone.fade();
        Stage::Alone { left }
    }

    /// Longer legs in the log if the origin does not keep up, else a little shorter ones.
    fn adapt(&mut self) {
        // The best is forgotten slowly: what was once may not be any more.
        self.best.ns += self.best.ns / 32;
        if self.best.atoms == 0 || self.home.is_within(100, &self.best) {
            self.best = self.home;
        }
        let keeps_up = self.home.atoms == 0 || self.home.is_within(LATE, &self.best);
        if keeps_up {
            self.log_leg -= self.log_leg / self.shorter;
        } else {
            (self.log_leg, self.shorter) = (self.log_leg + self.log_leg / 8, SLOW);
        }
        self.log_leg = self.log_leg.clamp(self.legs.home / 4, self.legs.home * 64);
    }

    /// A write of a long sequence was answered.
    pub fn answered(&mut self, part: Part, atoms: u64, latency: Duration) {
        match (self.stage, part) {
            (_, Part::Other | Part::Overflow | Part::Commit | Part::Straight(_)) => {}
            (Stage::Alone { .. }, Part::Log) => {
                self.alone.add(atoms, latency);
                if self.alone.atoms > 32 * self.legs.home {
                    self.alone.fade();
                    self.pace.fade();
                }
            }
            (Stage::Alone { .. } | Stage::Trial { .. }, Part::Home) => self.home.add(atoms, latency),
            (Stage::Trial { .. }, Part::Log) => {}
            (Stage::LogLeg { .. } | Stage::HomeLeg { .. }, Part::Log) => self.whole.add(atoms, latency),
            (Stage::LogLeg { .. } | Stage::HomeLeg { .. }, Part::Home) => {
                self.whole.add(atoms, latency);
                self.home.add(atoms, latency);
            }
        }
    }

    /// A FLUSH came. What it covers at the origin is flushed there before the next one, if that comes as late.
    pub fn flushed(&mut self) {
        self.flush_gap = (self.since_flush > 0 && self.since_flush < HABIT * self.legs.home).then_some(self.since_flush);
        self.since_flush = 0;
        if let Stage::LogLeg { left } = &mut self.stage {
            *left = 0;
        }
    }

    /// The origin has failed to take a write.
    pub fn failed(&mut self) {
        self.stage = self.give_up();
    }

    /// The origin is at its leg.
    pub fn is_at_home_leg(&self) -> bool {
        matches!(self.stage, Stage::HomeLeg { .. } | Stage::Trial { .. })
    }

    /// The origin has had its leg, and clients send FLUSHes: the next one should find little that is not durable there.
    pub fn wants_origin_flush(&self) -> bool {
        self.is_leg_volatile && self.flush_gap.is_some()
    }
    /// The origin is being flushed.
    pub fn origin_flushes(&mut self) {
        self.is_leg_volatile = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = (1 << 20) / ATOM_BYTES;

    /// A client that sends requests of 1 MiB and waits for each answer.
    struct Client {
        split: Split,
        now: Instant,
    }

    impl Client {
        fn new() -> Self {
            Client { split: Split::new(Legs::default()), now: Instant::ZERO }
        }

        /// How many of `count` requests from `from` on went home. `times`, in ms: of a write to the log, and of one to the origin.
        fn run(&mut self, from: u64, count: u64, times: [u64; 2], pressed: bool) -> u64 {
            let mut home = 0;
            for i in from..from + count {
                let part = self.split.assign(self.now, Span::new(i * MIB, MIB), pressed, true);
                let latency = Duration::from_millis(times[usize::from(part == Part::Home)]);
                home += u64::from(part == Part::Home);
                self.now = self.now + latency;
                self.split.answered(part, MIB, latency);
            }
            home
        }
    }

    impl Split {
        /// Log and origin take turns now.
        fn is_sharing(&self) -> bool {
            matches!(self.stage, Stage::LogLeg { .. } | Stage::HomeLeg { .. })
        }
    }

    #[test]
    fn scattered_and_short_writes_belong_to_no_sequence() {
        let mut split = Client::new();
        for i in 0..10_000u64 {
            assert_eq!(
                split.split.assign(Instant(i), Span::new(i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 30 << 3, 8), true, true),
                Part::Other
            );
        }
        let start = 1 << 40;
        for i in 0..3 {
            assert_eq!(
                split.split.assign(Instant(i), Span::new(start + i * MIB, MIB), true, true),
                Part::Other,
                "{i} MiB are no long sequence"
            );
        }
        assert_eq!(split.split.assign(Instant(4), Span::new(start + 3 * MIB, MIB), true, true), Part::Log);
    }

    #[test]
    fn an_origin_that_makes_it_faster_has_its_legs_from_the_start() {
        let mut split = Client::new();
        let home = split.run(0, 1_000, [15, 10], false);
        assert!(home > 300, "{home} of 1,000");
        assert!(split.split.is_sharing());
    }

    #[test]
    fn an_origin_that_is_a_little_slower_has_them_once_much_is_dirty() {
        let mut split = Client::new();
        assert_eq!(split.run(0, 500, [37, 42], false), 1, "a trial");
        let home = split.run(500, 500, [37, 42], true);
        assert!(home > 150, "{home} of 500");
    }

    #[test]
    fn a_slow_origin_is_tried_ever_more_seldom() {
        let mut split = Client::new();
        assert!(split.run(0, 10_000, [1, 5], true) <= 12);
    }

    #[test]
    fn an_origin_that_does_not_keep_up_gets_longer_pauses() {
        let mut split = Client::new();
        split.run(0, 200, [15, 10], false);
        let before = split.split.log_leg;
        split.run(200, 60, [15, 14], false);
        assert!(split.split.log_leg > before, "{} after {before}", split.split.log_leg);
    }

    #[test]
    fn what_makes_everything_slower_ends() {
        let mut split = Client::new();
        split.run(0, 200, [15, 10], false);
        assert!(split.split.is_sharing());
        let home = split.run(200, 400, [15, 40], false);
        assert!(home <= 60, "{home}");
        assert!(!split.split.is_sharing());
    }

    #[test]
    fn where_flushes_come_often_nothing_goes_home_and_where_seldom_none_comes_in_a_leg() {
        let mut often = Client::new();
        let mut home = 0;
        for i in 0..500 {
            home += often.run(i, 1, [15, 10], false);
            often.split.flushed();
        }
        assert_eq!(home, 0);
        let mut seldom = Client::new();
        let mut legs_cut = 0;
        for i in 0..2_000 {
            seldom.run(i, 1, [15, 10], false);
            if i % 64 == 63 {
                legs_cut += u32::from(seldom.split.is_at_home_leg() && !matches!(seldom.split.stage, Stage::HomeLeg { left: 0 }));
                seldom.split.flushed();
            }
        }
        assert!(seldom.split.is_sharing() && legs_cut <= 2, "{legs_cut} of 31 FLUSHes came in a leg");
    }

    #[test]
    fn of_several_sequences_one_at_a_time_has_the_leg_and_one_that_stopped_loses_it() {
        let mut split = Client::new();
        split.run(0, 12, [15, 10], false);
        let holder = split.split.holder;
        assert!(split.split.is_at_home_leg() && holder > 0);
        let other = 1 << 20;
        assert_eq!(split.run(other, 10, [15, 10], false), 0);
        assert!(split.run(other + 10, 40, [15, 10], false) > 0, "the first one has stopped");
        assert_ne!(split.split.holder, holder);
    }

    #[test]
    fn an_origin_that_fails_is_left_alone() {
        let mut split = Client::new();
        split.run(0, 12, [15, 10], false);
        split.split.failed();
        assert_eq!(split.run(12, 500, [15, 10], false), 0);
    }
}

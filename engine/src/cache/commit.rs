//! Where a write goes that a FLUSH follows at once: into the log, or home, where the origin makes it durable sooner than the SSD does. A
//! decision, from how long commits took: for each size of writes apart, since of large ones it is their bytes that take long.
//!
//! ```text
//!            commits follow one another        as quick as a commit in the log      quicker
//!   Log ─────────────────────────▶ Gauge ─────────────────────────▶ Trial ─────────────────▶ Home ─┐ now and then one in the log,
//!    ▲                               │ slower                         │ slower                ▲ │    └ to compare with
//!    └── ever longer ────────────────┴────────────────────────────────┘                       └─┘
//! ```
//! A *commit* is one write and the FLUSH after it, with nothing else written meanwhile: only such a client waits for the whole of what a
//! device takes for it. Where commits overlap the log makes many of them durable at once, which no latency of a single one tells.
//!
//! A disk is hardly asked at all: before a write is tried there, a read of one block, which nobody waits for, has to come back in the time of a
//! commit.

use crate::time::Duration;

/// Atoms of the largest writes of each size: 16 KiB to 1 MiB. What is larger is no commit.
const SIZES: [u64; 4] = [32, 128, 512, 2048];
/// Atoms of the largest write that may be one.
pub const LARGEST: u64 = SIZES[SIZES.len() - 1];

/// Commits, one after the other, after which the next one is expected too.
const HABIT: u32 = 3;
/// After a trial that failed, so many commits pass before the next one, at first; each failure doubles that.
const PAUSE: u32 = 256;
const PAUSE_MOST: u32 = 1 << 16;
/// Of what the log takes for a commit, the origin may take at most so much. Per cent.
const WORTH: u64 = 95;
/// So many commits at home, and one is made in the log.
const COMPARE: u32 = 256;
/// What was long ago counts less: a mean is over about so many.
const MEMORY: u64 = 8;

/// A mean of what was of late.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    ns: u64,
    count: u64,
}

impl Mean {
    fn add(&mut self, ns: u64) {
        self.count = (self.count + 1).min(MEMORY);
        self.ns = (self.ns * (self.count - 1) + ns) / self.count;
    }
    /// Is so much at most so many per cent of this?
    fn has_room_for(&self, ns: u64, percent: u64) -> bool {
        self.count > 0 && u128::from(ns) * 100 <= u128::from(self.ns) * u128::from(percent)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Everything to the log, for so many commits more.
    Log {
        left: u32,
    },
    /// A read of the origin is under way.
    Gauge,
    Trial,
    /// To the origin, for so many commits; then one to the log, and more as long as that is quicker.
    Home {
        left: u32,
    },
}

/// How far the commit has come that may be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// This request writes.
    Write(usize),
    Written,
    /// This request flushes.
    Flush(usize),
}

#[derive(Clone, Copy, Debug)]
struct Commit {
    step: Step,
    size: usize,
    is_home: bool,
    ns: u64,
}

/// What is known of commits of one size.
#[derive(Clone, Copy, Debug)]
struct Known {
    stage: Stage,
    log: Mean,
    home: Mean,
    pause: u32,
}

/// The decision. It is told of every write and FLUSH, when it comes and when it is answered.
#[derive(Clone, Debug)]
pub struct Commits {
    /// For tests: two writes of three go home, commits or not.
    always: bool,
    known: [Known; SIZES.len()],
    /// Commits without anything else between them, of any size.
    streak: u32,
    /// Writes since the last FLUSH.
    writes: u32,
    commit: Option<Commit>,
    /// The size of the last one.
    size: usize,
}

impl Commits {
    pub fn new(always: bool) -> Self {
        let known = Known { stage: Stage::Log { left: 0 }, log: Mean::default(), home: Mean::default(), pause: PAUSE };
        Commits { always, known: [known; SIZES.len()], streak: 0, writes: 0, commit: None, size: 0 }
    }

    /// A write of so many atoms has come. `is_one`: no other write or FLUSH is under way. Is it for the origin?
    pub fn write_came(&mut self, number: usize, atoms: u64, is_one: bool) -> bool {
        self.writes = self.writes.saturating_add(1);
        let size = SIZES.iter().position(|&largest| atoms <= largest);
        if self.always {
            return size.is_some() && !self.writes.is_multiple_of(3);
        }
        let Some(size) = size.filter(|_| self.writes == 1 && is_one) else {
            self.end_habit();
            return false;
        };
        self.size = size;
        self.commit = Some(Commit { step: Step::Write(number), size, is_home: false, ns: 0 });
        self.streak >= HABIT && matches!(self.known[size].stage, Stage::Trial | Stage::Home { left: 1.. })
    }

    /// This write is on its way to the origin.
    pub fn went_home(&mut self, number: usize) {
        if let Some(commit) = self.commit.as_mut().filter(|commit| commit.step == Step::Write(number)) {
            commit.is_home = true;
        }
    }

    /// Something was written that is no commit.
    pub fn end_habit(&mut self) {
        (self.commit, self.streak) = (None, 0);
    }

    pub fn write_answered(&mut self, number: usize, latency: Duration) {
        if let Some(commit) = self.commit.as_mut().filter(|commit| commit.step == Step::Write(number)) {
            (commit.step, commit.ns) = (Step::Written, latency.0);
        }
    }

    /// A FLUSH has come. `is_one`: no other write or FLUSH is under way.
    pub fn flush_came(&mut self, number: usize, is_one: bool) {
        let writes = if self.always { self.writes } else { std::mem::take(&mut self.writes) };
        match &mut self.commit {
            Some(commit) if is_one && commit.step == Step::Written => commit.step = Step::Flush(number),
            // One that covers nothing says nothing.
            None if writes == 0 => {}
            Some(_) | None => self.end_habit(),
        }
    }

    pub fn flush_answered(&mut self, number: usize, latency: Duration) {
        if let Some(commit) = self.commit.take_if(|commit| commit.step == Step::Flush(number)) {
            self.streak = self.streak.saturating_add(1);
            self.known[commit.size].took(commit.is_home, commit.ns + latency.0);
        }
    }

    /// The origin is left alone for a while with commits as large as the last one, longer each time.
    pub fn give_up(&mut self) {
        self.known[self.size].give_up();
    }

    /// Is it time to ask the origin for a block, to see how quick it is?
    pub fn wants_gauge(&self) -> bool {
        let is_under_way = self.known.iter().any(|known| known.stage == Stage::Gauge);
        self.streak >= HABIT && self.known[self.size].stage == Stage::Log { left: 0 } && !is_under_way && !self.always
    }
    pub fn gauge_begins(&mut self) {
        self.known[self.size].stage = Stage::Gauge;
    }
    /// It took so long; nothing: it has failed.
    pub fn gauged(&mut self, latency: Option<Duration>) {
        let Some(known) = self.known.iter_mut().find(|known| known.stage == Stage::Gauge) else { return };
        if latency.is_some_and(|latency| known.log.has_room_for(latency.0, 100)) {
            known.stage = Stage::Trial;
        } else {
            known.give_up();
        }
    }

    /// Does a FLUSH of what went home wait for the origin? Then as long as such a commit in the log takes.
    pub fn patience(&self) -> Option<Duration> {
        let known = &self.known[self.size];
        match known.stage {
            _ if self.always => Some(Duration(u64::MAX)),
            Stage::Trial | Stage::Home { .. } => Some(Duration(known.log.ns)),
            Stage::Log { .. } | Stage::Gauge => None,
        }
    }
}

impl Known {
    /// A commit has taken so long.
    fn took(&mut self, is_home: bool, ns: u64) {
        match (self.stage, is_home) {
            (Stage::Log { left }, false) => {
                self.log.add(ns);
                self.stage = Stage::Log { left: left.saturating_sub(1) };
            }
            (Stage::Gauge | Stage::Trial, false) => self.log.add(ns),
            (Stage::Trial, true) => {
                self.home = Mean { ns, count: 1 };
                self.judge(COMPARE);
            }
            (Stage::Home { left }, true) => {
                self.home.add(ns);
                self.judge(left.saturating_sub(1));
            }
            (Stage::Home { .. }, false) => {
                self.log.add(ns);
                // It has stayed the better one. Was it, this time? Else the next commit says so again, or not.
                self.pause = PAUSE;
                self.judge(if ns < self.home.ns { 0 } else { COMPARE });
            }
            // What was still on its way when it was given up.
            (Stage::Log { .. } | Stage::Gauge, true) => {}
        }
    }

    fn judge(&mut self, left: u32) {
        if self.log.has_room_for(self.home.ns, WORTH) {
            self.stage = Stage::Home { left };
        } else {
            self.give_up();
        }
    }

    fn give_up(&mut self) {
        self.stage = Stage::Log { left: self.pause };
        self.pause = (self.pause * 2).min(PAUSE_MOST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that writes, waits, flushes, waits: so many ms in the log, and at the origin.
    struct Client {
        commits: Commits,
        gauges: u32,
        /// Of its writes.
        atoms: u64,
    }

    impl Client {
        fn new() -> Self {
            Client { commits: Commits::new(false), gauges: 0, atoms: 8 }
        }

        /// How many of `count` commits went home. `read`: ms that a read of the origin takes.
        fn run(&mut self, count: u32, log: u64, home: u64, read: u64) -> u32 {
            let mut at_home = 0;
            for _ in 0..count {
                let is_home = self.commits.write_came(1, self.atoms, true);
                if is_home {
                    self.commits.went_home(1);
                    at_home += 1;
                }
                self.commits.write_answered(1, Duration::from_millis(if is_home { home } else { 0 }));
                self.commits.flush_came(2, true);
                self.commits.flush_answered(2, Duration::from_millis(if is_home { 0 } else { log }));
                if self.commits.wants_gauge() {
                    self.gauges += 1;
                    self.commits.gauge_begins();
                    self.commits.gauged(Some(Duration::from_millis(read)));
                }
            }
            at_home
        }
    }

    #[test]
    fn an_origin_that_is_sooner_durable_has_nearly_all_commits() {
        let mut client = Client::new();
        assert!(client.run(1_000, 18, 10, 10) >= 990);
    }

    #[test]
    fn a_slow_origin_is_asked_for_a_block_ever_more_seldom_and_written_never() {
        let mut client = Client::new();
        assert_eq!(client.run(100_000, 2, 20, 10), 0);
        assert!(client.gauges <= 9, "{} of 100,000", client.gauges);
    }

    #[test]
    fn an_origin_that_reads_quickly_and_writes_slowly_has_one_commit_ever_more_seldom() {
        let mut client = Client::new();
        assert!(client.run(100_000, 2, 20, 1) <= 9);
    }

    #[test]
    fn what_becomes_slower_is_given_up_and_tried_again_later() {
        let mut client = Client::new();
        client.run(100, 18, 10, 10);
        assert!(client.run(200, 18, 40, 10) <= 8);
        assert!(client.run(1_000, 18, 10, 10) >= 700);
        assert!(client.run(1_000, 5, 10, 10) <= 600, "the log has become quicker");
    }

    #[test]
    fn commits_that_overlap_or_hold_more_than_a_write_are_none() {
        for (writes, is_one) in [(2, true), (1, false)] {
            let mut commits = Commits::new(false);
            for number in 0..100 {
                for i in 0..writes {
                    assert!(!commits.write_came(number * 4 + i, 8, is_one));
                    commits.write_answered(number * 4 + i, Duration::ZERO);
                }
                commits.flush_came(number * 4 + 3, is_one);
                commits.flush_answered(number * 4 + 3, Duration::from_millis(1));
                assert!(!commits.wants_gauge());
            }
        }
    }

    /// A database that commits now little, now much: the origin is sooner durable with little only.
    #[test]
    fn each_size_is_judged_by_itself() {
        let mut client = Client::new();
        let mut at_home = [0; 2];
        for _ in 0..1_000 {
            for (size, (atoms, log, home)) in [(8, 18, 10), (2048, 20, 200)].into_iter().enumerate() {
                client.atoms = atoms;
                at_home[size] += client.run(1, log, home, 10);
            }
        }
        assert!(at_home[0] >= 990 && at_home[1] <= 4, "{at_home:?}");
        client.atoms = LARGEST + 1;
        assert_eq!(client.run(100, 20, 1, 1), 0, "too much for a commit");
    }

    #[test]
    fn one_write_without_its_flush_ends_the_habit() {
        let mut client = Client::new();
        client.run(20, 18, 10, 10);
        assert!(client.commits.write_came(1, 8, true));
        client.commits.write_answered(1, Duration::ZERO);
        assert!(!client.commits.write_came(1, 8, true));
    }
}

//! Linux's CFQ (`block/cfq-iosched.c` and `Documentation/block/cfq-iosched.txt`, kernel 4.1), simplified: one job after the other has the
//! device for a while, and what is counted for fairness are operations (IOPS mode), not time. Left out: priorities, control groups, waiting for
//! a job that may ask again (`slice_idle`, which IOPS mode does without), and the order of addresses within a job.
//!
//! While others wait, the job whose turn it is has at most eight operations under way: so CFQ keeps a disk short of work that another job
//! would have to wait for, and an SSD short of work for its dies.

use std::collections::BTreeSet;

use super::lists::Lists;
use super::scheduler::{Item, Scheduler};
use crate::time::{Duration, Instant};

/// A turn; shorter where many wait, so that a round takes no longer than [`ROUND`].
const TURN: Duration = Duration::from_millis(100);
const ROUND: Duration = Duration::from_millis(300);
/// Operations under way of the job whose turn it is, while others wait.
const QUANTUM: u32 = 8;
/// What an operation counts: those that somebody waits for, and others, in the proportion of their turns (100 to 40 ms).
const COST: [u64; 2] = [2, 5];

/// What nobody waits for is one job, whoever asked for it.
const ASYNC: usize = 0;

#[derive(Default)]
pub struct Cfq {
    waiting: Lists,
    jobs: Vec<Job>,
    /// Those with something to do whose turn it is not, by what they have had.
    ready: BTreeSet<(u64, usize)>,
    /// Whose turn it is, and until when.
    turn: Option<(usize, Instant)>,
    /// What the job has had whose turn came last: nobody begins with less.
    had_least: u64,
}

#[derive(Clone, Default)]
struct Job {
    had: u64,
    under_way: u32,
}

impl Cfq {
    fn job(&mut self, item: &Item) -> usize {
        let job = if item.is_sync() { item.job as usize + 1 } else { ASYNC };
        if self.jobs.len() <= job {
            self.jobs.resize(job + 1, Job::default());
        }
        job
    }

    fn is_turn_of(&self, job: usize) -> bool {
        self.turn.is_some_and(|(turn, _)| turn == job)
    }

    /// The turn goes to the job that has had least, if somebody waits.
    fn next_turn(&mut self, now: Instant) -> Option<usize> {
        if let Some((job, _)) = self.turn.take()
            && !self.waiting.is_empty(job)
        {
            self.ready.insert((self.jobs[job].had, job));
        }
        let (had, job) = self.ready.pop_first()?;
        self.had_least = self.had_least.max(had);
        let waiting = self.ready.len() as u64 + 1;
        self.turn = Some((job, now + Duration(TURN.0.min(ROUND.0 / waiting))));
        Some(job)
    }
}

impl Scheduler for Cfq {
    fn push(&mut self, _now: Instant, entry: usize, item: &Item) {
        let job = self.job(item);
        if self.waiting.is_empty(job) && !self.is_turn_of(job) {
            // Who was idle has saved nothing.
            self.jobs[job].had = self.jobs[job].had.max(self.had_least);
            self.ready.insert((self.jobs[job].had, job));
        }
        self.waiting.push(job, entry);
    }

    fn pop(&mut self, now: Instant) -> Option<usize> {
        let goes_on = |&(job, until): &(usize, Instant)| !self.waiting.is_empty(job) && (now < until || self.ready.is_empty());
        let job = match self.turn.filter(goes_on) {
            Some((job, _)) => job,
            None => self.next_turn(now)?,
        };
        if self.jobs[job].under_way >= QUANTUM && !self.ready.is_empty() {
            return None;
        }
        self.jobs[job].had += COST[usize::from(job == ASYNC)];
        self.jobs[job].under_way += 1;
        self.waiting.pop(job)
    }

    fn raise(&mut self, now: Instant, entry: usize, _before: &Item, item: &Item) {
        let job = self.waiting.remove(entry);
        if self.waiting.is_empty(job) {
            self.ready.remove(&(self.jobs[job].had, job));
        }
        self.push(now, entry, item);
    }

    fn done(&mut self, _now: Instant, _entry: usize, item: &Item) {
        let job = self.job(item);
        self.jobs[job].under_way -= 1;
    }

    fn deadline(&self) -> Option<Instant> {
        self.turn.filter(|_| !self.ready.is_empty()).map(|(_, until)| until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Class;
    use crate::queue::QueueKind;
    use crate::queue::tests::Bench;

    #[test]
    fn a_job_has_eight_under_way_while_others_wait() {
        let mut bench = Bench::new(QueueKind::Cfq, 100, 1);
        (0..20).for_each(|id| bench.read_of(1, id, 2 * id));
        assert_eq!(bench.popped().len(), 20, "alone it has all places");
        (20..40).for_each(|id| bench.read_of(2, id, 2 * id));
        (40..60).for_each(|id| bench.read_of(3, id, 2 * id));
        assert_eq!(bench.popped(), (20..28).collect::<Vec<_>>());
        bench.done(22);
        assert_eq!(bench.popped(), [28]);
        // Its turn ends: it wants to be asked then.
        bench.now = bench.queue.deadline().unwrap();
        assert_eq!(bench.popped(), (40..48).collect::<Vec<_>>());
    }

    #[test]
    fn jobs_have_as_many_operations_each_however_many_they_ask_for() {
        let mut bench = Bench::new(QueueKind::Cfq, 1, 1);
        (0..4_000).for_each(|id| bench.read_of(u32::from(id >= 1_000), id, 2 * id));
        let mut served = [0, 0];
        // An operation takes 1 ms, so a turn is a hundred of them.
        for _ in 0..1_600 {
            let id = bench.queue_next().unwrap();
            served[usize::from(id >= 1_000)] += 1;
            bench.done(id);
            bench.now = bench.now + Duration::from_millis(1);
        }
        assert_eq!(served, [800, 800]);
    }

    #[test]
    fn what_nobody_waits_for_has_less() {
        let mut bench = Bench::new(QueueKind::Cfq, 1, 1);
        (0..4_000).for_each(|id| bench.push(id, id * 2, if id < 2_000 { Class::Client } else { Class::Fill }));
        let mut served = [0, 0];
        for _ in 0..1_400 {
            let id = bench.queue_next().unwrap();
            served[usize::from(id >= 2_000)] += 1;
            bench.done(id);
            bench.now = bench.now + Duration::from_millis(1);
        }
        assert_eq!(served, [1_000, 400]);
    }
}

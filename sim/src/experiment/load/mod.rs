//! Loads: what clients ask of a volume, and when. A load is a list of jobs that run side by side; each draws its requests
//! ([`made`]) or replays a trace ([`trace`]); or one is an application over a file system ([`files`]). The same seed and load ask the same of every configuration.

pub mod files;
pub mod gaps;
pub mod made;
pub mod pool;
pub mod skew;
pub mod table;
pub mod trace;
pub mod unpack;

use crate::chance::Chance;
use files::Files;
use made::{Made, Worker};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use tidegate_engine::block::Span;
use tidegate_engine::time::{Duration, Instant};
use trace::Trace;

/// What one request wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ask {
    Read,
    Write,
    Flush,
}

/// One request. `due` is when it should have been sent: latency counts from there, however long it then waits for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pub lane: usize,
    /// The worker (or the trace) whose request it is.
    pub worker: u32,
    pub due: Instant,
    pub ask: Ask,
    /// Empty of a FLUSH.
    pub span: Span,
    /// Nobody waits for it.
    pub background: bool,
}

/// A load, checked.
#[derive(Clone, Debug)]
pub struct Load {
    pub name: String,
    pub jobs: Vec<Job>,
}

#[derive(Clone, Debug)]
pub enum Job {
    Made(Made),
    Replay(Replay),
    /// Alone in its load.
    Files(files::Spec),
}

/// A trace and how it is replayed.
#[derive(Clone, Debug)]
pub struct Replay {
    pub trace: Arc<Trace>,
    /// Requests in flight of a closed loop; none: at the recorded times.
    pub depth: Option<u32>,
    /// Recorded times are divided by this.
    pub speedup: u64,
    /// Addresses beyond so many atoms, or beyond the volume, wrap around.
    pub wrap: Option<u64>,
}

/// When a job asks again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// When the answer has come.
    Closed,
    /// At fixed intervals.
    Every(Duration),
    /// At intervals with an exponential distribution of this mean.
    Exponential(Duration),
}

impl Load {
    /// Requests it makes, FLUSHes aside.
    pub fn requests(&self) -> u64 {
        self.jobs.iter().map(Job::requests).sum()
    }

    /// Requests in flight at once, if it is a closed loop: its processes.
    pub fn lanes(&self) -> u64 {
        self.jobs.iter().map(Job::lanes).sum()
    }

    /// Is there something in it that nobody waits for?
    pub fn has_background(&self) -> bool {
        self.jobs.iter().any(|job| matches!(job, Job::Made(made) if made.background))
    }

    /// Are there FLUSHes in it?
    pub fn flushes(&self) -> bool {
        self.jobs.iter().any(|job| matches!(job, Job::Made(made) if made.flush_every > 0))
    }

    /// The pauses before each of its requests, if they are drawn ahead: the load has one job then, and one request at a time.
    pub fn gaps(&self, seed: u64) -> Vec<Duration> {
        match &self.jobs[..] {
            [Job::Made(Made { gaps: Some(gaps), count, .. })] => {
                gaps.draw(*count, &mut Chance::new(seed, &format!("load {} gaps", self.name)))
            }
            _ => Vec::new(),
        }
    }

    /// Atoms of a volume that it needs.
    pub fn reach(&self) -> u64 {
        self.jobs.iter().map(Job::reach).max().unwrap_or(0)
    }
}

impl Job {
    fn requests(&self) -> u64 {
        match self {
            Job::Made(made) => made.count,
            Job::Replay(replay) => replay.trace.records.len() as u64,
            // Nobody knows.
            Job::Files(_) => 0,
        }
    }

    fn lanes(&self) -> u64 {
        match self {
            Job::Made(made) => u64::from(made.workers) * u64::from(made.depth),
            Job::Replay(replay) => u64::from(replay.depth.unwrap_or(1)),
            Job::Files(spec) => spec.workload.threads().len() as u64,
        }
    }

    fn reach(&self) -> u64 {
        match self {
            Job::Made(made) => made.start + made.span.filter(|_| !made.clip).unwrap_or(made.smallest_span()),
            Job::Replay(replay) => match replay.wrap {
                Some(_) => replay.trace.largest(),
                None => replay.trace.end,
            },
            Job::Files(spec) => spec.reach(),
        }
    }
}

/// Draws the requests of a load, each at its time. It waits for answers where the load does.
pub struct Generator {
    /// When which lane asks next; what was noted first comes first.
    next: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    noted: u64,
    lanes: Vec<Lane>,
    sources: Vec<Source>,
    /// An application, which knows lanes and times of its own.
    files: Option<Box<Files>>,
}

/// One request in flight at a time of a closed loop; of an open one, all.
#[derive(Clone, Debug)]
struct Lane {
    source: usize,
    pace: Pace,
    /// A pause after so many requests.
    pause: Option<(u64, Duration)>,
    asked: u64,
    /// Pauses that were drawn ahead, one before each request.
    gaps: VecDeque<Duration>,
}

enum Source {
    Made(Box<Worker>),
    Replay { replay: Replay, at: usize, started: Instant, volume_atoms: u64 },
}

impl Generator {
    /// The load from `now` on, on a volume of `volume_atoms`, which is at least its reach.
    pub fn new(load: &Load, seed: u64, volume_atoms: u64, now: Instant) -> Generator {
        assert!(load.reach() <= volume_atoms, "the load {} does not fit into the volume", load.name);
        let mut generator = Generator { next: BinaryHeap::new(), noted: 0, lanes: Vec::new(), sources: Vec::new(), files: None };
        for (number, job) in load.jobs.iter().enumerate() {
            match job {
                Job::Made(made) => {
                    for worker in 0..made.workers {
                        let chance = Chance::new(seed, &format!("load {} job {number} worker {worker}", load.name));
                        generator.sources.push(Source::Made(Box::new(Worker::new(made, worker, volume_atoms, chance))));
                        let lanes = if made.pace == Pace::Closed { made.depth } else { 1 };
                        generator.add_lanes(lanes, made.pace, made.pause, load.gaps(seed).into(), now);
                    }
                }
                Job::Files(spec) => generator.files = Some(Box::new(Files::new(*spec, seed, volume_atoms, now))),
                Job::Replay(replay) => {
                    generator.sources.push(Source::Replay { replay: replay.clone(), at: 0, started: now, volume_atoms });
                    generator.add_lanes(replay.depth.unwrap_or(1), Pace::Closed, None, VecDeque::new(), now);
                }
            }
        }
        generator
    }

    /// Lanes of the source added last.
    fn add_lanes(&mut self, lanes: u32, pace: Pace, pause: Option<(u64, Duration)>, gaps: VecDeque<Duration>, now: Instant) {
        let source = self.sources.len() - 1;
        for _ in 0..lanes {
            let lane = self.lanes.len();
            let mut gaps = gaps.clone();
            let drawn = gaps.pop_front();
            self.lanes.push(Lane { source, pace, pause, asked: 0, gaps });
            // A load that pauses after each request starts with a pause: every request is like the others.
            let first = pause.filter(|(burst, _)| *burst == 1).map_or(Duration::ZERO, |(_, pause)| pause);
            self.note(now + drawn.unwrap_or(first), lane);
        }
    }

    fn note(&mut self, when: Instant, lane: usize) {
        let when = match &self.sources[self.lanes[lane].source] {
            // A trace knows its own times.
            Source::Replay { replay, at, started, .. } if replay.depth.is_none() => match replay.trace.records.get(*at) {
                Some(record) => *started + Duration(record.at_ns / replay.speedup),
                None => return,
            },
            Source::Replay { .. } | Source::Made(_) => when,
        };
        self.noted += 1;
        self.next.push(Reverse((when, self.noted, lane)));
    }

    /// When the next request is due. None: after an answer, or never.
    pub fn next_time(&mut self) -> Option<Instant> {
        if let Some(files) = &self.files {
            return files.next_time();
        }
        while let Some(&Reverse((when, _, lane))) = self.next.peek() {
            if !self.sources[self.lanes[lane].source].is_done() {
                return Some(when);
            }
            self.next.pop();
        }
        None
    }

    /// The request that is due at `now`, if any is left.
    pub fn pop(&mut self, now: Instant) -> Option<Access> {
        if let Some(files) = &mut self.files {
            return files.pop(now);
        }
        if self.next_time()? > now {
            return None;
        }
        let Reverse((due, _, lane)) = self.next.pop()?;
        let (ask, span) = self.sources[self.lanes[lane].source].draw();
        let Lane { source, pace, .. } = self.lanes[lane];
        self.lanes[lane].asked += 1;
        match (&mut self.sources[source], pace) {
            (Source::Made(_), Pace::Closed) => {}
            (Source::Made(_), Pace::Every(interval)) => self.note(due + interval + self.pause_of(lane), lane),
            (Source::Made(worker), Pace::Exponential(mean)) => {
                let interval = worker.chance.exponential(mean);
                self.note(due + interval + self.pause_of(lane), lane);
            }
            (Source::Replay { replay, .. }, _) => {
                if replay.depth.is_none() {
                    self.note(due, lane);
                }
            }
        }
        let background = match &self.sources[source] {
            Source::Made(worker) => worker.background,
            Source::Replay { .. } => false,
        };
        Some(Access { lane, worker: source as u32, due, ask, span, background })
    }

    /// The answer to a request of `lane` has come.
    pub fn answered(&mut self, now: Instant, lane: usize) {
        if let Some(files) = &mut self.files {
            return files.answered(now, lane);
        }
        let waits = match &self.sources[self.lanes[lane].source] {
            Source::Made(_) => self.lanes[lane].pace == Pace::Closed,
            Source::Replay { replay, .. } => replay.depth.is_some(),
        };
        if waits {
            let drawn = self.lanes[lane].gaps.pop_front();
            let pause = drawn.unwrap_or_else(|| self.pause_of(lane));
            self.note(now + pause, lane);
        }
    }

    fn pause_of(&self, lane: usize) -> Duration {
        let Lane { pause, asked, .. } = &self.lanes[lane];
        pause.filter(|(burst, _)| asked.is_multiple_of(*burst)).map_or(Duration::ZERO, |(_, pause)| pause)
    }

    /// Nothing more will be asked.
    pub fn is_done(&self) -> bool {
        self.files.as_ref().is_none_or(|files| files.is_done()) && self.sources.iter().all(Source::is_done)
    }

    /// Operations of an application so far.
    pub fn operations(&self) -> Option<u64> {
        self.files.as_ref().map(|files| files.operations())
    }
}

impl Source {
    fn is_done(&self) -> bool {
        match self {
            Source::Made(worker) => worker.is_done(),
            Source::Replay { replay, at, .. } => *at >= replay.trace.records.len(),
        }
    }

    fn draw(&mut self) -> (Ask, Span) {
        match self {
            Source::Made(worker) => worker.draw(),
            Source::Replay { replay, at, volume_atoms, .. } => {
                let record = replay.trace.records[*at];
                *at += 1;
                let atoms = u64::from(record.atoms);
                let start = match replay.wrap.map(|span| span.min(*volume_atoms)) {
                    Some(span) => (record.start % span).min(span - atoms),
                    None => record.start,
                };
                (record.ask, Span::new(start, atoms))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::made::Pattern;
    use super::*;

    const MILLI: u64 = 1_000_000;

    fn made() -> Made {
        Made {
            pattern: Pattern::Sequential,
            background: false,
            reads: 0,
            sizes: vec![(8, 1)],
            count: 6,
            depth: 1,
            workers: 1,
            start: 0,
            span: None,
            file: None,
            clip: false,
            pool: 0,
            pace: Pace::Closed,
            pause: None,
            gaps: None,
            flush_every: 0,
        }
    }

    fn load(made: Made) -> Load {
        Load { name: "test".into(), jobs: vec![Job::Made(made)] }
    }

    /// Runs a load whose every request takes 1 ms: what was asked, and when.
    fn run(load: &Load, volume_atoms: u64) -> Vec<(u64, Ask, u64)> {
        let mut generator = Generator::new(load, 1, volume_atoms, Instant::ZERO);
        let mut flight: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
        let (mut now, mut story) = (0, Vec::new());
        loop {
            while let Some(access) = generator.pop(Instant(now)) {
                story.push((now, access.ask, access.span.start));
                assert!(access.span.end() <= volume_atoms && access.due.0 <= now);
                flight.push(Reverse((now + MILLI, access.lane)));
            }
            let ends = flight.peek().map(|Reverse((when, _))| *when);
            let Some(next) = generator.next_time().map(|when| when.0).into_iter().chain(ends).min() else { break };
            now = next;
            while let Some(&Reverse((when, lane))) = flight.peek()
                && when <= now
            {
                flight.pop();
                generator.answered(Instant(now), lane);
            }
        }
        assert!(generator.is_done());
        story
    }

    #[test]
    fn a_closed_loop_waits_for_answers_and_depth_allows_more() {
        let times = |depth| run(&load(Made { depth, ..made() }), 1000).iter().map(|(now, _, _)| now / MILLI).collect::<Vec<_>>();
        assert_eq!(times(1), [0, 1, 2, 3, 4, 5]);
        assert_eq!(times(4), [0, 0, 0, 0, 1, 1]);
    }

    #[test]
    fn sequential_goes_on_and_starts_again_at_the_end() {
        let starts: Vec<u64> = run(&load(Made { start: 16, span: Some(32), ..made() }), 1000).iter().map(|(_, _, start)| *start).collect();
        assert_eq!(starts, [16, 24, 32, 40, 16, 24]);
    }

    #[test]
    fn a_span_may_end_with_the_volume() {
        let clipped = load(Made { pattern: Pattern::Random, span: Some(1 << 40), clip: true, count: 500, ..made() });
        assert!(run(&clipped, 80).iter().any(|(_, _, start)| *start == 72), "up to its end");
        assert_eq!((clipped.reach(), load(Made { span: Some(1 << 40), ..made() }).reach()), (8, 1 << 40));
    }

    #[test]
    fn workers_have_parts_of_the_span_and_requests_of_their_own() {
        let story = run(&load(Made { workers: 2, span: Some(96), ..made() }), 1000);
        assert_eq!(story.iter().map(|(_, _, start)| *start).collect::<Vec<_>>(), [0, 48, 8, 56, 16, 64]);
    }

    #[test]
    fn files_lie_evenly_and_nobody_leaves_his_own() {
        for pattern in [Pattern::Sequential, Pattern::Random] {
            let story = run(&load(Made { pattern, workers: 4, count: 200, file: Some(24), ..made() }), 4_000);
            let mut starts: Vec<u64> = story.iter().map(|(_, _, start)| *start).collect();
            starts.sort_unstable();
            starts.dedup();
            assert_eq!(starts, (0..4).flat_map(|file| [0, 8, 16].map(|at| file * 1_000 + at)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn an_open_loop_does_not_wait() {
        let every = Pace::Every(Duration(MILLI / 4));
        let times: Vec<u64> = run(&load(Made { pace: every, ..made() }), 1000).iter().map(|(now, _, _)| now * 4 / MILLI).collect();
        assert_eq!(times, [0, 1, 2, 3, 4, 5]);
        let mean = Pace::Exponential(Duration(MILLI));
        let story = run(&load(Made { pace: mean, count: 20_000, ..made() }), 1000);
        let last = story.last().unwrap().0 / MILLI;
        assert!((19_500..20_500).contains(&last), "20,000 intervals of 1 ms took {last} ms");
    }

    #[test]
    fn bursts_and_gaps() {
        let pause = Some((2, Duration(10 * MILLI)));
        let times: Vec<u64> = run(&load(Made { pause, ..made() }), 1000).iter().map(|(now, _, _)| now / MILLI).collect();
        assert_eq!(times, [0, 1, 12, 13, 24, 25]);
        let pause = Some((1, Duration(10 * MILLI)));
        let times: Vec<u64> = run(&load(Made { pause, count: 3, ..made() }), 1000).iter().map(|(now, _, _)| now / MILLI).collect();
        assert_eq!(times, [10, 21, 32], "each access after its gap");
    }

    #[test]
    fn a_pool_is_written_in_order_and_its_neighbours_together() {
        let pool = Made { pattern: Pattern::Buffered, pool: 100, count: 250, ..made() };
        let mut generator = Generator::new(&load(pool), 1, 8_000, Instant::ZERO);
        let (mut spans, mut now) = (Vec::new(), 0);
        while let Some(access) = generator.pop(Instant(now)) {
            assert_eq!(access.ask, Ask::Write);
            spans.push(access.span);
            now += MILLI;
            generator.answered(Instant(now), access.lane);
        }
        assert!(generator.is_done());
        assert_eq!(spans.iter().map(|span| span.atoms / 8).sum::<u64>(), 250, "pages are counted");
        assert!(spans.iter().any(|span| span.atoms > 8), "a tenth is dirty: some are neighbours");
        let sweeps: Vec<&[Span]> = spans.chunk_by(|one, next| one.start < next.start).collect();
        assert_eq!(sweeps.iter().map(|sweep| sweep.iter().map(|span| span.atoms / 8).sum()).collect::<Vec<u64>>(), [100, 100, 50]);
        assert!(sweeps.iter().all(|sweep| sweep.windows(2).all(|pair| pair[0].end() < pair[1].start)), "neighbours are one request");
    }

    #[test]
    fn a_flush_comes_after_every_so_many_writes() {
        let story = run(&load(Made { flush_every: 2, ..made() }), 1000);
        use Ask::{Flush, Write};
        assert_eq!(
            story.iter().map(|(_, ask, _)| *ask).collect::<Vec<_>>(),
            [Write, Write, Flush, Write, Write, Flush, Write, Write, Flush]
        );
    }

    #[test]
    fn mixes_have_their_shares_and_random_covers_its_span() {
        let mix = Made { pattern: Pattern::Random, reads: 70, sizes: vec![(8, 3), (16, 1)], count: 20_000, ..made() };
        let story = run(&load(mix.clone()), 8_000);
        let reads = story.iter().filter(|(_, ask, _)| *ask == Ask::Read).count();
        assert!((13_700..14_300).contains(&reads), "{reads} of 20,000");
        let mut starts: Vec<u64> = story.iter().map(|(_, _, start)| *start).collect();
        starts.sort_unstable();
        starts.dedup();
        assert!(starts.len() > 990, "{} of 1,000 places", starts.len());
        assert_eq!(run(&load(mix.clone()), 8_000), story, "the same every time");
        assert_ne!(run(&Load { name: "other".into(), ..load(mix) }, 8_000), story, "another load draws other places");
    }
}

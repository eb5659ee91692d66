//! Applications over file systems: what Filebench's threads do to files becomes what a block device is asked. Small models, made to have
//! the proportions of the real ones: a page cache with write-back, and one of three ways to make a file durable ([`commit`]).
//!
//! ```text
//!   threads ── flowops ──▶ page cache ── misses ─────────────▶ reads (128 KiB at most, one after the other)
//!   (8 processors)              │ fsync, every 5 s ──▶ commit ─▶ data, log, record: the threads wait
//!                               └ every 5 s: what is old ─────▶ writes in order of address, 32 at a time
//! ```
//! Nothing here asks for a flush of the device: in 2010 ext3 did not by default, and no device-mapper target passed one on. Nor does
//! anything trim.

mod commit;
mod flowops;
pub mod layout;
mod memory;
pub mod workload;

use super::{Access, Ask};
use crate::chance::Chance;
use commit::Commit;
use layout::Layout;
use memory::Memory;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use tidegate_engine::block::Span;
use tidegate_engine::time::{Duration, Instant};
use workload::{Flowop, Shape, Workload};

/// Bytes of the layout's page, and its atoms.
const PAGE: u64 = 4_096;
const PAGE_ATOMS: u64 = 8;
/// Paper 001: 4 GB of memory, of which so much is left for pages.
const MEMORY: u64 = 3_200_000_000;
/// Linux 2.6: of memory dirty, in per cent, before it is written in the background; before whoever writes waits.
const BACKGROUND: usize = 10;
const LIMIT: usize = 20;
/// How old a dirty page becomes, and how often that is looked at.
const OLD: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_secs(5);
/// Hardware threads of a Xeon X5550.
const PROCESSORS: usize = 8;
/// What a thread does before others have their turn.
const TURN: Duration = Duration::from_millis(2);
/// The largest read and the largest write of the block layer, in pages.
const READ_PAGES: u64 = 32;
const WRITE_PAGES: u64 = 128;
/// Writes in the background, and for somebody who waits, in flight.
const BACK_DEPTH: usize = 32;
const SYNC_DEPTH: usize = 128;
/// Of all names so many files exist (Filebench: prealloc=80).
const EXISTING: u64 = 80;

/// An application over a file system, as a plan names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    pub workload: Workload,
    pub fs: layout::Kind,
    /// How long it runs; none: the files are made.
    pub time: Option<Duration>,
}

/// What a request is for.
#[derive(Clone, Copy, Debug)]
enum Purpose {
    Nothing,
    Read { thread: usize },
    Commit,
    Back { pages: usize },
}

/// What a thread waits for.
#[derive(Debug)]
struct Thread {
    program: &'static [Flowop],
    at: usize,
    file: u32,
    /// How long the file that it has made is to be.
    length: u64,
    /// What it reads before it goes on, in pages of the device.
    reading: VecDeque<(u64, u64)>,
    /// A fsync is over.
    durable: bool,
    /// It has been given what it waited for: a page to write, a piece of log.
    granted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Thread(usize),
    Look,
    End,
}

pub struct Files {
    spec: Spec,
    shape: Shape,
    /// Pages of the device in one of the page cache.
    unit: u64,
    chance: Chance,
    layout: Layout,
    memory: Memory,
    commit: Commit,
    threads: Vec<Thread>,
    /// Names that exist, and that are free; and how many bytes each file has.
    existing: Vec<u32>,
    missing: Vec<u32>,
    lengths: Vec<u64>,
    processors: [Instant; PROCESSORS],
    agenda: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    noted: u64,
    out: VecDeque<Access>,
    /// What each request in flight is for, by its lane; and lanes that are free.
    lanes: Vec<Purpose>,
    free: Vec<usize>,
    in_flight: usize,
    /// To be written in the background: pages of the device, and how many of the page cache they were.
    backlog: VecDeque<(u64, u64, usize)>,
    back_in_flight: usize,
    /// Pages of the page cache that are on their way.
    writing: usize,
    /// Metadata that is in the log, and has to go to its place.
    in_place: BTreeSet<u64>,
    looks: u64,
    /// Who waits: for fewer dirty pages; for the log's lock; for reads, to write.
    throttled: Vec<usize>,
    log_holder: Option<usize>,
    log_queue: VecDeque<usize>,
    log_bytes: u64,
    log_group: Option<u64>,
    hungry: VecDeque<usize>,
    reads: u64,
    operations: u64,
    end: Instant,
    over: bool,
}

impl Spec {
    /// Pages of the largest file: one that is half as long again as the mean, and was appended to.
    fn file_pages(&self) -> u64 {
        let shape = self.workload.shape();
        let longest = if self.workload == Workload::Oltp { shape.file_bytes } else { shape.file_bytes * 3 / 2 + shape.append_bytes / 2 };
        longest.next_multiple_of(shape.page_bytes) / PAGE
    }

    /// Atoms of a volume that it needs: twice its files, the tables of as many groups, a log of an hour.
    pub fn reach(&self) -> u64 {
        let files = u64::from(self.workload.shape().files) * self.file_pages();
        (files * 3 + 4 * layout::GROUP) * PAGE_ATOMS + (32 << 30) / 512
    }
}

impl Files {
    /// From `now` on, before a device of `volume_atoms`.
    pub fn new(spec: Spec, seed: u64, volume_atoms: u64, now: Instant) -> Files {
        let shape = spec.workload.shape();
        let mut chance = Chance::new(seed, &format!("files {:?} {:?}", spec.workload, spec.fs));
        let layout = Layout::new(spec.fs, shape.files, spec.file_pages(), shape.directory, volume_atoms / PAGE_ATOMS);
        let is_database = spec.workload == Workload::Oltp;
        // Between half and one and a half of the mean.
        let mut length = |_| if is_database { shape.file_bytes } else { chance.between(shape.file_bytes / 2, shape.file_bytes * 3 / 2) };
        let lengths = (0..shape.files).map(&mut length).collect();
        let exists = |file: &u32| is_database || spec.workload == Workload::Webserver || u64::from(file % 100) < EXISTING;
        let (existing, missing) = (0..shape.files).partition(exists);
        let mut files = Files {
            unit: shape.page_bytes / PAGE,
            memory: Memory::new((MEMORY / shape.page_bytes) as usize),
            commit: Commit::default(),
            threads: Vec::new(),
            existing,
            missing,
            lengths,
            processors: [now; PROCESSORS],
            agenda: BinaryHeap::new(),
            noted: 0,
            out: VecDeque::new(),
            lanes: Vec::new(),
            free: Vec::new(),
            in_flight: 0,
            backlog: VecDeque::new(),
            back_in_flight: 0,
            writing: 0,
            in_place: BTreeSet::new(),
            looks: 0,
            throttled: Vec::new(),
            log_holder: None,
            log_queue: VecDeque::new(),
            log_bytes: 0,
            log_group: None,
            hungry: VecDeque::new(),
            reads: 0,
            operations: 0,
            end: now,
            over: false,
            spec,
            shape,
            chance,
            layout,
        };
        match spec.time {
            Some(time) => files.begin(now, time),
            None => files.make(now),
        }
        files
    }

    /// All files are written, as they lie: what their making leaves on the device.
    fn make(&mut self, now: Instant) {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        let mut files = self.existing.clone();
        files.sort_unstable_by_key(|&file| self.layout.page(file, 0));
        for file in files {
            let (first, pages) = (self.layout.page(file, 0), self.units(file) * self.unit);
            runs.extend(cut(first, pages, WRITE_PAGES));
        }
        self.backlog = runs.into_iter().map(|(first, pages)| (first, pages, 0)).collect();
        self.over = true;
        self.write_back(now);
    }

    /// The threads start. What was made last is in memory still.
    fn begin(&mut self, now: Instant, time: Duration) {
        for file in self.existing.clone() {
            (0..self.units(file)).for_each(|unit| self.memory.keep(file, unit));
        }
        self.end = now + time;
        for (number, program) in self.spec.workload.threads().into_iter().enumerate() {
            let at = self.chance.below(program.len() as u64) as usize;
            // Nobody begins in the middle of a file that it has not got.
            let at = if program.len() > 1 {
                program[..at].iter().rposition(|op| matches!(op, Flowop::Delete | Flowop::Pick)).unwrap_or(0)
            } else {
                0
            };
            self.threads.push(Thread { program, at, file: 0, length: 0, reading: VecDeque::new(), durable: false, granted: false });
            self.note(now + Duration::from_micros(number as u64 * 50), Event::Thread(number));
        }
        self.note(now + LOOK, Event::Look);
        self.note(self.end, Event::End);
    }

    // --- what the rig asks ---

    pub fn next_time(&self) -> Option<Instant> {
        match self.out.front() {
            Some(access) => Some(access.due),
            None => self.agenda.peek().filter(|_| !self.over).map(|Reverse((when, _, _))| *when),
        }
    }

    pub fn pop(&mut self, now: Instant) -> Option<Access> {
        while !self.over
            && let Some(&Reverse((when, _, event))) = self.agenda.peek()
            && when <= now
        {
            self.agenda.pop();
            match event {
                Event::Thread(thread) => self.run(when, thread),
                Event::Look => self.look(when),
                Event::End => self.over = true,
            }
        }
        self.out.pop_front()
    }

    pub fn answered(&mut self, now: Instant, lane: usize) {
        let purpose = std::mem::replace(&mut self.lanes[lane], Purpose::Nothing);
        self.free.push(lane);
        self.in_flight -= 1;
        match purpose {
            Purpose::Nothing => unreachable!("a request ends once"),
            Purpose::Read { thread } => self.go_on_reading(now, thread),
            Purpose::Commit => self.commit_written(now),
            Purpose::Back { pages } => {
                self.back_in_flight -= 1;
                self.writing -= pages;
                self.write_back(now);
                self.unthrottle(now);
            }
        }
    }

    /// Its time is over, and everything was answered.
    pub fn is_done(&self) -> bool {
        self.over && self.in_flight == 0 && self.out.is_empty() && (self.spec.time.is_some() || self.backlog.is_empty())
    }

    /// Operations on files so far.
    pub fn operations(&self) -> u64 {
        self.operations
    }

    // --- requests ---

    fn note(&mut self, when: Instant, event: Event) {
        self.noted += 1;
        self.agenda.push(Reverse((when, self.noted, event)));
    }

    fn ask(&mut self, now: Instant, ask: Ask, first: u64, pages: u64, purpose: Purpose) {
        let lane = self.free.pop().unwrap_or(self.lanes.len());
        if lane == self.lanes.len() {
            self.lanes.push(purpose);
        } else {
            self.lanes[lane] = purpose;
        }
        self.in_flight += 1;
        self.out.push_back(Access {
            lane,
            worker: 0,
            due: now,
            ask,
            span: Span::new(first * PAGE_ATOMS, pages * PAGE_ATOMS),
            background: false,
        });
    }

    /// Pages of the page cache as runs on the device, in order of address.
    fn runs(&self, pages: &[(u32, u64)]) -> Vec<(u64, u64)> {
        let mut places: Vec<u64> = pages.iter().map(|&(file, page)| self.layout.page(file, page * self.unit)).collect();
        places.sort_unstable();
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for place in places {
            match runs.last_mut() {
                Some((first, pages)) if *first + *pages == place && *pages + self.unit <= WRITE_PAGES => *pages += self.unit,
                _ => runs.push((place, self.unit)),
            }
        }
        runs
    }

    // --- write-back ---

    fn look(&mut self, now: Instant) {
        self.looks += 1;
        self.note(now + LOOK, Event::Look);
        if self.spec.fs != layout::Kind::Nilfs {
            let old = Instant(now.0.saturating_sub(OLD.0));
            let pages = self.memory.take_old(old, usize::MAX);
            self.send_back(pages);
            if self.looks.is_multiple_of(OLD.0 / LOOK.0) {
                let places: Vec<u64> = std::mem::take(&mut self.in_place).into_iter().collect();
                self.backlog.extend(places.into_iter().map(|place| (place, 1, 0)));
            }
            self.relieve(now);
        }
        self.begin_commit(now, true);
        self.write_back(now);
    }

    /// Too much is dirty: some of it goes, whatever its age.
    fn relieve(&mut self, now: Instant) {
        let background = (MEMORY / self.shape.page_bytes) as usize * BACKGROUND / 100;
        if self.memory.dirty() > background && self.backlog.len() < BACK_DEPTH {
            let pages = self.memory.take_old(now, background / 8);
            self.send_back(pages);
            self.write_back(now);
        }
    }

    fn send_back(&mut self, pages: Vec<(u32, u64)>) {
        self.writing += pages.len();
        let unit = self.unit;
        let runs = self.runs(&pages);
        self.backlog.extend(runs.into_iter().map(|(first, pages)| (first, pages, (pages / unit) as usize)));
    }

    fn write_back(&mut self, now: Instant) {
        while self.back_in_flight < BACK_DEPTH
            && let Some((first, pages, cached)) = self.backlog.pop_front()
        {
            self.back_in_flight += 1;
            self.ask(now, Ask::Write, first, pages, Purpose::Back { pages: cached });
        }
    }

    fn is_throttled(&self) -> bool {
        self.memory.dirty() + self.writing > (MEMORY / self.shape.page_bytes) as usize * LIMIT / 100
    }

    fn unthrottle(&mut self, now: Instant) {
        if self.is_throttled() {
            return self.relieve(now);
        }
        for thread in std::mem::take(&mut self.throttled) {
            self.note(now, Event::Thread(thread));
        }
    }
}

/// A run in pieces.
fn cut(first: u64, pages: u64, most: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..pages).step_by(most as usize).map(move |at| (first + at, most.min(pages - at)))
}

#[cfg(test)]
mod tests;

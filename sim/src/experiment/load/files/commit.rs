//! How what was written becomes durable, for whoever waits for it; one commit at a time, for all who have come until it begins.
//!
//! ```text
//!   ext3, data=ordered   all data of the transaction → journal: changed metadata → a record
//!   XFS                  the data of the files that are waited for → log: an eighth as much
//!   NILFS                all that is dirty and its metadata, one after the other, wherever the head of the log is
//! ```
//! ext3 and NILFS commit every five seconds; XFS writes data when it is old, and logs when somebody asks.

use super::layout::Kind;
use super::{Ask, Event, Files, Purpose, SYNC_DEPTH, WRITE_PAGES, cut};
use std::collections::{BTreeSet, VecDeque};
use tidegate_engine::time::Instant;

/// Changed pieces of metadata in a page of XFS's log.
const PIECES: u64 = 8;

#[derive(Default)]
pub struct Commit {
    /// Of the open transaction: metadata that has changed, and data.
    metadata: BTreeSet<u64>,
    data: BTreeSet<(u32, u64)>,
    waiting: Vec<usize>,
    running: Option<Running>,
}

struct Running {
    threads: Vec<usize>,
    phase: Phase,
    /// To be written in this phase, and being written.
    pending: VecDeque<(u64, u64)>,
    in_flight: usize,
    /// Pages of the log.
    log: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Data,
    Log,
    Record,
}

impl Commit {
    pub fn changed(&mut self, metadata: Vec<u64>) {
        self.metadata.extend(metadata);
    }

    pub fn wrote(&mut self, file: u32, unit: u64) {
        self.data.insert((file, unit));
    }

    pub fn wait(&mut self, thread: usize) {
        self.waiting.push(thread);
    }
}

impl Files {
    /// Begins a commit, if none runs and somebody waits for one, or it is time.
    pub(super) fn begin_commit(&mut self, now: Instant, is_time: bool) {
        let kind = self.layout.kind();
        let has_something = !self.commit.metadata.is_empty() || !self.commit.data.is_empty();
        let is_due = !self.commit.waiting.is_empty() || is_time && has_something && kind != Kind::Xfs;
        if self.commit.running.is_some() || !is_due {
            return;
        }
        let threads = std::mem::take(&mut self.commit.waiting);
        let metadata = std::mem::take(&mut self.commit.metadata);
        let changed = metadata.len() as u64;
        let (pending, log) = match kind {
            Kind::Ext3 => {
                let files: BTreeSet<u32> = std::mem::take(&mut self.commit.data).into_iter().map(|(file, _)| file).collect();
                let data: Vec<(u32, u64)> = files.into_iter().flat_map(|file| self.memory.take_file(file)).collect();
                (self.runs(&data).into(), changed + 1)
            }
            Kind::Xfs => {
                self.commit.data.clear();
                let files: BTreeSet<u32> = threads.iter().map(|&thread| self.threads[thread].file).collect();
                let data: Vec<(u32, u64)> = files.into_iter().flat_map(|file| self.memory.take_file(file)).collect();
                (self.runs(&data).into(), changed.div_ceil(PIECES).max(1))
            }
            Kind::Nilfs => {
                self.commit.data.clear();
                (self.append_all(changed), 0)
            }
        };
        if kind != Kind::Nilfs {
            self.in_place.extend(metadata);
        }
        self.commit.running = Some(Running { threads, phase: Phase::Data, pending, in_flight: 0, log });
        self.go_on_committing(now);
    }

    /// Everything dirty gets a new place at the head of the log, and so does what says where it is.
    fn append_all(&mut self, changed: u64) -> VecDeque<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        let mut add = |first: u64, pages: u64| match runs.last_mut() {
            Some((start, length)) if *start + *length == first => *length += pages,
            _ => runs.push((first, pages)),
        };
        for (file, unit) in self.memory.take_all() {
            let place = self.layout.log(self.unit);
            self.layout.moves(file, unit * self.unit, place);
            add(place, self.unit);
        }
        // The summary of the segment, and a super root.
        for _ in 0..changed + 2 {
            add(self.layout.log(1), 1);
        }
        runs.into_iter().flat_map(|(first, pages)| cut(first, pages, WRITE_PAGES)).collect()
    }

    pub(super) fn commit_written(&mut self, now: Instant) {
        self.commit.running.as_mut().expect("a commit runs").in_flight -= 1;
        self.go_on_committing(now);
    }

    fn go_on_committing(&mut self, now: Instant) {
        loop {
            while let Some(running) = self.commit.running.as_mut().filter(|running| running.in_flight < SYNC_DEPTH)
                && let Some((first, pages)) = running.pending.pop_front()
            {
                running.in_flight += 1;
                self.ask(now, Ask::Write, first, pages, Purpose::Commit);
            }
            let running = self.commit.running.as_mut().expect("a commit runs");
            if running.in_flight > 0 {
                return;
            }
            let kind = self.layout.kind();
            match (running.phase, kind) {
                (Phase::Data, Kind::Ext3 | Kind::Xfs) => {
                    running.phase = Phase::Log;
                    let log = running.log;
                    let pieces: Vec<u64> = cut(0, log, WRITE_PAGES).map(|(_, pages)| pages).collect();
                    let places: Vec<(u64, u64)> = pieces.into_iter().map(|pages| (self.layout.log(pages), pages)).collect();
                    self.commit.running.as_mut().expect("a commit runs").pending.extend(places);
                }
                (Phase::Log, Kind::Ext3) => {
                    running.phase = Phase::Record;
                    let place = self.layout.log(1);
                    self.commit.running.as_mut().expect("a commit runs").pending.push_back((place, 1));
                }
                (Phase::Data, Kind::Nilfs) | (Phase::Log, Kind::Xfs | Kind::Nilfs) | (Phase::Record, _) => return self.end_commit(now),
            }
        }
    }

    fn end_commit(&mut self, now: Instant) {
        let running = self.commit.running.take().expect("a commit runs");
        for thread in running.threads {
            self.threads[thread].durable = true;
            self.note(now, Event::Thread(thread));
        }
        self.unthrottle(now);
        self.begin_commit(now, false);
    }
}

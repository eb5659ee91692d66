//! A hard disk: one arm over a platter that never stops turning, a write buffer, a command queue, and a motor that may stand still
//! (Ruemmler and Wilkes, *An introduction to disk drive modeling*, IEEE Computer 27(3), 1994, reduced).
//!
//! ```text
//!   waiting ─ queue of the drive ─┬─ read ──▶ arm: seek, rotation, transfer ──▶ end        (or from the buffer, or read ahead)
//!   (FIFO)    (31; FLUSH alone)   └─ write ─▶ link ─▶ buffer ──▶ end … ──▶ arm, when no read wants it
//! ```
//! * Reads go before the buffer, the one that is reached first before others, those of a stream in their order. While a write waits for room, every fifth turn is the buffer's.
//! * The buffer is written in the order of reach among its oldest entries.
//! * After a read the head reads on into memory until the arm is needed elsewhere.
//! * FLUSH waits for everything before it, holds back everything after it, and ends when the buffer is empty. So does the word to stop, which
//!   ends when the disk stands still.

mod buffer;
mod platter;
mod power;

pub use power::Power;

use super::energy::{Account, Meter};
use super::{Cause, Command, Counters, PowerState, What, transfer_time};
use buffer::Buffer;
use platter::Platter;
use power::Spin;
use std::collections::VecDeque;
use tidegate_engine::block::{ATOM_BYTES, Span};
use tidegate_engine::op::Spin as word;
use tidegate_engine::time::{Duration, Instant};

/// What the arm writes at once, so that a read need not wait for a whole buffer.
const PIECE_ATOMS: u64 = 512 * 1024 / ATOM_BYTES;
/// Reads that may pass the buffer while a write waits for room.
const READS_IN_ROW: u32 = 4;

/// The figures of an HDD, as a device file gives them (`sim/devices`).
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HddSpec {
    #[serde(rename = "kind")]
    _kind: String,
    /// Megabytes of 10⁶ bytes.
    pub capacity_mb: u64,
    pub mechanics: Mechanics,
    pub buffer: BufferSpec,
    pub queue: QueueSpec,
    pub power: Power,
}

/// The disk and its arm.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mechanics {
    pub rpm: u64,
    /// The outermost and the innermost track; equal, or one zone: no zones.
    pub track_kib: u64,
    pub inner_track_kib: u64,
    pub zones: u64,
    /// seek(d) = min + (full − min)·√(d / all tracks); 0 on the same track.
    pub seek_min_us: u64,
    pub seek_full_us: u64,
    /// More before a write.
    pub write_settle_us: u64,
    /// From a command to the first movement of the arm.
    pub read_overhead_us: u64,
    /// To take a write into the buffer, besides its bytes.
    pub write_overhead_us: u64,
    pub link_mb_s: u64,
    /// How far the head reads on after a read.
    pub read_ahead_kib: u64,
    /// Does it go on reading while nothing is asked of it? If not, a gap between two sequential requests is not made up for.
    pub read_ahead_in_gaps: bool,
}

/// The write buffer.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BufferSpec {
    pub kib: u64,
    pub entries: usize,
    /// Among so many of the oldest entries the nearest is written first.
    pub window: usize,
}

/// The command queue.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueSpec {
    pub depth: usize,
}

/// A read in the drive's queue.
#[derive(Clone, Copy, Debug)]
struct Read {
    command: Command,
    /// When the firmware has understood it.
    ready: Instant,
}

/// What the arm is doing.
#[derive(Clone, Copy, Debug)]
struct Job {
    /// None: it empties the buffer.
    read: Option<u64>,
    span: Span,
    cause: Cause,
    /// The arm has arrived; the end of the transfer.
    arrives: Instant,
    end: Instant,
}

/// What the head reads on after a read: from `next` on, up to `read` at `at`; it runs, or has stopped there because memory was full.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    next: u64,
    read: u64,
    at: Instant,
}

#[derive(Clone, Debug)]
pub struct Hdd {
    spec: HddSpec,
    atoms: u64,
    platter: Platter,
    /// Not yet given to the drive: it is full, or a flush is about.
    waiting: VecDeque<Command>,
    reads: Vec<Read>,
    /// Writes that want to come into the buffer, in order; the first is on the link if `accepting` says when it ends.
    writes: VecDeque<Command>,
    accepting: Option<Instant>,
    /// And when the firmware has understood it.
    flush: Option<(Command, Instant)>,
    /// Reads answered from memory: when, in which order.
    hits: Vec<(Instant, Command)>,
    buffer: Buffer,
    job: Option<Job>,
    /// Reads since the buffer last had its turn.
    reads_in_row: u32,
    /// The track under the head.
    track: u64,
    ahead: Option<Ahead>,
    spin: Spin,
    /// The word to stop, once everything before it has ended.
    stop: Option<Command>,
    /// Asked to spin down when there is nothing to do.
    tired: bool,
    meter: Meter,
    counters: Counters,
}

impl Hdd {
    pub fn new(spec: HddSpec) -> Self {
        let atoms = spec.capacity_mb * 1_000_000 / ATOM_BYTES;
        Hdd {
            atoms,
            platter: Platter::new(atoms, &spec.mechanics),
            waiting: VecDeque::new(),
            reads: Vec::new(),
            writes: VecDeque::new(),
            accepting: None,
            flush: None,
            hits: Vec::new(),
            buffer: Buffer::default(),
            job: None,
            reads_in_row: 0,
            track: 0,
            ahead: None,
            spin: Spin::Ready,
            stop: None,
            tired: false,
            meter: Meter::new(spec.power.idle_mw * 1_000),
            counters: Counters::default(),
            spec,
        }
    }

    pub fn submit(&mut self, now: Instant, command: Command) {
        self.counters.count(&command);
        if command.what == What::Spin(word::Look) {
            // Asked and answered, whatever it does.
            self.hits.push((now, command));
            return;
        }
        self.tired = false;
        self.waiting.push_back(command);
        self.go_on(now);
    }

    pub fn next(&self) -> Option<Instant> {
        let hit = self.hits.iter().map(|(end, _)| *end).min();
        let ready = if self.job.is_none() { self.reads.iter().map(|read| read.ready).min() } else { None };
        let flush = self.flush.filter(|_| self.buffer.is_empty() && self.job.is_none()).map(|(_, ready)| ready);
        [self.spin.until(), self.accepting, self.job.map(|job| job.end), hit, ready, flush].into_iter().flatten().min()
    }

    pub fn advance(&mut self, now: Instant, ended: &mut Vec<u64>) {
        while let Some(when) = self.next().filter(|when| *when <= now) {
            self.happen(when, ended);
            self.go_on(when);
        }
    }

    /// What ends at `now`.
    fn happen(&mut self, now: Instant, ended: &mut Vec<u64>) {
        self.spin.pass(now);
        if self.spin == Spin::Standby {
            ended.extend(self.stop.take().map(|stop| stop.id));
        }
        if self.accepting.take_if(|end| *end <= now).is_some() {
            let command = self.writes.pop_front().expect("it is on the link");
            self.buffer.put(Span::new(command.start, command.atoms), command.cause);
            ended.push(command.id);
        }
        if let Some(job) = self.job.take_if(|job| job.end <= now) {
            self.post_arrival(&job, now);
            ended.extend(job.read);
            self.counters.drained += u64::from(job.read.is_none());
        }
        self.hits.retain(|(end, command)| {
            let is_over = *end <= now;
            ended.extend(is_over.then_some(command.id));
            !is_over
        });
        if self.buffer.is_empty() && self.job.is_none() {
            ended.extend(self.flush.take_if(|(_, ready)| *ready <= now).map(|(flush, _)| flush.id));
        }
    }

    /// Starts whatever can start at `now`.
    fn go_on(&mut self, now: Instant) {
        if self.spin == Spin::Standby && !self.waiting.is_empty() {
            self.wake(now, self.waiting[0].cause);
        }
        if self.spin == Spin::Ready {
            self.admit(now);
            self.accept(now);
            self.move_arm(now);
            let is_still = self.in_flight() == 0 && self.buffer.is_empty() && self.job.is_none();
            if is_still && (self.stop.is_some() || self.tired && self.waiting.is_empty()) {
                self.tired = false;
                self.ahead = None;
                self.spin = Spin::Down(now + Duration::from_millis(self.spec.power.spin_down_ms));
            }
        }
        self.measure(now);
    }

    fn in_flight(&self) -> usize {
        let arm = usize::from(self.job.is_some_and(|job| job.read.is_some()));
        self.reads.len() + self.writes.len() + self.hits.len() + arm + usize::from(self.flush.is_some())
    }

    /// Takes what waits into the drive's queue, in order.
    fn admit(&mut self, now: Instant) {
        while let Some(command) = self.waiting.front().copied() {
            let busy = self.in_flight();
            let room = match command.what {
                What::Flush | What::Spin(_) => busy == 0,
                What::Read | What::Write | What::Discard => busy < self.spec.queue.depth,
            };
            if !room || self.flush.is_some() || self.stop.is_some() {
                return;
            }
            self.waiting.pop_front();
            match command.what {
                What::Read => self.admit_read(now, command),
                // A disk has no trim: the host writes zeros, which it says once.
                What::Write | What::Discard => self.writes.push_back(command),
                What::Spin(word::Stop) => self.stop = Some(command),
                // It is ready.
                What::Spin(word::Wake | word::Look) => self.hits.push((now, command)),
                What::Flush => self.flush = Some((command, now + Duration::from_micros(self.spec.mechanics.write_overhead_us))),
            }
        }
    }

    fn admit_read(&mut self, now: Instant, command: Command) {
        let span = Span::new(command.start, command.atoms);
        let ready = now + Duration::from_micros(self.spec.mechanics.read_overhead_us);
        let draining = self.job.is_some_and(|job| job.read.is_none() && job.span.contains(span));
        if self.buffer.covers(span) || draining {
            self.hits.push((ready + self.link(command.atoms), command));
        } else {
            self.reads.push(Read { command, ready });
        }
    }

    fn link(&self, atoms: u64) -> Duration {
        transfer_time(atoms * ATOM_BYTES, self.spec.mechanics.link_mb_s)
    }

    /// Starts to take the first write into the buffer, if there is room: for its bytes, and for one more entry if it is one. One that is
    /// larger than the buffer comes into an empty one.
    fn accept(&mut self, now: Instant) {
        let (None, Some(command)) = (self.accepting, self.writes.front()) else { return };
        let span = Span::new(command.start, command.atoms);
        let draining = self.job.filter(|job| job.read.is_none()).map_or(0, |job| job.span.atoms);
        let held = self.buffer.atoms + draining;
        let bytes_fit = (held + command.atoms) * ATOM_BYTES <= self.spec.buffer.kib * 1024 || held == 0;
        let entries = self.buffer.entries() + usize::from(draining > 0);
        if bytes_fit && (entries < self.spec.buffer.entries || self.buffer.joins(span)) {
            let data = if command.what == What::Discard { Duration::ZERO } else { self.link(command.atoms) };
            self.accepting = Some(now + Duration::from_micros(self.spec.mechanics.write_overhead_us) + data);
            if self.ahead.is_some_and(|ahead| span.start < ahead.next + self.ahead_atoms() && ahead.next < span.end()) {
                self.ahead = None;
            }
        }
    }

    fn ahead_atoms(&self) -> u64 {
        self.spec.mechanics.read_ahead_kib * 1024 / ATOM_BYTES
    }

    /// Gives the arm something to do, if it is free.
    fn move_arm(&mut self, now: Instant) {
        if self.job.is_some() {
            return;
        }
        let stuck = self.accepting.is_none() && !self.writes.is_empty();
        let drain = !self.buffer.is_empty() && stuck && self.reads_in_row >= READS_IN_ROW;
        // A read that continues one that waits comes behind it: taken out of its order, a stream would lose a rotation.
        let is_ready = |read: &&Read| read.ready <= now;
        let ends = |atom: u64| self.reads.iter().filter(is_ready).any(|read| read.command.start + read.command.atoms == atom);
        let ready = (0..self.reads.len()).filter(|&index| is_ready(&&self.reads[index]) && !ends(self.reads[index].command.start));
        let nearest = ready.min_by_key(|&index| (self.reach(now, &self.reads[index].command), index));
        match nearest {
            Some(index) if !drain => {
                self.reads_in_row += 1;
                let command = self.reads.remove(index).command;
                self.read(now, command);
            }
            Some(_) | None if !self.buffer.is_empty() => {
                self.reads_in_row = 0;
                self.drain(now);
            }
            Some(_) | None => {}
        }
    }

    /// How soon a read could begin to transfer.
    fn reach(&self, now: Instant, command: &Command) -> Duration {
        match self.ahead {
            Some(ahead) if ahead.next == command.start => Duration::ZERO,
            _ => self.position(now, command.start, false).1.since(now),
        }
    }

    /// When the arm arrives at `atom`, and when the atom does, if it leaves now.
    fn position(&self, now: Instant, atom: u64, writes: bool) -> (Instant, Instant) {
        let place = self.platter.place(atom);
        let arrives = now + self.platter.seek(self.track, place.track, writes);
        (arrives, arrives + self.platter.wait(arrives, place))
    }

    fn read(&mut self, now: Instant, command: Command) {
        let span = Span::new(command.start, command.atoms);
        let (mut arrives, end, mut read_to, mut at);
        match self.ahead.filter(|ahead| ahead.next == span.start) {
            Some(ahead) => {
                let at_rest = !self.spec.mechanics.read_ahead_in_gaps;
                let ahead = if at_rest { Ahead { at: ahead.at.max(now), ..ahead } } else { ahead };
                let limit = ahead.next + self.ahead_atoms();
                let in_memory = (ahead.read + self.platter.passed(ahead.read, now.since(ahead.at))).min(limit);
                let stopped = in_memory == limit && limit > ahead.read;
                let link = now + self.link(span.atoms);
                (arrives, read_to, at) = (now, in_memory, now);
                if in_memory >= span.end() {
                    end = link;
                } else if stopped {
                    let (arm, begins) = self.position(now, in_memory, false);
                    (arrives, read_to) = (arm, span.end());
                    end = begins + self.platter.transfer(in_memory, span.end() - in_memory);
                    at = end;
                } else {
                    // It is already reading there.
                    let passes = ahead.at + self.platter.transfer(ahead.read, span.end() - ahead.read);
                    (end, read_to, at) = (passes.max(link), span.end(), passes);
                }
            }
            None => {
                let (arm, begins) = self.position(now, span.start, false);
                end = begins + self.platter.transfer(span.start, span.atoms);
                (arrives, read_to, at) = (arm, span.end(), end);
            }
        }
        self.begin(now, Job { read: Some(command.id), span, cause: command.cause, arrives, end });
        self.ahead = (self.ahead_atoms() > 0).then_some(Ahead { next: span.end(), read: read_to, at });
    }

    fn drain(&mut self, now: Instant) {
        let window = self.buffer.oldest(self.spec.buffer.window);
        let reach = |start: u64| self.position(now, start, true).1;
        let start = window.min_by_key(|&start| reach(start)).expect("the buffer is not empty");
        let (arrives, begins) = self.position(now, start, true);
        let (span, cause) = self.buffer.take(start, PIECE_ATOMS);
        let end = begins + self.platter.transfer(start, span.atoms);
        self.begin(now, Job { read: None, span, cause, arrives, end });
        self.ahead = None;
    }

    fn begin(&mut self, now: Instant, job: Job) {
        self.counters.seeks += u64::from(job.arrives > now);
        // What runs on continues on the next track at no cost: the head counts as being there.
        self.track = self.platter.place(job.span.end().min(self.atoms - 1)).track;
        self.job = Some(job);
    }

    /// The power goes and comes back: the buffer is lost, and the drive is ready.
    pub fn power_cut(&mut self, now: Instant) {
        self.settle_meter(now);
        let fresh = Hdd::new(self.spec.clone());
        let (meter, counters) = (self.meter.clone(), self.counters.clone());
        *self = Hdd { meter, counters, track: self.track, ..fresh };
        self.measure(now);
    }

    pub fn counters(&self) -> Counters {
        self.counters.clone()
    }
}

//! The back end of an SSD: dies that do one thing at a time, and channels that carry one page at a time.
//!
//! ```text
//!   read:     [array tR]─▶[channel]─▶ controller          program:  controller ─▶[channel]─▶[array tPROG]        erase: [array tBERS]
//! ```
//! A die takes reads first; then, if its free blocks are few, it cleans and programs in turn. A log-block FTL is one die that does
//! everything, as long as all its ways together need.

use super::super::Cause;
use super::page::Step;
use super::{Event, Ftl, Ssd};
use std::collections::VecDeque;
use tidegate_engine::time::{Duration, Instant};

/// A part of a read: what one die gives in one go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub command: u64,
    pub bytes: u64,
    /// Of a log-block FTL: what all ways together need.
    pub time: Option<Duration>,
    pub cause: Cause,
}

/// Pages on their way from the buffer to flash.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    pub number: u64,
    pub pages: Vec<u32>,
    pub cause: Cause,
}

#[derive(Clone, Debug)]
enum Task {
    Read(Piece),
    Program(Unit),
    Clean { writes: bool },
}

#[derive(Clone, Debug, Default)]
pub(super) struct Die {
    reads: VecDeque<Piece>,
    units: VecDeque<Unit>,
    task: Option<Task>,
    /// The host was last.
    turn: bool,
}

impl Ssd {
    pub(super) fn queue_read(&mut self, now: Instant, die: usize, piece: Piece) {
        self.dies[die].reads.push_back(piece);
        self.work(now, die);
    }

    pub(super) fn queue_unit(&mut self, now: Instant, die: usize, unit: Unit) {
        self.dies[die].units.push_back(unit);
        self.work(now, die);
    }

    fn channel(&mut self, now: Instant, die: usize, bytes: u64) -> Instant {
        let channel = die % self.channels.len();
        let end = now.max(self.channels[channel]) + super::transfer_time(bytes, self.flash().channel_mb_s);
        self.channels[channel] = end;
        end
    }

    /// Gives a die something to do, if it has nothing.
    fn work(&mut self, now: Instant, die: usize) {
        if self.dies[die].task.is_some() {
            return;
        }
        if let Some(piece) = self.dies[die].reads.pop_front() {
            let array = piece.time.unwrap_or(Duration::from_micros(self.flash().read_us));
            self.activity.reads[piece.cause as usize] += 1;
            self.dies[die].task = Some(Task::Read(piece));
            self.note(now + array, Event::Array(die));
            return;
        }
        let (low, urgent) = match &self.ftl {
            Ftl::Page(map) => (map.is_low(die), map.is_urgent(die)),
            Ftl::Service | Ftl::Log(..) => (false, false),
        };
        let host_waits = !self.dies[die].units.is_empty();
        let cleans_first = urgent || (low && (self.dies[die].turn || !host_waits));
        let done = (cleans_first && self.clean(now, die)) || (host_waits && self.program(now, die)) || (host_waits && self.clean(now, die));
        assert!(done || !host_waits, "a unit waits on a die that cannot win space");
    }

    /// A step of cleaning. False: there is nothing to clean.
    fn clean(&mut self, now: Instant, die: usize) -> bool {
        let Ftl::Page(map) = &mut self.ftl else { return false };
        let Some(step) = map.clean(die) else { return false };
        let flash = self.flash();
        let (read, program, erase) = (flash.read_us, flash.program_us, flash.erase_us);
        let (end, writes) = match step {
            Step::Read { pages } => (self.channel(now + Duration::from_micros(read), die, pages * super::PAGE_BYTES), false),
            Step::Program { pages } => {
                self.counters.bytes_programmed += pages * super::PAGE_BYTES;
                self.counters.bytes_moved += pages * super::PAGE_BYTES;
                (self.channel(now, die, pages * super::PAGE_BYTES) + Duration::from_micros(program), true)
            }
            Step::Erase => {
                self.counters.erases += 1;
                (now + Duration::from_micros(erase), true)
            }
        };
        self.activity.count(writes, Cause::Cleaning);
        self.dies[die].turn = false;
        self.dies[die].task = Some(Task::Clean { writes });
        self.note(end, Event::Die(die));
        true
    }

    /// Programs the next unit. False: there is no room for it before something is cleaned.
    fn program(&mut self, now: Instant, die: usize) -> bool {
        let unit = self.dies[die].units.pop_front().expect("a unit waits");
        let bytes = unit.pages.len() as u64 * super::PAGE_BYTES;
        let end = match &mut self.ftl {
            Ftl::Service => unreachable!("a service model has no flash"),
            Ftl::Page(map) => {
                if !map.place(die, &unit.pages) {
                    self.dies[die].units.push_front(unit);
                    return false;
                }
                let program = Duration::from_micros(self.flash().program_us);
                self.channel(now, die, bytes) + program
            }
            Ftl::Log(..) => now + self.log_write(&unit),
        };
        self.counters.bytes_programmed += bytes;
        self.activity.count(true, unit.cause);
        self.dies[die].turn = true;
        self.dies[die].task = Some(Task::Program(unit));
        self.note(end, Event::Die(die));
        true
    }

    /// How long a log-block FTL takes to write a unit: its pages, spread over all ways, and the merges they cause.
    fn log_write(&mut self, unit: &Unit) -> Duration {
        let flash = self.flash().clone();
        let ways = flash.channels * flash.dies;
        let transfer = super::transfer_time(super::PAGE_BYTES, flash.channel_mb_s).0;
        let Ftl::Log(map) = &mut self.ftl else { unreachable!("only a log-block FTL merges") };
        let mut time = 0;
        for &page in &unit.pages {
            let merges = map.write(page);
            time += (flash.program_us * 1_000 + transfer) / ways;
            time += merges.copied_pages * ((flash.read_us + flash.program_us) * 1_000 + 2 * transfer) / ways;
            time += merges.erases * flash.erase_us * 1_000;
            self.counters.bytes_programmed += merges.copied_pages * super::PAGE_BYTES;
            self.counters.bytes_moved += merges.copied_pages * super::PAGE_BYTES;
            self.counters.erases += merges.erases;
            self.counters.full_merges += merges.full;
            self.counters.switch_merges += merges.switches;
        }
        Duration(time)
    }

    /// The array of a die has given a page: it goes over the channel.
    pub(super) fn array_done(&mut self, now: Instant, die: usize) {
        let Some(Task::Read(piece)) = &self.dies[die].task else { unreachable!("a read is under way") };
        // All ways together: the time was that of the channels too.
        let end = if piece.time.is_some() { now } else { self.channel(now, die, piece.bytes) };
        self.note(end, Event::Die(die));
    }

    /// A die has ended what it was doing.
    pub(super) fn die_done(&mut self, now: Instant, die: usize) {
        match self.dies[die].task.take().expect("it was busy") {
            Task::Read(piece) => {
                self.activity.reads[piece.cause as usize] -= 1;
                self.send(now, piece.command, piece.bytes);
            }
            Task::Program(unit) => {
                self.activity.writes[unit.cause as usize] -= 1;
                self.programmed(now, &unit);
            }
            Task::Clean { writes: true } => self.activity.writes[Cause::Cleaning as usize] -= 1,
            Task::Clean { writes: false } => self.activity.reads[Cause::Cleaning as usize] -= 1,
        }
        self.work(now, die);
    }
}

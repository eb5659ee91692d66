//! A solid-state disk, from the host's link to the flash: one implementation, and device files that say which parts matter.
//!
//! ```text
//!   waiting ─ queue ─┬─ read ──▶ controller ─▶ buffer, or dies ─▶ link ─▶ end
//!   (FIFO)           ├─ write ─▶ link ─▶ buffer (room? else wait) ─▶ end … ─▶ units ─▶ dies
//!                    └─ FLUSH: what was acknowledged is programmed; alone on SATA
//! ```
//! * The link is one resource, first come first served; long writes take it in pieces, so that reads come between.
//! * A write ends when it is in the buffer. Its room is free again when its unit is programmed: that is the back-pressure.
//! * A page-mapped drive fills units in turn, whatever the addresses, or (contiguous) each channel its own of a stretch of addresses: a lane.
//! * `map = "service"` has no flash at all: a command is a fixed time and its bytes, one after the other.

mod die;
mod log;
mod page;

use super::energy::{Account, Charge, Meter};
use super::spec::{Flash, MapKind, SsdSpec};
use super::{Cause, Command, Counters, PowerState, What, transfer_time};
use crate::chance::Chance;
use die::{Die, Piece, Unit};
use log::LogMap;
use page::{PAGE_BYTES, PageMap};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use tidegate_engine::block::ATOM_BYTES;
use tidegate_engine::time::{Duration, Instant};

const PAGE_ATOMS: u64 = PAGE_BYTES / ATOM_BYTES;
/// Atoms of a write that take the link at once.
const CHUNK_ATOMS: u64 = 64 * 1024 / ATOM_BYTES;
/// Writes from this size on slow down reads beside them (service model).
const LARGE_BYTES: u64 = 64 * 1024;

/// What is to come, besides who waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The controller has understood a read.
    Ready(u64),
    /// The first write's next chunk is in the buffer.
    ChunkIn,
    Array(usize),
    Die(usize),
    /// A command ends.
    End(u64),
}

#[derive(Clone, Debug)]
enum Ftl {
    Service,
    Page(Box<PageMap>),
    Log(LogMap),
}

/// A command in the drive's queue.
#[derive(Clone, Copy, Debug)]
struct Active {
    command: Command,
    /// Of a read: parts that have not been given to the link, and whether the link has seen the command.
    parts: u64,
    begun: bool,
    /// Of a write: atoms in the buffer.
    taken: u64,
}

/// How many read and how many write, by cause: what power is drawn for.
#[derive(Clone, Debug, Default)]
struct Activity {
    reads: [u32; 6],
    writes: [u32; 6],
}

impl Activity {
    fn count(&mut self, writes: bool, cause: Cause) {
        let counts = if writes { &mut self.writes } else { &mut self.reads };
        counts[cause as usize] += 1;
    }

    /// Whether it writes, and for what first.
    fn now(&self) -> Option<(bool, Cause)> {
        let first = |counts: &[u32; 6]| Cause::ALL.into_iter().find(|&cause| counts[cause as usize] > 0);
        first(&self.writes).map(|cause| (true, cause)).or_else(|| first(&self.reads).map(|cause| (false, cause)))
    }
}

#[derive(Clone, Debug)]
pub struct Ssd {
    spec: SsdSpec,
    ftl: Ftl,
    dies: Vec<Die>,
    /// When each channel and the link are free.
    channels: Vec<Instant>,
    link: Instant,
    events: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    noted: u64,
    waiting: VecDeque<Command>,
    active: BTreeMap<u64, Active>,
    /// Writes that come into the buffer, in order; a chunk of the first is on the link.
    writes: VecDeque<u64>,
    chunk: Option<u64>,
    /// Bytes of the buffer that are taken.
    held: u64,
    /// Of each lane: pages that are not yet a unit. And all that are in the buffer: how often.
    open: Vec<Vec<u32>>,
    buffered: BTreeMap<u32, u32>,
    units: u64,
    outstanding: BTreeSet<u64>,
    /// Flushes, and the first unit that each need not wait for.
    flushes: Vec<(u64, u64)>,
    activity: Activity,
    meter: Meter,
    counters: Counters,
}

impl Ssd {
    pub fn new(spec: SsdSpec) -> Self {
        let bytes = spec.capacity_mb * 1_000_000;
        let ftl = match spec.ftl.map {
            MapKind::Service => Ftl::Service,
            MapKind::Page => {
                let flash = spec.flash.as_ref().expect("a checked device file");
                Ftl::Page(Box::new(PageMap::new(bytes, spec.buffer_kib * 1024, flash, &spec.ftl)))
            }
            MapKind::Bast => Ftl::Log(LogMap::new(log::Kind::Bast, (spec.ftl.merge_kib / 4) as u32, spec.ftl.logs)),
            MapKind::Fast => Ftl::Log(LogMap::new(log::Kind::Fast, (spec.ftl.merge_kib / 4) as u32, spec.ftl.logs)),
        };
        let dies = match (&ftl, &spec.flash) {
            (Ftl::Page(_), Some(flash)) => flash.channels * flash.dies,
            _ => 1,
        };
        let lanes = match &ftl {
            Ftl::Page(map) => map.lanes(),
            Ftl::Service | Ftl::Log(_) => 1,
        };
        Ssd {
            ftl,
            dies: vec![Die::default(); dies as usize],
            channels: vec![Instant::ZERO; spec.flash.as_ref().map_or(0, |flash| flash.channels as usize)],
            link: Instant::ZERO,
            events: BinaryHeap::new(),
            noted: 0,
            waiting: VecDeque::new(),
            active: BTreeMap::new(),
            writes: VecDeque::new(),
            chunk: None,
            held: 0,
            open: vec![Vec::new(); lanes],
            buffered: BTreeMap::new(),
            units: 0,
            outstanding: BTreeSet::new(),
            flushes: Vec::new(),
            activity: Activity::default(),
            meter: Meter::new(spec.power.idle_mw * 1_000),
            counters: Counters::default(),
            spec,
        }
    }

    fn flash(&self) -> &Flash {
        self.spec.flash.as_ref().expect("a checked device file")
    }

    fn note(&mut self, when: Instant, event: Event) {
        self.noted += 1;
        self.events.push(Reverse((when, self.noted, event)));
    }

    pub fn submit(&mut self, now: Instant, command: Command) {
        self.counters.count(&command);
        self.waiting.push_back(command);
        self.admit(now);
        self.measure(now);
    }

    pub fn next(&self) -> Option<Instant> {
        self.events.peek().map(|Reverse((when, _, _))| *when)
    }

    pub fn advance(&mut self, now: Instant, ended: &mut Vec<u64>) {
        while self.next().is_some_and(|when| when <= now) {
            let Reverse((when, _, event)) = self.events.pop().expect("it was just seen");
            match event {
                Event::Ready(id) => self.read(when, id),
                Event::ChunkIn => self.chunk_in(when),
                Event::Array(die) => self.array_done(when, die),
                Event::Die(die) => self.die_done(when, die),
                Event::End(id) => {
                    self.end(id);
                    ended.push(id);
                    self.admit(when);
                }
            }
            self.measure(when);
        }
    }

    fn end(&mut self, id: u64) {
        let command = self.active.remove(&id).expect("only what is in flight ends").command;
        match command.what {
            What::Read => self.activity.reads[command.cause as usize] -= 1,
            What::Write | What::Discard => self.activity.writes[command.cause as usize] -= 1,
            What::Flush | What::Spin(_) => {}
        }
    }

    /// Takes what waits into the drive's queue, in order.
    fn admit(&mut self, now: Instant) {
        while let Some(command) = self.waiting.front().copied() {
            let alone = command.what == What::Flush && !self.spec.link.queued_flush;
            let is_full = if alone { !self.active.is_empty() } else { self.active.len() >= self.spec.link.depth };
            let flushing = !self.spec.link.queued_flush && self.active.values().any(|active| active.command.what == What::Flush);
            if is_full || flushing {
                return;
            }
            self.waiting.pop_front();
            self.active.insert(command.id, Active { command, parts: 0, begun: false, taken: 0 });
            match command.what {
                What::Read => {
                    self.activity.count(false, command.cause);
                    self.note(now + Duration::from_micros(self.spec.controller.read_us), Event::Ready(command.id));
                }
                What::Write => {
                    self.activity.count(true, command.cause);
                    self.writes.push_back(command.id);
                    self.pump(now);
                }
                What::Discard => {
                    self.activity.count(true, command.cause);
                    self.trim(&command);
                    self.note(now + Duration::from_micros(self.spec.controller.write_us.max(1)), Event::End(command.id));
                }
                What::Flush => self.flush(now, command.id),
                // It has no motor: whatever it is told, it is ready.
                What::Spin(_) => self.note(now, Event::End(command.id)),
            }
        }
    }

    /// The whole pages of a discard are forgotten.
    fn trim(&mut self, command: &Command) {
        if let Ftl::Page(map) = &mut self.ftl {
            let (first, end) = (command.start.div_ceil(PAGE_ATOMS), command.end() / PAGE_ATOMS);
            map.trim(first as u32..(end as u32).max(first as u32));
        }
    }

    // --- the link ---

    /// The link is taken for a command's fixed part (once) and some bytes: when they are over.
    fn take_link(&mut self, now: Instant, command_ns: u64, transfer: Duration) -> Instant {
        self.link = now.max(self.link) + Duration(command_ns) + transfer;
        self.link
    }

    /// Part of a read is ready in the controller and goes to the host.
    fn send(&mut self, now: Instant, id: u64, bytes: u64) {
        let mut transfer = transfer_time(bytes, self.spec.link.read_mb_s);
        if matches!(self.ftl, Ftl::Service) && self.writes.iter().any(|write| self.active[write].command.atoms * ATOM_BYTES >= LARGE_BYTES)
        {
            transfer = Duration(transfer.0 * self.spec.ftl.read_beside_write_percent / 100);
        }
        let active = self.active.get_mut(&id).expect("a read in flight");
        active.parts -= 1;
        let (is_last, first) = (active.parts == 0, !std::mem::replace(&mut active.begun, true));
        let command_ns = if first { self.spec.link.read_command_ns } else { 0 };
        let end = self.take_link(now, command_ns, transfer);
        if is_last {
            self.note(end, Event::End(id));
        }
    }

    /// Lets the next chunk of the first write come, if there is room in the buffer.
    fn pump(&mut self, now: Instant) {
        let (None, Some(&id)) = (self.chunk, self.writes.front()) else { return };
        let Active { command, taken, .. } = self.active[&id];
        let service = matches!(self.ftl, Ftl::Service);
        let limit = if service { u64::MAX } else { CHUNK_ATOMS.min(self.spec.buffer_kib * 1024 / ATOM_BYTES / 4) };
        let atoms = (command.atoms - taken).min(limit);
        let bytes = pages(command.start + taken, atoms).len() as u64 * PAGE_BYTES;
        if !service {
            if self.held + bytes > self.spec.buffer_kib * 1024 {
                return;
            }
            self.held += bytes;
        }
        self.chunk = Some(atoms);
        let command_ns = if taken == 0 { self.spec.link.write_command_ns } else { 0 };
        let end = self.take_link(now, command_ns, transfer_time(atoms * ATOM_BYTES, self.spec.link.write_mb_s));
        self.note(end, Event::ChunkIn);
    }

    fn chunk_in(&mut self, now: Instant) {
        let atoms = self.chunk.take().expect("a chunk was on the link");
        let id = *self.writes.front().expect("of the first write");
        let active = self.active.get_mut(&id).expect("a write in flight");
        let (command, start) = (active.command, active.command.start + active.taken);
        active.taken += atoms;
        if active.taken == command.atoms {
            self.writes.pop_front();
            self.note(now + Duration::from_micros(self.spec.controller.write_us), Event::End(id));
        }
        if !matches!(self.ftl, Ftl::Service) {
            for page in pages(start, atoms) {
                self.buffer(now, page, command.cause);
            }
            if matches!(self.ftl, Ftl::Log(_)) {
                self.close_unit(now, 0, command.cause);
            }
        }
        self.pump(now);
    }

    // --- the buffer ---

    /// A page joins the open unit of its lane, or replaces itself there.
    fn buffer(&mut self, now: Instant, page: u32, cause: Cause) {
        let (lane, unit) = match &self.ftl {
            Ftl::Page(map) => (map.lane(page), map.unit()),
            Ftl::Service | Ftl::Log(_) => (0, usize::MAX),
        };
        if self.open[lane].contains(&page) {
            self.held -= PAGE_BYTES;
            return;
        }
        self.open[lane].push(page);
        *self.buffered.entry(page).or_default() += 1;
        if self.open[lane].len() == unit {
            self.close_unit(now, lane, cause);
        }
    }

    /// The open unit of a lane, full or not, goes to a die.
    fn close_unit(&mut self, now: Instant, lane: usize, cause: Cause) {
        if self.open[lane].is_empty() {
            return;
        }
        let die = match &mut self.ftl {
            Ftl::Page(map) => map.next_die(lane, self.open[lane].len()),
            Ftl::Service | Ftl::Log(_) => 0,
        };
        self.units += 1;
        self.outstanding.insert(self.units);
        let unit = Unit { number: self.units, pages: std::mem::take(&mut self.open[lane]), cause };
        self.queue_unit(now, die, unit);
    }

    fn programmed(&mut self, now: Instant, unit: &Unit) {
        self.outstanding.remove(&unit.number);
        self.held -= unit.pages.len() as u64 * PAGE_BYTES;
        for page in &unit.pages {
            let count = self.buffered.get_mut(page).expect("it is in the buffer");
            *count -= 1;
            if *count == 0 {
                self.buffered.remove(page);
            }
        }
        self.end_flushes(now);
        self.pump(now);
    }

    fn flush(&mut self, now: Instant, id: u64) {
        let cause = self.active[&id].command.cause;
        (0..self.open.len()).for_each(|lane| self.close_unit(now, lane, cause));
        self.flushes.push((id, self.units + 1));
        self.end_flushes(now);
    }

    /// Ends the flushes whose units are all programmed.
    fn end_flushes(&mut self, now: Instant) {
        let oldest = self.outstanding.first().copied().unwrap_or(u64::MAX);
        let end = now + Duration::from_micros(self.spec.controller.flush_us);
        let (events, noted) = (&mut self.events, &mut self.noted);
        self.flushes.retain(|&(id, mark)| {
            if oldest >= mark {
                *noted += 1;
                events.push(Reverse((end, *noted, Event::End(id))));
            }
            oldest < mark
        });
    }

    // --- reads ---

    /// The controller knows where a read's pages are: in the buffer (or nowhere), or on dies.
    fn read(&mut self, now: Instant, id: u64) {
        let command = self.active[&id].command;
        let ways = self.spec.flash.as_ref().map_or(1, |flash| (flash.channels * flash.dies) as u32);
        let mut hit = 0;
        let mut pieces: Vec<(usize, u32, u64)> = Vec::new();
        for page in pages(command.start, command.atoms) {
            let first = (u64::from(page) * PAGE_ATOMS).max(command.start);
            let bytes = ((u64::from(page) + 1) * PAGE_ATOMS).min(command.end()).saturating_sub(first) * ATOM_BYTES;
            let place = match &self.ftl {
                _ if self.buffered.contains_key(&page) => None,
                Ftl::Service => None,
                Ftl::Page(map) => map.locate(page),
                // As many pages at once as there are ways.
                Ftl::Log(_) => Some((0, page / ways)),
            };
            match (place, pieces.last_mut()) {
                (None, _) => hit += bytes,
                (Some((die, unit)), Some(last)) if (last.0, last.1) == (die, unit) => last.2 += bytes,
                (Some((die, unit)), _) => pieces.push((die, unit, bytes)),
            }
        }
        self.active.get_mut(&id).expect("a read in flight").parts = pieces.len() as u64 + u64::from(hit > 0);
        if hit > 0 {
            self.send(now, id, hit);
        }
        for (die, _, bytes) in pieces {
            let time = matches!(self.ftl, Ftl::Log(_)).then(|| self.log_read(bytes));
            self.queue_read(now, die, Piece { command: id, bytes, time, cause: command.cause });
        }
    }

    /// How long all ways of a log-block FTL together need to read so much.
    fn log_read(&self, bytes: u64) -> Duration {
        let flash = self.flash();
        let pages = bytes.div_ceil(PAGE_BYTES);
        let transfer = transfer_time(PAGE_BYTES, flash.channel_mb_s).0;
        Duration(pages.div_ceil(flash.channels * flash.dies) * flash.read_us * 1_000 + pages.div_ceil(flash.channels) * transfer)
    }

    // --- age, power ---

    /// Ages a page-mapped device at once: `percent` of it is filled, then `times` as much overwritten at random. Of any other: nothing.
    pub fn precondition(&mut self, percent: u64, times: u64, chance: &mut Chance) {
        if let Ftl::Page(map) = &mut self.ftl {
            map.precondition(percent, times, chance);
        }
    }

    /// Erases of the least and of the most worn block of a page-mapped device.
    pub fn wear(&self) -> (u32, u32) {
        match &self.ftl {
            Ftl::Page(map) => map.wear(),
            Ftl::Service | Ftl::Log(_) => (0, 0),
        }
    }

    /// The power goes and comes back: queue and buffer are lost. What the map says of pages on their way does not matter: this is time.
    pub fn power_cut(&mut self, now: Instant) {
        self.activity = Activity::default();
        self.measure(now);
        self.events.clear();
        self.waiting.clear();
        self.active.clear();
        self.writes.clear();
        self.open.iter_mut().for_each(Vec::clear);
        self.buffered.clear();
        self.outstanding.clear();
        self.flushes.clear();
        (self.chunk, self.held) = (None, 0);
        self.dies.iter_mut().for_each(|die| *die = Die::default());
        self.channels.iter_mut().for_each(|channel| *channel = now);
        self.link = now;
        if let Ftl::Page(map) = &mut self.ftl {
            map.forget_coming();
        }
    }

    fn measure(&mut self, now: Instant) {
        let power = &self.spec.power;
        let (milliwatts, charge) = match self.activity.now() {
            Some((true, cause)) => (power.write_mw, Charge::Work(cause)),
            Some((false, cause)) => (power.read_mw, Charge::Work(cause)),
            None => (power.idle_mw, Charge::Idle),
        };
        self.meter.set(now, milliwatts * 1_000, charge);
    }

    pub fn energy(&self, now: Instant) -> Account {
        self.meter.read(now)
    }

    pub fn state(&self) -> PowerState {
        if self.activity.now().is_some() { PowerState::Active } else { PowerState::Idle }
    }

    pub fn counters(&self) -> Counters {
        self.counters.clone()
    }
}

/// The pages that some atoms lie in.
fn pages(start: u64, atoms: u64) -> std::ops::Range<u32> {
    (start / PAGE_ATOMS) as u32..(start + atoms).div_ceil(PAGE_ATOMS) as u32
}

//! The operations in flight on both disks, whoever carries them: where each of them lies, and which of them waits for another.
//!
//! An operation lies in its berth until its last command has landed. The memory that its commands name lies there too, and stays where it
//! is meanwhile.

use std::collections::VecDeque;

use tidegate_engine::Event;
use tidegate_engine::block::Span;
use tidegate_engine::op::{Action, Answer, DeviceError, DeviceId, Done, Limits, Op, OpId, Power};
use tidegate_engine::time::{Duration, Instant};

use super::disk::{Allocation, DEPTH, Disk, Kind, device_error, name};
use super::flight::{Command, Flight, Next};
use super::run::Run;

pub(super) const DISKS: usize = 2;
/// An operation that takes longer is reported ([`Happening::Late`]); nothing is released.
const LATE: Duration = Duration::from_secs(30);
/// Extents that are looked for in one turn, for all who ask what is allocated: each takes two system calls, and there may be thousands.
const EXTENTS_OF_A_TURN: usize = 128;
/// How often operations in flight are looked through.
const LATE_GRAIN: Duration = Duration::from_secs(1);

/// What the wait brought.
#[derive(Debug)]
pub enum Happening {
    Done(Done<Run>),
    Late(OpId),
    /// A watched descriptor is ready; who watches it goes by the key.
    Ready {
        key: WatchKey,
        readable: bool,
        writable: bool,
    },
}

impl Happening {
    /// What an engine without clients hears of it.
    pub fn of_disks(self) -> Option<Event<Run>> {
        match self {
            Happening::Done(done) => Some(Event::Completed(done)),
            Happening::Late(id) => Some(Event::Late(id)),
            Happening::Ready { .. } => None,
        }
    }
}

/// Names a watched descriptor: chosen by the caller, unique among those it watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WatchKey {
    pub port: u32,
    pub token: u64,
}

/// The place of one operation in flight.
#[derive(Default)]
struct Berth {
    flight: Option<Flight>,
    /// The memory its command names; kept for the next operation in this berth.
    pieces: Vec<libc::iovec>,
}

pub(super) struct Dock {
    disks: [Disk; DISKS],
    /// `DEPTH` berths of the cache, then `DEPTH` of the origin.
    berths: Vec<Berth>,
    free: [Vec<u32>; DISKS],
    /// Berths with a command that nobody carries yet.
    ready: Vec<u32>,
    /// Berths whose sectors another one is modifying.
    held: Vec<u32>,
    /// Questions for what is allocated, with the place of the disk.
    asked: VecDeque<(OpId, usize, Allocation)>,
    /// Answered without a command for the kernel.
    answered: Vec<Happening>,
    look_for_late: Instant,
    alarm: Option<String>,
}

impl Dock {
    pub fn new(cache: Disk, origin: Disk) -> Dock {
        let free = |first: usize| (first..first + DEPTH).rev().map(|berth| berth as u32).collect();
        Dock {
            disks: [cache, origin],
            berths: (0..DISKS * DEPTH).map(|_| Berth::default()).collect(),
            free: [free(0), free(DEPTH)],
            ready: Vec::new(),
            held: Vec::new(),
            asked: VecDeque::new(),
            answered: Vec::new(),
            look_for_late: Instant::ZERO,
            alarm: None,
        }
    }

    /// Of the cache and of the origin.
    pub fn limits(&self) -> [Limits; DISKS] {
        [self.disks[0].limits(), self.disks[1].limits()]
    }

    pub fn disk(&self, device: DeviceId) -> &Disk {
        &self.disks[place(device)]
    }

    /// Which disk a berth belongs to: 0 the cache, 1 the origin.
    pub fn device(berth: u32) -> usize {
        berth as usize / DEPTH
    }

    pub fn disk_of(&self, berth: u32) -> &Disk {
        &self.disks[Dock::device(berth)]
    }

    /// Operations in flight on both disks.
    pub fn in_flight(&self) -> usize {
        DISKS * DEPTH - self.free[0].len() - self.free[1].len()
    }

    /// Takes an operation; [`Dock::next`] has its command.
    ///
    /// # Panics
    /// If more operations are in flight than [`Limits::depth`], or the span lies beyond the device.
    pub fn start(&mut self, now: Instant, op: Op<Run>) {
        let device = place(op.device);
        if let Action::Allocation(_, span) = op.action {
            return self.asked.push_back((op.id, device, Allocation::of(span)));
        }
        if let Action::Spin(_) = op.action {
            // Nothing is known of a motor.
            return self.answered.push(Happening::Done(Done { id: op.id, result: Ok(Answer::Power(Power::Turning.into())) }));
        }
        let disk = &self.disks[device];
        let least = length_needed(&op, disk);
        if let (Some(least), false) = (least, disk.sleeps()) {
            let refused = match disk.length_now() {
                Ok(length) if length >= least => None,
                Ok(_) => Some(self.cut_off(device)),
                Err(error) => Some(device_error(error.raw_os_error().unwrap_or(libc::EIO))),
            };
            if let Some(error) = refused {
                return self.answered.push(Happening::Done(Done { id: op.id, result: Err(error) }));
            }
        }
        let berth = self.free[device].pop().expect("the engine keeps to Limits::depth");
        if self.in_flight() == 1 {
            self.look_for_late = now + LATE_GRAIN;
        }
        let disk = &self.disks[device];
        let flight = Flight::new(op.id, now, op.action, disk);
        let flight = match least {
            Some(least) if disk.sleeps() => flight.after_asking(least),
            Some(_) | None => flight,
        };
        let modifies = flight.modifies();
        self.berths[berth as usize].flight = Some(flight);
        if modifies.is_some_and(|_| self.is_modified_by_another(berth)) {
            return self.held.push(berth);
        }
        self.ready.push(berth);
    }

    fn cut_off(&mut self, device: usize) -> DeviceError {
        let disk = &self.disks[device];
        let was = disk.bytes();
        self.alarm.get_or_insert_with(|| {
            format!(
                "{} {} is shorter than the {was} bytes it had: nothing is written behind its end, and what is dirty stays in the cache; give it back its size",
                name(DeviceId::Origin),
                disk.path().display()
            )
        });
        DeviceError::Medium
    }

    /// What the operator must know of the disks now: one line, from the first time on.
    pub fn alarm(&self) -> Option<&str> {
        self.alarm.as_deref()
    }

    /// A command to be carried out, and its berth. What it names stays where it is until [`Dock::landed`] was told of that berth.
    pub fn next(&mut self) -> Option<(u32, Command)> {
        let berth = self.ready.pop()?;
        let Berth { flight, pieces } = &mut self.berths[berth as usize];
        let flight = flight.as_mut().expect("a berth with a command is taken");
        Some((berth, flight.command(&self.disks[Dock::device(berth)], pieces)))
    }

    /// A command has ended with this result (negative: an error number). [`Dock::next`] may have more.
    pub fn landed(&mut self, berth: u32, result: i32, happenings: &mut Vec<Happening>) {
        let device = Dock::device(berth);
        let flight = self.berths[berth as usize].flight.as_mut().expect("a completion of an operation in flight");
        let result = match flight.completed(result, &mut self.disks[device]) {
            Next::Again => return self.ready.push(berth),
            Next::CutOff => Err(self.cut_off(device)),
            Next::End(result) => result,
        };
        let flight = self.berths[berth as usize].flight.take().expect("looked at above");
        self.free[device].push(berth);
        happenings.push(Happening::Done(Done { id: flight.id, result }));
        if flight.modifies().is_some() {
            self.release_held();
        }
    }

    /// Does an operation that is not held modify a sector of this one?
    fn is_modified_by_another(&self, berth: u32) -> bool {
        let device = Dock::device(berth);
        let span = |berth: usize| self.berths[berth].flight.as_ref().and_then(Flight::modifies);
        let mine = span(berth as usize).expect("asked for a modifying flight");
        (device * DEPTH..(device + 1) * DEPTH)
            .filter(|other| *other != berth as usize && !self.held.contains(&(*other as u32)))
            .any(|other| span(other).is_some_and(|other| other.overlaps(mine)))
    }

    fn release_held(&mut self) {
        let mut place = 0;
        while let Some(&berth) = self.held.get(place) {
            if self.is_modified_by_another(berth) {
                place += 1;
            } else {
                self.held.remove(place);
                self.ready.push(berth);
            }
        }
    }

    /// Goes on with the questions for what is allocated, in turns.
    fn look_for_extents(&mut self) {
        let mut left = EXTENTS_OF_A_TURN;
        while left > 0
            && let Some((id, device, mut asked)) = self.asked.pop_front()
        {
            left -= self.disks[device].look_for_extents(&mut asked, left);
            if asked.is_told() {
                self.answered.push(Happening::Done(Done { id, result: Ok(Answer::Allocation(asked.extents)) }));
            } else {
                self.asked.push_back((id, device, asked));
            }
        }
    }

    /// Hands out what was answered without a command for the kernel; returns until when a wait may sleep that should end at `deadline`.
    pub fn before_wait(&mut self, now: Instant, deadline: Option<Instant>, happenings: &mut Vec<Happening>) -> Option<Instant> {
        self.look_for_extents();
        if !self.answered.is_empty() || !self.asked.is_empty() {
            happenings.append(&mut self.answered);
            return Some(now);
        }
        let late = (self.in_flight() > 0).then_some(self.look_for_late);
        [deadline, late].into_iter().flatten().min()
    }

    /// Reports operations that take unusually long, each once.
    pub fn look_for_late(&mut self, now: Instant, happenings: &mut Vec<Happening>) {
        if now < self.look_for_late || self.in_flight() == 0 {
            return;
        }
        self.look_for_late = now + LATE_GRAIN;
        for flight in self.berths.iter_mut().filter_map(|berth| berth.flight.as_mut()) {
            if !flight.late && now.since(flight.started) >= LATE {
                flight.late = true;
                happenings.push(Happening::Late(flight.id));
            }
        }
    }

    /// The memory of operations in flight is never given back: somebody may still read and write it.
    pub fn leak(&mut self) {
        std::mem::forget(std::mem::take(&mut self.berths));
    }
}

/// How long the file must be, in bytes, before anything is done to it. An origin that was cut off must not grow again by a write behind its
/// end: what it lost would read as zeros from then on. (A block device refuses by itself.)
fn length_needed(op: &Op<Run>, disk: &Disk) -> Option<u64> {
    let is_asked = op.device == DeviceId::Origin && disk.kind() == Kind::File;
    let span = written(&op.action).filter(|_| is_asked)?;
    Some(span.offset() + span.bytes())
}

/// What of the device it changes.
fn written(action: &Action<Run>) -> Option<Span> {
    match action {
        Action::Write(_, span, _) | Action::Zero(_, span, _) | Action::Discard(_, span) => Some(*span),
        Action::Read(..) | Action::Flush | Action::Allocation(..) | Action::Spin(_) => None,
    }
}

fn place(device: DeviceId) -> usize {
    match device {
        DeviceId::Cache => 0,
        DeviceId::Origin => 1,
    }
}

//! One queue for each device: which operation goes next. It may reorder freely, because operations in flight never overlap and the engine
//! hands out nothing that depends on an operation that has not ended.
//!
//! ```text
//! push ─▶ waiting, or joined to a neighbour that waits (merge) ─▶ pop: under way, at most `depth` ─▶ done: the answers to all that it was
//!              └─▶ raise                                            └─ a scheduler says which
//! ```
//! What is lost, done twice or given too early is the queue's own affair, and the same for all schedulers; those decide only.

mod ac;
mod cfq;
mod deadline;
mod knee;
mod lanes;
mod lists;
mod merge;
mod noop;
mod scheduler;
mod sorted;
#[cfg(test)]
mod tests;
mod urgency;

use std::collections::VecDeque;

use crate::number::NumberMap;
use crate::op::{self, Action, Class, Done, Limits, Op, OpId};
use crate::payload::Payload;
use crate::probe::QueueTimes;
use crate::slab::Slab;
use crate::time::Instant;

use ac::Ac;
use cfq::Cfq;
use deadline::Deadline;
use lanes::Lanes;
use merge::Stretch;
use noop::Noop;
use scheduler::{Item, Scheduler};
use urgency::Urgency;

/// Which scheduler a device has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueKind {
    /// First come, first served; what nobody waits for yields; and what clients want one after the other, or finds no place at the device, is merged.
    #[default]
    Urgency,
    /// First come, first served.
    Noop,
    /// Linux's: in the order of addresses, unless somebody has waited for too long.
    Deadline,
    /// Linux's, simplified: one job after the other.
    Cfq,
    /// Paper 003's: reads apart from writes, and each over all parts of the device.
    Ac,
    /// Ours: reads first, few writes at the device while somebody reads, and as many reads on each part of it.
    Lanes,
}

impl QueueKind {
    pub const ALL: [QueueKind; 6] =
        [QueueKind::Urgency, QueueKind::Noop, QueueKind::Deadline, QueueKind::Cfq, QueueKind::Ac, QueueKind::Lanes];

    /// For people and configuration files.
    pub fn name(self) -> &'static str {
        match self {
            QueueKind::Urgency => "urgency",
            QueueKind::Noop => "noop",
            QueueKind::Deadline => "deadline",
            QueueKind::Cfq => "cfq",
            QueueKind::Ac => "ac",
            QueueKind::Lanes => "lanes",
        }
    }

    /// The others do as Linux does: they merge whatever waits, and a FLUSH is not scheduled but goes at once. The default leaves FLUSHes in their
    /// turn. It looks among all that waits only for what finds the device's places taken; else what a client wants of a busy device goes on with what
    /// came last, and what the engine wants itself is as long as it should be.
    fn is_like_linux(self) -> bool {
        self != QueueKind::Urgency
    }
}

impl std::str::FromStr for QueueKind {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let names = || QueueKind::ALL.map(QueueKind::name).join(", ");
        let found = QueueKind::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| format!("{text:?} is no queue: there are {}", names()))
    }
}

/// No entry.
const NONE: u32 = u32::MAX;
/// The longest operation that the default scheduler makes of several, in atoms: 256 KiB. That is as much as a drive needs at once, and whoever is
/// joined to others waits for all of them.
const JOINED_ATOMS_MAX: u64 = 512;

/// A device with so many operations has enough to go on with. One that has fewer would stand still between two that were made of all it had.
const BUSY: usize = 16;

pub struct Queue<P> {
    scheduler: Box<dyn Scheduler>,
    kind: QueueKind,
    entries: Slab<Entry<P>>,
    /// By the place of an operation: the entry that it is in.
    places: Vec<u32>,
    /// By where a stretch that waits ends: its entry, if it is listed.
    ends: NumberMap<u64, u32>,
    /// The entry that has waited for the shortest time, if it still waits.
    last: u32,
    /// The longest operation that is made of several.
    atoms_max: u64,
    /// FLUSHes that are not scheduled.
    flushes: VecDeque<usize>,
    waiting: usize,
    under_way: usize,
    depth: usize,
    /// By class; none of those that there were not.
    times: [Option<QueueTimes>; Class::ALL.len()],
}

struct Entry<P> {
    item: Item,
    /// Of what may be merged while it waits.
    stretch: Option<Stretch>,
    /// It is found by where it ends.
    is_listed: bool,
    holds: Holds<P>,
    /// The scheduler knows of it: it is no FLUSH that goes at once.
    is_scheduled: bool,
    /// Since when the device has it.
    under_way_since: Option<Instant>,
}

enum Holds<P> {
    One(Op<P>),
    /// One that the device has.
    Given,
    /// In the order of their addresses, end to end.
    Merged(Vec<Op<P>>),
}

/// Who is told of the end of an operation.
pub enum Answered<P> {
    One(Done<P>),
    /// None: what was merged has failed, and is done again one by one.
    Merged(Vec<Done<P>>),
}

impl<P: Payload> Queue<P> {
    /// A queue for a device with such limits and lanes. What nobody waits for takes at most `patient_depth` of its places.
    pub fn new(kind: QueueKind, limits: Limits, lanes: op::Lanes, patient_depth: usize) -> Self {
        assert!(limits.depth > 0 && patient_depth > 0);
        let scheduler: Box<dyn Scheduler> = match kind {
            QueueKind::Urgency => Box::new(Urgency::new(patient_depth)),
            QueueKind::Noop => Box::new(Noop::default()),
            QueueKind::Deadline => Box::new(Deadline::default()),
            QueueKind::Cfq => Box::new(Cfq::default()),
            QueueKind::Ac => Box::new(Ac::new(limits.atoms, patient_depth)),
            QueueKind::Lanes => Box::new(Lanes::new(lanes, limits.depth, patient_depth)),
        };
        Queue {
            scheduler,
            kind,
            entries: Slab::default(),
            places: Vec::new(),
            ends: NumberMap::default(),
            last: NONE,
            atoms_max: if kind.is_like_linux() { limits.op_atoms } else { limits.op_atoms.min(JOINED_ATOMS_MAX) },
            flushes: VecDeque::new(),
            waiting: 0,
            under_way: 0,
            depth: limits.depth,
            times: Default::default(),
        }
    }

    /// An operation of a job waits from now on. No two that wait or are under way have one place ([`OpId::place`]).
    pub fn push(&mut self, now: Instant, job: u32, op: Op<P>) {
        let stretch = self.stretch(&op);
        match stretch.and_then(|stretch| self.neighbour(job, &stretch)) {
            Some(number) => self.attach(number, op),
            None => self.wait(now, Item::new(now, job, &op), stretch, op),
        }
    }

    /// It waits with one that it goes on, if there is one; else it is given back.
    pub fn join(&mut self, job: u32, op: Op<P>) -> Option<Op<P>> {
        let Some(number) = self.stretch(&op).and_then(|stretch| self.neighbour(job, &stretch)) else { return Some(op) };
        self.attach(number, op);
        None
    }

    /// Where it lies, if it may go on what waits, or the next one may go on it: mostly the device has too little to do for either.
    fn stretch(&self, op: &Op<P>) -> Option<Stretch> {
        if self.under_way + self.waiting + 1 >= BUSY || self.lists() { Stretch::of(op) } else { None }
    }

    /// Is it worth looking among all that waits? With the default scheduler not while the device has a place for what comes.
    fn lists(&self) -> bool {
        self.kind.is_like_linux() || self.under_way + self.waiting >= self.depth
    }

    fn wait(&mut self, now: Instant, item: Item, stretch: Option<Stretch>, op: Op<P>) {
        let place = op.id.place();
        let is_scheduled = !(matches!(op.action, Action::Flush) && self.kind.is_like_linux());
        let listed = stretch.filter(|_| self.lists());
        let is_listed = listed.is_some();
        let number = self.entries.insert(Entry { item, stretch, is_listed, holds: Holds::One(op), is_scheduled, under_way_since: None });
        self.note_place(place, number);
        if let Some(stretch) = listed {
            self.ends.insert(stretch.end(), number as u32);
        }
        self.last = number as u32;
        self.waiting += 1;
        if is_scheduled {
            self.scheduler.push(now, number, &item);
        } else {
            self.flushes.push_back(number);
        }
    }

    fn note_place(&mut self, place: usize, entry: usize) {
        if self.places.len() <= place {
            self.places.resize(place + 1, NONE);
        }
        assert!(self.places[place] == NONE, "operations that wait or are under way have places of their own");
        self.places[place] = entry as u32;
    }

    /// What waits and is gone on by this stretch.
    fn neighbour(&self, job: u32, stretch: &Stretch) -> Option<usize> {
        let ends_there = |number: u32| {
            let end = (number != NONE).then(|| self.entries.get(number as usize).stretch).flatten();
            end.is_some_and(|end| end.end() == stretch.before())
        };
        let found = if self.under_way + self.waiting >= BUSY && stretch.is_of_clients() && ends_there(self.last) {
            self.last
        } else if self.lists() {
            *self.ends.get(&stretch.before())?
        } else {
            return None;
        };
        let before = self.entries.get(found as usize);
        let atoms = before.stretch.expect("it has an end").span.atoms + stretch.span.atoms;
        (atoms <= self.atoms_max && before.item.job == job).then_some(found as usize)
    }

    fn attach(&mut self, number: usize, op: Op<P>) {
        self.note_place(op.id.place(), number);
        self.forget_end(number);
        let entry = self.entries.get_mut(number);
        let (stretch, more) = (entry.stretch.as_mut().expect("it has an end"), Stretch::of(&op).expect("it goes on"));
        stretch.span.atoms += more.span.atoms;
        let (end, is_listed) = (stretch.end(), entry.is_listed);
        match &mut entry.holds {
            Holds::Merged(parts) => parts.push(op),
            holds => match std::mem::replace(holds, Holds::Given) {
                Holds::One(first) => *holds = Holds::Merged(vec![first, op]),
                Holds::Given | Holds::Merged(_) => unreachable!("one that waits"),
            },
        }
        if is_listed {
            self.ends.insert(end, number as u32);
        }
    }

    fn forget_end(&mut self, number: usize) {
        let entry = self.entries.get(number);
        let Some(end) = entry.stretch.filter(|_| entry.is_listed).map(|stretch| stretch.end()) else { return };
        // Another one may end there, too: two reads. Then that one stays.
        if let Some(other) = self.ends.remove(&end).filter(|&entry| entry != number as u32) {
            self.ends.insert(end, other);
        }
    }

    /// The next operation for the device; `None` when nothing waits, what waits is held back, or the depth is used up.
    #[inline]
    pub fn pop(&mut self, now: Instant) -> Option<Op<P>> {
        // Mostly asked in vain.
        if self.under_way == self.depth || self.waiting == 0 { None } else { self.pop_waiting(now) }
    }

    fn pop_waiting(&mut self, now: Instant) -> Option<Op<P>> {
        let number = self.flushes.pop_front().or_else(|| self.scheduler.pop(now))?;
        self.forget_end(number);
        if self.last == number as u32 {
            self.last = NONE;
        }
        (self.waiting, self.under_way) = (self.waiting - 1, self.under_way + 1);
        let entry = self.entries.get_mut(number);
        assert!(entry.under_way_since.replace(now).is_none(), "an operation goes once");
        let times = self.times[entry.item.class as usize].get_or_insert_default();
        times.queue.record(now.since(entry.item.arrived));
        if let Holds::Merged(parts) = &entry.holds {
            return Some(merge::joined(parts));
        }
        match std::mem::replace(&mut entry.holds, Holds::Given) {
            Holds::One(op) => Some(op),
            Holds::Given | Holds::Merged(_) => unreachable!("one that waits"),
        }
    }

    /// An operation that was popped has ended.
    pub fn done(&mut self, now: Instant, done: Done<P>) -> Answered<P> {
        let number = self.places[done.id.place()];
        assert!(number != NONE, "an operation ends once");
        let Entry { item, holds, is_scheduled, under_way_since, .. } = self.entries.remove(number as usize);
        let since = under_way_since.expect("what ends was under way");
        self.times[item.class as usize].get_or_insert_default().service.record(now.since(since));
        self.under_way -= 1;
        if is_scheduled {
            self.scheduler.done(now, number as usize, &item);
        }
        match holds {
            Holds::One(_) => unreachable!("it was given to the device"),
            Holds::Given => {
                self.places[done.id.place()] = NONE;
                Answered::One(done)
            }
            Holds::Merged(parts) => Answered::Merged(self.merged_done(now, &item, parts, done.result)),
        }
    }

    #[inline(never)]
    fn merged_done(
        &mut self,
        now: Instant,
        item: &Item,
        parts: Vec<Op<P>>,
        result: Result<op::Answer<P>, op::DeviceError>,
    ) -> Vec<Done<P>> {
        parts.iter().for_each(|part| self.places[part.id.place()] = NONE);
        match result {
            Ok(answer) => merge::answers(&parts, answer),
            Err(_) => {
                for op in parts {
                    self.wait(now, Item::new(item.arrived, item.job, &op), None, op);
                }
                Vec::new()
            }
        }
    }

    /// An operation that waits is more urgent than it was, and with it those that it was joined to. False: it does not wait.
    pub fn raise(&mut self, now: Instant, id: OpId, class: Class) -> bool {
        let Some(number) = self.find(id) else { return false };
        if self.entries.get(number).under_way_since.is_some() {
            return false;
        }
        self.forget_end(number);
        let entry = self.entries.get_mut(number);
        let before = entry.item;
        entry.item.class = class;
        // What is of another class now goes on nothing of its old one.
        (entry.stretch, entry.is_listed) = (None, false);
        match &mut entry.holds {
            Holds::One(op) => op.class = class,
            Holds::Merged(parts) => parts.iter_mut().for_each(|part| part.class = class),
            Holds::Given => unreachable!("it waits"),
        }
        let (item, is_scheduled) = (entry.item, entry.is_scheduled);
        if is_scheduled {
            self.scheduler.raise(now, number, &before, &item);
        }
        true
    }

    fn find(&self, id: OpId) -> Option<usize> {
        let number = *self.places.get(id.place()).filter(|&&number| number != NONE)? as usize;
        Some(number)
    }

    /// When it wants to be asked again although nothing has happened.
    pub fn deadline(&self) -> Option<Instant> {
        if self.under_way == self.depth || self.waiting == 0 { None } else { self.scheduler.deadline() }
    }

    /// How long operations have waited here, and how long the device had them: of each class that there was.
    pub fn times(&self) -> Vec<(Class, QueueTimes)> {
        Class::ALL.into_iter().filter_map(|class| Some((class, self.times[class as usize].clone()?))).collect()
    }

    pub fn is_idle(&self) -> bool {
        self.waiting == 0 && self.under_way == 0
    }
}

const _: () = {
    let mut class = 0;
    while class < Class::ALL.len() {
        assert!(Class::ALL[class] as usize == class, "classes are in their order");
        class += 1;
    }
};

//! Processes on simulated cores: each request of the load is an I/O that takes the steps of its path, one after the other. Its costs are the
//! plan's; what comes of them when many want the same core, lock or controller is played, event by event.
//!
//! * A core runs one process until its I/O ends or waits for the mirror; then the next that is ready gets it, in order of arrival. I/Os are
//!   a thousand times shorter than a time slice, so nobody is preempted; a switch costs nothing.
//! * The lock is a ticket spinlock, as it is for holds of a microsecond in a kernel: in order of arrival, and who waits keeps its core. A
//!   mutex that sleeps would free the core for others, which mostly want the same lock, by two switches that cost more than the hold.
//! * The controller sends one message at a time: what waits when it becomes free, up to as many records as fit. The sender waits without a core.

use super::{Front, Stillness};
use crate::agenda::Agenda;
use crate::chance::Chance;
use crate::experiment::load::{Access, Ask, Load};
use crate::experiment::measure::{Measure, Measured};
use crate::experiment::plan::Run;
use crate::experiment::plan::paths::{Controller, Step, System};
use std::collections::{BTreeMap, VecDeque};
use tidegate_engine::time::{Duration, Instant};

/// Everything is a hit, so places do not matter: a volume that has them all.
pub const VOLUME_ATOMS: u64 = 1 << 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// An I/O has done its step on a core.
    Worked(u64),
    /// One of its records is answered.
    Answered(u64),
    /// The controller is free again.
    Sent,
}

/// An I/O under way.
#[derive(Clone, Copy, Debug)]
struct Io {
    access: Access,
    /// The step that it is at.
    step: usize,
    has_core: bool,
    /// Records of this step that are not answered.
    unanswered: usize,
}

struct Processes<'a> {
    system: &'a System,
    agenda: Agenda<Event>,
    front: Front<'a>,
    flight: BTreeMap<u64, Io>,
    begun: u64,
    free_cores: u32,
    /// Who waits for a core.
    ready: VecDeque<u64>,
    /// Who has the lock, then those who spin; and how long each holds it.
    lock: VecDeque<(u64, Duration)>,
    /// Records that wait for the controller, and how long each takes.
    ring: VecDeque<(u64, Duration)>,
    is_sending: bool,
    /// One stream for each process: what one of them draws does not depend on who was first.
    chances: Vec<Chance>,
    controller_chance: Chance,
    seed: u64,
    measure: Measure,
}

pub(super) fn run(run: &Run, system: &System, seed: u64, told: &mut dyn FnMut(u64)) -> Result<Measured, String> {
    let mut processes = Processes {
        system,
        agenda: Agenda::new(Instant::ZERO),
        front: Front::new(told),
        flight: BTreeMap::new(),
        begun: 0,
        free_cores: system.cores,
        ready: VecDeque::new(),
        lock: VecDeque::new(),
        ring: VecDeque::new(),
        is_sending: false,
        chances: Vec::new(),
        controller_chance: Chance::new(seed, "controller"),
        seed,
        measure: Measure::new(Instant::ZERO),
    };
    for load in &run.before {
        processes.play(load)?;
        let now = processes.agenda.now();
        processes.agenda.advance(now + run.rest);
    }
    processes.measure = Measure::new(processes.agenda.now());
    processes.play(&run.load)?;
    Ok(Measured { measure: processes.measure, devices: Vec::new(), gate: None, writes: None })
}

impl Processes<'_> {
    /// A whole load, to its last answer.
    fn play(&mut self, load: &Load) -> Result<(), String> {
        self.front.start(load, self.seed, VOLUME_ATOMS, self.agenda.now());
        let mut stillness = Stillness::default();
        loop {
            self.front.arrive(self.agenda.now());
            while let Some(access) = self.front.waiting.pop_front() {
                self.begin(access);
            }
            if self.flight.is_empty() && self.front.is_done() {
                assert!(self.free_cores == self.system.cores && self.lock.is_empty() && !self.is_sending, "all was given back");
                return Ok(());
            }
            let next = [self.front.next_time(), self.agenda.next_time()].into_iter().flatten().min();
            self.agenda.advance(next.ok_or("no process goes on")?);
            while let Some(event) = self.agenda.pop() {
                self.handle(event);
            }
            stillness.check(self.agenda.now())?;
        }
    }

    fn begin(&mut self, access: Access) {
        while self.chances.len() <= access.lane {
            self.chances.push(Chance::new(self.seed, &format!("process {}", self.chances.len())));
        }
        self.begun += 1;
        self.flight.insert(self.begun, Io { access, step: 0, has_core: false, unanswered: 0 });
        self.go_on(self.begun);
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Worked(id) => {
                if self.lock.front().is_some_and(|(holder, _)| *holder == id) {
                    self.unlock();
                }
                self.step_done(id);
            }
            Event::Answered(id) => {
                let io = self.io(id);
                io.unanswered -= 1;
                if io.unanswered == 0 {
                    self.step_done(id);
                }
            }
            Event::Sent => {
                self.is_sending = false;
                self.send();
            }
        }
    }

    fn io(&mut self, id: u64) -> &mut Io {
        self.flight.get_mut(&id).expect("an event is of an I/O under way")
    }

    fn step_done(&mut self, id: u64) {
        self.io(id).step += 1;
        self.go_on(id);
    }

    /// The step that an I/O is at begins, or waits for what it needs; behind the last one the I/O ends.
    fn go_on(&mut self, id: u64) {
        let Io { access, step, has_core, .. } = *self.io(id);
        let system = self.system;
        let path = match access.ask {
            Ask::Read => &system.read,
            Ask::Write => &system.write,
            Ask::Flush => unreachable!("a plan refuses it"),
        };
        match path.get(step) {
            None => self.end(id),
            Some(Step::Core(_) | Step::Lock(_)) if !has_core => self.take_core(id),
            Some(Step::Core(time)) => {
                let time = self.draw(access.lane, time.0);
                self.work(id, time);
            }
            Some(Step::Lock(time)) => {
                let time = self.draw(access.lane, time.0);
                self.lock.push_back((id, time));
                if self.lock.len() == 1 {
                    self.work(id, time);
                }
            }
            Some(Step::Send(times)) => {
                self.leave_core(id);
                self.io(id).unanswered = times.len();
                for time in times {
                    let takes = self.draw(access.lane, time.0);
                    self.ring.push_back((id, takes));
                }
                self.send();
            }
        }
    }

    fn end(&mut self, id: u64) {
        self.leave_core(id);
        let Io { access, .. } = self.flight.remove(&id).expect("it is under way");
        let now = self.agenda.now();
        self.measure.answered(now, access.due, access.ask, access.span.bytes());
        self.front.answered(now, &access);
    }

    fn draw(&mut self, lane: usize, mean: Duration) -> Duration {
        spread(&mut self.chances[lane], mean, self.system.spread_percent)
    }

    fn work(&mut self, id: u64, time: Duration) {
        self.agenda.note(self.agenda.now() + time, Event::Worked(id));
    }

    fn take_core(&mut self, id: u64) {
        if self.free_cores == 0 {
            return self.ready.push_back(id);
        }
        self.free_cores -= 1;
        self.io(id).has_core = true;
        self.go_on(id);
    }

    fn leave_core(&mut self, id: u64) {
        if !std::mem::take(&mut self.io(id).has_core) {
            return;
        }
        self.free_cores += 1;
        if let Some(next) = self.ready.pop_front() {
            self.take_core(next);
        }
    }

    /// The first that spins has the lock now.
    fn unlock(&mut self) {
        self.lock.pop_front();
        if let Some(&(next, time)) = self.lock.front() {
            self.work(next, time);
        }
    }

    /// The controller begins with a message, if it is free and something waits.
    fn send(&mut self) {
        if self.is_sending || self.ring.is_empty() {
            return;
        }
        let Controller { message, record, records } = self.system.controller.expect("a plan that sends has one");
        let count = self.ring.len().min(records);
        let now = self.agenda.now();
        let busy = Duration(message.0 + record.0 * count as u64);
        let busy = spread(&mut self.controller_chance, busy, self.system.spread_percent);
        self.is_sending = true;
        self.agenda.note(now + busy, Event::Sent);
        for (id, takes) in self.ring.drain(..count) {
            let with_others = Duration(takes.0 + record.0 * (count as u64 - 1));
            self.agenda.note(now + with_others.max(busy), Event::Answered(id));
        }
    }
}

/// A time of that mean, so many per cent around it.
fn spread(chance: &mut Chance, mean: Duration, percent: u64) -> Duration {
    let width = mean.0 * percent / 100;
    Duration(chance.between(mean.0 - width, mean.0 + width))
}

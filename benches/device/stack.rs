//! A volume without sockets: the engine, and the daemon's disks behind it. Its log is the only home of what is written, nothing is destaged.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use tidegate_daemon::back::attach::attach;
use tidegate_daemon::back::dock::Happening;
use tidegate_daemon::back::io::{Carrier, Io};
use tidegate_daemon::back::run::Run;
use tidegate_daemon::create::{CreateOptions, Overwrite, create};
use tidegate_daemon::volume::{Knobs, TURN_ATOMS};
use tidegate_engine::block::{ATOM_BYTES, Span};
use tidegate_engine::op::{Answer, Done, Op};
use tidegate_engine::payload::Payload;
use tidegate_engine::probe::{Phase, Snapshot};
use tidegate_engine::request::{Command, Reply, Request, RequestId};
use tidegate_engine::time::{Duration, Instant};
use tidegate_engine::{Engine, Event, World, turn};

use crate::ssd::Ssd;

/// Longer than any run.
const NEVER: Duration = Duration::from_secs(24 * 3_600);

pub struct Stack {
    engine: Engine<Run>,
    world: Disks,
    events: Vec<Event<Run>>,
    /// Operations that have ended and that the engine has not heard of yet.
    landed: VecDeque<Done<Run>>,
    /// Data sets of the log, 1 MiB each.
    pub sets: u64,
    /// Where the first of them begins, in atoms of the device.
    data_start: u64,
    next_id: u64,
}

struct Disks {
    ssd: Ssd,
    replies: u64,
    /// In this turn.
    has_replied: bool,
}

impl World<Run> for Disks {
    fn start(&mut self, now: Instant, op: Op<Run>) {
        self.ssd.start(now, op);
    }
    fn reply(&mut self, _now: Instant, reply: Reply<Run>) {
        reply.result.expect("nothing fails here");
        self.replies += 1;
        self.has_replied = true;
    }
    fn fence(&mut self, _now: Instant, _at_risk: &mut dyn Iterator<Item = Span>) {
        panic!("the cache has failed");
    }
}

/// One request, without its number.
pub type Asked = (Span, Command<Run>);

impl Stack {
    /// Formats the cache and serves it.
    pub fn new(cache: &Path, origin: &Path) -> Stack {
        let options = CreateOptions { overwrite: Overwrite::Anything, ..CreateOptions::new(PathBuf::from(origin), PathBuf::from(cache)) };
        create(&options).expect("a new volume");
        let attached = attach(cache, origin).expect("a volume of ours");
        let knobs = Knobs {
            free_floor: Some(0),
            reserve: Some(0),
            dirty_high: Some(100),
            wait: Some(NEVER),
            max_dirty_age: Some(NEVER),
            scrub_rate: Some(0),
            ram: Some(0),
            split: Some(false),
            commit_home: Some(false),
            ..Knobs::default()
        };
        let config = knobs.config(&attached.superblock);
        let (sets, data_start) = (u64::from(config.geometry.sets), config.geometry.set(0).start);
        let ssd = Ssd::new(Io::new(attached.cache, attached.origin, Carrier::Uring).expect("a ring"));
        let engine = Engine::new(config, ssd.limits());
        let (events, landed, world) = (Vec::new(), VecDeque::new(), Disks { ssd, replies: 0, has_replied: false });
        let mut stack = Stack { engine, world, events, landed, sets, data_start, next_id: 0 };
        loop {
            stack.turn();
            if *stack.engine.phase() == Phase::Serving {
                return stack;
            }
            stack.wait();
        }
    }

    /// Keeps `depth` requests in flight until `next` has no more and all have been answered; seconds that it took.
    pub fn run(&mut self, depth: u64, mut next: impl FnMut() -> Option<Asked>) -> f64 {
        let (before, mut sent, mut has_more) = (self.world.replies, 0, true);
        let started = std::time::Instant::now();
        loop {
            while has_more && sent - (self.world.replies - before) < depth {
                let Some((span, command)) = next() else {
                    has_more = false;
                    break;
                };
                sent += 1;
                self.next_id += 1;
                self.events.push(Event::Arrived(Request { id: RequestId(self.next_id), span, command }));
            }
            if !has_more && self.world.replies - before == sent {
                return started.elapsed().as_secs_f64();
            }
            self.step();
        }
    }

    /// One turn, then the wait; as the daemon does it, without clients.
    fn step(&mut self) {
        self.turn();
        self.wait();
    }

    fn turn(&mut self) {
        let now = self.world.ssd.now();
        self.world.has_replied = false;
        turn(&mut self.engine, &mut self.world, now, &mut self.events);
        assert_ne!(*self.engine.phase(), Phase::Refused);
    }

    /// Hands in what was started. Sleeps unless there is something to do: whoever was answered asks again.
    fn wait(&mut self) {
        let is_busy = self.world.has_replied || !self.landed.is_empty();
        let deadline = if is_busy { Some(Instant::ZERO) } else { self.engine.deadline() };
        for happening in self.world.ssd.wait(deadline) {
            match happening {
                Happening::Done(done) => self.landed.push_back(done),
                Happening::Late(id) => self.events.push(Event::Late(id)),
                Happening::Ready { .. } => unreachable!("nothing is watched"),
            }
        }
        let mut atoms = 0;
        while atoms < TURN_ATOMS
            && let Some(done) = self.landed.pop_front()
        {
            if let Ok(Answer::Data(parts)) = &done.result {
                atoms += parts.iter().map(Payload::atoms).sum::<u64>();
            }
            self.events.push(Event::Completed(done));
        }
    }

    /// Everything that was acknowledged is durable, and nothing is in flight.
    pub fn rest(&mut self) {
        let mut flush = Some((Span::new(0, 0), Command::Flush));
        self.run(1, || flush.take());
        loop {
            self.turn();
            if self.world.ssd.is_idle() && self.landed.is_empty() {
                return;
            }
            self.wait();
        }
    }

    /// Where the device has the first so many bytes of a fresh log's data.
    pub fn stretch(&self, bytes: u64) -> Span {
        Span::new(self.data_start, bytes / ATOM_BYTES)
    }

    pub fn ssd(&mut self) -> &mut Ssd {
        &mut self.world.ssd
    }

    pub fn inspect(&self) -> Snapshot {
        self.engine.inspect(self.world.ssd.now())
    }
}

/// Where a request of `bytes` at `place` (in requests of that length) lies.
pub fn span_at(place: u64, bytes: u64) -> Span {
    let atoms = bytes / ATOM_BYTES;
    Span::new(place * atoms, atoms)
}

//! An engine between two devices in memory and whoever asks, step by step. Everything ends, or it is a hang.

use tidegate_engine::block::Span;
use tidegate_engine::cache::format::{FormatId, Geometry, Step, Superblock, create_steps};
use tidegate_engine::op::Limits;
use tidegate_engine::payload::Payload;
use tidegate_engine::probe::Phase;
use tidegate_engine::request::{Command, Outcome, Reply, Request, RequestError, RequestId};
use tidegate_engine::time::{Duration, Instant};
use tidegate_engine::{Config, Control, Engine, Event, turn};
use tidegate_sim::back::contents::Contents;
use tidegate_sim::back::volatile::Survive;
use tidegate_sim::chance::Chance;
use tidegate_sim::stamp::{Stamps, stamp};

use crate::memory::Memory;

pub const FORMAT: FormatId = FormatId([0x5a; 16]);
/// Steps that anything may take: a thousand times what it does take.
const STEPS_MAX: u64 = 200_000;

pub struct Rig {
    pub config: Config,
    limits: [Limits; 2],
    pub engine: Engine<Stamps>,
    pub memory: Memory,
    now: Instant,
    next_id: u64,
}

/// A small cache in front of a volume of 64 blocks, whose last one is short.
pub fn small(block_atoms: u32, journal_pages: u32) -> Config {
    let volume_atoms = 64 * u64::from(block_atoms) - u64::from(block_atoms / 2);
    let geometry = Geometry { block_atoms, set_slots: 8, sets: 16, journal_pages, volume_atoms, range_entries: 16 };
    Config { requests_max: 32, bytes_max: 4 << 20, window_bytes: 64 << 10, fence_samples: 16, ..Config::new(geometry, FORMAT) }
}

/// A cache as it is formatted, and an origin whose every atom says which it is.
pub fn formatted(config: &Config) -> Memory {
    let geometry = &config.geometry;
    let mut cache = Contents::blank(geometry.data_start(), geometry.cache_atoms());
    for step in create_steps(&Superblock::new(FORMAT, *geometry, [7; 16], [0; 16])) {
        if let Step::Write(_, span, bytes) = step {
            cache.write(span.start, &Stamps::from_bytes(&bytes));
        }
    }
    let mut origin = Contents::blank(0, geometry.volume_atoms);
    let stamps: Vec<u64> = (0..geometry.volume_atoms).map(|atom| stamp(0, atom)).collect();
    origin.write(0, &Stamps::from_stamps(&stamps));
    Memory::new(cache, origin)
}

impl Rig {
    /// A new engine on these devices, about to recover.
    pub fn new(config: Config, memory: Memory) -> Rig {
        let limits = [config.geometry.cache_atoms(), config.geometry.volume_atoms].map(|atoms| Limits {
            atoms,
            depth: 32,
            op_atoms: 2_048,
            discards: true,
        });
        let mut rig = Rig { engine: Engine::new(config.clone(), limits), config, limits, memory, now: Instant(1), next_id: 0 };
        rig.turn(Vec::new());
        rig
    }

    fn turn(&mut self, mut events: Vec<Event<Stamps>>) {
        turn(&mut self.engine, &mut self.memory, self.now, &mut events);
    }

    fn advance(&mut self, duration: Duration) {
        self.now = self.now + duration;
        self.memory.stand(duration);
    }

    /// Ends one operation in flight; where there is none, lets time pass until the engine wants to be woken. False: neither.
    pub fn step(&mut self, which: usize) -> bool {
        self.advance(Duration::from_micros(10));
        if std::mem::take(&mut self.memory.wants_fence) {
            // There is no host here that could note it: nothing is promised without the SSD.
            self.turn(vec![Event::Fenced { durable: false }]);
            return true;
        }
        if self.memory.in_flight() > 0 {
            let done = self.memory.end(which % self.memory.in_flight());
            self.turn(vec![Event::Completed(done)]);
            return true;
        }
        let Some(deadline) = self.engine.deadline() else { return false };
        self.now = self.now.max(deadline);
        self.turn(Vec::new());
        true
    }

    /// Steps until `reached`. What does not come is a hang.
    pub fn until(&mut self, what: &str, reached: impl Fn(&Rig) -> bool) {
        for _ in 0..STEPS_MAX {
            if reached(self) {
                return;
            }
            assert!(
                self.step(0) || reached(self),
                "everything rests, and {what} does not come: {:?}",
                self.engine.inspect(self.now).requests
            );
        }
        panic!("{what} does not come: {:?}", self.engine.inspect(self.now).requests);
    }

    pub fn pass(&mut self, duration: Duration) {
        self.advance(duration);
        self.turn(Vec::new());
    }

    /// Has nothing in flight ended for so long that the engine may give up what waits for the origin?
    pub fn stands_still(&self) -> bool {
        self.memory.stood() >= self.config.stall_timeout
    }

    pub fn control(&mut self, control: Control) {
        self.turn(vec![Event::Control(control)]);
    }

    /// Is there room for a request with so many atoms?
    pub fn has_room(&self, atoms: u64) -> bool {
        let room = self.engine.room();
        room.requests > 0 && room.bytes >= Span::new(0, atoms).bytes()
    }

    /// Asks without waiting.
    pub fn send(&mut self, span: Span, command: Command<Stamps>) -> RequestId {
        self.next_id += 1;
        let id = RequestId(self.next_id);
        self.turn(vec![Event::Arrived(Request { id, span, command })]);
        id
    }

    /// Asks and waits for the answer.
    pub fn ask(&mut self, span: Span, command: Command<Stamps>) -> Result<Outcome<Stamps>, RequestError> {
        let id = self.send(span, command);
        self.until("an answer", |rig| rig.memory.replies.iter().any(|reply| reply.id == id));
        let at = self.memory.replies.iter().position(|reply| reply.id == id).expect("waited for it");
        self.memory.replies.swap_remove(at).result
    }

    pub fn replies(&mut self) -> Vec<Reply<Stamps>> {
        std::mem::take(&mut self.memory.replies)
    }

    pub fn phase(&self) -> &Phase {
        self.engine.phase()
    }

    /// Waits until it serves, or has refused to. True: it serves.
    pub fn recover(&mut self) -> bool {
        self.until("the end of recovery", |rig| *rig.phase() != Phase::Recovering);
        *self.phase() == Phase::Serving
    }

    /// The power goes, and a new engine finds what it leaves.
    pub fn power_cut(&mut self, survive: &Survive, chance: &mut Chance) {
        self.memory.power_cut(survive, chance);
        self.restart();
    }

    /// A new engine on the devices as they are, with nothing in flight.
    pub fn restart(&mut self) {
        assert_eq!(self.memory.in_flight(), 0);
        self.engine = Engine::new(self.config.clone(), self.limits);
        self.turn(Vec::new());
    }

    /// Stops in order; false if it refuses to.
    pub fn stop(&mut self) -> bool {
        self.control(Control::Stop);
        self.until("the stop", |rig| matches!(rig.phase(), Phase::Stopped | Phase::Refused) && rig.memory.in_flight() == 0);
        *self.phase() == Phase::Stopped
    }
}

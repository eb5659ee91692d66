//! What a run happens in: a load, a virtual clock, and either a device alone ([`bare`]), perhaps behind a scheduler ([`block_layer`]), an
//! engine over two of them ([`cached`]), one over devices that take no time ([`instant`]), processes on cores ([`processes`]), or a paper's
//! peer ([`flashcache`]).

mod bare;
mod block_layer;
mod cached;
mod drives;
mod flashcache;
mod foresight;
mod instant;
mod plug;
mod processes;
mod shadow;

use super::load::{Access, Generator, Load};
use super::measure::Measured;
use super::plan::{Kind, Run};
pub use processes::VOLUME_ATOMS;
use tidegate_engine::request::Room;
use tidegate_engine::time::Instant;

/// More turns at one moment than any load needs: something is stuck.
const TURNS_AT_ONCE: u64 = 1_000_000;
/// Progress is told after so many answers: whoever hears it wakes up for it.
const TELL_EVERY: u64 = 1 << 12;

/// Runs a run. `told` hears how many requests have been answered since it heard last. The error is one line: what the engine did that
/// it must not do.
pub fn run(run: &Run, seed: u64, told: &mut dyn FnMut(u64)) -> Result<Measured, String> {
    match &run.configuration.kind {
        Kind::Bare(device, queue) => bare::run(run, device, *queue, seed, told),
        Kind::Cached { cache, origin, shared, config, limits } => cached::run(run, [cache, origin], *shared, config, *limits, seed, told),
        Kind::Flashcache { cache, origin } => flashcache::run(run, [cache, origin], seed, told),
        Kind::Instant { config, limits } => instant::run(run, config, *limits, seed, told),
        Kind::Processes(system) => processes::run(run, system, seed, told),
    }
}

/// A load under way: what is due, and what waits for room.
struct Front<'a> {
    generator: Option<Generator>,
    /// Due, and not taken yet.
    waiting: std::collections::VecDeque<Access>,
    answers: u64,
    told: &'a mut dyn FnMut(u64),
}

impl<'a> Front<'a> {
    fn new(told: &'a mut dyn FnMut(u64)) -> Self {
        Front { generator: None, waiting: Default::default(), answers: 0, told }
    }

    fn start(&mut self, load: &Load, seed: u64, volume_atoms: u64, now: Instant) {
        self.generator = Some(Generator::new(load, seed, volume_atoms, now));
    }

    fn next_time(&mut self) -> Option<Instant> {
        self.generator.as_mut()?.next_time()
    }

    /// Requests that have become due join those that wait.
    fn arrive(&mut self, now: Instant) {
        while let Some(access) = self.generator.as_mut().and_then(|generator| generator.pop(now)) {
            self.waiting.push_back(access);
        }
    }

    fn answered(&mut self, now: Instant, access: &Access) {
        if let Some(generator) = &mut self.generator {
            generator.answered(now, access.lane);
        }
        self.answers += 1;
        if self.answers.is_multiple_of(TELL_EVERY) {
            (self.told)(TELL_EVERY);
        }
    }

    /// The next request that waits, if there is room for it: that is taken.
    fn admit(&mut self, room: &mut Room) -> Option<Access> {
        let fits = |access: &&Access| room.requests > 0 && access.span.bytes() <= room.bytes;
        let access = *self.waiting.front().filter(fits)?;
        self.waiting.pop_front();
        room.requests -= 1;
        room.bytes -= access.span.bytes();
        Some(access)
    }

    fn operations(&self) -> Option<u64> {
        self.generator.as_ref().and_then(Generator::operations)
    }

    /// Everything was asked and taken.
    fn is_done(&self) -> bool {
        self.waiting.is_empty() && self.generator.as_ref().is_none_or(Generator::is_done)
    }
}

/// Notices that time stands still.
#[derive(Default)]
struct Stillness {
    last: Instant,
    turns: u64,
}

impl Stillness {
    fn check(&mut self, now: Instant) -> Result<(), String> {
        if now > self.last {
            *self = Stillness { last: now, turns: 0 };
        }
        self.turns += 1;
        if self.turns > TURNS_AT_ONCE { Err(format!("{TURNS_AT_ONCE} turns at {} ns, and nothing ends", now.0)) } else { Ok(()) }
    }
}

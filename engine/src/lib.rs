//! The data path of one volume: a state machine. Events go in, operations and replies come out.
//! No I/O, no clock, no threads: the same code runs on real disks and in virtual time, and cannot tell which.
//!
//! A driver needs only this order: [`Engine::handle_all`] what happened, then start what [`Engine::next_op`] hands out, then give
//! [`Engine::next_reply`] to the clients; sleep until something happens or [`Engine::deadline`]. [`turn`] does exactly that.

pub mod admission;
pub mod block;
pub mod cache;
pub mod config;
pub mod device_probe;
mod dirty_share;
mod draw;
pub mod fault_point;
pub mod gate;
mod ghosts;
mod memory;
pub mod mode;
mod number;
pub mod op;
mod path;
pub mod payload;
pub mod policy;
pub mod probe;
pub mod queue;
pub mod request;
mod runs;
mod slab;
pub mod spin;
pub mod time;
pub mod trace;
pub mod wear;
pub mod what_if;

use op::{Answer, Done, Op, OpId};
use payload::Payload;
use request::{Command, Reply, Request, Room};
use time::Instant;

pub use config::{Canary, Config};
pub use mode::Mode;
pub use path::Engine;

/// Everything that can happen to an engine.
#[derive(Clone, Debug)]
pub enum Event<P> {
    Arrived(Request<P>),
    Completed(Done<P>),
    /// The operation takes unusually long. A notice: nothing is released, its `Done` still comes.
    Late(OpId),
    Device(op::DeviceId, Change),
    Control(Control),
    /// The answer to [`World::fence`]: `durable`, or it could not be written down.
    Fenced {
        durable: bool,
    },
    Tick,
}

/// What became of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Operations fail from now on.
    Gone,
    /// It answers again. Another incarnation may have forgotten what was not flushed.
    Back,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Destage everything that is dirty now, without waiting for idleness.
    Drain,
    CancelDrain,
    /// Another mode ([`Engine::mode`] tells how far it is). What it asks for is in force when it is recorded.
    Mode(Mode),
    /// Everything goes home, then the superblocks say that the cache was taken from its origin, and the engine stops. Writes are refused.
    Detach,
    CancelDetach,
    /// Make every acknowledged write durable, then take nothing any more.
    Stop,
}

/// What an engine acts on.
pub trait World<P> {
    fn start(&mut self, now: Instant, op: Op<P>);
    fn reply(&mut self, now: Instant, reply: Reply<P>);
    /// The SSD has failed, and the volume is to go on without it. The host writes down, durably, that this cache misses writes from now on
    /// and must not come back, and answers with [`Event::Fenced`]. `at_risk`: the spans of the volume whose newest contents only that SSD has.
    fn fence(&mut self, now: Instant, at_risk: &mut dyn Iterator<Item = block::Span>);
}

/// A world that can sleep: the real one, or the agenda of a simulation.
pub trait Wait<P>: World<P> {
    fn now(&self) -> Instant;
    /// Sleeps until something happened or `deadline`; appends what happened. False: the world has ended.
    /// `room` is what the engine takes at this moment: the world delivers at most so many requests.
    fn wait(&mut self, deadline: Option<Instant>, room: Room, events: &mut Vec<Event<P>>) -> bool;
}

/// Contents that an engine is given before it is asked for operations: it takes about 0.1 ms to check 1 MiB, and a device without work would
/// wait until the last of many large requests is checked.
const PORTION_ATOMS: u64 = (1 << 20) / block::ATOM_BYTES;

/// Events in, operations and replies out: the only code that touches an engine from outside.
pub fn turn<P: Payload, W: World<P>>(engine: &mut Engine<P>, world: &mut W, now: Instant, events: &mut Vec<Event<P>>) {
    if events.len() > 1 || engine.leases() {
        engine.read_together(now, events);
    }
    if events.is_empty() {
        engine.hear_fronts();
        if engine.has_front_writes() || engine.deadline().is_some_and(|deadline| deadline <= now) {
            events.push(Event::Tick);
        }
    }
    loop {
        let portion = portion(events);
        if portion > 0 {
            engine.handle_all(now, events.drain(..portion));
        }
        if engine.wants_fence() {
            world.fence(now, &mut engine.at_risk());
        }
        while let Some(op) = engine.next_op(now) {
            world.start(now, op);
        }
        if events.is_empty() {
            break;
        }
    }
    while let Some(reply) = engine.next_reply() {
        world.reply(now, reply);
    }
}

/// How many of the events bring [`PORTION_ATOMS`] of contents, or all.
fn portion<P: Payload>(events: &[Event<P>]) -> usize {
    if events.len() < 2 {
        return events.len();
    }
    let mut atoms = 0;
    let is_full = |event: &Event<P>| {
        atoms += contents(event);
        atoms >= PORTION_ATOMS
    };
    events.iter().position(is_full).map_or(events.len(), |last| last + 1)
}

/// Atoms that an event brings.
fn contents<P: Payload>(event: &Event<P>) -> u64 {
    match event {
        Event::Arrived(Request { command: Command::Write { data, .. }, .. }) => data.atoms(),
        Event::Completed(Done { result: Ok(Answer::Data(parts)), .. }) => parts.iter().map(Payload::atoms).sum(),
        Event::Arrived(_)
        | Event::Completed(_)
        | Event::Late(_)
        | Event::Device(..)
        | Event::Control(_)
        | Event::Fenced { .. }
        | Event::Tick => 0,
    }
}

/// Turns until the world ends: production, and simulations of one node.
pub fn drive<P: Payload, W: Wait<P>>(engine: &mut Engine<P>, world: &mut W) {
    let mut events = Vec::new();
    turn(engine, world, world.now(), &mut events);
    while world.wait(engine.deadline(), engine.room(), &mut events) {
        turn(engine, world, world.now(), &mut events);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::Checksum;
    use block::Span;
    use op::DeviceError;
    use request::RequestId;

    /// So many atoms.
    #[derive(Clone, Debug)]
    struct Contents(u64);

    impl Payload for Contents {
        fn atoms(&self) -> u64 {
            self.0
        }
        fn zero(atoms: u64) -> Self {
            Contents(atoms)
        }
        fn slice(&self, _: u64, atoms: u64) -> Self {
            Contents(atoms)
        }
        fn concat(parts: &[Self]) -> Self {
            Contents(parts.iter().map(Payload::atoms).sum())
        }
        fn checksum(&self, _: Checksum) -> u32 {
            0
        }
        fn from_bytes(bytes: &[u8]) -> Self {
            Contents(bytes.len() as u64 / block::ATOM_BYTES)
        }
        fn append_to(&self, out: &mut Vec<u8>) {
            out.resize(out.len() + (self.0 * block::ATOM_BYTES) as usize, 0);
        }
    }

    /// Lengths of the portions in which events are handled.
    fn portions(mut events: Vec<Event<Contents>>) -> Vec<usize> {
        let mut lengths = Vec::new();
        while !events.is_empty() {
            lengths.push(portion(&events));
            events.drain(..portion(&events));
        }
        lengths
    }

    fn write(atoms: u64) -> Event<Contents> {
        let command = Command::Write { data: Contents(atoms), fua: false };
        Event::Arrived(Request { id: RequestId(1), span: Span::new(0, atoms), command })
    }

    fn read(parts: &[u64]) -> Event<Contents> {
        let parts = parts.iter().copied().map(Contents).collect();
        Event::Completed(Done { id: OpId(1), result: Ok(Answer::Data(parts)) })
    }

    #[test]
    fn after_a_mebibyte_the_devices_are_given_what_there_is() {
        assert_eq!(portions(vec![write(2048), write(2048), Event::Tick]), [1, 1, 1]);
        assert_eq!(portions(vec![read(&[1024, 1024]), write(8), read(&[2040]), read(&[8])]), [1, 2, 1]);
        let failed = Event::Completed(Done { id: OpId(1), result: Err(DeviceError::Gone) });
        assert_eq!(portions(vec![Event::Tick, failed, Event::Late(OpId(2))]), [3]);
        assert_eq!(portions((0..1_000).map(|_| write(8)).collect()), [256, 256, 256, 232]);
    }
}

//! Fronts: where requests come from. Each is a [`crate::port::Port`]: it speaks a protocol on sockets and hands the engine requests.
//!
//! The clients of a volume are served by the volume's own thread ([`nbd::Front`]), or by threads of their own, which answer what is in memory
//! themselves ([`Crew`]). The volume cannot tell which ([`Clients`]).
//!
//! ```text
//!   sockets ─▶ Front ─▶ volume            one thread, no hop
//!   sockets ─▶ Front ─▶ Hand ═══▶ Crew ─▶ volume
//!                        └─ pages              reads of what is in memory end here
//! ```

mod claims;
mod crew;
mod crossing;
mod hand;
pub mod nbd;

use std::ops::Add;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_engine::request::Reply;

use crate::back::run::Run;
use crate::port::Port;

pub use crew::{Crew, HANDS_MAX};
use nbd::{Front, Guest};

/// The clients of one volume.
pub trait Clients: Port {
    /// Lets a client in that has arrived in the lobby for this volume.
    fn admit(&mut self, guest: Guest);
    /// The engine's answer. Of a client that is gone: dropped.
    fn reply(&mut self, reply: Reply<Run>);
    /// Clients connected now.
    fn connections(&self) -> usize;
    /// What was answered without the engine, which counts everything else.
    fn tally(&self) -> Tally;
    /// From now on nothing is acknowledged but by the engine. (It is to stop: then what it does not know would be lost.)
    fn rest(&mut self);
    /// It does not stop after all: the rest is over.
    fn wake(&mut self);
    /// Takes no new requests (ESHUTDOWN). What was admitted is answered, then each connection is closed.
    fn shutdown(&mut self);
}

/// Requests that front threads have answered themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub reads: u64,
    pub read_atoms: u64,
    pub writes: u64,
}

impl Add for Tally {
    type Output = Tally;
    fn add(self, other: Tally) -> Tally {
        Tally { reads: self.reads + other.reads, read_atoms: self.read_atoms + other.read_atoms, writes: self.writes + other.writes }
    }
}

/// The same as one thread counts it, for others to read.
#[derive(Default)]
struct Answered {
    reads: AtomicU64,
    read_atoms: AtomicU64,
    writes: AtomicU64,
}

impl Answered {
    fn read(&self, atoms: u64) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.read_atoms.fetch_add(atoms, Ordering::Relaxed);
    }

    fn write(&self) {
        self.writes.fetch_add(1, Ordering::Relaxed);
    }

    fn tally(&self) -> Tally {
        let [reads, read_atoms, writes] = [&self.reads, &self.read_atoms, &self.writes].map(|count| count.load(Ordering::Relaxed));
        Tally { reads, read_atoms, writes }
    }
}

impl Clients for Front {
    fn admit(&mut self, guest: Guest) {
        Front::admit(self, guest);
    }

    fn reply(&mut self, reply: Reply<Run>) {
        Front::reply(self, reply);
    }

    fn connections(&self) -> usize {
        Front::connections(self)
    }

    fn tally(&self) -> Tally {
        Tally::default()
    }

    fn rest(&mut self) {}

    fn wake(&mut self) {}

    fn shutdown(&mut self) {
        Front::shutdown(self);
    }
}

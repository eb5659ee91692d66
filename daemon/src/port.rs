//! How sockets take part in a volume's one loop: a port says which descriptors it cares for, the loop says which are ready.
//! Nothing here waits: the loop sleeps once for all ports and both disks.

use std::os::fd::RawFd;

use tidegate_engine::Event;
use tidegate_engine::request::Room;
use tidegate_engine::time::Instant;

use crate::back::run::Run;

/// What a port wants to hear of one descriptor, from now on until it says otherwise (level-triggered: as long as data lies
/// unread, the descriptor is ready again).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    /// Unique in the port, and never used again for another descriptor.
    pub token: u64,
    pub fd: RawFd,
    pub readable: bool,
    /// Both false: not watched any more. The port may close the descriptor as soon as it has said so, but where others
    /// may have copies of it, only when it is asked again; or it may come back to it later.
    pub writable: bool,
}

/// Sockets and what is spoken on them.
pub trait Port {
    /// Changes of interest since the last call, appended.
    fn interests(&mut self, out: &mut Vec<Interest>);
    /// The descriptor is ready (or has failed: both are true then). Appends events for the engine, at most `room` of them, and
    /// subtracts what it used. A token that is gone may still come: ignored. What is left unread for want of room must not stay
    /// wanted as readable, or the loop spins.
    fn ready(&mut self, token: u64, readable: bool, writable: bool, room: &mut Room, events: &mut Vec<Event<Run>>);
    /// Room grew again: sockets that were left unread because there was none are read now.
    fn resume(&mut self, room: &mut Room, events: &mut Vec<Event<Run>>);
    /// Called once at the end of each turn: sends what is queued, one `writev` per connection.
    fn send(&mut self);
    /// The next moment (of the volume's clock) at which the port wants [`Port::tick`].
    fn deadline(&self) -> Option<Instant>;
    fn tick(&mut self, now: Instant);
}

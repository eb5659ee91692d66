//! The lobby and one volume behind it, as one port: clients shake hands in the first and are handed to the second, as between threads.

use tidegate_daemon::back::run::Run;
use tidegate_daemon::front::nbd::{Address, Exports, Front, Options};
use tidegate_daemon::port::{Interest, Port};
use tidegate_engine::Event;
use tidegate_engine::request::{Reply, Room};
use tidegate_engine::time::Instant;

/// Tokens of the volume's front; those of the lobby are below.
const VOLUME: u64 = 1 << 62;

pub struct Fronts {
    lobby: Front,
    volume: Front,
    /// What the lobby wants to hear of, not asked for yet.
    said: Vec<Interest>,
}

impl Fronts {
    /// Only the first export has a volume behind it: guests of the others are closed.
    pub fn new(options: Options) -> Fronts {
        let volume = Front::volume(options.exports.get(0).clone());
        Fronts { lobby: Front::lobby(options).expect("the front listens"), volume, said: Vec::new() }
    }

    pub fn addresses(&self) -> Vec<Address> {
        self.lobby.addresses()
    }

    pub fn uris(&self) -> Vec<String> {
        self.lobby.uris()
    }

    pub fn connections(&self) -> usize {
        assert!(self.lobby.seated() >= self.lobby.connections() + self.volume.connections());
        self.lobby.connections() + self.volume.connections()
    }

    pub fn is_idle(&self) -> bool {
        self.lobby.is_idle() && self.volume.is_idle()
    }

    pub fn stop_listening(&mut self) {
        self.lobby.stop_listening();
    }

    /// Only the volume stops; the lobby does not know it yet.
    pub fn shutdown_volume(&mut self) {
        self.volume.shutdown();
    }

    pub fn shutdown(&mut self) {
        self.lobby.shutdown();
        self.volume.shutdown();
    }

    pub fn reply(&mut self, reply: Reply<Run>) {
        self.volume.reply(reply);
    }
}

fn nothing() -> Room {
    Room { requests: 0, bytes: 0 }
}

impl Port for Fronts {
    fn interests(&mut self, out: &mut Vec<Interest>) {
        out.append(&mut self.said);
        let of_volume = out.len();
        self.volume.interests(out);
        out[of_volume..].iter_mut().for_each(|interest| interest.token |= VOLUME);
    }

    fn ready(&mut self, token: u64, readable: bool, writable: bool, room: &mut Room, events: &mut Vec<Event<Run>>) {
        if token >= VOLUME {
            return self.volume.ready(token - VOLUME, readable, writable, room, events);
        }
        self.lobby.ready(token, readable, writable, &mut nothing(), &mut Vec::new());
    }

    fn resume(&mut self, room: &mut Room, events: &mut Vec<Event<Run>>) {
        // First the lobby's turn, then the volume's: who has arrived in the one begins with the next of the other.
        self.lobby.resume(&mut nothing(), &mut Vec::new());
        self.lobby.interests(&mut self.said);
        for guest in self.lobby.guests().into_iter().filter(|guest| guest.export() == 0) {
            self.volume.admit(guest);
        }
        self.volume.resume(room, events);
    }

    fn send(&mut self) {
        self.volume.send();
    }

    fn deadline(&self) -> Option<Instant> {
        [self.lobby.deadline(), self.volume.deadline()].into_iter().flatten().min()
    }

    fn tick(&mut self, now: Instant) {
        self.lobby.tick(now);
        self.volume.tick(now);
    }
}

/// An export with no name and no text.
pub fn exports(bytes: u64, block_bytes: u32) -> Exports {
    let (name, description) = Default::default();
    Exports::one(tidegate_daemon::front::nbd::Export { name, description, bytes, read_only: false, clients: Vec::new(), block_bytes })
}

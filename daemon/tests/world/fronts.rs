//! The lobby and one volume behind it, as one port: clients shake hands in the first and are handed to the second, as between threads. Of the
//! volume's front threads, if it has any, only its own end is in the test's thread.

use std::sync::Arc;

use tidegate_daemon::back::run::Run;
use tidegate_daemon::front::nbd::{Address, Exports, Front, Options};
use tidegate_daemon::front::{Clients, Crew};
use tidegate_daemon::port::{Interest, Port};
use tidegate_daemon::volume::Clock;
use tidegate_engine::Event;
use tidegate_engine::request::{Reply, Room};
use tidegate_engine::time::{Duration, Instant};
use tidegate_pages::Pages;

/// Tokens of the volume's front; those of the lobby are below.
const VOLUME: u64 = 1 << 62;

pub struct Fronts {
    lobby: Front,
    volume: Volume,
    /// What the lobby wants to hear of, not asked for yet.
    said: Vec<Interest>,
}

/// Whoever serves the clients of the volume.
enum Volume {
    Front(Box<Front>),
    Crew(Box<Crew>),
}

impl Fronts {
    /// Only the first export has a volume behind it: guests of the others are closed. `threads`: how many serve its clients; 0: nobody else.
    pub fn new(options: Options, threads: usize) -> Fronts {
        let export = options.exports.get(0).clone();
        let volume = match threads {
            0 => Volume::Front(Box::new(Front::volume(export).expect("a descriptor"))),
            threads => Volume::Crew(Box::new(Crew::new(threads, &export, Duration::ZERO, Clock::start()).expect("threads"))),
        };
        Fronts { lobby: Front::lobby(options).expect("the front listens"), volume, said: Vec::new() }
    }

    /// Those of the volume.
    pub fn clients(&mut self) -> &mut dyn Clients {
        match &mut self.volume {
            Volume::Front(front) => &mut **front,
            Volume::Crew(crew) => &mut **crew,
        }
    }

    fn clients_now(&self) -> &dyn Clients {
        match &self.volume {
            Volume::Front(front) => &**front,
            Volume::Crew(crew) => &**crew,
        }
    }

    pub fn addresses(&self) -> Vec<Address> {
        self.lobby.addresses()
    }

    pub fn uris(&self) -> Vec<String> {
        self.lobby.uris()
    }

    pub fn connections(&self) -> usize {
        let connections = self.lobby.connections() + self.clients_now().connections();
        assert!(self.lobby.seated() >= connections);
        connections
    }

    /// Its front threads read and write these pages.
    pub fn remember(&mut self, pages: &Arc<Pages>) {
        let Volume::Crew(crew) = &mut self.volume else { panic!("only threads have memory of their own") };
        crew.remember(pages);
    }

    /// Clients are served by threads of their own.
    pub fn has_threads(&self) -> bool {
        matches!(self.volume, Volume::Crew(_))
    }

    pub fn is_idle(&self) -> bool {
        let Volume::Front(front) = &self.volume else { panic!("nobody knows that of threads") };
        self.lobby.is_idle() && front.is_idle()
    }

    pub fn stop_listening(&mut self) {
        self.lobby.stop_listening();
    }

    /// Only the volume stops; the lobby does not know it yet.
    pub fn shutdown_volume(&mut self) {
        self.clients().shutdown();
    }

    pub fn shutdown(&mut self) {
        self.lobby.shutdown();
        self.clients().shutdown();
    }

    /// One that shakes hands cannot be watched.
    pub fn unwatched(&mut self, token: u64) {
        self.lobby.unwatched(token);
    }

    pub fn reply(&mut self, reply: Reply<Run>) {
        self.clients().reply(reply);
    }
}

fn nothing() -> Room {
    Room::none()
}

impl Port for Fronts {
    fn interests(&mut self, out: &mut Vec<Interest>) {
        out.append(&mut self.said);
        let of_volume = out.len();
        self.clients().interests(out);
        out[of_volume..].iter_mut().for_each(|interest| interest.token |= VOLUME);
    }

    fn ready(&mut self, token: u64, readable: bool, writable: bool, room: &mut Room, events: &mut Vec<Event<Run>>) {
        if token >= VOLUME {
            return self.clients().ready(token - VOLUME, readable, writable, room, events);
        }
        self.lobby.ready(token, readable, writable, &mut nothing(), &mut Vec::new());
    }

    fn resume(&mut self, room: &mut Room, events: &mut Vec<Event<Run>>) {
        // First the lobby's turn, then the volume's: who has arrived in the one begins with the next of the other.
        self.lobby.resume(&mut nothing(), &mut Vec::new());
        self.lobby.interests(&mut self.said);
        for guest in self.lobby.guests().into_iter().filter(|guest| guest.export() == 0) {
            self.clients().admit(guest);
        }
        self.clients().resume(room, events);
    }

    fn send(&mut self) {
        self.clients().send();
    }

    fn deadline(&self) -> Option<Instant> {
        [self.lobby.deadline(), self.clients_now().deadline()].into_iter().flatten().min()
    }

    fn tick(&mut self, now: Instant) {
        self.lobby.tick(now);
        self.clients().tick(now);
    }
}

/// An export with no name and no text.
pub fn exports(bytes: u64, block_bytes: u32) -> Exports {
    let (name, description) = Default::default();
    Exports::one(tidegate_daemon::front::nbd::Export { name, description, bytes, read_only: false, clients: Vec::new(), block_bytes })
}

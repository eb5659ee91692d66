//! The clients' way in, by the contract that the daemon's fronts keep: no more arrives than the engine has room for, and of what only reads less
//! than of the rest (`Room::for_reads`); a few places are for FLUSHes. A read that does not fit waits, later ones behind it, and what changes something goes past them.

use super::{Scene, Simulation};
use crate::stamp::Stamps;
use std::collections::VecDeque;
use tidegate_engine::request::{Outcome, Reply, Request, Room};
use tidegate_engine::{Event, World};

/// Who wants to ask, and what waits for room.
#[derive(Default)]
pub(super) struct Entrance {
    /// Workers whose next request is still to be drawn.
    pub crowd: VecDeque<u32>,
    /// What only reads, in order.
    reads: VecDeque<Request<Stamps>>,
    /// What does not fit though it changes something: nothing more is drawn before it has come in.
    change: Option<Request<Stamps>>,
}

impl Entrance {
    /// All connections are cut.
    pub fn clear(&mut self) {
        *self = Entrance::default();
    }

    /// The first of those that wait for room, and have it now.
    fn pop_waiting(&mut self, room: &Room) -> Option<Request<Stamps>> {
        if self.reads.front().is_some_and(|read| fits(read, room)) {
            return self.reads.pop_front();
        }
        self.change.take_if(|change| fits(change, room))
    }

    /// May one more be drawn? Not where what waits needs room of which others would leave nothing.
    fn is_open(&self, room: &Room) -> bool {
        room.requests > 0 && self.change.is_none() && self.reads.front().is_none_or(|read| read.payload_bytes() <= room.bytes)
    }

    /// A request was drawn. It comes in, or waits.
    fn admit(&mut self, request: Request<Stamps>, room: &Room) -> Option<Request<Stamps>> {
        let comes_behind = request.reads() && !self.reads.is_empty() && request.payload_bytes() > 0;
        if !comes_behind && fits(&request, room) {
            return Some(request);
        }
        if request.reads() {
            self.reads.push_back(request)
        } else {
            self.change = Some(request)
        }
        None
    }
}

fn fits(request: &Request<Stamps>, room: &Room) -> bool {
    let bytes = request.payload_bytes();
    let most = if request.reads() { room.for_reads() } else { room.has_place(request.kind()).then_some(room.bytes) };
    most.is_some_and(|most| bytes <= most)
}

impl Simulation {
    /// Requests of waiting workers arrive, as many as the engine has room for.
    pub(super) fn admit(&mut self) {
        let mut room = self.engine.room();
        let scene = &mut self.scene;
        while let Some(request) = scene.next_request(&room) {
            room.take(request.kind(), request.payload_bytes());
            scene.arrive(request, &mut self.events);
        }
    }
}

impl Scene {
    /// The next one that comes in.
    fn next_request(&mut self, room: &Room) -> Option<Request<Stamps>> {
        if self.closed {
            return None;
        }
        if let Some(request) = self.entrance.pop_waiting(room) {
            return Some(request);
        }
        while self.entrance.is_open(room) {
            let worker = self.entrance.crowd.pop_front()?;
            let Some(request) = self.load.next(worker) else { continue };
            if let Some(request) = self.entrance.admit(request, room) {
                return Some(request);
            }
        }
        None
    }

    pub(super) fn arrive(&mut self, request: Request<Stamps>, events: &mut Vec<Event<Stamps>>) {
        if let Some(outcome) = self.fronts.answer(&request) {
            return self.answer_at_front(&request, outcome);
        }
        self.oracle.submit(&request);
        self.patience.ask(request.id, request.reads(), self.agenda.now());
        events.push(Event::Arrived(request));
    }

    /// A front answers at once.
    pub(super) fn answer_at_front(&mut self, request: &Request<Stamps>, outcome: Outcome<Stamps>) {
        self.oracle.submit(request);
        let now = self.agenda.now();
        self.trace.front(now, request);
        self.reply(now, Reply { id: request.id, result: Ok(outcome) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_engine::block::Span;
    use tidegate_engine::payload::Payload;
    use tidegate_engine::request::{Command, RequestId};

    fn request(id: u64, atoms: u64, command: Command<Stamps>) -> Request<Stamps> {
        Request { id: RequestId(id), span: Span::new(0, atoms), command }
    }

    fn write(id: u64, atoms: u64) -> Request<Stamps> {
        request(id, atoms, Command::Write { data: Stamps::zero(atoms), fua: false })
    }

    /// Which of these come in, one after the other, and which of the others then, where there is room for all.
    #[track_caller]
    fn check(mut room: Room, asked: Vec<Request<Stamps>>, come: &[u64], later: &[u64]) {
        let mut entrance = Entrance::default();
        let mut came = Vec::new();
        for request in asked {
            assert!(entrance.is_open(&room), "{request:?} is not drawn");
            if let Some(request) = entrance.admit(request, &room) {
                room.take(request.kind(), request.payload_bytes());
                came.push(request.id.0);
            }
        }
        assert_eq!(came, come);
        let whole = Room::whole(64, 1 << 30);
        let waited: Vec<u64> = std::iter::from_fn(|| entrance.pop_waiting(&whole)).map(|request| request.id.0).collect();
        assert_eq!(waited, later);
    }

    #[test]
    fn what_changes_something_passes_reads_that_have_no_room() {
        let read = |id, atoms| request(id, atoms, Command::Read);
        let flush = |id| request(id, 0, Command::Flush);
        let status = |id| request(id, 8, Command::Status { tiers: false, one: false });
        // Of eight places reads leave one to others.
        check(Room::whole(8, 66 << 20), (0..8).map(|id| read(id, 8)).chain([flush(8)]).collect(), &[0, 1, 2, 3, 4, 5, 6, 8], &[7]);
        // And of the bytes a half: a small read comes behind a large one, a question that brings nothing does not.
        let half = (33 << 20) / 512;
        let asked = vec![read(0, half), read(1, 16), read(2, 8), status(3), write(4, half)];
        check(Room::whole(16, 66 << 20), asked, &[0, 3, 4], &[1, 2]);
    }

    #[test]
    fn nothing_is_drawn_behind_a_change_that_has_no_room() {
        let mut entrance = Entrance::default();
        let room = Room { bytes: 4_096, read_bytes: 0, ..Room::whole(8, 66 << 20) };
        assert!(entrance.admit(write(0, 9), &room).is_none() && !entrance.is_open(&room));
        assert!(entrance.pop_waiting(&room).is_none());
        assert_eq!(entrance.pop_waiting(&Room { bytes: 4_608, ..room }).map(|request| request.id.0), Some(0));
        // Nor behind a read for which not even changes leave room.
        assert!(entrance.admit(request(1, 8, Command::Read), &room).is_none() && entrance.is_open(&room));
        assert!(!entrance.is_open(&Room { bytes: 4_095, ..room }));
    }
}

//! Replies: what is still to leave. Until then its clients know nothing of it, and no FLUSH that comes covers it.

use std::collections::VecDeque;

use crate::payload::Payload;
use crate::request::{Command, Kind, Outcome, Reply, RequestError};

use super::Engine;

/// In the order in which they leave.
pub(super) struct Replies<P>(VecDeque<Untold<P>>);

struct Untold<P> {
    reply: Reply<P>,
    /// Which acknowledgement of a change it is, if it is one.
    acknowledgement: Option<u64>,
}

impl<P> Default for Replies<P> {
    fn default() -> Self {
        Replies(VecDeque::new())
    }
}

impl<P> Replies<P> {
    pub fn push(&mut self, reply: Reply<P>) {
        self.0.push_back(Untold { reply, acknowledgement: None });
    }
    /// `number`: which acknowledgement it is; they come in their order.
    fn push_acknowledgement(&mut self, reply: Reply<P>, number: u64) {
        self.0.push_back(Untold { reply, acknowledgement: Some(number) });
    }
    pub fn pop(&mut self) -> Option<Reply<P>> {
        self.0.pop_front().map(|untold| untold.reply)
    }
    /// The first one that no client knows of.
    fn first_acknowledgement(&self) -> Option<u64> {
        self.0.iter().find_map(|untold| untold.acknowledgement)
    }
}

impl<P: Payload> Engine<P> {
    pub(super) fn answer(&mut self, number: usize, result: Result<Outcome<P>, RequestError>) {
        let reply = self.end_request(number, result);
        self.replies.push(reply);
    }

    /// A change is done, and in this group of the log.
    pub(super) fn acknowledge(&mut self, number: usize, group: u64) {
        let acknowledgement = self.flushes.unpromised.acknowledge();
        self.flushes.unpromised.note(acknowledgement, group, self.journal.durable_group());
        let reply = self.end_request(number, Ok(Outcome::Done));
        self.replies.push_acknowledgement(reply, acknowledgement);
    }

    /// A change is done, and at the origin only so far: if it gets into the log, that is noted then.
    pub(super) fn acknowledge_passed(&mut self, number: usize) {
        let acknowledgement = self.flushes.unpromised.acknowledge();
        let reply = self.end_request(number, Ok(Outcome::Done));
        self.replies.push_acknowledgement(reply, acknowledgement);
    }

    /// How many acknowledgements clients may know of.
    pub(super) fn told(&self) -> u64 {
        self.flushes.unpromised.told(self.replies.first_acknowledgement())
    }

    fn end_request(&mut self, number: usize, result: Result<Outcome<P>, RequestError>) -> Reply<P> {
        let active = self.requests.remove(number);
        self.arrivals.bytes_in_flight -= active.request.payload_bytes();
        match active.request.kind() {
            Kind::Read => {
                self.arrivals.reads_in_flight -= 1;
                self.arrivals.read_bytes_in_flight -= active.request.payload_bytes();
            }
            Kind::Flush => self.arrivals.flushes_in_flight -= 1,
            Kind::Change => {}
        }
        let latency = self.now.since(active.arrived);
        match active.request.command {
            Command::Read => self.latencies.read.record(latency),
            Command::Write { .. } => {
                self.latencies.write.record(latency);
                self.splitting.answered(active.part, active.request.span.atoms, latency);
                if active.converts {
                    self.detouring.answered(self.now, active.part);
                }
            }
            Command::Flush => {
                self.latencies.flush.record(latency);
                self.detouring.flushed(self.now, active.arrived);
            }
            Command::Cache | Command::Trim { .. } | Command::Zero { .. } | Command::Status { .. } => {}
        }
        self.commit_answered(number, &active.request.command, latency);
        Reply { id: active.request.id, result }
    }
}

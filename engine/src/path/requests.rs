//! Requests: each has a place from its arrival to its reply (`replies`). Where it is on its way, its stage says; for what it waits there, its reason.
//!
//! ```text
//!   arrives ─▶ held until recovery has ended ─▶ held until what fronts wrote before is in the log ─▶ Waiting ─▶ the stage of its flow ─▶ reply
//!     └ refused: a stop, a detach                                   (`front_writes`; most wait for neither)
//! ```

use std::collections::VecDeque;

use crate::cache::split::Part;
use crate::payload::Payload;
use crate::probe::{Phase, WaitReason};
use crate::request::{Command, Kind, Reply, Request, RequestError, Room};
use crate::time::Instant;

use super::Engine;
use super::read::Reading;
use super::status::Querying;
use super::through::Passing;
use super::write::Writing;

/// What has come in.
#[derive(Default)]
pub(super) struct Arrivals {
    /// Contents that requests in flight have brought or are to be given.
    pub bytes_in_flight: u64,
    /// Of clients' requests that only read: how many there are, and their bytes.
    pub reads_in_flight: usize,
    pub read_bytes_in_flight: u64,
    pub flushes_in_flight: usize,
    /// Requests that arrived before recovery ended.
    pub held: VecDeque<usize>,
    /// When a client last asked for anything.
    pub last: Instant,
}

/// A request in flight.
pub(super) struct Active<P> {
    pub request: Request<P>,
    pub arrived: Instant,
    /// Of a FLUSH: the acknowledgements that its client may have known of by then.
    pub acknowledged: u64,
    /// A write that is for the log, where only small ones are.
    pub converts: bool,
    /// Of a long sequential write, or for the origin for another reason.
    pub part: Part,
    pub stage: Stage<P>,
    /// What it waits for, for people.
    pub waits: WaitReason,
    /// Since when it has been the oldest write, and has had to wait.
    pub first_since: Option<Instant>,
    /// What it will be merged with has been asked for.
    pub is_foreseen: bool,
    /// Of the whole blocks of a TRIM or zeroes, so many are zeros already.
    pub zeroed: u64,
}

/// Where a request is on its way.
pub(super) enum Stage<P> {
    /// Not looked at yet, or for its turn.
    Waiting,
    Reading(Reading<P>),
    /// Being merged, or on its way to the log.
    Writing(Writing<P>),
    /// On its way past the log to the origin.
    Through(Passing<P>),
    Querying(Querying),
    /// Placed and written, or a FLUSH: waits until what it is promised is durable.
    Promised,
}

impl<P: Payload> Engine<P> {
    /// What the engine takes now. A front that reads zero stops reading its sockets.
    pub fn room(&self) -> Room {
        let whole = Room::whole(self.config.requests_max, self.config.bytes_max);
        Room {
            requests: whole.requests.saturating_sub(self.requests.len()),
            bytes: whole.bytes.saturating_sub(self.arrivals.bytes_in_flight),
            other_requests: whole.other_requests.saturating_sub(self.requests.len() - self.arrivals.flushes_in_flight),
            read_requests: whole.read_requests.saturating_sub(self.arrivals.reads_in_flight + self.around.requests()),
            read_bytes: whole.read_bytes.saturating_sub(self.arrivals.read_bytes_in_flight),
        }
    }

    pub(super) fn arrive(&mut self, request: Request<P>) {
        let refused = self.stopping || matches!(self.phase, Phase::Refused | Phase::Stopped) || self.is_refused_by_detach(&request.command);
        if refused {
            let result = Err(RequestError::Shutdown);
            self.replies.push(Reply { id: request.id, result });
            return;
        }
        assert!(request.span.end() <= self.config.geometry.volume_atoms, "the front checks the bounds of a request");
        self.arrivals.last = self.now;
        self.arrivals.bytes_in_flight += request.payload_bytes();
        match request.kind() {
            Kind::Read => {
                self.arrivals.reads_in_flight += 1;
                self.arrivals.read_bytes_in_flight += request.payload_bytes();
            }
            Kind::Flush => self.arrivals.flushes_in_flight += 1,
            Kind::Change => {}
        }
        match &request.command {
            Command::Read => self.counters.reads += 1,
            Command::Write { .. } => self.counters.writes += 1,
            Command::Trim { .. } | Command::Zero { .. } => self.counters.trims += 1,
            Command::Flush => {
                self.counters.flushes += 1;
                self.splitting.flushed();
            }
            Command::Cache | Command::Status { .. } => {}
        }
        let waits = if self.phase == Phase::Recovering { WaitReason::Recovery } else { WaitReason::Turn };
        let acknowledged = if matches!(request.command, Command::Flush) { self.told() } else { 0 };
        let converts = matches!(request.command, Command::Write { .. }) && self.converter.takes(request.span);
        let part = self.part_of_sequence(&request);
        let (arrived, stage) = (self.now, Stage::Waiting);
        let (first_since, is_foreseen, zeroed) = (None, false, 0);
        let active = Active { request, arrived, acknowledged, converts, part, stage, waits, first_since, is_foreseen, zeroed };
        let number = self.requests.insert(active);
        self.note_commit(number);
        match self.phase {
            Phase::Recovering => self.arrivals.held.push_back(number),
            _ if self.waits_for_front_writes(&self.requests.get(number).request) => self.hold_for_front_writes(number),
            _ => self.begin(number),
        }
    }

    pub(super) fn begin(&mut self, number: usize) {
        match self.requests.get(number).request.command {
            Command::Read => self.begin_read(number),
            Command::Cache => self.begin_prefetch(number),
            Command::Write { .. } => self.begin_write(number),
            Command::Trim { .. } | Command::Zero { .. } => self.intake.push_back(number),
            Command::Flush => self.begin_flush(number),
            Command::Status { one, .. } => self.begin_status(number, one),
        }
    }

    /// Is one of them on its way to the log or the origin, or waits for a promise?
    pub(super) fn has_writing_requests(&self) -> bool {
        self.requests.iter().any(|(_, active)| matches!(active.stage, Stage::Writing(_) | Stage::Through(_) | Stage::Promised))
    }
}

//! Operations: each is given its number when it starts, and whoever asked for it is told when it ends.

use crate::block::Slot;
use crate::fault_point::FaultPoint;
use crate::op::{Action, Answer, Class, DeviceError, DeviceId, Done, Op, OpId};
use crate::payload::Payload;
use crate::queue::{Answered, Queue};
use crate::slab::Slab;
use crate::spin::Motor;
use crate::time::Instant;

use super::{Engine, recover, scrub};

/// Those that a queue or a device has.
#[derive(Default)]
pub(super) struct Operations {
    pub under_way: Slab<UnderWay>,
    /// Of the last one.
    serial: u64,
}

/// An operation that a queue or a device has.
pub(super) struct UnderWay {
    pub id: OpId,
    pub owner: Owner,
    pub device: DeviceId,
    /// The motor has been told that somebody asks for the origin.
    pub demand: bool,
}

/// Who is told when an operation ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum Owner {
    Read { request: usize, part: usize },
    Ahead { first: Slot },
    Merge { request: usize, edge: usize },
    Data { write: usize },
    Pages { first_seq: u64, pages: u32 },
    CacheFlush,
    Headers { first: u32, sets: u32 },
    Map,
    Superblock { copy: u32 },
    DestageRead { piece: usize, read: usize },
    DestageWrite { piece: usize },
    DestageZero { piece: usize },
    Clean { portion: usize },
    Complete { completion: usize },
    OriginFlush,
    FirstFlush,
    Through { write: usize },
    ThroughFlush,
    Status { request: usize },
    MarkFlush,
    Mark { block: u64 },
    Gauge,
    Recovery(recover::Step),
    Scrub(scrub::Step),
    Discard { set: u32 },
    Spin,
}

/// How an operation has ended that gives nothing.
pub(super) type Ended = Result<(), DeviceError>;

impl<P: Payload> Engine<P> {
    pub(super) fn complete(&mut self, done: Done<P>) {
        let UnderWay { device, owner, .. } = *self.operations.under_way.get(done.id.place());
        let is_gone = matches!((device, &done.result), (DeviceId::Origin, Err(DeviceError::Gone)));
        if matches!(owner, Owner::Spin) {
            self.end_one(done);
        } else {
            match self.queues[device as usize].done(self.now, done) {
                Answered::One(done) => self.end_one(done),
                Answered::Merged(all) => all.into_iter().for_each(|done| self.end_one(done)),
            }
        }
        // Whoever has found that out, and though each part of a merged one is asked for again and may meet an origin that is back. (Last: what it
        // has left there itself was on its way when it went.)
        if is_gone {
            self.origin_forgot();
        }
    }

    fn end_one(&mut self, done: Done<P>) {
        let UnderWay { id, owner, device, demand } = self.operations.under_way.remove(done.id.place());
        assert!(id == done.id, "an operation ends once");
        if matches!(owner, Owner::Spin) {
            return self.motor_answered(done.result);
        }
        if let (DeviceId::Origin, Some(motor)) = (device, &mut self.rotation.motor) {
            motor.used(self.now);
        }
        if demand {
            self.demand_served();
        }
        let result = done.result;
        let is_suspect = self.flushes.suspect.remove(&id);
        if let Owner::Recovery(recover::Step::Fence { block, crc }) = owner {
            return self.fence_read(id, block, crc, result);
        }
        if self.is_degraded() && self.forget_late(owner) {
            return;
        }
        if is_suspect && result.is_ok() && self.repeat_suspect(owner) {
            return;
        }
        match (device, &result) {
            (DeviceId::Cache, Err(error)) => self.cache_error(*error),
            (DeviceId::Cache, Ok(_)) => {}
            // Reads tell it themselves; what is asked in passing tells nothing.
            (DeviceId::Origin, _)
                if matches!(owner, Owner::Read { .. } | Owner::Status { .. } | Owner::Mark { .. } | Owner::Gauge | Owner::Recovery(_)) => {}
            (DeviceId::Origin, result) => self.note_life(&result.as_ref().map(drop).map_err(|error| *error)),
        }
        match owner {
            Owner::Read { request, part } => self.read_done(id, request, part, result),
            Owner::Ahead { first } => self.ahead_done(first, result),
            Owner::Merge { request, edge } => self.merge_done(request, edge, result),
            Owner::Data { write } => self.data_done(write, result.map(drop)),
            Owner::Pages { first_seq, pages } => self.pages_done(first_seq, pages, result.map(drop)),
            Owner::CacheFlush => self.cache_flush_done(result.map(drop)),
            Owner::Headers { first, sets } => self.headers_done(first, sets, result.map(drop)),
            Owner::Map => self.map_done(result.map(drop)),
            Owner::Superblock { copy } => self.superblock_done(copy, result.map(drop)),
            Owner::DestageRead { piece, read } => self.destage_read_done(piece, read, result),
            Owner::DestageWrite { piece } | Owner::DestageZero { piece } => self.destage_write_done(piece, result.map(drop)),
            Owner::Clean { portion } => self.portion_read(portion, result),
            Owner::Complete { completion } => self.completion_read(completion, result),
            Owner::FirstFlush => self.first_flush_done(result.map(drop)),
            Owner::OriginFlush => self.origin_flush_done(result.map(drop)),
            Owner::Through { write } => self.through_done(write, result.map(drop)),
            Owner::ThroughFlush => self.through_flush_done(result.map(drop)),
            Owner::Status { request } => self.status_done(id, request, result),
            Owner::MarkFlush => self.mark_flush_done(result.map(drop)),
            Owner::Mark { block } => self.mark_done(id, block, result),
            Owner::Gauge => self.gauge_done(id, result),
            Owner::Recovery(step) => self.recovery_done(step, result),
            Owner::Scrub(step) => self.scrub_done(step, result),
            Owner::Discard { set } => self.discard_done(set, result.map(drop)),
            Owner::Spin => unreachable!("the motor has been told"),
        }
    }

    /// A write to the SSD that was in flight when a flush failed counts for nothing: it is done again. False: it was no such write.
    #[cold]
    fn repeat_suspect(&mut self, owner: Owner) -> bool {
        match owner {
            Owner::Data { write } => self.repeat_data(write),
            Owner::Pages { first_seq, pages } => {
                self.meet(FaultPoint::SuspectPagesRepeated);
                (first_seq..first_seq + u64::from(pages)).for_each(|seq| self.journal.page_again(seq));
            }
            Owner::Headers { first, sets } => self.headers_done(first, sets, Err(DeviceError::Medium)),
            Owner::Map => self.map_done(Err(DeviceError::Medium)),
            Owner::Superblock { copy } => self.superblock_done(copy, Err(DeviceError::Medium)),
            Owner::Scrub(step) => return self.scrubber.repeats(step),
            Owner::Read { .. }
            | Owner::Ahead { .. }
            | Owner::Merge { .. }
            | Owner::CacheFlush
            | Owner::DestageRead { .. }
            | Owner::DestageWrite { .. }
            | Owner::DestageZero { .. }
            | Owner::Clean { .. }
            | Owner::Complete { .. }
            | Owner::OriginFlush
            | Owner::FirstFlush
            | Owner::Through { .. }
            | Owner::ThroughFlush
            | Owner::Status { .. }
            | Owner::MarkFlush
            | Owner::Mark { .. }
            | Owner::Gauge
            | Owner::Recovery(_)
            // Nothing depends on it.
            | Owner::Discard { .. }
            | Owner::Spin => return false,
        }
        true
    }

    pub(super) fn start(&mut self, device: DeviceId, class: Class, action: Action<P>, owner: Owner) -> OpId {
        let demand = device == DeviceId::Origin && self.note_demand(owner);
        let id = self.name(UnderWay { id: OpId(0), owner, device, demand });
        if device == DeviceId::Cache {
            self.note_wear(class, &action, owner);
        }
        self.queues[device as usize].push(self.now, class as u32, Op { id, device, class, action });
        id
    }

    /// Gives an operation its number.
    pub(super) fn name(&mut self, operation: UnderWay) -> OpId {
        let place = self.operations.under_way.insert(operation);
        self.operations.serial += 1;
        let id = OpId::new(self.operations.serial, place);
        self.operations.under_way.get_mut(place).id = id;
        id
    }

    /// Queues that may give something out: not the origin's while it does not turn.
    pub(super) fn queues_open(&self) -> usize {
        if self.rotation.motor.as_ref().is_none_or(Motor::takes) { self.queues.len() } else { DeviceId::Origin as usize }
    }

    pub(super) fn queue_deadline(&self) -> Option<Instant> {
        self.queues[..self.queues_open()].iter().filter_map(Queue::deadline).filter(|&at| at > self.now).min()
    }
}

/// The payloads of a read, as one.
pub(super) fn joined<P: Payload>(answer: Answer<P>) -> P {
    match answer {
        Answer::Data(pieces) => P::concat(&pieces),
        Answer::Done | Answer::Allocation(_) | Answer::Power(_) => panic!("a read is answered with data"),
    }
}

//! Neighbours: what lies around a miss is read and kept behind the reply, where `cache/neighbours` finds that it pays.
//!
//! ```text
//! a read that missed ── answered ──▶ worth it? ──▶ a read of the origin for nobody ──▶ fill
//! ```
//! It is a read as any other, so what changes meanwhile is not kept; it begins only while the disk turns, is of the class of fills, and never
//! makes anybody wait for room. Who misses what is on its way already waits for that.

use std::ops::Range;

use crate::block::{Block, Span};
use crate::cache::neighbours::{Circumstances, Neighbours};
use crate::cache::split::Part;
use crate::config::{Config, Fill, Placement, ReadAround};
use crate::op::{Class, DeviceId, OpId};
use crate::payload::Payload;
use crate::probe::WaitReason;
use crate::request::{Command, Request, RequestId};
use crate::wear::Cause;

use super::origin::Took;
use super::read::Why;
use super::{Active, Engine, Stage};

/// Neighbourhoods that are read at a time.
const MOST: usize = 2;
/// Reads of the origin for one: what is scattered more than that is left to whoever asks for it.
const HOLES: usize = 8;

pub(super) struct Around {
    judge: Neighbours,
    /// Under way: the request, and its blocks.
    reading: Vec<(usize, Range<u64>)>,
    shared: Vec<Shared>,
}

/// A read of the origin around a miss, and the parts of clients' reads that have asked for something of it meanwhile.
struct Shared {
    op: OpId,
    span: Span,
    sharers: Vec<(usize, usize)>,
}

impl Around {
    pub fn new(config: &Config) -> Self {
        Around {
            judge: Neighbours::new(config.geometry.slots(), u64::from(config.geometry.block_atoms)),
            reading: Vec::new(),
            shared: Vec::new(),
        }
    }

    /// Requests that it has under way.
    pub fn requests(&self) -> usize {
        self.reading.len()
    }

    /// Is it one of ours, for nobody?
    pub fn is_reading(&self, number: usize) -> bool {
        self.reading.iter().any(|(reading, _)| *reading == number)
    }

    /// A read of the origin has been begun around a miss.
    pub fn share(&mut self, op: OpId, span: Span) {
        self.shared.push(Shared { op, span, sharers: Vec::new() });
    }

    /// A read of the origin, for a client or around a miss.
    pub fn note_read(&mut self, span: Span, why: Why, took: Took) {
        self.judge.read(span.start, span.atoms, why == Why::Around, took.waited, took.busy);
    }

    pub fn bytes(&self) -> u64 {
        self.judge.bytes()
    }
}

impl<P: Payload> Engine<P> {
    /// A client's read has been answered that had to ask the origin.
    pub(super) fn look_around(&mut self, span: Span, why: Why) {
        if !self.config.reads_around() || why == Why::Prefetch || why == Why::Around {
            return;
        }
        let (block, blocks) = self.blocks_of(span);
        self.around.judge.missed(block, blocks);
        let circumstances = Circumstances { displaces: !self.has_places_to_spare(), sleeps: self.rotation.motor.is_some() };
        // It would not be kept where something else has to go for it.
        let is_passing = !self.admission.may_keep(why == Why::Sequential) && self.displaces();
        if is_passing || self.has_cache_failed() || self.stopping || self.around.reading.len() == MOST || self.asleep().is_some() {
            return;
        }
        let zone = match self.config.read_around {
            ReadAround::Always => Some(self.around.judge.next(block)),
            ReadAround::Judged | ReadAround::Never => self.around.judge.worth(block, blocks, circumstances),
        };
        let Some(zone) = zone else { return };
        let (volume, last) = self.blocks_of(Span::new(0, self.config.geometry.volume_atoms));
        let zone = zone.start..zone.end.min(volume.0 + last);
        let is_under_way = self.around.reading.iter().any(|(_, reading)| reading.start < zone.end && zone.start < reading.end);
        let blocks = zone.end - zone.start;
        if !is_under_way && self.is_within_budget(Cause::Fill) && self.has_room_for_fill(Block(zone.start), blocks) {
            self.begin_around(zone);
        }
    }

    /// Is there a place for what nobody has asked for? The other half of the log is left to what somebody asks for: where that finds no place, it
    /// is kept only when it is missed again (`admission`).
    fn has_places_to_spare(&self) -> bool {
        self.sets.live_slots * 2 < self.config.geometry.slots()
    }

    fn begin_around(&mut self, zone: Range<u64>) {
        let size = self.block_atoms();
        let volume = Span::new(0, self.config.geometry.volume_atoms);
        let span = Span::new(zone.start * size, (zone.end - zone.start) * size).intersection(volume);
        let parts = self.bridged_holes(span);
        if parts.is_empty() || parts.len() > HOLES {
            return;
        }
        // Nobody is told when it ends.
        let request = Request { id: RequestId(u64::MAX), span, command: Command::Cache };
        let number = self.requests.insert(Active {
            request,
            arrived: self.now,
            acknowledged: 0,
            converts: false,
            part: Part::default(),
            stage: Stage::Waiting,
            waits: WaitReason::Read,
            first_since: None,
            is_foreseen: false,
            zeroed: 0,
        });
        self.counters.around_reads += 1;
        self.around.reading.push((number, zone));
        self.begin_parts(number, Why::Around, parts);
    }

    /// Is all of `span` on its way already? Then this part of a client's read waits for that: a second read of the same place would cost a
    /// disk another turn.
    pub(super) fn join_around(&mut self, number: usize, part: usize, span: Span) -> bool {
        let Some(shared) = self.around.shared.iter_mut().find(|shared| shared.span.contains(span)) else { return false };
        shared.sharers.push((number, part));
        // Somebody waits for it now.
        self.queues[DeviceId::Origin as usize].raise(self.now, shared.op, Class::Client);
        true
    }

    /// One of these reads has ended.
    pub(super) fn answer_sharers(&mut self, op: OpId, payload: Option<&P>) {
        let Some(place) = self.around.shared.iter().position(|shared| shared.op == op) else { return };
        let Shared { span, sharers, .. } = self.around.shared.swap_remove(place);
        for (number, part) in sharers {
            self.part_shared(number, part, payload.map(|payload| (span, payload)));
        }
    }

    /// It has been read, or cannot be; what it was is left to the fill.
    pub(super) fn end_around(&mut self, number: usize) {
        self.around.reading.retain(|(reading, _)| *reading != number);
        self.requests.remove(number);
    }
}

impl Config {
    /// Is what lies around a miss read, where it pays? Only where fills wait for nobody and have places of their own.
    pub(super) fn reads_around(&self) -> bool {
        self.read_around != ReadAround::Never && self.fill() == Fill::Behind && self.placement == Placement::Log
    }
}

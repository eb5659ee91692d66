//! The life of a set: opened for a stream, sealed when full, its headers written in both places, free again when nothing names it.
//!
//! Headers are handed out only after the OPEN of this life is durable: until then recovery may still believe in the life before,
//! and must find its header. Those that are due together and lie side by side are one write, in either place; nobody needs them before the
//! next checkpoint, so some are let come together first (a set that dies meanwhile needs none). A set is reused only when
//! [`Sets::is_reusable`](crate::cache::sets::Sets::is_reusable) says so (`release`).

use crate::block::{Slot, Span};
use crate::cache::format::header::Header;
use crate::cache::format::journal::Record;
use crate::cache::format::{Position, SetState};
use crate::cache::sets::{HeaderState, Set};
use crate::cache::stream::Stream;
use crate::fault_point::FaultPoint;
use crate::op::{Action, Class, DeviceId, Zone};
use crate::payload::{Payload, Pieces};

use super::{Ended, Engine, Owner};

/// Times that the headers of a set are written again because one failed.
const HEADER_TRIES: u8 = 4;
/// Sets whose headers are under way at once, at most, for each of those that are let come together: after a crash with a long log those of thousands
/// are due in one moment.
const UNDER_WAY: u32 = 16;

/// Headers of sealed sets on their way to the SSD.
#[derive(Default)]
pub(super) struct HeaderWrites {
    /// Sets whose headers wait for their OPEN to be durable, or for others.
    pub due: Vec<u32>,
    /// Sets whose headers were written and not flushed.
    pub written: Vec<u32>,
    /// Sets with the lives whose headers were given up, while nothing tells what they hold.
    untold: Vec<(u32, u64)>,
    /// Sets whose headers are being written.
    under_way: u32,
    /// As they were last looked at. Nothing has become possible until this is another.
    looked: Looked,
}

#[derive(Default, PartialEq)]
struct Looked {
    durable_group: u64,
    due: usize,
    /// A checkpoint waits for them.
    is_needed: bool,
    /// All that could be written was begun.
    is_all: bool,
}

impl<P: Payload> Engine<P> {
    /// The open set of a stream; a free one is opened if there is none. The caller has made sure that there is a free set.
    pub(super) fn open_set(&mut self, stream: Stream) -> u32 {
        if let Some(set) = self.open[usize::from(stream.number())] {
            return set;
        }
        let group = self.journal.group();
        let set = self.sets.open(stream, group).expect("room was checked before");
        let life = self.sets.get(set).life;
        self.journal.push(&Record::Open { set, life, stream: stream.number() });
        self.note_record();
        self.open[usize::from(stream.number())] = Some(set);
        set
    }

    pub(super) fn seal_set(&mut self, stream: Stream, set: u32) {
        assert!(self.open[usize::from(stream.number())].take() == Some(set));
        self.push_seal(set);
    }

    /// The set takes no more slots.
    pub(super) fn push_seal(&mut self, set: u32) {
        let life = self.sets.get(set).life as u32;
        self.journal.push(&Record::Seal { set, life });
        self.note_record();
        let sealed = Position { epoch: self.journal.epoch(), seq: self.journal.record_seq() };
        self.sets.seal(set, sealed);
        self.header_writes.due.push(set);
    }

    pub(super) fn pump_headers(&mut self) {
        if self.recovery.is_some() || self.has_cache_failed() {
            // Late headers are being read: operations in flight never overlap.
            return;
        }
        let (durable, is_needed) = (self.journal.durable_group(), self.checkpoint.is_running());
        let (limit, under_way) = (UNDER_WAY * self.config.headers_together, self.header_writes.under_way);
        let looked = Looked { durable_group: durable, due: self.header_writes.due.len(), is_needed, is_all: true };
        if self.header_writes.looked == looked || under_way > limit / 2 {
            return;
        }
        let mut due = std::mem::take(&mut self.header_writes.due);
        due.retain(|&set| self.wants_header(set));
        let (mut ready, mut waiting): (Vec<u32>, Vec<u32>) = due.into_iter().partition(|&set| self.sets.get(set).open_group <= durable);
        if ready.len() < self.config.headers_together as usize && !is_needed {
            waiting.append(&mut ready);
        }
        ready.sort_unstable();
        ready.dedup();
        let room = (limit - under_way) as usize;
        let is_all = ready.len() <= room;
        waiting.extend(ready.drain(room.min(ready.len())..));
        self.header_writes.looked = Looked { due: waiting.len(), is_all, ..looked };
        self.header_writes.due = waiting;
        let most = (self.limits[0].op_atoms / self.config.geometry.header_atoms()).max(1) as usize;
        // One that has failed goes alone: a bad place is no reason for the neighbours to fail again.
        let is_next = |a: &u32, b: &u32| *b == *a + 1 && [*a, *b].iter().all(|&set| self.sets.get(set).header_failures == 0);
        let runs: Vec<(u32, u32)> =
            ready.chunk_by(is_next).flat_map(|run| run.chunks(most)).map(|run| (run[0], run.len() as u32)).collect();
        for (first, sets) in runs {
            self.write_headers(first, sets);
        }
    }

    /// Is the header of this set still to be written?
    fn wants_header(&mut self, set: u32) -> bool {
        let info = self.sets.get(set);
        if info.header != HeaderState::Due {
            return false;
        }
        if info.live_count == 0 && !self.checkpoint.has_captured(set) {
            // No state map will ever name a live slot of it.
            self.sets.get_mut(set).header = HeaderState::None;
            return false;
        }
        true
    }

    /// Are headers under way that could not be written before?
    pub(super) fn is_trying_headers(&self) -> bool {
        let is_tried = |set: &Set| matches!(set.header, HeaderState::Writing { .. }) && set.header_failures >= HEADER_TRIES;
        self.sets.iter().any(|(_, set)| is_tried(set))
    }

    /// Hands out both copies of the headers of neighbouring sets.
    pub(super) fn write_headers(&mut self, first: u32, sets: u32) {
        let geometry = self.config.geometry;
        let encode = |set| self.header_of(set).encode_both(&geometry, self.config.format).map(|bytes| P::from_bytes(&bytes)).into();
        let (headers, copies): (Pieces<P>, Pieces<P>) = (first..first + sets).map(encode).unzip();
        for set in first..first + sets {
            self.sets.get_mut(set).header = HeaderState::Writing { left: 2, failed: 0 };
        }
        self.header_writes.under_way += sets;
        let places = [(Zone::Header, geometry.header(first), headers), (Zone::HeaderCopy, geometry.header_copy(first), copies)];
        for (zone, at, payloads) in places {
            let span = Span::new(at.start, u64::from(sets) * geometry.header_atoms());
            self.start(DeviceId::Cache, Class::Log, Action::Write(zone, span, payloads), Owner::Headers { first, sets });
        }
    }

    pub(super) fn header_of(&self, set: u32) -> Header {
        let info = self.sets.get(set);
        let entries = (0..self.sets.next_slot(set)).map(|slot| self.sets.entry(Slot { set, slot }, |block| self.full(block))).collect();
        Header { set, life: info.life, stream: info.stream, sealed: info.sealed, entries }
    }

    pub(super) fn headers_done(&mut self, first: u32, sets: u32, result: Ended) {
        self.counters.cache_write_failures += u64::from(result.is_err());
        (first..first + sets).for_each(|set| self.header_done(set, result));
    }

    fn header_done(&mut self, set: u32, result: Ended) {
        let HeaderState::Writing { left, failed } = self.sets.get(set).header else { panic!("a header is being written") };
        let (left, failed) = (left - 1, failed + u8::from(result.is_err()));
        self.header_writes.under_way -= u32::from(left == 0);
        let failures = self.sets.get(set).header_failures;
        if (left, failed) == (0, 2) && failures >= HEADER_TRIES {
            self.meet(FaultPoint::HeaderUnwritable);
        }
        self.sets.get_mut(set).header = match (left, failed) {
            // Two copies are wanted: once more, before one has to do.
            (0, 1..) if failures < HEADER_TRIES => {
                self.sets.get_mut(set).header_failures += 1;
                self.header_writes.due.push(set);
                HeaderState::Due
            }
            (0, 2) => HeaderState::Unwritable,
            (0, _) => {
                self.header_writes.written.push(set);
                HeaderState::Written
            }
            _ => HeaderState::Writing { left, failed },
        };
    }

    /// Of a set that had a header neither copy is good any more, and neither can be written: the journal is to tell its slots.
    pub(super) fn give_up_header(&mut self, set: u32) {
        self.meet(FaultPoint::HeaderUnwritable);
        let info = self.sets.get_mut(set);
        (info.header, info.header_failures) = (HeaderState::Unwritable, HEADER_TRIES);
        self.header_writes.untold.push((set, info.life));
    }

    /// Tells what sets hold of which nothing else does, in a group of its own like that of a checkpoint. Where the ring has no room for it, the next
    /// checkpoint tells them.
    pub(super) fn pump_untold(&mut self) {
        if !self.header_writes.untold.is_empty() && self.recovery.is_none() && !self.has_cache_failed() {
            self.tell_untold();
        }
    }

    #[cold]
    fn tell_untold(&mut self) {
        let mut untold = std::mem::take(&mut self.header_writes.untold);
        untold.retain(|&(set, life)| {
            let info = self.sets.get(set);
            info.life == life && info.state == SetState::Sealed && info.live_count > 0 && info.header != HeaderState::Durable
        });
        let entries: u64 = untold.iter().map(|&(set, _)| u64::from(self.sets.next_slot(set))).sum();
        if !self.journal_has_room(entries + 2) {
            self.header_writes.untold = untold;
            self.checkpoint.urgent = true;
            return self.want_checkpoint(None);
        }
        if !untold.is_empty() {
            self.close_group();
            untold.into_iter().for_each(|(set, _)| self.restate_set(set));
            let group = self.close_group();
            self.flushes.want(group);
        }
    }

    /// Is there a set of which nothing tells what it holds?
    pub(super) fn has_untold(&self) -> bool {
        !self.header_writes.untold.is_empty()
    }

    /// A checkpoint has told those of which no header is under way.
    pub(super) fn forget_untold(&mut self) {
        self.header_writes.untold.retain(|&(set, _)| self.sets.get(set).header != HeaderState::Unwritable);
    }

    /// A flush would free a set.
    pub(super) fn has_undurable_dying(&self) -> bool {
        self.sets.has_undurable_dying(self.journal.durable_group())
    }
}

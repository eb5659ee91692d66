//! Merge: a partly written block becomes a whole one, or one of more valid atoms, before the write takes its slot.
//!
//! ```text
//! edge → its older slot is in the window, or none is needed → merged
//!      └ being read, verified → merged; bad: again → clean: merged without it; dirty: the write fails
//! ```
//! The origin is never read: atoms never seen stay invalid. While older slots are read, a lock keeps other writes off the blocks.

use crate::block::{Atoms, Block, Slot, Span};
use crate::op::{Action, Answer, Class, DeviceError, DeviceId, Zone};
use crate::payload::Payload;
use crate::request::{Command, RequestError};

use super::write::{Piece, Writing};
use super::{Engine, Owner, Stage, joined};

/// Tries of reading the older slot of an edge.
const READ_TRIES: u32 = 3;

/// The partly written blocks of one request.
pub(super) struct Merge<P> {
    edges: Vec<Edge<P>>,
    /// Edges whose older slot is still being read.
    reading: u32,
    /// An older slot could not be read.
    failed: bool,
}

impl<P> Default for Merge<P> {
    fn default() -> Self {
        Merge { edges: Vec::new(), reading: 0, failed: false }
    }
}

impl<P: Payload> Merge<P> {
    /// The valid atoms of a block that is merged already.
    pub fn valid_atoms(&self, block: Block) -> Option<Atoms> {
        self.edges.iter().find(|edge| edge.block == block && edge.contents.is_some()).map(|edge| edge.valid)
    }

    /// Gives the merged block away, if it is an edge. `full`: all its atoms.
    pub fn take(&mut self, block: Block, full: Atoms) -> Option<Piece<P>> {
        let edge = self.edges.iter_mut().find(|edge| edge.block == block)?;
        let payload = edge.contents.take().expect("an edge is merged before it is placed, once");
        Some(Piece { block, blocks: 1, payload, valid: (edge.valid != full).then_some(edge.valid) })
    }
}

/// A partly written block.
struct Edge<P> {
    block: Block,
    /// Contents of the whole block; atoms outside `valid` are zero.
    contents: Option<P>,
    valid: Atoms,
    /// The older slot whose atoms are being read, and how often that has failed.
    source: Option<Slot>,
    failures: u32,
}

/// Blocks that one request holds while it merges, or goes through to the origin.
#[derive(Clone, Copy)]
pub(super) struct Lock {
    pub request: usize,
    pub block: Block,
    pub blocks: u64,
}

/// What becomes of an edge whose older slot could not be read.
enum Unreadable {
    Again,
    Clean,
    Dirty,
}

impl<P: Payload> Engine<P> {
    /// Prepares the partly written blocks of a request. True: some have to be read first.
    pub(super) fn begin_merge(&mut self, number: usize) -> bool {
        let mut merge = Merge::default();
        let mut reads = Vec::new();
        for span in self.data_spans(number) {
            let (first, blocks) = self.blocks_of(span);
            let last = Block(first.0 + blocks - 1);
            for block in [first, last].into_iter().take(if blocks == 1 { 1 } else { 2 }) {
                let mask = self.mask_of(block, span);
                if mask == self.full(block) {
                    continue;
                }
                let mut edge = Edge { block, contents: None, valid: mask, source: None, failures: 0 };
                if let Some(older) = self.passed_contents(block) {
                    edge = self.merge(number, edge, Some(older));
                } else if let Some(slot) = self.index.get(block)
                    && !mask.contains(self.valid_atoms(slot, block))
                {
                    match self.window.get(slot, 1) {
                        Some((older, _)) => edge = self.merge(number, edge, Some((older, self.valid_atoms(slot, block)))),
                        None => {
                            edge.source = Some(slot);
                            reads.push((merge.edges.len(), slot));
                        }
                    }
                } else {
                    edge = self.merge(number, edge, None);
                }
                merge.edges.push(edge);
            }
        }
        merge.reading = reads.len() as u32;
        for &(edge, slot) in &reads {
            self.sets.pin(slot, 1);
            let action = Action::Read(Zone::Data, self.slots_span(slot, 1));
            self.start(DeviceId::Cache, Class::Client, action, Owner::Merge { request: number, edge });
        }
        self.requests.get_mut(number).stage = Stage::Writing(Writing::new(merge));
        !reads.is_empty()
    }

    /// The whole block: the new atoms over the older ones, zeros where nothing is known.
    fn merge(&mut self, number: usize, mut edge: Edge<P>, older: Option<(P, Atoms)>) -> Edge<P> {
        let atoms = self.block_atoms();
        let base = edge.block.0 * atoms;
        let request = &self.requests.get(number).request;
        let newer = self.mask_of(edge.block, request.span);
        let (older, older_valid) = older.map_or((None, Atoms::NONE), |(payload, valid)| (Some(payload), valid));
        let mut parts: Vec<P> = Vec::new();
        let mut at = 0;
        while at < atoms as u32 {
            let is_new = newer.contains(Atoms::range(at, at + 1));
            let mut end = at + 1;
            while end < atoms as u32 && newer.contains(Atoms::range(end, end + 1)) == is_new {
                end += 1;
            }
            let length = u64::from(end - at);
            parts.push(match (&request.command, is_new, &older) {
                (Command::Write { data, .. }, true, _) => data.slice(base + u64::from(at) - request.span.start, length),
                (_, false, Some(older)) => older.slice(u64::from(at), length),
                _ => P::zero(length),
            });
            at = end;
        }
        edge.contents = Some(P::concat(&parts));
        edge.valid = newer.union(older_valid);
        // Above a zeroed range the rest is known too.
        if self.ranges.is_zeroed(edge.block) {
            edge.valid = self.full(edge.block);
        }
        edge.source = None;
        edge
    }

    /// The atoms of a block that count when a request has written its `span`.
    pub(super) fn valid_after(&self, number: usize, block: Block, span: Span) -> Atoms {
        let (newer, full) = (self.mask_of(block, span), self.full(block));
        if newer == full || self.ranges.is_zeroed(block) {
            return full;
        }
        if let Stage::Writing(Writing { merge, .. }) = &self.requests.get(number).stage
            && let Some(valid) = merge.valid_atoms(block)
        {
            return valid;
        }
        let older = match self.passed_contents(block) {
            Some((_, valid)) => valid,
            None => self.index.get(block).map_or(Atoms::NONE, |slot| self.valid_atoms(slot, block)),
        };
        newer.union(older)
    }

    pub(super) fn merging(&mut self, number: usize) -> &mut Merge<P> {
        match &mut self.requests.get_mut(number).stage {
            Stage::Writing(writing) => &mut writing.merge,
            Stage::Waiting | Stage::Reading(_) | Stage::Through(_) | Stage::Querying(_) | Stage::Promised => {
                panic!("a merge belongs to a write")
            }
        }
    }

    pub(super) fn merge_done(&mut self, number: usize, edge: usize, result: Result<Answer<P>, DeviceError>) {
        let part = &mut self.merging(number).edges[edge];
        let (slot, block) = (part.source.expect("this edge is being read"), part.block);
        let good = result.ok().map(joined::<P>).filter(|payload| payload.checksum() == self.sets.crc(slot));
        let older = match good {
            Some(payload) => Some((payload, self.valid_atoms(slot, block))),
            None => match self.merge_failed(number, edge, slot, block) {
                Unreadable::Again => return,
                Unreadable::Clean => None,
                Unreadable::Dirty => {
                    self.merging(number).failed = true;
                    None
                }
            },
        };
        self.sets.unpin(slot, 1);
        let part = self.merging(number).edges.remove(edge);
        let part = self.merge(number, part, older);
        let merge = self.merging(number);
        merge.edges.insert(edge, part);
        merge.reading -= 1;
        let (left, failed) = (merge.reading, merge.failed);
        if left > 0 {
            return;
        }
        if failed {
            self.locks.retain(|lock| lock.request != number);
            self.answer(number, Err(RequestError::Io));
        } else {
            self.intake.push_front(number);
        }
    }

    /// The older slot of an edge cannot be read: a few tries, then a clean one is dropped (the origin has its atoms)
    /// and a dirty one fails the write, which must not cost the atoms around it.
    fn merge_failed(&mut self, number: usize, edge: usize, slot: Slot, block: Block) -> Unreadable {
        let part = &mut self.merging(number).edges[edge];
        part.failures += 1;
        if part.failures < READ_TRIES {
            let action = Action::Read(Zone::Data, self.slots_span(slot, 1));
            self.start(DeviceId::Cache, Class::Client, action, Owner::Merge { request: number, edge });
            return Unreadable::Again;
        }
        if self.index.get(block) != Some(slot) {
            return Unreadable::Clean;
        }
        if self.sets.is_dirty(slot) {
            self.counters.corrupt_dirty_slots += 1;
            return Unreadable::Dirty;
        }
        // The PUT of this write takes its place.
        self.counters.corrupt_clean_slots += 1;
        Unreadable::Clean
    }
}

//! Merge: a partly written block becomes a whole one, or one of more valid atoms, before the write takes its slot.
//!
//! ```text
//! edge → its older contents are in memory, or none are needed → merged
//!      └ its older slot is being read, verified → merged; bad: again → clean: merged without it; dirty: the write fails
//! ```
//! The origin is never read: atoms never seen stay invalid. While older slots are read, a lock keeps other writes off the blocks. Those that wait
//! behind it may spare it the read, and their own older slots are read meanwhile.

use crate::block::{Atoms, Block, Slot, Span};
use crate::cache::ahead::Sharer;
use crate::op::{Action, Answer, Class, DeviceError, DeviceId, Zone};
use crate::payload::Payload;
use crate::request::{Command, RequestError};

use super::write::{PASSED, Piece, Writing};
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

impl Lock {
    pub fn covers(&self, block: Block) -> bool {
        self.block.0 <= block.0 && block.0 < self.block.0 + self.blocks
    }
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
        for span in self.data_spans(number) {
            for block in self.end_blocks(span) {
                let mask = self.mask_of(block, span);
                if mask == self.full(block) {
                    continue;
                }
                let mut edge = Edge { block, contents: None, valid: mask, source: None, failures: 0 };
                if let Some(older) = self.passed_contents(block) {
                    edge = self.merge(number, edge, Some(older));
                } else if let Some(slot) = self.older_slot(block, mask) {
                    let known = self.older_in_memory(block, slot).or_else(|| self.next_contents(number, block, mask, slot));
                    match known.or_else(|| self.older_ahead(number, merge.edges.len(), block, slot)) {
                        Some(older) => edge = self.merge(number, edge, Some(older)),
                        None => {
                            self.sets.pin(slot, 1);
                            edge.source = Some(slot);
                            merge.reading += 1;
                        }
                    }
                } else {
                    edge = self.merge(number, edge, None);
                }
                merge.edges.push(edge);
            }
        }
        let reads = merge.reading > 0;
        self.requests.get_mut(number).stage = Stage::Writing(Writing::new(merge));
        reads
    }

    /// The slot that a write of these atoms of a block has to be merged with.
    fn older_slot(&self, block: Block, mask: Atoms) -> Option<Slot> {
        self.index.get(block).filter(|&slot| !mask.contains(self.valid_atoms(slot, block)))
    }

    /// What this slot of a block holds, and which of it counts, if memory has it.
    fn older_in_memory(&mut self, block: Block, slot: Slot) -> Option<(P, Atoms)> {
        let (size, valid) = (self.block_atoms(), self.valid_atoms(slot, block));
        if let Some((older, _)) = self.window.get(slot, 1) {
            return Some((older, valid));
        }
        let memory = self.memory.as_mut()?;
        let page = memory.read(block, 1, |pages| P::from_pages(pages, 0, size))?;
        // A front's that is not in the log: this write would bring some of it there alone, before what that front has seen.
        let is_unlogged = memory.is_owed() || self.front_writes.covers(block, 1);
        (!is_unlogged).then_some((page, valid))
    }

    /// The same if it has been read ahead; if not, it is on its way to the edge.
    fn older_ahead(&mut self, number: usize, edge: usize, block: Block, slot: Slot) -> Option<(P, Atoms)> {
        if self.config.reads_ahead() {
            self.begin_ahead(slot, 1, Class::Client);
        }
        match self.take_ahead(Sharer::Edge { request: number, edge }, slot, 1) {
            Some(read) => read.map(|older| (older, self.valid_atoms(slot, block))),
            None => {
                self.read_older(number, edge, slot);
                None
            }
        }
    }

    fn read_older(&mut self, number: usize, edge: usize, slot: Slot) {
        self.end_burst();
        let action = Action::Read(Zone::Data, self.slots_span(slot, 1));
        self.start(DeviceId::Cache, Class::Client, action, Owner::Merge { request: number, edge });
    }

    /// A write waits behind a lock: what it will be merged with is read meanwhile, once. Not of blocks that others write before it, `ahead` of
    /// it or locked: what it needs of those will be in memory.
    pub(super) fn foresee_merge(&mut self, number: usize, ahead: &[Span]) {
        let is_foreseen = std::mem::replace(&mut self.requests.get_mut(number).is_foreseen, true);
        if is_foreseen || !self.config.reads_ahead() || self.has_cache_failed() || self.stopping {
            return;
        }
        for span in self.data_spans(number) {
            for block in self.end_blocks(span) {
                let whole = self.config.geometry.block_span(block);
                let is_locked = self.locks.iter().any(|lock| lock.covers(block));
                let comes_later = is_locked || ahead.iter().any(|&other| self.share_a_block(other, whole));
                let has_page = self.memory.as_mut().is_some_and(|memory| memory.next(block) == Some(block));
                let mask = self.mask_of(block, span);
                if !comes_later
                    && !has_page
                    && !self.through.covers(block, 1)
                    && let Some(slot) = self.older_slot(block, mask)
                    && self.next_contents(number, block, mask, slot).is_none()
                {
                    self.begin_ahead(slot, 1, Class::Client);
                }
            }
        }
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

    /// The slot that an edge waits for, and its block.
    fn source(&mut self, number: usize, edge: usize) -> (Slot, Block) {
        let edge = &self.merging(number).edges[edge];
        (edge.source.expect("this edge is being read"), edge.block)
    }

    /// What an edge waits for has been read ahead, from a slot on, or has to be read for it after all.
    pub(super) fn edge_ahead(&mut self, number: usize, edge: usize, read: Option<(Slot, &P)>) {
        let (slot, _) = self.source(number, edge);
        match read {
            Some((first, payload)) => {
                let size = self.block_atoms();
                self.older_read(number, edge, Some(payload.slice(u64::from(slot.slot - first.slot) * size, size)));
            }
            None => self.read_older(number, edge, slot),
        }
    }

    pub(super) fn merge_done(&mut self, number: usize, edge: usize, result: Result<Answer<P>, DeviceError>) {
        let (slot, _) = self.source(number, edge);
        let good = result.ok().map(joined::<P>).filter(|payload| payload.checksum(self.checksum) == self.sets.crc(slot));
        self.older_read(number, edge, good);
    }

    /// `read`: what the older slot of an edge holds, if it is what was written there.
    fn older_read(&mut self, number: usize, edge: usize, read: Option<P>) {
        let (slot, block) = self.source(number, edge);
        let older = match read {
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
        self.end_edge(number, edge, older);
    }

    /// Merges an edge that has waited with what is known of the rest of its block.
    fn end_edge(&mut self, number: usize, edge: usize, older: Option<(P, Atoms)>) {
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
            self.turn_away(number, RequestError::Io);
        } else {
            self.intake.push_front(number);
        }
    }

    /// Writes that have come meanwhile complete what waits to be merged (`next_contents`): nobody waits for its older slot any more. True: a block
    /// has been merged.
    pub(super) fn complete_edges(&mut self) -> bool {
        let mut waiting = Vec::new();
        for &Lock { request: number, .. } in &self.locks {
            if let Stage::Writing(writing) = &self.requests.get(number).stage {
                let edges = writing.merge.edges.iter().enumerate();
                waiting.extend(edges.filter_map(|(place, edge)| Some((number, place, edge.block, edge.valid, edge.source?))));
            }
        }
        let mut any = false;
        for (number, edge, block, mask, slot) in waiting {
            if let Some(next) = self.next_contents(number, block, mask, slot)
                && self.ahead.leave(slot, self.life_of(slot), Sharer::Edge { request: number, edge })
            {
                self.sets.unpin(slot, 1);
                self.end_edge(number, edge, Some(next));
                any = true;
            }
        }
        any
    }

    /// What the next write to this block brings, if one waits that leaves nothing of its older slot beside `mask`, which this one writes. So a stream
    /// whose requests do not end where blocks end waits for nothing but its last block. (In this block all of the next write is there then: before
    /// it is answered it might as well have been placed.)
    fn next_contents(&self, number: usize, block: Block, mask: Atoms, slot: Slot) -> Option<(P, Atoms)> {
        let whole = self.config.geometry.block_span(block);
        let mut others = self.intake.iter().take(PASSED).filter(|&&other| other != number).map(|&other| &self.requests.get(other).request);
        let next = others.find(|next| self.share_a_block(next.span, whole))?;
        let Command::Write { data, .. } = &next.command else { return None };
        let brings = self.mask_of(block, next.span);
        let leaves_nothing = mask.union(brings).contains(self.valid_atoms(slot, block));
        // What both write would be the first one's, and of the next one only a part would be there.
        if !leaves_nothing || !mask.intersection(brings).is_empty() {
            return None;
        }
        let part = whole.intersection(next.span);
        let before = part.start - whole.start;
        let zeros = |atoms: u64| (atoms > 0).then(|| P::zero(atoms));
        let brought = data.slice(part.start - next.span.start, part.atoms);
        let parts = [zeros(before), Some(brought), zeros(self.block_atoms() - before - part.atoms)];
        Some((P::concat(&parts.into_iter().flatten().collect::<Vec<P>>()), brings))
    }

    /// The older slot of an edge cannot be read: a few tries, then a clean one is dropped (the origin has its atoms)
    /// and a dirty one fails the write, which must not cost the atoms around it.
    fn merge_failed(&mut self, number: usize, edge: usize, slot: Slot, block: Block) -> Unreadable {
        let part = &mut self.merging(number).edges[edge];
        part.failures += 1;
        if part.failures < READ_TRIES {
            self.read_older(number, edge, slot);
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

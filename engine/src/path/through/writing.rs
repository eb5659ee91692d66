//! Writes to the origin: those of requests, and those of pages that it may have forgotten.

use crate::block::{ATOM_BYTES, Atoms, Block, Span};
use crate::cache::through::{Page, State};
use crate::config::Canary;
use crate::op::{Action, Class, DeviceError, DeviceId, Zone};
use crate::payload::{Payload, Pieces};
use crate::probe::Health;
use crate::request::{Command, RequestError};
use crate::time::Instant;

use super::super::origin::Writer;
use super::super::write::Piece;
use super::super::{Ended, Engine, Owner, Stage};
use super::{BUSY_MOST, OPERATIONS_MOST, REFUSED_PART, REWRITTEN_MOST, REWRITTEN_PART, TRIES, Write};

impl<P: Payload> Engine<P> {
    /// True: something was answered or let go that others may wait for.
    pub(in crate::path) fn pump_through(&mut self) -> bool {
        let awaited = self.origin.forget_awaited();
        let has_nothing = self.through.has_nothing() && awaited == 0 && !self.is_rescuing();
        self.through.forgive(self.now);
        if has_nothing { false } else { self.go_through(awaited) }
    }

    /// `awaited`: so many waited for reads of the origin to end.
    #[inline(never)]
    fn go_through(&mut self, awaited: usize) -> bool {
        let mut moved = false;
        for number in std::mem::take(&mut self.through.waiting) {
            if self.health() == Health::Unfenced || self.stopping {
                // Never acknowledged.
                let error = if self.stopping { RequestError::Shutdown } else { RequestError::Io };
                self.unlock(number);
                self.answer(number, Err(error));
                moved = true;
            } else if self.through.back_off.has_failed() && self.goes_back_to_log(number) {
                moved = true;
            } else if self.health() == Health::Fencing || !self.may_try() || !self.start_through(number) {
                self.through.waiting.push(number);
            }
        }
        if self.through.refused.at.is_some_and(|at| at <= self.now) {
            self.through.try_refused();
        }
        if self.through.refused.has_failed() && self.through.pages.are_tried() && self.through.pages.refused().next().is_none() {
            // It has been taken, or something else has come in its place.
            self.through.refused.succeeded();
            self.through.refused.at = None;
        }
        moved |= self.rescue_from_memory();
        self.rewrite_forgotten();
        // Nobody waits any more for some of what was closed to reads.
        if awaited > 0 {
            self.unpark_reads();
        }
        self.make_room_to_stop();
        self.settle_impatient();
        self.pump_through_flush();
        moved | self.release_pages()
    }

    /// May a write to the origin start? After a failure one at a time tries whether it is back.
    fn may_try(&self) -> bool {
        !self.through.back_off.is_waiting(self.now) && (!self.through.back_off.has_failed() || self.through.writes.is_empty())
    }

    fn start_through(&mut self, number: usize) -> bool {
        let (block, blocks) = self.blocks_of(self.requests.get(number).request.span);
        if !self.has_canary(Canary::KillAfterOriginWrite) {
            if self.has_clean(block, blocks) {
                if !self.journal_has_room(blocks) {
                    self.checkpoint.urgent = true;
                    return false;
                }
                self.begin_group_for(blocks);
                self.tickets.void(block, blocks);
                self.kill_live(block, blocks, false);
            }
            if self.is_in_limbo(block, blocks) {
                self.want_flush();
                self.note_awaited_group();
                return false;
            }
        }
        if self.is_origin_busy(block, blocks) {
            self.await_reads(block, blocks);
            return false;
        }
        let Stage::Through(passing) = &self.requests.get(number).stage else { panic!("it waits to go through") };
        let mut parts = Vec::new();
        for piece in &passing.pieces {
            self.origin_parts_of(piece.block, piece.blocks, &piece.payload, piece.valid, &mut parts);
        }
        self.write_origin(Some(number), (block, blocks), parts);
        true
    }

    /// Somebody reads or writes these blocks on the origin, or is about to.
    pub(in crate::path) fn is_origin_busy(&self, block: Block, blocks: u64) -> bool {
        let whole = self.blocks_span(block, blocks);
        self.origin.is_read(whole) || self.origin.is_written(whole) || self.destage.touches(whole)
    }

    /// What of some blocks goes to the origin: runs of valid atoms, joined to the last run where they follow it.
    fn origin_parts_of(&self, block: Block, blocks: u64, payload: &P, valid: Option<Atoms>, parts: &mut Vec<(Span, Pieces<P>)>) {
        let base = block.0 * self.block_atoms();
        let end = (base + blocks * self.block_atoms()).min(self.config.geometry.volume_atoms);
        let runs: Vec<(u64, u64)> = match valid {
            None => vec![(0, end - base)],
            Some(valid) => valid.runs().map(|run| (u64::from(run.start), u64::from(run.end))).collect(),
        };
        let most = self.limits[1].op_atoms;
        for (mut from, to) in runs {
            while from < to {
                let room = match parts.last() {
                    Some((span, _)) if span.end() == base + from => most - span.atoms,
                    _ => 0,
                };
                let atoms = (to - from).min(if room > 0 { room } else { most });
                let part = payload.slice(from, atoms);
                match parts.last_mut() {
                    Some((span, payloads)) if room > 0 => {
                        span.atoms += atoms;
                        payloads.push(part);
                    }
                    _ => parts.push((Span::new(base + from, atoms), [part].into())),
                }
                from += atoms;
            }
        }
    }

    fn write_origin(&mut self, request: Option<usize>, (block, blocks): (Block, u64), parts: Vec<(Span, Pieces<P>)>) -> usize {
        let forgotten = self.through.forgotten;
        let rest = parts.into();
        let write = self.through.writes.insert(Write { request, blocks, operations: 0, rest, error: None, forgotten });
        self.origin.begin_write(Writer::Through(write), self.blocks_span(block, blocks));
        match request {
            Some(_) => self.changed(block, blocks),
            None => self.tickets.void(block, blocks),
        }
        self.go_on_writing(write);
        write
    }

    /// Begins the next operations of a write, while not too many are under way.
    fn go_on_writing(&mut self, number: usize) {
        loop {
            let write = self.through.writes.get_mut(number);
            if write.operations as usize >= OPERATIONS_MOST {
                return;
            }
            let Some((span, payloads)) = write.rest.pop_front() else { return };
            write.operations += 1;
            let class = if write.request.is_some() { Class::Client } else { Class::Log };
            self.start(DeviceId::Origin, class, Action::Write(Zone::Origin, span, payloads), Owner::Through { write: number });
        }
    }

    /// Whose write it is; none: a page's.
    pub(in crate::path) fn through_request(&self, write: usize) -> Option<usize> {
        self.through.writes.get(write).request
    }

    pub(in crate::path) fn through_done(&mut self, number: usize, result: Ended) {
        let now = self.now;
        let write = self.through.writes.get_mut(number);
        write.operations -= 1;
        if let Err(error) = result {
            write.error = Some((error, write.error.map_or(now, |(_, since)| since)));
        }
        if write.error.is_some() {
            // It has failed whatever becomes of the rest.
            write.rest.clear();
        }
        self.go_on_writing(number);
        if self.through.writes.get(number).operations > 0 {
            return;
        }
        let write = self.through.writes.remove(number);
        self.origin.end_writes(Writer::Through(number));
        let holds = write.error.is_none() && write.forgotten == self.through.forgotten;
        let state = if holds { self.through.pages.next_written() } else { State::Unwritten };
        match write.request {
            None => self.page_written(number, state, write.error),
            Some(request) => {
                if write.error.is_some() {
                    self.may_have_landed(request, write.forgotten);
                }
                self.passed(request, state, write.error.map(|(error, _)| error));
            }
        }
        self.unpark_reads();
    }

    /// The write of a request has failed, and any part of it is on the origin. What the cache has of these blocks is dirty and shadows it; older
    /// pages do, and are written again. What a read has kept in memory while it was under way is what they held before.
    fn may_have_landed(&mut self, request: usize, forgotten: u64) {
        let (block, blocks) = self.blocks_of(self.requests.get(request).request.span);
        let span = self.blocks_span(block, blocks);
        self.through.pages.spoil(block, blocks);
        self.changed(block, blocks);
        // It may have been sent more than once (with its neighbours, then by itself), and what the first time left was there when the origin did not
        // flush: no later flush saves that (seed 2700124 of the refusing profile).
        if forgotten == self.through.forgotten {
            self.through.unsure.note(span)
        } else {
            self.through.unsure.doom(span)
        }
        self.through.since.get_or_insert(self.now);
    }

    /// A page was written once more.
    fn page_written(&mut self, write: usize, state: State, error: Option<(DeviceError, Instant)>) {
        match error {
            Some((error @ (DeviceError::Medium | DeviceError::NoSpace), when)) if self.may_set_aside() => {
                if self.through.pages.refuse(write) {
                    if self.through.refused.at.is_none() {
                        self.through.refused.failed(self.now);
                    }
                    if self.through.refused.failures_in_a_row() >= TRIES {
                        self.fail_refused(error, when);
                    }
                }
            }
            Some((error, _)) => {
                if error != DeviceError::Gone {
                    self.through.tried_until = self.through.pages.written_until(write).unwrap_or(self.through.tried_until);
                }
                self.through.pages.end_write(write, state);
                self.through.back_off.failed(self.now);
            }
            None => {
                self.through.pages.end_write(write, state);
                self.through.back_off.succeeded();
            }
        }
    }

    fn may_set_aside(&self) -> bool {
        let refused = self.through.pages.refused().count() as u64 * self.block_atoms() * ATOM_BYTES;
        refused < self.config.through_bytes / REFUSED_PART
    }

    /// The origin has said something about the write of a request.
    fn passed(&mut self, number: usize, state: State, error: Option<DeviceError>) {
        match error {
            Some(_) if self.goes_back_to_log(number) => return self.through.back_off.failed(self.now),
            // It waits for the origin to come back, like everything that only the origin can do.
            Some(DeviceError::Gone) => {
                self.through.waiting.push(number);
                return self.through.back_off.failed(self.now);
            }
            Some(error) => {
                self.unlock(number);
                let error = if error == DeviceError::NoSpace { RequestError::NoSpace } else { RequestError::Io };
                return self.answer(number, Err(error));
            }
            None => self.through.back_off.succeeded(),
        }
        let Stage::Through(passing) = std::mem::replace(&mut self.requests.get_mut(number).stage, Stage::Waiting) else {
            panic!("it was on its way through")
        };
        for piece in passing.pieces {
            self.tickets.void(piece.block, piece.blocks);
            self.takes_place(&piece);
            let Piece { block, blocks, payload, valid } = piece;
            self.through.pages.insert(block, Page { blocks, payload, valid, state });
            if self.has_canary(Canary::KillAfterOriginWrite) {
                self.kill_live(block, blocks, false);
            }
        }
        self.through.since.get_or_insert(self.now);
        self.unlock(number);
        let command = &self.requests.get(number).request.command;
        let fua = matches!(command, Command::Write { fua: true, .. } | Command::Zero { fua: true, .. } | Command::Trim { fua: true });
        if fua { self.settle(number) } else { self.acknowledge_passed(number) }
    }

    /// A write of these blocks waits for reads of them alone: no more of those begin.
    fn await_reads(&mut self, block: Block, blocks: u64) {
        let span = self.blocks_span(block, blocks);
        if self.origin.is_read(span) && !self.origin.is_written(span) && !self.destage.touches(span) {
            self.origin.await_reads(span);
        }
    }

    /// May a page of so many blocks be written once more beside those that are? There may be thousands, and they are no more urgent than what
    /// clients ask of the origin.
    fn may_rewrite(&self, blocks: u64) -> bool {
        let under_way = self.through.writes.iter().map(|(_, write)| write).filter(|write| write.request.is_none());
        let (writes, sum) = under_way.fold((0, 0), |(writes, sum), write| (writes + 1, sum + write.blocks));
        let bytes = (sum + blocks) * self.block_atoms() * ATOM_BYTES;
        writes == 0 || writes < REWRITTEN_MOST && bytes <= self.config.through_bytes / REWRITTEN_PART
    }

    /// Writes again what the origin may have forgotten: each in turn, behind the one that failed last. Zeros below it go first: it is held until
    /// then.
    fn rewrite_forgotten(&mut self) {
        if !self.may_try() {
            return;
        }
        let (mut busy, mut next) = (0, self.through.tried_until);
        let mut has_wrapped = false;
        loop {
            let Some((block, blocks)) = self.through.pages.next_unwritten(next) else {
                if std::mem::replace(&mut has_wrapped, true) {
                    return;
                }
                next = Block(0);
                continue;
            };
            if !self.may_try() || busy == BUSY_MOST || !self.may_rewrite(blocks) {
                return;
            }
            next = Block(block.0 + blocks);
            if self.waits_for_zeros(block, blocks) {
                self.through.pages.turn(block, State::Held);
                continue;
            }
            if self.is_origin_busy(block, blocks) {
                self.await_reads(block, blocks);
                busy += 1;
                continue;
            }
            let Page { payload, valid, .. } = self.through.pages.get(block).expect("found just now").clone();
            let mut parts = Vec::new();
            self.origin_parts_of(block, blocks, &payload, valid, &mut parts);
            let write = self.write_origin(None, (block, blocks), parts);
            self.through.pages.turn(block, State::Writing(write));
        }
    }
}

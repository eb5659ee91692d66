//! What fronts have written themselves: pages in memory that they have acknowledged already. Each turn begins with taking them over, before
//! anything that arrived with it: whoever asks after a reply finds what was written.
//!
//! ```text
//!   front: page, reply          here: drain → (nobody is merging or writing there) → all of it in one group of the log → may be made again
//! ```
//! Nothing can refuse what was acknowledged. So a front writes only as far as it is *allowed*: for each page that may be dirty a slot is kept and
//! room in the journal, and where that is not to be had nothing is allowed, and writes come as requests. What waits here (a lock, the origin, the
//! fence of a failed SSD) lets wait whatever may rest on it. Reads of it and questions for allocation are answered with it, but for the fence:
//! as long as nobody can say whether a failed SSD comes back with older contents, nobody who asks the engine then is given anything newer. (Fronts do
//! not ask it for what they find in memory: they go on answering reads of these pages from there.)

use std::collections::VecDeque;
use std::ops::Range;

use tidegate_pages::Hold;

use crate::block::{ATOM_BYTES, Block};
use crate::cache::stream::Source;
use crate::cache::through::{Page, State};
use crate::config::{Allocation, Canary, Config, Placement};
use crate::memory::Memory;
use crate::payload::Payload;
use crate::probe::{Health, Phase, WaitReason};
use crate::request::{Command, Request, RequestError};
use crate::runs::Runs;

use super::merge::Lock;
use super::write::Piece;
use super::{Engine, Stage};

/// Pages that may be dirty at once: 4 MiB.
const PAGES_MAX: u64 = 1024;

pub(super) struct FrontWrites<P> {
    /// Pages that may be dirty at once, at most.
    pages_max: usize,
    /// Drained, and not in the log yet: neighbouring blocks as one piece; what was drained later is behind what it replaces.
    pending: Vec<Piece<P>>,
    /// Their blocks.
    blocks: Runs,
    holds: Vec<Hold>,
    /// Which acknowledgement the newest of it is.
    acknowledgement: u64,
    /// Requests that wait for it, in their order.
    held: VecDeque<usize>,
}

impl<P> FrontWrites<P> {
    pub fn new(pages_max: usize) -> Self {
        FrontWrites {
            pages_max,
            pending: Vec::new(),
            blocks: Runs::default(),
            holds: Vec::new(),
            acknowledgement: 0,
            held: VecDeque::new(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Is any of these blocks still to come into the log?
    pub fn covers(&self, block: Block, blocks: u64) -> bool {
        self.blocks.overlaps(&(block.0..block.0 + blocks))
    }

    /// The others of these blocks, in runs.
    pub fn beside(&self, block: Block, blocks: u64) -> impl Iterator<Item = (Block, u64)> {
        self.blocks.gaps(block.0..block.0 + blocks).map(|gap| (Block(gap.start), gap.end - gap.start))
    }

    /// What is still to come into the log of these blocks, the newest of each, in order.
    pub fn newest(&self, block: Block, blocks: u64) -> Vec<(Block, u64, P)>
    where
        P: Payload,
    {
        let all = block.0..block.0 + blocks;
        let runs: Vec<Range<u64>> = self.blocks.overlapping(all.clone()).collect();
        if runs.is_empty() {
            return Vec::new();
        }
        // Gone through once, however many there are: the last piece that has a block has its newest. Each lies in one run.
        let mut pieces: Vec<Vec<usize>> = runs.iter().map(|run| vec![0; (run.end - run.start) as usize]).collect();
        for (place, piece) in self.pending.iter().enumerate() {
            let (start, end) = (piece.block.0.max(all.start), (piece.block.0 + piece.blocks).min(all.end));
            if start < end {
                let run = runs.partition_point(|run| run.end <= start);
                pieces[run][(start - runs[run].start) as usize..(end - runs[run].start) as usize].fill(place);
            }
        }
        let mut newest: Vec<(u64, u64, usize)> = Vec::new();
        for (block, piece) in runs.into_iter().flatten().zip(pieces.into_iter().flatten()) {
            match newest.last_mut() {
                Some((first, blocks, last)) if *last == piece && *first + *blocks == block => *blocks += 1,
                _ => newest.push((block, 1, piece)),
            }
        }
        let contents = |(block, blocks, piece): (u64, u64, usize)| {
            let Piece { block: first, blocks: all, payload, .. } = &self.pending[piece];
            let size = payload.atoms() / all;
            (Block(block), blocks, payload.slice((block - first.0) * size, blocks * size))
        };
        newest.into_iter().map(contents).collect()
    }

    fn push(&mut self, piece: Piece<P>) {
        self.blocks.insert(piece.block.0..piece.block.0 + piece.blocks);
        self.pending.push(piece);
    }

    fn take(&mut self) -> Vec<Piece<P>> {
        self.blocks = Runs::default();
        std::mem::take(&mut self.pending)
    }
}

/// The most that is ever allowed, with so much memory for pages.
pub(super) fn pages_max(config: &Config) -> usize {
    let geometry = &config.geometry;
    let block_bytes = u64::from(geometry.block_atoms) * ATOM_BYTES;
    let slots = geometry.slots();
    let most = (config.dirty_ram / 2 / block_bytes)
        .min(config.window_bytes / 8 / block_bytes)
        .min(config.ram / block_bytes / 8)
        .min(slots / 32)
        .min(PAGES_MAX);
    if config.fronts == 0 { 0 } else { most as usize }
}

impl<P: Payload> Engine<P> {
    /// Has a front written what the engine has not looked at?
    pub fn has_front_writes(&self) -> bool {
        self.memory.as_ref().is_some_and(Memory::is_owed)
    }

    /// Have they written nothing that is not taken over? So it is when a stop or a detach seals the log: whoever asks for one lets them rest before.
    pub(super) fn do_fronts_rest(&self) -> bool {
        !self.has_front_writes() || self.has_canary(Canary::LateFrontWrites)
    }

    /// Takes over what fronts have written until now. False: nothing.
    pub(super) fn take_front_writes(&mut self) -> bool {
        if !self.has_front_writes() {
            return false;
        }
        assert!(
            !self.is_sealing_stop() || self.has_canary(Canary::LateFrontWrites),
            "the log of a stop or a detach takes nothing more: fronts rest before"
        );
        let memory = self.memory.as_mut().expect("it is owed");
        let size = u64::from(self.config.geometry.block_atoms);
        let drained = memory.drain();
        for run in drained.chunk_by(|one, next| one.0.0 + 1 == next.0.0) {
            let (block, blocks) = (run[0].0, run.len() as u64);
            let contents: Vec<&[u8]> = run.iter().map(|(_, page)| page.bytes()).collect();
            let payload = P::from_pages(&contents, 0, blocks * size);
            self.front_writes.push(Piece { block, blocks, payload, valid: None });
            self.what_if.write(block, blocks, true);
            // What is read of it just now is old.
            self.tickets.void(block, blocks);
        }
        self.note_front_writes(drained.len() as u64);
        self.front_writes.holds.extend(drained.into_iter().map(|(_, page)| page));
        // Now, not when it has its group: a FLUSH that comes behind it may have to wait for that.
        self.front_writes.acknowledgement = self.flushes.unpromised.acknowledge();
        self.arrivals.last = self.now;
        self.pump_front_writes();
        true
    }

    /// Does it wait until what fronts have written is in the log?
    pub(super) fn waits_for_front_writes(&self, request: &Request<P>) -> bool {
        if self.front_writes.is_empty() {
            return false;
        }
        match request.command {
            Command::Write { .. } | Command::Trim { .. } | Command::Zero { .. } | Command::Flush => self.health() != Health::Unfenced,
            Command::Read | Command::Cache | Command::Status { .. } => {
                let (block, blocks) = self.blocks_of(request.span);
                matches!(self.health(), Health::Fencing | Health::Unfenced) && self.front_writes.covers(block, blocks)
            }
        }
    }

    #[cold]
    pub(super) fn hold_for_front_writes(&mut self, number: usize) {
        self.requests.get_mut(number).waits = WaitReason::Lock;
        self.front_writes.held.push_back(number);
    }

    /// Puts what was drained into the log, all of it or nothing.
    pub(super) fn pump_front_writes(&mut self) -> bool {
        if self.front_writes.is_empty() {
            return false;
        }
        match self.health() {
            Health::Whole | Health::Degraded => {}
            Health::Fencing => return false,
            Health::Unfenced => {
                // The newest contents are in memory alone, and nobody can say when they may be given.
                for number in std::mem::take(&mut self.front_writes.held) {
                    self.answer(number, Err(RequestError::Io));
                }
                return false;
            }
        }
        self.let_readers_go_on();
        if self.locks_before_front_writes().next().is_some() {
            return false;
        }
        if self.front_writes_wait_for_origin() {
            return false;
        }
        if self.is_stop_impatient() {
            self.give_up_promises();
        }
        // A front may write what it was allowed to before the mode changed. Who waits for what it replaces waits for this as well.
        self.postpone_home();
        let pieces = self.front_writes.take();
        if self.health() == Health::Whole {
            self.log_front_writes(pieces);
        } else {
            for Piece { block, blocks, payload, valid } in pieces {
                self.through.adopt(block, Page { blocks, payload, valid, state: State::Unwritten }, self.now);
            }
        }
        let memory = self.memory.as_mut().expect("its pages were drained");
        self.front_writes.holds.drain(..).for_each(|page| memory.settle(page));
        for number in std::mem::take(&mut self.front_writes.held) {
            self.begin(number);
        }
        true
    }

    /// Those that a fence has held, which is there by now.
    fn let_readers_go_on(&mut self) {
        let held = std::mem::take(&mut self.front_writes.held);
        let (held, free): (VecDeque<usize>, VecDeque<usize>) =
            held.into_iter().partition(|&number| self.waits_for_front_writes(&self.requests.get(number).request));
        self.front_writes.held = held;
        free.into_iter().for_each(|number| self.begin(number));
    }

    fn locks_before_front_writes(&self) -> impl Iterator<Item = &Lock> {
        self.locks.iter().filter(|lock| self.front_writes.covers(lock.block, lock.blocks))
    }

    /// An earlier write of one of these blocks is on its way to the origin, and nobody can take it back from there.
    fn front_writes_wait_for_through(&self) -> bool {
        self.locks_before_front_writes().any(|lock| matches!(self.requests.get(lock.request).stage, Stage::Through(_)))
    }

    /// What went past the log to the origin gets flushed there before the log has something newer of it: somebody waits for that.
    fn front_writes_wait_for_origin(&self) -> bool {
        let waits = self.modes.is_home() && (self.modes.is_waiting() || self.through.is_settling()) && !self.is_stop_impatient();
        waits && self.front_writes.pending.iter().any(|piece| self.through.covers(piece.block, piece.blocks))
    }

    /// Requests behind it, if it waits for what only the origin can do.
    pub(super) fn held_by_origin(&self) -> impl Iterator<Item = usize> + '_ {
        let waits = !self.front_writes.held.is_empty() && (self.front_writes_wait_for_origin() || self.front_writes_wait_for_through());
        waits.then_some(&self.front_writes.held).into_iter().flatten().copied()
    }

    pub(super) fn forget_held(&mut self, number: usize) {
        self.front_writes.held.retain(|&held| held != number);
    }

    fn log_front_writes(&mut self, pieces: Vec<Piece<P>>) {
        let blocks = pieces.iter().map(|piece| piece.blocks).sum();
        self.begin_group_for(self.journal_entries(blocks));
        self.counters.written_atoms += blocks * self.block_atoms();
        for piece in pieces {
            self.through.pages.remove(piece.block, piece.blocks);
            self.put(Source::Client, true, [piece], &[], 0);
        }
        self.flushes.unpromised.note(self.front_writes.acknowledgement, self.journal.group(), self.journal.durable_group());
    }

    /// Says how much fronts may write by themselves until the next turn.
    pub(super) fn allow_front_writes(&mut self) {
        if self.front_writes.pages_max == 0 {
            return;
        }
        let most = if self.may_fronts_write() { self.front_writes.pages_max.min(self.front_pages_in_memory()) } else { 0 };
        let memory = self.memory.as_mut().expect("fronts write to pages");
        if memory.allowed() != most {
            memory.allow(most);
        }
    }

    /// Would everything that they could write have its place?
    fn may_fronts_write(&self) -> bool {
        let is_plain = self.phase == Phase::Serving
            && self.recovery.is_none()
            && self.health() == Health::Whole
            && !self.stopping
            && !self.detaching
            && self.drain.is_none()
            && self.config.placement == Placement::Log
            && self.config.allocation == Allocation::ReadWrite
            && self.modes.is_back()
            && !self.modes.is_waiting();
        // What fronts wrote meanwhile would take the room away again that it waits for.
        let room = [WaitReason::Journal, WaitReason::Ram, WaitReason::Window];
        let is_short = self.is_starved() || room.into_iter().any(|room| self.first_waits_for(room));
        let kept = self.sets_kept_now(Source::Client) + self.front_sets(self.front_writes.pages_max) + 1;
        let entries = self.journal_entries(2 * self.front_writes.pages_max as u64);
        is_plain && !is_short && self.sets.free_count() > kept && self.journal_has_room(entries)
    }

    /// How many pages more may be in memory alone, or not flushed.
    fn front_pages_in_memory(&self) -> usize {
        let left = |most: u64, atoms: u64| most.saturating_sub(atoms * ATOM_BYTES) / (self.block_atoms() * ATOM_BYTES);
        let unwritten = left(self.dirty_share.bytes(), self.window.unwritten_atoms());
        unwritten.min(left(self.config.window_bytes, self.window.atoms())) as usize
    }

    /// Sets kept free for what fronts may write by themselves.
    pub(super) fn front_sets_kept(&self) -> u32 {
        self.memory.as_ref().map_or(0, |memory| self.front_sets(memory.allowed()))
    }

    fn front_sets(&self, pages: usize) -> u32 {
        if pages == 0 { 0 } else { (pages as u32).div_ceil(self.config.geometry.set_slots) + 1 }
    }

    /// Pages of the journal, likewise.
    pub(super) fn front_journal_pages(&self) -> u64 {
        match self.memory.as_ref().map_or(0, |memory| memory.allowed() as u64) {
            0 => 0,
            pages => self.journal_entries(pages).div_ceil(100) + 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::Checksum;

    /// However much lies beside it.
    #[test]
    fn what_lies_beside_it_is_a_few_runs() {
        let mut writes = FrontWrites::new(0);
        for (block, blocks) in [(20, 4), (7, 1), (8, 2), (7, 1)] {
            writes.push(Piece { block: Block(block), blocks, payload: (), valid: None });
        }
        let beside = |writes: &FrontWrites<()>| writes.beside(Block(8), 1 << 40).collect::<Vec<_>>();
        assert_eq!(beside(&writes), [(Block(10), 10), (Block(24), (1 << 40) - 16)]);
        assert!(writes.covers(Block(0), 8) && writes.covers(Block(23), 1) && !writes.covers(Block(10), 10));
        assert_eq!((writes.take().len(), beside(&writes)), (4, vec![(Block(8), 1 << 40)]));
    }

    /// As many atoms, the first of which has this number.
    #[derive(Clone, Debug, PartialEq)]
    struct Atoms(u64, u64);

    impl Payload for Atoms {
        fn atoms(&self) -> u64 {
            self.1
        }
        fn zero(atoms: u64) -> Self {
            Atoms(0, atoms)
        }
        fn slice(&self, start: u64, atoms: u64) -> Self {
            Atoms(self.0 + start, atoms)
        }
        fn concat(parts: &[Self]) -> Self {
            Atoms(parts[0].0, parts.iter().map(Payload::atoms).sum())
        }
        fn checksum(&self, _: Checksum) -> u32 {
            0
        }
        fn from_bytes(_: &[u8]) -> Self {
            unreachable!("no metadata")
        }
        fn append_to(&self, _: &mut Vec<u8>) {
            unreachable!("no metadata")
        }
    }

    /// Pieces that lie over each other in any way, against the last piece that has each block.
    #[test]
    fn of_each_block_it_is_the_newest_in_as_few_runs_as_can_be() {
        let mut chance = crate::draw::Draw::new(5);
        for _ in 0..500 {
            let mut writes = FrontWrites::new(0);
            let mut last = std::collections::BTreeMap::new();
            for piece in 0..chance.below(20) {
                let (block, blocks) = (chance.below(40), 1 + chance.below(6));
                let first = piece * 1_000;
                writes.push(Piece { block: Block(block), blocks, payload: Atoms(first, blocks * 8), valid: None });
                last.extend((0..blocks).map(|number| (block + number, first + number * 8)));
            }
            let (start, asked) = (chance.below(40), 1 + chance.below(20));
            let newest = writes.newest(Block(start), asked);
            let each = newest.iter().flat_map(|(block, blocks, payload)| (0..*blocks).map(|n| (block.0 + n, payload.0 + n * 8)));
            assert!(each.eq(last.range(start..start + asked).map(|(&block, &atom)| (block, atom))), "{newest:?}");
            assert!(newest.iter().all(|(_, blocks, payload)| payload.1 == blocks * 8), "{newest:?}");
            let joins =
                |one: &(Block, u64, Atoms), next: &(Block, u64, Atoms)| one.0.0 + one.1 == next.0.0 && one.2.0 + one.2.1 == next.2.0;
            assert!(newest.windows(2).all(|pair| !joins(&pair[0], &pair[1])), "{newest:?}");
        }
    }
}

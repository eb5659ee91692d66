//! Degraded: the SSD failed in service, and the volume goes on without it.
//!
//! ```text
//! it fails → Fencing: the host writes down that this cache misses writes from now on; nothing is acknowledged meanwhile
//!              ├ cannot → every write and FLUSH fails; tried again from time to time
//!              └ durable → Degraded: what is pinned in memory goes to the origin, and so does every write; FLUSH flushes the origin
//! ```
//! The order is the point: an SSD that comes back after a power cut holds older contents as dirty, and would write them over what was
//! acknowledged without it. The host refuses such a cache.
//!
//! Nothing is written to the SSD any more. What it alone holds stays in the index: reads and destaging try it (some SSDs fail by taking no
//! writes), a block that it does not give is an error until it is written as a whole. Ranges of zeros are known in memory and go home.

use crate::block::{ATOM_BYTES, Atoms, Block, Slot, Span};
use crate::cache::through::{Page, State};
use crate::cache::window::Window;
use crate::config::Canary;
use crate::fault_point::FaultPoint;
use crate::op::DeviceError;
use crate::payload::Payload;
use crate::probe::{Health, WaitReason};
use crate::request::{Command, RequestError};
use crate::runs::Runs;
use crate::time::{Duration, Instant};

use super::back_off::BackOff;
use super::merge::Lock;
use super::{Engine, Owner, Stage};

/// An SSD whose every write or flush fails for so long has failed. Shorter than the 30 s after which many systems reset a disk that does not
/// answer, long enough for the reset of a controller.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

pub(super) struct Degraded {
    health: Health,
    /// The host is to be asked.
    wanted: bool,
    /// Between two tries of the host.
    pub back_off: BackOff,
    /// Requests that the SSD was to answer: once fenced, the origin keeps what they are promised.
    promised: Vec<usize>,
    /// What memory has of dirty blocks goes home from there.
    pub rescue: Option<Rescue>,
    /// When the SSD failed.
    since: Option<Instant>,
    /// When a stop began that waits for the origin.
    stopping_since: Option<Instant>,
    /// Batches in a row, since a drain began, of which the SSD has given nothing ([`Engine::gives_nothing`]).
    pub vain: u32,
}

/// How far dirty blocks have been copied from memory.
pub(super) struct Rescue {
    /// What is still to be looked at. Before `at` it lies over zeros that are not home: nothing is written there before.
    pub left: Runs,
    pub at: Block,
    /// Atoms that are copied whatever others have pinned: the origin has been flushed, and has all that was copied before.
    pub granted: u64,
    /// It is looked at further in the next turn.
    pub looks: bool,
}

impl Default for Degraded {
    fn default() -> Self {
        Degraded {
            health: Health::Whole,
            wanted: false,
            back_off: BackOff::new(Duration::from_secs(1), Duration::from_secs(60)),
            promised: Vec::new(),
            rescue: None,
            since: None,
            stopping_since: None,
            vain: 0,
        }
    }
}

impl<P: Payload> Engine<P> {
    /// How the cache is.
    pub fn health(&self) -> Health {
        self.degraded.health
    }

    /// The host must write down that this cache misses writes from now on, and answer with [`Event::Fenced`](crate::Event::Fenced). True once
    /// each time that it is to be done.
    pub fn wants_fence(&mut self) -> bool {
        std::mem::take(&mut self.degraded.wanted)
    }

    /// What is newer than the origin and might be lost with the SSD: spans of the volume, first those of data, then those of zeros. Without
    /// an SSD it is what is lost.
    pub fn at_risk(&self) -> impl Iterator<Item = Span> + '_ {
        let size = self.block_atoms();
        let volume = Span::new(0, self.config.geometry.volume_atoms);
        let all_ranges = self.ranges.overlapping(Block(0), self.config.geometry.blocks());
        let zeros = all_ranges.map(move |(block, range)| self.blocks_span(block, range.blocks).intersection(volume));
        let lost = self.lost.iter().flat_map(move |(block, atoms)| {
            let base = block.0 * size;
            atoms.runs().map(move |run| Span::new(base + u64::from(run.start), u64::from(run.end - run.start))).collect::<Vec<_>>()
        });
        self.dirty_data().chain(zeros).chain(lost)
    }

    /// The atoms that dirty slots hold.
    pub fn dirty_data(&self) -> impl Iterator<Item = Span> + '_ {
        let set_blocks = self.index.set_blocks();
        let next = move |from: Block| self.index.next_dirty(from);
        let dirty_sets = std::iter::successors(next(Block(0)), move |set| next(Block(set.0 + set_blocks)));
        dirty_sets.flat_map(move |set| self.dirty_spans(set, set_blocks))
    }

    /// The valid atoms of the dirty slots of one origin set, in order, joined where they touch.
    fn dirty_spans(&self, set: Block, set_blocks: u64) -> Vec<Span> {
        let mut runs = Vec::new();
        self.index.lookup(set, set_blocks.min(self.config.geometry.blocks() - set.0), &mut runs);
        let mut spans: Vec<Span> = Vec::new();
        for run in &runs {
            let Some(first) = run.slot else { continue };
            for i in 0..run.blocks {
                let (block, slot) = (Block(run.block.0 + i), Slot { slot: first.slot + i as u32, ..first });
                if !self.sets.is_dirty(slot) {
                    continue;
                }
                let base = block.0 * self.block_atoms();
                for atoms in self.valid_atoms(slot, block).runs() {
                    let span = Span::new(base + u64::from(atoms.start), u64::from(atoms.end - atoms.start));
                    match spans.last_mut() {
                        Some(last) if last.end() == span.start => last.atoms += span.atoms,
                        _ => spans.push(span),
                    }
                }
            }
        }
        spans
    }

    /// The SSD takes no writes any more.
    pub(super) fn has_cache_failed(&self) -> bool {
        self.degraded.health != Health::Whole
    }

    pub(super) fn is_degraded(&self) -> bool {
        self.degraded.health == Health::Degraded
    }

    pub(super) fn degraded_since(&self) -> Option<Instant> {
        self.degraded.since
    }

    // --- failing ---

    /// The SSD takes no writes any more. Requests that waited for it go on when the host knows.
    pub(super) fn fail_cache(&mut self) {
        if self.has_cache_failed() {
            return;
        }
        self.meet(FaultPoint::CacheFailed);
        self.ahead.clear();
        // Nothing can be written down any more. The volume goes on without it, for whoever comes now, too.
        self.cancel_detach();
        self.degraded.since = Some(self.now);
        self.degraded.health = Health::Fencing;
        self.degraded.wanted = true;
        if let Some(memory) = &mut self.memory {
            // A page may be all that there is of its block.
            memory.hold(true);
        }
        self.promise_placed();
        self.close_untouched();
        let promised = self.take_promised();
        self.degraded.promised.extend(promised);
        if self.has_canary(Canary::UnfencedDegraded) {
            self.go_on_without_cache();
        }
    }

    /// The requests whose data was on its way to the SSD: what they brought is pinned, has its place in the order of all, and goes home from memory.
    /// Placed again it would come over what others have written since. Nobody is answered from memory alone who was to be answered by the SSD.
    fn promise_placed(&mut self) {
        let mut waiting = self.forget_retries();
        waiting.extend(self.forget_gathered());
        for (_, write) in self.writes.iter_mut() {
            waiting.extend(write.requests.drain(..));
        }
        // A read that waits for several fills waits for each of them.
        let (fills, mut placed): (Vec<usize>, Vec<usize>) =
            waiting.into_iter().partition(|&number| matches!(self.requests.get(number).stage, Stage::Reading(_)));
        fills.into_iter().for_each(|number| self.filled(number));
        placed.sort_by_key(|&number| (self.requests.get(number).arrived, self.requests.get(number).request.id));
        placed.dedup();
        placed.into_iter().for_each(|number| self.await_fence(number));
    }

    /// It has its place, and is answered by whoever has it when the host has written down that it is not the SSD.
    fn await_fence(&mut self, number: usize) {
        let active = self.requests.get_mut(number);
        active.stage = Stage::Promised;
        active.waits = WaitReason::Fence;
        self.degraded.promised.push(number);
    }

    /// A promise that the SSD cannot give. Returns false if it works.
    pub(super) fn promise_without_cache(&mut self, number: usize) -> bool {
        match self.degraded.health {
            Health::Whole => return false,
            Health::Unfenced => self.answer(number, Err(RequestError::Io)),
            Health::Fencing => self.await_fence(number),
            Health::Degraded => self.settle(number),
        }
        true
    }

    // --- the host ---

    /// The host has written it down, or could not.
    #[cold]
    pub(super) fn fenced(&mut self, durable: bool) {
        match (self.degraded.health, durable) {
            (Health::Fencing | Health::Unfenced, true) => self.go_on_without_cache(),
            (Health::Fencing | Health::Unfenced, false) => {
                self.degraded.health = Health::Unfenced;
                self.degraded.back_off.failed(self.now);
                for number in std::mem::take(&mut self.degraded.promised) {
                    self.answer(number, Err(RequestError::Io));
                }
            }
            (Health::Whole | Health::Degraded, _) => {}
        }
    }

    /// A host that failed is asked again.
    pub(super) fn pump_fence(&mut self) {
        if self.degraded.health == Health::Unfenced
            && let Some(at) = self.degraded.back_off.at
            && at <= self.now
        {
            self.degraded.back_off.at = None;
            self.degraded.wanted = true;
        }
    }

    /// The log ends here. From now on the origin is the only medium.
    fn go_on_without_cache(&mut self) {
        self.degraded.health = Health::Degraded;
        self.degraded.back_off.at = None;
        let has_unpromised = self.flushes.unpromised.has_until(self.journal.durable_group());
        self.journal.retire();
        self.forget_checkpoint();
        assert!(self.forget_retries().is_empty(), "requests were given back when the SSD failed");
        self.through.unburied.clear();
        self.header_writes.due.clear();
        self.header_writes.written.clear();
        self.flushes.unflushed_since = None;
        // Sets whose headers were still to be read are clean: the origin has what they hold.
        self.recovery = None;
        self.pin_for_origin();
        let all = || Runs::of(0..self.config.geometry.blocks());
        self.degraded.rescue = self.memory.is_some().then(|| Rescue { left: all(), at: Block(0), granted: 0, looks: false });
        self.rescue_awaited();
        self.through.take_marks_back();
        self.fail_lost_promises();
        let mut promised = std::mem::take(&mut self.degraded.promised);
        if has_unpromised && self.cache_alone_has_dirty() {
            self.tell_loss(&mut promised);
        }
        for number in promised {
            self.settle(number);
        }
    }

    /// What was written to the SSD and is not known to be durable is pinned: it becomes pages, as if it had gone through to an origin that
    /// has forgotten it. What was being kept of the origin is not: its write may still be on its way.
    fn pin_for_origin(&mut self) {
        let window = std::mem::replace(&mut self.window, Window::new(self.config.geometry.block_atoms));
        for pin in window.pins() {
            for i in 0..pin.slots {
                let slot = Slot { set: pin.first.set, slot: pin.first.slot + i };
                if !self.sets.is_live(slot) {
                    continue;
                }
                let entry = self.sets.entry(slot, |block| self.full(block));
                if self.index.get(entry.block) != Some(slot) {
                    continue;
                }
                if !self.sets.is_dirty(slot) {
                    self.kill_slot(slot);
                    continue;
                }
                // A page is newer than anything in the log.
                if self.through.covers(entry.block, 1) {
                    continue;
                }
                let payload = pin.payload.slice(u64::from(i) * self.block_atoms(), self.block_atoms());
                let valid = (entry.valid != self.full(entry.block)).then_some(entry.valid);
                self.adopt(entry.block, 1, payload, valid);
            }
        }
    }

    /// What the cache or memory has of these blocks becomes a page, to be written to the origin: after the zeros that it lies over.
    pub(super) fn adopt(&mut self, block: Block, blocks: u64, payload: P, valid: Option<Atoms>) {
        let state = if self.waits_for_zeros(block, blocks) { State::Held } else { State::Unwritten };
        self.tickets.void(block, blocks);
        self.through.adopt(block, Page { blocks, payload, valid, state }, self.now);
    }

    /// Who waits for his own blocks only waits for their pages; and what a write is on its way to, or waits to be written over, is nowhere else if
    /// that fails.
    fn rescue_awaited(&mut self) {
        for Lock { request, block, blocks } in self.locks.clone() {
            // Zeroes are not on their way yet. Long ones have brought no contents that would bound what is copied, and wait for it when they are.
            let is_zero = matches!(self.requests.get(request).request.command, Command::Zero { .. });
            if !is_zero || !self.is_long_to_rescue(blocks) {
                self.rescue(block, blocks);
            }
        }
        let waiting: Vec<usize> = self.degraded.promised.iter().copied().chain(self.waiting_for_home()).chain(self.settling()).collect();
        for number in waiting {
            if !self.is_flush(number) {
                let (block, blocks) = self.blocks_of(self.requests.get(number).request.span);
                self.rescue(block, blocks);
            }
        }
    }

    /// A write with FUA that waited for its home, while nobody but the SSD had it: nobody can promise it any more. (FLUSHes are told by `tell_loss`.)
    fn fail_lost_promises(&mut self) {
        let waiting = self.degraded.promised.iter().copied().chain(self.waiting_for_home()).chain(self.settling());
        let is_lost = |&number: &usize| {
            let is_gone = |&span: &Span| {
                let (first, blocks) = self.blocks_of(span);
                (first.0..first.0 + blocks).map(Block).any(|block| self.has_dirty(block, 1) && !self.through.covers(block, 1))
            };
            !self.is_flush(number) && self.data_spans(number).iter().any(is_gone)
        };
        let lost: Vec<usize> = waiting.filter(is_lost).collect();
        for number in lost {
            self.degraded.promised.retain(|&promised| promised != number);
            self.forget_waiting_for_home(number);
            self.forget_passing(number);
            self.answer(number, Err(RequestError::Io));
        }
    }

    /// Is a dirty block nowhere but on the SSD? Its next start would be refused, so that it counts as lost until it is home.
    fn cache_alone_has_dirty(&self) -> bool {
        let is_pinned = |block: u64| self.through.covers(Block(block), 1) || self.is_in_rescue(Block(block));
        self.dirty_data().any(|span| {
            let (first, blocks) = self.blocks_of(span);
            (first.0..first.0 + blocks).any(|block| !is_pinned(block))
        })
    }

    /// An operation of the SSD ends that nobody waits for any more. False: somebody does.
    #[cold]
    pub(super) fn forget_late(&mut self, owner: Owner) -> bool {
        match owner {
            Owner::Data { write } => {
                let write = self.writes.remove(write);
                self.sets.get_mut(write.pieces[0].0.set).pins -= 1;
            }
            Owner::Pages { .. }
            | Owner::CacheFlush
            | Owner::Headers { .. }
            | Owner::Map
            | Owner::Superblock { .. }
            | Owner::Recovery(_) => {}
            Owner::Read { .. }
            | Owner::Ahead { .. }
            | Owner::Merge { .. }
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
            | Owner::Scrub(_)
            | Owner::Discard { .. }
            | Owner::Spin => return false,
        }
        true
    }

    /// An operation of the SSD has ended with this error.
    #[cold]
    pub(super) fn cache_error(&mut self, error: DeviceError) {
        if error == DeviceError::Gone && self.phase == crate::probe::Phase::Serving {
            self.fail_cache();
        }
    }

    // --- the origin ---

    /// Zeros that only memory knows of.
    pub(super) fn owes_zeros(&self) -> bool {
        self.is_degraded() && !self.ranges.is_empty()
    }

    /// The same, if this request has to wait for them: a FLUSH for all, any other one for its own. A FLUSH waits for what still goes home from
    /// memory as well.
    pub(super) fn owes_zeros_to(&self, number: usize) -> bool {
        let waits = |(block, blocks)| self.waits_for_zeros(block, blocks);
        let is_flush = self.is_flush(number);
        is_flush && self.is_rescuing() || self.owes_zeros() && (is_flush || self.changed_blocks(number).is_some_and(waits))
    }

    /// Blocks under a zeroed range are not written before the zeros are on the origin.
    pub(super) fn waits_for_zeros(&self, block: Block, blocks: u64) -> bool {
        self.is_degraded() && self.ranges.overlapping(block, blocks).next().is_some()
    }

    /// The same: where the last of them ends.
    pub(super) fn zeros_end(&self, block: Block, blocks: u64) -> Option<Block> {
        let last = self.ranges.overlapping(block, blocks).last().filter(|_| self.is_degraded());
        last.map(|(first, range)| Block(first.0 + range.blocks))
    }

    /// Zeros of these blocks are home: what lies over them may follow.
    pub(super) fn zeros_went(&mut self, block: Block, blocks: u64) {
        self.through.pages.zeros_went(block, blocks);
        if let Some(rescue) = &mut self.degraded.rescue {
            rescue.at = rescue.at.min(block);
        }
    }

    /// What was lost before is found, where a page has said what it is, and is durable on the origin: until then it is at risk.
    pub(super) fn find_lost(&mut self, first: Block, blocks: u64) {
        if !self.is_degraded() || self.lost.is_empty() {
            return;
        }
        let valid = self.through.pages.get(first).and_then(|page| page.valid);
        for block in (first.0..first.0 + blocks).map(Block) {
            self.lost.find(block, valid.unwrap_or(self.full(block)));
        }
    }

    // --- the end ---

    /// Until when a stop waits for the origin.
    pub(super) fn stop_deadline(&self) -> Option<Instant> {
        self.degraded.stopping_since.map(|since| since.max(self.last_life()) + self.config.stall_timeout)
    }

    /// Stopping without a cache: when everything acknowledged is on the origin.
    pub(super) fn stop_degraded(&mut self) {
        if !matches!(self.degraded.health, Health::Degraded) {
            if self.degraded.health == Health::Unfenced {
                let what = "the SSD failed in service: what was acknowledged since its last successful flush may be lost";
                self.report_damage(true, what.to_string());
            }
            return;
        }
        // An origin that is slow is waited for, as ever.
        let since = (*self.degraded.stopping_since.get_or_insert(self.now)).max(self.last_life());
        let owes = !self.through.pages.is_empty() || self.is_rescuing() || self.owes_zeros();
        if owes && self.now.since(since) >= self.config.stall_timeout {
            let in_memory: u64 = self.dirty_data().map(|span| self.blocks_in_rescue(self.blocks_of(span))).sum();
            let bytes = (self.through.pages.atoms() + in_memory * self.block_atoms()) * ATOM_BYTES;
            let what = format!(
                "the SSD failed in service and the origin does not take what was pinned for it: up to {bytes} bytes and {} zeroed ranges are lost",
                self.ranges.overlapping(Block(0), u64::MAX).count()
            );
            return self.report_damage(true, what);
        }
        if !owes && self.is_through_idle() && self.destage.is_idle() && !self.has_writing_requests() {
            self.phase = crate::probe::Phase::Stopped;
        }
    }
}

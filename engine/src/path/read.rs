//! Read: per atom from what fronts have written and the log has not taken yet, else the window, the live slot, the range table, the origin.
//!
//! ```text
//! look-up → parts: in memory | Slots (SSD, checksum verified) | Origin (maybe after a destage of the same span) → all ready → reply → fill
//! ```
//! A slot that cannot be read or fails its checksum: clean → the block is looked up again without it; dirty → the request fails.

use smallvec::SmallVec;

use crate::admission::Admission;
use crate::block::{Atoms, Block, Slot, Span};
use crate::cache::ahead::Sharer;
use crate::cache::index::Run;
use crate::cache::sequence::Sequence;
use crate::cache::through::Page;
use crate::config::Fill;
use crate::op::{Action, Answer, Class, DeviceError, DeviceId, OpId, Zone};
use crate::payload::Payload;
use crate::probe::WaitReason;
use crate::request::{Command, Outcome, RequestError};
use crate::what_if::KEPT;

use super::above::Above;
use super::origin::FirstFlush;
use super::partial::joined_blocks;
use super::{Active, Ended, Engine, Owner, Stage, joined};

/// Atoms of one read of the origin whose fill the reply waits for: 256 KiB.
const PIECE_ATOMS: u64 = 512;
/// Tries of the origin's first flush.
const FLUSH_TRIES: u32 = 3;

#[derive(Default)]
pub(super) struct Reading<P> {
    pub parts: Parts<P>,
    /// Parts without contents yet, and fills that the reply waits for.
    pub left: u32,
    failed: bool,
    why: Why,
}

/// What is read for whom: whether it is worth keeping depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Why {
    /// For a client's read.
    #[default]
    Scattered,
    /// For one that is part of a long sequence.
    Sequential,
    /// To be kept, because a client asks for it.
    Prefetch,
    /// To be kept, because it lies around what a client has read.
    Around,
}

/// Mostly one.
pub(super) type Parts<P> = SmallVec<[Part<P>; 1]>;

/// A run of atoms of the volume that comes from one place.
pub(super) struct Part<P> {
    pub span: Span,
    pub source: Source<P>,
}

impl<P> Part<P> {
    /// What has been read, of which span, and whether that is only what the origin holds of it.
    fn contents(&self) -> Option<(Span, &P, bool)> {
        match &self.source {
            Source::Ready(payload) => Some((self.span, payload, false)),
            Source::Fetched(span, payload) => Some((*span, payload, true)),
            Source::Slots { .. } | Source::Origin { .. } | Source::Shared { .. } | Source::Lost | Source::Replaced => None,
        }
    }

    /// What came from the origin and is worth keeping.
    fn fetched(self) -> Option<(Span, P)> {
        if let Source::Fetched(span, payload) = self.source { Some((span, payload)) } else { None }
    }
}

pub(super) enum Source<P> {
    Ready(P),
    /// Whole consecutive slots; the first holds `block`.
    Slots {
        block: Block,
        first: Slot,
        slots: u32,
    },
    /// What is read of it: the part, or the whole blocks it touches. `parked`: a destage owns the span.
    Origin {
        fetches: Span,
        parked: bool,
    },
    /// Comes with what the part at this place reads.
    Shared {
        with: usize,
    },
    /// Was from the origin and is worth keeping: what was read.
    Fetched(Span, P),
    /// Cannot be had any more.
    Lost,
    /// Replaced by later parts.
    Replaced,
}

impl<P: Payload> Engine<P> {
    pub(super) fn begin_read(&mut self, number: usize) {
        let span = self.requests.get(number).request.span;
        let (sequence, why) = self.note_read(span);
        if self.read_from_memory(number) {
            return;
        }
        let (block, blocks) = self.blocks_of(span);
        self.admission.read(block, blocks, why == Why::Sequential);
        let parts = self.look_up(span, true);
        self.begin_parts(number, why, parts);
        if let Some(sequence) = sequence {
            self.read_ahead(&sequence, span.atoms);
        }
    }

    /// A client reads this: what it goes on with, and what it is part of. (Inlined: a call costs one that comes alone 58 instructions.)
    #[inline(always)]
    pub(super) fn note_read(&mut self, span: Span) -> (Option<Sequence>, Why) {
        self.counters.read_atoms += span.atoms;
        let sequence = self.admission.note(span);
        let why = if sequence.as_ref().is_some_and(Admission::is_long) { Why::Sequential } else { Why::Scattered };
        let (block, blocks) = self.blocks_of(span);
        let keeps = if why == Why::Sequential { self.keeps_of_sequences() } else { KEPT };
        self.what_if.read(block, blocks, keeps);
        (sequence, why)
    }

    /// Do memory and the cache keep what a long sequence brings now?
    #[cold]
    fn keeps_of_sequences(&self) -> [bool; 2] {
        let has_room = self.memory.as_ref().is_some_and(|memory| !memory.is_full());
        [has_room, self.admission.may_keep(true) || !self.displaces()]
    }

    /// As a read of what only the origin has; the reply says no more than that it was read.
    pub(super) fn begin_prefetch(&mut self, number: usize) {
        let parts = self.origin_holes(self.requests.get(number).request.span);
        self.begin_parts(number, Why::Prefetch, parts);
    }

    /// What of `span` only the origin has.
    pub(super) fn origin_holes(&mut self, span: Span) -> Parts<P> {
        let mut parts = self.look_up(span, false);
        parts.retain(|part| matches!(part.source, Source::Origin { .. }));
        parts
    }

    /// The same with fewer and larger reads: over what lies between two of them and is cached already. What is read of that is not kept; it
    /// must be whole, since only blocks without a slot are asked whether the origin is to be believed of them.
    pub(super) fn bridged_holes(&mut self, span: Span) -> Parts<P> {
        let most = self.limits[1].op_atoms;
        let mut holes = Parts::new();
        for hole in self.origin_holes(span) {
            match holes.last_mut() {
                Some(last) if hole.span.end() - last.span.start <= most && self.is_bridge(last.span.end(), hole.span) => {
                    last.span = Span::new(last.span.start, hole.span.end() - last.span.start);
                    last.source = Source::Origin { fetches: last.span, parked: false };
                }
                _ => holes.push(hole),
            }
        }
        holes
    }

    /// Is all that lies between here and there in the cache, as whole blocks?
    fn is_bridge(&self, here: u64, there: Span) -> bool {
        let size = self.block_atoms();
        let is_whole =
            |block| self.index.get(block).is_some_and(|slot| self.sets.partial(slot).is_none()) && !self.through.covers(block, 1);
        here.is_multiple_of(size) && there.start.is_multiple_of(size) && (here / size..there.start / size).map(Block).all(is_whole)
    }

    pub(super) fn begin_parts(&mut self, number: usize, why: Why, parts: Parts<P>) {
        let active = self.requests.get_mut(number);
        active.waits = WaitReason::Read;
        active.stage = Stage::Reading(Reading { parts: Parts::new(), left: 0, failed: false, why });
        let span = active.request.span;
        let (block, blocks) = self.blocks_of(span);
        self.tickets.issue(number, block, blocks);
        self.add_parts(number, parts);
        self.finish_read(number);
    }

    pub(super) fn reading(&mut self, number: usize) -> &mut Reading<P> {
        match &mut self.requests.get_mut(number).stage {
            Stage::Reading(reading) => reading,
            _ => panic!("a read is being read"),
        }
    }

    // --- look-up ---

    /// Where every atom of `span` comes from, in order. `count`: as a client's read, for the statistics.
    fn look_up(&mut self, span: Span, count: bool) -> Parts<P> {
        let mut parts = Parts::new();
        if self.is_all_in_log() {
            self.look_up_cached(span, count, &mut parts);
            return parts;
        }
        for (span, above) in self.over_log(span) {
            match above {
                Some(Above::Written(payload)) => parts.push(Part { span, source: Source::Ready(payload) }),
                Some(Above::Passed(first, page)) => self.page_parts(first, &page, span, &mut parts),
                None => self.look_up_cached(span, count, &mut parts),
            }
        }
        parts
    }

    /// What went through to the origin and is pinned; atoms of a block that are not valid there are on the origin.
    #[cold]
    fn page_parts(&mut self, first: Block, page: &Page<P>, span: Span, parts: &mut Parts<P>) {
        let base = first.0 * self.block_atoms();
        let Some(valid) = page.valid else {
            let payload = page.payload.slice(span.start - base, span.atoms);
            return parts.push(Part { span, source: Source::Ready(payload) });
        };
        let mask = self.mask_of(first, span);
        let mut at = 0;
        while let Some(run) = mask.without(Atoms::first(at)).intersection(valid).runs().next() {
            self.below_parts(first, Atoms::range(at, run.start).intersection(mask), parts);
            let part = Span::new(base + u64::from(run.start), u64::from(run.end - run.start));
            let payload = page.payload.slice(u64::from(run.start), part.atoms);
            parts.push(Part { span: part, source: Source::Ready(payload) });
            at = run.end;
        }
        self.below_parts(first, mask.without(Atoms::first(at)), parts);
    }

    /// Where every atom comes from that the log or the origin has.
    fn look_up_cached(&mut self, span: Span, count: bool, parts: &mut Parts<P>) {
        if span.is_empty() {
            return;
        }
        let (block, blocks) = self.blocks_of(span);
        let mut runs = self.scratch.take_runs();
        self.index.lookup(block, blocks, &mut runs);
        for &run in &runs {
            if count {
                let counter = if run.slot.is_some() { &mut self.counters.hit_blocks } else { &mut self.counters.miss_blocks };
                *counter += run.blocks;
            }
            match run.slot {
                Some(slot) => {
                    if count {
                        self.sets.note_read(slot, run.blocks as u32);
                    }
                    self.cached_parts(run, slot, span, parts);
                }
                None => self.uncached_parts(run.block, run.blocks, span, parts),
            }
        }
        self.scratch.runs = runs;
    }

    /// Parts of blocks in consecutive slots: whole blocks together, partial ones by themselves.
    fn cached_parts(&mut self, run: Run, slot: Slot, span: Span, parts: &mut Parts<P>) {
        let at = |i: u64| (Block(run.block.0 + i), Slot { slot: slot.slot + i as u32, ..slot });
        let mut i = 0;
        while i < run.blocks {
            let (block, slot) = at(i);
            if let Some(payload) = self.in_rescue(block) {
                let part = self.blocks_span(block, 1).intersection(span);
                let payload = payload.slice(part.start - block.0 * self.block_atoms(), part.atoms);
                parts.push(Part { span: part, source: Source::Ready(payload) });
                i += 1;
                continue;
            }
            if let Some(valid) = self.sets.partial(slot) {
                self.partial_parts(block, slot, valid, span, parts);
                i += 1;
                continue;
            }
            let mut end = i + 1;
            while end < run.blocks && self.sets.partial(at(end).1).is_none() && !self.is_in_rescue(at(end).0) {
                end += 1;
            }
            self.slot_parts(block, slot, (end - i) as u32, span, parts);
            i = end;
        }
    }

    /// `slots` consecutive slots of whole blocks from `block`, as far as `span` covers them.
    pub(super) fn slot_parts(&mut self, block: Block, slot: Slot, slots: u32, span: Span, parts: &mut Parts<P>) {
        let size = self.block_atoms();
        let mut done = 0;
        while done < slots {
            let here = Slot { slot: slot.slot + done, ..slot };
            let first = Block(block.0 + u64::from(done));
            if let Some((payload, count)) = self.window.get(here, slots - done) {
                let part = Span::new(first.0 * size, u64::from(count) * size).intersection(span);
                parts.push(Part { span: part, source: Source::Ready(payload.slice(part.start - first.0 * size, part.atoms)) });
                done += count;
            } else {
                let most = self.blocks_in(self.limits[0].op_atoms).max(1) as u32;
                let count = self.window.unpinned(here, slots - done).min(most);
                let part = Span::new(first.0 * size, u64::from(count) * size).intersection(span);
                parts.push(Part { span: part, source: Source::Slots { block: first, first: here, slots: count } });
                done += count;
            }
        }
    }

    /// Blocks without a slot: zeros where the range table says so, errors where atoms are lost, else the origin.
    pub(super) fn uncached_parts(&mut self, block: Block, blocks: u64, span: Span, parts: &mut Parts<P>) {
        let all = self.blocks_span(block, blocks).intersection(span);
        if !self.lost.is_empty() && (block.0..block.0 + blocks).any(|block| self.is_lost(Block(block), all)) {
            return parts.push(Part { span: all, source: Source::Lost });
        }
        if self.ranges.is_empty() {
            return self.origin_parts(all, parts);
        }
        let mut at = all.start;
        let zeroed: Vec<Span> = self
            .ranges
            .overlapping(block, blocks)
            .map(|(start, range)| self.blocks_span(start, range.blocks).intersection(all))
            .filter(|part| !part.is_empty())
            .collect();
        for zero in zeroed {
            self.origin_parts(Span::new(at, zero.start - at), parts);
            parts.push(Part { span: zero, source: Source::Ready(P::zero(zero.atoms)) });
            at = zero.end();
        }
        self.origin_parts(Span::new(at, all.end() - at), parts);
    }

    fn origin_parts(&mut self, span: Span, parts: &mut Parts<P>) {
        let most = if self.config.fill() == Fill::BeforeReply { PIECE_ATOMS } else { self.limits[1].op_atoms };
        let mut rest = span;
        while !rest.is_empty() {
            let room = match parts.last() {
                Some(Part { span: last, source: Source::Origin { .. } }) if last.end() == rest.start => most - last.atoms,
                _ => 0,
            };
            let take = rest.atoms.min(if room > 0 { room } else { most });
            match parts.last_mut() {
                Some(last) if room > 0 => last.span.atoms += take,
                _ => {
                    let span = Span::new(rest.start, take);
                    parts.push(Part { span, source: Source::Origin { fetches: span, parked: false } });
                }
            }
            rest = Span::new(rest.start + take, rest.atoms - take);
        }
    }

    /// Cuts what comes from slots where that begins or ends which has been read ahead.
    fn cut_ahead(&self, parts: &mut Parts<P>) {
        if self.ahead.is_empty() {
            return;
        }
        let size = self.block_atoms();
        let mut at = 0;
        while at < parts.len() {
            let Part { span, source: Source::Slots { block, first, slots } } = parts[at] else {
                at += 1;
                continue;
            };
            let (_, alike) = self.ahead.alike(first, slots, self.life_of(first));
            if alike < slots {
                let rest = block.0 + u64::from(alike);
                let (here, there) = (Span::new(span.start, rest * size - span.start), Span::new(rest * size, span.end() - rest * size));
                let later = Slot { slot: first.slot + alike, ..first };
                parts[at] = Part { span: here, source: Source::Slots { block, first, slots: alike } };
                parts
                    .insert(at + 1, Part { span: there, source: Source::Slots { block: Block(rest), first: later, slots: slots - alike } });
            }
            at += 1;
        }
    }

    // --- operations ---

    /// Adds parts to a read and starts their operations.
    fn add_parts(&mut self, number: usize, mut parts: Parts<P>) {
        self.cut_ahead(&mut parts);
        let reading = self.reading(number);
        let first = reading.parts.len();
        // Mostly all parts come at once.
        if first == 0 {
            reading.parts = parts
        } else {
            reading.parts.extend(parts)
        }
        for place in first..self.reading(number).parts.len() {
            self.start_part(number, place);
        }
    }

    fn start_part(&mut self, number: usize, place: usize) {
        if self.reading(number).parts[place].span.atoms < self.block_atoms()
            && let Some(with) = self.read_already(number, place)
        {
            let reading = self.reading(number);
            reading.parts[place].source = Source::Shared { with };
            reading.left += 1;
            return;
        }
        let reading = self.reading(number);
        let Part { span, source } = &reading.parts[place];
        match *source {
            Source::Ready(_) | Source::Fetched(..) | Source::Replaced | Source::Shared { .. } => {}
            Source::Lost => reading.failed = true,
            Source::Slots { block, first, slots } => {
                let span = *span;
                reading.left += 1;
                match self.take_ahead(Sharer::Part { request: number, part: place }, first, slots) {
                    None => self.read_slots(number, place, first, slots),
                    Some(None) => {}
                    Some(Some(payload)) => {
                        let payload = payload.slice(span.start - block.0 * self.block_atoms(), span.atoms);
                        let reading = self.reading(number);
                        reading.parts[place].source = Source::Ready(payload);
                        reading.left -= 1;
                    }
                }
            }
            Source::Origin { .. } => {
                let span = *span;
                reading.left += 1;
                let fetches = self.widened(span);
                let parked = !self.fetch(number, place, fetches);
                self.reading(number).parts[place].source = Source::Origin { fetches, parked };
            }
        }
    }

    fn read_slots(&mut self, number: usize, place: usize, first: Slot, slots: u32) {
        self.sets.pin(first, slots);
        self.end_burst();
        let action = Action::Read(Zone::Data, self.slots_span(first, slots));
        self.start(DeviceId::Cache, Class::Client, action, Owner::Read { request: number, part: place });
    }

    /// Slots that a part waits for have been read ahead, from `first` on, or have to be read by itself after all.
    pub(super) fn part_ahead(&mut self, number: usize, place: usize, read: Option<(Slot, &P)>) {
        let size = self.block_atoms();
        let part = &mut self.reading(number).parts[place];
        let Source::Slots { block, first, slots } = part.source else { panic!("a part that waits is of slots") };
        let Some((start, payload)) = read else { return self.read_slots(number, place, first, slots) };
        let skip = u64::from(first.slot - start.slot) * size + part.span.start - block.0 * size;
        part.source = Source::Ready(payload.slice(skip, part.span.atoms));
        let own = payload.slice(u64::from(first.slot - start.slot) * size, size);
        self.share(number, place, block.0 * size, &own);
        self.reading(number).left -= 1;
        self.finish_read(number);
    }

    /// Only whole blocks can be kept, and a disk gives them as quickly as parts of them: the blocks at the edges are read whole, unless
    /// something else than a partly valid slot says what they hold.
    fn widened(&self, span: Span) -> Span {
        let (block, blocks) = self.blocks_of(span);
        let whole = self.blocks_span(block, blocks).intersection(Span::new(0, self.config.geometry.volume_atoms));
        let is_plain = |block: Block| {
            (self.index.get(block).is_none() || self.is_completable(block))
                && self.ranges.overlapping(block, 1).next().is_none()
                && !self.lost.has_any_of(block, 1)
                && !self.through.covers(block, 1)
        };
        let keeps = self.config.fill() == Fill::Behind && !self.has_cache_failed() && whole.atoms <= self.limits[1].op_atoms;
        if !keeps || whole == span {
            return span;
        }
        let start = if is_plain(block) { whole.start } else { span.start };
        let end = if is_plain(Block(block.0 + blocks - 1)) { whole.end() } else { span.end() };
        let wider = Span::new(start, end - start);
        // What is on its way to the rest of a block is not waited for, and does not wait.
        if self.origin.is_written(wider) || self.destage.touches(wider) { span } else { wider }
    }

    fn is_lost(&self, block: Block, span: Span) -> bool {
        !self.lost.of(block).intersection(self.mask_of(block, span)).is_empty()
    }

    /// Starts an origin read. False: it overlaps a write to the origin, or the first flush of the origin has not ended, and waits.
    fn fetch(&mut self, number: usize, part: usize, span: Span) -> bool {
        match self.origin.first_flush {
            FirstFlush::Done => {}
            FirstFlush::Flushing { .. } => return false,
            FirstFlush::Needed => {
                self.origin.first_flush = FirstFlush::Flushing { failures: 0 };
                self.start(DeviceId::Origin, Class::Client, Action::Flush, Owner::FirstFlush);
                return false;
            }
        }
        if self.origin.is_closed(span) {
            self.counters.waits.count(WaitReason::OriginSpan);
            return false;
        }
        let is_around = self.reading(number).why == Why::Around;
        if !is_around && self.join_around(number, part, span) {
            return true;
        }
        let class = if is_around { Class::Fill } else { Class::Client };
        let op = self.start(DeviceId::Origin, class, Action::Read(Zone::Origin, span), Owner::Read { request: number, part });
        self.origin.begin_read(op, span, self.now);
        if is_around {
            self.around.share(op, span);
        }
        true
    }

    /// The origin holds durably what it holds: reads of it may be answered. One that does not flush still reads, and nothing that
    /// the log has not got can be there only: after a few tries its reads are answered all the same.
    pub(super) fn first_flush_done(&mut self, result: Ended) {
        if let Err(error) = result {
            self.origin_flush_failed(error);
        }
        self.origin.first_flush = match (result, self.origin.first_flush) {
            (Err(_), FirstFlush::Flushing { failures }) if failures < FLUSH_TRIES => {
                self.start(DeviceId::Origin, Class::Client, Action::Flush, Owner::FirstFlush);
                FirstFlush::Flushing { failures: failures + 1 }
            }
            _ => FirstFlush::Done,
        };
        if self.origin.first_flush == FirstFlush::Done {
            self.unpark_reads();
        }
    }

    fn parked_reads(&self) -> Vec<(usize, usize, Span)> {
        let mut parked = Vec::new();
        for (number, active) in self.requests.iter() {
            let Active { stage: Stage::Reading(reading), .. } = active else { continue };
            for (place, part) in reading.parts.iter().enumerate() {
                if let Source::Origin { fetches, parked: true } = part.source {
                    parked.push((number, place, fetches));
                }
            }
        }
        parked
    }

    /// Spans of the origin have been let go: the reads behind them go on. Clients' are looked up again: what the log holds by now lies over
    /// whatever a write that failed has left there, and other reads have seen it.
    pub(super) fn unpark_reads(&mut self) {
        self.unpark_status();
        for (number, place, fetches) in self.parked_reads() {
            if self.origin.first_flush != FirstFlush::Done || self.origin.is_closed(fetches) {
                continue;
            }
            let reading = self.reading(number);
            if reading.why == Why::Around {
                let parked = !self.fetch(number, place, fetches);
                self.reading(number).parts[place].source = Source::Origin { fetches, parked };
                continue;
            }
            let (span, is_prefetch) = (reading.parts[place].span, reading.why == Why::Prefetch);
            reading.parts[place].source = Source::Replaced;
            reading.left -= 1;
            for span in std::iter::once(span).chain(self.unshare(number, place)) {
                let parts = if is_prefetch { self.origin_holes(span) } else { self.look_up(span, false) };
                self.add_parts(number, parts);
            }
            self.finish_read(number);
        }
    }

    pub(super) fn read_done(&mut self, op: OpId, number: usize, place: usize, result: Result<Answer<P>, DeviceError>) {
        let result = result.map(joined);
        let reading = self.reading(number);
        let why = reading.why;
        if why == Why::Around {
            self.answer_sharers(op, result.as_ref().ok());
        }
        let part = &mut self.reading(number).parts[place];
        let span = part.span;
        match std::mem::replace(&mut part.source, Source::Replaced) {
            Source::Origin { fetches, .. } => {
                let took = self.origin.end_read(op, self.now, self.turning_since());
                if result.is_ok() {
                    self.note_origin_read(fetches, why, took);
                }
                match result {
                    Err(_) if fetches != span => {
                        // What fails may be what nobody has asked for.
                        let parked = !self.fetch(number, place, span);
                        self.reading(number).parts[place].source = Source::Origin { fetches: span, parked };
                        for span in self.unshare(number, place) {
                            self.fetch_alone(number, span);
                        }
                        return;
                    }
                    Ok(payload) if self.config.fill() == Fill::BeforeReply => {
                        let writes = self.fill_before_reply(number, span, &payload);
                        self.reading(number).parts[place].source = Source::Ready(payload);
                        self.reading(number).left += writes;
                    }
                    Ok(payload) => {
                        self.share(number, place, fetches.start, &payload);
                        self.reading(number).parts[place].source = Source::Fetched(fetches, payload);
                    }
                    Err(_) => self.reading(number).failed = true,
                }
            }
            Source::Slots { block, first, slots } => {
                self.sets.unpin(first, slots);
                match result {
                    Ok(payload) => self.slots_read(number, place, span, (block, first, slots), payload),
                    Err(error) => {
                        for span in self.unshare(number, place) {
                            self.bad_slot(number, first, block, span);
                        }
                        self.slots_failed(number, span, (block, first, slots), error);
                    }
                }
            }
            Source::Ready(_) | Source::Fetched(..) | Source::Shared { .. } | Source::Lost | Source::Replaced => {
                panic!("this part has no operation")
            }
        }
        self.reading(number).left -= 1;
        self.finish_read(number);
    }

    /// Of the origin, these atoms and no more.
    #[cold]
    fn fetch_alone(&mut self, number: usize, span: Span) {
        let reading = self.reading(number);
        reading.left += 1;
        let place = reading.parts.len();
        reading.parts.push(Part { span, source: Source::Replaced });
        let parked = !self.fetch(number, place, span);
        self.reading(number).parts[place].source = Source::Origin { fetches: span, parked };
    }

    /// What a part asks the origin for has come with something else, or has to be asked for by itself after all. The origin's contents were the
    /// same all the while: no write to a span begins there while that is read.
    pub(super) fn part_shared(&mut self, number: usize, place: usize, source: Option<(Span, &P)>) {
        let part = &mut self.reading(number).parts[place];
        let Source::Origin { fetches, .. } = part.source else { panic!("a part that shares waits for the origin") };
        let Some((span, payload)) = source else {
            let parked = !self.fetch(number, place, fetches);
            self.reading(number).parts[place].source = Source::Origin { fetches, parked };
            return;
        };
        part.source = Source::Ready(payload.slice(part.span.start - span.start, part.span.atoms));
        self.share(number, place, span.start, payload);
        self.reading(number).left -= 1;
        self.finish_read(number);
    }

    /// Verifies what came from the SSD; blocks that fail are looked up again.
    fn slots_read(&mut self, number: usize, place: usize, span: Span, (block, first, slots): (Block, Slot, u32), payload: P) {
        let size = self.block_atoms();
        let is_good = |i: u32| {
            let slot = Slot { slot: first.slot + i, ..first };
            payload.slice(u64::from(i) * size, size).checksum(self.checksum) == self.sets.crc(slot)
        };
        let base = block.0 * size;
        if self.holds_what_was_written(first, &payload) {
            self.reading(number).parts[place].source = Source::Ready(payload.slice(span.start - base, span.atoms));
            return self.share(number, place, base, &payload);
        }
        let verdicts: Vec<bool> = (0..slots).map(is_good).collect();
        for span in self.unshare(number, place) {
            self.bad_slot(number, first, block, span);
        }
        for (i, good) in verdicts.into_iter().enumerate() {
            let block = Block(block.0 + i as u64);
            let part = Span::new(block.0 * size, size).intersection(span);
            let slot = Slot { slot: first.slot + i as u32, ..first };
            if good {
                let source = Source::Ready(payload.slice(part.start - base, part.atoms));
                self.reading(number).parts.push(Part { span: part, source });
            } else {
                self.bad_slot(number, slot, block, part);
            }
        }
    }

    /// Does what was read of the slots from `first` have the checksums of what was written there?
    pub(super) fn holds_what_was_written(&self, first: Slot, payload: &P) -> bool {
        let (mut slot, mut is_good) = (first, true);
        payload.checksums(self.checksum, self.block_atoms(), |crc| {
            is_good &= crc == self.sets.crc(slot);
            slot.slot += 1;
        });
        is_good
    }

    /// The SSD could not be read: each block by itself, and a single one is bad.
    #[cold]
    fn slots_failed(&mut self, number: usize, span: Span, (block, first, slots): (Block, Slot, u32), error: DeviceError) {
        let size = self.block_atoms();
        if slots == 1 {
            return self.bad_slot(number, first, block, span);
        }
        if error == DeviceError::Gone {
            // It will not give one of them either.
            for i in 0..slots {
                let block = Block(block.0 + u64::from(i));
                let part = Span::new(block.0 * size, size).intersection(span);
                self.bad_slot(number, Slot { slot: first.slot + i, ..first }, block, part);
            }
            return;
        }
        let mut singles = Parts::new();
        for i in 0..slots {
            let block = Block(block.0 + u64::from(i));
            let part = Span::new(block.0 * size, size).intersection(span);
            singles.push(Part { span: part, source: Source::Slots { block, first: Slot { slot: first.slot + i, ..first }, slots: 1 } });
        }
        self.add_parts(number, singles);
    }

    #[cold]
    fn bad_slot(&mut self, number: usize, slot: Slot, block: Block, span: Span) {
        let is_current = self.index.get(block) == Some(slot);
        let is_elsewhere = self.through.covers(block, 1) || self.is_in_rescue(block);
        if is_current && self.sets.is_dirty(slot) && !is_elsewhere {
            self.counters.corrupt_dirty_slots += 1;
            self.reading(number).failed = true;
            return;
        }
        let may_die = self.has_cache_failed() || self.journal_has_room(1);
        if is_current && !is_elsewhere && !may_die {
            // No record can say that it is dead: it is passed by.
            self.counters.corrupt_clean_slots += 1;
            let mut parts = Parts::new();
            self.uncached_parts(block, 1, span, &mut parts);
            return self.add_parts(number, parts);
        }
        if is_current && may_die && !self.sets.is_dirty(slot) {
            self.counters.corrupt_clean_slots += 1;
            self.kill_slot(slot);
        }
        let parts = self.look_up(span, false);
        self.add_parts(number, parts);
    }

    /// A fill that the reply waits for has ended.
    pub(super) fn filled(&mut self, number: usize) {
        self.reading(number).left -= 1;
        self.finish_read(number);
    }

    fn finish_read(&mut self, number: usize) {
        let reading = self.reading(number);
        if reading.left > 0 {
            return;
        }
        let mut parts = std::mem::take(&mut reading.parts);
        let (failed, why) = (reading.failed, reading.why);
        let changed = self.tickets.withdraw(number);
        if why == Why::Around {
            self.end_around(number);
            return self.fill(why, &changed, parts.into_iter().filter_map(Part::fetched));
        }
        if failed {
            return self.answer(number, Err(RequestError::Io));
        }
        let span = self.requests.get(number).request.span;
        let has_missed = parts.iter().any(|part| matches!(part.source, Source::Fetched(..)));
        if parts.len() > 1 {
            parts.retain(|part| !matches!(part.source, Source::Replaced));
            parts.sort_by_key(|part| part.span.start);
        }
        let contents = |part: &Part<P>| match &part.source {
            Source::Ready(payload) => payload.clone(),
            Source::Fetched(fetched, payload) if *fetched == part.span => payload.clone(),
            Source::Fetched(fetched, payload) => payload.slice(part.span.start - fetched.start, part.span.atoms),
            Source::Slots { .. } | Source::Origin { .. } | Source::Shared { .. } | Source::Lost | Source::Replaced => {
                unreachable!("every part is ready")
            }
        };
        let size = self.block_atoms();
        let is_prefetch = matches!(self.requests.get(number).request.command, Command::Cache);
        self.answer(number, Ok(if is_prefetch { Outcome::Done } else { Outcome::Data(joined_blocks(&parts, size, contents)) }));
        self.keep_in_memory(why, &changed.any, parts.iter().filter_map(Part::contents));
        self.fill(why, &changed, parts.into_iter().filter_map(Part::fetched));
        if has_missed {
            self.look_around(span, why);
        }
    }
}

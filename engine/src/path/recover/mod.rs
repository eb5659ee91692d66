//! Recovery: from what lies on the SSD to an engine that serves, writing nothing but the same bytes until the new cut.
//!
//! ```text
//! Superblocks → Metadata (state map and the whole ring) → Tail (data of groups that may not be durable) → Headers (of sets with dirty slots)
//!   → replay, mapping → Fence (is the origin as it was?) → Rewriting (the accepted tail, same bytes) → flush → Superblock, flush, twice (new epoch and cut) → serving
//!   → clean headers behind
//! ```
//! What cannot be repaired from a copy is refused: the phase becomes Refused, `damage` says why, and nothing was written.
//! A crash in recovery repeats it: the same bytes lead to the same cut.

mod chain;
mod fence;
mod headers;
mod mapping;
mod placed;
mod replay;
mod tail;

use std::collections::{BTreeMap, VecDeque};

use crate::block::{PAGE_ATOMS, PAGE_BYTES, Slot, Span};
use crate::cache::format::journal::{self, Page};
use crate::cache::format::map::{decode_ranges, decode_sets, ranges_per_page};
use crate::cache::format::{Bits, Geometry, MapRef, MapSet, Position, Range, SetState, Superblock, Unsealed};
use crate::cache::journal::Journal;
use crate::cache::sets::HeaderState;
use crate::cache::stream::{Source, Stream};
use crate::config::Canary;
use crate::fault_point::FaultPoint;
use crate::op::{Action, Answer, Class, DeviceError, DeviceId, Zone};
use crate::payload::{Checksum, Payload};
use crate::probe::{Phase, Recovering, RecoveryStep};
use crate::time::{Duration, Instant};

use super::back_off::BackOff;
use super::{Engine, Owner, joined};

pub(super) use chain::Chain;

/// Atoms of one read of metadata: 1 MiB.
const CHUNK_ATOMS: u64 = 2048;

/// Reads in flight at once: enough to keep any SSD busy.
const READS: usize = 16;
/// Beside service.
const LATE_READS: usize = 4;

/// Failed writes and flushes, in about 20 s, before the SSD counts as unusable.
const FAILURES: u32 = 16;

/// A single page or slot that cannot be read is tried again for so long: what is not read counts as not written. Each has its own time (a header
/// and its copy have one), since a page that nobody needs may never be read again. They are tried side by side: a stage takes no more than this
/// and one pause longer for all of them.
const READ_PATIENCE: Duration = Duration::from_secs(20);

/// Of what cannot be read so many stretches are named, by neighbours; of the others only how many they are.
const NAMED_MAX: usize = 16;

/// What an operation of the recovery was for. Of a header and its copy the one that is bad is of no use, and not asked for again.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Superblock { copy: u32 },
    Map { area: u32, page: u32, pages: u32 },
    Journal { place: u32, pages: u32 },
    Tail { run: usize },
    Headers { chunk: u32 },
    Header { set: u32, copy_is_bad: bool },
    HeaderCopy { set: u32, header_is_bad: bool },
    FenceHeader { set: u32 },
    Fence { block: u64, crc: u32 },
    Rewrite,
    Opened { first: Slot, slots: u32 },
    OpenedWrite,
    Flush,
    NewSuperblock,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Superblocks,
    Metadata,
    Tail,
    Headers,
    Fence,
    Rewriting,
    RewriteFlush,
    NewSuperblock { second: bool },
    SuperblockFlush { second: bool },
    LateHeaders,
}

pub(super) struct Recovery<P> {
    stage: Stage,
    /// Operations of this stage that have not ended, and how many there were at most.
    left: usize,
    most: usize,
    /// Reads that wait until others have ended, and how many are under way.
    reads: VecDeque<(Zone, Span, Step)>,
    reading: usize,
    failed: bool,
    /// Times that writing or flushing failed, and the pause before it is tried again.
    failures: u32,
    pause: BackOff,
    /// Reads of a single page, slot or header that failed, to be tried again after a pause; and when each failed first in its stage, by where it is.
    again: Vec<(Zone, Span, Step)>,
    again_pause: BackOff,
    unread_since: BTreeMap<(Stage, u64), Instant>,
    /// What this stage has given up.
    unread: Vec<Span>,
    superblocks: [Option<Superblock>; 2],
    copies: [u64; 2],
    /// The copy that is being written.
    copy: u32,
    superblock: Option<Superblock>,
    /// Pages of the state map, by area and page.
    maps: [Vec<Option<Vec<u8>>>; 2],
    /// Intact pages of the ring.
    pages: Vec<RingPage<P>>,
    chain: Chain,
    /// The checkpoint that is used, and its contents.
    map: MapRef,
    sets: Vec<MapSet>,
    ranges: Vec<Range>,
    tail: tail::Tail<P>,
    headers: headers::Headers,
    fence: fence::Fence,
    touched: mapping::Touched,
    noted: mapping::Noted,
    /// Beside service.
    mapper: Option<mapping::Mapper>,
}

/// One intact page of the ring.
struct RingPage<P> {
    place: u32,
    page: Page,
    /// Until it is known to be durable, and as long as the records may still be needed and were not read.
    payload: Option<P>,
    /// Whether the records are there. Those before the newest checkpoint are needed only if its map is damaged.
    has_records: bool,
}

impl<P> RingPage<P> {
    /// False: there are some that cannot be.
    fn read_records(&mut self, bytes: &[u8], geometry: &Geometry) -> bool {
        let records = journal::decode_records(bytes, geometry, &self.page.head);
        self.has_records = records.is_ok();
        self.page.records = records.unwrap_or_default();
        self.has_records
    }
}

impl<P> Recovery<P> {
    fn enter(&mut self, stage: Stage) {
        (self.stage, self.most) = (stage, 0);
    }

    fn begin_operation(&mut self) {
        self.left += 1;
        self.most = self.most.max(self.left);
    }
}

impl<P: Payload> Engine<P> {
    /// How far recovery is before it serves.
    pub(super) fn recovery_progress(&self) -> Option<Recovering> {
        let recovery = self.recovery.as_ref().filter(|_| self.phase == Phase::Recovering)?;
        let step = match recovery.stage {
            Stage::Superblocks => RecoveryStep::Superblocks,
            Stage::Metadata => RecoveryStep::Metadata,
            Stage::Tail => RecoveryStep::Tail,
            Stage::Headers => RecoveryStep::Headers,
            Stage::Fence => RecoveryStep::Origin,
            Stage::Rewriting | Stage::RewriteFlush | Stage::NewSuperblock { .. } | Stage::SuperblockFlush { .. } => RecoveryStep::Writing,
            Stage::LateHeaders => unreachable!("late headers are read while serving"),
        };
        let (left, of) = match recovery.stage {
            Stage::Fence => recovery.fence.progress(),
            _ => (recovery.left, recovery.most),
        };
        Some(Recovering { step, done: of - left, of })
    }

    pub(super) fn start_recovery(&mut self) {
        let geometry = self.config.geometry;
        self.recovery = Some(Box::new(Recovery {
            stage: Stage::Superblocks,
            left: 0,
            most: 0,
            reads: VecDeque::new(),
            reading: 0,
            failed: false,
            failures: 0,
            pause: BackOff::new(Duration::from_millis(10), Duration::from_secs(2)),
            again: Vec::new(),
            again_pause: BackOff::new(Duration::from_millis(10), Duration::from_secs(2)),
            unread_since: BTreeMap::new(),
            unread: Vec::new(),
            superblocks: [None, None],
            copies: [0; 2],
            copy: 0,
            superblock: None,
            maps: [Vec::new(), Vec::new()],
            pages: Vec::new(),
            chain: Chain::default(),
            map: MapRef::default(),
            sets: Vec::new(),
            ranges: Vec::new(),
            tail: tail::Tail::default(),
            headers: headers::Headers::default(),
            fence: fence::Fence::default(),
            touched: mapping::Touched::default(),
            noted: mapping::Noted::default(),
            mapper: None,
        }));
        for copy in 0..2 {
            self.recovery_read(Zone::Superblock, geometry.superblock(copy), Step::Superblock { copy });
        }
    }

    fn recovery_read(&mut self, zone: Zone, span: Span, step: Step) {
        let recovery = self.recovery();
        recovery.begin_operation();
        recovery.reads.push_back((zone, span, step));
        self.start_reads();
    }

    /// Few at a time: they are large, and beside service a client's read waits behind them.
    fn start_reads(&mut self) {
        let most = if self.phase == Phase::Serving { LATE_READS } else { READS };
        while self.recovery().reading < most
            && let Some((zone, span, step)) = self.recovery().reads.pop_front()
        {
            self.recovery().reading += 1;
            self.start(DeviceId::Cache, Class::Log, Action::Read(zone, span), Owner::Recovery(step));
        }
    }

    /// A single read has failed. True: it is tried again a little later.
    fn read_again(&mut self, zone: Zone, span: Span, step: Step) -> bool {
        self.read_again_for(span.start, zone, span, step)
    }

    /// The same of one of two places that say the same, known by the first of them: they have their time together.
    fn read_again_for(&mut self, place: u64, zone: Zone, span: Span, step: Step) -> bool {
        let now = self.now;
        let recovery = self.recovery();
        let since = *recovery.unread_since.entry((recovery.stage, place)).or_insert(now);
        if now.since(since) >= READ_PATIENCE {
            self.meet(FaultPoint::ReadsGivenUp);
            return false;
        }
        recovery.begin_operation();
        recovery.again.push((zone, span, step));
        if recovery.again_pause.at.is_none() {
            recovery.again_pause.failed(now);
        }
        true
    }

    /// The end of a stage: says what it has given up, neighbours together.
    fn report_unread(&mut self, what: &str) {
        let mut unread = std::mem::take(&mut self.recovery().unread);
        unread.sort_unstable_by_key(|span| span.start);
        let stretches: Vec<&[Span]> = unread.chunk_by(|one, next| one.end() == next.start).collect();
        let (named, others) = stretches.split_at(stretches.len().min(NAMED_MAX));
        for stretch in named {
            let offset = stretch[0].offset();
            let text = match stretch.len() {
                1 => format!("{what} at byte {offset}: it cannot be read, and counts as not written"),
                count => format!("{count} {what}s from byte {offset} on: they cannot be read, and count as not written"),
            };
            self.report_damage(false, text);
        }
        let others: usize = others.iter().map(|stretch| stretch.len()).sum();
        if others > 0 {
            self.report_damage(false, format!("{others} more {what}s behind those: they cannot be read, and count as not written"));
        }
    }

    /// What could not be read for a moment is read again: before service, and headers of clean sets beside it.
    pub(super) fn pump_again(&mut self) {
        let now = self.now;
        let Some(recovery) = &mut self.recovery else { return };
        if recovery.again_pause.at.is_some_and(|at| at <= now) {
            recovery.again_pause.at = None;
            let again = std::mem::take(&mut recovery.again);
            recovery.reads.extend(again);
            self.start_reads();
        }
    }

    fn recovery(&mut self) -> &mut Recovery<P> {
        self.recovery.as_mut().expect("recovery is under way")
    }

    /// What recovery has found, by its name in the registry and in words.
    fn find(&mut self, point: FaultPoint, fatal: bool, what: String) {
        self.meet(point);
        self.report_damage(fatal, what);
    }

    pub(super) fn recovery_done(&mut self, step: Step, result: Result<Answer<P>, DeviceError>) {
        if matches!(self.phase, Phase::Refused | Phase::Stopped) {
            return;
        }
        self.recovery().left -= 1;
        if !matches!(step, Step::Rewrite | Step::Flush | Step::NewSuperblock) {
            self.recovery().reading -= 1;
            self.start_reads();
        }
        match step {
            Step::Opened { first, slots } => self.opened_read(first, slots, result),
            Step::Superblock { copy } => self.superblock_read(copy, result),
            Step::Map { area, page, pages } => self.map_read(area, page, pages, result),
            Step::Journal { place, pages } => self.journal_read(place, pages, result),
            Step::Tail { run } => self.tail_read(run, result),
            Step::Headers { chunk } => self.headers_read(chunk, result),
            Step::Header { set, copy_is_bad } => self.header_read(set, copy_is_bad, result),
            Step::HeaderCopy { set, header_is_bad } => self.header_copy_read(set, header_is_bad, result),
            Step::FenceHeader { set } => self.fence_header_read(set, result),
            Step::Fence { .. } => unreachable!("what the origin answers is told to the fence"),
            Step::Rewrite | Step::OpenedWrite | Step::Flush | Step::NewSuperblock => self.recovery().failed |= result.is_err(),
        }
        if self.phase == Phase::Serving {
            // Late headers come while requests are served.
            self.late_headers_done();
        }
    }

    /// Goes on when every operation of the stage has ended.
    pub(super) fn pump_recovery(&mut self) {
        self.pump_again();
        while self.phase == Phase::Recovering && self.recovery().left == 0 && self.recovery_pause().is_none_or(|until| until <= self.now) {
            let stage = self.recovery().stage;
            match stage {
                Stage::Superblocks => self.choose_superblock(),
                Stage::Metadata => self.read_tail(),
                Stage::Tail => self.read_headers(),
                Stage::Headers => self.replay_log(),
                Stage::Fence if !self.is_compared() => break,
                Stage::Fence => self.begin_rewriting(),
                Stage::Rewriting | Stage::RewriteFlush | Stage::NewSuperblock { .. } | Stage::SuperblockFlush { .. } => self.promise_cut(),
                Stage::LateHeaders => unreachable!("late headers are read while serving"),
            }
        }
        if self.phase == Phase::Refused {
            while let Some(number) = self.arrivals.held.pop_front() {
                self.answer(number, Err(crate::request::RequestError::Io));
            }
        }
    }

    /// Until when recovery waits before it tries a failed write again.
    fn recovery_pause(&self) -> Option<Instant> {
        self.recovery.as_ref().and_then(|recovery| recovery.pause.at)
    }

    /// When what has failed is tried again, or the origin is waited for no more.
    pub(super) fn recovery_deadline(&self) -> Option<Instant> {
        let wishes = [self.recovery_pause(), self.again_deadline(), self.fence_deadline()];
        wishes.into_iter().flatten().filter(|&at| at > self.now).min()
    }

    /// When what could not be read is read again.
    pub(super) fn again_deadline(&self) -> Option<Instant> {
        self.recovery.as_ref().and_then(|recovery| recovery.again_pause.at)
    }

    // --- superblocks ---

    fn superblock_read(&mut self, copy: u32, result: Result<Answer<P>, DeviceError>) {
        let span = self.config.geometry.superblock(copy);
        // Even if the other one is there: this may be the newer one.
        if result.is_err() {
            if self.read_again(Zone::Superblock, span, Step::Superblock { copy }) {
                return;
            }
            self.recovery().unread.push(span);
        }
        let offset = span.offset();
        let decoded = match result {
            Ok(answer) => {
                Superblock::decode(&joined::<P>(answer).bytes(), copy).map_err(|why| (FaultPoint::SuperblockDamaged, why.to_string()))
            }
            Err(error) => Err((FaultPoint::SuperblockUnread, format!("{error:?}"))),
        };
        match decoded {
            Ok(superblock) if superblock.format == self.config.format => self.recovery().superblocks[copy as usize] = Some(superblock),
            Ok(_) => self.find(FaultPoint::SuperblockForeign, false, format!("superblock {copy} at byte {offset}: of another format")),
            Err((point, why)) => self.find(point, false, format!("superblock {copy} at byte {offset}: {why}")),
        }
    }

    fn choose_superblock(&mut self) {
        let recovery = self.recovery();
        recovery.copies = [0, 1].map(|copy| recovery.superblocks[copy].as_ref().map_or(0, |superblock| superblock.sequence));
        let newest = recovery.superblocks.iter().flatten().max_by_key(|superblock| superblock.sequence).cloned();
        let unread = std::mem::take(&mut recovery.unread).len();
        let Some(superblock) = newest else {
            let what = match unread {
                0 => "no valid superblock: this SSD holds no usable cache",
                1 => "one superblock cannot be read, and the other is not valid: what this SSD holds is not known",
                _ => "neither superblock can be read: what this SSD holds is not known",
            };
            return self.find(FaultPoint::NoSuperblock, true, what.to_string());
        };
        if superblock.geometry != self.config.geometry {
            return self.find(FaultPoint::OtherGeometry, true, "the superblock describes another geometry than the one given".to_string());
        }
        if superblock.detached {
            return self.find(FaultPoint::Detached, true, "the cache was detached from its origin".to_string());
        }
        if self.config.origin != [0; 16] && superblock.origin != [0; 16] && superblock.origin != self.config.origin {
            return self.find(FaultPoint::OtherOrigin, true, "the cache belongs to another origin".to_string());
        }
        self.wear.before = superblock.written;
        self.checksum = if self.has_canary(Canary::CrcAlone) { Checksum::Crc } else { superblock.checksum };
        self.recovery().superblock = Some(superblock.clone());
        self.recovery().enter(Stage::Metadata);
        self.read_maps(&superblock);
        self.read_ring();
    }

    // --- state map and ring ---

    fn read_maps(&mut self, superblock: &Superblock) {
        let geometry = self.config.geometry;
        let pages = geometry.map_pages() + geometry.range_pages();
        for map in [superblock.checkpoint, superblock.previous] {
            if map.number == 0 || !self.recovery().maps[map.area as usize].is_empty() {
                continue;
            }
            self.recovery().maps[map.area as usize] = vec![None; pages as usize];
            for (page, count) in chunks(pages) {
                self.read_map_pages(map.area, page, count);
            }
        }
    }

    fn read_map_pages(&mut self, area: u32, page: u32, pages: u32) {
        let span = Span::new(self.config.geometry.map_page(area, page).start, u64::from(pages) * PAGE_ATOMS);
        self.recovery_read(Zone::Map, span, Step::Map { area, page, pages });
    }

    fn map_read(&mut self, area: u32, page: u32, pages: u32, result: Result<Answer<P>, DeviceError>) {
        let Ok(answer) = result else {
            // Page by page, so that one bad sector costs one page.
            if pages > 1 {
                self.meet(FaultPoint::MapUnread);
                return (page..page + pages).for_each(|page| self.read_map_pages(area, page, 1));
            }
            self.meet(FaultPoint::MapPageUnread);
            self.read_again(Zone::Map, self.config.geometry.map_page(area, page), Step::Map { area, page, pages });
            return;
        };
        let payload: P = joined(answer);
        for (i, bytes) in payload.bytes().chunks_exact(PAGE_BYTES as usize).enumerate() {
            self.recovery().maps[area as usize][page as usize + i] = Some(bytes.to_vec());
        }
    }

    fn read_ring(&mut self) {
        for (place, pages) in chunks(self.config.geometry.journal_pages) {
            self.read_ring_pages(place, pages);
        }
    }

    fn read_ring_pages(&mut self, place: u32, pages: u32) {
        let span = Span::new(self.config.geometry.journal_page(place).start, u64::from(pages) * PAGE_ATOMS);
        self.recovery_read(Zone::Journal, span, Step::Journal { place, pages });
    }

    /// Keeps the intact pages: what is missing between them, the chain tells.
    fn journal_read(&mut self, place: u32, pages: u32, result: Result<Answer<P>, DeviceError>) {
        let (geometry, format) = (self.config.geometry, self.config.format);
        let Ok(answer) = result else {
            if pages > 1 {
                self.meet(FaultPoint::JournalUnread);
                return (place..place + pages).for_each(|place| self.read_ring_pages(place, 1));
            }
            let span = self.config.geometry.journal_page(place);
            if !self.read_again(Zone::Journal, span, Step::Journal { place, pages }) {
                self.meet(FaultPoint::JournalPageUnread);
                self.recovery().unread.push(span);
            }
            return;
        };
        let payload: P = joined(answer);
        let bytes = payload.bytes();
        let superblock = self.recovery().superblock.as_ref().expect("a superblock was chosen");
        // Before the older of the two checkpoints only the page just before counts.
        let (oldest, epoch) = (superblock.previous.seq.min(superblock.checkpoint.seq) - 1, superblock.epoch);
        let replayed_from = superblock.checkpoint.seq;
        for (i, bytes) in bytes.chunks_exact(PAGE_BYTES as usize).enumerate() {
            let place = place + i as u32;
            let page = match journal::decode_head(bytes, &geometry, format, place) {
                Ok(page) => page,
                // Nothing was written there in this life of the SSD.
                Err(Unsealed::Blank | Unsealed::Format) => continue,
                Err(_) => {
                    self.meet(FaultPoint::JournalPageDamaged);
                    continue;
                }
            };
            if page.head.seq < oldest && page.head.epoch <= epoch {
                continue;
            }
            let payload = Some(payload.slice(i as u64 * PAGE_ATOMS, PAGE_ATOMS));
            let mut ring = RingPage { place, page, payload, has_records: false };
            if ring.page.head.seq < replayed_from || ring.read_records(bytes, &geometry) {
                self.recovery().pages.push(ring);
            } else {
                self.meet(FaultPoint::RecordsImpossible);
            }
        }
        self.forget_durable_payloads();
    }

    /// Pages that are durable for certain will not be written again: their memory is given back.
    fn forget_durable_payloads(&mut self) {
        let recovery = self.recovery();
        let durable = chain::durable_mark(&recovery.pages, recovery.superblock.as_ref().expect("a superblock was chosen"));
        let forgotten = recovery.pages.iter_mut().filter(|ring| ring.has_records && ring.page.head.seq <= durable);
        forgotten.for_each(|ring| ring.payload = None);
    }

    /// The map is chosen: the pages before the newest checkpoint are replayed, or only say which places of the ring stay in use.
    /// A page with impossible records is no page.
    fn settle_older_pages(&mut self, are_replayed: bool) {
        let geometry = self.config.geometry;
        let before = self.recovery().pages.len();
        self.recovery().pages.retain_mut(|ring| {
            if ring.has_records {
                return true;
            }
            let payload = ring.payload.take().expect("kept until the records are read");
            !are_replayed || ring.read_records(&payload.bytes(), &geometry)
        });
        if self.recovery().pages.len() < before {
            self.meet(FaultPoint::OlderRecordsImpossible);
        }
    }

    /// The newest checkpoint whose map is whole.
    fn choose_map(&mut self) -> bool {
        let superblock = self.recovery().superblock.clone().expect("a superblock was chosen");
        for (map, name) in [(superblock.checkpoint, "newest"), (superblock.previous, "previous")] {
            match self.decode_map(map) {
                Ok((sets, ranges)) => {
                    self.settle_older_pages(map.seq < superblock.checkpoint.seq);
                    let recovery = self.recovery();
                    (recovery.map, recovery.sets, recovery.ranges) = (map, sets, ranges);
                    return true;
                }
                Err(why) => self.find(FaultPoint::MapDamaged, false, format!("state map of the {name} checkpoint ({}): {why}", map.number)),
            }
        }
        self.find(FaultPoint::NoMap, true, "neither of the two state maps is whole".to_string());
        false
    }

    fn decode_map(&self, map: MapRef) -> Result<(Vec<MapSet>, Vec<Range>), String> {
        let (geometry, format) = (self.config.geometry, self.config.format);
        if map.number == 0 {
            let bits = || Bits::new(geometry.set_slots);
            let free = || MapSet { life: 0, state: SetState::Free, sealed: Position::default(), live: bits(), dirty: bits() };
            return Ok(((0..geometry.sets).map(|_| free()).collect(), Vec::new()));
        }
        let pages = &self.recovery.as_ref().expect("recovery is under way").maps[map.area as usize];
        let page = |page: u32| {
            let offset = geometry.map_page(map.area, page).offset();
            let bytes = pages.get(page as usize).and_then(Option::as_deref);
            (offset, bytes.ok_or_else(|| format!("page at byte {offset} cannot be read")))
        };
        let mut sets = Vec::with_capacity(geometry.sets as usize);
        for number in 0..geometry.map_pages() {
            let (offset, bytes) = page(number);
            let decoded = decode_sets(bytes?, &geometry, format, map.area, number, map.number);
            sets.extend(decoded.map_err(|why| format!("page at byte {offset}: {why}"))?);
        }
        let mut ranges = Vec::new();
        let mut number = geometry.map_pages();
        loop {
            let (offset, bytes) = page(number);
            let (total, more) = decode_ranges(bytes?, &geometry, format, map.area, number, map.number)
                .map_err(|why| format!("page at byte {offset}: {why}"))?;
            ranges.extend(more);
            number += 1;
            if (number - geometry.map_pages()) * ranges_per_page(&geometry) >= total {
                return Ok((sets, ranges));
            }
        }
    }

    // --- the end ---

    /// The accepted tail goes out again, same bytes; then a flush; then both superblocks with the new epoch and cut.
    fn promise_cut(&mut self) {
        if std::mem::take(&mut self.recovery().failed) {
            return self.repeat_cut();
        }
        match self.recovery().stage {
            Stage::Rewriting => self.recovery_flush(Stage::RewriteFlush),
            Stage::RewriteFlush => self.write_cut(false),
            Stage::NewSuperblock { second } => self.recovery_flush(Stage::SuperblockFlush { second }),
            Stage::SuperblockFlush { second: false } => self.write_cut(true),
            Stage::SuperblockFlush { second: true } => self.begin_service(),
            Stage::Superblocks | Stage::Metadata | Stage::Tail | Stage::Headers | Stage::Fence | Stage::LateHeaders => {
                unreachable!("an earlier stage")
            }
        }
    }

    /// A write or flush failed: what it was for is done again, a few times, after a pause that grows.
    fn repeat_cut(&mut self) {
        let now = self.now;
        let recovery = self.recovery();
        if recovery.pause.at.take().is_none() {
            recovery.failures += 1;
            if recovery.failures > FAILURES {
                let what = "the SSD fails writes or flushes: recovery cannot be made durable".to_string();
                return self.find(FaultPoint::CutGivenUp, true, what);
            }
            recovery.failed = true;
            return recovery.pause.failed(now);
        }
        match recovery.stage {
            Stage::Rewriting | Stage::RewriteFlush => {
                recovery.enter(Stage::Rewriting);
                self.meet(FaultPoint::RewriteFailed);
                self.rewrite_tail();
                self.rewrite_opened();
            }
            Stage::NewSuperblock { second } | Stage::SuperblockFlush { second } => {
                let copy = recovery.copy;
                recovery.copies[copy as usize] = 0;
                self.meet(FaultPoint::CutWriteFailed);
                self.write_cut_to(copy, second);
            }
            Stage::Superblocks | Stage::Metadata | Stage::Tail | Stage::Headers | Stage::Fence | Stage::LateHeaders => {
                unreachable!("an earlier stage")
            }
        }
    }

    fn recovery_flush(&mut self, stage: Stage) {
        self.recovery().enter(stage);
        self.recovery().begin_operation();
        self.start(DeviceId::Cache, Class::Log, Action::Flush, Owner::Recovery(Step::Flush));
    }

    fn write_cut(&mut self, second: bool) {
        if self.has_canary(Canary::CutNotWritten) {
            return self.begin_service();
        }
        let copy = if second { 1 - self.recovery().copy } else { Self::first_copy(self.recovery().copies) };
        self.write_cut_to(copy, second);
    }

    fn write_cut_to(&mut self, copy: u32, second: bool) {
        let superblock = self.new_superblock();
        let recovery = self.recovery();
        recovery.copy = copy;
        recovery.copies[copy as usize] = superblock.sequence;
        recovery.enter(Stage::NewSuperblock { second });
        recovery.begin_operation();
        let span = self.config.geometry.superblock(copy);
        let payload = P::from_bytes(&superblock.encode(copy));
        let action = Action::Write(Zone::Superblock, span, [payload].into());
        self.start(DeviceId::Cache, Class::Log, action, Owner::Recovery(Step::NewSuperblock));
    }

    /// The superblock of the new epoch. A map that was passed over is named no more.
    fn new_superblock(&self) -> Superblock {
        let recovery = self.recovery.as_ref().expect("recovery is under way");
        let old = recovery.superblock.clone().expect("a superblock was chosen");
        let fell_back = recovery.map != old.checkpoint;
        Superblock {
            sequence: old.sequence + 1,
            epoch: old.epoch + 1,
            cut: recovery.chain.next_seq,
            checkpoint: recovery.map,
            // Kept for its number, which the next checkpoint must pass; no page of the good area carries it.
            previous: if fell_back { MapRef { number: old.checkpoint.number, ..recovery.map } } else { old.previous },
            clean: false,
            mode: self.mode_after_recovery(old.mode),
            marks: Vec::new(),
            ..old
        }
    }

    fn begin_service(&mut self) {
        let superblock = self.new_superblock();
        let copies = self.recovery().copies;
        let (geometry, format) = (self.config.geometry, self.config.format);
        let chain = std::mem::take(&mut self.recovery().chain);
        self.journal = Journal::new(geometry, format, superblock.epoch, chain.next_seq, chain.previous, chain.places);
        let mode = superblock.mode;
        self.adopt_superblock(superblock, copies);
        let now = self.now;
        self.forget_dead_headers();
        self.sets.rebuild_lists();
        self.ranges.note_time(now);
        self.adopt_open_sets();
        self.counters.recovered_dirty_slots = self.sets.dirty_slots;
        self.counters.recovered_clean_slots = self.sets.live_slots - self.sets.dirty_slots;
        self.arrivals.last = now;
        self.phase = Phase::Serving;
        self.begin_rotation();
        self.begin_mode(mode);
        let recovery = self.recovery();
        recovery.pages = Vec::new();
        recovery.tail = tail::Tail::default();
        recovery.enter(Stage::LateHeaders);
        recovery.sets = Vec::new();
        self.read_late_headers();
        self.late_headers_done();
        while let Some(number) = self.arrivals.held.pop_front() {
            self.begin(number);
        }
    }

    /// The stream that continues an open set: its own, or any that has none (a state map does not name it). There may be fewer streams than
    /// in the life before.
    fn stream_to_continue(&self, set: u32) -> Option<Stream> {
        let (classes, moves) = (self.config.classes, self.config.cleans());
        let is_free = |stream: &Stream| self.open[usize::from(stream.number())].is_none();
        let own = Stream::from_number(self.sets.get(set).stream, classes, moves).filter(is_free);
        let sources = [Source::Client, Source::Fill, Source::Moved].into_iter().take(if moves { 3 } else { 2 });
        own.or_else(|| sources.flat_map(|source| Stream::all(source, classes)).find(is_free))
    }

    /// Open sets are continued behind their last accepted PUT; sealed ones get the headers that their SEAL asked for.
    fn adopt_open_sets(&mut self) {
        self.adopt_placed_sets();
        let open: Vec<u32> = self.sets.open_sets().collect();
        for set in open {
            match self.stream_to_continue(set) {
                None => self.push_seal(set),
                Some(stream) => {
                    self.open[usize::from(stream.number())] = Some(set);
                    self.sets.get_mut(set).stream = stream.number();
                    if self.sets.slots_left(set) == 0 {
                        self.seal_set(stream, set);
                    }
                }
            }
        }
        let due: Vec<u32> = self.sets.iter().filter(|(_, set)| set.header == HeaderState::Due).map(|(number, _)| number).collect();
        self.header_writes.due.extend(due);
    }
}

/// Pages in pieces of one read: first page and how many.
fn chunks(pages: u32) -> impl Iterator<Item = (u32, u32)> {
    let most = (CHUNK_ATOMS / PAGE_ATOMS) as u32;
    (0..pages).step_by(most as usize).map(move |first| (first, most.min(pages - first)))
}

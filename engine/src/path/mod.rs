//! The engine of one volume. One flow is one file; what they share is here: requests in flight, operations in flight and who waits for
//! them, and the pump that lets every flow take what has become possible.
//!
//! ```text
//!   handle(event) ──▶ a flow changes state ──▶ pump: rounds of
//!                                                      bury, reclaim → retries → front writes → intake → through, stalled
//!                                                        → evict, clean, destage → mode, detach → checkpoint → flush → headers
//!                                                    until nothing has become possible for another; then scrubbing, a stop, the motor
//!   next_op ◀── queues (one per device)              next_reply ◀── replies
//! ```

mod above;
mod ahead;
mod back_off;
mod checkpoint;
mod clean;
mod commit;
mod complete;
mod degraded;
mod destage;
mod detach;
mod detour;
mod discard;
mod evict;
mod fence;
mod fill;
mod flush;
mod front_writes;
mod gather;
mod lend;
mod lost;
mod memory;
mod merge;
mod mode;
mod neighbours;
mod operations;
mod origin;
mod placed;
mod read;
mod recover;
mod release;
mod replies;
mod report;
mod retry;
mod scrub;
mod seal;
mod shun;
mod spin;
mod split;
mod stall;
mod status;
mod through;
mod tier;
mod wear;
mod write;

use std::collections::VecDeque;
use std::sync::Arc;

use tidegate_pages::Pages;

use crate::admission::Admission;
use crate::block::{ATOM_BYTES, Atoms, Block, Slot, Span};
use crate::cache::ahead::Ahead;
use crate::cache::convert::Converter;
use crate::cache::format::Entry;
use crate::cache::index::{Index, Run};
use crate::cache::journal::Journal;
use crate::cache::lost::Lost;
use crate::cache::ranges::Ranges;
use crate::cache::sets::Sets;
use crate::cache::split::Part;
use crate::cache::stream::STREAMS;
use crate::cache::window::Window;
use crate::config::Config;
use crate::dirty_share::DirtyShare;
use crate::fault_point::{FaultPoint, FaultPoints};
use crate::gate::Gate;
use crate::memory::Memory;
use crate::op::{Answer, DeviceError, DeviceId, Lanes, Limits, Op};
use crate::payload::Payload;
use crate::probe::{Counters, Damage, Health, Latencies, Phase, WaitReason};
use crate::queue::Queue;
use crate::request::{Command, Reply, Request, RequestError, Room};
use crate::slab::Slab;
use crate::spin::Motor;
use crate::time::{Duration, Instant};
use crate::what_if::WhatIf;
use crate::{Canary, Change, Control, Event};

use checkpoint::Checkpoint;
use clean::Cleaner;
use commit::Committing;
use complete::Completion;
use degraded::Degraded;
use destage::Destage;
use detour::Detouring;
use fence::Marks;
use fill::Tickets;
use flush::Flushes;
use front_writes::FrontWrites;
use gather::Gathered;
use merge::Lock;
use mode::Modes;
use neighbours::Around;
use operations::{Owner, UnderWay};
use origin::OriginSpans;
use read::Reading;
use recover::Recovery;
use release::Discards;
use replies::Replies;
use retry::Retries;
use scrub::Scrubber;
use seal::HeaderWrites;
use spin::Rotation;
use split::Splitting;
use stall::Life;
use status::Querying;
use through::{Passing, Through};
use wear::Meter;
use write::{DataWrite, Writing};

/// The data path of one volume. See the crate's first page for how to drive it.
pub struct Engine<P: Payload> {
    config: Config,
    /// As the geometry says, which has to work it out from everything that lies before it.
    data_start: u64,
    limits: [Limits; 2],
    now: Instant,
    phase: Phase,
    damage: Vec<Damage>,

    index: Index,
    sets: Sets,
    ranges: Ranges,
    lost: Lost,
    window: Window<P>,
    memory: Option<Memory>,
    dirty_share: DirtyShare,
    what_if: WhatIf,
    front_writes: FrontWrites<P>,
    /// Pages that fronts may have dirty, at most.
    front_pages: usize,
    journal: Journal,
    gate: Gate,
    queues: [Queue<P>; 2],
    /// Of an origin that may stand still.
    motor: Option<Motor>,
    rotation: Rotation<P>,

    /// Who waits for which operation.
    owners: Slab<UnderWay>,
    next_serial: u64,
    requests: Slab<Active<P>>,
    bytes_in_flight: u64,
    /// Requests that arrived before recovery ended.
    held: VecDeque<usize>,
    /// Writes and discards that are not placed yet, in order.
    intake: VecDeque<usize>,
    locks: Vec<Lock>,
    writes: Slab<DataWrite<P>>,
    /// Those of them that wait for more, and have not been sent.
    gathered: Vec<Gathered>,
    retries: Retries,
    replies: Replies<P>,

    flushes: Flushes,
    checkpoint: Checkpoint<P>,
    destage: Destage<P>,
    cleaner: Cleaner<P>,
    completions: Slab<Completion<P>>,
    recovery: Option<Box<Recovery<P>>>,
    origin: OriginSpans,
    tickets: Tickets,
    converter: Converter,
    splitting: Splitting,
    detouring: Detouring,
    committing: Committing,
    admission: Admission,
    around: Around,
    ahead: Ahead<P>,
    through: Through<P>,
    /// The open set of each stream, by its number.
    open: [Option<u32>; STREAMS],
    header_writes: HeaderWrites,

    /// When the flows were last looked at.
    looked: Instant,
    /// First record of the open group.
    unflushed_since: Option<Instant>,
    last_request: Instant,
    drain: Option<crate::probe::Drain>,
    stopping: bool,
    modes: Modes,
    /// The cache is being taken from its origin.
    detaching: bool,
    marks: Marks,
    /// The SSD takes no writes any more.
    cache_failed: bool,
    scratch: Scratch,
    degraded: Degraded,
    life: Life,
    scrubber: Scrubber,
    wear: Meter,
    discards: Discards,
    counters: Counters,
    faults: FaultPoints,
    latencies: Latencies,
}

/// Vectors kept for their memory only: what fills one empties it first.
#[derive(Default)]
struct Scratch {
    runs: Vec<Run>,
    entries: Vec<Entry>,
}

impl Scratch {
    /// To be given back. Whoever takes them meanwhile gets others.
    fn take_runs(&mut self) -> Vec<Run> {
        let mut runs = std::mem::take(&mut self.runs);
        runs.clear();
        runs
    }
}

/// A request in flight.
struct Active<P> {
    request: Request<P>,
    arrived: Instant,
    /// Of a FLUSH: the acknowledgements that its client may have known of by then.
    acknowledged: u64,
    /// A write that is for the log, where only small ones are.
    converts: bool,
    /// Of a long sequential write, or for the origin for another reason.
    part: Part,
    stage: Stage<P>,
    /// What it waits for, for people.
    waits: WaitReason,
    /// What it will be merged with has been asked for.
    is_foreseen: bool,
}

enum Stage<P> {
    /// Not looked at yet.
    Waiting,
    Reading(Reading<P>),
    Writing(Writing<P>),
    Through(Passing<P>),
    Querying(Querying),
    /// Placed and written; waits until its group is durable.
    Promised,
}

/// How long what has become due by time alone may wait while nothing but reads arrives.
const PATIENCE: Duration = Duration::from_micros(100);
/// Places at the SSD that fills, destaging, cleaning and scrubbing take at a time: enough to keep it busy, few enough that a hit hardly notices.
const PATIENT_PLACES: usize = 16;

impl<P: Payload> Engine<P> {
    /// An engine in recovery: the first operations come from [`Engine::next_op`] at once.
    /// `limits` are those of the cache and of the origin.
    pub fn new(config: Config, limits: [Limits; 2]) -> Self {
        let geometry = config.geometry;
        assert!(limits[0].atoms >= geometry.cache_atoms(), "the cache is smaller than its geometry");
        assert!(limits[1].atoms >= geometry.volume_atoms, "the origin is smaller than the volume");
        assert!(u64::from(geometry.journal_pages) >= config.journal_pages_needed(), "the journal ring is too small for set placement");
        for limits in limits {
            assert!(limits.op_atoms >= 2048, "a device takes operations of 1 MiB");
        }
        let front_pages = Engine::<P>::front_pages_max(&config);
        let block_atoms = u64::from(geometry.block_atoms);
        let mut dirty_share = Engine::<P>::dirty_share_of(&config);
        let memory =
            Memory::new(config.ram, block_atoms, P::PAGE_ATOM_BYTES, config.fronts, front_pages, config.memory_policy, &dirty_share);
        if memory.is_none() {
            // Nobody is there to lend to.
            dirty_share = DirtyShare::new(config.dirty_ram, config.dirty_ram, block_atoms * ATOM_BYTES);
        }
        let lanes = Lanes::new(config.lanes, limits[0].atoms);
        let mut engine = Engine {
            data_start: geometry.data_start(),
            limits,
            now: Instant::ZERO,
            phase: Phase::Recovering,
            damage: Vec::new(),
            index: Index::new(geometry.set_slots),
            sets: Sets::new(geometry, config.cleaning.benefit(), lanes),
            ranges: Ranges::default(),
            lost: Lost::new(geometry),
            window: Window::new(geometry.block_atoms),
            front_pages: if memory.is_some() { front_pages } else { 0 },
            what_if: WhatIf::new(memory.as_ref().map_or(0, Memory::pages_max), geometry.slots()),
            memory,
            dirty_share,
            front_writes: FrontWrites::default(),
            journal: Journal::new(geometry, config.format, 1, 1, 0, Vec::new()),
            gate: Gate::new(config.gate, config.free_floor, config.reserve, config.dirty_high, config.wait, config.max_dirty_age),
            queues: [
                Queue::new(config.queues[0], limits[0], lanes, PATIENT_PLACES),
                Queue::new(config.queues[1], limits[1], Lanes::new(1, limits[1].atoms), limits[1].depth),
            ],
            motor: Engine::<P>::motor_of(&config),
            rotation: Rotation::default(),
            owners: Slab::default(),
            next_serial: 0,
            requests: Slab::default(),
            bytes_in_flight: 0,
            held: VecDeque::new(),
            intake: VecDeque::new(),
            locks: Vec::new(),
            writes: Slab::default(),
            gathered: Vec::new(),
            retries: Retries::default(),
            replies: Replies::default(),
            flushes: Flushes::default(),
            checkpoint: Checkpoint::default(),
            destage: Destage::default(),
            cleaner: Cleaner::default(),
            completions: Slab::default(),
            recovery: None,
            origin: OriginSpans::default(),
            tickets: Tickets::default(),
            converter: Converter::new(&config),
            splitting: Splitting::new(&config),
            detouring: Detouring::new(&config),
            committing: Committing::new(&config),
            admission: Admission::new(geometry.slots()),
            around: Around::new(&config),
            ahead: Ahead::new(config.read_ahead, u64::from(geometry.block_atoms)),
            through: Through::new(geometry.block_atoms),
            open: [None; STREAMS],
            header_writes: HeaderWrites::default(),
            looked: Instant::ZERO,
            unflushed_since: None,
            last_request: Instant::ZERO,
            drain: None,
            stopping: false,
            modes: Modes::new(config.mode),
            detaching: false,
            marks: Marks::default(),
            cache_failed: false,
            scratch: Scratch::default(),
            degraded: Degraded::default(),
            life: Life::default(),
            scrubber: Scrubber::default(),
            wear: Meter::new(config.daily_write_bytes),
            discards: Discards::default(),
            counters: Counters::default(),
            faults: FaultPoints::default(),
            latencies: Latencies::default(),
            config,
        };
        engine.start_recovery();
        engine
    }

    /// What the engine takes now. A front that reads zero stops reading its sockets.
    pub fn room(&self) -> Room {
        Room {
            requests: self.config.requests_max.saturating_sub(self.requests.len()),
            bytes: self.config.bytes_max.saturating_sub(self.bytes_in_flight),
        }
    }

    /// The memory tier, for fronts that read from it themselves, as many as the configuration says. What they have answered counts as hits.
    pub fn pages(&self) -> Option<&Arc<Pages>> {
        self.memory.as_ref().map(Memory::pages)
    }

    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    /// Everything that was cached at the last stop or crash is known again: an engine serves before that.
    pub fn is_warm(&self) -> bool {
        self.phase == Phase::Serving && self.recovery.is_none()
    }

    /// The only way in.
    pub fn handle(&mut self, now: Instant, event: Event<P>) {
        self.handle_all(now, [event]);
    }

    /// Everything that happened until now, in its order; what has become possible is done once for all of it.
    #[inline]
    pub fn handle_all(&mut self, now: Instant, events: impl IntoIterator<Item = Event<P>>) {
        self.now = self.now.max(now);
        self.sets.now = self.now;
        self.hear_fronts();
        let took = !self.has_canary(Canary::LateFrontWrites) && self.take_front_writes();
        let mut stirs = took || !self.front_writes.is_empty();
        for event in events {
            stirs |= self.stirs(&event);
            self.take(event);
        }
        if stirs || self.now.since(self.looked) >= PATIENCE {
            self.pump();
        }
        if self.has_canary(Canary::LateFrontWrites) {
            self.take_front_writes();
        }
        self.allow_front_writes();
    }

    /// May this make something possible for one of the flows? A client's read that arrives gives nothing that they wait for, but may wake a motor.
    fn stirs(&self, event: &Event<P>) -> bool {
        let is_read = matches!(event, Event::Arrived(Request { command: Command::Read, .. }));
        !is_read || self.motor.is_some() || self.phase != Phase::Serving
    }

    fn take(&mut self, event: Event<P>) {
        match event {
            Event::Arrived(request) => self.arrive(request),
            Event::Completed(done) => self.complete(done),
            Event::Late(_) => self.counters.late_ops += 1,
            Event::Device(DeviceId::Origin, Change::Gone | Change::Back) => {
                self.motor_changed();
                self.origin_changed();
            }
            Event::Device(DeviceId::Cache, Change::Gone) => self.cache_error(DeviceError::Gone),
            Event::Device(DeviceId::Cache, Change::Back) => {}
            Event::Control(control) => self.control(control),
            Event::Fenced { durable } => self.fenced(durable),
            Event::Tick => {}
        }
    }

    /// The next operation to start, if a device takes one.
    pub fn next_op(&mut self, now: Instant) -> Option<Op<P>> {
        if let Some(op) = self.rotation.word.take() {
            return Some(op);
        }
        let open = self.queues_open();
        self.queues[..open].iter_mut().find_map(|queue| queue.pop(now))
    }

    /// Queues that may give something out: not the origin's while it does not turn.
    fn queues_open(&self) -> usize {
        if self.motor.as_ref().is_none_or(Motor::takes) { self.queues.len() } else { DeviceId::Origin as usize }
    }

    fn queue_deadline(&self) -> Option<Instant> {
        self.queues[..self.queues_open()].iter().filter_map(Queue::deadline).filter(|&at| at > self.now).min()
    }

    pub fn next_reply(&mut self) -> Option<Reply<P>> {
        self.replies.pop()
    }

    /// When the engine next wants a [`Event::Tick`] if nothing happens before.
    pub fn deadline(&self) -> Option<Instant> {
        if self.phase != Phase::Serving {
            let motor = if self.phase == Phase::Recovering { self.spin_deadline() } else { None };
            return [self.queue_deadline(), self.recovery_deadline(), motor].into_iter().flatten().filter(|&at| at > self.now).min();
        }
        if self.is_mapping() || self.looks_for_rescue() {
            return Some(self.now);
        }
        let flush_age = self.unflushed_since.map(|since| since + self.config.flush_age);
        let gate = if self.destage.is_idle() { self.gate.deadline(self.last_request, self.dirty_since(), self.asleep()) } else { None };
        let home = if self.destage.is_idle() { self.home_deadline() } else { None };
        let wishes = [
            flush_age,
            gate,
            home,
            self.page_deadline(),
            self.flushes.back_off.at,
            self.destage.back_off.at,
            self.destage.courtesy.rest(self.looked),
            self.leaves_ssd_until(self.looked),
            self.checkpoint.back_off.at,
            self.retries.back_off.at,
            self.retries.pause.at,
            self.through.back_off.at,
            self.through.refused.at,
            self.marks.until,
            self.modes.stop_until(),
            self.flushes.page_back_off.at,
            self.degraded.back_off.at,
            self.stop_deadline(),
            self.cleaner.deadline(),
            self.stall_deadline(),
            self.scrub_deadline(),
            self.splitting.deadline(),
            self.detouring.deadline(),
            self.spin_deadline(),
            self.again_deadline(),
            self.queue_deadline(),
        ];
        // What was due when the flows were looked at has had its turn.
        let never = Instant(u64::MAX);
        let later = |wish: &Option<Instant>| wish.filter(|&at| at > self.looked).unwrap_or(never);
        Some(wishes.iter().map(later).fold(never, Instant::min)).filter(|&at| at < never)
    }

    fn arrive(&mut self, request: Request<P>) {
        let refused = self.stopping || matches!(self.phase, Phase::Refused | Phase::Stopped) || self.is_refused_by_detach(&request.command);
        if refused {
            let result = Err(RequestError::Shutdown);
            self.replies.push(Reply { id: request.id, result });
            return;
        }
        assert!(request.span.end() <= self.config.geometry.volume_atoms, "the front checks the bounds of a request");
        self.last_request = self.now;
        self.bytes_in_flight += request.payload_bytes();
        match &request.command {
            Command::Read => self.counters.reads += 1,
            Command::Write { .. } => self.counters.writes += 1,
            Command::Trim { .. } | Command::Zero { .. } => self.counters.trims += 1,
            Command::Flush => {
                self.counters.flushes += 1;
                self.splitting.flushed();
            }
            Command::Cache | Command::Status { .. } => {}
        }
        let waits = if self.phase == Phase::Recovering { WaitReason::Recovery } else { WaitReason::Turn };
        let acknowledged = if matches!(request.command, Command::Flush) { self.told() } else { 0 };
        let converts = matches!(request.command, Command::Write { .. }) && self.converter.takes(request.span);
        let part = self.part_of_sequence(&request);
        let active = Active { request, arrived: self.now, acknowledged, converts, part, stage: Stage::Waiting, waits, is_foreseen: false };
        let number = self.requests.insert(active);
        self.note_commit(number);
        match self.phase {
            Phase::Recovering => self.held.push_back(number),
            _ if self.waits_for_front_writes(&self.requests.get(number).request) => self.hold_for_front_writes(number),
            _ => self.begin(number),
        }
    }

    fn begin(&mut self, number: usize) {
        match self.requests.get(number).request.command {
            Command::Read => self.begin_read(number),
            Command::Cache => self.begin_prefetch(number),
            Command::Write { .. } => self.begin_write(number),
            Command::Trim { .. } | Command::Zero { .. } => self.intake.push_back(number),
            Command::Flush => self.begin_flush(number),
            Command::Status { one, .. } => self.begin_status(number, one),
        }
    }

    fn control(&mut self, control: Control) {
        match control {
            Control::Drain => {
                let left = self.dirty_blocks();
                self.drain = Some(crate::probe::Drain { started: self.now, blocks_at_start: left, blocks_left: left });
            }
            Control::CancelDrain => self.drain = None,
            Control::Mode(mode) => self.ask_mode(mode),
            Control::Detach => self.detach(),
            Control::CancelDetach => self.cancel_detach(),
            Control::Stop => {
                // A detach that has not brought everything home is none: the rest only the cache has.
                self.detaching &= self.stopping;
                self.stop();
            }
        }
    }

    fn stop(&mut self) {
        self.stopping = true;
        self.drain = None;
        if self.phase != Phase::Serving {
            self.phase = Phase::Stopped;
            self.recovery = None;
            while let Some(number) = self.held.pop_front() {
                self.answer(number, Err(RequestError::Shutdown));
            }
            return;
        }
        let group = self.close_group();
        self.flushes.want(group);
    }

    /// Stopping: when everything acknowledged is durable, the superblocks say so; then the engine stops.
    fn finish_stop(&mut self) {
        if !self.stopping || self.phase != Phase::Serving {
            return;
        }
        loop {
            // What was not placed yet was not acknowledged and need not be done; but what fronts have written was.
            while let Some(number) = self.intake.pop_front() {
                self.locks.retain(|lock| lock.request != number);
                self.answer(number, Err(RequestError::Shutdown));
            }
            if !self.pump_front_writes() {
                break;
            }
        }
        let is_home = self.is_home_for_stop();
        if !self.front_writes.is_empty() && self.health() != Health::Unfenced {
            return;
        }
        if self.cache_failed {
            return self.stop_degraded();
        }
        if !is_home || !self.is_through_settled() {
            return;
        }
        if !self.journal.is_group_empty() {
            let group = self.close_group();
            self.flushes.want(group);
            return self.pump_pages();
        }
        let durable = self.journal.durable_group() + 1 == self.journal.group();
        let is_still = durable && self.writes.is_empty() && !self.has_writing_requests() && self.recovery.is_none();
        if is_still && !self.scrubber.is_busy() && !self.cleaner.is_busy() && !self.discards.is_busy() && self.take_marks() {
            self.seal_stop();
        }
    }

    /// Reports damage. Fatal damage ends the service (a recovery before anything was written).
    fn report_damage(&mut self, fatal: bool, what: String) {
        self.damage.push(Damage { fatal, what });
        if fatal {
            self.phase = Phase::Refused;
        }
    }

    /// An error path was taken.
    fn meet(&mut self, point: FaultPoint) {
        self.faults.meet(point);
    }

    fn has_writing_requests(&self) -> bool {
        self.requests.iter().any(|(_, active)| matches!(active.stage, Stage::Writing(_) | Stage::Through(_) | Stage::Promised))
    }

    /// Lets every flow take what has become possible, until nothing is any more.
    fn pump(&mut self) {
        self.looked = self.now;
        self.pump_flows();
        // Behind the flows: it may be one of them that has just asked for a disk whose motor has said nothing for long, and no tick would follow.
        if self.tires_of_motor() {
            self.pump_flows();
        }
    }

    fn pump_flows(&mut self) {
        if self.phase == Phase::Recovering {
            self.pump_recovery();
        }
        if self.phase == Phase::Recovering {
            self.pump_motor();
        }
        if self.phase != Phase::Serving {
            return;
        }
        if self.is_sealing_stop() {
            // The superblocks say where the log ends: what ends now is not told any more, and stays dirty.
            while self.pump_checkpoint() | self.pump_flush() {}
            return;
        }
        self.pump_again();
        self.map_late();
        self.pump_fence();
        while self.pump_round() {}
        self.pump_scrub();
        self.finish_stop();
        self.pump_gathered();
        self.pump_motor();
    }

    /// Each flow once, in their order. Each returns whether it may have made something possible for another. (A function of its own: of all of
    /// them in one loop the compiler prepares eighty addresses, for a round that mostly is the only one.)
    #[inline(never)]
    fn pump_round(&mut self) -> bool {
        self.bury_unknown();
        let mut again = self.reclaim();
        again |= self.pump_retries();
        again |= self.pump_front_writes();
        again |= self.pump_intake();
        again |= self.pump_through();
        again |= self.pump_stalled();
        again |= self.pump_evict();
        again |= self.pump_clean();
        again |= self.pump_destage();
        again |= self.pump_mode();
        self.pump_detach();
        self.hurry_late_headers();
        again |= self.pump_checkpoint();
        self.pump_own_flush();
        self.pump_pages();
        again |= self.pump_flush();
        self.pump_headers();
        again
    }

    // --- geometry in a few words ---

    fn block_atoms(&self) -> u64 {
        u64::from(self.config.geometry.block_atoms)
    }
    /// All atoms of a block: fewer in a short last one.
    fn full(&self, block: Block) -> Atoms {
        self.config.geometry.full(block)
    }
    /// So many whole blocks are in so many atoms.
    #[inline]
    fn blocks_in(&self, atoms: u64) -> u64 {
        atoms >> self.config.geometry.block_bits()
    }
    /// So many blocks it takes for so many atoms, from the beginning of one on.
    #[inline]
    fn blocks_for(&self, atoms: u64) -> u64 {
        self.blocks_in(atoms + self.block_atoms() - 1)
    }
    /// The blocks that a span touches: first and how many.
    #[inline]
    fn blocks_of(&self, span: Span) -> (Block, u64) {
        let first = self.blocks_in(span.start);
        (Block(first), self.blocks_for(span.end()) - first)
    }
    /// All atoms of blocks, with those that a short last one lacks.
    fn blocks_span(&self, block: Block, blocks: u64) -> Span {
        Span::new(block.0 * self.block_atoms(), blocks * self.block_atoms())
    }
    /// The blocks that lie inside a span as wholes: first and how many (possibly none).
    fn whole_blocks(&self, span: Span) -> (Block, u64) {
        let first = self.blocks_for(span.start);
        (Block(first), self.blocks_in(span.end()).saturating_sub(first))
    }
    /// The blocks at the two ends of a span, once if it is one.
    fn end_blocks(&self, span: Span) -> impl Iterator<Item = Block> + use<P> {
        let (first, blocks) = self.blocks_of(span);
        [first, Block(first.0 + blocks - 1)].into_iter().take(if blocks == 1 { 1 } else { 2 })
    }
    /// The atoms of `block` that `span` covers.
    fn mask_of(&self, block: Block, span: Span) -> Atoms {
        let base = block.0 * self.block_atoms();
        let part = self.config.geometry.block_span(block).intersection(span);
        if part.is_empty() { Atoms::NONE } else { Atoms::range((part.start - base) as u32, (part.end() - base) as u32) }
    }
    fn slots_span(&self, first: Slot, slots: u32) -> Span {
        Span::new(self.data_start + self.config.geometry.atoms_before(first), u64::from(slots) * self.block_atoms())
    }
    fn valid_atoms(&self, slot: Slot, block: Block) -> Atoms {
        self.sets.partial(slot).unwrap_or_else(|| self.full(block))
    }
    fn has_canary(&self, canary: Canary) -> bool {
        self.config.canary == Some(canary)
    }

    // --- killing slots ---

    /// Unmaps `blocks` blocks and kills their slots in the open group; returns how many slots died.
    /// The caller's record (PUT, ZERO, KILL) is what kills them at replay.
    fn kill_blocks(&mut self, block: Block, blocks: u64) -> u64 {
        let mut displaced = self.scratch.take_runs();
        self.index.replace(block, blocks, None, &mut displaced);
        let killed = self.kill_runs(&displaced);
        self.scratch.runs = displaced;
        killed
    }

    fn kill_runs(&mut self, runs: &[Run]) -> u64 {
        for run in runs {
            // A run lies in one origin set.
            let dirty = self.kill_run(run);
            self.index.add_dirty(run.block, -i64::from(dirty));
        }
        runs.iter().map(|run| run.blocks).sum()
    }

    /// Kills the slots of a run, and returns how many of them were dirty, which the index is still to be told.
    fn kill_run(&mut self, run: &Run) -> u32 {
        let first = run.slot.expect("displaced blocks had slots");
        if self.writes_through() {
            for i in 0..run.blocks {
                if !self.sets.is_dirty(Slot { slot: first.slot + i as u32, ..first }) {
                    self.note_limbo(Block(run.block.0 + i), 1);
                }
            }
        }
        self.sets.kill(first, run.blocks as u32, self.journal.group())
    }

    fn note_record(&mut self) {
        if self.unflushed_since.is_none() {
            self.unflushed_since = Some(self.now);
        }
    }

    /// Closes the open group and returns the newest closed one.
    fn close_group(&mut self) -> u64 {
        self.unflushed_since = None;
        self.end_gathering();
        self.journal.close()
    }
}

/// The payloads of a read, as one.
fn joined<P: Payload>(answer: Answer<P>) -> P {
    match answer {
        Answer::Data(pieces) => P::concat(&pieces),
        Answer::Done | Answer::Allocation(_) | Answer::Power(_) => panic!("a read is answered with data"),
    }
}

type Ended = Result<(), DeviceError>;

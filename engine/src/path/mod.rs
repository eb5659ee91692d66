//! The engine of one volume. One flow is one file, and has its own part of [`Engine`]. Here is what they share: what each of them may see and
//! change, the ways in and out, and the pump that lets every flow take what has become possible.
//!
//! ```text
//!   handle(event) ──▶ a flow changes state ──▶ pump: rounds of
//!                                                      bury, reclaim → retries → front writes → intake → through, stalled
//!                                                        → evict, clean, destage → mode, detach → checkpoint → flush → headers
//!                                                    until nothing has become possible for another; then scrubbing, a stop, the motor
//!   next_op ◀── queues (one per device)              next_reply ◀── replies
//! ```

// In and out: each request and each operation, from its beginning to its end.
mod deadline;
mod new;
mod operations;
mod replies;
mod report;
mod requests;

// Reads, questions, and what is kept of them.
mod above;
mod ahead;
mod complete;
mod fill;
mod lend;
mod memory;
mod neighbours;
mod partial;
mod read;
mod status;
mod tier;

// Writes, into the log.
mod discard;
mod front_writes;
mod gather;
mod kill;
mod merge;
mod placed;
mod retry;
mod seal;
mod write;

// Writes past the log, to the origin.
mod commit;
mod detour;
mod split;
mod through;

// What is promised: made durable, and there again after a crash.
mod checkpoint;
mod flush;
mod mode;
mod recover;

// The way home, and room for others.
mod clean;
mod destage;
mod evict;
mod origin;
mod release;
mod shun;

// What fails, rots, wears out or stands still.
mod back_off;
mod degraded;
mod lost;
mod scrub;
mod spin;
mod stall;
mod wear;

// The end.
mod detach;
mod fence;
mod stop;

// Words that all of them use.
mod geometry;
mod scratch;
mod turn;

use std::collections::VecDeque;

use crate::admission::Admission;
use crate::cache::ahead::Ahead;
use crate::cache::convert::Converter;
use crate::cache::index::Index;
use crate::cache::journal::Journal;
use crate::cache::lost::Lost;
use crate::cache::ranges::Ranges;
use crate::cache::sets::Sets;
use crate::cache::stream::STREAMS;
use crate::cache::window::Window;
use crate::config::Config;
use crate::dirty_share::DirtyShare;
use crate::fault_point::FaultPoints;
use crate::gate::Gate;
use crate::memory::Memory;
use crate::op::{DeviceError, DeviceId, Limits, Op};
use crate::payload::{Checksum, Lessor, Payload};
use crate::probe::{Counters, Damage, Drain, Latencies, Phase};
use crate::queue::Queue;
use crate::request::{Command, Reply, Request};
use crate::slab::Slab;
use crate::time::{Duration, Instant};
use crate::what_if::WhatIf;
use crate::{Canary, Change, Control, Event};

use operations::{Ended, Owner, joined};
use requests::{Active, Stage};

/// The data path of one volume. See the crate's first page for how to drive it.
pub struct Engine<P: Payload> {
    config: Config,
    /// As the geometry says, which has to work it out from everything that lies before it.
    data_start: u64,
    /// Of the cache and of the origin.
    limits: [Limits; 2],

    // How far it has come, and what its owner has asked for.
    now: Instant,
    /// When the flows were last looked at.
    looked: Instant,
    phase: Phase,
    modes: mode::Modes,
    drain: Option<Drain>,
    /// The cache is being taken from its origin.
    detaching: bool,
    turn: turn::Turn,
    ignored_trims: u64,
    stopping: bool,

    // What is where.
    /// Blocks → slots.
    index: Index,
    /// Slots → blocks, and the lives of the sets.
    sets: Sets,
    /// By what slots are told from what they do not hold: the superblock says it.
    checksum: Checksum,
    /// Blocks that are zeros, whatever the origin holds.
    ranges: Ranges,
    /// Atoms that are nowhere any more.
    lost: Lost,
    journal: Journal,
    /// Contents of what is not flushed yet.
    window: Window<P>,
    /// Pages of what clients have read and written.
    memory: Option<Memory>,
    /// Who answers reads with pages as they are.
    lessor: Option<Box<dyn Lessor<P>>>,

    // Who decides: when blocks go home, what is kept of reads, what is for the log where not all is, how much memory dirty pages may have.
    gate: Gate,
    admission: Admission,
    converter: Converter,
    dirty_share: DirtyShare,

    // What is in flight.
    requests: Slab<Active<P>>,
    arrivals: requests::Arrivals,
    replies: replies::Replies<P>,
    operations: operations::Operations,
    /// Of the cache and of the origin.
    queues: [Queue<P>; 2],
    origin: origin::OriginSpans,

    // Flows that read.
    tickets: fill::Tickets,
    completions: Slab<complete::Completion<P>>,
    around: neighbours::Around,
    ahead: Ahead<P>,

    // Flows that write.
    front_writes: front_writes::FrontWrites<P>,
    /// Writes and discards that are not placed yet, in order.
    intake: VecDeque<usize>,
    locks: Vec<merge::Lock>,
    writes: Slab<write::DataWrite<P>>,
    /// Those of them that wait for more and have not been sent, and whether more is to be expected.
    gathering: gather::Gathering,
    retries: retry::Retries,
    /// The open set of each stream, by its number.
    open: [Option<u32>; STREAMS],
    header_writes: seal::HeaderWrites,
    through: through::Through<P>,
    splitting: split::Splitting,
    detouring: detour::Detouring,
    committing: commit::Committing,

    // Flows that keep promises.
    recovery: Option<Box<recover::Recovery<P>>>,
    flushes: flush::Flushes,
    checkpoint: checkpoint::Checkpoint<P>,
    marks: fence::Marks,

    // Flows that bring home and make room.
    destage: destage::Destage<P>,
    cleaner: clean::Cleaner<P>,
    discards: release::Discards,

    // What fails, rots, wears out or stands still.
    degraded: degraded::Degraded,
    life: stall::Life,
    scrubber: scrub::Scrubber,
    wear: wear::Meter,
    rotation: spin::Rotation<P>,

    // What is told.
    damage: Vec<Damage>,
    counters: Counters,
    /// Error paths that were taken.
    faults: FaultPoints,
    latencies: Latencies,
    /// What other sizes of memory and cache would miss.
    what_if: WhatIf,

    scratch: scratch::Scratch,
}

/// How long what has become due by time alone may wait while nothing but reads arrives.
const PATIENCE: Duration = Duration::from_micros(100);

impl<P: Payload> Engine<P> {
    // --- in and out ---

    /// The only way in.
    pub fn handle(&mut self, now: Instant, event: Event<P>) {
        self.handle_all(now, [event]);
    }

    /// Everything that happened until now, in its order; what has become possible is done once for all of it.
    #[inline]
    pub fn handle_all(&mut self, now: Instant, events: impl IntoIterator<Item = Event<P>>) {
        self.now = self.now.max(now);
        self.sets.note_now(self.now);
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
        !is_read || self.rotation.motor.is_some() || self.phase != Phase::Serving
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

    #[cold]
    fn control(&mut self, control: Control) {
        match control {
            Control::Drain => self.begin_drain(),
            Control::CancelDrain => self.drain = None,
            Control::Mode(mode) => self.ask_mode(mode),
            Control::Detach => self.detach(),
            Control::CancelDetach => self.cancel_detach(),
            Control::Stop => self.ask_stop(),
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

    pub fn next_reply(&mut self) -> Option<Reply<P>> {
        self.replies.pop()
    }

    // --- the pump ---

    /// Lets every flow take what has become possible, until nothing is any more.
    fn pump(&mut self) {
        self.looked = self.now;
        self.begin_turn();
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
    /// them in one loop the compiler prepares eighty addresses, for a round that mostly is the only one. And what a flow does when there is something
    /// to be done is mostly one of its own, too: what one request runs through is more code than a processor keeps close, and code that is passed by
    /// takes its place there as well.)
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
        self.pump_untold();
        again |= self.pump_checkpoint();
        self.pump_own_flush();
        self.pump_pages();
        again |= self.pump_flush();
        self.pump_headers();
        again
    }

    /// A fault that a test has put in.
    fn has_canary(&self, canary: Canary) -> bool {
        self.config.canary == Some(canary)
    }
}

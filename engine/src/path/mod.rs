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
mod deadline;
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
mod geometry;
mod kill;
mod lend;
mod lost;
mod memory;
mod merge;
mod mode;
mod neighbours;
mod new;
mod operations;
mod origin;
mod placed;
mod read;
mod recover;
mod release;
mod replies;
mod report;
mod requests;
mod retry;
mod scratch;
mod scrub;
mod seal;
mod shun;
mod spin;
mod split;
mod stall;
mod status;
mod stop;
mod through;
mod tier;
mod wear;
mod write;

use std::collections::VecDeque;
use std::sync::Arc;

use tidegate_pages::Pages;

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
use crate::payload::Payload;
use crate::probe::{Counters, Damage, Latencies, Phase};
use crate::queue::Queue;
use crate::request::{Command, Reply, Request};
use crate::slab::Slab;
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
use operations::{Ended, Operations, Owner, joined};
use origin::OriginSpans;
use recover::Recovery;
use release::Discards;
use replies::Replies;
use requests::{Active, Arrivals, Stage};
use retry::Retries;
use scratch::Scratch;
use scrub::Scrubber;
use seal::HeaderWrites;
use spin::Rotation;
use split::Splitting;
use stall::Life;
use through::Through;
use wear::Meter;
use write::DataWrite;

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
    journal: Journal,
    gate: Gate,
    queues: [Queue<P>; 2],
    rotation: Rotation<P>,

    operations: Operations,
    requests: Slab<Active<P>>,
    arrivals: Arrivals,
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
    drain: Option<crate::probe::Drain>,
    stopping: bool,
    modes: Modes,
    /// The cache is being taken from its origin.
    detaching: bool,
    marks: Marks,
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

/// How long what has become due by time alone may wait while nothing but reads arrives.
const PATIENCE: Duration = Duration::from_micros(100);
impl<P: Payload> Engine<P> {
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

    fn has_canary(&self, canary: Canary) -> bool {
        self.config.canary == Some(canary)
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
}

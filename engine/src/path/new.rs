//! New: an engine, made of its configuration and of what its two devices take.

use crate::admission::Admission;
use crate::block::ATOM_BYTES;
use crate::cache::ahead::Ahead;
use crate::cache::convert::Converter;
use crate::cache::index::Index;
use crate::cache::journal::Journal;
use crate::cache::lost::Lost;
use crate::cache::sets::Sets;
use crate::cache::stream::STREAMS;
use crate::cache::window::Window;
use crate::config::{Canary, Config};
use crate::dirty_share::DirtyShare;
use crate::gate::Gate;
use crate::memory::Memory;
use crate::op::{Lanes, Limits};
use crate::payload::{Checksum, Payload};
use crate::probe::Phase;
use crate::queue::Queue;
use crate::time::{Duration, Instant};
use crate::what_if::WhatIf;

use super::back_off::BackOff;
use super::commit::Committing;
use super::detour::Detouring;
use super::front_writes::{self, FrontWrites};
use super::mode::Modes;
use super::neighbours::Around;
use super::spin::Rotation;
use super::split::Splitting;
use super::through::Through;
use super::wear::Meter;
use super::{Engine, lend};

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
        let front_pages = front_writes::pages_max(&config);
        let block_atoms = u64::from(geometry.block_atoms);
        let mut dirty_share = lend::dirty_share(&config);
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
            index: Index::new(geometry.set_slots),
            sets: Sets::new(geometry, config.cleaning.benefit(), lanes),
            lost: Lost::new(geometry),
            checksum: Checksum::default(),
            window: Window::new(geometry.block_atoms),
            front_writes: FrontWrites::new(if memory.is_some() { front_pages } else { 0 }),
            what_if: WhatIf::new(memory.as_ref().map_or(0, Memory::pages_max), geometry.slots()),
            memory,
            lessor: None,
            dirty_share,
            journal: Journal::new(geometry, config.format, 1, 1, 0, Vec::new()),
            gate: Gate::new(config.gate, config.free_floor, config.reserve, config.dirty_high, config.wait, config.max_dirty_age),
            queues: [
                Queue::new(config.queues[0], limits[0], lanes, PATIENT_PLACES),
                Queue::new(config.queues[1], limits[1], Lanes::new(1, limits[1].atoms), limits[1].depth),
            ],
            rotation: Rotation::new(&config),
            converter: Converter::new(&config),
            splitting: Splitting::new(&config),
            detouring: Detouring::new(&config),
            committing: Committing::new(&config),
            admission: Admission::new(geometry.slots()),
            around: Around::new(&config),
            ahead: Ahead::new(config.read_ahead, u64::from(geometry.block_atoms)),
            through: Through::new(geometry.block_atoms),
            modes: Modes::new(config.mode),
            wear: Meter::new(config.daily_write_bytes),

            // As every engine begins.
            now: Instant::ZERO,
            phase: Phase::Recovering,
            damage: Default::default(),
            ranges: Default::default(),
            operations: Default::default(),
            requests: Default::default(),
            arrivals: Default::default(),
            intake: Default::default(),
            locks: Default::default(),
            writes: Default::default(),
            gathering: Default::default(),
            retries: Default::default(),
            replies: Default::default(),
            flushes: Default::default(),
            checkpoint: Default::default(),
            destage: Default::default(),
            cleaner: Default::default(),
            completions: Default::default(),
            recovery: None,
            origin: Default::default(),
            tickets: Default::default(),
            open: [None; STREAMS],
            header_writes: Default::default(),
            looked: Instant::ZERO,
            drain: None,
            stopping: false,
            detaching: false,
            turn: Default::default(),
            ignored_trims: 0,
            marks: Default::default(),
            scratch: Default::default(),
            degraded: Default::default(),
            life: Default::default(),
            scrubber: Default::default(),
            discards: Default::default(),
            counters: Default::default(),
            faults: Default::default(),
            latencies: Default::default(),
            config,
        };
        if engine.has_canary(Canary::RestsTooLong) {
            engine.destage.back_off = BackOff::steady(Duration::from_secs(3_600));
        }
        engine.start_recovery();
        engine
    }
}

//! `tidegate check`: the recovery of the engine over a cache that is only read, stopped before its first write. It finds what a start
//! would find.

use std::path::Path;

use serde::Serialize;
use tidegate_engine::block::ATOM_BYTES;
use tidegate_engine::op::{Action, Answer, DeviceError, DeviceId, Done, Limits, Op};
use tidegate_engine::probe::Phase;
use tidegate_engine::request::Reply;
use tidegate_engine::time::Instant;
use tidegate_engine::{Config, Engine, Event, World, turn};

use crate::Failure;
use crate::back::attach::superblock;
use crate::back::disk::{Access, Disk};
use crate::back::run::Run;

/// What recovery would find.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    pub damage: Vec<Found>,
    /// Size of the volume, in bytes.
    pub volume_bytes: u64,
    pub block_bytes: u64,
    pub sets: u32,
    pub free_sets: u32,
    pub dirty_sets: u32,
    /// Blocks in the cache.
    pub live_blocks: u64,
    /// Of these, blocks newer than the origin.
    pub dirty_blocks: u64,
    /// Zeroed, trimmed and lost ranges that the origin does not know yet.
    pub zero_ranges: u64,
    /// Groups of records replayed from the journal, and groups at its end that were never promised and are cut off.
    pub groups: u64,
    pub cut_groups: u64,
}

/// One damage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Found {
    /// The volume cannot be served; otherwise a copy replaces what is damaged.
    pub fatal: bool,
    /// What and where, in one line.
    pub what: String,
}

impl Report {
    pub fn is_sound(&self) -> bool {
        self.damage.is_empty()
    }
}

/// Looks through a cache that nobody serves; changes nothing.
///
/// # Errors
/// One line: it cannot be opened, is being served, or is no cache of ours.
pub fn check(cache: &Path) -> Result<Report, Failure> {
    let cache = Disk::open(cache, DeviceId::Cache, Access::Shared)?;
    let superblock = superblock(&cache)?;
    let geometry = superblock.geometry;
    let config = Config { check: true, origin: superblock.origin, ..Config::new(geometry, superblock.format) };
    let limits = cache.limits();
    let origin = Limits { atoms: geometry.volume_atoms, ..limits };
    let mut engine = Engine::new(config, [limits, origin]);
    let mut world = Reading { cache, answered: Vec::new() };
    let mut events = Vec::new();
    loop {
        turn(&mut engine, &mut world, Instant::ZERO, &mut events);
        if *engine.phase() != Phase::Recovering {
            break;
        }
        assert!(!world.answered.is_empty(), "a recovery that waits for nothing");
        events.append(&mut world.answered);
    }
    let found = engine.inspect(Instant::ZERO);
    Ok(Report {
        damage: engine.damage().iter().map(|damage| Found { fatal: damage.fatal, what: damage.what.clone() }).collect(),
        volume_bytes: geometry.volume_atoms * ATOM_BYTES,
        block_bytes: u64::from(geometry.block_atoms) * ATOM_BYTES,
        sets: found.sets,
        free_sets: found.free_sets,
        dirty_sets: found.dirty_sets,
        live_blocks: found.live_slots,
        dirty_blocks: found.dirty_slots,
        zero_ranges: found.zero_ranges,
        groups: found.counters.recovered_groups,
        cut_groups: found.counters.recovered_cut_groups,
    })
}

/// A world in which the cache can be read at once, and nothing else happens.
struct Reading {
    cache: Disk,
    answered: Vec<Event<Run>>,
}

impl World<Run> for Reading {
    fn start(&mut self, _now: Instant, op: Op<Run>) {
        let result = match (op.device, op.action) {
            (DeviceId::Cache, Action::Read(_, span)) => match self.cache.read_now(span) {
                Ok(run) => Ok(Answer::Data(vec![run])),
                Err(_) => Err(DeviceError::Medium),
            },
            (device, action) => unreachable!("a check only reads the cache, it never does {action:?} on {device:?}"),
        };
        self.answered.push(Event::Completed(Done { id: op.id, result }));
    }

    fn reply(&mut self, _now: Instant, _reply: Reply<Run>) {
        unreachable!("a check has no clients");
    }
}

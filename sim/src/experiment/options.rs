//! What a configuration of a plan may say, and the engine's configuration that it means. What cannot be is refused here, in
//! one line.

use super::plan::paths::{ControllerTable, Step};
use super::units::{Size, Time, shorten};
use crate::back::model::hdd::Power;
use crate::back::model::spec::Layout;
use serde::Deserialize;
use tidegate_engine::block::{ATOM_BYTES, PAGE_BYTES};
use tidegate_engine::cache::format::{FormatId, Geometry};
use tidegate_engine::config::{self, Allocation, Cleaning, Convert, Fill, ReadAround, WhenFull};
use tidegate_engine::op::Limits;
use tidegate_engine::queue::QueueKind;
use tidegate_engine::spin::{self, Drive, predictor};
use tidegate_engine::{Config, Mode, time::Duration};
use toml::Spanned;

/// Bytes of the journal ring when a plan does not say: 16 MiB, the smallest of a real cache.
const JOURNAL_BYTES: u64 = 16 << 20;
/// The largest operation when a plan does not say.
const OP_BYTES: u64 = 1 << 20;

/// In place of an origin's name: cache and origin are one drive.
pub const SAME: &str = "same";

/// One configuration: a load straight on a device (`bare`), an engine over `cache` and `origin`, or processes on `cores`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table such as { bare = \"disk\" } or { cache = \"ssd\", origin = \"disk\" }")]
pub struct Options {
    pub bare: Option<Spanned<String>>,
    /// Devices that take no time and keep nothing: what the engine writes is counted.
    pub instant: bool,
    /// The SSD (bare, or the cache) has been in use before.
    pub aged: Option<Spanned<Aged>>,
    /// The SSD has so much, with as many dies and as fast: fewer blocks are sooner aged.
    pub capacity: Option<Spanned<Size>>,
    /// Time that the host takes more for each command of the SSD, and how many it hands out at once at most (a virtual machine monitor that
    /// knows no queue).
    pub overhead: Option<Time>,
    pub depth: Option<Spanned<usize>>,
    /// Over what the SSD spreads what is written.
    pub layout: Option<Spanned<Layout>>,
    /// What schedules the SSD's operations. Of a bare one: as Linux's block layer has it, in front of the device.
    pub queue: Option<Spanned<String>>,
    /// Lanes of the cache's SSD, as far as the engine knows of them. Default: 1.
    pub lanes: Option<u32>,
    /// What schedules the origin's.
    pub origin_queue: Option<Spanned<String>>,
    /// Idle time after which the disk is told to spin down.
    pub spin_down: Option<Time>,
    /// The disk (of a cached configuration: the origin) is told to stand still by the engine's own way.
    pub spin: Option<Spanned<SpinTable>>,
    /// Of a bare device: it stands for a warm cache, and has what loads before the measured one have read: they write it.
    pub keeps_reads: Option<Spanned<bool>>,

    /// Flashcache in place of the engine.
    pub flashcache: bool,
    pub cache: Option<Spanned<String>>,
    /// `SAME`: a partition of the cache's drive, before that of the cache.
    pub origin: Option<Spanned<String>>,
    /// Size of the volume. Default: the origin's.
    pub volume: Option<Spanned<Size>>,
    /// Sets of the cache. Default: as many as the SSD holds.
    pub sets: Option<Spanned<u32>>,
    pub block: Option<Size>,
    pub set: Option<Size>,
    pub journal: Option<Size>,
    /// The largest operation that the devices are given.
    pub op_size: Option<Size>,
    /// In sets.
    pub free_floor: Option<u32>,
    pub reserve: Option<u32>,
    pub clean_floor: Option<u32>,
    pub cleaning: Option<CleaningKind>,
    pub dirty_high: Option<u32>,
    pub wait: Option<Time>,
    pub max_dirty_age: Option<Time>,
    pub destage_depth: Option<usize>,
    pub destage_batch: Option<Size>,
    pub window: Option<Size>,
    pub dirty_ram: Option<Size>,
    pub ram: Option<Size>,
    pub flush_age: Option<Time>,
    pub requests: Option<usize>,
    pub bytes: Option<Size>,
    pub placement: Option<Placement>,
    pub gate: Option<GateKind>,
    pub fill: Option<FillKind>,
    /// Read what lies around a miss, where that pays?
    pub read_around: Option<bool>,
    /// Memory for what is read from the SSD ahead of sequences.
    pub read_ahead: Option<Size>,
    pub allocation: Option<AllocationKind>,
    pub convert: Option<ConvertKind>,
    /// The largest small write, in sectors of 512 bytes.
    pub convert_max: Option<u64>,
    pub when_full: Option<WhenFullKind>,
    /// May part of a long sequential write go to the origin from the start? Default: yes.
    pub split: Option<bool>,
    pub mode: Option<ModeKind>,
    /// Longest wait of a second-stage request for the unplug timer of Linux 2.6, in ms; drawn evenly from 0 on.
    pub legacy_plug_ms: Option<f64>,

    /// Cores of a system in which every request is a process's, and a hit.
    pub cores: Option<Spanned<u32>>,
    pub spread_percent: Option<Spanned<u64>>,
    /// The steps of a read and of a write.
    pub read: Vec<Spanned<Step>>,
    pub write: Vec<Spanned<Step>>,
    /// What sends to the mirror.
    pub controller: Option<Spanned<ControllerTable>>,
}

/// How an SSD was used before: filled to so many percent, and as much overwritten at random so many times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Aged {
    pub used_percent: u64,
    #[serde(default)]
    pub overwritten_times: u64,
}

/// Which sets are emptied first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CleaningKind {
    Off,
    /// Those with the fewest live slots; and what is written is not told apart.
    Greedy,
    Declining,
}

/// Where a write goes in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// The next slot of the open set.
    Log,
    /// The set that its place on the volume maps to (paper 000).
    Set,
}

/// What decides when dirty sets go home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GateKind {
    /// Paper 000's earlier system: at every shortage, at once.
    Old,
    /// Paper 000's: normal, wait, writeback.
    New,
    Ours,
}

/// When what was read is copied into the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FillKind {
    BeforeReply,
    Behind,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AllocationKind {
    ReadWrite,
    ReadOnly,
    SmallWrites,
}

/// How small writes are told from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConvertKind {
    Size,
    Randomness,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModeKind {
    WriteBack,
    WriteThrough,
    ReadOnly,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhenFullKind {
    Wait,
    Through,
}

/// When a disk is told to stand still.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpinTable {
    pub predictor: PredictorKind,
    pub guard: Option<bool>,
    pub per_hour: Option<u32>,
    pub sweep: Option<bool>,
    pub max_dirty_age: Option<Time>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PredictorKind {
    Fixed,
    BreakEven,
    Share,
    History,
    /// The best fixed timeout for all gaps together, which it knows. Of a bare disk, under a load with `gaps`.
    Hindsight,
    /// The best for each gap.
    Optimum,
}

impl SpinTable {
    /// What the engine is told, before a disk with these figures.
    pub fn config(&self, power: &Power) -> spin::Config {
        let mut config = spin::Config::new(drive(power));
        config.predictor = match self.predictor {
            PredictorKind::Fixed => predictor::Kind::Fixed,
            PredictorKind::BreakEven => predictor::Kind::BreakEven,
            PredictorKind::Share => predictor::Kind::Share,
            PredictorKind::History | PredictorKind::Hindsight | PredictorKind::Optimum => predictor::Kind::History,
        };
        set(&mut config.guard, self.guard);
        set(&mut config.per_hour, self.per_hour);
        set(&mut config.sweep, self.sweep);
        set(&mut config.max_dirty_age, self.max_dirty_age.map(|time| time.0));
        if self.foresees() {
            // Nothing holds back who knows.
            (config.guard, config.per_hour) = (false, u32::MAX);
        }
        config
    }

    /// Does it know all gaps ahead?
    pub fn foresees(&self) -> bool {
        matches!(self.predictor, PredictorKind::Hindsight | PredictorKind::Optimum)
    }
}

fn drive(power: &Power) -> Drive {
    Drive {
        idle_mw: power.idle_mw,
        standby_mw: power.standby_mw,
        spin_down: Duration::from_millis(power.spin_down_ms),
        spin_down_mw: power.spin_down_mw,
        spin_up: Duration::from_millis(power.spin_up_ms),
        spin_up_mw: power.spin_up_mw,
        ..Drive::DESKTOP
    }
}

/// What an engine needs to know of its two devices.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    pub cache_atoms: u64,
    pub origin_atoms: u64,
    pub cache_depth: usize,
    pub origin_depth: usize,
}

impl Options {
    /// The largest operations, and how many at once.
    pub fn limits(&self, room: Room) -> [Limits; 2] {
        let op_atoms = self.op_size.map_or(OP_BYTES, |size| size.0) / ATOM_BYTES;
        [
            Limits { atoms: room.cache_atoms, depth: room.cache_depth, op_atoms, discards: true },
            Limits { atoms: room.origin_atoms, depth: room.origin_depth, op_atoms, discards: false },
        ]
    }

    /// Is a key of processes set, `cores` aside?
    pub fn process_keys(&self) -> bool {
        self.spread_percent.is_some() || !self.read.is_empty() || !self.write.is_empty() || self.controller.is_some()
    }

    /// Is a key of a device set?
    pub fn device_keys(&self) -> bool {
        self.bare.is_some()
            || self.aged.is_some()
            || self.capacity.is_some()
            || self.overhead.is_some()
            || self.depth.is_some()
            || self.layout.is_some()
            || self.queue.is_some()
            || self.spin_down.is_some()
            || self.spin.is_some()
            || self.keeps_reads.is_some()
    }

    /// Is a key of a cached configuration set, `volume` aside? None may be of a bare one.
    pub fn cached_keys(&self) -> bool {
        self.engine_keys() || self.instant || self.flashcache || self.cache.is_some() || self.origin.is_some()
    }

    /// Is a key of the engine set?
    pub fn engine_keys(&self) -> bool {
        let sizes =
            [self.block, self.set, self.journal, self.op_size, self.destage_batch, self.window, self.dirty_ram, self.ram, self.bytes];
        let times = [self.wait, self.max_dirty_age, self.flush_age];
        let counts = [self.free_floor, self.reserve, self.clean_floor, self.dirty_high];
        sizes.iter().any(Option::is_some)
            || times.iter().any(Option::is_some)
            || counts.iter().any(Option::is_some)
            || self.cleaning.is_some()
            || self.origin_queue.is_some()
            || self.sets.is_some()
            || self.destage_depth.is_some()
            || self.requests.is_some()
            || self.placement.is_some()
            || self.gate.is_some()
            || self.fill.is_some()
            || self.read_around.is_some()
            || self.read_ahead.is_some()
            || self.lanes.is_some()
            || self.allocation.is_some()
            || self.convert.is_some()
            || self.convert_max.is_some()
            || self.when_full.is_some()
            || self.split.is_some()
            || self.mode.is_some()
            || self.legacy_plug_ms.is_some()
    }
}

/// The engine's configuration that `options` mean on such devices. The error is one line: what cannot be.
pub fn engine_config(options: &Options, room: Room) -> Result<Config, String> {
    let mut config = Config::new(geometry(options, room)?, FormatId(*b"tidegate-sim-001"));
    let sets = config.geometry.sets;
    set(&mut config.free_floor, options.free_floor);
    set(&mut config.reserve, options.reserve);
    set(&mut config.clean_floor, options.clean_floor);
    set(&mut config.dirty_high, options.dirty_high);
    set(&mut config.wait, options.wait.map(|time| time.0));
    set(&mut config.destage_depth, options.destage_depth);
    set(&mut config.destage_atoms, options.destage_batch.map(Size::atoms));
    set(&mut config.window_bytes, options.window.map(|size| size.0));
    set(&mut config.dirty_ram, options.dirty_ram.map(|size| size.0));
    set(&mut config.ram, options.ram.map(|size| size.0));
    set(&mut config.read_ahead, options.read_ahead.map(|size| size.0));
    set(&mut config.flush_age, options.flush_age.map(|time| time.0));
    set(&mut config.requests_max, options.requests);
    set(&mut config.bytes_max, options.bytes.map(|size| size.0));
    set(&mut config.lanes, options.lanes);
    if config.lanes == 0 {
        return Err("lanes are at least 1".into());
    }
    if options.read_around == Some(false) {
        config.read_around = ReadAround::Never;
    }
    for (kind, named) in config.queues.iter_mut().zip([&options.queue, &options.origin_queue]) {
        set(kind, queue(named)?);
    }
    check_sizes(&config, sets)?;
    if options.op_size.is_some_and(|size| size.0 < OP_BYTES) {
        return Err("op_size is at least 1MiB: a device takes operations as long as that".into());
    }
    choose(&mut config, options)?;
    Ok(config)
}

/// The scheduler of that name.
pub fn queue(named: &Option<Spanned<String>>) -> Result<Option<QueueKind>, String> {
    named.as_ref().map(|name| shorten(name.as_ref()).parse()).transpose()
}

/// The ways of the papers and our own.
fn choose(config: &mut Config, options: &Options) -> Result<(), String> {
    config.allocation = match options.allocation.unwrap_or(AllocationKind::ReadWrite) {
        AllocationKind::ReadWrite => Allocation::ReadWrite,
        AllocationKind::ReadOnly => Allocation::ReadOnly,
        AllocationKind::SmallWrites => Allocation::SmallWrites,
    };
    config.max_dirty_age = options.max_dirty_age.map_or(config.allocation.usual_dirty_age(), |time| time.0);
    config.convert = match options.convert.unwrap_or(ConvertKind::Size) {
        ConvertKind::Size => Convert::Size,
        ConvertKind::Randomness => Convert::Randomness,
    };
    config.convert_max = options.convert_max;
    if config.convert_atoms() == 0 {
        return Err("convert_max is at least 1 sector".into());
    }
    let is_said = options.convert.is_some() || options.convert_max.is_some();
    if is_said && config.allocation != Allocation::SmallWrites {
        return Err("convert and convert_max go with allocation = \"small-writes\"".into());
    }
    config.when_full = match options.when_full.unwrap_or(WhenFullKind::Wait) {
        WhenFullKind::Wait => WhenFull::Wait,
        WhenFullKind::Through => WhenFull::Through,
    };
    if options.split == Some(false) {
        config.split = None;
    }
    config.cleaning = match options.cleaning.unwrap_or(CleaningKind::Declining) {
        CleaningKind::Off => Cleaning::Off,
        CleaningKind::Greedy => Cleaning::Greedy,
        CleaningKind::Declining => Cleaning::Declining,
    };
    if config.cleaning == Cleaning::Greedy {
        config.classes = 1;
    }
    config.mode = options.mode.map(|mode| match mode {
        ModeKind::WriteBack => Mode::WriteBack,
        ModeKind::WriteThrough => Mode::WriteThrough,
        ModeKind::ReadOnly => Mode::ReadOnly,
    });
    config.fill = match options.fill.unwrap_or(FillKind::Behind) {
        FillKind::Behind => Fill::Behind,
        FillKind::Off => Fill::Off,
        FillKind::BeforeReply => Fill::BeforeReply,
    };
    config.gate = match options.gate.unwrap_or(GateKind::Ours) {
        GateKind::Ours => config::GateKind::Ours,
        GateKind::Old => config::GateKind::Old,
        GateKind::New => config::GateKind::New,
    };
    config.placement = match options.placement.unwrap_or(Placement::Log) {
        Placement::Log => config::Placement::Log,
        Placement::Set => config::Placement::Set,
    };
    if config.placement == config::Placement::Set && config.mode.is_some_and(Mode::is_home) {
        return Err("mode: under placement = \"set\" only write-back is possible".into());
    }
    let (has, needs) = (u64::from(config.geometry.journal_pages), config.journal_pages_needed());
    if has < needs {
        let mib = |pages: u64| (pages * PAGE_BYTES).div_ceil(1 << 20);
        return Err(format!(
            "placement = \"set\" needs a journal of {}MiB for {} sets, and has one of {}MiB",
            mib(needs),
            config.geometry.sets,
            mib(has)
        ));
    }
    Ok(())
}

/// `legacy_plug_ms` as a time.
pub fn plug(options: &Options) -> Result<Duration, String> {
    match options.legacy_plug_ms.unwrap_or(0.0) {
        ms if (0.0..=1_000.0).contains(&ms) => Ok(Duration((ms * 1e6).round() as u64)),
        ms => Err(format!("legacy_plug_ms = {ms} is not a time from 0 to 1000 ms")),
    }
}

fn set<T>(value: &mut T, to: Option<T>) {
    if let Some(to) = to {
        *value = to;
    }
}

fn geometry(options: &Options, room: Room) -> Result<Geometry, String> {
    let volume_atoms = options.volume.as_ref().map_or(room.origin_atoms, |volume| volume.as_ref().atoms());
    let block = options.block.map_or(4096, |size| size.0);
    let set = options.set.map_or(1 << 20, |size| size.0);
    if block == 0 || !set.is_multiple_of(block) {
        return Err(format!("a set of {set} bytes is no whole number of blocks of {block} bytes"));
    }
    let [block_atoms, set_slots] = [block / ATOM_BYTES, set / block].map(|value| u32::try_from(value).unwrap_or(u32::MAX));
    let Some(sets) = &options.sets else {
        if options.journal.is_some() {
            return Err("journal goes with sets: without them, both follow from the SSD's size".into());
        }
        return Geometry::for_cache(room.cache_atoms, volume_atoms, block_atoms, set_slots);
    };
    let journal_pages = (options.journal.map_or(JOURNAL_BYTES, |size| size.0) / 4096).min(u64::from(u32::MAX)) as u32;
    let geometry = Geometry { block_atoms, set_slots, sets: *sets.as_ref(), journal_pages, volume_atoms, range_entries: 65_536 };
    geometry.validate()?;
    if geometry.cache_atoms() > room.cache_atoms {
        let (needs, has) = ((geometry.cache_atoms() * ATOM_BYTES) >> 20, (room.cache_atoms * ATOM_BYTES) >> 20);
        return Err(format!("{} sets and their metadata need {needs} MiB, and the SSD has {has}", geometry.sets));
    }
    Ok(geometry)
}

fn check_sizes(config: &Config, sets: u32) -> Result<(), String> {
    let Config { free_floor, reserve, dirty_high, .. } = *config;
    if free_floor.saturating_add(reserve) >= sets {
        return Err(format!("free_floor = {free_floor} and reserve = {reserve} leave nothing of {sets} sets"));
    }
    if dirty_high >= sets {
        return Err(format!("dirty_high = {dirty_high} is never reached: there are {sets} sets"));
    }
    if config.destage_depth == 0 || config.requests_max == 0 || config.bytes_max < 1 << 20 || config.window_bytes < 1 << 20 {
        return Err("destage_depth and requests are at least 1, window and bytes at least 1MiB".into());
    }
    if config.destage_atoms < u64::from(config.geometry.block_atoms) {
        return Err("destage_batch is at least one block".into());
    }
    Ok(())
}

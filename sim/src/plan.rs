//! The plan of one simulated run, drawn from its seed: sizes, knobs, load, speeds, faults, crashes. Mostly everything is small: what breaks in
//! a large volume breaks in a small one too, and sooner. But for what only length and number bring ([`Profile::Wide`]).

mod bounds;
mod motor;

use crate::back::fault::Rates;
use crate::back::model::spec::MapKind;
use crate::back::model::{Spec, Speed};
use crate::chance::{Chance, mix};
use crate::front::load::Mix;
use tidegate_engine::block::ATOM_BYTES;
use tidegate_engine::cache::detour;
use tidegate_engine::cache::format::{FormatId, Geometry};
use tidegate_engine::cache::split::Legs;
use tidegate_engine::config::{Allocation, Cleaning, CommitHome, Convert, Fill, GateKind, Placement, ReadAround, WhenFull};
use tidegate_engine::op::Limits;
use tidegate_engine::policy;
use tidegate_engine::queue::QueueKind;
use tidegate_engine::time::Duration;
use tidegate_engine::{Canary, Config, Mode};

/// What a run does to its engine besides asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Power cuts and kills, with faults that a crash does not make ambiguous.
    Crashes,
    /// Any damage to the cache's data, and stops in order.
    Damage,
}

/// What a swarm's runs are like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// Everything is tiny: what is rare comes often.
    #[default]
    Small,
    /// Long and ragged requests on volumes and caches as large as the oracle bears.
    Wide,
    /// An origin that refuses much, a log that is soon full, and clients that wait for FLUSHes and for the origin.
    Refusing,
    /// An SSD that fails for good soon after each start, FUA, modes that change, and fronts that write.
    Failing,
}

impl Profile {
    pub const ALL: [Profile; 4] = [Profile::Small, Profile::Wide, Profile::Refusing, Profile::Failing];

    /// As people name it.
    pub fn name(self) -> &'static str {
        match self {
            Profile::Small => "small",
            Profile::Wide => "wide",
            Profile::Refusing => "refusing",
            Profile::Failing => "failing",
        }
    }
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub kind: Kind,
    pub config: Config,
    /// Of the cache and of the origin.
    pub limits: [Limits; 2],
    pub speeds: [Speed; 2],
    /// Drives in place of fixed times.
    pub drives: [Option<Spec>; 2],
    pub rates: [Rates; 2],
    pub mix: Mix,
    /// Requests that clients make.
    pub requests: u64,
    /// Crashes (or stops) in the run.
    pub crashes: u64,
    /// The origin goes away now and then: how seldom. Never for 0.
    pub origin_leaves_every: u64,
    /// The modes that it is switched to while it runs, and how seldom. None for an empty list.
    pub modes: Vec<Mode>,
    pub mode_every: u64,
    /// The cache fails for good within so many milliseconds of each start. Never for 0.
    pub cache_fails_after: u64,
    /// The cache is to be detached, once in so many replies (and mostly called off). Never for 0.
    pub detach_every: u64,
    /// Nobody holds the cache's operations back: a FLUSH that needs it alone is quick.
    pub bounds_flushes: bool,
    /// Options change where the volume is started again, now and then.
    pub changes: bool,
    /// The volume becomes larger where it is started again, now and then.
    pub grows: bool,
    /// Somebody else uses the origin now and then, and wakes it.
    pub strangers: bool,
    /// Its uses are counted, whoever they come from.
    pub counts_uses: bool,
    /// It stops by itself now and then.
    pub dozes: bool,
    /// Percent of the origin that holds zeros at first.
    pub blank_percent: u32,
}

impl Plan {
    /// The plan of a swarm's run.
    pub fn draw(seed: u64, requests: u64, canary: Option<Canary>) -> Plan {
        let chance = &mut Chance::new(seed, "plan");
        let mix = Mix::draw(chance);
        let geometry = draw_geometry(chance, &mix);
        Plan::draw_rest(seed, requests, canary, chance, mix, geometry)
    }

    /// The same, with requests of 1 to 2,048 sectors at any alignment, on volumes of 8 to 128 MiB and caches of 16 to 192 MiB: what needs
    /// many sets, long requests, and maps and tables of several pages.
    pub fn draw_wide(seed: u64, requests: u64, canary: Option<Canary>) -> Plan {
        let chance = &mut Chance::new(seed, "wide plan");
        let drawn = Mix::draw(chance);
        let hot_blocks = chance.spread(16, 4_096);
        let geometry = draw_wide_geometry(chance);
        let blocks_max = 2_048 / u64::from(geometry.block_atoms);
        let mix = Mix { small_percent: 10, ragged_percent: 90, blocks_max, hot_blocks, workers: drawn.workers.min(32), ..drawn };
        let mut plan = Plan::draw_rest(seed, requests, canary, chance, mix, geometry);
        plan.draw_huge();
        plan.crashes = chance.between(2, 12);
        plan.config.window_bytes = chance.spread(1 << 20, 32 << 20);
        plan.config.through_bytes = plan.config.window_bytes;
        plan.config.dirty_ram = draw_dirty_ram(seed, plan.config.window_bytes);
        plan.draw_fronts();
        plan.config.destage_atoms *= 16;
        // Where every operation takes seconds, a batch of that size takes hours.
        plan.speeds[1] = Speed {
            read: plan.speeds[1].read.min(Duration::from_millis(100)),
            write: plan.speeds[1].write.min(Duration::from_millis(100)),
            ..plan.speeds[1]
        };
        plan
    }

    /// The same as the swarm's, before an origin that refuses sectors, writes and flushes. Most runs promise it, and their log is smaller than
    /// what is written: what goes past the log, who waits for what, and what happens to both when the SSD goes as well.
    pub fn draw_refusing(seed: u64, requests: u64, canary: Option<Canary>) -> Plan {
        let chance = &mut Chance::new(seed, "refusing plan");
        let drawn = Mix::draw(chance);
        let mix = Mix { name: "a full cache", flush: chance.spread(4, 60) as u32, fua_percent: chance.spread(2, 60) as u32, ..drawn };
        let geometry = Geometry { sets: chance.between(16, 24) as u32, set_slots: chance.pick(&[8, 16]), ..draw_geometry(chance, &mix) };
        let mut plan = Plan::draw_rest(seed, requests, canary, chance, mix, geometry);
        let rates = &mut plan.rates[1];
        rates.refused = chance.spread(1_000, 200_000) as u32;
        rates.write_error = chance.pick(&[0, 0, 20_000, 100_000]);
        rates.flush_error = chance.pick(&[0, 10_000, 200_000]);
        let [back, through, only] = Mode::ALL;
        plan.config.mode = Some(chance.pick(&[back, through, through, only]));
        plan.modes = chance.pick(&[&[][..], &Mode::ALL[..2], &Mode::ALL[..]]).to_vec();
        plan.mode_every = chance.spread(20, 1_000);
        plan.cache_fails_after = chance.pick(&[0, 0, chance.clone().spread(20, 5_000)]);
        plan.config.placement = Placement::Log;
        plan.config.allocation =
            chance.pick(&[Allocation::ReadWrite, Allocation::SmallWrites, Allocation::SmallWrites, Allocation::ReadOnly]);
        plan.config.when_full = WhenFull::Through;
        plan.config.convert_max = Some(chance.pick(&[4, 8, 24, 128]));
        plan.config.detour = Some(detour::Counts { trial: chance.spread(1, 16), around: chance.spread(1, 64) });
        plan.changes = false;
        plan
    }

    /// The same as the swarm's, with an SSD that fails for good soon after each start: while modes change, much is written with FUA, fronts write,
    /// and some origins leave.
    pub fn draw_failing(seed: u64, requests: u64, canary: Option<Canary>) -> Plan {
        let chance = &mut Chance::new(seed, "failing plan");
        let drawn = Mix::draw(chance);
        let mix = Mix { name: "a cache that fails", fua_percent: chance.spread(5, 60) as u32, ..drawn };
        let geometry = draw_geometry(chance, &mix);
        let mut plan = Plan::draw_rest(seed, requests, canary, chance, mix, geometry);
        let after = chance.spread(20, 3_000);
        plan.cache_fails_after = if plan.kind == Kind::Damage { 0 } else { after };
        plan.config.placement = Placement::Log;
        (plan.modes, plan.mode_every) = (Mode::ALL.to_vec(), chance.spread(10, 300));
        if chance.one_in(2) {
            plan.seat_fronts(chance, true);
        }
        if chance.one_in(3) {
            plan.config.when_full = WhenFull::Through;
            plan.config.split = Some(Legs { proof: 0, home: chance.spread(1, 256) });
            plan.config.commit_home = CommitHome::Always;
        }
        if chance.one_in(3) {
            plan.origin_leaves_every = chance.spread(100, 1_000);
        }
        plan.draw_long();
        plan
    }

    /// Volumes of more blocks than the journal has entries, and zeroes of all of one, in a quarter of the runs with an SSD that fails. A stream of
    /// its own.
    fn draw_long(&mut self) {
        let chance = &mut Chance::new(self.seed, "longer than the journal");
        let geometry = &mut self.config.geometry;
        if !chance.one_in(4) || geometry.block_atoms > 8 {
            return;
        }
        let blocks = u64::from(geometry.journal_pages) * chance.between(101, 150);
        geometry.volume_atoms = blocks * u64::from(geometry.block_atoms);
        self.limits[1].atoms = geometry.volume_atoms;
        // A model of a drive would have to be larger as well.
        self.drives[1] = None;
        self.mix.long_zeroes_percent = chance.spread(2, 30) as u32;
    }

    fn draw_rest(seed: u64, requests: u64, canary: Option<Canary>, chance: &mut Chance, mix: Mix, geometry: Geometry) -> Plan {
        let mut config = draw_config(chance, geometry, seed);
        config.canary = canary;
        config.geometry.journal_pages = config.geometry.journal_pages.max(config.journal_pages_needed() as u32);
        let geometry = config.geometry;
        let kind = if chance.one_in(6) { Kind::Damage } else { Kind::Crashes };
        let crashes = if kind == Kind::Damage { chance.below(4) } else { chance.below(16) };
        let mut plan = Plan {
            seed,
            kind,
            limits: draw_limits(chance, &geometry),
            config,
            speeds: [Speed::SSD, draw_disk(chance)],
            drives: [None, None],
            rates: [draw_rates(chance, kind), draw_rates(chance, Kind::Crashes)],
            mix: fit(mix, &geometry),
            requests,
            crashes,
            origin_leaves_every: if chance.one_in(4) { chance.spread(200, 3_000) } else { 0 },
            cache_fails_after: if kind == Kind::Damage { 0 } else { draw_cache_failure(seed) },
            detach_every: draw_detach(seed),
            bounds_flushes: true,
            changes: true,
            grows: Chance::new(seed, "grows").one_in(3),
            strangers: false,
            counts_uses: false,
            dozes: false,
            blank_percent: chance.pick(&[0, 30, 100]),
            modes: Vec::new(),
            mode_every: 0,
        };
        plan.draw_modes();
        plan.draw_fronts();
        // A table full of lost blocks stops the volume: where many are lost, there is room for all of them.
        if plan.rates[0].read_error + plan.rates[0].misdirected + plan.rates[0].rot > 0 {
            plan.config.geometry.range_entries = 2_000;
            plan.limits = draw_limits(chance, &plan.config.geometry);
        }
        plan.limits[0].discards = draws_discards(seed);
        plan.rates[0].metadata_error = draw_metadata_errors(seed);
        plan.drives = draw_drives(&mut Chance::new(seed, "drives"), &plan.limits);
        let no_space = Chance::new(seed, "no space").pick(&[0, 0, 0, 20_000]);
        plan.rates[1] = Rates { misdirected: 0, rot: 0, settled_only: false, no_space, refused: draw_refusals(seed), ..plan.rates[1] };
        plan.draw_motor();
        plan.draw_beat();
        if Chance::new(seed, "log alone").one_in(3) {
            plan.log_alone();
        }
        if plan.config.placement == Placement::Set {
            // Opened slots have no checksum on the SSD: after a crash nothing tells what rotted there.
            (plan.rates[0].misdirected, plan.rates[0].rot) = (0, 0);
        }
        plan
    }

    /// The volume is started with other options: all but what its cache was made for, its fronts and its motor. What must hold of the run (every
    /// write is logged, requests fit) still does.
    pub fn change(&mut self, chance: &mut Chance) {
        let (is_log_alone, before) = (self.is_log_alone(), self.config.clone());
        let largest = self.mix.blocks_max * u64::from(before.geometry.block_atoms) * ATOM_BYTES;
        let drawn = draw_config(chance, before.geometry, chance.clone().word());
        let mode = chance.pick(&[None, before.mode, Some(Mode::WriteBack), Some(Mode::WriteThrough), Some(Mode::ReadOnly)]);
        self.config = Config {
            format: before.format,
            origin: before.origin,
            placement: before.placement,
            canary: before.canary,
            fronts: before.fronts,
            spin: before.spin,
            bytes_max: drawn.bytes_max.max(largest),
            mode: if before.placement == Placement::Set { before.mode } else { mode },
            ..drawn
        };
        let discards = self.limits[0].discards;
        self.limits = draw_limits(chance, &before.geometry);
        self.limits[0].discards = discards;
        if is_log_alone {
            self.log_alone();
        }
    }

    /// Is nothing written past the log, or in place?
    pub fn is_log_alone(&self) -> bool {
        !self.passes_log() && self.config.placement == Placement::Log
    }

    /// Every write is logged: what survives a crash is a strict prefix, and each write survives as a whole or not at all.
    fn log_alone(&mut self) {
        let config = &mut self.config;
        (config.placement, config.allocation, config.when_full) = (Placement::Log, Allocation::ReadWrite, WhenFull::Wait);
        (config.split, config.commit_home) = (None, CommitHome::Never);
        config.mode = config.mode.filter(|&mode| mode != Mode::ReadOnly);
        self.modes.retain(|&mode| mode != Mode::ReadOnly);
        assert!(!self.passes_log());
    }

    /// Fronts that answer by themselves in a quarter of the runs; in most of them everything is there that they need to write too, and in half all
    /// requests are of whole blocks, as they must be for that.
    fn draw_fronts(&mut self) {
        let chance = &mut Chance::new(self.seed, "front threads");
        let way = chance.below(12);
        if way <= 2 {
            self.seat_fronts(chance, way > 0);
        }
    }

    fn seat_fronts(&mut self, chance: &mut Chance, write: bool) {
        let config = &mut self.config;
        config.fronts = chance.between(1, 3) as usize;
        if write {
            let block_bytes = u64::from(config.geometry.block_atoms) * ATOM_BYTES;
            config.ram = config.ram.max(chance.spread(64, 512) * block_bytes);
            config.dirty_ram = config.dirty_ram.max(chance.spread(16, 256) * block_bytes);
            config.window_bytes = config.window_bytes.max(chance.spread(16, 256) * block_bytes);
            (config.allocation, config.placement) = (Allocation::ReadWrite, Placement::Log);
        }
        if chance.one_in(2) {
            (self.mix.small_percent, self.mix.ragged_percent) = (0, 0);
        }
    }

    /// Clients that ask together in a third of the runs. A stream of its own.
    fn draw_beat(&mut self) {
        let chance = &mut Chance::new(self.seed, "beat");
        let beat = Duration::from_micros(chance.spread(10, 20_000));
        self.mix.beat = if chance.one_in(3) { beat } else { Duration::ZERO };
    }

    /// Half of the runs promise the origin, from the start or for a while. A stream of its own: the other runs stay what they were.
    fn draw_modes(&mut self) {
        if self.config.placement == Placement::Set {
            return;
        }
        let chance = &mut Chance::new(self.seed, "modes");
        let [back, through, only] = Mode::ALL.map(Some);
        self.config.mode = chance.pick(&[None, None, None, back, through, through, only]);
        if chance.one_in(4) {
            self.modes = chance.pick(&[&Mode::ALL[..2], &Mode::ALL[..]]).to_vec();
            self.mode_every = chance.spread(20, 1_000);
        }
    }

    /// Writes may go past the log.
    pub fn passes_log(&self) -> bool {
        let is_read_only = self.config.mode == Some(Mode::ReadOnly) || self.modes.contains(&Mode::ReadOnly);
        self.config.writes_through() || is_read_only
    }

    /// A FLUSH may promise the origin.
    pub fn promises_origin(&self) -> bool {
        self.config.mode.is_some_and(Mode::is_home) || !self.modes.is_empty()
    }

    /// The plan of a run whose every write is a place to crash: without faults in two of three, and small, because all of it is read each time.
    pub fn draw_for_crash_points(seed: u64, requests: u64, canary: Option<Canary>) -> Plan {
        let mut plan = Plan::draw(mix(seed), requests, canary);
        let chance = &mut Chance::new(seed, "crash points");
        plan.seed = seed;
        let has_damage = plan.kind == Kind::Damage;
        plan.kind = Kind::Crashes;
        if Chance::new(seed, "log alone at crash points").one_in(2) {
            plan.log_alone();
        }
        let needed = plan.config.journal_pages_needed() as u32;
        let geometry = &mut plan.config.geometry;
        geometry.volume_atoms = geometry.volume_atoms.min(chance.between(20, 160) * u64::from(geometry.block_atoms));
        geometry.journal_pages = geometry.journal_pages.min(96.max(needed));
        plan.limits = draw_limits(chance, geometry);
        plan.limits[0].discards = draws_discards(seed);
        plan.drives = draw_drives(&mut Chance::new(seed, "drives"), &plan.limits);
        plan.mix = fit(plan.mix, geometry);
        if has_damage || !Chance::new(seed, "faults at crash points").one_in(3) {
            plan.rates = [Rates::default(); 2];
        }
        plan.crashes = 0;
        plan.origin_leaves_every = 0;
        (plan.cache_fails_after, plan.detach_every, plan.changes, plan.grows) = (0, 0, false, false);
        (plan.config.scrub_rate, plan.config.stall_timeout) = (0, Duration::from_secs(60));
        plan
    }
}

impl Plan {
    /// Requests of up to 32 MiB, and fewer of them, in a fifth of the wide runs: more than one operation of a device takes. A stream of its own.
    fn draw_huge(&mut self) {
        let chance = &mut Chance::new(self.seed, "huge requests");
        if !chance.one_in(5) {
            return;
        }
        let geometry = &self.config.geometry;
        let atoms = chance.spread(4_096, 65_536).min(self.config.bytes_max / ATOM_BYTES).min(geometry.volume_atoms);
        let slots = u64::from(geometry.sets) * u64::from(geometry.set_slots);
        self.mix.blocks_max = (atoms / u64::from(geometry.block_atoms)).clamp(1, slots / 8);
        self.mix.workers = self.mix.workers.min(4);
        self.requests = self.requests.div_ceil(8);
    }
}

/// Bends a mix so that no request is larger than what the cache can take at once.
fn fit(mix: Mix, geometry: &Geometry) -> Mix {
    let slots = u64::from(geometry.sets) * u64::from(geometry.set_slots);
    Mix { blocks_max: mix.blocks_max.min(slots / 8).clamp(1, 2048 / u64::from(geometry.block_atoms)), ..mix }
}

fn draw_geometry(chance: &mut Chance, mix: &Mix) -> Geometry {
    let block_atoms = chance.pick(&[8, 8, 8, 8, 8, 1, 128, 2]);
    let set_slots = chance.pick(&[8, 16, 16, 64, 64, 256]);
    let sets = chance.between(16, if set_slots == 256 { 24 } else { 64 }) as u32;
    let slots = u64::from(sets) * u64::from(set_slots);
    // A cache that fills up, or one that holds everything.
    let blocks = if mix.name == "a full cache" { slots * chance.between(1, 2) } else { chance.spread(16, 2_000) };
    let blocks = blocks.clamp(16, if block_atoms == 128 { 100 } else { 1_500 });
    let short = if chance.one_in(3) { chance.below(u64::from(block_atoms)) } else { 0 };
    Geometry {
        block_atoms,
        set_slots,
        sets,
        journal_pages: chance.spread(48, 256) as u32,
        volume_atoms: blocks * u64::from(block_atoms) - short,
        range_entries: chance.pick(&[16, 64, 252, 1_000]),
    }
}

/// Of 4 KiB blocks mostly, and of sets of 1 MiB: as real ones are, and large for an oracle that knows every sector.
fn draw_wide_geometry(chance: &mut Chance) -> Geometry {
    let block_atoms = chance.pick(&[8, 8, 8, 8, 8, 8, 1, 128]);
    let set_slots = (2_048 / block_atoms).min(256);
    let sets = chance.between(16, 192) as u32 * (2_048 / (block_atoms * set_slots));
    let blocks = chance.spread(16_384, 262_144) / u64::from(block_atoms);
    let short = chance.below(u64::from(block_atoms));
    Geometry {
        block_atoms,
        set_slots,
        sets,
        journal_pages: chance.spread(512, 4_096) as u32,
        volume_atoms: blocks * u64::from(block_atoms) - short,
        range_entries: chance.pick(&[252, 4_000, 65_536]),
    }
}

fn draw_config(chance: &mut Chance, geometry: Geometry, seed: u64) -> Config {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&mix(seed).to_le_bytes());
    id[8..].copy_from_slice(&mix(seed ^ 1).to_le_bytes());
    let mut config = Config::new(geometry, FormatId(id));
    let sets = u64::from(geometry.sets);
    config.free_floor = chance.between(3, sets / 3) as u32;
    config.reserve = chance.between(2, u64::from(config.free_floor).clamp(2, 4)) as u32;
    config.dirty_high = chance.between(sets / 4, sets * 9 / 10) as u32;
    config.wait = Duration::from_micros(chance.spread(1_000, 2_000_000));
    config.max_dirty_age = Duration::from_micros(chance.spread(20_000, 60_000_000));
    config.destage_depth = chance.between(1, 32) as usize;
    config.destage_atoms = chance.spread(128, 4_096).max(u64::from(geometry.block_atoms));
    config.window_bytes = chance.spread(32 << 10, 2 << 20);
    config.flush_age = Duration::from_micros(chance.spread(500, 1_000_000));
    config.requests_max = chance.spread(1, 128) as usize;
    config.bytes_max = chance.spread(4 << 20, 64 << 20);
    config.fill = if chance.one_in(6) { Fill::Off } else { draw_fill(seed) };
    (config.allocation, config.when_full) = draw_through(seed);
    draw_conversion(&mut config, seed);
    config.gate = draw_gate(seed);
    draw_cleaning(seed, &mut config);
    config.fence_samples = Chance::new(seed, "fence").pick(&[0, 0, 0, 4, 64]);
    (config.stall_timeout, config.scrub_rate) = draw_patience(seed);
    (config.discard, config.daily_write_bytes) = draw_wear(seed);
    draw_turns(seed, &mut config);
    config.queues = draw_queues(seed);
    config.lanes = draw_lanes(seed);
    config.through_bytes = config.window_bytes;
    config.dirty_ram = draw_dirty_ram(seed, config.window_bytes);
    config.dirty_ram_least = draw_dirty_ram_least(seed);
    config.headers_together = Chance::new(seed, "headers").pick(&[1, 1, 2, 4, 8, 16]);
    config.long_burst = Chance::new(seed, "long burst").pick(&[0, 0, 1, 4]);
    config.split = draw_split(seed);
    config.detour = draw_detour(seed);
    config.commit_home = draw_commit_home(seed);
    config.read_around = draw_read_around(seed);
    config.read_ahead = draw_read_ahead(seed, &geometry);
    config.ram = draw_ram(seed, &geometry);
    config.memory_policy = draw_memory_policy(seed);
    config.spin = motor::draw(seed);
    config.placement = if Chance::new(seed, "placement").one_in(5) { Placement::Set } else { Placement::Log };
    config
}

/// Replies that wait for their fill in an eighth of the runs, and a gate of the papers in another.
fn draw_fill(seed: u64) -> Fill {
    if Chance::new(seed, "fill").one_in(8) { Fill::BeforeReply } else { Fill::Behind }
}

fn draw_gate(seed: u64) -> GateKind {
    Chance::new(seed, "gate").pick(&[GateKind::Ours, GateKind::Ours, GateKind::Ours, GateKind::Ours, GateKind::New, GateKind::Old])
}

/// Writes acknowledged before they are on the SSD in half of the runs; more than the window in some.
fn draw_dirty_ram(seed: u64, window_bytes: u64) -> u64 {
    let chance = &mut Chance::new(seed, "dirty ram");
    if chance.one_in(2) { chance.spread(512, 2 * window_bytes) } else { 0 }
}

/// Most of it may be lent to clean pages in two of three runs.
fn draw_dirty_ram_least(seed: u64) -> Option<u64> {
    let chance = &mut Chance::new(seed, "dirty ram lent");
    let least = chance.spread(4 << 10, 1 << 20);
    chance.pick(&[None, Some(0), Some(least)])
}

/// Memory of 16 to 1,024 pages in two of five runs.
fn draw_ram(seed: u64, geometry: &Geometry) -> u64 {
    let chance = &mut Chance::new(seed, "ram");
    let pages = chance.spread(16, 1_024);
    chance.pick(&[0, 0, 0, pages, pages]) * u64::from(geometry.block_atoms) * ATOM_BYTES
}

/// Any policy in half of the runs, the chooser more often than others: it asks six of them.
fn draw_memory_policy(seed: u64) -> policy::Kind {
    let chance = &mut Chance::new(seed, "memory policy");
    let (_, any) = chance.pick(&policy::Kind::ALL);
    chance.pick(&[policy::Kind::default(), policy::Kind::default(), any, policy::Kind::Chooser])
}

/// Part of all writes go to the origin from the start in two of five runs, in legs of a sector to 128 KiB.
fn draw_split(seed: u64) -> Option<Legs> {
    let chance = &mut Chance::new(seed, "split");
    let home = chance.spread(1, 256);
    chance.pick(&[None, None, None, Some(Legs { proof: 0, home }), Some(Legs { proof: 0, home })])
}

/// Small writes that would be converted try the way home after few answers in three of four runs. A stream of its own.
fn draw_detour(seed: u64) -> Option<detour::Counts> {
    let chance = &mut Chance::new(seed, "detour");
    let counts = detour::Counts { trial: chance.spread(1, 16), around: chance.spread(1, 64) };
    chance.pick(&[None, Some(counts), Some(counts), Some(counts)])
}

/// Small writes go home in half of the runs, mostly whether they are sooner durable there or not. A stream of its own.
fn draw_commit_home(seed: u64) -> CommitHome {
    let chance = &mut Chance::new(seed, "commit home");
    chance.pick(&[CommitHome::Never, CommitHome::Never, CommitHome::Never, CommitHome::Judged, CommitHome::Always, CommitHome::Always])
}

/// What lies around a miss is read in half of the runs, mostly whether it pays or not: they are too short to tell.
fn draw_read_around(seed: u64) -> ReadAround {
    let chance = &mut Chance::new(seed, "read around");
    chance.pick(&[ReadAround::Never, ReadAround::Never, ReadAround::Never, ReadAround::Judged, ReadAround::Always, ReadAround::Always])
}

/// What is read ahead of sequences has room for 1 to 512 blocks in three of five runs.
fn draw_read_ahead(seed: u64, geometry: &Geometry) -> u64 {
    let chance = &mut Chance::new(seed, "read ahead");
    let blocks = chance.spread(1, 512);
    chance.pick(&[0, 0, blocks, blocks, blocks]) * u64::from(geometry.block_atoms) * ATOM_BYTES
}

/// Writes past the log in a third of the runs. A stream of its own: the other runs stay what they were.
fn draw_through(seed: u64) -> (Allocation, WhenFull) {
    let chance = &mut Chance::new(seed, "through");
    let when_full = if chance.one_in(3) { WhenFull::Through } else { WhenFull::Wait };
    let allocation = if when_full == WhenFull::Through && chance.one_in(2) { Allocation::ReadOnly } else { Allocation::ReadWrite };
    (allocation, when_full)
}

/// Cleaning that begins early in most runs, and none in a sixth; as many streams as the ring can tell again. A stream of its own.
fn draw_cleaning(seed: u64, config: &mut Config) {
    let chance = &mut Chance::new(seed, "cleaning");
    let sets = u64::from(config.geometry.sets);
    config.cleaning =
        chance.pick(&[Cleaning::Off, Cleaning::Greedy, Cleaning::Declining, Cleaning::Declining, Cleaning::Declining, Cleaning::Declining]);
    config.clean_floor = chance.between(3, sets * 3 / 4) as u32;
    let pages_of_a_class = 2 * config.geometry.set_slots.div_ceil(128);
    let most = (config.geometry.journal_pages / 8 / pages_of_a_class).clamp(1, (config.geometry.sets / 8).clamp(1, 3));
    config.classes = chance.between(1, u64::from(most)) as u32;
}

/// Small writes only in a fifth of the runs that keep writes, told by size or by randomness. A stream of its own.
fn draw_conversion(config: &mut Config, seed: u64) {
    let chance = &mut Chance::new(seed, "convert");
    if config.allocation == Allocation::ReadWrite && chance.one_in(5) {
        config.allocation = Allocation::SmallWrites;
        config.convert = chance.pick(&[Convert::Size, Convert::Randomness]);
        // Small beside the sizes that are drawn, or both ways would hardly meet.
        config.convert_max = Some(chance.pick(&[1, 4, 8, 8, 24, 128]));
    }
}

/// How long writes wait for an origin that shows no life, and how much is verified in the background. A stream of its own.
fn draw_patience(seed: u64) -> (Duration, u64) {
    let chance = &mut Chance::new(seed, "patience");
    let stall_timeout = Duration::from_millis(if chance.one_in(3) { chance.spread(100, 20_000) } else { 60_000 });
    (stall_timeout, if chance.one_in(3) { chance.spread(100_000, 100_000_000) } else { 0 })
}

/// Sets discarded before they are free in a third of the runs, and a budget of bytes a day that is soon spent in a tenth. A stream of its own.
fn draw_wear(seed: u64) -> (bool, u64) {
    let chance = &mut Chance::new(seed, "wear");
    (chance.one_in(3), if chance.one_in(10) { chance.spread(1 << 16, 1 << 34) } else { 0 })
}

/// Turns that do little, in a third of the runs: a TRIM takes many, and so do sets that are free together. A stream of its own.
fn draw_turns(seed: u64, config: &mut Config) {
    let chance = &mut Chance::new(seed, "turns");
    if chance.one_in(3) {
        config.zeroed_together = chance.spread(1, 64);
        config.freed_together = chance.spread(1, 8) as u32;
    }
}

/// Other schedulers than ours in a third of the runs, for either device or both. A stream of its own: the other runs stay what they were.
fn draw_queues(seed: u64) -> [QueueKind; 2] {
    let chance = &mut Chance::new(seed, "queues");
    let mut queue = || if chance.one_in(4) { chance.pick(&QueueKind::ALL) } else { QueueKind::default() };
    [queue(), queue()]
}

/// An SSD whose parts are known, in a quarter of the runs. A stream of its own.
fn draw_lanes(seed: u64) -> u32 {
    let chance = &mut Chance::new(seed, "lanes");
    if chance.one_in(4) { chance.spread(2, 16) as u32 } else { 1 }
}

/// A cache that fails for good, in a tenth of the runs: soon or late. (Not with damage: where the host cannot write down that the cache has failed,
/// nothing can be stopped in order, and a kill cuts off what was flushed last and is damaged. Seed 1585.)
fn draw_cache_failure(seed: u64) -> u64 {
    let chance = &mut Chance::new(seed, "cache failure");
    if chance.one_in(10) { chance.spread(20, 20_000) } else { 0 }
}

/// A cache that is taken from its origin now and then, in a fifth of the runs.
fn draw_detach(seed: u64) -> u64 {
    let chance = &mut Chance::new(seed, "detach");
    if chance.one_in(5) { chance.spread(100, 3_000) } else { 0 }
}

/// An SSD that does not discard in a quarter of the runs.
fn draws_discards(seed: u64) -> bool {
    !Chance::new(seed, "an SSD that discards").one_in(4)
}

fn draw_limits(chance: &mut Chance, geometry: &Geometry) -> [Limits; 2] {
    let mut limits =
        |atoms| Limits { atoms, depth: chance.pick(&[1, 2, 8, 32]), op_atoms: chance.pick(&[2_048, 2_048, 4_096, 16_384]), discards: true };
    [limits(geometry.cache_atoms()), limits(geometry.volume_atoms)]
}

/// An origin: now and then one whose every operation takes seconds, or none at all.
fn draw_disk(chance: &mut Chance) -> Speed {
    let times = chance.pick(&[0, 1, 1, 1, 10, 1_000]);
    let scale = |duration: Duration| Duration((duration.0 * times).max(2_000));
    Speed { read: scale(Speed::DISK.read), write: scale(Speed::DISK.write), flush: scale(Speed::DISK.flush), ..Speed::DISK }
}

/// Now and then a real drive, whose queue and buffer put things in an order of their own. Small ones: they hold what the plan needs.
fn draw_drives(chance: &mut Chance, limits: &[Limits; 2]) -> [Option<Spec>; 2] {
    const SSDS: [&str; 6] = ["ssd-100gb-2010", "x25-m-80gb", "mtron-3035", "mtron-3035-fast", "mx100-256gb", "nvme-tlc"];
    let mut drive = |names: &[&str], atoms: u64| {
        let name = chance.pick(names);
        let drawn = chance.one_in(8);
        let mut spec = Spec::load(name).expect("a shipped device").with_capacity_mb(atoms * ATOM_BYTES / 1_000_000 + 1);
        match &mut spec {
            Spec::Hdd(disk) => {
                // Quick, or the engine would hardly do anything but wait.
                disk.mechanics.rpm *= chance.pick(&[1, 10, 100]);
                disk.buffer.entries = chance.pick(&[4, 32, 1024]);
                disk.buffer.window = chance.pick(&[1, 24, 1024]);
            }
            // Few and small blocks, so that much is cleaned.
            Spec::Ssd(ssd) if ssd.ftl.map == MapKind::Page => {
                let flash = ssd.flash.as_mut().expect("a page-mapped drive has flash");
                (flash.channels, flash.block_pages) = (2, chance.pick(&[4, 16]));
                ssd.buffer_kib = ssd.buffer_kib.min(1_024);
                ssd.ftl.gc_low_percent = 10;
            }
            Spec::Ssd(_) => {}
        }
        drawn.then_some(spec)
    };
    let mut origins = vec!["hdd-7200-2010"; SSDS.len()];
    origins.extend(SSDS);
    [drive(&SSDS, limits[0].atoms), drive(&origins, limits[1].atoms)]
}

/// Sectors of the origin that take no writes for a while, in a sixth of the runs. A stream of its own.
fn draw_refusals(seed: u64) -> u32 {
    let chance = &mut Chance::new(seed, "refusals");
    if chance.one_in(6) { chance.spread(100, 20_000) as u32 } else { 0 }
}

/// Metadata that is not given at the first time of asking, in a third of the runs. A stream of its own.
fn draw_metadata_errors(seed: u64) -> u32 {
    let chance = &mut Chance::new(seed, "metadata errors");
    if chance.one_in(3) { chance.spread(1_000, 250_000) as u32 } else { 0 }
}

fn draw_rates(chance: &mut Chance, kind: Kind) -> Rates {
    let mut rate = |highest: u64| if chance.one_in(3) { chance.spread(100, highest) as u32 } else { 0 };
    let damage = kind == Kind::Damage;
    Rates {
        read_error: rate(100_000),
        metadata_error: 0,
        write_error: rate(100_000),
        refused: 0,
        no_space: 0,
        flush_error: rate(100_000),
        spin_error: 0,
        spin_silence: 0,
        stuck: rate(500),
        misdirected: if damage { rate(100_000) } else { 0 },
        rot: if damage { rate(50_000) } else { rate(10_000) },
        settled_only: !damage,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_plan_can_be() {
        for seed in 0..3_000 {
            let draws = [Plan::draw, Plan::draw_wide, Plan::draw_refusing, Plan::draw_failing, Plan::draw_for_crash_points];
            for plan in draws.map(|draw| draw(seed, 100, None)) {
                let Config { geometry, free_floor, reserve, dirty_high, .. } = plan.config;
                assert_eq!(geometry.validate(), Ok(()), "seed {seed}");
                assert!(free_floor + reserve < geometry.sets && dirty_high < geometry.sets, "seed {seed}");
                assert!(plan.limits[0].atoms >= geometry.cache_atoms() && plan.limits[1].atoms >= geometry.volume_atoms, "seed {seed}");
                assert!(
                    plan.mix.blocks_max * u64::from(geometry.block_atoms) * 512 <= plan.config.bytes_max,
                    "seed {seed}: a request fits"
                );
            }
        }
    }

    #[test]
    fn plans_differ_in_everything() {
        let plans: Vec<Plan> = (0..300).map(|seed| Plan::draw(seed, 100, None)).collect();
        let some = |what: &str, is: &dyn Fn(&Plan) -> bool| {
            let count = plans.iter().filter(|plan| is(plan)).count();
            assert!((5..295).contains(&count), "{what}: {count} of 300");
        };
        some("damage", &|plan| plan.kind == Kind::Damage);
        some("crashes", &|plan| plan.crashes > 0);
        some("blocks of 64 KiB", &|plan| plan.config.geometry.block_atoms == 128);
        some("an origin that leaves", &|plan| plan.origin_leaves_every > 0);
        some("failing flushes", &|plan| plan.rates[0].flush_error > 0);
        some("no fault at all", &|plan| plan.rates.iter().all(|rates| Rates { settled_only: false, ..*rates } == Rates::default()));
        some("a drive as the cache", &|plan| plan.drives[0].is_some());
        some("a disk as the origin", &|plan| matches!(plan.drives[1], Some(Spec::Hdd(_))));
        some("a disk that stands still", &|plan| plan.config.spin.is_some());
        some("a log alone", &Plan::is_log_alone);
        some("write-through", &|plan| plan.config.mode == Some(Mode::WriteThrough));
        some("a detach", &|plan| plan.detach_every > 0);
        some("a drive that stops by itself", &|plan| plan.dozes);
        some("uses that are counted", &|plan| plan.counts_uses);
        some("a motor that does not answer", &|plan| plan.rates[1].spin_silence > 0);
        some("quiet hours", &|plan| plan.config.spin.as_ref().is_some_and(|spin| !spin.quiet.hours.is_empty()));
        some("clients that ask together", &|plan| plan.mix.beat > Duration::ZERO);
        some("no discards", &|plan| !plan.limits[0].discards);
        some("turns that do little", &|plan| plan.config.zeroed_together < 64);
        some("switches", &|plan| !plan.modes.is_empty());
        for kind in QueueKind::ALL {
            some(kind.name(), &|plan| plan.config.queues == [kind, QueueKind::default()]);
            some(kind.name(), &|plan| plan.config.queues[1] == kind);
        }
        some("one worker", &|plan| plan.mix.workers == 1);
        some("a short last block", &|plan| !plan.config.geometry.volume_atoms.is_multiple_of(u64::from(plan.config.geometry.block_atoms)));
    }
}

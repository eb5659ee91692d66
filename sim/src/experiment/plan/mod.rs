//! A plan: which devices, put together how, under which loads, and what of it is held against which figure of a paper. A TOML file,
//! read whole or refused whole ([`file`]).

mod compared;
pub mod file;
pub mod metric;
pub mod paths;
mod runs;

use super::load::trace::Whole;
use super::load::{Job, Load};
use super::options::SpinTable;
use super::rig::VOLUME_ATOMS;
use crate::back::model::Spec;
use metric::Metric;
use paths::System;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use tidegate_engine::Config;
use tidegate_engine::block::ATOM_BYTES;
use tidegate_engine::op::Limits;
use tidegate_engine::queue::QueueKind;
use tidegate_engine::spin;
use tidegate_engine::time::Duration;

/// The plans that come with the program, in the order in which they are listed.
const EMBEDDED: [(&str, &str); 27] = [
    ("devices", include_str!("../../../plans/devices.toml")),
    ("000-table3", include_str!("../../../plans/000-table3.toml")),
    ("000-table4", include_str!("../../../plans/000-table4.toml")),
    ("000-figures", include_str!("../../../plans/000-figures.toml")),
    ("001-gaps", include_str!("../../../plans/001-gaps.toml")),
    ("001-flashcache", include_str!("../../../plans/001-flashcache.toml")),
    ("001-spindown", include_str!("../../../plans/001-spindown.toml")),
    ("001-optimal", include_str!("../../../plans/001-optimal.toml")),
    ("001-ration", include_str!("../../../plans/001-ration.toml")),
    ("002-mtron", include_str!("../../../plans/002-mtron.toml")),
    ("002-x25m", include_str!("../../../plans/002-x25m.toml")),
    ("002-nvme", include_str!("../../../plans/002-nvme.toml")),
    ("003-six-patterns", include_str!("../../../plans/003-six-patterns.toml")),
    ("003-six-patterns-full", include_str!("../../../plans/003-six-patterns-full.toml")),
    ("003-beyond", include_str!("../../../plans/003-beyond.toml")),
    ("003-knee", include_str!("../../../plans/003-knee.toml")),
    ("003-stack", include_str!("../../../plans/003-stack.toml")),
    ("004-hits", include_str!("../../../plans/004-hits.toml")),
    ("hits", include_str!("../../../plans/hits.toml")),
    ("modes", include_str!("../../../plans/modes.toml")),
    ("wa", include_str!("../../../plans/wa.toml")),
    ("tail", include_str!("../../../plans/tail.toml")),
    ("cliff", include_str!("../../../plans/cliff.toml")),
    ("courtesy", include_str!("../../../plans/courtesy.toml")),
    ("000-beyond", include_str!("../../../plans/000-beyond.toml")),
    ("neighbours", include_str!("../../../plans/neighbours.toml")),
    ("never-slower", include_str!("../../../plans/never-slower.toml")),
];

/// A plan, checked: everything it names exists.
#[derive(Clone, Debug)]
pub struct Plan {
    pub name: String,
    /// What it shows, in a line.
    pub shows: String,
    pub runs: Vec<Run>,
    pub rows: Vec<Row>,
    pub left_out: Vec<LeftOut>,
}

/// A load whose trace is not there: rows that need it are not in the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    pub load: String,
    pub rows: usize,
    /// The path that was looked for, and what to do.
    pub why: String,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} rows are left out: {}", self.load, self.rows, self.why)
    }
}

/// One configuration under one load.
#[derive(Clone, Debug)]
pub struct Run {
    /// `configuration/load`.
    pub name: String,
    pub configuration: Arc<Configuration>,
    /// Loads that come before and are not measured, then the one that is.
    pub before: Vec<Arc<Load>>,
    pub load: Arc<Load>,
    /// Idle time between them.
    pub rest: Duration,
}

impl Plan {
    /// Loads whose traces have requests that are left out, or were cut off.
    pub fn skipped(&self) -> BTreeMap<&str, Whole> {
        let loads = self.runs.iter().flat_map(|run| run.before.iter().chain([&run.load]));
        let of_load = |load: &Load| {
            let traces = load.jobs.iter().filter_map(|job| if let Job::Replay(replay) = job { Some(replay.trace.whole) } else { None });
            let missing = |whole: &Whole| (whole.cut_off_behind.is_some(), whole.skipped);
            traces.max_by_key(missing).filter(|whole| missing(whole) > (false, 0))
        };
        loads.filter_map(|load| Some((load.name.as_str(), of_load(load)?))).collect()
    }
}

impl Run {
    /// Requests of all its loads.
    pub fn requests(&self) -> u64 {
        self.before.iter().chain([&self.load]).map(|load| load.requests()).sum()
    }
}

#[derive(Clone, Debug)]
pub struct Configuration {
    pub name: String,
    pub kind: Kind,
    /// Of a bare device: loads before the measured one write what they read.
    pub keeps_reads: bool,
    /// Idle time after which a disk (of a cached configuration: the origin) is told to spin down.
    pub spin_down: Option<Duration>,
    /// It is told by the engine's own way instead.
    pub spin: Option<(SpinTable, spin::Config)>,
    /// Longest wait for the unplug timer of Linux 2.6; zero without one.
    pub plug: Duration,
}

#[derive(Clone, Debug)]
pub enum Kind {
    /// The load straight on a device, or through a queue in front of it.
    Bare(Device, Option<QueueKind>),
    /// An engine over a cache and an origin. `shared`: they are one drive, the origin its first atoms, the cache what lies from this one on.
    Cached { cache: Device, origin: Device, shared: Option<u64>, config: Box<Config>, limits: [Limits; 2] },
    /// Paper 001's peer over them.
    Flashcache { cache: Device, origin: Device },
    /// An engine over devices that take no time.
    Instant { config: Box<Config>, limits: [Limits; 2] },
    /// Processes on cores: no engine, but the costs of a system's steps.
    Processes(System),
}

/// A device and its name in the plan.
#[derive(Clone, Debug)]
pub struct Device {
    pub name: String,
    pub spec: Arc<Spec>,
}

impl Device {
    pub fn atoms(&self) -> u64 {
        self.spec.capacity() / ATOM_BYTES
    }
}

impl Configuration {
    /// Its devices by name, the cache before the origin.
    pub fn devices(&self) -> Vec<&Device> {
        match &self.kind {
            Kind::Bare(device, _) => vec![device],
            Kind::Cached { cache, shared: Some(_), .. } => vec![cache],
            Kind::Cached { cache, origin, .. } | Kind::Flashcache { cache, origin } => vec![cache, origin],
            Kind::Instant { .. } | Kind::Processes(_) => Vec::new(),
        }
    }

    /// Atoms that a load may ask for.
    pub fn volume_atoms(&self) -> u64 {
        match &self.kind {
            Kind::Bare(device, _) => device.atoms(),
            Kind::Flashcache { origin, .. } => origin.atoms(),
            Kind::Cached { config, .. } | Kind::Instant { config, .. } => config.geometry.volume_atoms,
            Kind::Processes(_) => VOLUME_ATOMS,
        }
    }
}

/// What is reported, and held against a figure.
#[derive(Clone, Debug)]
pub struct Row {
    pub name: String,
    /// What the value is, as the report names it.
    pub metric: String,
    pub value: Value,
    pub paper: Option<f64>,
    pub low: Option<f64>,
    pub high: Option<f64>,
    pub note: Option<String>,
}

/// Where a row's value comes from; runs by their index.
#[derive(Clone, Debug)]
pub enum Value {
    Of(usize, Metric),
    /// The first by the second.
    Ratio([usize; 2], Metric),
    /// The sum of some by the sum of others.
    SumRatio([Vec<usize>; 2], Metric),
    /// The first without the second.
    Difference([usize; 2], Metric),
    /// The first by the least of the others.
    Slowdown(Vec<usize>, Metric),
    /// 1 if each is less than the next (or, within `slack` per cent, equal to it), else 0.
    Order {
        runs: Vec<usize>,
        metric: Metric,
        slack: Option<f64>,
    },
    /// Seconds of standby that a spin-down must last to pay: where the line through two fixed gaps (below and above it) meets the
    /// energy of a disk that stays on.
    BreakEven {
        below: usize,
        above: usize,
        always_on: usize,
    },
}

/// Why a plan is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No plan has this name, and it is no path.
    Unknown(String),
    /// The file cannot be read.
    Unreadable(String),
    /// `file:line: what; what to do`.
    Wrong(String),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Unknown(what) | Refused::Unreadable(what) | Refused::Wrong(what) => f.write_str(what),
        }
    }
}

/// The plans that come with the program: name and what it shows.
pub fn list() -> Vec<(&'static str, String)> {
    EMBEDDED.iter().map(|(name, text)| (*name, file::shows(text))).collect()
}

/// The text of a plan that comes with the program.
pub fn text(name: &str) -> Result<&'static str, Refused> {
    EMBEDDED.iter().find(|(known, _)| *known == name).map(|(_, text)| *text).ok_or_else(|| unknown(name))
}

fn unknown(name: &str) -> Refused {
    let names: Vec<&str> = EMBEDDED.iter().map(|(name, _)| *name).collect();
    let typed = super::units::shorten(name);
    Refused::Unknown(format!("no plan is named {typed:?}: there are {}; or name a file (`./{typed}.toml`)", names.join(", ")))
}

/// The plan of that name, or in that file.
pub fn load(name_or_path: &str) -> Result<Plan, Refused> {
    if let Some((name, text)) = EMBEDDED.iter().find(|(name, _)| *name == name_or_path) {
        return file::parse(&format!("{name}.toml"), text, Path::new(".")).map_err(Refused::Wrong);
    }
    let path = Path::new(name_or_path);
    if !name_or_path.contains('/') && path.extension().is_none_or(|extension| extension != "toml") {
        return Err(unknown(name_or_path));
    }
    let text = file::read_text(path).map_err(|why| Refused::Unreadable(format!("{}: {why}", path.display())))?;
    let folder = path.parent().unwrap_or(Path::new("."));
    file::parse(name_or_path, &text, folder).map_err(Refused::Wrong)
}

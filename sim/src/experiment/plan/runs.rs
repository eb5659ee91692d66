//! From what a plan's file says to what will be run: names are resolved, sizes are checked, and what cannot be is refused with its place.

use super::compared::Compared;
use super::file::{File, LoadTable, RowTable, Source};
use super::metric::{KNOWN, Metric};
use super::paths;
use super::{Configuration, Device, Kind, LeftOut, Plan, Row, Run, Value};
use crate::back::model::Spec;
use crate::experiment::load::{Load, table as load_table};
use crate::experiment::options::{Aged, Options, Room, SAME, SpinTable, engine_config, plug, queue};
use crate::experiment::rows;
use crate::experiment::units::shorten;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidegate_engine::block::ATOM_BYTES;
use tidegate_engine::spin;
use tidegate_engine::time::Duration;
use toml::Spanned;

/// A load with those that come before it, by name.
struct Loaded {
    load: Arc<Load>,
    before: Vec<String>,
    rest: Duration,
}

/// What the rows refer to, and the runs they need so far.
struct Known<'a> {
    source: &'a Source<'a>,
    configurations: BTreeMap<String, Arc<Configuration>>,
    loads: BTreeMap<String, Loaded>,
    /// Loads whose traces are not there.
    left_out: Vec<LeftOut>,
    runs: Vec<Run>,
}

pub(super) fn check(source: &Source, file: File) -> Result<Plan, String> {
    let name = file.name.as_ref().clone();
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_') {
        return Err(source.wrong(&file.name, format!("{:?} is no name of a plan: use letters, digits and `-`", shorten(&name))));
    }
    let devices = devices(source, &file.devices)?;
    let mut configurations = BTreeMap::new();
    for (name, options) in &file.configurations {
        check_name(source, name, "configuration")?;
        let configuration = configuration(source, name, options, &devices)?;
        configurations.insert(name.as_ref().clone(), Arc::new(configuration));
    }
    if file.rows.is_empty() && file.grids.is_empty() {
        return Err(source.wrong(&file.name, "the plan has no rows: add [[rows]] with run = \"configuration/load\" and a metric"));
    }
    let (loads, left_out) = loads(source, &file.loads)?;
    let mut known = Known { source, configurations, loads, left_out, runs: Vec::new() };
    let mut rows = Vec::new();
    for row in file.rows.into_iter().chain(file.grids.iter().flat_map(|grid| grid.as_ref().rows())) {
        if !known.is_left_out(row.as_ref()) {
            rows.push(known.row(&row)?);
        }
    }
    let left_out = known.left_out.into_iter().filter(|load| load.rows > 0).collect();
    Ok(Plan { name, shows: file.shows, runs: known.runs, rows, left_out })
}

/// Names of configurations and loads become parts of `configuration/load` and of file names. A configuration's may have parts itself.
fn check_name(source: &Source, name: &Spanned<String>, what: &str) -> Result<(), String> {
    let good = |part: &str| {
        let good = |c: char| c.is_ascii_alphanumeric() || "-_+.".contains(c);
        !part.is_empty() && !part.starts_with('.') && part.chars().all(good)
    };
    let is_good = if what == "configuration" { name.as_ref().split('/').all(good) } else { good(name.as_ref()) };
    if !is_good {
        return Err(source.wrong(name, format!("{:?} is no name of a {what}: use letters, digits and `-`", shorten(name.as_ref()))));
    }
    Ok(())
}

fn devices(source: &Source, named: &BTreeMap<String, Spanned<String>>) -> Result<BTreeMap<String, Arc<Spec>>, String> {
    let mut devices = BTreeMap::new();
    for (name, model) in named {
        let is_path = model.as_ref().contains('/') || model.as_ref().ends_with(".toml");
        let place = if is_path { source.path(model.as_ref()).display().to_string() } else { model.as_ref().clone() };
        let spec = Spec::load(&place).map_err(|why| source.wrong(model, why))?;
        devices.insert(name.clone(), Arc::new(spec));
    }
    Ok(devices)
}

fn kind(source: &Source, name: &Spanned<String>, options: &Options, devices: &BTreeMap<String, Arc<Spec>>) -> Result<Kind, String> {
    let device = |named: &Spanned<String>| match devices.get(named.as_ref()) {
        Some(spec) => Ok(Device { name: named.as_ref().clone(), spec: spec.clone() }),
        None => {
            let known: Vec<&str> = devices.keys().map(String::as_str).collect();
            Err(source.wrong(named, format!("no device {:?} in [devices]: there are {}", shorten(named.as_ref()), known.join(", "))))
        }
    };
    let used = |named: &Spanned<String>| used_ssd(source, named, options, device(named)?);
    let title = name.as_ref();
    let kind = match (&options.bare, &options.cache, &options.origin) {
        _ if options.process_keys() => {
            let what = "`spread_percent`, `read`, `write` and `controller` go with `cores`";
            return Err(source.wrong(name, format!("configuration {title}: {what}")));
        }
        (Some(bare), None, None) if options.spin.is_some() && options.queue.is_some() => {
            let what = "a disk that `spin` tells to stand still has no `queue` in front of it: that takes an engine over it";
            return Err(source.wrong(bare, format!("configuration {title}: {what}")));
        }
        (Some(bare), None, None) if !options.cached_keys() && options.volume.is_none() => {
            let wrong = |why: String| source.wrong(options.queue.as_ref().unwrap_or(bare), format!("configuration {title}: {why}"));
            Kind::Bare(used(bare)?, queue(&options.queue).map_err(wrong)?)
        }
        (Some(bare), ..) => {
            let what = "a configuration is either bare or cached: with `bare`, only `spin_down`, `spin`, `keeps_reads`, `capacity`, `aged`, `layout`, `overhead`, `depth` and `queue` may be set";
            return Err(source.wrong(bare, format!("configuration {title}: {what}")));
        }
        (None, Some(cache), Some(origin)) if options.flashcache => {
            if origin.as_ref() == SAME || options.engine_keys() || options.queue.is_some() || options.volume.is_some() {
                let what = "Flashcache has two devices, and no settings but `capacity`, `aged`, `layout` and `spin_down`";
                return Err(source.wrong(origin, format!("configuration {title}: {what}")));
            }
            Kind::Flashcache { cache: used(cache)?, origin: device(origin)? }
        }
        (None, Some(cache), Some(origin)) => {
            let cache = used(cache)?;
            let shared = if origin.as_ref() == SAME { Some(cache_start(source, origin, options)?) } else { None };
            let origin = if shared.is_some() { cache.clone() } else { device(origin)? };
            let room = Room {
                cache_atoms: cache.atoms().saturating_sub(shared.unwrap_or(0)),
                origin_atoms: origin.atoms(),
                cache_depth: cache.spec.depth(),
                origin_depth: origin.spec.depth(),
            };
            if let Some(volume) = &options.volume
                && volume.as_ref().atoms() > room.origin_atoms
            {
                let has = room.origin_atoms * 512;
                return Err(source.wrong(volume, format!("configuration {title}: the origin {} has {has} bytes", origin.name)));
            }
            let config = engine_config(options, room).map_err(|why| source.wrong(name, format!("configuration {title}: {why}")))?;
            Kind::Cached { limits: options.limits(room), config: Box::new(config), cache, origin, shared }
        }
        (None, None, None) if options.instant => {
            let atoms = options.volume.as_ref().map(|volume| volume.as_ref().atoms());
            let (Some(origin_atoms), Some(_)) = (atoms, &options.sets) else {
                return Err(source.wrong(name, format!("configuration {title}: an instant one needs `volume` and `sets`")));
            };
            let room = Room { cache_atoms: u64::MAX / 512, origin_atoms, cache_depth: 1024, origin_depth: 1024 };
            let config = engine_config(options, room).map_err(|why| source.wrong(name, format!("configuration {title}: {why}")))?;
            let room = Room { cache_atoms: config.geometry.cache_atoms(), ..room };
            Kind::Instant { limits: options.limits(room), config: Box::new(config) }
        }
        (None, ..) => {
            let what = "says neither `bare = DEVICE` nor `cache = DEVICE` and `origin = DEVICE`, nor `cores`";
            return Err(source.wrong(name, format!("configuration {title} {what}")));
        }
    };
    Ok(kind)
}

fn configuration(
    source: &Source,
    name: &Spanned<String>,
    options: &Options,
    devices: &BTreeMap<String, Arc<Spec>>,
) -> Result<Configuration, String> {
    let title = name.as_ref();
    let kind = match &options.cores {
        Some(cores) => Kind::Processes(paths::system(source, title, cores, options)?),
        None => kind(source, name, options, devices)?,
    };
    let keeps_reads = match &options.keeps_reads {
        Some(keeps) if options.bare.is_none() => {
            return Err(source.wrong(keeps, format!("configuration {title}: `keeps_reads` is of a bare device")));
        }
        keeps => keeps.as_ref().is_some_and(|keeps| *keeps.as_ref()),
    };
    let spin = spin(source, title, options, &kind)?;
    let kind = match (kind, &spin) {
        (Kind::Cached { cache, origin, shared, mut config, limits }, Some((_, spin))) => {
            config.spin = Some(spin.clone());
            Kind::Cached { cache, origin, shared, config, limits }
        }
        (kind, _) => kind,
    };
    let plug = plug(options).map_err(|why| source.wrong(name, format!("configuration {title}: {why}")))?;
    Ok(Configuration { name: title.clone(), kind, keeps_reads, spin_down: options.spin_down.map(|time| time.0), spin, plug })
}

/// How a disk is told to stand still, with its figures.
fn spin(source: &Source, title: &str, options: &Options, kind: &Kind) -> Result<Option<(SpinTable, spin::Config)>, String> {
    let Some(place) = &options.spin else { return Ok(None) };
    let wrong = |what: &str| Err(source.wrong(place, format!("configuration {title}: {what}")));
    let (disk, is_bare) = match kind {
        Kind::Bare(device, _) => (device, true),
        Kind::Cached { origin, shared: None, .. } => (origin, false),
        Kind::Cached { .. } | Kind::Flashcache { .. } | Kind::Instant { .. } | Kind::Processes(_) => {
            return wrong("`spin` is of a disk, bare or as the origin");
        }
    };
    let Spec::Hdd(hdd) = &*disk.spec else { return wrong("`spin` is of a disk: others have no motor") };
    if options.spin_down.is_some() {
        return wrong("`spin` and `spin_down` tell the same disk: one is enough");
    }
    let table = *place.as_ref();
    if table.foresees() && !is_bare {
        return wrong("\"hindsight\" and \"optimum\" know the gaps of a bare disk only");
    }
    Ok(Some((table, table.config(&hdd.power))))
}

/// An SSD as it is used: its age, and the host's own slowness.
fn used_ssd(source: &Source, named: &Spanned<String>, options: &Options, device: Device) -> Result<Device, String> {
    let mut spec = Spec::clone(&device.spec);
    if let Some(capacity) = &options.capacity {
        let megabytes = capacity.as_ref().0 / 1_000_000;
        if megabytes == 0 || capacity.as_ref().0 > spec.capacity() {
            return Err(source.wrong(capacity, format!("a capacity from 1MB to the {} bytes of {}", spec.capacity(), device.name)));
        }
        spec = spec.with_capacity_mb(megabytes);
    }
    if let Some(aged) = &options.aged {
        let Aged { used_percent, overwritten_times } = *aged.as_ref();
        if used_percent > 100 || overwritten_times > 100 {
            return Err(source.wrong(aged, "used_percent and overwritten_times are at most 100"));
        }
        spec = spec.aged(used_percent, overwritten_times);
    }
    if let Some(layout) = &options.layout {
        let laid_out = spec.laid_out(*layout.as_ref());
        spec = laid_out.ok_or_else(|| source.wrong(layout, format!("{} has no layout: it is not a page-mapped SSD", device.name)))?;
    }
    if options.overhead.is_some() || options.depth.is_some() {
        if let Some(depth) = options.depth.as_ref().filter(|depth| *depth.as_ref() == 0) {
            return Err(source.wrong(depth, "a depth of 0: one command at least is in flight"));
        }
        let overhead = options.overhead.map_or(Duration::ZERO, |time| time.0);
        let slower = spec.behind(overhead, options.depth.as_ref().map(|depth| *depth.as_ref()));
        spec = slower.ok_or_else(|| source.wrong(named, "`overhead` and `depth` are of an SSD"))?;
    }
    Ok(Device { spec: Arc::new(spec), ..device })
}

/// Where the cache begins on the drive that is its origin, too: behind the volume, at a whole MiB.
fn cache_start(source: &Source, origin: &Spanned<String>, options: &Options) -> Result<u64, String> {
    match &options.volume {
        Some(volume) => Ok(volume.as_ref().atoms().next_multiple_of((1 << 20) / ATOM_BYTES)),
        None => Err(source.wrong(origin, "origin = \"same\" needs a volume: how much of the drive is the origin")),
    }
}

/// The loads, and those that are left out because a trace of theirs, or of a load before them, is not there.
fn loads(source: &Source, tables: &BTreeMap<Spanned<String>, LoadTable>) -> Result<(BTreeMap<String, Loaded>, Vec<LeftOut>), String> {
    let (mut loads, mut left_out) = (BTreeMap::new(), Vec::new());
    for (name, table) in tables {
        check_name(source, name, "load")?;
        for before in &table.after {
            match tables.get(before.as_ref().as_str()) {
                Some(earlier) if earlier.after.is_empty() => {}
                Some(_) => return Err(source.wrong(before, format!("load {:?} comes after others itself", before.as_ref()))),
                None => return Err(source.wrong(before, unknown("load", before.as_ref(), tables.keys().map(Spanned::as_ref)))),
            }
        }
        let before = table.after.iter().filter_map(|before| tables.get(before.as_ref().as_str()));
        if let Some(why) = before.chain([table]).find_map(|table| load_table::missing(source, table)) {
            left_out.push(LeftOut { load: name.as_ref().clone(), rows: 0, why });
            continue;
        }
        let loaded = Loaded {
            load: Arc::new(load_table::load(source, name, table)?),
            before: table.after.iter().map(|before| before.as_ref().clone()).collect(),
            rest: table.rest.map_or(Duration::ZERO, |time| time.0),
        };
        loads.insert(name.as_ref().clone(), loaded);
    }
    Ok((loads, left_out))
}

fn unknown<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a String>) -> String {
    let known: Vec<&str> = known.map(String::as_str).collect();
    format!("no {what} {:?}: there are {}", shorten(name), known.join(", "))
}

impl Known<'_> {
    /// The index of a run, which is added if it is new.
    fn run(&mut self, named: &Spanned<String>) -> Result<usize, String> {
        if let Some(index) = self.runs.iter().position(|run| run.name == *named.as_ref()) {
            return Ok(index);
        }
        let wrong = |what: String| self.source.wrong(named, what);
        let (configuration, load) = named
            .as_ref()
            .rsplit_once('/')
            .ok_or_else(|| wrong(format!("{:?} is no run: write \"configuration/load\"", shorten(named.as_ref()))))?;
        let configuration = self
            .configurations
            .get(configuration)
            .ok_or_else(|| wrong(unknown("configuration", configuration, self.configurations.keys())))?
            .clone();
        let loaded = self.loads.get(load).ok_or_else(|| wrong(unknown("load", load, self.loads.keys())))?;
        let before: Vec<Arc<Load>> = loaded.before.iter().map(|name| self.loads[name].load.clone()).collect();
        for load in before.iter().chain([&loaded.load]) {
            let (needs, has) = (load.reach() * 512, configuration.volume_atoms() * 512);
            if needs > has {
                let hint = "use a smaller span, or wrap = true of a trace";
                return Err(wrong(format!("load {} reaches to byte {needs}, and {} has {has}: {hint}", load.name, configuration.name)));
            }
        }
        let foresees = configuration.spin.as_ref().is_some_and(|(table, _)| table.foresees());
        if foresees && (loaded.load.gaps(0).is_empty() || !before.is_empty()) {
            return Err(wrong(format!(
                "{} knows the gaps of a load ahead: load {} has none, or others before it",
                configuration.name, loaded.load.name
            )));
        }
        let flushes = before.iter().chain([&loaded.load]).find(|load| load.flushes());
        if let (Kind::Processes(_), Some(load)) = (&configuration.kind, flushes) {
            return Err(wrong(format!("load {} has FLUSHes, and processes have steps for reads and writes only", load.name)));
        }
        if !matches!(configuration.kind, Kind::Bare(_, Some(_)))
            && let Some(load) = before.iter().chain([&loaded.load]).find(|load| load.has_background())
        {
            return Err(wrong(format!("load {} has a background, which goes with a bare device that has a queue", load.name)));
        }
        let run = Run { name: named.as_ref().clone(), configuration, before, load: loaded.load.clone(), rest: loaded.rest };
        self.runs.push(run);
        Ok(self.runs.len() - 1)
    }

    /// Needs a row a load that is left out? It is counted there.
    fn is_left_out(&mut self, row: &RowTable) -> bool {
        let needs =
            |load: &str| row.run.iter().chain(&row.of).any(|run| run.as_ref().rsplit_once('/').is_some_and(|(_, name)| name == load));
        let found = self.left_out.iter_mut().find(|left_out| needs(&left_out.load));
        found.map(|left_out| left_out.rows += 1).is_some()
    }

    fn row(&mut self, spanned: &Spanned<RowTable>) -> Result<Row, String> {
        let row = spanned.as_ref();
        let wrong = |what: &str| self.source.wrong(spanned, what);
        let named = row
            .metric
            .as_ref()
            .ok_or_else(|| wrong(&format!("a row without a metric: {KNOWN}, {}", Compared::NAMES.map(|(name, _)| name).join(", "))))?;
        let (name, value) = match Compared::named(named.as_ref()) {
            Some(compared) => {
                if row.run.is_some() || !compared.takes(row.of.len()) {
                    return Err(self.source.wrong(named, compared.wants()));
                }
                let runs = row.of.iter().map(|run| self.run(run)).collect::<Result<Vec<usize>, String>>()?;
                (compared.name(row), self.compared(compared, named, row, runs)?)
            }
            None => {
                let run = row.run.as_ref().ok_or_else(|| wrong("a row without a run: write run = \"configuration/load\""))?;
                let index = self.run(run)?;
                (run.as_ref().clone(), Value::Of(index, self.metric(named, row, index)?))
            }
        };
        let [low, high] = self.band(row, matches!(value, Value::Order { .. }))?;
        let metric = if matches!(value, Value::BreakEven { .. }) { "seconds" } else { named.as_ref() };
        Ok(Row {
            name: row.name.clone().unwrap_or(name),
            metric: metric.to_string(),
            value,
            paper: row.paper.as_ref().map(|paper| *paper.as_ref()),
            low,
            high,
            note: row.note.clone(),
        })
    }

    /// What is compared of so many runs as it takes.
    fn compared(&self, compared: Compared, named: &Spanned<String>, row: &RowTable, mut runs: Vec<usize>) -> Result<Value, String> {
        Ok(match compared {
            Compared::Gain => Value::Ratio([runs[0], runs[1]], Metric::Iops),
            Compared::Ratio => Value::Ratio([runs[0], runs[1]], self.by(row, &runs)?),
            Compared::SumRatio => {
                let by = self.by(row, &runs)?;
                let under = runs.split_off(runs.len() / 2);
                Value::SumRatio([runs, under], by)
            }
            Compared::Difference => Value::Difference([runs[0], runs[1]], self.by(row, &runs)?),
            Compared::Slowdown => {
                let by = self.by(row, &runs)?;
                Value::Slowdown(runs, by)
            }
            Compared::Order => {
                let metric = self.by(row, &runs)?;
                Value::Order { runs, metric, slack: row.slack_percent }
            }
            Compared::BreakEven => self.break_even(named, &runs)?,
        })
    }

    fn break_even(&self, named: &Spanned<String>, runs: &[usize]) -> Result<Value, String> {
        let [below, above, always_on] = [runs[0], runs[1], runs[2]];
        let gap = |run: usize| rows::gap(&self.runs[run]);
        let spins = |run: usize| self.runs[run].configuration.spin_down;
        if gap(below) >= gap(above) || spins(below).is_none() || spins(below) != spins(above) || spins(always_on).is_some() {
            return Err(self.source.wrong(
                named,
                "a break-even is of a shorter and a longer `pause` after each request with the same spin_down, then of a disk without one",
            ));
        }
        Ok(Value::BreakEven { below, above, always_on })
    }

    /// Of what a ratio, a difference, a slowdown or an order is.
    fn by(&self, row: &RowTable, runs: &[usize]) -> Result<Metric, String> {
        match &row.by {
            None => Ok(Metric::Seconds),
            Some(by) => runs.iter().map(|&run| self.metric(by, row, run)).next_back().expect("such a row is of runs"),
        }
    }

    fn metric(&self, named: &Spanned<String>, row: &RowTable, run: usize) -> Result<Metric, String> {
        let devices: Vec<String> = self.runs[run].configuration.devices().iter().map(|device| device.name.clone()).collect();
        match Metric::parse(named.as_ref(), &devices) {
            Some(Metric::Knee { .. }) => match row.below {
                Some(below) => Ok(Metric::Knee { below }),
                None => Err(self.source.wrong(named, "knee-mib needs `below`: the throughput in MB/s that it falls below")),
            },
            Some(Metric::Rate { .. }) => {
                Ok(Metric::Rate { from_mib: row.from.map(|size| size.0 >> 20), to_mib: row.to.map(|size| size.0 >> 20) })
            }
            Some(metric) => Ok(metric),
            None => Err(self.source.wrong(
                named,
                format!(
                    "no metric {:?} of {}: there are {KNOWN}; DEVICE is {}",
                    shorten(named.as_ref()),
                    self.runs[run].name,
                    devices.join(" or ")
                ),
            )),
        }
    }

    /// What the value must lie in. An order must hold.
    fn band(&self, row: &RowTable, is_order: bool) -> Result<[Option<f64>; 2], String> {
        let finite = |number: &Option<Spanned<f64>>| match number {
            Some(number) if !number.as_ref().is_finite() => Err(self.source.wrong(number, "not a number to compare with")),
            number => Ok(number.as_ref().map(|number| *number.as_ref())),
        };
        let (paper, low, high) = (finite(&row.paper)?, finite(&row.low)?, finite(&row.high)?);
        let (percent, plus_minus) = (finite(&row.percent)?, finite(&row.plus_minus)?);
        let place = row.percent.as_ref().or(row.plus_minus.as_ref());
        match (place, paper) {
            (None, _) if is_order && low.is_none() => Ok([Some(1.0), None]),
            (None, _) => match (&row.low, low, high) {
                (Some(place), Some(low), Some(high)) if low > high => {
                    Err(self.source.wrong(place, format!("low = {low} is above high = {high}: nothing lies between")))
                }
                _ => Ok([low, high]),
            },
            (Some(place), None) => Err(self.source.wrong(place, "a band around a paper's figure needs that figure: add `paper`")),
            (Some(place), Some(_)) if low.is_some() || high.is_some() || (percent.is_some() && plus_minus.is_some()) => {
                Err(self.source.wrong(place, "one band is enough: percent, plus_minus, or low and high"))
            }
            (Some(_), Some(paper)) => {
                let width = percent.map_or(plus_minus.unwrap_or(0.0), |percent| paper.abs() * percent / 100.0);
                Ok([Some(paper - width), Some(paper + width)])
            }
        }
    }
}

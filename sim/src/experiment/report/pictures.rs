//! Which pictures an experiment has: for each load the configurations beside each other, for each run its states over time, and for
//! processes their throughput over their number.

use super::draw::{self, Line, Strip};
use crate::back::model::Charge;
use crate::experiment::Experiment;
use crate::experiment::load::Ask;
use crate::experiment::measure::buckets::Buckets;
use crate::experiment::measure::{GateReport, Measured, POWER_STATES};
use crate::experiment::plan::{Kind, Run};
use tidegate_engine::spin::Cause;
use tidegate_engine::time::Duration;

/// Throughput is drawn in about so many stretches: finer ones show single requests.
const STRETCHES: usize = 96;
const RANKS: [(&str, u64); 5] = [("50 %", 500), ("90 %", 900), ("99 %", 990), ("99.9 %", 999), ("all", 1000)];
/// Colour and name of each of [`POWER_STATES`], and of the gate's.
const POWER: [(&str, &str); 5] =
    [("#0072b2", "active"), ("#dfe5ea", "idle"), ("#cc79a7", "spinning down"), ("#8c96a0", "standby"), ("#d55e00", "spinning up")];
const GATE: [(&str, &str); 3] = [("#c9ead9", "gate: normal"), ("#f4d58d", "gate: wait"), ("#a63603", "gate: destage")];
/// Of what starts a disk: the engine's causes where it has told the disk to stand still, else what the disk was to do.
const ENGINE_STARTS: [(&str, &str); 6] = [
    ("#0072b2", "start: read"),
    ("#d55e00", "start: write"),
    ("#a63603", "start: room in the log"),
    ("#cc79a7", "start: age"),
    ("#009e73", "start: command"),
    ("#8c96a0", "start: somebody else"),
];
const DISK_STARTS: [(&str, &str); 6] = [
    ("#0072b2", "start: host read"),
    ("#d55e00", "start: host write"),
    ("#009e73", "start: log"),
    ("#56b4e9", "start: fill"),
    ("#a63603", "start: destage"),
    ("#cc79a7", "start: cleaning"),
];
const SETS: [(&str, &str); 3] = [("#7a5195", "dirty sets"), ("#9ecae1", "clean sets"), ("#f7fbff", "free sets")];

/// One picture.
pub(super) struct Picture {
    /// Name of the file.
    pub file: String,
    /// The load it belongs to.
    pub load: String,
    pub svg: String,
}

/// A run with what was measured in it.
type Pair<'a> = (&'a Run, &'a Measured);

pub(super) fn all(experiment: &Experiment) -> Vec<Picture> {
    let pairs: Vec<Pair> = experiment.plan.runs.iter().zip(&experiment.measured).collect();
    let mut loads: Vec<&str> = Vec::new();
    for (run, _) in &pairs {
        if !loads.contains(&run.load.name.as_str()) {
            loads.push(&run.load.name);
        }
    }
    let mut pictures = Vec::new();
    for (title, is_write) in [("reads", false), ("writes", true)] {
        pictures.extend(scaling(title, is_write, &pairs));
    }
    for load in loads {
        let of_load: Vec<Pair> = pairs.iter().filter(|(run, _)| run.load.name == load).copied().collect();
        let mut add = |kind: &str, svg: String| {
            pictures.push(Picture { file: format!("{kind}-{load}.svg"), load: load.to_string(), svg });
        };
        add("throughput", throughput(load, &of_load));
        add("transferred", transferred(load, &of_load));
        add("latency", latency(load, &of_load));
        // Processes have no devices.
        let with_devices = |(run, _): &&Pair| !matches!(run.configuration.kind, Kind::Processes(_));
        if of_load.iter().any(|pair| with_devices(&pair)) {
            add("energy", energy(load, &of_load));
        }
        for (run, measured) in of_load.iter().filter(with_devices) {
            let (file, load) = (format!("states-{}.svg", run.name.replace('/', "-")), load.to_string());
            pictures.push(Picture { file, load, svg: states(run, measured) });
        }
    }
    pictures
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}

/// I/Os per second of each configuration, by the number of its processes; of loads of one kind of request, of which there are several.
fn scaling(title: &str, is_write: bool, pairs: &[Pair]) -> Option<Picture> {
    let [this, other] = if is_write { [Ask::Write, Ask::Read] } else { [Ask::Read, Ask::Write] };
    let mut lines: Vec<Line> = Vec::new();
    for (run, measured) in pairs {
        let counts = [this, other].map(|ask| measured.measure.latencies_of(Some(ask)).count());
        if !matches!(run.configuration.kind, Kind::Processes(_)) || counts[0] == 0 || counts[1] > 0 {
            continue;
        }
        let point = [run.load.lanes() as f64, counts[0] as f64 / seconds(measured.measure.duration()) / 1e3];
        let name = &run.configuration.name;
        match lines.iter_mut().find(|line| line.name == *name) {
            Some(line) => line.points.push(point),
            None => lines.push(Line { name: name.clone(), points: vec![point] }),
        }
    }
    lines.retain(|line| line.points.len() > 1);
    lines.iter_mut().for_each(|line| line.points.sort_by(|one, next| one[0].total_cmp(&next[0])));
    let svg = || draw::lines(&format!("{title}: by the number of processes"), ["processes", "thousand per second"], &lines);
    (!lines.is_empty()).then(|| Picture { file: format!("scaling-{title}.svg"), load: "processes".into(), svg: svg() })
}

fn throughput(load: &str, pairs: &[Pair]) -> String {
    let line = |(run, measured): &Pair| {
        let (end, width) = (seconds(measured.measure.duration()), seconds(measured.measure.throughput.width()));
        let cells: Vec<(Duration, &[u64; 1])> = measured.measure.throughput.cells().collect();
        let mut points = Vec::new();
        for stretch in cells.chunks(cells.len().div_ceil(STRETCHES).max(1)) {
            let (from, to) = (seconds(stretch[0].0), (seconds(stretch[stretch.len() - 1].0) + width).min(end));
            if to > from {
                let rate = stretch.iter().map(|(_, [bytes])| *bytes).sum::<u64>() as f64 / 1e6 / (to - from);
                points.extend([[from, rate], [to, rate]]);
            }
        }
        Line { name: run.configuration.name.clone(), points }
    };
    draw::lines(&format!("{load}: throughput over time"), ["seconds", "MB/s"], &pairs.iter().map(line).collect::<Vec<_>>())
}

fn transferred(load: &str, pairs: &[Pair]) -> String {
    let line = |(run, measured): &Pair| {
        let mut points = Vec::new();
        for (start, bytes, time) in measured.measure.marks.stretches(STRETCHES) {
            if time > Duration::ZERO {
                let rate = bytes as f64 / 1e6 / seconds(time);
                let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
                points.extend([[mib(start), rate], [mib(start + bytes), rate]]);
            }
        }
        Line { name: run.configuration.name.clone(), points }
    };
    let lines: Vec<Line> = pairs.iter().map(line).collect();
    draw::lines(&format!("{load}: throughput over what was transferred"), ["MiB read and written", "MB/s"], &lines)
}

fn latency(load: &str, pairs: &[Pair]) -> String {
    let line = |(run, measured): &Pair| {
        let latencies = measured.measure.latencies_of(None);
        (run.configuration.name.clone(), RANKS.iter().map(|(_, share)| latencies.per_mille(*share).0 as f64 / 1e3).collect())
    };
    let lines: Vec<(String, Vec<f64>)> = pairs.iter().map(line).collect();
    draw::ranks(&format!("{load}: latency of reads and writes"), &RANKS.map(|(name, _)| name), &lines)
}

fn energy(load: &str, pairs: &[Pair]) -> String {
    let bar = |(run, measured): &Pair| {
        let account = measured.account(None);
        (run.configuration.name.clone(), Charge::ALL.map(|charge| account.joules(charge)).to_vec())
    };
    let bars: Vec<(String, Vec<f64>)> = pairs.iter().map(bar).collect();
    draw::bars(&format!("{load}: energy of all devices, by cause"), "joules", &Charge::ALL.map(Charge::name), &bars)
}

fn states(run: &Run, measured: &Measured) -> String {
    let end = measured.measure.duration();
    let mut strips = Vec::new();
    if let Some(gate) = &measured.gate {
        strips.push(Strip { name: "gate".into(), states: GATE.to_vec(), cells: shares(&gate.states, end) });
        strips.push(Strip { name: "sets".into(), states: SETS.to_vec(), cells: sets(gate, end) });
    }
    for device in &measured.devices {
        let name = device.name.chars().take(10).collect();
        strips.push(Strip { name, states: POWER.to_vec(), cells: shares(&device.states, end) });
    }
    let engines = measured.gate.iter().map(|gate| (ENGINE_STARTS, &gate.starts));
    let disks = measured.devices.iter().map(|device| (DISK_STARTS, &device.starts));
    if let Some((causes, starts)) = engines.chain(disks).find(|(_, starts)| starts.sums().iter().sum::<u64>() > 0) {
        strips.push(Strip { name: "starts".into(), states: causes.to_vec(), cells: shares(starts, end) });
    }
    draw::strips(&format!("{}: states of gate and devices", run.name), seconds(end), &strips)
}

/// The share of each column in each bucket.
fn shares<const N: usize>(buckets: &Buckets<N>, end: Duration) -> Vec<(f64, f64, Vec<f64>)> {
    let width = buckets.width().0;
    let cell = |(start, cell): (Duration, &[u64; N])| {
        let to = Duration((start.0 + width).min(end.0));
        let all = cell.iter().sum::<u64>().max(1) as f64;
        (seconds(start), seconds(to), cell.iter().map(|&part| part as f64 / all).collect())
    };
    buckets.cells().filter(|(start, _)| start.0 < end.0).map(cell).collect()
}

/// Dirty, clean and free sets.
fn sets(gate: &GateReport, end: Duration) -> Vec<(f64, f64, Vec<f64>)> {
    let width = gate.sets_over_time.width().0;
    let cell = |(start, [free, dirty]): (Duration, &[u64; 2])| {
        let to = Duration((start.0 + width).min(end.0));
        let all = (to.0 - start.0).max(1) as f64 * f64::from(gate.sets);
        let (free, dirty) = (*free as f64 / all, *dirty as f64 / all);
        (seconds(start), seconds(to), vec![dirty, (1.0 - free - dirty).max(0.0), free])
    };
    gate.sets_over_time.cells().filter(|(start, _)| start.0 < end.0).map(cell).collect()
}

const _: () = assert!(POWER.len() == POWER_STATES.len() && ENGINE_STARTS.len() == Cause::ALL.len());

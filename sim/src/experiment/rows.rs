//! From what was measured to the rows of a report: each a number, beside the paper's, in its band or not.

use super::load::{Ask, Job};
use super::measure::Measured;
use super::plan::metric::{Metric, Rank};
use super::plan::{Plan, Run, Value};
use serde::Serialize;
use tidegate_engine::time::Duration;

/// The throughput is looked at in this many stretches when a knee is looked for.
const KNEE_STRETCHES: usize = 48;
/// Stretches of which the slowest one is told.
const EVEN_STRETCHES: usize = 64;

/// A row of a report. Its JSON form is exactly `name` to `within`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judged {
    pub name: String,
    pub metric: String,
    /// None where nothing was measured (no read, no energy).
    pub value: Option<f64>,
    pub paper: Option<f64>,
    pub low: Option<f64>,
    pub high: Option<f64>,
    /// None without a band.
    pub within: Option<bool>,
    #[serde(skip)]
    pub note: Option<String>,
}

/// The rows of a plan whose runs were measured.
pub fn judge(plan: &Plan, measured: &[Measured]) -> Vec<Judged> {
    let judge_row = |row: &super::plan::Row| {
        let value = value(plan, measured, &row.value).filter(|value| value.is_finite());
        let has_band = row.low.is_some() || row.high.is_some();
        let holds = |value: f64| row.low.is_none_or(|low| value >= low) && row.high.is_none_or(|high| value <= high);
        Judged {
            name: row.name.clone(),
            metric: row.metric.clone(),
            value,
            paper: row.paper,
            low: row.low,
            high: row.high,
            within: has_band.then(|| value.is_some_and(holds)),
            note: row.note.clone(),
        }
    };
    plan.rows.iter().map(judge_row).collect()
}

fn value(plan: &Plan, measured: &[Measured], value: &Value) -> Option<f64> {
    match value {
        Value::Of(run, metric) => number(&measured[*run], metric),
        Value::Ratio([over, under], metric) => {
            let under = number(&measured[*under], metric).filter(|under| *under != 0.0)?;
            Some(number(&measured[*over], metric)? / under)
        }
        Value::SumRatio([over, under], metric) => {
            let sum = |runs: &[usize]| runs.iter().map(|&run| number(&measured[run], metric)).sum::<Option<f64>>();
            Some(sum(over)? / sum(under).filter(|under| *under != 0.0)?)
        }
        Value::Difference([one, other], metric) => Some(number(&measured[*one], metric)? - number(&measured[*other], metric)?),
        Value::Slowdown(runs, metric) => {
            let numbers = runs.iter().map(|&run| number(&measured[run], metric)).collect::<Option<Vec<f64>>>()?;
            let (first, others) = numbers.split_first()?;
            let least = others.iter().copied().reduce(f64::min).filter(|least| *least != 0.0)?;
            Some(first / least)
        }
        Value::Order { runs, metric, slack } => {
            let numbers = runs.iter().map(|&run| number(&measured[run], metric)).collect::<Option<Vec<f64>>>()?;
            let holds = numbers.windows(2).all(|pair| match slack {
                None => pair[0] < pair[1],
                Some(percent) => pair[0] <= pair[1] * (1.0 + percent / 100.0),
            });
            Some(f64::from(u8::from(holds)))
        }
        Value::BreakEven { below, above, always_on } => break_even(plan, measured, [*below, *above], *always_on),
    }
}

fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}

fn number(measured: &Measured, metric: &Metric) -> Option<f64> {
    let measure = &measured.measure;
    let time = seconds(measure.duration());
    let requests = measure.requests() as f64;
    match metric {
        Metric::Seconds => Some(time),
        Metric::RequestsPerSecond => Some(requests / time),
        Metric::Iops => Some(measure.bytes as f64 / 4096.0 / time),
        Metric::Rate { from_mib: None, to_mib: None } => Some(measure.bytes as f64 / 1e6 / time),
        Metric::Rate { from_mib, to_mib } => {
            let from = from_mib.unwrap_or(0) << 20;
            let to = to_mib.map_or(measure.marks.end(), |mib| mib << 20).min(measure.marks.end());
            let took = seconds(measure.marks.time_of(to)) - seconds(measure.marks.time_of(from));
            (to > from).then(|| (to - from) as f64 / 1e6 / took)
        }
        Metric::Latency(ask, rank) => latency(measured, *ask, *rank),
        Metric::Unweighted => {
            let means = [Ask::Read, Ask::Write].iter().filter_map(|&ask| latency(measured, Some(ask), Rank::Mean)).collect::<Vec<_>>();
            (!means.is_empty()).then(|| means.iter().sum::<f64>() / means.len() as f64)
        }
        Metric::InFlight => latency(measured, None, Rank::Mean).map(|mean| requests / time * mean / 1e6),
        Metric::Commands(name, ask) => {
            let device = measured.devices.iter().find(|device| device.name == *name)?;
            Some(device.commands[*ask as usize] as f64)
        }
        Metric::Watts(device) => Some(measured.account(device.as_deref()).total_joules() / time),
        Metric::Joules(device) => Some(measured.account(device.as_deref()).total_joules()),
        Metric::RequestsPerJoule => Some(requests / measured.account(None).total_joules()),
        Metric::OpsPerSecond => Some(measure.operations? as f64 / time),
        Metric::OpsPerJoule => Some(measure.operations? as f64 / measured.account(None).total_joules()),
        Metric::JoulesPerOp => Some(measured.account(None).total_joules() / measure.operations? as f64),
        Metric::SpinUps => Some(measured.devices.iter().map(|device| device.spin_ups).sum::<u64>() as f64),
        Metric::HitPercent => {
            let gate = measured.gate.as_ref()?;
            Some(gate.hit_blocks as f64 * 100.0 / (gate.hit_blocks + gate.miss_blocks) as f64)
        }
        Metric::Evenness => evenness(measured),
        Metric::Knee { below } => knee(measured, *below),
        Metric::WriteAmplification => {
            let writes = measured.writes?;
            Some((writes.data + writes.metadata) as f64 / writes.client as f64)
        }
    }
}

fn latency(measured: &Measured, ask: Option<Ask>, rank: Rank) -> Option<f64> {
    let latencies = measured.measure.latencies_of(ask);
    let latency = match rank {
        Rank::Mean => latencies.mean(),
        Rank::Max => latencies.max(),
        Rank::PerMille(share) => latencies.per_mille(share),
    };
    (latencies.count() > 0).then(|| latency.0 as f64 / 1e3)
}

/// The slowest stretch beside all of them together, in per cent.
fn evenness(measured: &Measured) -> Option<f64> {
    let stretches = measured.measure.marks.stretches(EVEN_STRETCHES);
    let rate = |(_, bytes, time): &(u64, u64, Duration)| *bytes as f64 / seconds(*time);
    let all =
        stretches.iter().fold((0, 0, Duration::ZERO), |(_, sum, total), &(_, bytes, time)| (0, sum + bytes, Duration(total.0 + time.0)));
    let slowest = stretches.iter().map(rate).reduce(f64::min)?;
    Some(slowest * 100.0 / rate(&all))
}

/// MiB transferred before the first stretch that is slower than `below` MB/s.
fn knee(measured: &Measured, below: f64) -> Option<f64> {
    let stretches = measured.measure.marks.stretches(KNEE_STRETCHES);
    let is_slow = |&&(_, bytes, time): &&(u64, u64, Duration)| bytes as f64 / 1e6 / seconds(time) < below;
    let (start, _, _) = stretches.iter().find(is_slow)?;
    Some(*start as f64 / f64::from(1 << 20))
}

/// The idle time after each request of a run; zero if it has none.
pub fn gap(run: &Run) -> Duration {
    match run.load.jobs.first() {
        Some(Job::Made(made)) => made.pause.filter(|(burst, _)| *burst == 1).map_or(Duration::ZERO, |(_, pause)| pause),
        Some(Job::Replay(_) | Job::Files(_)) | None => Duration::ZERO,
    }
}

/// At which standby time a disk that spins down uses what one that stays on uses: the energy that a cycle saves grows evenly with its
/// gap, and the line through two gaps passes zero there.
fn break_even(plan: &Plan, measured: &[Measured], gaps: [usize; 2], always_on: usize) -> Option<f64> {
    let watts = number(&measured[always_on], &Metric::Watts(None))?;
    let saved = gaps.map(|run| {
        let requests = measured[run].measure.requests() as f64;
        let joules = measured[run].account(None).total_joules();
        (watts * seconds(measured[run].measure.duration()) - joules) / requests
    });
    let [short, long] = gaps.map(|run| seconds(gap(&plan.runs[run])));
    let timeout = seconds(plan.runs[gaps[0]].configuration.spin_down?);
    Some(short + (long - short) * -saved[0] / (saved[1] - saved[0]) - timeout)
}

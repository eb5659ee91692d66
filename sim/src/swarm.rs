//! The swarm: many seeds, each a run of its own, byte for byte the same every time and whatever the number of threads.
//! Every tenth seed is also a workload whose every crash point is tried; every fiftieth run is made twice, to see that it can be repeated.

use crate::crash_points::crash_points;
use crate::front::oracle::Broken;
use crate::plan::{Plan, Profile};
use crate::run::{Ended, run};
use serde::ser::{Serialize, SerializeStruct, Serializer};
use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Once, mpsc};
use tidegate_engine::Canary;
use tidegate_engine::fault_point::FaultPoints;

/// How many seeds, from which one on, and how long each.
#[derive(Clone, Debug)]
pub struct Options {
    pub first_seed: u64,
    pub seeds: u64,
    /// Client requests of a run.
    pub ops: u64,
    /// A deliberate bug that the swarm should find.
    pub canary: Option<Canary>,
    /// Stop at the first violation.
    pub stop_at_first: bool,
    pub threads: usize,
    pub profile: Profile,
}

impl Default for Options {
    fn default() -> Self {
        Options { first_seed: 0, seeds: 2_000, ops: 5_000, canary: None, stop_at_first: false, threads: 2, profile: Profile::Small }
    }
}

/// A seed in so many is a crash-point workload as well.
const CRASH_POINTS_EVERY: u64 = 10;
/// Requests of a crash-point workload, and up to how many age the cache before.
const CRASH_POINT_OPS: u64 = 100;
const CRASH_POINT_WARM: u64 = 1_500;
/// A run in so many is made twice.
const TWICE_EVERY: u64 = 50;

/// A promise that a run broke.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Violation {
    pub seed: u64,
    /// "run" or "crash points".
    pub part: &'static str,
    pub what: String,
    /// Requests made until then.
    pub step: u64,
}

/// How far a swarm has come.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    pub seeds: u64,
    pub of: u64,
    pub recoveries: u64,
    pub violations: usize,
}

/// What a swarm found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub seeds: u64,
    pub ops: u64,
    pub recoveries: u64,
    /// In the order of seeds.
    pub violations: Vec<Violation>,
    /// Of all runs together; does not depend on the number of threads.
    pub trace: u64,
    /// Error paths of the engine that were taken.
    pub faults: FaultPoints,
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut report = serializer.serialize_struct("Report", 7)?;
        report.serialize_field("seeds", &self.seeds)?;
        report.serialize_field("ops", &self.ops)?;
        report.serialize_field("recoveries", &self.recoveries)?;
        report.serialize_field("violations", &self.violations.len())?;
        report.serialize_field("trace", &format!("{:016x}", self.trace))?;
        report.serialize_field("fault_points", &self.faults.iter().map(|point| format!("{point:?}")).collect::<Vec<_>>())?;
        report.serialize_field("first", &self.violations.first())?;
        report.end()
    }
}

/// Runs the seeds; `progress` hears of each that has ended.
pub fn swarm(options: &Options, progress: &mut dyn FnMut(Progress)) -> Report {
    quiet_panics();
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let (sender, receiver) = mpsc::channel();
    let mut report = Report::default();
    std::thread::scope(|scope| {
        for _ in 0..options.threads.max(1) {
            let (sender, next, stop) = (sender.clone(), &next, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= options.seeds || sender.send(seed(options.first_seed + index, options)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        for of_seed in receiver {
            report.seeds += 1;
            report.ops += of_seed.ops;
            report.recoveries += of_seed.recoveries;
            report.trace = report.trace.wrapping_add(of_seed.trace);
            report.faults = report.faults.union(of_seed.faults);
            report.violations.extend(of_seed.violations);
            let (seeds, recoveries, violations) = (report.seeds, report.recoveries, report.violations.len());
            progress(Progress { seeds, of: options.seeds, recoveries, violations });
            if violations > 0 && options.stop_at_first {
                stop.store(true, Ordering::Relaxed);
            }
        }
    });
    report.violations.sort_by(|a, b| (a.seed, a.part).cmp(&(b.seed, b.part)));
    report
}

/// Everything that one seed is run for.
fn seed(seed: u64, options: &Options) -> Report {
    let mut report = Report { seeds: 1, ..Report::default() };
    let once = || guarded(|| run(plan(seed, options), None));
    let first = once();
    if seed.is_multiple_of(TWICE_EVERY) {
        let second = once();
        if first.trace != second.trace {
            let what = format!("the run cannot be repeated: traces {:016x} and {:016x}", first.trace, second.trace);
            report.violations.push(Violation { seed, part: "run", what, step: first.requests });
        }
    }
    report.add(seed, "run", first);
    if has_crash_points(seed, options) {
        report.add(seed, "crash points", guarded(|| crash_points_of(seed, options.canary)));
    }
    report
}

/// The plan of a seed's run.
pub fn plan(seed: u64, options: &Options) -> Plan {
    match options.profile {
        Profile::Small => Plan::draw(seed, options.ops, options.canary),
        Profile::Wide => Plan::draw_wide(seed, options.ops, options.canary),
        Profile::Refusing => Plan::draw_refusing(seed, options.ops, options.canary),
        Profile::Failing => Plan::draw_failing(seed, options.ops, options.canary),
    }
}

/// Is a crash-point workload of this seed tried as well?
pub fn has_crash_points(seed: u64, options: &Options) -> bool {
    options.profile == Profile::Small && seed.is_multiple_of(CRASH_POINTS_EVERY)
}

/// The crash-point workload of a seed.
pub fn crash_points_of(seed: u64, canary: Option<Canary>) -> Ended {
    let warm = crate::chance::Chance::new(seed, "warm").below(CRASH_POINT_WARM);
    crash_points(Plan::draw_for_crash_points(seed, CRASH_POINT_OPS, canary), warm)
}

impl Report {
    fn add(&mut self, seed: u64, part: &'static str, outcome: Ended) {
        self.ops += outcome.requests;
        self.recoveries += outcome.recoveries;
        self.trace = self.trace.wrapping_add(crate::chance::mix(seed ^ outcome.trace));
        self.faults = self.faults.union(outcome.faults);
        if let Some(Broken(what)) = outcome.broken {
            self.violations.push(Violation { seed, part, what, step: outcome.requests });
        }
    }
}

thread_local! {
    /// Where the last panic of this thread was, while it is being caught.
    static CAUGHT: RefCell<Option<Option<String>>> = const { RefCell::new(None) };
}

/// An assertion that fails in a run is a finding like any other.
pub fn guarded(run: impl FnOnce() -> Ended) -> Ended {
    CAUGHT.set(Some(None));
    let outcome = catch_unwind(AssertUnwindSafe(run));
    let message = CAUGHT.take().flatten();
    outcome.unwrap_or_else(|_| {
        let broken = Some(Broken(message.unwrap_or_else(|| "a panic".to_string())));
        Ended { requests: 0, recoveries: 0, trace: 0, faults: FaultPoints::default(), broken }
    })
}

/// With `RUST_BACKTRACE` in the environment: where in the engine it was.
fn frames() -> String {
    let trace = Backtrace::capture();
    if trace.status() != BacktraceStatus::Captured {
        return String::new();
    }
    let trace = trace.to_string();
    trace.lines().filter_map(|line| Some(&line[line.find("engine/src/")?..])).map(|place| format!("; {place}")).collect()
}

/// Keeps panics that [`guarded`] catches off the terminal, and their messages for the report.
pub fn quiet_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let caught = CAUGHT.with_borrow_mut(|caught| match caught {
                Some(message) => {
                    message.get_or_insert_with(|| format!("{}{}", info.to_string().replace('\n', " "), frames()));
                    true
                }
                None => false,
            });
            if !caught {
                before(info);
            }
        }));
    });
}

//! `tidegate sim`: the simulated world: seeds with crashes and faults, the story of one of them, and the experiments of plans.

use std::io::{BufWriter, ErrorKind, Write};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;

use serde_json::json;
use tidegate_daemon::Failure;
use tidegate_daemon::tell;
use tidegate_engine::fault_point::FaultPoint;
use tidegate_sim::experiment::plan::{self, Refused};
use tidegate_sim::experiment::{self, report};
use tidegate_sim::plan::Profile;
use tidegate_sim::replay::replay as tell;
use tidegate_sim::rot;
use tidegate_sim::swarm::{Options, Report, swarm as run};

use crate::args::{Replay, Rot, RunPlan, Swarm};
use crate::config::EX_CONFIG;
use crate::policies::tell_skipped;
use crate::progress::Progress;
use crate::{USAGE, say, units};

/// Exit code of a violation, and of a row outside its band.
const VIOLATION: u8 = 1;
/// Violations that are shown; one is enough to start with.
const SHOWN_MAX: usize = 10;

pub fn swarm(args: &Swarm) -> Result<ExitCode, Failure> {
    seeds_are(args.first_seed, args.seeds)?;
    let options = Options {
        first_seed: args.first_seed,
        seeds: args.seeds,
        ops: args.ops,
        threads: threads(),
        profile: args.profile,
        ..Options::default()
    };
    let started = Instant::now();
    let mut bar = Progress::new("swarm");
    let report = run(&options, &mut |so_far| {
        bar.show(so_far.seeds, so_far.of, &format!("{} recoveries, {} violations", so_far.recoveries, so_far.violations))
    });
    drop(bar);
    if args.json {
        say(&json!(report).to_string());
    } else {
        let time = units::show_seconds(started.elapsed().as_secs_f64());
        let (violations, trace) = (report.violations.len(), report.trace);
        say(&format!(
            "{} seeds, {} operations, {} recoveries, {} of {} error paths in {time}: {violations} violations (trace {trace:016x})",
            report.seeds,
            report.ops,
            report.recoveries,
            report.faults.iter().count(),
            FaultPoint::ALL.len()
        ));
    }
    show_violations(&report, args);
    Ok(if report.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(VIOLATION) })
}

/// On standard error, so that the report stays one object: what broke, and how to see it again.
fn show_violations(report: &Report, args: &Swarm) {
    let profile = if args.profile == Profile::Small { String::new() } else { format!(" --profile {}", args.profile.name()) };
    for violation in report.violations.iter().take(SHOWN_MAX) {
        let (seed, part, step) = (violation.seed, violation.part, violation.step);
        tell!("tidegate: seed {seed} ({part}, request {step}): {}", violation.what);
        tell!("tidegate: see it again with `tidegate sim replay {seed} --ops {}{profile}`", args.ops);
    }
    if report.violations.len() > SHOWN_MAX {
        tell!("tidegate: and {} more", report.violations.len() - SHOWN_MAX);
    }
}

pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// So many seeds from this one on.
fn seeds_are(first: u64, count: u64) -> Result<(), Failure> {
    if first.checked_add(count - 1).is_some() {
        return Ok(());
    }
    let what = format!("--first-seed: {count} seeds from {first} on are more than there are: the last one is {}; begin earlier", u64::MAX);
    Err(Failure::new(USAGE, what))
}

pub fn rot(args: &Rot) -> Result<ExitCode, Failure> {
    // As many as corruptions, at the very most.
    seeds_are(args.first_seed, args.corruptions)?;
    let options = rot::Options { corruptions: args.corruptions, first_seed: args.first_seed, threads: threads() };
    let started = Instant::now();
    let bar = Mutex::new(Progress::new("rot"));
    let report = rot::campaign(&options, &|done| {
        bar.lock().expect("no bar panics").show(done.min(args.corruptions), args.corruptions, "corruptions");
    });
    drop(bar);
    if args.json {
        say(&json!(report).to_string());
    } else {
        let time = units::show_seconds(started.elapsed().as_secs_f64());
        let (corruptions, starts, violations) = (report.corruptions, report.starts, report.violations.len());
        let mut lines = vec![format!("{corruptions} corruptions, {starts} starts in {time}: {violations} violations")];
        lines.extend(report.noticed.iter().map(|(how, count)| format!("{count:>9} noticed   {how}")));
        lines.extend(report.harmless.iter().map(|(why, count)| format!("{count:>9} harmless  {why}")));
        say(&lines.join("\n"));
    }
    for (seed, what) in report.violations.iter().take(SHOWN_MAX) {
        tell!("tidegate: seed {seed}: {what}");
    }
    Ok(if report.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(VIOLATION) })
}

pub fn list() -> Result<ExitCode, Failure> {
    let plans = plan::list();
    let width = plans.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines: Vec<String> = plans.iter().map(|(name, shows)| format!("{name:<width$}  {shows}")).collect();
    say(&lines.join("\n"));
    Ok(ExitCode::SUCCESS)
}

pub fn show(name: &str) -> Result<ExitCode, Failure> {
    say(plan::text(name).map_err(refusal)?.trim_end());
    Ok(ExitCode::SUCCESS)
}

fn refusal(refused: Refused) -> Failure {
    match refused {
        Refused::Unknown(what) => Failure::new(USAGE, what),
        Refused::Unreadable(what) => Failure::new(Failure::NO_INPUT, what),
        Refused::Wrong(what) => Failure::new(EX_CONFIG, what),
    }
}

pub fn run_plan(args: &RunPlan) -> Result<ExitCode, Failure> {
    let plan = plan::load(&args.plan).map_err(refusal)?;
    plan.skipped().into_iter().for_each(|(load, whole)| tell_skipped(&format!("load {load}"), whole));
    let mut bar = Progress::new("run");
    let ran = experiment::run(plan, args.seed, threads(), &mut |so_far| {
        bar.show(so_far.requests, so_far.of, &format!("{} of {} runs", so_far.runs, so_far.of_runs))
    });
    drop(bar);
    let experiment = ran.map_err(|broken| Failure::new(VIOLATION, broken))?;
    if let Some(folder) = &args.out {
        report::write(&experiment, folder).map_err(|why| Failure::new(Failure::NOT_CREATED, why))?;
    }
    say(&if args.json { report::json(&experiment) } else { report::table(&experiment) });
    Ok(if experiment.is_within() { ExitCode::SUCCESS } else { ExitCode::from(VIOLATION) })
}

pub fn replay(args: &Replay) -> Result<ExitCode, Failure> {
    let options = Options { ops: args.ops, profile: args.profile, ..Options::default() };
    let mut out = BufWriter::new(std::io::stdout().lock());
    let told = tell(args.seed, &options, &mut out).and_then(|broken| out.flush().map(|()| broken));
    match told {
        Ok(false) => Ok(ExitCode::SUCCESS),
        Ok(true) => Ok(ExitCode::from(VIOLATION)),
        // The reader has seen enough (`… | head`).
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        Err(error) => Err(Failure::new(Failure::IO, format!("standard output: {error}"))),
    }
}

//! Experiments as data. A plan ([`plan`]) names devices, what is put together from them, loads, and the figures of a paper; it is run in
//! virtual time ([`rig`]), measured ([`measure`]), compared ([`rows`]) and told ([`report`]).
//!
//! The same plan and seed give the same bytes of report on every machine: time and energy are whole numbers, randomness comes from the
//! seed, and floating point is used only at the end, for division.

pub mod load;
pub mod measure;
pub mod options;
pub mod plan;
pub mod report;
pub mod rig;
pub mod rows;
pub mod units;

use measure::Measured;
use plan::{Plan, Run};
use rows::Judged;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};

/// A plan that was run.
pub struct Experiment {
    pub plan: Plan,
    pub seed: u64,
    /// One for each run of the plan.
    pub measured: Vec<Measured>,
    pub rows: Vec<Judged>,
}

impl Experiment {
    /// Is every row that has a band inside it?
    pub fn is_within(&self) -> bool {
        self.rows.iter().all(|row| row.within != Some(false))
    }
}

/// How far an experiment has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Requests answered, and all of them.
    pub requests: u64,
    pub of: u64,
    pub runs: usize,
    pub of_runs: usize,
}

enum Told {
    Answers(u64),
    Ended(usize, Box<Result<Measured, String>>),
}

/// Runs a plan; its runs know nothing of each other, so that `threads` of them go on at once. The error names the run in which the engine
/// did what it must not do.
pub fn run(plan: Plan, seed: u64, threads: usize, tell: &mut dyn FnMut(Progress)) -> Result<Experiment, String> {
    let of = plan.runs.iter().map(Run::requests).sum();
    let mut progress = Progress { requests: 0, of, runs: 0, of_runs: plan.runs.len() };
    let mut results: Vec<Option<Result<Measured, String>>> = plan.runs.iter().map(|_| None).collect();
    let next = AtomicUsize::new(0);
    let (sender, told) = channel();
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, plan.runs.len().max(1)) {
            let (sender, plan, next) = (sender.clone(), &plan, &next);
            scope.spawn(move || work(plan, seed, next, &sender));
        }
        drop(sender);
        for news in told {
            match news {
                Told::Answers(count) => progress.requests = (progress.requests + count).min(of),
                Told::Ended(index, result) => {
                    progress.runs += 1;
                    results[index] = Some(*result);
                }
            }
            tell(progress);
        }
    });
    let mut measured = Vec::new();
    for (run, result) in plan.runs.iter().zip(results) {
        measured.push(result.unwrap_or_else(|| Err("it never ended".into())).map_err(|why| format!("run {}: {why}", run.name))?);
    }
    let rows = rows::judge(&plan, &measured);
    Ok(Experiment { plan, seed, measured, rows })
}

fn work(plan: &Plan, seed: u64, next: &AtomicUsize, sender: &Sender<Told>) {
    loop {
        let index = next.fetch_add(1, Ordering::Relaxed);
        let Some(run) = plan.runs.get(index) else { return };
        let mut untold = run.requests();
        let mut told = |count: u64| {
            untold = untold.saturating_sub(count);
            drop(sender.send(Told::Answers(count)));
        };
        let result = rig::run(run, seed, &mut told);
        drop(sender.send(Told::Answers(untold)));
        if sender.send(Told::Ended(index, Box::new(result))).is_err() {
            return;
        }
    }
}

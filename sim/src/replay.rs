//! Replay: the readable story of one seed's run. The violation, if there is one, comes last, with the history of the atom.

use crate::front::oracle::Broken;
use crate::run::{Ended, run};
use crate::swarm::{Options, crash_points_of, guarded, has_crash_points, plan, quiet_panics};
use std::cell::RefCell;
use std::io::{self, Write};

/// Tells the story of `seed` to `out`. Returns whether a promise was broken.
pub fn replay(seed: u64, options: &Options, out: &mut dyn Write) -> io::Result<bool> {
    quiet_panics();
    let plan = plan(seed, options);
    let geometry = &plan.config.geometry;
    writeln!(out, "seed {seed}: {:?}, {} requests, mix \"{}\"", plan.kind, plan.requests, plan.mix.name)?;
    writeln!(out, "  {geometry:?}")?;
    writeln!(out, "  {:?}", plan.mix)?;
    writeln!(out, "  faults of the cache: {:?}\n  faults of the origin: {:?}", plan.rates[0], plan.rates[1])?;
    writeln!(out, "      seconds  → to the engine, ← to a client, indented: operations on devices; spans in atoms")?;
    // The reader cannot return an error through the run: the first one is kept and told at the end.
    let told = RefCell::new((out, Ok(())));
    let mut reader = |lines: &[String]| {
        let (out, result) = &mut *told.borrow_mut();
        for line in lines {
            if result.is_ok() {
                *result = writeln!(out, "{line}");
            }
        }
    };
    let ended = guarded(|| run(plan, Some(&mut reader)));
    let (out, result) = told.into_inner();
    result?;
    let mut broken = conclude("run", &ended, out)?;
    if !broken && has_crash_points(seed, options) {
        broken = conclude("crash points", &guarded(|| crash_points_of(seed, options.canary)), out)?;
    }
    Ok(broken)
}

fn conclude(part: &str, ended: &Ended, out: &mut dyn Write) -> io::Result<bool> {
    writeln!(out, "{part}: {} requests, {} recoveries, trace {:016x}", ended.requests, ended.recoveries, ended.trace)?;
    match &ended.broken {
        None => writeln!(out, "{part}: every promise was kept")?,
        Some(Broken(what)) => {
            writeln!(out, "{part}: VIOLATION")?;
            what.split("; ").try_for_each(|clause| writeln!(out, "  {clause}"))?;
        }
    }
    Ok(ended.broken.is_some())
}

//! `tidegate sim policies` and `tidegate sim curve`: replacement on published traces.

use std::path::Path;
use std::process::ExitCode;

use tidegate_daemon::Failure;
use tidegate_sim::experiment::load::trace::Format;
use tidegate_sim::policies::comparison::{self, compare};
use tidegate_sim::policies::{curve, load};

use crate::args::{Policies, TraceCurve};
use crate::progress::Progress;
use crate::sim::threads;
use crate::{USAGE, say};

pub fn policies(args: &Policies) -> Result<ExitCode, Failure> {
    // What is wrong with the flags is said before the first trace has taken its time.
    let formats: Vec<Format> = args.traces.iter().map(|trace| format_of(trace, args.format)).collect::<Result<_, _>>()?;
    let mut compared = Vec::new();
    for (trace, format) in args.traces.iter().zip(formats) {
        let accesses = load(trace, format).map_err(|why| Failure::new(Failure::NO_INPUT, why))?;
        let mut bar = Progress::new("policies");
        let name = trace.display().to_string();
        let deferred = args.deferred.map(|notes| notes as usize);
        let found = compare(&name, &accesses, &args.sizes, deferred, threads(), &mut |done, of| bar.show(done as u64, of as u64, &name));
        drop(bar);
        if !args.json {
            say(&comparison::table(&found));
        }
        compared.push(found);
    }
    if args.json {
        say(&comparison::json(&compared));
    } else if compared.len() > 1 {
        say(&comparison::summary_table(&compared));
    }
    Ok(ExitCode::SUCCESS)
}

pub fn curve(args: &TraceCurve) -> Result<ExitCode, Failure> {
    let format = format_of(&args.trace, args.format)?;
    let accesses = load(&args.trace, format).map_err(|why| Failure::new(Failure::NO_INPUT, why))?;
    let drawn = curve::draw(&args.trace.display().to_string(), &accesses, args.sample, args.points);
    say(&if args.json { curve::json(&drawn) } else { curve::table(&drawn) });
    Ok(ExitCode::SUCCESS)
}

/// As it was asked for, or else by the file's name.
fn format_of(trace: &Path, asked: Option<Format>) -> Result<Format, Failure> {
    // Of a file that is not there, its name is not what is wrong.
    std::fs::metadata(trace).map_err(|error| Failure::new(Failure::NO_INPUT, format!("{}: {error}", trace.display())))?;
    asked.or_else(|| Format::of_name(trace)).ok_or_else(|| {
        let names = Format::ALL.map(|(name, _)| name).join(", ");
        Failure::new(USAGE, format!("{}: its name does not tell its format; say `--format` with one of {names}", trace.display()))
    })
}

//! `tidegate sim policies` and `tidegate sim curve`: replacement on published traces.

use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;

use tidegate_daemon::{Failure, tell};
use tidegate_sim::experiment::load::trace::{Format, Refused, Whole};
use tidegate_sim::experiment::load::unpack::regular;
use tidegate_sim::policies::comparison::{self, compare};
use tidegate_sim::policies::{block_bytes, curve, load};

use crate::args::{Policies, TraceCurve};
use crate::progress::Progress;
use crate::sim::threads;
use crate::{USAGE, say};

pub fn policies(args: &Policies) -> Result<ExitCode, Failure> {
    // What is wrong with the flags is said before the first trace has taken its time.
    let formats: Vec<Format> = args.traces.iter().map(|trace| format_of(trace, args.format)).collect::<Result<_, _>>()?;
    for (trace, &format) in args.traces.iter().zip(&formats) {
        let block_bytes = bytes_of_a_block(trace, format, args.page)?;
        if let Some(why) = args.sizes.iter().find_map(|size| size.unfit(block_bytes)) {
            return Err(Failure::new(USAGE, format!("{}: {why}", trace.display())));
        }
    }
    let mut compared = Vec::new();
    for (trace, format) in args.traces.iter().zip(formats) {
        let (accesses, whole) = load(trace, format).map_err(refusal)?;
        let name = trace.display().to_string();
        tell_skipped(&name, whole);
        let block_bytes = bytes_of_a_block(trace, format, args.page)?;
        let mut bar = Progress::new("policies");
        let deferred = args.deferred.map(|notes| notes as usize);
        let mut progress = |done, of| bar.show(done as u64, of as u64, &name);
        let found = compare(&name, &accesses, block_bytes, &args.sizes, deferred, threads(), &mut progress);
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
    let block_bytes = bytes_of_a_block(&args.trace, format, args.page)?;
    let name = args.trace.display().to_string();
    let (found, whole) = curve::of_file(&args.trace, format, args.sample).map_err(refusal)?;
    tell_skipped(&name, whole);
    let drawn = curve::draw(&name, found, block_bytes, args.points).map_err(|why| Failure::new(USAGE, why))?;
    say(&if args.json { curve::json(&drawn) } else { curve::table(&drawn) });
    Ok(ExitCode::SUCCESS)
}

fn bytes_of_a_block(trace: &Path, format: Format, page: Option<u64>) -> Result<Option<u64>, Failure> {
    if page.is_some() && !format.has_pages() {
        let what = format!("{}: --page is for arc, keys and keys32: {} has no pages", trace.display(), format.name());
        return Err(Failure::new(USAGE, what));
    }
    Ok(block_bytes(format, page))
}

/// On standard error, so that what was found stays one object.
pub fn tell_skipped(name: &str, whole: Whole) {
    whole.notes(name).iter().for_each(|note| tell!("tidegate: {note}"));
}

fn refusal(refused: Refused) -> Failure {
    match refused {
        Refused::Unreadable(what) => Failure::new(Failure::NO_INPUT, what),
        Refused::Wrong(what) => Failure::new(Failure::DAMAGED, what),
    }
}

/// As it was asked for, or else by the file's name.
fn format_of(trace: &Path, asked: Option<Format>) -> Result<Format, Failure> {
    // Of a file that is not there, its name is not what is wrong.
    regular(trace).map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied => {
            Failure::new(Failure::PERMISSION, format!("{}: {error}; run as a user who may read it", trace.display()))
        }
        _ => Failure::new(Failure::NO_INPUT, format!("{}: {error}", trace.display())),
    })?;
    asked.or_else(|| Format::of_name(trace)).ok_or_else(|| {
        let names = Format::ALL.map(|(name, _)| name).join(", ");
        Failure::new(USAGE, format!("{}: its name does not tell its format; say `--format` with one of {names}", trace.display()))
    })
}

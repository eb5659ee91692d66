//! `tidegate check`: the damage in a cache, or in those of all volumes of a configuration, for people or for programs.

use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};
use tidegate_daemon::Failure;
use tidegate_daemon::advice::Reach;
use tidegate_daemon::check::{Contents, PLACES_MOST, Report, check, check_contents};

use crate::args::{Check, DIR};
use crate::progress::Progress;
use crate::{say, units, up};

/// Exit code when there is damage.
const DAMAGE: u8 = 1;

pub fn run(args: &Check) -> Result<ExitCode, Failure> {
    let found = look(args)?;
    match &found[..] {
        [Looked { report: Err(failure), .. }] => return Err(failure.clone()),
        [only] => say(&if args.json { only.json().to_string() } else { only.text() }),
        several if args.json => say(&json!({ "volumes": several.iter().map(Looked::json).collect::<Vec<_>>() }).to_string()),
        several => {
            let one = |looked: &Looked| format!("name     {}\n{}", looked.volume.as_deref().unwrap_or("-"), looked.text());
            say(&several.iter().map(one).collect::<Vec<_>>().join("\n\n"));
        }
    }
    Ok(ExitCode::from(found.iter().map(Looked::code).max().expect("something was looked at")))
}

/// At one cache, or at those of a folder: one that cannot be looked at (it is served, it was detached) keeps nobody from hearing of the others.
fn look(args: &Check) -> Result<Vec<Looked>, Failure> {
    let look = |cache: &Path, reach: &Reach, volume: Option<&str>| Looked {
        volume: volume.map(str::to_owned),
        report: found(cache, args.data).map_err(|failure| failure.reaching(reach)),
    };
    if let Some(cache) = &args.cache {
        return Ok(vec![look(cache, &Reach { cache: Some(cache.clone()), ..Reach::default() }, None)]);
    }
    let folder = up::absolute(args.dir.as_deref().unwrap_or(Path::new(DIR)))?;
    let config = up::config_of(&folder)?;
    let places = config.places(args.volume.as_deref()).map_err(|message| Failure::new(crate::USAGE, message))?;
    let of = |place: usize| &config.volumes[place];
    Ok(places.into_iter().map(of).map(|volume| look(&volume.cache, &volume.reach, Some(&volume.name))).collect())
}

fn found(cache: &Path, data: bool) -> Result<Report, Failure> {
    if !data {
        return check(cache);
    }
    let mut progress = Progress::new("check");
    check_contents(cache, &mut |done, all| progress.show(done, all, ""))
}

/// What was found in a cache, or why nothing could be.
struct Looked {
    /// Of which volume, where that is known.
    volume: Option<String>,
    report: Result<Report, Failure>,
}

impl Looked {
    fn json(&self) -> Value {
        let mut value = match &self.report {
            Ok(report) => json!(report),
            Err(failure) => json!({ "error": failure.message }),
        };
        if let Some(name) = &self.volume {
            value["name"] = json!(name);
        }
        value
    }

    fn text(&self) -> String {
        match &self.report {
            Ok(report) => describe(report),
            Err(failure) => format!("error    {failure}"),
        }
    }

    fn code(&self) -> u8 {
        match &self.report {
            Ok(report) if report.is_sound() && report.lost_blocks == 0 => 0,
            Ok(_) => DAMAGE,
            Err(failure) => failure.code,
        }
    }
}

fn describe(report: &Report) -> String {
    let mut lines = vec![
        format!("volume   {}, blocks of {}", units::show_size(report.volume_bytes), units::show_size(report.block_bytes)),
        format!("sets     {} ({} with dirty blocks)", report.sets, report.dirty_sets),
        format!(
            "blocks   {} ({} newer than the origin); {} zero ranges, {} lost blocks",
            report.live_blocks, report.dirty_blocks, report.zero_ranges, report.lost_blocks
        ),
        format!("journal  {} groups to replay; {} unfinished ones at its end are cut off", report.groups, report.cut_groups),
    ];
    for damage in &report.damage {
        let weight = if damage.fatal { "cannot be served" } else { "repaired at the next start" };
        lines.push(format!("damage   {} ({weight})", damage.what));
    }
    if report.lost_blocks > 0 {
        lines.push(format!("damage   {} blocks are lost: errors until they are written anew", report.lost_blocks));
    }
    if let Some(contents) = &report.contents {
        lines.extend(describe_contents(contents));
    }
    if report.lost_blocks == 0 && report.is_sound() {
        let read = match &report.contents {
            Some(contents) => format!("all {} blocks were read", contents.read_blocks),
            None => "what the blocks hold was not read (--data does)".to_owned(),
        };
        lines.push(format!("no damage; {read}"));
    }
    lines.join("\n")
}

fn describe_contents(contents: &Contents) -> Vec<String> {
    let mut lines = Vec::new();
    if contents.damaged_clean_blocks > 0 {
        lines.push(format!("damage   {} blocks do not read as they were written; the origin has them", contents.damaged_clean_blocks));
    }
    if contents.damaged_dirty_blocks > 0 {
        lines.push(format!(
            "damage   {} blocks newer than the origin do not read as they were written: errors until they are written anew",
            contents.damaged_dirty_blocks
        ));
        lines.extend(contents.damaged_dirty.iter().map(|place| format!("         {} bytes from byte {} on", place.bytes, place.offset)));
        if contents.damaged_dirty.len() == PLACES_MOST {
            lines.push("         and perhaps more".to_owned());
        }
    }
    lines
}

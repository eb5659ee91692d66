//! `tidegate check`: the damage in a cache, or in those of all volumes of a configuration, for people or for programs.

use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};
use tidegate_daemon::Failure;
use tidegate_daemon::advice::Reach;
use tidegate_daemon::check::{Report, check};

use crate::args::Check;
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
        report: check(cache).map_err(|failure| failure.reaching(reach)),
    };
    if let Some(cache) = &args.cache {
        return Ok(vec![look(cache, &Reach { cache: Some(cache.clone()), ..Reach::default() }, None)]);
    }
    let folder = up::absolute(args.dir.as_deref().expect("one of both is required"))?;
    let config = up::config_of(&folder)?;
    let places = config.places(args.volume.as_deref()).map_err(|message| Failure::new(crate::USAGE, message))?;
    let of = |place: usize| &config.volumes[place];
    Ok(places.into_iter().map(of).map(|volume| look(&volume.cache, &volume.reach, Some(&volume.name))).collect())
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
    } else if report.is_sound() {
        // The scrubber of a daemon reads it all.
        lines.push("no damage; what the blocks hold was not read".to_owned());
    }
    lines.join("\n")
}

//! `tidegate check`: the damage in a cache, or in those of all volumes of a configuration, for people or for programs.

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
    let reports: Vec<(Option<String>, Report)> = match (&args.cache, &args.dir) {
        (Some(cache), _) => {
            let reach = Reach { cache: Some(cache.clone()), ..Reach::default() };
            vec![(None, check(cache).map_err(|failure| failure.reaching(&reach))?)]
        }
        (None, dir) => {
            let folder = up::absolute(dir.as_deref().expect("one of both is required"))?;
            let config = up::config_of(&folder)?;
            let places = config.places(args.volume.as_deref()).map_err(|message| Failure::new(crate::USAGE, message))?;
            let of = |place: usize| {
                let volume = &config.volumes[place];
                let report = check(&volume.cache).map_err(|failure| failure.reaching(&volume.reach))?;
                Ok((Some(volume.name.clone()), report))
            };
            places.into_iter().map(of).collect::<Result<_, Failure>>()?
        }
    };
    let is_plural = reports.len() > 1;
    if args.json {
        let mut all: Vec<Value> = reports.iter().map(named).collect();
        say(&if is_plural { json!({ "volumes": all }) } else { all.remove(0) }.to_string());
    } else {
        let text = |(name, report): &(Option<String>, Report)| match name {
            Some(name) if is_plural => format!("name     {name}\n{}", describe(report)),
            _ => describe(report),
        };
        say(&reports.iter().map(text).collect::<Vec<_>>().join("\n\n"));
    }
    Ok(if reports.iter().all(|(_, report)| report.is_sound()) { ExitCode::SUCCESS } else { ExitCode::from(DAMAGE) })
}

/// With the name of its volume, where that is known.
fn named((name, report): &(Option<String>, Report)) -> Value {
    let mut value = json!(report);
    if let Some(name) = name {
        value["name"] = json!(name);
    }
    value
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
    if report.is_sound() {
        lines.push("no damage".to_owned());
    }
    lines.join("\n")
}

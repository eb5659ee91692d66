//! `tidegate check`: the damage in a cache, for people or for programs.

use std::process::ExitCode;

use serde_json::json;
use tidegate_daemon::Failure;
use tidegate_daemon::check::{Report, check};

use crate::args::Check;
use crate::{say, units};

/// Exit code when there is damage.
const DAMAGE: u8 = 1;

pub fn run(args: &Check) -> Result<ExitCode, Failure> {
    let report = check(&args.cache)?;
    if args.json {
        say(&json!(report).to_string());
    } else {
        say(&describe(&report));
    }
    Ok(if report.is_sound() { ExitCode::SUCCESS } else { ExitCode::from(DAMAGE) })
}

fn describe(report: &Report) -> String {
    let mut lines = vec![
        format!("volume   {}, blocks of {}", units::show_size(report.volume_bytes), units::show_size(report.block_bytes)),
        format!("sets     {} ({} with dirty blocks)", report.sets, report.dirty_sets),
        format!("blocks   {} ({} newer than the origin); {} zero ranges", report.live_blocks, report.dirty_blocks, report.zero_ranges),
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

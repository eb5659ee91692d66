//! `tidegate probe`, and `tidegate sim probe`: what a device is like inside, for people (with pictures) or for programs.

mod picture;

use std::process::ExitCode;

use serde_json::{Value, json};
use tidegate_daemon::{Failure, probe as device};
use tidegate_engine::block::ATOM_BYTES;
use tidegate_engine::device_probe::{ATOMS_MIN, Beside, Finding, Findings, Interleave, Knee, Latencies, Parts, Stretches};
use tidegate_engine::time::Duration;
use tidegate_sim::back::model::Spec;
use tidegate_sim::probe::{Noise, probe as try_model};

use crate::args::{Probe, ProbeModel};
use crate::progress::Progress;
use crate::units::{show_latency, show_size};
use crate::{USAGE, say};

pub fn run(args: &Probe) -> Result<ExitCode, Failure> {
    let mut bar = Progress::new("probe");
    let seconds = args.time.as_secs_f64();
    let report = device::probe(&args.device, args.overwrite, args.time, args.seed, &mut |stage, left| {
        bar.show_left(100 - left, 100, Some(seconds * left as f64 / 100.0), stage);
    });
    drop(bar);
    let report = report?;
    let path = args.device.display();
    let driver = report.driver.unwrap_or_else(|| "unknown driver".to_owned());
    if args.json {
        let mut object = to_json(&report.findings);
        object["device"] = json!(path.to_string());
        object["bytes"] = json!(report.bytes);
        object["driver"] = json!(driver);
        say(&object.to_string());
        return Ok(ExitCode::SUCCESS);
    }
    let on = if report.is_file { format!("a file on {driver}: distances are those of the file") } else { driver.clone() };
    let mut lines = vec![format!("device       {path}: {}, {on}", show_size(report.bytes))];
    if is_virtual(&driver) {
        lines
            .push(format!("             {driver} is no drive: what is below it (a host, its cache, another file) is seen only through it"));
    }
    lines.push(describe(&report.findings));
    say(&lines.join("\n"));
    Ok(ExitCode::SUCCESS)
}

/// Drivers of disks that somebody else makes of something.
fn is_virtual(driver: &str) -> bool {
    ["virtio", "xen", "vbd", "loop", "nbd", "zram", "ram", "brd", "dm-", "md", "hv_"].iter().any(|name| driver.starts_with(name))
}

pub fn model(args: &ProbeModel) -> Result<ExitCode, Failure> {
    let wrong = |why: String| Failure::new(USAGE, why);
    let spec = Spec::load(&args.model).map_err(wrong)?.aged(u64::from(args.filled), args.overwritten);
    let spec = spec.clone().laid_out(args.layout).unwrap_or(spec);
    let (has, needed) = (spec.capacity(), ATOMS_MIN * ATOM_BYTES);
    if has < needed {
        return Err(wrong(format!("{}: it has {} MiB; at least {} are needed", args.model, has >> 20, needed >> 20)));
    }
    let noise = Noise { percent: u64::from(args.noise), held_up: if args.noise > 0 { 100 } else { 0 } };
    let findings = try_model(&spec, noise, args.overwrite, args.time, args.seed);
    say(&if args.json { to_json(&findings).to_string() } else { format!("model        {}\n{}", args.model, describe(&findings)) });
    Ok(ExitCode::SUCCESS)
}

fn describe(found: &Findings) -> String {
    let Findings { alone, alone_p90, alone_near, interleave, stretches, parts, knee, beside, .. } = found;
    let mut lines = vec![format!(
        "alone        a read of 4 KiB takes {} (nine of ten at most {}); near the one before it {}",
        show_latency(alone.0),
        show_latency(alone_p90.0),
        show_latency(alone_near.0)
    )];
    let mut finding = |name: &str, (what, sure): (String, Option<f64>)| {
        let sure = sure.map_or(String::new(), |sure| format!("; sure: {:.0}%", 100.0 * sure));
        lines.push(format!("{name:<13}{what}{sure}"));
    };
    let spread = |Interleave { piece_bytes, width, cost, .. }: &Interleave| {
        let (piece, period, cost) = (show_size(*piece_bytes), show_size(piece_bytes * width), show_latency(cost.0));
        format!("{piece} on each of {width} parts in turn, {period} in all; two reads that meet take {cost} longer")
    };
    let equal = |Stretches { count, cost }: &Stretches| {
        format!("{count} equal stretches side by side; two reads in one take {} longer on average", show_latency(cost.0))
    };
    let by_chance = |Parts { count, low, high, cost }: &Parts| {
        format!("{count:.1} ({low:.1} to {high:.1}), by how often two random reads meet: then they take {} longer", show_latency(cost.0))
    };
    let depth = |Knee { depth, low, high, power }: &Knee| {
        format!("depth {depth:.0} ({low:.0} to {high:.0}) has 95% of the greatest throughput; depth {power} has most for its latency")
    };
    finding("interleave", text(interleave, spread));
    finding("stretches", text(stretches, equal));
    finding("parts", text(parts, by_chance));
    finding("knee", text(knee, depth));
    let (what, _) = text(beside, suffering);
    finding("beside writes", (format!(" {what}"), None));
    lines.push(picture::pairs(found));
    lines.push(picture::curve(&found.curve));
    lines.join("\n")
}

fn suffering(beside: &Beside) -> String {
    let show = |of: Option<Latencies>| {
        of.map_or("nothing".to_owned(), |Latencies { median, p99, .. }| format!("{}, p99 {}", show_latency(median.0), show_latency(p99.0)))
    };
    let (alone, with, writes) = (show(beside.alone), show(beside.beside), show(beside.writes));
    format!("reads at depth 4 take {alone}; beside writes of 64 KiB at depth 4 {with} (these {writes})")
}

fn text<T>(finding: &Finding<T>, show: impl Fn(&T) -> String) -> (String, Option<f64>) {
    match finding {
        Finding::Seen { what, sure } => (show(what), Some(*sure)),
        Finding::Unseen(why) => (format!("cannot be seen: {why}"), None),
    }
}

fn to_json(found: &Findings) -> Value {
    fn of<T>(finding: &Finding<T>, show: impl Fn(&T) -> Value) -> Value {
        match finding {
            Finding::Seen { what, sure } => {
                let mut value = show(what);
                value["sure"] = json!(sure);
                value
            }
            Finding::Unseen(why) => json!({ "unseen": why.to_string() }),
        }
    }
    let latencies = |of: Option<Latencies>| {
        of.map(|Latencies { count, median: Duration(median), p99: Duration(p99) }| json!({ "count": count, "median_ns": median, "p99_ns": p99 }))
    };
    let teeth =
        found.pairs.iter().map(|tooth| json!({ "distance_bytes": tooth.distance_bytes, "extra_ns": tooth.extra, "pairs": tooth.pairs }));
    let curve = found
        .curve
        .iter()
        .map(|point| json!({ "depth": point.depth, "reads_per_second": point.throughput, "mean_ns": point.mean.0, "p99_ns": point.p99.0 }));
    json!({
        "alone_ns": found.alone.0,
        "alone_p90_ns": found.alone_p90.0,
        "alone_near_ns": found.alone_near.0,
        "width": found.width(),
        "interleave": of(&found.interleave, |seen| json!({ "piece_bytes": seen.piece_bytes, "width": seen.width, "cost_ns": seen.cost.0 })),
        "stretches": of(&found.stretches, |seen| json!({ "count": seen.count, "cost_ns": seen.cost.0 })),
        "parts": of(&found.parts, |seen| json!({ "count": seen.count, "low": seen.low, "high": seen.high, "cost_ns": seen.cost.0 })),
        "knee": of(&found.knee, |seen| json!({ "depth": seen.depth, "low": seen.low, "high": seen.high, "power_depth": seen.power })),
        "beside_writes": of(&found.beside, |seen| {
            json!({ "alone": latencies(seen.alone), "beside": latencies(seen.beside), "writes": latencies(seen.writes) })
        }),
        "pairs": teeth.collect::<Vec<_>>(),
        "curve": curve.collect::<Vec<_>>(),
    })
}

//! `tidegate status`: what a running volume does, for people or for programs.

use std::fmt::Write as _;
use std::process::ExitCode;

use serde_json::Value;
use tidegate_daemon::Failure;
use tidegate_daemon::advice::Reach;
pub use tidegate_daemon::control::NO_ANSWER;
use tidegate_daemon::control::{Verb, ask};

use crate::args::{Of, Status};
use crate::{say, units, up};

pub fn run(args: &Status) -> Result<ExitCode, Failure> {
    let status = asked(&args.of, Verb::Status)?;
    say(&if args.json { status.to_string() } else { all(&status) });
    Ok(ExitCode::SUCCESS)
}

/// What the daemon answers.
pub fn asked(of: &Of, verb: Verb) -> Result<Value, Failure> {
    let folder = up::absolute(&of.dir)?;
    let reach = Reach { dir: Some(folder.clone()), volume: of.volume.clone(), ..Reach::default() };
    // Where the daemon of a folder listens: as its configuration says, or beside it.
    let control = up::config_of(&folder)?.control;
    ask(&control, verb, of.volume.as_deref()).map_err(|failure| failure.reaching(&reach))
}

/// The volumes that a status is about.
pub fn volumes(status: &Value) -> &[Value] {
    status["volumes"].as_array().map_or(std::slice::from_ref(status), Vec::as_slice)
}

/// Why a volume is not served any more, in words; nothing while it is.
pub fn gone(status: &Value) -> Option<String> {
    match status["phase"].as_str() {
        Some("failed") => Some(format!("failed ({})", status["failure"].as_str().unwrap_or("-"))),
        Some("stopped") => Some("stopped".to_owned()),
        _ => None,
    }
}

/// One block of lines for each volume.
fn all(status: &Value) -> String {
    let volumes = volumes(status);
    let one = |status: &Value| {
        let name = if volumes.len() > 1 { format!("{:<9}{}\n", "name", status["name"].as_str().unwrap_or("-")) } else { String::new() };
        name + &gone(status).map_or_else(|| describe(status), |why| format!("{:<9}{why}\n", "phase"))
    };
    volumes.iter().map(one).collect::<Vec<_>>().join("\n")
}

/// Some ten lines; the same names as in the JSON.
fn describe(status: &Value) -> String {
    let number = |pointer: &str| status.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
    let word = |pointer: &str| status.pointer(pointer).and_then(Value::as_str).unwrap_or("-").to_owned();
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<9}{value}"); // writing to a string cannot fail
    };
    line("phase", word("/phase"));
    let reason = status["destage_reason"].as_str().map_or(String::new(), |reason| format!(" ({reason})"));
    line("gate", format!("{}{reason}", word("/gate")));
    let switching = if status.pointer("/mode/switching").and_then(Value::as_bool) == Some(true) {
        format!(" (on the way; {} is kept until then)", word("/mode/recorded"))
    } else {
        String::new()
    };
    line("mode", format!("{}{switching}", word("/mode/wanted")));
    let (total, free, dirty) = (number("/sets/total"), number("/sets/free"), number("/sets/dirty"));
    line("sets", format!("{total} ({free} free, {dirty} with dirty blocks)"));
    let oldest =
        status["oldest_dirty_seconds"].as_f64().map_or(String::new(), |age| format!(", the oldest {} old", units::show_seconds(age)));
    let (dirty, live) = (number("/dirty_blocks"), number("/live_blocks"));
    let lost = number("/lost_blocks");
    let lost = if lost > 0 { format!(", {lost} lost blocks") } else { String::new() };
    line("dirty", format!("{dirty} of {live} cached blocks{oldest}; {} zero ranges{lost}", number("/zero_ranges")));
    if status["cache_health"].as_str().is_some_and(|health| health != "whole") {
        let since = status["degraded_seconds"].as_f64().map_or(String::new(), |age| format!(" {} ago", units::show_seconds(age)));
        let what = match status["cache_health"].as_str() {
            Some("degraded") => "the volume goes on without it, what is dirty only that cache has",
            _ => "the host cannot write that down yet, and no write is taken",
        };
        line("cache", format!("failed{since}; {what}"));
    }
    if let Some(done) = status.pointer("/scrub/sets_done").and_then(Value::as_u64) {
        let last = status.pointer("/scrub/last_pass_seconds").and_then(Value::as_f64);
        let last = last.map_or("none has ended yet".to_owned(), |age| format!("the last one ended {} ago", units::show_seconds(age)));
        let found = ["dropped_blocks", "damaged_blocks", "repaired_pages"].map(|name| number(&format!("/scrub/{name}")));
        let found =
            if found == [0; 3] { String::new() } else { format!("; dropped {}, damaged {}, repaired {}", found[0], found[1], found[2]) };
        line("scrub", format!("{done} of {total} sets of this pass, {last}{found}"));
    }
    for (name, value) in crate::wear::lines(&status["wear"]) {
        line(name, value);
    }
    for (name, value) in crate::spin::lines(&status["spin"]) {
        line(name, value);
    }
    let discards = ["sets", "left_out_sets", "failures"].map(|name| number(&format!("/discards/{name}")));
    if discards != [0; 3] {
        line("discards", format!("{} sets; {} left out, {} failed", discards[0], discards[1], discards[2]));
    }
    if let Some(left) = status.pointer("/drain/blocks_left").and_then(Value::as_u64) {
        let time = status.pointer("/drain/seconds_left").and_then(Value::as_f64);
        let time = time.map_or(String::new(), |seconds| format!(", about {}", units::show_seconds(seconds)));
        line("drain", format!("{left} of {} blocks left{time}", number("/drain/blocks_at_start")));
    }
    let hits = |hits: u64, misses: u64| {
        let share =
            if hits + misses == 0 { String::new() } else { format!(" ({:.1}% hits)", 100.0 * hits as f64 / (hits + misses) as f64) };
        format!("{hits} hits, {misses} misses{share}")
    };
    let most = number("/memory/pages_max");
    if most > 0 {
        let told = hits(number("/memory/hit_blocks"), number("/memory/miss_blocks"));
        let policy = match (word("/memory/follows"), number("/memory/switches")) {
            (follows, _) if follows == "-" => word("/memory/policy"),
            (follows, switches) => format!("{}: {follows}, changed {switches} times", word("/memory/policy")),
        };
        let lent = match number("/memory/lent_moves") {
            0 => String::new(),
            moves => format!("; {} of them lent by writes, changed {moves} times", number("/memory/lent")),
        };
        line("pages", format!("{} of {most} in memory ({policy}); {told}{lent}", number("/memory/pages")));
    }
    let ahead = match number("/hits/read_ahead_hit_blocks") {
        0 => String::new(),
        blocks => format!("; {blocks} read ahead"),
    };
    line("blocks", hits(number("/hits/blocks"), number("/misses/blocks")) + &ahead);
    if let Some(fills) = status.get("fills") {
        line("kept", describe_fills(fills));
    }
    let split = number("/through/split_blocks");
    if split > 0 {
        line("split", format!("{split} blocks of long writes went to the origin at once"));
    }
    let commits = number("/through/commit_blocks");
    if commits > 0 {
        line("commits", format!("{commits} blocks of small writes went to the origin at once, for a FLUSH"));
    }
    let straight = number("/through/straight_blocks");
    if straight > 0 {
        line("straight", format!("{straight} blocks of small writes went home without the log, which was full and no quicker"));
    }
    line(
        "requests",
        format!(
            "{} reads ({}), {} writes ({}), {} flushes, {} trims; {} in flight",
            number("/requests/reads"),
            units::show_size(number("/requests/read_bytes")),
            number("/requests/writes"),
            units::show_size(number("/requests/written_bytes")),
            number("/requests/flushes"),
            number("/requests/trims"),
            number("/requests_in_flight"),
        ),
    );
    for kind in ["read", "write", "flush"] {
        let at = |percentile: &str| units::show_latency(number(&format!("/latency_ns/{kind}/{percentile}")));
        if number(&format!("/latency_ns/{kind}/count")) > 0 {
            line(kind, format!("p50 {}, p99 {}, p99.9 {}", at("p50"), at("p99"), at("p999")));
        }
    }
    for device in ["cache", "origin"] {
        for (class, times) in status["queues"][device].as_object().into_iter().flatten() {
            line(device, format!("{class}: {} in the queue, {} at the device", p50_p99(&times["queue_ns"]), p50_p99(&times["service_ns"])));
        }
    }
    line("waits", counts(&status["waits"]));
    let quiet = status["destage"]["quiet_read_p99_ns"].as_u64();
    let courtesy = quiet.map_or(String::new(), |p99| {
        let most = units::show_latency(number("/destage/batch_most_ns"));
        format!(", of {most} at most: clients' reads of the origin have a p99 of {} without", units::show_latency(p99))
    });
    line("destaged", format!("{} blocks in {} batches{courtesy}", number("/destage/blocks"), number("/destage/batches")));
    let cleaned = ["sets", "moved_blocks", "dropped_blocks"].map(|name| number(&format!("/cleaning/{name}")));
    if cleaned != [0; 3] {
        line("cleaned", format!("{} sets; {} blocks moved to others, {} clean ones dropped", cleaned[0], cleaned[1], cleaned[2]));
    }
    line("errors", counts(&status["errors"]));
    let ledger = status["ledger_bytes"].as_object();
    let parts = ledger.into_iter().flatten().filter_map(|(part, bytes)| Some((part, bytes.as_u64()?)));
    let total: u64 = parts.clone().map(|(_, bytes)| bytes).sum();
    let parts: Vec<String> = parts.map(|(part, bytes)| format!("{part} {}", units::show_size(bytes))).collect();
    line("memory", format!("{} ({})", units::show_size(total), parts.join(", ")));
    if let Some(alarm) = status["alarm"].as_str() {
        line("alarm", alarm.to_owned());
    }
    for damage in status["damage"].as_array().into_iter().flatten() {
        line("damage", damage["what"].as_str().unwrap_or("-").to_owned());
    }
    text
}

fn p50_p99(latencies: &Value) -> String {
    let at = |percentile: &str| units::show_latency(latencies[percentile].as_u64().unwrap_or(0));
    format!("p50 {}, p99 {}", at("p50"), at("p99"))
}

/// `lock 3, set 12`: what is not zero, or `none`.
pub fn counts(of: &Value) -> String {
    let counted = of.as_object().into_iter().flatten().filter(|(_, count)| count.as_u64() != Some(0));
    let counted: Vec<String> = counted.map(|(name, count)| format!("{} {count}", name.replace('_', " "))).collect();
    if counted.is_empty() { "none".to_owned() } else { counted.join(", ") }
}

/// What was kept of what was read from the origin, and why the rest was not.
fn describe_fills(fills: &Value) -> String {
    const REASONS: [(&str, &str); 6] = [
        ("first_touch_blocks", "missed for the first time"),
        ("sieved_blocks", "not missed often enough"),
        ("sequential_blocks", "of long sequences"),
        ("no_room_blocks", "without room"),
        ("void_blocks", "changed meanwhile"),
        ("budget_blocks", "beyond the daily budget"),
    ];
    let count = |name: &str| fills.get(name).and_then(Value::as_u64).unwrap_or(0);
    let left: Vec<String> =
        REASONS.iter().filter(|(name, _)| count(name) > 0).map(|(name, why)| format!("{} {why}", count(name))).collect();
    let not = if left.is_empty() { String::new() } else { format!("; not: {}", left.join(", ")) };
    let around = match count("around_reads") {
        0 => String::new(),
        reads => format!(", with the neighbourhoods of {reads} misses"),
    };
    let needed = match count("misses_to_keep") {
        0 => String::new(),
        1 => ", in a full cache at the first miss".to_owned(),
        misses => format!(", in a full cache after {misses} misses"),
    };
    let sequences = if fills["keeps_sequences"] == Value::Bool(true) { ", long sequences as well" } else { "" };
    format!("{} blocks of what was read{around}{needed}{sequences}{not}", count("kept_blocks"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_did_not_happen_is_not_listed() {
        assert_eq!(counts(&json!({ "lock": 0, "journal": 0 })), "none");
        assert_eq!(counts(&json!({ "lock": 2, "range_table": 1, "set": 0 })), "lock 2, range table 1");
    }

    #[test]
    fn of_several_volumes_each_has_its_name_and_one_that_is_gone_says_why() {
        let text = all(&json!({ "volumes": [
            { "name": "home", "phase": "serving", "gate": "normal" },
            { "name": "media", "phase": "failed", "failure": "io_uring failed" },
            { "name": "old", "phase": "stopped" },
        ] }));
        let blocks: Vec<&str> = text.split("\n\n").collect();
        assert!(blocks[0].starts_with("name     home\nphase    serving\n"), "{text}");
        assert_eq!(blocks[1..], ["name     media\nphase    failed (io_uring failed)", "name     old\nphase    stopped\n"]);
        assert!(all(&json!({ "name": "home", "phase": "serving" })).starts_with("phase    serving\n"), "alone it needs no name");
    }

    #[test]
    fn a_status_reads_as_lines_with_units() {
        let text = describe(&json!({
            "phase": "serving", "gate": "destage", "destage_reason": "idle", "dirty_blocks": 16, "live_blocks": 20,
            "destage": { "blocks": 40, "batches": 3, "batch_most_ns": 12_000_000, "quiet_read_p99_ns": 15_500_000 },
            "memory": { "pages": 5, "pages_max": 128, "lent": 8, "lent_moves": 3, "policy": "chooser", "follows": "lirs", "switches": 2, "hit_blocks": 9, "miss_blocks": 1 },
            "oldest_dirty_seconds": 2.5, "hits": { "blocks": 3, "read_ahead_hit_blocks": 2 }, "misses": { "blocks": 1 },
            "latency_ns": { "read": { "count": 4, "p50": 37_000, "p99": 1_200_000, "p999": 1_300_000 } },
            "queues": { "cache": { "client": {
                "queue_ns": { "p50": 800, "p99": 20_000 }, "service_ns": { "p50": 90_000, "p99": 2_000_000 },
            } } },
            "fills": { "kept_blocks": 7, "first_touch_blocks": 5, "sequential_blocks": 0, "no_room_blocks": 2, "around_reads": 3, "misses_to_keep": 2, "keeps_sequences": true },
            "cleaning": { "sets": 6, "moved_blocks": 300, "dropped_blocks": 0 },
            "through": { "split_blocks": 2560, "commit_blocks": 12, "straight_blocks": 7 }, "ledger_bytes": { "index": 4096 }, "discards": { "sets": 12, "left_out_sets": 3, "failures": 0 },
        }));
        for line in [
            "gate     destage (idle)",
            "destaged 40 blocks in 3 batches, of 12.00 ms at most: clients' reads of the origin have a p99 of 15.50 ms without",
            "dirty    16 of 20 cached blocks, the oldest 2.5 s old; 0 zero ranges",
            "pages    5 of 128 in memory (chooser: lirs, changed 2 times); 9 hits, 1 misses (90.0% hits); 8 of them lent by writes, changed 3 times",
            "blocks   3 hits, 1 misses (75.0% hits); 2 read ahead",
            "kept     7 blocks of what was read, with the neighbourhoods of 3 misses, in a full cache after 2 misses, long sequences as well; not: 5 missed for the first time, 2 without room",
            "split    2560 blocks of long writes went to the origin at once",
            "commits  12 blocks of small writes went to the origin at once, for a FLUSH",
            "straight 7 blocks of small writes went home without the log, which was full and no quicker",
            "read     p50 37.0 us, p99 1.20 ms, p99.9 1.30 ms",
            "cache    client: p50 0.8 us, p99 20.0 us in the queue, p50 90.0 us, p99 2.00 ms at the device",
            "discards 12 sets; 3 left out, 0 failed",
            "cleaned  6 sets; 300 blocks moved to others, 0 clean ones dropped",
            "memory   4.0 KiB (index 4.0 KiB)",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\nis not in\n{text}");
        }
    }
}

//! `tidegate status`: what a running volume does, for people or for programs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Once;

use serde_json::Value;
use tidegate_daemon::Failure;
use tidegate_daemon::advice::Reach;
use tidegate_daemon::back::disk::{file_id, is_missing};
pub use tidegate_daemon::control::NO_ANSWER;
use tidegate_daemon::control::{Verb, ask};
use tidegate_daemon::tell;
use tidegate_daemon::volume::Options;

use crate::args::{Of, Status};
use crate::config::{Config, EX_CONFIG, FILE_NAME, File};
use crate::{say, units, up};

pub fn run(args: &Status) -> Result<ExitCode, Failure> {
    let status = asked(&args.of, Verb::Status)?;
    say(&if args.json { status.to_string() } else { all(&status) });
    Ok(ExitCode::SUCCESS)
}

/// What the daemon answers.
pub fn asked(of: &Of, verb: Verb) -> Result<Value, Failure> {
    let reach = Reach { dir: Some(up::absolute(&of.dir)?), volume: of.volume.clone(), ..Reach::default() };
    // Where the daemon of a folder listens: as its configuration says, or beside it.
    let known = known(of)?;
    let asked = |verb| ask(known.control(), verb, of.volume.as_deref()).map_err(|failure| failure.reaching(&reach));
    // The daemon may serve more than its configuration says by now.
    if verb.is_of_one() && volumes(&asked(Verb::Status)?).len() > 1 {
        return Err(up::several());
    }
    asked(verb)
}

/// What is known of the volumes of a folder.
pub enum Known {
    Read(Config),
    /// The configuration cannot be read any more, or is not there and the daemon has another one; and why. The daemon that listens beside it serves
    /// these, by their names; of one of which it does not say all that it consists of, nothing is guessed.
    Told {
        failure: Failure,
        control: PathBuf,
        volumes: Vec<(String, Option<Options>)>,
    },
}

/// What the configuration of a folder says. Where that cannot be read any more, a daemon that listens beside it says what it serves: who has mistyped
/// a line can stop it all the same. So it does where there is none, and what it serves has names: it was started with another file.
pub fn known(of: &Of) -> Result<Known, Failure> {
    static TOLD: Once = Once::new();
    let folder = up::absolute(&of.dir)?;
    let path = folder.join(FILE_NAME);
    let read = up::config_of(&folder);
    if read.is_ok() && !is_missing(&path) {
        return read.map(Known::Read);
    }
    let control = File::default().in_folder(&folder).control;
    let Ok(status) = ask(&control, Verb::Status, None) else { return read.map(Known::Read) };
    let failure = match read {
        Ok(config) if matches!(volumes(&status), [only] if only["name"].as_str().unwrap_or_default().is_empty()) => {
            return Ok(Known::Read(config));
        }
        Ok(_) => Failure::new(EX_CONFIG, format!("{}: is not there", path.display())),
        Err(failure) => failure,
    };
    TOLD.call_once(|| tell!("tidegate: note: {failure}; the daemon at {} has read another one, and is asked", control.display()));
    Ok(Known::Told { failure, control, volumes: told(&status, &folder) })
}

/// The volumes that a status is about, by name: each as the daemon says, if it says where all of it lies. One that is not served any more it does not
/// know, nor can it tell a path that is not UTF-8; what a folder has unless something else is said may be another volume.
fn told(status: &Value, folder: &Path) -> Vec<(String, Option<Options>)> {
    let volumes = volumes(status);
    let told = |volume: &Value| {
        let name = volume["name"].as_str().unwrap_or_default().to_owned();
        let path = |key: &str| volume["paths"][key].as_str().map(PathBuf::from);
        let paths = path("origin").zip(path("cache")).zip(path("state"));
        let options = paths.map(|((origin, cache), state)| {
            let of_folder = File::default().in_folder(folder).volumes.swap_remove(0);
            let reach = Reach { volume: (volumes.len() > 1).then(|| name.clone()), ..of_folder.reach.clone() };
            Options { name: name.clone(), origin, cache, state, reach, ..of_folder }
        });
        (name, options)
    };
    volumes.iter().map(told).collect()
}

impl Known {
    pub fn control(&self) -> &Path {
        match self {
            Known::Read(config) => &config.control,
            Known::Told { control, .. } => control,
        }
    }

    /// # Errors
    /// Why it could not be read: what is done without the daemon, nobody guesses.
    pub fn config(&self) -> Result<&Config, Failure> {
        match self {
            Known::Read(config) => Ok(config),
            Known::Told { failure, .. } => Err(up::unchanged(failure.clone())),
        }
    }

    /// The one volume that is meant.
    ///
    /// # Errors
    /// One line: which one is not clear, or where it lies.
    pub fn one(&self, of: &Of) -> Result<Options, Failure> {
        let (failure, volumes) = match self {
            Known::Read(config) => return up::one_of(config, of),
            Known::Told { failure, volumes, .. } => (failure, volumes),
        };
        let is_meant = |name: &str| of.volume.as_deref().is_none_or(|wanted| wanted == name);
        match volumes.iter().filter(|(name, _)| is_meant(name)).collect::<Vec<_>>()[..] {
            [(_, Some(volume))] => Ok(volume.clone()),
            [_, _, ..] => Err(up::several()),
            _ => Err(up::unchanged(failure.clone())),
        }
    }

    /// The volumes that a status is about, by name, as the daemon serves them: that may have been told otherwise than its configuration says, which
    /// may not know one of them by now.
    pub fn served(&self, status: &Value) -> Vec<(String, Option<Options>)> {
        match self {
            Known::Read(config) => served(status, config),
            Known::Told { volumes: known, .. } => {
                let told = |volume: &Value| {
                    let name = volume["name"].as_str().unwrap_or_default();
                    let known = known.iter().find(|(known, _)| known == name);
                    (name.to_owned(), known.and_then(|(_, options)| options.clone()))
                };
                volumes(status).iter().map(told).collect()
            }
        }
    }
}

/// The one volume that is meant, and everything that is known beside it, by that.
pub fn volume_of(of: &Of) -> Result<(Known, Options), Failure> {
    let known = known(of).map_err(up::unchanged)?;
    let volume = known.one(of)?;
    Ok((known, volume))
}

/// The volumes that a status is about.
pub fn volumes(status: &Value) -> &[Value] {
    status["volumes"].as_array().map_or(std::slice::from_ref(status), Vec::as_slice)
}

/// A volume in a sentence: by its name, if it has one.
pub fn called(name: &str) -> String {
    if name.is_empty() { "the volume".to_owned() } else { format!("volume {name:?}") }
}

/// Why a volume is not served any more, in words; nothing while it is.
pub fn gone(status: &Value) -> Option<String> {
    match status["phase"].as_str() {
        Some("failed") => Some(format!("failed ({})", status["failure"].as_str().unwrap_or("-"))),
        Some("stopped") => Some("stopped".to_owned()),
        _ => None,
    }
}

/// [`Known::served`], with a configuration that could be read.
fn served(status: &Value, config: &Config) -> Vec<(String, Option<Options>)> {
    let served = |volume: &Value| {
        let name = volume["name"].as_str().unwrap_or_default();
        let configured = match &config.volumes[..] {
            [only] => Some(only),
            several => several.iter().find(|options| options.name == name),
        };
        let told = |key: &str| volume["paths"][key].as_str().map(PathBuf::from);
        let is_it = |cache: &Path| file_id(fs::metadata(cache)).is_some_and(|found| volume["paths"]["cache_id"] == found);
        let moved = told("cache").zip(configured).and_then(|(cache, configured)| {
            // Whatever has its old name by now is another one's.
            let has_moved = !is_it(&cache) && is_it(&configured.cache);
            has_moved.then(|| renamed(&cache, &configured.cache))
        });
        let path = |key: &str, or: &Path| match (told(key), &moved) {
            (Some(told), Some((from, to))) => {
                let there = told.strip_prefix(from).ok().map(|below| to.join(below));
                there.filter(|path| !is_missing(path)).unwrap_or(told)
            }
            (told, _) => told.unwrap_or(or.to_owned()),
        };
        let options = configured.map(|configured| {
            let (origin, cache) = (path("origin", &configured.origin), path("cache", &configured.cache));
            let mut reach = configured.reach.clone();
            // Of several no command takes them.
            if reach.volume.is_none() {
                let named = |served: &PathBuf, configured: &PathBuf| (served != configured).then(|| served.clone());
                reach.origin = named(&origin, &configured.origin).or(reach.origin);
                reach.cache = named(&cache, &configured.cache).or(reach.cache);
            }
            Options { name: name.to_owned(), origin, cache, state: path("state", &configured.state), reach, ..configured.clone() }
        });
        (name.to_owned(), options)
    };
    volumes(status).iter().map(served).collect()
}

/// Which folder got which name, if that is why a file that was at `old` is at `new`: what they do not have in common at their ends.
fn renamed(old: &Path, new: &Path) -> (PathBuf, PathBuf) {
    let common = old.components().rev().zip(new.components().rev()).take_while(|(old, new)| old == new).count();
    let without = |path: &Path| path.ancestors().nth(common).unwrap_or(path).to_owned();
    (without(old), without(new))
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

/// A line for each thing that there is something to say of.
fn describe(status: &Value) -> String {
    let told = Told(status);
    // What only recovery finds out is not known before it has ended.
    let groups = if status["phase"] == "recovering" {
        vec![told.recovery(), told.wear(), told.requests(), told.waits(), told.troubles()]
    } else {
        told.all()
    };
    groups.into_iter().flatten().map(|(name, value)| format!("{name:<9}{value}\n")).collect()
}

/// Names, none longer than eight letters, and what there is to say.
type Lines = Vec<(&'static str, String)>;

/// What a daemon has told of a volume: its JSON. What an older one did not tell counts as nothing.
struct Told<'a>(&'a Value);

impl Told<'_> {
    fn number(&self, pointer: &str) -> u64 {
        self.0.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
    }

    fn numbers<const N: usize>(&self, of: &str, names: [&str; N]) -> [u64; N] {
        names.map(|name| self.number(&format!("{of}/{name}")))
    }

    fn word(&self, pointer: &str) -> &str {
        self.0.pointer(pointer).and_then(Value::as_str).unwrap_or("-")
    }

    fn seconds(&self, pointer: &str) -> Option<String> {
        self.0.pointer(pointer).and_then(Value::as_f64).map(units::show_seconds)
    }

    fn all(&self) -> Vec<Lines> {
        vec![
            self.state(),
            self.contents(),
            self.upkeep(),
            self.hits(),
            self.shortcuts(),
            self.requests(),
            self.waits(),
            self.background(),
            self.troubles(),
        ]
    }

    /// How far it is.
    fn recovery(&self) -> Lines {
        let what = match self.word("/recovery/step") {
            "superblocks" => "reads the superblocks",
            "metadata" => "reads state map and journal",
            "tail" => "reads what was written last",
            "headers" => "reads the headers of dirty sets",
            "origin" => "compares the origin with what it was",
            "writing" => "writes down that it goes on from here",
            "sound" => "found sound, waits for the other volumes",
            // An older daemon does not say.
            _ => "looks through the cache",
        };
        let far = match self.numbers("/recovery", ["done", "of"]) {
            [done, of] if of > 0 && self.word("/recovery/step") != "sound" => format!(", {done} of {of} done"),
            _ => String::new(),
        };
        vec![("phase", format!("recovering: {what}{far}; what is cached and dirty is not known yet"))]
    }

    /// Of the SSD, and of the disk's motor.
    fn wear(&self) -> Lines {
        let mut lines = crate::wear::lines(&self.0["wear"]);
        lines.extend(crate::spin::lines(&self.0["spin"]));
        lines
    }

    fn state(&self) -> Lines {
        let reason = self.0["destage_reason"].as_str().map_or(String::new(), |reason| format!(" ({reason})"));
        let is_switching = self.0.pointer("/mode/switching").and_then(Value::as_bool) == Some(true);
        let recorded = self.word("/mode/recorded");
        let switching = if is_switching { format!(" (on the way; {recorded} is kept until then)") } else { String::new() };
        vec![
            ("phase", self.word("/phase").to_owned()),
            ("gate", format!("{}{reason}", self.word("/gate"))),
            ("mode", format!("{}{switching}", self.word("/mode/wanted"))),
        ]
    }

    fn contents(&self) -> Lines {
        let [total, free, dirty_sets] = self.numbers("/sets", ["total", "free", "dirty"]);
        let [dirty, live, lost, zeros] = self.numbers("", ["dirty_blocks", "live_blocks", "lost_blocks", "zero_ranges"]);
        let oldest = self.seconds("/oldest_dirty_seconds").map_or(String::new(), |age| format!(", the oldest {age} old"));
        let lost = if lost > 0 { format!(", {lost} lost blocks") } else { String::new() };
        let mut lines = vec![
            ("sets", format!("{total} ({free} free, {dirty_sets} with dirty blocks)")),
            ("dirty", format!("{dirty} of {live} cached blocks{oldest}; {zeros} zero ranges{lost}")),
        ];
        let since = self.seconds("/degraded_seconds").map_or(String::new(), |age| format!(" {age} ago"));
        match self.word("/cache_health") {
            "whole" | "-" => {}
            "degraded" => {
                lines.push(("cache", format!("failed{since}; the volume goes on without it, what is dirty only that cache has")));
            }
            _ => lines.push(("cache", format!("failed{since}; the host cannot write that down yet, and no write is taken"))),
        }
        lines
    }

    /// What is done for the SSD and the disk, and a drain.
    fn upkeep(&self) -> Lines {
        let mut lines = Lines::new();
        if let Some(done) = self.0.pointer("/scrub/sets_done").and_then(Value::as_u64) {
            let last = self.seconds("/scrub/last_pass_seconds");
            let last = last.map_or("none has ended yet".to_owned(), |age| format!("the last one ended {age} ago"));
            let found = match self.numbers("/scrub", ["dropped_blocks", "rescued_blocks", "damaged_blocks", "repaired_pages"]) {
                [0, 0, 0, 0] => String::new(),
                [dropped, rescued, damaged, repaired] => {
                    format!("; dropped {dropped}, rescued {rescued}, damaged {damaged}, repaired {repaired}")
                }
            };
            lines.push(("scrub", format!("{done} of {} sets of this pass, {last}{found}", self.number("/sets/total"))));
        }
        lines.extend(self.wear());
        match self.numbers("/discards", ["sets", "left_out_sets", "failures"]) {
            [0, 0, 0] => {}
            [sets, left_out, failed] => lines.push(("discards", format!("{sets} sets; {left_out} left out, {failed} failed"))),
        }
        if let Some(left) = self.0.pointer("/drain/blocks_left").and_then(Value::as_u64) {
            let time = self.seconds("/drain/seconds_left").map_or(String::new(), |time| format!(", about {time}"));
            lines.push(("drain", format!("{left} of {} blocks left{time}", self.number("/drain/blocks_at_start"))));
        }
        lines
    }

    /// What memory and the SSD had, and what is kept of the rest.
    fn hits(&self) -> Lines {
        let mut lines = Lines::new();
        if let most @ 1.. = self.number("/memory/pages_max") {
            let [hits, misses, pages, lent, moves] = self.numbers("/memory", ["hit_blocks", "miss_blocks", "pages", "lent", "lent_moves"]);
            let policy = match (self.word("/memory/follows"), self.word("/memory/policy")) {
                ("-", policy) => policy.to_owned(),
                (follows, policy) => format!("{policy}: {follows}, changed {} times", self.number("/memory/switches")),
            };
            let lent = if moves == 0 { String::new() } else { format!("; {lent} of them lent by writes, changed {moves} times") };
            lines.push(("pages", format!("{pages} of {most} in memory ({policy}); {}{lent}", shares(hits, misses))));
        }
        let [hits, ahead] = self.numbers("/hits", ["blocks", "read_ahead_hit_blocks"]);
        let ahead = if ahead == 0 { String::new() } else { format!("; {ahead} read ahead") };
        lines.push(("blocks", shares(hits, self.number("/misses/blocks")) + &ahead));
        if let Some(fills) = self.0.get("fills") {
            lines.push(("kept", describe_fills(fills)));
        }
        lines
    }

    /// Writes that went to the origin at once.
    fn shortcuts(&self) -> Lines {
        let ways = [
            ("split", "split_blocks", "blocks of long writes went to the origin at once"),
            ("commits", "commit_blocks", "blocks of small writes went to the origin at once, for a FLUSH"),
            ("straight", "straight_blocks", "blocks of small writes went home without the log, which was full and no quicker"),
        ];
        let counted = ways.map(|(name, key, what)| (name, self.number(&format!("/through/{key}")), what));
        counted.into_iter().filter(|(_, blocks, _)| *blocks > 0).map(|(name, blocks, what)| (name, format!("{blocks} {what}"))).collect()
    }

    fn requests(&self) -> Lines {
        let [reads, writes, flushes, trims] = self.numbers("/requests", ["reads", "writes", "flushes", "trims"]);
        let [read, written] = self.numbers("/requests", ["read_bytes", "written_bytes"]).map(units::show_size);
        let in_flight = self.number("/requests_in_flight");
        let what = format!("{reads} reads ({read}), {writes} writes ({written}), {flushes} flushes, {trims} trims; {in_flight} in flight");
        vec![("requests", what)]
    }

    /// For whom, and for what.
    fn waits(&self) -> Lines {
        let mut lines = Lines::new();
        for kind in ["read", "write", "flush"] {
            let [count, p50, p99, p999] = self.numbers(&format!("/latency_ns/{kind}"), ["count", "p50", "p99", "p999"]);
            let [p50, p99, p999] = [p50, p99, p999].map(units::show_latency);
            if count > 0 {
                lines.push((kind, format!("p50 {p50}, p99 {p99}, p99.9 {p999}")));
            }
        }
        for device in ["cache", "origin"] {
            for (class, times) in self.0["queues"][device].as_object().into_iter().flatten() {
                let (queue, service) = (p50_p99(&times["queue_ns"]), p50_p99(&times["service_ns"]));
                lines.push((device, format!("{class}: {queue} in the queue, {service} at the device")));
            }
        }
        lines.push(("waits", counts(&self.0["waits"])));
        lines
    }

    /// What goes home, and how room is made.
    fn background(&self) -> Lines {
        let [blocks, batches, most] = self.numbers("/destage", ["blocks", "batches", "batch_most_ns"]);
        let courtesy = self.0["destage"]["quiet_read_p99_ns"].as_u64().map_or(String::new(), |quiet| {
            let (most, quiet) = (units::show_latency(most), units::show_latency(quiet));
            format!(", of {most} at most: clients' reads of the origin have a p99 of {quiet} without")
        });
        let mut lines = vec![("destaged", format!("{blocks} blocks in {batches} batches{courtesy}"))];
        match self.numbers("/cleaning", ["sets", "moved_blocks", "dropped_blocks"]) {
            [0, 0, 0] => {}
            [sets, moved, dropped] => {
                lines.push(("cleaned", format!("{sets} sets; {moved} blocks moved to others, {dropped} clean ones dropped")));
            }
        }
        lines
    }

    fn troubles(&self) -> Lines {
        let ledger = self.0["ledger_bytes"].as_object();
        let parts: Vec<(&str, u64)> = ledger.into_iter().flatten().filter_map(|(part, bytes)| Some((&**part, bytes.as_u64()?))).collect();
        let total = units::show_size(parts.iter().map(|(_, bytes)| bytes).sum());
        let parts: Vec<String> = parts.into_iter().map(|(part, bytes)| format!("{part} {}", units::show_size(bytes))).collect();
        let mut lines = vec![("errors", counts(&self.0["errors"])), ("memory", format!("{total} ({})", parts.join(", ")))];
        lines.extend(self.0["alarm"].as_str().map(|alarm| ("alarm", alarm.to_owned())));
        for damage in self.0["damage"].as_array().into_iter().flatten() {
            lines.push(("damage", damage["what"].as_str().unwrap_or("-").to_owned()));
        }
        lines
    }
}

fn shares(hits: u64, misses: u64) -> String {
    let all = hits + misses;
    let share = if all == 0 { String::new() } else { format!(" ({:.1}% hits)", 100.0 * hits as f64 / all as f64) };
    format!("{hits} hits, {misses} misses{share}")
}

fn p50_p99(latencies: &Value) -> String {
    let at = |percentile: &str| units::show_latency(latencies[percentile].as_u64().unwrap_or(0));
    format!("p50 {}, p99 {}", at("p50"), at("p99"))
}

/// `lock 3, set 12`: what is known and not zero, or `none`.
pub fn counts(of: &Value) -> String {
    let counted = of.as_object().into_iter().flatten().filter(|(_, count)| count.as_u64().is_some_and(|count| count > 0));
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
    fn what_has_moved_is_below_the_new_name() {
        for (old, new, from, to) in [
            ("/v/old/ssd/cache.img", "/v/new/ssd/cache.img", "/v/old", "/v/new"),
            ("/v/cache.img", "/w/v/cache.img", "/", "/w"),
            ("/v/cache.img", "/v/other.img", "/v/cache.img", "/v/other.img"),
        ] {
            assert_eq!(renamed(Path::new(old), Path::new(new)), (PathBuf::from(from), PathBuf::from(to)));
        }
    }

    /// A path that is not UTF-8 is null; of a volume that is not served any more there is none.
    #[test]
    fn a_volume_that_does_not_say_where_all_of_it_lies_is_not_guessed() {
        let paths = json!({ "origin": "/d/o", "cache": "/d/c", "state": "/d/s" });
        let mut volumes = vec![json!({ "name": "home", "paths": paths.clone() }), json!({ "name": "old", "phase": "stopped" })];
        for key in ["origin", "cache", "state"] {
            let mut paths = paths.clone();
            paths[key] = Value::Null;
            volumes.push(json!({ "name": key, "phase": "serving", "paths": paths }));
        }
        let told = told(&json!({ "volumes": volumes }), Path::new("/v"));
        let failure = Failure::new(crate::config::EX_CONFIG, "config.toml:2:1: mistyped");
        let known = Known::Told { failure, control: PathBuf::from("/v/control.sock"), volumes: told };
        let one = |name: Option<&str>| known.one(&Of { dir: PathBuf::from("/v"), volume: name.map(str::to_owned) });
        let home = one(Some("home")).unwrap();
        assert_eq!([&home.origin, &home.cache, &home.state], [Path::new("/d/o"), Path::new("/d/c"), Path::new("/d/s")]);
        for name in ["old", "origin", "cache", "state", "none"] {
            let refused = one(Some(name)).unwrap_err();
            assert_eq!((refused.code, refused.message.starts_with("config.toml:2:1: mistyped; ")), (78, true), "{name}: {refused}");
        }
        // The only one of which all is known is not the only one.
        assert_eq!(one(None).unwrap_err().code, crate::USAGE);
        let served: Vec<bool> = known.served(&json!({ "volumes": volumes })).iter().map(|(_, options)| options.is_some()).collect();
        assert_eq!(served, [true, false, false, false, false]);
        assert!(known.config().is_err());
    }

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
    fn of_a_volume_that_recovers_nothing_is_told_that_is_not_known_yet() {
        let recovering = json!({
            "phase": "recovering", "recovery": { "step": "metadata", "done": 3, "of": 40 }, "gate": null, "dirty_blocks": null,
            "sets": { "total": 64, "free": null, "dirty": null }, "mode": null, "requests_in_flight": 2,
            "errors": { "cache_write_failures": 1, "refused_blocks": null }, "wear": { "since_start": { "ssd_bytes": 0 } },
        });
        let expected = "\
phase    recovering: reads state map and journal, 3 of 40 done; what is cached and dirty is not known yet
wear     since the start 0 B written to the SSD
requests 0 reads (0 B), 0 writes (0 B), 0 flushes, 0 trims; 2 in flight
waits    none
errors   cache write failures 1
memory   0 B ()
";
        assert_eq!(all(&recovering), expected);
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

//! `tidegate mode`: what a FLUSH of a running volume promises; asks for another mode and waits until that one is kept.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::Value;
use tidegate_daemon::Failure;
use tidegate_daemon::back::signals::Signals;
use tidegate_daemon::control::Verb;
use tidegate_daemon::tell;

use crate::args::Mode as Args;
use crate::progress::Progress;
use crate::{say, status, units};

/// How often the daemon is asked how far it is.
const INTERVAL: Duration = Duration::from_millis(100);
/// Exit code when somebody stopped waiting, or asked for yet another mode.
const NOT_YET: u8 = 1;

pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let asked = |verb| status::asked(&args.of, verb);
    let Some(mode) = args.mode else {
        let answer = asked(Verb::Status)?;
        let volumes = status::volumes(&answer);
        let name = |volume: &Value| if volumes.len() > 1 { format!("{}: ", volume["name"].as_str().unwrap_or("-")) } else { String::new() };
        say(&volumes.iter().map(|volume| name(volume) + &describe(volume)).collect::<Vec<_>>().join("\n"));
        return Ok(ExitCode::SUCCESS);
    };
    let volume = status::known(&args.of)?.one(&args.of)?;
    let mut signals = Signals::take().map_err(|error| Failure::new(Failure::SYSTEM, format!("signals cannot be received: {error}")))?;
    let started = Instant::now();
    let mut bar = Progress::new("mode");
    let mut state = asked(Verb::Mode(mode))?;
    let (mut of, mut told) = (0, false);
    loop {
        if let Some(why) = status::gone(&state) {
            return Err(Failure::new(status::NO_ANSWER, format!("the volume {why}; its mode is what it was")));
        }
        if state["mode"]["switching"].as_bool() != Some(true) {
            break;
        }
        if let Some(alarm) = state["alarm"].as_str().filter(|_| !told) {
            bar.clear();
            tell!("tidegate: note: {alarm}");
            told = true;
        }
        if state["cache_health"].as_str().is_some_and(|health| health != "whole") {
            let what = "the cache has failed, and the switch does not end: every write goes to the origin, whatever the mode";
            let rest = volume.reach.complete("`tidegate status` says what was dirty");
            return Err(Failure::new(status::NO_ANSWER, format!("{what}; {rest}")));
        }
        if signals.next().is_some() {
            bar.clear();
            let back = volume.reach.complete("`tidegate mode write-back` takes it back");
            tell!("tidegate: the switch goes on without us: {}; {back}", describe(&state));
            return Ok(ExitCode::from(NOT_YET));
        }
        let left = state["dirty_blocks"].as_u64().unwrap_or(0);
        of = left.max(of);
        bar.show(of - left, of, &format!("{left} blocks left"));
        std::thread::sleep(INTERVAL);
        state = asked(Verb::Status)?;
    }
    drop(bar);
    if state["mode"]["wanted"].as_str() != Some(mode.name()) {
        tell!("tidegate: somebody else asked for another mode meanwhile: {}", describe(&state));
        return Ok(ExitCode::from(NOT_YET));
    }
    let unreadable = state.pointer("/errors/unreadable_blocks").and_then(Value::as_u64).unwrap_or(0);
    if unreadable > 0 {
        tell!("tidegate: note: {unreadable} dirty blocks stay on the cache, which does not give them (docs/durability.md, D7)");
    }
    if let Some(configured) = volume.knobs.mode.filter(|&configured| configured != mode) {
        tell!("tidegate: note: config.toml says mode = \"{configured}\", which counts at the next start");
    }
    say(&format!("{}; the switch took {}", describe(&state), units::show_seconds(started.elapsed().as_secs_f64())));
    Ok(ExitCode::SUCCESS)
}

/// `write-through: nothing that was flushed is on the cache alone`.
fn describe(status: &Value) -> String {
    if let Some(why) = status::gone(status) {
        return why;
    }
    if status["phase"] == "recovering" {
        return "not known yet: the volume recovers".to_owned();
    }
    let word = |key: &str| status["mode"][key].as_str().unwrap_or("-").to_owned();
    let (wanted, recorded) = (word("wanted"), word("recorded"));
    if status["mode"]["switching"].as_bool() == Some(true) {
        let left = status["dirty_blocks"].as_u64().unwrap_or(0);
        return format!("{wanted} was asked for, {recorded} is kept until then ({left} blocks are dirty)");
    }
    match wanted.as_str() {
        "write-back" => format!("{wanted}: what is dirty is on the cache alone until it has gone home"),
        _ => format!("{wanted}: nothing that was flushed is on the cache alone"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_mode_is_told_in_one_line() {
        let told = |wanted: &str, recorded: &str, switching: bool| {
            describe(&json!({ "mode": { "wanted": wanted, "recorded": recorded, "switching": switching }, "dirty_blocks": 7 }))
        };
        assert!(told("write-back", "write-back", false).starts_with("write-back: what is dirty"));
        assert!(told("read-only", "read-only", false).ends_with("nothing that was flushed is on the cache alone"));
        assert_eq!(
            told("write-through", "write-back", true),
            "write-through was asked for, write-back is kept until then (7 blocks are dirty)"
        );
    }
}

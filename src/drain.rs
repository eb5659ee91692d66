//! `tidegate drain`: asks the daemon to send everything dirty home, and waits for it. The volume stays in use meanwhile.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::Value;
use tidegate_daemon::Failure;
use tidegate_daemon::back::signals::Signals;
use tidegate_daemon::control::Verb;
use tidegate_daemon::detach::stays_behind;
use tidegate_daemon::tell;
use tidegate_daemon::volume::Options;

use crate::args::Drain;
use crate::progress::Progress;
use crate::{detach, say, status, units};

/// How often the daemon is asked how far it is.
const INTERVAL: Duration = Duration::from_millis(100);
/// What became dirty so soon after a drain had been asked for may have been acknowledged before.
const GRACE: Duration = Duration::from_secs(1);
/// Exit code of a drain that was cancelled.
const CANCELLED: u8 = 1;

pub fn run(args: &Drain) -> Result<ExitCode, Failure> {
    let ask = |verb| status::asked(&args.of, verb);
    let asked = |verb| Ok::<_, Failure>(State::of(&ask(verb)?));
    let known = status::known(&args.of)?;
    let mut signals = Signals::take().map_err(|error| Failure::new(Failure::SYSTEM, format!("signals cannot be received: {error}")))?;
    let started = Instant::now();
    let mut bar = Progress::new("drain");
    // What is dirty is not known before it serves, and nothing is sent home.
    while asked(Verb::Status)?.recovers {
        if signals.next().is_some() {
            bar.clear();
            tell!("tidegate: cancelled; the volume does not serve yet, and nothing was asked of it");
            return Ok(ExitCode::from(CANCELLED));
        }
        bar.show(0, 1, "the volume does not serve yet");
        std::thread::sleep(INTERVAL);
    }
    let status = ask(Verb::Drain)?;
    // As they are served, which the configuration may not say.
    let served: Vec<Options> = known.served(&status).into_iter().filter_map(|(_, served)| served).collect();
    let mut state = State::of(&status);
    let asked_at = Instant::now();
    let failures_at_start = state.failures;
    let mut told = false;
    let mut is_younger = false;
    while !state.is_done && !is_younger {
        state.tell_alarm(&mut told, &mut bar);
        if signals.next().is_some() {
            let state = asked(Verb::CancelDrain)?;
            bar.clear();
            tell!("tidegate: cancelled; {} blocks are still dirty", state.blocks_left);
            return Ok(ExitCode::from(CANCELLED));
        }
        // With a volume that has ended meanwhile, its failures are gone.
        let failures = state.failures.saturating_sub(failures_at_start);
        let trouble = if failures > 0 { format!(", {failures} writes to the origin failed") } else { String::new() };
        let total = state.blocks_at_start;
        bar.show_left(total - state.blocks_left, total, state.seconds_left, &format!("{} blocks left{trouble}", state.blocks_left));
        std::thread::sleep(INTERVAL);
        let since_then = asked_at.elapsed().saturating_sub(GRACE).as_secs_f64();
        let status = asked(Verb::Status)?;
        is_younger = status.oldest.is_some_and(|age| age < since_then);
        // What was still on its way when the drain began may have become dirty after it had ended.
        state = if status.rests && !is_younger { asked(Verb::Drain)? } else { status };
    }
    if !state.is_done {
        state = asked(Verb::CancelDrain)?;
    }
    state.tell_alarm(&mut told, &mut bar);
    drop(bar);
    if let Some(name) = &state.stays_in {
        let reach = named(&served, name).map(|volume| volume.reach.clone()).unwrap_or_default();
        let failure =
            if state.has_failed { stays_on_failed(state.unreadable + state.lost) } else { stays_behind(state.unreadable, state.lost) };
        return Err(failure.reaching(&reach));
    }
    refuse_not_served(&served, &state)?;
    for Options { origin, .. } in &served {
        if !origin.try_exists().unwrap_or(true) {
            let what_then = "what it holds goes when the daemon ends; copy the volume out while it is served";
            tell!("tidegate: note: origin {} is not there any more: {what_then}", origin.display());
        }
    }
    let what = match state.blocks_left {
        0 => "nothing is dirty, the origin holds everything".to_owned(),
        newer => format!("what was dirty is on the origin; {newer} blocks that clients have written since are dirty now"),
    };
    say(&format!("drained in {}: {what}", units::show_seconds(started.elapsed().as_secs_f64())));
    Ok(ExitCode::SUCCESS)
}

/// Why a drain does not bring everything home from an SSD that has failed.
fn stays_on_failed(blocks: u64) -> Failure {
    let what = format!(
        "the SSD has failed, and does not give {blocks} blocks that are newer than the origin's; reading them is an error, everything else has gone \
         home; write them anew as wholes (from a backup), or take another cache (`tidegate create`) and give them up with `--accept-loss`"
    );
    Failure::new(Failure::IO, what)
}

/// Everything is home of what is served. Of what was detached nothing is to go home any more; of others, whoever asked hears.
fn refuse_not_served(served: &[Options], state: &State) -> Result<(), Failure> {
    let is_detached = |name: &str| named(served, name).is_some_and(|volume| matches!(detach::is_detached(volume), Ok(true)));
    let (detached, gone): (Vec<_>, Vec<_>) = state.gone.iter().partition(|(name, _)| is_detached(name));
    for (name, _) in detached {
        tell!("tidegate: {} was detached: there is nothing to drain", status::called(name));
    }
    if gone.is_empty() {
        return Ok(());
    }
    let gone: Vec<String> = gone.iter().map(|(name, why)| format!("{} is not served ({why})", status::called(name))).collect();
    let others = if state.served > 0 { "; the other volumes are drained" } else { "" };
    let what = format!("{}: what is dirty stays on its cache until it is served again{others}", gone.join(", "));
    Err(Failure::new(status::NO_ANSWER, what))
}

fn named<'a>(served: &'a [Options], name: &str) -> Option<&'a Options> {
    served.iter().find(|volume| volume.name == name)
}

/// How far it is, as the daemon says.
struct State {
    /// Volumes that are, and those that are not served any more, each with its name and why.
    served: usize,
    gone: Vec<(String, String)>,
    blocks_at_start: u64,
    /// Dirty blocks and zeroed ranges: everything that the origin does not have yet.
    blocks_left: u64,
    /// Seconds since the oldest of them was written.
    oldest: Option<f64>,
    /// Until the last volume is done.
    seconds_left: Option<f64>,
    /// Destages that failed since the daemon's start.
    failures: u64,
    /// Of these, blocks that the SSD does not give: they stay behind.
    unreadable: u64,
    /// Blocks that are errors to whoever reads them: of them at least a part is gone.
    lost: u64,
    /// The first volume that has such blocks, of either kind.
    stays_in: Option<String>,
    /// It has lost its SSD.
    has_failed: bool,
    /// What the operator must know of one of the volumes.
    alarm: Option<String>,
    /// Something is dirty, and could go home, where no drain is under way.
    rests: bool,
    /// One does not serve yet: what it has is not counted.
    recovers: bool,
    /// Everywhere everything is home, or the drain has ended with what cannot be read.
    is_done: bool,
}

impl State {
    /// Of all volumes that were asked, together.
    fn of(status: &Value) -> State {
        let mut all = State {
            served: 0,
            gone: Vec::new(),
            blocks_at_start: 0,
            blocks_left: 0,
            oldest: None,
            seconds_left: None,
            failures: 0,
            unreadable: 0,
            has_failed: false,
            lost: 0,
            stays_in: None,
            alarm: None,
            rests: false,
            recovers: false,
            is_done: true,
        };
        for volume in status::volumes(status) {
            let name = volume["name"].as_str().unwrap_or("-");
            // Of several each answers for itself: one that refuses is as far from drained as one that has ended.
            match status::gone(volume).or_else(|| volume["error"].as_str().map(str::to_owned)) {
                Some(why) => all.gone.push((name.to_owned(), why)),
                None => all.add(name, volume),
            }
        }
        all
    }

    /// Says what the operator must know, once.
    fn tell_alarm(&self, told: &mut bool, bar: &mut Progress) {
        if let (Some(alarm), false) = (&self.alarm, *told) {
            bar.clear();
            tell!("tidegate: note: {alarm}");
            *told = true;
        }
    }

    fn add(&mut self, name: &str, status: &Value) {
        self.served += 1;
        let number = |pointer: &str| status.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
        let left = number("/dirty_blocks") + number("/zero_ranges");
        // Zeroed ranges count in blocks while the drain knows them.
        let blocks_left = if left == 0 { 0 } else { number("/drain/blocks_left").max(left) };
        self.blocks_at_start += number("/drain/blocks_at_start").max(blocks_left);
        self.blocks_left += blocks_left;
        let most = |one: Option<f64>, pointer: &str| {
            let other = status.pointer(pointer).and_then(Value::as_f64);
            [one, other].into_iter().flatten().reduce(f64::max)
        };
        self.oldest = most(self.oldest, "/oldest_dirty_seconds");
        self.seconds_left = most(self.seconds_left, "/drain/seconds_left");
        self.failures += number("/destage/failures");
        let unreadable = number("/errors/unreadable_blocks");
        let has_ended = left == unreadable && status["drain"].is_null();
        self.unreadable += unreadable;
        let lost = number("/lost_blocks");
        if unreadable + lost > 0 && self.stays_in.is_none() {
            self.stays_in = Some(name.to_owned());
            self.has_failed = status["cache_health"] == "degraded";
        }
        self.lost += lost;
        self.alarm = self.alarm.take().or(status["alarm"].as_str().map(str::to_owned));
        self.rests |= left > unreadable && status["drain"].is_null();
        let recovers = status["phase"] == "recovering";
        self.recovers |= recovers;
        self.is_done &= !recovers && (left == 0 || has_ended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Dirty, unreadable, whether a drain is under way → is it done, does it rest.
    fn check(dirty: u64, unreadable: u64, draining: bool) -> (bool, bool) {
        let drain = draining.then(|| json!({ "blocks_at_start": 9, "blocks_left": dirty }));
        let volume = json!({ "dirty_blocks": dirty, "zero_ranges": 0, "drain": drain, "errors": { "unreadable_blocks": unreadable } });
        let gone = json!({ "name": "old", "phase": "stopped" });
        let state = State::of(&json!({ "volumes": [volume, gone, { "dirty_blocks": 0, "zero_ranges": 0, "drain": null }] }));
        assert_eq!((state.blocks_left, state.unreadable, state.stays_in.is_some()), (dirty, unreadable, unreadable > 0));
        assert_eq!((state.served, state.gone), (2, vec![("old".to_owned(), "stopped".to_owned())]));
        (state.is_done, state.rests)
    }

    #[test]
    fn a_drain_is_done_when_all_that_is_left_cannot_be_read() {
        assert_eq!(check(0, 0, false), (true, false));
        assert_eq!(check(7, 7, false), (true, false));
        assert_eq!(check(7, 7, true), (false, false), "they are tried once more");
        assert_eq!(check(8, 7, false), (false, true), "somebody has written meanwhile");
        assert_eq!(check(8, 7, true), (false, false));
    }

    #[test]
    fn a_volume_without_a_name_is_called_the_volume() {
        let of = |name: &str| {
            let state = State::of(&json!({ "volumes": [{ "name": name, "phase": "stopped" }] }));
            refuse_not_served(&[], &state).expect_err("it is not served").message
        };
        assert_eq!(of(""), "the volume is not served (stopped): what is dirty stays on its cache until it is served again");
        assert!(of("media").starts_with("volume \"media\" is not served (stopped): "));
    }

    #[test]
    fn what_recovers_or_refuses_is_not_drained_whatever_it_counts() {
        let serving = json!({ "phase": "serving", "dirty_blocks": 0, "zero_ranges": 0, "drain": null });
        let recovering = json!({ "phase": "recovering", "dirty_blocks": 0, "zero_ranges": 0, "drain": null });
        let refusing = json!({ "name": "media", "error": "the volume does not serve now" });
        let state = |other: Value| State::of(&json!({ "volumes": [serving, other] }));
        assert_eq!((state(serving.clone()).recovers, state(serving.clone()).is_done), (false, true));
        assert_eq!((state(recovering.clone()).recovers, state(recovering.clone()).is_done), (true, false));
        assert!(!state(recovering).rests, "there is nothing to ask it for yet");
        assert_eq!(state(refusing).gone, [("media".to_owned(), "the volume does not serve now".to_owned())]);
    }

    #[test]
    fn several_volumes_take_as_long_as_the_slowest() {
        let volume =
            |seconds: f64| json!({ "dirty_blocks": 1, "drain": { "blocks_at_start": 2, "blocks_left": 1, "seconds_left": seconds } });
        let state = |volumes: Value| State::of(&json!({ "volumes": volumes })).seconds_left;
        assert_eq!(state(json!([volume(3.0), volume(7.5), { "dirty_blocks": 0, "drain": null }])), Some(7.5));
        assert_eq!(state(json!([{ "dirty_blocks": 0, "drain": null }])), None);
    }

    #[test]
    fn what_is_lost_is_no_reason_to_go_on() {
        let state = State::of(&json!({ "dirty_blocks": 0, "zero_ranges": 0, "lost_blocks": 3, "drain": null }));
        assert_eq!((state.is_done, state.lost), (true, 3));
    }
}

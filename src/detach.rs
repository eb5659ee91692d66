//! `tidegate detach`: the origin alone becomes the whole truth, and the cache says so. Through the daemon that serves the volume, which
//! then ends; or, where none does, by recovering the cache here.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::Value;
use tidegate_daemon::Failure;
use tidegate_daemon::back::attach::{Contents, contents};
use tidegate_daemon::back::disk::{Access, Disk};
use tidegate_daemon::back::signals::Signals;
use tidegate_daemon::back::update::discard;
use tidegate_daemon::control::Verb;
use tidegate_daemon::detach;
use tidegate_daemon::tell;
use tidegate_daemon::volume::Options;
use tidegate_engine::op::DeviceId;

use crate::args::{Detach, Of};
use crate::config::FILE_NAME;
use crate::progress::Progress;
use crate::status::{self, Known};
use crate::{say, up};

/// How often the daemon is asked how far it is.
const INTERVAL: Duration = Duration::from_millis(100);
/// A daemon that has stopped to answer has so long to end.
const PATIENCE: Duration = Duration::from_secs(30);
/// Exit code of a detach that was cancelled.
const CANCELLED: u8 = 1;

pub fn run(args: &Detach) -> Result<ExitCode, Failure> {
    let (known, volume) = status::volume_of(&args.of)?;
    detach(args, &known, &volume).map_err(|failure| failure.reaching(&volume.reach))
}

fn detach(args: &Detach, known: &Known, volume: &Options) -> Result<ExitCode, Failure> {
    let status = status::asked(&args.of, Verb::Status).ok().filter(|status| status::gone(status).is_none());
    if status.is_none() {
        // What the daemon has said of it does for what the daemon does.
        known.config()?;
    }
    if let Some(id) = &args.discard_dirty {
        return give_up(volume, id, status.is_some());
    }
    // As it is served, which its configuration may not say.
    let served = status.as_ref().and_then(|status| known.served(status).pop()?.1).unwrap_or_else(|| volume.clone());
    let is_detached = match status {
        Some(status) => by_daemon(&args.of, &served, &status, &mut take_signals()?).inspect(|_| served.await_release())?,
        None => {
            known.config()?.keep_states_apart(&up::absolute(&args.of.dir)?.join(FILE_NAME), &[])?;
            here(volume)?
        }
    };
    if !is_detached {
        tell!("tidegate: cancelled; the cache is attached as before, what has gone home stays there");
        return Ok(ExitCode::from(CANCELLED));
    }
    let back = served.reach.complete("`tidegate attach` brings the cache back");
    say(&format!("detached: origin {} alone holds everything; {back}", served.origin.display()));
    Ok(ExitCode::SUCCESS)
}

/// Asks the daemon, and waits until it has ended. Answers whether the cache is detached.
fn by_daemon(of: &Of, volume: &Options, status: &Value, signals: &mut Signals) -> Result<bool, Failure> {
    let asked = |verb| status::asked(of, verb);
    let mut bar = Progress::new("detach");
    let failures_at_start = status["destage"]["failures"].as_u64().unwrap_or(0);
    let mut state = asked(Verb::Detach { flush: true })?;
    let (mut most, mut silent_since, mut is_cancelled) = (0, None, false);
    loop {
        let left = state.pointer("/drain/blocks_left").and_then(Value::as_u64).unwrap_or(0);
        let failures = state["destage"]["failures"].as_u64().unwrap_or(0).saturating_sub(failures_at_start);
        most = left.max(most);
        let seconds_left = state.pointer("/drain/seconds_left").and_then(Value::as_f64);
        bar.show_left(most - left, most, seconds_left, &trouble(left, failures));
        std::thread::sleep(INTERVAL);
        if signals.next().is_some() {
            bar.clear();
            // Too late once everything is home: then it ends as if nobody had asked, and whether it has, its state says.
            let _ = asked(Verb::CancelDetach);
            is_cancelled = true;
        }
        match asked(Verb::Status) {
            Ok(status) if status::gone(&status).is_some() => return ended(volume, is_detached(volume)),
            Ok(status) if status["detaching"].as_bool() == Some(true) => (state, silent_since) = (status, None),
            Ok(_) if is_cancelled => return Ok(false),
            Ok(status) if status["cache_health"].as_str().is_some_and(|health| health != "whole") => {
                let what =
                    format!("cache {} failed while it was being detached, and the volume goes on without it", volume.cache.display());
                let rest = volume.reach.complete("`tidegate status` says what it alone had");
                return Err(Failure::new(Failure::IO, format!("{what}; {rest}")));
            }
            Ok(status) => {
                // Somebody has cancelled it, or the daemon has ended it.
                let number = |pointer: &str| status.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
                let (unreadable, lost) = (number("/errors/unreadable_blocks"), number("/lost_blocks"));
                return if unreadable + lost > 0 { Err(detach::stays_behind(unreadable, lost)) } else { Ok(false) };
            }
            // It is about to end, or has: then its locks are gone.
            Err(_) => match is_detached(volume) {
                Err(_) if silent_since.get_or_insert_with(Instant::now).elapsed() < PATIENCE => {}
                found => return ended(volume, found),
            },
        }
    }
}

/// The daemon has ended: in the end only what the cache says counts.
fn ended(volume: &Options, is_detached: Result<bool, Failure>) -> Result<bool, Failure> {
    if is_detached? {
        return Ok(true);
    }
    let what = format!("the daemon ended before cache {} was detached; run `tidegate detach` again", volume.cache.display());
    Err(Failure::new(status::NO_ANSWER, what))
}

/// Does the cache of a volume that nobody serves say that it was taken from its origin?
pub fn is_detached(volume: &Options) -> Result<bool, Failure> {
    let found = contents(&Disk::open(&volume.cache, DeviceId::Cache, Access::Shared)?)?;
    Ok(matches!(found, Contents::Ours(superblock) if superblock.detached))
}

fn here(volume: &Options) -> Result<bool, Failure> {
    let (cache, origin, state) = (volume.cache.clone(), volume.origin.clone(), volume.state.clone());
    let options = detach::Options { cache, origin, state, knobs: volume.knobs };
    let mut bar = Progress::new("detach");
    // Until both disks are held a signal ends it.
    let mut signals = None;
    detach::detach(&options, |progress| {
        let signals = match &mut signals {
            Some(signals) => signals,
            none => none.insert(take_signals()?),
        };
        if let Some(detach::Progress { left, of, seconds_left, failures }) = progress {
            bar.show_left(of - left, of, seconds_left, &trouble(left, failures));
        }
        Ok(signals.next().is_none())
    })
}

fn take_signals() -> Result<Signals, Failure> {
    Signals::take().map_err(|error| Failure::new(Failure::SYSTEM, format!("signals cannot be received: {error}")))
}

fn trouble(left: u64, failures: u64) -> String {
    let trouble = if failures > 0 { format!(", {failures} writes to the origin failed") } else { String::new() };
    format!("{left} blocks left{trouble}")
}

/// Without its dirty blocks.
fn give_up(volume: &Options, id: &str, is_served: bool) -> Result<ExitCode, Failure> {
    if is_served {
        let what = "the volume is being served; stop it first, or detach it without --discard-dirty";
        return Err(Failure::new(Failure::BUSY, what));
    }
    discard(&volume.cache, id)?;
    say(&format!(
        "detached: what only cache {} held is given up; origin {} is a mixture of times where that was",
        volume.cache.display(),
        volume.origin.display()
    ));
    Ok(ExitCode::SUCCESS)
}

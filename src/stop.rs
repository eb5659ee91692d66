//! `tidegate stop`: asks the daemon to stop one volume, or all of them, and waits until what was acknowledged is durable.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::Value;
use tidegate_daemon::Failure;
use tidegate_daemon::back::attach::{Contents, contents};
use tidegate_daemon::back::disk::{Access, Disk};
use tidegate_daemon::control::Verb;
use tidegate_daemon::state::{State, format_of};
use tidegate_daemon::volume::Options;
use tidegate_engine::cache::format::Superblock;
use tidegate_engine::op::DeviceId;

use crate::args::Stop;
use crate::{say, status};

/// How often the daemon is asked how far it is.
const INTERVAL: Duration = Duration::from_millis(50);
/// A daemon that does not answer any more has so long to end.
const PATIENCE: Duration = Duration::from_secs(30);

pub fn run(args: &Stop) -> Result<ExitCode, Failure> {
    let known = status::known(&args.of)?;
    let mut state = status::asked(&args.of, Verb::Stop)?;
    let stopping = known.served(&state);
    let mut silent_since = None;
    loop {
        let volumes = status::volumes(&state);
        if let Some(failed) = volumes.iter().find(|volume| volume["phase"] == "failed") {
            let name = status::called(failed["name"].as_str().unwrap_or_default());
            return Err(Failure::new(status::NO_ANSWER, format!("{name} {}", status::gone(failed).expect("it failed"))));
        }
        if volumes.iter().all(|volume| status::gone(volume).is_some()) {
            break;
        }
        std::thread::sleep(INTERVAL);
        match status::asked(&args.of, Verb::Status) {
            Ok(status) => (state, silent_since) = (status, None),
            // With its last volume the daemon ends. What it did not say any more, it has written down.
            Err(_) if !stopping.iter().filter_map(|(_, volume)| volume.as_ref()).any(is_held) => {
                let served = stopping.iter().filter(|(name, _)| has_served(&state, name));
                served.filter(|(_, volume)| !volume.as_ref().is_some_and(was_stopped)).try_for_each(|(name, _)| uncertain(name))?;
                break;
            }
            Err(_) if silent_since.get_or_insert_with(Instant::now).elapsed() < PATIENCE => {}
            Err(failure) => return Err(failure),
        }
    }
    stopping.iter().filter_map(|(_, volume)| volume.as_ref()).for_each(Options::await_release);
    let number = |volume: &Value, pointer: &str| volume.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
    let lost = |volume: &Value| number(volume, "/lost_blocks") + number(volume, "/errors/unreadable_blocks");
    say(&said(status::volumes(&state).iter().map(lost).sum()));
    Ok(ExitCode::SUCCESS)
}

/// Somebody has its cache for himself.
fn is_held(volume: &Options) -> bool {
    Disk::open(&volume.cache, DeviceId::Cache, Access::Shared).is_err_and(|failure| failure.code == Failure::BUSY)
}

/// Was anything of it acknowledged? One that is told to stop while it recovers serves nobody any more.
fn has_served(state: &Value, name: &str) -> bool {
    status::volumes(state).iter().any(|status| status["name"].as_str().unwrap_or_default() == name && status["phase"] == "serving")
}

/// Did the daemon write down, on the host or in the cache, that it has stopped the volume in order?
fn was_stopped(volume: &Options) -> bool {
    let on_host = State::read(&volume.state).ok().flatten();
    let is_its = |superblock: &Superblock| on_host.as_ref().is_none_or(|state| state.format == format_of(superblock));
    let in_cache = || {
        let found = Disk::open(&volume.cache, DeviceId::Cache, Access::Shared).and_then(|disk| contents(&disk));
        matches!(found, Ok(Contents::Ours(superblock)) if (superblock.clean || superblock.detached) && is_its(&superblock))
    };
    on_host.as_ref().is_some_and(|state| state.stopped) || in_cache()
}

fn uncertain(name: &str) -> Result<(), Failure> {
    let what =
        format!("the daemon ended before {} was stopped in order: what was flushed is durable, no more is certain", status::called(name));
    Err(Failure::new(status::NO_ANSWER, what))
}

/// What was stopped in order is like, with so many blocks of it lost.
pub fn said(lost_blocks: u64) -> String {
    match lost_blocks {
        0 => "stopped; every acknowledged write is durable".to_owned(),
        lost => format!("stopped; every acknowledged write is durable, but for {lost} lost blocks: errors until they are written anew"),
    }
}

//! `tidegate stop`: asks the daemon to stop one volume, or all of them, and waits until what was acknowledged is durable.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;
use tidegate_daemon::Failure;
use tidegate_daemon::back::attach::{Contents, contents};
use tidegate_daemon::back::disk::{Access, Disk};
use tidegate_daemon::control::Verb;
use tidegate_daemon::state::State;
use tidegate_daemon::volume::Options;
use tidegate_engine::op::DeviceId;

use crate::args::Stop;
use crate::{say, status, up};

/// How often the daemon is asked how far it is.
const INTERVAL: Duration = Duration::from_millis(50);
/// A daemon that does not answer any more has so long to end.
const PATIENCE: Duration = Duration::from_secs(30);

pub fn run(args: &Stop) -> Result<ExitCode, Failure> {
    let mut state = status::asked(&args.of, Verb::Stop)?;
    let config = up::config_of(&up::absolute(&args.of.dir)?)?;
    let places = config.places(args.of.volume.as_deref()).unwrap_or_default();
    let meant = || places.iter().map(|&place| &config.volumes[place]);
    let mut silent = Duration::ZERO;
    loop {
        let volumes = status::volumes(&state);
        if let Some(failed) = volumes.iter().find(|volume| volume["phase"] == "failed") {
            let name = failed["name"].as_str().unwrap_or("-");
            return Err(Failure::new(status::NO_ANSWER, format!("volume {name:?} {}", status::gone(failed).expect("it failed"))));
        }
        if volumes.iter().all(|volume| status::gone(volume).is_some()) {
            break;
        }
        std::thread::sleep(INTERVAL);
        match status::asked(&args.of, Verb::Status) {
            Ok(status) => state = status,
            // With its last volume the daemon ends. What it did not say any more, it has written down.
            Err(_) if meant().all(|volume| !is_held(volume)) => {
                meant().filter(|volume| has_served(&state, volume)).try_for_each(was_stopped)?;
                break;
            }
            Err(_) if silent < PATIENCE => silent += INTERVAL,
            Err(failure) => return Err(failure),
        }
    }
    meant().for_each(Options::await_release);
    let lost = |volume: &Value| volume["lost_blocks"].as_u64().unwrap_or(0);
    say(&said(status::volumes(&state).iter().map(lost).sum()));
    Ok(ExitCode::SUCCESS)
}

/// Somebody has its cache for himself.
fn is_held(volume: &Options) -> bool {
    Disk::open(&volume.cache, DeviceId::Cache, Access::Shared).is_err_and(|failure| failure.code == Failure::BUSY)
}

/// Was anything of it acknowledged? One that is told to stop while it recovers serves nobody any more.
fn has_served(state: &Value, volume: &Options) -> bool {
    let is_meant = |status: &Value| status["name"].as_str().is_none_or(|name| name == volume.name);
    status::volumes(state).iter().any(|status| is_meant(status) && status["phase"] == "serving")
}

/// Did the daemon write down, on the host or in the cache, that it has stopped the volume in order?
fn was_stopped(volume: &Options) -> Result<(), Failure> {
    let on_host = State::read(&volume.state)?.is_some_and(|state| state.dirty.is_some());
    let in_cache = || {
        let found = Disk::open(&volume.cache, DeviceId::Cache, Access::Shared).and_then(|disk| contents(&disk));
        matches!(found, Ok(Contents::Ours(superblock)) if superblock.clean || superblock.detached)
    };
    if on_host || in_cache() {
        return Ok(());
    }
    let what =
        format!("the daemon ended before volume {:?} was stopped in order: what was flushed is durable, no more is certain", volume.name);
    Err(Failure::new(status::NO_ANSWER, what))
}

/// What was stopped in order is like, with so many blocks of it lost.
pub fn said(lost_blocks: u64) -> String {
    match lost_blocks {
        0 => "stopped; every acknowledged write is durable".to_owned(),
        lost => format!("stopped; every acknowledged write is durable, but for {lost} lost blocks: errors until they are written anew"),
    }
}

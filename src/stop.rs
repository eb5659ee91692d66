//! `tidegate stop`: asks the daemon to stop one volume, or all of them, and waits until what was acknowledged is durable.

use std::process::ExitCode;
use std::time::Duration;

use tidegate_daemon::Failure;
use tidegate_daemon::control::Verb;

use crate::args::Stop;
use crate::{say, status, up};

/// How often the daemon is asked how far it is.
const INTERVAL: Duration = Duration::from_millis(50);

pub fn run(args: &Stop) -> Result<ExitCode, Failure> {
    let mut state = status::asked(&args.of, Verb::Stop)?;
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
            // With its last volume the daemon ends. How, it says itself.
            Err(_) => break,
        }
    }
    let config = up::config_of(&up::absolute(&args.of.dir)?)?;
    for place in config.places(args.of.volume.as_deref()).unwrap_or_default() {
        config.volumes[place].await_release();
    }
    say("stopped; every acknowledged write is durable");
    Ok(ExitCode::SUCCESS)
}

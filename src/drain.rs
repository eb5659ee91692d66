//! `tidegate drain`: asks the daemon to send everything dirty home, and waits for it. The volume stays in use meanwhile.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::Value;
use tidegate_daemon::Failure;
use tidegate_daemon::back::signals::Signals;
use tidegate_daemon::control::{Verb, ask};

use crate::args::Drain;
use crate::progress::Progress;
use crate::{say, status, units};

/// How often the daemon is asked how far it is.
const INTERVAL: Duration = Duration::from_millis(100);
/// Exit code of a drain that was cancelled.
const CANCELLED: u8 = 1;

pub fn run(args: &Drain) -> Result<ExitCode, Failure> {
    let socket = status::control_socket(&args.dir)?;
    let asked = |verb| ask(&socket, verb, None).map_err(|message| Failure::new(status::NO_ANSWER, message));
    let mut signals = Signals::take().map_err(|error| Failure::new(Failure::SYSTEM, format!("signals cannot be received: {error}")))?;
    let started = Instant::now();
    let mut bar = Progress::new("drain");
    let mut state = State::of(&asked(Verb::Drain)?);
    let failures_at_start = state.failures;
    while state.blocks_left > 0 {
        if signals.next().is_some() {
            let state = State::of(&asked(Verb::CancelDrain)?);
            bar.clear();
            eprintln!("tidegate: cancelled; {} blocks are still dirty", state.blocks_left);
            return Ok(ExitCode::from(CANCELLED));
        }
        let failures = state.failures - failures_at_start;
        let trouble = if failures > 0 { format!(", {failures} writes to the origin failed") } else { String::new() };
        let total = state.blocks_at_start;
        bar.show(total - state.blocks_left, total, &format!("{} blocks left{trouble}", state.blocks_left));
        std::thread::sleep(INTERVAL);
        // What was written since the drain began is dirty too: it is asked for again until nothing is.
        let status = asked(Verb::Status)?;
        state = State::of(&if status["drain"].is_null() { asked(Verb::Drain)? } else { status });
    }
    drop(bar);
    say(&format!("drained in {}: nothing is dirty, the origin holds everything", units::show_seconds(started.elapsed().as_secs_f64())));
    Ok(ExitCode::SUCCESS)
}

/// How far it is, as the daemon says.
struct State {
    blocks_at_start: u64,
    /// Dirty blocks and zeroed ranges: everything that the origin does not have yet.
    blocks_left: u64,
    /// Destages that failed since the daemon's start.
    failures: u64,
}

impl State {
    fn of(status: &Value) -> State {
        let number = |pointer: &str| status.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
        let left = number("/dirty_blocks") + number("/zero_ranges");
        // Zeroed ranges count in blocks while the drain knows them.
        let blocks_left = if left == 0 { 0 } else { number("/drain/blocks_left").max(left) };
        State { blocks_at_start: number("/drain/blocks_at_start").max(blocks_left), blocks_left, failures: number("/destage/failures") }
    }
}

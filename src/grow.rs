//! `tidegate grow`: the volume becomes as large as its origin has become.

use std::process::ExitCode;

use tidegate_daemon::Failure;
use tidegate_daemon::control::Verb;
use tidegate_daemon::grow;
use tidegate_daemon::volume;

use crate::args::Grow;
use crate::{say, status, units, up};

pub fn run(args: &Grow) -> Result<ExitCode, Failure> {
    let (_, volume) = up::volume_of(&args.of)?;
    if status::asked(&args.of, Verb::Status).is_ok_and(|status| status::gone(&status).is_none()) {
        let what = volume.reach.complete("the volume is being served; stop the daemon, or start it again with `tidegate up --grow`");
        return Err(Failure::new(Failure::BUSY, what));
    }
    say(&grown(&volume)?);
    Ok(ExitCode::SUCCESS)
}

/// Answers with what became of it, in one line.
pub fn grown(volume: &volume::Options) -> Result<String, Failure> {
    let grown = grow::grow(volume).map_err(|failure| failure.reaching(&volume.reach))?;
    let (before, now) = (units::show_size(grown.before), units::show_size(grown.now));
    Ok(if grown.before == grown.now {
        format!("origin {} has {now}, as the volume: nothing to take in", volume.origin.display())
    } else {
        format!("the volume has {now} now instead of {before}: clients see it when they connect")
    })
}

//! `tidegate grow`: the volume becomes as large as its origin has become.

use std::process::ExitCode;

use tidegate_daemon::Failure;
use tidegate_daemon::control::Verb;
use tidegate_daemon::grow::{self, Grown};
use tidegate_daemon::volume;

use crate::args::Grow;
use crate::{say, status, units};

pub fn run(args: &Grow) -> Result<ExitCode, Failure> {
    let (known, volume) = status::volume_of(&args.of)?;
    if status::asked(&args.of, Verb::Status).is_ok_and(|status| status::gone(&status).is_none()) {
        let what = volume.reach.complete("the volume is being served; stop the daemon, or start it again with `tidegate up --grow`");
        return Err(Failure::new(Failure::BUSY, what));
    }
    known.config()?;
    grown(std::slice::from_ref(&volume))?.iter().for_each(|line| say(line));
    Ok(ExitCode::SUCCESS)
}

/// All of them grow, or none. Answers with what became of each, in one line.
pub fn grown(volumes: &[volume::Options]) -> Result<Vec<String>, Failure> {
    let reaching = |volume: &volume::Options, failure: Failure| failure.reaching(&volume.reach);
    let look = |volume| grow::look(volume).map_err(|failure| reaching(volume, failure));
    let ready = volumes.iter().map(look).collect::<Result<Vec<_>, _>>()?;
    let grow =
        |(volume, ready): (_, grow::Ready)| ready.grow().map(|grown| told(volume, grown)).map_err(|failure| reaching(volume, failure));
    volumes.iter().zip(ready).map(grow).collect()
}

fn told(volume: &volume::Options, grown: Grown) -> String {
    let (before, now) = (units::show_size(grown.before), units::show_size(grown.now));
    let which = status::called(volume.reach.volume.as_deref().unwrap_or_default());
    if grown.before == grown.now {
        format!("origin {} has {now}, as {which}: nothing to take in", volume.origin.display())
    } else {
        format!("{which} has {now} now instead of {before}: clients see it when they connect")
    }
}

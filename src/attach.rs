//! `tidegate attach`: a cache in front of a disk that has data, which keeps it. Nothing is written to the disk; what an earlier use of the
//! cache left is dropped, because the disk may have changed since. `up` comes this way too when its cache is missing or blank.

use std::path::Path;
use std::process::ExitCode;

use tidegate_daemon::Failure;
use tidegate_daemon::advice::Reach;
use tidegate_daemon::back::attach::{Contents, contents};
use tidegate_daemon::back::disk::{Access, Disk, is_missing};
use tidegate_daemon::create::{CreateOptions, Created, Overwrite, Own, Ready};
use tidegate_daemon::state::{Loss, State};
use tidegate_daemon::tell;
use tidegate_daemon::volume::Options;
use tidegate_engine::Mode;
use tidegate_engine::op::DeviceId;

use crate::args::{Attach, Of};
use crate::first_run::CACHE_BYTES;
use crate::make::{is_there, lies_in, make};
use crate::up::{self, Place};
use crate::{say, units};

pub fn run(args: &Attach) -> Result<ExitCode, Failure> {
    let place = Place::new(&args.dir, args.origin.as_deref(), args.cache.as_deref())?;
    let named = &place.named;
    let of = Of { dir: args.dir.clone(), volume: args.volume.clone() };
    let configured = up::one_of(&up::config_of(&place.folder)?, &of)?;
    let volume = Options {
        origin: named.origin.clone().unwrap_or(configured.origin.clone()),
        cache: named.cache.clone().unwrap_or(configured.cache.clone()),
        reach: Reach { origin: named.origin.clone(), cache: named.cache.clone(), ..configured.reach.clone() },
        ..configured.clone()
    };
    if !place.is_new && (volume.origin != configured.origin || volume.cache != configured.cache) {
        let (origin, cache) = (configured.origin.display(), configured.cache.display());
        let what =
            format!("{} names origin {origin} and cache {cache}; edit it, or choose another folder with --dir", place.path.display());
        return Err(Failure::new(Failure::REFUSED, what));
    }
    let mut file = place.file.clone();
    file.override_with(named.clone());
    file.in_folder(&place.folder).keep_states_apart(&place.path, &[])?;
    if is_missing(&volume.origin) {
        let what = format!("origin {} is missing: mount its disk, or name one that exists", volume.origin.display());
        return Err(Failure::new(Failure::NO_INPUT, what));
    }
    // What the operator named must be there, unless he says how large it is to be.
    let is_own = named.cache.is_none() && lies_in(&place.folder, &volume.cache);
    let cache_bytes = args.cache_size.or(is_own.then_some(CACHE_BYTES));
    if cache_bytes.is_none() && named.cache.is_none() {
        is_there("cache", &volume.cache, &place.path, "--cache-size")?;
    }
    // What a detached one held went home when it was detached, or was given up then.
    let options =
        CreateOptions { cache_bytes, overwrite: Overwrite::Detached, ..CreateOptions::new(volume.origin.clone(), volume.cache.clone()) };
    let created = make(&place, &volume, &options, Own { origin: true, cache: true })?;
    tell_kept_size(args.cache_size, &created, &volume.cache);
    say(&format!(
        "attached: origin {} ({}) keeps what it holds, cache {} is empty\n{}",
        volume.origin.display(),
        units::show_size(created.volume_bytes()),
        volume.cache.display(),
        configured.reach.complete("serve it with `tidegate up`; `tidegate detach` undoes it"),
    ));
    Ok(ExitCode::SUCCESS)
}

/// A size that was said and counts for nothing.
pub fn tell_kept_size(said: Option<u64>, created: &Created, cache: &Path) {
    if said.is_some() && !created.cache_is_new {
        let bytes = units::show_size(created.held.cache.bytes());
        tell!("tidegate: --cache-size is for a cache that is made: {} was there and keeps its {bytes}", cache.display());
    }
}

/// A blank cache of a volume that has a configuration is formatted, unless the one before it may have held the only copy of something.
pub fn replace_blank(volume: &Options) -> Result<(), Failure> {
    let is_blank = |disk: &Disk| matches!(contents(disk), Ok(Contents::Blank));
    if !Disk::open(&volume.cache, DeviceId::Cache, Access::Shared).is_ok_and(|disk| is_blank(&disk)) {
        // What is there, or is not, the start looks at.
        return Ok(());
    }
    // Whatever it was then, from here on nobody else changes it.
    let ready = Ready::hold(&CreateOptions::new(volume.origin.clone(), volume.cache.clone()), &mut || Ok(()));
    let ready = ready.map_err(|failure| failure.reaching(&volume.reach))?;
    let known = State::read(&volume.state)?;
    if let Some(known) = &known
        && let Loss::Some(held) = known.loss(&volume.state)
        && !volume.accept_loss
    {
        let what = format!(
            "cache {} is blank, and the one that this volume last ran with {held}; bring that one back, or give it up with --accept-loss",
            volume.cache.display()
        );
        return Err(Failure::new(Failure::DAMAGED, what));
    }
    // A new cache promises what the last one did.
    let created = ready.format(known.map_or(Mode::WriteBack, |known| known.mode)).map_err(|failure| failure.reaching(&volume.reach))?;
    created.notes.iter().for_each(|note| tell!("tidegate: {note}"));
    tell!("tidegate: cache {} was blank and is formatted", volume.cache.display());
    Ok(())
}

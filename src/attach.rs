//! `tidegate attach`: a cache in front of a disk that has data, which keeps it. Nothing is written to the disk; what an earlier use of the
//! cache left is dropped, because the disk may have changed since. `up` comes this way too when its cache is missing or blank.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use tidegate_daemon::Failure;
use tidegate_daemon::advice::Reach;
use tidegate_daemon::back::attach::{Contents, contents};
use tidegate_daemon::back::disk::{Access, Disk};
use tidegate_daemon::create::{CreateOptions, Created, create};
use tidegate_daemon::state::{Loss, State};
use tidegate_daemon::tell;
use tidegate_daemon::volume::Options;
use tidegate_engine::Mode;
use tidegate_engine::op::DeviceId;

use crate::args::{Attach, Of};
use crate::first_run::{CACHE_BYTES, Folders, NewConfig};
use crate::up::{self, Place};
use crate::{say, units};

pub fn run(args: &Attach) -> Result<ExitCode, Failure> {
    let Place { folder, path, mut file, named, is_new } = Place::new(&args.dir, args.origin.as_deref(), args.cache.as_deref())?;
    let of = Of { dir: args.dir.clone(), volume: args.volume.clone() };
    let (_, configured) = up::volume_of(&of)?;
    let volume = Options {
        origin: named.origin.clone().unwrap_or(configured.origin.clone()),
        cache: named.cache.clone().unwrap_or(configured.cache.clone()),
        reach: Reach { origin: named.origin.clone(), cache: named.cache.clone(), ..configured.reach.clone() },
        ..configured.clone()
    };
    if !is_new && (volume.origin != configured.origin || volume.cache != configured.cache) {
        let (origin, cache) = (configured.origin.display(), configured.cache.display());
        let what = format!("{} names origin {origin} and cache {cache}; edit it, or choose another folder with --dir", path.display());
        return Err(Failure::new(Failure::REFUSED, what));
    }
    file.override_with(named.clone());
    file.in_folder(&folder).keep_states_apart()?;
    fs::metadata(&volume.origin).map_err(|error| {
        Failure::new(Failure::NO_INPUT, format!("origin {}: {error}; name a disk that exists", volume.origin.display()))
    })?;
    // What the operator named must be there, unless he says how large it is to be.
    let is_own = named.cache.is_none() && lies_in(&folder, &volume.cache);
    let cache_bytes = args.cache_size.or(is_own.then_some(CACHE_BYTES));
    if cache_bytes.is_none() && named.cache.is_none() {
        is_there(&volume.cache, &path)?;
    }
    let mut folders = Folders::make(&folder)?;
    // First: a cache is attached once, and where that cannot be written down it is to be as it was.
    let config = is_new.then(|| NewConfig::write(&path, &named)).transpose()?;
    let created = attach(&volume, cache_bytes).map_err(|failure| failure.reaching(&volume.reach))?;
    config.into_iter().for_each(NewConfig::keep);
    folders.keep();
    tell_kept_size(args.cache_size, &created, &volume.cache);
    created.notes.iter().for_each(|note| tell!("tidegate: {note}"));
    say(&format!(
        "attached: origin {} ({}) keeps what it holds, cache {} is empty\n{}",
        volume.origin.display(),
        units::show_size(created.volume_bytes()),
        volume.cache.display(),
        configured.reach.complete("serve it with `tidegate up`; `tidegate detach` undoes it"),
    ));
    Ok(ExitCode::SUCCESS)
}

/// Is it called so because nothing else was said? Then it may be made; elsewhere a disk may not be mounted.
pub fn lies_in(folder: &Path, cache: &Path) -> bool {
    cache.parent() == Some(folder)
}

/// A cache that the configuration names elsewhere is there, or its disk is not mounted.
pub fn is_there(cache: &Path, config: &Path) -> Result<(), Failure> {
    if !up::is_missing(cache) {
        return Ok(());
    }
    let (cache, config) = (cache.display(), config.display());
    let what = format!("cache {cache}, which {config} names, is missing: mount its disk, or have a file made there with --cache-size");
    Err(Failure::new(Failure::NO_INPUT, what))
}

/// A size that was said and counts for nothing.
pub fn tell_kept_size(said: Option<u64>, created: &Created, cache: &Path) {
    if said.is_some() && !created.cache_is_new {
        let bytes = units::show_size(created.held.cache.bytes());
        tell!("tidegate: --cache-size is for a cache that is made: {} was there and keeps its {bytes}", cache.display());
    }
}

/// Formats the cache if it is blank or was detached; makes one of `cache_bytes` if it is missing.
fn attach(volume: &Options, cache_bytes: Option<u64>) -> Result<Created, Failure> {
    let is_detached = match look(&volume.cache)? {
        Some(Contents::Ours(superblock)) if superblock.detached => true,
        Some(Contents::Ours(_)) => {
            let what = format!("cache {} is attached already; serve it with `tidegate up`", volume.cache.display());
            return Err(Failure::new(Failure::REFUSED, what));
        }
        Some(Contents::Blank | Contents::Unreadable(_) | Contents::Foreign(_)) | None => false,
    };
    let options = CreateOptions {
        cache_bytes,
        // What it held went home when it was detached, or was given up then.
        force: is_detached,
        mode: last_mode(volume)?,
        ..CreateOptions::new(volume.origin.clone(), volume.cache.clone())
    };
    let created = create(&options)?;
    if is_detached {
        State::give_up(&volume.state)?;
    }
    Ok(created)
}

/// A blank cache of a volume that has a configuration is formatted, unless the one before it may have held the only copy of something.
pub fn replace_blank(volume: &Options) -> Result<(), Failure> {
    if !matches!(look(&volume.cache), Ok(Some(Contents::Blank))) {
        // What is there, or is not, the start looks at.
        return Ok(());
    }
    if let Some(known) = State::read(&volume.state)?
        && let Loss::Some(held) = known.loss(&volume.state)
        && !volume.accept_loss
    {
        let what = format!(
            "cache {} is blank, and the one that this volume last ran with {held}; bring that one back, or give it up with --accept-loss",
            volume.cache.display()
        );
        return Err(Failure::new(Failure::DAMAGED, what));
    }
    let options = CreateOptions { mode: last_mode(volume)?, ..CreateOptions::new(volume.origin.clone(), volume.cache.clone()) };
    let created = create(&options).map_err(|failure| failure.reaching(&volume.reach))?;
    created.notes.iter().for_each(|note| tell!("tidegate: {note}"));
    tell!("tidegate: cache {} was blank and is formatted", volume.cache.display());
    Ok(())
}

/// A new cache promises what the last one did.
pub fn last_mode(volume: &Options) -> Result<Mode, Failure> {
    Ok(State::read(&volume.state)?.map_or(Mode::WriteBack, |state| state.mode))
}

/// What a cache holds; nothing if it does not exist.
fn look(cache: &Path) -> Result<Option<Contents>, Failure> {
    if fs::symlink_metadata(cache).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
        return Ok(None);
    }
    contents(&Disk::open(cache, DeviceId::Cache, Access::Shared)?).map(Some)
}

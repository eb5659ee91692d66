//! What `tidegate create` and `tidegate attach` have in common: both disks are held, and everything is tried that may be refused, before anything of
//! what was there is changed. From then on it is done as a whole.

use std::path::Path;

use tidegate_daemon::back::disk::is_missing;
use tidegate_daemon::create::{CreateOptions, Created, Overwrite, Own, Ready};
use tidegate_daemon::state::{self, State};
use tidegate_daemon::volume::Options;
use tidegate_daemon::{Failure, tell, whole};
use tidegate_engine::Mode;

use crate::first_run::{NewConfig, Room};
use crate::up::Place;

/// Makes what is missing, formats the cache, and writes the configuration of a folder that has none.
///
/// # Errors
/// One line; nothing was created or changed, unless it says that the cache is formatted.
pub fn make(place: &Place, volume: &Options, options: &CreateOptions, own: Own) -> Result<Created, Failure> {
    let mut room = Room::of(&place.folder);
    let ready = Ready::hold(options, &mut || room.make()).map_err(|failure| failure.reaching(&volume.reach))?;
    room.make()?;
    let known = State::read(&volume.state)?;
    let begins_anew = options.overwrite == Overwrite::Anything || ready.replaced().is_some();
    // Who is served by it, from other disks, would find its cache given up. (Other disks of ours take nothing from it.)
    let _held = (begins_anew && own.origin && known.is_some()).then(|| state::Place::hold(&volume.state)).transpose()?;
    // That may have taken a while.
    room.make()?;
    if begins_anew && known.is_some() {
        whole::try_out(&volume.state, 0o600).map_err(|error| {
            let what =
                format!("{}: {error}; what this volume knows of its cache could not be changed, so nothing was", volume.state.display());
            Failure::new(Failure::NOT_CREATED, what)
        })?;
    }
    // From here on no signal is looked at: what is left takes a moment, and a part of it would be nothing.
    let config = place.is_new.then(|| NewConfig::write(&place.path, &place.named)).transpose()?;
    // A new cache promises what the last one did.
    let mode = known.filter(|_| own.origin).map(|known| known.mode).or(ready.replaced().map(|replaced| replaced.mode));
    let created = ready.format(mode.unwrap_or(Mode::WriteBack))?;
    config.into_iter().for_each(NewConfig::keep);
    room.keep();
    created.notes.iter().for_each(|note| tell!("tidegate: {note}"));
    if begins_anew {
        let cache = volume.cache.display();
        let begun = created.begin_anew(&volume.state, own);
        let begun = begun.map_err(|failure| Failure::new(failure.code, format!("cache {cache} is formatted by now, but {failure}")))?;
        begun.iter().for_each(|note| tell!("tidegate: {note}"));
    }
    Ok(created)
}

/// What the configuration names elsewhere is there, or its disk is not mounted: there no file is made unasked. `size` is the flag that asks.
pub fn is_there(role: &str, path: &Path, config: &Path, size: &str) -> Result<(), Failure> {
    if !is_missing(path) {
        return Ok(());
    }
    let (path, config) = (path.display(), config.display());
    let what = format!("{role} {path}, which {config} names, is missing: mount its disk, or have a file made there with {size}");
    Err(Failure::new(Failure::NO_INPUT, what))
}

/// Is it called so because nothing else was said? Then it may be made; elsewhere a disk may not be mounted.
pub fn lies_in(folder: &Path, disk: &Path) -> bool {
    disk.parent() == Some(folder)
}

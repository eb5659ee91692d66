//! The first run of `tidegate up`: a folder becomes a volume, or nothing is left of the trial.
//!
//! The configuration is written last, when the volume serves: a first run that was cut short is a first run again, and one that is refused leaves
//! nothing behind. What it made it holds without a moment between, from before anybody could find anything in it until it is kept or gone: what is
//! removed, nobody else has served. (`create` and `attach`, which serve nothing, write theirs first, and take it back: [`NewConfig`].)

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidegate_daemon::Failure;
use tidegate_daemon::back::attach::{Held, superblock};
use tidegate_daemon::back::disk::{Access, Disk, is_missing};
use tidegate_daemon::back::signals::Signals;
use tidegate_daemon::create::{CreateOptions, Ready};
use tidegate_daemon::dirty::Dirty;
use tidegate_daemon::state::{State, format_of};
use tidegate_daemon::tell;
use tidegate_daemon::volume;
use tidegate_daemon::whole;
use tidegate_engine::Mode;
use tidegate_engine::op::DeviceId;

use crate::up::{CONFIG_MODE, Named, config_failed};
use crate::{config, units};

/// Made when nothing else is named: large enough for a try, small on the disk because it is sparse.
pub const ORIGIN_BYTES: u64 = 8 << 30;
pub const CACHE_BYTES: u64 = 1 << 30;

/// A folder becomes a volume. Whatever was made for it is removed again, unless the volume serves.
pub struct FirstRun {
    config: PathBuf,
    named: Named,
    /// Nothing once it is kept.
    made: Option<Made>,
    room: Room,
}

/// The disks of a volume, and what of them is new.
struct Made {
    held: Arc<Held>,
    origin_is_new: bool,
    cache_is_new: bool,
    /// The identity of the cache.
    format: String,
    /// Where nothing was: what the host knows of the cache, and what of it is dirty, both called after this.
    state: PathBuf,
    state_is_new: bool,
    dirty_is_new: bool,
}

impl FirstRun {
    /// Makes what is missing. What the operator named must be there: a typing error must not become a file of 8 GiB.
    pub fn begin(folder: &Path, config: PathBuf, named: Named, volume: &mut volume::Options) -> Result<FirstRun, Failure> {
        let mut room = Room::of(folder);
        let made = Made::of(&named, volume, &mut room).map_err(|failure| failure.reaching(&volume.reach))?;
        volume.held = Arc::downgrade(&made.held);
        Ok(FirstRun { config, named, made: Some(made), room })
    }

    /// The volume serves: it has a configuration from now on.
    ///
    /// # Errors
    /// One line: that cannot be written. What was made goes when this goes: when the volume has ended, or a second signal ends everything at once.
    pub fn keep(&mut self) -> Result<(), Failure> {
        NewConfig::write(&self.config, &self.named)?.keep();
        self.room.keep();
        self.made.take().into_iter().for_each(Made::keep);
        Ok(())
    }
}

impl Made {
    fn of(named: &Named, volume: &volume::Options, room: &mut Room) -> Result<Made, Failure> {
        // A cache that was formatted already (by `tidegate create`, or by a first run that was cut short) is served as it is, and never
        // with a new origin: whether it belongs to the one that is there, the start finds out.
        let (held, origin_is_new, cache_is_new) = if is_formatted(&volume.cache)? {
            let missing = |error| {
                let (cache, origin) = (volume.cache.display(), volume.origin.display());
                Failure::new(Failure::NO_INPUT, format!("cache {cache} has an origin, but origin {origin}: {error}; name it with --origin"))
            };
            fs::metadata(&volume.origin).map_err(missing)?;
            let held = Held::open(&volume.cache, &volume.origin)?;
            room.make()?;
            (held, false, false)
        } else {
            let options = CreateOptions {
                origin_bytes: named.origin.is_none().then_some(ORIGIN_BYTES),
                cache_bytes: named.cache.is_none().then_some(CACHE_BYTES),
                ..CreateOptions::new(volume.origin.clone(), volume.cache.clone())
            };
            let ready = Ready::hold(&options, &mut || room.make()).map_err(|failure| formatted_meanwhile(&volume.cache, failure))?;
            room.make()?;
            let created = ready.format(Mode::WriteBack)?;
            created.notes.iter().for_each(|note| tell!("tidegate: {note}"));
            tell!(
                "tidegate: origin {} ({}, {}), cache {} ({})",
                volume.origin.display(),
                units::show_size(created.volume_bytes()),
                if created.origin_is_new { "new" } else { "kept" },
                volume.cache.display(),
                if created.cache_is_new { "new" } else { "formatted" },
            );
            (created.held, created.origin_is_new, created.cache_is_new)
        };
        let format = superblock(&held.cache).map(|superblock| format_of(&superblock))?;
        // Looked at now that nobody else can serve this cache.
        let (state_is_new, dirty_is_new) = (is_missing(&volume.state), is_missing(&Dirty::path(&volume.state)));
        let state = volume.state.clone();
        Ok(Made { held: Arc::new(held), origin_is_new, cache_is_new, format, state, state_is_new, dirty_is_new })
    }

    fn keep(mut self) {
        (self.origin_is_new, self.cache_is_new, self.state_is_new, self.dirty_is_new) = (false, false, false, false);
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // What is not there needs no word: why nothing serves is being told. Of another cache than this one, it is another one's.
        if self.state_is_new && matches!(State::read(&self.state), Ok(Some(state)) if state.format == self.format) {
            let _ = fs::remove_file(&self.state);
        }
        if self.dirty_is_new && Dirty::read(&self.state, &self.format).is_some() {
            let _ = fs::remove_file(Dirty::path(&self.state));
        }
        for (disk, is_new) in [(&self.held.origin, self.origin_is_new), (&self.held.cache, self.cache_is_new)] {
            if is_new {
                disk.remove();
            }
        }
    }
}

/// # Errors
/// One line: somebody else has it, and what it is by the time that he has not, nobody knows yet.
fn is_formatted(cache: &Path) -> Result<bool, Failure> {
    match Disk::open(cache, DeviceId::Cache, Access::Shared) {
        Ok(disk) => Ok(superblock(&disk).is_ok()),
        Err(failure) if failure.code == Failure::BUSY => Err(failure),
        // One that cannot be opened or read is not: `create` says why.
        Err(_) => Ok(false),
    }
}

/// Who waited while another first run made the volume is not told to overwrite it.
fn formatted_meanwhile(cache: &Path, failure: Failure) -> Failure {
    match is_formatted(cache) {
        Ok(true) if failure.code == Failure::REFUSED => {
            Failure::new(Failure::BUSY, format!("cache {} was formatted just now by somebody else; try again", cache.display()))
        }
        Ok(_) | Err(_) => failure,
    }
}

/// A configuration that was not there, of a volume that is made or attached: removed again unless kept.
pub struct NewConfig(Option<(PathBuf, File)>);

impl NewConfig {
    /// # Errors
    /// One line; nothing is left of it.
    pub fn write(path: &Path, named: &Named) -> Result<NewConfig, Failure> {
        let written = whole::create(path, config::first_file(named).as_bytes(), CONFIG_MODE);
        let file = written.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => {
                Failure::new(Failure::BUSY, format!("{} was made just now by somebody else; try again", path.display()))
            }
            _ => config_failed(path, &error),
        })?;
        Ok(NewConfig(Some((path.to_owned(), file))))
    }

    pub fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for NewConfig {
    fn drop(&mut self) {
        // Somebody else's that has taken its place stays.
        self.0.iter().for_each(|(path, file)| whole::remove(path, file));
    }
}

/// Where a volume is made: its folder, from when something is to be made in it. Who is ended before that, while he waits for a disk that is there, has
/// made nothing; from then on a signal ends nothing by itself, since what was made has to go again.
pub struct Room {
    folder: PathBuf,
    folders: Option<Folders>,
    signals: Option<Signals>,
}

impl Room {
    pub fn of(folder: &Path) -> Room {
        Room { folder: folder.to_owned(), folders: None, signals: None }
    }

    /// Makes the folder; again and again, it looks for signals.
    ///
    /// # Errors
    /// One line: it cannot be made, or a signal has come.
    pub fn make(&mut self) -> Result<(), Failure> {
        let unheard = |error| Failure::new(Failure::SYSTEM, format!("signals cannot be received: {error}"));
        let signals = match &mut self.signals {
            Some(signals) => signals,
            none => none.insert(Signals::take().map_err(unheard)?),
        };
        if self.folders.is_none() {
            self.folders = Some(Folders::make(&self.folder)?);
        }
        match signals.next() {
            None => Ok(()),
            // As shells count.
            Some(signal) => Err(Failure::new(128 + signal as u8, "interrupted: what was made for the volume is removed again")),
        }
    }

    pub fn keep(&mut self) {
        self.folders.iter_mut().for_each(Folders::keep);
    }
}

/// Folders that were not there, outermost first: removed again unless kept, as far as they are empty.
pub struct Folders(Vec<PathBuf>);

impl Folders {
    /// Makes the folder of a volume, its owner's alone, and those above it that are missing; their names are durable.
    ///
    /// # Errors
    /// One line.
    pub fn make(folder: &Path) -> Result<Folders, Failure> {
        let mut missing: Vec<PathBuf> = folder.ancestors().take_while(|folder| !folder.is_dir()).map(Path::to_owned).collect();
        missing.reverse();
        let mut made = Folders(Vec::new());
        for folder in missing {
            let failed = |error: io::Error| {
                Failure::new(Failure::NOT_CREATED, format!("folder {}: {error}; name another one with --dir", folder.display()))
            };
            match fs::DirBuilder::new().mode(0o700).create(&folder) {
                Ok(()) => made.0.push(folder.clone()),
                // Somebody was faster, whose it is.
                Err(_) if folder.is_dir() => continue,
                Err(error) => return Err(failed(error)),
            }
            let above = folder.parent().expect("the root is there");
            // One that may be written to and not read keeps its names as well as it does.
            File::open(above).map_or(Ok(()), |above| above.sync_all()).map_err(failed)?;
        }
        Ok(made)
    }

    pub fn keep(&mut self) {
        self.0.clear();
    }
}

impl Drop for Folders {
    fn drop(&mut self) {
        for folder in self.0.iter().rev() {
            // One that is not empty stays, and its contents tell why.
            let _ = fs::remove_dir(folder);
        }
    }
}

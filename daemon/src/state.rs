//! `tidegate.state`: what the host knows of a volume's cache, so that an older copy of it, or another one, is not taken for it.
//!
//! It is written, and synced, before the first request of a start is answered, at an orderly stop, and when the cache fails in service:
//! then before anything is acknowledged without it, so that an SSD that missed writes is not taken back. Without it (it was deleted, or the
//! volume is new) nothing is compared. A cache that the volume went on without is remembered: it has missed writes, and is never taken again.
//!
//! Its folder is held from the start on: it stays the same one when it is renamed, and another one that has its name by then is not written to, unless it is
//! a copy that knows the same cache, that nobody serves or has served from since, and that would be started with a disk of ours. A copy whose cache and
//! origin are both other files is a volume by itself, a restored backup for example: what becomes of ours is none of its business.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tidegate_engine::Mode;
use tidegate_engine::block::ATOM_BYTES;
use tidegate_engine::cache::format::Superblock;
use tidegate_engine::probe::ModeView;

use crate::Failure;
use crate::back::attach::{Attached, hex};
use crate::back::disk::{Disk, Kind, file_id, is_missing};
use crate::back::occupied;
use crate::dirty::{Dirty, written_at};
use crate::whole::Folder;

/// Its name in the folder of a volume.
pub const FILE_NAME: &str = "tidegate.state";
/// The largest one that is read, in bytes.
const BYTES_MAX: u64 = 16 << 10;
/// So many caches that must not come back are remembered: those that went last.
const GONE_MAX: usize = 256;
/// How long a state may be marked by a predecessor that is about to end.
const PATIENCE: Duration = Duration::from_secs(3);
const RETRY: Duration = Duration::from_millis(20);

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// The identity that the cache was formatted with, in hexadecimal digits; empty: none has served since the last one was given up.
    pub format: String,
    /// The start that last served: it grows with every one, and the cache knows it too.
    pub epoch: u64,
    /// Size of the volume; not known of files of versions that did not write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Blocks that were newer in the cache than on the origin at the last orderly stop; unknown while it serves, and after a crash.
    pub dirty: Option<u64>,
    /// It was stopped in order, and has not served since.
    #[serde(default)]
    pub stopped: bool,
    /// What a FLUSH promises. Of another mode than write-back: nothing that was flushed is in the cache alone.
    #[serde(default, with = "mode_name")]
    pub mode: Mode,
    /// Whatever the mode: some blocks were found lost or unreadable, of which the origin has older contents or none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exceptions: bool,
    /// The cache failed in service, and the volume went on without it: `dirty` blocks were only there.
    #[serde(default)]
    pub degraded: bool,
    /// The identities of caches that the volume went on without: they have missed writes. Filled in by [`State::write`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<String>,
}

impl State {
    /// The mode counts when it is asked for and recorded: whatever it was or will be, no more is promised than both do.
    pub fn of(superblock: &Superblock, epoch: u64, dirty: Option<u64>, mode: &ModeView) -> State {
        let kept = if mode.wanted.is_home() && mode.recorded.is_home() { mode.wanted } else { Mode::WriteBack };
        let bytes = Some(superblock.geometry.volume_atoms * ATOM_BYTES);
        let stopped = dirty.is_some();
        let format = format_of(superblock);
        State { format, epoch, bytes, dirty, stopped, mode: kept, exceptions: mode.has_exceptions, degraded: false, gone: Vec::new() }
    }

    /// Another cache begins to serve a volume whose last one may be left: before anything of it is changed, it is the one that is known.
    ///
    /// # Errors
    /// One line; the file is as it was.
    pub fn begin(place: &Place, superblock: &Superblock) -> Result<(), Failure> {
        let format = format_of(superblock);
        match place.read()? {
            Some(known) if known.format != format => {
                let bytes = Some(superblock.geometry.volume_atoms * ATOM_BYTES);
                State { format, epoch: superblock.epoch, bytes, mode: superblock.mode, ..State::default() }.write(place)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// The cache is given up, and the volume begins anew with another one, which promises the same: that one never comes back.
    ///
    /// # Errors
    /// One line; the file is as it was.
    pub fn give_up(path: &Path) -> Result<(), Failure> {
        // What cannot be read promised nothing that is known.
        let mode = match State::read(path) {
            Ok(None) => return Ok(()),
            Ok(Some(known)) => known.mode,
            Err(_) => Mode::default(),
        };
        State { dirty: Some(0), mode, ..State::default() }.write(&Place::open(path)?)
    }

    /// Replaces the file, whole or not at all. A cache that was known until now, and is another one, is gone from now on. Where its folder has been
    /// replaced by a copy of it, or removed and made anew, the next start will read that one: it is written too.
    ///
    /// # Errors
    /// One line; the old file is as it was, if that is another volume's by now; or what could not be written may be lost with the power.
    pub fn write(&self, place: &Place) -> Result<(), Failure> {
        let written = self.write_to(place);
        let copied = place.copy(&self.format).map(|copy| self.write_to(&copy));
        place.epoch.set(self.epoch);
        match copied {
            None => written,
            Some(copied) if place.is_gone() => copied,
            // Nothing is lost where only the folder that was served from knows that it was stopped in order.
            Some(_) if self.stopped && !self.degraded => written,
            Some(copied) => copied.and(written),
        }
    }

    fn write_to(&self, place: &Place) -> Result<(), Failure> {
        let known = place.known_before(&self.format)?;
        let mut gone: Vec<String> = known.filter(|format| !format.is_empty() && *format != self.format).collect();
        gone.drain(..gone.len().saturating_sub(GONE_MAX));
        let text = serde_json::to_string(&State { gone, ..self.clone() }).expect("a state is plain") + "\n";
        let written = place.folder.replace(&place.name, text.as_bytes(), 0o600);
        written.map_err(|error| unwritten(&place.called_now(), &error))
    }

    /// What was written last; nothing if there is no file.
    ///
    /// # Errors
    /// One line: it cannot be read, or says nothing that could be.
    pub fn read(path: &Path) -> Result<Option<State>, Failure> {
        State::parse(path, OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path))
    }

    fn parse(path: &Path, opened: io::Result<File>) -> Result<Option<State>, Failure> {
        let failed = |code, why: String| Err(Failure::new(code, format!("{}: {why}", path.display())));
        let not_understood = |why: String| {
            failed(Failure::DAMAGED, format!("{why}; if its cache is the one that this volume last ran with, delete the file"))
        };
        let mut bytes = Vec::new();
        // What cannot be read may say anything: only of what was read is it said that it may go.
        match opened.and_then(|file| file.take(BYTES_MAX + 1).read_to_end(&mut bytes)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                return failed(Failure::PERMISSION, format!("{error}; run as a user who may read it"));
            }
            Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
                return failed(Failure::NO_INPUT, "it is a link, and none is followed there; put the file itself in its place".to_owned());
            }
            Err(error) if error.raw_os_error() == Some(libc::EIO) => {
                return failed(Failure::IO, format!("{error}; see that it can be read"));
            }
            Err(error) => return failed(Failure::NO_INPUT, format!("{error}; see that it can be read")),
            Ok(bytes) if bytes as u64 > BYTES_MAX => return not_understood("it is too long".to_owned()),
            Ok(_) => {}
        }
        serde_json::from_slice(&bytes).map(Some).or_else(|why| not_understood(format!("line {}: {why}", why.line())))
    }
}

/// Does the file lie in the folder, by whatever name that was told?
fn is_below(file: &Path, folder: &Path) -> bool {
    fs::canonicalize(folder).is_ok_and(|folder| file.starts_with(folder))
}

fn unwritten(path: &Path, error: &io::Error) -> Failure {
    Failure::new(Failure::NOT_CREATED, format!("{}: {error}; the volume needs it to know its cache again", path.display()))
}

/// Where a state is read and written: its name in a folder that is held.
#[derive(Debug)]
pub struct Place {
    folder: Folder,
    name: OsString,
    /// As it was called when the folder was opened.
    path: PathBuf,
    /// What was known then.
    opened: Option<State>,
    /// Nothing is there, and what was known before is that.
    is_anew: bool,
    /// The start that was known then, or was written down here since.
    epoch: Cell<u64>,
    /// Of the volume that is served.
    disks: Option<Disks>,
}

/// Which files a volume is served from. A copy of a folder leads to others, if they are in it.
#[derive(Debug)]
struct Disks {
    cache: Served,
    origin: Served,
    /// The cache is a file that lies in the folder, under this name, and is not only led to from there.
    cache_inside: Option<PathBuf>,
}

#[derive(Debug)]
struct Served {
    path: PathBuf,
    /// Nothing of a device, which no folder has a copy of, and which may come back with another number.
    id: Option<String>,
}

impl Served {
    fn of(disk: &Disk) -> Served {
        Served { path: disk.path().to_owned(), id: disk.file_id().filter(|_| disk.kind() == Kind::File) }
    }

    /// Its path leads to another file by now. (What is not there, or cannot be looked at, may be the one that is served.)
    fn is_replaced(&self) -> bool {
        let found = fs::metadata(&self.path).ok().filter(fs::Metadata::is_file);
        self.id.is_some() && found.is_some_and(|found| file_id(Ok(found)) != self.id)
    }
}

impl Place {
    /// # Errors
    /// One line: there is no such folder, or it may not be read.
    pub fn open(path: &Path) -> Result<Place, Failure> {
        let (folder, name) = Folder::of(path).map_err(|error| match error.kind() {
            ErrorKind::PermissionDenied => {
                Failure::new(Failure::PERMISSION, format!("{}: {error}; run as a user who may read its folder", path.display()))
            }
            _ => unwritten(path, &error),
        })?;
        let mut place = Place { folder, name, path: path.to_owned(), opened: None, is_anew: false, epoch: Cell::new(0), disks: None };
        // One that cannot be read stops whoever looks at it.
        place.opened = place.read().ok().flatten();
        place.epoch.set(place.opened.as_ref().map_or(0, |state| state.epoch));
        Ok(place)
    }

    /// Held by somebody who serves nobody, and is to write another cache down: who would serve by it meanwhile is refused.
    ///
    /// # Errors
    /// As [`Place::open`], or somebody serves a volume by it.
    pub fn hold(path: &Path) -> Result<Place, Failure> {
        let place = Place::open(path)?;
        occupied::mark(place.folder.file(), &place.name);
        place.refuse_served()?;
        Ok(place)
    }

    /// A volume is served from these disks, as others who come upon this place see from now on.
    ///
    /// # Errors
    /// One line: somebody else serves a volume by it.
    pub fn serves(&mut self, cache: &Disk, origin: &Disk) -> Result<(), Failure> {
        // Marked before it is asked: of two who come at once neither misses the other.
        occupied::mark(self.folder.file(), &self.name);
        self.refuse_served()?;
        let (served, folder) = (Served::of(cache), self.path.parent().unwrap_or(Path::new("/")));
        let inside = fs::canonicalize(&served.path).ok().filter(|file| served.id.is_some() && is_below(file, folder));
        self.disks = Some(Disks { cache: served, origin: Served::of(origin), cache_inside: inside });
        Ok(())
    }

    /// Who writes another cache down in a state ends the one that is served by it: that would never be taken again. Who served it last may be
    /// about to end, and lets its disks go first.
    ///
    /// # Errors
    /// One line: somebody else serves a volume by it.
    fn refuse_served(&self) -> Result<(), Failure> {
        let until = Instant::now() + PATIENCE;
        while occupied::is_marked(self.folder.file(), &self.name) {
            if Instant::now() >= until {
                let path = self.path.display();
                let what =
                    format!("{path}: another tidegate serves a volume by this state, and it is one volume's: name another file as `state`");
                return Err(Failure::new(Failure::BUSY, what));
            }
            std::thread::sleep(RETRY);
        }
        Ok(())
    }

    /// As it was called when it was opened, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// As it is called now, as far as that is known: another one may have the name that it was opened by.
    fn called_now(&self) -> PathBuf {
        let is_there = || Folder::of(&self.path).is_ok_and(|(named, _)| named.is(&self.folder));
        let moved = || Some(self.folder.path()?.join(&self.name));
        if is_there() { None } else { moved() }.unwrap_or_else(|| self.path.clone())
    }

    /// What was written last; nothing if there is no file.
    ///
    /// # Errors
    /// As [`State::read`].
    pub fn read(&self) -> Result<Option<State>, Failure> {
        State::parse(&self.path, self.folder.open(&self.name))
    }

    /// Another folder has its name by now, and the next start of this volume will be from there: it knows the cache with this identity, as a copy of this
    /// one does; or this one is removed, and nothing is known there yet. Where a later start than ours is written down, or somebody serves, it is another
    /// volume's, with a copy of the cache.
    fn copy(&self, format: &str) -> Option<Place> {
        let mut named = Place::open(&self.path).ok()?;
        if named.folder.is(&self.folder) || occupied::is_marked(named.folder.file(), &named.name) {
            return None;
        }
        let is_next = match &named.opened {
            // A cache that is a copy as well, beside the origin that is served, is nothing but an older one of this volume.
            Some(known) => known.format == format && known.epoch <= self.epoch.get() && !self.both_are_replaced(),
            None => self.is_gone() && !self.cache_went_with_it() && matches!(named.read(), Ok(None)),
        };
        if named.opened.is_none() {
            (named.opened, named.is_anew) = (self.opened.clone(), true);
        }
        is_next.then_some(named)
    }

    /// A volume that is started by the same names has neither of our disks.
    fn both_are_replaced(&self) -> bool {
        self.disks.as_ref().is_some_and(|disks| disks.cache.is_replaced() && disks.origin.is_replaced())
    }

    /// Of a folder that was removed: nobody will come upon the cache again. (With a link, or with the node of a device, nothing but a name goes.)
    fn cache_went_with_it(&self) -> bool {
        let went = |disks: &Disks| disks.cache.is_replaced() || disks.cache_inside.as_deref().is_some_and(is_missing);
        self.disks.as_ref().is_some_and(went)
    }

    /// The folder was removed.
    fn is_gone(&self) -> bool {
        self.folder.is_removed()
    }

    /// Removes what killed processes have left of what they were writing.
    pub fn tidy(&self) {
        self.folder.tidy();
    }

    /// The list of what is dirty beside it, of the cache with this identity.
    pub(crate) fn note(&self, name: &OsStr, format: &str, bytes: &[u8]) -> io::Result<()> {
        if let Some(copy) = self.copy(format) {
            // Whether it can be or not, the one that is served has its own.
            let _ = copy.folder.note(name, bytes, 0o600);
        }
        match self.known_before(format) {
            Ok(_) => self.folder.note(name, bytes, 0o600),
            Err(failure) => Err(io::Error::other(failure.message)),
        }
    }

    /// The caches that were known until now, where the one with the identity `own` is to be written down: those that are gone, and the last one.
    ///
    /// # Errors
    /// One line: another volume has written there since it was opened, or what is there cannot be read now.
    fn known_before(&self, own: &str) -> Result<impl Iterator<Item = String> + use<>, Failure> {
        let before = match State::parse(&self.called_now(), self.folder.open(&self.name)) {
            // What says nothing any more did when it was opened, or would have stopped that start.
            Err(failure) if failure.code == Failure::DAMAGED => self.opened.clone(),
            Ok(None) if self.is_anew => self.opened.clone(),
            read => read?,
        };
        let is_known = |format: &str| format == own || self.opened.as_ref().is_some_and(|opened| opened.format == format);
        if before.as_ref().is_some_and(|state| !is_known(&state.format) || state.gone.iter().any(|gone| gone == own)) {
            let what = format!(
                "{}: somebody else has written another cache down there since this one is used; a state is one volume's: name another file as `state`",
                self.called_now().display()
            );
            return Err(Failure::new(Failure::REFUSED, what));
        }
        Ok(before.into_iter().flat_map(|before| before.gone.into_iter().chain([before.format])))
    }
}

mod mode_name {
    use super::Mode;
    use serde::{Deserialize, Deserializer, Serializer};
    use std::str::FromStr;

    pub fn serialize<S: Serializer>(mode: &Mode, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(mode.name())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Mode, D::Error> {
        Mode::from_str(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// What the loss of the cache that served last may cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Nothing that was promised: why.
    Nothing(&'static str),
    /// What it held, or may have held.
    Some(String),
}

impl State {
    pub fn loss(&self, path: &Path) -> Loss {
        let since = written_at(path).map_or(String::new(), |since| format!(" (this was written down at {since})"));
        match (self.dirty, self.mode.is_home()) {
            (Some(0), _) => Loss::Nothing("the last one held nothing newer than the origin"),
            (None, true) if !self.exceptions => Loss::Nothing("the last one promised the origin: nothing that was flushed is lost with it"),
            (None, true) => {
                Loss::Some(format!("knew of blocks that were lost or unreadable, of which the origin has older contents{since}"))
            }
            (Some(dirty), _) if self.degraded => Loss::Some(format!("failed in service and alone had {dirty} blocks{since}")),
            (Some(dirty), _) => Loss::Some(format!("held {dirty} blocks newer than the origin when it last stopped{since}")),
            (None, false) => Loss::Some(format!("may have held blocks newer than the origin{since}")),
        }
    }
}

/// The identity of a cache, as the file has it.
pub fn format_of(superblock: &Superblock) -> String {
    hex(&superblock.format.0)
}

/// Enough of it to tell two apart.
fn short(format: &str) -> &str {
    format.get(..8).unwrap_or(format)
}

/// Refuses a cache that is not the one that the volume last ran with, and an origin that may be another one. Returns what is worth knowing.
///
/// A disk that is larger than the volume has grown, if this folder knows its cache; else it may be another one. `accept_loss`: another cache is
/// taken, and what only the last one held is lost.
///
/// # Errors
/// One line that says what was expected.
pub fn recognise(place: &Place, attached: &Attached, accept_loss: bool) -> Result<Vec<String>, Failure> {
    let Attached { superblock, cache, origin, .. } = attached;
    let volume = superblock.geometry.volume_atoms;
    if origin.atoms() > volume && superblock.has_served() && !knows(place, superblock)? {
        let (has, needs) = (origin.bytes(), volume * ATOM_BYTES);
        let (cache, origin) = (cache.path().display(), origin.path().display());
        let what = format!(
            "origin {origin} has {has} bytes, cache {cache} has served one of {needs}, and {} does not know it; attach that one, or take in the rest \
             of this one with --grow if it has grown",
            place.path.display()
        );
        return Err(Failure::new(Failure::REFUSED, what));
    }
    compare(place, superblock, accept_loss)
}

/// Is this the cache that the volume last ran with, and not an older copy of it? Returns what is worth knowing.
///
/// `accept_loss`: another cache is taken, and what only the last one held is lost.
///
/// # Errors
/// One line that says which cache was expected.
pub fn compare(place: &Place, superblock: &Superblock, accept_loss: bool) -> Result<Vec<String>, Failure> {
    let Some(known) = place.read()? else { return Ok(Vec::new()) };
    let path = place.path();
    let found = format_of(superblock);
    let compared = if known.gone.contains(&found) {
        let last = if known.format.is_empty() { "the one that came after it".to_owned() } else { format!("{}…", short(&known.format)) };
        Err(format!(
            "the cache with the format id {}… has missed writes: the volume went on without it, as {} knows; bring {last} back, or format this one \
             anew with `tidegate create --force`",
            short(&found),
            path.display()
        ))
    } else if known.format.is_empty() {
        Ok(Vec::new())
    } else if known.format == found {
        known.missed_nothing(path, superblock.epoch).map(|()| Vec::new())
    } else {
        known.gives_way(path, superblock, accept_loss)
    };
    compared.map_err(|what| Failure::new(Failure::DAMAGED, what))
}

/// Is this the cache that the volume last ran with, as far as this folder knows?
fn knows(place: &Place, superblock: &Superblock) -> Result<bool, Failure> {
    Ok(place.read()?.is_some_and(|known| known.format == format_of(superblock)))
}

impl State {
    /// The cache that served last is here again, which knows of so many starts.
    fn missed_nothing(&self, path: &Path, epoch: u64) -> Result<(), String> {
        if self.degraded {
            let lost = match self.loss(path) {
                Loss::Nothing(_) => "nothing is lost with it".to_string(),
                Loss::Some(held) => format!("it {held}, listed in {}", Dirty::path(path).display()),
            };
            return Err(format!(
                "the cache failed in service, and the volume went on without it: it has missed writes and must not come back; {lost}; format it \
                 anew, or another one, with `tidegate create --force`"
            ));
        }
        if self.epoch > epoch {
            return Err(format!(
                "the cache is an older copy of itself: it has seen {epoch} starts, and {} knows of {}; bring the newer one back, or format it anew \
                 with `tidegate create --force`",
                path.display(),
                self.epoch
            ));
        }
        Ok(())
    }

    /// Another cache is here. Returns what is worth knowing of the last one, if that may be left.
    fn gives_way(&self, path: &Path, other: &Superblock, accept_loss: bool) -> Result<Vec<String>, String> {
        let (found, bytes) = (format_of(other), other.geometry.volume_atoms * ATOM_BYTES);
        let (found, last) = (short(&found), short(&self.format));
        let mut notes = Vec::new();
        if let Some(had) = self.bytes.filter(|&had| had > bytes) {
            if !accept_loss {
                return Err(format!(
                    "the cache with the format id {found}… is of a volume of {bytes} bytes, and this one has {had} and last ran with {last}…; bring \
                     that one back, format this one anew with `tidegate create --force`, or take it as it is with --accept-loss"
                ));
            }
            notes.push(format!("the volume had {had} bytes with its last cache, and has {bytes} now"));
        }
        match self.loss(path) {
            Loss::Nothing(why) if other.has_served() && !accept_loss => {
                return Err(format!(
                    "the cache with the format id {found}… has served before, but this volume last ran with another one: it may have missed \
                     writes; {why}; format it anew with `tidegate create --force`, or take it as it is with --accept-loss"
                ));
            }
            Loss::Nothing(why) => notes.push(format!("another cache than last time; {why}")),
            Loss::Some(held) if !accept_loss => {
                // One that has failed does not come back.
                let bring = if self.degraded { "give it up" } else { "bring that one back, or give it up" };
                return Err(format!(
                    "the cache has the format id {found}…, and this volume last ran with {last}…, which {held}; {bring} with --accept-loss"
                ));
            }
            Loss::Some(held) => {
                notes
                    .push(format!("another cache than last time, which {held}: they are lost, and the origin is a mixture of times there"));
                match Dirty::read(path, &self.format) {
                    Some(dirty) => notes.extend(dirty.describe(path)),
                    None => notes.push("lost: which blocks is not known".to_string()),
                }
            }
        }
        Ok(notes)
    }
}

#[cfg(test)]
mod tests;

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
        State { format: format_of(superblock), epoch, bytes, dirty, stopped, mode: kept, degraded: false, gone: Vec::new() }
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

    /// A volume is served from these disks, as others who come upon this place see from now on.
    pub fn serves(&mut self, cache: &Disk, origin: &Disk) {
        occupied::mark(self.folder.file(), &self.name);
        self.disks = Some(Disks { cache: Served::of(cache), origin: Served::of(origin) });
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

    /// Of a folder that was removed: nobody will come upon the cache again.
    fn cache_went_with_it(&self) -> bool {
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        let went = |cache: &Path| cache.starts_with(folder) && is_missing(cache);
        self.disks.as_ref().is_some_and(|Disks { cache, .. }| cache.is_replaced() || went(&cache.path))
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
            (None, true) => Loss::Nothing("the last one promised the origin: nothing that was flushed is lost with it"),
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
mod tests {
    use super::*;
    use tidegate_engine::cache::format::{FormatId, Geometry};

    const BACK: ModeView = ModeView { wanted: Mode::WriteBack, recorded: Mode::WriteBack, is_switching: false };

    fn at(path: &Path) -> Place {
        Place::open(path).unwrap()
    }

    #[test]
    fn a_cache_that_promised_the_origin_may_be_lost() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        let through = ModeView { wanted: Mode::WriteThrough, recorded: Mode::WriteThrough, is_switching: false };
        State::of(&superblock(1, 5), 6, None, &through).write(&at(&path)).unwrap();
        assert!(compare(&at(&path), &superblock(2, 1), false).unwrap()[0].contains("nothing that was flushed is lost"));
        // On the way there or back it may not, nor with blocks that no stop could take home.
        for view in [ModeView { recorded: Mode::WriteBack, ..through }, ModeView { wanted: Mode::WriteBack, ..through }] {
            State::of(&superblock(1, 5), 6, None, &view).write(&at(&path)).unwrap();
            assert!(compare(&at(&path), &superblock(2, 9), false).is_err());
        }
        State::of(&superblock(1, 5), 6, Some(3), &through).write(&at(&path)).unwrap();
        assert!(compare(&at(&path), &superblock(2, 9), false).unwrap_err().message.contains("held 3 blocks"));
        // A file of a version that knew no modes.
        std::fs::write(&path, "{\"format\":\"ab\",\"epoch\":1,\"dirty\":null}").unwrap();
        assert_eq!(State::read(&path).unwrap().unwrap().mode, Mode::WriteBack);
    }

    #[test]
    fn what_is_lost_is_listed_where_it_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        let last = superblock(1, 5);
        State::of(&last, 6, None, &BACK).write(&at(&path)).unwrap();
        assert!(compare(&at(&path), &superblock(2, 9), true).unwrap()[1].contains("not known"));
        Dirty::now(&format_of(&last), false, vec![tidegate_engine::block::Span::new(8, 8)]).write(&at(&path));
        let notes = compare(&at(&path), &superblock(2, 9), true).unwrap();
        assert_eq!(notes[2], "lost: 4096 bytes from byte 4096 on");
    }

    #[test]
    fn a_new_cache_whose_first_start_is_cut_short_is_no_stranger() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        State::begin(&at(&path), &superblock(2, 1)).unwrap();
        assert!(!path.exists(), "where nothing is known, nothing is compared");
        State::of(&superblock(1, 5), 6, Some(0), &BACK).write(&at(&path)).unwrap();
        assert!(compare(&at(&path), &superblock(2, 2), false).is_err(), "it has served somewhere");
        State::begin(&at(&path), &superblock(2, 1)).unwrap();
        for epoch in [1, 2] {
            assert_eq!(compare(&at(&path), &superblock(2, epoch), false).unwrap(), Vec::<String>::new());
        }
        assert!(compare(&at(&path), &superblock(1, 6), true).unwrap_err().message.contains("has missed writes"));
        // That of the last run is as it was.
        let last = State::of(&superblock(2, 2), 3, Some(7), &BACK);
        last.write(&at(&path)).unwrap();
        State::begin(&at(&path), &superblock(2, 3)).unwrap();
        assert_eq!(State::read(&path).unwrap().unwrap().dirty, Some(7));
    }

    #[test]
    fn a_cache_of_a_smaller_volume_is_not_taken_and_the_own_one_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        State::of(&superblock(1, 5), 6, Some(0), &BACK).write(&at(&path)).unwrap();
        let mut small = superblock(2, 1);
        small.geometry.volume_atoms = 256;
        let refused = compare(&at(&path), &small, false).unwrap_err();
        assert!(refused.message.contains("131072 bytes") && refused.message.contains("262144"), "{refused}");
        assert!(compare(&at(&path), &superblock(1, 6), false).unwrap().is_empty());
        let notes = compare(&at(&path), &small, true).unwrap();
        assert!(notes[0].contains("131072") && notes[1].contains("held nothing newer"), "{notes:?}");
        // A file of a version that did not write the size.
        State { bytes: None, ..State::of(&superblock(1, 5), 6, Some(0), &BACK) }.write(&at(&path)).unwrap();
        assert_eq!(compare(&at(&path), &small, false).unwrap().len(), 1);
    }

    fn superblock(id: u8, epoch: u64) -> Superblock {
        let geometry = Geometry { block_atoms: 8, set_slots: 8, sets: 16, journal_pages: 64, volume_atoms: 512, range_entries: 252 };
        Superblock { epoch, ..Superblock::new(FormatId([id; 16]), geometry, [0; 16], [0; 16]) }
    }

    #[test]
    fn the_cache_of_the_last_run_is_taken_and_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        assert_eq!(compare(&at(&path), &superblock(1, 5), false).unwrap(), Vec::<String>::new(), "a new volume");
        State::of(&superblock(1, 5), 6, None, &BACK).write(&at(&path)).unwrap();
        for epoch in [6, 7] {
            assert!(compare(&at(&path), &superblock(1, epoch), false).unwrap().is_empty());
        }
        let older = compare(&at(&path), &superblock(1, 5), true).unwrap_err();
        assert!(older.message.contains("an older copy") && older.message.contains("create --force"), "{}", older.message);
        let other = compare(&at(&path), &superblock(2, 9), false).unwrap_err();
        assert!(other.message.contains("02020202…") && other.message.contains("01010101…, which may have held"), "{}", other.message);
        assert!(compare(&at(&path), &superblock(2, 9), true).unwrap()[0].contains("are lost"));
        State::of(&superblock(1, 5), 6, Some(0), &BACK).write(&at(&path)).unwrap();
        assert!(compare(&at(&path), &superblock(2, 1), false).unwrap()[0].contains("held nothing newer"));
        let used = compare(&at(&path), &superblock(2, 9), false).unwrap_err();
        assert!(used.message.contains("has served before") && used.message.contains("--accept-loss"), "{}", used.message);
        assert!(compare(&at(&path), &superblock(2, 9), true).unwrap()[0].contains("held nothing newer"));
    }

    #[test]
    fn a_cache_that_failed_in_service_must_not_come_back_and_another_one_is_told_what_was_lost() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        let fence = |dirty| State { degraded: true, ..State::of(&superblock(1, 5), 6, Some(dirty), &BACK) }.write(&at(&path)).unwrap();
        fence(40);
        for epoch in [6, 7, 100] {
            let back = compare(&at(&path), &superblock(1, epoch), true).unwrap_err();
            assert!(back.message.contains("has missed writes") && back.message.contains("alone had 40 blocks"), "{}", back.message);
        }
        let other = compare(&at(&path), &superblock(2, 1), false).unwrap_err();
        assert!(other.message.contains("alone had 40 blocks") && other.message.contains("--accept-loss"), "{}", other.message);
        assert!(compare(&at(&path), &superblock(2, 1), true).unwrap()[0].contains("are lost"));
        fence(0);
        assert!(compare(&at(&path), &superblock(1, 6), false).unwrap_err().message.contains("nothing is lost"));
        assert!(compare(&at(&path), &superblock(2, 1), false).unwrap()[0].contains("held nothing newer"));
    }

    #[test]
    fn a_cache_that_the_volume_went_on_without_never_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        let serve = |id, dirty| State::of(&superblock(id, 5), 6, dirty, &BACK).write(&at(&path)).unwrap();
        let refused = |id| {
            let refused = [false, true].map(|accept_loss| compare(&at(&path), &superblock(id, 100), accept_loss).unwrap_err().message);
            assert!(refused.iter().all(|message| message.contains("has missed writes")), "{refused:?}");
        };
        // It fails, another one is taken, and that one is stopped with nothing that only it has.
        State { degraded: true, ..State::of(&superblock(1, 5), 6, Some(40), &BACK) }.write(&at(&path)).unwrap();
        serve(2, None);
        serve(2, Some(0));
        refused(1);
        // Nor when that one is given up before another has served, and after it has.
        State::give_up(&path).unwrap();
        [1, 2].into_iter().for_each(refused);
        assert_eq!(compare(&at(&path), &superblock(3, 1), false).unwrap(), Vec::<String>::new());
        serve(3, None);
        [1, 2].into_iter().for_each(refused);
        assert!(compare(&at(&path), &superblock(3, 6), false).unwrap().is_empty());
        // They do not grow without end.
        (4..=255).for_each(|id| serve(id, Some(0)));
        for id in 0..=255 {
            let other = Superblock { format: FormatId([[id; 8], [!id; 8]].concat().try_into().unwrap()), ..superblock(0, 5) };
            State::of(&other, 6, Some(0), &BACK).write(&at(&path)).unwrap();
        }
        assert!(std::fs::metadata(&path).unwrap().len() < BYTES_MAX && State::read(&path).unwrap().is_some());
        let none = folder.path().join("none");
        State::give_up(&none).unwrap();
        assert!(!none.exists(), "there was none to be given up");
    }

    #[test]
    fn a_folder_that_was_renamed_is_written_and_not_the_one_that_has_its_name_now() {
        let folder = tempfile::tempdir().unwrap();
        let [old, new] = ["old", "new"].map(|name| folder.path().join(name));
        std::fs::create_dir(&old).unwrap();
        let place = at(&old.join(FILE_NAME));
        State::of(&superblock(1, 5), 6, None, &BACK).write(&place).unwrap();
        std::fs::rename(&old, &new).unwrap();
        std::fs::create_dir(&old).unwrap();
        State { degraded: true, ..State::of(&superblock(1, 5), 6, Some(3), &BACK) }.write(&place).unwrap();
        Dirty::now(&format_of(&superblock(1, 5)), true, Vec::new()).write(&place);
        assert_eq!(std::fs::read_dir(&old).unwrap().count(), 0);
        assert!(State::read(&new.join(FILE_NAME)).unwrap().unwrap().degraded && new.join("tidegate.dirty").exists());
    }

    /// A cache that is to be refused for ever is, also where another folder is the one that knows it by now, or what the file says cannot be read.
    #[test]
    fn what_is_gone_stays_gone_where_the_file_is_lost_or_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let at_home = folder.path().join("volume");
        let path = at_home.join(FILE_NAME);
        let of = |id| State::of(&superblock(id, 5), 6, None, &BACK);
        let is_refused =
            || compare(&at(&path), &superblock(1, 100), true).is_err_and(|failure| failure.message.contains("has missed writes"));
        std::fs::create_dir(&at_home).unwrap();
        of(1).write(&at(&path)).unwrap();
        of(2).write(&at(&path)).unwrap();
        let place = at(&path);
        std::fs::write(&path, "rotten").unwrap();
        of(2).write(&place).unwrap();
        assert!(is_refused());
        // What may say anything is not replaced.
        std::fs::rename(&path, folder.path().join("away")).unwrap();
        std::os::unix::fs::symlink(folder.path().join("away"), &path).unwrap();
        assert_eq!(of(2).write(&place).unwrap_err().code, Failure::NO_INPUT);
        std::fs::rename(folder.path().join("away"), &path).unwrap();
        of(2).write(&place).unwrap();
        assert!(is_refused());
        std::fs::remove_dir_all(&at_home).unwrap();
        std::fs::create_dir(&at_home).unwrap();
        Dirty::now(&format_of(&superblock(2, 5)), true, Vec::new()).write(&place);
        of(2).write(&place).unwrap();
        assert!(is_refused() && at_home.join("tidegate.dirty").exists());
        // Another volume's, which is there again and knows another cache.
        std::fs::remove_file(&path).unwrap();
        of(3).write(&at(&path)).unwrap();
        assert!(of(2).write(&place).is_err());
        assert_eq!(State::read(&path).unwrap().unwrap(), of(3));
    }

    /// Who reads why something is not written down looks there.
    #[test]
    fn what_cannot_be_written_is_called_by_its_name_of_now() {
        let folder = tempfile::tempdir().unwrap();
        let [old, new] = ["old", "new"].map(|name| folder.path().join(name));
        std::fs::create_dir(&old).unwrap();
        let place = at(&old.join(FILE_NAME));
        let state = State::of(&superblock(1, 5), 6, None, &BACK);
        state.write(&place).unwrap();
        std::fs::rename(&old, &new).unwrap();
        std::fs::create_dir(&old).unwrap();
        for obstacle in [true, false] {
            std::fs::remove_file(new.join(FILE_NAME)).unwrap();
            if obstacle {
                std::fs::create_dir(new.join(FILE_NAME)).unwrap();
            } else {
                State::of(&superblock(2, 5), 6, None, &BACK).write(&at(&new.join(FILE_NAME))).unwrap();
            }
            let refused = state.write(&place).unwrap_err();
            assert!(refused.message.starts_with(new.join(FILE_NAME).to_str().unwrap()), "{refused}");
            if obstacle {
                std::fs::remove_dir(new.join(FILE_NAME)).unwrap();
                state.write(&place).unwrap();
            }
        }
    }

    #[test]
    fn what_another_volume_has_written_meanwhile_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        let of = |id| State::of(&superblock(id, 5), 6, None, &BACK);
        let note = |place: &Place| Dirty::now(&format_of(&superblock(1, 5)), true, Vec::new()).write(place);
        let taken = |place: &Place| {
            let (before, refused) = (std::fs::read(&path).unwrap(), of(1).write(place).unwrap_err());
            note(place);
            assert!(refused.code == Failure::REFUSED && refused.message.contains("one volume's"), "{refused}");
            assert_eq!(std::fs::read(&path).unwrap(), before);
            assert!(!folder.path().join("tidegate.dirty").exists());
        };
        // There was none at first.
        let first = at(&path);
        of(2).write(&at(&path)).unwrap();
        taken(&first);
        // The one that was there gives way, and no other one.
        let second = at(&path);
        of(3).write(&at(&path)).unwrap();
        taken(&second);
        let third = at(&path);
        of(1).write(&third).unwrap();
        State::give_up(&path).unwrap();
        taken(&third);
        // Nobody knows any more which one it was.
        std::fs::remove_file(&path).unwrap();
        of(1).write(&third).unwrap();
        of(1).write(&third).unwrap();
        note(&third);
        assert!(folder.path().join("tidegate.dirty").exists());
    }

    #[test]
    fn a_file_that_is_none_is_refused_in_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        for text in ["", "{}", "{\"format\": 3}", "\0\0\0", &"x".repeat(5_000)] {
            std::fs::write(&path, text).unwrap();
            let refused = compare(&at(&path), &superblock(1, 1), false).unwrap_err();
            assert!(refused.message.contains(FILE_NAME) && !refused.message.contains('\n'), "{}", refused.message);
            assert!(refused.code == Failure::DAMAGED && refused.message.ends_with("delete the file"), "{refused}");
        }
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        let folder_there = compare(&at(&path), &superblock(1, 1), false).unwrap_err();
        std::fs::remove_dir(&path).unwrap();
        std::os::unix::fs::symlink("/not-mounted/state", &path).unwrap();
        let link_there = compare(&at(&path), &superblock(1, 1), false).unwrap_err();
        for refused in [folder_there, link_there] {
            assert!(
                refused.code == Failure::NO_INPUT && !refused.message.contains("delete"),
                "what was not read may say anything: {refused}"
            );
        }
    }
}

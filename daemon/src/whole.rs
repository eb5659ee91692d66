//! Small files that are replaced whole or not at all, and never through a link that somebody has put in their place: in a folder that is held, and so
//! stays the same one whatever it is called by then.
//!
//! What is written goes into a draft first: a file with a name of its own (`tidegate.PID-RANDOM.new`), new and locked, so that nobody else writes
//! to it, and nobody's file stands in its way. What a killed process has left of its drafts has no lock any more: [`Folder::tidy`].

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, RenameFlags, openat, readlinkat, renameat_with, unlinkat};

/// Puts `bytes` in place of the file at `path`; what was there before stays until all of it is on the disk.
///
/// # Errors
/// As [`Folder::replace`].
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let (folder, name) = Folder::of(path)?;
    folder.replace(&name, bytes, mode)
}

/// A file that was not there, made in one step, as it is: whoever has made it may [remove] it again.
///
/// # Errors
/// As [`Folder::create`].
pub fn create(path: &Path, bytes: &[u8], mode: u32) -> io::Result<File> {
    let (folder, name) = Folder::of(path)?;
    folder.create(&name, bytes, mode)
}

/// Could a file be put there? Nothing is left of the trial.
///
/// # Errors
/// Of the system.
pub fn try_out(path: &Path, mode: u32) -> io::Result<()> {
    let (folder, _) = Folder::of(path)?;
    folder.draft(mode).map(drop)
}

/// Removes a file, if its name still leads to this one.
pub fn remove(path: &Path, file: &File) {
    if is_one(fs::symlink_metadata(path), file) {
        // What cannot be removed stays; why it was to go is being told.
        let _ = fs::remove_file(path);
    }
}

/// Is what was found this file?
pub fn is_one(found: io::Result<Metadata>, file: &File) -> bool {
    let (Ok(found), Ok(own)) = (found, file.metadata()) else { return false };
    (found.dev(), found.ino()) == (own.dev(), own.ino())
}

/// A folder whose files are read and written by their names in it.
#[derive(Debug)]
pub struct Folder(File);

impl Folder {
    /// The folder of the file at `path`, which need not be there, and its name in it.
    ///
    /// # Errors
    /// Of the system.
    pub fn of(path: &Path) -> io::Result<(Folder, OsString)> {
        let name = path.file_name().ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "it is no name of a file"))?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(folder)?;
        Ok((Folder(folder), name.to_owned()))
    }

    pub fn file(&self) -> &File {
        &self.0
    }

    /// As it is called now, if the system tells; one that was removed as it was called last, and that it was.
    pub fn path(&self) -> Option<PathBuf> {
        let path = readlinkat(CWD, format!("/proc/self/fd/{}", self.0.as_raw_fd()), Vec::new()).ok()?;
        Some(PathBuf::from(OsStr::from_bytes(path.as_bytes())))
    }

    /// To be read; a link is not followed, and a pipe not waited for.
    ///
    /// # Errors
    /// Of the system.
    pub fn open(&self, name: &OsStr) -> io::Result<File> {
        self.open_as(name, OFlags::RDONLY | OFlags::NONBLOCK, 0)
    }

    /// Puts `bytes` in place of the file, or where none was; what was there before stays until all of it is on the disk.
    ///
    /// # Errors
    /// Of the system: the old file is as it was; or the new one is there, and may not be after a loss of power. No draft is left.
    pub fn replace(&self, name: &OsStr, bytes: &[u8], mode: u32) -> io::Result<()> {
        self.durable(bytes, mode)?.take_place(name, RenameFlags::empty())?;
        self.0.sync_all()
    }

    /// The same without waiting for the disk: after a loss of power it may be empty, or the old one.
    ///
    /// # Errors
    /// Of the system; the old file is as it was, and no draft is left.
    pub fn note(&self, name: &OsStr, bytes: &[u8], mode: u32) -> io::Result<()> {
        self.written(bytes, mode)?.take_place(name, RenameFlags::empty()).map(drop)
    }

    /// A file that was not there, made in one step.
    ///
    /// # Errors
    /// Of the system, `AlreadyExists` among them; nothing is left of it.
    pub fn create(&self, name: &OsStr, bytes: &[u8], mode: u32) -> io::Result<File> {
        let file = match self.durable(bytes, mode)?.take_place(name, RenameFlags::NOREPLACE) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP)) => {
                self.create_in_steps(name, bytes, mode)?
            }
            made => made?,
        };
        self.0.sync_all().inspect_err(|_| self.remove(name, &file))?;
        Ok(file)
    }

    /// Where a file system moves nothing to a name on the condition that it is free: an empty file takes the name first.
    fn create_in_steps(&self, name: &OsStr, bytes: &[u8], mode: u32) -> io::Result<File> {
        let draft = self.durable(bytes, mode)?;
        let reserved = self.open_as(name, NEW, mode)?;
        draft.take_place(name, RenameFlags::empty()).inspect_err(|_| self.remove(name, &reserved))
    }

    /// It has no name any more.
    pub fn is_removed(&self) -> bool {
        self.0.metadata().map_or(true, |metadata| metadata.nlink() == 0)
    }

    /// Is it the same folder?
    pub fn is(&self, other: &Folder) -> bool {
        is_one(self.0.metadata(), &other.0)
    }

    /// Removes what killed processes have left of their drafts.
    pub fn tidy(&self) {
        let Ok(entries) = Dir::read_from(&self.0) else { return };
        for entry in entries.flatten().filter(|entry| is_draft(entry.file_name().to_bytes())) {
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            let Ok(file) = self.open(name) else { continue };
            // Held until it is gone: who has just made it finds that out. (For reading a lock to share: NFS gives no other.)
            if file.metadata().is_ok_and(|metadata| metadata.is_file()) && file.try_lock_shared().is_ok() {
                self.unlink(name);
            }
        }
    }

    /// Removes a file, if its name still leads to this one.
    fn remove(&self, name: &OsStr, file: &File) {
        if self.leads_to(name, file) {
            self.unlink(name);
        }
    }

    fn leads_to(&self, name: &OsStr, file: &File) -> bool {
        is_one(self.open_as(name, OFlags::PATH, 0).and_then(|found| found.metadata()), file)
    }

    fn unlink(&self, name: &OsStr) {
        // What cannot be removed stays.
        let _ = unlinkat(&self.0, name, AtFlags::empty());
    }

    fn open_as(&self, name: &OsStr, flags: OFlags, mode: u32) -> io::Result<File> {
        let opened = openat(&self.0, name, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::from_raw_mode(mode));
        Ok(opened.map(File::from)?)
    }

    fn durable(&self, bytes: &[u8], mode: u32) -> io::Result<Draft<'_>> {
        let draft = self.written(bytes, mode)?;
        draft.file().sync_all()?;
        Ok(draft)
    }

    fn written(&self, bytes: &[u8], mode: u32) -> io::Result<Draft<'_>> {
        let draft = self.draft(mode)?;
        draft.file().write_all(bytes)?;
        Ok(draft)
    }

    /// An empty one.
    fn draft(&self, mode: u32) -> io::Result<Draft<'_>> {
        for _ in 0..DRAFT_TRIES {
            let random = RandomState::new().hash_one(0);
            let name = OsString::from(format!("tidegate.{}-{random:016x}.new", std::process::id()));
            let file = match self.open_as(&name, NEW, mode) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                made => made?,
            };
            // Where a file system has no locks, nobody takes it for one that was left either.
            let is_locked = !matches!(file.try_lock(), Err(TryLockError::WouldBlock));
            let found = self.open_as(&name, OFlags::PATH, 0).and_then(|found| found.metadata());
            let draft = Draft { folder: self, name, file: Some(file) };
            match found {
                // Whoever tidies had it first.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
                Ok(found) => {
                    if is_locked && is_one(Ok(found), draft.file()) {
                        return Ok(draft);
                    }
                }
            }
        }
        Err(io::Error::other("no file stays where it was made"))
    }
}

/// Whoever tidies may take one or two.
const DRAFT_TRIES: u32 = 16;

/// New, so neither a link nor a pipe nor somebody else's.
const NEW: OFlags = OFlags::RDWR.union(OFlags::CREATE).union(OFlags::EXCL);

/// Is a file of this name a draft of ours?
fn is_draft(name: &[u8]) -> bool {
    let parts = || str::from_utf8(name).ok()?.strip_prefix("tidegate.")?.strip_suffix(".new")?.split_once('-');
    parts().is_some_and(|(pid, random)| pid.parse::<u32>().is_ok() && random.len() == 16 && u64::from_str_radix(random, 16).is_ok())
}

/// What is to become a file; removed again unless it does.
struct Draft<'a> {
    folder: &'a Folder,
    name: OsString,
    /// Until it has its place.
    file: Option<File>,
}

impl Draft<'_> {
    fn file(&self) -> &File {
        self.file.as_ref().expect("it has no place yet")
    }

    fn take_place(mut self, name: &OsStr, flags: RenameFlags) -> io::Result<File> {
        renameat_with(&self.folder.0, &self.name, &self.folder.0, name, flags)?;
        let file = self.file.take().expect("it had no place yet");
        if !self.folder.leads_to(name, &file) {
            return Err(io::Error::new(ErrorKind::AlreadyExists, "somebody else has put another file in its place at once"));
        }
        Ok(file)
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if self.file.is_some() {
            self.folder.unlink(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn names(folder: &Path) -> Vec<OsString> {
        let mut names: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_is_there_is_not_made_again_and_what_is_somebody_elses_by_now_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let in_steps = |path: &Path, bytes: &[u8], mode| {
            let (folder, name) = Folder::of(path)?;
            folder.create_in_steps(&name, bytes, mode)
        };
        for create in [create, in_steps] {
            let first = create(&path, b"first", 0o600).unwrap();
            assert_eq!(create(&path, b"second", 0o600).unwrap_err().kind(), ErrorKind::AlreadyExists);
            assert_eq!(fs::read(&path).unwrap(), b"first");
            replace(&path, b"another", 0o600).unwrap();
            remove(&path, &first);
            assert_eq!(fs::read(&path).unwrap(), b"another");
            fs::remove_file(&path).unwrap();
            let again = create(&path, b"again", 0o600).unwrap();
            remove(&path, &again);
            assert_eq!(names(folder.path()), [""; 0], "no draft is left either");
        }
    }

    #[test]
    fn a_link_in_the_place_of_the_file_is_replaced_and_never_followed_and_nobody_elses_draft_is_touched() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("file"), folder.path().join("other"));
        fs::write(&other, "precious").unwrap();
        symlink(&other, &path).unwrap();
        fs::write(folder.path().join("file.new"), "somebody's").unwrap();
        assert!(create(&path, b"new", 0o600).is_err() && fs::read_link(&path).is_ok());
        try_out(&path, 0o600).unwrap();
        replace(&path, b"new", 0o600).unwrap();
        assert_eq!(fs::read_to_string(&other).unwrap(), "precious");
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        let metadata = fs::symlink_metadata(&path).unwrap();
        assert!(metadata.is_file() && metadata.permissions().mode() & 0o777 == 0o600);
        assert_eq!(fs::read_to_string(folder.path().join("file.new")).unwrap(), "somebody's");
        assert_eq!(names(folder.path()), ["file", "file.new", "other"]);
    }

    #[test]
    fn two_that_make_one_file_at_once_make_it_once_and_each_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for round in 0..50 {
            let (one, other) = std::thread::scope(|scope| {
                let make = |byte| {
                    scope.spawn({
                        let path = &path;
                        move || create(path, &[byte; 100], 0o600)
                    })
                };
                let (one, other) = (make(1), make(2));
                (one.join().unwrap(), other.join().unwrap())
            });
            let (whose, refused) = match (&one, &other) {
                (Ok(_), Err(error)) => (1, error),
                (Err(error), Ok(_)) => (2, error),
                both => panic!("round {round}: {both:?}"),
            };
            assert_eq!(refused.kind(), ErrorKind::AlreadyExists, "round {round}: {refused}");
            assert_eq!(fs::read(&path).unwrap(), [whose; 100], "round {round}");
            fs::remove_file(&path).unwrap();
            assert_eq!(names(folder.path()), [""; 0], "round {round}");
        }
    }

    #[test]
    fn what_cannot_be_replaced_stays_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::create_dir(&path).unwrap();
        assert!(replace(&path, b"new", 0o600).is_err());
        assert!(path.is_dir() && names(folder.path()) == ["file"]);
        assert!(replace(&folder.path().join("nowhere/file"), b"new", 0o600).is_err());
    }

    #[test]
    fn of_what_a_folder_does_not_keep_nothing_is_left() {
        let at = tempfile::tempdir().unwrap();
        // One that cannot be synced.
        let folder = Folder(OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(at.path()).unwrap());
        assert!(folder.create(OsStr::new("file"), b"new", 0o600).is_err());
        assert_eq!(names(at.path()), [""; 0]);
    }

    #[test]
    fn a_folder_that_got_another_name_is_still_the_one_that_is_written() {
        let at = tempfile::tempdir().unwrap();
        let [old, new] = ["old", "new"].map(|name| at.path().join(name));
        fs::create_dir(&old).unwrap();
        let (folder, name) = Folder::of(&old.join("file")).unwrap();
        fs::rename(&old, &new).unwrap();
        fs::create_dir(&old).unwrap();
        folder.replace(&name, b"first", 0o600).unwrap();
        folder.note(&name, b"second", 0o600).unwrap();
        assert_eq!((names(&old), fs::read(new.join("file")).unwrap()), (Vec::new(), b"second".to_vec()));
    }

    #[test]
    fn drafts_that_nobody_holds_any_more_are_removed_and_nothing_else() {
        let at = tempfile::tempdir().unwrap();
        let (folder, _) = Folder::of(&at.path().join("file")).unwrap();
        let mut left = folder.draft(0o600).unwrap();
        left.file = None;
        let held = folder.draft(0o600).unwrap();
        let others = [
            "tidegate.1-0.new",
            "tidegate.x-0123456789abcdef.new",
            "tidegate.new",
            "tidegate.1-0123456789abcdef.new.old",
            "config.toml.new",
        ];
        others.iter().for_each(|name| fs::write(at.path().join(name), "").unwrap());
        fs::create_dir(at.path().join("tidegate.1-0123456789abcdef.new")).unwrap();
        folder.tidy();
        assert_eq!(names(at.path()).len(), others.len() + 2, "{:?}", names(at.path()));
        assert!(!at.path().join(&left.name).exists() && at.path().join(&held.name).exists());
        drop(held);
        assert_eq!(names(at.path()).len(), others.len() + 1);
    }
}

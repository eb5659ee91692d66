//! Small files that are replaced whole or not at all, and never through a link that somebody has put in their place.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Puts `bytes` in place of the file at `path`; what was there before stays until all of it is on the disk. The draft beside it is called
/// `path` and `.new`.
///
/// # Errors
/// Of the system; the old file is as it was, and no draft is left.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let (draft, mut file) = begin(path, mode)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&draft, path));
    if written.is_err() {
        // What is left of it says nothing; that it cannot be removed either changes nothing.
        let _ = fs::remove_file(&draft);
    }
    written?;
    sync_folder(path)
}

/// A file that was not there, made in one step, as it is: whoever has made it may [remove] it again.
///
/// # Errors
/// Of the system, `AlreadyExists` among them; nothing is left of it.
pub fn create(path: &Path, bytes: &[u8], mode: u32) -> io::Result<File> {
    let (draft, mut file) = begin(path, mode)?;
    let linked = file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| match fs::hard_link(&draft, path) {
        // A file system without links: whoever makes the same in this moment is replaced.
        Err(error) if error.kind() != ErrorKind::AlreadyExists && fs::symlink_metadata(path).is_err() => fs::rename(&draft, path),
        linked => linked,
    });
    // After a rename it is gone already.
    let _ = fs::remove_file(&draft);
    linked?;
    sync_folder(path).inspect_err(|_| remove(path, &file))?;
    Ok(file)
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

fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Could a file be put there? Nothing is left of the trial.
///
/// # Errors
/// Of the system.
pub fn try_out(path: &Path, mode: u32) -> io::Result<()> {
    let (draft, _) = begin(path, mode)?;
    fs::remove_file(draft)
}

/// An empty draft.
fn begin(path: &Path, mode: u32) -> io::Result<(PathBuf, File)> {
    let mut draft = path.as_os_str().to_owned();
    draft.push(".new");
    let draft = PathBuf::from(draft);
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    // New, so neither a link nor a pipe nor somebody else's.
    let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&draft)?;
    Ok((draft, file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn what_is_there_is_not_made_again_and_what_is_somebody_elses_by_now_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let first = create(&path, b"first", 0o600).unwrap();
        assert_eq!(create(&path, b"second", 0o600).unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"first");
        replace(&path, b"another", 0o600).unwrap();
        remove(&path, &first);
        assert_eq!(fs::read(&path).unwrap(), b"another");
        fs::remove_file(&path).unwrap();
        let again = create(&path, b"again", 0o600).unwrap();
        remove(&path, &again);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "no draft is left either");
    }

    #[test]
    fn a_link_in_the_place_of_the_draft_or_of_the_file_is_replaced_and_never_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, draft, other) = (folder.path().join("file"), folder.path().join("file.new"), folder.path().join("other"));
        fs::write(&other, "precious").unwrap();
        for link in [&path, &draft] {
            let _ = fs::remove_file(link);
            symlink(&other, link).unwrap();
            replace(&path, b"new", 0o600).unwrap();
            assert_eq!(fs::read_to_string(&other).unwrap(), "precious");
            assert_eq!(fs::read_to_string(&path).unwrap(), "new");
            let metadata = fs::symlink_metadata(&path).unwrap();
            assert!(metadata.is_file() && metadata.permissions().mode() & 0o777 == 0o600);
            assert!(!draft.exists());
        }
    }

    #[test]
    fn what_cannot_be_replaced_stays_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::create_dir(&path).unwrap();
        assert!(replace(&path, b"new", 0o600).is_err());
        assert!(path.is_dir() && !folder.path().join("file.new").exists());
        assert!(replace(&folder.path().join("nowhere/file"), b"new", 0o600).is_err());
    }
}

//! Small files that are replaced whole or not at all, and never through a link that somebody has put in their place.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
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

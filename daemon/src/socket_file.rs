//! The file of a listening Unix socket: it goes with the socket, unless another one has its name by then.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Removed when it is dropped.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    /// Of the socket that is there.
    ///
    /// # Errors
    /// Nothing is there, or it cannot be looked at.
    pub fn new(path: &Path) -> io::Result<SocketFile> {
        Ok(SocketFile { path: path.to_owned(), identity: identity(path)? })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Nobody may connect to a name behind which nobody listens. That it is gone already is no error.
        if identity(&self.path).is_ok_and(|now| now == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_socket_takes_its_own_file_with_it_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let first = UnixListener::bind(&path).unwrap();
        let file = SocketFile::new(&path).unwrap();
        // Somebody has cleaned up, and another one listens there now. The first is still open: its inode is not used again.
        fs::remove_file(&path).unwrap();
        let second = UnixListener::bind(&path).unwrap();
        drop(file);
        assert!(path.exists());
        drop(SocketFile::new(&path).unwrap());
        assert!(!path.exists());
        drop((first, second));
    }
}

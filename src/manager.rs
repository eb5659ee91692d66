//! What started us and wants to know how it goes: systemd (LISTEN_FDS, NOTIFY_SOCKET), or whoever reads a pid file.

use std::env;
use std::fs;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};

use tidegate_daemon::{Failure, whole};

use crate::config::EX_CONFIG;

/// Far more than one volume needs: what is above is a mistake.
const HANDED_OVER_MAX: u32 = 64;

/// How many listening sockets were handed over to this very process (sd_listen_fds(3)).
pub fn handed_over() -> Result<u32, Failure> {
    parse_handed_over(env::var("LISTEN_PID").ok().as_deref(), env::var("LISTEN_FDS").ok().as_deref(), std::process::id())
}

fn parse_handed_over(pid: Option<&str>, count: Option<&str>, own: u32) -> Result<u32, Failure> {
    let (Some(pid), Some(count)) = (pid, count) else { return Ok(0) };
    if pid.parse() != Ok(own) {
        return Ok(0); // for somebody else who was started before us
    }
    count.parse().ok().filter(|count| *count <= HANDED_OVER_MAX).ok_or_else(|| {
        let message = format!("LISTEN_FDS: `{}` is no count of at most {HANDED_OVER_MAX} sockets", count.escape_default());
        Failure::new(EX_CONFIG, message)
    })
}

/// Tells systemd, if it wants to know, that the volume serves.
pub fn notify_ready() -> Result<(), Failure> {
    let Some(path) = env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty()) else { return Ok(()) };
    let sent = address(Path::new(&path)).and_then(|address| {
        let text = format!("READY=1\nMAINPID={}\n", std::process::id());
        UnixDatagram::unbound()?.send_to_addr(text.as_bytes(), &address).map(drop)
    });
    sent.map_err(|error| Failure::new(Failure::SYSTEM, format!("NOTIFY_SOCKET {}: {error}; unset it, or use Type=simple", path.display())))
}

/// A name that begins with `@` is not in the file system.
fn address(path: &Path) -> io::Result<SocketAddr> {
    match path.as_os_str().as_encoded_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(path),
    }
}

/// The process id in a file, for as long as the volume serves.
pub struct PidFile {
    path: PathBuf,
}

impl PidFile {
    /// Whole or not at all; an older one is replaced, because the volume is locked by now: whoever wrote it is gone.
    pub fn write(path: &Path) -> Result<PidFile, Failure> {
        let written = whole::replace(path, own_line().as_bytes(), 0o644);
        written
            .map_err(|error| Failure::new(Failure::NOT_CREATED, format!("--pid-file {}: {error}; name another file", path.display())))?;
        Ok(PidFile { path: path.to_owned() })
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // Somebody else's stays.
        if fs::read(&self.path).is_ok_and(|contents| contents == own_line().as_bytes()) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn own_line() -> String {
    format!("{}\n", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_taken_only_if_they_are_for_this_process() {
        assert_eq!(parse_handed_over(None, Some("1"), 7), Ok(0));
        assert_eq!(parse_handed_over(Some("8"), Some("1"), 7), Ok(0));
        assert_eq!(parse_handed_over(Some("7"), Some("2"), 7), Ok(2));
        for wrong in ["-1", "many", "65", "1\n"] {
            let failure = parse_handed_over(Some("7"), Some(wrong), 7).unwrap_err();
            assert!(failure.message.starts_with("LISTEN_FDS: `") && !failure.message.contains('\n'), "{failure}");
        }
    }

    #[test]
    fn a_pid_file_is_whole_replaces_an_old_one_and_goes_with_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pid");
        fs::write(&path, "1\n").unwrap();
        let file = PidFile::write(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), own_line());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no draft is left");
        drop(file);
        assert!(!path.exists());
        let file = PidFile::write(&path).unwrap();
        fs::write(&path, "1\n").unwrap();
        drop(file);
        assert!(path.exists(), "it is another one's now");
        let failure = PidFile::write(&folder.path().join("nowhere/pid")).err().unwrap();
        assert!(failure.message.contains("nowhere/pid") && failure.code == Failure::NOT_CREATED, "{failure}");
    }
}

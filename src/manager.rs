//! What started us and wants to know how it goes: systemd (LISTEN_FDS, NOTIFY_SOCKET), or whoever reads a pid file.

use std::env;
use std::fs;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};

use tidegate_daemon::{Failure, whole};

use crate::config::EX_CONFIG;

/// Whoever asks may read the pid file.
const MODE: u32 = 0o644;
/// A process id has at most seven digits.
const LINE_BYTES_MAX: u64 = 16;
/// Far more than one volume needs: what is above is a mistake.
const HANDED_OVER_MAX: u32 = 64;

/// inetd gives the client's socket as standard error, too: what is said there would be in the middle of the protocol.
///
/// # Errors
/// It cannot be led elsewhere.
pub fn keep_stream_clean() -> Result<(), Failure> {
    let is_one = |one: rustix::fs::Stat, other: rustix::fs::Stat| (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino);
    let lead_away = || {
        if is_one(rustix::fs::fstat(io::stdin())?, rustix::fs::fstat(io::stderr())?) {
            rustix::stdio::dup2_stderr(fs::OpenOptions::new().write(true).open("/dev/null")?)?;
        }
        Ok(())
    };
    lead_away()
        .map_err(|error: io::Error| Failure::new(Failure::SYSTEM, format!("standard error cannot be kept apart from the client: {error}")))
}

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
    /// Can it be written later? `folder` is the volume's, which may be still to be made.
    ///
    /// # Errors
    /// One line: what is there is no pid file, or there can be none.
    pub fn check(path: &Path, folder: &Path) -> Result<(), Failure> {
        refuse_others(path)?;
        if path.parent().is_some_and(|parent| folder.starts_with(parent) && !parent.exists()) {
            return Ok(());
        }
        whole::try_out(path, MODE).map_err(|error| unwritten(path, &error))
    }

    /// Whole or not at all; an older one is replaced, because the volume is locked by now: whoever wrote it is gone.
    pub fn write(path: &Path) -> Result<PidFile, Failure> {
        refuse_others(path)?;
        whole::replace(path, own_line().as_bytes(), MODE).map_err(|error| unwritten(path, &error))?;
        Ok(PidFile { path: path.to_owned() })
    }
}

/// Whatever is there and holds anything but a process id stays as it is.
fn refuse_others(path: &Path) -> Result<(), Failure> {
    let is_pid = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_pid_file = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => true,
        Err(error) => return Err(unwritten(path, &error)),
        Ok(file) => file.is_file() && file.len() <= LINE_BYTES_MAX && fs::read_to_string(path).is_ok_and(|text| is_pid(text.trim_end())),
    };
    if is_pid_file {
        return Ok(());
    }
    let what = format!("--pid-file {} exists and holds no process id; name another file", path.display());
    Err(Failure::new(Failure::NOT_CREATED, what))
}

fn unwritten(path: &Path, error: &io::Error) -> Failure {
    Failure::new(Failure::NOT_CREATED, format!("--pid-file {}: {error}; name another file", path.display()))
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
        let nowhere = folder.path().join("nowhere/pid");
        for refused in [PidFile::write(&nowhere).err(), PidFile::check(&nowhere, folder.path()).err()] {
            let failure = refused.unwrap();
            assert!(failure.message.contains("nowhere/pid") && failure.code == Failure::NOT_CREATED, "{failure}");
        }
        PidFile::check(&nowhere, &folder.path().join("nowhere/volume")).expect("it will be made");
    }

    #[test]
    fn what_is_no_pid_file_is_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pid");
        for contents in ["", "\n", "0x1f\n", "1 2\n", "17 days", "12345678901234567"] {
            fs::write(&path, contents).unwrap();
            for refused in [PidFile::write(&path).err(), PidFile::check(&path, folder.path()).err()] {
                assert!(refused.unwrap().message.ends_with("exists and holds no process id; name another file"), "{contents:?}");
            }
            assert_eq!(fs::read_to_string(&path).unwrap(), contents);
        }
        fs::write(&path, "17\n").unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(PidFile::check(&path, folder.path()).is_ok() && PidFile::check(&link, folder.path()).is_err());
    }
}

//! A block device for the kernel without a kernel module for NBD: nbdfuse shows the export as a file, a loop device shows the file
//! as a disk. Whatever a failing test leaves mounted is taken down on drop.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::daemon::Daemon;
use super::tool::run;
use super::{folder, text};

const PATIENCE: Duration = Duration::from_secs(60);

/// An NBD export as a file, by FUSE.
pub struct Fuse {
    child: Child,
    folder: TempDir,
}

impl Fuse {
    /// The export that `source` leads to: the last arguments of nbdfuse.
    pub fn new(source: &[&str]) -> Fuse {
        let folder = folder();
        // nbdfuse writes its number there when it is ready: a pipe lets us wait for it without looking again and again.
        let ready = folder.path().join("ready");
        run("mkfifo", &[text(&ready)]).succeeds();
        std::fs::create_dir(folder.path().join("export")).unwrap();
        let child = Command::new("nbdfuse")
            .arg("-P")
            .arg(&ready)
            .arg(folder.path().join("export"))
            .args(source)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("nbdfuse; scripts/setup.sh installs it");
        let fuse = Fuse { child, folder };
        let (sender, answer) = channel();
        std::thread::spawn(move || {
            let mut number = String::new();
            let read = std::fs::File::open(ready).and_then(|mut pipe| pipe.read_to_string(&mut number));
            let _ = sender.send(read); // nobody listens any more: the test has failed already
        });
        answer.recv_timeout(PATIENCE).expect("nbdfuse becomes ready").expect("nbdfuse says so");
        fuse
    }

    pub fn file(&self) -> PathBuf {
        self.folder.path().join("export/nbd")
    }

    /// `kill -9`: every operation on the file that is still under way fails at once.
    pub fn kill(&mut self) {
        let _ = self.child.kill(); // it has ended already: that is what was wanted
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        // Unmounting ends nbdfuse; lazily, should something still hold it open. Errors: it has gone already.
        quietly("fusermount3", &["-u", "-z", text(&self.folder.path().join("export"))]);
        let _ = self.child.wait();
    }
}

/// A loop device, and perhaps a file system mounted from it.
pub struct Disk {
    /// `/dev/loopN`.
    pub device: String,
    at: TempDir,
    mounted: bool,
    /// Last: taken down after what stands on it.
    _fuse: Option<Fuse>,
}

impl Disk {
    /// The daemon's export.
    pub fn of(daemon: &Daemon) -> Disk {
        let fuse = Fuse::new(&["--unix", text(&daemon.socket())]);
        let device = run("losetup", &["--find", "--show", "--direct-io=on", text(&fuse.file())]).succeeds();
        Disk { device: device.trim().to_owned(), at: mount_point(), mounted: false, _fuse: Some(fuse) }
    }

    /// A file by itself, not to be written: an origin without its daemon.
    pub fn read_only(file: &Path) -> Disk {
        let device = run("losetup", &["--find", "--show", "--read-only", text(file)]).succeeds();
        Disk { device: device.trim().to_owned(), at: mount_point(), mounted: false, _fuse: None }
    }

    /// A file as a disk that can be written.
    pub fn of_file(file: &Path) -> Disk {
        let device = run("losetup", &["--find", "--show", text(file)]).succeeds();
        Disk { device: device.trim().to_owned(), at: mount_point(), mounted: false, _fuse: None }
    }

    /// Mounts what is on the device; the folder is valid until [`Disk::unmount`].
    pub fn mount(&mut self, options: &str) -> PathBuf {
        run("mount", &["-o", options, &self.device, text(self.at.path())]).succeeds();
        self.mounted = true;
        self.at.path().to_owned()
    }

    /// Where [`Disk::mount`] mounts.
    pub fn folder(&self) -> &Path {
        self.at.path()
    }

    pub fn unmount(&mut self) {
        run("umount", &[text(self.at.path())]).succeeds();
        self.mounted = false;
    }

    /// Takes everything down; what cannot be is a failure, unlike on drop.
    pub fn detach(mut self) {
        if self.mounted {
            self.unmount();
        }
        run("losetup", &["--detach", &self.device]).succeeds();
        self.device.clear();
    }

    /// Takes everything down although the daemon has gone: whatever the file system still has to write fails. When this returns
    /// nothing is mounted any more, else the next mount of the same file system would meet the old one.
    pub fn give_up(mut self) {
        // nbdfuse stays until the end: it answers with errors. Without it, whoever looks at all loop devices (mkfs.btrfs) fails.
        let started = Instant::now();
        while self.mounted && started.elapsed() < PATIENCE {
            // Busy until the last killed process is really gone; and it may complain about what it cannot write.
            quietly("umount", &[text(self.at.path())]);
            self.mounted = run("mountpoint", &["-q", text(self.at.path())]).code == Some(0);
        }
        assert!(!self.mounted, "{} stays mounted", self.at.path().display());
        run("losetup", &["--detach", &self.device]).succeeds();
        self.device.clear();
    }
}

/// Where others than root can get, too: database servers refuse to be root.
fn mount_point() -> TempDir {
    tempfile::Builder::new().prefix("tidegate").tempdir().expect("a folder")
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.mounted {
            quietly("umount", &["--lazy", text(self.at.path())]);
        }
        if !self.device.is_empty() {
            quietly("losetup", &["--detach", &self.device]);
        }
    }
}

/// For clearing up: errors have nobody to go to.
pub fn quietly(program: &str, arguments: &[&str]) {
    let _ = Command::new(program).args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
}

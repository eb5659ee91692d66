//! A file system on a volume whose daemon can be killed at any moment, and both taken up again.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use tempfile::TempDir;

use super::daemon::Daemon;
use super::mount::Disk;
use super::{text, tool, volume};

/// Small and restless: destaging and eviction run while the load does.
const KNOBS: &str = "[gate]\nfree_floor = \"40%\"\nwait = \"1ms\"\nmax_dirty_age = \"200ms\"\ndirty_high = \"30%\"\n";

pub struct Stand {
    folder: TempDir,
    options: &'static str,
    daemon: Mutex<Option<Daemon>>,
    disk: Option<Disk>,
}

impl Stand {
    /// A volume of 512 MiB with a cache of 192 MiB, and on it what `mkfs` makes, mounted with `options`.
    pub fn new(mkfs: &[&str], options: &'static str) -> Stand {
        let folder = volume("512MiB", "192MiB", KNOBS);
        let daemon = Daemon::up(folder.path());
        let mut disk = Disk::of(&daemon);
        tool::run(mkfs[0], &[&mkfs[1..], &[&disk.device]].concat()).succeeds();
        disk.mount(options);
        Stand { folder, options, daemon: Mutex::new(Some(daemon)), disk: Some(disk) }
    }

    /// Where it is mounted.
    pub fn at(&self) -> PathBuf {
        self.disk.as_ref().expect("it is up").folder().to_owned()
    }

    fn daemon(&self) -> MutexGuard<'_, Option<Daemon>> {
        self.daemon.lock().expect("nobody panicked with it")
    }

    /// `kill -9`; what is mounted stays and fails. From any thread, any number of times.
    pub fn kill_daemon(&self) {
        if let Some(daemon) = self.daemon().take() {
            daemon.kill();
        }
    }

    /// After [`Stand::kill_daemon`], and when nobody uses the mount any more: everything from the start, and nothing was damaged.
    pub fn take_up_again(&mut self) -> PathBuf {
        assert!(self.daemon().is_none(), "it was killed");
        self.disk.take().expect("it was up").give_up();
        let daemon = Daemon::up(self.folder.path());
        assert_eq!(daemon.status()["damage"], serde_json::json!([]));
        let mut disk = Disk::of(&daemon);
        let at = disk.mount(self.options);
        *self.daemon() = Some(daemon);
        self.disk = Some(disk);
        at
    }

    /// Unmounts, lets `fsck` look at the device, drains, stops; `fsck` must find nothing wrong, there and on the origin alone.
    pub fn finish(mut self, fsck: &[&str]) {
        let mut disk = self.disk.take().expect("it is up");
        disk.unmount();
        let check = |device: &str| tool::run(fsck[0], &[&fsck[1..], &[device]].concat()).succeeds();
        check(&disk.device);
        disk.detach();
        tool::tidegate(&["drain", "--dir", text(self.folder.path())]).succeeds();
        self.daemon().take().expect("it is up").stop();
        let origin = Disk::read_only(&self.file("origin.img"));
        check(&origin.device);
        origin.detach();
        tool::tidegate(&["check", "--cache", text(&self.file("cache.img"))]).succeeds();
    }

    fn file(&self, name: &str) -> PathBuf {
        Path::new(self.folder.path()).join(name)
    }
}

/// Rounds of a test that crashes something: `few`, unless TIDEGATE_ROUNDS says otherwise (`make soak`).
pub fn rounds(few: u64) -> u64 {
    std::env::var("TIDEGATE_ROUNDS").map_or(few, |count| count.parse().expect("a number of rounds"))
}

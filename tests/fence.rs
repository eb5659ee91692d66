//! The fence around a volume, with real files: an origin that was changed while the daemon was away, a cache that is another one or an
//! older copy of itself. Each is refused in one line before anything is served, and what may go on goes on.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use tempfile::TempDir;

use crate::common::chance::Chance;
use crate::common::daemon::Daemon;
use crate::common::tool::{self, Ended};
use crate::common::{text, volume};

const MIB: u64 = 1 << 20;

/// A volume of 48 MiB; 8 MiB from 16 MiB on were read through the cache, which holds them clean.
fn read_once() -> (TempDir, Daemon) {
    let folder = volume("48MiB", "64MiB", "");
    fs::write(folder.path().join("origin.img"), Chance::new(3).bytes((48 * MIB) as usize)).unwrap();
    let daemon = Daemon::up(folder.path());
    let mut client = daemon.connect();
    let misses = |daemon: &Daemon| daemon.status()["misses"]["blocks"].as_u64().unwrap();
    loop {
        let before = misses(&daemon);
        for piece in 0..32 {
            client.read(16 * MIB + piece * MIB / 4, MIB as u32 / 4).unwrap();
        }
        if misses(&daemon) == before {
            break;
        }
    }
    client.flush().unwrap();
    drop(client);
    (folder, daemon)
}

/// Somebody else writes to the origin, here and there.
fn change(folder: &Path, offsets: impl IntoIterator<Item = u64>) {
    let origin = OpenOptions::new().write(true).open(folder.join("origin.img")).unwrap();
    offsets.into_iter().for_each(|offset| origin.write_all_at(b"somebody else was here", offset).unwrap());
    origin.sync_all().unwrap();
}

fn refused(folder: &Path, arguments: &[&str], says: &[&str]) {
    let ended: Ended = tool::tidegate_in(folder, arguments);
    assert!(ended.code == Some(65) && ended.stderr.lines().count() == 1 && ended.stdout.is_empty(), "{ended}");
    for words in says {
        assert!(ended.stderr.contains(words), "it does not say {words:?}: {ended}");
    }
}

const UP: &[&str] = &["up", "--dir", "."];

#[test]
fn an_origin_changed_behind_the_cache_is_refused_after_a_stop_and_after_a_crash() {
    for crash in [false, true] {
        let (folder, daemon) = read_once();
        if crash {
            daemon.kill()
        } else {
            daemon.stop()
        }
        // All of what the cache holds: a single block may escape, and the documents say how likely.
        change(folder.path(), (0..2048).map(|block| 16 * MIB + block * 4096));
        let anew = format!("`tidegate create --force --dir {}`, and nothing is lost", text(folder.path()));
        refused(folder.path(), UP, &["the origin was changed behind the cache", "the first at byte ", &anew]);
        // And again: nothing was repaired, and nothing forgotten.
        refused(folder.path(), UP, &["the origin was changed behind the cache"]);
    }
}

/// The way back stays open: with its former size the right origin is served again.
#[test]
fn a_volume_does_not_grow_with_another_origin() {
    let (folder, daemon) = read_once();
    daemon.stop();
    let origin = folder.path().join("origin.img");
    let right = folder.path().join("right.img");
    fs::rename(&origin, &right).unwrap();
    fs::write(&origin, Chance::new(4).bytes((50 * MIB) as usize)).unwrap();
    for arguments in [&["grow", "--dir", "."], &["up", "--dir", ".", "--grow"][..]] {
        refused(folder.path(), arguments, &["the origin was changed behind the cache"]);
    }
    fs::rename(&right, &origin).unwrap();
    Daemon::up(folder.path()).stop();
}

#[test]
fn a_file_system_mounted_while_the_daemon_was_away_is_noticed() {
    let (folder, daemon) = read_once();
    daemon.stop();
    // The superblock of ext4; nothing of this part is in the cache.
    change(folder.path(), [1024 + 48]);
    refused(folder.path(), UP, &["the origin was changed behind the cache", "the first at byte 0;"]);
    // Given up on purpose, it is a volume like any other.
    tool::tidegate_in(folder.path(), &["create", "--dir", ".", "--force"]).succeeds();
    Daemon::up(folder.path()).stop();
}

#[test]
fn samples_may_be_switched_off() {
    let folder = volume("48MiB", "64MiB", "[fence]\nsamples = 0\n");
    Daemon::up(folder.path()).stop();
    change(folder.path(), [0]);
    let daemon = Daemon::up(folder.path());
    assert!(daemon.connect().read(0, 4096).unwrap().starts_with(b"somebody else"));
    daemon.stop();
}

#[test]
fn an_older_copy_of_the_cache_is_refused() {
    let (folder, daemon) = read_once();
    daemon.stop();
    let cache = folder.path().join("cache.img");
    let older = fs::read(&cache).unwrap();
    let daemon = Daemon::up(folder.path());
    let mut client = daemon.connect();
    client.write(0, &[7; 4096]).unwrap();
    client.flush().unwrap();
    drop(client);
    daemon.stop();
    let newer = fs::read(&cache).unwrap();
    fs::write(&cache, older).unwrap();
    refused(folder.path(), UP, &["an older copy of itself", "tidegate.state", "create --force"]);
    refused(folder.path(), &["up", "--dir", ".", "--accept-loss"], &["an older copy of itself"]);
    fs::write(&cache, newer).unwrap();
    let daemon = Daemon::up(folder.path());
    daemon.connect().expect(0, &[7; 4096]);
    daemon.stop();
}

#[test]
fn a_copy_of_the_cache_made_while_it_served_is_refused_after_a_stop() {
    let (folder, daemon) = read_once();
    let cache = folder.path().join("cache.img");
    let mut client = daemon.connect();
    client.write(0, &[7; 4096]).unwrap();
    client.flush().unwrap();
    let older = fs::read(&cache).unwrap();
    client.write(0, &[8; 4096]).unwrap();
    client.flush().unwrap();
    drop(client);
    daemon.stop();
    let newer = fs::read(&cache).unwrap();
    fs::write(&cache, older).unwrap();
    refused(folder.path(), UP, &["an older copy of itself"]);
    fs::write(&cache, newer).unwrap();
    let daemon = Daemon::up(folder.path());
    daemon.connect().expect(0, &[8; 4096]);
    daemon.stop();
}

#[test]
fn a_cache_that_was_given_up_never_comes_back() {
    let (folder, daemon) = read_once();
    daemon.stop();
    let cache = folder.path().join("cache.img");
    let given_up = fs::read(&cache).unwrap();
    tool::tidegate_in(folder.path(), &["create", "--dir", ".", "--force"]).succeeds();
    let next = fs::read(&cache).unwrap();
    let comes_back = || {
        fs::write(&cache, &given_up).unwrap();
        for arguments in [UP, &["up", "--dir", ".", "--accept-loss"]] {
            refused(folder.path(), arguments, &["has missed writes", "create --force"]);
        }
    };
    comes_back();
    fs::write(&cache, &next).unwrap();
    let daemon = Daemon::up(folder.path());
    daemon.connect().write(20 * MIB, &[7; 4096]).unwrap();
    tool::tidegate_in(folder.path(), &["drain", "--dir", "."]).succeeds();
    daemon.stop();
    let next = fs::read(&cache).unwrap();
    comes_back();
    fs::write(&cache, &next).unwrap();
    let daemon = Daemon::up(folder.path());
    daemon.connect().expect(20 * MIB, &[7; 4096]);
    daemon.stop();
}

#[test]
fn another_cache_is_taken_when_nothing_is_lost_or_the_loss_is_accepted() {
    let (folder, daemon) = read_once();
    let mut client = daemon.connect();
    client.write(0, &[7; 4096]).unwrap();
    client.flush().unwrap();
    drop(client);
    daemon.stop();
    let (cache, other) = (folder.path().join("cache.img"), folder.path().join("lost"));
    // The SSD is gone; a new one is formatted in another folder, as somebody who replaces a disk would.
    fs::rename(&cache, &other).unwrap();
    let elsewhere = ["create", "--dir", "elsewhere", "--origin", "origin.img", "--cache", "cache.img", "--cache-size", "64MiB"];
    tool::tidegate_in(folder.path(), &elsewhere).succeeds();
    refused(folder.path(), UP, &["this volume last ran with", "held 1 blocks newer than the origin", "--accept-loss"]);
    let daemon = Daemon::start(folder.path(), &["up", "--dir", text(folder.path()), "--accept-loss"]);
    assert_ne!(daemon.connect().read(0, 4096).unwrap(), [7; 4096], "it was only there");
    daemon.stop();
    // Nothing was dirty this time.
    fs::remove_file(&cache).unwrap();
    fs::remove_dir_all(folder.path().join("elsewhere")).unwrap();
    tool::tidegate_in(folder.path(), &elsewhere).succeeds();
    Daemon::up(folder.path()).stop();
}

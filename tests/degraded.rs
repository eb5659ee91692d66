//! A cache that is lost in service: the volume goes on, what was acknowledged is saved, and the lost cache is not taken back.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use tidegate_daemon::state::State;

use crate::common::chance::Chance;
use crate::common::daemon::Daemon;
use crate::common::mount::Fuse;
use crate::common::tool::{self, tidegate};
use crate::common::{folder, text};

const BLOCK: u64 = 4096;
const PATIENCE: Duration = Duration::from_secs(60);

/// A volume before a cache in nbdkit's memory, as a file: gone for good when nbdfuse is.
struct Volume {
    folder: tempfile::TempDir,
    cache: Fuse,
    origin: PathBuf,
}

impl Volume {
    fn new(config: &str) -> Volume {
        let folder = folder();
        let dir = folder.path();
        let cache = Fuse::new(&["[", "nbdkit", "--exit-with-parent", "memory", "size=128M", "]"]);
        let (file, origin) = (cache.file(), dir.join("origin.img"));
        let devices = ["--dir", text(dir), "--cache", text(&file), "--origin", text(&origin)];
        tidegate(&[&["create", "--origin-size", "64MiB"], &devices[..]].concat()).succeeds();
        let config = format!("cache = {:?}\norigin = {:?}\n{config}", text(&file), text(&origin));
        std::fs::write(dir.join("config.toml"), config).unwrap();
        Volume { folder, cache, origin }
    }
}

fn contents(seed: u64) -> Vec<u8> {
    Chance::new(seed).bytes(BLOCK as usize)
}

#[test]
fn what_a_cache_that_is_gone_had_goes_home_from_memory() {
    for config in ["", "[limits]\nfront_threads = 2\n"] {
        let mut volume = Volume::new(config);
        let daemon = Daemon::up(volume.folder.path());
        let mut client = daemon.connect();
        client.write(BLOCK, &contents(1)).unwrap();
        client.flush().unwrap();
        volume.cache.kill();
        for block in 2..50 {
            client.write(block * BLOCK, &contents(block)).unwrap();
        }
        client.expect(BLOCK, &contents(1));
        client.flush().unwrap();
        let disk = std::fs::read(&volume.origin).unwrap();
        for block in 1..50 {
            assert!(disk[(block * BLOCK) as usize..].starts_with(&contents(block)), "block {block} is on the origin");
        }
        drop(client);
        // There is no cache any more that could say that it was detached. The volume goes on.
        let refused = tidegate(&["detach", "--dir", text(volume.folder.path())]);
        assert!(refused.code == Some(1) && refused.stderr.contains("the cache has failed"), "{refused}");
        daemon.connect().expect(BLOCK, &contents(1));
        daemon.stop();
    }
}

#[test]
fn a_volume_goes_on_without_a_cache_that_is_gone() {
    let Volume { folder, mut cache, origin } = Volume::new("[memory]\nram = \"0B\"\n");
    let dir = folder.path();
    let daemon = Daemon::up(dir);
    let mut client = daemon.connect();
    client.write(0, &contents(0)).unwrap();
    client.flush().unwrap();
    tidegate(&["drain", "--dir", text(dir)]).succeeds();
    client.write(BLOCK, &contents(1)).unwrap();
    client.flush().unwrap();
    cache.kill();

    // Nothing is lost of what comes now: each is answered when the host knows and the origin has it.
    client.write(2 * BLOCK, &contents(2)).unwrap();
    client.flush().unwrap();
    client.expect(0, &contents(0));
    client.expect(2 * BLOCK, &contents(2));
    assert!(client.read(BLOCK, BLOCK as u32).unwrap_err().to_string().contains("error 5"), "only the lost cache had it");
    let status = daemon.status();
    assert_eq!((status["cache_health"].as_str(), status["dirty_blocks"].as_u64()), (Some("degraded"), Some(1)), "{status}");
    let told = tidegate(&["status", "--dir", text(dir)]).succeeds();
    assert!(told.contains("cache    failed"), "{told}");
    let drained = tidegate(&["drain", "--dir", text(dir)]);
    assert!(drained.code == Some(74) && drained.stderr.contains("the SSD has failed, and does not give 1 blocks"), "{drained}");
    client.write(3 * BLOCK, &contents(3)).unwrap();
    client.flush().unwrap();
    assert!(daemon.said().contains("goes on without it"), "{}", daemon.said());
    drop(client);
    daemon.stop();
    let disk = std::fs::read(&origin).unwrap();
    for block in [0, 2, 3] {
        assert!(disk[(block * BLOCK) as usize..].starts_with(&contents(block)), "block {block} is on the origin");
    }
    let lost = std::fs::read_to_string(dir.join("tidegate.dirty")).unwrap();
    let spans =
        lost.lines().filter_map(|line| line.split_once(' ')).filter_map(|(at, bytes)| Some((at.parse().ok()?, bytes.parse().ok()?)));
    let holds_it = |(at, bytes): (u64, u64)| at <= BLOCK && 2 * BLOCK <= at + bytes;
    assert!(spans.into_iter().any(holds_it), "at the grain of a set: {lost}");

    // Another cache is told what was lost with the last one.
    let other = dir.join("other.img");
    tidegate(&["create", "--dir", text(dir), "--cache", text(&other), "--origin", text(&origin), "--cache-size", "64MiB"]).succeeds();
    std::fs::write(dir.join("config.toml"), format!("cache = {:?}\norigin = {:?}\n", text(&other), text(&origin))).unwrap();
    let refused = tidegate(&["up", "--dir", text(dir)]);
    assert_eq!(refused.code, Some(65), "{refused:?}");
    let refused = refused.stderr;
    assert!(refused.contains("failed in service and alone had 1 blocks") && refused.contains("--accept-loss"), "{refused}");
    let daemon = Daemon::start(dir, &["up", "--dir", text(dir), "--accept-loss"]);
    let mut client = daemon.connect();
    for block in [0, 2, 3] {
        client.expect(block * BLOCK, &contents(block));
    }
    drop(client);
    daemon.stop();
}

/// Nobody has it any more, and nothing that is written there later is taken for it.
#[test]
fn a_stop_without_its_cache_that_the_origin_does_not_take_says_what_is_lost() {
    let folder = folder();
    let dir = folder.path();
    let dead = dir.join("dead");
    let mut cache = Fuse::new(&["[", "nbdkit", "--exit-with-parent", "memory", "size=64M", "]"]);
    let failing = format!("error-file={}", text(&dead));
    let nbdkit = ["[", "nbdkit", "--exit-with-parent", "--log=null", "--filter=error", "memory", "size=64M"];
    let disk = Fuse::new(&[&nbdkit[..], &["error=EIO", "error-rate=100%", &failing, "]"]].concat());
    let (lost, origin) = (cache.file(), disk.file());
    let config = |cache: &std::path::Path| {
        let config = format!("cache = {:?}\norigin = {:?}\n[limits]\nstall_timeout = \"1s\"\n", text(cache), text(&origin));
        std::fs::write(dir.join("config.toml"), config).unwrap();
    };
    tidegate(&["create", "--dir", text(dir), "--cache", text(&lost), "--origin", text(&origin)]).succeeds();
    config(&lost);
    let daemon = Daemon::up(dir);
    let mut client = daemon.connect();
    client.write(0, &contents(0)).unwrap();
    client.flush().unwrap();
    tidegate(&["drain", "--dir", text(dir)]).succeeds();
    // Acknowledged, and not flushed; the origin takes nothing of it when the cache is gone.
    let at = 5 << 20;
    client.write(at, &contents(1)).unwrap();
    std::fs::write(&dead, "").unwrap();
    cache.kill();
    client.flush().unwrap_err();
    assert_eq!(daemon.status()["cache_health"], "degraded");
    drop(client);
    daemon.terminate();
    let (status, said) = daemon.ended();
    assert_eq!(status.code(), Some(74), "{said}");
    assert!(said.contains(&format!("up to {BLOCK} bytes and 0 zeroed ranges are lost")), "{said}");
    assert!(!said.contains("nothing was changed"), "{said}");
    let state = State::read(&dir.join("tidegate.state")).unwrap().unwrap();
    assert!(state.degraded && !state.stopped && state.dirty == Some(1), "{state:?}");
    let listed = std::fs::read_to_string(dir.join("tidegate.dirty")).unwrap();
    assert!(listed.contains(" complete\n") && listed.contains(&format!("\n{at} ")), "{listed}");

    // Who gives the volume another cache is told.
    std::fs::remove_file(&dead).unwrap();
    let other = dir.join("other.img");
    tidegate(&["create", "--dir", text(dir), "--cache", text(&other), "--origin", text(&origin), "--cache-size", "64MiB"]).succeeds();
    config(&other);
    let refused = tidegate(&["up", "--dir", text(dir)]);
    assert_eq!(refused.code, Some(65), "{refused}");
    assert!(refused.stderr.contains("alone had 1 blocks") && refused.stderr.contains("--accept-loss"), "{refused}");
}

/// The switch sends home what is dirty, and meets the end of the cache: it never ends, and nobody waits for it.
#[test]
fn a_switch_of_modes_that_meets_the_end_of_the_cache_says_so() {
    let mut volume = Volume::new("[memory]\nram = \"0B\"\n");
    let dir = volume.folder.path();
    let daemon = Daemon::up(dir);
    let mut client = daemon.connect();
    client.write(BLOCK, &contents(1)).unwrap();
    client.flush().unwrap();
    volume.cache.kill();
    let mode = ["60", env!("CARGO_BIN_EXE_tidegate"), "mode", "write-through", "--dir", text(dir)];
    let ended = tool::run("timeout", &mode);
    assert!(ended.code == Some(1) && ended.stderr.contains("the cache has failed"), "{ended}");
    assert_eq!(ended.stderr.lines().count(), 1, "{ended}");
    drop(client);
    daemon.stop();
}

/// The host's word goes where the volume is by then, and not into another folder that has its name.
#[test]
fn a_cache_that_fails_after_its_folder_was_renamed_is_not_taken_back() {
    let mut volume = Volume::new("");
    let parent = folder();
    let [old, new] = ["old", "new"].map(|name| parent.path().join(name));
    std::fs::create_dir(&old).unwrap();
    std::fs::copy(volume.folder.path().join("config.toml"), old.join("config.toml")).unwrap();
    let daemon = Daemon::up(&old);
    let mut client = daemon.connect();
    client.write(0, &contents(0)).unwrap();
    client.flush().unwrap();
    std::fs::rename(&old, &new).unwrap();
    std::fs::create_dir(&old).unwrap();
    volume.cache.kill();
    client.write(BLOCK, &contents(1)).unwrap();
    client.flush().unwrap();
    drop(client);
    daemon.stop();
    let state = State::read(&new.join("tidegate.state")).unwrap().unwrap();
    assert!(state.degraded && state.stopped, "{state:?}");
    assert!(new.join("tidegate.dirty").exists());
    assert_eq!(std::fs::read_dir(&old).unwrap().count(), 0, "nothing was written there");
}

/// A backup that took the folder's place, or a move to another file system: the next start reads that one.
#[test]
fn a_cache_that_fails_after_its_folder_was_replaced_by_a_copy_is_not_taken_back() {
    for is_kept in [true, false] {
        let mut volume = Volume::new("");
        let parent = folder();
        let [dir, copy] = ["volume", "copy"].map(|name| parent.path().join(name));
        std::fs::create_dir(&dir).unwrap();
        std::fs::copy(volume.folder.path().join("config.toml"), dir.join("config.toml")).unwrap();
        let daemon = Daemon::up(&dir);
        let mut client = daemon.connect();
        client.write(0, &contents(0)).unwrap();
        client.flush().unwrap();
        tool::shell(&format!("cp -a '{0}' '{1}' && mv '{0}' '{0}.old' && mv '{1}' '{0}'", text(&dir), text(&copy))).succeeds();
        let old = parent.path().join("volume.old");
        if !is_kept {
            std::fs::remove_dir_all(&old).unwrap();
        }
        volume.cache.kill();
        client.write(BLOCK, &contents(1)).unwrap();
        client.flush().unwrap();
        drop(client);
        daemon.stop();
        for dir in [&dir, &old].into_iter().take(if is_kept { 2 } else { 1 }) {
            let state = State::read(&dir.join("tidegate.state")).unwrap().unwrap();
            assert!(state.degraded && state.stopped, "{}: {state:?}", dir.display());
            assert!(dir.join("tidegate.dirty").exists(), "{}", dir.display());
        }
    }
}

/// Nothing but what was configured is there again: the next start will know no more than what is written there.
#[test]
fn a_cache_that_fails_after_its_folder_was_made_anew_is_not_taken_back() {
    let mut volume = Volume::new("");
    let parent = folder();
    let dir = parent.path().join("volume");
    let make = || {
        std::fs::create_dir(&dir).unwrap();
        std::fs::copy(volume.folder.path().join("config.toml"), dir.join("config.toml")).unwrap();
    };
    make();
    let daemon = Daemon::up(&dir);
    let mut client = daemon.connect();
    client.write(0, &contents(0)).unwrap();
    client.flush().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    make();
    volume.cache.kill();
    client.write(BLOCK, &contents(1)).unwrap();
    client.flush().unwrap();
    drop(client);
    daemon.stop();
    let state = State::read(&dir.join("tidegate.state")).unwrap().unwrap();
    assert!(state.degraded && state.stopped, "{state:?}");
    assert!(dir.join("tidegate.dirty").exists());
}

#[test]
fn writes_that_wait_for_an_origin_that_is_gone_fail_in_time_and_nothing_dirty_is_dropped() {
    let folder = folder();
    let dir = folder.path();
    let mut origin = Fuse::new(&["[", "nbdkit", "--exit-with-parent", "memory", "size=256M", "]"]);
    let (file, cache) = (origin.file(), dir.join("cache.img"));
    let devices = ["--dir", text(dir), "--origin", text(&file), "--cache", text(&cache)];
    tidegate(&[&["create", "--cache-size", "64MiB"], &devices[..]].concat()).succeeds();
    let knobs = format!("origin = {:?}\ncache = {:?}\n[limits]\nstall_timeout = \"2s\"\n", text(&file), text(&cache));
    std::fs::write(dir.join("config.toml"), knobs).unwrap();
    let daemon = Daemon::up(dir);
    let mut client = daemon.connect();
    origin.kill();
    let piece = 1 << 20;
    let contents = |seed: u64| Chance::new(seed).bytes(piece);
    let began = Instant::now();
    let mut written = 0;
    let error = loop {
        match client.write(written * piece as u64, &contents(written)) {
            Ok(()) => written += 1,
            Err(error) => break error.to_string(),
        }
        assert!(began.elapsed() < PATIENCE && written < 200, "the cache is never full");
        client.flush().unwrap();
    };
    assert!(error.contains("error 5") && written > 10, "{error} after {written} MiB");
    client.flush().unwrap();
    for block in 0..written {
        client.expect(block * piece as u64, &contents(block));
    }
    let status = daemon.status();
    assert!(status["errors"]["stalled_requests"].as_u64().unwrap() > 0, "{status}");
    drop(client);
    daemon.stop();
}

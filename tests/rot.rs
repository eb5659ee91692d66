//! Bit rot in the cache: what does not match its checksum is never returned. Clean blocks are fetched again, dirty ones fail alone.

use std::path::Path;

use crate::common::chance::Chance;
use crate::common::daemon::Daemon;
use crate::common::tool::tidegate;
use crate::common::{replace_cache, text, volume};

const BLOCK: u32 = 4096;
const BLOCKS: u64 = 32;

/// Flips one bit of `contents` wherever the cache has them.
fn rot(cache: &Path, contents: &[u8]) {
    let mut bytes = std::fs::read(cache).unwrap();
    let places: Vec<usize> = (0..bytes.len()).step_by(512).filter(|place| bytes[*place..].starts_with(&contents[..512])).collect();
    assert!(!places.is_empty(), "the cache holds the block");
    places.into_iter().for_each(|place| bytes[place + 77] ^= 4);
    std::fs::write(cache, &bytes).unwrap();
}

/// 32 blocks written and flushed, made clean if `drained`; the daemon stopped, one of them rotten, the daemon up again.
fn with_rot(drained: bool, look: impl FnOnce(&Daemon, &[Vec<u8>])) {
    let (_folder, daemon, contents) = rotten(drained);
    look(&daemon, &contents);
    daemon.stop();
}

fn rotten(drained: bool) -> (tempfile::TempDir, Daemon, Vec<Vec<u8>>) {
    let folder = volume("48MiB", "64MiB", "");
    let contents: Vec<Vec<u8>> = (0..BLOCKS).map(|block| Chance::new(block).bytes(BLOCK as usize)).collect();
    let daemon = Daemon::up(folder.path());
    let mut client = daemon.connect();
    client.write(0, &contents.concat()).unwrap();
    client.flush().unwrap();
    if drained {
        tidegate(&["drain", "--dir", text(folder.path())]).succeeds();
    }
    drop(client);
    daemon.stop();
    rot(&folder.path().join("cache.img"), &contents[5]);
    let daemon = Daemon::up(folder.path());
    (folder, daemon, contents)
}

#[test]
fn a_rotten_dirty_block_fails_alone_and_is_counted() {
    with_rot(false, |daemon, contents| {
        let mut client = daemon.connect();
        for (block, contents) in (0..).zip(contents) {
            match block {
                5 => assert!(client.read(5 * u64::from(BLOCK), BLOCK).unwrap_err().to_string().contains("error 5"), "EIO"),
                _ => client.expect(block * u64::from(BLOCK), contents),
            }
        }
        let status = daemon.status();
        assert!(status["errors"]["corrupt_dirty_slots"].as_u64().unwrap() > 0, "{status}");
        // What is written there now is good again.
        client.write(5 * u64::from(BLOCK), &contents[9]).unwrap();
        client.expect(5 * u64::from(BLOCK), &contents[9]);
    });
}

#[test]
fn a_cache_that_has_lost_a_block_is_not_without_damage() {
    let folder = volume("48MiB", "64MiB", "");
    let contents = Chance::new(5).bytes(BLOCK as usize);
    let check = || tidegate(&["check", "--dir", text(folder.path())]);
    let read = || tidegate(&["check", "--dir", text(folder.path()), "--data"]);
    let daemon = Daemon::up(folder.path());
    let mut client = daemon.connect();
    client.write(0, &contents).unwrap();
    client.flush().unwrap();
    drop(client);
    daemon.stop();
    assert!(check().succeeds().contains("no damage; what the blocks hold was not read"));
    assert!(read().succeeds().contains("no damage; all 1 blocks were read"));
    rot(&folder.path().join("cache.img"), &contents);
    check().succeeds();
    let found = read();
    assert!(found.code == Some(1) && found.stdout.contains("damage   1 blocks newer than the origin do not read"), "{found}");
    assert!(found.stdout.contains("4096 bytes from byte 0 on"), "{found}");
    let daemon = Daemon::up(folder.path());
    stays_behind("drain", &daemon);
    let said = tidegate(&["stop", "--dir", text(folder.path())]).succeeds();
    let (status, told) = daemon.ended();
    for said in [said, told] {
        assert!(
            status.success() && said.contains("stopped; every acknowledged write is durable, but for 1 lost blocks"),
            "{status} {said}"
        );
    }
    let found = check();
    assert!(found.code == Some(1) && found.stdout.contains("damage   1 blocks are lost"), "{found}");
}

fn stays_behind(command: &str, daemon: &Daemon) {
    let said = tidegate(&[command, "--dir", text(daemon.dir())]);
    assert!(said.code == Some(74) && said.stderr.contains("does not give 1 blocks that are newer"), "{said}");
}

#[test]
fn a_drain_ends_where_a_rotten_block_is_lost() {
    with_rot(false, |daemon, contents| {
        stays_behind("drain", daemon);
        let status = daemon.status();
        assert_eq!([&status["lost_blocks"], &status["dirty_blocks"], &status["zero_ranges"]], [1, 0, 0], "{status}");
        let mut client = daemon.connect();
        assert!(client.read(5 * u64::from(BLOCK), BLOCK).unwrap_err().to_string().contains("error 5"), "EIO");
        let origin = std::fs::read(daemon.dir().join("origin.img")).unwrap();
        for (block, contents) in contents.iter().enumerate().filter(|(block, _)| *block != 5) {
            assert!(origin[block * BLOCK as usize..].starts_with(contents), "block {block} is home");
        }
        // What the origin holds of it is older, and would be no error.
        drop(client);
        stays_behind("detach", daemon);
    });
}

#[test]
fn a_rotten_clean_block_is_fetched_again() {
    with_rot(true, |daemon, contents| {
        let mut client = daemon.connect();
        client.expect(0, &contents.concat());
        let status = daemon.status();
        // By the read, or by the scrubber before it.
        let found = [&status["errors"]["corrupt_clean_slots"], &status["scrub"]["dropped_blocks"]].map(|count| count.as_u64().unwrap());
        assert!(found != [0, 0], "{status}");
    });
}

/// Of a block that is lost the origin has older contents, which would be no error.
#[test]
fn a_cache_that_promises_the_origin_and_has_lost_a_block_is_not_given_up_without_a_word() {
    let (folder, daemon, _) = rotten(false);
    let dir = folder.path();
    tidegate(&["mode", "write-through", "--dir", text(dir)]).succeeds();
    assert_eq!(daemon.status()["lost_blocks"], 1);
    daemon.kill();
    replace_cache(dir);
    let refused = tidegate(&["up", "--dir", text(dir)]);
    let why = "is blank, and the one that this volume last ran with knew of blocks that were lost or unreadable";
    assert!(refused.code == Some(65) && refused.stderr.contains(why), "{refused}");
    let daemon = Daemon::start(dir, &["up", "--dir", text(dir), "--accept-loss"]);
    let mode = tidegate(&["mode", "--dir", text(dir)]).succeeds();
    assert!(mode.starts_with("write-through: "), "it promises what the last one did: {mode}");
    daemon.stop();
}

//! Writes past the log, on real files: where they end, and what a kill leaves of them.

use std::os::unix::fs::FileExt;

use crate::common::chance::Chance;
use crate::common::daemon::Daemon;
use crate::common::nbd::Command;
use crate::common::{tool, volume};

const BLOCK: u64 = 4096;

#[test]
fn a_read_only_cache_lets_writes_through_and_keeps_reads() {
    let folder = volume("64MiB", "64MiB", "[log]\nallocation = \"read-only\"\n");
    let daemon = Daemon::up(folder.path());
    let mut client = daemon.connect();
    // Cached by the read, written past the cache, ragged at both ends.
    client.read(0, 64 * BLOCK as u32).unwrap();
    let mut chance = Chance::new(7);
    let writes: Vec<(u64, Vec<u8>)> = (0..200).map(|number| (number * 5 * BLOCK + 512 * (number % 3), chance.bytes(6144))).collect();
    for (offset, data) in &writes {
        client.write(*offset, data).unwrap();
    }
    let origin = std::fs::File::open(folder.path().join("origin.img")).unwrap();
    for (offset, data) in &writes {
        let mut there = vec![0; data.len()];
        origin.read_exact_at(&mut there, *offset).unwrap();
        assert!(there == *data, "the origin holds the write at {offset}");
        client.expect(*offset, data);
    }
    assert!(daemon.status()["through"]["blocks"].as_u64().unwrap() >= 200);
    client.flush().unwrap();
    daemon.kill();

    let daemon = Daemon::up(folder.path());
    let mut client = daemon.connect();
    for (offset, data) in &writes {
        client.expect(*offset, data);
    }
    daemon.stop();
}

#[test]
fn a_full_cache_lets_writes_through_and_loses_none() {
    // 64 MiB of writes into a cache of 40 MiB that would rather not destage.
    let knobs = "[gate]\nfree_floor = \"3%\"\ndirty_high = \"100%\"\n[log]\nwhen_full = \"through\"\n";
    let folder = volume("128MiB", "40MiB", knobs);
    let daemon = Daemon::up(folder.path());
    let mut client = daemon.connect();
    let mut chance = Chance::new(8);
    let mib: Vec<Vec<u8>> = (0..64).map(|_| chance.bytes(1 << 20)).collect();
    // All at once, and again until some have gone through: an origin as quick as this one may make room as fast as they come.
    let through = |daemon: &Daemon| daemon.status()["through"]["blocks"].as_u64().unwrap();
    for round in 0.. {
        for (number, data) in mib.iter().enumerate() {
            client.queue(Command::Write, (number as u64) << 20, 1 << 20, data);
        }
        client.push().unwrap();
        while client.in_flight() > 0 {
            assert_eq!(client.receive().unwrap().error, 0);
        }
        if through(&daemon) > 0 {
            break;
        }
        assert!(round < 30, "{}", daemon.status());
    }
    client.flush().unwrap();
    daemon.kill();

    let daemon = Daemon::up(folder.path());
    let mut client = daemon.connect();
    for (number, data) in mib.iter().enumerate() {
        client.expect((number as u64) << 20, data);
    }
    daemon.stop();
}

#[test]
fn a_converter_takes_small_writes_and_lets_large_ones_home() {
    let folder = volume("64MiB", "64MiB", "[log]\nallocation = \"small-writes\"\n");
    let daemon = Daemon::up(folder.path());
    let mut client = daemon.connect();
    let mut chance = Chance::new(9);
    let small: Vec<(u64, Vec<u8>)> = (0..300).map(|number| (number * 37 % 300 * 9 * BLOCK, chance.bytes(BLOCK as usize))).collect();
    let large: Vec<(u64, Vec<u8>)> = (0..20).map(|number| ((20 << 20) + number * (1 << 20), chance.bytes(256 << 10))).collect();
    for (offset, data) in small.iter().chain(&large) {
        client.write(*offset, data).unwrap();
    }
    client.flush().unwrap();
    let origin = std::fs::File::open(folder.path().join("origin.img")).unwrap();
    let is_home = |(offset, data): &(u64, Vec<u8>)| {
        let mut there = vec![0; data.len()];
        origin.read_exact_at(&mut there, *offset).unwrap();
        there == *data
    };
    assert!(large.iter().all(is_home), "large writes are on the origin");
    assert!(!small.iter().any(is_home), "small ones are in the log alone");
    // Into one of the large ones, and across its edge.
    let inner = chance.bytes(BLOCK as usize);
    client.write((20 << 20) + 512, &inner).unwrap();
    client.flush().unwrap();
    daemon.kill();

    let daemon = Daemon::up(folder.path());
    let mut client = daemon.connect();
    for (offset, data) in small.iter().chain(&large[1..]) {
        client.expect(*offset, data);
    }
    let first = [&large[0].1[..512], &inner, &large[0].1[512 + inner.len()..]].concat();
    client.expect(20 << 20, &first);
    tool::tidegate(&["drain", "--dir", folder.path().to_str().unwrap()]).succeeds();
    daemon.stop();
    let mut there = vec![0; first.len()];
    origin.read_exact_at(&mut there, 20 << 20).unwrap();
    assert!(there == first && small.iter().all(is_home), "everything is home");
}

//! Warm after a clean stop and after a crash: the counters show that nothing had to be fetched again.

use crate::common::chance::Chance;
use crate::common::daemon::Daemon;
use crate::common::volume;

const MIB: u64 = 1 << 20;

/// 16 MiB written through the cache, 16 MiB read into it from an origin that had them, all flushed; ended by `end`; and read again.
fn check(end: impl FnOnce(Daemon)) {
    // Without memory: what is answered from there says nothing of the cache.
    let folder = volume("128MiB", "128MiB", "[memory]\nram = \"0B\"\n");
    let contents = Chance::new(3).bytes((128 * MIB) as usize);
    std::fs::write(folder.path().join("origin.img"), &contents).unwrap();
    let mut expected = contents;

    let daemon = Daemon::up(folder.path());
    let mut client = daemon.connect();
    let written = Chance::new(4).bytes((16 * MIB) as usize);
    for piece in 0..64 {
        client.write(piece * MIB / 4, &written[(piece * MIB / 4) as usize..][..(MIB / 4) as usize]).unwrap();
    }
    expected[..written.len()].copy_from_slice(&written);
    // A fill comes behind its reply, and is dropped when the SSD is busy: read until nothing is missed any more.
    let mut misses = 0;
    loop {
        for piece in 0..64 {
            let offset = 64 * MIB + piece * MIB / 4;
            client.expect(offset, &expected[offset as usize..][..(MIB / 4) as usize]);
        }
        let before = std::mem::replace(&mut misses, daemon.status()["misses"]["blocks"].as_u64().unwrap());
        if misses == before {
            break;
        }
    }
    assert!(misses >= 16 * MIB / 4096, "the origin had them: {misses}");
    client.flush().unwrap();
    drop(client);
    end(daemon);

    let daemon = Daemon::up(folder.path());
    let recovered = daemon.status();
    let slots = |key: &str| recovered["recovered"][key].as_u64().unwrap();
    assert_eq!(slots("clean_slots") + slots("dirty_slots"), 32 * MIB / 4096, "{recovered}");
    let mut client = daemon.connect();
    for place in [0, 64 * MIB] {
        for piece in 0..16 {
            let offset = place + piece * MIB;
            client.expect(offset, &expected[offset as usize..][..MIB as usize]);
        }
    }
    let after = daemon.status();
    assert_eq!(after["misses"]["blocks"], 0, "{after}");
    assert_eq!(after["hits"]["blocks"], 32 * MIB / 4096, "{after}");
    drop(client);
    daemon.stop();
}

#[test]
fn a_clean_stop_leaves_the_cache_warm() {
    check(Daemon::stop);
}

#[test]
fn a_crash_leaves_the_cache_warm() {
    check(Daemon::kill);
}

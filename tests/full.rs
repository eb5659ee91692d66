//! The worst moment, on real files: the cache is full of dirty blocks, and every operation of the origin fails.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::chance::Chance;
use crate::common::daemon::Daemon;
use crate::common::mount::Fuse;
use crate::common::nbd::{self, Client};
use crate::common::tool::tidegate;
use crate::common::{folder, text};

const MIB: u64 = 1 << 20;
const STALL_TIMEOUT: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(60);

/// nbdkit's memory as a file, all of whose operations fail with `error` while `dead` exists.
fn origin(dead: &Path, error: &str) -> Fuse {
    let when = format!("error-file={}", text(dead));
    let nbdkit = ["[", "nbdkit", "--exit-with-parent", "--log=null", "--filter=error", "memory", "size=256M"];
    Fuse::new(&[&nbdkit[..], &[&format!("error={error}"), "error-rate=100%", &when, "]"]].concat())
}

/// A cache of 40 MiB in front of it.
fn serve(dir: &Path, origin: &Path) -> Daemon {
    tidegate(&["create", "--cache-size", "40MiB", "--dir", text(dir), "--origin", text(origin)]).succeeds();
    let knobs = format!("origin = {:?}\n[limits]\nstall_timeout = \"{}s\"\n", text(origin), STALL_TIMEOUT.as_secs());
    std::fs::write(dir.join("config.toml"), knobs).unwrap();
    Daemon::up(dir)
}

fn contents(mib: u64) -> Vec<u8> {
    Chance::new(mib + 1).bytes(MIB as usize)
}

/// Writes MiB after MiB from `first` on, and flushes each, until a write fails: how many were taken, and how long the last one waited.
fn fill(client: &mut Client, first: u64) -> (u64, Duration) {
    for mib in first..256 {
        let began = Instant::now();
        client.send(nbd::Command::Write, mib * MIB, MIB as u32, &contents(mib)).unwrap();
        let reply = client.receive().unwrap();
        if reply.error != 0 {
            assert_eq!(reply.error, libc::EIO as u32, "what a disk says that does not work");
            return (mib - first, began.elapsed());
        }
        client.flush().unwrap();
    }
    panic!("256 MiB in a cache of 40");
}

#[test]
fn full_of_dirty_before_a_dead_origin_reads_go_on_writes_fail_in_time_and_everything_goes_home_when_it_is_back() {
    let folder = folder();
    let dir = folder.path();
    let dead = dir.join("dead");
    let disk = origin(&dead, "EIO");
    let origin = disk.file();
    let daemon = serve(dir, &origin);
    let mut client = daemon.connect();
    client.write(255 * MIB, &contents(255)).unwrap();
    client.flush().unwrap();
    tidegate(&["drain", "--dir", text(dir)]).succeeds();

    std::fs::write(&dead, "").unwrap();
    let (taken, waited) = fill(&mut client, 0);
    let status = daemon.status();
    let [live, dirty, free] = ["/live_blocks", "/dirty_blocks", "/sets/free"].map(|path| status.pointer(path).unwrap().as_u64().unwrap());
    assert!(live == dirty && free <= 2 && dirty == taken * 256, "100 % dirty after {taken} MiB: {status}");
    assert!(waited >= STALL_TIMEOUT && waited < PATIENCE, "it failed after {waited:?}");
    (0..taken).for_each(|mib| client.expect(mib * MIB, &contents(mib)));
    assert!(client.read(200 * MIB, 4096).unwrap_err().to_string().contains("error 5"), "only the origin has it");
    client.flush().unwrap();
    assert_eq!(daemon.status()["dirty_blocks"], dirty, "nothing was dropped");
    drop(client);
    // Not even by a kill.
    daemon.kill();

    std::fs::remove_file(&dead).unwrap();
    let daemon = Daemon::up(dir);
    let mut client = daemon.connect();
    (0..taken).for_each(|mib| client.expect(mib * MIB, &contents(mib)));
    client.write(100 * MIB, &contents(100)).unwrap();
    drop(client);
    tidegate(&["drain", "--dir", text(dir)]).succeeds();
    let status = daemon.status();
    assert_eq!(status["dirty_blocks"], 0, "{status}");
    daemon.stop();
    let home = std::fs::read(&origin).unwrap();
    for mib in (0..taken).chain([100, 255]) {
        assert!(home[(mib * MIB) as usize..].starts_with(&contents(mib)), "MiB {mib} is home");
    }
}

/// Nothing is lost, and nothing goes home: whoever looks is told why.
#[test]
fn an_origin_that_is_full_is_an_alarm_until_it_has_room() {
    let folder = folder();
    let dir = folder.path();
    let full = dir.join("full");
    let disk = origin(&full, "ENOSPC");
    let daemon = serve(dir, &disk.file());
    let mut client = daemon.connect();
    for (number, command) in [&["drain"][..], &["mode", "write-through"]].into_iter().enumerate() {
        client.write(0, &contents(number as u64)).unwrap();
        client.flush().unwrap();
        assert!(daemon.status()["alarm"].is_null());
        std::fs::write(&full, "").unwrap();
        let mut waits = Command::new("timeout");
        waits.args(["120", env!("CARGO_BIN_EXE_tidegate")]).args(command).args(["--dir", text(dir)]);
        let mut waits = waits.stderr(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(waits.stderr.take().unwrap()).read_line(&mut said).unwrap();
        assert!(
            said.contains("note: origin ") && said.contains("is full: 256 blocks that are newer stay in the cache"),
            "{command:?}: {said}"
        );
        assert!(daemon.status()["alarm"].as_str().is_some_and(|alarm| said.contains(alarm)), "{}", daemon.status());
        std::fs::remove_file(&full).unwrap();
        assert!(waits.wait().unwrap().success());
        assert!(daemon.status()["alarm"].is_null());
    }
    daemon.stop();
}

//! An origin that takes ten seconds for every read and write, and a FLUSH that does not notice: it never waits for the origin.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::common::chance::Chance;
use crate::common::daemon::Daemon;
use crate::common::mount::Fuse;
use crate::common::nbd::Command;
use crate::common::tool::{self, tidegate};
use crate::common::{CARRIERS, folder, text};

/// What one operation of the origin takes.
const OPERATION: Duration = Duration::from_secs(10);
/// A FLUSH that waits for an operation of the origin takes longer, one that waits for a busy machine's SSD does not.
const FLUSH_MAX: Duration = Duration::from_secs(5);
/// So many FLUSHes must fall between the start and the end of operations of the origin: else nothing was tried.
const FLUSHES_MIN: u64 = 10;
/// Longer than a lock is waited for whose holder is seen to run.
const UNSEEN: Duration = Duration::from_secs(5);
/// How long the gate may take to begin.
const PATIENCE: Duration = Duration::from_secs(60);

const BLOCK: u64 = 4096;
/// Blocks that may be written; the client reads another one.
const BLOCKS: u64 = 1024;

/// nbdkit's memory behind its delays, as a file. nbdfuse keeps nothing of it in the page cache.
pub struct SlowOrigin {
    fuse: Fuse,
    logs: TempDir,
}

impl SlowOrigin {
    pub fn new() -> SlowOrigin {
        let logs = folder();
        let log = format!("logfile={}", text(&logs.path().join("log")));
        let delay = |what: &str| format!("delay-{what}={}", OPERATION.as_secs());
        let [read, write, zero, trim] = ["read", "write", "zero", "trim"].map(delay);
        let nbdkit = ["nbdkit", "--exit-with-parent", "--log=null", "--filter=log", "--filter=delay", "memory", "size=64M", &log];
        let source = [&["["], &nbdkit[..], &[&read, &write, &zero, &trim, "]"]].concat();
        SlowOrigin { fuse: Fuse::new(&source), logs }
    }

    pub fn file(&self) -> PathBuf {
        self.fuse.file()
    }

    /// Reads and writes since the start, in the order of their starts.
    pub fn operations(&self) -> Vec<Operation> {
        let log = std::fs::read_to_string(self.logs.path().join("log")).expect("nbdkit's log");
        let mut operations = Vec::new();
        // "2026-01-31 23:59:59.123456 connection=1 Write id=4 offset=0x0 count=0x1000 ..." when it starts,
        // "2026-01-31 23:59:59.123456 connection=1 ...Write id=4 return=0" when it ends.
        for line in log.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            let mut words = line.split_whitespace().skip(1);
            let (Some(time), Some(_), Some(what), Some(id)) = (words.next(), words.next(), words.next(), words.next()) else { continue };
            match what {
                "Read" | "Write" => {
                    operations.push(Operation { writes: what == "Write", id: id.to_owned(), started: time_of_day(time), took: None });
                }
                "...Read" | "...Write" => {
                    assert!(line.contains("return=0"), "the origin failed: {line}");
                    let ended = operations.iter_mut().find(|operation| operation.id == id && operation.took.is_none());
                    let ended = ended.expect("what ends was started");
                    // The log has no time zone, and its day ends at midnight.
                    let seconds = (time_of_day(time) - ended.started).rem_euclid(86_400.0);
                    ended.took = Some(Duration::from_secs_f64(seconds));
                }
                _ => {}
            }
        }
        operations
    }

    /// Places in [`SlowOrigin::operations`] of the writes under way.
    fn writing(&self) -> Vec<usize> {
        let under_way = |operation: &Operation| operation.writes && operation.took.is_none();
        self.operations().iter().enumerate().filter(|(_, operation)| under_way(operation)).map(|(place, _)| place).collect()
    }
}

impl Drop for SlowOrigin {
    fn drop(&mut self) {
        // Else whoever has the file open ends only with its last operation.
        self.fuse.kill();
    }
}

/// One operation of the origin, from nbdkit's log.
pub struct Operation {
    pub writes: bool,
    /// `id=N`, in use once at a time.
    id: String,
    /// Seconds of the day.
    started: f64,
    /// Nothing while it is under way.
    pub took: Option<Duration>,
}

/// `HH:MM:SS.ffffff` in seconds.
fn time_of_day(time: &str) -> f64 {
    time.split(':').fold(0.0, |sum, part| sum * 60.0 + part.parse::<f64>().expect("a time"))
}

#[test]
fn a_flush_never_waits_for_the_origin() {
    check("auto");
}

#[test]
fn a_flush_never_waits_for_the_origin_where_threads_serve_the_disks() {
    check("threads");
}

fn check(carrier: &str) {
    let folder = folder();
    let dir = folder.path();
    let origin = SlowOrigin::new();
    let (file, cache) = (origin.file(), dir.join("cache.img"));
    let devices = ["--dir", text(dir), "--origin", text(&file), "--cache", text(&cache)];
    tidegate(&[&["create", "--cache-size", "256MiB"], &devices[..]].concat()).succeeds();
    // Whatever is dirty for a moment goes home.
    std::fs::write(dir.join("config.toml"), "[gate]\nmax_dirty_age = \"100ms\"\n").unwrap();
    let daemon = Daemon::start(dir, &[&["up", "--io", carrier], &devices[..]].concat());
    let destages = || daemon.status()["gate"] == "destage";

    let mut client = daemon.connect();
    // What was written: the other blocks only the origin has.
    let mut contents: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    // Every other block: each goes home by an operation of its own, as many at once as a disk's queue takes.
    for block in (0..BLOCKS).step_by(2) {
        let data = Chance::new(block).bytes(BLOCK as usize);
        client.write(block * BLOCK, &data).unwrap();
        contents.insert(block, data);
    }
    client.flush().unwrap();
    let began = Instant::now();
    while origin.writing().is_empty() {
        assert!(began.elapsed() < PATIENCE, "the gate does not destage: {}", daemon.status());
    }
    // A read that only the origin can answer is under way as well.
    let mut reader = daemon.connect();
    reader.send(Command::Read, BLOCKS * BLOCK, BLOCK as u32, &[]).unwrap();

    // Blocks that are being destaged and others, again and again, until the first operation of the origin has ended.
    let (mut flushes, mut slowest) = (0, Duration::ZERO);
    for round in 0.. {
        let (block, data) = (round * 7 % BLOCKS, Chance::new(BLOCKS + round).bytes(BLOCK as usize));
        client.write(block * BLOCK, &data).unwrap();
        contents.insert(block, data);
        let (destages, before) = (destages(), origin.writing());
        let started = Instant::now();
        client.flush().unwrap();
        let took = started.elapsed();
        slowest = slowest.max(took);
        assert!(took < FLUSH_MAX, "FLUSH {round} took {took:?}");
        let after = origin.writing();
        flushes += u64::from(destages && before.iter().any(|write| after.contains(write)));
        if origin.operations().iter().any(|operation| operation.writes && operation.took.is_some()) {
            break;
        }
    }
    assert!(flushes >= FLUSHES_MIN, "only {flushes} FLUSHes while the origin was busy");

    let ended: Vec<Duration> = origin.operations().iter().filter_map(|operation| operation.took).collect();
    assert!(ended.iter().all(|took| *took >= OPERATION), "the origin is not slow: {ended:?}");
    for (block, data) in &contents {
        client.expect(block * BLOCK, data);
    }
    println!("{flushes} FLUSHes while the origin wrote, {slowest:?} at most; its operations: {ended:?}");

    drop(origin);
    daemon.kill();
}

#[test]
fn the_locks_outlive_a_killed_daemon_until_its_last_operation_has_ended() {
    for carrier in CARRIERS {
        let folder = folder();
        let dir = folder.path();
        let origin = SlowOrigin::new();
        let (file, cache) = (origin.file(), dir.join("cache.img"));
        let devices = ["--dir", text(dir), "--origin", text(&file), "--cache", text(&cache)];
        tidegate(&[&["create", "--cache-size", "64MiB"], &devices[..]].concat()).succeeds();
        let daemon = Daemon::start(dir, &[&["up", "--io", carrier], &devices[..]].concat());
        let mut client = daemon.connect();
        client.send(Command::Read, 0, BLOCK as u32, &[]).unwrap();
        let began = Instant::now();
        let reading = || origin.operations().iter().any(|operation| operation.took.is_none());
        while !reading() {
            assert!(began.elapsed() < PATIENCE, "{carrier}: the read does not reach the origin");
        }
        tool::run("kill", &["-KILL", &daemon.pid().to_string()]).succeeds();
        let check = || tidegate(&["check", "--cache", text(&cache)]);
        let refused = check();
        assert!(reading(), "{carrier}: the operation ended too soon for this to prove anything");
        assert_eq!(refused.code, Some(75), "{carrier}: {refused}");
        daemon.kill();
        while reading() {
            assert!(began.elapsed() < PATIENCE, "{carrier}: the operation does not end");
        }
        check().succeeds();
    }
}

/// In a container `/proc/locks` shows none of what ended processes still hold.
#[test]
fn a_lock_that_nobody_is_seen_to_hold_is_waited_for() {
    let folder = folder();
    let dir = folder.path();
    tidegate(&["create", "--dir", text(dir), "--origin-size", "64MiB", "--cache-size", "64MiB"]).succeeds();
    let cache = std::fs::File::open(dir.join("cache.img")).expect("the cache");
    cache.lock().expect("nobody else has it");
    let began = Instant::now();
    let release = std::thread::spawn(move || {
        std::thread::sleep(UNSEEN);
        drop(cache);
    });
    tool::run("unshare", &["--pid", "--fork", "--mount-proc", env!("CARGO_BIN_EXE_tidegate"), "check", "--dir", text(dir)]).succeeds();
    assert!(began.elapsed() >= UNSEEN, "the lock was not heeded");
    release.join().unwrap();
}

//! The row "Resources": too few descriptors, too little memory or space, read-only places, signals at any moment.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{Nobody, UP, assert_refused, everything};
use crate::common::chance::Chance;
use crate::common::daemon::Daemon;
use crate::common::{CARRIERS, folder, text, tool, volume};

/// A small file system in memory, taken down when the test ends.
struct Small {
    folder: tempfile::TempDir,
}

impl Small {
    fn new(size: &str) -> Small {
        let small = Small { folder: folder() };
        tool::run("mount", &["-t", "tmpfs", "-o", &format!("size={size}"), "small", text(&small.path())]).succeeds();
        small
    }

    fn path(&self) -> PathBuf {
        self.folder.path().to_owned()
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // One that was never mounted: there is nothing to take down.
        let _ = Command::new("umount").arg("--lazy").arg(self.folder.path()).status();
    }
}

/// Seconds of CPU that the daemon has used.
fn busy_seconds(daemon: &Daemon) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", daemon.pid())).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').expect("the name in brackets").1.split_whitespace().collect();
    // utime and stime, in ticks of 10 ms.
    fields[11..13].iter().map(|ticks| ticks.parse::<f64>().unwrap() / 100.0).sum()
}

#[test]
fn with_64_descriptors_who_is_served_goes_on_the_rest_gives_way_and_nothing_spins() {
    for carrier in CARRIERS {
        let folder = volume("48MiB", "64MiB", "");
        let dir = folder.path();
        let program = env!("CARGO_BIN_EXE_tidegate");
        let daemon = Daemon::start_by("prlimit", dir, &["--nofile=64", program, "up", "--dir", text(dir), "--io", carrier]);
        let mut good = daemon.connect();
        good.expect(0, &[0; 4096]);
        let mut crowd: Vec<UnixStream> = (0..100).map(|_| UnixStream::connect(daemon.socket()).expect("the kernel keeps them")).collect();
        // Served all the while, and asleep in between: two seconds are the time that is measured, nothing waits for them.
        let (before, began) = (busy_seconds(&daemon), Instant::now());
        let (quiet, _silent) = UnixStream::pair().unwrap();
        quiet.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        let _ = (&quiet).read(&mut [0; 1]);
        good.write(0, &[1; 4096]).unwrap();
        good.flush().unwrap();
        good.expect(0, &[1; 4096]);
        let (used, time) = (busy_seconds(&daemon) - before, began.elapsed().as_secs_f64());
        assert!(used < time / 4.0, "{carrier}: {used} s of CPU in {time} s");
        // The crowd goes; who comes next is greeted.
        crowd.clear();
        let mut last = UnixStream::connect(daemon.socket()).expect("it listens");
        last.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut greeting = [0; 18];
        last.read_exact(&mut greeting).expect("its turn has come");
        assert_eq!(&greeting[..8], b"NBDMAGIC");
        drop((last, good));
        daemon.stop();
    }
}

#[test]
fn with_too_little_memory_nothing_starts_and_nothing_is_lost() {
    let folder = volume("48MiB", "64MiB", "");
    let dir = folder.path();
    let data = Chance::new(1).bytes(4 << 20);
    let daemon = Daemon::up(dir);
    let mut client = daemon.connect();
    client.write(0, &data).unwrap();
    client.flush().unwrap();
    daemon.kill();
    // With less the system cannot even load the program (13 MB as it is built for tests).
    for mebibytes in [20u64, 24, 32, 48, 64, 96, 128] {
        let limit = format!("--as={}", mebibytes << 20);
        // With enough it would serve for ever: the standard input is no client, which ends it.
        let ended = tool::run("prlimit", &[&limit, env!("CARGO_BIN_EXE_tidegate"), "up", "--dir", text(dir), "--stdio"]);
        assert_ne!(ended.code, Some(0), "{mebibytes} MiB: {ended}");
        assert!(ended.stderr.lines().count() <= 3 && !ended.stderr.contains("panicked"), "{mebibytes} MiB: {ended}");
    }
    let daemon = Daemon::up(dir);
    daemon.connect().expect(0, &data);
    daemon.stop();
}

#[test]
fn memory_that_the_system_does_not_give_is_told_and_the_volume_served_without() {
    let folder = volume("48MiB", "64MiB", "[memory]\nram = \"1GiB\"\n");
    let dir = folder.path();
    let program = env!("CARGO_BIN_EXE_tidegate");
    let limit = format!("--as={}", 900u64 << 20);
    let daemon = Daemon::start_by("prlimit", dir, &[&limit, program, "up", "--dir", text(dir)]);
    daemon.connect().write(0, &[1; 4096]).unwrap();
    daemon.connect().expect(0, &[1; 4096]);
    let said = daemon.said();
    let lines: Vec<&str> = said.lines().filter(|line| line.contains("1024 MiB of memory")).collect();
    assert!(lines.len() == 1 && lines[0].contains("`ram`"), "{said}");
    daemon.stop();
}

#[test]
fn a_full_file_system_refuses_a_new_volume_and_leaves_nothing() {
    let small = Small::new("32m");
    let before = everything(&small.path());
    let refused = tool::tidegate(&["create", "--dir", text(&small.path().join("v")), "--origin-size", "48MiB", "--cache-size", "64MiB"]);
    assert_refused("no space", &refused, 73, &["cache.img", "No space left"]);
    assert_eq!(everything(&small.path()), before, "something was left");
}

/// A cache that was sparse, on a file system that is full: an SSD that takes no writes any more. The volume goes on without it, what it
/// holds goes home, and it is not taken again.
#[test]
fn a_cache_file_without_space_is_gone_on_without_and_loses_nothing() {
    for carrier in CARRIERS {
        // All of it is for the SSD, however quick the origin is.
        let folder = volume("48MiB", "64MiB", "[log]\nsplit = false\ncommit_home = false\n");
        let dir = folder.path();
        let small = Small::new("40m");
        tool::shell(&format!("cp --sparse=always '{}/cache.img' '{}'", text(dir), text(&small.path()))).succeeds();
        let cache = small.path().join("cache.img");
        let arguments = ["up", "--dir", text(dir), "--cache", text(&cache), "--io", carrier];
        let daemon = Daemon::start(dir, &arguments);
        let mut client = daemon.connect();
        let written: Vec<(u64, Vec<u8>)> = (0..44).map(|place| (place << 20, Chance::new(place).bytes(1 << 20))).collect();
        for (at, data) in &written {
            client.write(*at, data).and_then(|()| client.flush()).unwrap_or_else(|error| panic!("{carrier}: {at}: {error}"));
        }
        assert_eq!(daemon.status()["cache_health"], "degraded", "{carrier}");
        written.iter().for_each(|(at, data)| client.expect(*at, data));
        drop(client);
        tool::tidegate(&["drain", "--dir", text(dir)]).succeeds();
        daemon.stop();
        let origin = fs::read(dir.join("origin.img")).unwrap();
        assert!(written.iter().all(|(at, data)| origin[*at as usize..].starts_with(data)), "{carrier}: the origin alone has it all");
        // With space again: it has missed writes.
        tool::run("mount", &["-o", "remount,size=200m", text(&small.path())]).succeeds();
        let refused = tool::tidegate(&arguments);
        assert_eq!((refused.code, refused.stderr.lines().count()), (Some(65), 1), "{refused}");
    }
}

/// As with `ulimit -f`: the origin is larger than a file may be, and the cache is not.
#[test]
fn a_file_size_limit_is_a_lack_of_space_and_ends_no_daemon() {
    const MIB: u64 = 1 << 20;
    let program = env!("CARGO_BIN_EXE_tidegate");
    let limit = format!("--fsize={}", 80 * MIB);
    for carrier in CARRIERS {
        // All of it is for the SSD, however quick the origin is.
        let folder = volume("128MiB", "64MiB", "[log]\nsplit = false\ncommit_home = false\n");
        let dir = folder.path();
        let start = || Daemon::start_by("prlimit", dir, &[&limit, program, "up", "--dir", text(dir), "--io", carrier]);
        let places = [(8 * MIB, Chance::new(1).bytes(1 << 20)), (100 * MIB, Chance::new(2).bytes(1 << 20))];
        let daemon = start();
        let mut client = daemon.connect();
        for (at, data) in &places {
            client.write(*at, data).and_then(|()| client.flush()).unwrap_or_else(|error| panic!("{carrier}: {at}: {error}"));
        }
        drop(client);
        let mut drain =
            Command::new(program).args(["drain", "--dir", text(dir)]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let began = Instant::now();
        while daemon.status()["destage"]["failures"] == 0 {
            assert!(began.elapsed() < Duration::from_secs(60), "{carrier}: nothing was tried: {}", daemon.said());
        }
        drain.kill().and_then(|()| drain.wait()).unwrap();
        let status = daemon.status();
        assert!(status["phase"] == "serving" && status["dirty_blocks"].as_u64().unwrap() > 0, "{carrier}: {status}");
        assert!(status["alarm"].as_str().is_some_and(|alarm| alarm.contains("origin")), "{carrier}: {status}");
        places.iter().for_each(|(at, data)| daemon.connect().expect(*at, data));
        daemon.stop();
        let daemon = start();
        places.iter().for_each(|(at, data)| daemon.connect().expect(*at, data));
        daemon.stop();
        let daemon = Daemon::up_by(dir, carrier);
        tool::tidegate(&["drain", "--dir", text(dir)]).succeeds();
        daemon.stop();
        let origin = fs::read(dir.join("origin.img")).unwrap();
        assert!(places.iter().all(|(at, data)| origin[*at as usize..].starts_with(data)), "{carrier}: without the limit it goes home");
    }
    let empty = folder();
    let new = empty.path().join("v");
    for sizes in [["128MiB", "64MiB"], ["64MiB", "128MiB"]] {
        let create = [&limit, program, "create", "--dir", text(&new), "--origin-size", sizes[0], "--cache-size", sizes[1]];
        let refused = tool::run("prlimit", &create);
        assert_refused("file size limit", &refused, 73, &[".img", "File too large"]);
        assert_eq!(everything(empty.path()), [], "something was left");
    }
}

#[test]
fn a_folder_that_cannot_be_written_is_refused_before_anything_is_served() {
    let small = Small::new("200m");
    let dir = small.path();
    tool::tidegate(&["create", "--dir", text(&dir), "--origin-size", "48MiB", "--cache-size", "64MiB"]).succeeds();
    fs::write(dir.join("config.toml"), "").unwrap();
    let elsewhere = volume("48MiB", "64MiB", "");
    tool::run("mount", &["-o", "remount,ro", text(&dir)]).succeeds();
    let before = everything(&dir);
    let refused = tool::tidegate_in(&dir, UP);
    assert!(matches!(refused.code, Some(66 | 73)), "{refused}");
    assert!(refused.stderr.lines().count() == 1 && refused.stderr.contains("ead-only file system"), "{refused}");
    assert_eq!(everything(&dir), before);
    // Both disks elsewhere: what cannot be written is what the host must know.
    let (origin, cache) = (elsewhere.path().join("origin.img"), elsewhere.path().join("cache.img"));
    let (nbd, control) = (elsewhere.path().join("nbd.sock"), elsewhere.path().join("control.sock"));
    let config = elsewhere.path().join("config.toml");
    let paths = [("origin", &origin), ("cache", &cache), ("nbd", &nbd), ("control", &control), ("state", &dir.join("tidegate.state"))];
    fs::write(&config, paths.map(|(key, path)| format!("{key} = \"{}\"\n", text(path))).concat()).unwrap();
    let refused = tool::tidegate(&["serve", "--config", text(&config)]);
    assert_refused("state", &refused, 73, &["tidegate.state", "ead-only file system"]);
    assert_refused("pid file", &pid_file(elsewhere.path(), &dir.join("pid")), 73, &["pid", "ead-only file system"]);
}

/// What the host knows of a cache is given up with it: where that cannot be written down, the cache stays, and if that turns out too late, it is said.
#[test]
fn a_cache_is_formatted_only_where_the_host_can_know_it() {
    let (small, folder) = (Small::new("1m"), volume("48MiB", "64MiB", ""));
    let dir = folder.path();
    let state = small.path().join("tidegate.state");
    fs::write(dir.join("config.toml"), format!("state = \"{}\"\n", text(&state))).unwrap();
    let daemon = Daemon::up(dir);
    let mut client = daemon.connect();
    client.write(0, &[7; 1 << 20]).unwrap();
    client.flush().unwrap();
    drop(client);
    daemon.stop();
    let [dirty, known] = [dir.join("cache.img"), state.clone()].map(|path| fs::read(path).unwrap());
    let remount = |how: &str| drop(tool::run("mount", &["-o", how, text(&small.path())]).succeeds());
    let (create, attach) = (&["create", "--dir", ".", "--force"][..], &["attach", "--dir", "."][..]);
    for arguments in [create, attach] {
        if arguments == attach {
            tool::tidegate_in(dir, &["detach", "--dir", "."]).succeeds();
        }
        remount("remount,ro");
        let before = everything(dir);
        let refused = tool::tidegate_in(dir, arguments);
        assert_refused("read-only", &refused, 73, &["tidegate.state", "ead-only file system", "so nothing was"]);
        assert_eq!(everything(dir), before);
        remount("remount,rw");
    }
    // Full: a file can be made there, and nothing written into it.
    fs::write(dir.join("cache.img"), dirty).unwrap();
    fs::write(&state, known).unwrap();
    let filled: std::io::Result<()> = fs::File::create(small.path().join("filler")).and_then(|mut file| {
        loop {
            std::io::Write::write_all(&mut file, &[1; 4096])?;
        }
    });
    assert_eq!(filled.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    let late = tool::tidegate_in(dir, create);
    assert_eq!((late.code, late.stderr.lines().count(), late.stdout.as_str()), (Some(73), 2, ""), "{late}");
    assert!(late.stderr.contains("held 256 blocks newer than the origin, which are given up"), "{late}");
    assert!(late.stderr.contains("cache.img is formatted by now, but ") && late.stderr.contains("No space left"), "{late}");
}

fn pid_file(dir: &Path, pid: &Path) -> tool::Ended {
    fs::write(dir.join("config.toml"), "").unwrap();
    tool::tidegate(&["up", "--dir", text(dir), "--pid-file", text(pid)])
}

/// Whenever a signal comes, in the start, in recovery or in service, it ends in order or at once, and the next start has everything.
#[test]
fn a_signal_at_any_moment_of_a_start_loses_nothing() {
    let folder = volume("48MiB", "64MiB", "");
    let dir = folder.path();
    let data = Chance::new(9).bytes(8 << 20);
    let daemon = Daemon::up(dir);
    let mut client = daemon.connect();
    client.write(0, &data).unwrap();
    client.flush().unwrap();
    daemon.kill();
    for (round, signal) in ["-TERM", "-INT", "-HUP"].into_iter().cycle().take(24).enumerate() {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["up", "--dir", text(dir), "--io", CARRIERS[round % 2]])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the built program starts");
        // Later and later: the moments are what is tried, nothing is waited for.
        std::thread::sleep(Duration::from_micros(500 * round as u64 * round as u64 / 4));
        tool::run("kill", &[signal, &child.id().to_string()]).succeeds();
        let status = child.wait().unwrap();
        let mut said = String::new();
        child.stderr.take().expect("piped").read_to_string(&mut said).unwrap();
        // Before it takes signals they end it as they end any program: it has opened nothing then.
        assert!(status.success() || matches!(status.signal(), Some(1 | 2 | 15)), "round {round}, {signal}: {status}: {said}");
        if round % 6 == 5 {
            tool::tidegate(&["check", "--cache", text(&dir.join("cache.img"))]).succeeds();
        }
    }
    let daemon = Daemon::up(dir);
    daemon.connect().expect(0, &data);
    daemon.stop();
}

/// Nothing in the daemon or the engine is decided by the time of day, so a clock that is set back changes nothing. (TLS asks whether a
/// certificate is valid now; the note of what is dirty tells people when it was made.)
#[test]
fn a_clock_set_back_by_a_year_changes_nothing() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let grep = ["-rnE", "SystemTime|UNIX_EPOCH|CLOCK_REALTIME", "--include=*.rs", "--exclude=dirty.rs"];
    let sources = ["daemon/src", "engine/src", "src"].map(|folder| root.join(folder));
    let found = tool::run("grep", &[&grep[..], &sources.each_ref().map(|folder| text(folder))].concat());
    assert_eq!((found.code, found.stdout.as_str()), (Some(1), ""), "{found}");

    // The times of the files, too, may lie a year ahead.
    let folder = volume("48MiB", "64MiB", "");
    let dir = folder.path();
    let daemon = Daemon::up(dir);
    daemon.connect().write(0, &[5; 4096]).unwrap();
    daemon.stop();
    tool::shell(&format!("cd '{}'; touch -d '+1 year' cache.img origin.img config.toml tidegate.state", text(dir))).succeeds();
    let daemon = Daemon::up(dir);
    daemon.connect().expect(0, &[5; 4096]);
    daemon.stop();
    let mut first = [0; 4];
    fs::File::open(dir.join("cache.img")).unwrap().read_exact_at(&mut first, 0).unwrap();
    assert_eq!(&first, b"TIDS");
}

/// What may not be read may be right: nobody is told to delete it.
#[test]
fn a_state_or_a_trace_that_may_not_be_read_is_refused_with_code_77() {
    let nobody = Nobody::new();
    nobody.run(&["create", "--dir", "v", "--origin-size", "48MiB", "--cache-size", "64MiB"]).succeeds();
    for name in ["v/tidegate.state", "trace.lis"] {
        let path = nobody.path().join(name);
        fs::write(&path, "{}").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    }
    let before = everything(&nobody.path().join("v"));
    for arguments in [&["up", "--dir", "v"][..], &["sim", "curve", "trace.lis"], &["sim", "policies", "trace.lis", "--sizes", "64MiB"]] {
        let refused = nobody.run(arguments);
        assert_refused(&arguments.join(" "), &refused, 77, &["Permission denied", "run as a user who may read it"]);
        assert!(!refused.stderr.contains("delete"), "{refused}");
    }
    assert_eq!(everything(&nobody.path().join("v")), before);
    // One that can be read and is none.
    fs::set_permissions(nobody.path().join("trace.lis"), fs::Permissions::from_mode(0o644)).unwrap();
    assert_refused("no trace", &nobody.run(&["sim", "curve", "trace.lis"]), 65, &["trace.lis"]);
}

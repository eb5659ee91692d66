//! The row "Origin": what is in use, what is another one, and what changes, fails or goes away in service.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::{UP, assert_refused, check, everything, make};
use crate::common::chance::Chance;
use crate::common::daemon::Daemon;
use crate::common::mount::Fuse;
use crate::common::{CARRIERS, folder, text, tool, volume};

#[test]
fn an_origin_that_is_another_one_is_refused() {
    check("missing", make("rm origin.img"), UP, 66, &["origin.img"]);
    check("shrunk", make("truncate -s 40M origin.img"), UP, 78, &["origin.img"]);
    check("no sector", make("truncate -s 511 origin.img"), UP, 78, &["origin.img has 511 bytes, less than a sector of 512"]);
    check("a folder", make("rm origin.img; mkdir origin.img"), UP, 78, &["origin.img"]);
    check("under a file", make("true"), &["up", "--dir", ".", "--origin", "config.toml/disk"], 66, &["config.toml/disk"]);
    check("not there", make("true"), &["up", "--dir", ".", "--origin", "nowhere.img"], 66, &["nowhere.img"]);
    check("the cache itself", make("true"), &["up", "--dir", ".", "--origin", "cache.img"], 78, &["cache.img"]);
    check("the cache by another name", make("ln cache.img too.img"), &["up", "--dir", ".", "--origin", "too.img"], 78, &["too.img"]);
}

#[test]
fn what_somebody_else_uses_is_refused() {
    let folder = volume("48MiB", "64MiB", "");
    let dir = folder.path();
    let daemon = Daemon::up(dir);
    daemon.connect().write(0, b"precious".repeat(64).as_slice()).unwrap();
    let second = tool::tidegate_in(dir, UP);
    assert_refused("a second daemon", &second, 75, &["in use", &daemon.pid().to_string()]);
    let format = tool::tidegate_in(dir, &["create", "--dir", ".", "--force"]);
    assert_refused("a format", &format, 75, &["in use"]);
    let check = tool::tidegate_in(dir, &["check", "--cache", "cache.img"]);
    assert_refused("a check", &check, 75, &["in use"]);
    assert_eq!(&daemon.connect().read(0, 512).unwrap()[..8], b"precious", "the first one serves on");
    daemon.stop();

    let attached = crate::common::mount::Disk::read_only(&dir.join("origin.img"));
    assert_refused("a loop device", &tool::tidegate_in(dir, UP), 75, &["origin.img", &attached.device]);
    attached.detach();
    Daemon::up(dir).stop();
}

/// The kernel, which lets nobody else claim it, does not say who has.
#[test]
fn a_block_device_that_another_daemon_serves_is_refused_with_that_one() {
    let folder = volume("48MiB", "64MiB", "");
    let dir = folder.path();
    let disk = crate::common::mount::Disk::of_file(&dir.join("origin.img"));
    let up = ["up", "--dir", text(dir), "--origin", &disk.device];
    let daemon = Daemon::start(dir, &up);
    for arguments in [&up[..], &["create", "--dir", ".", "--force", "--origin", &disk.device]] {
        let holder = format!("in use by process {} (tidegate)", daemon.pid());
        assert_refused("claimed", &tool::tidegate_in(dir, arguments), 75, &[&disk.device, &holder]);
    }
    daemon.stop();
    Daemon::start(dir, &up).stop();
    disk.detach();
}

#[test]
fn a_mounted_origin_is_refused_with_its_mount_point() {
    let folder = folder();
    let dir = folder.path();
    make("truncate -s 48M disk; mkfs.ext4 -q disk; mkdir at")(dir);
    let mut disk = crate::common::mount::Disk::read_only(&dir.join("disk"));
    let at = disk.mount("ro,noload");
    let before = everything(dir);
    for arguments in [&["up", "--dir", "new"][..], &["create", "--dir", "new"]] {
        let refused = tool::tidegate_in(dir, &[arguments, &["--origin", &disk.device]].concat());
        assert_refused("mounted", &refused, 75, &[&disk.device, "mounted at", text(&at)]);
    }
    assert_eq!(everything(dir), before);
    disk.detach();
}

#[test]
fn an_origin_that_has_grown_is_served_as_far_as_it_was_with_a_note() {
    let folder = volume("48MiB", "64MiB", "");
    let dir = folder.path();
    make("truncate -s 50M origin.img; printf beyond | dd of=origin.img bs=1M seek=48 conv=notrunc status=none")(dir);
    let daemon = Daemon::up(dir);
    assert_eq!(daemon.connect().size, 48 << 20);
    assert!(
        daemon.greeting.iter().any(|line| line.starts_with("note: ") && line.contains("larger than the volume")),
        "{:?}",
        daemon.greeting
    );
    daemon.stop();
    let mut beyond = [0; 6];
    fs::File::open(dir.join("origin.img")).unwrap().read_exact_at(&mut beyond, 48 << 20).unwrap();
    assert_eq!(&beyond, b"beyond", "the rest is not touched");
}

#[test]
fn a_larger_origin_is_another_disk_unless_the_folder_knows_its_cache() {
    let folder = volume("48MiB", "64MiB", "");
    let dir = folder.path();
    let daemon = Daemon::up(dir);
    let mut client = daemon.connect();
    client.write(1 << 20, &Chance::new(1).bytes(64 << 10)).unwrap();
    client.flush().unwrap();
    drop(client);
    daemon.stop();
    make("truncate -s 64M other.img")(dir);
    let before = everything(dir);
    for command in ["up", "detach"] {
        let mut arguments = vec![command, "--dir", "new"];
        if command == "up" {
            arguments.extend(["--origin", "other.img", "--cache", "cache.img"]);
        } else {
            // Without flags for devices: a folder that says them, and no more.
            let here = text(dir);
            make("mkdir new")(dir);
            fs::write(dir.join("new/config.toml"), format!("origin = \"{here}/other.img\"\ncache = \"{here}/cache.img\"\n")).unwrap();
        }
        let refused = tool::tidegate_in(dir, &arguments);
        assert_refused(command, &refused, 78, &["other.img has 67108864 bytes", "has served one of 50331648", "--grow"]);
        if command == "up" {
            assert_eq!(everything(dir), before, "nothing was made, nothing was written");
        }
    }
    let zeros = fs::read(dir.join("other.img")).unwrap();
    assert!(zeros.iter().all(|&byte| byte == 0), "nothing went to a disk that it was not written to");
}

#[test]
fn an_origin_that_shrinks_in_service_gets_nothing_behind_its_end_and_keeps_what_is_dirty() {
    for carrier in CARRIERS {
        let folder = volume("48MiB", "64MiB", "[gate]\nmax_dirty_age = \"100ms\"\nwait = \"1ms\"\n");
        let dir = folder.path();
        let daemon = Daemon::up_by(dir, carrier);
        fs::File::options().write(true).open(dir.join("origin.img")).unwrap().set_len(16 << 20).unwrap();
        let mut client = daemon.connect();
        let data = Chance::new(1).bytes(64 << 10);
        client.write(40 << 20, &data).unwrap();
        client.write(1 << 20, &data).unwrap();
        client.flush().unwrap();
        // It tries, and says why it does not.
        let status = loop {
            let status = daemon.status();
            if !status["alarm"].is_null() {
                break status;
            }
        };
        assert!(status["alarm"].as_str().unwrap().contains("is shorter than the 50331648 bytes it had"), "{status}");
        assert!(status["dirty_blocks"].as_u64() >= Some(16), "{carrier}: {status}");
        client.expect(40 << 20, &data);
        assert!(client.read(30 << 20, 4096).unwrap_err().to_string().contains("error 5"), "{carrier}: what is gone is no zeros");
        assert_eq!(fs::metadata(dir.join("origin.img")).unwrap().len(), 16 << 20, "{carrier}: it did not grow again");
        drop(client);
        daemon.stop();
        assert_refused("too short to start", &tool::tidegate_in(dir, UP), 78, &["origin.img", "give it back its size"]);
        // With its size it gets what waited for it.
        fs::File::options().write(true).open(dir.join("origin.img")).unwrap().set_len(48 << 20).unwrap();
        let daemon = Daemon::up_by(dir, carrier);
        tool::tidegate(&["drain", "--dir", text(dir)]).succeeds();
        daemon.stop();
        let mut home = vec![0; data.len()];
        fs::File::open(dir.join("origin.img")).unwrap().read_exact_at(&mut home, 40 << 20).unwrap();
        assert!(home == data, "{carrier}: it has gone home");
    }
}

/// An origin by FUSE whose writes fail while a file is there, and which can be taken away.
struct Moody {
    fuse: Fuse,
    folder: tempfile::TempDir,
}

impl Moody {
    fn new() -> Moody {
        let folder = folder();
        let switch = format!("error-file={}", text(&folder.path().join("switch")));
        let log = format!("logfile={}", text(&folder.path().join("log")));
        let nbdkit = [
            "[",
            "nbdkit",
            "--exit-with-parent",
            "--filter=log",
            "--filter=error",
            "memory",
            "size=48M",
            "error=EPERM",
            "error-pwrite-rate=100%",
        ];
        let others = ["error-zero-rate=100%", "error-trim-rate=100%", &switch, &log, "]"];
        Moody { fuse: Fuse::new(&[&nbdkit[..], &others].concat()), folder }
    }

    /// Has it refused a write?
    fn has_refused(&self) -> bool {
        let log = fs::read_to_string(self.folder.path().join("log")).expect("nbdkit's log");
        log.lines().any(|line| line.contains("...Write") && line.contains("return=-1"))
    }

    fn up(&self, dir: &Path) -> Daemon {
        let file = self.fuse.file();
        let cache = dir.join("cache.img");
        let devices = ["--dir", text(dir), "--origin", text(&file), "--cache", text(&cache)];
        tool::tidegate(&[&["create", "--cache-size", "64MiB"], &devices[..]].concat()).succeeds();
        fs::write(dir.join("config.toml"), "[gate]\nmax_dirty_age = \"100ms\"\nwait = \"1ms\"\n").unwrap();
        Daemon::start(dir, &[&["up"], &devices[..]].concat())
    }
}

#[test]
fn an_origin_that_becomes_read_only_costs_no_write_and_gets_everything_when_it_is_not_any_more() {
    let folder = folder();
    let origin = Moody::new();
    let daemon = origin.up(folder.path());
    let switch = origin.folder.path().join("switch");
    fs::write(&switch, "").unwrap();
    let mut client = daemon.connect();
    let data = Chance::new(2).bytes(256 << 10);
    client.write(8 << 20, &data).unwrap();
    client.flush().unwrap();
    let began = Instant::now();
    while !origin.has_refused() {
        assert!(began.elapsed() < Duration::from_secs(60), "nothing goes home: {}", daemon.status());
    }
    client.expect(8 << 20, &data);
    client.write(9 << 20, &data).unwrap();
    client.flush().unwrap();
    assert!(daemon.status()["dirty_blocks"].as_u64() >= Some(64), "{}", daemon.status());
    fs::remove_file(&switch).unwrap();
    tool::tidegate(&["drain", "--dir", text(folder.path())]).succeeds();
    client.expect(8 << 20, &data);
    drop(client);
    daemon.stop();
}

#[test]
fn an_origin_that_disappears_costs_only_what_it_alone_had() {
    let folder = folder();
    let mut origin = Moody::new();
    let daemon = origin.up(folder.path());
    let mut client = daemon.connect();
    let data = Chance::new(3).bytes(256 << 10);
    client.write(8 << 20, &data).unwrap();
    client.flush().unwrap();
    origin.fuse.kill();
    assert!(client.read(30 << 20, 4096).unwrap_err().to_string().contains("error 5"), "only the origin had it");
    client.write(9 << 20, &data).unwrap();
    client.flush().unwrap();
    client.expect(8 << 20, &data);
    client.expect(9 << 20, &data);
    drop(client);
    daemon.stop();
}

#[test]
fn another_file_under_the_name_of_the_origin_changes_nothing_in_service_and_is_found_at_the_next_start() {
    let folder = volume("48MiB", "64MiB", "");
    let dir = folder.path();
    fs::write(dir.join("origin.img"), Chance::new(4).bytes(48 << 20)).unwrap();
    let daemon = Daemon::up(dir);
    let mut client = daemon.connect();
    let first = client.read(0, 1 << 20).unwrap();
    // Twice: what is read again is kept.
    client.expect(0, &first);
    make("mv origin.img first.img; head -c 48M /dev/zero > origin.img")(dir);
    let rest = client.read(40 << 20, 1 << 20).unwrap();
    assert!(rest.iter().any(|byte| *byte != 0), "it still has what it opened");
    drop(client);
    daemon.stop();
    let before = everything(dir);
    assert_refused("another origin", &tool::tidegate_in(dir, UP), 65, &["changed behind the cache"]);
    assert_eq!(everything(dir), before);
}

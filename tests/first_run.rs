//! The first run of `tidegate up`, and what else makes a volume of a folder: whatever comes between, nothing is removed that somebody else serves,
//! and nothing is left of what was refused.

use std::fs;
use std::io::{BufRead, BufReader, PipeReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::daemon::Daemon;
use crate::common::mount::Disk;
use crate::common::nbd::Client;
use crate::common::tool::{self, Ended, tidegate, tidegate_in};
use crate::common::{folder, text, volume};

/// A daemon that cannot say anything before it is listened to.
struct Mute {
    child: Child,
    stderr: PipeReader,
}

impl Mute {
    fn start(arguments: &[&str]) -> Mute {
        let (stderr, mut full) = std::io::pipe().unwrap();
        full.write_all(&[b'.'; 64 << 10]).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(full)
            .spawn()
            .expect("the built program starts");
        Mute { child, stderr }
    }

    /// Waits until it sleeps in a write to standard error.
    fn wants_to_speak(&self) {
        let until = Instant::now() + Duration::from_secs(60);
        let call = || fs::read_to_string(format!("/proc/{}/syscall", self.child.id())).unwrap_or_default();
        let write = format!("{} 0x2 ", libc::SYS_write);
        while !call().starts_with(&write) {
            assert!(Instant::now() < until, "it says nothing: {}", call());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// It is listened to from now on: the first line of its standard output that is ready, or nothing if it ends.
    fn is_heard(&mut self) -> Option<String> {
        let mut stderr = self.stderr.try_clone().unwrap();
        std::thread::spawn(move || stderr.read_to_end(&mut Vec::new()));
        let lines = BufReader::new(self.child.stdout.take().expect("piped")).lines().map_while(Result::ok);
        lines.into_iter().find(|line| line.starts_with("ready: "))
    }

    fn stop(mut self) {
        tool::run("kill", &["-TERM", &self.child.id().to_string()]).succeeds();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Mute {
    fn drop(&mut self) {
        // One that has ended already is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a second one says that should be refused; one that serves all the same is ended.
fn second(arguments: &[&str]) -> Ended {
    tool::run("timeout", &[&["20", env!("CARGO_BIN_EXE_tidegate")], arguments].concat())
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_first_run_holds_what_it_has_made_until_it_serves() {
    let folder = folder();
    let up = ["up", "--dir", text(folder.path())];
    let mut first = Mute::start(&up);
    first.wants_to_speak();
    let ended = second(&up);
    assert!(ended.code == Some(75) && ended.stderr.contains("in use by"), "{ended}");
    assert!(first.is_heard().is_some(), "the first one serves");
    let mut client = Client::connect(&folder.path().join("nbd.sock")).unwrap();
    client.write(0, &[7; 1 << 20]).unwrap();
    client.flush().unwrap();
    drop(client);
    first.stop();
    let daemon = Daemon::up(folder.path());
    daemon.connect().expect(0, &[7; 1 << 20]);
    daemon.stop();
}

#[test]
fn a_first_run_that_fails_takes_away_nothing_that_another_daemon_serves() {
    // Of the same cache: the one that came first has it.
    let volume_of = |folder: &tempfile::TempDir| fs::remove_file(folder.path().join("config.toml")).unwrap();
    let same = volume("48MiB", "64MiB", "");
    volume_of(&same);
    let up = ["up", "--dir", text(same.path())];
    let mut first = Mute::start(&[&up[..], &["--grow"]].concat());
    first.wants_to_speak();
    let ended = second(&up);
    assert!(ended.code == Some(75), "{ended}");
    assert!(first.is_heard().is_some());
    first.stop();
    assert!(
        ["config.toml", "tidegate.dirty", "tidegate.state"].iter().all(|name| same.path().join(name).exists()),
        "{:?}",
        names(same.path())
    );
    // Of another cache, in the same folder: what the host knows is of the cache that is served.
    let (own, other) = (volume("48MiB", "64MiB", ""), volume("48MiB", "64MiB", ""));
    volume_of(&own);
    let (origin, cache) = (other.path().join("origin.img"), other.path().join("cache.img"));
    let up = ["up", "--dir", text(own.path())];
    let mut first = Mute::start(&[&up[..], &["--grow", "--origin", text(&origin), "--cache", text(&cache)]].concat());
    first.wants_to_speak();
    let daemon = Daemon::up(own.path());
    daemon.connect().write(0, &[7; 4096]).unwrap();
    let served = names(own.path());
    assert_eq!(first.is_heard(), None);
    assert_eq!(first.child.wait().unwrap().code(), Some(75), "the state is of the volume that is served");
    assert_eq!(names(own.path()), served);
    daemon.stop();
}

#[test]
fn a_link_that_leads_nowhere_was_there_before() {
    let folder = folder();
    let link = folder.path().join("tidegate.state");
    std::os::unix::fs::symlink("/not-mounted/x", &link).unwrap();
    let ended = tidegate(&["up", "--dir", text(folder.path())]);
    assert_ne!(ended.code, Some(0), "{ended}");
    assert_eq!(names(folder.path()), ["tidegate.state"], "{ended}");
    assert_eq!(fs::read_link(&link).unwrap(), Path::new("/not-mounted/x"));
}

/// A first run writes its configuration when it serves. Who has made the folder a volume meanwhile has made it his.
#[test]
fn a_configuration_that_somebody_else_has_written_meanwhile_stays() {
    let folder = folder();
    let dir = folder.path();
    tool::shell(&format!("cd '{}'; truncate -s 48M b.disk; truncate -s 64M b.ssd", text(dir))).succeeds();
    let mut first = Mute::start(&["up", "--dir", text(&dir.join("v"))]);
    first.wants_to_speak();
    tidegate_in(dir, &["create", "--dir", "v", "--origin", "b.disk", "--cache", "b.ssd"]).succeeds();
    let config = fs::read_to_string(dir.join("v/config.toml")).unwrap();
    assert_eq!(first.is_heard(), None, "it is not its volume any more");
    assert_eq!(first.child.wait().unwrap().code(), Some(75));
    assert_eq!(
        (names(&dir.join("v")), fs::read_to_string(dir.join("v/config.toml")).unwrap()),
        (vec!["config.toml".to_owned()], config.clone())
    );
    assert!(config.contains("b.disk") && config.contains("b.ssd"), "{config}");
    let daemon = Daemon::up(&dir.join("v"));
    daemon.connect().expect(0, &[0; 4096]);
    daemon.stop();
}

#[test]
fn what_is_called_like_a_draft_is_somebody_elses_and_stays() {
    let folder = folder();
    let dir = folder.path();
    let others = ["config.toml.new", "tidegate.state.new", "tidegate.dirty.new", "pid.new"];
    others.iter().for_each(|name| fs::write(dir.join(name), "mine").unwrap());
    // Of a process that has ended.
    fs::write(dir.join("tidegate.1-0123456789abcdef.new"), "").unwrap();
    let daemon = Daemon::start(dir, &["up", "--dir", text(dir), "--pid-file", text(&dir.join("pid"))]);
    let there = names(dir);
    for name in ["config.toml", "pid", "tidegate.dirty", "tidegate.state"] {
        assert!(there.iter().any(|found| found == name), "{there:?}");
    }
    assert_eq!(there.iter().filter(|name| name.ends_with(".new")).collect::<Vec<_>>().len(), others.len(), "{there:?}");
    assert!(others.iter().all(|name| fs::read_to_string(dir.join(name)).unwrap() == "mine"));
    daemon.stop();
}

/// A file system with room for so many files.
struct Few {
    folder: tempfile::TempDir,
}

impl Few {
    fn new(files: u32) -> Few {
        let few = Few { folder: folder() };
        let options = format!("size=64m,nr_inodes={}", files + 1);
        tool::run("mount", &["-t", "tmpfs", "-o", &options, "few", text(few.folder.path())]).succeeds();
        few
    }
}

impl Drop for Few {
    fn drop(&mut self) {
        // One that was never mounted: there is nothing to take down.
        let _ = Command::new("umount").arg("--lazy").arg(self.folder.path()).status();
    }
}

#[test]
fn a_configuration_that_cannot_be_written_leaves_everything_as_it_was() {
    let folder = folder();
    let dir = folder.path();
    tool::shell(&format!("cd '{}'; mkdir ssd; truncate -s 48M disk.img; truncate -s 64M blank.img up.img", text(dir))).succeeds();
    let named = ["--origin", "disk.img", "--cache", "ssd/cache.img", "--cache-size", "64MiB"];
    let blank = ["--origin", "disk.img", "--cache", "blank.img"];
    // What is there before the configuration: two sockets and what the host knows; or nothing. (A blank cache that is named to `up` is formatted.)
    let up = ["--origin", "disk.img", "--cache", "up.img"];
    for (files, command, disks) in [(4, "up", &up[..]), (0, "attach", &named), (0, "attach", &blank), (0, "create", &named)] {
        let few = Few::new(files);
        let ended = tidegate_in(dir, &[&[command, "--dir", text(few.folder.path())], disks].concat());
        assert!(ended.code == Some(73) && ended.stderr.contains("config.toml: No space left"), "{ended}");
        assert_eq!(names(few.folder.path()), [""; 0], "{ended}");
        assert_eq!(names(&dir.join("ssd")), [""; 0], "{ended}");
        let mut first = [1; 4096];
        fs::File::open(dir.join("blank.img")).unwrap().read_exact_at(&mut first, 0).unwrap();
        assert_eq!(first, [0; 4096], "{ended}");
    }
    // Nothing of what was refused stands in the way of trying again.
    tidegate_in(dir, &[&["attach", "--dir", "v"][..], &blank].concat()).succeeds();
}

#[test]
fn folders_that_were_made_for_nothing_are_removed_again() {
    let folder = folder();
    let dir = folder.path();
    fs::create_dir(dir.join("was")).unwrap();
    for place in ["n/a/b", "was/a"] {
        for arguments in [&["up", "--origin", "missing"][..], &["create", "--cache-size", "1MiB"]] {
            let ended = tidegate_in(dir, &[arguments, &["--dir", place]].concat());
            assert!(matches!(ended.code, Some(66 | 78)), "{ended}");
            assert_eq!((names(dir), names(&dir.join("was"))), (vec!["was".to_owned()], Vec::new()), "{ended}");
        }
    }
}

/// A configuration names a cache on a disk that may not be mounted: below its mount point no file is made unasked.
#[test]
fn a_cache_that_the_configuration_names_elsewhere_is_made_only_where_its_size_is_said() {
    let folder = folder();
    let dir = folder.path();
    tool::shell(&format!("cd '{}'; mkdir v ssd; truncate -s 48M disk.img", text(dir))).succeeds();
    let paths = [("origin", dir.join("disk.img")), ("cache", dir.join("ssd/cache.img"))];
    fs::write(dir.join("v/config.toml"), paths.map(|(key, path)| format!("{key} = \"{}\"\n", text(&path))).concat()).unwrap();
    for command in ["attach", "create"] {
        let refused = tidegate_in(dir, &[command, "--dir", "v"]);
        assert!(refused.code == Some(66) && refused.stderr.contains("mount its disk"), "{refused}");
        assert_eq!(refused.stderr.lines().count(), 1, "{refused}");
        assert_eq!((names(&dir.join("v")), names(&dir.join("ssd"))), (vec!["config.toml".to_owned()], Vec::new()));
        tidegate_in(dir, &[command, "--dir", "v", "--cache-size", "64MiB"]).succeeds();
        assert_eq!(fs::metadata(dir.join("ssd/cache.img")).unwrap().len(), 64 << 20);
        fs::remove_file(dir.join("ssd/cache.img")).unwrap();
    }
    // What is there keeps its size, and that is said.
    fs::File::create(dir.join("ssd/cache.img")).unwrap().set_len(64 << 20).unwrap();
    let attached = tidegate_in(dir, &["attach", "--dir", "v", "--cache-size", "1GiB"]);
    assert!(attached.code == Some(0) && attached.stderr.contains("keeps its 64.0 MiB"), "{attached}");
    // A cache that was detached has no only copy of anything.
    tidegate_in(dir, &["detach", "--dir", "v"]).succeeds();
    let refused = tidegate_in(dir, &["create", "--dir", "v"]);
    assert!(refused.code == Some(78) && refused.stderr.contains("was detached") && !refused.stderr.contains("only copy"), "{refused}");
}

/// The same of an origin, which would be an empty one beside what was written.
#[test]
fn an_origin_that_the_configuration_names_elsewhere_is_made_only_where_its_size_is_said() {
    let folder = folder();
    let dir = folder.path();
    tool::shell(&format!("cd '{}'; mkdir v disk", text(dir))).succeeds();
    let origin = dir.join("disk/origin.img");
    fs::write(dir.join("v/config.toml"), format!("origin = \"{}\"\n", text(&origin))).unwrap();
    for force in [&[][..], &["--force"]] {
        let refused = tidegate_in(dir, &[&["create", "--dir", "v", "--cache-size", "64MiB"], force].concat());
        assert!(
            refused.code == Some(66) && refused.stderr.contains("mount its disk") && refused.stderr.contains("--origin-size"),
            "{refused}"
        );
        assert_eq!(refused.stderr.lines().count(), 1, "{refused}");
        assert_eq!((names(&dir.join("v")), names(&dir.join("disk"))), (vec!["config.toml".to_owned()], Vec::new()));
    }
    tidegate_in(dir, &["create", "--dir", "v", "--cache-size", "64MiB", "--origin-size", "48MiB"]).succeeds();
    assert_eq!(fs::metadata(&origin).unwrap().len(), 48 << 20);
    // One that is there is kept, without a word about sizes.
    fs::remove_file(dir.join("v/cache.img")).unwrap();
    tidegate_in(dir, &["create", "--dir", "v", "--cache-size", "64MiB"]).succeeds();
}

#[test]
fn what_is_named_beside_a_configuration_is_said_to_be_for_this_run() {
    let (own, other) = (volume("48MiB", "64MiB", ""), volume("48MiB", "64MiB", ""));
    let (origin, cache) = (other.path().join("origin.img"), other.path().join("cache.img"));
    let daemon = Daemon::start(own.path(), &["up", "--dir", text(own.path()), "--origin", text(&origin), "--cache", text(&cache)]);
    let said = daemon.greeting.join("\n");
    for (flag, path) in [("--origin", &origin), ("--cache", &cache)] {
        assert!(said.contains(&format!("{flag} {} is for this run only", text(path))), "{said}");
    }
    daemon.stop();
    let own_cache = own.path().join("cache.img");
    let daemon = Daemon::start(own.path(), &["up", "--dir", text(own.path()), "--cache", text(&own_cache), "--accept-loss"]);
    assert!(!daemon.greeting.join("\n").contains("this run only"), "{:?}", daemon.greeting);
    daemon.stop();
}

/// A volume that was stopped with 256 blocks that only its cache has.
fn dirty() -> tempfile::TempDir {
    let folder = volume("48MiB", "64MiB", "");
    let daemon = Daemon::up(folder.path());
    let mut client = daemon.connect();
    client.write(0, &[7; 1 << 20]).unwrap();
    client.flush().unwrap();
    drop(client);
    daemon.stop();
    folder
}

fn serves_it_all(dir: &Path) {
    let daemon = Daemon::up(dir);
    daemon.connect().expect(0, &[7; 1 << 20]);
    daemon.stop();
}

/// A process of ours, ended if the test fails.
struct Running(Child);

impl Running {
    fn start(dir: &Path, arguments: &[&str]) -> Running {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(arguments).current_dir(dir).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Running(command.spawn().expect("the built program starts"))
    }

    /// Waits until it has opened the file.
    fn has_opened(&self, path: &Path) {
        let until = Instant::now() + Duration::from_secs(60);
        while !self.opens(path) {
            assert!(Instant::now() < until, "it does not open {}", path.display());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn opens(&self, path: &Path) -> bool {
        let mut files = fs::read_dir(format!("/proc/{}/fd", self.0.id())).into_iter().flatten().flatten();
        files.any(|file| fs::read_link(file.path()).is_ok_and(|file| file == path))
    }

    /// Waits until it makes a file or a folder on one that takes no writes.
    fn waits_for_the_file_system(&self) {
        let told = |what: &str| fs::read_to_string(format!("/proc/{}/{what}", self.0.id())).unwrap_or_default();
        let makes = [libc::SYS_openat, libc::SYS_mkdir].map(|call| format!("{call} "));
        let until = Instant::now() + Duration::from_secs(60);
        while !told("stat").contains(") D ") || !makes.iter().any(|call| told("syscall").starts_with(call)) {
            assert!(Instant::now() < until, "it makes nothing: {}", told("syscall"));
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Its exit code, and what it said to standard error.
    fn ended(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        self.0.stderr.take().expect("piped").read_to_string(&mut said).unwrap();
        (self.0.wait().unwrap().code(), said)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // One that has ended already is fine.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn locked(path: &Path) -> fs::File {
    let file = fs::File::open(path).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    file
}

/// What was looked at before it was waited for counts for nothing: somebody else may have attached it, and written into it.
#[test]
fn a_cache_that_was_attached_while_it_was_waited_for_is_not_formatted() {
    let folder = dirty();
    let dir = folder.path();
    let (origin, cache) = (dir.join("origin.img"), dir.join("cache.img"));
    fs::copy(&cache, dir.join("attached.img")).unwrap();
    tidegate_in(dir, &["detach", "--dir", "."]).succeeds();
    let lock = locked(&origin);
    let late = Running::start(dir, &["attach", "--dir", "."]);
    late.has_opened(&origin);
    fs::rename(dir.join("attached.img"), &cache).unwrap();
    let before = fs::read(&cache).unwrap();
    drop(lock);
    let (code, said) = late.ended();
    assert!(code == Some(78) && said.contains("is attached already") && said.lines().count() == 1, "{code:?}: {said}");
    assert!(fs::read(&cache).unwrap() == before);
}

/// Of a volume that has a cache, another one is formatted: its own is not given up for that.
#[test]
fn formatting_another_cache_takes_nothing_from_the_volumes_own() {
    let folder = dirty();
    let dir = folder.path();
    tool::shell(&format!("cd '{}'; truncate -s 64M b.img; mkfs.ext4 -q b.img", text(dir))).succeeds();
    let forced = tidegate_in(dir, &["create", "--dir", ".", "--cache", "b.img", "--force"]);
    assert!(forced.code == Some(0) && forced.stderr.lines().count() == 1, "{forced}");
    assert!(forced.stderr.contains("held 256 blocks newer than the origin") && forced.stderr.contains("--accept-loss"), "{forced}");
    // The new one asks, as it said.
    let refused = tidegate_in(dir, &["up", "--dir", ".", "--cache", "b.img"]);
    assert!(refused.code == Some(65) && refused.stderr.contains("bring that one back"), "{refused}");
    serves_it_all(dir);
    // Its own, which is told what it holds, is.
    let forced = tidegate_in(dir, &["create", "--dir", ".", "--force"]);
    assert!(forced.code == Some(0) && forced.stderr.contains("held 256 blocks newer than the origin, which are given up"), "{forced}");
    assert!(forced.stderr.contains("lost: 1048576 bytes from byte 0 on"), "{forced}");
    Daemon::up(dir).stop();
}

/// A copy has the identity of the cache: whether it is older or not, and whether it lies elsewhere or in its place, the cache may still be somewhere.
#[test]
fn overwriting_a_copy_of_the_cache_takes_nothing_from_the_cache() {
    let folder = dirty();
    let dir = folder.path();
    let copy = |to: &str| assert_eq!(fs::copy(dir.join("cache.img"), dir.join(to)).unwrap(), 64 << 20);
    copy("older.img");
    serves_it_all(dir);
    copy("same.img");
    let overwritten = |cache: &[&str]| {
        let forced = tidegate_in(dir, &[&["create", "--dir", ".", "--force"], cache].concat());
        assert!(forced.code == Some(0) && forced.stderr.contains("may have been a copy of it, so a start"), "{forced}");
    };
    overwritten(&["--cache", "same.img"]);
    // In its place; the new one asks, as it said.
    for name in ["older.img", "cache.img"] {
        fs::rename(dir.join(name), dir.join(name.replace("cache", "away"))).unwrap();
    }
    fs::copy(dir.join("older.img"), dir.join("cache.img")).unwrap();
    overwritten(&[]);
    let refused = tidegate_in(dir, &["up", "--dir", "."]);
    assert!(refused.code == Some(65) && refused.stderr.contains("--accept-loss"), "{refused}");
    fs::rename(dir.join("away.img"), dir.join("cache.img")).unwrap();
    overwritten(&["--cache", "older.img"]);
    // In the place of the cache of another origin.
    copy("away.img");
    tool::shell(&format!("cd '{}'; truncate -s 32M o2.img", text(dir))).succeeds();
    overwritten(&["--origin", "o2.img"]);
    fs::rename(dir.join("away.img"), dir.join("cache.img")).unwrap();
    serves_it_all(dir);
}

/// What another first run has made meanwhile may hold something by now: nobody is told to overwrite it.
#[test]
fn who_waits_for_another_first_run_is_not_told_to_overwrite_what_that_one_has_made() {
    let folder = folder();
    let dir = folder.path();
    let [origin, cache] = ["o.img", "c.img"].map(|name| dir.join(name));
    tool::shell(&format!("cd '{}'; truncate -s 48M o.img; truncate -s 64M c.img", text(dir))).succeeds();
    tidegate_in(dir, &["create", "--dir", "x", "--origin", "o.img", "--cache", "made.img", "--cache-size", "64MiB"]).succeeds();
    let up = ["up", "--dir", "v", "--origin", "o.img", "--cache", "c.img"];
    // It was blank when this one looked.
    let lock = locked(&origin);
    let late = Running::start(dir, &up);
    late.has_opened(&origin);
    fs::rename(dir.join("made.img"), &cache).unwrap();
    drop(lock);
    let (code, said) = late.ended();
    assert!(
        code == Some(75) && said.contains("was formatted just now by somebody else; try again") && said.lines().count() == 1,
        "{code:?}: {said}"
    );
    // Somebody has it, and lets it go when this one goes on without having seen it.
    let mut lock = Some(locked(&cache));
    let mut late = Running::start(dir, &up);
    let until = Instant::now() + Duration::from_secs(60);
    while late.0.try_wait().unwrap().is_none() {
        assert!(Instant::now() < until, "it does not end");
        if late.opens(&origin) {
            lock = None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(lock);
    let (code, said) = late.ended();
    assert!(code == Some(75) && said.contains("c.img is in use") && said.lines().count() == 1, "{code:?}: {said}");
    assert!(!dir.join("v").exists());
}

#[test]
fn a_lack_of_descriptors_ends_a_create_and_never_hangs_it() {
    let folder = folder();
    let dir = folder.path();
    tidegate_in(dir, &["create", "--dir", ".", "--origin-size", "48MiB", "--cache-size", "64MiB"]).succeeds();
    Daemon::up(dir).stop();
    for limit in 4..14 {
        let program = env!("CARGO_BIN_EXE_tidegate");
        let forced = tool::shell(&format!("cd '{}'; ulimit -n {limit}; timeout 20 '{program}' create --dir . --force", text(dir)));
        assert_ne!(forced.code, Some(124), "with {limit} descriptors: {forced}");
    }
    tidegate_in(dir, &["create", "--dir", ".", "--force"]).succeeds();
}

/// Other disks are named beside its configuration: whatever becomes of them, its own are as they were.
#[test]
fn making_other_disks_beside_a_volume_gives_up_nothing_of_it() {
    let folder = folder();
    let dir = folder.path();
    tidegate_in(dir, &["create", "--dir", ".", "--origin-size", "48MiB", "--cache-size", "64MiB"]).succeeds();
    Daemon::up(dir).stop();
    let others = ["--origin", "o2.img", "--origin-size", "32MiB", "--cache", "c2.img", "--cache-size", "64MiB"];
    tidegate_in(dir, &[&["create", "--dir", ".", "--force"], &others[..]].concat()).succeeds();
    Daemon::up(dir).stop();
}

#[test]
fn no_new_origin_is_made_beside_a_cache_that_has_blocks_of_the_one_that_is_missing() {
    let folder = dirty();
    let dir = folder.path();
    let (origin, away) = (dir.join("origin.img"), dir.join("away"));
    fs::rename(&origin, &away).unwrap();
    let before = names(dir);
    let up = tidegate_in(dir, &["up", "--dir", "."]);
    assert!(up.code == Some(66) && up.stderr.contains("mount its disk") && !up.stderr.contains("create"), "{up}");
    let forced = tidegate_in(dir, &["create", "--dir", ".", "--force"]);
    assert!(forced.code == Some(66) && forced.stderr.contains("holds 256 blocks newer than its origin"), "{forced}");
    assert!(forced.stderr.contains("mount its disk") && forced.stderr.lines().count() == 1, "{forced}");
    assert_eq!(names(dir), before);
    fs::rename(&away, &origin).unwrap();
    serves_it_all(dir);
    // As it says, they can be given up first.
    fs::rename(&origin, &away).unwrap();
    assert!(forced.stderr.contains("overwrite the first MiB of the cache with zeros first"), "{forced}");
    tool::shell(&format!("cd '{}'; dd if=/dev/zero of=cache.img bs=1M count=1 conv=notrunc status=none", text(dir))).succeeds();
    tidegate_in(dir, &["create", "--dir", ".", "--origin-size", "48MiB", "--force"]).succeeds();
    let up = tidegate_in(dir, &["up", "--dir", "."]);
    assert!(up.code == Some(65) && up.stderr.contains("--accept-loss"), "{up}");
    // Where there is nothing of the volume, it can be made.
    ["origin.img", "cache.img"].iter().for_each(|name| fs::remove_file(dir.join(name)).unwrap());
    let up = tidegate_in(dir, &["up", "--dir", "."]);
    assert!(up.code == Some(66) && up.stderr.contains("make them with `tidegate create --dir"), "{up}");
}

#[test]
fn a_cache_in_the_place_of_the_origin_is_refused_and_keeps_what_it_has() {
    let folder = dirty();
    let dir = folder.path();
    tool::shell(&format!("cd '{}'; mkdir x; truncate -s 64M b.img ext4.img; mkfs.ext4 -q ext4.img", text(dir))).succeeds();
    for (command, force) in [("attach", &[][..]), ("create", &[]), ("create", &["--force"]), ("up", &[])] {
        let refused = |cache, says: &[&str]| {
            let arguments = [command, "--dir", "x/v", "--origin", "cache.img", "--cache", cache];
            let refused = tidegate_in(dir, &[&arguments[..], force].concat());
            assert!(refused.code == Some(78) && refused.stderr.lines().count() == 1, "{refused}");
            says.iter().for_each(|words| assert!(refused.stderr.contains(words), "{words}: {refused}"));
            assert!(!refused.stderr.contains("--force") && names(&dir.join("x")).is_empty(), "{refused}");
        };
        refused("b.img", &["cache.img is the tidegate cache of a volume of 50331648 bytes", "name another one"]);
        refused("ext4.img", &["cache.img holds a tidegate cache and cache", "ext4.img does not; swap the two"]);
    }
    serves_it_all(dir);
}

/// Who is interrupted while he waits for a disk has made nothing.
#[test]
fn an_interrupt_while_a_disk_is_waited_for_leaves_nothing() {
    let folder = folder();
    let dir = folder.path();
    tool::shell(&format!("cd '{}'; truncate -s 48M o.img; truncate -s 64M c.img", text(dir))).succeeds();
    let before = names(dir);
    for (command, origin, disk) in [
        ("attach", "o.img", "o.img"),
        ("attach", "o.img", "c.img"),
        ("create", "o.img", "o.img"),
        ("create", "o.img", "c.img"),
        ("create", "new.img", "c.img"),
    ] {
        let lock = locked(&dir.join(disk));
        let named = [command, "--dir", "n/v", "--origin", origin, "--cache", "c.img"];
        let waiting = Running::start(dir, &named);
        waiting.has_opened(&dir.join(disk));
        tool::run("kill", &["-INT", &waiting.0.id().to_string()]).succeeds();
        assert_eq!(waiting.ended().0, None, "ended by the signal");
        drop(lock);
        assert_eq!(names(dir), before, "{command}, {origin}, {disk}");
    }
    tidegate_in(dir, &["attach", "--dir", "n/v", "--origin", "o.img", "--cache", "c.img"]).succeeds();
}

/// A file system that takes no writes until this goes.
struct Frozen(String);

impl Frozen {
    fn new(at: &Path) -> Frozen {
        tool::run("fsfreeze", &["--freeze", text(at)]).succeeds();
        Frozen(text(at).to_owned())
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        tool::run("fsfreeze", &["--unfreeze", &self.0]).succeeds();
    }
}

/// Of what was made until then nothing is left, however long the next step takes.
#[test]
fn an_interrupt_while_files_are_made_leaves_nothing() {
    let folder = folder();
    let dir = folder.path();
    tool::shell(&format!("cd '{}'; truncate -s 48M o.img; truncate -s 400M fs; mkfs.ext4 -q fs", text(dir))).succeeds();
    let mut disk = Disk::of_file(&dir.join("fs"));
    let (ssd, before) = (disk.mount("rw").to_owned(), names(dir));
    let there = names(&ssd);
    let cache = ssd.join("c.img");
    let sized = ["--cache", text(&cache), "--cache-size", "300MiB", "--dir", "n/v"];
    let volume = ssd.join("n/v");
    for arguments in [
        &[&["create", "--origin", "new.img", "--origin-size", "48MiB"][..], &sized].concat()[..],
        &[&["attach", "--origin", "o.img"][..], &sized].concat(),
        &["up", "--origin", "o.img", "--dir", text(&volume)],
    ] {
        let frozen = Frozen::new(&ssd);
        let running = Running::start(dir, arguments);
        running.waits_for_the_file_system();
        tool::run("kill", &["-INT", &running.0.id().to_string()]).succeeds();
        drop(frozen);
        let (code, said) = running.ended();
        assert_eq!((code, said.lines().count()), (Some(130), 1), "{arguments:?}: {said}");
        assert!(said.contains("interrupted: what was made for the volume is removed again"), "{said}");
        assert_eq!((names(dir), names(&ssd)), (before.clone(), there.clone()), "{arguments:?}");
    }
    disk.detach();
}

/// From the first write on it is done as a whole: there is no configuration without a cache that is formatted.
#[test]
fn an_interrupt_while_the_cache_is_formatted_comes_too_late() {
    let folder = folder();
    let dir = folder.path();
    tool::shell(&format!("cd '{}'; truncate -s 48M o.img; truncate -s 200M fs; mkfs.ext4 -q fs", text(dir))).succeeds();
    let mut disk = Disk::of_file(&dir.join("fs"));
    let cache = disk.mount("rw").join("c.img");
    fs::File::create(&cache).unwrap().set_len(64 << 20).unwrap();
    // Goes last: one that writes there does not end before it can.
    let running;
    let frozen = Frozen::new(disk.folder());
    running = Running::start(dir, &["attach", "--dir", "v", "--origin", "o.img", "--cache", text(&cache)]);
    let call = || fs::read_to_string(format!("/proc/{}/syscall", running.0.id())).unwrap_or_default();
    let (until, write) = (Instant::now() + Duration::from_secs(60), format!("{} ", libc::SYS_pwrite64));
    while !call().starts_with(&write) {
        assert!(Instant::now() < until, "it does not write: {}", call());
        std::thread::sleep(Duration::from_millis(5));
    }
    tool::run("kill", &["-INT", &running.0.id().to_string()]).succeeds();
    drop(frozen);
    let ended = running.ended();
    assert_eq!(ended, (Some(0), String::new()));
    Daemon::up(&dir.join("v")).stop();
    disk.detach();
}

#[test]
fn a_link_that_leads_nowhere_is_called_one_and_nothing_is_advised_that_cannot_be_done() {
    let folder = folder();
    let dir = folder.path();
    tool::shell(&format!("cd '{}'; truncate -s 48M disk; mkdir v", text(dir))).succeeds();
    for (flag, other) in [("--origin", "--cache"), ("--cache", "--origin")] {
        let link = dir.join("link");
        std::os::unix::fs::symlink("/not-mounted/disk.img", &link).unwrap();
        for command in ["create", "attach", "up"] {
            let refused = tidegate_in(dir, &[command, "--dir", "v", flag, "link", other, "disk"]);
            assert!(refused.code == Some(66) && refused.stderr.lines().count() == 1, "{refused}");
            assert!(refused.stderr.contains("link to /not-mounted/disk.img, which is not there"), "{refused}");
            assert!(!refused.stderr.contains("tidegate create"), "{refused}");
        }
        fs::remove_file(&link).unwrap();
    }
    assert_eq!(names(&dir.join("v")), [""; 0]);
}

//! The first run of `tidegate up`, and what else makes a volume of a folder: whatever comes between, nothing is removed that somebody else serves,
//! and nothing is left of what was refused.

use std::fs;
use std::io::{BufRead, BufReader, PipeReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::daemon::Daemon;
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
    assert_eq!(first.child.wait().unwrap().code(), Some(65), "another cache than the one that the folder knows");
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

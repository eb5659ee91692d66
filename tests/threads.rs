//! Threads: where io_uring is forbidden or missing they serve the disks, chosen without being asked, and said in one line. And those that serve
//! clients, where they are asked for.

use std::collections::BTreeMap;
use std::env::consts::ARCH;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

use crate::common::chance::Chance;
use crate::common::daemon::Daemon;
use crate::common::{text, tool, volume};

/// Does `work` on a thread for which io_uring_setup fails with `errno`, as it does for every program that is started there.
fn without_io_uring<T: Send>(errno: i32, work: impl FnOnce() -> T + Send) -> T {
    let rules = BTreeMap::from([(libc::SYS_io_uring_setup, Vec::new())]);
    let arch = ARCH.try_into().expect("an architecture that seccomp knows");
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(errno as u32), arch).expect("a plain filter");
    let program: BpfProgram = filter.try_into().expect("a small program");
    std::thread::scope(|threads| {
        let worker = threads.spawn(|| {
            apply_filter(&program).expect("a filter of one's own needs no privilege");
            work()
        });
        worker.join().expect("the work does not panic")
    })
}

fn serves(dir: &Path, daemon: Daemon) {
    let mut client = daemon.connect();
    let data = Chance::new(7).bytes(1 << 20);
    client.write(12_345 * 512, &data).unwrap();
    client.flush().unwrap();
    client.expect(12_345 * 512, &data);
    drop(client);
    daemon.kill();
    let daemon = Daemon::up(dir);
    daemon.connect().expect(12_345 * 512, &data);
    daemon.stop();
}

#[test]
fn where_io_uring_is_forbidden_threads_serve_and_one_line_says_so() {
    for (errno, why) in [(libc::EPERM, "io_uring is forbidden here"), (libc::ENOSYS, "this kernel has no io_uring")] {
        let folder = volume("48MiB", "64MiB", "");
        let dir = folder.path();
        let daemon = without_io_uring(errno, || Daemon::up(dir));
        let notes: Vec<&String> = daemon.greeting.iter().filter(|line| line.contains("io_uring")).collect();
        assert_eq!(notes.len(), 1, "{:?}", daemon.greeting);
        assert!(notes[0].starts_with(&format!("note: {why}")) && notes[0].contains("threads serve the disks"), "{notes:?}");
        assert_eq!(daemon.status()["io"], "threads");
        serves(dir, daemon);
    }
}

#[test]
fn io_uring_is_used_where_it_is_and_who_insists_on_it_is_refused_where_it_is_not() {
    let folder = volume("48MiB", "64MiB", "");
    let dir = folder.path();
    let daemon = Daemon::up(dir);
    assert_eq!(daemon.status()["io"], "uring");
    assert!(!daemon.greeting.iter().any(|line| line.contains("io_uring")), "{:?}", daemon.greeting);
    daemon.stop();
    let refused = without_io_uring(libc::EPERM, || tool::tidegate(&["up", "--dir", text(dir), "--io", "uring"]));
    assert_eq!(refused.code, Some(71), "{refused}");
    assert!(refused.stderr.lines().count() == 1 && refused.stderr.contains("io_uring is forbidden here"), "{refused}");
    let daemon = Daemon::up_by(dir, "threads");
    assert_eq!(daemon.status()["io"], "threads");
    serves(dir, daemon);
}

/// How long the daemon may take to notice what has happened.
const PATIENCE: Duration = Duration::from_secs(60);

/// The daemon's answer on its control socket.
fn control(dir: &Path, command: &str) -> serde_json::Value {
    let mut stream = UnixStream::connect(dir.join("control.sock")).unwrap();
    writeln!(stream, "{command}").unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    serde_json::from_str(&answer).expect("an answer is JSON")
}

/// Writes the block at `offset` until a front thread has acknowledged one of these writes itself.
fn write_until_a_front_thread_has(daemon: &Daemon, offset: u64) {
    let written = || daemon.status()["memory"]["written_blocks"].as_u64().expect("a count");
    let (mut client, before, began) = (daemon.connect(), written(), Instant::now());
    while written() == before {
        assert!(began.elapsed() < PATIENCE, "no front thread writes: {}", daemon.status());
        client.write(offset, &[7; 4096]).unwrap();
    }
}

#[test]
fn front_threads_write_again_after_a_detach_that_was_cancelled() {
    let folder = volume("64MiB", "64MiB", "[limits]\nfront_threads = 2\n[gate]\nwait = \"10min\"\n");
    let dir = folder.path();
    let daemon = Daemon::up(dir);
    write_until_a_front_thread_has(&daemon, 48 << 20);
    // The origin is cut off: what is dirty behind its end does not get home, so the detach does not end by itself.
    let origin = OpenOptions::new().write(true).open(dir.join("origin.img")).unwrap();
    origin.set_len(1 << 20).unwrap();
    let began = Instant::now();
    while control(dir, r#"{"verb":"detach","flush":true}"#).get("error").is_some() {
        assert!(began.elapsed() < PATIENCE, "the daemon hears of the client's end a moment after the client does");
    }
    assert_eq!(control(dir, r#"{"verb":"status"}"#)["detaching"], true);
    assert_eq!(control(dir, r#"{"verb":"cancel-detach"}"#)["detaching"], false);
    origin.set_len(64 << 20).unwrap();
    write_until_a_front_thread_has(&daemon, 32 << 20);
    daemon.stop();
}

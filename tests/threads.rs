//! Where io_uring is forbidden or missing, threads serve the disks: chosen without being asked, and said in one line.

use std::collections::BTreeMap;
use std::env::consts::ARCH;
use std::path::Path;

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

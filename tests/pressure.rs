//! A daemon whose control group allows it little memory: it takes no more, whatever clients do, and goes on.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::chance::Chance;
use crate::common::daemon::Daemon;
use crate::common::hostile::{Door, FLUSH, request, vanish};
use crate::common::nbd::Client;
use crate::common::{text, volume};

/// As much as one of the smallest machines would give it.
const LIMIT: u64 = 128 << 20;
/// Writers and readers beside those that vanish, and what each does.
const CLIENTS: u64 = 8;
const ROUNDS: u64 = 150;
/// Each has a part of the volume of its own, behind what those that vanish write to.
const PARTS: u64 = 128 << 20;
const PART: u64 = 8 << 20;

/// A control group with a limit, of either version; gone when it is dropped.
struct Group {
    path: PathBuf,
}

impl Group {
    /// The error says why there can be none here.
    fn limited(bytes: u64) -> Result<Group, String> {
        let groups = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let own = |prefix: &str| groups.lines().find_map(|line| line.split_once(prefix)).map(|(_, path)| path.trim_start_matches('/'));
        let (above, file) = match (own(":memory:"), own("0::")) {
            (Some(path), _) => (Path::new("/sys/fs/cgroup/memory").join(path), "memory.limit_in_bytes"),
            (None, Some(path)) => (Path::new("/sys/fs/cgroup").join(path), "memory.max"),
            (None, None) => return Err("no control group counts memory".to_owned()),
        };
        let group = Group { path: above.join(format!("tidegate-test-{}", std::process::id())) };
        fs::create_dir(&group.path).map_err(|error| format!("{}: {error}", group.path.display()))?;
        fs::write(group.path.join(file), bytes.to_string()).map_err(|error| format!("{file}: {error}"))?;
        Ok(group)
    }

    /// A daemon that is in it from the start.
    fn up(&self, dir: &Path) -> Daemon {
        let enter = format!("echo $$ > {}/cgroup.procs && exec \"$0\" \"$@\"", self.path.display());
        Daemon::start_by("sh", dir, &["-c", &enter, env!("CARGO_BIN_EXE_tidegate"), "up", "--dir", text(dir)])
    }

    fn read(&self, names: [&str; 2]) -> String {
        names.iter().find_map(|name| fs::read_to_string(self.path.join(name)).ok()).expect("one of them")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // It is empty by now, unless a test has failed.
        let _ = fs::remove_dir(&self.path);
    }
}

#[test]
fn a_daemon_with_little_memory_takes_no_more_and_serves_everybody() {
    let group = match Group::limited(LIMIT) {
        Ok(group) => group,
        Err(why) => return println!("skipped: {why}"),
    };
    let folder = volume("192MiB", "512MiB", "[gate]\nwait = \"100ms\"\n[limits]\nfront_threads = 2\n");
    let daemon = group.up(folder.path());
    let pages = daemon.status()["memory"]["pages_max"].as_u64().expect("a number");
    assert!((1..=LIMIT / 32 / 4096).contains(&pages), "{pages} pages: a part of what the group may use, not of the machine");

    let door = Door::Unix(daemon.socket());
    let done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let working: Vec<_> = (0..CLIENTS).map(|client| (client, daemon.connect())).collect();
        let working: Vec<_> = working.into_iter().map(|(client, nbd)| threads.spawn(move || work(nbd, client))).collect();
        let vanishing = threads.spawn(|| {
            let mut count = 0;
            while !done.load(Ordering::Acquire) || count < 1_000 {
                vanish(&door, count);
                count += 1;
            }
            count
        });
        working.into_iter().for_each(|client| client.join().unwrap());
        done.store(true, Ordering::Release);
        println!("{} clients vanished meanwhile", vanishing.join().unwrap());
    });
    let killed = group.read(["memory.oom_control", "memory.events"]);
    println!("most memory used: {} of {LIMIT}", group.read(["memory.max_usage_in_bytes", "memory.peak"]).trim());
    assert!(killed.lines().any(|line| line == "oom_kill 0"), "{killed}");
    let mut late = door.enter().unwrap();
    late.write_all(&request(FLUSH, 1, 0, 0)).unwrap();
    assert_eq!(late.simple().unwrap(), (0, 1));
    drop(late);
    daemon.stop();
}

/// Writes and reads of up to 1 MiB, many at once, compared.
fn work(mut nbd: Client, client: u64) {
    let (start, mut chance, mut holds) = (PARTS + client * PART, Chance::new(client), vec![0; PART as usize]);
    nbd.write(start, &holds).unwrap();
    for round in 0..ROUNDS {
        let length = (4096 << chance.below(9)) as usize;
        let at = (chance.below(PART - length as u64 + 1) / 512 * 512) as usize;
        let data = chance.bytes(length);
        nbd.write(start + at as u64, &data).unwrap();
        holds[at..at + length].copy_from_slice(&data);
        let from = (chance.below(PART - (1 << 20) + 1) / 512 * 512) as usize;
        nbd.expect(start + from as u64, &holds[from..from + (1 << 20)]);
        if round % 16 == 0 {
            nbd.flush().unwrap();
        }
    }
}

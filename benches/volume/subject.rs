//! Who is measured: servers on files of their own, and the bare file. Each file has been written once from end to end: extents that
//! were never written would cost the file system more than the write itself.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::bare::Bare;
use crate::client::Client;
use crate::common::chance::Chance;
use crate::common::daemon::Daemon;
use crate::common::{text, tool};
use crate::load::{Load, MIB, Order, SEQUENTIAL_WRITES};

/// The part of every volume and file that is used: all of it is in the cache.
pub const SPAN_BYTES: u64 = 256 * MIB;
/// Volumes and files.
pub const FILE_BYTES: u64 = 512 * MIB;
/// Holds many times what a row writes, so that nothing is destaged or evicted meanwhile (the counters in the report tell).
pub const CACHE_BYTES: u64 = 6 << 30;

/// How long another server may take to start.
const PATIENCE: Duration = Duration::from_secs(20);

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub struct Slice {
    pub seconds: f64,
    /// CPU time of the server, all its threads together.
    pub cpu_seconds: f64,
}

pub struct Subject {
    pub name: &'static str,
    access: Access,
    /// Where the next sequential slice begins, in requests.
    cursor: u64,
}

enum Access {
    Server { client: Client, process: Process },
    Bare(Bare),
}

enum Process {
    Ours(Daemon),
    Other(Other),
}

/// Somebody else's server, killed when it is not needed any more.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        // One that has ended already is gone all the same.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Subject {
    pub fn tidegate(folder: &Path) -> Subject {
        let dir = folder.join("volume");
        std::fs::create_dir(&dir).expect("a folder");
        solid(&dir.join("origin.img"), FILE_BYTES);
        solid(&dir.join("cache.img"), CACHE_BYTES);
        tool::tidegate(&["create", "--dir", text(&dir)]).succeeds();
        let daemon = Daemon::up(&dir);
        let client = Client::connect(&daemon.socket()).expect("a connection");
        Subject::server("tidegate", client, Process::Ours(daemon))
    }

    pub fn qemu_nbd(folder: &Path, name: &'static str) -> Subject {
        let options = ["--cache=none", "--aio=io_uring", "--format=raw", "--persistent", "--shared=4", "--socket"];
        Subject::other(folder, name, |file, socket| {
            let mut command = Command::new("qemu-nbd");
            command.args(options).arg(socket).arg(file);
            command
        })
    }

    pub fn nbdkit(folder: &Path) -> Subject {
        Subject::other(folder, "nbdkit file", |file, socket| {
            let mut command = Command::new("nbdkit");
            command.args(["--foreground", "--unix", text(socket), "file", text(file)]);
            command
        })
    }

    pub fn bare(folder: &Path) -> Subject {
        let path = folder.join("bare.img");
        solid(&path, FILE_BYTES);
        Subject { name: "bare file", access: Access::Bare(Bare::open(&path).expect("direct access to a file")), cursor: 0 }
    }

    fn server(name: &'static str, client: Client, process: Process) -> Subject {
        Subject { name, access: Access::Server { client, process }, cursor: 0 }
    }

    fn other(folder: &Path, name: &'static str, command: impl FnOnce(&Path, &Path) -> Command) -> Subject {
        let stem = name.replace(' ', "-");
        let (file, socket) = (folder.join(format!("{stem}.img")), folder.join(format!("{stem}.sock")));
        solid(&file, FILE_BYTES);
        let child = command(&file, &socket)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{name}: {error}; scripts/setup.sh installs it"));
        let process = Other(child);
        let started = Instant::now();
        let client = loop {
            match Client::connect(&socket) {
                Ok(client) => break client,
                Err(error) if started.elapsed() > PATIENCE => panic!("{name} does not answer: {error}"),
                Err(_) => std::thread::yield_now(),
            }
        };
        Subject::server(name, client, Process::Other(process))
    }

    /// Writes the whole span in order: every row starts from the same contents in the same places.
    pub fn refill(&mut self) {
        self.cursor = 0;
        self.run(&SEQUENTIAL_WRITES, SPAN_BYTES / SEQUENTIAL_WRITES.bytes, 0);
        self.cursor = 0;
    }

    /// Does `count` requests. Random places come from `seed`.
    pub fn run(&mut self, load: &Load, count: u64, seed: u64) -> Slice {
        let places = SPAN_BYTES / load.bytes;
        let first = self.cursor;
        self.cursor = (first + count) % places;
        let before = self.cpu_by_thread();
        let started = Instant::now();
        let result = match &mut self.access {
            Access::Bare(bare) => bare.run(load, count, first, places),
            Access::Server { client, .. } => {
                let (mut chance, mut next) = (Chance::new(seed), first);
                client.run(load, count, || match load.order {
                    Order::Random => chance.below(places),
                    Order::Sequential => {
                        next += 1;
                        (next - 1) % places
                    }
                })
            }
        };
        let seconds = started.elapsed().as_secs_f64();
        result.unwrap_or_else(|error| panic!("{}, {}: {error}", self.name, load.what));
        let after = self.cpu_by_thread();
        let spent: u64 = after.iter().map(|(thread, ns)| ns - before.get(thread).unwrap_or(&0)).sum();
        Slice { seconds, cpu_seconds: spent as f64 / 1e9 }
    }

    /// Our own counters; of other subjects none.
    pub fn status(&self) -> Option<Value> {
        match &self.access {
            Access::Server { process: Process::Ours(daemon), .. } => Some(daemon.status()),
            Access::Server { process: Process::Other(_), .. } | Access::Bare(_) => None,
        }
    }

    /// Nanoseconds on a CPU of each of the server's threads, the kernel's workers for it among them.
    fn cpu_by_thread(&self) -> HashMap<PathBuf, u64> {
        let pid = match &self.access {
            Access::Server { process: Process::Ours(daemon), .. } => daemon.pid(),
            Access::Server { process: Process::Other(other), .. } => other.0.id(),
            Access::Bare(_) => return HashMap::new(),
        };
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("a running server");
        let spent = |folder: &Path| {
            let line = std::fs::read_to_string(folder.join("schedstat")).ok()?; // a thread may just have ended
            line.split(' ').next()?.parse().ok()
        };
        threads.flatten().filter_map(|thread| Some((thread.path(), spent(&thread.path())?))).collect()
    }
}

fn solid(path: &Path, bytes: u64) {
    let line = format!("dd if=/dev/zero of='{}' bs=1M count={} oflag=direct conv=fsync status=none", text(path), bytes / MIB);
    tool::shell(&line).succeeds();
}

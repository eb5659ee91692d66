//! Who is measured: servers on files of their own, and the bare file.

use std::collections::HashMap;
use std::ops::Add;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::bare::Bare;
use crate::client::Client;
use crate::common::daemon::Daemon;
use crate::common::{text, tool};
use crate::load::{Load, MIB};

/// How long another server may take to start.
const PATIENCE: Duration = Duration::from_secs(20);

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub struct Slice {
    pub seconds: f64,
    /// CPU time of the server, all its threads together.
    pub cpu_seconds: f64,
}

impl Add for Slice {
    type Output = Slice;

    fn add(self, other: Slice) -> Slice {
        Slice { seconds: self.seconds + other.seconds, cpu_seconds: self.cpu_seconds + other.cpu_seconds }
    }
}

pub struct Subject {
    pub name: &'static str,
    access: Access,
}

enum Access {
    Server {
        client: Client,
        process: Process,
    },
    /// Somebody in this process.
    Thread(Client),
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
    /// A volume in `dir`, which holds its cache (cache.img, as large as it is), in front of `origin`.
    pub fn tidegate(dir: &Path, origin: &Path, config: &str) -> Subject {
        let devices = ["--dir", text(dir), "--origin", text(origin)];
        tool::tidegate(&[&["create"], &devices[..]].concat()).succeeds();
        std::fs::write(dir.join("config.toml"), config).expect("a configuration");
        let daemon = Daemon::start(dir, &[&["up"], &devices[..]].concat());
        let client = Client::connect(&daemon.socket()).expect("a connection");
        Subject { name: "tidegate", access: Access::Server { client, process: Process::Ours(daemon) } }
    }

    pub fn called(self, name: &'static str) -> Subject {
        Subject { name, ..self }
    }

    /// Its socket is made in `folder`.
    pub fn qemu_nbd(name: &'static str, folder: &Path, file: &Path) -> Subject {
        let options = ["--cache=none", "--aio=io_uring", "--format=raw", "--persistent", "--shared=4", "--socket"];
        Subject::other(name, folder, |socket| {
            let mut command = Command::new("qemu-nbd");
            command.args(options).arg(socket).arg(file);
            command
        })
    }

    /// As above, through the kernel's page cache.
    pub fn qemu_nbd_cached(folder: &Path, file: &Path) -> Subject {
        let options = ["--cache=writeback", "--aio=threads", "--format=raw", "--persistent", "--shared=4", "--socket"];
        Subject::other("qemu-nbd page cache", folder, |socket| {
            let mut command = Command::new("qemu-nbd");
            command.args(options).arg(socket).arg(file);
            command
        })
    }

    /// Nothing behind it: what it reads is zeros. Its socket is made in `folder`.
    pub fn qemu_null(folder: &Path, bytes: u64) -> Subject {
        Subject::other("qemu-nbd null", folder, |socket| {
            let mut command = Command::new("qemu-nbd");
            command.args(["--persistent", "--shared=4", "--socket"]).arg(socket).arg("--image-opts");
            command.arg(format!("driver=null-co,size={bytes},read-zeroes=on"));
            command
        })
        .without_contents()
    }

    /// The same from nbdkit.
    pub fn nbdkit_null(folder: &Path, bytes: u64) -> Subject {
        Subject::other("nbdkit null", folder, |socket| {
            let mut command = Command::new("nbdkit");
            command.args(["--foreground", "--unix", text(socket), "null"]).arg(format!("size={bytes}"));
            command
        })
        .without_contents()
    }

    /// It keeps nothing: its reads are not looked at.
    fn without_contents(mut self) -> Subject {
        if let Access::Server { client, .. } = &mut self.access {
            client.looks = false;
        }
        self
    }

    /// Its socket is made in `folder`.
    pub fn nbdkit(folder: &Path, file: &Path) -> Subject {
        Subject::other("nbdkit file", folder, |socket| {
            let mut command = Command::new("nbdkit");
            command.args(["--foreground", "--unix", text(socket), "file", text(file)]);
            command
        })
    }

    /// A server on a thread of this process, which a client has connected to.
    pub fn thread(name: &'static str, client: Client) -> Subject {
        Subject { name, access: Access::Thread(client) }
    }

    pub fn bare(file: &Path) -> Subject {
        Subject { name: "bare file", access: Access::Bare(Bare::open(file).expect("direct access to a file")) }
    }

    fn other(name: &'static str, folder: &Path, command: impl FnOnce(&Path) -> Command) -> Subject {
        let socket = folder.join(format!("{}.sock", name.replace(' ', "-")));
        let child = command(&socket)
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
        Subject { name, access: Access::Server { client, process: Process::Other(process) } }
    }

    /// Does a request at each of the places, in units of the load's length.
    pub fn run(&mut self, load: &Load, places: &[u64]) -> Slice {
        let before = self.cpu_by_thread();
        let started = Instant::now();
        let result = match &mut self.access {
            Access::Bare(bare) => bare.run(load, places),
            Access::Server { client, .. } | Access::Thread(client) => client.run(load, places),
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
            Access::Server { process: Process::Other(_), .. } | Access::Thread(_) | Access::Bare(_) => None,
        }
    }

    /// Nanoseconds on a CPU of each of the server's threads, the kernel's workers for it among them.
    fn cpu_by_thread(&self) -> HashMap<PathBuf, u64> {
        let pid = match &self.access {
            Access::Server { process: Process::Ours(daemon), .. } => daemon.pid(),
            Access::Server { process: Process::Other(other), .. } => other.0.id(),
            Access::Thread(_) | Access::Bare(_) => return HashMap::new(),
        };
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("a running server");
        let spent = |folder: &Path| {
            let line = std::fs::read_to_string(folder.join("schedstat")).ok()?; // a thread may just have ended
            line.split(' ').next()?.parse().ok()
        };
        threads.flatten().filter_map(|thread| Some((thread.path(), spent(&thread.path())?))).collect()
    }
}

/// What the counters say more than before.
pub fn difference(before: &Value, after: &Value) -> Value {
    let after = after.as_object().expect("an object");
    after.iter().map(|(key, value)| (key.clone(), json!(value.as_u64().unwrap_or(0) - before[key].as_u64().unwrap_or(0)))).collect()
}

/// A file that has been written once from end to end: extents that were never written would cost the file system more than the write itself.
pub fn solid(path: &Path, bytes: u64) {
    let line = format!("dd if=/dev/zero of='{}' bs=1M count={} oflag=direct conv=fsync status=none", text(path), bytes / MIB);
    tool::shell(&line).succeeds();
}

/// The first line of what a program says of itself.
pub fn version(program: &str) -> Option<String> {
    let said = Command::new(program).arg("--version").output().ok()?.stdout;
    Some(String::from_utf8_lossy(&said).lines().next()?.to_owned())
}

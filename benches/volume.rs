//! Speed of a volume beside other servers on files of the same disk: 4 KiB random reads (cache hits) and writes at depth 1 and 32, and
//! 1 MiB sequential ones, through the same client; sequential ones also beside fio on a bare file. Writes end in a flush.
//! Prints a table and writes target/bench/volume.json.
//!
//! Timings swing on a busy machine, so only ratios within one round count: every round measures all subjects, in an order that turns
//! around from round to round (A B C, C B A). A second qemu-nbd is measured too: beside the first it shows how much to believe.

#[allow(dead_code)] // the tests use more of it
#[path = "../tests/common/mod.rs"]
mod common;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use common::chance::Chance;
use common::daemon::Daemon;
use common::nbd::{self, Client};
use common::{text, tool};

/// Part of the volume that is measured: fits into the cache many times, and is all in it.
const SPAN: u64 = 256 << 20;
const FILE_MIB: u64 = 512;
/// The cache holds everything that a run writes: no destaging disturbs the figures.
const CACHE_MIB: u64 = 6 << 10;
const ROUNDS: usize = 9;
/// Subjects, in the order of their columns.
const OURS: usize = 0;
const QEMU: usize = 1;
const QEMU_AGAIN: usize = 2;
const NBDKIT: usize = 3;
/// fio on a file, without a server; sequential plans only.
const BARE: usize = 4;

/// One thing that is measured.
struct Plan {
    what: &'static str,
    command: nbd::Command,
    bytes: u32,
    depth: usize,
    random: bool,
    count: u64,
}

/// Sequential ones first: what was written at random lies scattered in a log, and is read so.
const PLANS: [Plan; 6] = [
    Plan { what: "1 MiB sequential reads", command: nbd::Command::Read, bytes: 1 << 20, depth: 8, random: false, count: 256 },
    Plan { what: "1 MiB sequential writes", command: nbd::Command::Write, bytes: 1 << 20, depth: 8, random: false, count: 256 },
    Plan { what: "4 KiB random reads, depth 1", command: nbd::Command::Read, bytes: 4096, depth: 1, random: true, count: 2_000 },
    Plan { what: "4 KiB random reads, depth 32", command: nbd::Command::Read, bytes: 4096, depth: 32, random: true, count: 20_000 },
    Plan { what: "4 KiB random writes, depth 1", command: nbd::Command::Write, bytes: 4096, depth: 1, random: true, count: 2_000 },
    Plan { what: "4 KiB random writes, depth 32", command: nbd::Command::Write, bytes: 4096, depth: 32, random: true, count: 16_000 },
];

/// A server under measurement, and its connection.
struct Subject {
    client: Client,
    _ours: Option<Daemon>,
    _other: Option<Process>,
}

/// Somebody else's server, killed when it is not needed any more.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // One that has ended already is gone all the same.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn main() {
    let folder = tempfile::Builder::new().prefix("bench").tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let mut subjects = vec![ours(folder.path())];
    for name in ["qemu-nbd", "qemu-nbd again"] {
        subjects.push(other(
            folder.path(),
            name,
            &["qemu-nbd", "--cache=none", "--aio=io_uring", "--format=raw", "--persistent", "--shared=4", "--socket"],
        ));
    }
    subjects.push(other(folder.path(), "nbdkit file", &["nbdkit", "--foreground", "file", "--unix"]));
    subjects.iter_mut().for_each(|subject| fill(&mut subject.client));

    let bare = folder.path().join("bare.img");
    solid(&bare, FILE_MIB);
    println!(
        "{:<30}{:>11}{:>11}{:>11}{:>11}{:>25}{:>13}{:>18}",
        "operations per second", "tidegate", "qemu-nbd", "nbdkit", "bare file", "tidegate/qemu-nbd", "qemu/qemu", "tidegate/bare"
    );
    let mut rows = Vec::new();
    for (number, plan) in PLANS.iter().enumerate() {
        let mut seconds = vec![Vec::new(); BARE + 1];
        for round in 0..=ROUNDS {
            let mut order: Vec<usize> = (OURS..=BARE).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for subject in order {
                let took = match subject {
                    BARE if plan.random => continue,
                    BARE => fio(&bare, plan),
                    _ => measure(&mut subjects[subject].client, plan, (number * 100 + round) as u64),
                };
                if round > 0 {
                    seconds[subject].push(took); // the first round only warms up
                }
            }
        }
        rows.push(row(plan, &seconds));
    }
    write_report(&rows);
}

/// A file of which every block has been written, as on a partition: extents that were never written cost the file system more than
/// the first write itself.
fn solid(path: &Path, mebibytes: u64) {
    let line = format!("dd if=/dev/zero of='{}' bs=1M count={mebibytes} oflag=direct conv=fsync status=none", text(path));
    tool::shell(&line).succeeds();
}

fn ours(folder: &Path) -> Subject {
    let dir = folder.join("volume");
    std::fs::create_dir(&dir).unwrap();
    solid(&dir.join("origin.img"), FILE_MIB);
    solid(&dir.join("cache.img"), CACHE_MIB);
    tool::tidegate(&["create", "--dir", text(&dir)]).succeeds();
    let daemon = Daemon::up(&dir);
    Subject { client: daemon.connect(), _ours: Some(daemon), _other: None }
}

fn other(folder: &Path, name: &'static str, line: &[&str]) -> Subject {
    let stem = name.replace(' ', "-");
    let (file, socket) = (folder.join(format!("{stem}.img")), folder.join(format!("{stem}.sock")));
    solid(&file, FILE_MIB);
    let mut command = Command::new(line[0]);
    command.args(&line[1..]).arg(&socket);
    command.arg(if name == "nbdkit file" { PathBuf::from(format!("file={}", text(&file))) } else { file });
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("{name}: {error}; scripts/setup.sh installs it"));
    let process = Process(child);
    let started = Instant::now();
    let client = loop {
        match Client::connect(&socket) {
            Ok(client) => break client,
            Err(error) if started.elapsed() > Duration::from_secs(20) => panic!("{name} does not answer: {error}"),
            Err(_) => std::thread::yield_now(),
        }
    };
    Subject { client, _ours: None, _other: Some(process) }
}

/// Writes the whole span, so that every subject has the same contents, and ours has them in its cache.
fn fill(client: &mut Client) {
    let data = Chance::new(1).bytes(1 << 20);
    (0..SPAN >> 20).for_each(|number| client.write(number << 20, &data).expect("filled"));
    client.flush().expect("flushed");
}

/// Seconds that a plan takes.
fn measure(client: &mut Client, plan: &Plan, seed: u64) -> f64 {
    let mut chance = Chance::new(seed);
    let data = Chance::new(seed).bytes(plan.bytes as usize);
    let writes = plan.command == nbd::Command::Write;
    let pieces = SPAN / u64::from(plan.bytes);
    let (mut sent, mut received) = (0, 0);
    let started = Instant::now();
    while received < plan.count {
        while client.in_flight() < plan.depth && sent < plan.count {
            let piece = if plan.random { chance.below(pieces) } else { sent % pieces };
            client.queue(plan.command, piece * u64::from(plan.bytes), plan.bytes, if writes { &data } else { &[] });
            sent += 1;
        }
        client.push().expect("sent");
        loop {
            let reply = client.receive().expect("a reply");
            assert_eq!(reply.error, 0, "{}", plan.what);
            received += 1;
            if !client.has_received() {
                break;
            }
        }
    }
    if writes {
        client.flush().expect("flushed");
    }
    started.elapsed().as_secs_f64()
}

/// Lower quartile, median, upper quartile.
fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [values[values.len() / 4], values[values.len() / 2], values[values.len() * 3 / 4]]
}

/// Of each round, how many times as fast `subject` was as `baseline`.
fn ratios(seconds: &[Vec<f64>], subject: usize, baseline: usize) -> [f64; 3] {
    quartiles(seconds[subject].iter().zip(&seconds[baseline]).map(|(subject, baseline)| baseline / subject).collect())
}

/// Seconds that fio takes for the plan on a file, past the page cache.
fn fio(file: &Path, plan: &Plan) -> f64 {
    let rw = if plan.command == nbd::Command::Write { "write" } else { "read" };
    let line = format!(
        "fio --name=bare --filename='{}' --ioengine=io_uring --direct=1 --rw={rw} --bs={} --iodepth={} --size={} --end_fsync=1 --output-format=json",
        text(file),
        plan.bytes,
        plan.depth,
        plan.count * u64::from(plan.bytes),
    );
    let report: Value = serde_json::from_str(&tool::shell(&line).succeeds()).expect("fio's JSON");
    // The job's own clock: without the start of the program.
    let milliseconds = report.pointer("/jobs/0/job_runtime").and_then(Value::as_f64).expect("fio's report");
    milliseconds / 1e3
}

fn row(plan: &Plan, seconds: &[Vec<f64>]) -> Value {
    let rate = |subject: usize| seconds[subject].first().map(|_| plan.count as f64 / quartiles(seconds[subject].clone())[1]);
    let (ratio, control) = (ratios(seconds, OURS, QEMU), ratios(seconds, QEMU_AGAIN, QEMU));
    let bare = (!plan.random).then(|| ratios(seconds, OURS, BARE));
    let shown = |rate: Option<f64>| rate.map_or("-".to_owned(), |rate| format!("{rate:.0}"));
    let range = |ratio: &[f64; 3]| format!("{:.2} ({:.2} to {:.2})", ratio[1], ratio[0], ratio[2]);
    let missed = ratio[1] < 1.0 || bare.is_some_and(|bare| bare[1] < 0.95);
    println!(
        "{:<30}{:>11}{:>11}{:>11}{:>11}{:>25}{:>13.2}{:>18}{}",
        plan.what,
        shown(rate(OURS)),
        shown(rate(QEMU)),
        shown(rate(NBDKIT)),
        shown(rate(BARE)),
        range(&ratio),
        control[1],
        bare.map_or("-".to_owned(), |bare| format!("{:.2}", bare[1])),
        if missed { "  missed" } else { "" },
    );
    let median = |ratio: &[f64; 3]| json!({ "median": ratio[1], "quartiles": [ratio[0], ratio[2]] });
    json!({
        "what": plan.what, "count": plan.count, "bytes": plan.bytes, "depth": plan.depth, "rounds": ROUNDS,
        "per_second": { "tidegate": rate(OURS), "qemu_nbd": rate(QEMU), "nbdkit": rate(NBDKIT), "bare_file": rate(BARE) },
        "tidegate_over_qemu_nbd": median(&ratio), "qemu_nbd_over_itself": median(&control), "tidegate_over_bare_file": bare.as_ref().map(median),
        "missed": missed,
    })
}

fn write_report(rows: &[Value]) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("bench");
    std::fs::create_dir_all(&folder).expect("a folder for the report");
    let path = folder.join("volume.json");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let report = json!({ "cores": cores, "kernel": kernel.trim(), "rows": rows });
    std::fs::write(&path, format!("{report:#}\n")).expect("a report");
    println!("{}", path.display());
}

//! Hits in memory over NBD: 4 KiB random reads and writes of what is in memory, at depth 1 and 32, beside other servers that have nothing to
//! do (null exports) or a file in the kernel's page cache. The same client for all: as many requests in one send as the depth allows.
//! Prints a table and writes target/bench/nbd.json. `BENCH_ROUNDS` changes how long it takes.
//!
//! What counts are ratios inside one round, and of those the median: a round measures everybody twice, in an order that turns around.

#[allow(dead_code)] // the volume bench measures the bare file with it
#[path = "volume/bare.rs"]
mod bare;
#[path = "volume/client.rs"]
mod client;
#[allow(dead_code)] // the tests use more of it
#[path = "../tests/common/mod.rs"]
mod common;
#[allow(dead_code)] // the volume bench has more loads
#[path = "volume/load.rs"]
mod load;
#[path = "shared/quartiles.rs"]
mod quartiles;
#[path = "shared/report_file.rs"]
mod report_file;
#[allow(dead_code)] // the volume bench has more subjects
#[path = "volume/subject.rs"]
mod subject;

use std::path::Path;

use serde_json::{Value, json};

use common::chance::Chance;
use load::{BLOCK_BYTES, Load, MIB, Order, SEQUENTIAL_WRITES, Way};
use quartiles::Quartiles;
use subject::{Slice, Subject, solid, version};

/// The part that is read and written: all of it is in memory.
const SPAN_BYTES: u64 = 64 * MIB;
const FILE_BYTES: u64 = 128 * MIB;
const CACHE_BYTES: u64 = 1 << 30;
const CONFIG: &str = "[memory]\nram = \"192MiB\"\n";
const NO_POLL: &str = "[limits]\npoll = \"0s\"\n";
const FRONT_THREADS: &str = "[limits]\nfront_threads = 2\n";
/// Rounds of a load unless `BENCH_ROUNDS` says otherwise, and what a slice should take a server.
const ROUNDS: usize = 30;
const SLICE_SECONDS: f64 = 0.1;

const LOADS: [Load; 4] = [load(Way::Read, 1), load(Way::Read, 32), load(Way::Write, 1), load(Way::Write, 32)];

const fn load(way: Way, depth: u64) -> Load {
    Load { what: "4 KiB", way, order: Order::Random, bytes: BLOCK_BYTES, depth }
}

/// Places in the list of subjects.
const OURS: usize = 0;
const NULLS: [usize; 2] = [1, 2];
const NBDKIT_FILE: usize = 3;
/// Ours, sleeping without a look.
const SLEEPING: usize = 5;
/// Ours, with threads for clients. One connection shows what the step to the volume costs, and what its absence saves; not how hits scale.
const THREADED: usize = 6;
const COUNT: usize = 7;

/// A ratio with its goal.
struct Goal {
    name: &'static str,
    ratio: Quartiles,
    floor: f64,
    /// Less is better.
    is_cost: bool,
}

fn main() {
    if !std::env::args().any(|argument| argument == "--bench") {
        return println!("this measures for minutes: `make bench-nbd` runs it");
    }
    let rounds = std::env::var("BENCH_ROUNDS").map_or(ROUNDS, |count| count.parse().expect("BENCH_ROUNDS is a count"));
    assert!(rounds > 0, "BENCH_ROUNDS is a count of at least one");
    let folder = tempfile::Builder::new().prefix("bench").tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let mut subjects = subjects(folder.path());
    subjects.iter_mut().for_each(warm);

    println!("{:<18}{:<22}{:>12}  {:<24}{:<24}", "", "", "requests/s", "µs a request", "server CPU µs a request");
    let (mut goals, mut rows) = (Vec::new(), Vec::new());
    for load in &LOADS {
        let (slices, count) = measure(&mut subjects, load, rounds);
        let what = format!("{} depth {}", if load.way == Way::Read { "reads" } else { "writes" }, load.depth);
        for (number, (subject, slices)) in subjects.iter().zip(&slices).enumerate() {
            let [seconds, cpu] = [wall, cpu].map(|of| Quartiles::of(slices.iter().map(of).collect()).times(1e6 / (2 * count) as f64));
            let first = if number == 0 { what.as_str() } else { "" };
            let rate = 1e6 / seconds.median();
            println!("{first:<18}{:<22}{rate:>12.0}  {:<24}{:<24}", subject.name, seconds.shown([2, 2]), cpu.shown([2, 2]));
            rows.push(json!({ "load": what, "subject": subject.name, "us": seconds.json(), "cpu_us": cpu.json() }));
        }
        goals.extend(goals_of(load, &slices));
    }
    println!();
    for goal in &goals {
        let is_met = if goal.is_cost { goal.ratio.median() <= goal.floor } else { goal.ratio.median() >= goal.floor };
        let (bound, verdict) = (if goal.is_cost { "at most" } else { "at least" }, if is_met { "met" } else { "missed" });
        println!("{:<38}{:<24}{bound:<9}{:<6}{verdict}", goal.name, goal.ratio.shown([3, 2]), goal.floor);
    }
    let status = subjects[OURS].status().expect("tidegate has a status");
    println!("tidegate: {} of {} blocks read from memory", hits(&status), hits(&status) + misses(&status));
    let goals: Vec<Value> = (goals.iter())
        .map(|goal| json!({ "name": goal.name, "ratio": goal.ratio.json(), "floor": goal.floor, "is_cost": goal.is_cost }))
        .collect();
    report_file::write(
        "nbd",
        json!({ "goals": goals, "rows": rows, "memory": status["memory"], "qemu_nbd": version("qemu-nbd"), "nbdkit": version("nbdkit") }),
    );
}

fn wall(slice: &Slice) -> f64 {
    slice.seconds
}

fn cpu(slice: &Slice) -> f64 {
    slice.cpu_seconds
}

fn hits(status: &Value) -> u64 {
    status["memory"]["hit_blocks"].as_u64().unwrap_or(0)
}

fn misses(status: &Value) -> u64 {
    status["memory"]["miss_blocks"].as_u64().unwrap_or(0)
}

fn subjects(folder: &Path) -> [Subject; COUNT] {
    let file = |name: &str| {
        let path = folder.join(name).with_extension("img");
        solid(&path, FILE_BYTES);
        path
    };
    let [sleeping, threaded] = ["sleeping", "threaded"].map(|name| folder.join(name));
    for dir in [&sleeping, &threaded] {
        std::fs::create_dir(dir).expect("a folder");
    }
    for dir in [folder, &sleeping, &threaded] {
        solid(&dir.join("cache.img"), CACHE_BYTES);
    }
    [
        Subject::tidegate(folder, &file("origin"), CONFIG),
        Subject::nbdkit_null(folder, FILE_BYTES),
        Subject::qemu_null(folder, FILE_BYTES),
        Subject::nbdkit(folder, &file("nbdkit")),
        Subject::qemu_nbd_cached(folder, &file("qemu-nbd")),
        Subject::tidegate(&sleeping, &file("sleeping-origin"), &format!("{CONFIG}{NO_POLL}")).called("tidegate, poll = 0s"),
        Subject::tidegate(&threaded, &file("threaded-origin"), &format!("{CONFIG}{FRONT_THREADS}")).called("tidegate, front thread"),
    ]
}

/// Writes the span in order, and reads it block by block.
fn warm(subject: &mut Subject) {
    subject.run(&SEQUENTIAL_WRITES, &(0..SPAN_BYTES / MIB).collect::<Vec<_>>());
    let read = Load { order: Order::Sequential, ..load(Way::Read, 32) };
    subject.run(&read, &(0..SPAN_BYTES / BLOCK_BYTES).collect::<Vec<_>>());
}

/// All rounds of a load: for each subject what both of its slices took together, and the requests of one slice.
fn measure(subjects: &mut [Subject; COUNT], load: &Load, rounds: usize) -> ([Vec<Slice>; COUNT], u64) {
    let mut count = load.depth * 4;
    for _ in 0..3 {
        let seconds = subjects[NBDKIT_FILE].run(load, &places(count, 0)).seconds;
        count = ((count as f64 * SLICE_SECONDS / seconds) as u64).clamp(load.depth * 4, count * 30);
    }
    let mut slices: [Vec<Slice>; COUNT] = Default::default();
    for round in 0..rounds {
        let mut order: Vec<usize> = (0..COUNT).collect();
        order.rotate_left(round % COUNT);
        let mut run = |subject: usize, seed: usize| subjects[subject].run(load, &places(count, seed as u64));
        let there: Vec<Slice> = order.iter().map(|&subject| run(subject, 2 * round)).collect();
        let back: Vec<Slice> = order.iter().rev().map(|&subject| run(subject, 2 * round + 1)).collect();
        for (place, &subject) in order.iter().enumerate() {
            slices[subject].push(there[place] + back[COUNT - 1 - place]);
        }
    }
    (slices, count)
}

fn places(count: u64, seed: u64) -> Vec<u64> {
    let mut chance = Chance::new(seed);
    (0..count).map(|_| chance.below(SPAN_BYTES / BLOCK_BYTES)).collect()
}

/// Of each round: one subject's over the least of others.
fn over_best(slices: &[Vec<Slice>; COUNT], ours: usize, others: &[usize], of: impl Fn(&Slice) -> f64) -> Quartiles {
    let least = |round: usize| others.iter().map(|&other| of(&slices[other][round])).fold(f64::INFINITY, f64::min);
    Quartiles::of((0..slices[ours].len()).map(|round| of(&slices[ours][round]) / least(round)).collect())
}

fn goals_of(load: &Load, slices: &[Vec<Slice>; COUNT]) -> Vec<Goal> {
    let others: Vec<usize> = (OURS + 1..SLEEPING).collect();
    let cost = |name, ratio, floor| Goal { name, ratio, floor, is_cost: true };
    let beside_file = |name, ours: usize| {
        let ratios = (0..slices[ours].len()).map(|round| slices[NBDKIT_FILE][round].seconds / slices[ours][round].seconds);
        Goal { name, ratio: Quartiles::of(ratios.collect()), floor: 1.0, is_cost: false }
    };
    match (load.way, load.depth) {
        (Way::Read, 1) => vec![
            cost("P6-latency-vs-best", over_best(slices, OURS, &others, wall), 1.15),
            cost("P6-latency-vs-best, poll = 0s", over_best(slices, SLEEPING, &others, wall), 1.15),
            cost("P6-latency-vs-best, front thread", over_best(slices, THREADED, &others, wall), 1.15),
        ],
        (Way::Read, _) => vec![
            cost("P6-cpu-vs-null", over_best(slices, OURS, &NULLS, cpu), 0.40),
            cost("P6-cpu-vs-null, poll = 0s", over_best(slices, SLEEPING, &NULLS, cpu), 0.40),
            cost("P6-cpu-vs-null, front thread", over_best(slices, THREADED, &NULLS, cpu), 0.40),
            beside_file("reads-vs-nbdkit-file", OURS),
            beside_file("reads-vs-nbdkit-file, front thread", THREADED),
        ],
        (Way::Write, 1) => Vec::new(),
        (Way::Write, _) => vec![beside_file("writes-vs-nbdkit-file", OURS), beside_file("writes-vs-nbdkit-file, front thread", THREADED)],
    }
}

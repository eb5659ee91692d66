//! Cold reads: what a volume adds to its origin where the cache holds nothing of what is read. The origin is a model of a disk (nbdkit's
//! rate and delay filters as a file); beside tidegate before it stand the same file read directly, which is what counts, and qemu-nbd before
//! it, which tells what of the difference is NBD. 1 MiB sequential reads at depth 1 and 4, 4 KiB random reads at depth 1 and 32.
//! Prints a table and writes target/bench/cold.json. `BENCH_ROUNDS` changes how long it takes, a word on the command line picks rows.
//!
//! Only ratios inside one round count. A round measures every subject twice (A B C A B C, the next one B C A B C A: a disk has always rested as
//! long) at places that nobody has read before: the counters must show not one hit. Each subject has a disk of its own, and all of them
//! read the same places. What is told is the median of the rounds' ratios and their quartiles; the second slice of the bare disk beside the
//! first says how much to believe. A row begins with an empty cache. What it reads at random fits; what it reads in sequence fills the
//! cache half-way through.

#[path = "volume/bare.rs"]
mod bare;
#[path = "volume/client.rs"]
mod client;
#[allow(dead_code)] // the tests use more of it
#[path = "../tests/common/mod.rs"]
mod common;
#[path = "cold/disk.rs"]
mod disk;
#[allow(dead_code)] // the other bench has loads of its own
#[path = "volume/load.rs"]
mod load;
#[allow(dead_code)] // other benches use more of it
#[path = "shared/quartiles.rs"]
mod quartiles;
#[path = "cold/report.rs"]
mod report;
#[path = "shared/report_file.rs"]
mod report_file;
#[allow(dead_code)] // the other bench has more subjects
#[path = "volume/subject.rs"]
mod subject;

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use disk::{AHEAD_MS, BYTES, BYTES_PER_SECOND, Disk, Seek};
use load::{BLOCK_BYTES, Load, MIB, Order, Way};
use report::{BAND, Round, Row};
use subject::{Slice, Subject, difference, solid, version};

const CACHE_BYTES: u64 = 1 << 30;
/// Rounds of a row unless `BENCH_ROUNDS` says otherwise.
const ROUNDS: usize = 60;
/// A row ends after this long, with the rounds that it has.
const ROW_PATIENCE: Duration = Duration::from_secs(75);
/// What a slice takes the bare disk, about, where that is enough.
const SLICE: Duration = Duration::from_millis(100);
/// Requests of a slice for each that is in flight, at least.
const TIMES_DEPTH: u64 = 2;

/// Places in a list of subjects.
const OURS: usize = 0;
const QEMU: usize = 1;
const BARE: usize = 2;

struct ColdLoad {
    load: Load,
    seek: Seek,
}

const COLD_LOADS: [ColdLoad; 4] = [
    sequential("1 MiB sequential reads, depth 1", 1),
    sequential("1 MiB sequential reads, depth 4", 4),
    random("4 KiB random reads, depth 1", 1),
    random("4 KiB random reads, depth 32", 32),
];

const fn sequential(what: &'static str, depth: u64) -> ColdLoad {
    ColdLoad { load: Load { what, way: Way::Read, order: Order::Sequential, bytes: MIB, depth }, seek: Seek::None }
}

const fn random(what: &'static str, depth: u64) -> ColdLoad {
    ColdLoad { load: Load { what, way: Way::Read, order: Order::Random, bytes: BLOCK_BYTES, depth }, seek: Seek::Each(6) }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if !arguments.iter().any(|argument| argument == "--bench") {
        return println!("this measures for minutes: `make bench-cold` runs it");
    }
    let wanted = |load: &Load| arguments.iter().filter(|word| !word.starts_with('-')).all(|word| load.what.contains(word.as_str()));
    let rounds = std::env::var("BENCH_ROUNDS").map_or(ROUNDS, |count| count.parse().expect("BENCH_ROUNDS is a count"));
    assert!(rounds > 0, "BENCH_ROUNDS is a count of at least one");

    Row::print_heading();
    let (mut rows, mut is_void) = (Vec::new(), false);
    for cold in COLD_LOADS.iter().filter(|cold| wanted(&cold.load)) {
        let row = measure(cold, rounds);
        row.print();
        is_void |= row.is_void();
        rows.push(row.json());
    }
    if is_void {
        println!("void rows: the bare disk beside itself is further from 1 than {BAND}; try again when the machine is quieter");
    }
    report_file::write(
        "cold",
        json!({
            "qemu_nbd": version("qemu-nbd"), "nbdkit": version("nbdkit"), "cache_mib": CACHE_BYTES / MIB,
            "disk": { "bytes_per_second": BYTES_PER_SECOND, "ahead_ms": AHEAD_MS, "mib": BYTES / MIB },
            "band": BAND, "rows": rows,
        }),
    );
}

/// All rounds of one load, on disks of its own.
fn measure(cold: &ColdLoad, rounds: usize) -> Row<'_> {
    let folder = common::folder();
    solid(&folder.path().join("cache.img"), CACHE_BYTES);
    let disks = [cold.seek; 3].map(Disk::new);
    let files = disks.each_ref().map(Disk::file);
    let mut subjects = [
        Subject::tidegate(folder.path(), &files[OURS], ""),
        Subject::qemu_nbd("qemu-nbd", folder.path(), &files[QEMU]),
        Subject::bare(&files[BARE]),
    ];
    let mut slices = Slices { load: &cold.load, next: 0 };
    let count = requests_of_a_slice(&mut subjects[BARE], &mut slices);
    // Whoever has never been asked may be slow once.
    let warm_up = slices.next(cold.load.depth);
    for subject in &mut subjects {
        subject.run(&cold.load, &warm_up);
    }
    let before = counters(&subjects[OURS]);
    let (started, mut done) = (Instant::now(), Vec::new());
    for round in 0..rounds {
        done.push(measure_round(&mut subjects, &mut slices, count, round));
        if started.elapsed() > ROW_PATIENCE {
            break;
        }
    }
    let counted = difference(&before, &counters(&subjects[OURS]));
    assert_eq!(counted["hit_blocks"], 0, "{}: not cold: {counted}", cold.load.what);
    Row { cold, count, rounds: done, counted }
}

fn measure_round(subjects: &mut [Subject; 3], slices: &mut Slices, count: u64, round: usize) -> Round {
    let mut order = [OURS, QEMU, BARE];
    order.rotate_left(round % 3);
    let mut halves = [[None; 2]; 3];
    for half in [0, 1] {
        let places = slices.next(count);
        for &subject in &order {
            halves[subject][half] = Some(subjects[subject].run(slices.load, &places));
        }
    }
    let [ours, qemu, bare] = halves.map(|halves: [Option<Slice>; 2]| halves.map(|half| half.expect("everybody took part")));
    Round { ours, qemu, bare }
}

/// So many that a slice takes the bare disk about as long as it should.
fn requests_of_a_slice(bare: &mut Subject, slices: &mut Slices) -> u64 {
    let least = slices.load.depth * TIMES_DEPTH;
    let seconds = bare.run(slices.load, &slices.next(least)).seconds;
    least.max((least as f64 * SLICE.as_secs_f64() / seconds) as u64)
}

/// Where the requests of slice after slice go: never twice to the same place.
struct Slices<'a> {
    load: &'a Load,
    next: u64,
}

impl Slices<'_> {
    fn next(&mut self, count: u64) -> Vec<u64> {
        let numbers = self.next..self.next + count;
        self.next = numbers.end;
        assert!(self.next * self.load.bytes <= BYTES, "the disk has been read from end to end");
        match self.load.order {
            Order::Sequential => numbers.collect(),
            Order::Random => numbers.map(scattered).collect(),
        }
    }
}

/// A number below [`BLOCKS`] for each number below it, in no order. Each step can be undone, so none comes twice.
fn scattered(number: u64) -> u64 {
    let mix = |number: u64| (number ^ (number >> (BLOCKS.ilog2() / 2))).wrapping_mul(0x9e37_79b9_7f4a_7c15) % BLOCKS;
    mix(mix(number))
}

/// A power of two.
const BLOCKS: u64 = BYTES / BLOCK_BYTES;
const _: () = assert!(BLOCKS.is_power_of_two());

/// What the row depends on: not one hit; and what became of what was read.
fn counters(ours: &Subject) -> Value {
    let status = ours.status().expect("tidegate has a status");
    let value = |pointer: &str| status.pointer(pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("{pointer} in the status"));
    json!({
        "hit_blocks": value("/hits/blocks"), "miss_blocks": value("/misses/blocks"), "data_bytes": value("/cache/data_bytes"),
        "metadata_bytes": value("/cache/metadata_bytes"), "cache_flushes": value("/cache/flushes"),
    })
}

//! Speed of a volume beside other servers on files of the same disk, through the same client: 4 KiB random reads (cache hits) and
//! writes at depth 1 and 32, 1 MiB sequential ones also beside the bare file and beside a server that does nothing. Writes end in a flush.
//! At last, what the host takes of a busy processor for the disk. Prints a table and writes target/bench/volume.json. `BENCH_ROUNDS` changes
//! how long it takes, a word on the command line picks rows.
//!
//! Timings swing several-fold from minute to minute on a busy machine, so only ratios inside one round count. A round measures every
//! subject twice, in an order that turns around (A B C C B A), in slices of a tenth of a second; what is told is the median of the
//! rounds' ratios and their quartiles. A second qemu-nbd on a file of its own takes part: what the two give beside one another says how
//! much to believe; both together are the baseline.

#[path = "volume/bare.rs"]
mod bare;
#[path = "volume/client.rs"]
mod client;
#[allow(dead_code)] // the tests use more of it
#[path = "../tests/common/mod.rs"]
mod common;
#[path = "volume/host.rs"]
mod host;
#[path = "volume/load.rs"]
mod load;
#[path = "volume/nothing.rs"]
mod nothing;
#[allow(dead_code)] // other benches use more of it
#[path = "shared/quartiles.rs"]
mod quartiles;
#[path = "volume/report.rs"]
mod report;
#[path = "shared/report_file.rs"]
mod report_file;
#[allow(dead_code)] // other benches use more of it
#[path = "volume/subject.rs"]
mod subject;

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use common::chance::Chance;
use load::{LOADS, Load, MIB, Order, SEQUENTIAL_READS, SEQUENTIAL_WRITES};
use report::{BAND, Row};
use subject::{Slice, Subject, difference, solid, version};

/// The part of every volume and file that is used: all of it is in the cache.
const SPAN_BYTES: u64 = 256 * MIB;
/// Volumes and files.
const FILE_BYTES: u64 = 512 * MIB;
/// Holds many times what a row writes, so that nothing is destaged or evicted meanwhile (the counters in the report tell).
const CACHE_BYTES: u64 = 6 << 30;

/// Rounds of a row unless `BENCH_ROUNDS` says otherwise.
const ROUNDS: usize = 60;
/// A row ends after this long, with the rounds that it has.
const ROW_PATIENCE: Duration = Duration::from_secs(75);
/// What a slice should take the baseline.
const SLICE: Duration = Duration::from_millis(100);

/// Places in the list of subjects.
const OURS: usize = 0;
const QEMU: [usize; 2] = [1, 2];
const NBDKIT: usize = 3;
const BARE: usize = 4;
const NOTHING: usize = 5;
const ALL: usize = 6;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if !arguments.iter().any(|argument| argument == "--bench") {
        return println!("this measures for minutes: `make bench` runs it");
    }
    let wanted = |load: &Load| arguments.iter().filter(|word| !word.starts_with('-')).all(|word| load.what.contains(word.as_str()));
    let rounds = std::env::var("BENCH_ROUNDS").map_or(ROUNDS, |count| count.parse().expect("BENCH_ROUNDS is a count"));
    assert!(rounds > 0, "BENCH_ROUNDS is a count of at least one");

    let folder = tempfile::Builder::new().prefix("bench").tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    println!("writing the files …");
    let mut subjects = subjects(folder.path());
    Row::print_heading();
    let (mut rows, mut is_void) = (Vec::new(), false);
    for load in LOADS.iter().filter(|load| wanted(load)) {
        let row = measure(&mut subjects, load, rounds);
        row.print();
        is_void |= row.is_void();
        rows.push(row.json());
    }
    if is_void {
        println!(
            "void rows: qemu-nbd beside itself is further from 1 than {BAND}; nothing can be said, try again when the machine is quieter"
        );
    }
    let taken = wanted(&SEQUENTIAL_READS).then(|| taken(&mut subjects[BARE]));
    report_file::write(
        "volume",
        json!({
            "taken_alone_and_beside_reads": taken,
            "qemu_nbd": version("qemu-nbd"), "nbdkit": version("nbdkit"),
            "span_mib": SPAN_BYTES / MIB, "file_mib": FILE_BYTES / MIB, "cache_mib": CACHE_BYTES / MIB,
            "band": BAND, "rows": rows,
        }),
    );
}

/// Each has a file of its own.
fn subjects(folder: &Path) -> [Subject; ALL] {
    let file = |name: &str| {
        let path = folder.join(name).with_extension("img");
        solid(&path, FILE_BYTES);
        path
    };
    solid(&folder.join("cache.img"), CACHE_BYTES);
    [
        Subject::tidegate(folder, &file("origin"), "[memory]\nram = \"0B\"\n"),
        Subject::qemu_nbd("qemu-nbd", folder, &file("qemu-nbd")),
        Subject::qemu_nbd("qemu-nbd again", folder, &file("qemu-nbd-again")),
        Subject::nbdkit(folder, &file("nbdkit")),
        Subject::bare(&file("bare")),
        Subject::thread("nothing", nothing::served(&folder.join("nothing.sock"), FILE_BYTES).expect("a socket of its own")),
    ]
}

/// Where the requests of a slice go. Everybody does the same sequential slices; random places come from `seed`.
fn places(load: &Load, count: u64, slice: u64, seed: u64) -> Vec<u64> {
    let (all, mut chance) = (SPAN_BYTES / load.bytes, Chance::new(seed));
    match load.order {
        Order::Random => (0..count).map(|_| chance.below(all)).collect(),
        Order::Sequential => (slice * count..(slice + 1) * count).map(|place| place % all).collect(),
    }
}

/// Writes the whole span in order: every row starts from the same contents in the same places.
fn refill(subject: &mut Subject) {
    let load = &SEQUENTIAL_WRITES;
    subject.run(load, &places(load, SPAN_BYTES / load.bytes, 0, 0));
}

/// What the host takes of a busy processor, alone and while the bare file is read one MiB after the other.
fn taken(bare: &mut Subject) -> [f64; 2] {
    let one_by_one = Load { depth: 1, ..SEQUENTIAL_READS };
    let all = places(&one_by_one, SPAN_BYTES / MIB, 0, 0);
    let taken = host::taken(|| {
        bare.run(&one_by_one, &all);
    });
    let [alone, beside] = taken.map(|share| share * 100.0);
    println!("a busy thread loses {alone:.0} % of its time, and {beside:.0} % while the bare file is read, 1 MiB at depth 1");
    taken
}

/// All rounds of one load.
fn measure<'a>(subjects: &mut [Subject], load: &'a Load, rounds: usize) -> Row<'a> {
    subjects.iter_mut().for_each(refill);
    let count = requests_of_a_slice(subjects, load);
    let taking_part = if load.order == Order::Sequential { ALL } else { BARE };
    let before = counters(&subjects[OURS]);
    let mut slices: Vec<Vec<Slice>> = vec![Vec::new(); ALL];
    let started = Instant::now();
    for round in 0..rounds {
        let mut order: Vec<usize> = (0..taking_part).collect();
        order.rotate_left(round % taking_part);
        let there = order.iter().map(|&subject| (subject, 0));
        let back = order.iter().rev().map(|&subject| (subject, 1));
        let mut halves = [[None; 2]; ALL];
        for (subject, half) in there.chain(back) {
            let slice = (round * 2 + half) as u64;
            halves[subject][half] = Some(subjects[subject].run(load, &places(load, count, slice, slice * 100 + subject as u64)));
        }
        for (subject, halves) in halves.into_iter().enumerate() {
            if let [Some(one), Some(other)] = halves {
                slices[subject].push(one + other);
            }
        }
        if started.elapsed() > ROW_PATIENCE {
            break;
        }
    }
    let counted = difference(&before, &counters(&subjects[OURS]));
    let mut take = |subject: usize| std::mem::take(&mut slices[subject]);
    Row {
        load,
        count,
        tidegate: take(OURS),
        qemu: QEMU.map(&mut take),
        nbdkit: take(NBDKIT),
        bare: take(BARE),
        nothing: take(NOTHING),
        counted,
    }
}

/// So many that a slice takes the baseline about as long as it should; everybody does the same number. Warms everybody up.
fn requests_of_a_slice(subjects: &mut [Subject], load: &Load) -> u64 {
    let least = load.depth * 4;
    let mut count = least;
    for _ in 0..3 {
        let seconds: Vec<f64> = subjects.iter_mut().map(|subject| subject.run(load, &places(load, count, 0, 0)).seconds).collect();
        let baseline = QEMU.iter().map(|&subject| seconds[subject]).sum::<f64>() / QEMU.len() as f64;
        // Never much more than the try before: that was too short to tell.
        count = ((count as f64 * SLICE.as_secs_f64() / baseline) as u64).clamp(least, count * 30);
    }
    count
}

/// What the row depends on: nothing missed, nothing destaged, and how the log was written.
fn counters(ours: &Subject) -> Value {
    let status = ours.status().expect("tidegate has a status");
    let value = |pointer: &str| status.pointer(pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("{pointer} in the status"));
    json!({
        "hit_blocks": value("/hits/blocks"), "miss_blocks": value("/misses/blocks"), "destaged_blocks": value("/destage/blocks"),
        "cache_flushes": value("/cache/flushes"), "checkpoints": value("/cache/checkpoints"), "window_waits": value("/waits/window"),
        "data_bytes": value("/cache/data_bytes"), "metadata_bytes": value("/cache/metadata_bytes"),
    })
}

//! Speed of a volume beside other servers on files of the same disk, through the same client: 4 KiB random reads (cache hits) and
//! writes at depth 1 and 32, 1 MiB sequential ones also beside the bare file. Writes end in a flush.
//! Prints a table and writes target/bench/volume.json. `BENCH_ROUNDS` changes how long it takes, a word on the command line picks rows.
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
#[path = "volume/load.rs"]
mod load;
#[path = "volume/report.rs"]
mod report;
#[path = "volume/subject.rs"]
mod subject;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use load::{LOADS, Load, MIB, Order};
use report::{BAND, Row, sum};
use subject::{CACHE_BYTES, FILE_BYTES, SPAN_BYTES, Slice, Subject};

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
    let mut subjects = [
        Subject::tidegate(folder.path()),
        Subject::qemu_nbd(folder.path(), "qemu-nbd"),
        Subject::qemu_nbd(folder.path(), "qemu-nbd again"),
        Subject::nbdkit(folder.path()),
        Subject::bare(folder.path()),
    ];
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
    write_report(rows);
}

/// All rounds of one load.
fn measure<'a>(subjects: &mut [Subject], load: &'a Load, rounds: usize) -> Row<'a> {
    subjects.iter_mut().for_each(Subject::refill);
    let count = requests_of_a_slice(subjects, load);
    let taking_part = if load.order == Order::Sequential { BARE + 1 } else { BARE };
    let before = counters(&subjects[OURS]);
    let mut slices: Vec<Vec<Slice>> = vec![Vec::new(); BARE + 1];
    let started = Instant::now();
    for round in 0..rounds {
        let mut order: Vec<usize> = (0..taking_part).collect();
        order.rotate_left(round % taking_part);
        let there = order.iter().map(|&subject| (subject, 0));
        let back = order.iter().rev().map(|&subject| (subject, 1));
        let mut halves = [[None; 2]; BARE + 1];
        for (subject, half) in there.chain(back) {
            let seed = (round * 2 + half) as u64 * 100 + subject as u64;
            halves[subject][half] = Some(subjects[subject].run(load, count, seed));
        }
        for (subject, halves) in halves.into_iter().enumerate() {
            if let [Some(one), Some(other)] = halves {
                slices[subject].push(sum([one, other]));
            }
        }
        if started.elapsed() > ROW_PATIENCE {
            break;
        }
    }
    let counted = difference(&before, &counters(&subjects[OURS]));
    let mut take = |subject: usize| std::mem::take(&mut slices[subject]);
    Row { load, count, tidegate: take(OURS), qemu: QEMU.map(&mut take), nbdkit: take(NBDKIT), bare: take(BARE), counted }
}

/// So many that a slice takes the baseline about as long as it should; everybody does the same number. Warms everybody up.
fn requests_of_a_slice(subjects: &mut [Subject], load: &Load) -> u64 {
    let least = load.depth * 4;
    let mut count = least;
    for _ in 0..3 {
        let seconds: Vec<f64> = subjects.iter_mut().map(|subject| subject.run(load, count, 0).seconds).collect();
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

fn difference(before: &Value, after: &Value) -> Value {
    let after = after.as_object().expect("an object");
    after.iter().map(|(key, value)| (key.clone(), json!(value.as_u64().unwrap_or(0) - before[key].as_u64().unwrap_or(0)))).collect()
}

fn write_report(rows: Vec<Value>) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("bench");
    std::fs::create_dir_all(&folder).expect("a folder for the report");
    let path = folder.join("volume.json");
    let report = json!({
        "cores": std::thread::available_parallelism().map_or(1, usize::from),
        "kernel": std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim(),
        "qemu_nbd": version("qemu-nbd"), "nbdkit": version("nbdkit"),
        "span_mib": SPAN_BYTES / MIB, "file_mib": FILE_BYTES / MIB, "cache_mib": CACHE_BYTES / MIB,
        "band": BAND, "rows": rows,
    });
    std::fs::write(&path, format!("{report:#}\n")).expect("a report");
    println!("{}", path.display());
}

/// The first line of what a program says of itself.
fn version(program: &str) -> Option<String> {
    let said = Command::new(program).arg("--version").output().ok()?.stdout;
    Some(String::from_utf8_lossy(&said).lines().next()?.to_owned())
}

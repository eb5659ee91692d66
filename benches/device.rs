//! The log on a real device, in one process: engine and io_uring, no sockets. Small random writes, a FLUSH after every thousand, beside the
//! sequential bandwidth of the same device; 1 MiB sequential reads and writes beside the bare file, at the same place of it. Where the row
//! says so, the device gives 500 MB/s at most: bandwidth is what is compared then, not how quick a virtual disk is.
//! Prints a table and writes target/bench/device.json. `BENCH_ROUNDS` changes how long it takes, a word on the command line picks rows.
//!
//! Only ratios inside one round count. A round measures the stack and the bare file twice (A B B A); what is told is the median of the
//! rounds' ratios and their quartiles. The second slice of the bare file beside the first says how much to believe.
//! Random writes are owed the bandwidth that is left when the log writes its metadata and what its cleaner moves: 0.85 / WA of it, where WA is
//! what was written to the device for each byte of the client. What the cleaner reads counts in the limit too, where reads and writes share one
//! (SATA), and not in WA: at a WA of 2.77 a full log writes 2.77 bytes and reads 1.77 for each of the client, and nobody could reach that goal
//! there; where each way has its limit (NVMe, SAS) it can be reached.

#[path = "device/bare.rs"]
mod bare;
#[path = "../tests/common/chance.rs"]
mod chance;
#[path = "device/load.rs"]
mod load;
#[path = "device/noise.rs"]
mod noise;
#[path = "shared/quartiles.rs"]
mod quartiles;
#[path = "device/report.rs"]
mod report;
#[path = "shared/report_file.rs"]
mod report_file;
#[path = "device/ssd.rs"]
mod ssd;
#[path = "device/stack.rs"]
mod stack;

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::json;
use tidegate_daemon::back::run::Run;
use tidegate_engine::block::{ATOM_BYTES, Span};
use tidegate_engine::payload::Payload;
use tidegate_engine::request::Command;

use bare::Bare;
use chance::Chance;
use load::{BLOCK_BYTES, FLUSH_BYTES, LOADS, Limit, Load, Log, MIB, RATE, SEQUENTIAL_DEPTH, Way};
use noise::Noise;
use report::{Counted, Round, Row};
use stack::{Asked, Stack, span_at};

/// Of the cache, and of the bare file.
const CACHE_BYTES: u64 = 1 << 30;
/// Where random writes to a fresh log go.
const WIDE_BYTES: u64 = 4 << 30;
/// How often an aged volume is overwritten before it is measured.
const OVERWRITTEN: u64 = 2;

/// A row ends after this long, with the rounds that it has.
const ROW_PATIENCE: Duration = Duration::from_secs(25);

/// The files, and what is written.
struct Place {
    folder: PathBuf,
    noise: Noise,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if !arguments.iter().any(|argument| argument == "--bench") {
        return println!("this measures for minutes: `make bench-device` runs it");
    }
    let started = Instant::now();
    let wanted = |load: &Load| arguments.iter().filter(|word| !word.starts_with('-')).all(|word| load.what.contains(word.as_str()));
    let rounds: Option<usize> = std::env::var("BENCH_ROUNDS").ok().map(|count| count.parse().expect("BENCH_ROUNDS is a count"));
    assert_ne!(rounds, Some(0), "BENCH_ROUNDS is a count of at least one");

    let folder = tempfile::Builder::new().prefix("bench").tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let place = Place { folder: folder.path().to_owned(), noise: Noise::new() };
    println!("writing the files …");
    place.make();
    Row::print_heading();
    let mut rows = Vec::new();
    for load in LOADS.iter().filter(|load| wanted(load)) {
        let row = measure(&place, load, rounds.unwrap_or(load.rounds));
        row.print();
        rows.push(row.json());
    }
    Row::print_legend();
    report_file::write("device", json!({ "cache_mib": CACHE_BYTES / MIB, "rate": RATE, "flush_bytes": FLUSH_BYTES, "rows": rows }));
    println!("{:.0} s", started.elapsed().as_secs_f64());
}

impl Place {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.img"))
    }

    /// Cache and bare file are written from end to end: extents that were never written would cost the file system more than the write itself.
    /// The origins stay sparse: nobody reads or writes them.
    fn make(&self) {
        for name in ["cache", "bare"] {
            let mut file = File::create_new(self.path(name)).expect("a new file");
            (0..CACHE_BYTES / MIB).for_each(|_| file.write_all(self.noise.at(0, MIB).as_slice()).expect("room for a file"));
            // Nothing that looks like somebody's file system.
            file.seek(SeekFrom::Start(0)).expect("its start");
            file.write_all(Run::zero(MIB / ATOM_BYTES).as_slice()).expect("room for a file");
            file.sync_all().expect("a disk that works");
            // Every write past the page cache would first have to look for what this one has left there.
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advice");
        }
        for (name, bytes) in [("wide", WIDE_BYTES), ("unused", MIB)] {
            File::create_new(self.path(name)).expect("a new file").set_len(bytes).expect("a sparse file");
        }
    }

    fn fresh(&self) -> Stack {
        Stack::new(&self.path("cache"), &self.path("wide"))
    }

    /// A volume of four fifths of the log, all of it written; and its length in bytes.
    fn aged(&self) -> (Stack, u64) {
        let bytes = self.fresh().sets * 4 / 5 * MIB;
        let origin = File::create(self.path("aged")).expect("a new file");
        origin.set_len(bytes).expect("a sparse file");
        let mut stack = Stack::new(&self.path("cache"), &self.path("aged"));
        self.fill(&mut stack, bytes);
        let mut requests = self.random(bytes, OVERWRITTEN * bytes, 0);
        stack.run(256, || requests.next());
        stack.rest();
        (stack, bytes)
    }

    fn fill(&self, stack: &mut Stack, bytes: u64) {
        let mut requests = self.sequential(Way::Write, bytes);
        stack.run(SEQUENTIAL_DEPTH, || requests.next());
        stack.rest();
    }

    /// Writes of a block all over `span_bytes`.
    fn random(&self, span_bytes: u64, bytes: u64, seed: u64) -> impl Iterator<Item = Asked> + '_ {
        let mut chance = Chance::new(seed);
        let writes = (0..bytes / BLOCK_BYTES).map(move |_| (span_at(chance.below(span_bytes / BLOCK_BYTES), BLOCK_BYTES), chance.next()));
        with_flushes(BLOCK_BYTES, writes.map(|(span, at)| (span, self.write(span, at))))
    }

    fn sequential(&self, way: Way, bytes: u64) -> Box<dyn Iterator<Item = Asked> + '_> {
        let spans = (0..bytes / MIB).map(|place| span_at(place, MIB));
        match way {
            Way::Read => Box::new(spans.map(|span| (span, Command::Read))),
            Way::Write => Box::new(with_flushes(MIB, spans.map(|span| (span, self.write(span, span.start / span.atoms))))),
        }
    }

    /// Contents that nothing can shorten, anywhere in memory.
    fn write(&self, span: Span, at: u64) -> Command<Run> {
        Command::Write { data: self.noise.at(at, span.bytes()), fua: false }
    }
}

/// A FLUSH whenever [`FLUSH_BYTES`] have been written.
fn with_flushes(bytes: u64, writes: impl Iterator<Item = Asked>) -> impl Iterator<Item = Asked> {
    writes.enumerate().flat_map(move |(number, write)| {
        let number = number as u64;
        let is_due = (number + 1) * bytes / FLUSH_BYTES > number * bytes / FLUSH_BYTES;
        [Some(write), is_due.then_some((Span::new(0, 0), Command::Flush))].into_iter().flatten()
    })
}

/// All rounds of one load.
fn measure<'a>(place: &Place, load: &'a Load, rounds: usize) -> Row<'a> {
    let mut pair = Pair::new(place, load);
    let started = Instant::now();
    let mut done = Vec::new();
    for round in 0..rounds as u64 {
        let first = pair.ours(2 * round + 1);
        let bare = [pair.bare(), pair.bare()];
        done.push(Round { ours: [first, pair.ours(2 * round + 2)], bare });
        if started.elapsed() > ROW_PATIENCE {
            break;
        }
    }
    Row { load, rounds: done, counted: pair.counted }
}

/// The stack and the bare device, in turn: at the same place of the same file, wherever the bare one spoils nothing there. (One part of a
/// virtual disk may be twice as quick as another.)
struct Pair<'a> {
    place: &'a Place,
    load: &'a Load,
    /// A volume for all slices, and its bytes. None: a fresh one for each.
    kept: Option<(Stack, u64)>,
    bare: Bare,
    counted: Counted,
}

impl<'a> Pair<'a> {
    fn new(place: &'a Place, load: &'a Load) -> Pair<'a> {
        let mut fresh = place.fresh();
        let stretch = fresh.stretch(load.slice_bytes);
        let (kept, stretch) = match load.log {
            Log::Fresh => (None, stretch),
            Log::Aged => {
                drop(fresh);
                (Some(place.aged()), Span::new(0, CACHE_BYTES / ATOM_BYTES))
            }
            Log::Written => {
                place.fill(&mut fresh, load.slice_bytes);
                (Some((fresh, load.slice_bytes)), stretch)
            }
        };
        Pair { place, load, kept, bare: Bare::new(stretch, place.noise.clone()), counted: Counted::default() }
    }

    fn ours(&mut self, seed: u64) -> f64 {
        match &mut self.kept {
            Some((stack, bytes)) => slice(self.place, stack, self.load, *bytes, seed, &mut self.counted),
            None => slice(self.place, &mut self.place.fresh(), self.load, WIDE_BYTES, seed, &mut self.counted),
        }
    }

    fn bare(&mut self) -> f64 {
        let open = |name| bare::open(&self.place.path(name), &self.place.path("unused"));
        match (self.load.log, &mut self.kept) {
            // What it reads there stays.
            (Log::Written, kept) => self.bare.run(kept.as_mut().expect("it is written once").0.ssd(), self.load),
            // Nobody needs that log any more.
            (Log::Fresh, _) => self.bare.run(&mut open("cache"), self.load),
            (Log::Aged, _) => self.bare.run(&mut open("bare"), self.load),
        }
    }
}

/// Seconds of one slice of ours. Everything that it wrote is durable then.
fn slice(place: &Place, stack: &mut Stack, load: &Load, span_bytes: u64, seed: u64, counted: &mut Counted) -> f64 {
    stack.ssd().set_limit(load.limit);
    stack.ssd().forget();
    let before = stack.inspect();
    let cpu = cpu_ns();
    let mut requests: Box<dyn Iterator<Item = Asked>> = match load.is_random() {
        true => Box::new(place.random(span_bytes, load.slice_bytes, seed)),
        false => place.sequential(load.way, load.slice_bytes),
    };
    let mut last = (load.way == Way::Write).then_some((Span::new(0, 0), Command::Flush));
    let seconds = stack.run(load.depth, || requests.next()) + stack.run(1, || last.take());
    counted.cpu_ns += cpu_ns() - cpu;
    stack.rest();
    let after = stack.inspect();
    counted.add(&before, &after, stack.ssd());
    stack.ssd().set_limit(Limit::None);
    seconds
}

/// Nanoseconds on a CPU of this thread, which does everything.
fn cpu_ns() -> u64 {
    let line = std::fs::read_to_string("/proc/thread-self/schedstat").expect("a thread");
    line.split(' ').next().and_then(|ns| ns.parse().ok()).expect("a number of nanoseconds")
}

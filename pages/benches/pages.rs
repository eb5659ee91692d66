//! What a hit costs: reads of random 4 KiB pages, beside copying such pages and beside other caches, and what becomes of it with two threads.
//! Prints a table of ratios and writes target/bench/pages.json. `BENCH_ROUNDS` changes how long it takes, a word on the command line picks rows.
//!
//! Only ratios inside one round count ([`rounds`]). The touches that a slice has noted are drained between the slices, as the engine would do
//! on its own thread: a full ring, whose notes cost nothing, would be an advantage that nobody has in service.

#[allow(dead_code, reason = "not every bench needs all of it")]
#[path = "../../tests/common/chance.rs"]
mod chance;
#[path = "pages/copies.rs"]
mod copies;
#[path = "pages/ours.rs"]
mod ours;
#[path = "pages/peers.rs"]
mod peers;
#[allow(dead_code, reason = "not every bench needs all of it")]
#[path = "../../benches/shared/quartiles.rs"]
mod quartiles;
#[path = "../../benches/shared/report_file.rs"]
mod report_file;
#[path = "pages/rounds.rs"]
mod rounds;

use std::time::Instant;

use serde_json::json;

use copies::{Flat, Manner};
use ours::Tier;
use peers::{OneByOne, Peer};
use rounds::{Bench, Row, Step, Subject};

/// Eight times the last-level cache of a large desktop.
const PAGES: usize = 65_536;
const PAGE_BYTES: usize = 4096;
/// Requests that are there at once.
const BATCH: usize = 32;

/// Where a page is read to, or written from: aligned as those that devices read and write.
#[derive(Clone)]
#[repr(align(4096))]
struct Buffer([u8; PAGE_BYTES]);

impl Buffer {
    /// One for each request.
    fn batch(byte: u8) -> Vec<Buffer> {
        vec![Buffer([byte; PAGE_BYTES]); BATCH]
    }
}

/// Subject 0 is the baseline: one thread, or two.
const BESIDE: &[Step] =
    &[Step::base([Some(0), None]), Step::ours([Some(1), None]), Step::ours([Some(1), None]), Step::base([Some(0), None])];
const BESIDE_2T: &[Step] =
    &[Step::base([Some(0), Some(0)]), Step::ours([Some(1), Some(1)]), Step::ours([Some(1), Some(1)]), Step::base([Some(0), Some(0)])];
/// One subject, first alone on each core, then on both.
const SCALING: &[Step] = &[
    Step::base([Some(0), None]),
    Step::ours([Some(0), Some(0)]),
    Step::base([None, Some(0)]),
    Step::base([None, Some(0)]),
    Step::ours([Some(0), Some(0)]),
    Step::base([Some(0), None]),
];
/// A reader, alone and while subject 1 does what it does on the other core.
const DISTURBED: &[Step] =
    &[Step::base([Some(0), None]), Step::first_of([Some(0), Some(1)]), Step::first_of([Some(0), Some(1)]), Step::base([Some(0), None])];

/// Builds a cache and fills it.
type MakePeer = fn() -> Box<dyn Peer>;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if !arguments.iter().any(|argument| argument == "--bench") {
        return println!("this measures for a minute: `make bench-pages` runs it");
    }
    let words: Vec<&String> = arguments.iter().filter(|word| !word.starts_with('-')).collect();
    let rounds = std::env::var("BENCH_ROUNDS").map_or(120, |count| count.parse().expect("BENCH_ROUNDS is a count"));
    // A thread that fails ends it all: the others would wait for it.
    std::panic::set_hook(Box::new(|why| {
        eprintln!("{why}");
        std::process::exit(101);
    }));
    let started = Instant::now();
    let mut bench = Bench::new(rounds, |name| words.iter().all(|word| name.contains(word.as_str())));
    bench.print_heading();

    let flat = Flat::new();
    let (tier, few) = (Tier::new(), Tier::of_few());
    let plain = |_: usize| Box::new(flat.subject(Manner::Plain)) as Box<dyn Subject + '_>;
    let prefetching = |_: usize| Box::new(flat.subject(Manner::Prefetching)) as Box<dyn Subject + '_>;
    let tiers_own = |_: usize| Box::new(flat.subject(Manner::Tiers)) as Box<dyn Subject + '_>;
    let batch = |_: usize| Box::new(tier.reader(BATCH)) as Box<dyn Subject + '_>;
    let single = |_: usize| Box::new(tier.reader(1)) as Box<dyn Subject + '_>;
    let silent = |_: usize| Box::new(tier.silent_reader()) as Box<dyn Subject + '_>;
    let hot = |_: usize| Box::new(few.hot_reader()) as Box<dyn Subject + '_>;
    let disturber = |_: usize| Box::new(tier.disturber()) as Box<dyn Subject + '_>;
    let copier = |_: usize| Box::new(flat.copier()) as Box<dyn Subject + '_>;

    bench.run(Row::new("P1-batch-vs-prefetching-memcpy", 0.90, 0.95), BESIDE, &[&prefetching, &batch]);
    bench.run(Row::new("P1-batch-vs-memcpy", 1.20, 1.30), BESIDE, &[&plain, &batch]);
    bench.run(Row::new("P1-batch-vs-prefetching-memcpy-2t", 0.90, 0.95), BESIDE_2T, &[&prefetching, &batch]);
    bench.run(Row::new("P1-batch-vs-memcpy-2t", 1.20, 1.30), BESIDE_2T, &[&plain, &batch]);
    bench.run(Row::told("batch-vs-copying-as-the-tier-does"), BESIDE, &[&tiers_own, &batch]);
    bench.run(Row::new("P2-single-vs-memcpy", 0.82, 0.90), BESIDE, &[&plain, &single]);
    bench.run(Row::new("P3-uniform-2t-1t", 1.95, 1.98), SCALING, &[&batch]);
    bench.run(Row::told("memcpy-uniform-2t-1t"), SCALING, &[&prefetching]);
    bench.run(Row::told("uniform-single-2t-1t"), SCALING, &[&single]);
    bench.run(Row::new("P3-hot-page-2t-1t", 1.90, 1.98), SCALING, &[&hot]);
    bench.run(Row::new("P3-readers-with-writer-and-evictor", 0.85, 0.95), DISTURBED, &[&batch, &disturber]);
    bench.run(Row::new("bookkeeping-on-vs-off", 0.97, 1.0), BESIDE, &[&silent, &batch]);
    bench.run(Row::told("readers-beside-a-copier"), DISTURBED, &[&batch, &copier]);
    bench.run(Row::told("prefetching-memcpy-vs-memcpy"), BESIDE, &[&plain, &prefetching]);
    bench.run(Row::told("pin-vs-crossbeam-epoch"), BESIDE, &[&|_| Box::new(peers::Pins), &|_| Box::new(tier.pins())]);
    tier.settle();
    bench.run(Row::new("P8-write-hit-vs-memcpy", 0.82, 0.90), BESIDE, &[&copier, &|_| Box::new(tier.writer(BATCH))]);
    tier.settle();
    bench.run(Row::told("P8-single-vs-memcpy"), BESIDE, &[&copier, &|_| Box::new(tier.writer(1))]);
    tier.settle();
    // One at a time: each holds all pages.
    let peers: [(Row, MakePeer); 3] = [
        (Row::new("P4-vs-moka", 4.2, 5.0), || Box::new(peers::moka())),
        (Row::new("P4-vs-foyer", 2.8, 3.2), || Box::new(peers::foyer())),
        (Row::new("P4-vs-quick_cache", 1.9, 2.2), || Box::new(peers::quick_cache())),
    ];
    for (row, make) in peers {
        if bench.wants(&row) {
            let peer = make();
            bench.run(row, BESIDE, &[&|_| Box::new(OneByOne::new(&*peer)), &|_| Box::new(tier.reader(BATCH))]);
        }
    }
    let prototype = peers::prototype();
    bench.run(
        Row::new("P4-vs-mutex-2t", 4.3, 5.0),
        BESIDE_2T,
        &[&|_| Box::new(OneByOne::new(&prototype)), &|_| Box::new(tier.reader(BATCH))],
    );
    report_file::write("pages", json!({ "pages": PAGES, "batch": BATCH, "rows": bench.rows() }));
    println!("{:.0} s", started.elapsed().as_secs_f64());
}

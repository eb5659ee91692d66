//! What the engine itself costs: instructions and time per request in a world whose devices cost nothing, and bytes per cached block.
//!
//! Instructions are counted by callgrind (repeatable, whatever else the machine does), as the difference of two runs of different length.
//! Time is that of slices of about a millisecond, of which those count during which no other thread of this system had the processor.
//! The payload has no contents, so neither checksums nor copies are in the figures.

#[path = "shared/callgrind.rs"]
mod callgrind;
#[allow(dead_code)] // other benches have more to do with them
#[path = "shared/quartiles.rs"]
mod quartiles;

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_engine::block::{PAGE_ATOMS, PAGE_BYTES, Span};
use tidegate_engine::cache::format::{FormatId, Geometry, Step, Superblock, create_steps};
use tidegate_engine::config::CommitHome;
use tidegate_engine::op::{Action, Answer, Done, Limits, Op, Zone};
use tidegate_engine::payload::{Checksum, Payload};
use tidegate_engine::probe::Phase;
use tidegate_engine::request::{Command, Reply, Request, RequestId};
use tidegate_engine::time::Instant;
use tidegate_engine::{Config, Engine, Event, World, turn};

use quartiles::Quartiles;

/// The goal: CPU time of one miss with its fill, the bench's own share included.
const MISS_NS_MAX: f64 = 1_000.0;
/// Timed runs, and the slices of each; the median of all slices counts.
const RUNS: usize = 5;
const SLICES: usize = 120;
const REQUESTS: u64 = 40_000;
const VOLUME_ATOMS: u64 = 128 << 21;
/// Larger than any run fills.
const CACHE_ATOMS: u64 = 8 << 21;
/// Filled before the run: every request makes room for itself.
const FULL_CACHE_ATOMS: u64 = 1 << 20;

/// Contents that cost nothing; metadata is what it is.
#[derive(Clone)]
enum Nothing {
    Atoms(u64),
    Bytes(Arc<[u8]>),
}

impl Payload for Nothing {
    fn atoms(&self) -> u64 {
        match self {
            Nothing::Atoms(atoms) => *atoms,
            Nothing::Bytes(bytes) => bytes.len() as u64 / 512,
        }
    }
    fn zero(atoms: u64) -> Self {
        Nothing::Atoms(atoms)
    }
    fn slice(&self, _start: u64, atoms: u64) -> Self {
        Nothing::Atoms(atoms)
    }
    fn concat(parts: &[Self]) -> Self {
        match parts {
            [one] => one.clone(),
            _ => Nothing::Atoms(parts.iter().map(Payload::atoms).sum()),
        }
    }
    fn checksum(&self, _: Checksum) -> u32 {
        0
    }
    fn from_bytes(bytes: &[u8]) -> Self {
        Nothing::Bytes(bytes.into())
    }
    fn append_to(&self, out: &mut Vec<u8>) {
        match self {
            Nothing::Atoms(atoms) => out.resize(out.len() + *atoms as usize * 512, 0),
            Nothing::Bytes(bytes) => out.extend_from_slice(bytes),
        }
    }
}

/// Operations end at once. Only the superblocks are kept: nobody recovers here.
#[derive(Default)]
struct NullWorld {
    superblocks: BTreeMap<u64, Nothing>,
    events: Vec<Event<Nothing>>,
    replies: u64,
}

impl World<Nothing> for NullWorld {
    fn start(&mut self, _now: Instant, op: Op<Nothing>) {
        let answer = match op.action {
            Action::Read(Zone::Superblock, span) => Answer::Data([self.superblocks[&span.start].clone()].into()),
            Action::Read(_, span) => Answer::Data([Nothing::Atoms(span.atoms)].into()),
            Action::Write(..) | Action::Zero(..) | Action::Discard(..) | Action::Flush => Answer::Done,
            Action::Allocation(..) | Action::Spin(_) => panic!("nobody asks for the allocation, or for a motor"),
        };
        self.events.push(Event::Completed(Done { id: op.id, result: Ok(answer) }));
    }
    fn reply(&mut self, _now: Instant, reply: Reply<Nothing>) {
        reply.result.expect("nothing fails here");
        self.replies += 1;
    }
    fn fence(&mut self, _now: Instant, _at_risk: &mut dyn Iterator<Item = Span>) {
        unreachable!("nothing fails here");
    }
}

struct Bench {
    engine: Engine<Nothing>,
    world: NullWorld,
    /// What the engine is told in this turn; its world collects for the next one.
    events: Vec<Event<Nothing>>,
    now: u64,
    next: u64,
    random: u64,
}

impl Bench {
    fn new(cache_atoms: u64) -> Self {
        let geometry = Geometry::for_cache(cache_atoms, VOLUME_ATOMS, 8, 256).expect("a cache large enough");
        let format = FormatId([7; 16]);
        let mut world = NullWorld::default();
        for step in create_steps(&Superblock::new(format, geometry, [1; 16], [0; 16])) {
            if let Step::Write(_, span, bytes) = step {
                for (page, bytes) in bytes.chunks(PAGE_BYTES as usize).enumerate() {
                    world.superblocks.insert(span.start + page as u64 * PAGE_ATOMS, Nothing::from_bytes(bytes));
                }
            }
        }
        let limits = |atoms| Limits { atoms, depth: 64, op_atoms: 2048, discards: false };
        // What is counted is in the cache: no part of a sequence goes to the origin from the start.
        let config = Config { split: None, commit_home: CommitHome::Never, ..Config::new(geometry, format) };
        let engine = Engine::new(config, [limits(geometry.cache_atoms()), limits(VOLUME_ATOMS)]);
        let mut bench = Bench { engine, world, events: Vec::new(), now: 1, next: 0, random: 1 };
        bench.settle();
        assert_eq!(*bench.engine.phase(), Phase::Serving);
        bench
    }

    fn settle(&mut self) {
        loop {
            std::mem::swap(&mut self.events, &mut self.world.events);
            turn(&mut self.engine, &mut self.world, Instant(self.now), &mut self.events);
            if self.world.events.is_empty() {
                return;
            }
        }
    }

    /// Arrives at the next turn.
    fn send(&mut self, block: u64, blocks: u64, command: Command<Nothing>) {
        self.next += 1;
        self.now += 1_000;
        let span = Span::new(block * 8, blocks * 8);
        self.world.events.push(Event::Arrived(Request { id: RequestId(self.next), span, command }));
    }

    fn request(&mut self, block: u64, blocks: u64, command: Command<Nothing>) {
        self.send(block, blocks, command);
        self.settle();
    }

    fn write(&mut self, block: u64, blocks: u64) {
        self.request(block, blocks, Command::Write { data: Nothing::Atoms(blocks * 8), fua: false });
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below
    }
}

impl Bench {
    /// Whole origin sets, from the first one on.
    fn lay(&mut self, sets: u64) {
        (0..sets).for_each(|set| self.write(set * 256, 256));
    }

    /// `blocks` of each of so many origin sets from `first` on, one by one, no two of which are one extent.
    fn scatter(&mut self, first: u64, sets: u64, blocks: u64) {
        let stride = 256 / blocks;
        for set in first..first + sets {
            (0..blocks).for_each(|block| self.write(set * 256 + block * 97 % blocks * stride, 1));
        }
    }
}

const WORKLOADS: [&str; 9] = [
    "read misses",
    "read misses, 32 at once",
    "read hits",
    "random writes",
    "random writes, 32 at once",
    "read misses, full",
    "random writes, full",
    "1 MiB read hits",
    "1 MiB writes",
];

/// Requests of the shorter of two runs that are compared.
fn requests(name: &str) -> u64 {
    if name.starts_with("1 MiB") { REQUESTS / 64 } else { REQUESTS / 4 }
}

/// A workload that goes on as long as it is asked to; the set-up is the same whatever the length.
struct Load<'a> {
    name: &'a str,
    bench: Bench,
    /// Blocks that were written before it began.
    filled: u64,
    /// Requests so far.
    sent: u64,
}

impl Load<'_> {
    fn new(name: &str) -> Load<'_> {
        let full = name.ends_with(", full");
        let mut bench = Bench::new(if full { FULL_CACHE_ATOMS } else { CACHE_ATOMS });
        let filled = if full { FULL_CACHE_ATOMS / 8 } else { REQUESTS };
        for block in (0..filled).step_by(256) {
            match name {
                "read misses, full" => bench.request(block, 256, Command::Read),
                _ => bench.write(block, 256),
            }
        }
        Load { name, bench, filled, sent: 0 }
    }

    fn run(&mut self, requests: u64) {
        let Load { name, bench, filled, sent } = self;
        // A turn for each event, or one for what comes of so many requests.
        let at_once = if name.ends_with(", 32 at once") { 32 } else { 1 };
        for i in *sent..*sent + requests {
            let written = |blocks: u64| Command::Write { data: Nothing::Atoms(blocks * 8), fua: false };
            match *name {
                // Every block once, scattered: a miss, and a fill behind it.
                "read misses" | "read misses, 32 at once" | "read misses, full" => {
                    bench.send(*filled + (i * 65_537) % (1 << 20), 1, Command::Read);
                }
                "read hits" => {
                    let block = bench.random(*filled);
                    bench.send(block, 1, Command::Read);
                }
                "random writes" | "random writes, 32 at once" | "random writes, full" => {
                    let block = bench.random(1 << 20);
                    bench.send(block, 1, written(1));
                }
                // One after the other, again and again.
                "1 MiB read hits" => bench.send(i * 256 % (*filled / 256 * 256), 256, Command::Read),
                "1 MiB writes" => bench.send(i * 256 % (*filled / 256 * 256), 256, written(256)),
                _ => panic!("no workload {name}"),
            }
            if (i + 1) % at_once == 0 {
                bench.settle();
            }
        }
        bench.settle();
        *sent += requests;
        assert!(bench.world.replies >= *sent);
    }
}

/// Nanoseconds a request, of slices of `requests` each.
fn time(name: &str, requests: u64) -> Quartiles {
    let mut clean = Vec::new();
    for _ in 0..RUNS {
        let mut load = Load::new(name);
        for _ in 0..SLICES {
            let before = interruptions();
            let start = std::time::Instant::now();
            load.run(requests);
            let taken = start.elapsed();
            if interruptions() == before {
                clean.push(taken.as_nanos() as f64 / requests as f64);
            }
        }
    }
    assert!(clean.len() >= SLICES, "this machine is too busy to measure anything on it");
    Quartiles::of(clean)
}

/// How often this thread has lost its processor to another one.
fn interruptions() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").expect("/proc");
    let line =
        status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:")).expect("a line of /proc/thread-self/status");
    line.trim().parse().expect("a number")
}

/// What a cache holds when its memory is counted.
#[derive(Clone, Copy)]
enum Contents {
    /// So many blocks, apart from each other, of each touched origin set.
    Scattered(u64),
    /// Whole origin sets, each in one write.
    Sequential,
    /// Half of it sequential, half sixteen of each touched origin set.
    Mixed,
    /// Whole origin sets, twice as much written over them since, block by block, anywhere: the cleaner has moved them about.
    Aged,
}

const CONTENTS: [(&str, Contents); 8] = [
    ("1", Contents::Scattered(1)),
    ("4", Contents::Scattered(4)),
    ("16", Contents::Scattered(16)),
    ("64", Contents::Scattered(64)),
    ("256", Contents::Scattered(256)),
    ("sequential", Contents::Sequential),
    ("mixed", Contents::Mixed),
    ("aged", Contents::Aged),
];

/// Bytes per cached block of each line of the ledger, of a cache that is seven eighths full.
fn ledger(contents: Contents) -> Vec<(&'static str, f64)> {
    let mut bench = Bench::new(FULL_CACHE_ATOMS);
    let slots = bench.engine.inspect(Instant(bench.now)).sets as u64 * 256;
    let total = slots / 8 * 7 / 512 * 512;
    match contents {
        Contents::Scattered(blocks) => bench.scatter(0, total / blocks, blocks),
        Contents::Sequential => bench.lay(total / 256),
        Contents::Mixed => {
            bench.lay(total / 512);
            bench.scatter(total / 512, total / 32, 16);
        }
        Contents::Aged => {
            bench.lay(total / 256);
            for _ in 0..2 * total {
                let (block, other) = (bench.random(total), bench.random(total));
                bench.write(block, 1);
                // What nobody uses would be dropped, not moved.
                bench.request(other, 1, Command::Read);
            }
        }
    }
    let snapshot = bench.engine.inspect(Instant(bench.now));
    assert!(snapshot.live_slots >= total / 8 * 7, "the cache keeps most of what it was given");
    snapshot.ledger.iter().map(|&(name, bytes)| (name, bytes as f64 / snapshot.live_slots as f64)).collect()
}

/// Prints it; a line of the report for each.
fn print_ledger() -> Vec<serde_json::Value> {
    println!("\nledger: bytes per cached block of a cache seven eighths full (a number: blocks per touched origin set)");
    println!(
        "index and sets (mapping, dirty state, replacement): at most 12 from 16 on, at most 1 sequential; slots: checksums and blocks\n"
    );
    println!("{:<12} {:>8} {:>8} {:>8} {:>8}", "contents", "index", "sets", "both", "slots");
    let mut lines = Vec::new();
    for (name, contents) in CONTENTS {
        let ledger = ledger(contents);
        let of = |name| ledger.iter().find(|line| line.0 == name).map_or(0.0, |line| line.1);
        let (index, sets, slots) = (of("index"), of("sets"), of("slots"));
        let most = match contents {
            Contents::Sequential => 1.0,
            Contents::Scattered(blocks) if blocks < 16 => f64::INFINITY,
            _ => 12.0,
        };
        let verdict = if index + sets <= most { "" } else { "MISSED" };
        println!("{name:<12} {index:>8.2} {sets:>8.2} {:>8.2} {slots:>8.1}  {verdict}", index + sets);
        lines.push(serde_json::json!({"contents": name, "index": index, "sets": sets, "slots": slots}));
    }
    lines
}

/// Measures one workload and prints it; its line of the report.
fn print_row(name: &str) -> serde_json::Value {
    let few = requests(name);
    let instructions = |requests: u64| callgrind::instructions(&["run", name, &requests.to_string()]);
    let counted = instructions(4 * few).zip(instructions(few));
    let per = counted.map(|(long, short)| (long - short) as f64 / (3 * few) as f64);
    let wall = time(name, few / 10);
    let most = match name {
        "read misses" => MISS_NS_MAX,
        _ => f64::INFINITY,
    };
    let goal = if most.is_infinite() {
        ""
    } else if wall.median() <= most {
        "met"
    } else {
        "MISSED"
    };
    println!("{name:<25} {:>14}  {:<22}  {goal}", per.map_or("no valgrind".to_string(), |per| format!("{per:.0}")), wall.shown([0, 0]));
    serde_json::json!({"workload": name, "instructions": per, "wall_ns": wall.json()})
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, verb] = &arguments[..]
        && verb == "ledger"
    {
        return drop(print_ledger());
    }
    if let [_, verb, name, requests] = &arguments[..]
        && verb == "run"
    {
        return Load::new(name).run(requests.parse().expect("a number of requests"));
    }
    let started = std::time::Instant::now();
    println!("engine: cost per request (of 4 KiB where nothing else is said), without checksum and copy (goal: at most 1 us a miss)\n");
    println!("{:<25} {:>14}  {:<22}  goal", "workload", "instructions", "ns [quartiles]");
    let rows: Vec<_> = WORKLOADS.into_iter().map(print_row).collect();
    let lines = print_ledger();
    let report = serde_json::json!({"requests": rows, "ledger": lines});
    let folder = std::path::Path::new("target/bench");
    std::fs::create_dir_all(folder).expect("target/bench can be made");
    std::fs::write(folder.join("engine.json"), format!("{report:#}\n")).expect("target/bench/engine.json can be written");
    println!("\ntarget/bench/engine.json; {:.0} s", started.elapsed().as_secs_f64());
}

//! What a good client notices of hostile ones: its throughput with them over that without them, and the CPU time that the daemon spends on
//! one of its requests. 4 KiB requests at depth 32, all of them hits, reads and writes in turn.
//!
//! Only neighbours are compared: a slice without, two with, one without, and so on; what is told is the median of the pairs' ratios and
//! their quartiles. `BENCH_PAIRS` changes how long it takes. A row without anybody hostile says how much to believe.

#[allow(dead_code)] // the tests use more of it
#[path = "../tests/common/mod.rs"]
mod common;
#[allow(dead_code)] // other benches use more of it
#[path = "shared/quartiles.rs"]
mod quartiles;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::chance::Chance;
use common::daemon::Daemon;
use common::hostile::{Door, Wire, cost, hold_what_they_can, raise_descriptors, vanish};
use common::nbd::{Client, Command};
use quartiles::Quartiles;

const PAIRS: usize = 40;
/// Requests of one slice: some tenths of a second.
const REQUESTS: u64 = 20_000;
const DEPTH: usize = 32;
const BLOCK: u64 = 4096;
/// The good client's part of the volume; hostile ones ask for what lies before it.
const FIRST: u64 = (64 << 20) / BLOCK;
const BLOCKS: u64 = (64 << 20) / BLOCK;
/// What must be kept of the throughput.
const FLOOR: f64 = 0.95;
/// Clients that vanish, by the second.
const VANISHING: u32 = 100;

/// Who is there besides the good client.
enum Crowd {
    Nobody,
    Idle,
    /// And a hundred that hold what they can: S6.
    IdleAndHostile,
    HalfOpen,
    Vanishing,
}

const CROWDS: [(&str, Crowd); 5] = [
    ("nobody (what the measurement is worth)", Crowd::Nobody),
    ("1,000 idle connections", Crowd::Idle),
    ("1,000 idle and 100 hostile ones", Crowd::IdleAndHostile),
    ("10,000 half-open ones", Crowd::HalfOpen),
    ("100 a second that vanish at depth 32", Crowd::Vanishing),
];

/// One measurement.
#[derive(Clone, Copy)]
struct Slice {
    seconds: f64,
    /// CPU time of the daemon.
    cpu_seconds: f64,
}

fn main() {
    if !std::env::args().any(|argument| argument == "--bench") {
        return println!("this measures for minutes: `make bench-abuse` runs it");
    }
    raise_descriptors();
    let pairs = std::env::var("BENCH_PAIRS").map_or(PAIRS, |count| count.parse().expect("BENCH_PAIRS is a count"));
    let folder = common::volume("256MiB", "2GiB", "");
    let (daemon, door) = Door::open(folder.path(), "unix");
    let mut good = daemon.connect();
    for block in 0..BLOCKS {
        good.write((FIRST + block) * BLOCK, &Chance::new(block).bytes(BLOCK as usize)).expect("a write");
    }
    let [who, throughput, cpu] = ["good client with … over without", "throughput [quartiles]", "daemon CPU for a request"];
    println!("{who:<42}{throughput:<26}{cpu:<26}at least {FLOOR}?");
    for (what, crowd) in &CROWDS {
        let mut ratios = (Vec::new(), Vec::new());
        for pair in 0..pairs {
            let mut slice = |with: bool| measure(&daemon, &door, &mut good, if with { crowd } else { &Crowd::Nobody });
            // Turned around every time: what drifts in one direction cancels out.
            let (with, without) = if pair % 2 == 0 {
                let without = slice(false);
                (slice(true), without)
            } else {
                let with = slice(true);
                (with, slice(false))
            };
            ratios.0.push(without.seconds / with.seconds);
            ratios.1.push(with.cpu_seconds / without.cpu_seconds);
        }
        let (throughput, cpu) = (Quartiles::of(ratios.0), Quartiles::of(ratios.1));
        let verdict = match crowd {
            Crowd::Nobody => "-",
            _ if throughput.median() >= FLOOR => "met",
            _ => "missed",
        };
        println!("{what:<42}{:<26}{:<26}{verdict}", throughput.shown([3, 2]), cpu.shown([3, 2]));
    }
    daemon.stop();
}

/// One slice beside such a crowd.
fn measure(daemon: &Daemon, door: &Door, good: &mut Client, crowd: &Crowd) -> Slice {
    let idle = |count| (0..count).map(|_| door.enter().expect("a connection")).collect::<Vec<Wire>>();
    let crowd_there: Vec<Wire> = match crowd {
        Crowd::Nobody | Crowd::Vanishing => Vec::new(),
        Crowd::Idle => idle(1000),
        Crowd::IdleAndHostile => idle(1000).into_iter().chain(hold_what_they_can(door)).collect(),
        Crowd::HalfOpen => (0..10_000).map(|_| door.knock()).collect(),
    };
    wait_until_settled(daemon, good);
    let done = AtomicBool::new(!matches!(crowd, Crowd::Vanishing));
    let slice = std::thread::scope(|threads| {
        threads.spawn(|| {
            let mut number = 0;
            while !done.load(Ordering::Acquire) {
                vanish(door, number);
                number += 1;
                std::thread::sleep(Duration::from_secs(1) / VANISHING);
            }
        });
        let slice = run(daemon, good);
        done.store(true, Ordering::Release);
        slice
    });
    drop(crowd_there);
    wait_until_settled(daemon, good);
    slice
}

/// Waits until the daemon is done with those who came or went: its descriptors stay as many while it answers.
fn wait_until_settled(daemon: &Daemon, good: &mut Client) {
    let mut before = 0;
    loop {
        (0..100).for_each(|_| good.flush().expect("a flush"));
        let now = cost(daemon).descriptors;
        if now == before {
            return;
        }
        before = now;
    }
}

fn run(daemon: &Daemon, good: &mut Client) -> Slice {
    let (mut chance, before, started) = (Chance::new(1), cpu_seconds(daemon), Instant::now());
    let data = chance.bytes(BLOCK as usize);
    let mut sent = 0;
    while sent < REQUESTS || good.in_flight() > 0 {
        while sent < REQUESTS && good.in_flight() < DEPTH {
            let offset = (FIRST + chance.below(BLOCKS)) * BLOCK;
            match sent % 2 {
                0 => good.queue(Command::Read, offset, BLOCK as u32, &[]),
                _ => good.queue(Command::Write, offset, BLOCK as u32, &data),
            };
            sent += 1;
        }
        good.push().expect("it is sent");
        loop {
            assert_eq!(good.receive().expect("a reply").error, 0);
            if good.in_flight() == 0 || !good.has_received() {
                break;
            }
        }
    }
    good.flush().expect("a flush");
    Slice { seconds: started.elapsed().as_secs_f64(), cpu_seconds: cpu_seconds(daemon) - before }
}

/// CPU time of the daemon's threads so far.
fn cpu_seconds(daemon: &Daemon) -> f64 {
    let threads = std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).expect("a running daemon");
    let spent = |folder: &Path| {
        let line = std::fs::read_to_string(folder.join("schedstat")).ok()?; // a thread may just have ended
        line.split(' ').next()?.parse::<u64>().ok()
    };
    threads.flatten().filter_map(|thread| spent(&thread.path())).sum::<u64>() as f64 / 1e9
}

//! Replacement policies on published traces, beside what a reference simulator says of them (libcachesim 0.3.5). The traces are not part of the
//! project; without them these tests say so, and what remains is checked on sequences of our own.

use std::path::{Path, PathBuf};

use serde_json::Value;
use tidegate_engine::policy::{Curve, Kind};
use tidegate_sim::chance::Chance;
use tidegate_sim::experiment::load::trace::{Format, read};
use tidegate_sim::policies::comparison::in_parallel;
use tidegate_sim::policies::{BLOCK_ATOMS, Rings, accesses, least_misses, misses, misses_deferred, working_set};

/// Trace by its name in the reference, its file, and how it is written.
const TRACES: [(&str, &str, Format); 20] = [
    ("cloudphysics-vscsi", "cloudphysics/cloudPhysicsIO.vscsi.zst", Format::Vscsi),
    ("mqsim-tpcc-small", "mqsim/tpcc-small.trace.zst", Format::Mqsim),
    ("mqsim-wsrch-small", "mqsim/wsrch-small.trace.zst", Format::Mqsim),
    ("disksim-ascii", "disksim/ascii.trace.zst", Format::Disksim),
    ("arc-OLTP", "arc/OLTP.lis.zst", Format::Arc),
    ("arc-P3", "arc/P3.lis.zst", Format::Arc),
    ("lirs-2_pools", "lirs/2_pools.trace.gz", Format::Keys),
    ("lirs-backf", "lirs/backf.trace.gz", Format::Keys),
    ("lirs-cpp", "lirs/cpp.trace.gz", Format::Keys),
    ("lirs-cs", "lirs/cs.trace.gz", Format::Keys),
    ("lirs-gli", "lirs/gli.trace.gz", Format::Keys),
    ("lirs-loop", "lirs/loop.trace.gz", Format::Keys),
    ("lirs-multi1", "lirs/multi1.trace.gz", Format::Keys),
    ("lirs-multi2", "lirs/multi2.trace.gz", Format::Keys),
    ("lirs-ps", "lirs/ps.trace.gz", Format::Keys),
    ("lirs-scan", "lirs/scan.trace.gz", Format::Keys),
    ("lirs-sprite", "lirs/sprite.trace.gz", Format::Keys),
    ("lirs-zigzag", "lirs/zigzag.trace.gz", Format::Keys),
    ("cache2k-web07", "cache2k/web07.trace.xz", Format::Keys32),
    ("cache2k-web12", "cache2k/web12.trace.xz", Format::Keys32),
];

/// The first one again, each request an access of its first sector.
const LBN: (&str, &str, Format) = ("cloudphysics-vscsi-lbn", "cloudphysics/cloudPhysicsIO.vscsi.zst", Format::Vscsi);

fn traces() -> Option<PathBuf> {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/traces");
    let folder = std::env::var_os("TIDEGATE_TRACES").map_or(default, PathBuf::from);
    let is_there = folder.join("reference_miss_ratios.json").exists();
    if !is_there {
        println!("skipped: no published traces in {}; TIDEGATE_TRACES names their folder", folder.display());
    }
    is_there.then_some(folder)
}

/// Six digits, as the reference gives them.
fn ratio(misses: u64, accesses: &[u64]) -> f64 {
    (misses as f64 / accesses.len() as f64 * 1e6).round() / 1e6
}

#[test]
fn lru_fifo_clock_and_the_least_are_those_of_the_reference_to_six_digits() {
    let Some(folder) = traces() else { return };
    let reference: Value = serde_json::from_str(&std::fs::read_to_string(folder.join("reference_miss_ratios.json")).unwrap()).unwrap();
    let mut compared = 0;
    for (name, file, format) in TRACES {
        let accesses = accesses(&read(&folder.join(file), format, BLOCK_ATOMS, None).unwrap());
        for row in reference.as_array().unwrap().iter().filter(|row| row["trace"] == name) {
            let capacity = row["cache"].as_u64().unwrap() as usize;
            for (policy, kind) in [("LRU", Some(Kind::Lru)), ("FIFO", Some(Kind::Fifo)), ("CLOCK", Some(Kind::Clock)), ("Belady", None)] {
                let missed = kind.map_or_else(|| least_misses(capacity, &accesses), |kind| misses(kind, capacity, &accesses));
                let Some(wanted) = row["miss"][policy].as_f64() else { continue };
                assert_eq!(ratio(missed, &accesses), wanted, "{name}, {capacity} blocks, {policy}");
                compared += 1;
            }
        }
    }
    assert!(compared >= 300, "{compared} figures were compared");
}

/// The policies that the chooser is held against.
const SINGLES: [(&str, Kind); 7] = [
    ("LRU", Kind::Lru),
    ("ARC", Kind::Arc),
    ("LIRS", Kind::Lirs),
    ("TwoQ", Kind::TwoQ),
    ("WTinyLFU", Kind::TinyLfu),
    ("S3FIFO", Kind::S3Fifo),
    ("Sieve", Kind::Sieve),
];

/// Every row is printed. Best: of ours and of the reference's, whichever is better.
#[test]
fn the_chooser_is_near_the_best_policy_on_every_trace() {
    let Some(folder) = traces() else { return };
    let reference: Value = serde_json::from_str(&std::fs::read_to_string(folder.join("reference_miss_ratios.json")).unwrap()).unwrap();
    let (mut rows, mut logarithms, mut points, mut worst) = (0, 0.0, 0.0, 0.0f64);
    for (name, file, format) in TRACES.iter().chain(&[LBN]) {
        let trace = read(&folder.join(file), *format, BLOCK_ATOMS, None).unwrap();
        let keys = if *name == LBN.0 { trace.records.iter().map(|record| record.start).collect() } else { accesses(&trace) };
        for row in reference.as_array().unwrap().iter().filter(|row| row["trace"] == *name) {
            let capacity = row["cache"].as_u64().unwrap() as usize;
            let kinds: Vec<Kind> = SINGLES.iter().map(|&(_, kind)| kind).chain([Kind::Chooser]).collect();
            let ratios = in_parallel(&kinds, 2, &mut |_, _| {}, |&kind| misses(kind, capacity, &keys) as f64 / keys.len() as f64);
            let theirs = SINGLES.iter().filter_map(|(policy, _)| row["miss"][policy].as_f64()).fold(1.0, f64::min);
            let (ours, chooser) = (ratios[..SINGLES.len()].iter().copied().fold(1.0, f64::min), ratios[SINGLES.len()]);
            let off = 100.0 * (chooser - ours.min(theirs));
            println!("{name}, {capacity} blocks: chooser {chooser:.4}, best {ours:.4}, reference's best {theirs:.4}, {off:+.2} points");
            (rows, logarithms, points, worst) = (rows + 1, logarithms + (chooser / ratios[0]).ln(), points + off, worst.max(off));
        }
    }
    let over_lru = (logarithms / f64::from(rows)).exp();
    println!("{rows} rows: misses over LRU's {over_lru:.4}; {:+.2} points on average, {worst:+.2} at worst", points / f64::from(rows));
    assert!(rows > 80 && over_lru <= 0.907, "{over_lru} of LRU's misses in {rows} rows");
    assert!(points / f64::from(rows) <= 0.5 && worst <= 5.0, "{points} points in {rows} rows, {worst} at worst");
}

/// Points of the miss ratio by which a policy that is told of hits late may be off one that is told at once.
const LATE_POINTS: f64 = 0.3;

/// Every policy at these sizes, told of hits from rings like these. Where each thread has one access under way, or all are of one thread, hits have
/// an order, and nothing may differ. Where several have several, theirs is one of many orders, and in a cache that holds little more than what is
/// under way that decides what is kept: smaller ones are not compared.
fn told_late_is_as_good(name: &str, capacities: &[usize], rings: &[Rings], accesses: &[u64]) {
    let tasks: Vec<(usize, Kind)> = capacities.iter().flat_map(|&capacity| Kind::ALL.map(|(_, kind)| (capacity, kind))).collect();
    let off = in_parallel(&tasks, 2, &mut |_, _| {}, |&(capacity, kind)| {
        let exact = misses(kind, capacity, accesses);
        let off = |rings: &Rings| {
            let is_ordered = rings.threads == 1 || rings.queue == 1;
            if !is_ordered && capacity < 10 * rings.threads * rings.queue {
                return 0.0;
            }
            let late = misses_deferred(kind, capacity, *rings, accesses);
            assert!(!is_ordered || late == exact, "{name}, {capacity} blocks, {kind:?}, {rings:?}: {late} misses, not {exact}");
            100.0 * late.abs_diff(exact) as f64 / accesses.len() as f64
        };
        rings.iter().map(off).collect::<Vec<_>>()
    });
    for ((capacity, kind), off) in tasks.iter().zip(off) {
        assert!(off.iter().all(|&points| points <= LATE_POINTS), "{name}, {capacity} blocks, {kind:?}: {off:?} points");
    }
}

#[test]
fn hits_that_are_told_late_change_little_on_every_trace() {
    let Some(folder) = traces() else { return };
    let rings = [(4, 8, 256), (4, 1, 256), (1, 8, 64)].map(|(threads, queue, notes)| Rings { threads, queue, notes });
    for (name, file, format) in TRACES {
        let accesses = accesses(&read(&folder.join(file), format, BLOCK_ATOMS, None).unwrap());
        let working_set = working_set(&accesses) as usize;
        // The longest ones take their time: one size, and what several threads do.
        let (capacities, count) = if accesses.len() > 1_000_000 { (1, 2) } else { (2, rings.len()) };
        told_late_is_as_good(name, &[working_set / 10, working_set / 100][..capacities], &rings[..count], &accesses);
    }
}

#[test]
fn hits_that_are_told_late_change_little_and_something() {
    let keys = zipf(60_000, 5_000);
    let rings = [(1, 8, 64), (4, 1, 64), (4, 32, 256)].map(|(threads, queue, notes)| Rings { threads, queue, notes });
    told_late_is_as_good("zipf", &[10, 50, 500, 1300], &rings, &keys);
    let late = misses_deferred(Kind::Lru, 50, rings[2], &keys);
    assert_ne!(misses(Kind::Lru, 50, &keys), late, "was anything told in another order?");
}

/// So many draws of so many keys, the k-th of them with a weight of 1/k.
fn zipf(draws: usize, keys: u64) -> Vec<u64> {
    let mut chance = Chance::new(7, "zipf");
    let weights: Vec<f64> = (1..=keys)
        .scan(0.0, |sum, key| {
            *sum += 1.0 / key as f64;
            Some(*sum)
        })
        .collect();
    let total = *weights.last().unwrap();
    let draw =
        |chance: &mut Chance| weights.partition_point(|&below| below < total * chance.below(1 << 40) as f64 / (1u64 << 40) as f64) as u64;
    (0..draws).map(|_| draw(&mut chance)).collect()
}

/// LRU's misses at these sizes are within what a curve from a sample says of its error.
fn a_curve_is_within_its_error(name: &str, rate: f64, capacities: &[usize], accesses: &[u64]) {
    let mut curve = Curve::new(rate);
    accesses.iter().for_each(|&key| curve.touch(key));
    let exact = |capacity: f64| misses(Kind::Lru, capacity.round() as usize, accesses) as f64 / accesses.len() as f64;
    for &capacity in capacities.iter().filter(|&&capacity| capacity as u64 >= curve.blocks_min()) {
        let (found, off) = (curve.miss_ratio(capacity as u64), curve.size_error(capacity as u64));
        let band = exact(capacity as f64 * (1.0 + off)) - curve.error()..=exact(capacity as f64 * (1.0 - off)) + curve.error();
        assert!(band.contains(&found), "{name} at {rate}, {capacity} blocks: {found}, not in {band:?}");
    }
}

#[test]
fn a_curve_is_within_its_error_on_every_trace() {
    let Some(folder) = traces() else { return };
    for (name, file, format) in TRACES {
        let accesses = accesses(&read(&folder.join(file), format, BLOCK_ATOMS, None).unwrap());
        let working_set = working_set(&accesses) as usize;
        let capacities = [100, 20, 10, 4, 2, 1].map(|part| working_set / part);
        a_curve_is_within_its_error(name, 1.0, &capacities, &accesses);
        if working_set > 10_000 {
            a_curve_is_within_its_error(name, 0.1, &capacities, &accesses);
        }
    }
}

#[test]
fn a_curve_is_within_its_error_on_zipf() {
    let keys = zipf(400_000, 100_000);
    for rate in [1.0, 0.3, 0.1] {
        a_curve_is_within_its_error("zipf", rate, &[10, 100, 1_000, 10_000, 50_000], &keys);
    }
}

#[test]
fn the_least_is_the_least() {
    let keys: Vec<u64> = (0..6_000u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40).map(|key| key % 150).collect();
    assert!(working_set(&keys) > 60);
    for capacity in [1, 7, 50, 100] {
        let least = least_misses(capacity, &keys);
        for (name, kind) in Kind::ALL {
            assert!(misses(kind, capacity, &keys) >= least, "{name} at {capacity}");
        }
    }
    assert_eq!(least_misses(1_000, &keys), working_set(&keys));
    // 1 2 3 1 2 3 with two places: 3 has to go for 1 or 2, and so on: four misses.
    assert_eq!(least_misses(2, &[1, 2, 3, 1, 2, 3]), 4);
}

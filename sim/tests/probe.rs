//! The probe on models of drives, of which the truth is known: it finds the interleave, the width and the knee of the model's file, however
//! noisy the line is, and nothing where there is nothing.

use tidegate_engine::device_probe::{Finding, Findings, Unseen};
use tidegate_engine::time::{Duration, Instant};
use tidegate_sim::back::model::spec::Layout;
use tidegate_sim::back::model::{Cause, Command, Spec, What};
use tidegate_sim::chance::Chance;
use tidegate_sim::probe::{Noise, probe};

const QUIET: Noise = Noise { percent: 0, held_up: 0 };
/// Each access is heard of a tenth late, and one in a hundred is held up for a millisecond.
const NOISY: Noise = Noise { percent: 10, held_up: 100 };
const TIME: Duration = Duration::from_secs(20);

/// A model that was written in order.
fn written(name: &str) -> Spec {
    Spec::load(name).unwrap().with_capacity_mb(4_000).aged(100, 0)
}

/// KiB that lie together, and over how many parts.
fn interleave(found: &Findings) -> Option<(u64, u64)> {
    found.interleave.seen().map(|seen| (seen.piece_bytes >> 10, seen.width))
}

fn stretches(found: &Findings) -> Option<u64> {
    found.stretches.seen().map(|seen| seen.count)
}

/// What is found with each noise, by three seeds.
fn check(spec: &Spec, expect: impl Fn(&Findings)) {
    for noise in [QUIET, NOISY] {
        for seed in 1..=3 {
            expect(&probe(spec, noise, false, TIME, seed));
        }
    }
}

#[test]
fn a_striped_map_is_found_as_the_file_of_the_model_says() {
    for (name, piece_kib, width) in [("mx100-256gb", 32, 16), ("mx100-4-dies", 32, 4), ("nvme-tlc", 64, 32), ("x25-m-80gb", 4, 20)] {
        check(&written(name), |found| {
            assert_eq!(interleave(found), Some((piece_kib, width)), "{name}: {:?}", found.interleave);
            assert!(matches!(found.interleave, Finding::Seen { sure, .. } if sure >= 0.95), "{name}: {:?}", found.interleave);
            assert_eq!(stretches(found), None, "{name}: {:?}", found.stretches);
        });
    }
}

#[test]
fn a_contiguous_map_is_stretches_with_an_interleave_inside() {
    let spec = Spec::load("mx100-256gb").unwrap().with_capacity_mb(4_000).aged(100, 0).laid_out(Layout::Contiguous).unwrap();
    check(&spec, |found| {
        assert_eq!(stretches(found), Some(8), "{:?}", found.stretches);
        assert_eq!(interleave(found), Some((32, 2)), "two dies of a channel: {:?}", found.interleave);
        assert_eq!(found.width(), Some(16));
    });
}

#[test]
fn what_a_collision_costs_is_the_time_that_flash_is_read_for() {
    for (name, read_us) in [("mx100-256gb", 115), ("nvme-tlc", 56)] {
        let found = probe(&written(name), QUIET, false, TIME, 1);
        let cost = found.interleave.seen().unwrap().cost.0 as f64 / 1e3;
        assert!((cost / f64::from(read_us) - 1.0).abs() < 0.1, "{name}: {cost} µs of {read_us}");
    }
}

#[test]
fn parts_are_counted_by_chance_meetings_whatever_the_map_is() {
    // Overwritten at random: no distance means anything any more.
    for (name, parts) in [("mx100-4-dies", 4.0), ("mx100-256gb", 16.0)] {
        for seed in 1..=3 {
            let found = probe(&Spec::load(name).unwrap().with_capacity_mb(4_000).aged(100, 2), NOISY, false, TIME, seed);
            assert_eq!(found.interleave, Finding::Unseen(Unseen::Even), "{name}");
            let seen = found.parts.seen().unwrap_or_else(|| panic!("{name}: {found:?}"));
            // Two standard deviations miss one in twenty: three never should.
            let (below, above) = (1.5 * (seen.count - seen.low), 1.5 * (seen.high - seen.count));
            assert!((seen.count / parts - 1.0).abs() < 0.15, "{name}: {seen:?}");
            assert!(seen.count - below < parts && parts < seen.count + above, "{name}: {seen:?}");
        }
    }
}

#[test]
fn nothing_is_found_where_there_is_nothing() {
    for (spec, why) in [
        (Spec::load("hdd-7200-2018").unwrap(), Unseen::Arm),
        (Spec::load("hdd-7200-2010").unwrap(), Unseen::Arm),
        (Spec::load("network-1ms").unwrap(), Unseen::Even),
        (written("mtron-3035"), Unseen::OneAtATime),
        (written("ssd-100gb-2010"), Unseen::OneAtATime),
        // Never written: the controller answers alone.
        (Spec::load("mx100-256gb").unwrap(), Unseen::Memory),
    ] {
        check(&spec, |found| {
            assert_eq!(found.interleave, Finding::Unseen(why));
            assert_eq!(found.stretches, Finding::Unseen(why));
            assert!(found.parts.seen().is_none(), "{:?}", found.parts);
        });
    }
}

/// Reads a second of a closed loop of random reads.
fn throughput(spec: &Spec, depth: usize) -> f64 {
    const READS: u64 = 20_000;
    let mut model = spec.build(1);
    let (mut chance, mut now, mut ended) = (Chance::new(9, "loop"), Instant::ZERO, Vec::new());
    let mut submit = |model: &mut tidegate_sim::back::model::Model, now, id| {
        let start = chance.below(spec.capacity() / 4_096) * 8;
        model.submit(now, Command { id, what: What::Read, start, atoms: 8, cause: Cause::HostRead });
    };
    (0..depth as u64).for_each(|id| submit(&mut model, now, id));
    let mut id = depth as u64;
    while id < READS {
        now = model.next().unwrap();
        model.advance(now, &mut ended);
        for _ in ended.drain(..) {
            submit(&mut model, now, id);
            id += 1;
        }
    }
    (READS - depth as u64) as f64 * 1e9 / now.0 as f64
}

#[test]
fn the_knee_has_the_throughput_of_the_greatest_depth_and_half_of_it_has_not() {
    for name in ["mx100-256gb", "mx100-4-dies", "x25-m-80gb", "network-1ms"] {
        let spec = written(name);
        let greatest = throughput(&spec, 128);
        for seed in 1..=3 {
            let found = probe(&spec, QUIET, false, TIME, seed);
            let Finding::Seen { what: knee, sure } = found.knee else { panic!("{name}: no knee: {:?}", found.curve) };
            let (at, half) = (knee.depth.round() as usize, (knee.depth / 2.0).round() as usize);
            let [at, half] = [at, half].map(|depth| throughput(&spec, depth) / greatest);
            assert!(at > 0.93 && half < 0.93, "{name}: {knee:?}, {at} of the greatest throughput, {half} at half the depth");
            assert!(sure > 0.8, "{name}: {sure}");
        }
    }
    // 1 ms each, and one after the other on the link: 1 / 0.365.
    let knee = |spec: &Spec| *probe(spec, QUIET, false, TIME, 1).knee.seen().expect("a knee");
    assert!((knee(&written("network-1ms")).depth - 2.8).abs() < 0.2);
    assert_eq!(knee(&written("mtron-3035")).depth, 1.0);
}

#[test]
fn a_drive_that_takes_more_than_is_tried_has_no_knee() {
    check(&written("nvme-tlc"), |found| assert_eq!(found.knee, Finding::Unseen(Unseen::Grows), "{:?}", found.curve));
}

#[test]
fn overwriting_puts_a_used_drive_in_order_and_shows_what_reads_suffer() {
    let found = probe(&Spec::load("mx100-4-dies").unwrap().with_capacity_mb(4_000).aged(90, 1), NOISY, true, TIME, 1);
    assert_eq!(interleave(&found), Some((32, 4)));
    assert_eq!(found.stretches, Finding::Unseen(Unseen::Part));
    let beside = found.beside.seen().expect("it may write");
    let [alone, with] = [beside.alone.unwrap(), beside.beside.unwrap()];
    // A read that meets a program waits for its 1.55 ms.
    assert!(alone.p99 < Duration::from_micros(1_550) && with.p99 >= Duration::from_micros(1_550), "{alone:?} {with:?}");
    assert!(beside.writes.unwrap().count > 0);
}

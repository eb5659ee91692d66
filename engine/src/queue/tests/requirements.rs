//! The six requirements of paper 003 (section 3.2), each of AC; three of them counted beside noop, because it is those that noop does not meet.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{BLOCKS, Bench, LANES};
use crate::op::Class;
use crate::queue::QueueKind;
use crate::time::{Duration, Instant};

const BATCH: u32 = 8;

fn lane(block: u64) -> u64 {
    block * LANES / BLOCKS
}

/// Blocks all over the device, no two of them neighbours.
fn somewhere(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 45 << 1
}

#[test]
fn first_what_somebody_waits_for_goes_before_what_nobody_waits_for() {
    let mut bench = Bench::new(QueueKind::Ac, 64, 64);
    (0..4).for_each(|id| bench.push(id, somewhere(id), Class::Fill));
    (4..8).for_each(|id| bench.read(id, somewhere(id)));
    let mut order = bench.popped();
    order.iter_mut().for_each(|id| *id /= 4);
    assert_eq!(order, [1, 1, 1, 1, 0, 0, 0, 0]);
    (20..24).for_each(|id| bench.change(id, somewhere(id), Class::Destage));
    (24..28).for_each(|id| bench.write(id, somewhere(id)));
    let mut order = bench.popped();
    order.iter_mut().for_each(|id| *id /= 4);
    assert_eq!(order, [6, 6, 6, 6, 5, 5, 5, 5]);
}

/// Of 16 reads that are under way at once, out of 128 that wait: how many meet more than one other on their lane, summed over `flights`.
fn conflicts(kind: QueueKind, flights: u64) -> u64 {
    let mut bench = Bench::new(kind, 16, 16);
    (0..112).for_each(|id| bench.read(id, somewhere(id)));
    let mut conflicts = 0;
    for number in 0..flights {
        let first = 112 + number * 16;
        (first..first + 16).for_each(|id| bench.read(id, somewhere(id)));
        let mut lanes = [0; LANES as usize];
        for id in bench.popped() {
            lanes[lane(somewhere(id)) as usize] += 1;
            bench.done(id);
        }
        // Evenly spread, each lane has two.
        conflicts += lanes.iter().map(|&count: &u64| count.saturating_sub(2)).sum::<u64>();
    }
    conflicts
}

#[test]
fn second_reads_that_are_under_way_together_meet_on_fewer_lanes() {
    let [noop, ac] = [QueueKind::Noop, QueueKind::Ac].map(|kind| conflicts(kind, 500));
    assert!(ac * 4 <= noop, "{ac} conflicts in a lane, {noop} in the order of arrival");
}

#[test]
fn third_neither_writes_nor_what_nobody_waits_for_starve() {
    let mut bench = Bench::new(QueueKind::Ac, 1, 1);
    let mut id = 0;
    let mut read = |bench: &mut Bench| {
        bench.read(id, somewhere(id));
        id += 1;
    };
    (0..100).for_each(|_| read(&mut bench));
    bench.write(1_000_000, 7);
    bench.push(1_000_001, 9, Class::Fill);
    let (mut write_after, mut fill_after) = (None, None);
    for turn in 0..30_000 {
        let next = bench.queue_next().unwrap();
        match next {
            1_000_000 => write_after = Some(turn),
            1_000_001 => fill_after = Some(bench.now),
            _ => {}
        }
        bench.done(next);
        read(&mut bench);
        bench.now = bench.now + Duration::from_micros(200);
    }
    assert_eq!(write_after, Some(5), "one write after five reads");
    let limit = Instant::ZERO + Duration::from_millis(4_000 + 2 * u64::from(BATCH));
    assert!(fill_after.is_some_and(|at| at <= limit), "{fill_after:?}");
}

#[test]
fn fourth_the_order_is_made_on_the_host_and_needs_no_queue_in_the_device() {
    let order = |depth: usize| {
        let mut bench = Bench::new(QueueKind::Ac, depth, 64);
        (0..64).for_each(|id| if id % 3 == 0 { bench.write(id, somewhere(id)) } else { bench.read(id, somewhere(id)) });
        let mut order = Vec::new();
        while let Some(id) = bench.queue_next() {
            order.push(id);
            if order.len() >= depth {
                bench.done(order[order.len() - depth]);
            }
        }
        order
    };
    assert_eq!(order(1), order(64));
}

/// How often a lane changes from reads to writes or back.
fn changes(kind: QueueKind) -> u64 {
    let mut bench = Bench::new(kind, 1, 1);
    let is_write = |id: u64| somewhere(id ^ 0x5555).is_multiple_of(4);
    let push = |bench: &mut Bench, id: u64| if is_write(id) { bench.write(id, somewhere(id)) } else { bench.read(id, somewhere(id)) };
    (0..256).for_each(|id| push(&mut bench, id));
    let (mut last, mut changes) = ([false; LANES as usize], 0);
    for id in 256..10_000 {
        let next = bench.queue_next().unwrap();
        let before = std::mem::replace(&mut last[lane(somewhere(next)) as usize], is_write(next));
        changes += u64::from(before != is_write(next));
        bench.done(next);
        push(&mut bench, id);
    }
    changes
}

#[test]
fn fifth_reads_and_writes_are_kept_apart_in_a_lane() {
    let [noop, ac] = [QueueKind::Noop, QueueKind::Ac].map(changes);
    assert!(ac * 10 <= noop * 9, "{ac} changes in a lane, {noop} in the order of arrival");
    // And a lane that is being written is not read while others can be.
    let mut bench = Bench::new(QueueKind::Ac, 64, 64);
    [0, 2, 4].into_iter().for_each(|block| bench.write(block, block));
    assert_eq!(bench.queue_next(), Some(0));
    (10..13).for_each(|id| bench.read(id, 2 * id));
    bench.read(13, BLOCKS - 2);
    assert_eq!(bench.queue_next(), Some(13));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    /// Sixth: deadlines. In any pattern, what has expired is passed by one batch at most, and by nothing that expires later than it from then on.
    #[test]
    fn sixth_nobody_waits_longer_than_his_deadline_and_one_batch(
        steps in prop::collection::vec((0..5u8, 0..4u8, 0..400u64), 100..800),
        depth in 1..20usize,
        patient in 1..4usize,
        pops in 1..4usize,
    ) {
        let mut bench = Bench::new(QueueKind::Ac, depth, patient);
        // Deadline of each that waits, and how many have passed it since.
        let mut waiting: BTreeMap<u64, (Instant, u32)> = BTreeMap::new();
        for (id, (what, kind, millis)) in steps.into_iter().enumerate() {
            let id = id as u64;
            let (class, expires) = match kind {
                0 | 1 => (Class::Client, [500, 2_000]),
                _ => (Class::Clean, [4_000, 16_000]),
            };
            let is_write = kind % 2 == 1;
            // Every lane, or one alone.
            let block = if what == 0 { id * 2 } else { somewhere(id) };
            if is_write { bench.change(id, block, class) } else { bench.push(id, block, class) }
            waiting.insert(id, (bench.now + Duration::from_millis(expires[usize::from(is_write)]), 0));
            for _ in 0..pops {
                if bench.device.len() == depth {
                    let first = *bench.device.keys().next().unwrap();
                    bench.done(first);
                }
                let Some(next) = bench.queue_next() else {
                    // Places are free: nothing that has expired waits, and it will be asked when the next one does.
                    let now = bench.now;
                    prop_assert!(waiting.values().all(|(deadline, _)| *deadline > now));
                    let first = waiting.values().map(|(deadline, _)| *deadline).min();
                    prop_assert!(bench.queue.deadline() == first);
                    continue;
                };
                let (deadline, _) = waiting.remove(&next).expect("it waits");
                for (other, passed) in waiting.values_mut().filter(|(other, _)| *other <= bench.now && *other < deadline) {
                    *passed += 1;
                    prop_assert!(*passed <= BATCH, "{:?} at {:?} was passed by {} others", other, bench.now, passed);
                }
            }
            bench.now = bench.now + Duration::from_millis(if what < 3 { 0 } else { millis });
        }
    }
}

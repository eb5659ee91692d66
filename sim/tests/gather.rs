//! Gather: small writes go to the SSD as large ones, and with `dirty_ram` they are acknowledged before that.

use std::collections::BTreeSet;
use std::ops::Range;

use tidegate_engine::Config;
use tidegate_engine::block::{ATOM_BYTES, Span};
use tidegate_engine::cache::format::Geometry;
use tidegate_engine::config::Allocation;
use tidegate_engine::op::{DeviceId, Zone};
use tidegate_engine::probe::WaitReason;
use tidegate_engine::request::RequestId;
use tidegate_engine::time::Duration;
use tidegate_sim::back::fault::Fault;
use tidegate_sim::back::volatile::Survive;
use tidegate_sim::scenario::{Scenario, plan_for};
use tidegate_sim::stamp::Stamps;
use tidegate_sim::world::Simulation;

/// So many blocks may be acknowledged and in memory alone.
fn with_ram(blocks: u64) -> Scenario {
    Scenario::with(|plan| plan.config.dirty_ram = blocks * 8 * ATOM_BYTES)
}

/// Sets of 256 blocks of 4 KiB, and 4 MiB of memory for what is not on the SSD.
fn with_large_sets(change: impl FnOnce(&mut Config)) -> Scenario {
    let geometry = Geometry { block_atoms: 8, set_slots: 256, sets: 16, journal_pages: 256, volume_atoms: 16_384, range_entries: 252 };
    let mut plan = plan_for(geometry);
    plan.config.dirty_ram = 4 << 20;
    change(&mut plan.config);
    Scenario::of(plan)
}

/// Every other write goes to one of eight blocks that are written all the time, the others to blocks that are written once: to different sets,
/// where there are classes.
fn hot_or_new(i: u64) -> u64 {
    if i.is_multiple_of(2) { i / 2 % 8 } else { 100 + i }
}

/// Blocks of each write to the data sets of the SSD, in order.
fn data_writes(scenario: &Scenario) -> Vec<u64> {
    let writes = scenario.noted().iter().filter(|op| op.device == DeviceId::Cache && op.writes && op.zone == Some(Zone::Data));
    writes.map(|op| op.span.atoms / 8).collect()
}

fn send(scenario: &mut Scenario, blocks: impl IntoIterator<Item = u64>) -> Vec<(RequestId, Stamps)> {
    blocks.into_iter().map(|block| scenario.send_write(scenario.block(block), false)).collect()
}

#[test]
fn a_write_is_acknowledged_and_read_from_memory_and_a_flush_waits_until_the_ssd_has_it() {
    let mut scenario = with_ram(64);
    scenario.hold(Zone::Data);
    let data = scenario.write(3);
    scenario.expect(3, &data);
    let flush = scenario.send_flush();
    scenario.run_until_quiet();
    assert!(!scenario.is_answered(flush), "the data is on its way");
    scenario.release(Zone::Data);
    scenario.wait(flush).expect("a flush");
    scenario.power_cut(Survive::None);
    scenario.expect(3, &data);
}

#[test]
fn without_dirty_ram_a_write_is_acknowledged_when_it_has_landed() {
    let mut scenario = with_ram(0);
    scenario.hold(Zone::Data);
    let sent = send(&mut scenario, [3]);
    scenario.run_until_quiet();
    assert!(!scenario.is_answered(sent[0].0));
    scenario.release(Zone::Data);
    scenario.wait(sent[0].0).expect("a write");
}

#[test]
fn what_comes_while_a_write_is_on_its_way_becomes_one_write() {
    let mut scenario = with_ram(64);
    scenario.hold(Zone::Data);
    let sent: Vec<Stamps> = (0..6).map(|block| scenario.write(block * 7)).collect();
    assert_eq!(data_writes(&scenario), [1], "nothing was on its way before the first one");
    scenario.release(Zone::Data);
    scenario.run_until_quiet();
    assert_eq!(data_writes(&scenario), [1, 5]);
    scenario.flush();
    scenario.power_cut(Survive::None);
    (0..6).for_each(|block| scenario.expect(block * 7, &sent[block as usize]));
}

#[test]
fn what_one_turn_places_is_one_write_although_clients_wait_for_it() {
    let mut scenario = Scenario::begin(Simulation::new(tidegate_sim::scenario::plan()));
    let sent = send(&mut scenario, [9, 3, 60, 4]);
    scenario.until_serving();
    for (id, _) in &sent {
        scenario.wait(*id).expect("a write");
    }
    assert_eq!(data_writes(&scenario), [4]);
}

#[test]
fn what_is_large_or_ends_its_set_waits_for_nothing() {
    let mut scenario = with_large_sets(|_| {});
    scenario.hold(Zone::Data);
    (0..256).for_each(|block| drop(scenario.write(block * 3)));
    assert_eq!(data_writes(&scenario), [1, 64, 64, 64, 63], "256 KiB each, and what is left of the set");
    scenario.write_span(scenario.blocks(1_000, 256));
    assert_eq!(data_writes(&scenario)[5..], [256]);
    scenario.release(Zone::Data);
    scenario.flush();
}

/// A client that sends its next small write 100 µs after the one before was acknowledged, when the SSD has nothing to do any more.
fn write_one_by_one(scenario: &mut Scenario, blocks: Range<u64>) -> Vec<Stamps> {
    let write = |block: u64| {
        let data = scenario.write(block);
        scenario.advance(Duration::from_micros(100));
        data
    };
    blocks.map(write).collect()
}

#[test]
fn a_long_burst_of_small_writes_is_held_a_moment_and_becomes_few_writes() {
    let mut scenario = with_large_sets(|_| {});
    let mut sent = write_one_by_one(&mut scenario, 0..256);
    assert_eq!(data_writes(&scenario), [1; 256], "as long as a FLUSH may come as often");
    scenario.forget_noted();
    sent.extend(write_one_by_one(&mut scenario, 256..356));
    let writes = data_writes(&scenario);
    assert!(writes.iter().all(|&blocks| blocks == 20), "two milliseconds' worth each: {writes:?}");
    assert!((4..=5).contains(&writes.len()), "{writes:?}");
    scenario.advance(Duration::from_millis(2));
    assert_eq!(data_writes(&scenario).iter().sum::<u64>(), 100, "the last of it waits for no other write");
    scenario.forget_noted();
    sent[0] = scenario.write(0);
    assert_eq!(data_writes(&scenario), [1], "after a pause nothing more is to be expected");
    scenario.flush();
    scenario.power_cut(Survive::None);
    (0..).zip(&sent).for_each(|(block, data)| scenario.expect(block, data));
}

#[test]
fn a_flush_sends_what_is_held_and_waits_for_nothing_else() {
    let mut scenario = with_large_sets(|_| {});
    write_one_by_one(&mut scenario, 0..300);
    scenario.forget_noted();
    let data = scenario.write(900);
    assert!(data_writes(&scenario).is_empty());
    scenario.expect(900, &data);
    let began = scenario.simulation.now();
    scenario.flush();
    let took = scenario.simulation.now().since(began);
    assert!(took < Duration::from_micros(600), "{took:?}; the SSD's own takes 400 us, and to write a page or 20 KiB 50");
    assert_eq!(data_writes(&scenario), [5], "the last one, and four that had not been sent of the 44 that were held");
    scenario.forget_noted();
    write_one_by_one(&mut scenario, 3..6);
    assert_eq!(data_writes(&scenario), [1; 3], "a FLUSH may come again as soon");
    scenario.power_cut(Survive::None);
    scenario.expect(900, &data);
}

#[test]
fn fua_sends_what_is_held_of_its_group_in_other_sets_beside_its_own() {
    let mut scenario = with_large_sets(|config| (config.classes, config.long_burst) = (4, 0));
    (0..400).for_each(|i| drop(scenario.write(hot_or_new(i))));
    scenario.flush();
    scenario.hold(Zone::Data);
    scenario.write(3);
    scenario.write(3);
    scenario.forget_noted();
    let (fua, _) = scenario.send_write(scenario.block(2_000), true);
    scenario.run_until_quiet();
    assert_eq!(data_writes(&scenario), [2, 1], "both at once: they go to different sets");
    scenario.release(Zone::Data);
    scenario.wait(fua).expect("a write with FUA");
}

#[test]
fn of_all_streams_together_no_more_is_held_than_one_large_write() {
    let mut scenario = with_large_sets(|config| config.classes = 4);
    let mut most = 0;
    for i in 0..1_000 {
        drop(scenario.write(hot_or_new(i)));
        scenario.advance(Duration::from_micros(10));
        most = (i + 1 - data_writes(&scenario).iter().sum::<u64>()).max(most);
    }
    assert_eq!(most, 63);
    let sets: BTreeSet<u64> =
        scenario.noted().iter().filter(|op| op.zone == Some(Zone::Data)).map(|op| op.span.start / (256 * 8)).collect();
    assert!(sets.len() > 4, "a thousand blocks of one stream fill four: {sets:?}");
}

/// The SSD has blocks 0 to 300; a long burst is going on.
fn with_a_burst(read_ahead: u64) -> Scenario {
    let mut scenario = with_large_sets(|config| config.read_ahead = read_ahead);
    write_one_by_one(&mut scenario, 0..300);
    scenario.flush();
    write_one_by_one(&mut scenario, 300..600);
    scenario.forget_noted();
    scenario
}

#[test]
fn a_burst_ends_where_the_ssd_is_waited_for() {
    for (read_ahead, reads) in [(0, true), (0, false), (1 << 20, false)] {
        let mut scenario = with_a_burst(read_ahead);
        if reads {
            scenario.read(scenario.block(0)).expect("a read");
        } else {
            let part = Span::new(scenario.block(0).start + 1, 2);
            scenario.write_span(part);
        }
        write_one_by_one(&mut scenario, 600..603);
        let writes = data_writes(&scenario);
        assert_eq!(writes[writes.len() - 3..], [1; 3], "a large write would be before the next read: {writes:?}");
    }
}

#[test]
fn large_writes_are_no_burst_of_small_ones() {
    let mut scenario = with_large_sets(|_| {});
    (0..5).for_each(|i| drop(scenario.write_span(scenario.blocks(i * 100, 70))));
    scenario.run_until_quiet();
    scenario.forget_noted();
    write_one_by_one(&mut scenario, 600..603);
    assert_eq!(data_writes(&scenario), [1; 3]);
}

#[test]
fn nothing_is_held_while_others_need_the_memory() {
    // Room for 16 blocks: while more than half of that is taken nothing is held.
    let mut scenario = with_large_sets(|config| config.dirty_ram = 16 * 8 * ATOM_BYTES);
    write_one_by_one(&mut scenario, 0..300);
    let held = data_writes(&scenario)[256..].iter().max().copied();
    assert_eq!(held, Some(9));
    assert_eq!(data_writes(&scenario).iter().sum::<u64>(), 292, "eight are held");
    // One comes that is larger than what is left: nobody waits two milliseconds for nothing.
    let before = scenario.simulation.now();
    scenario.write_span(scenario.blocks(1_000, 12));
    assert!(scenario.simulation.now().since(before) < Duration::from_micros(500));
}

#[test]
fn no_more_is_acknowledged_than_dirty_ram_holds() {
    let mut scenario = with_ram(4);
    scenario.hold(Zone::Data);
    let sent = send(&mut scenario, 0..6);
    scenario.run_until_quiet();
    let answered: Vec<bool> = sent.iter().map(|(id, _)| scenario.is_answered(*id)).collect();
    assert_eq!(answered, [true, true, true, true, false, false]);
    let waited: u64 =
        scenario.snapshot().counters.waits.iter().filter(|&(reason, _)| reason == WaitReason::Ram).map(|(_, waits)| waits).sum();
    assert_eq!(waited, 1, "the first of them; the other waits for its turn");
    scenario.release(Zone::Data);
    for (id, _) in &sent {
        scenario.wait(*id).expect("a write");
    }
    (0..6).for_each(|block| scenario.expect(block, &sent[block as usize].1));
}

#[test]
fn a_write_larger_than_dirty_ram_is_taken_when_nothing_else_is_in_memory() {
    let mut scenario = with_ram(2);
    let small = scenario.write(60);
    let data = scenario.write_span(scenario.blocks(0, 5));
    let read = scenario.read(scenario.blocks(0, 5)).expect("a read");
    assert_eq!(read, data.stamps().collect::<Vec<_>>());
    scenario.expect(60, &small);
}

#[test]
fn a_write_larger_than_dirty_ram_is_acknowledged_when_the_ssd_has_it() {
    let mut scenario = with_ram(4);
    scenario.hold(Zone::Data);
    let (large, data) = scenario.send_write(scenario.blocks(0, 5), false);
    let small = send(&mut scenario, [60]);
    scenario.run_until_quiet();
    assert!(!scenario.is_answered(large) && !scenario.is_answered(small[0].0), "no more than four blocks are in memory alone");
    scenario.release(Zone::Data);
    scenario.wait(large).expect("a write");
    assert_eq!(scenario.read(scenario.blocks(0, 5)), Ok(data.stamps().collect()));
}

#[test]
fn fua_waits_for_all_that_was_acknowledged_before_in_its_group() {
    let mut scenario = with_ram(64);
    scenario.hold(Zone::Data);
    let first = scenario.write(1);
    let (fua, data) = scenario.send_write(scenario.block(2), true);
    scenario.run_until_quiet();
    assert!(!scenario.is_answered(fua));
    scenario.release(Zone::Data);
    scenario.wait(fua).expect("a write with FUA");
    scenario.power_cut(Survive::None);
    scenario.expect(1, &first);
    scenario.expect(2, &data);
}

#[test]
fn a_write_that_fails_after_its_acknowledgement_goes_elsewhere() {
    let mut scenario = with_ram(64);
    scenario.hold(Zone::Data);
    let first = scenario.write(0);
    scenario.fail_next(Zone::Data, Fault::Error);
    let sent: Vec<Stamps> = (1..6).map(|block| scenario.write(block)).collect();
    let newer = scenario.write(2);
    scenario.release(Zone::Data);
    scenario.flush();
    assert_eq!(scenario.snapshot().counters.cache_write_failures, 1);
    scenario.power_cut(Survive::None);
    scenario.expect(0, &first);
    scenario.expect(2, &newer);
    [1, 3, 4, 5].into_iter().for_each(|block| scenario.expect(block, &sent[block as usize - 1]));
}

#[test]
fn an_ssd_that_fails_before_it_has_what_was_acknowledged_costs_none_of_it() {
    let mut scenario = with_ram(64);
    scenario.hold(Zone::Data);
    let sent: Vec<Stamps> = (0..6).map(|block| scenario.write(block)).collect();
    scenario.cache_goes();
    scenario.until_degraded();
    scenario.flush();
    for (block, data) in (0..).zip(&sent) {
        scenario.expect(block, data);
        let [_, durable] = scenario.on_origin(block);
        assert_eq!(durable, data.stamps().collect::<Vec<_>>());
    }
}

#[test]
fn a_stop_makes_durable_what_was_acknowledged_early() {
    let mut scenario = with_ram(64);
    scenario.hold(Zone::Data);
    let sent: Vec<Stamps> = (0..6).map(|block| scenario.write(block)).collect();
    scenario.release(Zone::Data);
    scenario.stop();
    scenario.power_cut(Survive::None);
    (0..6).for_each(|block| scenario.expect(block, &sent[block as usize]));
}

#[test]
fn overwrites_in_memory_and_on_the_ssd_survive_a_crash_at_every_step() {
    let scenario = with_ram(5);
    crash_at_every_step(scenario);
}

#[test]
fn what_is_held_survives_a_crash_at_every_step_as_far_as_it_was_flushed() {
    crash_at_every_step(Scenario::with(|plan| (plan.config.dirty_ram, plan.config.long_burst) = (64 * 8 * ATOM_BYTES, 0)));
}

fn crash_at_every_step(mut scenario: Scenario) {
    scenario.crash_at_every_step();
    for round in 0..6 {
        send(&mut scenario, (0..9).map(|block| block * (round + 1) % 11));
        let part = scenario.block(round);
        scenario.write_span(Span::new(part.start + 1, 3));
        scenario.trim(scenario.blocks(round, 2));
        scenario.flush();
    }
    assert!(scenario.crashes_tried() > 60, "{} crashes", scenario.crashes_tried());
}

/// Reads these blocks one after the other, 8 ms apart, as a disk gives them.
fn miss(scenario: &mut Scenario, blocks: impl IntoIterator<Item = u64>) {
    for block in blocks {
        let first = scenario.first(block);
        scenario.expect(block, &first);
        scenario.advance(Duration::from_millis(8));
    }
}

#[test]
fn fills_wait_for_each_other_and_go_with_their_group_at_the_latest() {
    let mut scenario = with_large_sets(|config| config.flush_age = Duration::from_secs(1));
    miss(&mut scenario, (0..100).map(|i| i * 7));
    assert_eq!(data_writes(&scenario), [64, 8], "a large one, and what had come within a second, with the flush of the engine's own");
    scenario.advance(Duration::from_secs(1));
    assert_eq!(data_writes(&scenario), [64, 8, 28]);
    scenario.forget_noted();
    miss(&mut scenario, (0..100).map(|i| i * 7));
    let from_origin = scenario.noted().iter().filter(|op| op.device == DeviceId::Origin && !op.writes).count();
    assert_eq!(from_origin, 0, "they were kept");
}

#[test]
fn what_is_held_of_fills_is_read_from_memory() {
    let mut scenario = with_large_sets(|_| {});
    miss(&mut scenario, 0..5);
    scenario.forget_noted();
    miss(&mut scenario, 0..5);
    assert!(scenario.noted().iter().all(|op| op.writes), "neither device is asked: {:?}", scenario.noted());
}

#[test]
fn a_flush_sends_the_fills_of_its_group_and_the_next_one_meets_none() {
    let mut scenario = with_large_sets(|config| config.flush_age = Duration::from_secs(1));
    miss(&mut scenario, 0..5);
    let data = scenario.write(900);
    assert_eq!(data_writes(&scenario), [1], "a write of a client waits for no fill");
    scenario.flush();
    assert_eq!(data_writes(&scenario), [1, 5]);
    scenario.forget_noted();
    miss(&mut scenario, 10..15);
    assert_eq!(data_writes(&scenario), [1; 5], "a FLUSH may come again as soon");
    scenario.advance(Duration::from_secs(1));
    scenario.forget_noted();
    miss(&mut scenario, 20..25);
    assert!(data_writes(&scenario).is_empty());
    scenario.power_cut(Survive::None);
    scenario.expect(900, &data);
}

#[test]
fn who_waits_for_memory_or_with_fua_sends_the_fills_that_are_held() {
    let mut scenario = with_large_sets(|config| config.dirty_ram = 64 * 8 * ATOM_BYTES);
    miss(&mut scenario, 0..8);
    assert!(data_writes(&scenario).is_empty(), "an eighth of the memory");
    scenario.hold(Zone::Data);
    let sent = send(&mut scenario, 1_000..1_057);
    scenario.run_until_quiet();
    assert_eq!(sent.iter().filter(|(id, _)| !scenario.is_answered(*id)).count(), 1, "it waits for memory");
    assert_eq!(data_writes(&scenario)[0], 8, "and the fills are on their way");
    scenario.release(Zone::Data);
    scenario.flush();
    scenario.advance(Duration::from_secs(3_600));
    scenario.forget_noted();
    miss(&mut scenario, 20..25);
    scenario.write_fua(900);
    assert_eq!(data_writes(&scenario), [5, 1]);
}

#[test]
fn a_block_that_is_written_over_a_fill_that_is_held_keeps_what_was_written() {
    let mut scenario = with_large_sets(|_| {});
    miss(&mut scenario, 0..5);
    let data = scenario.write(2);
    scenario.expect(2, &data);
    assert_eq!(data_writes(&scenario), [1], "the write, and none of the fills");
    scenario.flush();
    scenario.power_cut(Survive::None);
    scenario.expect(2, &data);
    miss(&mut scenario, [0, 1, 3, 4]);
}

#[test]
fn a_stop_and_a_failed_ssd_meet_fills_that_are_held() {
    let mut scenario = with_large_sets(|_| {});
    miss(&mut scenario, 0..5);
    scenario.stop();
    assert_eq!(data_writes(&scenario), [5]);
    scenario.power_cut(Survive::None);
    scenario.forget_noted();
    miss(&mut scenario, 0..5);
    assert!(scenario.noted().iter().all(|op| op.device == DeviceId::Cache), "warm");
    scenario.forget_noted();
    miss(&mut scenario, 10..15);
    assert!(data_writes(&scenario).is_empty());
    scenario.cache_goes();
    scenario.host_writes();
    scenario.run_until_quiet();
    miss(&mut scenario, 0..15);
}

#[test]
fn who_writes_past_the_log_again_and_again_waits_for_fills_once() {
    let mut scenario = with_large_sets(|config| {
        config.allocation = Allocation::ReadOnly;
        config.flush_age = Duration::from_secs(1);
    });
    miss(&mut scenario, 0..20);
    assert!(data_writes(&scenario).is_empty());
    scenario.write(3);
    assert_eq!(data_writes(&scenario), [20], "its older contents have to be dead, durably");
    scenario.forget_noted();
    miss(&mut scenario, 20..40);
    assert_eq!(data_writes(&scenario), [1; 20]);
}

#[test]
fn fills_that_are_held_survive_a_crash_at_every_step() {
    let mut scenario = with_large_sets(|_| {});
    scenario.crash_at_every_step();
    for round in 0..3 {
        miss(&mut scenario, (0..70).map(|block| block * 3 + round));
        scenario.write(round * 3);
        scenario.flush();
        scenario.advance(Duration::from_secs(4_000));
    }
    assert!(scenario.crashes_tried() > 20, "{} crashes", scenario.crashes_tried());
}

//! Gather: small writes go to the SSD as large ones, and with `dirty_ram` they are acknowledged before that.

use tidegate_engine::block::ATOM_BYTES;
use tidegate_engine::cache::format::Geometry;
use tidegate_engine::op::{DeviceId, Zone};
use tidegate_engine::probe::WaitReason;
use tidegate_engine::request::RequestId;
use tidegate_sim::back::fault::Fault;
use tidegate_sim::back::volatile::Survive;
use tidegate_sim::scenario::{Scenario, plan_for};
use tidegate_sim::stamp::Stamps;
use tidegate_sim::world::Simulation;

/// So many blocks may be acknowledged and in memory alone.
fn with_ram(blocks: u64) -> Scenario {
    Scenario::with(|plan| plan.config.dirty_ram = blocks * 8 * ATOM_BYTES)
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
    let geometry = Geometry { block_atoms: 8, set_slots: 256, sets: 16, journal_pages: 256, volume_atoms: 16_384, range_entries: 252 };
    let mut plan = plan_for(geometry);
    plan.config.dirty_ram = 4 << 20;
    let mut scenario = Scenario::of(plan);
    scenario.hold(Zone::Data);
    (0..256).for_each(|block| drop(scenario.write(block * 3)));
    assert_eq!(data_writes(&scenario), [1, 64, 64, 64, 63], "256 KiB each, and what is left of the set");
    scenario.write_span(scenario.blocks(1_000, 256));
    assert_eq!(data_writes(&scenario)[5..], [256]);
    scenario.release(Zone::Data);
    scenario.flush();
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
    let mut scenario = with_ram(5);
    scenario.crash_at_every_step();
    for round in 0..6 {
        send(&mut scenario, (0..9).map(|block| block * (round + 1) % 11));
        let part = scenario.block(round);
        scenario.write_span(tidegate_engine::block::Span::new(part.start + 1, 3));
        scenario.trim(scenario.blocks(round, 2));
        scenario.flush();
    }
    assert!(scenario.crashes_tried() > 60, "{} crashes", scenario.crashes_tried());
}

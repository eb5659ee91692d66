//! Wear: every byte written to the SSD has a cause, totals outlive the engine, and a daily budget keeps out what can be done without.

use crate::common::newest_superblock;
use tidegate_engine::cache::format::Geometry;
use tidegate_engine::op::{DeviceId, Zone};
use tidegate_engine::request::Command;
use tidegate_engine::time::Duration;
use tidegate_engine::wear::{Cause, Wear, Written};
use tidegate_sim::back::fault::Fault;
use tidegate_sim::back::volatile::Survive;
use tidegate_sim::scenario::{Scenario, plan_for};

const DAY: Duration = Duration::from_secs(24 * 3_600);

fn wear(scenario: &Scenario) -> Wear {
    scenario.snapshot().wear
}

/// Blocks put into the cache by fills.
fn filled(scenario: &Scenario) -> u64 {
    scenario.snapshot().counters.filled_blocks
}

/// Atoms that the SSD was sent, in some of its zones.
fn sent(scenario: &Scenario, zones: &[Zone]) -> u64 {
    let writes = scenario.noted().iter().filter(|op| op.device == DeviceId::Cache && op.writes);
    writes.filter(|op| op.zone.is_some_and(|zone| zones.contains(&zone))).map(|op| op.span.atoms).sum()
}

/// Written, overwritten, filled, destaged, rewritten, checkpointed.
fn lived() -> Scenario {
    let mut scenario = Scenario::with(|plan| plan.config.scrub_rate = 0);
    for round in 0..12 {
        (0..24).for_each(|block| drop(scenario.write((block * 5 + round) % 60)));
        // Not what the cleaner reads.
        scenario.run_until_quiet();
        scenario.fail_next(Zone::Data, Fault::Error);
        scenario.write(61);
        scenario.flush();
        scenario.drain();
        scenario.read(scenario.blocks(40, 12)).expect("a read");
    }
    scenario.checkpoints(1, 62);
    scenario
}

#[test]
fn every_byte_sent_to_the_ssd_is_counted_by_its_cause() {
    let scenario = lived();
    let written = wear(&scenario).since_start.cache;
    let data = sent(&scenario, &[Zone::Data]);
    assert_eq!(written.data(), data);
    assert_eq!(written.of(Cause::Journal), sent(&scenario, &[Zone::Journal]));
    assert_eq!(written.of(Cause::Header), sent(&scenario, &[Zone::Header, Zone::HeaderCopy]));
    assert_eq!(written.of(Cause::Map), sent(&scenario, &[Zone::Map]));
    assert_eq!(written.of(Cause::Superblock), sent(&scenario, &[Zone::Superblock]));
    let counters = scenario.snapshot().counters;
    assert_eq!(written.of(Cause::Fill), counters.filled_blocks * 8, "whole blocks are filled");
    assert_eq!(written.of(Cause::Client), counters.written_atoms, "and were written");
    assert_eq!(written.of(Cause::Rewrite), 12 * 8, "one block failed in each round");
    for cause in [Cause::Client, Cause::Fill, Cause::Rewrite, Cause::Journal, Cause::Header, Cause::Map, Cause::Superblock] {
        assert!(written.of(cause) > 0, "{cause:?} has nothing to count");
    }
    let amplification = wear(&scenario).since_start.amplification().expect("clients wrote");
    assert!((amplification - written.total() as f64 / counters.written_atoms as f64).abs() < 1e-9 && amplification > 1.0);
}

#[test]
fn totals_survive_a_stop_as_they_were() {
    let mut scenario = lived();
    scenario.stop();
    let before = wear(&scenario).lifetime;
    scenario.recover();
    let Wear { since_start, lifetime, .. } = wear(&scenario);
    // The last superblocks tell everything but themselves.
    assert_eq!((since_start.clients, lifetime.clients), (0, before.clients));
    let lost = before.plus(&since_start).cache.total() - lifetime.cache.total();
    assert_eq!(lost, 2 * 8, "two superblocks");
}

#[test]
fn a_crash_takes_from_the_totals_what_was_written_since_the_last_checkpoint() {
    let mut scenario = lived();
    let told: Written = newest_superblock(&scenario).written;
    let before = wear(&scenario).lifetime;
    assert!(told.clients > 0 && told.clients <= before.clients && told.cache.total() <= before.cache.total());
    scenario.write(3);
    scenario.flush();
    scenario.power_cut(Survive::None);
    let after = wear(&scenario);
    assert_eq!(after.lifetime, told.plus(&after.since_start));
}

#[test]
fn a_cache_of_before_counts_from_its_next_start_on() {
    let mut scenario = Scenario::new();
    scenario.write(1);
    scenario.flush();
    // No superblock has told anything yet: zeros are what an older one says.
    assert_eq!(newest_superblock(&scenario).written, Written::default());
    scenario.power_cut(Survive::All);
    assert_eq!(wear(&scenario).lifetime, wear(&scenario).since_start);
}

/// A volume whose budget is sixty blocks a day.
fn with_budget() -> Scenario {
    Scenario::with(|plan| {
        plan.config.daily_write_bytes = 60 * 4_096;
        plan.config.free_floor = 2;
    })
}

#[test]
fn a_spent_budget_keeps_no_reads_and_holds_up_no_write() {
    let mut scenario = with_budget();
    scenario.read(scenario.blocks(0, 4)).expect("a read");
    scenario.run_until_quiet();
    assert_eq!(filled(&scenario), 4);
    let mut last = Vec::new();
    for block in (0..64).chain(0..24) {
        last.push((block, scenario.write(block)));
    }
    assert!(wear(&scenario).budget_left.expect("a budget") < 0, "clients go on");
    let waits: Vec<_> = scenario.snapshot().counters.waits.iter().filter(|(_, count)| *count > 0).collect();
    assert_eq!(waits, [], "and wait for nothing");
    last.iter().skip(64).for_each(|(block, data)| scenario.expect(*block, data));
    scenario.flush();
    scenario.drain();
    scenario.trim(scenario.blocks(0, 64));
    scenario.flush();
    scenario.drain();
    scenario.advance(Duration::from_secs(10));
    scenario.read(scenario.blocks(10, 5)).expect("a read");
    let prefetch = scenario.send(scenario.blocks(20, 3), Command::Cache);
    scenario.wait(prefetch).expect("a prefetch");
    scenario.run_until_quiet();
    let counters = scenario.snapshot().counters;
    assert_eq!((counters.filled_blocks, counters.fill_budget_blocks, counters.fill_no_room_blocks), (4, 8, 0));
    // However much it was overdrawn, two days later there is some again.
    scenario.advance(Duration(DAY.0 * 2));
    scenario.read(scenario.blocks(30, 5)).expect("a read");
    scenario.run_until_quiet();
    assert_eq!((filled(&scenario), scenario.snapshot().counters.fill_budget_blocks), (9, 8));
}

#[test]
fn without_a_budget_everything_is_kept() {
    let mut scenario = Scenario::new();
    assert_eq!(wear(&scenario).budget_left, None);
    (0..64).for_each(|block| drop(scenario.write(block)));
    scenario.trim(scenario.blocks(0, 64));
    scenario.flush();
    scenario.drain();
    scenario.read(scenario.blocks(0, 5)).expect("a read");
    scenario.run_until_quiet();
    assert_eq!((filled(&scenario), scenario.snapshot().counters.fill_budget_blocks), (5, 0));
}

/// 64 sets, 400 blocks scattered over them and written over and over, the cleaner at work below 40 free sets; what it moved, and how often it
/// had to wait.
fn cleaned(daily_write_bytes: u64, writes: u64) -> (u64, u64) {
    let geometry = Geometry { block_atoms: 8, set_slots: 8, sets: 64, journal_pages: 128, volume_atoms: 8_192, range_entries: 252 };
    let mut plan = plan_for(geometry);
    plan.config.clean_floor = 40;
    plan.config.daily_write_bytes = daily_write_bytes;
    let mut scenario = Scenario::of(plan);
    let mut chance = scenario.chance("blocks");
    for _ in 0..writes {
        scenario.write(chance.below(400));
        scenario.flush();
    }
    let counters = scenario.snapshot().counters;
    (counters.moved_blocks, counters.clean_budget_waits)
}

/// Below the floor, which is 8 of 16 sets, with 24 blocks written over and over: nothing may be moved, so what is dirty goes home when clients rest.
#[test]
fn where_a_spent_budget_keeps_sets_from_being_emptied_room_is_made_by_going_home() {
    for (daily_write_bytes, goes_home) in [(0, false), (1_000, true)] {
        let mut scenario = Scenario::with(|plan| {
            plan.config.free_floor = 8;
            plan.config.clean_floor = 2;
            plan.config.dirty_high = 14;
            plan.config.daily_write_bytes = daily_write_bytes;
        });
        let mut chance = scenario.chance("overwrites");
        (0..24).for_each(|block| drop(scenario.write(block)));
        for _ in 0..1_000 {
            if scenario.snapshot().free_sets <= 6 {
                break;
            }
            scenario.write(chance.below(24));
            scenario.flush();
        }
        scenario.advance(Duration::from_secs(10));
        let after = scenario.snapshot();
        assert!(after.free_sets >= 8, "{} free", after.free_sets);
        assert_eq!((after.counters.destaged_blocks > 0, after.counters.moved_blocks == 0), (goes_home, goes_home), "{:?}", after.counters);
    }
}

#[test]
fn a_spent_budget_moves_nothing_before_the_room_is_needed() {
    // Twenty sets are free at the end; then none would be without the cleaner.
    let (few, many) = (350, 3_000);
    let moved = cleaned(0, few).0;
    assert!(moved > 0, "there is something to move");
    assert_eq!(cleaned(1_000, few), (0, 1));
    let (moved, waits) = cleaned(1_000, many);
    assert!(moved > 0 && waits > 0, "what is needed is moved: {moved}, {waits}");
}

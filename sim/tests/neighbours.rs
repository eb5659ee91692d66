//! Neighbours: what lies around a miss is read where that pays, for nobody's wait and never against what was written meanwhile.

use tidegate_engine::cache::format::Geometry;
use tidegate_engine::config::ReadAround;
use tidegate_engine::op::Zone;
use tidegate_engine::probe::Counters;
use tidegate_engine::request::Tier;
use tidegate_engine::spin::{self, Drive, predictor::Kind as Predictor};
use tidegate_engine::time::Duration;
use tidegate_sim::back::fault::Fault;
use tidegate_sim::chance::Chance;
use tidegate_sim::plan::Plan;
use tidegate_sim::scenario::{Scenario, plan_for};

/// Blocks of a neighbourhood, and of a region in which such are read or are not.
const NEXT: u64 = 16;
const REGION: u64 = 256;

/// A volume of so many regions, and a cache of so many sets of that size.
fn scenario(regions: u64, sets: u32, read_around: ReadAround) -> Scenario {
    Scenario::of(plan(regions, sets, read_around))
}

fn plan(regions: u64, sets: u32, read_around: ReadAround) -> Plan {
    let volume_atoms = regions * REGION * 8;
    let geometry = Geometry { block_atoms: 8, set_slots: 256, sets, journal_pages: 256, volume_atoms, range_entries: 252 };
    let mut plan = plan_for(geometry);
    plan.config.read_around = read_around;
    plan.config.window_bytes = 16 << 20;
    plan
}

fn read(scenario: &mut Scenario, block: u64) {
    let span = scenario.block(block);
    scenario.read(span).expect("a read");
}

fn counters(scenario: &Scenario) -> Counters {
    scenario.snapshot().counters
}

/// Every block of so many regions once, in no order.
fn shuffled(regions: u64) -> Vec<u64> {
    let mut blocks: Vec<u64> = (0..regions * REGION).collect();
    let mut chance = Chance::new(1, "order");
    (1..blocks.len()).rev().for_each(|i| blocks.swap(i, chance.below(i as u64 + 1) as usize));
    blocks
}

#[test]
fn where_everything_is_read_most_is_there_before_it_is_asked_for() {
    let time = |read_around| {
        let mut scenario = scenario(64, 80, read_around);
        let began = scenario.snapshot().now;
        shuffled(64).into_iter().for_each(|block| read(&mut scenario, block));
        (scenario.snapshot().now.since(began).as_secs_f64(), counters(&scenario))
    };
    let (never, alone) = time(ReadAround::Never);
    let (judged, around) = time(ReadAround::Judged);
    assert_eq!((alone.around_reads, alone.miss_blocks), (0, 64 * REGION));
    assert!(around.around_reads >= 40 && around.miss_blocks * 3 < alone.miss_blocks, "{} misses", around.miss_blocks);
    assert!(judged * 3.0 < never, "{judged} s, {never} s without");
}

#[test]
fn where_reads_are_far_apart_nothing_else_is_read() {
    let mut scenario = scenario(2_000, 80, ReadAround::Judged);
    (0..4_000).for_each(|i| read(&mut scenario, i * 7_919 % 2_000 * REGION + i / 2_000 * 100));
    let counters = counters(&scenario);
    assert_eq!((counters.around_reads, counters.filled_blocks), (0, 4_000));
}

#[test]
fn a_full_cache_lets_nothing_go_for_what_is_read_here_and_there() {
    let mut scenario = scenario(512, 16, ReadAround::Judged);
    // One in 24: more than a cache with room asks for.
    let reads = |scenario: &mut Scenario, from: u64| (from..512 * REGION).step_by(24).for_each(|block| read(scenario, block));
    reads(&mut scenario, 0);
    let first = counters(&scenario);
    assert!(first.around_reads > 0, "there was room");
    reads(&mut scenario, 5);
    let second = counters(&scenario);
    assert_eq!(second.around_reads, first.around_reads);
}

#[test]
fn what_nobody_has_asked_for_leaves_room_for_what_somebody_does() {
    let mut scenario = scenario(2_120, 64, ReadAround::Judged);
    (0..120 * REGION).step_by(24).for_each(|block| read(&mut scenario, block));
    let counted = counters(&scenario);
    assert!(counted.filled_blocks > 30 * REGION && counted.filled_blocks < 40 * REGION, "half of the log: {}", counted.filled_blocks);
    let apart = |scenario: &mut Scenario| (120..2_120).for_each(|region| read(scenario, region * REGION + region % 100));
    apart(&mut scenario);
    let first = counters(&scenario);
    apart(&mut scenario);
    assert_eq!(counters(&scenario).miss_blocks, first.miss_blocks, "all of it was kept");
}

#[test]
fn what_is_written_while_its_neighbourhood_is_read_stays() {
    let mut scenario = scenario(4, 16, ReadAround::Always);
    read(&mut scenario, 3);
    assert_eq!(counters(&scenario).around_reads, 1);
    assert!(scenario.snapshot().requests.is_empty(), "no client waits");
    let data = scenario.write(5);
    scenario.run_until_quiet();
    let counters = counters(&scenario);
    assert_eq!(
        (counters.filled_blocks, counters.fill_void_blocks),
        (NEXT - 1, 1),
        "the one that was read, and all around it but what was written"
    );
    scenario.expect(5, &data);
    scenario.crash_at_every_step();
    scenario.flush();
    scenario.drain();
    scenario.expect(5, &data);
}

#[test]
fn who_misses_what_is_on_its_way_waits_for_that() {
    let mut scenario = scenario(4, 16, ReadAround::Always);
    read(&mut scenario, 3);
    let spans = [scenario.block(5), scenario.blocks(8, 3), scenario.blocks(14, 4)];
    let requests = spans.map(|span| scenario.send_read(span));
    requests.into_iter().for_each(|request| _ = scenario.wait(request).expect("a read"));
    assert_eq!(origin_reads(&scenario), 3, "the miss, what lies around it, and what goes beyond that");
    scenario.run_until_quiet();
    assert_eq!(counters(&scenario).filled_blocks, NEXT + 2);
    scenario.crash_at_every_step();
    scenario.stop();
}

#[test]
fn a_neighbour_that_cannot_be_read_is_nobodys_error() {
    let mut scenario = scenario(4, 16, ReadAround::Always);
    scenario.fail_next(Zone::Origin, Fault::Stuck(Duration::from_millis(1)));
    scenario.fail_next(Zone::Origin, Fault::Error);
    read(&mut scenario, 3);
    // It waits for what fails, and then asks by itself.
    read(&mut scenario, 5);
    assert_eq!(origin_reads(&scenario), 3 + 1, "and what lies around that");
    scenario.run_until_quiet();
    assert_eq!(counters(&scenario).filled_blocks, NEXT);
    scenario.stop();
}

fn origin_reads(scenario: &Scenario) -> usize {
    scenario.noted().iter().filter(|op| op.zone == Some(Zone::Origin) && !op.writes).count()
}

#[test]
fn before_a_disk_that_may_stand_still_sparser_reads_are_enough_and_what_they_bring_wakes_nobody() {
    let sparse = |spin: Option<spin::Config>| {
        let mut plan = plan(64, 80, ReadAround::Judged);
        plan.config.spin = spin;
        let mut scenario = Scenario::of(plan);
        // Four in each region: three spared by what takes the time of two.
        (0..64 * REGION).step_by(64).for_each(|block| read(&mut scenario, block));
        scenario
    };
    assert_eq!(counters(&sparse(None)).around_reads, 0, "a disk that turns");
    let config = spin::Config { predictor: Predictor::Fixed, guard: false, ..spin::Config::new(Drive::DESKTOP) };
    let mut scenario = sparse(Some(config));
    assert!(counters(&scenario).around_reads >= 30, "{} neighbourhoods", counters(&scenario).around_reads);
    scenario.advance(Duration::from_secs(120));
    let starts = |scenario: &Scenario| scenario.snapshot().spin.expect("a motor").cycles;
    let before = starts(&scenario);
    // Nobody has asked for these.
    let near: Vec<u64> = (0..64 * REGION).filter(|block| block % 64 == 40).collect();
    let cached: Vec<u64> = near.into_iter().filter(|&block| is_cached(&mut scenario, block)).collect();
    assert!(cached.len() >= 100, "{} of 256", cached.len());
    cached.into_iter().for_each(|block| read(&mut scenario, block));
    assert_eq!(starts(&scenario), before, "they are in the cache");
}

fn is_cached(scenario: &mut Scenario, block: u64) -> bool {
    let span = scenario.block(block);
    scenario.tiers(span).iter().all(|&(_, tier)| tier == Tier::Clean)
}

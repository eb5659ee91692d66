//! Reading ahead, situation by situation: a sequence finds on its way what it will ask for next, and never anything but what it would have read
//! itself. The oracle listens to every reply in all of them.

use tidegate_engine::block::{PAGE_ATOMS, Span};
use tidegate_engine::cache::format::Geometry;
use tidegate_engine::op::Zone;
use tidegate_engine::probe::Counters;
use tidegate_sim::back::fault::Fault;
use tidegate_sim::plan::Plan;
use tidegate_sim::scenario::{Scenario, plan_for};

/// Blocks that are in the cache.
const CACHED: u64 = 256;

/// A volume of 1,024 blocks, and a cache of `sets` sets of 64.
fn plan(sets: u32) -> Plan {
    let volume_atoms = 1_024 * PAGE_ATOMS;
    let mut plan = plan_for(Geometry { block_atoms: 8, set_slots: 64, sets, journal_pages: 256, volume_atoms, range_entries: 252 });
    plan.config.read_ahead = 1 << 20;
    plan.config.window_bytes = 4 << 20;
    plan
}

/// The first blocks have been written one by one in an order of their own, and nothing of them is in memory any more.
fn written(plan: Plan, order: impl Fn(u64) -> u64) -> Scenario {
    let mut scenario = Scenario::of(plan);
    (0..CACHED).for_each(|i| _ = scenario.write(order(i)));
    scenario.flush();
    scenario.run_until_quiet();
    scenario.forget_noted();
    scenario
}

fn counters(scenario: &Scenario) -> Counters {
    scenario.snapshot().counters
}

/// Reads of the SSD for contents.
fn slot_reads(scenario: &Scenario) -> usize {
    scenario.noted().iter().filter(|op| op.zone == Some(Zone::Data) && !op.writes).count()
}

fn read(scenario: &mut Scenario, blocks: impl Iterator<Item = u64>) {
    blocks.for_each(|block| _ = scenario.read(scenario.block(block)).expect("a read"));
}

#[test]
fn what_lies_together_is_read_in_large_pieces_before_it_is_asked_for() {
    let mut scenario = written(plan(16), |i| i);
    read(&mut scenario, 0..CACHED);
    let counters = counters(&scenario);
    assert!(counters.ahead_hit_blocks >= CACHED - 20, "{} found", counters.ahead_hit_blocks);
    assert_eq!(counters.ahead_hit_blocks, counters.ahead_blocks, "nothing is read that nobody asks for, and nothing twice");
    assert!(slot_reads(&scenario) < 40, "{} reads of the SSD", slot_reads(&scenario));
}

#[test]
fn what_was_written_here_and_there_is_on_its_way_together() {
    // Blocks that follow one another are seventeen slots apart.
    let mut scenario = written(plan(16), |i| i * 15 % CACHED);
    let alone = |read_ahead| {
        let mut plan = plan(16);
        plan.config.read_ahead = read_ahead;
        let mut scenario = written(plan, |i| i * 15 % CACHED);
        let began = scenario.snapshot().now;
        read(&mut scenario, 0..CACHED);
        scenario.snapshot().now.since(began).as_secs_f64()
    };
    assert!(alone(1 << 20) * 3.0 < alone(0), "{} s, {} s without", alone(1 << 20), alone(0));
    read(&mut scenario, 0..CACHED);
    assert!(counters(&scenario).ahead_hit_blocks >= CACHED - 20);
}

#[test]
fn reads_here_and_there_are_not_read_ahead_of() {
    let mut scenario = written(plan(16), |i| i);
    read(&mut scenario, (0..CACHED).map(|i| i * 101 % CACHED));
    assert_eq!(counters(&scenario).ahead_blocks, 0);
}

#[test]
fn what_is_written_after_it_was_read_ahead_is_read_as_written() {
    let mut scenario = written(plan(16), |i| i);
    read(&mut scenario, 0..40);
    let before = counters(&scenario).ahead_blocks;
    assert!(before > 48, "{before} blocks are there");
    let data = scenario.write(44);
    let part = Span::new(scenario.block(46).start + 3, 2);
    scenario.write_span(part);
    scenario.trim(scenario.block(48));
    read(&mut scenario, 40..44);
    scenario.expect(44, &data);
    read(&mut scenario, 45..CACHED);
    scenario.crash_at_every_step();
    scenario.flush();
    scenario.expect(44, &data);
}

#[test]
fn a_set_that_is_used_again_gives_out_what_it_holds_now() {
    let mut scenario = written(plan(8), |i| i);
    read(&mut scenario, 0..40);
    // Everything that has been read ahead lies in sets that are freed and written again, while the sequence stands still.
    for round in 0..8 {
        (0..CACHED).for_each(|i| _ = scenario.write((i + round * 7) % CACHED));
        scenario.flush();
        scenario.drain();
    }
    scenario.run_until_quiet();
    read(&mut scenario, 40..CACHED);
    scenario.stop();
}

#[test]
fn what_cannot_be_read_ahead_is_read_by_whoever_asks_for_it() {
    let mut scenario = written(plan(16), |i| i);
    read(&mut scenario, 0..15);
    // The next read begins to read ahead: its own operation succeeds, and the one after it does not.
    scenario.read(scenario.block(15)).expect("a read");
    scenario.run_until_quiet();
    scenario.fail_next(Zone::Data, Fault::Error);
    read(&mut scenario, 16..CACHED);
    assert_eq!(counters(&scenario).corrupt_dirty_slots + counters(&scenario).corrupt_clean_slots, 0);
    scenario.stop();
}

#[test]
fn several_sequences_share_the_memory_there_is() {
    let mut scenario = written(plan(16), |i| i);
    // Three of them, 85 blocks each, and room for 256 blocks all together.
    read(&mut scenario, (0..255).map(|i| i % 3 * 85 + i / 3));
    let counters = counters(&scenario);
    assert!(counters.ahead_hit_blocks >= 255 - 3 * 20, "{} found", counters.ahead_hit_blocks);
    assert!(counters.ahead_blocks <= CACHED + 64, "{} read", counters.ahead_blocks);
}

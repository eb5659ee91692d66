//! Making room, situation by situation: what was read stays, whatever else passes by, and what nobody has read goes. The oracle listens to every
//! reply in all of them; what is asserted here besides is that the situation really came about.

use tidegate_engine::Control;
use tidegate_engine::cache::format::Geometry;
use tidegate_engine::op::Zone;
use tidegate_engine::probe::Counters;
use tidegate_engine::request::{Command, Tier};
use tidegate_engine::time::Duration;
use tidegate_sim::back::fault::Fault;
use tidegate_sim::back::volatile::Survive;
use tidegate_sim::scenario::{Scenario, plan, plan_for};

/// Blocks of what is read at first: 10 of 16 sets of 8.
const CACHED: u64 = 80;

/// A volume of 512 blocks; the first ones are in the cache, clean, and no set is free but the floor.
fn full() -> Scenario {
    let mut plan = plan_for(Geometry { volume_atoms: 512 * 8, ..plan().config.geometry });
    plan.config.free_floor = 6;
    let mut scenario = Scenario::of(plan);
    for block in 0..CACHED {
        let first = scenario.first(block);
        scenario.expect(block, &first);
    }
    scenario.flush();
    assert_eq!((scenario.snapshot().free_sets, scenario.snapshot().counters.dropped_sets), (6, 0));
    scenario
}

fn counters(scenario: &Scenario) -> Counters {
    scenario.snapshot().counters
}

/// Blocks that nobody has asked for before are kept because somebody asks for that.
fn others_come(scenario: &mut Scenario, blocks: std::ops::Range<u64>) {
    for block in blocks {
        let prefetch = scenario.send(scenario.block(block), Command::Cache);
        scenario.outcome(prefetch).expect("a prefetch");
        // What is dropped is to be flushed before its place is free.
        scenario.flush();
    }
}

/// How many of them the cache has.
fn cached(scenario: &mut Scenario, blocks: impl Iterator<Item = u64>) -> u64 {
    let before = counters(scenario).hit_blocks;
    for block in blocks {
        scenario.read(scenario.block(block)).expect("a read");
    }
    counters(scenario).hit_blocks - before
}

/// One block of each set.
fn hot() -> impl Iterator<Item = u64> {
    (0..CACHED).step_by(8)
}

#[test]
fn one_block_in_eight_is_read_and_stays_while_three_times_the_cache_passes() {
    let mut scenario = full();
    for round in 0..16 {
        assert_eq!(cached(&mut scenario, hot()), CACHED / 8, "round {round}");
        others_come(&mut scenario, 100 + round * 24..100 + (round + 1) * 24);
    }
    let counters = counters(&scenario);
    assert!(counters.moved_blocks >= 10, "{} moved", counters.moved_blocks);
    assert!(counters.moved_blocks < 16 * 24, "{} moved for {} that came", counters.moved_blocks, 16 * 24);
    assert_eq!(cached(&mut scenario, (0..CACHED).filter(|block| block % 8 != 0)), 0, "what nobody reads is gone");
}

#[test]
fn a_set_half_of_which_is_read_stays_where_it_is() {
    let mut scenario = full();
    let half = || (0..16).filter(|block| block % 8 < 4);
    assert_eq!(cached(&mut scenario, half()), 8);
    others_come(&mut scenario, 100..148);
    let counters = counters(&scenario);
    assert_eq!((counters.spared_sets, counters.moved_blocks), (2, 0));
    assert_eq!(cached(&mut scenario, half()), 8);
    assert_eq!(cached(&mut scenario, 16..64), 0, "others have gone for it");
}

#[test]
fn what_is_read_no_more_goes_in_the_end() {
    let mut scenario = full();
    assert_eq!(cached(&mut scenario, 0..CACHED), CACHED);
    others_come(&mut scenario, 100..400);
    assert!(counters(&scenario).spared_sets >= 10);
    assert_eq!(cached(&mut scenario, 0..CACHED), 0);
}

/// A write waits for room and half of every set was read: one has to go all the same, and is kept again at the first miss.
#[test]
fn what_was_read_and_had_to_go_for_a_write_comes_back_at_the_first_miss() {
    let mut scenario = full();
    let half = || (0..CACHED).filter(|block| block % 8 < 4);
    assert_eq!(cached(&mut scenario, half()), CACHED / 2);
    scenario.write_span(scenario.blocks(200, 72));
    let dropped = counters(&scenario);
    assert!(dropped.dropped_sets >= 5 && dropped.moved_blocks == 0, "{} dropped, {} moved", dropped.dropped_sets, dropped.moved_blocks);
    scenario.drain();
    let gone: Vec<u64> = half().filter(|&block| scenario.tiers(scenario.block(block))[0].1 == Tier::Origin).collect();
    assert!(gone.len() >= 20);
    let before = counters(&scenario);
    assert_eq!(cached(&mut scenario, gone.iter().copied()), 0);
    let after = counters(&scenario);
    assert_eq!(after.fill_first_touch_blocks + after.fill_sieved_blocks, before.fill_first_touch_blocks + before.fill_sieved_blocks);
    assert!(after.filled_blocks > before.filled_blocks);
}

/// What was read of the oldest set is on its way to another one, and is overwritten, trimmed or left alone; and the power goes.
#[test]
fn what_changes_while_it_moves_is_not_lost() {
    for crash in [false, true] {
        let mut scenario = full();
        assert_eq!(cached(&mut scenario, 0..3), 3);
        others_come(&mut scenario, 100..106);
        scenario.hold(Zone::Data);
        let prefetch = scenario.send(scenario.blocks(106, 16), Command::Cache);
        scenario.run_until_quiet();
        let (write, newer) = scenario.send_write(scenario.block(1), false);
        let trim = scenario.send(scenario.block(2), Command::Trim { fua: false });
        scenario.run_until_quiet();
        scenario.release(Zone::Data);
        scenario.outcome(prefetch).expect("a prefetch");
        scenario.wait(write).expect("a write");
        scenario.wait(trim).expect("a trim");
        scenario.flush();
        assert!(counters(&scenario).moved_blocks >= 1, "what was left alone has moved");
        if crash {
            scenario.power_cut(Survive::None);
        }
        let first = scenario.first(0);
        scenario.expect(0, &first);
        scenario.expect(1, &newer);
        assert_eq!(scenario.read(scenario.block(2)).expect("a read"), vec![0; 8]);
    }
}

/// The origin does not take a block of it, and the SSD gives none of them: it can neither go home nor move on.
#[test]
fn a_set_that_cannot_leave_does_not_keep_those_behind_it() {
    let mut plan = plan_for(Geometry { volume_atoms: 512 * 8, ..plan().config.geometry });
    plan.config.free_floor = 6;
    let mut scenario = Scenario::of(plan);
    let written: Vec<_> = (0..8).map(|block| scenario.write(block)).collect();
    scenario.flush();
    scenario.fail_next(Zone::Origin, Fault::Refused(1_000));
    scenario.simulation.control(Control::Drain);
    scenario.advance(Duration::from_secs(10));
    scenario.simulation.control(Control::CancelDrain);
    assert_eq!(scenario.snapshot().dirty_slots, 1, "the others are home");
    for data in &written {
        let place = scenario.places(data.stamp(0))[0];
        scenario.simulation.scene.cache.spoil(place);
    }
    // It is tried after a second; until then others make room.
    let late = scenario.simulation.now() + Duration::from_secs(1);
    for round in 0..16 {
        others_come(&mut scenario, 100 + round * 8..108 + round * 8);
        let free = scenario.snapshot().free_sets;
        assert!(free >= 6, "{free} free sets in round {round}");
    }
    assert!(scenario.simulation.now() < late);
    assert_eq!((counters(&scenario).dropped_sets, scenario.snapshot().dirty_slots), (7, 1), "it is still there");
    scenario.simulation.scene.cache.heal();
    scenario.simulation.scene.origin.heal();
    scenario.drain();
    written.iter().enumerate().for_each(|(block, data)| scenario.expect(block as u64, data));
}

#[test]
fn a_power_cut_at_any_moment_of_making_room() {
    let mut scenario = full();
    let written: Vec<_> = (0..8).map(|block| scenario.write(block * 13)).collect();
    scenario.drain();
    scenario.crash_at_every_step();
    for round in 0..4 {
        assert!(cached(&mut scenario, hot().chain((0..8).map(|block| block * 13))) > 0);
        others_come(&mut scenario, 100 + round * 24..100 + (round + 1) * 24);
        // When clients rest, sets are emptied as well.
        scenario.advance(Duration::from_secs(3));
    }
    assert!(counters(&scenario).moved_blocks >= 10 && scenario.crashes_tried() > 100);
    written.iter().enumerate().for_each(|(i, data)| scenario.expect(i as u64 * 13, data));
}

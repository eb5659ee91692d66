//! Discards: the SSD is told of what it need not keep when nothing can come back to it, in nobody's way. The simulated SSD forgets what was
//! discarded, so that one that comes too early shows.

use tidegate_engine::Mode;
use tidegate_engine::block::Span;
use tidegate_engine::cache::format::Geometry;
use tidegate_engine::config::CommitHome;
use tidegate_engine::op::Zone;
use tidegate_engine::probe::{Counters, Health};
use tidegate_engine::request::Command;
use tidegate_engine::time::Duration;
use tidegate_sim::back::fault::Fault;
use tidegate_sim::back::volatile::Survive;
use tidegate_sim::scenario::{Scenario, plan_for};
use tidegate_sim::stamp::Stamps;
use tidegate_sim::world::Noted;

/// Sixteen sets of eight slots before 64 blocks, as in every scenario, that are discarded before they are free.
fn scenario() -> Scenario {
    Scenario::with(|plan| plan.config.discard = true)
}

fn counters(scenario: &Scenario) -> Counters {
    scenario.snapshot().counters
}

/// Blocks `first..first + 8` take a whole set.
fn write_set(scenario: &mut Scenario, first: u64) -> Vec<Stamps> {
    (first..first + 8).map(|block| scenario.write(block)).collect()
}

fn expect_set(scenario: &mut Scenario, first: u64, data: &[Stamps]) {
    (first..).zip(data).for_each(|(block, data)| scenario.expect(block, data));
}

fn is_discard(op: &&Noted) -> bool {
    op.zone == Some(Zone::Data) && op.writes && op.data.is_empty()
}

/// Where the SSD was told that it need not keep anything.
fn discards(scenario: &Scenario) -> Vec<Span> {
    scenario.noted().iter().filter(is_discard).map(|op| op.span).collect()
}

#[test]
fn discards_never_reach_a_set_that_can_come_back() {
    let mut scenario = scenario();
    let old = write_set(&mut scenario, 0);
    scenario.flush();
    let place = scenario.places(old[0].stamp(0))[0];
    // Overwritten, and not flushed: after a crash the old set is the truth.
    write_set(&mut scenario, 0);
    scenario.run_until_quiet();
    assert_eq!(discards(&scenario), []);
    scenario.power_cut(Survive::None);
    expect_set(&mut scenario, 0, &old);
    let new = write_set(&mut scenario, 0);
    scenario.flush();
    scenario.run_until_quiet();
    // Nothing can come back to it any more.
    let set = Span::new(place / 64 * 64, 64);
    assert_eq!((discards(&scenario), counters(&scenario).discarded_sets), (vec![set], 1));
    assert!(scenario.places(old[0].stamp(0)).is_empty(), "what was discarded is gone");
    scenario.power_cut(Survive::None);
    expect_set(&mut scenario, 0, &new);
}

#[test]
fn a_crash_at_any_moment_of_a_discard_loses_nothing() {
    let mut seen = [0; 3];
    for steps in 0..40 {
        let mut scenario = scenario();
        write_set(&mut scenario, 0);
        scenario.flush();
        write_set(&mut scenario, 0);
        let flush = scenario.send_flush();
        for _ in 0..steps {
            scenario.step();
        }
        let found = scenario.noted().iter().find(is_discard).map(|op| op.ended.is_some());
        seen[match found {
            None => 0,
            Some(false) => 1,
            Some(true) => 2,
        }] += 1;
        assert!(found.is_none() || scenario.is_answered(flush), "before the kills were durable");
        scenario.power_cut(Survive::Random);
        // The oracle judges what is read.
        scenario.read(scenario.blocks(0, 64)).expect("the volume");
    }
    assert!(seen.iter().all(|&count| count > 0), "before, during and after a discard: {seen:?}");
}

#[test]
fn a_set_that_is_being_discarded_has_no_next_tenant_yet() {
    let mut scenario = scenario();
    write_set(&mut scenario, 0);
    write_set(&mut scenario, 0);
    // The next operation on data is the discard.
    scenario.fail_next(Zone::Data, Fault::Stuck(Duration::from_secs(3_600)));
    scenario.flush();
    let stuck = discards(&scenario)[0];
    scenario.forget_noted();
    for round in 0..30 {
        write_set(&mut scenario, round % 4 * 8);
        scenario.flush();
    }
    assert!(scenario.noted().iter().all(|op| !op.writes || !op.span.overlaps(stuck)), "every set is taken again and again but this one");
}

#[test]
fn a_set_that_is_needed_now_is_taken_without_its_discard() {
    let mut scenario = scenario();
    // Both discards that may be under way take an hour each; the cache is written over again and again meanwhile.
    write_set(&mut scenario, 0);
    write_set(&mut scenario, 8);
    write_set(&mut scenario, 0);
    write_set(&mut scenario, 8);
    scenario.fail_next(Zone::Data, Fault::Stuck(Duration::from_secs(3_600)));
    scenario.fail_next(Zone::Data, Fault::Stuck(Duration::from_secs(3_600)));
    let began = scenario.simulation.now();
    scenario.flush();
    assert_eq!(discards(&scenario).len(), 2);
    let mut last = Vec::new();
    for round in 0..30 {
        last = write_set(&mut scenario, round % 4 * 8);
        scenario.flush();
    }
    assert!(scenario.simulation.now().since(began) < Duration::from_secs(60), "nobody has waited for the discards");
    let Counters { discarded_sets, undiscarded_sets, .. } = counters(&scenario);
    assert!(discarded_sets == 0 && undiscarded_sets > 10, "{discarded_sets} discarded, {undiscarded_sets} not");
    expect_set(&mut scenario, 8, &last);
    // When they have ended, sets that are not needed are discarded again.
    scenario.advance(Duration::from_secs(3_700));
    scenario.flush();
    scenario.run_until_quiet();
    assert!(counters(&scenario).discarded_sets > 2);
}

#[test]
fn an_ssd_that_fails_discards_is_not_asked_again_and_has_not_failed() {
    let mut scenario = scenario();
    for round in 0..8 {
        write_set(&mut scenario, 0);
        if round > 0 {
            scenario.fail_next(Zone::Data, Fault::Error);
        }
        scenario.flush();
        scenario.run_until_quiet();
        if round > 3 {
            // It has stopped asking: nothing meets what was to fail.
            scenario.simulation.scene.cache.heal();
        }
    }
    assert_eq!((counters(&scenario).discard_failures, discards(&scenario).len()), (3, 3));
    assert_eq!(scenario.snapshot().health, Health::Whole);
}

#[test]
fn nothing_is_discarded_unless_that_is_wanted() {
    let mut scenario = Scenario::new();
    for _ in 0..8 {
        write_set(&mut scenario, 0);
        scenario.flush();
    }
    assert_eq!(discards(&scenario), []);
    let Counters { discarded_sets, undiscarded_sets, .. } = counters(&scenario);
    assert_eq!((discarded_sets, undiscarded_sets), (0, 0));
}

#[test]
fn a_device_that_takes_no_discards_gets_none() {
    let mut scenario = Scenario::with(|plan| {
        plan.config.discard = true;
        plan.limits[0].discards = false;
    });
    for _ in 0..8 {
        write_set(&mut scenario, 0);
        scenario.flush();
    }
    assert_eq!(discards(&scenario), []);
    assert!(counters(&scenario).undiscarded_sets > 4);
}

#[test]
fn a_stop_waits_for_the_discards_under_way() {
    let mut scenario = scenario();
    write_set(&mut scenario, 0);
    let data = write_set(&mut scenario, 0);
    scenario.fail_next(Zone::Data, Fault::Stuck(Duration::from_secs(5)));
    scenario.flush();
    scenario.stop();
    let ended = scenario.noted().iter().find(is_discard).and_then(|op| op.ended);
    assert!(ended.is_some_and(|(_, well)| well));
    scenario.recover();
    expect_set(&mut scenario, 0, &data);
}

/// All of the volume, in one request.
fn let_go(scenario: &mut Scenario, command: Command<Stamps>) {
    let all = scenario.blocks(0, 64);
    let id = scenario.send(all, command);
    scenario.wait(id).expect("no data, no reason to fail");
}

#[test]
fn a_trim_of_everything_frees_every_slot_at_once_and_every_set_with_the_flush() {
    for discard in [false, true] {
        for command in [Command::Trim { fua: false }, Command::Zero { no_hole: false, fua: false, fast: true }] {
            let mut scenario = Scenario::with(|plan| plan.config.discard = discard);
            for round in 0..2 {
                // What was written, and what was read and kept.
                (round * 4..64).for_each(|block| drop(scenario.write(block)));
                scenario.flush();
                scenario.run_until_quiet();
                assert!(scenario.snapshot().live_slots >= 56);
                let_go(&mut scenario, command.clone());
                assert_eq!(scenario.snapshot().live_slots, 0, "{command:?}: slots are free at once");
                scenario.flush();
                scenario.run_until_quiet();
                let (sets, free) = (scenario.snapshot().sets, scenario.snapshot().free_sets);
                assert!(free + 1 >= sets, "{command:?}, discard {discard}: {free} of {sets} sets are free, and one is open");
            }
            let Counters { discarded_sets, destaged_blocks, .. } = counters(&scenario);
            assert_eq!((discarded_sets > 10, destaged_blocks), (discard, 0), "and the origin was not asked for any of it");
        }
    }
}

/// A range may be as long as the volume, and all of it may be cached here and there.
#[test]
fn a_trim_of_what_is_cached_here_and_there_takes_no_memory_for_each_block() {
    let geometry = Geometry { block_atoms: 8, set_slots: 64, sets: 40, journal_pages: 64, volume_atoms: 8 * 4_096, range_entries: 252 };
    let mut plan = plan_for(geometry);
    plan.config.commit_home = CommitHome::Judged;
    let mut scenario = Scenario::of(plan);
    (0..2_000).for_each(|block| drop(scenario.write(block * 2)));
    scenario.drain();
    assert_eq!((scenario.snapshot().live_slots, scenario.snapshot().dirty_slots), (2_000, 0));
    let all = scenario.blocks(0, 4_096);
    let id = scenario.send(all, Command::Trim { fua: false });
    scenario.wait(id).expect("no data, no reason to fail");
    assert_eq!(scenario.snapshot().live_slots, 0);
    let limbo = scenario.snapshot().ledger.iter().find(|(part, _)| *part == "limbo").expect("a part").1;
    assert!((1..1_000).contains(&limbo), "{limbo} bytes");
}

/// A volume whose ranges forget four blocks a turn. All of it is in the log and in memory.
fn in_parts() -> (Scenario, Vec<Stamps>) {
    let mut scenario = Scenario::with(|plan| {
        plan.config.ram = 64 * 4096;
        plan.config.zeroed_together = 4;
    });
    let written = (0..64).map(|block| scenario.write(block)).collect();
    scenario.flush();
    (0..64).for_each(|block| drop(scenario.read(scenario.block(block))));
    (scenario, written)
}

#[test]
fn others_are_served_between_the_parts_of_a_long_range() {
    for command in [Command::Trim { fua: false }, Command::Zero { no_hole: true, fua: false, fast: true }] {
        let (mut scenario, written) = in_parts();
        let range = scenario.send(scenario.blocks(0, 56), command);
        let mut turns = 0;
        while !scenario.is_answered(range) {
            assert!(turns < 100 && scenario.step());
            turns += 1;
            if turns == 3 {
                let hit = scenario.send_read(scenario.block(60));
                let (beside, _) = scenario.send_write(scenario.block(61), false);
                let (behind, _) = scenario.send_write(scenario.block(2), false);
                assert!(scenario.is_answered(hit) && !scenario.is_answered(range), "a hit comes between");
                scenario.step();
                assert_eq!(
                    scenario.noted().iter().filter(|op| op.writes && op.zone == Some(Zone::Data)).count(),
                    65,
                    "and a write to other blocks"
                );
                assert!(!scenario.is_answered(range) && !scenario.is_answered(beside) && !scenario.is_answered(behind));
            }
        }
        // Four blocks each, and four times somebody has sent something besides.
        assert!(turns + 4 >= 52 / 4, "{turns} turns");
        scenario.run_until_quiet();
        (0..56).filter(|&block| block != 2).for_each(|block| assert_eq!(scenario.read(scenario.block(block)).expect("a read"), vec![0; 8]));
        scenario.expect(60, &written[60]);
        assert_eq!(scenario.snapshot().live_slots, 9);
    }
}

#[test]
fn a_crash_between_the_parts_of_a_long_range_leaves_each_block_as_it_was_or_zeros() {
    for fua in [false, true] {
        for command in [Command::Trim { fua }, Command::Zero { no_hole: false, fua, fast: false }] {
            let (mut scenario, _) = in_parts();
            scenario.crash_at_every_step();
            // Not of whole blocks at its ends.
            let range = scenario.send(Span::new(3, 64 * 8 - 6), command);
            scenario.step();
            let flush = scenario.send_flush();
            scenario.wait(range).expect("a range");
            scenario.wait(flush).expect("a flush");
            scenario.flush();
            assert!(scenario.crashes_tried() > 4, "{} crashes", scenario.crashes_tried());
        }
    }
}

/// The same with room for sixteen ranges: an eighth is kept for what is lost, and three for whoever comes next. Nothing is written.
fn with_few_ranges() -> Scenario {
    let mut plan = plan_for(Geometry { range_entries: 16, ..scenario().geometry() });
    plan.config.zeroed_together = 4;
    Scenario::of(plan)
}

/// Found by seed 68 of the refusing ones: the rest was taken for a hint that nothing has to be done for.
#[test]
fn a_long_range_whose_first_part_fills_the_table_is_zeroed_to_its_end() {
    for command in [Command::Zero { no_hole: false, fua: false, fast: true }, Command::Zero { no_hole: true, fua: true, fast: false }] {
        let mut scenario = with_few_ranges();
        (0..64).for_each(|block| drop(scenario.write(block)));
        scenario.flush();
        // There is room for one more.
        (0..11).for_each(|range| scenario.trim(scenario.block(20 + 2 * range)));
        let range = scenario.send(scenario.blocks(0, 8), command);
        scenario.wait(range).expect("it waits until the others are home");
        (0..8).for_each(|block| assert_eq!(scenario.read(scenario.block(block)).expect("a read"), vec![0; 8], "block {block}"));
    }
}

#[test]
fn sets_that_are_free_together_are_freed_turn_by_turn() {
    let mut scenario = Scenario::with(|plan| plan.config.freed_together = 1);
    (0..64).for_each(|block| drop(scenario.write(block)));
    scenario.flush();
    scenario.trim(scenario.blocks(0, 64));
    let before = scenario.snapshot().free_sets;
    let flush = scenario.send_flush();
    let mut most = 0;
    let mut free = before;
    for _ in 0..100 {
        let more = scenario.step();
        let now = scenario.snapshot().free_sets;
        (most, free) = (most.max(now - free), now);
        if !more || free >= before + 8 {
            break;
        }
    }
    assert!(scenario.is_answered(flush));
    assert_eq!((free - before, most), (8, 1), "one in each turn, and none waits for anything else to happen");
}

/// Whoever waits for the first part to be on the origin keeps the others from nothing.
#[test]
fn a_long_range_does_not_wait_for_its_own_parts_to_go_home() {
    let (mut scenario, _) = in_parts();
    scenario.switch(Mode::WriteThrough);
    scenario.flush();
    scenario.hold(Zone::Origin);
    let range = scenario.send(scenario.blocks(0, 56), Command::Zero { no_hole: true, fua: false, fast: false });
    let flush = scenario.send_flush();
    assert!(!scenario.is_answered(range));
    scenario.run_until_quiet();
    assert!(scenario.is_answered(range) && !scenario.is_answered(flush));
    scenario.release(Zone::Origin);
    scenario.wait(flush).expect("a flush");
}

/// Of a TRIM with FUA a part was done when the SSD failed: only memory knows of it then.
#[test]
fn of_a_long_trim_what_was_zeroed_is_on_the_origin_before_it_is_answered_without_the_ssd() {
    let mut scenario = with_few_ranges();
    (0..64).for_each(|block| drop(scenario.write(block)));
    scenario.drain();
    (0..64).for_each(|block| drop(scenario.write(block)));
    scenario.flush();
    scenario.hold(Zone::Origin);
    // There is room for one more: the rest waits.
    (0..11).for_each(|range| scenario.trim(scenario.block(20 + 2 * range)));
    let range = scenario.send(scenario.blocks(0, 8), Command::Trim { fua: true });
    scenario.run_until_quiet();
    assert!(!scenario.is_answered(range), "it waits for room in the table");
    scenario.cache_goes();
    scenario.send_write(scenario.block(63), false);
    scenario.until_degraded();
    scenario.run_until_quiet();
    assert!(!scenario.is_answered(range), "what was zeroed is not durable");
    scenario.release(Zone::Origin);
    scenario.wait(range).expect("the origin takes it");
    (0..4).for_each(|block| assert_eq!(scenario.on_origin(block)[1], vec![0; 8], "block {block}"));
}

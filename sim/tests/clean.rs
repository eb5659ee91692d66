//! Cleaning, situation by situation: sets that hold too little are emptied, whatever happens meanwhile. The oracle listens to every reply
//! in all of them; what is asserted here besides is that the situation really came about.

use tidegate_engine::cache::format::Geometry;
use tidegate_engine::config::Allocation;
use tidegate_engine::op::{DeviceId, Zone};
use tidegate_engine::request::{Command, RequestError};
use tidegate_engine::time::Duration;
use tidegate_sim::back::fault::Fault;
use tidegate_sim::back::volatile::Survive;
use tidegate_sim::plan::Plan;
use tidegate_sim::scenario::{Scenario, plan};
use tidegate_sim::stamp::Stamps;

/// Cleaning begins as soon as there is anything to clean.
fn eager(change: impl FnOnce(&mut Plan)) -> Scenario {
    Scenario::with(|plan| {
        plan.config.clean_floor = 16;
        change(plan);
    })
}

fn moved(scenario: &Scenario) -> u64 {
    scenario.snapshot().counters.moved_blocks
}

/// A full set, half of which is overwritten: as soon as that is durable it is worth emptying. What blocks 0 to 7 hold.
fn half_dead(scenario: &mut Scenario) -> Vec<Stamps> {
    let mut written: Vec<Stamps> = (0..8).map(|block| scenario.write(block)).collect();
    (0..4).for_each(|block| written[block] = scenario.write(block as u64));
    written
}

fn expect_all(scenario: &mut Scenario, written: &[Stamps]) {
    written.iter().enumerate().for_each(|(block, data)| scenario.expect(block as u64, data));
}

/// There is room for it, and for much more.
#[test]
fn one_write_that_the_ssd_refuses_drops_nothing_that_is_clean() {
    let mut scenario = Scenario::new();
    let mut written: Vec<Stamps> = (0..64).map(|block| scenario.write(block)).collect();
    (0..64).step_by(8).for_each(|block| written[block] = scenario.write(block as u64));
    scenario.drain();
    let before = scenario.snapshot();
    assert_eq!((before.dirty_slots, before.live_slots), (0, 64));
    scenario.fail_next(Zone::Data, Fault::Error);
    written[9] = scenario.write(9);
    scenario.advance(Duration::from_secs(1));
    let after = scenario.snapshot().counters;
    assert_eq!((after.clean_dropped_blocks, after.dropped_sets), (before.counters.clean_dropped_blocks, before.counters.dropped_sets));
    expect_all(&mut scenario, &written);
}

#[test]
fn a_set_that_is_half_dead_is_emptied_and_free() {
    let mut scenario = eager(|_| ());
    let written = half_dead(&mut scenario);
    scenario.flush();
    scenario.run_until_quiet();
    assert_eq!((moved(&scenario), scenario.snapshot().counters.cleaned_sets), (4, 1));
    scenario.flush();
    assert_eq!(scenario.snapshot().free_sets, 14, "two sets hold eight blocks");
    expect_all(&mut scenario, &written);
    scenario.power_cut(Survive::None);
    expect_all(&mut scenario, &written);
    scenario.drain();
    written.iter().enumerate().for_each(|(block, data)| assert_eq!(scenario.on_origin(block as u64)[1], data.stamps().collect::<Vec<_>>()));
}

#[test]
fn an_overwrite_during_relocation_wins_in_memory_and_after_a_crash() {
    for flushed in [false, true] {
        let mut scenario = eager(|_| ());
        let mut written = half_dead(&mut scenario);
        scenario.hold(Zone::Data);
        scenario.flush();
        let (id, newer) = scenario.send_write(scenario.block(5), false);
        scenario.run_until_quiet();
        assert_eq!(moved(&scenario), 0, "the set is being read");
        scenario.release(Zone::Data);
        scenario.wait(id).expect("a write");
        scenario.run_until_quiet();
        assert_eq!(moved(&scenario), 3);
        written[5] = newer;
        expect_all(&mut scenario, &written);
        if flushed {
            scenario.flush();
        } else {
            written.remove(5);
        }
        scenario.power_cut(Survive::None);
        if flushed {
            expect_all(&mut scenario, &written);
        } else {
            scenario.read(scenario.block(5)).expect("the older one or the newer one, says the oracle");
        }
    }
}

#[test]
fn a_crash_at_every_step_of_a_move_loses_nothing() {
    for survive in [Survive::None, Survive::All, Survive::Random, Survive::Torn] {
        for crash_after in 0..24 {
            let mut scenario = eager(|_| ());
            let written = half_dead(&mut scenario);
            scenario.flush();
            scenario.send_flush();
            for _ in 0..crash_after {
                scenario.step();
            }
            scenario.power_cut(survive.clone());
            expect_all(&mut scenario, &written);
            scenario.run_until_quiet();
            scenario.flush();
            scenario.power_cut(survive.clone());
            expect_all(&mut scenario, &written);
        }
    }
}

#[test]
fn relocation_never_revives_what_a_through_write_replaced() {
    for (crash, survive) in [(false, Survive::All), (true, Survive::All), (true, Survive::None)] {
        let mut scenario = eager(|plan| plan.config.allocation = Allocation::ReadOnly);
        // A FLUSH takes what went through into the log, where it fills a set.
        scenario.hold_flush(DeviceId::Origin);
        let mut written: Vec<Stamps> = (0..8).map(|block| scenario.write(block)).collect();
        scenario.flush();
        scenario.release_flush(DeviceId::Origin);
        scenario.hold(Zone::Origin);
        let (id, newer) = scenario.send_write(scenario.block(3), false);
        scenario.trim(scenario.block(0));
        scenario.flush();
        scenario.run_until_quiet();
        assert!(!scenario.is_answered(id), "it is on its way to the origin");
        scenario.release(Zone::Origin);
        scenario.wait(id).expect("a write");
        written[3] = newer;
        scenario.advance(Duration::from_secs(5));
        scenario.flush();
        (1..8).for_each(|block| scenario.expect(block, &written[block as usize]));
        if crash {
            scenario.power_cut(survive);
        }
        (1..8).for_each(|block| scenario.expect(block, &written[block as usize]));
        scenario.drain();
        (1..8).for_each(|block| scenario.expect(block, &written[block as usize]));
    }
}

#[test]
fn full_of_dirty_and_the_origin_dead_what_is_dead_is_room_for_writes() {
    let mut scenario = Scenario::with(|plan| {
        plan.config.geometry = Geometry { volume_atoms: 512 * 8, ..plan.config.geometry };
        plan.limits[1].atoms = 512 * 8;
    });
    scenario.origin_goes();
    let mut written = Vec::new();
    let blocked = loop {
        let (id, data) = scenario.send_write(scenario.block(written.len() as u64), false);
        scenario.run_until_quiet();
        if !scenario.is_answered(id) {
            break (id, data);
        }
        scenario.wait(id).expect("a write");
        written.push(data);
        assert!(written.len() < 128, "the cache takes more than it has room for");
    };
    let first = written.len() as u64;
    assert!(first >= 80, "only {first} of 128 slots could be used");
    // Every fourth block dies: no set is empty, and the origin takes nothing.
    for block in (0..first).step_by(4) {
        let trim = scenario.send(scenario.block(block), Command::Trim { fua: false });
        scenario.wait(trim).expect("a trim needs no room");
    }
    scenario.flush();
    scenario.wait(blocked.0).expect("the cleaner has made room");
    for block in first + 1..first + 8 {
        scenario.write(block);
    }
    assert!(moved(&scenario) > 0);
    (0..first).filter(|block| block % 4 != 0).for_each(|block| scenario.expect(block, &written[block as usize]));
    scenario.expect(first, &blocked.1);
    scenario.origin_comes_back(false);
    scenario.drain();
    (0..first).filter(|block| block % 4 != 0).for_each(|block| scenario.expect(block, &written[block as usize]));
}

#[test]
fn what_moves_stays_as_old_as_it_was() {
    let mut scenario = eager(|plan| plan.config.max_dirty_age = Duration::from_secs(10));
    let written: Vec<Stamps> = (0..8).map(|block| scenario.write(block)).collect();
    scenario.advance(Duration::from_secs(6));
    (0..4).for_each(|block| drop(scenario.write(block)));
    scenario.flush();
    scenario.run_until_quiet();
    assert_eq!(moved(&scenario), 4);
    scenario.flush();
    scenario.advance(Duration::from_secs(5));
    assert_eq!(scenario.on_origin(5)[1], written[5].stamps().collect::<Vec<_>>(), "it has been dirty for eleven seconds");
}

#[test]
fn a_damaged_slot_stays_behind_alone() {
    let mut scenario = eager(|_| ());
    let written = half_dead(&mut scenario);
    scenario.hold(Zone::Data);
    scenario.flush();
    let place = scenario.places(written[6].stamp(0))[0];
    scenario.rot(place);
    scenario.release(Zone::Data);
    scenario.run_until_quiet();
    assert_eq!(moved(&scenario), 3);
    scenario.flush();
    scenario.power_cut(Survive::None);
    for (block, data) in written.iter().enumerate() {
        if block == 6 {
            assert_eq!(scenario.read(scenario.block(6)), Err(RequestError::Io), "damaged, and said so");
        } else {
            scenario.expect(block as u64, data);
        }
    }
}

#[test]
fn clean_blocks_that_nobody_uses_are_dropped_and_others_carried() {
    for used in [false, true] {
        let mut scenario = eager(|_| ());
        let mut written: Vec<Stamps> = (0..8).map(|block| scenario.write(block)).collect();
        scenario.drain();
        scenario.advance(Duration::from_secs(5));
        if used {
            scenario.expect(5, &written[5]);
        }
        written[0] = scenario.write(0);
        scenario.run_until_quiet();
        let counters = scenario.snapshot().counters;
        let expected = if used { (7, 0) } else { (0, 7) };
        assert_eq!((counters.moved_blocks, counters.clean_dropped_blocks), expected, "used: {used}");
        scenario.flush();
        scenario.power_cut(Survive::None);
        expect_all(&mut scenario, &written);
    }
}

#[test]
fn a_cache_opened_with_fewer_streams_seals_what_it_cannot_continue() {
    let mut many = plan();
    many.config.classes = 3;
    let mut scenario = Scenario::of(many);
    let written: Vec<Stamps> = (0..20).map(|block| scenario.write(block)).collect();
    (0..10).for_each(|_| scenario.rewrite(3, &written[3]));
    scenario.flush();
    scenario.simulation.plan.config.classes = 1;
    scenario.power_cut(Survive::None);
    expect_all(&mut scenario, &written);
    let more: Vec<Stamps> = (20..40).map(|block| scenario.write(block)).collect();
    scenario.flush();
    scenario.power_cut(Survive::None);
    expect_all(&mut scenario, &written);
    more.iter().zip(20..).for_each(|(data, block)| scenario.expect(block, data));
}

#[test]
fn what_is_on_its_way_home_may_move_and_its_place_be_taken_before_it_arrives() {
    for survive in [None, Some(Survive::None), Some(Survive::All)] {
        let mut scenario = eager(|plan| plan.config.max_dirty_age = Duration::from_secs(10));
        let mut written: Vec<Stamps> = (0..8).map(|block| scenario.write(block)).collect();
        scenario.flush();
        scenario.hold(Zone::Origin);
        scenario.advance(Duration::from_secs(11));
        let on_its_way = scenario.noted().iter().filter(|op| op.zone == Some(Zone::Origin) && op.writes).count();
        assert!(on_its_way > 0, "what is old goes home");
        let (going, place) = (written[0].stamp(0), scenario.places(written[0].stamp(0))[0]);
        // The set is emptied meanwhile, ...
        (0..4).for_each(|block| written[block] = scenario.write(block as u64));
        scenario.flush();
        scenario.run_until_quiet();
        assert_eq!(moved(&scenario), 4);
        // ... and takes other blocks, which live there when the others arrive.
        written.extend((8..16).map(|block| scenario.write(block)));
        let mut more = 0;
        while scenario.places(going).contains(&place) {
            let block = 8 + more % 8;
            written[block] = scenario.write(block as u64);
            scenario.flush();
            scenario.run_until_quiet();
            more += 1;
            assert!(more < 400, "nobody takes its place");
        }
        written.extend((16..32).map(|block| scenario.write(block)));
        scenario.flush();
        scenario.release(Zone::Origin);
        scenario.run_until_quiet();
        scenario.flush();
        if let Some(survive) = survive {
            scenario.power_cut(survive);
        }
        expect_all(&mut scenario, &written);
        scenario.drain();
        for (block, data) in written.iter().enumerate() {
            assert_eq!(scenario.on_origin(block as u64)[1], data.stamps().collect::<Vec<_>>(), "block {block} is the newest one");
        }
    }
}

/// What lives would fit twice: neither is anything that was read dropped, nor anything that was written sent home, for want of sets.
#[test]
fn a_log_with_much_that_is_dead_is_packed_before_anything_leaves_it() {
    let mut scenario = Scenario::with(|plan| {
        plan.config.free_floor = 5;
        plan.config.dirty_high = 11;
    });
    let read: Vec<Stamps> = (32..48).map(|block| scenario.first(block)).collect();
    let mut chance = scenario.chance("overwrites");
    let mut written: Vec<Stamps> = (0..24).map(|block| scenario.write(block)).collect();
    for round in 0..400 {
        // Read again and again, so that it is worth carrying.
        scenario.expect(32 + round % 16, &read[round as usize % 16]);
        let block = chance.below(24);
        written[block as usize] = scenario.write(block);
        if round % 8 == 0 {
            scenario.flush();
            // Idle as it may be, nothing has to go home.
            scenario.advance(Duration::from_secs(3));
        }
    }
    let counters = scenario.snapshot().counters;
    assert!(counters.moved_blocks > 0 && counters.miss_blocks <= 16 + counters.clean_dropped_blocks, "{counters:?}");
    assert_eq!((counters.dropped_sets, counters.destaged_blocks), (0, 0));
    expect_all(&mut scenario, &written);
    scenario.flush();
    scenario.power_cut(Survive::None);
    expect_all(&mut scenario, &written);
}

/// As long as they ask for something, what they write kills more of what would be copied; when they rest, room is made for the next time. With
/// free_floor 8 and clean_floor 2 the one begins below 5 free sets, the other below 8. Neither is a reason to go home.
#[test]
fn a_log_with_much_that_is_dead_is_packed_late_while_clients_write_and_at_once_when_they_rest() {
    let mut scenario = Scenario::with(|plan| {
        plan.config.free_floor = 8;
        plan.config.clean_floor = 2;
        plan.config.dirty_high = 14;
    });
    let mut chance = scenario.chance("overwrites");
    let mut written: Vec<Stamps> = (0..24).map(|block| scenario.write(block)).collect();
    let mut overwrite_until = |scenario: &mut Scenario, free: u32, written: &mut [Stamps]| {
        for _ in 0..1_000 {
            if scenario.snapshot().free_sets <= free {
                return;
            }
            let block = chance.below(24);
            written[block as usize] = scenario.write(block);
            scenario.flush();
        }
        panic!("{free} free sets are never reached");
    };
    let cleaned = |scenario: &Scenario| scenario.snapshot().counters.cleaned_sets;
    overwrite_until(&mut scenario, 5, &mut written);
    assert_eq!(cleaned(&scenario), 0, "there is time");
    overwrite_until(&mut scenario, 4, &mut written);
    scenario.run_until_quiet();
    assert!(cleaned(&scenario) > 0, "there is none left");
    let before = cleaned(&scenario);
    overwrite_until(&mut scenario, 6, &mut written);
    scenario.advance(Duration::from_secs(3));
    scenario.flush();
    let after = scenario.snapshot();
    assert!(after.counters.cleaned_sets > before && after.free_sets >= 8, "{} free", after.free_sets);
    assert_eq!((after.counters.dropped_sets, after.counters.destaged_blocks), (0, 0));
    expect_all(&mut scenario, &written);
}

/// Both portions of a set have been read; while the first to come is moved, what lives in the other dies, and with it the set. It is held by a
/// portion that waited for the set to become free: nothing was cleaned any more, and the write was given up with the origin away.
#[test]
fn a_set_that_dies_while_it_is_emptied_is_not_waited_for_by_its_own_portion() {
    let mut plan = plan();
    plan.config.geometry = Geometry { set_slots: 64, volume_atoms: 2_048 * 8, journal_pages: 256, ..plan.config.geometry };
    (plan.limits[0].atoms, plan.limits[1].atoms) = (plan.config.geometry.cache_atoms(), 2_048 * 8);
    plan.config.classes = 2;
    let mut scenario = Scenario::of(plan);
    scenario.origin_goes();
    let waiting = (0..1_024).find_map(|block| {
        let (write, _) = scenario.send_write(scenario.block(block), false);
        scenario.run_until_quiet();
        (!scenario.is_answered(write)).then_some(write)
    });
    let waiting = waiting.expect("the log is full");
    let trim = |scenario: &mut Scenario, first, blocks| {
        let trim = scenario.send(scenario.blocks(first, blocks), Command::Trim { fua: false });
        scenario.wait(trim).expect("it needs no room");
    };
    scenario.flush();
    scenario.fail_next(Zone::Data, Fault::Stuck(Duration::from_secs(2)));
    trim(&mut scenario, 10, 30);
    while moved(&scenario) == 0 {
        assert!(scenario.step(), "one portion comes at once, the other one late");
    }
    trim(&mut scenario, 0, 64);
    (1..10).for_each(|set| trim(&mut scenario, set * 64, 19));
    scenario.advance(Duration::from_secs(30));
    assert!(scenario.is_answered(waiting), "others are emptied meanwhile: {:?}", scenario.snapshot().counters.cleaned_sets);
}

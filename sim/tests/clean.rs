//! Cleaning, situation by situation: sets that hold too little are emptied, whatever happens meanwhile. The oracle listens to every reply
//! in all of them; what is asserted here besides is that the situation really came about.

use tidegate_engine::block::Span;
use tidegate_engine::cache::format::Geometry;
use tidegate_engine::config::Allocation;
use tidegate_engine::op::{DeviceId, Zone};
use tidegate_engine::request::{Command, RequestError};
use tidegate_engine::time::{Duration, Instant};
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

/// The atoms of the SSD at which these begin cannot be read any more. Where they are.
fn spoil(scenario: &mut Scenario, data: &[&Stamps]) -> Vec<u64> {
    let places: Vec<u64> = data.iter().map(|data| scenario.places(data.stamp(0))[0]).collect();
    places.iter().for_each(|&place| scenario.simulation.scene.cache.spoil(place));
    places
}

/// When the SSD was asked for that place.
fn asked(scenario: &Scenario, place: u64) -> Vec<Instant> {
    let reads = scenario.noted().iter().filter(|op| op.zone == Some(Zone::Data) && !op.writes);
    reads.filter(|op| op.span.contains(Span::new(place, 1))).map(|op| op.at).collect()
}

/// How long lay between one time and the next, in seconds.
fn pauses(asked: &[Instant]) -> Vec<u64> {
    let seconds = |from: Instant, to: Instant| (to.since(from).0 + 500_000_000) / 1_000_000_000;
    asked.windows(2).map(|pair| seconds(pair[0], pair[1])).collect()
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

/// Every second it was asked for, for as long as the set was worth emptying. Its block does not go home meanwhile.
#[test]
fn a_set_with_a_slot_that_the_ssd_does_not_give_is_tried_less_often_each_time() {
    let mut scenario = eager(|_| ());
    let written = half_dead(&mut scenario);
    scenario.origin_goes();
    let place = spoil(&mut scenario, &[&written[6]])[0];
    scenario.flush();
    scenario.advance(Duration::from_secs(600));
    let tries = asked(&scenario, place);
    assert!(tries.len() <= 20, "{} times in ten minutes", tries.len());
    let found = pauses(&tries);
    assert!(found[..6] == [1, 2, 4, 8, 16, 32] && found[6..].iter().all(|&pause| pause == 60), "{found:?}");
    // The end of the next pause wakes the engine, and hardly anything does before.
    let mut steps = 0;
    while asked(&scenario, place).len() == tries.len() {
        assert!(scenario.step() && steps < 10, "{steps} steps since {:?}", tries.last());
        steps += 1;
    }
    assert_eq!(pauses(&asked(&scenario, place)).last(), Some(&60));
    scenario.simulation.scene.cache.heal();
    scenario.advance(Duration::from_secs(61));
    assert_eq!(moved(&scenario), 4);
    scenario.flush();
    assert_eq!(scenario.snapshot().free_sets, 14, "two sets hold eight blocks");
    expect_all(&mut scenario, &written);
    scenario.power_cut(Survive::None);
    expect_all(&mut scenario, &written);
    scenario.origin_comes_back(false);
    scenario.drain();
    written.iter().enumerate().for_each(|(block, data)| assert_eq!(scenario.on_origin(block as u64)[1], data.stamps().collect::<Vec<_>>()));
}

#[test]
fn a_set_with_a_damaged_dirty_slot_is_tried_less_often_each_time() {
    let mut scenario = eager(|_| ());
    let mut written = half_dead(&mut scenario);
    scenario.origin_goes();
    let place = scenario.places(written[6].stamp(0))[0];
    scenario.rot(place);
    scenario.flush();
    scenario.advance(Duration::from_secs(70));
    assert_eq!(pauses(&asked(&scenario, place)), [1, 2, 4, 8, 16, 32]);
    assert_eq!(moved(&scenario), 3, "the others are as good as any");
    // Written anew it is as good as they are, and the set is empty.
    written[6] = scenario.write(6);
    scenario.flush();
    assert_eq!(scenario.snapshot().free_sets, 14, "two sets hold eight blocks");
    expect_all(&mut scenario, &written);
}

/// Emptied by the cleaner as soon as it can be read, or by clients who write what was left in it.
#[test]
fn a_set_that_has_been_empty_begins_again_with_the_shortest_pause() {
    for is_overwritten in [false, true] {
        let mut scenario = eager(|_| ());
        let mut written = half_dead(&mut scenario);
        let place = spoil(&mut scenario, &[&written[6]])[0];
        scenario.flush();
        scenario.advance(Duration::from_secs(16));
        assert_eq!(pauses(&asked(&scenario, place)), [1, 2, 4, 8]);
        if is_overwritten {
            (4..8).for_each(|block| written[block] = scenario.write(block as u64));
        }
        scenario.simulation.scene.cache.heal();
        scenario.advance(Duration::from_secs(16));
        scenario.flush();
        let free = if is_overwritten { 15 } else { 14 };
        assert_eq!(scenario.snapshot().free_sets, free, "eight blocks lie where they were written, or four of them where they moved");
        // Its turn comes again: a block lies in it, seven that follow fill it, and of these four die.
        let sets: Vec<Span> = (0..16).map(|set| scenario.geometry().set(set)).collect();
        let set = sets.into_iter().find(|set| set.contains(Span::new(place, 1))).expect("the place of a slot");
        let mut write = |scenario: &mut Scenario, number: u64| {
            let block = (number % 32) as usize;
            let data = scenario.write(block as u64);
            scenario.flush();
            let place = scenario.places(data.stamp(0))[0];
            if block == written.len() {
                written.push(data)
            } else {
                written[block] = data
            }
            set.contains(Span::new(place, 1)).then_some(place)
        };
        let found = (0..400).find_map(|number| Some((number, write(&mut scenario, number)?)));
        let (number, place) = found.expect("no block comes to lie in it");
        scenario.simulation.scene.cache.spoil(place);
        (1..8).for_each(|next| assert!(write(&mut scenario, number + next).is_some(), "it takes eight"));
        scenario.forget_noted();
        (1..5).for_each(|next| assert!(write(&mut scenario, number + next).is_none(), "it is full"));
        scenario.advance(Duration::from_secs(4));
        assert_eq!(pauses(&asked(&scenario, place)), [1, 2], "overwritten: {is_overwritten}");
        scenario.simulation.scene.cache.heal();
        expect_all(&mut scenario, &written);
    }
}

/// More of them than the cleaner looks at, each worth more than the one behind them, of which a single slot is dead.
#[test]
fn sets_that_cannot_be_read_do_not_hide_the_one_behind_them() {
    const BAD: u64 = 80;
    let mut scenario = eager(|plan| {
        let geometry = Geometry { sets: 160, volume_atoms: 2_048 * 8, ..plan.config.geometry };
        plan.config.geometry = geometry;
        plan.config.clean_floor = geometry.sets;
        (plan.limits[0].atoms, plan.limits[1].atoms) = (geometry.cache_atoms(), geometry.volume_atoms);
    });
    scenario.origin_goes();
    let mut written: Vec<Stamps> = (0..BAD * 8).map(|block| scenario.write(block)).collect();
    let last: Vec<&Stamps> = written.iter().skip(7).step_by(8).collect();
    spoil(&mut scenario, &last);
    for block in (0..BAD * 8).filter(|block| block % 8 < 4) {
        written[block as usize] = scenario.write(block);
    }
    scenario.flush();
    scenario.advance(Duration::from_secs(1));
    written.extend((BAD * 8..BAD * 8 + 8).map(|block| scenario.write(block)));
    let good = scenario.places(written[BAD as usize * 8 + 1].stamp(0))[0];
    written[BAD as usize * 8] = scenario.write(BAD * 8);
    scenario.flush();
    assert!(asked(&scenario, good).len() == 1, "{:?}", asked(&scenario, good));
    scenario.simulation.scene.cache.heal();
    expect_all(&mut scenario, &written);
}

/// Sets of 64 slots. One of them holds four blocks each from 0, 20 and 40 on, which are read side by side and not together; the slots of the
/// `bad` ones cannot be read, and the one `in_use` is on its way to the origin for twenty seconds. When the SSD was asked for the place of each of
/// them, in seconds between one time and the next.
fn pauses_of_three_portions(bad: &[u64], in_use: Option<u64>) -> Vec<Vec<u64>> {
    let mut scenario = eager(|plan| {
        let geometry = Geometry { set_slots: 64, volume_atoms: 2_048 * 8, journal_pages: 256, ..plan.config.geometry };
        plan.config.geometry = geometry;
        (plan.limits[0].atoms, plan.limits[1].atoms) = (geometry.cache_atoms(), geometry.volume_atoms);
        plan.config.allocation = Allocation::ReadOnly;
    });
    // A FLUSH takes what went through into the log, where it fills a set.
    scenario.hold_flush(DeviceId::Origin);
    let mut written: Vec<Stamps> = (0..64).map(|block| scenario.write(block)).collect();
    scenario.flush();
    scenario.release_flush(DeviceId::Origin);
    scenario.hold(Zone::Origin);
    let under_way = in_use.map(|block| (block, scenario.send_write(scenario.block(block), false)));
    let looked_at: Vec<&Stamps> = bad.iter().chain(&in_use).map(|&block| &written[block as usize]).collect();
    let places: Vec<u64> = looked_at.iter().map(|data| scenario.places(data.stamp(0))[0]).collect();
    spoil(&mut scenario, &looked_at[..bad.len()]);
    [(4, 16), (24, 16), (44, 20)].into_iter().for_each(|(first, blocks)| scenario.trim(scenario.blocks(first, blocks)));
    scenario.flush();
    scenario.advance(Duration::from_secs(20));
    let found = places.iter().map(|&place| pauses(&asked(&scenario, place))).collect();
    scenario.simulation.scene.cache.heal();
    scenario.release(Zone::Origin);
    if let Some((block, (id, newer))) = under_way {
        assert!(!scenario.is_answered(id), "it is on its way to the origin");
        scenario.wait(id).expect("a write");
        written[block as usize] = newer;
    }
    scenario.advance(Duration::from_secs(61));
    scenario.flush();
    let taken = 1 + u32::from(in_use.is_some());
    assert_eq!(scenario.snapshot().free_sets, 16 - taken, "what has moved is together, and so is what clients wrote");
    (0..44).filter(|block| block % 20 < 4).for_each(|block| scenario.expect(block, &written[block as usize]));
    found
}

#[test]
fn many_portions_of_a_set_that_cannot_be_read_are_one_failure() {
    assert_eq!(pauses_of_three_portions(&[0, 21, 42], None), vec![[1, 2, 4, 8]; 3]);
}

#[test]
fn a_set_of_which_something_is_in_use_is_tried_every_second() {
    for in_use in [0, 21, 42] {
        let found = pauses_of_three_portions(&[], Some(in_use));
        assert!(found[0].len() >= 15 && found[0].iter().all(|&pause| pause == 1), "{found:?}");
    }
}

#[test]
fn a_set_of_which_something_is_in_use_and_something_cannot_be_read_is_tried_less_often_each_time() {
    for (bad, in_use) in [(0, 21), (21, 0), (0, 42), (42, 0)] {
        assert_eq!(pauses_of_three_portions(&[bad], Some(in_use))[0], [1, 2, 4, 8], "block {bad} is bad, {in_use} in use");
    }
}

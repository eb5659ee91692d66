//! The scrubber: what rots on the SSD is found while there is still another copy, and is never made worse by its repair.

use std::rc::Rc;

use tidegate_engine::Mode;
use tidegate_engine::block::{ATOM_BYTES, PAGE_ATOMS};
use tidegate_engine::cache::format::{Geometry, Superblock};
use tidegate_engine::fault_point::FaultPoint;
use tidegate_engine::op::{DeviceId, Zone};
use tidegate_engine::probe::{Health, Scrub, WaitReason};
use tidegate_engine::request::RequestError;
use tidegate_engine::time::Duration;
use tidegate_sim::back::fault::Fault;
use tidegate_sim::back::volatile::Survive;
use tidegate_sim::scenario::{Scenario, plan_for};
use tidegate_sim::stamp::Stamps;
use tidegate_sim::world::{Crash, Noted};

use crate::fault_points::sealed;

const BLOCK_BYTES: u64 = 8 * ATOM_BYTES;

/// A scenario whose cache is verified at 1 MiB a second.
fn scrubbed() -> Scenario {
    Scenario::with(|plan| plan.config.scrub_rate = 1 << 20)
}

#[test]
fn the_scrubber_verifies_everything_again_and_again_and_never_asks_the_origin() {
    let mut scenario = scrubbed();
    for block in 0..40 {
        scenario.write(block);
    }
    scenario.flush();
    scenario.checkpoints(2, 40);
    scenario.drain();
    scenario.forget_noted();
    let before = scenario.snapshot().counters.scrub_passes;
    scenario.advance(Duration::from_secs(60));
    let counters = scenario.snapshot().counters;
    let passes = counters.scrub_passes - before;
    assert!(passes > 2 && counters.scrubbed_blocks >= 40 * passes, "{passes} passes, {} blocks", counters.scrubbed_blocks);
    assert!(scenario.snapshot().scrub.last_pass.is_some());
    for zone in [Zone::Superblock, Zone::Map, Zone::Header, Zone::HeaderCopy, Zone::Journal, Zone::Data] {
        assert!(scenario.noted().iter().any(|op| op.zone == Some(zone) && !op.writes), "{zone:?} is not read");
    }
    assert!(scenario.noted().iter().all(|op| op.zone != Some(Zone::Origin)), "the origin rests");
    let found = counters.scrub_dropped_blocks + counters.scrub_damaged_blocks + counters.scrub_repaired_pages;
    assert_eq!(found, 0, "nothing is damaged");
}

#[test]
fn the_scrubber_keeps_its_rate() {
    let mut scenario = scrubbed();
    for block in 0..40 {
        scenario.write(block);
    }
    scenario.flush();
    scenario.forget_noted();
    scenario.advance(Duration::from_secs(10));
    let atoms: u64 = scenario.noted().iter().filter(|op| !op.writes).map(|op| op.span.atoms).sum();
    assert!((100..10 * 2048 + 1024).contains(&atoms), "{} KiB in 10 s", atoms / 2);
}

#[test]
fn rot_of_a_clean_block_is_repaired_and_of_a_dirty_one_told() {
    let mut scenario = scrubbed();
    let clean = scenario.write(1);
    scenario.flush();
    scenario.drain();
    let dirty = scenario.write(2);
    scenario.flush();
    for data in [&clean, &dirty] {
        let place = scenario.places(data.stamp(0))[0];
        scenario.rot(place);
    }
    let passes = scenario.snapshot().counters.scrub_passes;
    scenario.advance(Duration::from_secs(10));
    let counters = scenario.snapshot().counters;
    assert!(counters.scrub_passes > passes);
    assert_eq!(counters.scrub_dropped_blocks, 1);
    assert!(counters.scrub_damaged_blocks >= 1);
    scenario.expect(1, &clean);
    assert_eq!(scenario.read(scenario.block(2)), Err(RequestError::Io));
}

#[test]
fn rot_of_a_dirty_block_that_memory_has_is_written_anew() {
    let mut scenario = Scenario::with(|plan| {
        plan.config.scrub_rate = 1 << 20;
        plan.config.ram = 64 * BLOCK_BYTES;
    });
    let data = [1, 2].map(|block| scenario.write(block));
    scenario.flush();
    let dirty = scenario.snapshot().dirty_slots;
    let place = scenario.places(data[1].stamp(0))[0];
    scenario.rot(place);
    scenario.advance(Duration::from_secs(10));
    let snapshot = scenario.snapshot();
    assert_eq!((snapshot.counters.scrub_rescued_blocks, snapshot.counters.scrub_damaged_blocks), (1, 0));
    assert_eq!(snapshot.dirty_slots, dirty, "it is still to go home");
    scenario.flush();
    scenario.power_cut(Survive::None);
    for (block, data) in [1, 2].into_iter().zip(&data) {
        scenario.expect(block, data);
    }
    scenario.drain();
    assert_eq!(scenario.snapshot().counters.lost_blocks, 0);
}

#[test]
fn damaged_metadata_is_written_again_before_the_other_copy_is_needed() {
    let mut scenario = scrubbed();
    let data: Vec<Stamps> = (0..32).map(|block| scenario.write(block)).collect();
    scenario.checkpoints(2, 40);
    scenario.advance(Duration::from_secs(10));
    assert_eq!(scenario.snapshot().counters.scrub_repaired_pages, 0);
    let geometry = scenario.geometry();
    scenario.rot(geometry.header(0).start + 1);
    scenario.rot(geometry.superblock(0).start + 1);
    scenario.advance(Duration::from_secs(30));
    assert!(scenario.snapshot().counters.scrub_repaired_pages >= 2);
    // What was the only good copy is lost in its turn.
    scenario.rot(geometry.header_copy(0).start + 1);
    scenario.rot(geometry.superblock(1).start + 1);
    scenario.power_cut(Survive::None);
    for (block, data) in (0..32).zip(&data) {
        scenario.expect(block, data);
    }
    let cache = scenario.simulation.scene.cache.visible();
    let intact = (0..2).filter(|&copy| Superblock::decode(&cache.page_bytes(geometry.superblock(copy).start), copy).is_ok());
    assert_eq!(intact.count(), 2);
}

/// 40 blocks that the SSD alone has, and a sealed set of them that the newest map names.
fn with_sealed_set() -> (Scenario, Vec<Stamps>, u32) {
    let mut scenario = scrubbed();
    let data: Vec<Stamps> = (0..40).map(|block| scenario.write(block)).collect();
    scenario.flush();
    scenario.checkpoints(2, 40);
    scenario.advance(Duration::from_secs(10));
    let set = sealed(&mut scenario, true);
    (scenario, data, set)
}

/// When the scrubber comes to this set, both copies of its header are bad; and which of them cannot be written either.
fn rot_headers(scenario: &mut Scenario, set: u32, fails: [bool; 2]) {
    let geometry = scenario.geometry();
    step_while(scenario, |scrub| scrub.sets_done != Some(set));
    for (zone, fails) in [Zone::Header, Zone::HeaderCopy].into_iter().zip(fails) {
        // It cannot be read, and then not be written.
        (0..=u8::from(fails)).for_each(|_| scenario.fail_next(zone, Fault::Error));
    }
    scenario.rot(geometry.header(set).start + 1);
    scenario.rot(geometry.header_copy(set).start + 1);
}

fn expect_all(scenario: &mut Scenario, data: &[Stamps]) {
    for (block, data) in (0..).zip(data) {
        scenario.expect(block, data);
    }
}

/// Else nothing on the SSD would tell what the set holds, and the next start would refuse.
#[test]
fn a_set_of_which_neither_header_can_be_written_again_is_told_by_the_journal() {
    // Both copies are bad in each pass; which of them cannot be written either.
    for passes in [&[[true, false], [false, true]][..], &[[true, true]]] {
        for is_map_rotten in [false, true] {
            let (mut scenario, data, set) = with_sealed_set();
            let before = scenario.snapshot().counters;
            for &fails in passes {
                rot_headers(&mut scenario, set, fails);
                step_while(&mut scenario, |scrub| scrub.sets_done == Some(set));
                let failures = before.cache_write_failures + 2;
                while passes.len() == 1 && scenario.snapshot().counters.cache_write_failures < failures {
                    scenario.step();
                }
                // No longer than its flush takes: what tells it is the last of the log.
                scenario.advance(if passes.len() == 1 { Duration::from_millis(2) } else { Duration::from_secs(1) });
            }
            let counters = scenario.snapshot().counters;
            assert_eq!(counters.cache_write_failures - before.cache_write_failures, 2);
            assert_eq!(counters.checkpoints, before.checkpoints, "it needs none");
            assert_eq!(scenario.simulation.faults().has(FaultPoint::HeaderUnwritable), passes.len() == 1);
            scenario.crash(Crash::Power { cache: Survive::None, origin: Survive::None });
            if is_map_rotten {
                rot_newest_map(&mut scenario);
            }
            scenario.recover();
            // What tells it stays in the log.
            scenario.power_cut(Survive::None);
            expect_all(&mut scenario, &data);
        }
    }
}

/// The page of the newest map that tells of the first sets.
fn rot_newest_map(scenario: &mut Scenario) {
    let (cache, geometry) = (scenario.simulation.scene.cache.durable(), scenario.geometry());
    let superblock = Superblock::decode(&cache.page_bytes(geometry.superblock(0).start), 0).expect("it is well");
    scenario.rot(geometry.map_page(superblock.checkpoint.area, 0).start + 1);
}

/// A checkpoint is under way that names the set, and there is no room in the ring beside it.
#[test]
fn a_set_without_a_header_is_told_when_the_ring_has_room_again_also_at_a_stop() {
    for stops in [false, true] {
        let (mut scenario, data, set) = with_sealed_set();
        scenario.hold(Zone::Map);
        let mut waiting = Vec::new();
        let waits =
            |scenario: &Scenario| scenario.snapshot().counters.waits.iter().any(|(why, waits)| why == WaitReason::Journal && waits > 0);
        while !waits(&scenario) {
            waiting.push(scenario.send_write(scenario.block(41 + waiting.len() as u64 % 8), true).0);
            scenario.run_until_quiet();
        }
        rot_headers(&mut scenario, set, [true, true]);
        while !scenario.simulation.faults().has(FaultPoint::HeaderUnwritable) {
            scenario.step();
        }
        if stops {
            scenario.begin_stop();
        }
        scenario.release(Zone::Map);
        if stops {
            scenario.until_stopped();
            scenario.recover();
        } else {
            waiting.into_iter().for_each(|id| _ = scenario.wait(id).expect("there is room again"));
            scenario.power_cut(Survive::None);
        }
        expect_all(&mut scenario, &data);
    }
}

/// One copy could not be written, the other one was not tried yet.
#[test]
fn a_stop_waits_for_the_headers_that_are_written_again() {
    let (mut scenario, data, set) = with_sealed_set();
    let failures = |scenario: &Scenario| scenario.snapshot().counters.cache_write_failures;
    let before = failures(&scenario);
    rot_headers(&mut scenario, set, [true, false]);
    while failures(&scenario) == before {
        scenario.step();
    }
    scenario.stop();
    scenario.recover();
    expect_all(&mut scenario, &data);
}

/// That flush may have lost the copy that was written again, and of the other one there is nothing.
#[test]
fn a_header_that_was_written_again_is_so_once_more_when_the_flush_behind_it_fails() {
    let (mut scenario, data, set) = with_sealed_set();
    rot_headers(&mut scenario, set, [false, true]);
    scenario.fail_next_flush(DeviceId::Cache);
    let before = scenario.snapshot().counters.scrub_repaired_pages;
    scenario.advance(Duration::from_secs(2));
    let counters = scenario.snapshot().counters;
    assert_eq!((counters.cache_flush_failures, counters.scrub_repaired_pages - before), (1, 2));
    scenario.power_cut(Survive::None);
    expect_all(&mut scenario, &data);
}

fn step_while(scenario: &mut Scenario, is_such: impl Fn(&Scrub) -> bool) {
    while is_such(&scenario.snapshot().scrub) {
        scenario.step();
    }
}

/// The SSD has said that it was written. An older one is well by itself, and would be all there is when the other copy is lost.
#[test]
fn a_copy_of_the_superblock_that_never_landed_is_written_again() {
    let mut scenario = scrubbed();
    scenario.checkpoints(2, 3);
    scenario.advance(Duration::from_secs(10));
    scenario.fail_next(Zone::Superblock, Fault::Lost);
    scenario.checkpoints(1, 4);
    let sequences = |scenario: &Scenario| {
        let (cache, geometry) = (scenario.simulation.scene.cache.durable(), scenario.geometry());
        [0, 1].map(|copy| Superblock::decode(&cache.page_bytes(geometry.superblock(copy).start), copy).expect("it is well").sequence)
    };
    let [first, second] = sequences(&scenario);
    assert_ne!(first, second, "one has not landed");
    scenario.advance(Duration::from_secs(60));
    let [first, second] = sequences(&scenario);
    assert_eq!(first, second);
}

/// The first read is of all eight, then of each by itself; three are asked for again in vain.
#[test]
fn an_ssd_that_gives_nothing_for_some_seconds_costs_no_block() {
    let mut scenario = scrubbed();
    let data: Vec<Stamps> = (0..8).map(|block| scenario.write(block)).collect();
    scenario.drain();
    (0..12).for_each(|_| scenario.fail_next(Zone::Data, Fault::Passing));
    scenario.advance(Duration::from_secs(40));
    let counters = scenario.snapshot().counters;
    assert_eq!((counters.scrub_dropped_blocks, scenario.noted().iter().filter(is_failed_read).count()), (0, 12));
    assert!(counters.scrub_passes > 0 && counters.scrubbed_blocks >= 8);
    (0..8).for_each(|block| scenario.expect(block, &data[block as usize]));
}

/// Of eight the third and the fourth are given, in between. Those that came last are asked for once more in vain, as the others are.
#[test]
fn what_was_given_before_an_ssd_gives_nothing_says_nothing_of_what_is_not_given_then() {
    let mut scenario = scrubbed();
    let data: Vec<Stamps> = (0..8).map(|block| scenario.write(block)).collect();
    scenario.drain();
    let failed = |scenario: &Scenario| scenario.noted().iter().filter(is_failed_read).count();
    (0..3).for_each(|_| scenario.fail_next(Zone::Data, Fault::Passing));
    while failed(&scenario) < 3 {
        scenario.step();
    }
    let given = scenario.snapshot().counters.scrubbed_blocks;
    while scenario.snapshot().counters.scrubbed_blocks < given + 2 {
        scenario.step();
    }
    (0..12).for_each(|_| scenario.fail_next(Zone::Data, Fault::Passing));
    scenario.advance(Duration::from_secs(40));
    assert_eq!((scenario.snapshot().counters.scrub_dropped_blocks, failed(&scenario)), (2, 15));
    (0..8).for_each(|block| scenario.expect(block, &data[block as usize]));
}

fn is_failed_read(op: &&Noted) -> bool {
    op.zone == Some(Zone::Data) && !op.writes && op.ended.is_some_and(|(_, well)| !well)
}

/// A step takes more than an hour at this rate. A map was not given, once.
#[test]
fn a_checkpoint_waits_for_the_scrubber_no_longer_than_it_doubts() {
    let mut scenario = Scenario::with(|plan| plan.config.scrub_rate = 1);
    scenario.checkpoints(2, 3);
    scenario.drain();
    scenario.fail_next(Zone::Map, Fault::Passing);
    scenario.forget_noted();
    while !scenario.noted().iter().any(|op| op.zone == Some(Zone::Map) && op.ended.is_some_and(|(_, well)| !well)) {
        scenario.advance(Duration::from_secs(60));
    }
    let (before, checkpoints) = (scenario.simulation.now(), scenario.snapshot().counters.checkpoints);
    scenario.switch(Mode::WriteThrough);
    assert!(scenario.snapshot().counters.checkpoints > checkpoints, "it is written down");
    assert!(scenario.simulation.now().since(before) < Duration::from_secs(10));
}

fn newest_superblock(scenario: &Scenario) -> Superblock {
    let cache = scenario.simulation.scene.cache.durable();
    let copies = (0..2).filter_map(|copy| Superblock::decode(&cache.page_bytes(scenario.geometry().superblock(copy).start), copy).ok());
    copies.max_by_key(|superblock| superblock.sequence).expect("a superblock")
}

#[test]
fn a_crash_at_any_step_of_the_replacement_of_a_damaged_map_finds_the_one_before_it() {
    let (before, after) = crash_at_any_step_of_the_repair(|scenario| {
        let data = scenario.checkpoints(2, 3);
        let newest = newest_superblock(scenario).checkpoint;
        scenario.rot(scenario.geometry().map_page(newest.area, 0).start + 2);
        data
    });
    assert!(after.checkpoint.area == before.checkpoint.area && after.previous == before.previous);
}

/// Whatever `damage` does to the maps: a power cut at any step until a checkpoint has ended finds a whole one. Says which were named before and
/// after.
fn crash_at_any_step_of_the_repair(damage: impl Fn(&mut Scenario) -> Stamps) -> (Superblock, Superblock) {
    for step in 0.. {
        let mut scenario = scrubbed();
        let data = damage(&mut scenario);
        let before = newest_superblock(&scenario);
        while scenario.snapshot().counters.scrub_repaired_pages == 0 {
            scenario.step();
        }
        for _ in 0..step {
            scenario.step();
        }
        let after = newest_superblock(&scenario);
        scenario.power_cut(Survive::All);
        scenario.expect(3, &data);
        if after.checkpoint != before.checkpoint {
            assert!(step > 3, "{step} steps");
            return (before, after);
        }
    }
    unreachable!("it is repaired in the end")
}

/// The scrubber finds a map damaged that is well: it cannot be read, twice.
fn twice_unread(scenario: &mut Scenario) {
    (0..2).for_each(|_| scenario.fail_next(Zone::Map, Fault::Error));
}

#[test]
fn a_map_that_cannot_be_read_for_a_moment_is_read_once_more() {
    let mut scenario = scrubbed();
    let data = scenario.checkpoints(2, 3);
    let before = newest_superblock(&scenario);
    scenario.fail_next(Zone::Map, Fault::Error);
    scenario.advance(Duration::from_secs(20));
    let snapshot = scenario.snapshot();
    assert!(snapshot.counters.scrub_passes > 1 && snapshot.counters.scrub_repaired_pages == 0, "{:?}", snapshot.counters);
    assert_eq!(newest_superblock(&scenario).checkpoint, before.checkpoint);
    scenario.expect(3, &data);
}

/// It had to be the older one at the last start; since then both that the superblock names are the same.
#[test]
fn the_only_map_is_not_written_over() {
    let (before, after) = crash_at_any_step_of_the_repair(|scenario| {
        let data = scenario.checkpoints(1, 3);
        // The mode's checkpoint: the one before it knows all of it.
        scenario.switch(Mode::WriteThrough);
        scenario.run_until_quiet();
        let newest = newest_superblock(scenario).checkpoint;
        scenario.rot(scenario.geometry().map_page(newest.area, 0).start + 2);
        scenario.power_cut(Survive::All);
        scenario.run_until_quiet();
        twice_unread(scenario);
        data
    });
    assert_eq!(before.checkpoint.area, before.previous.area);
    assert!(after.checkpoint.area != before.checkpoint.area && after.previous == before.checkpoint);
}

#[test]
fn a_map_is_not_written_over_where_the_one_before_it_is_damaged() {
    let (before, after) = crash_at_any_step_of_the_repair(|scenario| {
        let data = scenario.checkpoints(2, 3);
        let previous = newest_superblock(scenario).previous;
        scenario.rot(scenario.geometry().map_page(previous.area, 0).start + 2);
        twice_unread(scenario);
        data
    });
    assert!(before.previous.number > 0 && after.checkpoint.area == before.previous.area && after.previous == before.checkpoint);
}

/// The newest map is damaged, which the scrubber is about to find, and no more than so many writes with FUA have come since, as many as the ring
/// had room for. Returns how many.
fn damaged_map_and_a_full_ring(most: u64) -> (Scenario, u64) {
    let geometry =
        Geometry { block_atoms: 8, set_slots: 2_048, sets: 16, journal_pages: 512, volume_atoms: 8 * 16_384, range_entries: 252 };
    let mut plan = plan_for(geometry);
    plan.config.scrub_rate = 64 << 20;
    let mut scenario = Scenario::of(plan);
    scenario.checkpoints(2, 3);
    // The open sets of both streams are nearly full: much is to be told again.
    for block in 0..62 {
        scenario.read(scenario.blocks(8_000 + 32 * block, 32)).expect("a read");
    }
    for block in 0..44 {
        scenario.write_span(scenario.blocks(32 * block, 32));
    }
    scenario.flush();
    let newest = newest_superblock(&scenario).checkpoint;
    scenario.rot(scenario.geometry().map_page(newest.area, 0).start + 2);
    scenario.forget_noted();
    let until_read = |scenario: &mut Scenario, times: usize| {
        while scenario.noted().iter().filter(|op| op.zone == Some(Zone::Map)).count() < times {
            scenario.step();
        }
    };
    until_read(&mut scenario, 1);
    scenario.hold(Zone::Map);
    until_read(&mut scenario, 2);
    let has_room = |scenario: &mut Scenario, write: u64| {
        let (id, _) = scenario.send_write(scenario.block(write % 3), true);
        scenario.advance(Duration::from_millis(50));
        scenario.is_answered(id)
    };
    let taken = (0..most).take_while(|&write| has_room(&mut scenario, write)).count() as u64;
    (scenario, taken)
}

/// A checkpoint that is written over the newest map spends room in the ring, and frees none.
#[test]
fn a_damaged_map_and_a_full_ring_are_no_end_of_the_ssd() {
    let (_, most) = damaged_map_and_a_full_ring(2_000);
    assert!((100..2_000).contains(&most), "the ring is full behind {most} writes");
    for fewer in [1, 16, 48] {
        let (mut scenario, _) = damaged_map_and_a_full_ring(most - fewer);
        scenario.release(Zone::Map);
        for write in 0..140 {
            scenario.send_write(scenario.block(write % 3), true);
            scenario.advance(Duration::from_millis(500));
            assert!(scenario.simulation.engine.health() == Health::Whole, "{fewer} writes fewer, and {write}");
        }
    }
}

#[test]
fn damage_of_the_map_before_the_newest_is_found_while_that_is_whole() {
    let mut scenario = scrubbed();
    let data = scenario.checkpoints(2, 3);
    let before = newest_superblock(&scenario);
    scenario.rot(scenario.geometry().map_page(before.previous.area, 0).start + 2);
    scenario.advance(Duration::from_secs(20));
    let next = newest_superblock(&scenario);
    assert!(next.checkpoint.area == before.previous.area && next.previous == before.checkpoint);
    // The newest is lost in its turn.
    scenario.rot(scenario.geometry().map_page(next.checkpoint.area, 0).start + 2);
    scenario.power_cut(Survive::None);
    scenario.expect(3, &data);
}

#[test]
fn damage_of_the_map_and_of_the_ring_is_left_behind_by_a_checkpoint() {
    let mut scenario = scrubbed();
    let data = scenario.checkpoints(2, 3);
    let before = newest_superblock(&scenario);
    let newest = before.checkpoint;
    scenario.rot(scenario.geometry().map_page(newest.area, 0).start + 2);
    scenario.advance(Duration::from_secs(20));
    let next = newest_superblock(&scenario);
    // In the place of the damaged one: the other is the only one that is whole.
    assert!(next.checkpoint.number > newest.number && next.checkpoint.area == newest.area && next.previous == before.previous);
    scenario.power_cut(Survive::None);
    scenario.expect(3, &data);
    assert!(scenario.simulation.engine.damage().is_empty(), "{:?}", scenario.simulation.engine.damage());
}

/// One copy has rotted, and the other one is not read, once: it is not that one which is written first.
#[test]
fn a_superblock_that_could_not_be_read_once_is_not_written_before_the_damaged_one() {
    let tear = |zone, atom: u64, _| zone != Zone::Superblock || atom % PAGE_ATOMS < 4;
    for rotten in 0..2 {
        for step in 0.. {
            let mut scenario = scrubbed();
            let data = scenario.checkpoints(2, 3);
            scenario.advance(Duration::from_secs(3));
            let before = scenario.snapshot().counters;
            assert_eq!(before.scrub_repaired_pages, 0);
            scenario.rot(scenario.geometry().superblock(rotten).start + 1);
            scenario.fail_next(Zone::Superblock, Fault::Passing);
            while scenario.snapshot().counters.scrub_repaired_pages == 0 {
                scenario.step();
            }
            for _ in 0..step {
                scenario.step();
            }
            let is_repaired = scenario.snapshot().counters.checkpoints > before.checkpoints;
            scenario.crash(Crash::Power { cache: Survive::Only(Rc::new(tear)), origin: Survive::None });
            scenario.recover();
            scenario.expect(3, &data);
            if is_repaired {
                assert!(step > 3, "it was cut in between");
                break;
            }
        }
    }
}

/// One copy has rotted, and the scrubber has seen it once when a checkpoint cannot wait, or a stop comes.
#[test]
fn the_superblock_that_may_be_the_only_one_is_not_written_first() {
    let tear = |zone, atom: u64, _| zone != Zone::Superblock || atom % PAGE_ATOMS < 4;
    for (rotten, stops) in [(0, false), (1, false), (0, true), (1, true)] {
        for step in 0..12 {
            let mut scenario = Scenario::with(|plan| plan.config.scrub_rate = 1 << 12);
            let data = scenario.checkpoints(2, 3);
            scenario.forget_noted();
            let place = scenario.geometry().superblock(rotten).start;
            scenario.rot(place + 1);
            let is_read = |op: &Noted| op.zone == Some(Zone::Superblock) && !op.writes && op.span.start == place;
            let is_written = |op: &Noted| op.zone == Some(Zone::Superblock) && op.writes;
            step_until(&mut scenario, is_read);
            if stops {
                scenario.begin_stop();
            } else {
                // So many records that the ring is full.
                (0..400).for_each(|write| drop(scenario.send_write(scenario.block(10 + write % 20), true)));
            }
            step_until(&mut scenario, is_written);
            for _ in 0..step {
                scenario.step();
            }
            scenario.crash(Crash::Power { cache: Survive::Only(Rc::new(tear)), origin: Survive::None });
            scenario.recover();
            scenario.expect(3, &data);
        }
    }
}

fn step_until(scenario: &mut Scenario, is_such: impl Fn(&Noted) -> bool) {
    let is_there = (0..20_000).any(|_| {
        scenario.step();
        scenario.noted().iter().any(&is_such)
    });
    assert!(is_there, "it does not come");
}

/// The newest map has rotted, the scrubber has seen it once or twice, and has not read the one before it yet when the ring is full.
#[test]
fn a_checkpoint_that_cannot_wait_is_not_written_over_the_map_that_may_be_the_only_one() {
    let tear = |zone, atom: u64, _| zone != Zone::Map || atom % PAGE_ATOMS < 4;
    for seen in 1..3 {
        for step in 0..40 {
            let mut scenario = Scenario::with(|plan| plan.config.scrub_rate = 1 << 12);
            let data = scenario.checkpoints(2, 3);
            scenario.forget_noted();
            let newest = newest_superblock(&scenario).checkpoint;
            scenario.rot(scenario.geometry().map_page(newest.area, 0).start + 2);
            fill_ring_once_map_was_read(&mut scenario, newest.area, seen);
            assert_eq!(maps_begun(&scenario, 1 - newest.area, false), 0, "it knows nothing of the one before it");
            for _ in 0..step {
                scenario.step();
            }
            scenario.crash(Crash::Power { cache: Survive::Only(Rc::new(tear)), origin: Survive::None });
            scenario.recover();
            scenario.expect(3, &data);
        }
    }
}

/// The map before the newest one has rotted, and the newest one was not given once, when the ring is full: a moment's failure costs nothing.
#[test]
fn a_newest_map_that_was_not_given_once_is_not_written_over_in_its_place() {
    let tear = |zone, atom: u64, _| zone != Zone::Map || atom % PAGE_ATOMS < 4;
    for step in 0..40 {
        let mut scenario = Scenario::with(|plan| plan.config.scrub_rate = 1 << 12);
        let data = scenario.checkpoints(2, 3);
        scenario.forget_noted();
        let superblock = newest_superblock(&scenario);
        let (newest, previous) = (superblock.checkpoint, superblock.previous);
        assert_ne!(newest.area, previous.area);
        scenario.rot(scenario.geometry().map_page(previous.area, 0).start + 2);
        scenario.fail_next(Zone::Map, Fault::Passing);
        fill_ring_once_map_was_read(&mut scenario, newest.area, 1);
        for _ in 0..step {
            scenario.step();
        }
        scenario.crash(Crash::Power { cache: Survive::Only(Rc::new(tear)), origin: Survive::None });
        scenario.recover();
        scenario.expect(3, &data);
    }
}

/// The newest map can never be read again when the ring is full, and the one before it is whole: it is that one which stays.
#[test]
fn a_newest_map_that_is_never_given_is_written_over_in_its_place() {
    let tear = |zone, atom: u64, _| zone != Zone::Map || atom % PAGE_ATOMS < 4;
    for step in 0..40 {
        let mut scenario = Scenario::with(|plan| plan.config.scrub_rate = 1 << 12);
        let data = scenario.checkpoints(2, 3);
        scenario.forget_noted();
        let newest = newest_superblock(&scenario).checkpoint;
        let place = scenario.geometry().map_page(newest.area, 0).start + 2;
        scenario.simulation.scene.cache.spoil(place);
        fill_ring_once_map_was_read(&mut scenario, newest.area, 1);
        assert_eq!((maps_begun(&scenario, newest.area, false), maps_begun(&scenario, 1 - newest.area, true)), (2, 0), "read again at once");
        for _ in 0..step {
            scenario.step();
        }
        scenario.crash(Crash::Power { cache: Survive::Only(Rc::new(tear)), origin: Survive::None });
        scenario.recover();
        scenario.expect(3, &data);
    }
}

/// The same of a map that has rotted, where sets are as large as they mostly are: the room for the checkpoint behind the one that is written over it
/// is kept as long as it is in doubt.
#[test]
fn a_ring_keeps_room_for_the_checkpoint_that_is_written_over_a_damaged_map() {
    let tear = |zone, atom: u64, _| zone != Zone::Map || atom % PAGE_ATOMS < 4;
    for step in 0..40 {
        let geometry = Geometry { block_atoms: 1, set_slots: 256, sets: 24, journal_pages: 200, volume_atoms: 4_096, range_entries: 252 };
        let mut plan = plan_for(geometry);
        plan.config.scrub_rate = 1 << 12;
        let mut scenario = Scenario::of(plan);
        let data = scenario.checkpoints(2, 3);
        scenario.forget_noted();
        let newest = newest_superblock(&scenario).checkpoint;
        scenario.rot(scenario.geometry().map_page(newest.area, 0).start + 2);
        fill_ring_once_map_was_read(&mut scenario, newest.area, 1);
        assert_eq!(maps_begun(&scenario, 1 - newest.area, true), 0, "the map before it stays");
        for _ in 0..step {
            scenario.step();
        }
        scenario.crash(Crash::Power { cache: Survive::Only(Rc::new(tear)), origin: Survive::None });
        scenario.recover();
        scenario.expect(3, &data);
    }
}

/// How often the map in this area was begun to be read, or to be written.
fn maps_begun(scenario: &Scenario, area: u32, writes: bool) -> usize {
    let first = scenario.geometry().map_page(area, 0).start;
    scenario.noted().iter().filter(|op| op.zone == Some(Zone::Map) && op.writes == writes && op.span.start == first).count()
}

/// When the map in this area was begun to be read so often, fills the ring until a checkpoint is being written.
fn fill_ring_once_map_was_read(scenario: &mut Scenario, area: u32, times: usize) {
    let is_mapping = |scenario: &Scenario| (0..2).any(|area| maps_begun(scenario, area, true) > 0);
    let (mut flush, mut place) = (None, 0);
    for _ in 0..20_000 {
        if maps_begun(scenario, area, false) >= times && flush.is_none_or(|flush| scenario.is_answered(flush)) {
            scenario.send_write(scenario.block(10 + place % 20), false);
            flush = Some(scenario.send_flush());
            place += 1;
        }
        scenario.step();
        if is_mapping(scenario) {
            return;
        }
    }
    panic!("no checkpoint is written");
}

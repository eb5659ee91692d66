//! Headers and superblocks that cannot be read at a start, one by one, for a moment or for good, and what becomes of their sets; those that cannot be
//! written.

use tidegate_engine::block::Slot;
use tidegate_engine::cache::format::Geometry;
use tidegate_engine::config::Allocation;
use tidegate_engine::fault_point::FaultPoint;
use tidegate_engine::op::{DeviceId, Zone};
use tidegate_engine::probe::{Health, Phase};
use tidegate_engine::request::RequestError;
use tidegate_engine::time::Duration;
use tidegate_sim::back::fault::Fault;
use tidegate_sim::back::volatile::Survive;
use tidegate_sim::scenario::{Scenario, plan_for};
use tidegate_sim::stamp::Stamps;
use tidegate_sim::world::{Crash, Noted};

use crate::fault_points::{cut, lived, lived_as, marking, sealed, sets_with_headers, start};

fn is_header(zone: Zone) -> impl Fn(&&Noted) -> bool {
    move |op| op.zone == Some(zone) && op.writes
}

/// Neither the headers of these sets nor their copies can be read.
fn spoil_headers(scenario: &mut Scenario, sets: &[u32]) {
    let geometry = scenario.geometry();
    for &set in sets {
        scenario.simulation.scene.cache.spoil(geometry.header(set).start);
        scenario.simulation.scene.cache.spoil(geometry.header_copy(set).start);
    }
}

/// The single reads are slow enough for the fence to have read some of the same headers first: that was a panic.
#[test]
fn a_stretch_of_headers_that_cannot_be_read_is_read_one_by_one_beside_the_fence() {
    let mut scenario = lived_as(&mut marking);
    cut(&mut scenario);
    scenario.fail_next(Zone::Header, Fault::Error);
    for _ in 0..8 {
        scenario.fail_next(Zone::Header, Fault::Stuck(Duration::from_millis(1)));
        scenario.fail_next(Zone::HeaderCopy, Fault::Stuck(Duration::from_millis(2)));
    }
    let scenario = start(scenario);
    assert_eq!(*scenario.simulation.engine.phase(), Phase::Serving);
    assert!(scenario.simulation.faults().has(FaultPoint::HeadersUnread));
}

#[test]
fn one_bad_copy_refuses_no_start_when_the_header_itself_is_well() {
    let mut scenario = lived();
    cut(&mut scenario);
    let set = sealed(&mut scenario, true);
    scenario.rot(scenario.geometry().header_copy(set).start);
    scenario.fail_next(Zone::Header, Fault::Error);
    let scenario = start(scenario);
    assert_eq!(*scenario.simulation.engine.phase(), Phase::Serving, "{:?}", scenario.simulation.engine.damage());
}

/// Nothing but the superblock says that a cache is detached: writing it is tried again.
#[test]
fn a_detach_whose_superblock_cannot_be_written_at_once_is_one_all_the_same() {
    for failures in [1, 3] {
        let mut scenario = Scenario::new();
        scenario.write(3);
        scenario.flush();
        scenario.drain();
        scenario.run_until_quiet();
        (0..failures).for_each(|_| scenario.fail_next(Zone::Superblock, Fault::Error));
        scenario.detach();
        let scenario = start(scenario);
        assert_eq!(*scenario.simulation.engine.phase(), Phase::Refused);
    }
}

/// Neither copy can be read at one start, both can at the next. Between the two what the set held was written past the log.
#[test]
fn a_clean_set_that_was_given_up_at_a_start_does_not_come_back_at_the_next() {
    let mut scenario = lived_as(&mut || {
        Scenario::with(|plan| (plan.config.allocation, plan.config.flush_age) = (Allocation::SmallWrites, Duration::from_secs(1)))
    });
    cut(&mut scenario);
    let clean: Vec<u32> =
        sets_with_headers(&mut scenario).iter().filter(|(_, set)| set.dirty.is_empty()).map(|&(number, _)| number).collect();
    assert!(!clean.is_empty(), "a clean one");
    spoil_headers(&mut scenario, &clean);
    let mut scenario = start(scenario);
    assert_eq!(*scenario.simulation.engine.phase(), Phase::Serving, "{:?}", scenario.simulation.engine.damage());
    scenario.advance(Duration::from_secs(25));
    scenario.simulation.scene.cache.heal();
    assert!(scenario.simulation.faults().has(FaultPoint::CleanHeaderLost));
    let before = scenario.snapshot().counters.through_blocks;
    let data = scenario.write_span(scenario.blocks(0, 8));
    assert!(scenario.snapshot().counters.through_blocks > before, "it went past the log");
    scenario.advance(Duration::from_secs(5));
    scenario.flush();
    scenario.run_until_quiet();
    scenario.crash(Crash::Power { cache: Survive::All, origin: Survive::All });
    let mut scenario = start(scenario);
    assert_eq!(*scenario.simulation.engine.phase(), Phase::Serving);
    assert_eq!(scenario.read(scenario.blocks(0, 8)), Ok(data.stamps().collect()));
}

/// The state map calls it dirty. What the log says of it since counts.
#[test]
fn a_set_that_nobody_can_describe_refuses_no_start_when_nothing_of_it_is_dirty_any_more() {
    for has_gone_home in [false, true] {
        let mut scenario = lived();
        if has_gone_home {
            scenario.drain();
            scenario.flush();
        }
        cut(&mut scenario);
        // Not the first one: what overwrote a slot of that tells of its own place only.
        let set = sets_with_headers(&mut scenario).iter().rfind(|(_, set)| !set.dirty.is_empty()).expect("a dirty one").0;
        spoil_headers(&mut scenario, &[set]);
        let mut scenario = start(scenario);
        let (serves, faults) = (*scenario.simulation.engine.phase() == Phase::Serving, scenario.simulation.faults());
        assert_eq!(
            (serves, faults.has(FaultPoint::DirtyHeaderLost)),
            (has_gone_home, !has_gone_home),
            "{:?}",
            scenario.simulation.engine.damage()
        );
        if has_gone_home {
            assert!(faults.has(FaultPoint::CleanHeaderLost));
            (0..64).for_each(|block| drop(scenario.read(scenario.block(block)).expect("the origin has it")));
        }
    }
}

#[test]
fn a_start_waits_for_the_headers_of_dirty_sets_that_the_ssd_does_not_give_for_a_moment() {
    // Of header and copy one may be damaged.
    for (header_rots, copy_rots) in [(false, false), (true, false), (false, true)] {
        let mut scenario = lived();
        cut(&mut scenario);
        let sets = sets_with_headers(&mut scenario);
        let dirty: Vec<u32> = sets.iter().filter(|(_, set)| !set.dirty.is_empty()).map(|&(number, _)| number).collect();
        assert!(dirty.len() > 1, "several that service needs");
        let geometry = scenario.geometry();
        for &set in &dirty {
            for (span, rots) in [(geometry.header(set), header_rots), (geometry.header_copy(set), copy_rots)] {
                if rots { scenario.rot(span.start) } else { scenario.simulation.scene.cache.spoil(span.start) }
            }
        }
        scenario.begin_recovery();
        scenario.advance(Duration::from_secs(10));
        assert_eq!(*scenario.simulation.engine.phase(), Phase::Recovering, "{:?}", scenario.simulation.engine.damage());
        scenario.simulation.scene.cache.heal();
        scenario.until_serving();
        for block in 24..49 {
            scenario.read(scenario.block(block)).expect("nothing is lost");
        }
        let damage = scenario.simulation.engine.damage();
        assert_eq!(damage.len(), if header_rots || copy_rots { dirty.len() } else { 0 }, "{damage:?}");
    }
}

#[test]
fn a_header_whose_copy_is_there_is_not_waited_for() {
    let mut scenario = lived();
    cut(&mut scenario);
    let set = sealed(&mut scenario, true);
    let header = scenario.geometry().header(set).start;
    scenario.simulation.scene.cache.spoil(header);
    scenario.begin_recovery();
    let began = scenario.simulation.now();
    scenario.until_serving();
    assert!(scenario.simulation.now().since(began) < Duration::from_secs(1));
    let damage = scenario.simulation.engine.damage();
    assert!(damage.len() == 1 && damage[0].what.ends_with("cannot be read"), "{damage:?}");
}

#[test]
fn a_start_does_not_wait_for_ever_for_the_header_of_a_dirty_set() {
    let mut scenario = lived();
    cut(&mut scenario);
    let set = sealed(&mut scenario, true);
    spoil_headers(&mut scenario, &[set]);
    let began = scenario.simulation.now();
    let damage = scenario.recover_expect_refusal();
    let took = scenario.simulation.now().since(began);
    assert!(took > Duration::from_secs(19) && took < Duration::from_secs(25), "{took:?}");
    assert!(damage.iter().any(|damage| damage.fatal && damage.what.contains(&format!("header of set {set} "))), "{damage:?}");
}

/// They lie in one stretch, and are read one by one when it cannot be read.
#[test]
fn the_header_of_a_clean_set_beside_that_of_a_dirty_one_holds_no_start() {
    let mut scenario = lived();
    cut(&mut scenario);
    let set = sealed(&mut scenario, false);
    spoil_headers(&mut scenario, &[set]);
    scenario.begin_recovery();
    let began = scenario.simulation.now();
    scenario.until_serving();
    assert!(scenario.simulation.faults().has(FaultPoint::HeadersUnread));
    assert!(scenario.simulation.now().since(began) < Duration::from_secs(1));
    scenario.advance(Duration::from_secs(10));
    assert!(!scenario.simulation.engine.is_warm(), "it is waited for behind service");
    scenario.simulation.scene.cache.heal();
    scenario.advance(Duration::from_secs(5));
    assert!(scenario.simulation.engine.is_warm());
    let damage = scenario.simulation.engine.damage();
    assert!(damage.is_empty(), "{damage:?}");
}

/// Forty sealed sets and more, all of them clean, cut off; and how many slots live in them.
fn many_clean() -> (Scenario, u64) {
    let geometry = Geometry { block_atoms: 8, set_slots: 8, sets: 64, journal_pages: 64, volume_atoms: 4_096, range_entries: 252 };
    let mut scenario = Scenario::of(plan_for(geometry));
    for set in 0..40 {
        scenario.write_span(scenario.blocks(set * 8, 8));
    }
    scenario.flush();
    scenario.drain();
    scenario.checkpoints(3, 400);
    scenario.drain();
    let live = scenario.snapshot().live_slots;
    cut(&mut scenario);
    let sets: Vec<u32> = sets_with_headers(&mut scenario).iter().map(|&(number, _)| number).collect();
    assert!(sets.len() >= 40);
    spoil_headers(&mut scenario, &sets);
    (scenario, live)
}

/// They are read behind service, which is there at once.
#[test]
fn clean_sets_whose_headers_cannot_be_read_for_a_moment_are_not_given_up() {
    let (mut scenario, live) = many_clean();
    scenario.begin_recovery();
    let began = scenario.simulation.now();
    scenario.until_serving();
    assert!(scenario.simulation.now().since(began) < Duration::from_secs(1));
    scenario.advance(Duration::from_secs(10));
    assert!(!scenario.simulation.engine.is_warm(), "they are waited for");
    scenario.simulation.scene.cache.heal();
    scenario.advance(Duration::from_secs(5));
    assert!(scenario.simulation.engine.is_warm());
    let damage = scenario.simulation.engine.damage();
    assert!(damage.is_empty(), "{damage:?}");
    assert_eq!(scenario.snapshot().live_slots, live);
}

/// All of them have their time together, and are told in a few lines.
#[test]
fn clean_sets_whose_headers_are_never_read_again_are_given_up_side_by_side() {
    let (mut scenario, _) = many_clean();
    scenario.recover();
    scenario.advance(Duration::from_secs(19));
    assert!(!scenario.simulation.engine.is_warm(), "they are waited for");
    scenario.advance(Duration::from_secs(5));
    assert!(scenario.simulation.engine.is_warm());
    assert!(scenario.simulation.faults().has(FaultPoint::CleanHeaderLost));
    let damage: Vec<&str> = scenario.simulation.engine.damage().iter().map(|damage| damage.what.as_str()).collect();
    assert!(damage.len() == 17 && damage[16].contains(" more headers"), "{damage:#?}");
    scenario.read(scenario.blocks(0, 400)).expect("the origin has all of it");
}

/// No checkpoint runs before the last header, and the ring is small.
#[test]
fn a_full_ring_does_not_wait_for_the_headers_of_clean_sets() {
    let (mut scenario, _) = many_clean();
    scenario.recover();
    let began = scenario.simulation.now();
    for _ in 0..200 {
        scenario.write(500);
        scenario.flush();
    }
    let took = scenario.simulation.now().since(began);
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(scenario.simulation.engine.is_warm() && scenario.simulation.faults().has(FaultPoint::CleanHeaderLost));
    scenario.read(scenario.blocks(0, 400)).expect("the origin has all of it");
    scenario.power_cut(Survive::None);
    scenario.read(scenario.blocks(0, 512)).expect("the same");
}

#[test]
fn a_stop_does_not_wait_for_the_headers_of_clean_sets() {
    // As soon as service begins, or while they are waited for.
    for after in [Duration::ZERO, Duration::from_secs(3)] {
        let (mut scenario, _) = many_clean();
        scenario.recover();
        scenario.advance(after);
        let data = scenario.write(7);
        let began = scenario.simulation.now();
        scenario.stop();
        let took = scenario.simulation.now().since(began);
        assert!(took < Duration::from_secs(1), "{took:?}");
        scenario.simulation.scene.cache.heal();
        scenario.recover();
        scenario.expect(7, &data);
        scenario.read(scenario.blocks(0, 400)).expect("nothing is lost");
    }
}

#[test]
fn superblocks_that_the_ssd_does_not_give_for_a_moment_are_waited_for() {
    for copies in [&[0][..], &[1], &[0, 1]] {
        let mut scenario = lived();
        cut(&mut scenario);
        for &copy in copies {
            let span = scenario.geometry().superblock(copy);
            scenario.simulation.scene.cache.spoil(span.start);
        }
        scenario.begin_recovery();
        scenario.advance(Duration::from_secs(10));
        assert_eq!(*scenario.simulation.engine.phase(), Phase::Recovering, "{:?}", scenario.simulation.engine.damage());
        scenario.simulation.scene.cache.heal();
        scenario.until_serving();
        let damage = scenario.simulation.engine.damage();
        assert!(damage.is_empty(), "{damage:?}");
    }
}

/// Whoever reads that there is no cache may format the SSD.
#[test]
fn of_superblocks_that_cannot_be_read_nobody_says_that_there_is_no_cache() {
    for rots in [false, true] {
        let mut scenario = lived();
        cut(&mut scenario);
        let [first, second] = [0, 1].map(|copy| scenario.geometry().superblock(copy).start);
        scenario.simulation.scene.cache.spoil(first);
        if rots {
            scenario.rot(second)
        } else {
            scenario.simulation.scene.cache.spoil(second)
        }
        let damage = scenario.recover_expect_refusal();
        let fatal = damage.iter().find(|damage| damage.fatal).expect("a reason");
        assert!(fatal.what.ends_with("what this SSD holds is not known"), "{fatal:?}");
    }
}

/// One copy was written and covered by a flush that failed; the other one could not be written at all, and that would have been the last try.
#[test]
fn a_header_whose_only_copy_was_covered_by_a_failed_flush_is_not_durable() {
    for seed in 0..8 {
        let mut scenario = Scenario::with(|plan| plan.seed = seed);
        (0..4).for_each(|_| scenario.fail_next(Zone::Header, Fault::Error));
        (0..5).for_each(|_| scenario.fail_next(Zone::HeaderCopy, Fault::Error));
        scenario.hold(Zone::HeaderCopy);
        let blocks: Vec<Stamps> = (0..8).map(|block| scenario.write(block)).collect();
        scenario.flush();
        for _ in 0..4 {
            scenario.run_until_quiet();
            scenario.release(Zone::HeaderCopy);
            scenario.hold(Zone::HeaderCopy);
        }
        scenario.run_until_quiet();
        assert_eq!(scenario.noted().iter().filter(is_header(Zone::Header)).filter(|op| op.ended.is_some()).count(), 5);
        assert_eq!(scenario.noted().iter().filter(is_header(Zone::HeaderCopy)).filter(|op| op.ended.is_none()).count(), 1);
        scenario.fail_next_flush(DeviceId::Cache);
        scenario.write(9);
        scenario.try_flush().expect_err("it fails");
        scenario.release(Zone::HeaderCopy);
        scenario.checkpoints(3, 60);
        // The header is not to blame for the flush: both copies have been written once more.
        assert!(!scenario.simulation.faults().has(FaultPoint::HeaderUnwritable));
        let geometry = scenario.geometry();
        for (zone, span, before) in [(Zone::Header, geometry.header(0), 1), (Zone::HeaderCopy, geometry.header_copy(0), 0)] {
            let of_first = scenario.noted().iter().filter(is_header(zone)).filter(|op| op.span.intersection(span) == span);
            assert_eq!(of_first.filter(|op| op.ended.is_some_and(|(_, well)| well)).count(), before + 1, "{zone:?}");
        }
        scenario.power_cut(Survive::None);
        for (block, data) in blocks.iter().enumerate() {
            scenario.expect(block as u64, data);
        }
    }
}

/// Sets whose headers the SSD does not take are told again by each checkpoint, and the ring keeps two of them. A write that found no room beside them
/// waited for ever, and hundreds of checkpoints a second followed one another.
/// Until then checkpoints tell its slots again. A start that finds them told must not take the header for written.
#[test]
fn a_header_that_could_not_be_written_before_a_crash_is_written_after_it() {
    let mut scenario = Scenario::new();
    let data: Vec<Stamps> = (0..8).map(|block| scenario.write(block)).collect();
    let set = (scenario.places(data[0].stamp(0))[0] - scenario.geometry().slot(Slot { set: 0, slot: 0 }).start) / 64;
    let header = scenario.geometry().header(set as u32).start;
    let tells = move |scenario: &Scenario| {
        let is_written = |op: &&Noted| op.zone == Some(Zone::Header) && op.writes && (op.span.start..op.span.end()).contains(&header);
        scenario.noted().iter().filter(is_written).any(|op| op.ended.is_some_and(|(_, well)| well))
    };
    for zone in [Zone::Header, Zone::HeaderCopy] {
        (0..5).for_each(|_| scenario.fail_next(zone, Fault::Error));
    }
    scenario.checkpoints(3, 60);
    assert!(scenario.simulation.faults().has(FaultPoint::HeaderUnwritable) && !tells(&scenario));
    scenario.power_cut(Survive::None);
    scenario.checkpoints(3, 60);
    assert!(tells(&scenario), "the header is written");
    scenario.power_cut(Survive::None);
    for (block, data) in data.iter().enumerate() {
        scenario.expect(block as u64, data);
    }
}

#[test]
fn a_write_that_finds_no_room_beside_sets_without_headers_waits_a_minute_for_them_and_no_longer() {
    let geometry = Geometry { block_atoms: 8, set_slots: 256, sets: 64, journal_pages: 128, volume_atoms: 8 * 16_384, range_entries: 252 };
    // So many fail while the sets are written, and this write waits; or all do.
    for (failures, is_taken) in [(120, true), (10_000, false)] {
        let mut scenario = Scenario::of(plan_for(geometry));
        scenario.simulation.scene.oracle.may_be_full = true;
        for zone in [Zone::Header, Zone::HeaderCopy] {
            (0..failures).for_each(|_| scenario.fail_next(zone, Fault::Error));
        }
        let data: Vec<Stamps> = (0..8)
            .map(|part| {
                let data = scenario.write_span(scenario.blocks(part * 256, 256));
                scenario.flush();
                data
            })
            .collect();
        let last = scenario.checkpoints(2, 2_048);
        assert!(scenario.simulation.faults().has(FaultPoint::HeaderUnwritable));
        let (before, began) = (scenario.snapshot().counters.checkpoints, scenario.simulation.now());
        let large = scenario.blocks(4_096, 9_900);
        let (write, written) = scenario.send_write(large, false);
        while !scenario.is_answered(write) {
            scenario.step();
            let checkpoints = scenario.snapshot().counters.checkpoints - before;
            assert!(checkpoints < 100, "one follows another: {checkpoints} in {:?}", scenario.simulation.now().since(began));
        }
        let took = scenario.simulation.now().since(began);
        if is_taken {
            assert_eq!(scenario.wait(write), Ok(Vec::new()));
            assert!(took > Duration::from_secs(1) && took < Duration::from_secs(30), "{took:?}");
        } else {
            assert_eq!(scenario.wait(write), Err(RequestError::NoSpace));
            assert!(took > Duration::from_secs(59) && took < Duration::from_secs(70), "{took:?}");
        }
        // Nobody else is refused, and nothing is lost.
        let small = scenario.write_fua(3_000);
        scenario.flush();
        scenario.advance(Duration::from_secs(120));
        assert_eq!(scenario.snapshot().health, Health::Whole);
        scenario.power_cut(Survive::None);
        for (part, data) in (0..).zip(&data) {
            assert_eq!(scenario.read(scenario.blocks(part * 256, 256)), Ok(data.stamps().collect()));
        }
        scenario.expect(2_048, &last);
        scenario.expect(3_000, &small);
        if is_taken {
            assert_eq!(scenario.read(large), Ok(written.stamps().collect()));
        }
    }
}

/// After a crash with a long log those of all sets are due in one moment.
#[test]
fn headers_that_are_due_together_are_written_a_few_at_a_time() {
    let geometry = Geometry { sets: 64, journal_pages: 600, volume_atoms: 512 * 8, ..plan_for(Scenario::new().geometry()).config.geometry };
    let mut plan = plan_for(geometry);
    plan.config.headers_together = 1;
    let mut scenario = Scenario::of(plan);
    (0..320).for_each(|block| drop(scenario.write(block)));
    scenario.flush();
    scenario.run_until_quiet();
    cut(&mut scenario);
    let before = scenario.noted().len();
    scenario.hold(Zone::Header);
    let mut scenario = start(scenario);
    let sets = |scenario: &Scenario, has_ended: bool| -> u64 {
        let headers = scenario.noted()[before..].iter().filter(is_header(Zone::Header)).filter(|op| op.ended.is_some() == has_ended);
        headers.map(|op| op.span.atoms / geometry.header_atoms()).sum()
    };
    assert_eq!(sets(&scenario, false), 16);
    scenario.release(Zone::Header);
    scenario.run_until_quiet();
    assert!(sets(&scenario, true) >= 39, "{} of them", sets(&scenario, true));
}

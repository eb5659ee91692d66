//! Headers that cannot be read at a start, one by one, and what becomes of their sets; a last superblock that cannot be written.

use tidegate_engine::config::Allocation;
use tidegate_engine::fault_point::FaultPoint;
use tidegate_engine::op::{DeviceId, Zone};
use tidegate_engine::probe::Phase;
use tidegate_engine::time::Duration;
use tidegate_sim::back::fault::Fault;
use tidegate_sim::back::volatile::Survive;
use tidegate_sim::scenario::Scenario;
use tidegate_sim::stamp::Stamps;
use tidegate_sim::world::Crash;

use crate::fault_points::{NONE, cut, lived, lived_as, marking, sealed, sets_with_headers, start};

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
    let needed: Vec<bool> = sets_with_headers(&mut scenario).iter().map(|(_, set)| set.dirty.is_empty()).collect();
    assert!(needed.contains(&true), "a clean one");
    scenario.fail_next(Zone::Header, Fault::Error);
    for is_clean in needed {
        let fault = || if is_clean { Fault::Error } else { NONE };
        scenario.fail_next(Zone::Header, fault());
        if is_clean {
            scenario.fail_next(Zone::HeaderCopy, fault());
        }
    }
    let mut scenario = start(scenario);
    assert_eq!(*scenario.simulation.engine.phase(), Phase::Serving, "{:?}", scenario.simulation.engine.damage());
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

/// One copy was written and covered by a flush that failed; the other one could not be written at all, and that was the last try.
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
        let is_header = |zone| move |op: &&tidegate_sim::world::Noted| op.zone == Some(zone) && op.writes;
        assert_eq!(scenario.noted().iter().filter(is_header(Zone::Header)).filter(|op| op.ended.is_some()).count(), 5);
        assert_eq!(scenario.noted().iter().filter(is_header(Zone::HeaderCopy)).filter(|op| op.ended.is_none()).count(), 1);
        scenario.fail_next_flush(DeviceId::Cache);
        scenario.write(9);
        scenario.try_flush().expect_err("it fails");
        scenario.release(Zone::HeaderCopy);
        scenario.checkpoints(3, 60);
        assert!(scenario.simulation.faults().has(FaultPoint::HeaderUnwritable));
        scenario.power_cut(Survive::None);
        for (block, data) in blocks.iter().enumerate() {
            scenario.expect(block as u64, data);
        }
    }
}

//! Headers that cannot be read at a start, one by one, and what becomes of their sets; a last superblock that cannot be written.

use tidegate_engine::config::Allocation;
use tidegate_engine::fault_point::FaultPoint;
use tidegate_engine::op::Zone;
use tidegate_engine::probe::Phase;
use tidegate_engine::time::Duration;
use tidegate_sim::back::fault::Fault;
use tidegate_sim::back::volatile::Survive;
use tidegate_sim::scenario::Scenario;
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

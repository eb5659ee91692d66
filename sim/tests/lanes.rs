//! Lanes: of an SSD whose parts are known, each takes a set in turn.

use tidegate_engine::cache::format::Geometry;
use tidegate_engine::op::{Lanes, Zone};
use tidegate_sim::scenario::{Scenario, plan_for};

const LANES: u32 = 4;

/// Writes so many sets full, and tells their lanes, in the order in which they were begun.
fn lanes_of(scenario: &mut Scenario, sets: u32, lanes: Lanes) -> Vec<usize> {
    let geometry = scenario.geometry();
    scenario.forget_noted();
    (0..u64::from(sets * geometry.set_slots)).for_each(|block| _ = scenario.write(block));
    scenario.flush();
    let mut begun: Vec<(u64, usize)> = Vec::new();
    for op in scenario.noted().iter().filter(|op| op.writes && op.zone == Some(Zone::Data)) {
        let set = (op.span.start - geometry.data_start()) / geometry.set_atoms();
        if !begun.iter().any(|&(known, _)| known == set) {
            begun.push((set, lanes.of(op.span.start)));
        }
    }
    begun.into_iter().map(|(_, lane)| lane).collect()
}

#[test]
fn what_is_written_together_lies_in_different_lanes() {
    let geometry = Geometry { block_atoms: 8, set_slots: 8, sets: 512, journal_pages: 64, volume_atoms: 4_096, range_entries: 252 };
    let mut plan = plan_for(geometry);
    plan.config.lanes = LANES;
    let lanes = Lanes::new(LANES, plan.limits[0].atoms);
    let mut scenario = Scenario::of(plan);
    assert_eq!(lanes_of(&mut scenario, 4, lanes), [0, 1, 2, 3]);
    scenario.kill();
    let after = lanes_of(&mut scenario, 8, lanes);
    assert!(after.windows(2).all(|pair| pair[0] != pair[1]), "{after:?}");
    scenario.stop();
}

//! The gates as properties: when blocks go home, how many sets at once, and what stops them.

use std::collections::BTreeSet;

use tidegate_engine::cache::format::Geometry;
use tidegate_engine::config::{GateKind, Placement, WhenFull};
use tidegate_engine::op::{DeviceId, Zone};
use tidegate_engine::time::{Duration, Instant};
use tidegate_sim::scenario::{Scenario, plan_for};
use tidegate_sim::stamp::Stamps;
use tidegate_sim::world::Noted;

const SETS: u32 = 64;
const FLOOR: u32 = 32;
const WAIT: Duration = Duration::from_secs(2);

/// A cache of 64 sets of 8 blocks whose gate wants 32 of them free, and nothing but the gate destages.
fn scenario(gate: GateKind) -> Scenario {
    scenario_with(gate, Placement::Log)
}

fn scenario_with(gate: GateKind, placement: Placement) -> Scenario {
    let geometry = Geometry { block_atoms: 8, set_slots: 8, sets: SETS, journal_pages: 128, volume_atoms: 8_192, range_entries: 252 };
    let mut plan = plan_for(geometry);
    plan.config.gate = gate;
    plan.config.placement = placement;
    plan.config.when_full = WhenFull::Through;
    plan.config.free_floor = FLOOR;
    plan.config.wait = WAIT;
    plan.config.flush_age = Duration::from_millis(100);
    Scenario::of(plan)
}

/// Writes `blocks` blocks apart from one another, from block `first` on, in 50 origin sets.
fn write_scattered(scenario: &mut Scenario, first: u64, blocks: u64) -> Instant {
    for block in first..first + blocks {
        scenario.write(block * 7 % 400);
    }
    scenario.simulation.now()
}

fn destages(scenario: &Scenario) -> impl Iterator<Item = &Noted> {
    scenario.noted().iter().filter(|op| op.zone == Some(Zone::Origin) && op.writes)
}

/// The most sets of the cache that were read for destaging between two flushes of the origin: for one batch.
fn most_sets_at_once(scenario: &Scenario) -> usize {
    let geometry = scenario.geometry();
    let set_atoms = u64::from(geometry.set_slots * geometry.block_atoms);
    let set = |op: &Noted| (op.span.start - geometry.zone(Zone::Data).start) / set_atoms;
    let is_flush = |op: &Noted| op.device == DeviceId::Origin && op.zone.is_none();
    let is_read = |op: &&Noted| op.device == DeviceId::Cache && op.zone == Some(Zone::Data) && !op.writes;
    let batches = scenario.noted().split(is_flush);
    batches.map(|batch| batch.iter().filter(is_read).map(set).collect::<BTreeSet<u64>>().len()).max().unwrap_or(0)
}

#[test]
fn nothing_is_destaged_within_the_wait_of_a_request_and_the_floor_is_reached_by_idling() {
    for (gate, placement) in [(GateKind::New, Placement::Log), (GateKind::New, Placement::Set), (GateKind::Ours, Placement::Log)] {
        let mut scenario = scenario_with(gate, placement);
        let mut last = write_scattered(&mut scenario, 0, 300);
        for round in 0..5 {
            scenario.advance(Duration::from_millis(1_900));
            last = write_scattered(&mut scenario, 300 + round, 1);
        }
        assert_eq!(destages(&scenario).count(), 0, "{gate:?}: a request came within every two seconds");
        scenario.advance(Duration::from_secs(600));
        assert!(destages(&scenario).all(|op| op.at >= last + WAIT), "{gate:?}");
        assert!(scenario.snapshot().free_sets >= FLOOR, "{gate:?}: {} sets are free", scenario.snapshot().free_sets);
    }
}

#[test]
fn the_papers_gates_let_four_sets_leave_at_once_or_one() {
    for (gate, placement, most) in [
        (GateKind::New, Placement::Log, 4),
        (GateKind::New, Placement::Set, 4),
        (GateKind::Old, Placement::Log, 1),
        (GateKind::Old, Placement::Set, 1),
    ] {
        let mut scenario = scenario_with(gate, placement);
        write_scattered(&mut scenario, 0, 400);
        scenario.advance(Duration::from_secs(600));
        assert_eq!(most_sets_at_once(&scenario), most, "{gate:?}");
    }
}

#[test]
fn the_old_gate_destages_in_the_middle_of_the_requests() {
    let mut scenario = scenario(GateKind::Old);
    let last = write_scattered(&mut scenario, 0, 400);
    assert!(destages(&scenario).any(|op| op.at < last));
}

#[test]
fn a_read_every_second_stops_the_papers_gate_for_ever_and_not_ours() {
    for (gate, stops) in [(GateKind::New, true), (GateKind::Ours, false)] {
        let mut scenario = scenario(gate);
        scenario.simulation.plan.config.max_dirty_age = Duration::from_secs(60);
        scenario.stop();
        scenario.recover();
        write_scattered(&mut scenario, 0, 300);
        scenario.forget_noted();
        for _ in 0..600 {
            scenario.advance(Duration::from_secs(1));
            scenario.read(scenario.block(3)).expect("a read");
        }
        assert_eq!(destages(&scenario).count() == 0, stops, "{gate:?}");
    }
}

#[test]
fn above_the_mark_the_ssd_is_left_to_writers_who_wait_for_it_unless_something_is_old_or_the_room_is_short() {
    // Dirty sets of 64, with a mark of 44 and 4 in reserve; the longest that something may be dirty; whether it goes home meanwhile.
    for (dirty, max_age, goes_home) in [(50, 3_600_000, false), (50, 1, true), (56, 3_600_000, true)] {
        let mut scenario = scenario(GateKind::Ours);
        let config = &mut scenario.simulation.plan.config;
        (config.free_floor, config.reserve, config.dirty_high) = (8, 4, 44);
        (config.dirty_ram, config.max_dirty_age) = (16 << 12, Duration::from_millis(max_age));
        scenario.stop();
        scenario.recover();
        for _ in 0..10 {
            for first in (0..dirty * 8).step_by(40) {
                let sent: Vec<_> = (first..first + 40).map(|block| scenario.send_write(scenario.block(block), false).0).collect();
                sent.into_iter().for_each(|id| drop(scenario.wait(id)));
            }
        }
        assert_eq!(destages(&scenario).count() > 0, goes_home, "{dirty} sets, {max_age} ms");
        scenario.advance(Duration::from_secs(5));
        assert!(destages(&scenario).count() > 0, "nobody waits for the SSD");
    }
}

/// What is dirty for so many seconds goes home, one origin set in each batch.
fn scenario_that_ages(seconds: u64) -> Scenario {
    let mut scenario = scenario(GateKind::Ours);
    let config = &mut scenario.simulation.plan.config;
    (config.max_dirty_age, config.destage_atoms) = (Duration::from_secs(seconds), 8);
    scenario.stop();
    scenario.recover();
    scenario
}

/// Bad sectors of the origin below what has been dirty for long: what is written afterwards has its time nevertheless.
#[test]
fn what_the_origin_refuses_holds_the_gate_open_for_nothing_else() {
    for (refused, is_zeros, is_alone) in [(1, false, false), (3, false, false), (3, true, false), (1, false, true), (3, true, true)] {
        for pause in [Duration::from_secs(1), Duration::from_millis(5)] {
            // Who is alone is refused for a minute before it is left, and again a minute later if it is not.
            let mut scenario = scenario_that_ages(if is_alone { 100 } else { 60 });
            let owed = |scenario: &Scenario| [scenario.snapshot().newer(), scenario.snapshot().refused_blocks];
            let mut block = 0;
            let mut write_for = |scenario: &mut Scenario, seconds: u64| {
                let began = scenario.simulation.now();
                while scenario.simulation.now().since(began) < Duration::from_secs(seconds) {
                    scenario.write(20 + block % 50);
                    scenario.advance(pause);
                    block += 1;
                }
            };
            let span = scenario.blocks(2, refused);
            (2..2 + refused).for_each(|block| scenario.simulation.scene.origin.refuse(8 * block, 100_000));
            let mut written: Vec<u64> = if is_zeros {
                scenario.zero(span);
                vec![0; 8 * refused as usize]
            } else {
                scenario.write_span(span).stamps().collect()
            };
            if is_zeros {
                // What lies over them waits for them.
                written.splice(8..16, scenario.write(3).stamps());
            }
            // The range, and the block over it.
            let (left, told) = if is_zeros { (2, 1) } else { (refused, refused) };
            if is_alone {
                scenario.advance(Duration::from_secs(190));
                assert_eq!(owed(&scenario), [left, told]);
            } else {
                let others = [10, 100, 200].map(|block| (block, scenario.write(block)));
                write_for(&mut scenario, 66);
                let is_home = |(block, data): &(u64, Stamps)| data.stamps().eq(scenario.on_origin(*block)[1].iter().copied());
                assert!(others.iter().all(is_home), "the others are home");
            }
            scenario.forget_noted();
            write_for(&mut scenario, 50);
            assert_eq!(destages(&scenario).count(), 0, "nothing is so old, or has been for so long since it was refused");
            assert_eq!(owed(&scenario)[1], told);
            scenario.advance(Duration::from_secs(75));
            assert_eq!(owed(&scenario), [left, told]);
            // The sectors have been replaced: they are tried with what is old next.
            scenario.simulation.scene.origin.heal();
            scenario.advance(Duration::from_secs(75));
            assert_eq!(owed(&scenario), [0; 2]);
            assert_eq!((2..2 + refused).flat_map(|block| scenario.on_origin(block)[1].clone()).collect::<Vec<u64>>(), written);
        }
    }
}

/// A whole origin may have failed, and be well again.
#[test]
fn what_an_origin_refuses_that_takes_nothing_is_tried_again_soon() {
    let mut scenario = scenario_that_ages(60);
    scenario.simulation.scene.origin.refuse(16, 100_000);
    scenario.write(2);
    scenario.advance(Duration::from_secs(70));
    assert_eq!(scenario.snapshot().refused_blocks, 1);
    scenario.simulation.scene.origin.heal();
    scenario.advance(Duration::from_secs(10));
    assert_eq!((scenario.snapshot().dirty_slots, scenario.snapshot().refused_blocks), (0, 0));
}

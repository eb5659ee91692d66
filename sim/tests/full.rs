//! A cache that is full of dirty blocks, and an origin that is dead: the worst moment to be asked for anything.

use tidegate_engine::cache::format::Geometry;
use tidegate_engine::op::Zone;
use tidegate_engine::request::{RequestError, RequestId};
use tidegate_engine::time::Duration;
use tidegate_sim::back::volatile::Survive;
use tidegate_sim::scenario::{Scenario, plan, plan_for};
use tidegate_sim::stamp::Stamps;

const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// A volume four times the size of its cache of 128 blocks.
fn scenario() -> Scenario {
    let mut plan = plan_for(Geometry { volume_atoms: 512 * 8, ..plan().config.geometry });
    plan.config.stall_timeout = STALL_TIMEOUT;
    Scenario::of(plan)
}

/// Writes and flushes blocks from `first` on until one finds no room: those that were taken, and the write that waits.
fn fill(scenario: &mut Scenario, first: u64) -> (Vec<(u64, Stamps)>, RequestId) {
    let mut taken = Vec::new();
    for block in first.. {
        let (write, data) = scenario.send_write(scenario.block(block), false);
        scenario.run_until_quiet();
        if !scenario.is_answered(write) {
            return (taken, write);
        }
        scenario.wait(write).expect("a write");
        scenario.flush();
        taken.push((block, data));
    }
    unreachable!("there is no end of writes")
}

#[test]
fn full_of_dirty_and_the_origin_dead_reads_go_on_writes_stall_then_fail_nothing_is_dropped_and_all_drains_when_it_returns() {
    let mut scenario = scenario();
    // Some clean blocks, which make room first.
    scenario.read(scenario.blocks(480, 32)).expect("a read");
    scenario.run_until_quiet();
    scenario.origin_goes();
    let began = scenario.simulation.now();
    let (dirty, waiting) = fill(&mut scenario, 0);
    let full = scenario.snapshot();
    assert_eq!((full.dirty_slots, full.live_slots), (dirty.len() as u64, dirty.len() as u64), "100 % dirty");
    // One set is kept for writes that fail elsewhere, and one for the cleaner.
    assert!(full.free_sets <= 2 && dirty.len() as u32 >= (full.sets - 2) * 8, "and full: {} free sets", full.free_sets);

    // What is cached is read, and FLUSH goes on; what only the origin has is an error at once.
    dirty.iter().for_each(|(block, data)| scenario.expect(*block, data));
    scenario.flush();
    assert_eq!(scenario.read(scenario.block(500)), Err(RequestError::Io));
    assert!(!scenario.is_answered(waiting), "the write waits for room");

    // It fails when the origin has been silent for so long, not before; so does what came behind it, in its own time.
    scenario.advance(Duration::from_secs(30));
    let later = scenario.send_write(scenario.block(400), false).0;
    scenario.advance(Duration::from_secs(29));
    assert!(!scenario.is_answered(waiting));
    scenario.advance(Duration::from_secs(2));
    assert_eq!((scenario.wait(waiting), scenario.is_answered(later)), (Err(RequestError::Io), false));
    scenario.advance(Duration::from_secs(30));
    assert_eq!(scenario.wait(later), Err(RequestError::Io));
    assert!(scenario.simulation.now().since(began) < Duration::from_secs(3_600));
    assert_eq!(scenario.snapshot().counters.stalled_requests, 2);

    // An overwrite of what is there needs a slot as well. A TRIM needs none, and makes room.
    let overwrite = scenario.send_write(scenario.block(dirty[1].0), false).0;
    scenario.trim(scenario.blocks(dirty[8].0, 8));
    let trimmed = dirty[8].0..dirty[8].0 + 8;
    let kept: Vec<&(u64, Stamps)> = dirty.iter().filter(|(block, _)| *block != dirty[1].0 && !trimmed.contains(block)).collect();
    scenario.wait(overwrite).expect("there is room for it now");

    // Nothing dirty was dropped, neither in memory nor on the SSD.
    scenario.flush();
    kept.iter().for_each(|(block, data)| scenario.expect(*block, data));
    scenario.power_cut(Survive::None);
    // The start has found the origin; it dies again.
    scenario.origin_goes();
    kept.iter().for_each(|(block, data)| scenario.expect(*block, data));
    assert_eq!(scenario.snapshot().dirty_slots, kept.len() as u64 + 1);

    // The origin returns: writes find room again, and everything goes home.
    let waiting = fill(&mut scenario, 300).1;
    scenario.forget_noted();
    scenario.origin_comes_back(true);
    scenario.wait(waiting).expect("there is room again");
    assert!(scenario.noted().iter().any(|op| op.zone == Some(Zone::Origin) && op.writes), "the origin made it");
    scenario.drain();
    assert_eq!(scenario.snapshot().dirty_slots, 0);
    for (block, data) in kept {
        let expected: Vec<u64> = data.stamps().collect();
        assert_eq!(scenario.on_origin(*block), [expected.clone(), expected], "block {block} is home, and flushed there");
    }
}

//! Merge: partly written blocks get what they hold besides from memory, from the next write, or from the SSD, read once and for all that wait.

use tidegate_engine::block::Span;
use tidegate_engine::cache::format::Geometry;
use tidegate_engine::op::Zone;
use tidegate_engine::request::{RequestError, RequestId};
use tidegate_sim::back::fault::Fault;
use tidegate_sim::back::volatile::Survive;
use tidegate_sim::scenario::{Scenario, plan_for};
use tidegate_sim::stamp::Stamps;

/// Blocks that are in the cache, and in memory no more.
const CACHED: u64 = 32;

/// What is written as wholes, and what it reads as, atom by atom.
fn written(ram: u64) -> (Scenario, Vec<u64>) {
    let mut plan = plan_for(Geometry { block_atoms: 8, set_slots: 8, sets: 32, journal_pages: 64, volume_atoms: 512, range_entries: 252 });
    plan.config.read_ahead = 1 << 20;
    plan.config.ram = ram;
    plan.config.dirty_ram = 1 << 20;
    let mut scenario = Scenario::of(plan);
    let stamps = (0..CACHED).flat_map(|block| scenario.write(block).stamps().collect::<Vec<u64>>()).collect();
    scenario.flush();
    scenario.run_until_quiet();
    scenario.forget_noted();
    (scenario, stamps)
}

/// Reads of the SSD for contents.
fn slot_reads(scenario: &Scenario) -> usize {
    scenario.noted().iter().filter(|op| op.zone == Some(Zone::Data) && !op.writes).count()
}

/// Sends a write; `stamps` reads as it says from then on.
fn send(scenario: &mut Scenario, stamps: &mut [u64], span: Span) -> RequestId {
    let (id, data): (RequestId, Stamps) = scenario.send_write(span, false);
    stamps[span.start as usize..span.end() as usize].copy_from_slice(&data.stamps().collect::<Vec<u64>>());
    id
}

fn expect(scenario: &mut Scenario, stamps: &[u64]) {
    assert_eq!(scenario.read(Span::new(0, CACHED * 8)), Ok(stamps.to_vec()));
}

#[test]
fn a_stream_that_does_not_end_where_blocks_end_waits_for_its_last_block_only() {
    let (mut scenario, mut stamps) = written(0);
    scenario.crash_at_every_step();
    scenario.hold(Zone::Data);
    let ids: Vec<RequestId> = (0..7).map(|i| send(&mut scenario, &mut stamps, Span::new(8 + 9 * i, 9))).collect();
    let answered: Vec<bool> = ids.iter().map(|&id| scenario.is_answered(id)).collect();
    assert_eq!(answered, [true, true, true, true, true, true, false], "nothing has been read yet");
    scenario.release(Zone::Data);
    scenario.wait(ids[6]).expect("a write");
    expect(&mut scenario, &stamps);
    scenario.flush();
    scenario.power_cut(Survive::None);
    expect(&mut scenario, &stamps);
    assert!(scenario.crashes_tried() > 10);
}

#[test]
fn the_next_write_spares_one_that_is_being_merged_the_wait() {
    let (mut scenario, mut stamps) = written(0);
    scenario.hold(Zone::Data);
    let first = send(&mut scenario, &mut stamps, Span::new(24, 5));
    let next = send(&mut scenario, &mut stamps, Span::new(29, 3));
    scenario.wait(first).expect("a write");
    scenario.wait(next).expect("a write");
    assert_eq!(slot_reads(&scenario), 1, "begun before the next one came, and still on its way");
    scenario.release(Zone::Data);
    scenario.run_until_quiet();
    expect(&mut scenario, &stamps);
}

/// Found by seed 2000693: of a write that the one before it had taken along, a power cut left what that had not written itself.
#[test]
fn two_writes_to_the_same_atoms_of_a_block_are_two() {
    let (mut scenario, mut stamps) = written(0);
    scenario.crash_at_every_step();
    scenario.hold(Zone::Data);
    let first = send(&mut scenario, &mut stamps, Span::new(24, 6));
    let next = send(&mut scenario, &mut stamps, Span::new(28, 12));
    assert!(!scenario.is_answered(first), "nothing is taken along");
    scenario.release(Zone::Data);
    [first, next].into_iter().for_each(|id| _ = scenario.wait(id).expect("a write"));
    expect(&mut scenario, &stamps);
    scenario.flush();
    scenario.power_cut(Survive::None);
    expect(&mut scenario, &stamps);
}

#[test]
fn what_the_next_write_leaves_of_a_block_is_read() {
    let (mut scenario, mut stamps) = written(0);
    let ids = [Span::new(24, 3), Span::new(28, 4)].map(|span| send(&mut scenario, &mut stamps, span));
    ids.into_iter().for_each(|id| _ = scenario.wait(id).expect("a write"));
    assert_eq!(slot_reads(&scenario), 1);
    expect(&mut scenario, &stamps);
}

#[test]
fn who_waits_behind_a_lock_finds_its_older_slot_read() {
    let (mut scenario, mut stamps) = written(0);
    scenario.hold(Zone::Data);
    let first = send(&mut scenario, &mut stamps, Span::new(26, 2));
    let second = send(&mut scenario, &mut stamps, Span::new(30, 12));
    assert_eq!(slot_reads(&scenario), 2, "blocks 3 and 5, side by side");
    scenario.release(Zone::Data);
    [first, second].into_iter().for_each(|id| _ = scenario.wait(id).expect("a write"));
    assert_eq!(slot_reads(&scenario), 2);
    expect(&mut scenario, &stamps);
}

#[test]
fn who_touches_nothing_that_is_locked_passes_those_who_wait_for_it() {
    let (mut scenario, mut stamps) = written(0);
    scenario.hold(Zone::Data);
    let waiting = [Span::new(26, 2), Span::new(25, 1), Span::new(24, 9)].map(|span| send(&mut scenario, &mut stamps, span));
    let other = send(&mut scenario, &mut stamps, Span::new(80, 16));
    // It is behind the third, which it touches.
    let behind = send(&mut scenario, &mut stamps, Span::new(32, 8));
    scenario.release(Zone::Data);
    scenario.wait(other).expect("a write");
    assert!(waiting.iter().chain([&behind]).all(|&id| !scenario.is_answered(id)), "they wait for the slot of block 3");
    waiting.into_iter().chain([behind]).for_each(|id| _ = scenario.wait(id).expect("a write"));
    expect(&mut scenario, &stamps);
}

#[test]
fn what_cannot_be_read_ahead_is_read_for_the_write_alone() {
    let (mut scenario, mut stamps) = written(0);
    scenario.fail_next(Zone::Data, Fault::Error);
    let id = send(&mut scenario, &mut stamps, Span::new(26, 2));
    scenario.wait(id).expect("a write");
    assert_eq!(slot_reads(&scenario), 2);
    expect(&mut scenario, &stamps);
}

#[test]
fn what_memory_has_of_a_block_is_not_read_for_a_part_of_it() {
    let (mut scenario, mut stamps) = written(1 << 20);
    scenario.crash_at_every_step();
    for atom in 24..32 {
        let id = send(&mut scenario, &mut stamps, Span::new(atom, 1));
        scenario.wait(id).expect("a write");
        scenario.flush();
    }
    assert_eq!(slot_reads(&scenario), 0, "as the log of a database is written");
    expect(&mut scenario, &stamps);
}

/// Who comes behind it goes on.
#[test]
fn a_write_that_fails_since_the_rest_of_its_block_cannot_be_read_leaves_nothing_locked() {
    let (mut scenario, mut stamps) = written(0);
    let place = scenario.places(stamps[8])[0];
    scenario.rot(place);
    let (failing, _) = scenario.send_write(Span::new(8, 3), false);
    assert_eq!(scenario.wait(failing), Err(RequestError::Io));
    let behind = send(&mut scenario, &mut stamps, Span::new(8, 8));
    scenario.wait(behind).expect("a whole block needs nothing of what was there");
    expect(&mut scenario, &stamps);
}

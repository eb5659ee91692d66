//! Large requests stay large: what is in one piece on its way in is in one piece on its way to the SSD, and from there.

use tidegate_engine::block::Span;
use tidegate_engine::cache::format::Geometry;
use tidegate_engine::op::{DeviceId, Zone};
use tidegate_engine::probe::WaitReason;
use tidegate_engine::request::{Command, RequestError, RequestId};
use tidegate_engine::time::Duration;
use tidegate_sim::back::model::Speed;
use tidegate_sim::back::volatile::Survive;
use tidegate_sim::scenario::{Scenario, plan_for};
use tidegate_sim::stamp::Stamps;
use tidegate_sim::world::Noted;

/// Blocks of 1 MiB, and slots of a set.
const MIB: u64 = 256;

/// `dirty_ram`: how much may be acknowledged and in memory alone.
fn scenario(dirty_ram: u64) -> Scenario {
    let geometry =
        Geometry { block_atoms: 8, set_slots: MIB as u32, sets: 16, journal_pages: 512, volume_atoms: 16 * MIB * 8, range_entries: 252 };
    let mut plan = plan_for(geometry);
    (plan.config.dirty_ram, plan.config.window_bytes) = (dirty_ram, 64 << 20);
    Scenario::of(plan)
}

/// Blocks of each operation on a zone of the SSD since it was asked before, in order.
fn told(scenario: &mut Scenario, zone: Zone, writes: bool) -> Vec<u64> {
    let of_zone = |op: &&Noted| op.device == DeviceId::Cache && op.zone == Some(zone) && op.writes == writes;
    let blocks = scenario.noted().iter().filter(of_zone).map(|op| op.span.atoms / 8).collect();
    scenario.forget_noted();
    blocks
}

fn written(scenario: &mut Scenario) -> Vec<u64> {
    told(scenario, Zone::Data, true)
}

fn write(scenario: &mut Scenario, first: u64, blocks: u64) -> Stamps {
    let span = scenario.blocks(first, blocks);
    scenario.write_span(span)
}

#[test]
fn a_write_of_a_mebibyte_is_one_write_where_the_open_set_has_room() {
    let mut scenario = scenario(0);
    scenario.forget_noted();
    for place in [0, 3, 3, 7] {
        write(&mut scenario, place * MIB, MIB);
        assert_eq!(written(&mut scenario), [MIB]);
    }
    // From anywhere in the volume, and of any length.
    write(&mut scenario, 77, 100);
    write(&mut scenario, 1_000, MIB - 100);
    assert_eq!(written(&mut scenario), [100, MIB - 100]);
}

#[test]
fn a_write_of_a_mebibyte_into_two_sets_is_two_writes() {
    let mut scenario = scenario(0);
    write(&mut scenario, 5, 100);
    scenario.forget_noted();
    for place in [1, 2, 2] {
        write(&mut scenario, place * MIB, MIB);
        assert_eq!(written(&mut scenario), [MIB - 100, 100]);
    }
}

#[test]
fn what_two_requests_write_to_one_set_is_one_write() {
    let mut scenario = scenario(8 << 20);
    scenario.hold(Zone::Data);
    scenario.forget_noted();
    let requests = [(0, 1), (MIB, MIB), (2 * MIB, MIB), (3 * MIB, MIB - 1)];
    let sent: Vec<(RequestId, Stamps)> =
        requests.into_iter().map(|(first, blocks)| scenario.send_write(scenario.blocks(first, blocks), false)).collect();
    scenario.run_until_quiet();
    // Nothing was on its way before the first one.
    assert_eq!(written(&mut scenario), [1, MIB - 1, MIB, MIB]);
    scenario.release(Zone::Data);
    scenario.flush();
    scenario.power_cut(Survive::None);
    for ((first, blocks), (_, data)) in requests.into_iter().zip(&sent) {
        assert_eq!(scenario.read(scenario.blocks(first, blocks)), Ok(data.stamps().collect()));
    }
}

#[test]
fn a_read_of_a_mebibyte_in_consecutive_slots_is_one_read() {
    let mut scenario = scenario(0);
    let data = write(&mut scenario, MIB, MIB);
    write(&mut scenario, 3 * MIB, 100);
    let other = write(&mut scenario, 5 * MIB, MIB);
    // From now on it is not pinned in memory.
    scenario.flush();
    scenario.forget_noted();
    assert_eq!(scenario.read(scenario.blocks(MIB, MIB)), Ok(data.stamps().collect()));
    assert_eq!(told(&mut scenario, Zone::Data, false), [MIB]);
    // It lies in two sets.
    assert_eq!(scenario.read(scenario.blocks(5 * MIB, MIB)), Ok(other.stamps().collect()));
    assert_eq!(told(&mut scenario, Zone::Data, false), [MIB - 100, 100]);
}

/// Open sets that hold much are told again by each checkpoint, and the ring keeps two of them: what is left is the bound of a write.
#[test]
fn a_write_that_finds_no_room_in_a_small_ring_beside_two_checkpoints_is_refused_and_any_other_is_taken() {
    let geometry =
        Geometry { block_atoms: 8, set_slots: 2_048, sets: 16, journal_pages: 128, volume_atoms: 8 * 16_384, range_entries: 252 };
    let mut taken = Vec::new();
    for blocks in (100..=6_500).step_by(200) {
        let mut scenario = Scenario::of(plan_for(geometry));
        scenario.simulation.scene.oracle.may_be_full = true;
        scenario.write_span(scenario.blocks(0, 2_000));
        scenario.flush();
        let checkpoints = scenario.snapshot().counters.checkpoints;
        let (write, data) = scenario.send_write(scenario.blocks(4_096, blocks), false);
        match scenario.wait(write) {
            Ok(_) => {
                assert_eq!(scenario.read(scenario.blocks(4_096, blocks)), Ok(data.stamps().collect()));
                taken.push(blocks);
            }
            Err(error) => assert_eq!(error, RequestError::NoSpace),
        }
        scenario.run_until_quiet();
        let more = scenario.snapshot().counters.checkpoints - checkpoints;
        assert!(more <= 4, "{blocks} blocks: {more} checkpoints");
    }
    assert!(taken.len() > 10 && taken.len() < 20, "{taken:?}");
}

/// It needs the whole window, or all of `dirty_ram`, and what is kept of misses takes a little of it all the time.
#[test]
fn a_write_that_needs_all_of_the_memory_is_not_kept_waiting_by_what_is_kept_of_misses() {
    let slow = Duration::from_millis(20);
    // The SSD is slow to flush, or to write.
    for (window_bytes, dirty_ram, write, reason) in
        [(1 << 20, 0, Speed::SSD.write, WaitReason::Window), (64 << 20, 1 << 20, slow, WaitReason::Ram)]
    {
        let (set_slots, volume_atoms) = (MIB as u32, 64 * MIB * 8);
        let geometry = Geometry { block_atoms: 8, set_slots, sets: 64, journal_pages: 512, volume_atoms, range_entries: 252 };
        let mut plan = plan_for(geometry);
        (plan.config.dirty_ram, plan.config.window_bytes) = (dirty_ram, window_bytes);
        (plan.speeds[0].write, plan.speeds[0].flush) = (write, slow);
        let mut scenario = Scenario::of(plan);
        let mut blocks = MIB..64 * MIB;
        let mut miss = |scenario: &mut Scenario| scenario.send_read(scenario.block(blocks.next().expect("one more block")));
        let mut reads: Vec<RequestId> = (0..2).map(|_| miss(&mut scenario)).collect();
        let mut go_on = |scenario: &mut Scenario, turn: usize| {
            scenario.wait(reads[turn % 2]).expect("a read");
            reads[turn % 2] = miss(scenario);
        };
        (0..64).for_each(|turn| go_on(&mut scenario, turn));
        let (write, _) = scenario.send_write(scenario.blocks(0, MIB), false);
        assert!(scenario.snapshot().requests.iter().any(|&(_, _, waits)| waits == reason), "it waits for something else");
        let late = scenario.simulation.now() + Duration::from_secs(1);
        for turn in 0.. {
            if scenario.is_answered(write) {
                break;
            }
            assert!(scenario.simulation.now() < late, "{reason:?}");
            go_on(&mut scenario, turn);
        }
        assert!(scenario.snapshot().counters.filled_blocks > 16);
    }
}

/// It waits for a flush, and TRIMs pass it all the time.
#[test]
fn a_write_that_waits_for_the_window_waits_for_one_flush_and_not_for_every_trim_that_comes() {
    let slow = Duration::from_millis(20);
    let (set_slots, volume_atoms) = (MIB as u32, 64 * MIB * 8);
    let geometry = Geometry { block_atoms: 8, set_slots, sets: 64, journal_pages: 512, volume_atoms, range_entries: 252 };
    let mut plan = plan_for(geometry);
    (plan.config.dirty_ram, plan.config.window_bytes) = (0, 1 << 20);
    (plan.speeds[0].write, plan.speeds[0].flush) = (slow, slow);
    let mut scenario = Scenario::of(plan);
    let (first, _) = scenario.send_write(scenario.blocks(0, 200), false);
    let (second, _) = scenario.send_write(scenario.blocks(MIB, MIB), false);
    assert!(scenario.snapshot().requests.iter().any(|&(_, _, waits)| waits == WaitReason::Window), "it waits for something else");
    let before = scenario.simulation.now();
    for turn in 0.. {
        if scenario.is_answered(second) {
            break;
        }
        assert!(scenario.simulation.now().since(before) < Duration::from_secs(1), "{turn} TRIMs have passed it");
        let block = scenario.block(4 * MIB + turn % 100 * 2);
        let zero = Command::Zero { no_hole: false, fua: false, fast: false };
        scenario.send(block, if turn / 100 % 2 == 0 { Command::Trim { fua: false } } else { zero });
        scenario.step();
    }
    assert!(scenario.is_answered(first));
}

/// 1 MiB of them, in 17 slots, which are read as wholes (seed 8630157 of the failing profile).
#[test]
fn what_goes_home_from_within_blocks_is_read_in_operations_that_the_ssd_takes() {
    let geometry =
        Geometry { block_atoms: 128, set_slots: 64, sets: 16, journal_pages: 512, volume_atoms: 16 * 64 * 128, range_entries: 252 };
    let mut scenario = Scenario::of(plan_for(geometry));
    let data: Vec<u64> = scenario.write_span(Span::new(64, 2048)).stamps().collect();
    scenario.flush();
    scenario.forget_noted();
    scenario.drain();
    let reads = scenario.noted().iter().filter(|op| op.device == DeviceId::Cache && op.zone == Some(Zone::Data) && !op.writes);
    assert_eq!(reads.map(|op| op.span.atoms).collect::<Vec<u64>>(), [2048, 128]);
    let home: Vec<u64> = (0..17).flat_map(|block| scenario.on_origin(block)[1].clone()).collect();
    assert_eq!(home[64..64 + 2048], data);
}

//! What fronts write by themselves: pages in memory, acknowledged before the engine hears of them.

use tidegate_engine::block::{ATOM_BYTES, Span};
use tidegate_engine::cache::format::Geometry;
use tidegate_engine::cache::split::Legs;
use tidegate_engine::op::{DeviceId, Zone};
use tidegate_engine::probe::Phase;
use tidegate_engine::request::{Command, Extent, Outcome, RequestId, Stretch, Tier};
use tidegate_engine::time::Duration;
use tidegate_engine::{Canary, Mode};
use tidegate_sim::back::volatile::Survive;
use tidegate_sim::scenario::{Scenario, plan_for};
use tidegate_sim::stamp::Stamps;
use tidegate_sim::swarm::{Options, swarm};

const BLOCK_BYTES: u64 = 8 * ATOM_BYTES;

/// Three fronts, which may have four pages dirty.
fn with_fronts() -> Scenario {
    let mut scenario = Scenario::with(|plan| {
        (plan.config.ram, plan.config.dirty_ram, plan.config.fronts) = (64 * BLOCK_BYTES, 32 * BLOCK_BYTES, 3);
    });
    // It says what is allowed at the end of a turn.
    scenario.flush();
    scenario
}

fn stamps(data: &Stamps) -> Vec<u64> {
    data.stamps().collect()
}

fn by_front(scenario: &mut Scenario, block: u64) -> Stamps {
    scenario.write_at_front(scenario.block(block)).expect("it is allowed")
}

/// A write that is acknowledged while a FLUSH waits for the SSD's flush: that one was sent before, and covers nothing of it.
#[test]
fn a_flush_during_a_flush_gets_a_flush_of_its_own() {
    for is_of_a_front in [true, false] {
        let mut scenario = with_fronts();
        let first = scenario.write(1);
        scenario.hold_flush(DeviceId::Cache);
        let flush = scenario.send_flush();
        scenario.run_until_quiet();
        let second = if is_of_a_front { by_front(&mut scenario, 2) } else { scenario.write(2) };
        let its_flush = scenario.send_flush();
        scenario.run_until_quiet();
        scenario.release_flush(DeviceId::Cache);
        scenario.hold_flush(DeviceId::Cache);
        scenario.run_until_quiet();
        assert!(scenario.is_answered(flush), "its own has ended");
        assert!(!scenario.is_answered(its_flush), "this one's is held");
        scenario.release_flush(DeviceId::Cache);
        scenario.wait(its_flush).expect("a flush");
        scenario.power_cut(Survive::None);
        scenario.expect(1, &first);
        scenario.expect(2, &second);
    }
}

#[test]
fn a_flush_covers_what_fronts_have_just_written() {
    let mut scenario = with_fronts();
    scenario.crash_at_every_step();
    let (three, four) = (by_front(&mut scenario, 3), by_front(&mut scenario, 4));
    scenario.flush();
    scenario.power_cut(Survive::None);
    scenario.expect(3, &three);
    scenario.expect(4, &four);
}

#[test]
fn what_is_read_from_the_engine_is_what_fronts_have_written() {
    let mut scenario = with_fronts();
    scenario.write(3);
    let new = by_front(&mut scenario, 3);
    // Its neighbour is not in memory: a read of both is for the engine.
    let both = scenario.read(scenario.blocks(3, 2)).expect("nothing fails");
    assert_eq!(both[..8], stamps(&new));
}

#[test]
fn of_what_is_written_again_only_the_newest_comes_to_the_ssd() {
    let mut scenario = with_fronts();
    scenario.forget_noted();
    by_front(&mut scenario, 3);
    by_front(&mut scenario, 4);
    let (four, three) = (by_front(&mut scenario, 4), by_front(&mut scenario, 3));
    scenario.flush();
    let written = scenario.noted().iter().filter(|op| op.zone == Some(Zone::Data) && op.writes);
    let written: Vec<u64> = written.flat_map(|op| op.data.iter().flat_map(Stamps::stamps).collect::<Vec<u64>>()).collect();
    assert_eq!(written, [stamps(&three), stamps(&four)].concat(), "one write, in the order of the volume");
}

/// A client's write of part of the block waits for what the block held. It began before the front wrote all of it, so it is the older one.
#[test]
fn what_a_front_writes_while_part_of_its_block_is_being_merged_is_the_newer() {
    let mut scenario = with_fronts();
    scenario.crash_at_every_step();
    scenario.write_span(scenario.blocks(0, 20));
    scenario.flush();
    scenario.run_until_quiet();
    scenario.hold(Zone::Data);
    let (part, _) = scenario.send_write(Span::new(3 * 8 + 2, 3), false);
    let new = by_front(&mut scenario, 3);
    let (read, flush) = (scenario.send_read(scenario.blocks(3, 2)), scenario.send_flush());
    scenario.run_until_quiet();
    // What comes meanwhile waits with it, and is found.
    let (newest, other) = (by_front(&mut scenario, 4), by_front(&mut scenario, 10));
    let others = scenario.send_read(scenario.blocks(10, 2));
    scenario.run_until_quiet();
    assert!(!scenario.is_answered(part) && !scenario.is_answered(read) && !scenario.is_answered(flush));
    scenario.release(Zone::Data);
    scenario.wait(part).expect("nothing fails");
    scenario.wait(flush).expect("nothing fails");
    let seen = scenario.wait(read).expect("nothing fails");
    assert_eq!(seen[..8], stamps(&new));
    assert_eq!(scenario.wait(others).expect("nothing fails")[..8], stamps(&other));
    scenario.flush();
    scenario.power_cut(Survive::None);
    for (block, data) in [(3, new), (4, newest), (10, other)] {
        scenario.expect(block, &data);
    }
}

/// The rest of the block would be copied from a page, and be older than what the engine is about to write there. (Seed 1075 of a swarm has
/// found it.)
#[test]
fn parts_of_blocks_are_not_for_fronts() {
    let mut scenario = with_fronts();
    scenario.write(3);
    assert!(scenario.write_at_front(Span::new(3 * 8 + 2, 3)).is_none());
    assert!(scenario.write_at_front(Span::new(3 * 8 + 2, 8)).is_none());
    by_front(&mut scenario, 3);
}

#[test]
fn fronts_write_no_more_than_has_its_place() {
    let mut scenario = with_fronts();
    let written = (0..8).filter_map(|block| scenario.write_at_front(scenario.block(block))).count();
    assert_eq!(written, 4, "a thirty-second of the slots");
    scenario.flush();
    scenario.run_until_quiet();
    by_front(&mut scenario, 9);
    // As much is in memory alone as may be.
    scenario.hold(Zone::Data);
    scenario.write_span(scenario.blocks(20, 20));
    by_front(&mut scenario, 3);
    scenario.write_span(scenario.blocks(40, 10));
    assert!(scenario.write_at_front(scenario.block(4)).is_none());
    scenario.release(Zone::Data);
    scenario.run_until_quiet();
    by_front(&mut scenario, 4);
}

#[test]
fn fronts_write_only_where_a_flush_promises_the_ssd() {
    let mut scenario = with_fronts();
    scenario.switch(Mode::WriteThrough);
    scenario.run_until_quiet();
    assert!(scenario.write_at_front(scenario.block(3)).is_none());
    scenario.switch(Mode::WriteBack);
    scenario.run_until_quiet();
    by_front(&mut scenario, 3);
}

#[test]
fn what_fronts_had_written_when_the_ssd_failed_goes_home() {
    let mut scenario = with_fronts();
    let old = by_front(&mut scenario, 5);
    scenario.flush();
    scenario.cache_goes();
    let new = by_front(&mut scenario, 3);
    scenario.until_degraded_by_writing(4);
    assert_eq!(scenario.read(scenario.block(3)), Ok(stamps(&new)));
    assert!(scenario.write_at_front(scenario.block(6)).is_none(), "from now on every write is for the origin");
    scenario.flush();
    scenario.run_until_quiet();
    assert_eq!([3, 5].map(|block| scenario.on_origin(block)[1].clone()), [stamps(&new), stamps(&old)], "durable on the origin");
}

#[test]
fn a_stop_makes_durable_what_fronts_have_written() {
    let mut scenario = with_fronts();
    let data = by_front(&mut scenario, 3);
    scenario.stop();
    scenario.recover();
    scenario.expect(3, &data);
}

/// A stop waits for it, and for the write that is in its way.
#[test]
fn a_stop_waits_for_what_fronts_have_written_and_cannot_be_placed_yet() {
    let mut scenario = with_fronts();
    scenario.write_span(scenario.blocks(0, 20));
    scenario.flush();
    scenario.run_until_quiet();
    scenario.hold(Zone::Data);
    let (part, _) = scenario.send_write(Span::new(3 * 8 + 2, 3), false);
    let new = by_front(&mut scenario, 3);
    let later = scenario.send_flush();
    scenario.begin_stop();
    scenario.run_until_quiet();
    scenario.release(Zone::Data);
    scenario.until_stopped();
    assert!(scenario.is_answered(part) && scenario.is_answered(later));
    scenario.recover();
    scenario.expect(3, &new);
}

/// It is on its way to the SSD at once, whatever comes with it.
#[test]
fn what_fronts_write_is_sent_in_a_turn_of_reads() {
    let mut scenario = with_fronts();
    scenario.forget_noted();
    by_front(&mut scenario, 3);
    scenario.send_read(scenario.block(40));
    let is_sent = scenario.noted().iter().any(|op| op.zone == Some(Zone::Data) && op.writes);
    assert!(is_sent, "nothing else is on its way there");
}

/// What fronts have written and what clients write fill the same memory, also where the one waits for its place.
#[test]
fn no_more_is_acknowledged_than_dirty_ram_holds_with_what_fronts_have_written() {
    let mut scenario = with_fronts();
    scenario.write_span(scenario.blocks(0, 20));
    scenario.flush();
    scenario.run_until_quiet();
    scenario.hold(Zone::Data);
    let (part, _) = scenario.send_write(Span::new(3 * 8 + 2, 3), false);
    let (large, _) = scenario.send_write(scenario.blocks(0, 28), false);
    for block in [3, 30, 32, 34] {
        by_front(&mut scenario, block);
    }
    scenario.send_read(scenario.block(3));
    scenario.run_until_quiet();
    scenario.release(Zone::Data);
    scenario.hold(Zone::Data);
    scenario.run_until_quiet();
    assert!(scenario.is_answered(part), "its older slot has been read");
    assert!(!scenario.is_answered(large), "4 by fronts, 1 and 28 are more than 32");
    scenario.release(Zone::Data);
    scenario.wait(large).expect("a write");
}

/// More than a front may write goes home, where the origin does not answer; a front writes a block of it.
fn front_page_over_a_write_that_hangs_at_the_origin() -> (Scenario, RequestId, Stamps) {
    let mut scenario = Scenario::with(|plan| {
        (plan.config.ram, plan.config.dirty_ram, plan.config.fronts) = (64 * BLOCK_BYTES, 32 * BLOCK_BYTES, 3);
        plan.config.split = Some(Legs { proof: 0, home: 64 });
    });
    scenario.flush();
    scenario.hold(Zone::Origin);
    let (home, _) = scenario.send_write(scenario.blocks(0, 6), false);
    scenario.run_until_quiet();
    assert!(!scenario.is_answered(home), "it is on its way to the origin");
    let new = by_front(&mut scenario, 3);
    (scenario, home, new)
}

#[test]
fn what_comes_behind_a_front_page_over_a_write_that_hangs_at_the_origin_does_not_wait_for_ever() {
    let (mut scenario, home, new) = front_page_over_a_write_that_hangs_at_the_origin();
    let flush = scenario.send_flush();
    let (write, _) = scenario.send_write(scenario.block(40), true);
    scenario.advance(Duration::from_secs(59));
    assert!(!scenario.is_answered(flush) && !scenario.is_answered(write), "the origin has a minute");
    scenario.advance(Duration::from_secs(2));
    scenario.wait(flush).expect_err("nobody may promise what the front has written");
    scenario.wait(write).expect_err("nothing is written behind it");
    scenario.expect(3, &new);
    scenario.release(Zone::Origin);
    scenario.wait(home).expect("it has landed");
    scenario.flush();
    scenario.power_cut(Survive::None);
    scenario.expect(3, &new);
}

#[test]
fn a_flush_behind_a_write_at_the_origin_and_a_front_page_over_it_waits_for_an_origin_that_is_slow() {
    let (mut scenario, home, new) = front_page_over_a_write_that_hangs_at_the_origin();
    let flush = scenario.send_flush();
    scenario.advance(Duration::from_secs(30));
    scenario.release(Zone::Origin);
    scenario.wait(home).expect("it has landed");
    scenario.wait(flush).expect("nothing fails");
    scenario.power_cut(Survive::None);
    scenario.expect(3, &new);
}

/// When the SSD fails later, nobody is told of a loss.
#[test]
fn a_flush_that_waited_for_what_fronts_had_written_has_covered_it() {
    let mut scenario = with_fronts();
    scenario.write_span(scenario.blocks(0, 20));
    scenario.flush();
    scenario.run_until_quiet();
    scenario.hold(Zone::Data);
    let (part, _) = scenario.send_write(Span::new(3 * 8 + 2, 3), true);
    by_front(&mut scenario, 3);
    let flush = scenario.send_flush();
    scenario.run_until_quiet();
    assert!(!scenario.is_answered(flush));
    scenario.release(Zone::Data);
    scenario.wait(part).expect("nothing fails");
    scenario.wait(flush).expect("nothing fails");
    scenario.cache_goes();
    scenario.until_degraded_by_writing(50);
    scenario.flush();
}

#[test]
fn the_swarm_finds_what_is_taken_over_too_late() {
    let options = Options { seeds: 200, ops: 1_000, threads: 2, canary: Some(Canary::LateFrontWrites), ..Options::default() };
    assert!(!swarm(&options, &mut |_| {}).violations.is_empty());
}

/// A front's page over a dirty block waits for a merge there; meanwhile the origin goes away, and the mode is to be another one. A FLUSH that waits
/// behind it.
fn front_page_over_an_owed_block() -> (Scenario, Stamps, RequestId) {
    let mut scenario = with_fronts();
    scenario.write_span(scenario.blocks(0, 20));
    scenario.flush();
    scenario.run_until_quiet();
    scenario.hold(Zone::Data);
    scenario.send_write(Span::new(3 * 8 + 2, 3), false);
    by_front(&mut scenario, 3);
    scenario.run_until_quiet();
    let new = by_front(&mut scenario, 3);
    scenario.run_until_quiet();
    scenario.origin_goes();
    scenario.simulation.switch(Mode::WriteThrough);
    let flush = scenario.send_flush();
    scenario.run_until_quiet();
    scenario.release(Zone::Data);
    (scenario, new, flush)
}

#[test]
fn a_flush_behind_what_fronts_have_written_does_not_wait_for_an_origin_that_is_away() {
    let (mut scenario, new, flush) = front_page_over_an_owed_block();
    scenario.advance(Duration::from_secs(300));
    assert!(scenario.is_answered(flush), "{:?}", scenario.snapshot().mode);
    scenario.expect(3, &new);
    scenario.origin_comes_back(false);
    scenario.flush();
    scenario.power_cut(Survive::None);
    scenario.expect(3, &new);
}

/// Seed 4720203 of the swarm: they failed after the stall timeout, although nothing of what they ask for was at the origin.
#[test]
fn who_reads_what_fronts_have_written_does_not_wait_for_an_origin_that_is_away() {
    let (mut scenario, new, flush) = front_page_over_an_owed_block();
    let around = scenario.blocks(1, 5);
    let asked = [Command::Read, Command::Status { tiers: true, one: false }, Command::Cache];
    let asked = asked.map(|command| scenario.send(around, command));
    scenario.run_until_quiet();
    assert!(!scenario.is_answered(flush), "what a front has written waits for the origin");
    let [read, status, cache] = asked.map(|id| {
        assert!(scenario.is_answered(id), "memory and the SSD have all of it");
        scenario.outcome(id).expect("nothing is lost")
    });
    let Outcome::Data(parts) = read else { panic!("a read brings data") };
    let read: Vec<u64> = parts.iter().flat_map(Stamps::stamps).collect();
    assert_eq!(read.len() as u64, around.atoms);
    assert_eq!(read[16..24], stamps(&new));
    let Outcome::Status { allocation, tiers } = status else { panic!("a status brings extents") };
    assert_eq!(allocation, [Extent { atoms: around.atoms, hole: false, zero: false }]);
    let [before, of_front, behind] = [(16, Tier::Dirty), (8, Tier::Memory), (16, Tier::Dirty)].map(|(atoms, tier)| Stretch { atoms, tier });
    assert_eq!(tiers, [before, of_front, behind]);
    assert!(matches!(cache, Outcome::Done));
}

#[test]
fn a_stop_does_not_wait_for_ever_for_what_fronts_have_written_and_the_origin_is_owed() {
    let (mut scenario, new, _) = front_page_over_an_owed_block();
    scenario.begin_stop();
    scenario.advance(Duration::from_secs(300));
    assert_eq!(*scenario.simulation.engine.phase(), Phase::Stopped);
    scenario.origin_comes_back(false);
    scenario.power_cut(Survive::None);
    scenario.expect(3, &new);
}

/// It waits for more room in memory, or in the window, than there ever is while fronts go on.
#[test]
fn a_large_write_is_placed_although_fronts_go_on_writing() {
    let geometry = Geometry { block_atoms: 8, set_slots: 64, sets: 64, journal_pages: 2_048, volume_atoms: 8 * 2_048, range_entries: 252 };
    for (window, dirty, large) in [(4_096, 128, 130), (256, 1_024, 300)] {
        let mut plan = plan_for(geometry);
        (plan.config.ram, plan.config.fronts) = (1_024 * BLOCK_BYTES, 3);
        (plan.config.window_bytes, plan.config.dirty_ram) = (window * BLOCK_BYTES, dirty * BLOCK_BYTES);
        plan.config.bytes_max = 64 << 20;
        let mut scenario = Scenario::of(plan);
        scenario.flush();
        let go_on = |scenario: &mut Scenario, step: u64| {
            let is_written = scenario.write_at_front(scenario.block(step % 7)).is_some();
            scenario.step();
            is_written
        };
        assert!((0..50).filter(|&step| go_on(&mut scenario, step)).count() > 25, "they are allowed to");
        let (write, _) = scenario.send_write(scenario.blocks(1_000, large), false);
        let is_over = (50..2_000).any(|step| {
            go_on(&mut scenario, step);
            scenario.is_answered(write)
        });
        assert!(is_over, "{large} blocks wait for {:?}", scenario.snapshot().requests);
        scenario.flush();
        assert!((0..50).any(|step| go_on(&mut scenario, step)), "they may again");
    }
}

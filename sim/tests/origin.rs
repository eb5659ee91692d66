//! Between cache and origin, situation by situation. The oracle listens to every reply in all of them (`sim/src/front/oracle.rs`); what
//! is asserted here besides is that the situation really came about, and what the origin holds.

use crate::common::only;
use tidegate_engine::block::Span;
use tidegate_engine::op::{DeviceId, Zone};
use tidegate_engine::request::{Command, Room};
use tidegate_engine::time::Duration;
use tidegate_engine::{Control, probe::Phase};
use tidegate_sim::back::fault::Fault;
use tidegate_sim::back::volatile::Survive;
use tidegate_sim::scenario::Scenario;
use tidegate_sim::stamp::Stamps;
use tidegate_sim::world::{Crash, Noted};

fn stamps(data: &Stamps) -> Vec<u64> {
    data.stamps().collect()
}

/// Starts a drain without waiting for it.
fn begin_drain(scenario: &mut Scenario) {
    scenario.simulation.control(Control::Drain);
    scenario.run_until_quiet();
}

/// The first operation that `which` finds.
fn find<'a>(scenario: &'a Scenario, what: &str, which: impl Fn(&Noted) -> bool) -> &'a Noted {
    scenario.noted().iter().find(|op| which(op)).unwrap_or_else(|| panic!("no {what}"))
}

fn is_flush(op: &Noted, device: DeviceId) -> bool {
    op.zone.is_none() && op.device == device
}

#[test]
fn undurable_data_never_reaches_the_origin() {
    let mut scenario = Scenario::new();
    let data = scenario.write(3);
    scenario.hold_flush(DeviceId::Cache);
    begin_drain(&mut scenario);
    assert!(scenario.noted().iter().any(|op| is_flush(op, DeviceId::Cache)), "the drain made the write durable first");
    assert!(!scenario.noted().iter().any(|op| op.zone == Some(Zone::Origin) && op.writes), "nothing went to the origin before");
    scenario.release_flush(DeviceId::Cache);
    scenario.drain();
    assert_eq!(scenario.on_origin(3)[1], stamps(&data));
    let flush = find(&scenario, "flush of the cache", |op| is_flush(op, DeviceId::Cache)).ended.expect("it ended").0;
    assert!(find(&scenario, "destage", |op| op.zone == Some(Zone::Origin) && op.writes).at >= flush);
}

#[test]
fn a_zero_range_is_destaged_only_when_durable() {
    let mut scenario = Scenario::new();
    scenario.zero(scenario.blocks(2, 4));
    scenario.hold_flush(DeviceId::Cache);
    begin_drain(&mut scenario);
    assert!(!scenario.noted().iter().any(|op| op.zone == Some(Zone::Origin) && op.writes), "nothing went to the origin before");
    scenario.release_flush(DeviceId::Cache);
    scenario.drain();
    for block in 2..6 {
        assert_eq!(scenario.on_origin(block)[1], [0; 8]);
    }
    assert_eq!(scenario.on_origin(6)[1], stamps(&scenario.first(6)));
}

#[test]
fn zeros_that_are_to_stay_allocated_go_once_more_where_a_hole_was_made_meanwhile() {
    let mut scenario = Scenario::new();
    let all = scenario.blocks(0, 8);
    let trim = scenario.send(all, Command::Trim { fua: false });
    scenario.wait(trim).expect("no data, no reason to fail");
    scenario.flush();
    scenario.hold_flush(DeviceId::Origin);
    begin_drain(&mut scenario);
    let some = scenario.blocks(2, 2);
    let zero = scenario.send(some, Command::Zero { no_hole: true, fua: false, fast: false });
    scenario.wait(zero).expect("no data, no reason to fail");
    scenario.release_flush(DeviceId::Origin);
    scenario.drain();
    let went: Vec<Span> = scenario.noted().iter().filter(|op| op.zone == Some(Zone::Origin) && op.writes).map(|op| op.span).collect();
    assert!(went[0] == all && went[1..].contains(&some), "{went:?}");
}

#[test]
fn a_stale_fill_after_write_destage_and_evict_is_dropped() {
    let mut scenario = Scenario::new();
    // A read of the origin that takes a minute, and a write of the same block meanwhile.
    scenario.fail_next(Zone::Origin, Fault::Stuck(Duration::from_secs(60)));
    let read = scenario.send_read(scenario.block(5));
    let new = scenario.write(5);
    scenario.flush();
    scenario.simulation.control(Control::Drain);
    scenario.advance(Duration::from_secs(30));
    assert!(!scenario.is_answered(read), "the old read is still on its way");
    scenario.wait(read).expect("it ends well");
    scenario.drain();
    scenario.expect(5, &new);
    assert_eq!(scenario.on_origin(5)[1], stamps(&new));
    // What was filled, if anything was, is served after a crash as well.
    scenario.flush();
    scenario.power_cut(Survive::All);
    scenario.expect(5, &new);
}

#[test]
fn a_read_after_a_write_never_joins_an_older_miss() {
    let mut scenario = Scenario::new();
    scenario.hold(Zone::Origin);
    let old = scenario.send_read(scenario.block(5));
    let new = scenario.write(5);
    scenario.expect(5, &new);
    assert!(!scenario.is_answered(old), "the miss is still on its way");
    scenario.release(Zone::Origin);
    scenario.wait(old).expect("it ends well");
    scenario.expect(5, &new);
}

#[test]
fn a_stuck_write_that_ends_after_a_minute_harms_nothing() {
    let mut scenario = Scenario::new();
    scenario.write(5);
    scenario.flush();
    scenario.fail_next(Zone::Origin, Fault::Stuck(Duration::from_secs(60)));
    scenario.simulation.control(Control::Drain);
    scenario.advance(Duration::from_secs(1));
    assert!(scenario.noted().iter().any(|op| op.zone == Some(Zone::Origin) && op.writes && op.ended.is_none()), "a destage is stuck");
    let new = scenario.write(5);
    scenario.flush();
    scenario.advance(Duration::from_secs(10));
    scenario.expect(5, &new);
    scenario.drain();
    assert_eq!(scenario.on_origin(5)[1], stamps(&new));
    let writes: Vec<&Noted> = scenario.noted().iter().filter(|op| op.zone == Some(Zone::Origin) && op.writes).collect();
    assert!(writes.len() >= 2 && writes[1].at >= writes[0].ended.expect("it ended").0, "one after the other");
}

#[test]
fn a_network_origin_that_forgot_unflushed_writes_gets_them_again() {
    let mut again = 0;
    for seed in 0..8 {
        let mut scenario = Scenario::with(|plan| plan.seed = seed);
        let blocks: Vec<Stamps> = (0..6).map(|block| scenario.write(block * 2)).collect();
        scenario.flush();
        // Written to the origin, and the flush hangs when it goes away.
        scenario.hold_flush(DeviceId::Origin);
        begin_drain(&mut scenario);
        assert_eq!(scenario.on_origin(0)[0], stamps(&blocks[0]), "it is there, but not durable");
        scenario.simulation.origin_goes();
        scenario.release_flush(DeviceId::Origin);
        scenario.run_until_quiet();
        scenario.advance(Duration::from_secs(5));
        scenario.origin_comes_back(true);
        again += u32::from((0..6).any(|block| scenario.on_origin(block * 2)[0] != stamps(&blocks[block as usize])));
        scenario.drain();
        for (block, data) in blocks.iter().enumerate() {
            assert_eq!(scenario.on_origin(block as u64 * 2)[1], stamps(data));
        }
    }
    assert!(again > 0, "now and then the origin had forgotten something");
}

#[test]
fn writes_cleaned_during_an_origin_flush_stay_dirty() {
    let mut scenario = Scenario::new();
    scenario.write(5);
    scenario.flush();
    scenario.hold_flush(DeviceId::Origin);
    begin_drain(&mut scenario);
    assert!(scenario.noted().iter().any(|op| is_flush(op, DeviceId::Origin) && op.ended.is_none()), "the origin flushes");
    let new = scenario.write(5);
    scenario.flush();
    scenario.simulation.control(Control::CancelDrain);
    scenario.release_flush(DeviceId::Origin);
    scenario.run_until_quiet();
    assert_eq!(scenario.snapshot().dirty_slots, 1, "the newer write is dirty");
    scenario.power_cut(Survive::None);
    scenario.expect(5, &new);
    assert_eq!(scenario.snapshot().dirty_slots, 1, "and dirty it comes back");
    scenario.drain();
    assert_eq!(scenario.on_origin(5)[1], stamps(&new));
}

#[test]
fn a_failed_origin_flush_keeps_everything_dirty() {
    let mut scenario = Scenario::new();
    let blocks: Vec<Stamps> = (0..4).map(|block| scenario.write(block)).collect();
    scenario.flush();
    scenario.fail_next_flush(DeviceId::Origin);
    scenario.simulation.control(Control::Drain);
    let failed = |scenario: &Scenario| scenario.noted().iter().any(|op| is_flush(op, DeviceId::Origin) && op.ended.is_some());
    while !failed(&scenario) {
        scenario.step();
    }
    assert_eq!(scenario.snapshot().dirty_slots, 4);
    scenario.crash(Crash::Power { cache: Survive::None, origin: Survive::None });
    scenario.recover();
    scenario.drain();
    for (block, data) in blocks.iter().enumerate() {
        assert_eq!(scenario.on_origin(block as u64)[1], stamps(data));
    }
}

#[test]
fn a_failed_destage_keeps_its_blocks_dirty_and_is_tried_again() {
    let mut scenario = Scenario::new();
    let data = scenario.write(5);
    scenario.flush();
    scenario.fail_next(Zone::Origin, Fault::Error);
    scenario.drain();
    assert_eq!(scenario.on_origin(5)[1], stamps(&data));
    assert!(scenario.snapshot().counters.destage_failures > 0);
}

#[test]
fn flush_is_quick_with_an_origin_flush_of_10_s() {
    let mut scenario = Scenario::with(|plan| plan.speeds[1].flush = Duration::from_secs(10));
    scenario.write(5);
    scenario.flush();
    scenario.simulation.control(Control::Drain);
    while !scenario.noted().iter().any(|op| is_flush(op, DeviceId::Origin)) {
        scenario.step();
    }
    scenario.write(6);
    let before = scenario.simulation.now();
    scenario.flush();
    let took = scenario.simulation.now().since(before);
    assert!(took < Duration::from_millis(10), "FLUSH took {} ms", took.0 / 1_000_000);
    assert!(scenario.noted().iter().any(|op| is_flush(op, DeviceId::Origin) && op.ended.is_none()), "the origin still flushes");
}

#[test]
fn flush_is_quick_while_every_operation_of_the_origin_takes_10_s() {
    let slow = Duration::from_secs(10);
    let mut scenario = Scenario::with(|plan| {
        (plan.speeds[1].read, plan.speeds[1].write, plan.speeds[1].flush) = (slow, slow, slow);
    });
    scenario.send_read(scenario.block(40));
    scenario.simulation.control(Control::Drain);
    let mut slowest = Duration::ZERO;
    for block in 0..200 {
        scenario.write(block % 20);
        let before = scenario.simulation.now();
        scenario.flush();
        slowest = slowest.max(scenario.simulation.now().since(before));
    }
    assert!(slowest < Duration::from_millis(20), "a FLUSH took {} ms", slowest.0 / 1_000_000);
}

#[test]
fn after_kill_9_the_first_origin_read_waits_for_an_origin_flush() {
    let mut scenario = Scenario::new();
    // Something was written to the origin and not flushed when the daemon was killed.
    scenario.write(5);
    scenario.flush();
    scenario.hold_flush(DeviceId::Origin);
    begin_drain(&mut scenario);
    scenario.crash(Crash::Kill(Survive::None));
    scenario.forget_noted();
    scenario.begin_recovery();
    let read = scenario.send_read(scenario.block(40));
    scenario.until_serving();
    scenario.wait(read).expect("a read of the origin");
    let answered = scenario.simulation.now();
    let flush = find(&scenario, "flush of the origin", |op| is_flush(op, DeviceId::Origin));
    assert!(flush.ended.is_some_and(|(when, well)| well && when <= answered), "the answer waited for the flush");
}

#[test]
fn data_destaged_before_a_kill_does_not_flicker() {
    for survive in [Survive::None, Survive::Random] {
        let mut scenario = Scenario::new();
        let data = scenario.write(5);
        scenario.flush();
        scenario.hold_flush(DeviceId::Origin);
        begin_drain(&mut scenario);
        scenario.kill();
        scenario.expect(5, &data);
        scenario.power_cut(survive);
        scenario.expect(5, &data);
    }
}

#[test]
fn dirty_never_comes_back_clean_and_clean_may_come_back_dirty() {
    let mut scenario = Scenario::new();
    let data = scenario.write(5);
    scenario.flush();
    scenario.drain();
    assert_eq!(scenario.snapshot().dirty_slots, 0);
    // The record that says "clean" is lost: dirty again, and harmless.
    scenario.power_cut(only(|zone, _| zone != Zone::Journal));
    scenario.expect(5, &data);
    scenario.drain();
    assert_eq!(scenario.on_origin(5)[1], stamps(&data));
}

#[test]
fn an_origin_that_is_away_costs_only_what_it_alone_holds() {
    let mut scenario = Scenario::new();
    let data = scenario.write(5);
    scenario.flush();
    scenario.origin_goes();
    scenario.expect(5, &data);
    assert!(scenario.read(scenario.block(40)).is_err(), "nobody else has it");
    let more = scenario.write(6);
    scenario.flush();
    scenario.expect(6, &more);
    scenario.origin_comes_back(false);
    let first = scenario.first(40);
    scenario.expect(40, &first);
    scenario.drain();
    assert_eq!(scenario.on_origin(6)[1], stamps(&more));
}

#[test]
fn a_stop_makes_every_acknowledged_write_durable() {
    let mut scenario = Scenario::new();
    let blocks: Vec<Stamps> = (0..10).map(|block| scenario.write(block)).collect();
    scenario.stop();
    assert_eq!(*scenario.simulation.engine.phase(), Phase::Stopped);
    scenario.power_cut(Survive::None);
    for (block, data) in blocks.iter().enumerate() {
        scenario.expect(block as u64, data);
    }
}

#[test]
fn reads_that_the_origin_does_not_answer_leave_places_to_those_who_write_and_flush() {
    let mut scenario = Scenario::with(|plan| plan.config.requests_max = 16);
    let room = |scenario: &Scenario| scenario.simulation.engine.room();
    let whole = Room::whole(16, scenario.simulation.plan.config.bytes_max);
    assert_eq!(room(&scenario), whole);
    scenario.hold(Zone::Origin);
    let mut reads = Vec::new();
    while room(&scenario).read_requests > 0 {
        reads.push(scenario.send_read(scenario.block(20 + 2 * reads.len() as u64)));
        scenario.run_until_quiet();
    }
    let taken = reads.len() as u64 * scenario.block(0).bytes();
    assert_eq!((room(&scenario).requests, room(&scenario).read_bytes), (2, whole.read_bytes - taken));
    scenario.write(3);
    scenario.hold_flush(DeviceId::Cache);
    let flush = scenario.send_flush();
    assert_eq!((room(&scenario).requests, room(&scenario).other_requests), (1, 2), "it takes no place of what is no FLUSH");
    scenario.release_flush(DeviceId::Cache);
    scenario.wait(flush).expect("it needs no origin");
    assert_eq!((room(&scenario).requests, room(&scenario).other_requests), (2, 2));
    assert!(reads.iter().all(|read| !scenario.is_answered(*read)));
    scenario.release(Zone::Origin);
    for read in reads {
        scenario.wait(read).expect("it ends well");
    }
    scenario.run_until_quiet();
    assert_eq!(room(&scenario), whole);
}

/// Two of them overlap all the time, so something is always being asked about the block.
#[test]
fn a_drain_is_not_kept_waiting_by_questions_about_what_goes_home() {
    for is_zero in [false, true] {
        let mut scenario = Scenario::new();
        let mut data = scenario.write(5);
        if is_zero {
            scenario.zero(scenario.block(5));
            data = Stamps::from_stamps(&[0; 8]);
        }
        scenario.flush();
        scenario.run_until_quiet();
        let ask = |scenario: &mut Scenario| scenario.send(scenario.blocks(0, 64), Command::Status { tiers: false, one: false });
        let mut asked = [0, 1].map(|_| {
            let question = ask(&mut scenario);
            scenario.advance(Duration::from_millis(2));
            question
        });
        assert!(!scenario.is_answered(asked[0]), "they overlap");
        scenario.simulation.control(Control::Drain);
        for turn in 0..40 {
            scenario.outcome(asked[turn % 2]).expect("an answer");
            asked[turn % 2] = ask(&mut scenario);
        }
        assert!(scenario.simulation.engine.drain().is_none(), "zeroes: {is_zero}");
        assert_eq!(scenario.on_origin(5)[1], stamps(&data));
        scenario.run_until_quiet();
        assert!(asked.iter().all(|&question| scenario.is_answered(question)), "what was held up goes on");
    }
}

//! An origin that refuses to take a sector again and again, where writes go past the cache: what that costs others, and whoever waits for it.

use tidegate_engine::Mode;
use tidegate_engine::block::Span;
use tidegate_engine::cache::format::Geometry;
use tidegate_engine::config::{Allocation, GateKind, WhenFull};
use tidegate_engine::op::{DeviceId, Zone};
use tidegate_engine::request::{Command, RequestError};
use tidegate_engine::time::Duration;
use tidegate_sim::back::fault::Fault;
use tidegate_sim::back::volatile::Survive;
use tidegate_sim::plan::{Plan, Profile};
use tidegate_sim::scenario::{Scenario, plan, plan_for};
use tidegate_sim::stamp::Stamps;
use tidegate_sim::swarm::{Options, swarm};
use tidegate_sim::world::Noted;

#[test]
fn every_promise_is_kept_before_an_origin_that_refuses_much() {
    let report = swarm(&Options { seeds: 160, profile: Profile::Refusing, ..Options::default() }, &mut |_| {});
    assert_eq!(report.violations, [], "replay with `tidegate sim replay SEED --ops 5000 --profile refusing`");
    assert!(report.recoveries > 1_000, "{} recoveries", report.recoveries);
}

/// A volume whose FLUSH promises the origin.
fn promising_origin(change: impl FnOnce(&mut Plan)) -> Scenario {
    let mut scenario = Scenario::with(|plan| {
        plan.config.mode = Some(Mode::WriteThrough);
        change(plan);
    });
    scenario.run_until_quiet();
    scenario.simulation.scene.oracle.writes_may_fail = true;
    scenario
}

/// The same, whose writes all go there. What was written to these spans it may have forgotten, and refuses to take the first one again.
fn refusing(spans: &[Span]) -> (Scenario, Vec<Stamps>) {
    let mut scenario = promising_origin(|plan| plan.config.allocation = Allocation::ReadOnly);
    let data = spans.iter().map(|&span| scenario.write_span(span)).collect();
    scenario.fail_next_flush(DeviceId::Origin);
    scenario.fail_next(Zone::Origin, Fault::Refused(1_000));
    assert_eq!(scenario.try_flush(), Err(RequestError::Io));
    (scenario, data)
}

#[test]
fn a_page_that_the_origin_does_not_take_keeps_the_others_and_their_fua_from_nothing() {
    let (mut scenario, data) = refusing(&[Span::new(16, 8), Span::new(40, 8), Span::new(64, 8)]);
    let flush = scenario.send_flush();
    scenario.advance(Duration::from_secs(5));
    assert!(scenario.is_answered(flush), "a FLUSH does not wait for ever");
    assert_eq!(scenario.outcome(flush).unwrap_err(), RequestError::Io);
    let fua = scenario.write_fua(20);
    scenario.advance(Duration::from_secs(1));
    for (block, data) in [(5, &data[1]), (8, &data[2]), (20, &fua)] {
        assert_eq!(scenario.on_origin(block)[1], data.stamps().collect::<Vec<_>>(), "block {block}, durable");
    }
    scenario.expect(2, &data[0]);
    assert_eq!(scenario.try_flush(), Err(RequestError::Io), "it is not durable yet");
    // The sector has been replaced.
    scenario.simulation.scene.origin.heal();
    scenario.flush();
    scenario.lose_cache(Survive::None);
    scenario.expect(2, &data[0]);
}

/// The log has it, as it has those that go home beside it.
#[test]
fn a_block_that_the_origin_does_not_take_fails_and_delays_no_fua_but_its_own() {
    let mut scenario = promising_origin(|_| {});
    let refused = scenario.write(2);
    scenario.fail_next(Zone::Origin, Fault::Refused(1_000));
    let is_home = |scenario: &mut Scenario, block: u64, when: &str| {
        let (fua, data) = scenario.send_write(scenario.block(block), true);
        scenario.advance(Duration::from_millis(500));
        assert!(scenario.is_answered(fua), "{when}");
        scenario.wait(fua).expect(when);
        assert_eq!(scenario.on_origin(block)[1], data.stamps().collect::<Vec<_>>(), "{when}: durable");
    };
    is_home(&mut scenario, 20, "in one batch with it");
    assert_eq!(scenario.snapshot().refused_blocks, 1);
    // It is left alone for longer each time, and nobody else with it.
    for _ in 0..4 {
        assert_eq!(scenario.try_flush(), Err(RequestError::Io));
    }
    is_home(&mut scenario, 3, "while it is left alone");
    // It is tried once more, which takes a while; somebody comes meanwhile.
    scenario.advance(Duration::from_secs(300));
    scenario.hold(Zone::Origin);
    scenario.advance(Duration::from_secs(61));
    let (fua, _) = scenario.send_write(scenario.block(4), true);
    scenario.run_until_quiet();
    scenario.release(Zone::Origin);
    scenario.advance(Duration::from_millis(500));
    assert!(scenario.is_answered(fua), "as soon as that has failed again");
    scenario.wait(fua).expect("it is another block");
    scenario.expect(2, &refused);
    let (own, data) = scenario.send_write(scenario.block(2), true);
    scenario.advance(Duration::from_millis(500));
    assert!(scenario.is_answered(own), "it is tried at once");
    assert_eq!(scenario.outcome(own).unwrap_err(), RequestError::Io);
    scenario.simulation.scene.origin.heal();
    scenario.flush();
    scenario.lose_cache(Survive::None);
    scenario.expect(2, &data);
}

/// A small write is dirty in the log when a large one goes past it; the origin takes that one, and no flush.
#[test]
fn a_write_with_fua_over_what_is_dirty_is_told_that_the_origin_does_not_flush() {
    let mut scenario = promising_origin(|plan| plan.config.allocation = Allocation::SmallWrites);
    scenario.simulation.scene.oracle.writes_may_fail = true;
    (0..100).for_each(|_| scenario.fail_next_flush(DeviceId::Origin));
    scenario.write(2);
    let (fua, _) = scenario.send_write(scenario.blocks(0, 16), true);
    scenario.advance(Duration::from_secs(20));
    assert!(scenario.is_answered(fua), "it does not wait for ever");
    assert_eq!(scenario.outcome(fua).unwrap_err(), RequestError::Io);
    scenario.simulation.scene.origin.heal();
    scenario.flush();
}

/// With it more would be dirty than a FLUSH is to wait for, and it never becomes less.
#[test]
fn a_block_that_the_origin_does_not_take_keeps_no_large_write_waiting() {
    let mut scenario = promising_origin(|plan| plan.config.destage_atoms = 4 * 8);
    let refused = scenario.write(2);
    scenario.fail_next(Zone::Origin, Fault::Refused(1_000_000));
    assert_eq!(scenario.try_flush(), Err(RequestError::Io));
    let (write, data) = scenario.send_write(scenario.blocks(20, 8), false);
    scenario.advance(Duration::from_secs(5));
    assert!(scenario.is_answered(write), "two batches of four blocks, as without that one");
    scenario.wait(write).expect("a write");
    let later = scenario.write(40);
    scenario.expect(2, &refused);
    assert_eq!(scenario.read(scenario.blocks(20, 8)).expect("a read"), data.stamps().collect::<Vec<_>>());
    scenario.expect(40, &later);
}

/// It changes no block that it does not take whole.
#[test]
fn a_trim_with_fua_does_not_wait_for_a_refused_page_at_its_edge() {
    let (mut scenario, data) = refusing(&[Span::new(56, 8)]);
    scenario.advance(Duration::from_secs(20));
    let trim = scenario.send(Span::new(60, 20), Command::Trim { fua: true });
    scenario.advance(Duration::from_secs(20));
    assert!(scenario.is_answered(trim));
    scenario.wait(trim).expect("it has nothing to do with the page");
    // Its last block is the one that is refused; and it takes no block at all.
    for span in [Span::new(40, 20), Span::new(58, 4)] {
        let trim = scenario.send(span, Command::Trim { fua: true });
        scenario.advance(Duration::from_secs(20));
        assert!(scenario.is_answered(trim));
        scenario.wait(trim).expect("it has nothing to do with the page");
    }
    assert_eq!(scenario.try_flush(), Err(RequestError::Io), "it is refused all the same");
    scenario.simulation.scene.origin.heal();
    scenario.flush();
    scenario.expect(7, &data[0]);
}

/// Its page was written, the origin forgot it, and does not take it any more, but another one.
#[test]
fn a_write_with_fua_whose_own_page_is_refused_is_not_answered_as_durable() {
    let mut scenario = promising_origin(|plan| {
        plan.config.allocation = Allocation::ReadOnly;
        plan.speeds[1].flush = Duration::from_secs(2);
    });
    let (fua, data) = scenario.send_write(scenario.block(2), true);
    scenario.write(5);
    assert!(!scenario.is_answered(fua));
    scenario.origin_goes();
    scenario.fail_next(Zone::Origin, Fault::Refused(1_000));
    scenario.origin_comes_back(true);
    scenario.advance(Duration::from_secs(20));
    assert_eq!(scenario.outcome(fua).unwrap_err(), RequestError::Io);
    scenario.expect(2, &data);
    scenario.simulation.scene.origin.heal();
    scenario.flush();
    scenario.lose_cache(Survive::None);
    scenario.expect(2, &data);
}

#[test]
fn a_flush_does_not_wait_for_ever_for_a_refused_page_over_a_dirty_block() {
    let mut scenario = promising_origin(|plan| plan.config.allocation = Allocation::SmallWrites);
    scenario.write(2);
    let over = scenario.write_span(Span::new(16, 16));
    scenario.fail_next_flush(DeviceId::Origin);
    scenario.fail_next(Zone::Origin, Fault::Refused(1_000));
    for _ in 0..2 {
        let flush = scenario.send_flush();
        scenario.advance(Duration::from_secs(5));
        assert!(scenario.is_answered(flush));
        assert_eq!(scenario.outcome(flush).unwrap_err(), RequestError::Io);
    }
    scenario.simulation.scene.origin.heal();
    scenario.flush();
    scenario.lose_cache(Survive::None);
    assert_eq!(scenario.read(Span::new(16, 16)), Ok(over.stamps().collect()));
}

#[test]
fn of_a_large_page_the_origin_gets_all_but_the_block_it_does_not_take() {
    let (mut scenario, data) = refusing(&[Span::new(16, 64)]);
    let flush = scenario.send_flush();
    scenario.advance(Duration::from_secs(5));
    assert_eq!((scenario.is_answered(flush), scenario.outcome(flush).unwrap_err()), (true, RequestError::Io));
    let fua = scenario.write_fua(20);
    assert_eq!(scenario.on_origin(20)[1], fua.stamps().collect::<Vec<_>>());
    let all: Vec<u64> = data[0].stamps().collect();
    let refused: Vec<usize> = (0..8).filter(|&at| scenario.on_origin(2 + at as u64)[1] != all[8 * at..8 * at + 8]).collect();
    assert_eq!(refused.len(), 1, "{refused:?}");
    scenario.simulation.scene.origin.heal();
    scenario.flush();
    scenario.lose_cache(Survive::None);
    assert_eq!(scenario.read(Span::new(16, 64)), Ok(all));
}

/// Zeros that only the log knows of, until the SSD goes.
fn knowing_zeros() -> Scenario {
    let mut scenario = Scenario::new();
    scenario.simulation.scene.oracle.writes_may_fail = true;
    scenario.zero(Span::new(16, 64));
    scenario
}

/// Since the SSD failed memory alone knows the zeros. A FUA write elsewhere has nothing to do with them.
#[test]
fn without_the_ssd_a_flush_does_not_wait_for_ever_for_zeros_that_the_origin_does_not_take() {
    let mut scenario = knowing_zeros();
    scenario.cache_goes();
    scenario.fail_next(Zone::Origin, Fault::Refused(1_000));
    for _ in 0..3 {
        let flush = scenario.send_flush();
        scenario.advance(Duration::from_secs(5));
        assert!(scenario.is_answered(flush), "a FLUSH does not wait for ever");
        assert_eq!(scenario.outcome(flush).unwrap_err(), RequestError::Io);
        scenario.write_fua(20);
    }
    assert_eq!(scenario.read(Span::new(16, 64)), Ok(vec![0; 64]));
    scenario.simulation.scene.origin.heal();
    scenario.flush();
    assert_eq!(scenario.snapshot().range_entries, 0, "the zeros are home");
    scenario.lose_cache(Survive::None);
    assert_eq!(scenario.read(Span::new(16, 64)), Ok(vec![0; 64]));
}

/// They were refused before it came, and one that came before that was told; for this one they are tried once more (seed 8500157).
#[test]
fn without_the_ssd_a_flush_is_not_told_of_zeros_that_the_origin_had_refused_before_it_came() {
    let mut scenario = knowing_zeros();
    scenario.zero(scenario.block(30));
    scenario.cache_goes();
    scenario.fail_next(Zone::Origin, Fault::Error);
    scenario.hold_flush(DeviceId::Origin);
    let first = scenario.send_flush();
    scenario.advance(Duration::from_secs(5));
    let is_refused = |op: &Noted| matches!(op.ended, Some((_, false))) && op.zone == Some(Zone::Origin) && op.writes;
    assert!(scenario.noted().iter().any(is_refused), "some of the zeros were refused");
    let second = scenario.send_flush();
    scenario.advance(Duration::from_secs(1));
    scenario.release_flush(DeviceId::Origin);
    assert_eq!(scenario.outcome(first).unwrap_err(), RequestError::Io);
    scenario.wait(second).expect("they were taken");
    scenario.lose_cache(Survive::None);
    assert_eq!(scenario.read(Span::new(16, 64)), Ok(vec![0; 64]));
}

/// The page cannot be written before the zeros below it are.
#[test]
fn without_the_ssd_a_fua_does_not_wait_for_a_page_over_zeros_that_the_origin_does_not_take() {
    let mut scenario = knowing_zeros();
    let over = scenario.write(3);
    scenario.cache_goes();
    scenario.fail_next(Zone::Origin, Fault::Refused(1_000));
    assert_eq!(scenario.try_flush(), Err(RequestError::Io));
    let (fua, data) = scenario.send_write(scenario.block(20), true);
    scenario.advance(Duration::from_secs(5));
    assert!(scenario.is_answered(fua));
    assert_eq!(scenario.on_origin(20)[1], data.stamps().collect::<Vec<_>>());
    scenario.expect(3, &over);
    scenario.simulation.scene.origin.heal();
    scenario.flush();
    scenario.lose_cache(Survive::None);
    scenario.expect(3, &over);
}

#[test]
fn without_the_ssd_a_flush_is_told_that_the_zeros_were_taken_and_not_flushed() {
    let mut scenario = knowing_zeros();
    scenario.cache_goes();
    for _ in 0..8 {
        scenario.fail_next_flush(DeviceId::Origin);
        let flush = scenario.send_flush();
        scenario.advance(Duration::from_secs(1));
        assert!(scenario.is_answered(flush));
        assert_eq!(scenario.outcome(flush).unwrap_err(), RequestError::Io);
    }
    let flush = scenario.send_flush();
    scenario.advance(Duration::from_secs(1));
    assert!(scenario.is_answered(flush) && scenario.outcome(flush).is_ok());
}

/// However long it has been left alone: the sector has been replaced meanwhile.
#[test]
fn a_flush_that_promises_the_origin_tries_at_once_what_was_refused() {
    let mut scenario = promising_origin(|_| ());
    let data = scenario.write(2);
    scenario.fail_next(Zone::Origin, Fault::Refused(1_000));
    for _ in 0..6 {
        assert_eq!(scenario.try_flush(), Err(RequestError::Io));
    }
    scenario.simulation.scene.origin.heal();
    let flush = scenario.send_flush();
    scenario.advance(Duration::from_secs(1));
    assert!(scenario.is_answered(flush) && scenario.outcome(flush).is_ok());
    assert_eq!(scenario.on_origin(2)[1], data.stamps().collect::<Vec<_>>());
}

/// Seed 2604360 of the refusing profile: while a read waited for another write beside it, the log had got what it had found on the origin, and a
/// write past the log had failed there. It showed what that had left, and the next read what the log holds.
#[test]
fn a_read_that_has_waited_for_the_origin_sees_what_others_see() {
    let mut scenario = Scenario::with(|plan| plan.config.allocation = Allocation::ReadOnly);
    scenario.run_until_quiet();
    scenario.simulation.scene.oracle.writes_may_fail = true;
    let (taken, data) = scenario.send_write(scenario.block(2), false);
    scenario.fail_next(Zone::Origin, Fault::Stuck(Duration::from_secs(1)));
    let (late, beside) = scenario.send_write(scenario.block(3), false);
    let read = scenario.send_read(Span::new(16, 16));
    scenario.wait(taken).expect("it goes past the log");
    scenario.flush();
    assert_eq!(scenario.snapshot().counters.through_logged_blocks, 1, "the log has it");
    scenario.fail_next(Zone::Origin, Fault::Error);
    let (failed, _) = scenario.send_write(scenario.block(2), false);
    assert_eq!(scenario.wait(failed), Err(RequestError::Io));
    assert!(!scenario.is_answered(read) && !scenario.is_answered(late));
    assert_eq!(scenario.wait(read).map(|outcome| outcome[..8].to_vec()), Ok(data.stamps().collect()));
    scenario.expect(2, &data);
    scenario.expect(3, &beside);
}

/// Writes of two blocks that wait for the origin together are sent as one, fail, and fail once more by themselves; between the two tries the origin
/// does not flush. What it shows of the first one then no later flush saves.
fn failing_around_a_failed_flush(seed: u64) -> Scenario {
    let mut scenario = promising_origin(|plan| {
        plan.config.allocation = Allocation::ReadOnly;
        (plan.config.fence_samples, plan.limits[1].depth, plan.seed) = (64, 1, seed);
    });
    [2, 3].into_iter().for_each(|block| drop(scenario.write(block)));
    scenario.flush();
    scenario.write(20);
    let (taken, _) = scenario.send_write(scenario.block(30), false);
    for _ in 0..3 {
        scenario.fail_next(Zone::Origin, Fault::Error);
    }
    scenario.fail_next_flush(DeviceId::Origin);
    let (failed, _) = scenario.send_write(scenario.block(2), false);
    let (beside, _) = scenario.send_write(scenario.block(3), false);
    let flush = scenario.send_flush();
    scenario.wait(taken).expect("the origin takes it");
    assert_eq!([scenario.wait(failed), scenario.wait(beside)], [Err(RequestError::Io), Err(RequestError::Io)]);
    assert_eq!(scenario.outcome(flush).unwrap_err(), RequestError::Io);
    scenario.flush();
    scenario
}

/// Seed 2700124 of the refusing profile: it was kept as clean, and after the power cut the origin held something else: a start that was refused.
#[test]
fn what_a_write_has_left_that_failed_twice_around_a_failed_flush_is_not_kept() {
    for seed in 0..8 {
        let mut scenario = failing_around_a_failed_flush(seed);
        scenario.read(scenario.blocks(2, 2)).expect("the origin gives it");
        scenario.run_until_quiet();
        scenario.flush();
        scenario.power_cut(Survive::None);
        scenario.read(scenario.blocks(2, 2)).expect("the origin gives it");
    }
}

#[test]
fn what_a_failed_flush_has_dropped_is_kept_again_when_it_was_written_anew() {
    let mut scenario = failing_around_a_failed_flush(0);
    let filled = |scenario: &mut Scenario| {
        let before = scenario.snapshot().counters.filled_blocks;
        [2, 3].into_iter().for_each(|block| drop(scenario.read(scenario.block(block)).expect("the origin gives it")));
        scenario.run_until_quiet();
        scenario.snapshot().counters.filled_blocks - before
    };
    assert_eq!(filled(&mut scenario), 0);
    scenario.write(3);
    scenario.flush();
    assert_eq!(filled(&mut scenario), 1, "the other one is doubtful still");
}

/// In write-back: destaging makes room in the log for them. What is below them stays where it is, in the oldest sets.
#[test]
fn a_stop_does_not_wait_for_ever_for_refused_pages_and_a_full_log() {
    for pages in [&[100][..], &[0, 8, 16, 24, 32, 40, 48, 56, 64]] {
        let mut plan = plan_for(Geometry { volume_atoms: 512 * 8, ..plan().config.geometry });
        (plan.config.when_full, plan.config.gate, plan.config.free_floor) = (WhenFull::Through, GateKind::New, 0);
        plan.config.wait = Duration::from_secs(3_600);
        let mut scenario = Scenario::of(plan);
        scenario.simulation.scene.oracle.writes_may_fail = true;
        let is_full = |&block: &u64| {
            scenario.write(block);
            scenario.flush();
            scenario.snapshot().counters.through_blocks > 0
        };
        (0..).find(is_full).expect("writes go past a full log");
        let data: Vec<Stamps> = pages.iter().map(|&block| scenario.write(block)).collect();
        scenario.fail_next_flush(DeviceId::Origin);
        pages.iter().for_each(|_| scenario.fail_next(Zone::Origin, Fault::Refused(1_000_000)));
        assert_eq!(scenario.try_flush(), Err(RequestError::Io));
        scenario.advance(Duration::from_secs(1));
        let before = scenario.simulation.now();
        scenario.stop();
        assert!(scenario.simulation.now().since(before) < Duration::from_secs(300), "{pages:?}");
        assert!(scenario.snapshot().counters.destaged_blocks > 0, "others went home for them");
        scenario.power_cut(Survive::None);
        pages.iter().zip(&data).for_each(|(&block, data)| scenario.expect(block, data));
    }
}

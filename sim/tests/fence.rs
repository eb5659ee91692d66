//! The fence: an origin that was changed while the cache was away is found before anything is written or served, and nothing else is.

use tidegate_engine::op::{DeviceId, Zone};
use tidegate_engine::probe::Phase;
use tidegate_engine::time::Duration;
use tidegate_engine::{Control, Mode};
use tidegate_sim::back::fault::Fault;
use tidegate_sim::back::volatile::Survive;
use tidegate_sim::plan::Plan;
use tidegate_sim::scenario::Scenario;
use tidegate_sim::stamp::Stamps;
use tidegate_sim::world::Crash;

fn scenario_with(change: impl FnOnce(&mut Plan)) -> Scenario {
    Scenario::with(|plan| {
        plan.config.fence_samples = 1_024;
        change(plan);
    })
}

/// A volume of 64 blocks, of which 8 to 23 are in the cache, clean, their sets sealed.
fn with_clean_blocks() -> Scenario {
    with_clean_blocks_and(|_| {})
}

fn with_clean_blocks_and(change: impl FnOnce(&mut Plan)) -> Scenario {
    let mut scenario = scenario_with(change);
    for block in 8..24 {
        scenario.read(scenario.block(block)).expect("it is on the origin");
    }
    scenario.run_until_quiet();
    scenario.flush();
    assert_eq!(scenario.snapshot().counters.filled_blocks, 16);
    scenario
}

/// Somebody else writes to the origin.
fn change(scenario: &mut Scenario, block: u64) {
    let span = scenario.block(block);
    scenario.simulation.scene.origin.scribble(Zone::Origin, span.start + 3, Stamps::from_stamps(&[0]));
}

/// Nothing was written on either device by the start that was refused.
fn refused(scenario: &mut Scenario) -> String {
    scenario.forget_noted();
    let damage = scenario.recover_expect_refusal();
    assert!(scenario.noted().iter().all(|op| !op.writes), "a start that is refused writes nothing");
    damage.into_iter().find(|damage| damage.fatal).expect("a reason").what
}

#[test]
fn a_change_behind_the_cache_is_found_before_anything_is_served() {
    for stop in [true, false] {
        let mut scenario = with_clean_blocks();
        if stop {
            scenario.stop()
        } else {
            scenario.crash(Crash::Kill(Survive::All))
        }
        change(&mut scenario, 12);
        let why = refused(&mut scenario);
        let byte = scenario.block(12).offset();
        assert!(why.contains("the origin was changed") && why.contains(&format!("the first at byte {byte};")), "{why}");
    }
}

#[test]
fn a_mounted_and_checked_origin_is_found_by_its_superblocks() {
    // Block 0 is not in the cache: only the marks of the orderly stop tell.
    let mut scenario = scenario_with(|_| {});
    scenario.write(40);
    scenario.flush();
    scenario.stop();
    change(&mut scenario, 0);
    assert!(refused(&mut scenario).contains("the first at byte 0;"));
}

#[test]
fn what_is_neither_cached_nor_marked_is_served_as_it_is() {
    let mut scenario = with_clean_blocks();
    scenario.crash(Crash::Kill(Survive::All));
    change(&mut scenario, 50);
    scenario.recover();
    assert_eq!(*scenario.simulation.engine.phase(), Phase::Serving);
    assert!(scenario.snapshot().counters.fence_checked_blocks >= 8, "the blocks of sealed sets were compared");
}

#[test]
fn a_crash_after_writing_a_sampled_place_raises_no_alarm() {
    let mut scenario = with_clean_blocks();
    scenario.stop();
    scenario.recover();
    // Marked places and sampled blocks are written, destaged, written again.
    let mut last = Vec::new();
    for block in [0, 1, 8, 15, 63] {
        last.push((block, scenario.write(block)));
    }
    scenario.flush();
    scenario.drain();
    for survive in [Survive::None, Survive::All] {
        scenario.crash(Crash::Power { cache: Survive::None, origin: survive });
        scenario.recover();
        for (block, data) in &last {
            scenario.expect(*block, data);
        }
    }
    scenario.stop();
    scenario.recover();
}

#[test]
fn a_stop_with_dirty_blocks_and_a_power_cut_of_the_origin_raise_no_alarm() {
    let mut scenario = scenario_with(|_| {});
    for block in 0..20 {
        scenario.write(block);
    }
    scenario.flush();
    scenario.drain();
    let newer = scenario.write(0);
    scenario.stop();
    scenario.crash(Crash::Power { cache: Survive::None, origin: Survive::None });
    scenario.recover();
    scenario.expect(0, &newer);
}

#[test]
fn an_origin_that_is_slow_or_fails_is_asked_no_longer_than_it_takes() {
    let mut slow = with_clean_blocks_and(|plan| plan.speeds[1].read = Duration::from_secs(10));
    slow.crash(Crash::Kill(Survive::All));
    let before = slow.simulation.now();
    slow.recover();
    assert_eq!(slow.snapshot().counters.fence_checked_blocks, 1);
    assert!(slow.simulation.now().since(before) < Duration::from_secs(15));
    let mut failing = with_clean_blocks();
    failing.crash(Crash::Kill(Survive::All));
    failing.fail_next(Zone::Origin, Fault::Error);
    failing.recover();
    assert!(failing.snapshot().counters.fence_checked_blocks > 0);
}

#[test]
fn an_origin_that_is_away_is_not_asked() {
    let mut scenario = with_clean_blocks();
    scenario.stop();
    scenario.origin_goes();
    scenario.recover();
    assert_eq!(scenario.snapshot().counters.fence_checked_blocks, 0);
    scenario.read(scenario.block(9)).expect("it is in the cache");
}

#[test]
fn a_stop_does_not_wait_for_an_origin_that_does_not_answer() {
    let mut scenario = with_clean_blocks();
    scenario.hold_flush(DeviceId::Origin);
    let before = scenario.simulation.now();
    scenario.stop();
    assert!(scenario.simulation.now().since(before) <= Duration::from_millis(2_500));
}

/// Found by seed 9378: what went home after the marks were taken was refused at the next start.
#[test]
fn a_mode_asked_for_while_it_stops_sends_nothing_home_behind_the_marks() {
    let mut scenario = with_clean_blocks();
    let data: Vec<_> = (0..8).map(|block| scenario.write(block)).collect();
    scenario.flush();
    scenario.hold_flush(DeviceId::Origin);
    scenario.simulation.control(Control::Stop);
    scenario.run_until_quiet();
    scenario.simulation.switch(Mode::WriteThrough);
    scenario.release_flush(DeviceId::Origin);
    while *scenario.simulation.engine.phase() != Phase::Stopped {
        assert!(scenario.step(), "it stops");
    }
    scenario.simulation.scene.oracle.stopped();
    scenario.kill();
    for (block, data) in data.iter().enumerate() {
        scenario.expect(block as u64, data);
    }
}

/// The SSD fails while a stop waits for the flush of the origin behind which its marks are read: by then what is pinned goes home.
#[test]
fn a_stop_whose_cache_fails_meanwhile_reads_no_marks_beside_what_goes_home() {
    let mut scenario = scenario_with(|plan| plan.config.ram = 1 << 20);
    let data: Vec<Stamps> = (0..4).map(|block| scenario.write(block)).collect();
    // Too large to be kept in memory.
    scenario.write_span(scenario.blocks(20, 20));
    scenario.flush();
    // Something that the SSD is still asked for, so that its end is noticed.
    scenario.hold(Zone::Data);
    let read = scenario.send_read(scenario.block(25));
    scenario.hold_flush(DeviceId::Origin);
    scenario.begin_stop();
    scenario.step();
    assert!(!scenario.is_answered(read));
    scenario.hold(Zone::Origin);
    scenario.cache_goes();
    scenario.release(Zone::Data);
    scenario.until_degraded();
    scenario.release_flush(DeviceId::Origin);
    scenario.step();
    scenario.release(Zone::Origin);
    scenario.until_stopped();
    for (block, data) in data.iter().enumerate() {
        assert_eq!(scenario.on_origin(block as u64)[1], data.stamps().collect::<Vec<u64>>());
    }
}

/// The same while they are being read.
#[test]
fn what_goes_home_when_the_cache_fails_in_a_stop_waits_for_the_marks_that_are_being_read() {
    let mut scenario = scenario_with(|plan| plan.config.ram = 1 << 20);
    let data: Vec<Stamps> = (0..4).map(|block| scenario.write(block)).collect();
    scenario.write_span(scenario.blocks(20, 20));
    scenario.flush();
    scenario.hold(Zone::Data);
    scenario.send_read(scenario.block(25));
    scenario.hold(Zone::Origin);
    scenario.begin_stop();
    let reads = |scenario: &Scenario| scenario.noted().iter().filter(|op| op.zone == Some(Zone::Origin) && !op.writes).count();
    let before = reads(&scenario);
    while reads(&scenario) == before {
        scenario.step();
    }
    scenario.cache_goes();
    scenario.release(Zone::Data);
    scenario.until_degraded();
    scenario.step();
    scenario.release(Zone::Origin);
    scenario.until_stopped();
    for (block, data) in data.iter().enumerate() {
        assert_eq!(scenario.on_origin(block as u64)[1], data.stamps().collect::<Vec<u64>>());
    }
}

/// What is under way there when the start goes on is not compared, and nothing is written over it before it ends.
#[test]
fn an_origin_that_answers_no_read_holds_no_start_for_ever() {
    let mut scenario = with_clean_blocks();
    let dirty = scenario.write(40);
    scenario.flush();
    scenario.crash(Crash::Kill(Survive::All));
    scenario.hold(Zone::Origin);
    scenario.forget_noted();
    scenario.begin_recovery();
    let began = scenario.simulation.now();
    scenario.until_serving();
    let took = scenario.simulation.now().since(began);
    assert!(took > Duration::from_secs(19) && took < Duration::from_secs(25), "{took:?}");
    assert_eq!(scenario.snapshot().counters.fence_checked_blocks, 0);
    scenario.expect(40, &dirty);
    let asked = scenario.noted().iter().find(|op| op.zone == Some(Zone::Origin)).expect("it was asked").span;
    let block = asked.start / 8;
    assert!((8..24).contains(&block), "a block that the cache holds clean");
    let newer = scenario.write(block);
    scenario.flush();
    scenario.simulation.control(Control::Drain);
    scenario.advance(Duration::from_secs(60));
    assert!(scenario.noted().iter().all(|op| op.zone != Some(Zone::Origin) || !op.writes || !op.span.overlaps(asked)));
    scenario.expect(block, &newer);
    // It ends long after the recovery that it was asked for.
    scenario.release(Zone::Origin);
    scenario.drain();
    assert_eq!(scenario.on_origin(block)[1], newer.stamps().collect::<Vec<_>>());
}

/// The same without the cache, which fails meanwhile.
#[test]
fn a_read_of_a_start_that_ends_when_the_cache_has_failed_keeps_nothing_from_going_home() {
    let mut scenario = with_clean_blocks();
    scenario.crash(Crash::Kill(Survive::All));
    scenario.hold(Zone::Origin);
    scenario.forget_noted();
    scenario.recover();
    let asked = scenario.noted().iter().find(|op| op.zone == Some(Zone::Origin)).expect("it was asked").span;
    let block = asked.start / 8;
    scenario.cache_goes();
    let (write, data) = scenario.send_write(scenario.block(block), false);
    scenario.until_degraded();
    scenario.advance(Duration::from_secs(1));
    scenario.release(Zone::Origin);
    scenario.wait(write).expect("the origin takes it");
    scenario.flush();
    assert_eq!(scenario.on_origin(block)[1], data.stamps().collect::<Vec<_>>());
}

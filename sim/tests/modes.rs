//! What a FLUSH promises, situation by situation: the origin in write-through and read-only, the way from one mode to another, and what
//! the loss of the SSD may cost. The oracle listens to every reply; after a loss it knows only what the origin must hold.

use tidegate_engine::cache::format::Geometry;
use tidegate_engine::config::{Allocation, Fill};
use tidegate_engine::op::{DeviceId, Zone};
use tidegate_engine::probe::Phase;
use tidegate_engine::request::{Command, RequestError};
use tidegate_engine::time::Duration;
use tidegate_engine::{Control, Mode};
use tidegate_sim::back::fault::Fault;
use tidegate_sim::back::volatile::Survive;
use tidegate_sim::scenario::{Scenario, plan_for};
use tidegate_sim::stamp::Stamps;
use tidegate_sim::world::Noted;

fn in_mode(mode: Mode) -> Scenario {
    let mut scenario = Scenario::with(|plan| plan.config.mode = Some(mode));
    settle(&mut scenario);
    scenario
}

/// Until the mode is recorded.
fn settle(scenario: &mut Scenario) {
    let mode = scenario.simulation.engine.mode().wanted;
    scenario.switch(mode);
    scenario.run_until_quiet();
    scenario.forget_noted();
}

fn stamps(data: &Stamps) -> Vec<u64> {
    data.stamps().collect()
}

fn on_origin(scenario: &Scenario, block: u64, data: &Stamps) -> [bool; 2] {
    scenario.on_origin(block).map(|found| found == stamps(data))
}

fn is_origin_write(op: &&Noted) -> bool {
    op.zone == Some(Zone::Origin) && op.writes
}

#[test]
fn a_flush_in_write_through_waits_for_the_origins_own_flush() {
    let mut scenario = in_mode(Mode::WriteThrough);
    let new = scenario.write(5);
    assert_eq!(on_origin(&scenario, 5, &new), [false, false], "a plain write is acknowledged by the SSD");
    scenario.hold_flush(DeviceId::Origin);
    let flush = scenario.send_flush();
    scenario.run_until_quiet();
    assert_eq!(on_origin(&scenario, 5, &new), [true, false]);
    assert!(!scenario.is_answered(flush));
    scenario.release_flush(DeviceId::Origin);
    scenario.wait(flush).expect("a flush");
    assert_eq!(on_origin(&scenario, 5, &new), [true, true]);
    assert_eq!(scenario.snapshot().dirty_slots, 0, "and it stays in the cache, clean");
    let before = scenario.snapshot().counters.hit_blocks;
    scenario.expect(5, &new);
    assert_eq!(scenario.snapshot().counters.hit_blocks, before + 1);
}

#[test]
fn fua_in_write_through_is_on_the_origin_before_its_reply() {
    for mode in [Mode::WriteThrough, Mode::ReadOnly] {
        let mut scenario = in_mode(mode);
        let new = scenario.write_fua(5);
        assert_eq!(on_origin(&scenario, 5, &new), [true, true], "{mode}");
    }
}

#[test]
fn a_lost_ssd_costs_nothing_that_was_flushed() {
    for (mode, origin) in [Mode::WriteThrough, Mode::ReadOnly].into_iter().flat_map(|mode| [(mode, Survive::None), (mode, Survive::Random)])
    {
        let mut scenario = in_mode(mode);
        scenario.read(scenario.blocks(0, 4)).expect("it is on the origin");
        let data: Vec<Stamps> = (0..8).map(|block| scenario.write(block)).collect();
        scenario.flush();
        scenario.write(0);
        assert!(scenario.simulation.may_lose_cache());
        scenario.lose_cache(origin);
        for (block, data) in data.iter().enumerate().skip(1) {
            scenario.expect(block as u64, data);
        }
    }
}

#[test]
fn zeroes_that_were_flushed_read_as_zeros_without_the_ssd() {
    let mut scenario = in_mode(Mode::WriteThrough);
    scenario.zero(scenario.blocks(3, 5));
    scenario.flush();
    scenario.lose_cache(Survive::None);
    let span = scenario.blocks(3, 5);
    assert!(scenario.read(span).expect("zeros").iter().all(|&stamp| stamp == 0));
}

/// The older contents would be nowhere but in the log that may be lost.
#[test]
fn what_a_flush_waits_for_is_not_overwritten_before_it_is_home() {
    let mut scenario = in_mode(Mode::WriteThrough);
    let first = scenario.write(5);
    scenario.hold(Zone::Origin);
    let flush = scenario.send_flush();
    scenario.run_until_quiet();
    let (over, _) = scenario.send_write(scenario.block(5), false);
    let trim = scenario.send(scenario.block(5), Command::Trim { fua: false });
    scenario.run_until_quiet();
    assert!(!scenario.is_answered(over) && !scenario.is_answered(trim));
    scenario.hold(Zone::Data);
    scenario.release(Zone::Origin);
    scenario.wait(flush).expect("a flush");
    assert_eq!(on_origin(&scenario, 5, &first), [true, true]);
    scenario.release(Zone::Data);
    scenario.wait(over).expect("a write");
}

/// Found by seed 130: zeroes took the page of a write off the list that the FLUSH waited for.
#[test]
fn what_went_past_the_log_is_not_taken_back_into_it_while_a_flush_waits() {
    let mut scenario = in_mode(Mode::ReadOnly);
    let new = scenario.write(5);
    scenario.hold_flush(DeviceId::Origin);
    let flush = scenario.send_flush();
    scenario.run_until_quiet();
    let zeroes = scenario.send(scenario.block(5), Command::Zero { no_hole: true, fua: false, fast: false });
    scenario.run_until_quiet();
    assert!(!scenario.is_answered(zeroes) && !scenario.is_answered(flush));
    scenario.hold(Zone::Journal);
    scenario.release_flush(DeviceId::Origin);
    scenario.wait(flush).expect("a flush");
    assert!(on_origin(&scenario, 5, &new)[1]);
    scenario.release(Zone::Journal);
    scenario.wait(zeroes).expect("zeroes");
}

#[test]
fn a_flush_does_not_wait_for_what_is_written_after_it() {
    let mut scenario = in_mode(Mode::WriteThrough);
    scenario.write(5);
    let flush = scenario.send_flush();
    let mut written = 0;
    while !scenario.is_answered(flush) {
        scenario.write(20 + written % 40);
        written += 1;
        assert!(written < 1_000, "a flush that never ends");
    }
    scenario.wait(flush).expect("a flush");
}

/// Without memory every read of it goes to the origin, and one is always under way.
#[test]
fn a_write_past_the_cache_is_not_kept_waiting_by_who_reads_there_again_and_again() {
    let mut scenario = Scenario::with(|plan| {
        (plan.config.ram, plan.config.dirty_ram, plan.config.fill) = (0, 0, Fill::Off);
        plan.config.allocation = Allocation::ReadOnly;
    });
    scenario.run_until_quiet();
    scenario.read(scenario.block(9)).expect("the origin is flushed once before its first read");
    let block = scenario.block(5);
    let mut reads = [0, 1].map(|_| {
        let read = scenario.send_read(block);
        scenario.advance(Duration::from_millis(2));
        read
    });
    assert!(!scenario.is_answered(reads[1]), "they overlap");
    let (write, data) = scenario.send_write(block, false);
    for turn in 0..40 {
        scenario.wait(reads[turn % 2]).expect("a read");
        reads[turn % 2] = scenario.send_read(block);
    }
    assert!(scenario.is_answered(write));
    scenario.run_until_quiet();
    scenario.expect(5, &data);
}

/// What they miss is kept, and the SSD takes longer to forget it for certain than they to miss it again.
#[test]
fn a_write_past_the_cache_is_not_kept_waiting_by_what_is_kept_of_its_block_again_and_again() {
    let mut scenario = Scenario::with(|plan| {
        (plan.config.ram, plan.config.dirty_ram) = (0, 0);
        plan.config.allocation = Allocation::ReadOnly;
        plan.speeds[0].flush = Duration::from_millis(50);
    });
    scenario.run_until_quiet();
    let block = scenario.block(5);
    scenario.read(block).expect("a read");
    scenario.run_until_quiet();
    assert_eq!(scenario.snapshot().counters.filled_blocks, 1);
    let (write, data) = scenario.send_write(block, false);
    let late = scenario.simulation.now() + Duration::from_secs(1);
    while !scenario.is_answered(write) {
        assert!(scenario.simulation.now() < late);
        scenario.read(block).expect("a read");
        scenario.advance(Duration::from_millis(1));
    }
    scenario.wait(write).expect("a write");
    scenario.expect(5, &data);
}

#[test]
fn an_origin_that_refuses_a_write_fails_the_flush_and_loses_nothing() {
    let mut scenario = in_mode(Mode::WriteThrough);
    let new = scenario.write(5);
    scenario.fail_next(Zone::Origin, Fault::Error);
    scenario.simulation.scene.oracle.writes_may_fail = true;
    assert_eq!(scenario.try_flush(), Err(RequestError::Io));
    scenario.expect(5, &new);
    scenario.flush();
    scenario.lose_cache(Survive::None);
    scenario.expect(5, &new);
}

#[test]
fn a_flush_waits_for_an_origin_that_is_away_and_ends_when_it_is_back() {
    for forgotten in [false, true] {
        let mut scenario = in_mode(Mode::WriteThrough);
        let new = scenario.write(5);
        scenario.origin_goes();
        let flush = scenario.send_flush();
        scenario.advance(Duration::from_secs(50));
        assert!(!scenario.is_answered(flush));
        scenario.origin_comes_back(forgotten);
        scenario.wait(flush).expect("a flush");
        scenario.lose_cache(Survive::None);
        scenario.expect(5, &new);
    }
}

#[test]
fn a_flush_that_promises_an_origin_which_stays_away_fails_after_a_while() {
    let mut scenario = in_mode(Mode::WriteThrough);
    let new = scenario.write(5);
    scenario.origin_goes();
    let flush = scenario.send_flush();
    scenario.advance(Duration::from_secs(100));
    assert!(scenario.is_answered(flush));
    assert_eq!(scenario.outcome(flush).unwrap_err(), RequestError::Io);
    assert_eq!(scenario.snapshot().counters.stalled_requests, 1);
    scenario.expect(5, &new);
    scenario.origin_comes_back(false);
    scenario.flush();
    scenario.lose_cache(Survive::None);
    scenario.expect(5, &new);
}

fn promising_with_sets(set_slots: u32, sets: u32) -> Scenario {
    let geometry = Geometry { block_atoms: 8, set_slots, sets, journal_pages: 1_024, volume_atoms: 1 << 20, range_entries: 252 };
    let mut plan = plan_for(geometry);
    plan.config.mode = Some(Mode::WriteThrough);
    let mut scenario = Scenario::of(plan);
    settle(&mut scenario);
    scenario
}

/// What others write meanwhile comes into the same open set.
#[test]
fn a_flush_that_promises_the_origin_does_not_wait_for_a_set_to_fill_up() {
    for (set_slots, sets) in [(8, 512), (64, 64), (256, 64), (2_048, 16)] {
        let mut scenario = promising_with_sets(set_slots, sets);
        scenario.write(5);
        let flush = scenario.send_flush();
        let mut written = 0;
        while !scenario.is_answered(flush) {
            scenario.send_write(scenario.block(1_000 + written * 7_919 % 100_000), false);
            scenario.advance(Duration::from_millis(2));
            written += 1;
            assert!(written <= 20, "sets of {set_slots} slots");
        }
    }
}

/// Others write more quickly than the SSD flushes: whenever a batch is chosen, something in the open set is not durable yet.
#[test]
fn a_flush_that_promises_the_origin_does_not_wait_for_what_is_not_durable_yet() {
    for (set_slots, sets) in [(64, 64), (256, 64), (2_048, 16)] {
        for micros in [200, 100, 50, 20] {
            let mut scenario = promising_with_sets(set_slots, sets);
            let mut written = 0;
            let mut write = |scenario: &mut Scenario| {
                scenario.send_write(scenario.block(1_000 + written * 7_919 % 100_000), false);
                written += 1;
                scenario.advance(Duration::from_micros(micros));
            };
            (0..3).for_each(|_| write(&mut scenario));
            scenario.send_write(scenario.block(5), false);
            let (flush, began) = (scenario.send_flush(), scenario.simulation.now());
            while !scenario.is_answered(flush) {
                write(&mut scenario);
                let took = scenario.simulation.now().since(began);
                assert!(took < Duration::from_millis(60), "sets of {set_slots} slots, a write each {micros} us");
            }
        }
    }
}

#[test]
fn no_more_is_dirty_than_a_flush_can_wait_for() {
    let mut scenario = Scenario::with(|plan| {
        plan.config.mode = Some(Mode::WriteThrough);
        plan.config.destage_atoms = 4 * 8;
    });
    settle(&mut scenario);
    scenario.hold(Zone::Origin);
    let writes: Vec<_> = (0..12).map(|block| scenario.send_write(scenario.block(block), false).0).collect();
    scenario.run_until_quiet();
    assert_eq!(writes.iter().filter(|&&id| scenario.is_answered(id)).count(), 8, "two batches of four blocks");
    scenario.release(Zone::Origin);
    for id in writes {
        scenario.wait(id).expect("a write");
    }
    assert!(scenario.snapshot().counters.waits.iter().any(|(reason, count)| reason.name() == "home" && count > 0));
}

#[test]
fn a_read_only_cache_keeps_what_was_read_and_passes_writes_on() {
    let mut scenario = in_mode(Mode::ReadOnly);
    scenario.read(scenario.block(7)).expect("it is on the origin");
    let new = scenario.write(5);
    assert_eq!(on_origin(&scenario, 5, &new), [true, false]);
    scenario.flush();
    assert_eq!(on_origin(&scenario, 5, &new), [true, true]);
    let snapshot = scenario.snapshot();
    assert_eq!((snapshot.live_slots, snapshot.dirty_slots), (1, 0), "only what was read");
    assert_eq!(snapshot.counters.through_logged_blocks, 0, "nothing of it is put into the log");
}

/// Clean slots that died just before the switch are not known to the writes that go past the log from now on.
#[test]
fn a_switch_to_read_only_never_shows_a_clean_copy_that_died_before_it() {
    let mut scenario = Scenario::new();
    scenario.read(scenario.block(5)).expect("it is on the origin");
    scenario.flush();
    // The clean copy of block 5 dies in the open group: a crash would bring it back.
    let middle = scenario.write(5);
    scenario.trim(scenario.block(5));
    scenario.hold_flush(DeviceId::Cache);
    scenario.simulation.switch(Mode::ReadOnly);
    let (write, new) = scenario.send_write(scenario.block(5), false);
    scenario.run_until_quiet();
    assert!(!scenario.is_answered(write) || on_origin(&scenario, 5, &middle) == [false, false]);
    scenario.release_flush(DeviceId::Cache);
    scenario.wait(write).expect("a write");
    scenario.flush();
    scenario.power_cut(Survive::None);
    scenario.expect(5, &new);
}

#[test]
fn a_switch_is_recorded_only_when_everything_flushed_is_home() {
    let mut scenario = Scenario::new();
    let old = scenario.write(5);
    scenario.flush();
    scenario.hold(Zone::Origin);
    scenario.simulation.switch(Mode::WriteThrough);
    scenario.run_until_quiet();
    let view = scenario.simulation.engine.mode();
    assert_eq!((view.wanted, view.recorded, view.is_switching), (Mode::WriteThrough, Mode::WriteBack, true));
    assert!(!scenario.simulation.may_lose_cache());
    scenario.release(Zone::Origin);
    scenario.switch(Mode::WriteThrough);
    assert!(scenario.simulation.may_lose_cache());
    scenario.lose_cache(Survive::None);
    scenario.expect(5, &old);
}

#[test]
fn on_the_way_to_write_through_a_flush_does_not_wait_for_all_that_is_dirty() {
    let mut scenario = Scenario::with(|plan| plan.config.destage_atoms = 4 * 8);
    for block in 0..40 {
        scenario.write(block);
    }
    scenario.flush();
    scenario.hold(Zone::Origin);
    scenario.simulation.switch(Mode::WriteThrough);
    scenario.flush();
    assert!(scenario.snapshot().mode.is_switching && scenario.snapshot().dirty_slots > 0);
    scenario.release(Zone::Origin);
    scenario.switch(Mode::WriteThrough);
    assert_eq!(scenario.snapshot().dirty_slots, 0);
}

/// However much is written meanwhile.
#[test]
fn a_switch_to_write_through_ends_under_a_stream_of_writes() {
    let mut scenario = Scenario::with(|plan| plan.config.destage_atoms = 4 * 8);
    for block in 0..60 {
        scenario.write(block);
    }
    scenario.simulation.switch(Mode::WriteThrough);
    let mut written = 0;
    while scenario.snapshot().mode.is_switching {
        scenario.write(written % 60);
        written += 1;
        assert!(written < 5_000, "a switch that never ends: {:?}", scenario.snapshot().dirty_slots);
    }
}

/// Each FLUSH would put into the log what went past it, where it is owed to the origin a second time.
#[test]
fn a_switch_to_read_only_ends_under_writes_that_are_flushed() {
    let mut plan = plan_for(Geometry { sets: 64, volume_atoms: 8 * 512, ..Scenario::new().geometry() });
    plan.config.destage_atoms = 4 * 8;
    let mut scenario = Scenario::of(plan);
    for block in 0..300 {
        scenario.write(block);
    }
    scenario.flush();
    scenario.simulation.switch(Mode::ReadOnly);
    let (mut most, mut rounds) = (0, 0);
    while scenario.snapshot().mode.is_switching {
        let blocks: Vec<u64> = (0..8).map(|at| (rounds * 8 + at) * 37 % 512).collect();
        let writes: Vec<_> = blocks.iter().map(|&block| scenario.send_write(scenario.block(block), false).0).collect();
        writes.into_iter().for_each(|write| _ = scenario.wait(write).expect("a write"));
        scenario.flush();
        most = most.max(scenario.snapshot().dirty_slots);
        rounds += 1;
        assert!(rounds < 5_000, "a switch that never ends: {} dirty", scenario.snapshot().dirty_slots);
    }
    assert!(most <= 310, "{most} dirty meanwhile");
}

#[test]
fn write_back_is_recorded_before_the_first_flush_that_promises_no_more() {
    let mut scenario = in_mode(Mode::WriteThrough);
    scenario.hold(Zone::Superblock);
    scenario.simulation.switch(Mode::WriteBack);
    let new = scenario.write(5);
    scenario.flush();
    assert_eq!(on_origin(&scenario, 5, &new), [true, true], "not recorded yet");
    scenario.release(Zone::Superblock);
    scenario.switch(Mode::WriteBack);
    let newer = scenario.write(6);
    scenario.flush();
    assert_eq!(on_origin(&scenario, 6, &newer), [false, false]);
}

/// A crash after every device write of a switch there and back: the mode that is found is one that was kept.
#[test]
fn a_crash_at_any_step_of_a_switch_leaves_a_mode_that_was_kept() {
    for mode in [Mode::WriteThrough, Mode::ReadOnly] {
        let mut step = 0;
        loop {
            let mut scenario = Scenario::new();
            let data: Vec<Stamps> = (0..6).map(|block| scenario.write(block)).collect();
            scenario.flush();
            scenario.simulation.switch(mode);
            let mut ended = false;
            for _ in 0..step {
                ended |= !scenario.simulation.is_busy();
                if ended {
                    break;
                }
                scenario.step();
            }
            let found = scenario.simulation.engine.mode().recorded;
            if scenario.simulation.may_lose_cache() {
                assert!(found.is_home());
                scenario.lose_cache(Survive::None);
            } else {
                scenario.power_cut(Survive::Random);
                // Without a mode in the configuration the recorded one goes on.
                let view = scenario.simulation.engine.mode();
                assert!(!found.is_home() || view.wanted == mode, "{found} was recorded, and {view:?} goes on");
            }
            for (block, data) in data.iter().enumerate() {
                scenario.expect(block as u64, data);
            }
            if ended {
                assert!(step > 10);
                break;
            }
            step += 1;
        }
    }
}

#[test]
fn the_recorded_mode_goes_on_and_a_configured_one_wins() {
    let mut scenario = Scenario::new();
    scenario.switch(Mode::WriteThrough);
    scenario.stop();
    scenario.simulation.abandon();
    scenario.recover();
    assert_eq!(scenario.simulation.engine.mode().wanted, Mode::WriteThrough);
    let new = scenario.write(5);
    scenario.flush();
    assert_eq!(on_origin(&scenario, 5, &new), [true, true]);
    scenario.simulation.plan.config.mode = Some(Mode::WriteBack);
    scenario.kill();
    let view = scenario.simulation.engine.mode();
    assert_eq!((view.wanted, view.recorded, view.is_switching), (Mode::WriteBack, Mode::WriteBack, false));
}

#[test]
fn a_mode_asked_for_while_the_engine_recovers_is_not_forgotten() {
    let mut scenario = Scenario::new();
    scenario.write(5);
    scenario.flush();
    scenario.stop();
    scenario.simulation.abandon();
    scenario.begin_recovery();
    assert_eq!(*scenario.simulation.engine.phase(), Phase::Recovering);
    scenario.simulation.switch(Mode::WriteThrough);
    scenario.until_serving();
    scenario.switch(Mode::WriteThrough);
    assert_eq!(scenario.snapshot().dirty_slots, 0);
}

#[test]
fn a_stop_in_write_through_takes_everything_home() {
    let mut scenario = in_mode(Mode::WriteThrough);
    let new = scenario.write(5);
    scenario.stop();
    assert_eq!(on_origin(&scenario, 5, &new), [true, true], "what was acknowledged is not on the SSD alone");
}

/// It is on the SSD: a stop is not held up by an origin that does not come back.
#[test]
fn a_stop_in_write_through_does_not_wait_for_ever() {
    let mut scenario = in_mode(Mode::WriteThrough);
    let new = scenario.write(5);
    scenario.origin_goes();
    scenario.stop();
    assert_eq!(scenario.snapshot().dirty_slots, 1);
    scenario.origin_comes_back(true);
    scenario.simulation.abandon();
    scenario.recover();
    scenario.expect(5, &new);
}

/// What went past the log does not fit into it before clean sets are dropped.
#[test]
fn a_stop_in_read_only_without_its_origin_makes_room_for_what_went_there() {
    let mut plan = plan_for(Geometry { volume_atoms: 8 * 512, ..Scenario::new().geometry() });
    plan.config.mode = Some(Mode::ReadOnly);
    let mut scenario = Scenario::of(plan);
    settle(&mut scenario);
    // No two beside each other: what is read in order is not kept.
    for block in 0..300 {
        scenario.read(scenario.block(block * 37 % 512)).expect("a read");
    }
    let data: Vec<Stamps> = (0..90).map(|block| scenario.write(block)).collect();
    let before = scenario.snapshot();
    assert!(u64::from(before.free_sets) * 8 < 90, "{} sets are free", before.free_sets);
    scenario.origin_goes();
    let began = scenario.simulation.now();
    scenario.stop();
    assert!(scenario.simulation.now().since(began) < Duration::from_secs(60));
    scenario.origin_comes_back(true);
    scenario.simulation.abandon();
    scenario.recover();
    data.iter().enumerate().for_each(|(block, data)| scenario.expect(block as u64, data));
}

#[test]
fn a_dirty_block_that_is_lost_fails_the_next_flush() {
    let mut scenario = in_mode(Mode::WriteThrough);
    let new = scenario.write(5);
    scenario.hold_flush(DeviceId::Origin);
    let place = scenario.places(stamps(&new)[0])[0];
    scenario.rot(place);
    scenario.release_flush(DeviceId::Origin);
    assert_eq!(scenario.try_flush(), Err(RequestError::Io));
    scenario.flush();
    assert_eq!(scenario.read(scenario.block(5)), Err(RequestError::Io));
}

// --- detach ---

#[test]
fn a_detached_cache_leaves_everything_on_the_origin_and_is_refused() {
    let mut scenario = Scenario::new();
    let data: Vec<Stamps> = (0..6).map(|block| scenario.write(block)).collect();
    scenario.zero(scenario.blocks(20, 4));
    scenario.detach();
    for (block, data) in data.iter().enumerate() {
        assert_eq!(on_origin(&scenario, block as u64, data), [true, true]);
    }
    assert!(scenario.on_origin(20)[1].iter().all(|&stamp| stamp == 0));
    scenario.simulation.abandon();
    let damage = scenario.recover_expect_refusal();
    assert!(damage.iter().any(|damage| damage.what.contains("detached")), "{damage:?}");
}

#[test]
fn a_cache_on_its_way_out_takes_no_writes_and_gives_reads() {
    let mut scenario = Scenario::new();
    let old = scenario.write(5);
    scenario.hold(Zone::Origin);
    scenario.simulation.control(Control::Detach);
    let (write, _) = scenario.send_write(scenario.block(6), false);
    assert_eq!(scenario.wait(write), Err(RequestError::Shutdown));
    scenario.expect(5, &old);
    scenario.simulation.control(Control::CancelDetach);
    scenario.release(Zone::Origin);
    scenario.write(6);
    scenario.flush();
}

#[test]
fn a_crash_at_any_step_of_a_detach_loses_nothing() {
    let mut step = 0;
    loop {
        let mut scenario = Scenario::new();
        let data: Vec<Stamps> = (0..6).map(|block| scenario.write(block)).collect();
        scenario.flush();
        scenario.simulation.control(Control::Detach);
        for _ in 0..step {
            if *scenario.simulation.engine.phase() != Phase::Stopped {
                scenario.step();
            }
        }
        let ended = *scenario.simulation.engine.phase() == Phase::Stopped;
        scenario.crash(tidegate_sim::world::Crash::Power { cache: Survive::Random, origin: Survive::None });
        scenario.simulation.restart();
        while !matches!(scenario.simulation.engine.phase(), Phase::Serving | Phase::Refused) {
            scenario.step();
        }
        let is_refused = *scenario.simulation.engine.phase() == Phase::Refused;
        assert!(is_refused || !ended, "what was detached stays so");
        for (block, data) in data.iter().enumerate() {
            if is_refused {
                assert!(on_origin(&scenario, block as u64, data)[1], "detached before block {block} was home");
            } else {
                scenario.expect(block as u64, data);
            }
        }
        if ended {
            assert!(step > 8, "{step} steps");
            return;
        }
        step += 1;
    }
}

#[test]
fn a_stop_at_any_step_of_a_detach_leaves_the_cache_attached_unless_everything_is_home() {
    for step in 0.. {
        let mut scenario = Scenario::new();
        let data: Vec<Stamps> = (0..6).map(|block| scenario.write(block)).collect();
        scenario.simulation.control(Control::Detach);
        for _ in 0..step {
            if *scenario.simulation.engine.phase() != Phase::Stopped {
                scenario.step();
            }
        }
        let ended = *scenario.simulation.engine.phase() == Phase::Stopped;
        scenario.stop();
        scenario.simulation.abandon();
        scenario.simulation.restart();
        while !matches!(scenario.simulation.engine.phase(), Phase::Serving | Phase::Refused) {
            scenario.step();
        }
        let is_refused = *scenario.simulation.engine.phase() == Phase::Refused;
        assert!(is_refused || !ended, "what was detached stays so");
        assert!(!is_refused || step > 3, "nothing can be home after {step} steps");
        for (block, data) in data.iter().enumerate() {
            if is_refused {
                assert_eq!(on_origin(&scenario, block as u64, data), [true, true], "detached before block {block} was home");
            } else {
                scenario.expect(block as u64, data);
            }
        }
        if ended {
            return;
        }
    }
}

#[test]
fn writes_in_flight_when_a_detach_begins_go_home_too() {
    let mut scenario = Scenario::new();
    scenario.hold(Zone::Data);
    let (write, new) = scenario.send_write(scenario.block(5), false);
    scenario.simulation.control(Control::Detach);
    scenario.run_until_quiet();
    scenario.release(Zone::Data);
    scenario.wait(write).expect("it was taken before");
    scenario.detach();
    assert_eq!(on_origin(&scenario, 5, &new), [true, true]);
    assert!(scenario.noted().iter().filter(is_origin_write).count() > 0);
}

// --- the SSD fails in service ---

#[test]
fn a_flush_that_waits_for_the_origin_goes_on_without_the_cache() {
    for mode in [Mode::WriteThrough, Mode::ReadOnly] {
        let mut scenario = in_mode(mode);
        let flushed = scenario.write(5);
        scenario.flush();
        scenario.hold(Zone::Origin);
        let (write, pinned) = scenario.send_write(scenario.block(6), false);
        let flush = scenario.send_flush();
        scenario.run_until_quiet();
        // In read-only the write is still on its way: the FLUSH has nothing to wait for.
        assert_eq!(scenario.is_answered(flush), mode == Mode::ReadOnly);
        scenario.cache_goes();
        scenario.release(Zone::Origin);
        scenario.wait(write).expect("the log took it, or the origin does");
        scenario.wait(flush).expect("what is pinned in memory goes to the origin");
        scenario.expect(5, &flushed);
        scenario.expect(6, &pinned);
        scenario.flush();
        assert_eq!(on_origin(&scenario, 6, &pinned), [true, true], "{mode:?}");
    }
}

/// Seed 4746175 of the swarm: that mode was not recorded yet, and was not wanted any more when the SSD had failed.
#[test]
fn a_write_with_fua_that_only_the_lost_cache_had_fails_whatever_the_mode_is_by_then() {
    for is_write_back in [false, true] {
        let mut scenario = Scenario::with(|_| {});
        scenario.flush();
        scenario.hold(Zone::Superblock);
        scenario.simulation.switch(Mode::WriteThrough);
        scenario.run_until_quiet();
        scenario.hold(Zone::Origin);
        let (write, _) = scenario.send_write(scenario.block(7), true);
        // It is durable on the SSD, and memory has let go of it.
        scenario.advance(Duration::from_secs(5));
        assert!(!scenario.is_answered(write), "it waits for the origin");
        scenario.hold_host(false);
        scenario.cache_goes();
        scenario.send_read(scenario.block(7));
        scenario.run_until_quiet();
        if is_write_back {
            scenario.simulation.switch(Mode::WriteBack);
            scenario.run_until_quiet();
        }
        scenario.host_writes();
        scenario.release(Zone::Origin);
        scenario.wait(write).expect_err("nobody has what it has written");
    }
}

#[test]
fn a_flush_whose_blocks_only_the_lost_cache_had_fails_and_later_ones_do_not() {
    let mut scenario = in_mode(Mode::WriteThrough);
    scenario.write(7);
    // Destaging cannot read it, and the engine's own flush lets go of the memory.
    scenario.hold(Zone::Data);
    scenario.advance(Duration::from_secs(5));
    let flush = scenario.send_flush();
    scenario.run_until_quiet();
    scenario.cache_goes();
    scenario.release(Zone::Data);
    scenario.wait(flush).expect_err("nobody has what it covers");
    assert_eq!(scenario.read(scenario.block(7)), Err(RequestError::Io), "never the older contents");
    let newer = scenario.write(7);
    scenario.flush();
    scenario.expect(7, &newer);
    assert_eq!(on_origin(&scenario, 7, &newer), [true, true]);
}

/// Nothing of it is lost: what it zeroes is known in memory, and what lies beside that in its first block it does not touch.
#[test]
fn a_trim_with_fua_beside_what_only_the_lost_cache_had_does_not_fail() {
    let mut scenario = in_mode(Mode::WriteThrough);
    scenario.hold(Zone::Origin);
    let (_write, _) = scenario.send_write(scenario.block(7), false);
    scenario.advance(Duration::from_secs(5));
    let block = scenario.block(7);
    let trim = scenario.send(tidegate_engine::block::Span::new(block.start + 4, block.atoms + 4), Command::Trim { fua: true });
    scenario.advance(Duration::from_secs(5));
    assert!(!scenario.is_answered(trim), "it waits for the origin");
    scenario.hold_host(false);
    scenario.cache_goes();
    scenario.send_read(scenario.block(7));
    scenario.run_until_quiet();
    scenario.host_writes();
    scenario.release(Zone::Origin);
    scenario.wait(trim).expect("nobody has lost what it has zeroed");
}

//! Devices that fail: a sector, for a while, or for good. What each fault may cost, and that it costs no more.

use tidegate_engine::block::Span;
use tidegate_engine::op::Zone;
use tidegate_engine::probe::Health;
use tidegate_engine::request::RequestError;
use tidegate_engine::time::Duration;
use tidegate_sim::back::volatile::Survive;
use tidegate_sim::scenario::Scenario;
use tidegate_sim::world::Crash;

// --- the cache is lost in service ---

#[test]
fn a_lost_cache_costs_only_what_was_dirty_and_never_shows_older_contents() {
    let mut scenario = Scenario::new();
    let (clean, saved) = (scenario.write(1), scenario.write(2));
    scenario.flush();
    scenario.drain();
    scenario.write(3);
    scenario.flush();
    scenario.cache_goes();
    // The engine learns it from this read.
    assert_eq!(scenario.read(scenario.block(3)), Err(RequestError::Io));
    scenario.until_degraded();
    scenario.expect(1, &clean);
    scenario.expect(2, &saved);
    scenario.expect(4, &scenario.first(4));
    assert_eq!(scenario.read(scenario.block(3)), Err(RequestError::Io), "the origin's older contents are never shown");
    let newer = scenario.write(3);
    scenario.expect(3, &newer);
    scenario.flush();
    assert_eq!(scenario.on_origin(3)[1], newer.stamps().collect::<Vec<_>>());
}

#[test]
fn what_was_acknowledged_and_not_flushed_is_saved_from_memory() {
    let mut scenario = Scenario::new();
    let old = scenario.write(5);
    scenario.flush();
    let whole = scenario.write(5);
    let part = scenario.write_span(Span::new(50, 3));
    scenario.cache_goes();
    scenario.flush();
    assert_eq!(scenario.snapshot().health, Health::Degraded);
    scenario.expect(5, &whole);
    assert_ne!(old.stamps().collect::<Vec<_>>(), whole.stamps().collect::<Vec<_>>());
    assert_eq!(scenario.read(Span::new(50, 3)), Ok(part.stamps().collect()));
    assert_eq!(scenario.on_origin(5)[1], whole.stamps().collect::<Vec<_>>(), "a FLUSH without the cache is one of the origin");
    assert_eq!(scenario.snapshot().dirty_slots, 0);
    assert_eq!(scenario.simulation.engine.at_risk().count(), 0);
}

#[test]
fn a_write_in_flight_when_the_cache_goes_is_acknowledged_by_the_origin() {
    let mut scenario = Scenario::new();
    scenario.hold(Zone::Data);
    let (write, data) = scenario.send_write(scenario.blocks(8, 4), true);
    scenario.cache_goes();
    scenario.release(Zone::Data);
    scenario.wait(write).expect("it went to the origin");
    let on_origin: Vec<u64> = (8..12).flat_map(|block| scenario.on_origin(block)[1].clone()).collect();
    assert_eq!(on_origin, data.stamps().collect::<Vec<_>>(), "with FUA: durable there");
}

#[test]
fn nothing_is_acknowledged_without_the_cache_before_the_host_knows() {
    let mut scenario = Scenario::new();
    scenario.hold_host(false);
    scenario.write(1);
    scenario.cache_goes();
    let flush = scenario.send_flush();
    let (write, _) = scenario.send_write(scenario.block(2), false);
    let (fua, _) = scenario.send_write(scenario.block(3), true);
    scenario.run_until_quiet();
    for request in [flush, write, fua] {
        assert!(!scenario.is_answered(request));
    }
    scenario.host_writes();
    for request in [flush, write, fua] {
        scenario.wait(request).expect("the host knows");
    }
}

#[test]
fn an_ssd_that_missed_degraded_writes_is_refused() {
    let mut scenario = Scenario::new();
    let kept = scenario.write(1);
    scenario.write(2);
    scenario.flush();
    scenario.cache_goes();
    scenario.until_degraded_by_writing(3);
    let newer = scenario.write(1);
    scenario.flush();
    assert_ne!(kept.stamps().collect::<Vec<_>>(), newer.stamps().collect::<Vec<_>>());
    let lost = scenario.simulation.scene.host.lost().to_vec();
    assert_eq!(lost, [Span::new(8, 24)], "the host lists what only that cache had, or was to have");
    // The power comes back, and with it the SSD and its older blocks 1 and 2.
    scenario.power_cut(Survive::All);
    scenario.expect(1, &newer);
    scenario.drain();
    assert_eq!(scenario.on_origin(1)[1], newer.stamps().collect::<Vec<_>>());
    assert_eq!(scenario.on_origin(2)[1], scenario.first(2).stamps().collect::<Vec<_>>(), "given up, and said so");
}

#[test]
fn an_ssd_that_failed_and_missed_nothing_may_come_back() {
    let mut scenario = Scenario::new();
    scenario.hold_host(true);
    let data = scenario.write(2);
    scenario.flush();
    scenario.cache_goes();
    let (write, _) = scenario.send_write(scenario.block(2), false);
    scenario.run_until_quiet();
    scenario.host_writes();
    assert_eq!(scenario.wait(write), Err(RequestError::Io), "nobody could write it down");
    assert_eq!(scenario.try_flush(), Err(RequestError::Io));
    scenario.expect(9, &scenario.first(9));
    scenario.power_cut(Survive::All);
    scenario.expect(2, &data);
}

#[test]
fn a_host_that_failed_is_asked_again() {
    let mut scenario = Scenario::new();
    scenario.hold_host(true);
    scenario.cache_goes();
    let (write, _) = scenario.send_write(scenario.block(2), false);
    scenario.run_until_quiet();
    scenario.host_writes();
    assert_eq!(scenario.wait(write), Err(RequestError::Io));
    scenario.hold_host(false);
    scenario.simulation.scene.host.held = false;
    scenario.advance(Duration::from_secs(5));
    assert_eq!(scenario.snapshot().health, Health::Degraded);
    scenario.write(2);
    scenario.flush();
}

#[test]
fn an_ssd_that_takes_no_writes_any_more_loses_nothing() {
    let mut scenario = Scenario::new();
    let flushed: Vec<_> = (0..20).map(|block| scenario.write(block)).collect();
    scenario.zero(scenario.blocks(30, 4));
    scenario.flush();
    let later = scenario.write(3);
    scenario.cache_wears_out();
    let newest = scenario.write(7);
    assert_eq!(scenario.snapshot().health, Health::Degraded);
    assert!(scenario.simulation.now() > tidegate_engine::time::Instant(20_000_000_000), "only after 20 s of failures");
    // What the SSD still gives goes home by itself.
    scenario.advance(Duration::from_secs(120));
    scenario.flush();
    assert_eq!((scenario.snapshot().dirty_slots, scenario.snapshot().zero_ranges), (0, 0));
    for block in 0..20 {
        let expected = match block {
            3 => &later,
            7 => &newest,
            _ => &flushed[block as usize],
        };
        scenario.expect(block, expected);
        assert_eq!(scenario.on_origin(block)[1], expected.stamps().collect::<Vec<_>>());
    }
    assert_eq!(scenario.on_origin(31)[1], [0; 8]);
}

#[test]
fn zeroes_and_trims_without_a_cache() {
    let mut scenario = Scenario::new();
    scenario.write(1);
    scenario.zero(scenario.blocks(4, 2));
    scenario.flush();
    scenario.cache_goes();
    // Under the zeros that only memory knows of.
    let part = scenario.write_span(Span::new(33, 2));
    scenario.zero(scenario.blocks(1, 2));
    scenario.trim(scenario.blocks(10, 2));
    scenario.flush();
    assert_eq!(scenario.read(scenario.blocks(1, 2)), Ok(vec![0; 16]));
    assert_eq!(scenario.read(Span::new(33, 2)), Ok(part.stamps().collect()));
    assert_eq!(scenario.on_origin(5)[1], [0; 8]);
    assert_eq!(scenario.read(Span::new(35, 5)), Ok(vec![0; 5]));
}

#[test]
fn a_stop_without_the_cache_leaves_everything_on_the_origin() {
    let mut scenario = Scenario::new();
    let saved = scenario.write(1);
    scenario.cache_goes();
    let through = scenario.write(2);
    scenario.stop();
    for (block, data) in [(1, &saved), (2, &through)] {
        assert_eq!(scenario.on_origin(block)[1], data.stamps().collect::<Vec<_>>());
    }
}

#[test]
fn flushes_that_fail_for_ever_end_in_service_without_the_cache() {
    let mut scenario = Scenario::new();
    let data = scenario.write(1);
    scenario.simulation.scene.cache.rates.flush_error = 1_000_000;
    assert_eq!(scenario.try_flush(), Err(RequestError::Io));
    scenario.advance(Duration::from_secs(60));
    assert_eq!(scenario.snapshot().health, Health::Degraded);
    scenario.flush();
    assert_eq!(scenario.on_origin(1)[1], data.stamps().collect::<Vec<_>>());
}

#[test]
fn a_controller_that_resets_for_ten_seconds_costs_only_the_time() {
    let mut scenario = Scenario::new();
    scenario.simulation.scene.cache.rates.write_error = 1_000_000;
    let (write, data) = scenario.send_write(scenario.block(1), false);
    scenario.advance(Duration::from_secs(10));
    assert!(!scenario.is_answered(write));
    scenario.simulation.scene.cache.rates.write_error = 0;
    scenario.wait(write).expect("it has come back");
    scenario.flush();
    assert_eq!(scenario.snapshot().health, Health::Whole);
    scenario.power_cut(Survive::None);
    scenario.expect(1, &data);
}

#[test]
fn both_devices_gone_stall_and_then_fail_and_the_stop_says_what_is_lost() {
    let mut scenario = Scenario::with(|plan| plan.config.stall_timeout = Duration::from_secs(30));
    scenario.write(1);
    scenario.cache_goes();
    scenario.origin_goes();
    let (write, _) = scenario.send_write(scenario.block(2), false);
    let flush = scenario.send_flush();
    scenario.advance(Duration::from_secs(20));
    assert!(!scenario.is_answered(write) && !scenario.is_answered(flush));
    scenario.advance(Duration::from_secs(20));
    assert_eq!((scenario.wait(write), scenario.wait(flush)), (Err(RequestError::Io), Err(RequestError::Io)));
    scenario.simulation.control(tidegate_engine::Control::Stop);
    scenario.advance(Duration::from_secs(40));
    let damage = scenario.simulation.engine.damage();
    assert!(damage.iter().any(|damage| damage.fatal && damage.what.contains("8192 bytes")), "{damage:?}");
}

#[test]
fn a_crash_without_the_cache_keeps_what_was_flushed_without_it() {
    let mut scenario = Scenario::new();
    scenario.cache_goes();
    let data = scenario.write(1);
    scenario.flush();
    scenario.write(1);
    scenario.crash(Crash::Kill(Survive::None));
    scenario.recover();
    let read = scenario.read(scenario.block(1)).expect("it can be read");
    assert!(read.iter().zip(data.stamps()).all(|(read, old)| *read >= old));
}

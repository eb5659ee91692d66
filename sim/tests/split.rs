//! Split: part of a sequential write goes to the origin from the start. What it may never cost: a flushed write, a FLUSH that waits for a
//! slow origin, a write that fails because the origin does. In most of them a power cut is tried at every step.

use tidegate_engine::block::Span;
use tidegate_engine::cache::format::Geometry;
use tidegate_engine::cache::split::Legs;
use tidegate_engine::op::{DeviceId, Zone};
use tidegate_engine::probe::Health;
use tidegate_engine::time::Duration;
use tidegate_sim::back::fault::Fault;
use tidegate_sim::back::volatile::Survive;
use tidegate_sim::plan::Plan;
use tidegate_sim::scenario::{Scenario, plan, plan_for};
use tidegate_sim::stamp::Stamps;
use tidegate_sim::world::Crash;

/// Every write counts; legs of two blocks, the first of them at the origin.
fn with(change: impl FnOnce(&mut Plan)) -> Scenario {
    let mut plan = plan();
    plan.config.split = Some(Legs { proof: 0, home: 16 });
    change(&mut plan);
    let mut scenario = Scenario::of(plan);
    scenario.forget_noted();
    scenario
}

/// The same, with a power cut at every step.
fn tried() -> Scenario {
    let mut scenario = with(|_| {});
    scenario.crash_at_every_step();
    scenario
}

fn stamps(data: &Stamps) -> Vec<u64> {
    data.stamps().collect()
}

/// Device writes to this zone so far.
fn writes(scenario: &Scenario, zone: Zone) -> usize {
    scenario.noted().iter().filter(|op| op.zone == Some(zone) && op.writes).count()
}

fn power_cut_of_both(scenario: &mut Scenario) {
    scenario.crash(Crash::Power { cache: Survive::None, origin: Survive::None });
    scenario.recover();
}

#[test]
fn the_devices_take_turns_and_a_flush_covers_both() {
    let mut scenario = tried();
    let sent: Vec<_> = (0..8).map(|block| scenario.write(block)).collect();
    assert!(writes(&scenario, Zone::Origin) >= 3 && writes(&scenario, Zone::Data) >= 3);
    assert_eq!(scenario.snapshot().counters.split_blocks, writes(&scenario, Zone::Origin) as u64);
    (0..8).for_each(|block| scenario.expect(block, &sent[block as usize]));
    scenario.flush();
    power_cut_of_both(&mut scenario);
    (0..8).for_each(|block| scenario.expect(block, &sent[block as usize]));
}

#[test]
fn what_the_cache_has_something_of_goes_to_the_log() {
    let mut scenario = with(|_| {});
    (0..8).for_each(|block| drop(scenario.write(block)));
    scenario.flush();
    let is_home = |scenario: &Scenario, block| scenario.on_origin(block)[0] != stamps(&scenario.first(block));
    let logged: Vec<u64> = (0..8).filter(|&block| !is_home(&scenario, block)).collect();
    assert!((2..7).contains(&logged.len()), "{logged:?}");
    scenario.crash_at_every_step();
    scenario.forget_noted();
    for &block in logged.iter().cycle().take(12) {
        scenario.write(block);
    }
    assert_eq!((writes(&scenario, Zone::Origin), writes(&scenario, Zone::Data)), (0, 12), "it is overwritten where it is");
}

#[test]
fn a_write_that_the_origin_refuses_is_in_the_log() {
    let mut scenario = with(|_| {});
    scenario.fail_next(Zone::Origin, Fault::Error);
    let sent: Vec<_> = (0..4).map(|block| scenario.write(block)).collect();
    assert!(writes(&scenario, Zone::Data) >= 1);
    (0..4).for_each(|block| scenario.expect(block, &sent[block as usize]));
    scenario.flush();
    power_cut_of_both(&mut scenario);
    (0..4).for_each(|block| scenario.expect(block, &sent[block as usize]));
}

#[test]
fn an_origin_that_goes_away_in_a_leg_fails_no_write() {
    let mut scenario = with(|_| {});
    scenario.hold(Zone::Origin);
    let (write, data) = scenario.send_write(scenario.block(3), false);
    scenario.run_until_quiet();
    scenario.origin_goes();
    scenario.release(Zone::Origin);
    scenario.wait(write).expect("the log has it");
    let more: Vec<_> = (10..16).map(|block| scenario.write(block)).collect();
    scenario.flush();
    scenario.expect(3, &data);
    scenario.origin_comes_back(true);
    power_cut_of_both(&mut scenario);
    scenario.expect(3, &data);
    (10..16).for_each(|block| scenario.expect(block, &more[block as usize - 10]));
}

#[test]
fn a_flush_gives_a_flush_of_the_origin_a_moment_and_then_goes_without() {
    for comes in [true, false] {
        let mut scenario = with(|plan| plan.config.flush_age = Duration::from_secs(3_600));
        // So that a leg has ended and clients are known to send FLUSHes.
        scenario.write(20);
        scenario.flush();
        scenario.hold_flush(DeviceId::Origin);
        let sent: Vec<_> = (0..5).map(|block| scenario.write(block)).collect();
        let before = scenario.snapshot().counters.through_logged_blocks;
        let flush = scenario.send_flush();
        scenario.advance(Duration::from_millis(1));
        if comes {
            scenario.release_flush(DeviceId::Origin);
        }
        scenario.advance(Duration::from_millis(100));
        assert!(scenario.is_answered(flush), "with the origin's flush or without it");
        let logged = scenario.snapshot().counters.through_logged_blocks - before;
        assert_eq!(logged == 0, comes, "{logged} blocks into the log for it");
        power_cut_of_both(&mut scenario);
        (0..5).for_each(|block| scenario.expect(block, &sent[block as usize]));
    }
}

/// The SSD fails while a FLUSH waits for a flush of the origin, which says nothing of what is in the log.
#[test]
fn a_flush_of_the_origin_promises_nothing_of_a_log_that_has_failed() {
    let mut scenario = with(|plan| plan.config.flush_age = Duration::from_secs(1));
    scenario.write(20);
    scenario.flush();
    scenario.hold_flush(DeviceId::Origin);
    (0..5).for_each(|block| drop(scenario.write(block)));
    // Its own flush makes durable what the log has, which was promised to nobody.
    scenario.advance(Duration::from_secs(5));
    let flush = scenario.send_flush();
    scenario.hold_host(false);
    scenario.cache_goes();
    scenario.send_read(scenario.block(20));
    scenario.advance(Duration::from_millis(1));
    assert_eq!(scenario.snapshot().health, Health::Fencing);
    scenario.release_flush(DeviceId::Origin);
    scenario.advance(Duration::from_secs(1));
    assert!(!scenario.is_answered(flush), "nothing is answered before the host knows");
    scenario.host_writes();
    scenario.wait(flush).expect_err("a part of it is on the failed SSD only");
}

#[test]
fn a_write_that_has_to_be_durable_at_once_is_for_the_log() {
    let mut scenario = with(|_| {});
    for block in 0..6 {
        scenario.write_fua(block);
    }
    assert_eq!(writes(&scenario, Zone::Origin), 0);
}

#[test]
fn a_long_sequence_goes_on_when_no_set_is_free_and_others_get_room() {
    let geometry = Geometry { block_atoms: 8, set_slots: 64, sets: 16, journal_pages: 256, volume_atoms: 1 << 15, range_entries: 252 };
    let mut plan = plan_for(geometry);
    plan.config.split = Some(Legs { proof: 512, home: 256 });
    plan.config.window_bytes = 256 << 10;
    let mut scenario = Scenario::of(plan);
    scenario.forget_noted();
    let spans: Vec<Span> = (0..240).map(|i| Span::new(i * 128, 128)).collect();
    let sent: Vec<_> = spans.iter().map(|&span| scenario.write_span(span)).collect();
    let snapshot = scenario.snapshot();
    assert!(snapshot.counters.split_blocks > 2_000, "{} of 3,840 blocks", snapshot.counters.split_blocks);
    assert_eq!(snapshot.counters.destaged_blocks, 0, "it does not make the disk seek meanwhile");
    // Somebody else writes where nothing follows anything.
    let others: Vec<_> = (0..60).map(|i| scenario.write(3_900 + i * 37 % 100)).collect();
    assert_eq!(others.len(), 60);
    scenario.flush();
    power_cut_of_both(&mut scenario);
    for (&span, data) in spans.iter().zip(&sent) {
        assert_eq!(scenario.read(span), Ok(stamps(data)), "{span:?}");
    }
}

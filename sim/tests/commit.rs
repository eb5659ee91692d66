//! Commits at home: a small write that a FLUSH follows goes to an origin that is durable sooner than the SSD, and the FLUSH flushes that. What it
//! may never cost: a flushed write, a FLUSH that waits for a slow origin, a write that fails because the origin does, a disk that wakes. In most
//! of them a power cut is tried at every step.

use tidegate_engine::Mode;
use tidegate_engine::config::CommitHome;
use tidegate_engine::op::{DeviceId, Zone};
use tidegate_engine::payload::Payload;
use tidegate_engine::probe::Health;
use tidegate_engine::request::Command;
use tidegate_engine::spin::{Config, Drive, predictor::Kind};
use tidegate_engine::time::Duration;
use tidegate_sim::back::fault::Fault;
use tidegate_sim::back::model::{PowerState, Speed};
use tidegate_sim::back::volatile::Survive;
use tidegate_sim::plan::Plan;
use tidegate_sim::scenario::{Scenario, plan};
use tidegate_sim::stamp::Stamps;
use tidegate_sim::world::{Crash, stamps_of};

/// An origin as quick as a network volume: durable in a quarter of the time that the SSD takes.
const QUICK: Speed = Speed {
    read: Duration::from_micros(100),
    write: Duration::from_micros(50),
    flush: Duration::from_micros(50),
    atom: Duration(500),
    jitter: 0,
    spin_up: Duration::ZERO,
};

fn with(commit_home: CommitHome, change: impl FnOnce(&mut Plan)) -> Scenario {
    let mut plan = plan();
    plan.config.commit_home = commit_home;
    plan.speeds[1] = QUICK;
    change(&mut plan);
    let mut scenario = Scenario::of(plan);
    scenario.forget_noted();
    scenario
}

/// Two writes of three go home, whatever it costs: the first, the second, and not the third.
fn always() -> Scenario {
    with(CommitHome::Always, |_| {})
}

/// The same, with a power cut at every step.
fn tried() -> Scenario {
    let mut scenario = always();
    scenario.crash_at_every_step();
    scenario
}

/// What is home is found by measuring.
fn judged(change: impl FnOnce(&mut Plan)) -> Scenario {
    with(CommitHome::Judged, change)
}

/// 512 blocks, on an origin that takes so long for each atom.
fn spacious(plan: &mut Plan, atom: Duration) {
    plan.config.geometry.volume_atoms = 512 * 8;
    plan.limits[1].atoms = 512 * 8;
    plan.speeds[1].atom = atom;
}

fn writes(scenario: &Scenario, zone: Zone) -> usize {
    scenario.noted().iter().filter(|op| op.zone == Some(zone) && op.writes).count()
}

fn flushes(scenario: &Scenario, device: DeviceId) -> usize {
    scenario.noted().iter().filter(|op| op.zone.is_none() && op.word.is_none() && op.device == device).count()
}

fn commits(scenario: &Scenario) -> u64 {
    scenario.snapshot().counters.commit_blocks
}

fn logged(scenario: &Scenario) -> u64 {
    scenario.snapshot().counters.through_logged_blocks
}

/// Writes with a FLUSH after each.
fn commit(scenario: &mut Scenario, blocks: impl IntoIterator<Item = u64>) -> Vec<(u64, Stamps)> {
    let one = |block| {
        let data = scenario.write(block);
        scenario.flush();
        (block, data)
    };
    blocks.into_iter().map(one).collect()
}

/// Everything volatile is gone, and what was promised is not.
fn survives(scenario: &mut Scenario, sent: &[(u64, Stamps)]) {
    scenario.crash(Crash::Power { cache: Survive::None, origin: Survive::None });
    scenario.recover();
    sent.iter().for_each(|(block, data)| scenario.expect(*block, data));
}

#[test]
fn a_commit_at_home_is_one_write_and_one_flush_of_the_origin() {
    let mut scenario = tried();
    let sent = commit(&mut scenario, [5, 9]);
    assert_eq!((writes(&scenario, Zone::Origin), flushes(&scenario, DeviceId::Origin)), (2, 2));
    assert_eq!((writes(&scenario, Zone::Data), writes(&scenario, Zone::Journal), flushes(&scenario, DeviceId::Cache)), (0, 0, 0));
    assert_eq!((commits(&scenario), logged(&scenario)), (2, 0));
    survives(&mut scenario, &sent);
}

#[test]
fn a_flush_covers_what_went_home_and_what_was_logged() {
    let mut scenario = tried();
    let sent: Vec<_> = (0..6).map(|block| (block, scenario.write(block))).collect();
    assert_eq!(commits(&scenario), 4);
    scenario.flush();
    survives(&mut scenario, &sent);
}

#[test]
fn what_is_written_again_and_again_at_home_stays_there() {
    let mut scenario = tried();
    let sent = commit(&mut scenario, [3, 3]);
    let other = commit(&mut scenario, [40]);
    let again = commit(&mut scenario, [3, 3]);
    assert_eq!((commits(&scenario), logged(&scenario)), (4, 0));
    drop(sent);
    survives(&mut scenario, &[other[0].clone(), again[1].clone()]);
}

#[test]
fn what_the_cache_has_something_of_is_committed_there() {
    let mut scenario = tried();
    commit(&mut scenario, [1, 2]);
    commit(&mut scenario, [7]);
    scenario.forget_noted();
    let sent = commit(&mut scenario, [7, 7]);
    assert_eq!((writes(&scenario, Zone::Origin), commits(&scenario)), (0, 2));
    // Clean, it is there as well.
    scenario.drain();
    scenario.forget_noted();
    commit(&mut scenario, [20]);
    let last = commit(&mut scenario, [7]);
    assert_eq!(writes(&scenario, Zone::Origin), 0);
    drop(sent);
    survives(&mut scenario, &last);
}

#[test]
fn an_origin_whose_flush_is_late_is_given_up_and_the_log_has_it() {
    for comes in [true, false] {
        let mut scenario = always();
        scenario.hold_flush(DeviceId::Origin);
        let data = scenario.write(4);
        let flush = scenario.send_flush();
        scenario.advance(Duration::from_millis(1));
        assert!(!scenario.is_answered(flush));
        if comes {
            scenario.release_flush(DeviceId::Origin);
        }
        scenario.advance(Duration::from_millis(100));
        assert!(scenario.is_answered(flush), "with the origin's flush or without it");
        assert_eq!(logged(&scenario), u64::from(!comes));
        survives(&mut scenario, &[(4, data)]);
    }
}

#[test]
fn every_flush_is_answered_while_the_origin_hangs() {
    let mut scenario = always();
    scenario.hold_flush(DeviceId::Origin);
    let mut sent = Vec::new();
    for block in 0..12 {
        let data = scenario.write(block);
        let flush = scenario.send_flush();
        scenario.advance(Duration::from_millis(100));
        assert!(scenario.is_answered(flush), "the FLUSH after block {block}");
        sent.push((block, data));
    }
    survives(&mut scenario, &sent);
}

/// The next operation of this zone fails, or the next flush of the origin.
fn failing(zone: Option<Zone>) -> Scenario {
    let mut scenario = always();
    match zone {
        Some(zone) => scenario.fail_next(zone, Fault::Error),
        None => scenario.fail_next_flush(DeviceId::Origin),
    }
    scenario
}

#[test]
fn an_origin_that_takes_no_write_or_no_flush_fails_nothing() {
    for fails in [Some(Zone::Origin), None] {
        let mut scenario = failing(fails);
        let sent = commit(&mut scenario, [0, 1, 2, 3, 4]);
        assert!(writes(&scenario, Zone::Data) >= 2, "what was refused is in the log");
        survives(&mut scenario, &sent);
    }
}

/// Whatever of it was still to go home is in the log by then: nothing is left whose success would tell.
#[test]
fn an_origin_that_has_failed_once_is_tried_again() {
    for fails in [Some(Zone::Origin), None] {
        let mut scenario = failing(fails);
        commit(&mut scenario, [0, 1]);
        scenario.advance(Duration::from_secs(30));
        let before = commits(&scenario);
        let sent = commit(&mut scenario, [8, 9, 10, 11]);
        assert!(commits(&scenario) > before + 1, "{fails:?}: {before}, {}", commits(&scenario));
        survives(&mut scenario, &sent);
    }
}

#[test]
fn an_origin_that_goes_away_before_the_flush_fails_nothing() {
    let mut scenario = always();
    let data = scenario.write(8);
    scenario.origin_goes();
    let flush = scenario.send_flush();
    scenario.advance(Duration::from_secs(1));
    assert!(scenario.is_answered(flush));
    let more = commit(&mut scenario, [10, 11, 12]);
    scenario.origin_comes_back(true);
    survives(&mut scenario, &[&[(8, data)], &more[..]].concat());
}

/// Nobody tells of it, and a read of something else is all that fails.
#[test]
fn an_origin_that_only_a_read_has_found_gone_is_not_taken_to_have_kept_what_it_took() {
    let mut forgot = 0;
    for seed in 0..8 {
        let mut scenario = with(CommitHome::Always, |plan| (plan.seed, plan.config.flush_age) = (seed, Duration::from_secs(5)));
        scenario.read(scenario.block(40)).expect("a read, behind the flush that the first one waits for");
        let data = scenario.write(8);
        assert_eq!(scenario.on_origin(8)[0], stamps_of(std::slice::from_ref(&data)), "at home, and not flushed");
        scenario.simulation.scene.origin.go_away();
        let read = scenario.send_read(scenario.block(30));
        scenario.advance(Duration::from_secs(1));
        assert!(scenario.is_answered(read));
        scenario.simulation.origin_comes_back_in_silence(true);
        forgot += u32::from(scenario.on_origin(8)[0] != stamps_of(std::slice::from_ref(&data)));
        // The origin is flushed for its age, and nothing is left to be told of by a FLUSH.
        scenario.advance(Duration::from_secs(10));
        scenario.flush();
        survives(&mut scenario, &[(8, data)]);
    }
    assert!(forgot > 0, "now and then the origin had forgotten it");
}

/// Nor are two reads that went there as one: each is asked for again by itself, and both find it back (seed 8500744).
#[test]
fn an_origin_that_only_reads_that_were_joined_have_found_gone_is_not_taken_to_have_kept_what_it_took() {
    let mut forgot = 0;
    for seed in 0..8 {
        let mut scenario = with(CommitHome::Always, |plan| {
            (plan.seed, plan.config.flush_age, plan.limits[1].depth) = (seed, Duration::from_secs(5), 1);
        });
        scenario.read(scenario.block(40)).expect("a read, behind the flush that the first one waits for");
        let data = scenario.write(8);
        let reads = [20, 30, 31].map(|block| scenario.block(block));
        let reads = scenario.send_at_once(reads.map(|span| (span, Command::Read)));
        scenario.wait(reads[0]).expect("the first keeps the others waiting");
        let last = scenario.noted().last().expect("they are on their way");
        assert_eq!((last.zone, last.span, last.ended), (Some(Zone::Origin), scenario.blocks(30, 2), None), "as one");
        scenario.simulation.scene.origin.go_away();
        scenario.simulation.fail_what_is_on_its_way();
        scenario.simulation.origin_comes_back_in_silence(true);
        forgot += u32::from(scenario.on_origin(8)[0] != stamps_of(std::slice::from_ref(&data)));
        scenario.wait(reads[1]).and(scenario.wait(reads[2])).expect("it is back");
        scenario.advance(Duration::from_secs(10));
        scenario.flush();
        survives(&mut scenario, &[(8, data)]);
    }
    assert!(forgot > 0, "now and then the origin had forgotten it");
}

/// The SSD fails while a FLUSH waits for a flush of the origin: what went home is all that there is.
#[test]
fn a_commit_at_home_outlives_an_ssd_that_fails_under_it() {
    let mut scenario = always();
    scenario.hold_flush(DeviceId::Origin);
    let data = scenario.write(4);
    let flush = scenario.send_flush();
    scenario.hold_host(false);
    scenario.cache_goes();
    scenario.send_write(scenario.block(30), false);
    scenario.advance(Duration::from_millis(1));
    scenario.release_flush(DeviceId::Origin);
    scenario.advance(Duration::from_millis(200));
    if scenario.snapshot().health == Health::Fencing {
        scenario.host_writes();
    }
    scenario.wait(flush).expect("the origin has it");
    scenario.expect(4, &data);
}

/// The zeros are on the origin, and their end is not durable: it would come back over what went home.
#[test]
fn a_flush_covers_what_has_gone_home_of_a_range_that_was_zeroed() {
    for trims in [false, true] {
        let mut scenario = tried();
        let (blocks, one) = (scenario.blocks(8, 8), scenario.block(20));
        if trims {
            scenario.trim(blocks)
        } else {
            scenario.zero(blocks)
        }
        scenario.flush();
        let above = commit(&mut scenario, [10]);
        assert_eq!(commits(&scenario), 0, "what lies over zeros is for the log");
        scenario.drain();
        // Unless the drain has made the end of the range durable, a FLUSH has to.
        let sent = commit(&mut scenario, [11, 12, 13]);
        assert!(commits(&scenario) > 0);
        scenario.zero(one);
        let last = commit(&mut scenario, [14]);
        survives(&mut scenario, &[above, sent, last].concat());
    }
}

/// What went home is zeroed or trimmed while its FLUSH waits.
#[test]
fn what_went_home_may_be_discarded_under_its_flush() {
    for trims in [false, true] {
        let mut scenario = always();
        scenario.hold_flush(DeviceId::Origin);
        let kept = scenario.write(4);
        scenario.write(5);
        let flush = scenario.send_flush();
        discard(&mut scenario, 5, trims);
        scenario.release_flush(DeviceId::Origin);
        scenario.wait(flush).expect("the origin is well");
        survives(&mut scenario, &[(4, kept)]);
    }
}

/// Nothing is left that the origin has to make durable: what has taken its place has to be, in the log.
#[test]
fn a_flush_covers_what_takes_the_place_of_all_that_went_home() {
    for how in 0..3 {
        let mut scenario = always();
        scenario.hold_flush(DeviceId::Origin);
        let older = scenario.write(5);
        let flush = scenario.send_flush();
        match how {
            0 | 1 => discard(&mut scenario, 5, how == 1),
            // The third one is for the log.
            _ => (0..2).for_each(|_| drop(scenario.write(5))),
        }
        scenario.run_until_quiet();
        assert!(scenario.is_answered(flush), "the origin is not needed for it any more");
        scenario.crash(Crash::Power { cache: Survive::None, origin: Survive::None });
        scenario.recover();
        let holds = scenario.read(scenario.block(5)).expect("it can be read");
        assert_ne!(holds, scenario.first(5).stamps().collect::<Vec<_>>(), "{how}: before {older:?}");
    }
}

fn discard(scenario: &mut Scenario, block: u64, trims: bool) {
    let span = scenario.block(block);
    if trims { scenario.trim(span) } else { scenario.zero(span) }
}

#[test]
fn only_the_promise_of_write_back_is_kept_at_home() {
    let mut scenario = tried();
    scenario.switch(Mode::WriteThrough);
    let sent = commit(&mut scenario, [0, 1, 2]);
    assert_eq!(commits(&scenario), 0);
    scenario.switch(Mode::WriteBack);
    let more = commit(&mut scenario, [3, 4, 5, 6]);
    assert!(commits(&scenario) > 0);
    survives(&mut scenario, &[sent, more].concat());
}

#[test]
fn an_origin_that_is_sooner_durable_is_found() {
    let mut scenario = judged(|_| {});
    let sent = commit(&mut scenario, 0..60);
    assert!(commits(&scenario) >= 54, "{} of 60", commits(&scenario));
    survives(&mut scenario, &sent);
}

/// Of twelve blocks, 48 KiB: another size than single ones, found by itself.
#[test]
fn a_large_commit_goes_home_as_a_small_one_does_and_outlives_the_same() {
    let mut scenario = judged(|plan| spacious(plan, Duration(50)));
    let large = |scenario: &mut Scenario, from: u64, count: u64| -> Vec<(u64, Stamps)> {
        let one = |i| {
            let data = scenario.write_span(scenario.blocks(from + i * 12, 12));
            scenario.flush();
            (0..12).map(|k| (from + i * 12 + k, data.slice(k * 8, 8))).collect::<Vec<_>>()
        };
        (0..count).flat_map(one).collect()
    };
    let mut sent = commit(&mut scenario, 0..20);
    let small = commits(&scenario);
    assert!(small >= 14, "{small} of 20");
    sent.extend(large(&mut scenario, 20, 12));
    let home = commits(&scenario) - small;
    assert!(home >= 9 * 12, "{home} of 144 blocks");
    // A power cut at every step of one more.
    scenario.crash_at_every_step();
    sent.extend(large(&mut scenario, 200, 2));
    assert!(scenario.crashes_tried() > 0);
    survives(&mut scenario, &sent);
}

/// An origin that is quick with little and slow with much.
#[test]
fn each_size_goes_where_it_is_sooner_durable() {
    // 30 us for each atom: a block takes 290 us there, twelve take 2.9 ms.
    let mut scenario = judged(|plan| spacious(plan, Duration(30_000)));
    commit(&mut scenario, 0..20);
    let small = commits(&scenario);
    assert!(small >= 14, "{small} of 20");
    for i in 0..15 {
        scenario.write_span(scenario.blocks(20 + i * 12, 12));
        scenario.flush();
        commit(&mut scenario, [240 + i]);
    }
    let home = commits(&scenario) - small;
    assert!((14..=15 + 12).contains(&home), "{home} blocks: the small ones, and one large one that was tried");
}

#[test]
fn a_disk_is_asked_for_one_block_and_written_nothing() {
    let mut scenario = judged(|plan| plan.speeds[1] = Speed { jitter: 0, ..Speed::DISK });
    commit(&mut scenario, 0..60);
    let asked = scenario.noted().iter().filter(|op| op.device == DeviceId::Origin).count();
    assert_eq!((commits(&scenario), asked), (0, 1));
}

#[test]
fn overlapping_commits_are_for_the_log() {
    let mut scenario = judged(|_| {});
    commit(&mut scenario, 0..10);
    let before = commits(&scenario);
    assert!(before > 0, "one at a time they go home");
    for _ in 0..20 {
        let all: Vec<_> = (10..42).map(|block| scenario.send_write(scenario.block(block), false).0).collect();
        let flushes: Vec<_> = (0..32).map(|_| scenario.send_flush()).collect();
        all.into_iter().chain(flushes).for_each(|id| drop(scenario.wait(id).expect("devices are well")));
    }
    assert!(commits(&scenario) <= before + 1, "of 640: {}", commits(&scenario) - before);
}

#[test]
fn an_origin_that_becomes_slow_is_left() {
    let mut scenario = judged(|_| {});
    let mut sent = commit(&mut scenario, 0..10);
    let before = commits(&scenario);
    scenario.hold_flush(DeviceId::Origin);
    sent.push((20, scenario.write(20)));
    let flush = scenario.send_flush();
    scenario.advance(Duration::from_millis(60));
    assert!(scenario.is_answered(flush));
    scenario.release_flush(DeviceId::Origin);
    sent.extend(commit(&mut scenario, 21..50));
    assert_eq!(commits(&scenario), before + 1);
    survives(&mut scenario, &sent);
}

#[test]
fn a_disk_that_stands_still_is_not_woken_for_a_commit() {
    let mut scenario = with(CommitHome::Always, |plan| {
        plan.config.spin = Some(Config { predictor: Kind::BreakEven, ..Config::new(Drive::DESKTOP) });
        plan.config.flush_age = Duration::from_millis(200);
        plan.config.max_dirty_age = Duration::from_secs(600);
        plan.speeds[1] = Speed { jitter: 0, spin_up: Duration::from_secs(7), ..QUICK };
    });
    scenario.advance(Duration::from_secs(40));
    let state = |scenario: &Scenario| scenario.simulation.scene.origin.model.state();
    assert_eq!(state(&scenario), PowerState::Standby);
    let sent = commit(&mut scenario, 0..6);
    assert_eq!((commits(&scenario), state(&scenario)), (0, PowerState::Standby));
    survives(&mut scenario, &sent);
}

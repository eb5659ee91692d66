//! A disk that stands still: who waits for it and who does not, what wakes it, and what becomes of one that does not wake.

use tidegate_engine::block::Span;
use tidegate_engine::cache::format::Geometry;
use tidegate_engine::op::{DeviceId, Spin, Zone};
use tidegate_engine::probe::Phase;
use tidegate_engine::request::Command;
use tidegate_engine::spin::{Cause, Config, Drive, Report, predictor::Kind};
use tidegate_engine::time::Duration;
use tidegate_engine::{Control, Mode};
use tidegate_sim::back::fault::Fault;
use tidegate_sim::back::model::{PowerState, Speed};
use tidegate_sim::back::volatile::Survive;
use tidegate_sim::plan::Plan;
use tidegate_sim::scenario::{Scenario, plan_for};
use tidegate_sim::world::Crash;

const SPIN_UP: Duration = Duration::from_secs(7);

/// 4,096 blocks before a cache of 64 sets of 8 slots; a disk that takes 7 s to wake, and is stopped after the break-even of 18.6 s: it may be
/// started so often that no start is kept for later.
fn scenario() -> Scenario {
    scenario_with(|_| {})
}

fn scenario_with(change: impl FnOnce(&mut Plan)) -> Scenario {
    let geometry = Geometry { block_atoms: 8, set_slots: 8, sets: 64, journal_pages: 256, volume_atoms: 32_768, range_entries: 252 };
    let mut plan = plan_for(geometry);
    plan.config.spin = Some(Config { predictor: Kind::BreakEven, per_hour: 100, ..Config::new(Drive::DESKTOP) });
    plan.config.flush_age = Duration::from_millis(200);
    plan.config.max_dirty_age = Duration::from_secs(600);
    plan.config.dirty_high = 44;
    plan.speeds[1] = Speed { jitter: 0, spin_up: SPIN_UP, ..Speed::DISK };
    change(&mut plan);
    Scenario::of(plan)
}

fn asleep() -> Scenario {
    let mut scenario = scenario();
    sleep(&mut scenario);
    scenario
}

/// Nothing is asked until the disk stands still.
fn sleep(scenario: &mut Scenario) {
    scenario.advance(Duration::from_secs(40));
    assert_eq!(disk(scenario), PowerState::Standby, "{:?}", report(scenario));
}

fn disk(scenario: &Scenario) -> PowerState {
    scenario.simulation.scene.origin.model.state()
}

fn report(scenario: &Scenario) -> Report {
    scenario.snapshot().spin.expect("the disk may stand still")
}

/// How long a request takes.
fn time(scenario: &mut Scenario, span: Span, command: Command<tidegate_sim::stamp::Stamps>) -> Duration {
    let began = scenario.simulation.now();
    let id = scenario.send(span, command);
    scenario.wait(id).expect("an answer");
    scenario.simulation.now().since(began)
}

fn time_write(scenario: &mut Scenario, block: u64) -> Duration {
    let span = scenario.block(block);
    let data = scenario.simulation.scene.load.fresh(span);
    time(scenario, span, Command::Write { data, fua: false })
}

fn time_flush(scenario: &mut Scenario) -> Duration {
    time(scenario, Span::default(), Command::Flush)
}

fn time_read(scenario: &mut Scenario, block: u64) -> Duration {
    let span = scenario.block(block);
    time(scenario, span, Command::Read)
}

fn words(scenario: &Scenario) -> Vec<Spin> {
    scenario.noted().iter().filter_map(|op| op.word).filter(|&word| word != Spin::Look).collect()
}

#[test]
fn a_write_and_a_flush_are_as_quick_in_standby_and_while_it_wakes_as_with_the_disk_awake() {
    let mut scenario = scenario();
    let (write, flush) = (time_write(&mut scenario, 1), time_flush(&mut scenario));
    sleep(&mut scenario);
    for round in 0..20 {
        assert!(time_write(&mut scenario, round) <= write);
        assert!(time_flush(&mut scenario) <= flush);
        assert_eq!(disk(&scenario), PowerState::Standby);
    }
    // A read wakes it; the seven seconds are only the reader's.
    let read = scenario.send_read(scenario.block(4_000));
    for round in 0..20 {
        assert!(time_write(&mut scenario, 100 + round) <= write);
        assert!(time_flush(&mut scenario) <= flush);
    }
    assert!(!scenario.is_answered(read));
    let hit = time_read(&mut scenario, 101);
    assert!(hit < Duration::from_millis(10), "what the cache has is read as ever: {hit:?}");
    scenario.wait(read).expect("a read");
    assert_eq!(report(&scenario).counters.starts[Cause::Read as usize], 1);
}

#[test]
fn a_trim_and_a_question_for_the_allocation_wake_nothing() {
    let mut scenario = asleep();
    scenario.trim(scenario.blocks(8, 8));
    scenario.tiers(scenario.blocks(0, 64));
    scenario.flush();
    scenario.advance(Duration::from_secs(600));
    assert_eq!(disk(&scenario), PowerState::Standby);
    assert_eq!(words(&scenario), [Spin::Stop]);
}

#[test]
fn a_read_waits_for_the_spin_up_and_no_longer() {
    let mut scenario = asleep();
    let took = time_read(&mut scenario, 9);
    assert!(took >= SPIN_UP && took.0 < SPIN_UP.0 + 50_000_000, "{took:?}");
    let report = report(&scenario);
    assert_eq!(report.starts.len(), 1);
    assert_eq!((report.starts[0].cause, report.starts[0].took), (Cause::Read, Some(SPIN_UP)));
}

/// Sets that are dirty when the disk is told to wake, because the log fills up: one a second, about.
fn dirty_sets_when_woken(scenario: &mut Scenario) -> u32 {
    for block in 0..480 {
        time_write(scenario, block);
        scenario.advance(Duration::from_millis(140));
        if report(scenario).counters.starts[Cause::Room as usize] > 0 {
            return scenario.snapshot().dirty_sets;
        }
    }
    panic!("it was not woken")
}

#[test]
fn a_spin_up_is_learnt_from_three_starts_and_a_log_that_fills_up_wakes_it_as_much_earlier() {
    let slow = Duration::from_secs(14);
    let mut scenario = scenario_with(|plan| plan.speeds[1].spin_up = slow);
    sleep(&mut scenario);
    let unlearnt = dirty_sets_when_woken(&mut scenario);
    for block in 1..3 {
        assert_eq!(report(&scenario).learnt, None);
        scenario.advance(Duration::from_secs(30));
        sleep(&mut scenario);
        time_read(&mut scenario, 4_000 + block);
    }
    let told = report(&scenario);
    assert_eq!((told.drive.spin_up, told.learnt.map(|learnt| learnt.starts)), (slow, Some(3)));
    let mut scenario = scenario_with(|plan| plan.speeds[1].spin_up = slow);
    for block in 0..3 {
        sleep(&mut scenario);
        time_read(&mut scenario, 4_000 + block);
    }
    sleep(&mut scenario);
    // 14 s more, twice: the lead is twice a spin-up.
    let learnt = dirty_sets_when_woken(&mut scenario);
    assert!(learnt + 10 <= unlearnt, "at {learnt} sets, and at {unlearnt} before");
}

#[test]
fn everything_dirty_goes_home_while_it_turns() {
    let mut scenario = asleep();
    (0..40).for_each(|block| drop(scenario.write(block * 3)));
    scenario.flush();
    scenario.advance(Duration::from_secs(60));
    assert_eq!((disk(&scenario), scenario.snapshot().dirty_slots), (PowerState::Standby, 40));
    time_read(&mut scenario, 4_000);
    scenario.advance(Duration::from_secs(10));
    assert_eq!(scenario.snapshot().dirty_slots, 0, "it was awake anyway");
    sleep(&mut scenario);
    let last = scenario.noted().iter().rposition(|op| op.word == Some(Spin::Stop)).expect("it was stopped");
    assert!(scenario.noted()[last..].iter().all(|op| op.device == DeviceId::Cache || op.word.is_some()), "and nothing came after that");
}

#[test]
fn what_is_written_after_it_was_woken_does_not_keep_it_awake() {
    let mut scenario = asleep();
    time_read(&mut scenario, 4_000);
    for second in 0..60 {
        scenario.write(second % 50);
        scenario.flush();
        scenario.advance(Duration::from_secs(1));
    }
    assert_eq!(disk(&scenario), PowerState::Standby);
    assert!(scenario.snapshot().dirty_slots > 0);
}

#[test]
fn it_is_woken_before_the_log_is_full_and_nobody_waits() {
    let mut scenario = asleep();
    let mut slowest = Duration::ZERO;
    // Four sets a second: the log would be full within 16 s.
    for block in 0..480 {
        slowest = slowest.max(time_write(&mut scenario, block));
        scenario.advance(Duration::from_millis(31));
    }
    assert!(slowest < Duration::from_millis(20), "{slowest:?}");
    let report = report(&scenario);
    assert_eq!(report.counters.starts[Cause::Room as usize], 1, "{report:?}");
}

#[test]
fn age_wakes_it_only_after_a_day() {
    let mut scenario = asleep();
    scenario.write(1);
    scenario.flush();
    scenario.advance(Duration::from_secs(23 * 3_600));
    assert_eq!((disk(&scenario), report(&scenario).counters.all_starts()), (PowerState::Standby, 0));
    scenario.advance(Duration::from_secs(3_700));
    assert_eq!(report(&scenario).counters.starts[Cause::Age as usize], 1);
    assert_eq!(scenario.snapshot().dirty_slots, 0);
}

#[test]
fn a_drain_and_a_mode_wake_it() {
    for mode in [false, true] {
        let mut scenario = asleep();
        scenario.write(1);
        scenario.flush();
        if mode {
            scenario.switch(Mode::WriteThrough);
        } else {
            scenario.drain();
        }
        assert_eq!(report(&scenario).counters.starts[Cause::Command as usize], 1);
        assert_eq!(scenario.snapshot().dirty_slots, 0);
    }
}

#[test]
fn a_stop_does_not_wake_it() {
    let mut scenario = scenario_with(|plan| plan.config.fence_samples = 8);
    sleep(&mut scenario);
    scenario.write(1);
    let began = scenario.simulation.now();
    scenario.simulation.control(Control::Stop);
    scenario.stop();
    assert_eq!(disk(&scenario), PowerState::Standby);
    assert!(scenario.simulation.now().since(began) < Duration::from_secs(1));
}

#[test]
fn a_drive_that_does_not_wake_is_reported_and_tried_again_and_loses_nothing() {
    let mut scenario = asleep();
    let data = scenario.write(5);
    scenario.flush();
    (0..2).for_each(|_| scenario.simulation.scene.origin.fail_next_word(Fault::Error));
    let took = time_read(&mut scenario, 9);
    // Two tries that fail, a second each, pauses of 1 s and 2 s, and the third.
    let expect = SPIN_UP.0 + Duration::from_secs(5).0;
    assert!((expect..expect + 50_000_000).contains(&took.0), "{took:?}");
    assert_eq!(report(&scenario).counters.wake_failures, 2);
    scenario.expect(5, &data);
    scenario.drain();
    assert_eq!(scenario.on_origin(5)[1], data.stamps().collect::<Vec<_>>());
}

#[test]
fn a_drive_that_wakes_late_is_waited_for() {
    let mut scenario = asleep();
    scenario.simulation.scene.origin.fail_next_word(Fault::Stuck(Duration::from_secs(50)));
    let read = scenario.send_read(scenario.block(9));
    let write = time_write(&mut scenario, 1);
    assert!(write < Duration::from_millis(10));
    scenario.wait(read).expect("a read");
    assert!(report(&scenario).counters.wake_failures <= 1);
}

#[test]
fn a_drive_that_somebody_else_wakes_is_noticed_and_stopped_again() {
    let mut scenario = asleep();
    let now = scenario.simulation.now();
    scenario.simulation.scene.origin.model.disturb(now);
    scenario.advance(Duration::from_secs(180));
    let report = report(&scenario);
    assert_eq!((report.counters.starts[Cause::Stranger as usize], report.counters.stops), (1, 2));
    assert_eq!(disk(&scenario), PowerState::Standby);
}

#[test]
fn a_drive_that_somebody_else_keeps_waking_is_stopped_ever_more_seldom() {
    let mut scenario = scenario();
    let mut starts = Vec::new();
    for _ in 0..3 {
        for _ in 0..3_600 / 5 {
            scenario.advance(Duration::from_secs(5));
            let now = scenario.simulation.now();
            scenario.simulation.scene.origin.model.disturb(now);
        }
        starts.push(report(&scenario).counters.starts[Cause::Stranger as usize]);
    }
    let report = report(&scenario);
    assert_eq!(report.counters.losses, report.counters.all_starts(), "no rest of at most five seconds pays");
    assert!(report.saved < 0, "{report:?}");
    assert!(starts[2] - starts[0] <= 12, "every ten minutes: {starts:?}");
}

#[test]
fn a_drive_that_somebody_else_uses_is_not_stopped_where_that_is_counted() {
    let mut scenario = scenario();
    scenario.simulation.scene.origin.count_uses();
    scenario.kill();
    time_read(&mut scenario, 9);
    for _ in 0..3_600 / 5 {
        scenario.advance(Duration::from_secs(5));
        let now = scenario.simulation.now();
        scenario.simulation.scene.origin.used_by_a_stranger(now);
    }
    assert_eq!(words(&scenario), []);
    // What is ours alone does not keep it awake, nor does what goes home before it is stopped.
    (0..40).for_each(|block| drop(scenario.write(block * 3)));
    time_read(&mut scenario, 4_000);
    sleep(&mut scenario);
    assert_eq!(words(&scenario), [Spin::Stop]);
}

#[test]
fn what_was_dirty_at_the_start_goes_home_before_it_is_stopped() {
    let mut scenario = scenario();
    (0..40).for_each(|block| drop(scenario.write(block * 3)));
    scenario.flush();
    scenario.kill();
    assert_eq!(scenario.snapshot().dirty_slots, 40);
    sleep(&mut scenario);
    assert_eq!(scenario.snapshot().dirty_slots, 0, "it was awake anyway");
}

#[test]
fn what_was_dirty_at_the_start_has_not_filled_the_log_just_now() {
    let mut scenario = scenario_with(|plan| {
        plan.config.max_dirty_age = Duration::from_secs(24 * 3_600);
        plan.config.spin = plan.config.spin.take().map(|spin| Config { predictor: Kind::Fixed, sweep: false, ..spin });
    });
    (0..200).for_each(|block| drop(scenario.write(block)));
    scenario.flush();
    scenario.kill();
    sleep(&mut scenario);
    assert_eq!(scenario.snapshot().dirty_sets, 25);
    scenario.write(300);
    scenario.advance(Duration::from_secs(600));
    assert_eq!((disk(&scenario), report(&scenario).counters.all_starts()), (PowerState::Standby, 0));
}

#[test]
fn how_quickly_the_log_once_filled_is_forgotten_while_nobody_writes() {
    let mut scenario = scenario_with(|plan| {
        plan.config.max_dirty_age = Duration::from_secs(24 * 3_600);
        plan.config.spin.as_mut().expect("it may stand still").sweep = false;
    });
    // Ten sets within two seconds, and after an hour a block.
    for block in 0..80 {
        scenario.write(block);
        scenario.advance(Duration::from_millis(25));
    }
    sleep(&mut scenario);
    scenario.advance(Duration::from_secs(3_600));
    scenario.write(100);
    scenario.advance(Duration::from_secs(60));
    assert_eq!((disk(&scenario), report(&scenario).counters.all_starts()), (PowerState::Standby, 0));
}

#[test]
fn how_long_reads_take_that_wait_for_nothing_is_known_without_the_spin_ups() {
    let mut scenario = scenario();
    // The first read of all waits for a FLUSH.
    time_read(&mut scenario, 8);
    sleep(&mut scenario);
    time_read(&mut scenario, 9);
    let quiet = scenario.snapshot().quiet_p99.expect("somebody has read");
    assert!(quiet < Duration::from_millis(100), "{quiet:?}");
}

#[test]
fn a_drive_that_goes_away_asleep_answers_with_its_errors_and_comes_back() {
    let mut scenario = asleep();
    scenario.origin_goes();
    let read = scenario.send_read(scenario.block(9));
    assert!(scenario.wait(read).is_err());
    scenario.origin_comes_back(false);
    let first = scenario.first(9);
    scenario.expect(9, &first);
}

#[test]
fn a_power_cut_at_any_step_of_a_rest_loses_nothing() {
    let mut scenario = asleep();
    scenario.crash_at_every_step();
    let data: Vec<_> = (0..12).map(|block| scenario.write(block)).collect();
    scenario.flush();
    time_read(&mut scenario, 4_000);
    scenario.advance(Duration::from_secs(40));
    assert_eq!(disk(&scenario), PowerState::Standby);
    assert!(scenario.crashes_tried() > 20);
    data.iter().enumerate().for_each(|(block, data)| scenario.expect(block as u64, data));
}

#[test]
fn nothing_but_words_goes_to_a_disk_that_stands_still() {
    let mut scenario = asleep();
    for round in 0..8u64 {
        (0..30).for_each(|block| drop(scenario.write((round * 37 + block * 11) % 2_000)));
        scenario.flush();
        scenario.advance(Duration::from_secs(100 + round));
        time_read(&mut scenario, 3_000 + round);
        scenario.advance(Duration::from_secs(50));
    }
    let mut turns = true;
    for op in scenario.noted().iter().filter(|op| op.device == DeviceId::Origin) {
        match op.word {
            Some(Spin::Stop) => turns = false,
            Some(Spin::Wake) => turns = true,
            Some(Spin::Look) => {}
            None => assert!(turns, "{op:?}"),
        }
    }
    assert_eq!(report(&scenario).counters.all_starts(), 8);
    assert!(scenario.noted().iter().any(|op| op.zone == Some(Zone::Origin) && op.writes));
}

#[test]
fn a_start_before_a_disk_that_stands_still_asks_first_and_counts_what_it_wakes() {
    let mut scenario = scenario_with(|plan| plan.config.fence_samples = 8);
    // Something clean that a start compares with the origin.
    for block in 0..8 {
        time_read(&mut scenario, block);
    }
    sleep(&mut scenario);
    scenario.forget_noted();
    scenario.kill();
    let told = report(&scenario);
    assert_eq!((told.counters.starts[Cause::Read as usize], told.counters.all_starts(), told.counters.losses), (1, 1, 0), "{told:?}");
    assert_eq!((told.starts[0].took, told.saved, told.hour.0), (Some(SPIN_UP), 0, 1));
    let first: Vec<_> = scenario.noted().iter().filter(|op| op.device == DeviceId::Origin).map(|op| op.word).take(3).collect();
    assert_eq!(first, [Some(Spin::Look), Some(Spin::Wake), None]);
}

#[test]
fn a_start_that_needs_nothing_of_a_disk_that_stands_still_does_not_wake_it() {
    let mut scenario = asleep();
    scenario.write(1);
    scenario.flush();
    scenario.kill();
    scenario.advance(Duration::from_secs(60));
    assert_eq!((disk(&scenario), report(&scenario).counters.all_starts()), (PowerState::Standby, 0));
    assert!(report(&scenario).slept >= Duration::from_secs(50));
}

/// 20 s are long for a read, and short for a large disk to wake: they are counted from when it turns.
#[test]
fn a_start_waits_for_a_disk_that_wakes_to_compare_what_it_holds() {
    let mut scenario = scenario_with(|plan| {
        plan.config.fence_samples = 1_024;
        plan.speeds[1].spin_up = Duration::from_secs(40);
    });
    for block in 0..16 {
        scenario.read(scenario.block(block)).expect("it is on the origin");
    }
    scenario.flush();
    sleep(&mut scenario);
    scenario.crash(Crash::Kill(Survive::All));
    scenario.begin_recovery();
    let began = scenario.simulation.now();
    scenario.until_serving();
    let took = scenario.simulation.now().since(began);
    assert!(took > Duration::from_secs(40) && took < Duration::from_secs(50), "{took:?}");
    assert!(scenario.snapshot().counters.fence_checked_blocks > 0);
}

/// The word that asks what the disk does has no answer for an hour: a start does not wait for it, nor does whoever reads, and what the origin holds
/// is compared all the same.
#[test]
fn a_motor_that_answers_nothing_holds_neither_a_start_nor_a_read_for_ever() {
    for samples in [1_024, 0] {
        let mut scenario = scenario_with(|plan| plan.config.fence_samples = samples);
        for block in 0..16 {
            scenario.read(scenario.block(block)).expect("it is on the origin");
        }
        scenario.flush();
        scenario.crash(Crash::Kill(Survive::All));
        scenario.simulation.scene.origin.fail_next_word(Fault::Stuck(Duration::from_secs(3_600)));
        scenario.begin_recovery();
        let began = scenario.simulation.now();
        scenario.until_serving();
        scenario.read(scenario.block(100)).expect("it is read without the answer");
        let took = scenario.simulation.now().since(began);
        assert!(took >= Duration::from_secs(180) && took < Duration::from_secs(210), "{took:?}");
        assert_eq!(scenario.snapshot().counters.fence_checked_blocks > 0, samples > 0);
        // Its answer comes late, and does not disturb anybody.
        scenario.advance(Duration::from_secs(4_000));
        let data = scenario.write(100);
        scenario.drain();
        scenario.expect(100, &data);
    }
}

/// Whichever word it is: the same disk is told to stop, is looked at, or is told to wake.
#[test]
fn a_word_that_is_never_answered_holds_no_read_for_ever() {
    for word in [Spin::Stop, Spin::Wake, Spin::Look] {
        let mut scenario = scenario();
        if word != Spin::Stop {
            sleep(&mut scenario);
        }
        scenario.simulation.scene.origin.fail_next_word(Fault::Stuck(Duration::from_secs(3_600)));
        // Where nobody asks for it, it is stopped, or looked at.
        let rests = if word == Spin::Wake { 0 } else { 120 };
        scenario.advance(Duration::from_secs(rests));
        let asked = scenario.noted().iter().filter_map(|op| op.word).next_back();
        assert_eq!(asked == Some(word), word != Spin::Wake, "{asked:?}");
        let took = time_read(&mut scenario, 3_000);
        assert!(took < Duration::from_secs(200), "{word:?}: {took:?}");
        assert_eq!(scenario.noted().iter().filter_map(|op| op.word).next_back(), Some(word));
        scenario.advance(Duration::from_secs(5_000));
        time_read(&mut scenario, 2_000);
    }
}

/// A disk that stands still and has been looked at in vain for more than three minutes when `ask` asks for it: how long that takes.
fn time_behind_a_silent_motor(change: impl FnOnce(&mut Plan), ask: impl FnOnce(&mut Scenario)) -> Duration {
    let mut scenario = scenario_with(change);
    sleep(&mut scenario);
    if scenario.simulation.plan.config.mode.is_none() {
        scenario.write(2);
        scenario.flush();
    }
    scenario.simulation.scene.origin.fail_next_word(Fault::Stuck(Duration::from_secs(3_600)));
    scenario.advance(Duration::from_secs(400));
    assert_eq!(words(&scenario), [Spin::Stop]);
    let began = scenario.simulation.now();
    ask(&mut scenario);
    scenario.simulation.now().since(began)
}

/// What asks for the disk while the engine is at work, and not as it arrives, has no tick to wait for.
#[test]
fn what_asks_for_a_disk_after_its_motor_has_long_been_silent_waits_no_more() {
    let past_the_log = |plan: &mut Plan| plan.config.mode = Some(Mode::ReadOnly);
    // The word stays under way: it is not waited for.
    let drain = |scenario: &mut Scenario| {
        scenario.simulation.control(Control::Drain);
        scenario.advance(Duration::from_secs(15));
        assert_eq!(scenario.snapshot().dirty_slots, 0, "drained");
    };
    let detach = |scenario: &mut Scenario| {
        scenario.simulation.control(Control::Detach);
        scenario.advance(Duration::from_secs(15));
        assert_eq!(*scenario.simulation.engine.phase(), Phase::Stopped, "detached");
    };
    let took = [
        ("write", time_behind_a_silent_motor(past_the_log, |scenario| drop(scenario.write(3)))),
        ("drain", time_behind_a_silent_motor(|_| {}, drain)),
        ("mode", time_behind_a_silent_motor(|_| {}, |scenario| scenario.switch(Mode::WriteThrough))),
        ("detach", time_behind_a_silent_motor(|_| {}, detach)),
    ];
    assert!(took.iter().all(|&(_, took)| took < Duration::from_secs(20)), "{took:?}");
}

#[test]
fn what_has_been_dirty_for_too_long_goes_home_to_a_disk_whose_motor_is_silent() {
    // Within the time of the silence that follows, and behind it.
    for age in [100, 350] {
        let spin = |plan: &mut Plan| plan.config.spin.as_mut().expect("it may stand still").max_dirty_age = Duration::from_secs(age);
        time_behind_a_silent_motor(spin, |scenario| assert_eq!(scenario.snapshot().dirty_slots, 0, "{age} s"));
    }
}

/// The disk was asked what it does when the start began, and what it holds is compared only after minutes.
#[test]
fn a_start_that_comes_late_to_compare_what_the_disk_holds_does_not_wait_for_a_silent_motor() {
    let mut scenario = scenario_with(|plan| plan.config.fence_samples = 1_024);
    for block in 0..16 {
        scenario.read(scenario.block(block)).expect("it is on the origin");
    }
    scenario.flush();
    scenario.crash(Crash::Kill(Survive::All));
    scenario.simulation.scene.origin.fail_next_word(Fault::Stuck(Duration::from_secs(3_600)));
    scenario.hold(Zone::Journal);
    scenario.begin_recovery();
    scenario.advance(Duration::from_secs(400));
    let began = scenario.simulation.now();
    scenario.release(Zone::Journal);
    scenario.until_serving();
    let took = scenario.simulation.now().since(began);
    assert!(took < Duration::from_secs(30), "{took:?}");
    assert!(scenario.snapshot().counters.fence_checked_blocks > 0);
}

/// Everything else goes home; it is tried again whenever the disk turns, and does not make it turn.
#[test]
fn a_block_that_the_disk_does_not_take_wakes_it_no_more_often_than_its_age_allows() {
    let mut scenario = scenario();
    scenario.simulation.scene.origin.refuse(scenario.block(1).start, 1_000_000);
    scenario.write(1);
    scenario.flush();
    scenario.advance(Duration::from_secs(700));
    // It is old by the measure of a disk that turns.
    time_read(&mut scenario, 4_000);
    scenario.advance(Duration::from_secs(10 * 3_600));
    let starts = report(&scenario).counters.starts;
    assert_eq!((starts[Cause::Read as usize], starts[Cause::Age as usize]), (1, 0), "{:?}", report(&scenario));
    scenario.advance(Duration::from_secs(15 * 3_600));
    assert_eq!(report(&scenario).counters.starts[Cause::Age as usize], 1);
    assert!(scenario.snapshot().dirty_slots == 1 && disk(&scenario) == PowerState::Standby);
}

/// Then nothing was wrong with what was to go home.
#[test]
fn an_origin_that_fails_as_a_whole_when_it_is_woken_for_age_is_tried_again_soon() {
    let mut scenario = scenario();
    scenario.write(1);
    scenario.flush();
    sleep(&mut scenario);
    // A day later it is woken, and fails every flush of the first minutes.
    scenario.simulation.scene.origin.rates.flush_error = 1_000_000;
    scenario.advance(Duration::from_secs(86_400 + 120));
    assert!(report(&scenario).counters.starts[Cause::Age as usize] >= 1 && scenario.snapshot().dirty_slots == 1);
    scenario.simulation.scene.origin.rates.flush_error = 0;
    scenario.advance(Duration::from_secs(3_600));
    assert_eq!(scenario.snapshot().dirty_slots, 0, "{:?}", report(&scenario));
}

//! The motor by itself: demands and answers go in, commands come out.

use super::predictor::{Kind, Predictor, Price, Terms};
use super::quiet::{Hours, OfDay};
use super::*;
use proptest::prelude::*;

fn at(seconds: f64) -> Instant {
    Instant((seconds * 1e9) as u64)
}

fn config(predictor: Kind) -> Config {
    Config { predictor, ..Config::new(Drive::DESKTOP) }
}

/// A motor before a drive that does as it is told, within the time that its figures say, unless `spin_up` is another.
struct Bench {
    motor: Motor,
    now: Instant,
    answer: Option<(Instant, Result<Power, DeviceError>)>,
    /// What the drive answers instead, in order: to what it is told, and when it is looked at.
    script: VecDeque<Result<Power, DeviceError>>,
    looks: VecDeque<Power>,
    commands: Vec<(f64, Spin)>,
    spin_up: Duration,
    /// When strangers use it; none: uses are not counted.
    strangers: Option<VecDeque<f64>>,
    /// A use of ours is to be counted.
    is_used: bool,
}

impl Bench {
    fn new(config: Config) -> Self {
        Bench {
            motor: Motor::new(config, Instant::ZERO),
            now: Instant::ZERO,
            answer: None,
            script: VecDeque::new(),
            looks: VecDeque::new(),
            commands: Vec::new(),
            spin_up: Drive::DESKTOP.spin_up,
            strangers: None,
            is_used: false,
        }
    }

    fn next(&self) -> Option<Instant> {
        let answer = self.answer.as_ref().map(|(when, _)| *when);
        let deadline = self.motor.deadline(self.now).filter(|&at| at > self.now);
        [answer, deadline].into_iter().flatten().min()
    }

    /// Lets time pass until `until`.
    fn pass(&mut self, until: Instant) {
        self.turn();
        while let Some(next) = self.next().filter(|&next| next <= until) {
            self.now = next;
            self.turn();
        }
        self.now = until;
        self.turn();
    }

    fn turn(&mut self) {
        if let Some((_, result)) = self.answer.take_if(|(when, _)| *when <= self.now) {
            let used = self.count_uses();
            self.motor.answered(self.now, result.map(|power| Said { power, used }));
        }
        if let Some(command) = self.motor.decide(self.now, true) {
            let (takes, well) = match command {
                Spin::Stop => (Drive::DESKTOP.spin_down, Power::Standby),
                Spin::Wake => (self.spin_up, Power::Turning),
                Spin::Look if self.motor.is_down() => (Duration::ZERO, Power::Standby),
                Spin::Look => (Duration::ZERO, Power::Turning),
            };
            let scripted = if command == Spin::Look { self.looks.pop_front().map(Ok) } else { self.script.pop_front() };
            if command != Spin::Look {
                self.commands.push((self.now.0 as f64 / 1e9, command));
            }
            self.answer = Some((self.now + takes, scripted.unwrap_or(Ok(well))));
        }
    }

    /// Since the last answer.
    fn count_uses(&mut self) -> Option<bool> {
        let strangers = self.strangers.as_mut()?;
        let theirs = strangers.iter().take_while(|&&when| at(when) <= self.now).count();
        strangers.drain(..theirs);
        Some(std::mem::take(&mut self.is_used) || theirs > 0)
    }

    /// A demand after `gap` seconds without one; it is served as soon as the drive takes it.
    fn demand_after(&mut self, gap: f64) {
        self.pass(self.now + Duration((gap * 1e9) as u64));
        self.motor.demand(self.now, Cause::Read, None);
        self.turn();
        while !self.motor.takes() {
            self.now = self.next().expect("the drive will take it");
            self.turn();
        }
        self.is_used = true;
        self.motor.used(self.now);
        self.motor.served(self.now);
    }
}

#[test]
fn the_papers_daemon_stops_after_ten_seconds_and_a_demand_wakes() {
    let mut bench = Bench::new(Config { guard: false, ..config(Kind::Fixed) });
    bench.demand_after(0.5);
    bench.demand_after(30.0);
    assert_eq!(bench.commands, [(11.0, Spin::Stop), (30.5, Spin::Wake)]);
    assert_eq!(bench.now, at(37.5));
    let report = bench.motor.report(bench.now);
    assert_eq!((report.counters.starts[Cause::Read as usize], report.counters.stops), (1, 1));
    let start = report.starts[0];
    assert_eq!((start.standby, start.took), (Duration::from_millis(19_500), Some(Duration::from_secs(7))));
    assert!(start.saved > 0);
}

#[test]
fn a_demand_while_it_stops_is_served_when_it_has_stopped_and_woken() {
    let mut bench = Bench::new(config(Kind::BreakEven));
    bench.demand_after(1.0);
    bench.demand_after(19.0);
    // Stopped at 19.6, asked for at 20, at rest at 21.6, and awake 7 s later.
    assert_eq!(bench.commands.iter().map(|(_, command)| *command).collect::<Vec<_>>(), [Spin::Stop, Spin::Wake]);
    assert!((bench.now.0 as f64 / 1e9 - 28.61).abs() < 0.01, "{:?}", bench.now);
    assert_eq!(bench.motor.report(bench.now).counters.losses, 1);
}

#[test]
fn a_metronome_of_20_seconds_costs_two_losses_at_most() {
    for predictor in [Kind::BreakEven, Kind::Share, Kind::History] {
        let mut bench = Bench::new(config(predictor));
        (0..180).for_each(|_| bench.demand_after(20.0));
        let counters = bench.motor.report(bench.now).counters;
        assert!(counters.all_starts() <= 2, "{predictor:?}: {counters:?}");
    }
}

#[test]
fn a_drive_that_does_not_wake_is_told_again_and_then_asked_all_the_same() {
    let mut bench = Bench::new(config(Kind::BreakEven));
    bench.pass(at(100.0));
    bench.script.extend([Err(DeviceError::Medium), Ok(Power::Standby), Err(DeviceError::Medium)]);
    bench.demand_after(0.0);
    // Three times 7 s, and pauses of 1 s and 2 s between them.
    assert_eq!(bench.now, at(124.0));
    assert_eq!(bench.motor.report(bench.now).counters.wake_failures, 3);
    let before = bench.commands.len();
    bench.pass(at(3_000.0));
    assert_eq!(bench.commands.len(), before, "it is left alone for an hour");
    bench.pass(at(4_000.0));
    assert_eq!(bench.commands.last().map(|(_, command)| *command), Some(Spin::Stop));
}

#[test]
fn a_drive_that_does_not_stop_is_left_alone_for_an_hour() {
    let mut bench = Bench::new(config(Kind::BreakEven));
    bench.script.push_back(Ok(Power::Turning));
    bench.pass(at(3_600.0));
    assert_eq!((bench.commands.len(), bench.motor.report(bench.now).counters.stop_failures), (1, 1));
    assert!(bench.motor.takes());
    bench.pass(at(3_700.0));
    assert!(bench.motor.is_asleep());
}

#[test]
fn a_drive_that_somebody_else_has_woken_is_found_and_stopped_again() {
    let mut bench = Bench::new(config(Kind::BreakEven));
    bench.pass(at(70.0));
    assert!(bench.motor.is_asleep());
    bench.looks.push_back(Power::Turning);
    bench.pass(at(90.0));
    let counters = bench.motor.report(bench.now).counters;
    assert_eq!((counters.starts[Cause::Stranger as usize], counters.stops), (1, 1));
    bench.pass(at(200.0));
    assert!(bench.motor.is_asleep());
}

#[test]
fn what_a_drive_says_that_never_admits_to_turn_costs_nobody_a_wait_for_an_hour() {
    let mut bench = Bench::new(config(Kind::BreakEven));
    bench.pass(at(100.0));
    bench.script.extend([Ok(Power::Standby); 3]);
    bench.looks.extend([Power::Standby; 100]);
    bench.demand_after(0.0);
    let (asked, before) = (bench.now, bench.commands.len());
    for _ in 0..50 {
        bench.demand_after(70.0);
        assert!(!bench.motor.is_down());
    }
    assert_eq!((bench.commands.len(), bench.now), (before, asked + Duration::from_secs(50 * 70)));
    assert_eq!(bench.motor.report(bench.now).counters.own_stops, 0);
}

#[test]
fn a_rest_that_a_stranger_ended_is_as_long_as_it_was_seen_to_be() {
    let mut bench = Bench::new(config(Kind::BreakEven));
    bench.looks.extend([Power::Turning, Power::Standby, Power::Standby, Power::Turning]);
    bench.pass(at(100.0));
    let report = bench.motor.report(bench.now);
    // Told to stop at 18.6 s, and looked at 5 s after that had ended, and whenever it had stood still for twice as long.
    let start = report.starts[0];
    assert_eq!((start.cause, start.standby), (Cause::Stranger, Duration::from_secs(14)));
    assert_eq!(report.counters.losses, 1);
    assert!(report.saved < 0);
}

#[test]
fn a_drive_that_others_use_is_left_alone_until_they_pause() {
    let mut bench = Bench::new(config(Kind::BreakEven));
    bench.strangers = Some((0..200).map(|number| 2.5 + 5.0 * f64::from(number)).collect());
    bench.pass(at(1_000.0));
    assert_eq!(bench.commands, []);
    bench.pass(at(1_100.0));
    let stop = bench.commands[0].0;
    // They paused at 997.5 s; that was seen a timeout later, at the latest.
    assert!(bench.commands.len() == 1 && (1_016.0..1_036.0).contains(&stop), "{:?}", bench.commands);
    assert!(bench.motor.report(bench.now).counters.others > 40);
}

#[test]
fn what_we_have_asked_of_a_drive_ourselves_does_not_keep_it_turning() {
    let mut counted = Bench::new(config(Kind::BreakEven));
    counted.strangers = Some(VecDeque::new());
    let mut uncounted = Bench::new(config(Kind::BreakEven));
    for bench in [&mut counted, &mut uncounted] {
        for gap in [1.0, 30.0, 4.0, 40.0, 12.0, 100.0] {
            bench.demand_after(gap);
        }
        bench.pass(at(400.0));
    }
    assert_eq!(counted.commands, uncounted.commands);
    assert_eq!(counted.motor.report(counted.now).counters.others, 0);
}

#[test]
fn a_use_by_others_soon_after_ours_counts_and_one_before_it_does_not() {
    let stopped = |stranger: f64| {
        let mut bench = Bench::new(config(Kind::BreakEven));
        bench.strangers = Some([stranger].into());
        bench.demand_after(2.0);
        bench.pass(at(60.0));
        bench.commands[0].0.round()
    };
    assert_eq!(stopped(1.0), 21.0, "2 s and 18.6 s");
    assert_eq!(stopped(10.0), 39.0, "it was seen at 20.6 s");
}

#[test]
fn a_drive_with_a_timer_of_its_own_is_found_asleep_and_woken() {
    let mut bench = Bench::new(Config { per_hour: 0, ..config(Kind::BreakEven) });
    bench.looks.push_back(Power::Standby);
    bench.pass(at(100.0));
    assert!(bench.motor.is_asleep());
    assert_eq!(bench.motor.report(bench.now).counters.own_stops, 1);
    bench.demand_after(0.0);
    assert_eq!(bench.commands, [(100.0, Spin::Wake)]);
}

#[test]
fn quiet_hours_stop_it_soon_whatever_the_predictor_says() {
    let hours = vec![Hours { from: OfDay(3_600), until: OfDay(7_200) }];
    let quiet = Quiet { hours, at_zero: Some(OfDay(0)) };
    let mut bench = Bench::new(Config { quiet, ..config(Kind::History) });
    (0..200).for_each(|_| bench.demand_after(20.0));
    assert!(bench.now > at(3_600.0), "{:?}", bench.now);
    let quiet = bench.commands.iter().filter(|&&(when, command)| when >= 3_600.0 && command == Spin::Stop).count();
    assert!((5..=12).contains(&quiet), "{quiet}: as often as the budget allows");
}

#[test]
fn the_break_even_follows_from_the_spin_ups_that_were_measured() {
    let mut bench = Bench::new(Config { guard: false, per_hour: 24, ..config(Kind::BreakEven) });
    bench.spin_up = Duration::from_secs(15);
    bench.demand_after(0.0);
    for starts in 1..=3 {
        let report = bench.motor.report(bench.now);
        assert_eq!((report.drive, report.learnt), (Drive::DESKTOP, None), "before start {starts}");
        bench.demand_after(100.0);
    }
    let report = bench.motor.report(bench.now);
    assert_eq!((report.drive.spin_up, report.learnt.unwrap().starts), (Duration::from_secs(15), 3));
    // 6 J to come down, less 1.4 J; 13.7 W more for 15 s; and 5.4 W saved. Three of 24 starts are used: that is all that one is worth.
    let break_even = (4.6 + 13.7 * 15.0) / 5.4;
    assert!((report.drive.break_even().as_secs_f64() - break_even).abs() < 1e-3);
    let idle = bench.now;
    bench.pass(idle + Duration::from_secs(100));
    let stopped = bench.commands.iter().rfind(|(_, command)| *command == Spin::Stop).expect("it was stopped").0;
    assert!((stopped - idle.0 as f64 / 1e9 - break_even).abs() < 1e-3, "and that is when it is stopped");
}

#[test]
fn a_start_that_failed_first_teaches_nothing() {
    let mut bench = Bench::new(Config { guard: false, ..config(Kind::BreakEven) });
    for _ in 0..4 {
        bench.script.extend([Ok(Power::Standby), Err(DeviceError::Medium)]);
        bench.demand_after(200.0);
    }
    let report = bench.motor.report(bench.now);
    assert_eq!((report.counters.wake_failures, report.learnt), (4, None));
}

#[test]
fn a_slower_spin_up_makes_every_predictor_but_the_fixed_one_wait_longer() {
    for kind in [Kind::BreakEven, Kind::Share, Kind::History] {
        let mut predictor = kind.build(config(kind).price());
        let before = predictor.timeout(Instant::ZERO).unwrap();
        let slower = Drive { spin_up: Duration::from_secs(15), ..Drive::DESKTOP };
        predictor.reprice(Config { drive: slower, ..config(kind) }.price());
        assert!(predictor.timeout(Instant::ZERO).unwrap() > before, "{kind:?}");
    }
}

/// Seconds of idling before each stop, of gaps that begin with the last command's end.
fn idled(bench: &Bench, gaps: &[(f64, f64)]) -> Vec<f64> {
    let stops = bench.commands.iter().filter(|(_, command)| *command == Spin::Stop).map(|&(when, _)| when);
    let idled = stops.map(|stop| stop - gaps.iter().rfind(|&&(began, _)| began <= stop).expect("a gap began").0);
    idled.map(|seconds| (10.0 * seconds).round() / 10.0).collect()
}

#[test]
fn the_last_starts_of_an_hour_are_for_gaps_that_have_proven_long() {
    let mut bench = Bench::new(Config { guard: false, per_hour: 4, ..config(Kind::BreakEven) });
    let mut gaps = Vec::new();
    for gap in [100.0, 100.0, 60.0, 100.0, 100.0, 200.0, 1_000.0] {
        gaps.push((bench.now.0 as f64 / 1e9, gap));
        bench.demand_after(gap);
    }
    // The break-even, and then what one, two and three of four starts that are used make a start worth (`budget`).
    assert_eq!(idled(&bench, &gaps), [18.6, 32.8, 157.0, 751.8]);
    let counters = bench.motor.report(bench.now).counters;
    assert_eq!((counters.over_budget, counters.losses), (6, 0), "every gap but the first had its stop later, or not at all");
}

#[test]
fn quiet_hours_are_not_rationed() {
    let quiet = Quiet { hours: vec![Hours { from: OfDay(0), until: OfDay(86_400) }], at_zero: Some(OfDay(0)) };
    let mut bench = Bench::new(Config { quiet, per_hour: 4, ..config(Kind::BreakEven) });
    (0..4).for_each(|_| bench.demand_after(30.0));
    assert_eq!(bench.motor.report(bench.now).counters.stops, 4);
    bench.demand_after(1_000.0);
    assert_eq!(bench.motor.report(bench.now).counters.stops, 4, "but the budget holds");
}

#[test]
fn the_owner_is_told_how_much_later_a_stop_is_for_the_budget() {
    let mut bench = Bench::new(Config { guard: false, per_hour: 4, ..config(Kind::BreakEven) });
    let told = |bench: &Bench| {
        let report = bench.motor.report(bench.now);
        let next = report.next_stop.map(|stop| stop.since(bench.now).0 / 1_000_000_000);
        (next, report.later_for_budget.0 / 1_000_000_000, report.hour)
    };
    bench.demand_after(0.0);
    assert_eq!(told(&bench), (Some(18), 0, (0, 4)));
    (0..3).for_each(|_| bench.demand_after(300.0));
    assert_eq!(told(&bench), (Some(751), 733, (3, 4)));
    bench.demand_after(800.0);
    // The first start was after 300 s: until it is back nothing is stopped.
    let report = bench.motor.report(bench.now);
    let next = report.next_stop.expect("it will be");
    assert_eq!((next, report.hour), (at(3_900.0), (4, 4)));
    assert_eq!(next.since(bench.now + Drive::DESKTOP.break_even()), report.later_for_budget);
}

/// Waits twenty times as long as a start is worth.
struct Patient;

impl Predictor for Patient {
    fn timeout(&mut self, _began: Instant) -> Option<Duration> {
        Some(Duration::from_secs(10))
    }
    fn timeout_under(&mut self, _began: Instant, terms: &Terms) -> Option<Duration> {
        Some(Duration::from_secs(10).max(Duration(20 * Drive::DESKTOP.pays(terms.start).0)).max(terms.not_before))
    }
    fn learn(&mut self, _gap: Duration) {}
    fn reprice(&mut self, _price: Price) {}
}

#[test]
fn a_stop_comes_sooner_when_a_start_is_back() {
    let config = Config { guard: false, per_hour: 4, ..config(Kind::Fixed) };
    let mut bench = Bench::new(config.clone());
    bench.motor = Motor::with_predictor(config, Box::new(Patient), Instant::ZERO);
    bench.demand_after(100.0);
    bench.demand_after(200.0);
    // Two of four are used: 20 times 138 s. The first was at 100 s and is back after an hour of that; then it is 20 times 14 s.
    let stops = |bench: &Bench| bench.commands.iter().filter(|(_, command)| *command == Spin::Stop).count();
    bench.demand_after(1_190.0);
    bench.demand_after(1_190.0);
    assert_eq!(stops(&bench), 2, "neither gap was long enough");
    let began = bench.now;
    assert!(began < at(3_700.0) && began + Duration::from_secs(1_190) > at(3_700.0), "{began:?}");
    bench.pass(at(3_699.0));
    assert_eq!(stops(&bench), 2);
    bench.pass(at(3_701.0));
    assert_eq!(bench.commands.last(), Some(&(3_700.0, Spin::Stop)), "it had been idle for long enough");
}

#[test]
fn a_drive_that_is_not_settled_is_not_stopped() {
    let mut motor = Motor::new(config(Kind::BreakEven), Instant::ZERO);
    assert_eq!(motor.decide(at(50.0), false), None);
    assert_eq!(motor.decide(at(50.0), true), Some(Spin::Stop));
    assert!(!motor.takes());
}

proptest! {
    /// Whatever is asked, whatever the drive answers: never more starts of ours in an hour than the budget.
    #[test]
    fn no_hour_has_more_starts_than_the_budget(
        per_hour in 1u32..8,
        kind in prop::sample::select(Kind::ALL.to_vec()),
        gaps in prop::collection::vec(0u32..400, 1..300),
        failures in prop::collection::vec(0u8..10, 0..200),
    ) {
        let mut bench = Bench::new(Config { per_hour, guard: false, ..config(kind) });
        bench.script.extend(failures.iter().map(|&kind| match kind {
            0 => Err(DeviceError::Medium),
            1 => Ok(Power::Standby),
            _ => Ok(Power::Turning),
        }));
        for gap in gaps {
            bench.demand_after(f64::from(gap));
        }
        let mut starts: Vec<f64> = Vec::new();
        // A second try is no second start.
        let mut stopped = false;
        for &(when, command) in &bench.commands {
            match command {
                Spin::Stop => stopped = true,
                Spin::Wake if std::mem::take(&mut stopped) => starts.push(when),
                Spin::Wake | Spin::Look => {}
            }
        }
        for (index, &start) in starts.iter().enumerate() {
            let within = starts[index..].iter().take_while(|&&other| other < start + 3_600.0).count();
            prop_assert!(within <= per_hour as usize);
        }
    }
}

//! Processes on simulated cores: what must hold of them whatever the costs, beside sums that a reader can do.

use std::path::Path;
use tidegate_sim::experiment::load::Ask;
use tidegate_sim::experiment::measure::Measured;
use tidegate_sim::experiment::plan::file;
use tidegate_sim::experiment::rig;
use tidegate_sim::experiment::{report, run};

/// A plan of one configuration and one load.
fn plan(configuration: &str, load: &str) -> String {
    format!(
        "name = \"processes\"\nshows = \"Processes\"\n[configurations.system]\n{configuration}\n[loads]\nload = {load}\n\
         [[rows]]\nrun = \"system/load\"\nmetric = \"iops\"\n"
    )
}

/// A system under `n` processes that read, or as the load says.
fn play_load(configuration: &str, load: &str, seed: u64) -> Measured {
    let plan = file::parse("plan.toml", &plan(configuration, load), Path::new(".")).unwrap_or_else(|why| panic!("{why}"));
    rig::run(&plan.runs[0], seed, &mut |_| {}).unwrap()
}

fn load(n: u64, reads: u32) -> String {
    format!("{{ pattern = \"random\", reads = {reads}, size = \"4KiB\", count = {COUNT}, workers = {n} }}")
}

const COUNT: u64 = 20_160;

fn play(configuration: &str, n: u64) -> Measured {
    play_load(configuration, &load(n, 100), 1)
}

/// I/Os per second.
fn rate(measured: &Measured) -> f64 {
    measured.measure.requests() as f64 / measured.measure.duration().as_secs_f64()
}

fn is_near(value: f64, expected: f64, percent: f64) {
    assert!((value - expected).abs() <= expected * percent / 100.0, "{value}, expected {expected} within {percent} %");
}

/// Of everything something: 3 us, 1 us locked, and two messages of 700 ns that take 8 and 3 us.
const ALL: &str = "cores = 6\nspread_percent = 20\ncontroller = { message = \"700ns\" }\n\
    read = [{ core = \"3us\" }, { lock = \"1us\" }, { send = [\"8us\"] }, { send = [\"3us\"] }]\nwrite = [{ core = \"1us\" }]";

#[test]
fn one_process_takes_the_sum_of_its_steps() {
    let measured = play(&ALL.replace("20\n", "0\n"), 1);
    assert_eq!(measured.measure.duration().0, COUNT * 15_000);
    assert_eq!((measured.measure.latencies_of(None).mean().0, measured.measure.latencies_of(None).max().0), (15_000, 15_000));
    is_near(rate(&play(ALL, 1)), 1e6 / 15.0, 0.5);
}

#[test]
fn what_is_sent_together_takes_as_long_as_the_longest() {
    let together = ALL.replace("20\n", "0\n").replace("[\"8us\"] }, { send = [\"3us\"]", "[\"8us\", \"3us\"]");
    assert_eq!(play(&together, 1).measure.latencies_of(None).max().0, 12_000);
    // The second begins when the controller is done with the first.
    let alike = together.replace("[\"8us\", \"3us\"]", "[\"8us\", \"8us\"]");
    assert_eq!(play(&alike, 1).measure.latencies_of(None).max().0, 12_700);
}

#[test]
fn littles_law_holds() {
    for n in [1, 2, 3, 7, 16, 63] {
        let measured = play(ALL, n);
        let mean = measured.measure.latencies_of(None).mean().0 as f64 / 1e9;
        is_near(rate(&measured) * mean, n as f64, 0.5);
    }
}

#[test]
fn no_number_of_processes_is_quicker_than_the_narrowest_place() {
    // What one process takes, what the cores give, and the lock, which is less than the controller's two messages here.
    let limits = |n: f64| [n / 15e-6, 6.0 / 4e-6, 1.0 / 1e-6, 1.0 / 1.4e-6];
    let mut last = 0.0;
    for n in [1, 2, 4, 8, 12, 16, 32, 64] {
        let (rate, limit) = (rate(&play(ALL, n)), limits(n as f64).into_iter().fold(f64::MAX, f64::min));
        assert!(rate < limit * 1.005 && rate > limit * 0.8 && rate > last * 0.995, "{n} processes: {rate}, limit {limit}, before {last}");
        last = rate;
    }
    is_near(last, 1.0 / 1.4e-6, 0.5);
}

#[test]
fn costs_that_vary_bend_the_curve() {
    let both = ["0", "40"].map(|spread| rate(&play(&ALL.replace("20\n", &format!("{spread}\n")), 11)));
    assert!(both[1] < both[0] * 0.99, "{both:?}");
}

#[test]
fn cores_give_what_they_have() {
    let system = "cores = 4\nspread_percent = 20\nread = [{ core = \"7us\" }]\nwrite = [{ core = \"1us\" }]";
    for (n, busy) in [(1, 1.0), (3, 3.0), (4, 4.0), (5, 4.0), (63, 4.0)] {
        is_near(rate(&play(system, n)), busy / 7e-6, 0.5);
    }
}

#[test]
fn cores_beyond_the_processes_change_nothing() {
    let on = |cores: u32, n| {
        let measured = play(&ALL.replace("cores = 6", &format!("cores = {cores}")), n);
        (measured.measure.duration(), measured.measure.latencies_of(None))
    };
    assert_eq!(on(8, 8), on(4096, 8));
    assert_ne!(on(3, 8), on(8, 8));
}

#[test]
fn a_lock_is_held_by_one() {
    let system = "cores = 64\nspread_percent = 20\nread = [{ core = \"2us\" }, { lock = \"1us\" }]\nwrite = [{ core = \"1us\" }]";
    for n in [6, 20, 63] {
        is_near(rate(&play(system, n)), 1e6, 0.5);
    }
    is_near(rate(&play(&system.replace("64", "1"), 20)), 1.0 / 3e-6, 0.5);
}

#[test]
fn who_waits_for_the_lock_keeps_its_core() {
    // Two cores and writers that spin: a reader, who needs no lock, waits for one of them to have had its turn.
    let system = "cores = 2\nread = [{ core = \"1us\" }]\nwrite = [{ lock = \"10us\" }]";
    let job = |reads, count, workers| {
        format!("{{ pattern = \"random\", reads = {reads}, size = \"4KiB\", count = {count}, workers = {workers} }}")
    };
    let reads_beside = |writers| {
        let measured = play_load(system, &format!("{{ jobs = [{}, {}] }}", job(100, 500, 1), job(0, 4000, writers)), 1);
        let latencies = measured.measure.latencies_of(Some(Ask::Read));
        latencies.per_mille(500).0
    };
    assert_eq!(reads_beside(1), 1_000);
    assert!(reads_beside(3) > 10_000, "{} ns", reads_beside(3));
}

#[test]
fn a_message_carries_what_waits_and_no_more_than_fits() {
    let sends = |records: u32| {
        format!(
            "cores = 64\nspread_percent = 20\ncontroller = {{ message = \"700ns\", record = \"600ns\", records = {records} }}\n\
             read = [{{ send = [\"8us\"] }}]\nwrite = [{{ core = \"1us\" }}]"
        )
    };
    for records in [1, 2, 4, 8] {
        is_near(rate(&play(&sends(records), 63)), f64::from(records) / (700e-9 + 600e-9 * f64::from(records)), 0.5);
    }
    // While the controller is free, none waits for others.
    assert_eq!(play(&sends(8).replace("spread_percent = 20", ""), 1).measure.latencies_of(None).max().0, 8_000);
}

#[test]
fn the_seed_decides_and_nothing_else() {
    let play = |seed| play_load(ALL, &load(9, 60), seed).measure.duration();
    assert_eq!(play(3), play(3));
    assert_ne!(play(3), play(4));
}

#[test]
fn the_report_shows_how_throughput_grows() {
    let of_two =
        format!("{}[[rows]]\nrun = \"system/more\"\nmetric = \"iops\"\n", plan(ALL, &format!("{}\nmore = {}", load(1, 100), load(8, 100))));
    let of_two = format!("{of_two}[[rows]]\nof = [\"system/more\", \"system/load\"]\nmetric = \"difference\"\nby = \"mean-us\"\n");
    let experiment = run(file::parse("plan.toml", &of_two, Path::new(".")).unwrap(), 0, 2, &mut |_| {}).unwrap();
    let [one, more] = [0, 1].map(|run| experiment.measured[run].measure.latencies_of(None).mean().0 as f64 / 1e3);
    assert!(more > one && (experiment.rows[2].value.unwrap() - (more - one)).abs() < 1e-9, "{:?}", experiment.rows[2]);
    let names: Vec<String> = report::files(&experiment).into_iter().map(|(name, _)| name).collect();
    assert!(names.contains(&"scaling-reads.svg".into()) && !names.contains(&"scaling-writes.svg".into()), "{names:?}");
    assert!(!names.iter().any(|name| name.starts_with("energy") || name.ends_with("states-system-load.svg")), "{names:?}");
}

#[test]
fn what_cannot_be_is_one_line_with_its_place() {
    let check = |old: &str, what: &str, line: u32, says: &str| {
        let text = plan(ALL, &load(2, 100));
        assert!(text.contains(old), "{old}");
        let why = file::parse("plan.toml", &text.replacen(old, what, 1), Path::new(".")).expect_err(what);
        assert!(why.starts_with(&format!("plan.toml:{line}: ")) && why.contains(says) && !why.contains('\n'), "{says}, line {line}: {why}");
    };
    check("cores = 6", "cores = 0", 4, "0 cores: from 1 to 4096");
    check("cores = 6", "cores = 6\nbare = \"hdd\"", 4, "with `cores`, only");
    check("cores = 6", "cores = 6\nvolume = \"1GiB\"", 4, "with `cores`, only");
    check("cores = 6", "cores = 6\nsets = 64", 4, "with `cores`, only");
    check("cores = 6", "", 3, "go with `cores`");
    check("percent = 20", "percent = 100", 5, "100 is not from 0 to 99");
    check("{ message = \"700ns\" }", "{ message = \"9us\" }", 7, "8000 ns is not from 9000 to");
    check("{ message = \"700ns\" }", "{ message = \"2s\" }", 6, "2000000000 ns is not from 0 to");
    check("{ message = \"700ns\" }", "{ message = \"700ns\", records = 0 }", 6, "0 records in a message");
    check("{ message = \"700ns\" }", "{ messages = \"700ns\" }", 6, "unknown field `messages`");
    check("controller = ", "# ", 4, "needs the `controller`");
    check("{ send = [\"8us\"] }, { send = [\"3us\"] }", "", 6, "without a `send`");
    check("{ core = \"3us\" }", "{ cpu = \"3us\" }", 7, "unknown variant `cpu`");
    check("{ core = \"3us\" }", "{ core = \"3\" }", 7, "is not a time such as");
    check("{ core = \"3us\" }", "{ core = \"0ns\" }", 7, "0 ns is not from 1 to");
    check("[\"8us\"]", "[]", 7, "a `send` is of 1 to 32 records");
    check("write = [{ core = \"1us\" }]", "", 4, "`read` and `write` are 1 to 32 steps each");
    check("workers = 2", "workers = 2, reads = 0, flush_every = 5", 10, "duplicate key");
    check("workers = 2", "workers = 2, flush_every = 5", 12, "load load has FLUSHes");
}

//! `tidegate curve`: what a running volume would miss at other sizes, as a person and as a program ask.

use std::path::Path;

use serde_json::Value;

use crate::common::daemon::Daemon;
use crate::common::{text, tool, volume};

/// A loop over 500 blocks: a memory of 1 MiB (less than 256 pages) misses all of them, one of 8 MiB none but the first time.
fn read_loop(daemon: &Daemon, rounds: u64) {
    let mut client = daemon.connect();
    for block in (0..rounds).flat_map(|_| 0..500) {
        // Far apart: no sequence.
        client.read(block * 17 % 500 * (4096 * 3), 4096).unwrap();
    }
}

fn curve(dir: &Path) -> Value {
    serde_json::from_str(&tool::tidegate(&["curve", "--json", "--dir", text(dir)]).succeeds()).expect("an object")
}

/// Miss ratios of a tier, by size.
fn points(tier: &Value) -> Vec<f64> {
    tier["points"].as_array().unwrap().iter().map(|point| point["miss_ratio"].as_f64().unwrap()).collect()
}

#[test]
fn a_loop_that_memory_does_not_hold_is_told_from_one_that_twice_the_memory_would() {
    let folder = volume("48MiB", "64MiB", "[memory]\nram = \"1MiB\"\npolicy = \"lru\"\n");
    let daemon = Daemon::up(folder.path());
    let empty = tool::tidegate(&["curve", "--dir", text(folder.path())]).succeeds();
    assert!(empty.lines().all(|line| line.ends_with("nothing was read yet")), "{empty}");

    read_loop(&daemon, 10);
    let told = curve(folder.path());
    let (memory, cache) = (points(&told["memory"]), points(&told["cache"]));
    let now = told["memory"]["bytes"].as_u64().unwrap();
    assert!(now <= 1 << 20 && memory.len() == 7, "{told}");
    assert_eq!((told["memory"]["accesses"].as_u64(), told["memory"]["keys"].as_u64()), (Some(5_000), Some(500)));
    // Up to its size everything is missed, and so was it; from four times its size on, the first round only.
    assert!(memory[..4].iter().all(|&misses| misses > 0.999) && memory[5..].iter().all(|&misses| (misses - 0.1).abs() < 0.01), "{told}");
    assert!(told["memory"]["missed"].as_f64().unwrap() > 0.99, "{told}");
    let missed = told["cache"]["missed"].as_f64().unwrap();
    assert!((missed - 0.1).abs() < 0.01 && (cache[6] - missed).abs() < 0.05, "{told}");

    let picture = tool::tidegate(&["curve", "--dir", text(folder.path())]).succeeds();
    assert_eq!(picture.lines().filter(|line| line.starts_with('*')).count(), 2, "the sizes of now are marked: {picture}");
    daemon.stop();
}

/// What front threads answer by themselves is counted as well.
#[test]
fn reads_of_front_threads_are_in_the_curve() {
    let folder = volume("48MiB", "64MiB", "[memory]\nram = \"8MiB\"\npolicy = \"chooser\"\n[limits]\nfront_threads = 1\n");
    let daemon = Daemon::up(folder.path());
    read_loop(&daemon, 10);
    let told = curve(folder.path());
    let (fronts, accesses) = (told["front_blocks"].as_u64().unwrap(), told["memory"]["accesses"].as_u64().unwrap());
    assert!(fronts > 3_000, "the front answers the later rounds: {told}");
    assert_eq!(accesses, 5_000, "all of them are counted: {told}");
    let now = points(&told["memory"])[3];
    assert!((now - 0.1).abs() < 0.02, "{told}");
    // Far more than a front can note: it has itself heard in time, although nobody needs the engine.
    read_loop(&daemon, 60);
    let told = curve(folder.path());
    assert!(told["front_blocks"].as_u64().unwrap() > fronts + 29_000 && told["unnoted_blocks"] == 0, "{told}");
    let status = daemon.status();
    assert_eq!(status["memory"]["policy"], "chooser");
    assert!(status["memory"]["follows"].is_string() && status["memory"]["switches"].is_u64(), "{status}");
    daemon.stop();
}

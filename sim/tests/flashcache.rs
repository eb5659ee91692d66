//! Paper 001's peer, command by command; and what plans may not say of it and of disks that stand still.

use std::path::Path;
use tidegate_sim::experiment::plan::file;
use tidegate_sim::experiment::run;

/// A row for each metric of a load under a configuration.
fn plan(configuration: &str, loads: &str, load: &str, metrics: &[&str]) -> String {
    let rows = metrics.iter().map(|metric| format!("[[rows]]\nrun = \"it/{load}\"\nmetric = \"{metric}\"\n")).collect::<String>();
    format!(
        "name = \"peer\"\nshows = \"x\"\n[devices]\nhdd = \"hdd-7200-2010\"\nssd = \"ssd-100gb-2010\"\n\
         [configurations]\nit = {{ {configuration} }}\n[loads]\n{loads}\n{rows}"
    )
}

fn measure(loads: &str, load: &str, metrics: &[&str]) -> Vec<f64> {
    let text = plan("flashcache = true, cache = \"ssd\", origin = \"hdd\"", loads, load, metrics);
    let plan = file::parse("peer.toml", &text, Path::new(".")).expect("a plan");
    run(plan, 1, 1, &mut |_| {}).expect("it runs").rows.iter().map(|row| row.value.expect("a value")).collect()
}

const COMMANDS: [&str; 4] = ["ssd-writes", "ssd-reads", "hdd-writes", "hdd-reads"];

#[test]
fn a_write_is_two_writes_of_the_ssd_the_first_time_and_one_after_that() {
    // One block in each set, so that nothing is cleaned.
    let first = "first = { pattern = \"random\", reads = 0, size = \"4KiB\", count = 100, span = \"400GB\" }";
    assert_eq!(measure(first, "first", &COMMANDS), [200.0, 0.0, 0.0, 0.0]);
    let again = "first = { pattern = \"sequential\", reads = 0, size = \"4KiB\", count = 100, span = \"400KiB\" }\n\
                 again = { pattern = \"sequential\", reads = 0, size = \"4KiB\", count = 100, span = \"400KiB\", after = [\"first\"] }";
    assert_eq!(measure(again, "again", &COMMANDS), [100.0, 0.0, 0.0, 0.0]);
}

#[test]
fn a_read_is_filled_and_then_a_hit() {
    let reads = "miss = { pattern = \"sequential\", size = \"4KiB\", count = 100, span = \"400KiB\" }\n\
                 hit = { pattern = \"sequential\", size = \"4KiB\", count = 100, span = \"400KiB\", after = [\"miss\"] }";
    assert_eq!(measure(reads, "miss", &COMMANDS), [100.0, 0.0, 0.0, 100.0]);
    assert_eq!(measure(reads, "hit", &COMMANDS), [0.0, 100.0, 0.0, 0.0]);
}

#[test]
fn a_set_with_more_than_a_fifth_dirty_is_cleaned_down_to_that() {
    let loads = "fill = { pattern = \"sequential\", reads = 0, size = \"4KiB\", count = 512, span = \"2MiB\" }\n\
                 rest = { pattern = \"sequential\", size = \"4KiB\", count = 1, span = \"2MiB\", after = [\"fill\"], rest = \"60s\" }\n\
                 all = { pattern = \"sequential\", reads = 0, size = \"4KiB\", count = 1, span = \"2MiB\", after = [\"fill\"] }";
    // What is cleaned while it is filled, and after that, is 512 without a fifth of them: one more block that is dirty cleans another.
    let [writes] = measure(loads, "rest", &["hdd-writes"])[..] else { panic!("one value") };
    assert_eq!(writes, 0.0, "all of it was cleaned before");
    let [writes] = measure(loads, "all", &["hdd-writes"])[..] else { panic!("one value") };
    assert!((1.0..=410.0).contains(&writes), "{writes}");
}

#[test]
fn what_cannot_be_is_refused_in_one_line() {
    let load = "gap = { pattern = \"random\", size = \"4KiB\", count = 9, span = \"1GB\", gaps = [{ cycle = [\"20s\"] }] }";
    let plain = "gap = { pattern = \"random\", size = \"4KiB\", count = 9, span = \"1GB\" }";
    let refused = |configuration: &str, loads: &str, says: &str| {
        let text = plan(configuration, loads, "gap", &["watts"]);
        let why = file::parse("peer.toml", &text, Path::new(".")).err().unwrap_or_else(|| panic!("{configuration} {loads}: not refused"));
        assert!(why.starts_with("peer.toml:") && why.lines().count() == 1 && why.contains(says), "{says:?}: {why}");
    };
    refused("flashcache = true, cache = \"ssd\", origin = \"hdd\", sets = 9", load, "no settings");
    refused("flashcache = true, cache = \"ssd\", origin = \"same\"", load, "two devices");
    refused("bare = \"ssd\", spin = { predictor = \"fixed\" }", load, "no motor");
    refused("bare = \"hdd\", spin_down = \"10s\", spin = { predictor = \"fixed\" }", load, "one is enough");
    refused("bare = \"hdd\", spin = { predictor = \"oracle\" }", load, "optimum");
    refused("bare = \"hdd\", spin = { predictor = \"optimum\" }", plain, "gaps of a load");
    refused("cache = \"ssd\", origin = \"hdd\", spin = { predictor = \"hindsight\" }", load, "bare disk");
    let bare = "bare = \"hdd\"";
    let gaps = |gaps: &str| format!("gap = {{ pattern = \"random\", size = \"4KiB\", count = 9, span = \"1GB\", gaps = {gaps} }}");
    refused(bare, &gaps("[{ exponential = \"1s\", cycle = [\"1s\"] }]"), "a part of its gaps is");
    refused(bare, &gaps("[{ spread = [\"9s\", \"1s\"] }]"), "a part of its gaps is");
    refused(bare, &gaps("[{ cycle = [\"1s\"] }, { cycle = [\"2s\"] }]"), "has a count");
    refused(bare, &gaps("[{ cycle = [\"1s\"], count = 1 }, { cycle = [\"2s\"], weight = 1 }]"), "all parts");
    refused(bare, &gaps("[{ cycle = [\"1s\"] }], depth = 2"), "one request at a time");
    refused(bare, "gap = { files = \"maildir\", fs = \"ext3\", time = \"1s\" }", "no application");
    refused(bare, "gap = { files = \"varmail\", time = \"1s\" }", "say the fs");
    refused(bare, "gap = { files = \"varmail\", fs = \"fat\", time = \"1s\" }", "no file system");
    refused(bare, "gap = { files = \"varmail\", fs = \"ext3\", depth = 4 }", "knows its own requests");
    refused(bare, "gap = { pattern = \"random\", size = \"4KiB\", count = 9, fs = \"ext3\" }", "goes with files");
}

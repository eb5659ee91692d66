//! `tidegate sim policies` and `tidegate sim curve` as a person and as a program meet them.

use serde_json::Value;

use crate::common::tool::{self, Ended};
use crate::common::{folder, text};

/// A loop over 40 blocks with a hot one between: LRU loses it in 30 blocks, LIRS does not.
fn keys() -> String {
    (0..4_000).map(|i| format!("{}\n", if i % 4 == 0 { 1_000 } else { i % 40 })).collect()
}

fn refused(ended: &Ended, code: i32, says: &str) {
    assert_eq!(ended.code, Some(code), "{ended}");
    assert!(ended.stdout.is_empty() && ended.stderr.lines().count() == 1 && ended.stderr.contains(says), "{says:?}: {ended}");
}

#[test]
fn policies_are_compared_on_a_trace_for_people_and_for_programs() {
    let folder = folder();
    let trace = folder.path().join("loop.keys");
    std::fs::write(&trace, keys()).unwrap();
    let table = tool::tidegate(&["sim", "policies", text(&trace), "--page", "4KiB", "--sizes", "20,96KiB,100%"]).succeeds();
    assert!(table.contains("loop.keys: 4000 accesses of 31 different blocks (124.0 KiB)"), "{table}");
    for (says, row) in [("Belady", 1), ("20", 2), ("24", 3), ("100%", 4)] {
        assert!(table.lines().nth(row).is_some_and(|line| line.contains(says)), "{says}: {table}");
    }
    let json: Value =
        serde_json::from_str(&tool::tidegate(&["sim", "policies", text(&trace), "--sizes", "20,100%", "--json"]).succeeds()).unwrap();
    let misses = |size: &str, policy: &str| {
        let row = json["rows"].as_array().unwrap().iter().find(|row| row["size"] == size && row["policy"] == policy);
        row.unwrap_or_else(|| panic!("{policy} at {size}: {json}"))["misses"].as_u64().unwrap()
    };
    assert!(misses("20", "LRU") > 2 * misses("20", "LIRS") && misses("20", "LIRS") >= misses("20", "Belady"), "{json}");
    assert_eq!((misses("100%", "LRU"), misses("100%", "FIFO")), (31, 31), "it has room for everything");
    assert!(json["summary"].as_array().unwrap().iter().any(|row| row["policy"] == "LRU" && row["misses_over_lru"] == 1.0), "{json}");
}

#[test]
fn a_block_of_an_arc_trace_has_512_bytes_unless_something_else_is_said() {
    let folder = folder();
    let trace = folder.path().join("loop.lis");
    std::fs::write(&trace, (0..4_000).map(|i| format!("{} 1 0 {i}\n", i % 40)).collect::<String>()).unwrap();
    for (page, working_set, blocks) in [(&[][..], "(20.0 KiB)", "16"), (&["--page", "2KiB"], "(80.0 KiB)", "4")] {
        let table = tool::tidegate(&[&["sim", "policies", text(&trace), "--sizes", "8KiB"], page].concat()).succeeds();
        let row = table.lines().nth(2).unwrap();
        assert!(table.contains(&format!("40 different blocks {working_set}")), "{table}");
        assert_eq!(row.split_whitespace().nth(2), Some(blocks), "{table}");
        let curve = tool::tidegate(&[&["sim", "curve", text(&trace), "--points", "1"], page].concat()).succeeds();
        assert!(curve.contains(working_set.trim_matches(['(', ')'])), "{curve}");
    }
}

#[test]
fn requests_that_are_left_out_are_counted_in_one_line() {
    let folder = folder();
    let trace = folder.path().join("x.csv");
    std::fs::write(&trace, "1,h,0,Read,0,512,1\n2,h,0,Read,512,0,1\n3,h,0,Write,0,0,1\n").unwrap();
    for command in ["policies", "curve"] {
        let ended = tool::tidegate(&["sim", command, text(&trace), "--json"]);
        assert!(ended.code == Some(0) && ended.stderr.lines().count() == 1, "{ended}");
        assert!(ended.stderr.contains("x.csv: 2 of its requests have no length"), "{ended}");
    }
}

/// A file that is there, and of which the system gives nothing.
#[test]
fn a_trace_that_the_system_does_not_give_is_no_wrong_one() {
    for format in ["keys", "tidegate", "vscsi"] {
        for command in ["policies", "curve"] {
            let ended = tool::tidegate(&["sim", command, "/proc/self/mem", "--format", format]);
            refused(&ended, 66, "/proc/self/mem: Input/output error (os error 5); see that it can be read");
        }
    }
}

#[test]
fn sizes_beyond_any_cache_are_columns_of_their_own() {
    let folder = folder();
    let trace = folder.path().join("x.keys");
    std::fs::write(&trace, "1\n2\n1\n").unwrap();
    let table = tool::tidegate(&["sim", "policies", text(&trace), "--page", "4KiB", "--sizes", "281474976710656"]).succeeds();
    let row = table.lines().last().unwrap();
    assert!(row.starts_with("281474976710656 281474976710656 1048576.0 TiB "), "{row}");
}

#[test]
fn several_traces_end_in_a_summary_and_late_hits_have_a_line() {
    let folder = folder();
    let (one, other) = (folder.path().join("one.keys"), folder.path().join("other.trace"));
    std::fs::write(&one, keys()).unwrap();
    std::fs::write(&other, "1\n2\n3\n1\n2\n3\n").unwrap();
    let table = tool::tidegate(&["sim", "policies", text(&one), text(&other), "--format", "keys", "--deferred", "8"]).succeeds();
    assert!(table.contains("All 2 traces, 10 rows") && table.contains("mean regret") && table.contains("worst regret"), "{table}");
    assert_eq!(table.lines().filter(|line| line.contains("4 rings of 8 hits")).count(), 10, "{table}");
}

#[test]
fn a_trace_that_cannot_be_compared_is_refused_in_one_line() {
    let folder = folder();
    let (unclear, bad, missing) = (folder.path().join("x.trace"), folder.path().join("bad.keys"), folder.path().join("none.lis"));
    std::fs::write(&unclear, keys()).unwrap();
    std::fs::write(&bad, "1\n2 3\n").unwrap();
    let run = |arguments: &[&str]| tool::tidegate(&[&["sim", "policies"], arguments].concat());
    refused(&run(&[text(&unclear)]), 2, "x.trace: its name does not tell its format; say `--format` with one of arc, keys");
    refused(&run(&[text(&bad), text(&unclear)]), 2, "x.trace: its name does not tell");
    refused(&run(&[text(&bad)]), 65, "bad.keys:2: \"2 3\" is not a key");
    refused(&run(&[text(&missing)]), 66, "none.lis: No such file");
    refused(&run(&[text(folder.path()), "--format", "keys"]), 66, "not a regular file");
    refused(&run(&[]), 2, "<TRACE>");
    // What a key stands for nobody says, and a sector needs no page.
    let sectors = folder.path().join("x.mqsim");
    std::fs::write(&sectors, "0 0 8 8 1\n").unwrap();
    refused(&run(&[text(&bad), "--sizes", "5,1GiB"]), 2, "bad.keys: 1.0 GiB is bytes, and nobody knows how many a key has");
    refused(&run(&[text(&bad), "--page", "8KiB", "--sizes", "4KiB"]), 2, "4.0 KiB is less than a block of 8.0 KiB");
    refused(&run(&[text(&sectors), "--page", "4KiB"]), 2, "x.mqsim: --page is for arc, keys and keys32");
    refused(&run(&[text(&sectors), "--page", "0"]), 2, "--page");
    let flushes = folder.path().join("x.iolog");
    std::fs::write(&flushes, "fio version 3 iolog\n1 /f sync 0 0\n").unwrap();
    refused(&run(&[text(&flushes)]), 65, "x.iolog: no read or write in it, only FLUSHes");
    refused(&tool::tidegate(&["sim", "curve", text(&flushes)]), 65, "x.iolog: no read or write in it, only FLUSHes");
    for (sizes, says) in [("0", "is no size"), ("101%", "more than 100%"), ("1%,", "is no size"), ("512B", "less than a block")] {
        refused(&run(&[text(&bad), "--sizes", sizes]), 2, says);
    }
    refused(&run(&[text(&bad), "--format", "tape"]), 2, "tape");
    refused(&run(&[text(&bad), "--deferred", "0"]), 2, "--deferred");
}

#[test]
fn a_curve_says_what_every_size_would_miss_and_how_sure_that_is() {
    let folder = folder();
    let trace = folder.path().join("loop.keys");
    std::fs::write(&trace, (0..5_000).map(|i| format!("{}\n", i % 50)).collect::<String>()).unwrap();
    let table = tool::tidegate(&["sim", "curve", text(&trace), "--points", "5"]).succeeds();
    assert!(table.contains("5000 accesses of about 50 different blocks") && table.contains("± 0.5 points"), "{table}");
    assert_eq!(table.lines().count(), 2 + 5, "{table}");
    let json: Value = serde_json::from_str(&tool::tidegate(&["sim", "curve", text(&trace), "--points", "5", "--json"]).succeeds()).unwrap();
    let per_mille = |point: &Value| (point["blocks"].as_u64().unwrap(), (point["miss_ratio"].as_f64().unwrap() * 1e3).round() as u64);
    let points: Vec<(u64, u64)> = json["points"].as_array().unwrap().iter().map(per_mille).collect();
    assert_eq!(points, [(10, 1000), (20, 1000), (30, 1000), (40, 1000), (50, 10)], "a loop is missed whole or not at all");
    // A loop that just fits, and where a step of the curve is longer than a block.
    let long = folder.path().join("long.keys");
    std::fs::write(&long, (0..5_055).map(|i| format!("{}\n", i % 1_011)).collect::<String>()).unwrap();
    let json: Value = serde_json::from_str(&tool::tidegate(&["sim", "curve", text(&long), "--points", "2", "--json"]).succeeds()).unwrap();
    let points = json["points"].as_array().unwrap().iter().map(per_mille).collect::<Vec<_>>();
    assert_eq!(points, [(505, 1000), (1_011, 200)]);
    let off: Vec<f64> = json["points"].as_array().unwrap().iter().map(|point| point["size_error"].as_f64().unwrap()).collect();
    assert!((off[0] - 0.01).abs() < 1e-9 && off[1] == 0.0, "{json}");
    refused(&tool::tidegate(&["sim", "curve", text(&long), "--sample", "1%"]), 2, "too few to tell anything: take a larger --sample");
    for (arguments, says) in
        [(&["--sample", "0%"][..], "is no rate"), (&["--sample", "10"], "is no rate"), (&["--points", "0"], "--points")]
    {
        refused(&tool::tidegate(&[&["sim", "curve", text(&trace)], arguments].concat()), 2, says);
    }
    let unclear = folder.path().join("x.trace");
    refused(&tool::tidegate(&["sim", "curve", text(&unclear)]), 66, "x.trace: No such file");
    std::fs::write(&unclear, "1\n").unwrap();
    refused(&tool::tidegate(&["sim", "curve", text(&unclear)]), 2, "its name does not tell its format");
}

//! `tidegate sim list` and `tidegate sim run` as a person and as a program meet them.

use serde_json::Value;

use crate::common::tool::{self, Ended};
use crate::common::{folder, text};

const PLAN: &str = "\
name = \"mine\"
shows = \"A disk, and the same disk behind a cache\"

[devices]
disk = \"hdd-7200-2010\"
ssd = \"ssd-100gb-2010\"

[configurations]
bare = { bare = \"disk\" }
cached = { cache = \"ssd\", origin = \"disk\", volume = \"10GB\", sets = 64 }

[loads]
scattered = { pattern = \"random\", reads = 0, size = \"4KiB\", count = 2000, span = \"10GB\" }

[[rows]]
run = \"bare/scattered\"
metric = \"seconds\"

[[rows]]
run = \"cached/scattered\"
metric = \"seconds\"
high = 100.0

[[rows]]
of = [\"cached/scattered\", \"bare/scattered\"]
metric = \"order\"
";

fn refused(ended: &Ended, code: i32, says: &str) {
    assert_eq!(ended.code, Some(code), "{ended}");
    assert!(ended.stdout.is_empty() && ended.stderr.lines().count() == 1 && ended.stderr.contains(says), "{says:?}: {ended}");
}

#[test]
fn the_plans_are_listed_with_what_they_show() {
    let list = tool::tidegate(&["sim", "list"]).succeeds();
    for name in ["devices", "000-table3", "000-table4", "000-figures", "001-gaps", "003-six-patterns", "004-hits", "modes"] {
        let line = list.lines().find(|line| line.split(' ').next() == Some(name)).unwrap_or_else(|| panic!("{name}: {list}"));
        assert!(line.len() > name.len() + 20, "{line}");
    }
}

#[test]
fn a_plan_is_run_and_told_in_every_form() {
    let folder = folder();
    let (plan, out) = (folder.path().join("mine.toml"), folder.path().join("new/report"));
    std::fs::write(&plan, PLAN).unwrap();
    let table = tool::tidegate(&["sim", "run", text(&plan), "--out", text(&out)]).succeeds();
    assert!(table.starts_with("mine: A disk") && table.contains("2 of 2 rows with a band are inside it"), "{table}");
    let read = |name: &str| std::fs::read_to_string(out.join(name)).unwrap_or_else(|why| panic!("{name}: {why}"));
    assert_eq!(read("table.txt"), table);
    let json = tool::tidegate(&["sim", "run", text(&plan), "--json"]).succeeds();
    assert_eq!(read("rows.json"), json, "the same plan and seed, the same bytes");
    let report: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&report["plan"], &report["seed"]), (&"mine".into(), &0.into()));
    assert_eq!((&report["rows"][1]["name"], &report["rows"][1]["within"]), (&"cached/scattered".into(), &true.into()), "{report}");
    let page = read("index.html");
    for file in ["throughput-scattered.svg", "latency-scattered.svg", "energy-scattered.svg", "states-cached-scattered.svg"] {
        assert!(page.contains(&read(file)), "{file} is in the page");
    }
    assert!(read("cached-scattered-throughput.csv").lines().count() > 2);
    let other = tool::tidegate(&["sim", "run", text(&plan), "--json", "--seed", "9"]).succeeds();
    assert_ne!(other, json);
}

#[test]
fn a_row_outside_its_band_is_exit_code_1() {
    let folder = folder();
    let plan = folder.path().join("mine.toml");
    std::fs::write(&plan, PLAN.replace("high = 100.0", "high = 0.001")).unwrap();
    let ended = tool::tidegate(&["sim", "run", text(&plan)]);
    assert_eq!(ended.code, Some(1), "{ended}");
    assert!(ended.stderr.is_empty() && ended.stdout.contains("OUT"), "{ended}");
}

#[test]
fn what_cannot_be_run_is_refused_in_one_line() {
    let folder = folder();
    let plan = folder.path().join("mine.toml");
    let run = |plan: &str| tool::tidegate(&["sim", "run", plan]);
    refused(&run("001-gap"), 2, "no plan is named \"001-gap\": there are devices, 000-table3");
    refused(&run(text(&plan)), 66, "mine.toml: ");
    refused(&run("/dev/null"), 66, "not a regular file");
    for (wrong, says) in [
        (PLAN.replace("sets = 64", "set = 64"), "mine.toml:10: "),
        (PLAN.replace("\"hdd-7200-2010\"", "\"hdd\""), "mine.toml:5: "),
        (PLAN.replace("count = 2000", "count = -2"), "mine.toml:13: "),
        ("\0".repeat(10), "mine.toml:1: "),
    ] {
        std::fs::write(&plan, wrong).unwrap();
        refused(&run(text(&plan)), 78, says);
    }
    std::fs::write(&plan, [0xff, 0xfe]).unwrap();
    refused(&run(text(&plan)), 66, "mine.toml: ");
    std::fs::write(&plan, PLAN).unwrap();
    refused(&tool::tidegate(&["sim", "run", text(&plan), "--out", "/dev/null/report"]), 73, "/dev/null/report");
}

#[test]
fn a_disk_that_spins_down_uses_what_the_paper_says() {
    let report: Value = serde_json::from_str(&tool::tidegate(&["sim", "run", "001-gaps", "--json"]).succeeds()).unwrap();
    let row = report["rows"].as_array().unwrap().iter().find(|row| row["name"] == "gap20").unwrap();
    assert_eq!((&row["metric"], &row["within"]), (&"watts".into(), &true.into()), "{row}");
}

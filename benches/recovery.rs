//! Recovery of a cache of 100 GiB (102,400 sets, 26 million blocks): from the engine's start until it serves, and until everything that
//! was kept is warm, beside the time that reading the same metadata takes. Prints a table and writes target/bench/recovery.json.
//!
//! The yardstick is max(reading the metadata once, 25 ns for each entry): a recovery needs both, and may do both at once. Every
//! measurement is a process of its own; readings and recoveries take turns (A B B A), and the median of the ratios counts. The CPU
//! time of a recovery over 25 ns for each entry tells what a faster disk would show; it does not suffer from other processes.

#[path = "recovery/child.rs"]
mod child;
#[path = "recovery/image.rs"]
mod image;
#[allow(dead_code)] // other benches use more of it
#[path = "shared/quartiles.rs"]
mod quartiles;
#[path = "shared/report_file.rs"]
mod report_file;

use std::path::Path;
use std::process::Command;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use child::{Moment, Recovered};
use image::{Contents, Plan, Written};
use quartiles::Quartiles;

const ENTRY_SECONDS: f64 = 25e-9;
const FLOOR: f64 = 1.3;
/// Pairs of a reading and a recovery for each plan.
const ROUNDS: usize = 6;

const PLANS: [Plan; 3] = [
    Plan { what: "sequential", contents: Contents::Sequential, told: 64 },
    Plan { what: "random", contents: Contents::Random, told: 64 },
    // A checkpoint starts when a third of the ring is used: the longest log that a crash leaves behind.
    Plan { what: "random, longest log", contents: Contents::Random, told: 5200 },
];

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match &arguments[1..] {
        [what, folder] if what == "read" => print(&child::read(Path::new(folder))),
        [what, folder] if what == "recover" => print(&child::recover(Path::new(folder))),
        // For a profiler: an image that stays.
        [what, folder, plan] if what == "write" => print(&image::write(Path::new(folder), find(plan)).expect("room for 500 MiB")),
        _ => measure_all(),
    }
}

fn find(plan: &str) -> &'static Plan {
    PLANS.iter().find(|known| known.what == plan).unwrap_or_else(|| panic!("no plan {plan:?}"))
}

fn print(result: &impl serde::Serialize) {
    println!("{}", serde_json::to_string(result).expect("plain data"));
}

fn measure_all() {
    let folder = tempfile::Builder::new().prefix("recovery").tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    println!(
        "{:<21}{:>11}{:>9}{:>10}{:>10}{:>17}{:>17}{:>19}{:>11}{:>11}",
        "recovery, 100 GiB",
        "entries",
        "read s",
        "serve s",
        "warm s",
        "serve ratio",
        "warm ratio",
        "CPU s (ns/entry)",
        "peak MiB",
        "then MiB"
    );
    let mut rows = Vec::new();
    for plan in &PLANS {
        let written = image::write(folder.path(), plan).expect("room for 500 MiB");
        let rounds: Vec<Round> = (0..ROUNDS).map(|round| measure(folder.path(), round % 2 == 1)).collect();
        for Round { recovered, .. } in &rounds {
            assert_eq!(recovered.damage, [""; 0], "{}", plan.what);
            assert_eq!((recovered.clean, recovered.dirty), (written.clean, written.dirty), "{}: kept, and written", plan.what);
        }
        rows.push(row(plan, written, &rounds));
    }
    report_file::write("recovery", json!({ "rows": rows }));
}

struct Round {
    reading: Moment,
    recovered: Recovered,
}

fn measure(folder: &Path, recover_first: bool) -> Round {
    if recover_first {
        let recovered = run("recover", folder);
        return Round { reading: run("read", folder), recovered };
    }
    Round { reading: run("read", folder), recovered: run("recover", folder) }
}

fn run<T: DeserializeOwned>(what: &str, folder: &Path) -> T {
    let program = std::env::current_exe().expect("this program");
    let output = Command::new(program).arg(what).arg(folder).output().expect("a child");
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("the child's report")
}

fn row(plan: &Plan, written: Written, rounds: &[Round]) -> Value {
    let least = written.entries as f64 * ENTRY_SECONDS;
    let of = |value: &dyn Fn(&Round) -> f64| Quartiles::of(rounds.iter().map(value).collect());
    let reading = of(&|round| round.reading.wall);
    let (serving, loaded) = (of(&|round| round.recovered.serving.wall), of(&|round| round.recovered.loaded.wall));
    let serving_ratio = of(&|round| round.recovered.serving.wall / round.reading.wall.max(least));
    let loaded_ratio = of(&|round| round.recovered.loaded.wall / round.reading.wall.max(least));
    let cpu = of(&|round| round.recovered.loaded.cpu);
    let (peak, engine) = (of(&|round| round.recovered.peak_mib as f64).median(), of(&|round| round.recovered.engine_mib as f64).median());
    let displaced = of(&|round| round.recovered.displaced as f64).median();
    let missed = serving_ratio.median() > FLOOR || loaded_ratio.median() > FLOOR;
    println!(
        "{:<21}{:>11}{:>9.2}{:>10.2}{:>10.2}{:>17}{:>17}{:>19}{:>11}{:>11}{}",
        plan.what,
        written.entries,
        reading.median(),
        serving.median(),
        loaded.median(),
        serving_ratio.shown([2, 2]),
        loaded_ratio.shown([2, 2]),
        format!("{:.2} ({:.0})", cpu.median(), cpu.median() * 1e9 / written.entries as f64),
        peak,
        engine,
        if missed { "  missed" } else { "" },
    );
    json!({
        "what": plan.what, "entries": written.entries, "clean": written.clean, "dirty": written.dirty, "rounds": rounds.len(),
        "reading_s": reading.json(), "serving_s": serving.json(), "loaded_s": loaded.json(),
        "serving_ratio": serving_ratio.json(), "loaded_ratio": loaded_ratio.json(), "floor": FLOOR, "missed": missed,
        "cpu_s": cpu.json(), "cpu_over_25_ns_an_entry": cpu.median() / least, "displaced": displaced,
        "peak_mib": peak, "engine_mib": engine,
    })
}

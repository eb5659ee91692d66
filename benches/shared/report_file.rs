//! What a bench found, as JSON in target/bench, with the machine that it ran on.

use std::path::Path;

use serde_json::{Value, json};

/// Writes target/bench/NAME.json and says where that is.
pub fn write(name: &str, mut report: Value) {
    report["cores"] = json!(std::thread::available_parallelism().map_or(1, usize::from));
    report["kernel"] = json!(std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("bench");
    std::fs::create_dir_all(&folder).expect("a folder for the report");
    let path = folder.join(name).with_extension("json");
    std::fs::write(&path, format!("{report:#}\n")).expect("a report");
    println!("{}", path.display());
}

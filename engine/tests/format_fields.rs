//! Every check of the decoders is tried: whatever a page can be refused for has a forgery in the tests of its file. (The error paths
//! behind them have a registry of their own, `engine/src/fault_point.rs`.)

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

fn read(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cache/format").join(file);
    fs::read_to_string(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

/// The fields that a line refuses a page for.
fn field(line: &str) -> Option<&str> {
    let refuses = line.contains("check(") || line.contains("Unsealed::Field(");
    let (before, _) = line.rsplit_once('"').filter(|_| refuses)?;
    before.rsplit_once('"').map(|(_, name)| name)
}

#[test]
fn whatever_a_page_is_refused_for_is_forged_in_a_test() {
    for (file, tests) in [("superblock.rs", ""), ("header.rs", ""), ("map.rs", ""), ("journal.rs", "journal/tests.rs"), ("seal.rs", "")] {
        let text = read(file);
        let (code, own_tests) = text.split_once("#[cfg(test)]").unwrap_or((&text, ""));
        let tests = [own_tests, &read("testing.rs"), &if tests.is_empty() { String::new() } else { read(tests) }].concat();
        let fields: BTreeSet<&str> = code.lines().filter_map(field).collect();
        assert!(fields.len() > 1, "{file} refuses nothing");
        for field in fields {
            assert!(tests.contains(&format!("\"{field}\"")), "{file}: no test forges an impossible {field:?}");
        }
    }
}

//! What documents say about tests is true: the names in them exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The names of all functions below a folder.
fn functions(dir: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            functions(&entry, found);
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&entry).unwrap();
            let names =
                text.lines().filter_map(|line| line.trim_start().strip_prefix("fn ")?.split_once('(').map(|(name, _)| name.to_owned()));
            found.extend(names);
        }
    }
}

/// The rules of the table in `document`, each of which names at least one test, all of which exist.
fn rules_of(document: &str) -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut known = BTreeSet::new();
    for dir in ["daemon", "engine", "sim/tests", "tests"] {
        functions(&root.join(dir), &mut known);
    }
    let text = fs::read_to_string(root.join(document)).unwrap();
    let (_, table) = text.split_once("| rule |").expect("the table of rules");
    let mut rules = BTreeSet::new();
    for row in table.lines().filter(|row| row.starts_with("| ") && row.contains('`')) {
        rules.insert(row.trim_start_matches("| ").split(' ').next().unwrap().to_owned());
        for name in row.split('`').skip(1).step_by(2) {
            assert!(known.contains(name), "{document} names a test that does not exist: {name}");
        }
    }
    rules
}

fn numbered(letter: &str, count: u32) -> impl Iterator<Item = String> {
    (1..=count).map(move |number| format!("{letter}{number}"))
}

#[test]
fn every_rule_of_the_protocol_names_tests_that_exist() {
    let expect = [("H", 13), ("T", 8), ("S", 11), ("X", 17)].into_iter().flat_map(|(letter, count)| numbered(letter, count));
    assert_eq!(rules_of("docs/nbd.md"), expect.chain(["E".to_owned()]).collect(), "a rule without a test");
}

#[test]
fn every_rule_of_security_names_tests_that_exist() {
    // S6 is measured with the clients that misbehave.
    let expect = numbered("S", 9).filter(|rule| rule != "S6");
    assert_eq!(rules_of("docs/security.md"), expect.collect(), "a rule without a test");
}

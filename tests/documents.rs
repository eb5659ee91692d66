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

/// All tests and helpers of the workspace.
fn known() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut known = BTreeSet::new();
    for dir in ["daemon", "engine", "sim", "src", "tests"] {
        functions(&root.join(dir), &mut known);
    }
    known
}

/// What stands between backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The rules of the table in `document` that starts with `heading`. Each names tests in its third column, all of which exist, or says why
/// there are none.
fn rules_of(document: &str, heading: &str) -> BTreeSet<String> {
    let (root, known) = (Path::new(env!("CARGO_MANIFEST_DIR")), known());
    let text = fs::read_to_string(root.join(document)).unwrap();
    let (_, table) = text.split_once(heading).expect("the table of rules");
    let mut rules = BTreeSet::new();
    for row in table.lines().skip(2).take_while(|row| row.starts_with("| ")) {
        rules.insert(row.trim_start_matches("| ").split(' ').next().unwrap().to_owned());
        let tests = row.split('|').nth(3).expect("a column of tests");
        for name in quoted(tests) {
            assert!(known.contains(name), "{document} names a test that does not exist: {name}");
        }
        assert!(tests.contains('`') || tests.trim().starts_with("none: "), "{document}: no test, and no reason for that: {row}");
    }
    rules
}

fn numbered(letter: &str, count: u32) -> impl Iterator<Item = String> {
    (1..=count).map(move |number| format!("{letter}{number}"))
}

#[test]
fn every_rule_of_the_protocol_names_tests_that_exist() {
    let expect = [("H", 13), ("T", 8), ("S", 11), ("X", 17)].into_iter().flat_map(|(letter, count)| numbered(letter, count));
    assert_eq!(rules_of("docs/nbd.md", "| rule |"), expect.chain(["E".to_owned()]).collect(), "a rule without a test");
}

#[test]
fn every_rule_of_security_names_tests_that_exist() {
    assert_eq!(rules_of("docs/security.md", "| rule |"), numbered("S", 9).collect(), "a rule without a test");
}

/// The promises of docs/durability.md. Below the heading of each stand its tests, a line for each, or the reason why there are none.
#[test]
fn every_promise_of_durability_names_tests_that_exist() {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/durability.md")).unwrap();
    let (_, section) = text.split_once("\n## Promises and their tests\n").expect("the section");
    let section = section.split("\n## ").next().unwrap();
    let (known, mut promises) = (known(), BTreeSet::new());
    for promise in section.split("\n### ").skip(1) {
        let (heading, lines) = promise.split_once(':').expect("a number and what it is about");
        let mut tests = BTreeSet::new();
        for line in lines.lines().filter(|line| line.starts_with('*')) {
            let name = quoted(line).next().unwrap_or_else(|| panic!("{heading}: a line without a test: {line}"));
            assert!(known.contains(name), "{heading} names a test that does not exist: {name}");
            assert!(tests.insert(name), "{heading} names {name} twice");
        }
        assert!(!tests.is_empty() || lines.contains("\nNone: "), "{heading}: no test, and no reason for that");
        promises.insert(heading.to_owned());
    }
    assert_eq!(promises, numbered("D", 12).collect(), "a promise without a test");
}

/// Every input that must be looked at, by the section of docs/bad-inputs.md that has it.
const INPUTS: &[(&str, &[&str])] = &[
    (
        "Command line",
        &[
            "unknown flag",
            "missing value",
            "flag given twice",
            "value of 2^64",
            "negative value",
            "wrong or no unit",
            "not UTF-8",
            "argument of 1 MiB",
            "a file that exists",
            "a path too long for a socket",
        ],
    ),
    (
        "Configuration file",
        &[
            "missing",
            "a directory",
            "a pipe (FIFO)",
            "unreadable",
            "more than 1 MiB",
            "byte order mark",
            "unknown key",
            "wrong type",
            "something twice",
            "one SSD for two volumes",
            "the SSD is the origin",
            "a cycle through the own export",
            "size 0",
            "not whole sectors",
            "relative path",
            "a link that is swapped",
            "a draft's place taken by a link",
            "reload",
        ],
    ),
    ("Export name", &["empty", "4,096 bytes", "4,097 bytes", "NUL in it", "`../x`", "`/etc/passwd`", "not UTF-8", "other case"]),
    (
        "Superblock of a cache",
        &[
            "all zero",
            "ext4",
            "LUKS",
            "bcache",
            "LVM",
            "newer version",
            "older version",
            "wrong CRC",
            "one of two copies bad",
            "both bad",
            "somebody else's data before a second one of ours",
            "sound CRC, impossible field",
            "copies of two formats",
            "another cache than last time",
            "another origin",
            "other byte order",
            "SSD smaller than recorded",
            "SSD larger than recorded",
            "two devices with one identity",
        ],
    ),
    (
        "Journal, maps, headers, data",
        &[
            "cut off, torn",
            "flipped bits",
            "block beyond the volume",
            "length 0",
            "overlapping",
            "generation from the future",
            "a cycle",
            "the largest counts",
            "any sealed nonsense",
            "an old page or segment once more",
            "a block in the wrong place",
        ],
    ),
    (
        "NBD handshake",
        &[
            "wrong magic",
            "1 byte a second",
            "thousands of half-open connections",
            "option length 2^32 − 1",
            "10^6 options",
            "name longer than its option",
            "10^5 meta queries",
            "STARTTLS with plain text behind it",
            "EXPORT_NAME without TLS",
            "memory before anything was said",
            "random bytes",
        ],
    ),
    (
        "NBD transmission",
        &[
            "wrong magic",
            "unknown command or flag",
            "out of range",
            "offset + length beyond 2^64",
            "not whole sectors",
            "length 0",
            "32 MiB",
            "32 MiB + 1",
            "4 GiB − 1",
            "a WRITE, then silence",
            "one cookie for several requests",
            "DISC in the middle of others",
            "FLUSH or TRIM not offered",
            "a write to a read-only export",
            "replies that nobody reads",
            "more than is good",
        ],
    ),
    (
        "Origin",
        &[
            "missing",
            "mounted",
            "held by somebody",
            "shrinks",
            "grows",
            "becomes read-only",
            "short reads",
            "another device at the same path",
            "disappears",
        ],
    ),
    ("Control socket", &["unknown verb", "huge JSON, nested without end", "no permission", "several commands at once"]),
    (
        "Resources",
        &[
            "SSD full of dirty blocks",
            "log full",
            "64 descriptors",
            "EMFILE at accept",
            "too little memory",
            "disk quota, full file system",
            "read-only file system",
            "SIGTERM, SIGINT, SIGHUP at any moment",
            "the clock goes back a year",
            "no io_uring",
        ],
    ),
    (
        "Traces of the simulator",
        &[
            "missing, a directory, a pipe",
            "what the device does not give (EIO)",
            "says what no trace of its format says",
            "a recording that was cut off",
            "a size beyond any cache",
            "seeds beyond 2^64 − 1",
        ],
    ),
];

#[test]
fn every_bad_input_names_what_is_done_and_tests_that_exist() {
    let known = known();
    let document = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/bad-inputs.md")).unwrap();
    for (section, inputs) in INPUTS {
        let (_, rest) = document.split_once(&format!("\n## {section}\n")).unwrap_or_else(|| panic!("no section {section}"));
        let rows = rest.split("\n## ").next().expect("the section").lines().filter(|line| line.starts_with("| ")).skip(1);
        let mut found = Vec::new();
        for row in rows {
            let fields: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
            let [input, done, tests] = fields[..] else { panic!("{section}: three columns: {row}") };
            found.push(input);
            assert!(!done.is_empty(), "{section}: what is done about {input}?");
            assert!(quoted(tests).next().is_some(), "{section}: {input} has no test");
            for name in quoted(tests) {
                assert!(known.contains(name), "{section}: {input} names a test that does not exist: {name}");
            }
        }
        assert_eq!(found, *inputs, "{section}");
    }
}

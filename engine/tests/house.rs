//! The directions of dependence, checked by reading the sources: what a room must not know.

use std::path::{Path, PathBuf};

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap_or_else(|why| panic!("{}: {why}", folder.display())) {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// No source in `folder` contains one of `words`, comments aside.
fn check(folder: &str, words: &[&str]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(folder);
    let files = sources(&root);
    assert!(!files.is_empty(), "{folder} has no sources");
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for (number, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or("");
            for word in words {
                assert!(!code.contains(word), "{}:{}: {word} does not belong here: {line}", file.display(), number + 1);
            }
        }
    }
}

#[test]
fn the_engine_does_no_io_and_knows_no_clock_and_no_thread() {
    check("engine/src", &["std::fs", "std::net", "std::thread", "std::time", "std::io", "std::process", "async fn", "println!", "unsafe "]);
}

#[test]
fn cache_gate_and_queue_do_not_know_each_other_nor_the_paths() {
    check("engine/src/cache", &["crate::gate", "crate::queue", "crate::path"]);
    check("engine/src/gate", &["crate::cache", "crate::queue", "crate::path"]);
    check("engine/src/queue", &["crate::cache", "crate::gate", "crate::path"]);
}

#[test]
fn the_two_worlds_do_not_know_each_other() {
    check("sim/src", &["tidegate_daemon"]);
    check("daemon/src", &["tidegate_sim"]);
    check("engine/src", &["tidegate_sim", "tidegate_daemon"]);
}

#[test]
fn unsafe_code_lives_behind_the_daemons_doors() {
    check("sim/src", &["unsafe "]);
    check("src", &["unsafe "]);
}

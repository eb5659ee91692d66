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

/// No source in `folder`, or no line of one source, contains one of `words`, comments aside.
fn check(folder: &str, words: &[&str]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(folder);
    let files = if root.is_file() { vec![root] } else { sources(&root) };
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
fn cache_gate_queue_and_spin_do_not_know_each_other_nor_the_paths() {
    check("engine/src/cache", &["crate::gate", "crate::queue", "crate::policy", "crate::path", "crate::spin"]);
    check("engine/src/gate", &["crate::cache", "crate::queue", "crate::policy", "crate::path", "crate::spin"]);
    check("engine/src/spin", &["crate::cache", "crate::gate", "crate::queue", "crate::policy", "crate::path"]);
    check("engine/src/queue", &["crate::cache", "crate::gate", "crate::policy", "crate::path"]);
    for admission in ["engine/src/admission.rs", "engine/src/admission"] {
        check(admission, &["crate::gate", "crate::queue", "crate::path", "crate::spin"]);
    }
    check("engine/src/policy", &["crate::cache", "crate::gate", "crate::queue", "crate::path"]);
}

/// Parts of the cache are put together in the paths, and nowhere else; but for what a part is made of.
#[test]
fn parts_of_the_cache_use_only_what_they_are_made_of() {
    const SHARED: &str = "format";
    const MADE_OF: [(&str, &[&str]); 5] = [
        ("sets", &["heat", "index", "placed", "slots", "stranded", "stream", "victims"]),
        ("stream", &["heat"]),
        ("ahead", &["sequence"]),
        ("convert", &["sequence"]),
        ("split", &["sequence"]),
    ];
    let cache = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cache");
    let name = |path: &Path| path.file_stem().expect("a source has a name").to_str().expect("in ASCII").to_owned();
    let parts: Vec<PathBuf> = sources(&cache).into_iter().filter(|path| path.parent() == Some(&cache) && name(path) != "mod").collect();
    assert!(parts.len() > 15);
    for part in &parts {
        let text = std::fs::read_to_string(part).unwrap();
        let code = text.split("#[cfg(test)]").next().expect("there is a beginning");
        let allowed = MADE_OF.iter().find(|(user, _)| *user == name(part)).map_or(&[][..], |(_, used)| used);
        for other in parts.iter().map(|path| name(path)).filter(|other| *other != name(part) && other != SHARED) {
            let uses = [format!("super::{other}::"), format!("crate::cache::{other}")].iter().any(|words| code.contains(words));
            assert!(!uses || allowed.contains(&&*other), "{} uses {other}", part.display());
        }
    }
}

/// Whoever looks for a file finds it in the map.
#[test]
fn the_code_map_names_every_flow_and_every_part() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let architecture = std::fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let (_, map) = architecture.split_once("## Code map").expect("there is a map");
    for folder in ["engine/src", "engine/src/path", "engine/src/cache", "daemon/src", "pages/src"] {
        let lines: String = map.lines().filter(|line| line.contains(&format!("`{}", folder.split("/src").next().unwrap()))).collect();
        let words: Vec<&str> = lines.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
        for entry in std::fs::read_dir(root.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap();
            assert!(["mod", "lib", "tests"].contains(&name) || words.contains(&name), "{} is not in the map", path.display());
        }
    }
}

#[test]
fn the_two_worlds_do_not_know_each_other() {
    check("sim/src", &["tidegate_daemon"]);
    check("daemon/src", &["tidegate_sim"]);
    check("engine/src", &["tidegate_sim", "tidegate_daemon"]);
}

#[test]
fn pages_know_nothing_of_ours_and_the_engine_may_know_pages() {
    check("pages", &["tidegate_engine", "tidegate_sim", "tidegate_daemon"]);
}

#[test]
fn s8_unsafe_code_lives_behind_few_doors_and_says_why_it_is_sound() {
    check("sim/src", &["unsafe "]);
    check("src", &["unsafe "]);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let (daemon, pages) = (root.join("daemon/src"), root.join("pages/src"));
    // Where system calls are made that no safe wrapper has: disks and rings, sockets. And where threads share memory without a lock.
    let doors = [daemon.join("back"), daemon.join("front/nbd/socket.rs"), pages.clone()];
    for file in [sources(&daemon), sources(&pages)].concat() {
        let text = std::fs::read_to_string(&file).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        for (number, line) in lines.iter().enumerate() {
            if !line.split("//").next().unwrap_or("").contains("unsafe ") {
                continue;
            }
            assert!(doors.iter().any(|door| file.starts_with(door)), "{}:{}: {line}", file.display(), number + 1);
            // A function that asks its caller for something says so in its own text.
            let reason = if line.contains("unsafe fn ") { "# Safety" } else { "SAFETY:" };
            let above = lines[number.saturating_sub(6)..number].iter().any(|line| line.contains(reason));
            assert!(above, "{}:{}: why is it sound? {line}", file.display(), number + 1);
        }
    }
}

/// Of the libraries that the program is built from.
#[test]
fn s8_every_library_has_a_licence_that_goes_with_ours_and_comes_from_the_registry() {
    const LICENCES: [&str; 10] =
        ["MIT", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "Zlib", "Unicode-3.0", "0BSD", "Unlicense", "CC0-1.0"];
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let lock = std::fs::read_to_string(root.join("Cargo.lock")).unwrap();
    for source in lock.lines().filter_map(|line| line.strip_prefix("source = ")) {
        assert!(source.starts_with("\"registry+"), "a library from elsewhere: {source}");
    }
    let told = std::process::Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--format-version=1"])
        .current_dir(root)
        .output()
        .expect("cargo is there");
    let told: serde_json::Value = serde_json::from_slice(&told.stdout).expect("JSON");
    let libraries = told["packages"].as_array().expect("packages");
    assert!(libraries.len() > 20);
    for library in libraries {
        let licence = library["license"].as_str().unwrap_or("");
        // `A OR B`, `A/B`: one of them is enough. `A AND B`: both.
        let fits = licence.replace(['(', ')'], "").split(" AND ").all(|part| {
            part.replace('/', " OR ").split(" OR ").any(|name| LICENCES.contains(&name.trim().trim_end_matches(" WITH LLVM-exception")))
        });
        assert!(fits, "{} {}: {licence:?}", library["name"], library["version"]);
    }
}

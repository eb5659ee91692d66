//! What is checked in of every target, replayed: the seeds of the search, and whatever it once found. And the nets hold: the canary is
//! one input away.

use std::fs;
use std::panic::catch_unwind;
use std::path::Path;

use tidegate_fuzz::{CANARY, TARGETS, Target};
use tidegate_sim::chance::Chance;

/// Changed seeds of each target that are tried besides.
const CHANGED: u64 = 300;

fn inputs(kind: &str, name: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(kind).join(name);
    let Ok(entries) = fs::read_dir(&folder) else { return Vec::new() };
    let read = |path: &Path| fs::read(path).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
    let mut inputs: Vec<(String, Vec<u8>)> =
        entries.map(|entry| entry.expect("an entry").path()).map(|path| (path.display().to_string(), read(&path))).collect();
    inputs.sort();
    inputs
}

fn replay(target: Target) {
    let seeds = inputs("corpus", target.name);
    assert!(!seeds.is_empty(), "{} has no seed to start from", target.name);
    for (path, bytes) in seeds.iter().chain(&inputs("found", target.name)) {
        eprintln!("{path}");
        (target.run)(bytes);
    }
    // Without a guide not much is found; but a target that breaks at once should break here.
    let mut chance = Chance::new(1, target.name);
    for _ in 0..CHANGED {
        let mut bytes = seeds[chance.below(seeds.len() as u64) as usize].1.clone();
        for _ in 0..chance.below(6) {
            let (at, byte) = (chance.below(bytes.len() as u64 + 1) as usize, chance.word() as u8);
            match chance.below(3) {
                0 if at < bytes.len() => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => bytes.truncate(at.max(1)),
            }
        }
        bytes.truncate(target.input_bytes_max);
        (target.run)(&bytes);
    }
}

macro_rules! replayed {
    ($($name:ident,)+) => {
        $(#[test]
        fn $name() {
            replay(tidegate_fuzz::target(stringify!($name)).expect("a target"));
        })+

        #[test]
        fn every_target_is_replayed() {
            let replayed = [$(stringify!($name)),+];
            assert_eq!(TARGETS.map(|target| target.name), replayed);
        }
    };
}

replayed! { handshake, transmission, superblock, header, map, journal, recovery, engine, config, control, }

#[test]
fn the_canary_sings_for_its_own_tune_only() {
    (CANARY.run)(b"ebb tid");
    assert!(catch_unwind(|| (CANARY.run)(b"ebb tide")).is_err());
}

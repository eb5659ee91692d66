//! The guided driver: libFuzzer mutates what has reached new code. `TIDEGATE_FUZZ` names the target; without it all names are told.
//! The arguments are libFuzzer's own (scripts/fuzz.sh knows them).
#![no_main]

use std::sync::OnceLock;

use tidegate_fuzz::{CANARY, TARGETS, Target, target};

static CHOSEN: OnceLock<Target> = OnceLock::new();

fn choose() {
    let name = std::env::var("TIDEGATE_FUZZ").unwrap_or_default();
    match target(&name) {
        Some(target) => _ = CHOSEN.set(target),
        None => {
            for Target { name, about, .. } in TARGETS.into_iter().chain([CANARY]) {
                println!("{name:<13} {about}");
            }
            std::process::exit(if name.is_empty() { 0 } else { 2 });
        }
    }
}

libfuzzer_sys::fuzz_target!(init: choose(), |data: &[u8]| {
    let target = CHOSEN.get().expect("chosen before the first input");
    (target.run)(&data[..data.len().min(target.input_bytes_max)]);
});

//! Fuzz targets. Each takes any bytes, makes of them what somebody could send or leave on a disk, and panics when a rule is broken.
//!
//! ```text
//!   corpus/TARGET  found/TARGET ──▶ tests/inputs.rs     replayed by `cargo test`, plain
//!        │                └───────── what was once found, one file each
//!        └──▶ main.rs (feature `guided`) ──▶ libFuzzer  guided by coverage: scripts/fuzz.sh
//! ```
//! A target keeps nothing between two inputs, so that every input that breaks a rule breaks it again.

mod canary;
mod config;
mod control;
mod engine;
mod format;
mod handshake;
mod input;
mod memory;
mod model;
mod recovery;
mod rig;
mod seal;
mod transmission;

/// Something that takes bytes from outside.
#[derive(Clone, Copy)]
pub struct Target {
    pub name: &'static str,
    /// Whose bytes they are, and what must hold.
    pub about: &'static str,
    pub run: fn(&[u8]),
    /// Longer inputs are not tried: bytes.
    pub input_bytes_max: usize,
}

/// Everything that takes bytes from the wire, the SSD, a file or a socket; and what clients ask of the engine.
pub const TARGETS: [Target; 10] = [
    Target { name: "handshake", about: "an NBD client that shakes hands", run: handshake::run, input_bytes_max: 4096 },
    Target { name: "transmission", about: "an NBD client that sends commands", run: transmission::run, input_bytes_max: 4096 },
    Target { name: "superblock", about: "a sealed superblock", run: format::superblock, input_bytes_max: 4096 },
    Target { name: "header", about: "a sealed header of a set", run: format::header, input_bytes_max: 4096 },
    Target { name: "map", about: "a sealed page of a state map", run: format::map, input_bytes_max: 4096 },
    Target { name: "journal", about: "a sealed page of the journal", run: format::journal, input_bytes_max: 4096 },
    Target { name: "recovery", about: "a whole cache, changed anywhere", run: recovery::run, input_bytes_max: 512 },
    Target { name: "engine", about: "clients and faults, beside an array of atoms", run: engine::run, input_bytes_max: 1024 },
    Target { name: "config", about: "a configuration file", run: config::run, input_bytes_max: 2048 },
    Target { name: "control", about: "clients of the control socket", run: control::run, input_bytes_max: 2048 },
];

/// A bug behind three doors, which only a search that sees how far it came will open: a net that catches nothing proves nothing.
pub const CANARY: Target = Target { name: "canary", about: "must be found", run: canary::run, input_bytes_max: 256 };

/// The target of this name, the canary among them.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.into_iter().chain([CANARY]).find(|target| target.name == name)
}

//! What the tests share: a volume in a folder of its own, its daemon, a client, and the tools around them.

pub mod chance;
pub mod daemon;
pub mod mount;
pub mod nbd;
#[path = "../../daemon/tests/nbd_world/pki.rs"]
pub mod pki;
pub mod tool;

use std::path::Path;

use tempfile::TempDir;

/// A folder on the disk that the build uses: direct I/O works there, and it is gone when the test ends.
pub fn folder() -> TempDir {
    tempfile::Builder::new().prefix("t").tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder for the test")
}

/// A volume that has not been started: origin, formatted cache, and `knobs` as its config.toml.
pub fn volume(origin_size: &str, cache_size: &str, knobs: &str) -> TempDir {
    let folder = folder();
    let dir = folder.path();
    tool::tidegate(&["create", "--dir", text(dir), "--origin-size", origin_size, "--cache-size", cache_size]).succeeds();
    std::fs::write(dir.join("config.toml"), knobs).unwrap();
    folder
}

/// Paths of tests are UTF-8.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("a UTF-8 path")
}

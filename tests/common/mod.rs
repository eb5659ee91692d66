//! What the tests share: a volume in a folder of its own, its daemon, a client, and the tools around them.

pub mod chance;
pub mod daemon;
pub mod hostile;
pub mod mount;
pub mod nbd;
#[path = "../../daemon/tests/world/pki.rs"]
pub mod pki;
pub mod power;
pub mod stamp;
pub mod stand;
pub mod tool;

use std::path::Path;

use tempfile::TempDir;

/// What may carry operations to the disks (`--io`).
pub const CARRIERS: [&str; 2] = ["uring", "threads"];

/// A folder on the disk that the build uses: direct I/O works there, and it is gone when the test ends.
pub fn folder() -> TempDir {
    tempfile::Builder::new().prefix("t").tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder for the test")
}

/// A volume that has not been started: origin, formatted cache, and `knobs` as its config.toml.
pub fn volume(origin_size: &str, cache_size: &str, knobs: &str) -> TempDir {
    let folder = folder();
    make_volume(folder.path(), origin_size, cache_size, knobs);
    folder
}

/// The same in a folder that is there.
pub fn make_volume(dir: &Path, origin_size: &str, cache_size: &str, knobs: &str) {
    tool::tidegate(&["create", "--dir", text(dir), "--origin-size", origin_size, "--cache-size", cache_size]).succeeds();
    std::fs::write(dir.join("config.toml"), knobs).unwrap();
}

/// The SSD of a volume is gone, and a blank one of its size is in its place.
pub fn replace_cache(folder: &Path) {
    let cache = folder.join("cache.img");
    let bytes = std::fs::metadata(&cache).unwrap().len();
    std::fs::remove_file(&cache).unwrap();
    std::fs::File::create(&cache).unwrap().set_len(bytes).unwrap();
}

/// Several volumes of 48 MiB that have not been started, each with a cache of 64 MiB: NAME.origin and NAME.cache in one folder, `globals`
/// above them in its config.toml, `knobs` below each.
pub fn volumes(names: &[&str], globals: &str, knobs: &str) -> TempDir {
    let folder = folder();
    let dir = folder.path();
    let files = |name: &str| [dir.join(format!("{name}.origin")), dir.join(format!("{name}.cache"))];
    let tables: Vec<String> = names.iter().map(|name| table(name, files(name).each_ref().map(|path| text(path)), knobs)).collect();
    std::fs::write(dir.join("config.toml"), format!("{globals}\n{}", tables.concat())).unwrap();
    for name in names {
        let sizes = ["--origin-size", "48MiB", "--cache-size", "64MiB"];
        tool::tidegate(&[&["create", "--dir", text(dir), "--volume", name], &sizes[..]].concat()).succeeds();
    }
    folder
}

/// One volume as config.toml says it; its origin and its cache.
pub fn table(name: &str, [origin, cache]: [&str; 2], knobs: &str) -> String {
    format!("[[volume]]\nname = \"{name}\"\norigin = \"{origin}\"\ncache = \"{cache}\"\n{knobs}\n")
}

/// `check` finds nothing, but perhaps one superblock that was being written when the power failed: the other one stands in for it.
pub fn check_after_cut(folder: &Path) {
    let found = tool::tidegate(&["check", "--dir", text(folder)]);
    let mut damage = found.stdout.lines().filter(|line| line.starts_with("damage"));
    let is_torn = |line: &str| line.contains(" superblock ") && line.ends_with("(repaired at the next start)");
    assert!(damage.next().is_none_or(is_torn) && damage.next().is_none() && matches!(found.code, Some(0 | 1)), "{found}");
}

/// As many as are asked for in the environment.
pub fn kills(default: u64) -> u64 {
    std::env::var("TIDEGATE_KILLS").map_or(default, |kills| kills.parse().expect("a number of kills"))
}

/// Paths of tests are UTF-8.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("a UTF-8 path")
}

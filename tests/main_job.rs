//! The main job, as an operator does it: a file system on the device, a real tree on it, drained, stopped; then the origin alone.

use std::path::Path;

use crate::common::chance::Chance;
use crate::common::daemon::Daemon;
use crate::common::mount::Disk;
use crate::common::{folder, text, tool};

/// Files of sizes as they come, from nothing to some MiB, in a few folders.
fn generate(into: &Path, megabytes: u64) {
    let mut chance = Chance::new(megabytes);
    let (mut number, mut left) = (0, megabytes << 20);
    while left > 0 {
        let magnitude = chance.below(23);
        let size = chance.below(1 << magnitude).min(left);
        let folder = into.join(format!("generated/{}", chance.below(12)));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(number.to_string()), chance.bytes(size as usize)).unwrap();
        left -= size.max(1);
        number += 1;
    }
}

/// The sources of this very workspace.
fn copy_sources(into: &Path) {
    let root = env!("CARGO_MANIFEST_DIR");
    let parts = "Cargo.toml README.md src engine sim daemon tests docs scripts";
    tool::shell(&format!("tar -C '{root}' -cf - {parts} | tar -C '{}' -xf -", text(into))).succeeds();
}

/// One line per file: its checksum and its name.
fn checksums(of: &Path) -> String {
    let script = format!("cd '{}'; find . -type f -print0 | sort -z | xargs -0 sha256sum", text(of));
    tool::shell(&script).succeeds()
}

/// Runs `line` with the device as its last argument.
fn on(device: &str, line: &[&str]) {
    tool::run(line[0], &[&line[1..], &[device]].concat()).succeeds();
}

/// The same tree through any file system: written, read again after a remount, checked, drained, and read from the origin alone.
fn check(carrier: &str, mkfs: &[&str], fsck: &[&str], megabytes: u64) {
    let folder = folder();
    let dir = folder.path().join("volume");
    let daemon = Daemon::up_by(&dir, carrier);
    let mut disk = Disk::of(&daemon);
    on(&disk.device, mkfs);
    let at = disk.mount("noatime");
    copy_sources(&at);
    generate(&at, megabytes);
    // Something to forget as well: TRIM reaches the volume, and what it forgot must not come back.
    std::fs::create_dir(at.join("gone")).unwrap();
    generate(&at.join("gone"), 4);
    tool::run("sync", &["-f", text(&at)]).succeeds();
    std::fs::remove_dir_all(at.join("gone")).unwrap();
    tool::run("fstrim", &[text(&at)]).succeeds();
    let written = checksums(&at);
    assert!(written.lines().count() > 50, "a tree worth the name: {written}");

    disk.unmount();
    on(&disk.device, fsck);
    let at = disk.mount("noatime");
    assert_eq!(checksums(&at), written, "after a remount");
    disk.detach();

    tool::tidegate(&["drain", "--dir", text(&dir)]).succeeds();
    let status = daemon.status();
    assert_eq!((&status["dirty_blocks"], &status["zero_ranges"]), (&0.into(), &0.into()), "{status}");
    daemon.stop();
    tool::tidegate(&["check", "--cache", text(&dir.join("cache.img"))]).succeeds();

    let mut origin = Disk::read_only(&dir.join("origin.img"));
    on(&origin.device, fsck);
    let at = origin.mount("ro");
    assert_eq!(checksums(&at), written, "from the origin alone");
    origin.detach();
}

#[test]
fn a_source_tree_on_ext4_is_the_same_on_the_origin_alone() {
    check("auto", &["mkfs.ext4", "-q"], &["e2fsck", "-f", "-n"], 48);
}

#[test]
fn a_source_tree_on_xfs_is_the_same_on_the_origin_alone() {
    check("auto", &["mkfs.xfs", "-q"], &["xfs_repair", "-n"], 8);
}

#[test]
fn a_source_tree_on_btrfs_is_the_same_on_the_origin_alone() {
    check("auto", &["mkfs.btrfs", "-q"], &["btrfs", "check", "--readonly"], 8);
}

#[test]
fn a_source_tree_on_ext4_is_the_same_where_threads_serve_the_disks() {
    check("threads", &["mkfs.ext4", "-q"], &["e2fsck", "-f", "-n"], 8);
}

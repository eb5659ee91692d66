//! What must not be served is refused in one line that says what, where and what to do; nothing is created or changed.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::common::daemon::Daemon;
use crate::common::tool::{self, Ended};
use crate::common::{folder, text, volume};

/// Every file below `dir`: name, length and checksum. Sockets and the like have no contents.
fn everything(dir: &Path) -> Vec<(String, u64, u32)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        if kind.is_dir() {
            found.push((text(&path).to_owned(), 0, 0));
            found.extend(everything(&path));
        } else {
            let contents = if kind.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
            found.push((text(&path).to_owned(), contents.len() as u64, crc32c::crc32c(&contents)));
        }
    }
    found.sort();
    found
}

/// One line on standard error, nothing on standard output, this exit code, and these words.
fn assert_refused(name: &str, ended: &Ended, code: i32, says: &[&str]) {
    assert_eq!(ended.code, Some(code), "{name}: {ended}");
    assert_eq!(ended.stdout, "", "{name}: {ended}");
    assert_eq!(ended.stderr.lines().count(), 1, "{name}: one line: {ended}");
    assert!(ended.stderr.starts_with("tidegate: "), "{name}: {ended}");
    for words in says {
        assert!(ended.stderr.contains(words), "{name}: it does not say {words:?}: {ended}");
    }
}

/// A small volume that `spoil` makes unfit; then `tidegate ARGUMENTS` in its folder.
fn check(name: &str, spoil: impl FnOnce(&Path), arguments: &[&str], code: i32, says: &[&str]) {
    let folder = volume("48MiB", "64MiB", "");
    spoil(folder.path());
    let before = everything(folder.path());
    let ended = tool::tidegate_in(folder.path(), arguments);
    assert_refused(name, &ended, code, says);
    assert_eq!(everything(folder.path()), before, "{name}: something was created or changed");
}

const UP: &[&str] = &["up", "--dir", "."];

#[test]
fn wrong_flags_create_nothing() {
    let folder = folder();
    let long = "9".repeat(100_000);
    for (arguments, says) in [
        (&["up", "--orgin", "x"][..], "--orgin"),
        (&["up", "--nbd", "0.0.0.0:10809"], "--nbd"),
        (&["up", "--nbd", "0.0.0.0:10809"], "needs TLS"),
        (&["up", "--tls-key", "x.pem"], "--tls-cert"),
        (&["up", "--nbd", ""], "--nbd"),
        (&["up", "--dir"], "--dir"),
        (&["up", "--dir", "a", "--dir", "b"], "--dir"),
        (&["create", "--origin-size", "8"], "no unit"),
        (&["create", "--origin-size", "-1GiB"], "-1"),
        (&["create", "--cache-size", "18446744073709551616B"], "too large"),
        (&["create", "--cache-size", &long], "--cache-size"),
        (&["serve"], "--config"),
        (&["sim", "swarm", "--seeds", "many", "--ops", "1"], "--seeds"),
        (&["fly"], "fly"),
    ] {
        let ended = tool::tidegate_in(folder.path(), arguments);
        assert_refused("flags", &ended, 2, &[says]);
        assert!(ended.stderr.len() < 1000, "{} bytes: too long to read", ended.stderr.len());
    }
    let nothing_asked = tool::tidegate_in(folder.path(), &[]);
    assert!(nothing_asked.code == Some(2) && nothing_asked.stderr.contains("Usage:"), "{nothing_asked}");
    assert_eq!(everything(folder.path()), [], "something was created");
}

#[test]
fn wrong_configurations_are_refused_with_their_place() {
    let config = |contents: &'static [u8]| move |dir: &Path| fs::write(dir.join("config.toml"), contents).unwrap();
    let mebibyte: &'static [u8] = Box::leak(vec![b'#'; (1 << 20) + 1].into_boxed_slice());
    for (name, contents, says) in [
        ("unknown key", &b"[gate]\nwiat = \"2s\"\n"[..], &["config.toml:2:1: ", "wiat"][..]),
        ("wrong type", b"[gate]\nwait = true\n", &["config.toml:2:8: ", "boolean"]),
        ("wrong unit", b"[gate]\nwait = \"2 parsecs\"\n", &["config.toml:2:8: ", "2 parsecs"]),
        ("duplicate key", b"[gate]\nwait = \"2s\"\nwait = \"2s\"\n", &["config.toml:3:1: ", "duplicate"]),
        ("not TOML", b"\x7fELF\x02\x01", &["config.toml:1:"]),
        ("not UTF-8", b"# \xff\n", &["config.toml: ", "UTF-8"]),
        ("byte order mark", b"\xef\xbb\xbf", &["config.toml: ", "byte order mark"]),
        ("plain text to the world", b"nbd = \"0.0.0.0:10809\"\n", &["config.toml:1:1: ", "needs TLS"]),
        ("a key alone", b"[tls]\nkey = \"/key.pem\"\n", &["config.toml:2:1: ", "certificate"]),
        ("certificates that are not there", b"[tls]\ncertificate = \"/no.pem\"\nkey = \"/no.pem\"\n", &["TLS certificate /no.pem: "]),
        ("a name with NUL", b"[export]\nname = \"a\\u0000\"\n", &["config.toml:2:1: ", "NUL"]),
        ("relative path", b"cache = \"cache.img\"\n", &["config.toml:1:1: ", "relative"]),
        ("cache is origin", b"cache = \"/x\"\norigin = \"/x\"\n", &["config.toml:1:1: ", "same"]),
        ("too large", mebibyte, &["config.toml: ", "1 MiB"]),
    ] {
        check(name, config(contents), UP, 78, says);
        check(name, config(contents), &["serve", "--config", "config.toml"], 78, says);
    }
}

#[test]
fn a_configuration_that_is_no_file_is_refused() {
    let replace = |by: &'static str| move |dir: &Path| tool::shell(&format!("cd '{}'; rm config.toml; {by}", text(dir))).succeeds();
    let serve = &["serve", "--config", "config.toml"][..];
    check("missing", |dir| drop(replace("true")(dir)), serve, 78, &["config.toml: ", "tidegate up"]);
    for arguments in [serve, UP] {
        check("folder", |dir| drop(replace("mkdir config.toml")(dir)), arguments, 78, &["config.toml: ", "not a regular file"]);
        check("pipe", |dir| drop(replace("mkfifo config.toml")(dir)), arguments, 78, &["config.toml: ", "not a regular file"]);
        check("loop", |dir| drop(replace("ln -s config.toml config.toml")(dir)), arguments, 78, &["config.toml: "]);
    }
}

#[test]
fn a_cache_that_is_not_ours_is_refused() {
    let make = |what: &'static str| move |dir: &Path| drop(tool::shell(&format!("cd '{}'; {what}", text(dir))).succeeds());
    check(
        "ext4",
        make("rm cache.img; truncate -s 64M cache.img; mkfs.ext4 -q cache.img"),
        UP,
        78,
        &["cache", "cache.img", "ext4", "--force"],
    );
    check("xfs", make("rm cache.img; truncate -s 400M cache.img; mkfs.xfs -q cache.img"), UP, 78, &["cache.img", "XFS", "--force"]);
    check("noise", make("head -c 64M /dev/urandom > cache.img"), UP, 78, &["cache.img", "--force"]);
    check("wiped", make("rm cache.img; truncate -s 64M cache.img"), UP, 78, &["cache.img", "tidegate create"]);
    check(
        "a copy of the origin",
        make("cp origin.img cache.img; echo data | dd of=cache.img conv=notrunc status=none"),
        UP,
        78,
        &["cache.img"],
    );
    check("a folder", make("rm cache.img; mkdir cache.img"), UP, 78, &["cache.img"]);
    check("a pipe", make("rm cache.img; mkfifo cache.img"), UP, 78, &["cache.img"]);
    check("missing", make("rm cache.img"), UP, 66, &["cache.img"]);
    check("empty", make("truncate -s 0 cache.img"), UP, 78, &["cache.img", "empty"]);
    check("cut off", make("truncate -s 40M cache.img"), UP, 78, &["cache.img"]);
}

#[test]
fn an_origin_that_is_another_one_is_refused() {
    let make = |what: &'static str| move |dir: &Path| drop(tool::shell(&format!("cd '{}'; {what}", text(dir))).succeeds());
    check("missing", make("rm origin.img"), UP, 66, &["origin.img"]);
    check("shrunk", make("truncate -s 40M origin.img"), UP, 78, &["origin.img"]);
    check("a folder", make("rm origin.img; mkdir origin.img"), UP, 78, &["origin.img"]);
    check("under a file", make("true"), &["up", "--dir", ".", "--origin", "config.toml/disk"], 66, &["config.toml/disk"]);
    check("not there", make("true"), &["up", "--dir", ".", "--origin", "nowhere.img"], 66, &["nowhere.img"]);
    check("the cache itself", make("true"), &["up", "--dir", ".", "--origin", "cache.img"], 78, &["cache.img"]);
    check("the cache by another name", make("ln cache.img too.img"), &["up", "--dir", ".", "--origin", "too.img"], 78, &["too.img"]);
}

/// Changes the version of both superblocks as a later program would: with a checksum that is right (docs/format.md, "Seal").
fn newer_version(dir: &Path) {
    let cache = fs::File::options().read(true).write(true).open(dir.join("cache.img")).unwrap();
    for offset in [0, 512 << 10] {
        let mut page = [0; 4096];
        cache.read_exact_at(&mut page, offset).unwrap();
        page[4..6].copy_from_slice(&2u16.to_le_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c(&page[28..]), &page[..24]);
        page[24..28].copy_from_slice(&crc.to_le_bytes());
        cache.write_all_at(&page, offset).unwrap();
    }
}

#[test]
fn a_newer_version_of_the_format_is_refused() {
    check("newer", newer_version, UP, 78, &["cache.img", "version 2"]);
}

#[test]
fn what_somebody_else_uses_is_refused() {
    let folder = volume("48MiB", "64MiB", "");
    let dir = folder.path();
    let daemon = Daemon::up(dir);
    daemon.connect().write(0, b"precious".repeat(64).as_slice()).unwrap();
    let second = tool::tidegate_in(dir, UP);
    assert_refused("a second daemon", &second, 75, &["in use", &daemon.pid().to_string()]);
    let format = tool::tidegate_in(dir, &["create", "--dir", ".", "--force"]);
    assert_refused("a format", &format, 75, &["in use"]);
    let check = tool::tidegate_in(dir, &["check", "--cache", "cache.img"]);
    assert_refused("a check", &check, 75, &["in use"]);
    assert_eq!(&daemon.connect().read(0, 512).unwrap()[..8], b"precious", "the first one serves on");
    daemon.stop();

    let attached = crate::common::mount::Disk::read_only(&dir.join("origin.img"));
    assert_refused("a loop device", &tool::tidegate_in(dir, UP), 75, &["origin.img", &attached.device]);
    attached.detach();
    Daemon::up(dir).stop();
}

#[test]
fn create_overwrites_nothing_without_force_and_the_origin_never() {
    let folder = volume("48MiB", "64MiB", "");
    let dir = folder.path();
    fs::File::options().write(true).open(dir.join("origin.img")).unwrap().write_all_at(b"precious", 4096).unwrap();
    let before = everything(dir);
    let again = tool::tidegate_in(dir, &["create", "--dir", "."]);
    assert_refused("create twice", &again, 78, &["cache.img", "--force"]);
    assert_eq!(everything(dir), before);

    tool::tidegate_in(dir, &["create", "--dir", ".", "--force"]).succeeds();
    let after = everything(dir);
    let of = |name: &str, list: &[(String, u64, u32)]| list.iter().find(|(path, ..)| path.ends_with(name)).cloned();
    assert_eq!(of("origin.img", &after), of("origin.img", &before), "the origin is untouched");
    assert_ne!(of("cache.img", &after), of("cache.img", &before), "a new identity was drawn");
}

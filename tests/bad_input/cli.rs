//! The row "CLI": wrong flags and values.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

use super::{assert_refused, check, everything, make};
use crate::common::{folder, text, tool};

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
        (&["create", "--origin-size", "8GoB"], "8GoB"),
        (&["sim", "swarm", "--seeds", "18446744073709551616", "--ops", "1"], "18446744073709551616"),
        (&["up", "--io", "tape"], "--io"),
        (&["create", "--origin-size", "-1GiB"], "-1"),
        (&["create", "--cache-size", "18446744073709551616B"], "too large"),
        (&["create", "--cache-size", &long], "--cache-size"),
        (&["create", "--origin-size", "0B"], "'0B' for '--origin-size <SIZE>': \"0B\" is less than a sector of 512 bytes"),
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
fn arguments_that_are_not_utf_8_are_refused_and_named() {
    let folder = folder();
    let odd = OsStr::from_bytes(b"a\xffb");
    for (flag, with) in [
        ("--name", &[][..]),
        ("--nbd", &[]),
        ("--io", &[]),
        ("--origin", &[]),
        ("--cache", &[]),
        ("--tls-cert", &["--tls-key", "k"]),
        ("--tls-key", &["--tls-cert", "c"]),
        ("--no-such-flag", &[]),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .current_dir(folder.path())
            .args(["up", "--dir", "d"])
            .args(with)
            .arg(flag)
            .arg(odd)
            .output()
            .expect("the built program starts");
        let said = String::from_utf8(output.stderr).expect("what it says is UTF-8");
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{flag}: {said}");
        assert!(said.contains(flag) || said.contains("UTF-8"), "{flag}: {said}");
    }
    assert_eq!(everything(folder.path()), [], "something was created");
}

/// Wherever the odd part comes from: typed, or of the folder that it is typed in.
#[test]
fn paths_that_a_configuration_could_not_hold_are_refused_before_anything_is_made() {
    let (folder, other) = (folder(), folder());
    let odd = other.path().join(OsStr::from_bytes(b"a\xffb"));
    fs::create_dir(&odd).unwrap();
    let sizes = ["--origin-size", "48MiB", "--cache-size", "64MiB"];
    let typed = |flag: &str| [flag.into(), odd.join("x").into_os_string()];
    for (at, command, rest) in [
        (folder.path(), "create", typed("--origin")),
        (folder.path(), "create", typed("--cache")),
        (&odd, "create", ["--origin", "x"].map(Into::into)),
        (&odd, "up", ["--origin", "x"].map(Into::into)),
        (&odd, "up", ["--nbd", "unix:./s"].map(Into::into)),
    ] {
        let mut asked = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        asked.current_dir(at).arg(command).arg("--dir").arg(folder.path().join("d")).args(&rest);
        let output = asked.args(if command == "create" { &sizes[..] } else { &[] }).output().expect("the built program starts");
        let said = String::from_utf8(output.stderr).expect("what it says is UTF-8");
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{command} {rest:?}: {said}");
        assert!(said.contains("is not UTF-8, which config.toml could not hold"), "{said}");
        assert_eq!((everything(folder.path()), fs::read_dir(&odd).unwrap().count()), (vec![], 0), "{command} {rest:?}");
    }
}

#[test]
fn a_pid_file_never_takes_the_place_of_another_file() {
    for file in ["origin.img", "cache.img", "config.toml"] {
        let says = ["--pid-file", file, "exists and holds no process id; name another file"];
        for arguments in [&["up", "--dir", "."][..], &["serve", "--config", "config.toml"]] {
            check(file, |_| {}, &[arguments, &["--pid-file", file]].concat(), 73, &says);
        }
    }
    // Not there when the start begins, and there when it would be written.
    let folder = folder();
    let ended = tool::tidegate_in(folder.path(), &["up", "--dir", "new", "--pid-file", "new/origin.img"]);
    assert!(ended.code == Some(73) && ended.stderr.contains("origin.img exists and holds no process id"), "{ended}");
    assert_eq!(everything(folder.path()), [], "what was made for it is gone with it");
}

#[test]
fn a_start_that_cannot_end_well_creates_nothing() {
    let folder = folder();
    let named = |bytes: usize| "x".repeat(bytes - text(folder.path()).len() - 1);
    let (no_nbd, no_control) = (named(105), named(95));
    for (arguments, says) in [
        (&["--dir", &no_nbd][..], &["NBD address: ", "nbd.sock has 114 bytes", "at most 107", "`nbd`"][..]),
        (&["--dir", &no_control], &["control.sock has 108 bytes", "choose a shorter folder", "`control`"]),
        (&["--dir", "d", "--pid-file", "/nonexistent/pid"], &["--pid-file /nonexistent/pid: No such file"]),
        (&["--dir", "d/e", "--pid-file", "f/pid"], &["f/pid: No such file"]),
    ] {
        assert_refused("up", &tool::tidegate_in(folder.path(), &[&["up"], arguments].concat()), 73, says);
    }
    assert_eq!(everything(folder.path()), [], "something was created");
}

#[test]
fn a_first_run_that_does_not_serve_leaves_nothing_behind() {
    let folder = folder();
    let dir = folder.path();
    make("truncate -s 48M disk.img; echo precious > recorded; mkdir taken")(dir);
    let before = everything(dir);
    let new = ["up", "--dir", "new"];
    for (what, more, code) in [
        ("a recording that is there", &["--origin", "disk.img", "--record", "recorded"][..], 73),
        ("no client on standard input", &["--stdio"], 73),
        ("a folder where the socket would be", &["--origin", "disk.img", "--nbd", "unix:taken"], 73),
        ("another volume than the one that there is", &["--accept-loss=other"], 2),
    ] {
        let ended = tool::tidegate_in(dir, &[&new[..], more].concat());
        assert_eq!(ended.code, Some(code), "{what}: {ended}");
        assert_eq!(everything(dir), before, "{what}");
    }
    // A cache of another disk: neither a folder nor a configuration that names the two.
    tool::tidegate_in(dir, &["create", "--dir", "other", "--origin-size", "64MiB", "--cache-size", "64MiB"]).succeeds();
    let before = everything(dir);
    let refused = tool::tidegate_in(dir, &[&new[..], &["--origin", "disk.img", "--cache", "other/cache.img"]].concat());
    assert_refused("too small", &refused, 78, &["disk.img has 50331648 bytes"]);
    assert_eq!(everything(dir), before);
}

#[test]
fn a_cache_that_is_named_is_made_where_its_size_is_said() {
    let folder = folder();
    let dir = folder.path();
    make("truncate -s 48M disk.img; mkdir ssd")(dir);
    let attach = ["attach", "--dir", "new", "--origin", "disk.img", "--cache", "ssd/cache.img"];
    let refused = tool::tidegate_in(dir, &attach);
    assert_refused("missing", &refused, 66, &["ssd/cache.img", "give the size of a new one"]);
    assert!(!dir.join("new").exists());
    tool::tidegate_in(dir, &[&attach[..], &["--cache-size", "64MiB"]].concat()).succeeds();
    assert_eq!(std::fs::metadata(dir.join("ssd/cache.img")).unwrap().len(), 64 << 20);
}

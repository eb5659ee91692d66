//! The row "CLI": wrong flags and values.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

use super::{assert_refused, everything};
use crate::common::{folder, tool};

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

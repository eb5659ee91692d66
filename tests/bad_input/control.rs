//! The row "Control socket".

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::Nobody;
use crate::common::daemon::Daemon;
use crate::common::{text, tool, volume};

/// Everything that comes back for these bytes, until the daemon closes or has answered so many lines.
fn ask(stream: &mut UnixStream, bytes: &[u8], lines: usize) -> String {
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // A daemon that has heard enough closes before everything is sent.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    while answer.iter().filter(|byte| **byte == b'\n').count() < lines {
        match stream.read(&mut piece) {
            Ok(0) | Err(_) => break,
            Ok(count) => answer.extend_from_slice(&piece[..count]),
        }
    }
    String::from_utf8(answer).expect("JSON is UTF-8")
}

#[test]
fn nonsense_on_the_control_socket_is_an_error_and_the_volume_serves_on() {
    let folder = volume("48MiB", "64MiB", "");
    let daemon = Daemon::up(folder.path());
    let path = folder.path().join("control.sock");
    let mut deep = vec![b'['; 60_000];
    deep.push(b'\n');
    let mut huge = br#"{"verb": "status", "more": ""#.to_vec();
    huge.extend(vec![b'x'; 4 << 20]);
    huge.extend(b"\"}\n");
    for (name, bytes) in [
        ("unknown verb", &b"{\"verb\": \"format\"}\n"[..]),
        ("no verb", b"{}\n"),
        ("verb of another type", b"{\"verb\": {\"verb\": \"status\"}}\n"),
        ("no JSON", b"GET / HTTP/1.1\r\n"),
        ("no UTF-8", b"\xff\xfe\xfd\n"),
        ("NUL", b"{\"verb\": \"status\\u0000\"}\n"),
        ("nesting without end", &deep),
        ("4 MiB of JSON", &huge),
    ] {
        let answer = ask(&mut UnixStream::connect(&path).unwrap(), bytes, 1);
        assert!(answer.starts_with("{\"error\":") && answer.lines().count() == 1 && answer.len() < 1000, "{name}: {answer:?}");
    }
    // Those who say nothing, or never end their line, hold the place of nobody, neither while they stay nor when they have just gone.
    let mut silent: Vec<UnixStream> = (0..40).map(|_| UnixStream::connect(&path).unwrap()).collect();
    silent.iter_mut().step_by(2).for_each(|client| drop(client.write_all(b"{\"verb\": ")));
    assert_eq!(daemon.status()["phase"], "serving");
    drop(silent);
    assert_eq!(daemon.status()["phase"], "serving");
    daemon.connect().write(0, &[1; 4096]).unwrap();
    daemon.stop();
}

#[test]
fn the_sockets_are_their_owners_alone() {
    let nobody = Nobody::new();
    let dir = nobody.path().join("volume");
    tool::tidegate(&["create", "--dir", text(&dir), "--origin-size", "48MiB", "--cache-size", "64MiB"]).succeeds();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    let daemon = Daemon::up(&dir);
    std::fs::set_permissions(dir.join("config.toml"), std::fs::Permissions::from_mode(0o644)).unwrap();
    for socket in ["control.sock", "nbd.sock"] {
        assert_eq!(std::fs::metadata(dir.join(socket)).unwrap().permissions().mode() & 0o777, 0o600, "{socket}");
    }
    let refused = nobody.run(&["status", "--dir", text(&dir)]);
    assert!(refused.code == Some(77) && refused.stderr.contains("ermission denied"), "{refused}");
    assert_eq!(daemon.status()["phase"], "serving");
    daemon.stop();
}

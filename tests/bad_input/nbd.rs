//! The rows "Export name", "NBD handshake" and "NBD transmission" at the real daemon; each rule by itself is tested in
//! daemon/src/front/nbd and daemon/tests (docs/nbd.md).

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::common::daemon::Daemon;
use crate::common::nbd::Command;
use crate::common::volume;

const OPTION_GO: u32 = 7;

/// A client that has sent its flags and has read the greeting.
fn greeted(socket: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.read_exact(&mut [0; 18]).unwrap();
    stream.write_all(&3u32.to_be_bytes()).unwrap();
    stream
}

fn option(number: u32, length: u32, data: &[u8]) -> Vec<u8> {
    [&b"IHAVEOPT"[..], &number.to_be_bytes(), &length.to_be_bytes(), data].concat()
}

fn go(name: &[u8]) -> Vec<u8> {
    let data = [&(name.len() as u32).to_be_bytes()[..], name, &[0, 0]].concat();
    option(OPTION_GO, data.len() as u32, &data)
}

/// The kind of the next reply to an option.
fn reply(stream: &mut UnixStream) -> u32 {
    let mut head = [0; 20];
    stream.read_exact(&mut head).expect("a reply");
    let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
    stream.read_exact(&mut vec![0; word(16) as usize]).expect("all of it");
    word(12)
}

const UNKNOWN: u32 = (1 << 31) + 6;
const INVALID: u32 = (1 << 31) + 3;
const INFO: u32 = 3;

#[test]
fn bad_export_names_are_compared_and_refused_and_never_opened() {
    let folder = volume("48MiB", "64MiB", "[export]\nname = \"disk\"\n");
    std::fs::write(folder.path().join("Disk"), "a file of this name").unwrap();
    let daemon = Daemon::up(folder.path());
    let path = folder.path().join("origin.img");
    let path = path.as_os_str().as_encoded_bytes();
    for (name, expected) in [
        (&b""[..], INFO),
        (b"disk", INFO),
        (b"Disk", UNKNOWN),
        (b"DISK", UNKNOWN),
        (b"disk ", UNKNOWN),
        (b"../x", UNKNOWN),
        (b"/etc/passwd", UNKNOWN),
        (path, UNKNOWN),
        (&[b'x'; 4096], UNKNOWN),
        (&[b'x'; 4097], INVALID),
        (b"di\0sk", INVALID),
        (b"disk\0", INVALID),
        (b"\xff\xfe", INVALID),
    ] {
        let mut stream = greeted(&daemon.socket());
        stream.write_all(&go(name)).unwrap();
        assert_eq!(reply(&mut stream), expected, "{:?}", String::from_utf8_lossy(name));
    }
    daemon.stop();
}

/// Bytes of memory of the daemon that are really there.
fn resident(daemon: &Daemon) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line of the kernel's");
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn a_client_that_has_not_said_who_it_is_costs_at_most_128_kib() {
    const CLIENTS: u64 = 400;
    let folder = volume("48MiB", "64MiB", "");
    let daemon = Daemon::up(folder.path());
    daemon.connect().expect(0, &[0; 4096]);
    let before = resident(&daemon);
    // As much as it may say without saying anything: an option of 64 KiB without its last byte.
    let unfinished = option(0x7777, 64 << 10, &vec![b'x'; (64 << 10) - 1]);
    let clients: Vec<UnixStream> = (0..CLIENTS)
        .map(|_| {
            let mut stream = greeted(&daemon.socket());
            stream.write_all(&unfinished).unwrap();
            stream
        })
        .collect();
    // Who is answered now was read after all of them.
    daemon.connect().expect(0, &[0; 4096]);
    let each = resident(&daemon).saturating_sub(before) / CLIENTS;
    assert!(each > 32 << 10, "{each} bytes for each: what they sent was not read, so nothing was measured");
    assert!(each <= 128 << 10, "{each} bytes for each");
    drop(clients);
    daemon.stop();
}

#[test]
fn options_that_lie_about_their_length_cost_themselves_alone() {
    let folder = volume("48MiB", "64MiB", "");
    let daemon = Daemon::up(folder.path());
    let mut good = daemon.connect();
    let mut hostile: Vec<UnixStream> = [
        option(OPTION_GO, u32::MAX, &[0; 100]),
        option(OPTION_GO, 6, &[0xff, 0xff, 0xff, 0xff, 0, 0]),
        option(1, u32::MAX, b"name"),
        option(10, 12, &[0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]),
        option(7, 65_536, &vec![0; 65_536]),
        b"NOTMAGIC".repeat(512),
    ]
    .into_iter()
    .map(|bytes| {
        let mut stream = greeted(&daemon.socket());
        let _ = stream.write_all(&bytes); // it may be closed before the end
        stream
    })
    .collect();
    for round in 0..100 {
        good.write(round * 4096, &[round as u8; 4096]).unwrap();
        good.expect(round * 4096, &[round as u8; 4096]);
    }
    hostile.drain(..).for_each(drop);
    good.flush().unwrap();
    drop(good);
    daemon.stop();
}

#[test]
fn requests_with_one_cookie_are_each_answered_with_it() {
    let folder = volume("48MiB", "64MiB", "");
    let daemon = Daemon::up(folder.path());
    let mut stream = greeted(&daemon.socket());
    stream.write_all(&go(b"")).unwrap();
    while reply(&mut stream) == INFO {}
    let read = [&0x2560_9513_u32.to_be_bytes()[..], &[0, 0, 0, 0], &[0x55; 8], &0u64.to_be_bytes(), &512u32.to_be_bytes()].concat();
    stream.write_all(&read.repeat(10)).unwrap();
    for _ in 0..10 {
        let mut answer = [0; 16 + 512];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer[..8], [&0x6744_6698_u32.to_be_bytes()[..], &[0; 4]].concat()[..]);
        assert_eq!(answer[8..16], [0x55; 8]);
    }
    drop(stream);
    daemon.stop();
}

/// Of a WRITE whose data never comes, of a client that reads no replies, and of one that is gone, nobody else notices anything.
#[test]
fn a_client_that_falls_silent_in_the_middle_holds_nobody_up() {
    let folder = volume("48MiB", "64MiB", "");
    let daemon = Daemon::up(folder.path());
    let mut silent = daemon.connect();
    let header = [&0x2560_9513_u32.to_be_bytes()[..], &[0, 0, 0, 1], &[7; 8], &0u64.to_be_bytes(), &(1u32 << 20).to_be_bytes()].concat();
    let mut half = greeted(&daemon.socket());
    half.write_all(&go(b"")).unwrap();
    while reply(&mut half) == INFO {}
    half.write_all(&header).unwrap();
    half.write_all(&[0x99; 1000]).unwrap();
    for _ in 0..64 {
        silent.send(Command::Read, 0, 1 << 20, &[]).unwrap();
    }
    let mut good = daemon.connect();
    good.write(0, &[1; 4096]).unwrap();
    good.flush().unwrap();
    good.expect(0, &[1; 4096]);
    drop((half, silent));
    // What had come of the half-sent WRITE is nowhere.
    good.expect(0, &[1; 4096]);
    good.expect(4096, &[0; 4096]);
    drop(good);
    daemon.stop();
}

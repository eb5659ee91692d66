//! TLS on the NBD front, item by item of the protocol's document (T): a client of our own, libnbd and qemu.

use std::fs;

use crate::world::fronts::exports;
use crate::world::secure::{Plain, Secure, config};
use crate::world::{Raw, World, option, pki, request, simple, write};
use rustls::ProtocolVersion;
use rustls::version::{TLS12, TLS13};
use tidegate_daemon::front::nbd::{Certificates, Front, Options};
use tidegate_daemon::port::Port;
use tidegate_engine::Event;
use tidegate_engine::request::{Outcome, Reply, Room};

const MIB: u64 = 1 << 20;
const FLUSH: u16 = 3;
const ACK: u32 = 1;
const TLS_REQUIRED: u32 = 1 << 31 | 5;

/// The kind of the next option reply, whose data is dropped.
fn kind(reply: &[u8]) -> u32 {
    u32::from_be_bytes(reply[12..16].try_into().expect("four bytes"))
}

#[test]
fn t1_t2_a_unix_socket_never_offers_tls_and_tcp_always_requires_it() {
    let mut world = World::with_tls(MIB, false);
    let mut unix = Raw::connect(&mut world);
    unix.receive(&mut world, 18);
    unix.send(&mut world, &[3u32.to_be_bytes().to_vec(), option(5, b"")].concat());
    let reply = unix.receive(&mut world, 20 + "TLS is not offered here".len());
    assert_eq!(kind(&reply), 1 << 31 | 1, "ERR_UNSUP");

    let mut tcp = Plain::connect(&mut world);
    tcp.send(&mut world, &option(7, &[0; 6]));
    let reply = tcp.receive(&mut world, 20 + "TLS is required here".len());
    assert_eq!(kind(&reply), TLS_REQUIRED);
    assert!(world.front.uris()[1].starts_with("nbds://127.0.0.1:"));
}

#[test]
fn t3_export_name_without_tls_is_closed_without_a_word() {
    let mut world = World::with_tls(MIB, false);
    let mut tcp = Plain::connect(&mut world);
    tcp.send(&mut world, &option(1, b""));
    assert_eq!(tcp.rest(&mut world), b"");
    assert_eq!(world.front.connections(), 0);
}

#[test]
fn t5_a_failed_tls_handshake_ends_the_connection() {
    let mut world = World::with_tls(MIB, false);
    let mut garbage = Plain::connect(&mut world);
    garbage.send(&mut world, &option(5, b""));
    garbage.receive(&mut world, 20);
    garbage.send(&mut world, &option(3, b"").repeat(5));
    let alert = garbage.rest(&mut world);
    assert_eq!(alert.first(), Some(&21), "an alert, and nothing of NBD");
    assert_eq!(world.front.connections(), 0);

    // A client that does not trust this server's authority.
    let other = world.path("other");
    pki::write(&other);
    let refused = Plain::connect(&mut world).upgrade(&mut world, config(&other, false, &[&TLS13]));
    assert!(refused.is_err());
    world.settle();
    assert_eq!(world.front.connections(), 0);
}

#[test]
fn t5_a_client_without_a_certificate_or_with_one_of_another_authority_is_refused_where_one_is_required() {
    let mut world = World::with_tls(MIB, true);
    let (ours, other) = (world.path("pki"), world.path("other"));
    pki::write(&other);
    fs::copy(ours.join("ca-cert.pem"), other.join("ca-cert.pem")).expect("it trusts our server");
    for versions in [&[&TLS13], &[&TLS12]] {
        for config in [config(&ours, false, versions), config(&other, true, versions)] {
            // With TLS 1.3 the client is done before the server has seen what it shows.
            let refused = Plain::connect(&mut world).upgrade(&mut world, config).and_then(|mut client| {
                client.send(&mut world, &option(3, b""));
                client.try_receive(&mut world, 1)
            });
            assert!(refused.is_err());
            world.settle();
            assert_eq!(world.front.connections(), 0);
        }
        let mut good = Plain::connect(&mut world).upgrade(&mut world, config(&ours, true, versions)).expect("ours");
        good.send(&mut world, &option(1, b""));
        good.receive(&mut world, 10);
    }
}

#[test]
fn t6_plain_text_behind_starttls_is_never_understood() {
    let mut world = World::with_tls(MIB, false);
    let mut tcp = Plain::connect(&mut world);
    // What an attacker put between: it arrives together with STARTTLS.
    tcp.send(&mut world, &[option(5, b""), option(8, b""), option(3, b"")].concat());
    tcp.receive(&mut world, 20);
    let config = config(&world.path("pki"), false, &[&TLS13]);
    let mut client = Secure::over(&mut world, tcp.stream, config).expect("what came between is forgotten");
    client.send(&mut world, &option(4711, b""));
    let reply = client.receive(&mut world, 20 + "this option is not known here".len());
    assert_eq!(reply[8..12], 4711u32.to_be_bytes(), "the first answer is to the first option behind TLS");
    client.send(&mut world, &option(5, b""));
    let reply = client.receive(&mut world, 20 + "TLS has begun already".len());
    assert_eq!(kind(&reply), 1 << 31 | 3);
    // Structured replies were not negotiated: DF is not offered.
    client.send(&mut world, &option(1, b""));
    assert_eq!(client.receive(&mut world, 10)[9] & 0x80, 0);
}

#[test]
fn t7_tls_1_2_and_1_3_are_spoken_and_nothing_older() {
    let mut world = World::with_tls(MIB, false);
    for (version, expect) in [(&TLS12, ProtocolVersion::TLSv1_2), (&TLS13, ProtocolVersion::TLSv1_3)] {
        let config = config(&world.path("pki"), false, &[version]);
        let client = Plain::connect(&mut world).upgrade(&mut world, config).expect("a version of today");
        assert_eq!(client.version(), expect);
    }
    // A ClientHello of TLS 1.1 with two of its cipher suites.
    let hello = [&[3, 2][..], &[7; 32], &[0], &[0, 4, 0, 0x2f, 0, 0x35], &[1, 0]].concat();
    let record = [&[22, 3, 1, 0, hello.len() as u8 + 4, 1, 0, 0, hello.len() as u8][..], &hello].concat();
    let mut old = Plain::connect(&mut world);
    old.send(&mut world, &option(5, b""));
    old.receive(&mut world, 20);
    old.send(&mut world, &record);
    let alert = old.rest(&mut world);
    assert_eq!((alert[0], alert.len(), alert[5]), (21, 7, 2), "one fatal alert");
}

#[test]
fn t8_there_is_no_way_back_to_plain_text() {
    let mut world = World::with_tls(MIB, false);
    let client = Secure::ready(&mut world);
    let mut plain = client.into_plain();
    plain.send(&mut world, &request(FLUSH, 1, 0, 0));
    let said = plain.rest(&mut world);
    assert!(said.windows(4).all(|window| window != 0x6744_6698u32.to_be_bytes()), "no reply");
    assert_eq!((world.memory.flushes, world.front.connections()), (0, 0));
}

#[test]
fn a_tls_handshake_counts_as_part_of_the_ten_seconds() {
    let mut world = World::with_tls(MIB, false);
    let mut silent = Plain::connect(&mut world);
    silent.send(&mut world, &option(5, b""));
    silent.receive(&mut world, 20);
    world.pass(9);
    assert_eq!(world.front.connections(), 1);
    world.pass(3);
    assert_eq!(world.front.connections(), 0);
}

#[test]
fn requests_small_and_large_go_through_tls_unchanged() {
    let mut world = World::with_tls(64 * MIB, false);
    let mut client = Secure::ready(&mut world);
    let (mut at, mut expect) = (0, vec![0u8; 64 << 20]);
    for (cookie, length) in [512usize, 4096, 65_536, 1 << 20, 512, 32 << 20].into_iter().enumerate() {
        let payload: Vec<u8> = (0..length).map(|byte| (byte / 512 + cookie * 31) as u8).collect();
        expect[at..at + length].copy_from_slice(&payload);
        client.send(&mut world, &write(cookie as u64, at as u64, &payload));
        assert_eq!(client.receive(&mut world, 16), simple(0, cookie as u64));
        at += length;
    }
    assert!(world.memory.bytes == expect);
    for (offset, length) in [(0, 512u32), (4096, 32 << 20), (100, 1), (1 << 20, 70_001)] {
        client.send(&mut world, &request(0, 9, offset, length));
        let reply = client.receive(&mut world, 16 + length as usize);
        assert!(reply[16..] == expect[offset as usize..][..length as usize]);
    }
    // Many in one go, so that records and requests do not end together.
    client.send(&mut world, &(0..1000).flat_map(|cookie| request(0, cookie, cookie * 512, 512)).collect::<Vec<u8>>());
    client.receive(&mut world, 1000 * (16 + 512));
}

#[test]
fn x13_disc_ends_tls_before_the_socket() {
    let mut world = World::with_tls(MIB, false);
    let mut client = Secure::ready(&mut world);
    client.send(&mut world, &[request(FLUSH, 1, 0, 0), request(2, 2, 0, 0)].concat());
    assert_eq!(client.receive(&mut world, 16), simple(0, 1));
    let end = client.try_receive(&mut world, 1).expect_err("nothing more comes");
    assert!(!end.to_string().contains("close_notify"), "the end was announced: {end}");
    assert_eq!(world.front.connections(), 0);
}

#[test]
fn a_client_that_reads_nothing_over_tls_is_bounded_and_given_up() {
    let mut world = World::with_tls(4 * MIB, false);
    let mut deaf = Secure::ready(&mut world);
    let mut good = Secure::ready(&mut world);
    let reads: Vec<u8> = (0..1_000_000).flat_map(|cookie| request(0, cookie, 0, 1 << 20)).collect();
    let sent = deaf.push(&mut world, &reads);
    assert!(sent < reads.len(), "its own socket is full");
    let free = world.room;
    for round in 0..20 {
        good.send(&mut world, &write(round, 0, &[round as u8; 4096]));
        assert_eq!(good.receive(&mut world, 16), simple(0, round));
    }
    assert_eq!(world.room, free);
    world.pass(70);
    assert_eq!(world.front.connections(), 1);
    good.send(&mut world, &request(FLUSH, 1, 0, 0));
    good.receive(&mut world, 16);
}

#[test]
fn what_is_encrypted_and_not_read_is_lent_like_the_rest() {
    const SHARE: u64 = 128 << 10;
    let mut world = World::with_tls(64 * MIB, false);
    let mut deaf = Secure::ready(&mut world);
    // Each reply goes to the session as a whole, until the sockets take no more; a moment later they still do not.
    let mut full_turns = 0;
    while full_turns < 10 {
        if world.front.is_idle() {
            deaf.send(&mut world, &request(0, 1, 0, 64 << 10));
            full_turns = 0;
        }
        world.settle();
        world.turn(None, 20);
        full_turns += 1;
    }
    // It has moved nothing for long, and all of its share is taken: what the session holds is lent.
    world.pass(3);
    world.hold = true;
    deaf.send(&mut world, &request(0, 2, 0, SHARE as u32));
    let mut good = Raw::ready(&mut world);
    let reads = |count: u64, bytes: u64| (0..count).flat_map(move |cookie| request(0, cookie, 0, bytes as u32));
    good.send(&mut world, &reads(1, 32 * MIB).chain(reads(100, 16 << 10)).collect::<Vec<u8>>());
    world.settle();
    let asked: u64 = world.held.iter().map(|request| request.span.bytes()).sum();
    let all = SHARE + (33 * MIB + SHARE);
    assert!(asked < all && asked > all - (256 << 10), "{asked} of {all} bytes");
}

#[test]
fn a_stop_reaches_clients_behind_tls() {
    let mut world = World::with_tls(MIB, false);
    let mut client = Secure::ready(&mut world);
    world.front.shutdown();
    world.wake();
    assert!(client.try_receive(&mut world, 1).is_err());
    assert_eq!(world.front.connections(), 0);
}

#[test]
fn a_thousand_handshakes_leave_nothing_behind() {
    let mut world = World::with_tls(MIB, false);
    let descriptors = || fs::read_dir("/proc/self/fd").expect("proc").count();
    drop(Secure::ready(&mut world));
    world.settle();
    let before = descriptors();
    for _ in 0..1000 {
        drop(Plain::connect(&mut world));
        if world.front.connections() > 32 {
            world.settle();
        }
    }
    (0..50).for_each(|_| drop(Secure::ready(&mut world)));
    world.settle();
    assert_eq!(world.front.connections(), 0);
    assert!(descriptors() <= before + 64);
}

#[test]
fn libnbd_copies_in_and_out_over_tls() {
    let mut world = World::with_tls(16 * MIB, true);
    let port = world.front.uris()[1].trim_end_matches('/').rsplit_once(':').expect("a port").1.to_owned();
    let uri = format!("nbds://localhost:{port}/?tls-certificates={}", world.path("pki").display());
    let json = world.succeed("libnbd-bin", "nbdinfo", &["--json", &uri]);
    assert!(json.contains("\"TLS\": true"), "{json}");
    let contents: Vec<u8> = (0..16u64 << 20).map(|at| ((at / 512 * 31) ^ at) as u8).collect();
    fs::write(world.path("in"), &contents).expect("the file is written");
    world.succeed("libnbd-bin", "nbdcopy", &["--flush", "in", &uri]);
    assert!(world.memory.bytes == contents);
    world.succeed("libnbd-bin", "nbdcopy", &[&uri, "out"]);
    assert!(fs::read(world.path("out")).expect("the file was written") == contents);
    // Without a certificate of its own, and without TLS at all.
    let strangers = world.path("strangers");
    fs::create_dir(&strangers).expect("a folder");
    fs::copy(world.path("pki").join("ca-cert.pem"), strangers.join("ca-cert.pem")).expect("it trusts our server");
    let stranger = format!("nbds://localhost:{port}/?tls-certificates={}", strangers.display());
    assert!(!world.run("libnbd-bin", "nbdinfo", &[&stranger]).status.success());
    assert!(!world.run("libnbd-bin", "nbdinfo", &[&format!("nbd://localhost:{port}/")]).status.success());
}

#[test]
fn qemu_reads_what_it_wrote_over_tls() {
    let mut world = World::with_tls(16 * MIB, true);
    let port = world.front.uris()[1].trim_end_matches('/').rsplit_once(':').expect("a port").1.to_owned();
    let object = format!("tls-creds-x509,id=tls,endpoint=client,dir={}", world.path("pki").display());
    let image = format!("driver=nbd,host=localhost,port={port},tls-creds=tls");
    let commands =
        ["write -P 7 0 8M", "write -P 9 1M 64k", "write -z 2M 1M", "flush", "read -P 9 1M 64k", "read -P 0 2M 1M", "read -P 7 3M 5M"];
    let arguments: Vec<&str> = ["--object", &object]
        .into_iter()
        .chain(commands.iter().flat_map(|command| ["-c", command]))
        .chain(["--image-opts", &image])
        .collect();
    world.qemu_io(&arguments);
}

/// The error when a front is made with these files.
fn refusal(change: impl FnOnce(&std::path::Path, &mut Certificates)) -> String {
    let dir = tempfile::tempdir().expect("a directory");
    pki::write(dir.path());
    let file = |name: &str| dir.path().join(name);
    let mut tls = Certificates { certificate: file("server-cert.pem"), key: file("server-key.pem"), client_ca: Some(file("ca-cert.pem")) };
    change(dir.path(), &mut tls);
    let mut options = Options::new(exports(MIB, 4096));
    options.addresses.push("127.0.0.1:0".parse().expect("an address"));
    options.tls = Some(tls);
    let error = Front::lobby(options).err().expect("refused");
    assert!(!error.contains('\n'), "one line: {error}");
    error.replace(&format!("{}/", dir.path().display()), "")
}

#[test]
fn wrong_files_are_refused_in_one_line_that_names_them() {
    let missing = refusal(|dir, tls| tls.certificate = dir.join("nothing.pem"));
    assert!(missing.starts_with("TLS certificate nothing.pem: No such file"), "{missing}");
    let folder = refusal(|dir, tls| tls.key = dir.to_owned());
    assert!(folder.starts_with("TLS key ") && folder.contains("not a regular file"), "{folder}");
    let swapped = refusal(|_, tls| std::mem::swap(&mut tls.key, &mut tls.certificate));
    assert!(swapped.starts_with("TLS certificate server-key.pem: no certificate in PEM form"), "{swapped}");
    let keyless = refusal(|dir, tls| tls.key = dir.join("server-cert.pem"));
    assert!(keyless.starts_with("TLS key server-cert.pem: no private key in PEM form"), "{keyless}");
    let strange = refusal(|dir, tls| tls.key = dir.join("client-key.pem"));
    assert!(strange.contains("server-cert.pem and key client-key.pem do not work together"), "{strange}");
    let authority = refusal(|dir, tls| tls.client_ca = Some(dir.join("client-key.pem")));
    assert!(authority.starts_with("TLS client authority client-key.pem: no certificate"), "{authority}");
}

#[test]
fn an_address_beyond_loopback_is_refused_without_tls_and_served_with_it() {
    let options = |tls| {
        let mut options = Options::new(exports(MIB, 4096));
        options.addresses.push("0.0.0.0:0".parse().expect("an address"));
        options.tls = tls;
        options
    };
    let error = Front::lobby(options(None)).err().expect("refused");
    assert!(error.contains("needs TLS"), "{error}");
    let dir = tempfile::tempdir().expect("a directory");
    pki::write(dir.path());
    let tls = Certificates { certificate: dir.path().join("server-cert.pem"), key: dir.path().join("server-key.pem"), client_ca: None };
    assert!(Front::lobby(options(Some(tls))).expect("it listens").uris()[0].starts_with("nbds://0.0.0.0:"));
}

#[test]
fn an_address_beyond_loopback_that_asks_for_no_certificates_is_noted() {
    let dir = tempfile::tempdir().expect("a directory");
    pki::write(dir.path());
    let file = |name: &str| dir.path().join(name);
    for (address, authority, is_noted) in
        [("0.0.0.0:0", None, true), ("0.0.0.0:0", Some(file("ca-cert.pem")), false), ("127.0.0.1:0", None, false)]
    {
        let mut options = Options::new(exports(MIB, 4096));
        options.addresses.push(address.parse().expect("an address"));
        options.tls = Some(Certificates { certificate: file("server-cert.pem"), key: file("server-key.pem"), client_ca: authority });
        let notes: Vec<String> = Front::lobby(options).expect("it listens").notes().collect();
        assert_eq!(notes.len(), usize::from(is_noted), "{address}: {notes:?}");
        assert!(notes.iter().all(|note| note.contains("whoever reaches it may connect")), "{notes:?}");
    }
}

#[test]
fn what_came_behind_the_handshake_through_tls_goes_to_the_volume_with_its_client() {
    let mut world = World::with_tls(MIB, false);
    let mut client = Secure::connect(&mut world);
    // One record: it is decrypted in the lobby, all of it, and its end belongs to the volume.
    client.send(&mut world, &[option(1, b""), write(1, 4096, &[9; 8192])].concat());
    assert_eq!(client.receive(&mut world, 10 + 16)[10..], simple(0, 1));
    client.send(&mut world, &request(0, 2, 8192, 4096));
    assert_eq!(client.receive(&mut world, 16 + 4096)[16..], [9; 4096]);
}

/// As with front threads, which answer what memory has at once, and then go on with whoever waited for room.
#[test]
fn a_client_with_tls_that_never_stops_sending_has_no_more_of_a_turn_than_the_receive_buffer_holds() {
    let mut world = World::with_tls(MIB, false);
    let mut client = Secure::ready(&mut world);
    // Of 32 KiB: what fits into the receive buffer ends where a request does.
    const REQUESTS: usize = 1152;
    let piece = [write(0, 0, &[7; 512]), request(FLUSH, 0, 0, 0).repeat(REQUESTS - 1)].concat();
    assert_eq!(piece.len(), 32 << 10);
    let room = std::mem::replace(&mut world.room.requests, 0);
    let pushed = client.push(&mut world, &piece.repeat(64));
    world.settle();
    let mut taken = 0;
    loop {
        let mut events = Vec::new();
        world.front.resume(&mut Room::whole(1, MIB), &mut events);
        if events.is_empty() {
            break;
        }
        for event in events {
            let Event::Arrived(request) = event else { panic!("a front only delivers requests: {event:?}") };
            world.front.reply(Reply { id: request.id, result: Ok(Outcome::Done) });
            taken += 1;
        }
    }
    assert!((1..=12 * REQUESTS).contains(&taken), "{taken} requests of {pushed} bytes in one turn");
    assert!(pushed > 512 << 10, "{pushed} bytes were there");
    // The rest has its turns.
    world.room.requests = room;
    client.receive(&mut world, pushed / piece.len() * REQUESTS * 16);
}

#[test]
fn tls_1_3_answers_options_behind_it() {
    let mut world = World::with_tls(MIB, false);
    let mut client = Secure::connect(&mut world);
    client.send(&mut world, &option(8, b""));
    assert_eq!(kind(&client.receive(&mut world, 20)), ACK);
}

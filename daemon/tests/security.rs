//! What was wrong in other NBD servers, and certificates that must not do (the numbers are those of docs/security.md).

use std::fs;
use std::path::Path;

use crate::world::secure::{Plain, config};
use crate::world::{Raw, World, option, pki, request, simple, write};
use rcgen::{CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair, date_time_ymd};
use rustls::version::{TLS12, TLS13};
use tidegate_daemon::front::nbd::{Certificates, Export, Exports};

const MIB: u64 = 1 << 20;
const EXPORT_NAME: u32 = 1;
const LIST: u32 = 3;
const INFO: u32 = 6;
const GO: u32 = 7;
const STRUCTURED_REPLY: u32 = 8;
const SET_META_CONTEXT: u32 = 10;
const ERR_INVALID: u32 = 1 << 31 | 3;

/// A client that has sent its flags.
fn client(world: &mut World) -> Raw {
    let mut raw = Raw::connect(world);
    raw.receive(world, 18);
    raw.send(world, &3u32.to_be_bytes());
    raw
}

/// The kind of the next option reply; its data is taken too.
fn kind(raw: &mut Raw, world: &mut World) -> u32 {
    let head = raw.receive(world, 20);
    let length = u32::from_be_bytes(head[16..20].try_into().unwrap());
    raw.receive(world, length as usize);
    u32::from_be_bytes(head[12..16].try_into().unwrap())
}

/// It is served as if nothing had been.
fn goes_on(mut raw: Raw, world: &mut World) {
    raw.send(world, &option(EXPORT_NAME, b""));
    raw.receive(world, 10);
    raw.send(world, &write(1, 0, &[7; 512]));
    assert_eq!(raw.receive(world, 16), simple(0, 1));
}

/// A client that only connects made nbdkit open what lies behind it.
#[test]
fn cve_2019_14850_a_client_that_has_not_chosen_an_export_costs_nothing_behind_the_front() {
    let mut world = World::new(MIB);
    world.hold = true;
    let idle: Vec<Raw> = (0..500).map(|_| Raw::connect(&mut world)).collect();
    world.settle();
    assert_eq!((world.front.connections(), world.held.len()), (500, 0));
    drop(idle);
    world.settle();
    assert_eq!(world.front.connections(), 0);
}

/// INFO and contexts before the end of the haggling made nbdkit fail an assertion.
#[test]
fn cve_2019_14851_information_may_be_asked_for_in_any_order_and_again() {
    let mut world = World::new(MIB);
    let mut raw = client(&mut world);
    let named = |name: &[u8]| [&(name.len() as u32).to_be_bytes(), name, &0u16.to_be_bytes()].concat();
    let context = [&0u32.to_be_bytes()[..], &1u32.to_be_bytes(), &15u32.to_be_bytes(), b"base:allocation"].concat();
    for _ in 0..3 {
        raw.send(&mut world, &[option(INFO, &named(b"")), option(STRUCTURED_REPLY, b""), option(SET_META_CONTEXT, &context)].concat());
        raw.send(&mut world, &[option(GO, &named(b"none")), option(INFO, &named(b"none")), option(LIST, b"")].concat());
    }
    world.settle();
    assert_eq!(world.front.connections(), 1);
    drop(raw);
    world.settle();
    let raw = client(&mut world);
    goes_on(raw, &mut world);
}

/// nbd-server added to a length that was 2^32 - 1, and wrote behind its memory.
#[test]
fn cve_2022_26495_a_name_whose_length_overflows_is_invalid() {
    let mut world = World::new(MIB);
    for length in [u32::MAX, u32::MAX - 1, u32::MAX - 5, 1 << 31, 7] {
        let mut raw = client(&mut world);
        for kind_of in [INFO, GO, SET_META_CONTEXT] {
            raw.send(&mut world, &option(STRUCTURED_REPLY, b""));
            kind(&mut raw, &mut world);
            raw.send(&mut world, &option(kind_of, &[&length.to_be_bytes()[..], &[0; 6]].concat()));
            assert_eq!(kind(&mut raw, &mut world), ERR_INVALID);
        }
        goes_on(raw, &mut world);
    }
}

/// nbd-server copied names of any length into 4,096 bytes of stack.
#[test]
fn cve_2022_26496_a_name_longer_than_the_protocol_allows_is_invalid() {
    let mut world = World::new(MIB);
    for length in [4097usize, 5_000, 65_000] {
        let mut raw = client(&mut world);
        let name = [&(length as u32).to_be_bytes()[..], &vec![b'a'; length], &0u16.to_be_bytes()].concat();
        for kind_of in [INFO, GO] {
            raw.send(&mut world, &option(kind_of, &name));
            assert_eq!(kind(&mut raw, &mut world), ERR_INVALID);
        }
        goes_on(raw, &mut world);
    }
}

/// A client of this server's authority, shown to a server that takes clients of `authority`.
fn refused(shown: &Path, authority: &Path) {
    for versions in [&[&TLS13], &[&TLS12]] {
        let mut world = World::with(MIB, |options| {
            options.addresses.push("127.0.0.1:0".parse().unwrap());
            let file = |name: &str| shown.join(name);
            let client_ca = Some(authority.to_owned());
            options.tls = Some(Certificates { certificate: file("server-cert.pem"), key: file("server-key.pem"), client_ca });
        });
        // With TLS 1.3 the client is done before the server has seen what it shows.
        let result = Plain::connect(&mut world).upgrade(&mut world, config(shown, true, versions)).and_then(|mut client| {
            client.send(&mut world, &option(LIST, b""));
            client.try_receive(&mut world, 1)
        });
        assert!(result.is_err(), "{versions:?}");
        world.settle();
        assert_eq!(world.front.connections(), 0);
        // Others are served.
        let raw = client(&mut world);
        goes_on(raw, &mut world);
    }
}

/// A folder with a server's certificate, and this client's.
fn folder(certificate: String, key: String) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    pki::write(folder.path());
    fs::write(folder.path().join("client-cert.pem"), certificate).unwrap();
    fs::write(folder.path().join("client-key.pem"), key).unwrap();
    folder
}

fn of_client() -> CertificateParams {
    let mut params = CertificateParams::new(vec!["client".to_owned()]).unwrap();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params
}

#[test]
fn s2_certificates_that_are_out_of_date_or_not_valid_yet_are_refused() {
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    for (from, until) in [(2001, 2002), (2900, 2901)] {
        let (mut params, key) = (of_client(), KeyPair::generate().unwrap());
        (params.not_before, params.not_after) = (date_time_ymd(from, 1, 1), date_time_ymd(until, 1, 1));
        let folder = folder(params.signed_by(&key, &authority).unwrap().pem(), key.serialize_pem());
        let path = folder.path().join("clients.pem");
        fs::write(&path, authority.pem()).unwrap();
        refused(folder.path(), &path);
    }
}

#[test]
fn s2_a_certificate_that_only_its_owner_signed_is_refused() {
    let key = KeyPair::generate().unwrap();
    let folder = folder(of_client().self_signed(&key).unwrap().pem(), key.serialize_pem());
    refused(folder.path(), &folder.path().join("ca-cert.pem"));
}

#[test]
fn s2_a_certificate_for_servers_is_none_for_clients() {
    let folder = tempfile::tempdir().unwrap();
    pki::write(folder.path());
    for part in ["cert", "key"] {
        fs::copy(folder.path().join(format!("server-{part}.pem")), folder.path().join(format!("client-{part}.pem"))).unwrap();
    }
    refused(folder.path(), &folder.path().join("ca-cert.pem"));
}

/// Signed by an authority that is trusted, with SHA-1. (`openssl x509 -req -sha1`, valid until 2126: no library here would sign it.)
#[test]
fn s2_a_signature_over_sha_1_is_refused() {
    let folder = folder(include_str!("sha1/client-cert.pem").to_owned(), include_str!("sha1/client-key.pem").to_owned());
    let path = folder.path().join("clients.pem");
    fs::write(&path, include_str!("sha1/ca.pem")).unwrap();
    refused(folder.path(), &path);
}

/// What an attacker put behind STARTTLS was understood as if it had come through TLS. See `t6_plain_text_behind_starttls_is_never_understood`.
#[test]
fn cve_2021_3716_what_was_agreed_before_tls_does_not_count_behind_it() {
    let mut world = World::with_tls(MIB, false);
    let mut tcp = Plain::connect(&mut world);
    tcp.send(&mut world, &[option(5, b""), option(STRUCTURED_REPLY, b"")].concat());
    tcp.receive(&mut world, 20);
    let config = config(&world.path("pki"), false, &[&TLS13]);
    let mut client = crate::world::secure::Secure::over(&mut world, tcp.stream, config).expect("TLS begins");
    client.send(&mut world, &option(EXPORT_NAME, b""));
    assert_eq!(client.receive(&mut world, 10)[9] & 0x80, 0, "DF is not offered: structured replies were not agreed on");
    client.send(&mut world, &request(0, 3, 0, 512));
    assert_eq!(client.receive(&mut world, 16 + 512)[..16], simple(0, 3));
}

#[test]
fn s2_an_export_does_not_exist_for_clients_that_are_not_on_its_list() {
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let folder = folder(of_client().signed_by(&key, &authority).unwrap().pem(), key.serialize_pem());
    let path = folder.path().join("clients.pem");
    fs::write(&path, authority.pem()).unwrap();
    let export = |name: &str, clients: &[&str]| {
        let clients = clients.iter().map(|client| client.parse().expect("a client")).collect();
        Export { name: name.into(), description: String::new(), bytes: MIB, read_only: false, clients, block_bytes: 4096 }
    };
    let mut world = World::with(MIB, |options| {
        let list = vec![export("ours", &["ip:192.0.2.1", "dns:client"]), export("theirs", &["dns:other"]), export("everybody's", &[])];
        options.exports = Exports::new(list, Some(1)).expect("three names");
        options.addresses.push("127.0.0.1:0".parse().unwrap());
        let file = |name: &str| folder.path().join(name);
        let client_ca = Some(path.clone());
        options.tls = Some(Certificates { certificate: file("server-cert.pem"), key: file("server-key.pem"), client_ca });
    });
    let secure = |world: &mut World| {
        let plain = Plain::connect(world);
        plain.upgrade(world, config(folder.path(), true, &[&TLS13])).expect("this server's client")
    };
    let mut client = secure(&mut world);
    client.send(&mut world, &option(LIST, b""));
    for name in ["ours", "everybody's"] {
        let reply = client.receive(&mut world, 24 + name.len());
        assert_eq!(&reply[24..], name.as_bytes());
    }
    assert_eq!(client.receive(&mut world, 20)[12..16], 1u32.to_be_bytes(), "ACK: there are no more");
    for name in ["theirs", ""] {
        client.send(&mut world, &option(GO, &[&(name.len() as u32).to_be_bytes()[..], name.as_bytes(), &[0, 0]].concat()));
        let reply = client.receive(&mut world, 20 + "there is no export of this name".len());
        assert_eq!(reply[12..16], (1u32 << 31 | 6).to_be_bytes(), "ERR_UNKNOWN, as for a name that nobody has");
    }
    client.send(&mut world, &option(EXPORT_NAME, b"ours"));
    client.receive(&mut world, 10);
    client.send(&mut world, &write(1, 0, &[7; 512]));
    assert_eq!(client.receive(&mut world, 16), simple(0, 1));
    let mut curious = secure(&mut world);
    curious.send(&mut world, &option(EXPORT_NAME, b"theirs"));
    assert!(curious.try_receive(&mut world, 1).is_err(), "closed without a word");
    // Whoever may open the socket may have them all.
    let mut owner = self::client(&mut world);
    owner.send(&mut world, &option(INFO, &[&6u32.to_be_bytes()[..], b"theirs", &[0, 0]].concat()));
    assert_eq!(kind(&mut owner, &mut world), 3, "it is told of");
}

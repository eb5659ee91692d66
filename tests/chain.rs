//! One tidegate behind another: the outer one's origin is a file that nbdfuse makes of the inner one's export, over TLS (by nbdkit's NBD
//! client: nbdfuse itself reads no certificates that a URI names).

use crate::common::chance::Chance;
use crate::common::daemon::Daemon;
use crate::common::mount::Fuse;
use crate::common::nbd::Client;
use crate::common::{pki, text, tool, volume};

const BYTES: u64 = 64 << 20;
/// What is written at once, and how far apart.
const PIECE: u64 = 24 << 10;

/// The inner daemon on TCP with TLS, and its export as a file.
struct Inner {
    // In this order: the client goes before its server.
    fuse: Fuse,
    daemon: Daemon,
}

impl Inner {
    fn up(folder: &tempfile::TempDir) -> Inner {
        let certificates = folder.path().join("pki");
        if !certificates.exists() {
            pki::write(&certificates);
        }
        let file = |name: &str| text(&certificates.join(name)).to_owned();
        let (certificate, key) = (file("server-cert.pem"), file("server-key.pem"));
        let tls = ["--nbd", "127.0.0.1:0", "--tls-cert", &certificate, "--tls-key", &key];
        let dir = text(folder.path());
        // The first start writes all of it down.
        let first = !std::fs::read_to_string(folder.path().join("config.toml")).unwrap().contains("certificate");
        let arguments = if first { [&["up", "--dir", dir], &tls[..]].concat() } else { vec!["up", "--dir", dir] };
        let daemon = Daemon::start(folder.path(), &arguments);
        let port = daemon.uri.trim_end_matches('/').rsplit_once(':').expect("a port").1;
        let (port, certificates) = (format!("port={port}"), format!("tls-certificates={}", text(&certificates)));
        let nbdkit = ["[", "nbdkit", "--exit-with-parent", "nbd", "hostname=localhost", &port, "tls=require", &certificates, "]"];
        Inner { fuse: Fuse::new(&nbdkit), daemon }
    }

    /// All of it, read by another client.
    fn contents(&self, into: &std::path::Path) -> Vec<u8> {
        tool::shell(&format!("cat '{}' > '{}'", text(&self.fuse.file()), text(into))).succeeds();
        std::fs::read(into).unwrap()
    }

    fn kill(mut self) {
        self.fuse.kill();
        self.daemon.kill();
    }
}

fn outer_up(folder: &tempfile::TempDir, origin: &Inner) -> Daemon {
    let dir = text(folder.path());
    Daemon::start(folder.path(), &["up", "--dir", dir, "--origin", text(&origin.fuse.file())])
}

/// Writes pieces all over the volume, flushed at the end.
fn write(client: &mut Client, model: &mut [u8], seed: u64, pieces: u64) {
    let mut chance = Chance::new(seed);
    for _ in 0..pieces {
        let offset = 512 * chance.below((BYTES - PIECE) / 512);
        let sectors = 1 + chance.below(PIECE / 512 - 1);
        let data = chance.bytes(512 * sectors as usize);
        client.write(offset, &data).unwrap();
        model[offset as usize..offset as usize + data.len()].copy_from_slice(&data);
    }
    client.flush().unwrap();
}

fn same(one: &[u8], other: &[u8], what: &str) {
    let differs = one.iter().zip(other).position(|(one, other)| one != other);
    assert_eq!((differs, one.len()), (None, other.len()), "{what}");
}

#[test]
fn what_the_outer_one_drained_is_durable_in_the_inner_one_and_what_it_flushed_in_itself() {
    let inner_folder = volume("64MiB", "64MiB", "");
    let outer_folder = volume("64MiB", "64MiB", "");
    std::fs::remove_file(outer_folder.path().join("origin.img")).unwrap();
    std::fs::remove_file(outer_folder.path().join("cache.img")).unwrap();
    let inner = Inner::up(&inner_folder);
    let dir = text(outer_folder.path());
    let origin = inner.fuse.file();
    tool::tidegate(&["create", "--dir", dir, "--origin", text(&origin), "--cache-size", "64MiB"]).succeeds();
    std::fs::write(outer_folder.path().join("config.toml"), "").unwrap();
    let outer = outer_up(&outer_folder, &inner);
    let mut model = vec![0; BYTES as usize];
    let mut client = outer.connect();
    write(&mut client, &mut model, 1, 600);
    same(&client.read(0, 32 << 20).unwrap(), &model[..32 << 20], "through both");
    tool::tidegate(&["drain", "--dir", dir]).succeeds();
    let drained = model.clone();
    // The inner one holds it now, whatever becomes of the outer one.
    write(&mut client, &mut model, 2, 300);
    drop(client);
    outer.kill();
    inner.kill();

    let inner = Inner::up(&inner_folder);
    let held = inner.contents(&outer_folder.path().join("held"));
    // What was written behind the drain may have gone home as well; everything else is as it was drained.
    let lost = held.chunks(512).zip(drained.chunks(512).zip(model.chunks(512))).position(|(held, (old, new))| old == new && held != old);
    assert_eq!(lost, None, "an atom of the inner one is not what was drained");
    let outer = outer_up(&outer_folder, &inner);
    let mut client = outer.connect();
    for part in [0, 32 << 20] {
        same(&client.read(part as u64, 32 << 20).unwrap(), &model[part..part + (32 << 20)], "what the outer one flushed");
    }
    write(&mut client, &mut model, 3, 100);
    drop(client);
    tool::tidegate(&["drain", "--dir", dir]).succeeds();
    outer.stop();
    same(&inner.contents(&outer_folder.path().join("held")), &model, "the outer one drained, from the inner one alone");
    let Inner { fuse, daemon } = inner;
    drop(fuse);
    tool::tidegate(&["drain", "--dir", text(inner_folder.path())]).succeeds();
    daemon.stop();
    same(&std::fs::read(inner_folder.path().join("origin.img")).unwrap(), &model, "the last file behind everything");
}

//! What the SSD has to bear, as an operator sees it: counts that outlive the daemon, a budget that reads respect, space given back.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde_json::Value;

use crate::common::chance::Chance;
use crate::common::daemon::Daemon;
use crate::common::nbd::{Client, Command};
use crate::common::tool::tidegate;
use crate::common::{CARRIERS, text, volume};

const MIB: u64 = 1 << 20;

/// Writes MiB `first..end`, all different, and flushes.
fn write(client: &mut Client, first: u64, end: u64) -> Vec<Vec<u8>> {
    let data: Vec<Vec<u8>> = (first..end).map(|number| Chance::new(number + 1).bytes(MIB as usize)).collect();
    (first..).zip(&data).for_each(|(number, data)| client.write(number * MIB, data).unwrap());
    client.flush().unwrap();
    data
}

fn bytes(status: &Value, path: &str) -> u64 {
    status.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("no {path} in {status}"))
}

#[test]
fn wear_is_told_since_the_start_and_for_the_life_of_the_cache() {
    let folder = volume("64MiB", "64MiB", "[wear]\nrated_tbw = \"1GB\"\n");
    let daemon = Daemon::up(folder.path());
    write(&mut daemon.connect(), 0, 16);
    let status = daemon.status();
    assert_eq!(bytes(&status, "/wear/since_start/clients_bytes"), 16 * MIB);
    assert_eq!(bytes(&status, "/wear/since_start/by_cause/clients"), 16 * MIB);
    let sent = bytes(&status, "/wear/since_start/ssd_bytes");
    assert!((16 * MIB..20 * MIB).contains(&sent), "{sent}");
    let used = status.pointer("/wear/life/used_percent").and_then(Value::as_f64).unwrap();
    assert!((used - sent as f64 / 1e7).abs() < 0.1, "{used}% of a gigabyte");
    let lines = tidegate(&["status", "--dir", text(folder.path())]).succeeds();
    assert!(["wear ", "written ", "life "].iter().all(|name| lines.lines().any(|line| line.starts_with(name))), "{lines}");
    daemon.stop();

    let daemon = Daemon::up(folder.path());
    let status = daemon.status();
    assert_eq!((bytes(&status, "/wear/since_start/clients_bytes"), bytes(&status, "/wear/lifetime/clients_bytes")), (0, 16 * MIB));
    assert!(bytes(&status, "/wear/lifetime/ssd_bytes") >= sent);
    daemon.kill();
    let daemon = Daemon::up(folder.path());
    assert_eq!(bytes(&daemon.status(), "/wear/lifetime/clients_bytes"), 16 * MIB, "a kill takes nothing that a stop has told");
    daemon.stop();
}

#[test]
fn a_spent_budget_keeps_no_reads() {
    let folder = volume("64MiB", "64MiB", "[memory]\nram = \"0B\"\n[wear]\ndaily_write_budget = \"1MB\"\n");
    std::fs::write(folder.path().join("origin.img"), Chance::new(9).bytes(64 << 20)).unwrap();
    let daemon = Daemon::up(folder.path());
    let mut client = daemon.connect();
    let data = write(&mut client, 0, 8);
    for _ in 0..2 {
        client.read(32 * MIB, MIB as u32).unwrap();
    }
    client.expect(7 * MIB, &data[7]);
    let status = daemon.status();
    assert_eq!((bytes(&status, "/fills/kept_blocks"), bytes(&status, "/misses/blocks")), (0, 512), "{status}");
    assert_eq!((bytes(&status, "/fills/budget_blocks"), bytes(&status, "/wear/budget/unkept_blocks")), (512, 512), "{status}");
    assert!(status.pointer("/wear/budget/left_bytes").and_then(Value::as_i64).unwrap() < 0, "{status}");
    daemon.stop();
}

/// Bytes of the disk that a file takes.
fn allocated(file: &Path) -> u64 {
    std::fs::metadata(file).unwrap().blocks() * 512
}

#[test]
fn what_was_zeroed_is_discarded_and_nothing_else() {
    for carrier in CARRIERS {
        let folder = volume("64MiB", "64MiB", "[wear]\ndiscard = true\n");
        let cache = folder.path().join("cache.img");
        let daemon = Daemon::up_by(folder.path(), carrier);
        let mut client = daemon.connect();
        let data = write(&mut client, 0, 24);
        let before = allocated(&cache);
        client.send(Command::Zero, 0, 16 * MIB as u32, &[]).unwrap();
        assert_eq!(client.receive().unwrap().error, 0);
        client.flush().unwrap();
        // Sets are discarded behind the reply, two at a time. All but those that the zeroed blocks share with others.
        while bytes(&daemon.status(), "/discards/sets") < 15 {}
        let given_back = before - allocated(&cache);
        assert!(given_back >= 15 * MIB, "{given_back}");
        for (number, data) in (16..24).zip(&data[16..]) {
            client.expect(number * MIB, data);
        }
        client.expect(0, &vec![0; MIB as usize]);
        let again = write(&mut client, 4, 12);
        daemon.kill();

        let daemon = Daemon::up_by(folder.path(), carrier);
        let mut client = daemon.connect();
        (4..).zip(&again).for_each(|(number, data)| client.expect(number * MIB, data));
        (16..24).zip(&data[16..]).for_each(|(number, data)| client.expect(number * MIB, data));
        client.expect(15 * MIB, &vec![0; MIB as usize]);
        daemon.stop();
    }
}

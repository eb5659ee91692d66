//! Clients that others wrote, each through what it is known for.

use std::path::Path;

use crate::common::chance::Chance;
use crate::common::daemon::Daemon;
use crate::common::nbd::CAN_MULTI_CONN;
use crate::common::{folder, text, tool, volume};

/// A volume that is larger than its cache, so that every client meets misses, fills and destaging as well.
fn small() -> tempfile::TempDir {
    volume("256MiB", "96MiB", "[gate]\nwait = \"100ms\"\n")
}

#[test]
fn nbdinfo_sees_what_is_promised() {
    let folder = small();
    let daemon = Daemon::up(folder.path());
    let info = tool::run("nbdinfo", &["--json", &daemon.uri]).succeeds();
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    let export = &info["exports"][0];
    assert_eq!(info["structured"], true, "{info}");
    assert_eq!(export["export-size"], 256 << 20, "{info}");
    assert_eq!(export["is_read_only"], false, "{info}");
    for promise in ["can_flush", "can_fua", "can_multi_conn", "can_trim", "can_zero"] {
        assert_eq!(export[promise], true, "{promise}: {info}");
    }
    assert!(export["contexts"].as_array().is_some_and(|contexts| contexts.contains(&"base:allocation".into())), "{info}");
    for size in ["block_size_minimum", "block_size_preferred", "block_size_maximum"] {
        assert!(export[size].as_u64().is_some_and(u64::is_power_of_two), "{size}: {info}");
    }
    // A fresh sparse origin is one hole, and says so.
    let map = tool::run("nbdinfo", &["--map", "--totals", &daemon.uri]).succeeds();
    assert!(map.contains("hole") && map.contains("100.0%"), "{map}");
    daemon.stop();
}

/// An image with data, holes and a ragged pattern of both, of the volume's size.
fn image(at: &Path, bytes: u64) {
    let mut chance = Chance::new(7);
    let file = std::fs::File::create(at).unwrap();
    file.set_len(bytes).unwrap();
    let mut offset = 0;
    while offset < bytes {
        let length = (512 * (1 + chance.below(4096))).min(bytes - offset);
        if chance.below(3) > 0 {
            std::os::unix::fs::FileExt::write_all_at(&file, &chance.bytes(length as usize), offset).unwrap();
        }
        offset += length;
    }
}

#[test]
fn nbdcopy_brings_an_image_in_and_out_again_unchanged() {
    let folder = small();
    let daemon = Daemon::up(folder.path());
    let (original, copy) = (folder.path().join("original"), folder.path().join("copy"));
    image(&original, 256 << 20);
    tool::run("nbdcopy", &["--flush", text(&original), &daemon.uri]).succeeds();
    tool::run("nbdcopy", &[&daemon.uri, text(&copy)]).succeeds();
    tool::run("cmp", &[text(&original), text(&copy)]).succeeds();

    // Drained and stopped, the origin is that image; no header, no trailer.
    tool::tidegate(&["drain", "--dir", text(folder.path())]).succeeds();
    daemon.stop();
    tool::run("cmp", &[text(&original), text(&folder.path().join("origin.img"))]).succeeds();
}

/// Runs qemu-io's commands on the export. It counts wrong patterns as output, not always as failure: both are looked at.
fn qemu_io(daemon: &Daemon, options: &[&str], commands: &[&str]) {
    let commands = commands.iter().flat_map(|command| ["-c", command]);
    let arguments: Vec<&str> = ["-f", "raw"].into_iter().chain(options.iter().copied()).chain(commands).chain([&*daemon.uri]).collect();
    let ended = tool::run("qemu-io", &arguments);
    let shown = ended.to_string();
    ended.succeeds();
    for trouble in ["failed", "error", "rror:"] {
        assert!(!shown.contains(trouble), "{shown}");
    }
}

#[test]
fn qemu_io_reads_every_pattern_it_wrote() {
    let folder = small();
    let daemon = Daemon::up(folder.path());
    qemu_io(
        &daemon,
        &["-t", "writeback"],
        &[
            "write -P 0x11 0 1M",
            "write -P 0x22 512k 4k",
            "write -P 0x33 12345 6789", // unaligned: the edges are merged by the client or by us
            "write -f -P 0x44 2M 64k",
            "write -z 3M 1M",
            "write -P 0x55 3584k 512",
            "write -z -u 4M 128k",
            "write -P 0x66 5M 256k",
            "discard 5M 128k",
            "flush",
            "read -P 0x11 0 12288",
            "read -P 0x33 12345 6789",
            "read -P 0x11 19134 500000",
            "read -P 0x22 512k 4k",
            "read -P 0x11 528384 500000",
            "read -P 0x44 2M 64k",
            "read -P 0 2162688 900000",
            "read -P 0 3M 512k",
            "read -P 0x55 3584k 512",
            "read -P 0 3670528 500000",
            "read -P 0 4M 128k",
            "read -P 0 5M 128k",
            "read -P 0x66 5248k 128k",
        ],
    );
    // Every write with FUA.
    qemu_io(&daemon, &["-t", "writethrough"], &["write -P 0x77 6M 96k", "read -P 0x77 6M 96k"]);
    daemon.kill();

    let daemon = Daemon::up(folder.path());
    let same = ["read -P 0x33 12345 6789", "read -P 0x44 2M 64k", "read -P 0x55 3584k 512", "read -P 0 5M 128k", "read -P 0x77 6M 96k"];
    qemu_io(&daemon, &["-r"], &same);
    daemon.stop();
}

#[test]
fn qemu_img_bench_runs_at_depth_with_flushes() {
    let folder = small();
    let daemon = Daemon::up(folder.path());
    let bench = |options: &[&str]| {
        let arguments = [&["bench", "-f", "raw", "-t", "none"], options, &[&*daemon.uri]].concat();
        tool::run("qemu-img", &arguments).succeeds();
    };
    bench(&["-c", "4000", "-d", "32", "-s", "4k", "-w", "--flush-interval", "500"]);
    bench(&["-c", "4000", "-d", "32", "-s", "4k", "-S", "12k"]);
    bench(&["-c", "200", "-d", "8", "-s", "1M", "-w"]);
    assert!(daemon.status()["requests"]["flushes"].as_u64().unwrap() >= 8);
    daemon.stop();
}

fn fio(daemon: &Daemon, options: &[&str]) {
    let here = folder(); // fio leaves its state where it runs
    let uri = format!("--uri={}", daemon.uri);
    let fixed = ["--name=v", "--ioengine=nbd", &uri, "--verify=crc32c", "--verify_fatal=1", "--randseed=7"];
    let line = [&fixed[..], options].concat().iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ");
    tool::shell(&format!("cd '{}'; fio {line}", text(here.path()))).succeeds();
}

#[test]
fn fio_verifies_mixed_sizes_reads_and_writes() {
    let folder = small();
    let daemon = Daemon::up(folder.path());
    fio(
        &daemon,
        &["--rw=randwrite", "--bsrange=512-128k", "--blockalign=512", "--size=128M", "--io_size=96M", "--iodepth=32", "--fsync=64"],
    );
    fio(&daemon, &["--rw=randrw", "--bssplit=4k/70:64k/20:1m/10", "--size=200M", "--io_size=128M", "--iodepth=16", "--do_verify=1"]);
    daemon.stop();
}

#[test]
fn sixteen_connections_at_once_see_one_disk() {
    let folder = small();
    let daemon = Daemon::up(folder.path());
    let options = ["--rw=randwrite", "--bs=4k", "--size=8M", "--offset_increment=8M", "--numjobs=16", "--iodepth=8", "--fsync=128"];
    fio(&daemon, &options);

    // What one wrote, every other reads at once, flushed or not.
    let mut clients: Vec<_> = (0..16).map(|_| daemon.connect()).collect();
    assert!(clients.iter().all(|client| client.flags & CAN_MULTI_CONN != 0));
    let mut chance = Chance::new(16);
    for round in 0..64 {
        let data = chance.bytes(4096 + 512 * (round % 5));
        let offset = 512 * chance.below(100_000);
        clients[round % 16].write(offset, &data).unwrap();
        for client in &mut clients {
            client.expect(offset, &data);
        }
    }
    clients[0].flush().unwrap();
    drop(clients);
    daemon.stop();
}

/// Bytes of a file that take place on the disk, about.
fn allocated(file: &Path) -> u64 {
    std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(file).unwrap()) * 512
}

#[test]
fn qemu_img_converts_in_and_out_and_holes_stay_holes() {
    let folder = small();
    let daemon = Daemon::up(folder.path());
    let (original, copy, qcow2) = (folder.path().join("original"), folder.path().join("copy"), folder.path().join("qcow2"));
    // 32 MiB of data in 256 MiB.
    let file = std::fs::File::create(&original).unwrap();
    file.set_len(256 << 20).unwrap();
    let mut chance = Chance::new(11);
    for piece in 0..32 {
        std::os::unix::fs::FileExt::write_all_at(&file, &chance.bytes(1 << 20), (piece * 8 + piece % 3) << 20).unwrap();
    }
    let convert = |options: &[&str], from: &str, to: &str| {
        tool::run("qemu-img", &[&["convert"], options, &[from, to]].concat()).succeeds();
    };
    convert(&["-n", "-W", "-f", "raw", "-O", "raw"], text(&original), &daemon.uri);
    let map = tool::run("nbdinfo", &["--map", "--totals", &daemon.uri]).succeeds();
    let totals: Vec<(&str, &str)> = map
        .lines()
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            (words[0], words[2])
        })
        .collect();
    assert_eq!(totals, [("33554432", "0"), ("234881024", "3")], "data, and what is a hole and zero: {map}");
    let tiers = tool::run("nbdinfo", &["--map=tidegate:tier", "--totals", &daemon.uri]).succeeds();
    assert!(!tiers.is_empty() && tiers.lines().all(|line| line.split_whitespace().count() >= 3), "{tiers}");

    convert(&["-f", "raw", "-O", "raw"], &daemon.uri, text(&copy));
    convert(&["-f", "raw", "-O", "qcow2"], &daemon.uri, text(&qcow2));
    tool::run("cmp", &[text(&original), text(&copy)]).succeeds();
    tool::run("qemu-img", &["compare", "-f", "raw", "-F", "qcow2", text(&original), text(&qcow2)]).succeeds();
    // And home: the origin is as sparse as what came in.
    tool::tidegate(&["drain", "--dir", text(folder.path())]).succeeds();
    daemon.stop();
    tool::run("cmp", &[text(&original), text(&folder.path().join("origin.img"))]).succeeds();
    for (file, bytes) in [(&copy, 32 << 20), (&qcow2, 32 << 20), (&folder.path().join("origin.img"), 32 << 20)] {
        assert!(allocated(file) < bytes + (8 << 20), "{} takes {} bytes", file.display(), allocated(file));
    }
}

//! The command line as a person and as a program meet it.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::chance::Chance;
use crate::common::daemon::Daemon;
use crate::common::nbd::Client;
use crate::common::{folder, text, tool, volume};

#[test]
fn help_teaches() {
    let help = tool::tidegate(&["--help"]).succeeds();
    for words in ["Exit codes:", "Examples:", "tidegate up", "78", "128 and the number of a signal (129 SIGHUP, 130 SIGINT, 143 SIGTERM)"] {
        assert!(help.contains(words), "{words}: {help}");
    }
    for command in [
        "up",
        "create",
        "serve",
        "status",
        "drain",
        "stop",
        "check",
        "sim swarm",
        "sim replay",
        "sim list",
        "sim run",
        "probe",
        "sim probe",
    ] {
        let arguments: Vec<&str> = command.split(' ').chain(["--help"]).collect();
        let help = tool::tidegate(&arguments).succeeds();
        assert!(help.contains("Example") && !help.contains('\\'), "{command}: {help}");
    }
    assert!(tool::tidegate(&["--version"]).succeeds().starts_with("tidegate "));
}

#[test]
fn the_first_up_makes_everything_and_the_second_keeps_it() {
    let folder = folder();
    let dir = folder.path().join("tidegate-data");
    let daemon = Daemon::start(&dir, &["up", "--dir", text(&dir)]);
    assert_eq!(daemon.uri, format!("nbd+unix:///?socket={}", text(&dir.join("nbd.sock"))));
    assert_eq!(daemon.connect().size, 8 << 30);
    for socket in ["nbd.sock", "control.sock"] {
        let mode = std::fs::metadata(dir.join(socket)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{socket} is its owner's alone");
    }
    assert_eq!(std::fs::metadata(dir.join("cache.img")).unwrap().len(), 1 << 30);
    let config = std::fs::read_to_string(dir.join("config.toml")).unwrap();
    assert!(config.contains("#wait = \"2s\""), "{config}");
    let data = Chance::new(1).bytes(4096);
    daemon.connect().write(1 << 30, &data).unwrap();
    daemon.stop();

    let daemon = Daemon::up(&dir);
    daemon.connect().expect(1 << 30, &data);
    daemon.stop();
    assert_eq!(std::fs::read_to_string(dir.join("config.toml")).unwrap(), config, "written once");
}

#[test]
fn an_existing_origin_keeps_its_contents() {
    let folder = folder();
    let (dir, image) = (folder.path().join("volume"), folder.path().join("disk.img"));
    let contents = Chance::new(2).bytes(20 << 20);
    std::fs::write(&image, &contents).unwrap();
    let daemon = Daemon::start(&dir, &["up", "--dir", text(&dir), "--origin", text(&image)]);
    daemon.connect().expect(0, &contents);
    daemon.stop();
    assert!(std::fs::read(&image).unwrap() == contents, "nothing was written to it");
    assert!(!dir.join("origin.img").exists());
    // It is remembered: the next time nothing has to be named.
    let daemon = Daemon::up(&dir);
    assert_eq!(daemon.connect().size, 20 << 20);
    daemon.stop();
}

/// What a refusal advises is followed to the letter, from another folder: it is about this volume, and says what it costs.
#[test]
fn an_advice_means_the_volume_that_it_is_about() {
    let (elsewhere, folder) = (folder(), volume("48MiB", "64MiB", ""));
    let (dir, cache) = (folder.path().join("a volume"), folder.path().join("cache.img"));
    let create = ["create", "--dir", text(&dir), "--origin-size", "48MiB", "--cache-size", "64MiB"];
    let advice = |ended: &tool::Ended| ended.stderr.split('`').nth(1).expect("an advice").to_owned();
    let follow = |advice: &str| {
        let program = advice.replacen("tidegate", env!("CARGO_BIN_EXE_tidegate"), 1);
        tool::shell(&format!("cd '{}'; {program}", text(elsewhere.path())))
    };
    tool::tidegate(&create).succeeds();
    let daemon = Daemon::up(&dir);
    Client::connect(&dir.join("nbd.sock")).unwrap().write(0, &[7; 8192]).unwrap();
    daemon.stop();
    let refused = tool::tidegate(&create);
    assert_eq!((refused.code, advice(&refused)), (Some(78), format!("tidegate create --force --dir '{}'", text(&dir))), "{refused}");
    let forced = follow(&advice(&refused));
    assert!(forced.code == Some(0) && forced.stderr.lines().count() == 3, "{forced}");
    assert!(forced.stderr.contains("held 2 blocks newer than the origin, which are given up"), "{forced}");
    assert!(forced.stderr.contains("lost: 1048576 bytes from byte 0 on"), "{forced}");
    // A cache that the folder does not name: the advice does.
    std::fs::write(&cache, [0xff; 1 << 20]).unwrap();
    for command in ["up", "create"] {
        let refused = tool::tidegate(&[command, "--dir", text(&dir), "--cache", text(&cache)]);
        assert_eq!(advice(&refused), format!("tidegate create --force --dir '{}' --cache {}", text(&dir), text(&cache)), "{refused}");
    }
    let asked = tool::tidegate(&["status", "--dir", text(&dir)]);
    assert_eq!((asked.code, advice(&asked)), (Some(1), format!("tidegate up --dir '{}'", text(&dir))), "{asked}");
    assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0, "another volume was made");
}

#[test]
fn serve_takes_a_configuration_and_tcp() {
    let folder = volume("48MiB", "64MiB", "nbd = \"tcp:127.0.0.1:0\"\n");
    let config = folder.path().join("config.toml");
    let daemon = Daemon::start(folder.path(), &["serve", "--config", text(&config)]);
    assert!(daemon.uri.starts_with("nbd://127.0.0.1:"), "{}", daemon.uri);
    let size = tool::run("nbdinfo", &["--size", &daemon.uri]).succeeds();
    assert_eq!(size.trim(), (48u64 << 20).to_string());
    daemon.stop();
}

#[test]
fn status_says_what_happened() {
    let folder = volume("64MiB", "64MiB", "");
    let daemon = Daemon::up(folder.path());
    let mut client = daemon.connect();
    let data = Chance::new(3).bytes(64 << 10);
    client.write(0, &data).unwrap();
    client.flush().unwrap();
    client.expect(0, &data);
    client.read(32 << 20, 4096).unwrap();
    // Too large to be kept in memory.
    let large = Chance::new(4).bytes(128 << 10);
    client.write(1 << 20, &large).unwrap();
    client.expect(1 << 20, &large);
    let status = daemon.status();
    for (key, expected) in [
        ("/phase", Value::from("serving")),
        ("/dirty_blocks", 48.into()),
        ("/memory/hit_blocks", 16.into()),
        ("/memory/miss_blocks", 33.into()),
        ("/memory/pages", 49.into()),
        ("/hits/blocks", 32.into()),
        ("/misses/blocks", 1.into()),
        ("/requests/writes", 2.into()),
        ("/requests/reads", 3.into()),
        ("/latency_ns/read/count", 3.into()),
    ] {
        assert_eq!(status.pointer(key), Some(&expected), "{key}: {status}");
    }
    for key in [
        "/oldest_dirty_seconds",
        "/latency_ns/flush/p99",
        "/waits/set",
        "/queues/cache/client/queue_ns/p99",
        "/queues/origin/client/service_ns/p99",
    ] {
        assert!(status.pointer(key).is_some_and(Value::is_number), "{key}: {status}");
    }
    assert!(status["ledger_bytes"].as_object().is_some_and(|ledger| !ledger.is_empty()), "{status}");
    let human = tool::tidegate(&["status", "--dir", text(folder.path())]).succeeds();
    for words in ["serving", "in memory", "hits", "dirty", "gate", "waits", "p99"] {
        assert!(human.contains(words), "{words}: {human}");
    }
    daemon.stop();
}

#[test]
fn drain_ends_when_nothing_is_dirty_and_the_volume_stays_in_use() {
    let folder = volume("64MiB", "64MiB", "");
    let daemon = Daemon::up(folder.path());
    let mut client = daemon.connect();
    let data = Chance::new(4).bytes(8 << 20);
    client.write(512, &data).unwrap();
    assert!(daemon.status()["dirty_blocks"].as_u64().unwrap() >= 2048);
    tool::tidegate(&["drain", "--dir", text(folder.path())]).succeeds();
    let status = daemon.status();
    assert_eq!(status["dirty_blocks"], 0, "{status}");
    let origin = std::fs::read(folder.path().join("origin.img")).unwrap();
    assert!(origin[512..][..data.len()] == data[..], "the origin has it all");
    client.expect(512, &data);
    client.write(0, &data[..512]).unwrap();
    drop(client);
    daemon.stop();
}

/// A daemon that still recovers, has ended and is recovering again, and only then knows what is dirty: that is waited for.
#[test]
fn a_drain_that_is_asked_for_while_the_volume_recovers_is_done_when_that_is_home() {
    let folder = volume("48MiB", "64MiB", "");
    let status = |phase: &str, dirty: u64, drain: &str| {
        format!("{{\"name\":\"\",\"phase\":\"{phase}\",\"dirty_blocks\":{dirty},\"zero_ranges\":0,\"drain\":{drain}}}")
    };
    let drains = "{\"blocks_at_start\":3,\"blocks_left\":3}";
    let script = [
        ("status", status("recovering", 0, "null")),
        ("status", status("recovering", 0, "null")),
        ("status", status("serving", 3, "null")),
        ("drain", status("serving", 3, drains)),
        ("status", status("recovering", 0, "null")),
        ("status", status("serving", 3, "null")),
        ("drain", status("serving", 3, drains)),
        ("status", status("serving", 0, "null")),
    ];
    let listener = UnixListener::bind(folder.path().join("control.sock")).unwrap();
    let expected = script.each_ref().map(|(verb, _)| *verb);
    let (sender, asked) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for (_, answer) in &script {
            let (mut stream, _) = listener.accept().unwrap();
            let mut line = String::new();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
            let question: Value = serde_json::from_str(&line).unwrap();
            sender.send(question["verb"].as_str().unwrap().to_owned()).unwrap();
            stream.write_all(format!("{answer}\n").as_bytes()).unwrap();
        }
    });
    let drained = tool::tidegate(&["drain", "--dir", text(folder.path())]).succeeds();
    assert!(drained.contains("nothing is dirty, the origin holds everything"), "{drained}");
    assert_eq!(asked.try_iter().collect::<Vec<String>>(), expected);
}

/// Somebody writes all the time: what was dirty when the drain was asked for is home all the same.
#[test]
fn a_drain_does_not_wait_for_what_is_written_after_it() {
    let folder = volume("64MiB", "64MiB", "");
    let daemon = Daemon::up(folder.path());
    let mut client = daemon.connect();
    let data = Chance::new(4).bytes(8 << 20);
    client.write(0, &data).unwrap();
    let mut writer = daemon.connect();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let drained = std::thread::scope(|scope| {
        scope.spawn(|| {
            for at in 0..6_000_u64 {
                if is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    return;
                }
                writer.write((32 << 20) + at % 4_096 * 4_096, &data[..4_096]).unwrap();
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let since = Instant::now();
        let drained = tool::tidegate(&["drain", "--dir", text(folder.path())]).succeeds();
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(since.elapsed() < Duration::from_secs(20), "{drained}");
        drained
    });
    assert!(drained.contains("the origin"), "{drained}");
    let origin = std::fs::read(folder.path().join("origin.img")).unwrap();
    assert!(origin[..data.len()] == data[..], "the origin has it all");
    daemon.stop();
}

/// Waits until a process has blocked SIGINT: from then on it will see one instead of dying of it.
fn has_blocked_sigint(pid: u32) -> bool {
    const SIGINT: u64 = 2;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a running process");
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).expect("as proc(5) says");
    u64::from_str_radix(blocked.trim(), 16).unwrap() & 1 << (SIGINT - 1) != 0
}

#[test]
fn ctrl_c_cancels_a_drain_and_leaves_the_volume_in_use() {
    let folder = volume("64MiB", "64MiB", "");
    let daemon = Daemon::up(folder.path());
    let mut client = daemon.connect();
    let data = Chance::new(7).bytes(8 << 20);
    client.write(0, &data).unwrap();
    let signal = |name: &str, pid: u32| tool::run("kill", &[name, &pid.to_string()]).succeeds();
    // The daemon is held still until the signal has been sent: no drain is so quick that it would end before.
    signal("-STOP", daemon.pid());
    let mut drain = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    drain.args(["drain", "--dir"]).arg(folder.path()).stdout(Stdio::null()).stderr(Stdio::piped());
    let drain = drain.spawn().unwrap();
    let started = Instant::now();
    while !has_blocked_sigint(drain.id()) {
        assert!(started.elapsed() < Duration::from_secs(60), "it never does");
        std::thread::yield_now();
    }
    signal("-INT", drain.id());
    signal("-CONT", daemon.pid());
    let ended = drain.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("cancelled; ") && said.lines().count() == 1, "{said}");
    assert_eq!(daemon.status()["drain"], Value::Null);
    client.expect(0, &data);
    drop(client);
    daemon.stop();
}

#[test]
fn without_a_daemon_status_and_drain_say_so() {
    let folder = volume("48MiB", "64MiB", "");
    for command in ["status", "drain"] {
        let ended = tool::tidegate(&[command, "--dir", text(folder.path())]);
        assert_eq!(ended.code, Some(1), "{ended}");
        assert!(ended.stderr.contains("no daemon answers") && ended.stderr.lines().count() == 1, "{ended}");
    }
}

#[test]
fn the_control_socket_refuses_nonsense_and_serves_on() {
    let folder = volume("48MiB", "64MiB", "");
    let daemon = Daemon::up(folder.path());
    let mut stream = UnixStream::connect(folder.path().join("control.sock")).unwrap();
    stream.write_all(b"{\"verb\":\"format\"}\nnonsense\n{\"verb\":\"status\"}\n").unwrap();
    let answers: Vec<Value> = BufReader::new(&stream).lines().take(3).map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    assert!(answers[0]["error"].is_string() && answers[1]["error"].is_string(), "{answers:?}");
    assert_eq!(answers[2]["phase"], "serving");
    daemon.stop();
}

#[test]
fn check_finds_nothing_in_a_healthy_cache_and_changes_nothing() {
    let folder = volume("48MiB", "64MiB", "");
    let cache = folder.path().join("cache.img");
    let daemon = Daemon::up(folder.path());
    let mut client = daemon.connect();
    client.write(0, &Chance::new(5).bytes(4 << 20)).unwrap();
    client.flush().unwrap();
    daemon.kill();
    let check = || tool::tidegate(&["check", "--json", "--cache", text(&cache)]).succeeds();
    // The first one waits until the kernel has done what the killed daemon had begun.
    check();
    let before = crc32c::crc32c(&std::fs::read(&cache).unwrap());
    let report: Value = serde_json::from_str(&check()).unwrap();
    assert_eq!(report["damage"], serde_json::json!([]), "{report}");
    assert_eq!(crc32c::crc32c(&std::fs::read(&cache).unwrap()), before, "check writes nothing");
}

/// A stopped volume with three flushed groups in its journal, whose cache `damage` changes; then what `check` reports.
fn damaged(damage: impl FnOnce(&mut Vec<u8>)) -> (tempfile::TempDir, Value) {
    let folder = volume("48MiB", "64MiB", "");
    let cache = folder.path().join("cache.img");
    let daemon = Daemon::up(folder.path());
    let mut client = daemon.connect();
    for number in 0..3 {
        client.write(number << 20, &Chance::new(number).bytes(64 << 10)).unwrap();
        client.flush().unwrap();
    }
    daemon.kill();
    let mut bytes = std::fs::read(&cache).unwrap();
    damage(&mut bytes);
    std::fs::write(&cache, &bytes).unwrap();
    let ended = tool::tidegate(&["check", "--json", "--cache", text(&cache)]);
    assert_eq!(ended.code, Some(1), "{ended}");
    assert!(std::fs::read(&cache).unwrap() == bytes, "check writes nothing");
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert!(report["damage"].as_array().is_some_and(|damage| !damage.is_empty()), "{report}");
    (folder, report)
}

#[test]
fn check_finds_a_damaged_superblock_and_the_next_start_repairs_it() {
    let (folder, report) = damaged(|bytes| bytes[100] ^= 1);
    assert_eq!(report["damage"][0]["fatal"], false, "{report}");
    let daemon = Daemon::up(folder.path());
    for number in 0..3 {
        daemon.connect().expect(number << 20, &Chance::new(number).bytes(64 << 10));
    }
    daemon.stop();
    tool::tidegate(&["check", "--cache", text(&folder.path().join("cache.img"))]).succeeds();
}

#[test]
fn a_gap_in_the_flushed_journal_is_found_and_not_served() {
    // The first page of the journal: what was flushed behind it shows that it was there (docs/format.md, "Journal").
    let first_journal_page = |bytes: &mut Vec<u8>| {
        let page = bytes.chunks_exact_mut(4096).find(|page| page.starts_with(b"TIDJ")).expect("a journal");
        page[2000] ^= 1;
    };
    let (folder, report) = damaged(first_journal_page);
    assert_eq!(report["damage"][0]["fatal"], true, "{report}");
    let ended = tool::tidegate(&["up", "--dir", text(folder.path())]);
    assert_eq!(ended.code, Some(65), "{ended}");
    assert!(ended.stderr.lines().count() == 1 && ended.stderr.contains("cache.img"), "{ended}");
}

#[test]
fn the_swarm_is_the_same_every_time_and_a_seed_can_be_told() {
    let swarm = || {
        let report = tool::tidegate(&["sim", "swarm", "--seeds", "20", "--ops", "200", "--first-seed", "7", "--json"]).succeeds();
        serde_json::from_str::<Value>(&report).unwrap()
    };
    let report = swarm();
    assert_eq!((&report["seeds"], &report["violations"]), (&20.into(), &0.into()), "{report}");
    assert!(report["ops"].as_u64().unwrap() >= 20 * 200, "{report}");
    assert!(report["recoveries"].as_u64().unwrap() > 0, "{report}");
    assert_eq!(swarm()["trace"], report["trace"], "the same seeds, the same trace");
    let story = tool::tidegate(&["sim", "replay", "7", "--ops", "200"]).succeeds();
    assert!(story.lines().count() > 200, "{story}");
}

#[test]
fn seeds_end_where_numbers_do() {
    for (first, count) in [("18446744073709551615", "2"), ("18446744073709551000", "1000")] {
        for many in [&["swarm", "--ops", "5", "--seeds", count][..], &["rot", "--corruptions", count]] {
            let ended = tool::tidegate(&[&["sim"], many, &["--first-seed", first]].concat());
            assert!(ended.code == Some(2) && ended.stderr.lines().count() == 1, "{ended}");
            assert!(ended.stderr.contains(&format!("--first-seed: {count} seeds from {first} on are more than there are")), "{ended}");
        }
    }
    tool::tidegate(&["sim", "swarm", "--ops", "5", "--seeds", "1", "--first-seed", "18446744073709551615"]).succeeds();
}

/// Nobody may read what is said: a pipe whose reader has gone, a log on a full disk.
#[test]
fn what_cannot_be_said_ends_nothing_and_what_cannot_be_printed_is_an_error() {
    let folder = volume("64MiB", "64MiB", "");
    let dir = text(folder.path());
    let full = || Stdio::from(std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    let program = env!("CARGO_BIN_EXE_tidegate");
    let mut daemon = Command::new(program).args(["up", "--dir", dir]).stdout(full()).stderr(full()).spawn().unwrap();
    let since = Instant::now();
    while tool::tidegate(&["status", "--dir", dir]).code != Some(0) {
        assert!(since.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(50));
    }
    let status = Command::new(program).args(["status", "--dir", dir]).stdout(full()).output().unwrap();
    assert_eq!(status.status.code(), Some(74), "{status:?}");
    assert!(String::from_utf8_lossy(&status.stderr).contains("standard output cannot be written"), "{status:?}");
    tool::tidegate(&["stop", "--dir", dir]).succeeds();
    assert_eq!(daemon.wait().unwrap().code(), Some(0));
    let refused = Command::new(program).args(["status", "--dir", "/nowhere"]).stderr(full()).status().unwrap();
    assert_ne!(refused.code(), Some(101), "a panic");
}

/// As inetd does it: standard error is the client's socket, too.
#[test]
fn nothing_is_said_into_the_stream_of_a_client() {
    use std::io::Read;
    use std::os::fd::OwnedFd;
    let folder = volume("64MiB", "64MiB", "");
    let (mut client, server) = UnixStream::pair().unwrap();
    let stream = || Stdio::from(OwnedFd::from(server.try_clone().unwrap()));
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["up", "--stdio", "--dir", text(folder.path())]).stdin(stream()).stdout(stream()).stderr(stream());
    let mut daemon = command.spawn().unwrap();
    drop((command, server));
    let mut greeting = [0; 18];
    client.read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
    // Flags (fixed newstyle), then NBD_OPT_ABORT without data.
    client.write_all(&[&[0, 0, 0, 1][..], b"IHAVEOPT", &[0, 0, 0, 2], &[0; 4]].concat()).unwrap();
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).unwrap();
    assert_eq!(
        rest,
        [&0x0003_e889_0455_65a9_u64.to_be_bytes()[..], &[0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0]].concat(),
        "an acknowledgement alone"
    );
    assert_eq!(daemon.wait().unwrap().code(), Some(0));
}

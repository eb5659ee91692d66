//! Several volumes in one daemon: listed together, served side by side, and each alone in what happens to it.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::chance::Chance;
use crate::common::daemon::Daemon;
use crate::common::mount::Fuse;
use crate::common::nbd::{Client, Command};
use crate::common::tool::{self, Ended, tidegate};
use crate::common::{folder, pki, table, text, volumes};
use crate::slow_origin::SlowOrigin;

const MIB: u64 = 1 << 20;
const NAMES: [&str; 2] = ["home", "media"];
/// Who names none gets the first one.
const DEFAULT: &str = "default = \"home\"\n";

/// Names and sizes in the answer of `nbdinfo --list`.
fn listed(uri: &str) -> Vec<(String, u64)> {
    let list: Value = serde_json::from_str(&tool::run("nbdinfo", &["--list", "--json", uri]).succeeds()).unwrap();
    let export = |export: &Value| (export["export-name"].as_str().unwrap().to_owned(), export["export-size"].as_u64().unwrap());
    list["exports"].as_array().unwrap().iter().map(export).collect()
}

/// One line, this exit code, and these words.
fn assert_refused(ended: &Ended, code: i32, says: &[&str]) {
    assert_eq!((ended.code, ended.stderr.lines().count(), ended.stdout.as_str()), (Some(code), 1, ""), "{ended}");
    says.iter().for_each(|words| assert!(ended.stderr.contains(words), "it does not say {words:?}: {ended}"));
}

#[test]
fn two_volumes_are_listed_and_written_at_once_and_stay_apart_and_warm() {
    let folder = volumes(&NAMES, "", "");
    let (dir, pki) = (folder.path(), folder.path().join("pki"));
    pki::write(&pki);
    let tables = fs::read_to_string(dir.join("config.toml")).unwrap();
    let (socket, cert, key) = (dir.join("nbd.sock"), pki.join("server-cert.pem"), pki.join("server-key.pem"));
    let globals =
        format!("nbd = [{:?}, \"127.0.0.1:0\"]\n{DEFAULT}[tls]\ncertificate = {:?}\nkey = {:?}\n", text(&socket), text(&cert), text(&key));
    fs::write(dir.join("config.toml"), globals + &tables).unwrap();
    let serve = || Daemon::start(dir, &["serve", "--config", text(&dir.join("config.toml"))]);

    let daemon = serve();
    let uris = [daemon.uri.clone(), daemon.next_uri(), daemon.next_uri(), daemon.next_uri()];
    let kernel = format!("nbd-client -unix {} /dev/nbd0 -b 4096 -N home", text(&socket));
    assert!(daemon.greeting.iter().any(|line| line.ends_with(&kernel)), "{:?}", daemon.greeting);
    assert!(uris[0].starts_with("nbd+unix:///home?socket=") && uris[1].starts_with("nbd+unix:///media?"), "{uris:?}");
    let port = uris[3].strip_prefix("nbds://127.0.0.1:").and_then(|rest| rest.strip_suffix("/media")).expect("TLS on TCP");
    let secure = |name: &str| format!("nbds://localhost:{port}/{name}?tls-certificates={}", text(&pki));
    let both = NAMES.map(|name| (name.to_owned(), 48 * MIB));
    assert_eq!(listed(&uris[0]), both);
    assert_eq!(listed(&secure("")), both);
    assert_ne!(tool::run("nbdinfo", &[&secure("Home")]).code, Some(0), "names are bytes");

    let (original, copy) = (dir.join("original"), dir.join("copy"));
    let (home, media) = (Chance::new(1).bytes((16 * MIB) as usize), Chance::new(2).bytes((48 * MIB) as usize));
    fs::write(&original, &media).unwrap();
    std::thread::scope(|threads| {
        threads.spawn(|| tool::run("nbdcopy", &["--flush", text(&original), &secure("media")]).succeeds());
        let mut client = daemon.connect(); // the default is home
        for (piece, offset) in home.chunks(1 << 16).zip((0..).step_by(1 << 16)) {
            client.write(offset, piece).unwrap();
        }
        client.flush().unwrap();
    });
    daemon.connect_to("home").expect(0, &home);
    tool::run("nbdcopy", &[&secure("media"), text(&copy)]).succeeds();
    tool::run("cmp", &[text(&original), text(&copy)]).succeeds();
    daemon.kill();

    let daemon = serve();
    for name in NAMES {
        assert!(daemon.status_of(name)["recovered"]["dirty_slots"].as_u64().unwrap() > 0, "{name} is warm");
    }
    daemon.connect_to("home").expect(0, &home);
    daemon.connect_to("media").expect(0, &media[..(16 * MIB) as usize]);
    assert_eq!(daemon.status_of("home")["misses"]["blocks"], 0, "all of it was in its cache");
    tidegate(&["drain", "--dir", text(dir), "--volume", "home"]).succeeds();
    let status = daemon.status();
    assert_eq!((&status["volumes"][0]["name"], &status["volumes"][1]["name"]), (&json!("home"), &json!("media")));
    assert_eq!(status["volumes"][0]["dirty_blocks"], 0);
    assert!(fs::read(dir.join("home.origin")).unwrap()[..home.len()] == home, "home's origin has it all");
    tidegate(&["drain", "--dir", text(dir)]).succeeds();
    assert!(fs::read(dir.join("media.origin")).unwrap() == media, "and media's has its own");
    assert_refused(&tidegate(&["drain", "--dir", text(dir), "--volume", "Media"]), 1, &["no volume", "\"home\", \"media\""]);
    daemon.stop();
}

#[test]
fn one_sigterm_makes_what_was_acknowledged_durable_in_every_volume() {
    let folder = volumes(&NAMES, "", "");
    let daemon = Daemon::up(folder.path());
    let mut clients = NAMES.map(|name| daemon.connect_to(name));
    let contents = |volume: u64, block: u64| Chance::new(volume << 32 | block).bytes(4096);
    for block in 0..300 {
        for (volume, client) in (0..).zip(&mut clients) {
            client.write(block * 12_288, &contents(volume, block)).unwrap();
        }
    }
    assert!(Client::connect(&daemon.socket()).is_err(), "there is no default");
    // Nothing was flushed, and both are connected.
    daemon.stop();
    let daemon = Daemon::up(folder.path());
    for (volume, name) in (0..).zip(NAMES) {
        let mut client = daemon.connect_to(name);
        (0..300).for_each(|block| client.expect(block * 12_288, &contents(volume, block)));
    }
    daemon.stop();
    tidegate(&["check", "--dir", text(folder.path())]).succeeds();
    let report = tidegate(&["check", "--json", "--dir", text(folder.path())]).succeeds();
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["volumes"][1]["name"], "media", "{report}");
    let one = tidegate(&["check", "--json", "--dir", text(folder.path()), "--volume", "media"]).succeeds();
    assert_eq!(serde_json::from_str::<Value>(&one).unwrap(), report["volumes"][1]);
}

#[test]
fn all_volumes_grow_at_a_start_or_none_does() {
    let folder = volumes(&NAMES, DEFAULT, "");
    let dir = text(folder.path());
    Daemon::up(folder.path()).stop();
    let grow =
        |name: &str| fs::File::options().write(true).open(folder.path().join(format!("{name}.origin"))).unwrap().set_len(50 * MIB).unwrap();
    let has = |name: &str| {
        let report = tidegate(&["check", "--json", "--dir", dir, "--volume", name]).succeeds();
        serde_json::from_str::<Value>(&report).unwrap()["volume_bytes"].as_u64().unwrap() / MIB
    };
    NAMES.into_iter().for_each(grow);
    let (cache, away) = (folder.path().join("media.cache"), folder.path().join("away"));
    fs::rename(&cache, &away).unwrap();
    assert_refused(&tidegate(&["up", "--grow", "--dir", dir]), 66, &["media.cache"]);
    fs::rename(&away, &cache).unwrap();
    assert_eq!(NAMES.map(has), [48, 48], "nothing was changed anywhere");
    Daemon::start(folder.path(), &["up", "--grow", "--dir", dir]).stop();
    assert_eq!(NAMES.map(has), [50, 50]);
    // Which one it is about, the line says.
    let media = folder.path().join("media.origin");
    fs::File::options().write(true).open(&media).unwrap().set_len(52 * MIB).unwrap();
    let grow = || tidegate(&["grow", "--dir", dir, "--volume", "media"]).succeeds();
    assert!(grow().starts_with("volume \"media\" has 52.0 MiB now instead of 50.0 MiB"));
    assert!(grow().contains("media.origin has 52.0 MiB, as volume \"media\": nothing to take in"));
    assert_eq!(NAMES.map(has).into_iter().sum::<u64>(), 50 + 52);
}

#[test]
fn a_volume_that_is_stopped_tells_its_clients_and_the_others_go_on() {
    let folder = volumes(&NAMES, DEFAULT, "");
    let dir = text(folder.path());
    let daemon = Daemon::up(folder.path());
    let (mut home, mut media) = (daemon.connect(), daemon.connect_to("media"));
    let data = Chance::new(5).bytes(1 << 16);
    media.write(0, &data).unwrap();
    tidegate(&["stop", "--dir", dir, "--volume", "media"]).succeeds();
    // What it asks now meets a closed connection, or one that is being closed.
    match media.read(0, 512) {
        Err(error) => assert!(!error.to_string().contains("error 5"), "{error}"),
        Ok(_) => panic!("it was answered"),
    }
    home.write(0, &data).unwrap();
    home.flush().unwrap();
    assert_eq!(listed(&daemon.uri), [("home".to_owned(), 48 * MIB)]);
    let refused = Client::connect_to(&daemon.socket(), "media").err().expect("refused").to_string();
    assert!(refused.contains("0x80000007"), "ERR_SHUTDOWN: {refused}");
    assert_eq!(daemon.status_of("media"), json!({ "name": "media", "phase": "stopped", "lost_blocks": 0 }));
    assert!(tidegate(&["status", "--dir", dir]).succeeds().contains("stopped"));
    assert!(daemon.status_of("home")["dirty_blocks"].as_u64().unwrap() > 0);
    assert_refused(&tidegate(&["drain", "--dir", dir]), 1, &["volume \"media\" is not served (stopped)", "the other volumes are drained"]);
    assert_eq!(daemon.status_of("home")["dirty_blocks"], 0, "what is served is drained all the same");
    assert_refused(&tidegate(&["drain", "--dir", dir, "--volume", "media"]), 1, &["volume \"media\" is not served (stopped)"]);
    let mode = ["mode", "write-through", "--dir", dir, "--volume", "media"];
    assert_refused(&tidegate(&mode), 1, &["the volume stopped; its mode is what it was"]);
    // Nobody holds its devices any more, and somebody holds the other's.
    tidegate(&["check", "--cache", text(&folder.path().join("media.cache"))]).succeeds();
    assert_refused(&tidegate(&["check", "--dir", dir, "--volume", "home"]), 75, &["in use"]);
    home.expect(0, &data);

    tidegate(&["stop", "--dir", dir]).succeeds();
    let (status, said) = daemon.ended();
    assert!(status.success(), "{status}: {said}");
    let daemon = Daemon::up(folder.path());
    daemon.connect_to("media").expect(0, &data);
    daemon.connect_to("home").expect(0, &data);
    daemon.stop();
}

#[test]
fn a_volume_that_was_detached_is_in_nobodys_way() {
    let folder = volumes(&NAMES, DEFAULT, "");
    let dir = text(folder.path());
    let daemon = Daemon::up(folder.path());
    let mut home = daemon.connect();
    home.write(0, &[7; 8192]).unwrap();
    home.flush().unwrap();
    let told = tidegate(&["detach", "--dir", dir, "--volume", "media"]).succeeds();
    assert!(told.contains(&format!("`tidegate attach --dir {dir} --volume media`")), "{told}");
    let drained = tidegate(&["drain", "--dir", dir]);
    assert!(drained.stderr.contains("volume \"media\" was detached: there is nothing to drain"), "{drained}");
    assert!(drained.succeeds().contains("nothing is dirty, the origin holds everything"));
    assert_eq!(daemon.status_of("home")["dirty_blocks"], 0);
    drop(home);
    daemon.stop();
    // What can be looked at is looked at.
    let report = |code| {
        let checked = tidegate(&["check", "--json", "--dir", dir]);
        assert_eq!(checked.code, Some(code), "{checked}");
        serde_json::from_str::<Value>(&checked.stdout).unwrap()["volumes"].clone()
    };
    let found = report(78);
    assert_eq!((&found[0]["name"], &found[0]["damage"]), (&json!("home"), &json!([])), "{found}");
    assert!(found[1]["name"] == "media" && found[1]["error"].as_str().unwrap().contains("was detached from its origin"), "{found}");
    let people = tidegate(&["check", "--dir", dir]);
    assert!(people.stdout.contains("was not read (--data does)\n\nname     media\nerror    cache ") && people.code == Some(78), "{people}");
    tidegate(&["attach", "--dir", dir, "--volume", "media"]).succeeds();
    let cache = fs::File::options().read(true).write(true).open(folder.path().join("media.cache")).unwrap();
    cache.write_all_at(&[0xff], 100).unwrap();
    let found = report(1);
    assert!(found[0]["damage"] == json!([]) && found[1]["damage"][0]["fatal"] == false, "{found}");
}

#[test]
fn what_keeps_one_volume_from_starting_keeps_all_and_changes_nothing() {
    let folder = volumes(&NAMES, "", "");
    let dir = folder.path();
    let contents = || ["home.cache", "home.origin", "media.origin"].map(|name| crc32c::crc32c(&fs::read(dir.join(name)).unwrap()));
    let before = contents();
    fs::rename(dir.join("media.cache"), dir.join("away")).unwrap();
    assert_refused(&tidegate(&["up", "--dir", text(dir)]), 66, &["volume \"media\": cache ", "media.cache"]);
    fs::rename(dir.join("away"), dir.join("media.cache")).unwrap();
    assert_eq!(contents(), before);
    assert!(!dir.join("nbd.sock").exists() && !dir.join("home.state").exists(), "not even half of it was started");
    Daemon::up(dir).stop();
}

#[test]
fn a_fence_that_refuses_one_volume_refuses_all_before_anything_is_written() {
    let folder = volumes(&NAMES, "", "");
    let dir = folder.path();
    let daemon = Daemon::up(dir);
    let data = Chance::new(9).bytes(8 << 20);
    for name in NAMES {
        daemon.connect_to(name).write(0, &data).unwrap();
    }
    tidegate(&["drain", "--dir", text(dir)]).succeeds();
    daemon.stop();
    let origin = fs::File::options().write(true).open(dir.join("media.origin")).unwrap();
    origin.write_all_at(&Chance::new(10).bytes(8 << 20), 0).unwrap();
    let contents = || ["home.cache", "home.state", "media.cache"].map(|name| crc32c::crc32c(&fs::read(dir.join(name)).unwrap()));
    let before = contents();
    assert_refused(&tidegate(&["up", "--dir", text(dir)]), 65, &["volume \"media\": ", "media.cache"]);
    assert_eq!(contents(), before, "recovery of the other one wrote nothing either");
    let files = ["home.origin", "home.cache"].map(|name| text(&dir.join(name)).to_owned());
    fs::write(dir.join("config.toml"), table("home", files.each_ref().map(String::as_str), "")).unwrap();
    let daemon = Daemon::up(dir);
    daemon.connect().expect(0, &data);
    assert_eq!((daemon.status()["name"].clone(), daemon.status()["phase"].clone()), (json!("home"), json!("serving")));
    daemon.stop();
}

#[test]
fn a_flush_on_one_volume_does_not_wait_for_the_origin_of_another() {
    let (folder, slow) = (folder(), SlowOrigin::new());
    let dir = folder.path();
    let files = |name: &str| [dir.join(format!("{name}.origin")), dir.join(format!("{name}.cache"))];
    let (slow_file, slow_cache, fast) = (slow.file(), dir.join("slow.cache"), files("fast"));
    let config = table("slow", [text(&slow_file), text(&slow_cache)], "") + &table("fast", fast.each_ref().map(|path| text(path)), "");
    fs::write(dir.join("config.toml"), config).unwrap();
    for name in ["slow", "fast"] {
        tidegate(&["create", "--dir", text(dir), "--volume", name, "--origin-size", "48MiB", "--cache-size", "64MiB"]).succeeds();
    }
    let daemon = Daemon::up(dir);
    let reads = || slow.operations().into_iter().filter(|operation| !operation.writes).collect::<Vec<_>>();
    let known = reads().len(); // what the start has read
    let mut waits = daemon.connect_to("slow");
    waits.send(Command::Read, 32 * MIB, 4096, &[]).unwrap();
    let (mut client, began) = (daemon.connect_to("fast"), Instant::now());
    while reads().len() == known {
        assert!(began.elapsed() < Duration::from_secs(60), "its origin is not read");
    }
    let mut rounds = 0;
    while rounds < 50 {
        let data = Chance::new(rounds).bytes(8192);
        client.write(rounds * 8192, &data).unwrap();
        client.flush().unwrap();
        client.expect(rounds * 8192, &data);
        client.read(40 * MIB + rounds * 4096, 4096).unwrap(); // from its own origin
        rounds += 1;
    }
    assert!(reads()[known].took.is_none(), "the other's read ended meanwhile: nothing was tried");
    drop((waits, slow));
    daemon.kill();
}

/// nbdkit's memory as a file, failing while another file is there.
struct BadDisk {
    fuse: Fuse,
    switch: PathBuf,
}

impl BadDisk {
    fn new(dir: &Path) -> BadDisk {
        let switch = dir.join("broken");
        let when = format!("error-file={}", text(&switch));
        let nbdkit = ["[", "nbdkit", "--exit-with-parent", "--log=null", "--filter=error", "memory", "size=64M"];
        BadDisk { fuse: Fuse::new(&[&nbdkit[..], &["error=EIO", "error-rate=100%", &when, "]"]].concat()), switch }
    }

    fn breaks(&self) {
        fs::write(&self.switch, "").unwrap();
    }
}

#[test]
fn one_volumes_failing_ssd_leaves_the_other_alone() {
    let folder = folder();
    let dir = folder.path();
    let bad = BadDisk::new(dir);
    let (bad_file, bad_origin) = (bad.fuse.file(), dir.join("bad.origin"));
    let good = [dir.join("good.origin"), dir.join("good.cache")];
    let config = table("bad", [text(&bad_origin), text(&bad_file)], "") + &table("good", good.each_ref().map(|path| text(path)), "");
    fs::write(dir.join("config.toml"), config).unwrap();
    for name in ["bad", "good"] {
        tidegate(&["create", "--dir", text(dir), "--volume", name, "--origin-size", "48MiB", "--cache-size", "64MiB"]).succeeds();
    }
    let daemon = Daemon::up(dir);
    let (mut hurt, mut well) = (daemon.connect_to("bad"), daemon.connect_to("good"));
    let data = Chance::new(3).bytes(1 << 20);
    for client in [&mut hurt, &mut well] {
        client.write(0, &data).unwrap();
        client.flush().unwrap();
    }
    bad.breaks();
    // Its failure is its own, whatever it does about it: the request is sent and not waited for.
    hurt.send(Command::Write, 2 * MIB, 4096, &data[..4096]).unwrap();
    hurt.send(Command::Flush, 0, 0, &[]).unwrap();
    for round in 2..30 {
        well.write(round * MIB, &data).unwrap();
        well.flush().unwrap();
        well.expect(round * MIB, &data);
    }
    let failed = |name: &str| {
        let errors = daemon.status_of(name)["errors"].clone();
        errors["cache_flush_failures"].as_u64().unwrap() + errors["cache_write_failures"].as_u64().unwrap()
    };
    let began = Instant::now();
    while failed("bad") == 0 {
        assert!(began.elapsed() < Duration::from_secs(60), "its SSD does not fail: nothing was tried");
    }
    assert_eq!(failed("good"), 0);
    well.expect(0, &data);
    drop((hurt, well));
    daemon.kill();
}

#[test]
fn one_client_on_standard_input_chooses_its_volume_and_is_the_end_of_all() {
    let folder = volumes(&NAMES, "", "");
    let dir = text(folder.path());
    let connect = format!("h.connect_command(['{}', 'up', '--dir', '{dir}', '--stdio'])", env!("CARGO_BIN_EXE_tidegate"));
    let script = ["-c", "h.set_export_name('media')", "-c", &connect, "-c", "h.pwrite(b'tide' * 1024, 4096)", "-c", "h.shutdown()"];
    tool::run("env", &[&["PATH=/usr/bin:/bin", "nbdsh"], &script[..]].concat()).succeeds();
    // The locks are held until everything is durable: a start waits for them, as for a killed process's.
    let daemon = loop {
        match tidegate(&["check", "--dir", dir]) {
            busy if busy.code == Some(75) => std::thread::yield_now(),
            checked => {
                checked.succeeds();
                break Daemon::up(folder.path());
            }
        }
    };
    daemon.connect_to("media").expect(4096, &b"tide".repeat(1024));
    daemon.connect_to("home").expect(4096, &[0; 4096]);
    daemon.stop();
}

#[test]
fn one_file_has_one_use_under_whatever_names_and_flags_say_which_volume_they_mean() {
    let folder = volumes(&NAMES, "", "");
    let dir = folder.path();
    let config = dir.join("config.toml");
    let good = fs::read_to_string(&config).unwrap();
    let up = |flags: &[&str]| tidegate(&[&["up", "--dir", text(dir)], flags].concat());
    tool::shell(&format!("cd '{}'; ln home.cache hard; ln -s media.origin soft", text(dir))).succeeds();
    for (from, to, place, says) in [
        ("media.cache", "hard", "config.toml:10:9: ", "`cache` is the cache of volume \"home\" too"),
        ("media.cache", "home.origin", "config.toml:10:9: ", "`cache` is the origin of volume \"home\" too"),
        ("home.cache", "soft", "config.toml:9:10: ", "`origin` is the cache of volume \"home\" too"),
        ("name = \"media\"", "name = \"home\"", "config.toml:8:8: ", "two volumes are named \"home\""),
    ] {
        fs::write(&config, good.replace(from, to)).unwrap();
        assert_refused(&up(&[]), 78, &[place, says]);
        assert_refused(&tidegate(&["serve", "--config", text(&config)]), 78, &[place, says]);
    }
    // Another case is another name.
    fs::write(&config, good.replace("name = \"media\"", "name = \"Home\"")).unwrap();
    Daemon::up(dir).stop();
    fs::write(&config, good).unwrap();
    assert_refused(&up(&["--origin", "/x"]), 2, &["--origin", "several volumes"]);
    assert_refused(&up(&["--read-only"]), 2, &["--read-only"]);
    assert_refused(&up(&["--accept-loss"]), 2, &["--accept-loss=NAME"]);
    assert_refused(&up(&["--accept-loss=nobody"]), 2, &["--accept-loss: no volume is named \"nobody\""]);
    assert_refused(&tidegate(&["create", "--dir", text(dir)]), 2, &["--volume"]);
    assert_refused(&tidegate(&["create", "--dir", text(dir), "--volume", "x"]), 2, &["\"home\", \"media\""]);
    let anew = format!("`tidegate create --force --dir {} --volume home`", text(dir));
    assert_refused(&tidegate(&["create", "--dir", text(dir), "--volume", "home"]), 78, &[&anew]);
    tool::shell(&format!("cd '{}'; rm media.cache; truncate --size 64M media.cache", text(dir))).succeeds();
    assert_refused(&tidegate(&["check", "--dir", text(dir), "--volume", "media"]), 78, &["is blank", "--volume media`"]);
    // The same file elsewhere under another name: no command finds it there, so each device is named.
    let nas = dir.join("nas.toml");
    fs::rename(&config, &nas).unwrap();
    let devices = format!("--dir {} --origin {} --cache {}`", text(dir), text(&dir.join("media.origin")), text(&dir.join("media.cache")));
    assert_refused(&tidegate(&["serve", "--config", text(&nas)]), 78, &["volume \"media\": ", &devices]);
}

/// The file that the daemon was started with has another name, or lists fewer volumes by now.
#[test]
fn what_changes_one_volume_is_asked_of_none_of_several() {
    let folder = volumes(&NAMES, "", "");
    let dir = folder.path();
    let (usual, other) = (dir.join("config.toml"), dir.join("nas.toml"));
    fs::rename(&usual, &other).unwrap();
    let daemon = Daemon::start(dir, &["serve", "--config", text(&other)]);
    let modes = || NAMES.map(|name| daemon.status_of(name)["mode"]["recorded"].as_str().unwrap().to_owned());
    let asks = |words: &[&str]| tidegate(&[words, &["--dir", text(dir)]].concat());
    let only_home = table("home", [text(&dir.join("home.origin")), text(&dir.join("home.cache"))], "");
    for config in [None, Some(only_home)] {
        let notes = usize::from(config.is_none());
        if let Some(config) = config {
            fs::write(&usual, config).unwrap();
        }
        for words in [&["mode", "write-through"][..], &["detach"]] {
            let refused = asks(words);
            assert!(refused.code == Some(2) && refused.stderr.lines().count() == 1 + notes, "{refused}");
            assert!(refused.stderr.contains("there are several volumes; say which with --volume"), "{refused}");
        }
        assert_eq!((modes(), daemon.connect_to("media").size), (NAMES.map(|_| "write-back".to_owned()), 48 * MIB));
    }
    let mut raw = UnixStream::connect(dir.join("control.sock")).unwrap();
    raw.write_all(b"{\"verb\": \"detach\", \"flush\": true}\n").unwrap();
    let mut answer = String::new();
    BufReader::new(raw).read_line(&mut answer).unwrap();
    assert!(answer.contains("this is asked of one volume") && modes()[0] == "write-back", "{answer}");
    fs::remove_file(&usual).unwrap();
    asks(&["mode", "write-through", "--volume", "media"]).succeeds();
    assert_eq!(modes(), ["write-back", "write-through"]);
    asks(&["detach", "--volume", "home"]).succeeds();
    assert_eq!(daemon.status_of("media")["phase"], "serving");
    daemon.stop();
}

#[test]
fn the_only_volume_of_a_file_of_another_name_is_meant_by_its_name() {
    let folder = volumes(&["home"], "", "");
    let dir = folder.path();
    let other = dir.join("nas.toml");
    fs::rename(dir.join("config.toml"), &other).unwrap();
    let serve = ["serve", "--config", text(&other)];
    let daemon = Daemon::start(dir, &serve);
    let detach = |name: &str| tidegate(&["detach", "--dir", text(dir), "--volume", name]);
    let refused = detach("media");
    assert!(refused.code == Some(78) && daemon.status()["phase"] == "serving", "{refused}");
    assert!(detach("home").succeeds().contains("alone holds everything"));
    drop(daemon);
    let (_, said) = Daemon::launch(dir, &serve).ended();
    assert!(said.contains("was detached"), "{said}");
}

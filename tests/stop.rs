//! Ways to stop: each keeps what it promises, clients connected or not.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;

use tidegate_daemon::state::State;
use tidegate_engine::Mode;

use crate::common::chance::Chance;
use crate::common::daemon::Daemon;
use crate::common::nbd::Command;
use crate::common::tool::{self, tidegate};
use crate::common::{CARRIERS, text, volume};

const BLOCK: u64 = 4096;

#[test]
fn sigterm_makes_acknowledged_writes_durable_with_clients_connected() {
    for (carrier, threads) in CARRIERS.into_iter().zip([0, 3]) {
        let folder = volume("64MiB", "64MiB", &format!("[limits]\nfront_threads = {threads}\n"));
        let daemon = Daemon::up_by(folder.path(), carrier);
        let mut idle = daemon.connect();
        idle.expect(0, &[0; 512]);
        let mut client = daemon.connect();
        let mut chance = Chance::new(1);
        let blocks: Vec<(u64, Vec<u8>)> = (0..500).map(|number| (number * 3 * BLOCK, chance.bytes(BLOCK as usize))).collect();
        for (offset, data) in &blocks {
            client.write(*offset, data).unwrap();
        }
        // Without a FLUSH, and with both connections open.
        daemon.terminate();
        let (status, said) = daemon.ended();
        assert!(status.success(), "{status}: {said}");

        let daemon = Daemon::up_by(folder.path(), carrier);
        let mut again = daemon.connect();
        for (offset, data) in &blocks {
            again.expect(*offset, data);
        }
        drop((idle, client));
        daemon.stop();
    }
}

/// A daemon that says that it stops, and is gone: `tidegate stop` looks what it has left behind.
#[test]
fn a_daemon_that_does_not_say_how_it_ended_is_not_taken_for_one_that_stopped() {
    let folder = volume("48MiB", "64MiB", "");
    let state = folder.path().join("tidegate.state");
    let serving = "{\"phase\":\"serving\"}";
    for (end, answer) in [
        ("killed", serving),
        // It was told another name than its configuration has.
        ("killed", "{\"phase\":\"serving\",\"name\":\"foo\"}"),
        ("killed without its cache", serving),
        ("stopped", serving),
    ] {
        let daemon = Daemon::up(folder.path());
        daemon.connect().write(0, &[7; 4096]).unwrap();
        if end == "stopped" {
            daemon.stop();
        } else {
            daemon.kill();
        }
        let told = std::fs::read_to_string(&state).unwrap();
        if end == "killed without its cache" {
            // As it is written down when that has failed.
            let degraded = told.replace("\"dirty\":null", "\"dirty\":3").replace("\"degraded\":false", "\"degraded\":true");
            assert_ne!(degraded, told);
            std::fs::write(&state, degraded).unwrap();
        }
        let control = folder.path().join("control.sock");
        let _ = std::fs::remove_file(&control);
        let listener = UnixListener::bind(&control).unwrap();
        let answers = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut String::new()).unwrap();
            stream.write_all(format!("{answer}\n").as_bytes()).unwrap();
        });
        let ended = tidegate(&["stop", "--dir", text(folder.path())]);
        answers.join().unwrap();
        std::fs::remove_file(&control).unwrap();
        if end == "stopped" {
            assert!(ended.succeeds().contains("every acknowledged write is durable"));
        } else {
            let called = if answer == serving { "the volume" } else { "volume \"foo\"" };
            let what = format!("before {called} was stopped in order");
            assert!(ended.code == Some(1) && ended.stderr.contains(&what) && ended.stdout.is_empty(), "{ended}");
        }
        std::fs::write(&state, told).unwrap();
    }
}

#[test]
fn writes_answered_while_stopping_are_durable_too() {
    for (carrier, threads) in CARRIERS.into_iter().zip([3, 0]) {
        let folder = volume("64MiB", "64MiB", &format!("[limits]\nfront_threads = {threads}\n"));
        let daemon = Daemon::up_by(folder.path(), carrier);
        let mut client = daemon.connect();
        let mut sent = Vec::new();
        for number in 0..64 {
            let data = Chance::new(number).bytes(BLOCK as usize);
            sent.push((client.send(Command::Write, number * BLOCK, BLOCK as u32, &data).unwrap(), number * BLOCK, data));
        }
        daemon.terminate();
        let mut acknowledged = Vec::new();
        while client.in_flight() > 0 {
            match client.receive() {
                Ok(reply) if reply.error == 0 => acknowledged.push(reply.cookie),
                Ok(reply) => assert_eq!(reply.error, 108, "only ESHUTDOWN"),
                Err(_) => break, // closed
            }
        }
        let (status, said) = daemon.ended();
        assert!(status.success(), "{status}: {said}");

        let daemon = Daemon::up_by(folder.path(), carrier);
        let mut client = daemon.connect();
        for (_, offset, data) in sent.iter().filter(|(cookie, ..)| acknowledged.contains(cookie)) {
            client.expect(*offset, data);
        }
        drop(client);
        daemon.stop();
    }
}

#[test]
fn a_second_sigterm_stops_at_once_and_loses_nothing_flushed() {
    for carrier in CARRIERS {
        let folder = volume("64MiB", "64MiB", "");
        let daemon = Daemon::up_by(folder.path(), carrier);
        let mut client = daemon.connect();
        let data = Chance::new(2).bytes(1 << 20);
        client.write(0, &data).unwrap();
        client.flush().unwrap();
        for number in 0..32 {
            client.send(Command::Write, (2 << 20) + number * BLOCK, BLOCK as u32, &data[..BLOCK as usize]).unwrap();
        }
        daemon.terminate();
        // The first may have been enough already: then there is nobody to send the second to.
        let _ = crate::common::tool::run("kill", &["-TERM", &daemon.pid().to_string()]);
        daemon.ended();

        let daemon = Daemon::up_by(folder.path(), carrier);
        let mut again = daemon.connect();
        again.expect(0, &data);
        drop((client, again));
        daemon.stop();
    }
}

/// `nohup`, or `&` in a script: what whoever started it has it ignore stops nothing.
#[test]
fn a_signal_that_is_ignored_from_the_start_stops_nothing() {
    let folder = volume("48MiB", "64MiB", "");
    let dir = folder.path();
    let up = format!("trap '' HUP INT; exec '{}' up --dir '{}'", env!("CARGO_BIN_EXE_tidegate"), text(dir));
    let daemon = Daemon::start_by("sh", dir, &["-c", &up]);
    for signal in ["-HUP", "-INT"] {
        tool::run("kill", &[signal, &daemon.pid().to_string()]).succeeds();
        daemon.connect().write(0, &[7; 4096]).unwrap();
        assert_eq!(daemon.status()["phase"], "serving", "{signal}");
    }
    daemon.stop();
}

#[test]
fn what_a_killed_daemon_left_behind_is_taken_over() {
    for carrier in CARRIERS {
        let folder = volume("64MiB", "64MiB", "");
        for _ in 0..3 {
            let daemon = Daemon::up_by(folder.path(), carrier);
            daemon.connect().flush().unwrap();
            daemon.kill();
            assert!(folder.path().join("nbd.sock").exists() && folder.path().join("control.sock").exists(), "leftovers to take over");
        }
        Daemon::up_by(folder.path(), carrier).stop();
        assert!(!folder.path().join("nbd.sock").exists() && !folder.path().join("control.sock").exists(), "a clean stop leaves none");
    }
}

/// Commands find a volume in its folder, also where that has another name by now; the daemon tells the old one, which leads nowhere.
#[test]
fn a_folder_that_was_renamed_while_it_is_served_is_stopped_and_detached_by_its_new_name() {
    for command in ["stop", "detach"] {
        let parent = crate::common::folder();
        let (old, new) = (parent.path().join("old"), parent.path().join("new"));
        tidegate(&["create", "--dir", text(&old), "--origin-size", "48MiB", "--cache-size", "64MiB"]).succeeds();
        let daemon = Daemon::up(&old);
        let mut client = daemon.connect();
        client.write(0, &[7; 1 << 20]).unwrap();
        drop(client);
        std::fs::rename(&old, &new).unwrap();
        let told = tidegate(&[command, "--dir", text(&new)]).succeeds();
        assert!(told.starts_with(if command == "stop" { "stopped; every acknowledged write is durable" } else { "detached: " }), "{told}");
        let (status, said) = daemon.ended();
        assert!(status.success() && !said.contains("tidegate.state"), "{status}: {said}");
        assert!(State::read(&new.join("tidegate.state")).unwrap().unwrap().stopped && !old.exists());
        if command == "stop" {
            let daemon = Daemon::up(&new);
            daemon.connect().expect(0, &[7; 1 << 20]);
            daemon.stop();
        }
    }
}

/// What a daemon knows of its cache it writes into the folder that it has opened, whatever is called so by now.
#[test]
fn another_volume_in_the_place_of_a_renamed_folder_keeps_its_own_state() {
    for command in ["stop", "detach"] {
        let parent = crate::common::folder();
        let [place, old, older] = ["v", "v.old", "v.older"].map(|name| parent.path().join(name));
        let create = || tidegate(&["create", "--dir", text(&place), "--origin-size", "48MiB", "--cache-size", "64MiB"]).succeeds();
        create();
        let first = Daemon::up(&place);
        first.connect().write(0, &[1; 4096]).unwrap();
        std::fs::rename(&place, &old).unwrap();
        create();
        let second = Daemon::up(&place);
        second.connect().write(0, &[2; 4096]).unwrap();
        let state = |dir: &std::path::Path| State::read(&dir.join("tidegate.state")).unwrap().unwrap();
        let before = state(&place);
        tidegate(&["mode", "write-through", "--dir", text(&old)]).succeeds();
        assert_eq!((state(&place), state(&old).mode), (before.clone(), Mode::WriteThrough));
        // Where it was served from, another volume is served.
        std::fs::rename(&old, &older).unwrap();
        tidegate(&[command, "--dir", text(&older)]).succeeds();
        let (status, said) = first.ended();
        assert!(status.success(), "{status}: {said}");
        assert_eq!(state(&place), before);
        second.connect().flush().unwrap();
        second.stop();
        let second = Daemon::up(&place);
        second.connect().expect(0, &[2; 4096]);
        second.stop();
        if command == "detach" {
            tidegate(&["attach", "--dir", text(&older)]).succeeds();
        }
        let first = Daemon::up(&older);
        first.connect().expect(0, &[1; 4096]);
        first.stop();
    }
}

/// A copy of the folder has its old name, and the same cache in it: what is served is where the files are.
#[test]
fn a_volume_beside_a_copy_of_it_is_detached_where_it_was_moved_to() {
    let parent = crate::common::folder();
    let [place, moved] = ["v", "v.moved"].map(|name| parent.path().join(name));
    tidegate(&["create", "--dir", text(&place), "--origin-size", "48MiB", "--cache-size", "64MiB"]).succeeds();
    let daemon = Daemon::up(&place);
    daemon.connect().write(0, &[1; 4096]).unwrap();
    std::fs::rename(&place, &moved).unwrap();
    tool::shell(&format!("cp -a '{}' '{}'", text(&moved), text(&place))).succeeds();
    tidegate(&["detach", "--dir", text(&moved)]).succeeds();
    let (status, said) = daemon.ended();
    assert!(status.success(), "{status}: {said}");
}

/// Somebody serves the copy: what the host knows of that is not this one's to write, although both caches have one identity.
#[test]
fn a_copy_that_is_served_keeps_its_own_state() {
    let parent = crate::common::folder();
    let [place, moved] = ["v", "v.moved"].map(|name| parent.path().join(name));
    tidegate(&["create", "--dir", text(&place), "--origin-size", "48MiB", "--cache-size", "64MiB"]).succeeds();
    let first = Daemon::up(&place);
    first.connect().write(0, &[1; 4096]).unwrap();
    std::fs::rename(&place, &moved).unwrap();
    tool::shell(&format!("cp -a '{}' '{}'", text(&moved), text(&place))).succeeds();
    let second = Daemon::up(&place);
    let state = |dir: &std::path::Path| State::read(&dir.join("tidegate.state")).unwrap().unwrap();
    let before = state(&place);
    assert!(!before.stopped && before.format == state(&moved).format && before.epoch > state(&moved).epoch, "{before:?}");
    tidegate(&["mode", "write-through", "--dir", text(&moved)]).succeeds();
    first.stop();
    assert!(state(&moved).stopped && state(&place) == before, "{:?}", state(&place));
    second.stop();
}

/// What is named for one run only, its configuration does not say: what is drained, and where everything is in the end, is told all the same.
#[test]
fn a_volume_is_drained_and_detached_by_the_names_of_the_disks_that_it_is_served_from() {
    let folder = volume("48MiB", "64MiB", "");
    let other = crate::common::folder();
    let [origin, cache, away] = ["origin.other", "cache.other", "away"].map(|name| other.path().join(name));
    let (dir, disks) = (text(folder.path()), ["--origin", text(&origin), "--cache", text(&cache)]);
    let sizes = ["--origin-size", "48MiB", "--cache-size", "64MiB"];
    tidegate(&[&["create", "--dir", text(&other.path().join("v"))], &disks[..], &sizes].concat()).succeeds();
    let daemon = Daemon::start(folder.path(), &[&["up", "--dir", dir], &disks[..]].concat());
    daemon.connect().write(0, &[1; 4096]).unwrap();
    std::fs::rename(&origin, &away).unwrap();
    let drained = tidegate(&["drain", "--dir", dir]);
    assert!(drained.code == Some(0) && drained.stderr.contains(&format!("origin {} is not there", text(&origin))), "{drained}");
    std::fs::rename(&away, &origin).unwrap();
    let detached = tidegate(&["detach", "--dir", dir]).succeeds();
    let back = format!("`tidegate attach --dir {dir} --origin {} --cache {}` brings", text(&origin), text(&cache));
    assert!(detached.starts_with(&format!("detached: origin {} alone", text(&origin))) && detached.contains(&back), "{detached}");
    assert!(daemon.ended().0.success());
}

/// A backup is put back while what it replaces is still served: what the host knows of that is no word about the backup, which has its own disks.
#[test]
fn a_backup_that_is_put_back_beside_the_volume_that_it_replaces_is_taken_as_it_was() {
    let parent = crate::common::folder();
    let [place, bad, backup] = ["v", "v.bad", "backup"].map(|name| parent.path().join(name));
    tidegate(&["create", "--dir", text(&place), "--origin-size", "48MiB", "--cache-size", "64MiB"]).succeeds();
    let daemon = Daemon::up(&place);
    daemon.connect().write(0, &[1; 4096]).unwrap();
    daemon.stop();
    let copy = |from: &std::path::Path, to: &std::path::Path| {
        tool::shell(&format!("cp -a '{}' '{}'", text(from), text(to))).succeeds();
    };
    copy(&place, &backup);
    let daemon = Daemon::up(&place);
    daemon.connect().write(0, &[2; 4096]).unwrap();
    std::fs::rename(&place, &bad).unwrap();
    copy(&backup, &place);
    let known = |name: &str| std::fs::read(place.join(name)).unwrap();
    let before = ["tidegate.state", "tidegate.dirty"].map(known);
    tidegate(&["mode", "write-through", "--dir", text(&bad)]).succeeds();
    assert_eq!(["tidegate.state", "tidegate.dirty"].map(known), before, "another mode is written down");
    tidegate(&["stop", "--dir", text(&bad)]).succeeds();
    assert!(daemon.ended().0.success() && State::read(&bad.join("tidegate.state")).unwrap().unwrap().stopped);
    assert_eq!(["tidegate.state", "tidegate.dirty"].map(known), before, "and a stop");
    let daemon = Daemon::up(&place);
    daemon.connect().expect(0, &[1; 4096]);
    daemon.stop();
}

/// A copy of the cache beside the origin that has gone on is nothing but an older cache of that: what it says is newer there may not be.
#[test]
fn a_backup_of_the_cache_alone_is_refused_where_the_origin_has_gone_on() {
    let parent = crate::common::folder();
    let [place, bad, backup, origin] = ["v", "v.bad", "backup", "origin.img"].map(|name| parent.path().join(name));
    let sizes = ["--origin-size", "48MiB", "--cache-size", "64MiB"];
    tidegate(&[&["create", "--dir", text(&place), "--origin", text(&origin)], &sizes[..]].concat()).succeeds();
    std::fs::write(place.join("config.toml"), format!("origin = {:?}\n", text(&origin))).unwrap();
    let daemon = Daemon::up(&place);
    daemon.connect().write(0, &[1; 4096]).unwrap();
    daemon.stop();
    tool::shell(&format!("cp -a '{}' '{}'", text(&place), text(&backup))).succeeds();
    let daemon = Daemon::up(&place);
    daemon.connect().write(0, &[2; 4096]).unwrap();
    tidegate(&["drain", "--dir", text(&place)]).succeeds();
    std::fs::rename(&place, &bad).unwrap();
    tool::shell(&format!("cp -a '{}' '{}'", text(&backup), text(&place))).succeeds();
    tidegate(&["stop", "--dir", text(&bad)]).succeeds();
    assert!(daemon.ended().0.success());
    let refused = tidegate(&["up", "--dir", text(&place)]);
    assert!(refused.code == Some(65) && refused.stderr.contains("an older copy of itself"), "{refused}");
}

/// Two that were one are served, each from disks of its own elsewhere, and one gets the other's name: it is still the other one that writes there.
#[test]
fn a_folder_that_another_daemon_serves_is_not_written_by_whoever_had_its_name() {
    let parent = crate::common::folder();
    let path = |name: &str| parent.path().join(name);
    let (a, b) = (path("a"), path("b"));
    let disks = |name: &str| ["origin", "cache"].map(|disk| path(&format!("{name}.{disk}")));
    let configured = |name: &str| disks(name).map(|disk| text(&disk).to_owned());
    let write = |name: &str| {
        let [origin, cache] = configured(name);
        std::fs::write(path(name).join("config.toml"), format!("origin = {origin:?}\ncache = {cache:?}\n")).unwrap();
    };
    let ([origin, cache], sizes) = (configured("a"), ["--origin-size", "48MiB", "--cache-size", "64MiB"]);
    tidegate(&[&["create", "--dir", text(&a), "--origin", &origin, "--cache", &cache], &sizes[..]].concat()).succeeds();
    write("a");
    Daemon::up(&a).stop();
    tool::shell(&format!("cp -a '{}' '{}'", text(&a), text(&b))).succeeds();
    for (from, to) in disks("a").iter().zip(&disks("b")) {
        std::fs::copy(from, to).unwrap();
    }
    write("b");
    let [first, second] = [&a, &b].map(|dir| Daemon::up(dir));
    second.connect().write(0, &[2; 4096]).unwrap();
    let state = |dir: &std::path::Path| State::read(&dir.join("tidegate.state")).unwrap().unwrap();
    assert_eq!((state(&a).epoch, &state(&a).format), (state(&b).epoch, &state(&b).format));
    std::fs::rename(&a, path("a.old")).unwrap();
    std::fs::rename(&b, &a).unwrap();
    let before = state(&a);
    tidegate(&["mode", "write-through", "--dir", text(&path("a.old"))]).succeeds();
    assert_eq!((&state(&a), state(&path("a.old")).mode), (&before, Mode::WriteThrough));
    first.stop();
    assert_eq!(state(&a), before);
    second.stop();
    assert!(state(&a).stopped && state(&a).dirty > Some(0), "{:?}", state(&a));
}

#[test]
fn a_stop_that_cannot_be_written_down_is_told() {
    let folder = volume("48MiB", "64MiB", "");
    let state = folder.path().join("tidegate.state");
    let daemon = Daemon::up(folder.path());
    daemon.connect().write(0, &[7; 4096]).unwrap();
    std::fs::remove_file(&state).unwrap();
    std::fs::create_dir(&state).unwrap();
    daemon.terminate();
    let (status, said) = daemon.ended();
    assert!(status.success() && said.contains("tidegate.state") && said.contains("only its cache knows"), "{status}: {said}");
    std::fs::remove_dir(&state).unwrap();
    let daemon = Daemon::up(folder.path());
    daemon.connect().expect(0, &[7; 4096]);
    daemon.stop();
}

//! The row "Config file": what cannot be read, and what it may not say.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::{Nobody, UP, assert_refused, check, everything};
use crate::common::chance::Chance;
use crate::common::daemon::Daemon;
use crate::common::mount::Fuse;
use crate::common::{table, text, tool, volume, volumes};

#[test]
fn wrong_configurations_are_refused_with_their_place() {
    let config = |contents: &'static [u8]| move |dir: &Path| fs::write(dir.join("config.toml"), contents).unwrap();
    let mebibyte: &'static [u8] = Box::leak(vec![b'#'; (1 << 20) + 1].into_boxed_slice());
    for (name, contents, says) in [
        ("unknown key", &b"[gate]\nwiat = \"2s\"\n"[..], &["config.toml:2:1: ", "wiat"][..]),
        ("wrong type", b"[gate]\nwait = true\n", &["config.toml:2:8: ", "boolean"]),
        ("wrong unit", b"[gate]\nwait = \"2 parsecs\"\n", &["config.toml:2:8: ", "2 parsecs"]),
        ("duplicate key", b"[gate]\nwait = \"2s\"\nwait = \"2s\"\n", &["config.toml:3:1: ", "duplicate"]),
        ("not TOML", b"\x7fELF\x02\x01", &["config.toml:1:"]),
        ("not UTF-8", b"# \xff\n", &["config.toml: ", "UTF-8"]),
        ("byte order mark", b"\xef\xbb\xbf", &["config.toml: ", "byte order mark"]),
        ("plain text to the world", b"nbd = \"0.0.0.0:10809\"\n", &["config.toml:1:1: ", "needs TLS"]),
        ("a key alone", b"[tls]\nkey = \"/key.pem\"\n", &["config.toml:2:1: ", "certificate"]),
        ("certificates that are not there", b"[tls]\ncertificate = \"/no.pem\"\nkey = \"/no.pem\"\n", &["TLS certificate /no.pem: "]),
        ("a name with NUL", b"[export]\nname = \"a\\u0000\"\n", &["config.toml:2:1: ", "NUL"]),
        ("relative path", b"cache = \"cache.img\"\n", &["config.toml:1:1: ", "relative"]),
        ("cache is origin", b"cache = \"/x\"\norigin = \"/x\"\n", &["config.toml:1:1: ", "same"]),
        ("more memory than there is", b"[memory]\nram = \"1000TiB\"\n", &["config.toml:2:1: `ram` is 1048576000 MiB", "ask for less"]),
        ("hardly any memory", b"[memory]\nram = \"32KiB\"\n", &["config.toml:2:1: `ram` is 32768 bytes", "65536 bytes", "\"0B\" for none"]),
        (
            "a part that is more than all",
            b"[log]\ndirty_ram = \"1MiB\"\ndirty_ram_least = \"2MiB\"\n",
            &["config.toml:3:1: `dirty_ram_least` must not exceed `dirty_ram` (1.0 MiB)"],
        ),
        (
            "no such motor",
            b"[spin]\nmotor = \"/dev/nope\"\n",
            &["config.toml:2:1: /dev/nope: No such file", "name another disk as `motor`"],
        ),
        ("no patience", b"[limits]\nstall_timeout = \"0s\"\n", &["config.toml:2:1: ", "at least 1 s"]),
        ("too large", mebibyte, &["config.toml: ", "1 MiB"]),
    ] {
        check(name, config(contents), UP, 78, says);
        check(name, config(contents), &["serve", "--config", "config.toml"], 78, says);
    }
}

#[test]
fn a_configuration_that_is_no_file_is_refused() {
    let replace = |by: &'static str| move |dir: &Path| tool::shell(&format!("cd '{}'; rm config.toml; {by}", text(dir))).succeeds();
    let serve = &["serve", "--config", "config.toml"][..];
    check("missing", |dir| drop(replace("true")(dir)), serve, 78, &["config.toml: ", "tidegate up"]);
    for arguments in [serve, UP] {
        check("folder", |dir| drop(replace("mkdir config.toml")(dir)), arguments, 78, &["config.toml: ", "not a regular file"]);
        check("pipe", |dir| drop(replace("mkfifo config.toml")(dir)), arguments, 78, &["config.toml: ", "not a regular file"]);
        check("loop", |dir| drop(replace("ln -s config.toml config.toml")(dir)), arguments, 78, &["config.toml: "]);
    }
}

#[test]
fn a_configuration_that_may_not_be_read_is_refused() {
    let nobody = Nobody::new();
    let config = nobody.path().join("config.toml");
    fs::write(&config, "").unwrap();
    fs::set_permissions(&config, fs::Permissions::from_mode(0o000)).unwrap();
    let before = everything(nobody.path());
    let refused = nobody.run(&["serve", "--config", text(&config)]);
    assert_refused("unreadable", &refused, 77, &["config.toml: ", "ermission"]);
    // Nor may one look whether there is one.
    fs::create_dir(nobody.path().join("closed")).unwrap();
    fs::set_permissions(nobody.path().join("closed"), fs::Permissions::from_mode(0o700)).unwrap();
    for dir in [".", "closed"] {
        for command in ["status", "drain", "up"] {
            assert_refused(command, &nobody.run(&[command, "--dir", dir]), 77, &["config.toml: ", "ermission"]);
        }
    }
    fs::remove_dir(nobody.path().join("closed")).unwrap();
    assert_eq!(everything(nobody.path()), before);
}

/// What the host writes down would take the place of a disk, or of what it belongs to.
#[test]
fn a_state_that_is_something_else_too_is_refused_before_anything_is_written() {
    let state = |name: &'static str| {
        move |dir: &Path| fs::write(dir.join("config.toml"), format!("state = \"{}\"\n", text(&dir.join(name)))).unwrap()
    };
    for arguments in [
        UP,
        &["serve", "--config", "config.toml"],
        &["create", "--dir", ".", "--force"],
        &["attach", "--dir", "."],
        &["detach", "--dir", "."],
    ] {
        check(
            "cache",
            state("cache.img"),
            arguments,
            78,
            &["`state`: ", "cache.img would be written, and is its cache; name another file"],
        );
    }
    // What lies beside it, under another name.
    let link = |dir: &Path| {
        state("v.state")(dir);
        fs::hard_link(dir.join("cache.img"), dir.join("v.dirty")).unwrap();
    };
    check("list", link, UP, 78, &["v.dirty, the list of what is dirty beside `state` ", "is its cache"]);
    // The configuration itself, under another name than usual, and what flags name.
    let own = |dir: &Path| fs::write(dir.join("v.dirty"), format!("state = \"{}\"\n", text(&dir.join("v.state")))).unwrap();
    check(
        "list",
        own,
        &["serve", "--config", "v.dirty"],
        78,
        &["v.dirty, the list of what is dirty beside `state` ", "is the configuration"],
    );
    for flag in ["--record", "--pid-file"] {
        let up = ["up", "--dir", ".", flag, "tidegate.dirty"];
        check("list", |_| {}, &up, 78, &["tidegate.dirty, the list of what is dirty beside `state` ", &format!("is the file of {flag}")]);
    }
    check("flag", |_| {}, &["up", "--dir", ".", "--cache", "tidegate.state"], 78, &["tidegate.state would be written, and is its cache"]);
}

#[test]
fn a_daemon_whose_configuration_was_mistyped_meanwhile_is_asked_all_the_same() {
    for (names, last) in [(&["home"][..], "stop"), (&["home", "media"], "stop"), (&["home"], "detach")] {
        let folder = volumes(names, "", "");
        let dir = folder.path();
        let daemon = Daemon::up(dir);
        daemon.connect_to("home").write(0, &[7; 4096]).unwrap();
        fs::write(dir.join("config.toml"), "[gate]\nwiat = \"2s\"\n").unwrap();
        let of = ["--dir", text(dir), "--volume", "home"];
        for arguments in [&["status"][..], &["mode"], &["mode", "write-through"], &["drain"], &["grow"], &[last]] {
            let ended = tool::tidegate(&[arguments, &of].concat());
            if arguments == ["grow"] {
                assert!(ended.code == Some(75) && ended.stderr.contains("the volume is being served"), "{ended}");
            } else {
                assert!(ended.code == Some(0) && !ended.stdout.is_empty(), "{ended}");
            }
            let noted: Vec<&str> = ended.stderr.lines().filter(|line| line.contains("wiat")).collect();
            assert!(
                noted.len() == 1 && noted[0].contains("config.toml:2:1: ") && noted[0].ends_with("has read another one, and is asked"),
                "{ended}"
            );
        }
        if names.len() > 1 {
            tool::tidegate(&["stop", "--dir", text(dir)]).succeeds();
        }
        let (status, said) = daemon.ended();
        assert!(status.success(), "{status}: {said}");
        // Nobody is there any more who could be asked.
        let refused = tool::tidegate(&["status", "--dir", text(dir)]);
        assert_refused("typing error", &refused, 78, &["config.toml:2:1: ", "wiat"]);
        for arguments in [&["detach", "--dir", text(dir)][..], &["grow", "--dir", text(dir)], &["up", "--grow", "--dir", text(dir)]] {
            let refused = tool::tidegate(arguments);
            assert_refused("typing error", &refused, 78, &["config.toml:2:1: ", "wiat"]);
            // Another one in its place might leave out the state.
            assert!(refused.stderr.ends_with("; nothing was changed: correct it first\n"), "{refused}");
        }
    }
}

/// Where a volume lies that the daemon does not serve any more, only its configuration says. What a folder has by default is another one.
#[test]
fn with_a_mistyped_configuration_no_other_volume_is_taken_for_one_that_has_stopped() {
    let folder = volume("48MiB", "64MiB", "");
    let dir = folder.path();
    let daemon = Daemon::up(dir);
    daemon.connect().write(0, &[7; 4096]).unwrap();
    daemon.kill();
    // What `grow` would take in.
    fs::File::options().write(true).open(dir.join("origin.img")).unwrap().set_len(56 << 20).unwrap();
    let config = dir.join("config.toml");
    let files = ["home", "media"].map(|name| (name, ["origin", "cache"].map(|role| dir.join(format!("{name}.{role}")))));
    let tables = files.each_ref().map(|(name, files)| table(name, files.each_ref().map(|path| text(path)), ""));
    fs::write(&config, tables.concat()).unwrap();
    for name in ["home", "media"] {
        tool::tidegate(&["create", "--dir", text(dir), "--volume", name, "--origin-size", "48MiB", "--cache-size", "64MiB"]).succeeds();
    }
    let daemon = Daemon::up(dir);
    tool::tidegate(&["stop", "--dir", text(dir), "--volume", "home"]).succeeds();
    fs::write(&config, "[gate]\nwiat = \"2s\"\n").unwrap();
    let others = || {
        let mut files = everything(dir);
        // The sockets go with the daemon.
        files.retain(|(path, ..)| !path.contains("media") && !path.ends_with(".sock"));
        files
    };
    let before = others();
    for command in ["detach", "grow"] {
        let refused = tool::tidegate(&[command, "--dir", text(dir), "--volume", "home"]);
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(78), ""), "{refused}");
        let last = refused.stderr.lines().last().unwrap_or_default();
        assert!(last.contains("config.toml:2:1: ") && last.ends_with("; nothing was changed: correct it first"), "{refused}");
        assert_eq!(others(), before, "{command}");
        // Nor is the other one meant because nothing is known of this one.
        assert_eq!(tool::tidegate(&[command, "--dir", text(dir)]).code, Some(2), "{command}");
    }
    tool::tidegate(&["detach", "--dir", text(dir), "--volume", "media"]).succeeds();
    let (status, said) = daemon.ended();
    assert!(status.success(), "{status}: {said}");
    assert_eq!(others(), before);
}

/// What only a start finds has its place too, in the table of its volume.
#[test]
fn more_memory_than_there_is_is_refused_where_its_volume_asks_for_it() {
    let folder = volumes(&["home", "media"], "", "");
    let config = folder.path().join("config.toml");
    let text = fs::read_to_string(&config).unwrap() + "[volume.memory]\nram = \"9999TiB\"\n";
    let line = text.lines().count();
    fs::write(&config, text).unwrap();
    let refused = tool::tidegate_in(folder.path(), &["serve", "--config", "config.toml"]);
    assert_refused("ram", &refused, 78, &[&format!("volume \"media\": config.toml:{line}:1: `ram` is ")]);
}

#[test]
fn what_was_read_is_what_counts_whoever_swaps_a_link_meanwhile() {
    let folder = volume("48MiB", "64MiB", "");
    let dir = folder.path();
    // The configuration and both disks behind links, as /dev/disk/by-id has them.
    tool::shell(&format!(
        "cd '{}'; mkdir real; mv config.toml origin.img cache.img real; for f in config.toml origin.img cache.img; do ln -s real/$f $f; done",
        text(dir)
    ))
    .succeeds();
    let daemon = Daemon::up(dir);
    let mut client = daemon.connect();
    client.write(0, &[7; 4096]).unwrap();
    // From now on the links lead elsewhere, and to each other; the daemon has what it opened.
    tool::shell(&format!(
        "cd '{}'; ln -sfn real/cache.img origin.img; ln -sfn /dev/null cache.img; ln -sfn /nowhere config.toml",
        text(dir)
    ))
    .succeeds();
    client.flush().unwrap();
    client.expect(0, &[7; 4096]);
    drop(client);
    daemon.stop();
    // And a start finds what they lead to now.
    let refused = tool::tidegate_in(dir, &["up", "--dir", ".", "--origin", "real/cache.img", "--cache", "origin.img"]);
    assert_eq!(refused.code, Some(78), "{refused}");
}

/// Two configurations in one folder, of volumes that have nothing else in common: one of their caches would never be taken again.
#[test]
fn a_state_that_another_daemon_serves_by_is_taken_by_no_second_one() {
    // Nothing would be lost with the cache of such a volume, so another one might take its place.
    let (folder, second) = (volume("48MiB", "64MiB", "mode = \"write-through\"\n"), volume("48MiB", "64MiB", ""));
    let (dir, other) = (folder.path(), second.path());
    let data = Chance::new(1).bytes(1 << 20);
    let write = |daemon: &Daemon| daemon.connect().write(0, &data).unwrap();
    let daemon = Daemon::up(dir);
    write(&daemon);
    let known = || {
        let state: serde_json::Value = serde_json::from_slice(&fs::read(dir.join("tidegate.state")).unwrap()).unwrap();
        (state["format"].clone(), state["gone"].clone())
    };
    let before = known();
    let config = dir.join("second.toml");
    let configure = |state: &str| {
        let paths = ["origin.img", "cache.img", "nbd.sock", "control.sock"].map(|name| other.join(name));
        let lines = ["origin", "cache", "nbd", "control"].iter().zip(&paths).map(|(key, path)| format!("{key} = {:?}\n", text(path)));
        fs::write(&config, lines.collect::<String>() + state).unwrap();
    };
    configure("");
    let disks = || ["origin.img", "cache.img"].map(|name| crc32c::crc32c(&fs::read(other.join(name)).unwrap()));
    let untouched = disks();
    // It would serve for ever.
    let refused = tool::run("timeout", &["20", env!("CARGO_BIN_EXE_tidegate"), "serve", "--config", text(&config)]);
    assert_refused(
        "two",
        &refused,
        75,
        &["tidegate.state: another tidegate serves a volume by this state", "name another file as `state`"],
    );
    assert!(known() == before && disks() == untouched, "nothing was changed");
    configure(&format!("state = {:?}\n", text(&other.join("tidegate.state"))));
    let beside = Daemon::start(other, &["serve", "--config", text(&config)]);
    write(&beside);
    // Whoever is killed keeps nobody from anything, and knows its cache again.
    daemon.kill();
    let daemon = Daemon::up(dir);
    daemon.connect().expect(0, &data);
    daemon.stop();
    Daemon::up(dir).stop();
    beside.stop();
}

/// A volume whose origin is its own export would wait for itself. It cannot come to that: an origin is opened before the export is there.
#[test]
fn an_origin_behind_the_own_export_never_hangs_the_start() {
    let folder = volume("48MiB", "64MiB", "");
    let dir = folder.path();
    let daemon = Daemon::up(dir);
    let fuse = Fuse::new(&["--unix", text(&daemon.socket())]);
    let file = fuse.file();
    let second = tool::tidegate(&["up", "--dir", text(dir), "--origin", text(&file)]);
    assert_eq!(second.code, Some(75), "the cache is in use: {second}");
    daemon.kill();
    // The export is gone, and with it whatever the file could answer.
    let cycle =
        tool::run("timeout", &["60", env!("CARGO_BIN_EXE_tidegate"), "create", "--dir", text(dir), "--origin", text(&file), "--force"]);
    assert_ne!(cycle.code, Some(124), "it hangs: {cycle}");
    assert_eq!(cycle.stderr.lines().filter(|line| line.contains("panicked")).count(), 0, "{cycle}");
}

use std::path::Path;

use tidegate_daemon::front::nbd::{Address, Certificates};
use tidegate_engine::config;
use tidegate_engine::queue::QueueKind;

use super::first::KNOBS;
use super::{File, first_file, read};
use crate::up::Named;

/// Reads `text` as a file; the error without the folder in front.
fn check(text: &[u8]) -> Result<File, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    std::fs::write(&path, text).unwrap();
    let strip = format!("{}/", folder.path().display());
    read(&path).map_err(|failure| failure.message.replace(&strip, ""))
}

#[test]
fn the_first_file_says_only_defaults() {
    let file = check(first_file(&Named::default()).as_bytes()).unwrap();
    assert_eq!(file, File::default());
}

#[test]
fn what_becomes_of_writes_is_named_in_words() {
    let file = check(b"[log]\nallocation = \"read-only\"\nwhen_full = \"through\"\n").unwrap();
    let knobs = file.knobs();
    assert_eq!((knobs.allocation, knobs.when_full), (Some(config::Allocation::ReadOnly), Some(config::WhenFull::Through)));
    let file = check(b"[log]\nallocation = \"small-writes\"\nconvert = \"randomness\"\nconvert_max = 64\n").unwrap();
    let knobs = file.knobs();
    let wanted = (Some(config::Allocation::SmallWrites), Some(config::Convert::Randomness), Some(64));
    assert_eq!((knobs.allocation, knobs.convert, knobs.convert_max), wanted);
    let error = check(b"[log]\n\nwhen_full = \"panic\"\n").unwrap_err();
    assert!(error.contains("config.toml:3") && error.contains("through"), "{error}");
}

#[test]
fn each_device_has_a_queue_of_its_own() {
    let file = check(b"[queue]\ncache = \"ac\"\n").unwrap();
    assert_eq!(file.knobs().queues, [Some(QueueKind::Ac), None]);
}

#[test]
fn every_knob_of_the_first_file_can_be_turned_on_as_it_stands() {
    let text = first_file(&Named::default());
    let keys = KNOBS.lines().filter(|line| line.starts_with('#') && !line.starts_with("# ")).count();
    let enabled: String = text
        .lines()
        .map(|line| if line.starts_with('#') && !line.starts_with("# ") { &line[1..] } else { line })
        .flat_map(|line| [line, "\n"])
        .collect();
    let file = check(enabled.as_bytes()).unwrap();
    let knobs = format!("{:?} {:?}", file.knobs(), file.spin);
    assert!(!knobs.contains("None"), "a knob is not in the file: {knobs}");
    // And the mode, which stands at the top.
    assert_eq!(knobs.matches("Some").count(), keys + 1, "a line of the file is no knob");
}

#[test]
fn what_was_given_is_written_down() {
    let address: Address = "0.0.0.0:10809".parse().unwrap();
    let tls = Certificates { certificate: "/c".into(), key: "/k\"".into(), client_ca: Some("/a".into()) };
    let named = Named {
        origin: Some("/dev/sd\"b".into()),
        nbd: Some(address.clone()),
        name: Some("disk \"7\"".to_owned()),
        read_only: true,
        tls: Some(tls.clone()),
        ..Named::default()
    };
    let text = first_file(&named);
    let config = check(text.as_bytes()).unwrap().in_folder(Path::new("/srv/tide"));
    let [volume] = &config.volumes[..] else { panic!("one volume") };
    assert_eq!(volume.origin, Path::new("/dev/sd\"b"));
    assert_eq!((&*volume.cache, &*volume.state), (Path::new("/srv/tide/cache.img"), Path::new("/srv/tide/tidegate.state")));
    assert_eq!((config.nbd, config.tls, config.default), (vec![address], Some(tls), Some(0)));
    assert_eq!((&*volume.name, &*volume.description, volume.read_only), ("disk \"7\"", "", true));
}

#[test]
fn a_certificate_on_the_command_line_keeps_the_configured_authority_unless_it_names_another() {
    let text = b"[tls]\ncertificate = \"/c\"\nkey = \"/k\"\nclient_ca = \"/a\"\n";
    for (named, expected) in [(None, "/a"), (Some("/b"), "/b")] {
        let mut file = check(text).unwrap();
        let tls = Certificates { certificate: "/d".into(), key: "/l".into(), client_ca: named.map(Into::into) };
        file.override_with(Named { tls: Some(tls), ..Named::default() });
        let served = file.in_folder(Path::new("/srv/tide")).tls;
        assert_eq!(served, Some(Certificates { certificate: "/d".into(), key: "/l".into(), client_ca: Some(expected.into()) }));
    }
}

#[test]
fn a_bad_file_is_refused_with_its_place() {
    for (text, expected) in [
        ("orgin = \"/a\"\n", "config.toml:1:1: unknown field `orgin`"),
        ("[gate]\nwait = 2\n", "config.toml:2:8: invalid type: integer `2`, expected a string"),
        ("[gate]\n  wait = \"2\"\n", "config.toml:2:10: \"2\" has no unit"),
        ("[gate]\nwait = \"2s\"\nwait = \"3s\"\n", "config.toml:3:1: duplicate key"),
        ("[gate\n", "config.toml:1:6: "),
        ("[gate]\ndestage_depth = 0\n", "config.toml:2:17: 0 is not a count from 1 to 65536"),
        ("[gate]\ndestage_depth = 99999999999999999999\n", "config.toml:2:17: "),
        ("mode = \"write-around\"\n", "config.toml:1:8: \"write-around\" is no mode: write-back, write-through or read-only"),
        ("[log]\nfill = \"yes\"\n", "config.toml:2:8: invalid type: string \"yes\", expected a boolean"),
        ("[wear]\nrated_tbw = \"0B\"\n", "config.toml:2:1: `rated_tbw` is zero"),
        ("[log]\nconvert = \"luck\"\n", "config.toml:2:11: unknown variant `luck`, expected `size` or `randomness`"),
        ("[log]\nallocation = \"small-writes\"\nconvert_max = 0\n", "config.toml:3:15: 0 is not a count from 1 to 65536"),
        ("[log]\nwindow = \"1B\"\n", "config.toml:2:1: `window` must be from 1.0 MiB to 1.0 GiB"),
        ("[log]\nconvert = \"randomness\"\n", "config.toml:2:1: `convert` says which writes are small"),
        ("[log]\nwindow = \"16MiB\"\ndirty_ram = \"17MiB\"\n", "config.toml:3:1: `dirty_ram` must not exceed `window` (16.0 MiB)"),
        ("[gate]\nfree_floor = \"60%\"\nreserve = \"50%\"\n", "config.toml:2:1: `free_floor` (60%) and `reserve` (50%)"),
        ("[wear]\ndaily_write_budget = \"0B\"\n", "config.toml:2:1: `daily_write_budget` is zero; leave it out"),
        ("[log]\ndirty_ram = \"2GiB\"\n", "config.toml:2:1: `dirty_ram` must be from 0 B to 1.0 GiB"),
        ("[log]\nread_ahead = \"2GiB\"\n", "config.toml:2:1: `read_ahead` must be from 0 B to 1.0 GiB"),
        ("[log]\ndirty_ram_least = \"2GiB\"\n", "config.toml:2:1: `dirty_ram_least` must be from 0 B to 1.0 GiB"),
        ("[limits]\nfront_threads = 65\n", "config.toml:2:17: 65 is not a number of threads"),
        ("[limits]\npoll = \"2ms\"\n", "config.toml:2:1: `poll` must be at most 1 ms"),
        ("[limits]\nstall_timeout = \"999ms\"\n", "config.toml:2:1: `stall_timeout` must be at least 1 s"),
        ("origin = \"disk.img\"\n", "config.toml:1:1: `origin` is a relative path"),
        ("origin = \"/a\"\ncache = \"/a\"\n", "config.toml:2:1: `cache` and `origin` are the same"),
        ("nbd = \"10809\"\n", "config.toml:1:7: NBD address: `10809` is neither unix:PATH nor IP:PORT"),
        ("\nnbd = \"0.0.0.0:1\"\n", "config.toml:2:1: NBD address: tcp:0.0.0.0:1 can be reached from outside, which needs TLS"),
        ("[tls]\nkey = \"/k\"\n", "config.toml:2:1: `key` without `certificate`"),
        ("[tls]\nclient_ca = \"/k\"\n", "config.toml:2:1: `client_ca` without"),
        ("[tls]\ncertificate = \"c.pem\"\nkey = \"/k\"\n", "config.toml:2:1: `certificate` is a relative path"),
        ("[export]\nname = \"a\\u0000b\"\n", "config.toml:2:1: `name` must have at most 4096 bytes and no NUL"),
        ("[export]\nclients = [\"vm7\"]\n", "config.toml:2:"),
        ("[export]\nclients = []\n", "config.toml:2:11: `clients` names nobody"),
        ("[export]\nclients = [\"dns:vm7\"]\n", "config.toml:2:1: `clients` without `client_ca`"),
        ("[export]\nread_only = \"yes\"\n", "config.toml:2:13: invalid type: string \"yes\", expected a boolean"),
        (
            "[memory]\npolicy = \"mru\"\n",
            "config.toml:2:10: \"mru\" is no policy: there are fifo, lru, clock, sieve, s3-fifo, arc, lirs, 2q, w-tinylfu, chooser",
        ),
        ("[queue]\n\ncache = \"bfq\"\n", "config.toml:3:9: \"bfq\" is no queue: there are urgency, noop, deadline, cfq, ac, lanes"),
        ("[queue]\nlanes = 0\n", "config.toml:2:9: 0 is not a number of lanes from 1 (nothing is known of them) to 256"),
        ("[queue]\ndisk = \"noop\"\n", "config.toml:2:1: unknown field `disk`"),
        ("[gate]\nreserve = \"20%\"\n", "config.toml:2:1: `reserve` (20%) must not exceed `free_floor` (10%)"),
        ("\u{feff}", "config.toml: begins with a byte order mark"),
    ] {
        let error = check(text.as_bytes()).unwrap_err();
        assert!(error.starts_with(expected), "{text:?}: {error}");
        assert!(!error.contains('\n'), "{error:?}");
    }
    assert!(check(b"origin = \"\xff\"\n").unwrap_err().starts_with("config.toml: byte 10 is not UTF-8"));
    assert!(check(&vec![b'#'; (1 << 20) + 1]).unwrap_err().starts_with("config.toml: larger than 1 MiB"));
}

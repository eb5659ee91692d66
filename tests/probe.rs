//! `tidegate probe` and `tidegate sim probe` as a person and as a program meet them.

use std::path::Path;

use rustix::fs::inotify;
use serde_json::Value;

use crate::common::chance::Chance;
use crate::common::tool::{self, Ended};
use crate::common::{folder, text};

fn refused(ended: &Ended, code: i32, says: &str) {
    assert_eq!(ended.code, Some(code), "{ended}");
    assert!(ended.stdout.is_empty() && ended.stderr.lines().count() == 1 && ended.stderr.contains(says), "{says:?}: {ended}");
}

fn write(path: &Path) -> Vec<u8> {
    let contents = Chance::new(3).bytes(80 << 20);
    std::fs::write(path, &contents).unwrap();
    std::fs::File::open(path).unwrap().sync_all().unwrap();
    contents
}

#[test]
fn what_a_probe_finds_on_a_model_is_what_its_file_says() {
    let told = tool::tidegate(&["sim", "probe", "mx100-256gb"]).succeeds();
    assert!(told.contains("32.0 KiB on each of 16 parts in turn") && told.contains("sure: 100%"), "{told}");
    assert!(told.lines().any(|line| line.starts_with("stretches") && line.contains("cannot be seen: ")), "{told}");
    assert!(told.contains("reads/s"), "a picture of the curve: {told}");
    let json = tool::tidegate(&["sim", "probe", "mx100-256gb", "--layout", "contiguous", "--noise", "10%", "--json"]).succeeds();
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (json["stretches"]["count"].as_u64(), json["interleave"]["width"].as_u64(), json["width"].as_u64()),
        (Some(8), Some(2), Some(16))
    );
    assert_eq!(json["beside_writes"]["unseen"], "nothing may be written");
    refused(&tool::tidegate(&["sim", "probe", "floppy"]), 2, "no device");
    let folder = folder();
    let small = folder.path().join("small.toml");
    let model = include_str!("../sim/devices/mx100-256gb.toml");
    let line = model.lines().find(|line| line.starts_with("capacity_mb")).unwrap();
    std::fs::write(&small, model.replace(line, "capacity_mb = 67")).unwrap();
    refused(&tool::tidegate(&["sim", "probe", text(&small)]), 2, "it has 63 MiB; at least 64 are needed");
}

/// Whoever closes the file that had it open for writing.
struct Watch(std::os::fd::OwnedFd);

impl Watch {
    fn of(file: &Path) -> Watch {
        let watch = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).unwrap();
        inotify::add_watch(&watch, file, inotify::WatchFlags::CLOSE_WRITE).unwrap();
        Watch(watch)
    }

    fn has_seen_a_writer(&self) -> bool {
        let mut buffer = [std::mem::MaybeUninit::uninit(); 512];
        inotify::Reader::new(&self.0, &mut buffer).next().is_ok()
    }
}

#[test]
fn a_probe_reads_only_and_leaves_others_alone() {
    let folder = folder();
    let file = folder.path().join("device.img");
    let contents = write(&file);
    // Whoever has it alone keeps it.
    let holder = std::fs::File::open(&file).unwrap();
    rustix::fs::flock(&holder, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let watch = Watch::of(&file);
    let json = tool::tidegate(&["probe", text(&file), "--time", "1s", "--json"]).succeeds();
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["bytes"], 80 << 20);
    assert!(!watch.has_seen_a_writer(), "a device would be looked at again by whoever watches for that, and be busy meanwhile");
    assert!(json["alone_ns"].as_u64().unwrap() > 0 && json["curve"].as_array().unwrap().len() >= 6, "{json}");
    for finding in ["interleave", "stretches", "parts", "knee"] {
        assert!(json[finding]["sure"].is_number() != json[finding]["unseen"].is_string(), "{finding}: {json}");
    }
    assert_eq!(std::fs::read(&file).unwrap(), contents);
    refused(&tool::tidegate(&["probe", text(&file), "--overwrite"]), 75, "in use by process");
}

#[test]
fn a_probe_overwrites_only_when_it_is_told_to() {
    let folder = folder();
    let file = folder.path().join("device.img");
    let contents = write(&file);
    let told = tool::tidegate(&["probe", text(&file), "--overwrite", "--time", "2s"]).succeeds();
    assert!(told.contains("beside writes of 64 KiB"), "{told}");
    assert_ne!(std::fs::read(&file).unwrap(), contents);
    assert_eq!(std::fs::metadata(&file).unwrap().len(), contents.len() as u64);
}

#[test]
fn what_cannot_be_probed_is_one_line() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("small"), [0; 4096]).unwrap();
    std::fs::File::create(path("hole")).unwrap().set_len(1 << 30).unwrap();
    for (name, code, says) in [
        ("missing", 66, "name a block device, or a file"),
        (".", 78, "neither a file nor a block device"),
        ("small", 78, "at least 64 are needed"),
        ("hole", 78, "most of it is a hole"),
    ] {
        refused(&tool::tidegate(&["probe", text(&path(name))]), code, says);
    }
    refused(&tool::tidegate(&["probe", "x", "--time", "20"]), 2, "has no unit");
    refused(&tool::tidegate(&["probe", "x", "--time", "1ms"]), 2, "is not between 1s and 1h");
}

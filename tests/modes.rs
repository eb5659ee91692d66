//! Modes, detaching, lost caches and grown origins, with the real program on real files: what an operator does, in his words.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use tempfile::TempDir;

use crate::common::chance::Chance;
use crate::common::daemon::Daemon;
use crate::common::tool::{self, Ended};
use crate::common::{folder, replace_cache, text, volume};

const MIB: u64 = 1 << 20;

fn on_origin(folder: &Path, offset: u64, bytes: usize) -> Vec<u8> {
    let mut there = vec![0; bytes];
    File::open(folder.join("origin.img")).unwrap().read_exact_at(&mut there, offset).unwrap();
    there
}

/// Written and flushed: a MiB here and there, and some sectors.
fn load(daemon: &Daemon, seed: u64) -> Vec<(u64, Vec<u8>)> {
    let mut client = daemon.connect();
    let mut chance = Chance::new(seed);
    let sizes = [MIB as usize, 4096, 512, 6144, 64 << 10];
    let writes: Vec<(u64, Vec<u8>)> = (0..20u64).map(|at| (at * 2 * MIB + at % 3 * 512, chance.bytes(sizes[at as usize % 5]))).collect();
    for (offset, data) in &writes {
        client.write(*offset, data).unwrap();
    }
    client.flush().unwrap();
    writes
}

fn expect(daemon: &Daemon, writes: &[(u64, Vec<u8>)]) {
    let mut client = daemon.connect();
    writes.iter().for_each(|(offset, data)| client.expect(*offset, data));
}

fn are_home(folder: &Path, writes: &[(u64, Vec<u8>)]) -> bool {
    writes.iter().all(|(offset, data)| on_origin(folder, *offset, data.len()) == *data)
}

fn says(ended: &Ended, code: i32, words: &[&str]) {
    assert!(ended.code == Some(code) && ended.stderr.lines().count() == 1, "{ended}");
    for words in words {
        assert!(ended.stderr.contains(words), "it does not say {words:?}: {ended}");
    }
}

fn mode(folder: &Path, arguments: &[&str]) -> Ended {
    tool::tidegate_in(folder, &[&["mode", "--dir", "."], arguments].concat())
}

const UP: &[&str] = &["up", "--dir", "."];

#[test]
fn a_cache_in_write_through_may_be_lost() {
    let folder = volume("64MiB", "64MiB", "");
    let dir = folder.path();
    let daemon = Daemon::up(dir);
    assert!(mode(dir, &[]).succeeds().starts_with("write-back: "));
    let before = load(&daemon, 1);
    assert!(!are_home(dir, &before), "on the cache alone");
    let told = mode(dir, &["write-through"]).succeeds();
    assert!(told.starts_with("write-through: nothing that was flushed is on the cache alone; the switch took "), "{told}");
    assert!(are_home(dir, &before), "switched, and not home");
    let after = load(&daemon, 2);
    assert!(are_home(dir, &after), "flushed, and not home");
    // Nothing but this was asked of the origin: the contents stay in the cache.
    let status = daemon.status();
    assert_eq!((status["mode"]["recorded"].as_str(), status["dirty_blocks"].as_u64()), (Some("write-through"), Some(0)));
    assert!(status["live_blocks"].as_u64().unwrap() > 256 * 4);
    // The daemon and the SSD go at once. Nobody has to accept a loss: there is none.
    daemon.kill();
    replace_cache(dir);
    let daemon = Daemon::up(dir);
    assert!(daemon.said().contains("was blank and is formatted"), "{}", daemon.said());
    assert!(daemon.greeting.iter().any(|line| line.contains("nothing that was flushed is lost with it")), "{:?}", daemon.greeting);
    expect(&daemon, &after);
    assert!(mode(dir, &[]).succeeds().starts_with("write-through: "), "a new cache promises what the last one did");
    // And back, which is one command too.
    mode(dir, &["write-back"]).succeeds();
    let last = load(&daemon, 3);
    assert!(!are_home(dir, &last));
    daemon.stop();
}

#[test]
fn a_lost_cache_in_write_back_is_refused_and_what_is_known_of_the_loss_is_listed() {
    let folder = volume("64MiB", "64MiB", "");
    let dir = folder.path();
    let daemon = Daemon::up(dir);
    let mut client = daemon.connect();
    client.write(5 * MIB, &[7; 8192]).unwrap();
    client.flush().unwrap();
    drop(client);
    daemon.stop();
    replace_cache(dir);
    let blank = fs::read(dir.join("cache.img")).unwrap();
    says(
        &tool::tidegate_in(dir, UP),
        65,
        &["is blank, and the one that this volume last ran with held 2 blocks newer", "at 20", "--accept-loss"],
    );
    assert!(fs::read(dir.join("cache.img")).unwrap() == blank, "what is refused is not formatted");
    let daemon = Daemon::start(dir, &["up", "--dir", text(dir), "--accept-loss"]);
    let told = daemon.greeting.join("\n");
    assert!(told.contains("1048576 bytes in 1 ranges") && told.contains("nothing was written afterwards"), "{told}");
    assert!(told.contains("lost: 1048576 bytes from byte 5242880 on"), "{told}");
    assert_eq!(daemon.connect().read(5 * MIB, 4096).unwrap(), [0; 4096]);
    // Killed this time: nobody knows exactly.
    load(&daemon, 4);
    daemon.kill();
    replace_cache(dir);
    says(&tool::tidegate_in(dir, UP), 65, &["may have held blocks newer than the origin"]);
}

#[test]
fn a_host_that_cannot_write_the_mode_down_costs_nobody_the_volume() {
    let folder = volume("64MiB", "64MiB", "");
    let dir = folder.path();
    let daemon = Daemon::up(dir);
    let (state, away) = (dir.join(tidegate_daemon::state::FILE_NAME), dir.join("away"));
    fs::rename(&state, &away).unwrap();
    fs::create_dir(&state).unwrap();
    mode(dir, &["write-through"]).succeeds();
    let writes = load(&daemon, 8);
    assert!(are_home(dir, &writes), "it is kept all the same");
    fs::remove_dir(&state).unwrap();
    fs::rename(&away, &state).unwrap();
    let is_told = || fs::read_to_string(&state).unwrap().contains("write-through");
    let is_told_at_last = (0..100).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(200));
        expect(&daemon, &writes[..1]);
        is_told()
    });
    assert!(is_told_at_last);
    daemon.stop();
}

#[test]
fn the_configured_mode_wins_at_a_start() {
    let folder = volume("64MiB", "64MiB", "mode = \"read-only\"\n");
    let dir = folder.path();
    let daemon = Daemon::up(dir);
    mode(dir, &["read-only"]).succeeds();
    let writes = load(&daemon, 5);
    assert!(are_home(dir, &writes));
    assert!(daemon.status()["through"]["blocks"].as_u64().unwrap() > 256, "past the cache");
    let switched = mode(dir, &["write-back"]);
    assert!(switched.stderr.contains("config.toml says mode = \"read-only\", which counts at the next start"), "{switched}");
    daemon.kill();
    let daemon = Daemon::up(dir);
    expect(&daemon, &writes);
    let told = mode(dir, &["read-only"]).succeeds();
    assert!(told.starts_with("read-only: "), "{told}");
    daemon.stop();
}

/// A disk with data gets a cache, is used, and gets rid of it again: one command each way.
#[test]
fn a_disk_with_data_is_attached_in_place_and_detached() {
    let folder = folder();
    let dir = folder.path();
    let contents = Chance::new(9).bytes((48 * MIB) as usize);
    fs::write(dir.join("origin.img"), &contents).unwrap();
    let attach = ["attach", "--dir", ".", "--cache-size", "64MiB"];
    let told = tool::tidegate_in(dir, &attach).succeeds();
    let undoes = format!("`tidegate detach --dir {}` undoes it", text(dir));
    assert!(told.contains("keeps what it holds") && told.contains(&undoes), "{told}");
    assert!(fs::read(dir.join("origin.img")).unwrap() == contents, "nothing on it is written");
    says(&tool::tidegate_in(dir, &attach), 78, &["is attached already"]);
    let daemon = Daemon::up(dir);
    daemon.connect().expect(MIB, &contents[MIB as usize..][..4096]);
    let writes = load(&daemon, 6);
    let client = daemon.connect();
    says(&tool::tidegate_in(dir, &["detach", "--dir", "."]), 1, &["a client uses the volume: disconnect first"]);
    drop(client);
    detach_when_idle(dir);
    let (status, said) = daemon.ended();
    assert!(status.success() && said.contains("stopped; every acknowledged write is durable"), "{status} {said}");
    assert!(are_home(dir, &writes));
    says(&tool::tidegate_in(dir, UP), 78, &["was detached from its origin", &format!("run `tidegate attach --dir {}`", text(dir))]);
    // Somebody changes the disk meanwhile, as he may.
    let origin = OpenOptions::new().write(true).open(dir.join("origin.img")).unwrap();
    origin.write_all_at(b"somebody else", 0).unwrap();
    tool::tidegate_in(dir, &attach).succeeds();
    let daemon = Daemon::up(dir);
    assert!(daemon.connect().read(0, 4096).unwrap().starts_with(b"somebody else"));
    expect(&daemon, &writes[1..]);
    daemon.stop();
}

/// The daemon hears of a client's end a moment after the client does.
fn detach_when_idle(dir: &Path) {
    let ended = (0..100)
        .map(|_| tool::tidegate_in(dir, &["detach", "--dir", "."]))
        .find(|ended| !ended.stderr.contains("the volume: disconnect first"));
    let told = ended.expect("the client has gone").succeeds();
    assert!(told.contains("alone holds everything") && told.contains(&format!("`tidegate attach --dir {}`", text(dir))), "{told}");
}

fn killed_with_dirty_blocks() -> (TempDir, Vec<(u64, Vec<u8>)>) {
    let folder = volume("64MiB", "64MiB", "");
    let daemon = Daemon::up(folder.path());
    let writes = load(&daemon, 7);
    daemon.kill();
    (folder, writes)
}

#[test]
fn a_cache_is_detached_without_a_daemon_too() {
    let (folder, writes) = killed_with_dirty_blocks();
    let dir = folder.path();
    assert!(!are_home(dir, &writes));
    tool::tidegate_in(dir, &["detach", "--dir", "."]).succeeds();
    assert!(are_home(dir, &writes));
    says(&tool::tidegate_in(dir, UP), 78, &["tidegate attach"]);
    says(&tool::tidegate_in(dir, &["detach", "--dir", "."]), 78, &["was detached"]);
}

#[test]
fn dirty_blocks_are_given_up_only_by_the_name_of_their_cache() {
    let (folder, writes) = killed_with_dirty_blocks();
    let dir = folder.path();
    let give_up = |id: &str| tool::tidegate_in(dir, &["detach", "--dir", ".", "--discard-dirty", id]);
    let refused = give_up("00000000");
    says(&refused, 78, &["its format id is", "nothing was changed"]);
    let id = refused.stderr.split("its format id is ").nth(1).unwrap()[..8].to_owned();
    says(&give_up(&id[..4]), 78, &["nothing was changed"]);
    // Still there, and still attached.
    let daemon = Daemon::up(dir);
    expect(&daemon, &writes);
    says(&give_up(&id), 75, &["is being served"]);
    daemon.kill();
    let told = give_up(&id).succeeds();
    assert!(told.contains("is given up"), "{told}");
    says(&tool::tidegate_in(dir, UP), 78, &["tidegate attach"]);
    tool::tidegate_in(dir, &["attach", "--dir", "."]).succeeds();
    Daemon::up(dir).stop();
}

#[test]
fn a_cache_is_not_taken_from_an_origin_that_was_removed() {
    let folder = volume("64MiB", "64MiB", "");
    let dir = folder.path();
    let daemon = Daemon::up(dir);
    std::fs::remove_file(dir.join("origin.img")).unwrap();
    says(&tool::tidegate_in(dir, &["detach", "--dir", "."]), 1, &["origin.img was removed", "copy the volume out"]);
    let drained = tool::tidegate_in(dir, &["drain", "--dir", "."]);
    assert!(drained.stderr.contains("origin.img is not there any more"), "{drained}");
    daemon.stop();
}

fn size(daemon: &Daemon) -> u64 {
    tool::run("nbdinfo", &["--size", &daemon.uri]).succeeds().trim().parse().unwrap()
}

#[test]
fn an_origin_that_has_grown_is_offered_and_taken_in_when_asked() {
    let (folder, writes) = killed_with_dirty_blocks();
    let dir = folder.path();
    let origin = OpenOptions::new().write(true).open(dir.join("origin.img")).unwrap();
    origin.set_len(100 * MIB + 512).unwrap();
    let daemon = Daemon::up(dir);
    let notes = daemon.greeting.join("\n");
    assert!(notes.contains("has 104858112 bytes, 67108864 of them are served") && notes.contains("tidegate grow"), "{notes}");
    assert_eq!(size(&daemon), 64 * MIB);
    says(&tool::tidegate_in(dir, &["grow", "--dir", "."]), 75, &["is being served"]);
    daemon.kill();
    let daemon = Daemon::start(dir, &["up", "--dir", text(dir), "--grow"]);
    assert!(daemon.said().contains("the volume has"), "{}", daemon.said());
    assert_eq!(size(&daemon), 100 * MIB + 512);
    expect(&daemon, &writes);
    let mut client = daemon.connect();
    client.write(100 * MIB, &[9; 512]).unwrap();
    client.write(90 * MIB, &[8; 4096]).unwrap();
    client.flush().unwrap();
    drop(client);
    daemon.kill();
    let daemon = Daemon::up(dir);
    daemon.connect().expect(100 * MIB, &[9; 512]);
    tool::tidegate_in(dir, &["drain", "--dir", "."]).succeeds();
    daemon.stop();
    assert_eq!(on_origin(dir, 90 * MIB, 4096), [8; 4096]);
    // It ends inside a block now: what is cached of that says nothing of what comes behind.
    origin.set_len(101 * MIB).unwrap();
    says(&tool::tidegate_in(dir, &["grow", "--dir", "."]), 78, &["ends inside a block", "tidegate detach"]);
    origin.set_len(100 * MIB).unwrap();
    says(&tool::tidegate_in(dir, UP), 78, &["has 104857600 bytes", "made for one of 104858112"]);
}

#[test]
fn nothing_grows_where_nothing_has_grown() {
    let folder = volume("64MiB", "64MiB", "");
    let told = tool::tidegate_in(folder.path(), &["grow", "--dir", "."]).succeeds();
    assert!(told.contains("nothing to take in"), "{told}");
}

/// The version of both superblocks, with a checksum that matches.
fn set_version(cache: &Path, version: u16) {
    let file = OpenOptions::new().read(true).write(true).open(cache).unwrap();
    for at in [0, 512 << 10] {
        let mut page = vec![0; 4096];
        file.read_exact_at(&mut page, at).unwrap();
        page[4..6].copy_from_slice(&version.to_le_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c(&page[28..]), &page[..24]);
        page[24..28].copy_from_slice(&crc.to_le_bytes());
        file.write_all_at(&page, at).unwrap();
    }
}

/// A cache keeps the version that it was formatted with, through crashes and growth: its slots have checksums of that.
#[test]
fn a_cache_of_version_1_is_served_and_stays_one() {
    let folder = volume("64MiB", "64MiB", "");
    let dir = folder.path();
    let cache = dir.join("cache.img");
    let is_of = |version: u8| {
        let mut found = [0];
        for at in [4, (512 << 10) + 4] {
            File::open(&cache).unwrap().read_exact_at(&mut found, at).unwrap();
            assert_eq!(found, [version]);
        }
    };
    is_of(2);
    // Nothing is in it yet.
    set_version(&cache, 1);
    let contents = Chance::new(5).bytes(8 << 20);
    let daemon = Daemon::up(dir);
    let mut client = daemon.connect();
    (0..8).for_each(|mib| client.write(mib << 20, &contents[(mib as usize) << 20..][..1 << 20]).unwrap());
    client.flush().unwrap();
    daemon.kill();
    is_of(1);
    tool::tidegate_in(dir, &["check", "--dir", "."]).succeeds();
    let daemon = Daemon::up(dir);
    let mut client = daemon.connect();
    client.expect(0, &contents);
    client.write(0, &contents[1 << 20..2 << 20]).unwrap();
    daemon.stop();
    is_of(1);
    OpenOptions::new().write(true).open(dir.join("origin.img")).unwrap().set_len(100 << 20).unwrap();
    tool::tidegate_in(dir, &["grow", "--dir", "."]).succeeds();
    let daemon = Daemon::up(dir);
    daemon.connect().expect(0, &[&contents[1 << 20..2 << 20], &contents[1 << 20..]].concat());
    daemon.stop();
    is_of(1);
    tool::tidegate_in(dir, &["check", "--dir", "."]).succeeds();
    // By the rules of the other version it would be damaged, all of it.
    let look = || tool::tidegate_in(dir, &["check", "--data", "--json", "--dir", "."]);
    set_version(&cache, 2);
    let ended = look();
    let told: serde_json::Value = serde_json::from_str(&ended.stdout).expect("JSON");
    let damaged = ["damaged_clean_blocks", "damaged_dirty_blocks"].map(|key| told["contents"][key].as_u64().expect("a number"));
    assert!(ended.code == Some(1) && damaged[0] + damaged[1] == 2048, "{ended}");
    set_version(&cache, 1);
    look().succeeds();
}

#[test]
fn a_cache_of_another_version_is_refused_and_left_as_it_is() {
    let folder = volume("64MiB", "64MiB", "");
    let dir = folder.path();
    let cache = dir.join("cache.img");
    for version in [0, 3, 65_535] {
        set_version(&cache, version);
        let before = fs::read(&cache).unwrap();
        let what = format!("has format version {version}, this program knows 1 and 2");
        for arguments in [UP, &["check", "--cache", "cache.img"], &["detach", "--dir", "."], &["grow", "--dir", "."]] {
            says(&tool::tidegate_in(dir, arguments), 78, &[&what, "use the program that wrote it"]);
        }
        says(&tool::tidegate_in(dir, &["attach", "--dir", "."]), 78, &["holds a tidegate cache that cannot be read"]);
        assert!(fs::read(&cache).unwrap() == before, "something was changed");
    }
    set_version(&cache, 2);
    Daemon::up(dir).stop();
}

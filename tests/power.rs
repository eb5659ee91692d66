//! What a command has said is done is still so where the power of everything fails behind it: disks, and the files beside them.
//! (`kill.rs` does that in the middle of a load.)

use std::fs;
use std::path::PathBuf;

use crate::common::chance::Chance;
use crate::common::daemon::Daemon;
use crate::common::power::Power;
use crate::common::{check_after_cut, replace_cache, text, tool};

const MIB: usize = 1 << 20;
const ORIGIN_BYTES: usize = 8 * MIB;

/// A volume, or what there is of one, and what fate has for it.
struct Volume {
    power: Power,
    chance: Chance,
}

impl Volume {
    /// Nothing of it yet, but the folder of its origin, which has its own.
    fn none(seed: u64) -> Volume {
        let power = Power::new();
        fs::create_dir(power.path().join("disk")).unwrap();
        power.flush();
        Volume { power, chance: Chance::new(seed) }
    }

    fn new(seed: u64) -> Volume {
        let volume = Volume::none(seed);
        volume.tidegate(&volume.creation());
        volume
    }

    fn dir(&self) -> &str {
        text(self.power.path())
    }

    fn origin(&self) -> PathBuf {
        self.power.path().join("disk/origin.img")
    }

    fn cache(&self) -> PathBuf {
        self.power.path().join("cache.img")
    }

    /// The command that makes it, without its folder.
    fn creation(&self) -> [String; 7] {
        let origin = text(&self.origin()).to_owned();
        ["create", "--origin", &origin, "--origin-size", "8MiB", "--cache-size", "40MiB"].map(str::to_owned)
    }

    /// A command of that folder, which succeeds.
    fn tidegate(&self, arguments: &[impl AsRef<str>]) -> String {
        self.try_tidegate(arguments).succeeds()
    }

    fn try_tidegate(&self, arguments: &[impl AsRef<str>]) -> tool::Ended {
        tool::tidegate(&self.with_dir(arguments))
    }

    fn with_dir<'a>(&'a self, arguments: &'a [impl AsRef<str>]) -> Vec<&'a str> {
        arguments.iter().map(AsRef::as_ref).chain(["--dir", self.dir()]).collect()
    }

    fn launch(&self, arguments: &[impl AsRef<str>]) -> Daemon {
        Daemon::launch(self.power.path(), &self.with_dir(arguments))
    }

    fn up(&self) -> Daemon {
        Daemon::up(self.power.path())
    }

    /// The daemon, and what it is full of from then on: acknowledged, not flushed.
    fn written(&self, seed: u64) -> (Daemon, Vec<u8>) {
        let daemon = self.up();
        let contents = Chance::new(seed).bytes(ORIGIN_BYTES);
        let mut client = daemon.connect();
        contents.chunks(MIB).enumerate().for_each(|(piece, bytes)| client.write((piece * MIB) as u64, bytes).unwrap());
        (daemon, contents)
    }

    /// Makes it where something may be there already, or all. What is empty is to be removed first, as the command says.
    fn make_again(&self) {
        loop {
            let made = self.try_tidegate(&self.creation());
            if made.code == Some(0) || made.stderr.contains(&format!("is the tidegate cache of a volume of {ORIGIN_BYTES} bytes already")) {
                return;
            }
            let files = [self.origin(), self.cache()];
            let names = |file: &&PathBuf| made.stderr.contains(&format!("{} is empty; remove it (rm)", text(file)));
            let file = files.iter().find(names).unwrap_or_else(|| panic!("{made}"));
            assert_eq!(fs::metadata(file).unwrap().len(), 0);
            fs::remove_file(file).unwrap();
        }
    }

    /// The power fails and comes back, and whoever ran is dead.
    fn lose_power(&mut self, daemon: Option<Daemon>) {
        match daemon {
            Some(daemon) => self.power.cut_under(daemon),
            None => self.power.cut(None),
        }
        self.power.restore(&mut self.chance);
    }

    fn lose_all_but_what_was_flushed(&self, daemon: Daemon) {
        self.power.cut_under(daemon);
        self.power.restore_flushed();
    }
}

fn expect(daemon: &Daemon, contents: &[u8]) {
    let mut client = daemon.connect();
    contents.chunks(MIB).enumerate().for_each(|(piece, bytes)| client.expect((piece * MIB) as u64, bytes));
}

/// A cut is tried at each change of the disk, and some behind the last.
#[test]
fn a_volume_that_was_being_made_when_the_power_failed_can_be_made_again() {
    let (mut cuts, mut made) = (0, 0);
    for changes in 0.. {
        let mut volume = Volume::none(changes);
        let mut maker = volume.power.cut_after_start(changes, || volume.launch(&volume.creation()));
        assert!(!maker.becomes_ready(), "it serves nothing");
        let is_made = !volume.power.is_off();
        volume.lose_power(Some(maker));
        if is_made {
            made += 1;
        } else {
            cuts += 1;
            volume.make_again();
        }
        assert!(volume.origin().exists() && volume.cache().exists(), "after {changes} changes");
        let (daemon, contents) = volume.written(changes);
        daemon.connect().flush().unwrap();
        volume.lose_power(Some(daemon));
        expect(&volume.up(), &contents);
        if made == 6 {
            break;
        }
    }
    assert!(cuts > 10, "{cuts} changes make a volume");
}

#[test]
fn what_was_acknowledged_before_a_clean_stop_survives_a_power_cut_behind_it() {
    let mut volume = Volume::new(2);
    for round in 0..5 {
        let (daemon, contents) = volume.written(round);
        daemon.stop();
        volume.lose_power(None);
        let daemon = volume.up();
        expect(&daemon, &contents);
        volume.lose_power(Some(daemon));
    }
}

/// A cut is tried at each change of the disk.
#[test]
fn a_volume_that_was_being_stopped_when_the_power_failed_has_all_that_was_flushed() {
    let mut cuts = 0;
    for changes in 0.. {
        let mut volume = Volume::new(changes);
        let (daemon, contents) = volume.written(changes);
        daemon.connect().flush().unwrap();
        volume.power.cut_after(changes, daemon.pid());
        daemon.terminate();
        let (status, said) = volume.power.await_end(daemon);
        let is_stopped = !volume.power.is_off();
        assert!(!is_stopped || status.success(), "{said}");
        volume.lose_power(None);
        check_after_cut(volume.power.path());
        expect(&volume.up(), &contents);
        if is_stopped {
            break;
        }
        cuts += 1;
    }
    assert!(cuts > 3, "{cuts} changes stop it");
}

/// The device says so, and has lost what it was to keep: an error that is told once, as of a file system.
#[test]
fn a_flush_that_failed_keeps_nothing_and_the_next_one_that_succeeds_keeps_all() {
    for round in 1..4 {
        let volume = Volume::new(30 + u64::from(round));
        let (daemon, contents) = volume.written(u64::from(round));
        volume.power.fail_flushes("cache.img", round);
        let mut client = daemon.connect();
        assert!((0..100).any(|_| client.flush().is_ok()), "no FLUSH succeeds any more");
        assert_eq!(volume.power.failing_flushes("cache.img"), 0, "it did not ask the SSD");
        volume.lose_all_but_what_was_flushed(daemon);
        expect(&volume.up(), &contents);
    }
}

#[test]
fn a_drained_origin_is_whole_without_its_cache_after_a_power_cut() {
    let volume = Volume::new(3);
    for round in 0..3 {
        let (daemon, contents) = volume.written(round);
        volume.tidegate(&["drain"]);
        volume.lose_all_but_what_was_flushed(daemon);
        assert!(fs::read(volume.origin()).unwrap() == contents, "round {round}");
    }
}

#[test]
fn a_mode_that_was_changed_stays_changed_after_a_power_cut() {
    let mut volume = Volume::new(4);
    let (daemon, contents) = volume.written(0);
    volume.tidegate(&["mode", "write-through"]);
    volume.lose_power(Some(daemon));
    assert!(fs::read(volume.origin()).unwrap() == contents, "nothing was dirty any more");
    for mode in ["write-back", "read-only", "write-through"].repeat(3) {
        let daemon = volume.up();
        volume.tidegate(&["mode", mode]);
        volume.lose_power(Some(daemon));
        let daemon = volume.up();
        assert_eq!(daemon.status()["mode"]["recorded"].as_str(), Some(mode));
        volume.lose_power(Some(daemon));
    }
}

/// A cut is tried at each change of the disk.
#[test]
fn a_volume_that_was_growing_when_the_power_failed_grows_with_the_next_start() {
    let mut cuts = 0;
    for changes in 0.. {
        let mut volume = Volume::new(changes);
        let (daemon, contents) = volume.written(changes);
        daemon.stop();
        let larger = ORIGIN_BYTES as u64 * 3 / 2;
        fs::OpenOptions::new().write(true).open(volume.origin()).and_then(|origin| origin.set_len(larger)).unwrap();
        volume.power.flush();
        let mut daemon = volume.power.cut_after_start(changes, || volume.launch(&["up", "--grow"]));
        let is_grown = daemon.becomes_ready();
        assert!(is_grown || volume.power.is_off(), "{}", daemon.said());
        volume.lose_power(Some(daemon));
        let daemon = Daemon::start(volume.power.path(), &volume.with_dir(&["up", "--grow"]));
        expect(&daemon, &[contents, vec![0; ORIGIN_BYTES / 2]].concat());
        if is_grown {
            break;
        }
        cuts += 1;
    }
    assert!(cuts > 3, "{cuts} changes let it grow");
}

/// A cut is tried at each change of the disk.
#[test]
fn a_cache_that_was_being_formatted_anew_when_the_power_failed_is_the_old_one_or_empty() {
    let (mut cuts, mut old) = (0, 0);
    for changes in 0.. {
        let mut volume = Volume::new(changes);
        let (daemon, contents) = volume.written(changes);
        daemon.stop();
        volume.power.flush();
        let maker = volume.power.cut_after_start(changes, || volume.launch(&["create", "--force"]));
        let (status, said) = volume.power.await_end(maker);
        let is_made = !volume.power.is_off();
        assert!(!is_made || status.success(), "{said}");
        volume.lose_power(None);
        let at_home = fs::read(volume.origin()).unwrap();
        assert!(at_home != contents, "nothing is to be lost");
        let mut daemon = volume.launch(&["up"]);
        if !daemon.becomes_ready() {
            // It is blank, or new: that what the old one had was given up, nobody has written down.
            let (_, said) = daemon.ended();
            assert!(!is_made && !said.contains("damaged"), "after {changes} changes: {said}");
            volume.tidegate(&["create", "--force"]);
            expect(&Daemon::start(volume.power.path(), &volume.with_dir(&["up", "--accept-loss"])), &at_home);
        } else if is_made {
            expect(&daemon, &at_home);
        } else {
            expect(&daemon, &contents);
            old += 1;
        }
        if is_made {
            break;
        }
        cuts += 1;
    }
    assert!(cuts > 3 && old > 0, "{cuts} changes make it blank, {old} times it was as before");
}

/// All goes home, and then the cache says that it is not needed. A cut is tried at the first changes of the disk, and at some of those that follow.
#[test]
fn a_volume_that_was_being_detached_when_the_power_failed_is_whole_with_its_cache_or_without() {
    let (mut changes, mut cuts) = (0, 0);
    loop {
        let mut volume = Volume::new(changes);
        let (daemon, contents) = volume.written(changes);
        daemon.connect().flush().unwrap();
        volume.power.cut_after(changes, daemon.pid());
        let detach = volume.launch(&["detach"]);
        volume.power.kill_too(detach.pid());
        let (status, said) = volume.power.await_end(detach);
        let is_detached = !volume.power.is_off();
        assert!(!is_detached || status.success(), "{said}");
        volume.lose_power(Some(daemon));
        let mut daemon = volume.launch(&["up"]);
        if daemon.becomes_ready() {
            assert!(!is_detached);
            expect(&daemon, &contents);
        } else {
            let (_, said) = daemon.ended();
            assert!(said.contains("detached"), "after {changes} changes: {said}");
            assert!(fs::read(volume.origin()).unwrap() == contents, "after {changes} changes");
        }
        if is_detached {
            break;
        }
        cuts += 1;
        changes += 1 + changes / 8;
    }
    assert!(cuts > 10, "{cuts} cuts");
}

/// The SSD goes with the power. That it had the only copy of something is known beside it, from before the first such thing was flushed.
#[test]
fn a_cache_that_is_lost_with_the_power_is_not_taken_for_one_that_held_nothing() {
    for round in 0..8 {
        let mut volume = Volume::new(5 + round);
        let (daemon, _) = volume.written(round);
        volume.tidegate(&["mode", "write-through"]);
        daemon.stop();
        volume.power.flush();
        let daemon = volume.up();
        volume.tidegate(&["mode", "write-back"]);
        let mut client = daemon.connect();
        client.write(0, &[7; 4_096]).and_then(|()| client.flush()).unwrap();
        volume.lose_power(Some(daemon));
        replace_cache(volume.power.path());
        let mut daemon = volume.launch(&["up"]);
        assert!(!daemon.becomes_ready(), "round {round}: {:?}", daemon.greeting);
        let (status, said) = daemon.ended();
        assert!(
            status.code() == Some(65) && said.contains("newer than the origin") && said.contains("--accept-loss"),
            "round {round}: {said}"
        );
    }
}

#[test]
fn a_loss_that_was_accepted_is_not_asked_about_again_after_a_power_cut() {
    let volume = Volume::new(8);
    let (daemon, _) = volume.written(8);
    daemon.stop();
    volume.power.flush();
    replace_cache(volume.power.path());
    let at_home = fs::read(volume.origin()).unwrap();
    let mut daemon = volume.launch(&["up"]);
    assert!(!daemon.becomes_ready());
    let daemon = Daemon::start(volume.power.path(), &volume.with_dir(&["up", "--accept-loss"]));
    expect(&daemon, &at_home);
    volume.lose_all_but_what_was_flushed(daemon);
    expect(&volume.up(), &at_home);
}

/// The SSD fails, the volume goes on without it, then the power fails, and the SSD is back: it has missed what was flushed without it.
#[test]
fn what_was_flushed_without_the_cache_is_there_after_a_power_cut_and_the_cache_that_missed_it_is_refused() {
    let volume = Volume::new(6);
    let (daemon, mut contents) = volume.written(6);
    volume.tidegate(&["drain"]);
    volume.power.set_broken("cache.img", true);
    let (mut client, later) = (daemon.connect(), Chance::new(7).bytes(MIB));
    client.write(MIB as u64, &later).and_then(|()| client.flush()).unwrap();
    contents[MIB..][..MIB].copy_from_slice(&later);
    volume.lose_all_but_what_was_flushed(daemon);
    volume.power.set_broken("cache.img", false);
    let mut daemon = volume.launch(&["up"]);
    assert!(!daemon.becomes_ready(), "{:?}", daemon.greeting);
    let (_, said) = daemon.ended();
    assert!(said.contains("missed") && said.contains("create --force"), "{said}");
    volume.tidegate(&["create", "--force"]);
    expect(&volume.up(), &contents);
}

//! File systems on the device when the daemon is killed under them: what they synchronised is there, and their own checkers find nothing.
//! Also dbench, which does what a file server does.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use crate::common::chance::Chance;
use crate::common::stand::{Stand, rounds};
use crate::common::{text, tool};

/// What is known of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It may be there, whole or in part.
    Started,
    /// Synchronised, and so is its name.
    Kept,
    /// It may be there, but then it is whole.
    Leaving,
    /// Removed, and the folder was synchronised behind that.
    Gone,
}

/// Files by number.
type Ledger = Vec<Fate>;

fn contents(number: usize) -> Vec<u8> {
    let mut chance = Chance::new(number as u64);
    let size = chance.below(1 << (6 + number % 12));
    chance.bytes(size as usize)
}

/// Writes and synchronises a file; now and then removes an older one. An error: the disk has gone.
fn step(at: &Path, ledger: &mut Ledger, chance: &mut Chance) -> io::Result<()> {
    let number = ledger.len();
    ledger.push(Fate::Started);
    let folder = at.join((number % 7).to_string());
    fs::create_dir_all(&folder)?;
    let draft = folder.join(format!("{number}.draft"));
    let mut file = File::create(&draft)?;
    file.write_all(&contents(number))?;
    file.sync_all()?;
    fs::rename(&draft, folder.join(number.to_string()))?;
    File::open(&folder)?.sync_all()?;
    File::open(at)?.sync_all()?;
    ledger[number] = Fate::Kept;
    let old = chance.below(ledger.len() as u64) as usize;
    if number.is_multiple_of(3) && ledger[old] == Fate::Kept {
        ledger[old] = Fate::Leaving;
        let folder = at.join((old % 7).to_string());
        fs::remove_file(folder.join(old.to_string()))?;
        File::open(&folder)?.sync_all()?;
        ledger[old] = Fate::Gone;
    }
    Ok(())
}

/// Is everything as the ledger says? What was open is decided from here on.
fn judge(at: &Path, ledger: &mut Ledger) {
    for (number, fate) in ledger.iter_mut().enumerate() {
        let file = at.join((number % 7).to_string()).join(number.to_string());
        let found = match fs::read(&file) {
            Ok(found) => Some(found),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => panic!("file {number} ({fate:?}): {error}"),
        };
        let is_whole = found.as_ref().is_some_and(|found| *found == contents(number));
        match (&fate, &found) {
            (Fate::Kept, _) => assert!(is_whole, "file {number} was synchronised, and is {:?} bytes now", found.map(|found| found.len())),
            (Fate::Gone, found) => assert!(found.is_none(), "file {number} was removed and came back"),
            (Fate::Started | Fate::Leaving, None) => *fate = Fate::Gone,
            (Fate::Started | Fate::Leaving, Some(_)) => {
                assert!(is_whole, "file {number} got its name when it was synchronised");
                *fate = Fate::Kept;
            }
        }
    }
}

/// Kills the daemon again and again in the middle of such work.
fn check(mkfs: &[&str], fsck: &[&str]) {
    let mut stand = Stand::new(mkfs, "noatime");
    let mut ledger = Ledger::new();
    for round in 0..rounds(2) {
        let mut chance = Chance::new(round);
        let at = stand.at();
        let kept = 40 + chance.below(40) as usize;
        let mut done = 0;
        std::thread::scope(|threads| {
            let (sender, steps) = std::sync::mpsc::channel();
            let stand = &stand;
            threads.spawn(move || {
                // After so many files it is killed, while the next ones are written.
                steps.iter().take(kept).for_each(drop);
                stand.kill_daemon();
            });
            while step(&at, &mut ledger, &mut chance).is_ok() {
                done += 1;
                // Nobody listens any more once the daemon is being killed.
                let _ = sender.send(());
            }
        });
        assert!(done >= kept, "round {round}: the file system failed although the daemon was there");
        let at = stand.take_up_again();
        judge(&at, &mut ledger);
    }
    let kept = ledger.iter().filter(|fate| **fate == Fate::Kept).count();
    assert!(kept > 40, "{kept} files are too few to prove anything");
    stand.finish(fsck);
}

#[test]
fn ext4_keeps_what_it_synchronised_when_the_daemon_is_killed() {
    check(&["mkfs.ext4", "-q"], &["e2fsck", "-f", "-n"]);
}

#[test]
fn xfs_keeps_what_it_synchronised_when_the_daemon_is_killed() {
    check(&["mkfs.xfs", "-q"], &["xfs_repair", "-n"]);
}

#[test]
fn btrfs_keeps_what_it_synchronised_when_the_daemon_is_killed() {
    check(&["mkfs.btrfs", "-q"], &["btrfs", "check", "--readonly"]);
}

#[test]
fn dbench_runs_and_leaves_a_clean_file_system() {
    let stand = Stand::new(&["mkfs.ext4", "-q"], "noatime");
    let seconds = (4 * rounds(1)).min(200).to_string();
    let said = tool::run("dbench", &["-t", &seconds, "-D", text(&stand.at()), "4"]).succeeds();
    assert!(said.contains("Throughput"), "{said}");
    stand.finish(&["e2fsck", "-f", "-n"]);
}

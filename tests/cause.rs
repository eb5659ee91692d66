//! No effect without its cause: a write that was sent when another one had been answered, on whatever connection, is there after a `kill -9`,
//! and after a power cut, only if the other one is. And two who flush all the time, each in the middle of the other's, find what was answered before.

use std::io;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::chance::Chance;
use crate::common::daemon::Daemon;
use crate::common::nbd::{Client, Command};
use crate::common::power::Power;
use crate::common::stamp::{SECTOR, Version, stamp, stamp_of};
use crate::common::{kills, make_volume, volume};

const BLOCK: u64 = 8;
const CHAINS: u64 = 3;
/// Of these each chain has so many; and so many are shared, a sector for each.
const BLOCKS: u64 = 300;
const SECTORS: u64 = (CHAINS + 1) * BLOCKS * BLOCK;
/// That a chain's steps take in turns.
const CONNECTIONS: usize = 2;
const FLUSHERS: usize = 2;
/// `make soak` asks for more.
const KILLS: u64 = 12;

/// A write that was sent when those before it had been answered.
#[derive(Clone, Copy)]
struct Step {
    version: Version,
    at: u64,
    sectors: u64,
}

impl Step {
    fn range(&self) -> std::ops::Range<usize> {
        self.at as usize..(self.at + self.sectors) as usize
    }
}

/// What a chain has done in this life of the daemon.
#[derive(Default)]
struct Chain {
    /// All but the last were answered.
    steps: Vec<Step>,
    answered: usize,
    /// So many were answered before a FLUSH that was answered too.
    flushed: usize,
}

/// The version of each sector.
fn versions_of(read: &[u8]) -> Vec<Version> {
    let is_new = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    let version = |(number, bytes): (u64, &[u8])| if is_new(bytes) { 0 } else { stamp_of(number, bytes).expect("what was written there") };
    (0..).zip(read.chunks_exact(SECTOR)).map(version).collect()
}

/// A block of the chain's own, some of them, or its sector of one that all share.
fn place(chain: u64, chance: &mut Chance) -> (u64, u64) {
    let blocks = match chance.below(8) {
        0 => return ((CHAINS * BLOCKS + chance.below(BLOCKS)) * BLOCK + chain, 1),
        1 => 2 + chance.below(15),
        _ => 1,
    };
    ((chain * BLOCKS + chance.below(BLOCKS + 1 - blocks)) * BLOCK, blocks * BLOCK)
}

fn ask(client: &mut Client, command: Command, at: u64, data: &[u8]) -> io::Result<()> {
    client.send(command, at * SECTOR as u64, data.len() as u32, data)?;
    assert_eq!(client.receive()?.error, 0, "no device failed");
    Ok(())
}

/// Step after step, each on another connection, until the daemon is gone.
fn go_on(number: u64, chain: &Mutex<Chain>, mut clients: Vec<Client>, versions: &AtomicU64, mut chance: Chance, answered: impl Fn()) {
    for turn in 0.. {
        let (at, sectors) = place(number, &mut chance);
        let version = versions.fetch_add(1, Ordering::Relaxed);
        chain.lock().unwrap().steps.push(Step { version, at, sectors });
        let mut data = Vec::new();
        (at..at + sectors).for_each(|at| stamp(at, version, &mut data));
        if ask(&mut clients[turn % CONNECTIONS], Command::Write, at, &data).is_err() {
            return;
        }
        let mut chain = chain.lock().unwrap();
        chain.answered = chain.steps.len();
        drop(chain);
        answered();
    }
}

/// FLUSH after FLUSH, until the daemon is gone.
fn flush(mut client: Client, chains: &[Mutex<Chain>]) {
    loop {
        // First looked, then sent.
        let before: Vec<usize> = chains.iter().map(|chain| chain.lock().unwrap().answered).collect();
        if ask(&mut client, Command::Flush, 0, &[]).is_err() {
            return;
        }
        for (chain, before) in chains.iter().zip(before) {
            let mut chain = chain.lock().unwrap();
            chain.flushed = chain.flushed.max(before);
        }
    }
}

/// `kill -9`, or a cut of the power.
fn kill(daemon: Daemon, power: Option<&Power>) {
    match power {
        Some(power) => power.cut_under(daemon),
        None => daemon.kill(),
    }
}

/// One life of the daemon, with these connections for each chain, that ends in the middle of everything.
fn one_life(daemon: Daemon, power: Option<&Power>, chains: &[Mutex<Chain>], versions: &AtomicU64, mut chance: Chance, answers: u64) {
    let clients: Vec<Vec<Client>> = chains.iter().map(|_| (0..CONNECTIONS).map(|_| daemon.connect()).collect()).collect();
    let flushers: Vec<Client> = (0..FLUSHERS).map(|_| daemon.connect()).collect();
    let (daemon, fuse) = (Mutex::new(Some(daemon)), AtomicU64::new(answers));
    let answered = || {
        if fuse.fetch_sub(1, Ordering::AcqRel) == 1 {
            kill(daemon.lock().unwrap().take().expect("killed once"), power);
        }
    };
    std::thread::scope(|threads| {
        for ((number, chain), clients) in (0..).zip(chains).zip(clients) {
            let (chance, answered) = (Chance::new(chance.next()), &answered);
            threads.spawn(move || go_on(number, chain, clients, versions, chance, answered));
        }
        for client in flushers {
            threads.spawn(|| flush(client, chains));
        }
    });
}

/// What is left of the chains is what they were up to some step, which may be there in part; a FLUSH covered none behind it. `known` is what
/// the sectors held before, and becomes what they hold.
fn judge(what: &str, left: &[Version], chains: &[Mutex<Chain>], known: &mut [Version]) {
    for (number, chain) in chains.iter().enumerate() {
        let Chain { steps, flushed, .. } = std::mem::take(&mut *chain.lock().unwrap());
        let is_there = |step: &Step| left[step.range()].contains(&step.version);
        let end = steps.iter().rposition(is_there).map_or(0, |last| last + 1);
        assert!(end >= flushed, "{what}, chain {number}: {flushed} steps were flushed, and {end} are there");
        let Some((last, before)) = steps[..end].split_last() else { continue };
        for step in before {
            known[step.range()].fill(step.version);
        }
        for at in last.range().filter(|&at| left[at] == last.version) {
            known[at] = last.version;
        }
    }
    for (at, (found, version)) in left.iter().zip(known).enumerate() {
        assert!(found == version, "{what}: sector {at} is of version {found} and not {version}, of which later effects are there");
    }
}

fn check(dir: &Path, power: Option<&Power>) {
    let chains: Vec<Mutex<Chain>> = (0..CHAINS).map(|_| Mutex::default()).collect();
    let (versions, mut known) = (AtomicU64::new(1), vec![0; SECTORS as usize]);
    let kills = kills(KILLS);
    for round in 0..kills {
        let mut chance = Chance::new(round);
        let answers = 1 + chance.below(200 << (round % 6));
        let mut luck = Chance::new(!round);
        one_life(Daemon::up(dir), power, &chains, &versions, chance, answers);
        power.inspect(|power| power.restore(&mut luck));
        let daemon = Daemon::up(dir);
        let read = daemon.connect().read(0, SECTORS as u32 * SECTOR as u32).expect("a read after recovery");
        judge(&format!("round {round}"), &versions_of(&read), &chains, &mut known);
        kill(daemon, power);
        power.inspect(|power| power.restore(&mut luck));
    }
    assert!(kills < KILLS || versions.into_inner() > kills * 100, "the lives were too short to prove anything");
}

#[test]
fn after_a_kill_there_is_no_effect_without_its_cause() {
    check(volume("64MiB", "64MiB", "").path(), None);
}

#[test]
fn after_a_kill_there_is_no_effect_without_its_cause_where_front_threads_write() {
    check(volume("64MiB", "64MiB", "[limits]\nfront_threads = 3\n").path(), None);
}

/// Where every write goes to the log: what goes past it is as on a bare disk.
#[test]
fn after_a_power_cut_there_is_no_effect_without_its_cause() {
    for knobs in ["", "[limits]\nfront_threads = 3\n"] {
        let power = Power::new();
        let dir = power.path();
        make_volume(dir, "64MiB", "64MiB", &format!("{knobs}[log]\nsplit = false\ncommit_home = false\n"));
        power.flush();
        check(dir, Some(&power));
        assert!(power.lost("cache.img") > 0);
    }
}

//! Fifty times `kill -9` of the real daemon, and more of one with two volumes, under clients that know what they may expect: every sector
//! that a FLUSH covered is there, every sector is one that was sent, and what was read once is read again. The same where the power of both
//! disks fails, and what they had not flushed may be lost or torn.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::chance::Chance;
use crate::common::daemon::Daemon;
use crate::common::nbd::{CAN_MULTI_CONN, Client, Command};
use crate::common::power::Power;
use crate::common::stamp::{SECTOR, Version, stamp, stamp_of};
use crate::common::{CARRIERS, check_after_cut, kills, make_volume, text, tool, volume, volumes};

/// Sectors under test: 24 MiB of a volume of 64 MiB. More than the cache's dirty high mark, so that destaging runs while we kill.
const SECTORS: u64 = (24 << 20) / SECTOR as u64;
/// Connections take turns in pieces of so many sectors: no multiple of a block, so that they share blocks and never sectors.
const PIECE: u64 = 37;
const BLOCK: u64 = 8;
const CONNECTIONS: u64 = 3;
const IN_FLIGHT: usize = 16;
/// Rounds; `make soak` asks for more in TIDEGATE_KILLS.
const KILLS: u64 = 50;

/// Where half of the sectors lie on a volume of more than 2^32 blocks: each of them there has a twin whose block ends in the same 32 bits.
const FAR: u64 = BLOCK << 32;
/// The first of them. No piece and no step of reading has some on either side.
const BORDER: u64 = PIECE * STEP;
const STEP: u64 = 512;

/// Writes, each with a page of the journal to itself: more than a third of the smallest one, which a checkpoint ends.
const PAGES: u64 = 1_400;

/// Rounds with two volumes, with threads for clients, and far out.
const KILLS_OF_TWO: u64 = 10;
/// Rounds without power: each is three lives and up to three starts.
const CUTS: u64 = 30;
/// Small and restless: destaging starts at once, so that kills hit it too.
const RESTLESS: &str = "free_floor = \"40%\"\nwait = \"1ms\"\nmax_dirty_age = \"100ms\"\ndirty_high = \"30%\"\n";

/// What is known of one sector. Versions count over all volumes; those of one sector are sent one after the other, so a larger one is a later one.
#[derive(Clone, Copy, Default)]
struct Sector {
    /// At least this old: it was flushed, or a read after a crash returned it.
    durable: Version,
    /// At least this old was flushed.
    flushed: Version,
    /// The last that was sent, acknowledged or not.
    sent: Version,
    /// The last that made it zeroes; zeroes carry no stamp.
    zeroed: Version,
}

#[derive(Clone, Copy)]
struct Write {
    version: Version,
    start: u64,
    sectors: u64,
}

/// What all connections know together.
struct Model {
    sectors: Vec<Sector>,
    /// Acknowledged and not known to be flushed, in the order of the acknowledgements.
    acknowledged: Vec<Write>,
    /// Acknowledgements before those in `acknowledged`.
    flushed: usize,
    /// Versions of this volume are those that leave this remainder: none of another one is ever taken for its own.
    volume: (u64, u64),
    /// Those from `BORDER` on lie far out.
    is_far: bool,
}

impl Model {
    /// Of one of `volumes` volumes.
    fn new(volume: u64, volumes: u64, is_far: bool) -> Self {
        let sectors = vec![Sector::default(); SECTORS as usize];
        Model { sectors, acknowledged: Vec::new(), flushed: 0, volume: (volume, volumes), is_far }
    }

    /// The byte of the volume where a sector lies.
    fn offset(&self, number: u64) -> u64 {
        let far = number.checked_sub(BORDER).filter(|_| self.is_far);
        far.map_or(number, |number| FAR + number) * SECTOR as u64
    }

    fn of(&mut self, write: Write) -> &mut [Sector] {
        &mut self.sectors[write.start as usize..(write.start + write.sectors) as usize]
    }

    fn durable(&mut self, write: Write) {
        for sector in self.of(write) {
            sector.durable = sector.durable.max(write.version);
            sector.flushed = sector.flushed.max(write.version);
        }
    }

    /// How many acknowledgements a FLUSH that is sent now covers.
    fn horizon(&self) -> usize {
        self.flushed + self.acknowledged.len()
    }

    fn flushed_to(&mut self, horizon: usize) {
        let covered: Vec<Write> = self.acknowledged.drain(..horizon.saturating_sub(self.flushed)).collect();
        self.flushed = self.flushed.max(horizon);
        covered.into_iter().for_each(|write| self.durable(write));
    }

    /// After a crash nothing is in flight any more, and nothing but what is read counts.
    fn crashed(&mut self) {
        self.flushed += self.acknowledged.len();
        self.acknowledged.clear();
    }

    /// Is this what a sector may hold now? What is read once after a crash is what it holds from now on.
    fn judge(&mut self, number: u64, bytes: &[u8]) -> Result<(), String> {
        let sector = &mut self.sectors[number as usize];
        let Sector { durable, flushed, sent, zeroed } = *sector;
        if bytes.iter().all(|byte| *byte == 0) {
            if zeroed < durable {
                return Err(format!(
                    "sector {number} is zeroes; its version {durable} was flushed or read before, and {sent} was sent last"
                ));
            }
            *sector = Sector { durable: zeroed, flushed, sent: zeroed, zeroed };
            return Ok(());
        }
        let found =
            stamp_of(number, bytes).ok_or_else(|| format!("sector {number} holds what nobody wrote there: {:02x?}…", &bytes[..32]))?;
        if found % self.volume.1 != self.volume.0 {
            return Err(format!("sector {number} holds version {found}, which was written to another volume"));
        }
        if found < durable {
            return Err(format!("sector {number} went back to version {found}; version {durable} was flushed or read before"));
        }
        if found > sent {
            return Err(format!("sector {number} holds version {found}; the last that was sent is {sent}"));
        }
        *sector = Sector { durable: found, flushed, sent: found, zeroed: 0 };
        Ok(())
    }

    /// Does the origin alone hold what was flushed of a sector, or something later?
    fn judge_origin(&self, number: u64, bytes: &[u8]) -> Result<(), String> {
        let Sector { flushed, sent, zeroed, .. } = self.sectors[number as usize];
        let found = if bytes.iter().all(|byte| *byte == 0) { Some(zeroed) } else { stamp_of(number, bytes) };
        match found {
            Some(found) if (flushed..=sent).contains(&found) => Ok(()),
            found => Err(format!("sector {number} of the origin holds version {found:?}; {flushed} was flushed, and {sent} was sent last")),
        }
    }
}

/// One round between a start and a kill.
struct Round<'a> {
    model: &'a Mutex<Model>,
    versions: &'a AtomicU64,
    /// Replies until the kill.
    fuse: &'a AtomicU64,
    kill: &'a (dyn Fn() + Sync),
}

/// What a connection waits for.
enum Waiting {
    Write { cookie: u64, write: Write, fua: bool },
    Flush { cookie: u64, horizon: usize },
}

impl Waiting {
    fn cookie(&self) -> u64 {
        match self {
            Waiting::Write { cookie, .. } | Waiting::Flush { cookie, .. } => *cookie,
        }
    }

    fn overlaps(&self, start: u64, sectors: u64) -> bool {
        match self {
            Waiting::Write { write, .. } => write.start < start + sectors && start < write.start + write.sectors,
            Waiting::Flush { .. } => false,
        }
    }
}

impl Round<'_> {
    /// Writes, zeroes and flushes without end, until the daemon is gone.
    fn connection(&self, mut client: Client, mine: u64, mut chance: Chance) {
        let mut waiting: Vec<Waiting> = Vec::new();
        while self.talk(&mut client, mine, &mut chance, &mut waiting).is_ok() {}
        // The replies that were sent before the end count: what they promised, they promised.
        while !waiting.is_empty() && self.receive_one(&mut client, &mut waiting).is_ok() {}
    }

    /// One request more; and the replies that have come, or that must come first.
    fn talk(&self, client: &mut Client, mine: u64, chance: &mut Chance, waiting: &mut Vec<Waiting>) -> std::io::Result<()> {
        self.send_one(client, mine, chance, waiting)?;
        while waiting.len() >= IN_FLIGHT || (!waiting.is_empty() && client.has_received()) {
            self.receive_one(client, waiting)?;
        }
        Ok(())
    }

    fn send_one(&self, client: &mut Client, mine: u64, chance: &mut Chance, waiting: &mut Vec<Waiting>) -> std::io::Result<()> {
        let dice = chance.below(100);
        if dice < 4 {
            let horizon = self.model.lock().unwrap().horizon(); // first looked, then sent: what was acknowledged before is covered
            let cookie = client.send(Command::Flush, 0, 0, &[])?;
            waiting.push(Waiting::Flush { cookie, horizon });
            return Ok(());
        }
        let pieces = SECTORS / PIECE / CONNECTIONS;
        let piece = if chance.below(2) == 0 { chance.below(pieces) } else { chance.below(8) };
        let first = chance.below(PIECE);
        let sectors = 1 + chance.below(PIECE - first);
        let start = (piece * CONNECTIONS + mine) * PIECE + first;
        // Half of them are whole blocks, as file systems write them.
        let (block, behind) = (start.next_multiple_of(BLOCK), (start + sectors) / BLOCK * BLOCK);
        let (start, sectors) = if block < behind && chance.below(2) == 0 { (block, behind - block) } else { (start, sectors) };
        if waiting.iter().any(|other| other.overlaps(start, sectors)) {
            return Ok(()); // two writes of one sector in flight may land in either order
        }
        let (volume, volumes) = self.model.lock().unwrap().volume;
        let write = Write { version: self.versions.fetch_add(1, Ordering::Relaxed) * volumes + volume, start, sectors };
        let command = match dice {
            4..8 => Command::WriteFua,
            8..16 => Command::Zero,
            _ => Command::Write,
        };
        let mut data = Vec::new();
        if command != Command::Zero {
            (start..start + sectors).for_each(|number| stamp(number, write.version, &mut data));
        }
        let offset = {
            let mut model = self.model.lock().unwrap();
            for sector in model.of(write) {
                sector.sent = write.version;
                if command == Command::Zero {
                    sector.zeroed = write.version;
                }
            }
            model.offset(start)
        };
        let cookie = client.send(command, offset, (sectors as usize * SECTOR) as u32, &data)?;
        waiting.push(Waiting::Write { cookie, write, fua: command == Command::WriteFua });
        Ok(())
    }

    fn receive_one(&self, client: &mut Client, waiting: &mut Vec<Waiting>) -> std::io::Result<()> {
        let reply = client.receive()?;
        assert_eq!(reply.error, 0, "no device failed");
        let place = waiting.iter().position(|waiting| waiting.cookie() == reply.cookie).expect("a reply to what was sent");
        let mut model = self.model.lock().unwrap();
        match waiting.swap_remove(place) {
            Waiting::Write { write, fua: true, .. } => model.durable(write),
            Waiting::Write { write, fua: false, .. } => model.acknowledged.push(write),
            Waiting::Flush { horizon, .. } => model.flushed_to(horizon),
        }
        drop(model);
        if self.fuse.fetch_sub(1, Ordering::AcqRel) == 1 {
            (self.kill)();
        }
        Ok(())
    }
}

/// Writes so much, durably, that the next start begins at a checkpoint, at which a set was open.
fn turn_the_ring(client: &mut Client, model: &mut Model, versions: &AtomicU64, chance: &mut Chance) {
    for _ in 0..PAGES {
        let (volume, volumes) = model.volume;
        let version = versions.fetch_add(1, Ordering::Relaxed) * volumes + volume;
        let write = Write { version, start: chance.below(SECTORS / BLOCK) * BLOCK, sectors: BLOCK };
        let mut data = Vec::new();
        (write.start..write.start + BLOCK).for_each(|number| stamp(number, version, &mut data));
        client.send(Command::WriteFua, model.offset(write.start), data.len() as u32, &data).expect("a daemon that nobody has killed");
        assert_eq!(client.receive().expect("a reply").error, 0);
        model.of(write).iter_mut().for_each(|sector| sector.sent = version);
        model.durable(write);
    }
}

/// Reads everything; `each` is told every sector, with the model.
fn read_all(client: &mut Client, model: &mut Model, mut each: impl FnMut(&mut Model, u64, &[u8])) {
    for start in (0..SECTORS).step_by(STEP as usize) {
        let sectors = STEP.min(SECTORS - start);
        let data = client.read(model.offset(start), (sectors as usize * SECTOR) as u32).expect("a read after recovery");
        for (number, bytes) in (start..).zip(data.chunks_exact(SECTOR)) {
            each(model, number, bytes);
        }
    }
}

/// Disks whose power is cut, instead of a kill.
struct Cuts<'a> {
    power: &'a Power,
    /// A FLUSH promises that the origin has it.
    is_home: bool,
}

/// A life ends: by a kill, or by a cut of the power, which comes back.
fn end(daemon: Daemon, cuts: Option<&Cuts>, chance: &mut Chance) {
    match cuts {
        Some(Cuts { power, .. }) => {
            power.cut_under(daemon);
            power.restore(chance);
        }
        None => daemon.kill(),
    }
}

/// One life of the daemon that ends in the middle of everything: by a kill, or by a cut of the power. The volumes have names if there are several.
/// Io_uring and threads take turns.
fn one_round(dir: &Path, volumes: &[(&str, Mutex<Model>)], versions: &AtomicU64, power: Option<&Power>, round: u64) {
    let daemon = Daemon::up_by(dir, CARRIERS[(round % 2) as usize]);
    let mut chance = Chance::new(round);
    let connect = |(name, model)| (0..CONNECTIONS).map(move |mine| (model, mine, name));
    let clients: Vec<_> = volumes.iter().map(|(name, model)| (*name, model)).flat_map(connect).collect();
    let clients: Vec<_> = clients.into_iter().map(|(model, mine, name)| (model, mine, daemon.connect_to(name))).collect();
    assert!(clients.iter().all(|(_, _, client)| client.flags & CAN_MULTI_CONN != 0), "a FLUSH of one must cover the others");
    // Of each four cuts two come with a reply, and two with a change of one of the disks, or with a flush.
    let user = daemon.pid();
    let by_change = power.filter(|_| round % 4 >= 2).inspect(|power| power.cut_after(chance.below(1 << (2 + round % 9)), user)).is_some();
    let daemon = Mutex::new(Some(daemon));
    let kill = || {
        let daemon = daemon.lock().unwrap().take().expect("killed once");
        match power {
            Some(power) => power.cut_under(daemon),
            None => daemon.kill(),
        }
    };
    let fuse = AtomicU64::new(if by_change { u64::MAX } else { 1 + chance.below(1 << (4 + round % 9)) });
    std::thread::scope(|threads| {
        for (model, mine, client) in clients {
            let (round, chance) = (Round { model, versions, fuse: &fuse, kill: &kill }, Chance::new(chance.next()));
            threads.spawn(move || round.connection(client, mine, chance));
        }
    });
    let left = daemon.into_inner().unwrap();
    assert!(left.is_none() || by_change && power.is_some_and(Power::is_off), "the daemon was not killed and closed its connections");
    drop(left);
    power.inspect(|power| power.restore(&mut chance));
}

/// Up to three starts, each without power before it is over, or soon after that.
fn interrupt_starts(dir: &Path, cuts: &Cuts, chance: &mut Chance) {
    let power = cuts.power;
    for _ in 0..chance.below(4) {
        let few = 1 << chance.below(6);
        let start = || Daemon::launch(dir, &["up", "--dir", text(dir)]);
        let mut daemon = power.cut_after_start(chance.below(few), start);
        assert!(daemon.becomes_ready() || power.is_off(), "it is not ready; it said: {}", daemon.said());
        end(daemon, Some(cuts), chance);
    }
}

/// Nobody serves it.
fn judge_origin(origin: &Path, model: &Model, round: u64) {
    let contents = std::fs::read(origin).unwrap();
    for (number, bytes) in (0..SECTORS).zip(contents.chunks_exact(SECTOR)) {
        model.judge_origin(number, bytes).unwrap_or_else(|error| panic!("round {round}: {error}"));
    }
}

/// `kills` rounds, and after each what it left: judged, read again, checked, killed once more, and read again.
fn check(dir: &Path, names: &[&str], is_far: bool, cuts: Option<&Cuts>, kills: u64) {
    let of = names.len() as u64;
    let volumes: Vec<(&str, Mutex<Model>)> =
        names.iter().zip(0..).map(|(name, place)| (*name, Mutex::new(Model::new(place, of, is_far)))).collect();
    let versions = AtomicU64::new(1);
    let mut luck = Chance::new(kills);
    for round in 0..kills {
        if round % KILLS_OF_TWO == 1 {
            let (daemon, mut chance) = (Daemon::up(dir), Chance::new(!round));
            for (name, model) in &volumes {
                turn_the_ring(&mut daemon.connect_to(name), &mut model.lock().unwrap(), &versions, &mut chance);
                assert!(daemon.status_of(name)["cache"]["checkpoints"].as_u64() > Some(0), "the ring was turned in vain");
            }
            end(daemon, cuts, &mut luck);
        }
        one_round(dir, &volumes, &versions, cuts.map(|cuts| cuts.power), round);
        if let Some(cuts) = cuts {
            if cuts.is_home {
                judge_origin(&dir.join("origin.img"), &volumes[0].1.lock().unwrap(), round);
            }
            interrupt_starts(dir, cuts, &mut luck);
        }
        let daemon = Daemon::up(dir);
        let mut seen = Vec::new();
        for (name, model) in &volumes {
            let mut model = model.lock().unwrap();
            model.crashed();
            let mut contents = Vec::with_capacity(SECTORS as usize * SECTOR);
            read_all(&mut daemon.connect_to(name), &mut model, |model, number, bytes| {
                model.judge(number, bytes).unwrap_or_else(|error| panic!("round {round}, volume {name:?}: {error}"));
                contents.extend_from_slice(bytes);
            });
            seen.push(contents);
        }
        let same = |when: &str, daemon: &Daemon| {
            for ((name, model), contents) in volumes.iter().zip(&seen) {
                read_all(&mut daemon.connect_to(name), &mut model.lock().unwrap(), |_, number, bytes| {
                    let same = &contents[number as usize * SECTOR..][..SECTOR] == bytes;
                    assert!(same, "round {round}, volume {name:?}: sector {number} flickers {when}");
                });
            }
        };
        same("in one life", &daemon);
        end(daemon, cuts, &mut luck);
        match cuts {
            Some(_) => check_after_cut(dir),
            None => drop(tool::tidegate(&["check", "--dir", text(dir)]).succeeds()),
        }

        let daemon = Daemon::up(dir);
        same("after a second kill", &daemon);
        for (name, _) in &volumes {
            assert_eq!(daemon.status_of(name)["damage"], serde_json::json!([]), "round {round}");
        }
        end(daemon, cuts, &mut luck);
        if (round + 1) % KILLS == 0 {
            println!("{} kills", round + 1); // a soak runs for an hour: it says where it is
        }
    }
    assert!(kills < KILLS_OF_TWO || versions.into_inner() > kills * 200, "the rounds were too short to prove anything");
}

#[test]
fn fifty_kills_lose_nothing_that_was_flushed_and_nothing_flickers() {
    let folder = volume("64MiB", "64MiB", &format!("[gate]\n{RESTLESS}"));
    check(folder.path(), &[""], false, None, kills(KILLS));
}

/// On a file system in memory, since ext4 has no files of more than 16 TiB.
#[test]
fn kills_lose_nothing_that_was_flushed_beyond_sixteen_tebibytes() {
    let far = tempfile::tempdir_in("/dev/shm").expect("a file system in memory");
    tool::tidegate(&["create", "--dir", text(far.path()), "--origin-size", "20TiB", "--cache-size", "64MiB"]).succeeds();
    std::fs::write(far.path().join("config.toml"), format!("[gate]\n{RESTLESS}")).unwrap();
    check(far.path(), &[""], true, None, kills(KILLS_OF_TWO));
}

#[test]
fn kills_lose_nothing_that_was_flushed_where_front_threads_write() {
    let folder = volume("64MiB", "64MiB", &format!("[limits]\nfront_threads = 3\n[gate]\n{RESTLESS}"));
    check(folder.path(), &[""], false, None, kills(KILLS_OF_TWO));
}

#[test]
fn kills_under_two_volumes_lose_nothing_that_was_flushed_in_either() {
    let names = ["home", "media"];
    let folder = volumes(&names, "default = \"home\"", &format!("[volume.gate]\n{RESTLESS}"));
    check(folder.path(), &names, false, None, kills(KILLS_OF_TWO));
}

/// A volume whose disks' power can be cut, and that of what is kept beside them; each disk writes so many bytes at once. Answers how many changes of
/// the origin the cuts have taken, about.
fn without_power(knobs: &str, block_bytes: u32, kills: u64) -> u64 {
    let power = Power::with_blocks(block_bytes);
    let dir = power.path();
    make_volume(dir, "48MiB", "64MiB", &format!("{knobs}[gate]\n{RESTLESS}"));
    power.flush();
    check(dir, &[""], false, Some(&Cuts { power: &power, is_home: knobs.contains("write-through") }), kills);
    assert!(power.lost("cache.img") > kills, "the cuts took next to nothing: {}", power.lost("cache.img"));
    power.lost("origin.img")
}

#[test]
fn power_cuts_lose_nothing_that_was_flushed_and_nothing_flickers() {
    assert!(without_power("", 4_096, kills(CUTS)) > 0);
}

#[test]
fn power_cuts_lose_nothing_that_was_flushed_where_front_threads_write() {
    without_power("[limits]\nfront_threads = 3\n", 512, kills(KILLS_OF_TWO));
}

#[test]
fn power_cuts_lose_nothing_that_was_flushed_without_memory() {
    without_power("[memory]\nram = \"0\"\n[wear]\ndiscard = true\n", 512, kills(KILLS_OF_TWO));
}

#[test]
fn power_cuts_lose_nothing_that_was_flushed_to_the_origin() {
    assert!(without_power("mode = \"write-through\"\n", 4_096, kills(KILLS_OF_TWO)) > 0);
}

/// Small writes go to the cache, the rest past it.
#[test]
fn power_cuts_lose_nothing_that_was_flushed_where_writes_go_both_ways() {
    let knobs = "[log]\nallocation = \"small-writes\"\nconvert_max = 3\nwhen_full = \"through\"\n";
    assert!(without_power(knobs, 512, kills(KILLS_OF_TWO)) > 0);
}

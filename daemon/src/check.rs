//! `tidegate check`: the recovery of the engine over a cache that is only read, stopped before its first write. It finds what a start
//! would find; and, if it is asked for, what only reading every block can find.

use std::path::Path;

use serde::Serialize;
use tidegate_engine::block::{ATOM_BYTES, Span};
use tidegate_engine::cache::format::Geometry;
use tidegate_engine::op::{Action, Answer, DeviceError, DeviceId, Done, Limits, Op};
use tidegate_engine::payload::{Checksum, Payload};
use tidegate_engine::probe::{Phase, Stored};
use tidegate_engine::request::Reply;
use tidegate_engine::time::Instant;
use tidegate_engine::{Config, Engine, Event, World, turn};

use crate::Failure;
use crate::back::attach::superblock;
use crate::back::disk::{Access, Disk};
use crate::back::run::Run;

/// What recovery would find.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    pub damage: Vec<Found>,
    /// Size of the volume, in bytes.
    pub volume_bytes: u64,
    pub block_bytes: u64,
    pub sets: u32,
    pub free_sets: u32,
    pub dirty_sets: u32,
    /// Blocks in the cache.
    pub live_blocks: u64,
    /// Of these, blocks newer than the origin.
    pub dirty_blocks: u64,
    /// Zeroed and trimmed ranges that the origin does not know yet.
    pub zero_ranges: u64,
    /// Blocks of which atoms cannot be had any more.
    pub lost_blocks: u64,
    /// Groups of records replayed from the journal, and groups at its end that were never promised and are cut off.
    pub groups: u64,
    pub cut_groups: u64,
    /// Of every block, if they were read.
    pub contents: Option<Contents>,
}

/// What reading the blocks has found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Contents {
    /// Blocks read, and compared with their checksums.
    pub read_blocks: u64,
    /// Of these, blocks that the SSD does not give as they were written, and that the origin has too.
    pub damaged_clean_blocks: u64,
    /// And blocks that nobody has.
    pub damaged_dirty_blocks: u64,
    /// Where those lie in the volume, in the order of the cache: the first [`PLACES_MOST`] of them.
    pub damaged_dirty: Vec<Place>,
}

/// A stretch of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// Its first byte.
    pub offset: u64,
    pub bytes: u64,
}

/// So many places are told.
pub const PLACES_MOST: usize = 100;
/// Read at once, in atoms: 1 MiB.
const READ_ATOMS_MAX: u64 = 2048;

/// One damage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Found {
    /// The volume cannot be served; otherwise a copy replaces what is damaged.
    pub fatal: bool,
    /// What and where, in one line.
    pub what: String,
}

impl Report {
    pub fn is_sound(&self) -> bool {
        self.damage.is_empty() && self.contents.as_ref().is_none_or(Contents::is_sound)
    }

    /// Could it be served? Else the numbers are those of what could be read.
    pub fn can_be_served(&self) -> bool {
        !self.damage.iter().any(|found| found.fatal)
    }

    /// Blocks and ranges that the origin does not have, or that are lost.
    pub fn newer(&self) -> u64 {
        self.dirty_blocks + self.zero_ranges + self.lost_blocks
    }
}

impl Contents {
    fn is_sound(&self) -> bool {
        self.damaged_clean_blocks + self.damaged_dirty_blocks == 0
    }

    fn note_damaged(&mut self, stored: &Stored) {
        if !stored.is_dirty {
            self.damaged_clean_blocks += 1;
            return;
        }
        self.damaged_dirty_blocks += 1;
        let place = Place { offset: stored.block.offset(), bytes: stored.block.bytes() };
        let is_full = self.damaged_dirty.len() == PLACES_MOST;
        match self.damaged_dirty.last_mut() {
            Some(last) if last.offset + last.bytes == place.offset => last.bytes += place.bytes,
            _ if is_full => {}
            _ => self.damaged_dirty.push(place),
        }
    }
}

/// Looks through a cache that nobody serves; changes nothing.
///
/// # Errors
/// One line: it cannot be opened, is being served, or is no cache of ours.
pub fn check(cache: &Path) -> Result<Report, Failure> {
    look_through(&Disk::open(cache, DeviceId::Cache, Access::Shared)?)
}

/// The same, and reads every block, unless the volume cannot be served. `progress` hears how many of how many sets have been read.
///
/// # Errors
/// As [`check`].
pub fn check_contents(cache: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Report, Failure> {
    let cache = Disk::open(cache, DeviceId::Cache, Access::Shared)?;
    let (engine, geometry) = recovered(&cache)?;
    let mut report = report(&engine, geometry);
    if report.can_be_served() {
        report.contents = Some(read_contents(&engine, &cache, geometry.sets, progress));
    }
    Ok(report)
}

/// What a start would find in a cache that is open.
pub(crate) fn look_through(cache: &Disk) -> Result<Report, Failure> {
    let (engine, geometry) = recovered(cache)?;
    Ok(report(&engine, geometry))
}

fn read_contents(engine: &Engine<Run>, cache: &Disk, sets: u32, progress: &mut dyn FnMut(u64, u64)) -> Contents {
    let mut contents = Contents::default();
    for set in 0..sets {
        progress(u64::from(set), u64::from(sets));
        let stored: Vec<Stored> = engine.stored(set).collect();
        let goes_on = |a: &Stored, b: &Stored| a.slot.end() == b.slot.start;
        for run in stored.chunk_by(goes_on) {
            for part in run.chunks((READ_ATOMS_MAX / run[0].slot.atoms).max(1) as usize) {
                compare(part, engine.checksum(), cache, &mut contents);
            }
        }
    }
    contents
}

/// Compares what lies end to end with its checksums: one by one where that cannot be read together.
fn compare(run: &[Stored], by: Checksum, cache: &Disk, contents: &mut Contents) {
    let (first, last) = (run[0].slot, run[run.len() - 1].slot);
    match cache.read_now(Span::new(first.start, last.end() - first.start)) {
        Ok(bytes) => {
            contents.read_blocks += run.len() as u64;
            let is_damaged =
                |stored: &&Stored| bytes.slice(stored.slot.start - first.start, stored.slot.atoms).checksum(by) != stored.checksum;
            run.iter().filter(is_damaged).for_each(|stored| contents.note_damaged(stored));
        }
        Err(_) if run.len() > 1 => run.chunks(1).for_each(|one| compare(one, by, cache, contents)),
        Err(_) => {
            contents.read_blocks += 1;
            contents.note_damaged(&run[0]);
        }
    }
}

/// An engine that has recovered from the cache up to its first write.
fn recovered(cache: &Disk) -> Result<(Engine<Run>, Geometry), Failure> {
    let superblock = superblock(cache)?;
    let geometry = superblock.geometry;
    let config = Config { check: true, origin: superblock.origin, ..Config::new(geometry, superblock.format) };
    let limits = cache.limits();
    let origin = Limits { atoms: geometry.volume_atoms, ..limits };
    let mut engine = Engine::new(config, [limits, origin]);
    let mut world = Reading { cache, answered: Vec::new() };
    let (mut events, mut now) = (Vec::new(), Instant::ZERO);
    loop {
        turn(&mut engine, &mut world, now, &mut events);
        if *engine.phase() != Phase::Recovering {
            break;
        }
        if world.answered.is_empty() {
            // What could not be read is tried again.
            let deadline = engine.deadline().expect("a recovery waits for something");
            std::thread::sleep(std::time::Duration::from_nanos(deadline.since(now).0));
            now = deadline;
        }
        events.append(&mut world.answered);
    }
    Ok((engine, geometry))
}

fn report(engine: &Engine<Run>, geometry: Geometry) -> Report {
    let found = engine.inspect(Instant::ZERO);
    Report {
        damage: engine.damage().iter().map(|damage| Found { fatal: damage.fatal, what: damage.what.clone() }).collect(),
        volume_bytes: geometry.volume_atoms * ATOM_BYTES,
        block_bytes: u64::from(geometry.block_atoms) * ATOM_BYTES,
        sets: found.sets,
        free_sets: found.free_sets,
        dirty_sets: found.dirty_sets,
        live_blocks: found.live_slots,
        dirty_blocks: found.dirty_slots,
        zero_ranges: found.zero_ranges,
        lost_blocks: found.lost_blocks,
        groups: found.counters.recovered_groups,
        cut_groups: found.counters.recovered_cut_groups,
        contents: None,
    }
}

/// A world in which the cache can be read at once, and nothing else happens.
struct Reading<'a> {
    cache: &'a Disk,
    answered: Vec<Event<Run>>,
}

impl World<Run> for Reading<'_> {
    fn start(&mut self, _now: Instant, op: Op<Run>) {
        let result = match (op.device, op.action) {
            (DeviceId::Cache, Action::Read(_, span)) => match self.cache.read_now(span) {
                Ok(run) => Ok(Answer::Data([run].into())),
                Err(_) => Err(DeviceError::Medium),
            },
            (device, action) => unreachable!("a check only reads the cache, it never does {action:?} on {device:?}"),
        };
        self.answered.push(Event::Completed(Done { id: op.id, result }));
    }

    fn reply(&mut self, _now: Instant, _reply: Reply<Run>) {
        unreachable!("a check has no clients");
    }

    fn fence(&mut self, _now: Instant, _at_risk: &mut dyn Iterator<Item = Span>) {
        unreachable!("a check serves nobody, with the cache or without it");
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::os::unix::fs::FileExt;

    use tidegate_engine::block::Slot;
    use tidegate_engine::op::OpId;
    use tidegate_engine::request::{Command, Outcome, Request, RequestError, RequestId};

    use super::*;
    use crate::back::attach::{Attached, attach};
    use crate::back::dock::Happening;
    use crate::back::ring::Ring;
    use crate::create::{CreateOptions, create};

    const BLOCKS: u64 = 300;

    /// A volume without sockets: one request at a time, the real engine on real files.
    struct Direct {
        engine: Engine<Run>,
        back: Back,
    }

    struct Back {
        ring: Ring,
        reply: Option<Reply<Run>>,
    }

    impl World<Run> for Back {
        fn start(&mut self, now: Instant, op: Op<Run>) {
            self.ring.start(now, op);
        }
        fn reply(&mut self, _now: Instant, reply: Reply<Run>) {
            self.reply = Some(reply);
        }
        fn fence(&mut self, _now: Instant, _at_risk: &mut dyn Iterator<Item = Span>) {
            panic!("the cache of a test failed");
        }
    }

    impl Direct {
        fn open(options: &CreateOptions) -> Direct {
            let Attached { cache, origin, superblock, .. } = attach(&options.cache, &options.origin).expect("ours");
            let ring = Ring::new(cache, origin).expect("io_uring");
            let config = Config::new(superblock.geometry, superblock.format);
            Direct { engine: Engine::new(config, ring.limits()), back: Back { ring, reply: None } }
        }

        fn ask(&mut self, span: Span, command: Command<Run>) -> Result<Outcome<Run>, RequestError> {
            let mut events = vec![Event::Arrived(Request { id: RequestId(1), span, command })];
            let mut happenings = Vec::new();
            loop {
                turn(&mut self.engine, &mut self.back, Instant::ZERO, &mut events);
                if let Some(reply) = self.back.reply.take() {
                    return reply.result;
                }
                self.back.ring.wait(Instant::ZERO, None, &mut happenings).expect("the ring works");
                events.extend(happenings.drain(..).map(|happening| match happening {
                    Happening::Done(done) => Event::Completed(done),
                    Happening::Late(OpId(_)) | Happening::Ready { .. } => unreachable!("no clock, no sockets"),
                }));
            }
        }

        /// Every third block, each with its number in it, and a FLUSH behind each hundred.
        fn fill(&mut self) {
            for block in 0..BLOCKS {
                let data = Run::from_bytes(&contents(block));
                self.ask(place(block), Command::Write { data, fua: false }).expect("written");
                if block % 100 == 99 {
                    self.ask(Span::default(), Command::Flush).expect("durable");
                }
            }
        }

        fn verify(&mut self) {
            for block in 0..BLOCKS {
                let Ok(Outcome::Data(parts)) = self.ask(place(block), Command::Read) else { panic!("block {block} cannot be read") };
                assert!(Run::concat(&parts).as_slice() == contents(block), "block {block}");
            }
        }
    }

    fn place(block: u64) -> Span {
        Span::new(block * 24, 8)
    }

    fn contents(block: u64) -> Vec<u8> {
        (0..4096u64).map(|at| (at * 31 + block * 7 + at / 256) as u8).collect()
    }

    /// A volume that was filled, flushed and then left by a crash.
    fn crashed(folder: &Path) -> (CreateOptions, Geometry) {
        let options = CreateOptions {
            origin_bytes: Some(64 << 20),
            cache_bytes: Some(64 << 20),
            ..CreateOptions::new(folder.join("origin.img"), folder.join("cache.img"))
        };
        let geometry = create(&options).expect("created").geometry;
        Direct::open(&options).fill();
        (options, geometry)
    }

    fn flip(path: &Path, at: u64) {
        let file = OpenOptions::new().read(true).write(true).open(path).expect("there");
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).and_then(|()| file.write_all_at(&[byte[0] ^ 0x10], at)).expect("flipped");
    }

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().expect("a folder")
    }

    #[test]
    fn a_crashed_cache_is_sound_and_a_check_changes_nothing() {
        let folder = folder();
        let (options, _) = crashed(folder.path());
        let before = fs::read(&options.cache).expect("readable");
        let report = check(&options.cache).expect("a cache");
        assert!(report.is_sound(), "{:?}", report.damage);
        assert_eq!((report.live_blocks, report.dirty_blocks, report.volume_bytes), (BLOCKS, BLOCKS, 64 << 20));
        assert!(before == fs::read(&options.cache).expect("readable"));
        Direct::open(&options).verify();
    }

    #[test]
    fn a_rotten_superblock_is_found_and_its_twin_serves() {
        for copy in 0..2 {
            let folder = folder();
            let (options, geometry) = crashed(folder.path());
            flip(&options.cache, geometry.superblock(copy).offset() + 100);
            let report = check(&options.cache).expect("a cache");
            assert!(matches!(&report.damage[..], [found] if !found.fatal), "{:?}", report.damage);
            Direct::open(&options).verify();
        }
    }

    #[test]
    fn a_rotten_journal_page_below_the_last_flush_is_fatal() {
        let folder = folder();
        let (options, geometry) = crashed(folder.path());
        // The first page that was written belongs to the first of three groups; those behind it say that it was durable.
        let cache = fs::read(&options.cache).expect("readable");
        let page = (0..geometry.journal_pages).map(|place| geometry.journal_page(place).offset()).find(|at| cache[*at as usize] != 0);
        flip(&options.cache, page.expect("a page was written") + 200);
        let report = check(&options.cache).expect("a cache");
        assert!(report.damage.iter().any(|found| found.fatal), "{report:?}");
    }

    #[test]
    fn what_blocks_hold_is_compared_where_it_is_asked_for() {
        let folder = folder();
        let (options, geometry) = crashed(folder.path());
        let read = || check_contents(&options.cache, &mut |_, _| {}).expect("a cache");
        let (sound, all) = (read(), Contents { read_blocks: BLOCKS, ..Contents::default() });
        assert!(sound.is_sound() && sound.contents == Some(all.clone()), "{sound:?}");
        // Two neighbours and one for itself, in the order in which they were written.
        let slot = |block: u64| geometry.slot(Slot { set: 0, slot: block as u32 }).offset();
        let cache = fs::read(&options.cache).expect("readable");
        let at = |block: u64| (0..cache.len()).step_by(4096).find(|&at| cache[at..at + 4096] == contents(block)[..]).expect("it is there");
        assert_eq!(at(1) as u64, slot(1));
        // Of the first two groups: of the third nothing says that it was ever durable.
        [7, 8, 150].into_iter().for_each(|block| flip(&options.cache, at(block) as u64 + 4095));
        let found = read();
        let damaged = [7, 8, 150].map(|block| Place { offset: place(block).offset(), bytes: 4096 });
        assert_eq!(found.contents, Some(Contents { damaged_dirty_blocks: 3, damaged_dirty: damaged.to_vec(), ..all }));
        assert!(!found.is_sound() && found.can_be_served() && check(&options.cache).expect("a cache").is_sound());
    }

    #[test]
    fn what_is_no_cache_cannot_be_checked() {
        let folder = folder();
        let path = folder.path().join("zeros");
        fs::write(&path, vec![0; 2 << 20]).expect("written");
        let failure = check(&path).expect_err("no cache");
        assert_eq!(failure.code, Failure::REFUSED);
        assert!(failure.message.contains("is blank"), "{failure}");
    }
}

//! `tidegate check`: the recovery of the engine over a cache that is only read, stopped before its first write. It finds what a start
//! would find.

use std::path::Path;

use serde::Serialize;
use tidegate_engine::block::{ATOM_BYTES, Span};
use tidegate_engine::op::{Action, Answer, DeviceError, DeviceId, Done, Limits, Op};
use tidegate_engine::probe::Phase;
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
}

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
        self.damage.is_empty()
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

/// Looks through a cache that nobody serves; changes nothing.
///
/// # Errors
/// One line: it cannot be opened, is being served, or is no cache of ours.
pub fn check(cache: &Path) -> Result<Report, Failure> {
    look_through(&Disk::open(cache, DeviceId::Cache, Access::Shared)?)
}

/// The same of one that is open.
pub(crate) fn look_through(cache: &Disk) -> Result<Report, Failure> {
    let superblock = superblock(cache)?;
    let geometry = superblock.geometry;
    let config = Config { check: true, origin: superblock.origin, ..Config::new(geometry, superblock.format) };
    let limits = cache.limits();
    let origin = Limits { atoms: geometry.volume_atoms, ..limits };
    let mut engine = Engine::new(config, [limits, origin]);
    let mut world = Reading { cache, answered: Vec::new() };
    let mut events = Vec::new();
    loop {
        turn(&mut engine, &mut world, Instant::ZERO, &mut events);
        if *engine.phase() != Phase::Recovering {
            break;
        }
        assert!(!world.answered.is_empty(), "a recovery that waits for nothing");
        events.append(&mut world.answered);
    }
    let found = engine.inspect(Instant::ZERO);
    Ok(Report {
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
    })
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

    use tidegate_engine::cache::format::Geometry;
    use tidegate_engine::op::OpId;
    use tidegate_engine::payload::Payload;
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
    fn what_is_no_cache_cannot_be_checked() {
        let folder = folder();
        let path = folder.path().join("zeros");
        fs::write(&path, vec![0; 2 << 20]).expect("written");
        let failure = check(&path).expect_err("no cache");
        assert_eq!(failure.code, Failure::REFUSED);
        assert!(failure.message.contains("is blank"), "{failure}");
    }
}

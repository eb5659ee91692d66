//! Paper 003's jobs on a file of this machine, past the page cache: jobs of depth 32 and 16 KiB, each with a stretch of its own, through a
//! queue of the engine in front of the daemon's ring. Fewer and smaller than the author's 40 of 500 MiB. A job asks again as soon as it is
//! answered, until all together have had a slice's requests: nobody is left to end alone.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};
use tidegate_daemon::back::disk::{Access, Disk};
use tidegate_daemon::back::dock::Happening;
use tidegate_daemon::back::io::{Carrier, Io};
use tidegate_daemon::back::run::{Run, RunMut};
use tidegate_engine::block::{ATOM_BYTES, Span};
use tidegate_engine::op::{Action, Class, DeviceId, Done, Lanes, Op, OpId, Zone};
use tidegate_engine::payload::Payload;
use tidegate_engine::queue::{Answered, Queue, QueueKind};
use tidegate_engine::time::Instant;

use crate::chance::Chance;
use crate::quartiles::Quartiles;
use crate::{Round, Side, beside_noop, told};

const JOBS: usize = 8;
const JOB_DEPTH: usize = 32;
const REQUEST_BYTES: u64 = 16 << 10;
const REQUEST_ATOMS: u64 = REQUEST_BYTES / ATOM_BYTES;
/// Of each job's stretch.
const JOB_REQUESTS: u64 = (256 << 20) / REQUEST_BYTES;
/// 64 MiB, of all jobs together.
const SLICE_REQUESTS: u64 = 4_096;
const ROUNDS: usize = 40;
/// A row ends after this long, with the rounds that it has.
const ROW_SECONDS: f64 = 8.0;

/// Bandwidth over noop's: not worse than that, beyond noise.
const FLOOR: f64 = 0.97;
/// Noop beside itself may be so far from 1: beyond that nothing of the pattern counts.
const SELF_CHECK_MAX: f64 = 0.03;
/// Of the places at the device, for what nobody waits for: there is nothing of that here.
const PATIENT_PLACES: usize = 16;
const NOISE_BYTES: u64 = 1 << 20;

struct Pattern {
    name: &'static str,
    is_random: bool,
    /// Of a hundred requests.
    reads: u64,
}

const PATTERNS: [Pattern; 6] = [
    Pattern { name: "seqread", is_random: false, reads: 100 },
    Pattern { name: "seqwrite", is_random: false, reads: 0 },
    Pattern { name: "randread", is_random: true, reads: 100 },
    Pattern { name: "randwrite", is_random: true, reads: 0 },
    Pattern { name: "mix50", is_random: true, reads: 50 },
    Pattern { name: "mix90", is_random: true, reads: 90 },
];

struct Bench {
    io: Io,
    clock: std::time::Instant,
    noise: Run,
    chance: Chance,
    /// Of each job: how many sequential requests it has made.
    made: [u64; JOBS],
    happenings: Vec<Happening>,
}

/// Measures all schedulers in all patterns and prints a table; its lines for the report.
pub fn measure(rounds: Option<usize>) -> Vec<Value> {
    let folder = tempfile::Builder::new().prefix("queue").tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    println!("\nwriting a file of {} MiB …", (JOBS as u64 * JOB_REQUESTS * REQUEST_BYTES) >> 20);
    let mut bench = Bench::new(folder.path());
    println!("\n{JOBS} jobs of depth {JOB_DEPTH}, 16 KiB, on this machine's disk: bandwidth over noop's (goal: {FLOOR} in each)\n");
    println!("{:<10} {:<10} {:>20} {:>20} {:>7}  goal", "pattern", "scheduler", "MB/s [quartiles]", "over noop", "rounds");
    let mut lines = Vec::new();
    for pattern in &PATTERNS {
        let mut is_quiet = true;
        for kind in beside_noop() {
            let (rate, over, rounds) = bench.measure_row(pattern, kind, rounds.unwrap_or(ROUNDS));
            if kind == QueueKind::Noop {
                is_quiet = (over.median() - 1.0).abs() <= SELF_CHECK_MAX;
            }
            let verdict = verdict(kind, is_quiet, over.median());
            let (rate_shown, over_shown) = (rate.shown([0, 0]), over.shown([2, 2]));
            println!("{:<10} {:<10} {rate_shown:>20} {over_shown:>20} {rounds:>7}  {verdict}", pattern.name, kind.name());
            lines.push(json!({
                "pattern": pattern.name, "scheduler": kind.name(), "mb_per_s": rate.json(), "over_noop": over.json(), "rounds": rounds,
                "verdict": verdict,
            }));
        }
    }
    println!(
        "\nnoop over noop is the self-check; where it is more than {SELF_CHECK_MAX} off, the pattern is void: measure on a quieter machine."
    );
    lines
}

fn verdict(kind: QueueKind, is_quiet: bool, over_noop: f64) -> &'static str {
    match kind {
        _ if !is_quiet => "void",
        QueueKind::Noop => "self-check",
        QueueKind::Urgency | QueueKind::Deadline | QueueKind::Cfq | QueueKind::Ac | QueueKind::Lanes => {
            if over_noop >= FLOOR {
                "met"
            } else {
                "MISSED"
            }
        }
    }
}

impl Bench {
    /// The file is written from end to end: extents that were never written would cost the file system more than the write itself.
    fn new(folder: &Path) -> Bench {
        let (path, unused) = (folder.join("jobs.img"), folder.join("unused.img"));
        let mut noise = RunMut::new(NOISE_BYTES / ATOM_BYTES);
        noise.as_mut_slice().copy_from_slice(&Chance::new(1).bytes(NOISE_BYTES as usize));
        let noise = noise.freeze();
        let mut file = File::create_new(&path).expect("a new file");
        let pieces = JOBS as u64 * JOB_REQUESTS * REQUEST_BYTES / NOISE_BYTES;
        (0..pieces).for_each(|_| file.write_all(noise.as_slice()).expect("room for the file"));
        file.sync_all().expect("a disk that works");
        // Every write past the page cache would first have to look for what this one has left there.
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advice");
        File::create_new(&unused).expect("a new file").set_len(NOISE_BYTES).expect("a sparse file");
        let open = |path: &Path, role| Disk::open(path, role, Access::Alone).expect("a file of ours");
        let io = Io::new(open(&path, DeviceId::Cache), open(&unused, DeviceId::Origin), Carrier::Uring).expect("a ring");
        let clock = std::time::Instant::now();
        Bench { io, clock, noise, chance: Chance::new(2), made: [0; JOBS], happenings: Vec::new() }
    }

    /// MB/s, that over noop's, and in how many rounds.
    fn measure_row(&mut self, pattern: &Pattern, kind: QueueKind, rounds: usize) -> (Quartiles, Quartiles, usize) {
        let started = std::time::Instant::now();
        let mut done: Vec<Round> = Vec::new();
        while done.len() < rounds && (done.is_empty() || started.elapsed().as_secs_f64() < ROW_SECONDS) {
            done.push(Round::of(|side| self.slice(pattern, if side == Side::Noop { QueueKind::Noop } else { kind })));
        }
        let (rate, over) = told(&done);
        (rate, over, done.len())
    }

    /// MB/s of a slice. Nothing is under way before and after it.
    fn slice(&mut self, pattern: &Pattern, kind: QueueKind) -> f64 {
        let limits = self.io.limits()[DeviceId::Cache as usize];
        let mut queue = Queue::new(kind, limits, Lanes::new(1, limits.atoms), PATIENT_PLACES);
        let places = JOBS * JOB_DEPTH;
        let started = std::time::Instant::now();
        (0..places).for_each(|place| self.ask(&mut queue, pattern, place));
        let (mut asked, mut ended) = (places as u64, 0);
        while ended < asked {
            let now = self.now();
            while let Some(op) = queue.pop(now) {
                self.io.start(now, op);
            }
            for done in self.wait(queue.deadline()) {
                let answered = match queue.done(self.now(), done) {
                    Answered::One(done) => vec![done],
                    Answered::Merged(all) => all,
                };
                for done in answered {
                    ended += 1;
                    if asked < SLICE_REQUESTS {
                        asked += 1;
                        self.ask(&mut queue, pattern, done.id.place());
                    }
                }
            }
        }
        (asked * REQUEST_BYTES) as f64 / started.elapsed().as_secs_f64() / 1e6
    }

    /// The next request of a job: at the place of one that has ended.
    fn ask(&mut self, queue: &mut Queue<Run>, pattern: &Pattern, place: usize) {
        let job = place / JOB_DEPTH;
        let number = if pattern.is_random { self.chance.next() } else { self.made[job] } % JOB_REQUESTS;
        self.made[job] += u64::from(!pattern.is_random);
        let span = Span::new((job as u64 * JOB_REQUESTS + number) * REQUEST_ATOMS, REQUEST_ATOMS);
        let action = if self.chance.below(100) < pattern.reads {
            Action::Read(Zone::Data, span)
        } else {
            let piece = number % (NOISE_BYTES / REQUEST_BYTES);
            Action::Write(Zone::Data, span, [self.noise.slice(piece * REQUEST_ATOMS, REQUEST_ATOMS)].into())
        };
        let op = Op { id: OpId::new(1, place), device: DeviceId::Cache, class: Class::Client, action };
        queue.push(self.now(), job as u32, op);
    }

    /// Sleeps until something has ended, or until `deadline`.
    fn wait(&mut self, deadline: Option<Instant>) -> Vec<Done<Run>> {
        self.io.wait(self.now(), deadline, &mut self.happenings).expect("the ring works");
        let ended = |happening| match happening {
            Happening::Done(done) => {
                assert!(done.result.is_ok(), "the disk works: {:?}", done.result);
                Some(done)
            }
            Happening::Late(_) => None,
            Happening::Ready { .. } => unreachable!("nothing is watched"),
        };
        self.happenings.drain(..).filter_map(ended).collect()
    }

    fn now(&self) -> Instant {
        Instant(self.clock.elapsed().as_nanos() as u64)
    }
}

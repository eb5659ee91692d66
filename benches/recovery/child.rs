//! What is measured, each time in a process of its own: a cold allocator, and a peak of memory that is nobody else's.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant as Clock;

use serde::{Deserialize, Serialize};
use tidegate_daemon::back::attach::{Attached, attach};
use tidegate_daemon::back::dock::Happening;
use tidegate_daemon::back::ring::Ring;
use tidegate_daemon::back::run::{Run, RunMut};
use tidegate_engine::op::{Action, Op};
use tidegate_engine::probe::Phase;
use tidegate_engine::time::Instant;
use tidegate_engine::{Config, Engine, Event};

use super::image;

/// Bytes of one read of the baseline.
const READ_ATOMS: u64 = (8 << 20) / 512;

/// Seconds since the child's measurement began.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Moment {
    pub wall: f64,
    /// Of this process, in the kernel too.
    pub cpu: f64,
}

/// What a recovery told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Recovered {
    /// Requests are answered from here on.
    pub serving: Moment,
    /// Everything that was clean is warm, too.
    pub loaded: Moment,
    pub clean: u64,
    pub dirty: u64,
    pub damage: Vec<String>,
    /// The most memory that the process held, in MiB.
    pub peak_mib: u64,
    /// Of the engine, when everything is loaded, in MiB.
    pub engine_mib: u64,
    /// How often somebody else took the processor away.
    pub displaced: u64,
}

struct Stopwatch {
    wall: Clock,
    cpu: f64,
}

impl Stopwatch {
    fn start() -> Stopwatch {
        Stopwatch { wall: Clock::now(), cpu: cpu_seconds() }
    }

    fn now(&self) -> Moment {
        Moment { wall: self.wall.elapsed().as_secs_f64(), cpu: cpu_seconds() - self.cpu }
    }
}

/// Of the one thread that there is.
fn cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/schedstat").expect("the scheduler's statistics");
    stat.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).expect("nanoseconds") / 1e9
}

fn status(field: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("the process's status");
    let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("a known field");
    line.split_whitespace().find_map(|word| word.parse().ok()).expect("a number")
}

/// Reads the metadata once from the beginning to the end, past the page cache.
pub fn read(folder: &Path) -> Moment {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(folder.join("cache.img")).expect("the image");
    let mut memory = RunMut::new(READ_ATOMS);
    memory.as_mut_slice().fill(1);
    let watch = Stopwatch::start();
    for span in image::metadata() {
        for start in (span.start..span.end()).step_by(READ_ATOMS as usize) {
            let bytes = ((span.end() - start).min(READ_ATOMS) * 512) as usize;
            file.read_exact_at(&mut memory.as_mut_slice()[..bytes], start * 512).expect("readable");
        }
    }
    watch.now()
}

/// The back. It crashes with the first write after recovery, so that one recovery leaves to the next what it found itself.
struct Back {
    ring: Ring,
    serving: bool,
}

impl Back {
    fn start(&mut self, now: Instant, op: Op<Run>) {
        if !self.serving || matches!(op.action, Action::Read(..)) {
            self.ring.start(now, op);
        }
    }
}

/// One recovery with the daemon's back, from the engine's first moment.
pub fn recover(folder: &Path) -> Recovered {
    let attached = attach(&folder.join("cache.img"), &folder.join("origin.img"));
    let Attached { cache, origin, superblock, .. } = attached.unwrap_or_else(|why| panic!("{why}"));
    let ring = Ring::new(cache, origin).unwrap_or_else(|why| panic!("{why}"));
    let mut back = Back { ring, serving: false };
    let mut happenings = Vec::new();
    let mut serving = Moment::default();

    let watch = Stopwatch::start();
    let now = || Instant(watch.wall.elapsed().as_nanos() as u64);
    // A cache this full would at once begin to make room.
    let config =
        Config { free_floor: 3, reserve: 2, clean_floor: 2, fence_samples: 0, ..Config::new(superblock.geometry, superblock.format) };
    let mut engine: Engine<Run> = Engine::new(config, back.ring.limits());
    loop {
        let phase = engine.phase();
        assert!(matches!(phase, Phase::Recovering | Phase::Serving), "{phase:?}: {:?}", engine.damage());
        if *phase == Phase::Serving && !back.serving {
            back.serving = true;
            serving = watch.now();
        }
        while let Some(op) = engine.next_op(now()) {
            back.start(now(), op);
        }
        if engine.is_warm() {
            break;
        }
        back.ring.wait(now(), engine.deadline(), &mut happenings).expect("io_uring works");
        // Nothing at all is a tick.
        let done = |happening| if let Happening::Done(done) = happening { Some(Event::Completed(done)) } else { None };
        engine.handle_all(now(), happenings.drain(..).filter_map(done));
    }
    let loaded = watch.now();
    let (peak, displaced) = (status("VmHWM:") >> 10, status("nonvoluntary_ctxt_switches:"));
    let snapshot = engine.inspect(now());
    Recovered {
        serving,
        loaded,
        clean: snapshot.live_slots - snapshot.dirty_slots,
        dirty: snapshot.dirty_slots,
        damage: snapshot.damage.into_iter().map(|damage| damage.what).collect(),
        peak_mib: peak,
        engine_mib: snapshot.ledger.iter().map(|(_, bytes)| bytes).sum::<u64>() >> 20,
        displaced,
    }
}

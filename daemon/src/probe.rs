//! `tidegate probe`: the trials of [`tidegate_engine::device_probe`] on a real file or block device, past the page cache, by the back that
//! serves volumes. It reads only, and shuts nobody out, unless it may overwrite: then it has the device alone.

use std::path::Path;
use std::time::Instant as Clock;

use tidegate_engine::block::{ATOM_BYTES, Span};
use tidegate_engine::device_probe::{ATOMS_MIN, Access, Findings, Measured, Options, Probe, Running, Trial};
use tidegate_engine::op::{Action, Class, DeviceId, Op, OpId, Zone};
use tidegate_engine::payload::Payload;
use tidegate_engine::time::{Duration, Instant};

use crate::Failure;
use crate::back::attach::await_release;
use crate::back::disk::{self, DEPTH, Disk, Kind};
use crate::back::dock::Happening;
use crate::back::io::{Carrier, Io};
use crate::back::run::{Run, RunMut};

/// As messages name what is probed.
const NAME: &str = "device";

/// What was looked at, and what was found.
pub struct Report {
    pub bytes: u64,
    /// What the kernel says that it is: `virtio_blk`, `nvme`, `loop`.
    pub driver: Option<String>,
    pub is_file: bool,
    pub findings: Findings,
}

/// Probes the file or block device at `path` for about `time`. `tell` hears what is done at present, and what share of the time is left.
///
/// # Errors
/// One line: nothing can be seen of it, it is too small, in use (where it is to be overwritten), or it failed.
pub fn probe(path: &Path, overwrite: bool, time: Duration, seed: u64, tell: &mut dyn FnMut(&str, u64)) -> Result<Report, Failure> {
    let access = if overwrite { disk::Access::Alone } else { disk::Access::Unlocked };
    if let Err(error) = std::fs::metadata(path) {
        return Err(Failure::new(
            Failure::NO_INPUT,
            format!("{NAME} {}: {error}; name a block device, or a file with contents", path.display()),
        ));
    }
    let disk = Disk::open_as(NAME, path, DeviceId::Cache, access)?;
    let refused = |what: &str| Failure::new(Failure::REFUSED, format!("{NAME} {}: {what}", path.display()));
    if disk.atoms() < ATOMS_MIN {
        return Err(refused(&format!("it has {} MiB; at least {} are needed", disk.bytes() >> 20, (ATOMS_MIN * ATOM_BYTES) >> 20)));
    }
    if disk.note().is_some() {
        return Err(refused("no direct access there (O_DIRECT): the page cache would be measured, and nothing of a device can be seen"));
    }
    if !overwrite && disk.kind() == Kind::File && is_mostly_hole(&disk) {
        return Err(refused(
            "most of it is a hole, which no device answers for; name a file that was written in order, or say --overwrite",
        ));
    }
    let (bytes, is_file, driver) = (disk.bytes(), disk.kind() == Kind::File, disk.driver());
    let atoms = disk.atoms();
    let twin = disk.twin().map_err(|error| refused(&error.to_string()))?;
    let mut bench = Bench {
        io: Io::new(disk, twin, Carrier::Auto)?,
        started: Clock::now(),
        serial: 0,
        contents: noise(seed),
        path: path.display().to_string(),
    };
    let mut probe = Probe::new(bench.now(), Options { atoms, overwrite, time, depth_max: DEPTH, seed });
    while let Some(trial) = probe.next_trial(bench.now()) {
        probe.record(&bench.carry_out(trial)?);
        let (stage, left) = probe.progress(bench.now());
        tell(stage, left);
    }
    drop(bench);
    if overwrite {
        await_release(&[(path, DeviceId::Cache)]);
    }
    Ok(Report { bytes, driver, is_file, findings: probe.findings() })
}

fn is_mostly_hole(disk: &Disk) -> bool {
    use std::os::unix::fs::MetadataExt;
    disk.metadata().is_ok_and(|metadata| metadata.blocks() * ATOM_BYTES < metadata.len() / 10 * 9)
}

/// What is written: nothing that a drive could compress, or know already.
fn noise(seed: u64) -> Run {
    let mut run = RunMut::new(disk::OP_ATOMS);
    let mut state = seed | 1;
    run.as_mut_slice().chunks_mut(8).for_each(|word| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
    });
    run.freeze()
}

/// A device, and a clock.
struct Bench {
    io: Io,
    started: Clock,
    serial: u64,
    contents: Run,
    path: String,
}

impl Bench {
    fn now(&self) -> Instant {
        Instant(self.started.elapsed().as_nanos() as u64)
    }

    fn carry_out(&mut self, trial: Trial) -> Result<Measured, Failure> {
        std::thread::sleep(std::time::Duration::from_nanos(trial.rest.0));
        let mut running = Running::new(self.now(), trial);
        let mut under_way: Vec<Option<Access>> = vec![None; DEPTH];
        let mut happenings = Vec::new();
        loop {
            let now = self.now();
            while let Some(access) = running.begin(now) {
                let place = under_way.iter().position(Option::is_none).expect("no more are begun than the back takes");
                under_way[place] = Some(access);
                self.start(now, place, &access);
            }
            if running.is_over() {
                return Ok(running.measured());
            }
            let failed = |what: String| Failure::new(Failure::IO, format!("{NAME} {}: {what}", self.path));
            self.io.wait(now, None, &mut happenings).map_err(|error| failed(error.to_string()))?;
            let now = Instant(self.started.elapsed().as_nanos() as u64);
            for happening in happenings.drain(..) {
                let Happening::Done(done) = happening else { continue };
                let access = under_way[done.id.place()].take().expect("an access ends once");
                if let Err(error) = done.result {
                    return Err(failed(format!(
                        "{} {} failed: {error:?}",
                        if access.is_write { "a write at" } else { "a read at" },
                        access.span.offset()
                    )));
                }
                running.end(now, &access);
            }
        }
    }

    fn start(&mut self, now: Instant, place: usize, access: &Access) {
        self.serial += 1;
        let Span { atoms, .. } = access.span;
        let action = if access.is_write {
            Action::Write(Zone::Data, access.span, [self.contents.slice(0, atoms)].into())
        } else {
            Action::Read(Zone::Data, access.span)
        };
        self.io.start(now, Op { id: OpId::new(self.serial, place), device: DeviceId::Cache, class: Class::Client, action });
    }
}

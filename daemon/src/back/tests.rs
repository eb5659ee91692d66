//! The back against the naive thing: random operations on real files, by io_uring and by threads, compared with a flat array; and what the
//! one wait owes the sockets.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::Path;

use tidegate_engine::block::{ATOM_BYTES, Span};
use tidegate_engine::op::{Action, Answer, Class, DeviceError, DeviceId, Done, Hole, Op, OpId, Zone};
use tidegate_engine::payload::Payload;
use tidegate_engine::request::Extent;
use tidegate_engine::time::{Duration, Instant};

use super::disk::{Access, DEPTH, Discards, Disk};
use super::dock::{Dock, Happening, WatchKey};
use super::flight::Command;
use super::io::{Carrier, Io};
use super::run::{Run, RunMut};

const ATOMS: u64 = 4096;
const CARRIERS: [Carrier; 2] = [Carrier::Uring, Carrier::Threads];

fn sparse(folder: &Path, name: &str, bytes: u64) -> std::path::PathBuf {
    let path = folder.join(name);
    File::create(&path).and_then(|file| file.set_len(bytes)).expect("a file of the test");
    path
}

fn open(path: &Path, role: DeviceId) -> Disk {
    Disk::open(path, role, Access::Alone).expect("a free file")
}

/// Both disks in two new files whose sectors have so many atoms.
fn io(folder: &Path, sector: u64, carrier: Carrier) -> Io {
    let [cache, origin] = [("cache", DeviceId::Cache), ("origin", DeviceId::Origin)]
        .map(|(name, role)| open(&sparse(folder, name, ATOMS * ATOM_BYTES), role))
        .map(|disk| if sector == 1 { disk } else { disk.with_sectors(sector) });
    Io::new(cache, origin, carrier).expect("a back")
}

fn op(id: u64, device: DeviceId, action: Action<Run>) -> Op<Run> {
    Op { id: OpId(id), device, class: Class::Client, action }
}

/// Waits until `count` operations have ended.
fn finish(io: &mut Io, count: usize) -> Vec<Done<Run>> {
    let mut done = Vec::new();
    let mut happenings = Vec::new();
    while done.len() < count {
        io.wait(Instant::ZERO, None, &mut happenings).expect("the wait works");
        done.extend(happenings.drain(..).filter_map(|happening| match happening {
            Happening::Done(done) => Some(done),
            Happening::Late(_) | Happening::Ready { .. } => None,
        }));
    }
    done
}

fn one(io: &mut Io, device: DeviceId, action: Action<Run>) -> Result<Answer<Run>, DeviceError> {
    io.start(Instant::ZERO, op(0, device, action));
    finish(io, 1).pop().expect("one").result
}

/// A generator of its own: the same steps in every run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % limit
    }
}

fn random(chance: &mut Chance, atoms: u64) -> Run {
    let mut run = RunMut::new(atoms);
    run.as_mut_slice().chunks_mut(8).for_each(|word| word.copy_from_slice(&chance.below(u64::MAX >> 1).to_le_bytes()));
    run.freeze()
}

/// `whole` in one to four pieces, some of them neighbours in memory and some not.
fn pieces(chance: &mut Chance, whole: &Run) -> Vec<Run> {
    let mut parts = Vec::new();
    let mut at = 0;
    while at < whole.atoms() {
        let rest = whole.atoms() - at;
        let length = if parts.len() == 3 { rest } else { 1 + chance.below(rest) };
        let part = whole.slice(at, length);
        parts.push(if chance.below(2) == 0 { part } else { Run::from_bytes(part.as_slice()) });
        at += length;
    }
    parts
}

/// Batches of operations that do not overlap, as the engine hands them out, against an array of bytes.
fn conforms(sector: u64, seed: u64, carrier: Carrier) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut io = io(folder.path(), sector, carrier);
    let mut flat = vec![vec![0u8; (ATOMS * ATOM_BYTES) as usize]; 2];
    let mut chance = Chance(seed);
    for step in 0..150 {
        let mut reads = Vec::new();
        // One operation in each stripe of a batch: neighbours share sectors, none overlap.
        let stripes = 1 + chance.below(24);
        let width = ATOMS / stripes;
        for stripe in 0..stripes {
            let start = stripe * width + chance.below(width / 2);
            let span = Span::new(start, 1 + chance.below((stripe + 1) * width - start));
            let bytes = span.offset() as usize..(span.offset() + span.bytes()) as usize;
            let device = if chance.below(2) == 0 { DeviceId::Cache } else { DeviceId::Origin };
            let array = &mut flat[usize::from(device == DeviceId::Origin)];
            let action = match chance.below(8) {
                0..4 => {
                    reads.push((stripe, array[bytes].to_vec()));
                    Action::Read(Zone::Data, span)
                }
                4..7 => {
                    let whole = random(&mut chance, span.atoms);
                    array[bytes].copy_from_slice(whole.as_slice());
                    Action::Write(Zone::Data, span, pieces(&mut chance, &whole).into())
                }
                _ => {
                    array[bytes].fill(0);
                    Action::Zero(Zone::Data, span, if chance.below(2) == 0 { Hole::Allowed } else { Hole::Forbidden })
                }
            };
            io.start(Instant::ZERO, op(stripe, device, action));
        }
        for done in finish(&mut io, stripes as usize) {
            let answer = done.result.expect("a sound disk");
            if let Some((_, expected)) = reads.iter().find(|(stripe, _)| *stripe == done.id.0) {
                let Answer::Data(parts) = answer else { panic!("a read answers with data") };
                assert!(Run::concat(&parts).as_slice() == expected, "step {step}: {:?}", done.id);
            }
        }
        assert_eq!(io.in_flight(), 0);
    }
    for (device, flat) in [DeviceId::Cache, DeviceId::Origin].into_iter().zip(&flat) {
        assert!(matches!(one(&mut io, device, Action::Flush), Ok(Answer::Done)));
        let path = io.disk(device).path().to_owned();
        assert!(std::fs::read(path).expect("readable") == *flat);
    }
}

#[test]
fn random_operations_leave_what_an_array_would_hold() {
    for carrier in CARRIERS {
        (0..4).for_each(|seed| conforms(1, seed, carrier));
    }
}

#[test]
fn a_device_with_large_sectors_loses_no_neighbouring_atom() {
    for carrier in CARRIERS {
        (0..4).for_each(|seed| conforms(8, seed, carrier));
    }
}

/// Sectors of 16 KiB, of which each operation zeroes or writes a part; the disk knows a command for zeroes, or does not, or says so when it is asked.
#[test]
fn parts_of_one_sector_that_are_zeroed_and_written_wait_for_each_other() {
    const NOT_KNOWN: i32 = -libc::EOPNOTSUPP;
    let zero = |start| Action::Zero(Zone::Origin, Span::new(start, 8), Hole::Forbidden);
    let write = |start| Action::Write(Zone::Origin, Span::new(start, 8), [Run::zero(8)].into());
    for (zeroes, first) in [true, false].into_iter().flat_map(|zeroes| [(zeroes, zero(8)), (zeroes, write(8))]) {
        let folder = tempfile::tempdir().expect("a folder");
        let [cache, mut origin] = [("cache", DeviceId::Cache), ("origin", DeviceId::Origin)]
            .map(|(name, role)| open(&sparse(folder.path(), name, ATOMS * ATOM_BYTES), role).with_sectors(32));
        origin.zeroes = zeroes;
        let mut dock = Dock::new(cache, origin);
        for (id, action) in [first, zero(16), zero(40)].into_iter().enumerate() {
            dock.start(Instant::ZERO, op(id as u64, DeviceId::Origin, action));
        }
        let (mut carried, mut happenings) = (Vec::new(), Vec::new());
        while happenings.len() < 3 {
            carried.extend(std::iter::from_fn(|| dock.next()));
            let mut sectors: Vec<u64> = carried.iter().map(|(_, command)| offset(command) / (32 * ATOM_BYTES)).collect();
            sectors.sort_unstable();
            assert!(sectors.is_sorted_by(|one, next| one < next), "side by side in sectors {sectors:?}");
            let (berth, command) = carried.pop().expect("there is more to be done");
            let result = match command {
                Command::Read { bytes, .. } | Command::Write { bytes, .. } => bytes as i32,
                _ => NOT_KNOWN,
            };
            dock.landed(berth, result, &mut happenings);
        }
        assert_eq!(dock.in_flight(), 0);
    }
}

/// Both have been asked for when the first one fails.
#[test]
fn of_a_disk_that_makes_no_holes_zeroes_are_still_asked_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let [cache, mut origin] = [("cache", DeviceId::Cache), ("origin", DeviceId::Origin)]
        .map(|(name, role)| open(&sparse(folder.path(), name, ATOMS * ATOM_BYTES), role));
    (origin.punches, origin.zeroes) = (true, true);
    let mut dock = Dock::new(cache, origin);
    for id in 0..2 {
        let action = Action::Zero(Zone::Origin, Span::new(16 * id, 8), Hole::Allowed);
        dock.start(Instant::ZERO, op(id, DeviceId::Origin, action));
    }
    let mut happenings = Vec::new();
    for result in [-libc::EOPNOTSUPP, 0] {
        let commands: Vec<_> = std::iter::from_fn(|| dock.next()).collect();
        let mode = |command: &Command| if let Command::Allocate { mode, .. } = command { *mode } else { panic!("something is written") };
        let makes_holes = |mode: i32| mode & libc::FALLOC_FL_PUNCH_HOLE != 0;
        let modes: Vec<bool> = commands.iter().map(|(_, command)| makes_holes(mode(command))).collect();
        assert_eq!(modes, [result < 0; 2]);
        commands.into_iter().for_each(|(berth, _)| dock.landed(berth, result, &mut happenings));
    }
    assert_eq!((happenings.len(), dock.in_flight()), (2, 0));
}

fn offset(command: &Command) -> u64 {
    match command {
        Command::Read { offset, .. } | Command::Write { offset, .. } | Command::Allocate { offset, .. } => *offset,
        _ => panic!("nothing else is asked for"),
    }
}

#[test]
fn parts_of_a_sector_that_are_zeroed_at_once_are_all_zero() {
    const SECTOR: u64 = 32;
    for carrier in CARRIERS {
        let folder = tempfile::tempdir().expect("a folder");
        let [cache, mut origin] = [("cache", DeviceId::Cache), ("origin", DeviceId::Origin)]
            .map(|(name, role)| open(&sparse(folder.path(), name, ATOMS * ATOM_BYTES), role).with_sectors(SECTOR));
        (origin.punches, origin.zeroes) = (false, false);
        let mut io = Io::new(cache, origin, carrier).expect("a back");
        for round in 0..20 {
            let all = Span::new(round * SECTOR, SECTOR);
            let action = Action::Write(Zone::Origin, all, [random(&mut Chance(round), SECTOR)].into());
            one(&mut io, DeviceId::Origin, action).expect("written");
            for part in 0..4 {
                let span = Span::new(all.start + part * 8, 8);
                io.start(Instant::ZERO, op(part, DeviceId::Origin, Action::Zero(Zone::Origin, span, Hole::Allowed)));
            }
            assert!(finish(&mut io, 4).iter().all(|done| done.result.is_ok()));
            let Ok(Answer::Data(parts)) = one(&mut io, DeviceId::Origin, Action::Read(Zone::Origin, all)) else { panic!("no data") };
            assert!(Run::concat(&parts).as_slice().iter().all(|byte| *byte == 0), "{carrier:?}: round {round}");
        }
    }
}

#[test]
fn a_file_in_memory_is_served_with_a_note() {
    for carrier in CARRIERS {
        let folder = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
        let mut io = io(folder.path(), 1, carrier);
        let note = io.disk(DeviceId::Cache).note().expect("a note");
        assert!(note.contains("O_DIRECT") && note.lines().count() == 1, "{note}");
        let part = random(&mut Chance(8), 3);
        one(&mut io, DeviceId::Cache, Action::Write(Zone::Data, Span::new(5, 3), [part.clone()].into())).expect("written");
        let Ok(Answer::Data(parts)) = one(&mut io, DeviceId::Cache, Action::Read(Zone::Data, Span::new(5, 3))) else { panic!("no data") };
        assert_eq!(Run::concat(&parts), part);
    }
}

#[test]
fn a_device_that_cannot_zero_gets_zeros_written() {
    for carrier in CARRIERS {
        let folder = tempfile::tempdir().expect("a folder");
        let [mut cache, origin] = [("cache", DeviceId::Cache), ("origin", DeviceId::Origin)]
            .map(|(name, role)| open(&sparse(folder.path(), name, 8 << 20), role));
        (cache.punches, cache.zeroes) = (false, false);
        let mut io = Io::new(cache, origin, carrier).expect("a back");
        let span = Span::new(3, 10_000);
        one(&mut io, DeviceId::Cache, Action::Write(Zone::Data, span, [random(&mut Chance(1), span.atoms)].into())).expect("written");
        one(&mut io, DeviceId::Cache, Action::Zero(Zone::Data, Span::new(4, 9_998), Hole::Allowed)).expect("zeroed");
        let Ok(Answer::Data(parts)) = one(&mut io, DeviceId::Cache, Action::Read(Zone::Data, span)) else { panic!("no data") };
        let bytes = Run::concat(&parts);
        let (first, rest) = bytes.as_slice().split_at(512);
        let (zeros, last) = rest.split_at(9_998 * 512);
        assert!(first != [0; 512] && last != [0; 512] && zeros.iter().all(|byte| *byte == 0));
    }
}

#[test]
fn a_write_of_more_pieces_than_the_kernel_takes_is_whole() {
    for carrier in CARRIERS {
        let folder = tempfile::tempdir().expect("a folder");
        let mut io = io(folder.path(), 1, carrier);
        let atoms: Vec<Run> = (0..2500u64).map(|atom| Run::from_bytes(&[atom as u8; 512])).collect();
        let span = Span::new(100, 2500);
        one(&mut io, DeviceId::Origin, Action::Write(Zone::Origin, span, atoms.into())).expect("written");
        let Ok(Answer::Data(parts)) = one(&mut io, DeviceId::Origin, Action::Read(Zone::Origin, span)) else { panic!("no data") };
        Run::concat(&parts).as_slice().chunks(512).enumerate().for_each(|(atom, bytes)| assert_eq!(bytes, [atom as u8; 512]));
    }
}

#[test]
fn holes_are_told_from_data() {
    for carrier in CARRIERS {
        let folder = tempfile::tempdir().expect("a folder");
        let mut io = io(folder.path(), 1, carrier);
        one(&mut io, DeviceId::Origin, Action::Write(Zone::Origin, Span::new(1024, 128), [random(&mut Chance(3), 128)].into()))
            .expect("written");
        let Ok(Answer::Allocation(extents)) = one(&mut io, DeviceId::Origin, Action::Allocation(Zone::Origin, Span::new(512, 2048))) else {
            panic!("no allocation")
        };
        let expected = [(512, true), (128, false), (1408, true)].map(|(atoms, hole)| Extent { atoms, hole, zero: hole });
        assert_eq!(extents, expected);
    }
}

/// Where thousands of extents have to be looked for, everybody else has turns meanwhile, and a short question its answer.
#[test]
fn what_is_allocated_is_looked_for_in_turns() {
    for carrier in CARRIERS {
        let folder = tempfile::tempdir().expect("a folder");
        let mut io = io(folder.path(), 1, carrier);
        // 500 extents: 4 KiB of data behind each hole of as much.
        for pair in 0..250 {
            let data = [random(&mut Chance(pair), 8)].into();
            one(&mut io, DeviceId::Origin, Action::Write(Zone::Origin, Span::new(16 * pair + 8, 8), data)).expect("written");
        }
        let all = Action::Allocation(Zone::Origin, Span::new(0, 4000));
        let little = Action::Allocation(Zone::Origin, Span::new(8, 10));
        [(1, all.clone()), (2, all), (3, little)]
            .into_iter()
            .for_each(|(id, asked)| io.start(Instant::ZERO, op(id, DeviceId::Origin, asked)));
        let (mut waits, mut answered, mut happenings) = (0, Vec::new(), Vec::new());
        while answered.len() < 3 {
            waits += 1;
            io.wait(Instant::ZERO, None, &mut happenings).expect("the wait works");
            for happening in happenings.drain(..) {
                let Happening::Done(Done { id, result: Ok(Answer::Allocation(extents)) }) = happening else { panic!("{happening:?}") };
                answered.push((id.0, waits));
                let expected = |from, count| {
                    (from..from + count).map(|number| number % 2 == 0).map(|hole| Extent { atoms: 8, hole, zero: hole }).collect::<Vec<_>>()
                };
                if id.0 == 3 {
                    assert_eq!(extents, [(8, false), (2, true)].map(|(atoms, hole)| Extent { atoms, hole, zero: hole }));
                } else {
                    assert_eq!(extents, expected(0, 500));
                }
            }
        }
        // Of 128 extents each.
        assert_eq!(answered, [(3, 3), (1, 7), (2, 8)]);
    }
}

#[test]
fn a_discard_gives_the_space_back_and_touches_nothing_else() {
    for carrier in CARRIERS {
        let folder = tempfile::tempdir().expect("a folder");
        let mut io = io(folder.path(), 1, carrier);
        assert!(io.limits()[0].discards);
        let data = random(&mut Chance(4), 2048);
        one(&mut io, DeviceId::Cache, Action::Write(Zone::Data, Span::new(1024, 2048), [data.clone()].into())).expect("written");
        one(&mut io, DeviceId::Cache, Action::Flush).expect("flushed");
        let blocks = |io: &Io| io.disk(DeviceId::Cache).metadata().expect("a file").blocks();
        let before = blocks(&io);
        one(&mut io, DeviceId::Cache, Action::Discard(Zone::Data, Span::new(1536, 1024))).expect("discarded");
        assert_eq!(before - blocks(&io), 1024, "in units of 512 bytes");
        for (place, span) in [(0, Span::new(1024, 512)), (1536, Span::new(2560, 512))] {
            let Ok(Answer::Data(parts)) = one(&mut io, DeviceId::Cache, Action::Read(Zone::Data, span)) else { panic!("no data") };
            assert_eq!(Run::concat(&parts).as_slice(), data.slice(place, 512).as_slice());
        }
        assert_eq!(io.disk(DeviceId::Cache).metadata().expect("a file").len(), ATOMS * ATOM_BYTES, "its size is what it was");
    }
}

/// Needs root for its loop device; says so and tries the rest where it is not.
#[test]
fn a_block_device_is_told_what_it_need_not_keep_by_its_own_command() {
    for carrier in CARRIERS {
        let folder = tempfile::tempdir().expect("a folder");
        let path = sparse(folder.path(), "behind", 4 << 20);
        let Some(device) = Loop::over(&path) else { return crate::tell!("no loop devices here: nothing was tried") };
        let cache = open(Path::new(&device.0), DeviceId::Cache);
        assert!(cache.limits().discards, "a loop device discards where its file system punches holes");
        let origin = open(&sparse(folder.path(), "origin", 1 << 20), DeviceId::Origin);
        let mut io = Io::new(cache, origin, carrier).expect("a back");
        one(&mut io, DeviceId::Cache, Action::Write(Zone::Data, Span::new(0, 2048), [random(&mut Chance(4), 2048)].into()))
            .expect("written");
        one(&mut io, DeviceId::Cache, Action::Flush).expect("flushed");
        let blocks = || std::fs::metadata(&path).expect("a file").blocks();
        let before = blocks();
        one(&mut io, DeviceId::Cache, Action::Discard(Zone::Data, Span::new(1024, 1024))).expect("discarded");
        assert_eq!(before - blocks(), 1024);
        // The ring knows the command since Linux 6.12; before, it makes a hole.
        let ways: &[Discards] = if carrier == Carrier::Threads { &[Discards::Command] } else { &[Discards::Command, Discards::Punch] };
        assert!(ways.contains(&io.disk(DeviceId::Cache).discards));
    }
}

/// A loop device, until it is dropped.
struct Loop(String);

impl Loop {
    fn over(file: &Path) -> Option<Loop> {
        let made = std::process::Command::new("losetup").args(["--find", "--show"]).arg(file).output().ok()?;
        made.status.success().then(|| Loop(String::from_utf8_lossy(&made.stdout).trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = std::process::Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
fn a_device_that_shrank_fails_reads_instead_of_making_up_zeros() {
    for carrier in CARRIERS {
        let folder = tempfile::tempdir().expect("a folder");
        let mut io = io(folder.path(), 1, carrier);
        OpenOptions::new().write(true).open(io.disk(DeviceId::Origin).path()).and_then(|file| file.set_len(512 << 10)).expect("shrunk");
        assert!(matches!(one(&mut io, DeviceId::Origin, Action::Read(Zone::Origin, Span::new(2000, 100))), Err(DeviceError::Medium)));
        assert!(one(&mut io, DeviceId::Origin, Action::Read(Zone::Origin, Span::new(0, 100))).is_ok());
    }
}

/// Whoever copies a disk leaves out what is told to be zeros.
#[test]
fn what_a_file_lost_that_was_cut_off_is_not_told_as_a_hole() {
    for carrier in CARRIERS {
        let folder = tempfile::tempdir().expect("a folder");
        let mut io = io(folder.path(), 1, carrier);
        OpenOptions::new().write(true).open(io.disk(DeviceId::Origin).path()).and_then(|file| file.set_len(512 << 10)).expect("shrunk");
        let told = |io: &mut Io, span| match one(io, DeviceId::Origin, Action::Allocation(Zone::Origin, span)) {
            Ok(Answer::Allocation(extents)) => extents.iter().map(|extent| (extent.atoms, extent.zero)).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        assert_eq!(told(&mut io, Span::new(512, 1024)), [(512, true), (512, false)]);
        assert_eq!(told(&mut io, Span::new(1500, 100)), [(100, false)]);
        one(&mut io, DeviceId::Origin, Action::Write(Zone::Origin, Span::new(1016, 8), [random(&mut Chance(3), 8)].into()))
            .expect("written");
        assert_eq!(told(&mut io, Span::new(512, 1024)), [(504, true), (8, false), (512, false)]);
    }
}

#[test]
fn a_file_that_was_cut_off_does_not_grow_again_by_a_write_behind_its_end() {
    for (carrier, elsewhere) in CARRIERS.into_iter().flat_map(|carrier| [(carrier, false), (carrier, true)]) {
        let folder = tempfile::tempdir().expect("a folder");
        let [cache, origin] = [("cache", DeviceId::Cache), ("origin", DeviceId::Origin)]
            .map(|(name, role)| open(&sparse(folder.path(), name, ATOMS * ATOM_BYTES), role));
        let mut io = Io::new(cache, if elsewhere { origin.elsewhere() } else { origin }, carrier).expect("a back");
        let file = OpenOptions::new().write(true).open(io.disk(DeviceId::Origin).path()).expect("a file of the test");
        file.set_len(512 << 10).expect("shrunk");
        let write = |start| Action::Write(Zone::Origin, Span::new(start, 2), [Run::from_bytes(&[7; 1024])].into());
        assert!(one(&mut io, DeviceId::Origin, write(1022)).is_ok());
        assert_eq!(io.alarm(), None);
        for refused in [write(1023), write(2000), Action::Zero(Zone::Origin, Span::new(1000, 500), Hole::Forbidden)] {
            assert!(matches!(one(&mut io, DeviceId::Origin, refused), Err(DeviceError::Medium)));
        }
        assert!(io.alarm().is_some_and(|alarm| alarm.contains("give it back its size")));
        assert_eq!(file.metadata().expect("readable").len(), 512 << 10);
        file.set_len(ATOMS * ATOM_BYTES).expect("as long as before");
        assert!(one(&mut io, DeviceId::Origin, write(2000)).is_ok());
    }
}

#[test]
fn all_berths_of_both_disks_can_be_in_flight() {
    for carrier in CARRIERS {
        let folder = tempfile::tempdir().expect("a folder");
        let mut io = io(folder.path(), 1, carrier);
        for place in 0..DEPTH as u64 {
            let part = Run::from_bytes(&[place as u8; 512]);
            io.start(Instant::ZERO, op(place, DeviceId::Cache, Action::Write(Zone::Data, Span::new(place, 1), [part.clone()].into())));
            io.start(Instant::ZERO, op(place, DeviceId::Origin, Action::Write(Zone::Origin, Span::new(place, 1), [part].into())));
        }
        assert_eq!(io.in_flight(), 2 * DEPTH);
        assert!(finish(&mut io, 2 * DEPTH).iter().all(|done| done.result.is_ok()));
        let file = File::open(io.disk(DeviceId::Cache).path()).expect("readable");
        let mut bytes = [0; DEPTH * 512];
        file.read_exact_at(&mut bytes, 0).expect("long enough");
        bytes.chunks(512).enumerate().for_each(|(place, bytes)| assert_eq!(bytes, [place as u8; 512]));
    }
}

#[test]
fn a_ragged_size_is_served_without_growing_the_file() {
    for (carrier, untold) in CARRIERS.into_iter().flat_map(|carrier| [(carrier, false), (carrier, true)]) {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = open(&sparse(folder.path(), "cache", 1 << 20), DeviceId::Cache);
        let path = sparse(folder.path(), "origin", 10 * 512 + 77);
        let origin = open(&path, DeviceId::Origin);
        assert_eq!(origin.atoms(), 10);
        let mut io = Io::new(cache, if untold { origin.untold() } else { origin }, carrier).expect("a back");
        one(&mut io, DeviceId::Origin, Action::Write(Zone::Origin, Span::new(9, 1), [random(&mut Chance(5), 1)].into())).expect("written");
        assert_eq!(std::fs::metadata(&path).expect("there").len(), 10 * 512 + 77);
    }
}

#[test]
fn a_sector_that_ends_behind_the_file_is_not_written_back() {
    for carrier in CARRIERS {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = open(&sparse(folder.path(), "cache", 1 << 20), DeviceId::Cache);
        let path = sparse(folder.path(), "origin", 10 * 512);
        let mut io = Io::new(cache, open(&path, DeviceId::Origin).with_sectors(8), carrier).expect("a back");
        let mut write = |atom| one(&mut io, DeviceId::Origin, Action::Write(Zone::Origin, Span::new(atom, 1), [Run::zero(1)].into()));
        assert!(write(3).is_ok());
        for atom in [8, 9] {
            assert!(matches!(write(atom), Err(DeviceError::Medium)));
        }
        assert_eq!(std::fs::metadata(&path).expect("there").len(), 10 * 512, "nothing is made up behind its end");
    }
}

#[test]
fn a_locked_disk_is_refused_with_the_name_of_its_holder() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = sparse(folder.path(), "cache", 1 << 20);
    let first = open(&path, DeviceId::Cache);
    for access in [Access::Alone, Access::Shared] {
        let failure = Disk::open(&path, DeviceId::Cache, access).expect_err("taken");
        assert_eq!(failure.code, crate::Failure::BUSY);
        let process = format!("process {}", std::process::id());
        assert!(failure.message.contains(path.to_str().expect("a plain name")) && failure.message.contains(&process), "{failure}");
    }
    drop(first);
    let readers = [(); 2].map(|()| Disk::open(&path, DeviceId::Cache, Access::Shared).expect("readers share"));
    assert_eq!(readers[0].atoms(), 2048);
}

/// Whoever makes a file locks it a moment later: it is in use, and not an empty one that was left there.
#[test]
fn a_file_that_is_just_being_made_is_in_use() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = sparse(folder.path(), "origin", 0);
    let empty = Disk::open(&path, DeviceId::Origin, Access::Alone).expect_err("empty");
    assert!(empty.code == crate::Failure::REFUSED && empty.message.contains("is empty"), "{empty}");
    let file = File::open(&path).expect("there");
    let lock = |how| rustix::fs::flock(&file, how).expect("free, or free in a moment");
    lock(rustix::fs::FlockOperation::LockExclusive);
    let ours = descriptors_of(&path);
    let until_open = |is_open: bool| {
        while (descriptors_of(&path) > ours) != is_open {
            std::thread::yield_now();
        }
    };
    let waited_for = path.clone();
    let other = std::thread::spawn(move || Disk::open(&waited_for, DeviceId::Origin, Access::Alone).map(drop));
    until_open(true);
    // It is free, as between the steps of who makes it, until the other one has had it and let it go again.
    lock(rustix::fs::FlockOperation::Unlock);
    until_open(false);
    lock(rustix::fs::FlockOperation::LockExclusive);
    let busy = other.join().expect("no panic").expect_err("in use");
    assert!(busy.code == crate::Failure::BUSY && busy.message.contains("in use by process"), "{busy}");
}

#[test]
fn a_disk_is_taken_over_as_soon_as_its_owner_is_gone() {
    for carrier in CARRIERS {
        let folder = tempfile::tempdir().expect("a folder");
        let io = io(folder.path(), 1, carrier);
        let path = io.disk(DeviceId::Cache).path().to_owned();
        let waiting = std::thread::spawn(move || Disk::open(&path, DeviceId::Cache, Access::Alone).map(drop));
        drop(io);
        waiting.join().expect("no panic").expect("taken over as soon as the ring is gone");
    }
}

#[test]
fn a_ring_that_is_idle_gives_its_disks_back_with_its_end() {
    for _ in 0..20 {
        let folder = tempfile::tempdir().expect("a folder");
        let io = io(folder.path(), 1, Carrier::Uring);
        let file = File::open(io.disk(DeviceId::Cache).path()).expect("there");
        drop(io);
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).expect("nobody has it any more");
    }
}

#[test]
fn what_is_no_disk_is_refused_in_one_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = folder.path().join("missing");
    let empty = sparse(folder.path(), "empty", 0);
    for (path, code) in
        [(missing.as_path(), crate::Failure::NO_INPUT), (folder.path(), crate::Failure::REFUSED), (&empty, crate::Failure::REFUSED)]
    {
        let failure = Disk::open(path, DeviceId::Origin, Access::Alone).expect_err("no disk");
        assert_eq!((failure.code, failure.message.lines().count()), (code, 1), "{failure}");
        assert!(failure.message.starts_with(&format!("origin {}", path.display())), "{failure}");
    }
}

/// What was ready within one wait that must not sleep long.
fn ready(io: &mut Io) -> Vec<(u64, bool, bool)> {
    let mut happenings = Vec::new();
    io.wait(Instant::ZERO, Some(Instant::ZERO + Duration::from_millis(20)), &mut happenings).expect("the wait works");
    happenings
        .into_iter()
        .filter_map(|happening| match happening {
            Happening::Ready { key, readable, writable } => Some((key.token, readable, writable)),
            Happening::Done(_) | Happening::Late(_) => None,
        })
        .collect()
}

#[test]
fn unread_data_wakes_again_and_read_data_does_not() {
    for carrier in CARRIERS {
        let folder = tempfile::tempdir().expect("a folder");
        let mut io = io(folder.path(), 1, carrier);
        let (mut here, mut there) = UnixStream::pair().expect("sockets");
        let key = WatchKey { port: 0, token: 7 };
        io.watch(key, here.as_raw_fd(), true, false);
        assert_eq!(ready(&mut io), []);
        there.write_all(b"ab").expect("sent");
        assert_eq!(ready(&mut io), [(7, true, false)]);
        assert_eq!(ready(&mut io), [(7, true, false)]);
        here.read_exact(&mut [0; 1]).expect("received");
        assert_eq!(ready(&mut io), [(7, true, false)]);
        here.read_exact(&mut [0; 1]).expect("received");
        // The poll that was put there before the read has fired already or never will.
        assert!(ready(&mut io).len() <= 1);
        assert_eq!(ready(&mut io), []);
        there.write_all(b"c").expect("sent");
        assert_eq!(ready(&mut io), [(7, true, false)]);
    }
}

#[test]
fn an_interest_withdrawn_sleeps_until_it_is_wanted_again() {
    for carrier in CARRIERS {
        let folder = tempfile::tempdir().expect("a folder");
        let mut io = io(folder.path(), 1, carrier);
        let (here, mut there) = UnixStream::pair().expect("sockets");
        let key = WatchKey { port: 0, token: 1 };
        io.watch(key, here.as_raw_fd(), true, false);
        assert_eq!(ready(&mut io), []);
        io.watch(key, here.as_raw_fd(), false, true);
        there.write_all(b"x").expect("sent");
        assert_eq!(ready(&mut io), [(1, false, true)]);
        assert_eq!(ready(&mut io), [(1, false, true)]);
        io.watch(key, here.as_raw_fd(), true, false);
        assert!(ready(&mut io).contains(&(1, true, false)));
    }
}

#[test]
fn a_descriptor_that_is_gone_is_never_ready_again() {
    for carrier in CARRIERS {
        let folder = tempfile::tempdir().expect("a folder");
        let mut io = io(folder.path(), 1, carrier);
        for token in 0..100 {
            let (here, mut there) = UnixStream::pair().expect("sockets");
            let key = WatchKey { port: 1, token };
            io.watch(key, here.as_raw_fd(), true, token % 2 == 0);
            if token % 3 == 0 {
                ready(&mut io);
            }
            io.watch(key, here.as_raw_fd(), false, false);
            there.write_all(b"x").expect("sent");
            drop(here);
            assert_eq!(ready(&mut io), []);
        }
    }
}

/// As when another thread opens something at that moment.
#[test]
fn a_descriptor_closed_before_it_is_withdrawn_may_be_somebody_elses_file_by_then() {
    for carrier in CARRIERS {
        let folder = tempfile::tempdir().expect("a folder");
        let mut io = io(folder.path(), 1, carrier);
        let path = sparse(folder.path(), "file", 512);
        let (here, _there) = UnixStream::pair().expect("sockets");
        let (key, fd) = (WatchKey { port: 1, token: 3 }, here.as_raw_fd());
        io.watch(key, fd, true, false);
        assert_eq!(ready(&mut io), []);
        drop(here);
        let files: Vec<File> = (0..64).map(|_| File::open(&path).expect("it is there")).collect();
        assert!(files.iter().any(|file| file.as_raw_fd() == fd), "the lowest number that is free is taken");
        io.watch(key, fd, false, false);
        assert_eq!(ready(&mut io), []);
    }
}

#[test]
fn a_descriptor_closed_before_it_is_withdrawn_wakes_nobody_although_a_copy_of_it_is_open() {
    for carrier in CARRIERS {
        let folder = tempfile::tempdir().expect("a folder");
        let mut io = io(folder.path(), 1, carrier);
        let (here, mut there) = UnixStream::pair().expect("sockets");
        let _copy = here.try_clone().expect("a copy");
        let (key, fd) = (WatchKey { port: 1, token: 3 }, here.as_raw_fd());
        io.watch(key, fd, true, false);
        assert_eq!(ready(&mut io), []);
        drop(here);
        io.watch(key, fd, false, false);
        there.write_all(b"x").expect("sent");
        assert_eq!(ready(&mut io), []);
        // Nothing is left that keeps waking us: a wait for another one sleeps until that is ready.
        let (other, mut beyond) = UnixStream::pair().expect("sockets");
        io.watch(WatchKey { port: 1, token: 4 }, other.as_raw_fd(), true, false);
        beyond.write_all(b"y").expect("sent");
        let mut happenings = Vec::new();
        while happenings.is_empty() {
            io.wait(Instant::ZERO, None, &mut happenings).expect("the wait works");
        }
        assert!(matches!(happenings[..], [Happening::Ready { key: WatchKey { port: 1, token: 4 }, .. }]), "{happenings:?}");
    }
}

#[test]
fn a_hang_up_is_ready_both_ways() {
    for carrier in CARRIERS {
        let folder = tempfile::tempdir().expect("a folder");
        let mut io = io(folder.path(), 1, carrier);
        let (here, there) = UnixStream::pair().expect("sockets");
        io.watch(WatchKey { port: 0, token: 2 }, here.as_raw_fd(), true, false);
        drop(there);
        assert_eq!(ready(&mut io), [(2, true, true)]);
    }
}

#[test]
fn an_operation_in_flight_for_long_is_reported_once() {
    for carrier in CARRIERS {
        let folder = tempfile::tempdir().expect("a folder");
        let mut io = io(folder.path(), 1, carrier);
        io.start(Instant::ZERO, op(5, DeviceId::Cache, Action::Flush));
        let mut happenings = Vec::new();
        io.look_for_late(Instant::ZERO + Duration::from_secs(29), &mut happenings);
        assert!(happenings.is_empty());
        io.look_for_late(Instant::ZERO + Duration::from_secs(31), &mut happenings);
        io.look_for_late(Instant::ZERO + Duration::from_secs(90), &mut happenings);
        assert!(matches!(happenings[..], [Happening::Late(OpId(5))]));
        assert_eq!(finish(&mut io, 1)[0].id, OpId(5));
    }
}

#[test]
fn x16_quotas_and_file_size_limits_are_a_lack_of_space_for_clients() {
    use super::disk::device_error;
    use tidegate_engine::op::DeviceError;
    for errno in [libc::ENOSPC, libc::EDQUOT, libc::EFBIG] {
        assert_eq!(device_error(errno), DeviceError::NoSpace);
    }
    assert_eq!(device_error(libc::EIO), DeviceError::Medium);
}

/// How often this process has a file open.
fn descriptors_of(path: &std::path::Path) -> usize {
    let all = std::fs::read_dir("/proc/self/fd").expect("ours");
    all.filter(|fd| fd.as_ref().is_ok_and(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to == path))).count()
}

/// Whoever held a file takes it back while somebody waits for it: what would be written to it then, nobody could find.
#[test]
fn a_file_that_is_removed_while_it_is_waited_for_is_not_had() {
    let folder = tempfile::tempdir().expect("a folder");
    for replaced in [false, true] {
        let path = sparse(folder.path(), "cache", 1 << 20);
        let held = open(&path, DeviceId::Cache);
        let ours = descriptors_of(&path);
        let waits = std::thread::spawn({
            let path = path.clone();
            move || Disk::open(&path, DeviceId::Cache, Access::Alone)
        });
        while descriptors_of(&path) == ours {
            std::thread::yield_now();
        }
        if replaced {
            let other = sparse(folder.path(), "other", 1 << 20);
            std::fs::rename(other, &path).expect("it is replaced");
        }
        held.remove();
        assert_eq!(path.exists(), replaced, "what is not this file any more stays");
        drop(held);
        let refused = waits.join().expect("no panic").expect_err("it is gone");
        assert!(refused.code == crate::Failure::BUSY && refused.message.contains("removed or replaced"), "{refused}");
    }
}

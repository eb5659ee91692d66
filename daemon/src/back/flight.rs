//! One operation on its way: which command the kernel gets next, and what its result means. Who carries the commands is not known here.
//!
//! ```text
//! Read:   read … read (a short one goes on)                      → data
//! Write:  write … write (a short one goes on; 1,024 pieces each)  → done
//! Modify: read the sectors around it, overlay it, then as Write    (the device's sector is larger than an atom)
//! Zero:   punch or zero a range; a device that knows neither       → as Write, of zeros
//! Discard: the device's command, else a hole; a device that knows neither → an error
//! ```
//! What changes a file of another machine asks for its length first ([`Flight::after_asking`]).

use tidegate_engine::block::{ATOM_BYTES, Span};
use tidegate_engine::op::{Action, Answer, DeviceError, Hole, OpId};
use tidegate_engine::payload::{Payload, Pieces};
use tidegate_engine::time::Instant;

use super::disk::{Discards, Disk, Kind, OP_ATOMS, device_error};
use super::run::{Run, RunMut};

/// Pieces of memory of one command: the kernel's limit.
const PIECES_MAX: usize = 1024;
/// Bytes of one command; the kernel takes somewhat less than 2 GiB.
const COMMAND_BYTES_MAX: usize = 1 << 30;
/// How often in a row the kernel may say "again" before it counts as an error.
const AGAIN_MAX: u32 = 1_000;

/// An operation and what has become of it so far.
pub(super) struct Flight {
    pub id: OpId,
    pub started: Instant,
    /// The engine was told that it takes long.
    pub late: bool,
    work: Work,
    /// Asked for before anything else is done.
    length: Option<Box<Length>>,
    agains: u32,
}

/// How long a file must be at least, in bytes, and what the kernel says of it.
struct Length {
    least: u64,
    answer: libc::statx,
}

enum Work {
    Read(Reading),
    Modify {
        reading: Reading,
        parts: Pieces<Run>,
    },
    Write(Writing),
    /// `modifies`: the sectors around it, where it is not made of whole ones. It may come to a write of them, and a disk that zeroes a part of one
    /// by itself must not do so between somebody's read and his writing back.
    Zero {
        span: Span,
        hole: Hole,
        modifies: Option<Span>,
        /// The mode of `fallocate` that was asked for: others may have found out meanwhile that the disk does not know it.
        asked: i32,
    },
    Discard {
        span: Span,
        way: Discards,
    },
    Flush,
}

/// What the kernel is to do next with one disk. The memory that it names belongs to the flight and the berth it lies in.
#[derive(Clone, Copy)]
pub(super) enum Command {
    Read {
        into: *mut u8,
        bytes: u32,
        offset: u64,
    },
    Write {
        from: *const u8,
        bytes: u32,
        offset: u64,
    },
    WritePieces {
        pieces: *const libc::iovec,
        count: u32,
        offset: u64,
    },
    /// `fallocate` with this mode.
    Allocate {
        mode: i32,
        bytes: u64,
        offset: u64,
    },
    /// The block device need not keep this.
    Discard {
        bytes: u64,
        offset: u64,
    },
    /// `statx` of the open file: its size.
    Length {
        into: *mut libc::statx,
    },
    Flush,
}

/// What comes after a completion.
pub(super) enum Next {
    /// Another command: [`Flight::command`].
    Again,
    /// The file is shorter than it must be; nothing was done.
    CutOff,
    End(Result<Answer<Run>, DeviceError>),
}

impl Flight {
    /// # Panics
    /// On a span beyond the device or a payload that is not exactly its span: bugs of the engine.
    pub fn new(id: OpId, started: Instant, action: Action<Run>, disk: &Disk) -> Flight {
        let work = match action {
            Action::Read(_, span) => Work::Read(Reading::new(span, disk)),
            Action::Write(_, span, parts) => write(span, parts, disk),
            Action::Zero(_, span, hole) => {
                let wide = disk.widened(inside(span, disk));
                Work::Zero { span, hole, modifies: (wide != span).then_some(wide), asked: 0 }
            }
            Action::Discard(_, span) => Work::Discard { span: inside(span, disk), way: disk.discards },
            Action::Flush => Work::Flush,
            Action::Allocation(..) | Action::Spin(_) => unreachable!("answered at once by the dock"),
        };
        Flight { id, started, late: false, work, length: None, agains: 0 }
    }

    /// Nothing is done to a file that is shorter than `least` bytes.
    pub fn after_asking(self, least: u64) -> Flight {
        // SAFETY: numbers, for which zeros are valid.
        let answer = unsafe { std::mem::zeroed() };
        Flight { length: Some(Box::new(Length { least, answer })), ..self }
    }

    /// The sectors of which it changes a part: it reads them and writes them back, or may come to that. Two such flights on one sector must not
    /// overlap in time: each would write what it read of the other's atoms.
    pub fn modifies(&self) -> Option<Span> {
        match &self.work {
            Work::Modify { reading, .. } => Some(reading.wide),
            Work::Write(Writing { modifies, .. }) | Work::Zero { modifies, .. } => *modifies,
            Work::Read(_) | Work::Discard { .. } | Work::Flush => None,
        }
    }

    /// The next command. `pieces` must live and stay unchanged until it has completed, and so must the flight.
    pub fn command(&mut self, disk: &Disk, pieces: &mut Vec<libc::iovec>) -> Command {
        if let Some(length) = &mut self.length {
            return Command::Length { into: &raw mut length.answer };
        }
        loop {
            match &mut self.work {
                Work::Read(reading) | Work::Modify { reading, .. } => return reading.command(),
                Work::Write(writing) => return writing.command(pieces),
                Work::Flush => return Command::Flush,
                Work::Discard { span, way: Discards::Command } => return Command::Discard { bytes: span.bytes(), offset: span.offset() },
                Work::Discard { span, .. } => return Command::Allocate { mode: PUNCH, bytes: span.bytes(), offset: span.offset() },
                Work::Zero { span, hole, asked, .. } => match zero_mode(*hole, *span, disk) {
                    Some(mode) => {
                        *asked = mode;
                        return Command::Allocate { mode, bytes: span.bytes(), offset: span.offset() };
                    }
                    None => self.work = write(*span, zeros(span.atoms), disk),
                },
            }
        }
    }

    /// Takes a completion's result (negative: an error number).
    pub fn completed(&mut self, result: i32, disk: &mut Disk) -> Next {
        if matches!(-result, libc::EAGAIN | libc::EINTR) && self.agains < AGAIN_MAX {
            self.agains += 1;
            return Next::Again;
        }
        self.agains = 0;
        if let Some(length) = self.length.take() {
            return match result {
                0.. if length.answer.stx_size < length.least => Next::CutOff,
                0.. => Next::Again,
                _ => Next::End(Err(device_error(-result))),
            };
        }
        if result < 0 {
            return self.failed(-result, disk);
        }
        let count = result as usize;
        match &mut self.work {
            Work::Read(reading) => match reading.advance(count, reading.asked_bytes(), disk.sector_bytes()) {
                Some(Ok(())) => Next::End(Ok(Answer::Data([reading.take().freeze().slice(reading.skip, reading.atoms)].into()))),
                Some(Err(error)) => Next::End(Err(error)),
                None => Next::Again,
            },
            // All of the sectors: what was not read must not be written.
            Work::Modify { reading, parts } => match reading.advance(count, reading.wide.bytes() as usize, disk.sector_bytes()) {
                Some(Ok(())) => {
                    self.work = Work::Write(reading.overlaid(parts));
                    Next::Again
                }
                Some(Err(error)) => Next::End(Err(error)),
                None => Next::Again,
            },
            Work::Write(writing) => match writing.advance(count, disk.sector_bytes()) {
                Some(result) => Next::End(result.map(|()| Answer::Done)),
                None => Next::Again,
            },
            Work::Zero { .. } | Work::Discard { .. } | Work::Flush => Next::End(Ok(Answer::Done)),
        }
    }

    fn failed(&mut self, errno: i32, disk: &mut Disk) -> Next {
        if let Work::Discard { way: way @ Discards::Command, .. } = &mut self.work
            && matches!(errno, libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL | libc::ENOTTY | libc::EACCES)
        {
            // An older kernel, or a ring that may not: never asked again.
            (*way, disk.discards) = (Discards::Punch, Discards::Punch);
            return Next::Again;
        }
        if let Work::Zero { asked, .. } = self.work
            && matches!(errno, libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL)
        {
            // It does not know the command: never asked again; the next best one.
            match asked {
                PUNCH => disk.punches = false,
                _ => disk.zeroes = false,
            }
            return Next::Again;
        }
        Next::End(Err(device_error(errno)))
    }
}

const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;

/// The mode of `fallocate` that zeroes, or none: zeros are written.
fn zero_mode(hole: Hole, span: Span, disk: &Disk) -> Option<i32> {
    // A file system zeroes parts of its blocks by itself; a device knows whole sectors only.
    if disk.kind() == Kind::Block && disk.widened(span) != span {
        return None;
    }
    match hole {
        Hole::Allowed if disk.punches => Some(PUNCH),
        Hole::Allowed | Hole::Forbidden => disk.zeroes.then_some(ZERO),
    }
}

fn zeros(atoms: u64) -> Pieces<Run> {
    (0..atoms).step_by(OP_ATOMS as usize).map(|at| Run::zero(OP_ATOMS.min(atoms - at))).collect()
}

fn inside(span: Span, disk: &Disk) -> Span {
    assert!(!span.is_empty(), "an operation on nothing");
    assert!(span.end() <= disk.atoms(), "{span:?} is beyond the device of {} atoms", disk.atoms());
    span
}

fn write(span: Span, mut parts: Pieces<Run>, disk: &Disk) -> Work {
    assert_eq!(parts.iter().map(Run::atoms).sum::<u64>(), inside(span, disk).atoms, "a write brings exactly its span");
    if disk.widened(span) != span {
        return Work::Modify { reading: Reading::new(span, disk), parts };
    }
    if !disk.takes_memory(&parts) {
        parts = [copy(&parts)].into();
    }
    Work::Write(Writing::new(span, parts))
}

/// One piece at the start of a slab, so aligned as strictly as any device asks.
fn copy(parts: &[Run]) -> Run {
    let mut whole = RunMut::new(parts.iter().map(Run::atoms).sum());
    overlay(&mut whole.as_mut_slice()[..], parts);
    whole.freeze()
}

fn overlay(mut over: &mut [u8], parts: &[Run]) {
    for part in parts {
        let (here, behind) = over.split_at_mut(part.bytes());
        here.copy_from_slice(part.as_slice());
        over = behind;
    }
}

/// A read of whole sectors into one piece of memory.
struct Reading {
    into: Option<RunMut>,
    /// The sectors, `skip` and `atoms`: the part of them that was asked for.
    wide: Span,
    skip: u64,
    atoms: u64,
    filled: usize,
}

impl Reading {
    fn new(span: Span, disk: &Disk) -> Reading {
        let wide = disk.widened(inside(span, disk));
        Reading { into: Some(RunMut::new(wide.atoms)), wide, skip: span.start - wide.start, atoms: span.atoms, filled: 0 }
    }

    fn take(&mut self) -> RunMut {
        self.into.take().expect("a read ends once")
    }

    fn command(&mut self) -> Command {
        let rest = &mut self.into.as_mut().expect("a read that ended asks for nothing").as_mut_slice()[self.filled..];
        let bytes = rest.len().min(COMMAND_BYTES_MAX) as u32;
        Command::Read { into: rest.as_mut_ptr(), bytes, offset: self.wide.offset() + self.filled as u64 }
    }

    /// Bytes from the start of the first sector to the end of what was asked for.
    fn asked_bytes(&self) -> usize {
        ((self.skip + self.atoms) * ATOM_BYTES) as usize
    }

    /// `Some`: it has ended, with the first `wanted` bytes if it has not failed.
    fn advance(&mut self, count: usize, wanted: usize, sector: usize) -> Option<Result<(), DeviceError>> {
        if self.filled + count >= wanted {
            return Some(Ok(()));
        }
        // Direct access goes on at a whole sector. No progress: the device is shorter than it was, and what it should hold is lost.
        let whole = (self.filled + count) / sector * sector;
        if whole == self.filled {
            return Some(Err(DeviceError::Medium));
        }
        self.filled = whole;
        None
    }

    /// The sectors with `parts` in their place, to be written back.
    fn overlaid(&mut self, parts: &[Run]) -> Writing {
        let mut whole = self.take();
        let at = (self.skip * ATOM_BYTES) as usize;
        overlay(&mut whole.as_mut_slice()[at..], parts);
        Writing { modifies: Some(self.wide), ..Writing::new(self.wide, [whole.freeze()].into()) }
    }
}

/// A write of payloads from where they lie.
struct Writing {
    span: Span,
    parts: Pieces<Run>,
    /// Bytes written, and the place of the next one: part and byte in it.
    written: usize,
    part: usize,
    within: usize,
    modifies: Option<Span>,
}

impl Writing {
    fn new(span: Span, parts: Pieces<Run>) -> Writing {
        Writing { span, parts, written: 0, part: 0, within: 0, modifies: None }
    }

    fn command(&mut self, pieces: &mut Vec<libc::iovec>) -> Command {
        self.gather(pieces);
        let offset = self.span.offset() + self.written as u64;
        if let [piece] = pieces[..] {
            return Command::Write { from: piece.iov_base.cast(), bytes: piece.iov_len as u32, offset };
        }
        Command::WritePieces { pieces: pieces.as_ptr(), count: pieces.len() as u32, offset }
    }

    /// The memory of the rest, neighbours joined, as far as one command takes it.
    fn gather(&self, pieces: &mut Vec<libc::iovec>) {
        pieces.clear();
        let (mut within, mut room) = (self.within, COMMAND_BYTES_MAX);
        for part in &self.parts[self.part..] {
            let bytes = &part.as_slice()[within..];
            within = 0;
            let length = bytes.len().min(room);
            let full = pieces.len() == PIECES_MAX;
            match pieces.last_mut() {
                Some(last) if last.iov_base.addr() + last.iov_len == bytes.as_ptr().addr() => last.iov_len += length,
                _ if full => return,
                _ => pieces.push(libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: length }),
            }
            room -= length;
            if room == 0 {
                return;
            }
        }
    }

    /// `Some`: it has ended.
    fn advance(&mut self, count: usize, sector: usize) -> Option<Result<(), DeviceError>> {
        if (self.written + count) as u64 == self.span.bytes() {
            return Some(Ok(()));
        }
        // Direct access goes on at a whole sector.
        let whole = (self.written + count) / sector * sector;
        if whole == self.written {
            return Some(Err(DeviceError::Medium));
        }
        let mut step = whole - self.written;
        self.written = whole;
        while step > 0 {
            let rest = self.parts[self.part].bytes() - self.within;
            if step < rest {
                self.within += step;
                return None;
            }
            step -= rest;
            self.part += 1;
            self.within = 0;
        }
        None
    }
}

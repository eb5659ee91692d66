//! One file or block device as the back of a volume: opened, locked, measured. Every later access uses this one descriptor, so
//! its lock lives as long as the last operation in the kernel, even behind a killed process.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tidegate_engine::block::{ATOM_BYTES, Span};
use tidegate_engine::op::{DeviceError, DeviceId, Limits};
use tidegate_engine::payload::Payload;
use tidegate_engine::request::Extent;

use super::occupied::{self, Locker};
use super::run::{Run, RunMut};
use crate::Failure;
use crate::whole::{is_one, remove};

/// How long a device may stay locked by a predecessor that is about to end.
const LOCK_PATIENCE: Duration = Duration::from_secs(3);
/// And how much longer by one that may have ended: its last I/O is still in the kernel.
const LAST_PATIENCE: Duration = Duration::from_secs(27);
const LOCK_RETRY: Duration = Duration::from_millis(20);
/// How long somebody may take who makes a file, until he has locked it.
const CLAIM_PATIENCE: Duration = Duration::from_millis(500);

/// Operations in flight on one device.
pub const DEPTH: usize = 128;

/// Is nothing there, not even a link that leads nowhere?
pub fn is_missing(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Which file it is, under whatever name it was found: device and inode.
pub fn file_id(found: io::Result<Metadata>) -> Option<String> {
    found.ok().map(|found| format!("{}:{}", found.dev(), found.ino()))
}
/// The largest operation: 1 MiB, or what a block device takes as one command. What it would split, io_uring would hand to a thread.
pub const OP_ATOMS: u64 = 2048;
/// An allocation answer has at most so many extents; what lies behind counts as allocated.
const EXTENTS_MAX: usize = 4096;

/// What a disk is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To read and write, alone.
    Alone,
    /// To read, together with other readers.
    Shared,
    /// To read, whoever else uses it, and without keeping anybody out.
    Unlocked,
}

/// What the device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    Block,
}

/// An opened and locked device.
#[derive(Debug)]
pub struct Disk {
    file: File,
    path: PathBuf,
    role: DeviceId,
    kind: Kind,
    bytes: u64,
    alignment: Alignment,
    /// A system call on it may sleep until the device has answered, whatever it promises.
    sleeps: bool,
    /// Cleared when the device turns out not to know the command.
    pub(super) punches: bool,
    pub(super) zeroes: bool,
    pub(super) discards: Discards,
}

/// How the device is told what it need not keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Discards {
    Never,
    /// A block device's own command.
    Command,
    /// A hole: in a file, or where a block device's command cannot be given.
    Punch,
}

/// What the device asks of places and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Alignment {
    /// Past the page cache.
    direct: bool,
    /// Offsets and lengths, in atoms.
    sector_atoms: u64,
    /// Addresses of memory, in bytes.
    memory: usize,
}

/// Through the page cache anything goes.
const BUFFERED: Alignment = Alignment { direct: false, sector_atoms: 1, memory: 1 };

impl Disk {
    /// Opens and locks the file or block device at `path`.
    ///
    /// # Errors
    /// One line for the operator: missing, no file or block device, no permission, in use, empty.
    pub fn open(path: &Path, role: DeviceId, access: Access) -> Result<Disk, Failure> {
        Disk::open_as(name(role), path, role, access)
    }

    /// The same, of what messages call otherwise.
    ///
    /// # Errors
    /// As [`Disk::open`].
    pub fn open_as(called: &str, path: &Path, role: DeviceId, access: Access) -> Result<Disk, Failure> {
        let place = Place { path, called };
        let kind = place.kind()?;
        let until = Instant::now() + LOCK_PATIENCE;
        let (mut file, direct) = place.open(kind, access, until)?;
        place.lock(&file, access, until)?;
        let made_by = Instant::now() + CLAIM_PATIENCE;
        let is_empty = |file: &File| kind == Kind::File && file.metadata().is_ok_and(|metadata| metadata.len() == 0);
        while access == Access::Alone && is_empty(&file) && Instant::now() < made_by {
            // Who is just making it has not locked it yet, and waits for us.
            drop(file);
            std::thread::sleep(LOCK_RETRY);
            let opened = place.open(kind, access, until);
            file = opened.map_err(|failure| if failure.code == Failure::NO_INPUT { place.gone() } else { failure })?.0;
            place.lock(&file, access, until)?;
        }
        if access == Access::Alone && !place.leads_to(&file) {
            // What would be written to it, nobody could find.
            return Err(place.gone());
        }
        Disk::of(file, direct, &place, kind, role)
    }

    /// Makes a file that was not there, empty and locked: nobody else has had anything in it. Nothing if somebody else has made one meanwhile.
    ///
    /// # Errors
    /// One line; nothing is left of it, unless somebody else has taken it at once.
    pub(crate) fn claim(path: &Path, role: DeviceId) -> Result<Option<File>, Failure> {
        let place = Place { path, called: name(role) };
        let file = match OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
            made => made.map_err(|error| {
                Failure::new(Failure::NOT_CREATED, format!("{}: {error}; see that its folder exists and is writable", place.named()))
            })?,
        };
        let locked = place.lock(&file, Access::Alone, Instant::now() + LOCK_PATIENCE);
        locked.inspect_err(|failure| {
            if failure.code != Failure::BUSY {
                remove(path, &file);
            }
        })?;
        if place.leads_to(&file) && file.metadata().is_ok_and(|metadata| metadata.len() == 0) {
            return Ok(Some(file));
        }
        Err(place.moved("being made by somebody else"))
    }

    /// Of a file that was [claimed](Disk::claim), and has got its size.
    ///
    /// # Errors
    /// As [`Disk::open`].
    pub(crate) fn claimed(file: File, path: &Path, role: DeviceId) -> Result<Disk, Failure> {
        let direct = set_direct(&file, true).is_ok();
        Disk::of(file, direct, &Place { path, called: name(role) }, Kind::File, role)
    }

    /// What was opened and locked; `direct`: past the page cache.
    fn of(mut file: File, direct: bool, place: &Place, kind: Kind, role: DeviceId) -> Result<Disk, Failure> {
        let path = place.path;
        let bytes = file.seek(SeekFrom::End(0)).map_err(|error| place.failed(Failure::IO, "its size cannot be found out", &error))?;
        if bytes < ATOM_BYTES {
            let what = if bytes == 0 { "is empty".to_owned() } else { format!("has {bytes} bytes, less than a sector of {ATOM_BYTES}") };
            let advice = match (kind, bytes) {
                // What a `create` that was killed has left, too.
                (Kind::File, 0) => "remove it (rm), so that `tidegate create` can make a new one, or give it a size (truncate --size)",
                (Kind::File, _) => "give it a size first (truncate --size), or name another one",
                (Kind::Block, _) => "name another one",
            };
            return Err(place.refused(&what, advice));
        }
        let alignment = if direct { alignment(&file, kind, bytes, direct_alignment(&file)) } else { BUFFERED };
        if direct && !alignment.direct {
            set_direct(&file, false).map_err(|error| place.failed(Failure::SYSTEM, "direct access cannot be switched off", &error))?;
        }
        let sleeps = kind == Kind::File && is_elsewhere(&file);
        let discards = match kind {
            Kind::File => Discards::Punch,
            Kind::Block if occupied::takes_discards(&file) => Discards::Command,
            Kind::Block => Discards::Never,
        };
        Ok(Disk { file, path: path.to_owned(), role, kind, bytes, alignment, sleeps, punches: true, zeroes: true, discards })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn role(&self) -> DeviceId {
        self.role
    }

    /// See [`file_id`].
    pub fn file_id(&self) -> Option<String> {
        file_id(self.metadata())
    }

    /// Removes the file, if its name still leads to it.
    pub fn remove(&self) {
        remove(&self.path, &self.file);
    }

    /// A file whose last name is gone.
    pub fn is_removed(&self) -> bool {
        self.kind == Kind::File && self.metadata().is_ok_and(|metadata| metadata.nlink() == 0)
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Size in bytes, as the device says.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whole atoms.
    pub fn atoms(&self) -> u64 {
        self.bytes / ATOM_BYTES
    }

    pub fn limits(&self) -> Limits {
        Limits { atoms: self.atoms(), depth: DEPTH, op_atoms: OP_ATOMS, discards: self.discards != Discards::Never }
    }

    pub fn metadata(&self) -> io::Result<Metadata> {
        self.file.metadata()
    }

    /// Something worth telling the operator once: one line.
    pub fn note(&self) -> Option<String> {
        (!self.alignment.direct).then(|| {
            format!("{} {}: no direct access there (O_DIRECT); it goes through the page cache", name(self.role), self.path.display())
        })
    }

    /// Its length in bytes now. Never asked of a disk that [sleeps](Disk::sleeps).
    pub(super) fn length_now(&self) -> io::Result<u64> {
        self.file.metadata().map(|file| file.len())
    }

    pub(super) fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// The same disk once more, of the same open file.
    pub(crate) fn twin(&self) -> io::Result<Disk> {
        Ok(Disk { file: self.file.try_clone()?, path: self.path.clone(), ..*self })
    }

    /// The driver of the device, or of the one below the file, as the kernel calls it. Of a partition: of its drive.
    pub(crate) fn driver(&self) -> Option<String> {
        occupied::driver(&self.metadata().ok()?)
    }

    /// The same open file once more: the lock is held until both are closed.
    pub(super) fn duplicate(&self) -> io::Result<OwnedFd> {
        self.file.try_clone().map(OwnedFd::from)
    }

    /// May any system call on it sleep? Then its operations are submitted by a thread of the kernel's, and nothing else is asked of it while
    /// it serves: one call could hold up everything else.
    pub(super) fn sleeps(&self) -> bool {
        self.sleeps
    }

    pub(super) fn sector_bytes(&self) -> usize {
        (self.alignment.sector_atoms * ATOM_BYTES) as usize
    }

    /// What the device writes at once at the least, as far as it says, in bytes. A power cut in a shorter write may damage all of it.
    pub fn physical_bytes(&self) -> Option<u64> {
        if self.kind == Kind::Block { physical_bytes(&self.file) } else { None }
    }

    /// The smallest span of whole sectors around `span`.
    pub(super) fn widened(&self, span: Span) -> Span {
        let sector = self.alignment.sector_atoms;
        let start = span.start / sector * sector;
        Span::new(start, span.end().next_multiple_of(sector) - start)
    }

    /// Would the device take these payloads as they lie in memory?
    pub(super) fn takes_memory(&self, parts: &[Run]) -> bool {
        let Alignment { sector_atoms, memory, .. } = self.alignment;
        if sector_atoms == 1 && memory <= ATOM_BYTES as usize {
            return true;
        }
        let memory = memory.max(self.sector_bytes());
        parts.iter().all(|part| part.as_slice().as_ptr().addr().is_multiple_of(memory) && part.bytes().is_multiple_of(self.sector_bytes()))
    }

    /// As if the device had sectors of so many atoms, and took memory at nothing finer.
    #[cfg(test)]
    pub(super) fn with_sectors(mut self, atoms: u64) -> Disk {
        self.alignment.sector_atoms = atoms;
        self.alignment.memory = (atoms * ATOM_BYTES) as usize;
        self
    }

    /// As if the kernel said nothing of what direct access asks.
    #[cfg(test)]
    pub(super) fn untold(mut self) -> Disk {
        if self.alignment.direct {
            self.alignment = alignment(&self.file, self.kind, self.bytes, None);
            set_direct(&self.file, self.alignment.direct).expect("a file of the test");
        }
        self
    }

    /// As if it were a file of another machine's.
    #[cfg(test)]
    pub(super) fn elsewhere(self) -> Disk {
        Disk { sleeps: true, ..self }
    }

    /// Reads a span at once, without the ring: superblocks, before there is an engine.
    pub fn read_now(&self, span: Span) -> io::Result<Run> {
        let wide = self.widened(span);
        let mut into = RunMut::new(wide.atoms);
        let mut filled = 0;
        let wanted = (span.end() - wide.start) * ATOM_BYTES;
        while (filled as u64) < wanted {
            match self.file.read_at(&mut into.as_mut_slice()[filled..], wide.offset() + filled as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(into.freeze().slice(span.start - wide.start, span.atoms))
    }

    /// Writes a span at once: formatting. The caller flushes.
    pub fn write_now(&self, span: Span, bytes: &[u8]) -> io::Result<()> {
        assert_eq!(bytes.len() as u64, span.bytes());
        let wide = self.widened(span);
        let mut whole = RunMut::new(wide.atoms);
        if wide != span {
            whole.as_mut_slice().copy_from_slice(self.read_now(wide)?.as_slice());
        }
        let at = ((span.start - wide.start) * ATOM_BYTES) as usize;
        whole.as_mut_slice()[at..at + bytes.len()].copy_from_slice(bytes);
        self.file.write_all_at(whole.as_slice(), wide.offset())
    }

    pub fn flush_now(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    /// Goes on with a question for what is allocated, by so many extents at the most; returns by how many. What cannot be told is allocated.
    pub(super) fn look_for_extents(&self, asked: &mut Allocation, most: usize) -> usize {
        let before = asked.extents.len();
        while !asked.is_told() && asked.extents.len() < before + most {
            let (at, limit) = (asked.rest.start, asked.rest.end());
            let (hole, end) = match self.kind {
                Kind::File if !self.sleeps && asked.extents.len() < EXTENTS_MAX => self.extent(at, limit),
                Kind::File | Kind::Block => (false, limit),
            };
            asked.extents.push(Extent { atoms: end - at, hole, zero: hole });
            asked.rest = Span::new(end, limit - end);
        }
        asked.extents.len() - before
    }

    /// The extent at atom `at`: is it a hole, and where does it end (at most at `limit`)?
    fn extent(&self, at: u64, limit: u64) -> (bool, u64) {
        let seek = |whence| {
            // SAFETY: a plain system call on our own descriptor. The position of the descriptor is used by nobody else.
            let found = unsafe { libc::lseek(self.fd(), (at * ATOM_BYTES) as libc::off_t, whence) };
            if found >= 0 { Ok(found as u64) } else { Err(io::Error::last_os_error()) }
        };
        match seek(libc::SEEK_DATA) {
            // A hole ends in the atom in which data starts: that one is data already.
            Ok(data) if data / ATOM_BYTES > at => (true, (data / ATOM_BYTES).min(limit)),
            Ok(_) => match seek(libc::SEEK_HOLE) {
                Ok(hole) => (false, hole.div_ceil(ATOM_BYTES).clamp(at + 1, limit)),
                Err(_) => (false, limit),
            },
            // No data from here to the end of the file. What it had behind that is gone, and no zeros.
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => match self.length_now().map(|bytes| bytes / ATOM_BYTES) {
                Ok(end) if end > at => (true, end.min(limit)),
                Ok(_) | Err(_) => (false, limit),
            },
            Err(_) => (false, limit),
        }
    }
}

/// A question for what of a span is allocated, on its way.
pub(super) struct Allocation {
    /// What nothing is known of yet.
    rest: Span,
    /// In order, together exactly what is before that.
    pub extents: Vec<Extent>,
}

impl Allocation {
    pub fn of(span: Span) -> Allocation {
        Allocation { rest: span, extents: Vec::new() }
    }

    pub fn is_told(&self) -> bool {
        self.rest.is_empty()
    }
}

/// What a system call's error says about the device.
pub(super) fn device_error(errno: i32) -> DeviceError {
    match errno {
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG => DeviceError::NoSpace,
        libc::ENODEV | libc::ENXIO | libc::ESHUTDOWN | libc::ENOTCONN | libc::ESTALE => DeviceError::Gone,
        _ => DeviceError::Medium,
    }
}

/// As messages name it.
pub fn name(role: DeviceId) -> &'static str {
    match role {
        DeviceId::Cache => "cache",
        DeviceId::Origin => "origin",
    }
}

/// A path on its way to become a disk, and the messages if it does not.
struct Place<'a> {
    path: &'a Path,
    called: &'a str,
}

impl Place<'_> {
    fn named(&self) -> String {
        format!("{} {}", self.called, self.path.display())
    }

    fn failed(&self, code: u8, what: &str, error: &io::Error) -> Failure {
        Failure::new(code, format!("{}: {what}: {error}", self.named()))
    }

    fn refused(&self, what: &str, remedy: &str) -> Failure {
        Failure::new(Failure::REFUSED, format!("{} {what}; {remedy}", self.named()))
    }

    fn busy(&self, how: &str) -> Failure {
        Failure::new(Failure::BUSY, format!("{} is {how}; stop that first", self.named()))
    }

    fn moved(&self, how: &str) -> Failure {
        Failure::new(Failure::BUSY, format!("{} is {how}; try again", self.named()))
    }

    /// Whoever held it has taken it back.
    fn gone(&self) -> Failure {
        self.moved("gone: whoever used it has removed or replaced it")
    }

    fn kind(&self) -> Result<Kind, Failure> {
        let metadata = std::fs::metadata(self.path).map_err(|error| self.unopened(Access::Shared, &error))?;
        let kind = metadata.file_type();
        if kind.is_file() {
            return Ok(Kind::File);
        }
        if kind.is_block_device() {
            return Ok(Kind::Block);
        }
        Err(self.refused("is neither a file nor a block device", "name another path"))
    }

    fn unopened(&self, access: Access, error: &io::Error) -> Failure {
        if error.kind() == io::ErrorKind::NotFound
            && let Ok(target) = std::fs::read_link(self.path)
        {
            // It is there, so nothing can be made in its place.
            let what = format!("{} is a link to {}, which is not there", self.named(), target.display());
            return Failure::new(Failure::NO_INPUT, format!("{what}; mount the disk that it leads to, or remove the link"));
        }
        let remedy = match error.kind() {
            // A new one in its place would be another one.
            io::ErrorKind::NotFound if self.called == name(DeviceId::Origin) => "mount its disk, or name another path",
            io::ErrorKind::NotFound => "name another path, or make it with `tidegate create`",
            io::ErrorKind::PermissionDenied => {
                let may = if access == Access::Alone { "read and write" } else { "read" };
                return Failure::new(Failure::PERMISSION, format!("{}: {error}; run as a user who may {may} it", self.named()));
            }
            _ => "see that it can be read and written",
        };
        Failure::new(Failure::NO_INPUT, format!("{}: {error}; {remedy}", self.named()))
    }

    /// Opens past the page cache where that is possible. A block device is claimed: a mounted one refuses.
    fn open(&self, kind: Kind, access: Access, until: Instant) -> Result<(File, bool), Failure> {
        let claim = match (kind, access) {
            (Kind::Block, Access::Alone) => libc::O_EXCL,
            (Kind::Block, Access::Shared | Access::Unlocked) | (Kind::File, _) => 0,
        };
        let open = |flags| OpenOptions::new().read(true).write(access == Access::Alone).custom_flags(claim | flags).open(self.path);
        let mut direct = libc::O_DIRECT;
        let file = loop {
            match open(direct) {
                Ok(file) => break file,
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) && direct != 0 => direct = 0,
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < until => std::thread::sleep(LOCK_RETRY),
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => match (occupied::reason(self.path), self.locker()) {
                    (None, Some(locker)) if locker.may_have_ended() && Instant::now() < until + LAST_PATIENCE => {
                        std::thread::sleep(LOCK_RETRY);
                    }
                    (None, Some(locker)) => return Err(self.busy(&format!("in use by {locker}"))),
                    (reason, _) => return Err(self.busy(&reason.unwrap_or_else(|| "in use by the system".to_string()))),
                },
                Err(error) => return Err(self.unopened(access, &error)),
            }
        };
        let metadata = file.metadata().map_err(|error| self.unopened(access, &error))?;
        let same = match kind {
            Kind::File => metadata.file_type().is_file(),
            Kind::Block => metadata.file_type().is_block_device(),
        };
        if !same {
            return Err(self.refused("was replaced while it was opened", "try again"));
        }
        Ok((file, direct != 0))
    }

    /// Who holds the lock on a block device that somebody has claimed; nobody if that one has not locked it.
    fn locker(&self) -> Option<Locker> {
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(self.path).ok()?;
        // SAFETY: a plain system call on our own descriptor, whose lock goes with it.
        let is_free = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_SH | libc::LOCK_NB) } == 0;
        (!is_free).then(|| file.metadata().map_or(Locker::Unseen, |metadata| Locker::of(&metadata)))
    }

    /// Is it this file or device that the name leads to now?
    fn leads_to(&self, file: &File) -> bool {
        is_one(std::fs::metadata(self.path), file)
    }

    /// Locks the descriptor: whoever else is a tidegate (or asks for the same lock) stays out while any I/O of ours may be in flight.
    fn lock(&self, file: &File, access: Access, until: Instant) -> Result<(), Failure> {
        if let (Access::Alone, Some(reason)) = (access, occupied::reason(self.path)) {
            return Err(self.busy(&reason));
        }
        let how = match access {
            Access::Alone => libc::LOCK_EX,
            Access::Shared => libc::LOCK_SH,
            Access::Unlocked => return Ok(()),
        };
        loop {
            // SAFETY: a plain system call on our own descriptor.
            if unsafe { libc::flock(file.as_raw_fd(), how | libc::LOCK_NB) } == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EWOULDBLOCK) if Instant::now() < until => std::thread::sleep(LOCK_RETRY),
                Some(libc::EWOULDBLOCK) => match file.metadata().map_or(Locker::Unseen, |metadata| Locker::of(&metadata)) {
                    locker if locker.may_have_ended() && Instant::now() < until + LAST_PATIENCE => std::thread::sleep(LOCK_RETRY),
                    locker => return Err(self.busy(&format!("in use by {locker}"))),
                },
                _ => return Err(self.failed(Failure::IO, "it cannot be locked", &error)),
            }
        }
    }
}

/// What direct access asks of this device, or that there is none. `told`: by the kernel, as [`direct_alignment`] has it.
fn alignment(file: &File, kind: Kind, bytes: u64, told: Option<(u64, u64)>) -> Alignment {
    let (memory, sector) = match (kind, told) {
        // A device without a word on memory takes atoms; so does every file on such a device.
        (Kind::Block, told) => (told.map_or(ATOM_BYTES, |(memory, _)| memory), sector_bytes(file)),
        (Kind::File, Some(told)) => told,
        (Kind::File, None) if is_memory(file) => return BUFFERED,
        (Kind::File, None) => (super::run::ALIGNMENT as u64, bytes_block(file)),
    };
    // None at all; or it would have to write beyond the end of a file with a ragged tail.
    if !sector.is_power_of_two() || (sector > ATOM_BYTES && !bytes.is_multiple_of(sector)) {
        return BUFFERED;
    }
    Alignment { direct: true, sector_atoms: sector.max(ATOM_BYTES) / ATOM_BYTES, memory: memory as usize }
}

/// `statx(STATX_DIOALIGN)`: alignment of memory and of offsets in bytes (0, 0: no direct access); nothing on kernels that do not say.
fn direct_alignment(file: &File) -> Option<(u64, u64)> {
    const STATX_DIOALIGN: u32 = 0x2000;
    // The C library's structure has no names for the fields at 0x98 and 0x9c: the kernel's layout, 256 bytes.
    let mut answer = [0u32; 64];
    // SAFETY: the empty path with AT_EMPTY_PATH asks for the descriptor itself; the kernel writes at most 256 bytes to `answer`.
    let result =
        unsafe { libc::syscall(libc::SYS_statx, file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, STATX_DIOALIGN, answer.as_mut_ptr()) };
    (result == 0 && answer[0] & STATX_DIOALIGN != 0).then(|| (u64::from(answer[0x98 / 4]), u64::from(answer[0x9c / 4])))
}

/// Is the file in memory anyway (tmpfs, ramfs)? Newer kernels take O_DIRECT there and do nothing about it.
fn is_memory(file: &File) -> bool {
    const RAMFS_MAGIC: u64 = 0x8584_58f6;
    file_system(file).is_some_and(|magic| [libc::TMPFS_MAGIC as u64, RAMFS_MAGIC].contains(&magic))
}

/// Does another process or another machine answer for this file system? Then the plainest system call may sleep for as long as that one
/// likes. (FUSE takes a dozen requests; the next one sleeps in the submission, although io_uring asks it not to.)
fn is_elsewhere(file: &File) -> bool {
    const SMB2: u64 = 0xFE53_4D42;
    const CIFS: u64 = 0xFF53_4D42;
    const CEPH: u64 = 0x00C3_6400;
    const PLAN9: u64 = 0x0102_1997;
    let known = [libc::FUSE_SUPER_MAGIC as u64, libc::NFS_SUPER_MAGIC as u64, SMB2, CIFS, CEPH, PLAN9];
    file_system(file).is_some_and(|magic| known.contains(&magic))
}

/// The magic number of the file system below.
fn file_system(file: &File) -> Option<u64> {
    // SAFETY: fstatfs fills the structure, for which zeros are valid contents.
    let (result, found) = unsafe {
        let mut found: libc::statfs = std::mem::zeroed();
        (libc::fstatfs(file.as_raw_fd(), &mut found), found)
    };
    (result == 0).then_some(found.f_type as u64)
}

/// The sector of a block device that a write of less than it makes the device read and write again, in bytes.
fn physical_bytes(file: &File) -> Option<u64> {
    let mut bytes: libc::c_uint = 0;
    // SAFETY: BLKPBSZGET writes one unsigned int.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::BLKPBSZGET, &mut bytes) };
    (result == 0 && bytes > 0).then_some(u64::from(bytes))
}

/// The logical sector of a block device in bytes.
fn sector_bytes(file: &File) -> u64 {
    let mut bytes: libc::c_int = 0;
    // SAFETY: BLKSSZGET writes one int.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::BLKSSZGET, &mut bytes) };
    if result == 0 && bytes > 0 { bytes as u64 } else { ATOM_BYTES }
}

/// The block of the file system below a file: always enough where the kernel does not tell what direct access needs.
fn bytes_block(file: &File) -> u64 {
    file.metadata().map(|metadata| metadata.blksize()).unwrap_or(4096).clamp(ATOM_BYTES, super::run::ALIGNMENT as u64)
}

fn set_direct(file: &File, direct: bool) -> io::Result<()> {
    // SAFETY: plain system calls on our own descriptor.
    let result = unsafe {
        let flags = libc::fcntl(file.as_raw_fd(), libc::F_GETFL);
        let flags = if direct { flags | libc::O_DIRECT } else { flags & !libc::O_DIRECT };
        libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reserves this part of a new file, so that its space never runs out later. False: the file system cannot, and leaves it sparse.
pub(crate) fn reserve(fd: RawFd, from: u64, bytes: u64) -> io::Result<bool> {
    // SAFETY: a plain system call on a descriptor that the caller holds.
    if unsafe { libc::fallocate(fd, 0, from as libc::off_t, bytes as libc::off_t) } == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        error if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) => Ok(false),
        error => Err(error),
    }
}

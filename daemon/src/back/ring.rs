//! The one io_uring of a volume: operations on both disks, readiness of all sockets and the timeout, in one wait.
//! Submissions are collected over a turn and handed in by the same system call that sleeps.

use std::io;
use std::os::fd::RawFd;

use io_uring::{IoUring, Probe, opcode, squeue, types};
use tidegate_engine::op::{Action, DeviceId, Limits, Op};
use tidegate_engine::time::{Duration, Instant};

use super::confine::restrict_ring;
use super::disk::{DEPTH, Disk, Kind as DiskKind};
use super::dock::{DISKS, Dock};
use super::flight::Command;
use super::run::Run;
use super::vigil::Vigil;
use crate::Failure;

use super::dock::{Happening, WatchKey};

/// Submissions of one system call; more are handed in between.
const ENTRIES: u32 = 256;
/// Completions that wait in the ring: all operations and many sockets. Beyond that the kernel keeps them.
const COMPLETIONS: u32 = 2048;

/// What is handed in at once: the device works on it while the rest of the turn is thought about.
const AT_ONCE_BYTES: u64 = 256 << 10;

const READABLE: usize = 0;
const WRITABLE: usize = 1;

/// A descriptor and what is wanted of it.
struct Watch {
    key: WatchKey,
    fd: RawFd,
    wanted: [bool; 2],
    /// A poll is in the kernel. One-shot, and put there again after each completion: so unread data wakes again.
    armed: [bool; 2],
    gone: bool,
}

/// Both disks, all sockets, one wait.
pub struct Ring {
    uring: IoUring,
    dock: Dock,
    watches: Vec<Watch>,
    free_watches: Vec<u32>,
    /// Watches that may want a poll at the next wait.
    to_arm: Vec<u32>,
    /// Bytes of what was queued since something was handed in.
    queued_bytes: u64,
    failed: Option<io::Error>,
    vigil: Vigil,
}

/// What a completion belongs to: the upper half of its user data; the lower is an index.
#[derive(Clone, Copy)]
enum Kind {
    Operation = 0,
    Readable = 1,
    Writable = 2,
    Ignored = 3,
}

fn user_data(kind: Kind, index: u32) -> u64 {
    (kind as u64) << 32 | u64::from(index)
}

impl Ring {
    /// # Errors
    /// One line: this kernel has no io_uring, forbids it, or lacks an operation.
    pub fn new(cache: Disk, origin: Disk) -> Result<Ring, Failure> {
        Ring::with(Ring::set_up()?, cache, origin)
    }

    /// A ring that can do what is asked of it here.
    ///
    /// # Errors
    /// As [`Ring::new`].
    pub(super) fn set_up() -> Result<IoUring, Failure> {
        let uring = build().map_err(|error| Failure::new(Failure::SYSTEM, no_ring(&error)))?;
        probe(&uring)?;
        Ok(uring)
    }

    pub(super) fn with(uring: IoUring, cache: Disk, origin: Disk) -> Result<Ring, Failure> {
        let failed = |error: io::Error| Failure::new(Failure::SYSTEM, format!("io_uring: the disks cannot be registered: {error}"));
        // A thread of the kernel's for every operation that needs one: a flush of the cache must not wait until operations of the
        // origin let go of theirs. Before Linux 5.15 there are four for each processor.
        let _ = uring.submitter().register_iowq_max_workers(&mut [(DISKS * DEPTH) as u32, 0]);
        uring.submitter().register_files(&[cache.fd(), origin.fd()]).map_err(failed)?;
        let discards = cache.kind() == DiskKind::Block && knows(&uring, opcode::UringCmd16::CODE);
        restrict_ring(&uring, discards)
            .map_err(|error| Failure::new(Failure::SYSTEM, format!("io_uring cannot be restricted: {error}")))?;
        Ok(Ring {
            uring,
            dock: Dock::new(cache, origin),
            watches: Vec::new(),
            free_watches: Vec::new(),
            to_arm: Vec::new(),
            queued_bytes: 0,
            failed: None,
            vigil: Vigil::default(),
        })
    }

    /// From now on it looks for so long before it sleeps, where that is worth it.
    pub fn poll(&mut self, most: Duration) {
        self.vigil = Vigil::new(most);
    }

    /// So many requests of clients have come.
    pub fn heard(&mut self, requests: usize) {
        self.vigil.heard(requests);
    }

    /// Of the cache and of the origin.
    pub fn limits(&self) -> [Limits; DISKS] {
        self.dock.limits()
    }

    pub fn disk(&self, device: DeviceId) -> &Disk {
        self.dock.disk(device)
    }

    pub fn alarm(&self) -> Option<&str> {
        self.dock.alarm()
    }

    /// Operations in flight on both disks.
    pub fn in_flight(&self) -> usize {
        self.dock.in_flight()
    }

    /// Queues an operation; the next [`Ring::wait`] hands it to the kernel, if it is not large.
    ///
    /// # Panics
    /// If more operations are in flight than [`Limits::depth`], or the span lies beyond the device.
    pub fn start(&mut self, now: Instant, op: Op<Run>) {
        self.queued_bytes += match &op.action {
            Action::Read(_, span) | Action::Write(_, span, _) => span.bytes(),
            Action::Zero(..) | Action::Discard(..) | Action::Allocation(..) | Action::Flush | Action::Spin(_) => 0,
        };
        self.dock.start(now, op);
        self.submit();
        if self.queued_bytes >= AT_ONCE_BYTES {
            self.hand_in();
        }
    }

    fn submit(&mut self) {
        while let Some((berth, command)) = self.dock.next() {
            let disk = self.dock.disk_of(berth);
            let entry = entry(command, types::Fixed(Dock::device(berth) as u32), disk.fd());
            let entry = if disk.sleeps() { entry.flags(squeue::Flags::ASYNC) } else { entry };
            self.push(&entry.user_data(user_data(Kind::Operation, berth)));
        }
    }

    fn push(&mut self, entry: &squeue::Entry) {
        loop {
            // SAFETY: what an operation's entry points to (the memory of its runs, its pieces) lies in its berth and stays there
            // unchanged until the completion was handled; `Drop` leaks it if that never comes. Polls and cancels point nowhere.
            if unsafe { self.uring.submission().push(entry) }.is_ok() {
                return;
            }
            // Full.
            if !self.hand_in() {
                return;
            }
        }
    }

    /// Hands in what is queued. False: it cannot be, and the next wait says why.
    fn hand_in(&mut self) -> bool {
        self.queued_bytes = 0;
        match self.uring.submit() {
            Ok(_) => true,
            Err(error) if is_passing(&error) => true,
            Err(error) => {
                self.failed.get_or_insert(error);
                false
            }
        }
    }

    /// Watches a descriptor from now on for what is wanted, instead of what was wanted before. Neither: not any more, and the
    /// caller may close it.
    pub fn watch(&mut self, key: WatchKey, fd: RawFd, readable: bool, writable: bool) {
        let known = self.watches.iter().position(|watch| watch.key == key && !watch.gone);
        let index = match (known, readable || writable) {
            (Some(index), true) => index,
            (Some(index), false) => return self.forget(index),
            (None, true) => self.new_watch(key, fd),
            (None, false) => return,
        };
        self.watches[index].wanted = [readable, writable];
        self.to_arm.push(index as u32);
    }

    fn new_watch(&mut self, key: WatchKey, fd: RawFd) -> usize {
        let watch = Watch { key, fd, wanted: [false; 2], armed: [false; 2], gone: false };
        match self.free_watches.pop() {
            Some(index) => {
                self.watches[index as usize] = watch;
                index as usize
            }
            None => {
                self.watches.push(watch);
                self.watches.len() - 1
            }
        }
    }

    fn forget(&mut self, index: usize) {
        let watch = &mut self.watches[index];
        watch.gone = true;
        watch.wanted = [false; 2];
        let armed = watch.armed;
        if armed == [false; 2] {
            return self.free_watches.push(index as u32);
        }
        for (way, kind) in [(READABLE, Kind::Readable), (WRITABLE, Kind::Writable)] {
            if armed[way] {
                let entry = opcode::PollRemove::new(user_data(kind, index as u32)).build();
                self.push(&entry.user_data(user_data(Kind::Ignored, 0)));
            }
        }
    }

    fn arm(&mut self) {
        while let Some(index) = self.to_arm.pop() {
            let watch = &mut self.watches[index as usize];
            let missing = [watch.wanted[READABLE] && !watch.armed[READABLE], watch.wanted[WRITABLE] && !watch.armed[WRITABLE]];
            watch.armed = [watch.armed[READABLE] || missing[READABLE], watch.armed[WRITABLE] || missing[WRITABLE]];
            let fd = types::Fd(watch.fd);
            for (way, kind, mask) in [(READABLE, Kind::Readable, libc::POLLIN), (WRITABLE, Kind::Writable, libc::POLLOUT)] {
                if missing[way] {
                    self.push(&opcode::PollAdd::new(fd, mask as u32).build().user_data(user_data(kind, index)));
                }
            }
        }
    }

    /// Hands in everything queued and sleeps until something happened, or `deadline` (at once if that has passed); appends what
    /// happened. `now` is the caller's clock.
    ///
    /// # Errors
    /// The ring itself failed: nothing can be done with this volume any more.
    pub fn wait(&mut self, now: Instant, deadline: Option<Instant>, happenings: &mut Vec<Happening>) -> io::Result<()> {
        self.arm();
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let deadline = self.dock.before_wait(now, deadline, happenings);
        self.enter(now, deadline)?;
        loop {
            let next = self.uring.completion().next();
            let Some(completion) = next else { break };
            self.complete(completion.user_data(), completion.result(), happenings);
        }
        Ok(())
    }

    fn enter(&mut self, now: Instant, deadline: Option<Instant>) -> io::Result<()> {
        self.queued_bytes = 0;
        let limit = deadline.map(|deadline| deadline.since(now));
        let ready = !self.uring.completion().is_empty() || limit != Some(Duration::ZERO) && self.has_happened_soon(limit)?;
        let Ring { uring, vigil, .. } = self;
        let result = match limit {
            // All of it was handed in before the look.
            _ if ready && uring.submission().is_empty() => Ok(0),
            _ if ready => uring.submit(),
            None => vigil.sleep(|| uring.submit_and_wait(1)),
            Some(Duration::ZERO) => uring.submit(),
            Some(Duration(ns)) => {
                let time = types::Timespec::new().sec(ns / 1_000_000_000).nsec((ns % 1_000_000_000) as u32);
                vigil.sleep(|| uring.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(&time)))
            }
        };
        match result {
            Ok(_) => Ok(()),
            Err(error) if is_passing(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Hands in what is queued, and looks for a while. The kernel says in the ring when there is something to be fetched.
    fn has_happened_soon(&mut self, limit: Option<Duration>) -> io::Result<bool> {
        let Ring { uring, vigil, .. } = self;
        let mut handed_in = false;
        let mut result = Ok(());
        let has_happened = vigil.look(limit.map(|Duration(ns)| std::time::Duration::from_nanos(ns)), || {
            if !std::mem::replace(&mut handed_in, true) || uring.submission().taskrun() {
                let queued = uring.submission().len() as u32;
                // SAFETY: no memory is passed but the ring's own; of what the entries point to, see `push`.
                result = match unsafe { uring.submitter().enter::<libc::sigset_t>(queued, 0, IORING_ENTER_GETEVENTS, None) } {
                    Err(error) if !is_passing(&error) => Err(error),
                    _ => Ok(()),
                };
            }
            result.is_err() || !uring.completion().is_empty()
        });
        result.map(|()| has_happened)
    }

    fn complete(&mut self, user_data: u64, result: i32, happenings: &mut Vec<Happening>) {
        let index = user_data as u32;
        match user_data >> 32 {
            kind if kind == Kind::Operation as u64 => {
                self.dock.landed(index, result, happenings);
                self.submit();
            }
            kind if kind == Kind::Readable as u64 => self.complete_poll(index, READABLE, result, happenings),
            kind if kind == Kind::Writable as u64 => self.complete_poll(index, WRITABLE, result, happenings),
            kind => assert_eq!(kind, Kind::Ignored as u64, "a completion of nothing"),
        }
    }

    fn complete_poll(&mut self, index: u32, way: usize, result: i32, happenings: &mut Vec<Happening>) {
        let watch = &mut self.watches[index as usize];
        watch.armed[way] = false;
        if watch.gone {
            if watch.armed == [false; 2] {
                self.free_watches.push(index);
            }
            return;
        }
        if !watch.wanted[way] {
            return; // withdrawn meanwhile; armed again when it is wanted again
        }
        self.to_arm.push(index);
        // An error or a hang-up is both: whatever the owner tries next tells it.
        let broken = result < 0 || result & i32::from(libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0;
        let happening = Happening::Ready { key: watch.key, readable: broken || way == READABLE, writable: broken || way == WRITABLE };
        happenings.push(happening);
    }

    /// Reports operations that take unusually long, each once. Call it when the wait has ended.
    pub fn look_for_late(&mut self, now: Instant, happenings: &mut Vec<Happening>) {
        self.dock.look_for_late(now, happenings);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The kernel may still read and write the memory of operations in flight: it is never given back.
        if self.in_flight() > 0 {
            return self.dock.leak();
        }
        // The kernel lets go of a ring's files some time later; nothing is in flight: the locks are free at once.
        let _ = self.uring.submitter().unregister_files();
    }
}

/// Completions are to be fetched too, and none is waited for.
const IORING_ENTER_GETEVENTS: u32 = 1;

/// Linux 6.12 and later; those before answer that they do not know it.
const BLOCK_URING_CMD_DISCARD: u32 = 0x1200;

/// `file` and `fd` are the same disk.
fn entry(command: Command, file: types::Fixed, fd: RawFd) -> squeue::Entry {
    match command {
        Command::Read { into, bytes, offset } => opcode::Read::new(file, into, bytes).offset(offset).build(),
        Command::Write { from, bytes, offset } => opcode::Write::new(file, from, bytes).offset(offset).build(),
        Command::WritePieces { pieces, count, offset } => opcode::Writev::new(file, pieces, count).offset(offset).build(),
        Command::Allocate { mode, bytes, offset } => opcode::Fallocate::new(file, bytes).offset(offset).mode(mode).build(),
        Command::Discard { bytes, offset } => {
            let mut command = [0; 16];
            command[..8].copy_from_slice(&bytes.to_ne_bytes());
            opcode::UringCmd16::new(file, BLOCK_URING_CMD_DISCARD).addr(Some(offset)).cmd(command).build()
        }
        // It takes no registered file.
        Command::Length { into } => {
            let asked = opcode::Statx::new(types::Fd(fd), c"".as_ptr(), into.cast());
            asked.flags(libc::AT_EMPTY_PATH).mask(libc::STATX_SIZE).build()
        }
        Command::Flush => opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build(),
    }
}

/// Errors of the system call that mean "look again", not "broken": the timeout, a signal, completions first, memory short for now.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN))
}

/// With everything that makes one thread's ring cheap, or without where the kernel is older.
fn build() -> io::Result<IoUring> {
    let mut plain = IoUring::builder();
    plain.setup_r_disabled().setup_cqsize(COMPLETIONS).setup_clamp().setup_submit_all();
    let mut shared = plain.clone();
    shared.setup_coop_taskrun().setup_taskrun_flag();
    let mut single = plain.clone();
    single.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
    let mut oldest = IoUring::builder();
    oldest.setup_r_disabled().setup_cqsize(COMPLETIONS).setup_clamp();
    let is_new = |error: &io::Error| error.raw_os_error() == Some(libc::EINVAL);
    let mut last = None;
    for builder in [single, shared, plain, oldest] {
        match builder.build(ENTRIES) {
            Ok(ring) => return Ok(ring),
            Err(error) if is_new(&error) => last = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(last.expect("each attempt ended with an error"))
}

fn probe(uring: &IoUring) -> Result<(), Failure> {
    let lacking = |what: &str| Failure::new(Failure::SYSTEM, format!("this kernel's io_uring lacks {what}; Linux 5.11 or newer is needed"));
    let parameters = uring.params();
    if !parameters.is_feature_nodrop() || !parameters.is_feature_submit_stable() || !parameters.is_feature_ext_arg() {
        return Err(lacking("timeouts of waits"));
    }
    let mut probe = Probe::new();
    uring.submitter().register_probe(&mut probe).map_err(|_| lacking("its probe"))?;
    let needed = [
        ("read", opcode::Read::CODE),
        ("write", opcode::Write::CODE),
        ("writev", opcode::Writev::CODE),
        ("fsync", opcode::Fsync::CODE),
        ("fallocate", opcode::Fallocate::CODE),
        ("statx", opcode::Statx::CODE),
        ("poll", opcode::PollAdd::CODE),
        ("poll removal", opcode::PollRemove::CODE),
    ];
    needed.iter().try_for_each(|(what, code)| if probe.is_supported(*code) { Ok(()) } else { Err(lacking(what)) })
}

/// Does this kernel know the operation?
fn knows(uring: &IoUring, code: u8) -> bool {
    let mut probe = Probe::new();
    uring.submitter().register_probe(&mut probe).is_ok() && probe.is_supported(code)
}

fn no_ring(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            format!("io_uring is forbidden here ({error}); allow it (sysctl kernel.io_uring_disabled, or the container's seccomp profile)")
        }
        Some(libc::ENOSYS) => format!("this kernel has no io_uring ({error}); Linux 5.11 or newer is needed"),
        Some(libc::ENOMEM) => format!("io_uring: not enough memory that may be locked ({error}); raise it with `ulimit -l`"),
        _ => format!("io_uring cannot be set up: {error}"),
    }
}

//! The back without io_uring: a few threads for each disk, whose system calls sleep in their stead, and one epoll for all sockets.
//!
//! ```text
//!   start ─▶ Queue of the disk ─▶ thread: pread, pwrite, fallocate, fdatasync ─▶ Landing ─▶ eventfd ─▶ wait
//! ```
//! Each disk has threads of its own: a flush of the cache never waits until operations of the origin let go of theirs.
//!
//! **The locks.** Every thread has the disk's descriptor, and a killed process keeps its descriptors until its last thread is gone: a thread
//! that sleeps in a command of the device's cannot be killed before that has ended. So here, too, the lock outlives the last I/O.

use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

use std::collections::{BTreeMap, VecDeque};

use tidegate_engine::op::{DeviceId, Limits, Op};
use tidegate_engine::time::{Duration, Instant};

use super::confine::BLKDISCARD;
use super::disk::{Disk, name};
use super::dock::{DISKS, Dock, Happening, WatchKey};
use super::flight::Command;
use super::run::Run;
use crate::Failure;

/// Threads of each disk: as deep as most SSDs want it; an HDD sorts its queue and gains little from more.
const THREADS: usize = 16;
/// A thread calls the kernel and little else.
const STACK_BYTES: usize = 128 << 10;
/// Ready descriptors of one wait; what is ready beyond that comes with the next one.
const READY_MAX: usize = 256;
/// Stands for the eventfd among the indexes of watches.
const WAKE: u64 = u64::MAX;

/// Both disks, all sockets, one wait.
pub struct Threads {
    dock: Dock,
    queues: [Arc<Queue>; DISKS],
    landing: Arc<Landing>,
    workers: Vec<JoinHandle<()>>,
    epoll: OwnedFd,
    /// By the number that epoll knows a descriptor by.
    watches: Vec<Option<Watch>>,
    known: BTreeMap<WatchKey, u32>,
    free_watches: Vec<u32>,
    ready: Vec<libc::epoll_event>,
    /// Kept from wait to wait for its memory only.
    landed: Vec<(u32, i32)>,
    failed: Option<io::Error>,
}

/// A descriptor and what is wanted of it, as epoll names that.
struct Watch {
    key: WatchKey,
    fd: RawFd,
    wanted: u32,
}

/// What a thread is to do, and for which berth.
struct Task {
    berth: u32,
    command: Command,
}

// SAFETY: the memory that the command names lies in its berth, where nobody touches it until the result has landed; it is leaked if that
// never happens (`Dock::leak`). Until then the thread that has the task is its only user.
unsafe impl Send for Task {}

/// The commands of one disk that no thread has taken yet.
#[derive(Default)]
struct Queue {
    tasks: Mutex<(VecDeque<Task>, Closed)>,
    filled: Condvar,
}

type Closed = bool;

impl Queue {
    fn tasks(&self) -> MutexGuard<'_, (VecDeque<Task>, Closed)> {
        self.tasks.lock().expect("nothing panics while it holds the queue")
    }

    /// The next task; none when the queue was closed.
    fn take(&self) -> Option<Task> {
        let mut tasks = self.tasks();
        loop {
            if tasks.1 {
                return None;
            }
            if let Some(task) = tasks.0.pop_front() {
                return Some(task);
            }
            tasks = self.filled.wait(tasks).expect("nothing panics while it holds the queue");
        }
    }

    fn push(&self, task: Task) {
        self.tasks().0.push_back(task);
        self.filled.notify_one();
    }

    /// What was not begun stays undone.
    fn close(&self) {
        self.tasks().1 = true;
        self.filled.notify_all();
    }
}

/// Results that the loop has not taken yet.
struct Landing {
    results: Mutex<Vec<(u32, i32)>>,
    /// Readable when there are any.
    wake: OwnedFd,
}

impl Landing {
    fn results(&self) -> MutexGuard<'_, Vec<(u32, i32)>> {
        self.results.lock().expect("nothing panics while it holds the results")
    }

    fn push(&self, berth: u32, result: i32) {
        let mut results = self.results();
        results.push((berth, result));
        if results.len() == 1 {
            self.ring_the_bell();
        }
    }

    fn ring_the_bell(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight bytes that live across the call, on our own descriptor. It blocks only at 2^64 - 1 unread ones.
        unsafe { libc::write(self.wake.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Moves all results to `to`.
    fn take(&self, to: &mut Vec<(u32, i32)>) {
        let mut results = self.results();
        let mut count = [0u8; 8];
        // SAFETY: eight bytes that live across the call, on our own descriptor, which never blocks.
        unsafe { libc::read(self.wake.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
        to.append(&mut results);
    }
}

impl Threads {
    /// # Errors
    /// One line: threads or descriptors cannot be had.
    pub fn new(cache: Disk, origin: Disk) -> Result<Threads, Failure> {
        let failed = |error: io::Error| Failure::new(Failure::SYSTEM, format!("threads for the disks cannot be set up: {error}"));
        let fds = [cache.duplicate().map_err(failed)?, origin.duplicate().map_err(failed)?];
        let wake = new_descriptor(|| {
            // SAFETY: no memory is passed.
            unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }
        });
        let landing = Arc::new(Landing { results: Mutex::default(), wake: wake.map_err(failed)? });
        let mut threads = Threads {
            dock: Dock::new(cache, origin),
            queues: Default::default(),
            landing,
            workers: Vec::new(),
            epoll: new_epoll().map_err(failed)?,
            watches: Vec::new(),
            known: BTreeMap::new(),
            free_watches: Vec::new(),
            ready: Vec::new(),
            landed: Vec::new(),
            failed: None,
        };
        threads.control(libc::EPOLL_CTL_ADD, threads.landing.wake.as_raw_fd(), libc::EPOLLIN as u32, WAKE).map_err(failed)?;
        for (device, fd) in fds.into_iter().enumerate() {
            let fd = Arc::new(fd);
            for number in 0..THREADS {
                let worker = threads.hire(device, number, Arc::clone(&fd)).map_err(failed)?;
                threads.workers.push(worker);
            }
        }
        Ok(threads)
    }

    fn hire(&self, device: usize, number: usize, fd: Arc<OwnedFd>) -> io::Result<JoinHandle<()>> {
        let (queue, landing) = (Arc::clone(&self.queues[device]), Arc::clone(&self.landing));
        let role = name([DeviceId::Cache, DeviceId::Origin][device]);
        std::thread::Builder::new().name(format!("{role}-{number}")).stack_size(STACK_BYTES).spawn(move || {
            while let Some(Task { berth, command }) = queue.take() {
                landing.push(berth, carry_out(command, fd.as_raw_fd()));
            }
        })
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

    /// Hands an operation to a thread.
    ///
    /// # Panics
    /// If more operations are in flight than [`Limits::depth`], or the span lies beyond the device.
    pub fn start(&mut self, now: Instant, op: Op<Run>) {
        self.dock.start(now, op);
        self.hand_out();
    }

    fn hand_out(&mut self) {
        while let Some((berth, command)) = self.dock.next() {
            self.queues[Dock::device(berth)].push(Task { berth, command });
        }
    }

    /// As [`super::ring::Ring::watch`].
    pub fn watch(&mut self, key: WatchKey, fd: RawFd, readable: bool, writable: bool) {
        let wanted = if readable { libc::EPOLLIN as u32 } else { 0 } | if writable { libc::EPOLLOUT as u32 } else { 0 };
        let result = match (self.known.get(&key).copied(), wanted) {
            (Some(index), 0) => {
                self.known.remove(&key);
                self.watches[index as usize] = None;
                self.free_watches.push(index);
                // It may be closed already, and epoll has forgotten it with that (or not: see `renew`). Whatever has its number by now, of another
                // thread's, is not in this epoll: each error says that nothing is to be done.
                let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
                Ok(())
            }
            (None, 0) => Ok(()),
            (Some(index), _) => {
                self.watches[index as usize] = Some(Watch { key, fd, wanted });
                self.control(libc::EPOLL_CTL_MOD, fd, wanted, u64::from(index))
            }
            (None, _) => {
                let index = self.free_watches.pop().unwrap_or_else(|| {
                    self.watches.push(None);
                    (self.watches.len() - 1) as u32
                });
                self.watches[index as usize] = Some(Watch { key, fd, wanted });
                self.known.insert(key, index);
                self.control(libc::EPOLL_CTL_ADD, fd, wanted, u64::from(index))
            }
        };
        if let Err(error) = result {
            self.failed.get_or_insert(error);
        }
    }

    fn control(&self, what: libc::c_int, fd: RawFd, events: u32, data: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events, u64: data };
        // SAFETY: the event lives across the call.
        match unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), what, fd, &raw mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// As [`super::ring::Ring::wait`].
    ///
    /// # Errors
    /// Nothing can be waited for any more.
    pub fn wait(&mut self, now: Instant, deadline: Option<Instant>, happenings: &mut Vec<Happening>) -> io::Result<()> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let deadline = self.dock.before_wait(now, deadline, happenings);
        self.sleep(deadline.map(|deadline| deadline.since(now)))?;
        let mut ready = std::mem::take(&mut self.ready);
        let mut stale = false;
        for event in ready.drain(..) {
            stale |= event.u64 != WAKE && !self.tell(event.u64 as usize, event.events, happenings);
        }
        self.ready = ready;
        if stale {
            self.renew()?;
        }
        // Whether the bell rang or not: what has landed by now need not wait for the next turn.
        let mut landed = std::mem::take(&mut self.landed);
        self.landing.take(&mut landed);
        for (berth, result) in landed.drain(..) {
            self.dock.landed(berth, result, happenings);
        }
        self.landed = landed;
        self.hand_out();
        Ok(())
    }

    /// Sleeps until something is ready, or for so long; rounded up to milliseconds, so that nobody is woken just before his time.
    fn sleep(&mut self, time: Option<Duration>) -> io::Result<()> {
        let milliseconds = time.map_or(-1, |Duration(ns)| i32::try_from(ns.div_ceil(1_000_000)).unwrap_or(i32::MAX));
        self.ready.reserve(READY_MAX);
        // SAFETY: there is room for `READY_MAX` events, and the kernel says how many of them it has filled.
        let result = unsafe {
            let count = libc::epoll_wait(self.epoll.as_raw_fd(), self.ready.as_mut_ptr(), READY_MAX as libc::c_int, milliseconds);
            if count < 0 {
                Err(io::Error::last_os_error())
            } else {
                self.ready.set_len(count as usize);
                Ok(())
            }
        };
        result.or_else(|error| if error.kind() == ErrorKind::Interrupted { Ok(()) } else { Err(error) })
    }

    /// Epoll knows a descriptor that was closed while another one still refers to the same socket (standard input and its copy): it can
    /// no longer be named. A new epoll does not know it.
    fn renew(&mut self) -> io::Result<()> {
        self.epoll = new_epoll()?;
        self.control(libc::EPOLL_CTL_ADD, self.landing.wake.as_raw_fd(), libc::EPOLLIN as u32, WAKE)?;
        let mut watches = self.watches.iter().enumerate().filter_map(|(index, watch)| Some((index, watch.as_ref()?)));
        watches.try_for_each(|(index, watch)| self.control(libc::EPOLL_CTL_ADD, watch.fd, watch.wanted, index as u64))
    }

    /// False: nobody watches that any more.
    fn tell(&self, index: usize, events: u32, happenings: &mut Vec<Happening>) -> bool {
        let Some(Some(watch)) = self.watches.get(index) else { return false };
        let is = |mask: libc::c_int| events & mask as u32 != 0;
        // An error or a hang-up is both: whatever the owner tries next tells it.
        let broken = is(libc::EPOLLERR | libc::EPOLLHUP);
        happenings.push(Happening::Ready { key: watch.key, readable: broken || is(libc::EPOLLIN), writable: broken || is(libc::EPOLLOUT) });
        true
    }

    /// Reports operations that take unusually long, each once. Call it when the wait has ended.
    pub fn look_for_late(&mut self, now: Instant, happenings: &mut Vec<Happening>) {
        self.dock.look_for_late(now, happenings);
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.queues.iter().for_each(|queue| queue.close());
        // A thread in the middle of a command may sleep for as long as the device likes: nobody waits for it, and its memory stays.
        if self.in_flight() > 0 {
            return self.dock.leak();
        }
        // All of them are idle: when they are gone, the locks are free.
        for worker in self.workers.drain(..) {
            worker.join().expect("a thread of a disk does nothing that panics");
        }
    }
}

fn new_epoll() -> io::Result<OwnedFd> {
    new_descriptor(|| {
        // SAFETY: no memory is passed.
        unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }
    })
}

fn new_descriptor(make: impl FnOnce() -> libc::c_int) -> io::Result<OwnedFd> {
    match make() {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: the descriptor was just made and has no other owner.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

/// Does what the command says, however long it takes. As io_uring does: a count of bytes, or a negative error number.
fn carry_out(command: Command, fd: RawFd) -> i32 {
    // SAFETY: the memory belongs to this command alone (see `Task`), and is as large as the command says. BLKDISCARD reads two numbers.
    let result = unsafe {
        match command {
            Command::Read { into, bytes, offset } => libc::pread(fd, into.cast(), bytes as usize, offset as libc::off_t),
            Command::Write { from, bytes, offset } => libc::pwrite(fd, from.cast(), bytes as usize, offset as libc::off_t),
            Command::WritePieces { pieces, count, offset } => libc::pwritev(fd, pieces, count as libc::c_int, offset as libc::off_t),
            Command::Allocate { mode, bytes, offset } => {
                libc::fallocate(fd, mode, offset as libc::off_t, bytes as libc::off_t) as libc::ssize_t
            }
            Command::Discard { bytes, offset } => {
                let range = [offset, bytes];
                libc::ioctl(fd, BLKDISCARD, range.as_ptr()) as libc::ssize_t
            }
            Command::Length { into } => libc::statx(fd, c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_SIZE, into) as libc::ssize_t,
            Command::Flush => libc::fdatasync(fd) as libc::ssize_t,
        }
    };
    if result >= 0 { result as i32 } else { -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) }
}

//! Both disks and all sockets in one wait: by io_uring, or, where that is forbidden or missing, by threads.

use std::io;
use std::os::fd::RawFd;

use tidegate_engine::op::{DeviceId, Limits, Op};
use tidegate_engine::time::{Duration, Instant};

use super::disk::Disk;
use super::dock::{DISKS, Happening, WatchKey};
use super::ring::Ring;
use super::run::Run;
use super::threads::Threads;
use crate::Failure;

/// Who carries operations to the disks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Carrier {
    /// io_uring where there is one, else threads.
    #[default]
    Auto,
    Uring,
    Threads,
}

impl Carrier {
    pub const ALL: [Carrier; 3] = [Carrier::Auto, Carrier::Uring, Carrier::Threads];

    /// What it comes to on this system, and if threads stand in for io_uring, why: one line for the operator.
    pub fn choose(self) -> (Carrier, Option<String>) {
        let Carrier::Auto = self else { return (self, None) };
        match Ring::set_up() {
            Ok(_) => (Carrier::Uring, None),
            Err(why) => (Carrier::Threads, Some(format!("{why}; threads serve the disks meanwhile, at more CPU time for each operation"))),
        }
    }

    /// As people name it.
    pub fn name(self) -> &'static str {
        match self {
            Carrier::Auto => "auto",
            Carrier::Uring => "uring",
            Carrier::Threads => "threads",
        }
    }
}

/// The back of a volume.
pub struct Io {
    means: Means,
}

enum Means {
    Ring(Box<Ring>),
    Threads(Box<Threads>),
}

impl Io {
    /// # Errors
    /// One line: what was asked for cannot be had here.
    pub fn new(cache: Disk, origin: Disk, carrier: Carrier) -> Result<Io, Failure> {
        let means = match carrier.choose().0 {
            Carrier::Threads => Means::Threads(Box::new(Threads::new(cache, origin)?)),
            Carrier::Uring | Carrier::Auto => Means::Ring(Box::new(Ring::new(cache, origin)?)),
        };
        Ok(Io { means })
    }

    /// Looks for so long before it sleeps, where that is worth it: a client that is answered asks again. Threads do not.
    pub fn poll(&mut self, most: Duration) {
        match &mut self.means {
            Means::Ring(ring) => ring.poll(most),
            Means::Threads(_) => {}
        }
    }

    /// So many requests of clients have come with the last wait: whether to look before the next one depends on it.
    pub fn heard(&mut self, requests: usize) {
        match &mut self.means {
            Means::Ring(ring) => ring.heard(requests),
            Means::Threads(_) => {}
        }
    }

    /// Who carries the operations, as [`Carrier::name`] names it.
    pub fn carrier(&self) -> Carrier {
        match &self.means {
            Means::Ring(_) => Carrier::Uring,
            Means::Threads(_) => Carrier::Threads,
        }
    }

    /// Of the cache and of the origin.
    pub fn limits(&self) -> [Limits; DISKS] {
        match &self.means {
            Means::Ring(ring) => ring.limits(),
            Means::Threads(threads) => threads.limits(),
        }
    }

    pub fn disk(&self, device: DeviceId) -> &Disk {
        match &self.means {
            Means::Ring(ring) => ring.disk(device),
            Means::Threads(threads) => threads.disk(device),
        }
    }

    /// What the operator must know of the disks now: one line, from the first time on.
    pub fn alarm(&self) -> Option<&str> {
        match &self.means {
            Means::Ring(ring) => ring.alarm(),
            Means::Threads(threads) => threads.alarm(),
        }
    }

    /// Operations in flight on both disks.
    pub fn in_flight(&self) -> usize {
        match &self.means {
            Means::Ring(ring) => ring.in_flight(),
            Means::Threads(threads) => threads.in_flight(),
        }
    }

    /// Begins an operation, at the latest in the next [`Io::wait`].
    ///
    /// # Panics
    /// If more operations are in flight than [`Limits::depth`], or the span lies beyond the device.
    pub fn start(&mut self, now: Instant, op: Op<Run>) {
        match &mut self.means {
            Means::Ring(ring) => ring.start(now, op),
            Means::Threads(threads) => threads.start(now, op),
        }
    }

    /// Watches a descriptor from now on for what is wanted, instead of what was wanted before. Neither: not any more, and the
    /// caller may close it.
    pub fn watch(&mut self, key: WatchKey, fd: RawFd, readable: bool, writable: bool) {
        match &mut self.means {
            Means::Ring(ring) => ring.watch(key, fd, readable, writable),
            Means::Threads(threads) => threads.watch(key, fd, readable, writable),
        }
    }

    /// Sleeps until something happened, or `deadline` (at once if that has passed); appends what happened. `now` is the caller's clock.
    ///
    /// # Errors
    /// Nothing can be done with this volume any more.
    pub fn wait(&mut self, now: Instant, deadline: Option<Instant>, happenings: &mut Vec<Happening>) -> io::Result<()> {
        match &mut self.means {
            Means::Ring(ring) => ring.wait(now, deadline, happenings),
            Means::Threads(threads) => threads.wait(now, deadline, happenings),
        }
    }

    /// Reports operations that take unusually long, each once. Call it when the wait has ended.
    pub fn look_for_late(&mut self, now: Instant, happenings: &mut Vec<Happening>) {
        match &mut self.means {
            Means::Ring(ring) => ring.look_for_late(now, happenings),
            Means::Threads(threads) => threads.look_for_late(now, happenings),
        }
    }
}

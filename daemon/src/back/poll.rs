//! Readiness of the lobby's descriptors: epoll, level-triggered, one wait for all of them.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use tidegate_engine::time::{Duration, Instant};

/// What one wait tells of at most; the rest comes with the next.
pub const READY_MAX: usize = 256;
/// Tokens have so many bits, ports the rest.
const TOKEN_BITS: u32 = 60;

/// A descriptor that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    pub port: u32,
    pub token: u64,
    pub readable: bool,
    pub writable: bool,
}

pub struct Poll {
    epoll: OwnedFd,
    watched: HashSet<RawFd>,
}

impl Poll {
    pub fn new() -> io::Result<Poll> {
        // SAFETY: a plain system call.
        match unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) } {
            -1 => Err(io::Error::last_os_error()),
            // SAFETY: just made, and ours alone.
            fd => Ok(Poll { epoll: unsafe { OwnedFd::from_raw_fd(fd) }, watched: HashSet::new() }),
        }
    }

    /// Watches a descriptor from now on for what is wanted, instead of what was wanted before. Neither: not any more, and the
    /// caller may close it.
    ///
    /// # Errors
    /// Out of memory or of watches.
    pub fn watch(&mut self, port: u32, token: u64, fd: RawFd, readable: bool, writable: bool) -> io::Result<()> {
        assert!(port < 1 << (u64::BITS - TOKEN_BITS) && token < 1 << TOKEN_BITS, "port {port}, token {token}");
        let events = if readable { libc::EPOLLIN } else { 0 } | if writable { libc::EPOLLOUT } else { 0 };
        let is_known = self.watched.contains(&fd);
        let operation = match (is_known, readable || writable) {
            (false, false) => return Ok(()),
            (true, false) => libc::EPOLL_CTL_DEL,
            (true, true) => libc::EPOLL_CTL_MOD,
            (false, true) => libc::EPOLL_CTL_ADD,
        };
        let mut event = libc::epoll_event { events: events as u32, u64: u64::from(port) << TOKEN_BITS | token };
        // SAFETY: the event lives across the call, which keeps no pointer to it.
        let result = unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, fd, &raw mut event) };
        if operation == libc::EPOLL_CTL_DEL {
            // It may be closed already: then the kernel has forgotten it by itself.
            self.watched.remove(&fd);
            return Ok(());
        }
        if result == -1 {
            return Err(io::Error::last_os_error());
        }
        self.watched.insert(fd);
        Ok(())
    }

    /// Sleeps until something is ready, or `deadline` (at once if that has passed); appends what is.
    pub fn wait(&mut self, now: Instant, deadline: Option<Instant>, ready: &mut Vec<Ready>) -> io::Result<()> {
        // Rounded up: a wait that ends too early would only be begun again.
        let milliseconds = deadline.map(|deadline| deadline.since(now)).map(|Duration(ns)| ns.div_ceil(1_000_000));
        let timeout = milliseconds.map_or(-1, |milliseconds| milliseconds.min(i32::MAX as u64) as i32);
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; READY_MAX];
        // SAFETY: the array has the length that is passed.
        let count = unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), READY_MAX as i32, timeout) };
        if count < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) };
        }
        ready.extend(events[..count as usize].iter().map(|event| {
            let (events, data) = (event.events as i32, event.u64);
            // An error or a hang-up is both: whatever the owner tries next tells it.
            let broken = events & (libc::EPOLLERR | libc::EPOLLHUP) != 0;
            Ready {
                port: (data >> TOKEN_BITS) as u32,
                token: data & ((1 << TOKEN_BITS) - 1),
                readable: broken || events & libc::EPOLLIN != 0,
                writable: broken || events & libc::EPOLLOUT != 0,
            }
        }));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    #[test]
    fn what_is_wanted_is_told_as_long_as_it_lasts_and_nothing_else() {
        let mut poll = Poll::new().unwrap();
        let (mut near, far) = UnixStream::pair().unwrap();
        let look = |poll: &mut Poll| {
            let mut ready = Vec::new();
            poll.wait(Instant::ZERO, Some(Instant::ZERO), &mut ready).unwrap();
            ready
        };
        let fd = far.as_raw_fd();
        poll.watch(3, 7, fd, true, false).unwrap();
        assert_eq!(look(&mut poll), []);
        near.write_all(b"tide").unwrap();
        let ready = Ready { port: 3, token: 7, readable: true, writable: false };
        assert_eq!((look(&mut poll), look(&mut poll)), (vec![ready], vec![ready]), "it is not read yet");
        poll.watch(3, 8, fd, false, true).unwrap();
        assert_eq!(look(&mut poll), [Ready { token: 8, readable: false, writable: true, ..ready }]);
        poll.watch(3, 8, fd, false, false).unwrap();
        drop(near);
        assert_eq!(look(&mut poll), [], "not even of its end");
        poll.watch(3, 9, fd, true, false).unwrap();
        assert_eq!(look(&mut poll), [Ready { token: 9, readable: true, writable: true, ..ready }]);
    }

    #[test]
    fn a_descriptor_that_was_closed_before_it_was_told_can_be_used_again() {
        let mut poll = Poll::new().unwrap();
        for token in 0..20 {
            let (mut near, far) = UnixStream::pair().unwrap();
            near.write_all(b"tide").unwrap();
            let fd = far.as_raw_fd();
            poll.watch(0, token, fd, true, false).unwrap();
            let mut ready = Vec::new();
            poll.wait(Instant::ZERO, Some(Instant::ZERO), &mut ready).unwrap();
            assert_eq!(ready.iter().map(|ready| ready.token).collect::<Vec<_>>(), [token], "the same number, another socket");
            drop(far);
            poll.watch(0, token, fd, false, false).unwrap();
        }
    }
}

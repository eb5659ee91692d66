//! Which of many sockets have been closed at their other end, whatever still lies in them: one question for all of them, from any thread.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// One question tells of so many at most.
const FOUND_MAX: usize = 16;

pub struct Hangups {
    epoll: OwnedFd,
}

impl Hangups {
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Hangups> {
        // SAFETY: a plain system call.
        match unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) } {
            -1 => Err(io::Error::last_os_error()),
            // SAFETY: just made, and ours alone.
            fd => Ok(Hangups { epoll: unsafe { OwnedFd::from_raw_fd(fd) } }),
        }
    }

    /// Tells of this socket from now on, by this token, until it is closed here or forgotten. `either`: also where only nothing more comes.
    ///
    /// # Errors
    /// Out of memory or of watches.
    pub fn watch(&self, token: u64, fd: RawFd, either: bool) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, token, fd, if either { libc::EPOLLRDHUP } else { 0 })
    }

    /// One that is not watched: nothing.
    pub fn forget(&self, fd: RawFd) {
        let _ = self.control(libc::EPOLL_CTL_DEL, 0, fd, 0);
    }

    /// Of a hang-up of both ways epoll tells in any case.
    fn control(&self, operation: libc::c_int, token: u64, fd: RawFd, events: libc::c_int) -> io::Result<()> {
        let mut event = libc::epoll_event { events: events as u32, u64: token };
        // SAFETY: the event lives across the call, which keeps no pointer to it.
        match unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, fd, &raw mut event) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    /// Some of those of which that is so: of none only if there is none.
    pub fn found(&self) -> Vec<u64> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; FOUND_MAX];
        // SAFETY: the array has the length that is passed. It fails only where a signal comes first, and that is no answer.
        let count = loop {
            match unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), FOUND_MAX as i32, 0) } {
                -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                count => break usize::try_from(count).expect("the kernel has made this epoll"),
            }
        };
        events[..count].iter().map(|event| event.u64).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;

    #[test]
    fn who_has_closed_is_told_whatever_lies_in_the_socket_until_that_is_forgotten() {
        let hangups = Hangups::new().expect("a descriptor");
        let (mut clients, sockets): (Vec<_>, Vec<_>) = (0..3).map(|_| UnixStream::pair().expect("a pair")).unzip();
        let watch = |(token, socket): (u64, &UnixStream)| hangups.watch(token, socket.as_raw_fd(), token != 5).expect("a socket");
        (5..).zip(&sockets).for_each(watch);
        clients.iter_mut().for_each(|client| client.write_all(b"tide").expect("it fits"));
        assert_eq!(hangups.found(), [0; 0], "it has only something to say");
        drop(clients.remove(1));
        assert_eq!((hangups.found(), hangups.found()), (vec![6], vec![6]));
        clients.iter().for_each(|client| client.shutdown(Shutdown::Write).expect("it is open"));
        let mut both = hangups.found();
        both.sort_unstable();
        assert_eq!(both, [6, 7], "of the first one only its end is wanted");
        hangups.forget(sockets[1].as_raw_fd());
        hangups.forget(sockets[1].as_raw_fd());
        assert_eq!(hangups.found(), [7]);
        drop(clients.remove(0));
        assert_eq!(hangups.found().len(), 2);
        drop(sockets);
        assert_eq!(hangups.found(), [0; 0]);
    }
}

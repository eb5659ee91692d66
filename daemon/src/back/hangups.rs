//! Which of many sockets have been closed at their other end, whatever still lies in them: one question for all of them, from any thread. Of few
//! each is looked at; epoll, which is for many, is called for every message that comes to any of them.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{PoisonError, RwLock};

/// Up to so many are looked at one by one. One question tells of so many at most.
const FEW: usize = 16;

pub struct Hangups {
    /// Watches all, where there are many.
    epoll: OwnedFd,
    watched: RwLock<Vec<Watched>>,
}

#[derive(Clone, Copy)]
struct Watched {
    token: u64,
    fd: RawFd,
    /// Besides a hang-up of both ways, which is told in any case.
    events: libc::c_int,
}

impl Hangups {
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Hangups> {
        // SAFETY: a plain system call.
        match unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) } {
            -1 => Err(io::Error::last_os_error()),
            // SAFETY: just made, and ours alone.
            fd => Ok(Hangups { epoll: unsafe { OwnedFd::from_raw_fd(fd) }, watched: RwLock::default() }),
        }
    }

    /// Tells of this socket from now on, by this token, until it is forgotten, which is before it is closed here. `either`: also where only nothing
    /// more comes.
    ///
    /// # Errors
    /// Out of memory or of watches: it is to be forgotten.
    pub fn watch(&self, token: u64, fd: RawFd, either: bool) -> io::Result<()> {
        let new = Watched { token, fd, events: if either { libc::EPOLLRDHUP } else { 0 } };
        let mut watched = self.watched.write().unwrap_or_else(PoisonError::into_inner);
        watched.push(new);
        match watched.len() {
            ..=FEW => Ok(()),
            count if count == FEW + 1 => watched.iter().try_for_each(|socket| self.control(libc::EPOLL_CTL_ADD, socket)),
            _ => self.control(libc::EPOLL_CTL_ADD, &new),
        }
    }

    /// One that is not watched: nothing.
    pub fn forget(&self, fd: RawFd) {
        let mut watched = self.watched.write().unwrap_or_else(PoisonError::into_inner);
        let Some(place) = watched.iter().position(|socket| socket.fd == fd) else { return };
        let unwatch = |socket: &Watched| drop(self.control(libc::EPOLL_CTL_DEL, socket));
        let was_many = watched.len() > FEW;
        let gone = watched.swap_remove(place);
        if was_many {
            unwatch(&gone);
        }
        if was_many && watched.len() == FEW {
            watched.iter().for_each(unwatch);
        }
    }

    fn control(&self, operation: libc::c_int, socket: &Watched) -> io::Result<()> {
        let mut event = libc::epoll_event { events: socket.events as u32, u64: socket.token };
        // SAFETY: the event lives across the call, which keeps no pointer to it.
        match unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, socket.fd, &raw mut event) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    /// Some of those of which that is so: of none only if there is none.
    pub fn found(&self) -> Vec<u64> {
        let watched = self.watched.read().unwrap_or_else(PoisonError::into_inner);
        if watched.len() <= FEW { look(&watched) } else { self.ask() }
    }

    /// How many are watched.
    pub fn count(&self) -> usize {
        self.watched.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn ask(&self) -> Vec<u64> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; FEW];
        let count = retry(|| {
            // SAFETY: the array has the length that is passed.
            unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), FEW as i32, 0) }
        });
        events[..count].iter().map(|event| event.u64).collect()
    }
}

fn look(watched: &[Watched]) -> Vec<u64> {
    let mut sockets = [libc::pollfd { fd: -1, events: 0, revents: 0 }; FEW];
    for (socket, watched) in sockets.iter_mut().zip(watched) {
        (socket.fd, socket.events) = (watched.fd, watched.events as libc::c_short);
    }
    let count = retry(|| {
        // SAFETY: the array is at least of the length that is passed.
        unsafe { libc::poll(sockets.as_mut_ptr(), watched.len() as libc::nfds_t, 0) }
    });
    let closed = |socket: &libc::pollfd| socket.revents & (libc::POLLHUP | libc::POLLERR | libc::POLLRDHUP) != 0;
    let found = sockets.iter().zip(watched).filter(|(socket, _)| closed(socket)).map(|(_, watched)| watched.token);
    if count == 0 { Vec::new() } else { found.collect() }
}

/// A question that fails only where a signal comes first, which is no answer.
fn retry(mut ask: impl FnMut() -> libc::c_int) -> usize {
    loop {
        match ask() {
            -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            count => return usize::try_from(count).expect("the kernel has answered it before"),
        }
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
        sockets.iter().for_each(|socket| hangups.forget(socket.as_raw_fd()));
        assert_eq!(hangups.found(), [0; 0]);
    }

    #[test]
    fn of_many_the_same_is_told_as_of_few() {
        let hangups = Hangups::new().expect("a descriptor");
        let (mut clients, sockets): (Vec<_>, Vec<_>) = (0..=FEW).map(|_| UnixStream::pair().expect("a pair")).unzip();
        for round in 0..3 {
            (0..).zip(&sockets).for_each(|(token, socket)| hangups.watch(token, socket.as_raw_fd(), false).expect("a socket"));
            let found = |hangups: &Hangups| {
                let mut found = hangups.found();
                found.sort_unstable();
                found
            };
            assert_eq!(found(&hangups).len(), round);
            drop(clients.pop());
            let gone: Vec<u64> = (clients.len()..=FEW).map(|token| token as u64).collect();
            assert_eq!(found(&hangups), gone, "of {} of them", sockets.len());
            hangups.forget(sockets[0].as_raw_fd());
            assert_eq!(found(&hangups), gone, "of one less");
            sockets.iter().for_each(|socket| hangups.forget(socket.as_raw_fd()));
        }
    }
}

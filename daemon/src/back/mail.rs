//! Messages between threads that sleep on descriptors: a bounded channel, and a bell (an eventfd) that wakes who receives. Sending never waits,
//! unless the message must not get lost.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvError, SyncSender, TryIter, sync_channel};

/// Wakes a thread that watches its descriptor. Its clones are the same bell.
#[derive(Clone)]
pub struct Bell {
    eventfd: Arc<File>,
    /// Somebody has rung it, or is about to: a system call less for everybody else.
    rings: Arc<AtomicBool>,
}

impl Bell {
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Bell> {
        // SAFETY: a plain system call.
        let eventfd = match unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) } {
            -1 => return Err(io::Error::last_os_error()),
            // SAFETY: just made, and ours alone.
            fd => Arc::new(unsafe { File::from_raw_fd(fd) }),
        };
        Ok(Bell { eventfd, rings: Arc::default() })
    }

    /// Readable from the first [`Bell::ring`] to [`Bell::silence`].
    pub fn fd(&self) -> RawFd {
        self.eventfd.as_raw_fd()
    }

    /// What was done before this, whoever silences the bell finds.
    pub fn ring(&self) {
        if !self.rings.swap(true, Ordering::AcqRel) {
            // It fails only where it rings already, too often to count.
            let _ = (&*self.eventfd).write(&1u64.to_ne_bytes());
        }
    }

    /// To be called before looking for what it rang for: what comes in between rings again.
    pub fn silence(&self) {
        // In this order: the other way round a ring in between would be taken from the descriptor, and nobody would ring again.
        // It does not ring: nothing to take.
        let _ = (&*self.eventfd).read(&mut [0; 8]);
        self.rings.swap(false, Ordering::AcqRel);
    }
}

/// Where messages go in; its clones are the same mailbox.
pub struct Sender<T> {
    channel: SyncSender<T>,
    bell: Bell,
}

/// Where they come out.
pub struct Mailbox<T> {
    channel: Receiver<T>,
    bell: Bell,
}

/// A mailbox for `most` messages.
pub fn mailbox<T>(most: usize) -> io::Result<(Sender<T>, Mailbox<T>)> {
    let bell = Bell::new()?;
    let (sender, receiver) = sync_channel(most);
    Ok((Sender { channel: sender, bell: bell.clone() }, Mailbox { channel: receiver, bell }))
}

impl<T> Sender<T> {
    /// Sends and wakes. False: nobody receives any more, or the mailbox is full; the message is dropped.
    pub fn send(&self, message: T) -> bool {
        let sent = self.channel.try_send(message).is_ok();
        self.bell.ring();
        sent
    }

    /// The same, but waits while the mailbox is full: for who receives without ever waiting for the sender. False: nobody receives any more.
    pub fn insist(&self, message: T) -> bool {
        let sent = self.channel.send(message).is_ok();
        self.bell.ring();
        sent
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Sender { channel: self.channel.clone(), bell: self.bell.clone() }
    }
}

impl<T> Mailbox<T> {
    /// Readable when there is something.
    pub fn fd(&self) -> RawFd {
        self.bell.fd()
    }

    /// Everything that has come.
    pub fn take(&mut self) -> TryIter<'_, T> {
        self.bell.silence();
        self.channel.try_iter()
    }

    /// Waits for the next message.
    ///
    /// # Errors
    /// Nobody can send one any more.
    pub fn wait(&mut self) -> Result<T, RecvError> {
        self.channel.recv()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rings<T>(mailbox: &Mailbox<T>) -> bool {
        let mut fd = libc::pollfd { fd: mailbox.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid structure.
        let ready = unsafe { libc::poll(&raw mut fd, 1, 0) };
        ready == 1
    }

    #[test]
    fn the_bell_rings_until_the_mail_is_taken_and_never_too_little() {
        let (sender, mut mailbox) = mailbox(8).unwrap();
        assert!(!rings(&mailbox));
        for number in 0..3 {
            assert!(sender.clone().send(number));
        }
        assert!(rings(&mailbox));
        assert_eq!(mailbox.take().collect::<Vec<_>>(), [0, 1, 2]);
        assert!(!rings(&mailbox));
        let other = std::thread::spawn(move || (0..8).filter(|number| sender.send(*number)).count());
        assert_eq!(other.join().unwrap(), 8);
        assert!(rings(&mailbox));
        assert_eq!(mailbox.take().count(), 8);
        assert!(mailbox.wait().is_err(), "nobody can send any more");
    }

    #[test]
    fn a_full_mailbox_and_one_that_is_gone_take_nothing_and_nobody_waits() {
        let (sender, mut mailbox) = mailbox(2).unwrap();
        assert_eq!([0, 1, 2, 3].map(|number| sender.send(number)), [true, true, false, false]);
        assert_eq!(mailbox.take().count(), 2);
        drop(mailbox);
        assert!(!sender.send(4) && !sender.insist(5));
    }

    #[test]
    fn what_is_insisted_on_gets_into_a_full_mailbox_as_soon_as_it_is_emptied() {
        let (sender, mut mailbox) = mailbox(1).unwrap();
        assert!(sender.send(0));
        let other = std::thread::spawn(move || sender.insist(1));
        let mut got = Vec::new();
        while got.len() < 2 {
            got.extend(mailbox.take());
            std::thread::yield_now();
        }
        assert_eq!((got, other.join().unwrap()), (vec![0, 1], true));
    }
}

//! Messages between threads that sleep on descriptors: a bounded channel, and an eventfd that wakes who receives. Sending never waits.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvError, SyncSender, TryIter, sync_channel};

/// Where messages go in; its clones are the same mailbox.
pub struct Sender<T> {
    channel: SyncSender<T>,
    bell: Arc<File>,
}

/// Where they come out.
pub struct Mailbox<T> {
    channel: Receiver<T>,
    bell: Arc<File>,
}

/// A mailbox for `most` messages.
pub fn mailbox<T>(most: usize) -> io::Result<(Sender<T>, Mailbox<T>)> {
    // SAFETY: a plain system call.
    let bell = match unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) } {
        -1 => return Err(io::Error::last_os_error()),
        // SAFETY: just made, and ours alone.
        fd => Arc::new(unsafe { File::from_raw_fd(fd) }),
    };
    let (sender, receiver) = sync_channel(most);
    Ok((Sender { channel: sender, bell: Arc::clone(&bell) }, Mailbox { channel: receiver, bell }))
}

impl<T> Sender<T> {
    /// Sends and wakes. False: nobody receives any more, or the mailbox is full; the message is dropped.
    pub fn send(&self, message: T) -> bool {
        let sent = self.channel.try_send(message).is_ok();
        // It fails only where it rings already, too often to count.
        let _ = (&*self.bell).write(&1u64.to_ne_bytes());
        sent
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Sender { channel: self.channel.clone(), bell: Arc::clone(&self.bell) }
    }
}

impl<T> Mailbox<T> {
    /// Readable when there is something.
    pub fn fd(&self) -> RawFd {
        self.bell.as_raw_fd()
    }

    /// Everything that has come.
    pub fn take(&mut self) -> TryIter<'_, T> {
        // First the bell, then the messages: what comes in between rings again. It does not ring: nothing to silence.
        let _ = (&*self.bell).read(&mut [0; 8]);
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
        assert!(!sender.send(4));
    }
}

//! SIGTERM, SIGINT and SIGHUP as a descriptor in the volume's one loop; SIGPIPE and SIGXFSZ are nobody's business.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};

/// Who writes beyond the size that files may have (`ulimit -f`) hears EFBIG, and is not ended by it: an origin that is larger would end its daemon
/// with each start. For all threads, and before anything is written.
pub fn survive_file_size_limit() {
    // SAFETY: a plain system call; no handler of ours is replaced, and none runs.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// The signals that stop a volume, as they arrive.
pub struct Signals {
    file: File,
}

impl Signals {
    /// From here on these signals do not interrupt: they are read. Call it before any thread is started, so that none takes them. One that whoever
    /// started us has us ignore (`nohup`, `&` in a script) stays ignored: blocked, it would be read all the same.
    pub fn take() -> io::Result<Signals> {
        // SAFETY: plain system calls. The set is initialised by sigemptyset before it is used; an action of zeros is a valid one, and is written
        // over.
        unsafe {
            libc::signal(libc::SIGPIPE, libc::SIG_IGN);
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
                let mut action: libc::sigaction = std::mem::zeroed();
                if libc::sigaction(signal, std::ptr::null(), &mut action) != 0 {
                    return Err(io::Error::last_os_error());
                }
                if action.sa_sigaction != libc::SIG_IGN {
                    libc::sigaddset(&mut set, signal);
                }
            }
            let errno = libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            if errno != 0 {
                return Err(io::Error::from_raw_os_error(errno));
            }
            match libc::signalfd(-1, &set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC) {
                -1 => Err(io::Error::last_os_error()),
                // Ours alone.
                fd => Ok(Signals { file: File::from_raw_fd(fd) }),
            }
        }
    }

    /// Readable when a signal has come.
    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

/// The signals that have come and were not taken yet; none is not the end.
impl Iterator for Signals {
    type Item = i32;

    fn next(&mut self) -> Option<i32> {
        let mut info = [0; size_of::<libc::signalfd_siginfo>()];
        self.file.read_exact(&mut info).ok()?;
        // The structure starts with the signal's number.
        Some(u32::from_ne_bytes(info[..4].try_into().expect("four bytes")) as i32)
    }
}

/// A thread that blocks signals and reads them, for tests.
#[cfg(test)]
#[derive(Clone, Copy)]
pub struct Receiving(libc::pthread_t);

#[cfg(test)]
impl Receiving {
    pub fn here() -> Receiving {
        // SAFETY: a question about this thread.
        Receiving(unsafe { libc::pthread_self() })
    }

    /// The thread must not have ended.
    pub fn send(self, signal: libc::c_int) {
        // SAFETY: by the caller's word it is there. A signal that it does not block ends the process, and harms no memory.
        assert_eq!(unsafe { libc::pthread_kill(self.0, signal) }, 0);
    }
}

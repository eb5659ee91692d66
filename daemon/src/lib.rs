//! The real world of volumes. Each has a thread of its own with one wait: io_uring behind its engine, the sockets of its clients in front of
//! it. One more thread, the lobby, has everything that there is once: listeners, handshakes, the control socket, signals.

#![deny(clippy::print_stderr, clippy::print_stdout)]

pub mod advice;
mod alarm;
pub mod back;
pub mod check;
pub mod control;
pub mod create;
mod desk;
pub mod detach;
pub mod dirty;
pub mod front;
pub mod grow;
pub mod lobby;
pub mod port;
pub mod probe;
mod ram;
mod recorder;
pub mod sleeper;
mod socket_file;
pub mod state;
pub mod volume;
pub mod wear;
pub mod whole;

use std::fmt;

use advice::Reach;

/// Says a line to whoever reads standard error. Nobody may: the pipe is closed, or the disk of the log full. That ends no volume.
#[macro_export]
macro_rules! tell {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($words)*);
    }};
}

/// Why something an operator asked for was not done: one line that says what, where and what to do, and the exit code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub message: String,
    /// As in sysexits.h; see the constants.
    pub code: u8,
}

impl Failure {
    /// What is stored is damaged.
    pub const DAMAGED: u8 = 65;
    /// An input does not exist or cannot be read.
    pub const NO_INPUT: u8 = 66;
    /// A bug of ours: an invariant does not hold.
    pub const BUG: u8 = 70;
    /// The system refused what every Linux of this age grants (memory, io_uring).
    pub const SYSTEM: u8 = 71;
    /// A file could not be created.
    pub const NOT_CREATED: u8 = 73;
    /// A device failed.
    pub const IO: u8 = 74;
    /// In use by somebody: later, it may work.
    pub const BUSY: u8 = 75;
    /// No permission.
    pub const PERMISSION: u8 = 77;
    /// What is configured or found on the devices is not what this program may touch.
    pub const REFUSED: u8 = 78;

    pub fn new(code: u8, message: impl Into<String>) -> Failure {
        Failure { message: message.into(), code }
    }

    /// The same; the commands that it advises mean the volume that these flags reach.
    pub fn reaching(self, reach: &Reach) -> Failure {
        Failure { message: reach.complete(&self.message), ..self }
    }

    /// The same, of one of several volumes.
    fn of(self, volume: &str) -> Failure {
        Failure { message: format!("volume {volume:?}: {}", self.message), ..self }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

//! Databases on a file system on the device. The database server is killed, the daemon is killed, both are: every transaction that was
//! committed is there, none is there in part, and the database's own checks find nothing.

mod postgres;
mod sqlite;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

/// Who is killed in the middle of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Server,
    Daemon,
    Both,
}

const VICTIMS: [Victim; 3] = [Victim::Daemon, Victim::Server, Victim::Both];

/// A command-line client that is told transactions and says when each is committed.
struct Session {
    child: Child,
    input: ChildStdin,
    output: std::io::Lines<BufReader<ChildStdout>>,
}

impl Session {
    /// `command` reads statements from its input. Its output is passed on line by line.
    fn start(mut command: Command) -> Session {
        let program = command.get_program().to_owned();
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut child = child.unwrap_or_else(|error| panic!("{}: {error}; scripts/setup.sh installs it", program.display()));
        let (input, output) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        Session { child, input, output: BufReader::new(output).lines() }
    }

    /// Has it committed this? `statements` end by printing `number`. No: somebody was killed.
    fn commits(&mut self, statements: &str, number: u64) -> bool {
        if self.input.write_all(statements.as_bytes()).and_then(|()| self.input.flush()).is_err() {
            return false;
        }
        let number = number.to_string();
        self.output.by_ref().map_while(Result::ok).any(|line| line == number)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // It has ended, or is to end in the middle of what it does.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Counts commits of all sessions and says who makes the last one.
struct Fuse(AtomicU64);

impl Fuse {
    fn burns_down(&self) -> bool {
        self.0.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

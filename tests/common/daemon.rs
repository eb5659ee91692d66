//! A running daemon: started, waited for, stopped or killed, and never left behind.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use super::nbd::Client;
use super::{text, tool};

/// How long a start or a stop may take before a test calls the daemon stuck.
const PATIENCE: Duration = Duration::from_secs(120);

pub struct Daemon {
    child: Child,
    dir: PathBuf,
    /// What it prints; ends when the process ends.
    lines: Receiver<String>,
    stderr: File,
    /// From its `ready:` line.
    pub uri: String,
    /// What it printed before that line.
    pub greeting: Vec<String>,
}

impl Daemon {
    /// Its folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// `tidegate up --dir DIR`, ready to serve.
    pub fn up(dir: &Path) -> Daemon {
        Daemon::start(dir, &["up", "--dir", text(dir)])
    }

    /// The same with another carrier of operations than the default.
    pub fn up_by(dir: &Path, carrier: &str) -> Daemon {
        Daemon::start(dir, &["up", "--dir", text(dir), "--io", carrier])
    }

    /// Starts the program with `arguments` and waits for its `ready:` line.
    pub fn start(dir: &Path, arguments: &[&str]) -> Daemon {
        Daemon::start_by(env!("CARGO_BIN_EXE_tidegate"), dir, arguments)
    }

    /// The same through another program that becomes ours.
    pub fn start_by(program: &str, dir: &Path, arguments: &[&str]) -> Daemon {
        let mut daemon = Daemon::launch_by(program, dir, arguments);
        assert!(daemon.becomes_ready(), "{arguments:?} is not ready; it said: {}", daemon.said());
        daemon
    }

    /// Starts the program with `arguments`, and waits for nothing.
    pub fn launch(dir: &Path, arguments: &[&str]) -> Daemon {
        Daemon::launch_by(env!("CARGO_BIN_EXE_tidegate"), dir, arguments)
    }

    fn launch_by(program: &str, dir: &Path, arguments: &[&str]) -> Daemon {
        let stderr = tempfile::tempfile().unwrap();
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr.try_clone().unwrap())
            .spawn()
            .expect("the built program starts");
        let lines = lines_of(child.stdout.take().expect("piped"));
        Daemon { child, dir: dir.to_owned(), lines, stderr, uri: String::new(), greeting: Vec::new() }
    }

    /// Waits for its `ready:` line. False: it ends without one.
    pub fn becomes_ready(&mut self) -> bool {
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => match line.strip_prefix("ready: ") {
                    Some(uri) => {
                        self.uri = uri.to_owned();
                        return true;
                    }
                    None => self.greeting.push(line),
                },
                Err(RecvTimeoutError::Disconnected) => return false,
                Err(RecvTimeoutError::Timeout) => panic!("it is neither ready nor at its end; it said: {}", self.said()),
            }
        }
    }

    /// Everything it wrote to standard error.
    pub fn said(&self) -> String {
        let mut bytes = vec![0; 1 << 20];
        let count = self.stderr.read_at(&mut bytes, 0).unwrap_or(0); // read by place: the daemon writes where the file ends
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    }

    pub fn socket(&self) -> PathBuf {
        let (_, path) = self.uri.split_once("?socket=").expect("a Unix socket");
        PathBuf::from(path)
    }

    pub fn connect(&self) -> Client {
        Client::connect(&self.socket()).expect("a connection")
    }

    /// A connection to one of several volumes.
    pub fn connect_to(&self, volume: &str) -> Client {
        Client::connect_to(&self.socket(), volume).expect("a connection")
    }

    /// The next of its `ready:` lines.
    pub fn next_uri(&self) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE).expect("another line");
            if let Some(uri) = line.strip_prefix("ready: ") {
                return uri.to_owned();
            }
        }
    }

    pub fn status(&self) -> serde_json::Value {
        self.ask(&["status", "--json", "--dir", text(&self.dir)])
    }

    /// Of one of several volumes.
    pub fn status_of(&self, volume: &str) -> serde_json::Value {
        self.ask(&["status", "--json", "--dir", text(&self.dir), "--volume", volume])
    }

    fn ask(&self, arguments: &[&str]) -> serde_json::Value {
        serde_json::from_str(&tool::tidegate(arguments).succeeds()).expect("status --json is JSON")
    }

    /// `kill -9`, and waits until the process is gone.
    pub fn kill(mut self) {
        self.end_now();
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        tool::run("kill", &["-TERM", &self.pid().to_string()]).succeeds();
    }

    /// SIGTERM; waits until it has stopped, which must succeed.
    pub fn stop(self) {
        self.terminate();
        let (status, said) = self.ended();
        assert!(status.success(), "{status}: {said}");
    }

    /// Waits for the end of the process: how it ended and what it said.
    pub fn ended(mut self) -> (ExitStatus, String) {
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("it does not stop; it said: {}", self.said()),
            }
        }
        let status = self.child.wait().unwrap();
        (status, self.said())
    }

    fn end_now(&mut self) {
        // One that has ended already is fine: whoever cares asked before.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.end_now();
    }
}

/// Reads lines in a thread of their own, so that the daemon never waits for us; ends with the process.
fn lines_of(stdout: ChildStdout) -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    lines
}

//! Outside programs and our own, run to their end: what they printed and how they ended.

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Longer than anything here takes on a busy machine; `timeout` ends what is stuck, so that a test fails instead of hanging.
const PATIENCE_SECONDS: &str = "300";

/// How a program ended.
#[derive(Debug)]
pub struct Ended {
    line: String,
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    /// Panics with everything it said unless it succeeded; else what it printed.
    pub fn succeeds(self) -> String {
        assert_eq!(self.code, Some(0), "{self}");
        self.stdout
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}` ended with {:?}\nstdout: {}\nstderr: {}", self.line, self.code, self.stdout, self.stderr)
    }
}

/// Runs `program` with `arguments`.
pub fn run(program: &str, arguments: &[&str]) -> Ended {
    let line = format!("{program} {}", arguments.join(" "));
    let output = Command::new("timeout")
        .args(["--kill-after=5", PATIENCE_SECONDS, program])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("{line}: {error}; scripts/setup.sh installs what the tests need"));
    assert_ne!(output.status.code(), Some(127), "{program} is not there; scripts/setup.sh installs what the tests need");
    ended(line, output)
}

/// Runs a line of shell; a failure anywhere in it is a failure.
pub fn shell(script: &str) -> Ended {
    run("bash", &["-c", &format!("set -euo pipefail; {script}")])
}

/// Runs the program under test.
pub fn tidegate(arguments: &[&str]) -> Ended {
    run(env!("CARGO_BIN_EXE_tidegate"), arguments)
}

/// Runs the program under test in `folder`.
pub fn tidegate_in(folder: &Path, arguments: &[&str]) -> Ended {
    run("env", &[&["-C", super::text(folder), env!("CARGO_BIN_EXE_tidegate")], arguments].concat())
}

fn ended(line: String, output: Output) -> Ended {
    let lossy = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ended { line, code: output.status.code(), stdout: lossy(output.stdout), stderr: lossy(output.stderr) }
}

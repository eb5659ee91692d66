//! Instructions, counted by callgrind: repeatable, whatever else the machine does.

use std::process::Command;

/// Instructions of this program with such arguments; none where valgrind is not there.
pub fn instructions(arguments: &[&str]) -> Option<u64> {
    let me = std::env::current_exe().ok()?;
    let output =
        Command::new("valgrind").args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(me).args(arguments).output().ok()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let line = text.lines().find(|line| line.contains("Collected"))?;
    line.rsplit(' ').next()?.parse().ok()
}

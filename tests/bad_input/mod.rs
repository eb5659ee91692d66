//! What must not be served is refused in one line that says what, where and what to do; nothing is created or changed. What goes wrong in
//! service costs what it must and no more. One file for each row of docs/bad-inputs.md.

mod cli;
mod config;
mod control;
mod journal;
mod nbd;
mod origin;
mod resources;
mod superblock;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::common::tool::{self, Ended};
use crate::common::{text, volume};

/// Every file below `dir`: name, length and checksum. Sockets and the like have no contents.
fn everything(dir: &Path) -> Vec<(String, u64, u32)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        if kind.is_dir() {
            found.push((text(&path).to_owned(), 0, 0));
            found.extend(everything(&path));
        } else {
            let contents = if kind.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
            found.push((text(&path).to_owned(), contents.len() as u64, crc32c::crc32c(&contents)));
        }
    }
    found.sort();
    found
}

/// One line on standard error, nothing on standard output, this exit code, and these words.
fn assert_refused(name: &str, ended: &Ended, code: i32, says: &[&str]) {
    assert_eq!(ended.code, Some(code), "{name}: {ended}");
    assert_eq!(ended.stdout, "", "{name}: {ended}");
    assert_eq!(ended.stderr.lines().count(), 1, "{name}: one line: {ended}");
    assert!(ended.stderr.starts_with("tidegate: "), "{name}: {ended}");
    for words in says {
        assert!(ended.stderr.contains(words), "{name}: it does not say {words:?}: {ended}");
    }
}

/// A small volume that `spoil` makes unfit; then `tidegate ARGUMENTS` in its folder.
fn check(name: &str, spoil: impl FnOnce(&Path), arguments: &[&str], code: i32, says: &[&str]) {
    let folder = volume("48MiB", "64MiB", "");
    spoil(folder.path());
    let before = everything(folder.path());
    let ended = tool::tidegate_in(folder.path(), arguments);
    assert_refused(name, &ended, code, says);
    assert_eq!(everything(folder.path()), before, "{name}: something was created or changed");
}

const UP: &[&str] = &["up", "--dir", "."];

/// A line of shell in the folder.
fn make(what: &'static str) -> impl Fn(&Path) {
    move |dir| drop(tool::shell(&format!("cd '{}'; {what}", text(dir))).succeeds())
}

/// A folder that anybody may enter, with the program in it; and the words that run it there as a user who is not root.
struct Nobody {
    folder: TempDir,
}

impl Nobody {
    fn new() -> Nobody {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        fs::copy(env!("CARGO_BIN_EXE_tidegate"), folder.path().join("tidegate")).unwrap();
        Nobody { folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn program(&self) -> PathBuf {
        self.path().join("tidegate")
    }

    /// Runs the program there to its end.
    fn run(&self, arguments: &[&str]) -> Ended {
        let program = self.program();
        let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups", "env", "-C", text(self.path()), text(&program)];
        tool::run("setpriv", &[&nobody[..], arguments].concat())
    }
}

/// Makes the checksum of a metadata page right again (docs/format.md, "The seal").
fn reseal(page: &mut [u8]) {
    let crc = crc32c::crc32c_append(crc32c::crc32c(&page[28..]), &page[..24]);
    page[24..28].copy_from_slice(&crc.to_le_bytes());
}

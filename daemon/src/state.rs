//! `tidegate.state`: what the host knows of a volume's cache, so that an older copy of it, or another one, is not taken for it.
//!
//! It is written, and synced, before the first request of a start is answered, and at an orderly stop. Without it (it was deleted, or the
//! volume is new) nothing is compared.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tidegate_engine::cache::format::Superblock;

use crate::{Failure, whole};

/// Its name in the folder of a volume.
pub const FILE_NAME: &str = "tidegate.state";
/// The largest one that is read, in bytes.
const BYTES_MAX: u64 = 4096;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// The identity that the cache was formatted with, in hexadecimal digits.
    pub format: String,
    /// The start that last served: it grows with every one, and the cache knows it too.
    pub epoch: u64,
    /// Blocks that were newer in the cache than on the origin at the last orderly stop; unknown while it serves, and after a crash.
    pub dirty: Option<u64>,
}

impl State {
    pub fn of(superblock: &Superblock, epoch: u64, dirty: Option<u64>) -> State {
        State { format: format_of(superblock), epoch, dirty }
    }

    /// Replaces the file, whole or not at all.
    ///
    /// # Errors
    /// One line; the old file is as it was.
    pub fn write(&self, path: &Path) -> Result<(), Failure> {
        let text = serde_json::to_string(self).expect("a state is plain") + "\n";
        let written = whole::replace(path, text.as_bytes(), 0o600);
        written.map_err(|error| {
            Failure::new(Failure::NOT_CREATED, format!("{}: {error}; the volume needs it to know its cache again", path.display()))
        })
    }

    fn read(path: &Path) -> Result<Option<State>, Failure> {
        let refused = |why: String| {
            let what = format!("{}: {why}; if its cache is the one that this volume last ran with, delete the file", path.display());
            Failure::new(Failure::DAMAGED, what)
        };
        let mut text = String::new();
        let opened = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
        match opened.and_then(|file| file.take(BYTES_MAX + 1).read_to_string(&mut text)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(refused(error.to_string())),
            Ok(bytes) if bytes as u64 > BYTES_MAX => return Err(refused("it is too long".into())),
            Ok(_) => {}
        }
        serde_json::from_str(&text).map(Some).map_err(|why| refused(format!("line {}: {why}", why.line())))
    }
}

fn format_of(superblock: &Superblock) -> String {
    superblock.format.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Is this the cache that the volume last ran with, and not an older copy of it? Returns what is worth knowing.
///
/// `accept_loss`: another cache is taken, and what only the last one held is lost.
///
/// # Errors
/// One line that says which cache was expected.
pub fn compare(path: &Path, superblock: &Superblock, accept_loss: bool) -> Result<Vec<String>, Failure> {
    let Some(known) = State::read(path)? else { return Ok(Vec::new()) };
    let found = format_of(superblock);
    if known.format != found {
        let held = match known.dirty {
            Some(0) => return Ok(vec!["another cache than last time; the last one held nothing newer than the origin".into()]),
            Some(dirty) => format!("held {dirty} blocks newer than the origin when it last stopped"),
            None => "may have held blocks newer than the origin".to_string(),
        };
        if accept_loss {
            return Ok(vec![format!(
                "another cache than last time, which {held}: they are lost, and the origin is a mixture of times there"
            )]);
        }
        let (short, other) = (&found[..8], known.format.get(..8).unwrap_or(&known.format));
        let what = format!(
            "the cache has the format id {short}…, and this volume last ran with {other}…, which {held}; bring that one back, or give it up with --accept-loss"
        );
        return Err(Failure::new(Failure::DAMAGED, what));
    }
    if known.epoch > superblock.epoch {
        let what = format!(
            "the cache is an older copy of itself: it has seen {} starts, and {} knows of {}; bring the newer one back, or format it anew with `tidegate create --force`",
            superblock.epoch,
            path.display(),
            known.epoch
        );
        return Err(Failure::new(Failure::DAMAGED, what));
    }
    Ok(Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_engine::cache::format::{FormatId, Geometry};

    fn superblock(id: u8, epoch: u64) -> Superblock {
        let geometry = Geometry { block_atoms: 8, set_slots: 8, sets: 16, journal_pages: 64, volume_atoms: 512, range_entries: 252 };
        Superblock { epoch, ..Superblock::new(FormatId([id; 16]), geometry, [0; 16], [0; 16]) }
    }

    #[test]
    fn the_cache_of_the_last_run_is_taken_and_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        assert_eq!(compare(&path, &superblock(1, 5), false).unwrap(), Vec::<String>::new(), "a new volume");
        State::of(&superblock(1, 5), 6, None).write(&path).unwrap();
        for epoch in [6, 7] {
            assert!(compare(&path, &superblock(1, epoch), false).unwrap().is_empty());
        }
        let older = compare(&path, &superblock(1, 5), true).unwrap_err();
        assert!(older.message.contains("an older copy") && older.message.contains("create --force"), "{}", older.message);
        let other = compare(&path, &superblock(2, 9), false).unwrap_err();
        assert!(other.message.contains("02020202…") && other.message.contains("01010101…, which may have held"), "{}", other.message);
        assert!(compare(&path, &superblock(2, 9), true).unwrap()[0].contains("are lost"));
        State::of(&superblock(1, 5), 6, Some(0)).write(&path).unwrap();
        assert!(compare(&path, &superblock(2, 9), false).unwrap()[0].contains("held nothing newer"));
    }

    #[test]
    fn a_file_that_is_none_is_refused_in_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        for text in ["", "{}", "{\"format\": 3}", "\0\0\0", &"x".repeat(5_000)] {
            std::fs::write(&path, text).unwrap();
            let refused = compare(&path, &superblock(1, 1), false).unwrap_err();
            assert!(refused.message.contains(FILE_NAME) && !refused.message.contains('\n'), "{}", refused.message);
        }
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(compare(&path, &superblock(1, 1), false).is_err());
    }
}

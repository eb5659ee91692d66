//! `tidegate.state`: what the host knows of a volume's cache, so that an older copy of it, or another one, is not taken for it.
//!
//! It is written, and synced, before the first request of a start is answered, at an orderly stop, and when the cache fails in service:
//! then before anything is acknowledged without it, so that an SSD that missed writes is not taken back. Without it (it was deleted, or the
//! volume is new) nothing is compared. A cache that the volume went on without is remembered: it has missed writes, and is never taken again.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tidegate_engine::Mode;
use tidegate_engine::cache::format::Superblock;
use tidegate_engine::probe::ModeView;

use crate::dirty::{Dirty, written_at};
use crate::{Failure, whole};

/// Its name in the folder of a volume.
pub const FILE_NAME: &str = "tidegate.state";
/// The largest one that is read, in bytes.
const BYTES_MAX: u64 = 16 << 10;
/// So many caches that must not come back are remembered: those that went last.
const GONE_MAX: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// The identity that the cache was formatted with, in hexadecimal digits; empty: none has served since the last one was given up.
    pub format: String,
    /// The start that last served: it grows with every one, and the cache knows it too.
    pub epoch: u64,
    /// Blocks that were newer in the cache than on the origin at the last orderly stop; unknown while it serves, and after a crash.
    pub dirty: Option<u64>,
    /// What a FLUSH promises. Of another mode than write-back: nothing that was flushed is in the cache alone.
    #[serde(default, with = "mode_name")]
    pub mode: Mode,
    /// The cache failed in service, and the volume went on without it: `dirty` blocks were only there.
    #[serde(default)]
    pub degraded: bool,
    /// The identities of caches that the volume went on without: they have missed writes. Filled in by [`State::write`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<String>,
}

impl State {
    /// The mode counts when it is asked for and recorded: whatever it was or will be, no more is promised than both do.
    pub fn of(superblock: &Superblock, epoch: u64, dirty: Option<u64>, mode: &ModeView) -> State {
        let kept = if mode.wanted.is_home() && mode.recorded.is_home() { mode.wanted } else { Mode::WriteBack };
        State { format: format_of(superblock), epoch, dirty, mode: kept, degraded: false, gone: Vec::new() }
    }

    /// The cache is given up, and the volume begins anew with another one: that one never comes back.
    ///
    /// # Errors
    /// One line; the file is as it was.
    pub fn give_up(path: &Path) -> Result<(), Failure> {
        if State::read(path).is_ok_and(|known| known.is_none()) {
            return Ok(());
        }
        let none = State { format: String::new(), epoch: 0, dirty: Some(0), mode: Mode::WriteBack, degraded: false, gone: Vec::new() };
        none.write(path)
    }

    /// Replaces the file, whole or not at all. A cache that was known until now, and is another one, is gone from now on.
    ///
    /// # Errors
    /// One line; the old file is as it was.
    pub fn write(&self, path: &Path) -> Result<(), Failure> {
        // One that cannot be read has told nobody anything, and stopped the start that would have come here.
        let before = State::read(path).ok().flatten();
        let known = before.into_iter().flat_map(|before| before.gone.into_iter().chain([before.format]));
        let mut gone: Vec<String> = known.filter(|format| !format.is_empty() && *format != self.format).collect();
        gone.drain(..gone.len().saturating_sub(GONE_MAX));
        let text = serde_json::to_string(&State { gone, ..self.clone() }).expect("a state is plain") + "\n";
        let written = whole::replace(path, text.as_bytes(), 0o600);
        written.map_err(|error| {
            Failure::new(Failure::NOT_CREATED, format!("{}: {error}; the volume needs it to know its cache again", path.display()))
        })
    }

    /// What was written last; nothing if there is no file.
    ///
    /// # Errors
    /// One line: it cannot be read, or says nothing that could be.
    pub fn read(path: &Path) -> Result<Option<State>, Failure> {
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

mod mode_name {
    use super::Mode;
    use serde::{Deserialize, Deserializer, Serializer};
    use std::str::FromStr;

    pub fn serialize<S: Serializer>(mode: &Mode, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(mode.name())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Mode, D::Error> {
        Mode::from_str(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// What the loss of the cache that served last may cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Nothing that was promised: why.
    Nothing(&'static str),
    /// What it held, or may have held.
    Some(String),
}

impl State {
    pub fn loss(&self, path: &Path) -> Loss {
        let since = written_at(path).map_or(String::new(), |since| format!(" (this was written down at {since})"));
        match (self.dirty, self.mode.is_home()) {
            (Some(0), _) => Loss::Nothing("the last one held nothing newer than the origin"),
            (None, true) => Loss::Nothing("the last one promised the origin: nothing that was flushed is lost with it"),
            (Some(dirty), _) if self.degraded => Loss::Some(format!("failed in service and alone had {dirty} blocks{since}")),
            (Some(dirty), _) => Loss::Some(format!("held {dirty} blocks newer than the origin when it last stopped{since}")),
            (None, false) => Loss::Some(format!("may have held blocks newer than the origin{since}")),
        }
    }
}

pub fn format_of(superblock: &Superblock) -> String {
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
    if known.gone.contains(&found) {
        let short = &found[..8];
        let what = format!(
            "the cache with the format id {short}… was given up or failed, and the volume went on without it: it has missed writes and must not \
             come back; bring the last one back, or format this one anew with `tidegate create --force`"
        );
        return Err(Failure::new(Failure::DAMAGED, what));
    }
    if known.format.is_empty() {
        return Ok(Vec::new());
    }
    if known.format != found {
        let held = match known.loss(path) {
            Loss::Nothing(why) if superblock.epoch > 1 && !accept_loss => {
                let short = &found[..8];
                let what = format!(
                    "the cache with the format id {short}… has served before, but this volume last ran with another one: it may have missed \
                     writes; {why}; format it anew with `tidegate create --force`, or take it as it is with --accept-loss"
                );
                return Err(Failure::new(Failure::DAMAGED, what));
            }
            Loss::Nothing(why) => return Ok(vec![format!("another cache than last time; {why}")]),
            Loss::Some(held) => held,
        };
        if accept_loss {
            let mut notes =
                vec![format!("another cache than last time, which {held}: they are lost, and the origin is a mixture of times there")];
            match Dirty::read(path, &known.format) {
                Some(dirty) => notes.extend(dirty.describe(path)),
                None => notes.push("lost: which blocks is not known".to_string()),
            }
            return Ok(notes);
        }
        let (short, other) = (&found[..8], known.format.get(..8).unwrap_or(&known.format));
        let what = format!(
            "the cache has the format id {short}…, and this volume last ran with {other}…, which {held}; bring that one back, or give it up with --accept-loss"
        );
        return Err(Failure::new(Failure::DAMAGED, what));
    }
    if known.degraded {
        let lost = match known.loss(path) {
            Loss::Nothing(_) => "nothing is lost with it".to_string(),
            Loss::Some(held) => format!("it {held}, listed in {}", Dirty::path(path).display()),
        };
        let what = format!(
            "the cache failed in service, and the volume went on without it: it has missed writes and must not come back; {lost}; format it anew, or another one, with `tidegate create --force`"
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

    const BACK: ModeView = ModeView { wanted: Mode::WriteBack, recorded: Mode::WriteBack, is_switching: false };

    #[test]
    fn a_cache_that_promised_the_origin_may_be_lost() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        let through = ModeView { wanted: Mode::WriteThrough, recorded: Mode::WriteThrough, is_switching: false };
        State::of(&superblock(1, 5), 6, None, &through).write(&path).unwrap();
        assert!(compare(&path, &superblock(2, 1), false).unwrap()[0].contains("nothing that was flushed is lost"));
        // On the way there or back it may not, nor with blocks that no stop could take home.
        for view in [ModeView { recorded: Mode::WriteBack, ..through }, ModeView { wanted: Mode::WriteBack, ..through }] {
            State::of(&superblock(1, 5), 6, None, &view).write(&path).unwrap();
            assert!(compare(&path, &superblock(2, 9), false).is_err());
        }
        State::of(&superblock(1, 5), 6, Some(3), &through).write(&path).unwrap();
        assert!(compare(&path, &superblock(2, 9), false).unwrap_err().message.contains("held 3 blocks"));
        // A file of a version that knew no modes.
        std::fs::write(&path, "{\"format\":\"ab\",\"epoch\":1,\"dirty\":null}").unwrap();
        assert_eq!(State::read(&path).unwrap().unwrap().mode, Mode::WriteBack);
    }

    #[test]
    fn what_is_lost_is_listed_where_it_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        let last = superblock(1, 5);
        State::of(&last, 6, None, &BACK).write(&path).unwrap();
        assert!(compare(&path, &superblock(2, 9), true).unwrap()[1].contains("not known"));
        Dirty::now(&format_of(&last), false, vec![tidegate_engine::block::Span::new(8, 8)]).write(&path);
        let notes = compare(&path, &superblock(2, 9), true).unwrap();
        assert_eq!(notes[2], "lost: 4096 bytes from byte 4096 on");
    }

    fn superblock(id: u8, epoch: u64) -> Superblock {
        let geometry = Geometry { block_atoms: 8, set_slots: 8, sets: 16, journal_pages: 64, volume_atoms: 512, range_entries: 252 };
        Superblock { epoch, ..Superblock::new(FormatId([id; 16]), geometry, [0; 16], [0; 16]) }
    }

    #[test]
    fn the_cache_of_the_last_run_is_taken_and_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        assert_eq!(compare(&path, &superblock(1, 5), false).unwrap(), Vec::<String>::new(), "a new volume");
        State::of(&superblock(1, 5), 6, None, &BACK).write(&path).unwrap();
        for epoch in [6, 7] {
            assert!(compare(&path, &superblock(1, epoch), false).unwrap().is_empty());
        }
        let older = compare(&path, &superblock(1, 5), true).unwrap_err();
        assert!(older.message.contains("an older copy") && older.message.contains("create --force"), "{}", older.message);
        let other = compare(&path, &superblock(2, 9), false).unwrap_err();
        assert!(other.message.contains("02020202…") && other.message.contains("01010101…, which may have held"), "{}", other.message);
        assert!(compare(&path, &superblock(2, 9), true).unwrap()[0].contains("are lost"));
        State::of(&superblock(1, 5), 6, Some(0), &BACK).write(&path).unwrap();
        assert!(compare(&path, &superblock(2, 1), false).unwrap()[0].contains("held nothing newer"));
        let used = compare(&path, &superblock(2, 9), false).unwrap_err();
        assert!(used.message.contains("has served before") && used.message.contains("--accept-loss"), "{}", used.message);
        assert!(compare(&path, &superblock(2, 9), true).unwrap()[0].contains("held nothing newer"));
    }

    #[test]
    fn a_cache_that_failed_in_service_must_not_come_back_and_another_one_is_told_what_was_lost() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        let fence = |dirty| State { degraded: true, ..State::of(&superblock(1, 5), 6, Some(dirty), &BACK) }.write(&path).unwrap();
        fence(40);
        for epoch in [6, 7, 100] {
            let back = compare(&path, &superblock(1, epoch), true).unwrap_err();
            assert!(back.message.contains("has missed writes") && back.message.contains("alone had 40 blocks"), "{}", back.message);
        }
        let other = compare(&path, &superblock(2, 1), false).unwrap_err();
        assert!(other.message.contains("alone had 40 blocks") && other.message.contains("--accept-loss"), "{}", other.message);
        assert!(compare(&path, &superblock(2, 1), true).unwrap()[0].contains("are lost"));
        fence(0);
        assert!(compare(&path, &superblock(1, 6), false).unwrap_err().message.contains("nothing is lost"));
        assert!(compare(&path, &superblock(2, 1), false).unwrap()[0].contains("held nothing newer"));
    }

    #[test]
    fn a_cache_that_the_volume_went_on_without_never_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        let serve = |id, dirty| State::of(&superblock(id, 5), 6, dirty, &BACK).write(&path).unwrap();
        let refused = |id| {
            let refused = [false, true].map(|accept_loss| compare(&path, &superblock(id, 100), accept_loss).unwrap_err().message);
            assert!(refused.iter().all(|message| message.contains("has missed writes")), "{refused:?}");
        };
        // It fails, another one is taken, and that one is stopped with nothing that only it has.
        State { degraded: true, ..State::of(&superblock(1, 5), 6, Some(40), &BACK) }.write(&path).unwrap();
        serve(2, None);
        serve(2, Some(0));
        refused(1);
        // Nor when that one is given up before another has served, and after it has.
        State::give_up(&path).unwrap();
        [1, 2].into_iter().for_each(refused);
        assert_eq!(compare(&path, &superblock(3, 1), false).unwrap(), Vec::<String>::new());
        serve(3, None);
        [1, 2].into_iter().for_each(refused);
        assert!(compare(&path, &superblock(3, 6), false).unwrap().is_empty());
        // They do not grow without end.
        (4..=255).chain(4..=255).for_each(|id| serve(id, Some(0)));
        assert!(std::fs::metadata(&path).unwrap().len() < BYTES_MAX && State::read(&path).unwrap().is_some());
        let none = folder.path().join("none");
        State::give_up(&none).unwrap();
        assert!(!none.exists(), "there was none to be given up");
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

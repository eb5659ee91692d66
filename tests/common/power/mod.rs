//! A folder whose power can be cut: a file system of our own (FUSE) on a disk with a volatile cache. What was changed in a file since its last
//! `fsync` may be there afterwards or not, each change for itself and each sector of a write for itself. Of the names that were changed since their
//! folder's last one, some first ones are kept. Some writes take their time: one that is not answered when an `fsync` comes is not covered by it.
//! Whoever used the folder is killed before an operation fails: it never learns of the cut.

mod files;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::ops::Range;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use fuser::{BackgroundSession, Config, Errno, FileType, MountOption, ReplyWrite};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::chance::Chance;
use super::daemon::Daemon;
use super::mount::quietly;
use super::stamp::SECTOR;
use super::{folder, text};

/// One in so many writes takes so much time at least.
const SLOW_ONE_IN: u64 = 3;
const SLOW: Duration = Duration::from_millis(1);

/// The folder, which is empty at first, and the switch.
pub struct Power {
    state: Arc<Mutex<State>>,
    _session: BackgroundSession,
    folder: TempDir,
}

impl Drop for Power {
    fn drop(&mut self) {
        // Lazily: the kernel lets go of the files of an io_uring some time after whoever had it is gone.
        quietly("fusermount3", &["-u", "-z", text(self.path())]);
    }
}

#[derive(Default)]
struct State {
    /// All that ever were: no number is used twice.
    files: Vec<Content>,
    names: Names,
    kept_names: Names,
    /// Names that were given and taken since they were flushed, in order.
    loose_names: Vec<Renaming>,
    /// Writes that have come and are not answered.
    under_way: Vec<UnderWay>,
    writes: u64,
    /// What the disk writes at once.
    block_bytes: u32,
    /// Who uses it.
    users: Vec<Pid>,
    /// Changes and flushes until the power fails.
    left: u64,
    is_off: bool,
}

/// A folder's number, and a name in it.
type Name = (u64, OsString);
type Names = BTreeMap<Name, usize>;
/// What happens to names in one step: each leads to a file from then on, or to nothing.
type Renaming = Vec<(Name, Option<usize>)>;

struct Content {
    kind: FileType,
    mode: u16,
    /// What a read returns.
    now: Vec<u8>,
    /// What was flushed.
    kept: Vec<u8>,
    /// What was changed since, in order.
    loose: Vec<Change>,
    /// Changes that cuts and failed flushes have taken, about: of those that were torn a half counts.
    lost: u64,
    /// Nothing can be read of it, changed or flushed.
    is_broken: bool,
    /// So many flushes fail, and what they were to cover is lost.
    failing_flushes: u32,
}

struct UnderWay {
    file: usize,
    change: Change,
    reply: ReplyWrite,
}

enum Change {
    Write(usize, Vec<u8>),
    Size(usize),
}

impl Power {
    pub fn new() -> Power {
        Power::with_blocks(4_096)
    }

    /// On a disk that writes so many bytes at once.
    pub fn with_blocks(block_bytes: u32) -> Power {
        let state = State { left: u64::MAX, block_bytes, ..State::default() };
        let state = Arc::new(Mutex::new(state));
        let slow = Arc::downgrade(&state);
        std::thread::spawn(move || finish_slow(&slow));
        let folder = folder();
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("power".to_owned())];
        let session = fuser::spawn_mount(files::Files(state.clone()), folder.path(), &config).expect("FUSE works here");
        Power { state, _session: session, folder }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Cuts the power after so many changes and flushes from now on, of all files together. `user` is killed in that moment.
    pub fn cut_after(&self, changes: u64, user: u32) {
        let mut state = lock(&self.state);
        state.left = changes;
        state.users.push(pid(user));
    }

    /// The same for one who is started here, from his first operation on.
    pub fn cut_after_start(&self, changes: u64, start: impl FnOnce() -> Daemon) -> Daemon {
        let mut state = lock(&self.state);
        let user = start();
        state.left = changes;
        state.users.push(pid(user.pid()));
        user
    }

    /// Cuts it now; nobody uses it, or whoever does is killed in that moment.
    pub fn cut(&self, user: Option<u32>) {
        let mut state = lock(&self.state);
        state.users = user.map(pid).into_iter().collect();
        state.cut();
    }

    /// Cuts it under a daemon, which is gone afterwards.
    pub fn cut_under(&self, daemon: Daemon) {
        self.cut(Some(daemon.pid()));
        daemon.kill();
    }

    /// Kills him, too, when the power is cut; or at once if it has been.
    pub fn kill_too(&self, user: u32) {
        let mut state = lock(&self.state);
        state.users.push(pid(user));
        if state.is_off {
            state.cut();
        }
    }

    /// Waits until he has ended, by himself or by a cut: how, and what he said. He is not killed any more.
    pub fn await_end(&self, user: Daemon) -> (ExitStatus, String) {
        let number = pid(user.pid());
        let ended = user.ended();
        lock(&self.state).users.retain(|known| *known != number);
        ended
    }

    /// About how many changes of this file in the root the cuts and failed flushes have taken so far.
    pub fn lost(&self, name: &str) -> u64 {
        self.file(name, |file| file.lost)
    }

    pub fn is_off(&self) -> bool {
        lock(&self.state).is_off
    }

    /// It is back: what was not flushed is what chance makes of it.
    pub fn restore(&self, chance: &mut Chance) {
        self.come_back(Some(chance));
    }

    /// It is back, and nothing that was not flushed.
    pub fn restore_flushed(&self) {
        self.come_back(None);
    }

    fn come_back(&self, chance: Option<&mut Chance>) {
        let mut state = lock(&self.state);
        assert!(state.is_off, "it was cut");
        state.lose(chance);
        state.users.clear();
        (state.left, state.is_off) = (u64::MAX, false);
    }

    /// The device that this file in the root stands for fails, or works again.
    pub fn set_broken(&self, name: &str, is_broken: bool) {
        self.file(name, |file| file.is_broken = is_broken);
    }

    /// The next flushes of this file in the root fail, and what they were to cover is lost at once.
    pub fn fail_flushes(&self, name: &str, failing: u32) {
        self.file(name, |file| file.failing_flushes = failing);
    }

    /// How many of them have not come yet.
    pub fn failing_flushes(&self, name: &str) -> u32 {
        self.file(name, |file| file.failing_flushes)
    }

    fn file<T>(&self, name: &str, of: impl FnOnce(&mut Content) -> T) -> T {
        let mut state = lock(&self.state);
        let number = state.names[&(files::ROOT, name.into())];
        of(&mut state.files[number])
    }

    /// All that is there is flushed.
    pub fn flush(&self) {
        let mut state = lock(&self.state);
        state.files.iter_mut().for_each(Content::flush);
        state.loose_names.clear();
        state.kept_names = state.names.clone();
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().expect("nobody panics with it")
}

fn pid(process: u32) -> Pid {
    Pid::from_raw(process as i32).expect("a process")
}

impl State {
    fn cut(&mut self) {
        for user in self.users.drain(..) {
            // It may have ended by itself.
            let _ = kill_process(user, Signal::KILL);
        }
        self.is_off = true;
        // They are on their way to the disk, and nobody hears of them any more.
        for UnderWay { file, change, .. } in self.under_way.drain(..) {
            self.files[file].loose.push(change);
        }
    }

    fn check(&self) -> Result<(), Errno> {
        if self.is_off { Err(Errno::EIO) } else { Ok(()) }
    }

    /// One change more, or one flush. The one that the cut hits has happened or not, as what was not flushed before it.
    fn count(&mut self) -> Result<(), Errno> {
        match self.left.checked_sub(1) {
            Some(left) => self.left = left,
            None => self.cut(),
        }
        self.check()
    }

    fn rename(&mut self, step: Renaming) {
        apply(&mut self.names, &step);
        self.loose_names.push(step);
    }

    /// Those of one folder.
    fn flush_names(&mut self, folder: u64) {
        let State { kept_names, loose_names, .. } = self;
        loose_names.retain(|step| {
            let is_loose = step.iter().all(|((of, _), _)| *of != folder);
            if !is_loose {
                apply(kept_names, step);
            }
            is_loose
        });
    }

    /// All, or what chance has for each.
    fn lose(&mut self, mut chance: Option<&mut Chance>) {
        let State { files, names, kept_names, loose_names, .. } = self;
        let first = chance.as_mut().map_or(0, |chance| chance.below(loose_names.len() as u64 + 1));
        loose_names.drain(..).take(first as usize).for_each(|step| apply(kept_names, &step));
        names.clone_from(kept_names);
        for file in files.iter_mut() {
            match &mut chance {
                Some(chance) => file.lose_some(chance),
                None => file.lose_all(),
            }
        }
        let has_name = |number| names.values().any(|named| *named == number);
        (0..files.len()).filter(|number| !has_name(*number)).for_each(|number| files[number].forget());
    }
}

/// Until the folder is gone.
fn finish_slow(state: &Weak<Mutex<State>>) {
    while let Some(state) = state.upgrade() {
        let mut state = lock(&state);
        let State { under_way, files, .. } = &mut *state;
        for UnderWay { file, change, reply } in under_way.drain(..).rev() {
            let bytes = change.bytes();
            files[file].change(change);
            reply.written(bytes);
        }
        drop(state);
        std::thread::sleep(SLOW);
    }
}

fn apply(names: &mut Names, step: &Renaming) {
    for (name, file) in step {
        match file {
            Some(file) => drop(names.insert(name.clone(), *file)),
            None => drop(names.remove(name)),
        }
    }
}

impl Change {
    /// Where it ends in the file.
    fn end(&self) -> usize {
        match self {
            Change::Write(at, bytes) => at + bytes.len(),
            Change::Size(bytes) => *bytes,
        }
    }

    /// That are written.
    fn bytes(&self) -> u32 {
        match self {
            Change::Write(_, bytes) => bytes.len() as u32,
            Change::Size(_) => 0,
        }
    }
}

impl Content {
    fn new(kind: FileType, mode: u16) -> Content {
        Content { kind, mode, now: Vec::new(), kept: Vec::new(), loose: Vec::new(), lost: 0, is_broken: false, failing_flushes: 0 }
    }

    fn change(&mut self, change: Change) {
        match &change {
            Change::Write(at, bytes) => write(&mut self.now, *at, bytes),
            Change::Size(bytes) => self.now.resize(*bytes, 0),
        }
        self.loose.push(change);
    }

    fn flush(&mut self) {
        for change in self.loose.drain(..) {
            match change {
                Change::Write(at, bytes) => write(&mut self.kept, at, &bytes),
                Change::Size(bytes) => self.kept.resize(bytes, 0),
            }
        }
    }

    fn lose_all(&mut self) {
        self.lost += self.loose.len() as u64;
        self.loose.clear();
        self.now.clone_from(&self.kept);
    }

    fn lose_some(&mut self, chance: &mut Chance) {
        if self.loose.is_empty() {
            return;
        }
        let fate = chance.below(4);
        for change in self.loose.drain(..) {
            let is_kept = match fate {
                0 => false,
                1 => true,
                _ => chance.below(2) == 0,
            };
            self.lost += u64::from(!is_kept);
            match change {
                Change::Size(bytes) if is_kept => self.kept.resize(bytes, 0),
                Change::Write(at, bytes) if fate == 3 => {
                    let sectors = (0..bytes.len()).step_by(SECTOR).map(|start| start..(start + SECTOR).min(bytes.len()));
                    let mut keep = |sector: Range<usize>| write(&mut self.kept, at + sector.start, &bytes[sector]);
                    sectors.filter(|_| chance.below(2) == 0).for_each(&mut keep);
                }
                Change::Write(at, bytes) if is_kept => write(&mut self.kept, at, &bytes),
                Change::Size(_) | Change::Write(..) => {}
            }
        }
        self.lose_all();
    }

    /// It has no name, and nobody has it open.
    fn forget(&mut self) {
        (self.now, self.kept) = (Vec::new(), Vec::new());
    }
}

fn write(contents: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    let end = at + bytes.len();
    if contents.len() < end {
        contents.resize(end, 0);
    }
    contents[at..end].copy_from_slice(bytes);
}

#[test]
fn what_was_not_flushed_before_a_cut_may_be_lost_and_what_was_is_not() {
    use std::fs;
    let power = Power::new();
    let path = |name: &str| power.path().join(name);
    let flushed = |name: &str, bytes: &[u8]| {
        fs::write(path(name), bytes).unwrap();
        fs::File::open(path(name)).and_then(|file| file.sync_all()).unwrap();
    };
    let flush_folder = || fs::File::open(power.path()).and_then(|folder| folder.sync_all()).unwrap();
    flushed("old", &[1; 3 * SECTOR]);
    flush_folder();
    let mut chance = Chance::new(1);
    let (mut lost, mut torn, mut unnamed) = (0, 0, 0);
    for _ in 0..60 {
        flushed("old", &[1; 3 * SECTOR]);
        fs::write(path("old"), [2; 3 * SECTOR]).unwrap();
        flushed("new", &[3; SECTOR]);
        fs::rename(path("new"), path("newer")).unwrap();
        power.cut(None);
        assert!(power.is_off() && fs::read(path("old")).is_err());
        power.restore(&mut chance);
        let old = fs::read(path("old")).unwrap();
        assert!(old.iter().all(|byte| [0, 1, 2].contains(byte)), "{old:?}");
        (lost, torn) = (lost + usize::from(old == [1; 3 * SECTOR]), torn + usize::from(old.contains(&1) && old.contains(&2)));
        let names = ["new", "newer"].map(|name| fs::read(path(name)).ok());
        assert!(names.iter().flatten().all(|bytes| *bytes == [3; SECTOR]) && !names.iter().all(Option::is_some), "{names:?}");
        unnamed += usize::from(names.iter().all(Option::is_none));
        names.iter().zip(["new", "newer"]).filter(|(file, _)| file.is_some()).for_each(|(_, name)| fs::remove_file(path(name)).unwrap());
        flush_folder();
    }
    assert!(lost > 0 && torn > 0 && unnamed > 0, "{lost}, {torn}, {unnamed}");
}

//! The motor of the origin's disk: told to stand still or to turn, and asked what it does.
//!
//! ```text
//!   engine: Stop, Wake, Look ─▶ Motor::tell ─▶ its own thread ─▶ SG_IO ─▶ disk
//!                    Turning, Standby ◀─ mailbox ◀──┘ asked afterwards, never assumed
//! ```
//! With each answer goes whether the disk has been used since the last one, as the kernel counts that: others may use it as well, and only the
//! engine knows what was its own. What is said to the motor is not counted: the counters are read before a word, and again behind it.
//!
//! A disk takes seconds to stop or to wake, and the call sleeps meanwhile: hence the thread. It has the privilege that ATA commands need
//! (`CAP_SYS_RAWIO`) to itself, and sends the few commands of [`ata`] and [`scsi`] and no others.

mod ata;
mod disk;
mod scsi;
mod sg;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};

use tidegate_engine::op::{Answer, DeviceError, Done, OpId, Power, Said, Spin};

pub(super) use sg::SG_IO;

use super::mail::{Mailbox, Sender, mailbox};
use super::run::Run;
use crate::Failure;
use disk::Uses;

/// Words under way: the engine says the next one when the last one has been answered.
const WORDS: usize = 2;

/// Which disk is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// The one that the origin lies on.
    Origins,
    /// This one, whatever it says of itself.
    Named(PathBuf),
}

/// The disks whose motors are told something, and the volumes that do: nobody can obey two.
#[derive(Default)]
pub struct Taken(Vec<(PathBuf, String)>);

impl Taken {
    /// This volume tells the motor from now on.
    ///
    /// # Errors
    /// One line: another does.
    pub fn take(&mut self, motor: &Motor, volume: &str) -> Result<(), String> {
        let folder = disk::folder(&motor.disk).unwrap_or_else(|| motor.disk.clone());
        self.take_disk(folder, volume).map_err(|other| format!("{} is told what to do by volume {other:?}", motor.disk.display()))
    }

    fn take_disk(&mut self, folder: PathBuf, volume: &str) -> Result<(), String> {
        match self.0.iter().find(|(taken, _)| *taken == folder) {
            Some((_, other)) => Err(other.clone()),
            None => {
                self.0.push((folder, volume.to_owned()));
                Ok(())
            }
        }
    }
}

/// A disk's motor, and the thread that speaks with it. The thread ends when this is dropped and its last command has ended.
pub struct Motor {
    disk: PathBuf,
    language: Language,
    starts: Option<u32>,
    words: SyncSender<(OpId, Spin)>,
    answers: Mailbox<Done<Run>>,
}

/// What the disk understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Language {
    Ata,
    Scsi(scsi::Stop),
}

impl Language {
    fn name(self) -> &'static str {
        match self {
            Language::Ata => "ATA",
            Language::Scsi(_) => "SCSI",
        }
    }
}

impl Motor {
    /// Finds the disk below `origin` and out what it understands. `Err` is one line: why it has no motor that could be told anything.
    ///
    /// # Errors
    /// A disk that was named takes no such commands, or there is no thread.
    pub fn find(which: &Which, origin: &Path) -> Result<Result<Motor, String>, Failure> {
        let found = match which {
            Which::Named(disk) => Ok(disk.clone()),
            Which::Origins => disk::below(origin),
        };
        let found = found.and_then(|disk| {
            let (file, language, starts) = ask(&disk, which)?;
            Ok((disk, file, language, starts))
        });
        let (disk, file, language, starts) = match (found, which) {
            (Ok(found), _) => found,
            (Err(why), Which::Origins) => return Ok(Err(why)),
            (Err(why), Which::Named(_)) => {
                return Err(Failure::new(Failure::REFUSED, format!("{why}; name another disk as `motor` below [spin], or none")));
            }
        };
        let failed = |error| Failure::new(Failure::SYSTEM, format!("no thread for the motor of {}: {error}", disk.display()));
        let uses = disk::folder(&disk).and_then(|folder| Uses::of(&folder));
        let count = move || uses.as_ref().and_then(Uses::count);
        Motor::start(disk.clone(), language, starts, count, move |word| say(&file, language, word)).map(Ok).map_err(failed)
    }

    /// The thread that says every word with `say`, and counts with `count` what the disk was asked for besides.
    fn start(
        disk: PathBuf,
        language: Language,
        starts: Option<u32>,
        count: impl Fn() -> Option<u64> + Send + 'static,
        say: impl Fn(Spin) -> Result<Power, DeviceError> + Send + 'static,
    ) -> io::Result<Motor> {
        let (sender, answers) = mailbox(WORDS)?;
        let (words, orders) = sync_channel(WORDS);
        let serve = move || {
            let mut last = count();
            while let Ok((id, word)) = orders.recv() {
                let used = last.zip(count()).map(|(last, now)| last != now);
                let result = say(word).map(|power| Answer::Power(Said { power, used }));
                last = count();
                answer(&sender, id, result);
            }
        };
        std::thread::Builder::new().name("motor".to_owned()).spawn(serve)?;
        Ok(Motor { disk, language, starts, words, answers })
    }

    /// One that turns whatever it is told.
    #[cfg(test)]
    pub fn stand_in() -> Motor {
        Motor::start("/dev/null".into(), Language::Ata, None, || None, |_| Ok(Power::Turning)).expect("a thread")
    }

    pub fn disk(&self) -> &Path {
        &self.disk
    }

    /// What it is told in: "ATA" or "SCSI".
    pub fn language(&self) -> &'static str {
        self.language.name()
    }

    /// How often it has been started in its life, if it says so.
    pub fn starts(&self) -> Option<u32> {
        self.starts
    }

    /// Hands a word on; its answer comes by [`Motor::answers`].
    pub fn tell(&self, id: OpId, word: Spin) {
        self.words.try_send((id, word)).expect("the engine waits for the answer before it says the next word");
    }

    /// Readable when there are answers.
    pub fn fd(&self) -> RawFd {
        self.answers.fd()
    }

    pub fn answers(&mut self) -> impl Iterator<Item = Done<Run>> + '_ {
        self.answers.take()
    }
}

fn answer(sender: &Sender<Done<Run>>, id: OpId, result: Result<Answer<Run>, DeviceError>) {
    // Where nobody listens any more, the volume has ended.
    let _ = sender.send(Done { id, result });
}

/// What the disk understands, and how often it has been started.
fn ask(disk: &Path, which: &Which) -> Result<(File, Language, Option<u32>), String> {
    let refused = |what: &str| format!("{} {what}", disk.display());
    // Not for writing: whoever closes a disk that was open for that makes others look at it, and wakes it.
    let file =
        OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(disk).map_err(|error| format!("{}: {error}", disk.display()))?;
    if *which == Which::Origins && disk::stands_still_anyway(disk) {
        return Err(refused("says that nothing turns in it"));
    }
    match ata::identify(&file) {
        Ok(identity) if identity.has_motor || *which != Which::Origins => return Ok((file, Language::Ata, identity.starts)),
        Ok(_) => return Err(refused("says that nothing turns in it")),
        Err(sg::Error::Forbidden) => return Err(refused("takes ATA commands only from who has CAP_SYS_RAWIO; start as root")),
        Err(sg::Error::Untaken) => return Err(refused("has no motor that could be told to stop")),
        Err(sg::Error::Device(_)) => {}
    }
    match scsi::look(&file).and_then(|_| scsi::Stop::found(&file, disk)) {
        Ok(stop) => Ok((file, Language::Scsi(stop), None)),
        Err(sg::Error::Untaken) => {
            let name = disk::name(disk);
            let remedy = format!("echo 1 > /sys/block/{}/device/scsi_disk/*/allow_restart", name.display());
            Err(refused(&format!(
                "knows no standby, only a stop after which nobody else could read it; let the system start it then ({remedy})"
            )))
        }
        Err(_) => Err(refused("knows neither ATA's nor SCSI's commands for its motor")),
    }
}

/// Does as it is told, and says what the disk does then.
fn say(disk: &File, language: Language, word: Spin) -> Result<Power, DeviceError> {
    let result = match (language, word) {
        (Language::Ata, Spin::Stop) => ata::stop(disk),
        (Language::Ata, Spin::Wake) => ata::wake(disk),
        (Language::Ata, Spin::Look) => ata::look(disk),
        (Language::Scsi(way), Spin::Stop) => scsi::stop(disk, way),
        (Language::Scsi(way), Spin::Wake) => scsi::wake(disk, way),
        (Language::Scsi(_), Spin::Look) => scsi::look(disk),
    };
    result.map_err(|error| match error {
        sg::Error::Device(error) => error,
        sg::Error::Forbidden | sg::Error::Untaken => DeviceError::Medium,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_obeys_one_volume() {
        let mut taken = Taken::default();
        assert_eq!(taken.take_disk("/sys/devices/sdb".into(), "a"), Ok(()));
        assert_eq!(taken.take_disk("/sys/devices/sdc".into(), "b"), Ok(()));
        assert_eq!(taken.take_disk("/sys/devices/sdb".into(), "c"), Err("a".to_owned()));
    }

    #[test]
    fn what_is_no_disk_has_no_motor_and_who_names_it_hears_that() {
        // In memory: below it is no disk, whatever this machine has.
        let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        let why = Motor::find(&Which::Origins, file.path()).unwrap().err().expect("no disk");
        assert!(why.contains("has no name here"), "{why}");
        let named = Motor::find(&Which::Named(file.path().to_owned()), file.path()).err().expect("a file is no disk");
        assert!(named.message.contains("has no motor that could be told to stop") && named.message.contains("`motor` below [spin]"));
        let missing = Motor::find(&Which::Named("/dev/no-such-disk".into()), file.path()).err().expect("there is none");
        assert!(missing.message.starts_with("/dev/no-such-disk: No such file"), "{}", missing.message);
    }
}

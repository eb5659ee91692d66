//! Which disk a file or a block device lies on, as the kernel shows it below `/sys`.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A disk of a partition of a mapping of a loop device of a file …: more than anybody has, and an end to circles.
const LAYERS: usize = 16;

/// The disk below `path`: itself, that of a partition or of a mapping onto one device, or the one that a file system lies on.
///
/// # Errors
/// One line: there are several, or none that can be named.
pub fn below(path: &Path) -> Result<PathBuf, String> {
    below_in(Path::new("/sys"), path)
}

/// The kernel says that nothing turns in this disk.
pub fn stands_still_anyway(disk: &Path) -> bool {
    let said = folder(disk).map(|folder| fs::read_to_string(folder.join("queue/rotational")));
    said.is_some_and(|said| said.is_ok_and(|said| said.trim() == "0"))
}

/// Does the system start a SCSI disk that somebody finds stopped?
pub fn is_started_for_others(disk: &Path) -> bool {
    is_started_in(Path::new("/sys"), disk)
}

fn is_started_in(sys: &Path, disk: &Path) -> bool {
    let folder = number_of(disk).ok().and_then(|number| folder_in(sys, &number));
    let disks = folder.into_iter().flat_map(|folder| fs::read_dir(folder.join("device/scsi_disk"))).flatten().flatten();
    let mut said = disks.map(|disk| fs::read_to_string(disk.path().join("allow_restart")));
    said.any(|said| said.is_ok_and(|said| said.trim() == "1"))
}

/// As the kernel calls it, whatever the name it has here.
pub fn name(disk: &Path) -> OsString {
    let named = folder(disk).and_then(|folder| folder.file_name().map(OsStr::to_owned));
    named.unwrap_or_else(|| disk.file_name().unwrap_or_default().to_owned())
}

/// The folder of this disk, or of the one that this partition is a part of: the same for whatever name it has.
pub fn folder(disk: &Path) -> Option<PathBuf> {
    folder_in(Path::new("/sys"), &number_of(disk).ok()?)
}

fn folder_in(sys: &Path, number: &str) -> Option<PathBuf> {
    let device = fs::canonicalize(sys.join("dev/block").join(number)).ok()?;
    if device.join("partition").exists() { device.parent().map(Path::to_owned) } else { Some(device) }
}

/// What a disk has been asked for, by whomever, as the kernel counts it (`stat`, Documentation/block/stat.rst).
pub struct Uses(File);

impl Uses {
    /// None: it is not counted.
    pub fn of(folder: &Path) -> Option<Uses> {
        let uses = Uses(File::open(folder.join("stat")).ok()?);
        uses.count().map(|_| uses)
    }

    /// Reads, writes, discards and flushes that have ended; older kernels count fewer of them.
    pub fn count(&self) -> Option<u64> {
        const ENDED: [usize; 4] = [0, 4, 11, 15];
        let mut bytes = [0; 512];
        let length = self.0.read_at(&mut bytes, 0).ok()?;
        let numbers: Result<Vec<u64>, _> = std::str::from_utf8(&bytes[..length]).ok()?.split_whitespace().map(str::parse).collect();
        let numbers = numbers.ok().filter(|numbers| numbers.len() > ENDED[1])?;
        Some(ENDED.iter().filter_map(|&place| numbers.get(place)).fold(0, |all: u64, &number| all.wrapping_add(number)))
    }
}

fn below_in(sys: &Path, path: &Path) -> Result<PathBuf, String> {
    let number = number_of(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let unnamed = || format!("the disk below {} has no name here (its file system is of several devices, or of none)", path.display());
    let mut device = fs::canonicalize(sys.join("dev/block").join(number)).map_err(|_| unnamed())?;
    for _ in 0..LAYERS {
        if device.join("partition").exists() {
            device = device.parent().ok_or_else(unnamed)?.to_owned();
        } else if let Ok(file) = fs::read_to_string(device.join("loop/backing_file")) {
            return below_in(sys, Path::new(file.trim_end_matches('\n')));
        } else {
            let mut slaves: Vec<_> = fs::read_dir(device.join("slaves")).into_iter().flatten().flatten().collect();
            match slaves.len() {
                0 => {
                    let name = device.file_name().ok_or_else(unnamed)?;
                    return Ok(Path::new("/dev").join(name));
                }
                1 => device = fs::canonicalize(slaves.remove(0).path()).map_err(|_| unnamed())?,
                _ => {
                    let mut names: Vec<String> = slaves.iter().map(|slave| slave.file_name().to_string_lossy().into_owned()).collect();
                    names.sort();
                    return Err(format!("below {} are several disks ({}), and one motor is told", path.display(), names.join(", ")));
                }
            }
        }
    }
    Err(unnamed())
}

/// `8:1`: of a block device its own, of a file that of its file system.
fn number_of(path: &Path) -> std::io::Result<String> {
    let metadata = fs::metadata(path)?;
    let device = if metadata.file_type().is_block_device() { metadata.rdev() } else { metadata.dev() };
    Ok(format!("{}:{}", libc::major(device), libc::minor(device)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A `/sys` in which a file's own file system lies on such devices: pairs of a folder and what it is made of.
    struct Sys {
        root: tempfile::TempDir,
        file: tempfile::NamedTempFile,
    }

    impl Sys {
        fn new(top: &str) -> Sys {
            let sys = Sys { root: tempfile::tempdir().unwrap(), file: tempfile::NamedTempFile::new().unwrap() };
            fs::create_dir_all(sys.device(top)).unwrap();
            fs::create_dir_all(sys.root.path().join("dev/block")).unwrap();
            symlink(sys.device(top), sys.root.path().join("dev/block").join(number_of(sys.file.path()).unwrap())).unwrap();
            sys
        }

        fn device(&self, name: &str) -> PathBuf {
            self.root.path().join("devices").join(name)
        }

        fn lies_on(self, upper: &str, lower: &str) -> Sys {
            fs::create_dir_all(self.device(lower)).unwrap();
            let slaves = self.device(upper).join("slaves");
            fs::create_dir_all(&slaves).unwrap();
            symlink(self.device(lower), slaves.join(Path::new(lower).file_name().unwrap())).unwrap();
            self
        }

        fn partition(self, name: &str) -> Sys {
            fs::create_dir_all(self.device(name)).unwrap();
            fs::write(self.device(name).join("partition"), "1\n").unwrap();
            self
        }

        fn disk(&self) -> Result<PathBuf, String> {
            below_in(self.root.path(), self.file.path())
        }
    }

    #[test]
    fn partitions_mappings_and_both_lead_to_their_disk() {
        assert_eq!(Sys::new("sdb").disk(), Ok("/dev/sdb".into()));
        assert_eq!(Sys::new("sdb/sdb1").partition("sdb/sdb1").disk(), Ok("/dev/sdb".into()));
        let encrypted = Sys::new("dm-0").lies_on("dm-0", "sdc/sdc2").partition("sdc/sdc2");
        assert_eq!(encrypted.disk(), Ok("/dev/sdc".into()));
        let volume = Sys::new("dm-1").lies_on("dm-1", "dm-0").lies_on("dm-0", "sdc/sdc2").partition("sdc/sdc2");
        assert_eq!(volume.disk(), Ok("/dev/sdc".into()));
    }

    #[test]
    fn several_disks_are_named_and_none_is_chosen() {
        let array = Sys::new("md0").lies_on("md0", "sdc").lies_on("md0", "sdb");
        let why = array.disk().unwrap_err();
        assert!(why.ends_with("are several disks (sdb, sdc), and one motor is told"), "{why}");
    }

    #[test]
    fn a_disk_that_is_named_by_a_link_is_looked_at_all_the_same() {
        let sys = Sys::new("sdb");
        let link = sys.root.path().join("wwn-0x5000c500a1b2c3d4");
        symlink(sys.file.path(), &link).unwrap();
        let scsi = sys.device("sdb").join("device/scsi_disk/0:0:0:0");
        fs::create_dir_all(&scsi).unwrap();
        for (said, expected) in [("0\n", false), ("1\n", true)] {
            fs::write(scsi.join("allow_restart"), said).unwrap();
            assert_eq!(is_started_in(sys.root.path(), &link), expected, "{said:?}");
        }
        assert!(!is_started_in(Path::new("/nowhere"), &link));
    }

    #[test]
    fn a_partition_and_its_disk_are_one_disk() {
        let (whole, part) = (Sys::new("sdb"), Sys::new("sdb/sdb1").partition("sdb/sdb1"));
        for sys in [whole, part] {
            let folder = folder_in(sys.root.path(), &number_of(sys.file.path()).unwrap()).unwrap();
            assert_eq!(folder, fs::canonicalize(sys.device("sdb")).unwrap());
        }
        assert_eq!(folder_in(Path::new("/nowhere"), "8:1"), None);
    }

    #[test]
    fn what_has_ended_at_a_disk_is_counted_and_not_how_long_it_took() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Uses::of(folder.path()).is_none());
        let counts = |text: &str| {
            fs::write(folder.path().join("stat"), text).unwrap();
            Uses::of(folder.path()).and_then(|uses| uses.count())
        };
        let before = counts("  1500 20 3000 400 70 8 9000 10 0 11 12 3 0 4 5 60 7\n");
        assert_eq!(before, Some(1_500 + 70 + 3 + 60));
        assert_eq!(counts("  1500 20 3000 400 70 8 9000 10 2 99 99 3 0 4 5 60 7\n"), before);
        assert_eq!(counts("  1500 20 3000 400 70 8 9000 10 0 11 12\n"), Some(1_570));
        assert_eq!((counts(""), counts("one two three four five six")), (None, None));
    }

    #[test]
    fn a_circle_and_a_device_without_a_name_are_said_so() {
        let circle = Sys::new("dm-0").lies_on("dm-0", "dm-1").lies_on("dm-1", "dm-0");
        assert!(circle.disk().unwrap_err().contains("has no name here"));
        let nothing = tempfile::tempdir().unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(below_in(nothing.path(), file.path()).unwrap_err().contains("has no name here"));
    }
}

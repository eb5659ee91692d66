//! Who holds a file or a block device: mounts, holders, loop devices and locks, as the kernel lists them; and whether it takes discards.
//! Only for messages and for refusing early; what really excludes others is the lock on the descriptor that the I/O uses.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Major and minor number of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Number {
    major: u32,
    minor: u32,
}

impl Number {
    fn of(device: u64) -> Number {
        Number { major: libc::major(device), minor: libc::minor(device) }
    }

    fn sys(self) -> PathBuf {
        PathBuf::from(format!("/sys/dev/block/{}:{}", self.major, self.minor))
    }
}

/// Why `path` must not be touched ("mounted at /srv"), if the kernel knows a reason. Nothing to say about what cannot be looked at.
pub fn reason(path: &Path) -> Option<String> {
    let metadata = fs::metadata(path).ok()?;
    if metadata.file_type().is_block_device() {
        let number = Number::of(metadata.rdev());
        return mount_point(number).map(|at| format!("mounted at {at}")).or_else(|| holder(number)).or_else(|| swap(path));
    }
    backing_loop(&metadata).or_else(|| swap(path))
}

/// Does this block device say that it takes discards? Where nothing is said, trying tells.
pub(super) fn takes_discards(device: &fs::File) -> bool {
    let Ok(metadata) = device.metadata() else { return true };
    let sys = Number::of(metadata.rdev()).sys();
    // A partition's queue is that of its disk.
    let said = ["queue", "../queue"].into_iter().find_map(|queue| fs::read_to_string(sys.join(queue).join("discard_max_bytes")).ok());
    said.is_none_or(|most| most.trim() != "0")
}

/// What drives a block device, or the one that a file lies on: `virtio_blk`, `nvme`, `sd`; where there is no driver, its name without number.
pub(super) fn driver(metadata: &fs::Metadata) -> Option<String> {
    let number = if metadata.file_type().is_block_device() { metadata.rdev() } else { metadata.dev() };
    let sys = fs::canonicalize(Number::of(number).sys()).ok()?;
    let of = |device: &Path| Some(fs::canonicalize(device.join("device/driver")).ok()?.file_name()?.to_string_lossy().into_owned());
    let name = || Some(sys.file_name()?.to_string_lossy().trim_end_matches(|c: char| c.is_ascii_digit()).to_owned());
    of(&sys).or_else(|| of(sys.parent()?)).or_else(name)
}

/// Where the device or one of its partitions is mounted.
fn mount_point(number: Number) -> Option<String> {
    let mut numbers = vec![number];
    let parts = fs::read_dir(number.sys()).into_iter().flatten().flatten();
    numbers.extend(parts.filter_map(|part| parse_number(&fs::read_to_string(part.path().join("dev")).ok()?)));
    // Fields of mountinfo: id, parent, major:minor, root, mount point, …
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(2);
        let mounted = parse_number(fields.next()?)?;
        let at = fields.nth(1)?;
        numbers.contains(&mounted).then(|| at.replace("\\040", " "))
    })
}

fn parse_number(text: &str) -> Option<Number> {
    let (major, minor) = text.trim().split_once(':')?;
    Some(Number { major: major.parse().ok()?, minor: minor.parse().ok()? })
}

/// A device-mapper, RAID or similar device on top of it.
fn holder(number: Number) -> Option<String> {
    let name = fs::read_dir(number.sys().join("holders")).ok()?.flatten().next()?.file_name();
    Some(format!("held by /dev/{}", name.to_string_lossy()))
}

fn swap(path: &Path) -> Option<String> {
    let path = fs::canonicalize(path).ok()?;
    let swaps = fs::read_to_string("/proc/swaps").ok()?;
    swaps.lines().skip(1).any(|line| line.split_whitespace().next() == path.to_str()).then(|| "used as swap space".to_string())
}

/// The loop device that a file is attached to.
fn backing_loop(file: &fs::Metadata) -> Option<String> {
    fs::read_dir("/sys/block").ok()?.flatten().find_map(|device| {
        let backing = fs::read_to_string(device.path().join("loop/backing_file")).ok()?;
        let backing = fs::metadata(backing.trim_end_matches('\n')).ok()?;
        let same = backing.ino() == file.ino() && backing.dev() == file.dev();
        same.then(|| format!("attached to /dev/{} (losetup)", device.file_name().to_string_lossy()))
    })
}

/// Says to whoever asks that a name in this folder is in use: a lock to share on the descriptor, on a byte of the folder that stands for the name. It ends
/// with the descriptor. Nothing is written, so it may be a folder that cannot be; where there are no such locks, nobody is told.
pub(crate) fn mark(folder: &fs::File, name: &OsStr) {
    let _ = lock(folder, libc::F_OFD_SETLK, &mut byte_of(name, libc::F_RDLCK));
}

/// Is a name in this folder in use by whoever has marked it on another descriptor?
pub(crate) fn is_marked(folder: &fs::File, name: &OsStr) -> bool {
    let mut found = byte_of(name, libc::F_WRLCK);
    lock(folder, libc::F_OFD_GETLK, &mut found).is_ok() && i32::from(found.l_type) != libc::F_UNLCK
}

/// FNV-1a: the same in every program, and no two names of one folder share a byte but by chance.
fn byte_of(name: &OsStr, kind: i32) -> libc::flock {
    let hash = name.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
    // Behind it there is one byte more that can be counted.
    let l_start = (hash >> 2) as libc::off_t;
    libc::flock { l_type: kind as libc::c_short, l_whence: libc::SEEK_SET as libc::c_short, l_start, l_len: 1, l_pid: 0 }
}

fn lock(folder: &fs::File, command: i32, of: &mut libc::flock) -> io::Result<()> {
    // SAFETY: `of` is a valid flock for the length of the call, which is all that these commands read and write.
    let result = unsafe { libc::fcntl(folder.as_raw_fd(), command, of) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Who holds the lock on a file.
pub enum Locker {
    /// A process that runs: its number and its name.
    Process(String, String),
    /// One that has ended, while the kernel still works on what it asked for.
    Ended(String),
    /// One that `/proc/locks` does not show, as it shows none of other containers, nor in a container any that has ended.
    Unseen,
}

impl Locker {
    pub fn of(file: &fs::Metadata) -> Locker {
        let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
        let number = Number::of(file.dev());
        let place = format!("{:02x}:{:02x}:{}", number.major, number.minor, file.ino());
        // "1: FLOCK  ADVISORY  WRITE 4711 fe:00:5505 0 EOF"; waiting locks have an arrow behind the number.
        let pid = locks.lines().filter(|line| !line.contains("->")).find_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            (fields.get(5) == Some(&place.as_str())).then(|| fields[4].to_string())
        });
        match pid.map(|pid| (fs::read_to_string(format!("/proc/{pid}/comm")), pid)) {
            Some((Ok(name), pid)) => Locker::Process(pid, name.trim().to_string()),
            Some((Err(_), pid)) => Locker::Ended(pid),
            None => Locker::Unseen,
        }
    }

    /// Whether the lock may go by itself, once the last I/O of who held it is over.
    pub fn may_have_ended(&self) -> bool {
        !matches!(self, Locker::Process(..))
    }
}

impl fmt::Display for Locker {
    /// "process 4711 (tidegate)"
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Locker::Process(pid, name) => write!(f, "process {pid} ({name})"),
            Locker::Ended(pid) => write!(f, "process {pid} (ended, but its I/O has not)"),
            Locker::Unseen => f.write_str("a process that is not seen from here (of another container, or ended, but its I/O has not)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_in_a_folder_is_in_use_for_others_as_long_as_somebody_has_marked_it() {
        let folder = tempfile::tempdir().unwrap();
        let open = || fs::File::open(folder.path()).unwrap();
        let [name, other] = ["tidegate.state", "media.state"].map(OsStr::new);
        let (first, second, asker) = (open(), open(), open());
        assert!(!is_marked(&asker, name));
        mark(&first, name);
        mark(&second, name);
        assert!(is_marked(&asker, name) && is_marked(&first, name) && !is_marked(&asker, other));
        drop(first);
        assert!(is_marked(&asker, name) && !is_marked(&second, name), "what one has marked oneself is nobody else's");
        drop(second);
        assert!(!is_marked(&asker, name));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

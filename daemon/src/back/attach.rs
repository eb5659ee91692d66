//! Is this cache ours, and does it belong to this origin? Everything that is refused before an engine exists.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use tidegate_engine::block::{ATOM_BYTES, PAGE_ATOMS, PAGE_BYTES, Span};
use tidegate_engine::cache::format::superblock::{UNKNOWN, foreign};
use tidegate_engine::cache::format::{KNOWN_VERSIONS, Superblock, Unsealed};
use tidegate_engine::op::DeviceId;

use super::disk::{Access, Disk, Kind, is_missing};
use crate::Failure;

/// Where the two superblocks lie, in atoms: whatever the geometry.
const COPIES: [u64; 2] = [0, 1024];
/// What [`foreign`] wants to see.
const FIRST_ATOMS: u64 = 256;

/// A cache and its origin, opened, locked and fit for each other.
pub struct Attached {
    pub cache: Disk,
    pub origin: Disk,
    pub superblock: Superblock,
    /// What the operator should know: one line each.
    pub notes: Vec<String>,
}

/// Opens both and refuses what is not ours.
///
/// # Errors
/// One line: what, where, what to do.
pub fn attach(cache: &Path, origin: &Path) -> Result<Attached, Failure> {
    attached(Held::open(cache, origin)?)
}

/// Both disks of a volume, opened and locked, whatever is on them.
#[derive(Debug)]
pub struct Held {
    pub cache: Disk,
    pub origin: Disk,
}

impl Held {
    /// In this order, as whoever makes a volume does: of two who want the same one waits, and the other has both.
    ///
    /// # Errors
    /// One line: they are one, or one of them cannot be had.
    pub fn open(cache: &Path, origin: &Path) -> Result<Held, Failure> {
        distinct(cache, origin)?;
        if is_missing(cache) && is_missing(origin) {
            let (cache, origin) = (cache.display(), origin.display());
            let what = format!("neither origin {origin} nor cache {cache} is there; name others, or make them with `tidegate create`");
            return Err(Failure::new(Failure::NO_INPUT, what));
        }
        let origin = Disk::open(origin, DeviceId::Origin, Access::Alone)?;
        Ok(Held { cache: Disk::open(cache, DeviceId::Cache, Access::Alone)?, origin })
    }

    /// Refuses what is not ours. They stay locked without a moment between until both this and what is answered are gone.
    ///
    /// # Errors
    /// As [`attach`].
    pub fn attach(&self) -> Result<Attached, Failure> {
        let failed = |error| Failure::new(Failure::SYSTEM, format!("no descriptor for a disk: {error}"));
        attached(Held { cache: self.cache.twin().map_err(failed)?, origin: self.origin.twin().map_err(failed)? })
    }
}

fn attached(Held { cache, origin }: Held) -> Result<Attached, Failure> {
    let superblock = superblock(&cache).map_err(|failure| swapped(failure, &cache, &origin))?;
    let mut notes: Vec<String> = [&cache, &origin].iter().filter_map(|disk| disk.note()).collect();
    notes.extend(belongs(&superblock, &cache, &origin, identity(&origin))?);
    Ok(Attached { cache, origin, superblock, notes })
}

/// Waits a moment until each of them could be had alone again: what io_uring was closed with it lets go a little later, and whoever is told that a
/// disk is free mounts it at once.
pub fn await_release(disks: &[(&Path, DeviceId)]) {
    const MOST: Duration = Duration::from_secs(1);
    let started = Instant::now();
    let is_busy =
        |&(path, role): &(&Path, DeviceId)| Disk::open(path, role, Access::Alone).is_err_and(|failure| failure.code == Failure::BUSY);
    while disks.iter().any(is_busy) && started.elapsed() < MOST {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// One file under two names would be overwritten by its own cache.
pub fn distinct(cache: &Path, origin: &Path) -> Result<(), Failure> {
    refuse_shared(&[[cache, origin]])
}

/// A file or device serves one purpose in one volume, under whatever names. `volumes`: the cache and the origin of each.
///
/// # Errors
/// One line that names both places.
pub fn refuse_shared(volumes: &[[&Path; 2]]) -> Result<(), Failure> {
    let purposes = ["cache", "origin"];
    let all: Vec<_> = volumes.iter().flat_map(|paths| purposes.into_iter().zip(*paths)).collect();
    for (place, (purpose, path)) in all.iter().enumerate() {
        if let Some((earlier, other)) = all[..place].iter().find(|(_, other)| is_same(path, other)) {
            let (path, other) = (path.display(), other.display());
            let message = format!("{earlier} {other} and {purpose} {path} are one and the same; name two different ones");
            return Err(Failure::new(Failure::REFUSED, message));
        }
    }
    Ok(())
}

/// Do both names lead to one file or device? Of what is not there yet, nothing is known but its name.
pub fn is_same(one: &Path, other: &Path) -> bool {
    let (Ok(one), Ok(other)) = (fs::metadata(one), fs::metadata(other)) else { return one == other };
    let same_file = one.ino() == other.ino() && one.dev() == other.dev();
    same_file || (one.rdev() != 0 && one.rdev() == other.rdev() && one.mode() & libc::S_IFMT == other.mode() & libc::S_IFMT)
}

/// What a disk holds where a cache would have its superblocks.
pub enum Contents {
    /// Zeros.
    Blank,
    /// An intact cache of this version.
    Ours(Box<Superblock>),
    /// A cache of ours that cannot be served: why.
    Unreadable(Failure),
    /// Something else: what.
    Foreign(&'static str),
    /// Something else, and by a superblock that is there too it would be this. It was a cache once, or still is one that was written over in part.
    Covered(Cover, Box<Contents>),
}

/// What of somebody else's is on a disk that has a superblock of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cover {
    what: &'static str,
    /// It lies between both superblocks, which are intact; else it begins in the place of the first one.
    is_between: bool,
}

/// Looks at both superblocks, and if there is none at what is there instead.
pub fn contents(disk: &Disk) -> Result<Contents, Failure> {
    let path = disk.path().display();
    let failed = |error: std::io::Error| Failure::new(Failure::IO, format!("cache {path}: its superblocks cannot be read: {error}"));
    let mut copies = Vec::new();
    for (copy, start) in COPIES.into_iter().enumerate() {
        if start + PAGE_ATOMS <= disk.atoms() {
            // A copy that cannot be read is as bad as one that is damaged: the other one counts.
            copies.push(disk.read_now(Span::new(start, PAGE_ATOMS)).map(|page| Superblock::decode(page.as_slice(), copy as u32)));
        }
    }
    if copies.iter().all(Result::is_err)
        && let Some(Err(error)) = copies.pop()
    {
        return Err(failed(error));
    }
    let copies: Vec<_> = copies.into_iter().map(|copy| copy.unwrap_or(Err(Unsealed::Checksum))).collect();
    let first = disk.read_now(Span::new(0, FIRST_ATOMS.min(disk.atoms())));
    // What cannot be read there is no reason to refuse a cache.
    let others = first.as_ref().ok().and_then(|first| others(first.as_slice(), &copies));
    match (others, judge(disk, &copies)) {
        (Some(what), Some(judged)) => Ok(Contents::Covered(what, Box::new(judged))),
        (None, Some(judged)) => Ok(judged),
        (_, None) => Ok(foreign(first.map_err(failed)?.as_slice()).map_or(Contents::Blank, Contents::Foreign)),
    }
}

/// What is known to be somebody else's at the beginning of a disk. Tables of partitions and most file systems leave our second superblock where it
/// is, so it proves nothing beside them; and what begins behind the first one (a member of a RAID array) leaves both.
fn others(first: &[u8], copies: &[Result<Superblock, Unsealed>]) -> Option<Cover> {
    let (page, rest) = first.split_at_checked(PAGE_BYTES as usize)?;
    let (is_between, found) = match copies {
        [Err(Unsealed::Magic | Unsealed::Blank), ..] => (false, foreign(first)),
        // Between them we leave zeros.
        [Ok(_), Ok(_)] => (true, foreign(&[&vec![0; page.len()], rest].concat())),
        _ => return None,
    };
    found.filter(|&what| what != UNKNOWN).map(|what| Cover { what, is_between })
}

/// What it is, and what to do about it ([`Contents::Covered`]): as far as is looked at, nothing of ours lies there but the first superblock, which
/// stays if it is one.
pub(crate) fn covered(Cover { what, is_between }: Cover) -> String {
    let (is, where_to) = if is_between {
        (format!("has both superblocks of a tidegate cache and {what} between them"), "byte 4096 to byte 131071")
    } else {
        (format!("begins with {what} and has the superblock of a tidegate cache further on"), "its first 128 KiB")
    };
    format!(
        "{is}; name another one, or overwrite it with `tidegate create --force`; or, if it is still that cache, overwrite {where_to} with zeros"
    )
}

/// What the copies say; nothing if neither is a superblock of ours.
fn judge(disk: &Disk, copies: &[Result<Superblock, Unsealed>]) -> Option<Contents> {
    let path = disk.path().display();
    let newer = copies.iter().find_map(|copy| match copy {
        Err(Unsealed::Version(version)) => Some(*version),
        Ok(_) | Err(_) => None,
    });
    if let Some(version) = newer {
        let message =
            format!("cache {path} has format version {version}, this program knows {KNOWN_VERSIONS}; use the program that wrote it");
        return Some(Contents::Unreadable(Failure::new(Failure::REFUSED, message)));
    }
    let mut intact: Vec<&Superblock> = copies.iter().flatten().collect();
    intact.sort_by_key(|superblock| superblock.sequence);
    if let Some(newest) = intact.last() {
        if intact.iter().any(|superblock| superblock.format != newest.format) {
            let message = format!("cache {path} has superblocks of two formats; run `tidegate create --force` to format it again");
            return Some(Contents::Unreadable(Failure::new(Failure::DAMAGED, message)));
        }
        return Some(Contents::Ours(Box::new((*newest).clone())));
    }
    let damaged = |copy: &Result<Superblock, Unsealed>| matches!(copy, Err(Unsealed::Checksum | Unsealed::Field(_) | Unsealed::Address));
    if !copies.iter().any(damaged) {
        return None;
    }
    let why: Vec<String> = copies.iter().filter_map(|copy| copy.as_ref().err().map(Unsealed::to_string)).collect();
    let message = format!("cache {path}: both superblocks are damaged ({}); restore it from a copy, or format it again", why.join(" / "));
    Some(Contents::Unreadable(Failure::new(Failure::DAMAGED, message)))
}

/// The newest superblock of a cache of ours that can be served.
pub fn superblock(disk: &Disk) -> Result<Superblock, Failure> {
    let path = disk.path().display();
    let refused = |what: String| Err(Failure::new(Failure::REFUSED, format!("cache {path} {what}")));
    let superblock = match contents(disk)? {
        Contents::Ours(superblock) => superblock,
        Contents::Unreadable(failure) => return Err(failure),
        Contents::Blank => return refused("is blank; run `tidegate create` to format it".to_string()),
        Contents::Foreign(what) => {
            return refused(format!("holds {what}; name another one, or overwrite it with `tidegate create --force`"));
        }
        Contents::Covered(cover, _) => return refused(covered(cover)),
    };
    if superblock.detached {
        return refused("was detached from its origin, which alone holds everything; run `tidegate attach` to use it again".to_string());
    }
    let needed = superblock.geometry.cache_atoms();
    if disk.atoms() < needed {
        let (has, needs) = (disk.bytes(), needed * ATOM_BYTES);
        return refused(format!("has {has} bytes and was formatted with {needs}; give it back its former size"));
    }
    Ok(*superblock)
}

/// A helpful word if the cache is where the origin should be.
pub(crate) fn swapped(failure: Failure, cache: &Disk, origin: &Disk) -> Failure {
    match contents(origin) {
        Ok(Contents::Ours(_)) if failure.code == Failure::REFUSED => {
            let (cache, origin) = (cache.path().display(), origin.path().display());
            Failure::new(Failure::REFUSED, format!("origin {origin} holds a tidegate cache and cache {cache} does not; swap the two"))
        }
        Ok(_) | Err(_) => failure,
    }
}

/// Is this the origin that the cache was made for? Answers with what is worth a note.
pub(super) fn belongs(superblock: &Superblock, cache: &Disk, origin: &Disk, identity: [u8; 16]) -> Result<Option<String>, Failure> {
    let (cache, path) = (cache.path().display(), origin.path().display());
    let refused = |what: String| Err(Failure::new(Failure::REFUSED, format!("origin {path} {what}")));
    if superblock.origin != [0; 16] && identity != [0; 16] && superblock.origin != identity {
        let (found, made_for) = (hex(&identity), hex(&superblock.origin));
        return refused(format!("is another device ({found}) than cache {cache} was made for ({made_for}); attach that one"));
    }
    let volume = superblock.geometry.volume_atoms;
    if origin.atoms() < volume {
        let (has, needs) = (origin.bytes(), volume * ATOM_BYTES);
        return refused(format!("has {has} bytes, cache {cache} was made for one of {needs}; attach that one, or give it back its size"));
    }
    Ok((origin.atoms() > volume).then(|| {
        let (has, serves) = (origin.bytes(), volume * ATOM_BYTES);
        format!("origin {path} is larger than the volume: it has {has} bytes, {serves} of them are served; `tidegate grow` (or `--grow`) takes in the rest")
    }))
}

/// What tells an origin from others of its size, as far as the system knows it: a hash of a device's serial number or world-wide
/// name and of the partition. Zero for files, which may be copied and moved, and where nothing is known.
pub fn identity(origin: &Disk) -> [u8; 16] {
    let unknown = [0; 16];
    let (Kind::Block, Ok(metadata)) = (origin.kind(), origin.metadata()) else { return unknown };
    let device = format!("/sys/dev/block/{}:{}", libc::major(metadata.rdev()), libc::minor(metadata.rdev()));
    let partition = fs::read_to_string(format!("{device}/partition")).unwrap_or_default();
    let whole = if partition.is_empty() { device } else { format!("{device}/..") };
    let known = ["wwid", "device/wwid", "serial", "device/serial", "dm/uuid", "md/uuid"];
    let serial = known.iter().find_map(|file| fs::read_to_string(format!("{whole}/{file}")).ok().filter(|text| !text.trim().is_empty()));
    match serial {
        Some(serial) => digest(&format!("{} {}", serial.trim(), partition.trim())),
        None => unknown,
    }
}

/// FNV-1a with 128 bits: tells devices apart; no protection against a forger.
fn digest(text: &str) -> [u8; 16] {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    text.bytes().fold(BASIS, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME)).to_le_bytes()
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

const _: () = assert!(PAGE_BYTES == 4096 && COPIES[1] * ATOM_BYTES == 512 << 10 && FIRST_ATOMS * ATOM_BYTES == 128 << 10);

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_engine::cache::format::{FormatId, Geometry};

    #[test]
    fn an_origin_of_another_identity_is_refused_with_both() {
        let folder = tempfile::tempdir().expect("a folder");
        let disk = |name: &str, role| {
            let path = folder.path().join(name);
            fs::File::create(&path).and_then(|file| file.set_len(32 << 20)).expect("a file of the test");
            Disk::open(&path, role, Access::Alone).expect("a free file")
        };
        let (cache, origin) = (disk("cache", DeviceId::Cache), disk("origin", DeviceId::Origin));
        let geometry = Geometry { block_atoms: 8, set_slots: 8, sets: 16, journal_pages: 64, volume_atoms: 512, range_entries: 252 };
        let of = |origin: u8| Superblock::new(FormatId([1; 16]), geometry, [2; 16], [origin; 16]);
        // What is not known on either side refuses nothing.
        for (made_for, found) in [(7, 7), (0, 7), (7, 0), (0, 0)] {
            belongs(&of(made_for), &cache, &origin, [found; 16]).expect("the same, or not known");
        }
        let refused = belongs(&of(7), &cache, &origin, [9; 16]).expect_err("another one");
        assert_eq!(refused.code, Failure::REFUSED);
        for part in ["07".repeat(16), "09".repeat(16), "origin".to_owned(), origin.path().display().to_string()] {
            assert!(refused.message.contains(&part) && !refused.message.contains('\n'), "{part}: {refused}");
        }
    }
}

//! `tidegate create`: makes the files that are missing and formats the cache. The origin's contents are never touched, and nothing
//! that somebody may still want is overwritten without `force`.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use tidegate_engine::Mode;
use tidegate_engine::block::{ATOM_BYTES, PAGE_BYTES};
use tidegate_engine::cache::format::{FormatId, Geometry, Step, Superblock, create_steps};
use tidegate_engine::op::DeviceId;

use crate::Failure;
use crate::back::attach::{Contents, Held, contents, distinct, identity};
use crate::back::disk::{Access, Disk, name, reserve};
use crate::check::look_through;
use crate::whole::remove;

/// What to make.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    pub origin: PathBuf,
    pub cache: PathBuf,
    /// Size of the origin if it does not exist: a sparse file. `None`: it must exist.
    pub origin_bytes: Option<u64>,
    /// Size of the cache if it does not exist: a file whose space is reserved where the file system can. `None`: it must exist.
    pub cache_bytes: Option<u64>,
    pub block_bytes: u32,
    pub set_bytes: u32,
    /// Overwrite what the cache holds.
    pub force: bool,
    /// What a FLUSH is to promise, unless the configuration says so.
    pub mode: Mode,
}

impl CreateOptions {
    /// Blocks of 4 KiB in sets of 1 MiB, on what exists, with care.
    pub fn new(origin: PathBuf, cache: PathBuf) -> CreateOptions {
        CreateOptions {
            origin,
            cache,
            origin_bytes: None,
            cache_bytes: None,
            block_bytes: 4 << 10,
            set_bytes: 1 << 20,
            force: false,
            mode: Mode::WriteBack,
        }
    }
}

/// What was made.
#[derive(Debug)]
pub struct Created {
    pub geometry: Geometry,
    /// Nobody else has had them since they were made.
    pub held: Held,
    pub origin_is_new: bool,
    pub cache_is_new: bool,
    /// Worth knowing, one line each.
    pub notes: Vec<String>,
}

impl Created {
    pub fn volume_bytes(&self) -> u64 {
        self.geometry.volume_atoms * ATOM_BYTES
    }
}

/// Makes what is missing and formats the cache.
///
/// # Errors
/// One line. Files that were made are removed again; a cache that existed may be left blank if its device failed meanwhile.
pub fn create(options: &CreateOptions) -> Result<Created, Failure> {
    let mut made = Made(Vec::new());
    let open = |new: Option<Disk>, path, role| new.map_or_else(|| Disk::open(path, role, Access::Alone), Ok);
    let new_origin = made.ensure(&options.origin, DeviceId::Origin, options.origin_bytes)?;
    let origin_is_new = new_origin.is_some();
    // Before the cache is made: of two who make the same volume one waits here, with nothing that the other needs.
    let origin = open(new_origin, &options.origin, DeviceId::Origin)?;
    let new_cache = made.ensure(&options.cache, DeviceId::Cache, options.cache_bytes)?;
    let cache_is_new = new_cache.is_some();
    distinct(&options.cache, &options.origin)?;
    let cache = open(new_cache, &options.cache, DeviceId::Cache)?;
    let given_up = if options.force { given_up(&cache) } else { refuse_contents(&cache).map(|()| None)? };
    let geometry = geometry(options, &cache, &origin)?;
    let fresh = Superblock::new(FormatId(random()?), geometry, random()?, identity(&origin));
    // Nothing is in it: any mode is kept from its first moment.
    let superblock = Superblock { mode: options.mode, ..fresh };
    format(&cache, &superblock)?;
    made.keep()?;
    let mut notes: Vec<String> = [&cache, &origin].iter().filter_map(|disk| disk.note()).chain(given_up).collect();
    let ragged = origin.bytes() % ATOM_BYTES;
    if ragged > 0 {
        let path = options.origin.display();
        notes.push(format!("origin {path} is no multiple of 512 bytes: its last {ragged} bytes are not part of the volume"));
    }
    Ok(Created { geometry, held: Held { cache, origin }, origin_is_new, cache_is_new, notes })
}

fn refuse_contents(cache: &Disk) -> Result<(), Failure> {
    let path = cache.path().display();
    let what = match contents(cache)? {
        Contents::Blank => return Ok(()),
        Contents::Ours(superblock) => {
            let bytes = superblock.geometry.volume_atoms * ATOM_BYTES;
            if superblock.detached {
                let what = format!(
                    "cache {path} was detached from a volume of {bytes} bytes, whose origin alone holds everything; run `tidegate attach` to use it \
                     again, or `tidegate create --force` to overwrite it"
                );
                return Err(Failure::new(Failure::REFUSED, what));
            }
            format!("is the tidegate cache of a volume of {bytes} bytes already, which may hold its only copy of dirty data")
        }
        Contents::Unreadable(_) => "holds a tidegate cache that cannot be read".to_string(),
        Contents::Foreign(what) => format!("holds {what}"),
    };
    Err(Failure::new(Failure::REFUSED, format!("cache {path} {what}; run `tidegate create --force` to overwrite it")))
}

/// What goes with the cache that is there, in one line; nothing where it has been taken from its origin, or is none of ours.
fn given_up(cache: &Disk) -> Option<String> {
    match contents(cache) {
        Ok(Contents::Ours(superblock)) if !superblock.detached => {}
        Ok(Contents::Ours(_) | Contents::Blank | Contents::Unreadable(_) | Contents::Foreign(_)) | Err(_) => return None,
    }
    let path = cache.path().display();
    Some(match look_through(cache) {
        Ok(report) if report.can_be_served() && report.newer() == 0 => format!("cache {path} held nothing newer than the origin"),
        Ok(report) if report.can_be_served() => {
            format!("cache {path} held {} blocks newer than the origin, which are given up", report.newer())
        }
        Ok(_) | Err(_) => format!("cache {path} is damaged: how many blocks newer than the origin are given up with it is not known"),
    })
}

fn geometry(options: &CreateOptions, cache: &Disk, origin: &Disk) -> Result<Geometry, Failure> {
    let refused = |message: String| Failure::new(Failure::REFUSED, message);
    let (block, set) = (options.block_bytes, options.set_bytes);
    if block == 0 || !u64::from(block).is_multiple_of(ATOM_BYTES) || !set.is_multiple_of(block) {
        return Err(refused(format!("blocks of {block} bytes in sets of {set} do not fit; both are powers of two, from 512 bytes")));
    }
    let of_cache = |message| refused(format!("cache {}: {message}", options.cache.display()));
    cache.physical_bytes().map_or(Ok(()), |sector| refuse_shared_sectors(sector, u64::from(block))).map_err(of_cache)?;
    Geometry::for_cache(cache.atoms(), origin.atoms(), block / ATOM_BYTES as u32, set / block).map_err(of_cache)
}

/// A power cut while one block or journal page is written may damage no other.
fn refuse_shared_sectors(sector: u64, block: u64) -> Result<(), String> {
    let smallest = block.min(PAGE_BYTES);
    if sector <= smallest {
        return Ok(());
    }
    Err(format!(
        "the device writes {sector} bytes at once at the least, and tidegate {smallest}: a power cut could damage neighbours of what is being \
         written; take another SSD"
    ))
}

fn format(cache: &Disk, superblock: &Superblock) -> Result<(), Failure> {
    for step in create_steps(superblock) {
        match step {
            Step::Write(_, span, bytes) => cache.write_now(span, &bytes),
            Step::Flush => cache.flush_now(),
        }
        .map_err(|error| Failure::new(Failure::IO, format!("cache {} cannot be formatted: {error}", cache.path().display())))?;
    }
    Ok(())
}

fn random() -> Result<[u8; 16], Failure> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|error| Failure::new(Failure::SYSTEM, format!("/dev/urandom: {error}; a format needs a random identity")))?;
    Ok(bytes)
}

/// Files that were made, held for as long as they may have to go again: nobody else can have begun to use them. Removed unless kept.
struct Made(Vec<(PathBuf, File)>);

impl Made {
    /// Makes the file if nothing is there, and holds it.
    fn ensure(&mut self, path: &Path, role: DeviceId, bytes: Option<u64>) -> Result<Option<Disk>, Failure> {
        let failed = |code, what: String| Failure::new(code, format!("{} {}: {what}", name(role), path.display()));
        match (fs::symlink_metadata(path), bytes) {
            (Ok(_), _) => return Ok(None),
            (Err(error), Some(_)) if error.kind() == io::ErrorKind::NotFound => {}
            (Err(error), None) if error.kind() == io::ErrorKind::NotFound => {
                return Err(failed(Failure::NO_INPUT, format!("{error}; name one that exists, or give the size of a new one")));
            }
            (Err(error), _) => return Err(failed(Failure::NO_INPUT, format!("{error}; see that it can be read and written"))),
        }
        let bytes = bytes.expect("matched above");
        let file = Disk::claim(path, role)?;
        let unheld = |error: io::Error| failed(Failure::SYSTEM, format!("no descriptor of it can be had: {error}"));
        let twin = file.try_clone().inspect_err(|_| remove(path, &file)).map_err(unheld)?;
        self.0.push((path.to_owned(), twin));
        let sized = match role {
            DeviceId::Origin => file.set_len(bytes),
            DeviceId::Cache => file.set_len(bytes).and_then(|()| reserve(file.as_raw_fd(), bytes)),
        };
        sized.map_err(|error| failed(Failure::NOT_CREATED, format!("no file of {bytes} bytes can be made: {error}")))?;
        Disk::claimed(file, path, role).map(Some)
    }

    /// They stay: their names are durable.
    fn keep(mut self) -> Result<(), Failure> {
        for (path, _) in &self.0 {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            File::open(folder)
                .and_then(|folder| folder.sync_all())
                .map_err(|error| Failure::new(Failure::IO, format!("{}: {error}", folder.display())))?;
        }
        self.0.clear();
        Ok(())
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for (path, file) in &self.0 {
            remove(path, file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    fn options(folder: &Path) -> CreateOptions {
        CreateOptions {
            origin_bytes: Some(64 << 20),
            cache_bytes: Some(64 << 20),
            ..CreateOptions::new(folder.join("origin.img"), folder.join("cache.img"))
        }
    }

    #[test]
    fn a_block_shares_no_sector_with_its_neighbours() {
        for (sector, block) in [(512, 512), (512, 4096), (4096, 4096), (4096, 65_536)] {
            assert_eq!(refuse_shared_sectors(sector, block), Ok(()), "{sector}, {block}");
        }
        // Journal pages have 4 KiB, whatever the blocks.
        for (sector, block) in [(4096, 512), (16_384, 4096), (16_384, 65_536)] {
            assert!(refuse_shared_sectors(sector, block).is_err_and(|why| why.contains("take another SSD")), "{sector}, {block}");
        }
    }

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().expect("a folder")
    }

    /// Refused with this code and this in the message; the cache's first MiB is what it was.
    fn refuses(options: &CreateOptions, code: u8, what: &str) {
        let first = |path: &Path| {
            let mut bytes = vec![0; 1 << 20];
            File::open(path).and_then(|file| file.read_at(&mut bytes, 0)).map(|_| bytes).ok()
        };
        let before = first(&options.cache);
        let failure = create(options).expect_err("refused");
        assert_eq!((failure.code, failure.message.lines().count()), (code, 1), "{failure}");
        assert!(failure.message.contains(what), "{failure}");
        assert!(before == first(&options.cache));
    }

    #[test]
    fn what_is_missing_is_made_and_formatted() {
        let folder = folder();
        let created = create(&options(folder.path())).expect("created");
        assert!(created.origin_is_new && created.cache_is_new && created.notes.is_empty());
        assert_eq!(created.volume_bytes(), 64 << 20);
        let geometry = created.geometry;
        drop(created);
        let cache = Disk::open(&folder.path().join("cache.img"), DeviceId::Cache, Access::Alone).expect("there");
        let superblock = crate::back::attach::superblock(&cache).expect("ours");
        assert_eq!(superblock.geometry, geometry);
        assert_ne!(superblock.format.0, superblock.volume);
    }

    #[test]
    fn an_existing_cache_is_kept_without_force_and_gets_a_new_identity_with_it() {
        let folder = folder();
        let options = options(folder.path());
        create(&options).expect("created");
        refuses(&options, Failure::REFUSED, "is the tidegate cache of a volume of 67108864 bytes already");
        let format = || {
            let cache = Disk::open(&options.cache, DeviceId::Cache, Access::Shared).expect("there");
            crate::back::attach::superblock(&cache).expect("ours").format
        };
        let before = format();
        let notes = create(&CreateOptions { force: true, ..options.clone() }).expect("forced").notes;
        assert!(matches!(&notes[..], [note] if note.ends_with("held nothing newer than the origin")), "{notes:?}");
        assert_ne!(before, format());
    }

    #[test]
    fn a_file_system_is_never_overwritten_without_force() {
        let folder = folder();
        let options = options(folder.path());
        let file = File::create(&options.cache).expect("a file");
        file.set_len(64 << 20).and_then(|()| file.write_at(&[0x53, 0xef], 1080)).expect("written");
        refuses(&options, Failure::REFUSED, "holds an ext2 file system; run `tidegate create --force`");
        assert!(!options.origin.exists(), "the origin made on the way is gone again");
    }

    #[test]
    fn the_origin_is_never_written() {
        let folder = folder();
        let options = options(folder.path());
        let bytes: Vec<u8> = (0..(5 << 20) + 300).map(|at| (at * 7 / 3) as u8).collect();
        fs::write(&options.origin, &bytes).expect("written");
        let created = create(&options).expect("created");
        assert_eq!(created.volume_bytes(), 5 << 20);
        assert!(created.notes[0].contains("last 300 bytes"), "{:?}", created.notes);
        assert!(fs::read(&options.origin).expect("readable") == bytes);
    }

    #[test]
    fn sizes_that_cannot_be_are_refused_and_leave_nothing_behind() {
        let folder = folder();
        let good = options(folder.path());
        refuses(&CreateOptions { cache_bytes: Some(1 << 20), ..good.clone() }, Failure::REFUSED, "too small");
        refuses(&CreateOptions { block_bytes: 3000, ..good.clone() }, Failure::REFUSED, "3000");
        refuses(&CreateOptions { set_bytes: 5000, ..good.clone() }, Failure::REFUSED, "5000");
        refuses(&CreateOptions { origin_bytes: None, ..good.clone() }, Failure::NO_INPUT, "give the size");
        refuses(&CreateOptions { cache: good.origin.clone(), ..good.clone() }, Failure::REFUSED, "one and the same");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
    }
}

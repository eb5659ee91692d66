//! `tidegate create` and `attach`: make the files that are missing and format the cache. The origin's contents are never touched, and nothing
//! that somebody may still want is overwritten unasked. What may be overwritten is looked at under both locks.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use tidegate_engine::Mode;
use tidegate_engine::block::{ATOM_BYTES, PAGE_BYTES};
use tidegate_engine::cache::format::{FormatId, Geometry, Step, Superblock, create_steps};
use tidegate_engine::op::DeviceId;

use crate::Failure;
use crate::back::attach::{Contents, Held, contents, covered, distinct, identity, swapped};
use crate::back::disk::{Access, Disk, is_missing, name, reserve};
use crate::check::look_through;
use crate::dirty::Dirty;
use crate::state::{Loss, State, format_of};
use crate::whole::remove;

/// So much of a new file is reserved at once: a file system that takes its time for it can be interrupted after each.
const RESERVED_BYTES: u64 = 256 << 20;

/// What of a cache that is there may be overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overwrite {
    /// Nothing: it is blank.
    Nothing,
    /// A cache of ours that was taken from its origin.
    Detached,
    Anything,
}

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
    pub overwrite: Overwrite,
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
            overwrite: Overwrite::Nothing,
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
    /// The cache of ours that was overwritten, if there was one.
    pub replaced: Option<Superblock>,
    /// Something may be lost with what was overwritten.
    pub gives_up: bool,
    /// Worth knowing, one line each.
    pub notes: Vec<String>,
}

impl Created {
    pub fn volume_bytes(&self) -> u64 {
        self.geometry.volume_atoms * ATOM_BYTES
    }
}

/// Makes what is missing and formats the cache, in write-back.
///
/// # Errors
/// As [`Ready::hold`] and [`Ready::format`].
pub fn create(options: &CreateOptions) -> Result<Created, Failure> {
    Ready::hold(options, &mut || Ok(()))?.format(Mode::WriteBack)
}

/// Both disks, locked, and nothing speaks against formatting the cache. What of them was made goes again with it.
pub struct Ready {
    made: Made,
    held: Held,
    geometry: Geometry,
    origin_is_new: bool,
    cache_is_new: bool,
    replaced: Option<Superblock>,
    gives_up: bool,
    notes: Vec<String>,
}

impl Ready {
    /// Makes what is missing and locks both: the origin first, as everybody does, so that of two who want the same volume one waits with nothing
    /// that the other needs. Nothing that was there is changed. `go_on` is called before a file is made, again and again while its space is
    /// reserved, and from then on around everything that may take its time: it may make room for it, or end all this.
    ///
    /// # Errors
    /// One line. Files that were made are removed again.
    pub fn hold(options: &CreateOptions, go_on: &mut dyn FnMut() -> Result<(), Failure>) -> Result<Ready, Failure> {
        if options.origin_bytes.is_some() && is_missing(&options.origin) && !is_missing(&options.cache) {
            // Nobody can hold what is missing. Who waits for the cache, and is ended, has made no origin that the next one would take for its own.
            let cache = Disk::open(&options.cache, DeviceId::Cache, Access::Alone)?;
            Overwritten::judge(&cache, options)?.refuse_without_origin(&cache, &options.origin)?;
        }
        let mut made = Made::default();
        let open = |new: Option<Disk>, path, role| new.map_or_else(|| Disk::open(path, role, Access::Alone), Ok);
        let new_origin = made.ensure(&options.origin, DeviceId::Origin, options.origin_bytes, go_on)?;
        let origin_is_new = new_origin.is_some();
        let origin = open(new_origin, &options.origin, DeviceId::Origin)?;
        let new_cache = made.ensure(&options.cache, DeviceId::Cache, options.cache_bytes, go_on)?;
        let cache_is_new = new_cache.is_some();
        distinct(&options.cache, &options.origin)?;
        made.look(go_on)?;
        let cache = open(new_cache, &options.cache, DeviceId::Cache)?;
        made.look(go_on)?;
        refuse_a_cache_as_origin(&cache, &origin)?;
        let overwritten = Overwritten::judge(&cache, options)?;
        made.look(go_on)?;
        if origin_is_new {
            overwritten.refuse_without_origin(&cache, &options.origin)?;
        }
        let gives_up = overwritten.loses_anything();
        let Overwritten { superblock: replaced, given_up } = overwritten;
        let geometry = geometry(options, &cache, &origin)?;
        let mut notes: Vec<String> = [&cache, &origin].iter().filter_map(|disk| disk.note()).collect();
        notes.extend(given_up.map(|given_up| given_up.note(&cache)));
        let ragged = origin.bytes() % ATOM_BYTES;
        if ragged > 0 {
            let path = options.origin.display();
            notes.push(format!("origin {path} is no multiple of 512 bytes: its last {ragged} bytes are not part of the volume"));
        }
        Ok(Ready { made, held: Held { cache, origin }, geometry, origin_is_new, cache_is_new, replaced, gives_up, notes })
    }

    /// The cache of ours that is overwritten, if there is one.
    pub fn replaced(&self) -> Option<&Superblock> {
        self.replaced.as_ref()
    }

    /// `mode`: what a FLUSH is to promise, unless the configuration says so.
    ///
    /// # Errors
    /// One line. Files that were made are removed again; a cache that existed may be left blank if its device failed meanwhile.
    pub fn format(self, mode: Mode) -> Result<Created, Failure> {
        let Ready { made, held, geometry, origin_is_new, cache_is_new, replaced, gives_up, notes } = self;
        made.sync()?;
        let fresh = Superblock::new(FormatId(random()?), geometry, random()?, identity(&held.origin));
        // Nothing is in it: any mode is kept from its first moment.
        format(&held.cache, &Superblock { mode, ..fresh })?;
        made.keep();
        Ok(Created { geometry, held, origin_is_new, cache_is_new, replaced, gives_up, notes })
    }
}

/// Such a one would be overwritten by what goes home, and may hold the only copy of something.
fn refuse_a_cache_as_origin(cache: &Disk, origin: &Disk) -> Result<(), Failure> {
    let path = origin.path().display();
    let what = match contents(origin) {
        Ok(Contents::Ours(superblock)) if !superblock.detached => {
            let bytes = superblock.geometry.volume_atoms * ATOM_BYTES;
            format!("is the tidegate cache of a volume of {bytes} bytes, which may hold its only copy of dirty data")
        }
        Ok(Contents::Unreadable(_)) => "holds a tidegate cache that cannot be read".to_owned(),
        // An origin that does not give its first blocks is one all the same.
        Ok(Contents::Ours(_) | Contents::Blank | Contents::Foreign(_) | Contents::Covered(..)) | Err(_) => return Ok(()),
    };
    let refused = Failure::new(Failure::REFUSED, format!("origin {path} {what}; name another one"));
    Err(if matches!(contents(cache), Ok(Contents::Foreign(_) | Contents::Covered(..))) { swapped(refused, cache, origin) } else { refused })
}

/// Only what was asked for is overwritten.
fn refuse_unasked(cache: &Disk, found: &Contents, overwrite: Overwrite) -> Result<(), Failure> {
    let path = cache.path().display();
    let refused = |what: String| Err(Failure::new(Failure::REFUSED, format!("cache {path} {what}")));
    let what = match (found, overwrite) {
        (Contents::Blank, _) => return Ok(()),
        (Contents::Ours(superblock), Overwrite::Detached) if superblock.detached => return Ok(()),
        (Contents::Ours(_), Overwrite::Detached) => return refused("is attached already; serve it with `tidegate up`".to_owned()),
        (Contents::Ours(superblock), _) => {
            let bytes = superblock.geometry.volume_atoms * ATOM_BYTES;
            if superblock.detached {
                return refused(format!(
                    "was detached from a volume of {bytes} bytes, whose origin alone holds everything; run `tidegate attach` to use it again, or \
                     `tidegate create --force` to overwrite it"
                ));
            }
            format!("is the tidegate cache of a volume of {bytes} bytes already, which may hold its only copy of dirty data")
        }
        (Contents::Unreadable(_), _) => "holds a tidegate cache that cannot be read".to_owned(),
        (Contents::Foreign(what), _) => format!("holds {what}"),
        (Contents::Covered(cover, _), _) => return refused(covered(*cover)),
    };
    refused(format!("{what}; run `tidegate create --force` to overwrite it"))
}

/// What goes with a cache that is formatted.
struct Overwritten {
    /// Of a cache of ours, if it is one.
    superblock: Option<Superblock>,
    /// Of one that has not been taken from its origin, as far as can be seen.
    given_up: Option<GivenUp>,
}

impl Overwritten {
    fn judge(cache: &Disk, options: &CreateOptions) -> Result<Overwritten, Failure> {
        let found = contents(cache);
        if options.overwrite == Overwrite::Anything {
            return Ok(Overwritten::of(cache, found));
        }
        let found = found?;
        refuse_unasked(cache, &found, options.overwrite)?;
        Ok(Overwritten::of(cache, Ok(found)))
    }

    fn of(cache: &Disk, found: Result<Contents, Failure>) -> Overwritten {
        let (superblock, given_up) = match found {
            Ok(Contents::Blank | Contents::Foreign(_)) => (None, None),
            Ok(Contents::Ours(superblock)) if superblock.detached => (Some(*superblock), None),
            Ok(Contents::Ours(superblock)) => (Some(*superblock), Some(given_up(cache))),
            Ok(Contents::Covered(_, was)) if matches!(&*was, Contents::Ours(superblock) if superblock.detached) => (None, None),
            // It may be the only one that there is of what it holds, for whoever can still read it.
            Ok(Contents::Covered(..) | Contents::Unreadable(_)) | Err(_) => (None, Some(GivenUp::Unknown)),
        };
        Overwritten { superblock, given_up }
    }

    fn loses_anything(&self) -> bool {
        matches!(self.given_up, Some(GivenUp::Some(_) | GivenUp::Unknown))
    }

    /// Its origin is not gone because it is not there: its disk may not be mounted.
    fn refuse_without_origin(&self, cache: &Disk, origin: &Path) -> Result<(), Failure> {
        let blocks = match self.given_up {
            None | Some(GivenUp::None) => return Ok(()),
            Some(GivenUp::Some(blocks)) => blocks.to_string(),
            Some(GivenUp::Unknown) => "an unknown number of".to_owned(),
        };
        let what = format!(
            "cache {} holds {blocks} blocks newer than its origin, and origin {} is missing: mount its disk; or, if they may be lost, overwrite the \
             first MiB of the cache with zeros first",
            cache.path().display(),
            origin.display()
        );
        Err(Failure::new(Failure::NO_INPUT, what))
    }
}

/// How many blocks that are newer than the origin go with a cache that has not been taken from it.
enum GivenUp {
    None,
    Some(u64),
    /// It cannot be read, or not to its end.
    Unknown,
}

fn given_up(cache: &Disk) -> GivenUp {
    match look_through(cache) {
        Ok(report) if report.can_be_served() && report.newer() == 0 => GivenUp::None,
        Ok(report) if report.can_be_served() => GivenUp::Some(report.newer()),
        Ok(_) | Err(_) => GivenUp::Unknown,
    }
}

impl GivenUp {
    fn note(&self, cache: &Disk) -> String {
        let path = cache.path().display();
        match self {
            GivenUp::None => format!("cache {path} held nothing newer than the origin"),
            GivenUp::Some(blocks) => format!("cache {path} held {blocks} blocks newer than the origin, which are given up"),
            GivenUp::Unknown => {
                format!("cache {path} cannot be read: how many blocks newer than the origin are given up with it is not known")
            }
        }
    }
}

/// Which of two disks are those that the volume has, and not others that are named for this once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Own {
    pub origin: bool,
    pub cache: bool,
}

impl Created {
    /// The volume begins anew with this cache, as far as the host has known of another one in `state`: its own that was overwritten, or has failed,
    /// is given up. One that it last ran with and that may still be somewhere, with blocks that the origin does not have, is not: what was overwritten
    /// may be an older copy of it, or one in another place. Nor is anything where the origin is another one. Answers with what is worth knowing.
    ///
    /// # Errors
    /// One line; the file is as it was.
    pub fn begin_anew(&self, state: &Path, own: Own) -> Result<Vec<String>, Failure> {
        let Some(known) = State::read(state)? else { return Ok(Vec::new()) };
        let last = known.format.get(..8).unwrap_or(&known.format);
        let same = self.replaced.as_ref().filter(|replaced| format_of(replaced) == known.format);
        let is_replaced = own.origin && own.cache && same.is_some_and(|replaced| replaced.epoch >= known.epoch);
        // The next start writes its own list in the place of that one.
        let lost = || match Dirty::read(state, &known.format) {
            Some(dirty) => dirty.describe(state),
            None => vec!["lost: which blocks is not known".to_owned()],
        };
        match known.loss(state) {
            Loss::Some(held) if own.origin && known.degraded => {
                State::give_up(state)?;
                let given_up = format!("the cache that this volume last ran with ({last}…) {held}: they are given up");
                Ok([vec![given_up], lost()].concat())
            }
            _ if is_replaced => {
                State::give_up(state)?;
                // How many, it was asked itself.
                Ok(if self.gives_up { lost() } else { Vec::new() })
            }
            Loss::Some(held) => {
                let why = if same.is_some() { "may have been a copy of it" } else { "is not known to be that one" };
                Ok(vec![format!(
                    "this volume last ran with the cache {last}…, which {held}: what was overwritten {why}, so a start with the new one asks for \
                     --accept-loss"
                )])
            }
            // A start would take it as it is, unless the volume has become smaller.
            Loss::Nothing(_) if own.origin && known.bytes.is_some_and(|had| had > self.volume_bytes()) => {
                State::give_up(state).map(|()| Vec::new())
            }
            Loss::Nothing(_) => Ok(Vec::new()),
        }
    }
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
#[derive(Default)]
struct Made {
    files: Vec<(PathBuf, File)>,
    /// Whoever makes them was asked already whether he goes on: from then on he is asked again. Before that there is nothing to remove.
    has_begun: bool,
}

impl Made {
    fn look(&self, go_on: &mut dyn FnMut() -> Result<(), Failure>) -> Result<(), Failure> {
        if self.has_begun { go_on() } else { Ok(()) }
    }

    /// Makes the file if nothing is there, and holds it.
    fn ensure(
        &mut self,
        path: &Path,
        role: DeviceId,
        bytes: Option<u64>,
        go_on: &mut dyn FnMut() -> Result<(), Failure>,
    ) -> Result<Option<Disk>, Failure> {
        let failed = |code, what: String| Failure::new(code, format!("{} {}: {what}", name(role), path.display()));
        match (fs::symlink_metadata(path), bytes) {
            (Ok(_), _) => return Ok(None),
            (Err(error), Some(_)) if error.kind() == io::ErrorKind::NotFound => {}
            (Err(error), None) if error.kind() == io::ErrorKind::NotFound => {
                return Err(failed(
                    Failure::NO_INPUT,
                    format!("{error}; mount its disk, name one that exists, or give the size of a new one"),
                ));
            }
            (Err(error), _) => return Err(failed(Failure::NO_INPUT, format!("{error}; see that it can be read and written"))),
        }
        let bytes = bytes.expect("matched above");
        self.has_begun = true;
        go_on()?;
        let Some(file) = Disk::claim(path, role)? else { return Ok(None) };
        let unheld = |error: io::Error| failed(Failure::SYSTEM, format!("no descriptor of it can be had: {error}"));
        let twin = file.try_clone().inspect_err(|_| remove(path, &file)).map_err(unheld)?;
        self.files.push((path.to_owned(), twin));
        let unmade = |error| failed(Failure::NOT_CREATED, format!("no file of {bytes} bytes can be made: {error}"));
        file.set_len(bytes).map_err(unmade)?;
        if role == DeviceId::Cache {
            for from in (0..bytes).step_by(RESERVED_BYTES as usize) {
                go_on()?;
                if !reserve(file.as_raw_fd(), from, RESERVED_BYTES.min(bytes - from)).map_err(unmade)? {
                    break;
                }
            }
        }
        Disk::claimed(file, path, role).map(Some)
    }

    /// Makes their names durable.
    fn sync(&self) -> Result<(), Failure> {
        for (path, _) in &self.files {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            File::open(folder)
                .and_then(|folder| folder.sync_all())
                .map_err(|error| Failure::new(Failure::IO, format!("{}: {error}", folder.display())))?;
        }
        Ok(())
    }

    /// They stay.
    fn keep(mut self) {
        self.files.clear();
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for (path, file) in &self.files {
            remove(path, file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Place;
    use std::os::unix::fs::FileExt;
    use tidegate_engine::block::Span;

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
        let notes = create(&CreateOptions { overwrite: Overwrite::Anything, ..options.clone() }).expect("forced").notes;
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
    fn a_cache_that_is_in_use_is_no_origin_and_one_that_cannot_be_read_neither() {
        let folder = folder();
        let first = options(folder.path());
        create(&first).expect("created");
        let wrong = CreateOptions { origin: first.cache.clone(), cache: folder.path().join("other.img"), ..first.clone() };
        let forced = CreateOptions { overwrite: Overwrite::Anything, ..wrong.clone() };
        for options in [&wrong, &forced] {
            refuses(options, Failure::REFUSED, "cache.img is the tidegate cache of a volume of 67108864 bytes, which may hold");
            assert!(!options.cache.exists());
        }
        // A disk with something else on it in the place of the cache: most likely they are swapped.
        let file = File::create(&wrong.cache).expect("a file");
        file.set_len(64 << 20).and_then(|()| file.write_at(&[0x53, 0xef], 1080)).expect("written");
        for options in [&wrong, &forced] {
            refuses(options, Failure::REFUSED, "cache.img holds a tidegate cache and cache ");
        }
        fs::remove_file(&wrong.cache).expect("there");
        let cache = File::options().write(true).open(&first.cache).expect("there");
        for copy in [0, 512 << 10] {
            cache.write_at(&[0xee; 8], copy + 200).expect("written");
        }
        refuses(&wrong, Failure::REFUSED, "cache.img holds a tidegate cache that cannot be read; name another one");
    }

    /// Most of what makes a file system or a table of partitions leaves our second superblock where it is.
    #[test]
    fn a_disk_that_once_was_a_cache_and_holds_something_else_now_is_an_origin() {
        let folder = folder();
        let first = options(folder.path());
        let mut table = [0xee; 17 << 10];
        table[510..512].copy_from_slice(&[0x55, 0xaa]);
        let begins: [(&[u8], u64); 2] = [(&[0x53, 0xef], 1080), (&table, 0)];
        for (bytes, at) in begins {
            create(&CreateOptions { overwrite: Overwrite::Anything, ..first.clone() }).expect("created");
            let disk = File::options().write(true).open(&first.cache).expect("there");
            disk.write_at(&[0; 4096], 0).and_then(|_| disk.write_at(bytes, at)).expect("written");
            let cache = folder.path().join("other.img");
            let next = CreateOptions { origin: first.cache.clone(), cache: cache.clone(), ..first.clone() };
            let held = create(&next).expect("an origin").held;
            let failure = Failure::new(Failure::REFUSED, "as it was".to_owned());
            assert_eq!(swapped(failure.clone(), &held.cache, &held.origin), failure, "they are not swapped");
            fs::remove_file(cache).expect("there");
        }
    }

    /// Whoever has made it meanwhile has it; it is opened as one that is there.
    #[test]
    fn a_file_that_somebody_else_makes_at_once_is_not_claimed() {
        let folder = folder();
        let path = folder.path().join("origin.img");
        File::create(&path).expect("a file");
        assert!(Disk::claim(&path, DeviceId::Origin).expect("nothing failed").is_none());
    }

    #[test]
    fn attaching_takes_what_is_blank_or_detached_and_nothing_that_is_in_use() {
        let folder = folder();
        let options = CreateOptions { overwrite: Overwrite::Detached, ..options(folder.path()) };
        create(&options).expect("blank");
        refuses(&options, Failure::REFUSED, "cache.img is attached already; serve it with `tidegate up`");
        let cache = Disk::open(&options.cache, DeviceId::Cache, Access::Alone).expect("free");
        let superblock = crate::back::attach::superblock(&cache).expect("ours");
        crate::back::update::rewrite(&cache, &Superblock { detached: true, ..superblock.clone() }).expect("written");
        drop(cache);
        refuses(&CreateOptions { overwrite: Overwrite::Nothing, ..options.clone() }, Failure::REFUSED, "was detached from a volume");
        let created = create(&options).expect("detached");
        assert_eq!(created.replaced.expect("ours").format, superblock.format);
    }

    /// What the host knows of the cache that a volume last ran with is forgotten when its own is overwritten and is that one, or has failed; not with
    /// another one, nor with what may be a copy.
    #[test]
    fn only_a_cache_that_was_overwritten_or_has_failed_is_given_up() {
        let folder = folder();
        let options = options(folder.path());
        let state = folder.path().join("state");
        let forced = CreateOptions { overwrite: Overwrite::Anything, ..options.clone() };
        let known = |format: &str| State {
            format: format.to_owned(),
            epoch: 1,
            bytes: Some(64 << 20),
            dirty: Some(3),
            mode: Mode::WriteThrough,
            ..State::default()
        };
        let other = "ab".repeat(16);
        create(&options).expect("created");
        let degraded = State { degraded: true, ..known(&other) };
        let larger = State { dirty: Some(0), bytes: Some(65 << 20), ..known(&other) };
        let own = Own { origin: true, cache: true };
        let elsewhere = Own { cache: false, ..own };
        let before_another = Own { origin: false, ..own };
        let others = Own { origin: false, cache: false };
        let copy = Some("what was overwritten may have been a copy of it, so a start with the new one asks for --accept-loss");
        // (is it the cache that is overwritten, which disks are the volume's own, what is known, is it given up, what is said)
        for (same, own, known, is_given_up, says) in [
            (true, own, known(""), true, None),
            (true, own, State { epoch: 2, ..known("") }, false, copy),
            (true, elsewhere, known(""), false, copy),
            (true, before_another, known(""), false, copy),
            (true, others, known(""), false, copy),
            (true, elsewhere, State { dirty: Some(0), ..known("") }, false, None),
            (false, own, known(&other), false, Some("with the cache abababab…, which held 3 blocks newer")),
            (false, own, degraded.clone(), true, Some("(abababab…) failed in service and alone had 3 blocks")),
            (false, elsewhere, degraded.clone(), true, Some("(abababab…) failed in service and alone had 3 blocks")),
            (false, others, degraded, false, Some("with the cache abababab…, which failed in service and alone had 3 blocks")),
            (false, own, State { dirty: Some(0), ..known(&other) }, false, None),
            (false, own, larger.clone(), true, None),
            (false, others, larger, false, None),
        ] {
            let cache = Disk::open(&options.cache, DeviceId::Cache, Access::Alone).expect("free");
            let format = if same { format_of(&crate::back::attach::superblock(&cache).expect("ours")) } else { known.format.clone() };
            drop(cache);
            let known = State { format, ..known };
            // Of the case before; the first one has none.
            let _ = fs::remove_file(&state);
            known.write(&Place::open(&state).expect("a folder")).expect("written");
            let said = create(&forced).expect("forced").begin_anew(&state, own).expect("written");
            assert_eq!(said.first().is_some_and(|said| says.is_some_and(|says| said.contains(says))), says.is_some(), "{says:?}: {said:?}");
            assert!(said.len() == usize::from(says.is_some()) + usize::from(is_given_up && known.degraded), "{said:?}");
            assert!(said.iter().all(|said| !said.contains('\n')), "{said:?}");
            let left = State::read(&state).expect("readable").expect("there");
            assert_eq!(left.gone, if is_given_up { vec![known.format.clone()] } else { vec![] }, "{known:?}");
            assert_eq!(left.format, if is_given_up { String::new() } else { known.format.clone() });
            assert_eq!(left.mode, known.mode, "the next one promises no less");
        }
        fs::remove_file(&state).expect("there");
        assert_eq!(create(&forced).expect("forced").begin_anew(&state, own), Ok(vec![]));
        assert!(!state.exists(), "nothing was known");
    }

    /// The next start writes its own list in the place of that one.
    #[test]
    fn what_was_only_in_a_cache_that_has_failed_is_listed_when_it_is_given_up() {
        let folder = folder();
        let forced = CreateOptions { overwrite: Overwrite::Anything, ..options(folder.path()) };
        let state = folder.path().join("state");
        let format = "ab".repeat(16);
        let begin_anew = |ranges: Option<Vec<Span>>| {
            let known = State { format: format.clone(), dirty: Some(2), degraded: true, ..State::default() };
            fs::remove_file(&state).unwrap_or_default();
            let place = Place::open(&state).expect("a folder");
            known.write(&place).expect("written");
            ranges.into_iter().for_each(|ranges| Dirty::now(&format, true, ranges).write(&place));
            create(&forced).expect("forced").begin_anew(&state, Own { origin: true, cache: true }).expect("written")
        };
        let said = begin_anew(None);
        assert!(said.len() == 2 && said[0].contains("2 blocks") && said[1].contains("which blocks is not known"), "{said:?}");
        let said = begin_anew(Some(vec![Span::new(16, 8), Span::new(64, 8)]));
        assert!(
            said.len() == 4 && said[1].contains("8192 bytes in 2 ranges") && said[3].contains("4096 bytes from byte 32768"),
            "{said:?}"
        );
    }

    /// Whoever may still read it has it, until it is formatted.
    #[test]
    fn a_cache_that_cannot_be_read_goes_with_a_word_and_no_origin_is_made_beside_it() {
        let folder = folder();
        let options = options(folder.path());
        let forced = CreateOptions { overwrite: Overwrite::Anything, ..options.clone() };
        let unknown = "how many blocks newer than the origin are given up with it is not known";
        create(&options).expect("created");
        let first = fs::read(&options.cache).expect("readable");
        let mut table = vec![0; 17 << 10];
        table[510..520].copy_from_slice(b"\x55\xaaEFI PART");
        let spoils: [&dyn Fn(&File); 3] = [
            &|cache| [0, 512 << 10].iter().for_each(|copy| cache.write_all_at(&[0xee; 8], copy + 200).expect("written")),
            &|cache| cache.write_all_at(&first[..4096], 0).expect("written"),
            &|cache| cache.write_all_at(&table, 0).expect("written"),
        ];
        for spoil in spoils {
            let cache = File::options().write(true).open(&options.cache).expect("there");
            spoil(&cache);
            fs::rename(&options.origin, folder.path().join("away")).expect("there");
            refuses(&forced, Failure::NO_INPUT, "holds an unknown number of blocks newer than its origin");
            assert!(!options.origin.exists());
            fs::rename(folder.path().join("away"), &options.origin).expect("there");
            let created = create(&forced).expect("forced");
            assert!(created.gives_up && created.notes.iter().any(|note| note.ends_with(unknown)), "{:?}", created.notes);
        }
        // Of one that was taken from its origin nothing can be lost, whatever it begins with.
        let cache = Disk::open(&options.cache, DeviceId::Cache, Access::Alone).expect("free");
        let superblock = crate::back::attach::superblock(&cache).expect("ours");
        crate::back::update::rewrite(&cache, &Superblock { detached: true, ..superblock }).expect("written");
        drop(cache);
        File::options().write(true).open(&options.cache).and_then(|cache| cache.write_all_at(&table, 0)).expect("written");
        let created = create(&forced).expect("forced");
        assert!(!created.gives_up && created.notes.is_empty(), "{:?}", created.notes);
    }

    /// Of two who want one volume, whether they make or serve it, one waits with nothing, or with the origin alone; nobody holds the cache and waits.
    #[test]
    fn whoever_takes_both_disks_takes_the_origin_first() {
        use rustix::fs::{FlockOperation, flock};
        let folder = folder();
        let options = options(folder.path());
        create(&options).expect("created");
        let forced = CreateOptions { overwrite: Overwrite::Anything, ..options.clone() };
        let serves = || Held::open(&options.cache, &options.origin).map(drop);
        let makes = || create(&forced).map(drop);
        let both: [&(dyn Fn() -> Result<(), Failure> + Sync); 2] = [&serves, &makes];
        for take in both {
            let cache = File::open(&options.cache).expect("there");
            flock(&cache, FlockOperation::LockExclusive).expect("free");
            std::thread::scope(|threads| {
                let taking = threads.spawn(take);
                let is_held = || {
                    let origin = File::open(&options.origin).expect("there");
                    flock(&origin, FlockOperation::NonBlockingLockShared).is_err()
                };
                let until = std::time::Instant::now() + std::time::Duration::from_secs(2);
                while !is_held() {
                    assert!(std::time::Instant::now() < until && !taking.is_finished(), "it waits for the cache without the origin");
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
                drop(cache);
                taking.join().expect("no panic").expect("it has both");
            });
        }
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

    /// Whoever was asked once whether he goes on holds up the signals that would end him: he is asked again before and after whatever takes its time.
    /// Who makes nothing is not asked.
    #[test]
    fn from_the_first_file_on_it_is_asked_around_all_that_takes_its_time() {
        let folder = folder();
        let options = options(folder.path());
        File::create(&options.cache).and_then(|file| file.set_len(64 << 20)).expect("made");
        // Before the origin is made, before and after the cache is opened, and once it is judged.
        for until in 1..=5 {
            let mut asked = 0;
            let held = Ready::hold(&options, &mut || {
                asked += 1;
                if asked == until { Err(Failure::new(130, "interrupted")) } else { Ok(()) }
            });
            assert_eq!((held.map_or_else(|failure| failure.code, |_| 0), asked), if until < 5 { (130, until) } else { (0, 4) });
            assert!(!options.origin.exists(), "removed again");
        }
        File::create(&options.origin).and_then(|file| file.set_len(64 << 20)).expect("made");
        assert!(Ready::hold(&options, &mut || panic!("nothing is made")).is_ok());
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

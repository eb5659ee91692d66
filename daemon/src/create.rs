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

    /// Makes their sizes and names durable: what is flushed to the cache is worth nothing beside an origin that is empty after a power loss.
    fn sync(&self) -> Result<(), Failure> {
        for (path, file) in &self.files {
            let failed = |path: &Path, error| Failure::new(Failure::IO, format!("{}: {error}", path.display()));
            file.sync_all().map_err(|error| failed(path, error))?;
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| failed(folder, error))?;
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
mod tests;

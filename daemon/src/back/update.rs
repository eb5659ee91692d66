//! Changes of a superblock while no engine runs: growing with the origin, and giving up what is dirty. Both copies are written, one
//! after the other with a flush between, first the one that is not valid, else the older: a crash leaves the old one or the new one.

use std::path::Path;

use tidegate_engine::block::{ATOM_BYTES, PAGE_ATOMS, Span};
use tidegate_engine::cache::format::Superblock;
use tidegate_engine::op::DeviceId;

use super::attach::{belongs, distinct, hex, identity, superblock};
use super::disk::{Access, Disk};
use crate::Failure;

/// What became of the size of a volume, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grown {
    pub before: u64,
    pub now: u64,
}

/// Makes the volume as large as its origin has become. Clients see it when they connect next.
///
/// # Errors
/// One line; the volume is as it was.
pub fn grow(cache: &Path, origin: &Path) -> Result<Grown, Failure> {
    distinct(cache, origin)?;
    let cache = Disk::open(cache, DeviceId::Cache, Access::Alone)?;
    let origin = Disk::open(origin, DeviceId::Origin, Access::Alone)?;
    let superblock = superblock(&cache)?;
    belongs(&superblock, &cache, &origin, identity(&origin))?;
    let mut geometry = superblock.geometry;
    let before = geometry.volume_atoms;
    geometry.volume_atoms = origin.atoms();
    if geometry.volume_atoms == before {
        return Ok(Grown { before: before * ATOM_BYTES, now: before * ATOM_BYTES });
    }
    let refused = |what: String| Failure::new(Failure::REFUSED, format!("cache {}: {what}", cache.path().display()));
    if !before.is_multiple_of(u64::from(geometry.block_atoms)) {
        // What is cached or zeroed of a short block says nothing of its new end.
        let block = u64::from(geometry.block_atoms) * ATOM_BYTES;
        return Err(refused(format!("the volume ends inside a block of {block} bytes; run `tidegate detach`, then `tidegate attach`")));
    }
    geometry.validate().map_err(|what| refused(format!("it cannot serve {} bytes: {what}", geometry.volume_atoms * ATOM_BYTES)))?;
    rewrite(&cache, &Superblock { geometry, ..superblock })?;
    Ok(Grown { before: before * ATOM_BYTES, now: geometry.volume_atoms * ATOM_BYTES })
}

/// Says on the cache that it was taken from its origin, although it may hold newer blocks. `id` begins the format id of the cache that is
/// meant: nobody gives up another one by mistake.
///
/// # Errors
/// One line; the cache is as it was.
pub fn discard(cache: &Path, id: &str) -> Result<(), Failure> {
    let cache = Disk::open(cache, DeviceId::Cache, Access::Alone)?;
    let superblock = superblock(&cache)?;
    let found = hex(&superblock.format.0);
    if id.len() < 8 || !found.starts_with(id) {
        let what = format!("cache {}: its format id is {}, not {id:?}; nothing was changed", cache.path().display(), &found[..8]);
        return Err(Failure::new(Failure::REFUSED, what));
    }
    rewrite(&cache, &Superblock { detached: true, marks: Vec::new(), ..superblock })
}

/// Writes both copies with the next sequence number.
fn rewrite(cache: &Disk, superblock: &Superblock) -> Result<(), Failure> {
    let failed = |error| Failure::new(Failure::IO, format!("cache {}: its superblocks cannot be written: {error}", cache.path().display()));
    let sequence_of = |copy: u32| {
        let page = cache.read_now(place(copy, superblock)).ok()?;
        let found = Superblock::decode(page.as_slice(), copy).ok()?;
        (found.format == superblock.format).then_some(found.sequence)
    };
    let first = u32::from(sequence_of(1) < sequence_of(0));
    let next = Superblock { sequence: superblock.sequence + 1, ..superblock.clone() };
    for copy in [first, 1 - first] {
        cache.write_now(place(copy, superblock), &next.encode(copy)).and_then(|()| cache.flush_now()).map_err(failed)?;
    }
    Ok(())
}

fn place(copy: u32, superblock: &Superblock) -> Span {
    Span::new(superblock.geometry.superblock(copy).start, PAGE_ATOMS)
}

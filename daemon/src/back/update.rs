//! Changes of a superblock while no engine runs: another size, and giving up what is dirty. Both copies are written, one
//! after the other with a flush between, first the one that is not valid, else the older: a crash leaves the old one or the new one.

use std::path::Path;

use tidegate_engine::block::{PAGE_ATOMS, Span};
use tidegate_engine::cache::format::Superblock;
use tidegate_engine::op::DeviceId;

use super::attach::{hex, superblock};
use super::disk::{Access, Disk};
use crate::Failure;

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
///
/// # Errors
/// One line; one of them may have been written.
pub fn rewrite(cache: &Disk, superblock: &Superblock) -> Result<(), Failure> {
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

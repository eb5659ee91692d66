//! A write hit, on the thread that received it. Every block of it becomes a new page; readers of the old ones go on.
//!
//! Reserve → copy what is whole → lock the blocks → read the stamp → merge what is not → push → publish → unlock.
//!
//! Pushed before it is published, and the fence between: see the head of the crate. Everything that may be missing is asked for before the
//! first step that others see, so a write happens or does not.

use std::fmt;
use std::ops::Range;

use crate::atoms::Atoms;
use crate::front::{Front, add};
use crate::memory::Frame;
use crate::pool::Unlinked;
use crate::sync::{Ordering, fence};
use crate::tree::{Entry, LEAF_BLOCKS};
use crate::{Config, Pages, WRITE_BLOCKS_MAX};

/// Why a write was not taken. Nothing of it has happened; the engine takes it, or the client waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwritten {
    /// As much is dirty as may be.
    TooMuchDirty,
    /// The keeper has not drained this front's ring.
    RingFull,
    /// No free page: the keeper has to evict.
    NoPage,
    /// It begins or ends inside a block ([`Config::whole_blocks`]).
    Ragged,
}

impl fmt::Display for Unwritten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unwritten::TooMuchDirty => "as much is dirty as may be",
            Unwritten::RingFull => "the ring of dirty pages is full",
            Unwritten::NoPage => "no page is free",
            Unwritten::Ragged => "it begins or ends inside a block",
        })
    }
}

impl std::error::Error for Unwritten {}

/// Permissions to make dirty pages that a front takes at once.
const CREDITS: u64 = 16;

/// What a write makes of one block.
pub(crate) struct Written {
    block: u64,
    frame: Frame,
    /// What was written of it.
    atoms: Range<usize>,
    /// Its entry in the tree; then the one that was there before.
    entry: Entry,
}

impl Front {
    /// Writes `data` from atom `atom` of the volume on. Once it returns, every read sees it, and the next drain finds it.
    ///
    /// # Errors
    /// [`Unwritten`]: what is missing. Then nothing has changed.
    ///
    /// # Panics
    /// If `data` is empty, is not whole atoms, or touches more than [`WRITE_BLOCKS_MAX`] blocks.
    pub fn write(&mut self, atom: u64, data: &[u8]) -> Result<(), Unwritten> {
        let Config { page_atoms, atom_bytes, .. } = self.pages.config;
        assert!(!data.is_empty() && data.len().is_multiple_of(atom_bytes), "a write of {} bytes", data.len());
        let end = atom + (data.len() / atom_bytes) as u64;
        let (first, behind) = (atom / page_atoms as u64, end.div_ceil(page_atoms as u64));
        let count = (behind - first) as usize;
        assert!(count <= WRITE_BLOCKS_MAX, "a write to {count} blocks");
        let is_ragged = !atom.is_multiple_of(page_atoms as u64) || !end.is_multiple_of(page_atoms as u64);
        if self.pages.config.whole_blocks && is_ragged {
            return Err(Unwritten::Ragged);
        }
        self.reserve(count)?;

        let mut rest = data;
        for block in first..behind {
            let start = block * page_atoms as u64;
            let atoms = (atom.max(start) - start) as usize..(end - start).min(page_atoms as u64) as usize;
            let (data, behind) = rest.split_at(atoms.len() * atom_bytes);
            let frame = self.magazine.take();
            self.expect(block, frame);
            // SAFETY: just taken, so it is ours alone.
            let page = unsafe { self.pages.pool.memory.fill(frame) };
            page[atoms.start * atom_bytes..atoms.end * atom_bytes].copy_from_slice(data);
            self.written.push(Written { block, frame, atoms, entry: Entry::NONE });
            rest = behind;
        }
        self.publish();
        self.give_up_replaced();
        add(&self.desk().counters.0.writes, count as u64);
        Ok(())
    }

    /// Asks for the lines that the publishing will want: they come while the contents are copied.
    fn expect(&self, block: u64, frame: Frame) {
        self.pages.locks.prefetch(block);
        self.pages.pool.prefetch(frame);
        if let Some(leaf) = self.pages.tree.leaf(&self.pages.pool.epochs.pin(self.index), block / LEAF_BLOCKS) {
            leaf.prefetch((block % LEAF_BLOCKS) as usize);
        }
    }

    /// Room for `count` dirty pages, or none of it is taken.
    fn reserve(&mut self, count: usize) -> Result<(), Unwritten> {
        if !self.magazine.reserve(&self.pages.pool, count) {
            return Err(Unwritten::NoPage);
        }
        if self.pages.desks[self.index].dirty.room(&mut self.dirty, count) < count {
            return Err(Unwritten::RingFull);
        }
        if self.dirty_credit < count {
            let missing = (count - self.dirty_credit) as u64;
            // A lot where there is plenty, and no more than is needed where there is not.
            let lot = |room: u64| if room >= 4 * CREDITS { missing.max(CREDITS) } else { missing };
            let room = self.pages.dirty_room.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |room| room.checked_sub(lot(room)));
            self.dirty_credit += lot(room.map_err(|_| Unwritten::TooMuchDirty)?) as usize;
        }
        self.dirty_credit -= count;
        Ok(())
    }

    /// Makes the filled pages those of their blocks.
    fn publish(&mut self) {
        let Front { pages, index, magazine, dirty, written, .. } = self;
        let (pages, pool) = (&**pages, &pages.pool);
        let pin = pool.epochs.pin(*index);
        for Written { block, .. } in written.iter() {
            // A hint: who knows whether it is still this one when the blocks are locked.
            pages.tree.find(&pin, *block).frame().inspect(|&frame| pool.prefetch(frame));
        }
        // Where the next write will go: its lines come while this one is published.
        magazine.next().inspect(|&frame| pool.memory.prefetch(frame, 0));
        let mut locked = pages.locks.lock(written[0].block, written.len());
        // Under the lock: whoever had it before, and whose page is merged here, has no later stamp.
        let stamp = pages.stamp.0.load(Ordering::Acquire);
        let ring = &pages.desks[*index].dirty;
        for Written { block, frame, atoms, entry } in written.iter_mut() {
            let new = Atoms::of(atoms.clone());
            let mask = if new == pool.all() { new } else { new | merge(pages, pages.tree.find(&pin, *block), *frame, new) };
            let version = locked.next_version(*block);
            pool.describe(*frame, version, mask, true);
            *entry = Entry::new(*frame, mask != pool.all());
            ring.put(dirty, [*block, u64::from(frame.0) << 32 | u64::from(version), stamp]);
        }
        ring.publish(dirty);
        // Whoever sees one of these pages and then reads the stamp: either the keeper has found the push, or that stamp is a later one.
        // (A true fence, not one of `membarrier`'s: drains are as frequent as an engine's turns, and each would interrupt all readers.)
        fence(Ordering::SeqCst);
        for Written { block, entry, .. } in written.iter_mut() {
            *entry = pages.tree.set(&pin, *block, *entry, |node| magazine.unlink(pool, node));
        }
    }

    /// The pages that were there before lose the tree as their owner.
    fn give_up_replaced(&mut self) {
        let Front { pages, magazine, written, .. } = self;
        for frame in written.drain(..).filter_map(|written| written.entry.frame()) {
            if pages.pool.disown(frame) {
                magazine.unlink(&pages.pool, Unlinked::Page(frame));
            }
        }
    }
}

/// Copies what the page of `base` has, and `newer` has not, into a frame that is being filled; returns which atoms that were.
pub(crate) fn merge(pages: &Pages, base: Entry, frame: Frame, newer: Atoms) -> Atoms {
    let Some(base_frame) = base.frame() else { return Atoms::NONE };
    let has = if base.has_holes() { pages.pool.mask(base_frame) } else { pages.pool.all() };
    let copied = has.without(newer);
    // SAFETY: the base is in the tree, whose entry for it the caller has locked, and a published page is not written to.
    let from = unsafe { pages.pool.memory.contents(base_frame) };
    // SAFETY: taken by the caller, and not published.
    let to = unsafe { pages.pool.memory.fill(frame) };
    let atom_bytes = pages.config.atom_bytes;
    for atom in copied.iter() {
        let bytes = atom * atom_bytes..(atom + 1) * atom_bytes;
        to[bytes.clone()].copy_from_slice(&from[bytes]);
    }
    copied
}

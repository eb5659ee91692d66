//! A write hit, on the thread that received it. Every block of it becomes a new page; readers of the old ones go on.
//!
//! Reserve → copy what is whole → lock the blocks → read the stamp → merge what is not → push → publish → unlock.
//!
//! Pushed before it is published, in one order with the keeper's drain: see the head of the crate. Everything that may be missing is asked
//! for before the first step that others see, so a write happens or does not.

use std::fmt;
use std::ops::Range;

use crate::atoms::Atoms;
use crate::front::{Front, add};
use crate::memory::Frame;
use crate::pool::Unlinked;
use crate::sync::Ordering;
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

/// A write of a queue.
#[derive(Debug)]
pub struct Write<'d> {
    /// Where it begins on the volume.
    pub atom: u64,
    /// Whole atoms.
    pub data: &'d [u8],
    /// Whether it was taken, after [`Front::write_all`].
    pub result: Result<(), Unwritten>,
}

impl<'d> Write<'d> {
    pub fn new(atom: u64, data: &'d [u8]) -> Write<'d> {
        Write { atom, data, result: Ok(()) }
    }
}

/// Blocks that are filled before the first is published, and at most one write more: enough that the copies' stores do not each have to be
/// waited for.
const TOGETHER: usize = 32;

/// What a write makes of one block.
pub(crate) struct Written {
    block: u64,
    frame: Frame,
    /// What was written of it.
    atoms: Range<usize>,
    /// Its entry in the tree; then the one that was there before.
    entry: Entry,
    /// Blocks of the same write from this one on.
    left: usize,
}

impl Front {
    /// Writes one after the other, each as by [`Front::write`]: some are filled before the first of them is published.
    ///
    /// # Panics
    /// As [`Front::write`], before any of them.
    pub fn write_all(&mut self, writes: &mut [Write]) {
        // Bad ones are noticed before anything is done.
        for Write { atom, data, .. } in &*writes {
            self.blocks(*atom, data);
        }
        for write in writes {
            write.result = self.fill(write.atom, write.data);
            // Those before it may be what holds the pages.
            if write.result == Err(Unwritten::NoPage) && !self.written.is_empty() {
                self.publish();
                write.result = self.fill(write.atom, write.data);
            }
            if self.written.len() >= TOGETHER {
                self.publish();
            }
        }
        self.publish();
    }

    /// Writes `data` from atom `atom` of the volume on. Once it returns, every read sees it, and the next drain finds it.
    ///
    /// # Errors
    /// [`Unwritten`]: what is missing. Then nothing has changed.
    ///
    /// # Panics
    /// If `data` is empty, is not whole atoms, or touches more than [`WRITE_BLOCKS_MAX`] blocks.
    pub fn write(&mut self, atom: u64, data: &[u8]) -> Result<(), Unwritten> {
        self.fill(atom, data)?;
        self.publish();
        Ok(())
    }

    /// The blocks that a write touches.
    fn blocks(&self, atom: u64, data: &[u8]) -> Range<u64> {
        let Config { page_atoms, atom_bytes, .. } = self.pages.config;
        assert!(!data.is_empty() && data.len().is_multiple_of(atom_bytes), "a write of {} bytes", data.len());
        let blocks = atom / page_atoms as u64..(atom + (data.len() / atom_bytes) as u64).div_ceil(page_atoms as u64);
        assert!(blocks.end - blocks.start <= WRITE_BLOCKS_MAX as u64, "a write to {} blocks", blocks.end - blocks.start);
        blocks
    }

    /// Makes pages of `data`, to be published.
    fn fill(&mut self, atom: u64, data: &[u8]) -> Result<(), Unwritten> {
        let Config { page_atoms, atom_bytes, .. } = self.pages.config;
        let blocks = self.blocks(atom, data);
        let end = atom + (data.len() / atom_bytes) as u64;
        let is_ragged = !atom.is_multiple_of(page_atoms as u64) || !end.is_multiple_of(page_atoms as u64);
        if self.pages.config.whole_blocks && is_ragged {
            return Err(Unwritten::Ragged);
        }
        self.reserve((blocks.end - blocks.start) as usize)?;

        let mut rest = data;
        for block in blocks.clone() {
            let start = block * page_atoms as u64;
            let atoms = (atom.max(start) - start) as usize..(end - start).min(page_atoms as u64) as usize;
            let (data, behind) = rest.split_at(atoms.len() * atom_bytes);
            let frame = self.magazine.take();
            // Where the next one but one will go: its lines come while two are copied. (While one is, they come too late.)
            self.magazine.soon().inspect(|&soon| self.pages.pool.memory.prefetch(soon));
            self.expect(block, frame);
            // SAFETY: just taken, so it is ours alone.
            let page = unsafe { self.pages.pool.memory.fill(frame) };
            page[atoms.start * atom_bytes..atoms.end * atom_bytes].copy_from_slice(data);
            self.written.push(Written { block, frame, atoms, entry: Entry::NONE, left: (blocks.end - block) as usize });
            rest = behind;
        }
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
        // Those that are filled and not pushed yet have their room already.
        let pushes = self.written.len() + count;
        if self.pages.desks[self.index].dirty.room(&mut self.dirty, pushes) < pushes {
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

    /// Makes the filled pages those of their blocks, write by write.
    fn publish(&mut self) {
        self.link();
        add(&self.desk().counters.0.writes, self.written.len() as u64);
        self.give_up_replaced();
    }

    fn link(&mut self) {
        let Front { pages, index, magazine, dirty, written, .. } = self;
        let (pages, pool) = (&**pages, &pages.pool);
        let pin = pool.epochs.pin(*index);
        for Written { block, .. } in written.iter() {
            // A hint: who knows whether it is still this one when the blocks are locked.
            pages.tree.find(&pin, *block).frame().inspect(|&frame| pool.prefetch(frame));
        }
        let ring = &pages.desks[*index].dirty;
        let mut rest = &mut written[..];
        while let Some(Written { block, left, .. }) = rest.first() {
            let (block, (write, behind)) = (*block, rest.split_at_mut(*left));
            let mut locked = pages.locks.lock(block, write.len());
            // Under the lock: whoever had it before, and whose page is merged here, has no later stamp.
            let stamp = pages.stamp.0.load(Ordering::Acquire);
            for Written { block, frame, atoms, entry, .. } in write.iter_mut() {
                let new = Atoms::of(atoms.clone());
                let mask = if new == pool.all() { new } else { new | merge(pages, pages.tree.find(&pin, *block), *frame, new) };
                let version = locked.next_version(*block);
                pool.describe(*frame, mask, true);
                *entry = Entry::new(*frame, mask != pool.all());
                ring.put(dirty, [*block, u64::from(frame.0) << 32 | u64::from(version), stamp]);
            }
            // Whoever sees one of these pages and then reads the stamp: either the keeper has found the push, or that stamp is a later one.
            ring.publish_ordered(dirty);
            for Written { block, frame, entry, .. } in write {
                // In the ring already, so the keeper may be taking it out of there.
                let inherit = |before| pool.set_mark(*frame, pool.mark(before));
                *entry = pages.tree.set(&pin, *block, *entry, inherit, |node| magazine.unlink(pool, node));
            }
            rest = behind;
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

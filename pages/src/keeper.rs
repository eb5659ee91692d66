//! The engine's end of the tier: it alone drains the rings, fills, cleans and evicts. It does not wait: where a front has a lock just now, it is
//! told so and comes again; all but [`Keeper::forget`] and [`Keeper::replace`], which must not leave behind what is there, [`Keeper::drain`], whose
//! pages are to be found in memory, and [`Marks::set`].
//!
//! What it has not drained it leaves alone: only fronts replace that, so the newest contents of a block are in the tree, or known to the engine,
//! at any time. What it has drained, or filled, nobody replaces but a front, with something that is not drained then: a block's page that is
//! drained is the one that the engine knows, and no other.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::atoms::Atoms;
use crate::front::{Note, Pinned};
use crate::locks::is_newer;
use crate::marks::Marks;
use crate::memory::Frame;
use crate::pool::{Magazine, Unlinked};
use crate::sync::Ordering;
use crate::tree::Entry;
use crate::{Block, Pages, write};

/// The one keeper of a tier.
pub struct Keeper {
    pages: Arc<Pages>,
    magazine: Magazine,
    /// Dirty pages that are allowed now: those that there are, and those that fronts may still make.
    allowed: usize,
    /// Fronts whose rings of touches have something, and how much, while they are read.
    waiting: Vec<(usize, u64)>,
    /// Of each front, when it has read what it notes now.
    times: Box<[u64]>,
}

/// A page that somebody holds: it stays what it is, in the tree or out of it.
pub struct Hold {
    pages: Arc<Pages>,
    frame: Frame,
    mask: Atoms,
    is_dirty: bool,
}

/// A block's page that is to be made durable.
#[derive(Debug)]
pub struct Dirty {
    pub block: Block,
    pub page: Hold,
}

/// What belongs together: all of it is made durable, or none.
#[derive(Debug)]
pub struct Group {
    /// Its number. Writes that are drained later belong to a later group, whatever their stamp.
    pub stamp: u64,
    /// By ascending block; each block once, with its newest page.
    pub dirty: Vec<Dirty>,
}

/// Why the keeper could not change a block's page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// A front is writing there: again later.
    Busy,
    /// The block has no page, or it has one where none was expected.
    Changed,
    /// The block's page is dirty and not drained: drain first.
    Undrained,
    /// Somebody holds the page: it is not to be evicted yet.
    Held,
    /// No page is free: evict first.
    NoPage,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refused::Busy => "a front is writing there",
            Refused::Changed => "the block has no page, or has one already",
            Refused::Undrained => "the block's page is not drained yet",
            Refused::Held => "the page is held",
            Refused::NoPage => "no page is free",
        })
    }
}

impl std::error::Error for Refused {}

impl Keeper {
    pub(crate) fn new(pages: Arc<Pages>) -> Keeper {
        let (waiting, times) = (Vec::with_capacity(pages.desks.len()), vec![0; pages.desks.len()].into());
        Keeper { magazine: pages.pool.magazine(), allowed: pages.config.dirty_pages, waiting, times, pages }
    }

    pub fn pages(&self) -> &Arc<Pages> {
        &self.pages
    }

    /// Starts to read, as a front does.
    pub fn pin(&mut self) -> Pinned<'_> {
        Pinned::new(&self.pages, self.pages.config.fronts)
    }

    /// Tells `each` what fronts have read since the last time: of each front in its order, and of several in that of the
    /// [times](crate::Front::set_time) at which they have read.
    pub fn touches(&mut self, mut each: impl FnMut(Block)) {
        let rings = self.pages.desks.iter().map(|desk| &desk.touches);
        self.waiting.clear();
        self.waiting.extend(rings.enumerate().map(|(place, ring)| (place, ring.len())).filter(|&(_, waiting)| waiting > 0));
        let ring = |place: usize| &self.pages.desks[place].touches;
        loop {
            for &mut (place, ref mut waiting) in &mut self.waiting {
                if let Note::Time(time) = Note::of(ring(place).peek()) {
                    self.times[place] = time;
                    ring(place).pop();
                    *waiting -= 1;
                }
            }
            let Some(first) = (0..self.waiting.len()).min_by_key(|&at| self.times[self.waiting[at].0]) else { break };
            let (place, waiting) = &mut self.waiting[first];
            let ring = ring(*place);
            // The rest of its queue was under way with the first of it.
            while *waiting > 0
                && let Note::Hit(block) = Note::of(ring.peek())
            {
                each(block);
                ring.pop();
                *waiting -= 1;
            }
            if *waiting == 0 {
                self.waiting.remove(first);
            }
        }
    }

    /// Has a front written something that is not drained?
    pub fn is_owed(&self) -> bool {
        self.pages.desks.iter().any(|desk| !desk.dirty.is_empty())
    }

    /// Dirty pages that there are, or may still be made without another [`Keeper::allow`].
    pub fn allowed(&self) -> usize {
        self.allowed
    }

    /// Lets fronts make dirty pages up to so many, those that there are included. Less than before comes true as far as nobody has made use of
    /// it: what fronts have taken along comes back when they rest, and what is dirty when it is clean.
    pub fn allow(&mut self, most: usize) {
        let room = &self.pages.dirty_room.0;
        if most >= self.allowed {
            room.fetch_add((most - self.allowed) as u64, Ordering::AcqRel);
            self.allowed = most;
            return;
        }
        let surplus = (self.allowed - most) as u64;
        let before = room.fetch_update(Ordering::AcqRel, Ordering::Acquire, |room| Some(room.saturating_sub(surplus)));
        self.allowed -= before.expect("it always changes").min(surplus) as usize;
    }

    /// A drained page is clean, and there is not to be another one in its place.
    pub fn settle(&mut self, mut hold: Hold) {
        assert!(std::mem::take(&mut hold.is_dirty), "a page is cleaned once");
        self.allowed -= 1;
    }

    /// Moves the stamp on and takes every page that was pushed with the old one. Every write that was acknowledged before is in this group,
    /// or in an earlier one; and what is in it was in memory when this returns.
    pub fn drain(&mut self) -> Group {
        // Before the rings: who pushes what is not found there reads the new stamp from then on, and so does whoever sees that page.
        let stamp = self.pages.stamp.0.fetch_add(1, Ordering::AcqRel);
        let mut newest: BTreeMap<Block, (u32, Hold)> = BTreeMap::new();
        for desk in &self.pages.desks {
            desk.dirty.take_ordered(|&[block, page, pushed]| {
                if pushed > stamp {
                    return true;
                }
                let (version, hold) = (page as u32, self.take_over(Frame((page >> 32) as u32)));
                match newest.entry(Block(block)) {
                    std::collections::btree_map::Entry::Occupied(mut other) if is_newer(version, other.get().0) => {
                        other.insert((version, hold));
                    }
                    std::collections::btree_map::Entry::Occupied(_) => {}
                    std::collections::btree_map::Entry::Vacant(place) => {
                        place.insert((version, hold));
                    }
                }
                false
            });
        }
        // A push comes before its page is in the tree, and whoever has pushed has the lock until the page is there. Nobody is to look for a page of
        // this group and miss it.
        newest.keys().for_each(|block| drop(self.pages.locks.lock(block.0, 1)));
        Group { stamp, dirty: newest.into_iter().map(|(block, (_, page))| Dirty { block, page }).collect() }
    }

    /// What a ring has owned is a hold from now on.
    fn take_over(&self, frame: Frame) -> Hold {
        let pool = &self.pages.pool;
        pool.left_the_ring(frame);
        Hold { pages: Arc::clone(&self.pages), frame, mask: pool.mask(frame), is_dirty: true }
    }

    /// Holds the page that `block` has now.
    ///
    /// # Errors
    /// [`Refused::Busy`]; [`Refused::Changed`] if it has none.
    ///
    /// # Panics
    /// If 254 hold the page already.
    pub fn hold(&mut self, block: Block) -> Result<Hold, Refused> {
        let pin = self.pages.pool.epochs.pin(self.pages.config.fronts);
        let _locked = self.pages.locks.try_lock(block.0).ok_or(Refused::Busy)?;
        let frame = self.pages.tree.find(&pin, block.0).frame().ok_or(Refused::Changed)?;
        let pool = &self.pages.pool;
        pool.own(frame);
        Ok(Hold { pages: Arc::clone(&self.pages), frame, mask: pool.mask(frame), is_dirty: false })
    }

    /// Gives a block without a page a clean one. `mask`: which atoms of `contents`, a whole page, are valid.
    ///
    /// # Errors
    /// [`Refused`]; [`Refused::Changed`] if the block has a page.
    pub fn fill(&mut self, block: Block, contents: &[u8], mask: Atoms) -> Result<(), Refused> {
        self.put(block, Put::First, contents, mask)
    }

    /// Completes the block's page, which must be drained, by atoms that it has not.
    ///
    /// # Errors
    /// [`Refused`]; [`Refused::Changed`] if the block has no page.
    pub fn complete(&mut self, block: Block, contents: &[u8], mask: Atoms) -> Result<(), Refused> {
        self.put(block, Put::Behind, contents, mask)
    }

    /// Puts a clean page in the place of the block's, which must be drained. Waits for a front that is writing there, as [`Keeper::forget`].
    ///
    /// # Errors
    /// [`Refused::Undrained`], [`Refused::NoPage`]; [`Refused::Changed`] if the block has no page.
    pub fn replace(&mut self, block: Block, contents: &[u8], mask: Atoms) -> Result<(), Refused> {
        self.put(block, Put::Instead, contents, mask)
    }

    fn put(&mut self, block: Block, what: Put, contents: &[u8], mask: Atoms) -> Result<(), Refused> {
        let pages = &*self.pages;
        assert_eq!(contents.len(), pages.page_bytes(), "a fill is of a whole page");
        assert!(mask != Atoms::NONE && pages.pool.all().contains(mask), "a page has valid atoms");
        if !self.magazine.reserve(&pages.pool, 1) {
            return Err(Refused::NoPage);
        }
        let pin = pages.pool.epochs.pin(pages.config.fronts);
        let _locked = match what {
            Put::Instead => pages.locks.lock(block.0, 1),
            Put::First | Put::Behind => pages.locks.try_lock(block.0).ok_or(Refused::Busy)?,
        };
        let before = pages.tree.find(&pin, block.0);
        if drained(pages, before)?.is_some() != (what != Put::First) {
            return Err(Refused::Changed);
        }
        let frame = self.magazine.take();
        // SAFETY: just taken, so it is ours alone.
        unsafe { pages.pool.memory.fill(frame) }.copy_from_slice(contents);
        let mask = match what {
            // What the page has is newer.
            Put::Behind => mask | write::merge(pages, before, frame, Atoms::NONE),
            Put::First | Put::Instead => mask,
        };
        pages.pool.describe(frame, mask, false);
        replace(pages, &pin, &mut self.magazine, block, Entry::new(frame, mask != pages.pool.all()));
        Ok(())
    }

    /// Takes the block's page out of memory, if it is drained and nobody holds it.
    ///
    /// # Errors
    /// [`Refused`]; [`Refused::Changed`] if the block has no page.
    pub fn evict(&mut self, block: Block) -> Result<(), Refused> {
        let pages = &*self.pages;
        remove(pages, &mut self.magazine, block, |entry| {
            let frame = drained(pages, entry)?.ok_or(Refused::Changed)?;
            if pages.pool.owners(frame) == 1 { Ok(()) } else { Err(Refused::Held) }
        })
    }

    /// Takes whatever page `block` has out of memory: it is discarded, or gone to the origin past the cache. Who holds it, goes on holding it.
    ///
    /// # Errors
    /// [`Refused::Busy`], [`Refused::Undrained`]. Without a page there is nothing to do.
    pub fn remove(&mut self, block: Block) -> Result<(), Refused> {
        let pages = &*self.pages;
        remove(pages, &mut self.magazine, block, |entry| drained(pages, entry).map(drop))
    }

    /// As [`Keeper::remove`], but waits for a front that is writing there: no longer than that one takes to publish a page.
    ///
    /// # Errors
    /// [`Refused::Undrained`]: what is there is newer.
    pub fn forget(&mut self, block: Block) -> Result<(), Refused> {
        let Keeper { pages, magazine, .. } = self;
        let pin = pages.pool.epochs.pin(pages.config.fronts);
        let _locked = pages.locks.lock(block.0, 1);
        if drained(pages, pages.tree.find(&pin, block.0))?.is_some() {
            replace(pages, &pin, magazine, block, Entry::NONE);
        }
        Ok(())
    }

    /// Who marks pages from now on.
    ///
    /// # Panics
    /// If somebody else does.
    pub fn marks(&self) -> Marks {
        Marks::new(Arc::clone(&self.pages))
    }

    /// Gives back free pages and what waits for the epoch.
    pub fn rest(&mut self) {
        self.magazine.empty(&self.pages.pool);
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.rest();
    }
}

/// What the keeper puts somewhere.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Put {
    /// The first page of its block.
    First,
    /// What the block's page has not.
    Behind,
    /// Instead of what the block's page has.
    Instead,
}

/// The page of an entry, if it has one, and that is drained.
fn drained(pages: &Pages, entry: Entry) -> Result<Option<Frame>, Refused> {
    match entry.frame() {
        Some(frame) if pages.pool.is_in_ring(frame) => Err(Refused::Undrained),
        found => Ok(found),
    }
}

fn remove(pages: &Pages, magazine: &mut Magazine, block: Block, may: impl Fn(Entry) -> Result<(), Refused>) -> Result<(), Refused> {
    let pin = pages.pool.epochs.pin(pages.config.fronts);
    let _locked = pages.locks.try_lock(block.0).ok_or(Refused::Busy)?;
    may(pages.tree.find(&pin, block.0))?;
    replace(pages, &pin, magazine, block, Entry::NONE);
    Ok(())
}

/// Publishes `entry` for a locked block; the tree gives up the page that was there.
fn replace(pages: &Pages, pin: &crate::epoch::Pin, magazine: &mut Magazine, block: Block, entry: Entry) {
    let inherit = |before| _ = entry.frame().inspect(|&frame| pages.pool.set_mark(frame, pages.pool.mark(before)));
    let before = pages.tree.set(pin, block.0, entry, inherit, |node| magazine.unlink(&pages.pool, node));
    if let Some(frame) = before.frame().filter(|&frame| pages.pool.disown(frame)) {
        magazine.unlink(&pages.pool, Unlinked::Page(frame));
    }
}

impl Hold {
    /// Its contents. Of atoms that are not valid: anything.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: a published page is not written to, and a page that has an owner is not used again.
        unsafe { self.pages.pool.memory.contents(self.frame) }
    }

    /// Its valid atoms.
    pub fn mask(&self) -> Atoms {
        self.mask
    }

    /// Says that the page is no longer dirty: its contents are in the log. Room for another one.
    pub fn cleaned(&mut self) {
        if std::mem::take(&mut self.is_dirty) {
            self.pages.dirty_room.0.fetch_add(1, Ordering::AcqRel);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.cleaned();
        self.pages.disown(self.frame);
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:x?}", self.frame, self.mask)
    }
}

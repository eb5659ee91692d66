//! A front's end of the tier, for one thread: look-ups under a pin, what is counted, and the magazine.

use std::marker::PhantomData;
use std::ops::Add;
use std::sync::Arc;

use crate::atoms::Atoms;
use crate::epoch::Pin;
use crate::memory::Frame;
use crate::pool::Magazine;
use crate::ring::Pen;
use crate::sync::{AtomicU64, Ordering};
use crate::tree::Entry;
use crate::{Block, Desk, Pages};

/// One thread's way in. Dropped, it gives back everything but what the keeper has still to drain.
pub struct Front {
    pub(crate) pages: Arc<Pages>,
    /// Its place among the fronts, and among the readers of the epoch.
    pub(crate) index: usize,
    pub(crate) magazine: Magazine,
    pub(crate) notes: Notes,
    pub(crate) dirty: Pen,
    /// Dirty pages that it may still make without asking.
    pub(crate) dirty_credit: usize,
    /// Pages of the writes under way, filled and not published. Empty between calls; kept for its memory.
    pub(crate) written: Vec<crate::write::Written>,
}

/// What it notes of its hits.
pub(crate) struct Notes {
    pen: Pen,
    notes_hits: bool,
    /// What time it is, as far as was said, and what time was noted last.
    now: u64,
    noted_at: Option<u64>,
}

/// A front that reads: what it finds stays what it is until this is dropped. Meant for one queue of requests, or one `writev`: pages that are
/// overwritten or evicted meanwhile are not free before that, for nobody.
pub struct Pinned<'f> {
    pages: &'f Pages,
    pin: Pin<'f>,
    front: PhantomData<&'f mut Front>,
}

/// A page that was found.
#[derive(Clone, Copy)]
pub struct Page<'p> {
    pages: &'p Pages,
    entry: Entry,
    frame: Frame,
}

impl Front {
    pub(crate) fn new(pages: Arc<Pages>, index: usize) -> Front {
        let desk = &pages.desks[index];
        let notes = Notes { pen: desk.touches.pen(), notes_hits: !desk.touches.is_none(), now: 0, noted_at: None };
        let (dirty, magazine, written) = (desk.dirty.pen(), pages.pool.magazine(), Vec::with_capacity(crate::WRITE_BLOCKS_MAX));
        Front { pages, index, magazine, notes, dirty, dirty_credit: 0, written }
    }

    pub(crate) fn desk(&self) -> &Desk {
        &self.pages.desks[self.index]
    }

    pub fn pages(&self) -> &Arc<Pages> {
        &self.pages
    }

    /// Starts to read. Nothing that is found is used again before the end.
    #[inline(always)]
    pub fn pin(&mut self) -> Pinned<'_> {
        Pinned::new(&self.pages, self.index)
    }

    /// What it reads from here on is read at this time, by a clock that all fronts have in common, in any unit. One look at it for a queue of
    /// requests will do: they are under way at once.
    ///
    /// # Panics
    /// At 2^63 and later.
    pub fn set_time(&mut self, now: u64) {
        assert!(now < Note::TIME, "time {now}");
        self.notes.now = now;
    }

    /// Whether hits are noted from here on, as they are by default where there is [room](crate::Config::touches) for any. What is read once and
    /// in order, as by a backup, says little of what will be read.
    pub fn set_noting(&mut self, notes_hits: bool) {
        self.notes.notes_hits = notes_hits && !self.desk().touches.is_none();
    }

    /// Notes that `block` was read, for the keeper. Without room it is not noted, and that is counted.
    #[inline(always)]
    pub fn touch(&mut self, block: Block) {
        self.touch_all(&[block]);
    }

    #[inline(always)]
    pub(crate) fn touch_all(&mut self, blocks: &[Block]) {
        self.notes.touch_all(&self.pages.desks[self.index], blocks);
    }

    /// Half of what it can note is noted and not heard yet: time that the keeper [hears](crate::Keeper::touches) it.
    pub fn has_much_to_tell(&mut self) -> bool {
        let half = self.pages.config.touches / 2;
        half > 0 && self.pages.desks[self.index].touches.room(&mut self.notes.pen, half) < half
    }

    /// Notes and counts what was read under a pin: these blocks, and so many that had no page.
    pub fn note(&mut self, hits: &[Block], misses: u64) {
        self.count(hits.len() as u64, misses);
        self.touch_all(hits);
    }

    #[inline(always)]
    pub(crate) fn count(&self, hits: u64, misses: u64) {
        self.desk().counters.0.add(hits, misses);
    }

    /// Gives back free pages and what waits for the epoch: before this thread sleeps, so that others have them.
    pub fn rest(&mut self) {
        self.magazine.empty(&self.pages.pool);
        self.pages.dirty_room.0.fetch_add(std::mem::take(&mut self.dirty_credit) as u64, Ordering::AcqRel);
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.rest();
        // Release: the next one continues the rings where this one has left them.
        self.desk().is_taken.store(false, Ordering::Release);
    }
}

impl Notes {
    #[inline(always)]
    pub fn touch_all(&mut self, desk: &Desk, blocks: &[Block]) {
        if !self.notes_hits {
            return;
        }
        let is_later = self.noted_at != Some(self.now);
        let room = desk.touches.room(&mut self.pen, usize::from(is_later) + blocks.len());
        let (noted, unnoted) = blocks.split_at(room.saturating_sub(usize::from(is_later)).min(blocks.len()));
        if is_later && !noted.is_empty() {
            desk.touches.put(&mut self.pen, Note::Time(self.now).word());
            self.noted_at = Some(self.now);
        }
        noted.iter().for_each(|&block| desk.touches.put(&mut self.pen, Note::Hit(block).word()));
        desk.touches.publish(&self.pen);
        desk.touches.expect(&self.pen, blocks.len());
        if !unnoted.is_empty() {
            add(&desk.counters.0.unnoted, unnoted.len() as u64);
        }
    }
}

impl<'f> Pinned<'f> {
    /// The caller has the reader of that index to itself for `'f`.
    #[inline(always)]
    pub(crate) fn new(pages: &'f Pages, reader: usize) -> Pinned<'f> {
        Pinned { pages, pin: pages.pool.epochs.pin(reader), front: PhantomData }
    }

    /// The page of `block`.
    #[inline(always)]
    pub fn find(&self, block: Block) -> Option<Page<'_>> {
        self.page(self.pages.tree.find(&self.pin, block.0))
    }

    /// The page of each of a queue of blocks, in their order: what a `writev` is made of. While one is looked at, others are looked up.
    #[inline(always)]
    pub fn find_all<'p>(&'p self, blocks: &[Block]) -> impl Iterator<Item = Option<Page<'p>>> {
        self.pages.tree.find_all(&self.pin, blocks).map(|entry| self.page(entry))
    }

    /// The first block from `block` on that has a page.
    pub fn next(&self, block: Block) -> Option<Block> {
        self.pages.tree.next(&self.pin, block.0).map(Block)
    }

    #[inline(always)]
    fn page(&self, entry: Entry) -> Option<Page<'_>> {
        entry.frame().map(|frame| Page { pages: self.pages, entry, frame })
    }
}

impl Pinned<'_> {
    #[inline(always)]
    pub(crate) fn atom_bytes(&self) -> usize {
        self.pages.config.atom_bytes
    }
}

impl<'p> Page<'p> {
    /// Its contents. Of atoms that are not valid: anything, for instance what another block once held.
    #[inline(always)]
    pub fn bytes(self) -> &'p [u8] {
        // SAFETY: a published page is not written to, and was found under a pin that lasts for `'p`.
        unsafe { self.pages.pool.memory.contents(self.frame) }
    }

    /// Its valid atoms.
    pub fn mask(self) -> Atoms {
        if self.is_whole() { self.pages.pool.all() } else { self.pages.pool.mask(self.frame) }
    }

    /// All atoms are valid.
    #[inline(always)]
    pub fn is_whole(self) -> bool {
        !self.entry.has_holes()
    }
}

/// What a front tells the keeper of its hits: a time, then what was read at that time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Note {
    Time(u64),
    Hit(Block),
}

impl Note {
    /// The bit that tells a time from a block.
    const TIME: u64 = 1 << 63;

    #[inline(always)]
    fn word(self) -> [u64; 1] {
        match self {
            Note::Time(time) => [time | Note::TIME],
            Note::Hit(block) => {
                debug_assert!(block.0 < Note::TIME, "{block:?} has more than 63 bits");
                [block.0]
            }
        }
    }

    pub fn of([word]: [u64; 1]) -> Note {
        if word & Note::TIME == 0 { Note::Hit(Block(word)) } else { Note::Time(word ^ Note::TIME) }
    }
}

/// What a front has counted. Written by it alone, read by anybody.
#[derive(Default)]
pub(crate) struct Counters {
    pub hits: AtomicU64,
    pub misses: AtomicU64,
    pub writes: AtomicU64,
    pub unnoted: AtomicU64,
}

impl Counters {
    /// So many hits and misses more.
    #[inline(always)]
    pub fn add(&self, hits: u64, misses: u64) {
        add(&self.hits, hits);
        add(&self.misses, misses);
    }
}

/// Adds to a counter that nobody else adds to.
#[inline(always)]
pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
}

impl Counters {
    pub fn counts(&self) -> Counts {
        let [hits, misses, writes, unnoted] =
            [&self.hits, &self.misses, &self.writes, &self.unnoted].map(|counter| counter.load(Ordering::Relaxed));
        Counts { hits, misses, writes, unnoted }
    }
}

/// Since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads that a page answered.
    pub hits: u64,
    /// Reads that found no page, or not all their atoms in it.
    pub misses: u64,
    /// Blocks written.
    pub writes: u64,
    /// Hits that the keeper is not told of, because a ring was full.
    pub unnoted: u64,
}

impl Add for Counts {
    type Output = Counts;
    fn add(self, other: Counts) -> Counts {
        Counts {
            hits: self.hits + other.hits,
            misses: self.misses + other.misses,
            writes: self.writes + other.writes,
            unnoted: self.unnoted + other.unnoted,
        }
    }
}

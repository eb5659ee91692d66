//! Marks: a few bits beside each page, for whoever decides which page goes. They cost a byte, and no list of keys of their own.
//!
//! A mark is the block's rather than the page's: what a front or the keeper publishes in the place of a page has its mark, and it goes with the
//! block's last page. But for handing them on, only one thread changes marks. What it changes under the block's lock it changes in the page that
//! the block has then; what it changes without may be lost where a front is writing just then, and is to be no more than a hint.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::epoch::Pin;
use crate::memory::Frame;
use crate::pool::MARK;
use crate::sync::Ordering;
use crate::{Block, Pages};

/// Marks changed at once: enough that no line is waited for, and few enough that what was fetched is still there.
const TOGETHER: usize = 32;

/// The one that marks the pages of a tier.
pub struct Marks {
    pages: Arc<Pages>,
    /// It has a place among the readers of the epoch, for one look at a time.
    by_one_thread: PhantomData<Cell<()>>,
}

impl Marks {
    /// The highest mark. 0 is that of a page that was not marked.
    pub const MAX: u8 = MARK;

    pub(crate) fn new(pages: Arc<Pages>) -> Marks {
        assert!(!pages.marks_are_out.swap(true, Ordering::AcqRel), "one marks pages");
        Marks { pages, by_one_thread: PhantomData }
    }

    fn pin(&self) -> Pin<'_> {
        // Behind the fronts, the keeper and the leases.
        let config = &self.pages.config;
        self.pages.pool.epochs.pin(config.fronts + 1 + config.leases)
    }

    fn frame(&self, pin: &Pin, block: Block) -> Option<Frame> {
        self.pages.tree.find(pin, block.0).frame()
    }

    /// The mark of a block; 0 if it has no page. What was [set](Marks::set) is there, with or without what was [hinted](Marks::hint) since.
    pub fn get(&self, block: Block) -> u8 {
        self.frame(&self.pin(), block).map_or(0, |frame| self.pages.pool.mark(frame))
    }

    /// Marks a block. False: it has no page. Waits for a front that is writing there: no longer than that one takes to publish a page.
    ///
    /// # Panics
    /// If the mark is above [`Marks::MAX`].
    pub fn set(&self, block: Block, mark: u8) -> bool {
        assert!(mark <= Marks::MAX, "mark {mark} has too many bits");
        let pin = self.pin();
        let _locked = self.pages.locks.lock(block.0, 1);
        self.frame(&pin, block).inspect(|&frame| self.pages.pool.set_mark(frame, mark)).is_some()
    }

    /// Changes a block's mark, if it has a page, and no front puts another one there just now.
    ///
    /// # Panics
    /// If the mark is above [`Marks::MAX`] then.
    pub fn hint(&self, block: Block, change: impl FnOnce(u8) -> u8) {
        let pin = self.pin();
        self.frame(&pin, block).inspect(|&frame| self.change(frame, change));
    }

    /// The same of several, one after the other; but while one is looked up the lines of the others are on their way.
    ///
    /// # Panics
    /// As above.
    pub fn hint_all(&self, blocks: &[Block], mut change: impl FnMut(u8) -> u8) {
        for blocks in blocks.chunks(TOGETHER) {
            let (pin, mut frames) = (self.pin(), [None; TOGETHER]);
            for (frame, entry) in frames.iter_mut().zip(self.pages.tree.find_all(&pin, blocks)) {
                *frame = entry.frame();
                frame.inspect(|&frame| self.pages.pool.prefetch_known(frame));
            }
            frames.into_iter().flatten().for_each(|frame| self.change(frame, &mut change));
        }
    }

    fn change(&self, frame: Frame, change: impl FnOnce(u8) -> u8) {
        let before = self.pages.pool.mark(frame);
        let after = change(before);
        assert!(after <= Marks::MAX, "mark {after} has too many bits");
        if after != before {
            self.pages.pool.set_mark(frame, after);
        }
    }
}

impl Drop for Marks {
    fn drop(&mut self) {
        // Release: the next one reads what this one has left.
        self.pages.marks_are_out.store(false, Ordering::Release);
    }
}

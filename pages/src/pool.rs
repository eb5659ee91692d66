//! The pool of pages: a fixed number of frames, what is known of each, and where free ones lie.
//!
//! A frame goes round: free → taken by one thread, which fills it → published → unlinked → in limbo until the epoch has passed → free.
//! Every thread keeps a *magazine* of free frames and a few that it has unlinked (Bonwick and Adams, "Magazines and Vmem", 2001); only whole
//! loads of them go over the lock of the *depot*.
//!
//! A published page has owners, counted: the tree is one, every hold of the engine is one (a dirty page in a ring is held already). Whoever
//! gives up the last sends the frame to limbo. Readers are no owners; the epoch is for them.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;

use crate::atoms::Atoms;
use crate::epoch::{Epochs, Seal};
use crate::memory::{Frame, Memory};
use crate::sync::{AtomicU8, Mutex, Ordering, lock, prefetch};
use crate::tree::Node;

/// What is known of a page. Written by whoever fills it, before it is published.
struct Known {
    /// Changed by all who become one, or cease to be.
    owners: AtomicU8,
    /// [`IN_RING`], which the keeper takes away, and the mark, which who marks changes.
    state: AtomicU8,
}

/// Pushed into a dirty ring and not drained yet: nobody but another write may take it out of the tree.
const IN_RING: u8 = 1 << 7;
/// The bits of a [mark](crate::Marks).
pub const MARK: u8 = IN_RING - 1;

/// Something that is unlinked, and may still be read by who was there before.
pub enum Unlinked {
    Page(Frame),
    Node(Node),
}

/// Free frames and what waits for the epoch.
struct Depot {
    /// Frames that were never taken.
    fresh: Range<u32>,
    /// Those that came back.
    free: Vec<Frame>,
    /// Unlinked, and not sealed yet.
    loose: Vec<Unlinked>,
    /// In the order of their seals.
    limbo: VecDeque<(Seal, Unlinked)>,
}

pub struct Pool {
    pub memory: Memory,
    pub epochs: Epochs,
    known: Box<[Known]>,
    /// Masks of valid atoms, `mask_bytes` for each page. Only those of pages with a hole are read.
    masks: Box<[AtomicU8]>,
    mask_bytes: usize,
    pub page_atoms: usize,
    magazine_frames: usize,
    depot: Mutex<Depot>,
}

impl Pool {
    /// `threads`: how many will hold a magazine, and read; and so many `others` only read.
    ///
    /// # Errors
    /// Those of [`Memory::new`].
    pub fn new(frames: usize, page_atoms: usize, atom_bytes: usize, threads: usize, others: usize) -> io::Result<Pool> {
        let mask_bytes = page_atoms.div_ceil(8);
        let known = || Known { owners: AtomicU8::new(0), state: AtomicU8::new(0) };
        Ok(Pool {
            memory: Memory::new(page_atoms * atom_bytes, frames)?,
            epochs: Epochs::new(threads + others),
            known: (0..frames).map(|_| known()).collect(),
            masks: (0..frames * mask_bytes).map(|_| AtomicU8::new(0)).collect(),
            mask_bytes,
            page_atoms,
            // What lies in magazines is missing elsewhere: an eighth of the pool at most.
            magazine_frames: (frames / (8 * threads)).clamp(1, 64),
            depot: Mutex::new(Depot { fresh: 0..frames as u32, free: Vec::new(), loose: Vec::new(), limbo: VecDeque::new() }),
        })
    }

    pub fn magazine(&self) -> Magazine {
        Magazine { free: Vec::with_capacity(2 * self.magazine_frames), unlinked: Vec::with_capacity(self.magazine_frames) }
    }

    /// Bytes kept for each page beside its contents.
    pub fn bytes_per_page(&self) -> usize {
        size_of::<Known>() + self.mask_bytes
    }

    /// All atoms of a page.
    pub fn all(&self) -> Atoms {
        Atoms::of(0..self.page_atoms)
    }

    fn known(&self, frame: Frame) -> &Known {
        &self.known[frame.0 as usize]
    }

    /// Asks for the line that knows of a frame's state.
    pub fn prefetch_known(&self, frame: Frame) {
        prefetch(self.known(frame));
    }

    /// Asks for all lines that know of a frame.
    pub fn prefetch(&self, frame: Frame) {
        self.prefetch_known(frame);
        prefetch(&self.masks[frame.0 as usize * self.mask_bytes]);
    }

    pub fn mask(&self, frame: Frame) -> Atoms {
        let start = frame.0 as usize * self.mask_bytes;
        let bytes = self.masks[start..start + self.mask_bytes].iter().enumerate();
        Atoms(bytes.fold(0, |mask, (place, byte)| mask | u128::from(byte.load(Ordering::Relaxed)) << (8 * place)))
    }

    /// Notes what a filled frame is, before it is published, without a mark. `is_dirty`: a ring owns it beside the tree.
    pub fn describe(&self, frame: Frame, mask: Atoms, is_dirty: bool) {
        let start = frame.0 as usize * self.mask_bytes;
        let bytes = &self.masks[start..start + self.mask_bytes];
        bytes.iter().enumerate().for_each(|(place, byte)| byte.store((mask.0 >> (8 * place)) as u8, Ordering::Relaxed));
        let known = self.known(frame);
        known.state.store(if is_dirty { IN_RING } else { 0 }, Ordering::Relaxed);
        known.owners.store(1 + u8::from(is_dirty), Ordering::Relaxed);
    }

    pub fn is_in_ring(&self, frame: Frame) -> bool {
        self.known(frame).state.load(Ordering::Acquire) & IN_RING != 0
    }

    pub fn left_the_ring(&self, frame: Frame) {
        let before = self.known(frame).state.fetch_and(MARK, Ordering::Release);
        assert!(before & IN_RING != 0, "a page leaves a ring once");
    }

    pub fn mark(&self, frame: Frame) -> u8 {
        self.known(frame).state.load(Ordering::Relaxed) & MARK
    }

    /// Gives a page another mark. One thread at a time does that; the page may leave its ring meanwhile.
    pub fn set_mark(&self, frame: Frame, mark: u8) {
        let changed = self.mark(frame) ^ mark;
        self.known(frame).state.fetch_xor(changed, Ordering::Relaxed);
    }

    pub fn owners(&self, frame: Frame) -> u8 {
        self.known(frame).owners.load(Ordering::Acquire)
    }

    /// One owner more, for somebody who knows another one.
    pub fn own(&self, frame: Frame) {
        let before = self.known(frame).owners.fetch_add(1, Ordering::Relaxed);
        assert!(before > 0 && before < u8::MAX, "a page of {before} owners gets one more");
    }

    /// One owner less. True: that was the last, and the caller sends the frame to limbo.
    #[must_use]
    pub fn disown(&self, frame: Frame) -> bool {
        let owners = &self.known(frame).owners;
        // The only owner is the caller: nobody else can become one.
        if owners.load(Ordering::Acquire) == 1 {
            owners.store(0, Ordering::Relaxed);
            return true;
        }
        // Release and acquire: what all owners did is before what happens to the frame next.
        let before = owners.fetch_sub(1, Ordering::AcqRel);
        assert!(before > 0, "a page that nobody owns loses an owner");
        before == 1
    }

    /// To limbo, from a thread that has no magazine at hand.
    pub fn unlink(&self, frame: Frame) {
        lock(&self.depot).loose.push(Unlinked::Page(frame));
    }

    /// Free frames in the depot after everything that the epoch allows was taken back. Magazines not counted.
    pub fn free_frames(&self) -> usize {
        let mut depot = lock(&self.depot);
        self.reclaim(&mut depot);
        depot.free_count()
    }

    /// Seals what is loose, and frees what nobody can be reading any more.
    fn reclaim(&self, depot: &mut Depot) {
        if !depot.loose.is_empty() {
            let seal = self.epochs.seal();
            depot.limbo.extend(depot.loose.drain(..).map(|unlinked| (seal, unlinked)));
        }
        if depot.limbo.is_empty() {
            return;
        }
        let oldest = self.epochs.oldest();
        while depot.limbo.front().is_some_and(|(seal, _)| *seal < oldest) {
            match depot.limbo.pop_front().expect("looked at above").1 {
                Unlinked::Page(frame) => depot.free.push(frame),
                // SAFETY: unlinked before its seal, and every reader that is under way has begun after that.
                Unlinked::Node(node) => unsafe { node.free() },
            }
        }
    }
}

impl Depot {
    fn free_count(&self) -> usize {
        self.fresh.len() + self.free.len()
    }

    /// Moves `count` free frames, or all that there are, behind those in `magazine`.
    fn give(&mut self, count: usize, magazine: &mut Vec<Frame>) {
        let rest = self.free.len() - count.min(self.free.len());
        let missing = count - (self.free.len() - rest);
        magazine.extend(self.free.drain(rest..));
        magazine.extend(self.fresh.by_ref().take(missing).map(Frame));
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut depot = lock(&self.depot);
        let Depot { loose, limbo, .. } = &mut *depot;
        for unlinked in loose.drain(..).chain(limbo.drain(..).map(|(_, unlinked)| unlinked)) {
            if let Unlinked::Node(node) = unlinked {
                // SAFETY: whoever could read it has borrowed the pool, which nobody does any more.
                unsafe { node.free() };
            }
        }
    }
}

/// One thread's free frames, and what it has unlinked.
pub struct Magazine {
    free: Vec<Frame>,
    unlinked: Vec<Unlinked>,
}

impl Magazine {
    /// Whether `count` frames are at hand, after a visit to the depot if need be.
    pub fn reserve(&mut self, pool: &Pool, count: usize) -> bool {
        self.free.len() >= count || self.load(pool, count)
    }

    /// One of the frames that were reserved.
    pub fn take(&mut self) -> Frame {
        self.free.pop().expect("frames are reserved before they are taken")
    }

    /// The frame that will be taken after the next one, if it is here already.
    pub fn soon(&self) -> Option<Frame> {
        self.free.iter().nth_back(1).copied()
    }

    pub fn unlink(&mut self, pool: &Pool, unlinked: Unlinked) {
        self.unlinked.push(unlinked);
        if self.unlinked.len() >= pool.magazine_frames {
            lock(&pool.depot).loose.append(&mut self.unlinked);
        }
    }

    #[cold]
    fn load(&mut self, pool: &Pool, count: usize) -> bool {
        let wanted = count.max(pool.magazine_frames);
        let mut depot = lock(&pool.depot);
        depot.loose.append(&mut self.unlinked);
        if self.free.len() + depot.free_count() < wanted {
            pool.reclaim(&mut depot);
        }
        depot.give(wanted - self.free.len(), &mut self.free);
        self.free.len() >= count
    }

    /// Everything back to the depot: for a thread that is about to sleep, or to end.
    pub fn empty(&mut self, pool: &Pool) {
        if self.free.is_empty() && self.unlinked.is_empty() {
            return;
        }
        let mut depot = lock(&pool.depot);
        depot.free.append(&mut self.free);
        depot.loose.append(&mut self.unlinked);
        pool.reclaim(&mut depot);
    }
}

//! What no cache can beat by much: copies from an array whose places are known. With the next page's lines on their way while one is copied it is
//! faster than without.

use std::alloc::{Layout, alloc, dealloc};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;

use tidegate_pages::{copy, expect_next};

use crate::rounds::Subject;
use crate::{BATCH, Buffer, PAGE_BYTES, PAGES};

/// Pages in one piece, in huge pages as the tier's.
pub struct Flat(HugePages);

#[derive(Clone, Copy, PartialEq)]
pub enum Manner {
    Plain,
    /// The whole of the next page is asked for before one is copied.
    Prefetching,
    /// By the tier's own moves, which may do both in turns.
    Tiers,
}

impl Flat {
    pub fn new() -> Flat {
        let mut pages = HugePages::new();
        pages.chunks_mut(PAGE_BYTES).enumerate().for_each(|(page, bytes)| bytes.fill(page as u8 | 1));
        Flat(pages)
    }

    /// Copies in the other direction, as a write does: from a few buffers to pages all over.
    pub fn copier(&self) -> Copier {
        let mut pages = HugePages::new();
        pages.fill(1);
        Copier { pages, from: Buffer::batch(2) }
    }

    pub fn subject(&self, manner: Manner) -> Copies<'_> {
        Copies { pages: &self.0, into: Buffer::batch(0), manner }
    }
}

/// Memory for all pages.
pub struct HugePages(NonNull<u8>);

impl HugePages {
    const LAYOUT: Layout = match Layout::from_size_align(PAGES * PAGE_BYTES, 2 << 20) {
        Ok(layout) => layout,
        Err(_) => panic!("far smaller than the address space"),
    };

    fn new() -> HugePages {
        // SAFETY: the layout has a size; the advice is about memory that is ours, and so is what is written.
        let start = unsafe {
            let start = alloc(HugePages::LAYOUT);
            libc::madvise(start.cast(), HugePages::LAYOUT.size(), libc::MADV_HUGEPAGE);
            // Only now: a page that is there is not made a huge one.
            start.write_bytes(0, HugePages::LAYOUT.size());
            start
        };
        HugePages(NonNull::new(start).expect("memory"))
    }
}

// SAFETY: the memory belongs to this value, and is shared as the value is.
unsafe impl Sync for HugePages {}

impl Deref for HugePages {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: allocated with this size, and written.
        unsafe { slice::from_raw_parts(self.0.as_ptr(), HugePages::LAYOUT.size()) }
    }
}

impl DerefMut for HugePages {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed by the caller alone.
        unsafe { slice::from_raw_parts_mut(self.0.as_ptr(), HugePages::LAYOUT.size()) }
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.0.as_ptr(), HugePages::LAYOUT) };
    }
}

pub struct Copies<'f> {
    pages: &'f [u8],
    into: Vec<Buffer>,
    manner: Manner,
}

impl Subject for Copies<'_> {
    fn batch(&mut self, keys: &[u64; BATCH]) {
        let page = |key: u64| &self.pages[key as usize * PAGE_BYTES..][..PAGE_BYTES];
        for (place, into) in self.into.iter_mut().enumerate() {
            match self.manner {
                Manner::Plain => into.0.copy_from_slice(page(keys[place])),
                Manner::Prefetching => {
                    keys.get(place + 1).inspect(|&&next| expect_next(page(next)));
                    into.0.copy_from_slice(page(keys[place]));
                }
                Manner::Tiers => {
                    let next = keys.get(place + 1).map(|&next| page(next));
                    copy(page(keys[place]), &mut into.0, next.unwrap_or_default());
                }
            }
        }
    }
}

pub struct Copier {
    pages: HugePages,
    from: Vec<Buffer>,
}

impl Subject for Copier {
    fn batch(&mut self, keys: &[u64; BATCH]) {
        for (&key, from) in keys.iter().zip(&self.from) {
            self.pages[key as usize * PAGE_BYTES..][..PAGE_BYTES].copy_from_slice(&from.0);
        }
    }
}

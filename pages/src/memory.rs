//! The memory of all pages: one mapping, made at the start and never grown. Aligned for O_DIRECT; huge pages where the kernel gives them.

use std::io;
use std::ptr::NonNull;

use crate::sync::{LINE_BYTES, prefetch};

/// A page's place in the pool. Which contents it is the place of changes over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frame(pub u32);

/// A huge page. Frames are cut from the mapping's start on, so none of up to this size straddles two of them.
const HUGE_BYTES: usize = 2 << 20;
/// Lines that a copy into a frame which comes next asks for: then the processor has seen where this goes.
const NEXT_LINES: usize = 8;

pub struct Memory {
    start: NonNull<u8>,
    mapped_bytes: usize,
    frame_bytes: usize,
    /// What loom knows of the contents: who may have written while somebody read.
    #[cfg(loom)]
    shadow: Box<[loom::cell::UnsafeCell<()>]>,
}

// SAFETY: the mapping belongs to this value until it is dropped. Who may read or write a frame is said at `contents` and `fill`.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// # Errors
    /// The kernel's, where it has no address space for so much.
    pub fn new(frame_bytes: usize, frames: usize) -> io::Result<Memory> {
        let mapped_bytes = (frame_bytes * frames).next_multiple_of(HUGE_BYTES);
        // SAFETY: new mappings, and the parts of one that nobody has seen yet, harm nobody.
        let start = unsafe {
            let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let wide = libc::mmap(std::ptr::null_mut(), mapped_bytes + HUGE_BYTES, protection, flags, -1, 0);
            if wide == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let before = wide.addr().next_multiple_of(HUGE_BYTES) - wide.addr();
            let start = wide.byte_add(before);
            if before > 0 {
                libc::munmap(wide, before);
            }
            if before < HUGE_BYTES {
                libc::munmap(start.byte_add(mapped_bytes), HUGE_BYTES - before);
            }
            // Advice: where there are no huge pages everything works, with more misses of the TLB.
            libc::madvise(start, mapped_bytes, libc::MADV_HUGEPAGE);
            // The contents are clients' data: no part of a core dump.
            libc::madvise(start, mapped_bytes, libc::MADV_DONTDUMP);
            NonNull::new_unchecked(start.cast())
        };
        Ok(Memory {
            start,
            mapped_bytes,
            frame_bytes,
            #[cfg(loom)]
            shadow: (0..frames).map(|_| loom::cell::UnsafeCell::new(())).collect(),
        })
    }

    /// Where it begins, and its bytes.
    pub fn mapping(&self) -> (NonNull<u8>, usize) {
        (self.start, self.mapped_bytes)
    }

    #[inline(always)]
    fn place(&self, frame: Frame) -> *mut u8 {
        debug_assert!((frame.0 as usize + 1) * self.frame_bytes <= self.mapped_bytes);
        // SAFETY: frames are handed out by the pool, which has no more of them than the mapping.
        unsafe { self.start.as_ptr().add(frame.0 as usize * self.frame_bytes) }
    }

    /// Asks for the lines of a frame that a copy will want first.
    #[inline(always)]
    pub fn prefetch(&self, frame: Frame) {
        let place = self.place(frame);
        (0..NEXT_LINES).for_each(|line| prefetch(place.wrapping_add(line * LINE_BYTES)));
    }

    /// # Safety
    /// For all of `'a` nobody writes to the frame: it is published, and the epoch or a hold keeps it from being used again.
    #[inline(always)]
    pub unsafe fn contents<'a>(&self, frame: Frame) -> &'a [u8] {
        #[cfg(loom)]
        self.shadow[frame.0 as usize].with(|_| ());
        // SAFETY: inside the mapping, and immutable as the caller says. Fresh memory is zeroed, so all of it is initialised.
        unsafe { std::slice::from_raw_parts(self.place(frame), self.frame_bytes) }
    }

    /// # Safety
    /// For all of `'a` nobody else reads or writes the frame: it was taken from the pool and is not published yet.
    #[inline(always)]
    pub unsafe fn fill<'a>(&self, frame: Frame) -> &'a mut [u8] {
        #[cfg(loom)]
        self.shadow[frame.0 as usize].with_mut(|_| ());
        // SAFETY: inside the mapping, and the caller's alone.
        unsafe { std::slice::from_raw_parts_mut(self.place(frame), self.frame_bytes) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and who could still refer to it is gone: every reference lives shorter than `self`.
        let code = unsafe { libc::munmap(self.start.as_ptr().cast(), self.mapped_bytes) };
        assert_eq!(code, 0, "a mapping is unmapped once");
    }
}

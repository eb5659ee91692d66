//! Epochs: a reader says that it reads, in a line of its own, and what it may see is not used again before it has ended.
//!
//! One clock for all. A reader notes its value before its first look; whoever has unlinked something *seals* it with the value and moves the
//! clock on. What carries seal `t` is free once every reader that is under way has noted more than `t`. Why this is enough: a reader that
//! noted more than `t` has seen the clock move, and so everything that was unlinked before. A reader that noted `t` or less holds the
//! seal back. A reader whose note is not seen yet has its fence still before it, behind that of [`Epochs::oldest`], and will find everything
//! unlinked.
//!
//! Why our own and not a library: what is freed here are numbers of pages and few nodes, in a known order, by who needs them. A list of
//! closures that come due some time would take memory of its own, and nobody could say when a small pool has pages again.

use crate::sync::{AtomicU64, Ordering, Padded, fence};

/// Noted by a reader that reads nothing.
const NOWHERE: u64 = 0;

/// What the clock showed when something was sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seal(u64);

pub struct Epochs {
    clock: Padded<AtomicU64>,
    readers: Box<[Padded<AtomicU64>]>,
    fences: Fences,
}

impl Epochs {
    pub fn new(readers: usize) -> Epochs {
        let readers = (0..readers).map(|_| Padded(AtomicU64::new(NOWHERE))).collect();
        Epochs { clock: Padded(AtomicU64::new(NOWHERE + 1)), readers, fences: Fences::new() }
    }

    /// From now on, until the pin is dropped, nothing that `reader` finds is used again. One pin per reader at a time.
    #[inline(always)]
    pub fn pin(&self, reader: usize) -> Pin<'_> {
        let note = &self.readers[reader].0;
        debug_assert_eq!(note.load(Ordering::Relaxed), NOWHERE, "a reader is pinned once");
        // Release: who sees this note of a reader that has read before, and not the end of that, fills nothing before it was read.
        note.store(self.clock.0.load(Ordering::Acquire), Ordering::Release);
        self.fences.of_a_reader();
        Pin { note }
    }

    /// The end of a pin that was forgotten.
    pub fn end(&self, reader: usize) {
        self.readers[reader].0.store(NOWHERE, Ordering::Release);
    }

    /// A seal for everything that this thread has unlinked, or knows from others that they have.
    pub fn seal(&self) -> Seal {
        Seal(self.clock.0.fetch_add(1, Ordering::AcqRel))
    }

    /// What was sealed before this call with less than the result is free.
    pub fn oldest(&self) -> Seal {
        self.fences.of_the_reclaimer();
        // Acquire: what a reader read, it has read before its page is filled again.
        let notes = self.readers.iter().map(|note| note.0.load(Ordering::Acquire));
        Seal(notes.filter(|&note| note != NOWHERE).min().unwrap_or(u64::MAX))
    }
}

/// A reader that reads. Proof that nodes and pages found meanwhile stay what they are.
pub struct Pin<'a> {
    note: &'a AtomicU64,
}

impl Drop for Pin<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.note.store(NOWHERE, Ordering::Release);
    }
}

/// The two fences between a note and a look: on the reader's side, and between the unlinking and the look at the notes on the other.
///
/// A reader's is on every hit, and a true one waits until all of the copy before it has left the store buffer. Where the kernel has `membarrier`,
/// the reclaimer's, which is rare, does it for both: every thread of the process that runs passes a full barrier during that call.
/// Then the reader has only to keep the compiler from moving anything.
struct Fences {
    are_asymmetric: bool,
}

impl Fences {
    fn new() -> Fences {
        Fences { are_asymmetric: membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) }
    }

    #[inline(always)]
    fn of_a_reader(&self) {
        match self.are_asymmetric {
            true => std::sync::atomic::compiler_fence(Ordering::SeqCst),
            false => fence(Ordering::SeqCst),
        }
    }

    fn of_the_reclaimer(&self) {
        fence(Ordering::SeqCst);
        assert!(!self.are_asymmetric || membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED), "a process that has registered may call it");
    }
}

/// Whether the kernel has done it. In a model both fences are true ones.
fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the call touches no memory of ours.
    !cfg!(loom) && unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) } == 0
}

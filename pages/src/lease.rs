//! A reader that has looked and goes on reading: pages leave from where they are, in a `writev`, and not as copies.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::Pages;
use crate::front::Pinned;
use crate::sync::Ordering;

/// A place among the readers of the epoch for what outlasts a pin. One thread's at a time, and given back when it is dropped.
pub struct Lease {
    pages: Arc<Pages>,
    place: usize,
}

impl Pages {
    /// `None`: as many are out as the configuration has.
    pub fn lease(pages: &Arc<Pages>) -> Option<Lease> {
        // Acquire: what the one before has read, it has read.
        let free = |is_out: &crate::sync::AtomicBool| is_out.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
        let place = pages.leases.iter().position(free)?;
        Some(Lease { pages: Arc::clone(pages), place })
    }
}

impl Lease {
    pub fn pages(&self) -> &Arc<Pages> {
        &self.pages
    }

    fn reader(&self) -> usize {
        // Behind the fronts and the keeper.
        self.pages.config.fronts + 1 + self.place
    }

    /// Starts to read, anew. What is found stays what it is until the next look or [`Lease::let_go`], also when this pin is out of sight.
    pub fn look(&mut self) -> ManuallyDrop<Pinned<'_>> {
        self.let_go();
        ManuallyDrop::new(Pinned::new(&self.pages, self.reader()))
    }

    /// Nothing that was found is read any more.
    pub fn let_go(&mut self) {
        self.pages.pool.epochs.end(self.reader());
    }

    /// All memory of pages, where contents that were found are told from by their address; and its bytes.
    pub fn memory(&self) -> (NonNull<u8>, usize) {
        self.pages.pool.memory.mapping()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.let_go();
        self.pages.leases[self.place].store(false, Ordering::Release);
    }
}

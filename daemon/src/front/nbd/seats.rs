//! How many clients there may be at once, whichever thread serves them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The places of all clients; its clones count together.
#[derive(Clone, Debug)]
pub struct Seats {
    taken: Arc<AtomicUsize>,
    most: usize,
}

/// One client's place, until it is dropped.
#[derive(Debug)]
pub struct Seat(Arc<AtomicUsize>);

impl Seats {
    pub fn new(most: usize) -> Seats {
        Seats { taken: Arc::default(), most }
    }

    /// Only one thread takes seats: none is given away twice.
    pub fn take(&self) -> Option<Seat> {
        if self.taken() >= self.most {
            return None;
        }
        self.taken.fetch_add(1, Ordering::AcqRel);
        Some(Seat(Arc::clone(&self.taken)))
    }

    /// Clients there are.
    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::Acquire)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

//! How far a set's header has come: two copies on the SSD, written when the set is sealed. What moves it on is the flow that writes them
//! (`path/seal`), and the flush that makes them durable.

use super::Sets;

/// Where the two copies of a set's header stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderState {
    /// Not sealed yet, or nothing lives in it.
    None,
    /// Sealed; waits until the OPEN of this life is durable.
    Due,
    /// Operations in flight, and how many of them have failed.
    Writing {
        left: u8,
        failed: u8,
    },
    /// Written, not flushed.
    Written,
    /// No copy could be written: the journal keeps the entries (restated by every checkpoint).
    Unwritable,
    Durable,
}

impl Sets {
    /// A flush has failed. Copies of headers that were written while their others are on their way count as failed; the headers are not to blame
    /// for that, and are tried as often as at first.
    pub fn doubt_headers(&mut self) {
        for set in &mut self.sets {
            if let HeaderState::Writing { left, failed } = &mut set.header
                && *failed < 2 - *left
            {
                *failed = 2 - *left;
                set.header_failures = 0;
            }
        }
    }

    /// The same of a header of which nothing is on its way. False: it was not written.
    pub fn doubt_header(&mut self, number: u32) -> bool {
        let set = self.get_mut(number);
        let was_written = set.header == HeaderState::Written;
        if was_written {
            (set.header, set.header_failures) = (HeaderState::Due, 0);
        }
        was_written
    }
}

//! Where a failed write to the origin may have left anything of itself: what is there may be forgotten at a power cut, and nothing of it may be
//! kept as clean. A flush of the origin that is handed out later makes sure of it:
//!
//! ```text
//! noted ──flush handed out──▶ flushing ──it ends well──▶ sure
//!   ▲                            ├──the origin was gone, or has forgotten──▶ noted
//!   └── a write failed           └──it fails──▶ doomed, with what is noted: the origin may have dropped it for good, and show it all the same
//! ```
//! What is doomed only a newer write and its flush make sure of.

use std::ops::Range;

use crate::block::Span;
use crate::runs::Runs;

/// Places in each state. Of more than so many the nearest are one.
const PLACES_MAX: usize = 256;

#[derive(Default)]
pub struct Unsure {
    noted: Runs,
    flushing: Runs,
    doomed: Runs,
}

impl Unsure {
    /// A write has failed: any part of it may have landed.
    pub fn note(&mut self, span: Span) {
        self.noted.insert(run(span));
        self.noted.join_nearest(PLACES_MAX);
    }
    /// A write has failed that may have left something before a flush of the origin failed.
    pub fn doom(&mut self, span: Span) {
        self.doomed.insert(run(span));
        self.doomed.join_nearest(PLACES_MAX);
    }
    /// May something be there that the origin forgets?
    pub fn overlaps(&self, span: Span) -> bool {
        [&self.noted, &self.flushing, &self.doomed].into_iter().any(|runs| runs.overlaps(&run(span)))
    }
    /// A flush of the origin would make sure of something, or is about to.
    pub fn awaits_flush(&self) -> bool {
        !self.noted.is_empty() || !self.flushing.is_empty()
    }
    /// A flush of the origin is handed out.
    pub fn flush_begins(&mut self) {
        self.flushing.take(std::mem::take(&mut self.noted));
    }
    /// That flush has ended; did it make everything durable that was written before?
    pub fn flush_ends(&mut self, well: bool) {
        let flushed = std::mem::take(&mut self.flushing);
        if !well {
            self.noted.take(flushed);
            self.noted.join_nearest(PLACES_MAX);
        }
    }
    /// A flush of the origin has failed, whoever wanted it.
    pub fn flush_failed(&mut self) {
        for runs in [&mut self.noted, &mut self.flushing] {
            self.doomed.take(std::mem::take(runs));
        }
        self.doomed.join_nearest(PLACES_MAX);
    }
    /// All of the span has been written since, and flushed.
    pub fn rewritten(&mut self, span: Span) {
        for runs in [&mut self.noted, &mut self.flushing, &mut self.doomed] {
            runs.remove(&run(span));
            runs.join_nearest(PLACES_MAX);
        }
    }
}

fn run(span: Span) -> Range<u64> {
    span.start..span.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_makes_sure_of_what_was_there_before_it() {
        let mut unsure = Unsure::default();
        unsure.note(Span::new(8, 8));
        unsure.flush_begins();
        unsure.note(Span::new(32, 8));
        unsure.flush_ends(true);
        assert_eq!((unsure.overlaps(Span::new(8, 8)), unsure.overlaps(Span::new(39, 8)), unsure.awaits_flush()), (false, true, true));
        unsure.flush_begins();
        unsure.flush_ends(false);
        assert!(unsure.overlaps(Span::new(32, 1)) && unsure.awaits_flush());
    }

    #[test]
    fn what_a_failed_flush_has_dropped_is_sure_when_it_was_written_again() {
        let mut unsure = Unsure::default();
        unsure.note(Span::new(8, 16));
        unsure.flush_begins();
        unsure.flush_failed();
        assert!(!unsure.awaits_flush());
        unsure.flush_begins();
        unsure.flush_ends(true);
        unsure.rewritten(Span::new(10, 4));
        let known: Vec<u64> = (0..32).filter(|&atom| unsure.overlaps(Span::new(atom, 1))).collect();
        assert_eq!(known, [8, 9, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23]);
    }
}

//! Where a failed write to the origin may have left anything of itself: what is there may be forgotten at a power cut, and nothing of it may be
//! kept as clean. A flush of the origin that is handed out later makes sure of it:
//!
//! ```text
//! noted ──flush handed out──▶ flushing ──it ends well──▶ sure
//!   ▲                            ├──the origin was gone, or has forgotten──▶ noted
//!   └── a write failed           └──it fails──▶ doomed, with what is noted: the origin may have dropped it for good, and show it all the same
//! ```
//! What is doomed only a newer write and its flush make sure of.

use crate::block::Span;

/// Spans in each state. Of more than so many the nearest are one.
const SPANS_MAX: usize = 256;

#[derive(Default)]
pub struct Unsure {
    noted: Spans,
    flushing: Spans,
    doomed: Spans,
}

impl Unsure {
    /// A write has failed: any part of it may have landed.
    pub fn note(&mut self, span: Span) {
        self.noted.insert(span);
    }
    /// A write has failed that may have left something before a flush of the origin failed.
    pub fn doom(&mut self, span: Span) {
        self.doomed.insert(span);
    }
    /// May something be there that the origin forgets?
    pub fn overlaps(&self, span: Span) -> bool {
        [&self.noted, &self.flushing, &self.doomed].into_iter().any(|spans| spans.overlaps(span))
    }
    /// A flush of the origin would make sure of something, or is about to.
    pub fn awaits_flush(&self) -> bool {
        !self.noted.0.is_empty() || !self.flushing.0.is_empty()
    }
    /// A flush of the origin is handed out.
    pub fn flush_begins(&mut self) {
        self.flushing.take(&mut self.noted);
    }
    /// That flush has ended; did it make everything durable that was written before?
    pub fn flush_ends(&mut self, well: bool) {
        if well {
            self.flushing.0.clear();
        }
        self.noted.take(&mut self.flushing);
    }
    /// A flush of the origin has failed, whoever wanted it.
    pub fn flush_failed(&mut self) {
        self.doomed.take(&mut self.noted);
        self.doomed.take(&mut self.flushing);
    }
    /// All of the span has been written since, and flushed.
    pub fn rewritten(&mut self, span: Span) {
        [&mut self.noted, &mut self.flushing, &mut self.doomed].into_iter().for_each(|spans| spans.remove(span));
    }
}

/// In order, with something between any two of them.
#[derive(Default)]
struct Spans(Vec<Span>);

impl Spans {
    fn overlaps(&self, span: Span) -> bool {
        self.0.iter().any(|known| known.overlaps(span))
    }

    fn insert(&mut self, span: Span) {
        let first = self.0.partition_point(|known| known.end() < span.start);
        let behind = self.0.partition_point(|known| known.start <= span.end());
        let start = self.0[first..behind].first().map_or(span.start, |known| known.start.min(span.start));
        let end = self.0[first..behind].last().map_or(span.end(), |known| known.end().max(span.end()));
        self.0.splice(first..behind, [Span::new(start, end - start)]);
        self.join_nearest();
    }

    fn take(&mut self, other: &mut Spans) {
        other.0.drain(..).for_each(|span| self.insert(span));
    }

    fn remove(&mut self, span: Span) {
        if !self.overlaps(span) {
            return;
        }
        let outside = |known: Span| {
            let (from, to) = (span.start.clamp(known.start, known.end()), span.end().clamp(known.start, known.end()));
            [Span::new(known.start, from - known.start), Span::new(to, known.end() - to)]
        };
        self.0 = self.0.iter().flat_map(|&known| if known.overlaps(span) { outside(known) } else { [known, Span::new(0, 0)] }).collect();
        self.0.retain(|known| !known.is_empty());
        self.join_nearest();
    }

    fn join_nearest(&mut self) {
        while self.0.len() > SPANS_MAX {
            let gap = |&at: &usize| self.0[at].start - self.0[at - 1].end();
            let nearest = (1..self.0.len()).min_by_key(gap).expect("there are several");
            let behind = self.0.remove(nearest);
            self.0[nearest - 1].atoms = behind.end() - self.0[nearest - 1].start;
        }
    }
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

    /// As a set of atoms knows it; the only difference is what lies between near ones.
    #[test]
    fn spans_are_those_of_a_set_of_atoms() {
        let mut chance = crate::draw::Draw::new(7);
        let (mut spans, mut atoms) = (Spans::default(), std::collections::BTreeSet::new());
        for _ in 0..2_000 {
            let span = Span::new(chance.below(400), 1 + chance.below(9));
            if chance.below(3) > 0 {
                spans.insert(span);
                atoms.extend(span.start..span.end());
            } else {
                spans.remove(span);
                (span.start..span.end()).for_each(|atom| {
                    atoms.remove(&atom);
                });
            }
            let known: Vec<u64> = spans.0.iter().flat_map(|span| span.start..span.end()).collect();
            assert_eq!(known, atoms.iter().copied().collect::<Vec<_>>());
        }
    }

    #[test]
    fn too_many_are_joined_where_the_least_lies_between() {
        let mut spans = Spans::default();
        (0..SPANS_MAX as u64).for_each(|at| spans.insert(Span::new(at * 100, 8)));
        spans.insert(Span::new(712, 8));
        assert_eq!(spans.0.len(), SPANS_MAX);
        assert!(spans.0.contains(&Span::new(700, 20)), "{:?}", &spans.0[5..9]);
    }
}

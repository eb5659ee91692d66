//! Sequences: requests that follow one another on the volume, many side by side, told from their addresses alone.
//!
//! A request belongs to the sequence whose end is nearest to its start, if that is near; distance counts either way, since clients with deep
//! queues send a sequence out of order. A sequence *runs* once it has covered [`PROOF`] of ground, and covered it once: less is a sparse
//! sweep (an elevator that passes over scattered pages), more is the same place again and again. A disk takes neither as a sequence.

use crate::block::{ATOM_BYTES, Span};

/// A request belongs to a sequence if it begins so near its end. Half an erase block of the papers' SSDs: what a client with eight requests of
/// 32 KiB in flight puts out of order.
const NEAR: u64 = (256 << 10) / ATOM_BYTES;
/// And so many times its own length: what the same client puts out of order of larger ones.
const NEAR_REQUESTS: u64 = 8;
/// Ground that a sequence must have covered to run. Elevators merge scattered pages up to some tens of KiB, seldom more.
pub const PROOF: u64 = (64 << 10) / ATOM_BYTES;
/// Ground on which it is judged whether a sequence still runs: what it did before that does not count any more.
const MEMORY: u64 = (1 << 20) / ATOM_BYTES;

/// Ground that requests cover one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Sequence {
    /// Tells it from those before and after it.
    pub number: u64,
    start: u64,
    end: u64,
    /// Atoms asked for on this ground, those asked for again counted again.
    asked: u64,
    /// Ground covered since it runs.
    length: u64,
}

impl Sequence {
    fn new(span: Span, number: u64) -> Self {
        Sequence { number, start: span.start, end: span.end(), asked: span.atoms, length: span.atoms }
    }

    fn distance(&self, span: Span) -> u64 {
        self.end.abs_diff(span.start)
    }

    /// As [`Sequence::distance`] of at most `reach`, told by one comparison.
    fn ends_within(&self, span: Span, reach: u64) -> bool {
        self.end.wrapping_sub(span.start).wrapping_add(reach) <= 2 * reach
    }

    fn grow(&mut self, span: Span) {
        self.length += span.end().saturating_sub(self.end);
        self.start = self.start.min(span.start);
        self.end = self.end.max(span.end());
        self.asked += span.atoms;
        let ground = self.end - self.start;
        if ground > MEMORY {
            self.asked = self.asked * MEMORY / ground;
            self.start = self.end - MEMORY;
        }
        if ground >= PROOF && !self.runs() {
            self.length = 0;
        }
    }

    /// Its ground is covered once, to a quarter.
    pub fn runs(&self) -> bool {
        let ground = self.end - self.start;
        ground >= PROOF && (3 * ground..=5 * ground).contains(&(4 * self.asked))
    }

    /// Where it goes on.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Atoms that it has covered without a break; 0 of one that does not run.
    pub fn length(&self) -> u64 {
        if self.runs() { self.length } else { 0 }
    }
}

/// The sequences that were last used.
#[derive(Clone, Debug)]
pub struct Sequences {
    most: usize,
    sequences: Vec<Sequence>,
    /// Their places, that of the one first which has not grown for longest.
    by_age: Vec<u8>,
    requests: u64,
}

impl Sequences {
    /// Keeps `most` of them apart, 64 at most.
    pub fn new(most: usize) -> Self {
        assert!(most <= u64::BITS as usize, "a bit each tells which are near");
        Sequences { most, sequences: Vec::with_capacity(most), by_age: Vec::with_capacity(most), requests: 0 }
    }

    /// Notes a request. None: it does not go on where another one ended. One request is no sequence, however large.
    pub fn note(&mut self, span: Span) -> Option<Sequence> {
        self.requests += 1;
        let reach = NEAR.max(NEAR_REQUESTS * span.atoms);
        // Of what reads here and there none is, and else few are: one look at all of them, without a branch for each, says which.
        let bits = self.sequences.iter().rev().map(|sequence| u64::from(sequence.ends_within(span, reach)));
        let mut near = bits.fold(0, |near, bit| near << 1 | bit);
        let places = std::iter::from_fn(|| {
            let place = near.checked_ilog2()? as usize;
            near ^= 1 << place;
            Some(place)
        });
        // Of several at the same distance the first.
        if let Some(place) = places.min_by_key(|&place| (self.sequences[place].distance(span), place)) {
            self.sequences[place].grow(span);
            let age = self.by_age.iter().position(|&aged| usize::from(aged) == place).expect("each has an age");
            self.renew(age);
            return Some(self.sequences[place]);
        }
        let sequence = Sequence::new(span, self.requests);
        if self.sequences.len() == self.most {
            self.sequences[usize::from(self.by_age[0])] = sequence;
            self.renew(0);
        } else {
            self.by_age.push(self.sequences.len() as u8);
            self.sequences.push(sequence);
        }
        None
    }

    /// The one that is the oldest but so many is the youngest now.
    fn renew(&mut self, age: usize) {
        let place = self.by_age.remove(age);
        self.by_age.push(place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MOST: usize = 5;

    fn starts() -> impl Strategy<Value = u64> {
        // Near the start of a volume, near one another, and anywhere.
        prop_oneof![0..NEAR, 0..40 * NEAR, 0..1u64 << 54]
    }

    proptest! {
        #[test]
        fn a_request_belongs_to_the_nearest_sequence(requests in prop::collection::vec((starts(), 1..3 * NEAR), 1..200)) {
            let mut sequences = Sequences::new(MOST);
            // Each with where it ended, the one first which has not grown for longest; and the order of their coming.
            let mut known: Vec<(u64, u64)> = Vec::new();
            let mut places: Vec<u64> = Vec::new();
            for (request, (start, atoms)) in (1..).zip(requests) {
                let span = Span::new(start, atoms);
                let reach = NEAR.max(NEAR_REQUESTS * atoms);
                let nearest = places.iter().filter_map(|&number| {
                    let &(_, end) = known.iter().find(|&&(known, _)| known == number).expect("it is known");
                    Some((end.abs_diff(start), number)).filter(|&(distance, _)| distance <= reach)
                });
                let nearest = nearest.min_by_key(|&(distance, _)| distance).map(|(_, number)| number);
                let noted = sequences.note(span);
                prop_assert_eq!(noted.map(|sequence| sequence.number), nearest);
                match nearest {
                    Some(number) => {
                        let age = known.iter().position(|&(known, _)| known == number).expect("it is known");
                        let (_, end) = known.remove(age);
                        known.push((number, end.max(span.end())));
                        prop_assert_eq!(noted.expect("it goes on").end(), end.max(span.end()));
                    }
                    None if known.len() == MOST => {
                        let (oldest, _) = known.remove(0);
                        *places.iter_mut().find(|place| **place == oldest).expect("it has a place") = request;
                        known.push((request, span.end()));
                    }
                    None => {
                        places.push(request);
                        known.push((request, span.end()));
                    }
                }
            }
        }
    }
}

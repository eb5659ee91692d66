//! Partly valid blocks: what their slot has not got is below it, and a block may change between both at every atom. The slot is read once for a
//! request, and so is the origin where blocks are read whole there, to be kept: a part waits for the one before it that brings what it needs.

use smallvec::SmallVec;

use crate::block::{Atoms, Block, Slot, Span};
use crate::payload::{Payload, Pieces};

use super::Engine;
use super::read::{Part, Parts, Source};

impl<P: Payload> Engine<P> {
    /// The atoms of one partial block: valid ones from its slot, the others from below.
    pub(super) fn partial_parts(&mut self, block: Block, slot: Slot, valid: Atoms, span: Span, parts: &mut Parts<P>) {
        let mask = self.mask_of(block, span);
        let base = block.0 * self.block_atoms();
        let mut at = 0;
        while let Some(run) = mask.without(Atoms::first(at)).intersection(valid).runs().next() {
            self.below_parts(block, Atoms::range(at, run.start).intersection(mask), parts);
            let part = Span::new(base + u64::from(run.start), u64::from(run.end - run.start));
            self.slot_parts(block, slot, 1, part, parts);
            at = run.end;
        }
        self.below_parts(block, mask.without(Atoms::first(at)), parts);
    }

    pub(super) fn below_parts(&mut self, block: Block, atoms: Atoms, parts: &mut Parts<P>) {
        let base = block.0 * self.block_atoms();
        for run in atoms.runs() {
            self.uncached_parts(block, 1, Span::new(base + u64::from(run.start), u64::from(run.end - run.start)), parts);
        }
    }

    /// The part before this one that reads what this one needs.
    pub(super) fn read_already(&mut self, number: usize, place: usize) -> Option<usize> {
        let size = self.block_atoms();
        let parts = &self.reading(number).parts;
        let part = &parts[place];
        let block = block_within(part.span, size)?;
        let brings = |other: &Part<P>| match (&other.source, &part.source) {
            (Source::Slots { first: other, slots: 1, .. }, Source::Slots { first, slots: 1, .. }) => other == first,
            (Source::Origin { fetches, parked: false }, Source::Origin { .. }) => fetches.contains(part.span),
            _ => false,
        };
        (0..place).rev().take_while(|&at| parts[at].span.start / size == block).find(|&at| brings(&parts[at]))
    }

    /// What a part has read, from the atom `start` on: others share it.
    pub(super) fn share(&mut self, number: usize, place: usize, start: u64, payload: &P) {
        for sharer in self.sharers(number, place) {
            let reading = self.reading(number);
            let Part { span, source } = &mut reading.parts[sharer];
            *source = Source::Ready(payload.slice(span.start - start, span.atoms));
            reading.left -= 1;
        }
    }

    /// It has come to nothing: the spans of those who have waited for it, to be looked after by themselves.
    pub(super) fn unshare(&mut self, number: usize, place: usize) -> SmallVec<[Span; 1]> {
        let sharers = self.sharers(number, place);
        let reading = self.reading(number);
        reading.left -= sharers.len() as u32;
        let give_up = |sharer: usize| {
            reading.parts[sharer].source = Source::Replaced;
            reading.parts[sharer].span
        };
        sharers.into_iter().map(give_up).collect()
    }

    /// Parts that wait for this one. They are of the same block, and behind it.
    fn sharers(&mut self, number: usize, place: usize) -> SmallVec<[usize; 1]> {
        let size = self.block_atoms();
        let parts = &self.reading(number).parts;
        let block = parts[place].span.start / size;
        let behind = (place + 1..parts.len()).take_while(|&at| parts[at].span.start / size == block);
        behind.filter(|&at| matches!(parts[at].source, Source::Shared { with } if with == place)).collect()
    }
}

/// What was read, in order. Pieces of one block become one: each of them would hold as much memory as a block.
pub(super) fn joined_blocks<P: Payload>(parts: &[Part<P>], size: u64, contents: impl Fn(&Part<P>) -> P) -> Pieces<P> {
    // Mostly there is one.
    if let [part] = parts {
        return Pieces::from([contents(part)]);
    }
    let is_of_one = |one: &Part<P>, next: &Part<P>| {
        let block = block_within(one.span, size);
        block.is_some() && block == block_within(next.span, size)
    };
    let joined = |parts: &[Part<P>]| match parts {
        [part] => contents(part),
        several => P::concat(&several.iter().map(&contents).collect::<SmallVec<[P; 8]>>()),
    };
    parts.chunk_by(is_of_one).map(joined).collect()
}

/// The block of which the span is a part.
fn block_within(span: Span, size: u64) -> Option<u64> {
    let block = span.start / size;
    (span.atoms < size && (span.end() - 1) / size == block).then_some(block)
}

//! What lies above the log: what fronts have written and waits for its place in it, and what went through to the origin and is pinned, which is
//! older where both are. Whoever asks for contents, allocation or tiers looks here first, and into the cache for the rest.

use crate::block::{Block, Span};
use crate::cache::through::Page;
use crate::payload::Payload;

use super::Engine;

pub(super) enum Above<P> {
    /// Written by a front: these atoms.
    Written(P),
    /// Of a page that went through and begins at this block. Not all of its atoms need be valid.
    Passed(Block, Page<P>),
}

impl<P: Payload> Engine<P> {
    pub(super) fn is_all_in_log(&self) -> bool {
        self.front_writes.is_empty() && self.through.pages.is_empty()
    }

    /// `span` cut into parts, in order: what lies above the log there, or nothing.
    pub(super) fn over_log(&self, span: Span) -> Vec<(Span, Option<Above<P>>)> {
        let (block, blocks) = self.blocks_of(span);
        let written = self.front_writes.newest(block, blocks).into_iter();
        let mut parts = Vec::new();
        for (part, written) in cut(span, written.map(|(block, blocks, payload)| (self.blocks_span(block, blocks), payload))) {
            match written {
                Some((all, payload)) => {
                    parts.push((part, Some(Above::Written(payload.slice(part.start - all.start, part.atoms)))));
                }
                None => self.add_passed(part, &mut parts),
            }
        }
        parts
    }

    fn add_passed(&self, span: Span, parts: &mut Vec<(Span, Option<Above<P>>)>) {
        let (block, blocks) = self.blocks_of(span);
        let pages =
            self.through.pages.overlapping(block, blocks).map(|(first, page)| (self.blocks_span(first, page.blocks), (first, page)));
        let above = |(_, (first, page)): (Span, (Block, &Page<P>))| Above::Passed(first, page.clone());
        parts.extend(cut(span, pages).into_iter().map(|(part, page)| (part, page.map(above))));
    }
}

/// The parts of `span` that these pieces cover, each with its piece, and `None` for what lies between them. Pieces come in order, each
/// overlaps the span, and none another.
fn cut<T>(span: Span, pieces: impl Iterator<Item = (Span, T)>) -> Vec<(Span, Option<(Span, T)>)> {
    let mut parts = Vec::new();
    let mut at = span.start;
    for (piece, what) in pieces {
        let here = piece.intersection(span);
        parts.push((Span::new(at, here.start - at), None));
        parts.push((here, Some((piece, what))));
        at = here.end();
    }
    parts.push((Span::new(at, span.end() - at), None));
    parts.retain(|(part, _)| !part.is_empty());
    parts
}

//! Geometry in a few words: what atoms, blocks and slots of this volume are in each other.

use crate::block::{Atoms, Block, Slot, Span};
use crate::payload::Payload;

use super::Engine;

impl<P: Payload> Engine<P> {
    pub(super) fn block_atoms(&self) -> u64 {
        u64::from(self.config.geometry.block_atoms)
    }
    /// All atoms of a block: fewer in a short last one.
    pub(super) fn full(&self, block: Block) -> Atoms {
        self.config.geometry.full(block)
    }
    /// So many whole blocks are in so many atoms.
    #[inline]
    pub(super) fn blocks_in(&self, atoms: u64) -> u64 {
        atoms >> self.config.geometry.block_bits()
    }
    /// So many blocks it takes for so many atoms, from the beginning of one on.
    #[inline]
    pub(super) fn blocks_for(&self, atoms: u64) -> u64 {
        self.blocks_in(atoms + self.block_atoms() - 1)
    }
    /// The blocks that a span touches: first and how many.
    #[inline]
    pub(super) fn blocks_of(&self, span: Span) -> (Block, u64) {
        let first = self.blocks_in(span.start);
        (Block(first), self.blocks_for(span.end()) - first)
    }
    /// All atoms of blocks, with those that a short last one lacks.
    pub(super) fn blocks_span(&self, block: Block, blocks: u64) -> Span {
        Span::new(block.0 * self.block_atoms(), blocks * self.block_atoms())
    }
    /// The blocks that lie inside a span as wholes: first and how many (possibly none).
    pub(super) fn whole_blocks(&self, span: Span) -> (Block, u64) {
        let first = self.blocks_for(span.start);
        (Block(first), self.blocks_in(span.end()).saturating_sub(first))
    }
    /// The blocks at the two ends of a span, once if it is one.
    pub(super) fn end_blocks(&self, span: Span) -> impl Iterator<Item = Block> + use<P> {
        let (first, blocks) = self.blocks_of(span);
        [first, Block(first.0 + blocks - 1)].into_iter().take(if blocks == 1 { 1 } else { 2 })
    }
    /// The atoms of `block` that `span` covers.
    pub(super) fn mask_of(&self, block: Block, span: Span) -> Atoms {
        let base = block.0 * self.block_atoms();
        let part = self.config.geometry.block_span(block).intersection(span);
        if part.is_empty() { Atoms::NONE } else { Atoms::range((part.start - base) as u32, (part.end() - base) as u32) }
    }
    /// Where these slots lie on the SSD.
    pub(super) fn slots_span(&self, first: Slot, slots: u32) -> Span {
        Span::new(self.data_start + self.config.geometry.atoms_before(first), u64::from(slots) * self.block_atoms())
    }
    /// What a slot holds of its block.
    pub(super) fn valid_atoms(&self, slot: Slot, block: Block) -> Atoms {
        self.sets.partial(slot).unwrap_or_else(|| self.full(block))
    }
}

//! Tiers: where the newest contents of every atom are, for NBD `tidegate:tier`. The same order as a read's look-up: what fronts
//! have written and waits for the log, what went through and is pinned, the window, the live slot, the range table, the origin. Nothing is
//! counted and no set becomes younger.

use crate::block::{Atoms, Block, Slot, Span};
use crate::cache::index::Run;
use crate::cache::through::Page;
use crate::payload::Payload;
use crate::request::{Stretch, Tier};

use super::Engine;
use super::above::Above;

/// Stretches in order; neighbours of one tier are one.
#[derive(Default)]
struct Map {
    stretches: Vec<Stretch>,
}

impl Map {
    fn add(&mut self, atoms: u64, tier: Tier) {
        match self.stretches.last_mut() {
            Some(last) if last.tier == tier => last.atoms += atoms,
            _ if atoms > 0 => self.stretches.push(Stretch { atoms, tier }),
            _ => {}
        }
    }
}

impl<P: Payload> Engine<P> {
    /// The tiers of a span, together exactly it.
    pub(super) fn tiers(&self, span: Span) -> Vec<Stretch> {
        let mut map = Map::default();
        for (part, above) in self.over_log(span) {
            match above {
                None => self.cached_tiers(part, &mut map),
                Some(Above::Written(_) | Above::Passed(_, Page { valid: None, .. })) => map.add(part.atoms, Tier::Memory),
                Some(Above::Passed(block, Page { valid: Some(valid), .. })) => {
                    self.masked_tiers(block, self.mask_of(block, part), valid, Tier::Memory, &mut map);
                }
            }
        }
        let atoms: u64 = map.stretches.iter().map(|stretch| stretch.atoms).sum();
        assert!(atoms == span.atoms, "the tiers of {} atoms are those of {atoms}", span.atoms);
        map.stretches
    }

    /// Of what the log or the origin has.
    fn cached_tiers(&self, span: Span, map: &mut Map) {
        let (block, blocks) = self.blocks_of(span);
        let mut runs = Vec::new();
        self.index.lookup(block, blocks, &mut runs);
        for run in runs {
            match run.slot {
                Some(first) => self.slot_tiers(run, first, span, map),
                None => self.tiers_below(self.blocks_span(run.block, run.blocks).intersection(span), map),
            }
        }
    }

    /// Of blocks in consecutive slots.
    fn slot_tiers(&self, run: Run, first: Slot, span: Span, map: &mut Map) {
        let (mut pinned, mut unpinned) = (0, 0);
        for i in 0..run.blocks {
            let (block, slot) = (Block(run.block.0 + i), Slot { slot: first.slot + i as u32, ..first });
            let left = (run.blocks - i) as u32;
            if pinned == 0 && unpinned == 0 {
                unpinned = self.window.unpinned(slot, left);
                pinned = self.window.get(slot, left).map_or(0, |(_, count)| count);
            }
            let tier = match (pinned > 0, self.sets.is_dirty(slot)) {
                (true, _) => Tier::Memory,
                (false, true) => Tier::Dirty,
                (false, false) => Tier::Clean,
            };
            (pinned, unpinned) = (pinned.saturating_sub(1), unpinned.saturating_sub(1));
            let mask = self.mask_of(block, span);
            match self.sets.partial(slot) {
                None => map.add(u64::from(mask.count()), tier),
                Some(valid) => self.masked_tiers(block, mask, valid, tier, map),
            }
        }
    }

    /// Of the atoms `mask` of a block of which those in `valid` are in `tier` and the others below.
    fn masked_tiers(&self, block: Block, mask: Atoms, valid: Atoms, tier: Tier, map: &mut Map) {
        let base = block.0 * self.block_atoms();
        let mut at = 0;
        for run in mask.intersection(valid).runs() {
            self.below_mask(base, Atoms::range(at, run.start).intersection(mask), map);
            map.add(u64::from(run.end - run.start), tier);
            at = run.end;
        }
        self.below_mask(base, mask.without(Atoms::first(at)), map);
    }

    fn below_mask(&self, base: u64, mask: Atoms, map: &mut Map) {
        for run in mask.runs() {
            self.tiers_below(Span::new(base + u64::from(run.start), u64::from(run.end - run.start)), map);
        }
    }

    /// Of what has no slot: zeros that only the range table knows, or the origin.
    fn tiers_below(&self, span: Span, map: &mut Map) {
        let (block, blocks) = self.blocks_of(span);
        let mut at = span.start;
        for (start, range) in self.ranges.overlapping(block, blocks) {
            let zero = self.blocks_span(start, range.blocks).intersection(span);
            map.add(zero.start.saturating_sub(at), Tier::Origin);
            map.add(zero.atoms, Tier::Dirty);
            at = zero.end().max(at);
        }
        map.add(span.end() - at, Tier::Origin);
    }
}

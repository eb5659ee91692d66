//! Complete: what a read had to fetch of a partly valid block is put beside what the cache has of it, so that the next read of it needs no
//! origin.
//!
//! ```text
//! the rest of the block was fetched → what is valid: in memory, or read from its slot → both together in a new slot
//! ```
//! The new slot is as dirty as the old one, and as old. Only if the old one is still the newest there is of the block, and nothing has gone past
//! it to the origin: then the rest is still what the origin holds, whatever a destage of the old one has written beside it.

use crate::block::{Atoms, Block, Slot, Span};
use crate::cache::stream::Source;
use crate::config::Placement;
use crate::op::{Action, Answer, Class, DeviceError, DeviceId, Zone};
use crate::payload::Payload;
use crate::wear::Cause;

use super::write::Piece;
use super::{Engine, Owner, joined};

/// Old slots that are read at once.
const AT_ONCE: usize = 32;

/// A block whose old slot is being read.
pub(super) struct Completion<P> {
    block: Block,
    slot: Slot,
    /// The whole block as the origin holds it.
    fetched: P,
}

impl<P: Payload> Engine<P> {
    /// Is part of this block in a slot that may be exchanged for a whole one?
    pub(super) fn is_completable(&self, block: Block) -> bool {
        self.index.get(block).is_some_and(|slot| self.sets.partial(slot).is_some() && self.may_exchange(slot))
    }

    /// May what this slot holds get another one?
    pub(super) fn may_exchange(&self, slot: Slot) -> bool {
        let may_move = !self.sets.is_dirty(slot) || self.may_move_dirty();
        self.config.placement == Placement::Log && may_move && !self.has_cache_failed() && !self.stopping
    }

    /// Is nothing newer of a block on its way than what the cache has, and nothing of it lost?
    pub(super) fn is_newest(&self, block: Block, dirty: bool) -> bool {
        let span = self.config.geometry.block_span(block);
        self.may_move(block, dirty) && !self.through.unsure.overlaps(span) && !self.lost.has_any_of(block, 1)
    }

    /// Completes those of these whole blocks that the cache has a part of. `fetched`: what the origin holds of `span`.
    pub(super) fn complete_partials(&mut self, (first, blocks): (Block, u64), span: Span, fetched: &P) {
        if !self.sets.has_partials() {
            return;
        }
        let size = self.block_atoms();
        for block in (first.0..first.0 + blocks).map(Block) {
            let Some(slot) = self.index.get(block).filter(|_| self.is_completable(block)) else { continue };
            let fetched = fetched.slice(block.0 * size - span.start, size);
            if let Some((older, _)) = self.window.get(slot, 1) {
                self.put_completed(block, slot, &older, &fetched);
            } else if self.completions.len() < AT_ONCE {
                self.sets.pin(slot, 1);
                let completion = self.completions.insert(Completion { block, slot, fetched });
                let action = Action::Read(Zone::Data, self.slots_span(slot, 1));
                self.start(DeviceId::Cache, Class::Clean, action, Owner::Complete { completion });
            }
        }
    }

    pub(super) fn completion_read(&mut self, completion: usize, result: Result<Answer<P>, DeviceError>) {
        let Completion { block, slot, fetched } = self.completions.remove(completion);
        self.sets.unpin(slot, 1);
        // A slot that cannot be read is told by whoever needs it.
        let older = result.ok().map(joined::<P>).filter(|older| older.checksum(self.checksum) == self.sets.crc(slot));
        if let Some(older) = older
            && self.index.get(block) == Some(slot)
            && self.is_completable(block)
        {
            self.put_completed(block, slot, &older, &fetched);
        }
    }

    fn put_completed(&mut self, block: Block, slot: Slot, older: &P, fetched: &P) {
        let dirty = self.sets.is_dirty(slot);
        let has_room = self.is_within_budget(Cause::Fill) && self.has_room_for_fill(block, 1) && self.slots_available(Source::Moved) > 0;
        if !self.is_newest(block, dirty) || !has_room {
            return;
        }
        let valid = self.sets.partial(slot).expect("it is partly valid");
        self.begin_group_for(self.journal_entries(1));
        self.counters.completed_blocks += 1;
        let payload = over(older, valid, fetched);
        self.put(Source::Moved, dirty, [Piece { block, blocks: 1, payload, valid: None }], &[], 0);
    }
}

/// The valid atoms of a block over the others.
fn over<P: Payload>(newer: &P, valid: Atoms, older: &P) -> P {
    let mut parts = Vec::new();
    let mut at = 0;
    let mut take = |from: &P, until: u32| {
        if at < until {
            parts.push(from.slice(u64::from(at), u64::from(until - at)));
            at = until;
        }
    };
    for run in valid.runs() {
        take(older, run.start);
        take(newer, run.end);
    }
    take(older, older.atoms() as u32);
    P::concat(&parts)
}

//! Whether a cache that has failed still gives what only it has. One that takes no more writes does; of another one it is asked for again and
//! again, since a device may come back, but nobody waits for that.

use crate::block::Block;
use crate::payload::Payload;

use super::super::Engine;
use super::{Batch, State, What};

/// So many batches in a row of which nothing could be read: what is dirty cannot be had, for now.
const VAIN_MAX: u32 = 3;

impl<P: Payload> Engine<P> {
    /// It stays what it was: an error to whoever reads it, and to a FLUSH that waits for it.
    pub(super) fn not_given(&mut self, block: Block) {
        let batch = self.batch();
        (batch.failed, batch.not_given) = (true, true);
        self.fail_home_of(self.blocks_span(block, 1));
        self.fail_home();
    }

    /// Somebody waits from now on for what may be had: it is tried at once, and then as if it had not failed before.
    pub(in crate::path) fn ask_again(&mut self) {
        self.degraded.vain = 0;
        self.destage.back_off.succeeded();
        self.destage.back_off.at = None;
    }

    /// A batch has ended.
    pub(super) fn note_given(&mut self, batch: &Batch<P>) {
        let mut states = batch.pieces.iter().filter(|piece| matches!(piece.what, What::Data { .. })).map(|piece| piece.state);
        if states.clone().any(|state| state == State::Ended) {
            self.degraded.vain = 0;
        } else if batch.not_given && !batch.refused && states.all(|state| state == State::Failed) {
            self.degraded.vain += 1;
        }
    }

    /// Is what is dirty on a cache alone that has failed, and gives nothing of it?
    pub(in crate::path) fn gives_nothing(&self) -> bool {
        self.is_degraded() && self.degraded.vain >= VAIN_MAX
    }
}

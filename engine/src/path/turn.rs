//! Turn: work that is done in memory alone ends when it ends, and others wait: for a TRIM of 4 GiB that had been written here and there, for
//! thousands of sets that are free with one FLUSH. Of such work one turn does a little; the next one goes on, behind whoever has come meanwhile.

use crate::config::Config;
use crate::payload::Payload;

use super::Engine;

/// What may still be done in this turn.
#[derive(Default)]
pub(super) struct Turn {
    /// Blocks that TRIMs and zeroes forget.
    pub blocks: u64,
    /// Sets that are freed.
    pub sets: u32,
    /// Something has come to its end, and there is more of it.
    pub goes_on: bool,
}

impl Turn {
    fn new(config: &Config) -> Turn {
        Turn { blocks: config.zeroed_together, sets: config.freed_together, goes_on: false }
    }
}

impl<P: Payload> Engine<P> {
    pub(super) fn begin_turn(&mut self) {
        self.turn = Turn::new(&self.config);
    }
}

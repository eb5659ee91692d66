//! A TRIM is a hint: where the range table is full, or without the cache, nothing is done for it, and it is acknowledged all the same. The engine
//! counts those. Any other TRIM that is acknowledged has taken effect, and is from then on what zeroes of its whole blocks are.

use super::{Moment, Oracle, TAKEN_TRIM, TRIM};

/// A TRIM that was acknowledged just now, and how many had been ignored when it was submitted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trimmed {
    pub write: u32,
    pub ignored: u64,
    pub at: Moment,
}

impl Oracle {
    /// So many were ignored by now, those included that were acknowledged since the last call.
    pub fn judge_trims(&mut self, ignored: u64) {
        self.ignored_trims = ignored;
        for Trimmed { write, ignored, at } in std::mem::take(&mut self.trimmed) {
            if ignored == self.ignored_trims {
                self.take_trim(write, at);
            }
        }
    }

    fn take_trim(&mut self, number: u32, at: Moment) {
        let write = &mut self.writes[number as usize];
        assert_eq!(write.what, TRIM);
        write.what = TAKEN_TRIM;
        self.each_version(number, |version| version.optional = false);
        self.acknowledge(number, at);
        let write = &self.writes[number as usize];
        if write.durable {
            self.tally.will_survive(number, write);
        }
    }
}

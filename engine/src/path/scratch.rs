//! Vectors kept for their memory only: what fills one empties it first.

use crate::cache::format::Entry;
use crate::cache::index::Run;

#[derive(Default)]
pub(super) struct Scratch {
    pub runs: Vec<Run>,
    pub entries: Vec<Entry>,
}

impl Scratch {
    /// To be given back. Whoever takes them meanwhile gets others.
    pub fn take_runs(&mut self) -> Vec<Run> {
        let mut runs = std::mem::take(&mut self.runs);
        runs.clear();
        runs
    }
}

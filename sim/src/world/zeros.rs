//! What the engine tells of TRIMs and zeroes, for the oracle.

use super::Simulation;

impl Simulation {
    pub(super) fn judge_zeros(&mut self) {
        let oracle = &mut self.scene.oracle;
        oracle.judge_trims(self.engine.ignored_trims());
        for id in self.engine.partly_zeroed() {
            if let Err(broken) = oracle.take_part(id) {
                self.scene.broken.get_or_insert(broken);
            }
        }
    }
}

//! What a drain may leave behind: dirty blocks that the cache does not give, where the range table has no room to note them as lost. Each is
//! held against the device and the oracle: nothing that could have come home is among them.

use super::Simulation;
use crate::front::oracle::Broken;
use crate::stamp::Stamps;
use tidegate_engine::block::Span;
use tidegate_engine::op::Zone;
use tidegate_engine::payload::Payload;

impl Simulation {
    /// A drain has ended, and the engine says that what is dirty still cannot be read. The blocks.
    ///
    /// # Errors
    /// One of them could have gone home, or the table had room.
    pub fn left_behind(&self) -> Result<Vec<u64>, Broken> {
        let (snapshot, geometry) = (self.inspect(), self.plan.config.geometry);
        let left: Vec<_> = self.engine.unreadable().collect();
        if left.len() as u64 != snapshot.dirty_slots || snapshot.unreadable_blocks != snapshot.dirty_slots || snapshot.zero_ranges > 0 {
            let (dirty, ranges) = (snapshot.dirty_slots, snapshot.zero_ranges);
            return Err(Broken(format!("a drain left {dirty} dirty slots and {ranges} ranges, and {} cannot be read", left.len())));
        }
        if left.is_empty() {
            return Ok(Vec::new());
        }
        if snapshot.range_entries + 3 <= u64::from(geometry.range_entries) {
            let (entries, room) = (snapshot.range_entries, geometry.range_entries);
            return Err(Broken(format!("a drain left {} blocks although the range table has {entries} of {room} entries", left.len())));
        }
        for &(block, slot) in &left {
            let place = geometry.slot(slot);
            let (span, of_cache) = (geometry.block_span(block), &self.scene.cache);
            let held = Stamps::concat(&of_cache.visible().read(Span::new(place.start, span.atoms)));
            let is_bad = of_cache.is_bad(Zone::Data, place);
            if !is_bad && self.scene.oracle.is_intact(span, &held) {
                return Err(Broken(format!("a drain left block {}, which the cache holds at {place:?}", block.0)));
            }
            if !self.scene.oracle.may_be_lost(span) {
                return Err(Broken(format!("a drain left block {}, which nothing has hit", block.0)));
            }
        }
        Ok(left.iter().map(|(block, _)| block.0).collect())
    }
}

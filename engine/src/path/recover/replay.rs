//! Replay: the records of the accepted groups, in their order, on top of the state map.
//! A record that cannot be (another life, a slot out of order) is damage, never a guess.

use crate::block::Slot;
use crate::cache::format::journal::Record;
use crate::cache::format::{Bits, Entry, Position, Range, SetState};
use crate::cache::sets::HeaderState;
use crate::fault_point::FaultPoint;
use crate::payload::Payload;
use crate::probe::Phase;

use super::{Engine, Stage};

impl<P: Payload> Engine<P> {
    /// With the headers of dirty sets loaded: replays the log.
    pub(super) fn replay_log(&mut self) {
        self.tell_other_headers();
        for range in std::mem::take(&mut self.recovery().ranges) {
            match range {
                Range::Zeroed { block, blocks, kind } => self.ranges.zero(block, blocks, kind, 0),
                Range::Lost { block, atoms } => self.lost.lose(block, atoms),
                Range::LostBlocks { first, blocks } => self.lost.lose_blocks(first, blocks),
            }
        }
        let pages: Vec<usize> = self.recovery().chain.order.clone();
        let puts = pages.iter().flat_map(|&page| &self.recovery.as_ref().expect("recovery is under way").pages[page].page.records);
        let blocks = puts.map(|record| if let Record::Put { restate: false, entries, .. } = record { entries.len() } else { 0 }).sum();
        self.recovery().touched.reserve(blocks);
        for page in pages {
            let page = &mut self.recovery().pages[page].page;
            let position = Position { epoch: page.head.epoch, seq: page.head.seq };
            for record in &std::mem::take(&mut page.records) {
                if let Err(why) = self.replay(record, position) {
                    return self.report_damage(true, format!("journal page {} cannot be replayed: {why}", position.seq));
                }
            }
        }
        if self.table_entries() > self.config.geometry.range_entries as usize {
            let told = format!("the journal tells of {} zeroed and lost ranges, more than the table holds", self.table_entries());
            return self.find(FaultPoint::RangesBeyondTable, true, told);
        }
        self.judge_lost_headers();
        if self.phase == Phase::Refused {
            return;
        }
        let orphan = self.sets.iter().find(|(number, set)| !set.loaded && !self.is_header_needed(*number)).map(|(number, _)| number);
        if let Some(set) = orphan {
            return self.find(
                FaultPoint::OpenSetUntold,
                true,
                format!("set {set} is open, but the journal does not tell what its slots hold"),
            );
        }
        self.map_described();
        if self.phase == Phase::Refused {
            return;
        }
        if self.config.check {
            self.sets.rebuild_lists();
            self.phase = Phase::Stopped;
            return;
        }
        self.begin_fence();
    }

    /// With the origin found as it was: what the last group may have lacked is written again.
    pub(super) fn begin_rewriting(&mut self) {
        if !self.end_fence() {
            return;
        }
        self.recovery().enter(Stage::Rewriting);
        self.rewrite_tail();
        self.rewrite_opened();
    }

    pub(super) fn is_header_needed(&self, set: u32) -> bool {
        self.recovery.as_ref().is_some_and(|recovery| recovery.headers.is_needed(set))
    }

    fn replay(&mut self, record: &Record, position: Position) -> Result<(), String> {
        match record {
            Record::Put { slot, life, restate: true, entries, .. } => self.replay_restate(*slot, *life, entries),
            Record::Put { slot, life, dirty, restate: false, entries } => self.replay_put(*slot, *life, *dirty, entries),
            Record::Open { set, life, stream } => self.replay_open(*set, *life, *stream),
            Record::Seal { set, life } => {
                self.expect_life(*set, *life)?;
                if !self.sets.get(*set).is_open() {
                    self.meet(FaultPoint::SealOutOfOrder);
                    return Err(format!("SEAL of set {set}, which is not open"));
                }
                self.sets.seal(*set, position);
                Ok(())
            }
            Record::Clean { set, life, slots } => self.replay_clean(*set, *life, slots),
            Record::Opened { set, life, slots } => self.replay_opened(*set, *life, slots),
            Record::Kill { set, life, slots } => self.replay_kill(*set, *life, slots),
            Record::Zero { block, blocks, kind } => {
                for slot in self.recovery().touched.insert_range(*block, *blocks) {
                    self.sets.kill(slot, 1, 0);
                }
                self.ranges.zero(*block, *blocks, *kind, 0);
                self.lost.remove(*block, *blocks);
                Ok(())
            }
            Record::Unzero { block, blocks } => {
                self.ranges.remove(*block, *blocks);
                Ok(())
            }
            Record::Lost { block, atoms } => {
                self.lost.lose(*block, *atoms);
                Ok(())
            }
        }
    }

    pub(super) fn expect_life(&mut self, set: u32, life: u32) -> Result<(), String> {
        let now = self.sets.get(set).life as u32;
        if now != life {
            self.meet(FaultPoint::RecordOfAnotherLife);
            return Err(format!("a record about life {life} of set {set}, which is in life {now}"));
        }
        Ok(())
    }

    /// The slots of a set that was open (or had no header) at the checkpoint: descriptions only, the map says what is live.
    fn replay_restate(&mut self, slot: Slot, life: u32, entries: &[Entry]) -> Result<(), String> {
        self.expect_life(slot.set, life)?;
        if self.sets.get(slot.set).state == SetState::Placed {
            return self.replay_placed_restate(slot, entries);
        }
        for (i, entry) in entries.iter().enumerate() {
            let at = Slot { slot: slot.slot + i as u32, ..slot };
            if at.slot < self.sets.next_slot(slot.set) {
                // Replay began at an earlier checkpoint and knows it already.
                continue;
            }
            if at.slot != self.sets.next_slot(slot.set) {
                self.meet(FaultPoint::RestateOutOfOrder);
                return Err(format!("slot {} of set {} is told out of order", at.slot, at.set));
            }
            let full = self.full(entry.block);
            self.sets.describe(at, &[*entry], entry.valid == full, |_| full);
        }
        let set = self.sets.get_mut(slot.set);
        let last = set.live.last();
        set.loaded |= last.is_none_or(|last| last < slot.slot + entries.len() as u32);
        if self.sets.get(slot.set).state == SetState::Sealed {
            // Its header could not be written: once more.
            self.sets.get_mut(slot.set).header = HeaderState::Due;
        }
        Ok(())
    }

    fn replay_put(&mut self, slot: Slot, life: u32, dirty: bool, entries: &[Entry]) -> Result<(), String> {
        self.expect_life(slot.set, life)?;
        if self.sets.get(slot.set).state == SetState::Placed {
            return self.replay_placed_put(slot, dirty, entries);
        }
        if self.sets.get(slot.set).state != SetState::Open || slot.slot != self.sets.next_slot(slot.set) {
            self.meet(FaultPoint::PutOutOfOrder);
            return Err(format!("PUT into slot {} of set {} is out of order", slot.slot, slot.set));
        }
        let count = entries.len() as u32;
        if !self.sets.get(slot.set).loaded || self.sets.get(slot.set).live.count_range(slot.slot, count) > 0 {
            self.meet(FaultPoint::PutUntold);
            return Err(format!("PUT into slot {} of set {}, of which the map has live slots that nothing tells", slot.slot, slot.set));
        }
        self.recovery().touched.expect(entries);
        let geometry = self.config.geometry;
        self.sets.describe(slot, entries, false, |block| geometry.full(block));
        self.sets.make_live(slot, count, dirty);
        for (i, entry) in entries.iter().enumerate() {
            let at = Slot { slot: slot.slot + i as u32, ..slot };
            if let Some(older) = self.recovery().touched.insert(entry.block, Some(at)) {
                self.sets.kill(older, 1, 0);
            }
            self.lost.find(entry.block, entry.valid);
        }
        Ok(())
    }

    fn replay_open(&mut self, set: u32, life: u64, stream: u8) -> Result<(), String> {
        let info = self.sets.get(set);
        if info.life + 1 != life {
            let before = info.life;
            self.meet(FaultPoint::OpenOutOfOrder);
            return Err(format!("OPEN of set {set} for life {life} after life {before}"));
        }
        if info.loaded && info.live.iter().any(|slot| self.is_current(Slot { set, slot })) {
            self.meet(FaultPoint::OpenOfLiveSet);
            return Err(format!("OPEN of set {set} with live slots"));
        }
        // Slots that were replaced are killed by the mapping. Or its header is gone: it may be only because nothing of it counts.
        self.sets.kill_unknown(set);
        self.sets.reopen(set, life, stream);
        Ok(())
    }

    /// Does nothing replayed so far replace this live slot of a described set?
    fn is_current(&self, slot: Slot) -> bool {
        let block = self.sets.entry(slot, |block| self.full(block)).block;
        self.recovery.as_ref().expect("recovery is under way").touched.is_current(block, slot)
    }

    fn replay_clean(&mut self, set: u32, life: u32, slots: &Bits) -> Result<(), String> {
        self.expect_life(set, life)?;
        for slot in slots.iter().map(|slot| Slot { set, slot }) {
            if self.sets.is_live(slot) {
                self.sets.clean(slot, 1);
            }
        }
        Ok(())
    }

    fn replay_kill(&mut self, set: u32, life: u32, slots: &Bits) -> Result<(), String> {
        self.expect_life(set, life)?;
        for slot in slots.iter().map(|slot| Slot { set, slot }) {
            if !self.sets.is_live(slot) {
                continue;
            }
            self.sets.kill(slot, 1, 0);
            if slot.slot < self.sets.next_slot(set) {
                let block = self.sets.entry(slot, |block| self.full(block)).block;
                self.recovery().touched.forget(block, slot);
            }
        }
        Ok(())
    }
}

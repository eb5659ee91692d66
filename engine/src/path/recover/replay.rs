//! Replay: the records of the accepted groups, in their order, on top of the state map.
//! A record that cannot be (another life, a slot out of order) is damage, never a guess.

use crate::block::{Block, Slot};
use crate::cache::format::journal::Record;
use crate::cache::format::{Bits, Entry, Position, Range, SetState};
use crate::cache::index::Run;
use crate::cache::sets::HeaderState;
use crate::payload::Payload;
use crate::probe::Phase;

use super::{Engine, Stage};

impl<P: Payload> Engine<P> {
    /// With the headers of dirty sets loaded: replays the log and starts writing its tail again.
    pub(super) fn replay_and_rewrite(&mut self) {
        for range in std::mem::take(&mut self.recovery().ranges) {
            match range {
                Range::Zeroed { block, blocks, kind } => self.ranges.zero(block, blocks, kind, 0),
                Range::Lost { block, atoms } => self.ranges.lose(block, atoms),
            }
        }
        let pages: Vec<usize> = self.recovery().chain.order.clone();
        for page in pages {
            let page = self.recovery().pages[page].page.clone();
            let position = Position { epoch: page.head.epoch, seq: page.head.seq };
            for record in &page.records {
                if let Err(why) = self.replay(record, position) {
                    return self.report_damage(true, format!("journal page {} cannot be replayed: {why}", position.seq));
                }
            }
        }
        let orphan = self.sets.iter().find(|(number, set)| !set.loaded && !self.is_header_needed(*number)).map(|(number, _)| number);
        if let Some(set) = orphan {
            return self.report_damage(true, format!("set {set} is open, but the journal does not tell what its slots hold"));
        }
        if self.config.check {
            self.sets.rebuild_lists(self.now);
            self.phase = Phase::Stopped;
            return;
        }
        self.recovery().stage = Stage::Rewriting;
        self.rewrite_tail();
    }

    fn is_header_needed(&self, set: u32) -> bool {
        self.recovery.as_ref().is_some_and(|recovery| recovery.headers.is_needed(set))
    }

    fn replay(&mut self, record: &Record, position: Position) -> Result<(), String> {
        match record {
            Record::Put { slot, life, restate: true, entries, .. } => self.replay_restate(*slot, *life, entries),
            Record::Put { slot, life, dirty, restate: false, entries } => self.replay_put(*slot, *life, *dirty, entries),
            Record::Open { set, life, stream } => self.replay_open(*set, *life, *stream),
            Record::Seal { set, life } => {
                self.expect_life(*set, *life)?;
                if self.sets.get(*set).state != SetState::Open {
                    return Err(format!("SEAL of set {set}, which is not open"));
                }
                self.sets.seal(*set, position);
                Ok(())
            }
            Record::Clean { set, life, slots } => self.replay_clean(*set, *life, slots),
            Record::Kill { set, life, slots } => self.replay_kill(*set, *life, slots),
            Record::Zero { block, blocks, kind } => {
                self.replay_kill_blocks(*block, *blocks);
                self.touch_range(*block, *blocks);
                self.ranges.zero(*block, *blocks, *kind, 0);
                Ok(())
            }
            Record::Unzero { block, blocks } => {
                self.ranges.remove(*block, *blocks);
                Ok(())
            }
            Record::Lost { block, atoms } => {
                self.ranges.lose(*block, *atoms);
                Ok(())
            }
        }
    }

    fn expect_life(&self, set: u32, life: u32) -> Result<(), String> {
        let now = self.sets.get(set).life as u32;
        if now == life { Ok(()) } else { Err(format!("a record about life {life} of set {set}, which is in life {now}")) }
    }

    /// The slots of a set that was open (or had no header) at the checkpoint: descriptions only, the map says what is live.
    fn replay_restate(&mut self, slot: Slot, life: u32, entries: &[Entry]) -> Result<(), String> {
        self.expect_life(slot.set, life)?;
        let mut displaced = Vec::new();
        for (i, entry) in entries.iter().enumerate() {
            let at = Slot { slot: slot.slot + i as u32, ..slot };
            if at.slot < self.sets.next_slot(slot.set) {
                // Replay began at an earlier checkpoint and knows it already.
                continue;
            }
            if at.slot != self.sets.next_slot(slot.set) {
                return Err(format!("slot {} of set {} is told out of order", at.slot, at.set));
            }
            let full = self.full(entry.block);
            self.sets.describe(slot.set, *entry, full);
            if self.sets.is_live(at) {
                self.index.replace(entry.block, 1, Some(at), &mut displaced);
                self.index.add_dirty(entry.block, i64::from(self.sets.is_dirty(at)));
            }
        }
        let set = self.sets.get_mut(slot.set);
        let last = set.live.iter().last();
        set.loaded = last.is_none_or(|last| last < slot.slot + entries.len() as u32);
        if self.sets.get(slot.set).state == SetState::Sealed {
            // Its header could not be written: once more.
            self.sets.get_mut(slot.set).header = HeaderState::Due;
        }
        match displaced.first() {
            Some(other) => Err(format!("block {} lies in two live slots", other.block.0)),
            None => Ok(()),
        }
    }

    fn replay_put(&mut self, slot: Slot, life: u32, dirty: bool, entries: &[Entry]) -> Result<(), String> {
        self.expect_life(slot.set, life)?;
        if self.sets.get(slot.set).state != SetState::Open || slot.slot != self.sets.next_slot(slot.set) {
            return Err(format!("PUT into slot {} of set {} is out of order", slot.slot, slot.set));
        }
        let mut displaced = Vec::new();
        for (i, entry) in entries.iter().enumerate() {
            let at = Slot { slot: slot.slot + i as u32, ..slot };
            let full = self.full(entry.block);
            self.sets.describe(slot.set, *entry, full);
            displaced.clear();
            self.index.replace(entry.block, 1, Some(at), &mut displaced);
            self.replay_displaced(&displaced);
            self.sets.make_live(at, dirty);
            self.index.add_dirty(entry.block, i64::from(dirty));
            self.ranges.find(entry.block, entry.valid);
            self.touch_blocks(entry.block, 1);
        }
        Ok(())
    }

    fn replay_displaced(&mut self, displaced: &[Run]) {
        for run in displaced {
            let first = run.slot.expect("displaced blocks had slots");
            for i in 0..run.blocks {
                let slot = Slot { slot: first.slot + i as u32, ..first };
                if self.sets.kill(slot, 0) {
                    self.index.add_dirty(Block(run.block.0 + i), -1);
                }
            }
        }
    }

    fn replay_kill_blocks(&mut self, block: Block, blocks: u64) {
        let mut displaced = Vec::new();
        self.index.replace(block, blocks, None, &mut displaced);
        self.replay_displaced(&displaced);
    }

    fn replay_open(&mut self, set: u32, life: u64, stream: u8) -> Result<(), String> {
        let info = self.sets.get(set);
        if info.life + 1 != life {
            return Err(format!("OPEN of set {set} for life {life} after life {}", info.life));
        }
        if info.live_count > 0 && info.loaded {
            return Err(format!("OPEN of set {set} with {} live slots", info.live_count));
        }
        if !info.loaded {
            // Its header is gone, which it may be only because nothing of it counts any more.
            self.sets.kill_unknown(set);
        }
        self.sets.reopen(set, life, stream, self.now);
        Ok(())
    }

    fn replay_clean(&mut self, set: u32, life: u32, slots: &Bits) -> Result<(), String> {
        self.expect_life(set, life)?;
        for slot in slots.iter() {
            let slot = Slot { set, slot };
            if self.sets.is_live(slot) && self.sets.clean(slot) && self.sets.get(set).loaded {
                let block = self.sets.entry(slot, |block| self.full(block)).block;
                self.index.add_dirty(block, -1);
            }
        }
        Ok(())
    }

    fn replay_kill(&mut self, set: u32, life: u32, slots: &Bits) -> Result<(), String> {
        self.expect_life(set, life)?;
        for slot in slots.iter() {
            let slot = Slot { set, slot };
            if !self.sets.is_live(slot) {
                continue;
            }
            if self.sets.get(set).loaded {
                let block = self.sets.entry(slot, |block| self.full(block)).block;
                self.replay_kill_blocks(block, 1);
            } else {
                self.sets.kill(slot, 0);
            }
        }
        Ok(())
    }
}

//! Data writes again: in another slot when the SSD failed one, in the same place when a flush failed behind it; and the end of it all.
//!
//! ```text
//! failed → a pause, longer each time → another slot, in the open group (the first group is durable only together with that one) → …
//!        └ no room → the same place, from time to time                             for 20 s without a success → the SSD has failed
//! ```

use std::collections::VecDeque;

use smallvec::{SmallVec, smallvec};

use crate::block::Slot;
use crate::cache::stream::Source;
use crate::fault_point::FaultPoint;
use crate::op::Class;
use crate::payload::Payload;
use crate::time::{Duration, Instant};

use super::back_off::BackOff;
use super::degraded::PATIENCE;
use super::write::{DataWrite, Piece};
use super::{Engine, Stage};

/// Tries of one data write, each in another slot, before the SSD may count as failed; and those after which it does, although others succeed.
const WRITE_TRIES: u32 = 8;
const WRITE_TRIES_MAX: u32 = 64;

/// Failed data writes that found no other place yet.
pub(super) struct Retries {
    waiting: VecDeque<usize>,
    /// No data write has succeeded since.
    failing_since: Option<Instant>,
    /// Before the next try in other places.
    pub pause: BackOff,
    /// Between two tries in their old places.
    pub back_off: BackOff,
}

impl Default for Retries {
    fn default() -> Self {
        Retries {
            waiting: VecDeque::new(),
            failing_since: None,
            pause: BackOff::new(Duration::from_millis(1), Duration::from_secs(5)),
            back_off: BackOff::steady(Duration::from_secs(1)),
        }
    }
}

impl Retries {
    /// A data write has failed.
    pub fn push(&mut self, write: usize, now: Instant) {
        self.waiting.push_back(write);
        self.failing_since.get_or_insert(now);
        if !self.pause.is_waiting(now) {
            self.pause.failed(now);
        }
    }
    /// Another one has not.
    pub fn succeeded(&mut self) {
        self.failing_since = None;
        self.pause.succeeded();
    }
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
    pub fn len(&self) -> usize {
        self.waiting.len()
    }
}

impl<P: Payload> Engine<P> {
    /// Failed writes take other slots. Where there are none, they are tried in their old places from time to time:
    /// what a flush promises must not wait for the origin to make room.
    pub(super) fn pump_retries(&mut self) -> bool {
        if self.retries.is_empty() {
            self.retries.back_off.at = None;
            return false;
        }
        self.retry_waiting()
    }

    #[cold]
    fn retry_waiting(&mut self) -> bool {
        let mut moved = false;
        while !self.has_cache_failed()
            && !self.retries.pause.is_waiting(self.now)
            && let Some(&number) = self.retries.waiting.front()
        {
            if self.has_tried_enough(self.writes.get(number).tries) {
                self.meet(FaultPoint::DataWriteGivenUp);
                self.fail_cache();
                break;
            }
            let has_room = self.journal_has_room(self.blocks_to_retry(number));
            if self.lacks_slots_to_retry(number) || !has_room {
                self.checkpoint.urgent |= !has_room;
                self.retry_in_place();
                break;
            }
            self.retries.waiting.pop_front();
            self.retry(number);
            moved = true;
        }
        if self.retries.is_empty() {
            self.retries.back_off.at = None;
        }
        moved
    }

    fn blocks_to_retry(&self, write: usize) -> u64 {
        self.writes.get(write).pieces.iter().map(|piece| u64::from(piece.1)).sum()
    }

    fn lacks_slots_to_retry(&self, write: usize) -> bool {
        // Nothing may refuse what fronts have written.
        let spare = self.sets.free_count().saturating_sub(self.front_sets_kept());
        let kept = u64::from(self.config.geometry.set_slots) * u64::from(spare.min(self.sets_kept(Source::Client)));
        self.slots_available(Source::Client) + kept < self.blocks_to_retry(write)
    }

    /// A write that failed finds no other slots.
    pub(super) fn retries_lack_room(&self) -> bool {
        self.retries.waiting.front().is_some_and(|&write| self.lacks_slots_to_retry(write))
    }

    fn retry_in_place(&mut self) {
        if !self.retries.back_off.is_over(self.now) {
            return;
        }
        self.meet(FaultPoint::DataWriteInPlace);
        for number in std::mem::take(&mut self.retries.waiting) {
            let mut write = self.writes.remove(number);
            self.end_group_data(write.group);
            // One place that is bad is no reason to give up all others.
            write.tries = (write.tries + 1).min(WRITE_TRIES).max(write.tries);
            self.send_pieces(write, Class::Log);
        }
    }

    fn has_tried_enough(&self, tries: u32) -> bool {
        let fails_for_long = self.retries.failing_since.is_some_and(|since| self.now.since(since) >= PATIENCE);
        tries >= WRITE_TRIES && fails_for_long || tries >= WRITE_TRIES_MAX
    }

    fn retry(&mut self, number: usize) {
        self.meet(FaultPoint::DataWriteFailed);
        let write = self.writes.remove(number);
        let mut again = Vec::new();
        for (first, slots, payload) in &write.pieces {
            for i in 0..*slots {
                let slot = Slot { set: first.set, slot: first.slot + i };
                if !self.sets.is_live(slot) {
                    self.meet(FaultPoint::DataWriteDropped);
                    continue;
                }
                let entry = self.sets.entry(slot, |block| self.full(block));
                if self.sets.is_dirty(slot) {
                    let payload = payload.slice(u64::from(i) * self.block_atoms(), self.block_atoms());
                    again.push(Piece { block: entry.block, blocks: 1, payload, valid: Some(entry.valid) });
                } else {
                    self.kill_slot(slot);
                }
            }
        }
        let writes = self.put(Source::Client, true, again, &write.requests, write.tries + 1);
        self.postpone_home();
        for &request in &write.requests {
            if let Stage::Writing(writing) = &mut self.requests.get_mut(request).stage {
                writing.unwritten += writes;
                // All of it may have been overwritten, and nothing put.
                writing.group = self.journal.newest_group();
            }
        }
        self.journal.join_newest(write.group);
        self.end_data(&write);
        // Whoever waits for the first group waits for this one now.
        let group = self.close_group();
        self.flushes.want(group);
    }

    /// The SSD takes no writes any more: what waited to be written again is pinned, and not written. Returns the requests that it was for.
    pub(super) fn forget_retries(&mut self) -> Vec<usize> {
        self.retries.back_off.at = None;
        let waiting = std::mem::take(&mut self.retries.waiting);
        waiting.into_iter().flat_map(|number| self.writes.remove(number).requests).collect()
    }

    /// After a failed flush: everything pinned that was written goes out again, same bytes, same slots.
    pub(super) fn rewrite_pins(&mut self) {
        let pins: Vec<_> = self.window.written_pins().cloned().collect();
        for pin in pins {
            let pieces = smallvec![(pin.first, pin.slots, pin.payload)];
            self.window.unwritten(pin.first);
            self.send_pieces(DataWrite { pieces, requests: SmallVec::new(), group: pin.group, tries: 0 }, Class::Log);
        }
    }

    /// It went to a device whose flush has failed since: it is written again.
    pub(super) fn repeat_data(&mut self, write: usize) {
        self.meet(FaultPoint::SuspectDataRepeated);
        let write = self.writes.remove(write);
        self.sets.get_mut(write.pieces[0].0.set).pins -= 1;
        self.end_group_data(write.group);
        self.send_pieces(write, Class::Log);
    }
}

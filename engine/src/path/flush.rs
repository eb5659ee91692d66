//! FLUSH and FUA: close the group, wait for its writes, flush the SSD, then promise.
//!
//! ```text
//! FLUSH → close the group → its writes have ended → one SSD flush, shared by all that wait now → durable → reply
//!                                                       └ failed: EIO, everything pinned is written again, flush again
//! ```
//! A flush of the SSD covers exactly what had ended when it was handed out. It never waits for the origin.

use std::collections::{BTreeMap, BTreeSet};

use crate::cache::sets::HeaderState;
use crate::cache::stream;
use crate::config::{Canary, Placement};
use crate::fault_point::FaultPoint;
use crate::op::{Action, Class, DeviceId, OpId};
use crate::payload::Payload;
use crate::probe::WaitReason;
use crate::request::{Command, Outcome, RequestError};
use crate::time::{Duration, Instant};

use super::back_off::BackOff;
use super::degraded::PATIENCE;
use super::{Ended, Engine, Owner, Stage};

/// Full pages of the open group that are worth a write of their own: a small write for each few mebibytes of data keeps an SSD from its work.
const PAGES_WORTH: usize = 16;

pub(super) struct Flushes {
    /// Requests that wait for a group to be durable.
    waiting: Vec<(usize, u64)>,
    /// When the open group got its first record.
    pub unflushed_since: Option<Instant>,
    /// The engine's own wish: this group durable.
    wanted_group: u64,
    /// The first of those wishes that may be open: the newest one moves on with each that comes, which is too late for whoever waits for the origin.
    oldest_wanted: u64,
    /// The engine's own wish: a flush handed out after this many others has succeeded.
    wanted_flush: u64,
    /// Flushes handed out.
    handed_out: u64,
    /// The newest flush that succeeded.
    succeeded: u64,
    active: Option<Active>,
    /// Operations that were in flight when a flush failed: the device may have dropped them, whatever it says when they end.
    pub suspect: BTreeSet<OpId>,
    pub back_off: BackOff,
    /// No flush has succeeded since.
    failing_since: Option<Instant>,
    /// Pages of the journal failed: none is written before.
    pub page_back_off: BackOff,
    /// No page could be written since.
    pages_failing_since: Option<Instant>,
    pub unpromised: Unpromised,
}

impl Default for Flushes {
    fn default() -> Self {
        Flushes {
            waiting: Vec::new(),
            unflushed_since: None,
            wanted_group: 0,
            oldest_wanted: 0,
            wanted_flush: 0,
            handed_out: 0,
            succeeded: 0,
            active: None,
            suspect: BTreeSet::new(),
            back_off: BackOff::new(Duration::from_millis(100), Duration::from_secs(10)),
            failing_since: None,
            page_back_off: BackOff::new(Duration::from_millis(1), Duration::from_secs(5)),
            pages_failing_since: None,
            unpromised: Unpromised::default(),
        }
    }
}

/// What was acknowledged, and no client's FLUSH has covered yet.
#[derive(Default)]
pub(super) struct Unpromised {
    /// Acknowledged so far.
    acknowledged: u64,
    /// Group of the log → the last acknowledgement of what is in it. Durable groups are joined.
    groups: BTreeMap<u64, u64>,
}

impl Unpromised {
    /// Something is acknowledged: as which number, for [`Unpromised::note`].
    pub fn acknowledge(&mut self) -> u64 {
        self.acknowledged += 1;
        self.acknowledged
    }
    /// What was acknowledged under this number is in `group`; groups up to `durable` are durable.
    pub fn note(&mut self, number: u64, group: u64, durable: u64) {
        if let Some(last) = self.groups.get_mut(&group) {
            *last = number.max(*last);
            return;
        }
        self.groups.insert(group, number);
        while let Some((&oldest, &last)) = self.groups.first_key_value()
            && let Some((&next, newer)) = self.groups.range_mut(oldest + 1..).next()
            && next <= durable
        {
            *newer = last.max(*newer);
            self.groups.remove(&oldest);
        }
    }
    /// How many acknowledgements have reached the clients, if `untold` is the first one that has not.
    pub fn told(&self, untold: Option<u64>) -> u64 {
        untold.map_or(self.acknowledged, |first| first - 1)
    }
    /// A FLUSH has succeeded that came after so many acknowledgements.
    fn promise(&mut self, acknowledged: u64) {
        self.groups.retain(|_, last| *last > acknowledged);
    }
    /// Is something among it that has become durable, and need not be in memory any more?
    pub fn has_until(&self, durable: u64) -> bool {
        self.groups.first_key_value().is_some_and(|(&group, _)| group <= durable)
    }
}

struct Active {
    number: u64,
    group: u64,
    headers: Vec<u32>,
}

impl Flushes {
    pub fn want(&mut self, group: u64) {
        self.wanted_group = self.wanted_group.max(group);
    }
    /// Wants a flush that covers everything that has ended by now. The answer is for [`Flushes::has_succeeded`].
    pub fn want_after_now(&mut self) -> u64 {
        self.wanted_flush = self.handed_out + 1;
        self.wanted_flush
    }
    pub fn has_succeeded(&self, number: u64) -> bool {
        self.succeeded >= number
    }
}

impl<P: Payload> Engine<P> {
    pub(super) fn begin_flush(&mut self, number: usize) {
        if !self.promise_without_cache(number) {
            self.settle(number);
        }
    }

    /// The request is answered when `group` is durable.
    pub(super) fn promise(&mut self, number: usize, group: u64) {
        if self.promise_without_cache(number) {
            return;
        }
        if group == self.journal.group() {
            self.close_group();
        }
        self.note_awaited_group();
        let active = self.requests.get_mut(number);
        active.stage = Stage::Promised;
        active.waits = WaitReason::Flush;
        self.flushes.waiting.push((number, group));
    }

    /// Somebody waits until what is in the log now is durable, and asks again and again. One that is still to come is waited for first, then there is
    /// another one. A group closed each time would be a page each time, and the flush would wait for the last of them: for ever, if there are always
    /// more.
    pub(super) fn want_flush(&mut self) {
        if self.flushes.wanted_group <= self.journal.durable_group() {
            let group = self.close_group();
            self.flushes.want(group);
        }
    }

    /// The engine's own flush: the window is half full, a write is old, or free sets are short.
    pub(super) fn pump_own_flush(&mut self) {
        if self.has_cache_failed() {
            return;
        }
        let half = self.window.atoms() * crate::block::ATOM_BYTES * 2 >= self.config.window_bytes;
        let old = self.flushes.unflushed_since.is_some_and(|since| self.now.since(since) >= self.config.flush_age);
        if half || old || self.has_undurable_dying() && self.is_short_of_sets() {
            self.want_flush();
        }
    }

    /// So few sets are free that one which only waits for a flush is wanted.
    fn is_short_of_sets(&self) -> bool {
        let low = self.config.free_floor.max(self.sets_kept_now(stream::Source::Client) + 2).max(self.sets_needed());
        self.sets.free_count() < low.max(self.sets_needed_to_stop())
    }

    pub(super) fn pump_flush(&mut self) -> bool {
        let flushes = &self.flushes;
        if flushes.active.is_some() || flushes.back_off.is_waiting(self.now) || self.has_cache_failed() {
            return false;
        }
        let durable = self.journal.durable_group();
        if flushes.waiting.is_empty() && flushes.wanted_group <= durable && flushes.wanted_flush <= flushes.succeeded {
            return false;
        }
        if flushes.oldest_wanted <= durable {
            self.flushes.oldest_wanted = flushes.wanted_group;
        }
        let flushes = &self.flushes;
        let group = self.journal.flushable();
        let wanted = |wanted: u64| wanted > durable && wanted <= group;
        let needed = flushes.waiting.iter().any(|&(_, group)| wanted(group))
            // Where nobody waits for the origin, more becomes durable at once, and a sweep over more costs the origin less.
            || wanted(if self.modes.is_waiting() { flushes.oldest_wanted } else { flushes.wanted_group })
            || flushes.wanted_flush > flushes.succeeded;
        if !needed {
            return false;
        }
        self.flushes.back_off.at = None;
        self.flushes.handed_out += 1;
        let headers = std::mem::take(&mut self.header_writes.written);
        self.flushes.active = Some(Active { number: self.flushes.handed_out, group, headers });
        if self.has_canary(Canary::FlushDoesNotWait) {
            self.cache_flush_done(Ok(()));
            return true;
        }
        self.counters.cache_flushes += 1;
        self.start(DeviceId::Cache, Class::Log, Action::Flush, Owner::CacheFlush);
        false
    }

    pub(super) fn cache_flush_done(&mut self, result: Ended) {
        let active = self.flushes.active.take().expect("one flush is in flight");
        if self.has_cache_failed() {
            // What is pinned stays pinned: the origin will have it.
            return;
        }
        match result {
            Ok(()) => self.flush_succeeded(active),
            Err(_) => self.flush_failed(active),
        }
    }

    fn flush_succeeded(&mut self, active: Active) {
        self.flushes.succeeded = active.number;
        self.flushes.back_off.succeeded();
        self.flushes.failing_since = None;
        for set in active.headers {
            if self.sets.get(set).header == HeaderState::Written {
                self.sets.get_mut(set).header = HeaderState::Durable;
            }
        }
        self.journal.made_durable(active.group);
        self.window.release(active.group);
        for (number, _) in self.take_waiting(active.group) {
            self.keep_promise(number);
        }
    }

    /// What the request was promised is durable.
    pub(super) fn keep_promise(&mut self, number: usize) {
        if self.is_flush(number) {
            self.flushes.unpromised.promise(self.requests.get(number).acknowledged);
        }
        self.answer(number, Ok(Outcome::Done));
    }

    pub(super) fn is_flush(&self, number: usize) -> bool {
        matches!(self.requests.get(number).request.command, Command::Flush)
    }

    /// Nothing is promised until everything pinned was written again and flushed: what the failed flush covered may be gone.
    fn flush_failed(&mut self, active: Active) {
        self.meet(FaultPoint::FlushFailed);
        self.counters.cache_flush_failures += 1;
        let in_flight = self.operations.under_way.iter().filter(|(_, operation)| operation.device == DeviceId::Cache);
        self.flushes.suspect.extend(in_flight.map(|(_, operation)| operation.id));
        for (number, _) in self.take_waiting(active.group) {
            self.answer(number, Err(RequestError::Io));
        }
        self.journal.rewrite_pages();
        self.rewrite_pins();
        // Not only what it covered: more may have been written while it waited for its turn on the device.
        let written = std::mem::take(&mut self.header_writes.written);
        for set in active.headers.into_iter().chain(written) {
            if self.sets.doubt_header(set) {
                self.header_writes.due.push(set);
            }
        }
        // And a copy that has ended alone: the other one may fail, and then this would be all there is.
        self.sets.doubt_headers();
        self.scrubber.doubt_repair();
        self.checkpoint_flush_failed();
        self.flushes.want(active.group);
        self.flushes.back_off.failed(self.now);
        if self.now.since(*self.flushes.failing_since.get_or_insert(self.now)) >= PATIENCE {
            self.fail_cache();
        }
    }

    fn take_waiting(&mut self, group: u64) -> Vec<(usize, u64)> {
        let (done, waiting) = std::mem::take(&mut self.flushes.waiting).into_iter().partition(|&(_, waits)| waits <= group);
        self.flushes.waiting = waiting;
        done
    }

    /// The requests that wait for a flush of the SSD, which will not come.
    pub(super) fn take_promised(&mut self) -> Vec<usize> {
        self.take_waiting(u64::MAX).into_iter().map(|(number, _)| number).collect()
    }

    // --- the open group ---

    /// Something has been recorded in the open group.
    pub(super) fn note_record(&mut self) {
        if self.flushes.unflushed_since.is_none() {
            self.flushes.unflushed_since = Some(self.now);
        }
    }

    /// Closes the open group and returns the newest closed one.
    pub(super) fn close_group(&mut self) -> u64 {
        self.flushes.unflushed_since = None;
        self.end_gathering();
        self.journal.close()
    }

    // --- journal pages ---

    /// Hands out the pages of closed groups, and of the open one when they are worth a write.
    pub(super) fn pump_pages(&mut self) {
        let worth = match self.config.placement {
            Placement::Log => PAGES_WORTH,
            // As paper 000 measures it: each as soon as it is full.
            Placement::Set => 1,
        };
        if !self.journal.has_outgoing(worth) {
            return;
        }
        let most = (self.limits[0].op_atoms / crate::block::PAGE_ATOMS).clamp(1, 64) as u32;
        while !self.has_cache_failed()
            && !self.flushes.page_back_off.is_waiting(self.now)
            && let Some(run) = self.journal.next_run::<P>(most)
        {
            self.counters.journal_pages += u64::from(run.pages);
            let first = self.config.geometry.journal_page(run.place);
            let span = crate::block::Span::new(first.start, u64::from(run.pages) * crate::block::PAGE_ATOMS);
            let action = Action::Write(crate::op::Zone::Journal, span, run.payloads);
            self.start(DeviceId::Cache, Class::Log, action, Owner::Pages { first_seq: run.first_seq, pages: run.pages });
        }
    }

    pub(super) fn pages_done(&mut self, first_seq: u64, pages: u32, result: Ended) {
        for seq in first_seq..first_seq + u64::from(pages) {
            match result {
                Ok(()) => self.journal.page_written(seq),
                Err(_) if self.journal.free_pages() > self.journal_reserve() => {
                    self.meet(FaultPoint::JournalWriteFailed);
                    self.journal.page_failed(seq);
                }
                // There is no other place.
                Err(_) => self.journal.page_again(seq),
            }
        }
        if result.is_ok() {
            self.flushes.page_back_off.succeeded();
            self.flushes.pages_failing_since = None;
            return;
        }
        self.counters.cache_write_failures += 1;
        self.flushes.page_back_off.failed(self.now);
        if self.now.since(*self.flushes.pages_failing_since.get_or_insert(self.now)) >= PATIENCE {
            self.meet(FaultPoint::JournalWriteGivenUp);
            self.fail_cache();
        }
    }
}

//! Promises: what went through is made durable before a FLUSH is answered, in the log or by a flush of the origin; and is let go.

use crate::block::{Block, Span};
use crate::cache::stream::Source;
use crate::cache::through::Page;
use crate::op::{Action, Class, DeviceError, DeviceId};
use crate::payload::Payload;
use crate::probe::WaitReason;
use crate::request::{Command, RequestError};
use crate::time::{Duration, Instant};

use super::super::write::Piece;
use super::super::{Ended, Engine, Owner, Stage};
use super::Flush;

/// How long a FLUSH waits, for each MiB that went through, for a flush of the origin that is under way: as long as an SSD takes to write it.
const LOG_PACE: Duration = Duration::from_millis(5);

impl<P: Payload> Engine<P> {
    /// Makes everything that went through durable before the request is answered: in the log, or by a flush of the origin.
    pub(in crate::path) fn settle(&mut self, number: usize) {
        if self.is_degraded() {
            // Whatever the mode: there is the origin only.
            if self.is_flush(number) && self.takes_loss() {
                return self.answer(number, Err(RequestError::Io));
            }
            let is_settled = self.through.pages.is_empty() && !self.owes_zeros_to(number);
            return if is_settled { self.settle_group(number) } else { self.settle_by_flush(number) };
        }
        if self.modes.is_home() {
            return self.await_home(number);
        }
        if self.through.pages.is_empty() {
            return self.settle_group(number);
        }
        if self.through.is_about_to_settle() && self.through.settling.is_empty() {
            self.through.patience = Some(self.now + self.log_pace());
            return self.settle_by_flush(number);
        }
        if self.through.settling.is_empty()
            && let Some(patience) = self.commit_patience()
        {
            self.through.patience = Some(self.now + patience.max(self.log_pace()));
            return self.settle_by_flush(number);
        }
        if self.through.patience.is_some() || !self.log_pages() {
            return self.settle_by_flush(number);
        }
        self.settle_group(number);
    }

    /// How long it takes to put the pages into the log.
    fn log_pace(&self) -> Duration {
        Duration(LOG_PACE.0 * (self.through.pages.atoms() / 2048 + 1))
    }

    /// The flush of the origin takes longer than it would have taken to put the pages into the log: that is done now.
    pub(super) fn settle_impatient(&mut self) {
        if self.through.settling.is_empty() {
            self.through.patience = None;
        }
        if self.through.patience.is_some_and(|until| until <= self.now) {
            self.through.patience = None;
            self.committing.give_up();
            if !self.promises_origin() && self.log_pages() {
                for (number, _) in std::mem::take(&mut self.through.settling) {
                    self.settle_group(number);
                }
            }
        }
    }

    /// The same where the origin is promised: nothing is put into the log, the origin is flushed. A write with FUA waits for its own pages.
    pub(in crate::path) fn settle_pages(&mut self, number: usize) {
        let is_covered = |(block, blocks)| self.through.covers(block, blocks);
        let waits =
            if self.is_flush(number) { !self.through.pages.is_empty() } else { self.changed_blocks(number).is_some_and(is_covered) };
        if waits { self.settle_by_flush(number) } else { self.settle_group(number) }
    }

    /// Everything is in the log, or on the origin.
    fn settle_group(&mut self, number: usize) {
        if !self.is_degraded() && self.promise_without_cache(number) {
            // The log has failed meanwhile.
            return;
        }
        let group = self.close_group();
        if group <= self.journal.durable_group() {
            self.keep_promise(number);
        } else {
            self.promise(number, group);
        }
    }

    /// It waits until the origin is flushed.
    fn settle_by_flush(&mut self, number: usize) {
        let active = self.requests.get_mut(number);
        active.stage = Stage::Promised;
        active.waits = WaitReason::Origin;
        if self.is_flush(number) && self.owes_zeros() {
            self.try_refused();
        } else if self.is_flush(number) {
            self.through.try_refused();
        }
        let until = self.is_taken(number).then_some(self.through.pages.mark());
        self.through.settling.push((number, until));
    }

    /// Has the origin taken everything that this request waits for? A FLUSH waits for all pages, another request for its own ones.
    fn is_taken(&self, number: usize) -> bool {
        if self.is_flush(number) {
            return self.through.pages.are_written();
        }
        let is_written = |(block, blocks)| self.through.pages.is_written(block, blocks) == Some(true);
        self.changed_blocks(number).is_none_or(is_written)
    }

    /// The blocks that a request changes which is no FLUSH, if any: a TRIM leaves those alone that it does not take whole.
    pub(in crate::path) fn changed_blocks(&self, number: usize) -> Option<(Block, u64)> {
        let request = &self.requests.get(number).request;
        let is_trim = matches!(request.command, Command::Trim { .. });
        let (block, blocks) = if is_trim { self.discarded_blocks(request.span) } else { self.blocks_of(request.span) };
        (blocks > 0).then_some((block, blocks))
    }

    /// Does this request wait for a page that the origin does not take?
    fn is_refused(&self, number: usize) -> bool {
        let is_refused = |(block, blocks)| self.through.pages.is_written(block, blocks) == Some(false);
        self.is_flush(number) || self.changed_blocks(number).is_some_and(is_refused)
    }

    /// What the origin has taken by now, a flush of it that is handed out from now on makes durable.
    fn mark_settling(&mut self) {
        let mark = self.through.pages.mark();
        let mut settling = std::mem::take(&mut self.through.settling);
        for (number, until) in &mut settling {
            *until = until.or_else(|| self.is_taken(*number).then_some(mark));
        }
        self.through.settling = settling;
    }

    /// The origin has not flushed the pages: who waits for that is told, or has them put into the log.
    fn fail_settling(&mut self) {
        if self.through.patience.is_some() {
            // Whoever waits only because it was under way needs it no more.
            self.through.patience = Some(self.now);
            return;
        }
        for (number, _) in std::mem::take(&mut self.through.settling) {
            self.answer(number, Err(RequestError::Io));
        }
    }

    /// The origin has not taken what is to be there: who waited for any of it then is told. (For who came since it is tried once more.)
    pub(in crate::path) fn fail_settling_of(&mut self, refused: &[(Span, Instant)]) {
        let is_told = |number: usize| {
            let arrived = self.requests.get(number).arrived;
            let own = self.changed_blocks(number).map(|(block, blocks)| self.blocks_span(block, blocks));
            let is_own = |span: &Span| self.is_flush(number) || own.is_some_and(|own| own.overlaps(*span));
            refused.iter().any(|(span, when)| arrived < *when && is_own(span))
        };
        let told: Vec<usize> = self.settling().filter(|&number| is_told(number)).collect();
        for number in told {
            self.forget_passing(number);
            self.answer(number, Err(RequestError::Io));
        }
    }

    /// A promise cannot be kept by the log.
    fn promises_origin(&self) -> bool {
        self.is_degraded() || self.modes.is_home()
    }

    /// The origin does not take a page, again and again: who waited for it then has it put into the log, or is told. For who came since it is tried
    /// once more.
    pub(super) fn fail_refused(&mut self, error: DeviceError, when: Instant) {
        if !self.promises_origin() {
            if self.through.patience.is_some() {
                self.through.patience = Some(self.now);
                return;
            }
            if !self.through.settling.is_empty() && self.log_pages() {
                for (number, _) in std::mem::take(&mut self.through.settling) {
                    self.settle_group(number);
                }
                return;
            }
        }
        let patience = if error == DeviceError::NoSpace { self.config.stall_timeout } else { Duration::ZERO };
        let arrived = |number: usize| self.requests.get(number).arrived;
        let settling = self.through.settling.iter().map(|&(number, _)| number).filter(|&number| self.is_refused(number));
        // What is dirty below a page does not go home either.
        let waiting = self.waiting_for_home().filter(|&number| self.is_refused(number));
        let (before, since): (Vec<usize>, Vec<usize>) = settling.chain(waiting).partition(|&number| arrived(number) < when);
        let told: Vec<usize> = before.into_iter().filter(|&number| self.now.since(arrived(number)) >= patience).collect();
        if !since.is_empty() {
            self.through.try_refused();
        }
        for number in told {
            self.forget_passing(number);
            self.forget_waiting_for_home(number);
            self.answer(number, Err(if error == DeviceError::NoSpace { RequestError::NoSpace } else { RequestError::Io }));
        }
    }

    /// Puts all pages into the log. False: it has no room.
    fn log_pages(&mut self) -> bool {
        let blocks = self.through.pages.blocks();
        if self.has_cache_failed() || self.slots_available(Source::Client) < blocks || !self.journal_has_room(blocks + 2) {
            return false;
        }
        let pages: Vec<(Block, Page<P>)> = self.through.pages.iter().map(|(block, page)| (block, page.clone())).collect();
        let before = self.journal.group();
        for (block, Page { blocks, payload, valid, .. }) in pages {
            self.begin_group_for(blocks + 2);
            self.through.pages.remove(block, blocks);
            self.counters.through_logged_blocks += blocks;
            self.put(Source::Client, true, [Piece { block, blocks, payload, valid }], &[], 0);
        }
        self.through.crowded = false;
        if !self.through.unsure.awaits_flush() {
            self.through.since = None;
        }
        // Who waits for it waits for the last of its groups. So none of them is durable without that, and what is pinned for it stays pinned.
        (before..self.journal.newest_group()).for_each(|group| self.journal.join_newest(group));
        // Some of it may have been acknowledged after the FLUSH came for which this is done.
        let acknowledgement = self.flushes.unpromised.acknowledge();
        self.flushes.unpromised.note(acknowledgement, self.journal.group(), self.journal.durable_group());
        true
    }

    /// Flushes the origin when somebody waits for it, much is pinned, or a page is old.
    pub(super) fn pump_through_flush(&mut self) {
        self.mark_settling();
        let through = &self.through;
        if through.flush.is_some()
            || through.back_off.is_waiting(self.now)
            || (through.pages.is_empty() || through.flushed >= through.pages.mark()) && !through.unsure.awaits_flush()
        {
            return;
        }
        let much =
            through.pages.loose_atoms() * crate::block::ATOM_BYTES >= self.config.through_bytes / 4 * 3 && !self.splitting.is_at_home_leg();
        let old = through.since.is_some_and(|since| self.now.since(since) >= self.config.flush_age);
        let leg_over = self.splitting.wants_origin_flush() && through.writes.is_empty() && through.waiting.is_empty();
        // Without the SSD what lies under a page is dirty until then.
        let drains = self.is_degraded() && self.drain.is_some();
        let asked = !through.settling.is_empty() || self.modes.is_waiting() || self.detaching || drains || leg_over;
        // What is being written would have to be flushed for again, unless room is needed.
        // Or those that the origin does not even try keep everybody waiting.
        let is_marked = || through.back_off.has_failed() && through.settling.iter().any(|(_, until)| until.is_some());
        let is_due = much || through.crowded || (old || self.stopping || asked) && (through.pages.are_tried() || is_marked());
        if is_due {
            let (mark, forgotten) = (through.pages.mark(), through.forgotten);
            self.through.flush = Some(Flush { mark, forgotten });
            self.through.unsure.flush_begins();
            self.counters.through_flushes += 1;
            self.splitting.origin_flushes();
            self.start(DeviceId::Origin, Class::Log, Action::Flush, Owner::ThroughFlush);
        }
    }

    /// When the oldest page is so old that the origin is flushed for it, or somebody has waited long enough for such a flush.
    pub(in crate::path) fn page_deadline(&self) -> Option<Instant> {
        let has_some = !self.through.pages.is_empty() || self.through.unsure.awaits_flush();
        let old = self.through.since.filter(|_| has_some).map(|since| since + self.config.flush_age);
        // What was due when the flows were looked at has had its turn.
        [old, self.through.patience].into_iter().flatten().filter(|&at| at > self.looked).min()
    }

    pub(in crate::path) fn through_flush_done(&mut self, result: Ended) {
        let flush = self.through.flush.take().expect("one flush is in flight");
        match result {
            Ok(()) if flush.forgotten == self.through.forgotten => {
                self.through.back_off.succeeded();
                self.through.flushed = flush.mark;
                self.through.unsure.flush_ends(true);
                self.grant_rescue();
            }
            Ok(()) => self.through.unsure.flush_ends(false),
            Err(error) => {
                self.origin_flush_failed(error);
                self.through.unsure.flush_ends(false);
                self.through.back_off.failed(self.now);
                // `origin_flush_failed` has taken all marks back.
                if self.through.patience.is_some() || error != DeviceError::Gone {
                    self.fail_settling();
                }
                if error != DeviceError::Gone {
                    self.fail_home_below_pages();
                }
            }
        }
    }

    /// Lets go what a flush of the origin has made durable: the slots below it die.
    pub(super) fn release_pages(&mut self) -> bool {
        let mark = self.through.flushed;
        let covered = self.through.pages.covered(mark);
        let covered_blocks = covered.iter().map(|(_, blocks)| blocks).sum::<u64>();
        // Over what was replaced there are pages, too: no more can end than those have.
        let blocks = (covered_blocks + self.through.pages.replaced_blocks()).min(self.through.pages.blocks());
        // Without the SSD their end is not written down.
        if blocks > 0 && !self.has_cache_failed() && !self.journal_has_room(blocks) {
            self.checkpoint.urgent = true;
            return false;
        }
        // First: a page's own end forgets what it has replaced.
        for (block, blocks) in self.through.pages.take_replaced(mark) {
            self.begin_group_for(blocks);
            self.kill_live(block, blocks, true);
            self.came_home();
        }
        let any = !covered.is_empty();
        for (block, blocks) in covered {
            self.begin_group_for(blocks);
            self.find_lost(block, blocks);
            if self.through.pages.get(block).is_some_and(|page| page.valid.is_none()) {
                self.through.unsure.rewritten(self.blocks_span(block, blocks));
            }
            self.through.pages.remove(block, blocks);
            self.was_taken(block, blocks);
            self.kill_live(block, blocks, true);
            if self.has_cache_failed() {
                // What fronts had written has killed nothing on its way, and the SSD may still be read.
                self.kill_live(block, blocks, false);
            }
            self.tickets.void(block, blocks);
        }
        if any {
            self.came_home();
            self.through.crowded = false;
            let has_none = self.through.pages.is_empty() && !self.through.unsure.awaits_flush();
            self.through.since = if has_none { None } else { Some(self.now) };
        }
        // Without a page left everything is on the origin or in the log.
        let none_left = self.through.pages.is_empty();
        let is_settled =
            |number, until: Option<u64>| (none_left || until.is_some_and(|until| until <= mark)) && !self.owes_zeros_to(number);
        let (settled, settling): (Vec<_>, Vec<_>) = self.through.settling.iter().partition(|&&(number, until)| is_settled(number, until));
        self.through.settling = settling;
        for &(number, _) in &settled {
            self.settle_group(number);
        }
        any || !settled.is_empty()
    }

    /// Stopping: pages that the origin does not take have to go into the log, or all of them while it takes nothing; where it is promised, not before
    /// the stop has waited long enough.
    fn must_log_pages(&self) -> bool {
        let takes_nothing = || if self.modes.is_home() { self.is_stop_impatient() } else { self.through.back_off.has_failed() };
        self.stopping && !self.has_cache_failed() && (self.through.pages.refused().next().is_some() || takes_nothing())
    }

    /// Stopping: the free sets that the log needs for such pages, and has not got. Destaging makes them.
    #[inline]
    pub(in crate::path) fn sets_needed_to_stop(&self) -> u32 {
        if self.stopping { self.sets_needed_for_pages() } else { 0 }
    }

    fn sets_needed_for_pages(&self) -> u32 {
        let blocks = self.through.pages.blocks();
        if !self.must_log_pages() || self.slots_available(Source::Client) >= blocks {
            return 0;
        }
        blocks.div_ceil(u64::from(self.config.geometry.set_slots)) as u32 + self.sets_kept_now(Source::Client)
    }

    /// The same of the journal: a checkpoint makes room there.
    pub(super) fn make_room_to_stop(&mut self) {
        if self.must_log_pages() && !self.journal_has_room(self.through.pages.blocks() + 2) {
            self.checkpoint.urgent = true;
        }
    }

    /// Stopping: true when nothing is left that only the origin holds, and that it might forget.
    pub(in crate::path) fn is_through_settled(&mut self) -> bool {
        self.through.pages.is_empty() || self.log_pages()
    }
}

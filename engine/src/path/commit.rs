//! Commit: a write that a FLUSH follows at once goes home where that is durable sooner there than in the log. `cache/commit` says where;
//! here is who may, and what a FLUSH of it waits for.
//!
//! ```text
//! write, alone ── home is quicker, and the cache has nothing of it ──▶ through ── reply ── FLUSH ──▶ origin flush ── reply
//!                                                                        │                   └ not in time: into the log, SSD flush
//!                                                                        └ the origin does not take it: into the log
//! ```
//! It is a through write like any other, with the rules of `split`. The SSD is not flushed for such a FLUSH if it has nothing that waits for that:
//! no record at all, since each may be one that what went home needs (the end of a zeroed range, the death of a slot).

use crate::block::Span;
use crate::cache::commit::{Commits, LARGEST};
use crate::cache::split::Part;
use crate::config::{CommitHome, Config};
use crate::op::{Action, Answer, Class, DeviceError, DeviceId, OpId, Zone};
use crate::payload::Payload;
use crate::request::Command;
use crate::time::Duration;

use super::{Engine, Owner};

/// Atoms pinned for the origin, at most, that a FLUSH waits for: more is not from commits.
const PINNED: u64 = 2 * LARGEST;
/// However slow the SSD is, a FLUSH waits for the origin no longer than this.
const PATIENCE_MOST: Duration = Duration::from_millis(50);

pub(super) struct Committing {
    commits: Option<Commits>,
    /// Requests under way that write or flush.
    under_way: usize,
    /// What the newest write has written that may be a commit.
    last: Option<Span>,
}

impl Committing {
    pub fn new(config: &Config) -> Self {
        let always = config.commit_home == CommitHome::Always;
        Committing { commits: config.commits_home().then(|| Commits::new(always)), under_way: 0, last: None }
    }

    /// The origin was late, or has not taken what it was given.
    pub fn give_up(&mut self) {
        if let Some(commits) = self.commits.as_mut().filter(|commits| commits.patience().is_some()) {
            commits.give_up();
        }
    }

    pub fn went_home(&mut self, number: usize) {
        if let Some(commits) = &mut self.commits {
            commits.went_home(number);
        }
    }
}

impl<P: Payload> Engine<P> {
    /// A request has come, and is not begun.
    pub(super) fn note_commit(&mut self, number: usize) {
        let Some(commits) = &mut self.committing.commits else { return };
        let request = &self.requests.get(number).request;
        let span = request.span;
        self.committing.under_way += usize::from(writes_or_flushes(&request.command));
        let is_one = self.committing.under_way == 1;
        let is_home = match request.command {
            Command::Write { fua: false, .. } => {
                self.committing.last = Some(span);
                commits.write_came(number, span.atoms, is_one)
            }
            Command::Flush => {
                commits.flush_came(number, is_one);
                false
            }
            Command::Write { fua: true, .. } | Command::Trim { .. } | Command::Zero { .. } => {
                commits.end_habit();
                false
            }
            Command::Read | Command::Cache | Command::Status { .. } => false,
        };
        // Which has a leg at home already stays there.
        if is_home && self.requests.get(number).part != Part::Home && self.may_go_home(span) {
            self.requests.get_mut(number).part = Part::Commit;
        }
    }

    /// A request is answered that was begun so long ago.
    pub(super) fn commit_answered(&mut self, number: usize, command: &Command<P>, latency: Duration) {
        let Some(commits) = &mut self.committing.commits else { return };
        self.committing.under_way -= usize::from(writes_or_flushes(command));
        match command {
            Command::Write { .. } => commits.write_answered(number, latency),
            Command::Flush => {
                commits.flush_answered(number, latency);
                self.gauge_origin();
            }
            Command::Read | Command::Cache | Command::Status { .. } | Command::Trim { .. } | Command::Zero { .. } => {}
        }
    }

    /// Does this write go home now? Not over anything that the cache has, or has had: its end would have to be made durable first.
    pub(super) fn commits_home(&self, number: usize) -> bool {
        let active = self.requests.get(number);
        if active.part != Part::Commit || !self.may_go_home(active.request.span) {
            return false;
        }
        let (block, blocks) = self.blocks_of(active.request.span);
        self.has_room_to_pass(blocks) && !self.has_any(block, blocks) && !self.dies_late(block, blocks)
    }

    /// How long a FLUSH waits for the origin to make durable what went home. None: not at all.
    pub(super) fn commit_patience(&self) -> Option<Duration> {
        let patience = self.committing.commits.as_ref()?.patience()?;
        // Both devices one after the other would take longer, and be as safe: tests try that too.
        let is_durable = self.config.commit_home == CommitHome::Always || self.journal.newest_group() <= self.journal.durable_group();
        let is_sound = self.may_go_home(Span::new(0, self.block_atoms())) && !self.through.back_off.is_waiting(self.now);
        let is_little = self.through.pages.atoms() <= PINNED && self.through.pages.are_written();
        (is_durable && is_sound && is_little).then_some(patience.min(PATIENCE_MOST))
    }

    // --- how quick is the origin? ---

    /// Asks the origin for the block of a write that has just been answered, if it is time for that and nobody else wants anything there.
    fn gauge_origin(&mut self) {
        if !self.committing.commits.as_ref().is_some_and(Commits::wants_gauge) {
            return;
        }
        let Some(span) = self.committing.last.filter(|&span| !span.is_empty() && self.may_go_home(span)) else { return };
        let (block, _) = self.blocks_of(span);
        let place = self.config.geometry.block_span(block);
        if self.is_origin_busy(block, 1) || !self.queues[DeviceId::Origin as usize].is_idle() {
            return;
        }
        let op = self.start(DeviceId::Origin, Class::Fill, Action::Read(Zone::Origin, place), Owner::Gauge);
        self.origin.begin_read(op, place, self.now);
        self.committing.commits.as_mut().expect("it wants one").gauge_begins();
    }

    pub(super) fn gauge_done(&mut self, op: OpId, result: Result<Answer<P>, DeviceError>) {
        let latency = self.origin.end_read(op, self.now, self.turning_since()).waited;
        if let Some(commits) = &mut self.committing.commits {
            commits.gauged(result.ok().map(|_| latency));
        }
    }
}

fn writes_or_flushes<P>(command: &Command<P>) -> bool {
    match command {
        Command::Write { .. } | Command::Trim { .. } | Command::Zero { .. } | Command::Flush => true,
        Command::Read | Command::Cache | Command::Status { .. } => false,
    }
}

//! Mode: what a FLUSH promises, and how that changes while the volume serves.
//!
//! ```text
//!   Back ──(write-through or read-only wanted)──▶ Draining ──(home but for a batch or two)──▶ Home { since } ──(all home since)──▶ Home ──▶ recorded
//!     ◀────────────────────────(write-back wanted)────┘                                          │
//!     ◀──────────────────────────────────────────────(write-back wanted, and recorded)───────────┘
//! ```
//! *Home*: write-back whose FLUSH also waits until everything that was dirty when it came has been destaged and the origin was flushed. Only
//! so much may be dirty that this is soon ([`Engine::lacks_home`]): a write beyond that waits. What a waiting FLUSH covers is not
//! overwritten before it has gone home ([`Engine::is_owed`]): the older contents would be nowhere but in a log that may be lost.
//!
//! *Draining* promises what write-back does. So a FLUSH never waits for a cache full of dirty blocks; and however much is written
//! meanwhile, what is dirty becomes less.
//!
//! The superblocks name a mode that promises the origin only while every FLUSH keeps it, and nothing older is owed: then the loss of the
//! SSD loses nothing that was flushed. They name write-back before the first FLUSH that promises no more than that.

use crate::block::{Block, Span};
use crate::config::{Allocation, Canary, Placement};
use crate::mode::Mode;
use crate::payload::Payload;
use crate::probe::{ModeView, Phase, WaitReason};
use crate::request::RequestError;
use crate::time::{Duration, Instant};

use super::{Engine, Stage};

/// How long a stop waits for what is on its way home. Everything is durable on the SSD all the same.
const STOP_PATIENCE: Duration = Duration::from_secs(20);

pub(super) struct Modes {
    wanted: Mode,
    /// Asked for while the engine recovers.
    asked: Option<Mode>,
    stage: Promise,
    /// Requests that wait until what was dirty at a mark is home.
    waiting: Vec<(usize, Mark)>,
    /// Blocks may have come home since those that wait for their own ones were last looked at.
    look: bool,
    /// Something that no FLUSH has covered cannot be read any more, or only from an SSD that has failed: the next FLUSH says so.
    lost: bool,
    /// Until when a stop waits.
    stop_until: Option<Instant>,
}

/// What a FLUSH waits for.
#[derive(Clone, Copy, Debug)]
enum Promise {
    Back,
    /// `low`: the fewest dirty slots since it began.
    Draining {
        low: u64,
    },
    /// `since`: when that began, until everything that was dirty then is home.
    Home {
        since: Option<Mark>,
    },
}

/// Everything dirty up to a moment: slots by the time, zeroed ranges by the group.
#[derive(Clone, Copy, Debug)]
struct Mark {
    at: Instant,
    group: u64,
}

impl Modes {
    pub fn new(wanted: Option<Mode>) -> Self {
        let wanted = wanted.unwrap_or_default();
        Modes { wanted, asked: None, stage: Promise::Back, waiting: Vec::new(), look: false, lost: false, stop_until: None }
    }
    /// A FLUSH waits for the origin.
    pub fn is_home(&self) -> bool {
        matches!(self.stage, Promise::Home { .. })
    }
    /// A FLUSH promises the SSD only, and no other promise is near.
    pub fn is_back(&self) -> bool {
        matches!(self.stage, Promise::Back)
    }
    /// Another promise is near: what is dirty becomes less.
    pub fn is_draining(&self) -> bool {
        matches!(self.stage, Promise::Draining { .. })
    }
    /// Somebody waits until everything is home that is dirty now.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty() || matches!(self.stage, Promise::Home { since: Some(_) })
    }
    pub fn stop_until(&self) -> Option<Instant> {
        self.stop_until
    }
}

impl<P: Payload> Engine<P> {
    /// What a FLUSH promises, and whether that is about to change.
    pub fn mode(&self) -> ModeView {
        let recorded = self.recorded_mode();
        let wanted = self.modes.wanted;
        let kept = matches!((self.modes.stage, wanted.is_home()), (Promise::Back, false) | (Promise::Home { since: None }, true));
        let has_exceptions = !self.lost.is_empty() || self.unreadable_blocks() > 0;
        ModeView { wanted, recorded, is_switching: !kept || recorded != wanted, has_exceptions }
    }

    // --- switching ---

    /// Service begins: `recorded` is what the superblocks say from now on.
    pub(super) fn begin_mode(&mut self, recorded: Mode) {
        let wanted = self.modes.asked.take().or(self.config.mode).unwrap_or(recorded);
        if recorded.is_home() {
            self.modes.stage = Promise::Home { since: None };
        }
        self.want_mode(wanted);
    }

    /// What the superblocks of a start say: write-back at once, if that is wanted; the other modes only when their promise is kept.
    pub(super) fn mode_after_recovery(&self, found: Mode) -> Mode {
        let is_write_back = self.config.mode == Some(Mode::WriteBack) || self.config.placement == Placement::Set;
        if is_write_back { Mode::WriteBack } else { found }
    }

    /// From now on, or as soon as the engine serves.
    #[cold]
    pub(super) fn ask_mode(&mut self, mode: Mode) {
        if self.stopping {
            // What is home by now has been marked so.
            return;
        }
        if self.phase == Phase::Recovering {
            self.modes.asked = Some(mode);
        } else {
            self.want_mode(mode);
        }
    }

    fn want_mode(&mut self, mode: Mode) {
        assert!(!mode.is_home() || self.config.placement == Placement::Log, "under set placement a FLUSH promises the SSD only");
        let took_writes = !self.writes_through();
        self.modes.wanted = mode;
        if took_writes && self.writes_through() {
            self.begin_limbo();
        }
        match (mode.is_home(), self.modes.stage) {
            (true, Promise::Back) => self.modes.stage = Promise::Draining { low: u64::MAX },
            (false, Promise::Draining { .. }) => self.modes.stage = Promise::Back,
            (true, Promise::Draining { .. } | Promise::Home { .. }) | (false, Promise::Back | Promise::Home { .. }) => {}
        }
    }

    /// The mode that the next checkpoint is to record, if that is another one than now.
    pub(super) fn mode_to_record(&self) -> Option<Mode> {
        let wanted = self.modes.wanted;
        let is_kept = !wanted.is_home() || matches!(self.modes.stage, Promise::Home { since: None });
        (is_kept && wanted != self.recorded_mode()).then_some(wanted)
    }

    /// Lets the mode take the next step that has become possible.
    pub(super) fn pump_mode(&mut self) -> bool {
        let dirty = self.sets.owed_slots();
        match self.modes.stage {
            Promise::Draining { low } => {
                self.modes.stage = Promise::Draining { low: low.min(dirty) };
                if !self.stopping && dirty <= self.home_blocks() && self.ranges.zeroed_blocks() <= self.home_blocks() {
                    self.modes.stage = Promise::Home { since: Some(self.mark()) };
                    return true;
                }
            }
            Promise::Home { since: Some(mark) } if self.is_home_since(mark) => {
                self.modes.stage = Promise::Home { since: None };
                return true;
            }
            Promise::Home { .. } if !self.modes.wanted.is_home() && self.is_mode_recorded(Mode::WriteBack) => {
                self.modes.stage = Promise::Back;
                for (number, _) in std::mem::take(&mut self.modes.waiting) {
                    self.settle(number);
                }
                return true;
            }
            Promise::Home { .. } | Promise::Back => {}
        }
        self.settle_home()
    }

    // --- what is kept of writes ---

    pub(super) fn allocation(&self) -> Allocation {
        if self.modes.wanted == Mode::ReadOnly { Allocation::ReadOnly } else { self.config.allocation }
    }

    /// May a write go past the log to the origin?
    pub(super) fn writes_through(&self) -> bool {
        self.allocation() != Allocation::ReadWrite || self.config.writes_through()
    }

    // --- promises ---

    fn mark(&self) -> Mark {
        Mark { at: self.now, group: self.journal.group() }
    }

    /// It promises the origin: a FLUSH waits until everything dirty now is home, a write with FUA until its own blocks are.
    pub(super) fn await_home(&mut self, number: usize) {
        if self.is_flush(number) && self.takes_loss() {
            return self.answer(number, Err(RequestError::Io));
        }
        if self.is_flush(number) {
            self.try_refused();
        } else {
            self.try_beside_refused(self.changed_blocks(number));
        }
        let mark = self.mark();
        let group = self.close_group();
        self.flushes.want(group);
        let active = self.requests.get_mut(number);
        active.stage = Stage::Promised;
        active.waits = WaitReason::Home;
        self.modes.waiting.push((number, mark));
        self.modes.look = true;
    }

    /// Blocks have come home, or what is newer than them.
    pub(super) fn came_home(&mut self) {
        self.modes.look = true;
    }

    /// Everything that was dirty at the mark is on the origin, and flushed there.
    fn is_home_since(&self, mark: Mark) -> bool {
        let is_sent = self.destage.is_idle() || (self.has_canary(Canary::HomeBeforeOriginFlush) && self.destage.is_flushing());
        let owed = self.sets.dirty_since().is_some_and(|since| since <= mark.at) || self.ranges.has_of_group_until(mark.group);
        is_sent && (!owed || self.has_canary(Canary::HomeBeforeOriginFlush) && self.destage.is_flushing())
    }

    /// Requests whose blocks are home go on: what went through is flushed as well, and the record of it durable.
    fn settle_home(&mut self) -> bool {
        if self.modes.waiting.is_empty() || !self.modes.is_home() {
            return false;
        }
        let looks = std::mem::take(&mut self.modes.look);
        let is_home = |&(number, mark): &(usize, Mark)| self.is_home_since(mark) || looks && !self.is_flush(number) && !self.owes(number);
        let (home, waiting): (Vec<_>, Vec<_>) = self.modes.waiting.iter().copied().partition(is_home);
        self.modes.waiting = waiting;
        for &(number, _) in &home {
            self.settle_pages(number);
        }
        !home.is_empty()
    }

    /// Is something of the blocks that this request changes not home yet? Whoever has overwritten them meanwhile is waited for as well.
    fn owes(&self, number: usize) -> bool {
        let is_owed = |(block, blocks)| self.has_dirty(block, blocks) || self.ranges.overlapping(block, blocks).next().is_some();
        self.changed_blocks(number).is_some_and(is_owed)
    }

    /// Requests that wait until something is home.
    pub(super) fn waiting_for_home(&self) -> impl Iterator<Item = usize> + '_ {
        self.modes.waiting.iter().map(|&(number, _)| number)
    }
    pub(super) fn forget_waiting_for_home(&mut self, number: usize) {
        self.modes.waiting.retain(|&(waiting, _)| waiting != number);
    }

    /// The origin does not take what it was sent, or what was to go there cannot be read: FLUSHes are told. (Others: `fail_home_of`.)
    pub(super) fn fail_home(&mut self) {
        self.fail_waiting(|engine, number| engine.is_flush(number));
        if self.stopping && self.modes.is_home() {
            self.modes.stop_until = Some(self.now);
        }
    }

    /// The same of these atoms: who waits for their blocks is told.
    pub(super) fn fail_home_of(&mut self, span: Span) {
        let is_own = |engine: &Self, (block, blocks)| engine.blocks_span(block, blocks).overlaps(span);
        self.fail_waiting(|engine, number| {
            !engine.is_flush(number) && engine.changed_blocks(number).is_some_and(|own| is_own(engine, own))
        });
    }

    /// The origin takes pages and does not flush them: a FLUSH is told, and who waits for what lies below one.
    pub(super) fn fail_home_below_pages(&mut self) {
        let is_below = |engine: &Self, (block, blocks)| engine.through.covers(block, blocks);
        self.fail_waiting(|engine, number| {
            engine.is_flush(number) || engine.changed_blocks(number).is_some_and(|own| is_below(engine, own))
        });
    }

    fn fail_waiting(&mut self, is_told: impl Fn(&Self, usize) -> bool) {
        let told: Vec<usize> = self.waiting_for_home().filter(|&number| is_told(self, number)).collect();
        for number in told {
            self.forget_waiting_for_home(number);
            self.answer(number, Err(RequestError::Io));
        }
    }

    /// A dirty slot of this block was given up. If no FLUSH waits for it, the next one fails.
    pub(super) fn home_lost(&mut self, block: Block) {
        self.modes.lost |= self.modes.is_home() && !self.modes.waiting.iter().any(|&(number, _)| self.is_flush(number));
        self.fail_home_of(self.blocks_span(block, 1));
        self.fail_home();
    }

    /// Is a FLUSH to say that something is lost? It is said once.
    pub(super) fn takes_loss(&mut self) -> bool {
        std::mem::take(&mut self.modes.lost)
    }

    /// Something that no FLUSH has covered is lost: those that wait to promise it fail, or else the next one.
    pub(super) fn tell_loss(&mut self, waiting: &mut Vec<usize>) {
        let mut flushes: Vec<usize> = waiting.extract_if(.., |&mut number| self.is_flush(number)).collect();
        let (told, others) = std::mem::take(&mut self.modes.waiting).into_iter().partition(|&(number, _)| self.is_flush(number));
        self.modes.waiting = others;
        flushes.extend(Vec::into_iter(told).map(|(number, _)| number));
        let settling: Vec<usize> = self.settling().filter(|&number| self.is_flush(number)).collect();
        settling.iter().for_each(|&number| self.forget_passing(number));
        flushes.extend(settling);
        self.modes.lost |= flushes.is_empty();
        for number in flushes {
            self.answer(number, Err(RequestError::Io));
        }
    }

    /// What was dirty before has moved to newer slots: who waits for it waits for those.
    pub(super) fn postpone_home(&mut self) {
        let mark = self.mark();
        self.modes.waiting.iter_mut().for_each(|(_, waits)| *waits = mark);
        if let Promise::Home { since: Some(since) } = &mut self.modes.stage {
            *since = mark;
        }
    }

    /// Somebody waits until what is dirty in these blocks is home, or what went there flushed: it must not move to the log before.
    pub(super) fn is_owed(&self, block: Block, blocks: u64) -> bool {
        if self.modes.is_draining() {
            // Or what is written again and again would never become clean.
            return self.destage.touches(self.blocks_span(block, blocks));
        }
        let waits = self.modes.is_waiting() || (self.modes.is_home() && self.through.is_settling());
        let is_zeroed = || self.ranges.overlapping(block, blocks).next().is_some();
        waits && (self.has_dirty(block, blocks) || is_zeroed() || self.through.covers(block, blocks))
    }

    // --- limits ---

    /// Slots that may be dirty while a FLUSH promises the origin: two batches, one on its way and one that gathers.
    fn home_blocks(&self) -> u64 {
        (2 * self.config.destage_atoms / self.block_atoms()).max(2)
    }

    /// So many more than the fewest may be dirty while it becomes less.
    fn drain_slack(&self) -> u64 {
        (self.home_blocks() / 4).max(1)
    }

    /// So many slots are clean: half of that nobody may use up again, or the fewest would stay as many as they are.
    pub(super) fn note_drained(&mut self, slots: u64) {
        if let Promise::Draining { low } = &mut self.modes.stage {
            *low = low.saturating_sub(slots / 2);
        }
    }

    /// More dirty slots than a FLUSH is to wait for, or than become fewer, would come of a write of so many blocks.
    pub(super) fn lacks_home(&self, data_blocks: u64) -> bool {
        let most = match self.modes.stage {
            Promise::Back => return false,
            Promise::Draining { low } => low.saturating_add(self.drain_slack()).max(self.home_blocks()),
            Promise::Home { .. } => self.home_blocks(),
        };
        // A large one goes when the others have made room: on the way there it is not to wait for the end.
        let data_blocks = if self.modes.is_draining() { data_blocks.min(self.drain_slack()) } else { data_blocks };
        // Before another mode counts, a FLUSH puts into the log what went past it.
        let pages = if self.modes.is_draining() { self.blocks_past_log() } else { 0 };
        if data_blocks == 0 || self.sets.owed_slots() + pages + data_blocks <= most {
            return false;
        }
        // What the origin does not take becomes fewer for nobody who waits.
        let refused = self.paused_blocks() + if pages > 0 { self.through.pages.refused().count() as u64 } else { 0 };
        let owed = (self.sets.owed_slots() + pages).saturating_sub(refused);
        owed > 0 && owed + data_blocks > most
    }

    /// Is something due at the origin because of the mode?
    pub(super) fn is_due_home(&self) -> bool {
        match self.modes.stage {
            Promise::Back => false,
            Promise::Draining { .. } => true,
            Promise::Home { .. } => {
                let much = self.sets.owed_slots() >= self.home_blocks() / 2;
                let old = self.home_deadline().is_some_and(|at| at <= self.now);
                self.modes.is_waiting() || much || old || self.stopping || self.first_waits_for(WaitReason::Home)
            }
        }
    }

    /// When the oldest dirty block goes home although no FLUSH asks for it.
    pub(super) fn home_deadline(&self) -> Option<Instant> {
        if !self.modes.is_home() {
            return None;
        }
        self.dirty_since().map(|since| since + self.config.flush_age)
    }

    // --- stopping ---

    /// A stop that promises the origin waits a while for what is on its way there.
    pub(super) fn is_home_for_stop(&mut self) -> bool {
        if !self.modes.is_home() || self.has_cache_failed() {
            return true;
        }
        self.modes.stop_until.get_or_insert(self.now + STOP_PATIENCE);
        if self.is_stop_impatient() {
            self.give_up_promises();
            return true;
        }
        self.owed_blocks() == 0 && self.destage.is_idle() && self.through.pages.is_empty()
    }

    /// What goes into the log now is not what those were promised who wait for the origin.
    pub(super) fn give_up_promises(&mut self) {
        let waiting: Vec<usize> = self.waiting_for_home().chain(self.settling()).collect();
        for number in waiting {
            self.forget_waiting_for_home(number);
            self.forget_passing(number);
            self.answer(number, Err(RequestError::Shutdown));
        }
    }

    /// A stop has waited long enough for what is on its way home.
    pub(super) fn is_stop_impatient(&self) -> bool {
        self.modes.stop_until.is_some_and(|until| self.now >= until)
    }

    /// A stop still sends dirty blocks home.
    pub(super) fn goes_home_at_stop(&self) -> bool {
        self.modes.is_home() && !self.is_stop_impatient()
    }
}

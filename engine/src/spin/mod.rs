//! Spin: the motor of the origin. What it does, when it is told to stand still, and when to turn again. Decides only: `path/spin` does it.
//!
//! ```text
//!   Unknown ──▶ it says what it does
//!
//!              ends                timeout, and nothing is owed           it says so
//!   Active ───────────▶ Idle ─────────────────────────────▶ Stopping ───────────────▶ Standby
//!      ▲    a demand     │ ▲                                                           │   │
//!      ├─────────────────┘ └──────────── somebody else has woken it ───────────────────┘   │ a demand
//!      └──────────────────────────────────── Waking ◀──────────────────────────────────────┘
//!                                 it does not: again after a pause; after three tries it is asked all the same
//!
//!   any ──▶ Active                no answer for long, and somebody needs it: it is asked all the same
//! ```
//! A *gap* is the time from the end of one demand to the beginning of the next: that is what a predictor learns from, whether the drive was
//! stopped in it or not. Destaging that is done only because the drive turns anyway is no demand.
//!
//! Others may use the drive as well. Where its uses are counted (`op::Said`), it is looked at a while after our own last one, and once more
//! before it is stopped: what was counted between these was somebody else's, and the gap begins anew. Where they are not, or it was somebody's
//! first use for long, a drive that stands still is soon found turning, and the rest is as long as it was last seen to be: one that did not
//! pay makes the guard wait, and a drive that others keep awake is left alone.
//!
//! What a start costs follows from the drive's figures; how long it takes is learnt ([`spin_ups`]), and takes the place of what was configured.
//!
//! What limits the predictor: the loss guard ([`guard`]), the budget of starts ([`budget`]); in quiet hours ([`quiet`]) it is not asked. The
//! budget not only forbids: the fewer starts of the hour are left, the more a rest has to save. So when a stop is to be is planned at the
//! beginning of a gap, and again whenever a start is older than an hour.

pub mod budget;
pub mod drive;
pub mod guard;
pub mod predictor;
pub mod quiet;
pub mod spin_ups;

use std::collections::VecDeque;

use crate::block::Span;
use crate::op::{DeviceError, Power, Said, Spin};
use crate::time::{Duration, Instant};

use budget::Budget;
pub use drive::{Drive, Microjoules};
use guard::Guard;
use predictor::{Predictor, Price, Terms};
use quiet::OfDay;
pub use quiet::Quiet;
pub use spin_ups::Learnt;
use spin_ups::SpinUps;

/// How often a drive that does not wake is told to, before operations are handed to it all the same.
const WAKE_TRIES: u32 = 3;
/// Pauses between them, the first and the longest.
const WAKE_PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// A word that has no answer after so long is waited for no more: operations are handed to the drive, and whoever asked hears what it makes of them.
/// Longer than a host takes to give up a word and to reset the drive.
const SILENCE: Duration = Duration::from_secs(180);
/// A drive that did not stop, did not wake, or did not answer, is left alone for so long.
const REST: Duration = Duration::from_secs(3_600);
/// How often the state of a drive is looked at that nobody uses: it may have been woken, or have stopped by itself.
const LOOK: Duration = Duration::from_secs(60);
/// One that was stopped is looked at after so long, and again whenever it has stood still for twice as long, until that is [`LOOK`].
const LOOK_FIRST: Duration = Duration::from_secs(5);
/// We have not used the drive for so long: what is counted from now on is others'.
const SETTLED: Duration = Duration::from_secs(5);
/// What was said so lately is true.
const FRESH: Duration = Duration::from_secs(1);
/// In quiet hours the drive is stopped after so long.
const QUIET: Duration = Duration::from_secs(10);
/// Starts that are remembered, for reports.
const REMEMBERED: usize = 16;

/// What the owner wants.
#[derive(Clone, Debug)]
pub struct Config {
    pub predictor: predictor::Kind,
    /// As its owner or its data sheet says, or what such drives mostly are. Its spin-up is believed until enough of them have been measured.
    pub drive: Drive,
    /// What it is worth not to wait for the drive, in milliwatts of the wait. Default: what it draws idling, so that energy counts for each
    /// request and not for each second.
    pub wait_mw: u64,
    /// Does a spin-up that did not pay make the next rest come later? Default true.
    pub guard: bool,
    /// Starts in any hour, at most. Default 12.
    pub per_hour: u32,
    /// Starts that the drive has had before. Its maker's figure less these is what is left.
    pub cycles_before: u32,
    /// Where the drive turns, everything goes home that was dirty when it was woken, before it is stopped again. Default true.
    pub sweep: bool,
    /// Age above which a dirty block wakes the drive. Default 24 h.
    pub max_dirty_age: Duration,
    pub quiet: Quiet,
}

impl Config {
    pub fn new(drive: Drive) -> Self {
        Config {
            predictor: predictor::Kind::History,
            drive,
            wait_mw: drive.idle_mw,
            guard: true,
            per_hour: 12,
            cycles_before: 0,
            sweep: true,
            max_dirty_age: Duration::from_secs(24 * 3_600),
            quiet: Quiet::default(),
        }
    }

    pub fn price(&self) -> Price {
        self.price_of(self.drive)
    }

    /// The same with other figures of the drive.
    fn price_of(&self, drive: Drive) -> Price {
        Price { drive, wait_mw: self.wait_mw }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Service has begun, and it was not heard of yet: it is asked before anything is handed to it. (One that stands still would start, and nobody
    /// would count that.)
    Unknown,
    /// A demand is being served.
    Active,
    /// It turns, and nobody has asked for it since.
    Idle {
        since: Instant,
    },
    /// It was told to stop.
    Stopping {
        since: Instant,
    },
    Standby {
        since: Instant,
    },
    /// It was told to wake; or will be again, at `again`.
    Waking {
        since: Instant,
        tries: u32,
        again: Option<Instant>,
    },
}

/// Why a drive was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// A client reads what only the origin has.
    Read,
    /// A client's write goes past the log, or a FLUSH that needs the origin.
    Write,
    /// The log has no room any more, or soon.
    Room,
    /// Something has been dirty for too long.
    Age,
    /// Somebody asked for a drain, for another mode, or takes the cache away.
    Command,
    /// Not we.
    Stranger,
}

impl Cause {
    pub const ALL: [Cause; 6] = [Cause::Read, Cause::Write, Cause::Room, Cause::Age, Cause::Command, Cause::Stranger];

    /// For people and programs outside.
    pub const fn name(self) -> &'static str {
        match self {
            Cause::Read => "read",
            Cause::Write => "write",
            Cause::Room => "room",
            Cause::Age => "age",
            Cause::Command => "command",
            Cause::Stranger => "stranger",
        }
    }
}

/// A start of the drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    pub at: Instant,
    pub cause: Cause,
    /// Of a client's request: where.
    pub span: Option<Span>,
    /// How long it had stood still.
    pub standby: Duration,
    /// From the command to the answer; none while it wakes.
    pub took: Option<Duration>,
    /// What that rest has saved.
    pub saved: Microjoules,
}

/// Counts since the engine started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub stops: u64,
    /// By cause, in the order of [`Cause::ALL`].
    pub starts: [u64; Cause::ALL.len()],
    /// Rests that did not pay.
    pub losses: u64,
    /// Times that the drive did not stop when told to; did not wake when told to; had stopped although nobody had told it.
    pub stop_failures: u64,
    pub wake_failures: u64,
    pub own_stops: u64,
    /// Rests that came later or not at all because of the budget.
    pub over_budget: u64,
    /// And because others were seen to use the drive.
    pub others: u64,
    /// All rests that have ended.
    pub slept: Duration,
    pub saved: Microjoules,
}

impl Counters {
    pub fn all_starts(&self) -> u64 {
        self.starts.iter().sum()
    }
}

/// What the owner sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub state: State,
    pub counters: Counters,
    /// The rest under way included.
    pub slept: Duration,
    pub saved: Microjoules,
    /// The last starts, the newest last.
    pub starts: Vec<Start>,
    /// All starts of the drive's life, as far as is known; and what its maker promises.
    pub cycles: u64,
    pub rated_cycles: u32,
    pub next_stop: Option<Instant>,
    /// How much sooner that would be if starts were not counted.
    pub later_for_budget: Duration,
    /// Starts in the hour up to now, and what it may have.
    pub hour: (usize, u32),
    /// What is reckoned with.
    pub drive: Drive,
    /// Where its spin-up is from, if it was not configured.
    pub learnt: Option<Learnt>,
}

/// Nobody asks for the drive.
#[derive(Clone, Copy, Debug)]
struct Gap {
    since: Instant,
    /// When the drive would be stopped if starts were not counted. None: not in this gap.
    free: Option<Instant>,
    /// When it is to be stopped.
    stop: Option<Instant>,
    /// The hour's starts when that was planned.
    used: usize,
    /// The stop comes later than it might, and was counted so.
    is_late: bool,
}

pub struct Motor {
    config: Config,
    /// Its figures, with the spin-up as it is known now.
    drive: Drive,
    spin_ups: SpinUps,
    state: State,
    predictor: Box<dyn Predictor>,
    guard: Guard,
    budget: Budget,
    /// It stood still when it was first heard of: for how long, nobody knows, nor whether that paid.
    was_found_still: bool,
    /// Demands that are being served.
    demands: u32,
    /// The gap that is open.
    gap: Option<Gap>,
    /// Somebody wants the drive that does not turn; a client's request is known by where.
    wanted: Option<(Cause, Option<Span>)>,
    /// What was dirty then has to be home before the drive is stopped.
    sweep_until: Instant,
    /// A command is on its way.
    ordered: Option<Spin>,
    /// Since when, or since when there was one.
    ordered_at: Instant,
    /// It is waited for no more.
    is_silent: bool,
    /// When the drive is to be looked at. At first at once: nobody knows what it does.
    look_at: Instant,
    /// Its uses are counted.
    counts: bool,
    /// What has been counted since then was none of ours.
    watched: Option<Instant>,
    /// When it was last seen standing still.
    seen_still: Instant,
    /// Since when it turns, if it does.
    turning_since: Instant,
    /// Not to be stopped before.
    rest_until: Instant,
    /// The idle time before the last stop.
    timeout: Duration,
    counters: Counters,
    starts: VecDeque<Start>,
}

impl Motor {
    /// A drive that turns, as far as anybody knows.
    pub fn new(config: Config, now: Instant) -> Self {
        let predictor = config.predictor.build(config.price());
        Motor::with_predictor(config, predictor, now)
    }

    /// The same with a predictor from elsewhere.
    pub fn with_predictor(config: Config, predictor: Box<dyn Predictor>, now: Instant) -> Self {
        let left = u64::from(config.drive.rated_cycles.saturating_sub(config.cycles_before));
        let mut motor = Motor {
            drive: config.drive,
            spin_ups: SpinUps::default(),
            state: State::Idle { since: now },
            predictor,
            guard: Guard::default(),
            budget: Budget::new(config.per_hour, left),
            was_found_still: false,
            demands: 0,
            gap: None,
            wanted: None,
            sweep_until: now,
            ordered: None,
            ordered_at: now,
            is_silent: false,
            look_at: now,
            counts: false,
            watched: None,
            seen_still: now,
            turning_since: now,
            rest_until: Instant::ZERO,
            timeout: Duration::ZERO,
            counters: Counters::default(),
            starts: VecDeque::new(),
            config,
        };
        motor.open_gap(now);
        motor
    }

    /// A drive that nobody has heard of yet.
    pub fn unknown(self) -> Self {
        Motor { state: State::Unknown, ..self }
    }

    /// Service begins with something dirty: that goes home before the drive is stopped.
    pub fn begin(&mut self, now: Instant) {
        self.sweep_until = now;
    }

    /// It is that time of the day.
    pub fn tell_time_of_day(&mut self, now: Instant, of_day: OfDay) {
        self.config.quiet.tell(now, of_day);
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What it costs, as far as is known now.
    pub fn drive(&self) -> &Drive {
        &self.drive
    }

    pub fn state(&self) -> State {
        self.state
    }

    /// Operations may be handed to the drive: it turns, and is not busy with a word of ours.
    pub fn takes(&self) -> bool {
        !self.is_down() && (self.ordered.is_none() || self.is_silent)
    }

    /// It stands still, and nobody has asked for it.
    pub fn is_asleep(&self) -> bool {
        matches!(self.state, State::Standby { .. } | State::Stopping { .. }) && self.wanted.is_none()
    }

    /// It stands still, or is not ready yet, as far as anybody knows.
    pub fn is_down(&self) -> bool {
        !matches!(self.state, State::Active | State::Idle { .. })
    }

    /// Quiet hours: what can wait does.
    pub fn is_quiet(&self, now: Instant) -> bool {
        self.config.quiet.is_now(now)
    }

    /// While the drive turns: what became dirty until then is to go home before it is stopped.
    pub fn sweep_until(&self) -> Option<Instant> {
        (!self.is_down() && self.config.sweep).then_some(self.sweep_until)
    }

    /// Since when the drive turns; where it does not, since when it did.
    pub fn turning_since(&self) -> Instant {
        self.turning_since
    }

    /// Nobody has asked for the drive since.
    pub fn idle_since(&self) -> Option<Instant> {
        self.gap.map(|gap| gap.since)
    }

    /// For so long.
    pub fn idle_for(&self, now: Instant) -> Duration {
        self.idle_since().map_or(Duration::ZERO, |since| now.since(since))
    }

    /// It is to turn, although nobody hands it anything yet.
    pub fn want(&mut self, now: Instant, cause: Cause) {
        if self.is_down() && self.wanted.is_none() {
            self.close_gap(now);
            self.wanted = Some((cause, None));
        }
    }

    // --- what is asked of it ---

    /// Somebody asks for the drive, and will have [`Motor::served`] said. `span`: of a client's request.
    pub fn demand(&mut self, now: Instant, cause: Cause, span: Option<Span>) {
        self.demands += 1;
        self.close_gap(now);
        if self.is_down() {
            self.wanted.get_or_insert((cause, span));
        } else {
            self.state = State::Active;
        }
    }

    /// A demand has ended.
    pub fn served(&mut self, now: Instant) {
        self.demands = self.demands.checked_sub(1).expect("a demand ends once");
        if self.demands == 0 {
            self.open_gap(now);
            if self.state == State::Active {
                self.state = State::Idle { since: now };
            }
        }
    }

    /// An operation of ours has ended there, a demand or not: not all that is counted is others'.
    pub fn used(&mut self, now: Instant) {
        self.watched = None;
        if self.counts {
            self.look_at = now + SETTLED;
        }
    }

    fn close_gap(&mut self, now: Instant) {
        let Some(Gap { since, .. }) = self.gap.take() else { return };
        let gap = now.since(since);
        self.predictor.learn(gap);
        if !self.is_down() && self.config.guard {
            self.guard.stayed(&self.drive, gap);
        }
    }

    fn open_gap(&mut self, now: Instant) {
        let floor = self.guard.floor();
        let free = self.predictor.timeout(now).map(|timeout| now + timeout.max(floor));
        self.gap = Some(Gap { since: now, free, stop: self.plan(now, now, free), used: self.budget.used(now), is_late: false });
    }

    /// When the drive is to be stopped in the gap that began at `since`, starts counted.
    fn plan(&mut self, now: Instant, since: Instant, free: Option<Instant>) -> Option<Instant> {
        let from = self.budget.next(now)?;
        let rest = self.budget.ration(from, self.drive.break_even());
        if from <= since && rest == Duration::ZERO {
            return free;
        }
        let (start, every) = (self.config.price_of(self.drive).saving(rest), self.budget.pace(from));
        let terms = Terms { not_before: from.since(since), start, every };
        let floor = self.guard.floor();
        self.predictor.timeout_under(since, &terms).map(|timeout| since + timeout.max(floor))
    }

    /// A start that is older than an hour may be used again: a stop is cheaper than it was when this gap was planned.
    fn plan_again(&mut self, now: Instant) {
        let used = self.budget.used(now);
        if let Some(gap) = self.gap.filter(|gap| gap.used != used) {
            let stop = self.plan(now, gap.since, gap.free);
            self.gap = Some(Gap { stop, used, ..gap });
        }
    }

    /// When the drive is to be stopped, if nothing happens before; and when it would be if starts were not counted. None: not in this gap.
    fn stop_at(&self, now: Instant) -> (Option<Instant>, Option<Instant>) {
        let (State::Idle { .. }, Some(gap)) = (self.state, self.gap) else { return (None, None) };
        let (stop, free) = match self.is_quiet(now) {
            true => (self.budget.next(now).map(|from| from.max(gap.since + QUIET)), Some(gap.since + QUIET)),
            false => (gap.stop, gap.free),
        };
        (stop.map(|stop| stop.max(self.rest_until)), free.map(|free| free.max(self.rest_until)))
    }

    // --- what is to be done ---

    /// The next command for the drive, if it is time for one. `is_settled`: nothing is under way there, and nothing of ours must be before
    /// it stops.
    pub fn decide(&mut self, now: Instant, is_settled: bool) -> Option<Spin> {
        if self.ordered.is_some() {
            return None;
        }
        let order = match self.state {
            State::Unknown => Some(Spin::Look),
            State::Active => None,
            State::Idle { .. } => self.decide_idle(now, is_settled),
            State::Stopping { .. } => None,
            State::Standby { since } => match self.wanted {
                Some((cause, span)) => {
                    self.start(now, cause, span, now.since(since));
                    self.state = State::Waking { since: now, tries: 1, again: None };
                    Some(Spin::Wake)
                }
                None if self.look_at <= now => Some(Spin::Look),
                None => None,
            },
            State::Waking { since, tries, again } => again.filter(|&again| again <= now).map(|_| {
                self.state = State::Waking { since, tries: tries + 1, again: None };
                Spin::Wake
            }),
        };
        (self.ordered, self.ordered_at) = (order, now);
        order
    }

    /// Where somebody needs a drive that answers nothing, its answer is waited for no more: true, once. It may still come.
    pub fn tire(&mut self, now: Instant) -> bool {
        let is_awaited = self.ordered.is_some() && !self.is_silent && (self.wanted.is_some() || !self.is_down());
        if !is_awaited || now.since(self.ordered_at) < SILENCE {
            return false;
        }
        match (self.state, self.wanted) {
            (State::Standby { since }, Some((cause, span))) => self.start(now, cause, span, now.since(since)),
            (State::Stopping { .. }, _) => self.counters.stop_failures += 1,
            (State::Waking { .. }, _) => self.counters.wake_failures += 1,
            (State::Unknown | State::Active | State::Idle { .. } | State::Standby { .. }, _) => {}
        }
        self.is_silent = true;
        self.rest_until = now + REST;
        self.turns(now);
        true
    }

    fn decide_idle(&mut self, now: Instant, is_settled: bool) -> Option<Spin> {
        self.plan_again(now);
        let (stop, free) = self.stop_at(now);
        let is_due = |at: Option<Instant>| is_settled && at.is_some_and(|at| at <= now);
        if is_due(stop) && self.budget.may_stop(now) {
            if self.watched.is_some_and(|since| now.since(since) >= FRESH) {
                return Some(Spin::Look);
            }
            self.timeout = self.idle_for(now);
            self.counters.stops += 1;
            self.state = State::Stopping { since: now };
            return Some(Spin::Stop);
        }
        if let Some(gap) = self.gap.as_mut().filter(|gap| is_due(free) && !gap.is_late) {
            gap.is_late = true;
            self.counters.over_budget += 1;
        }
        (is_settled && self.look_at <= now).then_some(Spin::Look)
    }

    /// When [`Motor::decide`] is to be asked although nothing happens.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        if self.ordered.is_some() {
            return (!self.is_silent).then(|| self.ordered_at + SILENCE);
        }
        let look = self.look_at;
        match self.state {
            State::Unknown => Some(now),
            State::Active | State::Stopping { .. } => None,
            State::Idle { .. } => {
                let (stop, free) = self.stop_at(now);
                let stop = stop.and_then(|at| self.budget.next(at.max(now)));
                // That it is late is noted then.
                let late = free.filter(|&free| free > now);
                let (quiet, cheaper) = (self.config.quiet.next(now), self.budget.next_return(now));
                [Some(look), stop, late, quiet, cheaper].into_iter().flatten().min()
            }
            State::Standby { .. } => Some(look),
            State::Waking { again, .. } => again,
        }
    }

    /// The drive has answered a command.
    pub fn answered(&mut self, now: Instant, result: Result<Said, DeviceError>) {
        let order = self.ordered.take().expect("a command was on its way");
        self.is_silent = false;
        self.look_at = now + LOOK;
        let used = result.ok().and_then(|said| said.used);
        let is_used_by_others = used == Some(true) && self.watched.is_some();
        (self.counts, self.watched) = (used.is_some(), used.map(|_| now));
        match (order, self.state, result.map(|said| said.power)) {
            (Spin::Stop, State::Stopping { since }, Ok(Power::Standby)) => self.stands_still(now, since),
            (Spin::Stop, State::Stopping { .. }, Ok(Power::Turning) | Err(_)) => {
                self.counters.stop_failures += 1;
                self.rest_until = now + REST;
                self.turns(now);
            }
            (Spin::Wake, State::Waking { since, tries, .. }, Ok(Power::Turning)) => {
                let took = now.since(since);
                if let Some(start) = self.starts.back_mut() {
                    start.took = Some(took);
                }
                // With a second try the time is that of the failure.
                if tries == 1 {
                    self.learn_spin_up(took);
                }
                self.turns(now);
            }
            (Spin::Wake, State::Waking { since, tries, .. }, Ok(Power::Standby) | Err(_)) => {
                self.counters.wake_failures += 1;
                if tries < WAKE_TRIES {
                    let pause = Duration((WAKE_PAUSE.0.0 << (tries - 1)).min(WAKE_PAUSE.1.0));
                    self.state = State::Waking { since, tries, again: Some(now + pause) };
                } else {
                    // Whatever it does with them: whoever asked hears it.
                    self.rest_until = now + REST;
                    self.turns(now);
                }
            }
            (Spin::Look, State::Unknown, Ok(Power::Standby)) => {
                self.was_found_still = true;
                self.stands_still(now, now);
            }
            (Spin::Look, State::Unknown, Ok(Power::Turning) | Err(_)) => self.turns(now),
            (Spin::Look, State::Standby { since }, Ok(Power::Turning)) => {
                self.start(now, Cause::Stranger, None, self.seen_still.since(since));
                self.turns(now);
            }
            (Spin::Look, State::Standby { since }, Ok(Power::Standby)) => self.stands_still(now, since),
            // One that has not done as it was told says what it likes: it is asked all the same.
            (Spin::Look, State::Idle { .. }, Ok(Power::Standby)) if now < self.rest_until => {}
            (Spin::Look, State::Idle { .. }, Ok(Power::Standby)) => {
                self.counters.own_stops += 1;
                self.timeout = self.idle_for(now);
                self.stands_still(now, now);
            }
            (Spin::Look, State::Idle { .. }, Ok(Power::Turning)) if is_used_by_others => {
                // When that was is not known: it is no gap to learn from.
                self.counters.others += 1;
                self.state = State::Idle { since: now };
                self.open_gap(now);
            }
            // It is as it was thought to be, or has been asked for meanwhile.
            (Spin::Look, ..) => {}
            // It came back meanwhile, and turns.
            (Spin::Stop | Spin::Wake, ..) => {}
        }
    }

    /// The drive has come to speed in that time. What a start costs follows from it.
    fn learn_spin_up(&mut self, took: Duration) {
        self.spin_ups.add(took);
        if let Some(Learnt { spin_up, .. }) = self.spin_ups.learnt().filter(|learnt| learnt.spin_up != self.drive.spin_up) {
            self.drive.spin_up = spin_up;
            self.predictor.reprice(self.config.price_of(self.drive));
        }
    }

    /// It has stood still from `since` until now, and others may wake it.
    fn stands_still(&mut self, now: Instant, since: Instant) {
        self.state = State::Standby { since };
        self.seen_still = now;
        self.look_at = now + now.since(since).clamp(LOOK_FIRST, LOOK);
    }

    /// Another incarnation of the drive is there: it turns, as far as anybody knows.
    pub fn came_back(&mut self, now: Instant) {
        if self.is_down() && self.state != State::Unknown {
            self.turns(now);
        }
        self.look_at = now;
    }

    fn turns(&mut self, now: Instant) {
        self.wanted = None;
        self.turning_since = now;
        self.state = if self.demands > 0 { State::Active } else { State::Idle { since: now } };
        if self.demands == 0 {
            // What it did meanwhile was no gap of ours.
            self.open_gap(now);
        }
    }

    /// A rest of that length is over.
    fn start(&mut self, now: Instant, cause: Cause, span: Option<Span>, standby: Duration) {
        // Of a rest that had begun before it was heard of, only the time that was seen counts.
        let was_found = std::mem::take(&mut self.was_found_still);
        let saved = if was_found { 0 } else { self.drive.saved(standby) };
        self.budget.note_start(now);
        self.counters.starts[cause as usize] += 1;
        self.counters.losses += u64::from(saved < 0);
        self.counters.slept = Duration(self.counters.slept.0 + standby.0);
        self.counters.saved += saved;
        self.sweep_until = now;
        if self.config.guard && !was_found {
            self.guard.rested(&self.drive, self.timeout, standby);
        }
        if self.starts.len() == REMEMBERED {
            self.starts.pop_front();
        }
        self.starts.push_back(Start { at: now, cause, span, standby, took: None, saved });
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The last start, if there was one.
    pub fn last_start(&self) -> Option<&Start> {
        self.starts.back()
    }

    pub fn report(&self, now: Instant) -> Report {
        let resting = match self.state {
            State::Standby { since } | State::Stopping { since } => now.since(since),
            State::Unknown | State::Active | State::Idle { .. } | State::Waking { .. } => Duration::ZERO,
        };
        let resting_saved = if resting > Duration::ZERO && !self.was_found_still { self.drive.saved(resting) } else { 0 };
        let (stop, free) = self.stop_at(now);
        Report {
            state: self.state,
            slept: Duration(self.counters.slept.0 + resting.0),
            saved: self.counters.saved + resting_saved,
            counters: self.counters.clone(),
            starts: self.starts.iter().copied().collect(),
            cycles: u64::from(self.config.cycles_before) + self.counters.all_starts(),
            rated_cycles: self.config.drive.rated_cycles,
            next_stop: stop.filter(|&at| at > now),
            later_for_budget: stop.zip(free).map_or(Duration::ZERO, |(stop, free)| stop.since(free)),
            hour: (self.budget.used(now), self.config.per_hour),
            drive: self.drive,
            learnt: self.spin_ups.learnt(),
        }
    }
}

#[cfg(test)]
mod tests;

//! The gate: when dirty blocks go home. It decides when, knows how long that takes (`pace`) and how long it may keep clients
//! from the origin (`courtesy`); `cache` answers which; `path/destage` does it.
//!
//! ```text
//!            free < floor, oldest set dirty            no request for `wait`
//!   Normal ───────────────────────────────▶ Wait ───────────────────────────▶ Destage(Idle)
//!      ▲                                      ▲      a request arrives             │
//!      │                                      └────────────────────────────────────┤
//!      └─────────────────────────────── free ≥ floor ◀──────────────────────────────┘
//!   any state ──▶ Destage(Drain | Mode | NoFreeSet | HighMark | Age) until its reason is gone: these do not wait for idleness
//!   any state ──▶ Destage(Sweep) while the disk turns and nobody asks for it: what was dirty when it was woken
//! ```
//! A disk that stands still is woken by the reasons that cannot wait, never by idleness; by the high mark so early that it turns when the mark
//! is reached, by age only after a much longer one. What the origin refuses does not hold it open for others (`path/destage/refused`).
//!
//! Source: paper 000, figure 7 (normal, wait, writeback); the reasons besides idleness are ours, because its method starves
//! if a small request comes every second. Its two own gates are kept for its experiments: *new*, the machine above and nothing else, and
//! *old*, which destages the oldest set as soon as free sets are short. Both let whole sets leave, the least recently used ones first.

pub mod courtesy;
pub mod pace;

use crate::config::GateKind;
use crate::probe::{DestageReason, GateState};
use crate::time::{Duration, Instant};

/// What the gate looks at.
#[derive(Clone, Copy, Debug)]
pub struct View {
    pub now: Instant,
    pub last_request: Instant,
    pub free: u32,
    pub dirty_sets: u32,
    /// Something is dirty: a slot or a zeroed range.
    pub dirty: bool,
    /// The least recently used set has dirty slots; asked where fewer sets are free than the floor.
    pub oldest_set_dirty: bool,
    /// When the oldest dirty block became dirty.
    pub dirty_since: Option<Instant>,
    /// A request waits for a free set.
    pub starved: bool,
    pub drain: bool,
    /// A FLUSH promises the origin, and something is due there.
    pub home: bool,
    /// A sequential write is on its way to the origin past the log: what frees space by destaging would slow it down as much.
    pub passing: bool,
    /// The disk stands still.
    pub asleep: Option<Asleep>,
    /// It turns, and nobody asks for it: what became dirty until then goes home.
    pub sweep: Option<Instant>,
}

/// What holds while the disk stands still.
#[derive(Clone, Copy, Debug)]
pub struct Asleep {
    /// Age above which a dirty block wakes it.
    pub max_age: Duration,
    /// Sets that may become dirty until it is awake.
    pub lead: u32,
}

/// The thresholds, see [`crate::Config`].
#[derive(Clone, Copy, Debug)]
pub struct Gate {
    pub kind: GateKind,
    pub floor: u32,
    pub reserve: u32,
    pub high: u32,
    pub wait: Duration,
    pub max_age: Duration,
    state: GateState,
    /// When destaging for age last began: everything that was dirty at this moment goes home.
    sweep_since: Instant,
    /// When there was last nothing to bring home but what the origin does not take, or the SSD does not give.
    left_at: Instant,
}

impl Gate {
    pub fn new(kind: GateKind, floor: u32, reserve: u32, high: u32, wait: Duration, max_age: Duration) -> Self {
        Gate { kind, floor, reserve, high, wait, max_age, state: GateState::Normal, sweep_since: Instant::ZERO, left_at: Instant::ZERO }
    }
    /// How many whole sets leave at once, where the paper's gates decide. Otherwise a sweep over the volume takes what is dirty.
    pub fn sets_at_once(&self) -> Option<u32> {
        match (self.kind, self.state) {
            (GateKind::New, GateState::Destage(DestageReason::Idle)) => Some(4),
            (GateKind::Old, GateState::Destage(DestageReason::BelowFloor)) => Some(1),
            _ => None,
        }
    }
    pub fn state(&self) -> GateState {
        self.state
    }

    /// How much what goes home now presses, of 1. Above the high mark it is how far `dirty_sets` has come on the way to where writers wait for
    /// room, of `sets`. The paper's gates know no clients.
    pub fn urgency(&self, dirty_sets: u32, sets: u32) -> f64 {
        match self.state {
            _ if self.kind != GateKind::Ours => 1.0,
            GateState::Destage(DestageReason::HighMark) => {
                let way = sets.saturating_sub(self.reserve + self.high).max(1);
                f64::from(dirty_sets.saturating_sub(self.high)) / f64::from(way)
            }
            GateState::Destage(DestageReason::Idle | DestageReason::Age | DestageReason::Sweep) => 0.0,
            GateState::Destage(_) | GateState::Normal | GateState::Wait => 1.0,
        }
        .min(1.0)
    }

    /// The state from now on. Destaging may run while it is `Destage`.
    #[inline]
    pub fn decide(&mut self, view: View) -> GateState {
        self.state = self.next(view);
        self.state
    }

    #[inline]
    fn next(&mut self, view: View) -> GateState {
        use DestageReason::{Age, Drain, HighMark, Mode, NoFreeSet, Sweep};
        if !view.dirty {
            return GateState::Normal;
        }
        if view.drain {
            return GateState::Destage(Drain);
        }
        if view.home {
            return GateState::Destage(Mode);
        }
        if view.starved {
            return GateState::Destage(NoFreeSet);
        }
        match self.kind {
            GateKind::Ours => {}
            GateKind::New => return self.deferred(view),
            GateKind::Old if view.free < self.floor && view.oldest_set_dirty => return GateState::Destage(DestageReason::BelowFloor),
            GateKind::Old => return GateState::Normal,
        }
        if view.free <= self.reserve && !view.passing {
            return GateState::Destage(NoFreeSet);
        }
        // Down to nine tenths of the mark, so that it does not flutter.
        let low = if self.state == GateState::Destage(HighMark) { self.high - self.high / 10 } else { self.high };
        let lead = view.asleep.map_or(0, |asleep| asleep.lead);
        if view.dirty_sets.saturating_add(lead) > low && !view.passing {
            return GateState::Destage(HighMark);
        }
        let is_sweeping = view.asleep.is_none() && self.state == GateState::Destage(Age);
        if is_sweeping && view.dirty_since.is_some_and(|since| since <= self.sweep_since) {
            return self.state;
        }
        if view.dirty_since.is_some_and(|since| view.now >= self.old_at(since, view.asleep)) {
            self.sweep_since = view.now;
            return GateState::Destage(Age);
        }
        if view.sweep.is_some_and(|until| view.dirty_since.is_some_and(|since| since <= until)) {
            return GateState::Destage(Sweep);
        }
        if view.asleep.is_some() { GateState::Normal } else { self.deferred(view) }
    }

    /// When what is dirty since then is old. What could not be brought home, when nothing else was left, wakes a disk that stands still as late
    /// again as if it had become dirty then.
    fn old_at(&self, since: Instant, asleep: Option<Asleep>) -> Instant {
        asleep.map_or(since + self.max_age, |asleep| since.max(self.left_at) + asleep.max_age)
    }

    /// While it is open for what is old, or what was dirty when the disk was woken: until when that became dirty.
    pub fn takes_until(&self, sweep: Option<Instant>) -> Option<Instant> {
        match self.state {
            GateState::Destage(DestageReason::Age) => Some(self.sweep_since),
            GateState::Destage(DestageReason::Sweep) => sweep,
            GateState::Destage(_) | GateState::Normal | GateState::Wait => None,
        }
    }

    /// Nothing is left to bring home now but what the origin does not take, or the SSD does not give.
    pub fn left_behind(&mut self, now: Instant) {
        self.left_at = now;
    }

    /// The paper's machine: below the floor, when the volume is idle.
    #[inline]
    fn deferred(&self, view: View) -> GateState {
        if view.free >= self.floor {
            return GateState::Normal;
        }
        match self.state {
            GateState::Normal if !view.oldest_set_dirty => GateState::Normal,
            _ if view.now.since(view.last_request) >= self.wait => GateState::Destage(DestageReason::Idle),
            _ => GateState::Wait,
        }
    }

    /// When the decision may change although nothing happens.
    pub fn deadline(&self, last_request: Instant, dirty_since: Option<Instant>, asleep: Option<Asleep>) -> Option<Instant> {
        let age = dirty_since.map(|since| self.old_at(since, asleep)).filter(|_| self.kind == GateKind::Ours);
        let idle = last_request + self.wait;
        match self.state {
            GateState::Wait => Some(age.map_or(idle, |age| age.min(idle))),
            GateState::Normal => age,
            GateState::Destage(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view() -> View {
        View {
            now: Instant(10_000_000_000),
            last_request: Instant(10_000_000_000),
            free: 50,
            dirty_sets: 10,
            dirty: true,
            oldest_set_dirty: true,
            dirty_since: Some(Instant(9_000_000_000)),
            starved: false,
            drain: false,
            home: false,
            passing: false,
            asleep: None,
            sweep: None,
        }
    }
    fn gate() -> Gate {
        of_kind(GateKind::Ours)
    }
    fn of_kind(kind: GateKind) -> Gate {
        Gate::new(kind, 20, 4, 70, Duration::from_secs(2), Duration::from_secs(600))
    }

    #[test]
    fn enough_free_sets_is_normal() {
        assert_eq!(gate().decide(view()), GateState::Normal);
    }

    #[test]
    fn below_the_floor_it_waits_for_idleness_and_a_request_stops_it() {
        let mut gate = gate();
        let short = View { free: 10, ..view() };
        assert_eq!(gate.decide(short), GateState::Wait);
        assert_eq!(gate.deadline(short.last_request, short.dirty_since, None), Some(Instant(12_000_000_000)));
        let idle = View { now: Instant(12_000_000_000), ..short };
        assert_eq!(gate.decide(idle), GateState::Destage(DestageReason::Idle));
        assert_eq!(gate.decide(View { last_request: idle.now, ..idle }), GateState::Wait);
        assert_eq!(gate.decide(View { free: 20, ..idle }), GateState::Normal);
    }

    #[test]
    fn a_clean_oldest_set_needs_no_destaging() {
        assert_eq!(gate().decide(View { free: 10, oldest_set_dirty: false, ..view() }), GateState::Normal);
    }

    #[test]
    fn a_request_every_second_does_not_starve_it_above_the_high_mark_or_the_age() {
        let mut gate = gate();
        assert_eq!(gate.decide(View { dirty_sets: 71, ..view() }), GateState::Destage(DestageReason::HighMark));
        assert_eq!(gate.decide(View { dirty_sets: 65, ..view() }), GateState::Destage(DestageReason::HighMark));
        assert_eq!(gate.decide(View { dirty_sets: 63, ..view() }), GateState::Normal);
        let late = View { now: Instant(609_000_000_000), last_request: Instant(609_000_000_000), ..view() };
        assert_eq!(gate.decide(late), GateState::Destage(DestageReason::Age));
        assert_eq!(gate.decide(View { dirty_since: Some(Instant(608_000_000_000)), ..late }), GateState::Destage(DestageReason::Age));
        assert_eq!(gate.decide(View { dirty_since: Some(Instant(609_000_000_001)), ..late }), GateState::Normal);
    }

    #[test]
    fn the_papers_new_gate_knows_no_reason_but_idleness() {
        let mut gate = of_kind(GateKind::New);
        let pressed = View { free: 0, dirty_sets: 100, dirty_since: Some(Instant::ZERO), ..view() };
        let late = Instant(1_000_000_000_000);
        assert_eq!(gate.decide(View { now: late, last_request: late, ..pressed }), GateState::Wait);
        let idle = View { now: late + Duration::from_secs(2), last_request: late, ..pressed };
        assert_eq!(gate.decide(idle), GateState::Destage(DestageReason::Idle));
        assert_eq!((gate.sets_at_once(), gate.deadline(idle.last_request, idle.dirty_since, None)), (Some(4), None));
        assert_eq!(gate.decide(View { starved: true, ..pressed }), GateState::Destage(DestageReason::NoFreeSet));
        assert_eq!(gate.sets_at_once(), None);
    }

    #[test]
    fn the_papers_old_gate_waits_for_nothing() {
        let mut gate = of_kind(GateKind::Old);
        assert_eq!(gate.decide(view()), GateState::Normal);
        assert_eq!(gate.decide(View { free: 19, ..view() }), GateState::Destage(DestageReason::BelowFloor));
        assert_eq!(gate.decide(View { free: 19, oldest_set_dirty: false, ..view() }), GateState::Normal);
    }

    #[test]
    fn a_disk_that_stands_still_is_woken_early_for_room_late_for_age_and_never_by_idleness() {
        let mut gate = gate();
        let asleep = Some(Asleep { max_age: Duration::from_secs(86_400), lead: 25 });
        let idle = View { asleep, free: 10, last_request: Instant::ZERO, ..view() };
        assert_eq!(gate.decide(idle), GateState::Normal);
        let late = View { now: Instant(700_000_000_000), ..idle };
        assert_eq!(gate.decide(late), GateState::Normal);
        assert_eq!(gate.deadline(late.last_request, late.dirty_since, asleep), Some(Instant(86_409_000_000_000)));
        assert_eq!(gate.decide(View { now: Instant(86_409_000_000_000), ..idle }), GateState::Destage(DestageReason::Age));
        let mut gate = of_kind(GateKind::Ours);
        let filling = View { dirty_since: Some(late.now), dirty_sets: 46, ..late };
        assert_eq!(gate.decide(View { dirty_sets: 45, ..filling }), GateState::Normal);
        assert_eq!(gate.decide(filling), GateState::Destage(DestageReason::HighMark));
        assert_eq!(gate.decide(View { starved: true, ..idle }), GateState::Destage(DestageReason::NoFreeSet));
    }

    #[test]
    fn what_a_sweep_could_not_bring_home_wakes_no_disk_before_it_is_old_again() {
        let mut gate = gate();
        let seconds = |seconds: u64| Instant(seconds * 1_000_000_000);
        let asleep = Some(Asleep { max_age: Duration::from_secs(86_400), lead: 0 });
        let awake = View { now: seconds(700), ..view() };
        assert_eq!(gate.decide(awake), GateState::Destage(DestageReason::Age));
        assert_eq!(gate.deadline(awake.last_request, awake.dirty_since, None), None);
        // Had it failed as a whole, it would be tried again as ever.
        assert_eq!(gate.old_at(seconds(9), asleep), seconds(86_409));
        gate.left_behind(seconds(700));
        assert_eq!(gate.decide(View { now: seconds(760), asleep, ..awake }), GateState::Normal);
        assert_eq!(gate.decide(View { now: seconds(87_099), asleep, ..awake }), GateState::Normal);
        assert_eq!(gate.deadline(awake.last_request, awake.dirty_since, asleep), Some(seconds(87_100)));
        assert_eq!(gate.decide(View { now: seconds(87_100), asleep, ..awake }), GateState::Destage(DestageReason::Age));
    }

    #[test]
    fn while_it_turns_what_was_dirty_when_it_was_woken_goes_home_and_no_more() {
        let mut gate = gate();
        let swept = View { sweep: Some(Instant(9_000_000_000)), ..view() };
        assert_eq!(gate.decide(swept), GateState::Destage(DestageReason::Sweep));
        assert_eq!(gate.decide(View { sweep: None, ..swept }), GateState::Normal, "somebody asks for it");
        assert_eq!(gate.decide(View { dirty_since: Some(Instant(9_000_000_001)), ..swept }), GateState::Normal);
    }

    #[test]
    fn it_presses_more_the_fuller_the_log_is_above_the_mark() {
        let mut gate = gate();
        assert_eq!(gate.decide(View { dirty_sets: 71, ..view() }), GateState::Destage(DestageReason::HighMark));
        let urgencies = [60, 70, 83, 96, 100].map(|dirty| gate.urgency(dirty, 100));
        assert_eq!(urgencies, [0.0, 0.0, 0.5, 1.0, 1.0]);
        gate.decide(View { drain: true, ..view() });
        assert_eq!(gate.urgency(0, 100), 1.0, "somebody waits for it");
        gate.decide(View { sweep: Some(Instant(9_000_000_000)), ..view() });
        assert_eq!(gate.urgency(99, 100), 0.0);
    }

    #[test]
    fn nothing_dirty_is_normal_whatever_else() {
        assert_eq!(gate().decide(View { dirty: false, free: 0, starved: true, drain: true, ..view() }), GateState::Normal);
    }
}

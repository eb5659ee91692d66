//! Spin: who asks for a disk that may stand still, what waits for it, and what has to be home before it may stop. When it stops, `spin` says.
//!
//! ```text
//! an operation for the origin ─┬─ it turns ──▶ queue ──▶ disk                          told to the motor as a demand, and when it has ended
//!                              └─ it does not ▶ queue, held ┄┄ Wake ┄┄▶ it turns ▶ disk
//! ```
//! The whole queue of the origin is held while the disk is not ready, so no flow knows of it: reads wait there, and so does what a drain or a
//! full log wants. What must not wake the disk does not ask: writes are for the log, a FLUSH is the SSD's, idleness is no reason to destage
//! (`gate`), a question for the allocation is answered without the disk, and a stop takes no marks.

use crate::block::Span;
use crate::config::{Canary, Config, GateKind};
use crate::gate::Asleep;
use crate::op::{Action, Answer, Class, DeviceError, DeviceId, Op, OpId, Power, Said};
use crate::payload::Payload;
use crate::probe::{DestageReason, GateState, Phase};
use crate::spin::quiet::OfDay;
use crate::spin::{Cause, Motor};
use crate::time::{Duration, Instant};

use super::operations::UnderWay;
use super::{Engine, Owner};

/// Nobody has asked for a turning disk for so long: what is dirty may go home.
const LULL: Duration = Duration::from_secs(1);
/// A disk is told to wake when the log would reach its high mark within so many times the time that it takes.
const LEAD: u64 = 2;
/// How long it is looked at how quickly the log fills.
const LOOK: Duration = Duration::from_secs(1);

pub(super) struct Rotation<P> {
    /// Of an origin that may stand still.
    pub motor: Option<Motor>,
    /// A word to the motor that the world has not taken yet.
    pub word: Option<Op<P>>,
    /// Dirty sets, when that was last looked at, and how many more each second.
    seen: (Instant, u32),
    rate: u32,
}

impl<P> Rotation<P> {
    pub fn new(config: &Config) -> Self {
        Rotation { motor: motor(config), word: None, seen: (Instant::ZERO, 0), rate: 0 }
    }
}

/// What it does now it is asked first.
fn motor(config: &Config) -> Option<Motor> {
    let mut spin = config.spin.clone()?;
    if config.canary == Some(Canary::StopsUncounted) {
        spin.per_hour = u32::MAX;
    }
    Some(Motor::new(spin, Instant::ZERO).unknown())
}

impl<P: Payload> Engine<P> {
    // --- demands ---

    /// An operation for the origin. True: the motor counts it, and is to hear when it has ended.
    pub(super) fn note_demand(&mut self, owner: Owner) -> bool {
        let cause = match owner {
            Owner::Read { .. } | Owner::Status { .. } | Owner::FirstFlush | Owner::Recovery(_) => Some(Cause::Read),
            Owner::Through { .. } | Owner::ThroughFlush => Some(Cause::Write),
            Owner::Mark { .. } | Owner::MarkFlush => Some(Cause::Command),
            Owner::DestageWrite { .. } | Owner::DestageZero { .. } | Owner::OriginFlush => self.destage_cause(),
            // It is asked only where the disk turns, and is no reason to go on.
            Owner::Gauge => None,
            Owner::Ahead { .. }
            | Owner::Merge { .. }
            | Owner::Data { .. }
            | Owner::Pages { .. }
            | Owner::CacheFlush
            | Owner::Headers { .. }
            | Owner::Map
            | Owner::Superblock { .. }
            | Owner::DestageRead { .. }
            | Owner::Clean { .. }
            | Owner::Complete { .. }
            | Owner::Scrub(_)
            | Owner::Discard { .. }
            | Owner::Spin => unreachable!("those are for the SSD, or for the motor"),
        };
        if self.rotation.motor.is_none() {
            return false;
        }
        let span = self.span_of(owner);
        match (&mut self.rotation.motor, cause) {
            (Some(motor), Some(cause)) => motor.demand(self.now, cause, span),
            (None, _) | (_, None) => return false,
        }
        true
    }

    /// Where the request lies that an operation is for, if it is for one.
    fn span_of(&self, owner: Owner) -> Option<Span> {
        let request = match owner {
            Owner::Read { request, .. } | Owner::Status { request } => Some(request),
            Owner::Through { write } => self.through_request(write),
            _ => None,
        };
        request.map(|number| self.requests.get(number).request.span)
    }

    /// What the motor of the origin does, if it is told to stand still.
    pub fn motor(&self) -> Option<&Motor> {
        self.rotation.motor.as_ref()
    }

    #[cold]
    pub(super) fn demand_served(&mut self) {
        self.rotation.motor.as_mut().expect("it was told").served(self.now);
    }

    /// Why the gate destages. None: because the disk turns anyway.
    fn destage_cause(&self) -> Option<Cause> {
        match self.gate.state() {
            GateState::Destage(DestageReason::Sweep) => None,
            GateState::Destage(DestageReason::Age) => Some(Cause::Age),
            GateState::Destage(DestageReason::Drain | DestageReason::Mode) => Some(Cause::Command),
            GateState::Destage(DestageReason::BelowFloor | DestageReason::Idle | DestageReason::HighMark | DestageReason::NoFreeSet) => {
                Some(Cause::Room)
            }
            // What has begun ends.
            GateState::Normal | GateState::Wait => None,
        }
    }

    /// Destaging is to begin, and the disk does not turn: it is woken first.
    pub(super) fn is_woken_to_destage(&mut self) -> bool {
        let cause = self.destage_cause().unwrap_or(Cause::Room);
        match &mut self.rotation.motor {
            Some(motor) if motor.is_down() => motor.want(self.now, cause),
            Some(_) | None => return false,
        }
        true
    }

    // --- what the gate looks at ---

    /// What holds while the disk stands still; it may be on its way up.
    pub(super) fn asleep(&self) -> Option<Asleep> {
        let motor = self.rotation.motor.as_ref().filter(|motor| motor.is_down())?;
        let max_age = if motor.is_quiet(self.now) { Duration(u64::MAX) } else { motor.config().max_dirty_age };
        let seconds = (motor.drive().spin_up.0 * LEAD).div_ceil(1_000_000_000);
        Some(Asleep { max_age, lead: (u64::from(self.rotation.rate) * seconds).min(u64::from(u32::MAX)) as u32 })
    }

    /// The disk turns, and nobody has asked for it of late: what became dirty until then goes home.
    pub(super) fn sweep(&self) -> Option<Instant> {
        self.sweep_until().filter(|_| self.rotation.motor.as_ref().is_some_and(|motor| motor.idle_for(self.now) >= LULL))
    }

    /// What became dirty until then goes home before the disk stops. The papers' gates know nothing of that.
    fn sweep_until(&self) -> Option<Instant> {
        self.rotation.motor.as_ref()?.sweep_until().filter(|_| self.gate.kind == GateKind::Ours)
    }

    /// How quickly the log fills, for the lead.
    fn note_rate(&mut self) {
        let (at, sets) = self.rotation.seen;
        let time = self.now.since(at);
        if time < LOOK {
            return;
        }
        let now = self.dirty_sets_packed();
        let rate = (u64::from(now.saturating_sub(sets)) * 1_000_000_000).div_ceil(time.0) as u32;
        // A stream that has paused may go on; with each second that is less likely.
        let mut former = self.rotation.rate;
        for _ in 0..time.0 / LOOK.0 {
            if former == 0 {
                break;
            }
            former -= former.div_ceil(8);
        }
        self.rotation.rate = rate.max(former);
        self.rotation.seen = (self.now, now);
    }

    /// Service begins. What is dirty was written in another life: it has filled nothing just now, and goes home while the disk turns.
    pub(super) fn begin_rotation(&mut self) {
        self.rotation.seen = (self.now, self.dirty_sets_packed());
        self.rotation.rate = 0;
        let is_owed = self.owed_blocks() > 0;
        if let Some(motor) = self.rotation.motor.as_mut().filter(|_| is_owed) {
            motor.begin(self.now);
        }
    }

    /// What time of the day it is. Whoever knows tells it now and then: clocks are set, and the engine's stands still while a machine sleeps.
    pub fn tell_time_of_day(&mut self, now: Instant, of_day: OfDay) {
        if let Some(motor) = &mut self.rotation.motor {
            motor.tell_time_of_day(now, of_day);
        }
    }

    /// Since when the disk has turned, as far as it is told when to.
    pub(super) fn turning_since(&self) -> Instant {
        self.rotation.motor.as_ref().map_or(Instant::ZERO, Motor::turning_since)
    }

    // --- the motor ---

    /// Tells the motor what it is to do, if it is time for that. Before service begins that is only what whoever reads the origin needs.
    pub(super) fn pump_motor(&mut self) {
        if self.rotation.motor.is_none() {
            return;
        }
        if self.phase == Phase::Serving {
            self.note_rate();
        }
        let is_settled = self.is_settled_at_origin();
        let motor = self.rotation.motor.as_mut().expect("there is one");
        if let Some(word) = motor.decide(self.now, is_settled) {
            let operation = UnderWay { id: OpId(0), owner: Owner::Spin, device: DeviceId::Origin, demand: false };
            let id = self.name(operation);
            self.rotation.word = Some(Op { id, device: DeviceId::Origin, class: Class::Log, action: Action::Spin(word) });
        }
    }

    /// Somebody needs a disk whose motor says nothing. True: it is waited for no more, and the origin's queue is open.
    pub(super) fn tires_of_motor(&mut self) -> bool {
        let now = self.now;
        self.rotation.motor.as_mut().is_some_and(|motor| motor.tire(now))
    }

    /// Nothing is under way at the origin, and nothing has to get there before it may stop.
    fn is_settled_at_origin(&self) -> bool {
        let is_still = self.queues[DeviceId::Origin as usize].is_idle() && self.destage.is_idle() && self.is_through_idle();
        let is_swept =
            !self.sweep_until().is_some_and(|until| self.owed_blocks() > 0 && self.dirty_since().is_some_and(|since| since <= until));
        let is_home = is_swept && !matches!(self.gate.state(), GateState::Destage(_));
        // What the origin refuses is tried again later, and may wake it then.
        let owes_nothing = is_home || self.destage.back_off.is_waiting(self.now);
        is_still && owes_nothing && self.through.pages.is_empty() && self.phase == Phase::Serving && !self.stopping
    }

    #[cold]
    pub(super) fn motor_answered(&mut self, result: Result<Answer<P>, DeviceError>) {
        let said = result.map(|answer| match answer {
            Answer::Power(said) => said,
            // What knows nothing of motors turns.
            Answer::Done | Answer::Data(_) | Answer::Allocation(_) => Said::from(Power::Turning),
        });
        let now = self.now;
        let cause = self.destage_cause().unwrap_or(Cause::Room);
        let is_awaited = !self.destage.is_idle();
        if let Some(motor) = &mut self.rotation.motor {
            motor.answered(now, said);
            // It was asked for nothing, because it turned: and has stopped by itself.
            if is_awaited && motor.is_down() {
                motor.want(now, cause);
            }
        }
    }

    /// The origin has gone, or another incarnation has come: operations are handed to it, and fail or not.
    #[cold]
    pub(super) fn motor_changed(&mut self) {
        let now = self.now;
        if let Some(motor) = &mut self.rotation.motor {
            motor.came_back(now);
        }
    }

    pub(super) fn spin_deadline(&self) -> Option<Instant> {
        let motor = self.rotation.motor.as_ref()?;
        let lull = self.sweep_until().and(motor.idle_since()).map(|since| since + LULL);
        [motor.deadline(self.now), lull].into_iter().flatten().filter(|&at| at > self.now).min()
    }
}

//! A device: operations in flight, what goes wrong with them, what becomes of their contents; and the rules of the language of the back,
//! asserted on every operation (`engine/src/op.rs`). How long they take is the business of its model (`back/model`).

mod crash;

use super::contents::Contents;
use super::fault::{self, Fault, Places, Rates};
use super::model::{Cause, Command, Model, PowerState, What};
use super::settled::Settled;
use super::volatile::{Survive, Unflushed, Volatile};
use crate::chance::{Chance, mix};
use crate::stamp::{HASHED, Stamps};
use std::collections::{BTreeMap, BTreeSet};
use tidegate_engine::block::{PAGE_ATOMS, Span};
use tidegate_engine::cache::format::{FormatId, Geometry};
use tidegate_engine::op::{Action, Answer, Class, DeviceError, DeviceId, Done, Hole, Limits, Op, OpId, Power, Said, Zone};
use tidegate_engine::payload::Payload;
use tidegate_engine::request::Extent;
use tidegate_engine::time::{Duration, Instant};

/// An operation that takes longer is reported as late.
const LATE: Duration = Duration::from_millis(500);
/// For how long a word to a motor is waited for, at most.
const SILENCE: Duration = Duration::from_secs(180);
/// How long it takes to find out that a motor does not do as it was told.
const DEAF: Duration = Duration::from_secs(1);

/// Damage that may keep a client's data from being read: the oracle is told.
#[derive(Clone, Debug)]
pub enum Harm {
    /// These stamps stand, or should stand, in slots that were hit: their blocks may be lost.
    Slots(Vec<u64>),
    /// The origin did not give this part of the volume.
    Unread(Span),
}

/// What a device tells its user.
#[derive(Clone, Debug)]
pub enum Ended {
    Done(Done<Stamps>),
    /// It has been taking unusually long.
    Late(OpId),
}

#[derive(Clone, Debug)]
struct Running {
    op: Op<Stamps>,
    /// Of a flush: what it covers, as the volatile cache counts, and as the settled places do.
    mark: u64,
    settled: u64,
    fault: Option<Fault>,
    due: Due,
    /// When it is reported as late; none once it was.
    late: Option<Instant>,
}

/// Who says when an operation ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    /// The model, by this number of a command.
    Model(u64),
    /// It is stuck until then, or was released.
    At(Instant),
    /// Its zone is held: nobody, before it is released.
    Held,
}

impl Running {
    /// Zone, span, and whether it writes.
    fn access(&self) -> Option<(Zone, Span, bool)> {
        access(&self.op.action)
    }

    fn unflushed(&self) -> Option<Unflushed> {
        match &self.op.action {
            Action::Write(zone, span, parts) => Some(Unflushed { zone: *zone, start: span.start, data: Stamps::concat(parts) }),
            Action::Zero(zone, span, _) => Some(Unflushed { zone: *zone, start: span.start, data: Stamps::zero(span.atoms) }),
            Action::Discard(zone, span) => Some(Unflushed { zone: *zone, start: span.start, data: leftovers(self.op.id, *span) }),
            Action::Read(..) | Action::Allocation(..) | Action::Flush | Action::Spin(_) => None,
        }
    }
}

/// What stands where something was discarded: zeros, or anything.
fn leftovers(id: OpId, span: Span) -> Stamps {
    if mix(id.0) & 1 == 0 {
        return Stamps::zero(span.atoms);
    }
    Stamps::from_stamps(&(span.start..span.end()).map(|atom| mix(id.0 ^ atom) | HASHED).collect::<Vec<_>>())
}

fn access(action: &Action<Stamps>) -> Option<(Zone, Span, bool)> {
    match action {
        Action::Read(zone, span) | Action::Allocation(zone, span) => Some((*zone, *span, false)),
        Action::Write(zone, span, _) | Action::Zero(zone, span, _) | Action::Discard(zone, span) => Some((*zone, *span, true)),
        Action::Flush | Action::Spin(_) => None,
    }
}

/// The command that an operation is to a drive. Asking for the allocation costs what a small read costs.
fn command(id: u64, op: &Op<Stamps>) -> Command {
    let (what, span) = match &op.action {
        Action::Read(_, span) => (What::Read, *span),
        Action::Allocation(_, span) => (What::Read, Span::new(span.start, span.atoms.min(PAGE_ATOMS))),
        Action::Write(_, span, _) | Action::Zero(_, span, Hole::Forbidden) => (What::Write, *span),
        Action::Zero(_, span, Hole::Allowed) | Action::Discard(_, span) => (What::Discard, *span),
        Action::Flush => (What::Flush, Span::default()),
        Action::Spin(word) => (What::Spin(*word), Span::default()),
    };
    let cause = match (op.class, what) {
        (Class::Client, What::Read) => Cause::HostRead,
        (Class::Client, What::Write | What::Flush | What::Discard | What::Spin(_)) => Cause::HostWrite,
        (Class::Log, _) => Cause::Log,
        (Class::Fill, _) => Cause::Fill,
        (Class::Destage, _) => Cause::Destage,
        (Class::Clean, What::Read) => Cause::HostRead,
        (Class::Clean, What::Write | What::Flush | What::Discard | What::Spin(_)) => Cause::Log,
        (Class::Scrub, What::Read) => Cause::HostRead,
        (Class::Scrub, What::Write | What::Flush | What::Discard | What::Spin(_)) => Cause::Log,
        (Class::Discard, _) => Cause::Cleaning,
    };
    Command { id, what, start: span.start, atoms: span.atoms, cause }
}

/// One simulated device.
#[derive(Clone, Debug)]
pub struct Device {
    id: DeviceId,
    geometry: Geometry,
    pub limits: Limits,
    pub model: Model,
    pub rates: Rates,
    disk: Volatile,
    running: Vec<Running>,
    /// Commands given to the model so far. What an earlier user began may still be on its way there, and ends unheard.
    commands: u64,
    /// Numbers of commands that just ended.
    due: Vec<u64>,
    chance: Chance,
    /// Atoms that cannot be read until they are written.
    bad: BTreeSet<u64>,
    /// Atoms that refuse to be written, and how many times more.
    refusing: BTreeMap<u64, u32>,
    gone: bool,
    /// Something has failed for that.
    is_noticed: bool,
    /// It gives what it holds, and takes nothing any more.
    read_only: bool,
    /// A flush has succeeded since its user was started: before that, the origin's contents are nothing to rely on.
    flushed: bool,
    /// What a failed flush leaves visible is gone for the next process, even without a power cut. That a read of it may be belied by a
    /// later power cut is accepted (docs/durability.md), and would be mistaken for a broken promise.
    pub drops_doomed: bool,
    /// Zones whose operations wait (none: flushes).
    held: BTreeSet<Option<Zone>>,
    /// Faults for the next operations of a zone (none: flushes), in order; before any that are drawn.
    script: Vec<(Option<Zone>, Fault)>,
    /// And for the next words to its motor.
    spin_script: Vec<Fault>,
    /// It has been used since the last of them. None: nobody counts that.
    used: Option<bool>,
    harm: Vec<Harm>,
    /// What it did not take since somebody last asked: all of it, if a flush failed.
    untaken: Vec<Span>,
    /// Where faults may strike though a crash may follow. Of the cache only.
    settled: Option<Settled>,
    /// Writes, zeroes and flushes that ended, those of them that failed, faults that happened: for the reports.
    pub ended: u64,
    /// When a write, zeroes or a flush last succeeded.
    pub last_success: Instant,
    pub failed_writes: u64,
    pub faults: u64,
    /// Until when something was last wrong with it, but for its being gone.
    troubled: Option<Instant>,
}

impl Device {
    pub fn new(id: DeviceId, geometry: &Geometry, contents: Contents, limits: Limits, model: Model, chance: Chance) -> Self {
        Device {
            id,
            geometry: *geometry,
            limits,
            model,
            rates: Rates::default(),
            disk: Volatile::new(contents),
            running: Vec::new(),
            commands: 0,
            due: Vec::new(),
            chance,
            bad: BTreeSet::new(),
            refusing: BTreeMap::new(),
            gone: false,
            is_noticed: false,
            read_only: false,
            flushed: false,
            drops_doomed: false,
            held: BTreeSet::new(),
            script: Vec::new(),
            spin_script: Vec::new(),
            used: None,
            harm: Vec::new(),
            untaken: Vec::new(),
            settled: None,
            ended: 0,
            last_success: Instant::ZERO,
            failed_writes: 0,
            faults: 0,
            troubled: None,
        }
    }

    /// From now on faults that need it (`Rates::settled_only`) strike settled places only, as the log of this format tells.
    pub fn watch_settling(&mut self, format: FormatId) {
        self.settled = Some(Settled::new(&self.geometry, format));
    }

    /// What reads see.
    pub fn visible(&self) -> &Contents {
        self.disk.visible()
    }

    /// What no power cut can take.
    pub fn durable(&self) -> &Contents {
        self.disk.durable()
    }

    /// All stamps of the cache's data that no power cut can take, in order.
    pub fn durable_data(&self) -> Vec<u64> {
        let mut stamps: Vec<u64> = self.disk.durable().read(self.geometry.zone(Zone::Data)).iter().flat_map(Stamps::stamps).collect();
        stamps.sort_unstable();
        stamps.dedup();
        stamps
    }

    /// What an atom may hold after a power cut, in the order in which it was written; what it holds now comes last.
    pub fn stamps_of(&self, atom: u64) -> Vec<u64> {
        self.disk.stamps_of(atom)
    }

    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// Harm done, before crashes too, that nobody has taken.
    pub fn harm(&self) -> &[Harm] {
        &self.harm
    }

    /// The same, which is told once then.
    pub fn take_harm(&mut self) -> Vec<Harm> {
        std::mem::take(&mut self.harm)
    }

    /// Where writes, zeroes and flushes have failed since the last call: everywhere, if a flush has. (The origin only.)
    pub fn take_untaken(&mut self) -> Vec<Span> {
        std::mem::take(&mut self.untaken)
    }

    /// Takes an operation. Everything due at `now` has been taken out before.
    pub fn start(&mut self, now: Instant, op: Op<Stamps>) {
        self.check(&op);
        let fault = self.draw_fault(op.class, &op.action);
        if let Some(fault) = fault {
            self.faults += 1;
            let lasts = if let Fault::Stuck(duration) = fault { duration } else { Duration::ZERO };
            // Nobody waits for a word for longer than that.
            let longest = if matches!(op.action, Action::Spin(_)) { SILENCE } else { lasts };
            self.troubled = self.troubled.max(Some(now + lasts.min(longest)));
        }
        let due = if self.held.contains(&access(&op.action).map(|(zone, _, _)| zone)) {
            Due::Held
        } else if let Some(Fault::Stuck(duration)) = fault {
            Due::At(now + duration)
        } else if matches!((&op.action, fault), (Action::Spin(_), Some(_))) {
            // The motor has not heard it.
            Due::At(now + DEAF)
        } else {
            if let (Some(used), false) = (&mut self.used, matches!(op.action, Action::Spin(_))) {
                *used = true;
            }
            self.commands += 1;
            self.model.submit(now, command(self.commands, &op));
            Due::Model(self.commands)
        };
        // A motor takes its time.
        let late = (due != Due::Held && !matches!(op.action, Action::Spin(_))).then(|| now + LATE);
        let mark = self.disk.mark();
        let settled = self.settled.as_ref().map_or(0, Settled::mark);
        self.running.push(Running { op, mark, settled, fault, due, late });
    }

    /// When something of this device next happens: an operation ends or is late, or its model has work of its own to do.
    pub fn next(&self) -> Option<Instant> {
        let mut next = self.model.next();
        for running in &self.running {
            let due = match running.due {
                Due::At(when) => Some(when),
                Due::Model(_) | Due::Held => None,
            };
            for when in [due, running.late].into_iter().flatten() {
                next = Some(next.map_or(when, |next| next.min(when)));
            }
        }
        next
    }

    /// Everything that is due at `now`: what the model ends, in its order; what was stuck or held, in the order of its start; what is late.
    pub fn advance(&mut self, now: Instant, ended: &mut Vec<Ended>) {
        let mut due = std::mem::take(&mut self.due);
        self.model.advance(now, &mut due);
        for command in due.drain(..) {
            if let Some(index) = self.running.iter().position(|running| running.due == Due::Model(command)) {
                ended.push(Ended::Done(self.finish(now, index)));
            }
        }
        self.due = due;
        let is_due = |running: &Running| matches!(running.due, Due::At(when) if when <= now);
        while let Some(index) = self.running.iter().position(is_due) {
            ended.push(Ended::Done(self.finish(now, index)));
        }
        for running in &mut self.running {
            if running.late.take_if(|late| *late <= now).is_some() {
                ended.push(Ended::Late(running.op.id));
            }
        }
    }

    /// The rules every operation keeps. (One of them, that no metadata still needed is overwritten, the scenarios watch.)
    fn check(&self, op: &Op<Stamps>) {
        assert_eq!(op.device, self.id);
        // A word to the motor takes no place: it goes another way, and is not waited for for ever.
        let in_flight = self.running.iter().filter(|running| !matches!(running.op.action, Action::Spin(_))).count();
        let is_word = matches!(op.action, Action::Spin(_));
        assert!(is_word || in_flight < self.limits.depth, "{op:?}: more in flight than the depth of {}", self.limits.depth);
        assert!(self.running.iter().all(|running| running.op.id != op.id), "{op:?}: an id in use");
        let Some((zone, span, writes)) = access(&op.action) else { return };
        assert!(!span.is_empty(), "{op:?}: nothing");
        if let Action::Read(..) | Action::Write(..) = op.action {
            assert!(span.atoms <= self.limits.op_atoms, "{op:?}: more than {} atoms", self.limits.op_atoms);
        }
        assert_eq!(zone == Zone::Origin, self.id == DeviceId::Origin, "{op:?}: a zone of another device");
        assert!(self.geometry.zone(zone).contains(span), "{op:?}: not in {:?}", self.geometry.zone(zone));
        if !matches!(zone, Zone::Data | Zone::Origin) {
            assert!(span.start.is_multiple_of(PAGE_ATOMS) && span.atoms.is_multiple_of(PAGE_ATOMS), "{op:?}: metadata is whole pages");
        }
        if let Action::Discard(..) = op.action {
            assert!(self.limits.discards && zone == Zone::Data, "{op:?}: not what this device discards");
        }
        if let Action::Write(_, _, parts) = &op.action {
            assert_eq!(parts.iter().map(Payload::atoms).sum::<u64>(), span.atoms, "{op:?}: payloads are the span");
        }
        for running in &self.running {
            let Some((_, other, other_writes)) = running.access() else { continue };
            assert!(!span.overlaps(other) || !(writes || other_writes), "{op:?}: overlaps {:?}, which is in flight", running.op);
        }
    }

    fn draw_fault(&mut self, class: Class, action: &Action<Stamps>) -> Option<Fault> {
        if let Action::Spin(_) = action
            && !self.spin_script.is_empty()
        {
            return Some(self.spin_script.remove(0));
        }
        let zone = access(action).map(|(zone, _, _)| zone);
        let is_word = matches!(action, Action::Spin(_));
        if let Some(next) = self.script.iter().position(|(of, _)| *of == zone && !is_word) {
            return Some(self.script.remove(next).1);
        }
        if self.rates == Rates::default() {
            return None;
        }
        let mut chance = self.chance.clone();
        let fault = fault::draw(&self.rates, class, action, self, &mut chance);
        self.chance = chance;
        fault
    }

    /// An operation ends.
    fn finish(&mut self, now: Instant, index: usize) -> Done<Stamps> {
        let running = self.running.remove(index);
        let writes = !matches!(running.op.action, Action::Read(..) | Action::Allocation(..) | Action::Spin(_));
        let result = match &running.op.action {
            Action::Read(zone, span) => self.finish_read(*zone, *span, running.fault),
            Action::Allocation(_, span) => {
                if self.gone {
                    self.harm.push(Harm::Unread(*span));
                    Err(DeviceError::Gone)
                } else {
                    Ok(self.allocation(*span))
                }
            }
            Action::Write(..) | Action::Zero(..) | Action::Discard(..) => self.finish_write(&running),
            Action::Flush => self.finish_flush(&running),
            Action::Spin(_) if self.gone => Err(DeviceError::Gone),
            Action::Spin(_) if running.fault == Some(Fault::Error) => Err(DeviceError::Medium),
            Action::Spin(_) => Ok(Answer::Power(Said { power: self.power(), used: self.used.as_mut().map(std::mem::take) })),
        };
        self.is_noticed |= self.gone;
        if result.is_err() {
            self.troubled = self.troubled.max(Some(now));
        }
        self.ended += u64::from(writes);
        // A discard that fails is no excuse for anything.
        self.failed_writes += u64::from(writes && result.is_err() && !matches!(running.op.action, Action::Discard(..)));
        if writes && result.is_ok() {
            self.last_success = now;
        } else if writes && self.id == DeviceId::Origin {
            let span = running.access().map_or(self.geometry.zone(Zone::Origin), |(_, span, _)| span);
            self.untaken.push(span);
        }
        Done { id: running.op.id, result }
    }

    fn power(&self) -> Power {
        match self.model.state() {
            PowerState::Standby | PowerState::SpinningDown => Power::Standby,
            // Drives do not tell one that starts from one that turns (ATA: FFh; SCSI: becoming ready).
            PowerState::SpinningUp | PowerState::Active | PowerState::Idle => Power::Turning,
        }
    }

    fn finish_read(&mut self, zone: Zone, span: Span, fault: Option<Fault>) -> Result<Answer<Stamps>, DeviceError> {
        if self.gone {
            // What a lost cache alone held, the world knows.
            self.harm.extend((zone == Zone::Origin).then_some(Harm::Unread(span)));
            return Err(DeviceError::Gone);
        }
        if fault == Some(Fault::Bad) {
            self.bad.insert(span.start + self.chance.below(span.atoms));
        }
        let failed =
            matches!(fault, Some(Fault::Bad | Fault::Error | Fault::Passing)) || self.bad.range(span.start..span.end()).next().is_some();
        if failed {
            match zone {
                Zone::Origin => self.harm.push(Harm::Unread(span)),
                Zone::Data if fault == Some(Fault::Passing) => {}
                Zone::Data => self.hit_slots(span),
                Zone::Superblock | Zone::Map | Zone::Header | Zone::HeaderCopy | Zone::Journal => {}
            }
            return Err(DeviceError::Medium);
        }
        if let Some(Fault::Rot(atom)) = fault {
            self.rot(atom);
        }
        Ok(Answer::Data(self.disk.visible().read(span).into()))
    }

    fn allocation(&self, span: Span) -> Answer<Stamps> {
        let mut extents: Vec<Extent> = Vec::new();
        for atom in span.start..span.end() {
            let zero = self.disk.visible().stamp(atom) == 0;
            match extents.last_mut() {
                Some(last) if last.zero == zero => last.atoms += 1,
                _ => extents.push(Extent { atoms: 1, hole: zero, zero }),
            }
        }
        Answer::Allocation(extents)
    }

    /// A word to the motor is under way: it may not have heard it yet.
    pub fn is_told(&self) -> bool {
        self.running.iter().any(|running| matches!(running.op.action, Action::Spin(_)))
    }

    /// The next so many writes of this atom are refused.
    pub fn refuse(&mut self, atom: u64, times: u32) {
        self.refusing.insert(atom, times);
    }

    fn finish_write(&mut self, running: &Running) -> Result<Answer<Stamps>, DeviceError> {
        let mut write = running.unflushed().expect("a write or zeroes");
        match running.fault {
            _ if self.gone => {
                self.land_some(&write);
                return Err(DeviceError::Gone);
            }
            _ if self.read_only => return Err(DeviceError::Medium),
            Some(Fault::Refused(times)) => {
                let atom = write.start + self.chance.below(write.data.atoms());
                self.refusing.insert(atom, times);
                self.land_some_but(&write, Some(atom));
                return Err(DeviceError::Medium);
            }
            _ if let Some(atom) = self.refuses(&write) => {
                self.land_some_but(&write, Some(atom));
                return Err(DeviceError::Medium);
            }
            Some(Fault::Error | Fault::Bad | Fault::Passing) => {
                self.land_some(&write);
                return Err(DeviceError::Medium);
            }
            Some(Fault::Denied) => {
                self.land(write);
                return Err(DeviceError::Medium);
            }
            Some(Fault::Full) => return Err(DeviceError::NoSpace),
            Some(Fault::Misdirected(place)) => {
                self.harm.push(Harm::Slots(write.data.stamps().collect()));
                self.hit_slots(Span::new(place, write.data.atoms()));
                write.start = place;
            }
            Some(Fault::Lost) => {
                self.harm.push(Harm::Slots(write.data.stamps().collect()));
                return Ok(Answer::Done);
            }
            Some(Fault::Rot(atom)) => self.rot(atom),
            Some(Fault::Stuck(_)) | None => {}
        }
        self.land(write);
        Ok(Answer::Done)
    }

    /// The atom of this write that refuses it.
    fn refuses(&mut self, write: &Unflushed) -> Option<u64> {
        let span = write.span();
        let (&atom, times) = self.refusing.range_mut(span.start..span.end()).next()?;
        *times -= 1;
        if *times == 0 {
            self.refusing.remove(&atom);
        }
        Some(atom)
    }

    fn land(&mut self, write: Unflushed) {
        if let Some(settled) = &mut self.settled {
            settled.land(&write);
        }
        if !self.bad.is_empty() {
            let span = write.span();
            self.bad.retain(|atom| !(span.start..span.end()).contains(atom));
        }
        self.disk.write(write);
    }

    /// Any subset of the atoms of a failed write lands.
    fn land_some(&mut self, write: &Unflushed) {
        self.land_some_but(write, None);
    }

    fn land_some_but(&mut self, write: &Unflushed, refusing: Option<u64>) {
        for index in 0..write.data.atoms() {
            if self.chance.one_in(2) && Some(write.start + index) != refusing {
                self.land(Unflushed { zone: write.zone, start: write.start + index, data: write.data.slice(index, 1) });
            }
        }
    }

    fn finish_flush(&mut self, running: &Running) -> Result<Answer<Stamps>, DeviceError> {
        let failed = self.gone || self.read_only || running.fault == Some(Fault::Error);
        self.flushed |= !failed;
        if self.gone {
            return Err(DeviceError::Gone);
        }
        if failed {
            self.disk.flush_failed(running.mark, &mut self.chance);
            if self.drops_doomed && !self.flushed {
                self.disk.drop_doomed();
            }
            if let Some(settled) = &mut self.settled {
                settled.forget();
            }
            return Err(DeviceError::Medium);
        }
        self.disk.flushed(running.mark);
        if let Some(settled) = &mut self.settled {
            settled.flushed(running.settled);
        }
        Ok(Answer::Done)
    }

    /// The atom rots, behind everybody's back.
    pub fn rot(&mut self, atom: u64) {
        if self.geometry.zone(Zone::Data).contains(Span::new(atom, 1)) && self.id == DeviceId::Cache {
            self.hit_slots(Span::new(atom, 1));
        }
        let bit = self.chance.word();
        self.disk.rot(atom, bit);
    }

    /// The volume has another size from now on.
    pub fn resize(&mut self, geometry: &Geometry) {
        self.geometry = *geometry;
        if let Some(settled) = &mut self.settled {
            settled.resize(geometry);
        }
    }

    /// From now on it fails like that, as `chance` will have it.
    pub fn fail_by(&mut self, rates: Rates, chance: Chance) {
        (self.rates, self.chance) = (rates, chance);
    }

    /// This atom cannot be read any more before it is written.
    pub fn spoil(&mut self, atom: u64) {
        self.bad.insert(atom);
    }

    /// Somebody else writes to the device, and flushes.
    pub fn scribble(&mut self, zone: Zone, start: u64, data: Stamps) {
        self.land(Unflushed { zone, start, data });
        self.disk.flushed(self.disk.mark());
    }

    /// Notes the stamps of all slots that `span` touches.
    fn hit_slots(&mut self, span: Span) {
        let block = u64::from(self.geometry.block_atoms);
        let start = span.start / block * block;
        let whole = Span::new(start, span.end().next_multiple_of(block) - start);
        self.harm.push(Harm::Slots(self.disk.visible().read(whole).iter().flat_map(|part| part.stamps().collect::<Vec<_>>()).collect()));
    }

    /// A device that has gone answers nothing any more; what is in flight fails when its time comes.
    pub fn go_away(&mut self) {
        (self.gone, self.is_noticed) = (true, false);
    }

    /// Since it went away, has anybody been told by a failure?
    pub fn is_noticed(&self) -> bool {
        self.is_noticed
    }

    /// A device that has worn out: what it holds can be read, nothing can be written any more.
    pub fn turn_read_only(&mut self) {
        self.read_only = true;
    }

    /// It is itself again, for whoever opens it next.
    pub fn reseat(&mut self) {
        (self.gone, self.read_only) = (false, false);
    }

    /// It answers again. Having `forgotten`, it lost any part of what was not flushed.
    pub fn come_back(&mut self, forgotten: bool) {
        assert!(self.running.is_empty(), "what was in flight has failed before");
        self.gone = false;
        if forgotten {
            let left = self.disk.power_cut(&[], &Survive::Random, &mut self.chance);
            self.disk = Volatile::new(left);
        }
    }

    /// Operations of `zone` (none: flushes) that start from now on end only after its release.
    pub fn hold(&mut self, zone: Option<Zone>) {
        self.held.insert(zone);
    }

    /// Lets the operations of `zone` that waited end now, those of later ones when their time comes.
    pub fn release(&mut self, now: Instant, zone: Option<Zone>) {
        self.held.remove(&zone);
        for running in &mut self.running {
            if running.due == Due::Held && running.access().map(|(of, _, _)| of) == zone {
                running.due = Due::At(now);
            }
        }
    }

    /// Everything that is in flight ends now.
    pub fn hurry(&mut self, now: Instant) {
        self.running.iter_mut().for_each(|running| running.due = Due::At(now));
    }

    /// The next operation in `zone` (none: the next flush) meets `fault`.
    pub fn fail_next(&mut self, zone: Option<Zone>, fault: Fault) {
        self.script.push((zone, fault));
    }

    /// The next word to its motor meets `fault`.
    pub fn fail_next_word(&mut self, fault: Fault) {
        self.spin_script.push(fault);
    }

    /// What it is asked for is counted, by whomever.
    pub fn count_uses(&mut self) {
        self.used = Some(false);
    }

    /// Somebody else uses it.
    pub fn used_by_a_stranger(&mut self, now: Instant) {
        self.model.disturb(now);
        self.used = self.used.map(|_| true);
    }

    /// Forgets every fault to come; bad atoms are readable again.
    pub fn heal(&mut self) {
        self.rates = Rates::default();
        self.spin_script.clear();
        self.script.clear();
        self.bad.clear();
        self.refusing.clear();
        // What is under way may still fail, once. (In seed 228 of the refusing profile it was bad from then on.)
        for running in self.running.iter_mut().filter(|running| matches!(running.fault, Some(Fault::Refused(_) | Fault::Bad))) {
            running.fault = Some(Fault::Error);
        }
    }

    /// Does a read of this part fail, now and again?
    pub fn is_bad(&self, zone: Zone, span: Span) -> bool {
        assert!(self.geometry.zone(zone).contains(span));
        self.gone || self.bad.range(span.start..span.end()).next().is_some()
    }

    /// Until when something is wrong with it, as far as that is known now, if anything ever was since its user was started.
    pub fn trouble(&self, now: Instant) -> Option<Instant> {
        let is_now = self.gone || !self.held.is_empty();
        self.troubled.max(is_now.then_some(now))
    }

    pub fn in_flight(&self) -> usize {
        self.running.len()
    }

    /// Is anything written to `zone` that no flush has covered?
    pub fn unsettled(&self, zone: Zone) -> bool {
        let running = self.running.iter().filter_map(Running::access).any(|(of, _, writes)| writes && of == zone);
        running || self.disk.unflushed().any(|write| write.zone == zone)
    }
}

impl Places for Device {
    fn zone(&self, zone: Zone) -> Span {
        self.geometry.zone(zone)
    }

    fn is_settled(&self, span: Span) -> bool {
        self.settled.as_ref().is_none_or(|settled| settled.is(span))
    }
}

#[cfg(test)]
mod tests;

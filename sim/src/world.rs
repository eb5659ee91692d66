//! The simulated world: one engine, its two devices, its clients and their oracle, in virtual time. One [`Simulation::step`] is one
//! moment: what is due happens, the engine takes its turn, and everything it says is checked.

mod ask;
mod books;
mod detach;
mod entrance;
mod grow;
mod left_behind;
mod loss;
mod restart;
mod waits;
mod zeros;

use self::books::Books;
use self::entrance::Entrance;
use self::waits::Asked;
use crate::agenda::Agenda;
use crate::back::contents::Contents;
use crate::back::device::{Device, Ended, Harm};
use crate::back::fault::Rates;
use crate::back::host::Host;
use crate::back::model::{Model, Plain};
use crate::back::volatile::Survive;
use crate::chance::Chance;
use crate::front::load::Load;
use crate::front::oracle::{Broken, Oracle};
use crate::front::pages::Fronts;
use crate::front::patience::Patience;
use crate::plan::Plan;
use crate::stamp::{Stamps, stamp};
use crate::trace::Trace;
use tidegate_engine::block::Span;
use tidegate_engine::cache::format::{Step, Superblock, create_steps};
use tidegate_engine::config::Placement;
use tidegate_engine::fault_point::FaultPoints;
use tidegate_engine::op::{Action, Class, DeviceError, DeviceId, Op, OpId, Spin, Zone};
use tidegate_engine::payload::{Checksum, Payload};
use tidegate_engine::probe::{Phase, Snapshot};
use tidegate_engine::request::{Outcome, Reply};
use tidegate_engine::time::{Duration, Instant};
use tidegate_engine::{Change, Control, Engine, Event, Mode, World, turn};

/// Time without any reply while requests wait, and turns at one moment: something is stuck.
const STUCK: Duration = Duration::from_secs(3 * 3_600);
const STUCK_TURNS: u64 = 100_000;

/// What is noted in the agenda.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Entry {
    Wake(u32),
    OriginLeaves,
    OriginReturns,
    CacheFails,
    HostWrites,
    HostHeals,
    Drain,
    CancelDrain,
    CancelDetach,
    /// Somebody else reads from the origin.
    Stranger,
    /// The origin stops by itself.
    Doze,
}

/// How an engine ends before its time.
#[derive(Clone, Debug)]
pub enum Crash {
    /// The power of the machine goes; what each device keeps of what it had not flushed.
    Power { cache: Survive, origin: Survive },
    /// The daemon is killed; which of its operations in flight still end.
    Kill(Survive),
    /// The daemon dies, and the power of the cache alone goes.
    CachePower(Survive),
    /// The cache is lost and replaced by a freshly formatted one, and the power of the machine goes.
    CacheLost { origin: Survive },
}

/// A device operation as a scenario looks at it.
#[derive(Clone, Debug)]
pub struct Noted {
    pub at: Instant,
    pub id: OpId,
    pub device: DeviceId,
    /// None of a flush.
    pub zone: Option<Zone>,
    pub span: Span,
    /// A word to the motor.
    pub word: Option<Spin>,
    /// It changes what the device holds.
    pub writes: bool,
    pub data: Vec<Stamps>,
    /// When it ended, and whether well.
    pub ended: Option<(Instant, bool)>,
}

/// Everything around the engine.
pub struct Scene {
    pub cache: Device,
    pub origin: Device,
    pub host: Host,
    /// Of the plan: what waits for the origin may fail after so long without a sign of life.
    stall_timeout: Duration,
    /// The cache has failed for good since somebody last asked.
    cache_failed: bool,
    /// Where the host draws from.
    host_chance: Chance,
    pub oracle: Oracle,
    pub load: Load,
    /// They answer some of it themselves.
    pub fronts: Fronts,
    pub trace: Trace,
    agenda: Agenda<Entry>,
    entrance: Entrance,
    /// Who waits, and for how long that may be.
    patience: Patience,
    /// Clients hold their requests back: the engine is stopping.
    pub closed: bool,
    /// Replies to requests from outside the load, for whoever asked.
    pub answers: Vec<Reply<Stamps>>,
    /// Device operations, if a scenario notes them.
    pub noted: Option<Vec<Noted>>,
    /// The first promise that was broken.
    pub broken: Option<Broken>,
    /// What devices tell at this moment.
    ended: Vec<Ended>,
    /// A device write or flush ended in this step.
    persisted: bool,
    replied: bool,
    /// Replies so far.
    pub replies: u64,
    /// What was seen of this engine, to be held against what it tells.
    books: Books,
}

/// One engine in its scene.
pub struct Simulation {
    pub plan: Plan,
    pub scene: Scene,
    pub engine: Engine<Stamps>,
    events: Vec<Event<Stamps>>,
    chance: Chance,
    /// When the last reply came, and the turns since time last passed.
    last_reply: Instant,
    turns_at_once: u64,
    pub recoveries: u64,
    /// Everything ran out: nothing will happen any more.
    pub idle: bool,
    /// Error paths that earlier engines have taken.
    faults: FaultPoints,
    /// Faults of the devices before this engine was started.
    faults_before: u64,
    /// Devices do not fail until this engine serves.
    gentle: bool,
    /// What the host has written down: nothing that was flushed is on the cache alone.
    pub is_home: bool,
    was_serving: bool,
    /// Since this engine began to serve, everything has been on the origin once: what was read after a crash is there too.
    was_clean: bool,
    /// In some life so far a FLUSH may have promised the origin, and a recorded mode lasts.
    promised_origin: bool,
    /// Blocks that this engine had found lost when a FLUSH last failed for one.
    losses_told: u64,
    losses_told_twice: bool,
    mode_chance: Chance,
    detach_chance: Chance,
    change_chance: Chance,
}

impl Simulation {
    /// A freshly formatted cache before an origin with first contents, and an engine that recovers for the first time.
    pub fn new(plan: Plan) -> Simulation {
        let cache = formatted(&plan, Contents::blank(plan.config.geometry.data_start(), plan.limits[0].atoms));
        Simulation::with_cache(plan, cache)
    }

    /// The same with a cache that holds `cache`, whoever wrote it.
    pub fn with_cache(plan: Plan, cache: Contents) -> Simulation {
        let geometry = &plan.config.geometry;
        let chance = |stream| Chance::new(plan.seed, stream);
        let blank = first_contents(&plan);
        let mut scene = Scene {
            cache: Device::new(DeviceId::Cache, geometry, cache, plan.limits[0], model(&plan, 0), chance("cache")),
            oracle: Oracle::new(geometry, |atom| blank.stamp(atom)),
            host: Host::default(),
            stall_timeout: plan.config.stall_timeout,
            cache_failed: false,
            host_chance: chance("host"),
            origin: Device::new(DeviceId::Origin, geometry, blank, plan.limits[1], model(&plan, 1), chance("origin")),
            load: Load::new(
                plan.mix,
                superblock(&plan).checksum,
                geometry.block_atoms,
                geometry.volume_atoms,
                plan.requests,
                chance("load"),
            ),
            fronts: Fronts::default(),
            trace: Trace::default(),
            agenda: Agenda::new(Instant(1_000_000_000)),
            entrance: Entrance::default(),
            patience: Patience::new(plan.patience(), Instant::ZERO),
            closed: false,
            answers: Vec::new(),
            noted: None,
            broken: None,
            ended: Vec::new(),
            persisted: false,
            replied: false,
            replies: 0,
            books: Books::default(),
        };
        scene.oracle.flush_bound = plan.flush_bound();
        scene.oracle.parts_beyond = plan.parts_beyond();
        (scene.oracle.promises_origin, scene.oracle.patience) = (plan.promises_origin(), plan.config.stall_timeout);
        scene.oracle.may_be_full = plan.rates[1].no_space > 0;
        scene.oracle.waives_order = plan.config.placement == Placement::Set;
        scene.oracle.clock = scene.agenda.now();
        scene.oracle.may_bypass = plan.passes_log();
        scene.origin.drops_doomed = plan.passes_log() || plan.cache_fails_after > 0;
        if plan.counts_uses {
            scene.origin.count_uses();
        }
        if plan.rates[0].settled_only && plan.rates[0] != (Rates { settled_only: true, ..Rates::default() }) {
            scene.cache.watch_settling(plan.config.format);
        }
        Simulation::resume(plan, scene)
    }

    /// An engine that finds the devices as they are.
    fn resume(plan: Plan, mut scene: Scene) -> Simulation {
        scene.cache.rates = plan.rates[0];
        scene.origin.rates = plan.rates[1];
        let mut simulation = Simulation {
            engine: Engine::new(plan.config.clone(), plan.limits),
            chance: Chance::new(plan.seed, "world"),
            mode_chance: Chance::new(plan.seed, "mode switches"),
            detach_chance: Chance::new(plan.seed, "detaches"),
            change_chance: Chance::new(plan.seed, "changes"),
            plan,
            promised_origin: scene.oracle.promises_origin,
            scene,
            events: Vec::new(),
            last_reply: Instant::ZERO,
            turns_at_once: 0,
            recoveries: 1,
            idle: false,
            faults: FaultPoints::default(),
            faults_before: 0,
            gentle: false,
            is_home: false,
            was_serving: false,
            was_clean: true,
            losses_told: 0,
            losses_told_twice: false,
        };
        simulation.seat_fronts();
        simulation.wake_all();
        simulation.take_turn();
        simulation
    }

    pub fn now(&self) -> Instant {
        self.scene.agenda.now()
    }

    pub fn inspect(&self) -> Snapshot {
        self.engine.inspect(self.now())
    }

    /// Error paths that the engines of this simulation have taken.
    pub fn faults(&self) -> FaultPoints {
        self.faults.union(self.engine.faults())
    }

    pub fn is_serving(&self) -> bool {
        *self.engine.phase() == Phase::Serving
    }

    /// The fronts of this engine.
    fn seat_fronts(&mut self) {
        let chance = Chance::new(self.chance.clone().word(), "fronts");
        self.scene.fronts = Fronts::new(self.plan.config.fronts, self.engine.pages(), chance);
    }

    /// Lets every worker ask again, in its own time.
    pub fn wake_all(&mut self) {
        let now = self.now();
        for worker in 0..self.plan.mix.workers {
            let when = self.scene.load.wake(now);
            self.scene.agenda.note(when, Entry::Wake(worker));
        }
        if self.plan.origin_leaves_every > 0 {
            let after = self.plan.origin_stays(&mut self.chance);
            self.scene.agenda.note(now + after, Entry::OriginLeaves);
        }
        if self.plan.strangers {
            let after = Duration::from_millis(self.chance.spread(10, 600_000));
            self.scene.agenda.note(now + after, Entry::Stranger);
        }
        if self.plan.dozes {
            let after = Duration::from_millis(self.change_chance.spread(10, 600_000));
            self.scene.agenda.note(now + after, Entry::Doze);
        }
        if self.plan.cache_fails_after > 0 {
            let after = Duration::from_millis(self.chance.spread(1, self.plan.cache_fails_after));
            self.scene.agenda.note(now + after, Entry::CacheFails);
        }
    }

    /// One moment. False: nothing is left to happen, or a promise was broken.
    pub fn step(&mut self) -> bool {
        self.scene.persisted = false;
        self.admit();
        // A front that has written rings the bell, and nobody knows when it is heard.
        let rung = self.engine.has_front_writes() && (self.scene.fronts.are_heard() || self.next_time().is_none());
        if self.events.is_empty() && !rung {
            let Some(next) = self.next_time() else {
                self.idle = true;
                self.check_not_stuck();
                return false;
            };
            self.advance(next.max(self.now()));
            let now = self.now();
            if self.events.is_empty()
                && self.scene.entrance.crowd.is_empty()
                && self.engine.deadline().is_none_or(|deadline| deadline > now)
            {
                // A device did something that nobody waits for.
                return true;
            }
        }
        self.take_turn();
        self.scene.broken.is_none()
    }

    /// When the next thing happens, if anything does.
    fn next_time(&self) -> Option<Instant> {
        [self.scene.next_time(), self.engine.deadline()].into_iter().flatten().min()
    }

    /// Lets time pass until `when`, at which point the engine is told what is due: first what the devices have to tell.
    fn advance(&mut self, when: Instant) {
        if when > self.now() {
            self.turns_at_once = 0;
        }
        self.scene.agenda.advance(when);
        self.scene.oracle.clock = when;
        self.scene.advance_devices(when, &mut self.events);
        while let Some(entry) = self.scene.agenda.pop() {
            self.happen(entry);
        }
    }

    fn happen(&mut self, entry: Entry) {
        let (now, scene) = (self.scene.agenda.now(), &mut self.scene);
        match entry {
            Entry::Wake(worker) => scene.entrance.crowd.push_back(worker),
            Entry::OriginLeaves => {
                let back = Duration::from_millis(self.chance.spread(1, 20_000));
                scene.agenda.note(now + back, Entry::OriginReturns);
                if self.plan.origin_is_silent() { scene.origin.go_away() } else { self.origin_goes() }
            }
            Entry::OriginReturns => self.origin_returns(),
            Entry::CacheFails => self.cache_may_fail(),
            Entry::HostWrites => self.host_writes(),
            Entry::HostHeals => scene.host.fails = false,
            Entry::Drain => {
                self.events.push(Event::Control(Control::Drain));
                if self.chance.one_in(2) {
                    scene.agenda.note(now + Duration::from_micros(self.chance.spread(10, 100_000)), Entry::CancelDrain);
                }
            }
            Entry::CancelDrain => self.events.push(Event::Control(Control::CancelDrain)),
            Entry::CancelDetach => self.events.push(Event::Control(Control::CancelDetach)),
            Entry::Stranger => {
                scene.origin.used_by_a_stranger(now);
                if !scene.load.is_done() {
                    let again = Duration::from_millis(self.chance.spread(10, 600_000));
                    scene.agenda.note(now + again, Entry::Stranger);
                }
            }
            Entry::Doze => {
                scene.origin.model.doze(now);
                if !scene.load.is_done() {
                    let again = Duration::from_millis(self.change_chance.spread(10, 600_000));
                    scene.agenda.note(now + again, Entry::Doze);
                }
            }
        }
    }

    fn origin_returns(&mut self) {
        self.fail_what_is_on_its_way();
        let forgotten = self.chance.one_in(2);
        if self.plan.origin_is_silent() {
            self.origin_comes_back_in_silence(forgotten);
        } else {
            self.origin_comes_back(forgotten);
        }
        let (now, scene) = (self.now(), &mut self.scene);
        if self.plan.origin_leaves_every > 0 && !scene.load.is_done() {
            let after = self.plan.origin_stays(&mut self.chance);
            scene.agenda.note(now + after, Entry::OriginLeaves);
        }
    }

    /// What is on its way to an origin that is gone fails before that comes back. (An engine that always has something there would else never see it
    /// again: seed 700395.)
    pub fn fail_what_is_on_its_way(&mut self) {
        let now = self.now();
        self.scene.origin.hurry(now);
        self.scene.advance_devices(now, &mut self.events);
    }

    /// The origin answers nothing any more; the engine hears of it in its next turn.
    pub fn origin_goes(&mut self) {
        self.scene.origin.go_away();
        self.events.push(Event::Device(DeviceId::Origin, Change::Gone));
    }

    /// The origin answers again; nothing may be in flight there. Having `forgotten`, it lost any part of what was not flushed.
    pub fn origin_comes_back(&mut self, forgotten: bool) {
        self.origin_answers(forgotten);
        self.events.push(Event::Device(DeviceId::Origin, Change::Back));
    }

    /// The same, and the engine hears of it by what fails and what does not. Where nothing has failed, nothing is forgotten: nobody could know.
    pub fn origin_comes_back_in_silence(&mut self, forgotten: bool) {
        self.origin_answers(forgotten && self.scene.origin.is_noticed());
    }

    fn origin_answers(&mut self, forgotten: bool) {
        let (now, scene) = (self.now(), &mut self.scene);
        scene.origin.come_back(forgotten);
        if forgotten {
            scene.oracle.origin_forgot();
        }
        scene
            .trace
            .note(now, 3, || format!("the origin is back{}", if forgotten { ", having forgotten what was not flushed" } else { "" }));
    }

    /// The engine hears what has happened and says what it wants.
    pub fn take_turn(&mut self) {
        let now = self.now();
        self.scene.replied = false;
        let mut asked = Asked::default();
        for event in &self.events {
            self.scene.trace.event(now, event);
            if let Event::Arrived(request) = event {
                self.scene.books.ask(&request.command);
            }
            asked.hear(event);
        }
        self.scene.oracle.closing = asked.may_refuse() || self.engine.is_stopping() || self.engine.is_detaching();
        turn(&mut self.engine, &mut self.scene, now, &mut self.events);
        if self.gentle && self.is_serving() {
            self.gentle = false;
            [self.scene.cache.rates, self.scene.origin.rates] = self.plan.rates;
        }
        if self.is_serving() {
            self.scene.oracle.serving_since.get_or_insert(now);
        }
        self.note_mode();
        self.note_detach();
        self.check_promises();
        self.check_told();
        self.judge_zeros();
        self.note_books();
        self.check_patience(asked);
        self.turns_at_once += 1;
        if self.scene.replied || self.scene.oracle.pending() == 0 {
            self.last_reply = now;
            self.turns_at_once = 0;
        }
        if now.since(self.last_reply) > STUCK || self.turns_at_once > STUCK_TURNS {
            self.check_not_stuck();
        }
        if self.scene.load.wants_drain() && self.scene.replied && self.scene.load.mix.drain_every > 0 {
            self.scene.agenda.note(now, Entry::Drain);
        }
    }

    /// The host writes down what the engine has recorded; now and then somebody asks for another mode.
    fn note_mode(&mut self) {
        let view = self.engine.mode();
        if self.is_serving() {
            let is_kept = view.wanted.is_home() && view.recorded.is_home();
            self.is_home = is_kept || (self.is_home && self.was_serving);
            self.was_serving = true;
            self.was_clean |= self.engine.is_clean();
        }
        if self.scene.replied && !self.plan.modes.is_empty() && self.mode_chance.one_in(self.plan.mode_every) {
            let mode = self.mode_chance.pick(&self.plan.modes);
            self.want(mode);
        }
    }

    /// Asks for a mode. That a FLUSH may promise less is written down before the engine hears of it.
    fn want(&mut self, mode: Mode) {
        self.is_home &= mode.is_home();
        self.events.push(Event::Control(Control::Mode(mode)));
    }

    /// The same, at once.
    pub fn switch(&mut self, mode: Mode) {
        self.want(mode);
        self.take_turn();
    }

    fn check_not_stuck(&mut self) {
        if self.scene.oracle.pending() > 0 && self.scene.broken.is_none() {
            let waits: Vec<String> = self.inspect().requests.iter().take(5).map(|(id, _, what)| format!("{id:?} for {what}")).collect();
            self.scene.broken = Some(Broken(format!("stuck: {} requests wait: {}", self.scene.oracle.pending(), waits.join(", "))));
        }
    }

    /// Did a device write or flush end in the last step? (A place worth crashing at.)
    pub fn persisted(&self) -> bool {
        self.scene.persisted
    }

    /// Lets the operations of a held zone (none: flushes) end now.
    pub fn release(&mut self, zone: Option<Zone>, device: DeviceId) {
        let now = self.now();
        self.scene.device(device).release(now, zone);
    }

    /// Is anything on its way that will end by itself?
    pub fn is_busy(&self) -> bool {
        self.scene.next_time().is_some()
    }

    /// Lets `duration` pass.
    pub fn pass(&mut self, duration: Duration) {
        let until = self.now() + duration;
        loop {
            if self.next_time().is_none_or(|next| next > until) {
                break;
            }
            if !self.step() {
                return;
            }
        }
        self.advance(until);
        self.take_turn();
    }

    /// The engine ends here; the devices keep what the crash leaves them. The oracle knows; no new engine is started.
    pub fn crash(&mut self, crash: &Crash) {
        self.check_books();
        let (now, scene, chance) = (self.scene.agenda.now(), &mut self.scene, &mut self.chance);
        match crash {
            Crash::Power { cache, origin } => {
                scene.cache = scene.cache.after_power_cut(now, cache, chance);
                scene.origin = scene.origin.after_power_cut(now, origin, chance);
            }
            Crash::Kill(ended) => {
                scene.cache = scene.cache.after_kill(ended, chance);
                scene.origin = scene.origin.after_kill(ended, chance);
            }
            Crash::CachePower(cache) => {
                scene.cache = scene.cache.after_power_cut(now, cache, chance);
                scene.origin = scene.origin.after_kill(&Survive::Random, chance);
            }
            Crash::CacheLost { origin } => {
                scene.cache = scene.cache.replaced(
                    formatted(&self.plan, Contents::blank(self.plan.config.geometry.data_start(), self.plan.limits[0].atoms)),
                    self.plan.config.format,
                );
                scene.origin = scene.origin.after_power_cut(now, origin, chance);
                // What went home did so in the order of its address.
                scene.oracle.bypass_all();
            }
        }
        scene.host.crash(&mut scene.host_chance);
        scene.trace.note(now, 4, || format!("CRASH: {crash:?}"));
        scene.oracle.crash();
        self.abandon();
    }

    /// Has a device of this engine failed anything since it was started?
    pub fn met_faults(&self) -> bool {
        self.scene.cache.faults + self.scene.origin.faults > self.faults_before
    }

    /// Has the origin shown no life for as long as the plan waits?
    pub fn is_origin_stalled(&self) -> bool {
        self.now().since(self.scene.origin.last_success) >= self.scene.stall_timeout
    }

    /// Both devices work from now on.
    pub fn heal(&mut self) {
        self.plan.rates = Default::default();
        self.plan.origin_leaves_every = 0;
        (self.plan.cache_fails_after, self.plan.detach_every) = (0, 0);
        self.scene.host.fails = false;
        self.scene.cache.heal();
        self.scene.origin.heal();
    }
}

impl Scene {
    fn device(&mut self, id: DeviceId) -> &mut Device {
        match id {
            DeviceId::Cache => &mut self.cache,
            DeviceId::Origin => &mut self.origin,
        }
    }

    /// When the agenda or a device next has something.
    fn next_time(&self) -> Option<Instant> {
        [self.agenda.next_time(), self.cache.next(), self.origin.next()].into_iter().flatten().min()
    }

    /// Lets the devices tell what is due at `now`: the cache, then the origin.
    fn advance_devices(&mut self, now: Instant, events: &mut Vec<Event<Stamps>>) {
        let (failed, ended) = (self.cache.failed_writes, self.cache.ended + self.origin.ended);
        self.cache.advance(now, &mut self.ended);
        let of_cache = self.ended.len();
        self.origin.advance(now, &mut self.ended);
        if self.ended.is_empty() {
            return;
        }
        self.persisted |= self.cache.ended + self.origin.ended > ended;
        let is_refused = |ended: &Ended| matches!(ended, Ended::Done(done) if done.result.as_ref().err().is_some_and(|&error| error != DeviceError::Gone));
        // What goes past the log fails when the origin fails it, and so does a promise of the origin; one that is away is waited for.
        let needs_origin = self.origin.drops_doomed || self.oracle.promises_origin && self.ended.iter().any(is_refused);
        if self.cache.failed_writes > failed {
            // A cache that is gone fails nobody by that: who waits for it waits for what becomes of the volume without it.
            if self.ended[..of_cache].iter().any(is_refused) { self.oracle.device_failed() } else { self.oracle.failed_for_flush() }
        }
        let untaken = self.origin.take_untaken();
        if needs_origin {
            untaken.into_iter().for_each(|span| self.oracle.refused(span));
        }
        self.tell_harm();
        for ended in std::mem::take(&mut self.ended) {
            events.push(match ended {
                Ended::Done(done) => {
                    self.note_end(now, done.id, done.result.is_ok());
                    Event::Completed(done)
                }
                Ended::Late(op) => Event::Late(op),
            });
        }
    }

    fn note_end(&mut self, now: Instant, id: OpId, well: bool) {
        if let Some(noted) = self.noted.iter_mut().flatten().find(|noted| noted.id == id && noted.ended.is_none()) {
            noted.ended = Some((now, well));
        }
    }

    fn tell_harm(&mut self) {
        for harm in self.cache.take_harm().into_iter().chain(self.origin.take_harm()) {
            match harm {
                Harm::Slots(stamps) => {
                    self.oracle.hurt(&stamps);
                    // What cannot be read does not go home.
                    if self.oracle.promises_origin {
                        self.oracle.failed_for_flush();
                    }
                }
                Harm::Unread(span) => self.oracle.unread(span),
            }
        }
    }

    /// One atom of the cache rots.
    pub fn rot(&mut self, atom: u64) {
        self.cache.rot(atom);
        self.tell_harm();
    }
}

impl Noted {
    fn of(at: Instant, op: &Op<Stamps>) -> Noted {
        let (zone, span, writes, data) = match &op.action {
            Action::Read(zone, span) | Action::Allocation(zone, span) => (Some(*zone), *span, false, Vec::new()),
            Action::Write(zone, span, parts) => (Some(*zone), *span, true, parts.to_vec()),
            Action::Zero(zone, span, _) => (Some(*zone), *span, true, vec![Stamps::zero(span.atoms)]),
            Action::Discard(zone, span) => (Some(*zone), *span, true, Vec::new()),
            Action::Flush | Action::Spin(_) => (None, Span::default(), false, Vec::new()),
        };
        let word = if let Action::Spin(word) = op.action { Some(word) } else { None };
        Noted { at, id: op.id, device: op.device, zone, span, word, writes, data, ended: None }
    }
}

impl World<Stamps> for Scene {
    fn start(&mut self, now: Instant, op: Op<Stamps>) {
        self.trace.op(now, &op);
        self.books.start(&op);
        if let Some(noted) = &mut self.noted {
            noted.push(Noted::of(now, &op));
        }
        if op.device == DeviceId::Origin && op.class != Class::Destage {
            match &op.action {
                Action::Write(_, span, parts) => self.oracle.bypass(*span, parts.iter().flat_map(Stamps::stamps)),
                Action::Zero(_, span, _) => self.oracle.bypass(*span, std::iter::repeat(0)),
                Action::Read(..) | Action::Allocation(..) | Action::Discard(..) | Action::Flush | Action::Spin(_) => {}
            }
        }
        self.device(op.device).start(now, op);
    }

    fn reply(&mut self, now: Instant, reply: Reply<Stamps>) {
        self.trace.reply(now, &reply);
        self.replied = true;
        self.replies += 1;
        self.oracle.alive = self.origin.last_success;
        let told = match &reply.result {
            Ok(Outcome::Status { tiers, .. }) => self.oracle.check_tiers(reply.id, tiers, |atom| self.origin.visible().stamp(atom)),
            Ok(Outcome::Data(_) | Outcome::Done) | Err(_) => Ok(()),
        };
        self.books.hear(&reply);
        let in_time = self.patience.answer(reply.id, now);
        if let Err(broken) = told.and_then(|()| self.oracle.reply(&reply)).and(in_time) {
            self.broken.get_or_insert(broken);
        }
        match self.load.replied(reply.id) {
            Some(worker) => {
                let wake = self.load.wake(now);
                self.agenda.note(wake, Entry::Wake(worker));
            }
            None => self.answers.push(reply),
        }
    }

    fn fence(&mut self, now: Instant, at_risk: &mut dyn Iterator<Item = Span>) {
        let at_risk: Vec<Span> = at_risk.collect();
        self.trace.note(now, 32, || format!("the host is to note that the cache misses writes; at risk: {at_risk:?}"));
        if let Some(after) = self.host.write(at_risk, &mut self.host_chance) {
            self.agenda.note(now + after, Entry::HostWrites);
        }
    }
}

/// How the cache (0) or the origin (1) of a plan works.
fn model(plan: &Plan, device: usize) -> Model {
    match &plan.drives[device] {
        Some(spec) => spec.build(plan.seed),
        None => Model::Plain(Plain::new(plan.speeds[device], Chance::new(plan.seed, ["cache model", "origin model"][device]))),
    }
}

/// The cache as `tidegate create` leaves it, on an SSD that held `contents` before.
pub fn formatted(plan: &Plan, mut contents: Contents) -> Contents {
    for step in create_steps(&superblock(plan)) {
        match step {
            Step::Write(_, span, bytes) => contents.write(span.start, &Stamps::from_bytes(&bytes)),
            Step::Flush => {}
        }
    }
    contents
}

/// The superblock of a plan's fresh cache. Some are of version 1: their clients write what a CRC alone tells apart.
pub fn superblock(plan: &Plan) -> Superblock {
    let checksum = if plan.seed.is_multiple_of(8) { Checksum::Crc } else { Checksum::CrcAndSum };
    Superblock { checksum, ..Superblock::new(plan.config.format, plan.config.geometry, [7; 16], plan.config.origin) }
}

/// What the origin holds at first: stamps that tell the atom, and zeros in some stretches.
fn first_contents(plan: &Plan) -> Contents {
    const STRETCH: u64 = 64;
    let mut chance = Chance::new(plan.seed, "first contents");
    let mut contents = Contents::blank(0, plan.limits[1].atoms);
    if plan.blank_percent == 100 {
        return contents;
    }
    for start in (0..plan.config.geometry.volume_atoms).step_by(STRETCH as usize) {
        if chance.percent(plan.blank_percent) {
            continue;
        }
        let atoms = STRETCH.min(plan.config.geometry.volume_atoms - start);
        let stamps: Vec<u64> = (start..start + atoms).map(|atom| stamp(0, atom)).collect();
        contents.write(start, &Stamps::from_stamps(&stamps));
    }
    contents
}

/// All stamps of a reply's payloads, in order.
pub fn stamps_of(parts: &[Stamps]) -> Vec<u64> {
    let mut stamps = Vec::with_capacity(parts.iter().map(|part| part.atoms() as usize).sum());
    parts.iter().for_each(|part| stamps.extend(part.stamps()));
    stamps
}

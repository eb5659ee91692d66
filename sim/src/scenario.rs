//! Scenarios: one situation, told step by step. The oracle listens to every reply; a broken promise panics with the whole story.
//!
//! ```
//! # use tidegate_sim::{scenario::Scenario, back::volatile::Survive};
//! let mut scenario = Scenario::new();
//! let old = scenario.write(3);
//! scenario.flush();
//! scenario.write(3);
//! scenario.power_cut(Survive::None);
//! scenario.expect(3, &old);
//! ```
//!
//! # What the swarm draws besides (`plan.rs`)
//!
//! Cache: reads that fail (0–10 %, half of them until the atom is written), writes that fail (0–10 %, any of their atoms landing), flushes
//! that fail (0–10 %), operations stuck for 1–60 s, torn and reordered writes at every power cut; in runs without crashes misdirected writes
//! (0–10 %) and rot; its end in service, gone or worn out, in a tenth of the runs. Origin: the same errors, no space (2 % of the writes, in a
//! quarter of the runs), away for up to 20 s and back without what was not flushed, 1 to 1,000 times slower; a patience with it (`stall_timeout`)
//! of 0.1 s to a minute; told to stand still in a quarter of the runs, and then deaf to up to 90 % of the words to its motor, late to wake, or woken
//! by somebody else. The host: half of what it was writing at a crash is durable. The scrubber runs in a third.

use crate::back::fault::{Fault, Rates};
use crate::back::model::Speed;
use crate::back::volatile::Survive;
use crate::chance::Chance;
use crate::crash_points::Points;
use crate::front::load::Mix;
use crate::plan::{Kind, Plan};
use crate::stamp::{Stamps, stamp};
use crate::world::{Crash, Noted, Simulation, stamps_of};
use tidegate_engine::block::Span;
use tidegate_engine::cache::format::{FormatId, Geometry};
use tidegate_engine::config::{CommitHome, ReadAround};
use tidegate_engine::op::{DeviceId, Limits, Zone};
use tidegate_engine::probe::{Damage, Health, Phase, Snapshot};
use tidegate_engine::request::{Command, Outcome, RequestError, RequestId, Tier};
use tidegate_engine::time::Duration;
use tidegate_engine::{Config, Control, Mode};

/// Turns that anything waited for may take.
const PATIENCE: u64 = 200_000;
/// Time that a drain may take of which something cannot be read: it is tried for a minute.
const DRAIN_TIME: Duration = Duration::from_secs(600);

/// What a request was answered with: stamps of a read, nothing of the others.
pub type Answer = Result<Vec<u64>, RequestError>;

/// A small volume, its cache and one client.
pub struct Scenario {
    pub simulation: Simulation,
    /// Where a device write or flush ends, the story is also told to its end by a power cut.
    points: Option<Points>,
}

/// 64 blocks of 4 KiB, 16 sets of 8 slots, 64 journal pages; nothing happens by itself (no own flush, no destaging before the cache is
/// nearly full), devices are quick and do not fail.
pub fn plan() -> Plan {
    let geometry = Geometry { block_atoms: 8, set_slots: 8, sets: 16, journal_pages: 64, volume_atoms: 512, range_entries: 252 };
    plan_for(geometry)
}

/// The same for other sizes.
pub fn plan_for(geometry: Geometry) -> Plan {
    let mut config = Config::new(geometry, FormatId([0x5a; 16]));
    config.flush_age = Duration::from_secs(3_600);
    config.max_dirty_age = Duration::from_secs(3_600);
    config.free_floor = 3;
    config.reserve = 2;
    config.fence_samples = 0;
    config.dirty_high = geometry.sets;
    config.split = None;
    config.commit_home = CommitHome::Never;
    config.read_around = ReadAround::Never;
    config.read_ahead = 0;
    let limits = |atoms| Limits { atoms, depth: 32, op_atoms: 2_048, discards: true };
    let mix = Mix { workers: 0, ..crate::front::load::MIXES[0] };
    Plan {
        seed: 1,
        kind: Kind::Crashes,
        limits: [limits(geometry.cache_atoms()), limits(geometry.volume_atoms)],
        config,
        speeds: [Speed { jitter: 0, ..Speed::SSD }, Speed { jitter: 0, ..Speed::DISK }],
        drives: [None, None],
        rates: [Rates::default(); 2],
        mix,
        requests: 0,
        crashes: 0,
        origin_leaves_every: 0,
        cache_fails_after: 0,
        detach_every: 0,
        bounds_flushes: false,
        changes: false,
        grows: false,
        strangers: false,
        counts_uses: false,
        dozes: false,
        blank_percent: 0,
        modes: Vec::new(),
        mode_every: 0,
    }
}

impl Default for Scenario {
    fn default() -> Self {
        Scenario::new()
    }
}

impl Scenario {
    /// The plan above, serving.
    pub fn new() -> Scenario {
        Scenario::with(|_| {})
    }

    /// The plan above with changes, serving.
    pub fn with(change: impl FnOnce(&mut Plan)) -> Scenario {
        let mut plan = plan();
        change(&mut plan);
        Scenario::of(plan)
    }

    /// A plan, serving.
    pub fn of(plan: Plan) -> Scenario {
        let mut scenario = Scenario::begin(Simulation::new(plan));
        scenario.until_serving();
        scenario
    }

    /// A simulation whose engine has only begun to recover.
    pub fn begin(mut simulation: Simulation) -> Scenario {
        simulation.scene.trace.lines = Some(Vec::new());
        simulation.scene.noted = Some(Vec::new());
        Scenario { simulation, points: None }
    }

    pub fn geometry(&self) -> Geometry {
        self.simulation.plan.config.geometry
    }

    pub fn snapshot(&self) -> Snapshot {
        self.simulation.inspect()
    }

    /// Where a block lies on the volume.
    pub fn block(&self, block: u64) -> Span {
        self.geometry().block_span(tidegate_engine::block::Block(block))
    }

    /// Blocks `first..first + blocks`.
    pub fn blocks(&self, first: u64, blocks: u64) -> Span {
        let (start, last) = (self.block(first), self.block(first + blocks - 1));
        Span::new(start.start, last.end() - start.start)
    }

    // --- requests ---

    /// Sends a request without waiting.
    pub fn send(&mut self, span: Span, command: Command<Stamps>) -> RequestId {
        let id = self.simulation.ask(span, command);
        self.check();
        id
    }

    /// Sends several that come in one turn.
    pub fn send_at_once(&mut self, asked: impl IntoIterator<Item = (Span, Command<Stamps>)>) -> Vec<RequestId> {
        let ids = self.simulation.ask_at_once(asked);
        self.check();
        ids
    }

    /// The same, behind what devices have to tell at this moment.
    pub fn send_behind_what_ends(&mut self, asked: impl IntoIterator<Item = (Span, Command<Stamps>)>) -> Vec<RequestId> {
        let ids = self.simulation.ask_behind_what_ends(asked);
        self.check();
        ids
    }

    pub fn send_write(&mut self, span: Span, fua: bool) -> (RequestId, Stamps) {
        let data = self.simulation.scene.load.fresh(span);
        (self.send(span, Command::Write { data: data.clone(), fua }), data)
    }

    pub fn send_read(&mut self, span: Span) -> RequestId {
        self.send(span, Command::Read)
    }

    pub fn send_flush(&mut self) -> RequestId {
        self.send(Span::default(), Command::Flush)
    }

    /// Has this request been answered?
    pub fn is_answered(&self, id: RequestId) -> bool {
        self.simulation.scene.answers.iter().any(|reply| reply.id == id)
    }

    /// Waits for the answer; it must come. What it reads as.
    pub fn wait(&mut self, id: RequestId) -> Answer {
        match self.outcome(id)? {
            Outcome::Done | Outcome::Status { .. } => Ok(Vec::new()),
            Outcome::Data(parts) => Ok(stamps_of(&parts)),
        }
    }

    /// Waits for the answer; it must come.
    pub fn outcome(&mut self, id: RequestId) -> Result<Outcome<Stamps>, RequestError> {
        self.until("answer", |simulation| simulation.scene.answers.iter().any(|reply| reply.id == id));
        let answers = &mut self.simulation.scene.answers;
        let place = answers.iter().position(|reply| reply.id == id).expect("waited for it");
        answers.swap_remove(place).result
    }

    /// In which tiers a span is: atoms and tier, in order.
    pub fn tiers(&mut self, span: Span) -> Vec<(u64, Tier)> {
        let id = self.send(span, Command::Status { tiers: true, one: false });
        match self.outcome(id) {
            Ok(Outcome::Status { tiers, .. }) => tiers.iter().map(|stretch| (stretch.atoms, stretch.tier)).collect(),
            other => panic!("a status was answered with {other:?}"),
        }
    }

    /// Writes atoms; they must be acknowledged.
    pub fn write_span(&mut self, span: Span) -> Stamps {
        let (id, data) = self.send_write(span, false);
        self.wait(id).expect("a write");
        data
    }

    /// Writes a whole block; it must be acknowledged.
    pub fn write(&mut self, block: u64) -> Stamps {
        self.write_span(self.block(block))
    }

    /// Writes those very bytes to a block.
    pub fn rewrite(&mut self, block: u64, data: &Stamps) {
        let id = self.send(self.block(block), Command::Write { data: data.clone(), fua: false });
        self.wait(id).expect("a write");
    }

    /// A front writes atoms by itself; the engine hears of it in its next turn. None: the front may not.
    pub fn write_at_front(&mut self, span: Span) -> Option<Stamps> {
        let data = self.simulation.scene.load.fresh(span);
        let is_written = self.simulation.ask_front(span, Command::Write { data: data.clone(), fua: false });
        self.check();
        is_written.then_some(data)
    }

    /// Writes a whole block with FUA.
    pub fn write_fua(&mut self, block: u64) -> Stamps {
        let (id, data) = self.send_write(self.block(block), true);
        self.wait(id).expect("a write with FUA");
        data
    }

    pub fn flush(&mut self) {
        self.try_flush().expect("a flush");
    }

    pub fn try_flush(&mut self) -> Result<(), RequestError> {
        let id = self.send_flush();
        self.wait(id).map(drop)
    }

    pub fn trim(&mut self, span: Span) {
        let id = self.send(span, Command::Trim { fua: false });
        self.wait(id).expect("a trim");
    }

    pub fn zero(&mut self, span: Span) {
        let id = self.send(span, Command::Zero { no_hole: true, fua: false, fast: false });
        self.wait(id).expect("zeroes");
    }

    pub fn read(&mut self, span: Span) -> Answer {
        let id = self.send_read(span);
        self.wait(id)
    }

    // --- expectations ---

    /// The block must read as `data` (its first atoms, in a short last block).
    pub fn expect(&mut self, block: u64, data: &Stamps) {
        let span = self.block(block);
        let read = self.read(span).unwrap_or_else(|error| panic!("block {block} cannot be read: {error:?}"));
        assert_eq!(read, data.stamps().take(span.atoms as usize).collect::<Vec<_>>(), "block {block}");
    }

    /// What the origin held at first.
    pub fn first(&self, block: u64) -> Stamps {
        let span = self.block(block);
        Stamps::from_stamps(&(span.start..span.end()).map(|atom| stamp(0, atom)).collect::<Vec<_>>())
    }

    /// What the origin holds now of a block: visible, durable.
    pub fn on_origin(&self, block: u64) -> [Vec<u64>; 2] {
        let (span, origin) = (self.block(block), &self.simulation.scene.origin);
        [origin.visible(), origin.durable()].map(|contents| stamps_of(&contents.read(span)))
    }

    /// Where on the cache an atom with this stamp can be seen now; all places.
    pub fn places(&self, stamp: u64) -> Vec<u64> {
        let zone = self.geometry().zone(Zone::Data);
        let cache = self.simulation.scene.cache.visible();
        (zone.start..zone.end()).filter(|&atom| cache.stamp(atom) == stamp).collect()
    }

    /// Device operations so far, in order of their start.
    pub fn noted(&self) -> &[Noted] {
        self.simulation.scene.noted.as_deref().expect("a scenario notes")
    }

    /// Forgets the operations noted so far.
    pub fn forget_noted(&mut self) {
        self.simulation.scene.noted = Some(Vec::new());
    }

    // --- time ---

    fn until(&mut self, what: &str, reached: impl Fn(&Simulation) -> bool) {
        for _ in 0..PATIENCE {
            if reached(&self.simulation) {
                return;
            }
            let more = self.simulation.step();
            self.check();
            assert!(more || reached(&self.simulation), "everything rests, and no {what}; waiting: {:?}", self.snapshot().requests);
        }
        panic!("no {what}; waiting: {:?}", self.snapshot().requests);
    }

    fn check(&mut self) {
        if let Some(broken) = self.simulation.scene.broken.take() {
            panic!("a promise was broken: {}", broken.0);
        }
        if let Some(points) = self.points.as_mut().filter(|_| self.simulation.persisted())
            && let Err(broken) = points.try_all(&self.simulation)
        {
            panic!("a promise was broken: {}", broken.0);
        }
    }

    /// From now on each end of a device write or flush is tried as the moment of a power cut, with any part of what was not flushed left on
    /// either device; the oracle judges what a recovery makes of it, and the story goes on.
    pub fn crash_at_every_step(&mut self) {
        self.points = Some(Points::new(self.simulation.plan.seed));
    }

    /// Recoveries from those power cuts so far.
    pub fn crashes_tried(&self) -> u64 {
        self.points.as_ref().map_or(0, |points| points.recoveries)
    }

    /// Lets every operation that is not held end; time passes only as far as that takes.
    pub fn run_until_quiet(&mut self) {
        for _ in 0..PATIENCE {
            if !self.simulation.is_busy() {
                return;
            }
            self.simulation.step();
            self.check();
        }
        panic!("it does not become quiet");
    }

    /// Lets time pass.
    pub fn advance(&mut self, duration: Duration) {
        self.simulation.pass(duration);
        self.check();
    }

    /// Destages everything, and waits for it.
    pub fn drain(&mut self) {
        self.simulation.control(Control::Drain);
        self.until("end of the drain", |simulation| {
            let snapshot = simulation.inspect();
            snapshot.dirty_slots == 0 && snapshot.drain.is_none_or(|drain| drain.blocks_left == 0)
        });
        self.run_until_quiet();
    }

    /// The same where not everything can be read: the blocks that the drain left, held against device and oracle.
    pub fn drain_what_can_be(&mut self) -> Vec<u64> {
        self.simulation.control(Control::Drain);
        let late = self.simulation.now() + DRAIN_TIME;
        self.until("end of the drain", |simulation| simulation.engine.drain().is_none() || simulation.now() > late);
        assert!(self.simulation.engine.drain().is_none(), "the drain goes on and on");
        self.run_until_quiet();
        self.simulation.left_behind().unwrap_or_else(|broken| panic!("{}", broken.0))
    }

    /// Asks for a mode, and waits until it is in force and recorded.
    pub fn switch(&mut self, mode: Mode) {
        self.simulation.switch(mode);
        self.until("switch", |simulation| {
            let view = simulation.engine.mode();
            view.recorded == mode && !view.is_switching
        });
    }

    /// The SSD is lost with everything on it, and the power goes; a blank one is formatted in its place.
    pub fn lose_cache(&mut self, origin: Survive) {
        self.crash(Crash::CacheLost { origin });
        self.recover();
    }

    /// Takes the cache from its origin.
    pub fn detach(&mut self) {
        self.simulation.control(Control::Detach);
        self.until("stop", |simulation| *simulation.engine.phase() == Phase::Stopped);
        self.run_until_quiet();
        self.simulation.scene.oracle.stopped();
    }

    /// Tells the engine to stop.
    pub fn begin_stop(&mut self) {
        self.simulation.control(Control::Stop);
    }

    /// Stops the engine in order.
    pub fn stop(&mut self) {
        self.begin_stop();
        self.until_stopped();
    }

    pub fn until_stopped(&mut self) {
        self.until("stop", |simulation| *simulation.engine.phase() == Phase::Stopped);
        self.run_until_quiet();
        self.simulation.scene.oracle.stopped();
    }

    // --- faults ---

    /// The next operation in this zone meets `fault`.
    pub fn fail_next(&mut self, zone: Zone, fault: Fault) {
        self.device(zone).fail_next(Some(zone), fault);
    }

    /// The next flush of a device fails.
    pub fn fail_next_flush(&mut self, device: DeviceId) {
        match device {
            DeviceId::Cache => self.simulation.scene.cache.fail_next(None, Fault::Error),
            DeviceId::Origin => self.simulation.scene.origin.fail_next(None, Fault::Error),
        }
    }

    /// Operations of this zone that start from now on do not end before [`Scenario::release`].
    pub fn hold(&mut self, zone: Zone) {
        self.device(zone).hold(Some(zone));
    }

    pub fn release(&mut self, zone: Zone) {
        self.simulation.release(Some(zone), if zone == Zone::Origin { DeviceId::Origin } else { DeviceId::Cache });
    }

    pub fn hold_flush(&mut self, device: DeviceId) {
        match device {
            DeviceId::Cache => self.simulation.scene.cache.hold(None),
            DeviceId::Origin => self.simulation.scene.origin.hold(None),
        }
    }

    pub fn release_flush(&mut self, device: DeviceId) {
        self.simulation.release(None, device);
    }

    fn device(&mut self, zone: Zone) -> &mut crate::back::device::Device {
        if zone == Zone::Origin { &mut self.simulation.scene.origin } else { &mut self.simulation.scene.cache }
    }

    /// One atom of the cache rots.
    pub fn rot(&mut self, atom: u64) {
        self.simulation.scene.rot(atom);
    }

    /// The origin goes away, and what is in flight there fails.
    pub fn origin_goes(&mut self) {
        self.simulation.origin_goes();
        self.simulation.take_turn();
        self.run_until_quiet();
    }

    /// The origin comes back; having `forgotten`, without what was not flushed (each write by chance).
    pub fn origin_comes_back(&mut self, forgotten: bool) {
        self.simulation.origin_comes_back(forgotten);
        self.simulation.take_turn();
        self.check();
    }

    /// The cache is gone, and answers nothing before the next start. The engine has not heard of it.
    pub fn cache_goes(&mut self) {
        self.simulation.cache_goes();
    }

    /// The cache takes no writes any more, and gives what it holds.
    pub fn cache_wears_out(&mut self) {
        self.simulation.cache_wears_out();
    }

    /// The host does not end what it is told to write down, before [`Scenario::host_writes`]; or it fails to.
    pub fn hold_host(&mut self, fails: bool) {
        (self.simulation.scene.host.held, self.simulation.scene.host.fails) = (true, fails);
    }

    /// What the host was to write down is durable now, or has failed.
    pub fn host_writes(&mut self) {
        self.simulation.host_writes();
        self.simulation.take_turn();
        self.check();
    }

    /// Writes a block, so that the engine learns that the cache has failed; returns when the origin has it.
    pub fn until_degraded_by_writing(&mut self, block: u64) -> Stamps {
        let data = self.write(block);
        self.until_degraded();
        data
    }

    /// Waits until the volume goes on without its cache.
    pub fn until_degraded(&mut self) {
        self.until("service without the cache", |simulation| simulation.engine.health() == Health::Degraded);
    }

    // --- crashes ---

    /// The engine ends; no other one is started yet.
    pub fn crash(&mut self, crash: Crash) {
        self.simulation.crash(&crash);
    }

    /// The power goes: of what was not flushed the cache keeps `cache`, the origin nothing. Then a new engine recovers.
    pub fn power_cut(&mut self, cache: Survive) {
        self.crash(Crash::Power { cache, origin: Survive::None });
        self.recover();
    }

    /// The daemon is killed, none of its operations in flight ends. Then a new engine recovers.
    pub fn kill(&mut self) {
        self.crash(Crash::Kill(Survive::None));
        self.recover();
    }

    /// A new engine, which must come to serve.
    pub fn recover(&mut self) {
        self.simulation.restart();
        self.until_serving();
    }

    /// A new engine that has only begun to recover.
    pub fn begin_recovery(&mut self) {
        self.simulation.restart();
    }

    pub fn until_serving(&mut self) {
        self.until("service", |simulation| {
            let phase = simulation.engine.phase();
            assert!(*phase != Phase::Refused, "recovery refused: {:?}", simulation.engine.damage());
            *phase == Phase::Serving
        });
    }

    /// A new engine, which must refuse to serve; returns what it found, all of it.
    pub fn recover_expect_refusal(&mut self) -> Vec<Damage> {
        let before = self.noted().len();
        self.simulation.restart();
        self.until("refusal", |simulation| {
            assert!(*simulation.engine.phase() != Phase::Serving, "it serves");
            *simulation.engine.phase() == Phase::Refused
        });
        assert!(self.noted()[before..].iter().all(|op| !op.writes), "an engine that refuses writes nothing");
        let damage = self.simulation.engine.damage().to_vec();
        assert!(damage.iter().any(|damage| damage.fatal), "a refusal names fatal damage: {damage:?}");
        damage
    }

    /// One step of time.
    pub fn step(&mut self) -> bool {
        let more = self.simulation.step();
        self.check();
        more
    }

    /// Writes block `block` and flushes, again and again, until the engine has made `checkpoints` more checkpoints and is quiet.
    pub fn checkpoints(&mut self, checkpoints: u64, block: u64) -> Stamps {
        let before = self.snapshot().counters.checkpoints;
        let mut last = self.write(block);
        for _ in 0..PATIENCE {
            if self.snapshot().counters.checkpoints >= before + checkpoints {
                self.run_until_quiet();
                return last;
            }
            last = self.write(block);
            self.flush();
        }
        panic!("no checkpoint comes");
    }

    /// A stream of chance for this scenario.
    pub fn chance(&self, stream: &str) -> Chance {
        Chance::new(self.simulation.plan.seed, stream)
    }
}

impl Drop for Scenario {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for line in self.simulation.scene.trace.lines.iter().flatten() {
                eprintln!("{line}");
            }
        }
    }
}

//! One seed's run, from the first format to the last comparison: the load runs, the engine is crashed, killed and stopped, and at the
//! end everything is drained, and the origin alone must hold what the oracle knows.

use crate::back::volatile::Survive;
use crate::chance::Chance;
use crate::front::oracle::Broken;
use crate::plan::{Kind, Plan};
use crate::scars::Scars;
use crate::stamp::Stamps;
use crate::world::{Crash, Simulation};
use tidegate_engine::Control;
use tidegate_engine::block::{Block, Span};
use tidegate_engine::fault_point::{FaultPoint, FaultPoints};
use tidegate_engine::probe::{Health, Phase, Snapshot};
use tidegate_engine::request::{Command, Outcome};
use tidegate_engine::time::{Duration, Instant};

/// Turns that draining and stopping may take at the end without a reply or a block that has gone home, and FLUSHes that may fail there with
/// an excuse; and if less than this time has passed by then, so many more. (An origin may be slow, and the scrubber quick.)
const LAST_TURNS: u64 = 400_000;
const LAST_TIME: Duration = Duration::from_secs(2 * 3_600);
const LAST_TURNS_MAX: u64 = 8_000_000;

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Requests that clients made.
    pub requests: u64,
    pub recoveries: u64,
    pub trace: u64,
    /// Error paths that its engines have taken.
    pub faults: FaultPoints,
    pub broken: Option<Broken>,
}

/// Who hears the story while it happens, some lines at a time.
pub type Reader<'a> = Option<&'a mut dyn FnMut(&[String])>;

type Steps = Result<(), Broken>;

/// A run in progress.
pub struct Run<'a> {
    pub simulation: Simulation,
    chance: Chance,
    /// Of its own: the runs whose cache is never lost stay what they were.
    loss: Chance,
    /// Requests left at which the next crashes come, in falling order.
    crash_at: Vec<u64>,
    /// The metadata that this run damages; what of it cannot be read any more, of a stream of its own.
    scars: Scars,
    unread: Chance,
    /// Who reads the story.
    reader: Reader<'a>,
}

/// Runs a plan to its end.
pub fn run(plan: Plan, reader: Reader) -> Ended {
    let mut run = Run::new(plan, reader);
    let broken = run.whole().err();
    run.tell();
    let simulation = &run.simulation;
    Ended {
        requests: simulation.plan.requests - simulation.scene.load.left(),
        recoveries: simulation.recoveries,
        trace: simulation.scene.trace.hash(),
        faults: simulation.faults(),
        broken,
    }
}

impl<'a> Run<'a> {
    pub fn new(plan: Plan, reader: Reader<'a>) -> Self {
        let mut chance = Chance::new(plan.seed, "run");
        let mut crash_at: Vec<u64> = (0..plan.crashes).map(|_| chance.below(plan.requests.max(1))).collect();
        crash_at.sort_unstable();
        let scars = Scars::new(&mut chance);
        let mut simulation = Simulation::new(plan);
        simulation.scene.trace.lines = reader.is_some().then(Vec::new);
        let loss = Chance::new(simulation.plan.seed, "loss");
        let unread = Chance::new(simulation.plan.seed, "unread metadata");
        Run { simulation, chance, loss, crash_at, scars, unread, reader }
    }

    fn tell(&mut self) {
        if let (Some(lines), Some(reader)) = (&mut self.simulation.scene.trace.lines, &mut self.reader) {
            reader(lines);
            lines.clear();
        }
    }

    fn whole(&mut self) -> Steps {
        while self.until_crash()? {
            match self.simulation.plan.kind {
                Kind::Crashes => self.crash()?,
                Kind::Damage => self.stop_and_start()?,
            }
        }
        self.finish()
    }

    /// One moment; false when nothing more will happen.
    fn step(&mut self) -> Result<bool, Broken> {
        let more = self.simulation.step();
        if self.reader.is_some() {
            self.tell();
        }
        let was_hindered = self.simulation.met_faults() || self.simulation.plan.origin_leaves_every > 0;
        // Without its cache, a stop waits no longer for an origin than anybody does.
        let was_alone = self.simulation.engine.health() == Health::Degraded && self.simulation.is_origin_stalled();
        if *self.simulation.engine.phase() == Phase::Stopped && !self.simulation.scene.closed {
            // It has ended by itself: somebody has detached its cache.
            self.simulation.scene.broken.take().map_or(Ok(()), Err)?;
            self.start_again()?;
            return Ok(true);
        }
        if *self.simulation.engine.phase() == Phase::Refused && self.simulation.is_detached() {
            self.simulation.scene.broken = None;
            self.simulation.crash(&Crash::Kill(Survive::All));
            self.simulation.attach()?;
            self.simulation.restart();
            return Ok(true);
        }
        // Nor can it stop where the host cannot be told that it has failed.
        let was_alone = was_alone || self.simulation.engine.health() == Health::Unfenced;
        if *self.simulation.engine.phase() == Phase::Refused && (was_hindered || was_alone) {
            explain_refusal(self.simulation.engine.faults())?;
            // An operator tries again, when the devices have come to their senses.
            self.simulation.scene.broken = None;
            self.simulation.crash(&Crash::Kill(Survive::All));
            self.simulation.restart_without_faults();
            return Ok(true);
        }
        if *self.simulation.engine.phase() == Phase::Refused {
            let damage: Vec<String> = self.simulation.engine.damage().iter().map(|damage| damage.what.clone()).collect();
            return Err(Broken(format!("recovery refused: {}", damage.join("; "))));
        }
        if let Some(broken) = self.simulation.scene.broken.take() {
            return Err(broken);
        }
        Ok(more)
    }

    /// Runs to the next crash; false when the load has come to its end.
    fn until_crash(&mut self) -> Result<bool, Broken> {
        loop {
            if self.simulation.scene.load.is_done() {
                return Ok(false);
            }
            if self.crash_at.last().is_some_and(|&at| self.simulation.scene.load.left() <= at) {
                self.crash_at.pop();
                for _ in 0..self.chance.below(40) {
                    self.step()?;
                }
                return Ok(true);
            }
            if !self.step()? {
                return Ok(false);
            }
            if self.simulation.take_cache_failure() && self.chance.one_in(2) {
                // While the host is being told, or just after.
                for _ in 0..self.chance.spread(1, 1_000) {
                    self.step()?;
                }
                return Ok(true);
            }
        }
    }

    // --- crashes ---

    fn crash(&mut self) -> Steps {
        loop {
            let crash = self.draw_crash();
            let crash = if self.simulation.may_lose_cache() { self.draw_loss(crash)? } else { crash };
            self.simulation.crash(&crash);
            if self.chance.one_in(5) {
                self.scar();
            }
            self.simulation.restart();
            self.simulation.scene.load.sweep(self.chance.pick(&[0, 0, 30, 100, 100]));
            if !self.chance.one_in(4) {
                return Ok(());
            }
            // Again, while it recovers or just after.
            for _ in 0..self.chance.spread(1, 80) {
                self.step()?;
            }
        }
    }

    /// The origin alone must hold everything that was flushed. Now and then it is all that is left.
    fn draw_loss(&mut self, crash: Crash) -> Result<Crash, Broken> {
        let loss = &mut self.loss;
        let origin = [Survive::None, Survive::None, Survive::Random, Survive::Torn][loss.below(4) as usize].clone();
        let simulation = &self.simulation;
        let left = simulation.scene.origin.after_power_cut(simulation.now(), &origin, loss);
        simulation.scene.oracle.judge_alone(&simulation.given_up(), |atom| left.visible().stamp(atom))?;
        Ok(if loss.one_in(3) { Crash::CacheLost { origin } } else { crash })
    }

    fn draw_crash(&mut self) -> Crash {
        let mut survive = || self.chance.pick(&[0, 1, 2, 2, 3, 3]);
        let (cache, origin) = (survive(), survive());
        let of = |number: u32| [Survive::None, Survive::All, Survive::Random, Survive::Torn][number as usize].clone();
        match self.chance.below(10) {
            0..6 => Crash::Power { cache: of(cache), origin: of(origin) },
            6..9 => Crash::Kill(of(cache)),
            _ => Crash::CachePower(of(cache)),
        }
    }

    /// Damages some metadata that there is twice, or a place of the ring that nothing needs.
    fn scar(&mut self) {
        let geometry = self.simulation.plan.config.geometry;
        let (now, scene) = (self.simulation.now(), &mut self.simulation.scene);
        let twice = self.scars.choose(&geometry, &scene.cache, &mut self.chance);
        if let Some(atom) = twice {
            let rots = self.unread.one_in(2);
            scene
                .trace
                .note(now, 6, || format!("atom {atom} of the cache's metadata {}", if rots { "rots" } else { "cannot be read any more" }));
            if rots { scene.rot(atom) } else { scene.cache.spoil(atom) }
        }
        if let Some(atom) = Scars::choose_in_ring(&geometry, &scene.cache, &mut self.unread) {
            scene.trace.note(now, 12, || format!("atom {atom} of the journal, which nothing needs, cannot be read any more"));
            scene.cache.spoil(atom);
        }
    }

    // --- stops ---

    /// Stops the engine in order, with requests in flight.
    fn stop(&mut self) -> Steps {
        loop {
            let recoveries = self.simulation.recoveries;
            self.simulation.scene.closed = true;
            self.simulation.control(Control::Stop);
            let has_stopped = |simulation: &Simulation| *simulation.engine.phase() == Phase::Stopped;
            self.until("stop", |simulation| has_stopped(simulation) || simulation.recoveries > recoveries)?;
            if self.simulation.recoveries == recoveries {
                break;
            }
            // Both devices failed it: somebody has started it again.
            self.until("serve", Simulation::is_serving)?;
        }
        self.end_stop()
    }

    /// What the engine still has under way ends.
    fn end_stop(&mut self) -> Steps {
        self.simulation.scene.closed = true;
        self.until("let the last operations end", |simulation| {
            simulation.scene.cache.in_flight() == 0 && simulation.scene.origin.in_flight() == 0
        })?;
        self.simulation.scene.oracle.stopped();
        self.simulation.check_books();
        self.simulation.scene.broken.take().map_or(Ok(()), Err)
    }

    fn stop_and_start(&mut self) -> Steps {
        self.stop()?;
        self.start_stopped()
    }

    /// The engine has stopped unasked.
    fn start_again(&mut self) -> Steps {
        self.end_stop()?;
        self.start_stopped()
    }

    fn start_stopped(&mut self) -> Steps {
        self.simulation.scene.oracle.crash();
        self.simulation.scene.origin.put_down();
        self.simulation.abandon();
        if self.simulation.is_detached() {
            self.simulation.attach()?;
        }
        self.simulation.restart();
        self.simulation.scene.load.sweep(self.chance.pick(&[0, 30, 100]));
        Ok(())
    }

    /// So many turns since something came of them: may there be more?
    fn may_go_on(&self, turns: u64, since: Instant) -> bool {
        turns < LAST_TURNS || turns < LAST_TURNS_MAX && self.simulation.now().since(since) < LAST_TIME
    }

    /// Steps until `reached`, which must come.
    fn until(&mut self, what: &str, reached: impl Fn(&Simulation) -> bool) -> Steps {
        let (mut turns, mut since) = (0, self.simulation.now());
        while self.may_go_on(turns, since) {
            if reached(&self.simulation) {
                return Ok(());
            }
            let replies = self.simulation.scene.replies;
            if !self.step()? && !reached(&self.simulation) {
                return Err(Broken(format!("everything came to rest before the engine could {what}")));
            }
            turns += 1;
            if self.simulation.scene.replies > replies {
                (turns, since) = (0, self.simulation.now());
            }
        }
        Err(Broken(format!("{turns} turns were not enough to {what}")))
    }

    // --- the end ---

    fn finish(&mut self) -> Steps {
        self.simulation.heal();
        self.call_off_detach()?;
        self.end_without_cache()?;
        self.read_all()?;
        self.flush()?;
        self.drain()?;
        let Simulation { scene, .. } = &self.simulation;
        scene.oracle.check_all(|atom| scene.origin.visible().stamp(atom)).map_err(|broken| Broken(format!("drained: {}", broken.0)))?;
        // After a power cut: what only a failed write had put there may be gone.
        let mut oracle = scene.oracle.clone();
        oracle.origin_forgot();
        oracle
            .check_all(|atom| scene.origin.durable().stamp(atom))
            .map_err(|broken| Broken(format!("drained, after a power cut: {}", broken.0)))?;
        self.stop()?;
        self.simulation.crash(&Crash::Power { cache: Survive::None, origin: Survive::None });
        self.simulation.restart();
        self.read_all()
    }

    /// No detach any more, unless it has come to its end already.
    fn call_off_detach(&mut self) -> Steps {
        let recoveries = self.simulation.recoveries;
        self.simulation.control(Control::CancelDetach);
        if self.simulation.inspect().is_detaching {
            self.until("end a detach", |simulation| simulation.recoveries > recoveries)?;
        }
        Ok(())
    }

    /// A volume that goes on without its cache is read, flushed and stopped; then it gets another one.
    fn end_without_cache(&mut self) -> Steps {
        self.until("serve", Simulation::is_serving)?;
        if self.simulation.engine.health() == Health::Whole {
            // One that has failed, and that nobody has asked for anything since, may as well work again.
            self.simulation.scene.cache.reseat();
            return Ok(());
        }
        self.until("go on without its cache", |simulation| simulation.engine.health() == Health::Degraded)?;
        self.read_all()?;
        self.flush()?;
        self.stop()?;
        self.simulation.crash(&Crash::Power { cache: Survive::Random, origin: Survive::None });
        self.simulation.restart();
        Ok(())
    }

    fn read_all(&mut self) -> Steps {
        self.simulation.scene.load.sweep(100);
        self.simulation.wake_all();
        self.until("serve", Simulation::is_serving)?;
        self.until("read everything back", |simulation| simulation.scene.load.is_done())
    }

    fn flush(&mut self) -> Steps {
        let (mut failures, mut excused, since) = (0, 0, self.simulation.now());
        // What was lost before this FLUSH was asked for, and before the last one was: found behind the answer to that, it is told to this.
        let mut lost = 0;
        while failures < 3 && self.may_go_on(excused, since) {
            let lost_before = std::mem::replace(&mut lost, self.simulation.inspect().counters.corrupt_dirty_slots);
            let id = self.simulation.ask(Span::default(), Command::Flush);
            self.until("flush", |simulation| simulation.scene.answers.iter().any(|reply| reply.id == id))?;
            let answers = std::mem::take(&mut self.simulation.scene.answers);
            if answers.iter().any(|reply| matches!(reply.result, Ok(Outcome::Done))) {
                return Ok(());
            }
            // Each says what was found lost, and an origin may be healthy, and much slower than the stall timeout.
            let is_told = self.simulation.inspect().counters.corrupt_dirty_slots > lost_before;
            let is_excused = is_told || self.simulation.is_origin_stalled();
            (failures, excused) = if is_excused { (failures, excused + 1) } else { (failures + 1, excused) };
        }
        Err(Broken(format!("{} flushes failed on a healthy device", failures + excused)))
    }

    fn drain(&mut self) -> Steps {
        self.simulation.control(Control::Drain);
        let (mut turns, mut least, mut since) = (0, u64::MAX, self.simulation.now());
        while self.may_go_on(turns, since) {
            let snapshot = self.simulation.inspect();
            let owed = snapshot.dirty_slots + snapshot.zero_ranges;
            turns += 16;
            if owed < least {
                (turns, least, since) = (0, owed, self.simulation.now());
            }
            // Zeroed ranges that the origin has refused are tried again, whoever has called a drain off meanwhile.
            if snapshot.dirty_slots == 0 && self.simulation.engine.dirty_ranges(1).is_empty() {
                return Ok(());
            }
            if snapshot.drain.is_none() && snapshot.unreadable_blocks > 0 && snapshot.unreadable_blocks == owed {
                return self.left_behind();
            }
            if snapshot.drain.is_none() {
                // A cancel that the load had in mind for another one.
                self.simulation.control(Control::Drain);
            }
            for _ in 0..16 {
                self.step()?;
            }
        }
        let snapshot = self.simulation.inspect();
        let Snapshot { dirty_slots, zero_ranges, gate, .. } = snapshot;
        let rests = if self.simulation.idle { "everything rests" } else { "time passes" };
        let entries = snapshot.range_entries;
        Err(Broken(format!(
            "a drain does not end: {dirty_slots} dirty slots, {zero_ranges} ranges, table {entries}, gate {gate:?}, {rests}"
        )))
    }

    /// What a drain left is an error to whoever reads it.
    fn left_behind(&mut self) -> Steps {
        for block in self.simulation.left_behind()? {
            let span = self.simulation.plan.config.geometry.block_span(Block(block));
            let id = self.simulation.ask(span, Command::Read);
            self.until("read what a drain left", |simulation| simulation.scene.answers.iter().any(|reply| reply.id == id))?;
            let answers = std::mem::take(&mut self.simulation.scene.answers);
            if answers.iter().any(|reply| reply.id == id && reply.result.is_ok()) {
                return Err(Broken(format!("a drain left block {block}, which can be read")));
            }
        }
        Ok(())
    }
}

/// What an engine has found that has refused to serve before devices that fail: nothing that failing explains is false.
pub fn explain_refusal(met: FaultPoints) -> Steps {
    use FaultPoint::*;
    const UNEXPLAINED: [FaultPoint; 12] = [
        OtherGeometry,
        OtherOrigin,
        Detached,
        NoMap,
        JournalGap,
        EpochFromTheFuture,
        RecordsImpossible,
        SealOutOfOrder,
        PutOutOfOrder,
        OpenOutOfOrder,
        OpenOfLiveSet,
        TwoSlots,
    ];
    // What could not be read for long counts as not written.
    let is_unread = met.has(ReadsGivenUp);
    match UNEXPLAINED.into_iter().find(|&point| met.has(point) && !(is_unread && matches!(point, NoMap | JournalGap))) {
        Some(point) => Err(Broken(format!("recovery refused before a device that fails: {}", point.about()))),
        None => Ok(()),
    }
}

/// The stamps of a reply to a read.
pub fn data(result: &Outcome<Stamps>) -> Vec<u64> {
    match result {
        Outcome::Data(parts) => crate::world::stamps_of(parts),
        Outcome::Done | Outcome::Status { .. } => Vec::new(),
    }
}

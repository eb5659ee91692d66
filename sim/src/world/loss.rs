//! The cache is lost in service: how it fails, what the host writes down, what is given up with it, and that nothing is promised besides.

use super::{Entry, Simulation, formatted};
use crate::back::contents::Contents;
use crate::front::oracle::Broken;
use tidegate_engine::Event;
use tidegate_engine::block::Span;
use tidegate_engine::probe::Health;
use tidegate_engine::time::Duration;

impl Simulation {
    pub(super) fn cache_may_fail(&mut self) {
        let is_worth_it =
            self.plan.cache_fails_after > 0 && self.engine.health() == Health::Whole && self.is_serving() && !self.scene.load.is_done();
        let wears_out = self.chance.one_in(3);
        if is_worth_it && self.scene.host_chance.one_in(4) {
            // Its file system is full, or read-only, for a while.
            self.scene.host.fails = true;
            let heals = Duration::from_millis(self.scene.host_chance.spread(1, 60_000));
            self.scene.agenda.note(self.now() + heals, Entry::HostHeals);
        }
        match (is_worth_it, wears_out) {
            (false, _) => {}
            (true, true) => self.cache_wears_out(),
            (true, false) => self.cache_goes(),
        }
    }

    /// The cache answers nothing any more, until the next start. The engine hears of it when it asks for something.
    pub fn cache_goes(&mut self) {
        // What no flush of the cache has covered is in memory still, and goes home.
        let held = self.scene.cache.durable_data();
        for span in self.engine.at_risk() {
            self.scene.oracle.risk(span, |stamp| held.binary_search(&stamp).is_ok());
        }
        self.scene.cache.go_away();
        self.cache_fails("is gone");
    }

    /// The cache takes no writes any more; what it holds can be read.
    pub fn cache_wears_out(&mut self) {
        self.scene.cache.turn_read_only();
        self.cache_fails("takes no writes any more");
    }

    fn cache_fails(&mut self, how: &str) {
        let now = self.now();
        self.scene.trace.note(now, 7, || format!("the cache {how}"));
        self.scene.cache_failed = true;
        // From now on writes go to the origin as they are: of those not flushed any part survives.
        self.goes_on_without_log();
    }

    /// Until another cache is seated the origin takes writes as they are. Data that is not there by now may never be: who waits for any of that may
    /// be told, and nobody else but a FLUSH. (Zeros are known without the cache.)
    fn goes_on_without_log(&mut self) {
        let oracle = &mut self.scene.oracle;
        oracle.bypass_all();
        (oracle.waives_order, oracle.promises_origin) = (true, true);
        oracle.failed_for_flush();
        self.engine.dirty_data().for_each(|span| oracle.refused(span));
    }

    /// Has the cache failed since the last call?
    pub fn take_cache_failure(&mut self) -> bool {
        std::mem::take(&mut self.scene.cache_failed)
    }

    /// What the host was to write down is durable now, or could not be.
    pub fn host_writes(&mut self) {
        if let Some(durable) = self.scene.host.end() {
            // The engine has given its cache up, maybe by itself, where flushes fail for long (seed 695: the oracle still expected whole
            // blocks): from now on writes go to the origin as they are.
            self.goes_on_without_log();
            let (now, scene) = (self.scene.agenda.now(), &mut self.scene);
            (scene.oracle.unfenced, scene.oracle.alone) = (!durable, durable);
            scene.trace.note(now, 8, || format!("the host {} that the cache misses writes", if durable { "knows" } else { "cannot note" }));
            self.events.push(Event::Fenced { durable });
        }
    }

    /// Somebody puts another SSD in the place of one that missed writes, and gives up what was lost with that.
    pub(super) fn replace_cache(&mut self) {
        let at_risk: Vec<Span> = self.engine.at_risk().collect();
        let format = &mut self.plan.config.format.0;
        *format = (u128::from_le_bytes(*format) + 1).to_le_bytes();
        let plan = &self.plan;
        let contents = formatted(plan, Contents::blank(plan.config.geometry.data_start(), plan.limits[0].atoms));
        let (now, scene) = (self.scene.agenda.now(), &mut self.scene);
        scene.cache = scene.cache.replaced(contents, plan.config.format);
        scene.host.forget();
        scene.oracle.bypass_all();
        scene.oracle.accept_loss(&at_risk, |atom| scene.origin.stamps_of(atom));
        scene.trace.note(now, 9, || format!("another cache; given up: {at_risk:?}"));
    }

    /// Without the cache nothing is promised that only the cache has.
    pub(super) fn check_promises(&mut self) {
        if !self.scene.replied {
            return;
        }
        let promised = self.scene.oracle.take_newly_durable();
        if promised.is_empty() || self.engine.health() != Health::Degraded || self.plan.rates[0].spoils() {
            return;
        }
        let at_risk: Vec<Span> = self.engine.at_risk().collect();
        let scene = &self.scene;
        if let Err(broken) = scene.oracle.check_given_up(&promised, &at_risk, |atom| scene.origin.durable().stamp(atom)) {
            self.scene.broken.get_or_insert(broken);
        }
    }

    /// A FLUSH that nothing else explains has failed for a block that was found lost since one last did.
    pub(super) fn check_told(&mut self) {
        if !self.scene.oracle.take_told_of_loss() {
            return;
        }
        let losses = self.inspect().counters.corrupt_dirty_slots;
        // Of several found in one turn the first fails those that wait, and the others fail the next one (seed 1279).
        let is_next = losses == self.losses_told && !self.losses_told_twice;
        if losses <= self.losses_told && !is_next {
            let what = format!("a FLUSH failed although no device failed anything, and {losses} losses were told before");
            self.scene.broken.get_or_insert(Broken(what));
        }
        (self.losses_told, self.losses_told_twice) = (losses, is_next);
    }

    /// What was given up with a cache of which the host knows that it has failed.
    pub fn given_up(&self) -> Vec<Span> {
        if self.scene.host.is_fenced() { self.engine.at_risk().collect() } else { Vec::new() }
    }

    /// Would nothing be lost with the cache that was promised?
    pub fn may_lose_cache(&self) -> bool {
        self.is_home && self.was_clean && self.inspect().counters.corrupt_dirty_slots == 0
    }
}

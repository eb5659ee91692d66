//! Somebody takes the cache from its origin, and mostly thinks better of it: at any moment, with whatever is under way. What a detach has come
//! to says the newest superblock; from then on the origin alone must be the whole truth, and the cache is emptied before it serves again.

use super::{Entry, Simulation, formatted};
use crate::back::contents::Contents;
use crate::front::oracle::Broken;
use tidegate_engine::cache::format::Superblock;
use tidegate_engine::time::Duration;
use tidegate_engine::{Control, Event};

impl Simulation {
    /// Now and then somebody asks for a detach, and two of three call it off.
    pub(super) fn note_detach(&mut self) {
        let every = self.plan.detach_every;
        let is_asked = self.scene.replied && self.is_serving() && !self.scene.closed && !self.scene.load.is_done();
        if every == 0 || !is_asked || !self.detach_chance.one_in(every) {
            return;
        }
        self.events.push(Event::Control(Control::Detach));
        if !self.detach_chance.one_in(3) {
            let after = Duration::from_micros(self.detach_chance.spread(10, 10_000_000));
            self.scene.agenda.note(self.now() + after, Entry::CancelDetach);
        }
    }

    /// Does the newest superblock on the cache say that it was taken from its origin?
    pub fn is_detached(&self) -> bool {
        let (geometry, cache) = (self.plan.config.geometry, &self.scene.cache);
        let copies = (0..2).filter_map(|copy| Superblock::decode(&cache.visible().page_bytes(geometry.superblock(copy).start), copy).ok());
        copies.max_by_key(|copy| copy.sequence).is_some_and(|newest| newest.detached)
    }

    /// A detached cache is emptied and attached again; no engine is started.
    ///
    /// # Errors
    /// The origin alone does not hold everything that was promised.
    pub fn attach(&mut self) -> Result<(), Broken> {
        let scene = &self.scene;
        scene
            .oracle
            .judge_alone(&[], |atom| scene.origin.durable().stamp(atom))
            .map_err(|broken| Broken(format!("detached: {}", broken.0)))?;
        let format = &mut self.plan.config.format.0;
        *format = (u128::from_le_bytes(*format) + 1).to_le_bytes();
        let plan = &self.plan;
        let contents = formatted(plan, Contents::blank(plan.config.geometry.data_start(), plan.limits[0].atoms));
        let (now, scene) = (self.scene.agenda.now(), &mut self.scene);
        scene.cache = scene.cache.replaced(contents, plan.config.format);
        scene.oracle.bypass_all();
        scene.trace.note(now, 10, || "the cache was detached; it is emptied and attached again".to_string());
        Ok(())
    }
}

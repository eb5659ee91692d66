//! The origin has become larger while no engine ran, and the volume becomes as large as that (`tidegate up --grow`): both superblocks tell the
//! new size, and nothing else on the cache changes.

use super::Simulation;
use crate::back::model::Model;
use crate::stamp::{Stamps, stamp};
use tidegate_engine::cache::format::Superblock;
use tidegate_engine::op::Zone;
use tidegate_engine::payload::Payload;

/// A volume grows once in so many starts of a run that has one that does.
const EVERY: u64 = 4;

/// And in one of so many only one of the two superblocks says so.
const CUT_EVERY: u64 = 3;

/// What an origin has room for without becoming another one: atoms of a branch of its contents.
const ROOM: u64 = 32_768;

impl Simulation {
    /// Now and then, before a start. What is cached or zeroed of a short block would say nothing of its new end: a volume that ends in one stays.
    pub(super) fn may_grow(&mut self) {
        let geometry = self.plan.config.geometry;
        let (before, block) = (geometry.volume_atoms, u64::from(geometry.block_atoms));
        let is_possible = self.plan.grows && before.is_multiple_of(block) && matches!(self.scene.origin.model, Model::Plain(_));
        if !is_possible || !self.change_chance.one_in(EVERY) {
            return;
        }
        let room = before.next_multiple_of(ROOM) - before;
        let more = self.change_chance.spread(1, before.max(2)) * if self.change_chance.one_in(3) { 1 } else { block };
        if more <= room {
            self.grow(before + more);
        }
    }

    /// Makes the origin and the volume this large. No engine runs.
    pub fn grow(&mut self, atoms: u64) {
        let (now, scene, plan) = (self.scene.agenda.now(), &mut self.scene, &mut self.plan);
        let geometry = &mut plan.config.geometry;
        let contents = scene.cache.visible();
        let copies = [0, 1].map(|copy| Superblock::decode(&contents.page_bytes(geometry.superblock(copy).start), copy).ok());
        let [first, second] = copies.each_ref().map(|copy| copy.as_ref().map(|copy| copy.sequence));
        let Some(newest) = copies.iter().flatten().max_by_key(|superblock| superblock.sequence).filter(|newest| !newest.detached) else {
            return;
        };
        let before = std::mem::replace(&mut geometry.volume_atoms, atoms);
        plan.limits[1].atoms = atoms;
        let next = Superblock { geometry: *geometry, sequence: newest.sequence + 1, ..newest.clone() };
        let older = u32::from(second < first);
        // Now and then the power goes between the two. Whoever starts it next finds it grown.
        let is_cut = self.change_chance.one_in(CUT_EVERY);
        for copy in [older, 1 - older].into_iter().take(if is_cut { 1 } else { 2 }) {
            scene.cache.scribble(Zone::Superblock, geometry.superblock(copy).start, Stamps::from_bytes(&next.encode(copy)));
        }
        scene.cache.resize(geometry);
        scene.origin.resize(geometry);
        scene.origin.limits.atoms = atoms;
        let held: Vec<u64> = (before..atoms).map(|atom| if atom / 64 % 2 == 0 { stamp(0, atom) } else { 0 }).collect();
        scene.origin.scribble(Zone::Origin, before, Stamps::from_stamps(&held));
        scene.oracle.grow(held.into_iter());
        scene.load.grow(atoms);
        scene.trace.note(now, 13, || format!("the volume grows from {before} atoms to {atoms}"));
    }
}

//! What scenarios look at on the cache, decoded.

use std::rc::Rc;
use tidegate_engine::cache::format::Superblock;
use tidegate_engine::cache::format::journal::{self, Page};
use tidegate_engine::op::Zone;
use tidegate_sim::back::volatile::Survive;
use tidegate_sim::scenario::Scenario;

/// Of what is not flushed, the atoms that `which` names by zone and place survive.
pub fn only(which: impl Fn(Zone, u64) -> bool + 'static) -> Survive {
    Survive::Only(Rc::new(move |zone, atom, _| which(zone, atom)))
}

/// The valid superblocks, as they would be found after a power cut (`durable`) or now.
pub fn superblocks(scenario: &Scenario, durable: bool) -> Vec<Superblock> {
    let cache = &scenario.simulation.scene.cache;
    let contents = if durable { cache.durable() } else { cache.visible() };
    let page = |copy| contents.page_bytes(scenario.geometry().superblock(copy).start);
    (0..2).filter_map(|copy| Superblock::decode(&page(copy), copy).ok()).collect()
}

pub fn newest_superblock(scenario: &Scenario) -> Superblock {
    superblocks(scenario, true).into_iter().max_by_key(|superblock| superblock.sequence).expect("a superblock")
}

/// Every intact page of the ring with its place.
pub fn journal_pages(scenario: &Scenario, durable: bool) -> Vec<(u32, Page)> {
    let cache = &scenario.simulation.scene.cache;
    let contents = if durable { cache.durable() } else { cache.visible() };
    let (geometry, format) = (scenario.geometry(), scenario.simulation.plan.config.format);
    let page = |place| journal::decode(&contents.page_bytes(geometry.journal_page(place).start), &geometry, format, place);
    (0..geometry.journal_pages).filter_map(|place| Some((place, page(place).ok()?))).collect()
}

//! Pages of the journal that lie in the ring twice: a write that failed has landed all the same, and the page went to another place. Both are the
//! same page to the last record, so that it does not matter which of them is read. What matters is that neither place is given back before the page
//! is needed no more: the other copy may be the only one that is durable, and a start takes both places for the log's.

use crate::common::journal_pages;
use tidegate_engine::Mode;
use tidegate_engine::cache::format::Geometry;
use tidegate_engine::op::{DeviceId, Zone};
use tidegate_engine::probe::Health;
use tidegate_engine::time::Duration;
use tidegate_sim::back::fault::Fault;
use tidegate_sim::back::volatile::Survive;
use tidegate_sim::scenario::{Scenario, plan, plan_for};
use tidegate_sim::stamp::Stamps;

/// The place in the ring that was written last.
fn last_place(scenario: &Scenario) -> Option<u32> {
    let pages = scenario.noted().iter().rev().filter(|op| op.zone == Some(Zone::Journal) && op.writes);
    let start = scenario.geometry().zone(Zone::Journal).start;
    pages.map(|op| ((op.span.end() - start) / 8 - 1) as u32).next()
}

/// Flushes until the next page goes to `place`, and no checkpoint is under way.
fn until_next_is(scenario: &mut Scenario, place: u32) {
    let ring = scenario.geometry().journal_pages;
    for _ in 0..20 * ring {
        if last_place(scenario).is_some_and(|last| (last + 1) % ring == place) {
            return;
        }
        scenario.write(60);
        scenario.flush();
        scenario.run_until_quiet();
    }
    panic!("the ring never gets to place {place}");
}

/// Places of the ring in which a page lies that is somewhere else as well.
fn copies(scenario: &Scenario, durable: bool) -> Vec<u32> {
    let pages = journal_pages(scenario, durable);
    let is_twice = |seq: u64| pages.iter().filter(|(_, other)| other.head.seq == seq).count() > 1;
    pages.iter().filter(|(_, page)| is_twice(page.head.seq)).map(|&(place, _)| place).collect()
}

/// A flush failed after that, so the first copy may be seen only until the power goes. A start that counted on it, and gave the other place to the
/// next page, was followed by one that refused to serve: a page that was durable was missing.
#[test]
fn a_page_is_not_overwritten_whose_other_copy_is_seen_only_until_the_power_goes() {
    let mut doomed = 0;
    for seed in 0..8 {
        let mut scenario = Scenario::with(|plan| plan.seed = seed);
        let ring = scenario.geometry().journal_pages;
        // The second copy lies at the beginning of the ring: it is read first, and the other one would count.
        until_next_is(&mut scenario, ring - 1);
        let data = scenario.write(1);
        scenario.fail_next(Zone::Journal, Fault::Denied);
        scenario.fail_next_flush(DeviceId::Cache);
        scenario.try_flush().expect_err("it fails");
        scenario.flush();
        scenario.run_until_quiet();
        assert_eq!(copies(&scenario, false), [0, ring - 1], "it lies in both places");
        doomed += u32::from(copies(&scenario, true).is_empty());
        // Both superblocks say from now on that the page is durable: it is not written again.
        scenario.stop();
        scenario.recover();
        let later = scenario.write(2);
        scenario.flush();
        scenario.power_cut(Survive::None);
        scenario.expect(1, &data);
        scenario.expect(2, &later);
    }
    assert!(doomed > 0, "in some of them one copy was seen only");
}

/// A checkpoint begins, and blocks from 0 on are written, each in a page of its own. All these pages are under way together; they fail, and land.
fn write_twice(scenario: &mut Scenario, blocks: u64) -> Vec<(u64, Stamps)> {
    scenario.hold(Zone::Journal);
    let mut faults = 0;
    let mut failing = |scenario: &mut Scenario, pages: usize, act: &mut dyn FnMut(&mut Scenario)| {
        (faults..pages).for_each(|_| scenario.fail_next(Zone::Journal, Fault::Denied));
        let written = |scenario: &Scenario| scenario.noted().iter().filter(|op| op.zone == Some(Zone::Journal) && op.writes).count();
        let before = written(scenario);
        act(scenario);
        scenario.run_until_quiet();
        faults = faults.max(pages).saturating_sub(written(scenario) - before);
    };
    // The mode has to be recorded.
    failing(scenario, 3, &mut |scenario| scenario.simulation.switch(Mode::WriteBack));
    let mut sent = Vec::new();
    for block in 0..blocks {
        failing(scenario, 1, &mut |scenario| sent.push(scenario.send_write(scenario.block(block), true)));
    }
    scenario.release(Zone::Journal);
    let answered = |(block, (write, data))| {
        scenario.wait(write).expect("a write with FUA");
        (block, data)
    };
    (0..).zip(sent).map(answered).collect()
}

/// Fills the ring until a write waits for room, with no checkpoint that ends. What was written, each block the last time.
fn fill_ring(scenario: &mut Scenario) -> Vec<(u64, Stamps)> {
    scenario.hold(Zone::Map);
    let mut written = Vec::new();
    for count in 0..200 {
        let block = 30 + count % 4;
        let (write, data) = scenario.send_write(scenario.block(block), true);
        scenario.run_until_quiet();
        if !scenario.is_answered(write) {
            return written;
        }
        scenario.wait(write).expect("a write");
        written.retain(|(other, _)| *other != block);
        written.push((block, data));
    }
    panic!("the ring is never full");
}

/// Pages that failed, and landed, lie before those that count. In the life before their places were free already, and partly written over; to a start
/// the rest of them was the log's again, which left no room for a checkpoint, and the SSD counted as failed a minute later.
#[test]
fn a_start_finds_as_much_room_in_the_ring_as_there_was_though_pages_lie_there_twice() {
    // A third of it is more than what fails.
    let ring = 256;
    let mut left = 0;
    for place in (ring - 48..ring).step_by(4) {
        let mut scenario = Scenario::of(plan_for(Geometry { journal_pages: ring, ..plan().config.geometry }));
        until_next_is(&mut scenario, place);
        scenario.drain();
        scenario.switch(Mode::WriteThrough);
        scenario.run_until_quiet();
        let mut written = write_twice(&mut scenario, 16);
        // The next one ends, so that what was before those pages is free. The one after it does not.
        scenario.checkpoints(1, 60);
        written.extend(fill_ring(&mut scenario));
        left += copies(&scenario, true).len();
        scenario.power_cut(Survive::None);
        scenario.release(Zone::Map);
        let expect_all = |scenario: &mut Scenario| written.iter().for_each(|(block, data)| scenario.expect(*block, data));
        expect_all(&mut scenario);
        let later = scenario.write_fua(50);
        scenario.advance(Duration::from_secs(120));
        assert_eq!(scenario.snapshot().health, Health::Whole, "the first of them at place {place}");
        scenario.power_cut(Survive::None);
        expect_all(&mut scenario);
        scenario.expect(50, &later);
    }
    assert!(left > 0, "in some of them pages still lay there twice");
}

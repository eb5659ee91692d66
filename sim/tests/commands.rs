//! Commands that only some clients know: CACHE, fast zeroes, and in which tier everything is. The oracle listens to every reply.

use tidegate_engine::block::Span;
use tidegate_engine::cache::format::Geometry;
use tidegate_engine::config::Allocation;
use tidegate_engine::op::Zone;
use tidegate_engine::request::{Command, Extent, Outcome, RequestError, Tier};
use tidegate_engine::time::Duration;
use tidegate_sim::back::volatile::Survive;
use tidegate_sim::scenario::{Scenario, plan, plan_for};

/// Waits longer than the engine's own flush takes to come.
fn let_it_flush(scenario: &mut Scenario) {
    scenario.flush();
    scenario.run_until_quiet();
}

#[test]
fn a_cached_span_is_read_without_the_origin() {
    let mut scenario = Scenario::new();
    let span = scenario.blocks(8, 8);
    let (first, last) = (scenario.first(8), scenario.first(15));
    let written = scenario.write(10);
    let id = scenario.send(span, Command::Cache);
    assert_eq!(scenario.wait(id), Ok(vec![]), "and no data with it");
    scenario.run_until_quiet();
    assert_eq!(scenario.snapshot().counters.filled_blocks, 7, "what was there already was left alone");
    scenario.origin_goes();
    scenario.expect(8, &first);
    scenario.expect(10, &written);
    scenario.expect(15, &last);
    let again = scenario.send(span, Command::Cache);
    assert_eq!(scenario.wait(again), Ok(vec![]), "nothing is asked of the origin");
    let other = scenario.send(scenario.block(30), Command::Cache);
    assert_eq!(scenario.wait(other), Err(RequestError::Io), "what cannot be read is said");
}

#[test]
fn a_prefetch_counts_neither_as_hit_nor_as_miss() {
    let mut scenario = Scenario::new();
    let before = scenario.snapshot().counters;
    let id = scenario.send(scenario.blocks(0, 16), Command::Cache);
    scenario.wait(id).expect("it is read");
    let after = scenario.snapshot().counters;
    assert_eq!((after.hit_blocks, after.miss_blocks, after.reads), (before.hit_blocks, before.miss_blocks, before.reads));
}

#[test]
fn a_tier_changes_as_a_block_is_written_flushed_destaged_and_dropped() {
    let mut scenario = Scenario::new();
    let span = scenario.blocks(4, 4);
    let tiers = |scenario: &mut Scenario| scenario.tiers(span);
    assert_eq!(tiers(&mut scenario), [(32, Tier::Origin)]);
    scenario.write(5);
    assert_eq!(tiers(&mut scenario), [(8, Tier::Origin), (8, Tier::Memory), (16, Tier::Origin)]);
    let_it_flush(&mut scenario);
    assert_eq!(tiers(&mut scenario), [(8, Tier::Origin), (8, Tier::Dirty), (16, Tier::Origin)]);
    scenario.drain();
    assert_eq!(tiers(&mut scenario), [(8, Tier::Origin), (8, Tier::Clean), (16, Tier::Origin)]);
    let_it_flush(&mut scenario);
    scenario.power_cut(Survive::None);
    assert_eq!(tiers(&mut scenario), [(8, Tier::Origin), (8, Tier::Clean), (16, Tier::Origin)], "the same after a crash");
}

#[test]
fn tiers_are_told_atom_by_atom_and_zeroed_ranges_are_newer_than_the_origin() {
    let mut scenario = Scenario::new();
    scenario.write_span(Span::new(8 * 4 + 2, 3));
    let_it_flush(&mut scenario);
    scenario.trim(scenario.blocks(6, 2));
    scenario.write_span(Span::new(8 * 7 + 1, 1));
    let expect = [(2, Tier::Origin), (3, Tier::Dirty), (3 + 8, Tier::Origin), (8, Tier::Dirty), (8, Tier::Memory), (8, Tier::Origin)];
    assert_eq!(scenario.tiers(scenario.blocks(4, 5)), expect);
    // Half of an atom's neighbours are not shown when they are not asked for.
    assert_eq!(scenario.tiers(Span::new(8 * 4 + 3, 4)), [(2, Tier::Dirty), (2, Tier::Origin)]);
}

#[test]
fn what_went_through_is_in_memory_until_the_origin_was_flushed() {
    let mut scenario = Scenario::with(|plan| plan.config.allocation = Allocation::ReadOnly);
    scenario.write(5);
    assert_eq!(scenario.tiers(scenario.blocks(5, 2)), [(8, Tier::Memory), (8, Tier::Origin)]);
}

#[test]
fn fast_zeroes_fail_where_they_would_wait_for_the_origin_and_others_wait() {
    let geometry = Geometry { volume_atoms: 4_096 * 8, range_entries: 252, ..plan().config.geometry };
    let mut plan = plan_for(geometry);
    plan.config.wait = Duration::from_secs(3_600);
    plan.config.max_dirty_age = Duration::from_secs(36_000);
    let mut scenario = Scenario::of(plan);
    scenario.origin_goes();
    let zero = |fast| Command::Zero { no_hole: true, fua: false, fast };
    let mut block = 0;
    let refused = loop {
        assert!(block < 4_000, "the table takes more than it has room for");
        let id = scenario.send(scenario.block(block), zero(true));
        match scenario.wait(id) {
            Ok(_) => block += 2,
            Err(error) => break error,
        }
    };
    assert_eq!(refused, RequestError::NotFast);
    assert!(block > 200, "most of them were fast: {block}");
    // Without the flag the same zeroes are never refused: they wait.
    let patient = scenario.send(scenario.block(block), zero(false));
    scenario.run_until_quiet();
    assert!(!scenario.is_answered(patient));
    scenario.origin_comes_back(false);
    scenario.wait(patient).expect("there is room again");
}

#[test]
fn s11_what_is_no_hole_takes_writes_whatever_the_origin_does() {
    let mut scenario = Scenario::new();
    let span = scenario.blocks(4, 2);
    let id = scenario.send(span, Command::Zero { no_hole: true, fua: false, fast: false });
    scenario.wait(id).expect("zeroes");
    scenario.write(8);
    for (place, zero) in [(span, true), (scenario.block(8), false)] {
        let status = scenario.send(place, Command::Status { tiers: false, one: false });
        let Ok(Outcome::Status { allocation, .. }) = scenario.outcome(status) else { panic!("a status") };
        assert_eq!(allocation, [Extent { atoms: place.atoms, hole: false, zero }]);
    }
    scenario.origin_goes();
    for block in [4, 5, 8] {
        let data = scenario.write(block);
        scenario.expect(block, &data);
    }
    scenario.flush();
}

/// They went home with what the failed SSD had not made durable, and were refused when they took their turn again (seed 75 of the refusing swarm).
#[test]
fn zeroes_that_have_begun_when_the_ssd_fails_are_not_refused_for_not_being_fast() {
    let mut scenario = Scenario::new();
    scenario.hold(Zone::Data);
    let part = Span::new(scenario.block(3).start, 1);
    let zeroes = scenario.send(part, Command::Zero { no_hole: true, fua: true, fast: true });
    scenario.advance(Duration::from_millis(1));
    scenario.cache_goes();
    scenario.release(Zone::Data);
    assert_eq!(scenario.wait(zeroes), Ok(Vec::new()));
    scenario.until_degraded();
    assert_eq!(scenario.read(part), Ok(vec![0]));
}

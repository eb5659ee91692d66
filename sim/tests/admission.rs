//! Admission: what is read is kept while nothing has to go for it; after that, what was missed before, and nothing of long sequences.

use tidegate_engine::block::Span;
use tidegate_engine::cache::format::Geometry;
use tidegate_engine::probe::Counters;
use tidegate_engine::request::Command;
use tidegate_sim::scenario::{Scenario, plan_for};

/// Blocks of the volume, which is four times the cache.
const BLOCKS: u64 = 16_384;

/// A cache of 16 sets of 1 MiB that is full of what was read.
fn full() -> Scenario {
    let geometry = Geometry { block_atoms: 8, set_slots: 256, sets: 16, journal_pages: 256, volume_atoms: BLOCKS * 8, range_entries: 252 };
    let mut scenario = Scenario::of(plan_for(geometry));
    // From the far end on, backwards: no sequence.
    for i in 0..240 {
        read(&mut scenario, BLOCKS - 16 - i * 16, 16);
    }
    assert!(scenario.snapshot().free_sets <= 3, "{} sets are free", scenario.snapshot().free_sets);
    scenario
}

fn read(scenario: &mut Scenario, block: u64, blocks: u64) {
    scenario.read(Span::new(block * 8, blocks * 8)).expect("a read");
}

fn counters(scenario: &Scenario) -> Counters {
    scenario.snapshot().counters
}

#[test]
fn everything_is_kept_while_nothing_has_to_go_for_it() {
    let scenario = full();
    let counters = counters(&scenario);
    let judged = counters.fill_first_touch_blocks + counters.fill_sequential_blocks + counters.fill_sieved_blocks;
    assert!(counters.filled_blocks >= 3_000, "{} kept", counters.filled_blocks);
    assert_eq!(counters.filled_blocks + judged, counters.miss_blocks - counters.fill_no_room_blocks);
}

#[test]
fn in_a_full_cache_a_block_is_kept_when_it_is_missed_again() {
    let mut scenario = full();
    let before = counters(&scenario);
    for round in 1..=3 {
        (0..8).for_each(|i| read(&mut scenario, i * 100, 1));
        let after = counters(&scenario);
        let kept = after.filled_blocks - before.filled_blocks;
        let first = after.fill_first_touch_blocks - before.fill_first_touch_blocks;
        assert_eq!((kept, first, after.miss_blocks - before.miss_blocks), [(0, 8, 8), (8, 8, 16), (8, 8, 16)][round - 1], "round {round}");
    }
}

#[test]
fn in_a_full_cache_a_long_sequence_passes_by_and_what_is_in_stays() {
    let mut scenario = full();
    let before = counters(&scenario);
    (0..64).for_each(|i| read(&mut scenario, i * 128, 128));
    let after = counters(&scenario);
    assert!(after.fill_sequential_blocks - before.fill_sequential_blocks >= 7_000);
    assert_eq!((after.filled_blocks, after.dropped_sets), (before.filled_blocks, before.dropped_sets));
}

#[test]
fn what_a_client_asks_to_be_kept_is_kept() {
    let mut scenario = full();
    let before = counters(&scenario);
    let request = scenario.send(Span::new(0, 64 * 8), Command::Cache);
    scenario.outcome(request).expect("a prefetch");
    assert_eq!(counters(&scenario).filled_blocks - before.filled_blocks, 64);
}

//! The converter, situation by situation: small writes go into the log, large ones past it, and reads put both together. The four defects of
//! paper 002 have a scenario each, and so has what the paper does not mention: FLUSH, FUA, TRIM, a block that is written again and again.
//! In all of them a power cut is tried at every step; the oracle judges it, and every answer.

use std::ops::Range;

use tidegate_engine::block::Span;
use tidegate_engine::cache::detour::Counts;
use tidegate_engine::cache::format::Geometry;
use tidegate_engine::config::{Allocation, Convert};
use tidegate_engine::op::{DeviceId, Zone};
use tidegate_engine::request::Command;
use tidegate_engine::time::Duration;
use tidegate_sim::back::fault::Fault;
use tidegate_sim::back::model::Speed;
use tidegate_sim::back::volatile::Survive;
use tidegate_sim::plan::Plan;
use tidegate_sim::scenario::{Scenario, plan, plan_for};
use tidegate_sim::stamp::Stamps;
use tidegate_sim::world::Crash;

fn stamps(data: &Stamps) -> Vec<u64> {
    data.stamps().collect()
}

/// A volume that takes writes of up to 8 sectors into its log of 128 blocks, with changes.
fn with(change: impl FnOnce(&mut Plan)) -> Scenario {
    of_blocks(64, change)
}

/// The same of another size.
fn of_blocks(blocks: u64, change: impl FnOnce(&mut Plan)) -> Scenario {
    let mut plan = plan_for(Geometry { volume_atoms: blocks * 8, ..plan().config.geometry });
    plan.config.allocation = Allocation::SmallWrites;
    change(&mut plan);
    let mut scenario = Scenario::of(plan);
    scenario.forget_noted();
    scenario.crash_at_every_step();
    scenario
}

fn converter() -> Scenario {
    with(|_| {})
}

fn block(number: u64) -> Span {
    blocks(number, 1)
}

/// Blocks of 8 sectors.
fn blocks(first: u64, count: u64) -> Span {
    Span::new(first * 8, count * 8)
}

/// Device writes to this zone so far.
fn writes(scenario: &Scenario, zone: Zone) -> usize {
    scenario.noted().iter().filter(|op| op.zone == Some(zone) && op.writes).count()
}

/// Everything that was acknowledged and not flushed on the origin is lost there.
fn power_cut_of_both(scenario: &mut Scenario) {
    scenario.crash(Crash::Power { cache: Survive::None, origin: Survive::None });
    scenario.recover();
}

/// A read of `span` is `parts`, one after the other.
fn expect_parts(scenario: &mut Scenario, span: Span, parts: &[&[u64]]) {
    assert_eq!(scenario.read(span), Ok(parts.concat()), "{span:?}");
}

#[test]
fn small_writes_follow_each_other_in_the_log_and_large_ones_go_home() {
    let mut scenario = converter();
    for block in [40, 3, 27, 11] {
        scenario.write(block);
    }
    assert_eq!((writes(&scenario, Zone::Data), writes(&scenario, Zone::Origin)), (4, 0));
    let places: Vec<u64> =
        [40, 3, 27, 11].map(|block| scenario.read(scenario.block(block)).unwrap()[0]).map(|stamp| scenario.places(stamp)[0]).into();
    assert!(places.windows(2).all(|pair| pair[1] == pair[0] + 8), "one after the other: {places:?}");
    let large = scenario.write_span(Span::new(160, 9));
    assert_eq!((writes(&scenario, Zone::Data), writes(&scenario, Zone::Origin)), (4, 1), "nine sectors are too many");
    expect_parts(&mut scenario, Span::new(160, 9), &[&stamps(&large)]);
    scenario.read(scenario.blocks(44, 4)).expect("it is on the origin");
    assert_eq!(scenario.snapshot().counters.filled_blocks, 0, "what is read is not kept");
}

/// Defect 1 of the paper's reads and writes: keys were looked up by their first sector alone.
#[test]
fn an_entry_that_begins_before_the_request_and_overlaps_its_head_is_found() {
    let mut scenario = converter();
    let entry = stamps(&scenario.write_span(Span::new(80, 8)));
    let below = stamps(&scenario.first(11));
    expect_parts(&mut scenario, Span::new(83, 13), &[&entry[3..], &below]);
    // A large write over its tail: the head is still the newest there is.
    let large = stamps(&scenario.write_span(Span::new(85, 20)));
    expect_parts(&mut scenario, Span::new(80, 25), &[&entry[..5], &large]);
    scenario.flush();
    assert!(scenario.crashes_tried() >= 4 * 3, "with every part of what was not flushed");
    power_cut_of_both(&mut scenario);
    expect_parts(&mut scenario, Span::new(80, 25), &[&entry[..5], &large]);
    // And a small one across two entries, at home now.
    let small = stamps(&scenario.write_span(Span::new(86, 6)));
    expect_parts(&mut scenario, Span::new(80, 25), &[&entry[..5], &large[..1], &small, &large[7..]]);
}

/// Defect 2: any overwrite made the whole entry void.
#[test]
fn a_partial_overwrite_keeps_the_rest_of_the_entry() {
    let mut scenario = converter();
    let entry = stamps(&scenario.write_span(Span::new(80, 8)));
    let inner = stamps(&scenario.write_span(Span::new(82, 2)));
    let merged = [&entry[..2], &inner[..], &entry[4..]].concat();
    expect_parts(&mut scenario, Span::new(80, 8), &[&merged]);
    // Large writes over its head, then over its tail.
    let head = stamps(&scenario.write_span(Span::new(70, 11)));
    expect_parts(&mut scenario, Span::new(70, 18), &[&head, &merged[1..]]);
    let tail = stamps(&scenario.write_span(Span::new(87, 11)));
    expect_parts(&mut scenario, Span::new(70, 28), &[&head, &merged[1..7], &tail]);
    scenario.flush();
    power_cut_of_both(&mut scenario);
    expect_parts(&mut scenario, Span::new(70, 28), &[&head, &merged[1..7], &tail]);
    scenario.drain();
    expect_parts(&mut scenario, Span::new(70, 28), &[&head, &merged[1..7], &tail]);
}

/// Defect 3: the key 0 said that an entry is void.
#[test]
fn block_0_is_a_block_like_any_other() {
    let mut scenario = converter();
    let first = scenario.write(0);
    assert_eq!(writes(&scenario, Zone::Data), 1, "it was taken");
    scenario.expect(0, &first);
    let again = scenario.write(0);
    scenario.flush();
    power_cut_of_both(&mut scenario);
    scenario.expect(0, &again);
    let large = stamps(&scenario.write_span(Span::new(0, 16)));
    scenario.flush();
    power_cut_of_both(&mut scenario);
    expect_parts(&mut scenario, Span::new(0, 16), &[&large]);
}

/// Defect 4: the table was saved at a stop in order, and nowhere else.
#[test]
fn a_power_cut_keeps_the_map() {
    let mut scenario = converter();
    let data: Vec<Stamps> = (0..48).map(|block| scenario.write(block * 29 % 64)).collect();
    scenario.flush();
    assert_eq!(writes(&scenario, Zone::Origin), 0, "all of it is in the log alone");
    for _ in 0..2 {
        power_cut_of_both(&mut scenario);
        for (block, data) in (0..48).zip(&data) {
            scenario.expect(block * 29 % 64, data);
        }
    }
}

#[test]
fn a_flush_covers_what_went_home_as_well_as_what_was_taken() {
    // The origin's own flush takes ten seconds: nobody waits for it.
    let mut scenario = with(|plan| plan.speeds[1].flush = Duration::from_secs(10));
    let small = scenario.write(5);
    let large = stamps(&scenario.write_span(scenario.blocks(8, 4)));
    let over = scenario.write(9);
    let before = scenario.simulation.now();
    scenario.flush();
    assert!(scenario.simulation.now().since(before) < Duration::from_secs(1));
    power_cut_of_both(&mut scenario);
    scenario.expect(5, &small);
    expect_parts(&mut scenario, blocks(8, 4), &[&large[..8], &stamps(&over), &large[16..]]);
}

#[test]
fn fua_makes_durable_what_was_taken_and_what_went_home() {
    let mut scenario = converter();
    let small = scenario.write_fua(5);
    power_cut_of_both(&mut scenario);
    scenario.expect(5, &small);
    let (id, large) = scenario.send_write(scenario.blocks(4, 4), true);
    scenario.wait(id).expect("a write with FUA");
    power_cut_of_both(&mut scenario);
    expect_parts(&mut scenario, blocks(4, 4), &[&stamps(&large)]);
}

#[test]
fn a_trim_ends_entries_whole_and_in_part() {
    let mut scenario = converter();
    for block in [5, 6, 7] {
        scenario.write(block);
    }
    let large = stamps(&scenario.write_span(scenario.blocks(20, 4)));
    scenario.flush();
    scenario.trim(scenario.block(6));
    scenario.trim(scenario.block(21));
    scenario.flush();
    power_cut_of_both(&mut scenario);
    let zeros = [0u64; 8];
    expect_parts(&mut scenario, block(6), &[&zeros]);
    expect_parts(&mut scenario, blocks(20, 4), &[&large[..8], &zeros, &large[16..]]);
    // Written again, small and large.
    let (small, over) = (scenario.write(6), stamps(&scenario.write_span(scenario.blocks(20, 2))));
    scenario.flush();
    power_cut_of_both(&mut scenario);
    scenario.expect(6, &small);
    expect_parts(&mut scenario, blocks(20, 4), &[&over, &large[16..]]);
}

#[test]
fn the_same_block_small_and_large_in_turn_is_always_the_last() {
    let mut scenario = converter();
    for round in 0..6 {
        let (small, large) = (scenario.write(9), stamps(&scenario.write_span(scenario.blocks(8, 3))));
        expect_parts(&mut scenario, block(9), &[&large[8..16]]);
        let again = if round % 2 == 0 { scenario.write(9) } else { small };
        if round % 2 == 0 {
            scenario.expect(9, &again);
        }
        if round % 3 == 2 {
            scenario.flush();
        }
    }
    let last = scenario.write(9);
    scenario.flush();
    power_cut_of_both(&mut scenario);
    scenario.expect(9, &last);
}

#[test]
fn a_small_write_beside_a_large_one_in_flight_to_the_same_block_waits_for_it() {
    let mut scenario = converter();
    scenario.hold(Zone::Origin);
    let (large, _) = scenario.send_write(scenario.blocks(8, 4), false);
    let (small, newer) = scenario.send_write(scenario.block(9), false);
    scenario.run_until_quiet();
    assert!(!scenario.is_answered(large) && !scenario.is_answered(small));
    scenario.release(Zone::Origin);
    scenario.wait(large).expect("a write");
    scenario.wait(small).expect("a write");
    scenario.expect(9, &newer);
    scenario.flush();
    power_cut_of_both(&mut scenario);
    scenario.expect(9, &newer);
}

#[test]
fn a_large_write_over_what_has_gone_home_waits_until_the_copy_is_durably_dead() {
    let mut scenario = converter();
    scenario.write(9);
    scenario.drain();
    let at_home = writes(&scenario, Zone::Origin);
    scenario.hold_flush(DeviceId::Cache);
    let (id, large) = scenario.send_write(scenario.blocks(8, 4), false);
    scenario.run_until_quiet();
    assert_eq!(writes(&scenario, Zone::Origin), at_home, "a crash could bring the clean copy back");
    scenario.release_flush(DeviceId::Cache);
    scenario.wait(id).expect("a write");
    scenario.flush();
    power_cut_of_both(&mut scenario);
    expect_parts(&mut scenario, blocks(8, 4), &[&stamps(&large)]);
}

#[test]
fn full_of_small_writes_it_makes_room_and_large_ones_never_wait_for_that() {
    let mut scenario = of_blocks(256, |_| {});
    scenario.hold(Zone::Origin);
    let mut waiting = Vec::new();
    for block in 0..140 {
        waiting.push(scenario.send_write(scenario.block(block), false));
    }
    scenario.run_until_quiet();
    assert!(!scenario.is_answered(waiting.last().unwrap().0), "no set is free, and none can be made so");
    scenario.release(Zone::Origin);
    for (id, _) in &waiting {
        scenario.wait(*id).expect("a write");
    }
    let large = stamps(&scenario.write_span(scenario.blocks(200, 8)));
    scenario.flush();
    power_cut_of_both(&mut scenario);
    for (block, (_, data)) in waiting.iter().enumerate() {
        scenario.expect(block as u64, data);
    }
    expect_parts(&mut scenario, blocks(200, 8), &[&large]);
}

#[test]
fn by_randomness_merged_pages_are_taken_and_a_sequence_is_not() {
    let mut scenario = of_blocks(2_048, |plan| plan.config.convert = Convert::Randomness);
    // Pairs of neighbours far from each other, as an elevator makes them.
    let places = [1_600, 200, 1_100, 1_900, 700];
    let pairs: Vec<Vec<u64>> = places.map(|block| stamps(&scenario.write_span(scenario.blocks(block, 2)))).into();
    assert_eq!((writes(&scenario, Zone::Data), writes(&scenario, Zone::Origin)), (5, 0));
    // 32 pages in a row: as soon as half of them have told what they are, the others go home, each for itself.
    let row: Vec<Stamps> = (400..432).map(|block| scenario.write(block)).collect();
    assert_eq!(writes(&scenario, Zone::Data) + writes(&scenario, Zone::Origin), 5 + 32);
    assert!(writes(&scenario, Zone::Origin) >= 16, "{}", writes(&scenario, Zone::Origin));
    scenario.flush();
    power_cut_of_both(&mut scenario);
    for (place, pair) in places.into_iter().zip(&pairs) {
        expect_parts(&mut scenario, blocks(place, 2), &[pair]);
    }
    for (block, data) in (400..).zip(&row) {
        scenario.expect(block, data);
    }
}

#[test]
fn zeroes_are_not_told_by_their_size() {
    let mut scenario = converter();
    scenario.write(9);
    let id = scenario.send(scenario.blocks(8, 6), Command::Zero { no_hole: true, fua: false, fast: false });
    scenario.wait(id).expect("zeroes");
    scenario.flush();
    power_cut_of_both(&mut scenario);
    expect_parts(&mut scenario, blocks(8, 6), &[&[0; 48]]);
    // Over the range both kinds find their place.
    let (large, small) = (stamps(&scenario.write_span(scenario.blocks(8, 2))), scenario.write(12));
    expect_parts(&mut scenario, blocks(8, 6), &[&large, &[0; 16], &stamps(&small), &[0; 8]]);
}

// --- a log that is full ---

/// Blocks of the volume in an order that leaves none next to each other in the log.
fn scattered(numbers: Range<u64>) -> impl Iterator<Item = u64> {
    numbers.map(|number| number * 37 % 512)
}

/// A log of 128 blocks that is about to be full, before an origin that takes so long for each operation. What goes home goes one by one, with a
/// flush after eight; a trial is of two writes.
fn nearly_full(origin: Duration) -> Scenario {
    let mut scenario = of_blocks(512, |plan| {
        plan.config.detour = Some(Counts { trial: 2, around: 4 });
        (plan.config.destage_depth, plan.config.destage_atoms) = (1, 64);
        plan.speeds[1] = Speed { read: origin, write: origin, flush: origin, ..plan.speeds[1] };
    });
    scattered(0..90).for_each(|block| drop(scenario.write(block)));
    scenario
}

fn write_scattered(scenario: &mut Scenario, numbers: Range<u64>) -> Vec<(u64, Stamps)> {
    scattered(numbers).map(|block| (block, scenario.write(block))).collect()
}

fn straight(scenario: &Scenario) -> u64 {
    scenario.snapshot().counters.straight_blocks
}

#[test]
fn where_home_is_quicker_than_a_full_log_small_writes_go_straight_there() {
    let mut scenario = nearly_full(Duration::from_micros(50));
    let sent = write_scattered(&mut scenario, 90..200);
    let count = straight(&scenario);
    assert!(count > 50, "{count}");
    // A block that is dirty in the log is newer at home from now on.
    let over = scenario.write(37);
    assert_eq!(straight(&scenario), count + 1);
    sent.iter().for_each(|(block, data)| scenario.expect(*block, data));
    scenario.flush();
    power_cut_of_both(&mut scenario);
    sent.iter().for_each(|(block, data)| scenario.expect(*block, data));
    scenario.expect(37, &over);
}

#[test]
fn where_home_is_slow_a_full_log_is_waited_for() {
    let mut scenario = nearly_full(Duration::from_millis(30));
    write_scattered(&mut scenario, 90..200);
    let count = straight(&scenario);
    assert!(count <= 8, "trials only: {count}");
}

#[test]
fn when_straight_writes_pause_the_log_goes_home_and_takes_them_again() {
    let mut scenario = nearly_full(Duration::from_micros(50));
    write_scattered(&mut scenario, 90..150);
    let count = straight(&scenario);
    assert!(count > 0);
    scenario.advance(Duration::from_secs(60));
    write_scattered(&mut scenario, 150..154);
    assert_eq!(straight(&scenario), count);
}

#[test]
fn a_straight_write_that_the_origin_refuses_is_converted_after_all() {
    let mut scenario = nearly_full(Duration::from_micros(50));
    write_scattered(&mut scenario, 90..160);
    assert!(straight(&scenario) > 0);
    scenario.fail_next(Zone::Origin, Fault::Error);
    let last = scenario.write(300);
    assert!(!scenario.places(last.stamps().next().unwrap()).is_empty(), "in the log");
    scenario.flush();
    power_cut_of_both(&mut scenario);
    scenario.expect(300, &last);
}

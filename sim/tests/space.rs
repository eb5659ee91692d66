//! Space running short, ranges, and sizes, situation by situation. The oracle listens to every reply in all of them
//! (`sim/src/front/oracle.rs`); what is asserted here besides is that the situation really came about.

use tidegate_engine::block::Span;
use tidegate_engine::cache::format::Geometry;
use tidegate_engine::op::Zone;
use tidegate_engine::request::{Command, RequestError};
use tidegate_engine::time::Duration;
use tidegate_sim::back::fault::Fault;
use tidegate_sim::back::volatile::Survive;
use tidegate_sim::front::load::MIXES;
use tidegate_sim::run::run;
use tidegate_sim::scenario::{Scenario, plan, plan_for};
use tidegate_sim::stamp::Stamps;

fn stamps(data: &Stamps) -> Vec<u64> {
    data.stamps().collect()
}

/// A volume four times the size of its cache.
fn large() -> Geometry {
    Geometry { volume_atoms: 512 * 8, ..plan().config.geometry }
}

#[test]
fn a_read_in_flight_keeps_its_set_from_reuse() {
    let mut scenario = Scenario::new();
    let old = scenario.write(5);
    (6..16).for_each(|block| drop(scenario.write(block)));
    scenario.flush();
    let place = scenario.places(old.stamp(0))[0];
    // A read of the SSD that takes a minute; meanwhile the cache is written over again and again.
    scenario.fail_next(Zone::Data, Fault::Stuck(Duration::from_secs(60)));
    let read = scenario.send_read(scenario.block(5));
    for round in 0..20 {
        for block in 0..32 {
            scenario.write((round + block) % 40);
        }
        scenario.flush();
        assert_eq!(scenario.simulation.scene.cache.visible().stamp(place), old.stamp(0), "the slot under the read was taken");
    }
    assert!(!scenario.is_answered(read), "the read is still on its way");
    assert_eq!(scenario.wait(read).expect("it ends well"), stamps(&old));
}

#[test]
fn one_fill_an_hour_does_not_stop_the_journal() {
    let mut scenario = Scenario::of(plan_for(large()));
    for block in 0..512 {
        let first = scenario.first(block);
        // Asked for: whatever has to go for it.
        let prefetch = scenario.send(scenario.block(block), Command::Cache);
        scenario.outcome(prefetch).expect("a prefetch");
        scenario.expect(block, &first);
        scenario.advance(Duration::from_secs(3_600));
    }
    assert!(scenario.snapshot().counters.filled_blocks > 256, "most reads were kept");
    let data = scenario.write(7);
    scenario.flush();
    scenario.power_cut(Survive::None);
    scenario.expect(7, &data);
}

#[test]
fn without_any_client_flush_sets_still_become_free() {
    let mut scenario = Scenario::new();
    let mut newest = Vec::new();
    for _ in 0..20 {
        newest = (0..64).map(|block| scenario.write(block)).collect();
    }
    for (block, data) in newest.iter().enumerate() {
        scenario.expect(block as u64, data);
    }
}

#[test]
fn full_of_dirty_origin_dead_ring_nearly_full_reads_trim_and_checkpoint_go_on() {
    let mut scenario = Scenario::of(plan_for(large()));
    scenario.origin_goes();
    let mut written = Vec::new();
    let blocked = loop {
        let block = written.len() as u64;
        assert!(block < 512, "the cache takes more than it has room for");
        let (id, data) = scenario.send_write(scenario.block(block), false);
        scenario.run_until_quiet();
        if !scenario.is_answered(id) {
            break id;
        }
        scenario.wait(id).expect("a write");
        written.push(data);
    };
    assert!(written.len() >= 64, "only {} of 128 slots could be used", written.len());
    let before = scenario.snapshot().counters.checkpoints;
    // A trim needs no slot and passes the write that waits for one; so does a flush after it. Each takes a page of the ring, so the ring is full
    // again and again, and only a checkpoint makes room in it.
    for round in 0..200 {
        let block = round % written.len() as u64;
        scenario.expect(block, &written[block as usize]);
        let trim = scenario.send(scenario.block(300 + round), Command::Trim { fua: false });
        scenario.wait(trim).expect("a trim");
        scenario.flush();
    }
    let checkpoints = scenario.snapshot().counters.checkpoints - before;
    assert!(checkpoints > 3, "only {checkpoints} checkpoints with the origin dead");
    assert!(!scenario.is_answered(blocked), "there is no room yet");
    // So does a trim of something dirty.
    let trim = scenario.send(scenario.block(0), Command::Trim { fua: false });
    scenario.wait(trim).expect("a trim");
    scenario.flush();
    assert!(!scenario.is_answered(blocked), "there is still no room");
    scenario.origin_comes_back(false);
    scenario.wait(blocked).expect("there is room again");
    scenario.drain();
    for (block, data) in written.iter().enumerate().skip(1) {
        assert_eq!(scenario.on_origin(block as u64)[1], stamps(data));
    }
}

#[test]
fn an_unreadable_dirty_slot_costs_its_own_atoms_only_and_its_set_is_freed() {
    let mut scenario = Scenario::new();
    let blocks: Vec<Stamps> = (0..16).map(|block| scenario.write(block)).collect();
    scenario.flush();
    let place = scenario.places(blocks[5].stamp(3))[0];
    scenario.rot(place);
    scenario.drain();
    assert_eq!(scenario.snapshot().dirty_slots, 0, "nothing blocks its set for ever");
    assert!(scenario.snapshot().counters.lost_blocks > 0);
    for (block, data) in blocks.iter().enumerate() {
        if block == 5 {
            assert_eq!(scenario.read(scenario.block(5)), Err(RequestError::Io), "lost, and said so");
        } else {
            scenario.expect(block as u64, data);
            assert_eq!(scenario.on_origin(block as u64)[1], stamps(data));
        }
    }
    // It stays lost over a crash, until it is written.
    scenario.flush();
    scenario.power_cut(Survive::None);
    assert_eq!(scenario.read(scenario.block(5)), Err(RequestError::Io));
    let new = scenario.write(5);
    scenario.expect(5, &new);
    scenario.drain();
    assert_eq!(scenario.on_origin(5)[1], stamps(&new));
}

#[test]
fn a_partial_write_over_an_unreadable_slot_does_not_make_up_the_rest() {
    for zeroed_before in [false, true] {
        let mut scenario = Scenario::new();
        if zeroed_before {
            scenario.zero(scenario.block(5));
        }
        let old = scenario.write(5);
        scenario.flush();
        scenario.power_cut(Survive::None);
        let place = scenario.places(old.stamp(0))[0];
        scenario.rot(place + 6);
        let (id, part) = scenario.send_write(Span::new(scenario.block(5).start, 2), false);
        if scenario.wait(id).is_ok() {
            assert_eq!(scenario.read(Span::new(scenario.block(5).start, 2)), Ok(stamps(&part)), "what was written is there");
        }
        let rest = Span::new(scenario.block(5).start + 2, 6);
        assert_eq!(scenario.read(rest), Err(RequestError::Io), "the rest is lost (zeroed before: {zeroed_before})");
    }
}

#[test]
fn trim_of_a_dirty_block_never_shows_the_origins_older_data() {
    for survive in [Survive::None, Survive::All, Survive::Random, Survive::Torn] {
        for drained in [false, true] {
            let mut scenario = Scenario::new();
            scenario.write(5);
            scenario.flush();
            scenario.trim(scenario.block(5));
            if drained {
                scenario.drain();
            }
            scenario.read(scenario.block(5)).expect("old or zeros, says the oracle");
            scenario.power_cut(survive.clone());
            scenario.read(scenario.block(5)).expect("and the same again if it was flushed");
            scenario.drain();
            scenario.read(scenario.block(5)).expect("and from the origin");
        }
    }
}

#[test]
fn writes_inside_a_zeroed_range_survive_its_destage_in_either_order() {
    for crash_after in 0..12 {
        let mut scenario = Scenario::new();
        let before = scenario.write(3);
        scenario.zero(scenario.blocks(0, 8));
        let after = scenario.write(4);
        scenario.flush();
        assert_ne!(stamps(&before), stamps(&after));
        scenario.simulation.control(tidegate_engine::Control::Drain);
        for _ in 0..crash_after {
            scenario.step();
        }
        scenario.power_cut(Survive::Random);
        scenario.expect(3, &Stamps::from_stamps(&[0; 8]));
        scenario.expect(4, &after);
        scenario.drain();
        for block in 0..8 {
            let holds = if block == 4 { stamps(&after) } else { vec![0; 8] };
            assert_eq!(scenario.on_origin(block)[1], holds, "block {block}, crash after {crash_after} steps");
        }
    }
}

#[test]
fn a_hundred_thousand_scattered_trims_stay_within_the_table() {
    const BLOCKS: u64 = 200_000;
    let geometry = Geometry { volume_atoms: BLOCKS * 8, ..plan().config.geometry };
    let mut scenario = Scenario::of(plan_for(geometry));
    scenario.simulation.scene.trace.lines = None;
    scenario.simulation.scene.noted = Some(Vec::new());
    for trim in 0..100_000 {
        scenario.trim(scenario.block(trim * 2));
        if trim % 1_000 == 0 {
            let snapshot = scenario.snapshot();
            assert!(snapshot.zero_ranges <= u64::from(geometry.range_entries), "{} ranges", snapshot.zero_ranges);
            scenario.forget_noted();
        }
    }
    scenario.read(scenario.blocks(0, 64)).expect("old or zeros");
    scenario.power_cut(Survive::Random);
    scenario.read(scenario.blocks(0, 64)).expect("old or zeros");
}

#[test]
fn zeroes_never_get_lost_though_the_table_is_full() {
    let geometry = Geometry { volume_atoms: 2_000 * 8, range_entries: 16, ..plan().config.geometry };
    let mut scenario = Scenario::of(plan_for(geometry));
    for block in (0..200).step_by(2) {
        scenario.zero(scenario.block(block));
    }
    for block in 0..200 {
        let holds = if block % 2 == 0 { Stamps::from_stamps(&[0; 8]) } else { scenario.first(block) };
        scenario.expect(block, &holds);
    }
}

/// Zeroes or a TRIM for which the table has no room wait for the origin. Who writes elsewhere does not, and who writes there comes after them,
/// whether the origin comes back or they fail.
#[test]
fn what_waits_for_the_range_table_keeps_nobody_waiting_who_writes_elsewhere() {
    for (trims, comes_back) in [(false, true), (false, false), (true, true), (true, false)] {
        let geometry = Geometry { volume_atoms: 2_000 * 8, range_entries: 16, ..plan().config.geometry };
        let mut scenario = Scenario::of(plan_for(geometry));
        scenario.origin_goes();
        let command = || if trims { Command::Trim { fua: false } } else { Command::Zero { no_hole: true, fua: false, fast: false } };
        let mut at = 2;
        scenario.write(at);
        let waits = loop {
            assert!(at < 100, "the table takes more than it has room for");
            scenario.write(at + 2);
            let asked = scenario.send(scenario.block(at), command());
            scenario.run_until_quiet();
            at += 2;
            if !scenario.is_answered(asked) {
                break asked;
            }
        };
        // One more, and a write of its block that has waited as long as it has.
        let span = scenario.block(at);
        let newest = scenario.simulation.scene.load.fresh(span);
        let asked = scenario.send_at_once([(span, command()), (span, Command::Write { data: newest.clone(), fua: false })]);
        let part = Span::new(scenario.block(1_001).start, 2);
        // One of them over zeroes that are in the table.
        let elsewhere = [scenario.block(1_000), scenario.block(2), part].map(|span| scenario.send_write(span, false).0);
        scenario.run_until_quiet();
        for write in elsewhere {
            assert!(scenario.is_answered(write), "trims: {trims}");
            scenario.wait(write).expect("a write");
        }
        assert!([waits, asked[0], asked[1]].iter().all(|&request| !scenario.is_answered(request)));
        if comes_back {
            scenario.origin_comes_back(false);
        } else {
            scenario.advance(Duration::from_secs(100));
        }
        for request in [waits, asked[0]] {
            assert_eq!(scenario.wait(request), if comes_back { Ok(Vec::new()) } else { Err(RequestError::Io) });
        }
        scenario.wait(asked[1]).expect("a write");
        assert_eq!(scenario.snapshot().counters.stalled_requests, if comes_back { 0 } else { 2 });
        scenario.expect(at, &newest);
    }
}

#[test]
fn sets_of_512_and_2048_slots_blocks_of_512_b_and_64_kib() {
    for (set_slots, block_atoms, blocks) in [(512, 8, 3_000), (2_048, 8, 4_000), (64, 1, 500), (16, 128, 60), (2_048, 1, 9_000)] {
        let geometry = Geometry {
            block_atoms,
            set_slots,
            sets: 16,
            journal_pages: 256,
            volume_atoms: blocks * u64::from(block_atoms) - u64::from(block_atoms / 2),
            range_entries: 252,
        };
        for seed in 0..3 {
            let mut plan = plan_for(geometry);
            plan.seed = seed;
            plan.config.flush_age = Duration::from_millis(50);
            plan.config.max_dirty_age = Duration::from_millis(500);
            plan.mix = tidegate_sim::front::load::Mix { blocks_max: 2_048 / u64::from(block_atoms), ..MIXES[seed as usize] };
            plan.requests = 600;
            plan.crashes = 3;
            let ended = run(plan, None);
            assert_eq!(ended.broken, None, "sets of {set_slots} slots, blocks of {block_atoms} atoms, seed {seed}");
        }
    }
}

/// Writes so many blocks in so many rounds, such that neighbours lie in different sets of the cache, and takes all of them home.
fn drain_scattered(geometry: Geometry, blocks: u64, rounds: u64) -> Scenario {
    let mut plan = plan_for(geometry);
    plan.config.destage_atoms = 1 << 21;
    let mut scenario = Scenario::of(plan);
    for round in 0..rounds {
        for block in (round..blocks).step_by(rounds as usize) {
            scenario.write(block);
        }
        scenario.flush();
    }
    assert_eq!((scenario.snapshot().dirty_slots, scenario.snapshot().counters.destage_batches), (blocks, 0));
    scenario.drain();
    scenario
}

#[test]
fn a_large_batch_whose_blocks_lie_here_and_there_is_told_to_a_small_ring() {
    // Ten sets, to be told with a bitmap each. As many words as there are blocks would never find room.
    let geometry = Geometry { set_slots: 256, sets: 24, volume_atoms: 2_560 * 8, ..plan().config.geometry };
    let scenario = drain_scattered(geometry, 2_560, 10);
    assert_eq!(scenario.snapshot().counters.destage_batches, 1);
}

#[test]
fn a_batch_ends_where_a_sixteenth_of_the_ring_is_needed_to_tell_it() {
    // Four pages, of a hundred entries each, one for each set: in every four hundred blocks lie four hundred sets.
    let geometry = Geometry { sets: 600, volume_atoms: 4_000 * 8, ..plan().config.geometry };
    let scenario = drain_scattered(geometry, 4_000, 500);
    assert_eq!(scenario.snapshot().counters.destage_batches, 10);
}

//! What a crash may leave, situation by situation. The oracle listens to every reply in all of them (`sim/src/front/oracle.rs`); what is
//! asserted here besides is that the situation really came about.

use crate::common::{journal_pages, newest_superblock, only, superblocks};
use crate::fault_points::{NONE, cut, forge, lived, start};
use tidegate_engine::Control;
use tidegate_engine::block::{ATOM_BYTES, PAGE_ATOMS, Slot, Span};
use tidegate_engine::cache::format::{FormatId, Header, NUMBER_END, PageHead, RangeKind, Record, Step, Superblock, create_steps};
use tidegate_engine::fault_point::FaultPoint;
use tidegate_engine::op::{DeviceId, Zone};
use tidegate_engine::payload::Payload;
use tidegate_engine::probe::{Phase, Recovering};
use tidegate_engine::request::RequestError;
use tidegate_engine::time::Duration;
use tidegate_sim::back::fault::Fault;
use tidegate_sim::back::volatile::Survive;
use tidegate_sim::scenario::{Scenario, plan};
use tidegate_sim::stamp::Stamps;
use tidegate_sim::world::{Crash, Noted, Simulation};

/// Slots of a set in these scenarios.
const SLOTS: u64 = 8;

/// Fills one set; its headers have been written and are not flushed.
fn one_sealed_set(scenario: &mut Scenario) -> Vec<Stamps> {
    let mut blocks: Vec<Stamps> = (0..SLOTS - 1).map(|block| scenario.write(block)).collect();
    scenario.flush();
    blocks.push(scenario.write(SLOTS - 1));
    scenario.flush();
    scenario.run_until_quiet();
    let sealed = |zone| scenario.noted().iter().any(|op| op.zone == Some(zone) && op.writes && op.ended.is_some());
    assert!(sealed(Zone::Header) && sealed(Zone::HeaderCopy), "the set was sealed and its headers went out");
    blocks
}

fn expect_all(scenario: &mut Scenario, blocks: &[Stamps]) {
    for (block, data) in blocks.iter().enumerate() {
        scenario.expect(block as u64, data);
    }
}

#[test]
fn a_header_torn_at_any_512_bytes_loses_nothing() {
    for atoms in 0..=PAGE_ATOMS {
        let mut scenario = Scenario::new();
        let blocks = one_sealed_set(&mut scenario);
        scenario.power_cut(only(move |zone, atom| !matches!(zone, Zone::Header | Zone::HeaderCopy) || atom % PAGE_ATOMS < atoms));
        expect_all(&mut scenario, &blocks);
        // And when the journal has forgotten the set, one torn copy is as good as none.
        let spare = scenario.checkpoints(3, 40);
        scenario.crash(Crash::Power { cache: Survive::All, origin: Survive::All });
        let header = scenario.geometry().header(0).start;
        (atoms..PAGE_ATOMS).for_each(|atom| scenario.rot(header + atom));
        scenario.recover();
        expect_all(&mut scenario, &blocks);
        scenario.expect(40, &spare);
    }
}

#[test]
fn a_lost_header_write_is_noticed_by_its_life_and_the_copy_serves() {
    let mut scenario = Scenario::new();
    let mut blocks = Vec::new();
    // Every set gets an old header first; then one header of a later life is lost, and nobody is told.
    for round in 0..6 {
        if round == 5 {
            scenario.fail_next(Zone::Header, Fault::Lost);
        }
        blocks = (0..64).map(|block| scenario.write(block)).collect();
        scenario.flush();
    }
    scenario.run_until_quiet();
    blocks[63] = scenario.checkpoints(3, 63);
    scenario.power_cut(Survive::None);
    expect_all(&mut scenario, &blocks);
    let told = scenario.simulation.engine.damage().iter().any(|damage| !damage.fatal && damage.what.contains("header"));
    let counted = scenario.snapshot().damage.iter().any(|damage| damage.what.contains("header"));
    assert!(told || counted, "the stale header was noticed: {:?}", scenario.snapshot().damage);
}

/// Asserts that a journal page that is still needed is only ever written with the bytes it holds. (One behind a cut is not.)
fn check_journal_writes(scenario: &Scenario, from: usize) {
    let geometry = scenario.geometry();
    let superblocks = superblocks(scenario, true);
    let needed = superblocks.iter().map(|superblock| superblock.previous.seq.min(superblock.checkpoint.seq)).min();
    let voided = |page: &PageHead| superblocks.iter().all(|superblock| page.epoch < superblock.epoch && page.seq >= superblock.cut);
    let pages = journal_pages(scenario, true);
    for op in scenario.noted()[from..].iter().filter(|op| op.zone == Some(Zone::Journal) && op.writes) {
        let mut bytes = Vec::new();
        op.data.iter().for_each(|part| part.append_to(&mut bytes));
        for (index, new) in bytes.chunks(4096).enumerate() {
            let place = ((op.span.start - geometry.journal().start) / PAGE_ATOMS) as u32 + index as u32;
            let Some((_, page)) = pages.iter().find(|(at, _)| *at == place) else { continue };
            let same = scenario.simulation.scene.cache.durable().page_bytes(geometry.journal_page(place).start) == new;
            let spent = page.head.seq < needed.unwrap_or(0) || voided(&page.head);
            assert!(same || spent, "page {} at place {place} is needed from {needed:?}", page.head.seq);
        }
    }
}

#[test]
fn a_flushed_journal_page_is_never_written_again_with_other_bytes() {
    let mut scenario = Scenario::new();
    let mut chance = scenario.chance("blocks");
    let mut seen = 0;
    for round in 0..400 {
        let (id, _) = scenario.send_write(scenario.block(chance.below(64)), chance.one_in(3));
        if chance.one_in(20) {
            scenario.fail_next_flush(DeviceId::Cache);
        }
        if chance.one_in(30) {
            scenario.fail_next(Zone::Journal, Fault::Error);
        }
        for _ in 0..200 {
            check_journal_writes(&scenario, seen);
            seen = scenario.noted().len();
            if scenario.is_answered(id) {
                break;
            }
            scenario.step();
        }
        let _ = scenario.wait(id);
        if round % 97 == 96 {
            scenario.power_cut(Survive::Random);
            seen = scenario.noted().len();
        }
    }
    assert!(scenario.snapshot().counters.journal_pages > 0);
}

/// Waits until `count` journal pages of flushes that cannot end have been written.
fn flush_in_vain(scenario: &mut Scenario) {
    scenario.hold_flush(DeviceId::Cache);
    scenario.send_flush();
    scenario.run_until_quiet();
}

fn last_journal_write(scenario: &Scenario) -> Span {
    let write = scenario.noted().iter().rev().find(|op| op.zone == Some(Zone::Journal) && op.writes);
    write.expect("a journal page was written").span
}

#[test]
fn pages_of_a_cut_epoch_never_follow_the_next_epochs_pages() {
    let mut scenario = Scenario::new();
    let old = scenario.write(2);
    scenario.flush();
    scenario.write(1);
    flush_in_vain(&mut scenario);
    let lost = last_journal_write(&scenario);
    scenario.write(2);
    scenario.send_flush();
    scenario.run_until_quiet();
    let orphan = last_journal_write(&scenario);
    assert_ne!(lost, orphan, "two groups, two pages");
    // The page of the first group is lost, the one of the second survives with its data.
    scenario.power_cut(only(move |_, atom| !(lost.start..lost.end()).contains(&atom)));
    scenario.expect(2, &old);
    let first = scenario.first(1);
    scenario.expect(1, &first);
    // The new epoch fills the gap; what followed it once must not follow it now.
    let new = scenario.write(3);
    scenario.flush();
    scenario.power_cut(Survive::None);
    scenario.expect(3, &new);
    scenario.expect(2, &old);
}

#[test]
fn a_read_after_a_crash_survives_a_second_crash_at_once() {
    for survive in [Survive::None, Survive::All, Survive::Random, Survive::Torn] {
        for second in [Survive::None, Survive::Random] {
            let mut scenario = Scenario::new();
            (0..4).for_each(|block| drop(scenario.write(block)));
            scenario.flush();
            (2..6).for_each(|block| drop(scenario.write(block)));
            flush_in_vain(&mut scenario);
            scenario.power_cut(survive.clone());
            let read: Vec<_> = (0..6).map(|block| scenario.read(scenario.block(block)).expect("a block")).collect();
            scenario.power_cut(second);
            let again: Vec<_> = (0..6).map(|block| scenario.read(scenario.block(block)).expect("a block")).collect();
            assert_eq!(read, again);
        }
    }
}

/// What a failed flush covered is seen until the power goes, and no later flush makes it durable.
#[test]
fn the_tail_is_written_again_until_that_succeeds() {
    for failures in [0, 1, 3] {
        let mut scenario = Scenario::new();
        (0..8).for_each(|block| drop(scenario.write(block)));
        scenario.flush();
        (0..8).for_each(|block| drop(scenario.write(block)));
        scenario.fail_next_flush(DeviceId::Cache);
        scenario.try_flush().expect_err("it fails");
        scenario.crash(Crash::Kill(Survive::None));
        // It is read before it is written.
        scenario.fail_next(Zone::Data, NONE);
        (0..failures).for_each(|_| scenario.fail_next(Zone::Data, Fault::Error));
        scenario.recover();
        let read: Vec<_> = (0..8).map(|block| scenario.read(scenario.block(block)).expect("a block")).collect();
        scenario.power_cut(Survive::None);
        let again: Vec<_> = (0..8).map(|block| scenario.read(scenario.block(block)).expect("a block")).collect();
        assert_eq!(read, again, "{failures} failures");
        assert_eq!(scenario.simulation.faults().has(FaultPoint::RewriteFailed), failures > 0);
    }
}

#[test]
fn a_retry_of_the_same_bytes_does_not_revive_a_rejected_group() {
    let mut scenario = Scenario::new();
    scenario.write(9);
    scenario.flush();
    // One group of two writes; its page survives and the data of the second write, but not that of the first.
    let retried = scenario.write(4);
    let other = scenario.write(5);
    flush_in_vain(&mut scenario);
    let place = scenario.places(retried.stamp(0))[0];
    scenario.power_cut(only(move |_, atom| !(place..place + 8).contains(&atom)));
    let (first_4, first_5) = (scenario.first(4), scenario.first(5));
    scenario.expect(4, &first_4);
    scenario.expect(5, &first_5);
    assert_eq!(scenario.places(other.stamp(0)).len(), 1, "the data of the rejected group still lies there");
    // The client tries again; the bytes land where they were missing, and their new record is lost.
    scenario.rewrite(4, &retried);
    assert_eq!(scenario.places(retried.stamp(0)), [place], "the retry completes the rejected group");
    scenario.power_cut(only(|zone, _| zone == Zone::Data));
    scenario.expect(5, &first_5);
}

#[test]
fn a_write_error_in_the_tail_does_not_cut_the_flush_behind_it() {
    let mut scenario = Scenario::new();
    scenario.fail_next(Zone::Data, Fault::Error);
    let moved = scenario.write(1);
    let behind = scenario.write(2);
    scenario.flush();
    let data_writes = |op: &&Noted| op.zone == Some(Zone::Data) && op.writes;
    assert_eq!(scenario.noted().iter().filter(data_writes).count(), 3, "one write was made twice");
    scenario.power_cut(Survive::None);
    scenario.expect(1, &moved);
    scenario.expect(2, &behind);
}

#[test]
fn fua_after_unflushed_writes_survives_a_power_cut() {
    let mut scenario = Scenario::new();
    let before = scenario.write(1);
    let with_fua = scenario.write_fua(2);
    scenario.power_cut(Survive::None);
    scenario.expect(1, &before);
    scenario.expect(2, &with_fua);
}

#[test]
fn a_failed_flush_keeps_later_flushes_failing_until_rewritten_and_the_ring_has_no_gap() {
    let mut scenario = Scenario::new();
    let data = scenario.write(1);
    scenario.fail_next_flush(DeviceId::Cache);
    assert_eq!(scenario.try_flush(), Err(RequestError::Io));
    let failed = scenario.noted().len();
    while scenario.try_flush().is_err() {}
    // Between the failed flush and the one that succeeded everything went out again.
    let after = &scenario.noted()[failed..];
    let flush = after.iter().position(|op| op.zone.is_none()).expect("another flush");
    for zone in [Zone::Data, Zone::Journal] {
        let again = scenario.noted()[..failed + flush].iter().filter(|op| op.zone == Some(zone) && op.writes).count();
        assert!(again >= 2, "{zone:?} was written again before the next flush");
    }
    let later = scenario.write(2);
    scenario.flush();
    scenario.power_cut(Survive::None);
    scenario.expect(1, &data);
    scenario.expect(2, &later);
}

#[test]
fn a_state_map_rotted_after_its_checkpoint_is_replaced_by_the_one_before() {
    let mut scenario = Scenario::new();
    let mut blocks: Vec<Stamps> = (0..40).map(|block| scenario.write(block)).collect();
    blocks.push(scenario.checkpoints(3, 40));
    scenario.crash(Crash::Power { cache: Survive::None, origin: Survive::None });
    let newest = newest_superblock(&scenario).checkpoint;
    assert!(newest.number >= 2);
    scenario.rot(scenario.geometry().map_page(newest.area, 0).start + 3);
    scenario.recover();
    expect_all(&mut scenario, &blocks);
    assert!(scenario.snapshot().damage.iter().any(|damage| !damage.fatal), "the rotten map was noticed");
    // And life goes on, through the next checkpoints and crashes.
    blocks[40] = scenario.checkpoints(2, 40);
    scenario.power_cut(Survive::None);
    expect_all(&mut scenario, &blocks);
}

#[test]
fn a_gap_below_the_durable_mark_fails_closed_with_its_offset() {
    let mut scenario = Scenario::new();
    for block in 0..6 {
        scenario.write(block);
        scenario.flush();
    }
    scenario.crash(Crash::Power { cache: Survive::None, origin: Survive::None });
    let pages = journal_pages(&scenario, true);
    let newest = pages.iter().map(|(_, page)| page.head.seq).max().expect("pages");
    let (place, _) = *pages.iter().find(|(_, page)| page.head.seq + 3 == newest).expect("a page in the middle");
    let page = scenario.geometry().journal_page(place);
    scenario.rot(page.start + 1);
    let damage = scenario.recover_expect_refusal();
    let offset = page.offset().to_string();
    assert!(damage.iter().any(|damage| damage.fatal && damage.what.contains(&offset)), "the offset {offset} is named: {damage:?}");
}

#[test]
fn a_journal_page_that_cannot_be_written_goes_elsewhere() {
    let mut scenario = Scenario::new();
    let data = scenario.write(1);
    scenario.fail_next(Zone::Journal, Fault::Error);
    scenario.flush();
    let places: Vec<Span> = scenario.noted().iter().filter(|op| op.zone == Some(Zone::Journal) && op.writes).map(|op| op.span).collect();
    assert!(places.len() == 2 && places[0] != places[1], "another place: {places:?}");
    scenario.power_cut(Survive::None);
    scenario.expect(1, &data);
    let later = scenario.write(2);
    scenario.flush();
    scenario.power_cut(Survive::None);
    scenario.expect(1, &data);
    scenario.expect(2, &later);
}

/// A second format of the same SSD.
const SECOND: FormatId = FormatId([0xa5; 16]);

fn second_superblock() -> Superblock {
    let plan = plan();
    Superblock::new(SECOND, plan.config.geometry, [8; 16], [0; 16])
}

#[test]
fn half_a_format_is_no_format() {
    let steps = create_steps(&second_superblock());
    let zeroed = steps.iter().position(|step| *step == Step::Flush).expect("zeroes, then a flush");
    for done in zeroed..steps.len() {
        for format in [plan().config.format, SECOND] {
            let mut scenario = Scenario::new();
            scenario.write(1);
            scenario.flush();
            scenario.crash(Crash::Power { cache: Survive::None, origin: Survive::None });
            for step in &steps[..done] {
                if let Step::Write(zone, span, bytes) = step {
                    scenario.simulation.scene.cache.scribble(*zone, span.start, Stamps::from_bytes(bytes));
                }
            }
            scenario.simulation.plan.config.format = format;
            let formatted = done > zeroed + 1 && format == SECOND;
            if formatted {
                scenario.begin_recovery();
                while *scenario.simulation.engine.phase() == Phase::Recovering {
                    scenario.step();
                }
                assert_eq!(*scenario.simulation.engine.phase(), Phase::Serving, "one superblock is enough");
            } else {
                scenario.recover_expect_refusal();
            }
        }
    }
}

#[test]
fn a_wiped_and_reformatted_ssd_shows_nothing_of_its_former_life() {
    let mut former = Scenario::new();
    (0..64).for_each(|block| drop(former.write(block)));
    former.checkpoints(2, 3);
    former.crash(Crash::Power { cache: Survive::All, origin: Survive::All });
    let mut plan = plan();
    plan.config.format = SECOND;
    let cache = tidegate_sim::world::formatted(&plan, former.simulation.scene.cache.durable().clone());
    let mut scenario = Scenario::begin(Simulation::with_cache(plan, cache));
    scenario.until_serving();
    for round in 0..6 {
        let mut written = Vec::new();
        for block in 0..8 {
            written.push(scenario.write(block));
            scenario.flush();
        }
        scenario.power_cut(if round % 2 == 0 { Survive::None } else { Survive::All });
        expect_all(&mut scenario, &written);
        for block in 8..64 {
            let first = scenario.first(block);
            scenario.expect(block, &first);
        }
    }
}

#[test]
fn a_recovery_tells_how_far_it_is_and_that_nothing_is_known_before_it_has_ended() {
    let mut scenario = Scenario::new();
    one_sealed_set(&mut scenario);
    scenario.checkpoints(1, 40);
    scenario.crash(Crash::Power { cache: Survive::All, origin: Survive::All });
    scenario.begin_recovery();
    let mut steps = Vec::new();
    while let Some(Recovering { step, done, of }) = scenario.snapshot().recovery {
        assert!(done <= of && !scenario.snapshot().has_served);
        let (last, before, all) = steps.pop().unwrap_or((step, 0, 0));
        if last != step {
            steps.push((last, before, all));
        } else if all == of {
            assert!(before <= done, "{step:?} goes back");
        }
        steps.push((step, done, of));
        scenario.step();
    }
    assert!(scenario.snapshot().has_served && *scenario.simulation.engine.phase() == Phase::Serving);
    let names: Vec<&str> = steps.iter().map(|(step, ..)| step.name()).collect();
    assert_eq!(names, ["superblocks", "metadata", "tail", "headers", "writing"]);
    assert!(steps.iter().all(|(.., of)| *of > 0), "{steps:?}");
}

#[test]
fn dirty_blocks_are_served_before_clean_headers_are_read() {
    let mut scenario = Scenario::new();
    // Clean sets, sealed and known to the checkpoint; one dirty block after them.
    (0..40).for_each(|block| drop(scenario.write(block)));
    scenario.flush();
    scenario.drain();
    scenario.checkpoints(3, 63);
    scenario.drain();
    let dirty = scenario.write(50);
    scenario.flush();
    scenario.crash(Crash::Power { cache: Survive::None, origin: Survive::None });
    let before = scenario.noted().len();
    scenario.begin_recovery();
    scenario.until_serving();
    scenario.expect(50, &dirty);
    let late = |op: &&Noted| op.zone == Some(Zone::Header) && !op.writes && op.ended.is_none();
    assert!(scenario.noted()[before..].iter().any(|op| late(&op)), "headers of clean sets are still being read");
    scenario.run_until_quiet();
    assert!(scenario.snapshot().live_slots >= 40, "clean blocks are warm again");
}

#[test]
fn a_set_of_which_a_late_header_tells_only_what_was_replaced_is_free_at_once() {
    let mut scenario = Scenario::new();
    (0..40).for_each(|block| drop(scenario.write(block)));
    scenario.flush();
    scenario.drain();
    scenario.checkpoints(3, 63);
    scenario.drain();
    scenario.crash(Crash::Power { cache: Survive::None, origin: Survive::None });
    scenario.hold(Zone::Header);
    scenario.begin_recovery();
    scenario.until_serving();
    // Everything that was clean is written again, and durable, before anybody knows where the clean blocks lie.
    let data: Vec<Stamps> = (0..40).map(|block| scenario.write(block)).collect();
    scenario.flush();
    scenario.run_until_quiet();
    assert!(!scenario.simulation.engine.is_warm(), "the headers are still to come");
    let before = scenario.snapshot();
    scenario.release(Zone::Header);
    scenario.run_until_quiet();
    // What they describe is mapped between requests.
    scenario.advance(Duration::from_millis(1));
    let after = scenario.snapshot();
    assert!(scenario.simulation.engine.is_warm());
    assert_eq!(after.live_slots, before.live_slots - 40, "what was replaced is dead");
    assert_eq!(after.free_sets, before.free_sets + 5, "and nobody has to say or flush anything for its sets to be free");
    expect_all(&mut scenario, &data);
}

#[test]
fn a_new_lifes_header_never_lands_before_its_open_is_durable() {
    let mut scenario = Scenario::new();
    let mut chance = scenario.chance("blocks");
    let (geometry, format) = (scenario.geometry(), scenario.simulation.plan.config.format);
    let mut checked = 0;
    let mut seen = 0;
    // The newest life of each set that a durable OPEN has begun.
    let mut opened = vec![0; geometry.sets as usize];
    for _ in 0..300 {
        let first = chance.below(56);
        let (id, _) = scenario.send_write(scenario.blocks(first, 8), chance.one_in(4));
        while !scenario.is_answered(id) {
            for (_, page) in journal_pages(&scenario, true) {
                for record in &page.records {
                    if let Record::Open { set, life, .. } = record {
                        opened[*set as usize] = life.max(&opened[*set as usize]).to_owned();
                    }
                }
            }
            for op in scenario.noted()[seen..].iter().filter(|op| op.zone == Some(Zone::Header) && op.writes) {
                let mut bytes = Vec::new();
                op.data.iter().for_each(|part| part.append_to(&mut bytes));
                let first = (op.span.start - geometry.headers().start) / geometry.header_atoms();
                for (set, header) in (first as u32..).zip(bytes.chunks((geometry.header_atoms() * ATOM_BYTES) as usize)) {
                    let header = Header::decode(header, &geometry, format, set, false).expect("a header");
                    assert!(opened[set as usize] >= header.life, "set {set} of life {} was not opened durably", header.life);
                    checked += 1;
                }
            }
            seen = scenario.noted().len();
            scenario.step();
        }
        let _ = scenario.wait(id);
    }
    assert!(checked > 50, "{checked} headers were written");
}

#[test]
fn a_rejected_seals_header_is_never_taken_for_its_successors() {
    let mut scenario = Scenario::new();
    let mut blocks: Vec<Stamps> = (0..SLOTS - 1).map(|block| scenario.write(block)).collect();
    scenario.flush();
    // The set is sealed by a write whose group is lost; its headers survive.
    scenario.write(20);
    flush_in_vain(&mut scenario);
    let page = last_journal_write(&scenario);
    let sealed = scenario.noted().iter().filter(|op| op.zone == Some(Zone::Header) && op.writes).count();
    assert_eq!(sealed, 1, "the header of the rejected SEAL went out");
    scenario.power_cut(only(move |_, atom| !(page.start..page.end()).contains(&atom)));
    let first = scenario.first(20);
    scenario.expect(20, &first);
    // Another block takes the slot, the set is sealed again in the same life; of that everything survives but its headers.
    blocks.push(scenario.write(SLOTS - 1));
    scenario.flush();
    scenario.run_until_quiet();
    scenario.power_cut(only(|zone, _| !matches!(zone, Zone::Header | Zone::HeaderCopy)));
    expect_all(&mut scenario, &blocks);
    scenario.expect(20, &first);
    // After a checkpoint only headers tell what the set holds.
    scenario.checkpoints(3, 40);
    scenario.power_cut(Survive::None);
    expect_all(&mut scenario, &blocks);
    scenario.expect(20, &first);
}

#[test]
fn two_crashes_never_tear_both_superblocks() {
    // Half of every superblock write that is not flushed survives.
    let torn = || only(|zone, atom| zone != Zone::Superblock || atom % PAGE_ATOMS < 4);
    let mut steps = [0, 0];
    loop {
        let mut scenario = Scenario::new();
        let data = scenario.write_fua(1);
        scenario.crash(Crash::Power { cache: Survive::None, origin: Survive::None });
        for (crash, step) in steps.iter().enumerate() {
            scenario.begin_recovery();
            for _ in 0..*step {
                scenario.step();
            }
            if *scenario.simulation.engine.phase() == Phase::Serving {
                // Every step of this recovery was tried: on to the next step of the one before.
                steps[crash] = usize::MAX;
                break;
            }
            scenario.crash(Crash::Power { cache: torn(), origin: Survive::None });
        }
        match steps {
            [usize::MAX, _] => return,
            [first, usize::MAX] => steps = [first + 1, 0],
            [first, second] => {
                scenario.recover();
                scenario.expect(1, &data);
                steps = [first, second + 1];
            }
        }
    }
}

#[test]
fn a_checkpoint_waits_for_its_restates() {
    // Up to the checkpoint, then so many steps, then a crash that takes every unflushed journal page and leaves the rest.
    let mut tried = 0;
    for steps in 0..60 {
        let mut scenario = Scenario::new();
        let mut blocks: Vec<Stamps> = (0..12).map(|block| scenario.write(block)).collect();
        scenario.flush();
        let begun = |scenario: &Scenario| scenario.noted().iter().any(|op| op.zone == Some(Zone::Map) && op.writes);
        while !begun(&scenario) {
            blocks[3] = scenario.write(3);
            scenario.flush();
        }
        for _ in 0..steps {
            if scenario.simulation.is_busy() {
                scenario.step();
            }
        }
        tried += u32::from(scenario.snapshot().counters.checkpoints == 0);
        scenario.power_cut(only(|zone, _| zone != Zone::Journal));
        expect_all(&mut scenario, &blocks);
    }
    assert!(tried > 3, "{tried} crashes fell into the checkpoint");
}

#[test]
fn an_old_headers_rewrite_never_lands_on_a_new_life() {
    let mut scenario = Scenario::new();
    one_sealed_set(&mut scenario);
    scenario.crash(Crash::Power { cache: Survive::All, origin: Survive::All });
    // Recovery writes the header of the replayed SEAL again, and that write hangs.
    scenario.hold(Zone::Header);
    scenario.recover();
    scenario.run_until_quiet();
    let before = scenario.noted().len();
    let set = scenario.geometry().set(0);
    let header = scenario.geometry().header(0);
    let rewrite = |scenario: &Scenario| scenario.noted().iter().any(|op| op.span == header && op.writes && op.ended.is_none());
    assert!(rewrite(&scenario), "the old header is on its way");
    // Everything in the set is overwritten, and the cache is short of sets: it must not be taken before the write has ended.
    for round in 0..6 {
        for block in 0..48 {
            scenario.send_write(scenario.block(block), false);
            scenario.run_until_quiet();
        }
        scenario.send_flush();
        scenario.run_until_quiet();
        let reused = scenario.noted()[before..].iter().any(|op| op.zone == Some(Zone::Data) && op.writes && set.contains(op.span));
        assert!(!reused, "round {round}: set 0 began a new life under a header write of the old one");
    }
    scenario.release(Zone::Header);
    scenario.run_until_quiet();
    let blocks: Vec<Stamps> = (0..48).map(|block| scenario.write(block)).collect();
    scenario.flush();
    scenario.power_cut(Survive::None);
    expect_all(&mut scenario, &blocks);
}

#[test]
fn nothing_but_the_same_bytes_is_written_before_the_cut() {
    let mut scenario = Scenario::new();
    (0..12).for_each(|block| drop(scenario.write(block)));
    scenario.flush();
    (12..20).for_each(|block| drop(scenario.write(block)));
    flush_in_vain(&mut scenario);
    scenario.crash(Crash::Power { cache: Survive::All, origin: Survive::All });
    let found = scenario.simulation.scene.cache.durable().clone();
    let before = scenario.noted().len();
    scenario.begin_recovery();
    scenario.until_serving();
    let writes: Vec<&Noted> =
        scenario.noted()[before..].iter().take_while(|op| op.zone != Some(Zone::Superblock) || !op.writes).filter(|op| op.writes).collect();
    assert!(!writes.is_empty(), "the tail went out again");
    for op in writes {
        let stamps = |parts: &[Stamps]| parts.iter().flat_map(|part| part.stamps().collect::<Vec<_>>()).collect::<Vec<_>>();
        assert_eq!(stamps(&op.data), stamps(&found.read(op.span)), "{:?} {:?}", op.zone, op.span);
    }
}

/// What goes home while a stop writes its last superblock is not told behind the end of the log that this one names.
#[test]
fn what_goes_home_while_a_stop_is_sealed_does_not_keep_the_next_start_from_serving() {
    let mut scenario = Scenario::new();
    let data: Vec<Stamps> = (0..4).map(|block| scenario.write(block)).collect();
    scenario.flush();
    scenario.hold(Zone::Origin);
    scenario.simulation.control(Control::Drain);
    scenario.run_until_quiet();
    scenario.hold(Zone::Superblock);
    scenario.simulation.control(Control::Stop);
    scenario.run_until_quiet();
    scenario.release(Zone::Origin);
    scenario.run_until_quiet();
    scenario.release(Zone::Superblock);
    scenario.stop();
    scenario.recover();
    for (block, data) in data.iter().enumerate() {
        scenario.expect(block as u64, data);
    }
}

/// Sixteen sets of eight slots; headers wait until four are due.
fn held_back() -> Scenario {
    let mut plan = plan();
    plan.config.headers_together = 4;
    Scenario::of(plan)
}

fn headers_written(scenario: &Scenario) -> Vec<u64> {
    let of = |op: &&Noted| op.zone == Some(Zone::Header) && op.writes;
    let header = scenario.geometry().header_atoms();
    scenario.noted().iter().filter(of).map(|op| op.span.atoms / header).collect()
}

#[test]
fn headers_of_neighbours_come_together_in_one_write() {
    let mut scenario = held_back();
    let mut fill = |sets: std::ops::Range<u64>| {
        for set in sets {
            scenario.write_span(scenario.blocks(set * SLOTS, SLOTS));
            scenario.flush();
        }
        scenario.run_until_quiet();
        headers_written(&scenario)
    };
    assert_eq!(fill(0..3), [] as [u64; 0], "three are due");
    assert_eq!(fill(3..4), [4]);
}

#[test]
fn a_checkpoint_gets_the_headers_that_are_held_back() {
    let mut scenario = held_back();
    scenario.crash_at_every_step();
    let mut blocks: Vec<Stamps> = (0..2 * SLOTS).map(|block| scenario.write(block)).collect();
    scenario.flush();
    scenario.run_until_quiet();
    assert_eq!(headers_written(&scenario), [] as [u64; 0]);
    blocks[3] = scenario.checkpoints(3, 3);
    assert_eq!(headers_written(&scenario)[0], 2, "both at once, at the first checkpoint");
    scenario.power_cut(Survive::None);
    expect_all(&mut scenario, &blocks);
    assert!(scenario.crashes_tried() > 100);
}

#[test]
fn a_set_that_dies_before_its_header_is_written_needs_none() {
    let mut scenario = held_back();
    for _ in 0..6 {
        scenario.write_span(scenario.blocks(0, SLOTS));
        scenario.flush();
    }
    scenario.run_until_quiet();
    assert_eq!(headers_written(&scenario), [] as [u64; 0], "one set lives, five do not");
}

/// Forged. A set that is told once more, but not all of it, would count as untold: what the log has put there would die with its life, and again with
/// its block.
#[test]
fn a_set_that_is_told_again_in_part_still_has_live_slots() {
    let mut scenario = lived();
    cut(&mut scenario);
    let mut forge = forge(&mut scenario);
    let mut journal = forge.journal();
    // Not the last one: what is told again there would be cut off.
    let (Some((last_place, mut last)), Some((place, mut page))) = (journal.pop(), journal.pop()) else { panic!("two pages") };
    let is_behind_others = |record: &&Record| matches!(record, Record::Put { slot, .. } if slot.slot > 0);
    let put = page.records.iter().find(is_behind_others).cloned();
    let Some(Record::Put { slot, life, dirty, entries, .. }) = put else { panic!("something was written") };
    let again = Record::Put { slot: Slot { slot: 0, ..slot }, life, dirty, restate: true, entries: entries[..1].to_vec() };
    let begins = Record::Open { set: slot.set, life: u64::from(life) + 1, stream: 0 };
    page.records.extend([again, begins, Record::Zero { block: entries[0].block, blocks: 1, kind: RangeKind::Zero }]);
    last.head.previous = 0;
    forge.set_page(place, &page);
    forge.set_page(last_place, &last);
    let scenario = start(scenario);
    assert_eq!(*scenario.simulation.engine.phase(), Phase::Refused);
    assert!(scenario.simulation.faults().has(FaultPoint::OpenOfLiveSet), "{:?}", scenario.simulation.engine.damage());
}

/// Forged. Whatever a start adds to them has to be written again.
#[test]
fn numbers_that_end_soon_are_no_superblock() {
    let changes: [fn(&mut Superblock); 4] = [
        |superblock| superblock.epoch = NUMBER_END - 1,
        |superblock| superblock.sequence = NUMBER_END - 1,
        |superblock| superblock.cut = NUMBER_END - 1,
        |superblock| superblock.checkpoint.number = NUMBER_END - 1,
    ];
    for change in changes {
        let mut scenario = lived();
        cut(&mut scenario);
        let mut forge = forge(&mut scenario);
        let mut superblock = forge.superblock();
        change(&mut superblock);
        forge.set_superblock(&superblock);
        assert_eq!(*start(scenario).simulation.engine.phase(), Phase::Refused);
    }
}

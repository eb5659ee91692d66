//! Every error path of the registry (`engine/src/fault_point.rs`) is taken: each row of the table is a situation, told step by step, and
//! names the paths that it must take. The oracle listens in all of them.

use FaultPoint::*;
use std::panic::catch_unwind;
use tidegate_engine::Control;
use tidegate_engine::block::{Block, PAGE_ATOMS};
use tidegate_engine::cache::format::{Bits, FormatId, Geometry, MapSet, Record, SetState};
use tidegate_engine::config::{Cleaning, Placement};
use tidegate_engine::fault_point::{FaultPoint, FaultPoints};
use tidegate_engine::op::{DeviceId, Zone};
use tidegate_engine::probe::Phase;
use tidegate_engine::time::Duration;
use tidegate_sim::back::fault::Fault;
use tidegate_sim::back::volatile::Survive;
use tidegate_sim::forge::Forge;
use tidegate_sim::scenario::{Scenario, plan_for};
use tidegate_sim::world::Crash;

/// What happens, and which error paths it must take.
struct Row(&'static [FaultPoint], fn() -> Scenario);

/// A fault that harms nothing: the one behind it in the script is for the next operation.
pub const NONE: Fault = Fault::Stuck(Duration::from_micros(1));

#[test]
fn every_error_path_is_taken() {
    let mut met = FaultPoints::default();
    let mut wrong = Vec::new();
    for Row(points, happen) in TABLE {
        // One row that breaks must not hide the others.
        let Ok(faults) = catch_unwind(|| happen().simulation.faults()) else {
            wrong.push(format!("the row of {points:?} broke"));
            continue;
        };
        for point in points.iter().filter(|&&point| !faults.has(point)) {
            wrong.push(format!("{point:?} ({}) was not reached, but {:?}", point.about(), faults.iter().collect::<Vec<_>>()));
        }
        met = met.union(faults);
    }
    let missed = FaultPoint::ALL.iter().filter(|&&point| !met.has(point));
    wrong.extend(missed.map(|point| format!("no row reaches {point:?}")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

const TABLE: &[Row] = &[
    Row(&[DataWriteFailed], data_is_not_written),
    Row(&[DataWriteDropped], data_that_is_not_written_was_overwritten),
    Row(&[DataWriteInPlace], data_is_not_written_and_there_is_no_other_place),
    Row(&[DataWriteGivenUp, CacheFailed], data_is_written_nowhere),
    Row(&[FlushFailed, SuspectDataRepeated, SuspectPagesRepeated], a_flush_fails_with_writes_on_their_way),
    Row(&[JournalWriteFailed], || failing(Zone::Journal, 1)),
    Row(&[JournalWriteGivenUp, CacheFailed], || failing(Zone::Journal, 80)),
    Row(&[HeaderUnwritable, CheckpointWithoutHeader], a_header_cannot_be_written_while_a_checkpoint_waits),
    Row(&[CheckpointCramped, CacheFailed], no_header_can_be_written),
    Row(&[MapWriteFailed], || failing(Zone::Map, 1)),
    Row(&[CheckpointFlushFailed], || flush_failing_behind(Zone::Map)),
    Row(&[SuperblockWriteFailed], || failing(Zone::Superblock, 1)),
    Row(&[SuperblockFlushFailed], || flush_failing_behind(Zone::Superblock)),
    Row(&[CheckpointAbandoned], a_checkpoint_fails_while_it_stops),
    Row(&[StopWriteFailed], the_last_superblock_is_not_written),
    Row(&[MarksOutOfTime], the_origin_gives_no_marks),
    Row(&[MarkFlushFailed], the_origin_is_not_flushed_for_its_marks),
    Row(&[MarkUnread], a_mark_cannot_be_read),
    Row(&[SuperblockUnread], || unread(Zone::Superblock, &[Fault::Bad])),
    Row(&[SuperblockDamaged], || rotten(&[|g| g.superblock(0).start])),
    Row(&[SuperblockForeign], one_superblock_is_of_another_format),
    Row(&[NoSuperblock], || rotten(&[|g| g.superblock(0).start, |g| g.superblock(1).start])),
    Row(&[OtherGeometry], the_superblock_describes_another_geometry),
    Row(&[Detached], the_cache_was_detached),
    Row(&[OtherOrigin], the_cache_is_another_origins),
    Row(&[MapUnread, MapPageUnread, ReadsGivenUp], || unread(Zone::Map, &[Fault::Bad])),
    Row(&[MapDamaged], || rotten(&[|g| g.map_area(0).start])),
    Row(&[NoMap], || rotten(&[|g| g.map_area(0).start, |g| g.map_area(1).start])),
    Row(&[JournalUnread, JournalPageUnread], || unread(Zone::Journal, &[Fault::Bad])),
    Row(&[JournalPageDamaged, JournalGap], a_page_of_the_journal_rots),
    Row(&[RecordsImpossible], || resealed(true)),
    Row(&[OlderRecordsImpossible], || resealed(false)),
    Row(&[EpochFromTheFuture], a_page_is_of_a_later_epoch),
    Row(&[PageUnchained], a_page_does_not_follow),
    Row(&[GroupIncomplete], the_last_group_is_not_complete),
    Row(&[TailUnread], || unread(Zone::Data, &[Fault::Error])),
    Row(&[TailUnread, TailSlotUnread], || unread(Zone::Data, &[Fault::Bad])),
    Row(&[TailSlotDamaged, TailCut], what_was_written_last_rots),
    Row(&[RestateCut], a_checkpoint_is_cut_short),
    Row(&[HeadersUnread], || unread(Zone::Header, &[Fault::Error])),
    Row(&[HeaderDamaged, FenceHeaderUnusable], a_clean_header_rots),
    Row(&[HeaderOfAnotherLife], || forged_header(|header| header.life += 1)),
    Row(&[HeaderIncomplete], || forged_header(|header| header.entries.clear())),
    Row(&[DirtyHeaderLost], both_headers_of_a_dirty_set_rot),
    Row(&[CleanHeaderLost], both_headers_of_a_clean_set_rot),
    Row(&[RecordOfAnotherLife], a_record_is_about_another_life),
    Row(&[SealOutOfOrder], a_set_is_sealed_twice),
    Row(&[RestateOutOfOrder], a_slot_is_told_again_out_of_order),
    Row(&[PutOutOfOrder], a_slot_is_put_out_of_order),
    Row(&[PutUntold], a_slot_is_put_that_lives_already),
    Row(&[OpenOutOfOrder], a_set_begins_a_life_that_does_not_follow),
    Row(&[OpenOfLiveSet], a_set_with_live_slots_begins_a_life),
    Row(&[OpenSetUntold], nothing_tells_what_an_open_set_holds),
    Row(&[RangesBeyondTable], crate::lost::more_ranges_than_the_table_holds),
    Row(&[TwoSlots], || two_slots(lived(), true)),
    Row(&[LateTwoSlots], || two_slots(clean(), false)),
    Row(&[PlacedOutOfPlace], a_block_is_not_in_its_place),
    Row(&[OpenedOutOfOrder], slots_of_a_set_of_the_log_are_opened),
    Row(&[OpenedOfNothing], slots_that_hold_nothing_are_opened),
    Row(&[OpenedUnread, OpenedSlotUnread], opened_slots_cannot_be_read),
    Row(&[FenceUnread], || compared(|scenario| scenario.fail_next(Zone::Origin, Fault::Error))),
    Row(&[FenceOriginGone], || compared(Scenario::origin_goes)),
    Row(&[FenceOutOfTime], the_origin_takes_too_long_to_be_compared),
    Row(&[OriginChanged], the_origin_was_changed),
    Row(&[RewriteFailed], the_tail_is_not_written_again),
    Row(&[CutWriteFailed], || cut_failing(1)),
    Row(&[CutGivenUp], || cut_failing(40)),
];

// --- what all of them share ---

/// A volume with something of everything: sealed sets, clean and dirty; an open one; two checkpoints; records behind them.
pub fn lived() -> Scenario {
    lived_as(&mut Scenario::new);
    lived_as(&mut Scenario::new)
}

pub fn lived_as(begin: &mut dyn FnMut() -> Scenario) -> Scenario {
    let mut scenario = begin();
    (0..24).for_each(|block| drop(scenario.write(block)));
    scenario.flush();
    scenario.drain();
    (24..44).for_each(|block| drop(scenario.write(block)));
    scenario.flush();
    scenario.checkpoints(3, 60);
    (44..49).for_each(|block| drop(scenario.write(block)));
    scenario.flush();
    scenario.write(24);
    scenario.flush();
    scenario.run_until_quiet();
    scenario
}

pub fn cut(scenario: &mut Scenario) {
    scenario.crash(Crash::Kill(Survive::All));
}

/// A new engine, until it serves or refuses to.
pub fn start(mut scenario: Scenario) -> Scenario {
    scenario.begin_recovery();
    while *scenario.simulation.engine.phase() == Phase::Recovering {
        assert!(scenario.step(), "a recovery that rests");
    }
    scenario.run_until_quiet();
    scenario
}

pub fn forge(scenario: &mut Scenario) -> Forge<'_> {
    let (geometry, format) = (scenario.geometry(), scenario.simulation.plan.config.format);
    Forge { cache: &mut scenario.simulation.scene.cache, geometry, format }
}

/// A cache that was left, changed by a forger, and started again.
fn forged(change: impl FnOnce(&mut Forge)) -> Scenario {
    let mut scenario = lived();
    cut(&mut scenario);
    change(&mut forge(&mut scenario));
    start(scenario)
}

/// Its next operations in `zone` meet these faults, in a start.
fn unread(zone: Zone, faults: &[Fault]) -> Scenario {
    let mut scenario = lived();
    // A tail of two slots.
    scenario.write_span(scenario.blocks(10, 2));
    scenario.flush();
    cut(&mut scenario);
    faults.iter().for_each(|&fault| scenario.fail_next(zone, fault));
    start(scenario)
}

fn rotten(atoms: &[fn(&Geometry) -> u64]) -> Scenario {
    let mut scenario = lived();
    cut(&mut scenario);
    // Both checkpoints are recent: the older of the two superblocks tells which map is the newest.
    let geometry = scenario.geometry();
    atoms.iter().for_each(|atom| scenario.rot(atom(&geometry) + 1));
    if let [atom] = atoms
        && geometry.map_area(0).start == atom(&geometry)
    {
        let newest = forge(&mut scenario).superblock().checkpoint.area;
        scenario.rot(geometry.map_area(newest).start + 2);
    }
    start(scenario)
}

// --- writing ---

/// So many writes in this zone fail, and some work is done.
fn failing(zone: Zone, times: usize) -> Scenario {
    let mut scenario = Scenario::new();
    (0..times).for_each(|_| scenario.fail_next(zone, Fault::Error));
    for round in 0..40 {
        let write = scenario.send_write(scenario.block(round % 8), false).0;
        let flush = scenario.send_flush();
        let (write, flush) = (scenario.wait(write), scenario.wait(flush));
        if write.is_err() || flush.is_err() {
            break;
        }
    }
    scenario
}

fn data_is_not_written() -> Scenario {
    let mut scenario = Scenario::new();
    scenario.fail_next(Zone::Data, Fault::Error);
    scenario.write(3);
    scenario.flush();
    scenario
}

fn data_that_is_not_written_was_overwritten() -> Scenario {
    let mut scenario = Scenario::new();
    scenario.hold(Zone::Data);
    scenario.fail_next(Zone::Data, Fault::Error);
    let (first, _) = scenario.send_write(scenario.block(3), false);
    let (second, data) = scenario.send_write(scenario.block(3), false);
    scenario.release(Zone::Data);
    scenario.wait(first).expect("a write");
    scenario.wait(second).expect("a write");
    scenario.flush();
    scenario.expect(3, &data);
    scenario
}

fn data_is_not_written_and_there_is_no_other_place() -> Scenario {
    let mut scenario = Scenario::with(|plan| {
        plan.config.geometry.volume_atoms = 4_096;
        plan.config.cleaning = Cleaning::Off;
        plan.limits[1].atoms = 4_096;
    });
    // Nothing goes home, so no set becomes free. Three are left: two for clients, and the one that is kept for writes that fail.
    scenario.hold(Zone::Origin);
    for set in 0..13 {
        scenario.write_span(scenario.blocks(set * 8, 8));
    }
    scenario.hold(Zone::Data);
    (0..2).for_each(|_| scenario.fail_next(Zone::Data, Fault::Error));
    let writes = [13, 14].map(|set| scenario.send_write(scenario.blocks(set * 8, 8), false).0);
    // What the first one leaves is not free before a flush.
    scenario.hold_flush(DeviceId::Cache);
    scenario.release(Zone::Data);
    scenario.advance(Duration::from_secs(5));
    scenario.release_flush(DeviceId::Cache);
    for write in writes {
        scenario.wait(write).expect("a write");
    }
    scenario.release(Zone::Origin);
    scenario
}

fn data_is_written_nowhere() -> Scenario {
    let mut scenario = Scenario::new();
    (0..100).for_each(|_| scenario.fail_next(Zone::Data, Fault::Error));
    let (id, _) = scenario.send_write(scenario.block(3), false);
    scenario.wait(id).expect("the origin takes it");
    scenario
}

fn a_flush_fails_with_writes_on_their_way() -> Scenario {
    let mut scenario = Scenario::new();
    scenario.write(1);
    scenario.fail_next_flush(DeviceId::Cache);
    scenario.hold_flush(DeviceId::Cache);
    let flush = scenario.send_flush();
    scenario.run_until_quiet();
    // Pages and data that go out while the flush is under way.
    scenario.write(3);
    scenario.hold(Zone::Journal);
    let second = scenario.send_flush();
    scenario.hold(Zone::Data);
    let (id, data) = scenario.send_write(scenario.block(2), true);
    scenario.run_until_quiet();
    scenario.release_flush(DeviceId::Cache);
    scenario.wait(flush).expect_err("the flush has failed");
    scenario.release(Zone::Data);
    scenario.release(Zone::Journal);
    scenario.wait(id).expect("a write with FUA");
    scenario.wait(second).expect("everything was written again");
    scenario.power_cut(Survive::None);
    scenario.expect(2, &data);
    scenario
}

/// Writes and flushes until something in `zone` is on its way, which it stays.
fn until_held(scenario: &mut Scenario, zone: Zone) {
    scenario.hold(zone);
    for _ in 0..200 {
        if scenario.noted().iter().any(|op| op.zone == Some(zone) && op.writes && op.ended.is_none()) {
            return;
        }
        scenario.write(60);
        scenario.flush();
    }
    panic!("nothing is written to {zone:?}");
}

fn a_header_cannot_be_written_while_a_checkpoint_waits() -> Scenario {
    let mut scenario = Scenario::new();
    for zone in [Zone::Header, Zone::HeaderCopy] {
        scenario.hold(zone);
        (0..60).for_each(|_| scenario.fail_next(zone, Fault::Error));
    }
    (0..10).for_each(|block| drop(scenario.write(block)));
    for round in 0..40 {
        scenario.write(20 + round % 4);
        scenario.flush();
    }
    scenario.release(Zone::Header);
    scenario.release(Zone::HeaderCopy);
    scenario.run_until_quiet();
    // The next one comes by itself (seed 7606: nobody asked for anything any more, and a write waited for it).
    let before = scenario.snapshot().counters.checkpoints;
    scenario.advance(Duration::from_secs(10));
    assert!(scenario.snapshot().counters.checkpoints > before);
    scenario
}

/// No header can be written, and the journal has no room for the slots of so many sets: at last the cache counts as failed.
fn no_header_can_be_written() -> Scenario {
    let geometry = Geometry { set_slots: 8, sets: 64, block_atoms: 8, journal_pages: 64, volume_atoms: 4_096, range_entries: 252 };
    let mut scenario = Scenario::of(plan_for(geometry));
    for zone in [Zone::Header, Zone::HeaderCopy] {
        (0..10_000).for_each(|_| scenario.fail_next(zone, Fault::Error));
    }
    let mut data = Vec::new();
    for block in 0..300 {
        data.push(scenario.write(block));
        scenario.flush();
    }
    scenario.advance(Duration::from_secs(120));
    for (block, data) in data.iter().enumerate() {
        scenario.expect(block as u64, data);
    }
    scenario
}

fn flush_failing_behind(zone: Zone) -> Scenario {
    let mut scenario = Scenario::new();
    until_held(&mut scenario, zone);
    scenario.fail_next_flush(DeviceId::Cache);
    scenario.release(zone);
    scenario.advance(Duration::from_secs(5));
    scenario.power_cut(Survive::None);
    scenario
}

fn a_checkpoint_fails_while_it_stops() -> Scenario {
    let mut scenario = Scenario::new();
    scenario.fail_next(Zone::Map, Fault::Error);
    until_held(&mut scenario, Zone::Map);
    scenario.simulation.control(Control::Stop);
    scenario.release(Zone::Map);
    scenario.stop();
    scenario
}

fn the_last_superblock_is_not_written() -> Scenario {
    let mut scenario = lived();
    scenario.fail_next(Zone::Superblock, Fault::Error);
    scenario.stop();
    start(scenario)
}

// --- the fence ---

pub fn marking() -> Scenario {
    Scenario::with(|plan| plan.config.fence_samples = 1_024)
}

fn the_origin_gives_no_marks() -> Scenario {
    let mut scenario = marking();
    scenario.hold_flush(DeviceId::Origin);
    scenario.stop();
    scenario
}

fn the_origin_is_not_flushed_for_its_marks() -> Scenario {
    let mut scenario = marking();
    scenario.fail_next_flush(DeviceId::Origin);
    scenario.stop();
    start(scenario)
}

fn a_mark_cannot_be_read() -> Scenario {
    let mut scenario = marking();
    // Read together with its neighbours it is read once more by itself.
    scenario.fail_next(Zone::Origin, Fault::Bad);
    scenario.stop();
    start(scenario)
}

/// A clean stop with something to compare, which `change` makes difficult.
fn compared(change: impl FnOnce(&mut Scenario)) -> Scenario {
    let mut scenario = lived_as(&mut marking);
    scenario.stop();
    change(&mut scenario);
    start(scenario)
}

fn the_origin_takes_too_long_to_be_compared() -> Scenario {
    let mut begin = || {
        Scenario::with(|plan| {
            plan.config.fence_samples = 1_024;
            plan.speeds[1].read = Duration::from_secs(10);
        })
    };
    let mut scenario = lived_as(&mut begin);
    cut(&mut scenario);
    start(scenario)
}

fn the_origin_was_changed() -> Scenario {
    compared(|scenario| {
        let start = scenario.block(0).start;
        let data = tidegate_sim::stamp::Stamps::from_stamps(&[0]);
        scenario.simulation.scene.origin.scribble(Zone::Origin, start, data);
    })
}

fn a_clean_header_rots() -> Scenario {
    let mut scenario = lived_as(&mut marking);
    cut(&mut scenario);
    let set = sealed(&mut scenario, false);
    scenario.rot(scenario.geometry().header(set).start);
    start(scenario)
}

// --- superblocks ---

fn one_superblock_is_of_another_format() -> Scenario {
    forged(|forge| {
        let mut superblock = forge.superblock();
        superblock.format = FormatId([0x77; 16]);
        forge.set_superblock_copy(&superblock, 1);
    })
}

fn the_superblock_describes_another_geometry() -> Scenario {
    forged(|forge| {
        let mut superblock = forge.superblock();
        superblock.geometry.volume_atoms -= 8;
        forge.set_superblock(&superblock);
    })
}

fn the_cache_was_detached() -> Scenario {
    forged(|forge| {
        let superblock = forge.superblock();
        forge.set_superblock(&tidegate_engine::cache::format::Superblock { detached: true, ..superblock });
    })
}

fn the_cache_is_another_origins() -> Scenario {
    let mut scenario = lived();
    cut(&mut scenario);
    scenario.simulation.plan.config.origin = [1; 16];
    let mut forge = forge(&mut scenario);
    let superblock = forge.superblock();
    forge.set_superblock(&tidegate_engine::cache::format::Superblock { origin: [2; 16], ..superblock });
    start(scenario)
}

// --- journal ---

fn a_page_of_the_journal_rots() -> Scenario {
    let mut scenario = lived();
    cut(&mut scenario);
    let forge = forge(&mut scenario);
    let from = forge.superblock().checkpoint.seq;
    let (place, _) = forge.journal().into_iter().find(|(_, page)| page.head.seq == from).expect("a page to be replayed");
    scenario.rot(scenario.geometry().journal_page(place).start + 3);
    start(scenario)
}

/// A page with one record more than it has, and a checksum that holds: one to be replayed onto the newest map, or onto the one before.
fn resealed(newest: bool) -> Scenario {
    forged(|forge| {
        let superblock = forge.superblock();
        let seq = if newest { superblock.checkpoint.seq } else { superblock.previous.seq };
        let (place, _) = forge.journal().into_iter().find(|(_, page)| page.head.seq == seq).expect("a page");
        forge.reseal_page(place, |bytes| bytes[60] = bytes[60].wrapping_add(1));
        if !newest {
            let start = forge.geometry.map_area(superblock.checkpoint.area).start;
            forge.cache.rot(start);
        }
    })
}

fn a_page_is_of_a_later_epoch() -> Scenario {
    forged(|forge| {
        let (place, mut page) = forge.journal().pop().expect("a page");
        page.head.epoch += 9;
        forge.set_page(place, &page);
    })
}

fn a_page_does_not_follow() -> Scenario {
    forged(|forge| {
        let (place, mut page) = forge.journal().pop().expect("a page");
        page.head.previous ^= 2;
        forge.set_page(place, &page);
    })
}

fn the_last_group_is_not_complete() -> Scenario {
    forged(|forge| {
        let (place, mut page) = forge.journal().pop().expect("a page");
        page.head.last = false;
        forge.set_page(place, &page);
    })
}

fn what_was_written_last_rots() -> Scenario {
    let mut scenario = lived();
    let data = scenario.write_fua(50);
    cut(&mut scenario);
    let stamp = data.stamps().next().expect("an atom");
    let place = scenario.places(stamp)[0];
    scenario.rot(place);
    start(scenario)
}

fn a_checkpoint_is_cut_short() -> Scenario {
    let mut scenario = Scenario::new();
    until_held(&mut scenario, Zone::Map);
    scenario.crash(Crash::Power { cache: Survive::None, origin: Survive::None });
    start(scenario)
}

// --- headers ---

/// A sealed set with dirty slots or without, whose header service needs.
pub fn sealed(scenario: &mut Scenario, dirty: bool) -> u32 {
    let found = sets_with_headers(scenario).into_iter().find(|(_, set)| set.live.iter().count() >= 2 && set.dirty.is_empty() != dirty);
    found.expect("a sealed set").0
}

/// Sealed sets that the newest map describes, and that the journal does not tell again.
pub fn sets_with_headers(scenario: &mut Scenario) -> Vec<(u32, MapSet)> {
    let forge = forge(scenario);
    let superblock = forge.superblock();
    let told = |set: u32| {
        forge.journal().iter().filter(|(_, page)| page.head.seq >= superblock.checkpoint.seq).any(|(_, page)| {
            page.records.iter().any(|record| match record {
                Record::Put { slot, restate: true, .. } => slot.set == set,
                Record::Open { set: opened, .. } => *opened == set,
                _ => false,
            })
        })
    };
    let sets = (0..).zip(forge.sets(superblock.checkpoint));
    sets.filter(|(number, set)| set.state == SetState::Sealed && !set.live.is_empty() && !told(*number)).collect()
}

fn forged_header(change: impl FnOnce(&mut tidegate_engine::cache::format::Header)) -> Scenario {
    let mut scenario = lived();
    cut(&mut scenario);
    let set = sealed(&mut scenario, true);
    let mut forge = forge(&mut scenario);
    let mut header = forge.header(set, false).expect("a header");
    change(&mut header);
    forge.set_header(&header, false);
    start(scenario)
}

fn rot_headers(dirty: bool) -> Scenario {
    let mut scenario = lived();
    cut(&mut scenario);
    let set = sealed(&mut scenario, dirty);
    let geometry = scenario.geometry();
    scenario.rot(geometry.header(set).start);
    scenario.rot(geometry.header_copy(set).start);
    start(scenario)
}

fn both_headers_of_a_dirty_set_rot() -> Scenario {
    rot_headers(true)
}

fn both_headers_of_a_clean_set_rot() -> Scenario {
    rot_headers(false)
}

// --- replay ---

fn changed_record(change: impl FnMut(&mut Record) -> bool) -> Scenario {
    forged(|forge| assert!(forge.change_record(change), "a record of this kind"))
}

fn a_record_is_about_another_life() -> Scenario {
    changed_record(|record| {
        let Record::Put { life, restate: false, .. } = record else { return false };
        *life += 1;
        true
    })
}

/// Puts a record at the end of the newest page.
fn added_record(scenario: Scenario, record: impl FnOnce(&Forge) -> Record) -> Scenario {
    let mut scenario = scenario;
    cut(&mut scenario);
    let mut forge = forge(&mut scenario);
    let (place, mut page) = forge.journal().pop().expect("a page");
    page.records.push(record(&forge));
    forge.set_page(place, &page);
    start(scenario)
}

/// A set that is sealed, with live slots, in the newest map: number and life.
fn live_sealed(forge: &Forge) -> (u32, u64) {
    let sets = forge.sets(forge.superblock().checkpoint);
    let found = (0..).zip(&sets).find(|(_, set)| set.state == SetState::Sealed && !set.dirty.is_empty());
    found.map(|(number, set)| (number, set.life)).expect("a sealed set")
}

fn a_set_is_sealed_twice() -> Scenario {
    added_record(lived(), |forge| {
        let (set, life) = live_sealed(forge);
        Record::Seal { set, life: life as u32 }
    })
}

fn a_slot_is_told_again_out_of_order() -> Scenario {
    changed_record(|record| {
        let Record::Put { slot, restate: true, entries, .. } = record else { return false };
        slot.slot += 1;
        entries.truncate(1);
        true
    })
}

fn a_slot_is_put_out_of_order() -> Scenario {
    changed_record(|record| {
        let Record::Put { slot, restate: false, entries, .. } = record else { return false };
        slot.slot = (slot.slot + 2) % 8;
        entries.truncate(1);
        true
    })
}

/// The map says that the next slot of an open set is live, which the journal does not tell again.
fn a_slot_is_put_that_lives_already() -> Scenario {
    forged(|forge| {
        let checkpoint = forge.superblock().checkpoint;
        let mut sets = forge.sets(checkpoint);
        let replayed = forge.journal().into_iter().filter(|(_, page)| page.head.seq >= checkpoint.seq);
        let put = replayed.flat_map(|(_, page)| page.records).find_map(|record| match record {
            Record::Put { slot, restate: false, .. } => (sets[slot.set as usize].state == SetState::Open).then_some(slot),
            _ => None,
        });
        let slot = put.expect("a PUT into a set that is open in the map");
        sets[slot.set as usize].live.set(slot.slot);
        forge.set_sets(checkpoint, &sets);
    })
}

fn a_set_begins_a_life_that_does_not_follow() -> Scenario {
    added_record(lived(), |forge| {
        let (set, life) = live_sealed(forge);
        Record::Open { set, life: life + 7, stream: 0 }
    })
}

fn a_set_with_live_slots_begins_a_life() -> Scenario {
    // An open one: the journal says what it holds. (Of a sealed one it would be believed that nothing of it counts any more.)
    added_record(lived(), |forge| {
        let sets = forge.sets(forge.superblock().checkpoint);
        let open = (0..).zip(&sets).find(|(_, set)| set.state == SetState::Open && !set.live.is_empty());
        let (set, life) = open.map(|(number, set)| (number, set.life)).expect("an open set");
        Record::Open { set, life: life + 1, stream: 0 }
    })
}

fn nothing_tells_what_an_open_set_holds() -> Scenario {
    forged(|forge| {
        let checkpoint = forge.superblock().checkpoint;
        let mut sets = forge.sets(checkpoint);
        let set = sets.iter_mut().find(|set| set.state == SetState::Free).expect("a free set");
        set.state = SetState::Open;
        set.live.set(0);
        forge.set_sets(checkpoint, &sets);
    })
}

/// A cache whose sealed sets are all clean: their headers are read behind service.
fn clean() -> Scenario {
    let mut scenario = Scenario::new();
    (0..40).for_each(|block| drop(scenario.write(block)));
    scenario.flush();
    scenario.drain();
    scenario.checkpoints(3, 63);
    scenario.drain();
    scenario
}

/// A header gives a block of its own to another slot of its set too.
fn two_slots(mut scenario: Scenario, dirty: bool) -> Scenario {
    cut(&mut scenario);
    let set = sealed(&mut scenario, dirty);
    let mut forge = forge(&mut scenario);
    let live: Vec<u32> = forge.sets(forge.superblock().checkpoint)[set as usize].live.iter().collect();
    for copy in [false, true] {
        let mut header = forge.header(set, copy).expect("a header");
        header.entries[live[0] as usize].block = header.entries[live[1] as usize].block;
        forge.set_header(&header, copy);
    }
    start(scenario)
}

// --- set placement ---

fn placed() -> Scenario {
    let geometry = Geometry { block_atoms: 8, set_slots: 8, sets: 16, journal_pages: 96, volume_atoms: 4_096, range_entries: 252 };
    let mut plan = plan_for(geometry);
    plan.config.placement = Placement::Set;
    let mut scenario = Scenario::of(plan);
    scenario.write_span(scenario.blocks(4, 2));
    scenario.flush();
    scenario.write_span(scenario.blocks(4, 2));
    scenario.flush();
    scenario
}

fn a_block_is_not_in_its_place() -> Scenario {
    let mut scenario = placed();
    cut(&mut scenario);
    let changed = forge(&mut scenario).change_record(|record| {
        let Record::Put { entries, .. } = record else { return false };
        entries[0].block = Block(entries[0].block.0 + 1);
        true
    });
    assert!(changed);
    start(scenario)
}

fn opened(set: u32, life: u64, slot: u32) -> Record {
    let mut slots = Bits::new(8);
    slots.set(slot);
    Record::Opened { set, life: life as u32, slots }
}

fn slots_of_a_set_of_the_log_are_opened() -> Scenario {
    added_record(lived(), |forge| {
        let (set, life) = live_sealed(forge);
        opened(set, life, 0)
    })
}

fn slots_that_hold_nothing_are_opened() -> Scenario {
    added_record(placed(), |forge| {
        let records: Vec<Record> = forge.journal().into_iter().flat_map(|(_, page)| page.records).collect();
        let open = records.iter().find_map(|record| match record {
            Record::Open { set, life, .. } => Some((*set, *life)),
            _ => None,
        });
        let (set, life) = open.expect("a placed set");
        opened(set, life, 1)
    })
}

fn opened_slots_cannot_be_read() -> Scenario {
    let mut scenario = placed();
    cut(&mut scenario);
    scenario.fail_next(Zone::Data, Fault::Bad);
    start(scenario)
}

// --- the end of a recovery ---

fn the_tail_is_not_written_again() -> Scenario {
    let mut scenario = lived();
    cut(&mut scenario);
    // It is read first.
    scenario.fail_next(Zone::Data, NONE);
    scenario.fail_next(Zone::Data, Fault::Error);
    start(scenario)
}

/// Both superblocks are read; then so many writes of the new one fail.
fn cut_failing(times: usize) -> Scenario {
    let mut scenario = lived();
    cut(&mut scenario);
    (0..2).for_each(|_| scenario.fail_next(Zone::Superblock, NONE));
    (0..times).for_each(|_| scenario.fail_next(Zone::Superblock, Fault::Error));
    assert_eq!(PAGE_ATOMS, 8);
    start(scenario)
}

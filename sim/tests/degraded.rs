//! The volume without its SSD: what is much for it. Long zeroes, long writes, and all that memory has of what the SSD alone had.

use tidegate_engine::Control;
use tidegate_engine::block::{ATOM_BYTES, Span};
use tidegate_engine::cache::format::Geometry;
use tidegate_engine::config::Allocation;
use tidegate_engine::op::{DeviceId, Zone};
use tidegate_engine::probe::Phase;
use tidegate_engine::request::{Command, RequestError, RequestId};
use tidegate_engine::time::Duration;
use tidegate_sim::back::fault::Fault;
use tidegate_sim::scenario::{Scenario, plan_for};
use tidegate_sim::stamp::Stamps;
use tidegate_sim::world::Noted;

/// More blocks than the whole journal has entries.
const LONG: Geometry = Geometry { block_atoms: 8, set_slots: 8, sets: 16, journal_pages: 64, volume_atoms: 8 * 8_192, range_entries: 252 };

fn stamps(data: &Stamps) -> Vec<u64> {
    data.stamps().collect()
}

/// The most operations that the engine has had at once, of those noted.
fn most_at_once(scenario: &Scenario) -> usize {
    scenario.noted().iter().map(|op| op.id.place() + 1).max().expect("some were noted")
}

fn pinned(scenario: &Scenario) -> u64 {
    let ledger = scenario.snapshot().ledger;
    ledger.iter().find(|(part, _)| *part == "through").expect("it has a line").1
}

/// Long ones, in a volume without its SSD.
fn long_zeroes(scenario: &mut Scenario, fua: bool) -> RequestId {
    scenario.send(scenario.blocks(0, 8_192), Command::Zero { no_hole: true, fua, fast: false })
}

#[test]
fn long_zeroes_without_the_ssd_end_and_so_does_what_comes_behind_them() {
    for fua in [false, true] {
        let mut scenario = Scenario::of(plan_for(LONG));
        scenario.write(9);
        scenario.flush();
        scenario.cache_goes();
        scenario.until_degraded_by_writing(7);
        scenario.forget_noted();
        let zeroes = long_zeroes(&mut scenario, fua);
        let (write, newer) = scenario.send_write(scenario.block(3), false);
        scenario.wait(zeroes).expect("the origin takes them");
        assert!(most_at_once(&scenario) < 100, "{} operations at once", most_at_once(&scenario));
        if fua {
            assert!((10..8_192).all(|block| scenario.on_origin(block)[1] == [0; 8]), "durable");
        }
        scenario.wait(write).expect("it goes behind them");
        let later = scenario.write(8_000);
        scenario.flush();
        for block in 0..8_192 {
            let holds = match block {
                3 => stamps(&newer),
                8_000 => stamps(&later),
                _ => vec![0; 8],
            };
            assert_eq!(scenario.on_origin(block)[1], holds, "block {block}");
        }
        assert_eq!(scenario.simulation.engine.at_risk().count(), 0);
    }
}

/// What only the SSD has never comes home; and nothing can be written down there any more.
#[test]
fn a_detach_is_called_off_when_the_ssd_fails_and_writes_are_taken_again() {
    let mut scenario = Scenario::new();
    (0..20).for_each(|block| _ = scenario.write(block));
    scenario.flush();
    scenario.hold(Zone::Data);
    scenario.simulation.control(Control::Detach);
    scenario.run_until_quiet();
    assert!(scenario.snapshot().is_detaching);
    let (refused, _) = scenario.send_write(scenario.block(40), false);
    assert_eq!(scenario.wait(refused), Err(RequestError::Shutdown));
    scenario.cache_goes();
    scenario.release(Zone::Data);
    scenario.until_degraded();
    assert!(!scenario.snapshot().is_detaching);
    let data = scenario.write(40);
    scenario.flush();
    scenario.expect(40, &data);
}

/// They share their contents, and the ledger knows it.
#[test]
fn the_ledger_counts_zeros_that_are_pinned_as_often_as_they_are_in_memory() {
    let mut scenario = Scenario::of(plan_for(LONG));
    scenario.cache_goes();
    scenario.until_degraded_by_writing(7);
    scenario.flush();
    let through = |scenario: &Scenario| scenario.snapshot().ledger.iter().find(|(part, _)| *part == "through").expect("a part").1;
    assert_eq!(through(&scenario), 0);
    scenario.hold_flush(DeviceId::Origin);
    let zeroes = long_zeroes(&mut scenario, true);
    scenario.run_until_quiet();
    assert_eq!(through(&scenario), 1 << 20, "of 32 MiB");
    scenario.write(3);
    assert_eq!(through(&scenario), (1 << 20) + 4_096);
    scenario.release_flush(DeviceId::Origin);
    scenario.wait(zeroes).expect("the origin takes them");
}

/// Over pages that are still to be flushed; and others ask for parts of it meanwhile.
#[test]
fn what_is_asked_beside_long_zeroes_sees_all_of_them_or_nothing() {
    let mut scenario = Scenario::of(plan_for(LONG));
    scenario.cache_goes();
    let before = scenario.until_degraded_by_writing(7);
    scenario.hold(Zone::Origin);
    let zeroes = long_zeroes(&mut scenario, false);
    scenario.run_until_quiet();
    let (read, trim, flush) = (
        scenario.send_read(scenario.blocks(6, 2)),
        scenario.send(scenario.blocks(100, 8), Command::Trim { fua: true }),
        scenario.send_flush(),
    );
    let (write, newer) = scenario.send_write(Span::new(8 * 20 + 2, 3), true);
    scenario.release(Zone::Origin);
    let read = scenario.wait(read).expect("a read");
    assert!(read == [0; 16] || read[8..] == stamps(&before), "{read:?}");
    for id in [zeroes, trim, flush, write] {
        scenario.wait(id).expect("nothing fails");
    }
    assert_eq!(scenario.on_origin(20)[1], [vec![0; 2], stamps(&newer), vec![0; 3]].concat(), "a part of a zeroed block");
    scenario.flush();
    assert_eq!((scenario.on_origin(7)[1].clone(), scenario.on_origin(8_191)[1].clone()), (vec![0; 8], vec![0; 8]));
}

#[test]
fn long_zeroes_that_the_origin_fails_or_forgets_are_done_again() {
    let mut scenario = Scenario::of(plan_for(LONG));
    scenario.cache_goes();
    scenario.until_degraded_by_writing(7);
    scenario.fail_next(Zone::Origin, Fault::Error);
    let zeroes = long_zeroes(&mut scenario, false);
    assert_eq!(scenario.wait(zeroes), Err(RequestError::Io), "one of its operations");
    let zeroes = long_zeroes(&mut scenario, false);
    scenario.wait(zeroes).expect("once more");
    scenario.origin_goes();
    scenario.origin_comes_back(true);
    scenario.forget_noted();
    scenario.flush();
    assert!(most_at_once(&scenario) < 100);
    assert!((0..8_192).all(|block| scenario.on_origin(block)[1] == [0; 8]));
}

#[test]
fn a_long_write_without_the_ssd_goes_home_whatever_the_journal_could_take() {
    let mut scenario = Scenario::of(plan_for(LONG));
    scenario.cache_goes();
    scenario.until_degraded_by_writing(7);
    let data = stamps(&scenario.write_span(scenario.blocks(100, 7_000)));
    scenario.flush();
    assert!((0..7_000).all(|place| scenario.on_origin(100 + place)[1] == data[place as usize * 8..][..8]));
}

/// With the SSD the journal has to tell what dies below a write that goes past it: a longer one is told so, and keeps nobody waiting.
#[test]
fn a_write_past_the_log_that_the_journal_could_never_tell_fails_at_once() {
    let mut plan = plan_for(LONG);
    plan.config.allocation = Allocation::ReadOnly;
    let mut scenario = Scenario::of(plan);
    scenario.simulation.scene.oracle.may_be_full = true;
    let (write, _) = scenario.send_write(scenario.blocks(100, 7_000), false);
    assert_eq!(scenario.wait(write), Err(RequestError::NoSpace));
    let data = scenario.write_span(scenario.blocks(100, 2_000));
    assert_eq!(scenario.on_origin(100)[0], stamps(&data)[..8]);
}

fn with_much_in_memory() -> (Scenario, Vec<Stamps>) {
    with_much_in_memory_over(0)
}

/// 2,048 blocks that the SSD alone has, all of them in memory, which is nearly full, so many of them over zeros that are not home; then it is gone.
/// What may be pinned is 1 MiB.
fn with_much_in_memory_over(zeroed: u64) -> (Scenario, Vec<Stamps>) {
    let zeroes: &[(u64, u64)] = if zeroed > 0 { &[(0, zeroed)] } else { &[] };
    with_much_in_memory_and(zeroes, |_| ())
}

/// The same over several zeroes; and something happens before the SSD is gone.
fn with_much_in_memory_and(zeroes: &[(u64, u64)], and: impl FnOnce(&mut Scenario)) -> (Scenario, Vec<Stamps>) {
    let geometry = Geometry { block_atoms: 8, set_slots: 64, sets: 96, journal_pages: 256, volume_atoms: 8 * 8_192, range_entries: 252 };
    let mut plan = plan_for(geometry);
    (plan.config.ram, plan.config.through_bytes) = (2_200 * 8 * ATOM_BYTES, 1 << 20);
    let mut scenario = Scenario::of(plan);
    for &(first, blocks) in zeroes {
        scenario.zero(scenario.blocks(first, blocks));
    }
    let data: Vec<Stamps> = (0..256).map(|part| scenario.write_span(scenario.blocks(part * 8, 8))).collect();
    scenario.flush();
    let snapshot = scenario.snapshot();
    assert_eq!((snapshot.dirty_slots, snapshot.memory.pages, snapshot.range_entries), (2_048, 2_048, zeroes.len() as u64));
    and(&mut scenario);
    scenario.cache_goes();
    scenario.forget_noted();
    (scenario, data)
}

/// Of what `with_much_in_memory` has written.
fn holds(data: &[Stamps], block: u64) -> Vec<u64> {
    stamps(&data[block as usize / 8])[(block as usize % 8) * 8..][..8].to_vec()
}

#[test]
fn what_memory_has_goes_home_a_little_at_a_time_and_clients_do_not_wait_for_all_of_it() {
    let (mut scenario, data) = with_much_in_memory();
    let (write, newer) = scenario.send_write(scenario.block(5_000), false);
    let (mut most_pinned, mut left) = (0, None);
    while left.is_none() {
        assert!(scenario.step(), "the write is answered");
        most_pinned = most_pinned.max(pinned(&scenario));
        left = scenario.is_answered(write).then(|| scenario.snapshot().dirty_slots);
    }
    assert!(left > Some(1_024), "{left:?} are still to go home");
    // A neighbour that memory does not have; a part of a block, and all of one, that are still to go home; what needs room in memory.
    let read = scenario.read(scenario.blocks(2_046, 4)).expect("nobody asks the SSD");
    assert_eq!(read[..16], stamps(&data[255])[48..]);
    let part = scenario.write_span(Span::new(8 * 2_000 + 3, 2));
    let whole = scenario.write(2_008);
    for block in 4_000..4_200 {
        scenario.read(scenario.block(block)).expect("the origin gives it");
    }
    assert!(scenario.snapshot().dirty_slots > 0, "all of this beside what goes home");
    let flush = scenario.send_flush();
    while !scenario.is_answered(flush) {
        assert!(scenario.step(), "the FLUSH is answered");
        most_pinned = most_pinned.max(pinned(&scenario));
    }
    scenario.wait(flush).expect("nothing is lost");
    assert!(most_pinned <= 1 << 20, "{most_pinned} bytes are pinned");
    assert!(most_at_once(&scenario) < 100, "{} operations at once", most_at_once(&scenario));
    for block in 0..2_048u64 {
        let mut holds = stamps(&data[block as usize / 8])[(block as usize % 8) * 8..][..8].to_vec();
        match block {
            2_000 => holds[3..5].copy_from_slice(&stamps(&part)),
            2_008 => holds = stamps(&whole),
            _ => {}
        }
        assert_eq!(scenario.on_origin(block)[1], holds, "block {block}");
    }
    assert_eq!(scenario.on_origin(5_000)[1], stamps(&newer));
    assert_eq!((scenario.snapshot().dirty_slots, scenario.simulation.engine.at_risk().count()), (0, 0));
}

/// The first FLUSH after it is no sooner answered than all of it is durable, and a stop waits for it as well.
#[test]
fn a_flush_and_a_stop_wait_for_all_that_goes_home_from_memory() {
    for stops in [false, true] {
        let (mut scenario, data) = with_much_in_memory();
        scenario.send_write(scenario.block(5_000), false);
        scenario.until_degraded();
        assert!(scenario.snapshot().dirty_slots > 1_024);
        if stops {
            scenario.stop();
        } else {
            scenario.flush();
        }
        let is_home = |block: u64| scenario.on_origin(block)[1] == stamps(&data[block as usize / 8])[(block as usize % 8) * 8..][..8];
        assert!((0..2_048).all(is_home));
    }
}

/// The origin stays away for a while: nothing goes from memory meanwhile.
#[test]
fn what_goes_home_from_memory_waits_for_an_origin_that_is_away() {
    let (mut scenario, data) = with_much_in_memory();
    let (write, _) = scenario.send_write(scenario.block(5_000), false);
    scenario.until_degraded();
    scenario.wait(write).expect("a write");
    assert!(scenario.snapshot().dirty_slots > 1_024);
    scenario.origin_goes();
    scenario.advance(Duration::from_secs(5));
    scenario.origin_comes_back(true);
    scenario.flush();
    let is_home = |block: u64| scenario.on_origin(block)[1] == stamps(&data[block as usize / 8])[(block as usize % 8) * 8..][..8];
    assert!((0..2_048).all(is_home));
}

/// The SSD fails while a write that goes past it waits until the log says that what lies below it is dead. The origin does not take that write: what
/// was acknowledged before it is still there.
#[test]
fn what_memory_has_below_a_write_that_waited_and_fails_goes_home() {
    let mut plan = plan_for(LONG);
    plan.config.allocation = Allocation::SmallWrites;
    plan.config.ram = 512 * 8 * ATOM_BYTES;
    let mut scenario = Scenario::of(plan);
    scenario.write(10);
    scenario.drain();
    let below = scenario.write(11);
    scenario.flush();
    scenario.hold(Zone::Journal);
    let (write, _) = scenario.send_write(scenario.blocks(10, 16), false);
    scenario.run_until_quiet();
    assert!(!scenario.is_answered(write), "it waits for the log");
    scenario.cache_goes();
    scenario.fail_next(Zone::Origin, Fault::Error);
    scenario.release(Zone::Journal);
    scenario.until_degraded();
    assert_eq!(scenario.wait(write), Err(RequestError::Io));
    scenario.expect(11, &below);
    scenario.flush();
    assert_eq!(scenario.on_origin(11)[1], stamps(&below));
}

/// Nothing is written over zeros before those are home: it is not copied before, either.
#[test]
fn what_memory_has_over_zeros_waits_for_them_in_its_place() {
    let (mut scenario, data) = with_much_in_memory_over(1_536);
    scenario.hold(Zone::Origin);
    scenario.send_write(scenario.block(5_000), false);
    scenario.until_degraded();
    scenario.run_until_quiet();
    assert!(pinned(&scenario) <= 1 << 20, "{} bytes are pinned while the origin hangs", pinned(&scenario));
    scenario.release(Zone::Origin);
    let (flush, mut most_pinned) = (scenario.send_flush(), 0);
    while !scenario.is_answered(flush) {
        assert!(scenario.step(), "the FLUSH is answered");
        most_pinned = most_pinned.max(pinned(&scenario));
    }
    scenario.wait(flush).expect("nothing is lost");
    assert!(most_pinned <= 1 << 20, "{most_pinned} bytes are pinned");
    let is_home = |block: u64| scenario.on_origin(block)[1] == stamps(&data[block as usize / 8])[(block as usize % 8) * 8..][..8];
    assert!((0..2_048).all(is_home));
}

/// The origin does not take the zeros: what lies over them stays, what does not goes home.
#[test]
fn what_memory_has_over_zeros_that_the_origin_refuses_keeps_nothing_else_from_going_home() {
    let (mut scenario, data) = with_much_in_memory_over(1_536);
    scenario.simulation.scene.oracle.writes_may_fail = true;
    scenario.simulation.scene.origin.refuse(100, 100_000);
    scenario.send_write(scenario.block(5_000), false);
    scenario.until_degraded();
    let flush = scenario.send_flush();
    scenario.advance(Duration::from_secs(30));
    assert!(scenario.is_answered(flush) && scenario.outcome(flush).unwrap_err() == RequestError::Io, "the zeros are not home");
    assert_eq!(scenario.snapshot().dirty_slots, 1_536);
    scenario.simulation.scene.origin.heal();
    scenario.flush();
    let is_home = |block: u64| scenario.on_origin(block)[1] == stamps(&data[block as usize / 8])[(block as usize % 8) * 8..][..8];
    assert!((0..2_048).all(is_home));
}

/// What lies over zeros that the origin refuses is in the window in part: that is pinned, and keeps nothing else from going home.
#[test]
fn a_page_over_zeros_that_the_origin_refuses_keeps_nothing_else_from_going_home() {
    for stops in [false, true] {
        let mut newer = None;
        let (mut scenario, data) = with_much_in_memory_and(&[(0, 1_536)], |scenario| newer = Some(scenario.write(10)));
        scenario.simulation.scene.oracle.writes_may_fail = true;
        scenario.simulation.scene.origin.refuse(100, 100_000);
        scenario.send_write(scenario.block(5_000), false);
        scenario.until_degraded();
        if stops {
            scenario.begin_stop();
            scenario.advance(Duration::from_secs(100));
            assert!((1_536..2_048).all(|block| scenario.on_origin(block)[1] == holds(&data, block)), "all that the origin takes");
            let damage = scenario.simulation.engine.damage();
            assert!(damage.iter().any(|damage| damage.what.contains("1 zeroed ranges are lost")), "{damage:?}");
            continue;
        }
        scenario.advance(Duration::from_secs(30));
        assert_eq!(scenario.snapshot().dirty_slots, 1_536);
        assert!((1_536..2_048).all(|block| scenario.on_origin(block)[1] == holds(&data, block)), "without a FLUSH");
        assert_eq!(scenario.try_flush(), Err(RequestError::Io), "the zeros are not home");
        scenario.simulation.scene.origin.heal();
        scenario.flush();
        assert_eq!(scenario.on_origin(10)[1], stamps(newer.as_ref().expect("it was written")));
        assert!((0..2_048).filter(|&block| block != 10).all(|block| scenario.on_origin(block)[1] == holds(&data, block)));
    }
}

/// It has healed since, and would not be asked for most of a minute: longer than the stop waits.
#[test]
fn a_stop_without_the_ssd_asks_an_origin_that_had_refused_once_more() {
    let mut scenario = Scenario::with(|plan| plan.config.stall_timeout = Duration::from_secs(10));
    let data: Vec<Stamps> = (0..4).map(|block| scenario.write(block)).collect();
    scenario.simulation.scene.oracle.writes_may_fail = true;
    scenario.simulation.scene.origin.refuse(8, 16);
    scenario.cache_goes();
    scenario.until_degraded_by_writing(40);
    scenario.advance(Duration::from_secs(180));
    assert_eq!(scenario.try_flush(), Err(RequestError::Io));
    scenario.advance(Duration::from_secs(140));
    scenario.simulation.scene.origin.heal();
    scenario.begin_stop();
    scenario.advance(Duration::from_secs(5));
    assert_eq!(*scenario.simulation.engine.phase(), Phase::Stopped, "{:?}", scenario.simulation.engine.damage());
    assert!((0..4).all(|block| scenario.on_origin(block)[1] == stamps(&data[block as usize])), "{:?}", scenario.simulation.engine.damage());
}

/// More than may be pinned: others' writes go on.
#[test]
fn pages_over_zeros_that_the_origin_refuses_keep_no_write_waiting() {
    let write = |scenario: &mut Scenario| (0..50).for_each(|part| drop(scenario.write_span(scenario.blocks(part * 8, 8))));
    let (mut scenario, data) = with_much_in_memory_and(&[(0, 1_536)], write);
    scenario.simulation.scene.oracle.writes_may_fail = true;
    scenario.simulation.scene.origin.refuse(100, 100_000);
    for block in 5_000..5_500 {
        let (write, _) = scenario.send_write(scenario.block(block), block % 100 == 0);
        scenario.wait(write).expect("the origin takes it");
    }
    assert!(pinned(&scenario) > 1 << 20, "{} bytes are pinned", pinned(&scenario));
    assert!(pinned(&scenario) <= (400 << 12) + (1 << 20), "{} bytes are pinned", pinned(&scenario));
    scenario.advance(Duration::from_secs(10));
    assert!((1_536..2_048).all(|block| scenario.on_origin(block)[1] == holds(&data, block)));
}

/// Of so little only one may be set aside; the origin refuses three.
#[test]
fn pages_that_the_origin_refuses_keep_no_other_from_going_home_however_many_they_are() {
    let mut scenario = Scenario::with(|plan| plan.config.through_bytes = 4 * 4096);
    let data: Vec<Stamps> = (0..12).map(|block| scenario.write(block)).collect();
    [8, 16, 24].into_iter().for_each(|atom| scenario.simulation.scene.origin.refuse(atom, 100_000));
    scenario.cache_goes();
    scenario.until_degraded_by_writing(20);
    scenario.advance(Duration::from_secs(120));
    let is_home = |&block: &u64| scenario.on_origin(block)[1] == stamps(&data[block as usize]);
    assert_eq!((0..12).filter(is_home).collect::<Vec<_>>(), [0, 4, 5, 6, 7, 8, 9, 10, 11]);
}

/// Whenever the origin has been flushed, others have written half of what may be pinned.
#[test]
fn a_flush_is_answered_however_much_others_write_beside_what_goes_home_from_memory() {
    let (mut scenario, data) = with_much_in_memory();
    scenario.send_write(scenario.block(5_000), false);
    scenario.until_degraded();
    scenario.hold_flush(DeviceId::Origin);
    let flush = scenario.send_flush();
    let (mut rounds, mut most_pinned) = (0, 0);
    loop {
        scenario.run_until_quiet();
        most_pinned = most_pinned.max(pinned(&scenario));
        if scenario.is_answered(flush) {
            break;
        }
        assert!(rounds < 100, "{} are left", scenario.snapshot().dirty_slots);
        // Those that land while the origin is flushed: it has been handed out.
        (0..9).for_each(|part| drop(scenario.send_write(scenario.blocks(3_000 + part * 16, 16), false)));
        scenario.release_flush(DeviceId::Origin);
        scenario.hold_flush(DeviceId::Origin);
        rounds += 1;
    }
    scenario.wait(flush).expect("nothing is lost");
    assert!((0..2_048).all(|block| scenario.on_origin(block)[1] == holds(&data, block)));
    assert!(most_pinned <= 2 << 20, "{most_pinned} bytes are pinned");
}

/// What is clean is much as well, and all of it is not looked at in one turn. Nobody asks for anything meanwhile.
#[test]
fn what_memory_has_is_looked_at_a_little_at_a_time() {
    let geometry = Geometry { block_atoms: 8, set_slots: 64, sets: 192, journal_pages: 256, volume_atoms: 8 * 16_384, range_entries: 252 };
    let mut plan = plan_for(geometry);
    (plan.config.ram, plan.config.through_bytes) = (12_000 * 8 * ATOM_BYTES, 4 << 20);
    let mut scenario = Scenario::of(plan);
    for part in 0..640 {
        scenario.write_span(scenario.blocks(part * 16, 16));
    }
    scenario.drain();
    // Each set has something dirty, at its end.
    let data: Vec<Stamps> = (0..160).map(|set| scenario.write(set * 64 + 63)).collect();
    scenario.flush();
    let snapshot = scenario.snapshot();
    assert_eq!((snapshot.dirty_slots, snapshot.memory.pages), (160, 10_240));
    scenario.hold(Zone::Origin);
    scenario.cache_goes();
    scenario.send_write(scenario.block(16_000), false);
    scenario.until_degraded();
    let at_once = pinned(&scenario);
    assert!(at_once < 160 << 12, "all of it at once");
    scenario.advance(Duration::from_millis(1));
    assert_eq!(pinned(&scenario), 161 << 12, "with what was written");
    scenario.release(Zone::Origin);
    scenario.flush();
    assert!((0..160).all(|set| scenario.on_origin(set * 64 + 63)[1] == stamps(&data[set as usize])));
}

/// They are still being merged at their end when the SSD fails: what lies below them is much, and goes home a little at a time.
#[test]
fn what_memory_has_below_long_zeroes_that_are_being_merged_is_not_copied_at_once() {
    let mut zeroes = None;
    let (mut scenario, data) = with_much_in_memory_and(&[], |scenario| {
        // A part of a block: memory does not keep it.
        scenario.write_span(Span::new(8 * 2_100 + 6, 2));
        scenario.flush();
        scenario.hold(Zone::Data);
        let span = Span::new(8 * 100, 8 * 2_000 + 5);
        zeroes = Some(scenario.send(span, Command::Zero { no_hole: true, fua: false, fast: false }));
        scenario.run_until_quiet();
    });
    let zeroes = zeroes.expect("they were sent");
    assert!(!scenario.is_answered(zeroes), "their end is being read");
    scenario.simulation.scene.oracle.writes_may_fail = true;
    scenario.send(scenario.block(5_000), Command::Trim { fua: false });
    let flush = scenario.send_flush();
    scenario.until_degraded();
    assert!(pinned(&scenario) <= 1 << 20, "{} bytes are pinned", pinned(&scenario));
    scenario.release(Zone::Data);
    assert_eq!(scenario.wait(zeroes), Err(RequestError::Io), "nobody knows the rest of their last block");
    scenario.wait(flush).expect("all that memory has is home");
    assert!((0..2_048).all(|block| scenario.on_origin(block)[1] == holds(&data, block)));
}

#[test]
fn a_drain_and_a_detach_end_although_the_ssd_gives_nothing_of_what_only_it_has() {
    let mut scenario = Scenario::new();
    (0..20).for_each(|block| drop(scenario.write(block)));
    scenario.flush();
    scenario.cache_goes();
    let newer = scenario.until_degraded_by_writing(7);
    for _ in 0..2 {
        scenario.simulation.control(Control::Drain);
        assert_eq!(scenario.snapshot().unreadable_blocks, 0, "they are asked for once more");
        scenario.advance(Duration::from_secs(10));
        let snapshot = scenario.snapshot();
        assert_eq!((snapshot.drain, snapshot.dirty_slots, snapshot.unreadable_blocks), (None, 19, 19));
    }
    scenario.simulation.control(Control::Detach);
    scenario.advance(Duration::from_secs(240));
    assert!(!scenario.snapshot().is_detaching && scenario.snapshot().phase == Phase::Serving, "it stays attached");
    // One of them is written as a whole.
    scenario.write(8);
    scenario.flush();
    assert_eq!((scenario.snapshot().unreadable_blocks, scenario.on_origin(7)[1].clone()), (18, stamps(&newer)));
}

#[test]
fn a_drain_without_the_ssd_brings_home_what_that_still_gives() {
    let mut scenario = Scenario::new();
    let data: Vec<Stamps> = (0..20).map(|block| scenario.write(block)).collect();
    scenario.flush();
    scenario.cache_wears_out();
    scenario.until_degraded_by_writing(40);
    scenario.drain();
    assert_eq!((scenario.snapshot().dirty_slots, scenario.snapshot().unreadable_blocks), (0, 0));
    assert!((0..20).all(|block| scenario.on_origin(block as u64)[1] == stamps(&data[block])));
}

#[test]
fn a_drain_without_the_ssd_ends_although_nobody_flushes() {
    let mut scenario = Scenario::new();
    scenario.write(7);
    scenario.flush();
    scenario.cache_goes();
    let newer = scenario.until_degraded_by_writing(7);
    scenario.simulation.control(Control::Drain);
    scenario.advance(Duration::from_secs(10));
    assert_eq!((scenario.snapshot().drain, scenario.snapshot().dirty_slots), (None, 0));
    assert_eq!((scenario.on_origin(7)[1].clone(), pinned(&scenario)), (stamps(&newer), 0));
}

/// A page with a hole is written in two parts, and the first of them is refused. What FLUSH comes while the second one is written has not been
/// refused anything.
#[test]
fn a_flush_that_comes_when_a_page_has_just_been_refused_has_it_tried_once_more() {
    let mut scenario = Scenario::with(|plan| {
        plan.limits[1].depth = 1;
        plan.speeds[1].write = Duration::from_secs(1);
    });
    let between = scenario.on_origin(1)[1][3];
    let parts = [Span::new(8, 3), Span::new(12, 4)].map(|span| scenario.write_span(span));
    scenario.simulation.scene.oracle.writes_may_fail = true;
    scenario.simulation.scene.origin.refuse(8, 100_000);
    scenario.cache_goes();
    scenario.until_degraded_by_writing(40);
    scenario.advance(Duration::from_secs(60));
    scenario.forget_noted();
    let first = scenario.send_flush();
    let is_refused = |op: &Noted| op.span.start == 8 && op.ended.is_some_and(|(_, well)| !well);
    while !scenario.noted().iter().any(is_refused) {
        scenario.step();
    }
    assert!(!scenario.is_answered(first), "the other part is being written");
    scenario.simulation.scene.origin.heal();
    let second = scenario.send_flush();
    assert_eq!(scenario.outcome(first).unwrap_err(), RequestError::Io);
    scenario.outcome(second).expect("it is taken now");
    assert_eq!(scenario.on_origin(1)[1], [&stamps(&parts[0])[..], &[between], &stamps(&parts[1])].concat());
}

/// Its reply is still to come when a read shows it, and something else is written there: it waits to be durable, or for another slot.
#[test]
fn a_write_that_was_placed_and_not_answered_never_comes_over_a_newer_one_when_the_ssd_fails() {
    for fua in [false, true] {
        let mut scenario = Scenario::with(|plan| plan.config.dirty_ram = if fua { 64 * 8 * ATOM_BYTES } else { 0 });
        if fua {
            scenario.hold(Zone::Data);
        } else {
            scenario.fail_next(Zone::Data, Fault::Error);
        }
        let (placed, older) = scenario.send_write(scenario.block(0), fua);
        while !fua && scenario.snapshot().counters.cache_write_failures == 0 {
            scenario.step();
        }
        scenario.expect(0, &older);
        let newer = scenario.write(0);
        assert!(!scenario.is_answered(placed));
        let flush = scenario.send_flush();
        scenario.cache_goes();
        scenario.until_degraded();
        scenario.wait(placed).expect("the origin has it");
        scenario.wait(flush).expect("the same");
        scenario.expect(0, &newer);
        assert_eq!(scenario.on_origin(0)[1], stamps(&newer));
    }
}

//! The volume without its SSD: what is much for it. Long zeroes, long writes.

use tidegate_engine::block::Span;
use tidegate_engine::cache::format::Geometry;
use tidegate_engine::config::Allocation;
use tidegate_engine::op::{DeviceId, Zone};
use tidegate_engine::request::{Command, RequestError, RequestId};
use tidegate_sim::back::fault::Fault;
use tidegate_sim::scenario::{Scenario, plan_for};
use tidegate_sim::stamp::Stamps;

/// More blocks than the whole journal has entries.
const LONG: Geometry = Geometry { block_atoms: 8, set_slots: 8, sets: 16, journal_pages: 64, volume_atoms: 8 * 8_192, range_entries: 252 };

fn stamps(data: &Stamps) -> Vec<u64> {
    data.stamps().collect()
}

/// The most operations that the engine has had at once, of those noted.
fn most_at_once(scenario: &Scenario) -> usize {
    scenario.noted().iter().map(|op| op.id.place() + 1).max().expect("some were noted")
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

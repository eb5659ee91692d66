//! Complete: a partly written block that was read as a whole is kept as a whole. In most of them a power cut is tried at every step.

use tidegate_engine::Control;
use tidegate_engine::block::Span;
use tidegate_engine::op::Zone;
use tidegate_engine::request::{Outcome, RequestError};
use tidegate_engine::time::Duration;
use tidegate_sim::back::fault::Fault;
use tidegate_sim::back::volatile::Survive;
use tidegate_sim::scenario::Scenario;
use tidegate_sim::stamp::Stamps;
use tidegate_sim::world::stamps_of;

/// Atoms 2 to 4 of block 3 are written and flushed; what it reads as.
fn partly_written(scenario: &mut Scenario) -> Vec<u64> {
    let first = scenario.first(3);
    let part = scenario.write_span(Span::new(3 * 8 + 2, 3));
    scenario.flush();
    let mut whole: Vec<u64> = first.stamps().collect();
    whole.splice(2..5, part.stamps());
    whole
}

fn reads_of_origin(scenario: &Scenario) -> usize {
    scenario.noted().iter().filter(|op| op.zone == Some(Zone::Origin) && !op.writes).count()
}

fn stamps(data: &Stamps) -> Vec<u64> {
    data.stamps().collect()
}

/// Block 3 reads so without the origin, after a power cut too, and goes home as it is.
fn expect_whole(scenario: &mut Scenario, whole: Vec<u64>) {
    scenario.forget_noted();
    assert_eq!(scenario.read(scenario.block(3)), Ok(whole.clone()));
    assert_eq!(reads_of_origin(scenario), 0);
    assert_eq!(scenario.snapshot().counters.completed_blocks, 1);
    assert_eq!(scenario.snapshot().dirty_slots, 1, "what was written is not at home yet");
    scenario.flush();
    scenario.power_cut(Survive::None);
    assert_eq!(scenario.read(scenario.block(3)), Ok(whole.clone()));
    scenario.drain();
    assert_eq!(scenario.on_origin(3)[1], whole);
}

#[test]
fn the_second_read_needs_no_origin() {
    for all in [true, false] {
        let mut scenario = Scenario::new();
        scenario.crash_at_every_step();
        let whole = partly_written(&mut scenario);
        // A part of what is missing is enough: the disk gives the rest along with it.
        let span = if all { scenario.block(3) } else { Span::new(3 * 8, 1) };
        scenario.read(span).expect("slot and origin");
        scenario.run_until_quiet();
        expect_whole(&mut scenario, whole);
    }
}

#[test]
fn what_is_written_of_a_block_while_it_is_read_is_made_whole_with_it() {
    let mut scenario = Scenario::new();
    scenario.crash_at_every_step();
    let mut whole = stamps(&scenario.first(3));
    scenario.hold(Zone::Origin);
    let read = scenario.send_read(scenario.block(3));
    let part = scenario.write_span(Span::new(3 * 8 + 2, 3));
    whole.splice(2..5, part.stamps());
    scenario.release(Zone::Origin);
    scenario.wait(read).expect("a read");
    scenario.run_until_quiet();
    expect_whole(&mut scenario, whole);
}

#[test]
fn what_was_read_before_its_zeros_went_home_completes_nothing() {
    let mut scenario = Scenario::new();
    scenario.write(2);
    scenario.flush();
    scenario.forget_noted();
    // Blocks 1 and 3 are read by themselves, and the first of them for long.
    scenario.fail_next(Zone::Origin, Fault::Stuck(Duration::from_secs(5)));
    let read = scenario.send_read(scenario.blocks(1, 3));
    scenario.advance(Duration::from_secs(1));
    assert_eq!(reads_of_origin(&scenario), 2);
    scenario.trim(scenario.block(3));
    scenario.flush();
    scenario.simulation.control(Control::Drain);
    scenario.advance(Duration::from_secs(1));
    assert_eq!(scenario.on_origin(3)[1], [0; 8], "nothing but the read knows any more what was there");
    let mut whole = vec![0; 8];
    let part = scenario.write_span(Span::new(3 * 8, 1));
    whole.splice(..1, part.stamps());
    assert!(!scenario.is_answered(read));
    scenario.wait(read).expect("a read");
    scenario.run_until_quiet();
    assert_eq!(scenario.read(scenario.block(3)), Ok(whole));
}

/// Found in service: what was valid at an edge of the block left nothing beside it, and nothing is no payload.
#[test]
fn a_part_at_either_edge_and_parts_with_a_gap_become_one() {
    for parts in [vec![(0, 3)], vec![(5, 3)], vec![(0, 1), (7, 1)], vec![(1, 2), (4, 2)]] {
        let mut scenario = Scenario::new();
        let mut whole = stamps(&scenario.first(3));
        for &(at, atoms) in &parts {
            let part = scenario.write_span(Span::new(3 * 8 + at, atoms));
            whole.splice(at as usize..(at + atoms) as usize, part.stamps());
        }
        for _ in 0..2 {
            assert_eq!(scenario.read(scenario.block(3)), Ok(whole.clone()), "{parts:?}");
            scenario.run_until_quiet();
        }
        assert_eq!(scenario.snapshot().counters.completed_blocks, 1);
        scenario.flush();
        scenario.power_cut(Survive::None);
        assert_eq!(scenario.read(scenario.block(3)), Ok(whole), "{parts:?}");
    }
}

#[test]
fn a_clean_part_becomes_a_clean_whole() {
    let mut scenario = Scenario::new();
    let whole = partly_written(&mut scenario);
    scenario.drain();
    assert_eq!(scenario.read(scenario.block(3)), Ok(whole.clone()));
    scenario.run_until_quiet();
    assert_eq!((scenario.snapshot().counters.completed_blocks, scenario.snapshot().dirty_slots), (1, 0));
    scenario.flush();
    scenario.power_cut(Survive::None);
    assert_eq!(scenario.read(scenario.block(3)), Ok(whole));
}

#[test]
fn a_newer_write_is_not_covered_by_what_was_read_for_the_old_one() {
    for span in [Span::new(3 * 8, 8), Span::new(3 * 8 + 1, 2), Span::new(3 * 8 + 7, 1)] {
        let mut scenario = Scenario::new();
        let mut whole = partly_written(&mut scenario);
        scenario.hold(Zone::Data);
        let read = scenario.send_read(Span::new(3 * 8, 1));
        scenario.run_until_quiet();
        assert!(scenario.is_answered(read), "the old slot is being read behind the reply");
        let (write, data) = scenario.send_write(span, false);
        scenario.crash_at_every_step();
        scenario.release(Zone::Data);
        scenario.wait(write).expect("written");
        scenario.flush();
        scenario.power_cut(Survive::None);
        let at = (span.start - 3 * 8) as usize;
        whole.splice(at..at + span.atoms as usize, stamps(&data));
        assert_eq!(scenario.read(scenario.block(3)), Ok(whole), "{span:?}");
    }
}

#[test]
fn a_trim_meanwhile_stays_one() {
    let mut scenario = Scenario::new();
    partly_written(&mut scenario);
    scenario.hold(Zone::Data);
    scenario.read(Span::new(3 * 8, 1)).expect("the origin has it");
    scenario.trim(scenario.block(3));
    scenario.release(Zone::Data);
    scenario.run_until_quiet();
    assert_eq!(scenario.snapshot().counters.completed_blocks, 0);
    assert_eq!(scenario.read(scenario.block(3)), Ok(vec![0; 8]));
}

#[test]
fn a_slot_that_rots_is_not_passed_on() {
    let mut scenario = Scenario::new();
    let whole = partly_written(&mut scenario);
    scenario.places(whole[3]).into_iter().for_each(|place| scenario.rot(place));
    scenario.read(Span::new(3 * 8, 1)).expect("the origin has it");
    scenario.run_until_quiet();
    assert_eq!(scenario.snapshot().counters.completed_blocks, 0);
    scenario.read(scenario.block(3)).expect_err("what was written there is gone");
}

/// Reads of the rest of a block that end and begin without a pause: they were read as wholes, and what is dirty there never found the origin free.
#[test]
fn reads_of_the_rest_of_a_block_do_not_hold_up_what_is_dirty_of_it() {
    let mut scenario = Scenario::with(|plan| {
        plan.config.max_dirty_age = Duration::from_secs(2);
        // There is no room to keep it as a whole.
        plan.config.daily_write_bytes = 1;
    });
    scenario.write_span(Span::new(40, 4));
    scenario.write(20);
    scenario.flush();
    let rest = Span::new(44, 4);
    let mut read = scenario.send_read(rest);
    for _ in 0..2_000 {
        scenario.step();
        let next = scenario.send_read(rest);
        scenario.wait(std::mem::replace(&mut read, next)).expect("a read");
    }
    assert_eq!(scenario.snapshot().dirty_slots, 0, "at {:?}", scenario.simulation.now());
}

/// Every other atom of blocks 3 and 4 is written and flushed; what they read as.
fn combed(scenario: &mut Scenario) -> Vec<u64> {
    let mut whole: Vec<u64> = [3, 4].iter().flat_map(|&block| scenario.first(block).stamps().collect::<Vec<_>>()).collect();
    for atom in (1..16).step_by(2) {
        let part = scenario.write_span(Span::new(3 * 8 + atom, 1));
        whole[atom as usize] = part.stamps().next().expect("one atom");
    }
    scenario.flush();
    scenario.power_cut(Survive::None);
    scenario.forget_noted();
    whole
}

fn reads_of_ssd(scenario: &Scenario) -> usize {
    scenario.noted().iter().filter(|op| op.zone == Some(Zone::Data) && !op.writes).count()
}

/// Each piece by itself would be read as a whole block, and hold as much memory.
#[test]
fn a_block_of_many_pieces_is_read_once_from_each_place_and_comes_in_one() {
    let mut scenario = Scenario::new();
    let whole = combed(&mut scenario);
    let read = scenario.send_read(scenario.blocks(3, 2));
    let Ok(Outcome::Data(pieces)) = scenario.outcome(read) else { panic!("a read") };
    assert_eq!(stamps_of(&pieces), whole);
    // (From the SSD once more, to be completed.)
    assert_eq!((pieces.len(), reads_of_ssd(&scenario), reads_of_origin(&scenario)), (2, 4, 2));
}

#[test]
fn what_fails_for_one_piece_of_a_block_is_asked_for_by_the_others_themselves() {
    for (zone, fault) in [(Zone::Origin, Fault::Error), (Zone::Data, Fault::Error)] {
        let mut scenario = Scenario::new();
        let whole = combed(&mut scenario);
        scenario.fail_next(zone, fault);
        let read = scenario.read(scenario.blocks(3, 2));
        match zone {
            // What has failed may be what nobody has asked for: each piece is asked for once more.
            Zone::Origin => assert_eq!((read, reads_of_origin(&scenario)), (Ok(whole.clone()), 6)),
            _ => assert_eq!(read, Err(RequestError::Io), "the only copy"),
        }
        assert_eq!(scenario.read(scenario.blocks(3, 2)), Ok(whole));
    }
}

/// A write to a part of what is read from the origin comes between: the pieces are looked up again.
#[test]
fn pieces_that_wait_for_the_origin_together_go_on_together() {
    let mut scenario = Scenario::new();
    let whole = combed(&mut scenario);
    scenario.hold(Zone::Origin);
    scenario.simulation.control(Control::Drain);
    scenario.run_until_quiet();
    let read = scenario.send_read(scenario.blocks(3, 2));
    scenario.run_until_quiet();
    assert!(!scenario.is_answered(read));
    scenario.release(Zone::Origin);
    assert_eq!(scenario.wait(read), Ok(whole));
}

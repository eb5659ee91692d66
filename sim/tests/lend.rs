//! Lending: memory that writes do not fill is lent to pages of what is read, and comes back when writes would wait for it.

use tidegate_engine::block::ATOM_BYTES;
use tidegate_engine::cache::format::Geometry;
use tidegate_engine::op::Zone;
use tidegate_engine::probe::MemoryUse;
use tidegate_sim::scenario::{Scenario, plan_for};

const BLOCK_BYTES: u64 = 8 * ATOM_BYTES;
/// Blocks that may be dirty, and as many of them as always may.
const DIRTY: u64 = 64;
const LEAST: u64 = 16;
/// From the one to the other in 16 steps.
const STEP: u64 = 3;

/// 64 pages of memory, of which eight are always on their way, beside what is dirty.
fn lending() -> Scenario {
    let geometry = Geometry { block_atoms: 8, set_slots: 256, sets: 16, journal_pages: 256, volume_atoms: 16_384, range_entries: 252 };
    let mut plan = plan_for(geometry);
    plan.config.ram = 64 * BLOCK_BYTES;
    plan.config.dirty_ram = DIRTY * BLOCK_BYTES;
    plan.config.dirty_ram_least = Some(LEAST * BLOCK_BYTES);
    plan.config.window_bytes = 4 * DIRTY * BLOCK_BYTES;
    Scenario::of(plan)
}

fn memory(scenario: &Scenario) -> MemoryUse {
    scenario.snapshot().memory
}

/// So many reads of any of so many blocks.
fn read_any(scenario: &mut Scenario, reads: u64, blocks: u64) {
    let mut chance = scenario.chance("reads");
    for _ in 0..reads {
        let block = scenario.block(chance.below(blocks));
        scenario.read(block).expect("nothing fails");
    }
}

/// So many times, so many writes of a block each at once.
fn write_bursts(scenario: &mut Scenario, bursts: u64, blocks: u64) {
    for _ in 0..bursts {
        let sent: Vec<_> = (0..blocks).map(|block| scenario.send_write(scenario.block(1_000 + block), false)).collect();
        for (id, _) in sent {
            scenario.wait(id).expect("nothing fails");
        }
        scenario.flush();
        scenario.run_until_quiet();
    }
}

/// How many of a hundred writes are acknowledged before the SSD has any. No fills wait with them.
fn taken_at_once(scenario: &mut Scenario) -> usize {
    scenario.flush();
    scenario.hold(Zone::Data);
    let sent: Vec<_> = (0..100).map(|block| scenario.send_write(scenario.block(1_000 + block), false).0).collect();
    scenario.run_until_quiet();
    let taken = sent.iter().filter(|&&id| scenario.is_answered(id)).count();
    scenario.release(Zone::Data);
    for id in sent {
        scenario.wait(id).expect("nothing fails");
    }
    scenario.flush();
    scenario.run_until_quiet();
    taken
}

#[test]
fn reads_that_miss_by_little_get_what_writes_do_not_fill_and_no_more() {
    let mut scenario = lending();
    // 56 pages of 70 blocks, and later all of them.
    read_any(&mut scenario, 20_000, 70);
    let MemoryUse { lent, pages, pages_max, lent_moves, .. } = memory(&scenario);
    assert!((12..=21).contains(&lent) && lent == STEP * lent_moves, "{lent} pages lent in {lent_moves} steps");
    assert_eq!((pages, pages_max), (70.min(56 + lent), 56 + lent));
    // Of 1,000 blocks a few more are worth nothing; of 150 all that there is.
    read_any(&mut scenario, 60_000, 150);
    assert_eq!(memory(&scenario).lent, DIRTY - LEAST);
    assert_eq!(taken_at_once(&mut scenario), LEAST as usize, "so many always are");
}

#[test]
fn writes_that_fill_their_memory_keep_it() {
    let mut scenario = lending();
    for _ in 0..100 {
        read_any(&mut scenario, 40, 70);
        write_bursts(&mut scenario, 1, DIRTY);
    }
    let MemoryUse { lent, lent_moves, .. } = memory(&scenario);
    assert_eq!((lent, lent_moves), (0, 0));
    assert_eq!(taken_at_once(&mut scenario), DIRTY as usize);
}

#[test]
fn another_load_changes_its_mind() {
    let mut scenario = lending();
    read_any(&mut scenario, 40_000, 120);
    assert_eq!((memory(&scenario).lent, taken_at_once(&mut scenario)), (DIRTY - LEAST, LEAST as usize));
    // 40 at once, a step for each 512.
    write_bursts(&mut scenario, 30, 40);
    let lent = memory(&scenario).lent;
    assert!((1..=2).contains(&((DIRTY - LEAST - lent) / STEP)), "{lent} are still lent: by steps");
    write_bursts(&mut scenario, 150, 40);
    let moves = memory(&scenario).lent_moves;
    assert!((40..40 + 2 * STEP as usize).contains(&taken_at_once(&mut scenario)), "as many as are asked for, and no step more");
    write_bursts(&mut scenario, 50, 40);
    assert_eq!(memory(&scenario).lent_moves, moves, "that is settled");
    read_any(&mut scenario, 40_000, 120);
    assert_eq!(memory(&scenario).lent, DIRTY - LEAST);
}

#[test]
fn what_memory_would_not_help_moves_nothing() {
    let mut scenario = lending();
    read_any(&mut scenario, 4_000, 40);
    read_any(&mut scenario, 4_000, 2_000);
    write_bursts(&mut scenario, 400, 4);
    // More at once than ever could be dirty: a step more would spare a few of hundreds.
    write_bursts(&mut scenario, 10, 250);
    scenario.advance(tidegate_engine::time::Duration::from_millis(3_600_000));
    let MemoryUse { lent, lent_moves, pages_max, .. } = memory(&scenario);
    assert_eq!((lent, lent_moves, pages_max), (0, 0, 56));
}

#[test]
fn nothing_is_lent_where_nobody_has_said_so() {
    let mut scenario = Scenario::with(|plan| (plan.config.ram, plan.config.dirty_ram) = (64 * BLOCK_BYTES, DIRTY * BLOCK_BYTES));
    for block in (0..64).cycle().take(6_000) {
        scenario.read(scenario.block(block)).expect("nothing fails");
    }
    assert_eq!(memory(&scenario).lent_moves, 0);
}

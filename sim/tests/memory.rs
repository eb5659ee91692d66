//! Memory: what was read or written is answered from pages, and never anything else than what a read of the volume would give.

use std::cell::RefCell;
use std::rc::Rc;

use tidegate_engine::block::{ATOM_BYTES, Span};
use tidegate_engine::cache::format::Geometry;
use tidegate_engine::config::Allocation;
use tidegate_engine::op::{Op, Zone};
use tidegate_engine::payload::{Lessor, Pieces};
use tidegate_engine::request::{Command, Outcome, Reply, Request, RequestId};
use tidegate_engine::time::{Duration, Instant};
use tidegate_engine::{Canary, Event, Mode, World, turn};
use tidegate_sim::back::fault::Fault;
use tidegate_sim::back::volatile::Survive;
use tidegate_sim::scenario::{Scenario, plan_for};
use tidegate_sim::stamp::Stamps;
use tidegate_sim::swarm::{Options, swarm};

/// Memory of so many pages of 4 KiB, of which one in eight is always on its way.
fn with_pages(pages: u64) -> Scenario {
    Scenario::with(|plan| plan.config.ram = pages * 8 * ATOM_BYTES)
}

fn stamps(data: &Stamps) -> Vec<u64> {
    data.stamps().collect()
}

/// Block 3, and whether a device was asked for it: what was not flushed would be in memory in any case.
fn read_block(scenario: &mut Scenario) -> (Vec<u64>, bool) {
    scenario.flush();
    scenario.run_until_quiet();
    scenario.forget_noted();
    let data = scenario.read(scenario.block(3)).expect("nothing fails");
    let asked = scenario.noted().iter().any(|op| !op.writes && matches!(op.zone, Some(Zone::Origin | Zone::Data)));
    (data, asked)
}

#[test]
fn what_was_read_is_there_without_any_device() {
    let mut scenario = with_pages(32);
    let first = stamps(&scenario.first(3));
    assert_eq!(read_block(&mut scenario), (first.clone(), true));
    assert_eq!(read_block(&mut scenario), (first.clone(), false));
    // A part of it as well; a neighbour that is not there makes it a miss.
    assert_eq!(scenario.read(Span::new(3 * 8 + 2, 3)), Ok(first[2..5].to_vec()));
    scenario.read(scenario.blocks(3, 2)).expect("nothing fails");
    let snapshot = scenario.snapshot();
    assert_eq!((snapshot.counters.memory_hit_blocks, snapshot.counters.memory_miss_blocks, snapshot.memory.pages), (2, 3, 2));
}

/// What the engine has asked for and answered.
#[derive(Default)]
struct Told {
    operations: usize,
    replies: usize,
}

/// What was read.
#[derive(Default)]
struct Contents(Vec<Vec<u64>>);

impl World<Stamps> for Contents {
    fn start(&mut self, _now: Instant, _op: Op<Stamps>) {}
    fn reply(&mut self, _now: Instant, reply: Reply<Stamps>) {
        if let Ok(Outcome::Data(pieces)) = reply.result {
            self.0.push(pieces.iter().flat_map(stamps).collect());
        }
    }
    fn fence(&mut self, _now: Instant, _at_risk: &mut dyn Iterator<Item = Span>) {
        unreachable!("nothing fails");
    }
}

impl World<Stamps> for Told {
    fn start(&mut self, _now: Instant, _op: Op<Stamps>) {
        self.operations += 1;
    }
    fn reply(&mut self, _now: Instant, reply: Reply<Stamps>) {
        assert!(reply.result.is_ok());
        self.replies += 1;
    }
    fn fence(&mut self, _now: Instant, _at_risk: &mut dyn Iterator<Item = Span>) {
        unreachable!("nothing fails");
    }
}

/// Reads that arrive are no reason to look at all flows, and those from memory are followed by nothing else.
#[test]
fn what_is_due_by_time_alone_is_done_among_reads_from_memory_and_after_them() {
    const AGE: Duration = Duration::from_millis(10);
    let between = [7, 70].map(Duration::from_micros);
    for (between, at_once, turns_after) in between.into_iter().flat_map(|b| [(b, 1, 1), (b, 1, 100), (b, 3, 1), (b, 3, 100)]) {
        let mut scenario = Scenario::with(|plan| {
            plan.config.ram = 32 * 8 * ATOM_BYTES;
            plan.config.flush_age = AGE;
        });
        scenario.write(3);
        let (span, mut now) = (scenario.block(3), scenario.simulation.now());
        let engine = &mut scenario.simulation.engine;
        let due = engine.deadline().expect("what was written grows old");
        let (mut told, mut after, mut read) = (Told::default(), 0, 0);
        while after < turns_after {
            now = now + between;
            let request = |id| Event::Arrived(Request { id: RequestId(1_000 + id), span, command: Command::Read });
            let mut events: Vec<_> = (read..read + at_once).map(|id| request(id as u64)).collect();
            read += at_once;
            turn(engine, &mut told, now, &mut events);
            assert_eq!((events.len(), told.replies), (0, read), "it is in memory");
            assert!(told.operations == 0 || now >= due);
            after += u32::from(now >= due);
        }
        if turns_after == 1 {
            assert!(told.operations > 0 || engine.deadline().is_some_and(|deadline| deadline <= now), "it wants to be woken at once");
            turn(engine, &mut told, now, &mut Vec::new());
        }
        assert!(told.operations > 0, "{at_once} reads each {between:?}, {turns_after} times after it was due");
    }
}

/// Answers with its own stamps, so that they are known; and what it was asked.
#[derive(Clone, Default)]
struct Lent(Rc<RefCell<(Vec<Span>, bool)>>);

impl Lessor<Stamps> for Lent {
    fn lease(&mut self, spans: &[Span]) -> Option<Vec<Option<Pieces<Stamps>>>> {
        let (asked, is_out) = &mut *self.0.borrow_mut();
        asked.extend_from_slice(spans);
        let answer =
            |span: &Span| [3, 20].contains(&(span.start / 8)).then(|| [Stamps::from_stamps(&vec![77; span.atoms as usize])].into());
        (!std::mem::replace(is_out, true)).then(|| spans.iter().map(answer).collect())
    }
    fn end(&mut self) {
        self.0.borrow_mut().1 = false;
    }
}

/// What else happens in its turn may need pages; and what was sent before may not have gone.
#[test]
fn reads_that_come_at_once_and_with_nothing_else_are_answered_with_pages_as_they_are() {
    let mut scenario = with_pages(32);
    let first = stamps(&scenario.first(3));
    scenario.read(scenario.block(3)).expect("nothing fails");
    let (span, missed, now) = (scenario.block(3), scenario.block(9), scenario.simulation.now());
    let (long, missing) = (scenario.blocks(20, 8), scenario.blocks(10, 8));
    let contents = scenario.read(long).expect("nothing fails");
    let before = scenario.snapshot().counters.memory_hit_blocks;
    let engine = &mut scenario.simulation.engine;
    let lent = Lent::default();
    engine.set_lessor(Box::new(lent.clone()));
    let mut number = 2_000;
    let mut turn_of = |engine: &mut tidegate_engine::Engine<Stamps>, commands: &[(Span, Command<Stamps>)]| {
        let mut told = Contents::default();
        let mut events: Vec<_> = (commands.iter().cloned())
            .map(|(span, command)| {
                number += 1;
                Event::Arrived(Request { id: RequestId(number), span, command })
            })
            .collect();
        turn(engine, &mut told, now, &mut events);
        (told.0, std::mem::take(&mut lent.0.borrow_mut().0))
    };
    let read = |span| (span, Command::Read);
    let part = Span::new(span.start + 2, 3);
    let (replies, asked) = turn_of(engine, &[read(span), read(part)]);
    assert_eq!((replies, asked), (vec![vec![77; 8], vec![77; 3]], vec![span, part]));
    // They have not been sent yet: copies of what is there.
    let (replies, asked) = turn_of(engine, &[read(span), read(part)]);
    assert_eq!((replies, asked), (vec![first.clone(), first[2..5].to_vec()], vec![span, part]));
    engine.sent();
    let (replies, asked) = turn_of(engine, &[read(span), (Span::new(0, 0), Command::Flush), read(part)]);
    assert_eq!((&replies[..2], asked), (&[first.clone(), first[2..5].to_vec()][..], vec![]), "others are there");
    let (replies, asked) = turn_of(engine, &[read(missed), read(span)]);
    assert_eq!((replies, asked), (vec![vec![77; 8]], vec![missed, span]), "the other one is asked for elsewhere");
    engine.sent();
    let (replies, asked) = turn_of(engine, &[read(span)]);
    assert_eq!((replies, asked), (vec![first], vec![]), "it is short, and alone");
    let (replies, asked) = turn_of(engine, &[read(missing)]);
    assert_eq!((replies, asked), (vec![], vec![missing]), "a long one");
    let (replies, asked) = turn_of(engine, &[read(long)]);
    assert_eq!((replies, asked), (vec![contents.clone()], vec![long]), "what was answered before is not sent");
    engine.sent();
    let (replies, asked) = turn_of(engine, &[read(long)]);
    assert_eq!((replies, asked), (vec![vec![77; 64]], vec![long]));
    engine.sent();
    let (replies, asked) = turn_of(engine, &[read(long), (Span::new(0, 0), Command::Flush)]);
    assert_eq!((&replies[..1], asked), (&[contents][..], vec![]), "another one is there");
    assert_eq!(engine.inspect(now).counters.memory_hit_blocks - before, 8 + 3 * 8);
}

#[test]
fn without_memory_there_is_none() {
    let mut scenario = Scenario::new();
    read_block(&mut scenario);
    assert!(read_block(&mut scenario).1);
    assert_eq!(scenario.snapshot().memory, Default::default());
}

#[test]
fn what_was_written_is_read_whatever_it_replaces() {
    let mut scenario = with_pages(32);
    scenario.crash_at_every_step();
    let mut block = stamps(&scenario.first(3));
    read_block(&mut scenario);
    block.copy_from_slice(&stamps(&scenario.write(3)));
    assert_eq!(read_block(&mut scenario), (block.clone(), false), "a write is kept");
    block[2..5].copy_from_slice(&stamps(&scenario.write_span(Span::new(3 * 8 + 2, 3))));
    assert_eq!(read_block(&mut scenario).0, block, "a part of a block");
    scenario.zero(scenario.block(3));
    assert_eq!(read_block(&mut scenario).0, [0; 8], "zeroes");
    scenario.write(3);
    scenario.trim(scenario.blocks(0, 8));
    assert_eq!(read_block(&mut scenario).0, [0; 8], "a TRIM");
    let large = stamps(&scenario.write_span(scenario.blocks(0, 20)));
    assert_eq!(read_block(&mut scenario).0, large[24..32], "a write too large to be kept");
}

#[test]
fn past_the_log_as_well() {
    let mut scenario = with_pages(32);
    scenario.switch(Mode::WriteThrough);
    read_block(&mut scenario);
    let mut block = stamps(&scenario.write(3));
    assert_eq!(read_block(&mut scenario), (block.clone(), false));
    block[..1].copy_from_slice(&stamps(&scenario.write_span(Span::new(24, 1))));
    assert_eq!(read_block(&mut scenario).0, block);
}

/// The read began before the write and ends after it: what it brings is older.
#[test]
fn a_read_that_a_write_overtakes_is_not_kept() {
    for zone in [Zone::Origin, Zone::Data] {
        let mut scenario = with_pages(32);
        if zone == Zone::Data {
            // In the cache, and not in memory: a large write is not kept there.
            scenario.write_span(scenario.blocks(0, 20));
            scenario.flush();
            scenario.run_until_quiet();
        }
        scenario.hold(zone);
        let read = scenario.send_read(scenario.block(3));
        scenario.run_until_quiet();
        let (write, new) = scenario.send_write(scenario.block(3), false);
        scenario.run_until_quiet();
        scenario.release(zone);
        scenario.wait(read).expect("nothing fails");
        scenario.wait(write).expect("nothing fails");
        assert_eq!(read_block(&mut scenario).0, stamps(&new), "{zone:?}");
    }
}

/// The read finds what the last write has left in memory until the origin is flushed, while the next one is under way. That one fails, and any
/// part of it may be on the origin: nobody who has read that is told the former contents again (seed 7227).
#[test]
fn what_is_kept_while_a_write_is_under_way_goes_when_it_fails() {
    for seed in 0..8 {
        let mut scenario = Scenario::with(|plan| {
            plan.seed = seed;
            plan.config.ram = 32 * 8 * ATOM_BYTES;
            plan.config.allocation = Allocation::ReadOnly;
        });
        scenario.switch(Mode::WriteThrough);
        let before = stamps(&scenario.write(3));
        scenario.fail_next(Zone::Origin, Fault::Error);
        scenario.hold(Zone::Origin);
        let (write, _) = scenario.send_write(scenario.block(3), false);
        scenario.run_until_quiet();
        assert_eq!(scenario.read(scenario.block(3)), Ok(before));
        scenario.flush();
        scenario.release(Zone::Origin);
        assert!(scenario.wait(write).is_err());
        // Of the second block nothing is in memory, so the first one is not read there either.
        let both = scenario.read(scenario.blocks(3, 2)).expect("the origin has both");
        assert_eq!(scenario.read(scenario.block(3)), Ok(both[..8].to_vec()), "seed {seed}");
    }
}

#[test]
fn a_crash_takes_memory_along_and_nothing_else() {
    let mut scenario = with_pages(32);
    let kept = scenario.write(3);
    scenario.flush();
    scenario.write(3);
    scenario.read(scenario.block(3)).expect("nothing fails");
    scenario.power_cut(Survive::None);
    assert_eq!(scenario.snapshot().memory.pages, 0);
    assert_eq!(read_block(&mut scenario), (stamps(&kept), true));
}

#[test]
fn a_small_memory_keeps_what_is_asked_for_again() {
    let mut scenario = with_pages(16);
    for round in 0..8 {
        for block in [0, 1, 2] {
            scenario.read(scenario.block(block)).expect("nothing fails");
        }
        for other in 0..4 {
            scenario.read(scenario.block(8 + (round * 7 + other * 9) % 56)).expect("nothing fails");
        }
    }
    scenario.run_until_quiet();
    scenario.forget_noted();
    scenario.read(scenario.blocks(0, 3)).expect("nothing fails");
    assert!(scenario.noted().iter().all(|op| op.writes));
    let memory = scenario.snapshot().memory;
    assert!(memory.pages <= memory.pages_max && memory.evicted > 0, "{memory:?}");
}

/// A write of a block that has a page asks for it, as a read does.
#[test]
fn what_is_written_again_stays_while_others_pass() {
    let mut scenario = with_pages(16);
    let mut last = Vec::new();
    for round in 0..8 {
        last = [0, 1, 2].map(|block| stamps(&scenario.write(block))).concat();
        for other in 0..4 {
            scenario.read(scenario.block(8 + (round * 7 + other * 9) % 56)).expect("nothing fails");
        }
    }
    scenario.flush();
    scenario.run_until_quiet();
    scenario.forget_noted();
    assert_eq!(scenario.read(scenario.blocks(0, 3)), Ok(last));
    assert!(scenario.noted().iter().all(|op| op.writes), "{:?}", scenario.noted());
}

/// What only the failed SSD had is lost; what memory has besides is not.
#[test]
fn what_the_failed_ssd_had_goes_home_from_memory() {
    let mut scenario = with_pages(32);
    let data = scenario.write(3);
    scenario.flush();
    scenario.run_until_quiet();
    scenario.cache_goes();
    scenario.until_degraded_by_writing(4);
    assert_eq!(scenario.read(scenario.block(3)), Ok(stamps(&data)));
    scenario.flush();
    scenario.run_until_quiet();
    assert_eq!(scenario.on_origin(3)[1], stamps(&data), "durable on the origin");
}

#[test]
fn the_swarm_finds_a_page_that_is_not_forgotten() {
    let options = Options { seeds: 60, ops: 1_000, threads: 2, canary: Some(Canary::StalePage), ..Options::default() };
    assert!(!swarm(&options, &mut |_| {}).violations.is_empty());
}

/// Reads that are answered in the turn of a FLUSH take nothing from what that has covered: when the SSD fails later, nobody is told of a loss.
#[test]
fn a_flush_covers_what_was_acknowledged_before_it_whatever_is_read_in_its_turn() {
    let mut scenario = with_pages(64);
    for block in [40, 41] {
        scenario.read(scenario.block(block)).expect("nothing fails");
    }
    // More than memory keeps.
    scenario.write_span(scenario.blocks(0, 20));
    let reads = [40, 41].map(|block| (scenario.block(block), Command::Read));
    for id in scenario.send_at_once(reads.into_iter().chain([(Span::default(), Command::Flush)])) {
        scenario.wait(id).expect("nothing fails");
    }
    scenario.cache_goes();
    scenario.until_degraded_by_writing(50);
    scenario.flush();
}

/// Memory keeps it while there is room, and so does what tells what another size would have missed.
#[test]
fn a_long_sequence_that_there_was_room_for_is_missed_once_by_memory_and_by_its_curve() {
    let geometry = Geometry { block_atoms: 8, set_slots: 64, sets: 64, journal_pages: 256, volume_atoms: 8 * 4_096, range_entries: 252 };
    let mut plan = plan_for(geometry);
    (plan.config.ram, plan.config.bytes_max) = (3_072 * 8 * ATOM_BYTES, 64 << 20);
    let mut scenario = Scenario::of(plan);
    // With this the first read goes on with a sequence, and is a long one.
    scenario.read(scenario.block(0)).expect("a read");
    for _ in 0..3 {
        scenario.read(scenario.blocks(0, 2_000)).expect("a read");
        scenario.run_until_quiet();
    }
    let counters = scenario.snapshot().counters;
    let missed = counters.memory_miss_blocks as f64 / (counters.memory_hit_blocks + counters.memory_miss_blocks) as f64;
    assert!((0.32..0.35).contains(&missed), "{missed}");
    let curve = scenario.simulation.engine.what_if().memory;
    let point = curve.points.iter().find(|point| point.blocks == curve.blocks).expect("its own size is among them");
    assert!((point.misses - missed).abs() <= curve.error, "{} and not {missed}, within {}", point.misses, curve.error);
}

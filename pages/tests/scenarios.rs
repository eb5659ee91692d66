//! What the tier promises, one sentence at a time, on one thread. What several do to each other is in `loom.rs` and `stress.rs`.
#![cfg(not(loom))]

use tidegate_pages::{Atoms, Block, Config, Front, Keeper, Marks, Pages, Read, Refused, Unwritten, Write};

const ATOMS: usize = 8;
const ATOM_BYTES: usize = 512;
const PAGE_BYTES: usize = ATOMS * ATOM_BYTES;
const ALL: Atoms = Atoms(0xff);

fn config() -> Config {
    Config {
        pages: 256,
        page_atoms: ATOMS,
        atom_bytes: ATOM_BYTES,
        fronts: 2,
        leases: 1,
        touches: 16,
        dirty_ring: 64,
        dirty_pages: 128,
        whole_blocks: false,
    }
}

fn tier(config: Config) -> (Front, Keeper) {
    let (pages, keeper) = Pages::new(config).expect("memory");
    (Pages::front(&pages).expect("a front"), keeper)
}

/// Fills the first `blocks` blocks with `value`.
fn fill(keeper: &mut Keeper, blocks: u64, value: u8) {
    (0..blocks).for_each(|block| assert!(keeper.fill(Block(block), &[value; PAGE_BYTES], ALL).is_ok()));
}

/// Reads atoms of a block; `None` is a miss.
fn read(front: &mut Front, block: u64, atom: usize, atoms: usize) -> Option<Vec<u8>> {
    let mut into = vec![0xee; atoms * ATOM_BYTES];
    let mut reads = [Read { atom, ..Read::new(Block(block), &mut into) }];
    front.read(&mut reads);
    let [Read { is_hit, .. }] = reads;
    is_hit.then_some(into)
}

#[test]
fn a_write_is_read_at_once_and_part_of_a_block_fetches_nothing() {
    let (mut front, _keeper) = tier(config());
    front.write(3, &[7; 2 * ATOM_BYTES]).expect("room");
    assert_eq!(read(&mut front, 0, 3, 2), Some(vec![7; 2 * ATOM_BYTES]));
    assert_eq!(read(&mut front, 0, 2, 2), None, "atom 2 was never seen");
    front.write(2, &[8; ATOM_BYTES]).expect("room");
    let expected = [vec![8; ATOM_BYTES], vec![7; 2 * ATOM_BYTES]].concat();
    assert_eq!(read(&mut front, 0, 2, 3), Some(expected));
}

#[test]
fn a_write_over_several_blocks_is_cut_at_their_borders() {
    let (mut front, mut keeper) = tier(config());
    let data: Vec<u8> = (0..20).flat_map(|atom| [atom as u8; ATOM_BYTES]).collect();
    front.write(6, &data).expect("room");
    for atom in 0..20 {
        let at = 6 + atom;
        assert_eq!(read(&mut front, at as u64 / 8, at % 8, 1), Some(vec![atom as u8; ATOM_BYTES]));
    }
    let group = keeper.drain();
    let masks: Vec<_> = group.dirty.iter().map(|dirty| (dirty.block, dirty.page.mask())).collect();
    assert_eq!(masks, [(Block(0), Atoms(0xc0)), (Block(1), ALL), (Block(2), ALL), (Block(3), Atoms(0x03))]);
}

#[test]
fn the_largest_write_takes_all_its_locks_wherever_it_begins() {
    let config = Config { pages: 1024, dirty_ring: 512, dirty_pages: 512, ..config() };
    let (mut front, mut keeper) = tier(config);
    for first in [0, 1, 63, (1 << 20) - 7] {
        front.write(first * 8, &[1; 256 * PAGE_BYTES]).expect("room");
        assert_eq!(keeper.drain().dirty.len(), 256);
    }
}

#[test]
fn a_full_dirty_ring_slows_and_loses_nothing() {
    let (mut front, mut keeper) = tier(Config { dirty_ring: 4, ..config() });
    (0..4).for_each(|block| front.write(block * 8, &[1; PAGE_BYTES]).expect("room"));
    assert_eq!(front.write(4 * 8, &[1; PAGE_BYTES]), Err(Unwritten::RingFull));
    assert_eq!(read(&mut front, 4, 0, 8), None, "a write that is not taken has not happened");
    assert_eq!(keeper.drain().dirty.len(), 4);
    front.write(4 * 8, &[1; PAGE_BYTES]).expect("room again");
    assert_eq!(keeper.drain().dirty[0].block, Block(4));
}

#[test]
fn of_many_writes_at_once_each_is_taken_or_not() {
    let (mut front, mut keeper) = tier(Config { dirty_ring: 4, ..config() });
    let datas: Vec<Vec<u8>> = [1, 2, 3, 1, 1].iter().zip(1..).map(|(&blocks, byte)| vec![byte; blocks * PAGE_BYTES]).collect();
    // The third finds no room in the ring for all of its three blocks, and the last one none at all: the second write's are not pushed yet.
    let mut writes: Vec<Write> = [0, 1, 10, 0, 20].iter().zip(&datas).map(|(block, data)| Write::new(block * 8, data)).collect();
    front.write_all(&mut writes);
    let results: Vec<_> = writes.iter().map(|write| write.result).collect();
    assert_eq!(results, [Ok(()), Ok(()), Err(Unwritten::RingFull), Ok(()), Err(Unwritten::RingFull)]);
    for (block, byte) in [(0, Some(4)), (1, Some(2)), (2, Some(2)), (10, None), (20, None)] {
        assert_eq!(read(&mut front, block, 0, 8), byte.map(|byte| vec![byte; PAGE_BYTES]), "block {block}");
    }
    assert_eq!(front.pages().counts().writes, 4);
    let blocks: Vec<_> = keeper.drain().dirty.iter().map(|dirty| (dirty.block.0, dirty.page.bytes()[0])).collect();
    assert_eq!(blocks, [(0, 4), (1, 2), (2, 2)], "of one block the later one");
}

/// As one after the other, where each makes room for the next.
#[test]
fn of_many_writes_at_once_the_first_ones_give_their_pages_to_the_last() {
    let (mut front, mut keeper) = tier(Config { pages: 16, ..config() });
    fill(&mut keeper, 12, 1);
    keeper.rest();
    let mut writes: Vec<Write> = (0..12).map(|block| Write::new(block * 8, &[2; PAGE_BYTES])).collect();
    front.write_all(&mut writes);
    assert!(writes.iter().all(|write| write.result == Ok(())), "{:?}", writes.iter().map(|write| write.result).collect::<Vec<_>>());
    let (free, dirty) = (front.write(100 * 8, &[3; 4 * PAGE_BYTES]), keeper.drain().dirty);
    assert_eq!((free, dirty.len()), (Ok(()), 16));
    let mut writes = [0, 1].map(|block| Write::new(block * 8, &[4; PAGE_BYTES]));
    front.write_all(&mut writes);
    assert_eq!(writes.map(|write| write.result), [Err(Unwritten::NoPage); 2], "all are held");
}

#[test]
fn no_more_is_dirty_than_may_be_until_it_is_in_the_log() {
    let (mut front, mut keeper) = tier(Config { dirty_pages: 3, ..config() });
    (0..3).for_each(|block| front.write(block * 8, &[1; PAGE_BYTES]).expect("room"));
    assert_eq!(front.write(3 * 8, &[1; PAGE_BYTES]), Err(Unwritten::TooMuchDirty));
    let mut group = keeper.drain();
    assert_eq!(front.write(3 * 8, &[1; PAGE_BYTES]), Err(Unwritten::TooMuchDirty), "drained is not logged");
    group.dirty[0].page.cleaned();
    front.write(3 * 8, &[1; PAGE_BYTES]).expect("room for one");
    assert_eq!(front.write(4 * 8, &[1; PAGE_BYTES]), Err(Unwritten::TooMuchDirty));
    drop(group);
    front.write(4 * 8, &[1; PAGE_BYTES]).expect("a hold that ends is clean");
}

#[test]
fn what_is_allowed_changes_and_what_fronts_have_taken_along_comes_back() {
    let (mut front, mut keeper) = tier(Config { dirty_pages: 0, ..config() });
    assert_eq!(front.write(0, &[1; PAGE_BYTES]), Err(Unwritten::TooMuchDirty));
    keeper.allow(100);
    front.write(0, &[1; PAGE_BYTES]).expect("allowed");
    // The front has taken some along for its next writes; they and the page that is dirty are still allowed.
    keeper.allow(0);
    let left = keeper.allowed();
    assert!((2..100).contains(&left), "{left}");
    front.write(8, &[1; PAGE_BYTES]).expect("it had taken that along");
    front.rest();
    keeper.allow(0);
    assert_eq!(keeper.allowed(), 2, "what is dirty");
    assert_eq!(front.write(16, &[1; PAGE_BYTES]), Err(Unwritten::TooMuchDirty));
    assert!(keeper.is_owed());
    for dirty in keeper.drain().dirty {
        keeper.settle(dirty.page);
    }
    assert_eq!((keeper.allowed(), keeper.is_owed()), (0, false));
    keeper.allow(1);
    front.write(16, &[1; PAGE_BYTES]).expect("one");
    assert_eq!(front.write(24, &[1; PAGE_BYTES]), Err(Unwritten::TooMuchDirty));
}

#[test]
fn where_only_whole_blocks_are_written_parts_are_refused_and_nothing_happens() {
    let (mut front, mut keeper) = tier(Config { whole_blocks: true, ..config() });
    front.write(8, &[1; PAGE_BYTES]).expect("a whole block");
    for (atom, atoms) in [(8, 7), (9, 1), (9, 8), (8, 9)] {
        assert_eq!(front.write(atom, &vec![2; atoms * ATOM_BYTES]), Err(Unwritten::Ragged), "{atom} {atoms}");
    }
    assert_eq!(keeper.drain().dirty.len(), 1);
    assert_eq!(read(&mut front, 1, 0, 8), Some(vec![1; PAGE_BYTES]));
}

#[test]
fn what_is_not_drained_is_not_forgotten_and_everything_else_is() {
    let (mut front, mut keeper) = tier(config());
    front.write(8, &[1; PAGE_BYTES]).expect("room");
    assert_eq!(keeper.forget(Block(1)), Err(Refused::Undrained));
    let group = keeper.drain();
    assert_eq!((keeper.forget(Block(1)), keeper.forget(Block(2))), (Ok(()), Ok(())));
    assert_eq!(read(&mut front, 1, 0, 8), None);
    assert_eq!(group.dirty[0].page.bytes(), [1; PAGE_BYTES], "who holds it, goes on holding it");
}

#[test]
fn a_full_pool_takes_writes_again_when_the_keeper_has_evicted() {
    let config = Config { pages: 32, dirty_pages: 64, ..config() };
    let (mut front, mut keeper) = tier(config);
    let mut written = 0;
    let refused = loop {
        match front.write(written * 8, &[1; PAGE_BYTES]) {
            Ok(()) => written += 1,
            Err(refused) => break refused,
        }
    };
    assert_eq!((refused, written), (Unwritten::NoPage, 32), "the last page is used before it is refused");
    assert_eq!(keeper.fill(Block(99), &[1; PAGE_BYTES], ALL), Err(Refused::NoPage));
    let blocks: Vec<_> = keeper.drain().dirty.iter().map(|dirty| dirty.block).collect();
    blocks.iter().for_each(|&block| keeper.evict(block).expect("clean"));
    keeper.rest();
    (0..32).for_each(|block| front.write(block * 8, &[2; PAGE_BYTES]).expect("room again"));
}

#[test]
fn a_page_that_is_read_is_not_used_again_before_its_reader_ends() {
    let config = Config { pages: 2, dirty_pages: 8, ..config() };
    let (mut front, mut keeper) = tier(config);
    keeper.fill(Block(0), &[1; PAGE_BYTES], ALL).expect("a page");
    keeper.rest();
    let mut reader = Pages::front(keeper.pages()).expect("a front");
    let pinned = reader.pin();
    let page = pinned.find(Block(0)).expect("filled");
    front.write(0, &[2; PAGE_BYTES]).expect("the other page");
    drop(keeper.drain());
    assert_eq!(front.write(0, &[3; PAGE_BYTES]), Err(Unwritten::NoPage));
    assert_eq!(page.bytes(), [1; PAGE_BYTES]);
    drop(pinned);
    front.write(0, &[3; PAGE_BYTES]).expect("free now");
    assert_eq!(read(&mut front, 0, 0, 8), Some(vec![3; PAGE_BYTES]));
}

#[test]
fn of_several_writes_of_a_block_a_group_has_the_newest() {
    let (mut front, mut keeper) = tier(config());
    let mut other = Pages::front(keeper.pages()).expect("a front");
    // The later write is in the ring that is drained first.
    other.write(0, &[1; PAGE_BYTES]).expect("room");
    front.write(0, &[2; PAGE_BYTES]).expect("room");
    let group = keeper.drain();
    assert_eq!(group.dirty.len(), 1);
    assert_eq!(group.dirty[0].page.bytes(), [2; PAGE_BYTES]);
    assert_eq!((group.stamp, keeper.drain().stamp), (0, 1));
}

#[test]
fn what_is_not_drained_is_neither_evicted_nor_filled_nor_removed() {
    let (mut front, mut keeper) = tier(config());
    keeper.fill(Block(0), &[1; PAGE_BYTES], ALL).expect("a page");
    front.write(0, &[2; ATOM_BYTES]).expect("room");
    assert_eq!(keeper.evict(Block(0)), Err(Refused::Undrained));
    assert_eq!(keeper.complete(Block(0), &[1; PAGE_BYTES], ALL), Err(Refused::Undrained));
    assert_eq!(keeper.replace(Block(0), &[1; PAGE_BYTES], ALL), Err(Refused::Undrained));
    assert_eq!(keeper.fill(Block(0), &[1; PAGE_BYTES], ALL), Err(Refused::Undrained));
    assert_eq!(keeper.remove(Block(0)), Err(Refused::Undrained));
    let group = keeper.drain();
    assert_eq!(keeper.evict(Block(0)), Err(Refused::Held));
    assert_eq!(keeper.fill(Block(0), &[1; PAGE_BYTES], ALL), Err(Refused::Changed));
    drop(group);
    assert_eq!(keeper.evict(Block(0)), Ok(()));
    assert_eq!(keeper.evict(Block(0)), Err(Refused::Changed));
    assert_eq!(keeper.complete(Block(0), &[1; PAGE_BYTES], ALL), Err(Refused::Changed));
    assert_eq!(keeper.replace(Block(0), &[1; PAGE_BYTES], ALL), Err(Refused::Changed));
    assert_eq!(read(&mut front, 0, 0, 8), None);
}

#[test]
fn a_hold_keeps_its_page_whatever_becomes_of_the_block() {
    let (mut front, mut keeper) = tier(config());
    keeper.fill(Block(5), &[1; PAGE_BYTES], ALL).expect("a page");
    let hold = keeper.hold(Block(5)).expect("filled");
    front.write(5 * 8, &[2; PAGE_BYTES]).expect("room");
    drop(keeper.drain());
    keeper.remove(Block(5)).expect("drained");
    fill(&mut keeper, 200, 3);
    assert_eq!((hold.bytes(), hold.mask()), (&[1; PAGE_BYTES][..], ALL));
}

#[test]
fn a_page_is_completed_by_what_it_has_not() {
    let (mut front, mut keeper) = tier(config());
    front.write(1, &[2; ATOM_BYTES]).expect("room");
    drop(keeper.drain());
    keeper.complete(Block(0), &[1; PAGE_BYTES], ALL).expect("a page");
    let expected = [vec![1; ATOM_BYTES], vec![2; ATOM_BYTES], vec![1; 6 * ATOM_BYTES]].concat();
    assert_eq!(read(&mut front, 0, 0, 8), Some(expected));
    keeper.replace(Block(0), &[3; PAGE_BYTES], Atoms::of(2..4)).expect("a page");
    assert_eq!(read(&mut front, 0, 2, 2), Some(vec![3; 2 * ATOM_BYTES]));
    assert_eq!(read(&mut front, 0, 1, 2), None, "nothing is left of what was there");
    assert_eq!(keeper.evict(Block(0)), Ok(()));
}

#[test]
fn a_mark_stays_with_its_block_and_goes_with_its_last_page() {
    let (mut front, mut keeper) = tier(config());
    let marks = keeper.marks();
    assert!(!marks.set(Block(0), 3));
    fill(&mut keeper, 2, 1);
    assert_eq!((marks.set(Block(0), 3), marks.get(Block(0)), marks.get(Block(1))), (true, 3, 0));
    front.write(0, &[2; PAGE_BYTES]).expect("room");
    assert_eq!(marks.get(Block(0)), 3, "of what a front puts there");
    assert!(marks.set(Block(0), Marks::MAX));
    drop(keeper.drain());
    marks.hint(Block(0), |mark| mark - 1);
    assert_eq!(marks.get(Block(0)), Marks::MAX - 1, "also when it leaves the ring");
    keeper.replace(Block(0), &[3; PAGE_BYTES], ALL).expect("a page");
    keeper.complete(Block(0), &[3; PAGE_BYTES], ALL).expect("a page");
    assert_eq!(marks.get(Block(0)), Marks::MAX - 1);
    // From one shape of leaf to another.
    (2..64).for_each(|block| keeper.fill(Block(block), &[1; PAGE_BYTES], ALL).expect("a page"));
    assert_eq!((marks.get(Block(0)), marks.get(Block(1)), marks.get(Block(63))), (Marks::MAX - 1, 0, 0));
    keeper.remove(Block(0)).expect("drained");
    marks.hint(Block(0), |_| unreachable!("it has no page"));
    keeper.fill(Block(0), &[1; PAGE_BYTES], ALL).expect("a page");
    assert_eq!(marks.get(Block(0)), 0);
    drop(marks);
    assert_eq!(keeper.marks().get(Block(0)), 0, "another one may mark now");
}

/// Some without a page, and some more than once.
#[test]
fn hints_for_many_at_once_are_as_for_each() {
    let (_front, mut keeper) = tier(config());
    fill(&mut keeper, 50, 1);
    let marks = keeper.marks();
    let blocks: Vec<Block> = (0..70).chain(3..40).chain([3]).map(Block).collect();
    marks.hint_all(&blocks, |mark| mark + 1);
    let expected = |block: u64| u8::from(block < 50) + u8::from((3..40).contains(&block)) + u8::from(block == 3);
    assert!((0..70).all(|block| marks.get(Block(block)) == expected(block)));
    marks.hint_all(&[], |_| unreachable!("no block"));
}

#[test]
fn hits_are_noted_and_counted_and_a_full_ring_drops_notes_only() {
    let (mut front, mut keeper) = tier(config());
    fill(&mut keeper, 40, 1);
    let mut buffers = vec![0; 41 * PAGE_BYTES];
    let mut reads: Vec<_> = buffers.chunks_mut(PAGE_BYTES).zip(0..).map(|(into, block)| Read::new(Block(block), into)).collect();
    front.read(&mut reads);
    assert_eq!(reads.iter().map(|read| read.is_hit).collect::<Vec<_>>(), (0..41).map(|block| block < 40).collect::<Vec<_>>());
    let mut touched = Vec::new();
    keeper.touches(|block| touched.push(block.0));
    // And when they were read.
    assert_eq!(touched, (0..15).collect::<Vec<_>>());
    let counts = keeper.pages().counts();
    assert_eq!((counts.hits, counts.misses, counts.unnoted), (40, 1, 25));
}

#[test]
fn a_front_knows_when_it_has_much_to_tell() {
    let (mut front, mut keeper) = tier(config());
    fill(&mut keeper, 16, 1);
    for block in 0..16 {
        assert_eq!(front.has_much_to_tell(), block > 7, "{block} noted, and when, of 16");
        assert!(read(&mut front, block, 0, 1).is_some());
    }
    keeper.touches(|_| {});
    assert!(!front.has_much_to_tell());
}

/// Each front's in its own order; what both have read at one time, one after the other.
#[test]
fn hits_of_several_fronts_are_told_in_the_order_of_their_times() {
    let (one, mut keeper) = tier(config());
    let mut fronts = [one, Pages::front(keeper.pages()).expect("there is place for two")];
    fill(&mut keeper, 40, 1);
    let mut read_at = |time: u64, front: usize, blocks: std::ops::Range<u64>| {
        fronts[front].set_time(time);
        blocks.for_each(|block| assert!(read(&mut fronts[front], block, 0, 1).is_some()));
    };
    [(10, 0, 0..2), (11, 1, 20..23), (15, 0, 2..3), (15, 1, 23..24), (16, 1, 24..25), (20, 0, 3..4)]
        .into_iter()
        .for_each(|(time, front, blocks)| read_at(time, front, blocks));
    let mut touched = Vec::new();
    keeper.touches(|block| touched.push(block.0));
    assert_eq!(touched, [0, 1, 20, 21, 22, 2, 23, 24, 3]);
    keeper.touches(|block| panic!("{block:?} is told twice"));
    read_at(21, 1, 30..31);
    keeper.touches(|block| assert_eq!(block, Block(30)));
}

/// Whoever has its place notes when it reads anew; and where there is room for a time and no hit, neither is noted.
#[test]
fn what_is_noted_is_noted_with_its_time() {
    let (mut front, mut keeper) = tier(config());
    let mut other = Pages::front(keeper.pages()).expect("there is place for two");
    fill(&mut keeper, 64, 1);
    let read_at = |front: &mut Front, time: u64, blocks: std::ops::Range<u64>| {
        front.set_time(time);
        blocks.for_each(|block| assert!(read(front, block, 0, 1).is_some()));
    };
    let told = |keeper: &mut Keeper| {
        let mut told = Vec::new();
        keeper.touches(|block| told.push(block.0));
        told
    };
    read_at(&mut front, 5, 0..14);
    // One place is left.
    read_at(&mut front, 6, 20..22);
    read_at(&mut front, 5, 22..24);
    read_at(&mut other, 4, 30..31);
    assert_eq!(told(&mut keeper), [30].into_iter().chain(0..14).chain([22]).collect::<Vec<_>>());
    assert_eq!(keeper.pages().counts().unnoted, 3);
    // It goes on, at the same time and then at another one.
    read_at(&mut front, 5, 24..25);
    drop(front);
    let mut front = Pages::front(keeper.pages()).expect("there is a place again");
    read_at(&mut front, 3, 25..26);
    read_at(&mut other, 4, 31..32);
    assert_eq!(told(&mut keeper), [31, 24, 25], "of each in its order");
    read_at(&mut front, 8, 26..27);
    read_at(&mut other, 7, 32..33);
    assert_eq!(told(&mut keeper), [32, 26]);
}

#[test]
fn without_a_ring_no_hit_is_noted() {
    let (mut front, mut keeper) = tier(Config { touches: 0, ..config() });
    front.set_noting(true);
    fill(&mut keeper, 1, 1);
    assert!(read(&mut front, 0, 0, 1).is_some());
    keeper.touches(|block| panic!("{block:?} is noted"));
    assert_eq!((keeper.pages().counts().hits, keeper.pages().counts().unnoted), (1, 0));
}

#[test]
fn what_a_front_reads_silently_is_counted_and_not_noted() {
    let (mut front, mut keeper) = tier(config());
    fill(&mut keeper, 3, 1);
    for (block, is_noted) in [(0, true), (1, false), (2, true)] {
        front.set_noting(is_noted);
        assert!(read(&mut front, block, 0, 1).is_some());
    }
    let mut touched = Vec::new();
    keeper.touches(|block| touched.push(block.0));
    assert_eq!(touched, [0, 2]);
    assert_eq!((keeper.pages().counts().hits, keeper.pages().counts().unnoted), (3, 0));
}

/// However far apart they are, and whatever of them has gone.
#[test]
fn pages_are_found_in_order() {
    let (mut front, mut keeper) = tier(config());
    let blocks = [0, 1, 63, 64, 4_095, 70_000, 1 << 30, (1 << 40) + 5];
    for block in blocks {
        keeper.fill(Block(block), &[1; PAGE_BYTES], Atoms::of(0..ATOMS)).expect("a page");
    }
    let found = |front: &mut Front, from: u64| {
        let pinned = front.pin();
        std::iter::successors(pinned.next(Block(from)), |block| pinned.next(Block(block.0 + 1))).map(|block| block.0).collect::<Vec<_>>()
    };
    assert_eq!(found(&mut front, 0), blocks);
    assert_eq!(found(&mut front, 64), blocks[3..]);
    assert_eq!(found(&mut front, 65), blocks[4..]);
    keeper.remove(Block(70_000)).expect("it is clean");
    assert_eq!(found(&mut front, 5_000), blocks[6..]);
    assert_eq!(found(&mut front, (1 << 40) + 6), [0; 0]);
}

#[test]
fn a_queue_of_blocks_is_looked_up_at_once() {
    let (mut front, mut keeper) = tier(config());
    fill(&mut keeper, 100, 1);
    let pinned = front.pin();
    let blocks: Vec<_> = (0..110).map(|place| Block(place * 7 % 110)).collect();
    assert_eq!(pinned.find_all(&blocks).count(), blocks.len());
    for (block, page) in blocks.iter().zip(pinned.find_all(&blocks)) {
        assert_eq!(page.map(|page| page.bytes()), (block.0 < 100).then_some(&[1; PAGE_BYTES][..]));
    }
}

#[test]
fn a_front_that_goes_leaves_its_writes_and_nothing_else() {
    let (mut front, mut keeper) = tier(config());
    let pages = std::sync::Arc::clone(keeper.pages());
    let other = Pages::front(&pages).expect("a second front");
    assert!(Pages::front(&pages).is_none(), "there are two");
    front.write(0, &[1; PAGE_BYTES]).expect("room");
    drop(front);
    drop(other);
    let mut next = Pages::front(&pages).expect("its place is free");
    next.write(8, &[2; PAGE_BYTES]).expect("room");
    assert_eq!(keeper.drain().dirty.len(), 2);
    drop(next);
    keeper.remove(Block(0)).expect("drained");
    keeper.remove(Block(1)).expect("drained");
    keeper.rest();
    assert_eq!(pages.free_pages(), config().pages);
}

#[test]
fn pages_of_every_size_work() {
    for (page_atoms, atom_bytes) in [(1, 512), (8, 512), (128, 512), (8, 8)] {
        let (mut front, mut keeper) = tier(Config { page_atoms, atom_bytes, ..config() });
        let page = page_atoms * atom_bytes;
        front.write((5 * page_atoms + page_atoms / 2) as u64, &vec![1; atom_bytes]).expect("room");
        let dirty = keeper.drain().dirty;
        assert_eq!(dirty[0].page.mask(), Atoms::of(page_atoms / 2..page_atoms / 2 + 1));
        drop(dirty);
        keeper.complete(Block(5), &vec![2; page], Atoms::of(0..page_atoms)).expect("a page");
        let mut into = vec![0; page];
        front.read(&mut [Read::new(Block(5), &mut into)]);
        assert_eq!(into.iter().filter(|&&byte| byte == 1).count(), atom_bytes);
        assert_eq!(front.pin().find(Block(5)).expect("filled").bytes().as_ptr().addr() % (page.min(4096)), 0, "aligned");
    }
}

/// Bytes beside the contents for each page, when `count` pages lie `distance` blocks apart on average.
fn overhead(count: usize, mut block: impl FnMut(u64) -> u64) -> f64 {
    let config = Config { pages: count, atom_bytes: 8, ..config() };
    let (_front, mut keeper) = tier(config);
    for page in 0..count as u64 {
        match keeper.fill(Block(block(page)), &[1; 64], ALL) {
            Ok(_) | Err(Refused::Changed) => {}
            Err(refused) => panic!("{refused}"),
        }
    }
    keeper.pages().overhead_bytes() as f64 / count as f64
}

/// Of P5 of the yardsticks, 20 bytes for each page in leaves that are half full and 64 where one block in 64 is in memory, what is not the policy's.
#[test]
fn the_index_costs_few_bytes_for_each_page() {
    let half_full = overhead(1 << 16, |page| page * 2);
    assert!(half_full <= 11.6, "{half_full} bytes");
    let dense = overhead(1 << 16, |page| page);
    assert!(dense <= 7.4, "{dense} bytes");
    let mut state = 1_u64;
    let uniform = overhead(1 << 16, |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % (1 << 22)
    });
    assert!(uniform <= 32.3, "{uniform} bytes");
    println!("bytes for each page: dense {dense:.1}, half full {half_full:.1}, uniform 1:64 {uniform:.1}");
}

#[test]
fn an_evicted_tree_has_no_nodes() {
    let (front, mut keeper) = tier(config());
    let empty = keeper.pages().overhead_bytes();
    let blocks: Vec<u64> = (0..100).chain((1..50).map(|place| place << 33)).collect();
    blocks.iter().for_each(|&block| keeper.fill(Block(block), &[1; PAGE_BYTES], ALL).expect("a page"));
    assert!(keeper.pages().overhead_bytes() > empty);
    blocks.iter().for_each(|&block| keeper.evict(Block(block)).expect("clean"));
    assert_eq!(keeper.pages().overhead_bytes(), empty);
    drop(front);
}

#[test]
fn what_a_lease_has_found_stays_until_it_looks_again_or_lets_go() {
    let (mut front, mut keeper) = tier(Config { pages: 16, dirty_pages: 16, ..config() });
    fill(&mut keeper, 1, 7);
    let pages = std::sync::Arc::clone(keeper.pages());
    let mut lease = Pages::lease(&pages).expect("nobody has it");
    assert!(Pages::lease(&pages).is_none(), "there is one");
    let found = lease.look().find(Block(0)).map(|page| page.bytes().as_ptr().addr()).expect("it is there");
    let (start, bytes) = lease.memory();
    assert!((start.addr().get()..start.addr().get() + bytes).contains(&found));
    // The look is out of sight. Overwritten and evicted, its page is nobody's, and is not used again.
    let mut overwrite = |value: u8| {
        keeper.remove(Block(0)).expect("nobody is in the way");
        keeper.fill(Block(0), &[value; PAGE_BYTES], ALL).map(|_| front.pin().find(Block(0)).expect("just put").bytes().as_ptr().addr())
    };
    let places: Vec<usize> = (1..=15).map(|value| overwrite(value).expect("there are others")).collect();
    assert!(!places.contains(&found));
    assert_eq!(overwrite(16), Err(Refused::NoPage));
    // SAFETY: inside the memory of pages, found by the look above, and nothing was let go.
    let contents = unsafe { std::slice::from_raw_parts(start.as_ptr().byte_add(found - start.addr().get()), PAGE_BYTES) };
    assert_eq!(contents, [7; PAGE_BYTES]);
    lease.let_go();
    let places: Vec<usize> = (1..=40).map(|value| overwrite(value).expect("all are free again")).collect();
    assert!(places.contains(&found));
    drop(lease);
    assert!(Pages::lease(&pages).is_some());
}

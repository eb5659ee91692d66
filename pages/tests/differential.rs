//! A million operations beside a `BTreeMap`, while other threads read: what is found is what the map says, and nobody ever sees a torn page,
//! another block's, or one that is older than what had been written before it looked.
#![cfg(not(loom))]

#[allow(dead_code, reason = "not every test needs all of it")]
#[path = "../../tests/common/chance.rs"]
mod chance;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use chance::Chance;
use tidegate_pages::{Atoms, Block, Config, Front, Hold, Keeper, Marks, Pages, Refused, Unwritten, Write};

const OPERATIONS: usize = 1_000_000;
const ATOMS: usize = 8;
/// An atom is two words: where it belongs, and a number that grows with each write.
const ATOM_BYTES: usize = 16;

/// Blocks next to each other, all over, and at the far end.
fn blocks() -> Vec<u64> {
    let near = 0..200;
    let scattered = (1..200).map(|place| place * 64 * 3);
    let far = (0..60).map(|place| place << 40);
    let last = (0..40).map(|place| (1 << 57) - 1 - place);
    near.chain(scattered).chain(far).chain(last).collect::<std::collections::BTreeSet<_>>().into_iter().collect()
}

fn atom(block: u64, atom: usize, number: u64) -> [u8; ATOM_BYTES] {
    (u128::from(number) << 64 | u128::from(block * ATOMS as u64 + atom as u64)).to_le_bytes()
}

/// The number in an atom that is where it belongs.
fn number(block: u64, place: usize, bytes: &[u8]) -> u64 {
    let word = u128::from_le_bytes(bytes.try_into().expect("an atom"));
    assert_eq!(word as u64, block * ATOMS as u64 + place as u64, "an atom of another place");
    (word >> 64) as u64
}

/// What memory should hold of a block.
#[derive(Default)]
struct Model {
    numbers: [Option<u64>; ATOMS],
    is_undrained: bool,
    /// Which page it is, of all that there were.
    page: u64,
    mark: u8,
}

impl Model {
    fn mask(&self) -> Atoms {
        Atoms((0..ATOMS).filter(|&atom| self.numbers[atom].is_some()).fold(0, |mask, atom| mask | 1 << atom))
    }
}

struct Run {
    chance: Chance,
    blocks: Vec<u64>,
    front: Front,
    keeper: Keeper,
    model: BTreeMap<u64, Model>,
    /// What was ever written of each atom, whether it is in memory or not: what a fill brings back.
    written: Arc<Vec<[AtomicU64; ATOMS]>>,
    /// With which page it is.
    holds: Vec<(u64, Hold)>,
    marks: Marks,
    number: u64,
}

impl Run {
    fn step(&mut self) {
        let index = self.chance.below(self.blocks.len() as u64) as usize;
        let block = self.blocks[index];
        match self.chance.below(16) {
            0..5 => self.write(index),
            5..9 => self.fill(index, block),
            9..12 => self.evict(block),
            12 => self.remove(block),
            13 if self.chance.below(20) == 0 => self.drain(),
            13 => drop(self.holds.pop()),
            14 => self.hold(block),
            _ => self.mark(block),
        }
        self.check(block);
    }

    /// One write; now and then many at once, of one block again and again or all over.
    fn write(&mut self, first: usize) {
        let count = if self.chance.below(8) == 0 { 1 + self.chance.below(80) } else { 1 };
        let spread = 1 + self.chance.below(self.blocks.len() as u64);
        let writes: Vec<(usize, Range<usize>, u64)> = (0..count)
            .map(|_| {
                let index = (first + self.chance.below(spread) as usize * usize::from(count > 1)) % self.blocks.len();
                let start = self.chance.below(ATOMS as u64) as usize;
                let end = start + 1 + self.chance.below((ATOMS - start) as u64) as usize;
                self.number += 1;
                (index, if self.chance.below(2) == 0 { 0..ATOMS } else { start..end }, self.number)
            })
            .collect();
        let contents = |(index, range, number): &(usize, Range<usize>, u64)| -> Vec<u8> {
            range.clone().flat_map(|place| atom(self.blocks[*index], place, *number)).collect()
        };
        let contents: Vec<Vec<u8>> = writes.iter().map(contents).collect();
        let start = |(index, range, _): &(usize, Range<usize>, u64)| self.blocks[*index] * ATOMS as u64 + range.start as u64;
        let mut queue: Vec<Write> = writes.iter().zip(&contents).map(|(write, data)| Write::new(start(write), data)).collect();
        match &mut queue[..] {
            [one] => one.result = self.front.write(one.atom, one.data),
            _ => self.front.write_all(&mut queue),
        }
        let results: Vec<_> = queue.iter().map(|write| write.result).collect();
        for ((index, range, number), result) in writes.into_iter().zip(&results) {
            if result.is_ok() {
                let model = self.model.entry(self.blocks[index]).or_default();
                for place in range {
                    model.numbers[place] = Some(number);
                    self.written[index][place].store(number, Ordering::Release);
                }
                (model.is_undrained, model.page) = (true, number);
            }
        }
        for result in results {
            match result {
                Ok(()) => {}
                // Readers hold back what was unlinked; or the ring is full, or too much is dirty.
                Err(Unwritten::NoPage) => self.front.rest(),
                Err(Unwritten::Ragged) => unreachable!("parts of blocks may be written here"),
                Err(Unwritten::RingFull | Unwritten::TooMuchDirty) => {
                    self.holds.clear();
                    self.drain();
                }
            }
        }
    }

    fn fill(&mut self, index: usize, block: u64) {
        let numbers: [u64; ATOMS] = std::array::from_fn(|place| self.written[index][place].load(Ordering::Relaxed));
        let contents: Vec<u8> = (0..ATOMS).flat_map(|place| atom(block, place, numbers[place])).collect();
        let mask = if self.chance.below(2) == 0 { Atoms::of(0..ATOMS) } else { Atoms(u128::from(self.chance.below(255) + 1)) };
        let model = self.model.get(&block);
        let way = self.chance.below(3);
        let filled = match way {
            0 => self.keeper.fill(Block(block), &contents, mask),
            1 => self.keeper.complete(Block(block), &contents, mask),
            _ => self.keeper.replace(Block(block), &contents, mask),
        };
        match filled {
            Err(Refused::NoPage) => self.keeper.rest(),
            _ if model.is_some_and(|model| model.is_undrained) => assert_eq!(filled, Err(Refused::Undrained)),
            _ if (way == 0) == model.is_some() => assert_eq!(filled, Err(Refused::Changed)),
            _ => {
                assert_eq!(filled, Ok(()));
                let model = self.model.entry(block).or_default();
                if way == 2 {
                    model.numbers = [None; ATOMS];
                }
                // What a page has is what was written last, and so is what it is completed by.
                mask.iter().for_each(|place| model.numbers[place] = Some(numbers[place]));
                self.number += 1;
                model.page = self.number;
            }
        }
    }

    fn evict(&mut self, block: u64) {
        let is_held = |model: &Model| self.holds.iter().any(|&(page, _)| page == model.page);
        let evicted = self.keeper.evict(Block(block));
        let expected = match self.model.get(&block) {
            None => Err(Refused::Changed),
            Some(model) if model.is_undrained => Err(Refused::Undrained),
            Some(model) if is_held(model) => Err(Refused::Held),
            Some(_) => Ok(()),
        };
        assert_eq!(evicted, expected);
        if evicted.is_ok() {
            self.model.remove(&block);
        }
    }

    fn remove(&mut self, block: u64) {
        let is_undrained = self.model.get(&block).is_some_and(|model| model.is_undrained);
        let removed = self.keeper.remove(Block(block));
        assert_eq!(removed, if is_undrained { Err(Refused::Undrained) } else { Ok(()) });
        if removed.is_ok() {
            self.model.remove(&block);
        }
    }

    fn drain(&mut self) {
        let group = self.keeper.drain();
        let mut undrained = self.model.iter_mut().filter(|(_, model)| model.is_undrained);
        for dirty in group.dirty {
            let (&block, model) = undrained.next().expect("what is drained was written");
            assert_eq!(dirty.block, Block(block));
            assert_eq!(dirty.page.mask(), model.mask());
            for place in model.mask().iter() {
                let bytes = &dirty.page.bytes()[place * ATOM_BYTES..][..ATOM_BYTES];
                assert_eq!(Some(number(block, place, bytes)), model.numbers[place]);
            }
            model.is_undrained = false;
            self.holds.push((model.page, dirty.page));
        }
        assert!(undrained.next().is_none(), "what was written is drained");
        if self.holds.len() > 100 {
            self.holds.clear();
        }
    }

    fn hold(&mut self, block: u64) {
        match self.keeper.hold(Block(block)) {
            Ok(hold) => {
                assert_eq!(hold.mask(), self.model[&block].mask());
                self.holds.push((self.model[&block].page, hold));
            }
            Err(refused) => {
                assert_eq!(refused, Refused::Changed);
                assert!(!self.model.contains_key(&block));
            }
        }
    }

    fn mark(&mut self, block: u64) {
        let mark = self.chance.below(1 + u64::from(Marks::MAX)) as u8;
        match self.model.get_mut(&block) {
            Some(model) if self.chance.below(2) == 0 => {
                self.marks.hint(Block(block), |before| {
                    assert_eq!(before, model.mark);
                    mark
                });
                model.mark = mark;
            }
            Some(model) => {
                assert!(self.marks.set(Block(block), mark));
                model.mark = mark;
            }
            None => assert!(!self.marks.set(Block(block), mark)),
        }
    }

    fn check(&mut self, block: u64) {
        assert_eq!(self.marks.get(Block(block)), self.model.get(&block).map_or(0, |model| model.mark), "the mark of block {block}");
        let pinned = self.front.pin();
        let found = pinned.find(Block(block));
        assert_eq!(found.is_some(), self.model.contains_key(&block), "block {block}");
        let (Some(page), Some(model)) = (found, self.model.get(&block)) else { return };
        assert_eq!(page.mask(), model.mask());
        for place in page.mask().iter() {
            let bytes = &page.bytes()[place * ATOM_BYTES..][..ATOM_BYTES];
            assert_eq!(Some(number(block, place, bytes)), model.numbers[place], "block {block} atom {place}");
        }
    }
}

/// Reads whatever is there until it is told to end; returns how many pages it has seen.
fn look(front: &mut Front, blocks: &[u64], written: &[[AtomicU64; ATOMS]], end: &AtomicBool, seed: u64) -> u64 {
    let mut chance = Chance::new(seed);
    let mut seen = 0;
    while !end.load(Ordering::Relaxed) {
        let places: [usize; 16] = std::array::from_fn(|_| chance.below(blocks.len() as u64) as usize);
        let before = places.map(|place| std::array::from_fn::<_, ATOMS, _>(|atom| written[place][atom].load(Ordering::Acquire)));
        let pinned = front.pin();
        let pages = places.map(|place| pinned.find(Block(blocks[place])));
        for ((place, page), before) in places.into_iter().zip(pages).zip(before) {
            let Some(page) = page else { continue };
            seen += 1;
            for atom in page.mask().iter() {
                let found = number(blocks[place], atom, &page.bytes()[atom * ATOM_BYTES..][..ATOM_BYTES]);
                assert!(found >= before[atom], "a read went back in time");
            }
        }
    }
    seen
}

#[test]
fn a_million_operations_beside_a_map_with_concurrent_readers() {
    let blocks = blocks();
    let config = Config {
        pages: 400,
        page_atoms: ATOMS,
        atom_bytes: ATOM_BYTES,
        fronts: 3,
        leases: 0,
        touches: 64,
        dirty_ring: 64,
        dirty_pages: 150,
        whole_blocks: false,
    };
    let (pages, keeper) = Pages::new(config).expect("memory");
    let written: Arc<Vec<[AtomicU64; ATOMS]>> = Arc::new(blocks.iter().map(|_| std::array::from_fn(|_| AtomicU64::new(0))).collect());
    let end = AtomicBool::new(false);
    let (front, marks) = (Pages::front(&pages).expect("a front"), keeper.marks());
    let mut run = Run {
        chance: Chance::new(7),
        blocks: blocks.clone(),
        front,
        keeper,
        model: BTreeMap::new(),
        written: Arc::clone(&written),
        holds: Vec::new(),
        marks,
        number: 0,
    };
    thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|seed| {
                let mut front = Pages::front(&pages).expect("a front");
                let (blocks, written, end) = (&blocks, &written, &end);
                scope.spawn(move || look(&mut front, blocks, written, end, seed))
            })
            .collect();
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (0..OPERATIONS).for_each(|_| run.step())));
        end.store(true, Ordering::Relaxed);
        let seen: u64 = readers.into_iter().map(|reader| reader.join().expect("readers see what they may")).sum();
        ran.unwrap_or_else(|why| std::panic::resume_unwind(why));
        assert!(seen > 0, "readers have read");
    });

    // Nothing leaks: when everything is taken out, every page is free and no node is left.
    run.drain();
    run.holds.clear();
    for &block in &blocks {
        run.keeper.remove(Block(block)).expect("drained");
    }
    let bytes_per_page = pages.overhead_bytes();
    drop(run);
    assert_eq!(pages.free_pages(), config.pages);
    assert!(bytes_per_page <= 12 * config.pages as u64, "nodes of an empty tree: {bytes_per_page} bytes");
}

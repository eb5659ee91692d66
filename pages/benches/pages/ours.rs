//! The tier: filled by its keeper, read by fronts.

use std::sync::{Arc, Mutex};

use tidegate_pages::{Atoms, Block, Config, Front, Keeper, Pages, Read, Refused, Unwritten, Write};

use crate::rounds::Subject;
use crate::{BATCH, Buffer, PAGE_BYTES, PAGES};

pub struct Tier {
    pages: Arc<Pages>,
    pub keeper: Mutex<Keeper>,
}

impl Tier {
    /// Of all pages. What is noted in a slice has room, also where a page is read in a third of the time. In service a ring has a quarter of that.
    pub fn new() -> Tier {
        Tier::of(PAGES, 1 << 15)
    }

    /// Of a few pages, which are read so fast that more is noted in a slice.
    pub fn of_few() -> Tier {
        Tier::of(1_024, 1 << 17)
    }

    fn of(count: usize, touches: usize) -> Tier {
        let spare = count / 8;
        let config = Config { touches, dirty_ring: 1 << 15, ..Config::of_memory((count + spare) * PAGE_BYTES, 4) };
        let (pages, mut keeper) = Pages::new(config).expect("memory");
        for page in 0..count as u64 {
            keeper.fill(Block(page), &[page as u8 | 1; PAGE_BYTES], Atoms::of(0..8)).expect("a page");
        }
        Tier { pages, keeper: Mutex::new(keeper) }
    }

    fn front(&self) -> Front {
        Pages::front(&self.pages).expect("a front")
    }

    /// Reads `together` blocks at once.
    pub fn reader(&self, together: usize) -> Reader<'_> {
        Reader { tier: self, front: self.front(), into: Buffer::batch(0), together, queues: 0, is_hot: false }
    }

    /// Reads in batches, and no hit is noted.
    pub fn silent_reader(&self) -> Reader<'_> {
        let mut reader = self.reader(BATCH);
        reader.front.set_noting(false);
        reader
    }

    /// Reads one block again and again, in batches.
    pub fn hot_reader(&self) -> Reader<'_> {
        Reader { is_hot: true, ..self.reader(BATCH) }
    }

    /// Overwrites `together` blocks at once.
    pub fn writer(&self, together: usize) -> Writer<'_> {
        Writer { tier: self, front: self.front(), data: Buffer::batch(3), together, evicts: false }
    }

    /// Overwrites blocks, drains, and evicts and fills as many: a writer and the engine on one core.
    pub fn disturber(&self) -> Writer<'_> {
        Writer { evicts: true, ..self.writer(1) }
    }

    /// Begins and ends to read, and reads nothing.
    pub fn pins(&self) -> Pins {
        Pins(self.front())
    }

    /// Everything is clean and in memory again.
    pub fn settle(&self) {
        let mut keeper = self.keeper.lock().expect("nobody panics");
        drop(keeper.drain());
        for page in 0..PAGES as u64 {
            match keeper.fill(Block(page), &[page as u8 | 1; PAGE_BYTES], Atoms::of(0..8)) {
                Ok(_) | Err(Refused::Changed) => {}
                Err(refused) => panic!("block {page}: {refused}"),
            }
        }
    }
}

pub struct Reader<'t> {
    tier: &'t Tier,
    front: Front,
    into: Vec<Buffer>,
    together: usize,
    /// Queues of requests so far.
    queues: u64,
    /// Always the same block.
    is_hot: bool,
}

impl Subject for Reader<'_> {
    fn batch(&mut self, keys: &[u64; BATCH]) {
        let mut buffers = self.into.iter_mut();
        let block = |key: u64| Block(if self.is_hot { 7 } else { key });
        let mut reads: [Read; BATCH] =
            std::array::from_fn(|place| Read::new(block(keys[place]), &mut buffers.next().expect("one for each").0));
        for reads in reads.chunks_mut(self.together) {
            // A turn has looked at its clock anyway.
            self.queues += 1;
            self.front.set_time(self.queues);
            self.front.read(reads);
        }
        let hits = reads.iter().filter(|read| read.is_hit).count();
        // Beside an evictor a page may be missing for a moment.
        assert!(hits + 1 >= BATCH, "all of it is in memory: {hits} hits");
    }

    fn rest(&mut self) {
        self.tier.keeper.lock().expect("nobody panics").touches(|block| assert!(block.0 < PAGES as u64));
        assert_eq!(self.tier.pages.counts().unnoted, 0, "every hit is noted");
    }
}

pub struct Writer<'t> {
    tier: &'t Tier,
    front: Front,
    data: Vec<Buffer>,
    together: usize,
    evicts: bool,
}

impl Writer<'_> {
    /// What the engine does with a group: it is logged, and then clean. With evictions, pages go and come back.
    fn drain(&mut self) {
        let mut keeper = self.tier.keeper.lock().expect("nobody panics");
        for dirty in keeper.drain().dirty {
            let block = dirty.block;
            drop(dirty);
            // Some are evicted, and filled again: a reader always finds a page, or misses for a moment.
            if self.evicts && block.0.is_multiple_of(4) && keeper.evict(block).is_ok() {
                while let Err(why) = keeper.fill(block, &self.data[0].0, Atoms::of(0..8)) {
                    // As with a write: until the reader is back.
                    assert_eq!(why, Refused::NoPage);
                    std::thread::yield_now();
                }
            }
        }
    }
}

impl Subject for Writer<'_> {
    fn batch(&mut self, keys: &[u64; BATCH]) {
        let mut writes: [Write; BATCH] = std::array::from_fn(|place| Write::new(keys[place] * 8, &self.data[place].0));
        for writes in writes.chunks_mut(self.together) {
            match writes {
                [one] => one.result = self.front.write(one.atom, one.data),
                _ => self.front.write_all(writes),
            }
            for write in writes {
                // A reader that lost its CPU in the middle of a batch holds back all pages that were replaced since.
                while let Err(why) = write.result {
                    assert_eq!(why, Unwritten::NoPage);
                    std::thread::yield_now();
                    write.result = self.front.write(write.atom, write.data);
                }
            }
        }
        if self.evicts {
            self.drain();
        }
    }

    fn rest(&mut self) {
        self.drain();
        self.front.rest();
    }
}

pub struct Pins(Front);

impl Subject for Pins {
    fn batch(&mut self, _keys: &[u64; BATCH]) {
        (0..BATCH).for_each(|_| drop(std::hint::black_box(self.0.pin())));
    }
}

//! Writers, readers and a keeper on real threads, all at once, a few seconds long (`STRESS_SECONDS` for longer). The keeper plays the engine:
//! it drains, logs, evicts and fills.
//!
//! Every thread owns one atom of every block, so that all write to all blocks and none overwrites another's. An atom says who wrote it, its
//! number, and what that thread had read somewhere before: an effect that names its cause.
#![cfg(not(loom))]

#[allow(dead_code, reason = "not every test needs all of it")]
#[path = "../../tests/common/chance.rs"]
mod chance;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use chance::Chance;
use tidegate_pages::{Atoms, Block, Config, Front, Keeper, Marks, Pages, Refused, Unwritten, Write};

const WRITERS: usize = 4;
const READERS: usize = 2;
const ATOMS: usize = 8;
const BLOCKS: usize = 300;
const ATOM_BYTES: usize = 512;
const WORDS: usize = ATOM_BYTES / 8;
/// Who has had no turn for so long gets none.
const PATIENCE: Duration = Duration::from_secs(60);

/// What an atom says.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Said {
    block: usize,
    number: u64,
    /// An atom of `cause_block` that had `cause_number`, seen by the writer before.
    cause_block: usize,
    cause_atom: usize,
    cause_number: u64,
}

impl Said {
    /// The same at every place of the atom, mixed with the place: a torn or recycled atom is noticed.
    fn bytes(self) -> Vec<u8> {
        let head = [self.block as u64, self.number, self.cause_block as u64, self.cause_atom as u64, self.cause_number];
        let words = (0..WORDS).map(|word| head[word % 5] ^ (word as u64 / 5).wrapping_mul(0x9e37_79b9));
        words.flat_map(u64::to_le_bytes).collect()
    }

    fn read(block: usize, bytes: &[u8]) -> Said {
        let word = |word: usize| u64::from_le_bytes(bytes[8 * word..8 * word + 8].try_into().expect("a word"));
        let said = Said {
            block: word(0) as usize,
            number: word(1),
            cause_block: word(2) as usize,
            cause_atom: word(3) as usize,
            cause_number: word(4),
        };
        assert_eq!(said.bytes(), bytes, "a torn atom");
        assert_eq!(said.block, block, "an atom of another block");
        said
    }
}

/// Blocks lie in clusters far from each other.
fn place(block: usize) -> u64 {
    block as u64 % 40 + ((block as u64 / 40) << 30)
}

/// What has been acknowledged: a number for each atom.
type Acknowledged = Vec<[AtomicU64; ATOMS]>;

fn write(front: &mut Front, atom: usize, acknowledged: &Acknowledged, end: &AtomicBool) {
    let mut chance = Chance::new(atom as u64);
    let mut number = 0;
    while !end.load(Ordering::Relaxed) {
        // Something to have seen: any valid atom of any block.
        let cause_block = chance.below(BLOCKS as u64) as usize;
        let pinned = front.pin();
        let cause = pinned.find(Block(place(cause_block))).and_then(|page| {
            let cause_atom = page.mask().iter().nth(chance.below(3) as usize)?;
            let said = Said::read(cause_block, &page.bytes()[cause_atom * ATOM_BYTES..][..ATOM_BYTES]);
            Some((cause_atom, said.number))
        });
        drop(pinned);
        let (cause_atom, cause_number) = cause.unwrap_or((0, 0));
        // Some at once, to different blocks.
        let first = chance.below(BLOCKS as u64) as usize;
        let blocks: Vec<usize> = (0..1 + chance.below(3) as usize).map(|next| (first + next) % BLOCKS).collect();
        number += 1;
        let datas = blocks.iter().map(|&block| Said { block, number, cause_block, cause_atom, cause_number }.bytes());
        let datas: Vec<_> = datas.collect();
        let start = |block: usize| place(block) * ATOMS as u64 + atom as u64;
        let mut writes: Vec<Write> = blocks.iter().zip(&datas).map(|(&block, data)| Write::new(start(block), data)).collect();
        front.write_all(&mut writes);
        for (write, &block) in writes.iter_mut().zip(&blocks) {
            while let Err(why) = write.result {
                if end.load(Ordering::Relaxed) {
                    return;
                }
                if why == Unwritten::NoPage {
                    front.rest();
                }
                thread::yield_now();
                write.result = front.write(write.atom, write.data);
            }
            acknowledged[block][atom].store(number, Ordering::SeqCst);
        }
    }
}

fn read(front: &mut Front, seed: u64, acknowledged: &Acknowledged, seen: &AtomicU64, end: &AtomicBool) {
    let mut chance = Chance::new(seed);
    while !end.load(Ordering::Relaxed) {
        let block = chance.below(BLOCKS as u64) as usize;
        let before = std::array::from_fn::<_, ATOMS, _>(|atom| acknowledged[block][atom].load(Ordering::SeqCst));
        let pinned = front.pin();
        let Some(page) = pinned.find(Block(place(block))) else { continue };
        if chance.below(64) == 0 {
            // Held for long, in the epoch: whoever overwrites or evicts it meanwhile must not reuse it.
            thread::yield_now();
        }
        for atom in page.mask().iter() {
            let said = Said::read(block, &page.bytes()[atom * ATOM_BYTES..][..ATOM_BYTES]);
            assert!(said.number >= before[atom], "an acknowledged write was not seen");
        }
        seen.fetch_add(1, Ordering::Relaxed);
        drop(pinned);
        front.touch(Block(place(block)));
    }
}

/// As a reader, but it goes on reading behind its look, for long now and then.
fn lease(pages: &Arc<Pages>, acknowledged: &Acknowledged, seen: &AtomicU64, end: &AtomicBool) {
    let mut chance = Chance::new(READERS as u64);
    let mut lease = Pages::lease(pages).expect("there is one");
    let (start, bytes) = lease.memory();
    while !end.load(Ordering::Relaxed) {
        let blocks: [usize; 4] = std::array::from_fn(|_| chance.below(BLOCKS as u64) as usize);
        let before = blocks.map(|block| std::array::from_fn::<_, ATOMS, _>(|atom| acknowledged[block][atom].load(Ordering::SeqCst)));
        let look = lease.look();
        let found =
            blocks.map(|block| look.find(Block(place(block))).map(|page| (page.bytes().as_ptr().addr() - start.addr().get(), page.mask())));
        if chance.below(64) == 0 {
            (0..20).for_each(|_| thread::yield_now());
        }
        for ((block, before), found) in blocks.into_iter().zip(before).zip(found) {
            let Some((at, mask)) = found else { continue };
            assert!(at + ATOMS * ATOM_BYTES <= bytes);
            // SAFETY: inside the memory of pages, found by the look above, and nothing was let go.
            let contents = unsafe { std::slice::from_raw_parts(start.as_ptr().byte_add(at), ATOMS * ATOM_BYTES) };
            for atom in mask.iter() {
                let said = Said::read(block, &contents[atom * ATOM_BYTES..][..ATOM_BYTES]);
                assert!(said.number >= before[atom], "an acknowledged write was not seen");
            }
            seen.fetch_add(1, Ordering::Relaxed);
        }
        if chance.below(2) == 0 {
            lease.let_go();
        }
    }
}

/// What is durable: for each block its contents, which atoms are valid, and whether it has a page that is known to be clean.
struct Log {
    contents: Vec<Vec<u8>>,
    masks: Vec<Atoms>,
    clean: Vec<bool>,
    /// How each was marked.
    marks: Vec<u8>,
    groups: u64,
}

impl Log {
    fn number(&self, block: usize, atom: usize) -> u64 {
        match self.masks[block].contains(Atoms::of(atom..atom + 1)) {
            true => Said::read(block, &self.contents[block][atom * ATOM_BYTES..][..ATOM_BYTES]).number,
            false => 0,
        }
    }

    /// One FLUSH: what was acknowledged before it is logged by it, and nothing is logged without its cause.
    fn flush(&mut self, keeper: &mut Keeper, acknowledged: &Acknowledged) {
        let before: Vec<[u64; ATOMS]> =
            acknowledged.iter().map(|block| std::array::from_fn(|atom| block[atom].load(Ordering::SeqCst))).collect();
        let group = keeper.drain();
        let mut changed = Vec::new();
        for dirty in &group.dirty {
            let block = (dirty.block.0 % (1 << 30) + (dirty.block.0 >> 30) * 40) as usize;
            for atom in dirty.page.mask().iter() {
                let bytes = atom * ATOM_BYTES..(atom + 1) * ATOM_BYTES;
                let said = Said::read(block, &dirty.page.bytes()[bytes.clone()]);
                let old = self.number(block, atom);
                assert!(said.number >= old, "a group went back in time: block {block} atom {atom}, {} after {old}", said.number);
                self.contents[block][bytes].copy_from_slice(&said.bytes());
                changed.push(said);
            }
            self.masks[block] = self.masks[block] | dirty.page.mask();
            self.clean[block] = true;
        }
        for said in changed {
            assert!(self.number(said.cause_block, said.cause_atom) >= said.cause_number, "an effect without its cause: {said:?}");
        }
        for (block, before) in before.iter().enumerate() {
            for (atom, &number) in before.iter().enumerate() {
                assert!(self.number(block, atom) >= number, "an acknowledged write is not in the group: block {block} atom {atom}");
            }
        }
        self.groups += 1;
    }

    /// Whoever writes there: what was marked has the mark that it was given.
    fn mark(&mut self, marks: &Marks, block: usize, mark: u8) {
        let at = Block(place(block));
        assert_eq!(marks.get(at), self.marks[block], "the mark of block {block}");
        if marks.set(at, mark) {
            self.marks[block] = mark;
        }
    }

    /// Evicts a clean page, or brings one back.
    fn manage(&mut self, keeper: &mut Keeper, block: usize, fills: bool, replaces: bool) {
        let at = Block(place(block));
        if !fills {
            if self.clean[block] {
                match keeper.evict(at) {
                    Ok(()) => (self.clean[block], self.marks[block]) = (false, 0),
                    // It is to be drained, and clean again.
                    Err(Refused::Busy | Refused::Undrained) => {}
                    Err(refused @ (Refused::Held | Refused::Changed | Refused::NoPage)) => unreachable!("clean, and nobody's: {refused}"),
                }
            }
        } else if self.masks[block] != Atoms::NONE {
            let (contents, mask) = (&self.contents[block], self.masks[block]);
            let filled = match (self.clean[block], replaces) {
                (true, true) => keeper.replace(at, contents, mask),
                (true, false) => keeper.complete(at, contents, mask),
                (false, _) => keeper.fill(at, contents, mask),
            };
            match filled {
                Ok(()) => self.clean[block] = true,
                Err(Refused::NoPage) => keeper.rest(),
                Err(Refused::Busy | Refused::Undrained) => {}
                Err(refused @ (Refused::Held | Refused::Changed)) => {
                    unreachable!("the keeper knows which blocks have a clean page: {refused}")
                }
            }
        }
    }
}

#[test]
fn threads_that_write_read_and_manage_lose_nothing_and_see_nothing_torn() {
    let seconds = std::env::var("STRESS_SECONDS").map_or(3, |seconds| seconds.parse().expect("STRESS_SECONDS is a number"));
    let config = Config {
        pages: 500,
        page_atoms: ATOMS,
        atom_bytes: ATOM_BYTES,
        fronts: WRITERS + READERS,
        leases: 1,
        touches: 256,
        dirty_ring: 64,
        dirty_pages: 200,
        whole_blocks: false,
    };
    let (pages, mut keeper) = Pages::new(config).expect("memory");
    let marks = keeper.marks();
    let acknowledged: Acknowledged = (0..BLOCKS).map(|_| std::array::from_fn(|_| AtomicU64::new(0))).collect();
    let end = AtomicBool::new(false);
    let mut log = Log {
        contents: vec![vec![0; ATOMS * ATOM_BYTES]; BLOCKS],
        masks: vec![Atoms::NONE; BLOCKS],
        clean: vec![false; BLOCKS],
        marks: vec![0; BLOCKS],
        groups: 0,
    };
    let (mut touched, seen, leased) = (0, AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        let (acknowledged, end, pages, seen, leased) = (&acknowledged, &end, &pages, &seen, &leased);
        let writers: Vec<_> = (0..WRITERS)
            .map(|atom| {
                scope.spawn(move || {
                    // Fronts come and go.
                    let mut front = Pages::front(pages).expect("a front");
                    write(&mut front, atom, acknowledged, end);
                })
            })
            .collect();
        let readers: Vec<_> = (0..READERS as u64)
            .map(|seed| {
                scope.spawn(move || {
                    let mut front = Pages::front(pages).expect("a front");
                    read(&mut front, seed, acknowledged, seen, end);
                })
            })
            .collect();
        let leasing = scope.spawn(move || lease(pages, acknowledged, leased, end));
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let (started, mut chance) = (Instant::now(), Chance::new(99));
            let seen_by_all = || seen.load(Ordering::Relaxed) > 0 && leased.load(Ordering::Relaxed) > 0;
            // On a machine that is busy with something else, until everybody has had a turn.
            while started.elapsed() < Duration::from_secs(seconds)
                || !(seen_by_all() && touched > 0 && log.groups > 10) && started.elapsed() < PATIENCE
            {
                log.flush(&mut keeper, acknowledged);
                for _ in 0..100 {
                    let block = chance.below(BLOCKS as u64) as usize;
                    log.manage(&mut keeper, block, chance.below(2) == 0, chance.below(2) == 0);
                    log.mark(&marks, chance.below(BLOCKS as u64) as usize, chance.below(100) as u8);
                }
                keeper.touches(|_| touched += 1);
            }
        }));
        end.store(true, Ordering::Relaxed);
        writers.into_iter().for_each(|writer| writer.join().expect("writers see what they may"));
        readers.into_iter().for_each(|reader| reader.join().expect("readers see what they may"));
        leasing.join().expect("a lease sees what it may");
        let [seen, leased] = [seen, leased].map(|count| count.load(Ordering::Relaxed));
        ran.unwrap_or_else(|why| std::panic::resume_unwind(why));
        assert!(
            leased > 0 && seen > 0 && touched > 0 && log.groups > 10,
            "{seen} pages seen, {leased} on lease, {touched} touches, {} groups",
            log.groups
        );
    });
    log.flush(&mut keeper, &acknowledged);

    // Nothing leaks.
    (0..BLOCKS).for_each(|block| keeper.remove(Block(place(block))).expect("drained, and nobody is there"));
    drop((keeper, marks));
    assert_eq!(pages.free_pages(), config.pages);
    let counts = pages.counts();
    assert!(counts.writes > 0, "{counts:?}");
    println!("{} groups, {} writes", log.groups, counts.writes);
    drop(Arc::try_unwrap(pages).expect("nobody holds it any more"));
}

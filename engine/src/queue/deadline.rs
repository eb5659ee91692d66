//! Linux's deadline (`block/deadline-iosched.c`, kernel 4.1): reads before writes, in batches in the order of addresses, so that an arm
//! sweeps. A batch begins where the last one ended, unless the oldest of its direction has waited for too long: then there. After two
//! batches of reads, writes have theirs.

use super::lists::Lists;
use super::scheduler::{Direction, Item, Scheduler};
use super::sorted::Sorted;
use crate::time::{Duration, Instant};

/// Operations of a batch.
const BATCH: u32 = 16;
/// After how long reads and writes are too old.
const EXPIRES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(5)];
/// Batches of reads while writes wait.
const WRITES_STARVED: u32 = 2;

/// Binary digits of an entry's number beside its address, which is counted in steps of 4 KiB there.
const ENTRY_BITS: u32 = 28;
const STEP_ATOMS: u64 = 8;

const READ: usize = Direction::Read as usize;
const WRITE: usize = Direction::Write as usize;

#[derive(Default)]
pub struct Deadline {
    /// Of each direction, by address and entry ([`key`]), and by age.
    sorted: [Sorted; 2],
    by_age: Lists,
    /// Of each entry that waits: its key, and when it is too old.
    known: Vec<(u64, Instant)>,
    /// The batch: its direction, how many it has had, and the key after the last of them.
    direction: usize,
    batch: u32,
    next: Option<u64>,
    starved: u32,
}

impl Deadline {
    /// Takes the next one of the batch, upwards.
    fn take_following(&mut self, direction: usize) -> Option<usize> {
        let next = self.next.filter(|_| direction == self.direction)?;
        let entry = entry_of(self.sorted[direction].take_from(next)?);
        self.by_age.remove(entry);
        Some(entry)
    }

    /// The direction of the next batch.
    fn choose(&mut self) -> Option<usize> {
        let [reads, writes] = [READ, WRITE].map(|direction| !self.sorted[direction].is_empty());
        if reads && writes && self.starved < WRITES_STARVED {
            self.starved += 1;
            return Some(READ);
        }
        if writes {
            self.starved = 0;
            return Some(WRITE);
        }
        reads.then_some(READ)
    }

    fn begin_batch(&mut self, now: Instant) -> Option<usize> {
        let direction = self.choose()?;
        let oldest = self.by_age.first(direction).expect("one of this direction waits");
        let is_too_old = self.known[oldest].1 <= now;
        let following = if is_too_old { None } else { self.take_following(direction) };
        (self.direction, self.batch) = (direction, 0);
        if following.is_none() {
            self.by_age.remove(oldest);
            self.sorted[direction].remove(self.known[oldest].0);
        }
        following.or(Some(oldest))
    }
}

/// What an entry is sorted by: its address, in steps, and its number. Beyond 256 TiB all addresses are one.
fn key(start: u64, entry: usize) -> u64 {
    assert!(entry >> ENTRY_BITS == 0, "there are not so many operations at once");
    (start / STEP_ATOMS).min(u64::MAX >> ENTRY_BITS) << ENTRY_BITS | entry as u64
}

fn entry_of(key: u64) -> usize {
    (key & ((1 << ENTRY_BITS) - 1)) as usize
}

impl Scheduler for Deadline {
    fn push(&mut self, _now: Instant, entry: usize, item: &Item) {
        let direction = item.direction as usize;
        if self.known.len() <= entry {
            self.known.resize(entry + 1, (0, Instant::ZERO));
        }
        let key = key(item.start, entry);
        self.known[entry] = (key, item.arrived + EXPIRES[direction]);
        self.sorted[direction].insert(key);
        self.by_age.push(direction, entry);
    }

    fn pop(&mut self, now: Instant) -> Option<usize> {
        let in_batch = if self.batch < BATCH { self.take_following(self.direction) } else { None };
        let entry = match in_batch {
            Some(entry) => entry,
            None => self.begin_batch(now)?,
        };
        self.batch += 1;
        self.next = Some(self.known[entry].0 + 1);
        Some(entry)
    }

    fn done(&mut self, _now: Instant, _entry: usize, _item: &Item) {}

    /// It keeps its place: there are no classes here.
    fn raise(&mut self, _now: Instant, _entry: usize, _before: &Item, _item: &Item) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::QueueKind;
    use crate::queue::tests::Bench;

    fn bench() -> Bench {
        Bench::new(QueueKind::Deadline, 1_000, 1)
    }

    #[test]
    fn a_batch_goes_upwards_and_the_next_goes_on_there() {
        let mut bench = bench();
        for (id, block) in [50, 10, 40, 20, 30].into_iter().enumerate() {
            bench.read(id as u64, block);
        }
        // The first batch begins with the oldest; at its end the oldest is the next again.
        assert_eq!(bench.popped(), [0, 1, 3, 4, 2]);
    }

    #[test]
    fn writes_wait_for_two_batches_of_reads_and_no_longer() {
        let mut bench = bench();
        (0..60).for_each(|id| bench.read(id, 2 * id));
        (100..140).for_each(|id| bench.write(id, 2 * id));
        let order = bench.popped();
        let runs: Vec<(bool, usize)> = order.chunk_by(|a, b| (*a < 100) == (*b < 100)).map(|run| (run[0] < 100, run.len())).collect();
        assert_eq!(runs, [(true, 32), (false, 16), (true, 28), (false, 24)]);
    }

    #[test]
    fn what_is_too_old_begins_the_next_batch() {
        let mut bench = bench();
        bench.read(0, 1_000);
        assert_eq!(bench.queue_next(), Some(0));
        bench.read(1, 10);
        (2..40).for_each(|id| bench.read(id, 1_000 + 2 * id));
        bench.now = Instant::ZERO + EXPIRES[READ];
        let order = bench.popped();
        assert_eq!(order.iter().position(|&id| id == 1), Some(15), "fifteen go with the first: {order:?}");
    }

    /// More of them wait than a million, and far apart.
    #[test]
    fn an_entry_is_found_again_and_sorted_by_its_address() {
        let places = [(0, (1 << ENTRY_BITS) - 1), (STEP_ATOMS, 0), (1 << 38, 1 << 20), (u64::MAX, 7)];
        let keys = places.map(|(start, entry)| key(start, entry));
        assert!(keys.is_sorted(), "{keys:x?}");
        assert_eq!(keys.map(entry_of), places.map(|(_, entry)| entry));
    }
}

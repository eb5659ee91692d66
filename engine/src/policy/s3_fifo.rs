//! S3-FIFO: a small queue for what is new, a main one for what has come back, and ghosts of those that did not in time (Yang and others, "FIFO
//! queues are all you need for cache eviction", SOSP 2023). A small queue of a tenth, counts up to three, as many ghosts as the main queue has
//! places.

use super::Policy;
use super::lists::Lists;
use crate::ghosts::Ghosts;

/// Two queues of keys, each key in one of them at most, with how often it was asked for. [`Lists`] find each key by themselves; where keys are found
/// anyway, and have room for a few bits there, the queues take less.
pub trait Queues {
    /// How often a key was asked for; `None`: it is in no queue.
    fn count(&self, key: u64) -> Option<u8>;
    /// It was asked for once more, if it is in a queue. Counts go up to `most`.
    fn touch(&mut self, key: u64, most: u8);
    /// The same of several.
    fn touch_all(&mut self, keys: &[u64], most: u8) {
        keys.iter().for_each(|&key| self.touch(key, most));
    }
    fn len(&self, queue: usize) -> usize;
    /// How often the oldest of a queue was asked for.
    fn oldest(&mut self, queue: usize) -> Option<u8>;
    /// The oldest of one queue becomes the newest of this one or another, with such a count.
    fn renew_oldest(&mut self, from: usize, to: usize, count: u8);
    fn remove_oldest(&mut self, queue: usize) -> Option<u64>;
    /// A key that is in no queue becomes the newest of this one.
    fn add(&mut self, queue: usize, key: u64);
    /// False: it is in no queue.
    fn remove(&mut self, key: u64) -> bool;
    /// Memory that they take, in bytes.
    fn bytes(&self) -> u64;
}

/// How many queues, and counts of how many bits, that makes.
pub const QUEUES: usize = 2;
pub const COUNT_BITS: u32 = 2;

const SMALL: usize = 0;
const MAIN: usize = 1;
/// Asked for so often in the small queue: it belongs into the main one.
const WORTH: u8 = 2;
const COUNT_MAX: u8 = (1 << COUNT_BITS) - 1;
/// So many of the main queue are looked at for one that nobody has asked for, as many again for one that was asked for once, and so on; and so many
/// of the small one move on to it.
const LOOKS: usize = 512;
/// Ghosts of a row: 64 bytes at most.
const ROW: usize = 32;

pub struct S3Fifo<Q = Lists<QUEUES, u8>> {
    /// With how often each was asked for since it came, or was last looked at.
    keys: Q,
    small_max: usize,
    ghosts: Ghosts<0>,
    /// Nothing has had to go yet: what the small queue has no place for may fill the main one.
    filling: bool,
}

impl S3Fifo {
    pub fn new(capacity: usize) -> S3Fifo {
        S3Fifo::of(Lists::new(capacity), capacity)
    }
}

impl<Q: Queues> S3Fifo<Q> {
    /// In these queues, which are empty.
    pub fn of(keys: Q, capacity: usize) -> S3Fifo<Q> {
        let small_max = (capacity / 10).max(1);
        let ghosts = Ghosts::new((capacity - small_max.min(capacity)) as u64, ROW);
        S3Fifo { keys, small_max, ghosts, filling: true }
    }

    /// The oldest of the small queue becomes a ghost; `None`: it has moved on instead.
    fn evict_small(&mut self) -> Option<u64> {
        if self.keys.oldest(SMALL)? >= WORTH {
            self.keys.renew_oldest(SMALL, MAIN, 0);
            return None;
        }
        let gone = self.keys.remove_oldest(SMALL)?;
        self.ghosts.note(gone, 1);
        Some(gone)
    }

    /// The first of the main queue that nobody has asked for since it was last looked at goes; after a while one that was asked for once will do,
    /// and then twice: who waits for a place does not wait for a walk through a million that were all asked for.
    fn evict_main(&mut self) -> Option<u64> {
        let mut looks = 0;
        while let Some(count) = self.keys.oldest(MAIN).filter(|&count| usize::from(count) > looks / LOOKS) {
            self.keys.renew_oldest(MAIN, MAIN, count - 1);
            looks += 1;
        }
        self.keys.remove_oldest(MAIN)
    }
}

impl<Q: Queues> Policy for S3Fifo<Q> {
    fn contains(&self, key: u64) -> bool {
        self.keys.count(key).is_some()
    }
    fn touch(&mut self, key: u64) {
        self.keys.touch(key, COUNT_MAX);
    }
    fn touch_all(&mut self, keys: &[u64]) {
        self.keys.touch_all(keys, COUNT_MAX);
    }
    fn evict(&mut self, _comes: Option<u64>) -> Option<u64> {
        self.filling = false;
        for _ in 0..LOOKS {
            let is_full = self.keys.len(SMALL) >= self.small_max || self.keys.len(MAIN) == 0 && self.keys.len(SMALL) > 0;
            if !is_full {
                break;
            }
            if let Some(gone) = self.evict_small() {
                return Some(gone);
            }
        }
        self.evict_main()
    }
    fn insert(&mut self, key: u64) {
        let has_come_back = self.ghosts.remove(key);
        let is_filling = self.filling && self.keys.len(SMALL) >= self.small_max;
        self.keys.add(if has_come_back || is_filling { MAIN } else { SMALL }, key);
    }
    fn remove(&mut self, key: u64) {
        if !self.keys.remove(key) {
            self.ghosts.remove(key);
        }
    }
    fn len(&self) -> usize {
        self.keys.len(SMALL) + self.keys.len(MAIN)
    }
    fn bytes(&self) -> u64 {
        self.keys.bytes() + self.ghosts.bytes()
    }
}

impl Queues for Lists<QUEUES, u8> {
    fn count(&self, key: u64) -> Option<u8> {
        self.find(key).map(|at| *self.get(at))
    }
    fn touch(&mut self, key: u64, most: u8) {
        if let Some(at) = self.find(key) {
            let count = self.get_mut(at);
            *count = (*count + 1).min(most);
        }
    }
    fn touch_all(&mut self, keys: &[u64], most: u8) {
        self.fetch(keys);
        keys.iter().for_each(|&key| self.touch(key, most));
    }
    fn len(&self, queue: usize) -> usize {
        Lists::len(self, queue)
    }
    fn oldest(&mut self, queue: usize) -> Option<u8> {
        Lists::oldest(self, queue).map(|at| *self.get(at))
    }
    fn renew_oldest(&mut self, from: usize, to: usize, count: u8) {
        let at = Lists::oldest(self, from).expect("it has an oldest");
        *self.get_mut(at) = count;
        self.renew(to, at);
    }
    fn remove_oldest(&mut self, queue: usize) -> Option<u64> {
        Lists::remove_oldest(self, queue)
    }
    fn add(&mut self, queue: usize, key: u64) {
        Lists::add(self, queue, key, 0);
    }
    fn remove(&mut self, key: u64) -> bool {
        self.find(key).map(|at| Lists::remove(self, at)).is_some()
    }
    fn bytes(&self) -> u64 {
        Lists::bytes(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How much smaller all counts together are after each of some evictions, where all keys have been asked for as often as is counted.
    fn looks(capacity: u64, evictions: u64) -> Vec<usize> {
        let mut policy = S3Fifo::new(capacity as usize);
        (0..capacity).for_each(|key| policy.insert(key));
        (0..capacity).for_each(|key| (0..COUNT_MAX).for_each(|_| policy.touch(key)));
        let counts = |policy: &S3Fifo| (0..capacity).filter_map(|key| policy.keys.count(key)).map(usize::from).sum::<usize>();
        let evict = |number: u64| {
            let before = counts(&policy);
            assert!(policy.evict(None).is_some());
            policy.insert(capacity + number);
            before - counts(&policy)
        };
        (0..evictions).map(evict).collect()
    }

    /// Who misses waits for it.
    #[test]
    fn among_many_that_were_all_asked_for_one_that_goes_is_found_soon() {
        // Beside the counts of one that moves from the small queue to the main one, and of the one that goes.
        let most = LOOKS * usize::from(COUNT_MAX) + 2 * usize::from(COUNT_MAX);
        let looks = looks(20_000, 60);
        assert!(looks.iter().all(|&looks| looks <= most), "{looks:?}");
        assert!(looks[0] > LOOKS, "{looks:?}");
    }

    /// What was in the main queue has been trimmed, and what came in its place is asked for again and again.
    #[test]
    fn of_a_small_queue_of_many_that_were_asked_for_a_few_move_on() {
        let capacity = 10_000;
        let mut policy = S3Fifo::new(capacity as usize);
        (0..capacity).for_each(|key| policy.insert(key));
        assert!(policy.evict(None).is_some());
        (0..capacity).for_each(|key| policy.remove(key));
        let new = capacity..2 * capacity;
        new.clone().for_each(|key| policy.insert(key));
        new.for_each(|key| (0..WORTH).for_each(|_| policy.touch(key)));
        let mut left = policy.keys.len(SMALL);
        assert!(left > 10 * LOOKS);
        while left >= policy.small_max {
            assert!(policy.evict(None).is_some());
            let moved = left - policy.keys.len(SMALL);
            assert!((1..=LOOKS).contains(&moved), "{moved} of {left}");
            left -= moved;
        }
    }

    /// Where they are few, each of them is looked at, and what has just come into the main queue goes: nobody has asked for it there.
    #[test]
    fn among_few_the_first_one_goes_that_nobody_has_asked_for() {
        assert_eq!(looks(100, 1), [90 + usize::from(COUNT_MAX)]);
    }
}

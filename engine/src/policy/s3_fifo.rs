//! S3-FIFO: a small queue for what is new, a main one for what has come back, and ghosts of those that did not in time (Yang and others, "FIFO
//! queues are all you need for cache eviction", SOSP 2023). A small queue of a tenth, counts up to three, as many ghosts as the main queue has
//! places.

use super::Policy;
use super::lists::Lists;
use crate::ghosts::Ghosts;

const SMALL: usize = 0;
const MAIN: usize = 1;
/// Asked for so often in the small queue: it belongs into the main one.
const WORTH: u8 = 2;
const COUNT_MAX: u8 = 3;
/// Ghosts of a row: 64 bytes at most.
const ROW: usize = 32;

pub struct S3Fifo {
    /// With how often each was asked for since it came, or was last looked at.
    keys: Lists<2, u8>,
    small_max: usize,
    ghosts: Ghosts<0>,
    /// Nothing has had to go yet: what the small queue has no place for may fill the main one.
    filling: bool,
}

impl S3Fifo {
    pub fn new(capacity: usize) -> S3Fifo {
        let small_max = (capacity / 10).max(1);
        let ghosts = Ghosts::new((capacity - small_max.min(capacity)) as u64, ROW);
        S3Fifo { keys: Lists::new(capacity), small_max, ghosts, filling: true }
    }

    /// The oldest of the small queue becomes a ghost; `None`: it has moved on instead.
    fn evict_small(&mut self) -> Option<u64> {
        let at = self.keys.oldest(SMALL)?;
        if *self.keys.get(at) >= WORTH {
            *self.keys.get(at) = 0;
            self.keys.renew(MAIN, at);
            return None;
        }
        let gone = self.keys.remove(at);
        self.ghosts.note(gone, 1);
        Some(gone)
    }

    fn evict_main(&mut self) -> Option<u64> {
        while let Some(at) = self.keys.oldest(MAIN)
            && *self.keys.get(at) > 0
        {
            *self.keys.get(at) -= 1;
            self.keys.renew(MAIN, at);
        }
        self.keys.remove_oldest(MAIN)
    }
}

impl Policy for S3Fifo {
    fn contains(&self, key: u64) -> bool {
        self.keys.find(key).is_some()
    }
    fn touch(&mut self, key: u64) {
        if let Some(at) = self.keys.find(key) {
            let count = self.keys.get(at);
            *count = (*count + 1).min(COUNT_MAX);
        }
    }
    fn touch_all(&mut self, keys: &[u64]) {
        self.keys.fetch(keys);
        keys.iter().for_each(|&key| self.touch(key));
    }
    fn evict(&mut self, _comes: Option<u64>) -> Option<u64> {
        self.filling = false;
        while self.keys.len(SMALL) >= self.small_max || self.keys.len(MAIN) == 0 && self.keys.len(SMALL) > 0 {
            if let Some(gone) = self.evict_small() {
                return Some(gone);
            }
        }
        self.evict_main()
    }
    fn insert(&mut self, key: u64) {
        let has_come_back = self.ghosts.remove(key);
        let is_filling = self.filling && self.keys.len(SMALL) >= self.small_max;
        self.keys.add(if has_come_back || is_filling { MAIN } else { SMALL }, key, 0);
    }
    fn remove(&mut self, key: u64) {
        match self.keys.find(key) {
            Some(at) => _ = self.keys.remove(at),
            None => _ = self.ghosts.remove(key),
        }
    }
    fn len(&self) -> usize {
        self.keys.len(SMALL) + self.keys.len(MAIN)
    }
    fn bytes(&self) -> u64 {
        self.keys.bytes() + self.ghosts.bytes()
    }
}

//! 2Q: a short queue for what is new, ghosts of those that have left it, and a main list, by recency, for those that came back (Johnson and
//! Shasha, "2Q: a low overhead high performance buffer management replacement algorithm", VLDB 1994; the full version). A quarter of the places
//! for the queue, half as many ghosts as places: the paper's.

use super::Policy;
use super::lists::Lists;

/// A1in, Am and A1out of the paper.
const NEW: usize = 0;
const MAIN: usize = 1;
const GHOSTS: usize = 2;

pub struct TwoQ {
    keys: Lists<3>,
    new_max: usize,
    ghosts_max: usize,
}

impl TwoQ {
    pub fn new(capacity: usize) -> TwoQ {
        let ghosts_max = (capacity / 2).max(1);
        TwoQ { keys: Lists::new(capacity + ghosts_max), new_max: (capacity / 4).max(1), ghosts_max }
    }
}

impl Policy for TwoQ {
    fn contains(&self, key: u64) -> bool {
        self.keys.find(key).is_some_and(|at| self.keys.list(at) != GHOSTS)
    }
    /// Of a new one nothing is noted: what is asked for several times at once is asked for once.
    fn touch(&mut self, key: u64) {
        if let Some(at) = self.keys.find_in(MAIN, key) {
            self.keys.renew(MAIN, at);
        }
    }
    fn evict(&mut self, _comes: Option<u64>) -> Option<u64> {
        if self.keys.len(NEW) > self.new_max || self.keys.len(MAIN) == 0 {
            let at = self.keys.oldest(NEW)?;
            let gone = self.keys.key(at);
            self.keys.renew(GHOSTS, at);
            if self.keys.len(GHOSTS) > self.ghosts_max {
                self.keys.remove_oldest(GHOSTS);
            }
            return Some(gone);
        }
        self.keys.remove_oldest(MAIN)
    }
    fn insert(&mut self, key: u64) {
        match self.keys.find_in(GHOSTS, key) {
            Some(at) => self.keys.renew(MAIN, at),
            None => self.keys.add(NEW, key, ()),
        }
    }
    fn remove(&mut self, key: u64) {
        if let Some(at) = self.keys.find(key) {
            self.keys.remove(at);
        }
    }
    fn len(&self) -> usize {
        self.keys.len(NEW) + self.keys.len(MAIN)
    }
    fn bytes(&self) -> u64 {
        self.keys.bytes()
    }
}

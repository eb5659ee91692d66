//! By time alone: the first that came (FIFO), or the one that was not asked for longest (LRU, paper 004's).

use super::Policy;
use super::lists::Lists;

/// The first that came goes.
pub struct Fifo {
    keys: Lists<1>,
}

impl Fifo {
    /// For so many keys, or a few more.
    pub fn new(capacity: usize) -> Fifo {
        Fifo { keys: Lists::new(capacity) }
    }
}

impl Policy for Fifo {
    fn contains(&self, key: u64) -> bool {
        self.keys.find(key).is_some()
    }
    fn touch(&mut self, _key: u64) {}
    fn evict(&mut self, _comes: Option<u64>) -> Option<u64> {
        self.keys.remove_oldest(0)
    }
    fn insert(&mut self, key: u64) {
        self.keys.add(0, key, ());
    }
    fn remove(&mut self, key: u64) {
        if let Some(at) = self.keys.find(key) {
            self.keys.remove(at);
        }
    }
    fn len(&self) -> usize {
        self.keys.len(0)
    }
    fn bytes(&self) -> u64 {
        self.keys.bytes()
    }
}

/// The least recently used one goes.
pub struct Lru(Fifo);

impl Lru {
    /// For so many keys, or a few more.
    pub fn new(capacity: usize) -> Lru {
        Lru(Fifo::new(capacity))
    }
}

impl Policy for Lru {
    fn contains(&self, key: u64) -> bool {
        self.0.contains(key)
    }
    fn touch(&mut self, key: u64) {
        if let Some(at) = self.0.keys.find(key) {
            self.0.keys.renew(0, at);
        }
    }
    fn evict(&mut self, comes: Option<u64>) -> Option<u64> {
        self.0.evict(comes)
    }
    fn insert(&mut self, key: u64) {
        self.0.insert(key);
    }
    fn remove(&mut self, key: u64) {
        self.0.remove(key);
    }
    fn len(&self) -> usize {
        self.0.len()
    }
    fn bytes(&self) -> u64 {
        self.0.bytes()
    }
}

//! By time and one bit: was it asked for since it was last looked at? CLOCK gives who was another round; SIEVE leaves it where it stands, and
//! looks at the next one (Zhang and others, "SIEVE is Simpler than LRU", NSDI 2024).

use super::Policy;
use super::lists::{At, Lists};

pub struct Clock {
    keys: Lists<1, bool>,
}

impl Clock {
    /// For so many keys, or a few more.
    pub fn new(capacity: usize) -> Clock {
        Clock { keys: Lists::new(capacity) }
    }
}

impl Policy for Clock {
    fn contains(&self, key: u64) -> bool {
        self.keys.find(key).is_some()
    }
    fn touch(&mut self, key: u64) {
        if let Some(at) = self.keys.find(key) {
            *self.keys.get_mut(at) = true;
        }
    }
    fn evict(&mut self, _comes: Option<u64>) -> Option<u64> {
        while let Some(at) = self.keys.oldest(0)
            && std::mem::take(self.keys.get_mut(at))
        {
            self.keys.renew(0, at);
        }
        self.keys.remove_oldest(0)
    }
    fn insert(&mut self, key: u64) {
        self.keys.add(0, key, false);
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

pub struct Sieve {
    keys: Lists<1, bool>,
    /// The next one that is looked at; `None`: the oldest.
    hand: Option<At>,
}

impl Sieve {
    /// For so many keys, or a few more.
    pub fn new(capacity: usize) -> Sieve {
        Sieve { keys: Lists::new(capacity), hand: None }
    }

    /// The hand leaves the place.
    fn let_go(&mut self, at: At) {
        if self.hand == Some(at) {
            self.hand = self.keys.newer(at);
        }
    }
}

impl Policy for Sieve {
    fn contains(&self, key: u64) -> bool {
        self.keys.find(key).is_some()
    }
    fn touch(&mut self, key: u64) {
        if let Some(at) = self.keys.find(key) {
            *self.keys.get_mut(at) = true;
        }
    }
    fn evict(&mut self, _comes: Option<u64>) -> Option<u64> {
        loop {
            let at = self.hand.or(self.keys.oldest(0))?;
            self.hand = self.keys.newer(at);
            if !std::mem::take(self.keys.get_mut(at)) {
                return Some(self.keys.remove(at));
            }
        }
    }
    fn insert(&mut self, key: u64) {
        self.keys.add(0, key, false);
    }
    fn remove(&mut self, key: u64) {
        if let Some(at) = self.keys.find(key) {
            self.let_go(at);
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

//! ARC: keys that were asked for once, keys that were asked for again, and ghosts of both; a ghost that comes back says which of the two has too
//! few places (Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache", FAST 2003).

use super::Policy;
use super::lists::Lists;

/// T1, T2, B1 and B2 of the paper.
const ONCE: usize = 0;
const OFTEN: usize = 1;
const ONCE_GHOSTS: usize = 2;
const OFTEN_GHOSTS: usize = 3;

pub struct Arc {
    keys: Lists<4>,
    capacity: usize,
    /// Places that keys asked for once are to have: `p` of the paper.
    once_wanted: usize,
    /// The ghost whose return has been counted: its insertion follows.
    counted: Option<u64>,
}

impl Arc {
    pub fn new(capacity: usize) -> Arc {
        Arc { keys: Lists::new(2 * capacity), capacity, once_wanted: 0, counted: None }
    }

    /// A ghost comes back: its kind gets places of the other.
    fn adapt(&mut self, key: u64) {
        if self.counted.replace(key) == Some(key) {
            return;
        }
        let Some(at) = self.keys.find(key) else { return };
        let (once, often) = (self.keys.len(ONCE_GHOSTS), self.keys.len(OFTEN_GHOSTS));
        match self.keys.list(at) {
            ONCE_GHOSTS => self.once_wanted = (self.once_wanted + (often / once).max(1)).min(self.capacity),
            OFTEN_GHOSTS => self.once_wanted = self.once_wanted.saturating_sub((once / often).max(1)),
            _ => {}
        }
    }
}

impl Policy for Arc {
    fn contains(&self, key: u64) -> bool {
        self.keys.find(key).is_some_and(|at| self.keys.list(at) <= OFTEN)
    }
    fn touch(&mut self, key: u64) {
        if let Some(at) = self.keys.find(key)
            && self.keys.list(at) <= OFTEN
        {
            self.keys.renew(OFTEN, at);
        }
    }
    fn evict(&mut self, comes: Option<u64>) -> Option<u64> {
        comes.inspect(|&comes| self.adapt(comes));
        let is_in = |list| comes.is_some_and(|comes| self.keys.find_in(list, comes).is_some());
        let is_often_ghost = is_in(OFTEN_GHOSTS);
        let is_ghost = is_often_ghost || is_in(ONCE_GHOSTS);
        let once = self.keys.len(ONCE);
        if comes.is_some() && !is_ghost && once + self.keys.len(ONCE_GHOSTS) >= self.capacity {
            if once >= self.capacity {
                return self.keys.remove_oldest(ONCE);
            }
            self.keys.remove_oldest(ONCE_GHOSTS);
        }
        let takes_once = once > 0 && (once > self.once_wanted || is_often_ghost && once == self.once_wanted || self.keys.len(OFTEN) == 0);
        let (from, ghosts) = if takes_once { (ONCE, ONCE_GHOSTS) } else { (OFTEN, OFTEN_GHOSTS) };
        let at = self.keys.oldest(from)?;
        let gone = self.keys.key(at);
        self.keys.renew(ghosts, at);
        Some(gone)
    }
    fn insert(&mut self, key: u64) {
        self.adapt(key);
        self.counted = None;
        match self.keys.find(key) {
            Some(at) => self.keys.renew(OFTEN, at),
            None => {
                let all = |keys: &Lists<4>| (ONCE..=OFTEN_GHOSTS).map(|list| keys.len(list)).sum::<usize>();
                // (Of keys that went for nobody there may be too many ghosts of the other kind.)
                while all(&self.keys) >= 2 * self.capacity
                    && self.keys.remove_oldest(OFTEN_GHOSTS).or_else(|| self.keys.remove_oldest(ONCE_GHOSTS)).is_some()
                {}
                self.keys.add(ONCE, key, ());
            }
        }
    }
    fn remove(&mut self, key: u64) {
        if let Some(at) = self.keys.find(key) {
            self.keys.remove(at);
        }
    }
    fn len(&self) -> usize {
        self.keys.len(ONCE) + self.keys.len(OFTEN)
    }
    fn bytes(&self) -> u64 {
        self.keys.bytes()
    }
}

//! The page cache: pages that are clean, the least recently used of which go; and dirty ones, which stay until they are written.

use super::layout::{key, of_key};
use std::collections::BTreeMap;
use tidegate_engine::policy::{Lru, Policy};
use tidegate_engine::time::Instant;

pub struct Memory {
    clean: Lru,
    /// Since when.
    dirty: BTreeMap<u64, Instant>,
    capacity: usize,
}

impl Memory {
    /// For so many pages.
    pub fn new(capacity: usize) -> Memory {
        Memory { clean: Lru::new(capacity), dirty: BTreeMap::new(), capacity }
    }

    /// Is it there? If so, it has just been used.
    pub fn has(&mut self, file: u32, page: u64) -> bool {
        let key = key(file, page);
        if self.dirty.contains_key(&key) {
            return true;
        }
        self.clean.touch(key);
        self.clean.contains(key)
    }

    /// It was read.
    pub fn keep(&mut self, file: u32, page: u64) {
        self.keep_key(key(file, page));
    }

    fn keep_key(&mut self, key: u64) {
        if self.dirty.contains_key(&key) || self.clean.contains(key) {
            return;
        }
        while self.clean.len() + self.dirty.len() >= self.capacity && self.clean.evict(Some(key)).is_some() {}
        self.clean.insert(key);
    }

    pub fn write(&mut self, now: Instant, file: u32, page: u64) {
        let key = key(file, page);
        if self.clean.contains(key) {
            self.clean.remove(key);
        }
        while self.clean.len() + self.dirty.len() >= self.capacity && self.clean.evict(Some(key)).is_some() {}
        self.dirty.entry(key).or_insert(now);
    }

    /// The file is no more.
    pub fn forget(&mut self, file: u32, pages: u64) {
        for page in 0..pages {
            let key = key(file, page);
            if self.dirty.remove(&key).is_none() && self.clean.contains(key) {
                self.clean.remove(key);
            }
        }
    }

    pub fn dirty(&self) -> usize {
        self.dirty.len()
    }

    /// Dirty pages that were written at `until` or before, `most` of them; they are clean from now on.
    pub fn take_old(&mut self, until: Instant, most: usize) -> Vec<(u32, u64)> {
        let old: Vec<u64> = self.dirty.iter().filter(|(_, since)| **since <= until).map(|(key, _)| *key).take(most).collect();
        self.take(old)
    }

    /// Those of a file.
    pub fn take_file(&mut self, file: u32) -> Vec<(u32, u64)> {
        let of_file = self.dirty.range(key(file, 0)..key(file + 1, 0)).map(|(key, _)| *key).collect();
        self.take(of_file)
    }

    pub fn take_all(&mut self) -> Vec<(u32, u64)> {
        let all = self.dirty.keys().copied().collect();
        self.take(all)
    }

    fn take(&mut self, keys: Vec<u64>) -> Vec<(u32, u64)> {
        for &key in &keys {
            self.dirty.remove(&key);
            self.keep_key(key);
        }
        keys.into_iter().map(of_key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dirty_pages_stay_and_clean_ones_go_by_use() {
        let mut memory = Memory::new(4);
        memory.write(Instant(1), 1, 0);
        (0..3).for_each(|page| memory.keep(2, page));
        assert!(memory.has(2, 0));
        memory.keep(3, 0);
        assert_eq!([memory.has(1, 0), memory.has(2, 0), memory.has(2, 1), memory.has(3, 0)], [true, true, false, true]);
        assert_eq!(memory.take_old(Instant(0), 9), []);
        assert_eq!(memory.take_old(Instant(1), 9), [(1, 0)]);
        assert!(memory.has(1, 0) && memory.dirty() == 0);
    }

    #[test]
    fn a_file_that_is_deleted_needs_no_writing() {
        let mut memory = Memory::new(100);
        (0..4).for_each(|page| memory.write(Instant(page), 7, page));
        memory.write(Instant(9), 8, 0);
        memory.forget(7, 4);
        assert_eq!(memory.take_all(), [(8, 0)]);
    }
}

//! Other caches, as one would use them for this: a page behind a shared reference, looked up, copied and let go. And the prototype that paper
//! 004 starts from: a hash and an LRU list under one lock.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::rounds::Subject;
use crate::{BATCH, Buffer, PAGE_BYTES, PAGES};

type Page = Arc<[u8; PAGE_BYTES]>;

/// A cache that holds all pages.
pub trait Peer: Sync {
    /// Copies a page out of it.
    fn read(&self, key: u64, into: &mut [u8]);
}

fn page(key: u64) -> Page {
    Arc::new([key as u8 | 1; PAGE_BYTES])
}

/// Twice as many as there are: nothing is evicted, however a peer spreads them.
const CAPACITY: usize = 2 * PAGES;

impl Peer for moka::sync::Cache<u64, Page> {
    fn read(&self, key: u64, into: &mut [u8]) {
        into.copy_from_slice(&*self.get(&key).expect("all of it is in memory"));
    }
}

pub fn moka() -> moka::sync::Cache<u64, Page> {
    let cache = moka::sync::Cache::new(CAPACITY as u64);
    (0..PAGES as u64).for_each(|key| cache.insert(key, page(key)));
    cache.run_pending_tasks();
    cache
}

impl Peer for foyer_memory::Cache<u64, Page> {
    fn read(&self, key: u64, into: &mut [u8]) {
        into.copy_from_slice(&**self.get(&key).expect("all of it is in memory").value());
    }
}

pub fn foyer() -> foyer_memory::Cache<u64, Page> {
    let cache = foyer_memory::CacheBuilder::new(CAPACITY).build();
    (0..PAGES as u64).for_each(|key| drop(cache.insert(key, page(key))));
    cache
}

impl Peer for quick_cache::sync::Cache<u64, Page> {
    fn read(&self, key: u64, into: &mut [u8]) {
        into.copy_from_slice(&*self.get(&key).expect("all of it is in memory"));
    }
}

pub fn quick_cache() -> quick_cache::sync::Cache<u64, Page> {
    let cache = quick_cache::sync::Cache::new(CAPACITY);
    (0..PAGES as u64).for_each(|key| cache.insert(key, page(key)));
    cache
}

/// The prototype: one lock for the table and the list of the recently used; the copy is made outside it, under a reference.
pub struct Prototype(Mutex<Lists>);

struct Lists {
    places: HashMap<u64, usize>,
    items: Vec<Item>,
    /// Most recently used.
    first: usize,
    last: usize,
}

struct Item {
    page: Page,
    newer: usize,
    older: usize,
}

const END: usize = usize::MAX;

impl Lists {
    fn touch(&mut self, place: usize) {
        if self.first == place {
            return;
        }
        let Item { newer, older, .. } = self.items[place];
        self.items[newer].older = older;
        match older {
            END => self.last = newer,
            older => self.items[older].newer = newer,
        }
        (self.items[place].newer, self.items[place].older) = (END, self.first);
        self.items[self.first].newer = place;
        self.first = place;
    }
}

impl Peer for Prototype {
    fn read(&self, key: u64, into: &mut [u8]) {
        let mut lists = self.0.lock().expect("nobody panics");
        let place = lists.places[&key];
        lists.touch(place);
        let page = Arc::clone(&lists.items[place].page);
        drop(lists);
        into.copy_from_slice(&*page);
    }
}

pub fn prototype() -> Prototype {
    let item = |key: usize| Item { page: page(key as u64), newer: key.checked_sub(1).unwrap_or(END), older: key + 1 };
    let mut items: Vec<Item> = (0..PAGES).map(item).collect();
    items[PAGES - 1].older = END;
    let places = (0..PAGES).map(|key| (key as u64, key)).collect();
    Prototype(Mutex::new(Lists { places, items, first: 0, last: PAGES - 1 }))
}

/// Reads one after the other: none of them has another interface.
pub struct OneByOne<'p> {
    peer: &'p dyn Peer,
    into: Vec<Buffer>,
}

impl<'p> OneByOne<'p> {
    pub fn new(peer: &'p dyn Peer) -> OneByOne<'p> {
        OneByOne { peer, into: Buffer::batch(0) }
    }
}

impl Subject for OneByOne<'_> {
    fn batch(&mut self, keys: &[u64; BATCH]) {
        keys.iter().zip(&mut self.into).for_each(|(&key, into)| self.peer.read(key, &mut into.0));
    }
}

/// Not a cache: what a look-up under the library's epoch would begin and end with.
pub struct Pins;

impl Subject for Pins {
    fn batch(&mut self, _keys: &[u64; BATCH]) {
        (0..BATCH).for_each(|_| drop(std::hint::black_box(crossbeam_epoch::pin())));
    }
}

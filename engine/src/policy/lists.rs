//! Lists of keys, and where each key stands: what every policy is made of. A key is in one list at most.
//!
//! A key takes 24 bytes in its node, an eighth more where nodes are to come, and 4 to 8 for its place: half of what a hash map beside
//! them would take.

use std::hash::{BuildHasher, BuildHasherDefault};

use crate::number::NumberHasher;

/// A key's place in its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At(u32);

const NIL: u32 = u32::MAX;

struct Node<T> {
    key: u64,
    newer: u32,
    older: u32,
    /// The next one of the same place.
    next: u32,
    list: u8,
    value: T,
}

#[derive(Clone, Copy)]
struct Ends {
    newest: u32,
    oldest: u32,
    len: usize,
}

/// `N` lists, each from its newest key to its oldest.
pub struct Lists<const N: usize, T = ()> {
    nodes: Vec<Node<T>>,
    free: Vec<u32>,
    /// By a key's hash, the first node of that place: as many places as nodes, or more; a power of two.
    places: Vec<u32>,
    ends: [Ends; N],
}

impl<const N: usize, T> Default for Lists<N, T> {
    fn default() -> Self {
        let ends = [Ends { newest: NIL, oldest: NIL, len: 0 }; N];
        Lists { nodes: Vec::new(), free: Vec::new(), places: vec![NIL; PLACES_MIN], ends }
    }
}

const PLACES_MIN: usize = 16;

impl<const N: usize, T: Default> Lists<N, T> {
    pub fn find(&self, key: u64) -> Option<At> {
        let mut at = self.places[self.place(key)];
        while at != NIL && self.nodes[at as usize].key != key {
            at = self.nodes[at as usize].next;
        }
        Some(at).filter(|&at| at != NIL).map(At)
    }
    /// These keys will be looked for: the lines that know of them come from memory side by side.
    pub fn fetch(&self, keys: &[u64]) {
        let first = |&key: &u64| self.nodes.get(self.places[self.place(key)] as usize).map_or(0, |node| node.key);
        std::hint::black_box(keys.iter().map(first).fold(0, u64::wrapping_add));
    }
    /// Where it is, if it is in this list.
    pub fn find_in(&self, list: usize, key: u64) -> Option<At> {
        self.find(key).filter(|&at| self.list(at) == list)
    }
    pub fn list(&self, at: At) -> usize {
        usize::from(self.nodes[at.0 as usize].list)
    }
    pub fn key(&self, at: At) -> u64 {
        self.nodes[at.0 as usize].key
    }
    pub fn get(&mut self, at: At) -> &mut T {
        &mut self.nodes[at.0 as usize].value
    }
    pub fn len(&self, list: usize) -> usize {
        self.ends[list].len
    }
    pub fn oldest(&self, list: usize) -> Option<At> {
        Some(self.ends[list].oldest).filter(|&at| at != NIL).map(At)
    }
    /// The next newer one of the same list.
    pub fn newer(&self, at: At) -> Option<At> {
        Some(self.nodes[at.0 as usize].newer).filter(|&at| at != NIL).map(At)
    }

    /// Memory, in bytes.
    pub fn bytes(&self) -> u64 {
        let nodes = self.nodes.capacity() * size_of::<Node<T>>();
        (nodes + (self.free.capacity() + self.places.capacity()) * size_of::<u32>()) as u64
    }

    fn place(&self, key: u64) -> usize {
        BuildHasherDefault::<NumberHasher>::default().hash_one(key) as usize & (self.places.len() - 1)
    }

    /// A key that is in no list becomes the newest of this one.
    pub fn add(&mut self, list: usize, key: u64, value: T) {
        assert!(self.find(key).is_none(), "a key is in one list at most");
        let node = Node { key, newer: NIL, older: NIL, next: NIL, list: 0, value };
        let at = match self.free.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                at
            }
            None => {
                self.make_room();
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        };
        self.put_in_place(at);
        self.link(list, at);
    }

    fn make_room(&mut self) {
        if self.nodes.len() == self.nodes.capacity() {
            self.nodes.reserve_exact((self.nodes.len() / 8).max(PLACES_MIN));
        }
        if self.nodes.len() == self.places.len() {
            self.places = vec![NIL; 2 * self.places.len()];
            // None is free: that is why there has to be room.
            (0..self.nodes.len() as u32).for_each(|at| self.put_in_place(at));
        }
    }

    fn put_in_place(&mut self, at: u32) {
        let place = self.place(self.nodes[at as usize].key);
        self.nodes[at as usize].next = std::mem::replace(&mut self.places[place], at);
    }

    fn leave_place(&mut self, at: u32) {
        let Node { key, next, .. } = self.nodes[at as usize];
        let place = self.place(key);
        if self.places[place] == at {
            self.places[place] = next;
            return;
        }
        let mut before = self.places[place];
        while self.nodes[before as usize].next != at {
            before = self.nodes[before as usize].next;
        }
        self.nodes[before as usize].next = next;
    }

    /// It becomes the newest of a list, this one or another.
    pub fn renew(&mut self, list: usize, at: At) {
        self.unlink(at.0);
        self.link(list, at.0);
    }

    pub fn remove(&mut self, at: At) -> u64 {
        self.unlink(at.0);
        self.leave_place(at.0);
        self.nodes[at.0 as usize].value = T::default();
        self.free.push(at.0);
        self.key(at)
    }

    pub fn remove_oldest(&mut self, list: usize) -> Option<u64> {
        self.oldest(list).map(|at| self.remove(at))
    }

    fn link(&mut self, list: usize, at: u32) {
        let ends = &mut self.ends[list];
        let node = &mut self.nodes[at as usize];
        (node.list, node.newer, node.older) = (list as u8, NIL, ends.newest);
        match ends.newest {
            NIL => ends.oldest = at,
            newest => self.nodes[newest as usize].newer = at,
        }
        ends.newest = at;
        ends.len += 1;
    }

    fn unlink(&mut self, at: u32) {
        let Node { list, newer, older, .. } = self.nodes[at as usize];
        let ends = &mut self.ends[usize::from(list)];
        match newer {
            NIL => ends.newest = older,
            newer => self.nodes[newer as usize].older = older,
        }
        match older {
            NIL => ends.oldest = newer,
            older => self.nodes[older as usize].newer = newer,
        }
        ends.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Beside a plain vector for each list.
        #[test]
        fn keys_are_where_they_were_put(steps in prop::collection::vec((0u64..200, 0usize..3, any::<bool>()), 0..800), far in any::<bool>()) {
            let mut lists: Lists<2, u8> = Lists::default();
            let mut plain: [Vec<u64>; 2] = Default::default();
            for (key, what, second) in steps {
                // Keys that share a place, now and then.
                let key = if far { key << 40 } else { key };
                let list = usize::from(second);
                match (lists.find(key), what) {
                    (Some(at), 0) => prop_assert_eq!(lists.remove(at), key),
                    (Some(at), _) => lists.renew(list, at),
                    (None, _) => lists.add(list, key, 7),
                }
                let was = plain.iter().any(|keys| keys.contains(&key));
                plain.iter_mut().for_each(|keys| keys.retain(|&other| other != key));
                if !was || what > 0 {
                    plain[list].push(key);
                }
                prop_assert_eq!(lists.find(key).is_some(), !was || what > 0);
            }
            for (list, keys) in plain.iter().enumerate() {
                let found: Vec<u64> = std::iter::successors(lists.oldest(list), |&at| lists.newer(at)).map(|at| lists.key(at)).collect();
                prop_assert_eq!(&found, keys);
                prop_assert_eq!(lists.len(list), keys.len());
                prop_assert!(keys.iter().all(|&key| lists.find_in(list, key).is_some()));
            }
        }
    }

    /// What the description promises, at any size.
    #[test]
    fn a_key_takes_little_memory() {
        let mut lists: Lists<3, u8> = Lists::default();
        for key in 0..100_000u64 {
            lists.add(0, key * 7, 0);
            if key > 1_000 {
                assert!(lists.bytes() <= (key + 1) * (24 * 9 / 8 + 1 + 8), "{} bytes for {} keys", lists.bytes(), key + 1);
            }
        }
    }
}

//! Lists of keys, and where each key stands: what every policy is made of. A key is in one list at most.

use crate::number::NumberMap;

/// A key's place in its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At(u32);

const NIL: u32 = u32::MAX;

struct Node<T> {
    key: u64,
    value: T,
    list: u8,
    newer: u32,
    older: u32,
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
    places: NumberMap<u64, u32>,
    ends: [Ends; N],
}

impl<const N: usize, T> Default for Lists<N, T> {
    fn default() -> Self {
        let ends = [Ends { newest: NIL, oldest: NIL, len: 0 }; N];
        Lists { nodes: Vec::new(), free: Vec::new(), places: NumberMap::default(), ends }
    }
}

impl<const N: usize, T: Default> Lists<N, T> {
    pub fn find(&self, key: u64) -> Option<At> {
        self.places.get(&key).copied().map(At)
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

    /// A key that is in no list becomes the newest of this one.
    pub fn add(&mut self, list: usize, key: u64, value: T) {
        let node = Node { key, value, list: 0, newer: NIL, older: NIL };
        let at = match self.free.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                at
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        };
        assert!(self.places.insert(key, at).is_none(), "a key is in one list at most");
        self.link(list, at);
    }

    /// It becomes the newest of a list, this one or another.
    pub fn renew(&mut self, list: usize, at: At) {
        self.unlink(at.0);
        self.link(list, at.0);
    }

    pub fn remove(&mut self, at: At) -> u64 {
        self.unlink(at.0);
        let key = self.key(at);
        self.nodes[at.0 as usize].value = T::default();
        self.places.remove(&key);
        self.free.push(at.0);
        key
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

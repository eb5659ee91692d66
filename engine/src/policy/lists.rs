//! Lists of keys, and where each key stands: what every policy is made of. A key is in one list at most.
//!
//! A key takes 20 bytes in its node and 4 for its place.

use std::num::NonZeroU32;

use crate::number::spread;

/// A key's place in its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At(NonZeroU32);

impl At {
    fn of(node: usize) -> At {
        let number = u32::try_from(node + 1).ok().and_then(NonZeroU32::new);
        At(number.expect("fewer keys than that are kept"))
    }
    fn node(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// `T` has a byte, or none.
struct Node<T> {
    /// The key, of which there are 48 bits, as many as a block's number has on the SSD.
    low: u32,
    high: u16,
    list: u8,
    value: T,
    newer: Option<At>,
    older: Option<At>,
    /// The next one of the same place; the next one that is free.
    next: Option<At>,
}

const KEY_BITS: u32 = 48;

impl<T> Node<T> {
    fn key(&self) -> u64 {
        u64::from(self.high) << u32::BITS | u64::from(self.low)
    }
}

#[derive(Clone, Copy, Default)]
struct Ends {
    newest: Option<At>,
    oldest: Option<At>,
    len: usize,
}

/// `N` lists, each from its newest key to its oldest.
pub struct Lists<const N: usize, T = ()> {
    nodes: Vec<Node<T>>,
    free: Option<At>,
    /// By a key's hash, the first node of that place: as many places as keys are expected; more, if they become
    /// half as many again.
    places: Vec<Place>,
    /// So many keys are expected.
    expected: usize,
    ends: [Ends; N],
}

/// Its first node. (A plain number: empty ones are memory that nobody has touched.)
type Place = Option<NonZeroU32>;

/// Keys that lie side by side have places side by side: whoever walks through them finds most in the processor's cache.
const NEIGHBOURS: usize = 4;
/// Nodes that are made room for at least.
const ROOM: usize = 16;

impl<const N: usize, T: Default> Lists<N, T> {
    /// For so many keys. There may be more: then all are given other places, now and then.
    pub fn new(expected: usize) -> Lists<N, T> {
        const { assert!(size_of::<T>() <= 1 && size_of::<Node<T>>() == 20) };
        let places = vec![None; expected.max(ROOM).next_multiple_of(NEIGHBOURS)];
        Lists { nodes: Vec::new(), free: None, places, expected, ends: [Ends::default(); N] }
    }

    pub fn find(&self, key: u64) -> Option<At> {
        let mut at = self.first(self.place(key));
        while let Some(found) = at
            && self.key(found) != key
        {
            at = self.node(found).next;
        }
        at
    }
    /// These keys will be looked for: the lines that know of them come from memory side by side.
    pub fn fetch(&self, keys: &[u64]) {
        let first = |&key: &u64| self.first(self.place(key)).map_or(0, |at| self.key(at));
        std::hint::black_box(keys.iter().map(first).fold(0, u64::wrapping_add));
    }
    /// Where it is, if it is in this list.
    pub fn find_in(&self, list: usize, key: u64) -> Option<At> {
        self.find(key).filter(|&at| self.list(at) == list)
    }
    pub fn list(&self, at: At) -> usize {
        usize::from(self.node(at).list)
    }
    pub fn key(&self, at: At) -> u64 {
        self.node(at).key()
    }
    pub fn get(&self, at: At) -> &T {
        &self.node(at).value
    }
    pub fn get_mut(&mut self, at: At) -> &mut T {
        &mut self.node_mut(at).value
    }
    pub fn len(&self, list: usize) -> usize {
        self.ends[list].len
    }
    pub fn oldest(&self, list: usize) -> Option<At> {
        self.ends[list].oldest
    }
    /// The next newer one of the same list.
    pub fn newer(&self, at: At) -> Option<At> {
        self.node(at).newer
    }

    /// Memory, in bytes.
    pub fn bytes(&self) -> u64 {
        let nodes = self.nodes.capacity() * size_of::<Node<T>>();
        (nodes + self.places.capacity() * size_of::<Place>()) as u64
    }

    fn node(&self, at: At) -> &Node<T> {
        &self.nodes[at.node()]
    }
    fn node_mut(&mut self, at: At) -> &mut Node<T> {
        &mut self.nodes[at.node()]
    }

    fn place(&self, key: u64) -> usize {
        let neighbours = NEIGHBOURS as u64;
        let hash = spread(key / neighbours);
        let group = ((hash >> u32::BITS) * (self.places.len() as u64 / neighbours)) >> u32::BITS;
        // Who comes alone is in any place of its group.
        (group * neighbours + (key ^ hash) % neighbours) as usize
    }
    fn first(&self, place: usize) -> Option<At> {
        self.places[place].map(At)
    }

    /// A key that is in no list becomes the newest of this one.
    pub fn add(&mut self, list: usize, key: u64, value: T) {
        assert!(self.find(key).is_none(), "a key is in one list at most");
        assert!(key >> KEY_BITS == 0, "key {key} has more than {KEY_BITS} bits");
        let (low, high) = (key as u32, (key >> u32::BITS) as u16);
        let node = Node { low, high, list: 0, value, newer: None, older: None, next: None };
        let at = match self.free {
            Some(at) => {
                self.free = std::mem::replace(self.node_mut(at), node).next;
                at
            }
            None => {
                self.make_room();
                self.nodes.push(node);
                At::of(self.nodes.len() - 1)
            }
        };
        self.put_in_place(at);
        self.link(list, at);
    }

    fn make_room(&mut self) {
        let nodes = self.nodes.len();
        if nodes == self.nodes.capacity() {
            // Up to what is expected, and no more than that.
            let more = (nodes / 8).max(ROOM);
            let missing = self.expected.saturating_sub(nodes);
            self.nodes.reserve_exact(if missing > 0 { more.min(missing) } else { (nodes / 32).max(ROOM) });
        }
        if nodes >= self.places.len() * 3 / 2 {
            self.places = vec![None; (nodes + nodes / 4).next_multiple_of(NEIGHBOURS)];
            // None is free: that is why there has to be room.
            (0..nodes).for_each(|node| self.put_in_place(At::of(node)));
        }
    }

    fn put_in_place(&mut self, at: At) {
        let place = self.place(self.key(at));
        self.node_mut(at).next = self.places[place].replace(at.0).map(At);
    }

    fn leave_place(&mut self, at: At) {
        let (place, next) = (self.place(self.key(at)), self.node(at).next);
        let mut before = self.first(place).expect("it is in its place");
        if before == at {
            self.places[place] = next.map(|At(next)| next);
            return;
        }
        while self.node(before).next != Some(at) {
            before = self.node(before).next.expect("it is in its place");
        }
        self.node_mut(before).next = next;
    }

    /// It becomes the newest of a list, this one or another.
    pub fn renew(&mut self, list: usize, at: At) {
        self.unlink(at);
        self.link(list, at);
    }

    pub fn remove(&mut self, at: At) -> u64 {
        self.unlink(at);
        self.leave_place(at);
        let free = self.free.replace(at);
        let node = self.node_mut(at);
        (node.value, node.next) = (T::default(), free);
        node.key()
    }

    pub fn remove_oldest(&mut self, list: usize) -> Option<u64> {
        self.oldest(list).map(|at| self.remove(at))
    }

    fn link(&mut self, list: usize, at: At) {
        let newest = self.ends[list].newest.replace(at);
        let node = self.node_mut(at);
        (node.list, node.newer, node.older) = (list as u8, None, newest);
        match newest {
            Some(newest) => self.node_mut(newest).newer = Some(at),
            None => self.ends[list].oldest = Some(at),
        }
        self.ends[list].len += 1;
    }

    fn unlink(&mut self, at: At) {
        let Node { list, newer, older, .. } = *self.node(at);
        let ends = &mut self.ends[usize::from(list)];
        ends.len -= 1;
        match newer {
            Some(newer) => self.node_mut(newer).older = older,
            None => ends.newest = older,
        }
        match older {
            Some(older) => self.node_mut(older).newer = newer,
            None => self.ends[usize::from(list)].oldest = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Beside a plain vector for each list.
        #[test]
        fn keys_are_where_they_were_put(steps in prop::collection::vec((0u64..200, 0usize..3, any::<bool>()), 0..800), far in any::<bool>(), expected in 0usize..300) {
            let mut lists: Lists<2, u8> = Lists::new(expected);
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

    /// Looking for a key is a matter of a few steps, however far apart keys are: beside each other, a set's first blocks, rows of a table.
    #[test]
    fn a_key_is_found_in_few_steps() {
        const KEYS: u64 = 20_000;
        for stride in [1, 2, 3, 4, 8, 64, 3_948, 4_096, 46_368, 3_328_160, 1 << 32] {
            let mut lists: Lists<1> = Lists::new(KEYS as usize);
            (0..KEYS).for_each(|number| lists.add(0, number * stride, ()));
            let steps = |number: u64| {
                let at = lists.find(number * stride);
                std::iter::successors(lists.first(lists.place(number * stride)), |&other| {
                    (Some(other) != at).then(|| lists.node(other).next)?
                })
                .count()
            };
            let (all, most) = (0..KEYS).map(steps).fold((0, 0), |(all, most), steps| (all + steps, most.max(steps)));
            assert!(all as f64 / KEYS as f64 <= 1.55 && most <= 12, "{stride}: {} on average, {most} at most", all as f64 / KEYS as f64);
        }
    }

    /// What the description promises when as many are there as were expected; at any other size little more, and behind that too.
    #[test]
    fn a_key_takes_little_memory() {
        const EXPECTED: u64 = 100_000;
        let mut lists: Lists<3, u8> = Lists::new(EXPECTED as usize);
        for keys in 1..=2 * EXPECTED {
            lists.add(0, keys * 7, 0);
            let most = match keys {
                EXPECTED => keys * 24,
                1..EXPECTED => EXPECTED * 4 + keys * 20 * 9 / 8 + 400,
                _ => keys * 20 * 33 / 32 + keys * 5 + 400,
            };
            assert!(lists.bytes() <= most, "{} bytes for {keys} keys", lists.bytes());
        }
        let before = lists.bytes();
        while lists.remove_oldest(0).is_some() {}
        (1..=2 * EXPECTED).for_each(|key| lists.add(1, key, 0));
        assert_eq!(lists.bytes(), before, "what has gone leaves its node to the next one");
    }
}

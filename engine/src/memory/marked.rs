//! Queues of blocks that have pages. Which queue a block is in, and how often it was asked for, is its [mark](Marks): so a block takes six bytes in
//! a queue, and nobody keeps a list of where each is.
//!
//! A block that is taken out leaves its place in the queue behind, as it comes by only when it is the oldest. When a quarter of the places are of
//! that kind, they are cleared away. A block that is taken out and comes back meanwhile may be met at its old place; then it is as old as that.

use std::collections::VecDeque;

use tidegate_pages::{Block, Marks};

use crate::policy::{COUNT_BITS, QUEUES, Queues};

pub struct Marked {
    marks: Marks,
    queues: [Places; QUEUES],
    /// Blocks in each.
    lens: [usize; QUEUES],
}

/// Of a mark that is of a block in a queue: which one, above its count.
const FIRST_QUEUE: u8 = 1 << COUNT_BITS;
/// Of a mark, while places are cleared away: the block has been met.
const MET: u8 = 1 << (COUNT_BITS + 2);
const _: () = assert!(QUEUES <= 3 && MET <= Marks::MAX);

/// Places that are left behind, before they are worth clearing away.
const LEFT_MIN: usize = 64;

fn mark(queue: usize, count: u8) -> u8 {
    FIRST_QUEUE * (queue as u8 + 1) + count
}

/// Queue and count.
fn read(mark: u8) -> Option<(usize, u8)> {
    let queue = usize::from((mark & !MET) >> COUNT_BITS).checked_sub(1)?;
    Some((queue, mark & (FIRST_QUEUE - 1)))
}

impl Marked {
    pub fn new(marks: Marks) -> Marked {
        Marked { marks, queues: Default::default(), lens: [0; QUEUES] }
    }

    fn find(&self, key: u64) -> Option<(usize, u8)> {
        read(self.marks.get(Block(key)))
    }

    fn set(&self, key: u64, mark: u8) {
        assert!(self.marks.set(Block(key), mark), "block {key} has a page");
    }

    /// The oldest that is in this queue now, with its count.
    fn find_oldest(&mut self, queue: usize) -> Option<(u64, u8)> {
        while let Some(key) = self.queues[queue].oldest() {
            match self.find(key) {
                Some((of, count)) if of == queue => return Some((key, count)),
                _ => self.queues[queue].drop_oldest(),
            }
        }
        None
    }

    fn take_oldest(&mut self, queue: usize) -> Option<u64> {
        let (key, _) = self.find_oldest(queue)?;
        self.queues[queue].drop_oldest();
        self.lens[queue] -= 1;
        Some(key)
    }

    fn put(&mut self, queue: usize, key: u64, count: u8) {
        self.queues[queue].add(key);
        self.lens[queue] += 1;
        self.set(key, mark(queue, count));
    }

    /// Clears away what is left behind, if that is much.
    fn clear(&mut self, queue: usize) {
        let (places, len) = (&mut self.queues[queue], self.lens[queue]);
        let left = places.len - len;
        if left < LEFT_MIN.max(len / 4) {
            return;
        }
        let marks = &self.marks;
        // From the newest on: that one is the block's own place.
        places.retain_from_newest(|key| {
            let found = marks.get(Block(key));
            let stays = found & MET == 0 && read(found).is_some_and(|(of, _)| of == queue);
            if stays {
                marks.set(Block(key), found | MET);
            }
            stays
        });
        assert_eq!(places.len, len, "each block has one place");
        places.iter().for_each(|key| _ = marks.set(Block(key), marks.get(Block(key)) & !MET));
    }
}

impl Queues for Marked {
    fn count(&self, key: u64) -> Option<u8> {
        self.find(key).map(|(_, count)| count)
    }
    fn touch(&mut self, key: u64, most: u8) {
        self.marks.hint(Block(key), |found| match read(found) {
            Some((queue, count)) => mark(queue, (count + 1).min(most)),
            None => found,
        });
    }
    fn len(&self, queue: usize) -> usize {
        self.lens[queue]
    }
    fn oldest(&mut self, queue: usize) -> Option<u8> {
        self.find_oldest(queue).map(|(_, count)| count)
    }
    fn renew_oldest(&mut self, from: usize, to: usize, count: u8) {
        let key = self.take_oldest(from).expect("it has an oldest");
        self.put(to, key, count);
    }
    fn remove_oldest(&mut self, queue: usize) -> Option<u64> {
        let key = self.take_oldest(queue)?;
        self.set(key, 0);
        Some(key)
    }
    fn add(&mut self, queue: usize, key: u64) {
        assert!(self.find(key).is_none(), "a block is in one queue at most");
        self.put(queue, key, 0);
    }
    fn remove(&mut self, key: u64) -> bool {
        let Some((queue, _)) = self.find(key) else { return false };
        self.set(key, 0);
        self.lens[queue] -= 1;
        self.clear(queue);
        true
    }
    fn bytes(&self) -> u64 {
        self.queues.iter().map(Places::bytes).sum()
    }
}

/// Keys in the order in which they came, six bytes each.
#[derive(Default)]
struct Places {
    /// Each full, but for the first and the last one.
    parts: VecDeque<Box<[Place; PART]>>,
    /// Places of the first one that are used no more.
    gone: usize,
    len: usize,
}

/// A key, of which there are 48 bits, as many as a block's number has on the SSD.
type Place = [u8; 6];

const PART: usize = 128;

impl Places {
    fn get(&self, number: usize) -> u64 {
        let at = self.gone + number;
        let [a, b, c, d, e, f] = self.parts[at / PART][at % PART];
        u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
    }

    fn put(&mut self, number: usize, key: u64) {
        let [a, b, c, d, e, f, 0, 0] = key.to_le_bytes() else { panic!("key {key} has more than 48 bits") };
        let at = self.gone + number;
        self.parts[at / PART][at % PART] = [a, b, c, d, e, f];
    }

    fn iter(&self) -> impl Iterator<Item = u64> {
        (0..self.len).map(|number| self.get(number))
    }

    fn add(&mut self, key: u64) {
        if self.gone + self.len == self.parts.len() * PART {
            self.parts.push_back(Box::new([[0; 6]; PART]));
        }
        self.len += 1;
        self.put(self.len - 1, key);
    }

    fn oldest(&self) -> Option<u64> {
        (self.len > 0).then(|| self.get(0))
    }

    fn drop_oldest(&mut self) {
        self.drop_old(1);
    }

    fn drop_old(&mut self, count: usize) {
        self.len -= count;
        self.gone += count;
        self.parts.drain(..self.gone / PART);
        self.gone %= PART;
    }

    /// Asks of each whether it stays, the newest first.
    fn retain_from_newest(&mut self, mut stays: impl FnMut(u64) -> bool) {
        let mut left = self.len;
        for number in (0..self.len).rev() {
            let key = self.get(number);
            if stays(key) {
                left -= 1;
                self.put(left, key);
            }
        }
        self.drop_old(left);
    }

    fn bytes(&self) -> u64 {
        (self.parts.len() * size_of::<[Place; PART]>() + self.parts.capacity() * size_of::<Box<[Place; PART]>>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Policy, S3Fifo};
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use tidegate_pages::{Atoms, Config, Front, Keeper, Pages, Refused};

    /// Pages of a byte, and what says which of them stay.
    struct Tier {
        front: Front,
        keeper: Keeper,
        policy: S3Fifo<Marked>,
    }

    impl Tier {
        fn new(capacity: usize) -> Tier {
            let config = Config { page_atoms: 1, atom_bytes: 1, ..Config::of_memory((capacity + 40) * 4096, 1) };
            let (pages, keeper) = Pages::new(config).expect("memory");
            let policy = S3Fifo::of(Marked::new(keeper.marks()), capacity);
            Tier { front: Pages::front(&pages).expect("a front"), keeper, policy }
        }

        fn insert(&mut self, key: u64) {
            self.keeper.fill(Block(key), &[1], Atoms(1)).expect("a page");
            self.policy.insert(key);
        }

        fn evict(&mut self) -> Option<u64> {
            let gone = self.policy.evict(None)?;
            self.keeper.evict(Block(gone)).expect("nobody has it");
            Some(gone)
        }

        fn remove(&mut self, key: u64) {
            self.policy.remove(key);
            self.keeper.remove(Block(key)).expect("nobody has it");
        }
    }

    proptest! {
        /// As long as nobody comes back that was taken out.
        #[test]
        fn queues_of_marks_do_the_same_as_lists(capacity in 1usize..30, steps in prop::collection::vec((0u64..70, 0u8..30), 0..900)) {
            let (mut tier, mut other) = (Tier::new(capacity), S3Fifo::new(capacity));
            for (number, &(key, what)) in steps.iter().enumerate() {
                // In two leaves, and far away.
                let far = |key: u64| key % 64 + ((key / 64) << 40);
                let key = far(key);
                if what == 0 && tier.policy.contains(key) {
                    tier.remove(key);
                    other.remove(key);
                    // In its place, something that never comes again.
                    let never = (1 << 41) + number as u64;
                    tier.insert(never);
                    other.insert(never);
                } else if what > 0 && tier.policy.contains(key) {
                    prop_assert!(other.contains(key));
                    tier.policy.touch(key);
                    other.touch(key);
                    if what == 1 {
                        // And what fronts write stays where it is.
                        tier.front.write(key, &[2]).expect("room");
                        drop(tier.keeper.drain());
                    }
                } else if what > 0 && steps[..number].iter().all(|&(before, what)| what > 0 || far(before) != key) {
                    while tier.policy.len() >= capacity {
                        prop_assert_eq!(tier.evict(), other.evict(None));
                    }
                    tier.insert(key);
                    other.insert(key);
                }
                prop_assert_eq!(tier.policy.len(), other.len());
            }
            while let Some(gone) = tier.evict() {
                prop_assert_eq!(other.evict(None), Some(gone));
            }
            prop_assert!(other.is_empty());
        }

        /// Whoever comes back, too.
        #[test]
        fn what_is_kept_has_a_mark_and_goes_once(capacity in 1usize..30, steps in prop::collection::vec((0u64..40, 0u8..8), 0..900)) {
            let (mut tier, mut kept) = (Tier::new(capacity), BTreeSet::new());
            for (key, what) in steps {
                match (kept.contains(&key), what) {
                    (true, 0..4) => {
                        tier.remove(key);
                        kept.remove(&key);
                    }
                    (true, _) => tier.policy.touch(key),
                    (false, _) => {
                        while tier.policy.len() >= capacity {
                            let gone = tier.evict().expect("it is full");
                            prop_assert!(kept.remove(&gone), "{} was kept", gone);
                        }
                        tier.insert(key);
                        kept.insert(key);
                    }
                }
                prop_assert_eq!(tier.policy.len(), kept.len());
                prop_assert!((0..40).all(|key| tier.policy.contains(key) == kept.contains(&key)));
            }
            while let Some(gone) = tier.evict() {
                prop_assert!(kept.remove(&gone), "{} was kept", gone);
            }
            prop_assert!(kept.is_empty() && tier.policy.is_empty());
        }
    }

    /// What is taken out again and again, and comes back or does not, leaves no more behind than a quarter.
    #[test]
    fn places_that_are_left_behind_are_cleared_away() {
        const BLOCKS: u64 = 2_000;
        let mut tier = Tier::new(BLOCKS as usize);
        (0..BLOCKS).for_each(|key| tier.insert(key));
        let most = tier.policy.bytes() * 5 / 4 + 1_000;
        for round in 0..20 * BLOCKS {
            // The same ones, then each in its turn; and then they are others.
            let key = if round < 10 * BLOCKS { round % 7 } else { round % BLOCKS };
            tier.remove(if round < 15 * BLOCKS { key } else { key + (round / BLOCKS - 15) * BLOCKS });
            tier.insert(if round < 15 * BLOCKS { key } else { key + (round / BLOCKS - 14) * BLOCKS });
            assert!(tier.policy.bytes() <= most, "{} bytes after {round}", tier.policy.bytes());
        }
        assert_eq!(tier.policy.len() as u64, BLOCKS);
        (0..BLOCKS).for_each(|key| assert!(tier.policy.contains(key + 5 * BLOCKS)));
    }

    /// What a front has written there is still to be drained, so the page stays. It is in no queue, until somebody puts it there.
    #[test]
    fn what_goes_has_no_mark_though_its_page_stays() {
        let mut tier = Tier::new(8);
        (0..2).for_each(|key| tier.insert(key));
        tier.front.write(0, &[2]).expect("room");
        assert_eq!((tier.policy.evict(None), tier.keeper.remove(Block(0))), (Some(0), Err(Refused::Undrained)));
        assert!(!tier.policy.contains(0));
        tier.policy.insert(0);
        assert_eq!((tier.policy.evict(None), tier.policy.evict(None), tier.policy.evict(None)), (Some(1), Some(0), None));
    }

    #[test]
    fn keys_of_48_bits_come_in_their_order() {
        let mut places = Places::default();
        let key = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
        (0..1_000).for_each(|number| places.add(key(number)));
        (0..300).for_each(|_| places.drop_oldest());
        places.retain_from_newest(|key| key % 2 == 0);
        let expected: Vec<u64> = (300..1_000).map(key).filter(|key| key % 2 == 0).collect();
        assert_eq!(places.iter().collect::<Vec<_>>(), expected);
        assert_eq!((places.len, places.oldest()), (expected.len(), expected.first().copied()));
        (0..expected.len()).for_each(|_| places.drop_oldest());
        assert_eq!(places.oldest(), None);
    }
}

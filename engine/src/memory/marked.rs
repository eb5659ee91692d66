//! Queues of blocks that have pages. Which queue a block is in, and how often it was asked for, is its [mark](Marks): so a block takes six bytes in
//! a queue, and nobody keeps a list of where each is.
//!
//! A block that is taken out leaves its place behind; a place is looked at when it is the oldest, or when a hand comes by. The hand goes from the
//! newest place to the oldest while much is left behind, a part of the queue at a time, and tells by a block's *side* which of its places is
//! its own: that is the newest one. A block that is taken out and comes back may be met at its old place before that; then it is as old as that.

use std::collections::VecDeque;

use tidegate_pages::{Block, Marks};

use crate::policy::s3_fifo::{COUNT_BITS, QUEUES, Queues};

pub struct Marked {
    marks: Marks,
    queues: [Queue; QUEUES],
    /// Places that are left behind in a queue, before the hand comes.
    left_min: usize,
}

struct Queue {
    places: Places,
    /// Blocks in it, each of which has a place.
    len: usize,
    /// Of a block whose own place the hand has passed, or that has come since.
    side: bool,
    /// Parts that the hand has before it.
    before_hand: usize,
    /// Places that it may look at.
    credit: usize,
}

/// What a mark says of a block in a queue.
#[derive(Clone, Copy)]
struct Known {
    queue: usize,
    count: u8,
    side: bool,
}

/// The place of the queue in a mark, above the count. One more than its number, so that 0 is that of a block in none.
const QUEUE_SHIFT: u32 = COUNT_BITS;
const SIDE_SHIFT: u32 = QUEUE_SHIFT + 2;
const _: () = assert!(QUEUES <= 3 && 1 << SIDE_SHIFT <= Marks::MAX);

impl Known {
    fn mark(self) -> u8 {
        u8::from(self.side) << SIDE_SHIFT | (self.queue as u8 + 1) << QUEUE_SHIFT | self.count
    }

    fn of(mark: u8) -> Option<Known> {
        let queue = usize::from(mark >> QUEUE_SHIFT & 3).checked_sub(1)?;
        Some(Known { queue, count: mark & ((1 << COUNT_BITS) - 1), side: mark >> SIDE_SHIFT != 0 })
    }
}

/// The mark of a block after that; what is in no queue has the one that it had.
fn asked_once_more(mark: u8, most: u8) -> u8 {
    Known::of(mark).map_or(mark, |known| Known { count: (known.count + 1).min(most), ..known }.mark())
}

/// The hand comes when so many places are left behind, and one for each eight blocks.
const LEFT_MIN: usize = 64;
const LEFT_SHARE: usize = 8;
/// Places that it looks at for each block that is taken out: it is through before many more than as many again are left behind.
const LOOKS: usize = 8;

impl Marked {
    pub fn new(marks: Marks) -> Marked {
        Marked::in_parts(marks, PART, LEFT_MIN)
    }

    fn in_parts(marks: Marks, part: usize, left_min: usize) -> Marked {
        let queue = |_| Queue { places: Places::in_parts(part), len: 0, side: false, before_hand: 0, credit: 0 };
        Marked { marks, queues: std::array::from_fn(queue), left_min }
    }

    fn find(&self, key: u64) -> Option<Known> {
        Known::of(self.marks.get(Block(key)))
    }

    fn set(&self, key: u64, mark: u8) {
        assert!(self.marks.set(Block(key), mark), "block {key} has a page");
    }

    /// The oldest that is in this queue now, with its count.
    fn find_oldest(&mut self, number: usize) -> Option<(u64, u8)> {
        while let Some(key) = self.queues[number].places.oldest() {
            match self.find(key) {
                Some(Known { queue, count, .. }) if queue == number => return Some((key, count)),
                _ => self.queues[number].drop_oldest(),
            }
        }
        assert_eq!(self.queues[number].len, 0, "each block has a place");
        None
    }

    fn take_oldest(&mut self, number: usize) -> Option<u64> {
        let (key, _) = self.find_oldest(number)?;
        self.queues[number].drop_oldest();
        self.queues[number].len -= 1;
        Some(key)
    }

    fn put(&mut self, number: usize, key: u64, count: u8) {
        let queue = &mut self.queues[number];
        queue.places.add(key);
        queue.len += 1;
        let known = Known { queue: number, count, side: queue.side };
        self.set(key, known.mark());
    }

    /// Lets the hand of a queue go on, if it is on its way or much is left behind there.
    fn clear(&mut self, number: usize) {
        let Marked { marks, queues, left_min } = self;
        let queue = &mut queues[number];
        if queue.before_hand == 0 {
            if queue.places.len - queue.len < (*left_min).max(queue.len / LEFT_SHARE) {
                return;
            }
            queue.begin_to_clear();
        }
        queue.credit += LOOKS;
        if queue.credit < queue.places.part {
            return;
        }
        queue.credit -= queue.places.part;
        queue.before_hand -= 1;
        let side = queue.side;
        queue.places.retain_in_part(queue.before_hand, |key| match Known::of(marks.get(Block(key))) {
            Some(known) if known.queue == number && known.side != side => marks.set(Block(key), Known { side, ..known }.mark()),
            _ => false,
        });
    }
}

impl Queue {
    /// All blocks are on the same side. Those that come from here on, in a part of their own, and those that the hand passes are on the other.
    fn begin_to_clear(&mut self) {
        if self.places.parts.back().is_none_or(|last| !last.is_empty()) {
            self.places.begin_part();
        }
        (self.before_hand, self.side, self.credit) = (self.places.parts.len() - 1, !self.side, 0);
    }

    fn drop_oldest(&mut self) {
        let parts = self.places.parts.len();
        self.places.drop_oldest();
        self.before_hand = self.before_hand.saturating_sub(parts - self.places.parts.len());
    }
}

impl Queues for Marked {
    fn count(&self, key: u64) -> Option<u8> {
        self.find(key).map(|known| known.count)
    }
    fn touch(&mut self, key: u64, most: u8) {
        self.marks.hint(Block(key), |mark| asked_once_more(mark, most));
    }
    fn touch_all(&mut self, keys: &[u64], most: u8) {
        let blocks: Vec<Block> = keys.iter().copied().map(Block).collect();
        self.marks.hint_all(&blocks, |mark| asked_once_more(mark, most));
    }
    fn len(&self, queue: usize) -> usize {
        self.queues[queue].len
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
        let Some(Known { queue, .. }) = self.find(key) else { return false };
        self.set(key, 0);
        self.queues[queue].len -= 1;
        self.clear(queue);
        true
    }
    fn bytes(&self) -> u64 {
        self.queues.iter().map(|queue| queue.places.bytes()).sum()
    }
}

/// Keys in the order in which they came, six bytes each.
struct Places {
    /// None is empty but the last, and most are full.
    parts: VecDeque<VecDeque<Place>>,
    /// Places of a part.
    part: usize,
    len: usize,
}

/// A key, of which there are 48 bits, as many as a block's number has on the SSD.
type Place = [u8; 6];

const PART: usize = 256;
/// Parts that room is made for at once.
const PARTS: usize = 16;

fn key(place: Place) -> u64 {
    let [a, b, c, d, e, f] = place;
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
}

impl Places {
    fn in_parts(part: usize) -> Places {
        Places { parts: VecDeque::new(), part, len: 0 }
    }

    /// What comes next comes into a new part.
    fn begin_part(&mut self) {
        if self.parts.len() == self.parts.capacity() {
            self.parts.reserve_exact(PARTS);
        }
        self.parts.push_back(VecDeque::with_capacity(self.part));
    }

    fn add(&mut self, key: u64) {
        let [a, b, c, d, e, f, 0, 0] = key.to_le_bytes() else { panic!("key {key} has more than 48 bits") };
        if self.parts.back().is_none_or(|last| last.len() == self.part) {
            self.begin_part();
        }
        self.parts.back_mut().expect("there is one now").push_back([a, b, c, d, e, f]);
        self.len += 1;
    }

    fn oldest(&self) -> Option<u64> {
        self.parts.front()?.front().copied().map(key)
    }

    fn drop_oldest(&mut self) {
        let Some(first) = self.parts.front_mut() else { return };
        first.pop_front();
        self.len -= 1;
        if first.is_empty() {
            self.parts.pop_front();
        }
    }

    /// Asks of each in a part whether it stays, the newest first. What stays fills up the part behind it.
    fn retain_in_part(&mut self, number: usize, mut stays: impl FnMut(u64) -> bool) {
        let part = &mut self.parts[number];
        let before = part.len();
        for at in (0..before).rev() {
            if !stays(key(part[at])) {
                part.remove(at);
            }
        }
        self.len -= before - part.len();
        // (The last one is filled by what comes.)
        if number + 2 < self.parts.len() {
            let room = self.part - self.parts[number + 1].len();
            for _ in 0..room {
                let Some(place) = self.parts[number].pop_back() else { break };
                self.parts[number + 1].push_front(place);
            }
        }
        if self.parts[number].is_empty() {
            self.parts.remove(number);
        }
    }

    fn bytes(&self) -> u64 {
        let places: usize = self.parts.iter().map(|part| part.capacity() * size_of::<Place>()).sum();
        (places + self.parts.capacity() * size_of::<VecDeque<Place>>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Policy, S3Fifo};
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use tidegate_pages::{Atoms, Config, Front, Keeper, Pages, Refused};

    /// Pages of a byte, and what says which of them stay.
    struct Tier {
        front: Front,
        keeper: Keeper,
        policy: S3Fifo<Marked>,
    }

    fn pages(count: usize) -> (Arc<Pages>, Keeper) {
        Pages::new(Config { page_atoms: 1, atom_bytes: 1, ..Config::of_memory(count * 4096, 1) }).expect("memory")
    }

    impl Tier {
        fn new(capacity: usize) -> Tier {
            let (pages, keeper) = pages(capacity + 40);
            let policy = S3Fifo::of(Marked::in_parts(keeper.marks(), 2 + capacity % 29, 4), capacity);
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
                    // And one beside it, kept or not.
                    let keys = [key, key + 1];
                    tier.policy.touch_all(&keys);
                    other.touch_all(&keys);
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

    /// What is taken out again and again, and comes back or does not, leaves little behind.
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

    /// The hand comes twice, and nothing between that; and before it has looked at anything all old places go.
    #[test]
    fn a_hand_that_comes_again_before_anything_else_has_leaves_what_comes_next_to_be_found() {
        let (_, mut keeper) = pages(100);
        let mut marked = Marked::in_parts(keeper.marks(), 32, 4);
        (0..80).for_each(|key| keeper.fill(Block(key), &[1], Atoms(1)).expect("a page"));
        (0..64).for_each(|key| marked.add(0, key));
        let mut rounds = vec![marked.queues[0].side];
        for key in 2..64 {
            assert!(marked.remove(key));
            rounds.push(marked.queues[0].side);
            if rounds.chunk_by(|a, b| a == b).count() == 3 {
                break;
            }
        }
        assert!(marked.queues[0].before_hand > 0, "it has come again: {rounds:?}");
        (0..marked.len(0)).for_each(|_| assert!(marked.remove_oldest(0).is_some()));
        marked.add(0, 70);
        assert_eq!((marked.oldest(0), marked.remove_oldest(0), marked.len(0)), (Some(0), Some(70), 0));
    }

    /// Lets the hand go over all of a queue.
    fn clear_all(marked: &mut Marked, number: usize) {
        for begins in [false, true] {
            if begins {
                marked.queues[number].begin_to_clear();
            }
            for _ in 0..10_000 {
                if marked.queues[number].before_hand == 0 {
                    break;
                }
                marked.clear(number);
            }
            assert_eq!(marked.queues[number].before_hand, 0);
        }
        assert_eq!(marked.queues[number].places.len, marked.queues[number].len, "nothing is left behind");
    }

    proptest! {
        /// When the hand has passed, blocks go in the order in which they came last, whatever was taken out and came back; also if that happens
        /// while it is on its way.
        #[test]
        fn what_comes_back_is_as_young_as_that_when_the_hand_has_passed(steps in prop::collection::vec((0u64..60, 0u8..12, 0usize..2), 0..900)) {
            let (_, mut keeper) = pages(100);
            let mut marked = Marked::in_parts(keeper.marks(), 4, 4);
            let mut plain: [VecDeque<(u64, u8)>; QUEUES] = Default::default();
            for (key, what, number) in steps {
                let found = plain.iter().position(|keys| keys.iter().any(|&(other, _)| other == key));
                match (found, what) {
                    (Some(of), 0..4) => {
                        prop_assert!(marked.remove(key));
                        plain[of].retain(|&(other, _)| other != key);
                        keeper.remove(Block(key)).expect("nobody has it");
                    }
                    (_, 4) => {
                        clear_all(&mut marked, number);
                        prop_assert_eq!(marked.oldest(number), plain[number].front().map(|&(_, count)| count));
                        if let Some((key, count)) = plain[number].pop_front() {
                            // It moves on, or stays, or goes.
                            if count < 2 {
                                prop_assert_eq!(marked.remove_oldest(number), Some(key));
                                keeper.remove(Block(key)).expect("nobody has it");
                            } else {
                                marked.renew_oldest(number, usize::from(count == 3), count - 1);
                                plain[usize::from(count == 3)].push_back((key, count - 1));
                            }
                        }
                    }
                    (Some(of), _) => {
                        marked.touch(key, 3);
                        let (_, count) = plain[of].iter_mut().find(|(other, _)| *other == key).expect("found above");
                        *count = (*count + 1).min(3);
                    }
                    (None, _) => {
                        keeper.fill(Block(key), &[1], Atoms(1)).expect("a page");
                        marked.add(number, key);
                        plain[number].push_back((key, 0));
                    }
                }
                for (number, plain) in plain.iter().enumerate() {
                    prop_assert_eq!(marked.len(number), plain.len());
                    let (left, len) = (marked.queues[number].places.len - marked.len(number), marked.len(number));
                    prop_assert!(left <= 8 + len / 4, "{} of {} left behind", left, len);
                }
            }
            for (number, plain) in plain.iter().enumerate() {
                clear_all(&mut marked, number);
                for &(key, count) in plain {
                    prop_assert_eq!((marked.oldest(number), marked.remove_oldest(number)), (Some(count), Some(key)));
                }
                prop_assert_eq!(marked.oldest(number), None);
            }
        }
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
        let mut places = Places::in_parts(16);
        let key = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
        (0..1_000).for_each(|number| places.add(key(number)));
        (0..300).for_each(|_| places.drop_oldest());
        let mut asked = Vec::new();
        for part in (0..places.parts.len()).rev() {
            places.retain_in_part(part, |key| {
                asked.push(key);
                key % 2 == 0
            });
        }
        assert_eq!(asked, (300..1_000).rev().map(key).collect::<Vec<_>>());
        let expected: Vec<u64> = (300..1_000).map(key).filter(|key| key % 2 == 0).collect();
        assert!(places.parts.len() <= expected.len() / 16 + 3, "{} parts", places.parts.len());
        let found: Vec<u64> = std::iter::from_fn(|| places.oldest().inspect(|_| places.drop_oldest())).take(1_000).collect();
        assert_eq!((found, places.len, places.oldest()), (expected, 0, None));
    }
}

//! The chooser: no policy is the best everywhere, so several are tried all the time on keys alone, and the cache follows one of them.
//!
//!     every access ──▶ candidates: who would have missed it? ──▶ the leader, once its lead has paid for the move
//!                                                                     │
//!     what is kept = what the leader keeps too + what it does not (goes first, oldest first)
//!
//! A candidate keeps keys of its own, and is told of every access (of a sample of the keys, if the cache is large: a cache a hundredth as large
//! that is asked for a hundredth of the keys misses as often; Waldspurger, Saemundsson, Ahmad and Park, "Cache modeling and optimization using
//! miniature simulations", USENIX ATC 2017). What is kept follows the chosen one as in Subramanian, Smaragdakis and Loh, "Adaptive caches:
//! effective shaping of cache behavior to workloads" (MICRO 2006): whatever that one does not keep goes before anything it does. So a switch throws
//! nothing away; it changes what goes next.
//!
//! When to switch is a matter of rent and purchase: the other one must have missed less by as many keys as would have to be fetched to be where it
//! is. Whoever switches earlier pays for leaders that were only lucky: on a trace of loops that come and go, half of that price lost eight points.
//! The second switch of late costs twice as much, the third thrice: where the lead passes from one to another, each comes when it is over.
//!
//! Memory: a node of a list takes 24 bytes with its place. For each block one node, and what the chosen policy takes: S3-FIFO a node and 2 bytes,
//! LIRS up to 9 nodes (4 ghosts, in two lists), LRU one, W-TinyLFU one and 32 bytes, ARC two, 2Q one and a half: up to 245 bytes. Besides, the
//! candidates: all of those for each block, of [`SAMPLE_KEYS`] blocks at most: 3.4 MB, however large the cache is.

use super::lists::Lists;
use super::{Kind, Policy};
use crate::number::spread;

/// In the order in which they are asked: the first one is followed until another one is better.
const CANDIDATES: [Kind; 6] = [Kind::S3Fifo, Kind::Lirs, Kind::Lru, Kind::TinyLfu, Kind::Arc, Kind::TwoQ];
/// Keys that a candidate keeps at most: of a larger cache it sees a sample.
pub const SAMPLE_KEYS: usize = 8192;
/// Misses are counted by half after so many accesses for each key that a candidate keeps; after so many in any case.
const MEMORY: u64 = 64;
const MEMORY_MIN: u64 = 256;
/// Leads shorter than this are chance.
const LEAD_MIN: u64 = 2;
/// The distance to a leader is counted at most so many times while as many keys as are kept are asked for.
const COUNTED: u64 = 64;
/// With each access the lead grows by one at most, and the distance falls by one: both sides have that key then. Each
/// switch of late counts that distance once more.
const NEARER: u64 = 2;

/// What is kept and the chosen policy would keep as well; what it would not.
const SHARED: usize = 0;
const SURPLUS: usize = 1;

pub struct Chooser {
    kept: Lists<2>,
    capacity: usize,
    candidates: Vec<Candidate>,
    /// Keys whose hash is not above this are in the sample.
    sampled: u64,
    /// The one that is followed.
    chosen: usize,
    switches: u64,
    /// Those of late: halved as misses are.
    recent_switches: u64,
    /// The same with all keys, where candidates see samples.
    whole: Option<Candidate>,
    /// Accesses of the sample so far, and until misses are halved.
    now: u64,
    until_halved: u64,
    /// The key whose access has been counted: its insertion follows.
    counted: Option<u64>,
}

/// A policy, and how it fares.
struct Candidate {
    policy: Box<dyn Policy>,
    capacity: usize,
    misses: u64,
    /// Not before this access of the sample is it worth counting how far away it is.
    counts_at: u64,
}

impl Candidate {
    fn new(kind: Kind, capacity: usize) -> Candidate {
        Candidate { policy: kind.build(capacity), capacity, misses: 0, counts_at: 0 }
    }

    /// The key that goes for this one.
    fn access(&mut self, key: u64) -> Option<u64> {
        if self.policy.contains(key) {
            self.policy.touch(key);
            return None;
        }
        self.misses += 1;
        let is_full = self.policy.len() >= self.capacity;
        let gone = if is_full { self.policy.evict(Some(key)) } else { None };
        self.policy.insert(key);
        gone
    }
}

impl Chooser {
    pub fn new(capacity: usize) -> Chooser {
        let sample = capacity.clamp(1, SAMPLE_KEYS);
        let is_sampled = capacity > SAMPLE_KEYS;
        let chosen = 0;
        Chooser {
            kept: Lists::new(capacity),
            capacity,
            candidates: CANDIDATES.map(|kind| Candidate::new(kind, sample)).into(),
            sampled: if is_sampled { u64::MAX / capacity as u64 * sample as u64 } else { u64::MAX },
            chosen,
            switches: 0,
            recent_switches: 0,
            whole: is_sampled.then(|| Candidate::new(CANDIDATES[chosen], capacity)),
            now: 0,
            until_halved: MEMORY_MIN.max(MEMORY * sample as u64),
            counted: None,
        }
    }

    /// The policy that is followed now.
    pub fn chosen(&self) -> Kind {
        CANDIDATES[self.chosen]
    }

    /// Everybody hears of an access.
    fn hear(&mut self, key: u64) {
        let mut gone = None;
        if spread(key) <= self.sampled {
            for (at, candidate) in self.candidates.iter_mut().enumerate() {
                let left = candidate.access(key);
                if at == self.chosen {
                    gone = left;
                }
            }
        }
        if let Some(whole) = &mut self.whole {
            gone = whole.access(key);
        }
        if let Some(at) = gone.and_then(|gone| self.kept.find(gone)) {
            self.kept.renew(SURPLUS, at);
        }
        if let Some(at) = self.kept.find(key) {
            self.kept.renew(SHARED, at);
        }
        if spread(key) <= self.sampled {
            self.choose();
        }
    }

    fn choose(&mut self) {
        self.until_halved -= 1;
        if self.until_halved == 0 {
            self.candidates.iter_mut().for_each(|candidate| candidate.misses /= 2);
            self.recent_switches /= 2;
            self.until_halved = MEMORY_MIN.max(MEMORY * self.candidates[0].capacity as u64);
        }
        self.now += 1;
        let leader = (0..self.candidates.len()).min_by_key(|&at| self.candidates[at].misses).expect("there are candidates");
        let lead = self.candidates[self.chosen].misses - self.candidates[leader].misses;
        if lead < LEAD_MIN || self.now < self.candidates[leader].counts_at {
            return;
        }
        let price = self.distance(leader) * (1 + self.recent_switches);
        if lead > price {
            self.follow(leader);
        }
        let nearer = NEARER + self.recent_switches;
        let candidate = &mut self.candidates[leader];
        candidate.counts_at = self.now + (candidate.capacity as u64 / COUNTED).max(price.saturating_sub(lead) / nearer).max(1);
    }

    /// Keys of a candidate that are not kept.
    fn distance(&self, candidate: usize) -> u64 {
        let policy = &self.candidates[candidate].policy;
        let shared = self.kept_keys().filter(|&key| spread(key) <= self.sampled && policy.contains(key)).count();
        policy.len().saturating_sub(shared) as u64
    }

    fn kept_keys(&self) -> impl Iterator<Item = u64> {
        let of = |list| std::iter::successors(self.kept.oldest(list), |&at| self.kept.newer(at)).map(|at| self.kept.key(at));
        of(SURPLUS).chain(of(SHARED))
    }

    /// The cache follows another one from now on. One that has seen samples only is told what is kept: what goes first, first.
    fn follow(&mut self, candidate: usize) {
        self.chosen = candidate;
        self.switches += 1;
        self.recent_switches += 1;
        let keys: Vec<u64> = self.kept_keys().collect();
        if self.whole.is_some() {
            let mut whole = Candidate::new(CANDIDATES[candidate], self.capacity);
            keys.iter().for_each(|&key| whole.policy.insert(key));
            self.whole = Some(whole);
        }
        for key in keys {
            let at = self.kept.find(key).expect("it is kept");
            self.kept.renew(self.list_of(key), at);
        }
    }

    /// Where a key belongs that is kept.
    fn list_of(&self, key: u64) -> usize {
        let followed = self.whole.as_ref().unwrap_or(&self.candidates[self.chosen]);
        if followed.policy.contains(key) { SHARED } else { SURPLUS }
    }
}

impl Policy for Chooser {
    fn contains(&self, key: u64) -> bool {
        self.kept.find(key).is_some()
    }
    fn touch(&mut self, key: u64) {
        if self.contains(key) {
            self.hear(key);
        }
    }
    fn evict(&mut self, comes: Option<u64>) -> Option<u64> {
        if let Some(comes) = comes
            && self.counted != Some(comes)
        {
            self.hear(comes);
            self.counted = Some(comes);
        }
        self.kept.remove_oldest(SURPLUS).or_else(|| self.kept.remove_oldest(SHARED))
    }
    fn insert(&mut self, key: u64) {
        if self.counted.take() != Some(key) {
            self.hear(key);
        }
        self.kept.add(self.list_of(key), key, ());
    }
    fn remove(&mut self, key: u64) {
        if let Some(at) = self.kept.find(key) {
            self.kept.remove(at);
            self.candidates.iter_mut().chain(&mut self.whole).for_each(|candidate| candidate.policy.remove(key));
        }
    }
    fn len(&self) -> usize {
        self.kept.len(SHARED) + self.kept.len(SURPLUS)
    }
    fn bytes(&self) -> u64 {
        let candidates = self.candidates.iter().chain(&self.whole).map(|candidate| candidate.policy.bytes());
        self.kept.bytes() + candidates.sum::<u64>()
    }
    fn follows(&self) -> Option<(Kind, u64)> {
        Some((self.chosen(), self.switches))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Misses of a cache that follows the chooser, and that one.
    fn run(capacity: usize, keys: impl Iterator<Item = u64>) -> (usize, Chooser) {
        let mut chooser = Chooser::new(capacity);
        let mut misses = 0;
        for key in keys {
            if chooser.contains(key) {
                chooser.touch(key);
                continue;
            }
            misses += 1;
            if chooser.len() >= capacity {
                let gone = chooser.evict(Some(key)).expect("it is full");
                assert!(gone != key && !chooser.contains(gone));
            }
            chooser.insert(key);
            assert!(chooser.len() <= capacity);
        }
        (misses, chooser)
    }

    /// Up and down over half as many keys again as fit: the last ones are the next ones, and LRU is as good as can be.
    fn zigzag(keys: u64, count: u64) -> impl Iterator<Item = u64> {
        (0..count).map(move |i| if (i / keys).is_multiple_of(2) { i % keys } else { keys - 1 - i % keys })
    }

    #[test]
    fn the_one_that_misses_least_is_followed() {
        // A small cache, all of whose keys the candidates see, and a large one.
        for capacity in [400, 2 * SAMPLE_KEYS] {
            let (keys, count) = (capacity as u64 * 3 / 2, capacity as u64 * 60);
            let (misses, chooser) = run(capacity, zigzag(keys, count));
            let least = count / 3;
            assert_eq!(chooser.chosen(), Kind::Lru, "{capacity}");
            assert!((misses as u64) < least + 5 * capacity as u64, "{capacity}: {misses} misses, at least {least}");
        }
    }

    #[test]
    fn a_loop_is_not_lost() {
        for capacity in [400, 2 * SAMPLE_KEYS] {
            let (keys, count) = (capacity as u64 * 3 / 2, capacity as u64 * 60);
            let (misses, chooser) = run(capacity, (0..count).map(|i| i % keys));
            assert_ne!(chooser.chosen(), Kind::Lru, "{capacity}");
            assert!(misses as u64 * 2 < count, "{capacity}: {misses} of {count}; LRU misses all");
        }
    }

    #[test]
    fn a_switch_throws_nothing_away() {
        for capacity in [100, SAMPLE_KEYS + 100] {
            let mut chooser = Chooser::new(capacity);
            (0..capacity as u64).for_each(|key| chooser.insert(key));
            for candidate in (0..CANDIDATES.len()).rev() {
                chooser.follow(candidate);
                assert!(chooser.len() == capacity && (0..capacity as u64).all(|key| chooser.contains(key)), "{candidate}");
            }
        }
    }

    /// The distance is not counted where it cannot matter: whoever counts it at each access does the same.
    #[test]
    fn a_distance_that_is_not_counted_would_not_have_mattered() {
        let (mut draw, mut switches) = (crate::draw::Draw::new(3), 0);
        for round in 0..40 {
            let capacity = 8 + draw.below(COUNTED + 40) as usize;
            let (mut chooser, mut counting) = (Chooser::new(capacity), Chooser::new(capacity));
            for phase in 0..30u64 {
                let keys = 4 + draw.below(2 * capacity as u64);
                let kind = draw.below(4);
                for at in 0..10 * capacity as u64 {
                    let key = match kind {
                        0 => at % keys,
                        1 => draw.below(keys),
                        2 if (at / keys).is_multiple_of(2) => at % keys,
                        2 => keys - 1 - at % keys,
                        _ => at + phase * 10_000,
                    };
                    for chooser in [&mut chooser, &mut counting] {
                        if chooser.contains(key) {
                            chooser.touch(key);
                            continue;
                        }
                        if chooser.len() >= capacity {
                            chooser.evict(Some(key));
                        }
                        chooser.insert(key);
                    }
                    counting.candidates.iter_mut().for_each(|candidate| candidate.counts_at = 0);
                    assert_eq!(chooser.follows(), counting.follows(), "round {round}, phase {phase}, access {at}, {capacity} keys");
                }
            }
            switches += chooser.switches;
        }
        assert!(switches > 100, "{switches}");
    }

    /// Two policies that are as good as each other in turns: the way between them is paid for less often than it is offered.
    #[test]
    fn it_does_not_flap() {
        let phase = |round: u64| zigzag(150, 300).map(move |key| if round.is_multiple_of(2) { key } else { key * 7 % 150 });
        let mut chooser = Chooser::new(100);
        let (mut switches, mut before) = (0, chooser.chosen());
        for key in (0..200).flat_map(phase) {
            if chooser.contains(key) {
                chooser.touch(key);
            } else {
                if chooser.len() >= 100 {
                    chooser.evict(Some(key));
                }
                chooser.insert(key);
            }
            switches += u32::from(std::mem::replace(&mut before, chooser.chosen()) != chooser.chosen());
        }
        assert!(switches < 20, "{switches} in 200 rounds");
    }

    /// A loop and a zigzag in turns: where each is over when following it begins to pay, a switch of late makes the next one dearer; where each goes
    /// on for long enough it is followed as ever, so that is not for good.
    #[test]
    fn what_changes_again_and_again_is_followed_less_often_unless_it_pays() {
        let switches = |rounds: u64| {
            let phase =
                |phase: u64| zigzag(150, 150 * rounds).enumerate().map(move |(at, key)| if phase == 0 { at as u64 % 150 } else { key });
            let (_, chooser) = run(100, (0..200).flat_map(|round| phase(round % 2)));
            chooser.switches
        };
        let (short, long) = (switches(10), switches(20));
        assert!(short < 70 && long > 100, "{short} where it hardly pays, {long} where it does, in 200 phases");
    }
}

//! What fails by itself is left alone, longer each time, so that it keeps its neighbours from nothing and is not asked for without end:
//!
//! * a block that the origin does not take, a bad sector of it say (`destage`): it is left out of the batches, and stays dirty and readable;
//! * a set of which the SSD does not give a slot that has to stay (`clean`): it is not emptied.
//!
//! The first pause is a second, each one in a row is twice the one before, and none is longer than a minute. What nobody has tried for a minute
//! after its pause begins anew: with a pause of a second, and without a place of its own if others need that.

use std::collections::BTreeMap;

use crate::block::Block;
use crate::time::{Duration, Instant};

/// Before it is tried again: the first time, and at most.
const WAIT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Failures in a row of which the last one is followed by the longest pause.
pub(super) const MANY: u32 = 7;
const _: () = assert!(WAIT.0.0 << (MANY - 1) >= WAIT.1.0 && WAIT.0.0 << (MANY - 2) < WAIT.1.0);

pub(super) struct Shunned<K> {
    noted: BTreeMap<K, Noted>,
    /// So many are remembered.
    most: usize,
}

#[derive(Clone, Copy)]
struct Noted {
    /// It is not tried before.
    until: Instant,
    /// In a row so far, and the last one.
    failures: u32,
    failed_at: Instant,
}

impl Noted {
    /// Has it been left alone since, or was nothing wrong with it?
    fn is_over(&self, now: Instant) -> bool {
        self.until + if self.failures > 0 { WAIT.1 } else { Duration::ZERO } <= now
    }
}

impl<K: Ord + Copy> Shunned<K> {
    pub fn new(most: usize) -> Self {
        Shunned { noted: BTreeMap::new(), most }
    }

    /// It has failed now. False: there are too many.
    pub fn insert(&mut self, key: K, now: Instant) -> bool {
        let Some(noted) = self.note(key, now) else { return false };
        noted.until = now + Duration((WAIT.0.0 << noted.failures.min(16)).min(WAIT.1.0));
        (noted.failures, noted.failed_at) = (noted.failures + 1, now);
        true
    }

    /// It has to wait, and nothing is wrong with it: it is left alone for the shortest time, and a failure after that is the first one in a row.
    /// False: there are too many.
    pub fn postpone(&mut self, key: K, now: Instant) -> bool {
        let Some(noted) = self.note(key, now) else { return false };
        (noted.until, noted.failures) = (now + WAIT.0, 0);
        true
    }

    /// The place where this one is noted. `None`: there are too many.
    fn note(&mut self, key: K, now: Instant) -> Option<&mut Noted> {
        if self.noted.len() >= self.most && !self.noted.contains_key(&key) {
            self.noted.retain(|_, noted| !noted.is_over(now));
        }
        let has_room = self.noted.len() < self.most || self.noted.contains_key(&key);
        has_room.then(|| {
            let anew = Noted { until: now, failures: 0, failed_at: now };
            let noted = self.noted.entry(key).or_insert(anew);
            if noted.is_over(now) {
                *noted = anew;
            }
            noted
        })
    }

    /// Has it failed since then, or so lately that it is not tried again yet; and so often in a row (once at least)?
    pub fn has_failed(&self, key: K, since: Instant, times: u32, now: Instant) -> bool {
        self.noted.get(&key).is_some_and(|noted| noted.failures >= times && (noted.failed_at >= since || noted.until > now))
    }

    /// Those that failed when they were last tried.
    pub fn failed(&self) -> impl Iterator<Item = K> + '_ {
        self.noted.iter().filter(|(_, noted)| noted.failures > 0).map(|(&key, _)| key)
    }

    /// Forgets the others: nothing is known against them any more.
    pub fn retain(&mut self, mut keeps: impl FnMut(K) -> bool) {
        self.noted.retain(|&key, _| keeps(key));
    }

    pub fn contains(&self, key: K, now: Instant) -> bool {
        !self.noted.is_empty() && self.noted.get(&key).is_some_and(|noted| noted.until > now)
    }

    /// When the next one is to be tried.
    pub fn next(&self, now: Instant) -> Option<Instant> {
        self.noted.values().map(|noted| noted.until).filter(|until| *until > now).min()
    }
}

impl Shunned<Block> {
    /// Somebody waits for them: they may all be tried now. False: there are none that wait.
    pub fn try_now(&mut self, now: Instant) -> bool {
        let mut any = false;
        for noted in self.noted.values_mut().filter(|noted| noted.until > now) {
            (noted.until, any) = (now, true);
        }
        any
    }

    /// Somebody waits for these.
    pub fn try_these_now(&mut self, block: Block, blocks: u64, now: Instant) {
        let these = self.noted.range_mut(block..Block(block.0 + blocks));
        these.for_each(|(_, noted)| noted.until = noted.until.min(now));
    }

    /// Nothing is known against these any more.
    pub fn forget(&mut self, block: Block, blocks: u64) {
        while let Some((&key, _)) = self.noted.range(block..Block(block.0 + blocks)).next() {
            self.noted.remove(&key);
        }
    }

    /// Blocks that are left out.
    pub fn len(&self, now: Instant) -> u64 {
        self.noted.values().filter(|noted| noted.until > now).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 4;

    fn at(seconds: u64) -> Instant {
        Instant(seconds * 1_000_000_000)
    }

    /// How long it is left alone from `now` on, in seconds.
    fn pause(shunned: &Shunned<u32>, key: u32, now: Instant) -> u64 {
        let ends = (0..=100).find(|&seconds| !shunned.contains(key, now + Duration::from_secs(seconds)));
        ends.expect("no pause is as long as that")
    }

    /// The pauses after so many failures, each of which comes `late` seconds after the end of the pause before.
    fn fail(shunned: &mut Shunned<u32>, key: u32, failures: u32, late: u64, now: &mut Instant) -> Vec<u64> {
        let fail_once = |_| {
            assert!(shunned.insert(key, *now));
            let seconds = pause(shunned, key, *now);
            assert_eq!(shunned.next(*now), Some(*now + Duration::from_secs(seconds)));
            *now = *now + Duration::from_secs(seconds + late);
            seconds
        };
        (0..failures).map(fail_once).collect()
    }

    #[test]
    fn each_failure_in_a_row_doubles_the_pause_up_to_a_minute() {
        for late in [0, 1, 59] {
            let mut shunned = Shunned::new(MOST);
            assert_eq!(fail(&mut shunned, 7, 9, late, &mut at(100)), [1, 2, 4, 8, 16, 32, 60, 60, 60], "{late} s late");
        }
    }

    /// However long it goes on.
    #[test]
    fn a_hundred_failures_are_no_more_than_a_minute_either() {
        let mut shunned = Shunned::new(MOST);
        assert_eq!(fail(&mut shunned, 7, 100, 0, &mut at(100)).last(), Some(&60));
    }

    #[test]
    fn what_is_not_tried_for_a_minute_after_its_pause_begins_anew() {
        let (mut shunned, mut now) = (Shunned::new(MOST), at(100));
        assert_eq!(fail(&mut shunned, 7, 4, 0, &mut now), [1, 2, 4, 8]);
        now = now + Duration::from_secs(60);
        assert_eq!(fail(&mut shunned, 7, 2, 0, &mut now), [1, 2]);
    }

    #[test]
    fn each_has_pauses_of_its_own() {
        let (mut shunned, mut now) = (Shunned::new(MOST), at(100));
        assert_eq!(fail(&mut shunned, 7, 3, 0, &mut now), [1, 2, 4]);
        assert_eq!(fail(&mut shunned, 8, 1, 0, &mut now), [1]);
        assert_eq!(fail(&mut shunned, 7, 1, 0, &mut now), [8]);
    }

    #[test]
    fn what_only_has_to_wait_waits_a_second_each_time() {
        let (mut shunned, mut now) = (Shunned::new(MOST), at(100));
        for _ in 0..5 {
            assert!(shunned.postpone(7, now));
            assert_eq!(pause(&shunned, 7, now), 1);
            now = now + Duration::from_secs(1);
        }
        assert_eq!(fail(&mut shunned, 7, 3, 0, &mut now), [1, 2, 4], "none of these was a failure");
        assert!(shunned.postpone(7, now));
        assert_eq!(pause(&shunned, 7, now), 1);
        now = now + Duration::from_secs(1);
        assert_eq!(fail(&mut shunned, 7, 2, 0, &mut now), [1, 2], "the row has ended");
    }

    #[test]
    fn what_has_failed_since_then_or_is_not_to_be_tried_yet_has_failed() {
        let (mut shunned, mut now) = (Shunned::new(MOST), at(100));
        fail(&mut shunned, 7, 3, 0, &mut now); // at 100, 101 and 103
        assert_eq!(now, at(107));
        let has_failed = |since, times, now| shunned.has_failed(7, at(since), times, at(now));
        assert!(has_failed(103, 1, 107) && has_failed(103, 3, 107) && !has_failed(103, 4, 107));
        assert!(!has_failed(104, 1, 107) && has_failed(104, 1, 106), "it is to be tried in that time");
        assert!(!shunned.has_failed(8, at(0), 1, at(106)));
        assert!(shunned.postpone(7, now) && !shunned.has_failed(7, at(0), 1, now));
        assert_eq!(fail(&mut shunned, 9, MANY, 0, &mut now).last(), Some(&60));
    }

    #[test]
    fn what_is_not_kept_is_forgotten_at_once() {
        let (mut shunned, mut now) = (Shunned::new(MOST), at(100));
        for key in [7, 8] {
            fail(&mut shunned, key, 3, 0, &mut now);
        }
        let now = &mut (now + Duration::from_secs(1));
        assert!(shunned.insert(8, *now) && shunned.insert(7, *now));
        shunned.retain(|key| key != 7);
        assert_eq!((pause(&shunned, 7, *now), pause(&shunned, 8, *now)), (0, 8));
        assert_eq!(fail(&mut shunned, 7, 2, 0, now), [1, 2]);
    }

    #[test]
    fn when_there_are_too_many_none_is_added_and_those_there_are_go_on() {
        let mut shunned = Shunned::new(MOST);
        let (now, keys) = (at(100), 0..MOST as u32);
        assert!(keys.clone().all(|key| shunned.insert(key, now)));
        assert!(!shunned.insert(9, now) && !shunned.postpone(9, now) && !shunned.contains(9, now));
        assert!(shunned.insert(3, now));
        assert_eq!((pause(&shunned, 3, now), pause(&shunned, 0, now)), (2, 1));
        // One that has failed has its place for another minute, one that only waited has not.
        let now = at(101);
        assert!(!shunned.insert(9, now) && shunned.postpone(0, now));
        let now = at(102);
        assert!(shunned.insert(9, now) && shunned.contains(9, now) && !shunned.contains(0, now));
        let now = at(161);
        assert!(keys.skip(1).take(2).all(|key| !shunned.contains(key, now)) && shunned.insert(5, now) && shunned.insert(6, now));
    }
}

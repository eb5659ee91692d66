//! The knee of a device's latency curve, found while it works: how many operations it needs at once for its throughput. More of them only
//! wait in it, where no scheduler can put anything before them.
//!
//! ```text
//!   Few: four at once, until sixteen have ended ─▶ least latency        Full: windows in which something always waited ─▶ greatest throughput
//!     ▲──────────────── after 16,384 operations ─────────────────────────────┘
//! ```
//! By Little's law throughput × latency is how many are under way. The greatest throughput at the least latency is what the device works on
//! when nothing waits in it, and twice that many keep it at work although they come and go at random. (So does BBR with a network: Cardwell
//! and others, "BBR: congestion-based congestion control", ACM Queue 14(5), 2016.) A depth that is too small shows: twice as many bring more
//! throughput, which asks for more again, so it grows with each window until it brings nothing.

use crate::time::{Duration, Instant};

/// As many at once have the least latency, nearly; and more than one costs little throughput meanwhile.
const FEW: usize = 4;
const FEW_ENDS: u64 = 16;
/// After so many the least latency is looked for again: a thousandth of the time.
const EVERY: u64 = 16_384;
/// Ends in a window, at least; and windows of which the best counts.
const WINDOW_ENDS: u64 = 64;
const WINDOWS: usize = 8;
/// Times the operations that the device works on.
const GAIN: f64 = 2.0;

enum Phase {
    /// So many have ended since the rest had, and how long they took together.
    Few {
        since: Option<Instant>,
        ends: u64,
        time: Duration,
    },
    Full {
        since: Instant,
        ends: u64,
        waited: bool,
        left: u64,
    },
}

pub struct Knee {
    /// The device takes no more.
    most: usize,
    depth: usize,
    phase: Phase,
    /// On average.
    least: Duration,
    /// Ends a second of the last windows.
    paces: [f64; WINDOWS],
    next: usize,
}

impl Knee {
    pub fn new(most: usize) -> Knee {
        Knee { most, depth: FEW, phase: FEW_BEGINS, least: Duration::ZERO, paces: [0.0; WINDOWS], next: 0 }
    }

    /// So many at once.
    pub fn depth(&self) -> usize {
        match self.phase {
            Phase::Few { .. } => FEW.min(self.most),
            Phase::Full { .. } => self.depth.clamp(1, self.most),
        }
    }

    /// An operation that began at `began` has ended; so many are still under way, and others wait, or not.
    pub fn end(&mut self, now: Instant, began: Instant, under_way: usize, others_wait: bool) {
        match &mut self.phase {
            Phase::Few { since, ends, time } => {
                let Some(since) = *since else {
                    *since = (under_way < FEW).then_some(now);
                    return;
                };
                if began < since {
                    return;
                }
                (*ends, *time) = (*ends + 1, Duration(time.0 + now.since(began).0));
                if *ends == FEW_ENDS {
                    self.least = Duration(time.0 / FEW_ENDS);
                    self.depth = self.depth.max(2 * FEW);
                    self.phase = Phase::Full { since: now, ends: 0, waited: true, left: EVERY };
                }
            }
            Phase::Full { since, ends, waited, left } => {
                (*ends, *waited, *left) = (*ends + 1, *waited && others_wait, *left - 1);
                let (began, count, is_full, is_over) = (*since, *ends, *waited, *left == 0);
                if count >= WINDOW_ENDS.max(2 * self.depth as u64) {
                    (*since, *ends, *waited) = (now, 0, true);
                    if is_full {
                        self.learn(count as f64 * 1e9 / now.since(began).0.max(1) as f64);
                    }
                }
                if is_over {
                    self.phase = FEW_BEGINS;
                }
            }
        }
    }

    fn learn(&mut self, pace: f64) {
        self.paces[self.next] = pace;
        self.next = (self.next + 1) % WINDOWS;
        let greatest = self.paces.iter().copied().fold(0.0, f64::max);
        self.depth = ((GAIN * greatest * self.least.as_secs_f64()).ceil() as usize).max(2 * FEW);
    }
}

const FEW_BEGINS: Phase = Phase::Few { since: None, ends: 0, time: Duration::ZERO };

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// A closed loop on a device of so many parts that each take 100 µs, in turn: what depth is held after so many operations, and the
    /// throughput of the second half of them, over that of the parts.
    fn held(parts: usize, most: usize, operations: u64) -> (usize, f64) {
        let mut knee = Knee::new(most);
        let (mut now, mut under_way, mut free) = (Instant::ZERO, VecDeque::new(), vec![Instant::ZERO; parts]);
        let mut half = Instant::ZERO;
        for number in 0..operations {
            half = if number == operations / 2 { now } else { half };
            while under_way.len() < knee.depth() {
                let part = (number as usize + under_way.len()) % parts;
                free[part] = free[part].max(now) + Duration::from_micros(100);
                under_way.push_back((now, free[part]));
            }
            let (began, ended) = under_way.pop_front().expect("one is under way");
            now = now.max(ended);
            knee.end(now, began, under_way.len(), true);
        }
        (knee.depth(), (operations / 2) as f64 / (now.since(half).as_secs_f64() * parts as f64 * 10_000.0))
    }

    #[test]
    fn as_many_as_the_parts_need_and_not_many_more() {
        for parts in [4, 8, 16, 32, 100] {
            let (depth, throughput) = held(parts, 1_024, 15_000);
            // They end together, and a window may begin within such a burst.
            assert!((2 * parts..=2 * parts + parts / 3 + 8).contains(&depth), "{parts} parts: {depth}");
            assert!(throughput > 0.97, "{parts} parts: {throughput}");
        }
    }

    #[test]
    fn a_device_takes_no_more_than_it_takes() {
        assert_eq!(held(16, 20, 10_000).0, 20);
        assert_eq!(held(16, 1, 10_000).0, 1);
    }

    #[test]
    fn windows_in_which_nothing_waits_say_nothing() {
        let mut knee = Knee::new(1_024);
        for number in 0..2_000u64 {
            let now = Instant(number * 1_000_000);
            knee.end(now + Duration::from_micros(100), now, 0, false);
        }
        assert_eq!(knee.depth(), 2 * FEW);
    }

    #[test]
    fn a_device_that_has_become_quicker_is_given_more() {
        let mut knee = Knee::new(1_024);
        let mut depths = Vec::new();
        let mut now = Instant::ZERO;
        for time in [400, 100] {
            // Ends follow each other evenly; a read takes 1 ms.
            for _ in 0..40_000 {
                now = now + Duration::from_micros(time);
                knee.end(now, Instant(now.0.saturating_sub(1_000_000)), 0, true);
            }
            depths.push(knee.depth());
        }
        assert_eq!(depths, [8, 20]);
    }
}

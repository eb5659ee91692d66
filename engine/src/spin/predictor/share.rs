//! Share: a number of fixed timeouts, each with a weight; the timeout used is their weighted mean. After each gap a timeout loses weight for
//! the energy that it would have used beyond the least possible, and all of them share a little of what was lost, so that one that was bad
//! for long can come back soon (Helmbold, Long, Sconyers and Sherrod, *Adaptive disk spin-down for mobile computers*, MONET 5, 2000).

use super::{Predictor, Price, SHORTEST, Terms};
use crate::time::{Duration, Instant};

/// As in the paper: experts, evenly from nothing to the break-even; learning rate 4; share rate 0.08.
const EXPERTS: usize = 25;
/// exp(-4 / 64): the weight left after a sixty-fourth of a loss. Powers of it are products, which are the same on every machine.
const KEPT: f64 = 0.939_413_062_813_475_8;
const UNSHARED: f64 = 0.92;
const STEPS: u64 = 64;

pub struct Share {
    experts: [(Duration, f64); EXPERTS],
    price: Price,
}

impl Share {
    pub fn new(price: Price) -> Self {
        let expert = |number: usize| (timeout(&price, number), 1.0 / EXPERTS as f64);
        Share { experts: std::array::from_fn(expert), price }
    }

    /// Energy beyond the least possible, in sixty-fourths of the largest that can be.
    fn loss(&self, gap: Duration, timeout: Duration) -> u64 {
        let least = self.price.extra(gap, Some(Duration::ZERO)).min(0);
        let excess = (self.price.extra(gap, Some(timeout)) - least).max(0) as u64;
        (excess * STEPS / (self.price.of_stop().max(1) as u64)).min(STEPS)
    }
}

/// Of the expert of that number.
fn timeout(price: &Price, number: usize) -> Duration {
    Duration(price.drive.pays(price.of_stop()).0 * number as u64 / (EXPERTS as u64 - 1))
}

fn power(base: f64, exponent: u64) -> f64 {
    (0..exponent).fold(1.0, |product, _| product * base)
}

impl Predictor for Share {
    fn timeout(&mut self, _began: Instant) -> Option<Duration> {
        let weight: f64 = self.experts.iter().map(|(_, weight)| weight).sum();
        let mean = self.experts.iter().map(|(timeout, weight)| timeout.0 as f64 * weight).sum::<f64>() / weight;
        Some(Duration(mean as u64).max(SHORTEST))
    }

    /// The experts stand for shares of the break-even, which is so much later.
    fn timeout_under(&mut self, began: Instant, terms: &Terms) -> Option<Duration> {
        let later = self.price.drive.pays(terms.start);
        self.timeout(began).map(|timeout| Duration(timeout.0 + later.0).max(terms.not_before))
    }

    fn learn(&mut self, gap: Duration) {
        let mut pool = 0.0;
        for index in 0..EXPERTS {
            let (timeout, weight) = self.experts[index];
            let loss = self.loss(gap, timeout);
            // A whole loss shares as much as the share rate; a part of one, that part of it.
            let shared = (1.0 - UNSHARED) * loss as f64 / STEPS as f64;
            let kept = weight * power(KEPT, loss);
            pool += kept * shared;
            self.experts[index].1 = kept * (1.0 - shared);
        }
        let total: f64 = self.experts.iter().map(|(_, weight)| weight).sum::<f64>() + pool;
        for (_, weight) in &mut self.experts {
            *weight = (*weight + pool / EXPERTS as f64) / total;
        }
    }

    /// The experts keep their weights: each stands for a share of the break-even.
    fn reprice(&mut self, price: Price) {
        self.price = price;
        self.experts.iter_mut().enumerate().for_each(|(number, expert)| expert.0 = timeout(&price, number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spin::Drive;

    fn share() -> Share {
        Share::new(Price { drive: Drive::DESKTOP, wait_mw: 0 })
    }

    fn seconds_after(gaps: &[u64]) -> f64 {
        let mut share = share();
        gaps.iter().for_each(|&gap| share.learn(Duration::from_secs(gap)));
        share.timeout(Instant::ZERO).unwrap().as_secs_f64()
    }

    #[test]
    fn long_gaps_make_it_quick_and_short_ones_slow() {
        assert!((9.0..9.6).contains(&seconds_after(&[])), "half the break-even at first: {}", seconds_after(&[]));
        assert!(seconds_after(&[300; 20]) < 1.5, "{}", seconds_after(&[300; 20]));
        assert!(seconds_after(&[15; 20]) > 15.0, "{}", seconds_after(&[15; 20]));
    }

    #[test]
    fn it_changes_its_mind_within_a_few_gaps() {
        let mut gaps = vec![300; 100];
        gaps.extend([15; 12]);
        assert!(seconds_after(&gaps) > 10.0, "{}", seconds_after(&gaps));
    }
}

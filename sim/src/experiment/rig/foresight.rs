//! Predictors that know all gaps ahead, to hold others against: the timeout that is best for all of them together, and the best for each.

use std::collections::VecDeque;
use tidegate_engine::spin::predictor::{Predictor, Price};
use tidegate_engine::time::{Duration, Instant};

/// The one timeout with which a drive uses the least energy over all these gaps.
pub struct Hindsight(Option<Duration>);

impl Hindsight {
    pub fn new(gaps: &[Duration], price: &Price) -> Self {
        let mut sorted = gaps.to_vec();
        sorted.sort_unstable();
        // The best timeout is nothing, or the length of a gap: whatever lies between two lengths only waits longer.
        let candidates = [Duration::ZERO].into_iter().chain(sorted.iter().copied());
        let (mut best, mut least) = (None, 0);
        let mut rest: i64 = sorted.iter().map(|&gap| price.extra(gap, Some(Duration::ZERO))).sum();
        let mut longer = sorted.len() as i64;
        let mut last = Duration::ZERO;
        for (index, timeout) in candidates.enumerate() {
            // Of the gaps that are longer, each rests so much less; the one that has just been reached does not rest at all.
            rest += longer * price.saving(Duration(timeout.0 - last.0));
            if index > 0 {
                rest -= price.of_stop();
                longer -= 1;
            }
            last = timeout;
            if rest < least {
                (best, least) = (Some(timeout), rest);
            }
        }
        Hindsight(best)
    }
}

impl Predictor for Hindsight {
    fn timeout(&mut self, _began: Instant) -> Option<Duration> {
        self.0
    }
    fn learn(&mut self, _gap: Duration) {}
    // It was told the price that is.
    fn reprice(&mut self, _price: Price) {}
}

/// Stops the drive at once in every gap that pays, and in no other.
pub struct Optimum {
    gaps: VecDeque<Duration>,
    price: Price,
}

impl Optimum {
    pub fn new(gaps: &[Duration], price: Price) -> Self {
        Optimum { gaps: gaps.iter().copied().collect(), price }
    }
}

impl Predictor for Optimum {
    fn timeout(&mut self, _began: Instant) -> Option<Duration> {
        let gap = self.gaps.front()?;
        (self.price.extra(*gap, Some(Duration::ZERO)) < 0).then_some(Duration::ZERO)
    }
    fn learn(&mut self, _gap: Duration) {
        self.gaps.pop_front();
    }
    fn reprice(&mut self, price: Price) {
        self.price = price;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_engine::spin::Drive;

    #[test]
    fn no_timeout_of_a_grid_uses_less_than_hindsight() {
        let price = Price { drive: Drive::DESKTOP, wait_mw: 6_100 };
        for gaps in [vec![20; 9], vec![5, 300, 7, 200, 12, 40, 33, 1_000], vec![30, 31, 29, 60, 2, 2, 2], vec![400; 5]] {
            let gaps: Vec<Duration> = gaps.into_iter().map(Duration::from_secs).collect();
            let cost = |timeout| gaps.iter().map(|&gap| price.extra(gap, timeout)).sum::<i64>();
            let Hindsight(best) = Hindsight::new(&gaps, &price);
            let grid = (0..4_000).map(|tenths| cost(Some(Duration::from_millis(tenths * 250)))).min().unwrap().min(0);
            assert!(cost(best) <= grid, "{best:?}: {} against {grid}", cost(best));
        }
    }
}

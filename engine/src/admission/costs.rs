//! Costs: how long a missed block keeps the origin busy, scattered or as part of a long sequence. A disk that is asked for nothing else gives a
//! sequence at hundreds of times the pace of scattered blocks; one whose head others move away meanwhile, and a network volume, at the same.

use crate::time::Duration;

/// What a scattered miss costs; anything else is told as a share of it.
pub const MISS_COST: u64 = 256;

/// Of reads lately, in nanoseconds a block; nothing before the first.
#[derive(Debug, Default)]
pub struct Costs {
    scattered: Option<u64>,
    sequential: Option<u64>,
}

impl Costs {
    /// The origin was busy for so long with a read of so many blocks.
    pub fn learn(&mut self, blocks: u64, is_sequential: bool, busy: Duration) {
        let mean = if is_sequential { &mut self.sequential } else { &mut self.scattered };
        let time = busy.0 / blocks.max(1);
        *mean = Some(mean.map_or(time, |mean| mean - mean / 16 + time / 16));
    }

    /// Of a missed block.
    pub fn of(&self, is_sequential: bool) -> u64 {
        match (is_sequential, self.sequential, self.scattered) {
            (true, Some(sequential), Some(scattered)) => (MISS_COST * sequential / scattered.max(1)).min(MISS_COST),
            (true, Some(_), None) | (true, None, _) => 0,
            (false, ..) => MISS_COST,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_costs_what_it_takes_and_never_more_than_scattered_blocks() {
        let mut costs = Costs::default();
        assert_eq!((costs.of(false), costs.of(true)), (MISS_COST, 0), "nothing is known");
        costs.learn(16, true, Duration::from_micros(800));
        assert_eq!(costs.of(true), 0, "it is not known beside what");
        costs.learn(1, false, Duration::from_millis(8));
        assert_eq!(costs.of(true), MISS_COST / 160);
        (0..200).for_each(|_| costs.learn(1, true, Duration::from_millis(4)));
        assert!(costs.of(true).abs_diff(MISS_COST / 2) <= 1, "{}", costs.of(true));
        (0..200).for_each(|_| costs.learn(1, true, Duration::from_millis(40)));
        assert_eq!((costs.of(false), costs.of(true)), (MISS_COST, MISS_COST));
    }
}

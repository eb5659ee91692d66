//! Latencies: 64 buckets to each power of two, so that a percentile is right within 1.6 %. Count, sum and largest are exact.

use tidegate_engine::time::Duration;

/// Buckets of a power of two.
const PARTS: usize = 64;
const PARTS_BITS: u32 = PARTS.ilog2();

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Latencies {
    buckets: Vec<u64>,
    count: u64,
    sum: u128,
    max: u64,
}

impl Latencies {
    pub fn record(&mut self, latency: Duration) {
        let bucket = bucket(latency.0);
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += 1;
        self.count += 1;
        self.sum += u128::from(latency.0);
        self.max = self.max.max(latency.0);
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn max(&self) -> Duration {
        Duration(self.max)
    }

    /// Rounded down; zero of nothing.
    pub fn mean(&self) -> Duration {
        Duration(self.sum.checked_div(u128::from(self.count)).unwrap_or(0) as u64)
    }

    /// What so many of a thousand are not slower than: the middle of its bucket, and never above the largest.
    pub fn per_mille(&self, share: u64) -> Duration {
        let rank = (u128::from(self.count) * u128::from(share)).div_ceil(1000).max(1) as u64;
        let mut seen = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Duration(middle(index).min(self.max));
            }
        }
        Duration::ZERO
    }

    /// These and others together.
    pub fn with(mut self, other: &Latencies) -> Latencies {
        self.buckets.resize(self.buckets.len().max(other.buckets.len()), 0);
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(count, more)| *count += more);
        Latencies { count: self.count + other.count, sum: self.sum + other.sum, max: self.max.max(other.max), ..self }
    }
}

fn bucket(ns: u64) -> usize {
    if ns < PARTS as u64 {
        return ns as usize;
    }
    let power = ns.ilog2() - PARTS_BITS;
    PARTS * power as usize + (ns >> power) as usize
}

fn middle(bucket: usize) -> u64 {
    if bucket < 2 * PARTS {
        return bucket as u64;
    }
    let power = (bucket / PARTS - 1) as u32;
    let low = ((bucket % PARTS + PARTS) as u64) << power;
    low + (1 << power) / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chance::Chance;

    #[test]
    fn percentiles_are_right_within_two_per_cent() {
        let mut chance = Chance::new(1, "latencies");
        let mut all: Vec<u64> = (0..20_000).map(|_| chance.spread(1, 1 << 40)).collect();
        let mut latencies = Latencies::default();
        all.iter().for_each(|&ns| latencies.record(Duration(ns)));
        all.sort_unstable();
        for share in [1, 10, 500, 900, 990, 999, 1000] {
            let exact = all[(all.len() * share as usize).div_ceil(1000) - 1];
            let found = latencies.per_mille(share).0;
            assert!(found.abs_diff(exact) * 100 <= exact * 2, "{share}: {found}, exactly {exact}");
        }
        assert_eq!(latencies.max().0, *all.last().unwrap());
        assert_eq!(latencies.mean().0, (all.iter().map(|&ns| u128::from(ns)).sum::<u128>() / 20_000) as u64);
    }

    #[test]
    fn every_value_has_its_bucket() {
        let mut last = 0;
        for ns in (0..5_000).chain((13..63).map(|power| 1 << power)).chain([u64::MAX]) {
            let bucket = bucket(ns);
            assert!(bucket >= last, "{ns}");
            assert!(u128::from(middle(bucket).abs_diff(ns)) * 64 <= u128::from(ns), "{ns}: {}", middle(bucket));
            last = bucket;
        }
    }

    #[test]
    fn two_sets_of_latencies_add_up() {
        let latencies = |values: &[u64]| {
            let mut latencies = Latencies::default();
            values.iter().for_each(|&ns| latencies.record(Duration(ns)));
            latencies
        };
        assert_eq!(latencies(&[1, 500]).with(&latencies(&[70_000])), latencies(&[1, 70_000, 500]));
        assert_eq!(latencies(&[]).per_mille(500), Duration::ZERO);
    }
}

//! What several findings need: medians, and how sure one is.

use crate::draw::Draw;
use crate::time::Duration;

/// How often a finding is made again from what was measured, drawn again; and from shuffled measurements.
pub const REPEATS: usize = 40;
pub const SHUFFLES: usize = 12;
/// A finding explains so many times as much as the best one from shuffled measurements.
pub const OVER_SHUFFLED: f64 = 1.5;

pub fn median(times: &[Duration]) -> Duration {
    quantile(times, 0.5)
}

pub fn quantile(times: &[Duration], share: f64) -> Duration {
    if times.is_empty() {
        return Duration::ZERO;
    }
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}

/// As many of them as there are, each drawn from all.
pub fn redrawn<T: Copy>(all: &[T], draw: &mut Draw) -> Vec<T> {
    all.iter().map(|_| all[draw.below(all.len() as u64) as usize]).collect()
}

/// In any order.
pub fn shuffle<T>(all: &mut [T], draw: &mut Draw) {
    for at in (1..all.len()).rev() {
        all.swap(at, draw.below(at as u64 + 1) as usize);
    }
}

/// Measurements as sums: how many, of what, and products with what a candidate says of them. So a candidate that says the same of many places
/// is judged at the cost of one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sums {
    count: f64,
    measured: f64,
    said: f64,
    said_squared: f64,
    product: f64,
}

impl Sums {
    /// `count` measurements with the sum `measured`, of which the candidate says `said`.
    pub fn add(&mut self, count: f64, measured: f64, said: f64) {
        self.count += count;
        self.measured += measured;
        self.said += count * said;
        self.said_squared += count * said * said;
        self.product += measured * said;
    }

    /// Least squares: how much of the measured goes with one of the said, and how much of the variation that explains.
    pub fn fit(&self) -> Fit {
        if self.count == 0.0 {
            return Fit::default();
        }
        let mean = self.measured / self.count;
        let product = self.product - self.said * mean;
        let squares = self.said_squared - self.said * self.said / self.count;
        if squares <= 1e-9 * self.count {
            return Fit { start: mean, ..Fit::default() };
        }
        let slope = product / squares;
        Fit { start: mean - slope * self.said / self.count, slope, explained: product * product.max(0.0) / squares }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fit {
    /// Where the candidate says nothing.
    pub start: f64,
    pub slope: f64,
    /// Sum of squares; 0 of a slope that falls.
    pub explained: f64,
}

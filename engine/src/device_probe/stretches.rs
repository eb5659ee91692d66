//! Stretches: each part has an equal, contiguous stretch of the addresses. Two reads anywhere meet only if both lie in one stretch.

use super::evidence::{self, Fit, OVER_SHUFFLED, REPEATS, SHUFFLES, Sums};
use super::{Pair, comb};
use crate::draw::Draw;
use crate::time::Duration;

const COUNT_MAX: u64 = 64;
/// Of a read alone: less is nothing.
const COST_MIN: f64 = 0.05;

/// Equal stretches of the addresses that work side by side: what [`crate::queue`] calls lanes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stretches {
    pub count: u64,
    /// How much longer two reads of one stretch take than two of different ones, on average.
    pub cost: Duration,
}

/// How many stretches there are, and how sure that is. None: nothing that shuffled times would not show.
pub fn find(pairs: &[Pair], atoms: u64, alone: Duration, draw: &mut Draw) -> Option<(Stretches, f64)> {
    let extras: Vec<(u64, u64, f64)> = pairs.iter().map(|pair| (pair.first, pair.second, comb::extra(pair, alone))).collect();
    let (count, found) = best(&extras, atoms)?;
    let mut shuffled = extras.clone();
    let mut by_chance = 0f64;
    for _ in 0..SHUFFLES {
        let mut times: Vec<f64> = shuffled.iter().map(|(_, _, extra)| *extra).collect();
        evidence::shuffle(&mut times, draw);
        shuffled.iter_mut().zip(times).for_each(|(pair, time)| pair.2 = time);
        by_chance = by_chance.max(best(&shuffled, atoms).map_or(0.0, |(_, fit)| fit.explained));
    }
    if found.explained < OVER_SHUFFLED * by_chance || found.slope < COST_MIN {
        return None;
    }
    let again = (0..REPEATS).filter(|_| best(&evidence::redrawn(&extras, draw), atoms).is_some_and(|(again, _)| again == count)).count();
    let cost = Duration((found.slope * alone.0 as f64) as u64);
    Some((Stretches { count, cost }, again as f64 / REPEATS as f64))
}

fn best(extras: &[(u64, u64, f64)], atoms: u64) -> Option<(u64, Fit)> {
    let fit = |count: u64| {
        let stretch = |at: u64| (u128::from(at) * u128::from(count) / u128::from(atoms)) as u64;
        let mut sums = Sums::default();
        extras.iter().for_each(|&(first, second, extra)| sums.add(1.0, extra, f64::from(stretch(first) == stretch(second))));
        (count, sums.fit())
    };
    (2..=COUNT_MAX).map(fit).max_by(|one, other| one.1.explained.total_cmp(&other.1.explained))
}

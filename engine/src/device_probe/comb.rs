//! Interleaving: neighbouring pieces of the addresses lie on different parts, in turn. Two reads meet on one part when their distance is a
//! multiple of the period, or less than a piece away from it.
//!
//! ```text
//!   extra time of two reads over their distance            piece   = how wide a tooth is, up or down
//!   ▲ \        /\        /\        /                       period  = from tooth to tooth
//!   │  \______/  \______/  \______/                        width   = period / piece: so many parts
//!     0      period   2 periods …
//! ```
//! The place of the first read is random, so a pair of distance `d` meets with the chance `1 − d / piece`: a triangle, wherever the pieces
//! begin. All pieces and widths are tried, and the comb that explains most of the variation wins. The tooth at 0 does not count: near
//! neighbours may meet in a page register, in a read-ahead, or in a cache.

use super::evidence::{self, Fit, OVER_SHUFFLED, REPEATS, SHUFFLES, Sums};
use super::{DISTANCES, Pair, READ_ATOMS};
use crate::block::ATOM_BYTES;
use crate::draw::Draw;
use crate::time::Duration;

/// The longest period, in distances: four teeth are seen at least.
const PERIOD_MAX: u64 = DISTANCES / 4;
const WIDTH_MAX: u64 = 256;
/// Distances are in groups of the longest period, and of each a straight line is taken away: what changes slowly is no comb.
const GROUP: usize = PERIOD_MAX as usize;
/// Of a read alone: less is nothing.
const COST_MIN: f64 = 0.05;

/// How addresses are spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interleave {
    /// Bytes that lie together.
    pub piece_bytes: u64,
    /// Pieces until the first part has its turn again.
    pub width: u64,
    /// How much longer two reads take that meet.
    pub cost: Duration,
    /// How far cost was seen in the nearer and in the farther half of the distances, of the whole cost, in per cent: a comb goes on.
    pub halves: [i64; 2],
}

impl Interleave {
    pub fn period_bytes(&self) -> u64 {
        self.piece_bytes * self.width
    }
}

/// How much longer two reads of a distance took than one alone: for pictures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tooth {
    pub distance_bytes: u64,
    pub extra: i64,
    pub pairs: u64,
}

/// Extra times by distance, in shares of a read alone.
#[derive(Clone)]
struct Extras {
    /// Pairs and the sum of their extra times, by the distance in reads.
    by_distance: Vec<(f64, f64)>,
}

impl Extras {
    fn new(extras: &[(u64, f64)]) -> Extras {
        let mut by_distance = vec![(0.0, 0.0); DISTANCES as usize + 1];
        for &(distance, extra) in extras {
            let (count, sum) = &mut by_distance[distance as usize];
            (*count, *sum) = (*count + 1.0, *sum + extra);
        }
        by_distance.chunks_mut(GROUP).for_each(straighten);
        Extras { by_distance }
    }

    /// Sums by the distance's rest of a period.
    fn folded(&self, period: u64) -> Vec<(f64, f64)> {
        let mut folded = vec![(0.0, 0.0); period as usize];
        for chunk in self.by_distance.chunks(period as usize) {
            for (rest, (count, sum)) in folded.iter_mut().zip(chunk) {
                (rest.0, rest.1) = (rest.0 + count, rest.1 + sum);
            }
        }
        folded
    }

    /// What a comb explains.
    fn fit(&self, piece: u64, folded: &[(f64, f64)]) -> Fit {
        let mut sums = Sums::default();
        for (rest, &(count, sum)) in folded.iter().enumerate() {
            let first = if (rest as u64) < piece { self.by_distance[rest] } else { (0.0, 0.0) };
            sums.add(count - first.0, sum - first.1, tooth(piece, folded.len() as u64, rest as u64));
        }
        sums.fit()
    }

    fn best(&self) -> Option<Comb> {
        let mut best: Option<Comb> = None;
        for period in 2..=PERIOD_MAX {
            let pieces = pieces().filter(|piece| period.is_multiple_of(*piece) && (2..=WIDTH_MAX).contains(&(period / piece)));
            let mut folded = None;
            for piece in pieces {
                let fit = self.fit(piece, folded.get_or_insert_with(|| self.folded(period)));
                if best.is_none_or(|best| fit.explained > best.fit.explained) {
                    best = Some(Comb { piece, period, fit });
                }
            }
        }
        best
    }
}

/// Takes away the straight line that fits best.
fn straighten(group: &mut [(f64, f64)]) {
    let mut sums = Sums::default();
    group.iter().enumerate().for_each(|(at, (count, sum))| sums.add(*count, *sum, at as f64));
    let line = sums.fit();
    group.iter_mut().enumerate().for_each(|(at, (count, sum))| *sum -= *count * (line.start + line.slope * at as f64));
}

/// Lengths in reads.
#[derive(Clone, Copy, Debug)]
struct Comb {
    piece: u64,
    period: u64,
    fit: Fit,
}

/// How likely two reads meet whose distance leaves such a rest of the period.
fn tooth(piece: u64, period: u64, rest: u64) -> f64 {
    let away = rest.min(period - rest);
    (1.0 - away as f64 / piece as f64).max(0.0)
}

/// Pages are powers of two, and TLC programs three of them at once.
fn pieces() -> impl Iterator<Item = u64> {
    (0..10).flat_map(|power| [1 << power, 3 << power])
}

/// A comb, and how sure it is. None: nothing that shuffled distances would not show.
pub fn find(pairs: &[Pair], alone: Duration, draw: &mut Draw) -> Option<(Interleave, f64)> {
    let extras: Vec<(u64, f64)> = pairs.iter().map(|pair| (distance(pair), extra(pair, alone))).collect();
    let found = Extras::new(&extras).best()?;
    let mut shuffled = extras.clone();
    let by_chance = (0..SHUFFLES)
        .filter_map(|_| {
            let mut times: Vec<f64> = shuffled.iter().map(|(_, extra)| *extra).collect();
            evidence::shuffle(&mut times, draw);
            shuffled.iter_mut().zip(times).for_each(|(pair, time)| pair.1 = time);
            Extras::new(&shuffled).best()
        })
        .map(|comb| comb.fit.explained)
        .fold(0.0, f64::max);
    let halves = halves(&extras, found);
    let goes_on = halves.iter().all(|half| *half > found.fit.slope / 2.0);
    if found.fit.explained < OVER_SHUFFLED * by_chance || found.fit.slope < COST_MIN || !goes_on {
        return None;
    }
    let same = (0..REPEATS)
        .filter_map(|_| Extras::new(&evidence::redrawn(&extras, draw)).best())
        .filter(|again| (again.piece, again.period) == (found.piece, found.period))
        .count();
    let interleave = Interleave {
        piece_bytes: found.piece * READ_ATOMS * ATOM_BYTES,
        width: found.period / found.piece,
        cost: Duration((found.fit.slope * alone.0 as f64) as u64),
        halves: halves.map(|half| (half / found.fit.slope * 100.0).round() as i64),
    };
    Some((interleave, same as f64 / REPEATS as f64))
}

/// What the comb costs in the nearer and in the farther half of the distances.
fn halves(extras: &[(u64, f64)], comb: Comb) -> [f64; 2] {
    [false, true].map(|is_far| {
        let half: Vec<(u64, f64)> = extras.iter().filter(|(distance, _)| (*distance > DISTANCES / 2) == is_far).copied().collect();
        let extras = Extras::new(&half);
        extras.fit(comb.piece, &extras.folded(comb.period)).slope
    })
}

fn distance(pair: &Pair) -> u64 {
    pair.first.abs_diff(pair.second) / READ_ATOMS
}

/// How much longer than a read alone, in shares of that; what takes much longer was held up by something else.
pub fn extra(pair: &Pair, alone: Duration) -> f64 {
    let alone = alone.0.max(1) as f64;
    ((pair.time.0 as f64 - alone) / alone).clamp(-1.0, 2.0)
}

/// Extra times over the distance: within one period if there is one, else over all distances, `columns` of them.
pub fn picture(pairs: &[Pair], alone: Duration, interleave: Option<&Interleave>, columns: u64) -> Vec<Tooth> {
    let read_bytes = READ_ATOMS * ATOM_BYTES;
    let range = interleave.map_or(DISTANCES, |interleave| interleave.period_bytes() / read_bytes);
    let columns = columns.min(range);
    let mut sums = vec![(0u64, 0.0); columns as usize];
    for pair in pairs {
        let rest = distance(pair) % range;
        let (count, sum) = &mut sums[(rest * columns / range) as usize];
        (*count, *sum) = (*count + 1, *sum + extra(pair, alone));
    }
    let teeth = sums.iter().enumerate().filter(|(_, (count, _))| *count > 0);
    teeth
        .map(|(column, &(pairs, sum))| Tooth {
            distance_bytes: column as u64 * range / columns * read_bytes,
            extra: (sum / pairs as f64 * alone.0 as f64) as i64,
            pairs,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALONE: Duration = Duration::from_micros(100);

    /// Pairs at random distances that take as long as `time` says, in microseconds.
    fn pairs(mut time: impl FnMut(u64, u64, &mut Draw) -> u64) -> Vec<Pair> {
        let mut draw = Draw::new(7);
        let one = |_| {
            let (first, distance) = (draw.below(1 << 20), 1 + draw.below(DISTANCES));
            let time = Duration::from_micros(time(first, distance, &mut draw));
            Pair { first: first * READ_ATOMS, second: (first + distance) * READ_ATOMS, time }
        };
        (0..20_000).map(one).collect()
    }

    fn found(pairs: &[Pair]) -> Option<(u64, u64)> {
        find(pairs, ALONE, &mut Draw::new(1)).map(|(found, _)| (found.piece_bytes >> 10, found.width))
    }

    #[test]
    fn every_interleave_is_found_through_noise_and_wherever_it_begins() {
        for (piece, width, begins) in [(1, 20, 0), (4, 2, 3), (8, 16, 5), (16, 32, 7), (48, 8, 11), (256, 8, 100)] {
            let part = |at: u64| (at + begins) / piece % width;
            let measured = pairs(|first, distance, draw| {
                let met = part(first) == part(first + distance);
                100 + 70 * u64::from(met) + draw.below(60)
            });
            assert_eq!(found(&measured), Some((4 * piece, width)), "{piece} × {width}");
        }
    }

    #[test]
    fn what_is_no_comb_is_not_taken_for_one() {
        assert_eq!(found(&pairs(|_, _, draw| 80 + draw.below(40))), None, "noise");
        assert_eq!(found(&pairs(|_, _, draw| 80 + 20 * u64::from((1 + draw.below(1_000)).ilog2().pow(2)))), None, "a heavy tail");
        assert_eq!(found(&pairs(|_, distance, draw| 100 + distance / 100 + draw.below(40))), None, "the farther the slower");
        assert_eq!(found(&pairs(|_, distance, draw| 120 - distance / 200 + draw.below(40))), None, "the nearer the slower");
        assert_eq!(found(&pairs(|_, distance, draw| 30 + 70 * u64::from(distance > 32) + draw.below(20))), None, "a read-ahead of 128 KiB");
        assert_eq!(
            found(&pairs(|_, distance, draw| 100 + 90 * u64::from(distance < 16) + draw.below(20))),
            None,
            "neighbours in each other's way"
        );
    }
}

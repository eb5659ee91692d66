//! Throughput and latency over depth. As long as there are parts without work, more reads under way are more throughput; from the knee
//! on they only wait.
//!
//! ```text
//!   throughput ▲        ___________        latency ▲            /
//!              │      /                            │          /
//!              │    /                              │_________/
//!                      knee      depth                      knee
//! ```

use super::Sample;
use super::evidence::REPEATS;
use crate::draw::Draw;
use crate::time::Duration;

pub const DEPTHS: [usize; 14] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128];
/// Fewer depths are no curve.
pub const DEPTHS_MIN: usize = 6;
/// Each depth's time is cut into so many slices, which tell how much it varies.
pub const SLICES: usize = 8;
/// The knee has so much of the greatest throughput.
const PLATEAU: f64 = 0.95;
/// The greatest depth has at most so many times the throughput of half of it, if that has stopped to grow.
const STILL: f64 = 1.08;
/// Two knees that lie within so much of each other are the same.
const SAME: f64 = 0.25;

/// One depth.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    pub depth: usize,
    /// Reads a second.
    pub throughput: f64,
    pub mean: Duration,
    pub p99: Duration,
    slices: Vec<f64>,
}

impl Point {
    /// From reads of which `depth` were under way at any time, but for the beginning and the end.
    pub fn new(depth: usize, reads: &[Sample]) -> Point {
        let mut ends: Vec<u64> = reads.iter().map(|read| read.ended.0).collect();
        ends.sort_unstable();
        let steady = &ends[depth - 1..ends.len() - depth];
        let slices: Vec<f64> = (0..SLICES)
            .map(|slice| (slice * (steady.len() - 1) / SLICES, (slice + 1) * (steady.len() - 1) / SLICES))
            .filter(|(from, to)| steady[*to] > steady[*from])
            .map(|(from, to)| (to - from) as f64 * 1e9 / (steady[to] - steady[from]) as f64)
            .collect();
        let time = (steady[steady.len() - 1] - steady[0]).max(1);
        let latencies: Vec<Duration> = reads.iter().map(|read| read.latency()).collect();
        Point {
            depth,
            throughput: (steady.len() - 1) as f64 * 1e9 / time as f64,
            mean: Duration((latencies.iter().map(|latency| u128::from(latency.0)).sum::<u128>() / latencies.len() as u128) as u64),
            p99: super::evidence::quantile(&latencies, 0.99),
            slices,
        }
    }
}

/// From which depth on reads only wait.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Knee {
    /// The least depth with 95 % of the greatest throughput.
    pub depth: f64,
    /// Four fifths of all repeats lie between.
    pub low: f64,
    pub high: f64,
    /// The depth with the greatest throughput for its latency (Kleinrock's power): beyond it, more depth is more latency than throughput.
    pub power: usize,
}

/// The knee, and how sure it is. None: throughput still grows at the greatest depth.
pub fn find(curve: &[Point], draw: &mut Draw) -> Option<(Knee, f64)> {
    let throughputs: Vec<f64> = curve.iter().map(|point| point.throughput).collect();
    let depth = knee(curve, &throughputs)?;
    let mut repeats: Vec<Option<f64>> = (0..REPEATS)
        .map(|_| {
            let mean = |point: &Point| {
                let slices = super::evidence::redrawn(&point.slices, draw);
                if slices.is_empty() { point.throughput } else { slices.len() as f64 / slices.iter().map(|pace| 1.0 / pace).sum::<f64>() }
            };
            knee(curve, &curve.iter().map(mean).collect::<Vec<_>>())
        })
        .collect();
    let same = repeats.iter().flatten().filter(|again| (*again / depth - 1.0).abs() <= SAME).count();
    repeats.sort_unstable_by(|one, other| one.unwrap_or(f64::MAX).total_cmp(&other.unwrap_or(f64::MAX)));
    let bound = |at: usize| repeats[at].unwrap_or(depth);
    let power = curve.iter().zip(&throughputs).max_by(|one, other| {
        let power = |(point, pace): &(&Point, &f64)| *pace * *pace / point.depth as f64;
        power(one).total_cmp(&power(other))
    });
    let power = power.map_or(1, |(point, _)| point.depth);
    Some((Knee { depth, low: bound(REPEATS / 10), high: bound(REPEATS * 9 / 10), power }, same as f64 / REPEATS as f64))
}

/// Where the curve first has 95 % of its greatest throughput, between two depths along a straight line.
fn knee(curve: &[Point], throughputs: &[f64]) -> Option<f64> {
    if curve.len() < DEPTHS_MIN {
        return None;
    }
    let wanted = PLATEAU * throughputs.iter().copied().fold(0.0, f64::max);
    let at = throughputs.iter().position(|pace| *pace >= wanted)?;
    let last = throughputs.len() - 1;
    let half = curve.iter().rposition(|point| 2 * point.depth <= curve[last].depth)?;
    if at == last || throughputs[last] > STILL * throughputs[half] {
        return None;
    }
    if at == 0 {
        return Some(curve[0].depth as f64);
    }
    let [low, high] = [at - 1, at].map(|at| (curve[at].depth as f64, throughputs[at]));
    Some(low.0 + (high.0 - low.0) * (wanted - low.1) / (high.1 - low.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A closed loop of so many parts, each with a fixed time, without chance: throughput grows up to them, and no further.
    fn point(depth: usize, parts: usize) -> Point {
        let time = 100_000 * depth.max(parts) as u64 / parts as u64;
        let reads: Vec<Sample> = (0..depth as u64 * 40)
            .map(|number| {
                let round = number / depth as u64;
                let ended = round * time + time * (number % depth as u64 + 1) / depth as u64;
                Sample { began: Duration(ended.saturating_sub(time)), ended: Duration(ended) }
            })
            .collect();
        Point::new(depth, &reads)
    }

    #[test]
    fn the_knee_is_where_throughput_stops_to_grow() {
        for parts in [1, 2, 4, 16, 48] {
            let curve: Vec<Point> = DEPTHS.iter().map(|&depth| point(depth, parts)).collect();
            let (knee, sure) = find(&curve, &mut Draw::new(1)).expect("there is a knee");
            assert!((knee.depth / parts as f64 - 1.0).abs() < 0.1, "{parts} parts: {knee:?}");
            assert_eq!((knee.power, sure), (parts, 1.0));
        }
    }

    #[test]
    fn a_curve_that_still_grows_has_no_knee() {
        // Twice as many still bring more.
        for parts in [96, 1_000] {
            let curve: Vec<Point> = DEPTHS.iter().map(|&depth| point(depth, parts)).collect();
            assert_eq!(find(&curve, &mut Draw::new(1)), None, "{parts}");
        }
        let curve: Vec<Point> = DEPTHS.iter().map(|&depth| point(depth, 4)).collect();
        assert_eq!(find(&curve[..3], &mut Draw::new(1)), None, "three depths are no curve");
    }
}

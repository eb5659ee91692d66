//! Places that are not asked for evenly: by Zipf's law, or a hot part and a cold one. Drawn in one step by the alias method (M. Vose, 1991).

use crate::chance::Chance;

/// How places differ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Law {
    /// The i-th hottest place is asked for in proportion to 1 / i^theta.
    Zipf { theta: f64 },
    /// So many per cent of the requests go to so many per cent of the places.
    Hot { requests: u32, places: u32 },
}

/// The places of a load. Which of them are hot is the same for all loads of as many places.
#[derive(Clone, Debug)]
pub struct Skew {
    columns: Vec<Column>,
}

/// Below a 32-bit draw it stands for one place, else for another.
#[derive(Clone, Copy, Debug)]
struct Column {
    border: u32,
    below: u32,
    above: u32,
}

impl Skew {
    pub fn new(law: Law, places: u32) -> Skew {
        let mut chance = Chance::new(u64::from(places), "hot places");
        let weight = |rank: u32| match law {
            Law::Zipf { theta } => f64::from(rank + 1).powf(-theta),
            Law::Hot { requests, places: hot } => {
                let border = (u64::from(places) * u64::from(hot) / 100).clamp(1, u64::from(places) - 1) as u32;
                let (share, among) = if rank < border { (requests, border) } else { (100 - requests, places - border) };
                f64::from(share) / f64::from(among)
            }
        };
        let mut order: Vec<u32> = (0..places).collect();
        for place in (1..places as usize).rev() {
            order.swap(place, chance.below(place as u64 + 1) as usize);
        }
        let columns = columns((0..places).map(weight).collect());
        let place = |rank: usize| order[rank];
        let column = |(rank, &(border, other))| Column { border, below: place(rank), above: place(other as usize) };
        Skew { columns: columns.iter().enumerate().map(column).collect() }
    }

    pub fn draw(&self, chance: &mut Chance) -> u64 {
        let word = chance.word();
        let column = ((u128::from(word >> 32) * self.columns.len() as u128) >> 32) as usize;
        let Column { border, below, above } = self.columns[column];
        u64::from(if word as u32 <= border { below } else { above })
    }
}

/// Columns of equal height, each of at most two ranks: below which draw it stands for itself, and for which other one else.
fn columns(weights: Vec<f64>) -> Vec<(u32, u32)> {
    let mean = weights.iter().sum::<f64>() / weights.len() as f64;
    let mut heights: Vec<f64> = weights.iter().map(|weight| weight / mean).collect();
    let mut columns: Vec<(u32, u32)> = (0..heights.len() as u32).map(|rank| (u32::MAX, rank)).collect();
    let (mut low, mut high): (Vec<usize>, Vec<usize>) = (0..heights.len()).partition(|&rank| heights[rank] < 1.0);
    while let (Some(&short), Some(&tall)) = (low.last(), high.last()) {
        low.pop();
        columns[short] = ((heights[short] * f64::from(u32::MAX)) as u32, tall as u32);
        heights[tall] -= 1.0 - heights[short];
        if heights[tall] < 1.0 {
            high.pop();
            low.push(tall);
        }
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(law: Law, places: u32) -> Vec<u64> {
        let mut chance = Chance::new(7, "skew");
        let skew = Skew::new(law, places);
        let mut counts = vec![0u64; places as usize];
        (0..1_000_000).for_each(|_| counts[skew.draw(&mut chance) as usize] += 1);
        counts.sort_unstable_by(|a, b| b.cmp(a));
        counts
    }

    #[test]
    fn the_second_hottest_place_is_asked_for_half_as_often_as_the_hottest() {
        let counts = counts(Law::Zipf { theta: 1.0 }, 1_000);
        let ratio = counts[0] as f64 / counts[1] as f64;
        assert!((1.95..2.05).contains(&ratio), "{ratio}");
        assert!(counts[999] > 0);
    }

    #[test]
    fn four_fifths_go_to_a_fifth() {
        let counts = counts(Law::Hot { requests: 81, places: 20 }, 1_000);
        let hot: u64 = counts[..200].iter().sum();
        assert!((808_000..812_000).contains(&hot), "{hot}");
    }
}

//! How long destaging takes, and so what a drain has left in time.
//!
//! An origin set of which much is dirty costs its origin bandwidth, one with a block here and there a seek for each. So each **density** (dirty
//! blocks of an origin set, by powers of two) has a price per block, told as a multiple of what it is at an ordinary disk, and learned from
//! the batches that went home. Densities next to each other are alike, and so are all of them a little: a batch tells most about what was in
//! it, and something about what has not been seen yet. (It is a Kalman filter over the logarithms of the multiples.) Prices drift: a batch of
//! long ago counts for little, so that clients who take their share of the origin raise them, and lower them again.

use crate::time::Duration;

/// Blocks of an origin set are at most 2^11; and zeroed ranges, in pieces.
const KINDS: usize = 13;
const ZEROS: usize = 12;
/// Of an ordinary disk (7,200 rpm): to write a block where the head is, to get to the next one anywhere, to pass over all of a set, to zero
/// 32 MiB.
const BLOCK_NS: f64 = 33e3;
const SEEK_NS: f64 = 1.7e6;
const PASS_NS: f64 = 8.3e6;
const ZERO_NS: f64 = 250e6;
/// From here on a set of 1 MiB counts as full: its price is bandwidth.
const FULL: usize = 8;
/// As far as an origin that nobody has seen may be from that, as a logarithm: five times as slow or as quick.
const DOUBT: f64 = 1.6;
/// How much a kind tells of the next one, of that behind it the square, and so on.
const ALIKE: f64 = 0.9;
/// A batch of the same takes as long as the one before, give or take this part. A short one tells less: it has a flush of its own as well.
const NOISE: f64 = 0.1;
const FLUSH_NS: f64 = 100e6;
/// From batch to batch prices drift by this part.
const DRIFT: f64 = 0.1;

/// What is to go home: dirty blocks by the density of their origin sets, and pieces of zeroed ranges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work([u64; KINDS]);

impl Work {
    /// An origin set with so many dirty blocks.
    pub fn add_set(&mut self, dirty: u64) {
        if dirty > 0 {
            self.0[(dirty.ilog2() as usize).min(ZEROS - 1)] += dirty;
        }
    }

    pub fn add_zeros(&mut self, pieces: u64) {
        self.0[ZEROS] += pieces;
    }

    /// What each kind costs at an ordinary disk, in nanoseconds.
    fn at_ordinary_disk(&self) -> [f64; KINDS] {
        std::array::from_fn(|kind| self.0[kind] as f64 * ordinary(kind))
    }
}

/// What work costs at this origin, as far as it is known.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Of the prices of an ordinary disk.
    multiples: [f64; KINDS],
    /// Covariances of their logarithms.
    doubts: [[f64; KINDS]; KINDS],
}

impl Default for Pace {
    fn default() -> Self {
        let doubt = |kind, other| DOUBT * DOUBT * alike(kind, other);
        Pace { multiples: [1.0; KINDS], doubts: matrix(doubt) }
    }
}

fn matrix(value: impl Fn(usize, usize) -> f64) -> [[f64; KINDS]; KINDS] {
    std::array::from_fn(|kind| std::array::from_fn(|other| value(kind, other)))
}

fn dot(one: &[f64; KINDS], other: &[f64; KINDS]) -> f64 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}

fn alike(kind: usize, other: usize) -> f64 {
    ALIKE.powi(kind.abs_diff(other) as i32)
}

/// The price at an ordinary disk: there is a seek for each block, or the head passes over all of the set.
fn ordinary(kind: usize) -> f64 {
    match kind {
        ZEROS => ZERO_NS,
        FULL.. => BLOCK_NS,
        _ => BLOCK_NS + SEEK_NS.min(PASS_NS / f64::from(1 << kind)),
    }
}

impl Pace {
    /// How long this takes.
    pub fn time_of(&self, work: &Work) -> Duration {
        Duration(dot(&self.multiples, &work.at_ordinary_disk()) as u64)
    }

    /// This has taken so long.
    pub fn learn(&mut self, work: &Work, took: Duration) {
        let work = work.at_ordinary_disk();
        let told = dot(&self.multiples, &work);
        if told == 0.0 || took == Duration::ZERO {
            return;
        }
        let error = (took.0 as f64 / told).ln();
        let parts: [f64; KINDS] = std::array::from_fn(|kind| self.multiples[kind] * work[kind] / told);
        let shares = self.doubts.map(|doubts| dot(&doubts, &parts));
        let noise = NOISE * (1.0 + FLUSH_NS / told);
        let doubt = dot(&shares, &parts) + noise * noise;
        for (multiple, share) in self.multiples.iter_mut().zip(shares) {
            *multiple *= (share / doubt * error).exp();
        }
        let drift = |kind, other| DRIFT * DRIFT * alike(kind, other);
        self.doubts = matrix(|kind, other| self.doubts[kind][other] - shares[kind] * shares[other] / doubt + drift(kind, other));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sets, with so many dirty blocks each.
    fn work(sets: u64, dirty: u64) -> Work {
        let mut work = Work::default();
        (0..sets).for_each(|_| work.add_set(dirty));
        work
    }

    fn learned(batches: &[(Work, u64)]) -> Pace {
        let mut pace = Pace::default();
        batches.iter().for_each(|(work, ms)| pace.learn(work, Duration::from_millis(*ms)));
        pace
    }

    fn check(pace: &Pace, work: &Work, ms: std::ops::Range<u64>) {
        let told = pace.time_of(work);
        assert!((Duration::from_millis(ms.start)..Duration::from_millis(ms.end)).contains(&told), "{told:?}, not in {ms:?} ms");
    }

    #[test]
    fn what_took_its_time_takes_it_again() {
        let pace = learned(&[(work(16, 256), 500)]);
        check(&pace, &work(160, 256), 4_900..5_100);
    }

    #[test]
    fn densities_have_prices_of_their_own_even_if_they_come_together() {
        let (full, sparse, mut both) = (work(16, 256), work(4_096, 1), work(8, 256));
        (0..2_048).for_each(|_| both.add_set(1));
        let pace = learned(&[(full, 100), (sparse, 5_000), (both, 2_550), (full, 100)]);
        check(&pace, &full, 90..110);
        check(&pace, &sparse, 4_600..5_400);
    }

    #[test]
    fn a_pace_of_late_replaces_that_of_before() {
        let slower: Vec<(Work, u64)> = (0..20).map(|batch| (work(16, 256), if batch < 10 { 100 } else { 300 })).collect();
        check(&learned(&slower), &work(16, 256), 280..300);
    }

    #[test]
    fn what_was_not_seen_is_supposed_from_what_was() {
        let ordinary = Pace::default().time_of(&work(16, 1)).0 / 1_000_000;
        let twice_as_slow = learned(&[(work(16, 256), 2 * Pace::default().time_of(&work(16, 256)).0 / 1_000_000)]);
        check(&twice_as_slow, &work(16, 1), ordinary * 13 / 10..ordinary * 21 / 10);
    }

    #[test]
    fn short_batches_whose_flush_takes_longest_are_soon_forgotten() {
        let short = std::iter::repeat_n((work(10, 1), 60), 50);
        let batches: Vec<(Work, u64)> = short.chain([(work(4_096, 1), 7_000); 2]).collect();
        check(&learned(&batches), &work(4_096, 1), 5_600..8_400);
    }

    #[test]
    fn nothing_takes_no_time() {
        let mut pace = Pace::default();
        pace.learn(&Work::default(), Duration::ZERO);
        assert_eq!(pace.time_of(&Work::default()), Duration::ZERO);
    }
}

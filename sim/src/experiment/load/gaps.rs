//! Gaps: how long a load pauses after each answer, drawn ahead. Whoever may look into the future (`rig/foresight`) sees the same ones.

use crate::chance::Chance;
use tidegate_engine::time::Duration;

/// How gaps of one kind are drawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Law {
    Exponential(Duration),
    /// Every length between two as likely on a logarithmic scale: most are short, and the long ones make up most of the time.
    Spread(Duration, Duration),
    /// These, in turn.
    Cycle(Vec<Duration>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub law: Law,
    /// So many of them one after the other; or, if they are drawn, how likely they are.
    pub count: u32,
}

/// Parts that follow each other, again and again; or are drawn for each gap anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gaps {
    pub parts: Vec<Part>,
    pub drawn: bool,
}

impl Gaps {
    /// The first `count` of them.
    pub fn draw(&self, count: u64, chance: &mut Chance) -> Vec<Duration> {
        let weights: Vec<u32> = self.parts.iter().map(|part| part.count).collect();
        let (mut turns, mut part, mut left) = (vec![0usize; self.parts.len()], 0, weights[0]);
        let mut gaps = Vec::new();
        for _ in 0..count {
            if self.drawn {
                part = chance.weighted(&weights);
            } else if left == 0 {
                part = (part + 1) % self.parts.len();
                left = weights[part];
            }
            left = left.saturating_sub(1);
            gaps.push(match &self.parts[part].law {
                Law::Exponential(mean) => chance.exponential(*mean),
                Law::Spread(low, high) => Duration(chance.spread(low.0, high.0)),
                Law::Cycle(gaps) => gaps[turns[part] % gaps.len()],
            });
            turns[part] += 1;
        }
        gaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn seconds(gaps: &Gaps, count: u64) -> Vec<u64> {
        gaps.draw(count, &mut Chance::new(1, "gaps")).iter().map(|gap| gap.0 / SECOND.0).collect()
    }

    #[test]
    fn parts_follow_each_other_and_go_on_where_they_were() {
        let cycle = |gaps: &[u64], count| Part { law: Law::Cycle(gaps.iter().map(|&gap| Duration::from_secs(gap)).collect()), count };
        let gaps = Gaps { parts: vec![cycle(&[1, 2, 3], 2), cycle(&[9], 1)], drawn: false };
        assert_eq!(seconds(&gaps, 9), [1, 2, 9, 3, 1, 9, 2, 3, 9]);
    }

    #[test]
    fn drawn_parts_come_as_often_as_they_weigh() {
        let part = |gap, count| Part { law: Law::Cycle(vec![Duration::from_secs(gap)]), count };
        let gaps = seconds(&Gaps { parts: vec![part(1, 3), part(2, 1)], drawn: true }, 10_000);
        let ones = gaps.iter().filter(|&&gap| gap == 1).count();
        assert!((7_300..7_700).contains(&ones), "{ones}");
    }

    #[test]
    fn laws_keep_their_means_and_bounds() {
        let of = |law| Gaps { parts: vec![Part { law, count: 1 }], drawn: false }.draw(20_000, &mut Chance::new(1, "gaps"));
        let mean = of(Law::Exponential(SECOND)).iter().map(|gap| gap.as_secs_f64()).sum::<f64>() / 20_000.0;
        assert!((0.97..1.03).contains(&mean), "{mean}");
        let spread = of(Law::Spread(SECOND, Duration::from_secs(100)));
        assert!(spread.iter().all(|gap| (1..=100).contains(&(gap.0 / SECOND.0))));
        let short = spread.iter().filter(|gap| gap.0 < 10 * SECOND.0).count();
        assert!((8_000..12_000).contains(&short), "half of them below the geometric mean: {short}");
    }
}

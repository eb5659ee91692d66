//! Chance: the only source of randomness in the simulated world. Every draw comes from a seed and a named stream.
//! The streams never change: a seed written down today means the same run next year, so this generator is ours
//! (xoshiro256++ by Blackman and Vigna, seeded through splitmix64) and its first outputs are pinned by a test.

/// A stream of random numbers. Components draw from streams of their own, so that one more draw in one of them
/// leaves the others as they were.
#[derive(Clone, Debug)]
pub struct Chance {
    state: [u64; 4],
}

/// One step of splitmix64: a good mix of all 64 bits.
pub fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Chance {
    /// The stream named `stream` of a seed.
    pub fn new(seed: u64, stream: &str) -> Self {
        let named = stream.bytes().fold(mix(seed), |hash, byte| mix(hash ^ u64::from(byte)));
        let mut state = [0; 4];
        let mut last = named;
        for word in &mut state {
            last = mix(last);
            *word = last;
        }
        Chance { state }
    }

    /// 64 random bits.
    pub fn word(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.state;
        let result = a.wrapping_add(*d).rotate_left(23).wrapping_add(*a);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        result
    }

    /// A number below `bound`, which is not zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "nothing lies below zero");
        ((u128::from(self.word()) * u128::from(bound)) >> 64) as u64
    }

    /// A number of `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// A number of `low..=high` whose logarithm is about evenly spread: small ones are as likely as large ones.
    pub fn spread(&mut self, low: u64, high: u64) -> u64 {
        let steps = u64::from((high.max(1) / low.max(1)).ilog2());
        let top = low.max(1) << self.between(0, steps);
        self.between(low, (top * 2 - 1).clamp(low, high))
    }

    /// True once in `times`; never for zero.
    pub fn one_in(&mut self, times: u64) -> bool {
        times > 0 && self.below(times) == 0
    }

    /// True for `rate` draws of a million.
    pub fn ppm(&mut self, rate: u32) -> bool {
        rate > 0 && self.below(1_000_000) < u64::from(rate)
    }

    pub fn percent(&mut self, rate: u32) -> bool {
        rate > 0 && self.below(100) < u64::from(rate)
    }

    pub fn pick<T: Copy>(&mut self, among: &[T]) -> T {
        among[self.below(among.len() as u64) as usize]
    }

    /// An index, drawn by weight. Not all weights are zero.
    pub fn weighted(&mut self, weights: &[u32]) -> usize {
        let mut left = self.below(weights.iter().map(|&weight| u64::from(weight)).sum());
        for (index, &weight) in weights.iter().enumerate() {
            if left < u64::from(weight) {
                return index;
            }
            left -= u64::from(weight);
        }
        unreachable!("a draw below the sum of the weights falls on one of them")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_the_published_one() {
        let mut chance = Chance { state: [1, 2, 3, 4] };
        let published = [41943041, 58720359, 3588806011781223, 3591011842654386, 9228616714210784205, 9973669472204895162];
        assert_eq!(published.map(|_| chance.word()), published);
    }

    #[test]
    fn streams_never_change() {
        let mut load = Chance::new(42, "load");
        assert_eq!([load.word(), load.word()], [16606942032371167825, 13989802208745817606]);
    }

    #[test]
    fn draws_stay_in_their_bounds() {
        let mut chance = Chance::new(7, "bounds");
        for _ in 0..10_000 {
            assert!(chance.below(3) < 3);
            assert!((5..=9).contains(&chance.between(5, 9)));
            assert!((5..=900).contains(&chance.spread(5, 900)));
            assert!([1, 3].contains(&chance.weighted(&[0, 5, 0, 1])));
        }
        assert!(!chance.one_in(0) && !chance.ppm(0) && !chance.percent(0));
    }
}

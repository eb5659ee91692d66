//! Replacement: which of the keys that are kept goes when another one comes. A policy decides from the order in which keys were asked for; it
//! sees no data, does no I/O and cannot fail. A key is whatever is kept as one: a page, a set.
//!
//! A policy may be told of hits late, but it is to be told of them before anything else that happened after them: of a key that is inserted
//! first, the hits before it seem to be hits after it. In one order a policy does the same whenever it is told.

mod arc;
mod chooser;
mod clock;
pub mod curve;
mod lirs;
mod lists;
mod lru;
pub mod s3_fifo;
mod tiny_lfu;
mod two_q;

pub use arc::Arc;
pub use chooser::Chooser;
pub use clock::{Clock, Sieve};
pub use curve::Curve;
pub use lirs::Lirs;
pub use lru::{Fifo, Lru};
pub use s3_fifo::S3Fifo;
pub use tiny_lfu::TinyLfu;
pub use two_q::TwoQ;

/// Which key goes.
pub trait Policy {
    /// Is it kept?
    fn contains(&self, key: u64) -> bool;
    /// A key that is kept was asked for. Of another one nothing is noted.
    fn touch(&mut self, key: u64);
    /// The same of several, in their order.
    fn touch_all(&mut self, keys: &[u64]) {
        keys.iter().for_each(|&key| self.touch(key));
    }
    /// The key that is to go, and is forgotten now, before `comes` is kept, if one is. `None`: nothing is kept.
    fn evict(&mut self, comes: Option<u64>) -> Option<u64>;
    /// It is kept from now on; it was not before.
    fn insert(&mut self, key: u64);
    /// It is not kept any more, for a reason of somebody else's.
    fn remove(&mut self, key: u64);
    /// Keys that are kept.
    fn len(&self) -> usize;
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Memory that it takes, in bytes.
    fn bytes(&self) -> u64;
    /// Where it does as another one does: which, and how often that has changed.
    fn follows(&self) -> Option<(Kind, u64)> {
        None
    }
}

/// By name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    Fifo,
    Lru,
    Clock,
    Sieve,
    #[default]
    S3Fifo,
    Arc,
    Lirs,
    TwoQ,
    TinyLfu,
    Chooser,
}

impl Kind {
    pub const ALL: [(&str, Kind); 10] = [
        ("FIFO", Kind::Fifo),
        ("LRU", Kind::Lru),
        ("CLOCK", Kind::Clock),
        ("SIEVE", Kind::Sieve),
        ("S3-FIFO", Kind::S3Fifo),
        ("ARC", Kind::Arc),
        ("LIRS", Kind::Lirs),
        ("2Q", Kind::TwoQ),
        ("W-TinyLFU", Kind::TinyLfu),
        ("chooser", Kind::Chooser),
    ];

    /// For people and configuration files.
    pub fn name(self) -> String {
        let (name, _) = Kind::ALL.into_iter().find(|&(_, kind)| kind == self).expect("each has a name");
        name.to_lowercase()
    }

    /// Decides by itself, not by what others would have done.
    pub fn is_single(self) -> bool {
        match self {
            Kind::Fifo | Kind::Lru | Kind::Clock | Kind::Sieve | Kind::S3Fifo | Kind::Arc | Kind::Lirs | Kind::TwoQ | Kind::TinyLfu => true,
            Kind::Chooser => false,
        }
    }

    /// A policy for some `capacity` keys. A few more may be kept: it still says which one goes.
    pub fn build(self, capacity: usize) -> Box<dyn Policy> {
        match self {
            Kind::Fifo => Box::new(Fifo::new(capacity)),
            Kind::Lru => Box::new(Lru::new(capacity)),
            Kind::Clock => Box::new(Clock::new(capacity)),
            Kind::Sieve => Box::new(Sieve::new(capacity)),
            Kind::S3Fifo => Box::new(S3Fifo::new(capacity)),
            Kind::Arc => Box::new(Arc::new(capacity)),
            Kind::Lirs => Box::new(Lirs::new(capacity)),
            Kind::TwoQ => Box::new(TwoQ::new(capacity)),
            Kind::TinyLfu => Box::new(TinyLfu::new(capacity)),
            Kind::Chooser => Box::new(Chooser::new(capacity)),
        }
    }
}

impl std::str::FromStr for Kind {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = Kind::ALL.into_iter().map(|(_, kind)| kind).find(|kind| kind.name() == text);
        found.ok_or_else(|| {
            let names: Vec<String> = Kind::ALL.into_iter().map(|(_, kind)| kind.name()).collect();
            format!("{text:?} is no policy: there are {}", names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// One access of a cache of so many keys. True: a hit.
    fn access(policy: &mut dyn Policy, capacity: usize, key: u64) -> bool {
        if policy.contains(key) {
            policy.touch(key);
            return true;
        }
        if policy.len() >= capacity {
            let gone = policy.evict(Some(key)).expect("it is full");
            assert!(!policy.contains(gone), "{gone} has gone");
        }
        policy.insert(key);
        false
    }

    proptest! {
        /// Beside the plain set of what it says that it keeps.
        #[test]
        fn a_policy_keeps_what_it_says(
            capacity in 1usize..24,
            // More than it was made for may be kept.
            more in 0usize..6,
            steps in prop::collection::vec((0u64..60, 0u8..20), 0..600),
        ) {
            for (name, kind) in Kind::ALL {
                let mut policy = kind.build(capacity);
                let mut kept = std::collections::BTreeSet::new();
                for &(key, what) in &steps {
                    if what == 0 {
                        policy.remove(key);
                        kept.remove(&key);
                    } else if policy.contains(key) {
                        prop_assert!(kept.contains(&key), "{name}");
                        policy.touch(key);
                    } else {
                        if policy.len() >= capacity + more {
                            let gone = policy.evict(Some(key)).expect("it is full");
                            prop_assert!(kept.remove(&gone), "{name}: {gone} was kept");
                        }
                        policy.insert(key);
                        kept.insert(key);
                    }
                    prop_assert_eq!(policy.len(), kept.len(), "{}", name);
                    prop_assert!((0..60).all(|key| policy.contains(key) == kept.contains(&key)), "{name}");
                }
                while let Some(gone) = policy.evict(None) {
                    prop_assert!(kept.remove(&gone), "{name}");
                }
                prop_assert!(kept.is_empty() && policy.is_empty(), "{name}");
            }
        }
    }

    /// Bytes for each of so many keys that are kept, while many others pass, some come back, and now and then one is removed; then while a loop that
    /// LIRS is best at goes on among those that pass.
    fn bytes_per_key(kind: Kind, keys: usize) -> f64 {
        let mut policy = kind.build(keys);
        let mut draw = crate::draw::Draw::new(1);
        for at in 0..40 * keys as u64 {
            let key = match draw.below(if at < 20 * keys as u64 { 4 } else { 8 }) {
                0 => draw.below(8 << 10),
                1 => (1 << 30) + draw.below(1 << 40),
                2.. if at < 20 * keys as u64 => draw.below(1 << 20),
                2.. => (1 << 20) + at % (keys as u64 * 11 / 10),
            };
            access(&mut *policy, keys, key);
            if draw.below(64) == 0 {
                policy.remove(draw.below(8 << 10));
            }
        }
        policy.bytes() as f64 / keys as f64
    }

    /// As the documents have it; of S3-FIFO where its queues are lists.
    #[test]
    fn a_key_takes_so_many_bytes() {
        for keys in [3_000, 16 << 10, 20_000] {
            for ((name, kind), most) in Kind::ALL.into_iter().zip([24.1, 24.1, 24.1, 24.1, 25.9, 48.1, 220.0, 36.1, 56.1, 245.0]) {
                // The candidates, which see a sample of the keys.
                let besides = if kind == Kind::Chooser { 3e6 / keys as f64 } else { 0.0 };
                let bytes = bytes_per_key(kind, keys);
                assert!(bytes <= most + besides, "{name}, {keys}: {bytes:.1} bytes");
            }
        }
    }

    /// What fronts have written is kept before others go for it, and then they go for nobody.
    #[test]
    fn a_key_takes_as_many_bytes_where_others_go_for_nobody() {
        const KEYS: u64 = 1_000;
        for (name, kind) in Kind::ALL {
            let mut policy = kind.build(KEYS as usize);
            let mut bytes = Vec::new();
            for key in 0..100 * KEYS {
                policy.insert(key);
                while policy.len() as u64 > KEYS {
                    policy.evict(None).expect("it is full");
                }
                if key % (50 * KEYS) == 50 * KEYS - 1 {
                    bytes.push(policy.bytes());
                }
            }
            assert!(bytes[1] <= bytes[0] + bytes[0] / 16, "{name}: {bytes:?}");
        }
    }

    fn misses(kind: Kind, capacity: usize, keys: impl Iterator<Item = u64>) -> usize {
        let mut policy = kind.build(capacity);
        keys.filter(|&key| !access(&mut *policy, capacity, key)).count()
    }

    /// What LRU is bad at, and LIRS was made for.
    #[test]
    fn a_loop_a_little_larger_than_the_cache_is_half_kept_by_lirs_and_lost_by_lru() {
        let keys = || (0..20_000).map(|i| i % 110);
        assert_eq!(misses(Kind::Lru, 100, keys()), 20_000);
        assert!(misses(Kind::Lirs, 100, keys()) < 3_000);
    }

    /// Twenty keys are asked for three times, then a scan of two hundred passes.
    #[test]
    fn a_scan_costs_the_others_nothing() {
        let round = |round: u64| (0..60).map(|i| i / 3).chain((0..200).map(move |i| 1_000 + round * 200 + i));
        let keys = || (0..200).flat_map(round);
        assert_eq!(misses(Kind::Lru, 100, keys()), 200 * 220);
        for kind in [Kind::Arc, Kind::Lirs, Kind::S3Fifo] {
            assert!(misses(kind, 100, keys()) <= 200 * 200 + 100, "{kind:?}: {}", misses(kind, 100, keys()));
        }
    }
}

//! Which set is cleaned next: sealed sets with dead slots, ordered by what is gained for what has to be copied.
//!
//! The order is by *benefit* in coarse steps, so that the death of a slot mostly moves nothing: one list for each step, and the sets of a
//! list in no order. A set is in one list at most.

/// By what the sets are compared that may be cleaned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Benefit {
    /// The fewest live slots first.
    Greedy,
    /// The rate at which it still loses slots, over the square of the dead ones: a set that is about to empty itself is left alone
    /// (C. Luo, D. Lomet, Efficiently Reclaiming Space in a Log Structured Store, 2020: minimum declining cost).
    #[default]
    Declining,
}

/// No set, no list.
const NIL: u32 = u32::MAX;
const OUT: u16 = u16::MAX;
/// Steps; the best is 0.
pub(super) const STEPS: u32 = 1024;

#[derive(Clone, Copy, Debug)]
struct Link {
    step: u16,
    newer: u32,
    older: u32,
}

pub(super) struct Victims {
    links: Vec<Link>,
    /// The newest of each list.
    heads: Vec<u32>,
    /// A bit for each list that holds something.
    held: [u64; (STEPS / 64) as usize],
}

impl Victims {
    pub fn new(sets: u32) -> Victims {
        Victims {
            links: vec![Link { step: OUT, newer: NIL, older: NIL }; sets as usize],
            heads: vec![NIL; STEPS as usize],
            held: [0; (STEPS / 64) as usize],
        }
    }

    /// Puts a set where it belongs now; `None`: nowhere.
    pub fn place(&mut self, set: u32, step: Option<u32>) {
        let step = step.map_or(OUT, |step| step.min(STEPS - 1) as u16);
        let link = self.links[set as usize];
        if link.step == step {
            return;
        }
        if link.step != OUT {
            self.unlink(set, link);
        }
        let older = if step == OUT { NIL } else { std::mem::replace(&mut self.heads[usize::from(step)], set) };
        if older != NIL {
            self.links[older as usize].newer = set;
        }
        if step != OUT {
            self.held[usize::from(step) / 64] |= 1 << (step % 64);
        }
        self.links[set as usize] = Link { step, newer: NIL, older };
    }

    fn unlink(&mut self, set: u32, Link { step, newer, older }: Link) {
        match newer {
            NIL => self.heads[usize::from(step)] = older,
            newer => self.links[newer as usize].older = older,
        }
        if older != NIL {
            self.links[older as usize].newer = newer;
        }
        assert!(self.heads[usize::from(step)] != set, "a set is in one list once");
        if self.heads[usize::from(step)] == NIL {
            self.held[usize::from(step) / 64] &= !(1 << (step % 64));
        }
    }

    /// From the best set on.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let lists = (0..).zip(self.held).flat_map(|(word, bits): (u32, u64)| {
            let mut rest = bits;
            std::iter::from_fn(move || {
                let bit = (rest != 0).then(|| rest.trailing_zeros())?;
                rest &= rest - 1;
                Some(word * 64 + bit)
            })
        });
        lists.flat_map(move |list| {
            let mut at = self.heads[list as usize];
            std::iter::from_fn(move || {
                let set = (at != NIL).then_some(at)?;
                at = self.links[set as usize].older;
                Some(set)
            })
        })
    }

    pub fn bytes(&self) -> usize {
        self.links.capacity() * size_of::<Link>() + self.heads.capacity() * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against the naive thing: a step for each set.
        #[test]
        fn the_best_come_first(placed in prop::collection::vec((0u32..20, prop::option::of(0u32..STEPS + 9)), 0..100)) {
            let mut victims = Victims::new(20);
            let mut expected = [None; 20];
            for (set, step) in placed {
                victims.place(set, step);
                expected[set as usize] = step.map(|step| step.min(STEPS - 1));
                let listed: Vec<u32> = victims.iter().collect();
                prop_assert!(listed.is_sorted_by_key(|&set| expected[set as usize]));
                let mut sorted = listed.clone();
                sorted.sort_unstable();
                let held: Vec<u32> = (0..20).filter(|&set| expected[set as usize].is_some()).collect();
                prop_assert_eq!(sorted, held);
            }
        }
    }
}

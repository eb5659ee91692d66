//! Which set is cleaned next: each sealed one with live and dead slots has its place in the lists of [`Victims`], by the heat of what lives in it.

use super::{Set, SetState, Sets};
use crate::cache::heat::log8;
use crate::cache::victims::{Benefit, STEPS};

/// So that no benefit is below 0: a set of 2^16 slots, all but one of them dead.
const STEP_OFFSET: u32 = 256;

impl Sets {
    /// Puts a set where it belongs among those that may be cleaned.
    pub(super) fn weigh(&mut self, number: u32) {
        let step = self.step(self.get(number));
        self.victims.place(number, step);
    }

    fn step(&self, set: &Set) -> Option<u32> {
        let dead = self.geometry.set_slots - set.live_count;
        if set.state != SetState::Sealed || set.live_count == 0 || dead == 0 {
            return None;
        }
        Some(match self.benefit {
            Benefit::Greedy => set.live_count * (STEPS - 1) / self.geometry.set_slots,
            Benefit::Declining => log8(set.heat.rate().max(1)) + STEP_OFFSET - 2 * log8(u64::from(dead)),
        })
    }

    /// Sealed sets with live and dead slots, from the one on whose cleaning gains most.
    pub fn victims(&self) -> impl Iterator<Item = u32> + '_ {
        self.victims.iter()
    }
}

//! Which set is cleaned next: each sealed one with live and dead slots has its place in the lists of [`Victims`], by the heat of what lives in it.

use super::victims::{STEPS, Victims};
use super::{Benefit, Set, SetState, Sets};
use crate::cache::heat::log8;

/// So that no benefit is below 0: a set of 2^16 slots, all but one of them dead.
const STEP_OFFSET: u32 = 256;

/// What is gained by cleaning each set.
pub(super) struct Gain {
    victims: Victims,
    /// By what they are compared.
    benefit: Benefit,
}

impl Gain {
    pub fn new(sets: u32, benefit: Benefit) -> Gain {
        Gain { victims: Victims::new(sets), benefit }
    }

    /// Puts a set where it belongs among those that may be cleaned.
    pub fn weigh(&mut self, number: u32, set: &Set, set_slots: u32) {
        self.victims.place(number, self.step(set, set_slots));
    }
    /// Nothing is left in the set that cleaning could move.
    pub fn forget(&mut self, number: u32) {
        self.victims.place(number, None);
    }

    fn step(&self, set: &Set, set_slots: u32) -> Option<u32> {
        let dead = set_slots - set.live_count;
        if set.state != SetState::Sealed || set.live_count == 0 || dead == 0 {
            return None;
        }
        Some(match self.benefit {
            Benefit::Greedy => set.live_count * (STEPS - 1) / set_slots,
            Benefit::Declining => log8(set.heat.rate().max(1)) + STEP_OFFSET - 2 * log8(u64::from(dead)),
        })
    }

    pub fn bytes(&self) -> usize {
        self.victims.bytes()
    }
}

impl Sets {
    /// What lives in a set has changed, or it has been sealed.
    pub(super) fn weigh(&mut self, number: u32) {
        self.gain.weigh(number, &self.sets[number as usize], self.geometry.set_slots);
    }

    /// Sealed sets with live and dead slots, from the one on whose cleaning gains most.
    pub fn victims(&self) -> impl Iterator<Item = u32> + '_ {
        self.gain.victims.iter()
    }
}

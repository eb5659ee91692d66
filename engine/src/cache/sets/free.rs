//! Free sets: of each lane of the SSD in turn the one that has been free longest. What is written together then lies in different lanes, and is
//! written and read side by side.

use std::collections::VecDeque;

use crate::op::Lanes;

pub(super) struct Free {
    lanes: Lanes,
    /// Of each lane, those that have been free longest first.
    waiting: Vec<VecDeque<u32>>,
    /// The lane that has its turn.
    next: usize,
    count: u32,
}

impl Free {
    /// With place for so many.
    pub fn new(lanes: Lanes, sets: u32) -> Self {
        let of_lane = || VecDeque::with_capacity(sets.div_ceil(lanes.count()) as usize);
        Free { lanes, waiting: (0..lanes.count()).map(|_| of_lane()).collect(), next: 0, count: 0 }
    }

    pub fn count(&self) -> u32 {
        self.count
    }

    pub fn clear(&mut self) {
        self.waiting.iter_mut().for_each(VecDeque::clear);
        self.count = 0;
    }

    /// A set that begins at `start` is free.
    pub fn push(&mut self, set: u32, start: u64) {
        self.waiting[self.lanes.of(start)].push_back(set);
        self.count += 1;
    }

    /// A lane without a free set gives its turn to the next one.
    pub fn pop(&mut self) -> Option<u32> {
        let lanes = self.waiting.len();
        let lane = (self.next..self.next + lanes).map(|lane| lane % lanes).find(|&lane| !self.waiting[lane].is_empty())?;
        self.next = (lane + 1) % lanes;
        self.count -= 1;
        self.waiting[lane].pop_front()
    }

    pub fn bytes(&self) -> usize {
        self.waiting.iter().map(|sets| sets.capacity() * size_of::<u32>()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_take_turns_and_one_without_a_free_set_is_left_out() {
        let mut free = Free::new(Lanes::new(3, 90), 9);
        for set in 0..9u32 {
            free.push(set, u64::from(set) * 10);
        }
        let first: Vec<u32> = std::iter::from_fn(|| free.pop()).take(4).collect();
        assert_eq!(first, [0, 3, 6, 1]);
        free.push(0, 0);
        let rest: Vec<u32> = std::iter::from_fn(|| free.pop()).collect();
        assert_eq!(rest, [4, 7, 2, 5, 8, 0]);
        assert_eq!(free.count(), 0);
    }

    #[test]
    fn of_one_lane_they_go_in_the_order_in_which_they_became_free() {
        let mut free = Free::new(Lanes::new(1, 90), 9);
        [5, 2, 8].into_iter().for_each(|set| free.push(set, 0));
        assert_eq!(std::iter::from_fn(|| free.pop()).collect::<Vec<_>>(), [5, 2, 8]);
    }
}

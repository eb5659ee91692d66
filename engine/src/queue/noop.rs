//! First come, first served, in two lanes: what a client or the log waits for goes before fills, destaging and cleaning. Those get every
//! fourth place, so that they never starve; and at most so many of the device's places at a time that a client's request, which comes at any
//! moment, meets a device that is not busy with a thousand of them. They take turns: thousands of reads of a sweep hold up no cleaning.
//! Discards go when nothing else waits.

use std::collections::VecDeque;

use super::Queue;
use crate::op::{Class, Op};

const URGENT_IN_A_ROW: u32 = 3;
/// Nobody waits for these at once.
const PATIENT: [Class; 4] = [Class::Clean, Class::Fill, Class::Destage, Class::Scrub];

pub struct Noop<P> {
    urgent: VecDeque<Op<P>>,
    patient: [VecDeque<Op<P>>; PATIENT.len()],
    /// Whose turn it is of the patient ones.
    turn: usize,
    last: VecDeque<Op<P>>,
    in_a_row: u32,
    in_flight: usize,
    depth: usize,
    patient_in_flight: usize,
    patient_depth: usize,
}

impl<P> Noop<P> {
    /// `depth` places, of which the patient ones take at most `patient_depth`.
    pub fn new(depth: usize, patient_depth: usize) -> Self {
        assert!(depth > 0 && patient_depth > 0);
        Noop {
            urgent: VecDeque::new(),
            patient: Default::default(),
            turn: 0,
            last: VecDeque::new(),
            in_a_row: 0,
            in_flight: 0,
            depth,
            patient_in_flight: 0,
            patient_depth,
        }
    }
}

impl<P> Queue<P> for Noop<P> {
    fn push(&mut self, op: Op<P>) {
        match lane(op.class) {
            Some(lane) => self.patient[lane].push_back(op),
            None if op.class == Class::Discard => self.last.push_back(op),
            None => self.urgent.push_back(op),
        }
    }

    fn pop(&mut self) -> Option<Op<P>> {
        if self.in_flight == self.depth {
            return None;
        }
        let next = (0..PATIENT.len()).map(|next| (self.turn + next) % PATIENT.len()).find(|&lane| !self.patient[lane].is_empty());
        let patient = next.filter(|_| self.patient_in_flight < self.patient_depth);
        let patient_turn = patient.is_some() && self.in_a_row >= URGENT_IN_A_ROW;
        let first = if patient_turn { None } else { self.urgent.pop_front() };
        let op = match (first, patient) {
            (Some(op), _) => op,
            (None, Some(lane)) => {
                self.turn = lane + 1;
                self.patient_in_flight += 1;
                self.patient[lane].pop_front()?
            }
            (None, None) if next.is_none() => self.last.pop_front()?,
            (None, None) => return None,
        };
        self.in_a_row = if patient_turn { 0 } else { self.in_a_row + 1 };
        self.in_flight += 1;
        Some(op)
    }

    fn done(&mut self, class: Class) {
        self.in_flight = self.in_flight.checked_sub(1).expect("an operation ends once");
        self.patient_in_flight -= usize::from(lane(class).is_some());
    }

    fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.patient.iter().chain([&self.urgent, &self.last]).all(VecDeque::is_empty)
    }
}

/// Its lane among the patient ones, if it is one.
fn lane(class: Class) -> Option<usize> {
    PATIENT.iter().position(|patient| *patient == class)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{Action, DeviceId, OpId};

    fn push(queue: &mut Noop<()>, id: u64, class: Class) {
        queue.push(Op { id: OpId(id), device: DeviceId::Cache, class, action: Action::Flush });
    }

    fn popped(queue: &mut Noop<()>) -> Vec<u64> {
        std::iter::from_fn(|| queue.pop()).map(|op| op.id.0).collect()
    }

    #[test]
    fn the_patient_take_their_places_and_no_more() {
        let mut queue = Noop::new(8, 2);
        (0..4).for_each(|id| push(&mut queue, id, Class::Destage));
        push(&mut queue, 4, Class::Discard);
        assert_eq!(popped(&mut queue), [0, 1]);
        // Who comes now meets a device with two of them.
        push(&mut queue, 5, Class::Client);
        assert_eq!(popped(&mut queue), [5]);
        queue.done(Class::Destage);
        assert_eq!(popped(&mut queue), [2]);
        (0..2).for_each(|_| queue.done(Class::Destage));
        assert_eq!(popped(&mut queue), [3, 4]);
        [Class::Destage, Class::Discard, Class::Client].into_iter().for_each(|class| queue.done(class));
        assert!(queue.is_idle());
    }

    #[test]
    fn a_sweep_holds_up_no_cleaning() {
        let mut queue = Noop::new(8, 6);
        (0..9).for_each(|id| push(&mut queue, id, Class::Destage));
        (10..12).for_each(|id| push(&mut queue, id, Class::Clean));
        assert_eq!(popped(&mut queue), [10, 0, 11, 1, 2, 3]);
    }

    #[test]
    fn neither_the_urgent_nor_the_patient_starve() {
        let mut queue = Noop::new(6, 4);
        (0..8).for_each(|id| push(&mut queue, id, Class::Client));
        (8..10).for_each(|id| push(&mut queue, id, Class::Fill));
        assert_eq!(popped(&mut queue), [0, 1, 2, 8, 3, 4]);
        queue.done(Class::Fill);
        queue.done(Class::Client);
        assert_eq!(popped(&mut queue), [5, 9]);
    }
}

//! First come, first served, in two lanes: what a client or the log waits for goes before fills, destaging and cleaning. Those get every
//! fourth place, so that they never starve; and at most so many of the device's places at a time that a client's request, which comes at any
//! moment, meets a device that is not busy with a thousand of them. They take turns: thousands of reads of a sweep hold up no cleaning.
//! Discards go when nothing else waits.

use super::lists::Lists;
use super::scheduler::{Item, Scheduler};
use crate::op::Class;
use crate::time::Instant;

const URGENT_IN_A_ROW: u32 = 3;
/// Nobody waits for these at once.
const PATIENT: [Class; 4] = [Class::Clean, Class::Fill, Class::Destage, Class::Scrub];
/// Lists: those of the patient ones by their place above, then these.
const URGENT: usize = PATIENT.len();
const LAST: usize = PATIENT.len() + 1;

pub struct Urgency {
    waiting: Lists,
    /// How many of the patient ones wait.
    patient_waiting: usize,
    /// Whose turn it is of the patient ones.
    turn: usize,
    in_a_row: u32,
    patient_under_way: usize,
    patient_depth: usize,
}

impl Urgency {
    /// The patient ones take at most `patient_depth` places.
    pub fn new(patient_depth: usize) -> Self {
        Urgency { waiting: Lists::new(LAST + 1), patient_waiting: 0, turn: 0, in_a_row: 0, patient_under_way: 0, patient_depth }
    }
}

impl Scheduler for Urgency {
    fn push(&mut self, _now: Instant, entry: usize, item: &Item) {
        let list = list(item.class);
        self.patient_waiting += usize::from(list < URGENT);
        self.waiting.push(list, entry);
    }

    fn pop(&mut self, _now: Instant) -> Option<usize> {
        let next = if self.patient_waiting > 0 { self.next_lane() } else { None };
        let patient = next.filter(|_| self.patient_under_way < self.patient_depth);
        let patient_turn = patient.is_some() && self.in_a_row >= URGENT_IN_A_ROW;
        let first = if patient_turn { None } else { self.waiting.pop(URGENT) };
        let entry = match (first, patient) {
            (Some(entry), _) => entry,
            (None, Some(lane)) => {
                self.turn = lane + 1;
                self.patient_waiting -= 1;
                self.patient_under_way += 1;
                self.waiting.pop(lane)?
            }
            (None, None) if next.is_none() => self.waiting.pop(LAST)?,
            (None, None) => return None,
        };
        self.in_a_row = if patient_turn { 0 } else { self.in_a_row + 1 };
        Some(entry)
    }

    fn raise(&mut self, now: Instant, entry: usize, _before: &Item, item: &Item) {
        self.patient_waiting -= usize::from(self.waiting.remove(entry) < URGENT);
        self.push(now, entry, item);
    }

    fn done(&mut self, _now: Instant, _entry: usize, item: &Item) {
        self.patient_under_way -= usize::from(list(item.class) < URGENT);
    }
}

impl Urgency {
    /// Of the patient ones.
    fn next_lane(&self) -> Option<usize> {
        (0..PATIENT.len()).map(|next| (self.turn + next) % PATIENT.len()).find(|&lane| !self.waiting.is_empty(lane))
    }
}

fn list(class: Class) -> usize {
    match class {
        Class::Discard => LAST,
        class => PATIENT.iter().position(|patient| *patient == class).unwrap_or(URGENT),
    }
}

#[cfg(test)]
mod tests {
    use crate::op::Class::{Clean, Client, Destage, Discard, Fill};
    use crate::queue::QueueKind;
    use crate::queue::tests::Bench;

    fn bench(depth: usize, patient_depth: usize) -> Bench {
        Bench::new(QueueKind::Urgency, depth, patient_depth)
    }

    #[test]
    fn the_patient_take_their_places_and_no_more() {
        let mut bench = bench(8, 2);
        (0..4).for_each(|id| bench.flush(id, Destage));
        bench.flush(4, Discard);
        assert_eq!(bench.popped(), [0, 1]);
        // Who comes now meets a device with two of them.
        bench.flush(5, Client);
        assert_eq!(bench.popped(), [5]);
        bench.done(0);
        assert_eq!(bench.popped(), [2]);
        [1, 2].into_iter().for_each(|id| drop(bench.done(id)));
        assert_eq!(bench.popped(), [3, 4]);
        [3, 4, 5].into_iter().for_each(|id| drop(bench.done(id)));
        assert!(bench.queue.is_idle());
    }

    #[test]
    fn a_sweep_holds_up_no_cleaning() {
        let mut bench = bench(8, 6);
        (0..9).for_each(|id| bench.flush(id, Destage));
        (10..12).for_each(|id| bench.flush(id, Clean));
        assert_eq!(bench.popped(), [10, 0, 11, 1, 2, 3]);
    }

    #[test]
    fn neither_the_urgent_nor_the_patient_starve() {
        let mut bench = bench(6, 4);
        (0..8).for_each(|id| bench.flush(id, Client));
        (8..10).for_each(|id| bench.flush(id, Fill));
        assert_eq!(bench.popped(), [0, 1, 2, 8, 3, 4]);
        [8, 0].into_iter().for_each(|id| drop(bench.done(id)));
        assert_eq!(bench.popped(), [5, 9]);
    }
}

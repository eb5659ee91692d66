//! First come, first served, in two lanes: what a client or the log waits for goes before fills and destaging,
//! which get every fourth place so that they never starve. Discards go when nothing else waits.

use std::collections::VecDeque;

use super::Queue;
use crate::op::{Class, Op};

const URGENT_IN_A_ROW: u32 = 3;

pub struct Noop<P> {
    urgent: VecDeque<Op<P>>,
    patient: VecDeque<Op<P>>,
    last: VecDeque<Op<P>>,
    in_a_row: u32,
    in_flight: usize,
    depth: usize,
}

impl<P> Noop<P> {
    pub fn new(depth: usize) -> Self {
        assert!(depth > 0);
        Noop { urgent: VecDeque::new(), patient: VecDeque::new(), last: VecDeque::new(), in_a_row: 0, in_flight: 0, depth }
    }
}

impl<P> Queue<P> for Noop<P> {
    fn push(&mut self, op: Op<P>) {
        match op.class {
            Class::Client | Class::Log => self.urgent.push_back(op),
            Class::Fill | Class::Destage | Class::Clean | Class::Scrub => self.patient.push_back(op),
            Class::Discard => self.last.push_back(op),
        }
    }

    fn pop(&mut self) -> Option<Op<P>> {
        if self.in_flight == self.depth {
            return None;
        }
        let patient_turn = self.in_a_row >= URGENT_IN_A_ROW && !self.patient.is_empty();
        let first = if patient_turn { None } else { self.urgent.pop_front() };
        let op = first.or_else(|| self.patient.pop_front()).or_else(|| self.last.pop_front())?;
        self.in_a_row = if patient_turn { 0 } else { self.in_a_row + 1 };
        self.in_flight += 1;
        Some(op)
    }

    fn done(&mut self) {
        self.in_flight = self.in_flight.checked_sub(1).expect("an operation ends once");
    }

    fn is_idle(&self) -> bool {
        self.in_flight == 0 && [&self.urgent, &self.patient, &self.last].iter().all(|lane| lane.is_empty())
    }
}

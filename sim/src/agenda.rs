//! The agenda: what will happen and when, in virtual time. What was noted first for one moment happens first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use tidegate_engine::time::Instant;

/// A virtual clock and the list of what is to come. It never runs backwards.
#[derive(Clone, Debug)]
pub struct Agenda<T: Ord> {
    now: Instant,
    noted: u64,
    heap: BinaryHeap<Reverse<(Instant, u64, T)>>,
}

impl<T: Ord> Agenda<T> {
    pub fn new(now: Instant) -> Self {
        Agenda { now, noted: 0, heap: BinaryHeap::new() }
    }

    pub fn now(&self) -> Instant {
        self.now
    }

    /// Notes `what` for the moment `when`, which is not past.
    pub fn note(&mut self, when: Instant, what: T) {
        assert!(when >= self.now, "the agenda was asked to change the past");
        self.noted += 1;
        self.heap.push(Reverse((when, self.noted, what)));
    }

    /// When the next thing happens.
    pub fn next_time(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((when, _, _))| *when)
    }

    /// Lets time pass until `when`; nothing may be left to happen before it.
    pub fn advance(&mut self, when: Instant) {
        assert!(when >= self.now && self.next_time().is_none_or(|next| next >= when), "time skips nothing");
        self.now = when;
    }

    /// What happens at this moment, if anything is left of it.
    pub fn pop(&mut self) -> Option<T> {
        if self.next_time()? > self.now {
            return None;
        }
        self.heap.pop().map(|Reverse((_, _, what))| what)
    }

    /// Forgets everything noted; the clock stays.
    pub fn clear(&mut self) {
        self.heap.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_happen_in_order_of_time_then_of_noting() {
        let mut agenda = Agenda::new(Instant(5));
        for (when, what) in [(9, 'c'), (7, 'a'), (9, 'd'), (7, 'b')] {
            agenda.note(Instant(when), what);
        }
        let mut story = String::new();
        while let Some(next) = agenda.next_time() {
            agenda.advance(next);
            while let Some(what) = agenda.pop() {
                story.push(what);
            }
            story.push('.');
        }
        assert_eq!(story, "ab.cd.");
        assert_eq!(agenda.now(), Instant(9));
    }
}

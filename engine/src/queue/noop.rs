//! First come, first served: Linux's noop, which merges and no more. What the papers' schedulers are held against.

use super::lists::Lists;
use super::scheduler::{Item, Scheduler};
use crate::time::Instant;

#[derive(Default)]
pub struct Noop {
    waiting: Lists,
}

impl Scheduler for Noop {
    fn push(&mut self, _now: Instant, entry: usize, _item: &Item) {
        self.waiting.push(0, entry);
    }

    fn pop(&mut self, _now: Instant) -> Option<usize> {
        self.waiting.pop(0)
    }

    fn done(&mut self, _now: Instant, _entry: usize, _item: &Item) {}

    /// It keeps its place: nobody is before anybody here.
    fn raise(&mut self, _now: Instant, _entry: usize, _before: &Item, _item: &Item) {}
}

//! What a scheduler is asked, and what it knows: never the contents, nor whose request it is.

use crate::op::{Action, Class, Op};
use crate::time::Instant;

/// Decides which of the operations that wait goes next. An operation has a number while it waits and while it is under way.
pub trait Scheduler: Send {
    /// `entry` waits from now on.
    fn push(&mut self, now: Instant, entry: usize, item: &Item);
    /// The next one, which is under way from now on. None: nothing waits, or what waits is held back.
    fn pop(&mut self, now: Instant) -> Option<usize>;
    /// `entry` is not under way any more.
    fn done(&mut self, now: Instant, entry: usize, item: &Item);
    /// `entry` waits on, as another class than `before`.
    fn raise(&mut self, now: Instant, entry: usize, before: &Item, item: &Item);
    /// When it wants to be asked again although nothing has happened: something that is held back may go then.
    fn deadline(&self) -> Option<Instant> {
        None
    }
}

/// An operation as a scheduler sees it.
#[derive(Clone, Copy, Debug)]
pub struct Item {
    pub direction: Direction,
    pub class: Class,
    /// Whose it is, where that is known; small.
    pub job: u32,
    /// Its first atom on the device.
    pub start: u64,
    pub arrived: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Read,
    Write,
}

impl Item {
    pub fn new<P>(arrived: Instant, job: u32, op: &Op<P>) -> Self {
        let (direction, start) = match &op.action {
            Action::Read(_, span) | Action::Allocation(_, span) => (Direction::Read, span.start),
            Action::Write(_, span, _) | Action::Zero(_, span, _) | Action::Discard(_, span) => (Direction::Write, span.start),
            Action::Flush | Action::Spin(_) => (Direction::Write, 0),
        };
        Item { direction, class: op.class, job, start, arrived }
    }

    /// Does somebody wait for it?
    pub fn is_sync(&self) -> bool {
        match self.class {
            Class::Client | Class::Log => true,
            Class::Fill | Class::Destage | Class::Clean | Class::Scrub | Class::Discard => false,
        }
    }
}

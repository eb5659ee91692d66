//! One scheduler per device: which operation goes next. It may reorder freely, because operations in flight never overlap and the engine
//! hands out nothing that depends on an operation that has not ended.

mod noop;

pub use noop::Noop;

use crate::op::{Class, Op};

pub trait Queue<P> {
    fn push(&mut self, op: Op<P>);
    /// The next operation for the device; `None` when nothing waits or its depth is used up.
    fn pop(&mut self) -> Option<Op<P>>;
    /// An operation of this class has ended.
    fn done(&mut self, class: Class);
    fn is_idle(&self) -> bool;
}

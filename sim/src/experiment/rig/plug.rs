//! The plugged queue of Linux 2.6: a single request that is asked for while another one ends waits for a timer, because nobody unplugs
//! the queue for it. (Four of them do, so pieces of a large request do not wait.) It is what paper 000's read misses waited for.
//! Source: Linux 2.6, block/ll_rw_blk.c, `blk_queue_make_request`: unplug after 4 requests, or 3 ms that a coarse clock makes more.

use crate::chance::Chance;
use crate::stamp::Stamps;
use std::collections::BTreeMap;
use tidegate_engine::op::{Action, Class, DeviceId, Op};
use tidegate_engine::time::{Duration, Instant};

/// A shorter fill is all there is of its request.
const PIECE_ATOMS: u64 = 512;

/// Requests that wait for the timer.
pub(super) struct Plug {
    /// Waits are drawn evenly up to this one.
    longest: Duration,
    chance: Chance,
    held: BTreeMap<(Instant, u64), Op<Stamps>>,
    count: u64,
}

impl Plug {
    pub fn new(longest: Duration, seed: u64) -> Plug {
        Plug { longest, chance: Chance::new(seed, "plug"), held: BTreeMap::new(), count: 0 }
    }

    /// Takes the operation if it has to wait; gives it back otherwise.
    pub fn take(&mut self, now: Instant, op: Op<Stamps>) -> Option<Op<Stamps>> {
        let waits = match &op.action {
            Action::Write(_, span, _) => op.device == DeviceId::Cache && op.class == Class::Fill && span.atoms < PIECE_ATOMS,
            Action::Read(..) | Action::Zero(..) | Action::Discard(..) | Action::Allocation(..) | Action::Flush | Action::Spin(_) => false,
        };
        if !waits || self.longest == Duration::ZERO {
            return Some(op);
        }
        self.count += 1;
        let until = now + Duration(self.chance.below(self.longest.0 + 1));
        self.held.insert((until, self.count), op);
        None
    }

    /// When the next one goes on.
    pub fn next(&self) -> Option<Instant> {
        self.held.first_key_value().map(|((until, _), _)| *until)
    }

    /// One that has waited long enough.
    pub fn release(&mut self, now: Instant) -> Option<Op<Stamps>> {
        if self.next()? > now {
            return None;
        }
        self.held.pop_first().map(|(_, op)| op)
    }
}

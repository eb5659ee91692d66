//! AC, "alleviate conflict" (Okumura, Kobayashi, Kise: paper 003, section 4): the device is cut into as many sub-groups as an SSD has channels,
//! reads go to another sub-group each time, writes stay with one, and reads avoid those that are being written.
//!
//! ```text
//!              of a direction's requests in a sub-group            reads                                   writes
//!   ZERO       there are none
//!   PEND       they wait                                           next, unless writes are PROC there      next if nothing is PROC
//!   END        one went last (reads)                               when no sub-group is PEND any more
//!   PROC       one went last (writes)                                                                      next
//! ```
//! Reads go before writes, but for one write after five reads; what somebody waits for (sync) goes before what nobody waits for (async).
//! Each kind has a deadline, and after eight operations in a row whatever is past its deadline goes first.
//!
//! Where the paper leaves something open or would fail, this is what is done:
//! * Nobody sets the first PROC: where there is none, a sub-group that is PEND is taken. A sub-group without writes is never PROC.
//! * Reads go where writes are PROC if all else has nothing to read.
//! * The search goes round from the last sub-group on: nobody is served first because of its address.
//! * The paper's order among the expired (sync read, async read, sync write, async write) lets an overload of sync reads starve all others:
//!   here the oldest deadline is first. So an operation waits for its deadline, for at most one batch, and for those that expired before it.
//! * What nobody waits for has a bounded number of places at the device, unless it has expired.

use super::lists::Lists;
use super::scheduler::{Direction, Item, Scheduler};
use crate::time::{Duration, Instant};

/// Sub-groups: the channels of the paper's SSD.
const GROUPS: usize = 8;
/// Operations in a row before expired ones are looked for.
const BATCH: u32 = 8;
/// So many reads in a row go while writes wait, and one more.
const READS_IN_A_ROW: u32 = 4;

/// Sync and async reads, sync and async writes.
const KINDS: usize = 4;
const SYNC_READ: usize = 0;
const ASYNC_READ: usize = 1;
const SYNC_WRITE: usize = 2;
const ASYNC_WRITE: usize = 3;
/// The paper's table 1, in ticks of 1/HZ seconds.
const EXPIRES: [Duration; KINDS] = [Duration::from_millis(500), Duration::from_secs(4), Duration::from_secs(2), Duration::from_secs(16)];

/// One direction's flags: a bit for each sub-group. Without either it is ZERO.
#[derive(Clone, Copy, Default)]
struct Matrix {
    pend: u32,
    /// END of reads, PROC of writes.
    last: u32,
    requests: [u32; GROUPS],
    /// Which went last.
    at: usize,
}

impl Matrix {
    fn joined(&mut self, group: usize) {
        self.requests[group] += 1;
        self.pend |= 1 << group;
        self.last &= !(1 << group);
    }

    /// One has gone, or waits on as another kind.
    fn left(&mut self, group: usize, has_gone: bool) {
        self.requests[group] -= 1;
        let bit = 1 << group;
        if has_gone || self.requests[group] == 0 {
            self.pend &= !bit;
            self.last &= !bit;
        }
        if has_gone {
            self.at = group;
            self.last |= if self.requests[group] > 0 { bit } else { 0 };
        }
    }
}

pub struct Ac {
    /// Of each kind in each sub-group, and of each kind by its deadlines.
    waiting: Lists,
    by_deadline: Lists,
    /// Of each kind: the sub-groups where some wait.
    filled: [u32; KINDS],
    /// Of each entry that waits: its sub-group, and its deadline.
    known: Vec<(usize, Instant)>,
    reads: Matrix,
    writes: Matrix,
    batch: u32,
    reads_in_a_row: u32,
    group_atoms: u64,
    async_under_way: usize,
    async_depth: usize,
}

impl Ac {
    /// For a device of `atoms`. What nobody waits for takes `async_depth` places at most.
    pub fn new(atoms: u64, async_depth: usize) -> Self {
        Ac {
            waiting: Lists::new(GROUPS * KINDS),
            by_deadline: Lists::new(KINDS),
            filled: [0; KINDS],
            known: Vec::new(),
            reads: Matrix::default(),
            writes: Matrix::default(),
            batch: 0,
            reads_in_a_row: 0,
            group_atoms: atoms.div_ceil(GROUPS as u64).max(1),
            async_under_way: 0,
            async_depth,
        }
    }

    fn is_held_back(&self, kind: usize) -> bool {
        matches!(kind, ASYNC_READ | ASYNC_WRITE) && self.async_under_way >= self.async_depth
    }

    /// The one whose deadline has passed longest ago.
    fn expired(&self, now: Instant) -> Option<usize> {
        let heads = (0..KINDS).filter_map(|kind| self.by_deadline.first(kind));
        heads.filter(|&entry| self.known[entry].1 <= now).min_by_key(|&entry| self.known[entry].1)
    }

    /// The next one by the matrices.
    fn choose(&mut self) -> Option<usize> {
        let order = match self.reads_in_a_row > READS_IN_A_ROW {
            true => [SYNC_WRITE, ASYNC_WRITE, SYNC_READ, ASYNC_READ],
            false => [SYNC_READ, ASYNC_READ, SYNC_WRITE, ASYNC_WRITE],
        };
        let kind = order.into_iter().find(|&kind| self.filled[kind] > 0 && !self.is_held_back(kind))?;
        let group = if kind <= ASYNC_READ { self.read_group(self.filled[kind]) } else { self.write_group(self.filled[kind]) };
        self.waiting.first(group * KINDS + kind)
    }

    /// Of these sub-groups, that which is read next.
    fn read_group(&mut self, filled: u32) -> usize {
        let Matrix { pend, last, .. } = &mut self.reads;
        if filled & *pend == 0 {
            *pend |= std::mem::take(last);
        }
        let pending = filled & self.reads.pend;
        let apart = pending & !self.writes.last;
        first_after(self.reads.at + 1, if apart > 0 { apart } else { pending })
    }

    /// Of these sub-groups, that which is written next.
    fn write_group(&self, filled: u32) -> usize {
        let going_on = filled & self.writes.last;
        first_after(self.writes.at, if going_on > 0 { going_on } else { filled })
    }

    fn matrix(&mut self, kind: usize) -> &mut Matrix {
        if kind <= ASYNC_READ { &mut self.reads } else { &mut self.writes }
    }

    fn join(&mut self, group: usize, kind: usize, entry: usize) {
        self.waiting.push(group * KINDS + kind, entry);
        self.filled[kind] |= 1 << group;
        self.matrix(kind).joined(group);
    }

    /// Takes an entry out of its sub-group; its deadline stays.
    fn leave(&mut self, entry: usize, has_gone: bool) -> usize {
        let list = self.waiting.remove(entry);
        let (group, kind) = (list / KINDS, list % KINDS);
        if self.waiting.is_empty(list) {
            self.filled[kind] &= !(1 << group);
        }
        self.matrix(kind).left(group, has_gone);
        kind
    }

    fn take(&mut self, entry: usize) -> usize {
        let kind = self.leave(entry, true);
        self.by_deadline.remove(entry);
        let writes_wait = self.filled[SYNC_WRITE] | self.filled[ASYNC_WRITE] > 0;
        self.reads_in_a_row = if kind <= ASYNC_READ && writes_wait { self.reads_in_a_row + 1 } else { 0 };
        self.async_under_way += usize::from(matches!(kind, ASYNC_READ | ASYNC_WRITE));
        entry
    }
}

impl Scheduler for Ac {
    fn push(&mut self, now: Instant, entry: usize, item: &Item) {
        let kind = kind(item);
        let group = ((item.start / self.group_atoms) as usize).min(GROUPS - 1);
        if self.known.len() <= entry {
            self.known.resize(entry + 1, (0, Instant::ZERO));
        }
        self.known[entry] = (group, now + EXPIRES[kind]);
        self.by_deadline.push(kind, entry);
        self.join(group, kind, entry);
    }

    fn pop(&mut self, now: Instant) -> Option<usize> {
        if self.batch >= BATCH {
            if let Some(entry) = self.expired(now) {
                return Some(self.take(entry));
            }
            self.batch = 0;
        }
        let entry = match self.choose() {
            Some(entry) => {
                self.batch += 1;
                entry
            }
            // All that waits is held back, unless it has expired.
            None => self.expired(now)?,
        };
        Some(self.take(entry))
    }

    fn done(&mut self, _now: Instant, _entry: usize, item: &Item) {
        self.async_under_way -= usize::from(!item.is_sync());
    }

    /// From now on its deadline is that of its new kind, or its old one if that is sooner.
    fn raise(&mut self, now: Instant, entry: usize, _before: &Item, item: &Item) {
        self.leave(entry, false);
        let (group, deadline) = self.known[entry];
        let kind = kind(item);
        if now + EXPIRES[kind] < deadline {
            self.known[entry].1 = now + EXPIRES[kind];
            self.by_deadline.remove(entry);
            self.by_deadline.push(kind, entry);
        }
        self.join(group, kind, entry);
    }

    fn deadline(&self) -> Option<Instant> {
        let held_back = [ASYNC_READ, ASYNC_WRITE].into_iter().filter(|&kind| self.filled[kind] > 0 && self.is_held_back(kind));
        held_back.filter_map(|kind| self.by_deadline.first(kind)).map(|entry| self.known[entry].1).min()
    }
}

fn kind(item: &Item) -> usize {
    match (item.direction, item.is_sync()) {
        (Direction::Read, true) => SYNC_READ,
        (Direction::Read, false) => ASYNC_READ,
        (Direction::Write, true) => SYNC_WRITE,
        (Direction::Write, false) => ASYNC_WRITE,
    }
}

/// The first of these sub-groups from `at` on, round and round. There is one.
fn first_after(at: usize, groups: u32) -> usize {
    let from = groups & (u32::MAX << (at % GROUPS));
    (if from > 0 { from } else { groups }).trailing_zeros() as usize
}

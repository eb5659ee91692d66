//! The block layer of a Linux host in front of a device: requests are merged and scheduled there, and nothing else is done to them. Of each
//! direction the scheduler has as many requests as the kernel has room for, at the device or not; who comes when they are used up waits
//! outside, reads and writes apart, unless a request that waits takes him along. The processor is quick: deciding takes no time.

use super::instant::Weightless;
use crate::experiment::load::{Access, Ask};
use std::collections::VecDeque;
use tidegate_engine::op::{Action, Answer, Class, DeviceId, Done, Lanes, Limits, Op, OpId, Zone};
use tidegate_engine::payload::Payload;
use tidegate_engine::queue::{Answered, Queue, QueueKind};
use tidegate_engine::time::Instant;

/// Of each direction, merged ones counted once (`nr_requests`, kernel 4.1).
const REQUESTS: usize = 128;
/// The longest request that is made of several: 512 KiB (`max_sectors_kb`, kernel 4.1).
const MERGED_ATOMS: u64 = 1024;

pub struct BlockLayer {
    queue: Queue<Weightless>,
    /// By the place of its operation: who asked.
    accesses: Vec<Option<Access>>,
    free: Vec<usize>,
    taken: u64,
    /// Reads, writes, FLUSHes that found no room; and how many have it.
    outside: [VecDeque<Access>; 3],
    inside: [usize; 3],
}

impl BlockLayer {
    /// Before a device with so many lanes, or 1 where they are not known.
    pub fn new(kind: QueueKind, atoms: u64, depth: usize, lanes: usize) -> Self {
        let limits = Limits { atoms, depth, op_atoms: MERGED_ATOMS, discards: false };
        BlockLayer {
            queue: Queue::new(kind, limits, Lanes::new(lanes as u32, limits.atoms), (depth / 4).max(1)),
            accesses: Vec::new(),
            free: Vec::new(),
            taken: 0,
            outside: Default::default(),
            inside: [0; 3],
        }
    }

    pub fn take(&mut self, now: Instant, access: Access) {
        let direction = access.ask as usize;
        let op = self.operation(access);
        let Some(op) = self.queue.join(access.worker, op) else { return };
        if self.inside[direction] < REQUESTS {
            self.inside[direction] += 1;
            self.queue.push(now, access.worker, op);
        } else {
            self.give_back(op.id);
            self.outside[direction].push_back(access);
        }
    }

    /// The next one for the device.
    pub fn next(&mut self, now: Instant) -> Option<Op<Weightless>> {
        self.queue.pop(now)
    }

    /// When it wants to be asked again although nothing has happened.
    pub fn deadline(&self) -> Option<Instant> {
        self.queue.deadline()
    }

    /// The device has ended an operation: whose requests that were.
    pub fn ended(&mut self, now: Instant, op: &Op<Weightless>) -> Vec<Access> {
        let answer = match &op.action {
            Action::Read(_, span) => Answer::Data([Weightless::zero(span.atoms)].into()),
            _ => Answer::Done,
        };
        let parts = match self.queue.done(now, Done { id: op.id, result: Ok(answer) }) {
            Answered::One(done) => vec![done],
            Answered::Merged(all) => all,
        };
        let accesses: Vec<Access> = parts.iter().map(|part| self.give_back(part.id)).collect();
        let direction = accesses[0].ask as usize;
        self.inside[direction] -= 1;
        while self.inside[direction] < REQUESTS
            && let Some(access) = self.outside[direction].pop_front()
        {
            self.take(now, access);
        }
        accesses
    }

    pub fn is_idle(&self) -> bool {
        self.queue.is_idle() && self.outside.iter().all(VecDeque::is_empty)
    }

    fn operation(&mut self, access: Access) -> Op<Weightless> {
        let place = self.free.pop().unwrap_or(self.accesses.len());
        self.accesses.resize(self.accesses.len().max(place + 1), None);
        self.accesses[place] = Some(access);
        self.taken += 1;
        let class = if access.background { Class::Destage } else { Class::Client };
        let action = match access.ask {
            Ask::Read => Action::Read(Zone::Data, access.span),
            Ask::Write => Action::Write(Zone::Data, access.span, [Weightless::zero(access.span.atoms)].into()),
            Ask::Flush => Action::Flush,
        };
        Op { id: OpId::new(self.taken, place), device: DeviceId::Cache, class, action }
    }

    fn give_back(&mut self, id: OpId) -> Access {
        self.free.push(id.place());
        self.accesses[id.place()].take().expect("somebody asked for it")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_engine::block::Span;

    fn access(ask: Ask, block: u64) -> Access {
        Access { lane: 0, worker: 0, due: Instant::ZERO, ask, span: Span::new(block * 8, 8), background: false }
    }

    #[test]
    fn a_direction_has_room_for_128_and_who_waits_outside_comes_in_when_one_ends() {
        let mut layer = BlockLayer::new(QueueKind::Noop, 1 << 30, 1_000, 1);
        (0..200).for_each(|number| layer.take(Instant::ZERO, access(Ask::Read, 2 * number)));
        layer.take(Instant::ZERO, access(Ask::Write, 7));
        let inside: Vec<_> = std::iter::from_fn(|| layer.next(Instant::ZERO)).collect();
        assert_eq!(inside.len(), 129, "reads do not take the room of writes");
        assert_eq!(layer.ended(Instant::ZERO, &inside[3])[0].span.start, 3 * 16);
        let next = layer.next(Instant::ZERO).expect("one has come in");
        assert_eq!(layer.ended(Instant::ZERO, &next)[0].span.start, 128 * 16);
    }

    #[test]
    fn neighbours_come_along_when_there_is_no_room() {
        let mut layer = BlockLayer::new(QueueKind::Noop, 1 << 30, 1_000, 1);
        (0..128).for_each(|number| layer.take(Instant::ZERO, access(Ask::Read, 100 * number)));
        layer.take(Instant::ZERO, access(Ask::Read, 1));
        let first = layer.next(Instant::ZERO).expect("one waits");
        assert_eq!(layer.ended(Instant::ZERO, &first).len(), 2);
        (1..128).for_each(|_| {
            let next = layer.next(Instant::ZERO).expect("one waits");
            layer.ended(Instant::ZERO, &next);
        });
        assert!(layer.is_idle());
    }
}

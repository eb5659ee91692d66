//! What a scheduler costs: an operation that is pushed and one that is popped, while so many wait. The device ends each at once.

use tidegate_engine::block::Span;
use tidegate_engine::op::{Action, Answer, Class, DeviceId, Done, Lanes, Limits, Op, OpId, Zone};
use tidegate_engine::queue::{Queue, QueueKind};
use tidegate_engine::time::Instant;

use super::Nothing;

/// Waiting, unless said otherwise; and so many more that what depends on the depth shows.
pub const DEPTH: u64 = 128;
pub const DEEP: u64 = 4_096;
/// The goal, of every scheduler.
pub const PAIR_NS_MAX: f64 = 150.0;

struct Waiting {
    queue: Queue<Nothing>,
    random: u64,
    now: u64,
}

impl Waiting {
    /// A read or a write of one block somewhere, no two of which are neighbours.
    fn push(&mut self, place: u64) {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.now += 1_000;
        let span = Span::new((self.random >> 34) << 4, 8);
        let action = match self.random >> 32 & 3 {
            0 => Action::Write(Zone::Data, span, vec![Nothing::Atoms(8)]),
            _ => Action::Read(Zone::Data, span),
        };
        let op = Op { id: OpId::new(1, place as usize), device: DeviceId::Cache, class: Class::Client, action };
        self.queue.push(Instant(self.now), (place % 40) as u32, op);
    }
}

/// So many pairs, with `depth` operations waiting.
pub fn pairs(kind: QueueKind, depth: u64, pairs: u64) {
    let limits = Limits { atoms: 1 << 34, depth: 1, op_atoms: 2048, discards: false };
    let mut waiting = Waiting { queue: Queue::new(kind, limits, Lanes::new(4, limits.atoms), 1), random: 1, now: 0 };
    (0..depth).for_each(|place| waiting.push(place));
    for _ in 0..pairs {
        let op = waiting.queue.pop(Instant(waiting.now)).expect("many wait");
        let answer = match op.action {
            Action::Read(_, span) => Answer::Data(vec![Nothing::Atoms(span.atoms)]),
            _ => Answer::Done,
        };
        waiting.queue.done(Instant(waiting.now), Done { id: op.id, result: Ok(answer) });
        waiting.push(op.id.place() as u64);
    }
}

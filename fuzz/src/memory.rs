//! Two devices in memory. Operations end when, and in the order in which, they are told to; what was not flushed may be lost.

use tidegate_engine::World;
use tidegate_engine::block::Span;
use tidegate_engine::op::{Action, Answer, DeviceError, DeviceId, Done, Op, Power, Zone};
use tidegate_engine::payload::Payload;
use tidegate_engine::request::{Extent, Reply};
use tidegate_engine::time::{Duration, Instant};
use tidegate_sim::back::contents::Contents;
use tidegate_sim::back::volatile::{Survive, Unflushed, Volatile};
use tidegate_sim::chance::Chance;
use tidegate_sim::stamp::Stamps;

#[derive(Clone)]
pub struct Memory {
    pub cache: Volatile,
    pub origin: Volatile,
    running: Vec<Running>,
    pub replies: Vec<Reply<Stamps>>,
    /// The next write, or flush, of the cache that ends does so badly.
    pub next_fails: bool,
    /// The engine wants the host to note that the cache misses writes.
    pub wants_fence: bool,
    /// For how long something has been in flight since the origin last took something.
    stood: Duration,
}

#[derive(Clone)]
struct Running {
    op: Op<Stamps>,
    /// Of a flush: what it covers.
    mark: u64,
}

impl Memory {
    pub fn new(cache: Contents, origin: Contents) -> Memory {
        Memory {
            cache: Volatile::new(cache),
            origin: Volatile::new(origin),
            running: Vec::new(),
            replies: Vec::new(),
            next_fails: false,
            wants_fence: false,
            stood: Duration::ZERO,
        }
    }

    pub fn in_flight(&self) -> usize {
        self.running.len()
    }

    /// Time passes, and nothing in flight ends.
    pub fn stand(&mut self, duration: Duration) {
        if !self.running.is_empty() {
            self.stood = Duration(self.stood.0 + duration.0);
        }
    }

    pub fn stood(&self) -> Duration {
        self.stood
    }

    fn device(&mut self, id: DeviceId) -> &mut Volatile {
        match id {
            DeviceId::Cache => &mut self.cache,
            DeviceId::Origin => &mut self.origin,
        }
    }

    /// The operation at this place of those in flight ends.
    pub fn end(&mut self, index: usize) -> Done<Stamps> {
        let Running { op, mark } = self.running.swap_remove(index);
        let writes = unflushed(&op.action);
        let changes = writes.is_some() || matches!(op.action, Action::Flush);
        let fails = changes && op.device == DeviceId::Cache && std::mem::take(&mut self.next_fails);
        if changes && op.device == DeviceId::Origin {
            self.stood = Duration::ZERO;
        }
        let device = self.device(op.device);
        let answer = match &op.action {
            Action::Read(_, span) => Answer::Data(device.visible().read(*span).into()),
            Action::Allocation(_, span) => Answer::Allocation(vec![Extent { atoms: span.atoms, hole: false, zero: false }]),
            Action::Spin(_) => Answer::Power(Power::Turning.into()),
            // Half of a flush that fails is durable by chance; here all of it is, or nothing.
            Action::Flush if fails => {
                device.flush_failed(mark, &mut Chance::new(mark, "a flush that failed"));
                Answer::Done
            }
            Action::Flush => {
                device.flushed(mark);
                Answer::Done
            }
            Action::Write(..) | Action::Zero(..) | Action::Discard(..) => {
                let mut write = writes.expect("it writes");
                if fails {
                    write.data = write.data.slice(0, write.data.atoms().div_ceil(2));
                }
                device.write(write);
                Answer::Done
            }
        };
        Done { id: op.id, result: if fails { Err(DeviceError::Medium) } else { Ok(answer) } }
    }

    /// The power goes: each device keeps what `survive` leaves of what it had not flushed.
    pub fn power_cut(&mut self, survive: &Survive, chance: &mut Chance) {
        for id in [DeviceId::Cache, DeviceId::Origin] {
            let of_device = self.running.iter().filter(|running| running.op.device == id);
            let running: Vec<Unflushed> = of_device.filter_map(|running| unflushed(&running.op.action)).collect();
            let left = self.device(id).power_cut(&running, survive, chance);
            *self.device(id) = Volatile::new(left);
        }
        self.running.clear();
        self.stood = Duration::ZERO;
        self.replies.clear();
    }
}

fn unflushed(action: &Action<Stamps>) -> Option<Unflushed> {
    let of = |zone: Zone, span: Span, data| Some(Unflushed { zone, start: span.start, data });
    match action {
        Action::Write(zone, span, parts) => of(*zone, *span, Stamps::concat(parts)),
        Action::Zero(zone, span, _) | Action::Discard(zone, span) => of(*zone, *span, Stamps::zero(span.atoms)),
        Action::Read(..) | Action::Allocation(..) | Action::Flush | Action::Spin(_) => None,
    }
}

impl World<Stamps> for Memory {
    fn start(&mut self, _now: Instant, op: Op<Stamps>) {
        let mark = self.device(op.device).mark();
        self.running.push(Running { op, mark });
    }

    fn reply(&mut self, _now: Instant, reply: Reply<Stamps>) {
        self.replies.push(reply);
    }

    fn fence(&mut self, _now: Instant, _at_risk: &mut dyn Iterator<Item = Span>) {
        self.wants_fence = true;
    }
}

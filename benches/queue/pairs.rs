//! What a scheduler costs: an operation that is pushed and one that is popped and ends at once, while so many wait. Operations have no
//! contents, since a queue looks at none.

use std::time::Instant as Clock;

use serde_json::{Value, json};
use tidegate_daemon::back::run::Run;
use tidegate_engine::block::Span;
use tidegate_engine::op::{Action, Answer, Class, DeviceId, Done, Lanes, Limits, Op, OpId, Zone};
use tidegate_engine::queue::{Queue, QueueKind};
use tidegate_engine::time::Instant;

use crate::callgrind::instructions;
use crate::chance::Chance;
use crate::{Round, Side, beside_noop, told};

const DEPTHS: [u64; 4] = [16, 128, 1_024, 8_192];
/// The goal, of every scheduler: nanoseconds at this depth.
const PAIR_NS_MAX: f64 = 150.0;
const GOAL_DEPTH: u64 = 128;
/// What a pair may cost at the greatest depth over the least: instructions of a queue that is O(1) in depth. The rest is how often
/// neighbours are merged.
const GROWTH_MAX: f64 = 1.1;

/// Of the shorter of two runs that are compared.
const COUNTED_PAIRS: u64 = 20_000;
/// A slice of about a millisecond.
const SLICE_PAIRS: u64 = 6_000;
const ROUNDS: usize = 60;

struct Waiting {
    queue: Queue<Run>,
    chance: Chance,
    now: u64,
}

impl Waiting {
    fn new(kind: QueueKind, depth: u64) -> Waiting {
        let limits = Limits { atoms: 1 << 34, depth: 1, op_atoms: 2048, discards: false };
        let mut waiting = Waiting { queue: Queue::new(kind, limits, Lanes::new(4, limits.atoms), 1), chance: Chance::new(1), now: 0 };
        (0..depth).for_each(|place| waiting.push(place));
        waiting
    }

    /// A read, or one time in four a write, of one block somewhere, no two of which are neighbours.
    fn push(&mut self, place: u64) {
        self.now += 1_000;
        let random = self.chance.next();
        let span = Span::new(random >> 34 << 4, 8);
        let action = match random & 3 {
            0 => Action::Write(Zone::Data, span, vec![].into()),
            _ => Action::Read(Zone::Data, span),
        };
        let op = Op { id: OpId::new(1, place as usize), device: DeviceId::Cache, class: Class::Client, action };
        self.queue.push(Instant(self.now), (place % 40) as u32, op);
    }

    fn pairs(&mut self, pairs: u64) {
        for _ in 0..pairs {
            let op = self.queue.pop(Instant(self.now)).expect("many wait");
            self.queue.done(Instant(self.now), Done { id: op.id, result: Ok(Answer::Done) });
            self.push(op.id.place() as u64);
        }
    }

    /// Nanoseconds of a pair, in a slice during which this thread was not switched out.
    fn slice(&mut self) -> f64 {
        loop {
            let (before, started) = (switches(), Clock::now());
            self.pairs(SLICE_PAIRS);
            let nanoseconds = started.elapsed().as_nanos() as f64;
            if switches() == before {
                return nanoseconds / SLICE_PAIRS as f64;
            }
        }
    }
}

/// So many pairs, for whoever counts instructions.
pub fn run(kind: QueueKind, depth: u64, pairs: u64) {
    Waiting::new(kind, depth).pairs(pairs);
}

/// Measures all schedulers at all depths and prints a table; its lines for the report.
pub fn measure(rounds: Option<usize>) -> Vec<Value> {
    println!("a push and a pop, an operation of {GOAL_DEPTH} that wait (goal: at most {PAIR_NS_MAX} ns at depth {GOAL_DEPTH})\n");
    println!("{:<10} {:>6} {:>13} {:>18} {:>20}  goal", "scheduler", "depth", "instructions", "ns [quartiles]", "over noop");
    beside_noop().flat_map(|kind| measure_kind(kind, rounds.unwrap_or(ROUNDS))).collect()
}

fn measure_kind(kind: QueueKind, rounds: usize) -> Vec<Value> {
    let counts = DEPTHS.map(|depth| counted(kind, depth));
    let lines = DEPTHS.into_iter().zip(counts).map(|(depth, counted)| print_row(kind, depth, counted, rounds)).collect();
    if let [Some(least), .., Some(greatest)] = counts
        && greatest > GROWTH_MAX * least
    {
        println!("{:<10} grows with the depth: {:.2} times the instructions  MISSED", kind.name(), greatest / least);
    }
    lines
}

/// Instructions of a pair, if they can be counted.
fn counted(kind: QueueKind, depth: u64) -> Option<f64> {
    let of = |pairs: u64| instructions(&["run", kind.name(), &depth.to_string(), &pairs.to_string()]);
    let (long, short) = (of(2 * COUNTED_PAIRS)?, of(COUNTED_PAIRS)?);
    Some((long - short) as f64 / COUNTED_PAIRS as f64)
}

fn print_row(kind: QueueKind, depth: u64, counted: Option<f64>, rounds: usize) -> Value {
    let (mut noop, mut other) = (Waiting::new(QueueKind::Noop, depth), Waiting::new(kind, depth));
    let mut slice = |side| if side == Side::Noop { noop.slice() } else { other.slice() };
    let (ns, over) = told(&(0..rounds).map(|_| Round::of(&mut slice)).collect::<Vec<_>>());
    let verdict = match depth {
        GOAL_DEPTH if ns.median() <= PAIR_NS_MAX => "met",
        GOAL_DEPTH => "MISSED",
        _ => "",
    };
    let instructions = counted.map_or("no valgrind".to_string(), |counted| format!("{counted:.0}"));
    println!("{:<10} {depth:>6} {instructions:>13} {:>18} {:>20}  {verdict}", kind.name(), ns.shown([0, 0]), over.shown([2, 2]));
    json!({ "scheduler": kind.name(), "depth": depth, "instructions": counted, "ns": ns.json(), "over_noop": over.json() })
}

/// How often this thread has been switched out.
fn switches() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").expect("a thread");
    let line = status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:")).expect("the kernel counts them");
    line.trim().parse().expect("a count")
}

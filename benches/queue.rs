//! The queues: what a scheduler costs, and whether it loses anything on the disk of this machine.
//!
//! `pairs`: an operation pushed and one popped and ended, while so many wait, in instructions, nanoseconds and over noop.
//! `patterns`: the six patterns of paper 003's jobs, fewer and smaller, on a file of this machine: bandwidth over noop's.
//! Prints two tables and writes target/bench/queue.json. `BENCH_ROUNDS` changes how long it takes, words on the command line pick parts.
//!
//! Only ratios inside one round count: noop, the scheduler twice, noop again (A B B A). What is told is the median of the rounds' ratios
//! and their quartiles; noop beside itself says how much to believe.

#[path = "shared/callgrind.rs"]
mod callgrind;
#[path = "../tests/common/chance.rs"]
mod chance;
#[path = "queue/pairs.rs"]
mod pairs;
#[path = "queue/patterns.rs"]
mod patterns;
#[allow(dead_code)] // other benches use more of it
#[path = "shared/quartiles.rs"]
mod quartiles;
#[path = "shared/report_file.rs"]
mod report_file;

use tidegate_engine::queue::QueueKind;

use quartiles::Quartiles;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [verb, kind, depth, pairs] = &arguments[..]
        && verb == "run"
    {
        let number = |text: &String| text.parse().expect("a number");
        return pairs::run(kind.parse().expect("a scheduler"), number(depth), number(pairs));
    }
    if !arguments.iter().any(|argument| argument == "--bench") {
        return println!("this measures for minutes: `make bench-queue` runs it");
    }
    let started = std::time::Instant::now();
    let words: Vec<&str> = arguments.iter().map(String::as_str).filter(|word| !word.starts_with('-')).collect();
    let wanted = |part| words.is_empty() || words.contains(&part);
    let rounds: Option<usize> = std::env::var("BENCH_ROUNDS").ok().map(|count| count.parse().expect("BENCH_ROUNDS is a count"));
    assert_ne!(rounds, Some(0), "BENCH_ROUNDS is a count of at least one");

    let pairs = if wanted("pairs") { pairs::measure(rounds) } else { Vec::new() };
    let patterns = if wanted("patterns") { patterns::measure(rounds) } else { Vec::new() };
    report_file::write("queue", serde_json::json!({ "pairs": pairs, "patterns": patterns }));
    println!("{:.0} s", started.elapsed().as_secs_f64());
}

/// All others beside the first: noop beside itself, then each other scheduler.
fn beside_noop() -> impl Iterator<Item = QueueKind> {
    let others = QueueKind::ALL.into_iter().filter(|&kind| kind != QueueKind::Noop);
    std::iter::once(QueueKind::Noop).chain(others)
}

/// One round, A B B A: twice noop and twice the scheduler beside it.
struct Round {
    noop: [f64; 2],
    kind: [f64; 2],
}

impl Round {
    fn of(mut measure: impl FnMut(Side) -> f64) -> Round {
        let first = measure(Side::Noop);
        let kind = [measure(Side::Kind), measure(Side::Kind)];
        Round { noop: [first, measure(Side::Noop)], kind }
    }

    /// The scheduler over noop.
    fn ratio(&self) -> f64 {
        self.kind.iter().sum::<f64>() / self.noop.iter().sum::<f64>()
    }
}

/// Whose turn it is in a round. Noop beside itself has both.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Noop,
    Kind,
}

/// What all rounds say of the scheduler, and of it over noop.
fn told(rounds: &[Round]) -> (Quartiles, Quartiles) {
    let kind = rounds.iter().flat_map(|round| round.kind).collect();
    (Quartiles::of(kind), Quartiles::of(rounds.iter().map(Round::ratio).collect()))
}

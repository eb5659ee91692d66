//! What was measured, as a line of the table and as JSON. A goal that is missed is printed as missed.

use serde_json::{Value, json};

use crate::load::{Load, Order, Way};
use crate::quartiles::Quartiles;
use crate::subject::Slice;

/// No slower than the baseline.
const FLOOR: f64 = 1.0;
/// Of sequential loads, beside the bare file.
const FLOOR_BARE: f64 = 0.95;
/// The baseline beside itself: further away from 1, nothing can be said.
pub const BAND: f64 = 0.05;
/// Of a ratio and of its quartiles.
const DECIMALS: [usize; 2] = [3, 2];

/// All rounds of one load. Each list has one entry a round.
pub struct Row<'a> {
    pub load: &'a Load,
    /// Requests of one slice.
    pub count: u64,
    pub tidegate: Vec<Slice>,
    /// The baseline, twice.
    pub qemu: [Vec<Slice>; 2],
    pub nbdkit: Vec<Slice>,
    /// Empty for random loads.
    pub bare: Vec<Slice>,
    /// A server that does nothing: what the socket alone gives. Empty for random loads.
    pub nothing: Vec<Slice>,
    /// What tidegate counted meanwhile.
    pub counted: Value,
}

/// A ratio and what it has to reach.
struct Goal {
    over: &'static str,
    ratio: Quartiles,
    floor: f64,
}

impl Goal {
    fn is_met(&self) -> bool {
        self.ratio.median() >= self.floor
    }
}

impl Row<'_> {
    /// Both baselines of each round, as if they were one.
    fn baseline(&self) -> Vec<f64> {
        self.qemu[0].iter().zip(&self.qemu[1]).map(|(one, other)| (one.seconds + other.seconds) / 2.0).collect()
    }

    /// How many times as fast tidegate was in each round.
    fn over(&self, seconds: impl IntoIterator<Item = f64>) -> Quartiles {
        Quartiles::of(self.tidegate.iter().zip(seconds).map(|(ours, theirs)| theirs / ours.seconds).collect())
    }

    fn self_check(&self) -> Quartiles {
        Quartiles::of(self.qemu[0].iter().zip(&self.qemu[1]).map(|(one, other)| other.seconds / one.seconds).collect())
    }

    /// The baseline beside itself is not 1: something else was measured too.
    pub fn is_void(&self) -> bool {
        (self.self_check().median() - 1.0).abs() > BAND
    }

    /// How many times as fast as the bare file a server that does nothing was: nobody can reach more over a socket.
    fn ceiling(&self) -> Option<Quartiles> {
        let ratios: Vec<f64> = self.bare.iter().zip(&self.nothing).map(|(bare, nothing)| bare.seconds / nothing.seconds).collect();
        (!ratios.is_empty()).then(|| Quartiles::of(ratios))
    }

    fn goals(&self) -> Vec<Goal> {
        let mut goals = vec![Goal { over: "qemu-nbd", ratio: self.over(self.baseline()), floor: FLOOR }];
        if self.load.order == Order::Sequential {
            let ratio = self.over(self.bare.iter().map(|slice| slice.seconds));
            goals.push(Goal { over: "bare file", ratio, floor: FLOOR_BARE });
        }
        goals
    }

    fn per_second(&self, slices: &[Slice]) -> Option<f64> {
        // A round has two slices.
        (!slices.is_empty()).then(|| 2.0 * self.count as f64 / Quartiles::of(slices.iter().map(|slice| slice.seconds).collect()).median())
    }

    fn cpu_us(&self, slices: &[Slice]) -> Quartiles {
        Quartiles::of(slices.iter().map(|slice| slice.cpu_seconds * 1e6 / (2 * self.count) as f64).collect())
    }

    /// What should not have happened meanwhile: it costs time that the others do not spend.
    fn disturbances(&self) -> Vec<String> {
        let count = |key: &str| self.counted[key].as_u64().unwrap_or_else(|| panic!("{key} was counted"));
        let seen = [("blocks missed", count("miss_blocks")), ("blocks destaged", count("destaged_blocks"))];
        seen.iter().filter(|(_, count)| *count > 0).map(|(what, count)| format!("{count} {what}")).collect()
    }

    pub fn print_heading() {
        println!(
            "{:<33}{:>9}{:>9}{:>9}{:>9}  {:<10}{:<20}{:>6}  {:<8}{:<20}server CPU µs/request:",
            "requests per second", "tidegate", "qemu-nbd", "nbdkit", "bare", "tidegate", "ratio", "floor", "", "qemu-nbd",
        );
        println!(
            "{:<33}{:>9}{:>9}{:>9}{:>9}  {:<10}{:<20}{:>6}  {:<8}{:<20}tidegate qemu-nbd nbdkit",
            "", "", "", "file", "file", "over", "[quartiles]", "", "met?", "over itself",
        );
    }

    pub fn print(&self) {
        let rate = |slices: &[Slice]| self.per_second(slices).map_or("-".to_owned(), |rate| format!("{rate:.0}"));
        let rates = [&self.tidegate, &self.qemu[0], &self.nbdkit, &self.bare].map(|slices| format!("{:>9}", rate(slices))).concat();
        let [ours, qemu, nbdkit] = [&self.tidegate, &self.qemu[0], &self.nbdkit].map(|slices| self.cpu_us(slices).median());
        let verdict = |goal: &Goal| match (self.is_void(), goal.is_met()) {
            (true, _) => "void",
            (false, true) => "met",
            (false, false) => "missed",
        };
        for (number, goal) in self.goals().iter().enumerate() {
            let first = number == 0;
            println!(
                "{:<33}{:<36}  {:<10}{:<20}{:>6.2}  {:<8}{:<20}{}",
                if first { self.load.what } else { "" },
                if first { rates.as_str() } else { "" },
                goal.over,
                goal.ratio.shown(DECIMALS),
                goal.floor,
                verdict(goal),
                if first { self.self_check().shown(DECIMALS) } else { String::new() },
                if first { format!("{ours:>8.1} {qemu:>8.1} {nbdkit:>6.1}") } else { String::new() },
            );
        }
        if let Some(ceiling) = self.ceiling() {
            let ours = self.over(self.nothing.iter().map(|slice| slice.seconds));
            println!(
                "{:<33}a server that does nothing over the bare file {}, tidegate over that {}",
                "",
                ceiling.shown(DECIMALS),
                ours.shown(DECIMALS)
            );
        }
        let disturbances = self.disturbances();
        if !disturbances.is_empty() {
            println!("{:<33}disturbed: {}", "", disturbances.join(", "));
        }
    }

    pub fn json(&self) -> Value {
        let load = self.load;
        let subject = |slices: &[Slice]| json!({ "per_second": self.per_second(slices), "cpu_us": self.cpu_us(slices).json() });
        let goals: Vec<Value> = (self.goals().iter())
            .map(|goal| json!({ "over": goal.over, "ratio": goal.ratio.json(), "floor": goal.floor, "met": goal.is_met() }))
            .collect();
        json!({
            "what": load.what, "way": if load.way == Way::Write { "write" } else { "read" },
            "random": load.order == Order::Random, "bytes": load.bytes, "depth": load.depth,
            "rounds": self.tidegate.len(), "slices_per_round": 2, "requests_per_slice": self.count,
            "tidegate": subject(&self.tidegate), "qemu_nbd": subject(&self.qemu[0]), "qemu_nbd_again": subject(&self.qemu[1]),
            "nbdkit_file": subject(&self.nbdkit), "bare_file": { "per_second": self.per_second(&self.bare) },
            "nothing": { "per_second": self.per_second(&self.nothing), "over_bare_file": self.ceiling().map(|ceiling| ceiling.json()) },
            "goals": goals, "qemu_nbd_over_itself": self.self_check().json(), "void": self.is_void(),
            "tidegate_counted": self.counted,
        })
    }
}

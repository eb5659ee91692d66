//! What was measured, as a line of the table and as JSON. A goal that is missed is printed as missed.

use serde_json::{Value, json};

use crate::ColdLoad;
use crate::quartiles::Quartiles;
use crate::subject::Slice;

/// Time over that of the bare disk.
pub const GOAL: f64 = 1.02;
/// The bare disk beside itself: further away from 1, nothing can be said.
pub const BAND: f64 = 0.02;
/// Of a ratio and of its quartiles.
const DECIMALS: [usize; 2] = [3, 3];

/// The slices of one round, there and back.
pub struct Round {
    pub ours: [Slice; 2],
    pub qemu: [Slice; 2],
    pub bare: [Slice; 2],
}

/// All rounds of one load.
pub struct Row<'a> {
    pub cold: &'a ColdLoad,
    /// Requests of one slice.
    pub count: u64,
    pub rounds: Vec<Round>,
    /// What tidegate counted meanwhile.
    pub counted: Value,
}

fn seconds([there, back]: [Slice; 2]) -> f64 {
    (there + back).seconds
}

impl Row<'_> {
    fn of_rounds(&self, value: impl Fn(&Round) -> f64) -> Quartiles {
        Quartiles::of(self.rounds.iter().map(value).collect())
    }

    fn over_bare(&self) -> Quartiles {
        self.of_rounds(|round| seconds(round.ours) / seconds(round.bare))
    }

    fn over_qemu(&self) -> Quartiles {
        self.of_rounds(|round| seconds(round.ours) / seconds(round.qemu))
    }

    fn qemu_over_bare(&self) -> Quartiles {
        self.of_rounds(|round| seconds(round.qemu) / seconds(round.bare))
    }

    fn self_check(&self) -> Quartiles {
        self.of_rounds(|round| round.bare[1].seconds / round.bare[0].seconds)
    }

    pub fn is_void(&self) -> bool {
        (self.self_check().median() - 1.0).abs() > BAND
    }

    fn is_met(&self) -> bool {
        self.over_bare().median() <= GOAL
    }

    fn per_second(&self, slices: impl Fn(&Round) -> [Slice; 2]) -> f64 {
        2.0 * self.count as f64 / self.of_rounds(|round| seconds(slices(round))).median()
    }

    fn cpu_us(&self, slices: impl Fn(&Round) -> [Slice; 2]) -> f64 {
        let of_round = |[there, back]: [Slice; 2]| (there + back).cpu_seconds * 1e6 / (2 * self.count) as f64;
        self.of_rounds(|round| of_round(slices(round))).median()
    }

    pub fn print_heading() {
        println!(
            "{:<31}{:>26}   {:<22}{:<10}{:<22}{:<22}{:<22}CPU µs/request",
            "", "requests per second", "time of tidegate", "goal", "of tidegate", "of qemu-nbd", "the bare disk"
        );
        println!(
            "{:<31}{:>9}{:>8}{:>9}   {:<22}{:<10}{:<22}{:<22}{:<22}tidegate qemu-nbd",
            "cold reads",
            "tidegate",
            "bare",
            "qemu-nbd",
            "over the bare disk",
            "≤ 1.02",
            "over qemu-nbd",
            "over the bare disk",
            "over itself"
        );
    }

    pub fn print(&self) {
        println!(
            "{:<31}{:>9.0}{:>8.0}{:>9.0}   {:<22}{:<10}{:<22}{:<22}{:<22}{:>8.0} {:>8.0}",
            self.cold.load.what,
            self.per_second(|round| round.ours),
            self.per_second(|round| round.bare),
            self.per_second(|round| round.qemu),
            self.over_bare().shown(DECIMALS),
            match (self.is_void(), self.is_met()) {
                (true, _) => "void",
                (false, true) => "met",
                (false, false) => "missed",
            },
            self.over_qemu().shown(DECIMALS),
            self.qemu_over_bare().shown(DECIMALS),
            self.self_check().shown(DECIMALS),
            self.cpu_us(|round| round.ours),
            self.cpu_us(|round| round.qemu),
        );
    }

    pub fn json(&self) -> Value {
        let load = &self.cold.load;
        json!({
            "what": load.what, "bytes": load.bytes, "depth": load.depth, "seek_ms": self.cold.seek.ms(),
            "rounds": self.rounds.len(), "slices_per_round": 2, "requests_per_slice": self.count,
            "tidegate": { "per_second": self.per_second(|round| round.ours), "cpu_us": self.cpu_us(|round| round.ours) },
            "qemu_nbd": { "per_second": self.per_second(|round| round.qemu), "cpu_us": self.cpu_us(|round| round.qemu) },
            "bare": { "per_second": self.per_second(|round| round.bare) },
            "time_over_bare": self.over_bare().json(), "goal": GOAL, "met": self.is_met(), "void": self.is_void(),
            "time_over_qemu_nbd": self.over_qemu().json(), "qemu_nbd_over_bare": self.qemu_over_bare().json(),
            "bare_over_itself": self.self_check().json(), "tidegate_counted": self.counted,
        })
    }
}

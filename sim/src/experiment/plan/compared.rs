//! Rows of several runs: what is compared, and how a plan names it.

use super::file::RowTable;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compared {
    Ratio,
    SumRatio,
    Gain,
    Difference,
    Slowdown,
    Order,
    BreakEven,
}

impl Compared {
    pub const NAMES: [(&str, Compared); 7] = [
        ("ratio", Compared::Ratio),
        ("sum-ratio", Compared::SumRatio),
        ("gain", Compared::Gain),
        ("difference", Compared::Difference),
        ("slowdown", Compared::Slowdown),
        ("order", Compared::Order),
        ("break-even", Compared::BreakEven),
    ];
    /// More than anybody compares.
    const RUNS_MAX: usize = 64;

    /// What a metric of that name compares; nothing if it is one of a single run.
    pub fn named(metric: &str) -> Option<Compared> {
        Compared::NAMES.iter().find(|(name, _)| *name == metric).map(|(_, compared)| *compared)
    }

    /// Can so many runs be compared so?
    pub fn takes(self, runs: usize) -> bool {
        let several = (2..=Compared::RUNS_MAX).contains(&runs);
        match self {
            Compared::Ratio | Compared::Gain | Compared::Difference => runs == 2,
            Compared::SumRatio => several && runs.is_multiple_of(2),
            Compared::Slowdown | Compared::Order => several,
            Compared::BreakEven => runs == 3,
        }
    }

    /// For whoever named too few of them, or too many.
    pub fn wants(self) -> &'static str {
        match self {
            Compared::Ratio => "a ratio is `of` two runs: the first by the second",
            Compared::SumRatio => "a sum-ratio is `of` an even number of runs: the sum of the first half by that of the second",
            Compared::Gain => "a gain is `of` two runs: the first by the second, without what is to gain",
            Compared::Difference => "a difference is `of` two runs: the first without the second",
            Compared::Slowdown => "a slowdown is `of` two runs or more: the first by the least of the others",
            Compared::Order => "an order is `of` two runs or more, the least first",
            Compared::BreakEven => "a break-even is `of` three runs: a gap below it, one above it, and a disk that stays on",
        }
    }

    /// What a row is called that has no name.
    pub fn name(self, row: &RowTable) -> String {
        let joined = |separator: &str| row.of.iter().map(|run| run.as_ref().as_str()).collect::<Vec<_>>().join(separator);
        match self {
            Compared::Ratio => joined(" : "),
            Compared::SumRatio => joined(" + "),
            Compared::Difference => joined(" - "),
            Compared::Order => joined(if row.slack_percent.is_some() { " <= " } else { " < " }),
            Compared::Gain | Compared::Slowdown => row.of[0].as_ref().clone(),
            Compared::BreakEven => "break-even".to_owned(),
        }
    }
}

//! What was found, and why something could not be.

use std::fmt;

use super::comb::{self, Interleave, Tooth};
use super::curve::{self, Knee, Point};
use super::evidence::{median, quantile};
use super::meeting::{self, Parts};
use super::stretches::{self, Stretches};
use super::{Beside, Pair};
use crate::draw::Draw;
use crate::time::Duration;

/// Flash needs longer to be read.
const FLASH_MIN: Duration = Duration::from_micros(25);
/// Far reads of a disk take so many times as long as near ones, and at least so long.
const ARM_RATIO: f64 = 1.4;
const ARM_MIN: Duration = Duration::from_millis(1);
/// Two reads take nearly as long as one after the other.
const ONE_AT_A_TIME: f64 = 0.8;
/// Fewer pairs say nothing.
const PAIRS_MIN: usize = 500;
/// Columns of the picture of pairs.
const COLUMNS: u64 = 64;

/// Something that was looked for.
#[derive(Clone, Debug, PartialEq)]
pub enum Finding<T> {
    /// And in what share of all repeats it was found again.
    Seen {
        what: T,
        sure: f64,
    },
    Unseen(Unseen),
}

impl<T> Finding<T> {
    pub fn seen(&self) -> Option<&T> {
        match self {
            Finding::Seen { what, .. } => Some(what),
            Finding::Unseen(_) => None,
        }
    }

    fn new(found: Option<(T, f64)>, otherwise: Unseen) -> Finding<T> {
        match found {
            Some((what, sure)) => Finding::Seen { what, sure },
            None => Finding::Unseen(otherwise),
        }
    }
}

/// Why something cannot be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unseen {
    /// Near reads are much quicker than far ones.
    Arm,
    /// Two reads take as long as one after the other.
    OneAtATime,
    /// It is quicker than flash.
    Memory,
    /// The distance makes no difference.
    Even,
    /// Too few pairs in the time there was.
    Few,
    /// Pairs that meet are no crowd of their own.
    NoCrowd,
    /// Only part of the device was looked at.
    Part,
    /// Throughput still grows at the greatest depth.
    Grows,
    /// Nothing may be written.
    ReadOnly,
}

impl fmt::Display for Unseen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unseen::Arm => "far reads take much longer than near ones, as on a disk with an arm; that covers everything else",
            Unseen::OneAtATime => "two reads take as long as one after the other, wherever they are",
            Unseen::Memory => "it answers more quickly than flash can: memory (a RAM disk, a cache of the host), or places never written",
            Unseen::Even => {
                "two reads take the same time at every distance: a layer between hides the parts, or what is there was not written in order"
            }
            Unseen::Few => "too few pairs of reads in this time; give it more",
            Unseen::NoCrowd => "pairs that meet cannot be told from those that do not",
            Unseen::Part => "only part of the device was looked at",
            Unseen::Grows => "throughput still grows at the greatest depth that was tried",
            Unseen::ReadOnly => "nothing may be written",
        })
    }
}

/// What a probe has found.
#[derive(Clone, Debug, PartialEq)]
pub struct Findings {
    /// A read alone, anywhere: its median, and nine tenths of all; and a read near the one before.
    pub alone: Duration,
    pub alone_p90: Duration,
    pub alone_near: Duration,
    pub interleave: Finding<Interleave>,
    pub stretches: Finding<Stretches>,
    pub parts: Finding<Parts>,
    pub knee: Finding<Knee>,
    pub beside: Finding<Beside>,
    /// Pairs of reads over their distance: within one period where there is one.
    pub pairs: Vec<Tooth>,
    pub curve: Vec<Point>,
}

impl Findings {
    /// Parts that work side by side, by the maps that were seen.
    pub fn width(&self) -> Option<u64> {
        let (width, count) = (self.interleave.seen().map(|found| found.width), self.stretches.seen().map(|found| found.count));
        width.or(count).map(|_| width.unwrap_or(1) * count.unwrap_or(1))
    }
}

/// All that was measured.
pub(super) struct Evidence<'a> {
    pub atoms: u64,
    pub is_whole: bool,
    pub far_alone: &'a [Duration],
    pub near_alone: &'a [Duration],
    /// Reads alone between near pairs, and between far ones.
    pub between_near: &'a [Duration],
    pub between_far: &'a [Duration],
    pub near: &'a [Pair],
    pub far: &'a [Pair],
    pub curve: Vec<Point>,
    pub beside: Option<Beside>,
}

pub(super) fn conclude(evidence: &Evidence<'_>, draw: &mut Draw) -> Findings {
    let Evidence { atoms, is_whole, far_alone, near_alone, between_near, between_far, near, far, curve, beside } = evidence;
    let (alone, alone_near) = (median(between_far), median(near_alone));
    let has_arm = median(far_alone) >= ARM_MIN && median(far_alone).0 as f64 > ARM_RATIO * alone_near.0 as f64;
    let interleave = match has_arm {
        true => Finding::Unseen(Unseen::Arm),
        false => Finding::new(comb::find(near, median(between_near), draw), why_even(near, median(between_near))),
    };
    let stretches = match (has_arm, is_whole) {
        (true, _) => Finding::Unseen(Unseen::Arm),
        (false, false) => Finding::Unseen(Unseen::Part),
        (false, true) => Finding::new(stretches::find(far, *atoms, alone, draw), why_even(far, alone)),
    };
    let parts = match has_arm {
        true => Finding::Unseen(Unseen::Arm),
        false => match meeting::find(far, between_far) {
            // The interval says how sure it is: two standard deviations.
            Some(parts) => Finding::Seen { what: parts, sure: 0.95 },
            None if far.len() < PAIRS_MIN => Finding::Unseen(Unseen::Few),
            None => Finding::Unseen(Unseen::NoCrowd),
        },
    };
    Findings {
        alone,
        alone_p90: quantile(between_far, 0.9),
        alone_near,
        pairs: comb::picture(near, median(between_near), interleave.seen(), COLUMNS),
        interleave,
        stretches,
        parts,
        knee: Finding::new(curve::find(curve, draw), Unseen::Grows),
        beside: match beside {
            Some(beside) => Finding::Seen { what: beside.clone(), sure: 1.0 },
            None => Finding::Unseen(Unseen::ReadOnly),
        },
        curve: curve.clone(),
    }
}

/// Why pairs show nothing.
fn why_even(pairs: &[Pair], alone: Duration) -> Unseen {
    let times: Vec<Duration> = pairs.iter().map(|pair| pair.time).collect();
    match median(&times).0 as f64 / alone.0.max(1) as f64 - 1.0 {
        _ if pairs.len() < PAIRS_MIN => Unseen::Few,
        _ if alone < FLASH_MIN => Unseen::Memory,
        extra if extra > ONE_AT_A_TIME => Unseen::OneAtATime,
        _ => Unseen::Even,
    }
}

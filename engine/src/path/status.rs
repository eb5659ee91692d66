//! Status: what is allocated, for NBD `base:allocation`. Cached blocks are data, and so are what fronts have written and what went through to the
//! origin and is pinned (that may have forgotten it); zeroed ranges are zeros, the rest the origin knows.
//! In which tier it all is, `tier` answers.
//!
//! The answer may end before the question does: where what is known changes from block to block, after so many looks; sooner where a single
//! extent is asked for, since that is asked again for every extent.

use crate::block::{Block, Span};
use crate::cache::format::RangeKind;
use crate::cache::index::Index;
use crate::cache::lost::Lost;
use crate::cache::ranges::Ranges;
use crate::op::{Action, Answer, Class, DeviceError, DeviceId, OpId, Zone};
use crate::payload::Payload;
use crate::probe::WaitReason;
use crate::request::{Command, Extent, Outcome, RequestError};
use crate::spin::Motor;

use super::{Engine, Owner, Stage};

/// Looks for one answer, about a millisecond: a run of the index, a zeroed range, a part of what lies above the log.
const LOOKS_MAX: usize = 1 << 16;
/// The same for one extent.
const LOOKS_FOR_ONE: usize = 1 << 13;
/// Blocks that are looked up before it is asked whether that is enough.
const PIECE_BLOCKS: u64 = 4096;

pub(super) struct Querying {
    /// What is told of.
    span: Span,
    /// Its runs in order.
    runs: Vec<Run>,
    /// The origin is to be asked once nobody writes the span.
    parked: bool,
}

/// Atoms of which the same is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    atoms: u64,
    known: Known,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Data,
    Zeros {
        hole: bool,
    },
    /// The origin knows.
    Nothing,
}

/// Runs from the beginning of a span, and what they cost.
#[derive(Default)]
struct Found {
    /// No two neighbours are the same.
    runs: Vec<Run>,
    looks: usize,
}

impl Found {
    /// One look has come to this.
    fn add(&mut self, atoms: u64, known: Known) {
        self.looks += 1;
        match self.runs.last_mut() {
            Some(last) if last.known == known => last.atoms += atoms,
            _ if atoms > 0 => self.runs.push(Run { atoms, known }),
            _ => {}
        }
    }

    fn atoms(&self) -> u64 {
        self.runs.iter().map(|run| run.atoms).sum()
    }
}

/// Goes through a span from its beginning, in pieces that end where blocks do, until all of it is known, or has taken so many looks.
fn found(span: Span, block_atoms: u64, looks: usize, mut look: impl FnMut(Span, &mut Found)) -> Found {
    let mut found = Found::default();
    let mut at = span.start;
    while at < span.end() && found.looks < looks {
        let end = span.end().min((at / block_atoms + PIECE_BLOCKS) * block_atoms);
        look(Span::new(at, end - at), &mut found);
        at = end;
    }
    found
}

/// What the log or the origin has.
struct Below<'a> {
    index: &'a Index,
    ranges: &'a Ranges,
    lost: &'a Lost,
    block_atoms: u64,
}

impl Below<'_> {
    fn look(&self, span: Span, found: &mut Found) {
        let first = span.start / self.block_atoms;
        let mut runs = Vec::new();
        self.index.lookup(Block(first), span.end().div_ceil(self.block_atoms) - first, &mut runs);
        for run in runs {
            let part = self.atoms(run.block, run.blocks).intersection(span);
            // What is lost is not zero.
            if run.slot.is_some() || self.lost.has_any_of(run.block, run.blocks) {
                found.add(part.atoms, Known::Data);
                continue;
            }
            let mut at = part.start;
            for (start, range) in self.ranges.overlapping(run.block, run.blocks) {
                let zero = self.atoms(start, range.blocks).intersection(part);
                found.add(zero.start - at, Known::Nothing);
                found.add(zero.atoms, Known::Zeros { hole: range.kind == RangeKind::Trim });
                at = zero.end();
            }
            found.add(part.end() - at, Known::Nothing);
        }
    }

    fn atoms(&self, block: Block, blocks: u64) -> Span {
        Span::new(block.0 * self.block_atoms, blocks * self.block_atoms)
    }
}

impl<P: Payload> Engine<P> {
    pub(super) fn begin_status(&mut self, number: usize, one: bool) {
        let asked = self.requests.get(number).request.span;
        let found = self.known_status(asked, one);
        let span = Span::new(asked.start, found.atoms());
        let asks = found.runs.iter().any(|run| run.known == Known::Nothing);
        let sleeps = self.rotation.motor.as_ref().is_some_and(Motor::is_down);
        self.requests.get_mut(number).waits = WaitReason::Origin;
        self.requests.get_mut(number).stage = Stage::Querying(Querying { span, runs: found.runs, parked: false });
        if asks && !sleeps {
            self.ask_origin(number);
        } else {
            // Not worth to wake a disk for: what is not known to be zeros counts as data.
            self.tell_status(number, &[]);
        }
    }

    fn ask_origin(&mut self, number: usize) {
        let Stage::Querying(querying) = &mut self.requests.get_mut(number).stage else { panic!("a status request is being asked") };
        let span = querying.span;
        querying.parked = self.origin.is_closed(span);
        if !querying.parked {
            let action = Action::Allocation(Zone::Origin, span);
            let op = self.start(DeviceId::Origin, Class::Client, action, Owner::Status { request: number });
            self.origin.begin_read(op, span, self.now);
        }
    }

    /// A destage has let its spans go: the questions behind it are asked.
    pub(super) fn unpark_status(&mut self) {
        let is_parked = |stage: &Stage<P>| matches!(stage, Stage::Querying(Querying { parked: true, .. }));
        let parked: Vec<usize> = self.requests.iter().filter(|(_, active)| is_parked(&active.stage)).map(|(number, _)| number).collect();
        parked.into_iter().for_each(|number| self.ask_origin(number));
    }

    fn known_status(&self, span: Span, one: bool) -> Found {
        let below = Below { index: &self.index, ranges: &self.ranges, lost: &self.lost, block_atoms: self.block_atoms() };
        found(span, self.block_atoms(), if one { LOOKS_FOR_ONE } else { LOOKS_MAX }, |piece, found| {
            for (part, above) in self.over_log(piece) {
                match above {
                    Some(_) => found.add(part.atoms, Known::Data),
                    None => below.look(part, found),
                }
            }
        })
    }

    pub(super) fn status_done(&mut self, op: OpId, number: usize, result: Result<Answer<P>, DeviceError>) {
        self.origin.end_read(op, self.now, self.turning_since());
        match result {
            Ok(Answer::Allocation(origin)) => self.tell_status(number, &origin),
            Ok(Answer::Done | Answer::Data(_) | Answer::Power(_)) | Err(_) => self.answer(number, Err(RequestError::Io)),
        }
    }

    fn tell_status(&mut self, number: usize, origin: &[Extent]) {
        let active = self.requests.get(number);
        let Stage::Querying(querying) = &active.stage else { panic!("a status request is being asked") };
        let allocation = merged(&querying.runs, origin);
        let tiers = match active.request.command {
            Command::Status { tiers: true, .. } => self.tiers(active.request.span),
            _ => Vec::new(),
        };
        self.answer(number, Ok(Outcome::Status { allocation, tiers }));
    }
}

/// The extents of these runs, of which `origin` tells what is not known: from the same beginning. Both are gone through once, side by side. What
/// `origin` does not tell of is data.
fn merged(runs: &[Run], origin: &[Extent]) -> Vec<Extent> {
    let mut extents: Vec<Extent> = Vec::new();
    let mut add = |extent: Extent| match extents.last_mut() {
        Some(last) if (last.hole, last.zero) == (extent.hole, extent.zero) => last.atoms += extent.atoms,
        _ => extents.push(extent),
    };
    let data = |atoms: u64| Extent { atoms, hole: false, zero: false };
    let mut origin = origin.iter().copied();
    let mut theirs = data(0);
    for run in runs {
        let mut left = run.atoms;
        while left > 0 {
            if theirs.atoms == 0 {
                theirs = origin.next().unwrap_or(data(u64::MAX));
            }
            let atoms = left.min(theirs.atoms);
            match run.known {
                _ if atoms == 0 => {}
                Known::Data => add(data(atoms)),
                Known::Zeros { hole } => add(Extent { atoms, hole, zero: true }),
                Known::Nothing => add(Extent { atoms, ..theirs }),
            }
            (left, theirs.atoms) = (left - atoms, theirs.atoms - atoms);
        }
    }
    extents
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Slot;
    use crate::cache::format::Geometry;
    use proptest::prelude::*;

    fn nothing_lost() -> Lost {
        Lost::new(Geometry { block_atoms: 8, set_slots: 64, sets: 70, journal_pages: 16, volume_atoms: 1600, range_entries: 300 })
    }

    /// What an atom is: (hole, zero).
    type Atom = (bool, bool);

    /// For every run those extents of `origin` that lie in it, looked for from the first one on.
    fn simply_merged(runs: &[Run], origin: &[Extent]) -> Vec<Atom> {
        let mut start = 0;
        let mut atoms = Vec::new();
        for run in runs {
            let span = Span::new(start, run.atoms);
            match run.known {
                Known::Data => atoms.extend(vec![(false, false); run.atoms as usize]),
                Known::Zeros { hole } => atoms.extend(vec![(hole, true); run.atoms as usize]),
                Known::Nothing => {
                    let mut at = 0;
                    for extent in origin {
                        let here = Span::new(at, extent.atoms).intersection(span);
                        atoms.extend(vec![(extent.hole, extent.zero); here.atoms as usize]);
                        at += extent.atoms;
                    }
                    atoms.resize(span.end() as usize, (false, false));
                }
            }
            start += run.atoms;
        }
        atoms
    }

    fn each_atom(extents: &[Extent]) -> Vec<Atom> {
        extents.iter().flat_map(|extent| vec![(extent.hole, extent.zero); extent.atoms as usize]).collect()
    }

    fn known() -> impl Strategy<Value = Known> {
        prop_oneof![2 => Just(Known::Data), 1 => any::<bool>().prop_map(|hole| Known::Zeros { hole }), 3 => Just(Known::Nothing)]
    }

    proptest! {
        #[test]
        fn what_is_known_and_what_the_origin_says_come_to_the_same_side_by_side_as_each_run_by_itself(
            runs in prop::collection::vec((1u64..20, known()).prop_map(|(atoms, known)| Run { atoms, known }), 0..40),
            origin in prop::collection::vec((0u64..30, any::<Atom>()).prop_map(|(atoms, (hole, zero))| Extent { atoms, hole, zero }), 0..40),
        ) {
            let extents = merged(&runs, &origin);
            prop_assert_eq!(each_atom(&extents), simply_merged(&runs, &origin));
            prop_assert!(extents.iter().all(|extent| extent.atoms > 0), "no extent is empty");
            prop_assert!(extents.windows(2).all(|pair| (pair[0].hole, pair[0].zero) != (pair[1].hole, pair[1].zero)), "neighbours differ");
        }

        /// 200 blocks of 8 atoms, against what the maps say of each block.
        #[test]
        fn what_lies_below_is_known_in_as_few_runs_as_can_be(
            cached in prop::collection::vec((0u64..200, 0u32..64), 0..100),
            zeroed in prop::collection::vec((0u64..180, 1u64..20, any::<bool>()), 0..10),
            start in 0u64..1000,
            atoms in 1u64..600,
        ) {
            let (mut index, mut ranges, lost) = (Index::new(8), Ranges::default(), nothing_lost());
            for (block, slot) in cached {
                index.replace(Block(block), 1, Some(Slot { set: slot / 8, slot: slot % 8 }), &mut Vec::new());
            }
            for (block, blocks, hole) in zeroed {
                ranges.zero(Block(block), blocks, if hole { RangeKind::Trim } else { RangeKind::Zero }, 1);
            }
            let below = Below { index: &index, ranges: &ranges, lost: &lost, block_atoms: 8 };
            let naive = |atom: u64| {
                let block = Block(atom / 8);
                match (index.get(block), ranges.overlapping(block, 1).next()) {
                    (Some(_), _) => Known::Data,
                    (None, Some((_, range))) => Known::Zeros { hole: range.kind == RangeKind::Trim },
                    (None, None) => Known::Nothing,
                }
            };
            let found = found(Span::new(start, atoms), 8, LOOKS_MAX, |piece, found| below.look(piece, found));
            let told: Vec<Known> = found.runs.iter().flat_map(|run| vec![run.known; run.atoms as usize]).collect();
            prop_assert_eq!(told, (start..start + atoms).map(naive).collect::<Vec<Known>>());
            prop_assert!(found.runs.windows(2).all(|pair| pair[0].known != pair[1].known), "neighbours differ");
        }
    }

    #[test]
    fn what_is_scattered_over_gigabytes_is_told_of_piece_by_piece() {
        let (mut index, ranges, lost) = (Index::new(256), Ranges::default(), nothing_lost());
        // Every second one of 2^18 blocks, in slots that are no neighbours.
        for number in 0..1 << 17 {
            let slot = Slot { set: number % 1024, slot: number / 1024 };
            index.replace(Block(2 * u64::from(number)), 1, Some(slot), &mut Vec::new());
        }
        let below = Below { index: &index, ranges: &ranges, lost: &lost, block_atoms: 8 };
        let of = |looks: usize| {
            let found = found(Span::new(0, 8 << 18), 8, looks, |piece, found| below.look(piece, found));
            (found.looks, found.runs.len(), found.atoms() / 8)
        };
        assert_eq!(of(LOOKS_MAX), (LOOKS_MAX, LOOKS_MAX, LOOKS_MAX as u64), "a quarter of it");
        assert_eq!(of(LOOKS_FOR_ONE), (LOOKS_FOR_ONE, LOOKS_FOR_ONE, LOOKS_FOR_ONE as u64));
        // Where nothing is cached one look is a whole piece.
        index.replace(Block(0), 1 << 18, None, &mut Vec::new());
        let below = Below { index: &index, ranges: &ranges, lost: &lost, block_atoms: 8 };
        let found = found(Span::new(0, 1 << 23), 8, LOOKS_FOR_ONE, |piece, found| below.look(piece, found));
        assert_eq!((found.runs, found.looks), (vec![Run { atoms: 1 << 23, known: Known::Nothing }], 256), "4 GiB in one extent");
    }
}

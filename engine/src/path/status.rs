//! Status: what is allocated, for NBD `base:allocation`. Cached blocks are data, and so are what fronts have written and what went through to the
//! origin and is pinned (that may have forgotten it); zeroed ranges are zeros, the rest the origin knows.
//! In which tier it all is, `tier` answers.

use crate::block::Span;
use crate::op::{Action, Answer, Class, DeviceError, DeviceId, OpId, Zone};
use crate::payload::Payload;
use crate::probe::WaitReason;
use crate::request::{Command, Extent, Outcome, RequestError};
use crate::spin::Motor;

use super::{Engine, Owner, Stage};

pub(super) struct Querying {
    /// Runs in order; `None`: the origin knows.
    runs: Vec<(Span, Option<Extent>)>,
    /// The origin is to be asked once nobody writes the span.
    parked: bool,
}

impl<P: Payload> Engine<P> {
    pub(super) fn begin_status(&mut self, number: usize) {
        let span = self.requests.get(number).request.span;
        let runs = self.known_status(span);
        let asks = runs.iter().any(|(_, known)| known.is_none());
        let sleeps = self.motor.as_ref().is_some_and(Motor::is_down);
        self.requests.get_mut(number).waits = WaitReason::Origin;
        self.requests.get_mut(number).stage = Stage::Querying(Querying { runs, parked: false });
        if asks && sleeps {
            // Not worth to wake a disk for: what is not known to be zeros counts as data.
            self.tell_status(number, &[data(span)]);
        } else if asks {
            self.ask_origin(number, span);
        } else {
            self.tell_status(number, &[]);
        }
    }

    fn ask_origin(&mut self, number: usize, span: Span) {
        let parked = self.origin.is_closed(span);
        let Stage::Querying(querying) = &mut self.requests.get_mut(number).stage else { panic!("a status request is being asked") };
        querying.parked = parked;
        if !parked {
            let action = Action::Allocation(Zone::Origin, span);
            let op = self.start(DeviceId::Origin, Class::Client, action, Owner::Status { request: number });
            self.origin.begin_read(op, span, self.now);
        }
    }

    /// A destage has let its spans go: the questions behind it are asked.
    pub(super) fn unpark_status(&mut self) {
        let is_parked = |stage: &Stage<P>| matches!(stage, Stage::Querying(Querying { parked: true, .. }));
        let parked: Vec<(usize, Span)> = self
            .requests
            .iter()
            .filter(|(_, active)| is_parked(&active.stage))
            .map(|(number, active)| (number, active.request.span))
            .collect();
        parked.into_iter().for_each(|(number, span)| self.ask_origin(number, span));
    }

    fn known_status(&self, span: Span) -> Vec<(Span, Option<Extent>)> {
        let mut known = Vec::new();
        for (part, above) in self.over_log(span) {
            match above {
                Some(_) => known.push((part, Some(data(part)))),
                None => self.cached_status(part, &mut known),
            }
        }
        known.retain(|(span, _)| !span.is_empty());
        known
    }

    /// Of what the log or the origin has.
    fn cached_status(&self, span: Span, known: &mut Vec<(Span, Option<Extent>)>) {
        let (block, blocks) = self.blocks_of(span);
        let mut runs = Vec::new();
        self.index.lookup(block, blocks, &mut runs);
        for run in runs {
            let part = self.blocks_span(run.block, run.blocks).intersection(span);
            // What is lost is not zero.
            if run.slot.is_some() || self.lost.has_any_of(run.block, run.blocks) {
                known.push((part, Some(data(part))));
                continue;
            }
            let mut at = part.start;
            for (start, range) in self.ranges.overlapping(run.block, run.blocks) {
                let zero = self.blocks_span(start, range.blocks).intersection(part);
                known.push((Span::new(at, zero.start - at), None));
                let hole = range.kind == crate::cache::format::RangeKind::Trim;
                known.push((zero, Some(Extent { atoms: zero.atoms, hole, zero: true })));
                at = zero.end();
            }
            known.push((Span::new(at, part.end() - at), None));
        }
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
        let mut extents: Vec<Extent> = Vec::new();
        let mut add = |extent: Extent| match extents.last_mut() {
            Some(last) if (last.hole, last.zero) == (extent.hole, extent.zero) => last.atoms += extent.atoms,
            _ => extents.push(extent),
        };
        let start = active.request.span.start;
        for &(span, known) in &querying.runs {
            match known {
                Some(extent) => add(extent),
                None => clip(origin, start, span).for_each(&mut add),
            }
        }
        let tiers = match active.request.command {
            Command::Status { tiers: true } => self.tiers(active.request.span),
            _ => Vec::new(),
        };
        self.answer(number, Ok(Outcome::Status { allocation: extents, tiers }));
    }
}

/// Neither a hole nor zeros.
fn data(span: Span) -> Extent {
    Extent { atoms: span.atoms, hole: false, zero: false }
}

/// The extents of `origin` (which begins at `start`) inside `span`.
fn clip(origin: &[Extent], start: u64, span: Span) -> impl Iterator<Item = Extent> + '_ {
    let mut at = start;
    origin.iter().filter_map(move |extent| {
        let part = Span::new(at, extent.atoms).intersection(span);
        at += extent.atoms;
        (!part.is_empty()).then_some(Extent { atoms: part.atoms, ..*extent })
    })
}

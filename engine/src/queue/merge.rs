//! Merging: reads, or writes, of one class and zone that lie end to end are one operation of the device. Only what waits is merged, and only at
//! its end. The parts keep their numbers: each is told its own part of the answer, and what fails together is done again one by one, so that
//! nobody suffers from a neighbour's bad sector.

use crate::block::Span;
use crate::op::{Action, Answer, Class, Done, Op, OpId, Zone};
use crate::payload::{Payload, Pieces};

/// Where operations lie that may be merged: two with the same place and kind.
#[derive(Clone, Copy)]
pub(super) struct Stretch {
    pub span: Span,
    kind: u64,
}

impl Stretch {
    pub fn of<P>(op: &Op<P>) -> Option<Self> {
        let (span, zone, writes) = match &op.action {
            Action::Read(zone, span) => (*span, *zone, 0),
            Action::Write(zone, span, _) => (*span, *zone, 1),
            Action::Zero(..) | Action::Discard(..) | Action::Allocation(..) | Action::Flush | Action::Spin(_) => return None,
        };
        let kind = (writes << 3 | zone as u64) << 3 | op.class as u64;
        (op.class != Class::Discard).then_some(Stretch { span, kind })
    }

    pub fn is_of_clients(&self) -> bool {
        self.kind & 7 == Class::Client as u64
    }

    /// What a stretch that this one goes on is known by.
    pub fn before(&self) -> u64 {
        self.kind << 56 | self.span.start
    }

    /// What this one is known by to one that goes on behind it.
    pub fn end(&self) -> u64 {
        self.kind << 56 | self.span.end()
    }
}

const _: () = assert!((Zone::Origin as u64) < 8 && (Class::Discard as u64) < 8, "zone and class have three bits each");

/// The parts, which lie end to end, as one operation with the number of the first.
pub(super) fn joined<P: Payload>(parts: &[Op<P>]) -> Op<P> {
    let first = &parts[0];
    let spans = || parts.iter().map(span);
    let whole = Span::new(span(first).start, spans().map(|span| span.atoms).sum());
    let action = match &first.action {
        Action::Read(zone, _) => Action::Read(*zone, whole),
        Action::Write(zone, ..) => Action::Write(*zone, whole, parts.iter().flat_map(payloads).cloned().collect()),
        Action::Zero(..) | Action::Discard(..) | Action::Allocation(..) | Action::Flush | Action::Spin(_) => {
            unreachable!("only reads and writes are merged")
        }
    };
    Op { id: first.id, device: first.device, class: first.class, action }
}

/// The answer to each of the parts, of that to all of them.
pub(super) fn answers<P: Payload>(parts: &[Op<P>], answer: Answer<P>) -> Vec<Done<P>> {
    let told = |id: OpId, answer| Done { id, result: Ok(answer) };
    match answer {
        Answer::Done => parts.iter().map(|part| told(part.id, Answer::Done)).collect(),
        Answer::Data(data) => {
            let mut rest = data.into_iter();
            let mut left: Option<P> = None;
            parts.iter().map(|part| told(part.id, Answer::Data(cut(&mut left, &mut rest, span(part).atoms)))).collect()
        }
        Answer::Allocation(_) | Answer::Power(_) => unreachable!("only reads and writes are merged"),
    }
}

/// The next `atoms` of the payloads; `left` is what the last cut has left over.
fn cut<P: Payload>(left: &mut Option<P>, rest: &mut impl Iterator<Item = P>, mut atoms: u64) -> Pieces<P> {
    let mut pieces = Pieces::new();
    while atoms > 0 {
        let piece = left.take().or_else(|| rest.next()).expect("an answer is as long as its operation");
        let taken = piece.atoms().min(atoms);
        if taken < piece.atoms() {
            *left = Some(piece.slice(taken, piece.atoms() - taken));
            pieces.push(piece.slice(0, taken));
        } else {
            pieces.push(piece);
        }
        atoms -= taken;
    }
    pieces
}

fn span<P>(op: &Op<P>) -> Span {
    match &op.action {
        Action::Read(_, span) | Action::Write(_, span, _) => *span,
        Action::Zero(..) | Action::Discard(..) | Action::Allocation(..) | Action::Flush | Action::Spin(_) => {
            unreachable!("only reads and writes are merged")
        }
    }
}

fn payloads<P>(op: &Op<P>) -> &[P] {
    match &op.action {
        Action::Write(_, _, payloads) => payloads,
        Action::Read(..) | Action::Zero(..) | Action::Discard(..) | Action::Allocation(..) | Action::Flush | Action::Spin(_) => &[],
    }
}

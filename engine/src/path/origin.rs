//! Which parts of the origin are being read and written now. Operations in flight on it never overlap, but reads among themselves. How long a
//! read took is told to all who decide by that: what lies around a miss, what is kept, how long batches of destaging may be.

use std::collections::{BTreeMap, BTreeSet};

use crate::block::Span;
use crate::op::OpId;
use crate::payload::Payload;
use crate::time::{Duration, Instant};

use super::Engine;
use super::read::Why;

/// What the origin was busy for so long with tells nothing of it: it stood still, or hung.
const ODD: Duration = Duration::from_millis(250);

/// After a start, what a killed predecessor wrote may sit in the origin's volatile cache: a read of it must not flicker at a power cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum FirstFlush {
    #[default]
    Needed,
    Flushing {
        failures: u32,
    },
    Done,
}

#[derive(Default)]
pub(super) struct OriginSpans {
    pub first_flush: FirstFlush,
    reads: Vec<(OpId, Span, Instant)>,
    /// When it last ended a read.
    read_ended: Instant,
    /// By their first atoms: no two of them overlap, and there may be thousands.
    writes: BTreeMap<u64, (Writer, Span)>,
    /// The same by who they are: whoever ends has none left.
    by_writer: BTreeSet<(Writer, u64)>,
    /// What a write waits for that is being read, and else might be for ever: no more reads begin there. For requests and pages that is found anew in
    /// each round; for the destage it lasts until that writes.
    awaited: Vec<Span>,
    awaited_home: Vec<Span>,
}

/// Who writes to the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Writer {
    /// The destage batch that runs.
    Destage,
    /// This through write.
    Through(usize),
}

/// How long a read of the origin took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Took {
    pub started: Instant,
    pub waited: Duration,
    /// What of that the origin was busy with this read alone: of reads side by side each costs what it adds. Nothing where it hung or stood still.
    pub busy: Option<Duration>,
}

impl OriginSpans {
    pub fn begin_read(&mut self, op: OpId, span: Span, now: Instant) {
        self.reads.push((op, span, now));
    }
    /// `turning`: since when the disk has turned. What waited for that was not read before.
    pub fn end_read(&mut self, op: OpId, now: Instant, turning: Instant) -> Took {
        let place = self.reads.iter().position(|(reading, ..)| *reading == op).expect("a read that ends was begun");
        let (_, _, started) = self.reads.swap_remove(place);
        let busy = now.since(started.max(std::mem::replace(&mut self.read_ended, now)));
        let started = started.max(turning);
        Took { started, waited: now.since(started), busy: (busy < ODD).then_some(busy) }
    }
    /// The writer owns the span until it has ended: a piece of a destage batch until it is clean on the origin, or has failed.
    pub fn begin_write(&mut self, writer: Writer, span: Span) {
        assert!(!self.is_read(span) && !self.is_written(span), "operations on the origin never overlap");
        if writer == Writer::Destage {
            self.awaited_home.retain(|&awaited| awaited != span);
        }
        self.writes.insert(span.start, (writer, span));
        self.by_writer.insert((writer, span.start));
    }
    pub fn end_writes(&mut self, of: Writer) {
        let ended: Vec<_> = self.by_writer.range((of, 0)..=(of, u64::MAX)).copied().collect();
        for writing in ended {
            self.by_writer.remove(&writing);
            self.writes.remove(&writing.1);
        }
    }
    pub fn is_read(&self, span: Span) -> bool {
        self.reads.iter().any(|(_, reading, _)| reading.overlaps(span))
    }
    /// A write to this span begins when nobody reads it any more.
    pub fn await_reads(&mut self, span: Span) {
        self.awaited.push(span);
    }
    /// The same for a write of the destage, which comes for certain.
    pub fn await_reads_home(&mut self, span: Span) {
        if !self.awaited_home.contains(&span) {
            self.awaited_home.push(span);
        }
    }
    /// No request or page waits, for all that is known; returns how many did.
    pub fn forget_awaited(&mut self) -> usize {
        std::mem::take(&mut self.awaited).len()
    }
    /// May it not be read now?
    pub fn is_closed(&self, span: Span) -> bool {
        self.is_written(span) || self.awaited.iter().chain(&self.awaited_home).any(|awaited| awaited.overlaps(span))
    }
    pub fn is_written_anywhere(&self) -> bool {
        !self.writes.is_empty()
    }
    pub fn is_written(&self, span: Span) -> bool {
        self.writers_of(span).next().is_some()
    }
    /// By a client's own write.
    pub fn is_written_through(&self, span: Span) -> bool {
        self.writers_of(span).any(|writer| matches!(writer, Writer::Through(_)))
    }
    /// Who writes any of this. Of all that begin before its end the last ones reach into it.
    fn writers_of(&self, span: Span) -> impl Iterator<Item = Writer> + '_ {
        let before = self.writes.range(..span.end()).rev().map(|(_, &(writer, writing))| (writer, writing));
        before.take_while(move |(_, writing)| writing.overlaps(span)).map(|(writer, _)| writer)
    }
}

impl<P: Payload> Engine<P> {
    /// A read of the origin has ended well.
    pub(super) fn note_origin_read(&mut self, span: Span, why: Why, took: Took) {
        if self.config.reads_around() {
            self.around.note_read(span, why, took);
        }
        if !matches!(why, Why::Scattered | Why::Sequential) {
            return;
        }
        self.destage.courtesy.read(span.atoms, took.started, self.now);
        if let Some(busy) = took.busy {
            let (_, blocks) = self.blocks_of(span);
            self.admission.fetched(blocks, why == Why::Sequential, busy);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Begin(Writer, Span),
        End(Writer),
    }

    fn writer() -> impl Strategy<Value = Writer> {
        prop_oneof![Just(Writer::Destage), (0..6usize).prop_map(Writer::Through)]
    }

    fn step() -> impl Strategy<Value = Step> {
        let begin = (writer(), 0..120u64, 1..20u64).prop_map(|(writer, start, atoms)| Step::Begin(writer, Span::new(start, atoms)));
        prop_oneof![3 => begin, 1 => writer().prop_map(Step::End)]
    }

    proptest! {
        /// Against a list of all of them.
        #[test]
        fn what_is_written_is_known_by_the_atom_and_by_the_writer(steps in prop::collection::vec(step(), 1..120)) {
            let mut spans = OriginSpans::default();
            let mut naive: Vec<(Writer, Span)> = Vec::new();
            for step in steps {
                match step {
                    Step::Begin(_, span) if naive.iter().any(|(_, written)| written.overlaps(span)) => prop_assert!(spans.is_written(span)),
                    Step::Begin(writer, span) => {
                        spans.begin_write(writer, span);
                        naive.push((writer, span));
                    }
                    Step::End(writer) => {
                        spans.end_writes(writer);
                        naive.retain(|(other, _)| *other != writer);
                    }
                }
                prop_assert_eq!(spans.is_written_anywhere(), !naive.is_empty());
                for start in 0..140 {
                    for atoms in [1, 2, 7, 30] {
                        let span = Span::new(start, atoms);
                        let mut writers = naive.iter().filter(|(_, written)| written.overlaps(span)).map(|(writer, _)| writer);
                        prop_assert_eq!(spans.is_written(span), writers.clone().next().is_some());
                        let through = writers.any(|writer| matches!(writer, Writer::Through(_)));
                        prop_assert_eq!(spans.is_written_through(span), through);
                    }
                }
            }
        }
    }
}

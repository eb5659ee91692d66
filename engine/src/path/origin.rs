//! Which parts of the origin are being read and written now. Operations in flight on it never overlap, but reads among themselves. How long a
//! read took is told to all who decide by that: what lies around a miss, what is kept, how long batches of destaging may be.

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
    writes: Vec<(Writer, Span)>,
    /// What a write waits for that is being read, and else might be for ever: no more reads begin there.
    awaited: Vec<Span>,
}

/// Who writes to the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
        self.writes.push((writer, span));
    }
    pub fn end_writes(&mut self, of: Writer) {
        self.writes.retain(|(writer, _)| *writer != of);
    }
    pub fn is_read(&self, span: Span) -> bool {
        self.reads.iter().any(|(_, reading, _)| reading.overlaps(span))
    }
    /// A write to this span begins when nobody reads it any more.
    pub fn await_reads(&mut self, span: Span) {
        self.awaited.push(span);
    }
    /// Nobody waits, for all that is known; returns how many did.
    pub fn forget_awaited(&mut self) -> usize {
        std::mem::take(&mut self.awaited).len()
    }
    /// May it not be read now?
    pub fn is_closed(&self, span: Span) -> bool {
        self.is_written(span) || self.awaited.iter().any(|awaited| awaited.overlaps(span))
    }
    pub fn is_written_anywhere(&self) -> bool {
        !self.writes.is_empty()
    }
    pub fn is_written(&self, span: Span) -> bool {
        self.writes.iter().any(|(_, writing)| writing.overlaps(span))
    }
    /// By a client's own write.
    pub fn is_written_through(&self, span: Span) -> bool {
        self.writes.iter().any(|(writer, writing)| matches!(writer, Writer::Through(_)) && writing.overlaps(span))
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

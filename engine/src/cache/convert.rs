//! Which writes are taken into the log where only small or random ones are (paper 002): a decision, from where a write lies and where the
//! ones before it lay.
//!
//! * By size, as the paper: a write of at most so many atoms is taken. A guest's elevator merges neighbours that are written at random,
//!   and then they are too large: that is what the paper's method loses.
//! * By randomness: a write is taken unless it belongs to a running stream. A *stream* is a place that writes follow each other at; it
//!   *runs* once [`PROOF`] of ground was covered and about as much was written as ground was covered. Less is a sparse sweep (an elevator
//!   that passes over scattered pages), more is the same place again and again: a drive takes neither as a sequence.
//!
//! Distance counts from a stream's end to the start of a write, either way: clients with deep queues send a sequence out of order.

use crate::block::{ATOM_BYTES, Span};
use crate::config::{Allocation, Config, Convert};

/// Streams that are told apart: as many as the log blocks of the drives that suffer most from random writes (`sim/devices`); more of them
/// at once such a drive does not keep sequential either.
const STREAMS: usize = 16;
/// A write belongs to a stream if it begins so near its end. Half an erase block of the paper's drives: what a client with eight requests
/// of 32 KiB in flight puts out of order.
const NEAR: u64 = (256 << 10) / ATOM_BYTES;
/// Ground that a stream must have covered to run. Elevators merge scattered pages up to some tens of KiB, seldom more.
const PROOF: u64 = (64 << 10) / ATOM_BYTES;
/// Ground that is remembered of a stream: what it did before that does not count any more.
const MEMORY: u64 = (1 << 20) / ATOM_BYTES;

/// Ground that writes cover one after the other.
#[derive(Clone, Copy, Debug)]
struct Stream {
    start: u64,
    end: u64,
    /// Atoms written there, rewritten ones again.
    written: u64,
    /// When it was last written to, in writes.
    used: u64,
}

impl Stream {
    fn new(span: Span, used: u64) -> Self {
        Stream { start: span.start, end: span.end(), written: span.atoms, used }
    }

    fn distance(&self, span: Span) -> u64 {
        self.end.abs_diff(span.start)
    }

    fn grow(&mut self, span: Span, used: u64) {
        self.start = self.start.min(span.start);
        self.end = self.end.max(span.end());
        self.written += span.atoms;
        self.used = used;
        let ground = self.end - self.start;
        if ground > MEMORY {
            self.written = self.written * MEMORY / ground;
            self.start = self.end - MEMORY;
        }
    }

    /// Its ground is covered once, to a quarter.
    fn runs(&self) -> bool {
        let ground = self.end - self.start;
        ground >= PROOF && (3 * ground..=5 * ground).contains(&(4 * self.written))
    }
}

/// The decision. It is asked once for each write, in their order.
#[derive(Clone, Debug)]
pub struct Converter {
    kind: Option<Convert>,
    /// Atoms of the largest write that is taken.
    most: u64,
    streams: Vec<Stream>,
    writes: u64,
}

impl Converter {
    /// As the configuration says: everything is taken where small writes are not told from large ones.
    pub fn new(config: &Config) -> Self {
        let kind = (config.allocation == Allocation::SmallWrites).then_some(config.convert);
        Converter { kind, most: config.convert_atoms(), streams: Vec::new(), writes: 0 }
    }

    /// Is this write for the log?
    pub fn takes(&mut self, span: Span) -> bool {
        match self.kind {
            None => true,
            Some(Convert::Size) => span.atoms <= self.most,
            // Large ones, too, are part of a stream.
            Some(Convert::Randomness) => !self.is_of_stream(span) && span.atoms <= self.most,
        }
    }

    /// Notes the write, and says whether the stream that it belongs to runs.
    fn is_of_stream(&mut self, span: Span) -> bool {
        self.writes += 1;
        let used = self.writes;
        let near = self.streams.iter_mut().filter(|stream| stream.distance(span) <= NEAR).min_by_key(|stream| stream.distance(span));
        if let Some(stream) = near {
            stream.grow(span, used);
            return stream.runs();
        }
        let stream = Stream::new(span, used);
        if self.streams.len() == STREAMS {
            let oldest = self.streams.iter_mut().min_by_key(|stream| stream.used).expect("there are streams");
            *oldest = stream;
        } else {
            self.streams.push(stream);
        }
        // One write is no sequence, however large.
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::format::{FormatId, Geometry};
    use proptest::prelude::*;

    fn converter(convert: Convert, convert_max: Option<u64>) -> Converter {
        let geometry =
            Geometry { block_atoms: 8, set_slots: 256, sets: 64, journal_pages: 4096, volume_atoms: 1 << 30, range_entries: 252 };
        let config = Config { allocation: Allocation::SmallWrites, convert, convert_max, ..Config::new(geometry, FormatId([1; 16])) };
        Converter::new(&config)
    }

    /// How many of these writes are taken.
    fn taken(converter: &mut Converter, writes: impl IntoIterator<Item = (u64, u64)>) -> usize {
        writes.into_iter().filter(|&(start, atoms)| converter.takes(Span::new(start, atoms))).count()
    }

    /// Places without any order, 4 KiB aligned, in 64 GiB.
    fn scattered(count: u64) -> impl Iterator<Item = u64> {
        (1..=count).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40 << 3)
    }

    #[test]
    fn by_size_nothing_else_counts() {
        let mut converter = converter(Convert::Size, None);
        assert!(converter.takes(Span::new(0, 8)) && !converter.takes(Span::new(8, 9)) && converter.takes(Span::new(17, 1)));
        let mut wide = self::converter(Convert::Size, Some(64));
        assert!(wide.takes(Span::new(0, 64)) && !wide.takes(Span::new(0, 65)));
    }

    #[test]
    fn scattered_writes_are_taken_whatever_their_size_up_to_the_bound() {
        for atoms in [1, 8, 24, 128, 512] {
            let mut converter = converter(Convert::Randomness, None);
            assert_eq!(taken(&mut converter, scattered(5_000).map(|start| (start * 64, atoms))), 5_000, "{atoms} atoms");
        }
        let mut converter = converter(Convert::Randomness, None);
        assert_eq!(taken(&mut converter, scattered(5_000).map(|start| (start * 64, 513))), 0);
    }

    #[test]
    fn a_sparse_sweep_is_random_and_a_dense_one_is_not() {
        // Every ninth page, in order: an elevator over a pool of dirty pages.
        assert_eq!(taken(&mut converter(Convert::Randomness, None), (0..10_000).map(|i| (i * 72, 8))), 10_000);
        // One page of eight is left out.
        let dense = (0..10_000).filter(|i| i % 8 != 5).map(|i| (i * 8, 8));
        assert!(taken(&mut converter(Convert::Randomness, None), dense) <= 20);
    }

    #[test]
    fn a_place_that_is_written_again_and_again_is_no_stream() {
        let mut converter = converter(Convert::Randomness, None);
        let hot = scattered(5_000).map(|start| (start % 512 / 8 * 8, 8));
        assert!(taken(&mut converter, hot) >= 4_900);
    }

    #[test]
    fn a_deep_queue_that_shuffles_a_sequence_is_a_stream() {
        let shuffled = (0..1_250u64).flat_map(|turn| [3, 0, 6, 1, 7, 4, 2, 5].map(|i| ((turn * 8 + i) * 64, 64)));
        assert!(taken(&mut converter(Convert::Randomness, None), shuffled) <= 20, "of 10,000");
    }

    #[test]
    fn a_stream_goes_on_beside_random_writes_in_between() {
        let mut converter = converter(Convert::Randomness, None);
        let mut scattered = scattered(10_000);
        let (mut of_stream, mut of_rest) = (0, 0);
        for i in 0..10_000u64 {
            of_stream += taken(&mut converter, [((1 << 29) + i * 16, 16)]);
            of_rest += taken(&mut converter, [(scattered.next().unwrap(), 8)]);
        }
        assert!(of_stream <= 8 && of_rest >= 9_990, "{of_stream} of the stream, {of_rest} of the rest");
    }

    proptest! {
        /// Of each of up to 16 sequences, in any order among themselves, at most what proves it and one write more is taken.
        #[test]
        fn sequences_go_home(atoms in 1..600u64, order in prop::collection::vec(0..STREAMS as u64, 1..3_000)) {
            let mut converter = converter(Convert::Randomness, None);
            let (mut ends, mut logged) = ([0; STREAMS], [0; STREAMS]);
            for stream in order {
                let start = stream * (1 << 24) + ends[stream as usize];
                ends[stream as usize] += atoms;
                logged[stream as usize] += if converter.takes(Span::new(start, atoms)) { atoms } else { 0 };
            }
            prop_assert!(logged.iter().all(|&logged| logged < PROOF + atoms), "{logged:?}");
        }

        /// Whatever is asked: nothing above the bound is taken, and by size everything else is.
        #[test]
        fn the_bound_holds(most in 1..700u64, writes in prop::collection::vec((0..1u64 << 20, 1..1_000u64), 0..500)) {
            for kind in [Convert::Size, Convert::Randomness] {
                let mut converter = converter(kind, Some(most));
                for &(start, atoms) in &writes {
                    let takes = converter.takes(Span::new(start, atoms));
                    prop_assert!(atoms <= most || !takes);
                    prop_assert!(takes || atoms > most || kind == Convert::Randomness);
                }
            }
        }
    }

    #[test]
    fn where_all_writes_are_for_the_log_none_is_refused() {
        let mut converter = Converter { kind: None, ..converter(Convert::Size, None) };
        assert!(converter.takes(Span::new(0, 1 << 16)));
    }
}

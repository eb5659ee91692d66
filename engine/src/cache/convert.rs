//! Which writes are taken into the log where only small or random ones are (paper 002): a decision, from where a write lies and where the
//! ones before it lay.
//!
//! * By size, as the paper: a write of at most so many atoms is taken. A guest's elevator merges neighbours that are written at random,
//!   and then they are too large: that is what the paper's method loses.
//! * By randomness: a write is taken unless it belongs to a sequence that runs ([`super::sequence`]).

use crate::block::Span;
use crate::config::{Allocation, Config, Convert};

use super::sequence::Sequences;

/// Sequences that are told apart: as many as the log blocks of the drives that suffer most from random writes (`sim/devices`); more of them
/// at once such a drive does not keep sequential either.
const SEQUENCES: usize = 16;

/// The decision. It is asked once for each write, in their order.
#[derive(Clone, Debug)]
pub struct Converter {
    kind: Option<Convert>,
    /// Atoms of the largest write that is taken.
    most: u64,
    sequences: Sequences,
}

impl Converter {
    /// As the configuration says: everything is taken where small writes are not told from large ones.
    pub fn new(config: &Config) -> Self {
        let kind = (config.allocation == Allocation::SmallWrites).then_some(config.convert);
        Converter { kind, most: config.convert_atoms(), sequences: Sequences::new(SEQUENCES) }
    }

    /// Is this write for the log?
    pub fn takes(&mut self, span: Span) -> bool {
        match self.kind {
            None => true,
            Some(Convert::Size) => span.atoms <= self.most,
            // Large ones, too, are part of a sequence.
            Some(Convert::Randomness) => {
                let is_of_sequence = self.sequences.note(span).is_some_and(|sequence| sequence.runs());
                !is_of_sequence && span.atoms <= self.most
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::format::{FormatId, Geometry};
    use crate::cache::sequence::PROOF;
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
    fn a_place_that_is_written_again_and_again_is_no_sequence() {
        let mut converter = converter(Convert::Randomness, None);
        let hot = scattered(5_000).map(|start| (start % 512 / 8 * 8, 8));
        assert!(taken(&mut converter, hot) >= 4_900);
    }

    #[test]
    fn a_deep_queue_that_shuffles_a_sequence_is_no_random_one() {
        let shuffled = (0..1_250u64).flat_map(|turn| [3, 0, 6, 1, 7, 4, 2, 5].map(|i| ((turn * 8 + i) * 64, 64)));
        assert!(taken(&mut converter(Convert::Randomness, None), shuffled) <= 20, "of 10,000");
    }

    #[test]
    fn a_sequence_goes_on_beside_random_writes_in_between() {
        let mut converter = converter(Convert::Randomness, None);
        let mut scattered = scattered(10_000);
        let (mut of_stream, mut of_rest) = (0, 0);
        for i in 0..10_000u64 {
            of_stream += taken(&mut converter, [((1 << 29) + i * 16, 16)]);
            of_rest += taken(&mut converter, [(scattered.next().unwrap(), 8)]);
        }
        assert!(of_stream <= 8 && of_rest >= 9_990, "{of_stream} of the sequence, {of_rest} of the rest");
    }

    proptest! {
        /// Of each of up to 16 sequences, in any order among themselves, at most what proves it and one write more is taken.
        #[test]
        fn sequences_go_home(atoms in 1..600u64, order in prop::collection::vec(0..SEQUENCES as u64, 1..3_000)) {
            let mut converter = converter(Convert::Randomness, None);
            let (mut ends, mut logged) = ([0; SEQUENCES], [0; SEQUENCES]);
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

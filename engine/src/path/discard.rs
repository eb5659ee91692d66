//! TRIM and WRITE_ZEROES: whole blocks become a range in the table (which kills the slots below it, by order of replay);
//! at the edges TRIM changes nothing and zeroes are written as data.
//!
//! It takes its turn among the writes (`write`), because order matters between them. A long one takes many: others are served between its parts,
//! and writes that touch none of its blocks pass it.

use std::ops::Range;

use smallvec::SmallVec;

use crate::block::{Block, Span};
use crate::cache::format::RangeKind;
use crate::cache::format::journal::Record;
use crate::payload::Payload;
use crate::probe::WaitReason;
use crate::request::{Command, RequestId};

use super::Engine;
use super::requests::Active;
use super::write::{Piece, Pieces};

/// Zeros that are written as contents are made once for so many atoms, 1 MiB.
const ZERO_ATOMS: u64 = 2_048;

/// Zeros as contents of these blocks: however many, no more memory than for the first of the pieces, which all of them share.
pub(super) fn zero_pieces<P: Payload>(blocks: Range<u64>, block_atoms: u64, pieces: &mut Pieces<P>) {
    let most = (ZERO_ATOMS / block_atoms).max(1);
    if blocks.is_empty() {
        return;
    }
    let zeros = P::zero(most.min(blocks.end - blocks.start) * block_atoms);
    for first in blocks.clone().step_by(most as usize) {
        let count = most.min(blocks.end - first);
        pieces.push(Piece { block: Block(first), blocks: count, payload: zeros.slice(0, count * block_atoms), valid: None });
    }
}

impl<P: Payload> Engine<P> {
    /// TRIMs for which nothing was done: of no whole block, without the cache, or where the range table is full. (For whoever holds the others to
    /// what they promise.)
    pub fn ignored_trims(&self) -> u64 {
        self.ignored_trims
    }

    /// Requests of which some blocks are zeros already, and others are left for the next turns. (For the same.)
    pub fn partly_zeroed(&self) -> impl Iterator<Item = RequestId> {
        let active = self.turn.goes_on.then(|| self.requests.iter()).into_iter().flatten();
        active.filter(|&(number, active)| active.zeroed > 0 && self.range_of(number).is_some()).map(|(_, active)| active.request.id)
    }

    /// The blocks that a TRIM or zeroes take whole: first and how many (possibly none).
    pub(super) fn discarded_blocks(&self, span: Span) -> (Block, u64) {
        // The short last block is whole when the span reaches the end of the volume.
        let reaches_end = span.end() == self.config.geometry.volume_atoms;
        let end = if reaches_end { span.end().next_multiple_of(self.block_atoms()) } else { span.end() };
        self.whole_blocks(Span::new(span.start, end - span.start))
    }

    /// The parts of a span outside its whole blocks.
    pub(super) fn ragged_edges(&self, span: Span) -> SmallVec<[Span; 2]> {
        let (first, blocks) = self.discarded_blocks(span);
        if blocks == 0 {
            let size = self.block_atoms();
            // Without a whole block it may still touch two.
            let border = span.start.next_multiple_of(size).min(span.end()).max(span.start);
            let parts = [Span::new(span.start, border - span.start), Span::new(border, span.end() - border)];
            return parts.into_iter().filter(|part| !part.is_empty()).collect();
        }
        let (low, high) = (first.0 * self.block_atoms(), ((first.0 + blocks) * self.block_atoms()).min(span.end()));
        let parts = [Span::new(span.start, low - span.start), Span::new(high, span.end() - high)];
        parts.into_iter().filter(|part| !part.is_empty()).collect()
    }

    /// The range of a request that is still to be zeroed.
    fn range_of(&self, number: usize) -> Option<(Block, u64, RangeKind)> {
        let Active { request, zeroed, .. } = self.requests.get(number);
        let kind = match request.command {
            Command::Zero { .. } if self.takes_slots(number) => return None,
            // A hint, and there is no log to note it in.
            Command::Trim { .. } if self.is_degraded() => return None,
            Command::Trim { .. } | Command::Zero { no_hole: false, .. } => RangeKind::Trim,
            Command::Zero { no_hole: true, .. } => RangeKind::Zero,
            Command::Write { .. } | Command::Read | Command::Cache | Command::Flush | Command::Status { .. } => return None,
        };
        let (block, blocks) = self.discarded_blocks(request.span);
        (blocks > *zeroed).then(|| (Block(block.0 + zeroed), blocks - zeroed, kind))
    }

    /// Does somebody wait for what is still to be changed? Not for its own parts, which may be on their way home.
    pub(super) fn is_rest_owed(&self, number: usize, block: Block, blocks: u64) -> bool {
        let Active { request, zeroed, .. } = self.requests.get(number);
        if *zeroed == 0 {
            return self.is_owed(block, blocks);
        }
        let (Block(first), _) = self.discarded_blocks(request.span);
        let (rest, end) = (first + zeroed, block.0 + blocks);
        first > block.0 && self.is_owed(block, first - block.0) || end > rest && self.is_owed(Block(rest), end - rest)
    }

    /// Why the range of a request cannot be taken now: a full table empties as its ranges are destaged.
    pub(super) fn lacks_range(&self, number: usize) -> Option<WaitReason> {
        let (block, blocks, _) = self.range_of(number)?;
        (self.is_table_full() && !self.may_pass(number, block, blocks)).then_some(WaitReason::RangeTable)
    }

    /// A TRIM is a hint: a full table lets it pass where nothing cached is dirty, or where waiting would not help.
    fn may_pass(&self, number: usize, block: Block, blocks: u64) -> bool {
        if !matches!(self.requests.get(number).request.command, Command::Trim { .. }) {
            return false;
        }
        self.ranges.is_empty() || !self.has_dirty(block, blocks)
    }

    /// Zeroes are written as data: the table is full of atoms that are lost, and will not empty; or there is no log that would remember them.
    pub(super) fn takes_slots(&self, number: usize) -> bool {
        let is_zero = matches!(self.requests.get(number).request.command, Command::Zero { .. });
        is_zero && (self.is_degraded() || self.is_table_full() && self.ranges.is_empty())
    }

    /// An eighth of the table is kept for atoms that are lost: those cannot wait.
    fn is_table_full(&self) -> bool {
        let entries = self.config.geometry.range_entries as usize;
        self.table_entries() + 3 > entries - entries / 8
    }

    /// Puts the whole blocks of a TRIM or zeroes into the range table, as far as this turn goes. True: it has come to its end, and there are more;
    /// they are looked at again as if they had just come.
    pub(super) fn place_range(&mut self, number: usize, data_blocks: u64) -> bool {
        let range = self.range_of(number).filter(|_| !self.is_table_full());
        let Some((block, blocks, kind)) = range else { return false };
        if self.turn.blocks > 0 {
            // What is written of the request besides is to find room in the same group, behind the record of the range.
            self.begin_group_for(self.journal_entries(data_blocks) + 100);
            if self.requests.get(number).zeroed == 0 {
                // However long it is, that takes no longer than all that is remembered.
                self.forget_behind(block, blocks);
            }
        }
        let mut done = 0;
        while done < blocks && self.turn.blocks > 0 {
            let count = self.config.zeroed_together.min(blocks - done);
            self.forget_range(Block(block.0 + done), count);
            done += count;
        }
        if done > 0 {
            self.note_range(block, done, kind);
            self.requests.get_mut(number).zeroed += done;
        }
        self.turn.goes_on |= done < blocks;
        done < blocks
    }

    /// Counts a TRIM for which nothing was done, or not all.
    pub(super) fn note_ignored(&mut self, number: usize) {
        let Active { request, zeroed, .. } = self.requests.get(number);
        let is_done = *zeroed > 0 && *zeroed == self.discarded_blocks(request.span).1;
        self.ignored_trims += u64::from(matches!(request.command, Command::Trim { .. }) && !is_done);
    }

    /// What is known of these blocks is not any more.
    fn forget_range(&mut self, block: Block, blocks: u64) {
        self.tickets.void(block, blocks);
        let pages = self.forget_pages(block, blocks);
        self.touch_range(block, blocks);
        self.through.pages.remove(block, blocks);
        let slots = self.kill_range(block, blocks);
        // (To find nothing takes time as well.)
        self.turn.blocks = self.turn.blocks.saturating_sub((pages + slots).max(blocks.div_ceil(64)));
    }

    /// They are zeros from now on.
    fn note_range(&mut self, block: Block, blocks: u64, kind: RangeKind) {
        self.journal.push(&Record::Zero { block, blocks, kind });
        self.note_record();
        self.ranges.note_time(self.now);
        self.ranges.zero(block, blocks, kind, self.journal.group());
        self.lost.remove(block, blocks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::Checksum;
    use std::cell::Cell;

    thread_local! {
        /// Atoms of zeros that were made.
        static MADE: Cell<u64> = const { Cell::new(0) };
    }

    #[derive(Clone, Debug)]
    struct Zeros(u64);

    impl Payload for Zeros {
        fn atoms(&self) -> u64 {
            self.0
        }
        fn zero(atoms: u64) -> Self {
            MADE.set(MADE.get() + atoms);
            Zeros(atoms)
        }
        fn slice(&self, start: u64, atoms: u64) -> Self {
            assert!(start + atoms <= self.0);
            Zeros(atoms)
        }
        fn concat(_: &[Self]) -> Self {
            unreachable!("nothing is copied")
        }
        fn checksum(&self, _: Checksum) -> u32 {
            unreachable!("nothing looks at them")
        }
        fn from_bytes(_: &[u8]) -> Self {
            unreachable!("nothing but zeros")
        }
        fn append_to(&self, _: &mut Vec<u8>) {}
    }

    #[test]
    fn zeros_as_contents_take_no_more_memory_however_many_they_are() {
        for (block_atoms, first, blocks, made) in
            [(8, 3, 1 << 20, 2_048), (8, 7, 256, 2_048), (8, 7, 5, 40), (4_096, 1, 9, 4_096), (8, 4, 0, 0)]
        {
            MADE.set(0);
            let mut pieces: Pieces<Zeros> = Pieces::new();
            zero_pieces(first..first + blocks, block_atoms, &mut pieces);
            let mut next = first;
            for piece in &pieces {
                assert_eq!((piece.block.0, piece.payload.0, piece.valid), (next, piece.blocks * block_atoms, None));
                next += piece.blocks;
            }
            assert_eq!((next, MADE.get()), (first + blocks, made));
        }
    }
}

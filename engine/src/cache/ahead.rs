//! Reading ahead of sequences in the cache: how far, and what of it waits to be asked for.
//!
//! An SSD answers a sequence at its full speed only while it has more to do than a client asks for at a time, the more so where the sequence
//! was written in pieces that lie here and there. What has been read ahead is kept by its place in the cache, not by its block: a slot never
//! changes in the life of its set, so nothing that clients do makes it wrong. Whoever asks has looked up where its blocks are, as always, and
//! finds here that this place has been read, or is on its way.
//!
//! The first time it is read ahead twice as far as a request is long; each time that more is needed, twice as far again, up to a share of the
//! memory there is. So a sequence that ends has cost at most about as much again as was asked of it.

use std::collections::BTreeMap;

use crate::block::{ATOM_BYTES, Slot, Span};
use crate::op::OpId;
use crate::payload::Payload;

use super::sequence::Sequence;

/// Sequences that are read ahead of at a time.
const STREAMS: usize = 16;
/// A sequence is forgotten after so many reads of others.
const IDLE: u64 = 256;
/// It is read ahead of so far at least: what an SSD reads in a piece anyway.
const LEAST: u64 = (128 << 10) / ATOM_BYTES;

/// As much as keeps any SSD busy: the fastest ones need it for a millisecond. Clients that have asked for so much themselves are not read ahead
/// of: that would only push what is about to be sent out of the processor's cache.
const ENOUGH: u64 = (4 << 20) / ATOM_BYTES;

/// A sequence that is read ahead of.
#[derive(Debug)]
struct Stream {
    /// Of the sequence.
    number: u64,
    /// Up to here.
    until: u64,
    /// How far beyond what was asked for, in atoms.
    reach: u64,
    /// Atoms that clients waited for at its reads, the most of late: of a deep queue most may just be on their way to the client.
    asked: u64,
    used: u64,
}

/// Who waits for what is read ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharer {
    /// A part of a client's read: the request, and the number of the part.
    Part { request: usize, part: usize },
    /// A partly written block of a client's write.
    Edge { request: usize, edge: usize },
}

/// Consecutive slots that have been read ahead, or are on their way.
struct Piece<P> {
    /// They are counted as they begin.
    number: u64,
    slots: u32,
    /// Of the set.
    life: u64,
    state: State<P>,
    /// Slots that nobody has asked for yet.
    left: u32,
    /// It counts among what is kept: somebody may yet ask for it first.
    is_held: bool,
}

enum State<P> {
    Reading { op: OpId, sharers: Vec<Sharer> },
    Ready(P),
}

/// What is known of a place in the cache.
pub enum Taken<P> {
    Ready(P),
    /// This operation brings it; the asker is told.
    OnItsWay(OpId),
    Unknown,
}

pub struct Ahead<P> {
    /// Atoms that pieces may have, all together, but for what clients have asked for meanwhile: that is theirs.
    most: u64,
    block_atoms: u64,
    streams: Vec<Stream>,
    reads: u64,
    pieces: BTreeMap<Slot, Piece<P>>,
    /// The same by their numbers: the oldest first.
    order: BTreeMap<u64, Slot>,
    begun: u64,
    held: u64,
}

impl<P: Payload> Ahead<P> {
    /// Keeps at most `bytes` of what has been read.
    pub fn new(bytes: u64, block_atoms: u64) -> Self {
        let (streams, pieces, order) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        Ahead { most: bytes / ATOM_BYTES, block_atoms, streams, reads: 0, pieces, order, begun: 0, held: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    // --- how far ---

    /// A read of `atoms` has gone on with this sequence, one of those by which clients wait for `asked` atoms: what of the volume is to be read
    /// next, if anything.
    pub fn next(&mut self, sequence: &Sequence, atoms: u64, asked: u64) -> Option<Span> {
        self.reads += 1;
        let (now, at) = (self.reads, sequence.end());
        self.streams.retain(|stream| now - stream.used <= IDLE);
        let place = self.streams.iter().position(|stream| stream.number == sequence.number).unwrap_or_else(|| {
            if self.streams.len() == STREAMS {
                let oldest = (0..STREAMS).min_by_key(|&place| self.streams[place].used).expect("there are streams");
                self.streams.swap_remove(oldest);
            }
            self.streams.push(Stream { number: sequence.number, until: at, reach: (2 * atoms).max(LEAST), asked, used: now });
            self.streams.len() - 1
        });
        // Half of the memory is for what nobody will ask for any more.
        let share = self.most / 2 / self.streams.len() as u64;
        let stream = &mut self.streams[place];
        stream.asked = asked.max(stream.asked - stream.asked / 16);
        let share = share.min(ENOUGH.saturating_sub(stream.asked));
        (stream.used, stream.until) = (now, stream.until.max(at));
        let reach = stream.reach.min(share);
        if stream.until - at > reach / 2 || reach == 0 {
            return None;
        }
        let span = Span::new(stream.until, at + reach - stream.until);
        stream.until = span.end();
        stream.reach = (reach * 2).min(share);
        Some(span)
    }

    /// No more than up to here was to be had.
    pub fn fell_short(&mut self, sequence: &Sequence, until: u64) {
        if let Some(stream) = self.streams.iter_mut().find(|stream| stream.number == sequence.number) {
            stream.until = until;
        }
    }

    // --- what has been read ---

    /// The piece that has this slot, in this life of its set.
    fn find(&self, slot: Slot, life: u64) -> Option<(Slot, &Piece<P>)> {
        let (&first, piece) = self.pieces.range(..=slot).next_back()?;
        let has_it = first.set == slot.set && slot.slot < first.slot + piece.slots && piece.life == life;
        has_it.then_some((first, piece))
    }

    /// Of `slots` slots from `first`, how many are alike: all in one piece, or in none.
    pub fn alike(&self, first: Slot, slots: u32, life: u64) -> (bool, u32) {
        if let Some((start, piece)) = self.find(first, life) {
            return (true, (start.slot + piece.slots - first.slot).min(slots));
        }
        let end = Slot { slot: first.slot + slots, ..first };
        let next = self.pieces.range(first..end).find(|(_, piece)| piece.life == life);
        (false, next.map_or(slots, |(start, _)| start.slot - first.slot))
    }

    /// Asks for `slots` slots from `first`, which are alike.
    pub fn take(&mut self, first: Slot, slots: u32, life: u64, sharer: Sharer) -> Taken<P> {
        let Some((start, _)) = self.find(first, life) else { return Taken::Unknown };
        let piece = self.pieces.get_mut(&start).expect("it was found");
        assert!(first.slot + slots <= start.slot + piece.slots, "a part of a read is in one piece");
        piece.left = piece.left.saturating_sub(slots);
        if piece.left == 0 && std::mem::take(&mut piece.is_held) {
            self.held -= u64::from(piece.slots) * self.block_atoms;
        }
        match &mut piece.state {
            State::Reading { op, sharers } => {
                sharers.push(sharer);
                Taken::OnItsWay(*op)
            }
            State::Ready(payload) => {
                let taken = payload.slice(u64::from(first.slot - start.slot) * self.block_atoms, u64::from(slots) * self.block_atoms);
                if piece.left == 0 {
                    self.forget(start);
                }
                Taken::Ready(taken)
            }
        }
    }

    /// Who waits for this slot waits no more. False: it does not wait here.
    pub fn leave(&mut self, slot: Slot, life: u64, sharer: Sharer) -> bool {
        let Some((start, _)) = self.find(slot, life) else { return false };
        let State::Reading { sharers, .. } = &mut self.pieces.get_mut(&start).expect("it was found").state else { return false };
        let place = sharers.iter().position(|other| *other == sharer);
        place.map(|place| sharers.swap_remove(place)).is_some()
    }

    /// May so many slots from `first`, which are in no piece of this life, be read as one? Makes room: the oldest go.
    pub fn has_room(&mut self, first: Slot, slots: u32) -> bool {
        // Of an earlier life of the set.
        let last = Slot { slot: first.slot + slots - 1, ..first };
        while let Some((&start, piece)) = self.pieces.range(..=last).next_back()
            && start.set == first.set
            && first.slot < start.slot + piece.slots
        {
            assert!(matches!(piece.state, State::Ready(_)), "while a set is being read it has one life");
            self.forget(start);
        }
        let wanted = u64::from(slots) * self.block_atoms;
        while self.held + wanted > self.most {
            let Some((_, &oldest)) = self.order.first_key_value() else { return false };
            if matches!(self.pieces[&oldest].state, State::Reading { .. }) {
                return false;
            }
            self.forget(oldest);
        }
        true
    }

    /// The operation has been started.
    pub fn begin(&mut self, first: Slot, slots: u32, life: u64, op: OpId) {
        self.begun += 1;
        self.held += u64::from(slots) * self.block_atoms;
        self.order.insert(self.begun, first);
        let state = State::Reading { op, sharers: Vec::new() };
        let before = self.pieces.insert(first, Piece { number: self.begun, slots, life, state, left: slots, is_held: true });
        assert!(before.is_none(), "one piece has a slot");
    }

    /// Slots that are on their way from `first` on.
    pub fn slots(&self, first: Slot) -> u32 {
        self.pieces[&first].slots
    }

    /// What was on its way is there; without it, nothing is known of these slots any more. Who waits for it.
    pub fn end(&mut self, first: Slot, payload: Option<P>) -> Vec<Sharer> {
        let piece = self.pieces.get_mut(&first).expect("it is on its way");
        let is_wanted = piece.left > 0;
        let State::Reading { sharers, .. } = &mut piece.state else { panic!("an operation ends once") };
        let sharers = std::mem::take(sharers);
        match payload {
            Some(payload) if is_wanted => piece.state = State::Ready(payload),
            Some(_) | None => self.forget(first),
        }
        sharers
    }

    fn forget(&mut self, first: Slot) {
        let piece = self.pieces.remove(&first).expect("a piece");
        self.order.remove(&piece.number);
        if piece.is_held {
            self.held -= u64::from(piece.slots) * self.block_atoms;
        }
    }

    /// Nothing that has been read is given to anybody any more.
    pub fn clear(&mut self) {
        let ready: Vec<Slot> =
            self.pieces.iter().filter(|(_, piece)| matches!(piece.state, State::Ready(_))).map(|(&first, _)| first).collect();
        ready.into_iter().for_each(|first| self.forget(first));
    }

    /// Memory, in bytes; contents that clients have asked for are theirs.
    pub fn bytes(&self) -> u64 {
        let of_pieces = self.pieces.len() * (size_of::<Slot>() + size_of::<Piece<P>>() + size_of::<(u64, Slot)>());
        self.held * ATOM_BYTES + (of_pieces + self.streams.capacity() * size_of::<Stream>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::sequence::Sequences;
    use crate::payload::Checksum;

    /// The contents of a test: only their length is looked at.
    #[derive(Clone, Debug, PartialEq)]
    struct Length(u64);

    impl Payload for Length {
        fn atoms(&self) -> u64 {
            self.0
        }
        fn zero(atoms: u64) -> Self {
            Length(atoms)
        }
        fn slice(&self, start: u64, atoms: u64) -> Self {
            assert!(start + atoms <= self.0);
            Length(atoms)
        }
        fn concat(parts: &[Self]) -> Self {
            Length(parts.iter().map(|part| part.0).sum())
        }
        fn checksum(&self, _: Checksum) -> u32 {
            0
        }
        fn from_bytes(bytes: &[u8]) -> Self {
            Length(bytes.len() as u64 / ATOM_BYTES)
        }
        fn append_to(&self, _out: &mut Vec<u8>) {
            unreachable!("nobody looks at it")
        }
    }

    const MIB: u64 = (1 << 20) / ATOM_BYTES;
    const PART: Sharer = Sharer::Part { request: 7, part: 0 };
    const EDGE: Sharer = Sharer::Edge { request: 7, edge: 0 };

    fn slot(set: u32, slot: u32) -> Slot {
        Slot { set, slot }
    }

    #[test]
    fn a_sequence_is_read_ahead_of_twice_as_far_each_time_up_to_its_share() {
        let (mut ahead, mut sequences) = (Ahead::<Length>::new(16 << 20, 8), Sequences::new(4));
        let spans: Vec<Option<Span>> = (0..12)
            .map(|i| {
                let sequence = sequences.note(Span::new(i * MIB, MIB));
                sequence.filter(Sequence::runs).and_then(|sequence| ahead.next(&sequence, MIB, MIB))
            })
            .collect();
        let mib = |from: u64, until: u64| Some(Span::new(from * MIB, (until - from) * MIB));
        assert_eq!(spans[..6], [None, mib(2, 4), mib(4, 6), None, mib(6, 8), None]);
        let at = spans.into_iter().flatten().fold(2 * MIB, |at, span| {
            assert_eq!(span.start, at, "one goes on where the other ended");
            span.end()
        });
        assert_eq!(at, 14 * MIB, "2 or 3 MiB ahead: with what the client waits for that is enough");
    }

    #[test]
    fn who_has_asked_for_enough_is_not_read_ahead_of() {
        let (mut ahead, mut sequences) = (Ahead::<Length>::new(16 << 20, 8), Sequences::new(4));
        sequences.note(Span::new(0, MIB));
        let sequence = sequences.note(Span::new(MIB, MIB)).expect("it goes on");
        assert_eq!(ahead.next(&sequence, MIB, 3 * MIB), Some(Span::new(2 * MIB, MIB)));
        let sequence = sequences.note(Span::new(2 * MIB, MIB)).expect("it goes on");
        assert_eq!(ahead.next(&sequence, MIB, 8 * MIB), None);
        let sequence = sequences.note(Span::new(3 * MIB, MIB)).expect("it goes on");
        assert_eq!(ahead.next(&sequence, MIB, MIB), None, "of late, too");
    }

    #[test]
    fn what_nobody_asks_for_goes_when_there_is_no_room_and_what_is_on_its_way_stays() {
        let mut ahead = Ahead::new(64 * 4096, 8);
        for i in 0..4 {
            assert!(ahead.has_room(slot(i, 0), 16));
            ahead.begin(slot(i, 0), 16, 1, OpId::new(u64::from(i) + 1, 0));
        }
        assert!(!ahead.has_room(slot(9, 0), 1), "all of it is on its way");
        assert!(ahead.end(slot(0, 0), Some(Length(128))).is_empty());
        assert!(ahead.has_room(slot(9, 0), 1));
        assert_eq!(ahead.alike(slot(0, 4), 4, 1), (false, 4), "the oldest has gone");
        assert_eq!(ahead.alike(slot(1, 4), 20, 1), (true, 12));
    }

    #[test]
    fn a_place_is_known_in_the_life_of_its_set_in_which_it_was_read() {
        let mut ahead = Ahead::new(1 << 20, 8);
        ahead.begin(slot(3, 10), 8, 5, OpId::new(1, 0));
        assert!(matches!(ahead.take(slot(3, 12), 2, 5, PART), Taken::OnItsWay(_)));
        assert_eq!(ahead.end(slot(3, 10), Some(Length(64))), [PART]);
        assert!(matches!(ahead.take(slot(3, 12), 2, 6, PART), Taken::Unknown));
        assert_eq!(ahead.alike(slot(3, 8), 20, 6), (false, 20));
        assert_eq!(ahead.alike(slot(3, 8), 20, 5), (false, 2));
        assert!(ahead.has_room(slot(3, 8), 20), "of an earlier life");
        assert!(ahead.is_empty());
    }

    #[test]
    fn who_leaves_is_not_told() {
        let mut ahead = Ahead::new(1 << 20, 8);
        ahead.begin(slot(3, 10), 8, 5, OpId::new(1, 0));
        for sharer in [PART, EDGE] {
            assert!(matches!(ahead.take(slot(3, 12), 1, 5, sharer), Taken::OnItsWay(_)));
        }
        assert!(!ahead.leave(slot(3, 12), 6, EDGE), "of another life");
        assert!(ahead.leave(slot(3, 12), 5, EDGE));
        assert!(!ahead.leave(slot(3, 12), 5, EDGE));
        assert_eq!(ahead.end(slot(3, 10), Some(Length(64))), [PART]);
    }

    #[test]
    fn memory_is_bounded_behind_a_piece_that_nobody_asks_for() {
        let mut ahead = Ahead::new(1 << 20, 8);
        ahead.begin(slot(0, 0), 8, 1, OpId::new(1, 0));
        ahead.end(slot(0, 0), Some(Length(64)));
        for i in 1..10_000 {
            assert!(ahead.has_room(slot(i, 0), 8));
            ahead.begin(slot(i, 0), 8, 1, OpId::new(1, 0));
            ahead.take(slot(i, 0), 8, 1, PART);
            ahead.end(slot(i, 0), Some(Length(64)));
        }
        assert_eq!(ahead.pieces.len(), 1);
        assert_eq!(ahead.order.len(), ahead.pieces.len());
    }

    #[test]
    fn what_has_been_asked_for_whole_is_let_go() {
        let mut ahead = Ahead::new(1 << 20, 8);
        ahead.begin(slot(3, 0), 8, 5, OpId::new(1, 0));
        ahead.end(slot(3, 0), Some(Length(64)));
        for i in 0..4 {
            assert!(matches!(ahead.take(slot(3, 2 * i), 2, 5, PART), Taken::Ready(Length(16))));
        }
        assert!(ahead.is_empty());
    }
}

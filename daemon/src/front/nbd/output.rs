//! What a connection still has to send: headers in one buffer, payloads as the runs they are. Nothing is copied on the way out, but little pieces
//! of large slabs for which the socket has no place: a client that reads no replies would keep 32 MiB with 512 bytes, and that counts nowhere. And
//! pages of the memory tier, which are only leased (`back/lessor`).

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;

use tidegate_engine::block::ATOM_BYTES;

use crate::back::run::{Run, RunMut};

/// The buffer of headers is moved together when so much of it has been sent.
const COMPACT_BYTES: usize = 64 << 10;
/// A buffer that has grown beyond this counts as large as it is, and is given back when it is empty: a megabyte of extents is rare.
const KEPT_BYTES: usize = 2 * COMPACT_BYTES;
/// A run may keep so many times what it counts as. A copy never keeps more: slabs are cut in powers of two.
const SLAB_PARTS: u64 = 2;

#[derive(Debug, Default)]
pub struct Output {
    /// Headers and small answers in order; those before `sent` are gone.
    bytes: Vec<u8>,
    sent: usize,
    /// In order. Those of the kind `Bytes` together are `bytes[sent..]`.
    pieces: VecDeque<Piece>,
    /// So many of them, the first ones, keep no more than they count as.
    small: usize,
    /// Bytes not sent yet.
    unsent: u64,
    /// Bytes of memory that are held for that; a run is held until its last byte has left.
    memory: u64,
    /// Replies of which something is not sent yet.
    replies: usize,
    /// Pieces that are pages of the memory tier.
    leased: usize,
}

#[derive(Debug)]
struct Piece {
    content: Content,
    /// Replies that end with this piece.
    replies: usize,
}

#[derive(Debug)]
enum Content {
    /// So many bytes of the buffer.
    Bytes(usize),
    /// The run from this byte on, up to that one.
    Run(Run, usize, usize),
}

impl Output {
    pub fn is_empty(&self) -> bool {
        self.unsent == 0
    }

    /// Bytes not sent yet.
    pub fn unsent(&self) -> u64 {
        self.unsent
    }

    /// Bytes of memory that what is not sent yet takes, with all of the buffers where those are large.
    pub fn memory(&self) -> u64 {
        let headers = if self.bytes.capacity() > KEPT_BYTES { self.bytes.capacity() } else { self.bytes.len() };
        let pieces = if self.pieces_bytes() > KEPT_BYTES { self.pieces_bytes() } else { 0 };
        self.memory + (headers + pieces) as u64
    }

    fn pieces_bytes(&self) -> usize {
        self.pieces.capacity() * size_of::<Piece>()
    }

    /// Replies not sent completely yet.
    pub fn replies(&self) -> usize {
        self.replies
    }

    /// Lets `write` append bytes; what it returns is passed on.
    pub fn write<T>(&mut self, write: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let before = self.bytes.len();
        let result = write(&mut self.bytes);
        let added = self.bytes.len() - before;
        self.unsent += added as u64;
        match self.pieces.back_mut() {
            Some(Piece { content: Content::Bytes(length), .. }) => *length += added,
            _ if added > 0 => self.pieces.push_back(Piece { content: Content::Bytes(added), replies: 0 }),
            _ => {}
        }
        result
    }

    /// These bytes of a run; at least one.
    pub fn push(&mut self, run: Run, bytes: Range<usize>) {
        assert!(!bytes.is_empty() && bytes.end <= run.bytes(), "a piece lies inside its run");
        self.unsent += bytes.len() as u64;
        self.memory += run.memory();
        self.leased += usize::from(run.is_leased());
        self.pieces.push_back(Piece { content: Content::Run(run, bytes.start, bytes.end), replies: 0 });
    }

    /// Is some of it pages of the memory tier? They are to leave in this turn, or to be copied.
    pub fn has_leased(&self) -> bool {
        self.leased > 0
    }

    /// What is here stays for as long as the client likes: little pieces of large slabs become copies, each of them once, and so do
    /// pages that are leased.
    pub fn keep_little(&mut self) {
        for piece in self.pieces.range_mut(self.small..) {
            let Content::Run(run, start, end) = &mut piece.content else { continue };
            let before = run.memory();
            if !run.is_leased() && run.slab_bytes() <= SLAB_PARTS * before {
                continue;
            }
            let mut copy = RunMut::new(((*end - *start) as u64).div_ceil(ATOM_BYTES));
            let (bytes, rest) = copy.as_mut_slice().split_at_mut(*end - *start);
            bytes.copy_from_slice(&run.as_slice()[*start..*end]);
            rest.fill(0);
            let copy = copy.freeze();
            self.memory = self.memory + copy.memory() - before;
            (*start, *end) = (0, *end - *start);
            *run = copy;
        }
        self.leased = 0;
        self.small = self.pieces.len();
    }

    /// A reply ends here.
    pub fn end_reply(&mut self) {
        let last = self.pieces.back_mut().expect("a reply has at least a header");
        last.replies += 1;
        self.replies += 1;
    }

    /// Pieces not sent yet.
    pub fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Points `slices` at what is to be sent next, at most `most` bytes; returns how many slices and bytes that is.
    pub fn gather<'a>(&'a self, slices: &mut [IoSlice<'a>], most: usize) -> (usize, usize) {
        let mut at = self.sent;
        let (mut count, mut total) = (0, 0);
        for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
            let bytes = match &piece.content {
                Content::Bytes(length) => {
                    at += length;
                    &self.bytes[at - length..at]
                }
                Content::Run(run, start, end) => &run.as_slice()[*start..*end],
            };
            let bytes = &bytes[..bytes.len().min(most - total)];
            *slice = IoSlice::new(bytes);
            count += 1;
            total += bytes.len();
            if total == most {
                break;
            }
        }
        (count, total)
    }

    /// The socket took the first `count` bytes.
    pub fn advance(&mut self, mut count: usize) {
        self.unsent -= count as u64;
        while count > 0 {
            let piece = self.pieces.front_mut().expect("no more was sent than there was");
            let left = match &mut piece.content {
                Content::Bytes(length) => {
                    let took = count.min(*length);
                    *length -= took;
                    self.sent += took;
                    count -= took;
                    *length
                }
                Content::Run(run, start, end) => {
                    let took = count.min(*end - *start);
                    *start += took;
                    count -= took;
                    if start == end {
                        self.memory -= run.memory();
                        self.leased -= usize::from(run.is_leased());
                    }
                    *end - *start
                }
            };
            if left == 0 {
                self.replies -= piece.replies;
                self.pieces.pop_front();
                self.small = self.small.saturating_sub(1);
            }
        }
        if self.pieces.is_empty() && self.pieces_bytes() > KEPT_BYTES {
            self.pieces = VecDeque::new();
        }
        if self.sent == self.bytes.len() {
            self.bytes.clear();
            self.sent = 0;
            if self.bytes.capacity() > KEPT_BYTES {
                self.bytes = Vec::new();
            }
        } else if self.sent >= COMPACT_BYTES {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::back::lessor::PageLessor;
    use crate::back::run::RunMut;
    use proptest::prelude::*;
    use tidegate_engine::block::Span;
    use tidegate_engine::payload::{Lessor, Payload};
    use tidegate_pages::{Atoms, Block, Config, Pages};

    /// Everything that `output` would send, taken `step` bytes at a time from at most `width` slices.
    fn sent(output: &mut Output, step: usize, width: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while !output.is_empty() {
            let mut slices = vec![IoSlice::new(&[]); width];
            let (count, total) = output.gather(&mut slices, usize::MAX);
            let joined: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
            assert_eq!(joined.len(), total);
            let took = total.min(step);
            all.extend_from_slice(&joined[..took]);
            output.advance(took);
        }
        all
    }

    #[test]
    fn what_a_large_answer_took_counts_until_it_has_left_and_is_kept_no_longer() {
        let mut output = Output::default();
        let held = |output: &Output| output.bytes.capacity() + output.pieces_bytes();
        output.write(|out| out.resize(4 << 20, 1));
        assert!(output.memory() >= held(&output) as u64 - 4096 && held(&output) >= 4 << 20);
        // All but a little of it has left: the buffer is there as before.
        output.advance((4 << 20) - 10);
        assert_eq!(output.bytes.len(), 10, "moved together");
        assert!(output.memory() >= 4 << 20, "{} bytes are said to be held", output.memory());
        output.advance(10);
        assert!(output.memory() == 0 && held(&output) <= KEPT_BYTES, "{} bytes are kept for nothing", held(&output));
        // Many runs, each with a header.
        for _ in 0..20_000 {
            output.write(|out| out.push(1));
            output.push(RunMut::new(1).freeze(), 0..1);
        }
        let memory = output.memory;
        assert!(output.memory() > memory + output.pieces_bytes() as u64 && output.pieces_bytes() > KEPT_BYTES);
        output.advance(40_000);
        assert!(output.memory() == 0 && held(&output) <= 2 * KEPT_BYTES, "{} bytes are kept for nothing", held(&output));
        // What is of the usual size is used again.
        output.write(|out| out.resize(COMPACT_BYTES, 1));
        output.advance(COMPACT_BYTES);
        assert!(output.memory() == 0 && output.bytes.capacity() >= COMPACT_BYTES);
    }

    #[test]
    fn what_stays_keeps_hardly_more_memory_than_it_counts_as_and_is_copied_once() {
        let slab = |atoms: u64| {
            let mut slab = RunMut::new(atoms);
            slab.as_mut_slice().chunks_mut(512).enumerate().for_each(|(atom, bytes)| bytes.fill(atom as u8));
            slab.freeze()
        };
        let mut output = Output::default();
        let runs = [slab(65_536).slice(9, 1), slab(2_048).slice(17, 33), slab(8), slab(4_000).slice(0, 3_000), Run::zero(1)];
        runs.into_iter().for_each(|run| output.push(run, 10..500));
        output.advance(7);
        let runs = |output: &Output| {
            let run =
                |piece: &Piece| if let Content::Run(run, start, end) = &piece.content { (run.clone(), *end - *start) } else { panic!() };
            output.pieces.iter().map(run).collect::<Vec<_>>()
        };
        let kept = |output: &Output| runs(output).iter().map(|(run, _)| run.slab_bytes()).collect::<Vec<u64>>();
        assert_eq!(kept(&output), [32 << 20, 1 << 20, 4_096, 4_000 * 512, 0]);
        output.keep_little();
        assert_eq!(kept(&output), [4_096, 4_096, 4_096, 4_000 * 512, 0], "512 bytes of it are a page");
        assert_eq!(output.memory(), 3 * 4_096 + 3_000 * 512 + 4_096);
        let copies = runs(&output).into_iter().map(|(run, _)| run.as_slice().as_ptr());
        let before = copies.collect::<Vec<_>>();
        output.push(slab(65_536).slice(3, 1), 0..512);
        output.keep_little();
        let after = runs(&output);
        assert!(after.iter().zip(&before).all(|((run, _), before)| run.as_slice().as_ptr() == *before), "once");
        assert_eq!((after[5].0.slab_bytes(), after.len()), (4_096, 6), "and what has come since");
        drop(after);
        let contents = [vec![9; 483], vec![17; 490], vec![0; 490], vec![0; 490], vec![0; 490], vec![3; 512]].concat();
        assert_eq!(sent(&mut output, 700, 3), contents);
        assert_eq!((output.memory(), output.small), (0, 0));
    }

    #[test]
    fn pages_of_memory_that_stay_are_copied_and_given_back() {
        let (pages, mut keeper) = Pages::new(Config::of_memory(1 << 20, 1)).expect("memory");
        for block in 0..3 {
            keeper.fill(Block(block), &[block as u8 + 1; 4096], Atoms(0xff)).expect("a page");
        }
        let mut lessor = PageLessor::new(&pages).expect("there is one");
        let mut lease = |spans: &[Span]| lessor.lease(spans).map(|answers| answers.into_iter().flatten().flatten().collect::<Vec<_>>());
        let mut output = Output::default();
        lease(&[Span::new(0, 8), Span::new(8, 16)]).expect("nothing is out").into_iter().for_each(|run| output.push(run, 0..1_000));
        assert_eq!((output.memory(), output.has_leased(), lease(&[])), (3 * 4_096, true, None));
        output.advance(1_100);
        output.keep_little();
        assert!(lease(&[]).is_some() && !output.has_leased() && output.memory() == 2 * 4_096);
        assert_eq!(sent(&mut output, 4_096, 2), [vec![2; 900], vec![3; 1_000]].concat());
        lease(&[Span::new(0, 8)]).expect("nothing is out").into_iter().for_each(|run| output.push(run, 0..4_096));
        output.advance(4_096);
        assert!(lease(&[]).is_some() && !output.has_leased(), "it has left");
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out_in_order_whatever_the_socket_takes(
            parts in prop::collection::vec(prop_oneof![(1usize..40).prop_map(Ok), (1u64..4).prop_map(Err)], 1..40),
            step in 1usize..3000,
            width in 1usize..9,
        ) {
            let mut output = Output::default();
            let mut expect = Vec::new();
            for (seed, part) in parts.iter().enumerate() {
                let before = expect.len();
                match part {
                    Ok(count) => {
                        expect.resize(before + count, seed as u8);
                        output.write(|out| out.extend_from_slice(&expect[before..]));
                    }
                    Err(atoms) => {
                        let mut run = RunMut::new(*atoms);
                        run.as_mut_slice().fill(seed as u8);
                        let part = seed % 7..run.as_slice().len() - seed % 3;
                        expect.extend_from_slice(&run.as_slice()[part.clone()]);
                        output.push(run.freeze(), part);
                    }
                }
                output.end_reply();
            }
            prop_assert_eq!(output.replies(), parts.len());
            prop_assert_eq!(output.unsent(), expect.len() as u64);
            prop_assert_eq!(sent(&mut output, step, width), expect);
            prop_assert_eq!((output.replies(), output.pieces(), output.memory()), (0, 0, 0));
        }
    }
}

//! What a connection still has to send: headers in one buffer, payloads as the runs they are. Nothing is copied on the way out.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;

use crate::back::run::Run;

/// The buffer of headers is moved together when so much of it has been sent.
const COMPACT_BYTES: usize = 64 << 10;

#[derive(Debug, Default)]
pub struct Output {
    /// Headers and small answers in order; those before `sent` are gone.
    bytes: Vec<u8>,
    sent: usize,
    /// In order. Those of the kind `Bytes` together are `bytes[sent..]`.
    pieces: VecDeque<Piece>,
    /// Bytes not sent yet.
    unsent: u64,
    /// Bytes of memory that are held for that; a run is held until its last byte has left.
    memory: u64,
    /// Replies of which something is not sent yet.
    replies: usize,
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

    /// Bytes of memory that what is not sent yet takes.
    pub fn memory(&self) -> u64 {
        self.memory + self.bytes.len() as u64
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
        self.pieces.push_back(Piece { content: Content::Run(run, bytes.start, bytes.end), replies: 0 });
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
                    }
                    *end - *start
                }
            };
            if left == 0 {
                self.replies -= piece.replies;
                self.pieces.pop_front();
            }
        }
        if self.sent == self.bytes.len() {
            self.bytes.clear();
            self.sent = 0;
        } else if self.sent >= COMPACT_BYTES {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::back::run::RunMut;
    use proptest::prelude::*;

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

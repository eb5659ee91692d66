//! Numbers in their order, in short pieces one after the other: whoever comes finds its piece by halving among their first numbers and its
//! place by halving in the piece, and moves half a piece. Whoever goes on from the last one that was taken need not look for the next. A tree
//! does the same with a dozen numbers to a node, and takes twice as long.

/// Numbers of a piece at most: 512 bytes.
const PIECE: usize = 64;

/// A set of numbers.
#[derive(Default)]
pub struct Sorted {
    /// Not above the first number of each piece, nor below what is in the piece before. The first piece takes everything below.
    firsts: Vec<u64>,
    /// None is empty.
    pieces: Vec<Vec<u64>>,
    /// Behind the number that was taken last.
    behind: Option<Behind>,
}

/// Where the numbers from `least` on begin: in this piece, or with the next one if it ends there.
#[derive(Clone, Copy)]
struct Behind {
    least: u64,
    piece: usize,
    place: usize,
}

impl Sorted {
    /// Adds a number that is not there.
    pub fn insert(&mut self, number: u64) {
        if self.pieces.is_empty() {
            self.firsts.push(0);
            self.pieces.push(Vec::with_capacity(PIECE));
        }
        let at = self.piece_of(number);
        let piece = &mut self.pieces[at];
        let place = piece.partition_point(|&other| other < number);
        assert!(piece.get(place) != Some(&number), "a number is there once");
        piece.insert(place, number);
        if let Some(behind) = self.behind.as_mut().filter(|behind| behind.piece == at && number < behind.least) {
            behind.place += 1;
        }
        if piece.len() == PIECE {
            self.behind = None;
            let mut upper = Vec::with_capacity(PIECE);
            upper.extend(piece.drain(PIECE / 2..));
            self.firsts.insert(at + 1, upper[0]);
            self.pieces.insert(at + 1, upper);
        }
    }

    /// Takes out a number that is there.
    pub fn remove(&mut self, number: u64) {
        assert!(self.take_from(number) == Some(number), "what waits is sorted");
    }

    /// Takes out the least number from `least` on.
    pub fn take_from(&mut self, least: u64) -> Option<u64> {
        let (at, place) = self.find_from(least)?;
        let number = self.pieces[at].remove(place);
        self.behind = Some(Behind { least: number + 1, piece: at, place });
        if self.pieces[at].is_empty() {
            self.behind = None;
            self.pieces.remove(at);
            self.firsts.remove(at);
            if let Some(first) = self.firsts.first_mut() {
                *first = 0;
            }
        }
        Some(number)
    }

    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The piece that a number belongs to; there is one.
    fn piece_of(&self, number: u64) -> usize {
        self.firsts.partition_point(|&first| first <= number) - 1
    }

    /// Piece and place of the least number from `least` on.
    fn find_from(&self, least: u64) -> Option<(usize, usize)> {
        if self.is_empty() {
            return None;
        }
        let (at, place) = match self.behind {
            Some(behind) if behind.least == least => (behind.piece, behind.place),
            _ => {
                let at = self.piece_of(least);
                (at, self.pieces[at].partition_point(|&other| other < least))
            }
        };
        if place < self.pieces[at].len() {
            return Some((at, place));
        }
        (at + 1 < self.pieces.len()).then_some((at + 1, 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// Against a tree: few numbers, so that they meet, and enough for several pieces.
        #[test]
        fn it_is_a_set_in_order(steps in prop::collection::vec((0u64..600, prop::bool::weighted(0.65)), 1..1_200)) {
            let (mut sorted, mut tree, mut last) = (Sorted::default(), BTreeSet::new(), 0);
            for (number, comes) in steps {
                match (comes, tree.contains(&number)) {
                    (true, false) => {
                        sorted.insert(number);
                        tree.insert(number);
                    }
                    (true, true) => {
                        sorted.remove(number);
                        tree.remove(&number);
                    }
                    (false, _) => {
                        // Half of them go on from the last one.
                        let number = if number % 2 == 0 { last } else { number };
                        let next = tree.range(number..).next().copied();
                        prop_assert_eq!(sorted.take_from(number), next);
                        if let Some(next) = next {
                            tree.remove(&next);
                            last = next + 1;
                        }
                    }
                }
                prop_assert_eq!(sorted.is_empty(), tree.is_empty());
            }
            let rest: Vec<u64> = std::iter::from_fn(|| sorted.take_from(0)).collect();
            prop_assert_eq!(rest, tree.into_iter().collect::<Vec<_>>());
        }
    }
}

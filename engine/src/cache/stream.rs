//! Stream: what is written together because it is likely to die together. Each has an open set of its own.

use super::heat::CLASSES_MAX;

/// Of client writes and of moved blocks there is one for each class of paces (`heat`), the fastest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Client(u32),
    Fill,
    Moved(u32),
}

/// Whose contents take slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Client,
    Fill,
    /// Another slot, which is left.
    Moved,
}

/// The numbers of all streams are below.
pub const STREAMS: usize = 2 * CLASSES_MAX as usize + 2;

impl Stream {
    /// The stream of a source for contents of a class.
    pub fn of(source: Source, class: u32) -> Stream {
        match source {
            Source::Client => Stream::Client(class),
            Source::Fill => Stream::Fill,
            Source::Moved => Stream::Moved(class),
        }
    }

    pub fn source(self) -> Source {
        match self {
            Stream::Client(_) => Source::Client,
            Stream::Fill => Source::Fill,
            Stream::Moved(_) => Source::Moved,
        }
    }

    /// As it is recorded: client writes of class 0 have 0, fills 1; other client writes are even, moved blocks odd.
    pub fn number(self) -> u8 {
        let number = match self {
            Stream::Client(class) => 2 * class,
            Stream::Fill => 1,
            Stream::Moved(class) => 2 * class + 3,
        };
        number as u8
    }

    /// The streams of a source, of so many classes.
    pub fn all(source: Source, classes: u32) -> impl Iterator<Item = Stream> {
        let classes = if source == Source::Fill { 1 } else { classes };
        (0..classes).map(move |class| Stream::of(source, class))
    }

    /// The stream of a number, if there is one among so many classes. `moves`: blocks are moved at all.
    pub fn from_number(number: u8, classes: u32, moves: bool) -> Option<Stream> {
        let sources = [Source::Client, Source::Fill, Source::Moved].into_iter().take(if moves { 3 } else { 2 });
        sources.flat_map(|source| Stream::all(source, classes)).find(|stream| stream.number() == number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stream_has_a_number_of_its_own() {
        let all: Vec<Stream> =
            [Source::Client, Source::Fill, Source::Moved].into_iter().flat_map(|source| Stream::all(source, CLASSES_MAX)).collect();
        let mut numbers: Vec<u8> = all.iter().map(|stream| stream.number()).collect();
        assert!(all.iter().all(|stream| Stream::from_number(stream.number(), CLASSES_MAX, true) == Some(*stream)));
        numbers.sort_unstable();
        numbers.dedup();
        assert!(numbers.len() == all.len() && usize::from(*numbers.last().unwrap()) < STREAMS);
        assert_eq!((Stream::Client(0).number(), Stream::Fill.number()), (0, 1));
        assert_eq!(Stream::from_number(3, 1, false), None);
    }
}

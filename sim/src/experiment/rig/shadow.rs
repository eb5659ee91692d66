//! What was written last, atom by atom: every read is compared with it. A cheap eye on the engine, no oracle: where requests in flight
//! overlap, any of them may come first, and those atoms are not judged until they are written again.

use crate::stamp::Stamps;
use std::collections::HashMap;
use tidegate_engine::block::Span;

/// Atoms of a chunk.
const CHUNK: u64 = 8;
/// In place of a write's number: unknown.
const UNSURE: u32 = u32::MAX;

/// The number of the last write of each atom; 0 where nothing was written.
#[derive(Default)]
pub struct Shadow {
    // Only looked into, never walked: its order does not matter.
    chunks: HashMap<u64, [u32; CHUNK as usize]>,
    writes: u32,
    /// Requests in flight: place, the number of a write, and whether another overlapped it.
    flight: Vec<Flying>,
}

struct Flying {
    id: u64,
    span: Span,
    write: Option<u32>,
    unsure: bool,
}

/// What write number `write` puts on an atom. The number stands above 32 bits of the address: a stamp of any volume is one no other
/// write has, and no atom closer than 2 TiB.
fn stamp(write: u32, atom: u64) -> u64 {
    if write == 0 { 0 } else { u64::from(write) << 32 | (atom & 0xffff_ffff) }
}

impl Shadow {
    /// A read is sent.
    pub fn read(&mut self, id: u64, span: Span) {
        self.send(id, span, None);
    }

    /// A write is sent: its data.
    pub fn write(&mut self, id: u64, span: Span) -> Stamps {
        self.writes += 1;
        assert!(self.writes < 1 << 31, "writes are counted in 31 bits");
        self.send(id, span, Some(self.writes));
        let stamps: Vec<u64> = (span.start..span.end()).map(|atom| stamp(self.writes, atom)).collect();
        Stamps::from_stamps(&stamps)
    }

    fn send(&mut self, id: u64, span: Span, write: Option<u32>) {
        let mut unsure = false;
        for other in self.flight.iter_mut().filter(|other| other.span.overlaps(span)) {
            if write.is_some() || other.write.is_some() {
                other.unsure = true;
                unsure = true;
            }
        }
        self.flight.push(Flying { id, span, write, unsure });
    }

    fn land(&mut self, id: u64) -> Flying {
        let index = self.flight.iter().position(|flying| flying.id == id).expect("only what was sent is answered");
        self.flight.swap_remove(index)
    }

    /// A write was answered.
    pub fn written(&mut self, id: u64) {
        let flying = self.land(id);
        let number = if flying.unsure { UNSURE } else { flying.write.expect("a write") };
        for_chunks(flying.span, |chunk, from, to| {
            self.chunks.entry(chunk).or_default()[from..to].fill(number);
        });
    }

    /// A read was answered with these stamps. The error says what should have been there.
    pub fn check(&mut self, id: u64, found: impl Iterator<Item = u64>) -> Result<(), String> {
        let flying = self.land(id);
        if flying.unsure {
            return Ok(());
        }
        let (mut atom, mut found, mut wrong) = (flying.span.start, found, None);
        for_chunks(flying.span, |chunk, from, to| {
            let expected = self.chunks.get(&chunk).copied().unwrap_or_default();
            for &write in &expected[from..to] {
                let stamp_found = found.next();
                if write != UNSURE && stamp_found != Some(stamp(write, atom)) {
                    wrong.get_or_insert((atom, write, stamp_found));
                }
                atom += 1;
            }
        });
        match wrong {
            None => Ok(()),
            Some((atom, write, found)) => {
                let found = found.map_or("nothing".to_string(), |stamp| format!("what write {} wrote", stamp >> 32));
                Err(format!("a read of atom {atom} finds {found}; write {write} was the last"))
            }
        }
    }
}

/// A span cut at the borders of chunks: chunk, first and last index in it.
fn for_chunks(span: Span, mut with: impl FnMut(u64, usize, usize)) {
    let mut start = span.start;
    while start < span.end() {
        let end = (start / CHUNK * CHUNK + CHUNK).min(span.end());
        with(start / CHUNK, (start % CHUNK) as usize, (end - start / CHUNK * CHUNK) as usize);
        start = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_finds_what_was_written_last_or_is_an_error() {
        let mut shadow = Shadow::default();
        let span = Span::new(5, 20);
        let first = shadow.write(1, span);
        shadow.written(1);
        let second = shadow.write(2, Span::new(10, 3));
        shadow.written(2);
        let mut stamps: Vec<u64> = first.stamps().collect();
        stamps[5..8].copy_from_slice(&second.stamps().collect::<Vec<_>>());
        shadow.read(3, span);
        assert_eq!(shadow.check(3, stamps.iter().copied()), Ok(()));
        for stale in [5, 7, 19] {
            shadow.read(4, span);
            let mut wrong = stamps.clone();
            wrong[stale] = first.stamp(stale as u64) ^ u64::from(!(5..8).contains(&stale));
            assert!(shadow.check(4, wrong.into_iter()).is_err(), "{stale}");
        }
        shadow.read(5, Span::new(100, 8));
        assert_eq!(shadow.check(5, [0; 8].into_iter()), Ok(()));
        shadow.read(6, Span::new(100, 8));
        assert!(shadow.check(6, [0; 7].into_iter()).unwrap_err().contains("finds nothing"));
    }

    #[test]
    fn requests_that_overlap_in_flight_are_not_judged() {
        let mut shadow = Shadow::default();
        let (one, other) = (shadow.write(1, Span::new(0, 8)), shadow.write(2, Span::new(4, 8)));
        shadow.read(3, Span::new(0, 4));
        shadow.written(2);
        shadow.written(1);
        assert_eq!(shadow.check(3, [7; 4].into_iter()), Ok(()));
        shadow.read(4, Span::new(0, 12));
        assert_eq!(shadow.check(4, one.stamps().chain(other.stamps().skip(4))), Ok(()), "either may have come first");
        let again = shadow.write(5, Span::new(0, 12));
        shadow.written(5);
        shadow.read(6, Span::new(0, 12));
        assert!(shadow.check(6, one.stamps().chain(other.stamps().skip(4))).is_err());
        shadow.read(7, Span::new(0, 12));
        assert_eq!(shadow.check(7, again.stamps()), Ok(()));
    }
}

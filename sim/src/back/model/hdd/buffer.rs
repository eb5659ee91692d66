//! The write buffer of an HDD: what was accepted and is not on the platter. Bounded in bytes and in entries; what is contiguous or
//! overlaps becomes one entry, as old as the oldest part of it.

use super::super::Cause;
use std::collections::BTreeMap;
use tidegate_engine::block::Span;

#[derive(Clone, Copy, Debug)]
struct Entry {
    end: u64,
    age: u64,
    cause: Cause,
}

#[derive(Clone, Debug, Default)]
pub struct Buffer {
    /// By first atom. Entries neither touch nor overlap.
    entries: BTreeMap<u64, Entry>,
    /// First atoms by age.
    ages: BTreeMap<u64, u64>,
    aged: u64,
    /// Atoms in the entries.
    pub atoms: u64,
}

impl Buffer {
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn entries(&self) -> usize {
        self.entries.len()
    }

    /// Would these atoms join an entry rather than be a new one?
    pub fn joins(&self, span: Span) -> bool {
        self.entries.range(..=span.end()).next_back().is_some_and(|(_, entry)| entry.end >= span.start)
    }

    /// Holds it every atom of `span`?
    pub fn covers(&self, span: Span) -> bool {
        self.entries.range(..=span.start).next_back().is_some_and(|(_, entry)| entry.end >= span.end())
    }

    pub fn put(&mut self, span: Span, cause: Cause) {
        self.aged += 1;
        let (mut start, mut new) = (span.start, Entry { end: span.end(), age: self.aged, cause });
        // Everything that touches the span joins it.
        while let Some((&at, &entry)) = self.entries.range(..=new.end).next_back().filter(|(_, entry)| entry.end >= start) {
            self.entries.remove(&at);
            self.ages.remove(&entry.age);
            self.atoms -= entry.end - at;
            (start, new.end, new.age) = (start.min(at), new.end.max(entry.end), new.age.min(entry.age));
        }
        self.insert(start, new);
    }

    fn insert(&mut self, start: u64, entry: Entry) {
        self.atoms += entry.end - start;
        self.ages.insert(entry.age, start);
        self.entries.insert(start, entry);
    }

    /// First atoms of the `count` oldest entries.
    pub fn oldest(&self, count: usize) -> impl Iterator<Item = u64> {
        self.ages.values().copied().take(count)
    }

    /// Takes at most `atoms` from the beginning of the entry at `start`.
    pub fn take(&mut self, start: u64, atoms: u64) -> (Span, Cause) {
        let entry = self.entries.remove(&start).expect("an entry begins there");
        self.ages.remove(&entry.age);
        self.atoms -= entry.end - start;
        let taken = Span::new(start, atoms.min(entry.end - start));
        if taken.end() < entry.end {
            self.insert(taken.end(), entry);
        }
        (taken, entry.cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chance::Chance;
    use std::collections::BTreeSet;

    #[test]
    fn it_holds_what_a_set_of_atoms_holds() {
        let (mut buffer, mut flat, mut chance) = (Buffer::default(), BTreeSet::new(), Chance::new(1, "buffer"));
        for _ in 0..5_000 {
            let span = Span::new(chance.below(500), chance.between(1, 9));
            if chance.one_in(3) && !buffer.is_empty() {
                let start = buffer.oldest(4).last().expect("an entry");
                let (taken, _) = buffer.take(start, chance.between(1, 6));
                assert!((taken.start..taken.end()).all(|atom| flat.remove(&atom)));
            } else {
                let joins = (span.start.saturating_sub(1)..=span.end()).any(|atom| flat.contains(&atom));
                assert_eq!(buffer.joins(span), joins, "{span:?}");
                buffer.put(span, Cause::HostWrite);
                flat.extend(span.start..span.end());
            }
            assert_eq!(buffer.covers(span), (span.start..span.end()).all(|atom| flat.contains(&atom)));
            assert_eq!(buffer.atoms, flat.len() as u64);
            assert_eq!(buffer.entries(), flat.iter().filter(|&&atom| !flat.contains(&(atom + 1))).count());
        }
    }

    #[test]
    fn what_joins_is_as_old_as_its_oldest_part() {
        let mut buffer = Buffer::default();
        for start in [10, 50, 30, 20, 40] {
            buffer.put(Span::new(start, 10), Cause::HostWrite);
        }
        assert_eq!(buffer.oldest(9).collect::<Vec<_>>(), [10], "10 to 60 is one");
        buffer.put(Span::new(80, 1), Cause::Destage);
        assert_eq!(buffer.oldest(9).collect::<Vec<_>>(), [10, 80]);
        assert_eq!(buffer.take(10, 4).0, Span::new(10, 4));
        assert_eq!(buffer.oldest(9).collect::<Vec<_>>(), [14, 80], "the rest is as old");
    }
}

//! Runs of numbers, of blocks or of atoms: in order, with others between any two of them.

use std::ops::Range;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Runs(Vec<Range<u64>>);

impl Runs {
    pub fn of(run: Range<u64>) -> Runs {
        Runs(vec![run])
    }
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    pub fn as_slice(&self) -> &[Range<u64>] {
        &self.0
    }
    pub fn overlaps(&self, run: &Range<u64>) -> bool {
        let first = self.0.partition_point(|known| known.end <= run.start);
        self.0.get(first).is_some_and(|known| known.start < run.end)
    }

    /// What of `all` is in them.
    pub fn overlapping(&self, all: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let first = self.0.partition_point(|known| known.end <= all.start);
        let within = move |run: &Range<u64>| run.start.max(all.start)..run.end.min(all.end);
        self.0[first..].iter().map(within).take_while(|run| run.start < run.end)
    }

    /// What of `all` is in none of them.
    pub fn gaps(&self, all: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let mut at = all.start;
        let behind = all.end..all.end;
        self.0.iter().cloned().chain([behind]).filter_map(move |run| {
            let gap = at..run.start.min(all.end);
            at = at.max(run.end);
            (gap.start < gap.end).then_some(gap)
        })
    }

    /// With what it overlaps, or touches, it becomes one.
    pub fn insert(&mut self, run: Range<u64>) {
        let first = self.0.partition_point(|known| known.end < run.start);
        let behind = self.0.partition_point(|known| known.start <= run.end);
        let start = self.0[first..behind].first().map_or(run.start, |known| known.start.min(run.start));
        let end = self.0[first..behind].last().map_or(run.end, |known| known.end.max(run.end));
        self.0.splice(first..behind, std::iter::once(start..end));
    }

    pub fn remove(&mut self, run: &Range<u64>) {
        let first = self.0.partition_point(|known| known.end <= run.start);
        let behind = self.0.partition_point(|known| known.start < run.end);
        if first >= behind || run.is_empty() {
            return;
        }
        let outside = [self.0[first].start..run.start, run.end..self.0[behind - 1].end];
        self.0.splice(first..behind, outside.into_iter().filter(|left| !left.is_empty()));
    }

    /// Takes all of the others.
    pub fn take(&mut self, others: Runs) {
        others.0.into_iter().for_each(|run| self.insert(run));
    }

    /// Of more than so many, those become one between which the least lies: what lies between belongs to them then.
    pub fn join_nearest(&mut self, most: usize) {
        while self.0.len() > most {
            let gap = |&at: &usize| self.0[at].start - self.0[at - 1].end;
            let nearest = (1..self.0.len()).min_by_key(gap).expect("there are several");
            let behind = self.0.remove(nearest);
            self.0[nearest - 1].end = behind.end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_those_of_a_set() {
        let mut chance = crate::draw::Draw::new(7);
        let (mut runs, mut set) = (Runs::default(), std::collections::BTreeSet::new());
        for _ in 0..2_000 {
            let start = chance.below(400);
            let run = start..start + 1 + chance.below(9);
            if chance.below(3) > 0 {
                runs.insert(run.clone());
                set.extend(run.clone());
            } else {
                runs.remove(&run);
                set.retain(|number| !run.contains(number));
            }
            let known: Vec<u64> = runs.as_slice().iter().cloned().flatten().collect();
            assert_eq!(known, set.iter().copied().collect::<Vec<_>>());
            assert!(runs.as_slice().is_sorted_by(|one, next| one.end < next.start), "apart");
            let asked = chance.below(400);
            assert_eq!(runs.overlaps(&(asked..asked + 5)), (asked..asked + 5).any(|number| set.contains(&number)));
        }
    }

    #[test]
    fn between_them_are_gaps() {
        let mut runs = Runs::default();
        assert_eq!((runs.gaps(3..3).next(), runs.gaps(3..5).next()), (None, Some(3..5)));
        [2..4, 6..7, 9..20].into_iter().for_each(|run| runs.insert(run));
        assert!(runs.gaps(3..12).eq([4..6, 7..9]) && runs.gaps(0..10).eq([0..2, 4..6, 7..9]) && runs.gaps(10..12).eq([]));
    }

    #[test]
    fn too_many_are_joined_where_the_least_lies_between() {
        let mut runs = Runs::default();
        (0..5).for_each(|at| runs.insert(at * 100..at * 100 + 8));
        runs.insert(212..220);
        runs.join_nearest(5);
        assert_eq!(runs.as_slice(), [0..8, 100..108, 200..220, 300..308, 400..408]);
    }
}

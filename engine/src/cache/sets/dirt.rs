//! Since when sets are dirty: each from when its first slot became dirty while all others were clean, unless something says better. That is
//! known at the grain of a set only, and the sets are kept in that order.

use std::collections::BTreeSet;

use super::{Set, SetState, Sets};
use crate::time::Instant;

/// The sets with dirty slots.
#[derive(Default)]
pub(super) struct Dirt {
    /// Since when each has some.
    sets: BTreeSet<(Instant, u32)>,
    /// The moment, as the engine last told it.
    now: Instant,
}

impl Dirt {
    /// Keeps the order when the dirty slots of a set go from `before` to what they are.
    pub fn note(&mut self, number: u32, set: &mut Set, before: u32) {
        if before == 0 && set.dirty_count > 0 {
            set.dirty_since = self.now;
            self.sets.insert((self.now, number));
        } else if before > 0 && set.dirty_count == 0 {
            self.sets.remove(&(set.dirty_since, number));
        }
    }

    /// A dirty set has been dirty since another time.
    fn redate(&mut self, number: u32, set: &mut Set, since: Instant) {
        self.sets.remove(&(set.dirty_since, number));
        set.dirty_since = since;
        self.sets.insert((since, number));
    }
}

impl Sets {
    /// What becomes dirty from here on does so at this moment.
    pub fn note_now(&mut self, now: Instant) {
        self.dirt.now = now;
    }

    /// When the oldest dirty block became dirty that is not stranded, at the grain of a set.
    pub fn dirty_since(&self) -> Option<Instant> {
        self.oldest_dirty().map(|(since, _)| since)
    }
    /// The set that it lies in, and since when that is dirty.
    pub fn oldest_dirty(&self) -> Option<(Instant, u32)> {
        if self.stranded.is_empty() {
            return self.dirt.sets.first().copied();
        }
        let is_owed = |set: u32| self.get(set).dirty_count > self.stranded.of_set(set);
        self.dirt.sets.iter().find(|&&(_, set)| is_owed(set)).copied()
    }
    /// Dirty slots that may go home: those that are not stranded.
    pub fn owed_slots(&self) -> u64 {
        self.dirty_slots - self.stranded.len()
    }
    /// Sets with dirty slots.
    pub fn dirty_sets(&self) -> u32 {
        self.dirt.sets.len() as u32
    }
    /// False: every set is free, dying, dirty or open, so none can be dropped. `open` names the open ones: to count those that are clean.
    pub fn may_have_clean(&self, open: impl Iterator<Item = u32>) -> bool {
        let is_clean = |set: &Set| set.state == SetState::Open && set.dirty_count == 0;
        let open = open.filter(|&set| is_clean(self.get(set))).count() as u32;
        self.count() > self.free_or_dying() + self.dirty_sets() + open
    }

    /// What a dirty set holds has been dirty since then, at least.
    pub fn inherit_dirt(&mut self, number: u32, since: Instant) {
        let set = &mut self.sets[number as usize];
        if set.dirty_count > 0 && since < set.dirty_since {
            self.dirt.redate(number, set, since);
        }
    }
    /// All that was dirty in it until `since` is clean now, or counts as dirty since then. `before`: since when it was dirty then; if it is another
    /// time by now, it stays.
    pub fn renew_dirt(&mut self, number: u32, before: Instant, since: Instant) {
        let set = &mut self.sets[number as usize];
        if set.dirty_count > 0 && set.dirty_since == before && before < since {
            self.dirt.redate(number, set, since);
        }
    }
}

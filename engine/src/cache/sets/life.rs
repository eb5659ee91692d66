//! The life of a set: Free → Open or Placed → Sealed → dying → Free.
//!
//! Dying is a sealed set in which nothing lives any more: it waits until every kill of its slots is durable, and no read, write or header
//! operation touches it. No other path leads to Free.

use super::{HeaderState, Heat, SetState, Sets, Slots};
use crate::cache::format::journal::PLACED;
use crate::cache::format::{Bits, Position};
use crate::cache::stream::Stream;

/// The group of a kill that no record tells yet.
const UNTOLD: u64 = u64::MAX;

impl Sets {
    pub fn open_sets(&self) -> impl Iterator<Item = u32> + '_ {
        self.iter().filter(|(_, set)| set.state == SetState::Open).map(|(number, _)| number)
    }
    pub fn free_count(&self) -> u32 {
        self.free.count()
    }
    pub fn dying_count(&self) -> u32 {
        self.dying.len() as u32
    }
    /// Free now, or when what has died in them is durable.
    pub fn free_or_dying(&self) -> u32 {
        self.free_count() + self.dying_count()
    }

    /// Takes the free set that has been free longest, of the lane that has its turn.
    pub fn open(&mut self, stream: Stream, group: u64) -> Option<u32> {
        let number = self.free.pop()?;
        let life = self.get(number).life + 1;
        self.reopen(number, life, stream.number());
        self.get_mut(number).open_group = group;
        Some(number)
    }

    /// The same for an origin set.
    pub fn open_placed(&mut self, origin: u64, group: u64) -> Option<u32> {
        let number = self.free.pop()?;
        let life = self.get(number).life + 1;
        self.reopen(number, life, PLACED);
        self.placed.map(number, origin);
        self.get_mut(number).open_group = group;
        Some(number)
    }

    /// Makes the set Open with this life, whatever it was (replay of an OPEN).
    pub fn reopen(&mut self, number: u32, life: u64, stream: u8) {
        let (slots, usual) = (self.geometry.set_slots, self.usual_pace());
        self.forget_partials(number);
        self.read.forget_set(number);
        self.gain.forget(number);
        let set = self.get_mut(number);
        assert!(set.live_count == 0, "set {number} is opened with {} live slots", set.live_count);
        assert!(life > set.life, "a new life is a later one");
        assert!(set.pins == 0, "set {number} is opened while an operation holds it");
        set.life = life;
        set.state = SetState::Open;
        set.live = Bits::new(slots);
        set.dirty = Bits::new(slots);
        set.slots.begin(slots as usize);
        set.heat = Heat::new(usual);
        set.stream = stream;
        set.header = HeaderState::None;
        set.header_failures = 0;
        set.sealed = Position::default();
        set.loaded = true;
        if stream == PLACED {
            set.state = SetState::Placed;
            set.slots.resize(slots as usize);
            self.placed.insert(number, slots);
        }
        self.touch(number);
    }

    pub fn seal(&mut self, number: u32, sealed: Position) {
        let set = self.get_mut(number);
        assert!(set.is_open(), "only an open set is sealed");
        let live = u64::from(set.live_count);
        let was_placed = std::mem::replace(&mut set.state, SetState::Sealed) == SetState::Placed;
        set.sealed = sealed;
        set.header = HeaderState::Due;
        if was_placed {
            self.placed.remove(number);
            self.placed.died(live);
        }
        let set = self.get(number);
        if set.live_count == 0 {
            self.die(number);
        }
        self.weigh(number);
    }

    /// Nothing lives in a sealed set any more: it leaves the LRU order and waits to be reusable.
    pub fn die(&mut self, number: u32) {
        self.unlink(number);
        self.gain.forget(number);
        self.dying.push(number);
    }

    /// All slots of a sealed set are dead, and nothing says so yet ([`Sets::bury`]).
    pub fn mourn(&mut self, number: u32) {
        let set = self.get_mut(number);
        assert!(set.state == SetState::Sealed && set.live_count == 0);
        set.kill_group = UNTOLD;
    }
    /// A record of `group` says so.
    pub fn bury(&mut self, number: u32, group: u64) {
        self.get_mut(number).kill_group = group;
    }

    /// The sealed sets without live slots.
    pub fn dying(&self) -> &[u32] {
        &self.dying
    }

    /// Nothing in flight holds one of them.
    pub fn has_unheld_dying(&self) -> bool {
        self.dying.iter().any(|&set| self.get(set).pins == 0)
    }
    /// The next flush would free one of them.
    pub fn has_undurable_dying(&self, durable_group: u64) -> bool {
        self.dying.iter().map(|&set| self.get(set).kill_group).any(|group| group > durable_group && group != UNTOLD)
    }

    /// No slot is live, every kill is durable, nothing in flight touches it.
    pub fn is_reusable(&self, number: u32, durable_group: u64) -> bool {
        let set = self.get(number);
        set.state == SetState::Sealed
            && set.live_count == 0
            && set.kill_group <= durable_group
            && set.open_group <= durable_group
            && set.pins == 0
            && !matches!(set.header, HeaderState::Writing { .. })
    }

    /// Frees the dying sets that `is_ready` picks, so many at most. Returns how many.
    pub fn release(&mut self, most: u32, is_ready: impl Fn(&Self, u32) -> bool) -> u32 {
        let mut dying = std::mem::take(&mut self.dying);
        let ready: Vec<u32> = dying.extract_if(.., |number| is_ready(self, *number)).take(most as usize).collect();
        self.dying = dying;
        let usual = self.usual_pace();
        for &number in &ready {
            assert!(self.get(number).live_count == 0 && self.get(number).pins == 0, "nothing names a set that is freed");
            self.forget_partials(number);
            let set = self.get_mut(number);
            set.state = SetState::Free;
            set.header = HeaderState::None;
            set.slots = Slots::default();
            set.heat.forget_paces(usual);
            self.set_free(number);
        }
        ready.len() as u32
    }

    pub(super) fn set_free(&mut self, number: u32) {
        self.free.push(number, self.geometry.set(number).start);
    }
}

//! Which slots somebody has read: a bit for each. That moves nothing in the order of sets; whoever frees a set asks what in it is worth its place
//! when it is its turn.

use super::{SetState, Sets};
use crate::block::Slot;
use crate::cache::format::Bits;
use crate::number::NumberMap;

/// Live slots that somebody has read since their set was opened, or spared ([`Sets::spare`]), of the sets that have some.
#[derive(Default)]
pub(super) struct Read {
    of_set: NumberMap<u64, Bits>,
}

impl Read {
    fn get(&self, set: u32) -> Option<&Bits> {
        self.of_set.get(&u64::from(set))
    }

    fn note(&mut self, first: Slot, count: u32, set_slots: u32) {
        let read = self.of_set.entry(u64::from(first.set)).or_insert_with(|| Bits::new(set_slots));
        read.set_range(first.slot, count);
        if count > 1 && read.count() == set_slots {
            read.settle(set_slots, true);
        }
    }

    /// Some slots of a set have died, others live.
    pub fn forget_slots(&mut self, first: Slot, count: u32) {
        if let Some(read) = self.of_set.get_mut(&u64::from(first.set)) {
            read.clear_range(first.slot, count);
        }
    }
    pub fn forget_set(&mut self, set: u32) {
        self.of_set.remove(&u64::from(set));
    }

    pub fn bytes(&self, set_slots: u32) -> usize {
        self.of_set.capacity() * size_of::<(u64, Bits)>() + self.of_set.len() * Bits::words_for(set_slots) * 8
    }
}

impl Sets {
    /// Somebody reads these slots. A placed set becomes the most recently used one; any other is as old as before, and what was read
    /// in it is known when it is its turn.
    pub fn note_read(&mut self, first: Slot, count: u32) {
        match self.get(first.set).state {
            SetState::Placed => self.touch(first.set),
            SetState::Free | SetState::Open | SetState::Sealed => self.read.note(first, count, self.geometry.set_slots),
        }
    }

    /// Was one of its live slots read?
    pub fn is_used(&self, number: u32) -> bool {
        self.read.get(number).is_some_and(|read| !read.is_empty())
    }

    /// Those that are worth their place: dirty ones, and such as were read.
    pub fn kept(&self, number: u32) -> Bits {
        let dirty = &self.get(number).dirty;
        self.read.get(number).map_or_else(|| dirty.clone(), |read| dirty.union(read))
    }
    pub fn kept_count(&self, number: u32) -> u32 {
        let set = self.get(number);
        self.read.get(number).map_or(set.dirty_count, |read| set.dirty.union_count(read))
    }

    /// A set is as if it had just been written: it goes when all others have had their turn, unless it is read meanwhile.
    pub fn spare(&mut self, number: u32) {
        self.read.forget_set(number);
        self.touch(number);
    }
}

//! Wear in the engine: every write to the SSD is counted by its cause, and a daily budget keeps out what can be done without.
//!
//! When the budget is spent, what was read from the origin is not kept, and nothing is moved that need not be: both only make later reads
//! quicker, or room that nobody waits for. **Everything else goes on.** What clients write is neither refused nor sent past the cache: a
//! write to the origin has to wait for a disk, which is what the cache is there for. Destaging writes little to the SSD, and makes room.
//! Journal, checkpoints and repairs keep what is there safe.

use crate::block::ATOM_BYTES;
use crate::op::{Action, Class, Zone};
use crate::payload::Payload;
use crate::time::Instant;
use crate::wear::{Budget, Cause, Lately, Wear, Written};

use super::recover::Step;
use super::{Engine, Owner};

pub(super) struct Meter {
    /// Before this start, as the superblock tells.
    pub before: Written,
    lately: Lately,
    budget: Option<Budget>,
}

impl Meter {
    /// `daily_bytes`: 0 for no budget.
    pub fn new(daily_bytes: u64) -> Self {
        let budget = (daily_bytes > 0).then(|| Budget::new(daily_bytes));
        Meter { before: Written::default(), lately: Lately::default(), budget }
    }
}

impl<P: Payload> Engine<P> {
    /// The SSD is about to be asked for this.
    pub(super) fn note_wear(&mut self, class: Class, action: &Action<P>, owner: Owner) {
        let Action::Write(zone, span, _) = action else { return };
        let cause = self.cause_of(*zone, class, owner);
        self.counters.cache_atoms.count(cause, span.atoms);
        self.wear.lately.note(self.now, span.atoms);
        if let Some(budget) = &mut self.wear.budget {
            budget.spend(self.now, span.atoms * ATOM_BYTES);
        }
    }

    fn cause_of(&self, zone: Zone, class: Class, owner: Owner) -> Cause {
        match (zone, owner) {
            (_, Owner::Recovery(Step::Rewrite | Step::OpenedWrite)) => Cause::Rewrite,
            (_, Owner::Scrub(_)) => Cause::Scrub,
            (Zone::Data, Owner::Data { write }) if self.writes.get(write).tries > 0 => Cause::Rewrite,
            (Zone::Data, _) => match class {
                Class::Client => Cause::Client,
                Class::Fill => Cause::Fill,
                // What is pinned goes out once more.
                Class::Log => Cause::Rewrite,
                Class::Clean => Cause::Relocation,
                Class::Destage | Class::Scrub | Class::Discard => unreachable!("these write no slots"),
            },
            (Zone::Journal, _) => Cause::Journal,
            (Zone::Header | Zone::HeaderCopy, _) => Cause::Header,
            (Zone::Map, _) => Cause::Map,
            (Zone::Superblock, _) => Cause::Superblock,
            (Zone::Origin, _) => unreachable!("not on the SSD"),
        }
    }

    /// May the SSD be written for this cause, as far as the daily budget goes?
    pub(super) fn is_within_budget(&self, cause: Cause) -> bool {
        let can_be_left = match cause {
            Cause::Fill | Cause::Relocation => true,
            Cause::Client | Cause::Rewrite | Cause::Journal | Cause::Header | Cause::Map | Cause::Superblock | Cause::Scrub => false,
        };
        !can_be_left || self.wear.budget.as_ref().is_none_or(|budget| budget.left(self.now) > 0)
    }

    fn written(&self) -> Written {
        Written { clients: self.counters.written_atoms, cache: self.counters.cache_atoms }
    }

    /// In the life of the cache, for the next superblock.
    pub(super) fn written_in_life(&self) -> Written {
        self.wear.before.plus(&self.written())
    }

    pub(super) fn wear_report(&self, now: Instant) -> Wear {
        Wear {
            since_start: self.written(),
            lifetime: self.written_in_life(),
            lately: self.wear.lately.sum(now),
            budget_left: self.wear.budget.as_ref().map(|budget| budget.left(now)),
        }
    }
}

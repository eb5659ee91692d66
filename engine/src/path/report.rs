//! What the engine tells about itself: the state of the moment, and the ledger of the memory it holds.

use crate::payload::Payload;
use crate::probe::{Damage, Glance, Snapshot};
use crate::time::Instant;

use super::Engine;

impl<P: Payload> Engine<P> {
    /// The state of the moment. Walks every request in flight: for people, not for every turn.
    pub fn inspect(&self, now: Instant) -> Snapshot {
        let mut requests: Vec<_> = self.requests.iter().map(|(_, active)| (active.request.id, active.arrived, active.waits)).collect();
        requests.sort_by_key(|&(id, arrived, _)| (arrived, id));
        Snapshot {
            phase: self.phase.clone(),
            epoch: self.journal.epoch(),
            gate: self.gate.state(),
            sets: self.sets.count(),
            free_sets: self.sets.free_count(),
            dirty_sets: self.sets.dirty_sets(),
            live_slots: self.sets.live_slots,
            dirty_slots: self.sets.dirty_slots,
            zero_ranges: self.ranges.entries() as u64,
            oldest_dirty: self.dirty_since().map(|since| now.since(since)),
            requests_in_flight: self.requests.len(),
            drain: self.drain,
            counters: self.counters.clone(),
            read_latency: self.read_latency.clone(),
            write_latency: self.write_latency.clone(),
            flush_latency: self.flush_latency.clone(),
            ledger: self.ledger(),
            damage: self.damage.clone(),
            requests,
        }
    }

    /// For every turn.
    pub fn glance(&self) -> Glance {
        Glance { gate: self.gate.state(), free_sets: self.sets.free_count(), dirty_sets: self.sets.dirty_sets() }
    }

    /// What recovery found.
    pub fn damage(&self) -> &[Damage] {
        &self.damage
    }

    /// Bytes held by each part, counted from lengths and capacities.
    fn ledger(&self) -> Vec<(&'static str, u64)> {
        let (sets, slots) = self.sets.bytes();
        vec![
            ("index", self.index.bytes()),
            ("sets", sets),
            ("slots", slots),
            ("window", self.window.atoms() * crate::block::ATOM_BYTES),
            ("journal", self.journal.bytes()),
            ("checkpoint", self.checkpoint_bytes()),
            ("requests", self.requests.bytes() + self.owners.bytes() + self.writes.bytes()),
        ]
    }
}

//! What the engine tells about itself: the state of the moment, and the ledger of the memory it holds.

use crate::block::{ATOM_BYTES, Block, Slot, Span};
use crate::fault_point::{FaultPoint, FaultPoints};
use crate::memory::Memory;
use crate::payload::{Checksum, Payload};
use crate::probe::{Counters, Damage, Glance, Phase, Snapshot, Stored};
use crate::time::Instant;
use crate::what_if::Forecasts;

use super::Engine;

impl<P: Payload> Engine<P> {
    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    /// Everything that was cached at the last stop or crash is known again: an engine serves before that.
    pub fn is_warm(&self) -> bool {
        self.phase == Phase::Serving && self.recovery.is_none()
    }

    /// The state of the moment. Walks every request in flight: for people, not for every turn.
    pub fn inspect(&self, now: Instant) -> Snapshot {
        let clients = self.requests.iter().filter(|(number, _)| !self.around.is_reading(*number));
        let mut requests: Vec<_> = clients.map(|(_, active)| (active.request.id, active.arrived, active.waits)).collect();
        requests.sort_by_key(|&(id, arrived, _)| (arrived, id));
        Snapshot {
            now,
            phase: self.phase.clone(),
            recovery: self.recovery_progress(),
            has_served: self.has_superblock(),
            epoch: self.epoch(),
            gate: self.gate.state(),
            sets: self.sets.count(),
            free_sets: self.sets.free_count(),
            dirty_sets: self.sets.dirty_sets(),
            live_slots: self.sets.live_slots,
            dirty_slots: self.sets.dirty_slots,
            zero_ranges: self.ranges.entries() as u64,
            lost_blocks: self.lost.blocks(),
            range_entries: self.table_entries() as u64,
            oldest_dirty: self.dirty_since().map(|since| now.since(since)),
            requests_in_flight: requests.len(),
            drain: self.drain,
            drain_left: self.drain.map(|_| self.destage_left(now)),
            mode: self.mode(),
            is_detaching: self.detaching,
            refused_blocks: self.refused_blocks(),
            unreadable_blocks: self.unreadable_blocks(),
            origin_error: self.origin_error(),
            health: self.health(),
            degraded_since: self.degraded_since(),
            scrub: self.scrub_report(),
            wear: self.wear_report(now),
            memory: self.memory.as_ref().map(|memory| memory.usage(self.dirty_share.moves())).unwrap_or_default(),
            admission: self.admission.rule(),
            batch_most: self.destage.courtesy.most(),
            quiet_p99: self.destage.courtesy.quiet_p99(),
            spin: self.rotation.motor.as_ref().map(|motor| motor.report(now)),
            counters: self.counters_of_all(),
            latencies: self.latencies.clone(),
            queues: [0, 1].map(|device: usize| self.queues[device].times()),
            ledger: self.ledger(),
            damage: self.damage.clone(),
            requests,
        }
    }

    /// The engine's own, and what fronts have read from memory themselves.
    fn counters_of_all(&self) -> Counters {
        let (hits, writes) = self.memory.as_ref().map_or((0, 0), Memory::of_fronts);
        let memory_hit_blocks = self.counters.memory_hit_blocks + hits;
        Counters { memory_hit_blocks, front_written_blocks: writes, ..self.counters.clone() }
    }

    /// What memory and the cache would miss if they were smaller, or larger.
    pub fn what_if(&mut self) -> Forecasts {
        self.hear_fronts();
        let [memory, cache] = self.what_if.forecasts();
        let counts = self.memory.as_ref().map(|memory| memory.pages().counts()).unwrap_or_default();
        Forecasts { block_bytes: self.block_atoms() * ATOM_BYTES, memory, cache, of_fronts: counts.hits, unnoted: counts.unnoted }
    }

    /// For every turn.
    pub fn glance(&self) -> Glance {
        let starts = self.rotation.motor.as_ref().map_or_else(Default::default, |motor| motor.counters().starts);
        Glance { gate: self.gate.state(), free_sets: self.sets.free_count(), dirty_sets: self.sets.dirty_sets(), starts }
    }

    /// The origin holds everything, or will as soon as it is flushed; no atom is lost.
    pub fn is_clean(&self) -> bool {
        self.dirty_blocks() == 0 && self.lost.is_empty() && self.through.pages.is_empty()
    }

    /// Blocks that are nowhere, not even in a failed cache: the volume has ended without one, and the origin has not taken what only memory had.
    pub fn unsaved_blocks(&self) -> u64 {
        let pages = self.through.pages.iter().filter(|_| self.has_unsaved());
        let blocks = pages.flat_map(|(first, page)| (first.0..first.0 + page.blocks).map(Block));
        blocks.filter(|&block| !self.has_dirty(block, 1)).count() as u64
    }

    fn has_unsaved(&self) -> bool {
        self.phase == Phase::Refused && self.is_degraded()
    }

    /// Where the volume is newer than the origin, in ascending order: at most `most` stretches, joined where they are more. At the grain of
    /// a set. What is nowhere is among it.
    pub fn dirty_ranges(&self, most: usize) -> Vec<Span> {
        let (atoms, set_blocks) = (self.config.geometry.volume_atoms, self.index.set_blocks());
        let mut found: Vec<Span> = Vec::new();
        let mut grain = set_blocks * self.block_atoms();
        let mut note = |start: u64, end: u64| {
            let (mut start, mut end) = (start / grain * grain, end.next_multiple_of(grain).min(atoms));
            while let Some(last) = found.pop_if(|last| last.end() >= start) {
                (start, end) = (start.min(last.start), end.max(last.end()));
            }
            found.push(Span::new(start, end - start));
            while found.len() > most {
                grain *= 2;
                let coarse = |span: &Span| (span.start / grain * grain, span.end().next_multiple_of(grain).min(atoms));
                let joined = found.iter().map(coarse).fold(Vec::<Span>::new(), |mut joined, (start, end)| {
                    match joined.last_mut() {
                        Some(last) if last.end() >= start => last.atoms = end.max(last.end()) - last.start,
                        _ => joined.push(Span::new(start, end - start)),
                    }
                    joined
                });
                found = joined;
            }
        };
        let mut at = Block(0);
        let mut zeroed = self.ranges.next(Block(0)).map(|(block, range)| (block, range.blocks));
        let unsaved = self.through.pages.iter().filter(|_| self.has_unsaved());
        let mut unsaved = unsaved.map(|(block, page)| (block, page.blocks)).peekable();
        loop {
            let set = self.index.next_dirty(at).filter(|set| set.0 < self.config.geometry.blocks()).map(|set| (set, set_blocks));
            let page = unsaved.peek().copied();
            // Whichever comes first.
            let Some(next) = [set, zeroed, page].into_iter().flatten().min() else { return found };
            let end = next.0.0 + next.1;
            note(next.0.0 * self.block_atoms(), end * self.block_atoms());
            if set == Some(next) {
                at = Block(end);
            } else if zeroed == Some(next) {
                zeroed = self.ranges.next(Block(end)).map(|(block, range)| (block, range.blocks));
            } else {
                unsaved.next();
            }
        }
    }

    /// Which checksum it is that [stored](Engine::stored) tells of each slot.
    pub fn checksum(&self) -> Checksum {
        self.checksum
    }

    /// The blocks of a set, in the order of their slots: without those that may be overwritten in place, whose checksums nobody knows, and
    /// without those of a set whose header nobody could read.
    pub fn stored(&self, set: u32) -> impl Iterator<Item = Stored> + '_ {
        let geometry = &self.config.geometry;
        let all = if self.sets.get(set).loaded { geometry.set_slots } else { 0 };
        let slots = (0..all).map(move |slot| Slot { set, slot });
        slots.filter(|&slot| self.sets.is_live(slot) && !self.sets.is_opened(slot)).map(|slot| {
            let entry = self.sets.entry(slot, |block| self.full(block));
            Stored {
                slot: geometry.slot(slot),
                block: geometry.block_span(entry.block),
                checksum: entry.crc,
                is_dirty: self.sets.is_dirty(slot),
            }
        })
    }

    /// Reports damage. Fatal damage ends the service (a recovery before anything was written).
    pub(super) fn report_damage(&mut self, fatal: bool, what: String) {
        self.damage.push(Damage { fatal, what });
        if fatal {
            self.phase = Phase::Refused;
        }
    }

    /// An error path was taken.
    pub(super) fn meet(&mut self, point: FaultPoint) {
        self.faults.meet(point);
    }

    /// What recovery found.
    pub fn damage(&self) -> &[Damage] {
        &self.damage
    }

    /// The error paths taken so far.
    pub fn faults(&self) -> FaultPoints {
        self.faults
    }

    /// Bytes held by each part, counted from lengths and capacities.
    fn ledger(&self) -> Vec<(&'static str, u64)> {
        let (sets, slots) = self.sets.bytes();
        vec![
            ("index", self.index.bytes()),
            ("sets", sets),
            ("slots", slots),
            ("window", self.window.bytes()),
            ("through", self.through.pages.bytes()),
            ("limbo", self.through.limbo_bytes()),
            ("ahead", self.ahead.bytes()),
            ("pages", self.memory.as_ref().map_or(0, Memory::bytes)),
            ("policy", self.memory.as_ref().map_or(0, Memory::policy_bytes)),
            ("ghosts", self.admission.bytes() + self.around.bytes()),
            ("curves", self.what_if.bytes()),
            ("journal", self.journal.bytes()),
            ("checkpoint", self.checkpoint_bytes()),
            ("requests", self.requests.bytes() + self.operations.under_way.bytes() + self.writes.bytes()),
        ]
    }
}

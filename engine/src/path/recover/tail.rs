//! The tail: groups beyond the durable mark may or may not be whole. Their data is read and verified, and the log is cut behind the last
//! group that leaves no damaged live slot. (Not before the first damaged one: a write that failed was repeated by a later group.)

use std::collections::BTreeMap;

use crate::block::{Block, Slot, Span};
use crate::cache::format::journal::Record;
use crate::cache::format::{Entry, SetState};
use crate::fault_point::FaultPoint;
use crate::number::NumberMap;
use crate::op::{Action, Answer, Class, DeviceError, DeviceId, Zone};
use crate::payload::Payload;

use super::{Engine, Owner, Stage, Step, joined};

pub(super) struct Tail<P> {
    /// Slots that PUTs of the tail name, by number and checksum (a slot may have had two lives): contents, if they are what the PUT says.
    slots: NumberMap<(u64, u32), P>,
    runs: Vec<Run>,
}

impl<P> Default for Tail<P> {
    fn default() -> Self {
        Tail { slots: NumberMap::default(), runs: Vec::new() }
    }
}

/// Consecutive slots to be read.
#[derive(Clone)]
struct Run {
    first: Slot,
    entries: Vec<Entry>,
}

impl<P: Payload> Engine<P> {
    /// The records of some groups of the chain.
    pub(super) fn records(&self, groups: std::ops::Range<usize>) -> impl Iterator<Item = &Record> {
        let recovery = self.recovery.as_ref().expect("recovery is under way");
        recovery.chain.groups[groups]
            .iter()
            .flat_map(|group| recovery.chain.order[group.clone()].iter())
            .flat_map(|&page| recovery.pages[page].page.records.iter())
    }

    /// With the metadata read: finds the log, and reads the data of its tail.
    pub(super) fn read_tail(&mut self) {
        self.report_unread("journal page");
        if !self.choose_map() || !self.build_chain() {
            return;
        }
        let (durable, all) = (self.recovery().chain.durable_groups, self.recovery().chain.groups.len());
        let mut runs = Vec::new();
        for record in self.records(durable..all) {
            if let Record::Put { slot, restate: false, entries, .. } = record {
                runs.push(Run { first: *slot, entries: entries.clone() });
            }
        }
        self.recovery().enter(Stage::Tail);
        let most = (self.limits[0].op_atoms / self.block_atoms()) as usize;
        for Run { first, entries } in runs {
            for (part, entries) in entries.chunks(most).enumerate() {
                let first = Slot { slot: first.slot + (part * most) as u32, ..first };
                self.read_tail_run(Run { first, entries: entries.to_vec() });
            }
        }
    }

    fn read_tail_run(&mut self, run: Run) {
        let span = self.slots_span(run.first, run.entries.len() as u32);
        let number = self.recovery().tail.runs.len();
        self.recovery().tail.runs.push(run);
        self.recovery_read(Zone::Data, span, Step::Tail { run: number });
    }

    pub(super) fn tail_read(&mut self, number: usize, result: Result<Answer<P>, DeviceError>) {
        let run = self.recovery().tail.runs[number].clone();
        let size = self.block_atoms();
        match result {
            Ok(answer) => {
                let payload: P = joined(answer);
                for (i, entry) in run.entries.iter().enumerate() {
                    let contents = payload.slice(i as u64 * size, size);
                    let slot = self.sets.number(Slot { slot: run.first.slot + i as u32, ..run.first });
                    if contents.checksum(self.checksum) == entry.crc {
                        self.recovery().tail.slots.insert((slot, entry.crc), contents);
                    } else {
                        self.meet(FaultPoint::TailSlotDamaged);
                    }
                }
            }
            // Slot by slot: one bad sector costs one slot.
            Err(_) if run.entries.len() > 1 => {
                self.meet(FaultPoint::TailUnread);
                for (i, entry) in run.entries.iter().enumerate() {
                    self.read_tail_run(Run { first: Slot { slot: run.first.slot + i as u32, ..run.first }, entries: vec![*entry] });
                }
            }
            Err(_) if self.read_again(Zone::Data, self.slots_span(run.first, 1), Step::Tail { run: number }) => {}
            Err(_) => {
                self.meet(FaultPoint::TailSlotUnread);
                let span = self.slots_span(run.first, 1);
                self.recovery().unread.push(span);
            }
        }
    }

    /// How many groups are accepted.
    pub(super) fn accepted_groups(&self) -> usize {
        let recovery = self.recovery.as_ref().expect("recovery is under way");
        let (durable, all) = (recovery.chain.durable_groups, recovery.chain.groups.len());
        let mut replay = TailReplay::default();
        let mut accepted = durable;
        for group in durable..all {
            for record in self.records(group..group + 1) {
                replay.apply(record, |slot| self.sets.number(slot), |slot, crc| recovery.tail.slots.contains_key(&(slot, crc)));
            }
            if replay.damaged == 0 {
                accepted = group + 1;
            }
        }
        // What a checkpoint that never ended has told again says nothing new, but of a set whose header was given up since the one that counts: without
        // it the ring has as much room as before, however often that happens. The first group is told for the checkpoint that counts.
        while accepted > durable.max(1) && self.is_restate(accepted - 1) && !self.tells_first(accepted - 1) {
            accepted -= 1;
        }
        accepted
    }

    /// Is this group the first that tells what a set holds which the map calls sealed? Its header was there when the map was written, and cannot be
    /// relied on since.
    fn tells_first(&self, group: usize) -> bool {
        let recovery = self.recovery.as_ref().expect("recovery is under way");
        let told = |record: &Record| match record {
            Record::Put { slot, life, restate: true, .. } => Some((slot.set, *life)),
            _ => None,
        };
        let is_sealed = |&(set, life): &(u32, u32)| {
            let map = &recovery.sets[set as usize];
            map.state == SetState::Sealed && map.life as u32 == life && !map.live.is_empty()
        };
        let sealed: Vec<(u32, u32)> = self.records(group..group + 1).filter_map(told).filter(is_sealed).collect();
        let is_told_before = |set: &(u32, u32)| self.records(0..group).filter_map(told).any(|other| other == *set);
        !sealed.iter().all(is_told_before)
    }

    /// A checkpoint tells again in a group of its own, and so does what is told because nothing else does.
    pub(super) fn is_restate(&self, group: usize) -> bool {
        self.records(group..group + 1).any(|record| matches!(record, Record::Put { restate: true, .. }))
    }

    /// Starts writing the accepted tail again, the same bytes at the same places.
    pub(super) fn rewrite_tail(&mut self) {
        let geometry = self.config.geometry;
        let recovery = self.recovery.as_ref().expect("recovery is under way");
        let (durable, all) = (recovery.chain.durable_groups, recovery.chain.groups.len());
        let mut writes: Vec<(Zone, Span, P)> = Vec::new();
        for group in &recovery.chain.groups[durable.min(all)..] {
            for &page in &recovery.chain.order[group.clone()] {
                let ring = &recovery.pages[page];
                writes.extend(ring.payload.clone().map(|payload| (Zone::Journal, geometry.journal_page(ring.place), payload)));
            }
        }
        for run in &recovery.tail.runs {
            for i in 0..run.entries.len() as u32 {
                let slot = Slot { slot: run.first.slot + i, ..run.first };
                if let Some(contents) = recovery.tail.slots.get(&(self.sets.number(slot), run.entries[i as usize].crc))
                    && self.sets.is_live(slot)
                    // Opened by then: it is read and written again in its turn.
                    && !self.sets.is_opened(slot)
                {
                    writes.push((Zone::Data, geometry.slot(slot), contents.clone()));
                }
            }
        }
        writes.sort_by_key(|(_, span, _)| span.start);
        writes.dedup_by_key(|(_, span, _)| span.start);
        // 1 MiB a write at most: every part is a page or a block.
        let most = (self.limits[0].op_atoms / self.block_atoms().max(crate::block::PAGE_ATOMS)) as usize;
        for together in writes.chunk_by(|a, b| a.0 == b.0 && a.1.end() == b.1.start) {
            for part in together.chunks(most) {
                let span = Span::new(part[0].1.start, part.iter().map(|(_, span, _)| span.atoms).sum());
                let payloads = part.iter().map(|(_, _, payload)| payload.clone()).collect();
                self.start(DeviceId::Cache, Class::Log, Action::Write(part[0].0, span, payloads), Owner::Recovery(Step::Rewrite));
                self.recovery().begin_operation();
            }
        }
    }
}

/// Which slots of the tail are live while its groups are replayed, and how many of them are damaged.
#[derive(Default)]
struct TailReplay {
    /// Block → its live slot in the tail, and whether that is damaged.
    blocks: BTreeMap<u64, (u64, bool)>,
    slots: NumberMap<u64, u64>,
    damaged: usize,
}

impl TailReplay {
    fn apply(&mut self, record: &Record, number: impl Fn(Slot) -> u64, is_good: impl Fn(u64, u32) -> bool) {
        match record {
            Record::Put { slot, restate: false, entries, .. } => {
                for (i, entry) in entries.iter().enumerate() {
                    let slot = number(Slot { slot: slot.slot + i as u32, ..*slot });
                    self.forget(entry.block);
                    let damaged = !is_good(slot, entry.crc);
                    self.damaged += usize::from(damaged);
                    self.blocks.insert(entry.block.0, (slot, damaged));
                    self.slots.insert(slot, entry.block.0);
                }
            }
            Record::Kill { set, slots, .. } => {
                for slot in slots.iter() {
                    let slot = number(Slot { set: *set, slot });
                    if let Some(&block) = self.slots.get(&slot)
                        && self.blocks.get(&block).is_some_and(|&(live, _)| live == slot)
                    {
                        self.forget(Block(block));
                    }
                }
            }
            Record::Zero { block, blocks, .. } => {
                let doomed: Vec<u64> = self.blocks.range(block.0..block.0 + blocks).map(|(&block, _)| block).collect();
                doomed.into_iter().for_each(|block| self.forget(Block(block)));
            }
            Record::Put { restate: true, .. }
            | Record::Open { .. }
            | Record::Seal { .. }
            | Record::Clean { .. }
            | Record::Opened { .. }
            | Record::Unzero { .. }
            | Record::Lost { .. } => {}
        }
    }

    fn forget(&mut self, block: Block) {
        if let Some((_, damaged)) = self.blocks.remove(&block.0) {
            self.damaged -= usize::from(damaged);
        }
    }
}

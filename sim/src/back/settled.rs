//! Which slots are *settled*: the log itself knows that they are durable, because a page that tells so is durable too. Only there may a
//! fault strike before a crash: damage to a slot beyond that mark looks, after the crash, like a write that was never flushed.
//!
//! This reads journal pages as they land, and nothing else: slot → its newest PUT → the page's number; flushed pages → their durable mark.

use std::rc::Rc;
use tidegate_engine::block::{PAGE_ATOMS, PAGE_BYTES, Span};
use tidegate_engine::cache::format::journal;
use tidegate_engine::cache::format::{FormatId, Geometry, Record};
use tidegate_engine::op::Zone;
use tidegate_engine::payload::Payload;

use super::volatile::Unflushed;

/// Of one slot: the number of the write that last changed it, and of the one that brought its newest PUT; the number of that page.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    written: u64,
    recorded: u64,
    page: u64,
}

#[derive(Clone, Debug)]
pub struct Settled {
    geometry: Geometry,
    format: FormatId,
    slots: Rc<Vec<Slot>>,
    /// Writes that have landed so far.
    writes: u64,
    /// Durable marks of pages that are not flushed: the number of the write, the mark.
    marks: Vec<(u64, u64)>,
    /// The highest durable mark on a page that is durable itself.
    known: u64,
}

impl Settled {
    pub fn new(geometry: &Geometry, format: FormatId) -> Self {
        let slots = geometry.sets as usize * geometry.set_slots as usize;
        Settled { geometry: *geometry, format, slots: Rc::new(vec![Slot::default(); slots]), writes: 0, marks: Vec::new(), known: 0 }
    }

    /// The volume has another size from now on.
    pub fn resize(&mut self, geometry: &Geometry) {
        self.geometry = *geometry;
    }

    /// How many writes have landed: what a flush that starts now covers.
    pub fn mark(&self) -> u64 {
        self.writes
    }

    fn slots_of(&self, span: Span) -> std::ops::Range<usize> {
        let (start, block) = (self.geometry.data_start(), u64::from(self.geometry.block_atoms));
        ((span.start - start) / block) as usize..(span.end() - start).div_ceil(block) as usize
    }

    /// A write lands on the cache.
    pub fn land(&mut self, write: &Unflushed) {
        self.writes += 1;
        match write.zone {
            Zone::Data => self.touch(write.span()),
            Zone::Journal if write.span().atoms.is_multiple_of(PAGE_ATOMS) => self.read_pages(write),
            Zone::Superblock | Zone::Map | Zone::Header | Zone::HeaderCopy | Zone::Journal | Zone::Origin => {}
        }
    }

    /// Something may have changed `span` of the data.
    pub fn touch(&mut self, span: Span) {
        let writes = self.writes;
        let range = self.slots_of(span);
        Rc::make_mut(&mut self.slots)[range].iter_mut().for_each(|slot| slot.written = writes);
    }

    fn read_pages(&mut self, write: &Unflushed) {
        let mut bytes = Vec::new();
        write.data.append_to(&mut bytes);
        let first = ((write.start - self.geometry.journal().start) / PAGE_ATOMS) as u32;
        for (place, bytes) in (first..).zip(bytes.chunks_exact(PAGE_BYTES as usize)) {
            let Ok(page) = journal::decode(bytes, &self.geometry, self.format, place) else { continue };
            self.marks.push((self.writes, page.head.durable));
            for record in &page.records {
                if let Record::Put { slot, restate: false, entries, .. } = record {
                    let at = slot.set as usize * self.geometry.set_slots as usize + slot.slot as usize;
                    for slot in &mut Rc::make_mut(&mut self.slots)[at..at + entries.len()] {
                        (slot.recorded, slot.page) = (self.writes, page.head.seq);
                    }
                }
            }
        }
    }

    /// A flush that was started at `mark` succeeds.
    pub fn flushed(&mut self, mark: u64) {
        let known = &mut self.known;
        self.marks.retain(|&(write, durable)| {
            let covered = write <= mark;
            if covered {
                *known = durable.max(*known);
            }
            !covered
        });
    }

    /// The flush fails, or the power: nothing is known of the pages that were not flushed.
    pub fn forget(&mut self) {
        self.marks.clear();
    }

    /// Is everything in `span` of the data settled (or was never written)?
    pub fn is(&self, span: Span) -> bool {
        self.slots[self.slots_of(span)].iter().all(|slot| slot.written == 0 || (slot.recorded > slot.written && slot.page <= self.known))
    }
}

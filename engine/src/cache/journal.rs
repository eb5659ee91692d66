//! The journal in memory: records become pages, pages become groups, groups become durable.
//!
//! A group is the unit of recovery: its records in one order, all or nothing. Exactly one group is open and takes records; a FLUSH closes
//! it. A page is written once, padded, and never again with other bytes; one that fails to write goes to the next place with the same seq.

use std::collections::VecDeque;

use super::format::journal::{PageBuilder, PageHead, Record, reseal};
use super::format::{Entry, FormatId, Geometry};
use crate::block::{PAGE_BYTES, Slot};
use crate::payload::{Payload, Pieces};

/// A page on its way to the ring, or there and not durable yet: pinned.
#[derive(Clone, Debug)]
pub struct PinnedPage {
    pub seq: u64,
    pub place: u32,
    pub group: u64,
    bytes: Vec<u8>,
    pub written: bool,
}

/// A place of the ring in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub place: u32,
    /// The page that was written there; 0: nothing that counts.
    pub seq: u64,
    /// That write failed, or is not the one that counts: the page is elsewhere. It may have landed all the same, and then recovery finds it twice.
    /// Both are the same page to the last record, so either may be read; but a place that was given back meanwhile would be taken again by recovery,
    /// and might leave it no room. So it is kept as long as its page.
    pub failed: bool,
}

#[derive(Clone, Debug)]
struct Group {
    number: u64,
    last_seq: u64,
    /// Writes of its data and pages that have not ended well yet.
    writes: u32,
    /// Becomes durable only together with this later group, which repairs a write that failed.
    joined: u64,
    closed: bool,
}

/// Consecutive pages in consecutive places: one device write.
pub struct PageRun<P> {
    pub first_seq: u64,
    pub pages: u32,
    pub place: u32,
    pub payloads: Pieces<P>,
}

pub struct Journal {
    geometry: Geometry,
    format: FormatId,
    epoch: u64,
    next_seq: u64,
    /// Chain value of the newest sealed page.
    previous: u32,
    builder: PageBuilder,
    group: u64,
    group_pages: u32,
    groups: VecDeque<Group>,
    pages: VecDeque<PinnedPage>,
    /// Sequence numbers of pages that wait to be handed out, ascending.
    outgoing: VecDeque<u64>,
    /// Places of the ring in use, in the order they were taken.
    places: VecDeque<Held>,
    next_place: u32,
    durable_seq: u64,
    durable_group: u64,
    /// The SSD has failed for good: there is no log any more.
    retired: bool,
}

impl Journal {
    /// Continues the log of a recovered SSD: the next page is `next_seq` of `epoch`, behind `places`.
    pub fn new(geometry: Geometry, format: FormatId, epoch: u64, next_seq: u64, previous: u32, places: Vec<Held>) -> Self {
        let next_place = places.last().map_or(0, |held| (held.place + 1) % geometry.journal_pages);
        let mut journal = Journal {
            builder: PageBuilder::new(&geometry),
            geometry,
            format,
            epoch,
            next_seq,
            previous,
            group: 0,
            group_pages: 0,
            groups: VecDeque::new(),
            pages: VecDeque::new(),
            outgoing: VecDeque::new(),
            places: places.into(),
            next_place,
            durable_seq: next_seq - 1,
            durable_group: 0,
            retired: false,
        };
        journal.open_group();
        journal
    }

    fn open_group(&mut self) {
        self.group += 1;
        self.group_pages = 0;
        self.groups.push_back(Group { number: self.group, last_seq: 0, writes: 0, joined: 0, closed: false });
    }

    /// The SSD has failed for good, and no recovery will read it: records are forgotten, nobody waits for them or for room.
    pub fn retire(&mut self) {
        self.retired = true;
        self.builder = PageBuilder::new(&self.geometry);
        (self.group_pages, self.durable_group) = (0, u64::MAX);
        self.pages.clear();
        self.outgoing.clear();
        self.places.clear();
    }

    pub fn epoch(&self) -> u64 {
        self.epoch
    }
    /// The group that takes records now.
    pub fn group(&self) -> u64 {
        self.group
    }
    /// The newest group that has records.
    pub fn newest_group(&self) -> u64 {
        if self.is_group_empty() { self.group - 1 } else { self.group }
    }
    /// Everything up to this group survives a power cut.
    pub fn durable_group(&self) -> u64 {
        self.durable_group
    }
    /// The seq of the page that the next record goes to, or a later one if it does not fit.
    pub fn next_seq(&self) -> u64 {
        self.next_seq
    }
    pub fn is_group_empty(&self) -> bool {
        self.group_pages == 0 && self.builder.is_empty()
    }
    /// Pages that can still be taken, the open page not counted. Nobody waits for room in a journal that is retired, however much he has to tell.
    pub fn free_pages(&self) -> u32 {
        if self.retired {
            return u32::MAX;
        }
        (self.geometry.journal_pages - self.places.len() as u32).saturating_sub(u32::from(!self.builder.is_empty()))
    }
    pub fn used_since(&self, seq: u64) -> u32 {
        (self.next_seq - seq) as u32
    }

    /// The page that the last record went to.
    pub fn record_seq(&self) -> u64 {
        assert!(!self.builder.is_empty());
        self.next_seq
    }

    /// Adds PUTs of consecutive slots to the open group.
    pub fn put(&mut self, slot: Slot, life: u64, dirty: bool, restate: bool, entries: &[Entry]) {
        if self.retired {
            return;
        }
        let mut done = 0;
        while done < entries.len() {
            let at = Slot { set: slot.set, slot: slot.slot + done as u32 };
            let taken = self.builder.put(at, life as u32, dirty, restate, &entries[done..]);
            if taken == 0 {
                self.seal_page(false);
            }
            done += taken;
        }
    }

    /// Adds any other record to the open group.
    pub fn push(&mut self, record: &Record) {
        if self.retired {
            return;
        }
        if !self.builder.push(record) {
            self.seal_page(false);
            assert!(self.builder.push(record), "a record fits into an empty page");
        }
    }

    fn seal_page(&mut self, last: bool) {
        assert!(!self.builder.is_empty());
        let place = self.take_place(self.next_seq);
        let head = PageHead {
            epoch: self.epoch,
            seq: self.next_seq,
            durable: self.durable_seq,
            previous: self.previous,
            group_offset: self.group_pages,
            records: 0,
            first: self.group_pages == 0,
            last,
        };
        let (bytes, chain) = self.builder.seal(self.format, place, head);
        self.pages.push_back(PinnedPage { seq: self.next_seq, place, group: self.group, bytes, written: false });
        self.outgoing.push_back(self.next_seq);
        self.groups.back_mut().expect("a group is open").writes += 1;
        self.previous = chain;
        self.next_seq += 1;
        self.group_pages += 1;
    }

    fn take_place(&mut self, seq: u64) -> u32 {
        assert!((self.places.len() as u32) < self.geometry.journal_pages, "the reserve of the ring was not kept");
        let place = self.next_place;
        self.places.push_back(Held { place, seq, failed: false });
        self.next_place = (place + 1) % self.geometry.journal_pages;
        place
    }

    /// Closes the open group. An empty one stays open. Returns the newest closed group.
    pub fn close(&mut self) -> u64 {
        if !self.is_group_empty() {
            self.seal_page(true);
            let group = self.groups.back_mut().expect("a group is open");
            group.closed = true;
            group.last_seq = self.next_seq - 1;
            self.open_group();
        }
        self.group - 1
    }

    /// Pages in the open group so far.
    pub fn group_pages(&self) -> u32 {
        self.group_pages + u32::from(!self.builder.is_empty())
    }

    /// Pages are to be written now: those of a group that somebody waits for, or enough to be worth a write.
    pub fn has_outgoing(&self, worth: usize) -> bool {
        // From here on they are of the open group, for which nobody waits.
        let open = self.next_seq - u64::from(self.group_pages);
        self.outgoing.len() >= worth || self.outgoing.front().is_some_and(|&seq| seq < open)
    }
    /// Pages to be written now, as few writes as their places allow.
    pub fn next_run<P: Payload>(&mut self, most: u32) -> Option<PageRun<P>> {
        let first_seq = *self.outgoing.front()?;
        let base = self.pages.front().expect("outgoing pages are pinned").seq;
        let mut run = PageRun { first_seq, pages: 0, place: 0, payloads: Pieces::new() };
        while let Some(&seq) = self.outgoing.front()
            && run.pages < most
        {
            let page = &self.pages[(seq - base) as usize];
            if run.pages == 0 {
                run.place = page.place;
            } else if (seq, page.place) != (first_seq + u64::from(run.pages), run.place + run.pages) {
                break;
            }
            run.payloads.push(P::from_bytes(&page.bytes));
            run.pages += 1;
            self.outgoing.pop_front();
        }
        Some(run)
    }

    fn page(&mut self, seq: u64) -> &mut PinnedPage {
        let base = self.pages.front().expect("a page in flight is pinned").seq;
        &mut self.pages[(seq - base) as usize]
    }

    /// The page is on the SSD (not flushed yet).
    pub fn page_written(&mut self, seq: u64) {
        let page = self.page(seq);
        let (group, first) = (page.group, !page.written);
        page.written = true;
        if first {
            self.end_write(group);
        }
    }

    /// The page is written again, same bytes, same place.
    pub fn page_again(&mut self, seq: u64) {
        self.wait_again(seq);
    }

    /// A page that was handed out waits once more, before those after it.
    fn wait_again(&mut self, seq: u64) {
        let at = self.outgoing.partition_point(|&other| other < seq);
        self.outgoing.insert(at, seq);
    }

    /// The page could not be written: the same page goes to the next place.
    pub fn page_failed(&mut self, seq: u64) {
        self.places.iter_mut().filter(|held| held.seq == seq).for_each(|held| held.failed = true);
        let place = self.take_place(seq);
        let (geometry, format) = (self.geometry, self.format);
        let page = self.page(seq);
        page.bytes = reseal(&page.bytes, &geometry, format, place).0;
        page.place = place;
        if page.written {
            // A rewrite after a failed flush: the group waits for it again.
            page.written = false;
            let group = page.group;
            self.begin_write(group);
        }
        self.wait_again(seq);
    }

    /// After a failed flush: every page that was written and is not durable goes out again, same bytes, same place.
    pub fn rewrite_pages(&mut self) {
        let written: Vec<(u64, u64)> = self.pages.iter().filter(|page| page.written).map(|page| (page.seq, page.group)).collect();
        for (seq, group) in written {
            self.page(seq).written = false;
            self.begin_write(group);
            self.wait_again(seq);
        }
    }

    fn group_mut(&mut self, number: u64) -> &mut Group {
        let base = self.groups.front().expect("a group is open").number;
        &mut self.groups[(number - base) as usize]
    }
    /// A write that the group waits for was started.
    pub fn begin_write(&mut self, group: u64) {
        self.group_mut(group).writes += 1;
    }
    /// It ended well, or a later group took its place.
    pub fn end_write(&mut self, group: u64) {
        let group = self.group_mut(group);
        group.writes = group.writes.checked_sub(1).expect("a write ends once");
    }
    /// The group is durable only together with the newest one that has records: it repairs it, or has replaced what failed.
    pub fn join_newest(&mut self, group: u64) {
        self.group_mut(group).joined = self.newest_group();
    }

    /// The newest group that a flush handed out now would make durable (with everything before it). The current durable one if none.
    pub fn flushable(&self) -> u64 {
        let mut best = self.durable_group;
        let mut joined = 0;
        for group in &self.groups {
            if !group.closed || group.writes > 0 {
                break;
            }
            joined = joined.max(group.joined);
            if joined <= group.number {
                best = group.number;
            }
        }
        best
    }

    /// A flush that covers `group` has succeeded.
    pub fn made_durable(&mut self, group: u64) {
        while let Some(front) = self.groups.front()
            && front.number <= group
        {
            assert!(front.closed && front.writes == 0, "only a complete group becomes durable");
            self.durable_seq = self.durable_seq.max(front.last_seq);
            self.groups.pop_front();
        }
        self.durable_group = self.durable_group.max(group);
        while let Some(page) = self.pages.front()
            && page.group <= group
        {
            self.pages.pop_front();
        }
    }

    /// Durable pages from `seq` on in consecutive places, at most `most`: first place, first seq, how many.
    pub fn durable_run(&self, seq: u64, most: u32) -> Option<(u32, u64, u32)> {
        let mut durable = self.places.iter().filter(|held| !held.failed && held.seq > 0 && held.seq >= seq && held.seq <= self.durable_seq);
        let &Held { place, seq: first, .. } = durable.next()?;
        let follows = |&(i, next): &(u32, &Held)| (next.place, next.seq) == (place + i, first + u64::from(i));
        Some((place, first, 1 + (1..most).zip(durable).take_while(follows).count() as u32))
    }

    /// The pages before `seq` are needed no more.
    pub fn free_before(&mut self, seq: u64) {
        while let Some(held) = self.places.front()
            && held.seq < seq
        {
            self.places.pop_front();
        }
    }

    pub fn bytes(&self) -> u64 {
        self.pages.len() as u64 * PAGE_BYTES + self.places.capacity() as u64 * 16
    }
}

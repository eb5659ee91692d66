//! The chain: which pages of the ring are the log, from the checkpoint to its end.
//!
//! Of two pages with one seq the higher epoch counts; a page is ignored that is of an older epoch than the page before it, names another
//! page before it, or was voided by the cut. A page that is missing at or below the durable mark is damage, beyond it the end.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::cache::format::Superblock;
use crate::cache::format::journal::PageHead;
use crate::cache::journal::Held;
use crate::fault_point::FaultPoint;
use crate::payload::Payload;

use super::{Engine, RingPage};

#[derive(Default)]
pub(in crate::path) struct Chain {
    /// Pages of the log in order, as places in `Recovery::pages`.
    pub order: Vec<usize>,
    /// Complete groups, as ranges of `order`.
    pub groups: Vec<Range<usize>>,
    /// Groups up to this many are durable for certain.
    pub durable_groups: usize,
    /// The first seq of the new epoch.
    pub next_seq: u64,
    /// Chain value of the page before it.
    pub previous: u32,
    /// Places of the ring that stay in use, in their order.
    pub places: Vec<Held>,
}

impl<P: Payload> Engine<P> {
    /// Finds the log. False: it is damaged below the durable mark.
    pub(super) fn build_chain(&mut self) -> bool {
        let recovery = self.recovery.as_ref().expect("recovery is under way");
        let superblock = recovery.superblock.as_ref().expect("a superblock was chosen");
        let start = recovery.map.seq;
        if let Some(later) = recovery.pages.iter().find(|ring| ring.page.head.epoch > superblock.epoch) {
            let what = format!(
                "the journal page at byte {} is of epoch {}, later than any superblock",
                self.page_offset(later.place),
                later.page.head.epoch
            );
            self.find(FaultPoint::EpochFromTheFuture, true, what);
            return false;
        }
        let best = newest_pages(&recovery.pages, superblock);
        let durable = durable_mark(&recovery.pages, superblock);
        let order = follow(&recovery.pages, &best, start);
        let groups = complete_groups(&recovery.pages, &order);
        let end = groups.last().map_or(start, |group| start + group.end as u64);
        if best.contains_key(&(start + order.len() as u64)) {
            self.faults.meet(FaultPoint::PageUnchained);
        }
        if end < start + order.len() as u64 {
            self.faults.meet(FaultPoint::GroupIncomplete);
        }
        if end <= durable {
            let last = order.last().map_or(0, |&last| (recovery.pages[last].place + 1) % self.config.geometry.journal_pages);
            let at = best.get(&end).map_or(last, |&page| recovery.pages[page].place);
            let what = format!(
                "journal page {end} is damaged or missing (about byte {}), but everything up to {durable} was durable",
                self.page_offset(at)
            );
            self.find(FaultPoint::JournalGap, true, what);
            return false;
        }
        let durable_groups = groups.iter().take_while(|group| start + group.end as u64 - 1 <= durable).count();
        self.recovery().chain = Chain { order, groups, durable_groups, next_seq: end, previous: 0, places: Vec::new() };
        true
    }

    fn page_offset(&self, place: u32) -> u64 {
        self.config.geometry.journal_page(place).offset()
    }

    /// Ends the log behind its first `groups` groups: what comes next, and which places stay in use.
    pub(super) fn cut_chain(&mut self, groups: usize) {
        let ring = self.config.geometry.journal_pages;
        let recovery = self.recovery.as_mut().expect("recovery is under way");
        let superblock = recovery.superblock.as_ref().expect("a superblock was chosen");
        let (start, chain) = (recovery.map.seq, &mut recovery.chain);
        chain.groups.truncate(groups);
        chain.order.truncate(chain.groups.last().map_or(0, |group| group.end));
        chain.next_seq = start + chain.order.len() as u64;
        // The pages between the two checkpoints stay, for a map that rots later.
        let oldest = if recovery.map == superblock.checkpoint { superblock.previous.seq.min(start) } else { start };
        let best = newest_pages(&recovery.pages, superblock);
        let last = best.get(&(chain.next_seq - 1)).map(|&page| &recovery.pages[page]);
        chain.previous = last.map_or(0, |ring| ring.page.crc);
        chain.places = places_in_use(kept_pages(&recovery.pages, &best, oldest..chain.next_seq), ring);
    }
}

/// The cut has voided it: its number was given away again, or will be.
fn is_void(head: &PageHead, superblock: &Superblock) -> bool {
    head.epoch < superblock.epoch && head.seq >= superblock.cut
}

/// The last page that is durable for certain. What void pages say of that is of numbers that were given away again: they may have been out of
/// reach when the log was cut before them.
pub(super) fn durable_mark<P>(pages: &[RingPage<P>], superblock: &Superblock) -> u64 {
    let heads = pages.iter().map(|ring| &ring.page.head).filter(|head| !is_void(head, superblock));
    heads.map(|head| head.durable).max().unwrap_or(0).max(superblock.cut - 1)
}

/// For each seq the page that counts, as far as it alone can tell.
fn newest_pages<P>(pages: &[RingPage<P>], superblock: &Superblock) -> BTreeMap<u64, usize> {
    let mut best: BTreeMap<u64, usize> = BTreeMap::new();
    for (number, ring) in pages.iter().enumerate() {
        let head = &ring.page.head;
        let older = best.get(&head.seq).is_some_and(|&other| pages[other].page.head.epoch > head.epoch);
        if !is_void(head, superblock) && !older {
            best.insert(head.seq, number);
        }
    }
    best
}

/// Follows the chain from `start` to its end.
fn follow<P>(pages: &[RingPage<P>], best: &BTreeMap<u64, usize>, start: u64) -> Vec<usize> {
    let before = best.get(&(start - 1)).map(|&page| &pages[page].page);
    let (mut epoch, mut crc) = before.map_or((0, None), |page| (page.head.epoch, Some(page.crc)));
    let mut order = Vec::new();
    for seq in start.. {
        let Some(&number) = best.get(&seq) else { break };
        let page = &pages[number].page;
        let fits = page.head.previous == 0 || crc.is_none_or(|crc| crc == page.head.previous);
        if page.head.epoch < epoch || !fits {
            break;
        }
        (epoch, crc) = (page.head.epoch, Some(page.crc));
        order.push(number);
    }
    order
}

/// The complete groups at the beginning of the chain.
fn complete_groups<P>(pages: &[RingPage<P>], order: &[usize]) -> Vec<Range<usize>> {
    let mut groups = Vec::new();
    let mut first = 0;
    for (at, &number) in order.iter().enumerate() {
        let head = &pages[number].page.head;
        if head.group_offset as usize != at - first {
            break;
        }
        if head.last {
            groups.push(first..at + 1);
            first = at + 1;
        }
    }
    groups
}

/// A page that stays in the ring.
#[derive(Clone, Copy, Debug)]
struct Kept {
    held: Held,
    /// What was durable when it was filled.
    durable: u64,
}

/// The pages of the log, wherever they lie. One whose write failed, and landed all the same, lies in two places: they are the same page, so any of
/// them may be followed, but which of them is durable nobody knows. (A write that failed may be seen until the power goes, and then be gone.) So all
/// are kept, as they were in the life before: the ring has as much room as then, and its end is behind the last of them.
fn kept_pages<P>(pages: &[RingPage<P>], best: &BTreeMap<u64, usize>, seqs: Range<u64>) -> Vec<Kept> {
    let mut kept = Vec::new();
    for (number, ring) in pages.iter().enumerate() {
        let head = &ring.page.head;
        if let Some(&counts) = best.get(&head.seq).filter(|_| seqs.contains(&head.seq))
            && pages[counts].page.head.epoch == head.epoch
        {
            let held = Held { place: ring.place, seq: head.seq, failed: number != counts };
            kept.push(Kept { held, durable: head.durable });
        }
    }
    kept
}

/// The places in the order in which the ring is written, holes filled (0): the ring goes on behind the last one.
fn places_in_use(mut used: Vec<Kept>, ring: u32) -> Vec<Held> {
    used.sort_unstable_by_key(|page| page.held.place);
    if used.is_empty() {
        return Vec::new();
    }
    // In front of the first one lies the free part of the ring. A hole may be larger than that: places that failed, or cannot be read. And a page
    // that was written later, behind newer ones, has a smaller number than the one before it. But that one was not filled when the other was
    // durable; so where a page follows that was durable when the one before it was filled, the ring begins.
    let before = |i: usize| &used[if i == 0 { used.len() - 1 } else { i - 1 }];
    let gap_before = |i: usize| (used[i].held.place + ring - before(i).held.place - 1) % ring;
    let begins = |&i: &usize| before(i).durable >= used[i].held.seq;
    let fall_before = |i: usize| u64::from(gap_before(i)) + before(i).held.seq - used[i].held.seq;
    let first = (0..used.len()).filter(begins).max_by_key(|&i| fall_before(i));
    // Where nothing was durable the log is short: the free part is larger than what was under way.
    let first = first.or_else(|| (0..used.len()).max_by_key(|&i| (gap_before(i), i))).unwrap_or(0);
    used.rotate_left(first);
    let base = used[0].held.place;
    let mut filled: Vec<Held> = Vec::new();
    for Kept { held, .. } in used {
        while (filled.len() as u32) < (held.place + ring - base) % ring {
            filled.push(Held { place: (base + filled.len() as u32) % ring, seq: 0, failed: true });
        }
        filled.push(held);
    }
    filled
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::format::journal::Page;
    use crate::cache::format::{FormatId, Geometry};

    fn kept(place: u32, seq: u64, durable: u64) -> Kept {
        Kept { held: Held { place, seq, failed: false }, durable }
    }

    /// Places in use, with the page each holds.
    fn places_of(used: Vec<Kept>, ring: u32) -> Vec<(u32, u64)> {
        places_in_use(used, ring).iter().map(|held| (held.place, held.seq)).collect()
    }

    /// Pages of which nothing was durable.
    fn fresh(pages: &[(u32, u64)]) -> Vec<Kept> {
        pages.iter().map(|&(place, seq)| kept(place, seq, 0)).collect()
    }

    /// Each was filled when all but so many before it were durable.
    fn behind(pages: impl IntoIterator<Item = (u32, u64)>, under_way: u64) -> Vec<Kept> {
        pages.into_iter().map(|(place, seq)| kept(place, seq, seq - 1 - under_way)).collect()
    }

    /// Out of reach for one start, and there again at the next: the log was cut before them, and goes on without them.
    #[test]
    fn what_a_void_page_says_is_durable_is_of_numbers_that_were_given_away_again() {
        let geometry = Geometry { block_atoms: 8, set_slots: 8, sets: 16, journal_pages: 64, volume_atoms: 512, range_entries: 16 };
        let superblock = Superblock { epoch: 6, cut: 40, ..Superblock::new(FormatId([7; 16]), geometry, [0; 16], [0; 16]) };
        let ring = |epoch, seq, durable| {
            let head = PageHead { epoch, seq, durable, previous: 0, group_offset: 0, records: 0, first: true, last: true };
            RingPage { place: seq as u32, page: Page { head, crc: 0, records: Vec::new() }, payload: None::<()>, has_records: false }
        };
        let pages: Vec<_> = (38..40).chain(43..64).map(|seq| ring(5, seq, seq - 1)).collect();
        assert_eq!(durable_mark(&pages, &superblock), 39);
        let more = (40..43).map(|seq| ring(6, seq, seq - 1));
        let pages: Vec<_> = pages.into_iter().chain(more).collect();
        assert_eq!(durable_mark(&pages, &superblock), 41);
        assert_eq!(newest_pages(&pages, &superblock).keys().copied().collect::<Vec<_>>(), [38, 39, 40, 41, 42]);
    }

    #[test]
    fn the_ring_goes_on_behind_the_newest_page() {
        for pages in [fresh, |pages: &[(u32, u64)]| behind(pages.iter().copied(), 0)] {
            assert_eq!(places_of(pages(&[]), 16), vec![]);
            assert_eq!(places_of(pages(&[(3, 7)]), 16), vec![(3, 7)]);
            assert_eq!(places_of(pages(&[(15, 4), (0, 5), (14, 3)]), 16), vec![(14, 3), (15, 4), (0, 5)]);
            assert_eq!(places_of(pages(&[(4, 9), (2, 7)]), 16), vec![(2, 7), (3, 0), (4, 9)]);
        }
    }

    /// From place 100 on, round the end of the ring, up to place 80; the writes of places 120 to 183 had failed, or of more.
    #[test]
    fn the_ring_does_not_go_on_in_a_hole_that_is_larger_than_what_is_free() {
        for hole in [64, 100, 129, 200] {
            let places = (0..237).filter(|place| !(20..20 + hole).contains(place)).map(|place| (100 + place) % 256);
            let pages: Vec<(u32, u64)> = places.zip(1000..).collect();
            let (count, last) = (pages.len(), pages[pages.len() - 1]);
            let filled = places_of(behind(pages, 10), 256);
            assert_eq!((filled[0], filled[filled.len() - 1]), ((100, 1000), last), "a hole of {hole}");
            assert_eq!(filled.len(), 237);
            assert_eq!((filled[20], filled.iter().filter(|(_, seq)| *seq > 0).count()), ((120, 0), count));
        }
    }

    #[test]
    fn a_page_that_was_written_behind_newer_ones_is_no_end_of_the_log() {
        let pages = [(6, 6), (7, 7), (8, 5)];
        assert_eq!(places_of(fresh(&pages), 16), pages);
        assert_eq!(places_of(behind(pages, 4), 16), pages);
        // The same round the end of the ring, and with its own place among those that are used.
        let pages = [(13, 4), (15, 6), (0, 7), (1, 5)];
        let filled = vec![(13, 4), (14, 0), (15, 6), (0, 7), (1, 5)];
        assert_eq!(places_of(fresh(&pages), 16), filled);
        assert_eq!(places_of(behind(pages, 2), 16), filled);
    }

    /// However little is free: taken for the beginning, the first of them would leave no room at all.
    #[test]
    fn many_pages_that_were_written_behind_newer_ones_are_no_end_of_the_log() {
        let older = (0..20).zip(1_000..);
        // Places 20 to 83 had failed.
        let newer = (84..148).zip(1_084..).chain((148..212).zip(1_020..));
        let pages: Vec<(u32, u64)> = older.chain(newer).collect();
        let ends = |used: Vec<Kept>, ring: u32| {
            let filled = places_of(used, ring);
            (filled[0], filled[filled.len() - 1])
        };
        for ring in [213, 250, 1_000] {
            let used: Vec<Kept> = pages.iter().map(|&(place, seq)| kept(place, seq, 1_019.min(seq - 1))).collect();
            assert_eq!(ends(used, ring), ((0, 1_000), (211, 1_083)));
        }
        // Where nothing before them is kept.
        assert_eq!(ends(fresh(&pages[20..]), 250), ((84, 1_084), (211, 1_083)));
    }
}

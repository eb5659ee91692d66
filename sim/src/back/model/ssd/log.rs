//! Log-block flash translation layers: data blocks are mapped whole, and a few log blocks take what is overwritten until both are merged.
//! One small write may so cost the copy of a whole block. Nothing is known of contents: every data block counts as full.
//!
//! * BAST (Kim et al., *A space-efficient flash translation layer*, IEEE Trans. Consumer Electronics 48(2), 2002): a log block belongs to
//!   one data block.
//! * FAST (Lee et al., *A log buffer-based FTL using fully-associative sector translation*, ACM TECS 6(3), 2007): one log block for a
//!   sequential stream; the others take pages of any block, and the oldest is merged with all its data blocks.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Bast,
    Fast,
}

/// What has to be done for a write, besides programming its pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Merges {
    pub copied_pages: u64,
    pub erases: u64,
    pub full: u64,
    pub switches: u64,
}

/// A log block of one data block.
#[derive(Clone, Debug)]
struct Log {
    block: u32,
    pages: u32,
    /// Page i of it is page i of the data block.
    in_order: bool,
}

#[derive(Clone, Debug)]
pub struct LogMap {
    kind: Kind,
    block_pages: u32,
    logs_max: usize,
    /// BAST: all logs, least recently used first. FAST: the sequential one.
    logs: VecDeque<Log>,
    /// FAST: pages in the other logs, in order of writing, and for each page its newest place there.
    random: VecDeque<u32>,
    taken: u64,
    newest: BTreeMap<u32, u64>,
}

impl LogMap {
    pub fn new(kind: Kind, block_pages: u32, logs_max: usize) -> Self {
        LogMap { kind, block_pages, logs_max, logs: VecDeque::new(), random: VecDeque::new(), taken: 0, newest: BTreeMap::new() }
    }

    /// A page is written: what has to be merged for it.
    pub fn write(&mut self, page: u32) -> Merges {
        let mut merges = Merges::default();
        match self.kind {
            Kind::Bast => self.write_bast(page, &mut merges),
            Kind::Fast => self.write_fast(page, &mut merges),
        }
        merges
    }

    fn write_bast(&mut self, page: u32, merges: &mut Merges) {
        let (block, offset) = (page / self.block_pages, page % self.block_pages);
        let mut log = match self.logs.iter().position(|log| log.block == block) {
            Some(index) => self.logs.remove(index).expect("it was just found"),
            None => {
                if self.logs.len() == self.logs_max {
                    let oldest = self.logs.pop_front().expect("there are logs");
                    self.merge(&oldest, merges);
                }
                Log { block, pages: 0, in_order: true }
            }
        };
        if log.pages == self.block_pages {
            self.merge(&log, merges);
            log = Log { block, pages: 0, in_order: true };
        }
        log.in_order &= offset == log.pages;
        log.pages += 1;
        if log.in_order && log.pages == self.block_pages {
            self.merge(&log, merges);
        } else {
            self.logs.push_back(log);
        }
    }

    /// A log in order becomes the data block, once the rest is copied behind it; of another one everything is copied to a third block.
    fn merge(&self, log: &Log, merges: &mut Merges) {
        if log.in_order {
            merges.copied_pages += u64::from(self.block_pages - log.pages);
            merges.erases += 1;
            merges.switches += u64::from(log.pages == self.block_pages);
            merges.full += u64::from(log.pages < self.block_pages);
        } else {
            merges.copied_pages += u64::from(self.block_pages);
            merges.erases += 2;
            merges.full += 1;
        }
    }

    fn write_fast(&mut self, page: u32, merges: &mut Merges) {
        let (block, offset) = (page / self.block_pages, page % self.block_pages);
        let follows = self.logs.front().is_some_and(|log| log.block == block && log.pages == offset);
        if follows || offset == 0 {
            let log = match self.logs.pop_front() {
                Some(log) if follows => log,
                before => {
                    before.iter().for_each(|log| self.merge(log, merges));
                    Log { block, pages: 0, in_order: true }
                }
            };
            let log = Log { pages: log.pages + 1, ..log };
            self.newest.remove(&page);
            if log.pages == self.block_pages {
                self.merge(&log, merges);
            } else {
                self.logs.push_back(log);
            }
            return;
        }
        if self.random.len() == (self.logs_max - 1) * self.block_pages as usize {
            self.merge_oldest(merges);
        }
        self.random.push_back(page);
        self.newest.insert(page, self.taken + self.random.len() as u64);
    }

    /// Merges the oldest of the random logs: every data block that has a newest page in it is copied.
    fn merge_oldest(&mut self, merges: &mut Merges) {
        let mut blocks = BTreeSet::new();
        for _ in 0..self.block_pages {
            let page = self.random.pop_front().expect("the log is full");
            self.taken += 1;
            if self.newest.get(&page) == Some(&self.taken) {
                blocks.insert(page / self.block_pages);
            }
        }
        for block in &blocks {
            let pages: Vec<u32> =
                self.newest.range(block * self.block_pages..(block + 1) * self.block_pages).map(|(page, _)| *page).collect();
            for page in pages {
                self.newest.remove(&page);
            }
        }
        let count = blocks.len() as u64;
        merges.copied_pages += count * u64::from(self.block_pages);
        merges.erases += count + 1;
        merges.full += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All merges of a list of writes, with blocks of 4 pages and 3 logs.
    fn check(kind: Kind, pages: &[u32], copied_pages: u64, erases: u64, full: u64, switches: u64) {
        let mut map = LogMap::new(kind, 4, 3);
        let mut all = Merges::default();
        for &page in pages {
            let merges = map.write(page);
            all = Merges {
                copied_pages: all.copied_pages + merges.copied_pages,
                erases: all.erases + merges.erases,
                full: all.full + merges.full,
                switches: all.switches + merges.switches,
            };
        }
        assert_eq!(all, Merges { copied_pages, erases, full, switches }, "{kind:?} {pages:?}");
    }

    #[test]
    fn bast_merges_one_block_for_each_log() {
        check(Kind::Bast, &[0, 1, 2, 3], 0, 1, 0, 1);
        check(Kind::Bast, &[1, 5, 9], 0, 0, 0, 0);
        check(Kind::Bast, &[1, 5, 9, 13], 4, 2, 1, 0);
        check(Kind::Bast, &[0, 1, 5, 9, 13], 2, 1, 1, 0);
        check(Kind::Bast, &[1, 1, 1, 1, 1], 4, 2, 1, 0);
    }

    #[test]
    fn fast_merges_every_block_of_its_oldest_log() {
        check(Kind::Fast, &[0, 1, 2, 3], 0, 1, 0, 1);
        check(Kind::Fast, &[1, 5, 9, 13, 17, 21, 25, 29], 0, 0, 0, 0);
        check(Kind::Fast, &[1, 5, 9, 13, 17, 21, 25, 29, 33], 16, 5, 4, 0);
        check(Kind::Fast, &[1, 1, 1, 1, 1, 1, 1, 1, 1], 0, 1, 0, 0);
        check(Kind::Fast, &[0, 4], 3, 1, 1, 0);
    }
}

//! A page cache before a disk: pages are made dirty at random, and when so many are, an elevator writes all of them in the order of their
//! addresses, neighbours in one request.

use crate::chance::Chance;
use std::collections::{BTreeSet, VecDeque};
use tidegate_engine::block::{ATOM_BYTES, Span};

/// Atoms of a request that pages are merged into, at most: `max_sectors_kb` of Linux 2.6.32, 512 KiB.
const MERGED_MAX: u64 = (512 << 10) / ATOM_BYTES;

#[derive(Clone, Debug, Default)]
pub struct Pool {
    /// Pages that fill it.
    pages_max: u64,
    requests: VecDeque<Span>,
}

impl Pool {
    pub fn new(pages_max: u64) -> Self {
        Pool { pages_max, requests: VecDeque::new() }
    }

    /// The next request of the elevator. It takes at most `left` pages of `page` atoms, from anywhere in `area`.
    pub fn draw(&mut self, area: Span, page: u64, left: u64, chance: &mut Chance) -> Span {
        if self.requests.is_empty() {
            self.fill(area, page, left, chance);
        }
        self.requests.pop_front().expect("a pool holds at least one page")
    }

    fn fill(&mut self, area: Span, page: u64, left: u64, chance: &mut Chance) {
        let places = area.atoms / page;
        let count = self.pages_max.min(left).min(places);
        let mut dirty = BTreeSet::new();
        // A page that is dirty already is written in memory, and takes no more room.
        while (dirty.len() as u64) < count {
            dirty.insert(chance.below(places));
        }
        for number in dirty {
            let start = area.start + number * page;
            match self.requests.back_mut() {
                Some(last) if last.end() == start && last.atoms + page <= MERGED_MAX => last.atoms += page,
                _ => self.requests.push_back(Span::new(start, page)),
            }
        }
    }
}

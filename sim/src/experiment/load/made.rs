//! Requests that are drawn: sequential, random or from a page cache, of one size or several, reads and writes in a share, FLUSHes between writes.

use super::gaps::Gaps;
use super::pool::Pool;
use super::skew::{Law, Skew};
use super::{Ask, Pace};
use crate::chance::Chance;
use std::collections::VecDeque;
use tidegate_engine::block::Span;
use tidegate_engine::time::Duration;

/// Requests that are drawn at once.
const AHEAD: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pattern {
    /// Each worker goes through a part of the span of its own, and starts again at its end.
    Sequential,
    /// Evenly over the span, at multiples of the request's size.
    Random,
    /// Random, but not evenly.
    Skewed(Law),
    /// Written at random into a page cache that an elevator empties ([`Pool`]).
    Buffered,
}

/// What a job draws.
#[derive(Clone, Debug)]
pub struct Made {
    pub pattern: Pattern,
    /// Nobody waits for it.
    pub background: bool,
    /// Per cent of the requests that read; the rest writes.
    pub reads: u32,
    /// Sizes in atoms, and their weights.
    pub sizes: Vec<(u64, u32)>,
    /// Requests of all workers, FLUSHes aside; of a page cache: pages.
    pub count: u64,
    /// Requests in flight of each worker in a closed loop.
    pub depth: u32,
    pub workers: u32,
    /// First atom, and how many; none: to the end of the volume.
    pub start: u64,
    pub span: Option<u64>,
    /// Each worker has a file of so many atoms, and all of them lie evenly over the span.
    pub file: Option<u64>,
    /// A span that reaches beyond the volume ends with it.
    pub clip: bool,
    /// Pages that a page cache holds before they are written.
    pub pool: u64,
    pub pace: Pace,
    /// A pause after so many requests.
    pub pause: Option<(u64, Duration)>,
    /// Or pauses that differ.
    pub gaps: Option<Gaps>,
    /// A FLUSH after so many writes; 0: never.
    pub flush_every: u64,
}

impl Made {
    /// Atoms of its largest request.
    pub fn largest(&self) -> u64 {
        self.sizes.iter().map(|(atoms, _)| *atoms).max().unwrap_or(0)
    }

    /// Atoms that each worker's requests need at least.
    pub fn smallest_span(&self) -> u64 {
        let is_apart = self.pattern == Pattern::Sequential || self.file.is_some();
        self.file.unwrap_or(self.largest()) * if is_apart { u64::from(self.workers) } else { 1 }
    }
}

/// One worker of a job.
#[derive(Clone, Debug)]
pub struct Worker {
    pub chance: Chance,
    pub background: bool,
    pattern: Pattern,
    reads: u32,
    sizes: Vec<u64>,
    weights: Vec<u32>,
    area: Span,
    /// Where places differ, at the grain of the largest request.
    skew: Option<Skew>,
    cursor: u64,
    pool: Pool,
    left: u64,
    flush_every: u64,
    writes: u64,
    flush_due: bool,
    /// Requests that are drawn, and how many are drawn at once: what tells the places of a skewed load is far apart in memory, and so it is looked
    /// up side by side.
    ahead: VecDeque<(Ask, Span)>,
    at_once: usize,
}

impl Worker {
    pub fn new(made: &Made, number: u32, volume_atoms: u64, chance: Chance) -> Worker {
        let (workers, number) = (u64::from(made.workers), u64::from(number));
        let rest = volume_atoms - made.start;
        let whole = Span::new(made.start, made.span.map_or(rest, |span| span.min(rest)));
        let area = match (made.pattern, made.file) {
            (Pattern::Random | Pattern::Skewed(_) | Pattern::Buffered, None) => whole,
            (_, file) => {
                let grain = made.largest();
                let part = (whole.atoms / workers / grain * grain).max(grain);
                Span::new(whole.start + part * number, file.unwrap_or(part))
            }
        };
        let skew = match made.pattern {
            Pattern::Sequential | Pattern::Random | Pattern::Buffered => None,
            Pattern::Skewed(law) => Some(Skew::new(law, (area.atoms / made.largest()).min(u64::from(u32::MAX)) as u32)),
        };
        Worker {
            skew,
            chance,
            background: made.background,
            pattern: made.pattern,
            reads: made.reads,
            sizes: made.sizes.iter().map(|(atoms, _)| *atoms).collect(),
            weights: made.sizes.iter().map(|(_, weight)| *weight).collect(),
            area,
            cursor: area.start,
            pool: Pool::new(made.pool),
            left: made.count / workers + u64::from(number < made.count % workers),
            flush_every: made.flush_every,
            writes: 0,
            flush_due: false,
            ahead: VecDeque::new(),
            // Intervals that differ are drawn with the same dice, between requests.
            at_once: if matches!(made.pace, Pace::Exponential(_)) { 1 } else { AHEAD },
        }
    }

    pub fn is_done(&self) -> bool {
        self.ahead.is_empty() && self.is_drawn()
    }

    fn is_drawn(&self) -> bool {
        self.left == 0 && !self.flush_due
    }

    /// The next request; there is one.
    pub fn draw(&mut self) -> (Ask, Span) {
        if self.ahead.is_empty() {
            while self.ahead.len() < self.at_once && !self.is_drawn() {
                let next = self.draw_next();
                self.ahead.push_back(next);
            }
        }
        self.ahead.pop_front().expect("a load that is not done asks")
    }

    fn draw_next(&mut self) -> (Ask, Span) {
        if std::mem::take(&mut self.flush_due) {
            return (Ask::Flush, Span::default());
        }
        let atoms = if self.sizes.len() == 1 { self.sizes[0] } else { self.sizes[self.chance.weighted(&self.weights)] };
        let span = self.place(atoms);
        self.left -= if self.pattern == Pattern::Buffered { span.atoms / atoms } else { 1 };
        let reads = match self.reads {
            0 => false,
            100 => true,
            share => self.chance.percent(share),
        };
        if reads {
            return (Ask::Read, span);
        }
        self.writes += 1;
        self.flush_due = self.flush_every > 0 && self.writes.is_multiple_of(self.flush_every);
        (Ask::Write, span)
    }

    fn place(&mut self, atoms: u64) -> Span {
        match self.pattern {
            Pattern::Skewed(_) => {
                let grain = self.sizes.iter().max().expect("a load has sizes");
                let place = self.skew.as_ref().expect("it was made").draw(&mut self.chance);
                Span::new(self.area.start + place * grain, atoms)
            }
            Pattern::Buffered => self.pool.draw(self.area, atoms, self.left, &mut self.chance),
            Pattern::Random => Span::new(self.area.start + self.chance.below(self.area.atoms / atoms) * atoms, atoms),
            Pattern::Sequential => {
                if self.cursor + atoms > self.area.end() {
                    self.cursor = self.area.start;
                }
                let start = self.cursor;
                self.cursor += atoms;
                Span::new(start, atoms)
            }
        }
    }
}

impl Chance {
    /// An exponential draw with this mean, by von Neumann's comparisons: no logarithm, so the same on every machine.
    pub fn exponential(&mut self, mean: Duration) -> Duration {
        let mut whole: u128 = 0;
        loop {
            let first = self.word();
            let (mut last, mut run) = (first, 1u32);
            loop {
                let next = self.word();
                if next >= last {
                    break;
                }
                last = next;
                run += 1;
            }
            if run % 2 == 1 {
                let draw = (whole << 64 | u128::from(first)) >> 32;
                return Duration(((draw * u128::from(mean.0)) >> 32).min(u128::from(u64::MAX / 4)) as u64);
            }
            whole += 1;
        }
    }
}

//! Front threads, as far as one thread can be several: they answer reads that memory has, and write pages themselves, between the engine's turns.
//! (Real threads: `pages/tests/loom.rs`, and `linearizable` of the program's tests.)

use std::sync::Arc;

use tidegate_engine::payload::Payload;
use tidegate_engine::request::{Command, Outcome, Request};
use tidegate_pages::{Block, Front, Pages};

use crate::chance::Chance;
use crate::stamp::Stamps;

/// What they write is small.
const WRITE_ATOMS: u64 = 128;

/// The fronts of one volume.
#[derive(Default)]
pub struct Fronts {
    fronts: Vec<Front>,
    chance: Option<Chance>,
    /// Requests that came here: the time, as fronts know it.
    asked: u64,
    /// Requests answered.
    pub answered: u64,
}

impl Fronts {
    /// So many, in front of these pages.
    pub fn new(count: usize, pages: Option<&Arc<Pages>>, chance: Chance) -> Fronts {
        let fronts =
            pages.into_iter().flat_map(|pages| (0..count).map(|_| Pages::front(pages).expect("the engine was told of every front")));
        Fronts { fronts: fronts.collect(), chance: Some(chance), asked: 0, answered: 0 }
    }

    /// They have something to say: does the engine listen now?
    pub fn are_heard(&mut self) -> bool {
        self.chance.as_mut().is_some_and(|chance| chance.one_in(2))
    }

    /// What one of them answers by itself, if it does.
    pub fn answer(&mut self, request: &Request<Stamps>) -> Option<Outcome<Stamps>> {
        let chance = self.chance.as_mut().filter(|_| !self.fronts.is_empty())?;
        let front = chance.below(self.fronts.len() as u64) as usize;
        let front = &mut self.fronts[front];
        self.asked += 1;
        front.set_time(self.asked);
        let outcome = match &request.command {
            Command::Read => read(front, request),
            Command::Write { data, fua: false } if data.atoms() <= WRITE_ATOMS => {
                front.write(request.span.start, &data.page_bytes()).ok().map(|()| Outcome::Done)
            }
            Command::Write { .. }
            | Command::Cache
            | Command::Trim { .. }
            | Command::Zero { .. }
            | Command::Flush
            | Command::Status { .. } => None,
        };
        if chance.one_in(3) {
            front.rest();
        }
        self.answered += u64::from(outcome.is_some());
        outcome
    }
}

fn read(front: &mut Front, request: &Request<Stamps>) -> Option<Outcome<Stamps>> {
    let size = front.pages().config().page_atoms as u64;
    let (first, behind) = (request.span.start / size, request.span.end().div_ceil(size));
    let blocks: Vec<Block> = (first..behind).map(Block).collect();
    let stamps = {
        let pinned = front.pin();
        let pages: Option<Vec<&[u8]>> = blocks.iter().map(|&block| pinned.find(block).map(|page| page.bytes())).collect();
        Stamps::from_pages(&pages?, request.span.start - first * size, request.span.atoms)
    };
    front.note(&blocks, 0);
    Some(Outcome::Data([stamps].into()))
}

//! Fill: what a read fetched from the origin is kept, behind the reply and from the same buffer; dropped when there is no room.
//!
//! A ticket is issued at the look-up and dies of any write, discard, destage or eviction of its blocks: only then is what was read
//! still what the origin holds. Only whole blocks are kept.

use crate::block::{Block, Span};
use crate::cache::sets::Stream;
use crate::config::Canary;
use crate::payload::Payload;

use super::Engine;
use super::write::Piece;

struct Ticket {
    request: usize,
    block: Block,
    blocks: u64,
    void: bool,
}

#[derive(Default)]
pub(super) struct Tickets {
    tickets: Vec<Ticket>,
}

impl Tickets {
    pub fn issue(&mut self, request: usize, block: Block, blocks: u64) {
        self.tickets.push(Ticket { request, block, blocks, void: false });
    }
    /// The blocks changed: what is being read of them must not be kept.
    pub fn void(&mut self, block: Block, blocks: u64) {
        for ticket in &mut self.tickets {
            ticket.void |= ticket.block.0 < block.0 + blocks && block.0 < ticket.block.0 + ticket.blocks;
        }
    }
    /// Forgets the tickets of a request. True: every one of them still holds.
    pub fn withdraw(&mut self, request: usize) -> bool {
        let mut holds = true;
        self.tickets.retain(|ticket| {
            holds &= ticket.request != request || !ticket.void;
            ticket.request != request
        });
        holds
    }
}

impl<P: Payload> Engine<P> {
    pub(super) fn fill(&mut self, number: usize, fetched: Vec<(Span, P)>) {
        if fetched.is_empty() {
            return;
        }
        let holds = self.tickets.withdraw(number) || self.has_canary(Canary::FillWithoutTicket);
        if !self.config.fill || self.cache_failed || self.stopping {
            return;
        }
        for (span, payload) in fetched {
            let (block, blocks) = self.whole(span);
            if blocks == 0 {
                continue;
            }
            if !holds {
                self.counters.fill_void_blocks += blocks;
            } else if !self.has_room_for_fill(blocks) {
                self.counters.fill_no_room_blocks += blocks;
            } else {
                self.keep(block, blocks, span, &payload);
            }
        }
    }

    /// The whole blocks inside a span.
    fn whole(&self, span: Span) -> (Block, u64) {
        let size = self.block_atoms();
        let first = span.start.div_ceil(size);
        (Block(first), (span.end() / size).saturating_sub(first))
    }

    fn has_room_for_fill(&self, blocks: u64) -> bool {
        let window = (self.window.atoms() + blocks * self.block_atoms()) * crate::block::ATOM_BYTES;
        self.slots_available(Stream::Fill) >= blocks && window <= self.config.window_bytes / 2 && self.journal_has_room(blocks + 2)
    }

    fn keep(&mut self, block: Block, blocks: u64, span: Span, payload: &P) {
        self.begin_group_for(blocks + 2);
        let mut runs = Vec::new();
        if self.has_canary(Canary::FillWithoutTicket) {
            runs.push(crate::cache::index::Run { block, blocks, slot: None });
        } else {
            self.index.lookup(block, blocks, &mut runs);
        }
        runs.retain(|run| run.slot.is_none() && !self.through.covers(run.block, run.blocks));
        for run in runs {
            let skip = run.block.0 * self.block_atoms() - span.start;
            let payload = payload.slice(skip, run.blocks * self.block_atoms());
            self.counters.filled_blocks += run.blocks;
            let piece = Piece { block: run.block, blocks: run.blocks, payload, valid: None };
            self.put(Stream::Fill, false, vec![piece], None, 0);
        }
    }
}

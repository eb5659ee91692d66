//! Lending: memory that dirty pages do not need is clean pages' (`dirty_share` decides), and comes back when they would need it.
//!
//! Never more is dirty than `dirty_ram`, whatever is lent: that is what a crash may lose. And what is lent is not waited for: a page goes at once.

use crate::block::{ATOM_BYTES, Block};
use crate::config::{Config, Placement};
use crate::dirty_share::DirtyShare;
use crate::payload::Payload;
use crate::probe::{Health, WaitReason};

use super::Engine;
use super::front_writes::pages_max;

/// Fronts write pages without asking, up to half of what is dirty: that and as much for others is never lent.
pub(super) fn dirty_share(config: &Config) -> DirtyShare {
    let block_bytes = u64::from(config.geometry.block_atoms) * ATOM_BYTES;
    let of_fronts = 2 * pages_max(config) as u64 * block_bytes;
    let least = match config.placement {
        Placement::Log => config.dirty_ram_least.unwrap_or(config.dirty_ram).max(of_fronts),
        Placement::Set => config.dirty_ram,
    };
    DirtyShare::new(config.dirty_ram, least, block_bytes)
}

impl<P: Payload> Engine<P> {
    /// A read has missed memory.
    pub(super) fn note_missed(&mut self, block: Block, blocks: u64) {
        let is_spared = self.dirty_share.lendable() > 0 && self.memory.as_ref().is_some_and(|memory| memory.had(block, blocks));
        if self.dirty_share.read_missed(is_spared) {
            self.lend();
        }
    }

    /// A write has arrived. Those that wait before it are taken to be as large as it is. Where something else than memory is short, or a client
    /// waits for the SSD in any case, memory would help nobody.
    pub(super) fn note_write(&mut self, number: usize, blocks: u64) {
        let is_ram_short = |&first: &usize| matches!(self.requests.get(first).waits, WaitReason::Ram | WaitReason::Turn);
        if self.health() == Health::Whole && self.acknowledges_early(number) && self.intake.front().is_none_or(is_ram_short) {
            let ahead = self.intake.len() as u64;
            self.note_dirty(blocks * (ahead + 1));
        }
    }

    /// Fronts have written so many blocks.
    pub(super) fn note_front_writes(&mut self, blocks: u64) {
        if blocks > 0 {
            self.note_dirty(blocks);
        }
    }

    fn note_dirty(&mut self, blocks: u64) {
        let filled = (self.window.unwritten_atoms() + blocks * self.block_atoms()) * ATOM_BYTES;
        if self.dirty_share.write_came(filled) {
            self.lend();
        }
    }

    fn lend(&mut self) {
        let lent = self.dirty_share.lent();
        self.memory.as_mut().expect("it is lent to memory").lend(lent);
    }
}

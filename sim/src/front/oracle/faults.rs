//! Faults: what they may have cost, and which reads they excuse.

use super::{Broken, NEVER, Oracle, Verdict, is_unpromised};
use crate::front::prefix::Moment;
use crate::stamp::meaning;
use tidegate_engine::block::Span;

impl Oracle {
    /// The slot that holds (or should hold) these atoms was hit: what was written so far to their blocks may be lost.
    pub fn hurt(&mut self, stamps: &[u64]) {
        self.hurt.resize(self.atoms.len(), 0);
        for &stamp in stamps {
            if let Some((_, atom)) = meaning(stamp)
                && atom < self.volume_atoms()
            {
                self.hurt_block(atom / self.block_atoms);
            }
        }
        // Zeros do not tell whose they are.
        if stamps.contains(&0) {
            for block in 0..self.volume_atoms().div_ceil(self.block_atoms) {
                if self.block(block).any(|atom| self.atoms[atom as usize].iter().any(|version| version.stamp == 0)) {
                    self.hurt_block(block);
                }
            }
        }
    }

    fn hurt_block(&mut self, block: u64) {
        let mark = self.writes.len() as u32;
        for atom in self.block(block) {
            self.hurt[atom as usize] = mark;
        }
    }

    /// The origin has lost any part of what was not flushed there: what only a failed write had put there may be what it was before, or one
    /// that has not been answered.
    pub fn origin_forgot(&mut self) {
        let writes = &self.writes;
        for version in self.atoms.iter_mut().flatten() {
            if is_unpromised(writes, version.newer) {
                (version.dead, version.newer) = (NEVER, NEVER);
            }
            if is_unpromised(writes, version.write) {
                version.shown = NEVER;
            }
        }
        self.forgot = self.now;
    }

    /// The origin failed to give `span` just now.
    pub fn unread(&mut self, span: Span) {
        self.unread.resize(self.atoms.len(), 0);
        for atom in span.start..span.end() {
            self.unread[atom as usize] = self.now + 1;
        }
    }

    /// May a version of this atom that is current, or was at `arrived`, be lost?
    pub(super) fn is_hurt(&self, atom: u64, arrived: Moment) -> bool {
        let Some(&mark) = self.hurt.get(atom as usize) else { return false };
        self.atoms[atom as usize].iter().any(|version| version.dead > arrived && version.write < mark)
    }

    /// Was a block that `span` touches hit?
    pub(super) fn touches_hurt(&self, span: Span) -> bool {
        let blocks = span.start / self.block_atoms..span.end().div_ceil(self.block_atoms);
        !self.hurt.is_empty() && blocks.flat_map(|block| self.block(block)).any(|atom| self.hurt[atom as usize] > 0)
    }

    /// May a read of `span` that arrived at `arrived` fail?
    pub(super) fn may_fail(&self, span: Span, arrived: Moment) -> Verdict {
        let excused = |atom: u64| self.is_hurt(atom, arrived) || self.unread.get(atom as usize).is_some_and(|&when| when > arrived);
        if (span.start..span.end()).any(excused) {
            return Ok(());
        }
        Err(Broken(format!("a read of {span:?} failed although nothing there was hit; {}", self.story(span.start))))
    }
}

//! The cache fails in service, for good: what may be an error from then on, and what is given up with it.

use super::{Oracle, Version};
use crate::front::prefix::{FIRST, NEVER};
use tidegate_engine::block::Span;

impl Oracle {
    /// The only medium of `span` was lost just now: what it `held` of what was written there so far may be an error, but nothing else.
    pub fn risk(&mut self, span: Span, held: impl Fn(u64) -> bool) {
        self.hurt.resize(self.atoms.len(), 0);
        for atom in span.start..span.end() {
            if self.atoms[atom as usize].iter().any(|version| version.dead == NEVER && held(version.stamp)) {
                self.hurt[atom as usize] = self.writes.len() as u32;
            }
        }
    }

    /// May what a crash brings back of this atom be lost? (That may be older than what is current now: seed 4748140.)
    pub(super) fn may_come_back_hurt(&self, atom: u64) -> bool {
        let Some(&mark) = self.hurt.get(atom as usize) else { return false };
        let (versions, life) = (&self.atoms[atom as usize], self.life + 1);
        let since = self.durable_since(versions, life);
        versions.iter().any(|version| version.write < mark && self.can_come_back(version, since, life))
    }

    /// After a crash somebody has given up what was lost with a cache: these spans hold what the origin does: of the stamps that it
    /// `holds`, from the durable one to the newest, the last one, and any of them if the power goes before a flush. Everything else is as was
    /// promised, and nothing of it may be an error any more.
    pub fn accept_loss(&mut self, spans: &[Span], holds: impl Fn(u64) -> Vec<u64>) {
        self.hurt.clear();
        for atom in spans.iter().flat_map(|span| span.start..span.end()) {
            let stamps = holds(atom);
            let settled = stamps.iter().all(|stamp| *stamp == stamps[0]);
            let version = |stamp: &u64| Version { settled, ..Version::new(*stamp, FIRST) };
            let held = if settled { &stamps[..1] } else { &stamps[..] };
            self.atoms[atom as usize] = held.iter().map(version).collect();
        }
    }
}

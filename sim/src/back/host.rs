//! The host: it keeps a file that says whether the cache may come back. What was written there and not synced is lost with the power, or
//! with the process; what is being synced may have become durable or not.

use crate::chance::Chance;
use tidegate_engine::block::Span;
use tidegate_engine::time::Duration;

/// What the host knows of the cache.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// Durable: the cache has missed writes, and what was lost with it.
    fenced: Option<Vec<Span>>,
    /// Being written.
    writing: Option<Vec<Span>>,
    /// It takes no writes.
    pub fails: bool,
    /// What is being written is not durable before somebody says so.
    pub held: bool,
}

impl Host {
    /// Begins to write; how long it takes, unless it is held.
    pub fn write(&mut self, at_risk: Vec<Span>, chance: &mut Chance) -> Option<Duration> {
        self.writing = Some(at_risk);
        (!self.held).then(|| Duration::from_micros(chance.spread(500, 2_000_000)))
    }

    /// The write ends. Whether it is durable now; nothing if none was under way.
    pub fn end(&mut self) -> Option<bool> {
        let written = self.writing.take()?;
        if !self.fails {
            self.fenced = Some(written);
        }
        Some(!self.fails)
    }

    /// Is it being told something?
    pub fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    /// The process or the machine ends.
    pub fn crash(&mut self, chance: &mut Chance) {
        if let Some(written) = self.writing.take()
            && !self.fails
            && chance.one_in(2)
        {
            self.fenced = Some(written);
        }
    }

    /// Must the cache not come back?
    pub fn is_fenced(&self) -> bool {
        self.fenced.is_some()
    }

    /// What the host lists as lost.
    pub fn lost(&self) -> &[Span] {
        self.fenced.as_deref().unwrap_or(&[])
    }

    /// Another cache takes the place of the one that failed.
    pub fn forget(&mut self) {
        self.fenced = None;
    }
}

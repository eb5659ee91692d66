//! The drives below an engine's two devices: one each, or one that both are partitions of. Contents are apart either way; what is shared
//! is time: one link, one queue, one flash.
//!
//! ```text
//!   origin: from 0 on │ cache: from its place on          one queue, first come first served
//! ```

use crate::back::device::{Device as Disk, Ended};
use crate::back::model::{Command, Model};
use tidegate_engine::time::Instant;

pub(super) enum Drives {
    /// Each disk has its own.
    Apart,
    One(Box<Shared>),
}

/// A drive with two partitions.
pub(super) struct Shared {
    pub model: Model,
    /// The first atom of each disk on it.
    starts: [u64; 2],
    ended: Vec<u64>,
}

impl Drives {
    /// One drive, on which the cache begins at this atom.
    pub fn one(model: Model, cache_start: u64) -> Drives {
        Drives::One(Box::new(Shared { model, starts: [cache_start, 0], ended: Vec::new() }))
    }

    /// Passes on what disk number `index` has begun.
    pub fn take(&mut self, now: Instant, index: usize, disk: &mut Disk) {
        let (Drives::One(shared), Model::Port(port)) = (self, &mut disk.model) else { return };
        for command in port.passed.drain(..) {
            let start = if command.atoms == 0 { 0 } else { command.start + shared.starts[index] };
            // The number says whose it is.
            shared.model.submit(now, Command { id: command.id << 1 | index as u64, start, ..command });
        }
    }

    /// When something happens inside the shared one.
    pub fn next(&self) -> Option<Instant> {
        match self {
            Drives::Apart => None,
            Drives::One(shared) => shared.model.next(),
        }
    }

    /// Everything that is due at `now`, told in the order in which the drives end it.
    pub fn advance(&mut self, now: Instant, disks: &mut [Disk; 2], ended: &mut Vec<Ended>) {
        if let Drives::One(shared) = self {
            shared.model.advance(now, &mut shared.ended);
            for command in shared.ended.drain(..) {
                let disk = &mut disks[(command & 1) as usize];
                let Model::Port(port) = &mut disk.model else { unreachable!("both disks are partitions") };
                port.ended.push(command >> 1);
                disk.advance(now, ended);
            }
        }
        for disk in disks {
            disk.advance(now, ended);
        }
    }

    /// The models that work, in the order of their watches.
    pub fn models<'a>(&'a self, disks: &'a [Disk; 2]) -> Vec<&'a Model> {
        match self {
            Drives::Apart => disks.iter().map(|disk| &disk.model).collect(),
            Drives::One(shared) => vec![&shared.model],
        }
    }

    pub fn models_mut<'a>(&'a mut self, disks: &'a mut [Disk; 2]) -> Vec<&'a mut Model> {
        match self {
            Drives::Apart => disks.iter_mut().map(|disk| &mut disk.model).collect(),
            Drives::One(shared) => vec![&mut shared.model],
        }
    }
}

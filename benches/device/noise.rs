//! What is written: contents that nothing can shorten, in memory like that which the front reads into.

use tidegate_daemon::back::run::{Run, RunMut};
use tidegate_engine::block::ATOM_BYTES;
use tidegate_engine::payload::Payload;

use crate::chance::Chance;
use crate::load::{BLOCK_BYTES, MIB};

/// 16 MiB: more than caches of processors keep close.
const PIECES: u64 = 16;

/// Pieces of 1 MiB, the largest that the daemon holds in one.
#[derive(Clone)]
pub struct Noise(Vec<Run>);

impl Noise {
    pub fn new() -> Noise {
        let mut chance = Chance::new(1);
        let mut piece = || {
            let mut piece = RunMut::new(MIB / ATOM_BYTES);
            piece.as_mut_slice().copy_from_slice(&chance.bytes(MIB as usize));
            piece.freeze()
        };
        Noise((0..PIECES).map(|_| piece()).collect())
    }

    /// `bytes` of it, 1 MiB at most: which ones is up to `chance`.
    pub fn at(&self, chance: u64, bytes: u64) -> Run {
        let piece = &self.0[(chance % PIECES) as usize];
        let places = (MIB - bytes) / BLOCK_BYTES + 1;
        piece.slice(chance / PIECES % places * (BLOCK_BYTES / ATOM_BYTES), bytes / ATOM_BYTES)
    }
}

//! The SSD tier: which slot holds which block, what is live, dirty, durable. It answers *which*; the flows in `path` act on it.

pub mod ahead;
pub mod commit;
pub mod convert;
pub mod detour;
pub mod format;
pub mod heat;
pub mod index;
pub mod journal;
pub mod lost;
pub mod neighbours;
pub mod placed;
pub mod ranges;
pub mod sequence;
pub mod sets;
pub mod split;
pub mod stream;
pub mod through;
pub mod unsure;
pub mod window;

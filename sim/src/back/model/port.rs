//! A partition: it looks like a drive, and passes every command to the drive that it is a part of, which somebody else owns. Work, energy
//! and commands are that drive's.

use super::Command;

#[derive(Clone, Debug, Default)]
pub struct Port {
    /// Commands that the drive has not been given yet.
    pub passed: Vec<Command>,
    /// Commands that the drive has ended, and nobody has heard of.
    pub ended: Vec<u64>,
}

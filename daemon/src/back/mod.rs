//! The back: memory, the ring and the disks behind it. The only place of the real world where operations meet devices.

pub mod attach;
pub mod confine;
pub mod disk;
mod flight;
pub mod mail;
pub mod occupied;
pub mod poll;
pub mod ring;
pub mod run;
pub mod signals;

#[cfg(test)]
mod tests;

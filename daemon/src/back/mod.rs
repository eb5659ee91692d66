//! The back: memory, the disks, and who carries operations to them. The only place of the real world where operations meet devices.

pub mod attach;
pub mod confine;
pub mod disk;
pub mod dock;
mod flight;
pub mod hangups;
pub mod io;
pub mod lessor;
pub mod mail;
pub mod occupied;
pub mod of_day;
pub mod poll;
pub mod ring;
pub mod run;
pub mod signals;
pub mod spin;
mod threads;
pub mod update;
pub mod vigil;

#[cfg(test)]
mod tests;

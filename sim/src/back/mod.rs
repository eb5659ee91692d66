//! Where operations go in the simulated world: devices with a volatile cache, and what goes wrong with them.

pub mod contents;
pub mod device;
pub mod fault;
pub mod host;
pub mod model;
mod settled;
pub mod volatile;
